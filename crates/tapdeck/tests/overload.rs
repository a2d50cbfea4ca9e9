//! Payload goes before packets (`--on-overload shed`): of what a nearly full ring holds the headers
//! are there, the counters say to the byte what is not, and packets are whole again afterwards.

mod testbed;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng::PACKET_OVERHEAD;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::recorder::{Contents, Packet, Recorder, assert_accounted, frame, number};

const FRAME: usize = 1008;
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
/// Then it goes on, and more packets come.
fn overload(hook: &str, flags: &str, sent: u32) -> (serde_json::Value, Contents) {
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
    (stats, Contents::of_store(&store))
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
    let (stats, contents) = overload(hook, "--on-overload shed", SENT);
    let packets = &contents.packets;
    assert_told(&stats, packets);
    let numbers: Vec<u32> = packets.iter().map(|p| number_of(&p.frame)).collect();
    assert!(numbers.iter().copied().eq(0..SENT + AFTER), "{hook}: every packet is there: {stats}");
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
    assert_eq!(kinds, [FRAME, 96, 64, FRAME], "{hook}: {runs:?}");
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
    let (stats, contents) = overload("xdp", "--on-overload shed --shed-to 200", 8 * CAPACITY);
    assert_told(&stats, &contents.packets);
    let n = |key| number(&stats, key);
    assert!(n("dropped_ring") > 0, "{stats}");
    assert_eq!(n("seen"), u64::from(8 * CAPACITY + AFTER), "{stats}");
    assert_eq!(contents.announced(), n("dropped_ring") + n("dropped_other"));
    let is_kept = |len: usize| contents.packets.iter().any(|p| p.frame.len() == len);
    assert!([FRAME, 200, 64].into_iter().all(is_kept));
}

/// Without the flag, whole packets are dropped as before.
#[test]
fn nothing_is_shed_unless_it_is_asked_for() {
    let (stats, contents) = overload("xdp", "", SENT);
    assert_told(&stats, &contents.packets);
    let n = |key| number(&stats, key);
    assert_eq!((n("shed_packets"), n("shed_bytes")), (0, 0), "{stats}");
    assert!(n("dropped_ring") > 0, "{stats}");
}
