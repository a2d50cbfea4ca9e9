//! Who may write in a directory, and which segments are in it?
//!
//! One recorder at a time: opening a [`Store`] takes the directory's lock. Whoever reads needs no
//! lock, and does not come here.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::format::leftovers::{GivenBack, Leftovers};
use crate::format::name::SegmentName;
use crate::format::segment;
use crate::io::{Directory, File as _, Io};

/// The permission bits of a store's directory.
const DIRECTORY_MODE: u32 = 0o750;
/// How long another recorder may take to end.
const ENDING: Duration = Duration::from_secs(1);

pub(crate) const LOCK: &str = ".tapdeck.lock";
/// The file that says which UTC goes with which age ([`crate::writing::ages`]).
pub(crate) const TIMES: &str = ".tapdeck.times";
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
    /// it was mounted so, or the kernel made it so after an error
    #[error("the file system of {0} is read-only: record elsewhere, or mount it for writing")]
    ReadOnly(PathBuf),
    /// others could put links there, or take segments away
    #[error("everybody may write in {0}: take another directory, or `chmod o-w` it")]
    Shared(PathBuf),
    /// a link there would lead writes elsewhere
    #[error("{0} is a link, or no file: remove it")]
    Lock(PathBuf),
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

/// Opens a lock's file in a directory, and follows no link to another.
fn open_lock(dir: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, path, flags, Mode::from_raw_mode(0o640))
}

/// Returns whether a recorder is at work in a directory: it holds the lock as long as it is.
pub(crate) fn is_in_use(dir: &Path) -> bool {
    let Ok(lock) = open_lock(CWD, &dir.join(LOCK), OFlags::RDONLY | OFlags::NONBLOCK) else {
        return false;
    };
    // A recorder that begins at this moment asks again: the lock is let go at once.
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Says what an error of the file system means for a store.
fn failed(dir: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied => Error::Permission(dir.to_owned()),
        io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly(dir.to_owned()),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            Error::NotADirectory(dir.to_owned())
        }
        _ => Error::Io { dir: dir.to_owned(), source },
    }
}

/// Takes a lock. One whose holder is just ending is waited for: a process that was killed holds its
/// locks until its memory is freed.
fn take(lock: &OwnedFd, how: FlockOperation, dir: &Path) -> Result<(), Error> {
    let until = Instant::now() + ENDING;
    loop {
        match flock(lock, how) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => return Err(in_use(dir)),
            Err(e) => return Err(Error::Io { dir: dir.to_owned(), source: e.into() }),
        }
    }
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

    /// Looks at a file of a segment's name; `None` where there is none.
    pub(crate) fn at(dir: &Path, name: SegmentName) -> Option<Self> {
        let meta = fs::symlink_metadata(name.path(dir)).ok().filter(fs::Metadata::is_file)?;
        let index_bytes = index_bytes(dir, &name);
        Some(Self { name, bytes: on_disk(&meta), index_bytes, packets: None })
    }
}

/// A directory, locked for one recorder as long as this value lives.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// The segments that were there when the store was opened, oldest first.
    pub(crate) found: Vec<Stored>,
    last_number: u64,
    /// Numbers beyond the last that others' files have.
    taken: BTreeSet<u64>,
    /// The names of live segments that were found, whoever wrote them.
    lives: Vec<SegmentName>,
    /// Those that were taken to be mended, and the table where they are given back.
    pub(crate) leftovers: Vec<SegmentName>,
    pub(crate) given_back: Arc<GivenBack>,
    lock: Arc<OwnedFd>,
}

impl Store {
    /// Makes the directory of a store, unless it is there. It holds packets: only its owner may
    /// write in it, and nobody but its group may read it, whatever the umask is. Directories above
    /// it are made as others. Returns whether it was made.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn make(dir: &Path) -> Result<bool, Error> {
        let made = || {
            let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
            if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(above)?;
            }
            let is_new = match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => false,
                made => made.map(|()| true)?,
            };
            for parent in missing.iter().rev().filter_map(|dir| dir.parent()) {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                // What is in a directory outlives a power cut only if its own name does. Where that
                // cannot be made sure of, recording goes on.
                let _ = fs::File::open(parent).and_then(|parent| parent.sync_all());
            }
            Ok(is_new)
        };
        made().map_err(|e| failed(dir, e))
    }

    /// Opens a directory for recording, making it if need be.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let fail = |source| failed(dir, source);
        Self::make(dir)?;
        // What is looked at is what the lock is made in, whoever exchanges names meanwhile.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| fail(e.into()))?;
        let found = rustix::fs::fstat(&place).map_err(|e| fail(e.into()))?;
        if found.st_mode & 0o002 != 0 {
            return Err(Error::Shared(dir.to_owned()));
        }
        let path = dir.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let lock = open_lock(&place, LOCK.as_ref(), flags).map_err(|e| match e {
            Errno::LOOP => Error::Lock(path.clone()),
            e => fail(e.into()),
        })?;
        let stat = rustix::fs::fstat(&lock).map_err(|e| fail(e.into()))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_nlink != 1 {
            return Err(Error::Lock(path));
        }
        take(&lock, FlockOperation::NonBlockingLockExclusive, dir)?;
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
        let (last_number, taken) = Self::numbers(dir, &found).map_err(fail)?;
        let lives = segment::segment_names(&Directory::new(dir)).map_err(fail)?;
        Ok(Self {
            dir: dir.to_owned(),
            found,
            last_number,
            taken,
            lives: lives.into_iter().filter(|name| name.live).collect(),
            leftovers: Vec::new(),
            given_back: Arc::default(),
            lock: Arc::new(lock),
        })
    }

    /// Takes out the segments that an earlier recorder did not close, to be mended while this store
    /// is recorded into. None of them is read here. The space that was set aside behind their ends
    /// is given back, as nothing is written there any more.
    pub fn take_leftovers<I: Io>(&mut self, io: &I) -> Leftovers {
        let names = std::mem::take(&mut self.lives);
        self.leftovers.clone_from(&names);
        for stored in self.found.iter_mut().filter(|stored| stored.name.live) {
            let path = stored.name.path(&self.dir);
            // Where this fails the space stays taken, and counts, until the segment is mended.
            let _ =
                fs::symlink_metadata(&path).and_then(|meta| io.open(&path)?.set_len(meta.len()));
            if let Some(now) = Stored::at(&self.dir, stored.name.clone()) {
                *stored = now;
            }
        }
        Leftovers {
            dir: self.dir.clone(),
            names,
            given_back: self.given_back.clone(),
            _lock: self.lock.clone(),
        }
    }

    /// Fails where somebody holds a store's lock, and changes nothing to find that out.
    pub(crate) fn check_free(dir: &Path) -> Result<(), Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let lock = match open_lock(CWD, &dir.join(LOCK), flags) {
            Ok(lock) => lock,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(Error::Io { dir: dir.to_owned(), source: e.into() }),
        };
        take(&lock, FlockOperation::NonBlockingLockShared, dir)
    }

    /// Returns the number that follows one, of a segment that is to be.
    pub(crate) fn number_after(&self, number: u64) -> u64 {
        let mut next = number + 1;
        while self.taken.contains(&next) {
            next += 1;
        }
        next
    }

    /// Returns the number of the first segment that is to be.
    pub(crate) fn next_number(&self) -> u64 {
        self.number_after(self.last_number)
    }

    /// Lists the segments again, after they were changed.
    pub(crate) fn look_again(&mut self) -> io::Result<()> {
        self.found = Self::segments(&self.dir)?;
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of the newest segment, and which numbers beyond it the names of other
    /// files have: no number is taken twice, whoever wrote the file.
    fn numbers(dir: &Path, found: &[Stored]) -> io::Result<(u64, BTreeSet<u64>)> {
        let last = found.iter().map(|stored| stored.name.number).max().unwrap_or(0);
        let mut taken = BTreeSet::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let name = name.to_str().map(|name| name.strip_suffix(".damaged").unwrap_or(name));
            taken.extend(name.and_then(SegmentName::parse).map(|name| name.number));
        }
        Ok((last, taken.split_off(&last)))
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
            let index_bytes = index_bytes(dir, &name);
            found.push(Stored { name, bytes: on_disk(&meta), index_bytes, packets: None });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Returns how many bytes the files of a segment's index take on disk.
fn index_bytes(dir: &Path, name: &SegmentName) -> u64 {
    let index = name.index_paths(dir);
    let index = index.iter().filter_map(|path| fs::symlink_metadata(path).ok());
    index.map(|meta| on_disk(&meta)).sum()
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
    meta.blocks() * 512
}
