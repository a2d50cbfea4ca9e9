//! Wireshark's way to recordings and groups, tried with tshark; and packets over TCP.

mod testbed;

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_packet::trace;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Net, Running, Sender, Talking, wait_for};
use testbed::daemon::Daemon;
use testbed::recorder::{Recorder, frame};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn tapdeck(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(args).stdin(Stdio::null());
    command
}

fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status} {said}");
    String::from_utf8(stdout).expect("text")
}

/// The numbers of the packets in a capture file, as far as it goes.
fn numbers(data: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    let Ok(mut reader) = trace::Reader::new(data) else { return numbers };
    while let Ok(Some(packet)) = reader.next_packet() {
        numbers.push(number_of(packet.frame));
    }
    numbers
}

fn send(net: &Net, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        sender.send_all(numbers.map(|i| frame([2, 0, 0, 0, 0, 2], 100, i)));
    });
}

/// What tshark needs to find the command, a store and a daemon.
struct Wireshark {
    dir: tempfile::TempDir,
    store: PathBuf,
    socket: PathBuf,
}

impl Wireshark {
    fn new(store: PathBuf, socket: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let said = done(&mut tapdeck(&["extcap", "--install", "--into", text(dir.path())]));
        assert_eq!(said.trim(), text(&dir.path().join("tapdeck")));
        Self { dir, store, socket }
    }

    /// Returns tshark, which finds nothing but the command where it looks for those that capture:
    /// of root it believes no environment that says where that is.
    fn tshark(&self, args: &[&str]) -> Command {
        let folders = done(Command::new("tshark").args(["-G", "folders"]));
        let folder = folders.lines().find_map(|line| line.strip_prefix("Extcap path:"));
        let folder = folder.expect("it has one").trim().to_owned();
        let script = "mount --bind \"$0\" \"$1\" && shift && exec tshark \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.dir.path()).arg(folder).args(args);
        command.stdin(Stdio::null()).env("HOME", self.dir.path());
        command.env("TAPDECK_STORES", &self.store).env("TAPDECK_SOCKET", &self.socket);
        command
    }

    /// The preference by which a flag of the store's interface is set.
    fn option(&self, flag: &str, value: &str) -> String {
        let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.interface().chars().map(keep).collect();
        format!("extcap.{}.{flag}:{value}", name.to_lowercase())
    }

    fn interface(&self) -> String {
        format!("tapdeck:{}", text(&self.store))
    }
}

/// Runs it until its output has so many packets, then ends it. Returns their numbers.
fn take(mut command: Command, packets: usize, send: impl FnOnce()) -> Vec<u32> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("out.pcapng");
    command.args(["-w", text(&file), "-c", &packets.to_string()]);
    let mut running = Running(command.spawn().expect("tshark is there"));
    // It has begun when it has written a packet, and there is one.
    let has_packets = || !numbers(&fs::read(&file).unwrap_or_default()).is_empty();
    wait_for("tshark to capture", has_packets);
    send();
    assert!(running.wait().success());
    numbers(&fs::read(&file).expect("it was written"))
}

#[test]
fn tshark_captures_a_recording_from_back_then_and_on() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook tcx --segment-time 300ms --flush 100ms --dir {}", text(&store));
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..300);
    recorder.wait_for_captured(300);
    let shark = Wireshark::new(store, dir.path().join("no daemon"));
    let interface = shark.interface();
    let listed = done(&mut shark.tshark(&["-D"]));
    assert!(listed.contains(&interface), "{listed}");
    let links = done(&mut shark.tshark(&["-L", "-i", &interface]));
    assert!(links.contains("EN10MB"), "{links}");

    let rewind = shark.option("rewind", "all");
    let all = shark.tshark(&["-i", &interface, "-o", &rewind]);
    let given = take(all, 1000, || send(&net, 300..1000));
    assert_eq!(given, (0..1000).collect::<Vec<u32>>());
    // A capture filter, and nothing live.
    let follow = shark.option("follow", "false");
    let args = ["-i", &interface, "-o", &rewind, "-o", &follow, "-f", "ether[45] & 1 = 1"];
    let odd = take(shark.tshark(&args), 100, || ());
    assert_eq!(odd, (0..200).filter(|i| i % 2 == 1).collect::<Vec<u32>>());
    recorder.stop();
}

#[test]
fn tshark_captures_a_group() {
    let net = Net::new();
    let group = "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"";
    let daemon = Daemon::start(&net, group);
    let shark = Wireshark::new("/nowhere".into(), daemon.socket());
    let listed = done(&mut shark.tshark(&["-D"]));
    assert!(listed.contains("deck:ids (Group ids of vb)"), "{listed}");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("out.pcapng");
    let args = ["-i", "deck:ids", "-f", "ether[45] & 1 = 1", "-c", "100", "-w", text(&file)];
    let mut running = Running(shark.tshark(&args).spawn().expect("tshark is there"));
    daemon.wait_members("ids", 1);
    send(&net, 0..200);
    assert!(running.wait().success());
    let given = numbers(&fs::read(&file).expect("it was written"));
    assert_eq!(given, (0..200).filter(|i| i % 2 == 1).collect::<Vec<u32>>());
    daemon.wait_members("ids", 0);
    daemon.stop();
}

#[test]
fn a_filter_is_judged_for_wireshark() {
    let dir = tempfile::tempdir().expect("a directory");
    let interface = format!("--extcap-interface=tapdeck:{}", text(dir.path()));
    let judge = |filter: &str| {
        done(&mut tapdeck(&["extcap", &interface, "--extcap-capture-filter", filter]))
    };
    assert_eq!(judge("port 53"), "");
    assert!(judge("port and").contains("syntax error"));
    let config = done(&mut tapdeck(&["extcap", &interface, "--extcap-config"]));
    assert!(config.lines().all(|line| line.starts_with("arg {number=")), "{config}");
    for args in [&["extcap", "--extcap-interface=eth0", "--extcap-config"][..], &["extcap"]] {
        assert_eq!(tapdeck(args).output().expect("it runs").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn what_is_installed_is_replaced_and_what_is_somebody_elses_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let install = || tapdeck(&["extcap", "--install", "--into", text(dir.path())]).output();
    assert!(install().expect("it runs").status.success());
    assert!(install().expect("it runs").status.success());
    let script = dir.path().join("tapdeck");
    let listed = done(Command::new(&script).arg("--extcap-interfaces"));
    assert!(listed.starts_with("extcap {version="), "{listed}");
    fs::write(&script, "#!/bin/sh\n").expect("it is ours");
    assert_eq!(install().expect("it runs").status.code(), Some(1));
    assert_eq!(fs::read(&script).expect("it stays"), b"#!/bin/sh\n");
}

/// Starts a command that listens at a port that the system picks, and returns where.
fn listening(command: &mut Command) -> (Talking, String) {
    let mut talking = Talking::start(command.args(["--listen", "0"]).stdout(Stdio::null()));
    let line = talking.wait_to_say("listening at");
    let at = line.split("listening at ").nth(1).and_then(|rest| rest.split(',').next());
    (talking, at.expect("an address").to_owned())
}

#[test]
fn a_query_is_answered_over_tcp() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook tcx --flush 100ms --dir {}", text(&store));
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..300);
    recorder.wait_for_captured(300);
    let ask = ["query", "--dir", text(&store), "--limit", "200"];
    let (mut server, address) = listening(&mut tapdeck(&ask));
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    // Each reader has the answer from its beginning.
    for _ in 0..2 {
        let mut data = Vec::new();
        TcpStream::connect(&address).and_then(|mut s| s.read_to_end(&mut data)).expect("packets");
        assert_eq!(data[..4], 0xa1b2_c3d4_u32.to_ne_bytes(), "of microseconds, as all read");
        assert_eq!(numbers(&data), (0..200).collect::<Vec<u32>>());
        server.wait_to_say("done");
    }
    server.process.signal(Signal::INT);
    assert!(server.end().0.success());

    // Live, to Wireshark's reader.
    let (mut server, address) =
        listening(&mut tapdeck(&["query", "--follow", "--dir", text(&store)]));
    let mut shark = Command::new("tshark");
    shark.args(["-i", &format!("TCP@{address}")]).stdin(Stdio::null());
    let given = take(shark, 500, || send(&net, 300..500));
    assert_eq!(given, (0..500).collect::<Vec<u32>>());
    server.wait_to_say("done");
    server.process.signal(Signal::INT);
    assert!(server.end().0.success());
    recorder.stop();
}

#[test]
fn an_answer_over_tcp_that_is_not_whole_is_in_the_exit_code() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut file = Vec::new();
    pcapng::section_header(&mut file, "linux", "another", None);
    let interface = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: "eth0".into(),
        description: String::new(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut file, &interface);
    file.extend([0xff; 64]);
    fs::write(dir.path().join("a.pcapng"), file).expect("room on the disk");
    let (mut server, address) = listening(&mut tapdeck(&["query", "--dir", text(dir.path())]));
    let mut data = Vec::new();
    TcpStream::connect(&address).and_then(|mut s| s.read_to_end(&mut data)).expect("an answer");
    server.wait_to_say("the answer is not whole");
    server.process.signal(Signal::INT);
    assert_eq!(server.end().0.code(), Some(1));
}

#[test]
fn a_group_is_given_over_tcp_to_one_reader_at_a_time() {
    let net = Net::new();
    let group = "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"";
    let daemon = Daemon::start(&net, group);
    let mut attach = tapdeck(&["attach", "--group", "ids"]);
    let (mut server, address) = listening(attach.env("TAPDECK_SOCKET", daemon.socket()));
    for round in 0..2 {
        let mut reader = TcpStream::connect(&address).expect("it listens");
        daemon.wait_members("ids", 1);
        let mut second = TcpStream::connect(&address).expect("it listens");
        let turned_away = second.read(&mut [0; 1]);
        assert!(matches!(turned_away, Ok(0) | Err(_)), "one reader at a time");
        server.wait_to_say("was turned away");
        send(&net, 0..100);
        let mut data = vec![0; 24 + 100 * (16 + 100)];
        reader.read_exact(&mut data).expect("all packets");
        assert_eq!(numbers(&data), (0..100).collect::<Vec<u32>>(), "round {round}");
        drop(reader);
        // Nobody reads: there is no member whose packets would be lost.
        daemon.wait_members("ids", 0);
    }
    server.process.signal(Signal::INT);
    assert!(server.end().0.success());
    daemon.stop();
}
