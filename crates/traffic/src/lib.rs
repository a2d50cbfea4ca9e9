//! Workloads: what is sent, when, and whether it came back.
//!
//! A workload is a pure function of its description and its seed. This crate knows how long packets are
//! ([`dist`]) and what stands in them; sockets and BPF are `capture`'s, files and flags the binary's.
#![forbid(unsafe_code)]

pub mod dist;
