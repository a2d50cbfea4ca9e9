//! What is common to all segments: how they begin, how they are filled up to whole pages, what
//! stands at their ends, and under which name they are opened.
//!
//! The packets between the ends are read by whoever has a question about them
//! ([`crate::reading`]) and written by [`crate::writing`].

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use tapdeck_packet::pcapng::{self, Reader, Record, Statistics};

use super::name::SegmentName;
use crate::io::{PAGE, read_at};

/// Says in each segment's header which program wrote it.
pub(crate) const APPLICATION: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
/// How [`APPLICATION`] begins in any version.
pub(crate) const APPLICATION_PREFIX: &str = "tapdeck ";

/// A block's length on disk: with filling up to a page, for which at least
/// [`pcapng::MIN_FILL`] bytes are needed if any.
pub(crate) fn filled(len: usize) -> usize {
    let page = len.next_multiple_of(PAGE);
    if page != len && page - len < pcapng::MIN_FILL { page + PAGE } else { page }
}

/// Fills up to a multiple of a page.
pub(crate) fn fill_up(bytes: &mut Vec<u8>) {
    let gap = filled(bytes.len()) - bytes.len();
    if gap > 0 {
        pcapng::fill(bytes, gap);
    }
}

/// Opens a segment. One that was live when it was listed may have been closed meanwhile.
pub(crate) fn open_segment(dir: &Path, name: &SegmentName, how: OFlags) -> io::Result<File> {
    let open = |name: &SegmentName| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | how;
        rustix::fs::open(name.path(dir), flags, Mode::empty())
            .map(File::from)
            .map_err(io::Error::from)
    };
    match open(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && name.live => open(&name.closed()),
        result => result,
    }
}

/// Returns whether the file at a path begins as a segment of this program does.
pub(crate) fn is_ours(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| begins_as_ours(&file))
}

/// Returns whether a file begins as a segment of this program does.
pub(crate) fn begins_as_ours(file: &File) -> bool {
    let mut head = vec![0; 4096];
    let Ok(have) = read_at(file, &mut head, 0) else { return false };
    head.truncate(have);
    match Reader::new(&head).next() {
        Some(Ok(Record::Section(s))) => {
            s.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX))
        }
        _ => false,
    }
}

/// Packets in a segment: from the statistics at its end, or counted where there are none, as in a
/// segment that was not closed.
pub(crate) fn packets_in(path: &Path) -> u64 {
    packets_told(path).unwrap_or_else(|| packets_readable(path).unwrap_or(0))
}

/// Packets up to the first block that is torn.
fn packets_readable(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut left = file.metadata()?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut packets = 0;
    let mut head = [0; 8];
    while left >= pcapng::MIN_FILL as u64 {
        file.read_exact(&mut head)?;
        let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let total = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        if total < pcapng::MIN_FILL as u32 || u64::from(total) > left {
            break;
        }
        packets += u64::from(kind == pcapng::ENHANCED_PACKET);
        file.seek_relative(i64::from(total) - head.len() as i64)?;
        left -= u64::from(total);
    }
    Ok(packets)
}

/// Packets that the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn packets_told(path: &Path) -> Option<u64> {
    statistics_told(path)?.iter().map(|s| s.delivered).sum()
}

/// Losses that the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn dropped_told(path: &Path) -> Option<u64> {
    Some(statistics_told(path)?.iter().filter_map(|s| s.dropped).sum())
}

pub(crate) fn statistics_told(path: &Path) -> Option<Vec<Statistics>> {
    end_of(path).map(|(told, _)| told)
}

/// Where the statistics at a segment's end begin; `None` where none stand there.
pub(crate) fn body_end(path: &Path) -> Option<u64> {
    end_of(path).map(|(_, at)| at)
}

/// The statistics at a segment's end, and where they begin.
fn end_of(path: &Path) -> Option<(Vec<Statistics>, u64)> {
    const WINDOW: u64 = 1 << 20;
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let start = len.saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(WINDOW).read_to_end(&mut tail).ok()?;

    let (mut told, mut begin, mut at) = (Vec::new(), 0, len);
    for block in blocks_backwards(&tail) {
        at -= block.len() as u64;
        match u32::from_ne_bytes(block.get(..4)?.try_into().ok()?) {
            pcapng::INTERFACE_STATISTICS => {
                told.push(statistics_of(block)?);
                begin = at;
            }
            pcapng::FILL => {}
            _ => return (!told.is_empty()).then_some((told, begin)),
        }
    }
    None
}

/// Returns the blocks that end where the bytes do, the last first, by the lengths at their ends.
pub(crate) fn blocks_backwards(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut end = bytes.len();
    std::iter::from_fn(move || {
        let word = bytes.get(end.checked_sub(4)?..end)?.first_chunk()?;
        let total = u32::from_ne_bytes(*word) as usize;
        let begin = end.checked_sub(total).filter(|_| total >= pcapng::MIN_FILL)?;
        let block = &bytes[begin..end];
        end = begin;
        Some(block)
    })
}

fn statistics_of(block: &[u8]) -> Option<Statistics> {
    // The reader wants a section header first.
    let mut section = Vec::new();
    pcapng::section_header(&mut section, "", "", None);
    section.extend(block);
    match Reader::new(&section).nth(1)? {
        Ok(Record::Statistics(s)) => Some(s),
        _ => None,
    }
}
