//! Flows are cut off (`--cutoff`, and rules with `cutoff=`): each keeps its first bytes, what is
//! left out is counted to the packet, and readers of the store are told.

mod testbed;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng::PACKET_OVERHEAD;
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::{Net, Sender, SplitMix64, wait_for};
use testbed::bench::Bench;
use testbed::daemon::{Daemon, Member};
use testbed::recorder::{Contents, Recorder, assert_accounted, number};

const HOOKS: [&str; 4] = ["xdp", "xdp-generic", "tcx", "netfilter"];
const LIMIT: usize = 4096;

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

/// Numbered packets of flows from as many ports, of which few have most.
fn packets(to: [u8; 6], numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    let mut random = SplitMix64(numbers.start.into());
    let packet = |number| {
        // The smaller of some numbers that are drawn is small, as a rule.
        let flow = (0..4).map(|_| random.below(200u16)).min().unwrap_or(0);
        let len = [60, 128, 594, 1514][random.below(4usize)];
        UdpFrame { to, len, number, ports: [1000 + flow, 9], ..UdpFrame::default() }.bytes()
    };
    numbers.map(packet).collect()
}

fn port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// What of the packets is recorded where flows may have so many bytes.
fn kept<'a>(packets: impl IntoIterator<Item = &'a Vec<u8>>, limit: usize) -> Vec<Vec<u8>> {
    let mut had: HashMap<u16, usize> = HashMap::new();
    let is_kept = |frame: &&Vec<u8>| {
        let had = had.entry(port(frame)).or_default();
        *had += frame.len();
        *had - frame.len() < limit
    };
    packets.into_iter().filter(is_kept).cloned().collect()
}

fn bytes(frames: &[Vec<u8>]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

fn send(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on("va").send_all(frames));
}

fn wait_seen(recorder: &Recorder, packets: usize) {
    wait_for("all packets to be seen", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= packets as u64)
    });
}

fn ctl(words: &[&str], socket: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("ctl").arg("--socket").arg(socket).args(words);
    let out = command.output().expect("it runs");
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn each_flow_keeps_its_first_bytes_at_every_hook() {
    for hook in HOOKS {
        let net = net(hook);
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("r.pcapng");
        let flags = format!("--hook {hook} --cutoff {LIMIT} --flush 100ms -w {}", file.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let packets = packets(mac(&net), 0..3000);
        send(&net, &packets);
        wait_seen(&recorder, packets.len());
        let stats = recorder.stop();
        assert_accounted(&stats);
        let n = |key| number(&stats, key);
        let kept = kept(&packets, LIMIT);
        assert!(kept.len() < packets.len() / 2, "most are tails");
        assert_eq!(n("seen"), packets.len() as u64, "{hook}: {stats}");
        assert_eq!(n("captured"), kept.len() as u64, "{hook}: {stats}");
        assert_eq!(n("cutoff"), (packets.len() - kept.len()) as u64, "{hook}");
        assert_eq!(n("bytes_cutoff"), bytes(&packets) - bytes(&kept), "{hook}");
        assert_eq!(number(&stats["interfaces"]["vb"], "cutoff"), n("cutoff"), "{hook}");
        let contents = Contents::of(&file);
        // CPUs have rings of their own, which are written one after the other.
        let sorted = |mut frames: Vec<Vec<u8>>| {
            frames.sort();
            frames
        };
        assert!(sorted(contents.frames()) == sorted(kept), "{hook}: another packet was kept");
        let left_out =
            contents.statistics.iter().map(|s| s.received.unwrap_or(0) - s.accepted.unwrap_or(0));
        assert_eq!(left_out.sum::<u64>(), n("cutoff"), "{hook}: the file's statistics tell it");
        let description = contents.interfaces[0].description.clone().expect("a description");
        assert!(description.contains("flows cut off after 4096 bytes"), "{description}");
    }
}

#[test]
fn hooks_that_know_no_flows_are_refused() {
    for hook in ["tpacket", "recv", "afxdp --deliver consume"] {
        let net = net(hook);
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "-i", "vb", "--no-store", "--cutoff", "10KiB", "--hook"]);
        let out = command.args(hook.split_whitespace()).output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{hook}: {said}");
        assert!(said.contains("cannot cut flows off"), "{hook}: {said}");
        assert_eq!(said.lines().count(), 1, "{hook}: {said}");
    }
}

/// Numbered traffic of the project's own generator, into a store of several segments.
#[test]
fn what_is_missing_of_generated_flows_is_what_is_counted_and_stat_tells_it() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (store, sent) = (dir.path().join("store"), dir.path().join("sent.json"));
    let flags = format!(
        "--hook xdp --cutoff 48KiB --flush 100ms --segment-size 8MiB --ring-bytes 64MiB --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut sender = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "va", "--backend", "txring", "--flows", "500", "--zipf", "1.1"]);
    sender.args(["--size", "594", "--count", "40000", "--rate", "40kpps", "--json"]).arg(&sent);
    let out = sender.output().expect("it runs");
    assert!(out.status.success(), "{out:?}");
    let made: Value = serde_json::from_slice(&fs::read(&sent).expect("it was written")).unwrap();
    wait_seen(&recorder, number(&made, "sent") as usize);
    let stats = recorder.stop();
    assert_accounted(&stats);
    let n = |key| number(&stats, key);
    assert_eq!((n("dropped_ring"), n("dropped_other"), n("filtered")), (0, 0, 0), "{stats}");
    assert_eq!(n("seen"), number(&made, "sent"), "{stats}");
    assert!(n("cutoff") > 10_000, "{stats}");
    assert!(n("segments") > 1, "{stats}");

    // No number is missing but those that were counted.
    let mut check = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    check.args(["check-traffic", "--json", "--sent"]).arg(&sent).arg(&store);
    let check = check.output().expect("it runs");
    let check: Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!(number(&check, "lost"), n("cutoff"), "{check}");
    assert_eq!(number(&check, "recording_cutoff"), n("cutoff"), "{check}");
    assert_eq!((number(&check, "repeated"), number(&check, "damaged")), (0, 0), "{check}");

    let mut flows: HashMap<Vec<u8>, u64> = HashMap::new();
    for frame in Contents::of_store(&store).frames() {
        // Addresses, protocol and ports.
        let flow = [&frame[23..24], &frame[26..38]].concat();
        *flows.entry(flow).or_default() += frame.len() as u64;
    }
    let full = flows.values().filter(|bytes| **bytes >= 48 << 10).count();
    let most = flows.values().max().copied().unwrap_or(0);
    assert!(full > 10 && full < flows.len(), "{full} of {}", flows.len());
    assert!(most < (48 << 10) + 594, "nothing beyond one packet more: {most}");

    assert_sound(&store);
    let mut recover = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = recover.args(["recover", "--all", "--dir"]).arg(&store).output().expect("it runs");
    assert!(out.status.success(), "{out:?}");
    let mut stat = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let told = stat.args(["stat", "--json", "--dir"]).arg(&store).output().expect("it runs");
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(number(&told, "cutoff"), n("cutoff"), "{told}");
    assert_eq!(number(&told, "bytes_cutoff"), n("bytes_cutoff"), "{told}");
    let left_out = n("bytes_cutoff") + n("cutoff") * PACKET_OVERHEAD as u64;
    let lasts = 1.0 + left_out as f64 / number(&told, "bytes_stored") as f64;
    assert!((told["cutoff_lasts"].as_f64().expect("a number") - lasts).abs() < 1e-3, "{told}");
    let mut stat = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let page = stat.args(["stat", "--dir"]).arg(&store).output().expect("it runs");
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    let line = page.lines().find(|line| line.starts_with("cutoff")).unwrap_or_default();
    assert!(line.ends_with(&format!("the store lasts {lasts:.1} times as long")), "{page}");
}

const RULES: &str = "\
cutoff=2KiB src any dst any sport 1000 dport any proto udp
drop        src any dst any sport 1001 dport any proto udp
accept      src any dst any sport any  dport any proto any
";

/// What of the packets [`RULES`] take.
fn chosen(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let first: Vec<Vec<u8>> = packets.iter().filter(|p| port(p) == 1000).cloned().collect();
    let others = packets.iter().filter(|p| port(p) > 1001).cloned();
    kept(&first, 2048).into_iter().chain(others).collect()
}

fn dropped(packets: &[Vec<u8>]) -> u64 {
    packets.iter().filter(|p| port(p) == 1001).count() as u64
}

#[test]
fn a_rule_cuts_off_the_flows_that_it_takes() {
    for hook in ["xdp", "tcx", "netfilter"] {
        let net = net(hook);
        let dir = tempfile::tempdir().expect("a directory");
        let (file, rules) = (dir.path().join("r.pcapng"), dir.path().join("r.rules"));
        fs::write(&rules, RULES).expect("a file");
        let (shown, rules) = (file.display(), rules.display());
        let flags = format!("--hook {hook} --flush 100ms -w {shown} --rules {rules}");
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let packets = packets(mac(&net), 0..1000);
        send(&net, &packets);
        wait_seen(&recorder, packets.len());
        let stats = recorder.stop();
        assert_accounted(&stats);
        let n = |key| number(&stats, key);
        let chosen = chosen(&packets);
        assert_eq!(n("captured"), chosen.len() as u64, "{hook}: {stats}");
        assert_eq!(n("filtered"), dropped(&packets), "{hook}: {stats}");
        assert!(n("cutoff") > 0, "{hook}: {stats}");
        assert_eq!(bytes(&Contents::of(&file).frames()), bytes(&chosen), "{hook}");
    }
}

/// The table is made when the first rule asks for it, by whoever has the privilege.
#[test]
fn rules_that_come_later_cut_flows_off_and_begin_a_segment() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (store, rules) = (dir.path().join("store"), dir.path().join("r.rules"));
    fs::write(&rules, RULES).expect("a file");
    let flags = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let (before, after) = (packets(mac(&net), 0..500), packets(mac(&net), 500..1000));
    send(&net, &before);
    wait_seen(&recorder, before.len());
    let words = ["rules", "replace", rules.to_str().expect("letters")];
    ctl(&words, &store.join(".tapdeck.sock"));
    send(&net, &after);
    wait_seen(&recorder, before.len() + after.len());
    let stats = recorder.stop();
    assert_accounted(&stats);
    let n = |key| number(&stats, key);
    let chosen = chosen(&after);
    assert_eq!(n("captured"), (before.len() + chosen.len()) as u64, "{stats}");
    assert_eq!(n("cutoff") + n("filtered"), (after.len() - chosen.len()) as u64, "{stats}");
    assert_eq!(n("segments"), 2, "{stats}");
    let contents = Contents::of_store(&store);
    let description = contents.interfaces[0].description.clone().expect("a description");
    assert!(description.contains("flows cut off by rules"), "{description}");
}

/// A recorder that looks at packets already takes rules as a plain one does.
#[test]
fn rules_come_later_also_where_less_is_recorded_already() {
    for flags in ["--hook xdp --cutoff 1GiB", "--hook tcx --on-overload shed"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let (store, rules) = (dir.path().join("store"), dir.path().join("r.rules"));
        fs::write(&rules, RULES).expect("a file");
        let flags = format!("{flags} --flush 100ms --dir {}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let words = ["rules", "replace", rules.to_str().expect("letters")];
        ctl(&words, &store.join(".tapdeck.sock"));
        let packets = packets(mac(&net), 0..1000);
        send(&net, &packets);
        wait_seen(&recorder, packets.len());
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "captured"), chosen(&packets).len() as u64, "{flags}: {stats}");
        assert_eq!(number(&stats, "filtered"), dropped(&packets), "{flags}: {stats}");
        assert!(number(&stats, "cutoff") > 0, "{flags}: {stats}");
        assert_sound(&store);
    }
}

/// What was left out is no fault of the store.
fn assert_sound(store: &Path) {
    let mut verify = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = verify.args(["verify", "--dir"]).arg(store).output().expect("it was built");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn each_group_counts_the_flows_that_its_own_rules_cut_off() {
    for hook in ["xdp", "tcx"] {
        let net = net(hook);
        let rules = "cutoff=2KiB src any dst any sport any dport any proto any\n";
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("r.rules");
        fs::write(&file, rules).expect("a file");
        let group = |name: &str, more: &str| {
            format!(
                "[[group]]\nname = \"{name}\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\n{more}\n"
            )
        };
        let by_rules = format!("rules = \"{}\"", file.display());
        let config = [group("all", ""), group("cut", &by_rules), group("more", &by_rules)];
        let mut daemon = Daemon::start(&net, &config.concat());
        let members = ["all", "cut", "more"].map(|name| Member::start(&mut daemon, name, name, ""));
        let packets = packets(mac(&net), 0..1000);
        let (begin, end) = packets.split_at(500);
        send(&net, begin);
        daemon.wait_seen("more", 500);
        // What is counted for one group is not counted for another.
        assert!(daemon.ctl("pause --group more").status.success());
        send(&net, end);
        daemon.wait_seen("cut", 1000);
        let all = [packets.clone(), kept(&packets, 2048), kept(begin, 2048)];
        let [seen, paused] = [packets.len() as u64, begin.len() as u64];
        for ((name, wanted), seen) in
            ["all", "cut", "more"].into_iter().zip(&all).zip([seen, seen, paused])
        {
            let group = daemon.group(name);
            assert_eq!(number(&group, "captured"), wanted.len() as u64, "{hook}: {group}");
            assert_eq!(number(&group, "cutoff"), seen - wanted.len() as u64, "{hook}: {group}");
        }
        for (member, wanted) in members.into_iter().zip(&all) {
            assert_eq!(bytes(&member.stop().frames()), bytes(wanted), "{hook}");
        }
        // Its last counters obey the law.
        daemon.stop();
    }
}

/// Flows that have had their bytes are known to the next owner, and what is counted goes on.
#[test]
fn a_recorder_that_takes_over_goes_on_with_the_flows() {
    let bench = Bench::new();
    let to = bench.net.b.inside(|| Interface::find("vb").expect("made above")).mac;
    let store = bench.dir.path().join("store");
    let start = || {
        let mut command = bench.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", bench.pins());
        command.args(["record", "-i", "vb", "--persist", "tape", "--flush", "100ms"]);
        command.args(["--hook", "xdp", "--cutoff", "4KiB", "--dir"]).arg(&store);
        Recorder::of(command, bench.dir.path())
    };
    let packets = packets(to.expect("a MAC"), 0..1500);
    let first = start();
    send(&bench.net, &packets[..500]);
    wait_seen(&first, 500);
    first.kill();
    send(&bench.net, &packets[500..1000]);
    let last = start();
    send(&bench.net, &packets[1000..]);
    wait_seen(&last, packets.len());
    let kept = kept(&packets, LIMIT);
    last.wait_for_captured(kept.len() as u64);
    let stats = last.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats, "takeovers"), 1);
    assert_eq!(number(&stats, "captured"), kept.len() as u64, "{stats}");
    assert_eq!(number(&stats, "cutoff"), (packets.len() - kept.len()) as u64, "{stats}");
    assert_eq!(bytes(&Contents::of_store(&store).frames()), bytes(&kept));
}
