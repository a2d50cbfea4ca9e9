//! The thread that makes overviews, whenever the last segment of one has its index. Nobody waits
//! for it: whoever asks meanwhile asks the indexes.
//!
//! When it starts it makes the overviews that are missing. What is not made when the recording ends
//! is made by the next recorder, or by recovery.
//!
//! The keeper deletes a segment first and then the overview that is named after it, and this thread
//! looks for the segment after it has made the overview: whoever comes second leaves nothing
//! behind.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Receiver;

use super::merge_thread::is_gone;
use super::task::IndexerSetup;
use crate::format::index;
use crate::format::name::SegmentName;
use crate::format::segment::segment_names;
use crate::format::store::on_disk;
use crate::io::{Directory, Io, yield_disk, yield_processor};

pub(super) struct OverviewThread<I> {
    pub io: Arc<I>,
    pub work: IndexerSetup,
    /// Says that no more shall be done.
    pub stops: Arc<AtomicBool>,
}

impl<I: Io> OverviewThread<I> {
    /// Works until nobody tells of segments any more. `queue` has each segment whose index was
    /// made.
    pub fn run(self, queue: &Receiver<SegmentName>) {
        // Where these are refused, the thread is as important as others.
        let (_, _) = (yield_processor(), yield_disk());
        let storage = Directory::new(&self.work.dir);
        let names = segment_names(&storage).unwrap_or_default();
        let goes_on = || !self.stops.load(Relaxed) && !self.work.indexing.control.is_hurried();
        let made = |last: &SegmentName| self.settle(last);
        self.tell(index::make_missing(&*self.io, &storage, &names, false, &goes_on, made));
        // A leftover may be closed by now.
        let mut segments: Vec<SegmentName> = names.iter().map(SegmentName::closed).collect();
        while let Ok(name) = queue.recv() {
            segments.retain(|other| other.shares_overview(&name) && other.number < name.number);
            segments.push(name.clone());
            if name.has_overview() && goes_on() {
                let made = index::make(&*self.io, &storage, &segments, &goes_on);
                self.settle(&name);
                self.tell(made);
            }
        }
    }

    /// Tells how much goes with a segment now, or removes what is left of it.
    fn settle(&self, last: &SegmentName) {
        let dir = &self.work.dir;
        let files = last.index_paths(dir);
        let found = files.iter().filter_map(|file| fs::metadata(file).ok());
        self.work.sizes.set(last, found.map(|meta| on_disk(&meta)).sum(), true);
        if is_gone(dir, last) {
            for path in files {
                // Most of these files are not there.
                let _ = self.io.remove(&path);
            }
            self.work.sizes.forget(last);
        }
    }

    fn tell<T>(&self, made: io::Result<T>) {
        if let Err(e) = made
            && e.kind() != io::ErrorKind::Interrupted
        {
            (self.work.log)(&format!("an overview cannot be made: {e}; queries take longer"));
        }
    }
}
