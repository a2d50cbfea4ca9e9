//! How much do the index files take on disk? Told by the merge thread, and counted by the keeper,
//! which deletes segments by it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::format::name::SegmentName;

/// How many bytes the index files of segments take on disk, as the merge thread tells and the
/// keeper counts them. Files that do not grow any more leave the table when they are counted.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Mutex<BTreeMap<SegmentName, Size>>);

#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    is_final: bool,
}

impl Sizes {
    pub(super) fn set(&self, name: &SegmentName, bytes: u64, is_final: bool) {
        self.with(|sizes| sizes.insert(name.closed(), Size { bytes, is_final }));
    }

    /// Takes out the files of a segment, which are gone or were deleted with it.
    pub fn forget(&self, name: &SegmentName) {
        self.with(|sizes| sizes.remove(&name.closed()));
    }

    /// Hands each size to `count`, which returns whether it has taken the size in. Returns the sum
    /// of the others.
    pub fn take(&self, mut count: impl FnMut(&SegmentName, u64) -> bool) -> u64 {
        self.with(|sizes| {
            let mut others = 0;
            sizes.retain(|name, size| {
                let counted = count(name, size.bytes);
                if !counted {
                    others += size.bytes;
                }
                !(counted && size.is_final)
            });
            others
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<SegmentName, Size>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
