//! `tapdeck rules`: what rule files mean and cost, apart from any recorder.

mod compile;
mod explain;
mod file;
mod test;
mod trace;

use std::path::Path;

use anyhow::Result;

use crate::flags::{self, RulesVerb, Usage};

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
    let is_stdin = |path: &Path| path.as_os_str() == "-";
    if is_stdin(rules) && trace.is_some_and(is_stdin) {
        let why = "- is named twice: standard input can be read once";
        return Err(Usage(why.into()).into());
    }
    Ok(())
}

fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() }
}
