//! Blocks that are read for longer than their ring's reader needs them.
//!
//! The bookkeeping is behind a lock, which is taken for a block, never for a packet. Both the reader that releases blocks and
//! whoever ends a hold tell the producers how far they may go, always with the lock in hand: so that number only goes up, and
//! it goes past a block only after the last look at its bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tapdeck_packet::ring::{Hold, Holds};

use super::RingMemory;
use super::protocol::end_hold;

/// What all holds of a ring have in common.
pub struct Kept {
    memory: Arc<RingMemory>,
    holds: Mutex<Holds>,
}

impl Kept {
    pub fn new(memory: Arc<RingMemory>, holds: Holds) -> Self {
        Self { memory, holds: Mutex::new(holds) }
    }

    pub fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A complete block, held.
pub struct HeldBlock {
    kept: Arc<Kept>,
    block: u64,
    slot: u32,
    used: u32,
}

impl HeldBlock {
    /// Holds the complete block in `slot`, with `used` bytes of packets, `ahead` blocks after the reader's oldest.
    pub fn new(kept: &Arc<Kept>, ahead: u32, slot: u32, used: u32) -> Self {
        let block = kept.holds().hold(ahead);
        Self { kept: kept.clone(), block, slot, used }
    }
}

impl Hold for HeldBlock {
    fn bytes(&mut self) -> Option<&[u8]> {
        let stays = self.kept.holds().read(self.block);
        stays.then(|| self.kept.memory.complete(self.slot, self.used))
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        end_hold(&*self.kept.memory, &mut self.kept.holds(), self.block);
    }
}
