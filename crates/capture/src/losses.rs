//! What did a hook see and not hand on, and why?

/// Packets that were dropped before the rings' readers could get them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub ring: u64,
    pub contended: u64,
    pub unreadable: u64,
}

impl Losses {
    pub fn total(&self) -> u64 {
        self.ring + self.contended + self.unreadable
    }
}

/// What was given up of packets that are in the rings or were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shed {
    /// Packets of which less was kept than otherwise.
    pub packets: u64,
    /// Bytes of their frames that were not kept.
    pub bytes: u64,
}
