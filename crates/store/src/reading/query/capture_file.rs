//! What is known of a capture file of another recorder before it is read? As much as its beginning
//! and its index tell. Which files there are is [`super::foreign`]'s question.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::trace::{self, Format};

use super::scan::Context;
use crate::format::index::{GRANULE, Identity, Index};
use crate::io::{Access, Object, Storage};

/// How much of a file's beginning is looked at for interfaces: an index has a granule of it.
pub(super) const BEGINNING: usize = GRANULE as usize;
/// Bytes of a pcap file's header.
const HEADER: usize = 24;

/// A capture file of another recorder.
pub(super) struct CaptureFile {
    /// The file's name in its storage.
    pub object: OsString,
    /// What notes call the file.
    pub name: String,
    /// What tells the file from another that comes to have its name.
    pub id: (u64, u64),
    /// Where the packets begin.
    pub begin: u64,
    /// What has to be known where the packets begin.
    pub context: Context,
    /// What has to be known behind [`BEGINNING`], if nothing is described there.
    pub inner: Context,
    /// No packet in the file is from before this time.
    pub earliest_ns: i64,
    /// Where the file's index may be, and whose that must be. `None` where there is no index.
    pub index: Option<(Vec<PathBuf>, Identity)>,
    /// The file's length when it was looked at; [`UNMEASURED`] where that is known only at its end.
    pub end: u64,
    /// Bytes of the file on disk.
    pub disk_bytes: u64,
}

/// The end of a file of which nobody knows the length.
pub(super) const UNMEASURED: u64 = u64::MAX;

impl CaptureFile {
    /// Opens the file. Fails as if it were gone where another has its name.
    pub fn open(&self, storage: &dyn Storage) -> io::Result<Arc<dyn Object>> {
        let object = storage.open(&self.object, Access::Ranges)?;
        if object.state()?.id != self.id {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(object)
    }

    /// Opens the index of the file, if it is still there.
    pub fn index(&self, storage: &dyn Storage) -> Option<Index> {
        let (places, identity) = self.index.as_ref()?;
        identity.open_index(storage, places)
    }

    /// Returns what has to be known where a granule begins.
    pub fn context_at(&self, begin: u64) -> Context {
        if begin <= self.begin { self.context.clone() } else { self.inner.clone() }
    }
}

/// How a file begins.
pub(super) enum Begin {
    Pcapng,
    /// A pcap file begins, with this header.
    Pcap([u8; HEADER]),
    /// A pcap file begins, of which not even the header is whole.
    Short(u64),
    /// A pcap file begins, but what stands there makes no sense.
    Damaged(u64, &'static str),
    /// A compressed file that is not read, whatever is in it.
    Compressed,
    /// The file is neither a pcap nor a pcapng file.
    Other,
}

/// How files begin that xz and bzip2 compressed, which are not read.
const COMPRESSED: [&[u8]; 2] = [&[0xfd, b'7', b'z', b'X', b'Z', 0], b"BZh"];

/// Tells what a file is by how it begins.
pub(super) fn begin(object: &dyn Object) -> io::Result<Begin> {
    let mut header = [0; HEADER];
    let have = object.read_up_to(&mut header, 0)?;
    Ok(match trace::Reader::new(&header[..have]) {
        Ok(reader) if reader.format() == Format::Pcap => Begin::Pcap(header),
        Ok(_) => Begin::Pcapng,
        Err(trace::Error::CutShort { at, .. }) => Begin::Short(at),
        Err(trace::Error::Unsupported { at, what } | trace::Error::Damaged { at, what }) => {
            Begin::Damaged(at, what)
        }
        Err(_) if COMPRESSED.iter().any(|magic| header[..have].starts_with(magic)) => {
            Begin::Compressed
        }
        Err(_) => Begin::Other,
    })
}

/// Returns the link type in a pcap file's header, whose magic number was seen to be good.
pub(super) fn pcap_link(header: &[u8]) -> LinkType {
    let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    // The half of the magic number that holds 0xa1b2 tells the byte order.
    let is_little = word(0)[3] == 0xa1;
    let field = if is_little { u32::from_le_bytes(word(20)) } else { u32::from_be_bytes(word(20)) };
    LinkType(field as u16)
}
