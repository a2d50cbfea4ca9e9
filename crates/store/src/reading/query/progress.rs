//! How far has a query come, and what did it cost?

use crate::shed::Shed;

/// How far a query has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of segments that were read, or that did not have to be.
    pub bytes: u64,
    /// Bytes of all segments.
    pub total_bytes: u64,
    /// Matches found so far.
    pub matches: u64,
    /// What was shed of the matches.
    pub shed: Shed,
    /// Packets that the recording says it dropped inside the span: before the packets that were
    /// looked at, or by the statistics of the segments if those tell of more and the whole store
    /// was asked for.
    pub dropped: u64,
    /// Segments looked at.
    pub segments: u64,
    /// Segments looked at that have an index.
    pub indexed: u64,
    /// Segments looked at of which something is not indexed.
    pub scanned: u64,
    /// Granules in the indexes of segments looked at.
    pub granules: u64,
    /// Granules that have to be read.
    pub wanted: u64,
    /// Bytes that were read of indexes.
    pub index_bytes: u64,
    /// Bytes that were read of segments.
    pub read_bytes: u64,
}

impl Progress {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.matches += other.matches;
        self.shed += other.shed;
        self.dropped += other.dropped;
        self.segments += other.segments;
        self.indexed += other.indexed;
        self.scanned += other.scanned;
        self.granules += other.granules;
        self.wanted += other.wanted;
        self.index_bytes += other.index_bytes;
        self.read_bytes += other.read_bytes;
    }
}
