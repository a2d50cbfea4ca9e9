//! Interfaces that come up while others are recorded by a recorder that outlives its process
//! (`record --persist`): they outlive it, too. Recorders are killed at any moment, also while one
//! comes, and each packet is stored once, or counted.

mod testbed;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::{Running, SplitMix64, Talking, wait_for};
use testbed::bench::kills;
use testbed::later::{Scene, assert_laws, tapdeck, wait_captured, wait_counted, wait_seconds};
use testbed::recorder::{Recorder, assert_accounted, number};

/// How often recorders are killed in each test, unless TAPDECK_KILLS says so.
const KILLS: u64 = 5;

/// A recorder of the lasting recording `tape`.
fn start(scene: &Scene, hook: &str) -> Recorder {
    start_with(scene, hook, "")
}

fn start_with(scene: &Scene, hook: &str, flags: &str) -> Recorder {
    scene.start("v*", &line(hook, flags))
}

fn line(hook: &str, flags: &str) -> String {
    format!(
        "--hook {hook} --persist tape --ring-bytes 8MiB --block-bytes 128KiB --snaplen 2000 {flags}"
    )
}

/// What has pins under the name: the places of interfaces.
fn pinned(scene: &Scene) -> BTreeSet<String> {
    let entries = fs::read_dir(scene.pins().join("tape")).expect("it lasts").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| Some(name.split_once('-')?.0.to_owned())).collect()
}

/// The interfaces that `ctl persist list` names.
fn listed(scene: &Scene) -> Vec<String> {
    let listed = scene.listed();
    let interfaces = listed["interfaces"].as_array().expect("a list").iter();
    interfaces.map(|interface| interface["name"].as_str().expect("a name").to_owned()).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// Recorders are killed while packets come to an interface that came later, also while they take
/// over.
fn no_packet_of_one_that_came_is_lost_or_stored_twice(hook: &str) {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let scene = Scene::new();
    let flags = "--segment-size 8MiB --segment-time 300ms";
    let mut first = start_with(&scene, hook, flags);
    scene.comes(&mut first, ("vc", "vd"));
    let sent = scene.dir.path().join("sent.json");
    let mut sender = scene.net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "vc", "--backend", "txring", "--rate", "5kpps", "--flows", "40"]);
    sender.args(["--size", "60", "--duration", "600s", "--json"]).arg(&sent);
    let sender = sender.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let sender = Running(sender);
    first.wait_for_captured(1000);
    first.kill();
    for kill in 0..kills(KILLS) {
        // The moment is the point here, so nothing is waited for.
        if kill % 2 == 0 {
            let recorder = start_with(&scene, hook, flags);
            std::thread::sleep(Duration::from_millis(random.below(500)));
            recorder.kill();
        } else {
            let words = line(hook, flags);
            let words: Vec<&str> = words.split_whitespace().collect();
            let mut recorder = Talking::start(&mut scene.command("v*", &words));
            std::thread::sleep(Duration::from_millis(random.below(800)));
            recorder.process.signal(Signal::KILL);
            recorder.end();
        }
    }
    let last = start_with(&scene, hook, flags);
    assert!(sender.interrupt().success());
    let made: Value =
        serde_json::from_slice(&fs::read(&sent).expect("it was written")).expect("JSON");
    let made = number(&made, "sent");
    wait_counted(&last, "vd", "seen", made);
    let dropped = |stats: &Value| {
        number(&stats["interfaces"]["vd"], "dropped_ring")
            + number(&stats["interfaces"]["vd"], "dropped_other")
    };
    wait_for("all packets to be written", || {
        let now = last.now();
        number(&now["interfaces"]["vd"], "captured") + dropped(&now) == made
    });
    let stats = last.stop();
    assert_laws(hook, &stats);
    assert!(number(&stats, "takeovers") > kills(KILLS) / 2, "{stats}");
    assert_eq!(number(&stats["interfaces"]["vd"], "unseen"), 0, "seed {seed}: {stats}");

    let mut check = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    check.args(["check-traffic", "--json", "--sent"]).arg(&sent).arg(scene.store());
    let check = check.output().expect("it runs");
    let report: Value = serde_json::from_slice(&check.stdout).unwrap_or_else(|e| {
        panic!("seed {seed}: {e}: {}", String::from_utf8_lossy(&check.stderr));
    });
    let r = |key| number(&report, key);
    let counts = [r("repeated"), r("damaged"), r("lost"), r("foreign")];
    assert_eq!(counts, [0, 0, dropped(&stats), 0], "seed {seed}: {stats}");
    assert_eq!(r("received") + dropped(&stats), made, "seed {seed}");
    let verified = tapdeck(&["verify"], &scene.store());
    assert!(verified.status.success(), "seed {seed}: {verified:?}");
}

#[test]
fn no_packet_of_one_that_came_is_lost_or_stored_twice_at_xdp() {
    no_packet_of_one_that_came_is_lost_or_stored_twice("xdp");
}

#[test]
fn no_packet_of_one_that_came_is_lost_or_stored_twice_at_tcx() {
    no_packet_of_one_that_came_is_lost_or_stored_twice("tcx");
}

/// One that came is recorded, also while nobody is there, and is one like any other.
fn one_that_came_outlives_its_recorder(hook: &str, flags: &str) {
    let scene = Scene::new();
    let mut recorder = start_with(&scene, hook, flags);
    let said = scene.comes(&mut recorder, ("vc", "vd"));
    assert!(said.contains("(fits -i v*)"), "{said}");
    if hook == "netfilter" {
        // It sees what IP would take.
        scene.net.b.run("ip addr add 10.213.0.2/24 dev vb");
        scene.net.b.run("ip addr add 10.213.1.2/24 dev vd");
    }
    scene.send(("vc", "vd"), 0..50);
    scene.send(("va", "vb"), 0..5);
    wait_captured(&recorder, "vd", 50);
    wait_captured(&recorder, "vb", 5);
    recorder.signal(Signal::TERM);
    assert_accounted(&recorder.finish());
    scene.send(("vc", "vd"), 50..80);
    wait_for("packets to wait", || scene.listed()["waiting_packets"] == 30);
    assert_eq!(listed(&scene), ["vb", "vd"]);
    start_with(&scene, hook, flags).kill();
    scene.send(("vc", "vd"), 80..90);
    // One that comes while nobody is there comes with the next recorder.
    scene.plug("ve", "vj");
    let mut recorder = start_with(&scene, hook, flags);
    recorder.wait_to_say("recording vj at hook");
    scene.send(("vc", "vd"), 90..100);
    wait_captured(&recorder, "vd", 100);
    assert_eq!(listed(&scene), ["vb", "vd", "vj"]);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats, "takeovers"), 2, "{stats}");
    let found = scene.found();
    assert_eq!((&found["vd"], &found["vb"]), (&numbers(0..100), &numbers(0..5)));
    scene.assert_found(&[("vd", 100), ("vb", 5)]);

    scene.send(("vc", "vd"), 100..103);
    wait_for("packets to wait", || scene.listed()["waiting_packets"] == 3);
    let dropped = String::from_utf8(scene.ctl(&["drop", "tape"]).stdout).expect("UTF-8");
    assert!(dropped.contains("and with it 3 packets that waited"), "{dropped}");
    assert!(!scene.pins().join("tape").exists());
    // Nobody has the hooks any more.
    let recorder = start_with(&scene, hook, flags);
    assert_eq!(listed(&scene), ["vb", "vd", "vj"]);
    recorder.stop();
}

#[test]
fn one_that_came_outlives_its_recorder_at_xdp() {
    one_that_came_outlives_its_recorder("xdp", "");
}

#[test]
fn one_that_came_outlives_its_recorder_at_generic_xdp() {
    one_that_came_outlives_its_recorder("xdp-generic", "");
}

#[test]
fn one_that_came_outlives_its_recorder_at_tcx() {
    one_that_came_outlives_its_recorder("tcx", "");
}

#[test]
fn one_that_came_outlives_its_recorder_at_netfilter() {
    one_that_came_outlives_its_recorder("netfilter", "");
}

#[test]
fn one_that_came_outlives_its_recorder_of_another_user() {
    one_that_came_outlives_its_recorder("xdp", "--user nobody");
    one_that_came_outlives_its_recorder("tcx", "--user nobody --cutoff 1MiB");
}

/// What lies in the ring of one that has gone while nobody was there is written, its pins go, and
/// its account stays.
fn one_that_has_gone_meanwhile_is_written(hook: &str) {
    let scene = Scene::new();
    let mut recorder = start(&scene, hook);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.comes(&mut recorder, ("ve", "vj"));
    scene.send(("vc", "vd"), 0..50);
    wait_captured(&recorder, "vd", 50);
    recorder.kill();
    scene.send(("vc", "vd"), 50..90);
    scene.send(("ve", "vj"), 0..10);
    wait_for("packets to wait", || scene.listed()["waiting_packets"] == 50);
    scene.unplug("vd");
    let mut recorder = start(&scene, hook);
    recorder.wait_to_say("vd is gone");
    wait_captured(&recorder, "vd", 90);
    wait_captured(&recorder, "vj", 10);
    wait_for("its pins to go", || pinned(&scene).len() == 2);
    assert_eq!(listed(&scene), ["vb", "vj"]);
    let stats = recorder.now();
    assert_eq!(number(&stats["interfaces"]["vd"], "captured"), 90, "{stats}");
    recorder.kill();
    scene.send(("ve", "vj"), 10..20);
    let mut recorder = start(&scene, hook);
    wait_captured(&recorder, "vj", 20);
    // It comes again, has a place again, and goes on with its account.
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 90..100);
    wait_captured(&recorder, "vd", 100);
    assert_eq!(pinned(&scene).len(), 3);
    recorder.kill();
    scene.send(("vc", "vd"), 100..110);
    let recorder = start(&scene, hook);
    wait_captured(&recorder, "vd", 110);
    let stats = recorder.stop();
    assert_accounted(&stats);
    if hook == "xdp" {
        assert_laws(hook, &stats);
    }
    assert_eq!(number(&stats, "captured"), 130, "{stats}");
    let found = scene.found();
    assert_eq!((&found["vd"], &found["vj"]), (&numbers(0..110), &numbers(0..20)));
    scene.assert_found(&[("vd", 110), ("vj", 20)]);
}

#[test]
fn one_that_has_gone_meanwhile_is_written_at_xdp() {
    one_that_has_gone_meanwhile_is_written("xdp");
}

#[test]
fn one_that_has_gone_meanwhile_is_written_at_tcx() {
    one_that_has_gone_meanwhile_is_written("tcx");
}

/// One that goes gives its place back, pins included; soon again, it has its place still.
fn those_that_go_give_their_places_back(hook: &str) {
    let scene = Scene::new();
    let mut recorder = start(&scene, hook);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    scene.unplug("vd");
    recorder.wait_to_say("vd is gone");
    scene.plug("vc", "vd");
    recorder.wait_to_say("vd is back");
    scene.send(("vc", "vd"), 10..20);
    wait_captured(&recorder, "vd", 20);
    assert_eq!(pinned(&scene).len(), 2);
    for i in 0..3 {
        let near = format!("vn{i}");
        scene.comes(&mut recorder, ("vg", &near));
        scene.send(("vg", &near), 0..10);
        wait_captured(&recorder, &near, 10);
        scene.unplug(&near);
        recorder.wait_to_say(&format!("{near} is gone"));
        // Who comes then has the numbers of its rings.
        wait_for("its pins to go", || pinned(&scene).len() == 2);
    }
    scene.comes(&mut recorder, ("vg", "vn3"));
    scene.send(("vg", "vn3"), 0..10);
    wait_captured(&recorder, "vn3", 10);
    recorder.kill();
    scene.send(("vg", "vn3"), 10..20);
    scene.send(("vc", "vd"), 20..30);
    let recorder = start(&scene, hook);
    wait_captured(&recorder, "vn3", 20);
    wait_captured(&recorder, "vd", 30);
    let stats = recorder.stop();
    assert_laws(hook, &stats);
    let found = scene.found();
    for i in 0..3 {
        let near = format!("vn{i}");
        assert_eq!(number(&stats["interfaces"][&near], "captured"), 10, "{stats}");
        assert_eq!(found[&near], numbers(0..10));
    }
    assert_eq!((&found["vd"], &found["vn3"]), (&numbers(0..30), &numbers(0..20)));
    assert_eq!(pinned(&scene).len(), 3);
}

#[test]
fn those_that_go_give_their_places_back_at_xdp() {
    those_that_go_give_their_places_back("xdp");
}

#[test]
fn those_that_go_give_their_places_back_at_tcx() {
    those_that_go_give_their_places_back("tcx");
}

/// Recorders are killed while interfaces come and go. Whatever step that was at, the next one goes
/// on: each interface has its packets once, and what has no place has no pins.
#[test]
fn recorders_are_killed_while_interfaces_come_and_go() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let scene = Scene::new();
    let rounds = kills(KILLS) as u32 + 1;
    let near = |i: u32| format!("vn{i}");
    let far = |i: u32| format!("f{i}");
    for i in 0..rounds {
        let recorder = start(&scene, "xdp");
        scene.plug(&far(i), &near(i));
        if i >= 2 {
            scene.unplug(&near(i - 2));
        }
        // The moment is the point here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(random.below(1600)));
        scene.send((&far(i), &near(i)), 0..20);
        std::thread::sleep(Duration::from_millis(random.below(100)));
        recorder.kill();
        scene.send((&far(i), &near(i)), 20..40);
    }
    let mut recorder = start(&scene, "xdp");
    wait_seconds(&recorder, 5);
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    let there: BTreeSet<String> =
        [near(rounds - 2), near(rounds - 1), "vb".into(), "vd".into()].into();
    let list: BTreeSet<String> = listed(&scene).into_iter().collect();
    assert_eq!((list, pinned(&scene).len()), (there, 4), "seed {seed}");
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    let found = scene.found();
    for (name, numbers) in &found {
        let once: BTreeSet<u32> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len(), "seed {seed}: {name} has one twice: {numbers:?}");
        let captured = number(&stats["interfaces"][name], "captured");
        assert_eq!(captured as usize, numbers.len(), "seed {seed}: {name}: {stats}");
    }
    let all: usize = found.values().map(Vec::len).sum();
    assert_eq!(number(&stats, "captured") as usize, all, "seed {seed}: {stats}");
}

/// What is pinned of one that was to come when its recorder died goes when the next one comes.
#[test]
fn what_has_no_place_is_removed() {
    let scene = Scene::new();
    let recorder = start(&scene, "tcx");
    scene.send(("va", "vb"), 0..10);
    wait_captured(&recorder, "vb", 10);
    recorder.kill();
    let tape = scene.pins().join("tape");
    for what in ["rings", "data", "link0"] {
        fs::hard_link(tape.join(format!("0-{what}")), tape.join(format!("7-{what}")))
            .expect("a BPF file system");
    }
    assert_eq!(pinned(&scene).len(), 2);
    let recorder = start(&scene, "tcx");
    assert_eq!(pinned(&scene), ["0".to_owned()].into());
    scene.send(("va", "vb"), 10..20);
    wait_captured(&recorder, "vb", 20);
    assert_laws("tcx", &recorder.stop());
}

/// What flows of one that came have had still counts for the next recorder, also where the cutoff
/// was another one at the start.
#[test]
fn flows_of_one_that_came_stay_cut_off() {
    let scene = Scene::new();
    let config = scene.dir.path().join("record.toml");
    fs::write(&config, "").expect("written");
    let words = line("xdp", "");
    let words: Vec<&str> = words.split_whitespace().collect();
    let words = [&words[..], &["--config", config.to_str().expect("UTF-8")]].concat();
    let mut recorder = scene.start_with("v*", &words);
    fs::write(&config, "cutoff = 1000\n").expect("written");
    scene.tell(&["reload"]);
    scene.comes(&mut recorder, ("vc", "vd"));
    // All of one flow.
    scene.send(("vc", "vd"), 0..40);
    wait_counted(&recorder, "vd", "seen", 40);
    wait_counted(&recorder, "vd", "cutoff", 20);
    recorder.kill();
    scene.send(("vc", "vd"), 40..60);
    let recorder = scene.start_with("v*", &words);
    scene.send(("vc", "vd"), 60..80);
    wait_counted(&recorder, "vd", "seen", 80);
    let stats = recorder.stop();
    assert_laws("xdp", &stats);
    let captured = number(&stats["interfaces"]["vd"], "captured");
    assert!(captured < 20, "{stats}");
    assert_eq!(scene.found()["vd"], numbers(0..captured as u32));
}

/// One that is renamed is recorded on, and another one may get its name; the next recorder knows
/// which is which.
#[test]
fn one_that_gets_the_name_of_another_is_another() {
    let scene = Scene::new();
    let mut recorder = start(&scene, "xdp");
    scene.comes(&mut recorder, ("vc", "vd"));
    scene.send(("vc", "vd"), 0..10);
    wait_captured(&recorder, "vd", 10);
    scene.net.b.run("ip link set vd down");
    scene.net.b.run("ip link set vd name vx");
    scene.net.b.run("ip link set vx up");
    wait_for("its new name", || recorder.now()["interfaces"]["vx"]["attached"] == true);
    scene.comes(&mut recorder, ("ve", "vd"));
    scene.send(("ve", "vd"), 10..30);
    wait_captured(&recorder, "vd", 20);
    recorder.kill();
    scene.send(("ve", "vd"), 30..40);
    let mut recorder = start(&scene, "xdp");
    recorder.wait_to_say("vd is gone");
    recorder.wait_to_say("recording vx at hook");
    scene.send(("ve", "vd"), 40..50);
    scene.send(("vc", "vx"), 50..60);
    wait_captured(&recorder, "vd", 50);
    wait_captured(&recorder, "vx", 10);
    wait_for("the pins of the first to go", || pinned(&scene).len() == 3);
    assert_accounted(&recorder.stop());
    let mut found: Vec<u32> = scene.found().into_values().flatten().collect();
    found.sort_unstable();
    assert_eq!(found, numbers(0..60));
}

/// Where all have gone, their packets are written all the same.
#[test]
fn all_may_have_gone_meanwhile() {
    let scene = Scene::new();
    let mut recorder = start(&scene, "tcx");
    scene.comes(&mut recorder, ("vc", "vd"));
    recorder.kill();
    scene.send(("vc", "vd"), 0..20);
    scene.send(("va", "vb"), 0..10);
    wait_for("packets to wait", || scene.listed()["waiting_packets"] == 30);
    scene.unplug("vd");
    scene.unplug("vb");
    let words = line("tcx", "");
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut recorder = Talking::start(&mut scene.command("v*", &words));
    recorder.wait_to_say("vb is gone");
    recorder.wait_to_say("vd is gone");
    wait_for("one to leave", || pinned(&scene).len() == 1);
    recorder.process.signal(Signal::INT);
    let (status, said) = recorder.end();
    assert!(status.success(), "{said:#?}");
    let found = scene.found();
    assert_eq!((&found["vd"], &found["vb"]), (&numbers(0..20), &numbers(0..10)));
}

/// A name that was asked for is waited for, as without.
#[test]
fn an_interface_that_has_a_name_keeps_its_place() {
    let scene = Scene::new();
    scene.plug("vc", "vd");
    let mut recorder = scene.start("vd,v*", &line("tcx", ""));
    recorder.wait_to_say("recording vb");
    scene.goes_for_good(&mut recorder, "vd");
    assert_eq!(listed(&scene), ["vd", "vb"]);
    scene.plug("vc", "vd");
    recorder.wait_to_say("vd is back");
    assert_laws("tcx", &recorder.stop());
}
