//! What does the kernel read of a rule set?
//!
//! An **image**: one flat, position-independent piece of memory, by which the hook programs judge
//! each packet (`crates/capture/bpf/rules.h` is its form, `look.h` next to it the look-up). A
//! look-up must take a time that hardly grows with the number of rules or of signatures, and a
//! hundred thousand rules must fit into a few MiB. So everything that can be decided beforehand is
//! decided here:
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
//!   bitmaps.
//! - Signatures that look at no address are at most eight, and are listed by which of ports and
//!   protocol some rule asks for.
//!
//! Precedence is [`RuleSet::order`]: a rule's priority is its place there, signatures are numbered
//! by their best rule, and each rule knows from which signature on no better one can come.
//!
//! Putting the image into the kernel, and counting there, is `capture`'s part.

mod error;
mod layout;
mod options;
mod perfect;
mod prefixes;
mod sorted;

use super::bloom;
use super::set::RuleSet;
use sorted::Sorted;

pub use error::{Error, MAX_BYTES, MAX_SIGNATURES};
pub use layout::{Facts, HEADER_BYTES, Lanes, MAGIC};
pub use options::{Engine, NoEngine, Options};

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

impl Image {
    /// Makes the image of a set.
    ///
    /// # Errors
    /// Where a rule names a group that does not exist, and beyond the limits.
    pub fn build(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let sorted = Sorted::new(set, options)?;
        let patterns = sorted.families.iter().map(|family| family.patterns.len() as u64).sum();
        let bits = bloom::plan(patterns, options.false_positive_rate, options.bloom)?;
        // A finer cut of the address space costs memory, a coarser one tries in vain.
        let mut smallest = None;
        for fineness in prefixes::FINENESS {
            let (bytes, facts) = layout::write(&sorted, options.engine, bits, fineness)?;
            if bytes.len() as u64 > MAX_BYTES {
                return Err(Error::TooLarge);
            }
            let image = Self { bytes, facts };
            if image.bytes.len() as u64 <= prefixes::WELCOME_BYTES {
                return Ok(image);
            }
            smallest = Some(image);
        }
        smallest.ok_or(Error::TooLarge)
    }

    /// Returns the bytes. [`Lanes`] are not yet set in them, so that programs count nothing by them
    /// as they are.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}
