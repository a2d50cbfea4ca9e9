//! What the kernel reads of a rule set: one flat, position-independent piece of memory.
//!
//! The hook programs judge each packet by an **image** (`crates/capture/bpf/rules.h` is its form,
//! `look.h` next to it the look-up). It must answer in a time that hardly grows with the number of
//! rules or of signatures, and fit a hundred thousand rules into a few MiB. So everything that can
//! be decided beforehand is decided here:
//!
//! - All patterns stand in one **hash table** for each family, masked, with their signature's
//!   number ([`perfect`]). No two share a slot: a look-up is one comparison, whoever chose the
//!   packets. A [Bloom filter](super::bloom) of all of them is the first look.
//! - Which **signatures** are worth a look-up is known from the packet's addresses. The prefixes of
//!   all rules cut the address space into intervals; tables of places lead an address to its
//!   interval's signatures ([`prefixes`]). Neighbouring intervals share a list where together they
//!   have few signatures; so a list may name more than it must, never less.
//! - Where an address is covered by more than four signatures there is a **bitmap**, and those of
//!   both addresses and of ports and protocol are intersected. Sets without such an address have no
//!   bitmaps at all.
//! - Signatures that look at no address are at most eight, and are listed by which of ports and
//!   protocol some rule asks for.
//!
//! Precedence is [`RuleSet::order`]: a rule's priority is its place there, signatures are numbered
//! by their best rule, and each rule knows from which signature on no better one can come.

mod layout;
mod perfect;
mod prefixes;

use std::collections::BTreeMap;

use super::bloom;
use super::rule::Action;
use super::set::RuleSet;
use super::signature::{Family, Key, Signature};
use layout::{Outcome, Writer};

pub use layout::{HEADER_BYTES, Lanes, MAGIC};

/// Signatures of one family that a set can have at most (`TD_MAX_SIGNATURES`).
pub const MAX_SIGNATURES: usize = 4096;
/// Bytes of an image at most: places in it have 32 bits, some of them 30 in units of 8.
pub const MAX_BYTES: u64 = 1 << 31;

/// How a packet's rule is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The packet's addresses name the signatures that are tried.
    #[default]
    Candidates,
    /// All signatures are tried in order, each behind the Bloom filter, as in the thesis.
    Walk,
}

/// Why a name is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no rules engine {0:?}: take candidates or walk")]
pub struct NoEngine(String);

impl std::str::FromStr for Engine {
    type Err = NoEngine;

    fn from_str(name: &str) -> Result<Self, NoEngine> {
        match name {
            "candidates" => Ok(Self::Candidates),
            "walk" => Ok(Self::Walk),
            _ => Err(NoEngine(name.into())),
        }
    }
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Candidates => "candidates",
            Self::Walk => "walk",
        })
    }
}

/// How an image is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub engine: Engine,
    /// Promised false-positive rate of the Bloom filter.
    pub false_positive_rate: f64,
    /// Its size; [`bloom::Size::UpTo`] takes what the promise needs.
    pub bloom: bloom::Size,
    /// The numbers that `group=NAME` stands for.
    pub groups: BTreeMap<String, u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            false_positive_rate: bloom::PROMISED_RATE,
            bloom: bloom::Size::UpTo(bloom::MAX_BITS),
            groups: BTreeMap::new(),
        }
    }
}

/// Why a set has no image.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// too many masks
    #[error(
        "the rules have {count} signatures for {}, and {MAX_SIGNATURES} can be judged: write them with fewer different prefix lengths (tapdeck rules compile finds which)", name(*.family)
    )]
    Signatures { family: Family, count: usize },
    /// a group that there is not
    #[error(
        "rule {} sends packets to group {name:?}, which does not exist here: name one of the configuration", .rule + 1
    )]
    Group { rule: u32, name: String },
    /// a Bloom filter that does not keep the promise
    #[error(transparent)]
    Bloom(#[from] bloom::Error),
    /// a hash table that cannot be made, whatever the seed
    #[error(
        "no hash function tells these rules apart, which should never happen: report it, with the rules"
    )]
    Hashes,
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

/// A rule set as the kernel reads it.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    facts: Facts,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("bytes", &self.bytes.len())
            .field("facts", &self.facts)
            .finish()
    }
}

/// What an image holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Rules of the set, those that are not enabled among them: counters are kept for each.
    pub rules: u32,
    /// Patterns in the tables; those of a rule that can never be the first to fit are not among
    /// them.
    pub patterns: u64,
    /// Signatures that are tried for packets of IPv4 and of IPv6.
    pub signatures: [u32; 2],
    pub bloom_bits: u64,
    /// Bytes of tables that find signatures by address, of those the lists and bitmaps; of hash
    /// tables.
    pub prefix_bytes: u64,
    pub row_bytes: u64,
    pub hash_bytes: u64,
    /// Whether some addresses are covered by too many signatures for lists.
    pub has_bitmaps: bool,
}

impl Image {
    /// # Errors
    /// Where the rules' actions name what does not exist, and beyond the limits.
    pub fn build(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let sorted = Sorted::new(set, options)?;
        let patterns = sorted.families.iter().map(|family| family.patterns.len() as u64).sum();
        let bits = bloom::plan(patterns, options.false_positive_rate, options.bloom)?;
        // A finer cut of the address space costs memory, a coarser one only tries in vain.
        let mut smallest = None;
        for fineness in prefixes::FINENESS {
            let image = layout::write(&sorted, options, bits, fineness)?;
            if image.bytes.len() as u64 <= prefixes::WELCOME_BYTES {
                return Ok(image);
            }
            smallest = Some(image);
        }
        smallest.ok_or(Error::TooLarge)
    }

    /// The bytes, with [`Lanes`] not yet set: nothing is counted by them as they are.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// The patterns of one family, numbered.
struct Sorted {
    rules: u32,
    families: [SortedFamily; 2],
    any: Option<Outcome>,
}

struct SortedFamily {
    family: Family,
    /// By their best rule.
    signatures: Vec<Signature>,
    /// Each once: the signature's number, what it looks for, and the best rule for that.
    patterns: Vec<(u16, Key, Outcome)>,
}

impl Sorted {
    fn new(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let mut any = None;
        let mut families =
            [Family::V4, Family::V6].map(|family| (family, BTreeMap::new(), Vec::new()));
        let mut seen = std::collections::HashSet::new();
        for (priority, number) in (0..).zip(set.order()) {
            let Some(rule) = set.rule(number as usize) else { continue };
            let outcome = outcome(&rule.action, number, priority, options)?;
            for pattern in rule.patterns() {
                let signature = pattern.signature;
                if signature == Signature::ANY {
                    any.get_or_insert(outcome);
                    continue;
                }
                for (family, numbers, patterns) in &mut families {
                    if signature.family.is_some_and(|of| of != *family) {
                        continue;
                    }
                    let signature = Signature { family: Some(*family), ..signature };
                    let next = numbers.len();
                    let id = *numbers.entry(signature).or_insert(next);
                    if seen.insert((signature, pattern.key)) {
                        patterns.push((id, pattern.key, outcome));
                    }
                }
            }
        }
        let families = families.map(|(family, numbers, patterns)| {
            // Numbered in the order in which they came, which is that of their best rules.
            let mut signatures = vec![Signature::ANY; numbers.len()];
            for (signature, id) in numbers {
                signatures[id] = signature;
            }
            (family, signatures, patterns)
        });
        for (family, signatures, _) in &families {
            if signatures.len() > MAX_SIGNATURES {
                return Err(Error::Signatures { family: *family, count: signatures.len() });
            }
        }
        let families = families.map(|(family, signatures, patterns)| {
            let mut best = vec![u32::MAX; signatures.len()];
            for (id, _, outcome) in &patterns {
                best[*id] = best[*id].min(outcome.priority);
            }
            let patterns = patterns.into_iter().map(|(id, key, outcome)| {
                let stop = best.partition_point(|&best| best < outcome.priority) as u16;
                (id as u16, key, Outcome { stop, ..outcome })
            });
            SortedFamily { family, patterns: patterns.collect(), signatures }
        });
        Ok(Self { rules: set.len() as u32, families, any })
    }
}

fn outcome(action: &Action, rule: u32, priority: u32, options: &Options) -> Result<Outcome, Error> {
    let (action, value) = match action {
        Action::Accept => (1, 0),
        Action::Drop => (2, 0),
        Action::Snaplen(bytes) => (3, *bytes),
        Action::Group(name) => match options.groups.get(name) {
            Some(number) => (4, *number),
            None => return Err(Error::Group { rule, name: name.clone() }),
        },
    };
    Ok(Outcome { rule, priority, value, stop: u16::MAX, action })
}

/// Puts all parts together; here for the sake of its name.
fn finish(writer: Writer, facts: Facts) -> Result<Image, Error> {
    let bytes = writer.into_bytes();
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge);
    }
    Ok(Image { bytes, facts })
}
