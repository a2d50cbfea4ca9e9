//! What the hook programs are told while they run: `struct td_control` of `bpf/ring.h`.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use crate::sys::kernel;
use crate::sys::mapping::Mapping;

/// `sizeof(struct td_control)`.
pub(crate) const CONTROL_BYTES: usize = 24 + 256 * 8;
pub(crate) const SNAPLEN: usize = 4;
pub(crate) const RESTS: usize = 4;
pub(crate) const DEADLINE: usize = 8;
pub(crate) const ABANDONED: usize = 16;
pub(crate) const SEED: usize = 20;
pub(crate) const UTC_OFFSETS: usize = 24;

/// The place where a hook's programs read the epoch and its offset to UTC, and whether there is
/// still somebody who owns them.
#[derive(Clone)]
pub(crate) struct Control(Arc<Mapping>);

impl Control {
    /// Takes a mapping of `CONTROL_BYTES` that can be written.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Self {
        Self(mapping)
    }

    /// Returns whether somebody else has this place mapped in this process by the same mapping.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Stores an epoch's offset, then makes it the epoch of blocks opened from now on.
    pub(crate) fn set(&self, epoch: u32, utc_offset_ns: i64) {
        self.0.i64(UTC_OFFSETS + epoch as usize * 8).store(utc_offset_ns, Release);
        self.0.u32(0).store(epoch, Release);
    }

    /// Returns the epoch of blocks opened from now on.
    pub(crate) fn epoch(&self) -> u32 {
        self.0.u32(0).load(Acquire)
    }

    /// Returns an epoch's offset.
    pub(crate) fn offset_ns(&self, epoch: u32) -> i64 {
        self.0.i64(UTC_OFFSETS + epoch as usize * 8).load(Acquire)
    }

    /// Has the programs keep at most so many bytes of a packet from now on.
    pub(crate) fn set_snaplen(&self, bytes: u32) {
        self.0.u32(SNAPLEN).store(bytes, Release);
    }

    /// Has the programs of a daemon tell it of the next block's first packet, or of none.
    pub(crate) fn set_rests(&self, rests: bool) {
        self.0.u32(RESTS).store(rests.into(), SeqCst);
    }

    /// Draws the seed of the flows' hash, for programs that begin.
    pub(crate) fn draw_seed(&self) {
        let drawn = RandomState::new().build_hasher().finish();
        self.0.u32(SEED).store(drawn as u32, Release);
    }

    /// Has the programs record until a time of `CLOCK_MONOTONIC`.
    pub(crate) fn set_deadline(&self, ns: u64) {
        self.0.u64(DEADLINE).store(ns, Release);
    }

    /// Returns whether the programs have stopped recording since the last call, as the deadline had
    /// passed, and has them record again. A deadline to come must have been set before.
    pub(crate) fn take_abandoned(&self) -> bool {
        let abandoned = self.0.u32(ABANDONED);
        if abandoned.load(Acquire) == 0 {
            return false;
        }
        // No program that has read the old deadline says so once more.
        kernel::wait_for_running_programs();
        abandoned.store(0, Release);
        true
    }
}
