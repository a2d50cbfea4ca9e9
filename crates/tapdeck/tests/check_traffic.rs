//! `tapdeck check-traffic`: recordings of every form, what it says and how it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tapdeck_packet::generate::Sizes;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::UnseenSpan;
use tapdeck_traffic::frame::Frames;
use tapdeck_traffic::sent::Sent;
use tapdeck_traffic::workload::{Mac, Payload, Ports, Protocol, Workload};

const START_NS: u64 = 1_767_323_045_000_000_000;
const GAP_NS: u64 = 1_000_000;
const LATENCY_NS: u64 = 250_000;
const COUNT: usize = 1000;

/// A directory with what was sent.
struct Run {
    dir: tempfile::TempDir,
    sent: Sent,
    frames: Vec<Vec<u8>>,
}

impl Run {
    fn new() -> Self {
        let workload = Workload {
            seed: 3,
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlans: vec![],
            outer: None,
            source: "10.1.0.0/24".parse().expect("a network"),
            destination: "10.2.0.1/32".parse().expect("a network"),
            source_ports: Ports(1024, 2047),
            destination_ports: Ports(9, 9),
            protocols: vec![Protocol::Udp, Protocol::Tcp],
            flows: 20,
            zipf: None,
            payload: Payload::Random,
            mark: None,
            senders: 1,
        };
        let sizes = Sizes::Sequence { sizes: [60, 100, 1514].into(), first: 0, step: 1 };
        let mut maker = Frames::new(workload.plan(0, sizes, 1514));
        let mut buffer = [0; 1514];
        let mut sent = Sent {
            sent: COUNT as u64,
            started_ns: START_NS,
            ended_ns: START_NS + COUNT as u64 * GAP_NS,
            workload: Some(workload),
            ..Sent::default()
        };
        let frames = (0..COUNT as u64)
            .map(|i| {
                let made = maker.make(&mut buffer, START_NS + i * GAP_NS, false);
                *sent.sizes.entry(made.len as u16).or_default() += 1;
                buffer[..made.len].to_vec()
            })
            .collect();
        sent.streams = maker.sequences().collect();
        let run = Self { dir: tempfile::tempdir().expect("a directory"), sent, frames };
        let json = serde_json::to_vec(&run.sent).expect("it has no odd keys");
        run.write("sent.json", &json);
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("there is room");
        path
    }

    /// Some of the packets, as libpcap writes them with microseconds.
    fn pcap(&self, which: impl IntoIterator<Item = usize>, link: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
            out.extend(u32::to_ne_bytes(word));
        }
        for i in which {
            let (frame, ns) = (&self.frames[i], captured_ns(i));
            let times = [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000 / 1000) as u32];
            for word in times.into_iter().chain([frame.len() as u32; 2]) {
                out.extend(word.to_ne_bytes());
            }
            out.extend(frame);
        }
        out
    }

    /// Some of the packets, as `tapdeck record` writes them. The first tells of `dropped` ones.
    fn pcapng(&self, which: impl IntoIterator<Item = usize>, mut dropped: u64) -> Vec<u8> {
        let mut out = Vec::new();
        pcapng::section_header(&mut out, "Linux", "tapdeck 0.1.0", None);
        let interface = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: "vb".into(),
            description: String::new(),
            filter: None,
            hardware: None,
            mac: None,
        };
        pcapng::interface_description(&mut out, &interface);
        for i in which {
            let frame = &self.frames[i];
            let start = out.len();
            out.resize(start + pcapng::packet_len(frame.len(), 0, dropped), 0);
            let (len, pieces) = (frame.len() as u32, [&frame[..], &[], &[]]);
            pcapng::write_packet(&mut out[start..], 0, captured_ns(i), pieces, len, 0, dropped);
            dropped = 0;
        }
        out
    }

    fn command(&self, recording: &[&Path], flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.arg("check-traffic").args(recording).arg("--sent").arg(self.path("sent.json"));
        command.args(flags);
        command
    }

    fn check(&self, recording: &[&Path], flags: &[&str]) -> Output {
        self.command(recording, flags).output().expect("the program was built")
    }

    /// The JSON, and whether the exit code says that all is well.
    fn json(&self, recording: &[&Path], flags: &[&str]) -> (Value, bool) {
        let out = self.check(recording, &[&["--json"], flags].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        let json = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
        (json, out.status.success())
    }
}

fn captured_ns(i: usize) -> u64 {
    START_NS + i as u64 * GAP_NS + LATENCY_NS
}

fn number(json: &Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or_else(|| panic!("{key} in {json}"))
}

fn counts(json: &Value) -> [u64; 5] {
    ["lost", "repeated", "reordered", "damaged", "intact"].map(|key| number(json, key))
}

/// Asserts that the program ended with the code and one line that holds all of `words`.
fn refuses(out: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "it does not say {word:?}: {said}");
    }
    if said.starts_with("tapdeck:") {
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    assert!(out.stdout.is_empty(), "no report: {}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn what_came_back_whole_is_no_error() {
    let run = Run::new();
    let pcap = run.write("a.pcap", &run.pcap(0..COUNT, 1));
    let pcapng = run.write("a.pcapng", &run.pcapng(0..COUNT, 0));
    for file in [&pcap, &pcapng] {
        let out = run.check(&[file], &[]);
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        let text = String::from_utf8(out.stdout).expect("text");
        let first = "1,000 sent, 1,000 arrived intact, 0 lost, 0 repeated, 0 reordered, 0 damaged";
        assert_eq!(text.lines().next(), Some(first));
        assert!(text.contains("median 250.0 us"), "{text}");
        assert!(text.contains("1020-1514") && !text.contains("stream"), "{text}");
        let (json, clean) = run.json(&[file], &[]);
        assert!(clean && json["clean"] == true);
        assert_eq!(counts(&json), [0, 0, 0, 0, 1000]);
        assert_eq!(number(&json["latency_ns"], "max"), LATENCY_NS);
        assert_eq!(number(&json["by_size"]["1514"], "arrived"), 333);
    }
}

#[test]
fn faults_are_told_and_the_exit_code_is_1() {
    let mut run = Run::new();
    run.frames[700][80] ^= 1;
    // Ten lost, two repeated, one moved behind all others.
    let order = (0..COUNT).filter(|i| !(400..410).contains(i) && *i != 900).chain([5, 6, 900]);
    let bytes = run.pcapng(order, 7);
    let file = run.write("a.pcapng", &bytes);
    let out = run.check(&[&file], &["--streams", "3"]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).expect("text");
    assert_eq!(said, "tapdeck: not all packets came back whole: 10 lost, 1 damaged\n");
    let text = String::from_utf8(out.stdout).expect("text");
    for words in [
        "1,000 sent, 989 arrived intact, 10 lost (in ",
        "2 repeated",
        "1 damaged",
        "7 packets, of whatever traffic, the recorder dropped",
        "and ",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let (json, clean) = run.json(&[&file], &[]);
    assert!(!clean && json["clean"] == false);
    // The late one has a capture time from before those that it comes behind: it is in order.
    assert_eq!(counts(&json), [10, 2, 0, 1, 989]);
    assert_eq!(number(&json, "recording_dropped"), 7);
    let streams = json["by_stream"].as_array().expect("a list");
    assert_eq!(streams.iter().map(|s| number(s, "lost")).sum::<u64>(), 10);
    assert!(streams[0]["flow"].as_str().expect("text").contains("10.2.0.1:9"));
    let periods = json["over_time"].as_array().expect("a list");
    let lost: Vec<u64> = periods.iter().map(|p| number(p, "lost")).collect();
    assert_eq!((number(&json, "period_ms"), lost.iter().sum::<u64>()), (100, 10));
    assert_eq!(lost[4], 10, "{lost:?}");
}

#[test]
fn what_the_recorder_gave_up_is_told_beside_the_lost() {
    let run = Run::new();
    let mut bytes = run.pcapng(0..900, 0);
    // The next ten were shed to their headers, and the last ninety left out.
    for (i, frame) in run.frames.iter().enumerate().take(910).skip(900) {
        let (start, kept) = (bytes.len(), &frame[..42]);
        bytes.resize(start + pcapng::packet_len(kept.len(), 0, 0), 0);
        let (len, pieces) = (frame.len() as u32, [kept, &[], &[]]);
        pcapng::write_packet(&mut bytes[start..], 0, captured_ns(i), pieces, len, 0, 0);
        pcapng::shed_packet(&mut bytes, start, len - 42);
    }
    let statistics = StatisticsBlock {
        received: 1000,
        delivered: 910,
        comment: Some("cutoff: 90 packets of 9000 bytes".into()),
        ..StatisticsBlock::default()
    };
    pcapng::statistics(&mut bytes, &statistics);
    let file = run.write("a.pcapng", &bytes);
    let link = run.path("link.pcapng");
    std::os::unix::fs::symlink(&file, &link).expect("the directory is ours");
    let (json, clean) = run.json(&[&link], &[]);
    assert!(!clean);
    let told = ["lost", "cut", "recording_cutoff", "recording_shed"].map(|key| number(&json, key));
    assert_eq!(told, [90, 10, 90, 10], "{json}");
    let text = String::from_utf8(run.check(&[&file], &[]).stdout).expect("text");
    for words in [
        "\n90 packets, of whatever traffic, the recorder left out of flows that were cut off",
        "\n10 packets, of whatever traffic, the recorder kept in part",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}

#[test]
fn repeated_packets_alone_are_no_failure() {
    let run = Run::new();
    let file = run.write("a.pcap", &run.pcap((0..COUNT).chain([3, 4]), 1));
    let (json, clean) = run.json(&[&file], &[]);
    assert!(clean);
    assert_eq!(counts(&json), [0, 2, 0, 0, 1000]);
}

#[test]
fn files_standard_input_and_stores_make_one_recording() {
    let run = Run::new();
    let first = run.write("a.pcap", &run.pcap(0..300, 1));
    let second = run.write("b.pcapng", &run.pcapng(300..500, 0));
    let store = run.path("store");
    fs::create_dir(&store).expect("there is room");
    let segment =
        |name: &str, bytes: &[u8]| fs::write(store.join(name), bytes).expect("there is room");
    // Listed in the order of their numbers; the last is being written, and ends in the middle of
    // packet 899.
    segment("tapdeck-00000002-20260102T030505Z.pcapng", &run.pcapng(600..700, 0));
    segment("tapdeck-00000001-20260102T030405Z.pcapng", &run.pcapng(500..600, 0));
    let live = run.pcapng(700..900, 0);
    segment("tapdeck-00000003-20260102T030605Z.pcapng.live", &live[..live.len() - 20]);
    segment("evidence.pcapng", b"nobody's business");
    let rest = run.pcap(899..COUNT, 1);
    let mut child = run
        .command(&[&first, &second, &store, Path::new("-")], &["--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut input = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &rest));
    let out = child.wait_with_output().expect("it was started");
    writer.join().expect("it does not panic").expect("all was read");
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(counts(&json), [0, 0, 0, 0, 1000]);
    assert!(out.status.success());
}

#[test]
fn what_a_store_says_that_it_lacks_is_told() {
    let run = Run::new();
    let head = run.pcapng([], 0).len();
    let unseen = UnseenSpan {
        interface: 0,
        packets: 7,
        first_ns: captured_ns(400),
        last_ns: captured_ns(500),
        why: "the hook was detached".into(),
    };
    let mut block = Vec::new();
    pcapng::statistics(&mut block, &unseen.block());
    let mut second = run.pcapng(500..COUNT, 0);
    second.splice(head..head, block);
    let first = ("tapdeck-00000001-20260102T030405Z.pcapng", run.pcapng(0..500, 0));
    for (name, is_whole) in [
        ("tapdeck-00000002-20260102T030505Z.pcapng", true),
        ("tapdeck-00000003-20260102T030505Z.pcapng", false),
    ] {
        let store = tempfile::tempdir().expect("a directory");
        for (name, bytes) in [(first.0, &first.1), (name, &second)] {
            fs::write(store.path().join(name), bytes).expect("there is room");
        }
        let out = run.check(&[store.path()], &[]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("vb: 7 packets went unseen"), "{said}");
        assert_eq!(said.contains("segment 2 is missing before tapdeck-00000003-"), !is_whole);
        assert_eq!(out.status.code(), Some(i32::from(!is_whole)), "{said}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("1,000 arrived intact, 0 lost"));
    }
}

#[test]
fn a_damaged_file_is_used_only_if_that_is_asked() {
    let run = Run::new();
    let whole = run.pcapng(0..COUNT, 0);
    let mut torn = whole.clone();
    // The length at the end of packet 599.
    let end = run.pcapng(0..600, 0).len();
    torn[end - 4] ^= 0x40;
    for (bytes, words) in [(&torn[..], "damaged at byte"), (&whole[..end - 8], "cut short")] {
        let file = run.write("a.pcapng", bytes);
        refuses(&run.check(&[&file], &[]), 1, &["a.pcapng", words, "--up-to-damage"]);
        let (json, clean) = run.json(&[&file], &["--up-to-damage"]);
        assert_eq!((counts(&json), clean), ([401, 0, 0, 0, 599], false));
        assert!(json["recording_damaged"][0].as_str().expect("text").contains(words));
    }
}

#[test]
fn bad_input_is_told_in_one_line() {
    let run = Run::new();
    let good = run.write("a.pcap", &run.pcap(0..COUNT, 1));
    let raw = run.write("raw.pcap", &run.pcap(0..10, 101));
    let text = run.write("text", b"no capture file at all");
    let empty = run.write("empty", b"");
    let nothing = run.path("nothing");
    let dir = run.path("dir");
    fs::create_dir(&dir).expect("there is room");
    for (recording, words) in [
        (&raw, vec!["raw.pcap", "link type 101", "Ethernet"]),
        (&text, vec!["text", "neither pcap nor pcapng"]),
        (&empty, vec!["empty"]),
        (&nothing, vec!["nothing", "No such file"]),
        (&dir, vec!["dir", "no segments", "record"]),
    ] {
        refuses(&run.check(&[recording], &[]), 1, &words);
    }
    refuses(&run.check(&[], &[]), 2, &["FILE|DIR"]);
    refuses(&run.check(&[Path::new("-"), Path::new("-")], &[]), 2, &["twice"]);
    let mut without = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    refuses(&without.arg("check-traffic").arg(&good).output().expect("it runs"), 2, &["--sent"]);

    let replay = serde_json::to_vec(&Sent { workload: None, ..run.sent.clone() }).expect("JSON");
    let wrong = serde_json::to_vec(&Sent { streams: vec![1], ..run.sent.clone() }).expect("JSON");
    for (sent, words) in [
        (&b"{"[..], vec!["sent.json", "gen --json"]),
        (b"{\"sent\": 5}", vec!["sent.json", "gen --json"]),
        (b"\xff\xd8 no text", vec!["sent.json", "gen --json"]),
        (&replay, vec!["sent.json", "replay"]),
        (&wrong, vec!["sent.json", "contradicts itself"]),
    ] {
        run.write("sent.json", sent);
        refuses(&run.check(&[&good], &[]), 1, &words);
    }
    fs::remove_file(run.path("sent.json")).expect("it is there");
    refuses(&run.check(&[&good], &[]), 1, &["cannot read", "sent.json", "No such file"]);
}

/// A reader that has seen enough is no error, and what was found stays true.
#[test]
fn a_closed_pipe_is_no_error() {
    let run = Run::new();
    for (count, code) in [(COUNT, 0), (COUNT - 1, 1)] {
        let file = run.write("a.pcap", &run.pcap(0..count, 1));
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        drop(reader);
        let out = run.command(&[&file], &["--json"]).stdout(writer).output().expect("it runs");
        assert_eq!(out.status.code(), Some(code), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(!String::from_utf8_lossy(&out.stderr).contains("pipe"));
    }
}

#[test]
fn help_shows_examples() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = command.args(["check-traffic", "--help"]).output().expect("it runs");
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("Example"));
}
