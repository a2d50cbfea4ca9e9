//! What a query answers, over segments made for the purpose: every order that rings and rotations
//! can leave behind, and segments that are cut, damaged, renamed and deleted under it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::io::Disk;
use tapdeck_store::query::{Error, Matcher, Note, Packet, Query, SLACK_NS, Snapshot, Span};
use tapdeck_store::{ClosedScope, Scope, SegmentName, Store};
use tapdeck_testkit::SplitMix64;

const SECOND: i64 = 1_000_000_000;
/// When the recordings of these tests begin.
const T0: i64 = 1_767_323_045 * SECOND;
const LOCK: &str = ".tapdeck.lock";

/// A packet to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    interface: u32,
    time_ns: i64,
    frame: Vec<u8>,
    dropped: u64,
}

fn made(interface: u32, time_ns: i64, id: u64) -> Made {
    Made { interface, time_ns, frame: id.to_be_bytes().to_vec(), dropped: 0 }
}

fn id(frame: &[u8]) -> u64 {
    u64::from_be_bytes(*frame.first_chunk().expect("8 bytes"))
}

fn description(name: &str) -> InterfaceDescription {
    InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 262_144,
        name: name.into(),
        description: "hook tcx, CPU 0".into(),
        filter: None,
        hardware: Some("veth".into()),
        mac: Some([2, 0, 0, 0, 0, 1]),
    }
}

/// A segment while it is put together.
struct Draft {
    bytes: Vec<u8>,
    /// Where each packet's block ends.
    ends: Vec<usize>,
}

impl Draft {
    fn new(interfaces: &[&str]) -> Self {
        let mut bytes = Vec::new();
        pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
        for name in interfaces {
            pcapng::interface_description(&mut bytes, &description(name));
        }
        let mut made = Self { bytes, ends: Vec::new() };
        made.fill();
        made
    }

    fn packet(&mut self, p: &Made) {
        let start = self.bytes.len();
        self.bytes.resize(start + pcapng::packet_len(p.frame.len(), 1, p.dropped), 0);
        let (out, frame) = (&mut self.bytes[start..], [&p.frame[..], &[], &[]]);
        let len = p.frame.len() as u32;
        pcapng::write_packet(out, p.interface, p.time_ns as u64, frame, len, 1, p.dropped);
        self.ends.push(self.bytes.len());
    }

    /// As behind each of a ring's blocks.
    fn fill(&mut self) {
        let gap = self.bytes.len().next_multiple_of(4096) - self.bytes.len();
        match gap {
            0 => {}
            1..pcapng::MIN_FILL => pcapng::fill(&mut self.bytes, gap + 4096),
            _ => pcapng::fill(&mut self.bytes, gap),
        }
    }

    fn statistics(&mut self, end_ns: i64, dropped: u64) {
        let s = StatisticsBlock { time_ns: end_ns as u64, dropped, ..StatisticsBlock::default() };
        pcapng::statistics(&mut self.bytes, &s);
        self.fill();
    }

    fn write(&self, dir: &Path, number: u64, began_ns: i64, live: bool) -> PathBuf {
        let path = SegmentName { number, began_s: began_ns / SECOND, live }.path(dir);
        fs::write(&path, &self.bytes).expect("a file");
        path
    }
}

/// A closed segment of packets.
fn segment(dir: &Path, number: u64, began_ns: i64, packets: &[Made]) -> PathBuf {
    let mut made = Draft::new(&["eth0", "eth0", "eth1"]);
    for p in packets {
        made.packet(p);
    }
    let end_ns = packets.iter().map(|p| p.time_ns).max().unwrap_or(began_ns);
    made.statistics(end_ns, 0);
    made.write(dir, number, began_ns, false)
}

fn all(_: &Packet<'_>) -> bool {
    true
}

fn query<M: Matcher + Clone + Send + 'static>(dir: &Path, span: Span, matcher: M) -> Query<M> {
    Query::new(Snapshot::open(dir, span).expect("a store"), span, Plan::All, matcher)
}

/// The rest of an answer: time, interface, dropped and frame of each packet.
fn rest<M: Matcher + Clone + Send + 'static>(query: &mut Query<M>) -> Vec<Made> {
    let mut found = Vec::new();
    while let Some(p) = query.next_packet(|_| true).expect("readable") {
        assert_eq!((p.flags, p.original_len as usize), (1, p.frame.len()), "kept as it was");
        let Packet { interface, time_ns, dropped, .. } = p;
        found.push(Made { interface, time_ns, frame: p.frame.to_vec(), dropped });
    }
    found
}

fn ids<M: Matcher + Clone + Send + 'static>(query: &mut Query<M>) -> Vec<u64> {
    rest(query).iter().map(|p| id(&p.frame)).collect()
}

/// Packets as rings leave them: each ring by blocks that are nearly in order, blocks of rings in
/// any order that a backlog may bring, cut into segments anywhere. Times often are equal.
fn recording(rng: &mut SplitMix64) -> Vec<Vec<Made>> {
    let rings = 1 + rng.below(3) as u32;
    let mut queues: Vec<Vec<Vec<Made>>> = Vec::new();
    let mut serial = 0;
    for ring in 0..rings {
        let mut time_ns = T0 + rng.below(1000);
        let blocks = (0..=rng.below(20)).map(|_| {
            let packets = (0..=rng.below(60)).map(|_| {
                time_ns += rng.below(40);
                serial += 1;
                let jitter = if rng.per_mille(100) { rng.below(500) } else { 0 };
                let mut p = made(ring, time_ns - jitter, serial);
                p.frame.resize(8 + rng.below(3000), serial as u8);
                p
            });
            packets.collect()
        });
        queues.push(blocks.collect());
    }
    let mut segments = vec![Vec::new()];
    while queues.iter().any(|q| !q.is_empty()) {
        let ring = rng.below(queues.len());
        if queues[ring].is_empty() {
            continue;
        }
        let block = queues[ring].remove(0);
        if rng.per_mille(150) {
            segments.push(Vec::new());
        }
        if let Some(segment) = segments.last_mut() {
            segment.extend(block);
        }
    }
    segments
}

#[test]
fn every_packet_comes_once_and_in_time_order() {
    for seed in 0..150 {
        let mut rng = SplitMix64(seed);
        let temp = tempfile::tempdir().expect("a directory");
        let segments = recording(&mut rng);
        for (i, packets) in segments.iter().enumerate() {
            segment(temp.path(), 1 + i as u64, T0, packets);
        }
        let mut expected: Vec<Made> = segments.into_iter().flatten().collect();
        // Stable: equal times keep the order of files.
        expected.sort_by_key(|p| p.time_ns);
        assert_eq!(rest(&mut query(temp.path(), Span::ALL, all)), expected, "seed {seed}");

        let third = |p: &Packet<'_>| id(p.frame) % 3 == 1;
        let span = Span { after_ns: T0 + 900, before_ns: T0 + 5000 };
        expected.retain(|p| id(&p.frame) % 3 == 1 && span.contains(p.time_ns));
        let mut some = query(temp.path(), span, third);
        assert_eq!(rest(&mut some), expected, "seed {seed}");
        let mut count = query(temp.path(), span, third);
        count.count(|_| true).expect("readable");
        assert_eq!(count.progress().matches, expected.len() as u64, "seed {seed}");
        assert_eq!(count.progress().bytes, count.progress().total_bytes, "seed {seed}");
        assert_eq!((count.take_notes(), some.take_notes()), (vec![], vec![]), "seed {seed}");
    }
}

#[test]
fn disorder_beyond_all_memory_is_put_in_order() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut rng = SplitMix64(3);
    let mut expected = Vec::new();
    for number in 1..=3 {
        let packets: Vec<Made> = (0..500u64)
            .map(|i| {
                let mut p = made(0, T0 + rng.below(1 << 30), number * 1000 + i);
                p.frame.resize(60_000, i as u8);
                p
            })
            .collect();
        segment(temp.path(), number, T0, &packets);
        expected.extend(packets);
    }
    let bytes: usize = expected.iter().map(|p| p.frame.len()).sum();
    assert!(bytes > 80 << 20, "twice what stays in memory");
    expected.sort_by_key(|p| p.time_ns);
    let expected: Vec<u64> = expected.iter().map(|p| id(&p.frame)).collect();
    assert_eq!(ids(&mut query(temp.path(), Span::ALL, all)), expected);
}

#[test]
fn packets_come_before_all_segments_are_read() {
    let temp = tempfile::tempdir().expect("a directory");
    for number in 1..=20 {
        let began_ns = T0 + number as i64 * 100 * SECOND;
        let packets: Vec<Made> =
            (0..10).map(|i| made(0, began_ns + i, number * 10 + i as u64)).collect();
        segment(temp.path(), number, began_ns, &packets);
    }
    let mut query = query(temp.path(), Span::ALL, all);
    let first = query.next_packet(|_| true).expect("readable").expect("there are 200");
    assert_eq!(id(first.frame), 10);
    let progress = query.progress();
    assert!(progress.bytes * 5 < progress.total_bytes, "{progress:?}");
    assert_eq!(ids(&mut query).len(), 199);
}

#[test]
fn segments_outside_the_span_are_left_out() {
    let temp = tempfile::tempdir().expect("a directory");
    let minute = 60 * SECOND;
    for number in 0..20 {
        let began_ns = T0 + number as i64 * minute;
        segment(
            temp.path(),
            1 + number,
            began_ns,
            &[made(0, began_ns, number * 2), made(1, began_ns + minute - 1, number * 2 + 1)],
        );
    }
    let span = Span { after_ns: T0 + 9 * minute, before_ns: T0 + 11 * minute - 1 };
    let mut query = query(temp.path(), span, all);
    let (read, skipped) = query.snapshot().segments();
    assert_eq!(read + skipped, 20);
    assert!((2..=6).contains(&read), "{read} segments for two");
    assert_eq!(ids(&mut query), [18, 19, 20]);
}

/// A clock that was stepped leaves names that say nothing of the times inside.
#[test]
fn names_are_not_believed_more_than_packets() {
    let temp = tempfile::tempdir().expect("a directory");
    let hour = 3600 * SECOND;
    segment(temp.path(), 1, T0 + 5 * hour, &[made(0, T0, 1), made(0, T0 + 2, 3)]);
    let mut late = Draft::new(&["eth0"]);
    late.packet(&made(0, T0 + 1, 2));
    // Closed after the clock had gone back.
    late.statistics(T0 - 5 * hour, 0);
    late.write(temp.path(), 2, T0 - 5 * hour, false);
    let span = Span { after_ns: T0, before_ns: T0 + 3 };
    assert_eq!(ids(&mut query(temp.path(), span, all)), [1, 2, 3]);
}

#[test]
fn what_waited_for_too_long_is_told() {
    let temp = tempfile::tempdir().expect("a directory");
    let began_ns = T0 + 10 * SLACK_NS;
    segment(temp.path(), 1, T0, &[made(0, T0 + SECOND, 1)]);
    segment(temp.path(), 2, began_ns, &[made(0, began_ns, 2), made(1, T0, 3)]);
    let mut query = query(temp.path(), Span::ALL, all);
    assert_eq!(ids(&mut query), [1, 3, 2]);
    let notes = query.take_notes();
    assert!(matches!(&notes[..], [Note::Late(_)]) && notes[0].is_fault(), "{notes:?}");
}

#[test]
fn gaps_are_told_by_the_next_match_of_the_interface() {
    let temp = tempfile::tempdir().expect("a directory");
    let lossy =
        |interface, at: i64, dropped| Made { dropped, ..made(interface, T0 + at, at as u64) };
    let packets = [
        (0, 0, 5),
        (0, 1, 0),
        (2, 2, 100),
        (0, 3, 7),
        (0, 5, 2),
        (0, 6, 0),
        (2, 8, 1),
        (0, 9, 3),
        (0, 10, 20),
    ];
    let (first, second) = packets.split_at(5);
    for (number, part) in [(1, first), (2, second)] {
        let part: Vec<Made> =
            part.iter().map(|(i, at, dropped)| lossy(*i, *at, *dropped)).collect();
        segment(temp.path(), number, T0, &part);
    }
    let even: fn(&Packet<'_>) -> bool = |p| id(p.frame).is_multiple_of(2);
    let told = |q: &mut Query<_>| -> Vec<(u64, u64)> {
        rest(q).iter().map(|p| (id(&p.frame), p.dropped)).collect()
    };
    let mut whole = query(temp.path(), Span::ALL, even);
    assert_eq!(told(&mut whole), [(0, 5), (2, 100), (6, 9), (8, 1), (10, 23)]);
    assert_eq!(whole.progress().dropped, 138);
    // From where the span begins, and no further than it goes.
    let span = Span { after_ns: T0 + 5, before_ns: T0 + 10 };
    let mut part = query(temp.path(), span, even);
    assert_eq!(told(&mut part), [(6, 2), (8, 1)]);
    assert_eq!(part.progress().dropped, 6, "with the gap before a packet that does not match");
}

#[test]
fn losses_that_no_packet_follows_are_in_the_statistics() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut draft = Draft::new(&["eth0"]);
    draft.packet(&Made { dropped: 4, ..made(0, T0, 1) });
    draft.statistics(T0 + 1, 10);
    draft.write(temp.path(), 1, T0, false);
    let mut query = query(temp.path(), Span::ALL, all);
    assert_eq!(ids(&mut query), [1]);
    assert_eq!(query.progress().dropped, 10);
}

#[test]
fn a_live_segment_is_read_up_to_its_last_whole_block() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut whole = Draft::new(&["eth0"]);
    (0..4).for_each(|i| whole.packet(&made(0, T0 + i, i as u64)));
    let head = whole.ends[0] - (whole.ends[1] - whole.ends[0]);
    for len in head..=whole.bytes.len() {
        let there = whole.ends.iter().filter(|end| **end <= len).count() as u64;
        let expected: Vec<u64> = (0..there).collect();
        let cut = Draft { bytes: whole.bytes[..len].to_vec(), ends: Vec::new() };
        let live = cut.write(temp.path(), 1, T0, true);
        let mut q = query(temp.path(), Span::ALL, all);
        assert_eq!((ids(&mut q), q.take_notes()), (expected.clone(), vec![]), "{len} bytes");
        fs::remove_file(live).expect("it is there");
        // A closed one has no reason to be cut.
        let closed = cut.write(temp.path(), 1, T0, false);
        let mut q = query(temp.path(), Span::ALL, all);
        assert_eq!(ids(&mut q), expected, "{len} bytes");
        let whole_blocks = len == head || whole.ends.contains(&len);
        let notes = q.take_notes();
        assert_eq!(
            notes.iter().filter(|n| n.is_fault()).count(),
            usize::from(!whole_blocks),
            "{len}: {notes:?}"
        );
        fs::remove_file(closed).expect("it is there");
    }
}

#[test]
fn damage_costs_what_follows_in_the_segment_and_is_told() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut bad = Draft::new(&["eth0"]);
    (0..4).for_each(|i| bad.packet(&made(0, T0 + i, i as u64)));
    let at = bad.ends[1];
    bad.bytes[at + 4] = 13;
    bad.write(temp.path(), 1, T0, false);
    segment(temp.path(), 2, T0, &[made(0, T0 + 9, 9)]);
    let mut q = query(temp.path(), Span::ALL, all);
    assert_eq!(ids(&mut q), [0, 1, 9]);
    let notes = q.take_notes();
    assert!(
        matches!(&notes[..], [Note::Damaged { at: told, .. }] if *told == at as u64),
        "{notes:?}"
    );
}

/// An answer is not whole where segments are missing that may have held a part of it.
#[test]
fn segments_that_are_missing_within_the_span_are_told() {
    const HOUR: i64 = 3600 * SECOND;
    let temp = tempfile::tempdir().expect("a directory");
    // One packet at the beginning of an hour, and one in its middle.
    for (number, hour) in [(3, 0), (4, 1), (7, 4)] {
        let began_ns = T0 + hour * HOUR;
        let packets = [0, HOUR / 2].map(|ns| made(0, began_ns + ns, 0));
        segment(temp.path(), number, began_ns, &packets);
    }
    let (beginning, middle, later) = (T0 + HOUR, T0 + HOUR + HOUR / 2, T0 + 4 * HOUR);
    let name = SegmentName { number: 7, began_s: later / SECOND, live: false }.to_string();
    for is_indexed in [false, true] {
        if is_indexed {
            let scope = Scope { closed: ClosedScope::Unended, index: true };
            let mut store = Store::open(temp.path()).expect("a store");
            store.recover(&Disk::new(false), scope, |_| {}).expect("a store");
        }
        // Rings overlap, and a name has whole seconds. Where there is no index, the end of a
        // segment that begins within the span is not looked at.
        let from_ns = if is_indexed { middle } else { beginning } - SLACK_NS;
        let until_ns = later + SECOND;
        for (after_ns, before_ns, expected, is_told) in [
            (i64::MIN, i64::MAX, 6, true),
            (i64::MIN, from_ns + 1, if is_indexed { 3 } else { 2 }, true),
            (i64::MIN, from_ns, if is_indexed { 3 } else { 2 }, false),
            (middle - SLACK_NS, middle - SLACK_NS + 1, 0, true),
            (T0, middle - SLACK_NS, 3, !is_indexed),
            (middle + HOUR, middle + 2 * HOUR, 0, true),
            (until_ns - 1, i64::MAX, 1, true),
            (until_ns, i64::MAX, 1, false),
        ] {
            let span = Span { after_ns, before_ns };
            let mut query = query(temp.path(), span, all);
            let what = format!("{is_indexed} {after_ns} {before_ns}");
            assert_eq!(rest(&mut query).len(), expected, "{what}");
            let notes = query.take_notes();
            assert_eq!(notes.len(), usize::from(is_told), "{what}: {notes:?}");
            for note in notes {
                let Note::Hole { segment, first: 5, last: 6, from_ns: told } = &note else {
                    panic!("{what}: {note:?}");
                };
                assert_eq!(segment, &name, "{what}");
                assert!(note.is_fault() && note.concerns(*told) && !note.concerns(*told - 1));
            }
        }
    }
}

#[test]
fn segments_may_be_closed_and_deleted_under_it() {
    let temp = tempfile::tempdir().expect("a directory");
    let one = segment(temp.path(), 1, T0, &[made(0, T0, 1)]);
    let mut live = Draft::new(&["eth0"]);
    live.packet(&made(0, T0 + 1, 2));
    let two = live.write(temp.path(), 2, T0, true);
    segment(temp.path(), 3, T0, &[made(0, T0 + 2, 3)]);
    let mut q = query(temp.path(), Span::ALL, all);
    fs::remove_file(&one).expect("it is there");
    fs::rename(&two, two.with_extension("")).expect("closed");
    // What comes later is not in the answer.
    segment(temp.path(), 4, T0, &[made(0, T0, 4)]);
    assert_eq!(ids(&mut q), [2, 3]);
    let notes = q.take_notes();
    assert!(matches!(&notes[..], [Note::Deleted(_)]) && !notes[0].is_fault(), "{notes:?}");
    assert!(notes[0].to_string().contains("tapdeck-00000001-"), "{}", notes[0]);
}

#[test]
fn a_segment_deleted_between_two_readings_is_told() {
    let temp = tempfile::tempdir().expect("a directory");
    // More than stays in memory; what is needed last is read again.
    let mut paths = Vec::new();
    for number in 1..=2 {
        let packets: Vec<Made> = (0..600u64)
            .map(|i| {
                let mut p = made(0, T0 + (number * 1000 + i) as i64, number * 1000 + i);
                p.frame.resize(60_000, 0);
                p
            })
            .collect();
        paths.push(segment(temp.path(), number, T0, &packets));
    }
    let mut q = query(temp.path(), Span::ALL, all);
    let first = q.next_packet(|_| true).expect("readable").map(|p| id(p.frame));
    assert_eq!(first, Some(1000));
    fs::remove_file(&paths[1]).expect("it is there");
    let found = ids(&mut q);
    assert!(found.is_sorted() && found.len() >= 599 && found.len() < 1199, "{}", found.len());
    assert!(matches!(&q.take_notes()[..], [Note::Deleted(_)]));
}

#[test]
fn interfaces_of_several_recordings_are_told_apart() {
    let temp = tempfile::tempdir().expect("a directory");
    for (number, names) in [(1, ["eth0", "eth1"]), (2, ["eth1", "eth2"]), (3, ["eth0", "eth1"])] {
        let mut draft = Draft::new(&names);
        draft.packet(&made(0, T0 + number as i64 * 2, 0));
        draft.packet(&made(1, T0 + number as i64 * 2 + 1, 0));
        draft.statistics(T0 + 10, 0);
        draft.write(temp.path(), number, T0, false);
    }
    let mut q = query(temp.path(), Span::ALL, all);
    let names: Vec<String> = q.snapshot().interfaces().iter().map(|i| i.name.clone()).collect();
    assert_eq!(names, ["eth0", "eth1", "eth2"]);
    let of: Vec<u32> = rest(&mut q).iter().map(|p| p.interface).collect();
    assert_eq!(of, [0, 1, 1, 2, 0, 1]);
}

#[test]
fn what_is_no_store_is_refused_and_what_is_not_ours_passed_over() {
    let temp = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| Snapshot::open(path, Span::ALL).err();
    assert!(matches!(open(&temp.path().join("none")), Some(Error::NotFound(_))));
    let file = segment(temp.path(), 1, T0, &[made(0, T0, 1)]);
    assert!(matches!(open(&file), Some(Error::NotADirectory(_))));
    fs::remove_file(file).expect("it is there");
    assert!(matches!(open(temp.path()), Some(Error::NotAStore(_))));

    // Names of segments that others wrote.
    let name = |number| SegmentName { number, began_s: 1, live: false }.path(temp.path());
    fs::write(name(1), "nothing of ours").expect("a file");
    fs::write(name(2), "").expect("a file");
    fs::create_dir(name(3)).expect("a directory");
    assert!(matches!(open(temp.path()), Some(Error::NotAStore(_))));

    // A recorder was here and has written nothing yet.
    fs::write(temp.path().join(LOCK), "1\n").expect("a file");
    assert_eq!(ids(&mut query(temp.path(), Span::ALL, all)), [0u64; 0]);
    segment(temp.path(), 4, T0, &[made(0, T0, 1)]);
    assert_eq!(ids(&mut query(temp.path(), Span::ALL, all)), [1]);

    let name = SegmentName { number: 5, began_s: 1, live: false }.path(temp.path());
    fs::write(name, of_other_byte_order()).expect("a file");
    assert!(matches!(open(temp.path()), Some(Error::ByteOrder(_))));
}

/// A section header of a machine of the other byte order.
fn of_other_byte_order() -> Vec<u8> {
    let put = |n: u32| n.swap_bytes().to_ne_bytes();
    let half = |n: u16| n.swap_bytes().to_ne_bytes();
    let mut block = pcapng::SECTION_HEADER.to_ne_bytes().to_vec();
    block.extend([put(48), put(pcapng::BYTE_ORDER_MAGIC)].concat());
    block.extend([half(1), half(0)].concat());
    block.extend([0xff; 8]);
    block.extend([half(4), half(13)].concat());
    block.extend(b"tapdeck 0.1.0\0\0\0");
    block.extend(put(48));
    assert_eq!(block.len(), 48);
    block
}

#[test]
fn whoever_watches_can_end_it() {
    let temp = tempfile::tempdir().expect("a directory");
    segment(temp.path(), 1, T0, &[made(0, T0, 1)]);
    let mut q = query(temp.path(), Span::ALL, all);
    assert_eq!(q.next_packet(|_| false).expect("readable"), None);
    assert_eq!(q.progress().bytes, 0);
    assert_eq!(ids(&mut q), [1], "and go on");
}

/// Whoever leaves it half-way leaves no thread behind.
#[test]
fn its_threads_end_with_it() {
    let temp = tempfile::tempdir().expect("a directory");
    for number in 1..=4 {
        let packets: Vec<Made> = (0..1000).map(|i| made(0, T0 + i, i as u64)).collect();
        segment(temp.path(), number, T0, &packets);
    }
    let held = Arc::new(());
    let clone = held.clone();
    let mut q = query(temp.path(), Span::ALL, move |_: &Packet<'_>| Arc::strong_count(&clone) > 0);
    assert!(q.next_packet(|_| true).expect("readable").is_some());
    assert!(Arc::strong_count(&held) > 2, "one for each thread");
    drop(q);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn bytes_that_flipped_are_survived() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut rng = SplitMix64(11);
    let mut damaged = 0;
    for round in 0..400 {
        let mut draft = Draft::new(&["eth0", "eth1"]);
        for i in 0..20 {
            draft.packet(&made(i % 2, T0 + i64::from(i), u64::from(i)));
        }
        draft.statistics(T0 + 20, 0);
        for _ in 0..=rng.below(3) {
            let at = rng.below(draft.bytes.len());
            draft.bytes[at] ^= 1 << rng.below(8);
        }
        let path = draft.write(temp.path(), 1, T0, round % 2 == 0);
        let span = Span { after_ns: T0 - 3600 * SECOND, before_ns: i64::MAX };
        if let Ok(snapshot) = Snapshot::open(temp.path(), span) {
            let mut q = Query::new(snapshot, span, Plan::All, all);
            let mut last_ns = i64::MIN;
            let mut found = 0;
            while let Some(p) = q.next_packet(|_| true).expect("readable") {
                assert!(p.time_ns >= last_ns && span.contains(p.time_ns));
                last_ns = p.time_ns;
                found += 1;
            }
            let notes = q.take_notes();
            assert!(found <= 20);
            damaged += u32::from(notes.iter().any(Note::is_fault));
        }
        fs::remove_file(path).expect("it is there");
    }
    assert!(damaged > 20, "{damaged} times it was noticed");
}
