//! How do an index's files come to be? Its log while a segment is written, the index when it is
//! closed.
//!
//! The order is such that no reader ever takes a part for the whole: the index is written under a
//! name of its own, made durable and renamed; then the log is removed. A log alone is as good as
//! the chunks in it.
//!
//! What the index threads missed is read only while they ask for nothing: threads that wait for
//! this one miss more, and what is read from the disk is in the way of what is written to it.
//!
//! Retention may delete a segment while its index is made. The keeper deletes the segment first and
//! then what lies beside it, and the merge thread looks for the segment after it has made a file:
//! whoever comes second leaves nothing behind.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tapdeck_packet::watch::{beat, waiting, waiting_for_disk, watch};

use super::missed::Missed;
use super::task::{IndexerSetup, SegmentEnd, Task, Work};
use crate::format::index;
use crate::format::name::SegmentName;
use crate::format::store::on_disk;
use crate::io::{Io, write_pages, yield_processor};
use crate::writing::totals::Totals;

pub(super) struct MergeThread<I: Io> {
    io: Arc<I>,
    work: IndexerSetup,
    /// The segments whose indexes are being made, by number: more than one where an index thread is
    /// behind another.
    segments: BTreeMap<u64, Segment<I::File>>,
    /// What is still to be read, in the order in which it was missed.
    missed: VecDeque<Missed>,
    /// Segments that have their indexes before an older one has, by number.
    settled: BTreeMap<u64, SegmentName>,
    /// Where each segment is told that has its index, in the order of recording.
    indexed: Sender<SegmentName>,
}

/// A segment whose index is being made.
struct Segment<F> {
    name: SegmentName,
    /// The log, once there is a chunk.
    log: Option<F>,
    log_bytes: u64,
    /// Whether a part of the segment is not in the log and will not be.
    is_partial: bool,
    /// Whether nothing more is done for the segment.
    has_failed: bool,
    /// How many lists of [`MergeThread::missed`] are of this segment.
    unread: usize,
    /// How many index threads have nothing more for the segment.
    ended: usize,
    /// Hears when the segment is closed.
    closed: Option<Receiver<SegmentEnd>>,
}

impl<I: Io> MergeThread<I> {
    pub fn new(io: Arc<I>, work: IndexerSetup, indexed: Sender<SegmentName>) -> Self {
        let (segments, missed, settled) = Default::default();
        Self { io, work, segments, missed, settled, indexed }
    }

    pub fn run(mut self, queue: &Receiver<Task>) {
        // The index threads go first. Where this is refused, all are as important.
        let _ = yield_processor();
        watch("tapdeck-merge");
        while let Some(Task { segment, work }) = self.next(queue) {
            self.work_on(segment, |this, segment| this.perform(segment, work));
        }
    }

    /// Returns the next task; `None` when none will come. Reads what was missed while none has
    /// come.
    fn next(&mut self, queue: &Receiver<Task>) -> Option<Task> {
        loop {
            beat();
            if let Ok(task) = queue.try_recv() {
                return Some(task);
            }
            let Some(missed) = self.missed.pop_front() else {
                return waiting(|| queue.recv()).ok();
            };
            let name = missed.segment.clone();
            self.work_on(name, |this, segment| this.read_on(segment, missed));
        }
    }

    /// Does something for a segment, and what is to be done when that was the last.
    fn work_on(
        &mut self,
        name: SegmentName,
        work: impl FnOnce(&mut Self, &mut Segment<I::File>) -> io::Result<()>,
    ) {
        let number = name.number;
        let mut segment = self.segments.remove(&number).unwrap_or_else(|| Segment::new(name));
        if let Err(e) = work(self, &mut segment) {
            segment.has_failed = true;
            self.tell(&segment, &e);
            self.remove(&segment.name);
        }
        if segment.ended < self.work.indexing.threads.get() || segment.unread > 0 {
            self.segments.insert(number, segment);
            return;
        }
        if !segment.has_failed
            && let Err(e) = self.finish(&mut segment)
        {
            self.tell(&segment, &e);
        }
        self.settle(&segment);
    }

    fn perform(&mut self, segment: &mut Segment<I::File>, work: Work) -> io::Result<()> {
        match work {
            Work::Chunk(chunk) if !segment.has_failed => self.append(segment, &chunk)?,
            Work::Chunk(_) => {}
            Work::Missed(places) => {
                segment.unread += 1;
                self.missed.push_back(Missed::new(&segment.name, places));
            }
            Work::Skip => segment.is_partial = true,
            Work::End(closed) => {
                segment.ended += 1;
                segment.closed = segment.closed.take().or(closed);
            }
        }
        Ok(())
    }

    /// Indexes the next block of a list, from where it lies in the segment.
    fn read_on(&mut self, segment: &mut Segment<I::File>, mut missed: Missed) -> io::Result<()> {
        let behind = &self.work.totals.index_behind_bytes;
        let mut read = || {
            if segment.has_failed {
                return Ok(false);
            }
            if self.is_hurried() {
                // The rest stays without an index, and counts as such.
                segment.is_partial = true;
                missed.leave();
            }
            let read = missed.read_next(&self.work)?;
            Totals::subtract(behind, read);
            Totals::add(&self.work.totals.index_read_bytes, read);
            if let Some(chunk) = missed.take_chunk() {
                self.append(segment, &chunk)?;
            }
            Ok(!missed.is_over())
        };
        let result = read();
        if let Ok(true) = result {
            self.missed.push_front(missed);
            return Ok(());
        }
        // What is left will not be indexed.
        Totals::subtract(behind, missed.bytes_left());
        segment.unread -= 1;
        result.map(drop)
    }

    fn append(&self, segment: &mut Segment<I::File>, chunk: &[u8]) -> io::Result<()> {
        let log = match &mut segment.log {
            Some(log) => log,
            none => {
                let log = self.create(&segment.name.index_log_path(&self.work.dir))?;
                if is_gone(&self.work.dir, &segment.name) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                none.insert(log)
            }
        };
        write_pages(log, chunk, segment.log_bytes)?;
        segment.log_bytes += chunk.len() as u64;
        self.work.sizes.set(&segment.name, segment.log_bytes, false);
        Ok(())
    }

    /// Makes a file, in place of one that is there.
    fn create(&self, path: &Path) -> io::Result<I::File> {
        self.io.create(path).or_else(|e| {
            if e.kind() != io::ErrorKind::AlreadyExists {
                return Err(e);
            }
            self.io.remove(path)?;
            self.io.create(path)
        })
    }

    /// Waits until the segment is closed, and merges the log into its index. A log with a part
    /// missing stays what it is, and so does one that cannot be merged: it is as good, but
    /// slower to use.
    fn finish(&self, segment: &mut Segment<I::File>) -> io::Result<()> {
        let (dir, name) = (&self.work.dir, &segment.name);
        let Some(closed) = segment.closed.take() else { return Ok(()) };
        let Ok(closed) = waiting(|| closed.recv()) else { return Ok(()) };
        if segment.log.take().is_none() || segment.is_partial || self.is_hurried() {
            return Ok(());
        }
        // Log and draft, of which the second is hardly larger.
        self.work.sizes.set(name, 2 * segment.log_bytes, false);
        index::close(&*self.io, dir, &name.closed(), closed.dropped)?;
        Ok(())
    }

    fn is_hurried(&self) -> bool {
        self.work.indexing.control.is_hurried()
    }

    fn tell(&self, segment: &Segment<I::File>, e: &io::Error) {
        if !is_gone(&self.work.dir, &segment.name) {
            let name = segment.name.closed();
            (self.work.log)(&format!("{name}: its index cannot be made: {e}; queries take longer"));
        }
    }

    /// Ends the work on a segment: tells how much its index takes, or removes what is left of it.
    fn settle(&mut self, segment: &Segment<I::File>) {
        let (dir, name) = (&self.work.dir, &segment.name);
        let files = [name.index_path(dir), name.index_log_path(dir)];
        let found = files.iter().filter_map(|file| waiting_for_disk(|| fs::metadata(file)).ok());
        let bytes = found.map(|meta| on_disk(&meta)).sum();
        self.work.sizes.set(name, bytes, true);
        if bytes == 0 || is_gone(dir, name) {
            self.remove(name);
        }
        self.settled.insert(name.number, name.closed());
        while let Some(first) = self.settled.first_entry()
            && self.segments.range(..first.key()).next().is_none()
        {
            // Where nobody listens, overviews are made later.
            let _ = self.indexed.send(first.remove());
        }
    }

    fn remove(&self, name: &SegmentName) {
        for path in name.index_paths(&self.work.dir) {
            // Most of these files are not there.
            let _ = self.io.remove(&path);
        }
        self.work.sizes.forget(name);
    }
}

impl<F> Segment<F> {
    fn new(name: SegmentName) -> Self {
        Self {
            name,
            log: None,
            log_bytes: 0,
            is_partial: false,
            has_failed: false,
            unread: 0,
            ended: 0,
            closed: None,
        }
    }
}

/// Returns whether a segment was deleted, under whichever name. The live name is looked for first,
/// since the segment may be closed meanwhile.
pub(super) fn is_gone(dir: &Path, name: &SegmentName) -> bool {
    let names = [SegmentName { live: true, ..name.clone() }, name.closed()];
    names.iter().all(|name| {
        let found = waiting_for_disk(|| fs::symlink_metadata(name.path(dir)));
        found.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    })
}
