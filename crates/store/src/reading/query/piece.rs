//! A piece of a segment, and what it holds of the answer.

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::Record;

use super::scan::{self, Context};
use super::snapshot::Snapshot;
use super::source::{Outcome, Rank, Source, Work};
use super::{Matcher, Packet, Progress, Span};

/// Where a packet stands in the answer: by time, and by place where times are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub time_ns: i64,
    /// Index of the segment in its snapshot.
    pub segment: usize,
    /// Of the packet's block in the segment.
    pub at: u64,
}

/// A match, or a packet that is none and tells of losses before it.
#[derive(Clone, Copy)]
pub struct Found {
    pub time_ns: i64,
    at: u64,
    frame_at: u32,
    frame_len: u32,
    pub interface: u32,
    original_len: u32,
    flags: u32,
    pub matches: bool,
    pub dropped: u64,
}

/// What was found in a piece, in time order.
#[derive(Default)]
struct Contents {
    frames: Vec<u8>,
    found: Vec<Found>,
    next: usize,
}

pub struct Piece {
    segment: usize,
    begin: u64,
    len: u64,
    /// What has to be known to read it again, in a foreign file.
    context: Option<Context>,
    contents: Contents,
}

impl Piece {
    /// Of what is found next; `None` where there is nothing left.
    pub fn key(&self) -> Option<Key> {
        let found = self.peek()?;
        Some(Key { time_ns: found.time_ns, segment: self.segment, at: found.at })
    }

    pub fn peek(&self) -> Option<&Found> {
        self.contents.found.get(self.contents.next)
    }

    pub fn take(&mut self) -> Option<Found> {
        let found = self.peek().copied();
        self.contents.next += 1;
        found
    }

    /// Leaves out what comes before a key.
    pub fn skip_to(&mut self, key: Key) {
        let before = |f: &Found| (f.time_ns, f.at) < (key.time_ns, key.at);
        self.contents.next = self.contents.found.partition_point(before);
    }

    pub fn set_context(&mut self, context: Context) {
        self.context = Some(context);
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.contents.frames.capacity() + self.contents.found.capacity() * size_of::<Found>()
    }

    /// What has to be read again for what is left; `key` is the piece's own.
    pub fn forget(self, key: Key) -> Work {
        let rank = Rank { bound_ns: key.time_ns, segment: self.segment, begin: self.begin };
        (rank, Source::Again { len: self.len, from: Some(key), context: self.context })
    }

    pub fn packet(&self, found: &Found, link: LinkType) -> Packet<'_> {
        Packet {
            time_ns: found.time_ns,
            interface: found.interface,
            link,
            original_len: found.original_len,
            frame: &self.contents.frames[found.frame_at as usize..][..found.frame_len as usize],
            flags: found.flags,
            dropped: found.dropped,
        }
    }
}

/// Gathers what is found in a piece, block by block.
pub struct Collector<'a> {
    snapshot: &'a Snapshot,
    /// By interface id.
    interfaces: &'a [u32],
    span: Span,
    /// Or only count it.
    keep: bool,
    contents: Contents,
    matches: u64,
    dropped: u64,
    told: u64,
}

impl<'a> Collector<'a> {
    pub fn new(snapshot: &'a Snapshot, interfaces: &'a [u32], span: Span, keep: bool) -> Self {
        let contents = Contents::default();
        Self { snapshot, interfaces, span, keep, contents, matches: 0, dropped: 0, told: 0 }
    }

    /// Takes in the block at `at`.
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
        };
        self.packet(at, &packet, matcher);
        Ok(())
    }

    /// Takes in a packet of a foreign file.
    pub fn take_foreign(&mut self, at: u64, record: &scan::Record<'_>, matcher: &impl Matcher) {
        let scan::Record { time_ns, interface, link, original_len, frame, flags, dropped, .. } =
            *record;
        let packet = Packet { time_ns, interface, link, original_len, frame, flags, dropped };
        self.packet(at, &packet, matcher);
    }

    fn packet(&mut self, at: u64, packet: &Packet<'_>, matcher: &impl Matcher) {
        if !self.span.contains(packet.time_ns) {
            return;
        }
        self.dropped += packet.dropped;
        let matches = matcher.matches(packet);
        self.matches += u64::from(matches);
        if !self.keep || !matches && packet.dropped == 0 {
            return;
        }
        let frame = if matches { packet.frame } else { &[] };
        self.contents.found.push(Found {
            time_ns: packet.time_ns,
            at,
            frame_at: self.contents.frames.len() as u32,
            frame_len: frame.len() as u32,
            interface: packet.interface,
            original_len: packet.original_len,
            flags: packet.flags,
            matches,
            dropped: packet.dropped,
        });
        self.contents.frames.extend_from_slice(frame);
    }

    /// What was found, in time order; equal times keep the order of their places. The piece is
    /// `len` bytes from `begin` on.
    pub fn finish(mut self, segment: usize, begin: u64, len: u64) -> Outcome {
        self.contents.found.sort_by_key(|f| f.time_ns);
        self.contents.found.shrink_to_fit();
        self.contents.frames.shrink_to_fit();
        let is_empty = self.contents.found.is_empty();
        let piece = Piece { segment, begin, len, context: None, contents: self.contents };
        let progress =
            Progress { matches: self.matches, dropped: self.dropped, ..Progress::default() };
        let piece = (!is_empty).then_some(piece);
        Outcome { progress, told: self.told, piece, ..Outcome::default() }
    }
}
