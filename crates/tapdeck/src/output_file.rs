//! Files that flags name. Of none is a link followed: whoever made it may not write what it leads
//! to. One that `-w` names is opened so that nobody but its owner reads packets, and no two
//! processes write it at once.
//!
//! An old file keeps its contents until something is written, and a new one that nothing is written
//! to goes again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// A file that is open for writing, of which nothing was changed yet.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    is_new: bool,
}

impl OutputFile {
    /// Opens a file, making it if need be.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, is_new) = open(path, 0o600, "-w -")?;
        let opened = Self { path: path.to_owned(), file, is_new };
        opened.lock()?;
        Ok(opened)
    }

    /// Keeps others of this program from writing the file, as long as it is open.
    fn lock(&self) -> Result<()> {
        // A pipe is shared by whom it is given to, and a device by everybody.
        if !self.file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Ok(());
        }
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                bail!("{} is being written by another process: name another file", self.name())
            }
            // A file system without locks has one writer at a time by the user's care.
            _ => Ok(()),
        }
    }

    /// Returns how messages call the file.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Empties the file, which stays from now on.
    pub fn begin(&mut self) -> io::Result<File> {
        if self.file.metadata().is_ok_and(|meta| meta.is_file()) {
            self.file.set_len(0)?;
        }
        self.is_new = false;
        self.file.try_clone()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_new {
            return;
        }
        let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let there = fs::symlink_metadata(&self.path).map(id).ok();
        // Another file of that name is somebody else's.
        if there.is_some() && there == self.file.metadata().map(id).ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a file for writing, making it with this mode if need be. Returns whether it was made.
/// `stdout` is the flag by which the user names standard output in its place.
pub fn open(path: &Path, mode: u32, stdout: &str) -> Result<(File, bool)> {
    let what = || format!("cannot write {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    if !leads_to_descriptor(path) {
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    let (file, is_new) = match options.clone().create_new(true).open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => (options.open(path), false),
        made => (made, true),
    };
    match file {
        Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => bail!(
            "{}: it is a symbolic link, which is not followed: name what it leads to ({stdout} is standard output)",
            what()
        ),
        file => Ok((file.with_context(what)?, is_new)),
    }
}

/// Opens a named pipe, which may have no reader yet; `None` where the path names something else.
///
/// To open it for writing alone would be to wait until somebody reads.
pub fn open_pipe(path: &Path) -> Result<Option<File>> {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_fifo()) {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let pipe = options.open(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Some(pipe))
}

/// Returns whether a path names an open descriptor of this process, as the shell's `>(command)`
/// does: the kernel made that link.
fn leads_to_descriptor(path: &Path) -> bool {
    let own = fs::canonicalize("/proc/self/fd");
    let there = path.parent().map(fs::canonicalize);
    matches!((own, there), (Ok(own), Some(Ok(there))) if own == there)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::OutputFile;

    #[test]
    fn a_new_file_is_its_owners_and_an_old_one_keeps_its_contents_until_it_is_begun() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists(), "nothing was written");
        let mut file = OutputFile::open(&path).unwrap().begin().unwrap();
        file.write_all(b"old").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(file);
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(OutputFile::open(&path).unwrap().begin().unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, b"dear").unwrap();
        for to in [&real, &dir.path().join("nowhere")] {
            std::os::unix::fs::symlink(to, &link).unwrap();
            let refused = format!("{:#}", OutputFile::open(&link).unwrap_err());
            assert!(refused.contains("is a symbolic link"), "{refused}");
            assert!(link.is_symlink(), "it is left as it was");
            std::fs::remove_file(&link).unwrap();
        }
        assert_eq!(std::fs::read(&real).unwrap(), b"dear");
        assert!(!dir.path().join("nowhere").exists());
    }

    #[test]
    fn a_descriptor_of_the_process_is_no_link_of_somebodys() {
        use std::io::Read as _;
        use std::os::fd::AsRawFd as _;
        let (mut end, other) = std::io::pipe().unwrap();
        for dir in ["/dev/fd", "/proc/self/fd"] {
            let path = std::path::Path::new(dir).join(other.as_raw_fd().to_string());
            let mut file = OutputFile::open(&path).unwrap().begin().unwrap();
            file.write_all(b"to the pipe").unwrap();
            let mut bytes = [0; 11];
            end.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"to the pipe");
        }
    }

    #[test]
    fn a_file_has_one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = OutputFile::open(&path).unwrap().begin().unwrap();
        file.write_all(b"first").unwrap();
        let refused = format!("{:#}", OutputFile::open(&path).unwrap_err());
        assert!(refused.contains("is being written by another process"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        drop(file);
        assert!(OutputFile::open(&path).is_ok());
    }

    #[test]
    fn what_is_no_file_is_shared() {
        let null = std::path::Path::new("/dev/null");
        let _one = OutputFile::open(null).unwrap().begin().unwrap();
        drop(OutputFile::open(null).unwrap());
        assert!(null.exists());
    }
}
