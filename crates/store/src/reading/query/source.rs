//! What has still to be looked at, and what does a look at it give? Here are the words for it; the
//! looking is done by [`super::reader`].

use std::sync::Arc;

use super::note::Note;
use super::order::{Key, Rank};
use super::piece::{FoundPackets, Gathered, PiecePlace};
use super::progress::Progress;
use super::scan::Context;
use crate::format::index::Quarter;
use crate::format::unseen::UnseenSpan;
use crate::io::Object;

/// A part of a segment, or of a capture file, that is still to be looked at. Its [`Rank`] says
/// where it begins.
pub enum Unread {
    /// All of a segment or capture file, of which no more is known than how it begins and ends.
    Whole,
    /// Segments that an overview covers, by its index in the snapshot. The rank is that of the
    /// first of them.
    Overview(usize),
    /// What is not indexed, up to `end`. The segment or file is open where
    /// a part of it was read.
    Stretch {
        end: u64,
        /// What has to be known where it begins, in a capture file.
        context: Option<Context>,
        object: Option<Arc<dyn Object>>,
    },
    /// Quarters of granules one after the other that the index names.
    Quarters(Vec<Quarter>),
    /// What was read before and had to be forgotten, from a packet on; or what is known from the
    /// index in sum, all of it. It was counted already.
    Again { len: u64, from: Option<Key>, context: Option<Context> },
}

/// An unread part and where it stands among the others.
pub type Work = (Rank, Unread);

impl Unread {
    /// Returns about how many bytes one look at it reads.
    pub fn bytes(&self, piece_bytes: usize) -> usize {
        match self {
            Self::Whole | Self::Overview(_) => 0,
            Self::Stretch { .. } => piece_bytes,
            Self::Quarters(quarters) => quarters.iter().map(|quarter| quarter.len as usize).sum(),
            Self::Again { len, .. } => *len as usize,
        }
    }

    /// Forgets packets that were found, for want of memory. `from` is the key of the next of them.
    pub fn forgotten(packets: FoundPackets, from: Key) -> Work {
        let PiecePlace { segment, begin, len, context } = packets.into_place();
        let rank = Rank { bound_ns: from.time_ns, segment, begin };
        (rank, Self::Again { len, from: Some(from), context })
    }
}

/// What an index says of losses in a granule that holds no match.
pub struct Loss {
    /// Where the granule begins, and the time of its first packet.
    pub rank: Rank,
    pub last_ns: i64,
    pub len: u64,
    /// Packets lost, by index of the snapshot's interface.
    pub dropped: Vec<(u32, u64)>,
}

impl Loss {
    /// Returns what has to be read to know which packets the losses come before.
    pub fn open(&self) -> Work {
        (self.rank, Unread::Again { len: self.len, from: None, context: None })
    }
}

/// What a look at an unread part gives.
#[derive(Default)]
pub struct Looked {
    /// What the look adds to the query's progress.
    pub progress: Progress,
    /// Losses that statistics tell of.
    pub told: u64,
    pub packets: Option<FoundPackets>,
    /// What has to be looked at now.
    pub unread: Vec<Work>,
    pub losses: Vec<Loss>,
    /// What went unseen, with indexes into the snapshot's interfaces.
    pub unseen: Vec<UnseenSpan>,
    pub notes: Vec<Note>,
    /// Where the last whole block ends of what was read, if something stands behind it.
    pub cut_at: Option<u64>,
    /// A capture file describes an interface that the snapshot does not have.
    pub is_late: bool,
}

impl From<Gathered> for Looked {
    fn from(gathered: Gathered) -> Self {
        let Gathered { packets, matches, shed, dropped, told } = gathered;
        let progress = Progress { matches, shed, dropped, ..Progress::default() };
        Self { progress, told, packets, ..Self::default() }
    }
}
