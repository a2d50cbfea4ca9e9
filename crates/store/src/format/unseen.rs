//! How does a recording tell of packets that its hook was not shown? By a statistics block of its
//! own for each time in which that happened, with a comment; in a store at the beginning of the
//! segment that comes after, where every reader looks.
//!
//! Statistics at a segment's end count what came to the hook, and these blocks what did not, so the
//! sums over all blocks of a recording are its totals.

use tapdeck_packet::pcapng::{Statistics, StatisticsBlock};

/// What the comment of such a block begins with.
const COMMENT: &str = "unseen: ";

/// A time in which an interface received packets that its hook was not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenSpan {
    /// The pcapng id of the interface, the first where it has several.
    pub interface: u32,
    /// Number of packets.
    pub packets: u64,
    /// When packets were last seen before, and first after: UTC, nanoseconds.
    pub first_ns: u64,
    pub last_ns: u64,
    /// The cause, in words.
    pub why: String,
}

impl UnseenSpan {
    /// Returns the block that tells of this.
    pub fn block(&self) -> StatisticsBlock {
        let packets = if self.packets == 1 { "packet" } else { "packets" };
        StatisticsBlock {
            interface: self.interface,
            time_ns: self.last_ns,
            start_ns: self.first_ns,
            end_ns: self.last_ns,
            received: self.packets,
            unseen: self.packets,
            comment: Some(format!("{COMMENT}{} {packets}, {}", self.packets, self.why)),
            ..StatisticsBlock::default()
        }
    }

    /// Returns what a statistics block tells, if it is such a one.
    pub(crate) fn told(statistics: &Statistics) -> Option<Self> {
        let told = statistics.comment.as_deref()?.strip_prefix(COMMENT)?;
        Some(Self {
            interface: statistics.interface,
            packets: statistics.interface_dropped.unwrap_or(0),
            first_ns: statistics.start?,
            last_ns: statistics.end?,
            why: told.split_once(", ")?.1.to_owned(),
        })
    }
}
