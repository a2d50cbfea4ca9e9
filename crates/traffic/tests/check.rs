//! What was planted is found: nothing more, nothing less.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use tapdeck_packet::generate::{Sizes, Transport};
use tapdeck_traffic::check::{Check, Error, Period, Report};
use tapdeck_traffic::frame::Frames;
use tapdeck_traffic::sent::{Sent, Spread};
use tapdeck_traffic::workload::{Mac, Mark, Outer, OuterKind, Payload, Ports, Protocol, Workload};

const START_NS: u64 = 1_767_323_045_000_000_000;
const GAP_NS: u64 = 1_000_000;
const LATENCY_NS: u64 = 20_000;

fn ipv4() -> Workload {
    Workload {
        seed: 7,
        source_mac: Mac([2, 0, 0, 0, 0, 1]),
        destination_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlans: vec![],
        outer: None,
        source: "10.1.0.0/24".parse().expect("a network"),
        destination: "10.2.0.0/28".parse().expect("a network"),
        source_ports: Ports(1024, 2047),
        destination_ports: Ports(9, 9),
        protocols: vec![Protocol::Udp],
        flows: 1,
        zipf: None,
        payload: Payload::Random,
        mark: None,
        senders: 1,
    }
}

fn ipv6() -> Workload {
    Workload {
        source: "fd00:1::/64".parse().expect("a network"),
        destination: "fd00:2::/120".parse().expect("a network"),
        ..ipv4()
    }
}

fn tunnel(kind: OuterKind, inner: Workload) -> Workload {
    let [source, destination] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(Ipv4Addr::from);
    Workload { outer: Some(Outer { kind, source, destination, vni: 77 }), ..inner }
}

fn of(protocols: &[Protocol], inner: Workload) -> Workload {
    Workload { protocols: protocols.to_vec(), ..inner }
}

/// All kinds of packets that there are.
fn workloads() -> Vec<Workload> {
    use Protocol::{Icmp, Tcp, Udp};
    let mut all = vec![
        ipv4(),
        Workload { vlans: vec![5], ..of(&[Icmp], ipv4()) },
        Workload { vlans: vec![100, 5], payload: Payload::Zero, ..ipv4() },
        Workload { payload: Payload::Compressible(0.3), ..of(&[Tcp], ipv4()) },
        of(&[Udp, Tcp], ipv6()),
        Workload { vlans: vec![5], ..of(&[Icmp, Tcp], ipv6()) },
        tunnel(OuterKind::Vxlan, of(&[Tcp, Udp, Icmp], ipv4())),
        tunnel(OuterKind::Vxlan, Workload { vlans: vec![9], ..ipv6() }),
        tunnel(OuterKind::Gre, of(&[Icmp, Udp], ipv4())),
        tunnel(OuterKind::Gre, of(&[Tcp], ipv6())),
        Workload { flows: 3000, zipf: Some(1.1), ..of(&[Udp, Tcp, Icmp], ipv4()) },
        Workload { flows: 100, ..of(&[Udp, Tcp], ipv6()) },
    ];
    let ends = [[172, 16, 0, 1], [172, 16, 0, 2]].map(Ipv4Addr::from).map(IpAddr::from);
    let mark = Mark { every_ns: 10 * GAP_NS, source: ends[0], destination: ends[1] };
    all.push(Workload { mark: Some(mark), flows: 5, ..of(&[Tcp, Udp], ipv4()) });
    all
}

#[derive(Clone, Debug)]
struct Packet {
    frame: Vec<u8>,
    stream: u32,
    sent_ns: u64,
}

/// Sends `count` packets, with a mark at every tenth if there are marks.
fn send(workload: &Workload, sizes: &[u16], count: u64) -> (Sent, Vec<Packet>) {
    let longest = sizes.iter().copied().max().expect("a size");
    let sequence = Sizes::Sequence { sizes: sizes.into(), first: 0, step: 1 };
    let mut frames = Frames::new(workload.plan(0, sequence, longest));
    let mut made = BTreeMap::<u16, u64>::new();
    let mut buffer = vec![0; longest.into()];
    let packets: Vec<Packet> = (0..count)
        .map(|i| {
            let sent_ns = START_NS + i * GAP_NS;
            let is_mark = workload.mark.is_some() && i % 10 == 9;
            let packet = frames.make(&mut buffer, sent_ns, is_mark);
            *made.entry(packet.len as u16).or_default() += 1;
            Packet { frame: buffer[..packet.len].to_vec(), stream: packet.flow as u32, sent_ns }
        })
        .collect();
    let sent = Sent {
        sent: count,
        sizes: made,
        started_ns: START_NS,
        ended_ns: START_NS + count * GAP_NS,
        workload: Some(workload.clone()),
        streams: frames.sequences().collect(),
        ..Sent::default()
    };
    (sent, packets)
}

fn smallest_to_largest(workload: &Workload) -> Vec<u16> {
    let shortest = workload.shortest();
    [0, 1, 2, 3, 5, 11, 12, 13, 14, 18, 19, 40, 300]
        .map(|more| shortest + more)
        .into_iter()
        .chain([1514])
        .collect()
}

fn judge<'a>(sent: &Sent, packets: impl IntoIterator<Item = &'a Packet>) -> Report {
    let mut check = Check::new(sent.clone(), false).expect("a run");
    for p in packets {
        check.packet(Some((p.sent_ns + LATENCY_NS) as i64), p.frame.len() as u32, &p.frame);
    }
    let report = check.finish();
    conserves(&report);
    report
}

/// All tables count the same packets.
fn conserves(r: &Report) {
    assert_eq!(r.received, r.intact + r.repeated + r.damaged, "{r:?}");
    let sums = |f: fn(&Period) -> u64| r.over_time.iter().map(f).sum::<u64>();
    assert_eq!(sums(|p| p.received), r.received);
    assert_eq!(sums(|p| p.damaged), r.damaged);
    assert_eq!(sums(|p| p.repeated), r.repeated);
    assert_eq!(sums(|p| p.reordered), r.reordered);
    assert_eq!(sums(|p| p.lost), r.lost + r.refused);
    assert_eq!(r.by_size.values().map(|s| s.made).sum::<u64>(), r.made);
    assert_eq!(r.by_size.values().map(|s| s.damaged).sum::<u64>(), r.damaged);
    assert_eq!(r.by_stream.iter().map(|s| s.repeated).sum::<u64>(), r.repeated);
    assert_eq!(r.by_stream.iter().map(|s| s.reordered).sum::<u64>(), r.reordered);
}
/// Lost, repeated, reordered, damaged.
fn faults(r: &Report) -> [u64; 4] {
    [r.lost, r.repeated, r.reordered, r.damaged]
}

#[test]
fn a_run_that_came_back_is_clean() {
    for workload in workloads() {
        let (sent, packets) = send(&workload, &smallest_to_largest(&workload), 400);
        let r = judge(&sent, &packets);
        assert_eq!((faults(&r), r.intact, r.foreign), ([0; 4], 400, 0), "{workload:?}");
        assert!(r.is_clean() && r.by_stream.is_empty() && r.streams_with_loss == 0);
        assert!(r.by_size.values().all(|s| s.arrived == s.made && s.lost == 0));
        let latency = Spread { p50: LATENCY_NS, p99: LATENCY_NS, max: LATENCY_NS };
        assert_eq!(r.latency_ns, Some(latency), "{:?}", r.latency_unknown);
    }
}

#[test]
fn streams_are_found_by_their_ends() {
    let transports =
        |w: &Workload| w.protocols.clone().into_iter().map(Transport::from).collect::<Vec<_>>();
    for workload in workloads() {
        let mut found = HashSet::new();
        for stream in 0..=workload.flows {
            let Some(flow) = workload.flow(stream) else { continue };
            let address = |octets: [u8; 16]| -> IpAddr {
                if workload.is_ipv6() {
                    octets.into()
                } else {
                    [octets[0], octets[1], octets[2], octets[3]].into()
                }
            };
            let (source, destination) = (address(flow.source), address(flow.destination));
            let ports = (flow.source_port, flow.destination_port);
            assert_eq!(
                workload.stream_of(source, destination, ports, flow.transport),
                Some(stream)
            );
            found.insert(stream);
            assert_eq!(workload.stream_of(destination, source, ports, flow.transport), None);
            assert_eq!(
                workload.stream_of(source, destination, (ports.0, 10), Transport::Udp),
                None
            );
            for other in [Transport::Udp, Transport::Tcp, Transport::Icmp] {
                if !transports(&workload).contains(&other) {
                    assert_eq!(workload.stream_of(source, destination, ports, other), None);
                }
            }
        }
        assert!(!found.is_empty());
    }
}

#[test]
fn losses_are_counted_where_they_were() {
    for workload in workloads() {
        let sizes = smallest_to_largest(&workload);
        let (sent, packets) = send(&workload, &sizes, 1000);
        // The head, the tail, something in the middle, and all of one stream.
        let stream = packets[500].stream;
        let is_lost = |i: usize| {
            !(3..990).contains(&i) || (300..340).contains(&i) || packets[i].stream == stream
        };
        let came: Vec<_> = (0..1000).filter(|&i| !is_lost(i)).map(|i| &packets[i]).collect();
        let r = judge(&sent, came.iter().copied());
        let lost = 1000 - came.len() as u64;
        assert_eq!((faults(&r), r.intact), ([lost, 0, 0, 0], 1000 - lost), "{workload:?}");
        assert!(!r.is_clean());
        let mut by_size = BTreeMap::new();
        let mut by_stream = BTreeMap::new();
        for i in (0..1000).filter(|&i| is_lost(i)) {
            *by_size.entry(packets[i].frame.len() as u16).or_insert(0) += 1;
            *by_stream.entry(packets[i].stream).or_insert(0) += 1;
        }
        let told: BTreeMap<u16, u64> =
            r.by_size.iter().filter(|(_, s)| s.lost > 0).map(|(&len, s)| (len, s.lost)).collect();
        assert_eq!(told, by_size);
        let told: BTreeMap<u32, u64> = r.by_stream.iter().map(|s| (s.stream, s.lost)).collect();
        assert_eq!(told, by_stream);
        assert_eq!(r.streams_with_loss, by_stream.len() as u64);
        assert!(r.by_stream.is_sorted_by_key(|s| std::cmp::Reverse(s.lost)));
    }
}

#[test]
fn losses_have_their_place_in_time() {
    let (sent, packets) = send(&ipv4(), &[60], 1000);
    let r = judge(
        &sent,
        packets
            .iter()
            .enumerate()
            .filter(|(i, _)| !(350..360).contains(i) && *i < 995)
            .map(|(_, p)| p),
    );
    assert_eq!((r.period_ms, r.over_time.len()), (100, 10));
    let lost: Vec<u64> = r.over_time.iter().map(|p| p.lost).collect();
    assert_eq!(lost, [0, 0, 0, 10, 0, 0, 0, 0, 0, 5]);
    assert_eq!(r.over_time[3].received, 90);
}

#[test]
fn nothing_came() {
    let (sent, _) = send(&ipv4(), &[60], 10);
    let r = judge(&sent, []);
    assert_eq!((faults(&r), r.intact), ([10, 0, 0, 0], 0));
    assert!(r.latency_ns.is_none() && r.latency_unknown.is_some());
}

#[test]
fn repeated_packets_are_known_however_late() {
    for workload in workloads() {
        let (sent, packets) = send(&workload, &smallest_to_largest(&workload), 500);
        let order =
            (0..500).flat_map(|i| if i == 77 { vec![i, i] } else { vec![i] }).chain([3, 77, 499]);
        let r = judge(&sent, order.map(|i| &packets[i]));
        assert_eq!((faults(&r), r.intact), ([0, 4, 0, 0], 500), "{workload:?}");
        assert!(r.is_clean());
    }
}

/// Packets 3, 4 and 5 come behind 6, the fourth to arrive: with extents 3, 4 and 5.
#[test]
fn a_late_packet_has_the_extent_of_the_rfc() {
    let (sent, packets) = send(&ipv4(), &[60], 10);
    let order = [0, 1, 2, 6, 7, 8, 3, 4, 5, 9];
    // Captured in this order.
    let came: Vec<Packet> = order
        .iter()
        .zip(0..)
        .map(|(&i, at)| Packet { sent_ns: START_NS + at * GAP_NS, ..packets[i].clone() })
        .collect();
    let r = judge(&sent, &came);
    assert_eq!(faults(&r), [0, 0, 3, 0]);
    let extent = r.reordering_extent.expect("some were reordered");
    assert_eq!((extent.p50, extent.max), (4, 5));
    assert_eq!(r.by_stream[0].reordering_extent_max, 5);
    // Captured as they were sent: the recording only holds them in another order.
    let r = judge(&sent, order.iter().map(|&i| &packets[i]));
    assert_eq!(faults(&r), [0; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Losses, repetitions and any order at once, in several streams.
    #[test]
    fn any_course_is_told_exactly(
        seed: u64,
        came in prop::collection::vec(0..120usize, 0..240),
        is_short: bool,
    ) {
        let workload = Workload { seed, flows: 4, ..of(&[Protocol::Tcp, Protocol::Udp], ipv4()) };
        let (sent, packets) = send(&workload, &[if is_short { 60 } else { 90 }], 120);
        // In time order of capture.
        let mut check = Check::new(sent, false).expect("a run");
        for (&i, at) in came.iter().zip(0..) {
            let p = &packets[i];
            check.packet(Some(START_NS as i64 + at), p.frame.len() as u32, &p.frame);
        }
        let r = check.finish();
        conserves(&r);
        let mut streams: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let (mut repeated, mut extents) = (0, Vec::new());
        for &i in &came {
            let arrived = streams.entry(packets[i].stream).or_default();
            if arrived.contains(&i) {
                repeated += 1;
                continue;
            }
            if let Some(j) = arrived.iter().position(|&earlier| earlier > i) {
                extents.push((arrived.len() - j) as u64);
            }
            arrived.push(i);
        }
        let arrived: usize = streams.values().map(Vec::len).sum();
        prop_assert_eq!(faults(&r), [120 - arrived as u64, repeated, extents.len() as u64, 0]);
        prop_assert_eq!(r.reordering_extent.map(|e| e.max), extents.into_iter().max());
    }
}

/// What may happen to a frame: bytes set, bits flipped, cut by the recorder, another length told.
fn mutation() -> impl Strategy<Value = (usize, Vec<(usize, u8)>, usize, i32)> {
    let bytes = prop::collection::vec((0..200usize, any::<u8>()), 0..4);
    let captured = prop_oneof![3 => Just(usize::MAX), 1 => 0..200usize];
    let longer = prop_oneof![5 => Just(0), 1 => -100..100i32, 1 => any::<i32>()];
    (0..60usize, bytes, captured, longer)
}

proptest! {
    /// Whatever comes, every packet is counted once, and all tables agree.
    #[test]
    fn nothing_is_counted_twice_or_not_at_all(
        kind in 0..workloads().len(),
        more in 0..80u16,
        routed: bool,
        came in prop::collection::vec(mutation(), 0..100),
    ) {
        let workload = &workloads()[kind];
        let (sent, packets) = send(workload, &[workload.shortest() + more], 60);
        let mut check = Check::new(sent, routed).expect("a run");
        for (i, bytes, captured, longer) in &came {
            let mut frame = packets[*i].frame.clone();
            let original_len = (frame.len() as u32).wrapping_add_signed(*longer);
            for (at, byte) in bytes {
                let at = at % frame.len();
                frame[at] = *byte;
            }
            frame.truncate(*captured);
            check.packet(None, original_len, &frame);
        }
        let r = check.finish();
        conserves(&r);
        prop_assert_eq!(r.received + r.cut + r.foreign + r.of_other_runs, came.len() as u64);
        prop_assert_eq!(r.lost, 60u64.saturating_sub(r.arrived + r.unidentified + r.cut));
    }
}

/// Every single bit of packets of every kind: the packet is damaged, and no other is said to be
/// anything.
#[test]
fn a_flipped_bit_damages_one_packet_wherever_it_is() {
    for workload in workloads() {
        let shortest = workload.shortest();
        for len in [shortest, shortest + 1, shortest + 12, shortest + 17, shortest + 60] {
            let bits = u64::from(len) * 8;
            let (sent, packets) = send(&workload, &[len], 2 * bits + 1);
            // Every second packet has one bit flipped, each another bit.
            let mut came = packets.clone();
            for (bit, packet) in came.iter_mut().skip(1).step_by(2).enumerate() {
                packet.frame[bit / 8] ^= 1 << (bit % 8);
            }
            let r = judge(&sent, &came);
            let seen = (faults(&r), r.intact, r.foreign + r.of_other_runs);
            if seen != ([0, 0, 0, bits], bits + 1, 0) {
                let alone = |i: &usize| {
                    let mut one = packets.clone();
                    one[*i] = came[*i].clone();
                    faults(&judge(&sent, &one)) != [0, 0, 0, 1]
                };
                let first = (1..came.len()).step_by(2).find(alone).map(|i| i / 2);
                panic!("{seen:?}: bit {first:?} of {len} bytes of {workload:?}");
            }
        }
    }
}

/// Every 7th byte of large packets, but for those that are the number.
#[test]
fn a_flipped_bit_in_a_large_packet_leaves_its_number_readable() {
    for payload in [Payload::Random, Payload::Compressible(0.5)] {
        let (sent, mut packets) = send(&Workload { payload, ..ipv4() }, &[1514], 250);
        let bytes = (0..1514).step_by(7).filter(|byte| !(42..50).contains(byte));
        let mut flipped = 0;
        for (packet, byte) in packets.iter_mut().skip(1).zip(bytes) {
            packet.frame[byte] ^= 0x10;
            flipped += 1;
        }
        let r = judge(&sent, &packets);
        assert_eq!((faults(&r), r.unidentified, r.arrived), ([0, 0, 0, flipped], 0, 250));
    }
}

#[test]
fn a_packet_cut_or_grown_on_the_wire_is_damaged() {
    for workload in workloads() {
        let len = workload.shortest() + 200;
        let (sent, packets) = send(&workload, &[len], 30);
        for other in [len - 1, len - 100, len + 1, len + 50] {
            let mut came = packets.clone();
            came[20].frame.resize(other.into(), 0);
            let r = judge(&sent, &came);
            assert_eq!(
                (faults(&r), r.intact),
                ([0, 0, 0, 1], 29),
                "{other} of {len} of {workload:?}"
            );
        }
    }
}

#[test]
fn snaplen_leaves_packets_intact_as_far_as_they_go() {
    for workload in workloads() {
        let (sent, packets) = send(&workload, &[workload.shortest() + 300], 60);
        let at = workload.headers().transport_at();
        for snaplen in [at + 40, at + 48, at + 150] {
            let mut check = Check::new(sent.clone(), false).expect("a run");
            for (i, p) in packets.iter().enumerate() {
                let mut frame = p.frame[..snaplen].to_vec();
                if i == 33 {
                    frame[at - 3] ^= 4;
                }
                check.packet(Some((p.sent_ns + LATENCY_NS) as i64), p.frame.len() as u32, &frame);
            }
            let r = check.finish();
            conserves(&r);
            assert_eq!((faults(&r), r.intact), ([0, 0, 0, 1], 59), "{snaplen} of {workload:?}");
        }
        // From where the number is whole in any transport's packet.
        let mut check = Check::new(sent.clone(), false).expect("a run");
        for (p, snaplen) in packets.iter().zip(at + 28..) {
            check.packet(None, p.frame.len() as u32, &p.frame[..snaplen]);
        }
        let r = check.finish();
        assert_eq!((faults(&r), r.intact), ([0; 4], 60), "{workload:?}");
        // The number is not there; the headers are.
        let mut check = Check::new(sent.clone(), false).expect("a run");
        for p in &packets {
            check.packet(None, p.frame.len() as u32, &p.frame[..at + 8]);
        }
        let r = check.finish();
        assert_eq!((faults(&r), r.cut, r.received), ([0; 4], 60, 0));
        assert!(!r.is_clean(), "nothing is known of them");
    }
}

/// A router's work on a frame.
fn route(packet: &Packet, ip_at: usize, is_ipv6: bool) -> Packet {
    let mut packet = packet.clone();
    packet.frame[..12].copy_from_slice(&[6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7]);
    if is_ipv6 {
        packet.frame[ip_at + 7] -= 2;
        return packet;
    }
    // RFC 1624: two from the time to live are 0x0200 from the sum.
    packet.frame[ip_at + 8] -= 2;
    let at = ip_at + 10;
    let checksum = u32::from(u16::from_be_bytes([packet.frame[at], packet.frame[at + 1]])) + 0x0200;
    let checksum = (checksum & 0xffff) + (checksum >> 16);
    packet.frame[at..at + 2].copy_from_slice(&(checksum as u16).to_be_bytes());
    packet
}

#[test]
fn routed_packets_may_differ_where_routers_change_them() {
    for workload in workloads() {
        let (sent, packets) = send(&workload, &smallest_to_largest(&workload), 100);
        let headers = workload.headers();
        let (ip_at, is_ipv6) = match workload.outer {
            None => (headers.ip_at, workload.is_ipv6()),
            Some(_) => (headers.outer_ip_at, false),
        };
        let came: Vec<_> = packets.iter().map(|p| route(p, ip_at, is_ipv6)).collect();
        let r = judge(&sent, &came);
        assert_eq!((faults(&r), r.damaged_as_by_routing), ([0, 0, 0, 100], 100), "{workload:?}");
        let mut check = Check::new(sent, true).expect("a run");
        for (i, p) in came.iter().enumerate() {
            let mut frame = p.frame.clone();
            // The identification of IPv4, the next header of IPv6.
            frame[ip_at + 5] ^= u8::from(i == 50);
            check.packet(None, frame.len() as u32, &frame);
        }
        let r = check.finish();
        assert_eq!((faults(&r), r.intact), ([0, 0, 0, 1], 99), "{workload:?}");
    }
}

#[test]
fn tags_that_the_device_took_off_are_told() {
    for workload in workloads().into_iter().filter(|w| !w.vlans.is_empty()) {
        let (sent, packets) = send(&workload, &smallest_to_largest(&workload), 100);
        for tags in 1..=workload.vlans.len() {
            let mut came = packets.clone();
            for p in &mut came[10..] {
                p.frame.drain(12..12 + 4 * tags);
            }
            came[50].frame[0] ^= 1;
            let r = judge(&sent, &came);
            assert_eq!((faults(&r), r.intact, r.untagged), ([0, 0, 0, 1], 99, 90), "{workload:?}");
        }
    }
}

#[test]
fn what_is_not_of_the_run_does_not_count() {
    for workload in workloads() {
        let sizes = smallest_to_largest(&workload);
        let (sent, packets) = send(&workload, &sizes, 200);
        let mut check = Check::new(sent, false).expect("a run");
        let mut feed =
            |frame: &[u8]| check.packet(Some(START_NS as i64), frame.len() as u32, frame);
        // Nothing, noise, and the run's packets on their way back.
        let (mut foreign, ip) = (0, workload.headers().ip_at);
        for len in [0, 1, 11, 12, 13, 14, 42, 60, 64, 1514] {
            feed(&vec![0; len]);
            feed(&vec![0xff; len]);
            foreign += 2;
        }
        for p in packets.iter().filter(|p| p.frame.len() > 120) {
            let (at, len) = if workload.is_ipv6() { (ip + 8, 16) } else { (ip + 12, 4) };
            let mut frame = p.frame.clone();
            frame[at..at + 2 * len].rotate_left(len);
            feed(&frame);
            foreign += 1;
        }
        for p in &packets {
            feed(&p.frame);
        }
        let r = check.finish();
        let others = (r.foreign, r.of_other_runs);
        assert_eq!((faults(&r), r.intact, others), ([0; 4], 200, (foreign, 0)), "{workload:?}");
    }
}

#[test]
fn another_run_is_another_run() {
    let long = |w: &Workload| [w.shortest() + 12, w.shortest() + 100];
    for workload in workloads() {
        let (sent, packets) = send(&workload, &long(&workload), 200);
        for seed in [workload.seed, workload.seed + 1] {
            let (_, others) = send(&Workload { seed, ..workload.clone() }, &long(&workload), 300);
            let mut check = Check::new(sent.clone(), false).expect("a run");
            let came: Vec<Packet> = others.iter().map(|p| later(p, &workload)).collect();
            for p in came.iter().chain(&packets) {
                check.packet(Some(p.sent_ns as i64), p.frame.len() as u32, &p.frame);
            }
            let r = check.finish();
            assert_eq!((faults(&r), r.intact, r.of_other_runs), ([0; 4], 200, 300), "{workload:?}");
        }
    }
}

/// With a seed of its own, and filler to tell it by.
#[test]
fn another_run_at_the_same_time_is_another_run() {
    for workload in workloads().into_iter().filter(|w| w.payload != Payload::Zero) {
        let sizes = [workload.shortest() + 200];
        let (sent, packets) = send(&workload, &sizes, 100);
        let (_, others) = send(&Workload { seed: 8, ..workload.clone() }, &sizes, 100);
        let r = judge(&sent, others.iter().chain(&packets));
        assert_eq!((faults(&r), r.intact, r.of_other_runs), ([0; 4], 100, 100), "{workload:?}");
    }
}

/// The packet with a send time that is an hour later, its payload's checksum mended.
fn later(packet: &Packet, workload: &Workload) -> Packet {
    let mut packet = packet.clone();
    let at = workload.headers().transport_at();
    let header_len = workload.flow(packet.stream).expect("its flow").transport.header_len();
    let tag = &mut packet.frame[at + header_len..];
    let word = |tag: &[u8], at: usize| u32::from(u16::from_be_bytes([tag[at], tag[at + 1]]));
    let before: u32 = (8..16).step_by(2).map(|i| word(tag, i)).sum();
    let time = packet.sent_ns + 3_600_000_000_000;
    tag[8..16].copy_from_slice(&time.to_be_bytes());
    let after: u32 = (8..16).step_by(2).map(|i| word(tag, i)).sum();
    // RFC 1624: HC' = ~(~HC + ~m + m').
    let sum = (!word(tag, 16) & 0xffff) + (4 * 0xffff - before) + after;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    tag[16..18].copy_from_slice(&(!sum as u16).to_be_bytes());
    packet
}

#[test]
fn refused_packets_are_not_lost() {
    let (mut sent, packets) = send(&ipv4(), &[60], 100);
    sent.sent -= 7;
    sent.refused = 7;
    let r = judge(&sent, packets.iter().take(91));
    assert_eq!((faults(&r), r.made, r.refused), ([2, 0, 0, 0], 100, 7));
}

fn workload(sent: &mut Sent) -> &mut Workload {
    sent.workload.as_mut().expect("it has one")
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let (sent, _) = send(&ipv4(), &[60], 10);
    let fails = |change: fn(&mut Sent)| {
        let mut sent = sent.clone();
        change(&mut sent);
        Check::new(sent, false).err().map(|e| e.to_string()).expect("it cannot be judged")
    };
    assert!(matches!(Check::new(Sent::default(), false), Err(Error::Replay)));
    assert!(fails(|s| s.streams.push(0)).contains("streams"));
    assert!(fails(|s| s.ended_ns = 1).contains("ended before"));
    assert!(fails(|s| s.streams[0] += 1).contains("not the same number"));
    assert!(fails(|s| s.streams[0] = u64::MAX).contains("not the same number"));
    assert!(fails(|s| workload(s).protocols.clear()).contains("protocol"));
    assert!(fails(|s| workload(s).source_ports = Ports(9, 8)).contains("ports"));
    assert!(fails(|s| workload(s).vlans = vec![1; 50]).contains("VLAN"));
    assert!(fails(|s| workload(s).flows = 0).contains("flows"));
}
