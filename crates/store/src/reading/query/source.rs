//! What has still to be looked at, and what a look at it gives.

use std::fs::File;

use super::piece::{Key, Piece};
use super::scan::Context;
use super::{Note, Progress};

/// Where something stands among what has still to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Nothing in it is from before this.
    pub bound_ns: i64,
    /// Index of the segment, or of the foreign file, in its snapshot.
    pub segment: usize,
    /// Where it begins in the segment.
    pub begin: u64,
}

pub enum Source {
    /// A segment of which no more is known than how it begins.
    Segment,
    /// What is not indexed, up to `end`. The file is open where a part was read.
    Stretch { end: u64, file: Option<File> },
    /// The rest of a foreign file, which is open where a part was read.
    Scan { context: Context, file: Option<File> },
    /// Granules one after the other that the index names: length and CRC32C of each.
    Granules(Vec<(u32, u32)>),
    /// What was read before, or what is known from the index in sum: found again from a packet on,
    /// or all of it. It counts no more.
    Again { len: u64, from: Option<Key>, context: Option<Context> },
}

impl Source {
    /// About how many bytes one look at it reads.
    pub fn bytes(&self, piece_bytes: usize) -> usize {
        match self {
            Self::Segment => 0,
            Self::Stretch { .. } | Self::Scan { .. } => piece_bytes,
            Self::Granules(granules) => granules.iter().map(|(len, _)| *len as usize).sum(),
            Self::Again { len, .. } => *len as usize,
        }
    }
}

pub type Work = (Rank, Source);

/// What an index says of losses in a granule that holds no match.
pub struct Loss {
    /// Of the granule's first packet.
    pub rank: Rank,
    pub last_ns: i64,
    pub len: u64,
    /// By interface of the snapshot.
    pub dropped: Vec<(u32, u64)>,
}

impl Loss {
    /// What tells which packets the losses come before.
    pub fn open(&self) -> Work {
        (self.rank, Source::Again { len: self.len, from: None, context: None })
    }
}

/// What a look at a source gives.
#[derive(Default)]
pub struct Outcome {
    /// What it adds.
    pub progress: Progress,
    /// Losses that statistics tell of.
    pub told: u64,
    pub piece: Option<Piece>,
    /// What has to be looked at now.
    pub sources: Vec<Work>,
    pub losses: Vec<Loss>,
    pub notes: Vec<Note>,
    /// A foreign file describes an interface that the snapshot does not have.
    pub is_late: bool,
}
