//! Flow tables against tshark: for each pair of ends, packets and bytes each way are what
//! `tshark -z conv` counts in the same segment.
//!
//! tshark writes sums of 10,000 bytes and more in kB, so flows are small here.

#[allow(dead_code)]
mod awkward;
#[allow(dead_code)]
mod flow_tables;
#[allow(dead_code)]
mod testbed;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use awkward::store::{Packet, SECOND, write_closed};
use flow_tables::{Row, is_null, made, number, parquet_of, read, segments, text};
use tapdeck_testkit::frame::{IPV4, IPV6, TCP, UDP, ethernet, ipv4, ipv6, tcp, udp};
use tapdeck_testkit::kernel::need_root;
use tapdeck_testkit::{Net, Sender, SplitMix64};
use testbed::recorder::Recorder;

const T0: i64 = 1_767_323_045 * SECOND;

/// Packets and bytes from the lower end to the higher and back, by both ends.
type Sums = BTreeMap<(String, String), [i64; 4]>;

fn add(sums: &mut Sums, from: String, to: String, [packets, bytes, back, bytes_back]: [i64; 4]) {
    let (ends, values) = if from <= to {
        ((from, to), [packets, bytes, back, bytes_back])
    } else {
        ((to, from), [back, bytes_back, packets, bytes])
    };
    let sum = sums.entry(ends).or_default();
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// What tshark counts in a file, of one of its kinds of conversations.
fn by_tshark(file: &Path, kind: &str) -> Sums {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-q", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-z"]);
    let out = tshark.arg(format!("conv,{kind}")).arg("-r").arg(file).output().expect("tshark");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut sums = Sums::new();
    for line in String::from_utf8(out.stdout).expect("text").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [from, "<->", to, back, bytes_back, "bytes", packets, bytes, "bytes", ..] = words[..]
        else {
            assert!(!line.contains("<->"), "{line}");
            continue;
        };
        let values = [packets, bytes, back, bytes_back].map(|n| n.parse().expect("a number"));
        add(&mut sums, from.into(), to.into(), values);
    }
    sums
}

/// What rows tell that a condition picks, with or without ports.
fn by_rows(rows: &[Row], with_ports: bool, picks: impl Fn(&Row) -> bool) -> Sums {
    let mut sums = Sums::new();
    for row in rows.iter().filter(|row| picks(row)) {
        let [from, to] = [("src_ip", "src_port"), ("dst_ip", "dst_port")].map(|(ip, port)| {
            let address = text(row, ip).to_owned();
            if with_ports { format!("{address}:{}", number(row, port)) } else { address }
        });
        let columns = ["fwd_packets", "fwd_bytes", "rev_packets", "rev_bytes"];
        add(&mut sums, from, to, columns.map(|column| number(row, column)));
    }
    sums
}

fn proto(row: &Row) -> Option<i64> {
    (!is_null(row, "proto")).then(|| number(row, "proto"))
}

fn version(row: &Row) -> Option<i64> {
    (!is_null(row, "ip_version")).then(|| number(row, "ip_version"))
}

/// Holds the rows of a segment against tshark's sums.
fn compare(segment: &Path, rows: &[Row]) {
    for (kind, wanted) in [("tcp", 6), ("udp", 17)] {
        let rows =
            by_rows(rows, true, |row| proto(row) == Some(wanted) && !is_null(row, "src_port"));
        assert_eq!(rows, by_tshark(segment, kind), "{kind} in {}", segment.display());
    }
    for (kind, wanted) in [("ip", 4), ("ipv6", 6)] {
        let rows = by_rows(rows, false, |row| version(row) == Some(wanted));
        assert_eq!(rows, by_tshark(segment, kind), "{kind} in {}", segment.display());
    }
}

fn host(n: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + n as u8)
}

fn host6(n: u64) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1 + n as u16)
}

/// An IP packet between hosts, and its EtherType.
fn packet(random: &mut SplitMix64) -> (u16, Vec<u8>) {
    let (from, to) = (random.below(12), random.below(12));
    let ports = [20_000 + random.below(40_u16), 20_000 + random.below(40)];
    let payload = vec![0; random.below(90)];
    let (protocol, carried) = match random.below(5) {
        0 | 1 => (TCP, tcp(ports, random.below(1_000_000_u32), &payload)),
        2 | 3 => (UDP, udp(ports, &payload)),
        _ => (89, payload),
    };
    if random.below(2) == 0 {
        (IPV4, ipv4(host(from), host(to), protocol, &carried))
    } else {
        (IPV6, ipv6(host6(from), host6(to), protocol, &carried))
    }
}

fn framed(kind: u16, packet: &[u8]) -> Vec<u8> {
    ethernet([2; 6], [4; 6], &[], kind, packet)
}

fn recorded(frames: impl IntoIterator<Item = Vec<u8>>, snaplen: usize) -> Vec<Packet> {
    let packet = |(at, mut frame): (i64, Vec<u8>)| {
        let original_len = frame.len() as u32;
        frame.truncate(snaplen);
        Packet { time_ns: T0 + at * 10_000, original_len, frame }
    };
    (0..).zip(frames).map(packet).collect()
}

/// Makes rows of frames, in a segment of their own, and holds them against tshark.
fn check(frames: Vec<Vec<u8>>, snaplen: usize) {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let count = frames.len() as i64;
    write_closed(&store, 1, &recorded(frames, snaplen));
    made(&store, &out, &[]);
    let segment = &segments(&store)[0];
    let rows = read(&parquet_of(&out, segment));
    assert_eq!(flow_tables::sums(&rows).0, count);
    compare(segment, &rows);
}

#[test]
fn sums_are_those_of_tshark() {
    for seed in 0..3 {
        let mut random = SplitMix64(seed);
        let mut frame = |_| {
            let (kind, packet) = packet(&mut random);
            framed(kind, &packet)
        };
        check((0..1200).map(&mut frame).collect(), usize::MAX);
        // Ports are there, and nothing behind them.
        check((0..1200).map(&mut frame).collect(), 74);
    }
}

#[test]
fn sums_of_what_was_recorded_are_those_of_tshark() {
    need_root();
    let net = Net::new();
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    let flags = format!("--dir {} --snaplen 80 --hook tcx", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut random = SplitMix64(5);
    let frames = (0..1500).map(|_| {
        let (kind, packet) = packet(&mut random);
        framed(kind, &packet)
    });
    net.a.inside(|| Sender::on("va").send_all(frames));
    recorder.wait_for_captured(1500);
    let stats = recorder.stop();
    made(&store, &out, &[]);
    let mut packets = 0;
    for segment in segments(&store) {
        let rows = read(&parquet_of(&out, &segment));
        packets += flow_tables::sums(&rows).0;
        assert!(rows.iter().all(|row| !is_null(row, "granules")), "it was indexed");
        compare(&segment, &rows);
    }
    assert_eq!(Some(packets), stats["captured"].as_i64());
}
