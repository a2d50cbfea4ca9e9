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

use super::lasting::Lasting;
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

impl Coming {
    /// Returns the places of interfaces that are over for so long that another one may have them.
    fn long_over(&self) -> Vec<usize> {
        let long = self.over_since.iter().filter(|(_, since)| since.elapsed() >= GRACE);
        long.map(|(number, _)| *number).collect()
    }
}

/// Where a newcomer is put.
struct Spot {
    number: usize,
    first_interface: u32,
    most_rings: u32,
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
            let why = if spots.is_empty() {
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
                // It has more rings than the place.
                Err(tapdeck_capture::Error::NoPlace(_)) => {}
                Err(e) => return Err(e.into()),
            }
        };
        self.put_in_force(&mut capture)?;
        let before = newcomer.before;
        let persist = self.lasting.as_ref().map(Lasting::persist);
        capture.start_later(before.counters, before.at_ns, persist)?;
        self.report.records(&capture, &format!(" (fits -i {})", newcomer.pattern));
        let mut gone = 0..0;
        if let Some(before) = self.source.captures().get(spot.number) {
            gone = before.interfaces();
            if !before.has_left() {
                self.coming.newcomers.has_gone(before);
            }
        }
        let come = capture.readers().into_iter().map(|ring| Box::new(ring) as Box<dyn Ring>);
        let sleep = longest_sleep_of(&capture).min(self.schedule.flush_every);
        let come = come.collect();
        self.source.put(spot.number, capture, &self.coming.totals);
        self.coming.over_since.remove(&spot.number);
        let interfaces = self.source.descriptions();
        self.writer_control.change_rings(RingsChange { gone, come, interfaces, sleep });
        if let Some(lasting) = &self.lasting {
            lasting.persist().note(self.source.captures());
        }
        Ok(())
    }

    /// Takes note of which interfaces are over, and since when. Of a lasting recording nothing
    /// stays pinned of one that is over for long enough, as long as there is another one.
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
        let Some(lasting) = &self.lasting else { return };
        for number in self.coming.long_over() {
            let here = self.source.captures();
            let is_the_last = here.iter().filter(|capture| !capture.has_left()).count() == 1;
            if is_the_last || here[number].has_left() {
                continue;
            }
            self.coming.newcomers.has_gone(&here[number]);
            self.source.leave_place(number, lasting.persist(), &self.coming.totals);
        }
    }

    /// Returns the places that a newcomer may get, the best first.
    fn spots(&self, newcomer: &Newcomer) -> Vec<Spot> {
        let captures = self.source.captures();
        let can_reuse = self.reuses_places();
        let mut spots: Vec<Spot> = Vec::new();
        if self.lasting.as_ref().is_some_and(|lasting| !lasting.persist().has_room()) {
            return spots;
        }
        if can_reuse {
            let over = self.coming.long_over().into_iter();
            let over = over.filter(|number| {
                captures[*number].interface().link == newcomer.interface.link
                    && (self.lasting.is_none() || captures[*number].has_left())
            });
            spots.extend(over.map(|number| {
                let ids = captures[number].interfaces();
                Spot { number, first_interface: ids.start, most_rings: ids.len() as u32 }
            }));
        }
        if captures.len() < self.coming.first_captures + MOST_LATER {
            // Numbers between those of others, which one has left before this process began, and
            // those behind all.
            let mut ids: Vec<_> = captures.iter().map(Capture::interfaces).collect();
            ids.sort_by_key(|ids| ids.start);
            let mut end = 0;
            let all = self.coming.totals.interfaces.len() as u32;
            for next in ids.into_iter().chain(std::iter::once(all..all)) {
                let most_rings = next.start.saturating_sub(end).min(MAX_RINGS);
                if most_rings > 0 && (can_reuse || next.start == all) {
                    spots.push(Spot { number: captures.len(), first_interface: end, most_rings });
                }
                end = next.end;
            }
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
            most_rings: spot.most_rings,
            clock: &self.clock,
            helper,
            persist: self.lasting.as_ref().map(Lasting::persist),
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
