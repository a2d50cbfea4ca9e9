//! Why can a segment not be mended? What a fault names is left as it was.

use std::io;

use tapdeck_packet::printable::counted;

/// Why a segment cannot be mended. It is then left as it was, or as a further attempt can use it.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// packets mean nothing without it
    #[error(
        "its header is damaged, and there are packets behind it, which mean nothing without; it is left as it is"
    )]
    Head,
    /// blocks of this machine's byte order do not go there
    #[error("a machine of the other byte order wrote it: recover it on such a one")]
    ByteOrder,
    /// it is not one segment
    #[error("it has more than one section, which no recorder writes")]
    Sections,
    /// two files would have one name
    #[error("there is {0} already: move one of the two away")]
    Exists(String),
    /// nobody knows what stood there before
    #[error(
        "at byte {at}: {what}{}; nothing tells what stood there before, and it is left as it is",
        and_more(*more)
    )]
    Changed { at: u64, what: String, more: u64 },
    /// the file system says no
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn and_more(more: u64) -> String {
    if more == 0 { String::new() } else { format!(", and {} more", counted(more, "fault")) }
}
