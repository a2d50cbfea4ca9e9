//! pcap, as in pcap-savefile(5): a header for the file, then a record for each packet.

use std::io::Read;

use super::error::Error;
use super::found::{Found, MAX_LEN, without_fcs};
use super::window::Window;
use crate::link::LinkType;
use crate::numbers::pcap_file;

const HEADER: usize = 24;
const RECORD: usize = 16;
const PATCHED_RECORD: usize = 24;

/// The bit of the link type's field that says that frames end in an FCS. Bits 28 to 31 are then its
/// length in 16-bit words.
const FCS_KNOWN: u32 = 1 << 26;
const FCS_SHIFT: u32 = 28;

/// Which of a record's two lengths comes first: versions before 2.3 wrote the original length
/// first, and version 2.3 did so on some systems.
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    Unsure,
}

/// Returns whether a pcap file begins with these bytes.
pub(super) fn is_magic(first: [u8; 4]) -> bool {
    order(first).is_some()
}

/// Returns the magic number, and whether the file's byte order is not this machine's.
fn order(first: [u8; 4]) -> Option<(u32, bool)> {
    let magic = u32::from_ne_bytes(first);
    let known = |m: u32| {
        matches!(m, pcap_file::MAGIC | pcap_file::MAGIC_NANOSECONDS | pcap_file::MAGIC_PATCHED)
    };
    match (known(magic), known(magic.swap_bytes())) {
        (true, _) => Some((magic, false)),
        (_, true) => Some((magic.swap_bytes(), true)),
        _ => None,
    }
}

pub(super) struct Pcap {
    swapped: bool,
    record: usize,
    lengths: Lengths,
    /// Nanoseconds of one unit of the fraction of a second in a record's time.
    unit_ns: i64,
    link: LinkType,
    fcs: u32,
    /// The most bytes that were captured of any packet.
    max: u32,
    /// Bytes of a packet that count, the file's snap length. Some writers get that wrong and write
    /// more; libpcap leaves those out, so that a filter finds the same with and without them.
    snaplen: usize,
}

impl Pcap {
    /// Reads the file's header.
    pub(super) fn begin<R: Read>(window: &mut Window<R>) -> Result<Self, Error> {
        if !window.fill(HEADER)? {
            return Err(window.short(HEADER));
        }
        let header = window.take(HEADER);
        let first = [header[0], header[1], header[2], header[3]];
        let (magic, swapped) = order(first).ok_or(Error::Neither)?;
        let version = half(swapped, &header[4..]);
        if version != pcap_file::MAJOR_VERSION {
            return Err(Error::Unsupported { at: 4, what: "a version of pcap other than 2" });
        }
        let link = word(swapped, &header[20..]);
        let snaplen = word(swapped, &header[16..]);
        Ok(Self {
            swapped,
            record: if magic == pcap_file::MAGIC_PATCHED { PATCHED_RECORD } else { RECORD },
            lengths: match half(swapped, &header[6..]) {
                ..3 => Lengths::OriginalFirst,
                3 => Lengths::Unsure,
                4.. => Lengths::CapturedFirst,
            },
            unit_ns: if magic == pcap_file::MAGIC_NANOSECONDS { 1 } else { 1000 },
            link: LinkType(link as u16),
            fcs: if link & FCS_KNOWN == 0 { 0 } else { 2 * (link >> FCS_SHIFT) },
            max: snaplen.clamp(pcap_file::MAX_SNAPLEN, MAX_LEN as u32),
            // To libpcap the number is a signed one, and one that is none means any length.
            snaplen: match snaplen {
                0 | 0x8000_0000.. => usize::MAX,
                bytes => bytes as usize,
            },
        })
    }

    pub(super) fn next<R: Read>(&self, window: &mut Window<R>) -> Result<Option<Found>, Error> {
        if !window.fill(self.record)? {
            let ended = window.bytes().is_empty();
            return if ended { Ok(None) } else { Err(window.short(self.record)) };
        }
        let header = &window.bytes()[..self.record];
        let number = |at: usize| word(self.swapped, &header[at..]);
        let (captured, original_len) = self.lengths(number(8), number(12));
        if captured > self.max {
            let what = "a record of more bytes than the snap length lets be captured";
            return Err(Error::Damaged { at: window.taken(), what });
        }
        let time_ns = i64::from(number(0)) * 1_000_000_000 + i64::from(number(4)) * self.unit_ns;
        let len = self.record + captured as usize;
        if !window.fill(len)? {
            return Err(window.short(len));
        }
        let (kept, original_len) = without_fcs(captured as usize, original_len, self.fcs);
        Ok(Some(Found {
            len,
            frame: self.record..self.record + kept.min(self.snaplen),
            time_ns: Some(time_ns),
            link: self.link,
            original_len,
            interface: 0,
            flags: 0,
            dropped: 0,
            shed: 0,
        }))
    }

    /// Returns the captured and the original length, from a record's lengths in the order in which
    /// they stand in the file.
    fn lengths(&self, first: u32, second: u32) -> (u32, u32) {
        match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::OriginalFirst => (second, first),
            Lengths::Unsure => (first.min(second), first.max(second)),
        }
    }
}

fn half(swapped: bool, b: &[u8]) -> u16 {
    let v = u16::from_ne_bytes([b[0], b[1]]);
    if swapped { v.swap_bytes() } else { v }
}

fn word(swapped: bool, b: &[u8]) -> u32 {
    let v = u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    if swapped { v.swap_bytes() } else { v }
}
