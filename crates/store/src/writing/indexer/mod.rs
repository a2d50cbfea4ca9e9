//! Makes the index while packets are recorded, and never in their way.
//!
//! When the writer has put a block on disk, the block still lies in the ring and most likely in a
//! processor's cache. It is handed on just so, by a [`Hold`]: the **index** thread looks at every
//! packet in it and then lets it go. No byte is copied, and the ring waits for the one block that
//! is being looked at, no more: a hold that the index thread does not come to in time lapses, and
//! the block is **missed**. So an indexer that is too slow costs the index its freshness, and the
//! producers at most a quarter of the ring and the block that is being looked at.
//!
//! The **merge** thread ([`merge_thread`]) does all that may wait for a disk: it appends chunks to
//! the index's log, reads what was missed from the segment, and merges the log into the index once
//! the segment is closed. Where it does not keep up, the index thread waits for it, and misses more
//! blocks, which cost only their place. That bounds all memory.
//!
//! The **overview** thread ([`overview_thread`]) makes an overview of each 64 segments, when nobody
//! else wants the processor or the disk.
//!
//! The index is a convenience: whatever goes wrong with it is told once a segment, and queries read
//! that segment instead.

mod merge_thread;
mod overview_thread;
mod sizes;
mod task;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::ring::Hold;
use tapdeck_packet::watch::{beat, waiting, watch};

use crate::format::index::Builder;
use crate::format::name::SegmentName;
use crate::io::Io;
use crate::writing::log::Log;
use crate::writing::totals::Totals;
use merge_thread::MergeThread;
use overview_thread::OverviewThread;
pub(crate) use sizes::Sizes;
pub use task::Indexing;
use task::Task;
pub(crate) use task::{BlockPlace, IndexerSetup, SegmentEnd};

enum Job {
    Begin(SegmentName),
    Block(BlockPlace, Option<Box<dyn Hold>>),
    /// A part of the segment will not be indexed.
    Skip,
    /// The segment has ended; the receiver hears when it is closed.
    End(Receiver<SegmentEnd>),
}

/// Tasks that may wait for the merge thread: with the chunks of up to 32 MiB of packets that is
/// little memory, and enough for it to close a segment meanwhile.
const TASKS: usize = 16;

/// The writer's end of the threads.
pub(crate) struct Indexer {
    /// The queue of jobs, which takes some 100 bytes for each block of a ring.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    totals: Arc<Totals>,
    /// Whether a part of the segment being written was skipped.
    has_skipped: AtomicBool,
    /// Says that no more overviews shall be made.
    ends_overviews: Arc<AtomicBool>,
}

impl Indexer {
    /// How many bytes may wait to be indexed, which bounds the list of them. What is written beyond
    /// that stays without an index.
    const MOST_BEHIND: u64 = 16 << 30;

    /// Starts the threads.
    pub fn start<I: Io>(io: Arc<I>, work: IndexerSetup) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let (tasks, merge_queue) = sync_channel(TASKS);
        let totals = work.totals.clone();
        let index_thread = IndexThread {
            indexing: work.indexing.clone(),
            links: work.links.clone(),
            totals: totals.clone(),
            tasks,
            builder: None,
            missed: Vec::new(),
        };
        let cpu = work.indexing.cpu;
        let log = work.log.clone();
        let index = move || {
            pin(cpu, &log);
            index_thread.run(&queue);
        };
        let ends_overviews: Arc<AtomicBool> = Arc::default();
        let (indexed, overview_queue) = channel();
        let overview_thread =
            OverviewThread { io: io.clone(), work: work.clone(), stops: ends_overviews.clone() };
        let overview = move || {
            if let Some(cpu) = cpu {
                let _ = pin_to(cpu);
            }
            overview_thread.run(&overview_queue);
        };
        let merge_thread = MergeThread::new(io, work, indexed);
        let merge = move || {
            if let Some(cpu) = cpu {
                // The index thread has told what is wrong with it.
                let _ = pin_to(cpu);
            }
            merge_thread.run(&merge_queue);
        };
        let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(f)
        };
        let threads = vec![
            spawn("tapdeck-index", Box::new(index))?,
            spawn("tapdeck-merge", Box::new(merge))?,
            spawn("tapdeck-overview", Box::new(overview))?,
        ];
        let has_skipped = AtomicBool::new(false);
        Ok(Self { jobs: Some(jobs), threads, totals, has_skipped, ends_overviews })
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only when this sender is dropped.
            let _ = jobs.send(job);
        }
    }

    /// Tells that a segment begins.
    pub fn begin(&self, name: SegmentName) {
        self.has_skipped.store(false, Relaxed);
        self.send(Job::Begin(name));
    }

    /// Tells that a block was written to the segment. `hold` keeps its bytes, if they still can be
    /// had.
    pub fn block(&self, place: BlockPlace, hold: Option<Box<dyn Hold>>) {
        if self.totals.index_behind_bytes.load(Relaxed) > Self::MOST_BEHIND {
            if !self.has_skipped.swap(true, Relaxed) {
                self.send(Job::Skip);
            }
            return;
        }
        Totals::add(&self.totals.index_behind_bytes, place.on_disk);
        self.send(Job::Block(place, hold));
    }

    /// Tells that nothing more is written to the segment. Whoever closes it tells so to the sender
    /// that is returned.
    pub fn end(&self) -> SyncSender<SegmentEnd> {
        let (tell, closed) = sync_channel(1);
        self.send(Job::End(closed));
        tell
    }

    /// Waits until everything is indexed, unless somebody is in a hurry. Segments must get closed
    /// meanwhile.
    pub fn finish(&mut self) {
        self.ends_overviews.store(true, Relaxed);
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = waiting(|| thread.join());
        }
    }
}

/// The thread that looks at packets: it reads blocks where they lie in the rings.
struct IndexThread {
    indexing: Indexing,
    links: Vec<LinkType>,
    totals: Arc<Totals>,
    tasks: SyncSender<Task>,
    /// The chunk being made, while a segment is written.
    builder: Option<Builder>,
    /// Blocks of which the index thread did not see the bytes.
    missed: Vec<BlockPlace>,
}

impl IndexThread {
    fn run(mut self, queue: &Receiver<Job>) {
        watch("tapdeck-index");
        loop {
            beat();
            let job = match queue.try_recv() {
                Err(TryRecvError::Empty) => {
                    // The index thread has time now, and so the merge thread may read what was
                    // missed.
                    self.tell_missed();
                    waiting(|| queue.recv()).ok()
                }
                other => other.ok(),
            };
            match job {
                Some(Job::Begin(name)) => {
                    self.builder = Some(Builder::new(&name, self.links.clone()));
                    self.tell(Task::Begin(name));
                }
                Some(Job::Block(place, hold)) => self.look(place, hold),
                Some(Job::Skip) => self.tell(Task::Skip),
                Some(Job::End(closed)) => {
                    self.tell_chunk();
                    self.tell_missed();
                    self.tell(Task::End(closed));
                    self.builder = None;
                }
                None => break,
            }
        }
    }

    fn look(&mut self, place: BlockPlace, hold: Option<Box<dyn Hold>>) {
        let mut hold = hold.filter(|_| !self.indexing.control.is_hurried());
        let bytes = hold.as_mut().and_then(|hold| hold.bytes()?.get(..place.len));
        let (Some(bytes), Some(builder)) = (bytes, &mut self.builder) else {
            self.missed.push(place);
            return;
        };
        builder.add(place.offset, bytes, place.on_disk);
        // The block is let go before anything that may have to wait.
        drop(hold);
        Totals::subtract(&self.totals.index_behind_bytes, place.on_disk);
        if builder.is_full() {
            self.tell_chunk();
        }
    }

    fn tell_chunk(&mut self) {
        if let Some(builder) = self.builder.as_mut().filter(|builder| !builder.is_empty()) {
            let chunk = builder.chunk();
            self.tell(Task::Chunk(chunk));
        }
    }

    fn tell_missed(&mut self) {
        if !self.missed.is_empty() {
            let missed = std::mem::take(&mut self.missed);
            self.tell(Task::Missed(missed));
        }
    }

    fn tell(&self, task: Task) {
        // The merge thread ends only when this sender is dropped.
        let _ = waiting(|| self.tasks.send(task));
    }
}

fn pin(cpu: Option<u32>, log: &Log) {
    if let Some(cpu) = cpu
        && let Err(e) = pin_to(cpu)
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
