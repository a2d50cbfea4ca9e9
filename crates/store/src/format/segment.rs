//! What is common to all segments? How they begin, how they are filled up to whole pages, what
//! stands at their ends, and under which name they are opened.
//!
//! The packets between the ends are read by whoever has a question about them ([`crate::reading`])
//! and written by [`crate::writing`].

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use tapdeck_packet::pcapng::{self, Reader, Record, Statistics};

use super::index::Index;
use super::name::SegmentName;
use super::unseen::UnseenSpan;
use crate::io::{Access, Object, PAGE, Storage};

/// Says in each segment's header which program wrote it.
pub(crate) const APPLICATION: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
/// The beginning of [`APPLICATION`] in any version.
pub(crate) const APPLICATION_PREFIX: &str = "tapdeck ";

/// Returns a block's length on disk: with fill up to a page, for which at least
/// [`pcapng::MIN_FILL`] bytes are needed if any.
pub(crate) fn filled(len: usize) -> usize {
    let page = len.next_multiple_of(PAGE);
    if page != len && page - len < pcapng::MIN_FILL { page + PAGE } else { page }
}

/// Adds fill up to a multiple of a page.
pub(crate) fn fill_up(bytes: &mut Vec<u8>) {
    let gap = filled(bytes.len()) - bytes.len();
    if gap > 0 {
        pcapng::fill(bytes, gap);
    }
}

/// Returns the names of all segments, oldest first. Nothing says what is in them.
pub(crate) fn segment_names(storage: &dyn Storage) -> io::Result<Vec<SegmentName>> {
    let parse = |name: &OsString| name.to_str().and_then(SegmentName::parse);
    let mut names: Vec<SegmentName> = storage.list()?.iter().filter_map(parse).collect();
    names.sort();
    Ok(names)
}

/// Opens a segment. One that was live when it was listed may have been closed meanwhile.
pub(crate) fn open_segment(
    storage: &dyn Storage,
    name: &SegmentName,
    access: Access,
) -> io::Result<Arc<dyn Object>> {
    match storage.open(name.to_string().as_ref(), access) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && name.live => {
            storage.open(name.closed().to_string().as_ref(), access)
        }
        opened => opened,
    }
}

/// What is read of a segment's beginning at first.
const FIRST: usize = 16 << 10;
/// What is read of a segment's beginning at most.
const MOST: usize = 16 << 20;

/// Reads a segment's beginning, more of it until `parse` has enough: it returns what the bytes
/// tell, and whether more of them could tell more.
pub(crate) fn read_beginning<T>(
    object: &dyn Object,
    buffer: &mut Vec<u8>,
    mut parse: impl FnMut(&[u8]) -> (T, bool),
) -> io::Result<T> {
    let mut want = FIRST;
    loop {
        buffer.resize(want, 0);
        let have = object.read_up_to(buffer, 0)?;
        object.forget(0..have as u64);
        let (told, is_short) = parse(&buffer[..have]);
        if !is_short || have < want || want >= MOST {
            return Ok(told);
        }
        want *= 4;
    }
}

/// Returns whether a segment begins as this program writes them.
pub(crate) fn is_ours(storage: &dyn Storage, name: &SegmentName) -> bool {
    let Ok(object) = storage.open(name.to_string().as_ref(), Access::Ranges) else { return false };
    let mut head = vec![0; PAGE];
    let Ok(have) = object.read_up_to(&mut head, 0) else { return false };
    match Reader::new(&head[..have]).next() {
        Some(Ok(Record::Section(s))) => {
            s.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX))
        }
        _ => false,
    }
}

/// Returns how many packets a segment holds: as the statistics at its end tell, or counted where
/// there are none, as in a segment that was not closed.
pub(crate) fn packets_in(storage: &dyn Storage, name: &SegmentName) -> u64 {
    let Ok(object) = storage.open(name.to_string().as_ref(), Access::Ranges) else { return 0 };
    packets_told(&*object).unwrap_or_else(|| packets_readable(&*object).unwrap_or(0))
}

/// Counts the packets up to the first block that is torn.
fn packets_readable(object: &dyn Object) -> io::Result<u64> {
    let len = object.length()?;
    let mut window = vec![0; 1 << 20];
    let (mut at, mut begin, mut have) = (0, 0, 0);
    let mut packets = 0;
    while len - at >= pcapng::MIN_FILL as u64 {
        if at + 8 > begin + have {
            begin = at;
            have = object.read_up_to(&mut window, at)? as u64;
        }
        let Some(head) = window[..have as usize].get((at - begin) as usize..) else { break };
        let Some((kind, total)) =
            head.first_chunk().zip(head.get(4..).and_then(<[u8]>::first_chunk))
        else {
            break;
        };
        let (kind, total) = (u32::from_ne_bytes(*kind), u32::from_ne_bytes(*total));
        if total < pcapng::MIN_FILL as u32 || u64::from(total) > len - at {
            break;
        }
        packets += u64::from(kind == pcapng::ENHANCED_PACKET);
        at += u64::from(total);
    }
    Ok(packets)
}

/// Returns how many packets the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn packets_told(object: &dyn Object) -> Option<u64> {
    statistics_told(object)?.iter().map(|s| s.delivered).sum()
}

/// Returns the time of a closed segment's first packet, UTC nanoseconds: as its index tells, or its
/// first packet block. `None` where there is none, or it cannot be read.
pub(crate) fn first_packet_ns(storage: &dyn Storage, name: &SegmentName) -> Option<i64> {
    let object = storage.open(name.to_string().as_ref(), Access::Ranges).ok()?;
    let index = Index::open(storage, name, object.length().ok()?).ok().flatten();
    let summary = index.map(|index| index.summary().clone());
    if let Some(all) = summary.filter(|all| all.complete && all.packets > 0) {
        return Some(all.first_ns);
    }
    let first = |bytes: &[u8]| {
        let mut records = Reader::new(bytes);
        let time = records.find_map(|record| match record {
            Ok(Record::Packet(packet)) => Some(i64::try_from(packet.timestamp).ok()),
            Err(_) => Some(None),
            Ok(_) => None,
        });
        let time = time.flatten();
        (time, time.is_none())
    };
    read_beginning(&*object, &mut Vec::new(), first).ok().flatten()
}

/// Returns the time of a closed segment's last packet, UTC nanoseconds: as its index tells, or the
/// last block at its end that tells one. A packet may have been stamped before the segment began;
/// it was not written before. `None` where nothing is told.
pub(crate) fn last_packet_ns(storage: &dyn Storage, name: &SegmentName) -> Option<i64> {
    let object = storage.open(name.to_string().as_ref(), Access::Ranges).ok()?;
    let index = Index::open(storage, name, object.length().ok()?).ok().flatten();
    let summary = index.map(|index| index.summary().clone());
    let indexed = summary.filter(|all| all.complete && all.packets > 0).map(|all| all.last_ns);
    let last_ns = indexed.or_else(|| last_time(&*object))?;
    Some(last_ns.max(name.began_s.saturating_mul(1_000_000_000)))
}

/// Returns the time of the last packet before a segment's end, or where none is near that of its
/// closing.
fn last_time(object: &dyn Object) -> Option<i64> {
    const WINDOW: u64 = 1 << 20;
    let len = object.length().ok()?;
    let start = len.saturating_sub(WINDOW);
    let mut tail = vec![0; (len - start) as usize];
    object.read_exact_at(&mut tail, start).ok()?;
    let mut closed_ns = None;
    for block in blocks_backwards(&tail) {
        let word = |at: usize| Some(u32::from_ne_bytes(*block.get(at..)?.first_chunk()?));
        match word(0)? {
            pcapng::ENHANCED_PACKET => {
                let ns = u64::from(word(12)?) << 32 | u64::from(word(16)?);
                return i64::try_from(ns).ok();
            }
            pcapng::INTERFACE_STATISTICS => {
                closed_ns = closed_ns.max(i64::try_from(statistics_of(block)?.timestamp).ok());
            }
            pcapng::FILL => {}
            _ => break,
        }
    }
    closed_ns
}

/// Returns the losses that the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn dropped_told(object: &dyn Object) -> Option<u64> {
    Some(statistics_told(object)?.iter().filter_map(|s| s.dropped).sum())
}

/// Returns the statistics at a segment's end; `None` where none stand there.
pub(crate) fn statistics_told(object: &dyn Object) -> Option<Vec<Statistics>> {
    end_of(object).map(|(told, _)| told)
}

/// Returns where the statistics at a segment's end begin; `None` where none stand there.
pub(crate) fn body_end(object: &dyn Object) -> Option<u64> {
    end_of(object).map(|(_, at)| at)
}

/// Returns the statistics at a segment's end, and where they begin.
fn end_of(object: &dyn Object) -> Option<(Vec<Statistics>, u64)> {
    const WINDOW: u64 = 1 << 20;
    let len = object.length().ok()?;
    let start = len.saturating_sub(WINDOW);
    let mut tail = vec![0; (len - start) as usize];
    object.read_exact_at(&mut tail, start).ok()?;
    let (mut told, mut begin, mut at) = (Vec::new(), 0, len);
    for block in blocks_backwards(&tail) {
        at -= block.len() as u64;
        match u32::from_ne_bytes(*block.first_chunk()?) {
            pcapng::INTERFACE_STATISTICS => {
                let statistics = statistics_of(block)?;
                if UnseenSpan::told(&statistics).is_some() {
                    return (!told.is_empty()).then_some((told, begin));
                }
                told.push(statistics);
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

pub(crate) fn statistics_of(block: &[u8]) -> Option<Statistics> {
    // The reader wants a section header first.
    let mut section = Vec::new();
    pcapng::section_header(&mut section, "", "", None);
    section.extend(block);
    match Reader::new(&section).nth(1)? {
        Ok(Record::Statistics(s)) => Some(s),
        _ => None,
    }
}
