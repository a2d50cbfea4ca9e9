//! The thread that does what may take long: it sets the next segment aside before it is needed,
//! closes finished ones, and has the [`holdings`](super::holdings) delete what retention lets go.
//!
//! The writer never waits for it, unless the next segment is not there in time. It reads no packets
//! and makes no index.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use tapdeck_packet::pcapng::StatisticsBlock;
use tapdeck_packet::printable;
use tapdeck_packet::watch::{beat, waiting, waiting_for_disk, watch};

use crate::format::store::{NEXT, Stored, on_disk};
use crate::io::{File, Io};
use crate::writing::control::Done;
use crate::writing::holdings::{Ahead, Holdings};
use crate::writing::indexer::SegmentEnd;
use crate::writing::live::LiveSegment;
use crate::writing::log::Log;
use crate::writing::retention::Retention;
use crate::writing::totals::Totals;

/// Free space that must be there before a segment is begun on a disk that was full.
pub(crate) const ROOM: u64 = 16 << 20;

pub(crate) enum Job<F> {
    Prepare,
    /// Deletes the oldest segment unless so many bytes are free, as the disk is full.
    MakeRoom(u64),
    /// Says that the segment of this number begins, and what the clock says.
    Begun {
        number: u64,
        utc_ns: u64,
    },
    /// Says that the segment being written is the last.
    Last,
    /// Says how much is kept from now on.
    Retain(Retention),
    /// Tells somebody that all jobs before are done.
    Tell(Done),
    Close {
        live: LiveSegment<F>,
        statistics: Vec<StatisticsBlock>,
        /// The channel of the one that wants to hear that the segment is closed.
        tell: Option<SyncSender<SegmentEnd>>,
    },
}

/// The segment that the keeper sets aside.
enum Next<F> {
    /// The keeper is at work on it.
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
    pub fn start<I: Io<File = F>>(io: Arc<I>, work: KeeperSetup<I>) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let next = Mutex::new(Next::Coming);
        let shared = Arc::new(Shared { next, changed: Condvar::new() });
        let thread = std::thread::Builder::new().name("tapdeck-keeper".into()).spawn({
            let shared = shared.clone();
            move || {
                let thread = Thread { io, shared, work, live_room: 0, next_room: 0, last: false };
                thread.run(&queue);
            }
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

    /// Takes the segment set aside, and waits until it is there. After an error another one is
    /// tried for.
    pub fn take_next(&self) -> io::Result<F> {
        let mut next = lock(&self.shared.next);
        while matches!(*next, Next::Coming) {
            // The keeper is watched itself.
            let waited = waiting(|| self.shared.changed.wait(next));
            next = waited.unwrap_or_else(PoisonError::into_inner);
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
            let _ = waiting(|| thread.join());
        }
    }
}

/// What the keeper's thread works with.
pub(crate) struct KeeperSetup<I> {
    pub dir: PathBuf,
    pub segment_bytes: u64,
    /// Bytes that index files may grow by until they are looked at again.
    pub index_room: u64,
    pub holdings: Holdings<I>,
    pub totals: Arc<Totals>,
    pub log: Log,
}

struct Thread<I: Io> {
    io: Arc<I>,
    shared: Arc<Shared<I::File>>,
    work: KeeperSetup<I>,
    /// Bytes that were set aside for the segment that is written.
    live_room: u64,
    /// Bytes that are set aside for the next segment.
    next_room: u64,
    /// Whether nothing is set aside or written any more; one segment may still be to be closed.
    last: bool,
}

impl<I: Io> Thread<I> {
    fn run(mut self, queue: &Receiver<Job<I::File>>) {
        watch("tapdeck-keeper");
        let ahead = self.ahead();
        self.work.holdings.settle_in(ahead);
        loop {
            beat();
            match waiting(|| queue.recv_timeout(Duration::from_secs(1))) {
                Ok(Job::Prepare) => {
                    let next = match self.prepare() {
                        Ok(file) => Next::Ready(file),
                        Err(e) => Next::Failed(e),
                    };
                    *lock(&self.shared.next) = next;
                    self.shared.changed.notify_all();
                }
                Ok(Job::MakeRoom(bytes)) => self.work.holdings.make_room_for(bytes),
                Ok(Job::Begun { number, utc_ns }) => self.work.holdings.begin(number, utc_ns),
                Ok(Job::Last) => self.last = true,
                Ok(Job::Retain(retention)) => {
                    self.work.holdings.retain(retention);
                    self.tidy();
                }
                Ok(Job::Tell(done)) => done(),
                Ok(Job::Close { live, statistics, tell }) => {
                    let closed = self.close(live, &statistics);
                    if let (Some(tell), Some(closed)) = (tell, closed) {
                        // Where nobody listens any more, nobody needs to know.
                        let _ = tell.send(closed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.tidy();
                    self.look_for_room();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let _ = self.io.remove(&self.work.dir.join(NEXT));
        self.tidy();
    }

    /// Takes note that there is room, where there was none for the first segment.
    fn look_for_room(&mut self) {
        let has_found_room = &self.work.totals.has_found_room;
        let is_ready = || matches!(*lock(&self.shared.next), Next::Ready(_));
        let has_room = || self.io.space(&self.work.dir).is_ok_and(|space| space.free >= ROOM);
        if !has_found_room.load(Relaxed) && is_ready() && has_room() {
            has_found_room.store(true, Relaxed);
        }
    }

    fn prepare(&mut self) -> io::Result<I::File> {
        // What was set aside is now the segment that is written.
        self.live_room = std::mem::take(&mut self.next_room);
        self.work.holdings.writing_takes_room = self.live_room == 0;
        self.tidy();
        let file = self.io.create(&self.work.dir.join(NEXT)).or_else(|e| {
            if e.kind() != io::ErrorKind::AlreadyExists {
                return Err(e);
            }
            // A segment that could not be begun has left it.
            self.io.remove(&self.work.dir.join(NEXT))?;
            self.io.create(&self.work.dir.join(NEXT))
        })?;
        loop {
            match file.preallocate(self.work.segment_bytes) {
                Ok(is_set_aside) => {
                    self.next_room = if is_set_aside { self.work.segment_bytes } else { 0 };
                    self.work.holdings.found_room();
                    self.work.totals.has_found_room.store(true, Relaxed);
                    return Ok(file);
                }
                Err(e) => {
                    // A call that fails keeps the space that it got so far.
                    file.set_len(0)?;
                    if !is_full(&e) {
                        return Err(e);
                    }
                }
            }
            if !self.work.holdings.make_room() {
                // The segment is written without; the disk may have room for a part.
                return Ok(file);
            }
        }
    }

    /// Returns what will be written besides the closed segments: the segment being written and the
    /// one set aside behind it, with room for their indexes.
    fn ahead(&self) -> Ahead {
        if self.last {
            return Ahead::default();
        }
        let KeeperSetup { segment_bytes, index_room, .. } = self.work;
        let bytes = 2 * segment_bytes + index_room;
        let untaken = bytes.saturating_sub(self.live_room + self.next_room);
        Ahead { bytes, segments: 1, untaken }
    }

    /// Deletes what retention lets go.
    fn tidy(&mut self) {
        let ahead = self.ahead();
        self.work.holdings.tidy(ahead);
    }

    /// Closes a segment. Returns nothing of one that could not be closed, or that cannot be found
    /// afterwards.
    fn close(
        &mut self,
        live: LiveSegment<I::File>,
        statistics: &[StatisticsBlock],
    ) -> Option<SegmentEnd> {
        let from = live.name.clone();
        let (packets, durability) = (live.packets.clone(), live.durability.clone());
        let (counted, written_at) = (live.end(), live.written_at);
        let ending = live.close(statistics);
        let results = [&ending.told, &ending.cut, &ending.durable];
        let mut errors = results.into_iter().filter_map(|result| result.as_ref().err());
        if let Some(e) = errors.next() {
            if !is_full(e) {
                Totals::add(&self.work.totals.write_errors, 1);
            }
            (self.work.log)(&format!("{from}: cannot be closed properly: {e}"));
        }
        let mut held: u64 = packets.iter().sum();
        let dir = self.work.dir.clone();
        let mut name = from.clone();
        let is_sound = ending.cut.is_ok() && ending.durable.is_ok();
        if is_sound {
            name = from.closed();
            if let Err(e) = self.io.rename(&from.path(&dir), &name.path(&dir)) {
                (self.work.log)(&format!("cannot rename {}: {e}", from.path(&dir).display()));
                name = from;
            }
            match self.io.sync_dir(&dir) {
                Ok(()) => durability.has_name(),
                Err(e) => {
                    (self.work.log)(&format!("{name}: its name may not outlast a crash: {e}"));
                }
            }
        } else {
            let mut lost = String::new();
            if ending.durable.is_err() {
                let unsure = durability.unsure();
                self.work.totals.take_back(&unsure.packets, &unsure.frame_bytes);
                let count: u64 = unsure.packets.iter().sum();
                lost = format!(
                    "{count} of its {} may be lost and count as not written; ",
                    printable::counted(held, "packet")
                );
                held -= count;
            }
            (self.work.log)(&format!(
                "{name}: {lost}it keeps the name of a segment that was not closed, and `tapdeck recover` closes it"
            ));
        }
        let meta = waiting_for_disk(|| std::fs::metadata(name.path(&dir))).ok();
        let bytes = meta.as_ref().map_or(0, on_disk);
        let stored = Stored { name, bytes, index_bytes: 0, packets: Some(held) };
        self.work.holdings.add(stored, counted, written_at);
        self.tidy();
        let told = if ending.told.is_ok() { statistics } else { &[] };
        let dropped = told.iter().map(|s| s.dropped).sum();
        meta.filter(|_| is_sound).map(|meta| SegmentEnd { len: meta.len(), dropped })
    }
}

pub(crate) fn is_full(e: &io::Error) -> bool {
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)) || e.kind() == io::ErrorKind::WriteZero
}

pub(crate) fn is_too_large(e: &io::Error) -> bool {
    e.raw_os_error().map(Errno::from_raw_os_error) == Some(Errno::FBIG)
}
