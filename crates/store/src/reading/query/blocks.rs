//! Reads whole pcapng blocks out of any place of a segment.
//!
//! A segment that is read from end to end goes through the page cache, for its reading ahead; but
//! what was read is given back at once, so that a query of everything does not empty the cache of
//! the machine that records. What an index names is read past the cache, where the file system can
//! do that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};
use tapdeck_packet::pcapng::{Error, Reader, Record};

use crate::io::{PAGE, forget_pages};

/// No block of a segment is longer: one of the rings' blocks is 4 MiB at most.
pub const LONGEST: usize = 16 << 20;
/// A buffer that had to be longer is not kept.
const KEPT: usize = 1 << 20;

/// Where a piece ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// There is more behind it.
    More,
    /// With the last block.
    End,
    /// Before a block that is not all there.
    Cut,
    /// Before something that is no block.
    Damaged(&'static str),
}

pub struct Part {
    /// Bytes of the whole blocks from where the piece begins.
    pub bytes: u64,
    pub stop: Stop,
}

/// A buffer for pieces of segments.
#[derive(Default)]
pub struct Blocks {
    buffer: Vec<u8>,
    /// The section header in the buffer, which tells the byte order, and behind it the piece.
    section_at: usize,
    piece_at: usize,
    end: usize,
    /// Where the piece lies in the segment.
    place: u64,
}

impl Blocks {
    /// Reads about `want` bytes of the beginning of a part of a segment, at least one block. Gives
    /// each whole block with its place to `each`, which may find it damaged.
    pub fn read(
        &mut self,
        file: &File,
        section: &[u8],
        part: Range<u64>,
        want: usize,
        mut each: impl FnMut(u64, Record<'_>) -> Result<(), &'static str>,
    ) -> io::Result<Part> {
        let (begin, end) = (part.start, part.end);
        let mut want = want;
        loop {
            let have = self.load(file, section, begin, (end - begin).min(want as u64) as usize)?;
            let at_end = begin + have as u64 >= end || have < want;
            let (good, fault) = self.parse(&(begin..begin + have as u64), &mut each);
            let stop = match fault {
                None if at_end => Stop::End,
                None => Stop::More,
                Some(Fault::Short(_)) if at_end => Stop::Cut,
                Some(Fault::Short(_)) if good > begin => Stop::More,
                Some(Fault::Short(needed)) if needed as usize <= LONGEST => {
                    want = (needed as usize).max(want * 2);
                    continue;
                }
                Some(Fault::Short(_)) => Stop::Damaged("a block of more than 16 MiB"),
                Some(Fault::Damaged(what)) => Stop::Damaged(what),
            };
            forget_pages(file, begin, good);
            if self.buffer.len() > KEPT {
                self.buffer = Vec::new();
            }
            return Ok(Part { bytes: good - begin, stop });
        }
    }

    /// Puts `want` bytes of the file into the buffer, or as many as there are; gives back how many.
    pub fn load(&mut self, file: &File, section: &[u8], at: u64, want: usize) -> io::Result<usize> {
        // Whole pages of memory and of the file, as direct I/O wants it.
        let skip = at as usize % PAGE;
        let len = (skip + want).next_multiple_of(PAGE);
        let head = section.len().next_multiple_of(PAGE);
        let needed = PAGE + head + len;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        let start = self.buffer.as_ptr().align_offset(PAGE) + head;
        let have = read_pages(file, &mut self.buffer[start..start + len], at - skip as u64)?;
        let have = have.saturating_sub(skip).min(want);
        self.place = at;
        self.piece_at = start + skip;
        self.section_at = self.piece_at - section.len();
        self.end = self.piece_at + have;
        self.buffer[self.section_at..self.piece_at].copy_from_slice(section);
        Ok(have)
    }

    /// What was loaded of a part of the segment.
    pub fn bytes(&self, part: &Range<u64>) -> &[u8] {
        let piece = &self.buffer[self.piece_at..self.end];
        let at = |place: u64| (place.saturating_sub(self.place) as usize).min(piece.len());
        &piece[at(part.start)..at(part.end)]
    }

    /// Gives each whole block of what was loaded of a part of the segment to `each`; what stands
    /// before the part is gone then. Gives back where the last of them ends, and what stands
    /// there.
    pub fn parse(
        &mut self,
        part: &Range<u64>,
        mut each: impl FnMut(u64, Record<'_>) -> Result<(), &'static str>,
    ) -> (u64, Option<Fault>) {
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
                Ok(record) => each(good, record).err().map(Fault::Damaged),
                Err(Error::CutShort { needed, .. }) => Some(Fault::Short(needed)),
                Err(Error::Damaged { what, .. }) => Some(Fault::Damaged(what)),
                Err(Error::NotPcapng) => Some(Fault::Damaged("there is no section header")),
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
pub enum Fault {
    /// The beginning of one, of so many bytes.
    Short(u64),
    Damaged(&'static str),
}

/// Fills whole pages as far as the file goes, also past the page cache.
fn read_pages(file: &File, pages: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < pages.len() {
        match file.read_at(&mut pages[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            // Behind a file's end that is inside a page, which direct I/O cannot be asked about.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && !have.is_multiple_of(PAGE) => {
                break;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// It will be read from its beginning to its end.
pub fn read_ahead(file: &File) {
    let _ = fadvise(file, 0, None, Advice::Sequential);
}
