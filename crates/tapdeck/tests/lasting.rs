//! Groups that outlive their daemon (`serve --persist`): daemons are killed at any moment under
//! load, members read on, and each packet reaches each group once, or is counted.

mod testbed;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};
use tapdeck_capture::interface::Interface;
use tapdeck_client::{Next, Options};
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Running, Sender, SplitMix64, Talking, wait_for};
use testbed::bench::{Bench, kills};
use testbed::daemon::{Asking, Daemon, assert_accounted};
use testbed::recorder::{Contents, frame, number};

/// How often daemons are killed in each test, unless TAPDECK_KILLS says so.
const KILLS: u64 = 4;
const SERVE: &str = "[serve]\nring-bytes = \"16MiB\"\nblock-bytes = \"128KiB\"\n";

fn group(name: &str, hook: &str, more: &str) -> String {
    format!("[[group]]\nname = \"{name}\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\n{more}\n")
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, flags: &str, config: &str) -> Command {
        let mut command = Daemon::command(&self.net, self.dir.path(), config);
        command.env("TAPDECK_PERSIST", self.pins()).args(["--persist", "deck"]);
        command.args(flags.split_whitespace());
        command
    }

    fn start(&self, config: &str) -> Serving<'_> {
        self.start_with("", config)
    }

    fn start_with(&self, flags: &str, config: &str) -> Serving<'_> {
        let mut program = Talking::start(&mut self.command(flags, config));
        program.wait_to_say("serving at");
        Serving { program, bench: self }
    }

    /// `tapdeck attach`, which writes a file.
    fn attach(&self, serving: &mut Serving<'_>, group: &str, name: &str) -> Reading {
        let file = self.path(&format!("{name}.pcapng"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["attach", "--group", group, "--socket"]).arg(self.path("s"));
        let program = Talking::start(command.arg("-w").arg(&file).stdout(Stdio::null()));
        serving.program.wait_to_say(" comes (process");
        Reading { program, file }
    }

    /// `tapdeck record`, as a member that writes a store.
    fn record(&self, serving: &mut Serving<'_>, group: &str) -> Reading {
        let (file, stats) = (self.path("store"), self.path("record.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "--group", group, "--no-index", "--dir"]).arg(&file);
        command.env("TAPDECK_SOCKET", self.path("s")).arg("--stats-json").arg(stats);
        let program = Talking::start(command.stdout(Stdio::null()));
        serving.program.wait_to_say(" comes (process");
        Reading { program, file }
    }

    fn send(&self, numbers: std::ops::Range<u32>) {
        let to = self.net.b.inside(|| Interface::find("vb").expect("made above")).mac;
        let to = to.expect("a MAC");
        self.net.a.inside(|| {
            let mut sender = Sender::on("va");
            for i in numbers {
                let mut frame = frame(to, 200, i);
                frame[34..36].copy_from_slice(&(i as u16).to_be_bytes());
                sender.send(&frame);
            }
            sender.wait_for_arrival();
        });
    }
}

/// What `tapdeck check-traffic` says of capture files.
fn check(sent: &Path, files: &[&PathBuf]) -> Value {
    let mut check = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    check.args(["check-traffic", "--json", "--sent"]).arg(sent).args(files);
    let check = check.output().expect("it runs");
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    serde_json::from_slice(&check.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// A daemon that serves.
struct Serving<'a> {
    program: Talking,
    bench: &'a Bench,
}

impl Serving<'_> {
    fn stats(&self) -> Value {
        Asking::at(&self.bench.path("s")).ask(r#"{"verb":"stats"}"#)
    }

    fn group(&self, name: &str) -> Value {
        let stats = self.stats();
        let groups = stats["groups"].as_array().expect("groups").clone();
        groups.into_iter().find(|g| g["name"] == name).unwrap_or_else(|| panic!("{name}: {stats}"))
    }

    /// Waits until so many members of a group are there, and none is away.
    fn wait_members(&self, name: &str, members: usize) {
        wait_for("the members", || {
            let group = self.group(name);
            let there = group["members"].as_array().expect("members").clone();
            there.len() == members && there.iter().all(|member| member["away"] == false)
        });
    }

    fn wait_seen(&self, name: &str, packets: u64) {
        wait_for("the group to see the packets", || number(&self.group(name), "seen") >= packets);
    }

    fn kill(mut self) {
        self.program.process.signal(Signal::KILL);
        self.program.end();
    }

    /// Ends it in good order, and returns its last counters.
    fn stop(mut self) -> Value {
        self.program.process.signal(Signal::TERM);
        let (status, said) = self.program.end();
        assert!(status.success(), "{status}: {said:#?}");
        let stats = fs::read_to_string(self.bench.path("stats.json")).expect("it was written");
        let last = stats.lines().last().expect("a line");
        serde_json::from_str(last).expect("JSON")
    }
}

/// A member that writes what it reads.
struct Reading {
    program: Talking,
    file: PathBuf,
}

impl Reading {
    /// Ends it as Ctrl-C does.
    fn stop(&mut self) {
        self.program.process.signal(Signal::INT);
        let (status, said) = self.program.end();
        assert!(status.success(), "{status}: {said:#?}");
    }

    /// Addresses, protocol and ports of each packet.
    fn flows(&self) -> BTreeSet<Vec<u8>> {
        let packets = Contents::of(&self.file).packets;
        packets.iter().map(|packet| packet.frame[23..38].to_vec()).map(without_sum).collect()
    }

    fn numbers(&self) -> BTreeSet<u32> {
        let packets = Contents::of(&self.file).packets;
        let numbers: BTreeSet<u32> = packets.iter().map(|p| number_of(&p.frame)).collect();
        assert_eq!(numbers.len(), packets.len(), "none comes twice");
        numbers
    }
}

/// Takes the header's checksum out of what tells a flow.
fn without_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.drain(1..3);
    bytes
}

/// Kills daemons at random moments, with members of two groups that read.
fn each_packet_reaches_each_group_once(hook: &str, size: &str, rate: &str) {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let bench = Bench::new();
    let groups =
        [group("shared", hook, "steering = \"flow\""), group("all", hook, "steering = \"copy\"")];
    let config = format!("{SERVE}{}", groups.concat());
    let mut first = bench.start(&config);
    let mut halves = ["one", "two"].map(|name| bench.attach(&mut first, "shared", name));
    let mut copy = bench.attach(&mut first, "all", "copy");
    let mut tape = bench.record(&mut first, "all");

    let sent = bench.path("sent.json");
    let mut sender = bench.net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "va", "--backend", "txring", "--rate", rate, "--flows", "40"]);
    sender.args(["--size", size, "--duration", "600s", "--json"]).arg(&sent);
    let sender = sender.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let sender = Running(sender);
    first.wait_seen("all", 1000);
    first.kill();
    for kill in 0..kills(KILLS) {
        // The moment is the point here, so nothing is waited for.
        let mut daemon = if kill % 2 == 0 {
            bench.start(&config).program
        } else {
            // Also while it takes over.
            Talking::start(&mut bench.command("", &config))
        };
        std::thread::sleep(Duration::from_millis(random.below(800)));
        daemon.process.signal(Signal::KILL);
        daemon.end();
    }
    let last = bench.start(&config);
    last.wait_members("shared", 2);
    last.wait_members("all", 2);
    assert!(sender.interrupt().success());
    let made: Value =
        serde_json::from_slice(&fs::read(&sent).expect("it was written")).expect("JSON");
    let made = number(&made, "sent");
    last.wait_seen("shared", made);
    last.wait_seen("all", made);
    halves.iter_mut().chain([&mut copy, &mut tape]).for_each(Reading::stop);
    let (shared, all) = (last.group("shared"), last.group("all"));
    let stats = last.stop();
    for group in [&shared, &all] {
        assert_accounted(group);
        assert_eq!((number(group, "seen"), number(group, "no_member")), (made, 0), "{group}");
    }
    assert!(number(&stats, "takeovers") > kills(KILLS) / 2, "{stats}");
    let port = &stats["ports"][0];
    assert_eq!((number(port, "seen"), number(port, "unseen")), (made, 0), "{stats}");

    let dropped = |group: &Value| number(group, "dropped_ring") + number(group, "dropped_other");
    let [one, two] = &halves;
    let of = |files: &[&PathBuf]| {
        let report = check(&sent, files);
        let r = |key| number(&report, key);
        let counts = [r("repeated"), r("damaged"), r("foreign")];
        assert_eq!(counts, [0; 3], "seed {seed}: {report}");
        (r("received"), r("lost"))
    };
    let halves_got = of(&[&one.file, &two.file]);
    assert_eq!(halves_got, (number(&shared, "captured"), dropped(&shared)), "seed {seed}");
    let copies = [of(&[&copy.file]), of(&[&tape.file])];
    let sums = (copies[0].0 + copies[1].0, copies[0].1 + copies[1].1);
    assert_eq!(sums, (number(&all, "captured"), dropped(&all)), "seed {seed}");
    assert_eq!(number(&all, "extra"), made, "both have all that there was");
    let (one, two) = (one.flows(), two.flows());
    assert!(!one.is_empty() && !two.is_empty() && one.is_disjoint(&two), "{one:?} {two:?}");
    println!(
        "{} takeovers, {made} packets, {} and {} dropped",
        number(&stats, "takeovers"),
        dropped(&shared),
        dropped(&all)
    );
}

#[test]
fn daemons_are_killed_at_xdp_under_short_packets() {
    each_packet_reaches_each_group_once("xdp", "60", "10kpps");
}

#[test]
fn daemons_are_killed_at_tcx_under_mixed_packets() {
    each_packet_reaches_each_group_once("tcx", "imix", "4kpps");
}

/// What stays, goes and comes with another configuration, at a hook.
fn another_configuration_takes_effect(hook: &str) {
    let bench = Bench::new();
    let stays = "steering = \"flow\"\nfilter = \"udp\"";
    let before = [group("goes", hook, ""), group("stays", hook, stays)].concat();
    let mut daemon = bench.start(&format!("{SERVE}{before}"));
    let mut goes = bench.attach(&mut daemon, "goes", "goes");
    let mut members = ["one", "two"].map(|name| bench.attach(&mut daemon, "stays", name));
    bench.send(0..100);
    daemon.wait_seen("stays", 100);
    daemon.kill();
    bench.send(100..200);

    let stays = "steering = \"copy\"\nfilter = \"udp[0:2] >= 250\"\nsnaplen = 60";
    let after = [group("stays", hook, stays), group("comes", hook, "")].concat();
    let mut daemon = bench.start(&format!("{SERVE}{after}"));
    daemon.wait_members("stays", 2);
    let (status, said) = goes.program.end();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert_eq!(goes.numbers(), (0..200).collect());
    let mut comes = bench.attach(&mut daemon, "comes", "comes");
    bench.send(200..300);
    daemon.wait_seen("stays", 300);
    comes.stop();
    members.iter_mut().for_each(Reading::stop);
    let (stays, came) = (daemon.group("stays"), daemon.group("comes"));
    let stats = daemon.stop();
    assert_eq!(stats["groups"].as_array().map(Vec::len), Some(2), "{stats}");
    assert_accounted(&stays);
    assert_accounted(&came);
    let n = |group: &Value, key| number(group, key);
    assert_eq!((n(&stays, "seen"), n(&stays, "filtered"), n(&stays, "extra")), (300, 50, 50));
    assert_eq!((n(&came, "seen"), n(&came, "captured")), (100, 100), "{came}");
    assert_eq!(comes.numbers(), (200..300).collect());
    let [one, two] = members.map(|member| Contents::of(&member.file).packets);
    assert_eq!(one.len() + two.len(), 200 + 2 * 50);
    for packets in [one, two] {
        let short = packets.iter().filter(|packet| packet.frame.len() == 60).count();
        assert_eq!(short, 50, "each has a copy since");
    }
}

#[test]
fn another_configuration_takes_effect_at_xdp() {
    another_configuration_takes_effect("xdp");
}

#[test]
fn another_configuration_takes_effect_at_tcx() {
    another_configuration_takes_effect("tcx");
}

#[test]
fn programs_of_netfilter_stay_and_no_others_can_be_had() {
    let bench = Bench::new();
    bench.net.b.run("ip addr add 10.213.0.2/24 dev vb");
    let config = format!("{SERVE}{}", group("g", "netfilter", ""));
    let mut daemon = bench.start(&config);
    let mut member = bench.attach(&mut daemon, "g", "member");
    bench.send(0..50);
    daemon.wait_seen("g", 50);
    daemon.kill();
    let other = format!("{SERVE}{}", group("g", "netfilter", "filter = \"tcp\""));
    refuses(bench.command("", &other), 2, "cannot be exchanged");
    bench.send(50..100);
    let daemon = bench.start(&config);
    daemon.wait_members("g", 1);
    bench.send(100..150);
    daemon.wait_seen("g", 150);
    member.stop();
    assert_eq!(member.numbers(), (0..150).collect());
    assert_accounted(&daemon.group("g"));
}

/// Fails with these words, and leaves what is there.
fn refuses(mut command: Command, code: i32, words: &str) {
    let out = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

#[test]
fn a_stop_leaves_all_in_place_and_what_does_not_fit_is_refused() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("g", "tcx", "snaplen = 1000"));
    let mut daemon = bench.start(&config);
    let mut member = bench.attach(&mut daemon, "g", "member");
    bench.send(0..50);
    daemon.wait_seen("g", 50);
    let stats = daemon.stop();
    assert_eq!(number(&stats, "takeovers"), 0, "{stats}");
    bench.send(50..100);
    let listed = bench.listed();
    assert_eq!((&listed["name"], &listed["owned"]), (&json!("deck"), &json!(false)), "{listed}");
    assert_eq!((&listed["groups"], &listed["members"]), (&json!(["g"]), &json!(1)), "{listed}");
    assert_eq!(listed["interfaces"][0], json!({"name": "vb", "hook": "tcx"}), "{listed}");
    let text = String::from_utf8(bench.ctl(&["list"]).stdout).expect("UTF-8");
    assert!(
        text.contains("deck: vb at tcx; no daemon") && text.contains("1 member of g"),
        "{text}"
    );

    let larger = config.replace("16MiB", "32MiB");
    refuses(bench.command("", &larger), 2, "ring-bytes");
    let longer = config.replace("snaplen = 1000", "snaplen = 2000");
    refuses(bench.command("", &longer), 2, "for a snaplen of 1000 at most");
    let mut recorder = bench.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    recorder.env("TAPDECK_PERSIST", bench.pins());
    recorder.args(["record", "-i", "vb", "--hook", "tcx", "--persist", "deck", "--dir"]);
    recorder.arg(bench.path("tape"));
    refuses(recorder, 2, "deck is the name of what a recorder has left, and not a daemon");

    let daemon = bench.start(&config);
    refuses(bench.command("", &config), 1, "is in use by a recorder or a daemon that runs");
    assert_eq!(bench.ctl(&["drop", "deck"]).status.code(), Some(1), "it is in use");
    daemon.wait_members("g", 1);
    bench.send(100..150);
    daemon.wait_seen("g", 150);
    member.stop();
    assert_eq!(member.numbers(), (0..150).collect());
    let stats = daemon.stop();
    assert_eq!(number(&stats, "takeovers"), 1, "{stats}");
    let dropped = bench.ctl(&["drop", "deck"]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert!(bench.ctl(&["list"]).stdout.is_empty());
    assert!(!bench.pins().join("deck").exists());
}

/// A connection by hand, as a user, and the line that it was answered.
fn ask_as(user: u32, bench: &Bench, request: &Value) -> (Asking, Value) {
    std::thread::scope(|scope| {
        let ask = || {
            let user = rustix::process::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            let mut asking = Asking::at(&bench.path("s"));
            let answer = asking.ask(&request.to_string());
            (asking, answer)
        };
        scope.spawn(ask).join().expect("it asks")
    })
}

#[test]
fn nobody_takes_the_place_of_a_member_that_is_away() {
    let bench = Bench::new();
    fs::set_permissions(bench.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let ask = |request: &Value| ask_as(65_534, &bench, request);
    let config = format!("{SERVE}{}", group("g", "tcx", ""));
    let daemon = bench.start_with("--socket-mode 0666", &config);
    let (member, answer) = ask(&json!({"verb": "attach", "group": "g"}));
    let place = &answer["member"];
    let secret = answer["lasting"]["secret"].as_str().expect("a secret").to_owned();
    assert_eq!((secret.len(), &answer["lasting"]["abandon_ms"]), (32, &json!(60_000)));
    let reattach = |group: &str, member: &Value, secret: &str| json!({"verb": "reattach", "group": group, "member": member, "secret": secret});
    let own = reattach("g", place, &secret);
    let (_, answer) = ask(&own);
    assert_eq!(answer["ok"], false, "it is there: {answer}");
    daemon.kill();
    drop(member);

    let daemon = bench.start_with("--socket-mode 0666", &config);
    let wrong = format!("{}0", &secret[..31]);
    let wrong = if wrong == secret { "0".repeat(32) } else { wrong };
    for request in [
        reattach("g", place, &wrong),
        reattach("g", place, ""),
        reattach("g", place, &format!("{secret}0")),
        reattach("g", &json!(7), &secret),
        reattach("h", place, &secret),
    ] {
        let (_, answer) = ask(&request);
        assert_eq!(answer["ok"], false, "{request}: {answer}");
    }
    // Other users, who have found the secret out.
    for user in [65_533, 0] {
        let (_, answer) = ask_as(user, &bench, &own);
        assert_eq!(answer["ok"], false, "{answer}");
    }
    let (member, answer) = ask(&own);
    assert_eq!((&answer["ok"], &answer["member"]), (&json!(true), place), "{answer}");
    assert_eq!(answer["lasting"]["secret"], json!(secret), "{answer}");
    let (_, answer) = ask(&own);
    assert_eq!(answer["ok"], false, "one process has it: {answer}");
    assert_eq!(number(&daemon.group("g"), "captured"), 0);
    drop(member);
    wait_for("the member to leave", || daemon.group("g")["members"] == json!([]));
}

#[test]
fn who_does_not_come_back_leaves_and_its_share_goes_to_others() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("g", "xdp", "steering = \"flow\""));
    let mut daemon = bench.start(&config);
    let mut stays = bench.attach(&mut daemon, "g", "stays");
    let dies = bench.attach(&mut daemon, "g", "dies");
    daemon.kill();
    drop(dies);
    let mut daemon = bench.start(&config);
    bench.send(0..100);
    daemon.program.wait_to_say("is gone");
    daemon.wait_members("g", 1);
    bench.send(100..200);
    daemon.wait_seen("g", 200);
    stays.stop();
    let group = daemon.group("g");
    assert_accounted(&group);
    assert_eq!((number(&group, "captured"), number(&group, "no_member")), (200, 0), "{group}");
    let read = stays.numbers();
    assert!(read.len() > 100 && read.len() < 200, "{}", read.len());
    assert!((100..200).all(|number| read.contains(&number)));
}

/// A program that waits by itself has one descriptor over all daemons.
#[test]
fn one_descriptor_serves_over_all_daemons() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("g", "tcx", ""));
    let daemon = bench.start(&config);
    let options = Options { socket: bench.path("s"), ..Options::default() };
    let mut member = tapdeck_client::Member::open("g", &options).expect("it may attach");
    let mut next = 0;
    let mut read_to = |member: &mut tapdeck_client::Member, end: u32| {
        while next < end {
            wait_for("the descriptor", || {
                use std::os::fd::AsFd as _;
                let fd = member.as_fd();
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                matches!(
                    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())),
                    Ok(1)
                )
            });
            while let Next::Got(packet) =
                member.next_packet(Some(Duration::ZERO)).expect("it reads")
            {
                assert_eq!(number_of(packet.bytes), next);
                next += 1;
            }
        }
    };
    bench.send(0..10);
    read_to(&mut member, 10);
    daemon.kill();
    wait_for("the end to be noticed", || {
        member.next_packet(Some(Duration::from_millis(10))).expect("it reads");
        member.attachment().is_away()
    });
    bench.send(10..20);
    read_to(&mut member, 20);
    let daemon = bench.start(&config);
    wait_for("the place", || {
        member.next_packet(Some(Duration::from_millis(10))).expect("it reads");
        !member.attachment().is_away()
    });
    assert_eq!(member.stats().expect("the daemon answers").captured, 20);
    bench.send(20..30);
    read_to(&mut member, 30);
    // Nothing to come back to.
    let other = format!("{SERVE}{}", group("h", "tcx", ""));
    daemon.kill();
    let _daemon = bench.start(&other);
    wait_for("the end", || {
        matches!(member.next_packet(Some(Duration::from_millis(10))), Ok(Next::End))
    });
}

/// A program that uses libpcap, and one in C.
#[test]
fn programs_that_are_not_tapdeck_read_on_too() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("g", "xdp", "steering = \"copy\""));
    let mut daemon = bench.start(&config);
    let built = std::env::current_exe().expect("a test is a program");
    let built = built.parent().expect("cargo builds it with what tests depend on");
    let follow = bench.path("follow");
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../client");
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&follow, &PathBuf::from(client).join("examples/follow.c")])
        .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../client/include"), "-L"])
        .arg(built)
        .args(["-ltapdeck_client", &format!("-Wl,-rpath,{}", built.display())])
        .status();
    assert!(compiled.expect("make setup installs it").success());
    let (followed, captured) = (bench.path("followed"), bench.path("captured.pcap"));
    let out = fs::File::create(&followed).expect("a directory");
    let follow =
        Command::new(&follow).args(["g".as_ref(), bench.path("s").as_os_str()]).stdout(out).spawn();
    let _follow = Running(follow.expect("it was compiled"));
    daemon.program.wait_to_say(" comes (process");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.env("LD_PRELOAD", built.join("libtapdeck_pcap.so"));
    tcpdump.env("TAPDECK_SOCKET", bench.path("s"));
    tcpdump.args(["-i", "deck:g", "-n", "-U", "-Z", "root", "-w"]).arg(&captured);
    let tcpdump = tcpdump.stderr(Stdio::null()).spawn().expect("make setup installs it");
    let tcpdump = Running(tcpdump);
    daemon.program.wait_to_say(" comes (process");
    bench.send(0..50);
    daemon.wait_seen("g", 50);
    daemon.kill();
    bench.send(50..100);
    let daemon = bench.start(&config);
    daemon.wait_members("g", 2);
    bench.send(100..150);
    daemon.wait_seen("g", 150);
    let lines = || fs::read_to_string(&followed).map_or(0, |text| text.lines().count());
    wait_for("the program in C", || lines() >= 150);
    let captured_numbers = || {
        let Ok(mut file) = pcap::Capture::from_file(&captured) else { return Vec::new() };
        std::iter::from_fn(|| Some(number_of(file.next_packet().ok()?.data))).collect()
    };
    wait_for("tcpdump", || captured_numbers().len() >= 150);
    assert!(tcpdump.interrupt().success());
    let mut numbers = captured_numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..150).collect::<Vec<u32>>());
    assert_eq!(lines(), 150);
}

#[test]
fn members_are_at_the_end_when_no_daemon_comes_in_time() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("g", "xdp", "deliver = \"consume\""));
    let mut daemon = bench.start_with("--abandon 5s", &config);
    let mut member = bench.attach(&mut daemon, "g", "member");
    bench.send(0..50);
    daemon.wait_seen("g", 50);
    daemon.kill();
    bench.send(50..100);
    let (status, said) = member.program.end();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert_eq!(member.numbers(), (0..100).collect());
    // The hooks let them pass by now.
    bench.send(100..150);
    let mut daemon = bench.start(&config);
    daemon.program.wait_to_say("is gone");
    let stats = daemon.stop();
    assert_accounted(&stats["groups"][0]);
    let port = &stats["ports"][0];
    let n = |key| number(port, key);
    // Those that find the time over are still taken.
    assert!((1..50).contains(&n("unseen")), "{stats}");
    assert_eq!((n("seen") + n("unseen"), n("nic_received")), (150, 150), "{stats}");
}

#[test]
fn a_hook_that_nobody_chose_is_the_one_that_was_left() {
    let bench = Bench::new();
    let config = format!("{SERVE}{}", group("ids", "auto", ""));
    let serving = bench.start(&config);
    assert_eq!(serving.group("ids")["hook"], "xdp");
    bench.send(0..10);
    wait_for("the packets", || number(&serving.group("ids"), "seen") == 10);
    serving.kill();
    let next = bench.start(&config);
    let group = next.group("ids");
    assert_eq!((&group["hook"], number(&group, "seen")), (&json!("xdp"), 10));
}
