//! What holds when any bytes at all are read as a capture file. Shared by the fuzz target and by
//! `crates/packet/tests/trace.rs`, which runs it on the stable compiler.

use std::io::{self, ErrorKind, Read};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng;
use tapdeck_packet::trace::{Error, Reader};

/// What the window takes while nothing larger must stand in it.
const PIECE: usize = 256 << 10;
const MAX_BLOCK: u64 = 16 << 20;
/// More than any FCS takes that a file can name.
const MAX_FCS: usize = 31;

/// A packet that outlives the window, and where its block ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub time_ns: Option<i64>,
    pub link: LinkType,
    pub original_len: u32,
    pub frame: Vec<u8>,
    pub interface: u32,
    pub flags: u32,
    pub dropped: u64,
    pub end: u64,
}

/// How a file read: its packets, where the last good block ends, and the fault.
#[derive(Debug)]
pub struct Outcome {
    pub packets: Vec<Kept>,
    pub end: u64,
    pub error: Option<Error>,
}

/// A source that gives as little as it likes, is interrupted, and sees to it that no more is
/// asked for than the window may hold.
pub struct Pieces<R> {
    source: R,
    given: usize,
    random: u64,
}

impl<R> Pieces<R> {
    pub fn new(source: R, seed: u64) -> Self {
        Self { source, given: 0, random: seed | 1 }
    }

    fn below(&mut self, n: u64) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n) as usize
    }
}

impl<R: Read> Read for Pieces<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = PIECE.max(self.given);
        assert!(buf.len() <= most, "{} bytes asked for, {} given", buf.len(), self.given);
        assert!(!buf.is_empty(), "nothing asked for");
        let upto = match self.below(8) {
            0 => return Err(ErrorKind::Interrupted.into()),
            1..4 => 1 + self.below(8),
            4..6 => 1 + self.below(100),
            _ => buf.len(),
        };
        let upto = upto.min(buf.len());
        let got = self.source.read(&mut buf[..upto])?;
        self.given += got;
        Ok(got)
    }
}

/// Reads to the end or to the first fault.
///
/// # Panics
/// If reading goes on after a fault, or packets do not follow one another.
pub fn read(source: impl Read) -> Outcome {
    let mut packets = Vec::new();
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return Outcome { packets, end: 0, error: Some(error) },
    };
    loop {
        let before = reader.offset();
        match reader.next_packet() {
            Ok(Some(p)) => {
                let mut kept = Kept {
                    time_ns: p.time_ns,
                    link: p.link,
                    original_len: p.original_len,
                    frame: p.frame.to_vec(),
                    interface: p.interface,
                    flags: p.flags,
                    dropped: p.dropped,
                    end: 0,
                };
                kept.end = reader.offset();
                assert!(kept.end >= before + 16 + kept.frame.len() as u64, "a packet of no bytes");
                packets.push(kept);
            }
            Ok(None) => return Outcome { packets, end: reader.offset(), error: None },
            Err(error) => {
                assert!(matches!(reader.next_packet(), Ok(None)), "reading went on after a fault");
                return Outcome { packets, end: reader.offset(), error: Some(error) };
            }
        }
    }
}

/// Reads `data` whole and in pieces, and as pcapng with the reader of slices too.
///
/// # Panics
/// If they do not agree, or a fault is not where it says.
pub fn check(data: &[u8], seed: u64) -> Outcome {
    let whole = read(data);
    let pieces = read(Pieces::new(data, seed));
    assert_eq!(pieces.packets, whole.packets);
    assert_eq!(pieces.end, whole.end);
    assert_eq!(format!("{:?}", pieces.error), format!("{:?}", whole.error));

    match whole.error {
        None => assert_eq!(whole.end, data.len() as u64, "reading ended before the data did"),
        Some(Error::Damaged { at, .. }) => assert_eq!(at, whole.end),
        Some(Error::CutShort { at, needed, have }) => {
            assert_eq!((at, have), (whole.end, data.len() as u64 - at));
            assert!(needed > have, "{needed} bytes needed, {have} there");
        }
        Some(Error::Empty) => assert!(data.is_empty()),
        Some(Error::Neither | Error::Unsupported { .. }) => assert!(whole.packets.is_empty()),
        Some(Error::Io(ref e)) => panic!("memory cannot fail: {e}"),
    }
    if data.starts_with(&pcapng::SECTION_HEADER.to_ne_bytes()) {
        assert_as_slice(data, &whole);
    }
    whole
}

/// The reader of slices finds the same packets and the same end.
fn assert_as_slice(data: &[u8], outcome: &Outcome) {
    let names_fcs = data.windows(4).any(|w| matches!(w, [13, 0, 1, 0] | [0, 13, 0, 1]));
    let mut interfaces = Vec::new();
    let mut before = 0;
    let mut packets = outcome.packets.iter();
    let mut reader = pcapng::Reader::new(data);
    loop {
        let at = reader.offset();
        let record = match reader.next() {
            Some(Ok(record)) => record,
            Some(Err(error)) => {
                assert_same_fault(outcome, &error);
                break;
            }
            None => {
                assert!(outcome.error.is_none(), "a fault where there is none");
                break;
            }
        };
        match record {
            pcapng::Record::Section(_) => {
                before += interfaces.len() as u32;
                interfaces.clear();
            }
            pcapng::Record::Interface(interface) => interfaces.push(interface),
            pcapng::Record::Packet(block) => {
                let Some(interface) = interfaces.get(block.interface as usize) else {
                    let damaged = matches!(outcome.error, Some(Error::Damaged { .. }));
                    assert!(damaged && outcome.end == at, "an interface that is not there");
                    break;
                };
                let packet = packets.next().expect("a packet that the reader of slices found");
                assert_eq!(packet.end, reader.offset());
                assert_eq!(packet.interface, before + block.interface);
                // Its type, 3 in either byte order; the other packet blocks' is 6.
                let simple = data[at as usize..][..4].contains(&3);
                assert_same_packet(packet, &block, interface, simple, names_fcs);
            }
            // An obsolete packet block, which that reader does not open.
            pcapng::Record::Other(2) => return,
            _ => {}
        }
    }
    assert_eq!(packets.next(), None, "a packet too many");
}

fn assert_same_fault(outcome: &Outcome, error: &pcapng::Error) {
    match (error, &outcome.error) {
        (pcapng::Error::CutShort { at, needed, .. }, Some(Error::Damaged { at: ours, .. }))
            if *needed > MAX_BLOCK =>
        {
            assert_eq!(at, ours);
        }
        (pcapng::Error::CutShort { at, needed, have }, Some(Error::CutShort { .. })) => {
            let theirs = Error::CutShort { at: *at, needed: *needed, have: *have };
            assert_eq!(format!("{:?}", outcome.error), format!("{:?}", Some(theirs)));
        }
        (pcapng::Error::Damaged { at, what }, Some(Error::Damaged { at: ours, what: why })) => {
            assert_eq!((at, what), (ours, why));
        }
        _ => panic!("{error:?} and {:?}", outcome.error),
    }
}

fn assert_same_packet(
    packet: &Kept,
    block: &pcapng::PacketBlock<'_>,
    interface: &pcapng::Interface,
    simple: bool,
    names_fcs: bool,
) {
    let time_ns = if simple { None } else { interface.nanoseconds(block.timestamp) };
    assert_eq!(
        (packet.time_ns, packet.link, packet.flags, packet.dropped),
        (time_ns, interface.link, block.flags, block.dropped)
    );
    if names_fcs || (block.flags >> 5) & 0xf != 0 {
        let off = block.frame.len() - packet.frame.len();
        assert!(block.frame.starts_with(&packet.frame) && off <= MAX_FCS, "{off} bytes off");
        assert!((block.original_len - packet.original_len) as usize <= MAX_FCS);
    } else {
        assert_eq!(packet.frame, block.frame);
        assert_eq!(packet.original_len, block.original_len);
    }
}
