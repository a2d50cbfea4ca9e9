//! What the hook programs find in a packet, held against a second reader that was written from the
//! same description and shares no code: over generated frames, cut and damaged ones, in user space
//! and inside the kernel at every hook. And what steering promises of its hashes.

mod frames;
mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use frames::{Build, ethernet};
use proptest::prelude::*;
use reference::{Reference, Seen};
use tapdeck_capture::headers::{Found, HAS_PORTS, find, find_flow, forget};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::rules::Tuple;
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{TCP, UDP, ipv4, udp};

const FLOW: usize = 0;
const IP_PAIR: usize = 1;
const SOURCE: usize = 2;
const DESTINATION: usize = 3;
const BOTH_ENDS: usize = 4;
const MAC: usize = 5;
const VLAN: usize = 6;

/// A frame and what the NIC may have stripped from it, as `struct packet` has it.
fn look(frame: &[u8], linear: usize, has_link: bool, tag: Option<u16>) -> Found {
    find(frame, linear, has_link, stripped(tag), 0)
}

fn stripped(tag: Option<u16>) -> u32 {
    tag.map_or(0, |tci| {
        let [high, low] = tci.to_be_bytes();
        u32::from_ne_bytes([0x81, 0x00, high, low])
    })
}

fn innermost(found: &Found) -> Seen {
    Seen::of(found.innermost())
}

/// Looks with both readers, at a few splits into a linear part and a rest.
fn compare(reference: &mut Reference, frame: &[u8], has_link: bool, tag: Option<u16>, seed: u64) {
    let expected = reference.look(frame, has_link, tag);
    // Flow tables are of frames that have their tags.
    if tag.is_none() {
        let link = if has_link { LinkType::ETHERNET } else { LinkType::RAW };
        let read = reference.of_flows.read(link, frame, 0);
        assert!(
            expected.innermost.is_of(read.ip.as_ref()),
            "seed {seed}: {read:?}, {expected:?} in {frame:02x?}",
            expected = expected.innermost,
        );
    }
    for linear in [frame.len(), 0, seed as usize % (frame.len() + 1)] {
        let found = look(frame, linear, has_link, tag);
        let context = || format!("seed {seed}, linear {linear}, tag {tag:?}, {frame:02x?}");
        assert_eq!(Seen::of(&found.outer), expected.outer, "outer: {}", context());
        assert_eq!(innermost(&found), expected.innermost, "innermost: {}", context());
        assert_eq!(found.number[..=VLAN], expected.number, "numbers: {}", context());
        assert_eq!(found.second, expected.second, "second number: {}", context());
    }
}

/// Programs that cut flows off read most packets in place, and walk through the headers of the
/// others: one flow has one hash either way. Returns whether the frame was read in place.
fn one_flow_has_one_hash(frame: &[u8], linear: usize, has_link: bool, seed: u64) -> bool {
    forget();
    let found = find_flow(frame, linear, has_link, 0, seed);
    if found.is_plain != 0 {
        let context = || format!("seed {seed}, linear {linear}, {frame:02x?}");
        assert_ne!(found.is_ip, 0, "{}", context());
        assert_eq!(found.plain_hash, found.hash, "{}", context());
        assert_eq!(found.plain_tcp_flags, found.tcp_flags, "{}", context());
    }
    found.is_plain != 0
}

#[test]
fn a_flow_has_one_hash_however_it_is_read() {
    let mut in_place = 0;
    for seed in 0..20_000 {
        let mut random = SplitMix64(seed ^ 0xf10);
        let has_link = random.below(8) > 0;
        let mut frame = Build::new(&mut random, false).frame(has_link);
        for _ in 0..random.below(3) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.draw() as u8;
        }
        in_place += usize::from(one_flow_has_one_hash(&frame, frame.len(), has_link, seed));
        let linear = random.below(frame.len() as u64 + 1) as usize;
        one_flow_has_one_hash(&frame, linear, has_link, seed);
    }
    assert!(in_place > 500, "{in_place} of 20,000 frames were read in place");
}

/// How many places of a table of flows so many hashes take: the set that each is for, and half of
/// the hash that stands there.
fn places(hashes: &[u64]) -> (usize, usize) {
    const SETS: u64 = 1 << 17;
    let sets: BTreeSet<_> = hashes.iter().map(|hash| hash % SETS).collect();
    let places: BTreeSet<_> = hashes.iter().map(|hash| (hash % SETS, hash >> 32)).collect();
    (sets.len(), places.len())
}

/// Both ends of a flow, and their ports.
type Ends = ([u32; 2], [u16; 2]);

#[test]
fn neighbours_have_places_of_their_own_in_a_table_of_flows() {
    const SIDE: u32 = 200;
    let ten = 10_u32 << 24;
    let between_nets = |a: u32, b: u32| -> Ends { ([ten + a, ten + 256 + b], [40_000, 443]) };
    let far_apart = |a: u32, b: u32| -> Ends { ([ten + (a << 16), b << 24], [40_000, 443]) };
    let by_ports = |a: u32, b: u32| -> Ends { ([ten, ten + 1], [a as u16, 1024 + b as u16]) };
    let by_host_and_port = |a: u32, b: u32| -> Ends { ([ten + a, ten], [b as u16, 443]) };
    let flows: [&dyn Fn(u32, u32) -> Ends; 4] =
        [&between_nets, &far_apart, &by_ports, &by_host_and_port];
    for (kind, ends) in flows.iter().enumerate() {
        for seed in [1, 0x9e37_79b9_7f4a_7c15, SplitMix64(7).draw()] {
            let mut hashes = Vec::new();
            for (a, b) in (0..SIDE).flat_map(|a| (0..SIDE).map(move |b| (a, b))) {
                let (addresses, ports) = ends(a, b);
                let [from, to] = addresses.map(Ipv4Addr::from_bits);
                let one = ipv4(from, to, UDP, &udp(ports, &[]));
                let back = ipv4(to, from, UDP, &udp([ports[1], ports[0]], &[]));
                let [hash, other] =
                    [one, back].map(|packet| find_flow(&packet, packet.len(), false, 0, seed).hash);
                assert_eq!(hash, other, "{from} and {to} with seed {seed}");
                hashes.push(hash);
            }
            let (sets, all) = places(&hashes);
            // Of 40,000 that are drawn, 34,500 sets have some; a deviation is 60.
            assert!((34_200..34_800).contains(&sets), "kind {kind}, seed {seed}: {sets} sets");
            assert_eq!(all, hashes.len(), "kind {kind}, seed {seed}");
        }
    }
}

#[test]
fn protocols_have_places_of_their_own_in_a_table_of_flows() {
    let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Ipv4Addr::from);
    let hash = |protocol| {
        let packet = ipv4(from, to, protocol, &udp([40_000, 443], &[0; 20]));
        find_flow(&packet, packet.len(), false, 0, 7).hash
    };
    assert_ne!(hash(UDP), hash(TCP));
}

/// Whatever lies behind the frame makes no difference.
fn stays_inside(frame: &[u8], has_link: bool) {
    let find_before = |next: u8| {
        let mut longer = frame.to_vec();
        longer.resize(frame.len() + 64, next);
        forget();
        look(&longer[..frame.len()], frame.len(), has_link, None)
    };
    assert_eq!(find_before(0x00), find_before(0x45), "{frame:02x?}");
}

#[test]
fn finds_what_the_reference_finds_in_whole_and_cut_frames() {
    for seed in 0..6_000 {
        let mut random = SplitMix64(seed);
        let tag = (random.below(4) == 0).then(|| random.draw() as u16);
        let has_link = random.below(8) > 0;
        let built = Build::new(&mut random, false).frame(has_link);
        let mut reference = Reference::default();
        forget();
        compare(&mut reference, &built, has_link, tag, seed);
        for cut in (0..built.len()).filter(|_| seed % 20 == 0) {
            compare(&mut reference, &built[..cut], has_link, tag, seed);
            stays_inside(&built[..cut], has_link);
        }
    }
}

#[test]
fn finds_what_the_reference_finds_in_damaged_frames() {
    for seed in 0..20_000 {
        let mut random = SplitMix64(seed ^ 0xda4a);
        let has_link = random.below(8) > 0;
        let mut frame = Build::new(&mut random, false).frame(has_link);
        for _ in 0..=random.below(4) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = if random.below(2) == 0 {
                random.draw() as u8
            } else {
                frame[at] ^ 1 << random.below(8)
            };
        }
        let mut reference = Reference::default();
        forget();
        compare(&mut reference, &frame, has_link, None, seed);
        stays_inside(&frame, has_link);
    }
}

proptest! {
    #[test]
    fn finds_what_the_reference_finds_in_any_bytes(frame: Vec<u8>, has_link: bool, tag: Option<u16>) {
        forget();
        compare(&mut Reference::default(), &frame, has_link, tag, 7);
    }
}

/// The reader of `tapdeck rules` is a third one, and has no memory for fragments.
#[test]
fn agrees_with_the_reader_of_rules() {
    for seed in 0..20_000 {
        let mut random = SplitMix64(seed ^ 0x9017);
        let mut frame = Build::new(&mut random, false).frame(true);
        if random.below(2) == 0 {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.draw() as u8;
        }
        forget();
        let found = look(&frame, frame.len(), true, None).outer;
        let tuple = Tuple::read(LinkType::ETHERNET, &frame);
        let Some((source, destination)) = tuple.addresses() else {
            assert_eq!(found.family, 0, "seed {seed}: {frame:02x?}");
            continue;
        };
        assert_eq!(
            Seen::of(&found).unwrap().addresses(),
            (source, destination),
            "seed {seed}: {frame:02x?}"
        );
        let ports =
            (found.flags & HAS_PORTS != 0).then_some((found.source_port, found.destination_port));
        assert_eq!(
            (found.protocol, ports),
            (tuple.protocol, tuple.ports),
            "seed {seed}: {frame:02x?}"
        );
    }
}

#[test]
fn both_directions_have_the_same_hash() {
    let mut seen = BTreeSet::new();
    for seed in 0..5_000 {
        let there = Build::new(&mut SplitMix64(seed), false).frame(true);
        let back = Build::new(&mut SplitMix64(seed), true).frame(true);
        assert_ne!(there, back, "seed {seed}");
        forget();
        let (there, back) =
            (look(&there, there.len(), true, None), look(&back, back.len(), true, None));
        for steering in [FLOW, IP_PAIR, MAC, VLAN] {
            assert_eq!(
                there.number[steering], back.number[steering],
                "seed {seed}, steering {steering}"
            );
        }
        // The owners of both ends are the same two.
        assert_eq!(there.number[BOTH_ENDS], back.second, "seed {seed}");
        assert_eq!(there.second, back.number[BOTH_ENDS], "seed {seed}");
        assert_eq!(there.number[SOURCE], back.number[DESTINATION], "seed {seed}");
        seen.insert(there.number[FLOW]);
    }
    assert!(seen.len() > 4_000, "{} different hashes", seen.len());
}

/// Frames by hand, so that the two readers cannot agree on the same mistake.
#[test]
fn finds_the_innermost_packet_of_each_tunnel() {
    let inner = frames::udp4([10, 0, 0, 1], [10, 0, 0, 2], 1111, 2222);
    let inner_frame = ethernet(&[], 0x0800, &inner);
    let outer =
        |protocol, payload: &[u8]| frames::ipv4([192, 0, 2, 1], [192, 0, 2, 2], protocol, payload);
    let over_udp = |port: u16, header: &[u8], payload: &[u8]| {
        let [high, low] = port.to_be_bytes();
        outer(17, &[&[0x80, 1, high, low, 0, 0, 0, 0], header, payload].concat())
    };
    let gre = |header: &[u8], payload: &[u8]| outer(47, &[header, payload].concat());
    let packets: Vec<(&str, Vec<u8>)> = vec![
        ("VXLAN", over_udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &inner_frame)),
        ("VXLAN, Linux's port", over_udp(8472, &[8, 0, 0, 0, 0, 0, 7, 0], &inner_frame)),
        ("GENEVE", over_udp(6081, &[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4], &inner_frame)),
        ("GENEVE, no Ethernet", over_udp(6081, &[0, 0, 0x08, 0x00, 0, 0, 7, 0], &inner)),
        ("GTP-U", over_udp(2152, &[0x30, 255, 0, 0, 0, 0, 0, 9], &inner)),
        (
            "GTP-U, extension",
            over_udp(2152, &[0x34, 255, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0x10, 9, 0], &inner),
        ),
        ("GRE", gre(&[0, 0, 0x08, 0x00], &inner)),
        ("GRE, key and sequence", gre(&[0x30, 0, 0x08, 0x00, 1, 2, 3, 4, 5, 6, 7, 8], &inner)),
        ("GRE, Ethernet", gre(&[0, 0, 0x65, 0x58], &inner_frame)),
        (
            "ERSPAN II",
            gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 0, 0, 0, 0, 0], &inner_frame),
        ),
        ("PPTP", gre(&[0x30, 1, 0x88, 0x0b, 0, 40, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21], &inner)),
        ("IP in IP", outer(4, &inner)),
        ("MPLS in IP", outer(137, &[&[0, 1, 1, 64][..], &inner].concat())),
    ];
    let mut frames: Vec<(&str, Vec<u8>)> =
        packets.into_iter().map(|(name, packet)| (name, ethernet(&[], 0x0800, &packet))).collect();
    let stack = [0, 1, 0, 64, 0, 2, 1, 64];
    frames.push(("MPLS", ethernet(&[], 0x8847, &[&stack[..], &inner].concat())));
    let pseudowire = [&stack[..], &[0, 0, 0, 0], &inner_frame].concat();
    frames.push(("MPLS pseudowire", ethernet(&[], 0x8847, &pseudowire)));
    let session = [&[0x11, 0, 0, 1, 0, 30, 0x00, 0x21][..], &inner].concat();
    frames.push(("PPPoE", ethernet(&[(0x8100, 7)], 0x8864, &session)));
    frames.push(("plain", inner_frame.clone()));
    frames.push(("two tags", ethernet(&[(0x88a8, 5), (0x8100, 6)], 0x0800, &inner)));
    let plain = look(&inner_frame, inner_frame.len(), true, None);
    for (name, frame) in frames {
        for linear in [frame.len(), 0] {
            let found = look(&frame, linear, true, None);
            let tuple = found.innermost();
            assert_eq!((tuple.family, tuple.protocol), (4, 17), "{name}");
            assert_eq!((tuple.source_port, tuple.destination_port), (1111, 2222), "{name}");
            assert_eq!(tuple.source[..4], [10, 0, 0, 1], "{name}");
            assert_eq!(tuple.destination[..4], [10, 0, 0, 2], "{name}");
            assert_eq!(found.number[FLOW], plain.number[FLOW], "{name}");
        }
    }
}

#[test]
fn fragments_follow_their_first() {
    const TOO_LATE_NS: u64 = 2 + 30_000_000_001;
    forget();
    let flow = frames::udp4([10, 0, 0, 1], [10, 0, 0, 2], 1111, 2222);
    let plain = find(&ethernet(&[], 0x0800, &flow), 0, true, 0, 0);
    let fragment = |offset: u8, more: bool, payload: &[u8]| {
        let mut packet = frames::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, payload);
        packet[4..8].copy_from_slice(&[0xab, 0xcd, if more { 0x20 } else { 0 }, offset]);
        ethernet(&[], 0x0800, &packet)
    };
    let (first, later) = (fragment(0, true, &flow[20..]), fragment(4, false, &[9; 64]));
    let look_at = |frame: &[u8], ns| find(frame, frame.len(), true, 0, ns);

    let early = look_at(&later, 1);
    assert_eq!((early.outer.source_port, early.outer.flags & HAS_PORTS), (0, 0));
    assert_ne!(early.number[FLOW], plain.number[FLOW]);
    assert_eq!(early.number[IP_PAIR], plain.number[IP_PAIR]);

    assert_eq!(look_at(&first, 2).number[FLOW], plain.number[FLOW]);
    let met = look_at(&later, 3);
    assert_eq!(met.number[FLOW], plain.number[FLOW]);
    assert_eq!((met.outer.source_port, met.outer.destination_port), (1111, 2222));

    assert_eq!(look_at(&later, TOO_LATE_NS).number[FLOW], early.number[FLOW]);
}

#[test]
fn fragments_of_a_tunnel_go_where_its_inner_packet_goes() {
    forget();
    let inner = frames::udp4([10, 0, 0, 1], [10, 0, 0, 2], 1111, 2222);
    let plain = look(&ethernet(&[], 0x0800, &inner), 0, true, None);
    let fragment = |offset: u8, more: bool, payload: &[u8]| {
        let mut packet = frames::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 4, payload);
        packet[4..8].copy_from_slice(&[0xab, 0xce, if more { 0x20 } else { 0 }, offset]);
        ethernet(&[], 0x0800, &packet)
    };
    let (first, later) = (fragment(0, true, &inner), fragment(5, false, &[9; 64]));
    assert_eq!(look(&first, first.len(), true, None).number[FLOW], plain.number[FLOW]);
    let later = look(&later, later.len(), true, None);
    assert_eq!(later.number[FLOW], plain.number[FLOW]);
    // Rules go on judging the outer packet.
    assert_eq!(later.outer.source[..4], [192, 0, 2, 1]);
}

#[test]
fn an_icmp_error_goes_where_its_flow_goes() {
    forget();
    let flow = frames::udp4([10, 0, 0, 1], [10, 0, 0, 2], 1111, 2222);
    let plain = look(&ethernet(&[], 0x0800, &flow), 0, true, None);
    // A router tells the sender.
    let error = frames::ipv4(
        [172, 16, 0, 9],
        [10, 0, 0, 1],
        1,
        &[&[3, 1, 0, 0, 0, 0, 0, 0][..], &flow[..28]].concat(),
    );
    let error = look(&ethernet(&[], 0x0800, &error), 0, true, None);
    assert_eq!(error.number[FLOW], plain.number[FLOW]);
    assert_eq!(error.number[IP_PAIR], plain.number[IP_PAIR]);
    // Its source is the router all the same.
    assert_ne!(error.number[SOURCE], plain.number[SOURCE]);
    assert_eq!(error.outer.source[..4], [172, 16, 0, 9]);
}

/// What is found is what a frame has as it is recorded, with the tag in it.
#[test]
fn a_tag_taken_off_makes_no_difference() {
    for seed in 0..6_000 {
        let mut random = SplitMix64(seed ^ 0x7a9);
        let tci = random.draw() as u16;
        let frame = Build::new(&mut random, false).frame(true);
        let recorded = [&frame[..12], &[0x81, 0], &tci.to_be_bytes(), &frame[12..]].concat();
        for linear in [frame.len(), 0, seed as usize % (frame.len() + 1)] {
            forget();
            let stripped = look(&frame, linear, true, Some(tci));
            forget();
            let whole = look(&recorded, linear, true, None);
            let context = || format!("seed {seed}, linear {linear}, {recorded:02x?}");
            assert_eq!(Seen::of(&stripped.outer), Seen::of(&whole.outer), "{}", context());
            assert_eq!(innermost(&stripped), innermost(&whole), "{}", context());
            assert_eq!(stripped.number, whole.number, "{}", context());
            assert_eq!(stripped.second, whole.second, "{}", context());
        }
    }
}

#[test]
fn vlan_is_that_of_the_outermost_tag() {
    let packet = frames::udp4([10, 0, 0, 1], [10, 0, 0, 2], 1111, 2222);
    let number = |tags: &[(u16, u16)], stripped| {
        let frame = ethernet(tags, 0x0800, &packet);
        look(&frame, frame.len(), true, stripped).number[VLAN]
    };
    let seven = number(&[(0x8100, 7)], None);
    assert_eq!(seven, number(&[], Some(7)));
    assert_eq!(seven, number(&[(0x88a8, 0xe007), (0x8100, 8)], None));
    assert_eq!(seven, number(&[(0x8100, 8)], Some(0x2007)));
    assert_ne!(seven, number(&[(0x8100, 8)], None));
    assert_eq!(number(&[], None), number(&[(0x8100, 0)], None));
}

/// How far the member with the most or the fewest is from the mean, in percent.
fn worst_share(numbers: &[u32], slots: &[u16], members: usize) -> f64 {
    let bits = slots.len().ilog2();
    let mut shares = vec![0_u32; members];
    for number in numbers {
        shares[usize::from(slots[(number >> (32 - bits)) as usize])] += 1;
    }
    let mean = numbers.len() as f64 / members as f64;
    shares.iter().map(|&n| 100.0 * (f64::from(n) / mean - 1.0).abs()).fold(0.0, f64::max)
}

/// Slots of a group's table, as `serve` has them.
const SLOTS: usize = 8192;

/// Members that came one after the other; each took the highest slots of everybody, as many as its
/// share.
fn joined(members: usize) -> Vec<u16> {
    let mut slots = vec![0_u16; SLOTS];
    for newcomer in 1..members {
        let mut spare = vec![0_usize; newcomer];
        for &owner in &slots {
            spare[usize::from(owner)] += 1;
        }
        for n in &mut spare {
            *n = n.saturating_sub(SLOTS / (newcomer + 1));
        }
        for slot in slots.iter_mut().rev() {
            if let Some(n) = spare.get_mut(usize::from(*slot)).filter(|n| **n > 0) {
                *n -= 1;
                *slot = newcomer as u16;
            }
        }
    }
    slots
}

/// The ways in which a table is filled: in stretches, and as members join.
fn tables(members: usize) -> [Vec<u16>; 2] {
    [(0..SLOTS).map(|i| (i * members / SLOTS) as u16).collect(), joined(members)]
}

/// Flow `n` of `tapdeck gen` (docs/FORMAT.md, "Streams"), as an Ethernet frame.
fn generated(n: u32, hosts: u32, ports: u32) -> Vec<u8> {
    let (s, rest) = (n % hosts, n / hosts);
    let (d, rest) = (rest % hosts, rest / hosts);
    let port = (rest % ports + 31 * s + 7 * d) % ports;
    let source = (0xc612_0001_u32 + s).to_be_bytes();
    let destination = (0xc613_0001_u32 + (d + s) % hosts).to_be_bytes();
    ethernet(&[], 0x0800, &frames::udp4(source, destination, 49152 + port as u16, 9))
}

fn numbers(steering: usize, frames: impl Iterator<Item = Vec<u8>>) -> Vec<u32> {
    frames.map(|frame| look(&frame, frame.len(), true, None).number[steering]).collect()
}

/// Chance alone would have one of ten members more than 5 % off the mean of 1,000 flows in half of
/// all cases: its standard deviation is 3 %. For ranges of addresses and ports the hashes are
/// better than chance.
#[test]
fn ten_members_share_generated_flows_within_five_percent() {
    for (hosts, ports) in
        [(254, 16384), (254, 1), (65534, 16384), (65534, 1), (1, 16384), (14, 16384), (100, 100)]
    {
        let flows = numbers(FLOW, (0..10_000).map(|n| generated(n, hosts, ports)));
        for (i, table) in tables(10).iter().enumerate() {
            let worst = worst_share(&flows, table, 10);
            assert!(worst <= 5.0, "{hosts} hosts, {ports} ports, table {i}: {worst:.2} % off");
        }
    }
}

/// For flows without any order: no worse than chance, with a bound of four standard deviations.
#[test]
fn members_share_random_flows_as_evenly_as_chance_allows() {
    let mut random = SplitMix64(11);
    let flows: Vec<Vec<u8>> = (0..100_000)
        .map(|_| {
            let (a, b, ports) = (random.draw() as u32, random.draw() as u32, random.draw());
            let packet =
                frames::udp4(a.to_be_bytes(), b.to_be_bytes(), ports as u16, (ports >> 16) as u16);
            ethernet(&[], 0x0800, &packet)
        })
        .collect();
    for steering in [FLOW, IP_PAIR, SOURCE, DESTINATION] {
        let numbers = numbers(steering, flows.iter().cloned());
        for (members, bound) in [(2, 1.3), (10, 3.8), (64, 10.1)] {
            for table in tables(members) {
                let worst = worst_share(&numbers, &table, members);
                assert!(worst <= bound, "steering {steering}, {members} members: {worst:.2} % off");
            }
        }
    }
}

/// As above for hosts in a row, in the steerings that see one address alone.
#[test]
fn ten_members_share_hosts_in_a_row() {
    let hosts = |n: u32| {
        let packet = frames::udp4((0x0a00_0001 + n).to_be_bytes(), [192, 0, 2, 1], 1000, 53);
        ethernet(&[], 0x0800, &packet)
    };
    for steering in [FLOW, IP_PAIR, SOURCE] {
        let numbers = numbers(steering, (0..10_000).map(hosts));
        for table in tables(10) {
            let worst = worst_share(&numbers, &table, 10);
            assert!(worst <= 5.0, "steering {steering}: {worst:.2} % off");
        }
    }
}

#[test]
fn vlans_in_a_row_are_spread() {
    let frame = |vlan| ethernet(&[(0x8100, vlan)], 0x0800, &frames::udp4([1; 4], [2; 4], 3, 4));
    let numbers = numbers(VLAN, (1..=100).map(frame));
    let mut shares = BTreeMap::new();
    for number in numbers {
        *shares.entry(number >> 30).or_insert(0) += 1;
    }
    assert_eq!(shares.len(), 4, "{shares:?}");
    assert!(shares.values().all(|n| (20..=30).contains(n)), "{shares:?}");
}

mod kernel;
