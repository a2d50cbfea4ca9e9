//! `tapdeck flows --watch`: the files of each segment as it is closed.
//!
//! What is done stands in the directory of tables alone: the first file of a segment has its name
//! when all are whole, so whoever was killed goes on where that ends. Nothing is asked of the
//! recorder, and nothing kept from retention: a segment that it takes first is named, and its rows
//! are not made.
//!
//! A closed segment whose index is still being made waits for that, since rows name its granules;
//! but no longer than until the next segment is closed.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use tapdeck_store::SegmentName;
use tapdeck_store::io::Storage;
use tapdeck_store::walk::{closed_names, waits_for_index};

use super::files::{Tables, segment_named};
use super::{Question, make, tell, verdict};
use crate::interrupt::Interrupt;
use crate::progress_line::say;

/// How often the store is looked at.
const PAUSE: Duration = Duration::from_millis(500);
/// A directory that was not changed for so long will show the next change by its time.
const SETTLED: Duration = Duration::from_secs(2);

pub fn run(
    store: &dyn Storage,
    question: &Question,
    tables: &Tables,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut done = tables.done()?;
    let last = done.iter().filter_map(|stem| segment_named(stem)).map(|name| name.number).max();
    let mut expected = Expected { waiting: BTreeSet::new(), last };
    let mut faults = 0;
    let mut settled = None;
    while !interrupt.asked() {
        let changed = fs::metadata(store.place()).and_then(|dir| dir.modified()).ok();
        if settled.is_some() && settled == changed {
            thread::sleep(PAUSE);
            continue;
        }
        settled = changed.filter(|at| is_old(*at));
        let names = closed_names(store)
            .with_context(|| format!("cannot list {}", store.place().display()))?;
        expected.compare(&names, &done);
        for (at, name) in names.iter().enumerate() {
            let is_last = at + 1 == names.len();
            if done.contains(&name.stem()) || is_last && waits_for_index(store, name) {
                continue;
            }
            let mut watch = |_| {
                ensure!(!interrupt.asked(), "stopped by a signal");
                Ok(())
            };
            match make(store, name, question, tables, &mut watch) {
                Err(_) if interrupt.asked() => break,
                made => {
                    let made = made?;
                    faults += tell(&made.notes) + usize::from(made.tell_difference(name));
                }
            }
            expected.waiting.remove(name);
            done.insert(name.stem());
        }
        // What is gone need not be remembered.
        let there: BTreeSet<String> = names.iter().map(SegmentName::stem).collect();
        done.retain(|stem| there.contains(stem));
        thread::sleep(PAUSE);
    }
    verdict(faults)
}

fn is_old(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|age| age > SETTLED)
}

/// The segments that flow tables are to be made of.
struct Expected {
    /// Those that were there and have no files yet.
    waiting: BTreeSet<SegmentName>,
    /// The highest number that was there.
    last: Option<u64>,
}

impl Expected {
    /// Tells which segments retention took before their files were made, and remembers those that
    /// are there.
    fn compare(&mut self, names: &[SegmentName], done: &BTreeSet<String>) {
        let there: BTreeSet<&SegmentName> = names.iter().collect();
        self.waiting.retain(|name| {
            let is_there = there.contains(name);
            if !is_there {
                say(&format!("{name} was deleted before its flow table was made"));
            }
            is_there
        });
        let numbers = || names.iter().map(|name| name.number);
        // Those that came and went between two looks.
        if let Some(last) = self.last
            && let Some(next) = numbers().find(|number| *number > last)
            && next > last + 1
        {
            let (from, to) = (last + 1, next - 1);
            say(&format!(
                "segments {from} to {to} were deleted before their flow tables were made"
            ));
        }
        self.last = numbers().chain(self.last).max();
        let is_new = |name: &&SegmentName| !done.contains(&name.stem());
        self.waiting.extend(names.iter().filter(is_new).cloned());
    }
}
