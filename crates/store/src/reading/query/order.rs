//! In which order do packets go out, and in which order is what may hold them looked at?

/// Where a packet stands in the answer: by time, and by place where times are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub time_ns: i64,
    /// Index of the segment, or of the capture file, in its snapshot.
    pub segment: usize,
    /// Where the packet's block begins in the segment.
    pub at: u64,
}

/// Where something stands among what has still to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The earliest time that may be in it.
    pub bound_ns: i64,
    /// Index of the segment, or of the capture file, in its snapshot.
    pub segment: usize,
    /// Where it begins in the segment.
    pub begin: u64,
}
