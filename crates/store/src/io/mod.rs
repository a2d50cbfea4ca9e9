//! What a store asks of a file system, as a trait: the real one is [`Disk`]; tests put
//! faults in between.

mod disk;
mod priority;
mod read;
mod write;

pub use disk::Disk;
pub use priority::{go_first, yield_disk};
pub(crate) use read::{forget_pages, read_at};
pub(crate) use write::{write_all, write_pages};

use std::io::{IoSlice, Result};
use std::path::Path;

/// Files and directories.
pub trait Io: Send + Sync + 'static {
    type File: File;

    /// Makes a new file for writing; fails where one of that name exists.
    fn create(&self, path: &Path) -> Result<Self::File>;
    /// Opens a file that is there, to mend it; through the page cache, for what is read meanwhile.
    fn open(&self, path: &Path) -> Result<Self::File>;
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    fn space(&self, dir: &Path) -> Result<Space>;
}

/// An open file.
pub trait File: Send + 'static {
    /// Writes at an offset; may write less than all. Addresses, lengths and offset are multiples of
    /// [`PAGE`].
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize>;
    /// Sets space aside without changing the file's length.
    fn preallocate(&self, len: u64) -> Result<()>;
    /// Cuts the file, and gives back what was set aside behind its end.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes the contents durable.
    fn sync(&self) -> Result<()>;
}

/// Room on a file system, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

/// What direct I/O is aligned to.
pub const PAGE: usize = 4096;

/// A page of memory that direct I/O can write from.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE]);

impl Default for Page {
    fn default() -> Self {
        Self([0; PAGE])
    }
}
