//! The thread that does what may take long: sets the next segment aside before it is needed, closes
//! finished ones, and deletes what retention lets go, with its index. The writer never waits for
//! it, unless the next segment is not there in time.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use tapdeck_packet::pcapng::StatisticsBlock;

use crate::format::segment::packets_in;
use crate::format::store::Stored;
use crate::format::store::{NEXT, on_disk};
use crate::io::{Directory, File, Io};
use crate::writing::indexer::{Closed, Sizes};
use crate::writing::live::LiveSegment;
use crate::writing::log::Log;
use crate::writing::retention::Retention;
use crate::writing::totals::Totals;
use crate::writing::writer::Done;

pub(crate) enum Job<F> {
    Prepare,
    /// The disk is full: deletes the oldest segment unless so many bytes are free.
    MakeRoom(u64),
    /// What is being written is the last.
    Last,
    /// Tells somebody that all jobs before are done.
    Tell(Done),
    Close {
        live: LiveSegment<F>,
        statistics: Vec<StatisticsBlock>,
        /// Who wants to hear that it is closed.
        tell: Option<SyncSender<Closed>>,
    },
}

/// What the keeper has ready.
enum Next<F> {
    /// The keeper is at work on the file.
    Coming,
    Ready(F),
    Failed(io::Error),
}

struct Shared<F> {
    next: Mutex<Next<F>>,
    changed: Condvar,
}

/// The writer's end of the thread.
pub(crate) struct Keeper<F> {
    jobs: Option<Sender<Job<F>>>,
    shared: Arc<Shared<F>>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: File> Keeper<F> {
    /// Starts the thread, which at once sets a first segment aside.
    pub fn start<I: Io<File = F>>(io: Arc<I>, work: Work) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let next = Mutex::new(Next::Coming);
        let shared = Arc::new(Shared { next, changed: Condvar::new() });
        let thread = std::thread::Builder::new().name("tapdeck-keeper".into()).spawn({
            let shared = shared.clone();
            move || Thread { io, shared, work, last: false }.run(&queue)
        })?;
        let keeper = Self { jobs: Some(jobs), shared, thread: Some(thread) };
        keeper.send(Job::Prepare);
        Ok(keeper)
    }

    pub fn send(&self, job: Job<F>) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only when this sender is dropped.
            let _ = jobs.send(job);
        }
    }

    /// The segment set aside; waits until it is there. After an error another one is tried for.
    pub fn take_next(&self) -> io::Result<F> {
        let mut next = lock(&self.shared.next);
        while matches!(*next, Next::Coming) {
            next = self.shared.changed.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *next, Next::Coming) {
            Next::Ready(file) => Ok(file),
            Next::Failed(e) => {
                self.send(Job::Prepare);
                Err(e)
            }
            Next::Coming => unreachable!("waited for above"),
        }
    }

    /// Does what is left to do, and ends.
    pub fn finish(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread works on.
pub(crate) struct Work {
    pub dir: PathBuf,
    pub segment_bytes: u64,
    pub retention: Retention,
    /// What index files may grow by until they are looked at again.
    pub index_room: u64,
    pub index_sizes: Arc<Sizes>,
    /// Closed segments, oldest first.
    pub closed: Vec<Stored>,
    pub totals: Arc<Totals>,
    pub log: Log,
    pub now_s: Box<dyn Fn() -> i64 + Send>,
}

struct Thread<I: Io> {
    io: Arc<I>,
    shared: Arc<Shared<I::File>>,
    work: Work,
    /// Nothing is set aside or written any more, but perhaps one segment to be closed.
    last: bool,
}

impl<I: Io> Thread<I> {
    fn run(mut self, queue: &Receiver<Job<I::File>>) {
        self.note_stored();
        loop {
            match queue.recv_timeout(Duration::from_secs(1)) {
                Ok(Job::Prepare) => {
                    let next = match self.prepare() {
                        Ok(file) => Next::Ready(file),
                        Err(e) => Next::Failed(e),
                    };
                    *lock(&self.shared.next) = next;
                    self.shared.changed.notify_all();
                }
                Ok(Job::MakeRoom(bytes)) => self.make_room(bytes),
                Ok(Job::Last) => self.last = true,
                Ok(Job::Tell(done)) => done(),
                Ok(Job::Close { live, statistics, tell }) => {
                    let closed = self.close(live, &statistics);
                    if let (Some(tell), Some(closed)) = (tell, closed) {
                        // Whoever has gone wants to know no more.
                        let _ = tell.send(closed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.tidy(0),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let _ = self.io.remove(&self.work.dir.join(NEXT));
        self.tidy(0);
    }

    fn prepare(&mut self) -> io::Result<I::File> {
        self.tidy(self.work.segment_bytes);
        let file = self.io.create(&self.work.dir.join(NEXT)).or_else(|e| {
            if e.kind() != io::ErrorKind::AlreadyExists {
                return Err(e);
            }
            // Left by a segment that could not be begun.
            self.io.remove(&self.work.dir.join(NEXT))?;
            self.io.create(&self.work.dir.join(NEXT))
        })?;
        while let Err(e) = file.preallocate(self.work.segment_bytes) {
            // A call that fails keeps what it got so far.
            file.set_len(0)?;
            let full = is_full(&e);
            if full && self.work.retention.deletes() && self.delete_oldest() {
                continue;
            }
            if full {
                // Written without; the disk may have room for a part.
                break;
            }
            return Err(e);
        }
        Ok(file)
    }

    /// Closes a segment. Tells nothing of one that cannot be found afterwards.
    fn close(
        &mut self,
        live: LiveSegment<I::File>,
        statistics: &[StatisticsBlock],
    ) -> Option<Closed> {
        let from = live.name.clone();
        let packets = live.packets.iter().sum();
        let result = live.close(statistics);
        if let Err(e) = &result {
            if !is_full(e) {
                Totals::add(&self.work.totals.write_errors, 1);
            }
            (self.work.log)(&format!("{from}: could not be closed properly: {e}"));
        }
        let dir = &self.work.dir;
        let mut name = from.closed();
        if let Err(e) = self.io.rename(&from.path(dir), &name.path(dir)) {
            (self.work.log)(&format!("cannot rename {}: {e}", from.path(dir).display()));
            name = from;
        }
        if let Err(e) = self.io.sync_dir(dir) {
            (self.work.log)(&format!("{name}: its name may not outlast a crash: {e}"));
        }
        let meta = std::fs::metadata(name.path(dir)).ok();
        let bytes = meta.as_ref().map_or(0, on_disk);
        self.work.closed.push(Stored { name, bytes, index_bytes: 0, packets: Some(packets) });
        self.tidy(0);
        let told = if result.is_ok() { statistics } else { &[] };
        let dropped = told.iter().map(|s| s.dropped).sum();
        meta.map(|meta| Closed { len: meta.len(), dropped })
    }

    /// Deletes what retention lets go, with `coming` bytes about to be set aside.
    fn tidy(&mut self, coming: u64) {
        let indexes = self.count_indexes();
        let work = &self.work;
        if work.retention.deletes() {
            let space = self.io.space(&work.dir).ok().map(|mut s| {
                s.free = s.free.saturating_sub(coming);
                s
            });
            // What is being written and what is set aside behind it.
            let (ahead, live) =
                if self.last { (0, 0) } else { (2 * work.segment_bytes + work.index_room, 1) };
            let ahead = ahead + indexes;
            let go = work.retention.surplus(&work.closed, ahead, live, (work.now_s)(), space);
            for _ in 0..go {
                self.delete_oldest();
            }
        }
        self.note_stored();
    }

    fn make_room(&mut self, bytes: u64) {
        let short = self.io.space(&self.work.dir).is_ok_and(|s| s.free < bytes);
        if short && self.work.retention.deletes() && self.delete_oldest() {
            self.note_stored();
        }
    }

    /// Takes in what the indexes of closed segments take; gives back what those of others do.
    fn count_indexes(&mut self) -> u64 {
        let closed = &mut self.work.closed;
        self.work.index_sizes.take(|name, bytes| {
            let is_it =
                |s: &&mut Stored| (s.name.number, s.name.began_s) == (name.number, name.began_s);
            let segment = closed.iter_mut().rev().find(is_it);
            segment.map(|segment| segment.index_bytes = bytes).is_some()
        })
    }

    fn note_stored(&mut self) {
        let others = self.count_indexes();
        let closed = &self.work.closed;
        let bytes = closed.iter().map(Stored::bytes_in_all).sum();
        self.work.totals.bytes_stored.store(bytes, Relaxed);
        let index_bytes = others + closed.iter().map(|s| s.index_bytes).sum::<u64>();
        self.work.totals.index_bytes.store(index_bytes, Relaxed);
    }

    /// Deletes the oldest segment; false where there is none.
    fn delete_oldest(&mut self) -> bool {
        if self.work.closed.is_empty() {
            return false;
        }
        let segment = self.work.closed.remove(0);
        let path = segment.name.path(&self.work.dir);
        let packets = segment
            .packets
            .unwrap_or_else(|| packets_in(&Directory::new(&self.work.dir), &segment.name));
        match self.io.remove(&path) {
            Ok(()) => {
                Totals::add(&self.work.totals.segments_deleted, 1);
                Totals::add(&self.work.totals.packets_deleted, packets);
            }
            // Somebody else deleted it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                (self.work.log)(&format!("cannot delete {}: {e}", path.display()));
                return true;
            }
        }
        for path in segment.name.index_paths(&self.work.dir) {
            // Most are not there; one that stays goes when the store is opened again.
            let _ = self.io.remove(&path);
        }
        self.work.index_sizes.forget(&segment.name);
        true
    }
}

pub(crate) fn is_full(e: &io::Error) -> bool {
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)) || e.kind() == io::ErrorKind::WriteZero
}
