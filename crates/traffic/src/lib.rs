//! Workloads: what is sent, when, and whether it came back.
//!
//! A workload is a pure function of its description and its seed. This crate knows how long packets
//! are ([`dist`], [`sizes`]), what stands in them ([`workload`], [`frame`]), when they are due
//! ([`pacing`]), how a recording is sent again ([`replay`]) and whether everything came back
//! ([`check`]). It sends nothing: sockets and BPF belong to the crate `capture`, flags to the
//! program.
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
