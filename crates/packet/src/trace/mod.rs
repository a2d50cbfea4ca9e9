//! Which packets does a capture file hold?
//!
//! [`Reader`] answers for pcap and pcapng, for files of any size, from anything that can be read: a
//! file, a pipe, a decompressor. The source is read once, in large pieces, into one window of
//! 256 KiB. A packet borrows from the window and nothing is copied; so [`Reader::next_packet`]
//! lends packets, and there is no iterator. The window grows only for a packet that does not fit,
//! and no length in the file can make it grow past 16 MiB, or at all before the bytes have come.
//! Blocks of pcapng that no packet depends on are passed over however large they are.
//!
//! What is not a packet is not shown: no comments, statistics or names of interfaces.
//! [`crate::pcapng::Reader`], for pcapng that lies in memory, shows every block, and so does
//! [`PcapngBlocks`], from anything that can be read. All read a block with the same code.

use std::io::Read;

use crate::link::LinkType;
use crate::pcapng::SECTION_HEADER;

mod blocks;
mod error;
mod found;
mod pcap;
mod pcapng;
mod window;

pub use blocks::{PcapngBlock, PcapngBlocks};
pub use error::Error;

use pcap::Pcap;
use pcapng::Pcapng;
use window::Window;

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970, UTC; `None` where the file has no time for the packet, or one that
    /// does not fit.
    pub time_ns: Option<i64>,
    pub link: LinkType,
    /// Length of the frame on the wire in bytes, as the file says, without FCS.
    pub original_len: u32,
    /// What was captured of the frame, without FCS.
    pub frame: &'a [u8],
    /// Number of the interface, counted from 0 over all sections of the file; always 0 in pcap.
    pub interface: u32,
    /// The value of `epb_flags`; 0 where there is none, and in pcap.
    pub flags: u32,
    /// Number of packets lost between this packet and the one before it on the same interface,
    /// where the file says so.
    pub dropped: u64,
    /// Bytes of the frame that a recorder of tapdeck gave up, as `EPB_SHED` tells.
    pub shed: u32,
}

/// The format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Pcap,
    Pcapng,
}

/// Returns whether a file that begins with these bytes is a capture file. The first 4 bytes decide;
/// a shorter file is none.
pub fn looks_like_trace(first: &[u8]) -> bool {
    first.first_chunk().is_some_and(|first| is_section_header(*first) || pcap::is_magic(*first))
}

/// Returns whether the bytes are the type of a section header, which reads the same in both byte
/// orders.
fn is_section_header(first: [u8; 4]) -> bool {
    u32::from_ne_bytes(first) == SECTION_HEADER
}

/// Reads the packets of a pcap or pcapng file one after the other.
pub struct Reader<R> {
    window: Window<R>,
    file: File,
    failed: bool,
}

enum File {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

impl<R: Read> Reader<R> {
    /// Reads the magic number, and the header of a pcap file. `source` needs no buffer of its own.
    ///
    /// # Errors
    /// Where the source cannot be read, or does not begin as a capture file does.
    pub fn new(source: R) -> Result<Self, Error> {
        let mut window = Window::new(source);
        window.fill(4)?;
        let Some(first) = window.bytes().first_chunk() else {
            return Err(if window.bytes().is_empty() { Error::Empty } else { Error::Neither });
        };
        let file = if is_section_header(*first) {
            File::Pcapng(Pcapng::default())
        } else if pcap::is_magic(*first) {
            File::Pcap(Pcap::begin(&mut window)?)
        } else {
            return Err(Error::Neither);
        };
        Ok(Self { window, file, failed: false })
    }

    pub fn format(&self) -> Format {
        match self.file {
            File::Pcap(_) => Format::Pcap,
            File::Pcapng(_) => Format::Pcapng,
        }
    }

    /// Returns the end of the last good block or record, where the next one begins: bytes from the
    /// file's beginning.
    pub fn offset(&self) -> u64 {
        self.window.taken()
    }

    /// Returns the next packet; `None` where the file ends behind a whole block or record.
    ///
    /// # Errors
    /// A fault of the file or the source, once and after all packets before it. Every later call
    /// returns `None`.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, Error> {
        if self.failed {
            return Ok(None);
        }
        let found = match &mut self.file {
            File::Pcap(pcap) => pcap.next(&mut self.window),
            File::Pcapng(pcapng) => pcapng.next(&mut self.window),
        };
        self.failed = found.is_err();
        let Some(found) = found? else {
            return Ok(None);
        };
        let block = self.window.take(found.len);
        Ok(Some(Packet {
            time_ns: found.time_ns,
            link: found.link,
            original_len: found.original_len,
            frame: &block[found.frame],
            interface: found.interface,
            flags: found.flags,
            dropped: found.dropped,
            shed: found.shed,
        }))
    }
}
