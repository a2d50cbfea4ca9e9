//! How are pcapng's blocks written and read?
//!
//! Sections are those of draft-ietf-opsawg-pcapng. The functions here write the blocks that stand
//! around packets, and [`Reader`] reads any pcapng that lies in memory, block by block. Blocks are
//! written in this machine's byte order, as the section header says; the reader takes both orders.
//!
//! The packet blocks of a recording are mostly not written here: the hook programs in the kernel
//! write them. [`write_packet`] does the same for the socket hooks. Capture files of any size, and
//! of pcap too, are read by [`crate::trace`].

mod read;
mod write;

pub(crate) use read::{Blocks, HEAD};
pub use read::{Error, Interface, PacketBlock, Reader, Record, Section, Statistics, nanoseconds};
pub use write::{
    InterfaceDescription, StatisticsBlock, comment, comment_packet, fill, interface_description,
    packet_len, section_header, shed_packet, statistics, write_packet,
};

// Types of blocks (section 11.1).
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub const INTERFACE_DESCRIPTION: u32 = 1;
pub(crate) const OBSOLETE_PACKET: u32 = 2;
pub const SIMPLE_PACKET: u32 = 3;
pub const INTERFACE_STATISTICS: u32 = 5;
pub const ENHANCED_PACKET: u32 = 6;
/// A block that only fills space. Its type is one of those reserved for local use, which every
/// reader skips. A custom block would be the other choice, but Wireshark shows custom blocks as
/// frames and counts them.
pub const FILL: u32 = 0x8000_7464;

/// The first word of a section header's body, in the section's byte order (section 4.1).
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Bytes of the smallest fill block: type, length, and length again.
pub const MIN_FILL: usize = 12;

/// What stands in the description of an interface of whose flows no more is recorded than the first
/// bytes.
pub const FLOWS_CUT_OFF: &str = "flows cut off";

/// Bytes of an enhanced packet block without its frame and options: 28 bytes of header and the
/// trailing length.
pub const PACKET_OVERHEAD: usize = 32;

/// The packet came in: a value of bits 0 and 1 of `epb_flags`.
pub const FLAG_INBOUND: u32 = 1;
/// The packet went out: a value of bits 0 and 1 of `epb_flags`.
pub const FLAG_OUTBOUND: u32 = 2;

/// Codes of options (sections 3.5 and 4). A code has its meaning only in the blocks that its prefix
/// names: `SHB_` in section headers, `IF_` in interface descriptions, `EPB_` in enhanced packet
/// blocks, `ISB_` in interface statistics.
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
    /// Bytes of the packet that were shed, 32 bits (`TD_OPT_SHED` of `bpf/shed.h`); without a value
    /// all that were not captured. The code is one of those reserved for local use, which other
    /// readers skip.
    pub const EPB_SHED: u16 = 0xf464;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
    pub const ISB_FILTERACCEPT: u16 = 6;
    pub const ISB_OSDROP: u16 = 7;
    pub const ISB_USRDELIV: u16 = 8;
}
