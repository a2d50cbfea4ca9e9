//! Reads files: those of a directory, or those that a user named.
//!
//! What was read once is not needed again soon, and the page cache belongs to the machine that
//! records: so its pages are given back, or reading goes past the cache (`O_DIRECT`), as the reader
//! asks for. Where a file system can do neither, that costs memory and nothing else.
//!
//! The disk belongs to it, too: little is read ahead (`ahead`), and little is read at once
//! (`turns`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Result};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::Errno;
use tapdeck_packet::watch::waiting_for_disk;

use super::ahead::ReadAhead;
use super::page::PAGE;
use super::read::{Access, Object, Owner, State, Storage};
use super::turns::{self, Turns};

/// The regular files of a directory, by their names. Links are not followed.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    direct: Direct,
}

/// Remembers whether the file system reads past the page cache, as far as is known.
#[derive(Clone, Debug)]
struct Direct(Arc<AtomicBool>);

impl Directory {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), direct: Direct(Arc::new(AtomicBool::new(true))) }
    }
}

impl Storage for Directory {
    fn place(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in self.path.read_dir()? {
            let entry = entry?;
            match entry.file_type() {
                Ok(kind) if kind.is_file() => names.push(entry.file_name()),
                Ok(_) => {}
                // The file went while the list was made.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(names)
    }

    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        let path = self.path.join(name);
        open(&path, OFlags::NOFOLLOW, access, &self.direct)
    }

    fn state(&self, name: &OsStr) -> Result<State> {
        let metadata = waiting_for_disk(|| fs::symlink_metadata(self.path.join(name)))?;
        if metadata.is_symlink() {
            return Err(Errno::LOOP.into());
        }
        Ok(state_of(&metadata))
    }
}

/// Files by their whole paths, wherever they are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The paths, in ascending order.
    listed: Vec<OsString>,
    direct: Direct,
}

impl Paths {
    /// Makes a list of one file, or of the regular files of a directory and of the directories in
    /// it, in the order of their paths. Links to files are followed, since a user named them; links
    /// to directories are not, since they may lead anywhere, and are passed to `left_out`.
    pub fn at(path: &Path, mut left_out: impl FnMut(PathBuf)) -> Result<Self> {
        let mut listed = Vec::new();
        let mut directories = Vec::new();
        if path.metadata()?.is_dir() {
            directories.push(path.to_owned());
        } else {
            listed.push(path.as_os_str().to_owned());
        }
        while let Some(directory) = directories.pop() {
            for entry in directory.read_dir()? {
                let entry = entry?;
                let path = entry.path();
                match fs::metadata(&path) {
                    Ok(about) if about.is_file() => listed.push(path.into_os_string()),
                    Ok(about) if about.is_dir() && !entry.file_type()?.is_symlink() => {
                        directories.push(path);
                    }
                    Ok(about) if about.is_dir() => left_out(path),
                    _ => {}
                }
            }
        }
        listed.sort_unstable();
        Ok(Self { listed, direct: Direct(Arc::new(AtomicBool::new(true))) })
    }
}

impl Storage for Paths {
    fn place(&self) -> &Path {
        Path::new("")
    }

    fn list(&self) -> Result<Vec<OsString>> {
        Ok(self.listed.clone())
    }

    /// Opens a file. Links are followed if the file is in the list, and not to what lies beside it.
    fn open(&self, name: &OsStr, access: Access) -> Result<Arc<dyn Object>> {
        let is_listed = self.listed.binary_search_by(|listed| listed.as_os_str().cmp(name)).is_ok();
        let how = if is_listed { OFlags::empty() } else { OFlags::NOFOLLOW };
        open(Path::new(name), how, access, &self.direct)
    }
}

/// An open file.
#[derive(Debug)]
struct DiskObject {
    file: File,
    /// A directory, a pipe or a device holds nothing that could be read in ranges: it reads as
    /// empty.
    is_regular: bool,
    /// Whether reading goes past the page cache.
    is_direct: AtomicBool,
    /// Whether the file system reads past the page cache.
    direct: Direct,
    /// The turns at the file's disk.
    turns: Arc<Turns>,
    /// How the file is read ahead; `None` where it will be read here and there.
    ahead: Option<ReadAhead>,
}

fn open(path: &Path, how: OFlags, access: Access, direct: &Direct) -> Result<Arc<dyn Object>> {
    // Opening never waits for somebody to write, as that of a pipe would.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | how;
    let mut is_direct = access == Access::Once && direct.0.load(Relaxed);
    let opened = waiting_for_disk(|| {
        if is_direct {
            rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()).or_else(|e| {
                if e != Errno::INVAL {
                    return Err(e);
                }
                direct.0.store(false, Relaxed);
                is_direct = false;
                rustix::fs::open(path, flags, Mode::empty())
            })
        } else {
            rustix::fs::open(path, flags, Mode::empty())
        }
    });
    let file = File::from(opened?);
    // The kernel reads nothing ahead of what is asked for.
    let _ = fadvise(&file, 0, None, Advice::Random);
    let metadata = file.metadata()?;
    let ahead = match access {
        Access::Ranges | Access::Sequential => Some(ReadAhead::new()),
        Access::Scattered | Access::Once => None,
    };
    Ok(Arc::new(DiskObject {
        file,
        is_regular: metadata.is_file(),
        is_direct: AtomicBool::new(is_direct),
        direct: direct.clone(),
        turns: turns::at(metadata.dev()),
        ahead,
    }))
}

/// Returns an open regular file, which need not have a name, as an object.
pub(crate) fn object_of(file: File) -> Arc<dyn Object> {
    let disk = file.metadata().map_or(0, |metadata| metadata.dev());
    Arc::new(DiskObject {
        file,
        is_regular: true,
        is_direct: AtomicBool::new(false),
        direct: Direct(Arc::new(AtomicBool::new(false))),
        turns: turns::at(disk),
        ahead: None,
    })
}

fn state_of(metadata: &fs::Metadata) -> State {
    let seconds = metadata.mtime().saturating_mul(1_000_000_000);
    State {
        len: if metadata.is_file() { metadata.len() } else { 0 },
        changed_ns: seconds.saturating_add(metadata.mtime_nsec()),
        id: (metadata.dev(), metadata.ino()),
        owner: Some(Owner {
            user: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode() & 0o7777,
        }),
    }
}

impl DiskObject {
    /// Reads through the page cache from now on.
    fn end_direct(&self) -> Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        self.is_direct.store(false, Relaxed);
        Ok(())
    }
}

impl Object for DiskObject {
    fn state(&self) -> Result<State> {
        Ok(state_of(&waiting_for_disk(|| self.file.metadata())?))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        if !self.is_regular {
            return Ok(0);
        }
        // Another thread may end it meanwhile, and for the same reason.
        let is_direct = self.is_direct.load(Relaxed);
        let read = waiting_for_disk(|| {
            let _turn = self.turns.take(buffer.len());
            self.file.read_at(buffer, at)
        });
        match read {
            Err(e) if is_direct && e.kind() == ErrorKind::InvalidInput => {
                let is_aligned = at.is_multiple_of(PAGE as u64)
                    && buffer.len().is_multiple_of(PAGE)
                    && buffer.as_ptr().align_offset(PAGE) == 0;
                if is_aligned {
                    self.direct.0.store(false, Relaxed);
                }
                self.end_direct()?;
                self.file.read_at(buffer, at)
            }
            Ok(bytes) => {
                if let (Some(ahead), 1..) = (&self.ahead, bytes) {
                    ahead.follow(&self.file, at..at + bytes as u64);
                }
                Ok(bytes)
            }
            refused => refused,
        }
    }

    fn forget(&self, part: Range<u64>) {
        if let Some(len) = NonZeroU64::new(part.end.saturating_sub(part.start))
            && !self.is_direct.load(Relaxed)
        {
            let _ = fadvise(&self.file, part.start, Some(len), Advice::DontNeed);
        }
    }

    fn prefetch(&self) {
        let _ = fadvise(&self.file, 0, None, Advice::WillNeed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use super::{Directory, Paths};
    use crate::io::{Access, PAGE, Page, Storage};

    fn numbers(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 7) as u8).collect()
    }

    #[test]
    fn a_file_reads_the_same_however_it_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = numbers(5 * PAGE + 100);
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        let storage = Directory::new(dir.path());
        for access in [Access::Ranges, Access::Sequential, Access::Scattered, Access::Once] {
            let file = storage.open("a".as_ref(), access).unwrap();
            assert_eq!(file.length().unwrap(), bytes.len() as u64);
            let mut pages = vec![Page::default(); 3];
            for (i, page) in pages.iter_mut().enumerate() {
                assert_eq!(file.read_up_to(&mut page.0, (i * PAGE) as u64).unwrap(), PAGE);
                assert!(page.0[..] == bytes[i * PAGE..][..PAGE]);
            }
            // Neither memory, nor place, nor length is a page's; and the end is inside of one.
            for (at, len) in [(1, 9), (PAGE - 3, PAGE + 9), (4 * PAGE, 9999), (6 * PAGE, 5)] {
                let mut buffer = vec![0; len + 1];
                let have = file.read_up_to(&mut buffer[1..], at as u64).unwrap();
                let there = &bytes[at.min(bytes.len())..(at + len).min(bytes.len())];
                assert!(buffer[1..=have] == *there, "{access:?} at {at}");
            }
            file.forget(0..bytes.len() as u64);
            file.prefetch();
        }
    }

    #[test]
    fn what_is_no_file_is_not_listed_and_reads_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"abc").unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("c")).unwrap();
        let storage = Directory::new(dir.path());
        assert_eq!(storage.list().unwrap(), ["a"]);
        let folder = storage.open("b".as_ref(), Access::Ranges).unwrap();
        assert_eq!((folder.length().unwrap(), folder.read_up_to(&mut [0; 9], 0).unwrap()), (0, 0));
        assert!(storage.open("c".as_ref(), Access::Ranges).is_err(), "a link is not followed");
        let missing = storage.open("d".as_ref(), Access::Once).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(storage.location("a".as_ref()), dir.path().join("a"));
    }

    #[test]
    fn links_are_followed_where_they_were_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), b"abc").unwrap();
        std::os::unix::fs::symlink("a", path("b")).unwrap();
        let all = Paths::at(dir.path(), |_| unreachable!()).unwrap();
        assert_eq!(all.list().unwrap(), [path("a"), path("b")]);
        let id = |paths: &Paths, name: &str| -> std::io::Result<(u64, u64)> {
            Ok(paths.open(path(name).as_os_str(), Access::Ranges)?.state()?.id)
        };
        assert_eq!(id(&all, "a").unwrap(), id(&all, "b").unwrap());
        let one = Paths::at(&path("a"), |_| unreachable!()).unwrap();
        assert!(id(&one, "a").is_ok() && id(&one, "b").is_err());
        assert!(Paths::at(Path::new("/nowhere/at/all"), |_| ()).is_err());
    }
}
