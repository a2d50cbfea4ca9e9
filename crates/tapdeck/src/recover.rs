//! `tapdeck recover`: mends what a crash left of a store, and says what was lost.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tapdeck_store::io::Disk;
use tapdeck_store::{Action, ClosedScope, Error, Finding, IndexAction, Scope, Store};

use crate::flags;
use crate::progress_line::Work;
use crate::units::{counted, show_bytes, show_count};

#[derive(Serialize)]
struct Json<'a> {
    dir: &'a str,
    dry_run: bool,
    /// Whether nothing that must be mended is left or, after a dry run, would be left.
    sound: bool,
    mended: u64,
    set_aside: u64,
    /// Segments that got an index.
    indexed: u64,
    failed: u64,
    packets: u64,
    bytes_cut: u64,
    bytes_replaced: u64,
    segments: &'a [Segment],
}

#[derive(Serialize)]
struct Segment {
    name: String,
    /// What was done: `none`, `closed`, `set-aside` or `failed`.
    action: &'static str,
    /// What was done with the segment's index: `none`, `made` or `failed`.
    index: &'static str,
    packets_before: u64,
    packets: u64,
    bytes_cut: u64,
    bytes_replaced: u64,
    error: Option<String>,
}

impl Segment {
    fn new(finding: &Finding) -> Self {
        let (action, fault) = match &finding.action {
            Action::None => ("none", None),
            Action::Close => ("closed", None),
            Action::SetAside => ("set-aside", None),
            Action::Fail(fault) => ("failed", Some(format!("cannot be mended: {fault}"))),
        };
        let (index, index_fault) = match &finding.index {
            IndexAction::None => ("none", None),
            IndexAction::Make => ("made", None),
            IndexAction::Fail(e) => ("failed", Some(format!("its index cannot be made: {e}"))),
        };
        Self {
            name: finding.name.to_string(),
            action,
            index,
            packets_before: finding.packets_before,
            packets: finding.packets,
            bytes_cut: finding.bytes_cut,
            bytes_replaced: finding.bytes_replaced,
            error: fault.or(index_fault),
        }
    }
}

pub fn run(flags: &flags::Recover) -> Result<()> {
    let dir = &flags.dir;
    let name = dir.display().to_string();
    // Opening a store makes its directory, which a wrong name must not do.
    if !dir.is_dir() {
        bail!("{name} is not a directory: name a store that `tapdeck record --dir` wrote");
    }
    let closed = if flags.all { ClosedScope::All } else { ClosedScope::Unended };
    let scope = Scope { closed, index: !flags.no_index };
    let mut segments = Vec::new();
    let mut written = Ok(());
    let sizes: BTreeMap<u64, u64> = Store::segments(dir)
        .map(|all| all.into_iter().map(|s| (s.name.number, s.bytes)).collect())
        .unwrap_or_default();
    let mut progress = Work::new(Some(sizes.values().sum()));
    let mut done = 0;
    let each = |finding: &Finding| {
        progress.clear();
        if !flags.json && written.is_ok() {
            // A reader that has gone does not stop the work.
            written = writeln!(stdout(), "{}", describe(finding, flags.dry_run));
        }
        segments.push(Segment::new(finding));
        done += sizes.get(&finding.name.number).unwrap_or(&0);
        progress.show(done, String::new);
    };
    let outcome = if flags.dry_run {
        Store::examine(dir, scope, each)
    } else {
        let store = Store::open(dir);
        store.and_then(|mut store| store.recover(&Disk::new(false), scope, each))
    };
    drop(progress);
    outcome.map_err(explain)?;
    let failed = segments.iter().filter(|s| s.error.is_some()).count();
    let written = written.and_then(|()| summarise(flags, &name, &segments));
    if failed > 0 {
        let which = segments.iter().find_map(|s| Some((&s.name, s.error.as_ref()?)));
        let (segment, why) = which.context("it was counted")?;
        let more = if failed == 1 { String::new() } else { format!(" ({} more)", failed - 1) };
        bail!("{}: {why}{more}", Path::new(&name).join(segment).display());
    }
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Returns the error as it is told by a command that is no recorder itself.
fn explain(e: Error) -> anyhow::Error {
    match e {
        Error::InUse { dir, pid } => {
            let pid = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            anyhow::anyhow!(
                "{} is in use by a recorder{pid}: what it writes needs no mending before it ends",
                dir.display()
            )
        }
        e => e.into(),
    }
}

/// Returns one line about a segment, for `recover` and for `record` when it begins.
pub fn describe(finding: &Finding, dry_run: bool) -> String {
    let name = &finding.name;
    let whole = counted(finding.packets, "packet");
    let would = if dry_run { "would be " } else { "" };
    let index = match &finding.index {
        IndexAction::None => String::new(),
        IndexAction::Make if dry_run => ", its index would be made".into(),
        IndexAction::Make => ", its index was made".into(),
        IndexAction::Fail(e) => format!(", its index cannot be made: {e}"),
    };
    match &finding.action {
        // A segment that was found sound without being read has no count of packets.
        Action::None if finding.packets == 0 => format!("{name}: sound{index}"),
        Action::None => format!("{name}: sound, {whole}{index}"),
        Action::SetAside => {
            format!("{name}: holds no packet, {would}renamed to {name}.damaged")
        }
        Action::Fail(fault) => format!("{name}: cannot be mended: {fault}"),
        Action::Close => {
            let mut parts = vec![format!("{name}: {would}recovered"), whole];
            if finding.packets > finding.packets_before {
                let behind = show_count(finding.packets - finding.packets_before);
                parts.push(format!("{behind} of them behind damage"));
            }
            if finding.bytes_replaced > 0 {
                let bytes = show_bytes(finding.bytes_replaced);
                parts.push(format!("{bytes} damaged and replaced with fill"));
            }
            if finding.bytes_cut > 0 {
                parts.push(format!("{} torn and cut", show_bytes(finding.bytes_cut)));
            }
            parts.join(", ") + &index
        }
    }
}

/// Writes the last line, or all as JSON.
fn summarise(flags: &flags::Recover, dir: &str, segments: &[Segment]) -> io::Result<()> {
    let count = |action: &str| segments.iter().filter(|s| s.action == action).count() as u64;
    let sum = |of: fn(&Segment) -> u64| segments.iter().map(of).sum::<u64>();
    let json = Json {
        dir,
        dry_run: flags.dry_run,
        sound: segments.iter().all(|s| s.error.is_none()),
        mended: count("closed"),
        set_aside: count("set-aside"),
        indexed: segments.iter().filter(|s| s.index == "made").count() as u64,
        failed: segments.iter().filter(|s| s.error.is_some()).count() as u64,
        packets: sum(|s| s.packets),
        bytes_cut: sum(|s| s.bytes_cut),
        bytes_replaced: sum(|s| s.bytes_replaced),
        segments,
    };
    let mut out = stdout().lock();
    if flags.json {
        serde_json::to_writer_pretty(&mut out, &json)?;
        return writeln!(out);
    }
    let would = if flags.dry_run { "would be " } else { "" };
    let counts = [
        (json.mended, format!("{would}recovered")),
        (json.set_aside, format!("{would}set aside")),
        (json.indexed, format!("{would}indexed")),
        (json.failed, "cannot be mended".to_owned()),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", show_count(*n)))
        .collect();
    if counts.is_empty() {
        return writeln!(out, "{dir}: nothing to mend");
    }
    let lost = json.bytes_cut + json.bytes_replaced;
    let lost = if lost == 0 { "nothing".to_owned() } else { show_bytes(lost) };
    writeln!(out, "{dir}: {}; {}, {lost} lost", counts.join(", "), counted(json.packets, "packet"))
}
