//! An index against the packets that it was made from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fs, io};

use tapdeck_packet::header;
use tapdeck_packet::key::{Class, Keys, Plan};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng;
use tapdeck_testkit::SplitMix64;

use super::builder::Ends;
use super::close::merge;
use super::image::rewriting;
use super::pairs::Pairs;
use super::spots::Spot;
use super::{Builder, Checker, Difference, Granule, Index, Quarters};
use crate::format::name::SegmentName;
use crate::io::{Directory, Object, PAGE, State, object_of};
use crate::span::Span;

const T0: i64 = 1_767_323_045_000_000_000;

fn name(live: bool) -> SegmentName {
    SegmentName { number: 7, began_s: T0 / 1_000_000_000, live }
}

#[derive(Clone, Copy)]
struct Traffic {
    /// The lowest address, and how many there are from it on.
    first: u32,
    hosts: usize,
    ports: usize,
    longest: usize,
}

const MIX: Traffic = Traffic { first: 0x0a00_0000, hosts: 300, ports: 2000, longest: 1400 };
const FLOOD: Traffic = Traffic { first: 0, hosts: 1 << 32, ports: 1 << 16, longest: 1 };

/// TCP or UDP, in IPv4 or IPv6, some with a tag.
fn frame(rng: &mut SplitMix64, traffic: Traffic) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, rng.below(9) as u8, 2, 0, 0, 0, 1, rng.below(9) as u8];
    if rng.below(10) == 0 {
        f.extend([0x81, 0, 0, rng.below(30) as u8]);
    }
    let protocol = [6, 17][rng.below(2)];
    let mut host = || (rng.below(traffic.hosts) as u32).wrapping_add(traffic.first).to_be_bytes();
    let (src, dst) = (host(), host());
    if rng.below(5) == 0 && traffic.hosts < 1 << 32 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, protocol, 64]);
        for address in [src, dst] {
            f.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
            f.extend(address);
        }
    } else {
        f.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        f.extend(src);
        f.extend(dst);
    }
    for _ in 0..2 {
        f.extend((rng.below(traffic.ports) as u16).to_be_bytes());
    }
    f.resize(f.len() + rng.below(traffic.longest), 0);
    f
}

/// A packet of a segment, and where its block begins.
struct Made {
    at: u64,
    frame: Vec<u8>,
    time_ns: i64,
}

/// Pieces of a segment as rings give them: place, blocks, bytes on disk.
type DraftEntry = (u64, Vec<u8>, u64);

fn segment(
    seed: u64,
    pieces: usize,
    piece_len: usize,
    traffic: Traffic,
) -> (Vec<DraftEntry>, Vec<Made>) {
    changing_segment(seed, pieces, piece_len, |_| traffic)
}

/// Makes a segment whose traffic is another in each piece.
fn changing_segment(
    seed: u64,
    pieces: usize,
    piece_len: usize,
    of_piece: impl Fn(usize) -> Traffic,
) -> (Vec<DraftEntry>, Vec<Made>) {
    let mut rng = SplitMix64(seed);
    let (mut at, mut time_ns) = (4096, T0);
    let (mut blocks, mut packets) = (Vec::new(), Vec::new());
    for piece in 0..pieces {
        let traffic = of_piece(piece);
        let mut bytes = Vec::new();
        while bytes.len() < piece_len {
            time_ns += rng.below(2000) - 100;
            let frame = frame(&mut rng, traffic);
            let dropped = if rng.below(500) == 0 { 3 } else { 0 };
            let flags = rng.below(2) as u32;
            let start = bytes.len();
            bytes.resize(start + pcapng::packet_len(frame.len(), flags, dropped), 0);
            let out = &mut bytes[start..];
            let len = frame.len() as u32;
            pcapng::write_packet(out, 0, time_ns as u64, [&frame, &[], &[]], len, flags, dropped);
            packets.push(Made { at: at + start as u64, frame, time_ns });
        }
        let on_disk = crate::format::segment::filled(bytes.len()) as u64;
        blocks.push((at, bytes, on_disk));
        at += on_disk;
    }
    (blocks, packets)
}

struct Found(Vec<(Class, u128)>);

impl Keys for Found {
    fn key(&mut self, class: Class, key: u128) {
        self.0.push((class, key));
    }
}

fn keys(frame: &[u8]) -> Vec<(Class, u128)> {
    let mut found = Found(Vec::new());
    assert!(header::keys(LinkType::ETHERNET, frame, &mut found));
    found.0
}

fn log(pieces: &[DraftEntry]) -> Vec<u8> {
    let mut builder = Builder::new(&name(true), vec![LinkType::ETHERNET]);
    let mut log = Vec::new();
    for (at, blocks, on_disk) in pieces {
        builder.add(*at, blocks, *on_disk);
        if builder.is_full() {
            log.extend(builder.chunk());
        }
    }
    if !builder.is_empty() {
        log.extend(builder.chunk());
    }
    assert!(builder.is_empty() && log.len().is_multiple_of(PAGE));
    log
}

fn save_log(dir: &Path, log: &[u8]) -> Index {
    fs::write(name(true).index_log_path(dir), log).unwrap();
    Index::open(&Directory::new(dir), &name(true), 0).unwrap().expect("it was written")
}

fn close(dir: &Path, segment_len: u64) -> Vec<u8> {
    let log = fs::File::open(name(true).index_log_path(dir)).unwrap();
    let mut bytes = Vec::new();
    let mut flush = |piece: &[u8], at: u64| {
        let end = at as usize + piece.len();
        assert!(piece.len().is_multiple_of(PAGE) && (at as usize).is_multiple_of(PAGE));
        bytes.resize(bytes.len().max(end), 0);
        bytes[at as usize..end].copy_from_slice(piece);
        Ok(())
    };
    let segment = tempfile::tempfile().unwrap();
    segment.set_len(segment_len).unwrap();
    let (log, segment) = (object_of(log), object_of(segment));
    let len = merge(&log, &name(false), &*segment, 5, &mut flush).unwrap();
    assert_eq!(len, bytes.len() as u64);
    fs::write(name(false).index_path(dir), &bytes).unwrap();
    bytes
}

/// Which granules hold each key, found by looking.
fn truth(granules: &[Granule], packets: &[Made]) -> BTreeMap<(Class, u128), BTreeSet<u64>> {
    let mut truth: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for packet in packets {
        let i = granules.partition_point(|g| g.place.end <= packet.at);
        let granule = &granules[i];
        assert!(granule.place.contains(&packet.at), "every packet lies in a granule");
        assert!((granule.first_ns..=granule.last_ns).contains(&packet.time_ns));
        for key in keys(&packet.frame) {
            truth.entry(key).or_default().insert(granule.place.start);
        }
    }
    truth
}

fn places(granules: &[Granule]) -> BTreeSet<u64> {
    granules.iter().filter(|g| g.wanted != 0).map(|g| g.place.start).collect()
}

fn ask(index: &mut Index, class: Class, first: u128, last: u128) -> BTreeSet<u64> {
    places(&index.select(&Plan::Keys { class, first, last }, Span::ALL).unwrap())
}

fn check(index: &mut Index, packets: &[Made], pieces: &[DraftEntry], exact: bool) {
    let granules = index.select(&Plan::All, Span::ALL).unwrap();
    assert_eq!(granules.iter().map(|g| u64::from(g.packets)).sum::<u64>(), packets.len() as u64);
    assert_eq!(index.summary().packets, packets.len() as u64);
    assert!(granules.windows(2).all(|w| w[0].place.end == w[1].place.start), "no gap");
    let (last_at, _, last_len) = pieces.last().unwrap();
    assert_eq!(index.indexed(), vec![4096..last_at + last_len; 1]);
    let whole: Vec<u8> = pieces
        .iter()
        .flat_map(|(_, blocks, on_disk)| {
            let mut bytes = blocks.clone();
            crate::format::segment::fill_up(&mut bytes);
            assert_eq!(bytes.len() as u64, *on_disk);
            bytes
        })
        .collect();
    for g in &granules {
        let bytes = &whole[g.place.start as usize - 4096..g.place.end as usize - 4096];
        assert_eq!(crc32c::crc32c(bytes), g.quarters.checksum());
        assert!(g.quarters.are_those_of(bytes));
    }
    let truth = truth(&granules, packets);
    let step = (truth.len() / 1000).max(1);
    for ((class, key), truth) in truth.iter().step_by(step) {
        let found = ask(index, *class, *key, *key);
        assert!(found.is_superset(truth), "{class:?} {key:x}");
        assert!(!exact || found == *truth, "{class:?} {key:x}");
    }
}

#[test]
fn every_key_is_found_in_just_its_granules() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(1, 34, 1 << 20, MIX);
    let mut index = save_log(dir.path(), &log(&pieces));
    check(&mut index, &packets, &pieces, true);
    close(dir.path(), 1 << 30);
    let mut index =
        Index::open(&Directory::new(dir.path()), &name(false), 1 << 30).unwrap().expect("an index");
    assert!(index.summary().complete && index.summary().dropped == 5);
    check(&mut index, &packets, &pieces, true);
    for (class, key) in [(Class::SourceIpv4, 1), (Class::Vlan, 4000), (Class::SourceIpv6, 9)] {
        assert!(ask(&mut index, class, key, key).is_empty());
    }
    assert!(
        Index::open(&Directory::new(dir.path()), &name(false), 1 << 29).is_err(),
        "of another length"
    );
}

#[test]
fn ranges_and_combinations_are_those_of_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(2, 12, 300_000, MIX);
    let mut index = save_log(dir.path(), &log(&pieces));
    let granules = index.select(&Plan::All, Span::ALL).unwrap();
    let truth = truth(&granules, &packets);
    let of = |class: Class, first: u128, last: u128| -> BTreeSet<u64> {
        truth.range((class, first)..=(class, last)).flat_map(|(_, places)| places.clone()).collect()
    };
    let key = |class, first, last| Plan::Keys { class, first, last };
    let (net, port) = ((0x0a00_0010, 0x0a00_001f), (80, 81));
    let (a, b) = (Class::SourceIpv4, Class::DestinationPort);
    let either = Plan::Any(vec![key(a, net.0, net.1), key(b, port.0, port.1)]);
    let both = Plan::Every(vec![key(a, net.0, net.1), Plan::All, key(b, port.0, port.1)]);
    let (nets, ports) = (of(a, net.0, net.1), of(b, port.0, port.1));
    assert!(!ports.is_empty() && ports.len() < granules.len());
    let mut select = |plan: &Plan| places(&index.select(plan, Span::ALL).unwrap());
    assert_eq!(select(&either), &nets | &ports);
    assert_eq!(select(&both), &nets & &ports);
    assert_eq!(select(&key(b, port.0, port.1)), ports);
    assert!(select(&Plan::Any(Vec::new())).is_empty());
    // Granules that tell of losses come along, if only for those.
    let telling = index.select(&Plan::Any(Vec::new()), Span::ALL).unwrap();
    let lost: u64 = telling.iter().flat_map(|g| &g.dropped).map(|d| d.1).sum();
    assert!(lost > 0 && telling.iter().all(|g| g.wanted == 0));
    let (after_ns, before_ns) = (granules[5].first_ns, granules[5].last_ns + 1);
    let some = index.select(&Plan::All, Span { after_ns, before_ns }).unwrap();
    assert!(some.contains(&Granule { wanted: Quarters::ALL, ..granules[5].clone() }));
    assert!(some.len() < 10, "neighbours only");
}

/// Traffic in which most addresses are in few granules.
const THIN: Traffic = Traffic { hosts: 100_000, ..MIX };

/// Returns where the quarters lie that an index names for a key.
fn quarters_asked(index: &mut Index, class: Class, key: u128) -> Vec<std::ops::Range<u64>> {
    let plan = Plan::Keys { class, first: key, last: key };
    let granules = index.select(&plan, Span::ALL).unwrap();
    let wanted = granules.iter().filter(|granule| granule.wanted != 0);
    wanted.flat_map(Granule::to_read).map(|part| part.place).collect()
}

#[test]
fn of_rare_addresses_only_the_quarters_are_read_in_which_they_stand() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(31, 40, 1 << 20, THIN);
    let storage = Directory::new(dir.path());
    let mut of_log = save_log(dir.path(), &log(&pieces));
    close(dir.path(), 1 << 30);
    let mut closed = Index::open(&storage, &name(false), 1 << 30).unwrap().expect("an index");
    verify(dir.path(), &pieces);
    let granules = closed.select(&Plan::All, Span::ALL).unwrap();
    assert!(granules.iter().all(|granule| granule.quarters.each().len() == 4));
    let mut blocks: BTreeMap<(Class, u128), Vec<u64>> = BTreeMap::new();
    for packet in &packets {
        for key in keys(&packet.frame) {
            blocks.entry(key).or_default().push(packet.at);
        }
    }
    let is_address = |class| {
        use Class::{DestinationIpv4, DestinationIpv6, SourceIpv4, SourceIpv6};
        matches!(class, SourceIpv4 | DestinationIpv4 | SourceIpv6 | DestinationIpv6)
    };
    let (mut read, mut whole) = (0, 0);
    let rare = blocks.iter().filter(|((class, _), blocks)| is_address(*class) && blocks.len() < 5);
    for ((class, key), blocks) in rare.step_by(50) {
        for index in [&mut of_log, &mut closed] {
            let parts = quarters_asked(index, *class, *key);
            for at in blocks {
                let there = parts.iter().any(|part| part.contains(at));
                assert!(there, "{class:?} {key:#x} at {at} of {parts:?}");
            }
            read += parts.iter().map(|part| part.end - part.start).sum::<u64>();
        }
        let of_block = |at: &u64| granules.partition_point(|granule| granule.place.end <= *at);
        let numbers: BTreeSet<usize> = blocks.iter().map(of_block).collect();
        let len = |number: &usize| granules[*number].place.end - granules[*number].place.start;
        // Those that tell of losses are read whole.
        whole += 2 * numbers.iter().map(len).sum::<u64>();
    }
    assert!(whole > 10 << 20 && read < whole * 2 / 3, "{read} of {whole} bytes");
}

#[test]
fn keys_of_one_packet_are_looked_for_in_one_quarter() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(32, 40, 1 << 20, THIN);
    save_log(dir.path(), &log(&pieces));
    close(dir.path(), 1 << 30);
    let storage = Directory::new(dir.path());
    let mut index = Index::open(&storage, &name(false), 1 << 30).unwrap().expect("an index");
    let of = |keys: &[(Class, u128)], class| keys.iter().find(|key| key.0 == class).copied();
    for packet in packets.iter().step_by(997) {
        let keys = keys(&packet.frame);
        let pairs = [Class::SourceIpv4, Class::DestinationIpv4].map(|class| of(&keys, class));
        let [Some(source), Some(destination)] = pairs else { continue };
        let key = |(class, key)| Plan::Keys { class, first: key, last: key };
        let plan = Plan::Every(vec![key(source), key(destination)]);
        let found = index.select(&plan, Span::ALL).unwrap();
        let parts = found.iter().filter(|granule| granule.wanted != 0).flat_map(Granule::to_read);
        assert!(parts.into_iter().any(|part| part.place.contains(&packet.at)));
    }
}

#[test]
fn a_flood_is_told_by_hashes_and_stays_found() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(3, 26, 1 << 20, FLOOD);
    let log = log(&pieces);
    let mut index = save_log(dir.path(), &log);
    check(&mut index, &packets, &pieces, false);
    let closed = close(dir.path(), 1 << 30);
    let mut index =
        Index::open(&Directory::new(dir.path()), &name(false), 1 << 30).unwrap().expect("an index");
    let dictionary = &index.images[0].directory.dictionaries[&Class::SourceIpv4];
    assert!(dictionary.hashed && dictionary.keys <= 1 << 16);
    check(&mut index, &packets, &pieces, false);
    assert!((closed.len() as u64) < (26 << 20) / 10, "{} bytes", closed.len());
    let net = ask(&mut index, Class::SourceIpv4, 0, 0xffff);
    assert_eq!(net.len() as u64, index.granules(), "a range cannot be told");
    let granules = index.granules() as usize;
    let absent: usize =
        (0..200).map(|k| ask(&mut index, Class::SourceIpv4, k << 8, k << 8).len()).sum();
    assert!(absent < 200 * granules / 20, "{absent} of {} are wrong", 200 * granules);
}

#[test]
fn pieces_that_come_late_find_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(4, 20, 200_000, MIX);
    let (late, early): (Vec<DraftEntry>, Vec<DraftEntry>) =
        pieces.iter().cloned().partition(|(at, ..)| at % 3 == 0);
    let bytes = [log(&early), log(&late)].concat();
    let index = save_log(dir.path(), &bytes);
    assert_eq!(index.indexed(), vec![4096..pieces[19].0 + pieces[19].2; 1]);
    let part = save_log(dir.path(), &log(&early));
    assert!(part.indexed().len() > 2 && !part.summary().complete);
    save_log(dir.path(), &bytes);
    close(dir.path(), 1 << 30);
    let mut index =
        Index::open(&Directory::new(dir.path()), &name(false), 1 << 30).unwrap().expect("an index");
    check(&mut index, &packets, &pieces, true);
}

/// An object that counts how often it is read.
#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    reads: AtomicUsize,
}

impl Object for Counted {
    fn state(&self) -> io::Result<State> {
        self.bytes.state()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Relaxed);
        self.bytes.read_at(buffer, at)
    }
}

/// Far away, and on a cold disk, each read takes its time however little it is.
#[test]
fn neighbouring_sections_are_read_at_once() {
    const PIECES: usize = 1000;
    let (mut pieces, _) = segment(11, PIECES, 100, MIX);
    // No piece lies right behind another, so each is a granule.
    for (number, (at, _, _)) in (0..).zip(&mut pieces) {
        *at += number * PAGE as u64;
    }
    let segment_len = pieces.last().map_or(0, |(at, _, on_disk)| at + on_disk);
    let dir = tempfile::tempdir().unwrap();
    save_log(dir.path(), &log(&pieces));
    let bytes = close(dir.path(), segment_len);
    let counted = Arc::new(Counted { bytes, reads: AtomicUsize::new(0) });
    let mut index = Index::closed(counted.clone(), &name(false), segment_len).unwrap();
    let opening = counted.reads.swap(0, Relaxed);
    assert_eq!((opening, index.granules()), (2, PIECES as u64), "its head and its directory");
    assert_eq!(index.select(&Plan::All, Span::ALL).unwrap().len(), PIECES);
    assert_eq!(counted.reads.swap(0, Relaxed), 1, "all granules, of sixteen sections");
}

#[test]
fn a_log_that_is_being_written_counts_up_to_its_last_whole_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, _) = segment(5, 6, 100_000, MIX);
    let (first, second) = (log(&pieces[..3]), log(&pieces[3..]));
    let whole = save_log(dir.path(), &first).summary().packets;
    for cut in [0, 1, PAGE, second.len() / 2, second.len() - PAGE] {
        let index = save_log(dir.path(), &[&first[..], &second[..cut]].concat());
        assert_eq!(index.summary().packets, whole, "{cut}");
    }
    assert!(save_log(dir.path(), &[first, second].concat()).summary().packets > whole);
    assert!(
        Index::open(&Directory::new(dir.path()), &SegmentName { number: 8, ..name(true) }, 0)
            .unwrap()
            .is_none()
    );
}

#[test]
fn damage_is_told_and_never_believed() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, _) = segment(6, 3, 150_000, MIX);
    save_log(dir.path(), &log(&pieces));
    let good = close(dir.path(), 1 << 20);
    let path = name(false).index_path(dir.path());
    let all = |class| Plan::Keys { class, first: 0, last: u128::MAX };
    let plans: Vec<Plan> = Class::ALL.into_iter().map(all).chain([Plan::All]).collect();
    let ask = || -> io::Result<Vec<Vec<Granule>>> {
        let mut index =
            Index::open(&Directory::new(dir.path()), &name(false), 1 << 20)?.expect("a file");
        plans.iter().map(|plan| index.select(plan, Span::ALL)).collect()
    };
    let answer = ask().unwrap();
    let mut told = 0;
    for at in (0..good.len()).step_by(17) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).unwrap();
        match ask() {
            Ok(same) => assert_eq!(same, answer, "byte {at}"),
            Err(_) => told += 1,
        }
    }
    assert!(told > 30, "{told}");
    for cut in (0..good.len()).step_by(997) {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(ask().is_err(), "cut at {cut}");
    }
}

/// All that a reader can learn from an index.
#[derive(PartialEq)]
struct IndexContents {
    answers: Vec<Vec<Granule>>,
    tables: Vec<Vec<Granule>>,
    keys: Vec<(u128, Vec<(u32, u32)>)>,
    indexed: Vec<std::ops::Range<u64>>,
}

fn plans(rng: &mut SplitMix64, packets: &[Made]) -> Vec<Plan> {
    let some = |rng: &mut SplitMix64| {
        let packet = &packets[rng.below(packets.len() as u64) as usize];
        let keys = keys(&packet.frame);
        let (class, key) = keys[rng.below(keys.len() as u64) as usize];
        Plan::Keys { class, first: key, last: key + u128::from(rng.below(2u64) * rng.below(9)) }
    };
    let mut plans = vec![Plan::All, Plan::Any(Vec::new())];
    for _ in 0..40 {
        let (a, b) = (some(rng), some(rng));
        plans.push(match rng.below(3) {
            0 => a,
            1 => Plan::Every(vec![a, b]),
            _ => Plan::Any(vec![a, b]),
        });
    }
    plans
}

fn contents_of(dir: &Path, live: bool, plans: &[Plan]) -> IndexContents {
    let len = if live { 0 } else { 1 << 30 };
    let mut index = Index::open(&Directory::new(dir), &name(live), len).unwrap().expect("an index");
    index.read_all().unwrap();
    let answers = plans.iter().map(|plan| index.select(plan, Span::ALL).unwrap()).collect();
    let tables = index.tables().unwrap();
    let mut keys = Vec::new();
    for table in 0..tables.len() {
        for class in Class::ALL {
            index.keys(table, [class; 2], |key, runs| keys.push((key, runs.to_vec()))).unwrap();
        }
    }
    IndexContents { answers, tables, keys, indexed: index.indexed() }
}

/// Classes that nobody knows yet, with anything in them.
fn strange_classes(rng: &mut SplitMix64, classes: &mut Vec<(u64, Vec<u8>)>) {
    for i in 0..=rng.below(3u64) {
        let number = Class::ALL.len() as u64 + 60 * i + rng.below(50) * (1 + rng.below(1u64 << 40));
        let bytes = (0..rng.below(500)).map(|_| rng.below(256) as u8).collect();
        let at = rng.below(classes.len() + 1);
        classes.insert(at, (number, bytes));
    }
}

#[test]
fn classes_that_are_not_known_change_no_answer() {
    for seed in 0..6 {
        let rng = &mut SplitMix64(seed);
        let dir = tempfile::tempdir().unwrap();
        // A flood is long enough for its keys to be told by hashes.
        let (traffic, len) = if seed == 5 { (FLOOD, 600_000) } else { (MIX, 150_000) };
        let (pieces, packets) = segment(seed, 5, len, traffic);
        let plans = plans(rng, &packets);
        let logs = [log(&pieces[..3]), log(&pieces[3..])];
        let mut strange =
            |image: &[u8]| rewriting::with_classes(image, |classes| strange_classes(rng, classes));

        save_log(dir.path(), &logs.concat());
        let of_log = contents_of(dir.path(), true, &plans);
        let strange_log = logs.clone().map(|chunk| strange(&chunk)).concat();
        save_log(dir.path(), &strange_log);
        assert!(contents_of(dir.path(), true, &plans) == of_log, "seed {seed}");

        // What a log has of them is left out of the index.
        let from_strange = close(dir.path(), 1 << 30);
        save_log(dir.path(), &logs.concat());
        let image = close(dir.path(), 1 << 30);
        assert!(from_strange == image, "seed {seed}");
        let of_index = contents_of(dir.path(), false, &plans);
        fs::write(name(false).index_path(dir.path()), strange(&image)).unwrap();
        assert!(contents_of(dir.path(), false, &plans) == of_index, "seed {seed}");
        verify(dir.path(), &pieces);
    }
}

#[test]
fn a_quarter_that_is_left_out_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, _) = segment(33, 5, 1 << 20, THIN);
    save_log(dir.path(), &log(&pieces));
    let image = close(dir.path(), 1 << 30);
    assert!(rewriting::with_entries(&image, |_, _| {}) == image);
    let rewrite = |change: &dyn Fn(&mut Spot)| {
        let mut changed = 0;
        let image = rewriting::with_entries(&image, |class, entries| {
            let mut spots = entries.iter_mut().map(|(_, spots)| &mut spots[0]);
            let rare = spots.find(|spot| spot.quarters() != Quarters::ALL);
            if class == Class::SourceIpv4
                && let Some(spot) = rare
            {
                change(spot);
                changed += 1;
            }
        });
        assert_eq!(changed, 1);
        fs::write(name(false).index_path(dir.path()), image).unwrap();
        differences(dir.path(), &pieces)
    };
    let one_more = |spot: &mut Spot| *spot = Spot::whole(spot.granule());
    assert_eq!(rewrite(&one_more), []);
    let another = |spot: &mut Spot| {
        *spot = Spot::new(spot.granule(), Quarters::ALL & !spot.quarters());
    };
    let found = rewrite(&another);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("in a quarter that the index does not name"), "{found:?}");
    assert!(!found[0].is_segments);
}

/// A chunk that an index is held against has other ends than those that the index was made of.
#[test]
fn a_log_of_two_threads_is_held_against_its_segment() {
    let dir = tempfile::tempdir().unwrap();
    let own = |piece: usize| Traffic { first: (piece as u32) << 12, hosts: 60, ..MIX };
    let (pieces, _) = changing_segment(34, 40, 1 << 20, own);
    let turns = |first: usize| -> Vec<DraftEntry> {
        pieces.iter().skip(first).step_by(2).cloned().collect()
    };
    save_log(dir.path(), &[log(&turns(0)), log(&turns(1))].concat());
    let storage = Directory::new(dir.path());
    let opened = || Index::open_log(&storage, &name(true)).unwrap().expect("a log");
    let parts = quarters_asked(&mut opened(), Class::SourceIpv4, 7);
    let bytes: u64 = parts.iter().map(|part| part.end - part.start).sum();
    assert!(parts.len() > 4 && bytes < 7 << 17, "more than four granules, by quarters: {parts:?}");
    assert_eq!(differences_of(opened(), &pieces), []);
    close(dir.path(), 1 << 30);
    verify(dir.path(), &pieces);
}

#[test]
fn keys_in_another_order_and_keys_that_are_nowhere_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, _) = segment(36, 5, 150_000, MIX);
    save_log(dir.path(), &log(&pieces));
    let image = close(dir.path(), 1 << 30);
    let path = name(false).index_path(dir.path());
    let turned = rewriting::with_entries(&image, |class, entries| {
        if class == Class::Vlan {
            entries.reverse();
        }
    });
    fs::write(&path, turned).unwrap();
    let storage = Directory::new(dir.path());
    let mut index = Index::open(&storage, &name(false), 1 << 30).unwrap().expect("an index");
    assert_eq!(index.read_all().unwrap_err().to_string(), "keys are not in order");

    // Each VLAN in each granule: much more than there is.
    let widened = rewriting::with_entries(&image, |class, entries| {
        let granules = index.granules() as u32;
        for (_, spots) in entries.iter_mut().filter(|_| class == Class::Vlan) {
            *spots = (0..granules).map(Spot::whole).collect();
        }
    });
    fs::write(&path, widened).unwrap();
    let found = differences(dir.path(), &pieces);
    assert!(found.len() == 1 && found[0].what.contains("does not have"), "{found:?}");
}

/// An index that somebody made may say that each block is a granule.
#[test]
fn granules_as_small_as_blocks_run_out_of_numbers_and_nothing_else() {
    const BLOCKS: usize = 70_000;
    let frame = frame(&mut SplitMix64(35), MIX);
    let mut block = vec![0; pcapng::packet_len(frame.len(), 0, 0)];
    let len = frame.len() as u32;
    pcapng::write_packet(&mut block, 0, T0 as u64, [&frame, &[], &[]], len, 0, 0);
    let granules = (1..=BLOCKS as u64).map(|n| 4096 + n * block.len() as u64).collect();
    let ends = Ends { granules, quarters: Vec::new() };
    let builder = Builder::new(&name(false), vec![LinkType::ETHERNET]);
    let mut builder = builder.with_ends(ends);
    builder.add(4096, &block.repeat(BLOCKS), (BLOCKS * block.len()) as u64);
    let mut index = Index::of_chunk(builder.chunk()).unwrap();
    index.read_all().unwrap();
    assert_eq!(index.granules(), u64::from(Pairs::MOST_GRANULES) + 1);
    for (class, key) in keys(&frame) {
        assert_eq!(ask(&mut index, class, key, key).len() as u64, index.granules(), "{class:?}");
    }
}

/// Holds an index against its segment.
fn verify(dir: &Path, pieces: &[DraftEntry]) {
    assert_eq!(differences(dir, pieces), []);
}

fn differences(dir: &Path, pieces: &[DraftEntry]) -> Vec<Difference> {
    let index = Index::open(&Directory::new(dir), &name(false), 1 << 30);
    differences_of(index.unwrap().expect("an index"), pieces)
}

fn differences_of(index: Index, pieces: &[DraftEntry]) -> Vec<Difference> {
    let mut checker = Checker::new(index, &name(false), vec![LinkType::ETHERNET]).unwrap();
    let mut differences = Vec::new();
    for (_, blocks, _) in pieces {
        let mut blocks = blocks.clone();
        crate::format::segment::fill_up(&mut blocks);
        checker.take(&blocks, &mut differences).unwrap();
    }
    checker.finish(&mut differences).unwrap();
    differences
}

#[test]
fn a_class_that_is_not_told_of_may_be_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, packets) = segment(21, 5, 150_000, MIX);
    let logs = [log(&pieces[..3]), log(&pieces[3..])];
    let without = |image: &[u8], class: Class| {
        rewriting::with_classes(image, |classes| classes.retain(|(n, _)| *n != class as u64))
    };
    // One chunk does not know it, and so neither does the index that is made of both.
    let partial = [without(&logs[0], Class::SourcePort), logs[1].clone()].concat();
    save_log(dir.path(), &partial);
    close(dir.path(), 1 << 30);
    let storage = Directory::new(dir.path());
    let mut index = Index::open(&storage, &name(false), 1 << 30).unwrap().expect("an index");
    index.read_all().unwrap();
    let all = index.granules() as usize;
    assert_eq!(ask(&mut index, Class::SourcePort, 1 << 15, 1 << 15).len(), all);
    assert!(!index.is_listed(0, Class::SourcePort) && index.is_listed(0, Class::DestinationPort));
    let granules = index.select(&Plan::All, Span::ALL).unwrap();
    for ((class, key), truth) in truth(&granules, &packets).iter().step_by(11) {
        let found = ask(&mut index, *class, *key, *key);
        assert!(found.is_superset(truth), "{class:?} {key:x}");
        assert!(*class == Class::SourcePort || found == *truth, "{class:?} {key:x}");
    }
    verify(dir.path(), &pieces);
}

/// A key and the runs of its granules.
type KeyRuns = (u128, Vec<(u32, u32)>);

/// What an index says of granules and keys, without quarters.
fn by_granules(contents: &IndexContents) -> (Vec<Granule>, BTreeSet<KeyRuns>) {
    let undivided = |granule: &Granule| {
        let len = (granule.place.end - granule.place.start) as u32;
        let quarters = Quarters::one(len, granule.quarters.checksum());
        Granule { quarters, ..granule.clone() }
    };
    let granules = contents.tables.iter().flatten().map(undivided).collect();
    (granules, contents.keys.iter().cloned().collect())
}

/// Asserts that an index of an older version says the same of granules and keys. Where two keys
/// must be in one packet, it may name more granules.
fn assert_older(older: &IndexContents, newer: &IndexContents, plans: &[Plan]) {
    assert!(by_granules(older) == by_granules(newer) && older.indexed == newer.indexed);
    for (plan, (older, newer)) in plans.iter().zip(older.answers.iter().zip(&newer.answers)) {
        let (older, newer) = (places(older), places(newer));
        assert!(older.is_superset(&newer), "{plan}");
        assert!(matches!(plan, Plan::Every(_)) || older == newer, "{plan}");
    }
}

#[test]
fn older_versions_are_still_read() {
    let to_1 = |image: &[u8]| rewriting::to_version_1(&rewriting::to_version_2(image));
    for version in 1..=2 {
        let to_old = |image: &[u8]| match version {
            1 => to_1(image),
            _ => rewriting::to_version_2(image),
        };
        let dir = tempfile::tempdir().unwrap();
        let (pieces, packets) = segment(22, 5, 150_000, MIX);
        let plans = plans(&mut SplitMix64(22), &packets);
        let logs = [log(&pieces[..3]), log(&pieces[3..])];
        save_log(dir.path(), &logs.concat());
        let of_log = contents_of(dir.path(), true, &plans);
        let image = close(dir.path(), 1 << 30);
        let of_index = contents_of(dir.path(), false, &plans);

        // A log that a recorder of the older version began, and one of this one went on with.
        let [first, second] = &logs;
        let old = to_old(first);
        assert_eq!((old[8], first[8]), (version, 3));
        fs::remove_file(name(false).index_path(dir.path())).unwrap();
        save_log(dir.path(), &[&old[..], second].concat());
        assert_older(&contents_of(dir.path(), true, &plans), &of_log, &plans);
        assert_eq!(close(dir.path(), 1 << 30)[8], 3);
        assert_older(&contents_of(dir.path(), false, &plans), &of_index, &plans);
        verify(dir.path(), &pieces);

        fs::write(name(false).index_path(dir.path()), to_old(&image)).unwrap();
        assert_older(&contents_of(dir.path(), false, &plans), &of_index, &plans);
        verify(dir.path(), &pieces);
    }
}

#[test]
fn a_version_to_come_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (pieces, _) = segment(23, 2, 150_000, MIX);
    save_log(dir.path(), &log(&pieces));
    let mut later = close(dir.path(), 1 << 30);
    later[8] = 4;
    let checksum = crc32c::crc32c(&later[..116]);
    later[116..120].copy_from_slice(&checksum.to_le_bytes());
    fs::write(name(false).index_path(dir.path()), &later).unwrap();
    let refused = Index::open(&Directory::new(dir.path()), &name(false), 1 << 30).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn nonsense_with_right_checksums_is_told_too() {
    let (pieces, _) = segment(7, 2, 100_000, MIX);
    let good = log(&pieces);
    let mut rng = SplitMix64(8);
    for _ in 0..3000 {
        let at = rng.below(good.len());
        let mut bytes = good[at..good.len().min(at + 1 + rng.below(3000))].to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.below(256) as u8][rng.below(6)];
        }
        super::read_anything(&bytes);
    }
}
