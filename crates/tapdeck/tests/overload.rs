//! Payload goes before packets (`--on-overload shed`): of what a nearly full ring holds the headers
//! are there, the counters say to the byte what is not, and packets are whole again afterwards.

mod testbed;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng::PACKET_OVERHEAD;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::bench::Bench;
use testbed::recorder::{Contents, Packet, Recorder, assert_accounted, frame, number, segments};

const FRAME: usize = 1008;
/// Bytes of a frame's headers; the number comes behind them.
const HEADERS: usize = 42;
/// Whole packets that fit into a block.
const WHOLE: u32 = (64 * 1024 - 12) / (FRAME as u32 + 32);
/// Packets that all blocks together would hold.
const CAPACITY: u32 = 16 * WHOLE;
/// More than twice as many. There is room for them when payload goes.
const SENT: u32 = 12 * WHOLE + 1500;
const AFTER: u32 = 10;

/// Sends on one CPU, so that all packets take one ring.
fn send(net: &Net, numbers: std::ops::Range<u32>) {
    let to = net.b.inside(|| Interface::find("vb").expect("made above")).mac.expect("a MAC");
    net.a.inside(|| {
        let mut core = CpuSet::new();
        core.set(0);
        sched_setaffinity(None, &core).expect("core 0 is there");
        let mut sender = Sender::on("va");
        numbers.for_each(|i| sender.send(&frame(to, FRAME, i)));
    });
}

/// Flags that give each ring 16 blocks of 64 KiB.
fn rings(hook: &str) -> String {
    // At xdp the one receive queue of a veth has a ring, elsewhere each CPU has.
    let cpus = std::thread::available_parallelism().expect("it is known").get();
    let mib = if hook == "xdp" { 1 } else { cpus };
    format!("--ring-bytes {mib}MiB --block-bytes 64KiB --snaplen 2000")
}

/// The output takes nothing while packets come, as where a disk stalls: the recorder is stopped.
/// Then it goes on, and more packets come. `look` is shown the store that was written.
fn overload(
    hook: &str,
    flags: &str,
    sent: u32,
    look: impl FnOnce(&Path),
) -> (serde_json::Value, Contents) {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook {hook} {} {flags} --dir {}", rings(hook), store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    recorder.signal(Signal::STOP);
    send(&net, 0..sent);
    recorder.signal(Signal::CONT);
    wait_for("the backlog to be written", || {
        let now = recorder.now();
        let n = |key: &str| now[key].as_u64().unwrap_or(0);
        n("seen") >= u64::from(sent)
            && n("bytes_written") >= n("bytes_captured") + n("captured") * PACKET_OVERHEAD as u64
    });
    send(&net, sent..sent + AFTER);
    wait_for("the last packets", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= u64::from(sent + AFTER))
    });
    let stats = recorder.stop();
    look(&store);
    (stats, Contents::of_store(&store))
}

fn tapdeck(store: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg(words[0]).arg("--dir").arg(store).args(&words[1..]);
    command.output().expect("it runs")
}

fn json(out: &[u8]) -> serde_json::Value {
    serde_json::from_slice(out).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(out)))
}

/// The counters say what is missing from the packets, and nothing else is.
fn assert_told(stats: &serde_json::Value, packets: &[Packet]) {
    let n = |key| number(stats, key);
    assert_accounted(stats);
    let cut: Vec<&Packet> = packets.iter().filter(|p| p.frame.len() < FRAME).collect();
    assert_eq!(n("shed_packets"), cut.len() as u64, "{stats}");
    let missing: usize = packets.iter().map(|p| FRAME - p.frame.len()).sum();
    assert_eq!(n("shed_bytes"), missing as u64, "{stats}");
    assert_eq!(n("captured"), packets.len() as u64);
    assert_eq!(n("bytes_captured"), packets.iter().map(|p| p.frame.len() as u64).sum::<u64>());
    for p in packets {
        assert_eq!(p.original_len as usize, FRAME, "the length is that on the wire");
        assert_eq!(p.shed as usize, FRAME - p.frame.len(), "each packet tells what it lacks");
    }
}

fn headers_are_kept(hook: &str) {
    let (stats, contents) = overload(hook, "--on-overload shed", SENT, |_| ());
    let packets = &contents.packets;
    assert_told(&stats, packets);
    assert_eq!(packets.len() as u32, SENT + AFTER, "{hook}: every packet is there: {stats}");
    let mut numbered = (0..).zip(packets).filter(|(_, p)| p.frame.len() > HEADERS);
    assert!(numbered.all(|(n, p)| number_of(&p.frame) == n), "{hook}: in order");
    assert_eq!(number(&stats, "dropped_ring"), 0, "{hook}: {stats}");

    // Whole as long as three quarters of the ring are not passed, and the packet that opens the
    // next block is whole, too.
    let lens: Vec<usize> = packets.iter().map(|p| p.frame.len()).collect();
    let mut runs: Vec<(usize, u32)> = Vec::new();
    for len in lens {
        match runs.last_mut() {
            Some((last, n)) if *last == len => *n += 1,
            _ => runs.push((len, 1)),
        }
    }
    let kinds: Vec<usize> = runs.iter().map(|run| run.0).collect();
    // Where headers end is not looked for at netfilter.
    let least = if hook == "netfilter" { 64 } else { HEADERS };
    assert_eq!(kinds, [FRAME, 96, least, FRAME], "{hook}: {runs:?}");
    assert!(runs[3].1 >= AFTER, "{hook}: whole again: {runs:?}");
}

#[test]
fn headers_are_kept_at_xdp() {
    headers_are_kept("xdp");
}

#[test]
fn headers_are_kept_at_tcx() {
    headers_are_kept("tcx");
}

#[test]
fn headers_are_kept_at_xdp_generic() {
    headers_are_kept("xdp-generic");
}

#[test]
fn headers_are_kept_at_netfilter() {
    headers_are_kept("netfilter");
}

/// What not even shedding makes room for is dropped, and counted.
#[test]
fn the_law_holds_where_headers_alone_are_too_many() {
    let (stats, contents) =
        overload("xdp", "--on-overload shed --shed-to 200", 8 * CAPACITY, |_| ());
    assert_told(&stats, &contents.packets);
    let n = |key| number(&stats, key);
    assert!(n("dropped_ring") > 0, "{stats}");
    assert_eq!(n("seen"), u64::from(8 * CAPACITY + AFTER), "{stats}");
    assert_eq!(contents.announced(), n("dropped_ring") + n("dropped_other"));
    let is_kept = |len: usize| contents.packets.iter().any(|p| p.frame.len() == len);
    assert!([FRAME, 200, HEADERS].into_iter().all(is_kept));
}

/// Without the flag, whole packets are dropped as before.
#[test]
fn nothing_is_shed_unless_it_is_asked_for() {
    let (stats, contents) = overload("xdp", "", SENT, |_| ());
    assert_told(&stats, &contents.packets);
    let n = |key| number(&stats, key);
    assert_eq!((n("shed_packets"), n("shed_bytes")), (0, 0), "{stats}");
    assert!(n("dropped_ring") > 0, "{stats}");
}

/// Where it begins and ends is marked in the file, and who reads the store is told.
#[test]
fn what_was_shed_is_told() {
    let temp = tempfile::tempdir().expect("a directory");
    let (mut stat, mut text, mut answer) = (None, String::new(), Vec::new());
    let written = temp.path().join("answer.pcapng");
    let (stats, contents) = overload("tcx", "--on-overload shed", SENT, |store| {
        let bytes: Vec<u8> =
            segments(store).iter().flat_map(|path| fs::read(path).expect("a segment")).collect();
        let count = |text: &[u8]| bytes.windows(text.len()).filter(|w| *w == text).count();
        assert_eq!(count(b"shed: packets are cut short from here on"), 1);
        assert_eq!(count(b"shed: packets are whole from here on"), 1);
        // Wireshark's readers show both, and complain of nothing.
        for segment in segments(store) {
            let mut tshark = Command::new("tshark");
            tshark.arg("-r").arg(segment).args(["-Y", "frame.comment contains \"shed\""]);
            let out = tshark.output().expect("tshark is installed: make setup");
            let complaints = String::from_utf8_lossy(&out.stderr);
            assert!(complaints.lines().all(|l| l.starts_with("Running as user")), "{complaints}");
            assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 2);
        }
        let out = tapdeck(store, &["verify"]);
        assert!(out.status.success(), "{out:?}");
        stat = Some(json(&tapdeck(store, &["stat", "--json"]).stdout));
        text = String::from_utf8(tapdeck(store, &["stat"]).stdout).expect("UTF-8");
        let out = tapdeck(store, &["query", "--json", "udp"]);
        answer = out.stdout;
        let said = String::from_utf8(out.stderr).expect("UTF-8");
        assert!(said.contains("packets of this answer cut short"), "{said}");
        let path = written.to_str().expect("UTF-8");
        assert!(tapdeck(store, &["query", "-w", path, "--limit", "2000"]).status.success());
        // An answer in front of it says nothing of it.
        let out = tapdeck(store, &["query", "--count", "--limit", "100"]);
        assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    });
    let n = |key| number(&stats, key);
    let stat = stat.expect("it was asked");
    assert_eq!(number(&stat, "shed_packets"), n("shed_packets"));
    assert_eq!(number(&stat, "shed_bytes"), n("shed_bytes"));
    let times = stat["shed_times"].as_array().expect("a list");
    assert_eq!(times.len(), 1, "{stat}");
    assert_eq!(times[0]["interface"], "vb");
    assert_eq!(times[0]["bytes"], stats["shed_bytes"]);
    assert!(text.contains("\nshed ") && text.contains("Payload was shed:"), "{text}");

    let lines = answer.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(json);
    let shed: Vec<u64> = lines.filter_map(|line| line["shed"].as_u64()).collect();
    assert_eq!(shed.len() as u64, n("shed_packets"));
    assert_eq!(shed.iter().sum::<u64>(), n("shed_bytes"));

    // What an answer in a file tells of each packet is what the recording tells.
    let answer = Contents::of(&written);
    assert_eq!(answer.packets.len(), 2000);
    for (told, was) in answer.packets.iter().zip(&contents.packets) {
        assert_eq!((told.shed, &told.frame), (was.shed, &was.frame));
    }
    assert!(answer.packets.iter().any(|p| p.shed > 0));
}

/// Payload is shed also while nobody owns the hooks, and the next recorder counts on.
#[test]
fn counters_outlive_the_recorder() {
    let bench = Bench::new();
    let store = bench.dir.path().join("store");
    let start = |flags: &str| {
        let mut command = bench.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", bench.pins());
        command.args(["record", "-i", "vb", "--hook", "xdp", "--persist", "tape"]);
        command.args(rings("xdp").split_whitespace()).args(flags.split_whitespace());
        command.arg("--dir").arg(&store).stdout(Stdio::null());
        Recorder::of(command, bench.dir.path())
    };
    start("--on-overload shed").kill();
    send(&bench.net, 0..SENT);
    let second = start("--on-overload shed");
    second.wait_for_captured(u64::from(SENT));
    let before = second.now();
    second.kill();
    // The one after it sheds nothing, and goes on with what there is.
    let third = start("");
    send(&bench.net, SENT..SENT + AFTER);
    third.wait_for_captured(u64::from(SENT + AFTER));
    let stats = third.stop();
    assert_told(&stats, &Contents::of_store(&store).packets);
    for key in ["shed_packets", "shed_bytes"] {
        assert!(number(&stats, key) > 0, "{stats}");
        assert_eq!(stats[key], before[key]);
    }
}

/// What cannot be done is refused.
#[test]
fn hooks_without_programs_are_refused() {
    let net = Net::new();
    let refused = |flags: &str, words: &str| {
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "-i", "vb", "--no-store"]).args(flags.split_whitespace());
        let out = command.output().expect("it runs");
        let said = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    for hook in ["tpacket", "recv", "afxdp --deliver consume"] {
        let flags = format!("--hook {hook} --on-overload shed");
        refused(&flags, "cannot shed payload, which the programs of other hooks do");
    }
    refused("--hook xdp --shed-to 100", "only with --on-overload shed");
}
