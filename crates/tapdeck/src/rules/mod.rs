//! `tapdeck rules`: what rule files mean and cost, apart from any recorder.

mod compile;
mod explain;
mod file;
mod test;
mod trace;

use std::path::Path;

use anyhow::Result;

use crate::flags::{self, RulesVerb};
use crate::standard_input;

pub use file::read as read_rules;

pub fn run(flags: &flags::Rules) -> Result<()> {
    match &flags.verb {
        RulesVerb::Compile(flags) => compile::run(flags),
        RulesVerb::Explain(flags) => explain::run(flags),
        RulesVerb::Test(flags) => test::run(flags),
    }
}

/// Refuses to read two things from standard input.
fn check(rules: &Path, trace: Option<&Path>) -> Result<()> {
    standard_input::refuse_twice([rules].into_iter().chain(trace))
}
