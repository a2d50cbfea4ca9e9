//! What does writing a store ask of a file system? [`Io`] and [`File`]: the real one is
//! [`Disk`](super::Disk), tests put faults in between. Nothing is read through them
//! ([`Storage`](super::Storage) is for that).

use std::io::{self, IoSlice, Result};
use std::path::Path;

use super::page::{PAGE, Page};

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
pub trait File: Send + Sync + 'static {
    /// Writes at an offset; may write less than all. Addresses, lengths and offset are multiples of
    /// [`PAGE`].
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize>;
    /// Sets space aside without changing the file's length. Returns whether that is done: not
    /// every file system can do it.
    fn preallocate(&self, len: u64) -> Result<bool>;
    /// Cuts the file, and frees the space that was set aside behind its end.
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

/// Writes whole pages from any memory.
pub(crate) fn write_pages<F: File>(file: &F, bytes: &[u8], offset: u64) -> Result<()> {
    /// Pages in one call: fewer than the slices that writev(2) takes.
    const PAGES: usize = 256;
    let mut pages = vec![Page::default(); PAGES.min(bytes.len() / PAGE)];
    let mut at = offset;
    for part in bytes.chunks(PAGES * PAGE) {
        let pages = &mut pages[..part.len() / PAGE];
        for (page, chunk) in pages.iter_mut().zip(part.chunks_exact(PAGE)) {
            page.0.copy_from_slice(chunk);
        }
        let slices: Vec<IoSlice<'_>> = pages.iter().map(|p| IoSlice::new(&p.0)).collect();
        at += write_all(file, &slices, at).map_err(|(_, e)| e)?;
    }
    Ok(())
}

/// Writes all of some slices. An error says how many bytes were written before it.
pub(crate) fn write_all<F: File>(
    file: &F,
    slices: &[IoSlice<'_>],
    offset: u64,
) -> std::result::Result<u64, (u64, io::Error)> {
    let total: usize = slices.iter().map(|s| s.len()).sum();
    let mut done = 0;
    // How many writes of less than a page are put up with.
    let mut tries = 100;
    while done < total {
        // Where a call wrote less than all, the next goes on behind it, at a page's border.
        let mut skip = done;
        let mut rest = Vec::with_capacity(slices.len());
        for slice in slices {
            if skip >= slice.len() {
                skip -= slice.len();
            } else {
                rest.push(IoSlice::new(&slice[skip..]));
                skip = 0;
            }
        }
        let wrote = match file.write_at(&rest, offset + done as u64) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::WriteZero)),
            other => other,
        };
        match wrote {
            Ok(n) if n % PAGE == 0 || done + n == total => done += n,
            // Direct I/O cannot go on in the middle of a page.
            Ok(n) if n >= PAGE => done += n / PAGE * PAGE,
            Ok(_) if tries > 1 => tries -= 1,
            Ok(_) => return Err((done as u64, io::ErrorKind::WriteZero.into())),
            Err(e) => return Err((done as u64, e)),
        }
    }
    Ok(done as u64)
}
