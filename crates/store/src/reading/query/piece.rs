//! What was found of the answer in a piece of a segment or of a capture file? The packets that
//! match, and those that tell of losses, in time order. How pieces are put together is
//! [`super::merge`]'s business.

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::Record;

use super::order::Key;
use super::packet::{Matcher, Packet};
use super::scan::Context;
use super::snapshot::Snapshot;
use crate::shed::Shed;
use crate::span::Span;

/// A match, or a packet that does not match and tells of losses before it.
#[derive(Clone, Copy)]
pub struct FoundPacket {
    pub time_ns: i64,
    at: u64,
    frame_at: u32,
    frame_len: u32,
    pub interface: u32,
    original_len: u32,
    flags: u32,
    pub matches: bool,
    pub dropped: u64,
    shed: u32,
}

/// Where a piece lies, which is enough to read it again.
#[derive(Clone)]
pub struct PiecePlace {
    /// Index of the segment, or of the capture file, in its snapshot.
    pub segment: usize,
    pub begin: u64,
    pub len: u64,
    /// What has to be known to read a piece of a capture file.
    pub context: Option<Context>,
}

/// The packets that were found in a piece and did not go out yet, in time order.
pub struct FoundPackets {
    place: PiecePlace,
    frames: Vec<u8>,
    packets: Vec<FoundPacket>,
    next: usize,
}

impl FoundPackets {
    /// Returns where the next packet stands in the answer; `None` where none is left.
    pub fn key(&self) -> Option<Key> {
        let found = self.peek()?;
        Some(Key { time_ns: found.time_ns, segment: self.place.segment, at: found.at })
    }

    pub fn peek(&self) -> Option<&FoundPacket> {
        self.packets.get(self.next)
    }

    pub fn take(&mut self) -> Option<FoundPacket> {
        let found = self.peek().copied();
        self.next += 1;
        found
    }

    /// Leaves out what comes before a key.
    pub fn skip_to(&mut self, key: Key) {
        let before = |f: &FoundPacket| (f.time_ns, f.at) < (key.time_ns, key.at);
        self.next = self.packets.partition_point(before);
    }

    /// Returns the memory that the packets take, in bytes.
    pub fn bytes(&self) -> usize {
        self.frames.capacity() + self.packets.capacity() * size_of::<FoundPacket>()
    }

    pub fn into_place(self) -> PiecePlace {
        self.place
    }

    pub fn packet(&self, found: &FoundPacket, link: LinkType) -> Packet<'_> {
        Packet {
            time_ns: found.time_ns,
            interface: found.interface,
            link,
            original_len: found.original_len,
            frame: &self.frames[found.frame_at as usize..][..found.frame_len as usize],
            flags: found.flags,
            dropped: found.dropped,
            shed: found.shed,
        }
    }
}

/// What a piece gave.
pub struct Gathered {
    /// `None` where nothing was found.
    pub packets: Option<FoundPackets>,
    pub matches: u64,
    /// What was shed of the packets that match.
    pub shed: Shed,
    /// Losses that packets within the span tell of.
    pub dropped: u64,
    /// Losses that statistics blocks tell of.
    pub told: u64,
}

/// Gathers what is found in a piece, block by block.
pub struct Collector<'a> {
    snapshot: &'a Snapshot,
    /// For each interface id of the segment, the index into the snapshot's interfaces.
    interfaces: &'a [u32],
    span: Span,
    /// Whether packets are kept, or only counted.
    keep: bool,
    frames: Vec<u8>,
    packets: Vec<FoundPacket>,
    matches: u64,
    shed: Shed,
    dropped: u64,
    told: u64,
}

impl<'a> Collector<'a> {
    pub fn new(snapshot: &'a Snapshot, interfaces: &'a [u32], span: Span, keep: bool) -> Self {
        Self {
            snapshot,
            interfaces,
            span,
            keep,
            frames: Vec::new(),
            packets: Vec::new(),
            matches: 0,
            shed: Shed::default(),
            dropped: 0,
            told: 0,
        }
    }

    /// Takes in the block at `at`. An error says why the block is damaged.
    pub fn take(
        &mut self,
        at: u64,
        record: &Record<'_>,
        matcher: &impl Matcher,
    ) -> Result<(), &'static str> {
        let block = match record {
            Record::Packet(block) => block,
            Record::Statistics(statistics) => {
                self.told += statistics.dropped.unwrap_or(0);
                return Ok(());
            }
            Record::Other(_) => return Ok(()),
            Record::Section(_) | Record::Interface(_) => {
                return Err("a header in the middle of a segment");
            }
        };
        let Some(&interface) = self.interfaces.get(block.interface as usize) else {
            return Err("a packet of an interface that was not described");
        };
        let Ok(time_ns) = i64::try_from(block.timestamp) else {
            return Err("a packet of a time that cannot be");
        };
        let packet = Packet {
            time_ns,
            interface,
            link: self.snapshot.interfaces[interface as usize].link,
            original_len: block.original_len,
            frame: block.frame,
            flags: block.flags,
            dropped: block.dropped,
            shed: block.shed,
        };
        self.packet(at, &packet, matcher);
        Ok(())
    }

    /// Takes in a packet whose block lies at `at`.
    pub fn packet(&mut self, at: u64, packet: &Packet<'_>, matcher: &impl Matcher) {
        if !self.span.contains(packet.time_ns) {
            return;
        }
        self.dropped += packet.dropped;
        let matches = matcher.matches(packet);
        self.matches += u64::from(matches);
        if matches {
            self.shed.add_packet(packet.shed);
        }
        if !self.keep || !matches && packet.dropped == 0 {
            return;
        }
        let frame = if matches { packet.frame } else { &[] };
        self.packets.push(FoundPacket {
            time_ns: packet.time_ns,
            at,
            frame_at: self.frames.len() as u32,
            frame_len: frame.len() as u32,
            interface: packet.interface,
            original_len: packet.original_len,
            flags: packet.flags,
            matches,
            dropped: packet.dropped,
            shed: packet.shed,
        });
        self.frames.extend_from_slice(frame);
    }

    /// Returns what was found, in time order; packets of the same time keep the order of their
    /// places.
    pub fn finish(mut self, place: PiecePlace) -> Gathered {
        self.packets.sort_by_key(|f| f.time_ns);
        self.packets.shrink_to_fit();
        self.frames.shrink_to_fit();
        let found = FoundPackets { place, frames: self.frames, packets: self.packets, next: 0 };
        let is_empty = found.packets.is_empty();
        Gathered {
            packets: (!is_empty).then_some(found),
            matches: self.matches,
            shed: self.shed,
            dropped: self.dropped,
            told: self.told,
        }
    }
}
