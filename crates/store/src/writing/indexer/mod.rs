//! Makes the index while packets are recorded, and never in their way.
//!
//! When the writer has put a block on disk, the block still lies in the ring and most likely in a
//! processor's cache. It is handed on just so, by a [`Hold`]: an **index** thread looks at every
//! packet in it and then lets it go. No byte is copied, and the ring waits for the blocks that are
//! being looked at, no more: a hold that no index thread comes to in time lapses, and the block is
//! **missed**. So an indexer that is too slow costs the index its freshness, and the producers at
//! most a quarter of the ring and the blocks that are being looked at.
//!
//! There may be several index threads ([`index_thread`]), each with chunks of its own. Blocks are
//! dealt out as they come, whatever their ring: to the thread that has least to do, to the first
//! where several have nothing. Granules end where the deal says, so the index is the same however
//! many threads made it. Blocks that are smaller than a granule, as slow traffic leaves them, go to
//! one thread until they are one together.
//!
//! The **merge** thread ([`merge_thread`]) does all that may wait for a disk: it appends chunks to
//! the index's log, merges the log into the index once the segment is closed, and reads what was
//! missed from the segment when nothing else is to be done. Where it does not keep up, the index
//! threads wait for it, and miss more blocks, which cost only their place. That bounds all memory.
//!
//! The **overview** thread ([`overview_thread`]) makes an overview of each 64 segments, when nobody
//! else wants the processor or the disk.
//!
//! The index is a convenience: whatever goes wrong with it is told once a segment, and queries read
//! that segment instead.

mod index_thread;
mod merge_thread;
mod missed;
mod overview_thread;
mod sizes;
mod task;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use tapdeck_packet::ring::Hold;
use tapdeck_packet::watch::waiting;

use crate::format::index::GRANULE;
use crate::format::name::SegmentName;
use crate::io::Io;
use crate::writing::log::Log;
use crate::writing::totals::Totals;
use index_thread::{IndexThread, Job};
use merge_thread::MergeThread;
use overview_thread::OverviewThread;
pub(crate) use sizes::Sizes;
pub use task::Indexing;
pub(crate) use task::{BlockPlace, IndexerSetup, Links, SegmentEnd};

/// Tasks that may wait for the merge thread: with the chunks of up to 32 MiB of packets that is
/// little memory, and enough for it to close a segment meanwhile.
const TASKS: usize = 16;

/// The writer's end of the threads.
pub(crate) struct Indexer {
    walkers: Vec<Walker>,
    /// Which of them has the granule that the last block belongs to.
    current: usize,
    /// Bytes of that granule so far; 0 where the next block begins another one.
    granule_bytes: u64,
    threads: Vec<JoinHandle<()>>,
    totals: Arc<Totals>,
    /// Whether a part of the segment being written was skipped.
    has_skipped: bool,
    /// Says that no more overviews shall be made.
    ends_overviews: Arc<AtomicBool>,
}

/// The writer's end of one index thread.
struct Walker {
    /// The queue of jobs, which takes some 100 bytes for each block of a ring; `None` when nothing
    /// more comes.
    jobs: Option<Sender<Job>>,
    /// Bytes of the blocks that the thread has yet to deal with.
    queued: Arc<AtomicU64>,
}

impl Indexer {
    /// How many bytes may wait to be indexed, which bounds the list of them. What is written beyond
    /// that stays without an index.
    const MOST_BEHIND: u64 = 16 << 30;

    /// Starts the threads.
    pub fn start<I: Io>(io: Arc<I>, work: IndexerSetup) -> io::Result<Self> {
        let (tasks, merge_queue) = sync_channel(TASKS);
        let totals = work.totals.clone();
        let (cpu, count) = (work.indexing.cpu, work.indexing.threads.get());
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(f)
        };
        let (mut walkers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (jobs, queue) = channel();
            let queued = Arc::<AtomicU64>::default();
            let index_thread = IndexThread::new(&work, tasks.clone(), queued.clone());
            // What is wrong with the processor is told once.
            let log = (number == 0).then(|| work.log.clone());
            let index = move || {
                pin(cpu, log.as_ref());
                index_thread.run(&queue);
            };
            threads.push(spawn("tapdeck-index", Box::new(index))?);
            walkers.push(Walker { jobs: Some(jobs), queued });
        }
        let ends_overviews: Arc<AtomicBool> = Arc::default();
        let (indexed, overview_queue) = channel();
        let overview_thread =
            OverviewThread { io: io.clone(), work: work.clone(), stops: ends_overviews.clone() };
        let merge_thread = MergeThread::new(io, work, indexed);
        let merge = move || {
            pin(cpu, None);
            merge_thread.run(&merge_queue);
        };
        let overview = move || {
            pin(cpu, None);
            overview_thread.run(&overview_queue);
        };
        threads.push(spawn("tapdeck-merge", Box::new(merge))?);
        threads.push(spawn("tapdeck-overview", Box::new(overview))?);
        Ok(Self {
            walkers,
            current: 0,
            granule_bytes: 0,
            threads,
            totals,
            has_skipped: false,
            ends_overviews,
        })
    }

    /// Tells that a segment begins.
    pub fn begin(&mut self, name: &SegmentName) {
        (self.has_skipped, self.granule_bytes) = (false, 0);
        for walker in &self.walkers {
            walker.send(Job::Begin(name.clone()));
        }
    }

    /// Tells that a block was written to the segment, at `offset`: `len` bytes of packets, and with
    /// the fill behind them `on_disk` bytes. `hold` keeps its bytes, if they still can be had.
    pub fn block(&mut self, offset: u64, len: usize, on_disk: u64, hold: Option<Box<dyn Hold>>) {
        if self.totals.index_behind_bytes.load(Relaxed) > Self::MOST_BEHIND {
            if !std::mem::replace(&mut self.has_skipped, true) {
                self.walkers[0].send(Job::Skip);
            }
            self.granule_bytes = 0;
            return;
        }
        if self.granule_bytes == 0 {
            let queued = |at: &usize| self.walkers[*at].queued.load(Relaxed);
            self.current = (0..self.walkers.len()).min_by_key(queued).unwrap_or(0);
        }
        self.granule_bytes += on_disk;
        let ends_granule = self.granule_bytes >= GRANULE;
        if ends_granule {
            self.granule_bytes = 0;
        }
        let walker = &self.walkers[self.current];
        Totals::add(&self.totals.index_behind_bytes, on_disk);
        Totals::add(&walker.queued, on_disk);
        walker.send(Job::Block(BlockPlace { offset, len, on_disk, ends_granule }, hold));
    }

    /// Tells that nothing more is written to the segment. Whoever closes it tells so to the sender
    /// that is returned.
    pub fn end(&mut self) -> SyncSender<SegmentEnd> {
        let (tell, closed) = sync_channel(1);
        let mut closed = Some(closed);
        for walker in &self.walkers {
            walker.send(Job::End(closed.take()));
        }
        tell
    }

    /// Waits until everything is indexed, unless somebody is in a hurry. Segments must get closed
    /// meanwhile.
    pub fn finish(&mut self) {
        self.ends_overviews.store(true, Relaxed);
        self.walkers.iter_mut().for_each(|walker| walker.jobs = None);
        for thread in self.threads.drain(..) {
            let _ = waiting(|| thread.join());
        }
    }
}

impl Walker {
    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only when this sender is dropped.
            let _ = jobs.send(job);
        }
    }
}

fn pin(cpu: Option<u32>, log: Option<&Log>) {
    if let Some(cpu) = cpu
        && let Err(e) = pin_to(cpu)
        && let Some(log) = log
    {
        log(&format!("the index cannot be made on CPU {cpu} alone: {e}"));
    }
}

/// Keeps the calling thread on one processor.
fn pin_to(cpu: u32) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu as usize >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu as usize);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
