//! Between which times are a segment's packets, and of which interfaces? Told by the ends of the
//! segment and the head of its index, several segments at once; what lies between the ends is not
//! read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tapdeck_packet::pcapng::{Error as BlockError, Reader, Record};

use super::error::Error;
use super::interface::Described;
use crate::format::index::Index;
use crate::format::name::SegmentName;
use crate::format::segment::{APPLICATION_PREFIX, blocks_backwards, open_segment, read_beginning};
use crate::format::unseen::UnseenSpan;
use crate::io::{Access, Object, PAGE, Storage};
use crate::span::Span;

/// How long before its segment began, and before the segment's first packet, a packet may have been
/// stamped at most; and how long after its end. A block waits in its ring for the flush interval
/// and for the blocks before it; a device's clock is believed up to a second. A writer that hangs
/// for longer delays all rings alike, which the segment's first packet shows.
pub const SLACK_NS: i64 = 60 * 1_000_000_000;

/// What is read of a segment's end at first.
const FIRST: usize = 16 << 10;
/// What is read of a segment's end at most.
const MOST: usize = 16 << 20;
const NANOSECONDS: u8 = 9;
/// Threads that look at segments; each mostly waits for the disk.
const THREADS: usize = 8;
const STACK: usize = 256 << 10;

/// What was found where a segment was listed.
pub enum Seen {
    /// The segment was deleted meanwhile.
    Gone,
    /// Another program wrote the file.
    Foreign,
    Segment(Ends),
}

/// What the ends of a segment, and the head of its index, tell.
pub struct Ends {
    pub begun: Arc<Begun>,
    /// The file's length.
    pub end: u64,
    /// No packet in the segment is from before this time.
    pub earliest_ns: i64,
    /// No packet in the segment is from after this time. `None` where the segment has no end yet,
    /// or the end was not asked for.
    pub latest_ns: Option<i64>,
    /// No packet that was recorded behind the segment is from before this time.
    pub behind_ns: i64,
    /// Bytes that were read of the segment's index.
    pub index_bytes: u64,
}

/// Looks at segments, several at once.
pub fn look_at_all(
    storage: &dyn Storage,
    names: &[SegmentName],
    span: Span,
) -> Vec<Result<Seen, Error>> {
    several(names, |name, buffer| {
        let place = || storage.location(name.to_string().as_ref());
        look(storage, name, span, buffer).map_err(|e| Error::new(place(), e))
    })
}

/// Looks at items, several at once. `look` has a buffer to itself meanwhile. Returns what it
/// returns, in the order of the items.
pub fn several<T: Sync, R: Send>(
    items: &[T],
    look: impl Fn(&T, &mut Vec<u8>) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let look_on = || {
        let (mut buffer, mut seen) = (Vec::new(), Vec::new());
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return seen };
            seen.push((at, look(item, &mut buffer)));
        }
    };
    let mut seen = thread::scope(|scope| {
        let builder = || thread::Builder::new().name("tapdeck-ends".into()).stack_size(STACK);
        let spawn = |_| builder().spawn_scoped(scope, look_on).ok();
        let threads: Vec<_> = (1..items.len().min(THREADS)).filter_map(spawn).collect();
        let mut seen = look_on();
        for thread in threads {
            seen.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        seen
    });
    seen.sort_unstable_by_key(|(at, _)| *at);
    seen.into_iter().map(|(_, seen)| seen).collect()
}

fn look(
    storage: &dyn Storage,
    name: &SegmentName,
    span: Span,
    buffer: &mut Vec<u8>,
) -> io::Result<Seen> {
    let object = match open_segment(storage, name, Access::Ranges) {
        Ok(object) => object,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Seen::Gone),
        Err(e) => return Err(e),
    };
    let end = object.length()?;
    let Some(begun) = read_beginning(&*object, buffer, parse_begin)? else {
        return Ok(Seen::Foreign);
    };
    // An index that is damaged is told when it is needed.
    let index = Index::open(storage, name, end).ok().flatten();
    let index_bytes = index.as_ref().map_or(0, Index::bytes_read);
    let summary = index.map(|index| index.summary().clone());
    let (earliest_ns, last_ns, slack_ns) = match summary {
        Some(all) if all.complete && all.packets > 0 => (all.first_ns, Some(all.last_ns), 0),
        _ => {
            let (earliest_ns, last_ns) = believed_times(name, &*object, end, &begun, span, buffer)?;
            (earliest_ns, last_ns, SLACK_NS)
        }
    };
    let latest_ns = last_ns.map(|ns| ns.saturating_add(slack_ns));
    let behind_ns = last_ns.map_or(earliest_ns, |ns| earliest_ns.max(ns.saturating_sub(SLACK_NS)));
    let begun = Arc::new(begun);
    Ok(Seen::Segment(Ends { begun, end, earliest_ns, latest_ns, behind_ns, index_bytes }))
}

/// Returns from when on a segment's packets may be and when it ended, by what stands at its ends.
/// The end is looked at only if the beginning is before the span; `None` where there is no end to
/// be told.
fn believed_times(
    name: &SegmentName,
    object: &dyn Object,
    end: u64,
    begun: &Begun,
    span: Span,
    buffer: &mut Vec<u8>,
) -> io::Result<(i64, Option<i64>)> {
    let began_ns = name.began_s.saturating_mul(1_000_000_000);
    let first_ns = begun.first_ns.unwrap_or(began_ns);
    let earliest_ns = began_ns.min(first_ns).saturating_sub(SLACK_NS);
    // A segment that is being written has no end yet.
    if name.live || earliest_ns >= span.after_ns {
        return Ok((earliest_ns, None));
    }
    Ok((earliest_ns, latest_ns(object, end, &begun.section, buffer)?))
}

/// What stands at a segment's beginning.
pub struct Begun {
    pub section: Vec<u8>,
    pub swapped: bool,
    pub interfaces: Vec<Described>,
    /// Where the descriptions and their fill end.
    pub end: u64,
    /// What went unseen before the segment.
    pub unseen: Vec<UnseenSpan>,
    /// The time of the first packet.
    first_ns: Option<i64>,
    /// Where the beginning is damaged, and what stands there.
    pub damaged: Option<(u64, &'static str)>,
}

/// Returns what a segment's first bytes tell, and whether more bytes could tell more. `None` where
/// another program wrote the segment.
pub(crate) fn parse_begin(bytes: &[u8]) -> (Option<Begun>, bool) {
    let mut reader = Reader::new(bytes);
    let section = match reader.next() {
        Some(Ok(Record::Section(section))) => section,
        Some(Err(BlockError::CutShort { .. })) => return (None, true),
        _ => return (None, false),
    };
    if !section.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX)) {
        return (None, false);
    }
    let mut at = reader.offset() as usize;
    let magic = tapdeck_packet::pcapng::BYTE_ORDER_MAGIC.to_ne_bytes();
    let mut begun = Begun {
        section: bytes[..at].to_vec(),
        swapped: bytes[8..12] != magic,
        interfaces: Vec::new(),
        end: at as u64,
        unseen: Vec::new(),
        first_ns: None,
        damaged: None,
    };
    while let Some(record) = reader.next() {
        match record {
            Ok(Record::Interface(interface)) => {
                if interface.resolution != NANOSECONDS || interface.offset_s != 0 {
                    begun.damaged =
                        Some((at as u64, "an interface whose times are not nanoseconds"));
                }
                let block = bytes[at..reader.offset() as usize].to_vec();
                let name = interface.name.unwrap_or_default();
                let description = interface.description.unwrap_or_default();
                let link = interface.link;
                begun.interfaces.push(Described { block, name, description, link });
                begun.end = reader.offset();
            }
            Ok(Record::Packet(packet)) => {
                begun.first_ns = i64::try_from(packet.timestamp).ok();
                return (Some(begun), false);
            }
            Ok(Record::Statistics(statistics)) => {
                begun.unseen.extend(UnseenSpan::told(&statistics));
            }
            // The fill behind the descriptions ends with a page. More fill is the body's.
            Ok(Record::Other(_)) if begun.end == at as u64 && !at.is_multiple_of(PAGE) => {
                begun.end = reader.offset();
            }
            Ok(_) => {}
            Err(e) => return (Some(begun), matches!(e, BlockError::CutShort { .. })),
        }
        at = reader.offset() as usize;
    }
    (Some(begun), true)
}

/// Returns the latest time that stands at a segment's end: when it was closed, or of its last
/// packet. `None` where none is found there.
fn latest_ns(
    object: &dyn Object,
    len: u64,
    section: &[u8],
    buffer: &mut Vec<u8>,
) -> io::Result<Option<i64>> {
    let mut want = FIRST as u64;
    loop {
        let begin = len.saturating_sub(want);
        buffer.resize((len - begin) as usize, 0);
        let have = object.read_up_to(buffer, begin)?;
        object.forget(begin..begin + have as u64);
        if have < buffer.len() {
            return Ok(None);
        }
        match parse_end(buffer, section) {
            None if begin > 0 && want < MOST as u64 => want *= 4,
            latest => return Ok(latest),
        }
    }
}

/// Returns the latest time of the blocks at the end, up to the last packet.
fn parse_end(bytes: &[u8], section: &[u8]) -> Option<i64> {
    let mut latest: Option<i64> = None;
    let mut one = Vec::new();
    for block in blocks_backwards(bytes) {
        one.clear();
        one.extend_from_slice(section);
        one.extend_from_slice(block);
        match Reader::new(&one).nth(1)?.ok()? {
            Record::Packet(p) => return latest.max(i64::try_from(p.timestamp).ok()),
            Record::Statistics(s) => latest = latest.max(i64::try_from(s.timestamp).ok()),
            Record::Other(_) => {}
            Record::Section(_) | Record::Interface(_) => return None,
        }
    }
    None
}
