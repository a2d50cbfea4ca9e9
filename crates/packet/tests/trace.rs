//! What the reader of capture files makes of files that tapdeck and others write, that are cut,
//! damaged, or larger than memory should be; with an independent reader (the `pcap-parser` crate)
//! and the reader of slices as judges.

#[path = "../../../fuzz/checks/trace.rs"]
mod check;

use std::io::{self, Read};

use check::{Kept, Pieces, check, read};
use proptest::prelude::*;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_packet::trace::{Error, Format, Reader, looks_like_trace};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const PATCHED: u32 = 0xa1b2_cd34;

/// A file in the making, of either byte order.
#[derive(Default)]
struct File {
    out: Vec<u8>,
    big: bool,
}

impl File {
    fn u16(&mut self, v: u16) -> &mut Self {
        self.out.extend(if self.big { v.to_be_bytes() } else { v.to_le_bytes() });
        self
    }

    fn u32(&mut self, v: u32) -> &mut Self {
        self.out.extend(if self.big { v.to_be_bytes() } else { v.to_le_bytes() });
        self
    }

    fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.out.extend(v);
        self
    }

    /// A pcap file's header.
    fn pcap(big: bool, magic: u32, minor: u16, snaplen: u32, link: u32) -> Self {
        let mut file = Self { out: Vec::new(), big };
        file.u32(magic).u16(2).u16(minor).u32(0).u32(0).u32(snaplen).u32(link);
        file
    }

    fn record(&mut self, time: (u32, u32), frame: &[u8], original_len: u32) -> &mut Self {
        self.u32(time.0).u32(time.1).u32(frame.len() as u32).u32(original_len).bytes(frame)
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inner = Self { out: Vec::new(), big: self.big };
        body(&mut inner);
        inner.out.resize(inner.out.len().next_multiple_of(4), 0);
        let total = inner.out.len() as u32 + 12;
        self.u32(kind).u32(total).bytes(&inner.out).u32(total)
    }

    fn section(&mut self) -> &mut Self {
        self.block(pcapng::SECTION_HEADER, |b| {
            b.u32(pcapng::BYTE_ORDER_MAGIC).u16(1).u16(0).u32(u32::MAX).u32(u32::MAX);
        })
    }

    /// `options` are codes and values.
    fn interface(&mut self, link: u16, snaplen: u32, options: &[(u16, &[u8])]) -> &mut Self {
        self.block(pcapng::INTERFACE_DESCRIPTION, |b| {
            b.u16(link).u16(0).u32(snaplen);
            for (code, value) in options {
                b.u16(*code).u16(value.len() as u16).bytes(value);
                b.out.resize(b.out.len().next_multiple_of(4), 0);
            }
        })
    }

    fn packet(&mut self, interface: u32, time: u64, frame: &[u8], original_len: u32) -> &mut Self {
        self.block(pcapng::ENHANCED_PACKET, |b| {
            b.u32(interface).u32((time >> 32) as u32).u32(time as u32);
            b.u32(frame.len() as u32).u32(original_len).bytes(frame);
        })
    }
}

/// A packet as a test means it, of a time that both resolutions of pcap hold.
#[derive(Clone, Debug)]
struct Sent {
    time_s: u32,
    time_us: u32,
    frame: Vec<u8>,
    beyond: u32,
}

impl Sent {
    fn original_len(&self) -> u32 {
        self.frame.len() as u32 + self.beyond
    }

    fn time_ns(&self) -> i64 {
        i64::from(self.time_s) * 1_000_000_000 + i64::from(self.time_us) * 1000
    }

    fn same(&self, kept: &Kept) -> bool {
        kept.time_ns == Some(self.time_ns())
            && kept.frame == self.frame
            && kept.original_len == self.original_len()
            && kept.link == LinkType::ETHERNET
            && (kept.interface, kept.flags, kept.dropped) == (0, 0, 0)
    }
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let frame = prop_oneof![
        20 => proptest::collection::vec(any::<u8>(), 0..200),
        1 => (0..100_000usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
    ];
    let one = (any::<u32>(), 0..1_000_000u32, frame, 0..2000u32);
    let one =
        one.prop_map(|(time_s, time_us, frame, beyond)| Sent { time_s, time_us, frame, beyond });
    proptest::collection::vec(one, 0..40)
}

fn as_pcap(packets: &[Sent], big: bool, magic: u32) -> Vec<u8> {
    let mut file = File::pcap(big, magic, 4, 262_144, 1);
    let scale = if magic == NANOSECONDS { 1000 } else { 1 };
    for p in packets {
        file.record((p.time_s, p.time_us * scale), &p.frame, p.original_len());
    }
    file.out
}

/// As tapdeck itself writes.
fn as_pcapng(packets: &[Sent]) -> Vec<u8> {
    let mut out = Vec::new();
    pcapng::section_header(&mut out, "Linux", "tapdeck 0", None);
    ours(&mut out, LinkType::ETHERNET);
    for p in packets {
        let at = out.len();
        out.resize(at + pcapng::packet_len(p.frame.len(), 0, 0), 0);
        let (time, frame) = (p.time_ns() as u64, [&p.frame[..], &[], &[]]);
        pcapng::write_packet(&mut out[at..], 0, time, frame, p.original_len(), 0, 0);
    }
    out
}

fn ours(out: &mut Vec<u8>, link: LinkType) {
    let interface = InterfaceDescription {
        link,
        snaplen: 262_144,
        name: "eth0".into(),
        description: "queue 0".into(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(out, &interface);
}

/// What a file's packets are, if it is without faults.
fn packets(file: &[u8]) -> Vec<Kept> {
    let outcome = check(file, 7);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    outcome.packets
}

/// The fault that ends a file, behind how many packets.
fn fault(file: &[u8]) -> (usize, String) {
    let outcome = check(file, 7);
    (outcome.packets.len(), outcome.error.expect("a fault").to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packets_come_back_from_every_format_in_pieces(sent in sent(), seed in any::<u64>()) {
        let mut files = vec![as_pcapng(&sent)];
        for (big, magic) in [
            (false, MICROSECONDS), (true, MICROSECONDS), (false, NANOSECONDS), (true, NANOSECONDS),
        ] {
            files.push(as_pcap(&sent, big, magic));
        }
        for file in files {
            let outcome = check(&file, seed);
            prop_assert!(outcome.error.is_none(), "{:?}", outcome.error);
            prop_assert_eq!(outcome.packets.len(), sent.len());
            for (kept, sent) in outcome.packets.iter().zip(&sent) {
                prop_assert!(sent.same(kept), "{:?} and {:?}", sent, kept);
            }
        }
    }

    #[test]
    fn an_independent_reader_finds_the_same_in_pcap(sent in sent(), big in any::<bool>()) {
        let file = as_pcap(&sent, big, NANOSECONDS);
        let (rest, header) = pcap_parser::parse_pcap_header(&file).expect("a header");
        prop_assert!(header.is_nanosecond_precision() && header.is_bigendian() == big);
        let mut rest = rest;
        for kept in packets(&file) {
            let parse =
                if big { pcap_parser::parse_pcap_frame_be } else { pcap_parser::parse_pcap_frame };
            let (after, theirs) = parse(rest).expect("a record");
            rest = after;
            let ns = i64::from(theirs.ts_sec) * 1_000_000_000 + i64::from(theirs.ts_usec);
            prop_assert_eq!(kept.time_ns, Some(ns));
            prop_assert_eq!(kept.original_len, theirs.origlen);
            prop_assert_eq!(&kept.frame[..], theirs.data);
        }
        prop_assert!(rest.is_empty());
    }
}

/// Sections of both byte orders, interfaces of several kinds, all blocks with packets.
fn motley() -> Vec<u8> {
    let mut file = File { big: true, ..File::default() };
    file.section().interface(1, 0, &[(9, &[3]), (14, &100u64.to_be_bytes())]);
    file.interface(101, 0, &[(9, &[0x8a])]);
    file.packet(1, 2048, b"raw", 3).packet(0, 5000, b"ethernet", 1500);
    // A block of a kind that nobody knows, then name resolution.
    file.block(0xbad, |b| _ = b.bytes(&[0xff; 400])).block(4, |b| _ = b.u32(0));
    file.big = false;
    file.section().block(pcapng::FILL, |b| _ = b.bytes(&[0; 64]));
    file.interface(113, 6, &[]);
    file.block(pcapng::SIMPLE_PACKET, |b| _ = b.u32(9).bytes(b"simple"));
    // The obsolete packet block: interface and drops in 16 bits each.
    for drops in [7, 0xffff] {
        file.block(2, |b| {
            b.u16(0).u16(drops).u32(0).u32(1_000_000).u32(3).u32(60).bytes(b"old\0");
            b.u16(2).u16(4).u32(2);
        });
    }
    file.block(pcapng::INTERFACE_STATISTICS, |b| _ = b.u32(0).u32(0).u32(0));
    file.packet(0, 3, b"last", 4);
    file.out
}

#[test]
fn sections_and_interfaces_each_have_their_own_ways() {
    let told: Vec<_> = packets(&motley())
        .into_iter()
        .map(|p| (p.time_ns, p.link.0, p.original_len, p.frame, p.interface, p.flags, p.dropped))
        .collect();
    let s = 1_000_000_000;
    assert_eq!(
        told,
        [
            (Some(2 * s), 101, 3, b"raw".to_vec(), 1, 0, 0),
            (Some(105 * s), 1, 1500, b"ethernet".to_vec(), 0, 0, 0),
            (None, 113, 9, b"simple".to_vec(), 2, 0, 0),
            (Some(s), 113, 60, b"old".to_vec(), 2, 2, 7),
            (Some(s), 113, 60, b"old".to_vec(), 2, 2, 0),
            (Some(3000), 113, 4, b"last".to_vec(), 2, 0, 0),
        ]
    );
}

/// Where the blocks or records of `file` end, the file's own end included.
fn ends(file: &[u8]) -> Vec<usize> {
    let mut at = if file.starts_with(&[0x0a]) { 0 } else { 24 };
    let mut ends = vec![at];
    let mut big = true;
    while at < file.len() {
        let word = |i: usize| {
            let b = file[at + i..at + i + 4].try_into().expect("four bytes");
            (if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }) as usize
        };
        at += if ends[0] == 24 {
            16 + word(8)
        } else {
            big = if file[at] == 0x0a { file[at + 8] == 0x1a } else { big };
            let b: [u8; 4] = file[at + 4..at + 8].try_into().expect("four bytes");
            (if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }) as usize
        };
        ends.push(at);
    }
    ends
}

#[test]
fn a_file_cut_anywhere_gives_what_stands_before_the_cut() {
    let mut pcap = File::pcap(true, MICROSECONDS, 4, 100, 1);
    pcap.record((1, 2), b"one", 3).record((3, 4), b"", 0).record((5, 6), b"three", 1500);
    for file in [pcap.out, motley()] {
        let whole = packets(&file);
        let ends = ends(&file);
        assert_eq!(ends.last(), Some(&file.len()));
        for len in 0..file.len() {
            let outcome = check(&file[..len], len as u64);
            let kept = whole.iter().filter(|p| p.end <= len as u64).count();
            assert_eq!(outcome.packets, whole[..kept], "of {len} bytes");
            match outcome.error {
                Some(Error::Empty) => assert_eq!(len, 0),
                Some(Error::Neither) => assert!((1..4).contains(&len)),
                Some(Error::CutShort { at, .. }) => {
                    let begin = ends.iter().rev().find(|end| **end <= len).unwrap_or(&0);
                    assert_eq!(at, *begin as u64, "of {len} bytes");
                }
                None => assert!(ends.contains(&len), "{len} bytes taken for whole"),
                Some(error) => panic!("{error} of {len} bytes"),
            }
        }
    }
}

#[test]
fn a_segment_that_is_being_written_ends_cleanly() {
    // FORMAT.md: fill up to 4096 behind the interfaces and behind packets, no statistics yet.
    let mut file = as_pcapng(&[]);
    let fill = 4096 - file.len();
    pcapng::fill(&mut file, fill);
    let head = file.len();
    let frame = [&[0xaa; 60][..], &[], &[]];
    for dropped in [0, 3] {
        let at = file.len();
        file.resize(at + pcapng::packet_len(60, 1, dropped), 0);
        pcapng::write_packet(&mut file[at..], 0, 5, frame, 60, 1, dropped);
    }
    let fill = head + 4096 - file.len();
    pcapng::fill(&mut file, fill);

    let told: Vec<_> =
        packets(&file).into_iter().map(|p| (p.time_ns, p.flags, p.dropped)).collect();
    assert_eq!(told, [(Some(5), 1, 0), (Some(5), 1, 3)]);
}

#[test]
fn the_magic_tells_the_format() {
    let pcaps = [MICROSECONDS, NANOSECONDS, PATCHED];
    for (file, format) in pcaps
        .iter()
        .flat_map(|m| [false, true].map(|big| File::pcap(big, *m, 4, 0, 1).out))
        .map(|file| (file, Format::Pcap))
        .chain([(motley(), Format::Pcapng)])
    {
        assert!(looks_like_trace(&file) && looks_like_trace(&file[..4]));
        assert!(!looks_like_trace(&file[..3]));
        assert_eq!(Reader::new(&file[..]).ok().map(|r| r.format()), Some(format));
    }
    for other in [&b"60 12\n1500 7\n"[..], &[0; 64], b"\x1f\x8b\x08\0", b"\n\r\r"] {
        assert!(!looks_like_trace(other));
        assert!(matches!(Reader::new(other), Err(Error::Neither)));
    }
    assert!(!looks_like_trace(b""));
    assert!(matches!(Reader::new(io::empty()), Err(Error::Empty)));
}

#[test]
fn an_fcs_does_not_count_to_the_frame() {
    let told = |file: &[u8]| -> Vec<_> {
        packets(file).into_iter().map(|p| (p.original_len, p.frame.len(), p.link.0)).collect()
    };
    // Whole; cut within the FCS; cut before it; shorter than it.
    let frames = [(64, 64), (62, 64), (50, 64), (3, 3)];
    let expected = [(60, 60, 1), (60, 60, 1), (60, 50, 1), (0, 0, 1)];

    let mut pcap = File::pcap(false, MICROSECONDS, 4, 0, 1 | 1 << 26 | 2 << 28);
    let mut by_flags = File::default();
    by_flags.section().interface(1, 0, &[]);
    // The flags go before what the interface says.
    let mut by_both = File::default();
    by_both.section().interface(1, 0, &[(13, &[2])]);
    for (captured, original_len) in frames {
        let frame = vec![9; captured];
        pcap.record((0, 0), &frame, original_len);
        for file in [&mut by_flags, &mut by_both] {
            file.block(pcapng::ENHANCED_PACKET, |b| {
                b.u32(0).u32(0).u32(0).u32(captured as u32).u32(original_len).bytes(&frame);
                b.out.resize(b.out.len().next_multiple_of(4), 0);
                b.u16(2).u16(4).u32(4 << 5);
            });
        }
    }
    // Without the bit, the length means nothing.
    let mut unknown = File::pcap(false, MICROSECONDS, 4, 0, 1 | 2 << 28);
    unknown.record((0, 0), &[9; 64], 64);
    assert_eq!(told(&unknown.out), [(64, 64, 1)]);
    for file in [pcap, by_flags, by_both] {
        assert_eq!(told(&file.out), expected);
    }
    // In bytes and in bits.
    for fcslen in [4, 32] {
        let mut file = File::default();
        file.section().interface(1, 0, &[(13, &[fcslen])]).packet(0, 0, &[9; 64], 64);
        assert_eq!(told(&file.out), [(60, 60, 1)]);
    }
}

#[test]
fn old_and_patched_pcap_are_understood() {
    let record = |file: &mut File, first, second, frame: &[u8]| {
        file.u32(1).u32(2).u32(first).u32(second).bytes(frame);
    };
    // Before 2.3 the original length came first; in 2.3 the smaller one is the captured.
    for (minor, first, second) in [(2, 1500, 4), (3, 1500, 4), (3, 4, 1500), (4, 4, 1500)] {
        let mut file = File::pcap(true, MICROSECONDS, minor, 68, 1);
        record(&mut file, first, second, b"wire");
        record(&mut file, 4, 4, b"more");
        let told: Vec<_> =
            packets(&file.out).into_iter().map(|p| (p.original_len, p.frame)).collect();
        assert_eq!(told, [(1500, b"wire".to_vec()), (4, b"more".to_vec())], "2.{minor}");
    }
    let mut patched = File::pcap(false, PATCHED, 4, 68, 1);
    for frame in [b"some", b"more"] {
        patched.u32(1).u32(2).u32(4).u32(60).u32(3).u16(0x800).u16(4).bytes(frame);
    }
    let told = packets(&patched.out);
    assert_eq!(told.len(), 2);
    assert_eq!((told[1].time_ns, &told[1].frame[..]), (Some(1_000_002_000), &b"more"[..]));

    let mut new = File::pcap(false, MICROSECONDS, 4, 68, 1);
    new.out[4] = 3;
    let unsupported = "cannot be read from byte 4 on: a version of pcap other than 2";
    assert_eq!(fault(&new.out), (0, unsupported.into()));
}

#[test]
fn damage_is_told_with_its_place() {
    let mut file = File::default();
    file.section().interface(1, 0, &[]).packet(0, 0, b"good", 4);
    let at = file.out.len();
    let damaged = |what: &str| (1, format!("damaged at byte {at}: {what}"));
    let with = |change: &dyn Fn(&mut File)| {
        let mut file = File { out: file.out.clone(), big: false };
        change(&mut file);
        fault(&file.out)
    };
    let undescribed = damaged("a packet of an interface that was not described");
    assert_eq!(with(&|f| _ = f.packet(1, 0, b"bad", 3)), undescribed);
    // An interface is not known in the section that follows.
    let at_section = with(&|f| _ = f.section().packet(0, 0, b"bad", 3)).1;
    assert!(at_section.starts_with(&format!("damaged at byte {}", at + 28)), "{at_section}");
    let simple = with(&|f| _ = f.section().block(pcapng::SIMPLE_PACKET, |b| _ = b.u32(0))).1;
    assert!(simple.starts_with(&format!("damaged at byte {}", at + 28)), "{simple}");
    let differ = damaged("its two lengths differ");
    assert_eq!(with(&|f| _ = f.u32(0xbad).u32(16).u32(0).u32(20)), differ);
    let long = damaged("a block of more than 16 MiB");
    assert_eq!(with(&|f| _ = f.u32(6).u32(0x0100_0004).u32(0)), long);

    let mut pcap = File::pcap(false, MICROSECONDS, 4, 100, 1);
    pcap.record((0, 0), &[1; 200], 200).u32(0).u32(0).u32(262_145).u32(262_145);
    let what = "a record of more bytes than the snap length lets be captured";
    assert_eq!(fault(&pcap.out), (1, format!("damaged at byte 240: {what}")));
}

#[test]
fn a_section_has_a_bounded_number_of_interfaces() {
    let mut file = File::default();
    file.section();
    for _ in 0..1 << 16 {
        file.interface(1, 0, &[]);
    }
    file.packet(65535, 0, b"last", 4);
    let at = file.out.len();
    file.interface(1, 0, &[]);
    let what = "a section of more than 65536 interfaces";
    // Not `check`: the reader of slices remembers no interfaces, and has no such bound.
    let outcome = read(&file.out[..]);
    let told = outcome.error.expect("a fault").to_string();
    assert_eq!((outcome.packets.len(), told), (1, format!("damaged at byte {at}: {what}")));
}

/// A pcapng file with a block of a type that is not read, of `len` bytes, then a packet.
/// `trailer` is added to the block's second length.
fn with_large_block(len: u32, there: u64, trailer: u32) -> impl Read {
    let mut before = File::default();
    before.section().interface(1, 0, &[]).packet(0, 0, b"before", 6).u32(0xbad).u32(len);
    let mut after = File::default();
    after.u32(len + trailer).packet(0, 0, b"after", 5);
    let zeros = io::repeat(0).take(there.min(u64::from(len) - 12));
    let after = if there < u64::from(len) { Vec::new() } else { after.out };
    io::Cursor::new(before.out).chain(zeros).chain(io::Cursor::new(after))
}

#[test]
fn a_block_larger_than_memory_should_be_is_passed_over() {
    // `Pieces` sees to it that the window does not grow.
    const LEN: u32 = 100 << 20;
    for seed in 1..3 {
        let outcome = read(Pieces::new(with_large_block(LEN, u64::MAX, 0), seed));
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        let frames: Vec<_> = outcome.packets.iter().map(|p| &p.frame[..]).collect();
        assert_eq!(frames, [&b"before"[..], b"after"]);
        assert_eq!(outcome.end, outcome.packets[0].end + u64::from(LEN) + 40);
    }
    let outcome = read(with_large_block(LEN, u64::MAX, 4));
    assert!(matches!(outcome.error, Some(Error::Damaged { at, .. }) if at == outcome.end));
    let outcome = read(with_large_block(LEN, 50 << 20, 0));
    let (at, needed) = (outcome.packets[0].end, u64::from(LEN));
    let told = format!("{:?}", outcome.error.expect("a fault"));
    assert_eq!(told, format!("{:?}", Error::CutShort { at, needed, have: (50 << 20) + 8 }));
}

#[test]
fn packets_larger_than_the_window_come_whole() {
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let mut pcap = File::pcap(true, MICROSECONDS, 4, u32::MAX, 1);
    let mut pcapng = File { big: true, ..File::default() };
    pcapng.section().interface(1, 0, &[]);
    for frame in [b"small", &large[..], b"small", &large[1..], b"small"] {
        pcap.record((0, 0), frame, 1 << 24);
        pcapng.packet(0, 0, frame, 1 << 24);
    }
    for file in [pcap.out, pcapng.out] {
        let told = packets(&file);
        assert_eq!(told.len(), 5);
        assert!(told[1].frame == large && told[3].frame == large[1..]);
        assert!([0, 2, 4].iter().all(|i| told[*i].frame == b"small"));
    }
}

/// A source that gives what it has in one piece and then fails.
struct Failing(io::Cursor<Vec<u8>>);

impl Read for Failing {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::Error::other("the disk is gone")),
            got => Ok(got),
        }
    }
}

#[test]
fn packets_that_are_there_do_not_wait_for_more() {
    // A reader that asked for more before it gave these would meet the fault first.
    let mut pcap = File::pcap(false, NANOSECONDS, 4, 0, 1);
    pcap.record((0, 0), b"one", 3).record((0, 0), b"two", 3);
    for (file, count) in [(motley(), 6), (pcap.out, 2)] {
        let end = file.len() as u64;
        let outcome = read(Failing(io::Cursor::new(file)));
        assert_eq!((outcome.packets.len(), outcome.end), (count, end));
        let error = outcome.error.expect("a fault").to_string();
        assert_eq!(error, "cannot read: the disk is gone");
    }
    let none = Reader::new(Failing(io::Cursor::default())).err().expect("a fault");
    assert_eq!(none.to_string(), "cannot read: the disk is gone");
}

/// A change to a file: what, where, and a number for it.
fn mutate(file: &mut Vec<u8>, (what, place, number): (u8, u16, u32)) {
    const NUMBERS: [u32; 8] = [0, 1, 4, 12, 16, 0x7fff_fffc, 0xffff_ffff, pcapng::SECTION_HEADER];
    let at = usize::from(place) % file.len().max(1);
    let word = at & !3;
    match what % 6 {
        _ if file.len() < word + 4 => {}
        0 => file[at] ^= 1 << (number % 8),
        1 => file[at] = number as u8,
        2 => {
            let number = NUMBERS[number as usize % NUMBERS.len()];
            file[word..word + 4].copy_from_slice(&number.to_be_bytes());
        }
        3 => file[word] = file[word].wrapping_add(4),
        4 => drop(file.drain(at..(at + number as usize % 64).min(file.len()))),
        _ => {
            let end = (at + number as usize % 64).min(file.len());
            let piece = file[at..end].to_vec();
            let place = number as usize % file.len();
            file.splice(place..place, piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// The fuzz target, on the stable compiler.
    #[test]
    fn the_reader_keeps_its_promises_on_mutations(
        which in 0..3,
        mutations in proptest::collection::vec(any::<(u8, u16, u32)>(), 1..5),
        seed in any::<u64>(),
    ) {
        let mut file = match which {
            0 => motley(),
            1 => {
                let sent = |len| Sent { time_s: 1, time_us: 2, frame: vec![3; len], beyond: 0 };
                as_pcapng(&[60, 0, 61, 200].map(sent))
            }
            _ => {
                let mut pcap = File::pcap(seed % 2 == 0, MICROSECONDS, 4, 100, 1);
                pcap.record((1, 2), &[1; 60], 60).record((3, 4), &[2; 61], 1500);
                pcap.out
            }
        };
        for mutation in mutations {
            mutate(&mut file, mutation);
        }
        check(&file, seed);
    }
}
