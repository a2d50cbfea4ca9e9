//! Which packets did a hook see and not hand on, and why?

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
