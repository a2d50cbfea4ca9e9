//! The counters that account for every packet.
//!
//! ```text
//! nic_received = seen + nic_dropped
//! seen         = captured + filtered + dropped_ring + dropped_other
//! ```
//!
//! `docs/ACCOUNTING.md` says where each is read and what can make it wrong.

use serde::Serialize;

/// What happened to the packets of one interface since recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Packets that reached the hook.
    pub seen: u64,
    /// Packets that are in the output.
    pub captured: u64,
    /// Packets that the filter refused.
    pub filtered: u64,
    /// Packets dropped because the ring had no free block.
    pub dropped_ring: u64,
    /// Packets dropped for any other reason; the next fields say which.
    pub dropped_other: u64,
    /// Of `dropped_other`: too many producers wanted the ring at once.
    pub dropped_contended: u64,
    /// Of `dropped_other`: the kernel could not read the packet.
    pub dropped_unreadable: u64,
    /// Of `dropped_other`: still unwritten when the recorder had to stop.
    pub dropped_unwritten: u64,
    /// Packets the network device received, whether or not it could deliver them.
    pub nic_received: u64,
    /// Packets the network device had no room for (`rx_missed_errors`).
    pub nic_dropped: u64,
    /// Packets the network device sent; hooks that see both directions see them too.
    pub nic_sent: u64,
    /// Bytes of frames in the output (the sum of the captured lengths).
    pub bytes_captured: u64,
}

impl Counters {
    /// Adds another interface's numbers.
    pub fn add(&mut self, o: &Self) {
        self.seen += o.seen;
        self.captured += o.captured;
        self.filtered += o.filtered;
        self.dropped_ring += o.dropped_ring;
        self.dropped_other += o.dropped_other;
        self.dropped_contended += o.dropped_contended;
        self.dropped_unreadable += o.dropped_unreadable;
        self.dropped_unwritten += o.dropped_unwritten;
        self.nic_received += o.nic_received;
        self.nic_dropped += o.nic_dropped;
        self.nic_sent += o.nic_sent;
        self.bytes_captured += o.bytes_captured;
    }

    /// Packets that were dropped between the hook and the output.
    pub fn dropped(&self) -> u64 {
        self.dropped_ring + self.dropped_other
    }
}
