//! Questions for packets: the answers are those of `tapdeck query`, nobody gets more than their
//! role allows, and everything is written down before it is given.

#![allow(clippy::unnecessary_debug_formatting, reason = "TOML and shells want paths quoted")]

mod testbed;

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::process::number;
use tapdeck_testkit::{Talking, wait_for};
use testbed::{Answer, Bed, Gateway, run, tapdeck};

/// A token that was made for a user, and the line of the configuration.
struct Token {
    token: String,
    line: String,
}

fn new_token(name: &str) -> Token {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck-gateway"));
    let out = command.args(["token", "new", name]).output().expect("it was built");
    assert!(out.status.success(), "{out:?}");
    let printed = String::from_utf8(out.stdout).expect("it is text");
    let (token, line) = printed.split_once('\n').expect("two lines");
    Token { token: token.to_owned(), line: line.to_owned() }
}

/// Returns the packets of a capture file as tcpdump prints them, to the byte and the microsecond.
fn printed(file: &Path) -> String {
    let mut tcpdump = Command::new("tcpdump");
    let out = tcpdump.args(["-nn", "-tt", "-xx", "-r"]).arg(file).output().expect("it is there");
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).expect("it is text")
}

/// Returns what `tapdeck query` answers, as tcpdump prints it.
fn queried(bed: &Bed, words: &[&str]) -> String {
    let file = bed.path("queried.pcapng");
    let mut query = Command::new(tapdeck());
    run(query.arg("query").arg("--dir").arg(bed.store()).args(words).arg("-w").arg(&file));
    printed(&file)
}

fn packets(printed: &str) -> usize {
    printed.lines().filter(|line| !line.starts_with('\t')).count()
}

fn as_printed(bed: &Bed, answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let file = bed.path("answered");
    fs::write(&file, &answer.body).expect("it can be written");
    printed(&file)
}

/// Starts a recorder, whose store then has packets of 100 and of 400 bytes.
fn start(bed: &mut Bed) -> Talking {
    let recorder = bed.record("");
    bed.send(50, 100);
    let sent = bed.send(30, 400);
    let stats = || {
        let mut ctl = Command::new(tapdeck());
        let text = run(ctl.args(["ctl", "stats", "--json", "--dir"]).arg(bed.store()));
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    wait_for("the packets", || number(&stats(), "captured") == sent);
    recorder
}

fn ask(gateway: &Gateway<'_>, token: &str, path: &str, head: &str) -> Answer {
    gateway.get_with(path, &format!("Authorization: Bearer {token}\r\n{head}"))
}

fn audit(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_user_gets_what_query_gives_within_the_ceilings_of_the_role() {
    let mut bed = Bed::new();
    let (alice, bob) = (new_token("alice"), new_token("bob"));
    let log = bed.path("audit.jsonl");
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(&format!(
        "audit = {log:?}\n\
         [[role]]\nname = 'all'\nkind = 'reader'\n\
         [[role]]\nname = 'small'\nkind = 'reader'\nfilter = 'less 200'\npackets = 40\nhistory = '1h'\n\
         [[role]]\nname = 'other'\nkind = 'reader'\nstores = []\n\
         [[user]]\nname = 'alice'\nrole = 'all'\n{}\n\
         [[user]]\nname = 'bob'\nrole = 'small'\n{}\n\
         [[user]]\nname = 'carol'\nrole = 'other'\ncertificate = 'x'\n",
        alice.line, bob.line
    ));

    // Everything, as pcapng and as pcap, with filters and times.
    let all = queried(&bed, &[]);
    assert_eq!(packets(&all), 80);
    let answer = ask(&gateway, &alice.token, "/v1/packets", "");
    assert_eq!(as_printed(&bed, &answer), all);
    assert!(answer.head.contains("content-type: application/x-pcapng"), "{}", answer.head);
    let said = String::from_utf8_lossy(&answer.body).contains("complete: 80 packets, 0 dropped");
    assert!(said, "the last block tells that it is whole");
    let pcap = "Accept: application/vnd.tcpdump.pcap\r\n";
    assert_eq!(as_printed(&bed, &ask(&gateway, &alice.token, "/v1/packets", pcap)), all);
    let filtered = ask(&gateway, &alice.token, "/v1/packets?filter=greater+200&store=edge", "");
    assert_eq!(as_printed(&bed, &filtered), queried(&bed, &["greater", "200"]));
    let limited = ask(&gateway, &alice.token, "/v1/packets?limit=7", "");
    assert_eq!(as_printed(&bed, &limited), queried(&bed, &["--limit", "7"]));
    let before = ask(&gateway, &alice.token, "/v1/packets?before=1000000000", "");
    assert_eq!(before.status, 200);
    assert!(before.body.len() < 300, "a section header, and nothing in it");
    let trailers = {
        let address = gateway.address.clone();
        let token = &alice.token;
        let mut stream = bed.net.b.inside(|| TcpStream::connect(&address).expect("it listens"));
        let request = format!(
            "GET /v1/packets?before=1 HTTP/1.1\r\nHost: {address}\r\nTE: trailers\r\n\
             Connection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it reads the request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let said = "tapdeck-result: complete: 0 packets, 0 dropped, 0 unseen\r\n";
    assert!(trailers.contains(said), "{trailers}");

    // The role's filter and number of packets hold, whatever is asked.
    let small = queried(&bed, &["--limit", "40", "less", "200"]);
    assert_eq!(packets(&small), 40);
    for path in ["/v1/packets", "/v1/packets?filter=ip+or+not+ip", "/v1/packets?limit=1000"] {
        assert_eq!(as_printed(&bed, &ask(&gateway, &bob.token, path, "")), small, "{path}");
    }
    let escapes = ask(&gateway, &bob.token, "/v1/packets?filter=ip)+or+(ip", "");
    assert_eq!(escapes.status, 400, "{}", escapes.text());
    assert_eq!(ask(&gateway, &bob.token, "/v1/stat", "").status, 403);

    // What makes no sense is refused, and so is who shows nothing.
    for (path, status) in [
        ("/v1/packets?filter=prot+80", 400),
        ("/v1/packets?colour=red", 400),
        ("/v1/packets?limit=1&limit=2", 400),
        ("/v1/packets?after=soon", 400),
        ("/v1/packets?after=2000000000&before=1000000000", 400),
        ("/v1/packets?store=core", 404),
        ("/v1/nothing", 404),
    ] {
        let answer = ask(&gateway, &alice.token, path, "");
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    let stolen = alice.token.replace("alice", "bob");
    for token in [&stolen, "", "alice", "carol."] {
        assert_eq!(ask(&gateway, token, "/v1/packets", "").status, 401, "{token}");
    }
    assert_eq!(gateway.get("/v1/packets").status, 401);

    // Who has asked what, and what they got.
    let lines = audit(&log);
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    let first = &lines[0];
    let keys = ["who", "by", "what", "store", "filter"].map(|key| first[key].as_str().unwrap());
    assert_eq!(keys, ["alice", "token", "/v1/packets", "edge", ""]);
    assert!(first["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")), "{first}");
    // Who is known is named also where they are refused; others are counted.
    let refused = |who: &str, status: u64| {
        lines.iter().filter(|line| line["who"] == who && line["status"] == status).count()
    };
    assert_eq!((refused("alice", 400), refused("alice", 404)), (5, 1), "{lines:#?}");
    assert_eq!((refused("bob", 400), refused("bob", 403)), (1, 1), "{lines:#?}");
    let strangers = || {
        let lines = audit(&log);
        let strangers = lines.iter().filter(|line| line["from"] == "127.0.0.1");
        strangers.filter_map(|line| line["count"].as_u64()).sum::<u64>()
    };
    wait_for("those who were refused", || strangers() == 5);
    let end = lines.iter().find(|line| line["event"] == "ended" && line["id"] == first["id"]);
    let end = end.expect("it ended");
    assert_eq!((&end["packets"], &end["result"]), (&80.into(), &"complete".into()));
    assert_eq!(of("asked"), of("ended"), "{lines:#?}");
    assert!(!fs::read_to_string(&log).unwrap().contains(&alice.token[6..]), "no secret in it");
    let metrics = gateway.get("/metrics");
    assert!(metrics.text().contains("tapdeck_query_duration_seconds_count{"), "{}", metrics.text());
}

#[test]
fn what_a_store_holds_is_told_from_its_indexes() {
    let mut bed = Bed::new();
    let log = bed.path("audit.jsonl");
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(&format!(
        "audit = {log:?}\n[[role]]\nname = 'all'\nkind = 'operator'\n\
         [[user]]\nname = 'local'\nrole = 'all'\n[[listen]]\naddress = '127.0.0.1:8001'\nuser = 'local'\n"
    ));
    let get = |path: &str| {
        let answer = bed.net.b.inside(|| testbed::get("127.0.0.1:8001", path, ""));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    };
    let stat = get("/v1/stat");
    assert_eq!((number(&stat, "packets"), number(&stat, "lost")), (80, 0), "{stat}");
    let histogram = get("/v1/histogram?step=1s");
    let parts = histogram["packets"].as_array().expect("a list");
    assert_eq!(parts.iter().filter_map(Value::as_u64).sum::<u64>(), 80, "{histogram}");
    let hosts = get("/v1/hosts");
    let names: Vec<&str> =
        hosts["hosts"].as_array().unwrap().iter().map(|h| h["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"10.213.0.1") && names.contains(&"10.213.0.2"), "{hosts}");
    assert_eq!(number(&get("/v1/losses"), "lost"), 0);
    for path in ["/v1/histogram", "/v1/hosts"] {
        assert_eq!(number(&get(path), "segments_not_indexed"), 0);
    }
    assert_eq!(audit(&log).len(), 12, "six questions and their ends");
    let connect = || bed.net.b.inside(|| TcpStream::connect("127.0.0.1:8001").expect("it listens"));
    let mut events = connect();
    events.write_all(b"GET /v1/watch HTTP/1.0\r\n\r\n").expect("it reads");
    let mut lines = std::io::BufReader::new(events).lines().map_while(Result::ok);
    let event = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let event: Value = serde_json::from_str(&event.expect("an event")).expect("JSON");
    assert!(event["dropped_packets_per_s"].is_f64(), "{event}");
    assert_eq!(audit(&log)[12]["what"], "/v1/watch");
    drop(lines);
    wait_for("the end of the watch", || audit(&log).len() == 14);
    assert_eq!(audit(&log)[13]["result"], "left");
    // A user has eight at a time.
    let watch = || {
        let mut stream = connect();
        stream.write_all(b"GET /v1/watch HTTP/1.1\r\n\r\n").expect("it reads");
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).expect("it answers");
        (stream, begun)
    };
    let mut watching: Vec<_> = (0..8).map(|_| watch()).collect();
    assert!(watching.iter().all(|(_, begun)| begun == b"HTTP/1.1 200"));
    watching.push(watch());
    assert_eq!(&watching[8].1, b"HTTP/1.1 503");
    drop(watching);
    // Whoever leaves at once leaves a question that has an end.
    for _ in 0..30 {
        connect().write_all(b"GET /v1/hosts HTTP/1.1\r\n\r\n").expect("it reads");
    }
    let count = |event: &str| audit(&log).iter().filter(|line| line["event"] == event).count();
    assert_eq!(get("/v1/stat")["packets"], 80);
    wait_for("the ends", || count("asked") == count("ended"));
    // A browser that was led here by a name of somebody else's gets nothing.
    let mut led = connect();
    let request = b"GET /v1/stat HTTP/1.1\r\nHost: evil.example:8001\r\nConnection: close\r\n\r\n";
    led.write_all(request).expect("it reads");
    assert_eq!(testbed::answer(&mut led).status, 403);
    let led = bed.net.b.inside(|| {
        let mut stream = TcpStream::connect(&gateway.address).expect("it listens");
        testbed::get_as(&mut stream, "evil.example", "/metrics", "")
    });
    assert_eq!(led.status, 403, "{}", led.text());
    let named = testbed::get_as(&mut connect(), "localhost:8001", "/v1/stat", "");
    assert_eq!(named.status, 200, "{}", named.text());
    assert_eq!(gateway.get("/readyz").status, 200);
    fs::rename(bed.store(), bed.path("away")).expect("it can be moved");
    assert_eq!(gateway.get("/readyz").status, 503);
}

#[test]
fn a_question_that_cannot_be_written_down_is_refused() {
    let mut bed = Bed::new();
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(
        "audit = '/dev/full'\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'local'\nrole = 'all'\n[[listen]]\naddress = '127.0.0.1:8001'\nuser = 'local'\n",
    );
    assert_eq!(gateway.get("/readyz").status, 200, "nothing was written yet");
    for path in ["/v1/packets", "/v1/stat"] {
        let answer = bed.net.b.inside(|| testbed::get("127.0.0.1:8001", path, ""));
        assert_eq!(answer.status, 503, "{path}");
        assert_eq!(answer.text(), "the audit cannot be written\n");
    }
    assert_eq!(gateway.get("/readyz").status, 503);
    assert_eq!(gateway.get("/metrics").status, 200, "nobody's packets are in that");
}

/// Makes a certificate authority, a certificate for the gateway and one for a client.
fn certificates(dir: &Path, client: &str) {
    let script = format!(
        "set -e; cd {dir:?}
         openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca 2>/dev/null
         for name in gateway {client}; do
           openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name 2>/dev/null
           echo 'extendedKeyUsage=clientAuth' >ext
           if [ $name = gateway ]; then
             printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth\\n' >ext
           fi
           openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem -days 1 -extfile ext 2>/dev/null
         done"
    );
    run(Command::new("bash").args(["-c", &script]));
}

fn curl(bed: &Bed, words: &[&str]) -> (Option<i32>, String) {
    let mut command = bed.net.b.command("curl");
    let out = command.args(["--silent", "--show-error", "--max-time", "60"]).args(words).output();
    let out = out.expect("curl is there");
    let said = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn certificates_show_who_asks_and_are_read_again_when_they_change() {
    let mut bed = Bed::new();
    let _recorder = start(&mut bed);
    let [mine, others] = ["mine", "others"].map(|name| {
        let dir = bed.path(name);
        fs::create_dir(&dir).expect("there is room");
        certificates(&dir, "alice");
        dir
    });
    let log = bed.path("audit.jsonl");
    let mut gateway = bed.gateway(&format!(
        "audit = {log:?}\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'alice'\nrole = 'all'\ncertificate = 'alice'\n\
         [[listen]]\naddress = '127.0.0.1:8443'\ncertificate = {:?}\nkey = {:?}\nclient-ca = {:?}\n",
        mine.join("gateway.pem"), mine.join("gateway.key"), mine.join("ca.pem")
    ));
    let path = |dir: &Path, name: &str| dir.join(name).display().to_string();
    let (ca, url) = (path(&mine, "ca.pem"), "https://127.0.0.1:8443/v1/stat");
    let with = |dir: &Path, ca: &str| {
        let (cert, key) = (path(dir, "alice.pem"), path(dir, "alice.key"));
        curl(&bed, &["--cacert", ca, "--cert", &cert, "--key", &key, url])
    };
    let (code, said) = with(&mine, &ca);
    assert!(code == Some(0) && said.contains("\"packets\":80"), "{said}");
    assert_eq!(audit(&log)[0]["by"], "certificate");
    // The gateway's own certificate is nobody's, and a user's shows no gateway.
    let pair = |name: &str| ["pem", "key"].map(|end| path(&mine, &format!("{name}.{end}")));
    let [cert, key] = pair("gateway");
    let (code, said) = curl(&bed, &["--cacert", &ca, "--cert", &cert, "--key", &key, url]);
    assert_ne!(code, Some(0), "{said}");
    let shown = mine.join("alice.pem");
    let verify = |purpose: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-purpose", purpose, "-CAfile", &ca]).arg(&shown);
        openssl.output().expect("it is there").status.success()
    };
    assert!(verify("sslclient") && !verify("sslserver"));
    // Another authority's, and none.
    let (code, said) = with(&others, &ca);
    assert_ne!(code, Some(0), "{said}");
    let (code, said) = curl(&bed, &["--cacert", &ca, url]);
    assert!(code == Some(0) && said.starts_with("who are you?"), "{said}");
    let (code, said) = curl(&bed, &["--cacert", &ca, "https://127.0.0.1:8443/metrics"]);
    assert!(code == Some(0) && said.starts_with("who are you?"), "{said}");
    let (cert, key) = (path(&mine, "alice.pem"), path(&mine, "alice.key"));
    let metrics = "https://127.0.0.1:8443/metrics";
    let (code, said) = curl(&bed, &["--cacert", &ca, "--cert", &cert, "--key", &key, metrics]);
    assert!(code == Some(0) && said == "that is for operators\n", "{said}");
    // Files that make no sense change nothing; others do, without a restart.
    fs::write(mine.join("gateway.pem"), "nonsense").expect("it can be written");
    gateway.program.wait_to_say("those of before count");
    assert_eq!(with(&mine, &ca).0, Some(0));
    for name in ["gateway.pem", "gateway.key", "ca.pem"] {
        fs::copy(others.join(name), mine.join(name)).expect("it can be written");
    }
    gateway.program.wait_to_say("certificates were read again");
    let other_ca = path(&others, "ca.pem");
    wait_for("the other certificates", || with(&others, &other_ca).0 == Some(0));
}

#[test]
fn stenographers_own_client_works_unchanged() {
    let mut bed = Bed::new();
    let _recorder = start(&mut bed);
    let config = bed.path("stenographer.json");
    let keys = bed.path("certs");
    let text = format!(
        "{{\"Threads\": [], \"Port\": 1234, \"Host\": \"127.0.0.1\", \"CertPath\": {keys:?}}}"
    );
    fs::write(&config, text).expect("it can be written");
    run(Command::new("stenokeys").args(["root", "root"]).env("STENOGRAPHER_CONFIG", &config));
    let log = bed.path("audit.jsonl");
    let _gateway = bed.gateway(&format!(
        "audit = {log:?}\nstenographer = 'edge'\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'steno'\nrole = 'all'\ncertificate = '127.0.0.1_client'\n\
         [[listen]]\naddress = '127.0.0.1:1234'\ncertificate = {:?}\nkey = {:?}\nclient-ca = {:?}\n",
        keys.join("server_cert.pem"), keys.join("server_key.pem"), keys.join("ca_cert.pem")
    ));
    let stenoread = |words: &[&str]| {
        let mut command = bed.net.b.command("stenoread");
        command.args(words).args(["-nn", "-tt", "-xx"]).env("STENOGRAPHER_CONFIG", &config);
        let out = command.output().expect("scripts/setup.sh --lab installs it");
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("it is text")
    };
    let all = queried(&bed, &[]);
    assert_eq!(packets(&all), 80);
    for (asked, same) in [
        ("host 10.213.0.1", &[][..]),
        ("net 10.213.0.0/24 and udp and port 9", &[]),
        ("ip proto 17 && (port 9 || port 53)", &["udp"]),
        ("after 5m ago", &[]),
        ("before 5m ago or tcp", &["tcp"]),
        ("icmp or host 10.213.0.77", &["icmp"]),
    ] {
        assert_eq!(stenoread(&[asked]), queried(&bed, same), "{asked}");
    }
    let limited = stenoread(&["--limit-packets", "6", "udp"]);
    assert_eq!(limited, queried(&bed, &["--limit", "6"]));
    let few = packets(&stenoread(&["--limit-bytes", "1000", "udp"]));
    assert!((1..10).contains(&few), "{few}");
    assert_eq!(audit(&log)[0]["who"], "steno");
}

/// Opens a connection that asks for everything and reads nothing.
fn slow(gateway: &Gateway<'_>, bed: &Bed, token: &str) -> TcpStream {
    let address = gateway.address.clone();
    let mut stream = bed.net.b.inside(|| TcpStream::connect(&address).expect("it listens"));
    let request = format!(
        "GET /v1/packets HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it reads the request");
    stream
}

#[test]
fn slow_readers_and_many_at_once_keep_nobody_waiting_and_cost_bounded_memory() {
    let mut bed = Bed::new();
    let _recorder = bed.record("");
    bed.send(60_000, 1400);
    let (alice, mallory) = (new_token("alice"), new_token("mallory"));
    let log = bed.path("audit.jsonl");
    let gateway = bed.gateway(&format!(
        "audit = {log:?}\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'alice'\nrole = 'all'\n{}\n[[user]]\nname = 'mallory'\nrole = 'all'\n{}\n",
        alice.line, mallory.line
    ));
    let idle: Vec<TcpStream> = (0..50).map(|_| slow(&gateway, &bed, &mallory.token)).collect();
    // Whichever of them were first have begun to get an answer, and take none of it.
    wait_for("an answer that begins", || {
        idle.iter().any(|one| {
            let mut begun = [0; 15];
            one.set_nonblocking(true).expect("a socket");
            one.peek(&mut begun).is_ok_and(|_| &begun == b"HTTP/1.1 200 OK")
        })
    });
    let (net, address) = (&bed.net, &gateway.address);
    let count = |limit: u32| {
        let path = format!("/v1/packets?limit={limit}");
        let head = format!("Authorization: Bearer {}\r\n", alice.token);
        let answer = net.b.inside(|| testbed::get(address, &path, &head));
        assert_eq!(answer.status, 200);
        String::from_utf8_lossy(&answer.body).matches(&format!("limited: {limit} packets")).count()
    };
    assert_eq!(count(1000), 1, "others have their turn");
    std::thread::scope(|scope| {
        let many: Vec<_> = (0..200).map(|_| scope.spawn(|| count(100))).collect();
        assert!(many.into_iter().all(|one| one.join().expect("it is answered") == 1));
    });
    let status = format!("/proc/{}/status", gateway.program.process.0.id());
    let status = fs::read_to_string(status).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 128 << 10, "{kib} KiB");
    drop(idle);
}

#[test]
fn a_filter_that_takes_for_ever_or_all_memory_to_compile_is_refused() {
    // Both are short enough to be tried. libpcap takes long over the first, in little memory, and
    // gets no more memory for the second before it has taken long.
    let hosts: Vec<String> =
        (0..500).map(|i| format!("host 10.0.{}.{}", i / 250, i % 250)).collect();
    let ports: Vec<String> = (1..=1000).map(|port| format!("port {port}")).collect();
    let [slow, large] = [hosts.join(" or "), ports.join(" or ")];
    let check = |filter: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck-gateway"));
        let child = command.arg("check-filter").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("it was built");
        child.stdin.take().expect("piped").write_all(filter.as_bytes()).expect("it reads");
        let out = child.wait_with_output().expect("it ends");
        assert!(out.stdout.is_empty(), "{out:?}");
        out.status
    };
    assert_eq!(check("port 9").code(), Some(0));
    assert_eq!(check(&slow).signal(), Some(Signal::KILL.as_raw()), "its second is over");
    assert_eq!(check(&large).code(), Some(1), "there is no more memory for it");

    let mut bed = Bed::new();
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(&format!(
        "audit = {:?}\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'local'\nrole = 'all'\n[[listen]]\naddress = '127.0.0.1:8001'\nuser = 'local'\n",
        bed.path("audit.jsonl")
    ));
    let get = |path: &str| bed.net.b.inside(|| testbed::get("127.0.0.1:8001", path, ""));
    let long = "port+9+or+".repeat(2000);
    let answer = get(&format!("/v1/packets?filter={long}port+9"));
    assert_eq!((answer.status, answer.text().contains("16384 bytes")), (400, true));
    for filter in [slow, large] {
        let answer = get(&format!("/v1/packets?filter={}", filter.replace(' ', "+")));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("takes more than"), "{}", answer.text());
    }
    // Addresses of names are looked up neither there nor here.
    for name in ["host+localhost", "tcp+and+(10.0.0.1+or+ip6-localhost)", "net+x", "gateway+x"] {
        let answer = get(&format!("/v1/packets?filter={name}"));
        assert!(answer.text().contains("in place of names"), "{name}: {}", answer.text());
    }
    assert_eq!(get("/v1/packets?filter=port+9").status, 200);
    assert_eq!(get("/v1/packets?filter=port+domain+or+ip+proto+ospf").status, 200);
    drop(gateway);
}

#[test]
fn a_role_bounds_bytes_and_history() {
    let mut bed = Bed::new();
    let (alice, bob) = (new_token("alice"), new_token("bob"));
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(&format!(
        "audit = {:?}\n\
         [[role]]\nname = 'few'\nkind = 'reader'\nbytes = 3000\n\
         [[role]]\nname = 'new'\nkind = 'reader'\nhistory = '2s'\n\
         [[user]]\nname = 'alice'\nrole = 'few'\n{}\n[[user]]\nname = 'bob'\nrole = 'new'\n{}\n",
        bed.path("audit.jsonl"),
        alice.line,
        bob.line
    ));
    let few = ask(&gateway, &alice.token, "/v1/packets", "");
    let count = packets(&as_printed(&bed, &few));
    assert!((5..40).contains(&count), "{count} packets");
    assert!(String::from_utf8_lossy(&few.body).contains(&format!("limited: {count} packets")));
    // What is older than the role's history is not in it, whatever is asked.
    let path = "/v1/packets?after=0&filter=greater+1";
    let left = || ask(&gateway, &bob.token, path, "").body;
    wait_for("the packets to be history", || {
        String::from_utf8_lossy(&left()).contains("complete: 0 packets")
    });
    assert_eq!(packets(&queried(&bed, &[])), 80, "they are in the store");
}

#[test]
fn whoever_is_not_known_keeps_nobody_waiting() {
    let mut bed = Bed::new();
    let alice = new_token("alice");
    let _recorder = start(&mut bed);
    let gateway = bed.gateway(&format!(
        "audit = {:?}\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'alice'\nrole = 'all'\n{}\n",
        bed.path("audit.jsonl"),
        alice.line
    ));
    let post = |token: &str, version: &str, body: &str| {
        let mut stream =
            bed.net.b.inside(|| TcpStream::connect(&gateway.address).expect("it listens"));
        // The query has a byte more than was sent.
        let request = format!(
            "POST /query {version}\r\nHost: x\r\nAuthorization: Bearer {token}\r\nTE: trailers\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{}",
            body.len(),
            body.trim_end_matches('#')
        );
        stream.write_all(request.as_bytes()).expect("it reads the request");
        stream
    };
    // They are refused before their queries have come, which never do.
    let strangers: Vec<_> = (0..600).map(|_| post("alice.00", "HTTP/1.1", "tcp#")).collect();
    for mut stranger in strangers {
        let mut begun = [0; 12];
        stranger.read_exact(&mut begun).expect("it answers");
        assert_eq!(&begun, b"HTTP/1.1 401");
    }
    // Who is known has some seconds for the query.
    let mut late = post(&alice.token, "HTTP/1.1", "tcp#");
    assert_eq!(testbed::answer(&mut late).status, 408);
    // How whole an answer is stands in the trailer, which HTTP/1.0 has not.
    let mut answer = Vec::new();
    post(&alice.token, "HTTP/1.1", "udp").read_to_end(&mut answer).expect("it answers");
    let said = b"tapdeck-result: complete: 80 packets, 0 dropped, 0 unseen\r\n";
    assert!(answer.windows(said.len()).any(|part| part == said));
    let old = testbed::answer(&mut post(&alice.token, "HTTP/1.0", "udp"));
    assert_eq!(old.status, 505, "{}", old.text());
    // The last block of pcapng says it as well.
    for (accept, status) in [("application/x-pcapng", 200), ("application/vnd.tcpdump.pcap", 505)] {
        let mut stream =
            bed.net.b.inside(|| TcpStream::connect(&gateway.address).expect("it listens"));
        let request = format!(
            "GET /v1/packets HTTP/1.0\r\nAuthorization: Bearer {}\r\nAccept: {accept}\r\n\r\n",
            alice.token
        );
        stream.write_all(request.as_bytes()).expect("it reads the request");
        assert_eq!(testbed::answer(&mut stream).status, status, "{accept}");
    }
    let deep = format!("after1h ago{}", "&&tcp||tcp".repeat(1000));
    let refused = testbed::answer(&mut post(&alice.token, "HTTP/1.1", &deep));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.text(), "a query has at most 512 words, values and signs\n");
}

#[test]
fn an_answer_whose_segments_are_deleted_meanwhile_says_so_and_ends_properly() {
    let mut bed = Bed::new();
    let mut recorder = bed.record("--segment-size 8MiB");
    let sent = bed.send(60_000, 1400);
    recorder.process.signal(Signal::INT);
    assert!(recorder.end().0.success());
    let alice = new_token("alice");
    let log = bed.path("audit.jsonl");
    let gateway = bed.gateway(&format!(
        "audit = {log:?}\n[[role]]\nname = 'all'\nkind = 'reader'\n\
         [[user]]\nname = 'alice'\nrole = 'all'\n{}\n",
        alice.line
    ));
    let segments = || {
        let names = fs::read_dir(bed.store()).expect("it is there").flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pcapng")).count()
    };
    assert!(segments() > 8, "{}", segments());
    // The answer is under way, and larger than what lies between it and its reader.
    let mut reader = slow(&gateway, &bed, &alice.token);
    let mut begun = [0; 15];
    reader.read_exact(&mut begun).expect("an answer begins");
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    // Another recorder goes on in the store, and keeps less.
    let _recorder = bed.record("--keep-segments 2");
    wait_for("retention", || segments() <= 2);

    let mut rest = Vec::new();
    let mut piece = vec![0; 1 << 20];
    // The last chunk of an answer has no bytes.
    while !rest.ends_with(b"\r\n0\r\n\r\n") {
        let len = reader.read(&mut piece).expect("it does not break off");
        assert!(len > 0, "it broke off");
        rest.extend_from_slice(&piece[..len]);
    }
    let text = String::from_utf8_lossy(&rest[rest.len() - 8192..]).into_owned();
    let (_, end) = text.rsplit_once("incomplete: ").unwrap_or_else(|| panic!("{text}"));
    let given: u64 = end.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(given > 0 && given < sent, "{given} of {sent} packets");
    assert!(end.contains(" was deleted"), "{end}");
    let result = || audit(&log).last().map(|line| line["result"].clone());
    wait_for("the end in the audit", || result() == Some("incomplete".into()));
    // The gateway goes on with what is left.
    let answer = ask(&gateway, &alice.token, "/v1/packets?limit=1", "");
    assert_eq!(answer.status, 200);
    assert!(String::from_utf8_lossy(&answer.body).contains("limited: 1 packets"));
}
