//! A filter chooses the same packets at every hook, and every packet is accounted for.

mod testbed;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::rules::Compiled;
use tapdeck_capture::{Capture, Clock, Config, Deliver, Error, Event, Hook, SystemClock};
use tapdeck_packet::pcapng::{FLAG_INBOUND, FLAG_OUTBOUND, Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_packet::rules::RuleSet;
use tapdeck_packet::rules::image::Options;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Cable, Net, Running, Sender, Talking, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number};

const KERNEL_HOOKS: [&str; 4] = ["xdp", "xdp-generic", "tcx", "netfilter"];
const AFXDP: &str = "afxdp --deliver consume";
/// Copies of packets come to them, by a socket.
const SOCKET_HOOKS: [&str; 2] = ["tpacket", "recv"];

fn net(hook: &str) -> Net {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    net
}

fn mac(net: &Net) -> [u8; 6] {
    net.b.inside(|| Interface::find("vb").expect("made above")).mac.expect("veth has one")
}

/// A UDP packet to a port.
fn to_port(mac: [u8; 6], len: usize, n: u32, port: u16) -> Vec<u8> {
    let mut f = frame(mac, len, n);
    f[36..38].copy_from_slice(&port.to_be_bytes());
    f
}

fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    let mut f = frame[..12].to_vec();
    for tag in tags {
        f.extend(tag);
    }
    f.extend(&frame[12..]);
    f
}

fn send(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on("va").send_all(frames));
}

/// Waits until the recorder has seen so many packets, and ends it.
fn finish(recorder: Recorder, seen: u64, what: &str) -> serde_json::Value {
    wait_for(&format!("{seen} packets to be seen at {what}"), || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= seen)
    });
    let stats = recorder.stop();
    assert_accounted(&stats);
    stats
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

/// Records what `filter` lets through of `frames`, which is `expected`.
fn records(hook: &str, filter: &str, frames: &[Vec<u8>], expected: &[Vec<u8>]) {
    let net = net(hook);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("f.pcapng");
    let flags = format!("--hook {hook} --flush 100ms -w {}", file.display());
    let recorder = Recorder::start_filtered(&net, dir.path(), &flags, filter);
    let mac = mac(&net);
    let to_vb = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
        frames.iter().map(|f| [&mac[..], &f[6..]].concat()).collect()
    };
    send(&net, &to_vb(frames));
    let seen = frames.len() as u64;
    let stats = finish(recorder, seen, &format!("{hook}, {filter}"));
    let contents = Contents::of(&file);
    assert_eq!(
        sorted(contents.frames()),
        sorted(to_vb(expected)),
        "{hook}, {filter}: the packets that match and no others"
    );
    assert_eq!(number(&stats, "seen"), seen, "{hook}, {filter}");
    assert_eq!(number(&stats, "captured"), expected.len() as u64, "{hook}, {filter}");
    assert_eq!(number(&stats, "filtered"), seen - expected.len() as u64, "{hook}, {filter}");
    assert_eq!(contents.interfaces[0].filter.as_deref(), Some(filter), "{hook}");
}

/// Packets to three ports, of many lengths.
fn ports() -> Vec<Vec<u8>> {
    (0..300).map(|n| to_port([0; 6], 60 + n as usize * 4, n, [9, 53, 54][n as usize % 3])).collect()
}

#[test]
fn packets_that_match_are_recorded_at_every_hook_and_the_others_counted() {
    let frames = ports();
    let expected: Vec<_> = frames.iter().skip(1).step_by(3).cloned().collect();
    for hook in KERNEL_HOOKS.into_iter().chain([AFXDP]).chain(SOCKET_HOOKS) {
        records(hook, "udp dst port 53 and host 10.213.0.2", &frames, &expected);
    }
}

#[test]
fn lengths_and_bytes_far_behind_are_judged_at_every_hook() {
    let frames = ports();
    let is_long = |f: &&Vec<u8>| f.len() >= 900 && f[851] & 1 == 1;
    let expected: Vec<_> = frames.iter().filter(is_long).cloned().collect();
    assert!(expected.len() > 10, "some match");
    for hook in KERNEL_HOOKS.into_iter().chain([AFXDP]).chain(SOCKET_HOOKS) {
        records(hook, "greater 900 and ether[851] & 1 = 1", &frames, &expected);
    }
}

#[test]
fn a_filter_that_refuses_all_refuses_all() {
    for hook in KERNEL_HOOKS.into_iter().chain([AFXDP]).chain(SOCKET_HOOKS) {
        records(hook, "host 198.51.100.1", &ports(), &[]);
    }
}

/// An IPv6 packet with so many destination options before UDP.
fn behind_options(headers: usize, n: u32) -> Vec<u8> {
    const OPTIONS: u8 = 60;
    const UDP: u8 = 17;
    let next = |at: usize| if at < headers { OPTIONS } else { UDP };
    let len = 8 * headers as u16 + 12;
    let mut f = vec![0; 12];
    f.extend([0x86, 0xdd, 0x60, 0, 0, 0, (len >> 8) as u8, len as u8, next(0), 64]);
    f.extend([0xfd; 32]);
    // Each has one option, which pads it.
    for at in 1..=headers {
        f.extend([next(at), 0, 1, 4, 0, 0, 0, 0]);
    }
    f.extend([0, 9, 0, 9, 0, 12, 0, 0]);
    f.extend(n.to_be_bytes());
    f
}

/// A packet whose chain is longer than the filter follows is refused, whatever else the filter
/// says.
#[test]
fn chains_of_headers_are_followed_to_their_bound() {
    const BOUND: usize = 16;
    let of = |headers: Range<usize>| -> Vec<Vec<u8>> {
        let numbers = (0..200).filter(|n| headers.contains(&(n % 40)));
        numbers.map(|n| behind_options(n % 40, n as u32)).collect()
    };
    let (frames, within, behind_any) = (of(0..40), of(0..BOUND + 1), of(1..40));
    for hook in ["xdp", "xdp-generic", "tcx", "tpacket", "recv"] {
        records(hook, "ip6 protochain 17", &frames, &within);
    }
    for hook in ["xdp", "tpacket"] {
        records(hook, "not ip6 protochain 6", &frames, &within);
        // What is found before the bound is found, however long the rest.
        records(hook, "ip6 protochain 60", &frames, &behind_any);
    }
}

/// With and without tags, one and two, some of which the kernel takes off before a hook sees the
/// frame.
fn tags() -> Vec<Vec<u8>> {
    const SEVEN: [u8; 4] = [0x81, 0, 0, 7];
    const EIGHT: [u8; 4] = [0x81, 0, 0x60, 8];
    const OUTER: [u8; 4] = [0x88, 0xa8, 0, 7];
    (0..240)
        .map(|n| {
            let f = to_port([0; 6], 100, n, [9, 53][n as usize / 6 % 2]);
            match n % 6 {
                0 => f,
                1 => tagged(&f, &[SEVEN]),
                2 => tagged(&f, &[EIGHT]),
                3 => tagged(&f, &[OUTER, EIGHT]),
                4 => tagged(&f, &[SEVEN, EIGHT]),
                _ => tagged(&f, &[OUTER]),
            }
        })
        .collect()
}

/// What tcpdump takes at the same interface and time is what every hook takes.
#[test]
fn tags_are_found_wherever_they_stand_as_tcpdump_finds_them() {
    for (filter, packets) in [
        ("vlan", 200),
        ("vlan 7", 160),
        ("vlan 8", 40),
        ("not vlan", 40),
        ("vlan 7 and udp port 53", 40),
        ("vlan and vlan 8", 80),
    ] {
        beside_tcpdump(&["xdp", "tcx", "tpacket", "recv"], filter, packets);
    }
    for (filter, packets) in [("vlan 8", 40), ("vlan 7 and udp port 53", 40)] {
        beside_tcpdump(&["xdp-generic"], filter, packets);
    }
}

fn beside_tcpdump(hooks: &[&str], filter: &str, packets: usize) {
    let net = Net::new();
    let dirs: Vec<_> = hooks.iter().map(|_| tempfile::tempdir().expect("a directory")).collect();
    let recorders: Vec<_> = hooks
        .iter()
        .zip(&dirs)
        .map(|(hook, dir)| {
            let file = dir.path().join("f.pcapng");
            let flags = format!("--hook {hook} --flush 100ms -w {}", file.display());
            (*hook, Recorder::start_filtered(&net, dir.path(), &flags, filter), file)
        })
        .collect();
    let mut frames = tags();
    let mac = mac(&net);
    for f in &mut frames {
        f[..6].copy_from_slice(&mac);
    }
    let (peer, theirs) = tcpdump(&net, dirs[0].path(), filter);
    send(&net, &frames);
    wait_for(&format!("tcpdump to take {packets} packets, {filter}"), || {
        frames_of(&theirs).len() >= packets
    });
    peer.interrupt();
    let theirs = sorted(frames_of(&theirs));
    for (hook, recorder, file) in recorders {
        let seen = frames.len() as u64;
        let stats = finish(recorder, seen, &format!("{hook}, {filter}"));
        assert_eq!(sorted(Contents::of(&file).frames()), theirs, "{hook}, {filter}");
        assert_eq!(number(&stats, "captured"), theirs.len() as u64, "{hook}, {filter}");
        assert_eq!(number(&stats, "seen"), seen, "{hook}, {filter}");
    }
}

/// tcpdump on `vb`, listening.
fn tcpdump(net: &Net, dir: &Path, filter: &str) -> (Running, PathBuf) {
    let file = dir.join("theirs.pcap");
    let mut command = net.b.command("tcpdump");
    command.args(["-i", "vb", "-U", "--immediate-mode", "-Q", "in", "-w"]).arg(&file).arg(filter);
    let mut tcpdump = Talking::start(command.stdout(Stdio::null()));
    tcpdump.wait_to_say("listening on");
    (tcpdump.process, file)
}

/// The frames of a pcap file.
fn frames_of(file: &Path) -> Vec<Vec<u8>> {
    let Ok(mut capture) = pcap::Capture::from_file(file) else { return Vec::new() };
    let mut frames = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        frames.push(packet.data.to_vec());
    }
    frames
}

#[test]
fn directions_are_told_apart_where_both_are_seen() {
    for hook in ["tcx", "tpacket", "recv"] {
        for (filter, flag) in
            [("inbound and icmp", FLAG_INBOUND), ("outbound and icmp", FLAG_OUTBOUND)]
        {
            let net = Net::new();
            net.addresses();
            let dir = tempfile::tempdir().expect("a directory");
            let file = dir.path().join("f.pcapng");
            let flags = format!("--hook {hook} --flush 100ms -w {}", file.display());
            let recorder = Recorder::start_filtered(&net, dir.path(), &flags, filter);
            net.a.run("ping -q -c 20 -i 0.01 10.213.0.2");
            wait_for("the packets to be captured", || {
                recorder.now()["captured"].as_u64().is_some_and(|n| n >= 20)
            });
            assert_accounted(&recorder.stop());
            let packets = Contents::of(&file).packets;
            assert_eq!(packets.len(), 20, "{hook}, {filter}");
            assert!(packets.iter().all(|p| p.flags & 3 == flag), "{hook}, {filter}");
        }
    }
}

/// What comes in is inbound where nothing else is seen.
#[test]
fn what_the_driver_sees_is_inbound() {
    for hook in ["xdp", "xdp-generic", "netfilter"] {
        records(hook, "inbound", &ports(), &ports());
        records(hook, "outbound", &ports(), &[]);
    }
}

/// A filter that asks for what the packets of one interface do not have takes nothing there.
#[test]
fn what_cannot_match_on_one_link_type_takes_nothing_there() {
    let net = Net::new();
    net.b.run("ip tuntap add dev tun0 mode tun");
    net.b.run("ip addr add 10.99.0.1/24 dev tun0");
    net.b.run("ip link set tun0 up");
    let dir = tempfile::tempdir().expect("a directory");
    let (file, socket) = (dir.path().join("f.pcapng"), dir.path().join("socket"));
    let flags =
        format!("--hook tcx --flush 100ms -w {} --socket {}", file.display(), socket.display());
    let words: Vec<&str> = flags.split_whitespace().chain(["--filter", "arp"]).collect();
    let recorder = Recorder::start_with(&net, "tun0,vb", dir.path(), &words);
    // Nobody answers, but they leave by the interface.
    net.b.shell("ping -q -c 3 -i 0.05 -W 1 10.99.0.2 || true");
    let mut frames = ports();
    for frame in frames.iter_mut().step_by(3) {
        frame[12..14].copy_from_slice(&[8, 6]);
    }
    let arp: Vec<_> = frames.iter().step_by(3).cloned().collect();
    send(&net, &frames);
    wait_for("the packets to be seen", || {
        let seen = |name: &str| recorder.now()["interfaces"][name]["seen"].as_u64();
        seen("vb") >= Some(frames.len() as u64) && seen("tun0") >= Some(3)
    });
    let ctl = |filter: &str| {
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["ctl", "--socket"]).arg(&socket).args(["filter", filter]);
        command.output().expect("it runs")
    };
    assert!(ctl("ether host 02:00:00:00:00:01").status.success(), "it is exchanged as well");
    assert!(!ctl("florb").status.success(), "nonsense is nonsense everywhere");
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(sorted(Contents::of(&file).frames()), sorted(arp));
    let of = |name: &str, key| number(&stats["interfaces"][name], key);
    assert_eq!(of("tun0", "seen"), of("tun0", "filtered"), "{stats}");

    // That is told; where the filter can match nowhere, it is wrong.
    for (interfaces, code, words) in [
        ("tun0,vb", 0, "nothing of tun0 can match the filter \"arp\""),
        ("tun0", 2, "expression rejects all packets"),
    ] {
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "-i", interfaces, "--hook", "tcx", "--no-store"]);
        command.args(["--duration", "200ms", "--filter", "arp"]);
        let out = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(words), "{said}");
        assert_eq!(out.status.code(), Some(code), "{said}");
    }
}

fn config(hook: &str, filter: &str) -> Config {
    Config {
        hook: Hook::ALL.into_iter().find(|h| h.name() == hook).expect("there is one"),
        deliver: Deliver::Pass,
        snaplen: 200,
        ring_bytes: 64 << 20,
        block_bytes: 1 << 20,
        promiscuous: true,
        device_bound: true,
        overload: tapdeck_capture::Overload::Drop,
        stamps: tapdeck_capture::Stamps::Auto,
        filter: Some(filter.to_owned()),
        rules: None,
        cutoff: None,
    }
}

/// Takes all packets that are in the rings, and gives each frame on.
fn take(readers: &mut [impl Ring], mut each: impl FnMut(&[u8])) {
    for reader in readers {
        while let Some(block) = reader.peek(0) {
            for record in Reader::inside(block.bytes) {
                if let Record::Packet(packet) = record.expect("blocks are well formed") {
                    each(packet.frame);
                }
            }
            reader.release(1);
        }
    }
}

/// Takes all packets that are in the rings; adds their numbers.
fn drain(readers: &mut [impl Ring], numbers: &mut Vec<u32>) {
    take(readers, |frame| numbers.push(number_of(frame)));
}

/// Packets alternate between two ports. First one port is recorded, then the other; where the
/// filter changed, no packet is missing and none is judged twice.
#[test]
fn a_filter_changes_under_load_and_every_packet_is_judged_once() {
    for hook in ["xdp", "xdp-generic", "tcx", "tpacket", "recv"] {
        let net = Net::new();
        let mac = mac(&net);
        net.b.inside(|| changes_under_load(&net, hook, mac));
    }
}

/// Runs in namespace `b`.
fn changes_under_load(net: &Net, hook: &str, mac: [u8; 6]) {
    // As much as a socket's buffer holds, if nobody comes to it, is under way at the most.
    const AHEAD: u32 = 40_000;
    let config = config(hook, "udp dst port 53");
    let clock = Arc::new(Clock::new(Box::new(SystemClock)));
    let mut capture = Capture::open("vb", &config, 0, &clock).expect("a kernel with this hook");
    let mut readers = capture.readers();
    capture.start().expect("the interface is there");
    let (stop, sent, may_send) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(AHEAD));
    let mut numbers = Vec::new();
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            net.a.inside(|| {
                let mut core = CpuSet::new();
                core.set(0);
                sched_setaffinity(None, &core).expect("core 0 is there");
                let mut sender = Sender::on("va");
                while !stop.load(Relaxed) {
                    if sent.load(Relaxed) >= may_send.load(Relaxed) {
                        std::thread::yield_now();
                        continue;
                    }
                    let n = sent.fetch_add(1, Relaxed);
                    sender.send(&to_port(mac, 80, n, if n % 2 == 0 { 53 } else { 54 }));
                }
            });
        });
        let reader = s.spawn(|| {
            while !stop.load(Relaxed) {
                drain(&mut readers, &mut numbers);
                std::thread::yield_now();
            }
        });
        let ended = || sender.is_finished() || reader.is_finished();
        wait_for("some packets", || sent.load(Relaxed) > 500 || ended());
        let changed = capture.set_filter(Some("udp dst port 54"));
        let at = sent.load(Relaxed);
        may_send.fetch_add(AHEAD, Relaxed);
        wait_for("more packets", || sent.load(Relaxed) > at + 500 || ended());
        stop.store(true, Relaxed);
        changed.expect("this hook can change it");
    });
    let sent = sent.into_inner();
    capture.stop();
    wait_for("the rings to be empty", || {
        capture.flush_all().expect("the rings are there");
        drain(&mut readers, &mut numbers);
        capture.rings().iter().all(|r| r.open_block().1 == 0 && r.fill_bytes() == 0)
    });
    assert_eq!(capture.losses().total(), 0, "{hook}");
    assert_eq!(numbers.len() as u64 + capture.filtered(), u64::from(sent), "{hook}: the law");
    let taken: BTreeSet<u32> = numbers.iter().copied().collect();
    assert_eq!(taken.len(), numbers.len(), "{hook}: none twice");
    let old: Vec<u32> = taken.iter().copied().filter(|n| n % 2 == 0).collect();
    let new: Vec<u32> = taken.iter().copied().filter(|n| n % 2 == 1).collect();
    let (last, first) = (*old.last().expect("some"), *new.first().expect("some"));
    assert!(
        last < first && first < sent,
        "{hook}: {last} by the old one, then {first} by the new one"
    );
    assert!(old.iter().copied().eq((0..=last).step_by(2)), "{hook}: all that the old one takes");
    assert!(new.iter().copied().eq((first..sent).step_by(2)), "{hook}: all that the new one takes");
    assert!(first - last <= 3, "{hook}: {last}, then {first}: each was judged by one of them");
}

#[test]
fn netfilter_says_that_its_filter_stays() {
    let net = net("netfilter");
    net.b.inside(|| {
        let config = config("netfilter", "udp");
        let clock = Arc::new(Clock::new(Box::new(SystemClock)));
        let mut capture = Capture::open("vb", &config, 0, &clock).expect("netfilter links");
        capture.start().expect("the interface is there");
        let error = capture.set_filter(Some("tcp")).expect_err("the kernel cannot");
        assert!(error.to_string().contains("netfilter"), "{error}");
        assert_eq!(capture.config().filter.as_deref(), Some("udp"), "the old one is still there");
    });
}

/// What a socket may have beside its buffers is little, and the length of a filter is not charged
/// to it.
#[test]
fn a_filter_of_any_length_fits_a_socket() {
    const LIMIT: &str = "/proc/sys/net/core/optmem_max";
    let net = Net::new();
    let mac = mac(&net);
    net.b.inside(|| {
        if !Path::new(LIMIT).exists() {
            eprintln!("left out: this kernel has one limit for all namespaces");
            return;
        }
        std::fs::write(LIMIT, "1024").expect("root may set it");
        for hook in SOCKET_HOOKS {
            let clock = Arc::new(Clock::new(Box::new(SystemClock)));
            let mut capture = Capture::open("vb", &config(hook, "protochain 6"), 0, &clock)
                .expect("the rings fit");
            let mut readers = capture.readers();
            capture.start().expect("the filter does");
            capture.set_filter(Some("protochain 17 or protochain 6")).expect("another, too");
            send(&net, &(0..10).map(|n| to_port(mac, 80, n, 9)).collect::<Vec<_>>());
            capture.stop();
            capture.flush_all().expect("the rings are there");
            let mut numbers = Vec::new();
            drain(&mut readers, &mut numbers);
            assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "{hook}");
        }
    });
}

/// Snaplen, pause and a bad filter at run time.
#[test]
fn a_capture_is_paused_and_shortened_while_it_runs() {
    for hook in ["xdp", "tcx", "netfilter", "tpacket", "recv"] {
        let net = net(hook);
        let mac = mac(&net);
        net.b.inside(|| {
            let config = config(hook, "udp");
            let clock = Arc::new(Clock::new(Box::new(SystemClock)));
            let mut capture = Capture::open("vb", &config, 0, &clock).expect("a kernel with it");
            let mut readers = capture.readers();
            capture.start().expect("the interface is there");
            let mut lengths = |capture: &mut Capture, wanted: usize| {
                let mut lengths = Vec::new();
                wait_for("the packets", || {
                    capture.flush_all().expect("the rings are there");
                    take(&mut readers, |frame| lengths.push(frame.len()));
                    lengths.len() >= wanted
                });
                lengths
            };
            let frames: Vec<_> = (0..20).map(|n| to_port(mac, 150, n, 9)).collect();
            send(&net, &frames);
            assert_eq!(lengths(&mut capture, 20), [150; 20], "{hook}");
            assert!(capture.set_snaplen(201).is_err() && capture.set_snaplen(0).is_err(), "{hook}");
            capture.set_snaplen(70).expect("it is less");
            assert!(capture.set_filter(Some("no such thing")).is_err(), "{hook}");
            send(&net, &frames);
            assert_eq!(lengths(&mut capture, 20), [70; 20], "{hook}");
            capture.pause();
            assert!(capture.is_paused());
            send(&net, &frames);
            capture.watch(&[]).expect("it is paused, not gone");
            capture.set_snaplen(200).expect("as at the start");
            capture.resume(&[]).expect("the interface is there");
            send(&net, &frames[..1]);
            assert_eq!(lengths(&mut capture, 1), [150], "{hook}: none of the pause");
            capture.stop();
            capture.refresh_nic();
            assert_eq!(capture.nic().rx_packets, 41, "{hook}: the device's, without the pause");
        });
    }
}

/// Makes the interface anew, behind the back of a capture on it.
fn make_anew(net: &Net) {
    net.b.run("ip link del vb");
    net.plug(Cable::default());
}

/// Sends as many packets to ports 53 and 54, and gives the numbers of those that are recorded:
/// evens go to 53.
fn recorded(net: &Net, capture: &mut Capture, wanted: usize) -> BTreeSet<u32> {
    let mac = mac(net);
    let frames: Vec<_> = (0..40).map(|n| to_port(mac, 80, n, 53 + (n % 2) as u16)).collect();
    send(net, &frames);
    let mut readers = capture.readers();
    let mut numbers = Vec::new();
    wait_for("the packets", || {
        capture.flush_all().expect("the rings are there");
        drain(&mut readers, &mut numbers);
        numbers.len() >= wanted
    });
    numbers.into_iter().collect()
}

/// The links to an interface that was made anew take no other program: what was refused is not
/// there when the capture has found the new one.
#[test]
fn what_was_refused_while_the_interface_was_made_anew_is_not_in_force() {
    let drop_all = "drop src any dst any sport any dport any proto any";
    let set = RuleSet::parse(drop_all).expect("a rule");
    let rules = Arc::new(Compiled::new(&set, &Options::default()).expect("one rule"));
    for hook in ["xdp", "xdp-generic", "tcx"] {
        let net = Net::new();
        net.b.inside(|| {
            let clock = Arc::new(Clock::new(Box::new(SystemClock)));
            let config = config(hook, "udp dst port 53");
            let mut capture = Capture::open("vb", &config, 0, &clock).expect("a kernel with it");
            capture.start().expect("the interface is there");
            make_anew(&net);
            capture.set_filter(Some("udp dst port 54")).expect_err("the links are severed");
            capture.set_rules(Some(rules.clone())).expect_err("the links are severed");
            assert_eq!(capture.config().filter.as_deref(), Some("udp dst port 53"), "{hook}");
            assert!(capture.rule_hits().is_none(), "{hook}");
            wait_for("the new interface", || {
                capture.watch(&[]).expect("it is there") == Some(Event::Back)
            });
            let evens = (0..40).step_by(2).collect();
            assert_eq!(recorded(&net, &mut capture, 20), evens, "{hook}: as the old filter says");
            capture.set_rules(Some(rules.clone())).expect("the links are new");
            let hits = capture.rule_hits().expect("there are rules");
            assert_eq!(hits.seen(), 0, "{hook}");
            capture.set_rules(None).expect("they can go");
            capture.set_filter(Some("udp dst port 54")).expect("the links are new");
        });
    }
}

#[test]
fn a_pause_does_not_count_where_it_ends_with_a_stop() {
    for hook in ["xdp", "tpacket"] {
        let net = Net::new();
        let mac = mac(&net);
        net.b.inside(|| {
            let clock = Arc::new(Clock::new(Box::new(SystemClock)));
            let mut capture =
                Capture::open("vb", &config(hook, "udp"), 0, &clock).expect("a kernel with it");
            capture.start().expect("the interface is there");
            let frames: Vec<_> = (0..20).map(|n| to_port(mac, 80, n, 53)).collect();
            send(&net, &frames);
            capture.pause();
            send(&net, &frames);
            capture.stop();
            capture.refresh_nic();
            assert_eq!(capture.nic().rx_packets, 20, "{hook}: without the pause");
        });
    }
}

#[test]
fn a_resume_that_failed_is_tried_again_on_the_device_that_is_there_then() {
    let net = Net::new();
    net.b.inside(|| {
        let clock = Arc::new(Clock::new(Box::new(SystemClock)));
        let config = config("xdp", "udp dst port 53");
        let mut capture = Capture::open("vb", &config, 0, &clock).expect("veth has XDP");
        capture.start().expect("the interface is there");
        capture.pause();
        make_anew(&net);
        let mut other = Capture::open("vb", &config, 0, &clock).expect("veth has XDP");
        other.start().expect("nobody is there");
        let busy = capture.resume(&[]).expect_err("the other is there");
        assert!(matches!(busy, Error::XdpBusy { .. }), "{busy}");
        assert!(capture.is_paused());
        drop(other);
        // A process that a test beside this one is starting may hold the link until it executes.
        wait_for("the place to be free", || match capture.resume(&[]) {
            Err(Error::XdpBusy { .. }) => false,
            tried => tried.map(|()| true).expect("the interface is there"),
        });
        let evens = (0..40).step_by(2).collect();
        assert_eq!(recorded(&net, &mut capture, 20), evens);
    });
}
