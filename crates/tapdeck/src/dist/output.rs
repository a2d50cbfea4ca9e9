//! Files that appear when they are complete.
//!
//! A file is written under another name in the same directory and renamed at its end, so that no
//! reader finds half of it and a command that fails leaves the old file.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// Where an output is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Stdout,
    File(PathBuf),
}

impl Target {
    pub fn new(path: Option<PathBuf>) -> Self {
        match path {
            Some(path) if path.as_os_str() != "-" => Self::File(path),
            _ => Self::Stdout,
        }
    }

    /// Fails where the output could not be written, before work is put into it. A pipe is not
    /// tried: its reader would take the trial for the whole output.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File(path) if path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) => {
                Ok(())
            }
            _ => Staged::open(self).map(drop),
        }
    }
}

/// An output that is being written. One that is dropped before [`Staged::finish`] leaves no file.
pub enum Staged {
    Stdout(BufWriter<io::Stdout>),
    /// A pipe or a device, which no file may take the place of.
    Special(BufWriter<File>, PathBuf),
    File(BufWriter<NamedTempFile>, PathBuf),
}

impl Staged {
    pub fn open(target: &Target) -> Result<Self> {
        let Target::File(path) = target else {
            return Ok(Self::Stdout(BufWriter::new(io::stdout())));
        };
        let cannot = || format!("cannot write {}", path.display());
        // The file that a link points to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        match path.metadata() {
            Ok(there) if there.is_dir() => anyhow::bail!("{}: it is a directory", cannot()),
            Ok(there) if !there.is_file() => {
                let file = File::options().write(true).open(&path).with_context(cannot)?;
                Ok(Self::Special(BufWriter::new(file), path))
            }
            there => {
                // The mode that a new file gets, before the umask.
                let mode = there.map_or(0o666, |m| m.permissions().mode());
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                let file = tempfile::Builder::new()
                    .prefix(".tapdeck-")
                    .permissions(Permissions::from_mode(mode))
                    .tempfile_in(dir.unwrap_or(Path::new(".")))
                    .map_err(without_name)
                    .with_context(cannot)?;
                Ok(Self::File(BufWriter::new(file), path))
            }
        }
    }

    /// Ends the output: the file appears under its name.
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Stdout(mut out) => out.flush()?,
            Self::Special(mut out, path) => {
                out.flush().with_context(|| format!("cannot write {}", path.display()))?;
            }
            Self::File(out, path) => {
                let cannot = || format!("cannot write {}", path.display());
                let file = out
                    .into_inner()
                    .map_err(io::IntoInnerError::into_error)
                    .with_context(cannot)?;
                file.as_file().sync_all().with_context(cannot)?;
                file.persist(&path).map_err(|e| e.error).with_context(cannot)?;
            }
        }
        Ok(())
    }
}

/// Returns the system's error without tempfile's words, which name a file that the user does not
/// know.
fn without_name(e: io::Error) -> io::Error {
    let inner = e.get_ref().and_then(|named| named.source());
    let inner = inner.and_then(|source| source.downcast_ref::<io::Error>());
    match inner.and_then(io::Error::raw_os_error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => e,
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Special(out, _) => out.write(bytes),
            Self::File(out, _) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Special(out, _) => out.flush(),
            Self::File(out, _) => out.flush(),
        }
    }
}
