//! Nothing is lost silently: the accounting law, to the packet, from half to four times the point
//! at which a ring overflows; and every gap is told where it is.

mod testbed;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng::PACKET_OVERHEAD;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number};

const FRAME: usize = 1008;
/// Packets that fit into four blocks of 256 KiB, at 32 bytes beside each frame.
const CAPACITY: u32 = 4 * ((256 * 1024 - 12) / (FRAME as u32 + 32));
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

/// The recorder is stopped while packets come, so that its ring overflows when it is full and at
/// no other moment. Then it goes on.
fn overload(hook: &str, sent: u32) -> (serde_json::Value, Contents) {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook {hook} --ring-bytes 1MiB --block-bytes 256KiB --snaplen 2000 --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    recorder.signal(Signal::STOP);
    send(&net, 0..sent);
    recorder.signal(Signal::CONT);
    // What waited is written, so the ring has room again.
    wait_for("the backlog to be written", || {
        let now = recorder.now();
        let n = |key: &str| now[key].as_u64().unwrap_or(0);
        let packet = (FRAME + PACKET_OVERHEAD) as u64;
        n("seen") >= u64::from(sent.min(CAPACITY / 2))
            && n("bytes_written") >= n("captured") * packet
    });
    send(&net, sent..sent + AFTER);
    wait_for("the last packets", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= u64::from(sent + AFTER))
    });
    let stats = recorder.stop();
    (stats, Contents::of_store(&store))
}

fn law_holds(hook: &str) {
    for (sent, name) in [(CAPACITY / 2, "half"), (CAPACITY, "once"), (CAPACITY * 4, "four times")] {
        let (stats, contents) = overload(hook, sent);
        let n = |key| number(&stats, key);
        assert_accounted(&stats);
        assert_eq!(n("seen"), u64::from(sent + AFTER), "{hook}, {name}: {stats}");
        assert_eq!(contents.packets.len() as u64, n("captured"), "{hook}, {name}");
        let dropped = n("dropped_ring") + n("dropped_other");
        let told: u64 = contents.statistics.iter().filter_map(|s| s.dropped).sum();
        assert_eq!(told, dropped, "{hook}, {name}: the statistics blocks tell every drop");
        assert_eq!(
            contents.announced(),
            dropped,
            "{hook}, {name}: a packet after each gap tells it"
        );
        // The ring recovers at once when blocks come back.
        let last: Vec<_> = contents.packets.iter().rev().take(AFTER as usize).collect();
        assert!(last.iter().all(|p| number_of(&p.frame) >= sent), "{hook}, {name}");
    }
}

/// The hooks inside the kernel tell each gap to the packet.
fn gaps_are_exact(hook: &str) {
    let (stats, contents) = overload(hook, CAPACITY * 4);
    assert!(number(&stats, "dropped_ring") > u64::from(CAPACITY * 2), "{hook}: {stats}");
    let mut expected = 0;
    for p in &contents.packets {
        let number = number_of(&p.frame);
        assert_eq!(
            u64::from(number),
            expected + p.dropped,
            "{hook}: the gap before packet {number}"
        );
        expected = u64::from(number) + 1;
    }
}

#[test]
fn the_law_holds_at_xdp() {
    law_holds("xdp");
}

#[test]
fn the_law_holds_at_tcx() {
    law_holds("tcx");
}

#[test]
fn the_law_holds_at_xdp_generic() {
    law_holds("xdp-generic");
}

#[test]
fn the_law_holds_at_netfilter() {
    law_holds("netfilter");
}

#[test]
fn the_law_holds_at_tpacket() {
    law_holds("tpacket");
}

#[test]
fn the_law_holds_at_recv() {
    law_holds("recv");
}

#[test]
fn the_law_holds_at_afxdp() {
    law_holds("afxdp --deliver consume");
}

#[test]
fn gaps_are_told_to_the_packet() {
    gaps_are_exact("xdp");
    gaps_are_exact("tcx");
    gaps_are_exact("netfilter");
}
