//! What does the writer tell the index thread, and the index thread the merge thread? Names and
//! places, and how segments end; bytes of packets only within a chunk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tapdeck_packet::link::LinkType;

use super::sizes::Sizes;
use crate::format::name::SegmentName;
use crate::writing::log::Log;
use crate::writing::totals::Totals;
use crate::writing::writer::WriterControl;

/// How an index is made.
#[derive(Clone)]
pub struct Indexing {
    /// Pins the threads to this processor.
    pub cpu: Option<u32>,
    /// The writer's control: once the writer is hurried, what is not indexed yet is left so.
    pub control: Arc<WriterControl>,
}

/// What the index thread, the merge thread and the overview thread work with.
#[derive(Clone)]
pub(crate) struct IndexerSetup {
    pub dir: PathBuf,
    pub indexing: Indexing,
    /// The link types, by interface id.
    pub links: Vec<LinkType>,
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
}

/// How a segment was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    pub len: u64,
    /// Packets lost, as the segment's statistics tell.
    pub dropped: u64,
}

/// Work that the index thread leaves to the merge thread.
pub(super) enum Task {
    Begin(SegmentName),
    Chunk(Vec<u8>),
    Missed(Vec<BlockPlace>),
    Skip,
    End(Receiver<SegmentEnd>),
}
