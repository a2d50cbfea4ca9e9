//! How does a recovery end that nobody waits for? By a storage that reads no more once it is told
//! so: whoever reads comes to an end by the error, and what was done so far is finished by the next
//! recovery.

use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::io::{Access, Directory, Object, State, Storage};

pub(super) fn stopped() -> Error {
    Error::other("the recovery was told to stop")
}

/// A directory that is read until it is told to stop.
#[derive(Debug)]
pub(super) struct Stoppable {
    pub directory: Directory,
    pub stops: Arc<AtomicBool>,
}

impl Storage for Stoppable {
    fn place(&self) -> &Path {
        self.directory.place()
    }

    fn list(&self) -> Result<Vec<OsString>> {
        self.directory.list()
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        let object = self.directory.open(name, access)?;
        Ok(Arc::new(StoppableObject { object, stops: self.stops.clone() }))
    }
}

#[derive(Debug)]
struct StoppableObject {
    object: Arc<dyn Object>,
    stops: Arc<AtomicBool>,
}

impl Object for StoppableObject {
    fn state(&self) -> Result<State> {
        self.object.state()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        if self.stops.load(Relaxed) {
            return Err(stopped());
        }
        let read = self.object.read_at(buffer, at);
        // The page cache belongs to what is recorded meanwhile.
        if let Ok(bytes) = read {
            self.object.forget(at..at + bytes as u64);
        }
        read
    }

    fn forget(&self, part: Range<u64>) {
        self.object.forget(part);
    }

    fn prefetch(&self) {
        self.object.prefetch();
    }
}
