//! How does a recorder that is at work take in an interface that came up?
//!
//! The helper opens it (`tapdeck_capture`, `later`). Filter, rules, cutoff and snaplen become those
//! that are in force; then the hook is attached, and the writer gets the rings together with a new
//! segment that describes them. An interface that went for good leaves its place, and the numbers
//! of its rings, to another one that comes: so a thousand that come and go take no more memory,
//! descriptors or threads than those that are there at one time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::{Capture, Clock, LaterPlace, MAX_RINGS};
use tapdeck_packet::ring::Ring;
use tapdeck_store::{RingsChange, Totals};

use super::newcomers::{MOST_LATER, Newcomer, Newcomers};
use super::resolve::{RecordPlan, Target};
use super::source::RecordSource;
use super::{Recording, longest_sleep_of};
use crate::units::counted;

/// How long newcomers may keep the recorder from the rest at one look. The others come at the next.
const BUDGET: Duration = Duration::from_millis(500);

/// How long the place of an interface that is gone is kept for one of its name.
const GRACE: Duration = Duration::from_secs(3);

/// What a recording knows of interfaces that come later.
pub struct Coming {
    newcomers: Newcomers,
    /// How many interfaces there were at the start.
    first_captures: usize,
    /// Which interfaces are gone with all their packets out of the rings, by their place, and since
    /// when.
    over_since: BTreeMap<usize, Instant>,
    totals: Arc<Totals>,
}

impl Coming {
    pub fn new(
        plan: &RecordPlan,
        clock: &Clock,
        source: &RecordSource,
        totals: Arc<Totals>,
    ) -> Self {
        let newcomers = Newcomers::new(plan.later.clone(), clock);
        let first_captures = source.captures().len();
        Self { newcomers, first_captures, over_since: BTreeMap::new(), totals }
    }
}

/// Where a newcomer is put.
struct Spot {
    number: usize,
    first_interface: u32,
    /// Whether an interface was there that is over.
    is_used: bool,
}

impl Recording {
    /// Records the interfaces that came up since the last look and fit a pattern.
    pub fn take_newcomers(&mut self) {
        self.look_for_those_over();
        let newcomers = self.coming.newcomers.look(self.source.captures(), &self.clock);
        let until = Instant::now() + BUDGET;
        for newcomer in newcomers {
            if self.source.captures().iter().any(Capture::is_paused) {
                self.coming.newcomers.is_unwanted(&newcomer);
                continue;
            }
            if Instant::now() > until {
                break;
            }
            let Newcomer { interface, pattern, .. } = &newcomer;
            let name = &interface.name;
            let spots = self.spots(&newcomer);
            let why = if self.coming.newcomers.how().is_none() {
                "with --persist it is not recorded before the recorder is started again".into()
            } else if spots.is_empty() {
                self.why_no_spot()
            } else {
                let Err(e) = self.take(&newcomer, spots, until) else { continue };
                if !is_up(interface) {
                    continue;
                }
                self.coming.newcomers.cannot(name);
                format!("it is not recorded: {e:#}")
            };
            if self.coming.newcomers.is_untold(name) {
                self.report.warn(&format!("{name} came up and fits -i {pattern}: {why}"));
            }
        }
    }

    /// Records a newcomer at the first of these places that it can have. Where none was found by
    /// `until`, that goes on at the next look.
    fn take(&mut self, newcomer: &Newcomer, spots: Vec<Spot>, until: Instant) -> Result<()> {
        let name = &newcomer.interface.name;
        let mut spots = spots.into_iter();
        let (spot, mut capture) = loop {
            let Some(spot) = spots.next() else { bail!("no place has as many rings as it needs") };
            if Instant::now() > until {
                return Ok(());
            }
            match self.open(name, &spot) {
                Ok(capture) => break (spot, capture),
                // The place has another number of rings.
                Err(tapdeck_capture::Error::NoPlace(_)) => {}
                Err(e) => return Err(e.into()),
            }
        };
        self.put_in_force(&mut capture)?;
        let before = newcomer.before;
        capture.start_later(before.counters, before.at_ns)?;
        self.report.records(&capture, &format!(" (fits -i {})", newcomer.pattern));
        let gone = if spot.is_used { capture.interfaces() } else { 0..0 };
        if let Some(before) = self.source.captures().get(spot.number) {
            self.coming.newcomers.has_gone(before);
        }
        let come = capture.readers().into_iter().map(|ring| Box::new(ring) as Box<dyn Ring>);
        let sleep = longest_sleep_of(&capture).min(self.schedule.flush_every);
        let come = come.collect();
        self.source.put(spot.number, capture, &self.coming.totals);
        self.coming.over_since.remove(&spot.number);
        let interfaces = self.source.descriptions();
        self.writer_control.change_rings(RingsChange { gone, come, interfaces, sleep });
        Ok(())
    }

    /// Takes note of which interfaces are over, and since when.
    fn look_for_those_over(&mut self) {
        let now = Instant::now();
        let over = self.source.captures().iter().enumerate();
        let over = over.filter(|(_, capture)| {
            capture.is_over() && self.coming.newcomers.comes_and_goes(&capture.interface().name)
        });
        let since = over.map(|(number, _)| {
            (number, self.coming.over_since.get(&number).copied().unwrap_or(now))
        });
        self.coming.over_since = since.collect();
    }

    /// Returns the places that a newcomer may get, the best first.
    fn spots(&self, newcomer: &Newcomer) -> Vec<Spot> {
        let captures = self.source.captures();
        let end = captures.last().map_or(0, |last| last.interfaces().end);
        let can_reuse = self.reuses_places();
        let places = captures.iter().enumerate();
        // Behind the last one numbers are not settled.
        let mut spots: Vec<Spot> = places
            .filter(|(number, _)| can_reuse && number + 1 < captures.len())
            .filter(|(_, capture)| capture.interface().link == newcomer.interface.link)
            .filter(|(number, _)| {
                self.coming.over_since.get(number).is_some_and(|since| since.elapsed() >= GRACE)
            })
            .map(|(number, capture)| {
                let first_interface = capture.interfaces().start;
                Spot { number, first_interface, is_used: true }
            })
            .collect();
        let has_room = (end + MAX_RINGS) as usize <= self.coming.totals.interfaces.len();
        if captures.len() < self.coming.first_captures + MOST_LATER && has_room {
            spots.push(Spot { number: captures.len(), first_interface: end, is_used: false });
        }
        spots
    }

    /// Says why no newcomer has a place.
    fn why_no_spot(&self) -> String {
        let later = counted(
            (self.source.captures().len() - self.coming.first_captures) as u64,
            "interface",
        );
        let are = if self.reuses_places() {
            "are recorded, the most at one time"
        } else {
            "are in the file, the most in one"
        };
        format!("it is not recorded: {later} that came later {are}")
    }

    /// Returns whether the numbers of rings can mean other interfaces later: a file has no segments
    /// whose heads could say so.
    fn reuses_places(&self) -> bool {
        matches!(self.report.target(), Target::Store { .. } | Target::Nothing)
    }

    fn open(&self, name: &str, spot: &Spot) -> Result<Capture, tapdeck_capture::Error> {
        let like = self.source.captures().first();
        let known = (self.coming.newcomers.how(), self.helper.as_ref(), like);
        let (Some(how), Some(helper), Some(like)) = known else {
            return Err(tapdeck_capture::Error::NoPlace(name.to_owned()));
        };
        let place = LaterPlace {
            number: spot.number,
            first_interface: spot.first_interface,
            clock: &self.clock,
            helper,
        };
        Capture::open_later(name, like, |hook| how.config(hook), &place)
    }

    /// Sets an interface as the others are set by now.
    fn put_in_force(&self, capture: &mut Capture) -> Result<(), tapdeck_capture::Error> {
        let Some(first) = self.source.captures().first() else { return Ok(()) };
        let snaplen = first.snaplen().min(capture.snaplen());
        if snaplen != capture.snaplen() {
            capture.set_snaplen(snaplen)?;
        }
        capture.set_cutoff(first.config().cutoff)?;
        if let Some(rules) = &first.config().rules {
            capture.set_rules(Some(rules.clone()))?;
        }
        Ok(())
    }
}

/// Returns whether an interface is still there, and up.
fn is_up(interface: &Interface) -> bool {
    matches!(Interface::by_index(interface.index), Ok(Some(now)) if now.up)
}
