//! pcapng, as in draft-ietf-opsawg-pcapng: writing the blocks that stand around
//! packets, and reading any file block by block.
//!
//! Packet blocks of a recording are written by the hook programs in the kernel, and
//! by [`write_packet`] for the socket hooks. Everything is written in the byte
//! order of this machine, as the section header says; the reader takes both.

mod read;
mod write;

pub(crate) use read::{Blocks, HEAD, nanoseconds};
pub use read::{Error, Interface, PacketBlock, Reader, Record, Section, Statistics};
pub use write::{
    InterfaceDescription, StatisticsBlock, comment_packet, fill, interface_description, packet_len,
    section_header, statistics, write_packet,
};

pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub const INTERFACE_DESCRIPTION: u32 = 1;
pub(crate) const OBSOLETE_PACKET: u32 = 2;
pub const SIMPLE_PACKET: u32 = 3;
pub const INTERFACE_STATISTICS: u32 = 5;
pub const ENHANCED_PACKET: u32 = 6;
/// A block that only fills space, of a type reserved for local use (section 11.1), which every
/// reader skips. A custom block would be the other choice, but Wireshark shows those as frames
/// and counts them.
pub const FILL: u32 = 0x8000_7464;
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// The smallest fill block: type, length, length.
pub const MIN_FILL: usize = 12;

/// An enhanced packet block without its frame: 28 bytes of header and the
/// trailing length.
pub const PACKET_OVERHEAD: usize = 32;

/// `epb_flags`, bits 0-1: which way the packet went.
pub const FLAG_INBOUND: u32 = 1;
pub const FLAG_OUTBOUND: u32 = 2;

/// Codes of options; each means something in the blocks of its prefix only.
pub mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SHB_HARDWARE: u16 = 2;
    pub const SHB_OS: u16 = 3;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_DESCRIPTION: u16 = 3;
    pub const IF_MACADDR: u16 = 6;
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_FILTER: u16 = 11;
    pub const IF_OS: u16 = 12;
    pub const IF_FCSLEN: u16 = 13;
    pub const IF_TSOFFSET: u16 = 14;
    pub const IF_HARDWARE: u16 = 15;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_DROPCOUNT: u16 = 4;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
    pub const ISB_FILTERACCEPT: u16 = 6;
    pub const ISB_OSDROP: u16 = 7;
    pub const ISB_USRDELIV: u16 = 8;
}
