//! Unchanged programs on the device `deck:NAME`: tcpdump, dumpcap and tshark, against a daemon that
//! has no kernel behind it.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Daemon, EPOCH_NS, Form, Joined, Manner, Sent, Tape, udp};
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_testkit::wait_for;

/// Where cargo has put the object: beside this test.
fn object() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let object = directory.join("libtapdeck_pcap.so");
    assert!(object.exists(), "no {}", object.display());
    object
}

/// A program that has the object in front of its libpcap.
fn program(name: &str, daemon: &Daemon) -> Command {
    let mut command = Command::new(name);
    command.env("LD_PRELOAD", object()).env("TAPDECK_SOCKET", daemon.socket());
    command
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fills the rings with packets 0 to `n - 1`, on whichever ring has room, and flushes.
fn fill(joined: &Joined, n: u16) {
    for i in 0..n {
        let mut tape = joined.tape();
        let ring = usize::from(i % 2);
        while !tape.put(ring, &udp(i)) {
            tape.wake();
            drop(tape);
            std::thread::yield_now();
            tape = joined.tape();
        }
    }
    joined.tape().flush();
}

fn tcpdump_r(file: &Path, arguments: &[&str]) -> Output {
    let output =
        Command::new("tcpdump").args(["-nn", "-r"]).arg(file).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

#[test]
fn tcpdump_prints_a_groups_packets_in_order() {
    let daemon = Daemon::new(Manner::default());
    let child = start(program("tcpdump", &daemon).args([
        "-i",
        "deck:ids",
        "-nn",
        "-tt",
        "-c",
        "200",
        "--time-stamp-precision=nano",
        "udp and dst port 53",
    ]));
    fill(&daemon.joined(), 200);
    let output = child.wait_with_output().unwrap();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("link-type EN10MB (Ethernet)"), "{errors}");
    assert!(errors.contains("200 packets captured"), "{errors}");
    assert!(errors.contains("200 packets received by filter"), "{errors}");
    assert!(errors.contains("0 packets dropped by kernel"), "{errors}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 200);
    for (n, line) in lines.iter().enumerate() {
        let ns = EPOCH_NS + n as u64 * 1_000_001;
        let (s, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
        let begins = format!("{s}.{ns:09} IP 10.0.0.1.{} > 10.0.0.2.53:", 1000 + n);
        assert!(line.starts_with(&begins), "{line} is not {begins}");
    }
}

#[test]
fn tcpdump_writes_what_its_filter_and_snaplen_leave_and_ends_at_an_interrupt() {
    let daemon = Daemon::new(Manner::default());
    let file = daemon.directory().join("out.pcap");
    let child = start(
        program("tcpdump", &daemon)
            .args(["-i", "deck:ids", "-U", "-s", "40", "-w"])
            .arg(&file)
            .args(["-Z", "root", "src port 1003 or src port 1004"]),
    );
    let joined = daemon.joined();
    fill(&joined, 10);
    // A header of 24 bytes and two packets of 16 + 40.
    wait_for("tcpdump to write two packets", || {
        std::fs::metadata(&file).is_ok_and(|file| file.len() >= 136)
    });
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("2 packets captured"), "{errors}");
    assert!(errors.contains("2 packets received by filter"), "{errors}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 136);
    let read = tcpdump_r(&file, &["-tt"]);
    assert!(text(&read.stderr).contains("snapshot length 40"), "{}", text(&read.stderr));
    let lines = text(&read.stdout);
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("10.0.0.1.1003 > 10.0.0.2.53"), "{}", lines[0]);
    wait_for("tcpdump to leave", || joined.has_left());
}

#[test]
fn tcpdump_tells_apart_which_way_packets_went() {
    for arguments in [&["outbound"][..], &["-Q", "out", "ip"]] {
        let daemon = Daemon::new(Manner::default());
        let child = start(
            program("tcpdump", &daemon)
                .args(["-i", "deck:ids", "-nn", "-c", "3", "--immediate-mode"])
                .args(arguments),
        );
        let joined = daemon.joined();
        for n in 0..9 {
            assert!(joined.tape().put(0, &Sent { flags: 1 + u32::from(n % 3 == 0), ..udp(n) }));
        }
        joined.tape().flush();
        let output = child.wait_with_output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        let ports: Vec<bool> =
            [1000, 1003, 1006].map(|port| out.contains(&format!("10.0.0.1.{port} >"))).to_vec();
        assert_eq!(ports, [true; 3], "{arguments:?}: {out}");
    }
}

#[test]
fn tcpdump_ends_with_the_daemon_and_shows_everything_before() {
    let daemon = Daemon::new(Manner::default());
    let child = start(program("tcpdump", &daemon).args(["-i", "deck:ids", "-nn", "-l"]));
    let joined = daemon.joined();
    for n in 0..5 {
        assert!(joined.tape().put(usize::from(n % 2), &udp(n)));
    }
    daemon.die();
    let output = child.wait_with_output().unwrap();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out.lines().count(), 5, "{out}");
    assert!(errors.contains("deck:ids: the daemon has ended"), "{errors}");
    assert!(errors.contains("5 packets captured"), "{errors}");
}

#[test]
fn losses_are_told_as_dropped_by_the_kernel() {
    const KEPT: u32 = 3000;
    // Until the rings are full, and three packets more.
    let prepare = |tape: &mut Tape| {
        for n in 0.. {
            if !tape.put(0, &udp(n % 1000)) {
                break;
            }
        }
        assert!(!tape.put(0, &udp(0)) && !tape.put(0, &udp(0)));
        assert_eq!(tape.lost(), 3);
        tape.wake();
    };
    let form = Form { nrings: 1, ..Form::default() };
    let daemon = Daemon::new(Manner { form, prepare, ..Manner::default() });
    let count = KEPT.to_string();
    let child = start(program("tcpdump", &daemon).args(["-i", "deck:ids", "-nn", "-c", &count]));
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("3000 packets captured"), "{errors}");
    assert!(errors.contains("3 packets dropped by kernel"), "{errors}");
    // Four blocks of frames of 44 bytes, 76 in the ring, and those that were dropped.
    let received = 4 * ((65_536 - 12) / 76) + 3;
    assert!(errors.contains(&format!("{received} packets received by filter")), "{errors}");
}

#[test]
fn what_does_not_work_is_said_as_of_any_device() {
    let daemon = Daemon::new(Manner::default());
    let run = |arguments: &[&str]| {
        let output = program("tcpdump", &daemon).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        text(&output.stderr)
    };
    let errors = run(&["-i", "deck:nids"]);
    assert!(errors.contains("deck:nids: there is no group \"nids\""), "{errors}");
    let errors = run(&["-i", "deck:ids", "-I"]);
    assert!(errors.contains("monitor mode"), "{errors}");
    let errors = run(&["-i", "deck:ids", "port nowhere"]);
    assert!(errors.contains("nowhere"), "{errors}");
    let errors = run(&["-i", "deck:ids", "-y", "IEEE802_11"]);
    assert!(errors.contains("no link type 105"), "{errors}");
    let output = Command::new("tcpdump")
        .env("LD_PRELOAD", object())
        .env("TAPDECK_SOCKET", "/nonexistent/socket")
        .args(["-i", "deck:ids"])
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("start `tapdeck serve`"), "{errors}");
}

#[test]
fn groups_are_among_the_devices_and_other_devices_are_libpcaps() {
    let daemon = Daemon::new(Manner::default());
    let output = program("tcpdump", &daemon).arg("-D").output().unwrap();
    let listed = text(&output.stdout);
    assert!(listed.contains(".deck:ids (tapdeck group on eth1)"), "{listed}");
    assert!(listed.contains(".lo ["), "{listed}");
    // Files are libpcap's too.
    let file = daemon.directory().join("out.pcap");
    let mut child = start(
        program("tcpdump", &daemon)
            .args(["-i", "deck:ids", "-c", "4", "-Z", "root", "-w"])
            .arg(&file),
    );
    fill(&daemon.joined(), 4);
    assert!(child.wait().unwrap().success());
    let output = program("tcpdump", &daemon)
        .args(["-nn", "-r"])
        .arg(&file)
        .arg("src port 1002")
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout).lines().count(), 1);
    // And so is a device that is none, and any without a privilege or an interface.
    let output = program("tcpdump", &daemon).args(["-i", "decknone"]).output().unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("decknone: No such device exists"), "{errors}");
}

#[test]
fn dumpcap_writes_every_packet_with_its_nanoseconds() {
    let daemon = Daemon::new(Manner::default());
    let file = daemon.directory().join("out.pcapng");
    let child = start(
        program("dumpcap", &daemon)
            .args(["-i", "deck:ids", "-c", "3000", "-f", "udp", "-w"])
            .arg(&file),
    );
    fill(&daemon.joined(), 3000);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let bytes = std::fs::read(&file).unwrap();
    let mut resolution = 0;
    let mut came = 0;
    for record in Reader::new(&bytes) {
        match record.unwrap() {
            Record::Interface(interface) => {
                assert_eq!(interface.name.as_deref(), Some("deck:ids"));
                resolution = interface.resolution;
            }
            Record::Packet(packet) => {
                assert_eq!(packet.frame, udp(came).frame, "packet {came}");
                assert_eq!(packet.timestamp, udp(came).time_ns);
                came += 1;
            }
            Record::Statistics(statistics) => assert_eq!(statistics.dropped.unwrap_or(0), 0),
            _ => {}
        }
    }
    assert_eq!((resolution, came), (9, 3000));
}

#[test]
fn dumpcap_lists_a_groups_link_types_and_ends_at_an_interrupt() {
    let daemon = Daemon::new(Manner::default());
    let output = program("dumpcap", &daemon).args(["-i", "deck:ids", "-L"]).output().unwrap();
    let listed = text(&output.stdout) + &text(&output.stderr);
    assert!(listed.contains("EN10MB (Ethernet)"), "{listed}");
    drop(daemon.joined());
    let file = daemon.directory().join("out.pcapng");
    let mut child = start(program("dumpcap", &daemon).args(["-i", "deck:ids", "-w"]).arg(&file));
    let joined = daemon.joined();
    fill(&joined, 20);
    let mut errors = child.stderr.take().unwrap();
    let mut said = Vec::new();
    while !text(&said).contains("Packets: 20") {
        let mut byte = [0];
        errors.read_exact(&mut byte).unwrap_or_else(|e| panic!("{e}: {}", text(&said)));
        said.push(byte[0]);
    }
    interrupt(&child);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("20/0"), "{rest}");
    wait_for("dumpcap to leave", || joined.has_left());
}

#[test]
fn tshark_dissects_a_groups_packets() {
    let daemon = Daemon::new(Manner::default());
    let child = start(program("tshark", &daemon).args([
        "-i",
        "deck:ids",
        "-n",
        "-c",
        "50",
        "-f",
        "udp",
        "-T",
        "fields",
        "-e",
        "udp.srcport",
    ]));
    // It asks for the link types first, and captures then.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                if let Some(joined) = daemon.try_joined() {
                    fill(&joined, 50);
                }
                std::thread::yield_now();
            }
        });
        let output = child.wait_with_output().unwrap();
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        feeder.join().unwrap();
        output
    });
    assert!(output.status.success(), "{}", text(&output.stderr));
    let ports: Vec<u16> = text(&output.stdout).lines().map(|port| port.parse().unwrap()).collect();
    assert_eq!(ports, (1000..1050).collect::<Vec<u16>>());
}
