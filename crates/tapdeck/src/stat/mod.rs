//! `tapdeck stat`: what is in a store?
//!
//! `tapdeck_store::stat` answers from the store's indexes; this module shows the answer, and says
//! on standard error where it is incomplete.

mod chart;
mod json;
mod text;

use std::io::{Write, stdout};
use std::sync::Arc;

use anyhow::{Result, ensure};
use tapdeck_store::WithoutIndexes;
use tapdeck_store::io::{Directory, Storage};
use tapdeck_store::stat::{Question, Report, stat_in};

use crate::flags;
use crate::progress_line::{ProgressLine, say};
use crate::query::time;

pub fn run(flags: &flags::Stat) -> Result<()> {
    let question =
        Question { span: time::span(flags.after, flags.before)?, top: usize::from(flags.top) };
    crate::query::yield_to_recorder();
    let mut progress = ProgressLine::new();
    let store = Directory::new(&flags.dir);
    let store: Arc<dyn Storage> =
        if flags.no_trust_index { Arc::new(WithoutIndexes::new(store)) } else { Arc::new(store) };
    let report = stat_in(&store, question, |done, total| {
        progress.show(|| format!("{done} of {total} segments"));
    })?;
    drop(progress);
    let mut out = stdout().lock();
    if flags.json {
        json::write(&mut out, flags, &report)?;
    } else {
        out.write_all(text::page(flags, &report).as_bytes())?;
    }
    out.flush()?;
    verdict(&report)
}

/// Tells on standard error what is wrong with the store.
fn verdict(report: &Report) -> Result<()> {
    for unusable in &report.unusable {
        say(&format!(
            "the index of {} cannot be used ({}), so not all of its hosts, ports and rate are told; `tapdeck recover` makes a new one",
            unusable.segment, unusable.why
        ));
    }
    for note in &report.notes {
        say(&note.to_string());
    }
    ensure!(
        !report.notes.iter().any(tapdeck_store::query::Note::is_fault),
        "not all of the store is told, as said above; `tapdeck recover` mends what a crash left"
    );
    Ok(())
}

/// Returns a part's share of the whole.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
