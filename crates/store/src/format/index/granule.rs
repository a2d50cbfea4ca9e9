//! What an index knows of a piece of its segment, and of the whole.

use std::ops::Range;

/// A piece of a segment: whole blocks, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    /// Where it lies in the segment.
    pub place: Range<u64>,
    /// The earliest and the latest of its packets, UTC; the first is later than the last where
    /// there are none.
    pub first_ns: i64,
    pub last_ns: i64,
    pub packets: u32,
    /// CRC32C of its bytes.
    pub checksum: u32,
    /// Whether the granule holds packets that may have keys which were not found.
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
    /// The first is later than the last where there are no packets.
    pub first_ns: i64,
    pub last_ns: i64,
    /// Lost, as the segment's statistics tell; 0 while it is written.
    pub dropped: u64,
    /// CRC32C of the segment's bytes that lie in no granule: its head and its end. 0 while it is
    /// written.
    pub outside: u32,
    /// The segment is closed and all its packets are indexed.
    pub complete: bool,
}
