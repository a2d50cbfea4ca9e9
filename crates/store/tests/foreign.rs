//! Queries of capture files of other recorders: whatever is in them, and wherever pieces of them
//! end, the packets are those that [`trace::Reader`] finds in the whole file.

use std::fs;
use std::path::Path;

use tapdeck_packet::key::{Class, Plan};
use tapdeck_packet::trace;
use tapdeck_store::query::{Error, Note, Packet, Query, Search, Snapshot, Span, index_captures};
use tapdeck_testkit::SplitMix64;

/// Kinds of blocks.
const ENHANCED: u32 = 6;
const SIMPLE: u32 = 3;

const T0: u64 = 1_767_323_045_000_000_000;

/// Time, link type, length on the wire and frame.
type Plain = (i64, u16, u32, Vec<u8>);

/// Packets as they stand in the file, up to where it ends or is damaged; each without a time has
/// that of the one before it. And whether it ended.
fn by_reader(bytes: &[u8]) -> (Vec<Plain>, bool) {
    let (mut packets, mut time_ns) = (Vec::new(), 0);
    let Ok(mut reader) = trace::Reader::new(bytes) else { return (packets, false) };
    loop {
        match reader.next_packet() {
            Ok(Some(p)) => {
                time_ns = p.time_ns.filter(|ns| *ns >= 0).unwrap_or(time_ns);
                packets.push((time_ns, p.link.0, p.original_len, p.frame.to_vec()));
            }
            Ok(None) => return (packets, true),
            Err(_) => return (packets, false),
        }
    }
}

fn ask(path: &Path, whole: bool) -> Result<(Vec<Plain>, Vec<Note>), Error> {
    let snapshot = Snapshot::open_any(path, Span::ALL, Search { whole, ..Search::default() })?;
    let mut query = Query::new(snapshot, Span::ALL, Plan::All, |_: &Packet<'_>| true);
    let mut packets = Vec::new();
    while let Some(p) = query.next_packet(|_| true)? {
        packets.push((p.time_ns, p.link.0, p.original_len, p.frame.to_vec()));
    }
    Ok((packets, query.take_notes()))
}

fn ask_twice(path: &Path) -> (Vec<Plain>, Vec<Note>) {
    ask(path, false)
        .or_else(|e| match e {
            Error::LateInterface(_) => ask(path, true),
            e => Err(e),
        })
        .expect("an answer")
}

/// Blocks of any kind in one byte order or the other.
struct Writer {
    out: Vec<u8>,
    is_big: bool,
    interfaces: u64,
}

impl Writer {
    fn u32(&self, n: u32) -> [u8; 4] {
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn u16(&self, n: u16) -> [u8; 2] {
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let len = body.len().next_multiple_of(4);
        let total = self.u32(12 + len as u32);
        self.out.extend(self.u32(kind));
        self.out.extend(total);
        self.out.extend(body);
        self.out.resize(self.out.len() + len - body.len(), 0);
        self.out.extend(total);
    }

    fn section(&mut self, is_big: bool) {
        (self.is_big, self.interfaces) = (is_big, 0);
        let mut body = self.u32(0x1a2b_3c4d).to_vec();
        body.extend(self.u16(1));
        body.extend([0; 2]);
        body.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, &body);
    }

    fn interface(&mut self, rng: &mut SplitMix64) {
        let mut body = self.u16([1, 101, 113][rng.below(3) as usize]).to_vec();
        body.extend([0; 2]);
        body.extend(self.u32([0, 100, 65_535][rng.below(3) as usize]));
        body.extend(self.u16(2));
        body.extend(self.u16(4));
        body.extend(format!("eth{}", rng.below(4)).as_bytes());
        body.extend(self.u16(9));
        body.extend(self.u16(1));
        body.extend([[9, 6, 0x90][rng.below(3) as usize], 0, 0, 0]);
        self.block(1, &body);
        self.interfaces += 1;
    }

    fn packet(&mut self, rng: &mut SplitMix64, kind: u32, len: u64) {
        let frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut body = Vec::new();
        if kind != SIMPLE {
            let id = rng.below(self.interfaces) as u32;
            body.extend(if kind == 2 {
                [self.u16(id as u16), [0; 2]].concat()
            } else {
                self.u32(id).to_vec()
            });
            let time = T0 / 1_000_000 + rng.below(1 << 20);
            body.extend(self.u32((time >> 32) as u32));
            body.extend(self.u32(time as u32));
            body.extend(self.u32(len as u32));
        }
        body.extend(self.u32(len as u32));
        body.extend(&frame);
        self.block(kind, &body);
    }

    /// About a MiB.
    fn random(rng: &mut SplitMix64) -> Vec<u8> {
        let mut writer = Self { out: Vec::new(), is_big: false, interfaces: 0 };
        writer.section(rng.below(2) == 0);
        writer.interface(rng);
        while writer.out.len() < 1 << 20 {
            let kind = [ENHANCED, ENHANCED, ENHANCED, 2, SIMPLE][rng.below(5) as usize];
            match rng.below(60) {
                0 => {
                    writer.section(rng.below(2) == 0);
                    writer.interface(rng);
                }
                1 => writer.interface(rng),
                2 => writer.block(0xbad, &vec![7; rng.below(300_000) as usize]),
                3 => {
                    let len = 200_000 + rng.below(200_000);
                    writer.packet(rng, kind, len);
                }
                _ => {
                    let len = rng.below(4000);
                    writer.packet(rng, kind, len);
                }
            }
        }
        writer.out
    }
}

#[test]
fn pieces_of_a_file_are_read_as_the_whole_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("any");
    let (mut intact, mut faulty) = (0, 0);
    for seed in 0..40 {
        let rng = &mut SplitMix64(seed);
        let mut bytes = Writer::random(rng);
        let len = bytes.len() as u64;
        match rng.below(3) {
            0 => bytes.truncate(rng.below(len) as usize),
            1 => {
                let at = rng.below(len - 4) as usize;
                bytes[at..at + 4].fill(rng.below(256) as u8);
            }
            _ => {}
        }
        fs::write(&path, &bytes).expect("a file");
        let (mut expected, is_whole) = by_reader(&bytes);
        expected.sort_by_key(|p| p.0);
        let (found, notes) = ask_twice(&path);
        assert!(found == expected, "{seed}: {} packets, not {}", found.len(), expected.len());
        let tells_fault =
            notes.iter().any(|n| matches!(n, Note::Damaged { .. } | Note::Unfinished { .. }));
        assert_eq!(tells_fault, !is_whole, "{seed}: {notes:?}");
        *(if is_whole { &mut intact } else { &mut faulty }) += 1;
    }
    assert!(intact >= 10 && faulty >= 10, "{intact} and {faulty}");
}

/// Larger than anything that has to be held in memory.
#[test]
fn a_long_block_without_packets_is_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let rng = &mut SplitMix64(1);
    let mut writer = Writer { out: Vec::new(), is_big: true, interfaces: 0 };
    writer.section(true);
    writer.interface(rng);
    writer.packet(rng, ENHANCED, 100);
    writer.block(0xbad, &vec![1; 20 << 20]);
    writer.packet(rng, ENHANCED, 100);
    let path = dir.path().join("any");
    fs::write(&path, &writer.out).expect("a file");
    let (found, notes) = ask_twice(&path);
    assert_eq!((found.len(), notes.len()), (2, 0), "{notes:?}");
    assert_eq!(index_captures(&path, None, |_| true).expect("files"), []);
    let (again, notes) = ask_twice(&path);
    assert_eq!((again, notes), (found, Vec::new()));
    fs::write(&path, &writer.out[..10 << 20]).expect("a file");
    let (found, notes) = ask_twice(&path);
    assert_eq!(found.len(), 1);
    assert!(matches!(notes[..], [Note::Unfinished { .. }]), "{notes:?}");
}

/// More packets than memory has room for, the latest first, in two files: most are forgotten and
/// read again.
#[test]
fn disorder_beyond_measure_is_put_in_order() {
    const PACKETS: u32 = 18_000;
    let dir = tempfile::tempdir().expect("a directory");
    let file = |link: u32, odd: u32| {
        let mut out = 0xa1b2_3c4d_u32.to_le_bytes().to_vec();
        for n in [2 | 4 << 16, 0, 0, 65_535, link] {
            out.extend(n.to_le_bytes());
        }
        for i in 0..PACKETS {
            let frame = [(PACKETS - i) as u8; 1200];
            for n in [1_767_323_045, 2 * (PACKETS - i) + odd, 1200, 1200 + i] {
                out.extend(n.to_le_bytes());
            }
            out.extend(frame);
        }
        out
    };
    for (link, odd) in [(1, 0), (101, 1)] {
        fs::write(dir.path().join(format!("{link}")), file(link, odd)).expect("a file");
    }
    for indexed in [false, true] {
        if indexed {
            assert_eq!(index_captures(dir.path(), None, |_| true).expect("files"), []);
        }
        let (found, notes) = ask(dir.path(), false).expect("an answer");
        assert_eq!((found.len() as u32, notes), (2 * PACKETS, Vec::new()));
        for (n, (time_ns, link, original_len, frame)) in (0u32..).zip(&found) {
            let i = PACKETS - 1 - n / 2;
            assert_eq!(*time_ns as u64, T0 + u64::from(n) + 2);
            assert_eq!((*link, *original_len), ([1, 101][n as usize % 2], 1200 + i));
            assert!(*frame == [(PACKETS - i) as u8; 1200]);
        }
    }
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let rng = &mut SplitMix64(2);
    let mut writer = Writer { out: Vec::new(), is_big: false, interfaces: 0 };
    writer.section(false);
    writer.interface(rng);
    writer.packet(rng, ENHANCED, 100);
    let (kept, gone) = (dir.path().join("a"), dir.path().join("b"));
    for path in [&kept, &gone] {
        fs::write(path, &writer.out).expect("a file");
    }
    let snapshot = Snapshot::open_any(dir.path(), Span::ALL, Search::default()).expect("files");
    // Another file of the same name.
    fs::copy(&kept, dir.path().join("c")).expect("a copy");
    fs::rename(dir.path().join("c"), &gone).expect("a name");
    let mut query = Query::new(snapshot, Span::ALL, Plan::All, |_: &Packet<'_>| true);
    let mut packets = 0;
    while query.next_packet(|_| true).expect("an answer").is_some() {
        packets += 1;
    }
    assert_eq!((packets, query.take_notes()), (1, vec![Note::Deleted("b".into())]));
}

/// Losses before packets that do not match are told by the next one that does: also where an index
/// says that there is none to be read.
#[test]
fn losses_are_told_with_and_without_an_index() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("any");
    let rng = &mut SplitMix64(4);
    let mut writer = Writer { out: Vec::new(), is_big: true, interfaces: 0 };
    writer.section(true);
    for name in [*b"eth0", *b"eth1"] {
        let mut body = vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 4];
        body.extend(name);
        body.extend([0, 9, 0, 1, 9, 0, 0, 0]);
        writer.block(1, &body);
    }
    for i in 0..4000 {
        let port = if rng.below(400) == 0 { 53 } else { 80 };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0];
        frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, port]);
        frame.resize(400, 0);
        let time = T0 + i * 1000 - rng.below(50_000);
        let mut body = (rng.below(2) as u32).to_be_bytes().to_vec();
        body.extend(time.to_be_bytes());
        body.extend([0, 0, 1, 144, 0, 0, 1, 144]);
        body.extend(&frame);
        if rng.below(10) == 0 {
            body.extend([0, 4, 0, 8]);
            body.extend((1 + rng.below(9_u64)).to_be_bytes());
        }
        writer.block(ENHANCED, &body);
    }
    fs::write(&path, &writer.out).expect("a file");
    let plan = Plan::Keys { class: Class::DestinationPort, first: 53, last: 53 };
    let ask = || {
        let snapshot =
            Snapshot::open_any(&path, Span::ALL, Search::default()).expect("a capture file");
        let is_dns = |p: &Packet<'_>| p.frame[37] == 53;
        let mut query = Query::new(snapshot, Span::ALL, plan.clone(), is_dns);
        let mut found = Vec::new();
        while let Some(p) = query.next_packet(|_| true).expect("an answer") {
            found.push((p.time_ns, p.interface, p.dropped));
        }
        (found, query.progress())
    };
    let (expected, progress) = ask();
    assert!(expected.len() > 5 && expected.iter().any(|(.., dropped)| *dropped > 0));
    assert_eq!((progress.indexed, progress.scanned), (0, 1));
    assert_eq!(index_captures(&path, None, |_| true).expect("a file"), []);
    let (found, progress) = ask();
    assert_eq!(found, expected);
    assert_eq!((progress.indexed, progress.scanned), (1, 0));
    assert!(progress.wanted < progress.granules, "{progress:?}");
}
