//! What happened to the packets.

use crate::Hook;
use crate::interface::NicCounters;

/// The counters of a deck. For a group, over all its ports and over all members that it has and has had:
///
/// ```text
/// seen + extra = filtered + no_member + captured + dropped_ring + dropped_other
/// ```
///
/// Exact whenever no packet is on its way.
#[derive(Clone, Debug, Default)]
pub struct DeckStats {
    pub ports: Vec<PortStats>,
    pub groups: Vec<GroupStats>,
    pub members: Vec<MemberStats>,
}

/// One interface at one hook.
#[derive(Clone, Debug)]
pub struct PortStats {
    pub interface: String,
    pub hook: Hook,
    /// Whether the interface is there.
    pub attached: bool,
    /// Packets that reached the hook.
    pub seen: u64,
    /// What the device has counted since the deck was started.
    pub nic: NicCounters,
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    pub name: String,
    pub paused: bool,
    /// Members it has now.
    pub members: u32,
    /// Packets that reached it while it was not paused.
    pub seen: u64,
    /// Of them, refused by its filter or its rules.
    pub filtered: u64,
    /// Of them, taken by no member, for there was none.
    pub no_member: u64,
    /// Copies beyond the first of each packet, where several members get one.
    pub extra: u64,
    pub captured: u64,
    pub captured_bytes: u64,
    pub dropped_ring: u64,
    pub dropped_other: u64,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStats {
    pub member: u32,
    pub group: String,
    pub weight: u32,
    /// Packets that were put into its rings.
    pub captured: u64,
    pub captured_bytes: u64,
    /// Packets for which its rings had no room: it did not read fast enough.
    pub dropped_ring: u64,
    /// Packets lost by contention, or which the kernel could not read.
    pub dropped_other: u64,
    pub ring_fill_bytes: u64,
    pub ring_bytes: u64,
}

impl GroupStats {
    /// Adds a member's numbers.
    pub(super) fn add(&mut self, member: &MemberStats) {
        self.captured += member.captured;
        self.captured_bytes += member.captured_bytes;
        self.dropped_ring += member.dropped_ring;
        self.dropped_other += member.dropped_other;
    }
}
