//! A hook that somebody takes away, or an interface that is made anew, is noticed: the hook is
//! attached again, and what was missed is counted and told, by the counters, in the recording, and
//! by whoever is asked about that time.

mod testbed;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::Tag;
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_testkit::cable::End;
use tapdeck_testkit::process::last_json;
use tapdeck_testkit::{Cable, Net, Running, Sender, Talking, kernel, wait_for};
use testbed::daemon::{Daemon, Member};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number};

/// Frames before, while and after the hook was away.
const BEFORE: u32 = 100;
const MISSED: u32 = 40;
const AFTER: u32 = 60;
const SECOND: i64 = 1_000_000_000;

fn send(net: &Net, count: u32) {
    send_to(net, "vb", count);
}

/// Sends frames from `va` to its other end, which has a name.
fn send_to(net: &Net, near: &str, count: u32) {
    let to = net.b.inside(|| Interface::find(near).expect("it is there")).mac.expect("a MAC");
    net.a.inside(|| Sender::on("va").send_all((0..count).map(|i| frame(to, 100, i))));
}

fn wait_seen(recorder: &Recorder, packets: u32) {
    wait_for("the packets to be seen", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= u64::from(packets))
    });
}

/// Starts a recorder, which has seen packets when this returns.
fn begin(net: &Net, dir: &Path, flags: &str) -> Recorder {
    let recorder = Recorder::start(net, dir, flags);
    send(net, BEFORE);
    wait_seen(&recorder, BEFORE);
    recorder
}

/// The numbers of the links to interfaces that a process has, or its helper. The one that tells of
/// polls is at a tracepoint.
fn links_of(process: &Running) -> Vec<String> {
    let pid = Pid::from_child(&process.0).as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the process is there");
    let pids = children.split_whitespace().map(str::to_owned).chain([pid.to_string()]);
    let files = |pid| fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process is there");
    let files = pids.flat_map(files).flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let number = |text: String| {
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_of_interface = field("link_type:")? != "raw_tracepoint";
        is_of_interface.then(|| field("link_id:").map(str::to_owned))?
    };
    texts.filter_map(number).collect()
}

/// Detaches all links of a process, as `bpftool link detach` does.
fn detach(dir: &Path, process: &Running) {
    let program = dir.join("detach");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/detach.c");
    let compile =
        Command::new("cc").args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).status();
    assert!(compile.expect("there is a compiler: make setup").success());
    let links = links_of(process);
    assert!(!links.is_empty(), "there is something to detach");
    let done = Command::new(program).args(links).status();
    assert!(done.expect("it was compiled").success());
}

fn tapdeck(words: &[&str], store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg(words[0]).arg("--dir").arg(store).args(&words[1..]);
    command.output().expect("the program was built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The law of what the device received, and at some hooks sent: all of it was seen, dropped by the
/// device, or unseen.
fn assert_law(hook: &str, counters: &Value) {
    let n = |key| number(counters, key);
    let moved = n("nic_received") + if hook == "tcx" { n("nic_sent") } else { 0 };
    assert_eq!(moved, n("seen") + n("nic_dropped") + n("unseen"), "{counters}");
}

/// The store tells what went unseen, and is sound.
fn assert_told(store: &Path, missed: u64, why: &str) {
    let contents = Contents::of_store(store);
    let told: Vec<_> = contents.statistics.iter().filter(|s| s.comment.is_some()).collect();
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0].interface_dropped.unwrap_or(0), missed);
    assert!(told[0].comment.as_deref().is_some_and(|c| c.contains(why)), "{told:#?}");
    let all: u64 = contents.statistics.iter().filter_map(|s| s.interface_dropped).sum();
    assert_eq!(all, missed, "the blocks add up");

    let verified = tapdeck(&["verify"], store);
    assert!(verified.status.success(), "{}", said(&verified));
    let stat = tapdeck(&["stat", "--json"], store);
    let stat: Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    assert_eq!(number(&stat, "unseen"), missed, "{stat}");
    assert_eq!(number(&stat, "lost"), 0, "{stat}");
    let page = tapdeck(&["stat"], store);
    assert!(String::from_utf8_lossy(&page.stdout).contains(why));

    // Over that time, and no other.
    let [first, last] = ["first", "last"]
        .map(|end| stat["unseen_times"][0][end].as_str().expect("a time").to_owned());
    let all = tapdeck(&["query", "--count"], store);
    assert!(said(&all).contains(&format!("vb: {missed} packets went unseen")), "{}", said(&all));
    let within = tapdeck(&["query", "--count", "--after", &first, "--before", &last], store);
    assert!(within.status.success() && said(&within).contains("went unseen"), "{}", said(&within));
    for (flag, time) in [("--before", &first), ("--after", &last)] {
        // The span of the answer ends before the hook went, or begins after it came back.
        let time = shifted(time, if flag == "--before" { -1 } else { 1 });
        let other = tapdeck(&["query", "--count", flag, &time], store);
        assert!(!said(&other).contains("unseen"), "{flag} {time}: {}", said(&other));
    }
    assert_answer_tells(store, missed, why);
    let recovered = tapdeck(&["recover", "--all"], store);
    assert!(recovered.status.success(), "{}", said(&recovered));
    let again = Contents::of_store(store);
    assert_eq!(again.packets, contents.packets);
}

/// An answer in a file tells what went unseen between the packets of before and after, and so does
/// an answer of that file, whether it has an index or not.
fn assert_answer_tells(recording: &Path, missed: u64, why: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut file = recording.to_owned();
    for name in ["one.pcapng", "two.pcapng"] {
        let written = dir.path().join(name);
        let to = written.to_str().expect("UTF-8");
        let asked = tapdeck(&["query", "-w", to], &file);
        assert!(asked.status.success(), "{}", said(&asked));
        assert_eq!(said(&asked).matches("went unseen").count(), 1, "{}", said(&asked));
        let contents = Contents::of(&written);
        assert_eq!(contents.statistics.len(), 1, "{:#?}", contents.statistics);
        let told = &contents.statistics[0];
        assert_eq!(contents.interfaces[told.interface as usize].name.as_deref(), Some("vb"));
        let [begin, end] = [told.start, told.end].map(|time| time.expect("a time") as i64);
        let before = contents.packets.iter().filter(|p| p.time_ns < end).count();
        assert_eq!(packets_before_statistics(&written), before);

        let [first, last] = [begin, end].map(|ns| format!("{}.{:09}", ns / SECOND, ns % SECOND));
        let [earlier, later] =
            [begin, end + 1].map(|ns| format!("{}.{:09}", ns / SECOND, ns % SECOND));
        for index in [&[][..], &["--index"]] {
            for (args, is_told) in [
                (&["--after", &first, "--before", &last][..], begin < end),
                (&["--before", &earlier], false),
                (&["--after", &later], false),
                // What has no key in the file is not looked for in it.
                (&["host", "203.0.113.7"], true),
            ] {
                let asked = tapdeck(&[&["query", "--count"], args, index].concat(), &written);
                let said = said(&asked);
                assert!(asked.status.success(), "{args:?} {index:?}: {said}");
                let words = format!("vb: {missed} packets went unseen from ");
                assert_eq!(said.contains(&words), is_told, "{args:?} {index:?}: {said}");
                assert_eq!(said.contains(why), is_told, "{args:?} {index:?}: {said}");
            }
        }
        file = written;
    }
}

/// How many packets stand before the statistics in a file.
fn packets_before_statistics(file: &Path) -> usize {
    let data = fs::read(file).expect("the file is there");
    let records = Reader::new(&data).map(|record| record.expect("a whole block"));
    let before = records.take_while(|record| !matches!(record, Record::Statistics(_)));
    before.filter(|record| matches!(record, Record::Packet(_))).count()
}

/// A time some nanoseconds later.
fn shifted(time: &str, by_ns: i64) -> String {
    let (seconds, rest) = time.split_once('.').expect("nanoseconds");
    let ns: i64 = rest.trim_end_matches('Z').parse().expect("nanoseconds");
    let ns = (ns + by_ns).clamp(0, 999_999_999);
    format!("{seconds}.{ns:09}Z")
}

fn hook_is_attached_again(hook: &str, flags: &str) {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook {hook} {flags} --flush 100ms --dir {}", store.display());
    let mut recorder = begin(&net, dir.path(), &line);
    assert_eq!(recorder.now()["interfaces"]["vb"]["attached"], true);
    // Stopped, so that all of the frames come while the hook is away.
    recorder.signal(Signal::STOP);
    detach(dir.path(), &recorder.program.process);
    send(&net, MISSED);
    recorder.signal(Signal::CONT);
    let line = recorder.wait_to_say("attached again");
    assert!(line.contains("vb: somebody had detached the hook"), "{line}");
    assert!(line.contains(&format!("{MISSED} packets went unseen")), "{line}");
    send(&net, AFTER);
    wait_seen(&recorder, BEFORE + AFTER);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_law(hook, &stats);
    assert_law(hook, &stats["interfaces"]["vb"]);
    assert_eq!(number(&stats, "seen"), u64::from(BEFORE + AFTER), "{hook}");
    assert_eq!(number(&stats, "unseen"), u64::from(MISSED), "{hook}");
    assert_eq!(Contents::of_store(&store).packets.len() as u64, number(&stats, "captured"));
    assert_told(&store, u64::from(MISSED), "the hook was detached");
}

#[test]
fn a_detached_xdp_hook_is_attached_again() {
    hook_is_attached_again("xdp", "");
}

#[test]
fn a_detached_generic_xdp_hook_is_attached_again() {
    hook_is_attached_again("xdp-generic", "");
}

#[test]
fn a_detached_tcx_hook_is_attached_again() {
    hook_is_attached_again("tcx", "");
}

#[test]
fn a_detached_netfilter_hook_is_attached_again() {
    hook_is_attached_again("netfilter", "");
}

#[test]
fn a_detached_afxdp_hook_is_attached_again() {
    hook_is_attached_again("afxdp", "--deliver consume");
}

/// One file has no segments: what went unseen stands between the packets.
/// Sends packets until the host behind the hook gets one.
fn send_until_one_passes(net: &Net) {
    let host = net.b.inside(|| UdpSocket::bind("10.213.0.2:4000").expect("an address"));
    host.set_nonblocking(true).expect("a socket");
    let sender = net.a.inside(|| UdpSocket::bind("10.213.0.1:0").expect("an address"));
    wait_for("a packet to pass the hook", || {
        sender.send_to(b"let me in", "10.213.0.2:4000").expect("it is sent");
        host.recv(&mut [0; 16]).is_ok()
    });
}

/// A recorder that was stopped, as one that hangs, cuts nobody off for ever.
fn packets_pass_a_recorder_that_does_not_run(hook: &str) {
    let net = Net::new();
    net.addresses();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!(
        "--hook {hook} --deliver consume --abandon 3s --flush 100ms --dir {}",
        store.display()
    );
    let mut recorder = begin(&net, dir.path(), &line);
    recorder.signal(Signal::STOP);
    send_until_one_passes(&net);
    send(&net, MISSED);
    recorder.signal(Signal::CONT);
    let line = recorder.wait_to_say("passed by");
    assert!(line.contains("vb: the recorder did not run"), "{line}");
    let seen = number(&recorder.now(), "seen");
    send(&net, AFTER);
    wait_seen(&recorder, u32::try_from(seen).expect("few") + AFTER);
    let stats = recorder.stop();
    assert_accounted(&stats);
    // What leaves the host is consumed before the device counts it, and netfilter sees IP alone.
    if hook == "xdp" {
        assert_law(hook, &stats);
    }
    assert!(number(&stats, "unseen") >= u64::from(MISSED), "{stats}");
    assert_eq!(Contents::of_store(&store).packets.len() as u64, number(&stats, "captured"));
    let stat = tapdeck(&["stat"], &store);
    assert!(String::from_utf8_lossy(&stat.stdout).contains("nothing was heard of the recorder"));
}

#[test]
fn packets_pass_a_recorder_that_does_not_run_at_xdp() {
    packets_pass_a_recorder_that_does_not_run("xdp");
}

#[test]
fn packets_pass_a_recorder_that_does_not_run_at_tcx() {
    packets_pass_a_recorder_that_does_not_run("tcx");
}

#[test]
fn packets_pass_a_recorder_that_does_not_run_at_netfilter() {
    packets_pass_a_recorder_that_does_not_run("netfilter");
}

#[test]
fn a_stream_tells_what_went_unseen_where_it_was() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one.pcapng");
    let mut recorder = begin(&net, dir.path(), &format!("--hook xdp -w {}", file.display()));
    recorder.signal(Signal::STOP);
    detach(dir.path(), &recorder.program.process);
    send(&net, MISSED);
    recorder.signal(Signal::CONT);
    recorder.wait_to_say("attached again");
    send(&net, AFTER);
    wait_seen(&recorder, BEFORE + AFTER);
    recorder.stop();
    let contents = Contents::of(&file);
    assert_eq!(contents.packets.len() as u32, BEFORE + AFTER);
    let told: Vec<_> = contents.statistics.iter().filter(|s| s.comment.is_some()).collect();
    assert_eq!((told.len(), told[0].interface_dropped), (1, Some(u64::from(MISSED))));
    let begin = told[0].start.expect("a time") as i64;
    let end = told[0].end.expect("a time") as i64;
    let before = contents.packets.iter().filter(|p| p.time_ns <= begin).count();
    let after = contents.packets.iter().filter(|p| p.time_ns >= end).count();
    assert_eq!((before as u32, after as u32), (BEFORE, AFTER));
    assert_answer_tells(&file, MISSED.into(), "the hook was detached");
}

/// A place that somebody else has taken is waited for, and all that time counts.
#[test]
fn a_hook_whose_place_is_taken_is_tried_until_it_is_free() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let other_dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let mut recorder = begin(&net, dir.path(), &format!("--hook xdp --dir {}", store.display()));
    recorder.signal(Signal::STOP);
    detach(dir.path(), &recorder.program.process);
    let other = Recorder::start(&net, other_dir.path(), "--hook xdp --no-store");
    recorder.signal(Signal::CONT);
    recorder.wait_to_say("has an XDP program already");
    send(&net, MISSED);
    wait_for("the missed packets to be counted", || {
        let now = recorder.now();
        now["interfaces"]["vb"]["attached"] == false && now["unseen"] == MISSED
    });
    // It is tried every second, and the user hears of it once a minute.
    let second = || recorder.now()["elapsed_s"].as_u64().expect("a number");
    let (began, looks) = (second(), 4);
    wait_for("it to be tried again", || second() >= began + looks);
    other.stop();
    let line = recorder.wait_to_say("attached again");
    assert!(line.contains(&format!("{MISSED} packets went unseen")), "{line}");
    send(&net, AFTER);
    wait_seen(&recorder, BEFORE + AFTER);
    recorder.signal(Signal::INT);
    let (_, said) = recorder.program.end();
    let told = said.iter().filter(|line| line.contains("has an XDP program already")).count();
    assert_eq!(told, 1, "{said:#?}");
    let stats = recorder.finish();
    assert_law("xdp", &stats);
    assert_eq!(number(&stats, "unseen"), u64::from(MISSED));
    assert_told(&store, u64::from(MISSED), "the hook was detached");
}

/// An interface that is moved to another network namespace, under whatever number it comes back,
/// has gone on counting: that went unseen, and nothing else.
#[test]
fn an_interface_that_was_in_another_namespace_is_recorded_again() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook xdp --dir {}", store.display());
    let mut recorder = begin(&net, dir.path(), &line);
    let before = net.b.inside(|| Interface::find("vb").expect("it is there").index);
    net.b.run(&format!("ip link set vb netns {}", net.a.name()));
    recorder.wait_to_say("vb is gone; waiting for it to come back");
    net.a.run("ip link set vb up");
    wait_for("both ends to be up", || {
        net.a.inside(|| {
            ["va", "vb"].iter().all(|name| Interface::find(name).is_ok_and(|i| i.running))
        })
    });
    let to = net.a.inside(|| Interface::find("vb").expect("it is there").mac.expect("a MAC"));
    net.a.inside(|| Sender::on("va").send_all((0..MISSED).map(|i| frame(to, 100, i))));
    net.a.run(&format!("ip link set vb netns {}", net.b.name()));
    let after = net.b.inside(|| Interface::find("vb").expect("it is there").index);
    assert_ne!(before, after, "both namespaces count interfaces from the same number on");
    net.b.run("ip link set vb up");
    net.wait_until_up();
    recorder.wait_to_say("vb is back; recording goes on");
    let line = recorder.wait_to_say("the interface was away");
    assert!(line.contains(&format!("; {MISSED} packets went unseen")), "{line}");
    send(&net, AFTER);
    wait_seen(&recorder, BEFORE + AFTER);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_law("xdp", &stats);
    assert_eq!(number(&stats, "unseen"), u64::from(MISSED));
    assert_told(&store, u64::from(MISSED), "the interface was away");
}

/// What an interface receives between its making and the hook's return is in the account, too.
#[test]
fn an_interface_made_anew_is_counted_from_its_beginning() {
    for hook in ["xdp", "tcx"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let line = format!("--hook {hook} --dir {}", store.display());
        let mut recorder = begin(&net, dir.path(), &line);
        net.b.run("ip link del vb");
        recorder.wait_to_say("vb is gone");
        wait_for("the counters to say so", || {
            recorder.now()["interfaces"]["vb"]["attached"] == false
        });
        recorder.signal(Signal::STOP);
        net.plug(Cable::default());
        send(&net, MISSED);
        recorder.signal(Signal::CONT);
        recorder.wait_to_say("vb is back");
        let line = recorder.wait_to_say("the interface was away");
        assert!(line.contains(&format!("{MISSED} packets went unseen")), "{hook}: {line}");
        send(&net, AFTER);
        wait_seen(&recorder, BEFORE + AFTER);
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_law(hook, &stats);
        assert_eq!(number(&stats, "unseen"), u64::from(MISSED), "{hook}");
        assert_eq!(number(&stats, "seen"), u64::from(BEFORE + AFTER), "{hook}");
        assert_told(&store, u64::from(MISSED), "the interface was away");
    }
}

/// The time in which an interface is away is told even if it does not come back.
#[test]
fn an_interface_that_stays_away_is_told_at_the_end() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let mut recorder = begin(&net, dir.path(), &format!("--hook xdp --dir {}", store.display()));
    net.b.run("ip link del vb");
    recorder.wait_to_say("vb is gone");
    let stats = recorder.stop();
    assert_law("xdp", &stats);
    assert_told(&store, 0, "the interface was away");
}

/// A program that stands before the hook and takes its packets away is noticed.
#[test]
fn a_hook_that_is_shown_nothing_any_more_says_so() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let other_dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let mut recorder = begin(&net, dir.path(), &format!("--hook tcx --dir {}", store.display()));
    let other = Recorder::start(&net, other_dir.path(), "--hook xdp --deliver consume --no-store");
    let mut missed = 0;
    wait_for("the missed packets to be counted", || {
        send(&net, 1);
        missed += 1;
        recorder.now()["unseen"].as_u64().is_some_and(|n| n > 0)
    });
    recorder.wait_to_say("did not come to it");
    other.stop();
    let stats = recorder.stop();
    assert_law("tcx", &stats);
    assert_eq!(number(&stats, "unseen"), missed);
    let told = Contents::of_store(&store).statistics;
    assert_eq!(told.iter().filter_map(|s| s.interface_dropped).sum::<u64>(), missed);
    let stat = tapdeck(&["stat"], &store);
    let page = String::from_utf8_lossy(&stat.stdout).into_owned();
    assert!(page.contains("was not shown what the device received"), "{page}");
}

#[test]
fn a_daemon_attaches_its_hooks_again() {
    for hook in ["xdp", "tcx"] {
        let net = Net::new();
        let config = format!("[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\n");
        let mut daemon = Daemon::start(&net, &config);
        send(&net, BEFORE);
        daemon.wait_seen("g", BEFORE.into());
        daemon.signal(Signal::STOP);
        detach(daemon.dir.path(), &daemon.program.process);
        send(&net, MISSED);
        daemon.signal(Signal::CONT);
        let line = daemon.wait_to_say("attached again");
        assert!(line.contains(&format!("{MISSED} packets went unseen")), "{hook}: {line}");
        send(&net, AFTER);
        daemon.wait_seen("g", (BEFORE + AFTER).into());
        let stats = daemon.stop();
        let port = &stats["ports"][0];
        assert_law(hook, port);
        assert_eq!(number(port, "unseen"), u64::from(MISSED), "{hook}");
        assert_eq!(number(port, "seen"), u64::from(BEFORE + AFTER), "{hook}");
    }
}

/// A daemon's members, too, get the packets of an interface that is made anew, and its statistics
/// tell what went unseen.
#[test]
fn members_get_the_packets_of_an_interface_made_anew() {
    for hook in ["xdp", "tcx"] {
        let net = Net::new();
        let config = format!("[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\n");
        let mut daemon = Daemon::start(&net, &config);
        let member = Member::start(&mut daemon, "g", "member", "");
        send(&net, BEFORE);
        daemon.wait_seen("g", BEFORE.into());
        net.b.run("ip link del vb");
        daemon.wait_to_say("vb is gone");
        daemon.signal(Signal::STOP);
        net.plug(Cable::default());
        send(&net, MISSED);
        daemon.signal(Signal::CONT);
        daemon.wait_to_say("vb is back");
        let line = daemon.wait_to_say("the interface was away");
        assert!(line.contains(&format!("{MISSED} packets went unseen")), "{hook}: {line}");
        send(&net, AFTER);
        daemon.wait_seen("g", (BEFORE + AFTER).into());
        assert_eq!(member.stop().packets.len() as u32, BEFORE + AFTER, "{hook}");
        let stats = daemon.stop();
        let port = &stats["ports"][0];
        // The old device may have been deleted before it was asked once more.
        if hook == "xdp" {
            assert_law(hook, port);
        }
        assert_eq!(number(port, "unseen"), u64::from(MISSED), "{hook}");
    }
}

/// A daemon's interface that gets the name of another one has one hook, and each packet is once in
/// what a member gets.
#[test]
fn members_get_the_packets_of_a_renamed_interface_once() {
    let net = Net::new();
    Cable::default().plug([End::new(&net.a, "vc"), End::new(&net.b, "vd")]);
    let config = "[[group]]\nname = \"g\"\ninterfaces = [\"vb\", \"vd\"]\nhook = \"tcx\"\n";
    let mut daemon = Daemon::start(&net, config);
    let member = Member::start(&mut daemon, "g", "member", "");
    net.b.run("ip link del vd");
    daemon.wait_to_say("vd is gone");
    net.b.run("ip link set vb down");
    net.b.run("ip link set vb name vd");
    net.b.run("ip link set vd up");
    let seconds = || number(&daemon.connect().ask(r#"{"verb":"stats"}"#), "elapsed_s");
    let renamed = seconds();
    wait_for("looks at the interfaces", || seconds() > renamed + 2);
    send_to(&net, "vd", BEFORE);
    daemon.wait_seen("g", BEFORE.into());
    assert_eq!(member.stop().packets.len() as u32, BEFORE);
    assert_eq!(number(&daemon.stop()["groups"][0], "seen"), u64::from(BEFORE));
}

/// A cable on which one queue is used, and another can be switched on.
fn two_queues() -> Net {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cpus > 1, "this test needs two CPUs");
    let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
    // A veth's far end receives on the queue that a frame was sent on, and needs as many.
    net.a.run("ethtool -L va rx 1 tx 1");
    net.b.run("ethtool -L vb rx 1 tx 1");
    net
}

/// Switches the second queue on.
fn add_queue(net: &Net) {
    net.b.run("ethtool -L vb rx 2");
    net.a.run("ethtool -L va tx 2");
    for cpu in [0, 1] {
        let mask = 1 << cpu;
        net.a.shell(&format!("echo {mask} > /sys/class/net/va/queues/tx-{cpu}/xps_cpus"));
    }
}

/// Sends by the queue of a CPU.
fn send_from(net: &Net, cpu: usize, count: u32) {
    net.a.inside(|| {
        let mut core = CpuSet::new();
        core.set(cpu);
        sched_setaffinity(None, &core).expect("the CPU is there");
        Sender::on("va").send_all((0..count).map(|i| frame([2, 0, 0, 0, 0, 2], 100, i)));
    });
}

/// A veth, as some cards, runs an XDP program on those queues alone that there were when the
/// program was attached; and at afxdp a queue needs a socket.
fn a_queue_that_is_switched_on_later_is_recorded(hook: &str, flags: &str) {
    let net = two_queues();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook {hook} {flags} --dir {}", store.display());
    let mut recorder = Recorder::start(&net, dir.path(), &line);
    send_from(&net, 0, BEFORE);
    wait_seen(&recorder, BEFORE);
    recorder.signal(Signal::STOP);
    add_queue(&net);
    send_from(&net, 1, MISSED);
    recorder.signal(Signal::CONT);
    let line = recorder.wait_to_say("a receive queue was switched on");
    assert!(line.contains(&format!("{MISSED} packets went unseen")), "{line}");
    send_from(&net, 1, AFTER);
    wait_seen(&recorder, BEFORE + AFTER);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_law(hook, &stats);
    assert_eq!(number(&stats, "unseen"), u64::from(MISSED));
    assert_told(&store, u64::from(MISSED), "a receive queue was switched on");
}

#[test]
fn a_queue_that_is_switched_on_later_is_recorded_at_xdp() {
    a_queue_that_is_switched_on_later_is_recorded("xdp", "");
}

#[test]
fn a_queue_that_is_switched_on_later_is_recorded_at_afxdp() {
    a_queue_that_is_switched_on_later_is_recorded("afxdp", "--deliver consume");
}

#[test]
fn members_get_the_packets_of_a_queue_that_is_switched_on_later() {
    let net = two_queues();
    let config = "[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n";
    let mut daemon = Daemon::start(&net, config);
    let member = Member::start(&mut daemon, "g", "member", "");
    send_from(&net, 0, BEFORE);
    daemon.wait_seen("g", BEFORE.into());
    daemon.signal(Signal::STOP);
    add_queue(&net);
    send_from(&net, 1, MISSED);
    daemon.signal(Signal::CONT);
    let line = daemon.wait_to_say("a receive queue was switched on");
    assert!(line.contains(&format!("{MISSED} packets went unseen")), "{line}");
    send_from(&net, 1, AFTER);
    daemon.wait_seen("g", (BEFORE + AFTER).into());
    assert_eq!(member.stop().packets.len() as u32, BEFORE + AFTER);
    let stats = daemon.stop();
    let port = &stats["ports"][0];
    assert_law("xdp", port);
    assert_eq!(number(port, "unseen"), u64::from(MISSED));
}

/// A program that was there before, and that lets nothing pass, does not keep packets from a
/// recorder at tcx.
#[test]
fn tcx_is_before_others_inbound_and_says_who_they_are() {
    let net = Net::new();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let flags = "--hook tcx --deliver consume --no-store";
    let other = Recorder::start(&net, dirs[0].path(), flags);
    let mut recorder = Recorder::start(&net, dirs[1].path(), "--hook tcx --no-store");
    let line = recorder.wait_to_say("vb has other programs, too");
    assert!(line.contains("behind it, inbound, tapdeck_ingress (program "), "{line}");
    assert!(line.contains("before it, outbound, tapdeck_egress (program "), "{line}");
    let probe = probed(&net);
    for way in ["on the way in: tapdeck_ingress", "on the way out: tapdeck_egress"] {
        let line = probe.lines().find(|line| line.contains(way));
        let line = line.unwrap_or_else(|| panic!("{way}: {probe}"));
        assert_eq!(line.matches("(program ").count(), 2, "{probe}");
    }
    send(&net, AFTER);
    wait_seen(&recorder, AFTER);
    let stats = recorder.stop();
    assert_law("tcx", &stats);
    assert_eq!((number(&stats, "seen"), number(&stats, "unseen")), (AFTER.into(), 0));
    other.stop();
}

fn probed(net: &Net) -> String {
    let probe = net.b.command(env!("CARGO_BIN_EXE_tapdeck")).args(["probe", "-i", "vb"]).output();
    String::from_utf8_lossy(&probe.expect("the program was built").stdout).into_owned()
}

/// Programs find a veth's tags without being bound to its device.
#[test]
fn tags_of_a_veth_are_recorded_by_programs_that_are_not_bound_to_it() {
    let net = Net::new();
    let tags = kernel::at_least((6, 3), "veths that hand on tags");
    for (flags, rxvlan) in [("", "on"), ("--no-device-bound", "on"), ("", "off")] {
        net.b.run(&format!("ethtool -K vb rxvlan {rxvlan}"));
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let line = format!("--hook xdp {flags} --dir {}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &line);
        let tag = net.a.inside(|| {
            let va = Interface::find("va").expect("made above");
            Tag::attach(va.index, 7).expect("a kernel with tcx")
        });
        send(&net, BEFORE);
        drop(tag);
        wait_seen(&recorder, BEFORE);
        let probe = probed(&net);
        assert!(probe.contains("tapdeck_xdp"), "{flags}: {probe}");
        assert!(!probe.contains("tapdeck_xdp_met"), "{flags}: {probe}");
        recorder.stop();
        let contents = Contents::of_store(&store);
        let tagged = contents.packets.iter().filter(|p| p.frame[12..14] == [0x88, 0xa8]).count();
        assert_eq!(tagged, if tags { BEFORE as usize } else { 0 }, "{flags}, rxvlan {rxvlan}");
    }
}

/// What has a veth's name after it need not be a veth; and then one comes again, whose tags are
/// recorded as before.
#[test]
fn recording_goes_on_at_a_tap_in_a_veths_place_and_at_a_veth_in_its() {
    let net = Net::new();
    let tags = kernel::at_least((6, 3), "veths that hand on tags");
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook xdp --dir {}", store.display());
    let mut recorder = begin(&net, dir.path(), &line);
    net.b.run("ip link del vb");
    recorder.wait_to_say("vb is gone");
    net.b.run("ip tuntap add dev vb mode tap");
    net.b.run("ip link set vb up");
    recorder.wait_to_say("vb is back");
    net.b.run("ip link del vb");
    recorder.wait_to_say("vb is gone");
    net.plug(Cable::default());
    recorder.wait_to_say("vb is back");
    let tag = net.a.inside(|| {
        let va = Interface::find("va").expect("made above");
        Tag::attach(va.index, 7).expect("a kernel with tcx")
    });
    send(&net, AFTER);
    drop(tag);
    wait_seen(&recorder, BEFORE + AFTER);
    recorder.stop();
    let contents = Contents::of_store(&store);
    let tagged = contents.packets.iter().filter(|p| p.frame[12..14] == [0x88, 0xa8]).count();
    assert_eq!(tagged, if tags { AFTER as usize } else { 0 });
}

/// A member of a group learns what the daemon's hooks were not shown, and records it.
#[test]
fn a_recorder_of_a_group_tells_what_the_daemon_missed() {
    let net = Net::new();
    let config = "[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n";
    let mut daemon = Daemon::start(&net, config);
    let dir = tempfile::tempdir().expect("a directory");
    let (store, stats) = (dir.path().join("store"), dir.path().join("stats.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "--group", "g", "--socket"]).arg(daemon.socket()).arg("--dir");
    command.arg(&store).arg("--stats-json").arg(&stats);
    let mut member = Talking::start(&mut command);
    daemon.wait_to_say(" comes (process");
    send(&net, BEFORE);
    daemon.wait_seen("g", BEFORE.into());
    daemon.signal(Signal::STOP);
    detach(daemon.dir.path(), &daemon.program.process);
    send(&net, MISSED);
    daemon.signal(Signal::CONT);
    daemon.wait_to_say("attached again");
    let line = member.wait_to_say("went unseen");
    assert!(line.contains(&format!("{MISSED} packets")), "{line}");
    send(&net, AFTER);
    daemon.wait_seen("g", (BEFORE + AFTER).into());
    member.process.signal(Signal::INT);
    assert!(member.end().0.success());
    let last = last_json(&stats);
    assert_accounted(&last);
    assert_eq!(number(&last, "seen"), u64::from(BEFORE + AFTER));
    assert_eq!(number(&last["interfaces"]["deck:g"], "unseen"), u64::from(MISSED));
    assert_told(&store, MISSED.into(), "the hooks of the daemon were not shown them");
    daemon.stop();
}
