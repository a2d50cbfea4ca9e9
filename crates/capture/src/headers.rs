//! What do the hook programs see in a packet, and where would they steer it?
//!
//! The programs read headers and compute hashes in C (`bpf/headers.h`, `bpf/steer.h`). These
//! functions run the same lines in user space, over a frame in memory, so that what the kernel
//! decides can be foretold and tested. Fragments are remembered as in the kernel, though fewer, and
//! for each thread by itself.

pub use crate::sys::headers::{FlowFound, Found, Tuple, find, find_flow, forget};

/// Flags of a [`Tuple`].
pub const HAS_PORTS: u8 = 1;
pub const FIRST_FRAGMENT: u8 = 2;
pub const LATER_FRAGMENT: u8 = 4;
