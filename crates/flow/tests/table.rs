//! Rows of flow tables: every packet is in one, whose sums, ends, times and places are right.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use tapdeck_flow::{DAY_NS, EndReason, FlowTable, Row, Rows};
use tapdeck_packet::link::LinkType;
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{IPV4, TCP, UDP, ethernet, ipv4, ipv6, tcp, udp};

const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
    ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &[], kind, packet)
}

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

/// A TCP segment from one host and port to another.
fn segment(from: (u8, u16), to: (u8, u16), flags: u8) -> Vec<u8> {
    let mut segment = tcp([from.1, to.1], 0, &[]);
    segment[13] = flags;
    frame(IPV4, &ipv4(host(from.0), host(to.0), TCP, &segment))
}

fn datagram(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
    frame(IPV4, &ipv4(host(from.0), host(to.0), UDP, &udp([from.1, to.1], &[0; 9])))
}

fn icmp(from: u8, to: u8, kind: u8, code: u8) -> Vec<u8> {
    frame(IPV4, &ipv4(host(from), host(to), 1, &[kind, code, 0, 0, 0, 1, 0, 1]))
}

/// The rows of packets that lie in one granule, a millisecond apart.
fn rows(frames: &[Vec<u8>]) -> Vec<Row> {
    let mut table = FlowTable::new(true);
    for (at, frame) in (0..).zip(frames) {
        table.packet(LinkType::ETHERNET, frame, frame.len() as u32, T0 + at * 1_000_000);
    }
    table.end_granule(4096..8192, 0);
    table.finish().rows.clone()
}

fn row(frames: &[Vec<u8>]) -> Row {
    let rows = rows(frames);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0]
}

fn source(row: &Row) -> Option<IpAddr> {
    row.source
}

fn is_from(row: &Row, n: u8) -> bool {
    source(row) == Some(host(n).into())
}

#[test]
fn both_directions_are_one_row_from_whoever_opened_it() {
    let (client, server) = ((9, 40_000), (1, 40_001));
    let syn = segment(client, server, SYN);
    let answer = segment(server, client, SYN | ACK);
    let [data, back] = [segment(client, server, ACK), segment(server, client, ACK)];
    for frames in [
        vec![syn.clone(), answer.clone(), data.clone()],
        vec![back.clone(), data.clone(), syn.clone()],
        vec![back.clone(), answer.clone()],
    ] {
        let row = row(&frames);
        assert!(is_from(&row, 9), "{row:?}");
        assert_eq!(row.ports, Some((40_000, 40_001)));
        assert_eq!(row.packets[0] + row.packets[1], frames.len() as u64);
        assert_eq!(row.end_reason, EndReason::Segment);
    }
    // Nothing tells: whose packet came first.
    assert!(is_from(&row(&[data.clone(), back.clone()]), 9));
    assert!(is_from(&row(&[back, data]), 1));
    // One end alone has a service's port.
    assert!(is_from(&row(&[segment((1, 443), (9, 5000), ACK)]), 9));
    assert!(is_from(&row(&[datagram((1, 53), (9, 53))]), 1));
}

#[test]
fn a_connection_that_was_closed_or_reset_says_so() {
    let (a, b) = ((1, 2000), (2, 3000));
    let reason = |frames: &[Vec<u8>]| row(frames).end_reason;
    let fins = [segment(a, b, FIN | ACK), segment(b, a, FIN | ACK)];
    assert_eq!(reason(&fins[..1]), EndReason::Segment);
    assert_eq!(reason(&fins), EndReason::Closed);
    assert_eq!(reason(&[segment(a, b, ACK), segment(b, a, RST)]), EndReason::Closed);
    let row = row(&[segment(a, b, SYN), segment(b, a, RST | ACK), segment(a, b, ACK)]);
    assert_eq!(row.tcp_flags, Some([u16::from(SYN | ACK), u16::from(RST | ACK)]));
}

#[test]
fn an_icmp_request_and_its_answer_are_one_row_and_errors_one_each_way() {
    let asked = row(&[icmp(2, 9, 0, 0), icmp(9, 2, 8, 0)]);
    assert!(is_from(&asked, 9));
    assert_eq!((asked.icmp, asked.ports, asked.packets), (Some((8, 0)), None, [1, 1]));
    // What was not answered in the slice.
    let answered = row(&[icmp(2, 9, 0, 0)]);
    assert!(is_from(&answered, 9) && answered.packets == [0, 1] && answered.icmp == Some((0, 0)));
    // A code may be the same number as the type.
    for code in [13, 3] {
        let errors = rows(&[icmp(2, 9, 3, code), icmp(9, 2, 3, code), icmp(9, 2, 3, code)]);
        let seen: Vec<_> = errors.iter().map(|row| (source(row), row.packets, row.icmp)).collect();
        let error = Some((3, code));
        assert_eq!(
            seen,
            [(Some(host(2).into()), [1, 0], error), (Some(host(9).into()), [2, 0], error)]
        );
    }
}

#[test]
fn what_is_no_ip_packet_has_a_row_too() {
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend([[2, 0, 0, 0, 0, 2, 10], [0, 0, 7, 0, 0, 0, 0]].concat());
    request.extend([0, 0, 10, 0, 0, 8]);
    let arp = frame(0x0806, &request);
    let llc = frame(38, &[0x42, 0x42, 3, 0, 0, 0]);
    let strange = frame(0x88b5, &[1, 2, 3]);
    let no_header = frame(IPV4, &[0x45, 0, 0]);
    let frames = [arp, llc.clone(), strange, no_header, llc[..9].to_vec(), Vec::new()];
    let rows = rows(&frames);
    let count: u64 = rows.iter().map(|row| row.packets[0] + row.packets[1]).sum();
    assert_eq!(count, frames.len() as u64);
    assert!(rows.iter().all(|row| row.ip_version.is_none() && row.protocol.is_none()));
    let of = |kind| rows.iter().find(|row| row.ether_type == kind).expect("its row");
    // LLC, and two that are too short to tell.
    assert_eq!(of(None).packets, [3, 0]);
    assert_eq!(of(Some(0x88b5)).source, None);
    assert_eq!(of(Some(IPV4)).packets, [1, 0]);
    let arp = of(Some(0x0806));
    assert_eq!((arp.source, arp.destination), (Some(host(7).into()), Some(host(8).into())));
}

#[test]
fn later_fragments_are_in_the_row_of_their_first() {
    let mut first = ipv4(host(1), host(2), UDP, &udp([5000, 6000], &[0; 40]));
    first[4..8].copy_from_slice(&[0, 7, 0x20, 0]);
    let mut later = ipv4(host(1), host(2), UDP, &[0x42; 30]);
    later[4..8].copy_from_slice(&[0, 7, 0, 6]);
    let mut other = later.clone();
    other[5] = 8;
    let rows = rows(&[frame(IPV4, &first), frame(IPV4, &later), frame(IPV4, &other)]);
    let seen: Vec<_> = rows.iter().map(|row| (row.ports, row.packets)).collect();
    assert_eq!(seen, [(None, [1, 0]), (Some((5000, 6000)), [2, 0])]);
}

#[test]
fn a_tunnel_is_seen_through_and_apart_from_what_it_carries_elsewhere() {
    let inner = ipv4(host(1), host(2), UDP, &udp([5000, 6000], &[]));
    let mut gre = vec![0, 0, 8, 0];
    gre.extend(&inner);
    let outer = ipv4(Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(2, 2, 2, 2), 47, &gre);
    let tagged = ethernet([2; 6], [4; 6], &[[0x81, 0, 0x20, 12]], IPV4, &inner);
    let rows = rows(&[frame(IPV4, &inner), frame(IPV4, &outer), tagged]);
    assert!(rows.iter().all(|row| is_from(row, 1) && row.ports == Some((5000, 6000))));
    let around: Vec<_> = rows.iter().map(|row| (row.vlan, row.tunnel.map(|t| t as u8))).collect();
    assert_eq!(around, [(None, None), (None, Some(4)), (Some(12), None)]);
}

/// Random packets of a few hosts, of IPv4 and IPv6, and some that are cut.
fn drawn(random: &mut SplitMix64) -> Vec<u8> {
    let below = |random: &mut SplitMix64, n: u64| random.below(n);
    let ports = [1000 + below(random, 3) as u16, 80];
    let (from, to) = (below(random, 5) as u8, below(random, 5) as u8);
    let datagram = udp(ports, &[0; 20]);
    let mut drawn = if below(random, 2) == 0 {
        frame(IPV4, &ipv4(host(from), host(to), UDP, &datagram))
    } else {
        let of = |n: u8| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into());
        frame(0x86dd, &ipv6(of(from), of(to), UDP, &datagram))
    };
    if below(random, 10) == 0 {
        drawn.truncate(below(random, drawn.len() as u64) as usize);
    }
    drawn
}

#[test]
fn rows_of_any_size_of_table_hold_every_packet_once_and_say_where_it_is() {
    for seed in 0..40 {
        let mut random = SplitMix64(seed);
        let mut table = FlowTable::with_rows(true, 1 + random.below(60) as usize);
        let (mut all, mut bytes, mut packets, mut lost_all) = (Vec::new(), 0, 0, 0);
        // For each granule, which flows were in it.
        let mut spoke: Vec<Vec<Row>> = Vec::new();
        let mut places = Vec::new();
        let mut lost_in = Vec::new();
        let mut at = 4096;
        for granule in 0..40_i64 {
            let mut alone = FlowTable::new(true);
            for n in 0..random.below(12) {
                let drawn = drawn(&mut random);
                let original_len = drawn.len() as u32 + 5;
                let time_ns = T0 + (granule * 20 + i64::from(n)) * 777;
                for table in [&mut table, &mut alone] {
                    table.packet(LinkType::ETHERNET, &drawn, original_len, time_ns);
                }
                packets += 1;
                bytes += u64::from(original_len);
            }
            let lost = random.below(3) * 5;
            lost_all += lost;
            lost_in.push(lost);
            let place = at..at + 131_072 + random.below(1000);
            at = place.end;
            table.end_granule(place.clone(), lost);
            alone.end_granule(place.clone(), lost);
            places.push(place);
            spoke.push(alone.finish().rows.clone());
            if table.is_full() {
                all.push(table.take().clone());
            }
        }
        all.push(table.finish().clone());
        let rows = || all.iter().flat_map(|rows| &rows.rows);
        let sum = |of: fn(&Row) -> u64| rows().map(of).sum::<u64>();
        assert_eq!(sum(|row| row.packets[0] + row.packets[1]), packets, "seed {seed}");
        assert_eq!(sum(|row| row.bytes[0] + row.bytes[1]), bytes, "seed {seed}");
        assert!(sum(|row| row.lost) >= lost_all.min(1), "seed {seed}");
        // Which granules the rows of a flow name.
        let mut named: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for rows in &all {
            for row in &rows.rows {
                let held = granules_of(rows, row, &places);
                assert_eq!(Some(held.len() as u32), row.granules, "seed {seed}: {row:?}");
                assert_eq!(row.offset, places[held[0]].start);
                assert_eq!(row.offset + row.span, places[held[held.len() - 1]].end);
                assert_eq!(row.lost, held.iter().map(|n| lost_in[*n]).sum::<u64>());
                named.entry(ends(row)).or_default().extend(held);
            }
        }
        for (n, rows) in spoke.iter().enumerate() {
            for row in rows {
                assert!(named[&ends(row)].contains(&n), "seed {seed}, granule {n}: {row:?}");
            }
        }
    }
}

/// What tells a drawn row from others.
fn ends(row: &Row) -> ([(Option<IpAddr>, u16); 2], Option<u16>) {
    let (from, to) = row.ports.unwrap_or_default();
    let mut ends = [(row.source, from), (row.destination, to)];
    ends.sort_unstable();
    (ends, row.ether_type)
}

/// The numbers of the granules that a row names, decoded as docs/FORMAT.md says.
fn granules_of(rows: &Rows, row: &Row, places: &[std::ops::Range<u64>]) -> Vec<usize> {
    let first = places.iter().position(|place| place.start == row.offset).expect("a granule");
    let Some(list) = rows.runs(row) else {
        return (first..first + row.granules.expect("an index") as usize).collect();
    };
    let mut bytes = list.iter().map(|byte| u64::from(*byte));
    let mut number = || {
        let (mut n, mut shift) = (0, 0);
        loop {
            let byte = bytes.next().expect("a number");
            n |= (byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return n as usize;
            }
        }
    };
    let count = number();
    let (mut held, mut next) = (Vec::new(), 0);
    while held.len() < count {
        let gap = number();
        let run = if gap & 1 == 0 { 1 } else { number() + 2 };
        let from = next + (gap >> 1);
        next = from + run;
        held.extend(from..next);
    }
    held
}

#[test]
fn a_flow_over_midnight_is_two_rows() {
    let midnight = (T0 / DAY_NS + 1) * DAY_NS;
    let mut table = FlowTable::new(false);
    // Rings lie in a segment by blocks: the day before may come behind.
    for time_ns in [midnight, midnight - 1, midnight + SECOND, midnight - SECOND] {
        let datagram = datagram((1, 2000), (2, 3000));
        table.packet(LinkType::ETHERNET, &datagram, datagram.len() as u32, time_ns);
    }
    table.end_granule(4096..8192, 0);
    let rows = table.finish();
    let days: BTreeMap<_, _> = rows
        .days()
        .map(|(day, rows)| {
            assert_eq!(rows.len(), 1);
            (
                i64::from(day) * DAY_NS - midnight,
                (rows[0].start_ns, rows[0].end_ns, rows[0].end_reason),
            )
        })
        .collect();
    let expected = [
        (-DAY_NS, (midnight - SECOND, midnight - 1, EndReason::Midnight)),
        (0, (midnight, midnight + SECOND, EndReason::Segment)),
    ];
    assert_eq!(days, BTreeMap::from(expected));
    assert!(rows.rows.iter().all(|row| row.granules.is_none() && rows.runs(row).is_none()));
}
