//! What does an index thread do? It looks at packets in blocks where they lie in the rings, and
//! leaves to the merge thread what may wait for a disk.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

use tapdeck_packet::ring::Hold;
use tapdeck_packet::watch::{beat, waiting, watch};

use super::task::{BlockPlace, IndexerSetup, Indexing, Links, SegmentEnd, Task, Work};
use crate::format::index::Builder;
use crate::format::name::SegmentName;
use crate::writing::totals::Totals;

/// What the writer tells an index thread.
pub(super) enum Job {
    Begin(SegmentName),
    Block(BlockPlace, Option<Box<dyn Hold>>),
    /// A part of the segment will not be indexed.
    Skip,
    /// The segment has ended. One index thread has the receiver that hears when it is closed.
    End(Option<Receiver<SegmentEnd>>),
}

pub(super) struct IndexThread {
    indexing: Indexing,
    links: Links,
    totals: Arc<Totals>,
    /// Bytes of the blocks that this thread has yet to deal with.
    queued: Arc<AtomicU64>,
    tasks: SyncSender<Task>,
    segment: Option<SegmentName>,
    /// The chunk being made, once this thread has a block of the segment.
    builder: Option<Builder>,
    /// Blocks of which this thread did not see the bytes.
    missed: Vec<BlockPlace>,
}

impl IndexThread {
    pub fn new(work: &IndexerSetup, tasks: SyncSender<Task>, queued: Arc<AtomicU64>) -> Self {
        Self {
            indexing: work.indexing.clone(),
            links: work.links.clone(),
            totals: work.totals.clone(),
            queued,
            tasks,
            segment: None,
            builder: None,
            missed: Vec::new(),
        }
    }

    pub fn run(mut self, queue: &Receiver<Job>) {
        watch("tapdeck-index");
        loop {
            beat();
            let job = match queue.try_recv() {
                Err(TryRecvError::Empty) => {
                    // This thread has time now, and so the merge thread may read what was missed.
                    self.tell_missed();
                    waiting(|| queue.recv()).ok()
                }
                other => other.ok(),
            };
            match job {
                Some(Job::Begin(name)) => self.segment = Some(name),
                Some(Job::Block(place, hold)) => {
                    self.look(place, hold);
                    // A block that keeps this thread waiting counts, so that others go elsewhere.
                    Totals::subtract(&self.queued, place.on_disk);
                }
                Some(Job::Skip) => self.tell(Work::Skip),
                Some(Job::End(closed)) => {
                    self.tell_chunk();
                    self.tell_missed();
                    self.tell(Work::End(closed));
                    (self.segment, self.builder) = (None, None);
                }
                None => break,
            }
        }
    }

    fn look(&mut self, place: BlockPlace, hold: Option<Box<dyn Hold>>) {
        let Some(segment) = &self.segment else { return };
        let mut hold = hold.filter(|_| !self.indexing.control.is_hurried());
        let bytes = hold.as_mut().and_then(|hold| hold.bytes()?.get(..place.len));
        let Some(bytes) = bytes else {
            self.missed.push(place);
            return;
        };
        let links = &self.links;
        let builder = self.builder.get_or_insert_with(|| Builder::new(segment, links.get()));
        builder.add(place.offset, bytes, place.on_disk);
        // The block is let go before anything that may have to wait.
        drop(hold);
        Totals::subtract(&self.totals.index_behind_bytes, place.on_disk);
        if place.ends_granule {
            builder.end_granule();
            if builder.is_full() {
                self.tell_chunk();
            }
        }
    }

    fn tell_chunk(&mut self) {
        if let Some(builder) = self.builder.as_mut().filter(|builder| !builder.is_empty()) {
            let chunk = builder.chunk();
            self.tell(Work::Chunk(chunk));
        }
    }

    fn tell_missed(&mut self) {
        if !self.missed.is_empty() {
            let missed = std::mem::take(&mut self.missed);
            self.tell(Work::Missed(missed));
        }
    }

    fn tell(&self, work: Work) {
        if let Some(segment) = self.segment.clone() {
            // The merge thread ends only when all senders are dropped.
            let _ = waiting(|| self.tasks.send(Task { segment, work }));
        }
    }
}
