//! What can go wrong with evidence, each with its one text.

use std::io;
use std::path::{Path, PathBuf};

use tapdeck_store::{filter, query};

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the file system says so
    #[error("cannot {what} {path}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// the store cannot be read
    #[error(transparent)]
    Query(#[from] query::Error),
    /// the expression is no filter
    #[error(transparent)]
    Filter(#[from] filter::Error),
    /// nothing is written over what is there
    #[error("{0} is there already: take another name, or remove it")]
    Exists(PathBuf),
    /// a key file holds something else
    #[error("{path} holds no Ed25519 {kind} key in PEM: `tapdeck evidence key new` makes one")]
    NoKey { path: PathBuf, kind: &'static str },
    /// somebody else may read it
    #[error("{0} is a private key that others may read: `chmod 600` it")]
    OpenKey(PathBuf),
    /// somebody wrote into a pin
    #[error("{0} is not what was copied: its SHA-256 differs")]
    Changed(PathBuf),
    /// there is no directory of pins
    #[error("{0} holds no pins: `tapdeck pin` makes the first")]
    NoPins(PathBuf),
    /// there is no such pin
    #[error("there is no pin {number} in {dir}: `tapdeck pins` lists those that there are")]
    NoPin { number: u64, dir: PathBuf },
    /// a pin is never deleted for another
    #[error(
        "{dir} is full: it has {used_bytes} of {budget_bytes} bytes: remove pins (`tapdeck unpin`), or give more by --pin-bytes"
    )]
    Full { dir: PathBuf, used_bytes: u64, budget_bytes: u64 },
    /// who asked may have no more
    #[error("more than {most} are asked for: ask for a shorter span, or by a narrower filter")]
    TooMuch { most: String },
    /// the pins are somebody else's to change
    #[error(
        "{dir} belongs to the user with the number {uid}, who alone changes pins there: run this as that user (runuser -u NAME -- tapdeck ...)"
    )]
    NotOurs { dir: PathBuf, uid: u32 },
    /// somebody else changes pins, or keeps the lock
    #[error(
        "pins in {dir} are being changed by another process for longer than 5 s: try again, or end that"
    )]
    Busy { dir: PathBuf },
    /// somebody asked for the end
    #[error("stopped by a signal before all was read")]
    Stopped,
}

impl Error {
    /// Returns whether another call is needed, whatever the machine is like.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Filter(e) => e.is_usage(),
            Self::Exists(_) => true,
            _ => false,
        }
    }

    /// Returns what names the place of a fault of the file system.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
