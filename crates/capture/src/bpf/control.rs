//! What the hook programs are told while they run: `struct td_control` of `bpf/ring.h`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use crate::sys::mapping::Mapping;

/// `sizeof(struct td_control)`.
pub(crate) const CONTROL_BYTES: usize = 8 + 256 * 8;
pub(crate) const SNAPLEN: usize = 4;
pub(crate) const UTC_OFFSETS: usize = 8;

/// The place where a hook's programs read the epoch and its offset to UTC.
pub(crate) struct Control(Arc<Mapping>);

impl Control {
    /// Takes a mapping of `CONTROL_BYTES` that can be written.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Self {
        Self(mapping)
    }

    /// Stores an epoch's offset, then makes it the epoch of blocks opened from now on.
    pub(crate) fn set(&self, epoch: u32, utc_offset_ns: i64) {
        self.0.i64(UTC_OFFSETS + epoch as usize * 8).store(utc_offset_ns, Release);
        self.0.u32(0).store(epoch, Release);
    }
}
