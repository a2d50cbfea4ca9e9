//! What the readers of both formats find: a packet's place in the window, and the limit and the
//! arithmetic of lengths that they share.

use std::ops::Range;

use crate::link::LinkType;

/// No block that must stand in memory is longer, and no pcap record captured more; libpcap has
/// the same limit for pcapng.
pub(super) const MAX_LEN: usize = 16 << 20;

/// A packet that stands in the window.
pub(super) struct Found {
    /// Of the block or record, which begins the window.
    pub len: usize,
    /// Within the block or record.
    pub frame: Range<usize>,
    pub time_ns: Option<i64>,
    pub link: LinkType,
    pub original_len: u32,
    pub interface: u32,
    pub flags: u32,
    pub dropped: u64,
}

/// How much of `captured` bytes stays, and the length on the wire, without an FCS of `fcs` bytes.
/// What was captured holds FCS only as far as it reaches into the frame's last bytes.
pub(super) fn without_fcs(captured: usize, original_len: u32, fcs: u32) -> (usize, u32) {
    let end = captured.max(original_len as usize).saturating_sub(fcs as usize);
    (captured.min(end), original_len.saturating_sub(fcs))
}
