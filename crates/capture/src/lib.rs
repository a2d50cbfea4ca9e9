//! Takes packets off network interfaces, from hooks inside the kernel or from sockets.
//!
//! A [`Capture`] is one interface at one hook. It has one ring for each receive queue (XDP) or
//! CPU (tcx, netfilter), or one for its socket; whoever reads the rings gets finished pcapng
//! packet blocks (`tapdeck_packet::ring`). This is the only crate that knows BPF and
//! packet sockets.

pub mod all_or_none;
mod attach;
mod bpf;
mod capture;
mod clock;
mod config;
mod device;
mod error;
mod event;
mod explain;
pub mod filter;
pub mod flows;
pub mod groups;
pub mod headers;
mod helper;
mod hook;
pub mod interface;
mod lock;
mod losses;
mod memory;
mod netlink;
mod overload;
pub mod persist;
pub mod probe;
pub mod ring;
mod ring_count;
mod route;
pub mod rules;
mod socket;
mod stamps;
mod sys;
pub mod transmit;
pub mod trial;
mod unseen;
mod warnings;

pub use capture::{Capture, LaterPlace};
pub use clock::{Clock, Step, SystemClock, WallClock};
pub use config::Config;
pub use error::Error;
pub use event::Event;
pub use helper::{Helper, Later};
pub use hook::{Deliver, Hook, Linux, RingUnit};
pub use losses::{Losses, Shed};
pub use overload::{LEAST as SHED_LEAST, Overload};
pub use stamps::Stamps;
pub use unseen::{Cause, Unseen};

/// The most rings of one capture (`TD_MAX_RINGS`). More queues than that share rings.
pub const MAX_RINGS: u32 = tapdeck_packet::ring::layout::MAX_RINGS;
