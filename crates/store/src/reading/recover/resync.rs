//! Where do whole blocks begin again behind damage?
//!
//! Any bytes may look like a block, above all the frame of a packet that carried a capture file. So
//! a place counts only if the run of blocks that begins there ends as true ones do. A block's end
//! tells its beginning, so a run that was found inside a frame can never join the true blocks
//! behind it: it breaks where the frame ends. A run is true that
//!
//! - reaches the end of the file, or is longer than any frame, or
//! - goes on behind filling that ends at a page's border, as the writer puts it, or
//! - breaks at a block of which a sector is missing, which is again a tear.
//!
//! Where the damaged block's own beginning is whole, it says where the next one begins, and nothing
//! inside it is looked at.

use std::collections::HashSet;
use std::io;
use std::ops::RangeInclusive;

use tapdeck_packet::pcapng::{
    ENHANCED_PACKET, FILL, INTERFACE_STATISTICS, MIN_FILL, PACKET_OVERHEAD,
};

use super::part::read_at;
use crate::io::{Object, PAGE};

/// Bytes that a disk writes whole or not at all.
const SECTOR: u64 = 512;
/// The longest block that a recorder or a recovery writes, and more; so is the longest frame.
pub(super) const LONGEST: usize = 1 << 20;
/// Bytes of the options that a packet may have: at least that all the rest was shed (4), and the
/// end of options (4); at most direction (8), drops (12), what was shed (8) and a comment on that
/// (72), and the end. `overload.h` of the hook programs holds the sum.
const OPTIONS: RangeInclusive<u32> = 8..=104;
/// Bytes that are needed behind a place to judge the run that begins there.
const AHEAD: usize = 3 * LONGEST;
/// Bytes that are read at first, since true blocks are mostly near.
const FIRST: usize = AHEAD + LONGEST;
/// Bytes that are read at once after the first.
const CHUNK: usize = AHEAD + 5 * LONGEST;

/// What follows damage.
pub(super) struct Behind {
    /// Where true blocks begin again.
    pub next: Option<u64>,
    /// Where the bytes end that are not zero.
    pub written: u64,
    /// Whether there was something like packets that could not be told from a frame's contents.
    pub doubtful: bool,
}

/// Finds where blocks begin again behind `at`, where no whole block begins, in a file of `len`
/// bytes. Packets are of `interfaces` interfaces.
pub(super) fn resync(
    segment: &dyn Object,
    len: u64,
    at: u64,
    interfaces: u32,
) -> io::Result<Behind> {
    let mut chunk = Chunk::read(segment, len, at, FIRST, interfaces)?;
    let mut from = at + MIN_FILL as u64;
    let mut behind = Behind { next: None, written: at, doubtful: false };
    if let Some(total) = chunk.extent(at) {
        from = from.max(at + total);
        behind.written = from.min(len);
    }
    let mut start = at;
    loop {
        let end = chunk.end();
        // Where a run cannot be judged within the chunk, the next one begins.
        let until = if end == len { len } else { end - AHEAD as u64 };
        if chunk.search(start, until, from, &mut behind) || until == len {
            return Ok(behind);
        }
        start = until;
        chunk = Chunk::read(segment, len, start, CHUNK, interfaces)?;
    }
}

/// A part of the file, from a sector's beginning on.
struct Chunk {
    bytes: Vec<u8>,
    base: u64,
    len: u64,
    interfaces: u32,
}

impl Chunk {
    fn read(
        segment: &dyn Object,
        len: u64,
        at: u64,
        size: usize,
        interfaces: u32,
    ) -> io::Result<Self> {
        let base = at / SECTOR * SECTOR;
        let bytes = read_at(segment, base, len, size)?;
        Ok(Self { bytes, base, len, interfaces })
    }

    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn word(&self, at: u64) -> Option<u32> {
        let at = usize::try_from(at.checked_sub(self.base)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Looks at each place from `start` to `until`, but takes none before `from`. True if the
    /// search is over.
    fn search(&self, start: u64, until: u64, from: u64, behind: &mut Behind) -> bool {
        let mut refused = HashSet::new();
        let mut at = start;
        while at < until {
            let Some(word) = self.word(at) else {
                // The last bytes, less than a word.
                let rest = &self.bytes[(at - self.base) as usize..];
                if rest.iter().any(|b| *b != 0) {
                    behind.written = until;
                }
                break;
            };
            if word != 0 {
                behind.written = behind.written.max(at + 4);
                let begins = matches!(word, ENHANCED_PACKET | INTERFACE_STATISTICS);
                if begins && at >= from && self.block(at).is_some() {
                    if self.is_true(at, &mut refused) {
                        behind.next = Some(at);
                        return true;
                    }
                    behind.doubtful = true;
                }
            }
            at += 4;
        }
        false
    }

    /// Returns whether the run of blocks from a place on is one of true blocks. `refused` are
    /// blocks of runs that are not; a run that comes to one of them is the same run.
    fn is_true(&self, from: u64, refused: &mut HashSet<u64>) -> bool {
        let mut at = from;
        let mut after_page = false;
        loop {
            if at == self.len || at - from > LONGEST as u64 {
                return true;
            }
            let Some((kind, total)) = self.block(at) else {
                return after_page || self.is_torn(at);
            };
            if !refused.insert(at) {
                return false;
            }
            at += total;
            after_page |=
                kind == FILL && at.is_multiple_of(PAGE as u64) && self.block(at).is_some();
        }
    }

    /// Returns type and length of the block at a place, if it is whole and as the writer writes
    /// them.
    fn block(&self, at: u64) -> Option<(u32, u64)> {
        let total = self.extent(at)?;
        (self.word(at + total - 4)? == total as u32).then_some((self.word(at)?, total))
    }

    /// Returns how long the block at a place says that it is, if its beginning agrees with itself.
    fn extent(&self, at: u64) -> Option<u64> {
        let total = self.word(at + 4)?;
        if total < MIN_FILL as u32 || total as usize > LONGEST || !total.is_multiple_of(4) {
            return None;
        }
        let agrees = match self.word(at)? {
            ENHANCED_PACKET => self.is_packet(at, total)?,
            INTERFACE_STATISTICS => total >= 24 && self.word(at + 8)? < self.interfaces,
            FILL => true,
            _ => false,
        };
        agrees.then_some(u64::from(total))
    }

    fn is_packet(&self, at: u64, total: u32) -> Option<bool> {
        let interface = self.word(at + 8)?;
        let (captured, original) = (self.word(at + 20)?, self.word(at + 24)?);
        let Some(rest) = total.checked_sub(PACKET_OVERHEAD as u32) else { return Some(false) };
        let options = rest.checked_sub(captured.min(rest).next_multiple_of(4));
        let has_options = options.is_some_and(|len| len == 0 || OPTIONS.contains(&len));
        Some(has_options && captured <= rest && captured <= original && interface < self.interfaces)
    }

    /// Returns whether a block stands at a place whose beginning or end lies in a sector that is
    /// missing. Behind a run that was found inside a frame stands what is no block's type: the
    /// frame's own end.
    fn is_torn(&self, at: u64) -> bool {
        let begins = self.is_missing(at)
            || matches!(self.word(at), Some(ENHANCED_PACKET | INTERFACE_STATISTICS | FILL));
        let head = at + PACKET_OVERHEAD as u64 - 4;
        let tail = self.extent(at).map_or(at, |total| at + total - 4);
        begins && [at, at + 4, head, tail].into_iter().any(|at| self.is_missing(at))
    }

    fn is_missing(&self, at: u64) -> bool {
        if at + 4 > self.len {
            return true;
        }
        let from = (at / SECTOR * SECTOR - self.base) as usize;
        let to = (from + SECTOR as usize).min(self.bytes.len());
        self.bytes.get(from..to).is_some_and(|bytes| bytes.iter().all(|b| *b == 0))
    }
}
