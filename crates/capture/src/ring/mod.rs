//! The ring: blocks of memory that producers fill and a reader empties.
//!
//! `docs/ARCHITECTURE.md` describes the protocol. The hook programs have the producer's half in C.
//! Here it stands for user space, generic over the memory that it works on, so that the same lines
//! run over memory shared with the kernel, over memory shared with a socket hook's thread, and
//! under the model checker (`tests/ring_model.rs`). The arithmetic is compiled from the header that
//! the hook programs include. The reader's half is in `tapdeck_packet::ring`, because programs that
//! attach to a ring from outside need it too.

mod memory;
mod protocol;
mod socket;
mod waker;

pub(crate) use memory::{CUT, SHED};
pub use memory::{Geometry, GeometryError, RingMemory};
pub use protocol::{Memory, Reservation, Reserved, flush, reserve, wakes};
pub use socket::{Packet, Producer, socket_ring};
pub use tapdeck_packet::ring::{Cut, LastingMemory, ReadMemory, Reader, end_hold};
pub(crate) use waker::WakesMap;

/// The reader's end of a ring that this process has mapped.
pub type RingReader = tapdeck_packet::ring::RingReader<RingMemory>;
