//! What a recorder counts arrives in Prometheus, to the packet, and the gateway says that a
//! recorder is healthy only while it is.

mod testbed;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::{Talking, wait_for};
use testbed::{Bed, get, run, tapdeck};

/// Hands a text to `promtool check metrics`, which must find nothing.
fn assert_lint_passes(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("scripts/setup.sh --lab installs it");
    promtool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let out = promtool.wait_with_output().expect("it ends");
    let said = [out.stdout, out.stderr].concat();
    assert!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&said));
}

#[test]
fn promtool_finds_nothing_to_say() {
    let mut bed = Bed::new();
    let _recorder = bed.record("--keep-time 1h");
    bed.send(10, 100);
    let gateway = bed.gateway("");
    assert_lint_passes(gateway.get("/metrics").text());
    let ctl = |flags: &[&str]| {
        let mut command = Command::new(tapdeck());
        run(command.args(["ctl", "metrics", "--dir"]).arg(bed.store()).args(flags))
    };
    assert_lint_passes(&ctl(&["--prometheus"]));
    assert!(ctl(&[]).ends_with("\n# EOF\n"));
    let asked =
        gateway.get_with("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(asked.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(asked.text().ends_with("\n# EOF\n"));
    for text in [ctl(&[]), asked.text().to_owned()] {
        assert_openmetrics(&bed, &text);
    }
}

/// Has Prometheus' own parser of OpenMetrics read a text: `promtool` has it for samples that are
/// imported, each of which has a time.
fn assert_openmetrics(bed: &Bed, text: &str) {
    let with_time = |line: &str| {
        let time = if line.starts_with('#') { "" } else { " 1767323045" };
        format!("{line}{time}\n")
    };
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(samples > 20, "{text}");
    let (file, blocks) = (bed.path("openmetrics.txt"), tempfile::tempdir().expect("a directory"));
    fs::write(&file, text.lines().map(with_time).collect::<String>()).expect("it can be written");
    let mut promtool = Command::new("promtool");
    promtool.args(["tsdb", "create-blocks-from", "openmetrics"]).arg(&file).arg(blocks.path());
    run(&mut promtool);
    let listed = run(Command::new("promtool").args(["tsdb", "list"]).arg(blocks.path()));
    // BLOCK ULID, MIN TIME, MAX TIME, DURATION, NUM SAMPLES
    let stored = listed.lines().nth(1).and_then(|line| line.split_whitespace().nth(4));
    assert_eq!(stored, Some(&*samples.to_string()), "{listed}");
    // What is no OpenMetrics is found, so that the test can fail.
    fs::write(&file, "# TYPE a counter\na_total 1 1767323045\n").expect("it can be written");
    let wrong = promtool.output().expect("it runs");
    assert!(!wrong.status.success(), "{wrong:?}");
}

#[test]
fn alerts_fire_when_they_should() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    let promtool = |words: &[&str]| run(Command::new("promtool").args(words).current_dir(&dir));
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&["test", "rules", "alerts.test.yml"]);
}

/// Asks Prometheus for the values of an expression, by label.
fn ask(bed: &Bed, expression: &str) -> Vec<f64> {
    let escape = |byte: u8| format!("%{byte:02x}");
    let query: String = expression.bytes().map(escape).collect();
    let answer = bed.net.b.inside(|| get(PROMETHEUS, &format!("/api/v1/query?query={query}"), ""));
    let answer = answer.json();
    let result = answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
    let value = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse().ok());
    result.iter().map(|one| value(one).expect("a number")).collect()
}

const PROMETHEUS: &str = "127.0.0.1:9090";

#[test]
fn the_law_holds_in_what_prometheus_has_stored() {
    let mut bed = Bed::new();
    let recorder = bed.record("--hook xdp --filter len<=200");
    let gateway = bed.gateway("");
    let config = bed.path("prometheus.yml");
    let text = format!(
        "scrape_configs:\n- job_name: tapdeck\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{}']\n",
        gateway.address
    );
    fs::write(&config, text).expect("it can be written");
    let mut command = bed.net.b.command("prometheus");
    command.arg("--config.file").arg(config).arg("--storage.tsdb.path").arg(bed.path("tsdb"));
    command.args(["--web.listen-address", PROMETHEUS]).stdout(Stdio::null());
    let mut prometheus = Talking::start(&mut command);
    prometheus.wait_to_say("Server is ready to receive web requests");

    // What the filter takes, and what it refuses.
    bed.send(700, 100);
    let sent = bed.send(300, 400);
    let of_edge = |name: &str| format!(r#"{name}{{store="edge",interface="vb",hook="xdp"}}"#);
    let is = |expression: &str, expected: f64| ask(&bed, expression) == [expected];
    let received = of_edge("tapdeck_nic_received_packets_total");
    let seen = of_edge("tapdeck_seen_packets_total");
    wait_for("Prometheus to have what was sent", || {
        is(&received, sent as f64) && is(&seen, sent as f64)
    });
    let outcome = |outcome: &str| {
        format!(r#"sum(tapdeck_packets_total{{store="edge",outcome="{outcome}"}})"#)
    };
    wait_for("what was captured", || is(&outcome("captured"), 700.0));
    assert_eq!(ask(&bed, &outcome("filtered")), [300.0]);
    // Both sides of both laws.
    let law = "sum by (store, interface, hook) (tapdeck_packets_total) \
               == on (store, interface, hook) tapdeck_seen_packets_total";
    assert_eq!(ask(&bed, law), [sent as f64]);
    let law = "tapdeck_seen_packets_total + tapdeck_nic_dropped_packets_total \
               + tapdeck_unseen_packets_total == tapdeck_nic_received_packets_total";
    assert_eq!(ask(&bed, law), [sent as f64]);
    assert_eq!(ask(&bed, r#"tapdeck_up{store="edge"}"#), [1.0]);
    assert_eq!(ask(&bed, "up"), [1.0]);
    drop(recorder);
    wait_for("Prometheus to hear that nobody records", || is(r#"tapdeck_up{store="edge"}"#, 0.0));
}

#[test]
fn it_is_healthy_only_while_it_records() {
    let bed = Bed::new();
    let gateway = bed.gateway("");
    let health = || {
        let answer = gateway.get("/healthz");
        let json = answer.json();
        assert_eq!(json["healthy"], answer.status == 200, "{json}");
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        json["sources"][0]["faults"].as_array().expect("a list").clone()
    };
    assert!(health()[0].as_str().is_some_and(|why| why.starts_with("cannot connect to ")));
    let mut recorder = bed.record("--hook xdp");
    wait_for("an idle recorder to be healthy", || health().is_empty());
    let ctl =
        |verb: &str| run(Command::new(tapdeck()).args(["ctl", verb, "--dir"]).arg(bed.store()));
    ctl("pause");
    assert_eq!(health(), ["vb is paused"]);
    ctl("resume");
    wait_for("it to be healthy again", || health().is_empty());
    bed.net.b.run("ip link del vb");
    wait_for("the hook to be missed", || health() == ["vb: the hook is not attached"]);
    // One that does not answer is as bad as one that is gone.
    recorder.process.signal(Signal::STOP);
    assert!(health()[0].as_str().is_some_and(|why| why.starts_with("no answer from ")));
    recorder.process.signal(Signal::CONT);
    recorder.process.signal(Signal::INT);
    recorder.end();
    assert!(health()[0].as_str().is_some_and(|why| why.starts_with("cannot connect to ")));
}

#[test]
fn a_gateway_ends_in_good_order_and_leaves_no_socket() {
    let bed = Bed::new();
    let socket = bed.path("gateway.sock");
    let mut gateway = bed.gateway(&format!("[[listen]]\nunix = {socket:?}"));
    wait_for("the socket", || socket.exists());
    // A client that says nothing keeps nobody.
    let address = gateway.address.clone();
    let _silent = bed.net.b.inside(|| TcpStream::connect(&address).expect("it listens"));
    gateway.program.process.signal(Signal::TERM);
    let (status, said) = gateway.program.end();
    assert_eq!(status.code(), Some(0), "{said:?}");
    assert!(!socket.exists());
}

#[test]
fn a_configuration_that_is_wrong_is_usage() {
    let bed = Bed::new();
    let config = bed.path("gateway.toml");
    fs::write(&config, "[[listen]]\naddress = '127.0.0.1:0'\nport = 1\n").expect("it is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck-gateway"));
    let out = command.arg("--config").arg(&config).output().expect("it was built");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    let told = format!("{}, line 3: there is no key port; the nearest is ", config.display());
    assert!(said.contains(&told) && said.lines().count() == 1, "{said}");
}

#[test]
fn check_says_what_a_configuration_would_do_or_what_is_wrong_with_it() {
    let bed = Bed::new();
    let config = bed.path("gateway.toml");
    let check = |text: &str| {
        fs::write(&config, text).expect("it is written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck-gateway"));
        let out = command.arg("check").arg(&config).output().expect("it was built");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), said(&out.stdout), said(&out.stderr))
    };
    let shown = config.display();
    let listen = "[[listen]]\naddress = '127.0.0.1:9670'\n";
    let store = "[[store]]\nname = 'edge'\ndirectory = '/nowhere/edge'\n";
    let role = "[[role]]\nname = 'some'\nkind = 'reader'\nstores = ['edge']\n\
                filter = 'tcp'\nhistory = '48h'\npackets = 1000000\n";
    let user = "[[user]]\nname = 'alice'\nrole = 'some'\ncertificate = 'alice'\n";
    let audit = format!("audit = {:?}\n", bed.path("audit.jsonl"));
    let (code, page, said) = check(&format!("{audit}{listen}user = 'alice'\n{store}{role}{user}"));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        page,
        format!(
            "{shown}: usable\n  \
             listen    http://127.0.0.1:9670, from this machine; who shows no token is alice\n  \
             store     edge: /nowhere/edge, not there yet; \
             control socket /nowhere/edge/.tapdeck.sock\n  \
             user      alice: reader of edge; only packets of tcp; the last 2 days; \
             at most 1,000,000 packets an answer; 2 at once; known by certificate alice\n  \
             audit     {}\n",
            bed.path("audit.jsonl").display()
        )
    );
    assert!(!bed.path("audit.jsonl").exists(), "it only looks");
    let (code, page, _) = check(&format!("{listen}{store}"));
    assert_eq!(code, Some(0));
    assert!(page.contains("packets for nobody"), "{page}");

    let tls = "[[listen]]\naddress = '0.0.0.0:8443'\ncertificate = '/nowhere/a'\nkey = '/b'\n";
    for (text, place, part) in [
        (format!("{listen}{store}sokcet = 'x'\n"), ", line 6: ", "the nearest is socket"),
        (format!("{listen}{store}[[roles]]\n"), ", line 6: ", "the nearest is role"),
        (listen.to_owned(), ": ", "nothing to serve"),
        (format!("{tls}{store}"), ": ", "/nowhere/a"),
        (format!("audit = '/nowhere/log/audit'\n{listen}{store}"), ": ", "/nowhere/log is not"),
        (format!("{listen}[[store]]\nname = 'a'\ndirectory = '/etc/passwd'"), ": ", "store a"),
    ] {
        let (code, page, said) = check(&text);
        assert_eq!((code, &*page), (Some(1), ""), "{text}{said}");
        assert!(said.starts_with(&format!("tapdeck-gateway: {shown}{place}")), "{text}{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{text}{said}");
    }
}
