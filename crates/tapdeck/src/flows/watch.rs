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
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use tapdeck_store::SegmentName;
use tapdeck_store::io::Storage;
use tapdeck_store::walk::{Listing, waits_for_index};

use super::files::{Tables, segment_named};
use super::{Question, make, verdict};
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
    mut faults: usize,
) -> Result<()> {
    let mut done = tables.done()?;
    let last = done.iter().filter_map(|stem| segment_named(stem)).map(|name| name.number).max();
    let mut expected = Expected { waiting: BTreeSet::new(), next: last.map(|last| last + 1) };
    let mut is_first = true;
    let mut settled = None;
    while !interrupt.asked() {
        let changed = fs::metadata(store.place()).and_then(|dir| dir.modified()).ok();
        if settled.is_some() && settled == changed {
            thread::sleep(PAUSE);
            continue;
        }
        settled = changed.filter(|at| is_old(*at));
        let list = || {
            Listing::read(store).with_context(|| format!("cannot list {}", store.place().display()))
        };
        let mut listing = list()?;
        let mut missing = expected.missing(&listing);
        if !missing.is_empty() {
            // A segment that is renamed while the directory is listed may seem to be missing.
            listing = list()?;
            missing = expected.missing(&listing);
        }
        // What is missing in the middle at first is told already.
        faults += tell_missing(&missing, &listing, std::mem::take(&mut is_first));
        expected.take_in(&listing, &done);
        let names = &listing.closed;
        for (at, name) in names.iter().enumerate() {
            let is_last = at + 1 == names.len();
            if done.contains(&name.stem()) || is_last && waits_for_index(store, name) {
                continue;
            }
            let mut watch = |_| {
                ensure!(!interrupt.asked(), "stopped by a signal");
                Ok(())
            };
            let made = match make(store, name, question, tables, &mut watch) {
                Err(_) if interrupt.asked() => break,
                made => made?,
            };
            // The next look tells whether it is deleted or mended.
            let Some(made) = made else {
                settled = None;
                continue;
            };
            faults += made.tell(name);
            expected.waiting.remove(&name.number);
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

/// The segments that flow tables are to be made of, by their numbers.
struct Expected {
    /// Those that were there and have no files yet.
    waiting: BTreeSet<u64>,
    /// The number behind the highest that was there; `None` before the first look at a new
    /// directory of tables.
    next: Option<u64>,
}

impl Expected {
    /// Returns which segments went before their files were made.
    fn missing(&self, listing: &Listing) -> Vec<RangeInclusive<u64>> {
        let is_gone = |n: &&u64| !listing.numbers.contains(n) && !listing.aside.contains(n);
        let mut missing: Vec<_> = self.waiting.iter().filter(is_gone).map(|n| *n..=*n).collect();
        // Those that came and went between two looks.
        if let (Some(next), Some(last)) = (self.next, listing.numbers.last())
            && next < *last
        {
            missing.extend(listing.missing(next..*last));
        }
        missing
    }

    /// Remembers the segments that are there.
    fn take_in(&mut self, listing: &Listing, done: &BTreeSet<String>) {
        self.waiting.clone_from(&listing.numbers);
        for name in listing.closed.iter().filter(|name| done.contains(&name.stem())) {
            self.waiting.remove(&name.number);
        }
        self.next = listing.numbers.last().map(|last| last + 1).max(self.next);
    }
}

/// Tells which segments have no flow tables. Returns how many times that is a fault: retention
/// takes the oldest first, so what is missing behind others was taken by somebody else. At first
/// that was told.
fn tell_missing(missing: &[RangeInclusive<u64>], listing: &Listing, is_first: bool) -> usize {
    let mut faults = 0;
    for numbers in missing {
        let (first, last) = (numbers.start(), numbers.end());
        let is_alone = first == last;
        let is_hole = listing.numbers.first().is_some_and(|oldest| oldest < first);
        let which = if is_alone {
            format!("segment {first}")
        } else {
            format!("segments {first} to {last}")
        };
        match (is_hole, is_alone) {
            (true, _) if is_first => continue,
            (true, true) => say(&format!("{which} is missing, and has no flow table")),
            (true, false) => say(&format!("{which} are missing, and have no flow tables")),
            (false, true) => say(&format!("{which} was deleted before its flow table was made")),
            (false, false) => {
                say(&format!("{which} were deleted before their flow tables were made"));
            }
        }
        faults += usize::from(is_hole);
    }
    faults
}
