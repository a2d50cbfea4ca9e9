//! Rules choose packets inside the kernel, at every hook that has them, and every packet is
//! accounted for.

mod testbed;

use std::fs;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::rules::{Compiled, Hits};
use tapdeck_capture::{Capture, Clock, Config, Deliver, Hook, SystemClock};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_packet::rules::image::{Engine, Options};
use tapdeck_packet::rules::{Action, RuleSet, Tuple};
use tapdeck_testkit::frame::{IPV6, UDP, UdpFrame, ethernet, ipv6};
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number};

const HOOKS: [&str; 4] = ["xdp", "xdp-generic", "tcx", "netfilter"];

fn net(hook: &str) -> Net {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
        net.b.run("sysctl -qw net.ipv6.conf.vb.disable_ipv6=0");
    }
    net
}

fn mac(net: &Net) -> [u8; 6] {
    net.b.inside(|| Interface::find("vb").expect("made above")).mac.expect("veth has one")
}

/// UDP from one of many addresses to one of some ports; some with a tag, some of IPv6.
fn frames(mac: [u8; 6]) -> Vec<Vec<u8>> {
    (0..400u32)
        .map(|n| {
            let packet = UdpFrame {
                to: mac,
                source: [10, 213, (n % 7) as u8, (n % 11) as u8],
                ports: [1000 + (n % 5) as u16, [9, 53, 54, 443][n as usize % 4]],
                len: 60 + n as usize * 3,
                number: n,
                ..UdpFrame::default()
            };
            let f = packet.bytes();
            match n % 10 {
                7 => [&f[..12], &[0x81, 0, 0, 7], &f[12..]].concat(),
                6 => over_ipv6(&packet),
                _ => f,
            }
        })
        .collect()
}

/// The frame's UDP datagram behind an IPv6 header, from an address like the one it had.
fn over_ipv6(packet: &UdpFrame) -> Vec<u8> {
    let address = |[a, b, c, d]: [u8; 4]| {
        let low = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, low[0], low[1])
    };
    let (source, destination) = (address(packet.source), address(packet.destination));
    let inside = ipv6(source, destination, UDP, &packet.bytes()[34..]);
    ethernet(packet.to, packet.from, &[], IPV6, &inside)
}

const RULES: &str = "\
# all actions, both families, several signatures
accept      src 10.213.1.0/24 dst any          sport any  dport any proto udp
drop        src 10.213.1.0/24 dst any          sport any  dport 53  proto udp
snaplen=77  src 10.213.2.0/23 dst 10.213.0.0/16 sport any dport any proto any
accept      src any           dst any          sport 1002-1003 dport 400-443 proto any
drop        src 10.213.5.4    dst any          sport any  dport any proto any
accept      src 2001:db8::/32 dst any          sport any  dport 54  proto 17
snaplen=70  src any           dst any          sport any  dport 9   proto udp
accept      src 10.213.6.0/24 dst any          sport any  dport any proto tcp
";

/// What of each frame is recorded, and each rule's hits.
fn expected(set: &RuleSet, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, Hits) {
    let mut hits = Hits { per_rule: vec![0; set.len()], none: 0 };
    let mut kept = Vec::new();
    for frame in frames {
        let Some(rule) = set.judge(&Tuple::read(LinkType::ETHERNET, frame)) else {
            hits.none += 1;
            continue;
        };
        hits.per_rule[rule as usize] += 1;
        match set.rule(rule as usize).expect("it is there").action {
            Action::Drop => {}
            Action::Snaplen(bytes) => kept.push(frame[..frame.len().min(bytes as usize)].to_vec()),
            _ => kept.push(frame.clone()),
        }
    }
    (kept, hits)
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

fn send(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on("va").send_all(frames));
}

#[test]
fn rules_choose_packets_at_every_hook_with_both_engines() {
    let set = RuleSet::parse(RULES).expect("rules");
    for (hook, engine) in HOOKS.into_iter().flat_map(|h| [(h, "candidates"), (h, "walk")]) {
        let net = net(hook);
        let dir = tempfile::tempdir().expect("a directory");
        let (file, rules) = (dir.path().join("r.pcapng"), dir.path().join("r.rules"));
        fs::write(&rules, RULES).expect("a file");
        let (shown, rules) = (file.display(), rules.display());
        let flags = format!(
            "--hook {hook} --flush 100ms -w {shown} --rules {rules} --rules-engine {engine}"
        );
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let mut frames = frames(mac(&net));
        if hook == "netfilter" {
            // It sees packets of IP, and a tag is taken off for an interface that is not there.
            frames.retain(|f| f[12..14] != [0x81, 0]);
        }
        let (kept, hits) = expected(&set, &frames);
        assert!(hits.none > 20 && hits.per_rule[..7].iter().all(|&n| n > 1), "{hits:?}");
        send(&net, &frames);
        wait_for(&format!("all packets to be seen at {hook}"), || {
            recorder.now()["seen"].as_u64().is_some_and(|n| n >= frames.len() as u64)
        });
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "seen"), frames.len() as u64, "{hook}, {engine}");
        assert_eq!(number(&stats, "captured"), kept.len() as u64, "{hook}, {engine}");
        assert_eq!(
            number(&stats, "filtered"),
            (frames.len() - kept.len()) as u64,
            "{hook}, {engine}"
        );
        assert_eq!(sorted(Contents::of(&file).frames()), sorted(kept), "{hook}, {engine}");
    }
}

fn config(hook: &str, rules: Option<&Arc<Compiled>>) -> Config {
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
        filter: None,
        rules: rules.cloned(),
        cutoff: None,
    }
}

fn compiled(text: &str, engine: Engine) -> Arc<Compiled> {
    let set = RuleSet::parse(text).expect("rules");
    Arc::new(Compiled::new(&set, &Options { engine, ..Options::default() }).expect("few"))
}

/// Takes what is in the rings, and counts packets.
fn drain(readers: &mut [impl Ring]) -> u64 {
    let mut packets = 0;
    for reader in readers {
        while let Some(block) = reader.peek(0) {
            let records = Reader::inside(block.bytes).map(|record| record.expect("well formed"));
            packets += records.filter(|record| matches!(record, Record::Packet(_))).count() as u64;
            reader.release(1);
        }
    }
    packets
}

#[test]
fn hits_and_the_file_agree_while_sets_are_exchanged_under_load() {
    for hook in HOOKS {
        let net = net(hook);
        let mac = mac(&net);
        net.b.inside(|| exchanged_under_load(&net, hook, mac));
    }
}

/// Runs in namespace `b`: each packet is taken by exactly one rule of one set, or by none of one.
fn exchanged_under_load(net: &Net, hook: &str, mac: [u8; 6]) {
    // Fewer than a ring holds come while sets are exchanged.
    const AHEAD: u32 = 100_000;
    let host = |n: u32| {
        format!("drop src 192.0.{}.{} dst any sport any dport any proto any", n / 256, n % 256)
    };
    let many = (0..3000).map(host).collect::<Vec<_>>().join("\n") + "\n";
    let port =
        |port: u32| format!("accept src 10.213.0.0/16 dst any sport any dport {port} proto udp\n");
    let sets = [
        compiled(&port(53), Engine::Candidates),
        // Another size of image, another number of rules.
        compiled(&(many + &port(54)), Engine::Candidates),
        compiled(&(port(54) + &port(53)), Engine::Walk),
    ];
    let clock = Arc::new(Clock::new(Box::new(SystemClock)));
    let mut capture = Capture::open("vb", &config(hook, Some(&sets[0])), 0, &clock)
        .expect("a kernel with this hook");
    let mut readers = capture.readers();
    capture.start().expect("the interface is there");
    let (stop, sent, may_send) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(AHEAD));
    let mut packets = 0;
    let mut told = Vec::new();
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
                    let mut f = frame(mac, 80, n);
                    f[36..38].copy_from_slice(&[53u16, 54, 55][n as usize % 3].to_be_bytes());
                    sender.send(&f);
                }
            });
        });
        // Each set judges some, also the last.
        for i in 1..=12 {
            let at = sent.load(Relaxed);
            may_send.store(at + AHEAD, Relaxed);
            wait_for("some packets", || {
                packets += drain(&mut readers);
                sent.load(Relaxed) > at + 300 || sender.is_finished()
            });
            if i < 12 {
                told.push(capture.set_rules(Some(sets[i % sets.len()].clone())));
            }
        }
        stop.store(true, Relaxed);
    });
    let sent = u64::from(sent.into_inner());
    capture.stop();
    let mut hits: Vec<Hits> =
        told.into_iter().map(|told| told.expect("memory").expect("an old set")).collect();
    hits.push(capture.rule_hits().expect("the last set"));
    wait_for("the rings to be empty", || {
        capture.flush_all().expect("the rings are there");
        packets += drain(&mut readers);
        capture.rings().iter().all(|r| r.open_block().1 == 0 && r.fill_bytes() == 0)
    });
    assert_eq!(capture.losses().total(), 0, "{hook}");
    let accepted: u64 = hits.iter().flat_map(|hits| &hits.per_rule).sum();
    let none: u64 = hits.iter().map(|hits| hits.none).sum();
    assert_eq!(accepted, packets, "{hook}: what rules accept is captured");
    assert_eq!(none, capture.filtered(), "{hook}: what none accepts is filtered");
    assert_eq!(accepted + none, sent, "{hook}: each is judged once");
    assert!(hits.iter().all(|hits| hits.seen() > 0), "{hook}: every set has judged");
}

/// Rules come to a capture that began without, and go.
#[test]
fn rules_come_and_go_while_packets_are_captured() {
    for hook in ["xdp", "xdp-generic", "tcx"] {
        let net = net(hook);
        let mac = mac(&net);
        net.b.inside(|| {
            let clock = Arc::new(Clock::new(Box::new(SystemClock)));
            let mut capture =
                Capture::open("vb", &config(hook, None), 0, &clock).expect("a kernel with it");
            let mut readers = capture.readers();
            capture.start().expect("the interface is there");
            let mut taken = |capture: &mut Capture, wanted: u64| {
                send(&net, &(0..30).map(|n| frame(mac, 80, n)).collect::<Vec<_>>());
                let mut packets = 0;
                wait_for("the packets", || {
                    capture.flush_all().expect("the rings are there");
                    packets += drain(&mut readers);
                    packets >= wanted
                });
                packets
            };
            assert_eq!(taken(&mut capture, 30), 30, "{hook}: no rules");
            assert_eq!(capture.rule_hits(), None);
            let nothing =
                compiled("drop src any dst any sport any dport any proto udp", Engine::Candidates);
            capture.set_rules(Some(nothing)).expect("programs are exchanged");
            assert_eq!(taken(&mut capture, 0), 0, "{hook}: one that drops all");
            wait_for("the hits", || capture.rule_hits().is_some_and(|hits| hits.per_rule == [30]));
            assert_eq!(capture.filtered(), 30, "{hook}");
            let hits = capture.set_rules(None).expect("always");
            assert_eq!(hits, Some(Hits { per_rule: vec![30], none: 0 }), "{hook}");
            assert_eq!(taken(&mut capture, 30), 30, "{hook}: no rules again");
        });
    }
}

#[test]
fn netfilter_says_that_rules_must_be_there_from_the_start() {
    let net = net("netfilter");
    net.b.inside(|| {
        let clock = Arc::new(Clock::new(Box::new(SystemClock)));
        let mut capture =
            Capture::open("vb", &config("netfilter", None), 0, &clock).expect("netfilter links");
        capture.start().expect("the interface is there");
        let rules =
            compiled("drop src any dst any sport any dport 9 proto udp", Engine::Candidates);
        let error = capture.set_rules(Some(rules)).expect_err("the kernel cannot");
        assert!(error.is_usage() && error.to_string().contains("netfilter"), "{error}");
    });
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let rules = dir.path().join("r.rules");
    for (text, hook, says) in [
        (RULES, "tpacket", "takes no rules"),
        (RULES, "recv", "takes no rules"),
        (RULES, "afxdp --deliver consume", "takes no rules"),
        ("group=ids src any dst any sport any dport any proto any", "xdp", "group \"ids\""),
    ] {
        fs::write(&rules, text).expect("a file");
        let flags = format!("record -i vb --no-store --hook {hook} --rules {}", rules.display());
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let output = command.args(flags.split_whitespace()).output().expect("it was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{hook}: {said}");
        assert!(said.contains(says) && said.trim_end().lines().count() == 1, "{hook}: {said}");
    }
}
