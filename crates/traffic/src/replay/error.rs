//! Why is there nothing to replay? Each reason says what is wrong with the file or with a flag's
//! text, and what to do.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;
use tapdeck_packet::{link::LinkType, trace};

use super::ReplayCounts;
use crate::pacing;

/// Why there is nothing to replay, or a text does not say how.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// not one of the forms
    #[error(
        "{0:?} is no speed; write x2 or x0.5 (times as recorded), max, or a rate as 1.2mpps or 700mbit"
    )]
    Speed(String),
    /// nothing, or less, or no number
    #[error("{0:?} is a speed that cannot be; the factor must be more than 0 and finite")]
    Factor(String),
    /// a rate of nothing, or of more than can be
    #[error(transparent)]
    Rate(pacing::Error),
    /// not two networks
    #[error("{0:?} is no rewriting; write OLD=NEW with two networks, as 10.1.0.0/16=198.18.0.0/16")]
    Rule(String),
    /// bits that are set behind the prefix
    #[error("{0} has bits set behind its prefix; write {1} for the network, or the address alone")]
    HostBits(IpNet, IpNet),
    /// IPv4 and IPv6
    #[error("{0}={1}: one is IPv4 and the other IPv6; both must be the same")]
    Versions(IpNet, IpNet),
    /// networks of different sizes
    #[error("{0}={1}: the prefixes must have the same length, so that each host keeps its number")]
    Prefixes(IpNet, IpNet),
    /// standard input
    #[error(
        "-: a replay checks its file before it sends, so it reads it twice; save standard input to a file first"
    )]
    Stdin,
    /// a directory, a pipe, a device
    #[error("{path}: not a regular file; a replay reads its file twice, so save it to one first", path = .0.display())]
    NotAFile(PathBuf),
    /// reading failed
    #[error("{path}: cannot be read: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    /// no capture file, or none that can be read
    #[error("{path}: {error}", path = path.display())]
    Trace { path: PathBuf, error: trace::Error },
    /// a capture file that cannot be read to its end
    #[error("{path}: {error}; --up-to-damage sends what stands before the damage", path = path.display())]
    Damaged { path: PathBuf, error: trace::Error },
    /// frames that are of another kind of network
    #[error("{path}: packet {number} is of link type {link}; Ethernet (1) and raw IP (12, 14, 101, 228, 229) can be sent: \
        take the others out first", path = path.display())]
    LinkType { path: PathBuf, number: u64, link: LinkType },
    /// a capture file without packets
    #[error("{path}: there is no packet in it{}", before(damage.as_deref()), path = path.display())]
    NoPackets { path: PathBuf, damage: Option<String> },
    /// a capture file whose packets are all left out
    #[error("{path}: none of its packets can be sent: {} are longer than the {longest} bytes that the interface takes, \
        {} shorter than an Ethernet header, {} no IP", left_out.skipped_long, left_out.skipped_short,
        left_out.skipped_not_ip, path = path.display())]
    NothingFits { path: PathBuf, longest: usize, left_out: Box<ReplayCounts> },
}

fn before(damage: Option<&str>) -> String {
    damage.map_or_else(String::new, |damage| format!(" before the damage: {damage}"))
}
