//! What a packet and a recording are, apart from any socket or file: pcapng
//! blocks, link types, the trait between a ring and whoever empties it, and the
//! counters that account for every packet.
//!
//! Nothing here opens a file or a socket. `capture` and `store` both depend on this crate and never
//! on each other.
#![forbid(unsafe_code)]

pub mod account;
pub mod filter;
pub mod generate;
pub mod header;
pub mod key;
pub mod link;
pub mod numbers;
pub mod pcapng;
pub mod ring;
pub mod rules;
pub mod trace;
