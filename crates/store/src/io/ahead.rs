//! What of a file is read before somebody asks for it?
//!
//! Left to itself, the kernel reads twice the disk's `read_ahead_kb` ahead, of every file that is
//! read from beginning to end: what is written meanwhile waits behind all of that. So files are
//! opened without it, and where one part is read after the other, this asks for as much as was read
//! in a row, up to a bound that keeps a disk busy, and for few files at a time.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use rustix::fs::{Advice, fadvise};

/// Bytes that are read ahead of a file, at most.
const MOST_BYTES: u64 = 1 << 20;
/// Files that a process reads ahead at a time, at most.
const MOST_FILES: usize = 4;

/// Files that are read ahead.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// How far a file was read in a row. Where threads read it side by side that is a guess, and so is
/// what is read ahead.
#[derive(Debug)]
pub(super) struct ReadAhead {
    row_begin: AtomicU64,
    row_end: AtomicU64,
    /// Whether the file is one of [`FILES`].
    is_counted: AtomicBool,
}

impl ReadAhead {
    /// Has read nothing of the file.
    pub(super) fn new() -> Self {
        Self {
            row_begin: AtomicU64::new(0),
            // No part begins there.
            row_end: AtomicU64::new(u64::MAX),
            is_counted: AtomicBool::new(false),
        }
    }

    /// Has what comes behind a part that was just read put into the page cache, if it is next.
    pub(super) fn follow(&self, file: &File, read: Range<u64>) {
        if self.row_end.swap(read.end, Relaxed) != read.start {
            self.row_begin.store(read.start, Relaxed);
            return;
        }
        let row = read.end.saturating_sub(self.row_begin.load(Relaxed));
        let Some(bytes) = NonZeroU64::new(row.min(MOST_BYTES)) else { return };
        if self.is_counted.load(Relaxed) || self.count() {
            // Where it is refused, reading takes longer.
            let _ = fadvise(file, read.end, Some(bytes), Advice::WillNeed);
        }
    }

    /// Counts the file among those that are read ahead, if there is room.
    fn count(&self) -> bool {
        let more = |files: usize| (files < MOST_FILES).then_some(files + 1);
        if FILES.fetch_update(Relaxed, Relaxed, more).is_err() {
            return false;
        }
        if self.is_counted.swap(true, Relaxed) {
            // Another thread has counted it meanwhile.
            FILES.fetch_sub(1, Relaxed);
        }
        true
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if *self.is_counted.get_mut() {
            FILES.fetch_sub(1, Relaxed);
        }
    }
}
