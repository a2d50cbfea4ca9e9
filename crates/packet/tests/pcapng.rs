//! What the pcapng writer writes, as an independent reader (the `pcap-parser` crate) and our own
//! read it; and what our reader makes of files that others wrote, that are cut or damaged.

#[path = "../../../fuzz/checks/pcapng.rs"]
mod check;

use check::check;
use pcap_parser::pcapng::{Block, PcapNGOption, parse_block_be, parse_block_le};
use proptest::prelude::*;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, Error, FILL, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS,
    Interface, InterfaceDescription, MIN_FILL, PACKET_OVERHEAD, PacketBlock, Reader, Record,
    SECTION_HEADER, SIMPLE_PACKET, Section, Statistics, StatisticsBlock, fill,
    interface_description, packet_len, section_header, statistics, write_packet,
};

const BIG: bool = cfg!(target_endian = "big");

// Reading.

/// One block as `pcap-parser` reads it, and what follows.
fn parse(bytes: &[u8]) -> (&[u8], Block<'_>) {
    let parsed = if BIG { parse_block_be(bytes) } else { parse_block_le(bytes) };
    parsed.expect("an independent reader takes the block")
}

/// All blocks of `bytes`, and where each ends.
fn parse_all(bytes: &[u8]) -> (Vec<Block<'_>>, Vec<usize>) {
    let (mut rest, mut blocks, mut ends) = (bytes, Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (after, block) = parse(rest);
        rest = after;
        blocks.push(block);
        ends.push(bytes.len() - rest.len());
    }
    (blocks, ends)
}

/// Options as (code, value), whose padding must be zeros up to the next multiple of 4 and which
/// together must take `bytes` bytes.
fn options(options: &[PcapNGOption<'_>], bytes: usize) -> Vec<(u16, Vec<u8>)> {
    let taken: usize = options.iter().map(|o| 4 + o.value.len()).sum();
    assert_eq!(taken, bytes, "bytes of options");
    let one = |o: &PcapNGOption<'_>| {
        let (value, padding) = o.value.split_at(usize::from(o.len));
        assert!(padding.len() < 4 && padding.iter().all(|b| *b == 0), "padding {padding:?}");
        (o.code.0, value.to_vec())
    };
    options.iter().map(one).collect()
}

/// What our reader makes of a file without faults.
fn read(bytes: &[u8]) -> Vec<Record<'_>> {
    Reader::new(bytes).collect::<Result<_, _>>().expect("a file without faults")
}

/// Blocks behind a section header, as our reader wants them.
fn with_section(blocks: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    section_header(&mut file, "", "", None);
    file.extend(blocks);
    file
}

/// The beginning of `text` that an option of at most `max` bytes holds.
fn kept(text: &str, max: usize) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= max);
    &text[..end.last().unwrap_or(0)]
}

const MAX_TEXT: usize = 65535;

// Values.

/// Bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

fn frame_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..=80usize,
        2 => 1500..=1540usize,
        1 => 65_530..=65_540usize,
        1 => 0..=70_000usize,
        1 => Just(70_000),
    ]
}

fn often_zero<T: Arbitrary + Default + Clone>() -> impl Strategy<Value = T> {
    prop_oneof![Just(T::default()), any::<T>()]
}

/// Text of any characters, short, or about as long as an option can be, or twice that.
fn text() -> impl Strategy<Value = String> {
    let long = (any::<char>(), 0..4usize, prop_oneof![65_520..65_550usize, 0..140_000usize]);
    let long = long.prop_map(|(c, ascii, bytes)| {
        let mut text = "x".repeat(ascii);
        text.extend(std::iter::repeat_n(c, bytes / c.len_utf8()));
        text
    });
    prop_oneof![3 => any::<String>(), 1 => long]
}

/// A packet before it is cut to a snaplen.
#[derive(Clone, Debug)]
struct Sent {
    interface: u32,
    time_ns: u64,
    frame: Vec<u8>,
    snaplen: usize,
    /// A tag in the frame: where the pieces begin and end that are handed to the writer.
    split: (usize, usize),
    flags: u32,
    dropped: u64,
}

impl Sent {
    fn captured(&self) -> &[u8] {
        &self.frame[..self.frame.len().min(self.snaplen)]
    }

    fn write(&self, out: &mut Vec<u8>) {
        let captured = self.captured();
        let (one, two) = (self.split.0.min(captured.len()), self.split.1.min(captured.len()));
        let pieces = [&captured[..one], &captured[one..two], &captured[two..]];
        let at = out.len();
        out.resize(at + packet_len(captured.len(), self.flags, self.dropped), 0xee);
        let original_len = self.frame.len() as u32;
        let out = &mut out[at..];
        write_packet(
            out,
            self.interface,
            self.time_ns,
            pieces,
            original_len,
            self.flags,
            self.dropped,
        );
    }

    fn record(&self) -> Record<'_> {
        Record::Packet(PacketBlock {
            interface: self.interface,
            timestamp: self.time_ns,
            original_len: self.frame.len() as u32,
            frame: self.captured(),
            flags: self.flags,
            dropped: self.dropped,
            shed: 0,
        })
    }
}

prop_compose! {
    fn sent(len: impl Strategy<Value = usize>)(
        interface in any::<u32>(),
        time_ns in any::<u64>(),
        frame in (len, any::<u8>()).prop_map(|(len, seed)| pattern(len, seed)),
        snaplen in prop_oneof![Just(usize::MAX), 0..=200usize, 0..=70_000usize],
        head in prop_oneof![Just(12usize), 0..=70_000usize],
        tag in prop_oneof![Just(0usize), Just(4usize), 0..=70_000usize],
        flags in often_zero(),
        dropped in often_zero(),
    ) -> Sent {
        Sent { interface, time_ns, frame, snaplen, split: (head, head + tag), flags, dropped }
    }
}

prop_compose! {
    fn statistics_block(comment: impl Strategy<Value = Option<String>>)(
        interface in any::<u32>(),
        times in any::<[u64; 3]>(),
        counts in any::<[u64; 4]>(),
        unseen in often_zero(),
        comment in comment,
    ) -> StatisticsBlock {
        let [time_ns, start_ns, end_ns] = times;
        let [received, accepted, dropped, delivered] = counts;
        StatisticsBlock {
            interface, time_ns, start_ns, end_ns, received, accepted, dropped, delivered, unseen,
            comment,
        }
    }
}

/// `isb_starttime` and its like: the high half first.
fn halves(ns: u64) -> Vec<u8> {
    [((ns >> 32) as u32).to_ne_bytes(), (ns as u32).to_ne_bytes()].concat()
}

// What is written.

proptest! {
    #[test]
    fn a_packet_reads_back_byte_for_byte(sent in sent(frame_len())) {
        let mut block = Vec::new();
        sent.write(&mut block);
        let captured = sent.captured();

        let (rest, Block::EnhancedPacket(theirs)) = parse(&block) else { panic!("another block") };
        prop_assert!(rest.is_empty());
        prop_assert_eq!(theirs.block_len1 as usize, block.len());
        prop_assert_eq!(theirs.if_id, sent.interface);
        prop_assert_eq!(u64::from(theirs.ts_high) << 32 | u64::from(theirs.ts_low), sent.time_ns);
        prop_assert_eq!(theirs.caplen as usize, captured.len());
        prop_assert_eq!(theirs.origlen as usize, sent.frame.len());
        let (frame, padding) = theirs.data.split_at(captured.len());
        prop_assert!(frame == captured, "the frame differs");
        prop_assert_eq!(padding, &[0; 3][..captured.len().next_multiple_of(4) - captured.len()]);

        let mut expected = Vec::new();
        if sent.flags != 0 {
            expected.push((2, sent.flags.to_ne_bytes().to_vec()));
        }
        if sent.dropped != 0 {
            expected.push((4, sent.dropped.to_ne_bytes().to_vec()));
        }
        if !expected.is_empty() {
            expected.push((0, vec![]));
        }
        let option_bytes = block.len() - 32 - theirs.data.len();
        prop_assert_eq!(options(&theirs.options, option_bytes), expected);

        let file = with_section(&block);
        prop_assert!(read(&file)[1] == sent.record(), "our reader differs");
    }

    #[test]
    fn a_packet_without_options_costs_32_bytes_and_padding(captured in 0..=70_000usize) {
        prop_assert_eq!(PACKET_OVERHEAD, 32);
        prop_assert_eq!(packet_len(captured, 0, 0), 32 + captured + (4 - captured % 4) % 4);
    }

    #[test]
    fn a_section_header_says_who_wrote_it(
        os in text(),
        application in text(),
        comment in proptest::option::of(text()),
    ) {
        let mut file = Vec::new();
        section_header(&mut file, &os, &application, comment.as_deref());

        let (rest, Block::SectionHeader(theirs)) = parse(&file) else { panic!("another block") };
        prop_assert!(rest.is_empty());
        prop_assert_eq!((theirs.major_version, theirs.minor_version), (1, 0));
        prop_assert_eq!(theirs.section_len, -1);
        prop_assert_eq!(theirs.big_endian(), BIG);
        let mut expected: Vec<(u16, &str)> = vec![
            (2, std::env::consts::ARCH),
            (3, kept(&os, MAX_TEXT)),
            (4, kept(&application, MAX_TEXT)),
        ];
        expected.extend(comment.as_deref().map(|c| (1, kept(c, MAX_TEXT))));
        expected.push((0, ""));
        let expected: Vec<_> = expected.iter().map(|(c, t)| (*c, t.as_bytes().to_vec())).collect();
        prop_assert!(options(&theirs.options, file.len() - 28) == expected, "options differ");

        let ours = Section {
            application: Some(kept(&application, MAX_TEXT).into()),
            comment: comment.map(|c| kept(&c, MAX_TEXT).into()),
        };
        prop_assert!(read(&file) == [Record::Section(ours)], "our reader differs");
    }

    #[test]
    fn an_interface_description_reads_back(
        link in any::<u16>(),
        snaplen in any::<u32>(),
        name in text(),
        description in text(),
        filter in proptest::option::of(text()),
        hardware in proptest::option::of(text()),
        mac in any::<Option<[u8; 6]>>(),
    ) {
        let written = InterfaceDescription {
            link: LinkType(link), snaplen, name, description, filter, hardware, mac
        };
        let mut block = Vec::new();
        interface_description(&mut block, &written);

        let (rest, Block::InterfaceDescription(theirs)) = parse(&block) else {
            panic!("another block")
        };
        prop_assert!(rest.is_empty());
        prop_assert_eq!(theirs.linktype.0, i32::from(link));
        prop_assert_eq!((theirs.reserved, theirs.snaplen), (0, snaplen));
        prop_assert_eq!(theirs.ts_resolution(), Some(1_000_000_000));

        let cut = |text: &str| kept(text, MAX_TEXT).to_string();
        // One byte of the filter's option says that it is text.
        let filter = written.filter.as_ref().map(|f| kept(f, MAX_TEXT - 1).to_string());
        let bytes = |text: &str| text.as_bytes().to_vec();
        let mut expected =
            vec![(2, bytes(&cut(&written.name))), (3, bytes(&cut(&written.description)))];
        expected.extend(mac.map(|m| (6, m.to_vec())));
        expected.push((9, vec![9]));
        expected.extend(filter.as_ref().map(|f| (11, bytes(&format!("\0{f}")))));
        expected.extend(written.hardware.as_ref().map(|h| (15, bytes(&cut(h)))));
        expected.push((0, vec![]));
        prop_assert!(options(&theirs.options, block.len() - 20) == expected, "options differ");

        let ours = Interface {
            link: written.link,
            snaplen,
            name: Some(cut(&written.name)),
            description: Some(cut(&written.description)),
            filter,
            hardware: written.hardware.as_deref().map(cut),
            os: None,
            resolution: 9,
            offset_s: 0,
        };
        let file = with_section(&block);
        prop_assert!(read(&file)[1] == Record::Interface(ours), "our reader differs");
    }

    #[test]
    fn a_statistics_block_reads_back(s in statistics_block(proptest::option::of(text()))) {
        let mut block = Vec::new();
        statistics(&mut block, &s);

        let (rest, Block::InterfaceStatistics(theirs)) = parse(&block) else {
            panic!("another block")
        };
        prop_assert!(rest.is_empty());
        prop_assert_eq!(theirs.if_id, s.interface);
        prop_assert_eq!(u64::from(theirs.ts_high) << 32 | u64::from(theirs.ts_low), s.time_ns);
        let comment = s.comment.as_deref().map(|c| kept(c, MAX_TEXT).to_string());
        let mut expected: Vec<_> =
            comment.iter().map(|c| (1u16, c.as_bytes().to_vec())).collect();
        expected.extend([(2, halves(s.start_ns)), (3, halves(s.end_ns))]);
        let unseen = (s.unseen > 0).then_some((5, s.unseen));
        let counts = [(6, s.accepted), (7, s.dropped), (8, s.delivered)];
        for (code, count) in [(4, s.received)].into_iter().chain(unseen).chain(counts) {
            expected.push((code, count.to_ne_bytes().to_vec()));
        }
        expected.push((0, vec![]));
        prop_assert!(options(&theirs.options, block.len() - 24) == expected, "options differ");

        let ours = Statistics {
            interface: s.interface,
            timestamp: s.time_ns,
            start: Some(s.start_ns),
            end: Some(s.end_ns),
            received: Some(s.received),
            interface_dropped: unseen.map(|(_, packets)| packets),
            accepted: Some(s.accepted),
            dropped: Some(s.dropped),
            delivered: Some(s.delivered),
            comment,
        };
        let file = with_section(&block);
        prop_assert!(read(&file)[1] == Record::Statistics(ours), "our reader differs");
    }
}

#[test]
fn filling_takes_exactly_its_length() {
    // Every length up to two pages, and what is left of a block of any size but for a little.
    let lengths = (MIN_FILL..=8192).step_by(4);
    let large = (16..=22).flat_map(|shift| [(1 << shift) - 4, 1 << shift]);
    let zeros = vec![0; 1 << 22];
    for len in lengths.chain(large) {
        let mut block = vec![0xaa];
        fill(&mut block, len);
        assert_eq!(block.len(), 1 + len);
        let (rest, Block::Unknown(theirs)) = parse(&block[1..]) else { panic!("another block") };
        assert!(rest.is_empty());
        let lengths = [theirs.block_len1, theirs.block_len2];
        assert_eq!((theirs.block_type, lengths), (FILL, [len as u32; 2]));
        assert_eq!(theirs.data, &zeros[..len - MIN_FILL]);
        let file = with_section(&block[1..]);
        assert_eq!(read(&file)[1], Record::Other(FILL));
    }
}

#[test]
fn filling_of_an_impossible_length_is_refused() {
    for len in (0..MIN_FILL).chain([13, 14, 15, 4095]) {
        let refused = std::panic::catch_unwind(|| fill(&mut Vec::new(), len));
        assert!(refused.is_err(), "a fill of {len} bytes");
    }
}

#[test]
fn a_packet_is_only_written_where_it_fits_exactly() {
    let room = packet_len(60, 1, 1);
    for len in [0, room - 4, room + 4] {
        let refused = std::panic::catch_unwind(|| {
            write_packet(&mut vec![0; len], 0, 0, [&[0; 60], &[], &[]], 60, 1, 1);
        });
        assert!(refused.is_err(), "{len} bytes for a block of {room}");
    }
}

// Files.

#[derive(Clone, Debug)]
enum FilePart {
    Section,
    Packet(Sent),
    Fill(usize),
    Statistics(StatisticsBlock),
}

fn pieces(len: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<FilePart>> {
    let piece = prop_oneof![
        1 => Just(FilePart::Section),
        5 => sent(0..=100usize).prop_map(FilePart::Packet),
        1 => (3..40usize).prop_map(|words| FilePart::Fill(words * 4)),
        1 => statistics_block(any::<Option<String>>()).prop_map(FilePart::Statistics),
    ];
    proptest::collection::vec(piece, len)
}

fn write_file(pieces: &[FilePart]) -> Vec<u8> {
    let mut file = Vec::new();
    section_header(&mut file, "Linux 6.1", "tapdeck", None);
    for piece in pieces {
        match piece {
            FilePart::Section => section_header(&mut file, "", "", Some("another")),
            FilePart::Packet(sent) => sent.write(&mut file),
            FilePart::Fill(len) => fill(&mut file, *len),
            FilePart::Statistics(s) => statistics(&mut file, s),
        }
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn both_readers_find_the_same_blocks_in_a_file(pieces in pieces(0..=40)) {
        let file = write_file(&pieces);
        let (theirs, ends) = parse_all(&file);
        prop_assert_eq!(theirs.len(), pieces.len() + 1);

        let mut reader = Reader::new(&file);
        for (i, end) in ends.iter().enumerate() {
            let record = reader.next().unwrap().unwrap();
            prop_assert_eq!(reader.offset(), *end as u64);
            let same = match (i.checked_sub(1).map(|i| &pieces[i]), record) {
                (None | Some(FilePart::Section), Record::Section(_))
                | (Some(FilePart::Fill(_)), Record::Other(FILL)) => true,
                (Some(FilePart::Packet(sent)), record) => record == sent.record(),
                (Some(FilePart::Statistics(s)), Record::Statistics(ours)) => {
                    ours.received == Some(s.received) && ours.comment == s.comment
                }
                _ => false,
            };
            prop_assert!(same, "block {} of {:?}", i, pieces);
        }
        prop_assert!(reader.next().is_none());
    }

    #[test]
    fn a_file_cut_anywhere_keeps_its_whole_blocks(pieces in pieces(0..=8)) {
        let file = write_file(&pieces);
        let whole = read(&file);
        let (_, ends) = parse_all(&file);
        for cut in 0..=file.len() {
            let blocks = ends.iter().take_while(|end| **end <= cut).count();
            let end = blocks.checked_sub(1).map_or(0, |last| ends[last]);
            let mut reader = Reader::new(&file[..cut]);
            for expected in &whole[..blocks] {
                prop_assert_eq!(reader.next(), Some(Ok(expected.clone())));
            }
            if end < cut {
                let have = cut - end;
                let needed = if have < 12 { 12 } else { ends[blocks] - end };
                let (at, needed, have) = (end as u64, needed as u64, have as u64);
                prop_assert_eq!(reader.next(), Some(Err(Error::CutShort { at, needed, have })));
            }
            prop_assert_eq!(reader.next(), None);
            prop_assert_eq!(reader.offset(), end as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_break_the_reader(
        bytes in proptest::collection::vec(any::<u8>(), 1..400),
        begun in any::<bool>(),
    ) {
        let file = if begun { with_section(&bytes) } else { bytes };
        let (good, _) = check(&file);
        prop_assert!(good >= usize::from(begun));
    }

    #[test]
    fn arbitrary_bodies_never_break_the_reader(
        big in any::<bool>(),
        blocks in proptest::collection::vec(
            (
                prop_oneof![
                    Just(SECTION_HEADER),
                    Just(INTERFACE_DESCRIPTION),
                    Just(SIMPLE_PACKET),
                    Just(INTERFACE_STATISTICS),
                    Just(ENHANCED_PACKET),
                    any::<u32>(),
                ],
                // Mostly small numbers, so that lengths within are now and then right.
                proptest::collection::vec(prop_oneof![3 => 0..40u32, 1 => any::<u32>()], 0..24),
            ),
            1..8,
        ),
    ) {
        let mut file = File::new(big);
        file.section(&[]);
        for (kind, words) in &blocks {
            file.block(*kind, |f| words.iter().for_each(|w| f.u32(*w)));
        }
        let (good, fault) = check(&file.out);
        prop_assert!(good > 0, "the section header at least is good");
        // Their lengths are right: a block can be damaged, but none is cut short.
        let whole = !matches!(fault, Some(Error::CutShort { .. } | Error::NotPcapng));
        prop_assert!(whole, "{:?}", fault);
    }
}

// Files of either byte order, written by hand.

struct File {
    big: bool,
    out: Vec<u8>,
}

impl File {
    fn new(big: bool) -> Self {
        Self { big, out: Vec::new() }
    }

    fn u16(&mut self, v: u16) {
        self.out.extend(if self.big { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    fn u32(&mut self, v: u32) {
        self.out.extend(if self.big { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    fn u64(&mut self, v: u64) {
        self.out.extend(if self.big { v.to_be_bytes() } else { v.to_le_bytes() });
    }

    /// A timestamp: the high half first, whatever the byte order.
    fn time(&mut self, v: u64) {
        self.u32((v >> 32) as u32);
        self.u32(v as u32);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.out.extend(bytes);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    /// An option that holds one number.
    fn count(&mut self, code: u16, v: u64) {
        self.u16(code);
        self.u16(8);
        self.u64(v);
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let mut inner = Self::new(self.big);
        body(&mut inner);
        let total = inner.out.len() as u32 + 12;
        self.u32(kind);
        self.u32(total);
        self.out.extend(inner.out);
        self.u32(total);
    }

    fn section(&mut self, application: &[u8]) {
        self.block(SECTION_HEADER, |f| {
            f.u32(BYTE_ORDER_MAGIC);
            f.u16(1);
            f.u16(0);
            f.u64(u64::MAX);
            f.option(4, application);
            f.option(0, &[]);
        });
    }
}

/// What a file from elsewhere says, in either byte order.
#[derive(Clone, Debug)]
struct Foreign {
    link: u16,
    snaplen: u32,
    resolution: u8,
    offset_s: i64,
    time: u64,
    interface: u32,
    frame: Vec<u8>,
    original_len: u32,
    flags: u32,
    counts: [u64; 6],
}

prop_compose! {
    fn foreign()(
        link in any::<u16>(),
        snaplen in any::<u32>(),
        resolution in any::<u8>(),
        offset_s in any::<i64>(),
        time in any::<u64>(),
        interface in any::<u32>(),
        frame in proptest::collection::vec(any::<u8>(), 0..100),
        original_len in any::<u32>(),
        flags in any::<u32>(),
        counts in any::<[u64; 6]>(),
    ) -> Foreign {
        Foreign {
            link, snaplen, resolution, offset_s, time, interface, frame, original_len, flags, counts
        }
    }
}

impl Foreign {
    fn file(&self, big: bool) -> Vec<u8> {
        let mut file = File::new(big);
        file.section(b"another tool");
        file.block(INTERFACE_DESCRIPTION, |f| {
            f.u16(self.link);
            f.u16(0);
            f.u32(self.snaplen);
            f.option(9, &[self.resolution]);
            f.option(12, "Unix \u{df}".as_bytes());
            f.count(14, self.offset_s as u64);
            // No end mark: the block's end is one, too.
        });
        file.block(ENHANCED_PACKET, |f| {
            f.u32(self.interface);
            f.time(self.time);
            f.u32(self.frame.len() as u32);
            f.u32(self.original_len);
            f.padded(&self.frame);
            f.option(1, b"a comment");
            f.count(4, self.counts[0]);
            f.u16(2);
            f.u16(4);
            f.u32(self.flags);
            f.option(0, &[]);
        });
        file.block(5 << 8, |f| f.padded(b"a block of another kind"));
        file.block(INTERFACE_STATISTICS, |f| {
            f.u32(self.interface);
            f.time(self.time);
            for (code, count) in (4..).zip(&self.counts[1..]) {
                f.count(code, *count);
            }
            f.option(0, &[]);
            f.count(4, 0);
        });
        file.out
    }

    fn records(&self) -> Vec<Record<'_>> {
        vec![
            Record::Section(Section { application: Some("another tool".into()), comment: None }),
            Record::Interface(Interface {
                link: LinkType(self.link),
                snaplen: self.snaplen,
                name: None,
                description: None,
                filter: None,
                hardware: None,
                os: Some("Unix \u{df}".into()),
                resolution: self.resolution,
                offset_s: self.offset_s,
            }),
            Record::Packet(PacketBlock {
                interface: self.interface,
                timestamp: self.time,
                original_len: self.original_len,
                frame: &self.frame,
                flags: self.flags,
                dropped: self.counts[0],
                shed: 0,
            }),
            Record::Other(5 << 8),
            Record::Statistics(Statistics {
                interface: self.interface,
                timestamp: self.time,
                start: None,
                end: None,
                received: Some(self.counts[1]),
                interface_dropped: Some(self.counts[2]),
                accepted: Some(self.counts[3]),
                dropped: Some(self.counts[4]),
                delivered: Some(self.counts[5]),
                comment: None,
            }),
        ]
    }
}

proptest! {
    #[test]
    fn both_byte_orders_read_the_same(foreign in foreign(), first in any::<bool>()) {
        let (big, little) = (foreign.file(true), foreign.file(false));
        prop_assert_eq!(read(&big), foreign.records());
        prop_assert_eq!(read(&little), foreign.records());
        // And a section may have another order than the one before it.
        let mixed = if first { [big, little] } else { [little, big] }.concat();
        prop_assert_eq!(read(&mixed), [foreign.records(), foreign.records()].concat());
    }

    #[test]
    fn a_timestamp_of_any_resolution_becomes_nanoseconds_or_nothing(
        raw in any::<u64>(),
        resolution in any::<u8>(),
        offset_s in prop_oneof![Just(0i64), -1_000_000..1_000_000i64],
    ) {
        let mut file = File::new(BIG);
        file.section(&[]);
        file.block(INTERFACE_DESCRIPTION, |f| {
            f.u32(0);
            f.u32(0);
            f.option(9, &[resolution]);
            f.count(14, offset_s as u64);
        });
        let [_, Record::Interface(interface)] = &read(&file.out)[..] else { panic!("two blocks") };
        if let Some(ns) = interface.nanoseconds(raw) {
            // Within what floating point can tell.
            let base: f64 = if resolution & 0x80 == 0 { 10.0 } else { 2.0 };
            let seconds = raw as f64 / base.powi(i32::from(resolution & 0x7f));
            let expected = (seconds + offset_s as f64) * 1e9;
            let error = (ns as f64 - expected).abs();
            prop_assert!(error <= 1.0 + 1e-12 * (seconds * 1e9).abs().max(expected.abs()));
        } else {
            let fits = resolution == 9 && offset_s == 0 && i64::try_from(raw).is_ok();
            prop_assert!(!fits, "{} ns", raw);
        }
    }
}

#[test]
fn timestamps_are_exact_to_the_nanosecond() {
    let interface = |resolution, offset_s| Interface {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: None,
        description: None,
        filter: None,
        hardware: None,
        os: None,
        resolution,
        offset_s,
    };
    let table = [
        ((9, 0), 1_700_000_000_123_456_789, Some(1_700_000_000_123_456_789)),
        ((6, 0), 1_700_000_000_123_456, Some(1_700_000_000_123_456_000)),
        ((0, 0), 1_700_000_000, Some(1_700_000_000_000_000_000)),
        ((9, -3600), 3_600_000_000_001, Some(1)),
        ((9, -1), 0, Some(-1_000_000_000)),
        // Units of 2^-10 and 2^-32 seconds, and of a picosecond.
        ((0x8a, 0), 1025, Some(1_000_976_562)),
        ((0xa0, 0), 1 << 31, Some(500_000_000)),
        ((12, 0), 1999, Some(1)),
        ((9, 0), u64::MAX, None),
        ((0, 0), 1 << 34, None),
        ((9, i64::MAX), 0, None),
        ((39, 0), 1, None),
    ];
    for ((resolution, offset_s), raw, ns) in table {
        let interface = interface(resolution, offset_s);
        assert_eq!(interface.nanoseconds(raw), ns, "{raw} at {resolution:#x}, {offset_s}");
    }
}

#[test]
fn a_simple_packet_is_as_long_as_the_first_interface_keeps() {
    for (snaplen, original_len, captured) in
        [(0, 7, 7), (5, 7, 5), (5, 100, 5), (5, 3, 3), (65_535, 7, 7)]
    {
        for big in [false, true] {
            let frame = pattern(captured, 1);
            let mut file = File::new(big);
            file.section(&[]);
            // The second interface's snaplen has no say, nor has one of an earlier section.
            for snaplen in [snaplen, 1] {
                file.block(INTERFACE_DESCRIPTION, |f| {
                    f.u32(0);
                    f.u32(snaplen);
                });
            }
            file.block(SIMPLE_PACKET, |f| {
                f.u32(original_len);
                f.padded(&frame);
            });
            let packet = Record::Packet(PacketBlock {
                interface: 0,
                timestamp: 0,
                original_len,
                frame: &frame,
                flags: 0,
                dropped: 0,
                shed: 0,
            });
            assert_eq!(read(&file.out)[3], packet);
            let twice = [&file.out[..], &file.out[..]].concat();
            assert_eq!(read(&twice)[7], packet);
        }
    }
}

// Faults.

/// A block that is well framed, and is not what its type says.
fn misshapen(kind: u32, body: &[u32]) -> Vec<u8> {
    let mut file = File::new(BIG);
    file.block(kind, |f| body.iter().for_each(|w| f.u32(*w)));
    file.out
}

/// A block whose first and last words of length are given.
fn framed(first: u32, last: u32) -> Vec<u8> {
    let mut file = File::new(BIG);
    for word in [0x0bad, first, 0, last] {
        file.u32(word);
    }
    file.out
}

#[test]
fn a_damaged_block_ends_the_reading_and_says_where() {
    let option_of_8 = if BIG { 2 << 16 | 8 } else { 8 << 16 | 2 };
    let table = [
        ("a length of 0", framed(0, 0)),
        ("a length of 8", framed(8, 8)),
        ("a length of 15", framed(15, 16)),
        ("lengths that differ", framed(16, 12)),
        ("a byte order of neither", misshapen(SECTION_HEADER, &[0x1a2b_3c4e, 1, 0, 0])),
        ("a section header too short", misshapen(SECTION_HEADER, &[BYTE_ORDER_MAGIC, 1, 0])),
        ("an interface too short", misshapen(INTERFACE_DESCRIPTION, &[1])),
        ("a packet too short", misshapen(ENHANCED_PACKET, &[0; 4])),
        ("a packet that passes its end", misshapen(ENHANCED_PACKET, &[0, 0, 0, 5, 5, 0])),
        ("a packet of the largest length", misshapen(ENHANCED_PACKET, &[0, 0, 0, !0, 5, 0])),
        ("a simple packet too short", misshapen(SIMPLE_PACKET, &[])),
        ("statistics too short", misshapen(INTERFACE_STATISTICS, &[0, 0])),
        (
            "an option that passes its end",
            misshapen(INTERFACE_STATISTICS, &[0, 0, 0, option_of_8, 0]),
        ),
    ];
    let before = with_section(&[]);
    for (what, block) in table {
        let file = [&before[..], &block, &before].concat();
        let mut reader = Reader::new(&file);
        assert!(matches!(reader.next(), Some(Ok(Record::Section(_)))));
        match reader.next() {
            Some(Err(Error::Damaged { at, .. })) => assert_eq!(at, before.len() as u64, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(reader.next(), None, "{what}");
        assert_eq!(reader.offset(), before.len() as u64, "{what}");
    }
}

#[test]
fn what_begins_otherwise_is_no_pcapng() {
    let section = with_section(&[]);
    let pcap = [&0xa1b2_c3d4u32.to_ne_bytes()[..], &[0; 20]].concat();
    let packet_first = [&misshapen(ENHANCED_PACKET, &[0; 5])[..], &section].concat();
    for file in [pcap, packet_first] {
        let mut reader = Reader::new(&file);
        assert_eq!(reader.next(), Some(Err(Error::NotPcapng)));
        assert_eq!(reader.next(), None);
    }
    assert_eq!(read(&[]), []);
}
