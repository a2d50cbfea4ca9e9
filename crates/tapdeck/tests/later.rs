//! Interfaces that come up while others are recorded, and fit a pattern of `-i`: they are recorded
//! as those of the start are, every packet of theirs is accounted for, and they leave nothing
//! behind when they go.

mod testbed;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng;
use tapdeck_testkit::cable::End;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Cable, Namespace, Net, Sender, Talking, wait_for};
use testbed::bench::Bench;
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

/// Plugs a cable from `far` in namespace `a` to `near` in `b`, where it is recorded.
fn plug(net: &Net, far: &str, near: &str) {
    Cable::default().plug([End::new(&net.a, far), End::new(&net.b, near)]);
}

fn unplug(net: &Net, near: &str) {
    net.b.run(&format!("ip link del {near}"));
}

/// Sends numbered frames from `far` to `near`.
fn send(net: &Net, (far, near): (&str, &str), numbers: Range<u32>) {
    let to = net.b.inside(|| Interface::find(near).expect("it is there")).mac.expect("a MAC");
    net.a.inside(|| Sender::on(far).send_all(numbers.map(|i| frame(to, 100, i))));
}

/// The numbers of the packets of each interface, by name and in order.
fn numbers_of(files: &[impl AsRef<Path>]) -> BTreeMap<String, Vec<u32>> {
    let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for file in files {
        let contents = Contents::of(file.as_ref());
        for packet in contents.packets {
            let name = contents.interfaces[packet.interface as usize].name.clone();
            numbers.entry(name.expect("a name")).or_default().push(number_of(&packet.frame));
        }
    }
    for numbers in numbers.values_mut() {
        numbers.sort_unstable();
    }
    numbers
}

fn tapdeck(words: &[&str], store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg(words[0]).arg("--dir").arg(store).args(&words[1..]);
    command.output().expect("the program was built")
}

fn ctl(store: &Path, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = command.args(["ctl", "--dir"]).arg(store).args(words).output().expect("it runs");
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// `query -i NAME` finds so many packets, and the store is sound.
fn assert_found(store: &Path, packets: &[(&str, usize)]) {
    for (name, packets) in packets {
        let out = tapdeck(&["query", "--count", "-i", name], store);
        let count = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        assert_eq!(count, packets.to_string(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let verified = tapdeck(&["verify"], store);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

/// All that the device received, and at some hooks sent, was seen, dropped by it, or unseen.
fn assert_law(hook: &str, counters: &Value) {
    let n = |key| number(counters, key);
    let moved = n("nic_received") + if hook == "tcx" { n("nic_sent") } else { 0 };
    assert_eq!(moved, n("seen") + n("nic_dropped") + n("unseen"), "{counters}");
}

fn assert_laws(hook: &str, stats: &Value) {
    assert_accounted(stats);
    assert_law(hook, stats);
    for counters in stats["interfaces"].as_object().expect("a map").values() {
        assert_law(hook, counters);
    }
}

fn wait_captured(recorder: &Recorder, name: &str, packets: u64) {
    wait_for(&format!("{packets} packets of {name}"), || {
        recorder.now()["interfaces"][name]["captured"].as_u64() >= Some(packets)
    });
}

fn helper_of(recorder: &Recorder) -> u32 {
    let pid = Pid::from_child(&recorder.program.process.0).as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.expect("it runs").trim().parse().expect("one helper")
}

/// How many descriptors and threads a process has, and how many memory mappings of maps.
fn holdings(pid: u32) -> [usize; 3] {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("it runs").count();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    [count("fd"), count("task"), maps.lines().filter(|line| line.contains("bpf-map")).count()]
}

/// A later interface at a hook: each packet that is sent once it is told to be recorded is in the
/// store, and those before are counted. It goes, and comes again.
fn comes_goes_and_comes_again(hook: &str, flags: &str) {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook {hook} {flags} --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    send(&net, ("va", "vb"), 0..10);
    // Stopped, so that some come before it can be recorded.
    recorder.signal(Signal::STOP);
    plug(&net, "vc", "vd");
    send(&net, ("vc", "vd"), 1000..1007);
    recorder.signal(Signal::CONT);
    let line = recorder.wait_to_say("recording vd at hook");
    assert!(line.contains("(fits -i v?)"), "{line}");
    let line = recorder.wait_to_say("before it was recorded");
    assert!(line.contains("vd: it had come up, and 7 packets went unseen"), "{line}");
    send(&net, ("vc", "vd"), 0..40);
    send(&net, ("va", "vb"), 10..30);
    wait_captured(&recorder, "vd", 40);
    wait_captured(&recorder, "vb", 30);
    unplug(&net, "vd");
    recorder.wait_to_say("vd is gone");
    plug(&net, "vc", "vd");
    recorder.wait_to_say("vd is back");
    send(&net, ("vc", "vd"), 40..50);
    wait_captured(&recorder, "vd", 50);
    let stats = recorder.stop();
    assert_laws(hook, &stats);
    assert_eq!(number(&stats["interfaces"]["vd"], "unseen"), 7, "{stats}");
    let found = numbers_of(&segments(&store));
    assert_eq!(found["vd"], (0..50).collect::<Vec<_>>(), "{hook}");
    assert_eq!(found["vb"], (0..30).collect::<Vec<_>>(), "{hook}");
    assert_found(&store, &[("vd", 50), ("vb", 30)]);
    let stat = tapdeck(&["stat"], &store);
    let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
    assert!(stat.contains("the interface had come up, and was not recorded yet"), "{stat}");
}

#[test]
fn an_interface_that_comes_later_is_recorded_at_xdp() {
    comes_goes_and_comes_again("xdp", "");
}

#[test]
fn an_interface_that_comes_later_is_recorded_at_tcx() {
    comes_goes_and_comes_again("tcx", "--index-threads 2");
}

/// Sockets, too, are the helper's; a packet socket counts nothing of what it is not shown.
#[test]
fn an_interface_that_comes_later_is_recorded_by_sockets() {
    for (hook, flags) in [("tpacket", ""), ("recv", ""), ("afxdp", "--deliver consume")] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let line = format!("--hook {hook} {flags} --flush 100ms --dir {}", store.display());
        let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
        plug(&net, "vc", "vd");
        recorder.wait_to_say("recording vd at hook");
        send(&net, ("vc", "vd"), 0..40);
        send(&net, ("va", "vb"), 0..30);
        wait_captured(&recorder, "vd", 40);
        wait_captured(&recorder, "vb", 30);
        let stats = recorder.stop();
        assert_accounted(&stats);
        let found = numbers_of(&segments(&store));
        assert_eq!(found["vd"], (0..40).collect::<Vec<_>>(), "{hook}");
        assert_eq!(found["vb"], (0..30).collect::<Vec<_>>(), "{hook}");
        assert_found(&store, &[("vd", 40), ("vb", 30)]);
    }
}

/// `any`, of a recorder of another user, whose filter is another one by then; and the segments
/// are rotated in between.
#[test]
fn what_is_in_force_is_in_force_for_those_that_come() {
    let net = Net::new();
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).expect("it is ours");
    let store = dir.path().join("store");
    let line = format!("--hook tcx --user nobody --flush 100ms --dir {}", store.display());
    let words: Vec<&str> = line.split_whitespace().collect();
    let words = [&words[..], &["--filter", "udp and ether[45] < 20"]].concat();
    let mut recorder = Recorder::start_with(&net, "any", dir.path(), &words);
    plug(&net, "vc", "vd");
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 0..40);
    wait_captured(&recorder, "vd", 20);
    ctl(&store, &["filter", "udp and ether[45] >= 20"]);
    ctl(&store, &["rotate"]);
    send(&net, ("vc", "vd"), 0..40);
    wait_captured(&recorder, "vd", 40);
    plug(&net, "ve", "vj");
    recorder.wait_to_say("recording vj at hook");
    send(&net, ("ve", "vj"), 0..40);
    wait_captured(&recorder, "vj", 20);
    ctl(&store, &["snaplen", "60"]);
    plug(&net, "vg", "vh");
    recorder.wait_to_say("recording vh at hook");
    send(&net, ("vg", "vh"), 30..35);
    wait_captured(&recorder, "vh", 5);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    assert_eq!(number(&stats["interfaces"]["vj"], "filtered"), 20, "{stats}");
    assert_eq!(stats["interfaces"]["vj"]["filter"], "udp and ether[45] >= 20");
    assert_found(&store, &[("vd", 40), ("vj", 20), ("vh", 5)]);
    let cut = |file: &std::path::PathBuf| {
        let contents = Contents::of(file);
        let of = |id: u32| contents.interfaces[id as usize].name.clone();
        let packets =
            contents.packets.iter().filter(|packet| of(packet.interface) == Some("vh".into()));
        packets.map(|packet| packet.frame.len()).collect::<Vec<_>>()
    };
    assert_eq!(segments(&store).iter().flat_map(cut).collect::<Vec<_>>(), [60; 5]);
    // Segments tell the filter that each interface had.
    let last = segments(&store).pop().expect("a segment");
    let interfaces = Contents::of(&last).interfaces;
    let vj = interfaces.iter().find(|i| i.name.as_deref() == Some("vj")).expect("described");
    assert!(vj.filter.as_deref().is_some_and(|f| f.contains(">= 20")), "{vj:?}");
}

/// Rules and a cutoff judge the packets of those that come, and rules are exchanged there, too.
#[test]
fn rules_judge_those_that_come() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let rules = dir.path().join("rules");
    fs::write(&rules, "accept src any dst any sport any dport 9 proto udp\n").expect("written");
    let flags = ["--hook", "xdp", "--flush", "100ms", "--rules", rules.to_str().expect("UTF-8")];
    let flags = [&flags[..], &["--dir", store.to_str().expect("UTF-8")]].concat();
    let mut recorder = Recorder::start_with(&net, "v?", dir.path(), &flags);
    plug(&net, "vc", "vd");
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 0..20);
    wait_captured(&recorder, "vd", 20);
    fs::write(&rules, "accept src any dst any sport any dport 10 proto udp\n").expect("written");
    ctl(&store, &["rules", "replace", rules.to_str().expect("UTF-8")]);
    send(&net, ("vc", "vd"), 20..40);
    plug(&net, "ve", "vj");
    recorder.wait_to_say("recording vj at hook");
    send(&net, ("ve", "vj"), 0..10);
    wait_for("both to refuse them", || {
        let refused = |name: &str| recorder.now()["interfaces"][name]["filtered"].as_u64();
        refused("vd") == Some(20) && refused("vj") == Some(10)
    });
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    assert_eq!(numbers_of(&segments(&store))["vd"], (0..20).collect::<Vec<_>>());
    assert_eq!(number(&stats["interfaces"]["vj"], "rules"), 1, "{stats}");
}

/// One file has no segments: who comes later is described where it comes.
#[test]
fn a_file_describes_those_that_come() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one.pcapng");
    let line = format!("--hook xdp --flush 100ms -w {}", file.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    send(&net, ("va", "vb"), 0..10);
    wait_captured(&recorder, "vb", 10);
    plug(&net, "vc", "vd");
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 0..40);
    wait_captured(&recorder, "vd", 40);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    let found = numbers_of(&[&file]);
    assert_eq!(found["vd"], (0..40).collect::<Vec<_>>());
    assert_eq!(found["vb"], (0..10).collect::<Vec<_>>());
    let told = Contents::of(&file).statistics;
    let received: Vec<_> = told.iter().map(|s| (s.interface, s.delivered)).collect();
    assert_eq!(received, [(0, Some(10)), (1, Some(40))]);
    for (name, packets) in [("vd", 40), ("vb", 10)] {
        let out = tapdeck(&["query", "--count", "-i", name], &file);
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), packets.to_string(), "{out:?}");
    }
    // Behind the section's header and the interface of the start come packets.
    let bytes = fs::read(&file).expect("it is there");
    let kinds = pcapng::Reader::new(&bytes).map(|record| match record.expect("whole") {
        pcapng::Record::Interface(_) => 'i',
        pcapng::Record::Packet(_) => 'p',
        _ => '.',
    });
    let kinds: String = kinds.collect();
    assert_eq!(kinds, format!(".i{}i{}..", "p".repeat(10), "p".repeat(40)));
}

/// Interfaces of other names come and go: the places of those that went are given to those that
/// come, and each is accounted for under its name.
#[test]
fn those_that_go_leave_nothing_behind() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook xdp --ring-bytes 4MiB --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v*", dir.path(), &line);
    let pid = Pid::from_child(&recorder.program.process.0).as_raw_nonzero().get().cast_unsigned();
    let mut holds = Vec::new();
    let all: Vec<u32> = (0..6).collect();
    for i in &all {
        let near = format!("vn{i}");
        plug(&net, "vc", &near);
        recorder.wait_to_say(&format!("recording {near} at hook"));
        send(&net, ("vc", &near), i * 10..i * 10 + 10);
        wait_captured(&recorder, &near, 10);
        unplug_for_good(&net, &mut recorder, &near);
        holds.push([holdings(pid), holdings(helper_of(&recorder))]);
    }
    // From the third on they take the places of those before. One descriptor more may be open for a
    // moment; a place has more than ten.
    let most: Vec<usize> = holds[2].iter().flatten().map(|held| held + 1).collect();
    let is_within = |held: &[[usize; 3]; 2]| held.iter().flatten().zip(&most).all(|(n, m)| n <= m);
    assert!(holds[3..].iter().all(is_within), "{holds:?}");
    let ring_bytes = number(&recorder.now(), "ring_bytes");
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    assert!(ring_bytes < 4 * (4 << 20), "vb and two places: {ring_bytes}");
    let found = numbers_of(&segments(&store));
    for i in &all {
        let near = format!("vn{i}");
        assert_eq!(number(&stats["interfaces"][&near], "captured"), 10, "{stats}");
        assert_eq!(found[&near], (i * 10..i * 10 + 10).collect::<Vec<_>>());
        assert_found(&store, &[(&near, 10)]);
    }
}

/// Waits until the recorder has looked at the interfaces for so many more seconds.
fn wait_seconds(recorder: &Recorder, seconds: u64) {
    let then = number(&recorder.now(), "elapsed_s");
    wait_for("looks", || number(&recorder.now(), "elapsed_s") > then + seconds);
}

/// Has an interface go whose place others may have from now on.
fn unplug_for_good(net: &Net, recorder: &mut Recorder, near: &str) {
    unplug(net, near);
    recorder.wait_to_say(&format!("{near} is gone"));
    wait_seconds(recorder, 4);
}

/// One that gets the name of an interface that is gone is the same as before, and has one hook.
#[test]
fn an_interface_that_gets_the_name_of_another_is_recorded_once() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    plug(&net, "vc", "vd");
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    plug(&net, "ve", "vx");
    recorder.wait_to_say("recording vx at hook");
    unplug(&net, "vd");
    recorder.wait_to_say("vd is gone");
    net.b.run("ip link set vx down");
    net.b.run("ip link set vx name vd");
    net.b.run("ip link set vd up");
    wait_seconds(&recorder, 2);
    send(&net, ("ve", "vd"), 10..32);
    wait_captured(&recorder, "vd", 32);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    let vd = &stats["interfaces"]["vd"];
    assert_eq!((number(vd, "captured"), number(vd, "unseen")), (32, 0), "{stats}");
    let mut found: Vec<u32> = numbers_of(&segments(&store)).into_values().flatten().collect();
    found.sort_unstable();
    assert_eq!(found, (0..32).collect::<Vec<_>>());
}

/// A place is given away by the recorder and its helper alike: where a newcomer turns out not to be
/// recordable, the interface that was there before is recorded when it is back.
#[test]
fn a_place_that_a_newcomer_could_not_have_stays_that_of_the_one_before() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    for (far, near) in [("vc", "vd"), ("ve", "vj")] {
        plug(&net, far, near);
        recorder.wait_to_say(&format!("recording {near} at hook"));
    }
    unplug_for_good(&net, &mut recorder, "vd");
    // Its maps are too many descriptors more.
    let pid = Pid::from_child(&recorder.program.process.0);
    let is_free = |number: &u64| {
        let place = format!("/proc/{}/fd/{number}", pid.as_raw_nonzero());
        fs::symlink_metadata(place).is_err()
    };
    let limit = Rlimit {
        current: (0..).filter(is_free).nth(4),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(Some(pid), Resource::Nofile, limit).expect("the limit is ours");
    plug(&net, "vg", "vh");
    recorder.wait_to_say("vh came up and fits -i v?: it is not recorded");
    prlimit(Some(pid), Resource::Nofile, before).expect("the limit is ours");
    unplug(&net, "vh");
    plug(&net, "vc", "vd");
    recorder.wait_to_say("vd is back");
    send(&net, ("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    assert_eq!(numbers_of(&segments(&store))["vd"], (0..10).collect::<Vec<_>>());
}

/// What a device has counted before is no news when it is back, also where its place is another
/// one's by then.
#[test]
fn a_device_that_comes_back_without_its_place_goes_on_counting() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook xdp --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    for (far, near) in [("vc", "vd"), ("ve", "vj")] {
        plug(&net, far, near);
        recorder.wait_to_say(&format!("recording {near} at hook"));
    }
    send(&net, ("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    net.b.run(&format!("ip link set vd netns {}", net.a.name()));
    recorder.wait_to_say("vd is gone");
    wait_seconds(&recorder, 4);
    plug(&net, "vg", "vh");
    recorder.wait_to_say("recording vh at hook");
    net.a.run(&format!("ip link set vd netns {}", net.b.name()));
    // Stopped, so that some come before it can be recorded.
    recorder.signal(Signal::STOP);
    net.b.run("ip link set vd up");
    wait_for("both ends to be up", || {
        let is_up = |net: &Namespace, name: &str| {
            net.inside(|| Interface::find(name).is_ok_and(|i| i.running))
        };
        is_up(&net.a, "vc") && is_up(&net.b, "vd")
    });
    send(&net, ("vc", "vd"), 1000..1007);
    recorder.signal(Signal::CONT);
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 10..20);
    wait_captured(&recorder, "vd", 20);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    assert_eq!(number(&stats["interfaces"]["vd"], "unseen"), 7, "{stats}");
    assert_eq!(numbers_of(&segments(&store))["vd"], (0..20).collect::<Vec<_>>());
}

/// A name is no one's for good: what comes under it may have frames of another form.
#[test]
fn a_name_that_comes_back_with_another_link_type_is_recorded() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let mut recorder = Recorder::start_on(&net, "v?", dir.path(), &line);
    plug(&net, "vc", "vd");
    recorder.wait_to_say("recording vd at hook");
    send(&net, ("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    unplug(&net, "vd");
    recorder.wait_to_say("vd is gone");
    net.b.run("ip tuntap add vd mode tun");
    net.b.run("ip link set vd up");
    recorder.wait_to_say("recording vd at hook");
    wait_for("its hook", || recorder.now()["interfaces"]["vd"]["attached"] == true);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    assert_eq!(number(&stats["interfaces"]["vd"], "captured"), 10, "{stats}");
}

/// So many at one time are recorded, and no more; who is left out is told, and comes in when
/// there is a place.
#[test]
fn so_many_at_one_time_are_recorded() {
    const MOST: usize = 64;
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let line = "--hook recv --ring-bytes 256KiB --block-bytes 64KiB --snaplen 2048 --no-store";
    let mut recorder = Recorder::start_on(&net, "v*", dir.path(), line);
    for i in 0..=MOST {
        net.b.run(&format!("ip link add vm{i} type veth peer name far{i}"));
        net.b.run(&format!("ip link set vm{i} up"));
    }
    let line = recorder.wait_to_say("is not recorded: ");
    let why = "64 interfaces that came later are recorded, the most at one time";
    assert!(line.contains(why), "{line}");
    let left_out = line.split_whitespace().find(|word| word.starts_with("vm")).expect("a name");
    let recorded = || recorder.now()["interfaces"].as_object().expect("a map").len();
    wait_for("the others", || recorded() == MOST + 1);
    unplug(&net, if left_out == "vm3" { "vm4" } else { "vm3" });
    wait_for("the one that was left out", || {
        recorder.now()["interfaces"][left_out]["attached"] == true
    });
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(stats["interfaces"].as_object().expect("a map").len(), MOST + 2);
}

/// What is pinned is settled at the start, and a lasting recording says so.
#[test]
fn a_lasting_recording_tells_of_those_it_does_not_record() {
    let bench = Bench::new();
    let mut command = bench.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.env("TAPDECK_PERSIST", bench.pins());
    command.args(["record", "-i", "v?", "--hook", "tcx", "--persist", "it", "--dir"]);
    command.arg(bench.dir.path().join("store"));
    let mut program = Talking::start(command.stdout(Stdio::null()));
    program.wait_to_say("recording vb");
    plug(&bench.net, "vc", "vd");
    let line = program.wait_to_say("vd came up and fits -i v?");
    assert!(line.contains("with --persist it is not recorded before"), "{line}");
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert!(
        status.success() && !said.iter().any(|line| line.contains("recording vd")),
        "{said:#?}"
    );
}
