//! A ring's bytes as plain slices. The ring protocol says who may touch which bytes when; these
//! two functions are where user space relies on it.

use super::mapping::Mapping;

/// Returns the packets of a complete block.
pub fn complete(data: &Mapping, at: usize, len: usize) -> &[u8] {
    // SAFETY: a complete block is not written again before the reader releases it
    // (`Reader::release` takes `&mut self`, so no slice borrowed from the reader is left then), nor
    // while somebody reads it by a `Hold`, whose slices borrow from it (`Holds::read`,
    // `Holds::release`).
    unsafe { data.bytes(at, len) }
}

/// Returns space that one producer has reserved and not yet committed.
#[allow(clippy::mut_from_ref)]
pub fn reserved(data: &Mapping, at: usize, len: usize) -> &mut [u8] {
    // SAFETY: reservations are disjoint (the compare-and-swap on the reservation word
    // gives each byte to one producer), `Reserved::commit` consumes the reservation, and the
    // reader looks at a block only when all of it is committed.
    unsafe { data.bytes_mut(at, len) }
}
