//! How is a pcapng block written?
//!
//! A block is built from a structure of its own that says what stands in it, or for packets and
//! fill from the bytes at hand, into memory that the caller has. Numbers are in the byte order of
//! this machine, as the hook programs write them; `read` reads both orders.

use super::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, FILL, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, MIN_FILL,
    PACKET_OVERHEAD, SECTION_HEADER, option,
};
use crate::link::LinkType;

/// What an interface description block says (section 4.2). Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceDescription {
    /// What the first bytes of the interface's frames are.
    pub link: LinkType,
    /// Bytes kept of a frame at most; 0 where frames are not cut.
    pub snaplen: u32,
    /// The interface's name.
    pub name: String,
    /// The receive queue or CPU of the interface that the packets are of, in words.
    pub description: String,
    /// The filter expression that chose the packets.
    pub filter: Option<String>,
    /// The driver and, where that is known, the device.
    pub hardware: Option<String>,
    /// The interface's MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
}

/// What an interface statistics block says (section 4.6). Times are in nanoseconds since 1970, UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsBlock {
    pub interface: u32,
    pub time_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Packets that the hook saw.
    pub received: u64,
    /// Packets that the filter let through.
    pub accepted: u64,
    /// Packets dropped because there was no space for them.
    pub dropped: u64,
    /// Packets that are in this file.
    pub delivered: u64,
    /// Packets of `received` that the hook was not shown.
    pub unseen: u64,
    pub comment: Option<String>,
}

impl StatisticsBlock {
    /// Returns the statistics, taken at their end, of an interface whose packets were delivered or
    /// dropped, and whose filter's refusals are not told.
    pub fn of_packets(
        interface: u32,
        (start_ns, end_ns): (u64, u64),
        delivered: u64,
        dropped: u64,
    ) -> Self {
        Self {
            interface,
            time_ns: end_ns,
            start_ns,
            end_ns,
            received: delivered + dropped,
            accepted: delivered + dropped,
            dropped,
            delivered,
            unseen: 0,
            comment: None,
        }
    }
}

/// Appends a section header block (section 4.1) of unknown section length.
pub fn section_header(out: &mut Vec<u8>, os: &str, application: &str, comment: Option<&str>) {
    block(out, SECTION_HEADER, |b| {
        b.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        b.extend(1u16.to_ne_bytes());
        b.extend(0u16.to_ne_bytes());
        b.extend((-1i64).to_ne_bytes());
        put(b, option::SHB_HARDWARE, std::env::consts::ARCH.as_bytes());
        put(b, option::SHB_OS, os.as_bytes());
        put(b, option::SHB_USERAPPL, application.as_bytes());
        if let Some(comment) = comment {
            put(b, option::COMMENT, comment.as_bytes());
        }
        put(b, option::END, &[]);
    });
}

/// Appends an interface description block with nanosecond timestamps.
pub fn interface_description(out: &mut Vec<u8>, interface: &InterfaceDescription) {
    block(out, INTERFACE_DESCRIPTION, |b| {
        b.extend(interface.link.0.to_ne_bytes());
        b.extend(0u16.to_ne_bytes());
        b.extend(interface.snaplen.to_ne_bytes());
        put(b, option::IF_NAME, interface.name.as_bytes());
        put(b, option::IF_DESCRIPTION, interface.description.as_bytes());
        if let Some(mac) = interface.mac {
            put(b, option::IF_MACADDR, &mac);
        }
        put(b, option::IF_TSRESOL, &[9]);
        if let Some(filter) = &interface.filter {
            // The first byte says that the rest is a filter expression in libpcap's language.
            let mut value = vec![0];
            value.extend(filter.as_bytes());
            put(b, option::IF_FILTER, &value);
        }
        if let Some(hardware) = &interface.hardware {
            put(b, option::IF_HARDWARE, hardware.as_bytes());
        }
        put(b, option::END, &[]);
    });
}

/// Returns a time as statistics have it.
fn time(ns: u64) -> [u8; 8] {
    let mut time = [0; 8];
    time[..4].copy_from_slice(&((ns >> 32) as u32).to_ne_bytes());
    time[4..].copy_from_slice(&(ns as u32).to_ne_bytes());
    time
}

/// Appends an interface statistics block that counts nothing and has a comment alone.
pub fn comment(out: &mut Vec<u8>, interface: u32, time_ns: u64, text: &str) {
    block(out, INTERFACE_STATISTICS, |b| {
        b.extend(interface.to_ne_bytes());
        b.extend(time(time_ns));
        put(b, option::COMMENT, text.as_bytes());
        put(b, option::END, &[]);
    });
}

/// Appends an interface statistics block.
pub fn statistics(out: &mut Vec<u8>, s: &StatisticsBlock) {
    block(out, INTERFACE_STATISTICS, |b| {
        b.extend(s.interface.to_ne_bytes());
        b.extend(time(s.time_ns));
        if let Some(comment) = &s.comment {
            put(b, option::COMMENT, comment.as_bytes());
        }
        put(b, option::ISB_STARTTIME, &time(s.start_ns));
        put(b, option::ISB_ENDTIME, &time(s.end_ns));
        put(b, option::ISB_IFRECV, &s.received.to_ne_bytes());
        if s.unseen > 0 {
            put(b, option::ISB_IFDROP, &s.unseen.to_ne_bytes());
        }
        put(b, option::ISB_FILTERACCEPT, &s.accepted.to_ne_bytes());
        put(b, option::ISB_OSDROP, &s.dropped.to_ne_bytes());
        put(b, option::ISB_USRDELIV, &s.delivered.to_ne_bytes());
        put(b, option::END, &[]);
    });
}

/// Appends a fill block of exactly `len` bytes that holds nothing but zeros.
///
/// # Panics
/// If `len` is not a multiple of 4 or less than [`MIN_FILL`].
pub fn fill(out: &mut Vec<u8>, len: usize) {
    assert!(len >= MIN_FILL && len.is_multiple_of(4), "fill of {len} bytes");
    block(out, FILL, |b| {
        b.resize(b.len() + len - MIN_FILL, 0);
    });
}

/// Returns the length in bytes of an enhanced packet block for `captured` bytes of a frame.
pub fn packet_len(captured: usize, flags: u32, dropped: u64) -> usize {
    let flags = if flags == 0 { 0 } else { 8 };
    let dropped = if dropped == 0 { 0 } else { 12 };
    let end = if flags + dropped == 0 { 0 } else { 4 };
    PACKET_OVERHEAD + captured.next_multiple_of(4) + flags + dropped + end
}

/// Writes an enhanced packet block (section 4.3) into `out`, which is [`packet_len`] bytes long.
/// The captured frame comes in three pieces, `head`, `tag` and `rest`, so that a VLAN tag that the
/// NIC has stripped can be put back in its place.
///
/// # Panics
/// If `out` has another length than [`packet_len`] returns.
#[allow(clippy::too_many_arguments)]
pub fn write_packet(
    out: &mut [u8],
    interface: u32,
    time_ns: u64,
    frame: [&[u8]; 3],
    original_len: u32,
    flags: u32,
    dropped: u64,
) {
    let captured: usize = frame.iter().map(|f| f.len()).sum();
    let total = packet_len(captured, flags, dropped);
    assert_eq!(out.len(), total, "room for the packet block");
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for word in [
        ENHANCED_PACKET,
        total as u32,
        interface,
        (time_ns >> 32) as u32,
        time_ns as u32,
        captured as u32,
        original_len,
    ] {
        put(&word.to_ne_bytes());
    }
    for piece in frame {
        put(piece);
    }
    put(&[0; 3][..captured.next_multiple_of(4) - captured]);
    if flags != 0 {
        put(&option::EPB_FLAGS.to_ne_bytes());
        put(&4u16.to_ne_bytes());
        put(&flags.to_ne_bytes());
    }
    if dropped != 0 {
        put(&option::EPB_DROPCOUNT.to_ne_bytes());
        put(&8u16.to_ne_bytes());
        put(&dropped.to_ne_bytes());
    }
    if flags != 0 || dropped != 0 {
        put(&[0; 4]);
    }
    put(&(total as u32).to_ne_bytes());
}

/// Adds a comment to the packet block that [`write_packet`] has written from `start` to the end of
/// `out`.
pub fn comment_packet(out: &mut Vec<u8>, start: usize, text: &str) {
    add_option(out, start, option::COMMENT, text.as_bytes());
}

/// Says in the packet block that [`write_packet`] has written from `start` to the end of `out` how
/// many bytes of the frame were shed.
pub fn shed_packet(out: &mut Vec<u8>, start: usize, bytes: u32) {
    let of = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| out[start + at + i]));
    let is_rest = of(24).checked_sub(of(20)) == Some(bytes);
    let value = bytes.to_ne_bytes();
    add_option(out, start, option::EPB_SHED, if is_rest { &[] } else { &value });
}

fn add_option(out: &mut Vec<u8>, start: usize, code: u16, value: &[u8]) {
    let captured = [0, 1, 2, 3].map(|at| out[start + 20 + at]);
    let captured = u32::from_ne_bytes(captured) as usize;
    // The option comes in place of the length and, where there is one, the end of the options.
    let has_options = out.len() - start > PACKET_OVERHEAD + captured.next_multiple_of(4);
    out.truncate(out.len() - if has_options { 8 } else { 4 });
    put(out, code, value);
    put(out, option::END, &[]);
    let total = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&total.to_ne_bytes());
    out.extend(total.to_ne_bytes());
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 4]);
    body(out);
    let total = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&total.to_ne_bytes());
    out.extend(total.to_ne_bytes());
}

fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // An option's length has 16 bits. Longer text is cut between two characters.
    let mut len = value.len().min(usize::from(u16::MAX));
    while len < value.len() && len > 0 && value[len] & 0xc0 == 0x80 {
        len -= 1;
    }
    out.extend(code.to_ne_bytes());
    out.extend((len as u16).to_ne_bytes());
    out.extend(&value[..len]);
    out.resize(out.len().next_multiple_of(4), 0);
}
