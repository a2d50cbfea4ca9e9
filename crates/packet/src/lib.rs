//! What is a packet, and what is a recording, apart from any socket or file?
//!
//! Bytes and their meaning: protocol numbers and link types ([`numbers`], [`link`]), the headers of
//! a packet and the keys it can be found by ([`header`], [`key`]), what a person wants to know of
//! it ([`summary`], [`dissect`]), the name that many programs give its flow ([`community_id`]),
//! pcapng, pcap and capture files ([`pcapng`], [`pcap`], [`trace`]), the filter language
//! ([`filter`]), rule sets ([`rules`]), the reader's end of a ring ([`ring`]), what a generator
//! sends ([`generate`]), the counters that account for every packet ([`account`]), how texts are
//! shown that others wrote ([`printable`]), what is said of configuration files that are wrong
//! ([`config_fault`]), and how threads are found to hang ([`watch`]).
//!
//! Nothing here opens a file or a socket. `capture` and `store` both depend on this crate and never
//! on each other.
#![forbid(unsafe_code)]

pub mod account;
pub mod community_id;
pub mod config_fault;
pub mod dissect;
pub mod filter;
pub mod generate;
pub mod header;
pub mod key;
pub mod link;
pub mod numbers;
pub mod pcap;
pub mod pcapng;
pub mod printable;
pub mod ring;
pub mod rules;
pub mod summary;
pub mod trace;
pub mod watch;
