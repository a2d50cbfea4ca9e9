//! `tapdeck check-traffic`: did everything that `tapdeck gen` sent come back whole?
//!
//! `tapdeck_traffic::check` compares; this module feeds the recording to it and tells the result.
//! The exit code is 1 where something did not come back whole, or a store lacks segments.

mod input;
mod report;

use std::fs;
use std::io::{self, BufWriter, ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tapdeck_traffic::check::{Check, Report};
use tapdeck_traffic::sent::Sent;

use crate::standard_input;
use crate::units::show_count;
use crate::{flags, recording};
use input::RecordingNotes;

pub fn run(flags: &flags::CheckTraffic) -> Result<()> {
    standard_input::refuse_twice(flags.recording.iter().map(PathBuf::as_path))?;
    let sent = read_sent(&flags.sent)?;
    let mut check =
        Check::new(sent, flags.routed).with_context(|| flags.sent.display().to_string())?;
    let mut notes = RecordingNotes::default();
    let inputs = recording::resolve(flags.recording.iter().map(PathBuf::as_path))?;
    let has_hole = input::tell_missing(&flags.recording)?;
    for recorded in inputs {
        input::read(&recorded, &mut check, &mut notes, flags.up_to_damage)?;
    }
    let report = check.finish();
    match write(flags, &report, &notes) {
        // The reader has seen enough; what was found stays true.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
        result => result.context("cannot write to standard output")?,
    }
    if !report.is_clean() {
        bail!("{}", verdict(&report));
    }
    ensure!(!has_hole, "the recording is not whole, as said above");
    Ok(())
}

fn read_sent(path: &Path) -> Result<Sent> {
    let name = path.display();
    let text = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{name} is not what `tapdeck gen --json` wrote"))
}

fn write(flags: &flags::CheckTraffic, report: &Report, notes: &RecordingNotes) -> io::Result<()> {
    let mut out = BufWriter::new(stdout());
    if flags.json {
        report::write_json(&mut out, report, notes)?;
    } else {
        report::write_text(&mut out, report, notes, flags.streams)?;
    }
    out.flush()
}

/// Returns why the exit code is 1.
fn verdict(report: &Report) -> String {
    let faults = [
        (report.lost, "lost"),
        (report.damaged, "damaged"),
        (report.cut, "captured too short to tell"),
    ];
    let found = faults.into_iter().filter(|(n, _)| *n > 0);
    let found: Vec<String> = found.map(|(n, what)| format!("{} {what}", show_count(n))).collect();
    format!("not all packets came back whole: {}", found.join(", "))
}
