//! Programs that attach to a group of a running daemon: through the client library, and through the
//! object that stands in for libpcap.

mod testbed;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tapdeck_client::{Member, Next, Options};
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Cable, Net, Sender, wait_for};
use testbed::daemon::Daemon;
use testbed::recorder::frame;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// A user without any privilege.
const NOBODY: u32 = 65_534;

/// Starts a daemon with groups in TOML, in a directory that everybody may enter.
fn serve(net: &Net, flags: &str, groups: &str) -> Daemon {
    // Room for all packets of a test on one CPU, so that none is dropped however slow its
    // reader is.
    let config = format!("[serve]\nring-bytes = \"64MiB\"\n{groups}");
    let daemon = Daemon::start_with(net, flags, &config);
    fs::set_permissions(daemon.dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    daemon
}

fn join(daemon: &Daemon, group: &str) -> Member {
    let options = Options { socket: daemon.socket(), weight: 1 };
    Member::open(group, &options).unwrap_or_else(|e| panic!("{group}: {e}"))
}

fn send(net: &Net, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        for number in numbers {
            sender.send(&frame(MAC, 60 + number as usize % 1000, number));
        }
    });
}

/// Sends packets, a few at a time, and has the members read them, so that no ring has to hold many.
/// Each member gets all of them, in order.
fn send_to_all(net: &Net, packets: u32, members: &mut [&mut Member]) {
    const AT_ONCE: usize = 500;
    for first in (0..packets).step_by(AT_ONCE) {
        let numbers = first..packets.min(first + AT_ONCE as u32);
        send(net, numbers.clone());
        for member in members.iter_mut() {
            for wanted in numbers.clone() {
                let next = member.next_packet(Some(Duration::from_secs(60)));
                let packet = next.expect("the rings are sound").got().expect("all packets come");
                assert_eq!((number_of(packet.bytes), packet.dropped), (wanted, 0));
            }
        }
    }
}

/// The object, where every user can read it.
fn object(daemon: &Daemon) -> PathBuf {
    let built = std::env::current_exe().expect("a test is a program");
    let built = built.with_file_name("libtapdeck_pcap.so");
    let object = daemon.path("libtapdeck_pcap.so");
    // Once: a program that runs has it mapped.
    if !object.exists() {
        fs::copy(&built, &object).expect("cargo builds it with what tests depend on");
        fs::set_permissions(&object, Permissions::from_mode(0o755)).expect("it is ours");
    }
    object
}

/// A program of an unprivileged user, with the object in front of its libpcap.
fn unprivileged(daemon: &Daemon, name: &str) -> Command {
    let mut command = Command::new(name);
    command.uid(NOBODY).gid(NOBODY).current_dir(daemon.dir.path());
    command.env("LD_PRELOAD", object(daemon)).env("TAPDECK_SOCKET", daemon.socket());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn end(child: Child) -> (Output, String) {
    let output = child.wait_with_output().expect("it was started");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

/// The numbers in a capture file, in its order.
fn numbers_in(file: &Path) -> Vec<u32> {
    let mut file = pcap::Capture::from_file(file).expect("it is a capture file");
    std::iter::from_fn(|| Some(number_of(file.next_packet().ok()?.data))).collect()
}

#[test]
fn an_unprivileged_tcpdump_gets_every_packet_of_a_group() {
    const PACKETS: u32 = 10_000;
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n",
    );
    let count = PACKETS.to_string();
    let child = unprivileged(&daemon, "tcpdump")
        .args(["-i", "deck:ids", "-c", &count, "-w", "-", "udp"])
        .stdout(fs::File::create(daemon.path("tcpdump.pcap")).expect("the directory is there"))
        .spawn()
        .expect("tcpdump is installed: make setup");
    daemon.wait_members("ids", 1);
    send(&net, 0..PACKETS);
    let (output, errors) = end(child);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains(&format!("{PACKETS} packets captured")), "{errors}");
    assert!(errors.contains("0 packets dropped by kernel"), "{errors}");
    let came = numbers_in(&daemon.path("tcpdump.pcap"));
    assert_eq!(came, (0..PACKETS).collect::<Vec<_>>());
    let stats = daemon.stop();
    assert_eq!(stats["groups"][0]["seen"], PACKETS, "{stats}");
}

#[test]
fn the_sockets_permission_decides_who_attaches() {
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0600",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n",
    );
    let child = unprivileged(&daemon, "tcpdump").args(["-i", "deck:ids"]).spawn();
    let (output, errors) = end(child.expect("tcpdump is installed: make setup"));
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("You don't have permission to perform this capture"), "{errors}");
    assert!(errors.contains("the socket's permission"), "{errors}");
    fs::set_permissions(daemon.socket(), Permissions::from_mode(0o666)).expect("it is ours");
    let child = unprivileged(&daemon, "tcpdump").args(["-i", "deck:nids"]).spawn();
    let (_, errors) = end(child.expect("tcpdump is installed: make setup"));
    assert!(errors.contains("nids"), "{errors}");
    let child = unprivileged(&daemon, "tcpdump").arg("-D").spawn();
    let (output, errors) = end(child.expect("tcpdump is installed: make setup"));
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(listed.contains("deck:ids (tapdeck group on vb)"), "{listed}{errors}");
}

#[test]
fn a_group_that_copies_gives_every_program_everything() {
    const PACKETS: u32 = 10_000;
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"all\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\nsteering = \"copy\"\n",
    );
    let mut member = join(&daemon, "all");
    let count = PACKETS.to_string();
    let start = |name: &str, file: &str| {
        unprivileged(&daemon, name)
            .args(["-i", "deck:all", "-c", &count, "-w", "-"])
            .stdout(fs::File::create(daemon.path(file)).expect("the directory is there"))
            .spawn()
            .expect("tcpdump and dumpcap are installed: make setup")
    };
    let programs = [start("tcpdump", "tcpdump.pcap"), start("dumpcap", "dumpcap.pcapng")];
    daemon.wait_members("all", 3);
    send_to_all(&net, PACKETS, &mut [&mut member]);
    let wanted: Vec<u32> = (0..PACKETS).collect();
    for program in programs {
        let (output, errors) = end(program);
        assert!(output.status.success(), "{errors}");
    }
    for file in ["tcpdump.pcap", "dumpcap.pcapng"] {
        assert_eq!(numbers_in(&daemon.path(file)), wanted, "{file}");
    }
}

#[test]
fn tshark_gets_its_share_of_an_interface_with_several_queues() {
    const PACKETS: u32 = 2_000;
    let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\nsteering = \"round-robin\"\n",
    );
    let mut member = join(&daemon, "ids");
    assert_eq!(member.geometry().nrings, 2, "a ring for each queue");
    let count = (PACKETS / 2).to_string();
    let tshark = unprivileged(&daemon, "tshark")
        .env("HOME", daemon.dir.path())
        .args(["-i", "deck:ids", "-n", "-c", &count, "-T", "fields", "-e", "data.data"])
        .spawn()
        .expect("tshark is installed: make setup");
    daemon.wait_members("ids", 2);
    send(&net, 0..PACKETS);
    let (output, errors) = end(tshark);
    assert!(output.status.success(), "{errors}");
    let payloads = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut came: Vec<u32> = payloads
        .lines()
        .map(|data| u32::from_str_radix(&data[..8], 16).expect("a payload in hexadecimal"))
        .collect();
    assert!(came.is_sorted(), "over both rings");
    assert_eq!(came.len(), PACKETS as usize / 2);
    while came.len() < PACKETS as usize {
        let next = member.next_packet(Some(Duration::from_secs(60))).expect("the rings are sound");
        came.push(number_of(next.got().expect("all packets come").bytes));
    }
    came.sort_unstable();
    assert_eq!(came, (0..PACKETS).collect::<Vec<_>>());
}

#[test]
fn batches_hold_every_packet_once_and_the_counts_agree() {
    const PACKETS: u32 = 10_000;
    let net = Net::new();
    let daemon = serve(
        &net,
        "",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\nsnaplen = 128\n",
    );
    let mut member = join(&daemon, "ids");
    assert_eq!(member.snaplen(), 128);
    assert_eq!(member.interfaces()[0].name, "vb");
    send(&net, 0..PACKETS);
    let mut came = Vec::new();
    while came.len() < PACKETS as usize {
        let next = member.next_batch(Some(Duration::from_secs(60))).expect("the rings are sound");
        for packet in next.got().expect("all packets come").packets() {
            let packet = packet.expect("a whole packet");
            let n = number_of(packet.bytes);
            assert_eq!(packet.original_len, 60 + n % 1000);
            assert_eq!(packet.bytes.len(), 128.min(packet.original_len as usize));
            assert_eq!((packet.interface, packet.dropped), (0, 0));
            came.push(n);
        }
    }
    came.sort_unstable();
    assert_eq!(came, (0..PACKETS).collect::<Vec<_>>());
    member.release();
    let counts = member.counts();
    assert_eq!((counts.received, counts.unread, counts.dropped), (u64::from(PACKETS), 0, 0));
    let stats = member.stats().expect("the daemon is there");
    assert_eq!((stats.seen, stats.captured), (u64::from(PACKETS), u64::from(PACKETS)));
    assert_eq!((stats.dropped_ring, stats.dropped_other), (0, 0));
}

#[test]
fn a_daemon_that_is_killed_leaves_every_packet_to_its_members() {
    const PACKETS: u32 = 3_000;
    for hook in ["tcx", "xdp"] {
        let net = Net::new();
        let daemon = serve(
            &net,
            "",
            &format!("[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\n"),
        );
        let mut member = join(&daemon, "ids");
        send(&net, 0..PACKETS);
        // Frames reach the far end's hook on another thread of the kernel.
        wait_for("all packets to be in the rings", || {
            member.counts().received == u64::from(PACKETS)
        });
        daemon.signal(Signal::KILL);
        let mut came = Vec::new();
        loop {
            match member.next_packet(None).expect("the rings are sound") {
                Next::Got(packet) => came.push(number_of(packet.bytes)),
                Next::Nothing => panic!("it was to wait for ever"),
                Next::End => break,
            }
        }
        assert_eq!(came, (0..PACKETS).collect::<Vec<_>>(), "{hook}");
    }
}

#[test]
fn a_member_that_scribbles_harms_nobody_else() {
    const PACKETS: u32 = 10_000;
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"all\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\nsteering = \"copy\"\n",
    );
    let program = daemon.path("hostile");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile.c");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, Path::new(source)])
        .status();
    assert!(compiled.expect("there is a compiler: make setup").success());
    let mut before = join(&daemon, "all");
    let hostile = Command::new(&program)
        .arg(daemon.socket())
        .arg("all")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut hostile = hostile.expect("it was compiled");
    let mut says = BufReader::new(hostile.stdout.take().expect("piped above")).lines();
    let scribbles = says.next().is_some_and(|line| line.is_ok_and(|line| line == "scribbling"));
    if scribbles {
        let mut after = join(&daemon, "all");
        send_to_all(&net, PACKETS, &mut [&mut before, &mut after]);
        assert_eq!((before.counts().dropped, after.counts().dropped), (0, 0));
    }
    drop(hostile.stdin.take());
    let (output, errors) = end(hostile);
    assert!(scribbles && output.status.success(), "{errors}");
    // The daemon is well: whoever comes now is served.
    assert_eq!(join(&daemon, "all").interfaces().len(), 1);
    daemon.stop();
}
