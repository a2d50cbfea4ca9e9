//! How `record` and `serve` tell their counters: the file of `--stats-json`, and the accounting
//! line at the end.
//!
//! Which counters there are, and their parts in the accounting line, is in
//! `tapdeck_packet::account`. Nothing here reads one.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use tapdeck_packet::account::{Counters, Law};
use tapdeck_store::Log;

use crate::outlet::{Outlet, TellDropped};
use crate::output_file;
use crate::units::{counted, show_count};

/// Where statistics go, if anybody wants them.
pub type StatsOutput = Option<Box<dyn Write + Send>>;

/// What `--stats-json` names: a file or standard output, or nothing.
pub struct StatsJson(Option<Outlet>);

impl StatsJson {
    /// Begins the file anew; `-` is standard output.
    pub fn begin(path: Option<&Path>) -> Result<StatsOutput> {
        let Some(path) = path else { return Ok(None) };
        if path.as_os_str() == "-" {
            return Ok(Some(Box::new(stdout())));
        }
        if let Some(pipe) = output_file::open_pipe(path)? {
            return Ok(Some(Box::new(pipe)));
        }
        let (file, _) = output_file::open(path, 0o644, "--stats-json -")?;
        if file.metadata().is_ok_and(|meta| meta.is_file()) {
            file.set_len(0).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Some(Box::new(file)))
    }

    /// Starts the thread that writes, so that nobody waits for a reader. `tell_dropped` is called
    /// on it when objects were dropped and the reader gets on.
    pub fn start(out: StatsOutput, tell_dropped: TellDropped) -> Result<Self> {
        let Some(out) = out else { return Ok(Self(None)) };
        let outlet = Outlet::start("tapdeck-stats", out, Some(tell_dropped));
        Ok(Self(Some(outlet.context("cannot start a thread")?)))
    }

    /// Writes one object on a line; the last one is waited for, but not for long. After an error,
    /// which the user is to be told, nothing more is written.
    pub fn write(&mut self, object: &impl Serialize, is_last: bool) -> Result<(), String> {
        let Some(outlet) = &self.0 else { return Ok(()) };
        let mut failed = None;
        match serde_json::to_vec(object) {
            Ok(mut line) => {
                line.push(b'\n');
                if is_last {
                    outlet.send_last(line);
                    outlet.finish();
                } else {
                    outlet.send(line);
                }
            }
            Err(e) => failed = Some(e.into()),
        }
        let Some(e) = failed.or_else(|| outlet.take_failure()) else { return Ok(()) };
        self.0 = None;
        // Whoever read the statistics has gone; packets matter more.
        if e.kind() == ErrorKind::BrokenPipe {
            return Ok(());
        }
        Err(format!("cannot write statistics any more: {e}"))
    }
}

/// Tells by `log` that objects of `--stats-json` were dropped.
pub fn statistics_dropped(log: Log) -> TellDropped {
    Box::new(move |lines: u64| {
        log(&format!("{} of --stats-json dropped, as nobody read them", counted(lines, "line")));
    })
}

/// Returns the counters that an object of JSON has, those that it lacks as 0.
pub fn counters_of<C: Counters + Default>(object: &Value) -> C {
    let mut counters = C::default();
    for (counter, value) in C::LIST.iter().zip(counters.values_mut()) {
        *value = object[counter.name].as_u64().unwrap_or(0);
    }
    counters
}

/// Returns the law with numbers: "7 seen = 4 captured + 1 filtered + 2 dropped (2 ring full)".
pub fn accounting_line<C: Counters>(counters: &C) -> String {
    let values = counters.values();
    let words = |pick: fn(Law) -> Option<&'static str>| {
        let rows = C::LIST.iter().zip(&values);
        rows.filter_map(move |(row, n)| pick(row.law).map(|word| (word, *n))).collect::<Vec<_>>()
    };
    let show = |(word, n): &(&str, u64)| format!("{} {word}", show_count(*n));

    let came = words(|law| if let Law::Came(word) = law { Some(word) } else { None });
    // What came is always told, what was made of it only where something was.
    let came = came.iter().enumerate().filter(|(at, (_, n))| *at == 0 || *n > 0);
    let came: Vec<String> = came.map(|(_, row)| show(row)).collect();

    let kept = words(|law| if let Law::Kept(word) = law { Some(word) } else { None });
    let not_wanted = words(|law| if let Law::NotWanted(word) = law { Some(word) } else { None });
    let dropped = [("dropped", counters.dropped())];
    // So is what was filtered, and of what else was not wanted, what there was.
    let not_wanted = not_wanted.iter().enumerate().filter(|(at, (_, n))| *at == 0 || *n > 0);
    let not_wanted = not_wanted.map(|(_, row)| row);
    let went: Vec<String> = kept.iter().chain(not_wanted).chain(&dropped).map(show).collect();

    let causes = words(|law| match law {
        Law::Lost(cause) => cause,
        Law::LostBecause(cause) => Some(cause),
        _ => None,
    });
    let mut text = format!("{} = {}", came.join(" + "), went.join(" + "));
    for cause in causes.iter().filter(|(_, n)| *n > 0) {
        // Writing into a string does not fail.
        let _ = write!(text, " ({})", show(cause));
    }
    text
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::account::{GroupCounters, InterfaceCounters};

    use serde_json::json;

    use super::{accounting_line, counters_of};

    #[test]
    fn counters_are_read_back_from_json() {
        let written = InterfaceCounters { seen: 7, captured: 4, unseen: 3, ..Default::default() };
        let mut object = serde_json::to_value(written).expect("it is JSON");
        assert_eq!(counters_of::<InterfaceCounters>(&object), written);
        object["unseen"] = json!("many");
        assert_eq!(counters_of::<InterfaceCounters>(&object).unseen, 0);
    }

    #[test]
    fn the_accounting_line_is_the_law_with_numbers() {
        let mut c = InterfaceCounters { captured: 1200, filtered: 30, ..Default::default() };
        c.seen = 1230;
        assert_eq!(
            accounting_line(&c),
            "1,230 seen = 1,200 captured + 30 filtered + 0 dropped",
            "causes are told where there are any"
        );
        c = InterfaceCounters {
            seen: 1234,
            dropped_ring: 3,
            dropped_other: 1,
            dropped_unwritten: 1,
            ..c
        };
        assert_eq!(
            accounting_line(&c),
            "1,234 seen = 1,200 captured + 30 filtered + 4 dropped (3 ring full) (1 not written at the end)"
        );
        c = InterfaceCounters { seen: 1239, cutoff: 5, ..c };
        assert_eq!(
            accounting_line(&c),
            "1,239 seen = 1,200 captured + 30 filtered + 5 cutoff + 4 dropped (3 ring full) (1 not written at the end)"
        );
        let mut g = GroupCounters { seen: 7, captured: 4, no_member: 2, ..Default::default() };
        g.dropped_ring = 1;
        assert_eq!(
            accounting_line(&g),
            "7 seen = 4 captured + 0 filtered + 2 without a member + 1 dropped"
        );
        (g.extra, g.captured) = (5, 9);
        assert_eq!(
            accounting_line(&g),
            "7 seen + 5 copies = 9 captured + 0 filtered + 2 without a member + 1 dropped"
        );
    }
}
