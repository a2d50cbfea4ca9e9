//! A recording that outlives its recorder (`record --persist`): recorders are killed at any moment
//! under load, and each packet is stored once, or counted.

mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::process::last_json;
use tapdeck_testkit::{Running, Sender, SplitMix64, Talking, wait_for};
use testbed::bench::{Bench, kills};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number};

/// How often recorders are killed in each test, unless TAPDECK_KILLS says so.
const KILLS: u64 = 5;

impl Bench {
    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A recorder of the lasting recording `tape`, with more flags.
    fn recorder(&self, flags: &str) -> Command {
        let mut command = self.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", self.pins());
        command.args(["record", "-i", "vb", "--persist", "tape", "--flush", "100ms"]);
        command.args(flags.split_whitespace()).arg("--dir").arg(self.store());
        command.stdout(Stdio::null());
        command
    }

    fn start(&self, flags: &str) -> Recorder {
        Recorder::of(self.recorder(flags), self.dir.path())
    }

    fn send(&self, count: u32) {
        let to = self.net.b.inside(|| Interface::find("vb").expect("made above")).mac;
        let to = to.expect("a MAC");
        self.net.a.inside(|| Sender::on("va").send_all((0..count).map(|i| frame(to, 100, i))));
    }
}

fn tapdeck(words: &[&str], store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg(words[0]).arg("--dir").arg(store).args(&words[1..]);
    command.output().expect("it runs")
}

/// Kills recorders at random moments while packets of these sizes come.
fn no_packet_is_lost_or_stored_twice(hook: &str, size: &str, rate: &str) {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let bench = Bench::new();
    let flags = format!(
        "--hook {hook} --snaplen 2000 --block-bytes 64KiB --ring-bytes 64MiB --segment-size 8MiB --segment-time 300ms"
    );
    let first = bench.start(&flags);
    let sent = bench.dir.path().join("sent.json");
    let mut sender = bench.net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "va", "--backend", "txring", "--rate", rate, "--flows", "40"]);
    sender.args(["--size", size, "--duration", "600s", "--json"]).arg(&sent);
    let sender = sender.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let sender = Running(sender);
    first.wait_for_captured(1000);
    first.kill();
    for kill in 0..kills(KILLS) {
        if kill % 2 == 0 {
            let recorder = bench.start(&flags);
            // The moment is the point here, so nothing is waited for.
            std::thread::sleep(Duration::from_millis(random.below(500)));
            recorder.kill();
        } else {
            // Also while it takes over.
            let mut recorder = Talking::start(&mut bench.recorder(&flags));
            std::thread::sleep(Duration::from_millis(random.below(800)));
            recorder.process.signal(Signal::KILL);
            recorder.end();
        }
    }
    let last = bench.start(&flags);
    assert!(sender.interrupt().success());
    let made: Value =
        serde_json::from_slice(&fs::read(&sent).expect("it was written")).expect("JSON");
    let made = number(&made, "sent");
    let all = |stats: &Value| {
        let n = |key| stats[key].as_u64().unwrap_or(0);
        n("captured") + n("dropped_ring") + n("dropped_other")
    };
    wait_for("all packets to be written", || all(&last.now()) >= made);
    let stats = last.stop();
    assert_accounted(&stats);
    let n = |key| number(&stats, key);
    assert!(n("takeovers") > kills(KILLS) / 2, "{stats}");
    if hook == "xdp" {
        assert_eq!(n("nic_received"), n("seen") + n("nic_dropped") + n("unseen"), "{stats}");
    }
    assert_eq!(n("unseen"), 0, "{stats}");

    let mut check = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    check.args(["check-traffic", "--json", "--sent"]).arg(&sent).arg(bench.store());
    let check = check.output().expect("it runs");
    let report: Value = serde_json::from_slice(&check.stdout).unwrap_or_else(|e| {
        panic!("seed {seed}: {e}: {}", String::from_utf8_lossy(&check.stderr));
    });
    let r = |key| number(&report, key);
    let dropped = n("dropped_ring") + n("dropped_other");
    let counts = [r("repeated"), r("damaged"), r("lost"), r("foreign")];
    assert_eq!(counts, [0, 0, dropped, 0], "seed {seed}: {stats}");
    assert_eq!(r("received"), n("captured"), "seed {seed}");
    let verified = tapdeck(&["verify"], &bench.store());
    assert!(verified.status.success(), "seed {seed}: {verified:?}");
    println!("{} takeovers, {made} packets, {dropped} dropped", n("takeovers"));
}

#[test]
fn recorders_are_killed_at_tcx_under_short_packets() {
    no_packet_is_lost_or_stored_twice("tcx", "60", "20kpps");
}

#[test]
fn recorders_are_killed_at_tcx_under_mixed_packets() {
    no_packet_is_lost_or_stored_twice("tcx", "imix", "8kpps");
}

#[test]
fn recorders_are_killed_at_xdp_under_short_packets() {
    no_packet_is_lost_or_stored_twice("xdp", "60", "20kpps");
}

#[test]
fn recorders_are_killed_at_xdp_under_mixed_packets() {
    no_packet_is_lost_or_stored_twice("xdp", "imix", "8kpps");
}

/// Stops, restarts with other flags, and a look at what is there meanwhile.
fn a_restart_loses_nothing(hook: &str) {
    let bench = Bench::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        bench.net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    let flags = format!("--hook {hook}");
    let recorder = bench.start(&flags);
    bench.send(100);
    recorder.wait_for_captured(100);
    recorder.signal(Signal::TERM);
    let stats = recorder.finish();
    assert_eq!((number(&stats, "captured"), number(&stats, "takeovers")), (100, 0));
    assert_eq!(Contents::of_store(&bench.store()).packets.len(), 100);

    bench.send(50);
    wait_for("packets to wait", || bench.listed()["waiting_packets"] == 50);
    let listed = bench.listed();
    assert_eq!((&listed["name"], &listed["owned"]), (&"tape".into(), &false.into()), "{listed}");
    assert_eq!(listed["interfaces"][0]["hook"], hook, "{listed}");
    let text = String::from_utf8(bench.ctl(&["list"]).stdout).expect("UTF-8");
    assert!(text.contains(&format!("tape: vb at {hook}; no recorder")), "{text}");

    // Programs of netfilter stay as they are; the others now keep less of each packet.
    let recorder = bench.start(&format!("{flags} --snaplen 60 --segment-time 1h"));
    assert_eq!(bench.listed()["owned"], true);
    bench.send(25);
    recorder.wait_for_captured(175);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!((number(&stats, "captured"), number(&stats, "takeovers")), (175, 1), "{stats}");
    assert_eq!(number(&stats, "unseen"), 0, "{stats}");
    let packets = Contents::of_store(&bench.store()).packets;
    assert_eq!(packets.len(), 175);
    assert_eq!(packets.iter().filter(|packet| packet.frame.len() == 60).count(), 25);

    let dropped = bench.ctl(&["drop", "tape"]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert!(bench.ctl(&["list"]).stdout.is_empty());
    // Nobody has the hook any more.
    let flags = format!("--hook {hook} --no-store");
    Recorder::start(&bench.net, bench.dir.path(), &flags).stop();
    assert!(!bench.pins().join("tape").exists());
    assert_eq!(bench.ctl(&["drop", "tape"]).status.code(), Some(2), "there is none");
}

#[test]
fn a_restart_loses_nothing_at_xdp() {
    a_restart_loses_nothing("xdp");
}

#[test]
fn a_restart_loses_nothing_at_generic_xdp() {
    a_restart_loses_nothing("xdp-generic");
}

#[test]
fn a_restart_loses_nothing_at_tcx() {
    a_restart_loses_nothing("tcx");
}

#[test]
fn a_restart_loses_nothing_at_netfilter() {
    a_restart_loses_nothing("netfilter");
}

/// The programs are exchanged: the next recorder may judge by another filter.
#[test]
fn the_next_recorder_may_have_another_filter() {
    let bench = Bench::new();
    let recorder = bench.start("--hook tcx");
    bench.send(20);
    recorder.wait_for_captured(20);
    recorder.kill();
    let mut command = bench.recorder("--hook tcx");
    command.args(["--filter", "less 1"]);
    let recorder = Recorder::of(command, bench.dir.path());
    bench.send(30);
    wait_for("packets to be refused", || recorder.now()["filtered"] == 30);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!((number(&stats, "captured"), number(&stats, "seen")), (20, 50), "{stats}");
}

#[test]
fn packets_that_pass_when_nobody_comes_are_counted_by_the_next() {
    let bench = Bench::new();
    let flags = "--hook xdp --deliver consume --abandon 3s";
    let recorder = bench.start(flags);
    bench.send(40);
    recorder.wait_for_captured(40);
    recorder.kill();
    let waiting = || number(&bench.listed(), "waiting_packets");
    // As long as they come into the rings, somebody may come for them.
    wait_for("the programs to give up", || {
        let before = waiting();
        bench.send(1);
        waiting() == before
    });
    bench.send(60);
    let waiting = waiting();
    let recorder = bench.start(flags);
    bench.send(10);
    recorder.wait_for_captured(40 + waiting + 10);
    let stats = recorder.stop();
    assert_accounted(&stats);
    let n = |key| number(&stats, key);
    assert_eq!(n("captured"), 40 + waiting + 10, "{stats}");
    assert!(n("unseen") >= 60, "{stats}");
    assert_eq!(n("nic_received"), n("seen") + n("nic_dropped") + n("unseen"), "{stats}");
}

/// Fails with these words, and leaves what is there.
fn refuses(mut command: Command, code: i32, words: &str) {
    let out = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_stays() {
    let bench = Bench::new();
    let recorder = bench.start("--hook tcx");
    bench.send(20);
    recorder.wait_for_captured(20);
    refuses(bench.recorder("--hook tcx"), 1, "is in use by a recorder or a daemon that runs");
    assert_eq!(bench.ctl(&["drop", "tape"]).status.code(), Some(1), "it is in use");
    recorder.kill();
    refuses(bench.recorder("--hook xdp"), 2, "tape records vb at tcx, and not vb at xdp");
    refuses(bench.recorder("--hook tpacket"), 2, "hook tpacket on vb ends with its process");
    refuses(bench.recorder("--hook tcx --count 5"), 2, "--count");
    let other = bench.dir.path().join("other");
    let mut elsewhere = bench.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    elsewhere.env("TAPDECK_PERSIST", bench.pins());
    elsewhere
        .args(["record", "-i", "vb", "--hook", "tcx", "--persist", "tape", "--dir"])
        .arg(other);
    refuses(elsewhere, 2, "died while it wrote to");
    let recorder = bench.start("--hook tcx");
    bench.send(20);
    recorder.wait_for_captured(40);
    let stats = recorder.stop();
    assert_eq!(number(&stats, "captured"), 40, "{stats}");
    assert_eq!(last_json(&bench.dir.path().join("stats.json"))["final"], true);
}

/// What another version may have left is not read, but what waits in it is counted.
#[test]
fn another_layout_is_refused_and_what_waits_in_it_is_counted() {
    let bench = Bench::new();
    let recorder = bench.start("--hook xdp");
    bench.send(20);
    recorder.wait_for_captured(20);
    recorder.kill();
    bench.send(30);
    wait_for("packets to wait", || bench.listed()["waiting_packets"] == 30);

    let program = bench.dir.path().join("relayout");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/relayout.c");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    assert!(compile.status().expect("there is a compiler: make setup").success());
    let as_layout = |number: &str| {
        let state = bench.pins().join("tape/state");
        let done = Command::new(&program).arg(state).arg(number).status();
        assert!(done.expect("it was compiled").success());
    };
    as_layout("77");
    let words = "has another layout (77); 30 packets waiting in its rings: go on with that version";
    refuses(bench.recorder("--hook xdp"), 1, words);
    let listed = bench.listed();
    assert!(listed["error"].as_str().is_some_and(|e| e.contains("30 packets wait")), "{listed}");

    // It was left as it was, so the version that it is of goes on with it.
    as_layout("4");
    let recorder = bench.start("--hook xdp");
    recorder.wait_for_captured(50);
    recorder.stop();
    bench.send(10);
    wait_for("packets to wait", || bench.listed()["waiting_packets"] == 10);
    as_layout("77");
    let dropped = String::from_utf8(bench.ctl(&["drop", "tape"]).stdout).expect("UTF-8");
    assert!(dropped.contains("and with it 10 packets that waited in its rings"), "{dropped}");
    let flags = "--hook xdp --no-store";
    Recorder::start(&bench.net, bench.dir.path(), flags).stop();
}

#[test]
fn the_flag_of_promiscuous_mode_goes_with_what_is_left() {
    let bench = Bench::new();
    let flags = || {
        let words = ["-o", "link", "show", "vb"];
        let out = bench.net.b.command("ip").args(words).output().expect("ip(8) is installed");
        String::from_utf8(out.stdout).expect("text")
    };
    let is_promiscuous = || flags().contains("PROMISC");
    let set = |word| {
        let words = ["link", "set", "vb", "promisc", word];
        assert!(bench.net.b.command("ip").args(words).status().expect("ip(8)").success());
    };
    let killed = |more: &str| bench.start(&format!("--hook tcx {more}")).kill();

    killed("");
    assert!(is_promiscuous(), "{}", flags());
    killed("");
    assert!(is_promiscuous(), "{}", flags());
    killed("--no-promiscuous");
    assert!(!is_promiscuous(), "the next owner does not want it: {}", flags());
    killed("");
    assert!(bench.ctl(&["drop", "tape"]).status.success());
    assert!(!is_promiscuous(), "{}", flags());

    // One that was there before is another's.
    set("on");
    killed("");
    assert!(bench.ctl(&["drop", "tape"]).status.success());
    assert!(is_promiscuous(), "{}", flags());
    set("off");

    // Whoever is killed as soon as it is written down has left it as well.
    let left = bench.pins().join("tape");
    let words = ["-L", "-c", "%i", "/proc/self/ns/net"];
    let number = bench.net.b.command("stat").args(words).output().expect("stat(1)").stdout;
    let number: u64 = String::from_utf8_lossy(&number).trim().parse().expect("a number");
    let note = left.join(format!("0-promiscuous-{number}-vb"));
    fs::create_dir_all(&note).expect("a BPF file system");
    set("on");
    assert!(bench.ctl(&["drop", "tape"]).status.success());
    assert!(!is_promiscuous(), "{}", flags());
    assert!(!left.exists());

    // Another network namespace's interface of that name is another interface.
    fs::create_dir_all(left.join(format!("0-promiscuous-{}-vb", number + 1))).expect("as above");
    set("on");
    let dropped = bench.ctl(&["drop", "tape"]);
    let said = String::from_utf8_lossy(&dropped.stdout);
    assert!(said.contains("vb of another network namespace stays promiscuous"), "{said}");
    assert!(is_promiscuous(), "{}", flags());
    assert!(!left.exists());
    set("off");
}

/// Where nobody says the hook, the interface decides; but the program that was left there must not
/// have the next recorder choose otherwise.
#[test]
fn a_hook_that_nobody_chose_is_the_one_that_was_left() {
    let bench = Bench::new();
    let first = bench.start("");
    bench.send(10);
    first.wait_for_captured(10);
    assert_eq!(first.now()["hook"], "xdp", "the interface has no address");
    first.kill();
    let next = bench.start("");
    bench.send(10);
    next.wait_for_captured(20);
    let stats = next.stop();
    assert_eq!((&stats["hook"], number(&stats, "unseen")), (&"xdp".into(), 0));
}
