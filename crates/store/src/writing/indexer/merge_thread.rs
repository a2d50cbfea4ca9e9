//! How do an index's files come to be? Its log while a segment is written, the index when it is
//! closed.
//!
//! The order is such that no reader ever takes a part for the whole: the index is written under a
//! name of its own, made durable and renamed; then the log is removed. A log alone is as good as
//! the chunks in it.
//!
//! Retention may delete a segment while its index is made. The keeper deletes the segment first and
//! then what lies beside it, and the merge thread looks for the segment after it has made a file:
//! whoever comes second leaves nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tapdeck_packet::watch::{waiting, waiting_for_disk, watch};

use super::task::{BlockPlace, IndexerSetup, SegmentEnd, Task, Work};
use crate::format::index::{self, Builder};
use crate::format::name::SegmentName;
use crate::format::segment::open_segment;
use crate::format::store::on_disk;
use crate::io::{Access, Directory, Io, write_pages, yield_processor};
use crate::writing::totals::Totals;

pub(super) struct MergeThread<I: Io> {
    io: Arc<I>,
    work: IndexerSetup,
    /// The segments whose indexes are being made, by number: more than one where an index thread is
    /// behind another.
    segments: BTreeMap<u64, Segment<I::File>>,
    /// Where each segment is told that has its index.
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
    /// How many index threads have nothing more for the segment.
    ended: usize,
    /// Hears when the segment is closed.
    closed: Option<Receiver<SegmentEnd>>,
}

impl<I: Io> MergeThread<I> {
    pub fn new(io: Arc<I>, work: IndexerSetup, indexed: Sender<SegmentName>) -> Self {
        Self { io, work, segments: BTreeMap::new(), indexed }
    }

    pub fn run(mut self, queue: &Receiver<Task>) {
        // The index threads go first. Where this is refused, all are as important.
        let _ = yield_processor();
        watch("tapdeck-merge");
        while let Ok(Task { segment: name, work }) = waiting(|| queue.recv()) {
            let number = name.number;
            let segment = self.segments.remove(&number);
            let mut segment = segment.unwrap_or_else(|| Segment::new(name));
            if let Err(e) = self.perform(&mut segment, work) {
                segment.has_failed = true;
                self.tell(&segment, &e);
                if !self.is_over(&segment) {
                    self.remove(&segment.name);
                }
            }
            if self.is_over(&segment) {
                self.settle(&segment);
            } else {
                self.segments.insert(number, segment);
            }
        }
    }

    /// Returns whether no index thread has anything more for a segment.
    fn is_over(&self, segment: &Segment<I::File>) -> bool {
        segment.ended == self.work.indexing.threads.get()
    }

    fn perform(&self, segment: &mut Segment<I::File>, work: Work) -> io::Result<()> {
        match work {
            Work::Chunk(chunk) if !segment.has_failed => self.append(segment, &chunk),
            Work::Chunk(_) => Ok(()),
            Work::Missed(missed) => self.read_missed(segment, &missed),
            Work::Skip => {
                segment.is_partial = true;
                Ok(())
            }
            Work::End(closed) => {
                segment.ended += 1;
                segment.closed = segment.closed.take().or(closed);
                if segment.has_failed || !self.is_over(segment) {
                    return Ok(());
                }
                self.finish(segment)
            }
        }
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

    /// Indexes blocks from where they lie in the segment.
    fn read_missed(&self, segment: &mut Segment<I::File>, missed: &[BlockPlace]) -> io::Result<()> {
        let behind = &self.work.totals.index_behind_bytes;
        let mut left: u64 = missed.iter().map(|place| place.on_disk).sum();
        let mut read = || {
            if segment.has_failed {
                return Ok(());
            }
            let file =
                open_segment(&Directory::new(&self.work.dir), &segment.name, Access::Ranges)?;
            let mut builder = Builder::new(&segment.name, self.work.links.get());
            let mut bytes = Vec::new();
            for place in missed {
                if self.is_hurried() {
                    // The rest stays without an index.
                    left = 0;
                    segment.is_partial = true;
                    break;
                }
                bytes.resize(place.len, 0);
                file.read_exact_at(&mut bytes, place.offset)?;
                file.forget(place.offset..place.offset + place.on_disk);
                builder.add(place.offset, &bytes, place.on_disk);
                left -= place.on_disk;
                Totals::subtract(behind, place.on_disk);
                Totals::add(&self.work.totals.index_read_bytes, place.on_disk);
                if place.ends_granule {
                    builder.end_granule();
                }
                if builder.is_full() {
                    self.append(segment, &builder.chunk())?;
                }
            }
            if builder.is_empty() { Ok(()) } else { self.append(segment, &builder.chunk()) }
        };
        let result = read();
        // What is left will not be indexed.
        Totals::subtract(behind, left);
        result
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
    fn settle(&self, segment: &Segment<I::File>) {
        let (dir, name) = (&self.work.dir, &segment.name);
        let files = [name.index_path(dir), name.index_log_path(dir)];
        let found = files.iter().filter_map(|file| waiting_for_disk(|| fs::metadata(file)).ok());
        let bytes = found.map(|meta| on_disk(&meta)).sum();
        self.work.sizes.set(name, bytes, true);
        if bytes == 0 || is_gone(dir, name) {
            self.remove(name);
        }
        // Where nobody listens, overviews are made later.
        let _ = self.indexed.send(name.closed());
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
