//! Flow tables against tshark: for each pair of ends, packets and bytes each way are what
//! `tshark -z conv` counts in the same segment.
//!
//! tshark writes sums of 10,000 bytes and more in kB, so flows are small here. Of packets inside
//! tunnels it counts the outer ones as well, which are left out by their addresses.

#[allow(dead_code, reason = "a part of it is taken")]
mod awkward;
mod flow_tables;
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
/// The IPv6 fragment header.
const FRAGMENT: u8 = 44;

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

/// What tshark counts in a file, of one of its kinds of conversations, without those that have an
/// end of `outer`.
fn by_tshark(file: &Path, kind: &str, outer: impl Fn(&str) -> bool) -> Sums {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-q", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-z"]);
    let out = tshark.arg(format!("conv,{kind}")).arg("-r").arg(file).output().expect("tshark");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut sums = Sums::new();
    for line in String::from_utf8(out.stdout).expect("text").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [from, "<->", to, ..] = words[..]
            && (outer(from) || outer(to))
        {
            continue;
        }
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

/// What tshark sees frame by frame: of IPv6 it counts no later fragments in conversations.
fn by_frames(file: &Path, [source, destination]: [&str; 2]) -> Sums {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    tshark.args(["-Y", source, "-e", source, "-e", destination, "-e", "frame.len", "-r"]);
    let out = tshark.arg(file).output().expect("tshark");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut sums = Sums::new();
    for line in String::from_utf8(out.stdout).expect("text").lines() {
        let [from, to, len] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let bytes = len.parse().expect("a length");
        add(&mut sums, from.into(), to.into(), [1, bytes, 0, 0]);
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

/// Holds the rows of a segment against tshark's sums. `outer` names the ends of tunnels.
fn compare(segment: &Path, rows: &[Row], outer: impl Fn(&str) -> bool) {
    let tshark = |kind| by_tshark(segment, kind, &outer);
    for (kind, wanted) in [("tcp", 6), ("udp", 17)] {
        let rows =
            by_rows(rows, true, |row| proto(row) == Some(wanted) && !is_null(row, "src_port"));
        assert_eq!(rows, tshark(kind), "{kind} in {}", segment.display());
    }
    for (kind, wanted) in [("ip", 4), ("ipv6", 6)] {
        let rows = by_rows(rows, false, |row| version(row) == Some(wanted));
        assert_eq!(rows, tshark(kind), "{kind} in {}", segment.display());
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
fn check(frames: Vec<Vec<u8>>, snaplen: usize, outer: impl Fn(&str) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    let count = frames.len() as i64;
    write_closed(&store, 1, &recorded(frames, snaplen));
    made(&store, &out, &[]);
    let segment = &segments(&store)[0];
    let rows = read(&parquet_of(&out, segment));
    assert_eq!(flow_tables::sums(&rows).0, count);
    compare(segment, &rows, outer);
}

#[test]
fn sums_are_those_of_tshark() {
    for seed in 0..3 {
        let mut random = SplitMix64(seed);
        let mut frame = |_| {
            let (kind, packet) = packet(&mut random);
            framed(kind, &packet)
        };
        check((0..1200).map(&mut frame).collect(), usize::MAX, |_| false);
        // Ports are there, and nothing behind them.
        check((0..1200).map(&mut frame).collect(), 74, |_| false);
    }
}

#[test]
fn sums_of_fragments_are_those_of_tshark() {
    let mut random = SplitMix64(3);
    let mut frames = Vec::new();
    for id in 0..300_u32 {
        let (from, to) = (random.below(6), random.below(6));
        let datagram = udp([4000, 5000], &[0; 64]);
        let (head, tail) = datagram.split_at(40);
        let part = |carried: &[u8], offset: u16, more: bool| {
            if id % 2 == 0 {
                let mut packet = ipv4(host(from), host(to), UDP, carried);
                packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
                packet[6..8].copy_from_slice(&(offset >> 3 | u16::from(more) << 13).to_be_bytes());
                return framed(IPV4, &packet);
            }
            let mut header = vec![UDP, 0];
            header.extend((offset | u16::from(more)).to_be_bytes());
            header.extend(id.to_be_bytes());
            header.extend(carried);
            framed(IPV6, &ipv6(host6(from), host6(to), FRAGMENT, &header))
        };
        // One in three comes before its first.
        let mut parts = [part(head, 0, true), part(tail, 40, false)];
        if id % 3 == 0 {
            parts.reverse();
        }
        frames.extend(parts);
    }
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    fs::create_dir(&store).unwrap();
    write_closed(&store, 1, &recorded(frames, usize::MAX));
    made(&store, &out, &[]);
    let segment = &segments(&store)[0];
    let rows = read(&parquet_of(&out, segment));
    for (fields, wanted) in [(["ip.src", "ip.dst"], 4), (["ipv6.src", "ipv6.dst"], 6)] {
        let rows = by_rows(&rows, false, |row| version(row) == Some(wanted));
        assert_eq!(rows, by_frames(segment, fields), "IPv{wanted}");
    }
    // tshark has the ports of first fragments alone; rows also of those that follow them.
    let rows = by_rows(&rows, true, |row| !is_null(row, "src_port"));
    let mut packets = [0; 2];
    let tshark = by_tshark(segment, "udp", |_| false);
    for (sums, total) in [&rows, &tshark].into_iter().zip(&mut packets) {
        *total = sums.values().map(|sum| sum[0] + sum[2]).sum();
    }
    assert_eq!(packets, [300 + 200, 300]);
    assert!(rows.keys().eq(tshark.keys()));
}

#[test]
fn sums_inside_tunnels_are_those_of_tshark() {
    let mut random = SplitMix64(4);
    let (one, other) = (Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(172, 16, 0, 2));
    let outer = |end: &str| end.starts_with("172.16.0.");
    let frames = (0..900).map(|_| {
        let (kind, inner) = packet(&mut random);
        let kind_bytes = kind.to_be_bytes();
        let (protocol, carried) = match random.below(4) {
            0 => {
                let frame = framed(kind, &inner);
                (UDP, udp([50_000, 4789], &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat()))
            }
            1 => {
                let header = [0, 0, kind_bytes[0], kind_bytes[1], 0, 0, 7, 0];
                (UDP, udp([50_000, 6081], &[&header[..], &inner].concat()))
            }
            2 => (47, [&[0, 0, kind_bytes[0], kind_bytes[1]][..], &inner].concat()),
            _ => (if kind == IPV4 { 4 } else { 41 }, inner),
        };
        framed(IPV4, &ipv4(one, other, protocol, &carried))
    });
    check(frames.collect(), usize::MAX, outer);
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
        compare(&segment, &rows, |_| false);
    }
    assert_eq!(Some(packets), stats["captured"].as_i64());
}
