//! Reads whole pcapng blocks out of any place of a segment.
//!
//! Large reads one after the other, through the page cache for its reading ahead; but what was read
//! is given back at once, so that a query of everything does not empty the cache of the machine that records.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};
use tapdeck_packet::pcapng::{Error, Reader, Record};

use super::snapshot::Segment;

/// No block of a segment is longer: one of the rings' blocks is 4 MiB at most.
const LONGEST: usize = 16 << 20;

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
}

impl Blocks {
    /// Reads about `want` bytes from `begin` on, at least one block, and nothing from `end` on. Gives each whole block
    /// with its place to `each`, which may find it damaged.
    pub fn read(
        &mut self,
        file: &File,
        segment: &Segment,
        begin: u64,
        end: u64,
        want: usize,
        mut each: impl FnMut(u64, Record<'_>) -> Result<(), &'static str>,
    ) -> io::Result<Part> {
        let section = &segment.head.section;
        let mut want = want;
        loop {
            let have = self.fill(file, section, begin, (end - begin).min(want as u64) as usize)?;
            let at_end = begin + have as u64 >= end || have < want;
            // The section header in front tells the byte order.
            let mut reader = Reader::new(&self.buffer);
            reader.next();
            let place = |offset: u64| begin + offset - section.len() as u64;
            let mut stop = if at_end { Stop::End } else { Stop::More };
            let mut good = place(reader.offset());
            while let Some(record) = reader.next() {
                let told = match record {
                    Ok(record) => each(good, record).map_err(Stop::Damaged),
                    Err(Error::CutShort { needed, .. }) if !at_end => {
                        if good == begin && needed as usize <= LONGEST {
                            want = (needed as usize).max(want * 2);
                            stop = Stop::More;
                            break;
                        }
                        let longer = good == begin;
                        Err(if longer {
                            Stop::Damaged("a block of more than 16 MiB")
                        } else {
                            Stop::More
                        })
                    }
                    Err(Error::CutShort { .. }) => Err(Stop::Cut),
                    Err(Error::Damaged { what, .. }) => Err(Stop::Damaged(what)),
                    Err(Error::NotPcapng) => Err(Stop::Damaged("there is no section header")),
                };
                if let Err(why) = told {
                    stop = why;
                    break;
                }
                good = place(reader.offset());
            }
            if good > begin || stop != Stop::More {
                forget_pages(file, begin, good);
                return Ok(Part { bytes: good - begin, stop });
            }
        }
    }

    /// Puts the section header and `want` bytes of the file behind it into the buffer; gives back how many
    /// there were.
    fn fill(&mut self, file: &File, section: &[u8], at: u64, want: usize) -> io::Result<usize> {
        self.buffer.clear();
        self.buffer.extend_from_slice(section);
        self.buffer.resize(section.len() + want, 0);
        let have = read_at(file, &mut self.buffer[section.len()..], at)?;
        self.buffer.truncate(section.len() + have);
        Ok(have)
    }
}

/// Fills a buffer as far as the file goes.
pub fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
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

/// What was read is not needed again soon. Where the file system does not listen, it costs memory
/// and nothing else.
pub fn forget_pages(file: &File, begin: u64, end: u64) {
    if let Some(len) = NonZeroU64::new(end - begin) {
        let _ = fadvise(file, begin, Some(len), Advice::DontNeed);
    }
}
