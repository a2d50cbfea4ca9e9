//! A piece of a segment, and the matches in it.

use std::collections::BTreeMap;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::Record;

use super::snapshot::{Segment, Snapshot};
use super::{Matcher, Packet, Span};

/// Where a packet stands in the answer: by time, and by place where times are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub time_ns: i64,
    /// Index of the segment in its snapshot.
    pub segment: usize,
    /// Of the packet's block in the segment.
    pub at: u64,
}

/// A match.
#[derive(Clone, Copy)]
pub struct Found {
    time_ns: i64,
    at: u64,
    frame_at: u32,
    frame_len: u32,
    pub interface: u32,
    original_len: u32,
    flags: u32,
    dropped: u64,
}

/// The matches of a piece, in time order.
#[derive(Default)]
pub struct Packets {
    frames: Vec<u8>,
    found: Vec<Found>,
    next: usize,
}

impl Packets {
    pub fn len(&self) -> usize {
        self.found.len()
    }
}

pub struct Granule {
    segment: usize,
    pub begin: u64,
    pub len: u32,
    /// Of each interface that had losses before the granule which no match has told.
    pub untold: Vec<(u32, u64)>,
    packets: Packets,
}

impl Granule {
    /// `None` without matches.
    pub fn new(
        segment: usize,
        begin: u64,
        len: u32,
        untold: Vec<(u32, u64)>,
        packets: Packets,
    ) -> Option<Self> {
        (packets.len() > 0).then_some(Self { segment, begin, len, untold, packets })
    }

    /// Of the next match; `None` where there is none left, or none in memory.
    pub fn key(&self) -> Option<Key> {
        let found = self.packets.found.get(self.packets.next)?;
        Some(Key { time_ns: found.time_ns, segment: self.segment, at: found.at })
    }

    /// Memory that its matches take.
    pub fn bytes(&self) -> usize {
        self.packets.frames.capacity() + self.packets.found.capacity() * size_of::<Found>()
    }

    pub fn forget(&mut self) {
        self.packets = Packets::default();
    }

    /// Puts matches that were forgotten back, from `key` on.
    pub fn fill(&mut self, packets: Packets, key: Key) {
        self.packets = packets;
        let before = |f: &Found| (f.time_ns, f.at) < (key.time_ns, key.at);
        self.packets.next = self.packets.found.partition_point(before);
    }

    /// The next match.
    pub fn take(&mut self) -> Option<Found> {
        let found = self.packets.found.get(self.packets.next).copied();
        self.packets.next += 1;
        found
    }

    pub fn packet(&self, found: &Found, link: LinkType) -> Packet<'_> {
        Packet {
            time_ns: found.time_ns,
            interface: found.interface,
            link,
            original_len: found.original_len,
            frame: &self.packets.frames[found.frame_at as usize..][..found.frame_len as usize],
            flags: found.flags,
            dropped: found.dropped,
        }
    }
}

/// Gathers the matches of a piece, block by block.
pub struct Collector<'a> {
    snapshot: &'a Snapshot,
    segment: &'a Segment,
    span: Span,
    untold: &'a mut BTreeMap<u32, u64>,
    packets: Packets,
    /// Packets that were dropped before those of the piece that are inside the span.
    pub dropped: u64,
}

impl<'a> Collector<'a> {
    pub fn new(
        snapshot: &'a Snapshot,
        segment: &'a Segment,
        span: Span,
        untold: &'a mut BTreeMap<u32, u64>,
    ) -> Self {
        Self { snapshot, segment, span, untold, packets: Packets::default(), dropped: 0 }
    }

    /// Takes in the block at `at`.
    pub fn take(
        &mut self,
        at: u64,
        record: Record<'_>,
        matcher: &impl Matcher,
    ) -> Result<(), &'static str> {
        let block = match record {
            Record::Packet(block) => block,
            Record::Statistics(_) | Record::Other(_) => return Ok(()),
            Record::Section(_) | Record::Interface(_) => {
                return Err("a header in the middle of a segment");
            }
        };
        let Some(&interface) = self.segment.head.interfaces.get(block.interface as usize) else {
            return Err("a packet of an interface that was not described");
        };
        let Ok(time_ns) = i64::try_from(block.timestamp) else {
            return Err("a packet of a time that cannot be");
        };
        if !self.span.contains(time_ns) {
            return Ok(());
        }
        self.dropped += block.dropped;
        let packet = Packet {
            time_ns,
            interface,
            link: self.snapshot.interfaces[interface as usize].link,
            original_len: block.original_len,
            frame: block.frame,
            flags: block.flags,
            dropped: block.dropped,
        };
        if !matcher.matches(&packet) {
            if packet.dropped > 0 {
                *self.untold.entry(interface).or_default() += packet.dropped;
            }
            return Ok(());
        }
        let untold = self.untold.remove(&interface).unwrap_or(0);
        self.packets.found.push(Found {
            time_ns,
            at,
            frame_at: self.packets.frames.len() as u32,
            frame_len: packet.frame.len() as u32,
            interface,
            original_len: packet.original_len,
            flags: packet.flags,
            dropped: packet.dropped + untold,
        });
        self.packets.frames.extend_from_slice(packet.frame);
        Ok(())
    }

    /// The matches in time order; equal times keep the order of their places.
    pub fn finish(mut self) -> Packets {
        self.packets.found.sort_by_key(|f| f.time_ns);
        self.packets.found.shrink_to_fit();
        self.packets.frames.shrink_to_fit();
        self.packets
    }
}
