//! What does the writer tell the index threads, and they the merge thread? Names and
//! places, and how segments end; bytes of packets only within a chunk.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use tapdeck_packet::link::LinkType;

use super::sizes::Sizes;
use crate::format::name::SegmentName;
use crate::writing::control::WriterControl;
use crate::writing::log::Log;
use crate::writing::totals::Totals;

/// How an index is made.
#[derive(Clone)]
pub struct Indexing {
    /// How many threads look at packets. Each takes about 1 MiB of memory while a segment is
    /// written, and at most 20 MiB where no two packets are alike.
    pub threads: NonZeroUsize,
    /// Pins the threads to this processor.
    pub cpu: Option<u32>,
    /// The writer's control: once the writer is hurried, what is not indexed yet is left so.
    pub control: Arc<WriterControl>,
}

/// The link types, by interface id: those that are there stay what they are, and others may come.
#[derive(Clone)]
pub(crate) struct Links(Arc<Mutex<Vec<LinkType>>>);

impl Links {
    pub fn of(links: Vec<LinkType>) -> Self {
        Self(Arc::new(Mutex::new(links)))
    }

    /// Takes in interfaces that came, before any of their packets.
    pub fn set(&self, links: Vec<LinkType>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = links;
    }

    pub fn get(&self) -> Vec<LinkType> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the index threads, the merge thread and the overview thread work with.
#[derive(Clone)]
pub(crate) struct IndexerSetup {
    pub dir: PathBuf,
    pub indexing: Indexing,
    pub links: Links,
    pub totals: Arc<Totals>,
    pub sizes: Arc<Sizes>,
    pub log: Log,
}

/// Where a block of a ring lies in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub offset: u64,
    /// Bytes of its packets.
    pub len: usize,
    /// Bytes of its packets and of the fill behind them.
    pub on_disk: u64,
    /// Whether a granule ends with the block. That is settled where blocks are dealt out, so that
    /// the granules of a segment are the same whoever indexes which of them.
    pub ends_granule: bool,
}

/// How a segment was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub len: u64,
    /// Packets lost, as the segment's statistics tell.
    pub dropped: u64,
}

/// Work that an index thread leaves to the merge thread.
pub(super) struct Task {
    pub segment: SegmentName,
    pub work: Work,
}

pub(super) enum Work {
    Chunk(Vec<u8>),
    Missed(Vec<BlockPlace>),
    Skip,
    /// The index thread has nothing more for the segment. One of them hears when it is closed.
    End(Option<Receiver<SegmentEnd>>),
}
