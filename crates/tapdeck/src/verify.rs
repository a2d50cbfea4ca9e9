//! `tapdeck verify`: is a store what it should be?

use std::io::{self, ErrorKind, Write, stdout};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tapdeck_store::{Indexed, Store, Verdict, verify_in};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::place;
use crate::progress_line::Work;
use crate::units::{counted, show_bytes, show_count};

#[derive(Serialize)]
struct Json<'a> {
    dir: &'a str,
    sound: bool,
    packets: u64,
    bytes: u64,
    faults: u64,
    segments: &'a [Segment],
}

#[derive(Serialize)]
struct Segment {
    name: String,
    packets: u64,
    bytes: u64,
    /// Bytes of the segment that are indexed: all of them where the index is whole.
    indexed_bytes: u64,
    faults: u64,
    /// The first faults of the segment.
    first_faults: Vec<Fault>,
}

#[derive(Serialize)]
struct Fault {
    file: String,
    /// Where in the segment the fault is, bytes.
    at: u64,
    what: String,
}

impl Segment {
    fn new(verdict: &Verdict) -> Self {
        let fault = |f: &tapdeck_store::Flaw| Fault {
            file: f.file.clone(),
            at: f.at,
            what: f.what.clone(),
        };
        Self {
            name: verdict.name.to_string(),
            packets: verdict.packets,
            bytes: verdict.bytes,
            indexed_bytes: match verdict.indexed {
                Indexed::Whole => verdict.bytes,
                Indexed::Part(bytes) => bytes,
                Indexed::No => 0,
            },
            faults: verdict.count,
            first_faults: verdict.flaws.iter().map(fault).collect(),
        }
    }
}

pub fn run(flags: &flags::Verify) -> Result<()> {
    let dir = flags.dir.display().to_string();
    let interrupt = Interrupt::listen()?;
    crate::query::yield_to_recorder();
    // What a recorder writes meanwhile comes to that.
    let sizes = Store::segments(&flags.dir).map(|all| all.iter().map(|s| s.bytes).sum());
    let store = place::open(&flags.dir, &flags.shown, Some(&interrupt))?;
    let mut progress = Work::new(sizes.ok());
    let mut segments = Vec::new();
    let mut written = Ok(());
    let watch = |bytes| {
        progress.show(bytes, String::new);
        !interrupt.asked()
    };
    let done = verify_in(&*store, watch, |verdict| {
        if !flags.json && written.is_ok() {
            // A reader that has gone does not stop the work.
            written = tell(verdict);
        }
        segments.push(Segment::new(verdict));
    });
    drop(progress);
    if !done? {
        bail!("stopped by a signal after {}", counted(segments.len() as u64, "segment"));
    }
    let faults: u64 = segments.iter().map(|s| s.faults).sum();
    let written = written.and_then(|()| summarise(flags.json, &dir, faults, &segments));
    if faults > 0 {
        // A byte that changed inside of a packet cannot be mended by anybody.
        bail!("{dir}: {}; `tapdeck recover --all` mends what is torn or cut", number(faults));
    }
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn number(faults: u64) -> String {
    counted(faults, "fault")
}

fn tell(verdict: &Verdict) -> io::Result<()> {
    let mut out = stdout().lock();
    let index = match verdict.indexed {
        Indexed::Whole => "indexed".to_owned(),
        Indexed::Part(bytes) => format!("{} of it indexed", show_bytes(bytes)),
        Indexed::No => "no index".to_owned(),
    };
    let sound = if verdict.count == 0 { "sound".into() } else { number(verdict.count) };
    let packets = counted(verdict.packets, "packet");
    writeln!(out, "{}: {sound}, {packets}, {index}", verdict.name)?;
    for flaw in &verdict.flaws {
        writeln!(out, "  {} at byte {}: {}", flaw.file, flaw.at, flaw.what)?;
    }
    let more = verdict.count - verdict.flaws.len() as u64;
    if more > 0 {
        writeln!(out, "  and {} more", show_count(more))?;
    }
    Ok(())
}

fn summarise(json: bool, dir: &str, faults: u64, segments: &[Segment]) -> io::Result<()> {
    let sum = |of: fn(&Segment) -> u64| segments.iter().map(of).sum::<u64>();
    let (packets, bytes) = (sum(|s| s.packets), sum(|s| s.bytes));
    let mut out = stdout().lock();
    if json {
        let json = Json { dir, sound: faults == 0, packets, bytes, faults, segments };
        serde_json::to_writer_pretty(&mut out, &json)?;
        return writeln!(out);
    }
    let sound = if faults == 0 { "sound".into() } else { number(faults) };
    writeln!(
        out,
        "{dir}: {sound}; {}, {}, {}",
        counted(segments.len() as u64, "segment"),
        counted(packets, "packet"),
        show_bytes(bytes)
    )
}
