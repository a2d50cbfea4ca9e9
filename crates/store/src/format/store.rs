//! Who may write in a directory, and which segments are in it?
//!
//! One recorder at a time: opening a [`Store`] takes the directory's lock. Whoever reads needs no
//! lock, and does not come here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::format::name::SegmentName;
use crate::format::segment;
use crate::io::Directory;

pub(crate) const LOCK: &str = ".tapdeck.lock";
/// The file that is set aside for the next segment before it is needed.
pub(crate) const NEXT: &str = ".tapdeck-next";

/// Why a directory cannot be recorded into.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// it is something else
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// no permission
    #[error("no permission to write in {0}")]
    Permission(PathBuf),
    /// another recorder writes there
    #[error("{dir} is in use by another recorder{}: take another directory, or stop that one", of(*pid))]
    InUse { dir: PathBuf, pid: Option<u32> },
    /// anything else the file system says
    #[error("cannot use {dir}")]
    Io { dir: PathBuf, source: io::Error },
}

fn of(pid: Option<u32>) -> String {
    pid.map(|p| format!(" (process {p})")).unwrap_or_default()
}

fn in_use(dir: &Path) -> Error {
    let pid = fs::read_to_string(dir.join(LOCK)).ok().and_then(|s| s.trim().parse().ok());
    Error::InUse { dir: dir.to_owned(), pid }
}

/// A segment on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub name: SegmentName,
    /// Bytes it takes on disk.
    pub bytes: u64,
    /// Bytes that its index takes on disk.
    pub index_bytes: u64,
    /// Packets in it, where that is known without reading it.
    pub packets: Option<u64>,
}

impl Stored {
    /// Returns how many bytes go from the disk with the segment.
    pub(crate) fn bytes_in_all(&self) -> u64 {
        self.bytes + self.index_bytes
    }
}

/// A directory, locked for one recorder as long as this value lives.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// The segments that were there when the store was opened, oldest first.
    pub(crate) found: Vec<Stored>,
    pub(crate) last_number: u64,
    _lock: rustix::fd::OwnedFd,
}

impl Store {
    /// Opens a directory for recording, making it if need be.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Error::Permission(dir.to_owned())
            }
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                Error::NotADirectory(dir.to_owned())
            }
            _ => Error::Io { dir: dir.to_owned(), source },
        };
        fs::create_dir_all(dir).map_err(fail)?;
        let path = dir.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o640))
            .map_err(|e| fail(e.into()))?;
        if let Err(e) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if e != rustix::io::Errno::WOULDBLOCK {
                return Err(fail(e.into()));
            }
            return Err(in_use(dir));
        }
        rustix::fs::ftruncate(&lock, 0).map_err(|e| fail(e.into()))?;
        let pid = format!("{}\n", std::process::id());
        // On a full disk the lock works without the process id.
        let _ = rustix::io::pwrite(&lock, pid.as_bytes(), 0);
        match fs::remove_file(dir.join(NEXT)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        remove_orphans(dir).map_err(fail)?;
        let found = Self::segments(dir).map_err(fail)?;
        let last_number = Self::last_number(dir).map_err(fail)?;
        Ok(Self { dir: dir.to_owned(), found, last_number, _lock: lock })
    }

    /// Fails where somebody holds a store's lock, and changes nothing to find that out.
    pub(crate) fn check_free(dir: &Path) -> Result<(), Error> {
        let path = dir.join(LOCK);
        let lock = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(lock) => lock,
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(e) => return Err(Error::Io { dir: dir.to_owned(), source: e.into() }),
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(in_use(dir)),
            Err(e) => Err(Error::Io { dir: dir.to_owned(), source: e.into() }),
        }
    }

    /// Lists the segments again, after they were changed.
    pub(crate) fn look_again(&mut self) -> io::Result<()> {
        self.found = Self::segments(&self.dir)?;
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the highest number in a segment's name, whoever wrote it, so that no number is taken
    /// twice; 0 where there is none.
    fn last_number(dir: &Path) -> io::Result<u64> {
        let mut last = 0;
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if let Some(name) = name.to_str().and_then(SegmentName::parse) {
                last = last.max(name.number);
            }
        }
        Ok(last)
    }

    /// Returns the segments of a directory, oldest first. Files that do not have a segment's name,
    /// or do not begin as a segment does, are left out.
    pub fn segments(dir: &Path) -> io::Result<Vec<Stored>> {
        let storage = Directory::new(dir);
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(SegmentName::parse) else {
                continue;
            };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            if !meta.is_file() || !segment::is_ours(&storage, &name) {
                continue;
            }
            let index = name.index_paths(dir);
            let index = index.iter().filter_map(|path| fs::symlink_metadata(path).ok());
            let index_bytes = index.map(|meta| on_disk(&meta)).sum();
            found.push(Stored { name, bytes: on_disk(&meta), index_bytes, packets: None });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Removes index files that were not finished or whose segment is gone, and logs whose index is
/// there: a crash may have come between the deletion of the one and the other.
fn remove_orphans(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some((name, is_draft)) = entry.file_name().to_str().and_then(SegmentName::parse_index)
        else {
            continue;
        };
        let live = SegmentName { live: true, ..name.clone() };
        let is_merged = entry.path() == name.index_log_path(dir) && name.index_path(dir).exists();
        let has_segment = [name, live].iter().any(|n| n.path(dir).symlink_metadata().is_ok());
        if entry.file_type()?.is_file() && (is_draft || is_merged || !has_segment) {
            // A file that stays is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Returns how many bytes a file takes on disk, which is less than its length where it has holes
/// and more where space was set aside.
pub(crate) fn on_disk(meta: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    meta.blocks() * 512
}
