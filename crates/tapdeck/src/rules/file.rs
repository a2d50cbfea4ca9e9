//! Reading rule files, for all commands that take one.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result};
use tapdeck_packet::rules::RuleSet;
use tapdeck_store::io::inflate;

use crate::config::text::{at_most, open};
use crate::progress_line::say;
use crate::standard_input;
use crate::units::counted;
use crate::usage::usage;

/// The most bytes of rules: several million lines.
const MOST: u64 = 512 << 20;

/// Reads a rule file; - is standard input. Where the file has several faults, they go to standard
/// error, and the error that is returned sums them up.
pub fn read(path: &Path) -> Result<RuleSet> {
    parse(path, standard_input::open(path).map(|(input, _)| input))
}

/// Reads a rule file while packets come, when standard input has been read.
pub fn read_again(path: &Path) -> Result<RuleSet> {
    if standard_input::is_named_by(path) {
        return usage("--rules -: standard input can be read once; other rules take a restart");
    }
    let opened = open(path).and_then(inflate);
    let is_kept_out = matches!(&opened, Err(e) if e.kind() == ErrorKind::PermissionDenied);
    let read = parse(path, opened.map(|(input, _)| input as Box<dyn Read>));
    if !is_kept_out {
        return read;
    }
    read.context("rules of another directory than at the start, or that the user of this process may not read, take a restart")
}

fn parse(path: &Path, input: io::Result<Box<dyn Read>>) -> Result<RuleSet> {
    let name = standard_input::name(path);
    let text = input.and_then(|input| at_most(input, MOST));
    let text = text.with_context(|| format!("cannot read {name}"))?;
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
    usage(format!("{name}: faults in {}, {first}", counted(faults.count as u64, "line")))
}
