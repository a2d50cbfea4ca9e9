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
