//! Reads whole records out of any place of another recorder's capture file.
//!
//! What a record means may depend on what stands far before it: on the file's header, on the
//! section it is in and the interfaces that were described there. Where a piece begins, its
//! [`Context`] has that as bytes: with them in front, a piece reads like a file. Beside packets, a
//! piece may tell of packets that went unseen, as tapdeck's own files do.
//!
//! The file goes through the page cache and stays there: whoever asks once of such files asks
//! again, and nothing but the cache makes that fast. Whether a packet matches is not judged here.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use tapdeck_packet::pcapng::{
    self, BYTE_ORDER_MAGIC, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, SECTION_HEADER, Statistics,
};
use tapdeck_packet::trace::{self, Error};

use super::blocks::PieceEnd;
use super::capture_file::UNMEASURED;
use super::interface::{Described, described};
use super::packet::Packet;
use crate::format::unseen::UnseenSpan;
use crate::io::Object;

/// The longest record that has to stand in memory, with what is around its packet.
const LONGEST: usize = (16 << 20) + 4096;
/// A buffer that had to be longer than this is not kept.
const KEPT: usize = 1 << 20;
/// Bytes of a block's type and length, and of a section header's byte order mark.
const HEAD: usize = 12;

/// What has to be known where a piece begins.
#[derive(Clone, Default)]
pub struct Context {
    head: Arc<CaptureHead>,
    /// The time of the packet before the piece, UTC nanoseconds.
    time_ns: i64,
}

#[derive(Clone, Default)]
struct CaptureHead {
    /// The file's header, or the headers of the section and its interfaces.
    bytes: Vec<u8>,
    swapped: bool,
    /// The index into the snapshot's interfaces, for each number that the section gives one.
    interfaces: Vec<u32>,
    /// The units of the interfaces' times, in the same order.
    units: Vec<Unit>,
}

/// What an interface's times count.
#[derive(Clone, Copy)]
struct Unit {
    resolution: u8,
    offset_s: i64,
}

impl Context {
    /// Returns whether no section and no interface was described between this place and another.
    pub fn has_head_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.head, &other.head)
    }

    /// Returns the index into the snapshot's interfaces, for each number that the section gives
    /// one.
    pub fn interfaces(&self) -> &[u32] {
        &self.head.interfaces
    }

    /// Returns how many bytes have to be known.
    pub fn head_len(&self) -> u64 {
        self.head.bytes.len() as u64
    }

    /// Makes the context behind a pcap file's header.
    pub fn pcap(header: &[u8], interface: u32) -> Self {
        let (bytes, interfaces) = (header.to_vec(), vec![interface]);
        let head = CaptureHead { bytes, interfaces, ..CaptureHead::default() };
        Self { head: Arc::new(head), time_ns: 0 }
    }
}

/// A packet in a capture file.
pub struct Record<'a> {
    pub packet: Packet<'a>,
    /// The file has no time for the packet that could be: it stands with the packet before it.
    pub is_timeless: bool,
    /// The interface, as the section counts them.
    pub id: u32,
}

/// How far a piece was read.
pub struct Passed {
    /// Where the next piece begins.
    pub end: u64,
    /// What has to be known where the next piece begins.
    pub context: Context,
    pub stop: PieceEnd,
    pub bytes_read: u64,
    /// How many sections begin in the piece.
    pub sections: usize,
    /// What went unseen, as the piece tells, with indexes into the snapshot's interfaces.
    pub unseen: Vec<UnseenSpan>,
    /// Whether an interface is described that is not known. Nothing else was read then.
    pub is_late: bool,
}

#[derive(Default)]
pub struct Scanner {
    buffer: Vec<u8>,
}

impl Scanner {
    /// Reads about `want` bytes of the beginning of a part of a file, at least one record. Hands
    /// each packet to `each`, with where it lies or a place before it that is behind the packet
    /// before. `known` returns the index of an interface.
    pub fn read(
        &mut self,
        object: &dyn Object,
        context: &Context,
        part: Range<u64>,
        want: usize,
        known: &mut dyn FnMut(Described) -> Option<u32>,
        mut each: impl FnMut(u64, &Record<'_>),
    ) -> io::Result<Passed> {
        let len = part.end - part.start;
        let mut want = want;
        if self.buffer.len() > KEPT {
            self.buffer = Vec::new();
        }
        loop {
            self.buffer.resize(len.min(want as u64) as usize, 0);
            let have = object.read_up_to(&mut self.buffer, part.start)?;
            let at_end = have < self.buffer.len() || have as u64 == len;
            self.buffer.truncate(have);
            let bytes = &self.buffer[..];
            let mut passed = Passed {
                end: part.start,
                context: context.clone(),
                stop: if at_end { PieceEnd::End } else { PieceEnd::More },
                bytes_read: have as u64,
                sections: 0,
                unseen: Vec::new(),
                is_late: false,
            };
            let Some(headers) = Headers::find(bytes, &context.head, known) else {
                passed.is_late = true;
                return Ok(passed);
            };
            let (good, time_ns, fault) =
                packets(bytes, context, &headers.interfaces, part.start, &mut each);
            match fault {
                Some(BrokenRecord::Short(needed)) if good == 0 && !at_end => {
                    if needed <= LONGEST as u64 {
                        want = (needed as usize).max(want * 2);
                        continue;
                    }
                    // Only a block that holds no packet can be so long.
                    passed.end = (part.start + needed).min(part.end);
                    if part.start + needed > part.end {
                        passed.stop = PieceEnd::Cut;
                    }
                    return Ok(passed);
                }
                Some(BrokenRecord::Short(_)) if at_end => passed.stop = PieceEnd::Cut,
                // The file became shorter, between two records.
                None if at_end && (have as u64) < len && part.end != UNMEASURED => {
                    passed.stop = PieceEnd::Damaged("it became shorter while it was read");
                }
                Some(BrokenRecord::Damaged(what)) => passed.stop = PieceEnd::Damaged(what),
                Some(BrokenRecord::Short(_)) | None => {}
            }
            passed.end += good as u64;
            passed.context = Context { head: headers.head_at(good, &context.head), time_ns };
            let told = headers.unseen.into_iter().filter(|(end, _)| *end <= good);
            passed.unseen = told.map(|(_, span)| span).collect();
            passed.sections = headers.found.iter().filter(|h| h.interface.is_none()).count();
            return Ok(passed);
        }
    }

    /// Returns the bytes that were read last.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }
}

enum BrokenRecord {
    /// Fewer bytes than the so many that should be there.
    Short(u64),
    Damaged(&'static str),
}

/// Hands each packet of a piece that lies at `begin` to `each`. Returns how many bytes are good
/// records, the last packet's time, and what stands behind the records.
fn packets(
    bytes: &[u8],
    context: &Context,
    interfaces: &[u32],
    begin: u64,
    each: &mut impl FnMut(u64, &Record<'_>),
) -> (usize, i64, Option<BrokenRecord>) {
    let head = &context.head.bytes;
    let mut time_ns = context.time_ns;
    let in_piece = |offset: u64| offset.saturating_sub(head.len() as u64) as usize;
    let mut reader = match trace::Reader::new(head.chain(bytes)) {
        Ok(reader) => reader,
        // The context was read before; what cannot be read is a piece that is too short to tell.
        Err(_) if bytes.is_empty() => return (0, time_ns, None),
        Err(_) => return (0, time_ns, Some(BrokenRecord::Short(HEAD as u64))),
    };
    loop {
        let at = in_piece(reader.offset());
        let fault = match reader.next_packet() {
            Ok(Some(packet)) => {
                let Some(&interface) = interfaces.get(packet.interface as usize) else {
                    let what = "a packet of an interface that was not described";
                    return (at, time_ns, Some(BrokenRecord::Damaged(what)));
                };
                let own_ns = packet.time_ns.filter(|ns| *ns >= 0);
                time_ns = own_ns.unwrap_or(time_ns);
                let trace::Packet { link, original_len, frame, flags, dropped, shed, .. } = packet;
                let id = packet.interface;
                let packet =
                    Packet { time_ns, interface, link, original_len, frame, flags, dropped, shed };
                let record = Record { packet, is_timeless: own_ns.is_none(), id };
                each(begin + at as u64, &record);
                continue;
            }
            Ok(None) => None,
            Err(Error::CutShort { needed, .. }) => Some(BrokenRecord::Short(needed)),
            Err(Error::Damaged { what, .. } | Error::Unsupported { what, .. }) => {
                Some(BrokenRecord::Damaged(what))
            }
            Err(_) => Some(BrokenRecord::Damaged("it cannot be read")),
        };
        return (in_piece(reader.offset()), time_ns, fault);
    }
}

/// The section headers and interface descriptions of a piece.
struct Headers {
    /// Indexes into the snapshot's interfaces: first of the interfaces in the context, then of
    /// those in the piece.
    interfaces: Vec<u32>,
    /// The headers of the piece, in its order.
    found: Vec<Header>,
    /// What went unseen, and where the block ends that tells of it.
    unseen: Vec<(usize, UnseenSpan)>,
}

struct Header {
    place: Range<usize>,
    bytes: Vec<u8>,
    swapped: bool,
    /// The index of the interface that is described, and the unit of its times; `None` where the
    /// header is a section's.
    interface: Option<(u32, Unit)>,
}

impl Headers {
    /// Finds the headers of a piece; `None` where an interface is not known.
    fn find(
        bytes: &[u8],
        head: &CaptureHead,
        known: &mut dyn FnMut(Described) -> Option<u32>,
    ) -> Option<Self> {
        let (found, unseen) = (Vec::new(), Vec::new());
        let mut headers = Self { interfaces: head.interfaces.clone(), found, unseen };
        // The interfaces of the present section.
        let mut here: Vec<(u32, Unit)> =
            head.interfaces.iter().copied().zip(head.units.iter().copied()).collect();
        let is_pcap = head.bytes.first_chunk().is_some_and(|first| !is_section(*first));
        let mut swapped = head.swapped;
        let mut section = head.bytes.clone();
        let mut at = 0;
        while !is_pcap && let Some(block) = next_block(&bytes[at..], &mut swapped) {
            let place = at..at + block.len();
            at = place.end;
            let kind = word(block, 0, swapped);
            let mut header = Header { place, bytes: Vec::new(), swapped, interface: None };
            if kind == SECTION_HEADER {
                section = block.to_vec();
                here.clear();
            } else if kind == INTERFACE_DESCRIPTION {
                let Some(interface) = interface_of(&section, block) else { break };
                let unit = Unit { resolution: interface.resolution, offset_s: interface.offset_s };
                let number = known(described(interface))?;
                header.interface = Some((number, unit));
                headers.interfaces.push(number);
                here.push((number, unit));
            } else {
                if kind == INTERFACE_STATISTICS {
                    let span = statistics(&section, block).and_then(|s| unseen_by(&s, &here));
                    headers.unseen.extend(span.map(|span| (at, span)));
                }
                continue;
            }
            header.bytes = block.to_vec();
            headers.found.push(header);
        }
        Some(headers)
    }

    /// Returns what has to be known behind `good` bytes of the piece.
    fn head_at(&self, good: usize, before: &Arc<CaptureHead>) -> Arc<CaptureHead> {
        let passed = self.found.iter().take_while(|header| header.place.end <= good);
        let passed: Vec<&Header> = passed.collect();
        if passed.is_empty() {
            return before.clone();
        }
        let section = passed.iter().rposition(|header| header.interface.is_none());
        let mut head = match section {
            Some(at) => CaptureHead { swapped: passed[at].swapped, ..CaptureHead::default() },
            None => CaptureHead::clone(before),
        };
        for header in &passed[section.unwrap_or(0)..] {
            head.bytes.extend_from_slice(&header.bytes);
            head.interfaces.extend(header.interface.map(|(number, _)| number));
            head.units.extend(header.interface.map(|(_, unit)| unit));
        }
        Arc::new(head)
    }
}

/// Reads a block as if it stood right behind its section's header, and hands on what it is.
fn alone<T>(
    section: &[u8],
    block: &[u8],
    what: impl FnOnce(pcapng::Record<'_>) -> Option<T>,
) -> Option<T> {
    let mut alone = first_block(section).to_vec();
    alone.extend_from_slice(block);
    pcapng::Reader::new(&alone).nth(1)?.ok().and_then(what)
}

fn interface_of(section: &[u8], block: &[u8]) -> Option<pcapng::Interface> {
    alone(section, block, |record| match record {
        pcapng::Record::Interface(interface) => Some(interface),
        _ => None,
    })
}

fn statistics(section: &[u8], block: &[u8]) -> Option<Statistics> {
    alone(section, block, |record| match record {
        pcapng::Record::Statistics(statistics) => Some(statistics),
        _ => None,
    })
}

/// Returns what went unseen, if statistics tell of that, with the index into the snapshot's
/// interfaces in place of the section's number.
fn unseen_by(statistics: &Statistics, interfaces: &[(u32, Unit)]) -> Option<UnseenSpan> {
    let span = UnseenSpan::told(statistics)?;
    let (interface, Unit { resolution, offset_s }) = *interfaces.get(span.interface as usize)?;
    let time_ns = |raw| {
        let ns = pcapng::nanoseconds(resolution, offset_s, raw)?;
        u64::try_from(ns).ok()
    };
    let (first_ns, last_ns) = (time_ns(span.first_ns)?, time_ns(span.last_ns)?);
    Some(UnseenSpan { interface, first_ns, last_ns, ..span })
}

/// Returns the whole block that bytes begin with. A section header changes the byte order.
fn next_block<'a>(bytes: &'a [u8], swapped: &mut bool) -> Option<&'a [u8]> {
    if bytes.len() < HEAD {
        return None;
    }
    if bytes.first_chunk().is_some_and(|first| is_section(*first)) {
        *swapped = word(bytes, 8, false) != BYTE_ORDER_MAGIC;
    }
    let total = word(bytes, 4, *swapped) as usize;
    let is_block = total >= HEAD && total.is_multiple_of(4);
    bytes.get(..total).filter(|_| is_block)
}

/// Returns the section header that a section begins with.
fn first_block(section: &[u8]) -> &[u8] {
    next_block(section, &mut false).unwrap_or(section)
}

/// Returns whether a block is a section header. Its type reads the same in both byte orders.
fn is_section(first: [u8; 4]) -> bool {
    u32::from_ne_bytes(first) == SECTION_HEADER
}

fn word(bytes: &[u8], at: usize, swapped: bool) -> u32 {
    let word = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if swapped { word.swap_bytes() } else { word }
}
