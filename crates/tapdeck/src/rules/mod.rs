//! `tapdeck rules`: what do rule files mean, and what do they cost?
//!
//! Nothing here needs a privilege or touches a recorder: the sets and their images are
//! `tapdeck_packet::rules`, judged and counted in this process.

mod compile;
mod explain;
mod file;
mod test;
mod trace;

use std::path::Path;

use anyhow::Result;

use crate::flags::{self, RulesVerb};
use crate::standard_input;

pub use file::{read as read_rules, read_again as read_rules_again};

pub fn run(flags: &flags::Rules) -> Result<()> {
    match &flags.verb {
        RulesVerb::Compile(flags) => compile::run(flags),
        RulesVerb::Explain(flags) => explain::run(flags),
        RulesVerb::Test(flags) => test::run(flags),
    }
}

/// Refuses to read both rules and packets from standard input.
fn check(rules: &Path, trace: Option<&Path>) -> Result<()> {
    standard_input::refuse_twice([rules].into_iter().chain(trace))
}
