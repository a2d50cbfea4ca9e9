//! Why can a store not be queried? Errors end a query; what is only missing from an answer is a
//! [`Note`](super::Note).

use std::io;
use std::path::PathBuf;

/// Why a store cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// there is nothing
    #[error("{0} does not exist")]
    NotFound(PathBuf),
    /// it is something else
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// there are no segments, and no recorder was ever there
    #[error("{0} has no segments: name a store that `tapdeck record --dir` wrote")]
    NotAStore(PathBuf),
    /// neither segments nor files of other recorders
    #[error(
        "{0} has no segments and no pcap or pcapng files: name a store that `tapdeck record --dir` wrote, or capture files"
    )]
    NoCaptures(PathBuf),
    /// only what is not read
    #[error("{path} has no segments and no pcap or pcapng files that can be read, but {what}")]
    NothingRead { path: PathBuf, what: String },
    /// a compressed file
    #[error("{0} is compressed: decompress it first")]
    Compressed(PathBuf),
    /// a file of something else
    #[error("{0} is not a directory, and it is no pcap or pcapng file either")]
    NotACapture(PathBuf),
    /// a capture file describes an interface behind where [`super::Snapshot::open_any`] looked
    #[error("{0} was changed while it was read: query again")]
    LateInterface(PathBuf),
    /// no permission
    #[error("no permission to read {0}")]
    Permission(PathBuf),
    /// recorded on a machine of the other byte order
    #[error("{0} was recorded on a machine of another byte order: query it there")]
    ByteOrder(PathBuf),
    /// anything else the file system says
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
}

impl Error {
    pub(crate) fn new(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission(path),
            io::ErrorKind::NotFound => Self::NotFound(path),
            io::ErrorKind::NotADirectory => Self::NotADirectory(path),
            _ => Self::Io { path, source },
        }
    }
}
