//! A running recorder is asked and steered: what it answers is true, what it is told takes effect
//! on packets that come later, to the packet, and nothing that anybody sends can end it.

mod testbed;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A recorder into a store, and a connection to its control socket.
struct Controlled {
    net: Net,
    dir: tempfile::TempDir,
    recorder: Recorder,
    connection: BufReader<UnixStream>,
    sent: u64,
}

impl Controlled {
    fn start(flags: &str) -> Self {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--snaplen 2000 --dir {} {flags}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let connection = connect(&store.join(".tapdeck.sock"));
        Self { net, dir, recorder, connection, sent: 0 }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn ask(&mut self, request: &Value) -> Value {
        ask(&mut self.connection, &request.to_string())
    }

    /// As [`Controlled::ask`], where it must be done.
    fn tell(&mut self, request: &Value) -> Value {
        let answer = self.ask(request);
        assert_eq!(answer["ok"], true, "{request}: {answer}");
        answer
    }

    /// Sends UDP frames of 200 bytes to port 9.
    fn send(&mut self, count: u32) {
        let first = self.sent as u32;
        self.send_frames((first..first + count).map(|i| frame(MAC, 200, i)));
    }

    fn send_frames(&mut self, frames: impl Iterator<Item = Vec<u8>> + Send) {
        self.sent += self.net.a.inside(|| Sender::on("va").send_all(frames));
    }

    fn stats(&mut self) -> Value {
        self.tell(&json!({"verb": "stats"}))
    }

    /// Waits until so many packets are accounted for.
    fn wait_seen(&mut self, seen: u64) {
        wait_for("the packets to be seen", || number(&self.stats(), "seen") >= seen);
    }

    fn stop(self) -> (Value, Contents, tempfile::TempDir) {
        let stats = self.recorder.stop();
        assert_accounted(&stats);
        let contents = Contents::of_store(&self.dir.path().join("store"));
        (stats, contents, self.dir)
    }
}

fn connect(path: &Path) -> BufReader<UnixStream> {
    BufReader::new(UnixStream::connect(path).expect("it listens"))
}

fn ask(connection: &mut BufReader<UnixStream>, request: &str) -> Value {
    connection.get_mut().write_all(format!("{request}\n").as_bytes()).expect("it reads");
    answer(connection)
}

fn answer(connection: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    connection.read_line(&mut line).expect("it answers");
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

fn ctl(dir: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("ctl").arg("--dir").arg(dir).args(words.split_whitespace());
    command.output().expect("the program was built")
}

fn says(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The value of a sample in OpenMetrics, by all that stands before it.
fn sample(metrics: &str, name: &str) -> f64 {
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = values.next().unwrap_or_else(|| panic!("no {name} in {metrics}"));
    value.parse().expect("a number")
}

#[test]
#[allow(clippy::float_cmp, reason = "counts are whole numbers")]
fn metrics_account_for_every_packet_and_tell_of_the_store() {
    let mut c = Controlled::start("--hook xdp --keep-time 7d --filter len<=1000");
    let began = std::time::SystemTime::now();
    c.send(300);
    c.send_frames((0..20).map(|i| frame(MAC, 1400, i)));
    c.wait_seen(320);
    c.tell(&json!({"verb": "rotate"}));
    wait_for("the segment to be in the store", || number(&c.stats(), "store_bytes") > 0);
    wait_for("a look at the device", || number(&c.stats(), "nic_received") == 320);
    let metrics = says(&ctl(&c.store(), "metrics"));
    let of = |outcome, cause| {
        let labels = r#"interface="vb",hook="xdp""#;
        let name = "tapdeck_packets_total";
        sample(&metrics, &format!(r#"{name}{{{labels},outcome="{outcome}",cause="{cause}"}}"#))
    };
    assert_eq!((of("captured", ""), of("filtered", "")), (300.0, 20.0), "{metrics}");
    let lost: f64 =
        ["ring", "contended", "unreadable", "unwritten"].map(|c| of("dropped", c)).iter().sum();
    assert_eq!(lost, 0.0);
    let of = |name: &str| sample(&metrics, &format!(r#"{name}{{interface="vb",hook="xdp"}}"#));
    assert_eq!(of("tapdeck_seen_packets_total"), 320.0);
    assert_eq!(of("tapdeck_nic_received_packets_total"), 320.0);
    assert_eq!(of("tapdeck_hook_attached"), 1.0);
    let of = |name| sample(&metrics, name);
    assert!(of("tapdeck_store_bytes") > 300.0 * 200.0, "{metrics}");
    let came = of("tapdeck_store_oldest_packet_timestamp_seconds");
    let since =
        |t: std::time::SystemTime| t.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((since(began)..since(std::time::SystemTime::now())).contains(&came), "{came}");
    assert_eq!(of("tapdeck_store_keep_time_seconds"), 7.0 * 86_400.0);
    assert!(of("tapdeck_ring_used_bytes") <= of("tapdeck_ring_size_bytes"));
    assert_eq!(of("tapdeck_write_pending_seconds"), 0.0, "nothing waits");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let classic = says(&ctl(&c.store(), "metrics --prometheus"));
    assert!(classic.contains("# TYPE tapdeck_packets_total counter\n"), "{classic}");
    let (stats, ..) = c.stop();
    assert_eq!(number(&stats, "captured"), 300);
}

fn pausing_is_exact(hook: &str) {
    let mut c = Controlled::start(&format!("--hook {hook}"));
    if hook == "netfilter" {
        c.net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    c.send(100);
    c.wait_seen(100);
    c.tell(&json!({"verb": "pause"}));
    assert_eq!(c.stats()["paused"], true);
    c.tell(&json!({"verb": "pause"}));
    let told = c.ask(&json!({"verb": "filter", "filter": "no filter at all"}));
    assert!(told["error"].is_string(), "{hook}: a bad filter is refused at once: {told}");
    c.send(50);
    c.tell(&json!({"verb": "resume"}));
    c.tell(&json!({"verb": "resume"}));
    assert_eq!(c.stats()["paused"], false);
    c.send(30);
    c.wait_seen(130);
    let (stats, contents, _dir) = c.stop();
    assert_eq!((number(&stats, "seen"), number(&stats, "captured")), (130, 130), "{hook}: {stats}");
    let numbers: Vec<u32> = contents.packets.iter().map(|p| number_of(&p.frame)).collect();
    let expected: Vec<u32> = (0..100).chain(150..180).collect();
    assert_eq!(numbers, expected, "{hook}");
}

#[test]
fn nothing_is_seen_while_it_is_paused() {
    for hook in ["xdp", "tcx", "tpacket", "afxdp --deliver consume"] {
        pausing_is_exact(hook);
    }
}

#[test]
fn a_snaplen_takes_effect_and_cannot_grow() {
    for hook in ["xdp", "tcx", "recv"] {
        let mut c = Controlled::start(&format!("--hook {hook}"));
        c.send(20);
        c.wait_seen(20);
        assert_eq!(c.tell(&json!({"verb": "snaplen", "snaplen": 64}))["snaplen"], 64);
        assert_eq!(c.stats()["interfaces"]["vb"]["snaplen"], 64);
        c.send(20);
        c.wait_seen(40);
        c.tell(&json!({"verb": "snaplen", "snaplen": 2000}));
        c.send(20);
        c.wait_seen(60);
        for wrong in [0, 2001] {
            let told = c.ask(&json!({"verb": "snaplen", "snaplen": wrong}));
            assert!(told["error"].as_str().expect("a text").contains("2000"), "{hook}: {told}");
        }
        let (_, contents, _dir) = c.stop();
        let lengths: Vec<usize> = contents.packets.iter().map(|p| p.frame.len()).collect();
        assert_eq!(lengths, [[200; 20], [64; 20], [200; 20]].concat(), "{hook}");
        assert!(contents.packets.iter().all(|p| p.original_len == 200), "{hook}");
    }
}

#[test]
fn a_filter_is_exchanged_and_a_wrong_one_changes_nothing() {
    for hook in ["xdp", "tcx"] {
        let mut c = Controlled::start(&format!("--hook {hook}"));
        c.send(100);
        c.wait_seen(100);
        assert_eq!(
            c.tell(&json!({"verb": "filter", "filter": "udp port 7"}))["filter"],
            "udp port 7"
        );
        assert_eq!(c.stats()["interfaces"]["vb"]["filter"], "udp port 7");
        c.send(50);
        c.wait_seen(150);
        let told = c.ask(&json!({"verb": "filter", "filter": "no such thing"}));
        assert_eq!(told["ok"], false, "{told}");
        assert_eq!(c.stats()["interfaces"]["vb"]["filter"], "udp port 7");
        c.send(10);
        c.tell(&json!({"verb": "filter", "filter": null}));
        c.send(40);
        c.wait_seen(200);
        let (stats, contents, dir) = c.stop();
        assert_eq!(number(&stats, "captured"), 140, "{hook}: {stats}");
        assert_eq!(number(&stats, "filtered"), 60, "{hook}: {stats}");
        assert_eq!(contents.packets.len(), 140, "{hook}");
        // Each segment says which filter its packets have passed.
        let last = segments(&dir.path().join("store")).pop().expect("segments");
        assert_eq!(Contents::of(&last).interfaces[0].filter, None, "{hook}");
    }
}

/// UDP packets at a steady pace until it is told to end.
struct Traffic {
    process: Running,
    sent: PathBuf,
}

impl Traffic {
    fn start(c: &Controlled) -> Self {
        let sent = c.dir.path().join("sent.json");
        let flags =
            "gen -i va --size 100 --rate 5kpps --count 10000000 --flows 10 --backend txring --json";
        let mut command = c.net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(flags.split_whitespace()).arg(&sent);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: Running(command.spawn().expect("the program was built")), sent }
    }

    /// Ends the sender, and returns how many packets were sent.
    fn end(self) -> u64 {
        self.process.interrupt();
        let sent = std::fs::read(&self.sent).expect("it says what it sent");
        number(&serde_json::from_slice(&sent).expect("JSON"), "sent")
    }
}

/// Waits until more packets have come than now.
fn wait_for_more(c: &mut Controlled) {
    let before = number(&c.stats(), "seen");
    c.wait_seen(before + 100);
}

/// Packets flow while the filter is changed to and fro: each is judged by one of the two filters,
/// and none is lost.
#[test]
fn filters_are_exchanged_under_load_and_every_packet_is_accounted_for() {
    for hook in ["xdp", "tcx", "afxdp --deliver consume"] {
        let mut c = Controlled::start(&format!("--hook {hook}"));
        let traffic = Traffic::start(&c);
        for filter in ["tcp", "udp", "tcp", "udp"] {
            // What is sent is UDP.
            c.tell(&json!({"verb": "filter", "filter": filter}));
            wait_for_more(&mut c);
        }
        let sent = traffic.end();
        c.wait_seen(sent);
        let (stats, contents, _dir) = c.stop();
        assert_eq!(number(&stats, "seen"), sent, "{hook}: {stats}");
        assert_eq!(contents.packets.len() as u64, number(&stats, "captured"), "{hook}");
        assert!(
            number(&stats, "filtered") > 0 && number(&stats, "captured") > 0,
            "{hook}: {stats}"
        );
    }
}

/// The same with rules, which count what they took.
#[test]
fn rules_are_exchanged_under_load_and_every_packet_is_counted_by_one_of_them() {
    const TAKE: &str = "accept src any dst any sport any dport any proto udp";
    const LEAVE: &str = "drop src any dst any sport any dport any proto udp";
    const OTHER: &str = "accept src any dst any sport any dport 53 proto tcp";
    for hook in ["xdp", "tcx"] {
        let mut c = Controlled::start(&format!("--hook {hook}"));
        let rules = |what: &str, rules: &str| json!({"verb": "rules", "do": what, "rules": rules});
        let answer = c.tell(&rules("replace", &format!("# both\n{TAKE}\n{OTHER}\n")));
        assert_eq!((&answer["rules"], &answer["enabled"]), (&json!(2), &json!(true)));
        let traffic = Traffic::start(&c);
        wait_for_more(&mut c);
        for change in [
            rules("replace", LEAVE),
            rules("add", OTHER),
            rules("replace", TAKE),
            rules("add", &format!("{LEAVE}\n{OTHER}")),
            rules("disable", TAKE),
            rules("remove", OTHER),
            rules("enable", TAKE),
        ] {
            c.tell(&change);
            wait_for_more(&mut c);
        }
        let sent = traffic.end();
        c.wait_seen(sent);
        let hits = c.tell(&json!({"verb": "rules", "do": "hits"}));
        let list = hits["rules"].as_array().expect("a list");
        let texts: Vec<_> = list.iter().map(|r| r["rule"].as_str().expect("a text")).collect();
        assert_eq!(texts, [TAKE, LEAVE], "{hook}");
        let (stats, contents, _dir) = c.stop();
        assert_eq!(number(&stats, "seen"), sent, "{hook}: {stats}");
        assert_eq!(contents.packets.len() as u64, number(&stats, "captured"), "{hook}");
        assert!(
            number(&stats, "filtered") > 0 && number(&stats, "captured") > 0,
            "{hook}: {stats}"
        );
        // Rules keep what they took while they are there.
        assert!(number(&list[0], "hits") <= number(&stats, "captured"), "{hook}: {hits}");
        assert!(number(&list[0], "hits") > 0 && number(&list[1], "hits") > 0, "{hook}: {hits}");
    }
}

#[test]
fn rules_are_listed_counted_switched_and_taken_away() {
    const PORT: &str = "accept src any dst any sport any dport 9 proto udp";
    const NET: &str = "drop src 10.213.0.0/24 dst any sport any dport 9 proto udp";
    let mut c = Controlled::start("--hook xdp");
    let rules = |what: &str| json!({"verb": "rules", "do": what});
    let with = |what: &str, rules: &str| json!({"verb": "rules", "do": what, "rules": rules});
    assert_eq!(c.tell(&rules("list")), json!({"ok": true, "enabled": false, "rules": []}));
    c.tell(&with("add", PORT));
    c.send(10);
    c.wait_seen(10);
    // The more specific rule judges first.
    c.tell(&with("add", NET));
    c.send(20);
    c.wait_seen(30);
    let hits = c.tell(&rules("hits"));
    assert_eq!(
        hits["rules"],
        json!([{"rule": PORT, "enabled": true, "hits": 10}, {"rule": NET, "enabled": true, "hits": 20}])
    );
    c.tell(&rules("disable"));
    c.send(5);
    c.wait_seen(35);
    c.tell(&rules("enable"));
    c.tell(&with("disable", NET));
    c.send(3);
    c.wait_seen(38);
    assert_eq!(c.tell(&rules("hits"))["rules"][0]["hits"], 13);
    c.tell(&with("remove", PORT));
    c.send(4);
    c.wait_seen(42);
    assert_eq!(c.tell(&rules("hits"))["none"], 4, "no rule is left that judges");
    c.tell(&rules("reset"));
    c.send(1);
    c.wait_seen(43);
    let (stats, ..) = c.stop();
    assert_eq!((number(&stats, "captured"), number(&stats, "filtered")), (19, 24), "{stats}");
}

#[test]
fn rotate_begins_a_segment_and_gives_the_one_before_away() {
    let mut c = Controlled::start("--hook xdp");
    c.tell(&json!({"verb": "rotate"}));
    assert!(segments(&c.store()).is_empty(), "an empty one is none");
    for n in 1..=3_usize {
        c.send(100);
        c.wait_seen(n as u64 * 100);
        let answer = c.tell(&json!({"verb": "rotate"}));
        assert_eq!(answer, json!({"ok": true}));
        let closed = segments(&c.store());
        assert_eq!(closed.len(), n, "it has its name when the answer comes");
        assert_eq!(Contents::of(&closed[n - 1]).packets.len(), 100);
    }
    let (stats, contents, _dir) = c.stop();
    assert_eq!((number(&stats, "segments"), contents.packets.len()), (3, 300));
}

#[test]
fn a_file_has_no_segments_and_listens_where_it_is_told() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (file, socket) = (dir.path().join("x.pcapng"), dir.path().join("x.sock"));
    let flags = format!("--hook xdp -w {} --socket {}", file.display(), socket.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut connection = connect(&socket);
    let told = ask(&mut connection, r#"{"verb":"rotate"}"#);
    assert!(told["error"].as_str().expect("a text").contains("--dir"), "{told}");
    assert_eq!(ask(&mut connection, r#"{"verb":"stats"}"#)["captured"], 0);
    assert_eq!(ask(&mut connection, r#"{"verb":"stop"}"#)["ok"], true);
    // The connection closes when all is done.
    let mut rest = String::new();
    connection.read_to_string(&mut rest).expect("it ends");
    assert!(rest.is_empty(), "{rest}");
    recorder.finish();
    assert!(!socket.exists());
}

#[test]
fn the_command_asks_and_ends_it() {
    let mut c = Controlled::start("--hook xdp");
    c.send(100);
    c.wait_seen(100);
    let store = c.store();
    let text = says(&ctl(&store, "stats"));
    assert!(text.contains("vb") && text.contains("100"), "{text}");
    let stats: Value = serde_json::from_str(&says(&ctl(&store, "stats --json"))).expect("JSON");
    assert_eq!(number(&stats, "captured"), 100);
    assert_eq!(says(&ctl(&store, "pause")), "paused\n");
    assert_eq!(says(&ctl(&store, "resume")), "going on\n");
    assert_eq!(says(&ctl(&store, "snaplen 100")), "snaplen 100\n");
    assert_eq!(says(&ctl(&store, "filter udp port 9")), "filter udp port 9\n");
    assert_eq!(says(&ctl(&store, "filter --none")), "no filter\n");
    assert!(says(&ctl(&store, "rotate")).contains("new segment"));
    assert!(says(&ctl(&store, "groups")).contains("no members"));
    let refused = ctl(&store, "snaplen 100000");
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.starts_with("tapdeck: snaplen 100000") && told.lines().count() == 1, "{told}");
    assert_eq!(says(&ctl(&store, "stop")), "ended\n");
    assert!(!store.join(".tapdeck.sock").exists());
    // Whoever asked for the end need not ask whether it has come.
    assert_eq!(Contents::of_store(&store).packets.len(), 100);
    c.recorder.finish();
    let nobody = ctl(&store, "stats");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("nobody listens"), "{nobody:?}");
    assert_eq!(ctl(&store, "dance").status.code(), Some(2));
}

#[test]
fn whoever_watches_is_told_every_second() {
    let mut c = Controlled::start("--hook xdp");
    let mut watcher = connect(&c.store().join(".tapdeck.sock"));
    let first = ask(&mut watcher, r#"{"verb":"watch"}"#);
    assert_eq!((&first["ok"], &first["captured"]), (&json!(true), &json!(0)));
    c.send(100);
    let mut last = Value::Null;
    wait_for("the packets to be told", || {
        last = answer(&mut watcher);
        number(&last, "captured") == 100
    });
    assert_accounted(&last);
    c.stop();
}

/// What anybody may send: it is answered, the recording goes on, and nothing has changed.
#[test]
fn wrong_input_is_answered_and_harms_nothing() {
    let mut c = Controlled::start("--hook xdp");
    c.send(100);
    c.wait_seen(100);
    let long = format!(r#"{{"verb":"filter","filter":"{}"}}"#, "x or ".repeat(400_000));
    let deep = "{\"verb\":".repeat(10_000);
    let group = r#"{"verb":"pause","group":"ids"}"#;
    let mut lines: Vec<&[u8]> = [
        "{", "}", "[]", "null", "true", "0", "\"stats\"", "stats", "GET / HTTP/1.1", "{}", "{\"verb\":null}",
        r#"{"verb":"Stats"}"#, r#"{"verb":"stats","extra":1}"#, r#"{"verb":["stats"]}"#, r#"{"verb":"stats"}}"#,
        r#"{"verb":"stats"} {"verb":"stop"}"#, r#"{"verb":"stats","verb":"stop"}"#, r#"{"verb":"snaplen"}"#,
        r#"{"verb":"snaplen","snaplen":0}"#, r#"{"verb":"snaplen","snaplen":-1}"#,
        r#"{"verb":"snaplen","snaplen":1e3}"#, r#"{"verb":"snaplen","snaplen":99999999999999999999}"#,
        r#"{"verb":"filter"}"#, r#"{"verb":"filter","filter":7}"#, r#"{"verb":"filter","filter":"((("}"#,
        r#"{"verb":"filter","filter":"port 99999"}"#, "{\"verb\":\"filter\",\"filter\":\"port\\u00001\"}",
        r#"{"verb":"rules"}"#, r#"{"verb":"rules","do":"dance"}"#, r#"{"verb":"rules","do":"add"}"#,
        r#"{"verb":"rules","do":"add","rules":"accept everything"}"#, r#"{"verb":"rules","do":"add","rules":""}"#,
        r#"{"verb":"rules","do":"remove","rules":"accept src any dst any sport any dport 53 proto udp"}"#,
        r#"{"verb":"attach","group":"ids"}"#, r#"{"verb":"leave"}"#, r#"{"verb":"flush"}"#, group, &long, &deep,
    ]
    .map(str::as_bytes)
    .to_vec();
    lines.extend([&b"\xff\xfe\xfd"[..], b"\0\0\0", b"{\"verb\":\"\xc3\x28\"}"]);
    for line in lines {
        let shown = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
        let connection = &mut c.connection;
        connection.get_mut().write_all(&[line, b"\n"].concat()).expect("it reads");
        let told = answer(connection);
        let error = told["error"].as_str().unwrap_or_else(|| panic!("{shown}: {told}"));
        assert!(
            told["ok"] == false && !error.is_empty() && !error.contains('\n'),
            "{shown}: {told}"
        );
    }
    // Half a request, and none at all.
    let path = c.store().join(".tapdeck.sock");
    for bytes in [&b"{\"verb\":"[..], b""] {
        let mut other = UnixStream::connect(&path).expect("it listens");
        other.write_all(bytes).expect("it reads");
    }
    c.send(100);
    c.wait_seen(200);
    let stats = c.stats();
    assert_eq!(number(&stats, "captured"), 200, "{stats}");
    assert_eq!(stats["interfaces"]["vb"]["filter"], Value::Null);
    c.stop();
}

#[test]
fn a_second_recorder_does_not_take_the_socket_and_a_dead_ones_is_replaced() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("x.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a directory"));
    let flags = format!("--hook tpacket --no-store --socket {}", socket.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut second = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    second.args(["record", "-i", "vb"]).args(flags.split_whitespace());
    let out = second.output().expect("the program was built");
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{told}");
    assert!(told.contains("another tapdeck listens at") && told.lines().count() == 1, "{told}");
    assert_eq!(ask(&mut connect(&socket), r#"{"verb":"stats"}"#)["ok"], true);
    recorder.stop();
}

/// Others may look but not touch, even if the file's permission lets them connect.
#[test]
fn only_its_own_user_and_root_may_change_anything() {
    use std::os::unix::fs::PermissionsExt;
    let c = Controlled::start("--hook xdp");
    let path = c.store().join(".tapdeck.sock");
    let mode = path.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "who may read the store may connect");
    for dir in [c.dir.path(), &c.store()] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("ours");
    }
    let as_nobody = |words: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(env!("CARGO_BIN_EXE_tapdeck")).arg("ctl").arg("--dir").arg(c.store());
        command.args(words.split_whitespace()).output().expect("setpriv(1) is installed")
    };
    let refused = as_nobody("stats");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no permission to connect"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("ours");
    assert!(says(&as_nobody("stats")).contains("vb"));
    for words in ["pause", "stop", "snaplen 64", "filter udp", "rotate", "rules reset"] {
        let refused = as_nobody(words);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(told.contains("only root and the user"), "{words}: {told}");
    }
    c.stop();
}
