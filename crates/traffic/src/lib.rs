//! Workloads: what is sent, when, and whether it came back.
//!
//! A workload is a pure function of its description and its seed. This crate knows how long packets
//! are ([`dist`]) and what stands in them; sockets and BPF are `capture`'s, files and flags the
//! binary's.
#![forbid(unsafe_code)]

pub mod check;
pub mod dist;
pub mod frame;
pub mod pacing;
pub mod replay;
pub mod sampling;
pub mod sent;
pub mod sizes;
pub mod source;
pub mod workload;
