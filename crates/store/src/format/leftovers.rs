//! What did an earlier recorder leave that is mended while the next one records already?
//!
//! Recovery reads a segment from end to end, which takes seconds for each GiB, and packets do not
//! wait for that. So the segments that were not closed are listed when a store is opened, and
//! mended beside the recording. Until one is, the keeper counts it and leaves it alone; it hears
//! by a table, [`GivenBack`], that nobody is at work on the segment any more.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::OwnedFd;

use crate::format::name::SegmentName;
use crate::format::store::Stored;

/// The segments that an earlier recorder did not close, to be mended
/// ([`recover`](Leftovers::recover)). Nobody else may write in the store as long as this value
/// lives.
#[derive(Debug)]
pub struct Leftovers {
    pub(crate) dir: PathBuf,
    /// The live names of those that are not mended yet, oldest first.
    pub(crate) names: Vec<SegmentName>,
    pub(crate) given_back: Arc<GivenBack>,
    pub(crate) _lock: Arc<OwnedFd>,
}

impl Leftovers {
    /// Returns how many segments are not mended yet.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Gives the oldest segment back, whatever has become of it.
    pub(crate) fn give_back_first(&mut self) {
        let name = self.names.remove(0);
        let found =
            [name.closed(), name.clone()].into_iter().find_map(|n| Stored::at(&self.dir, n));
        self.given_back.put(name, found);
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        while !self.names.is_empty() {
            self.give_back_first();
        }
    }
}

/// Leftovers that nobody is at work on any more, by their live names, and what they are now: `None`
/// where one is no segment any more.
#[derive(Debug, Default)]
pub(crate) struct GivenBack(Mutex<Vec<(SegmentName, Option<Stored>)>>);

impl GivenBack {
    fn put(&self, name: SegmentName, found: Option<Stored>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, found));
    }

    /// Takes out what was given back since the last call.
    pub fn take(&self) -> Vec<(SegmentName, Option<Stored>)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
