//! Where in a segment may packets with a certain key be? `docs/FORMAT.md` specifies the files.

use std::io;
use std::ops::Range;
use std::path::Path;

use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;

use crate::SegmentName;
use crate::query::Span;

/// A piece of a segment: whole blocks, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    /// Where it lies in the segment.
    pub place: Range<u64>,
    /// The earliest and the latest of its packets, UTC; of those that have a time.
    pub first_ns: i64,
    pub last_ns: i64,
    pub packets: u32,
    /// CRC32C of its bytes.
    pub checksum: u32,
    /// It holds packets that may have keys which were not found.
    pub opaque: bool,
    /// By interface id, what its packets say of losses before them.
    pub dropped: Vec<(u32, u64)>,
    /// Whether it may hold what was asked for. Others are told only for what they know of losses.
    pub wanted: bool,
}

/// What the index knows of its segment as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub packets: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    /// Lost, as the segment's statistics tell; 0 while it is written.
    pub dropped: u64,
    /// The segment is closed and all its packets are indexed.
    pub complete: bool,
}

/// The index of a segment, opened for reading.
#[derive(Debug)]
pub(crate) struct Index {
    summary: Summary,
}

impl Index {
    /// Opens what there is for a segment of `segment_len` bytes: its index, or the log of one that is written. `None` where there is
    /// none, or none that can be used.
    pub fn open(_dir: &Path, _name: &SegmentName, _segment_len: u64) -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The parts of the segment that are indexed, ascending, none next to another. What lies between and behind them, within the segment's
    /// body, has to be read. Of a complete index one part: there is nothing else to be read.
    pub fn indexed(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// The granules that may hold packets of `plan` within `span`, and those inside it that tell of losses; in the order of the segment. An error
    /// means that the index is damaged: it must not be believed, and the segment be read instead.
    pub fn select(&mut self, _plan: &Plan, _span: Span) -> io::Result<Vec<Granule>> {
        Ok(Vec::new())
    }

    /// Bytes of the index that were read so far.
    pub fn bytes_read(&self) -> u64 {
        0
    }
}

/// Makes the index of a stretch of a segment, from blocks as they come. Bounded in memory.
pub(crate) struct Builder {
    covered: u64,
}

impl Builder {
    /// `links` has the link type of each interface id.
    pub fn new(_links: &[LinkType]) -> Self {
        Self { covered: 0 }
    }

    /// Takes in whole pcapng blocks, which lie in the segment from `offset` on and take `on_disk` bytes there with the fill behind them.
    pub fn add(&mut self, _offset: u64, blocks: &[u8], on_disk: u64) {
        debug_assert!(blocks.len() as u64 <= on_disk);
        self.covered += on_disk;
    }

    /// Whether it holds as much as a chunk should.
    pub fn is_full(&self) -> bool {
        self.covered >= 32 << 20
    }

    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// What was taken in, as a chunk of an index log, a multiple of a page long. The builder is empty then.
    pub fn chunk(&mut self) -> Vec<u8> {
        self.covered = 0;
        Vec::new()
    }
}
