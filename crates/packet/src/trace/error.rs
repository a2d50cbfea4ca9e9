//! Why a capture file cannot be read.

use std::io;

use crate::pcapng;

/// Why a capture file could not be read, or not further. Offsets count from the file's beginning.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the source failed
    #[error("cannot read: {0}")]
    Io(io::Error),
    /// there is not a single byte
    #[error("empty: a capture file has at least a header")]
    Empty,
    /// the first bytes are no capture file's
    #[error("neither pcap nor pcapng: it begins with neither's magic number")]
    Neither,
    /// the file ends within the header, block or record at `at`
    #[error("cut short: what begins at byte {at} needs {needed} bytes, {have} are there")]
    CutShort { at: u64, needed: u64, have: u64 },
    /// the block or record at `at` contradicts itself or what stands before it
    #[error("damaged at byte {at}: {what}")]
    Damaged { at: u64, what: &'static str },
    /// the file may be good, but is of a kind that cannot be read
    #[error("cannot be read from byte {at} on: {what}")]
    Unsupported { at: u64, what: &'static str },
}

impl From<pcapng::Error> for Error {
    fn from(error: pcapng::Error) -> Self {
        use pcapng::Error as E;
        match error {
            E::NotPcapng => Self::Neither,
            E::CutShort { at, needed, have } => Self::CutShort { at, needed, have },
            E::Damaged { at, what } => Self::Damaged { at, what },
        }
    }
}
