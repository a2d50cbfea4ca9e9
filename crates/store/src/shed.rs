//! What was given up of packets because a ring was nearly full? Their headers are there.

use std::ops::{Add, AddAssign};

/// What was shed of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shed {
    /// Bytes that were given up.
    pub bytes: u64,
    /// Packets that they are missing from.
    pub packets: u64,
}

impl Shed {
    /// Adds a packet of which so many bytes were given up, if any were.
    pub fn add_packet(&mut self, bytes: u32) {
        self.packets += u64::from(bytes > 0);
        self.bytes += u64::from(bytes);
    }
}

impl Add for Shed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, packets: self.packets + other.packets }
    }
}

impl AddAssign for Shed {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
