//! `tapdeck stat`: what is in a store?
//!
//! `tapdeck_store::stat` answers from the store's indexes, or from the packets of files of other
//! programs; this module shows the answer, and says on standard error where it is incomplete.

mod text;

use std::io::{Write, stdout};
use std::time::Instant;

use anyhow::{Result, ensure};
use tapdeck_store::query::Error;
use tapdeck_store::stat::{Question, Report, stat_captures, stat_in};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::place;
use crate::progress_line::{ProgressLine, pace, say};
use crate::query::time;

pub fn run(flags: &flags::Stat) -> Result<()> {
    let question =
        Question { span: time::span(flags.after, flags.before)?, top: usize::from(flags.top) };
    crate::query::yield_to_recorder();
    let mut progress = ProgressLine::new();
    let store = place::open(&flags.dir, &flags.shown, None)?;
    let store = place::without_indexes(store, flags.no_trust_index);
    let report = stat_in(&store, question, |done, total| {
        progress.show(|| format!("{done} of {total} segments"));
        true
    });
    drop(progress);
    let report = match report {
        Err(Error::NotAStore(_) | Error::NotADirectory(_)) if !place::is_elsewhere(&flags.dir) => {
            of_captures(flags, question)?
        }
        report => report?,
    };
    let mut out = stdout().lock();
    if flags.json {
        writeln!(out, "{}", report.json(&flags.dir))?;
    } else {
        out.write_all(text::page(flags, &report).as_bytes())?;
    }
    out.flush()?;
    verdict(&report)
}

/// Reads files of other programs, and tells what is in them.
fn of_captures(flags: &flags::Stat, question: Question) -> Result<Report> {
    let interrupt = Interrupt::listen()?;
    let (mut progress, began) = (ProgressLine::new(), Instant::now());
    let report = stat_captures(&flags.dir, question, |bytes, total| {
        progress.show(|| pace(bytes, Some(total), began.elapsed()));
        !interrupt.asked()
    })?;
    drop(progress);
    ensure!(!interrupt.asked(), "stopped by a signal: not all was read");
    Ok(report)
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
        "not all is told, as said above{}",
        if report.is_foreign { "" } else { "; `tapdeck recover` mends what a crash left" }
    );
    Ok(())
}

/// Returns a part's share of the whole.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
