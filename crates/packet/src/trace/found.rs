//! What the readers of both formats find: a packet's place in the window, and the limit and the
//! arithmetic of lengths that they share.

use std::ops::Range;

use crate::link::LinkType;

/// The longest block that is held in memory, and the most that a pcap record may have captured, in
/// bytes. libpcap has the same limit for pcapng.
pub(super) const MAX_LEN: usize = 16 << 20;

/// A packet that stands in the window.
pub(super) struct Found {
    /// Length of the block or record with which the window begins.
    pub len: usize,
    /// Place of the frame within the block or record.
    pub frame: Range<usize>,
    pub time_ns: Option<i64>,
    pub link: LinkType,
    pub original_len: u32,
    pub interface: u32,
    pub flags: u32,
    pub dropped: u64,
    pub shed: u32,
}

/// Returns how many of the captured bytes are left, and the length on the wire, without an FCS of
/// `fcs` bytes. Captured bytes are FCS only as far as they reach into the frame's last bytes.
pub(super) fn without_fcs(captured: usize, original_len: u32, fcs: u32) -> (usize, u32) {
    let end = captured.max(original_len as usize).saturating_sub(fcs as usize);
    (captured.min(end), original_len.saturating_sub(fcs))
}
