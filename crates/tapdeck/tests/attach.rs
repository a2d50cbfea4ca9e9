//! Programs that attach to a group of a running daemon: through the client library, and through the
//! object that stands in for libpcap.

mod testbed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tapdeck_client::{Member, Next, Options};
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::wait::LIMIT;
use tapdeck_testkit::{Cable, Net, Running, Sender, frame, wait_for};
use testbed::daemon::Daemon;

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
            sender.send(&testbed::recorder::frame(MAC, 60 + number as usize % 1000, number));
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

/// A directory that every user may write to, below the daemon's.
fn open_directory(daemon: &Daemon, name: &str) -> PathBuf {
    let directory = daemon.path(name);
    fs::create_dir(&directory).expect("the daemon's directory is there");
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("it is ours");
    directory
}

/// A UDP packet of its own flow, from 10.213.0.1 and this port to port 9 of 10.213.0.2.
fn of_flow(port: u16) -> Vec<u8> {
    let (from, to) = ([10, 213, 0, 1], [10, 213, 0, 2]);
    let mut datagram = frame::udp([port, 9], b"a flow of its own");
    frame::seal_transport(IpAddr::from(from), IpAddr::from(to), frame::UDP, &mut datagram);
    let packet = frame::ipv4(from.into(), to.into(), frame::UDP, &datagram);
    frame::ethernet(MAC, [2, 0, 0, 0, 0, 1], &[], frame::IPV4, &packet)
}

/// The first packet of a TCP connection from this port, with VLAN tags.
fn syn(port: u16, tags: &[[u8; 4]]) -> Vec<u8> {
    const FLAGS_AT: usize = 13;
    let (from, to) = ([10, 213, 0, 1], [10, 213, 0, 2]);
    let mut segment = frame::tcp([port, 80], 1, &[]);
    segment[FLAGS_AT] = 0x02;
    frame::seal_transport(IpAddr::from(from), IpAddr::from(to), frame::TCP, &mut segment);
    let packet = frame::ipv4(from.into(), to.into(), frame::TCP, &segment);
    frame::ethernet(MAC, [2, 0, 0, 0, 0, 1], tags, frame::IPV4, &packet)
}

fn send_frames(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| {
        Sender::on("va").send_all(frames);
    });
}

/// softflowd takes what stands before a colon in `-i` for the interface's number.
#[test]
fn softflowd_exports_every_packet_of_a_group() {
    const PACKETS: u16 = 500;
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n",
    );
    let collector = UdpSocket::bind("127.0.0.1:0").expect("there is a loopback");
    collector.set_read_timeout(Some(LIMIT)).expect("a time");
    let address = collector.local_addr().expect("it is bound").to_string();
    let control = open_directory(&daemon, "control").join("softflowd.ctl");
    let mut command = unprivileged(&daemon, "softflowd");
    command.args(["-d", "-i", "deck:ids", "-v", "5", "-n", &address, "-c"]).arg(&control);
    let mut softflowd = Running(command.spawn().expect("softflowd is installed: make setup"));
    daemon.wait_members("ids", 1);
    send_frames(&net, &(0..PACKETS).map(|n| of_flow(1000 + n / 5)).collect::<Vec<_>>());

    let ask = |what: &str| {
        // It waits without end for a softflowd that does not answer.
        let mut command = Command::new("timeout");
        command.args(["10", "softflowctl", "-c"]).arg(&control).arg(what);
        let output = command.output().expect("it is softflowd's");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let processed = format!("Packets processed: {PACKETS}");
    wait_for("softflowd to have read everything", || {
        ask("statistics").lines().any(|line| line == processed)
    });
    ask("shutdown");
    // NetFlow version 5: a header of 24 bytes with the number of records, and records of 48 with
    // packets at 16 and the source port at 32.
    let mut flows = BTreeMap::new();
    let mut datagram = [0; 2048];
    while flows.values().sum::<u32>() < PACKETS.into() {
        let len = collector.recv(&mut datagram).expect("flows come until all packets are told");
        for record in datagram[24..len].chunks_exact(48) {
            let packets = u32::from_be_bytes([record[16], record[17], record[18], record[19]]);
            *flows.entry(u16::from_be_bytes([record[32], record[33]])).or_default() += packets;
        }
    }
    assert_eq!(flows, (1000..1000 + PACKETS / 5).map(|port| (port, 5)).collect());
    // It exits with 1 whenever it was told to end.
    assert!(softflowd.wait().code().is_some(), "it was no signal");
}

/// argus asks the kernel whether its interface is up, and reads nothing of one that is not.
#[test]
fn argus_records_every_flow_of_a_group() {
    const FLOWS: u16 = 100;
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n",
    );
    let file = daemon.path("argus.out");
    let mut command = unprivileged(&daemon, "argus");
    command.args(["-X", "-i", "deck:ids", "-S", "1", "-w", "-"]);
    command.stdout(fs::File::create(&file).expect("the directory is there"));
    let argus = Running(command.spawn().expect("argus-server is installed: make setup"));
    daemon.wait_members("ids", 1);
    send_frames(&net, &(0..FLOWS).map(|n| of_flow(1000 + n)).collect::<Vec<_>>());
    // A flow's key in a record: addresses, protocol, a byte without meaning here, ports.
    let told = || {
        let records = fs::read(&file).expect("it was made above");
        let ports = records.windows(14).filter_map(|key| match key {
            [10, 213, 0, 1, 10, 213, 0, 2, frame::UDP, _, high, low, 0, 9] => {
                Some(u16::from_be_bytes([*high, *low]))
            }
            _ => None,
        });
        ports.collect::<BTreeSet<u16>>()
    };
    wait_for("argus to record every flow", || told().len() == usize::from(FLOWS));
    assert_eq!(told(), (1000..1000 + FLOWS).collect());
    // How it ends is its own affair: a thread may wait on a condition that another has freed.
    argus.interrupt();
}

/// A p0f that listens, in a directory of its own.
struct P0f {
    process: Running,
    directory: PathBuf,
}

impl P0f {
    /// Starts it by a command that has the device. It listens when it has seen a connection begin.
    fn start(net: &Net, mut command: Command, directory: PathBuf) -> Self {
        const FIRST: u16 = 999;
        let says = fs::File::create(directory.join("says")).expect("it is ours");
        command.arg("-o").arg(directory.join("log")).stdin(Stdio::null());
        command.stderr(says.try_clone().expect("a descriptor")).stdout(says);
        let process = Running(command.spawn().expect("p0f is installed: make setup"));
        let p0f = Self { process, directory };
        wait_for("p0f to listen", || {
            send_frames(net, &[syn(FIRST, &[])]);
            p0f.has_seen(FIRST)
        });
        p0f
    }

    /// Whether it has seen a connection begin, from this port.
    fn has_seen(&self, port: u16) -> bool {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let client = format!("|cli=10.213.0.1/{port}|");
        log.lines().any(|line| line.contains("mod=syn|") && line.contains(&client))
    }

    /// Ends it, and returns what it has warned of while it listened.
    fn end(self) -> Vec<String> {
        let status = self.process.interrupt();
        let says = fs::read_to_string(self.directory.join("says")).expect("it was made");
        assert!(status.success(), "{status}: {says}");
        let warnings = says.lines().filter(|line| line.contains("WARNING"));
        let warnings = warnings.filter(|line| !line.contains("User-initiated shutdown"));
        warnings.map(str::to_owned).collect()
    }
}

/// p0f asks for connections behind a VLAN tag too, and cannot read them: it warns of the tag as a
/// "packet type", whatever the device. So it is held against p0f on the interface itself.
#[test]
fn p0f_sees_of_a_group_what_it_sees_of_the_interface() {
    let net = Net::new();
    let daemon = serve(
        &net,
        "--socket-mode 0666",
        "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n",
    );
    let plain: Vec<_> = (1000..1100).map(|port| syn(port, &[])).collect();
    let tagged = [syn(2000, &[[0x81, 0, 0xc0, 5]]), syn(1100, &[])];
    for (frames, warnings) in [(&plain[..], 0), (&tagged, 1)] {
        let of = |name: &str, mut command: Command, device: &str| {
            command.args(["-i", device]);
            P0f::start(&net, command, open_directory(&daemon, &format!("{name}-{warnings}")))
        };
        let group = of("group", unprivileged(&daemon, "p0f"), "deck:ids");
        let interface = of("interface", net.b.command("p0f"), "vb");
        send_frames(&net, frames);
        let last = 1099 + warnings;
        for p0f in [&group, &interface] {
            wait_for("p0f to see the last connection", || p0f.has_seen(last));
            assert!((1000..=last).all(|port| warnings > 0 || p0f.has_seen(port)));
        }
        let (group, interface) = (group.end(), interface.end());
        assert_eq!(group, interface);
        assert_eq!(group.len(), usize::from(warnings), "{group:?}");
    }
}
