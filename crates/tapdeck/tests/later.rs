//! Interfaces that come up while others are recorded, and fit a pattern of `-i`: they are recorded
//! as those of the start are, every packet of theirs is accounted for, and they leave nothing
//! behind when they go.

mod testbed;

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use tapdeck_capture::interface::Interface;
use tapdeck_packet::pcapng;
use tapdeck_testkit::{Namespace, wait_for};
use testbed::later::{
    Scene, assert_laws, numbers_of, tapdeck, wait_captured, wait_counted, wait_seconds,
};
use testbed::recorder::{Contents, Recorder, assert_accounted, number, segments};

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
    let scene = Scene::new();
    let mut recorder = scene.start("v?", &format!("--hook {hook} {flags}"));
    scene.send(("va", "vb"), 0..10);
    // Stopped, so that some come before it can be recorded.
    recorder.signal(Signal::STOP);
    scene.plug("vc", "vd");
    scene.send(("vc", "vd"), 1000..1007);
    recorder.signal(Signal::CONT);
    let line = recorder.wait_to_say("recording vd at hook");
    assert!(line.contains("(fits -i v?)"), "{line}");
    let line = recorder.wait_to_say("before it was recorded");
    assert!(line.contains("vd: it had come up, and 7 packets went unseen"), "{line}");
    scene.send(("vc", "vd"), 0..40);
    scene.send(("va", "vb"), 10..30);
    wait_captured(&recorder, "vd", 40);
    wait_captured(&recorder, "vb", 30);
    scene.unplug("vd");
    recorder.wait_to_say("vd is gone");
    scene.plug("vc", "vd");
    recorder.wait_to_say("vd is back");
    scene.send(("vc", "vd"), 40..50);
    wait_captured(&recorder, "vd", 50);
    let stats = recorder.stop();
    assert_laws(hook, &stats);
    assert_eq!(number(&stats["interfaces"]["vd"], "unseen"), 7, "{stats}");
    let found = scene.found();
    assert_eq!(found["vd"], (0..50).collect::<Vec<_>>(), "{hook}");
    assert_eq!(found["vb"], (0..30).collect::<Vec<_>>(), "{hook}");
    scene.assert_found(&[("vd", 50), ("vb", 30)]);
    let stat = tapdeck(&["stat"], &scene.store());
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
        let scene = Scene::new();
        let mut recorder = scene.start("v?", &format!("--hook {hook} {flags}"));
        scene.comes(&mut recorder, ("vc", "vd"));
        scene.send(("vc", "vd"), 0..40);
        scene.send(("va", "vb"), 0..30);
        wait_captured(&recorder, "vd", 40);
        wait_captured(&recorder, "vb", 30);
        let stats = recorder.stop();
        assert_accounted(&stats);
        let found = scene.found();
        assert_eq!(found["vd"], (0..40).collect::<Vec<_>>(), "{hook}");
        assert_eq!(found["vb"], (0..30).collect::<Vec<_>>(), "{hook}");
        scene.assert_found(&[("vd", 40), ("vb", 30)]);
    }
}

/// `any`, of a recorder of another user, whose filter is another one by then; and the segments
/// are rotated in between.
#[test]
fn what_is_in_force_is_in_force_for_those_that_come() {
    let scene = Scene::new();
    let flags = ["--hook", "tcx", "--user", "nobody", "--filter", "udp and ether[45] < 20"];
    let mut recorder = scene.start_with("any", &flags);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..40);
    wait_captured(&recorder, "vd", 20);
    scene.tell(&["filter", "udp and ether[45] >= 20"]);
    scene.tell(&["rotate"]);
    scene.send(("vc", "vd"), 0..40);
    wait_captured(&recorder, "vd", 40);
    scene.comes(&mut recorder, ("ve", "vj"));
    scene.send(("ve", "vj"), 0..40);
    wait_captured(&recorder, "vj", 20);
    scene.tell(&["snaplen", "60"]);
    scene.comes(&mut recorder, ("vg", "vh"));
    scene.send(("vg", "vh"), 30..35);
    wait_captured(&recorder, "vh", 5);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    assert_eq!(number(&stats["interfaces"]["vj"], "filtered"), 20, "{stats}");
    assert_eq!(stats["interfaces"]["vj"]["filter"], "udp and ether[45] >= 20");
    scene.assert_found(&[("vd", 40), ("vj", 20), ("vh", 5)]);
    let cut = |file: &PathBuf| {
        let contents = Contents::of(file);
        let of = |id: u32| contents.interfaces[id as usize].name.clone();
        let packets =
            contents.packets.iter().filter(|packet| of(packet.interface) == Some("vh".into()));
        packets.map(|packet| packet.frame.len()).collect::<Vec<_>>()
    };
    assert_eq!(segments(&scene.store()).iter().flat_map(cut).collect::<Vec<_>>(), [60; 5]);
    // Segments tell the filter that each interface had.
    let last = segments(&scene.store()).pop().expect("a segment");
    let interfaces = Contents::of(&last).interfaces;
    let vj = interfaces.iter().find(|i| i.name.as_deref() == Some("vj")).expect("described");
    assert!(vj.filter.as_deref().is_some_and(|f| f.contains(">= 20")), "{vj:?}");
}

/// Rules and a cutoff judge the packets of those that come, and rules are exchanged there, too.
#[test]
fn rules_judge_those_that_come() {
    let scene = Scene::new();
    let rules = scene.dir.path().join("rules");
    fs::write(&rules, "accept src any dst any sport any dport 9 proto udp\n").expect("written");
    let flags = ["--hook", "xdp", "--rules", rules.to_str().expect("UTF-8")];
    let mut recorder = scene.start_with("v?", &flags);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..20);
    wait_captured(&recorder, "vd", 20);
    fs::write(&rules, "accept src any dst any sport any dport 10 proto udp\n").expect("written");
    scene.tell(&["rules", "replace", rules.to_str().expect("UTF-8")]);
    scene.send(("vc", "vd"), 20..40);
    scene.comes(&mut recorder, ("ve", "vj"));
    scene.send(("ve", "vj"), 0..10);
    wait_counted(&recorder, "vd", "filtered", 20);
    wait_counted(&recorder, "vj", "filtered", 10);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    assert_eq!(scene.found()["vd"], (0..20).collect::<Vec<_>>());
    assert_eq!(number(&stats["interfaces"]["vj"], "rules"), 1, "{stats}");
}

/// One file has no segments: who comes later is described where it comes.
#[test]
fn a_file_describes_those_that_come() {
    let scene = Scene::new();
    let file = scene.dir.path().join("one.pcapng");
    let line = format!("--hook xdp --flush 100ms -w {}", file.display());
    let mut recorder = Recorder::start_on(&scene.net, "v?", scene.dir.path(), &line);
    scene.send(("va", "vb"), 0..10);
    wait_captured(&recorder, "vb", 10);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..40);
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
    let scene = Scene::new();
    let mut recorder = scene.start("v*", "--hook xdp --ring-bytes 4MiB");
    let pid = Pid::from_child(&recorder.program.process.0).as_raw_nonzero().get().cast_unsigned();
    let mut holds = Vec::new();
    let all: Vec<u32> = (0..6).collect();
    for i in &all {
        let near = format!("vn{i}");
        scene.comes(&mut recorder, ("vc", &near));
        scene.send(("vc", &near), i * 10..i * 10 + 10);
        wait_captured(&recorder, &near, 10);
        scene.goes_for_good(&mut recorder, &near);
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
    let found = scene.found();
    for i in &all {
        let near = format!("vn{i}");
        assert_eq!(number(&stats["interfaces"][&near], "captured"), 10, "{stats}");
        assert_eq!(found[&near], (i * 10..i * 10 + 10).collect::<Vec<_>>());
        scene.assert_found(&[(&near, 10)]);
    }
}

/// One that gets the name of an interface that is gone is the same as before, and has one hook.
#[test]
fn an_interface_that_gets_the_name_of_another_is_recorded_once() {
    let scene = Scene::new();
    let mut recorder = scene.start("v?", "--hook tcx");
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    scene.comes(&mut recorder, ("ve", "vx"));
    scene.unplug("vd");
    recorder.wait_to_say("vd is gone");
    scene.net.b.run("ip link set vx down");
    scene.net.b.run("ip link set vx name vd");
    scene.net.b.run("ip link set vd up");
    wait_seconds(&recorder, 2);
    scene.send(("ve", "vd"), 10..32);
    wait_captured(&recorder, "vd", 32);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    let vd = &stats["interfaces"]["vd"];
    assert_eq!((number(vd, "captured"), number(vd, "unseen")), (32, 0), "{stats}");
    let mut found: Vec<u32> = scene.found().into_values().flatten().collect();
    found.sort_unstable();
    assert_eq!(found, (0..32).collect::<Vec<_>>());
}

/// A place is given away by the recorder and its helper alike: where a newcomer turns out not to be
/// recordable, the interface that was there before is recorded when it is back.
#[test]
fn a_place_that_a_newcomer_could_not_have_stays_that_of_the_one_before() {
    let scene = Scene::new();
    let mut recorder = scene.start("v?", "--hook tcx");
    for (far, near) in [("vc", "vd"), ("ve", "vj")] {
        scene.comes(&mut recorder, (far, near));
    }
    scene.goes_for_good(&mut recorder, "vd");
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
    scene.plug("vg", "vh");
    recorder.wait_to_say("vh came up and fits -i v?: it is not recorded");
    prlimit(Some(pid), Resource::Nofile, before).expect("the limit is ours");
    scene.unplug("vh");
    scene.plug("vc", "vd");
    recorder.wait_to_say("vd is back");
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    assert_eq!(scene.found()["vd"], (0..10).collect::<Vec<_>>());
}

/// What a device has counted before is no news when it is back, also where its place is another
/// one's by then.
#[test]
fn a_device_that_comes_back_without_its_place_goes_on_counting() {
    let scene = Scene::new();
    let mut recorder = scene.start("v?", "--hook xdp");
    for (far, near) in [("vc", "vd"), ("ve", "vj")] {
        scene.comes(&mut recorder, (far, near));
    }
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    scene.net.b.run(&format!("ip link set vd netns {}", scene.net.a.name()));
    recorder.wait_to_say("vd is gone");
    wait_seconds(&recorder, 4);
    scene.comes(&mut recorder, ("vg", "vh"));
    scene.net.a.run(&format!("ip link set vd netns {}", scene.net.b.name()));
    // Stopped, so that some come before it can be recorded.
    recorder.signal(Signal::STOP);
    scene.net.b.run("ip link set vd up");
    wait_for("both ends to be up", || {
        let is_up = |net: &Namespace, name: &str| {
            net.inside(|| Interface::find(name).is_ok_and(|i| i.running))
        };
        is_up(&scene.net.a, "vc") && is_up(&scene.net.b, "vd")
    });
    scene.send(("vc", "vd"), 1000..1007);
    recorder.signal(Signal::CONT);
    recorder.wait_to_say("recording vd at hook");
    scene.send(("vc", "vd"), 10..20);
    wait_captured(&recorder, "vd", 20);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    assert_eq!(number(&stats["interfaces"]["vd"], "unseen"), 7, "{stats}");
    assert_eq!(scene.found()["vd"], (0..20).collect::<Vec<_>>());
}

/// A name is no one's for good: what comes under it may have frames of another form.
#[test]
fn a_name_that_comes_back_with_another_link_type_is_recorded() {
    let scene = Scene::new();
    let mut recorder = scene.start("v?", "--hook tcx");
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    scene.unplug("vd");
    recorder.wait_to_say("vd is gone");
    scene.net.b.run("ip tuntap add vd mode tun");
    scene.net.b.run("ip link set vd up");
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
    let scene = Scene::new();
    let line = "--hook recv --ring-bytes 256KiB --block-bytes 64KiB --snaplen 2048 --no-store";
    let mut recorder = Recorder::start_on(&scene.net, "v*", scene.dir.path(), line);
    for i in 0..=MOST {
        scene.net.b.run(&format!("ip link add vm{i} type veth peer name far{i}"));
        scene.net.b.run(&format!("ip link set vm{i} up"));
    }
    let line = recorder.wait_to_say("is not recorded: ");
    let why = "64 interfaces that came later are recorded, the most at one time";
    assert!(line.contains(why), "{line}");
    let left_out = line.split_whitespace().find(|word| word.starts_with("vm")).expect("a name");
    let recorded = || recorder.now()["interfaces"].as_object().expect("a map").len();
    wait_for("the others", || recorded() == MOST + 1);
    scene.unplug(if left_out == "vm3" { "vm4" } else { "vm3" });
    wait_for("the one that was left out", || {
        recorder.now()["interfaces"][left_out]["attached"] == true
    });
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(stats["interfaces"].as_object().expect("a map").len(), MOST + 2);
}

/// A program of netfilter looks at one interface, so those that come have programs of their own.
#[test]
fn an_interface_that_comes_later_is_recorded_at_netfilter() {
    let scene = Scene::new();
    // It sees what IP would take.
    scene.net.b.run("ip addr add 10.213.0.2/24 dev vb");
    let mut recorder = scene.start("v?", "--hook netfilter");
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.net.b.run("ip addr add 10.213.1.2/24 dev vd");
    scene.send(("vc", "vd"), 0..40);
    scene.send(("va", "vb"), 0..30);
    wait_captured(&recorder, "vd", 40);
    wait_captured(&recorder, "vb", 30);
    let stats = recorder.stop();
    assert_accounted(&stats);
    let found = scene.found();
    assert_eq!(found["vd"], (0..40).collect::<Vec<_>>());
    assert_eq!(found["vb"], (0..30).collect::<Vec<_>>());
}

/// Flows of those that come are cut off, as long as it is told so by then.
#[test]
fn flows_of_those_that_come_are_cut_off() {
    let scene = Scene::new();
    let config = scene.dir.path().join("record.toml");
    let cutoff = |bytes: u32| {
        fs::write(&config, format!("cutoff = {bytes}\n")).expect("written");
    };
    cutoff(1000);
    let flags = ["--hook", "xdp", "--config", config.to_str().expect("UTF-8")];
    let mut recorder = scene.start_with("v?", &flags);
    scene.comes(&mut recorder, ("vc", "vd"));
    // Frames of 100 bytes, all of one flow.
    scene.send(("vc", "vd"), 0..40);
    wait_counted(&recorder, "vd", "seen", 40);
    cutoff(2000);
    scene.tell(&["reload"]);
    scene.comes(&mut recorder, ("ve", "vj"));
    scene.send(("ve", "vj"), 0..40);
    wait_counted(&recorder, "vj", "seen", 40);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    let of = |name: &str, key| number(&stats["interfaces"][name], key);
    assert!(of("vd", "cutoff") > 0 && of("vd", "cutoff") > of("vj", "cutoff"), "{stats}");
    assert!(of("vj", "cutoff") > 0, "{stats}");
    let found = scene.found();
    assert_eq!(found["vd"], (0..of("vd", "captured") as u32).collect::<Vec<_>>());
    assert_eq!(found["vj"], (0..of("vj", "captured") as u32).collect::<Vec<_>>());
}

/// A ring of one that comes is nearly full, and its payload goes first.
#[test]
fn payload_of_those_that_come_is_shed() {
    let scene = Scene::new();
    let line = "--hook xdp --on-overload shed --shed-to 64 --ring-bytes 256KiB --block-bytes 64KiB \
                --snaplen 2048";
    let mut recorder = scene.start("v?", line);
    scene.comes(&mut recorder, ("vc", "vd"));
    // Stopped, so that nobody empties the ring.
    recorder.signal(Signal::STOP);
    scene.send(("vc", "vd"), 0..1600);
    recorder.signal(Signal::CONT);
    wait_counted(&recorder, "vd", "seen", 1600);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    let vd = &stats["interfaces"]["vd"];
    assert!(number(vd, "shed_packets") > 0, "{stats}");
    // Of four blocks the last is for headers.
    let shed_of_each = 100 - 42;
    assert_eq!(number(vd, "shed_bytes"), shed_of_each * number(vd, "shed_packets"), "{stats}");
    let shed = |file: &PathBuf| Contents::of(file).packets.iter().filter(|p| p.shed > 0).count();
    let shed: usize = segments(&scene.store()).iter().map(shed).sum();
    assert_eq!(shed as u64, number(vd, "shed_packets"));
}

/// What a configuration says that is read again is in force for those that come after it.
#[test]
fn a_configuration_that_is_read_again_is_that_of_those_that_come() {
    let scene = Scene::new();
    let config = scene.dir.path().join("record.toml");
    let filter = |filter: &str| {
        fs::write(&config, format!("filter = \"{filter}\"\n")).expect("written");
    };
    filter("udp and ether[45] < 20");
    let flags = ["--hook", "tcx", "--config", config.to_str().expect("UTF-8")];
    let mut recorder = scene.start_with("v?", &flags);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..40);
    wait_counted(&recorder, "vd", "filtered", 20);
    filter("udp and ether[45] >= 30");
    recorder.signal(Signal::HUP);
    wait_for("the other filter", || {
        recorder.now()["interfaces"]["vd"]["filter"] == "udp and ether[45] >= 30"
    });
    scene.comes(&mut recorder, ("ve", "vj"));
    scene.send(("ve", "vj"), 0..40);
    wait_counted(&recorder, "vj", "filtered", 30);
    filter("udp and ether[45] >= 35");
    scene.tell(&["reload"]);
    scene.comes(&mut recorder, ("vg", "vh"));
    scene.send(("vg", "vh"), 0..40);
    wait_counted(&recorder, "vh", "filtered", 35);
    let stats = recorder.stop();
    assert_laws("tcx", &stats);
    let found = scene.found();
    assert_eq!(found["vd"], (0..20).collect::<Vec<_>>());
    assert_eq!(found["vj"], (30..40).collect::<Vec<_>>());
    assert_eq!(found["vh"], (35..40).collect::<Vec<_>>());
}
