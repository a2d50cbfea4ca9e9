//! What a query answers by an index, against all packets of the store: with whole, partial, damaged
//! and no indexes alike.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use tapdeck_packet::header;
use tapdeck_packet::key::{Class, Keys, Plan};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_testkit::SplitMix64;

use super::{Note, Packet, Progress, Query, Snapshot, Span};
use crate::format::index::{self, Builder};
use crate::format::name::SegmentName;
use crate::io::{Disk, PAGE};

const T0: i64 = 1_767_323_045_000_000_000;
const RINGS: u32 = 3;

/// A packet, as it was recorded or as it stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    time_ns: i64,
    interface: u32,
    dropped: u64,
    frame: Vec<u8>,
}

/// UDP between few hosts and ports: `10.0.0.0` to `10.0.0.19`.
fn frame(rng: &mut SplitMix64) -> Vec<u8> {
    let mut f =
        vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0];
    for _ in 0..2 {
        f.extend([10, 0, 0, (rng.below(20) * rng.below(2) + rng.below(3)) as u8]);
    }
    for _ in 0..2 {
        f.extend(((1000 + rng.below(50)) as u16).to_be_bytes());
    }
    f.resize(f.len() + rng.below(800), 0);
    f
}

/// A ring's block: packets that are nearly in order, some with losses before them.
fn block(rng: &mut SplitMix64, interface: u32, time_ns: &mut i64) -> Vec<Made> {
    let (lossy, packets) = (rng.below(3) == 0, 20 + rng.below(150));
    let made = |_| {
        *time_ns += rng.below(1000);
        let back = if rng.below(6) == 0 { rng.below(60_000) } else { 0 };
        let dropped = if lossy && rng.below(4) == 0 { 1 + rng.below(9) } else { 0 };
        Made { time_ns: *time_ns - back, interface, dropped, frame: frame(rng) }
    };
    (0..packets).map(made).collect()
}

/// A segment while it is made.
struct Draft {
    name: SegmentName,
    bytes: Vec<u8>,
    packets: Vec<Made>,
    /// The range of each ring's block, with the fill behind it.
    blocks: Vec<Range<u64>>,
}

impl Draft {
    fn new(number: u64, live: bool) -> Self {
        let name = SegmentName { number, began_s: T0 / 1_000_000_000, live };
        let mut bytes = Vec::new();
        pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
        for ring in 0..RINGS {
            let description = InterfaceDescription {
                link: LinkType::ETHERNET,
                snaplen: 0,
                name: "eth0".into(),
                description: format!("ring {ring}"),
                filter: None,
                hardware: None,
                mac: None,
            };
            pcapng::interface_description(&mut bytes, &description);
        }
        fill(&mut bytes);
        Self { name, bytes, packets: Vec::new(), blocks: Vec::new() }
    }

    fn block(&mut self, packets: Vec<Made>) {
        let begin = self.bytes.len();
        for p in &packets {
            let at = self.bytes.len();
            self.bytes.resize(at + pcapng::packet_len(p.frame.len(), 0, p.dropped), 0);
            let (out, frame) = (&mut self.bytes[at..], [&p.frame[..], &[], &[]]);
            let len = p.frame.len() as u32;
            pcapng::write_packet(out, p.interface, p.time_ns as u64, frame, len, 0, p.dropped);
        }
        fill(&mut self.bytes);
        self.blocks.push(begin as u64..self.bytes.len() as u64);
        self.packets.extend(packets);
    }

    fn write(&mut self, dir: &Path) {
        if !self.name.live {
            for interface in 0..RINGS {
                let s = StatisticsBlock { interface, dropped: 100, ..StatisticsBlock::default() };
                pcapng::statistics(&mut self.bytes, &s);
            }
            fill(&mut self.bytes);
        }
        fs::write(self.name.path(dir), &self.bytes).expect("a file");
    }

    /// The index log of some of the blocks, one chunk for every few.
    fn log(&self, dir: &Path, mut takes: impl FnMut() -> bool) {
        let mut builder = Builder::new(&self.name, vec![LinkType::ETHERNET; RINGS as usize]);
        let mut log = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            let bytes = &self.bytes[block.start as usize..block.end as usize];
            if takes() {
                builder.add(block.start, bytes, bytes.len() as u64);
            }
            if i % 4 == 3 && !builder.is_empty() {
                log.extend(builder.chunk());
            }
        }
        if !builder.is_empty() {
            log.extend(builder.chunk());
        }
        fs::write(self.name.index_log_path(dir), log).expect("a file");
    }

    fn index(&self, dir: &Path) {
        self.log(dir, || true);
        if !self.name.live {
            let dropped = 100 * u64::from(RINGS);
            index::close(&Disk::new(false), dir, &self.name, dropped).expect("an index");
        }
    }
}

fn fill(bytes: &mut Vec<u8>) {
    let gap = bytes.len().next_multiple_of(PAGE) - bytes.len();
    match gap {
        0 => {}
        1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + PAGE),
        _ => pcapng::fill(bytes, gap),
    }
}

/// Segments that overlap, the last one live.
fn store(dir: &Path, rng: &mut SplitMix64) -> Vec<Draft> {
    let mut times = [T0; RINGS as usize];
    let segments = 2 + rng.below(3);
    let mut drafts = Vec::new();
    for number in 1..=segments {
        let mut draft = Draft::new(number as u64, number == segments);
        for _ in 0..4 + rng.below(12) {
            let ring = rng.below(RINGS as usize) as u32;
            draft.block(block(rng, ring, &mut times[ring as usize]));
        }
        draft.write(dir);
        drafts.push(draft);
    }
    drafts
}

/// A plan, and whether a packet fits it.
#[derive(Clone)]
struct Asked(Plan);

struct Found(Vec<(Class, u128)>);

impl Keys for Found {
    fn key(&mut self, class: Class, key: u128) {
        self.0.push((class, key));
    }
}

impl Asked {
    fn any(rng: &mut SplitMix64, depth: u32) -> Plan {
        let address = 0x0a00_0000 + rng.below(22);
        let port = 998 + rng.below(54);
        let some =
            |rng: &mut SplitMix64| (0..rng.below(3)).map(|_| Self::any(rng, depth + 1)).collect();
        match rng.below(if depth < 2 { 8 } else { 4 }) {
            0 => Plan::Keys { class: Class::SourceIpv4, first: address, last: address },
            1 => Plan::Keys { class: Class::DestinationIpv4, first: address, last: address + 1 },
            2 => Plan::Keys { class: Class::SourcePort, first: port, last: port },
            3 => Plan::Keys { class: Class::DestinationPort, first: port, last: port + 3 },
            4 => Plan::All,
            5 => Plan::Any(some(rng)),
            _ => Plan::Every(some(rng)),
        }
    }

    fn fits(&self, frame: &[u8]) -> bool {
        let mut found = Found(Vec::new());
        assert!(header::keys(LinkType::ETHERNET, frame, &mut found), "all its keys");
        fits(&self.0, &found.0)
    }
}

fn fits(plan: &Plan, keys: &[(Class, u128)]) -> bool {
    match plan {
        Plan::All => true,
        Plan::Keys { class, first, last } => {
            keys.iter().any(|(c, key)| c == class && (first..=last).contains(&key))
        }
        Plan::Every(plans) => plans.iter().all(|plan| fits(plan, keys)),
        Plan::Any(plans) => plans.iter().any(|plan| fits(plan, keys)),
    }
}

/// The answer, from all packets in the order of the store: with what it must say of losses; and how
/// many there were in the span.
fn expected(drafts: &[Draft], asked: &Asked, span: Span) -> (Vec<Made>, u64) {
    let all = drafts.iter().flat_map(|d| &d.packets).filter(|p| span.contains(p.time_ns));
    let mut all: Vec<&Made> = all.collect();
    all.sort_by_key(|p| p.time_ns);
    let dropped = all.iter().map(|p| p.dropped).sum();
    let mut untold: BTreeMap<u32, u64> = BTreeMap::new();
    let mut answer = Vec::new();
    for p in all {
        let untold = untold.entry(p.interface).or_default();
        *untold += p.dropped;
        if asked.fits(&p.frame) {
            answer.push(Made { dropped: std::mem::take(untold), ..p.clone() });
        }
    }
    (answer, dropped)
}

fn answer(dir: &Path, asked: &Asked, span: Span) -> (Vec<Made>, Progress, Vec<Note>) {
    let snapshot = Snapshot::open(dir, span).expect("a store");
    let matcher = asked.clone();
    let mut query =
        Query::new(snapshot, span, asked.0.clone(), move |p: &Packet<'_>| matcher.fits(p.frame));
    let mut found = Vec::new();
    while let Some(p) = query.next_packet(|_| true).expect("readable") {
        let Packet { time_ns, interface, dropped, .. } = p;
        found.push(Made { time_ns, interface, dropped, frame: p.frame.to_vec() });
    }
    (found, query.progress(), query.take_notes())
}

/// Asks many questions. Returns what was told.
fn agree(dir: &Path, drafts: &[Draft], rng: &mut SplitMix64, what: &str) -> (Vec<Note>, Progress) {
    let mut told = Vec::new();
    let mut sum = Progress::default();
    for round in 0..12 {
        let asked = Asked(Asked::any(rng, 0));
        let point = |rng: &mut SplitMix64| T0 + rng.below(1_500_000);
        let span = match rng.below(3) {
            0 => Span::ALL,
            1 => Span { after_ns: point(rng), before_ns: i64::MAX },
            _ => {
                let after_ns = point(rng);
                Span { after_ns, before_ns: after_ns + rng.below(300_000) }
            }
        };
        let (packets, dropped) = expected(drafts, &asked, span);
        let (found, progress, notes) = answer(dir, &asked, span);
        let context = format!("{what}, round {round}: {:?} in {span:?}", asked.0);
        assert!(found == packets, "{context}: {} packets, not {}", found.len(), packets.len());
        let closed = drafts.len() as u64 - 1;
        let stated = if span == Span::ALL { dropped.max(closed * 300) } else { dropped };
        assert_eq!(progress.dropped, stated, "{context}");
        assert_eq!(progress.bytes, progress.total_bytes, "{context}");
        assert_eq!(progress.matches, packets.len() as u64, "{context}");
        sum.add(progress);

        let counted = count(dir, &asked, span);
        assert_eq!((counted.matches, counted.dropped), (progress.matches, stated), "{context}");
        told.extend(notes);
    }
    (told, sum)
}

fn count(dir: &Path, asked: &Asked, span: Span) -> Progress {
    let snapshot = Snapshot::open(dir, span).expect("a store");
    let matcher = asked.clone();
    let mut query =
        Query::new(snapshot, span, asked.0.clone(), move |p: &Packet<'_>| matcher.fits(p.frame));
    query.count(|_| true).expect("readable");
    query.progress()
}

#[test]
fn answers_do_not_depend_on_what_is_indexed() {
    for seed in 0..4 {
        let rng = &mut SplitMix64(seed);
        let temp = tempfile::tempdir().expect("a directory");
        let drafts = store(temp.path(), rng);
        let (notes, progress) = agree(temp.path(), &drafts, rng, &format!("seed {seed}, no index"));
        assert_eq!((notes, progress.indexed, progress.wanted), (vec![], 0, 0));
        assert_eq!(progress.scanned, progress.segments);

        for draft in &drafts {
            draft.log(temp.path(), || rng.below(4) > 0);
        }
        let (notes, progress) = agree(temp.path(), &drafts, rng, &format!("seed {seed}, a part"));
        assert_eq!((notes, progress.indexed), (vec![], progress.segments));
        assert!(progress.scanned > 0 && progress.wanted < progress.granules, "{progress:?}");

        for draft in &drafts {
            draft.index(temp.path());
        }
        let (notes, progress) = agree(temp.path(), &drafts, rng, &format!("seed {seed}, all"));
        assert_eq!((notes, progress.indexed, progress.scanned), (vec![], progress.segments, 0));
        assert!(progress.wanted < progress.granules, "{progress:?}");

        let mut unusable = 0;
        for round in 0..5 {
            for draft in &drafts {
                draft.index(temp.path());
                let name = if draft.name.live {
                    draft.name.index_log_path(temp.path())
                } else {
                    draft.name.index_path(temp.path())
                };
                let mut bytes = fs::read(&name).expect("an index");
                let at = rng.below(bytes.len());
                if rng.below(3) == 0 {
                    bytes.truncate(at);
                } else {
                    bytes[at] ^= 1 << rng.below(8);
                }
                fs::write(&name, bytes).expect("a file");
            }
            let what = format!("seed {seed}, damage {round}");
            let (notes, _) = agree(temp.path(), &drafts, rng, &what);
            assert!(
                notes.iter().all(|n| matches!(n, Note::Index { .. }) && !n.is_fault()),
                "{notes:?}"
            );
            unusable += notes.len();
        }
        assert!(unusable > 0, "seed {seed}");
    }
}

/// One segment in many granules, of a time each, and its index.
fn one(dir: &Path) -> Draft {
    let mut draft = Draft::new(1, false);
    for i in 0..20u8 {
        let packet = |k: i64| {
            let mut frame = frame(&mut SplitMix64(0));
            frame[29] = i;
            frame.resize(1400, 0);
            Made { time_ns: T0 + i64::from(i) * 1000 + k, interface: 0, dropped: 0, frame }
        };
        draft.block((0..100).map(packet).collect());
    }
    draft.write(dir);
    draft.index(dir);
    draft
}

fn source(host: u8) -> Asked {
    let address = 0x0a00_0000 + u128::from(host);
    Asked(Plan::Keys { class: Class::SourceIpv4, first: address, last: address })
}

#[test]
fn a_miss_reads_nothing_and_a_hit_little() {
    let temp = tempfile::tempdir().expect("a directory");
    let draft = one(temp.path());
    let (found, progress, _) = answer(temp.path(), &source(99), Span::ALL);
    assert_eq!((found.len(), progress.read_bytes, progress.wanted), (0, 0, 0));
    let (found, progress, _) = answer(temp.path(), &source(7), Span::ALL);
    assert_eq!(found, expected(&[draft], &source(7), Span::ALL).0);
    assert!(progress.read_bytes > 100 * 1400 && progress.read_bytes < 100 * 1400 + (256 << 10));
    assert!(
        progress.wanted < 6 && progress.granules > 20 && progress.index_bytes > 0,
        "{progress:?}"
    );
}

#[test]
fn what_was_changed_under_its_index_is_told() {
    let temp = tempfile::tempdir().expect("a directory");
    let draft = one(temp.path());
    let path = draft.name.path(temp.path());
    let block = draft.blocks[7].clone();
    let damage = |at: u64, value: u8| {
        let mut bytes = draft.bytes.clone();
        bytes[at as usize] = value;
        fs::write(&path, bytes).expect("a file");
        answer(temp.path(), &source(7), Span::ALL)
    };
    // In a frame: all of them can still be read.
    let (found, _, notes) = damage(block.start + 200, 1);
    assert_eq!(found.len(), 100);
    assert!(matches!(&notes[..], [Note::Changed { .. }]) && notes[0].is_fault(), "{notes:?}");
    // In a length: what follows in the granule is lost, and no more.
    let second = block.start + pcapng::packet_len(1400, 0, 0) as u64;
    let (found, _, notes) = damage(second + 4, 13);
    assert!(found.len() > 20 && found.len() < 100, "{}", found.len());
    let is_told = matches!(&notes[..], [Note::Damaged { at, .. }] if *at == second);
    assert!(is_told && notes[0].is_fault(), "{notes:?}");
    // Nobody asked for what is damaged.
    let (found, _, notes) = answer(temp.path(), &source(3), Span::ALL);
    assert_eq!((found.len(), notes), (100, vec![]));
}

#[test]
fn an_index_of_another_segment_is_not_believed() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut draft = one(temp.path());
    let path = draft.name.path(temp.path());
    // As one that was cut, or mended.
    draft.bytes.truncate(draft.blocks[10].end as usize);
    fs::write(&path, &draft.bytes).expect("a file");
    let (found, progress, notes) = answer(temp.path(), &source(7), Span::ALL);
    assert_eq!((found.len(), progress.indexed, progress.scanned), (100, 0, 1));
    assert!(matches!(&notes[..], [Note::Index { .. }]), "{notes:?}");
}

/// A live segment grows, is closed and gets its index while it is asked.
#[test]
fn what_is_written_later_is_not_in_the_answer() {
    let temp = tempfile::tempdir().expect("a directory");
    let mut draft = Draft::new(1, true);
    let mut time_ns = T0;
    (0..8).for_each(|i| draft.block(block(&mut SplitMix64(i), 0, &mut time_ns)));
    draft.write(temp.path());
    let asked = Asked(Plan::All);
    let there = draft.packets.len();
    let snapshot = Snapshot::open(temp.path(), Span::ALL).expect("a store");
    let live = draft.name.path(temp.path());
    (8..20).for_each(|i| draft.block(block(&mut SplitMix64(i), 0, &mut time_ns)));
    draft.name = draft.name.closed();
    fs::remove_file(live).expect("it is there");
    draft.write(temp.path());
    draft.index(temp.path());
    let matcher = asked.clone();
    let mut query =
        Query::new(snapshot, Span::ALL, asked.0, move |p: &Packet<'_>| matcher.fits(p.frame));
    let mut found = 0;
    while query.next_packet(|_| true).expect("readable").is_some() {
        found += 1;
    }
    assert_eq!((found, query.progress().indexed, query.take_notes()), (there, 1, vec![]));
}
