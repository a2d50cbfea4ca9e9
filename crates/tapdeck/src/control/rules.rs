//! Rules for a [`Book`](super::Book) whose form for the kernel is `tapdeck_capture`'s.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use tapdeck_capture::rules::{Compiled, Hits};
use tapdeck_packet::rules::RuleSet;
use tapdeck_packet::rules::image::Options;

use super::book::{Compile, Counted};
use crate::rules::{read_rules, read_rules_again};

/// A set of rules and its form for the kernel.
pub type Loaded = (RuleSet, Arc<Compiled>);

/// Returns the function that compiles a set for the kernel.
pub fn compiler(options: Options) -> Compile<Arc<Compiled>> {
    Arc::new(move |set| match Compiled::new(set, &options) {
        Ok(compiled) => Ok(Arc::new(compiled)),
        Err(e) => Err(format!("{:#}", anyhow::Error::from(e))),
    })
}

/// Reads a rule file and compiles its set.
pub fn load(path: &Path, options: &Options) -> Result<Loaded> {
    compiled(path, read_rules(path)?, options)
}

/// The same while packets come.
pub fn load_again(path: &Path, options: &Options) -> Result<Loaded> {
    compiled(path, read_rules_again(path)?, options)
}

fn compiled(path: &Path, set: RuleSet, options: &Options) -> Result<Loaded> {
    let compiled = Compiled::new(&set, options).with_context(|| path.display().to_string())?;
    Ok((set, Arc::new(compiled)))
}

impl From<Hits> for Counted {
    fn from(hits: Hits) -> Self {
        Self { each: hits.per_rule, none: hits.none }
    }
}
