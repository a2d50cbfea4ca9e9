//! Reading rule files, for all commands that take one.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use tapdeck_packet::rules::RuleSet;

use crate::progress_line::say;
use crate::standard_input;
use crate::usage::usage;

/// Reads a rule file; - is standard input. Where the file has several faults, they go to standard
/// error, and the error that is returned sums them up.
pub fn read(path: &Path) -> Result<RuleSet> {
    let name = standard_input::name(path);
    let mut text = Vec::new();
    standard_input::open(path)
        .and_then(|(mut input, _)| input.read_to_end(&mut text))
        .with_context(|| format!("cannot read {name}"))?;
    let faults = match RuleSet::parse(&text) {
        Ok(set) => return Ok(set),
        Err(faults) => faults,
    };
    if let ([fault], 1) = (&faults.errors[..], faults.count) {
        return usage(format!("{name}: {fault}"));
    }
    for fault in &faults.errors {
        say(&format!("{name}: {fault}"));
    }
    let first = match faults.errors.len() {
        shown if shown < faults.count => format!("the first {shown} are told above"),
        _ => "as told above".into(),
    };
    usage(format!("{name}: {} lines are no rules, {first}", faults.count))
}
