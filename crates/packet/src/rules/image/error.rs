//! Why a rule set has no image, and the limits of an image.

use super::super::bloom;
use super::super::parse::MAX_RULES;
use super::super::tuple::Family;
use crate::printable::{count, counted};

/// The most signatures of one family that a set can have (`TD_MAX_SIGNATURES`).
pub const MAX_SIGNATURES: usize = 4096;
/// The most bytes that an image can have. Places in it have 32 bits, or 30 bits in units of 8
/// bytes.
pub const MAX_BYTES: u64 = 1 << 31;

/// Why a set has no image.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// too many masks
    #[error(
        "the rules have {} for {}, and {} can be judged: write them with fewer different prefix lengths (tapdeck rules compile finds which)", counted(*.count as u64, "signature"), name(*.family), crate::printable::count(MAX_SIGNATURES as u64)
    )]
    Signatures { family: Family, count: usize },
    /// a group that there is not
    #[error("rule {} sends packets to group {name:?}, {}", .rule + 1, no_such_group(.there))]
    Group { rule: u32, name: String, there: Vec<String> },
    /// a Bloom filter that does not keep the promise
    #[error(transparent)]
    Bloom(#[from] bloom::Error),
    /// a hash table that cannot be made, whatever the seed
    #[error(
        "no hash function tells these rules apart, which should never happen: report it, with the rules"
    )]
    Hashes,
    /// more patterns than a set may have
    #[error(
        "more than {} rules, of which a range of ports is one for each port: narrow the ranges, or split the set over several groups", count(MAX_RULES as u64)
    )]
    TooMany,
    /// an image beyond all bounds
    #[error("the rules need more than {} MiB: merge some, or split the set over several groups", MAX_BYTES >> 20)]
    TooLarge,
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// Says which groups there are in the place of one that there is not.
fn no_such_group(there: &[String]) -> String {
    if there.is_empty() {
        "and there are no groups here: record knows none; leave such rules out, or share the interface among groups (tapdeck serve)".into()
    } else {
        format!("which does not exist here: there are {}", there.join(", "))
    }
}
