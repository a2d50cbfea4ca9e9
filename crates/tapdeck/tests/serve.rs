//! A daemon and its groups: members come and go, also by kill -9, and every packet is accounted
//! for; what is asked and configured wrongly is told.

mod testbed;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::{Value, json};
use tapdeck_client::{Next, Options};
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::process::last_json;
use tapdeck_testkit::wait::LIMIT;
use tapdeck_testkit::{Cable, Net, Running, Sender, Talking, wait_for};
use testbed::daemon::{Asking, Daemon, Member, assert_accounted};
use testbed::recorder::{Contents, frame, number};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Small rings, so that one that is not read is soon full.
const SERVE: &str = "[serve]\nring-bytes = \"1MiB\"\nblock-bytes = \"128KiB\"\n";

fn group(name: &str, more: &str) -> String {
    format!("[[group]]\nname = \"{name}\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n{more}\n")
}

/// Frames of 500 bytes from as many different ports as there are frames, so of many flows.
fn send(net: &Net, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        for i in numbers {
            let mut frame = frame(MAC, 500, i);
            frame[34..36].copy_from_slice(&(i as u16).to_be_bytes());
            sender.send(&frame);
        }
    });
}

fn numbers(contents: &Contents) -> Vec<u32> {
    let mut numbers: Vec<u32> = contents.packets.iter().map(|p| number_of(&p.frame)).collect();
    numbers.sort_unstable();
    numbers
}

fn told(out: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn said(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn each_group_gets_every_packet_and_its_members_share_them() {
    let net = Net::new();
    let config =
        [SERVE.to_owned(), group("shared", ""), group("all", "steering = \"copy\"")].concat();
    let mut daemon = Daemon::start(&net, &config);
    let shared: Vec<Member> =
        (0..3).map(|i| Member::start(&mut daemon, "shared", &format!("s{i}"), "")).collect();
    let all: Vec<Member> =
        (0..2).map(|i| Member::start(&mut daemon, "all", &format!("a{i}"), "")).collect();
    send(&net, 0..1000);
    daemon.wait_seen("shared", 1000);
    let shared: Vec<Contents> = shared.into_iter().map(Member::stop).collect();
    let mut together: Vec<u32> = shared.iter().flat_map(numbers).collect();
    together.sort_unstable();
    assert_eq!(together, (0..1000).collect::<Vec<u32>>(), "each packet once");
    assert!(shared.iter().all(|member| member.packets.len() > 200), "in fair parts");
    for member in all {
        assert_eq!(numbers(&member.stop()), (0..1000).collect::<Vec<u32>>());
    }
    let last = daemon.stop();
    let n = |at: usize, key| number(&last["groups"][at], key);
    assert_eq!((n(0, "captured"), n(0, "extra")), (1000, 0));
    assert_eq!((n(1, "captured"), n(1, "extra")), (2000, 1000));
}

/// Those that leave or are killed lose only what was on its way to them, and the others get the
/// rest.
#[test]
fn the_share_of_a_member_that_is_killed_goes_to_the_others() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let mut members: Vec<Member> =
        (0..4).map(|i| Member::start(&mut daemon, "g", &format!("m{i}"), "")).collect();
    send(&net, 0..400);
    daemon.wait_seen("g", 400);
    let before = daemon.group("g");
    assert_eq!(number(&before, "captured"), 400);
    for killed in members.drain(2..) {
        killed.process.signal(Signal::KILL);
    }
    daemon.wait_members("g", 2);
    let counts = |group: &Value| -> Vec<u64> {
        let members = group["members"].as_array().expect("members");
        members.iter().map(|member| number(member, "captured")).collect()
    };
    let left: u64 = counts(&daemon.group("g")).iter().sum();
    send(&net, 400..1400);
    daemon.wait_seen("g", 1400);
    let after = daemon.group("g");
    assert_accounted(&after);
    assert_eq!(number(&after, "captured"), 1400, "what the killed ones got counts on");
    assert_eq!(
        counts(&after).iter().sum::<u64>() - left,
        1000,
        "nothing goes to those that are gone"
    );
    let kept: usize = members.into_iter().map(|member| member.stop().packets.len()).sum();
    assert_eq!(kept as u64, left + 1000);
    daemon.wait_members("g", 0);
    send(&net, 0..50);
    daemon.wait_seen("g", 1450);
    assert_eq!(number(&daemon.stop()["groups"][0], "no_member"), 50);
}

#[test]
fn a_member_that_does_not_read_loses_its_own_packets_and_nobody_elses() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "steering = \"copy\"")].concat());
    let good = Member::start(&mut daemon, "g", "good", "");
    let lazy = Member::start(&mut daemon, "g", "lazy", "");
    lazy.process.signal(Signal::STOP);
    for part in 0..10 {
        send(&net, part * 1000..(part + 1) * 1000);
        // As fast as the good one reads.
        daemon.wait_seen("g", u64::from(part + 1) * 1000);
        wait_for("the good member to read", || {
            number(&daemon.group("g")["members"][0], "ring_fill_bytes") < 512 << 10
        });
    }
    let group = daemon.group("g");
    assert_accounted(&group);
    let member = |at: usize, key| number(&group["members"][at], key);
    assert_eq!((member(0, "captured"), member(0, "dropped_ring")), (10_000, 0), "{group}");
    assert!(member(1, "dropped_ring") > 5000, "{group}");
    assert_eq!(member(1, "captured") + member(1, "dropped_ring"), 10_000, "{group}");
    lazy.process.signal(Signal::CONT);
    let late = lazy.stop();
    assert_eq!(late.packets.len() as u64, member(1, "captured"));
    assert_eq!(numbers(&good.stop()), (0..10_000).collect::<Vec<u32>>());
    daemon.stop();
}

/// What comes slowly but without a pause is written as it comes.
#[test]
fn attach_writes_what_comes_steadily() {
    // What comes fits into one block and into one buffer of the member.
    const MOST: u32 = 2500;
    let net = Net::new();
    let large = "[serve]\nring-bytes = \"8MiB\"\nblock-bytes = \"1MiB\"\n";
    let mut daemon = Daemon::start(&net, &[large, &group("g", "")].concat());
    let file = daemon.dir.path().join("m.pcapng");
    let member = Member::start(&mut daemon, "g", "m", "");
    let length = || file.metadata().map_or(0, |meta| meta.len());
    wait_for("the head of the file", || length() > 0);
    let head = length();
    let mut sent = 0;
    wait_for("a packet in the file", || {
        // There is no pause in which it would be written for want of others.
        assert!(sent < MOST, "nothing of {sent} packets was written");
        net.a.inside(|| Sender::on("va").send(&frame(MAC, 60, sent)));
        sent += 1;
        length() > head
    });
    assert_eq!(numbers(&member.stop()), (0..sent).collect::<Vec<u32>>());
    daemon.stop();
}

#[test]
fn a_recorder_can_be_a_member() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let store = daemon.dir.path().join("store");
    let record = |group: &str, dir: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "--group", group, "--socket"]).arg(daemon.socket());
        command.arg("--dir").arg(dir).stdout(Stdio::null());
        command
    };
    let nowhere = daemon.dir.path().join("nowhere");
    let wrong = record("idx", &nowhere).output().expect("the program was built");
    assert!(told(&wrong, 1).contains("no group is named idx"));
    assert!(!nowhere.exists(), "a wrong group leaves no directory");
    let process = Running(record("g", &store).stderr(Stdio::null()).spawn().expect("built"));
    daemon.wait_to_say(" comes (process");
    send(&net, 0..500);
    daemon.wait_seen("g", 500);
    let asks = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["ctl", "--dir"]).arg(&store).args(words.split_whitespace());
        command.output().expect("the program was built")
    };
    wait_for("the recorder to write", || {
        let out = asks("stats --json");
        let stats: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        stats["captured"] == 500
    });
    said(&asks("rotate"));
    assert!(told(&asks("pause"), 1).contains("ask the daemon"));
    send(&net, 500..600);
    daemon.wait_seen("g", 600);
    assert!(process.interrupt().success());
    let contents = Contents::of_store(&store);
    assert_eq!(numbers(&contents), (0..600).collect::<Vec<u32>>());
    assert_eq!(testbed::recorder::segments(&store).len(), 2);
    assert_eq!(contents.interfaces[0].name.as_deref(), Some("vb"));
    daemon.stop();
}

/// The rings of a member hold packets of all interfaces of its group; each is counted where it came
/// in.
#[test]
fn a_recorder_tells_the_interfaces_of_its_group_apart() {
    let net = Net::new();
    let config =
        group("g", "").replace("[\"vb\"]", "[\"vb\", \"lo\"]").replace("\"xdp\"", "\"tcx\"");
    let mut daemon = Daemon::start(&net, &config);
    let store = daemon.dir.path().join("store");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "--group", "g", "--socket"]).arg(daemon.socket());
    command.arg("--dir").arg(&store).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Running(command.spawn().expect("the program was built"));
    daemon.wait_to_say(" comes (process");
    send(&net, 0..100);
    net.b.run("ping -q -c 5 -i 0.01 127.0.0.1");
    // Requests and replies.
    daemon.wait_seen("g", 110);
    assert!(process.interrupt().success());
    let contents = Contents::of_store(&store);
    let names: Vec<_> = contents.interfaces.iter().filter_map(|i| i.name.as_deref()).collect();
    assert_eq!(names, ["vb", "lo"]);
    for (interface, packets) in [(0, 100), (1, 10)] {
        let there = contents.packets.iter().filter(|p| p.interface == interface).count();
        let told = contents.statistics.iter().find(|s| s.interface == interface);
        assert_eq!((there, told.and_then(|s| s.delivered)), (packets, Some(packets as u64)));
    }
    let mut verify = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    said(&verify.arg("verify").arg("--dir").arg(&store).output().expect("built"));
    daemon.stop();
}

/// A daemon that is killed takes nothing along: what it put into a member's rings is recorded, also
/// what lies in blocks that nobody closes any more. The recorder waits for the next daemon.
#[test]
fn a_recorder_survives_the_daemon_and_waits_for_the_next() {
    let config = [SERVE, &group("g", "")].concat();
    for target in ["--dir", "-w"] {
        let net = Net::new();
        let mut daemon = Daemon::start(&net, &config);
        let (out, stats) = (daemon.path("recorded"), daemon.path("member.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "--group", "g", "--socket"]).arg(daemon.socket());
        command.arg(target).arg(&out).arg("--stats-json").arg(&stats).stdout(Stdio::null());
        let mut recorder = Talking::start(&mut command);
        daemon.wait_to_say(" comes (process");
        send(&net, 0..1000);
        daemon.wait_seen("g", 1000);
        let dir = daemon.kill(&net);
        recorder.wait_to_say("deck:g is gone; waiting");
        wait_for("all to be recorded", || last_json(&stats)["captured"] == 1000);
        let mut daemon = Daemon::start_in(dir, &net, "", &config);
        recorder.wait_to_say("deck:g is back");
        daemon.wait_to_say(" comes (process");
        send(&net, 1000..1600);
        daemon.wait_seen("g", 600);
        recorder.process.signal(Signal::INT);
        let (status, lines) = recorder.end();
        assert!(status.success(), "{status}: {lines:#?}");
        let last = last_json(&stats);
        assert_eq!((&last["final"], &last["captured"]), (&json!(true), &json!(1600)), "{last}");
        assert_eq!(last["dropped_unwritten"], 0, "{last}");
        let contents = if target == "-w" { Contents::of(&out) } else { Contents::of_store(&out) };
        assert_eq!(numbers(&contents), (0..1600).collect::<Vec<u32>>(), "{target}");
        if target == "--dir" {
            let mut verify = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
            said(&verify.arg("verify").arg("--dir").arg(&out).output().expect("built"));
        }
        daemon.stop();
    }
}

/// A recorder whose daemon does not come back ends as it is told to, with all that came.
#[test]
fn a_recorder_that_waits_for_its_daemon_can_be_ended() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let out = daemon.path("recorded");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "--group", "g", "--socket"]).arg(daemon.socket());
    let mut recorder = Talking::start(command.arg("--dir").arg(&out).stdout(Stdio::null()));
    daemon.wait_to_say(" comes (process");
    send(&net, 0..100);
    daemon.wait_seen("g", 100);
    let _dir = daemon.kill(&net);
    recorder.wait_to_say("deck:g is gone; waiting");
    recorder.process.signal(Signal::INT);
    let (status, said) = recorder.end();
    assert!(status.success(), "{status}: {said:#?}");
    assert_eq!(numbers(&Contents::of_store(&out)), (0..100).collect::<Vec<u32>>());
}

#[test]
fn attach_fails_when_its_daemon_dies() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let file = daemon.path("m.pcapng");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["attach", "--group", "g", "--socket"]).arg(daemon.socket());
    let mut attach = Talking::start(command.arg("-w").arg(&file).stdout(Stdio::null()));
    daemon.wait_to_say(" comes (process");
    send(&net, 0..100);
    daemon.wait_seen("g", 100);
    let _dir = daemon.kill(&net);
    let (status, said) = attach.end();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.last().is_some_and(|last| last.contains("the daemon has ended")), "{said:#?}");
    assert_eq!(numbers(&Contents::of(&file)), (0..100).collect::<Vec<u32>>());
}

#[test]
fn the_socket_says_who_may_attach_and_others_may_not_change_anything() {
    use std::os::unix::fs::PermissionsExt;
    let net = Net::new();
    let config = "[serve]\nsocket-mode = \"0660\"\nsocket-group = \"nogroup\"\n";
    let mut daemon = Daemon::start(&net, &[config, &group("g", "")].concat());
    std::fs::set_permissions(daemon.dir.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let socket = daemon.socket();
    let program = env!("CARGO_BIN_EXE_tapdeck");
    let run = |gid: &str, words: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            gid,
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]);
        command.arg(program).args(words.split_whitespace()).arg("--socket").arg(&socket);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let stranger = run("--regid=12345", "attach --group g --count 1").output().expect("setpriv(1)");
    assert!(told(&stranger, 1).contains("permission"));
    // Group 65534 is nogroup.
    let member = run("--regid=65534", "attach --group g --count 100").spawn().expect("setpriv(1)");
    let member = Running(member);
    daemon.wait_to_say("user 65534");
    send(&net, 0..100);
    daemon.wait_seen("g", 100);
    let mut member = member;
    let status = member.0.wait().expect("it was started");
    assert!(status.success());
    let looks = run("--regid=65534", "ctl groups").output().expect("setpriv(1)");
    assert!(said(&looks).contains('g'));
    for words in ["ctl pause", "ctl stop", "ctl filter tcp", "ctl rules reset"] {
        let refused = run("--regid=65534", words).output().expect("setpriv(1)");
        assert!(told(&refused, 1).contains("only root"), "{words}");
    }
    daemon.stop();
}

#[test]
fn a_daemon_is_steered_by_group() {
    let net = Net::new();
    let config = [SERVE.to_owned(), group("a", ""), group("b", "snaplen = 200")].concat();
    let mut daemon = Daemon::start(&net, &config);
    let a = Member::start(&mut daemon, "a", "a", "");
    let b = Member::start(&mut daemon, "b", "b", "");
    let done = |words: &str| said(&daemon.ctl(words));
    assert!(told(&daemon.ctl("snaplen 100"), 1).contains("which group? there are a, b"));
    assert!(told(&daemon.ctl("snaplen 201 --group b"), 1).contains("200"));
    assert!(told(&daemon.ctl("pause --group c"), 1).contains('c'));
    done("snaplen 100 --group b");
    done("pause --group a");
    send(&net, 0..10);
    daemon.wait_seen("b", 10);
    done("resume --group a");
    send(&net, 10..20);
    daemon.wait_seen("b", 20);
    done("filter --group a tcp");
    send(&net, 20..30);
    daemon.wait_seen("a", 20);
    assert!(told(&daemon.ctl("filter --group a no such thing"), 1).contains("no such thing"));
    done("filter --group a --none");
    let rule = "drop src 10.213.0.1 dst any sport any dport 9 proto udp";
    let file = daemon.dir.path().join("b.rules");
    std::fs::write(&file, format!("{rule}\n")).expect("a directory");
    done(&format!("rules replace --group b {}", file.display()));
    send(&net, 30..40);
    daemon.wait_seen("b", 40);
    let hits = done("rules hits --group b --json");
    let hits: Value = serde_json::from_str(&hits).expect("JSON");
    assert_eq!((&hits["rules"][0]["hits"], &hits["none"]), (&json!(10), &json!(0)), "{hits}");
    done("rules reset --group b");
    send(&net, 40..50);
    daemon.wait_seen("b", 50);
    let groups = done("groups");
    assert!(groups.contains("flow") && groups.contains("vb"), "{groups}");
    assert!(told(&daemon.ctl("rotate"), 1).contains("no segments"));
    let (a, b) = (a.stop(), b.stop());
    let expected: Vec<u32> = (10..20).chain(30..50).collect();
    assert_eq!(numbers(&a), expected, "paused, then filtered");
    let expected: Vec<u32> = (0..30).chain(40..50).collect();
    assert_eq!(numbers(&b), expected, "dropped by its rule");
    assert!(b.packets.iter().all(|p| p.frame.len() == 100 && p.original_len == 500));
    assert!(a.packets.iter().all(|p| p.frame.len() == 500));
    daemon.stop();
}

#[test]
fn ctl_ends_it_and_members_read_to_the_end() {
    let net = Net::new();
    let mut daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let mut member = Member::start(&mut daemon, "g", "m", "");
    send(&net, 0..100);
    daemon.wait_seen("g", 100);
    assert_eq!(said(&daemon.ctl("stop")), "ended\n");
    let status = daemon.program.process.0.wait().expect("it was started");
    assert!(status.success());
    // A member needs nobody to tell it. It wanted more than there is, so it fails.
    let status = member.process.0.wait().expect("it was started");
    assert_eq!(status.code(), Some(1));
    assert_eq!(Contents::of(&member.file).packets.len(), 100);
}

#[test]
fn what_members_may_not_ask_is_answered() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let mut asking = daemon.connect();
    for (request, part) in [
        (r#"{"verb":"attach","group":"h"}"#, "no group is named h"),
        (r#"{"verb":"attach","group":"g","weight":0}"#, "weighs from 1 to 100"),
        (r#"{"verb":"attach","group":"g","weight":-1}"#, "invalid value"),
        (r#"{"verb":"attach","group":["g"]}"#, "invalid type"),
        (r#"{"verb":"leave"}"#, "no member"),
        (r#"{"verb":"flush"}"#, "no member"),
        (r#"{"verb":"rotate"}"#, "no segments"),
        (r#"{"verb":"rules","do":"add","rules":"x"}"#, "bad rules"),
    ] {
        let answer = asking.ask(request);
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
        assert!(error.contains(part), "{request}: {error}");
    }
    let attached = asking.ask(r#"{"verb":"attach","group":"g"}"#);
    assert_eq!(attached["ok"], true, "{attached}");
    assert_eq!(attached["interfaces"][0]["name"], "vb");
    let twice = asking.ask(r#"{"verb":"attach","group":"g"}"#);
    assert!(twice["error"].as_str().is_some_and(|e| e.contains("member already")), "{twice}");
    send(&net, 0..10);
    daemon.wait_seen("g", 10);
    let own = asking.ask(r#"{"verb":"stats"}"#);
    assert_eq!((&own["seen"], &own["captured"]), (&json!(10), &json!(10)), "{own}");
    assert_eq!(asking.ask(r#"{"verb":"flush"}"#)["ok"], true);
    let left = asking.ask(r#"{"verb":"leave"}"#);
    assert_eq!((&left["ok"], &left["captured"]), (&json!(true), &json!(10)), "{left}");
    // The connection is one again on which anything can be asked.
    assert_eq!(asking.ask(r#"{"verb":"leave"}"#)["ok"], false);
    assert_eq!(asking.ask(r#"{"verb":"attach","group":"g"}"#)["ok"], true);
    daemon.wait_members("g", 1);
    drop(asking);
    daemon.wait_members("g", 0);
    daemon.stop();
}

/// With defaults on sixteen queues, each ring of a member holds what 1 Gbit/s brings on one queue
/// from one look of the daemon to the next, so that a member that reads loses nothing.
#[test]
fn a_member_that_reads_loses_nothing_on_one_of_sixteen_queues() {
    /// Frames of 1514 bytes that 1 Gbit/s brings in 20 ms.
    const LOOK: u32 = 1652;
    const LOOKS: u32 = 30;
    let net = Net::with(Cable { queues: Some(16), ..Cable::default() });
    let daemon = Daemon::start(&net, &group("g", ""));
    let options = Options { socket: daemon.socket(), ..Options::default() };
    let mut member = tapdeck_client::Member::open("g", &options).expect("it may attach");
    assert_eq!(member.geometry().nrings, 16);
    let mut came = 0;
    for look in 0..LOOKS {
        // One flow has one queue. Nothing is read before all of it has come, and however long that
        // takes here, the daemon does not look meanwhile: each look closes a block, full or not.
        daemon.program.process.hold();
        net.a.inside(|| {
            let mut sender = Sender::on("va");
            for i in look * LOOK..(look + 1) * LOOK {
                sender.send(&frame(MAC, 1514, i));
            }
        });
        daemon.program.process.signal(Signal::CONT);
        while came < (look + 1) * LOOK && member.counts().dropped == 0 {
            let Next::Got(packet) = member.next_packet(Some(LIMIT)).expect("it can be read") else {
                panic!("packet {came} did not come")
            };
            assert_eq!(number_of(packet.bytes), came);
            came += 1;
        }
    }
    assert_eq!(member.counts().dropped, 0);
    let group = daemon.group("g");
    assert_accounted(&group);
    assert_eq!(number(&group, "captured"), u64::from(LOOK * LOOKS), "{group}");
    drop(member);
    daemon.stop();
}

/// A large filter takes the kernel long to verify. Whoever asks for something else meanwhile does
/// not wait for that.
#[test]
fn others_are_answered_while_a_filter_is_made() {
    let net = Net::new();
    let daemon = Daemon::start(&net, &[SERVE, &group("g", "")].concat());
    let filter = |first: u32| {
        let hosts = (0..250).map(|n| format!("host 10.{first}.{}.{}", n / 16, n % 16));
        json!({"verb": "filter", "filter": hosts.collect::<Vec<_>>().join(" or ")}).to_string()
    };
    let (mut asking, mut other) = (daemon.connect(), daemon.connect());
    let mut round = 0;
    wait_for("an answer that did not wait for a filter", || {
        round += 1;
        asking.0.get_mut().write_all(format!("{}\n", filter(round % 200)).as_bytes()).unwrap();
        assert_eq!(other.ask(r#"{"verb":"stats"}"#)["ok"], true);
        let mut fds = [PollFd::new(asking.0.get_ref(), PollFlags::IN)];
        let was_first =
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a socket") == 0;
        let mut line = String::new();
        asking.0.read_line(&mut line).expect("it is answered");
        assert!(line.starts_with("{\"ok\":true"), "{line}");
        was_first
    });
    daemon.stop();
}

/// Many come and go at once, none in good order.
#[test]
fn a_crowd_may_come_and_die_at_once() {
    let net = Net::new();
    let config = "[serve]\nring-bytes = \"256KiB\"\nblock-bytes = \"64KiB\"\n";
    let daemon = Daemon::start(&net, &[config, &group("g", "snaplen = 256")].concat());
    for _ in 0..2 {
        let crowd: Vec<Asking> = (0..100)
            .map(|_| {
                let mut asking = daemon.connect();
                let answer = asking.ask(r#"{"verb":"attach","group":"g"}"#);
                assert_eq!(answer["ok"], true, "{answer}");
                asking
            })
            .collect();
        daemon.wait_members("g", 100);
        drop(crowd);
        daemon.wait_members("g", 0);
    }
    send(&net, 0..10);
    daemon.wait_seen("g", 10);
    daemon.stop();
}

#[test]
fn a_wrong_configuration_is_told_in_one_line() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let serve = |config: &str| {
        Daemon::command(&net, dir.path(), config).output().expect("the program was built")
    };
    for (config, code, part) in [
        (String::new(), 2, "no group"),
        ("[serve]\ncolour = 7".into(), 2, "line 2: there is no key colour; the nearest is "),
        (group("g", "colour = 7"), 2, "line 5: there is no key colour; the nearest is "),
        (group("g", "steering = \"left\""), 2, "line 5"),
        (group("g", "snaplen = 0"), 2, "snaplen of 0"),
        (group("g", "filter = \"no such thing\""), 2, "groups.toml: group g: "),
        (
            [group("f", "filter = \"udp\""), group("g", "filter = \"no such thing\"")].concat(),
            2,
            "no such thing",
        ),
        (group("g", "rules = \"no.rules\""), 1, "no.rules"),
        ([group("g", ""), group("g", "")].concat(), 2, "two groups are named g"),
        (group("g", "").replace("\"vb\"", "\"vx\""), 1, "vx"),
        (group("g", "").replace("\"vb\"", ""), 2, "no interface"),
        (group("g", "").replace("\"xdp\"", "\"recv\""), 2, "recv"),
        ([group("g", ""), group("h", "deliver = \"consume\"")].concat(), 2, "deliver"),
        ([SERVE.replace("128KiB", "100KiB"), group("g", "")].concat(), 2, "power of two"),
        (
            ["[serve]\nsocket-group = \"no-such-group\"\n".into(), group("g", "")].concat(),
            1,
            "no-such-group",
        ),
    ] {
        let out = serve(&config);
        let text = told(&out, code);
        assert!(text.contains(part), "{config}: {text}");
        assert!(!dir.path().join("s").exists(), "{config}");
    }
    let daemon = Daemon::start(&net, &group("g", ""));
    let mut second = Daemon::command(
        &net,
        dir.path(),
        &group("h", "hook = \"tcx\"").replacen("hook = \"xdp\"\n", "", 1),
    );
    let second = second.arg("--socket").arg(daemon.socket()).output().expect("built");
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{text}");
    daemon.stop();
}

#[test]
fn usr1_tells_what_groups_have_seen_and_quit_ends_the_daemon_in_good_order() {
    const PACKETS: u32 = 100;
    let net = Net::new();
    let mut daemon =
        Daemon::start(&net, "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n");
    send(&net, 0..PACKETS);
    daemon.wait_seen("ids", PACKETS.into());
    daemon.signal(Signal::USR1);
    daemon.wait_to_say(&format!("group ids: {PACKETS} seen = 0 captured"));
    assert_eq!(number(&daemon.group("ids"), "seen"), u64::from(PACKETS), "it goes on");
    daemon.signal(Signal::QUIT);
    let (status, said) = daemon.program.end();
    assert!(status.success(), "{status}: {said:#?}");
    assert!(!daemon.socket().exists());
}
