//! Which packets does a set of rules take?
//!
//! A **rule** is a pattern over a packet's 5-tuple, and what to do with packets that fit it. Its
//! **signature** is the pattern's mask alone: how many bits of each address it looks at, and
//! whether it looks at ports and protocol. Rules of one signature differ in values only, so one
//! exact look-up judges a packet against all of them (Gopalakrishnan 2011, chapter 4).
//!
//! Rules judge a packet's **outer** headers, as a [`Tuple`] says them. Of the rules that fit, one
//! takes the packet: the rule of the most specific signature, and among equals the first of the
//! file. [`RuleSet::order`] is that order; every judge of packets, in the kernel or here, takes the
//! first rule in it that fits. A packet that no rule takes is not captured.
//!
//! The hook programs judge packets by the [image](image) of a set; nothing here is on a packet's
//! way. `docs/RULES.md` has the language and the model for users.

pub mod bloom;
pub mod cluster;
pub mod cost;
pub mod fragments;
mod hash;
pub mod image;
mod judge;
mod merge;
mod parse;
mod rule;
mod set;
mod signature;
pub mod tuple;

pub use judge::Judge;
pub use merge::{Merged, Why};
pub use parse::{Fault, MAX_PORT_PAIRS, MAX_RULES, ParseError, ParseErrors};
pub use rule::{Action, MAX_CUTOFF, MAX_GROUP_NAME, MAX_SNAPLEN, PortRange, Protocol, Rule};
pub use set::{Entry, RuleSet};
pub use signature::{Key, Pattern, Signature, prefix_mask};
pub use tuple::{Family, Tuple};
