//! How are files written? Past the page cache where the file system can do that (`O_DIRECT`), or
//! through it. This is the real [`Io`]; when something is written or made durable, others decide.
//! A thread that waits for the disk does not hang, however long that takes.

use std::io::{self, IoSlice};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use tapdeck_packet::watch::waiting_for_disk;

use super::page::Page;
use super::write::{File, Io, Space};

/// The file system of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    direct: bool,
    /// The permission bits of files that are made, whatever the umask is.
    mode: Option<u32>,
}

impl Disk {
    /// Returns whether a directory's file system takes `O_DIRECT`, found out by trying.
    pub fn direct_works(dir: &Path) -> io::Result<bool> {
        let probe = dir.join(format!(".tapdeck-direct-{}", std::process::id()));
        let opened = Self::new(true).create(&probe);
        let works = match opened {
            Ok(file) => {
                let page = Box::new(Page::default());
                let wrote = file.write_at(&[IoSlice::new(&page.0)], 0);
                rustix::fs::unlink(&probe)?;
                // A full disk says nothing about direct I/O.
                !wrote.is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput)
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => false,
            Err(e) => return Err(e),
        };
        Ok(works)
    }

    /// Makes a file system that is written past the page cache (`direct`), or through it.
    pub fn new(direct: bool) -> Self {
        Self { direct, mode: None }
    }

    /// Makes files with these permission bits. Without, the owner reads and writes them, and the
    /// group reads them, as far as the umask lets it.
    pub fn with_mode(self, mode: Option<u32>) -> Self {
        Self { mode, ..self }
    }

    pub fn is_direct(self) -> bool {
        self.direct
    }
}

impl Io for Disk {
    type File = DiskFile;

    fn create(&self, path: &Path) -> io::Result<DiskFile> {
        let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        if self.direct {
            flags |= OFlags::DIRECT;
        }
        let fd =
            match waiting_for_disk(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o640))) {
                Ok(fd) => fd,
                Err(e) => {
                    // Linux makes the file before it finds that it cannot be written directly.
                    if e == rustix::io::Errno::INVAL {
                        let _ = rustix::fs::unlink(path);
                    }
                    return Err(e.into());
                }
            };
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
        }
        Ok(DiskFile(fd))
    }

    fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(DiskFile(waiting_for_disk(|| rustix::fs::open(path, flags, Mode::empty()))?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(waiting_for_disk(|| rustix::fs::rename(from, to))?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(waiting_for_disk(|| rustix::fs::unlink(path))?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(waiting_for_disk(|| rustix::fs::fsync(rustix::fs::open(dir, flags, Mode::empty())?))?)
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let s = waiting_for_disk(|| rustix::fs::statvfs(dir))?;
        Ok(Space { free: s.f_bavail * s.f_frsize, total: s.f_blocks * s.f_frsize })
    }
}

/// A file of [`Disk`].
#[derive(Debug)]
pub struct DiskFile(OwnedFd);

impl File for DiskFile {
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let write = || rustix::io::retry_on_intr(|| rustix::io::pwritev(&self.0, pieces, offset));
        Ok(waiting_for_disk(write)?)
    }

    fn preallocate(&self, len: u64) -> io::Result<bool> {
        match waiting_for_disk(|| rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, len))
        {
            // A file system that cannot, or a limit to the length of files (setrlimit(2)); blocks
            // are then allocated as they are written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::FBIG) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(waiting_for_disk(|| rustix::fs::ftruncate(&self.0, len))?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(waiting_for_disk(|| rustix::fs::fsync(&self.0))?)
    }
}
