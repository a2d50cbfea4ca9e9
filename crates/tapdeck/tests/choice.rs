//! `tapdeck query` by interface, direction and flow, in stores and in files of other programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_store::SegmentName;
use tapdeck_testkit::frame::UdpFrame;

const T0: u64 = 1_767_323_045_000_000_000;
const IN: u32 = 1;
const OUT: u32 = 2;

/// A segment, or a file of another program, of one interface. Each packet has its flags, and a
/// number by which it is known.
fn file(program: &str, interface: (&str, &str, LinkType), packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", program, None);
    let (name, description, link) = interface;
    let description = InterfaceDescription {
        link,
        snaplen: 0,
        name: name.into(),
        description: description.into(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut bytes, &description);
    for (i, (flags, frame)) in packets.iter().enumerate() {
        let start = bytes.len();
        bytes.resize(start + pcapng::packet_len(frame.len(), *flags, 0), 0);
        let (len, time_ns) = (frame.len() as u32, T0 + i as u64);
        let block = &mut bytes[start..];
        pcapng::write_packet(block, 0, time_ns, [frame, &[], &[]], len, *flags, 0);
    }
    bytes
}

fn write_segment(dir: &Path, number: u64, interface: (&str, &str), packets: &[(u32, Vec<u8>)]) {
    let name = SegmentName { number, began_s: (T0 / 1_000_000_000) as i64, live: false };
    let (name, interface) = (name.path(dir), (interface.0, interface.1, LinkType::ETHERNET));
    fs::write(name, file("tapdeck 0.1.0", interface, packets)).expect("room on the disk");
}

/// An IPv4 packet behind an Ethernet header, with a TCP segment of seven bytes, and padding.
fn tcp() -> Vec<u8> {
    let mut frame = [&[2; 6][..], &[2, 0, 0, 0, 0, 1], &[0x81, 0, 0x60, 5, 8, 0]].concat();
    frame.extend([0x45, 0, 0, 47, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 9, 0, 0, 0, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.resize(80, 0);
    frame
}

fn arp() -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    frame
}

#[test]
fn lines_and_objects_say_what_packets_say() {
    let dir = tempfile::tempdir().expect("a directory");
    let dns = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x1c\0\x01";
    let mut question = UdpFrame { to: [2; 6], len: 42 + dns.len(), ..UdpFrame::default() };
    question.ports = [5000, 53];
    let mut question = question.bytes();
    question[42..].copy_from_slice(dns);
    let packets = [(IN, tcp()), (OUT, arp()), (0, question)];
    write_segment(dir.path(), 1, ("eth0", "hook tcx, CPU 0"), &packets);
    let query = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["query", "--dir"]).arg(dir.path()).args(flag.split_whitespace());
        let out = command.output().expect("it was built");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).expect("text")
    };
    let text = query("");
    let lines: Vec<&str> = text.lines().map(|line| line.split_once("eth0 ").unwrap().1).collect();
    assert_eq!(
        lines[..2],
        [
            "in vlan 5 tcp 10.0.0.1:40000 > 10.0.0.2:80 flags [P.], seq 9, ack 8, win 256, \
             payload 7 length 80",
            "out arp 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff who-has 10.0.0.2 tell 10.0.0.1 length 42",
        ]
    );
    assert!(lines[2].contains(":53 dns 4660 AAAA? example.org length 71"), "{}", lines[2]);
    let objects: Vec<Value> =
        query("--json").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [tcp, arp, dns] = &objects[..] else { panic!("{objects:?}") };
    let segment =
        serde_json::json!({"flags": "P.", "seq": 9, "ack": 8, "window": 256, "payload": 7});
    assert_eq!((&tcp["tcp"], &tcp["direction"]), (&segment, &"in".into()));
    assert_eq!((&tcp["vlan"], &tcp["mac_src"]), (&[5].into(), &"02:00:00:00:00:01".into()));
    assert_eq!((&arp["arp"]["target"], &arp["direction"]), (&"10.0.0.2".into(), &"out".into()));
    assert_eq!(arp["info"], "who-has 10.0.0.2 tell 10.0.0.1");
    assert_eq!((&dns["dns"]["name"], &dns["dns"]["type"]), (&"example.org".into(), &"AAAA".into()));
    assert!(dns["direction"].is_null() && dns.get("tcp").is_none(), "{dns}");
}

fn udp(number: u32) -> Vec<u8> {
    UdpFrame { to: [2; 6], len: 100, number, ..UdpFrame::default() }.bytes()
}

/// A store of three interfaces: one that tells each packet's direction, one that only sees what
/// comes in, and one that tells nothing.
fn store() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let both = [(IN, udp(0)), (OUT, udp(1)), (IN, udp(2)), (0, udp(3))];
    write_segment(dir.path(), 1, ("eth0", "hook tcx, CPU 0"), &both);
    write_segment(dir.path(), 2, ("eth1", "hook xdp, receive queue 3"), &[(0, udp(4))]);
    write_segment(dir.path(), 3, ("wlan0", "of somebody"), &[(0, udp(5)), (OUT, udp(6))]);
    dir
}

fn query(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["query", "--dir"]).arg(dir).args(args).output().expect("it runs")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The numbers of the packets of an answer that is whole and has nothing to say.
fn numbers(dir: &Path, args: &[&str]) -> Vec<u32> {
    let out = query(dir, &[&["-w", "-"], args].concat());
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", said(&out));
    let mut numbers = Vec::new();
    for record in pcapng::Reader::new(&out.stdout) {
        if let pcapng::Record::Packet(packet) = record.expect("it is whole") {
            let number = packet.frame[packet.frame.len() - 58..].first_chunk().expect("4 bytes");
            numbers.push(u32::from_be_bytes(*number));
        }
    }
    let count = query(dir, &[&["--count"], args].concat()).stdout;
    assert_eq!(String::from_utf8_lossy(&count).trim(), numbers.len().to_string(), "{args:?}");
    numbers.sort_unstable();
    numbers
}

#[test]
fn packets_are_chosen_by_interface_and_direction() {
    let store = store();
    for (args, expected) in [
        (&["-i", "eth0"][..], &[0, 1, 2, 3][..]),
        (&["-i", "eth1,wlan0"], &[4, 5, 6]),
        (&["-i", "eth*"], &[0, 1, 2, 3, 4]),
        (&["-i", "eth0", "ether[45] = 2"], &[2]),
        (&["--direction", "in"], &[0, 2, 4]),
        (&["--direction", "out"], &[1, 6]),
        (&["-i", "wlan?", "--direction", "in"], &[]),
        (&["-i", "eth0", "--direction", "out", "--inner"], &[1]),
    ] {
        assert_eq!(numbers(store.path(), args), expected, "{args:?}");
    }
}

#[test]
fn segments_without_the_interface_are_not_read() {
    let store = store();
    for indexed in [false, true] {
        let explained = query(store.path(), &["--explain", "--json", "-i", "eth1"]);
        let object: Value = serde_json::from_slice(&explained.stdout).expect("an object");
        assert_eq!((&object["packets"], &object["segments"]), (&1.into(), &1.into()), "{object}");
        if !indexed {
            let mut recover = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
            recover.args(["recover", "--dir"]).arg(store.path());
            assert!(recover.output().expect("it runs").status.success());
        }
    }
}

#[test]
fn an_interface_that_is_not_there_is_told() {
    let store = store();
    let out = query(store.path(), &["--count", "-i", "eth9,eth0"]);
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"4\n"[..]));
    let said = said(&out);
    assert!(
        said.contains("no interface is named eth9 here; there are eth0, eth1, wlan0"),
        "{said}"
    );
    assert_eq!(query(store.path(), &["-i", "eth0,"]).status.code(), Some(2));
    assert_eq!(query(store.path(), &["--direction", "up"]).status.code(), Some(2));
}

/// What `tcpdump -i any` wrote tells directions in its frames.
#[test]
fn cooked_frames_tell_their_direction() {
    let dir = tempfile::tempdir().expect("a directory");
    for (link, kind_at, header) in [(LinkType::LINUX_SLL, 1, 16), (LinkType::LINUX_SLL2, 10, 20)] {
        let cooked = |kind: u8, number| {
            let mut frame = vec![0; header];
            frame[kind_at] = kind;
            frame.extend(&udp(number)[14..]);
            (0, frame)
        };
        let packets: Vec<_> =
            [0, 4, 3, 1].into_iter().zip(0..).map(|(k, n)| cooked(k, n)).collect();
        let bytes = file("dumpcap", ("any", "", link), &packets);
        fs::write(dir.path().join("a.pcapng"), bytes).expect("room on the disk");
        assert_eq!(numbers(dir.path(), &["--direction", "in", "-i", "any"]), [0, 2, 3]);
        assert_eq!(numbers(dir.path(), &["--direction", "out"]), [1]);
    }
}

#[test]
fn packets_are_chosen_by_the_name_of_their_flow() {
    let store = store();
    let lines = query(store.path(), &["--json"]).stdout;
    let objects: Vec<Value> = String::from_utf8(lines)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let ids: Vec<&str> = objects.iter().filter_map(|o| o["community_id"].as_str()).collect();
    assert_eq!(ids.len(), 7, "each has one: {objects:?}");
    // They are of one flow.
    assert_eq!(numbers(store.path(), &["--community-id", ids[0]]), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(numbers(store.path(), &["--community-id", ids[0], "-i", "eth1"]), [4]);
    let other = "1:LQU9qZlK+B5F3KDmev6m5PMibrg=";
    assert_eq!(numbers(store.path(), &["--community-id", other]), [0; 0]);
    let out = query(store.path(), &["--community-id", "1:nonsense"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(said(&out).contains("is no Community ID"), "{}", said(&out));
}
