//! Reads whole pcapng blocks out of any place of a segment.
//!
//! What was read is forgotten at once ([`Object::forget`]), so that a query of everything does not
//! empty the page cache of the machine that records. What a block means is not judged here.

use std::io;
use std::ops::Range;

use tapdeck_packet::pcapng::{Error, Reader, Record};

use crate::io::{Object, PAGE};

/// The longest block of a segment, and more: one of the rings' blocks is 4 MiB at most.
pub const LONGEST: usize = 16 << 20;
/// A buffer that had to be longer than this is not kept.
const KEPT: usize = 1 << 20;

/// Where a piece ends, and why there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceEnd {
    /// The piece ends where enough was read: there is more behind it.
    More,
    /// The piece ends where all that was to be read ends.
    End,
    /// The piece ends before a block that is not all there, or where the object ends too early.
    Cut,
    /// The piece ends before something that is no block.
    Damaged(&'static str),
}

/// What was read of a part of a segment.
pub struct PartRead {
    /// How many bytes are whole blocks, from where the piece begins.
    pub bytes: u64,
    pub stop: PieceEnd,
}

/// A buffer for pieces of segments.
#[derive(Default)]
pub struct Blocks {
    buffer: Vec<u8>,
    /// Where the section header stands in the buffer, which tells the byte order.
    section_at: usize,
    /// Where the piece begins in the buffer, behind the section header.
    piece_at: usize,
    /// Where the piece ends in the buffer.
    end: usize,
    /// Where the piece lies in the segment.
    place: u64,
}

impl Blocks {
    /// Reads about `want` bytes of the beginning of a part of a segment, at least one block. Hands
    /// each whole block with its place to `each`, which may find it damaged.
    pub fn read(
        &mut self,
        object: &dyn Object,
        section: &[u8],
        part: Range<u64>,
        want: usize,
        mut each: impl FnMut(u64, Record<'_>) -> Result<(), &'static str>,
    ) -> io::Result<PartRead> {
        let (begin, end) = (part.start, part.end);
        let mut want = want;
        loop {
            let have =
                self.load(object, section, begin, (end - begin).min(want as u64) as usize)?;
            let at_end = begin + have as u64 >= end || have < want;
            let (good, fault) = self.parse(&(begin..begin + have as u64), &mut each);
            let stop = match fault {
                None if begin + have as u64 >= end => PieceEnd::End,
                // The object became shorter, between two blocks.
                None | Some(BrokenBlock::Short(_)) if at_end => PieceEnd::Cut,
                None => PieceEnd::More,
                Some(BrokenBlock::Short(_)) if good > begin => PieceEnd::More,
                Some(BrokenBlock::Short(needed)) if needed as usize <= LONGEST => {
                    want = (needed as usize).max(want * 2);
                    continue;
                }
                Some(BrokenBlock::Short(_)) => PieceEnd::Damaged("a block of more than 16 MiB"),
                Some(BrokenBlock::Damaged(what)) => PieceEnd::Damaged(what),
            };
            object.forget(begin..good);
            if self.buffer.len() > KEPT {
                self.buffer = Vec::new();
            }
            return Ok(PartRead { bytes: good - begin, stop });
        }
    }

    /// Puts `want` bytes of a segment into the buffer, or as many as there are. Returns how many.
    pub fn load(
        &mut self,
        object: &dyn Object,
        section: &[u8],
        at: u64,
        want: usize,
    ) -> io::Result<usize> {
        // Whole pages of memory and of the file, as direct I/O wants it.
        let skip = at as usize % PAGE;
        let len = (skip + want).next_multiple_of(PAGE);
        let head = section.len().next_multiple_of(PAGE);
        let needed = PAGE + head + len;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        let start = self.buffer.as_ptr().align_offset(PAGE) + head;
        let have = object.read_up_to(&mut self.buffer[start..start + len], at - skip as u64)?;
        let have = have.saturating_sub(skip).min(want);
        self.place = at;
        self.piece_at = start + skip;
        self.section_at = self.piece_at - section.len();
        self.end = self.piece_at + have;
        self.buffer[self.section_at..self.piece_at].copy_from_slice(section);
        Ok(have)
    }

    /// Returns what was loaded of a part of the segment.
    pub fn bytes(&self, part: &Range<u64>) -> &[u8] {
        let piece = &self.buffer[self.piece_at..self.end];
        let at = |place: u64| (place.saturating_sub(self.place) as usize).min(piece.len());
        &piece[at(part.start)..at(part.end)]
    }

    /// Hands each whole block of what was loaded of a part of the segment to `each`; what stands
    /// before the part is gone then. Returns where the last of the blocks ends, and what stands
    /// there.
    pub fn parse(
        &mut self,
        part: &Range<u64>,
        mut each: impl FnMut(u64, Record<'_>) -> Result<(), &'static str>,
    ) -> (u64, Option<BrokenBlock>) {
        let skip = ((part.start - self.place) as usize).min(self.end - self.piece_at);
        if skip > 0 {
            self.buffer.copy_within(self.section_at..self.piece_at, self.section_at + skip);
            self.section_at += skip;
            self.piece_at += skip;
            self.place = part.start;
        }
        let end = self.piece_at + self.bytes(part).len();
        let section_len = (self.piece_at - self.section_at) as u64;
        let mut reader = Reader::new(&self.buffer[self.section_at..end]);
        reader.next();
        let mut good = part.start;
        while let Some(record) = reader.next() {
            let fault = match record {
                Ok(record) => each(good, record).err().map(BrokenBlock::Damaged),
                Err(Error::CutShort { needed, .. }) => Some(BrokenBlock::Short(needed)),
                Err(Error::Damaged { what, .. }) => Some(BrokenBlock::Damaged(what)),
                Err(Error::NotPcapng) => Some(BrokenBlock::Damaged("there is no section header")),
            };
            if fault.is_some() {
                return (good, fault);
            }
            good = part.start + reader.offset() - section_len;
        }
        (good, None)
    }
}

/// What stands where a block should.
pub enum BrokenBlock {
    /// The beginning of a block of so many bytes.
    Short(u64),
    /// Something that is no block.
    Damaged(&'static str),
}
