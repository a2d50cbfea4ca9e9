//! Which interfaces does a pattern of `-i` mean, and which have come since the start?
//!
//! [`expand`] settles what is recorded at the start. [`Newcomers`] looks once a second for
//! interfaces that came up later and fit; `coming` records them. What their devices had counted at
//! the look before is remembered, so that packets are not forgotten that came before the hook.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;
use tapdeck_capture::interface::{Interface, NicCounters};
use tapdeck_capture::{Capture, Clock};
use tapdeck_store::choice;

use super::resolve::How;

/// How many interfaces that came later are recorded at one time.
pub const MOST_LATER: usize = 64;
/// How many numbers there are for their rings: each ring has one of its own in the recording.
pub const MOST_LATER_RINGS: usize = 2048;
/// How many devices are remembered that are gone, and whose places others have.
const MOST_GONE: usize = 256;
/// How long an interface waits for the next attempt that could not be recorded, at first and at
/// most.
const SOON: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(64);

/// Which interfaces are recorded that come later, and how.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// What of `-i` are patterns, and what are names.
    pub patterns: Vec<String>,
    pub names: Vec<String>,
    pub how: How,
}

impl Pattern {
    /// Returns whether an interface may go for good: no one has asked for it by its name.
    pub fn comes_and_goes(&self, name: &str) -> bool {
        !self.names.iter().any(|named| named == name)
    }

    /// Returns the pattern that means an interface, if one does.
    pub fn of(&self, interface: &Interface) -> Option<&str> {
        let pattern = self.patterns.iter().find(|pattern| fits(pattern, &interface.name));
        pattern.filter(|_| is_recordable(interface)).map(String::as_str)
    }
}

/// An interface that came up, fits, and is not recorded.
pub struct Newcomer {
    pub interface: Interface,
    pub pattern: String,
    /// What its device had counted when it was last known that nobody wanted its packets.
    pub before: Known,
}

/// What a device had counted at a time, UTC nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub counters: NicCounters,
    pub at_ns: u64,
}

/// When an interface is tried again.
struct Attempt {
    next: Instant,
    wait: Duration,
}

/// Looks for interfaces that fit a pattern and are not recorded.
pub struct Newcomers {
    plan: Option<Pattern>,
    /// The counters of all interfaces at the last look, by index; of those that wait, when they
    /// began to.
    known: BTreeMap<u32, Known>,
    /// The last counters of devices that are gone and whose places others have, by their MAC
    /// address: one may come back from another namespace.
    gone: VecDeque<([u8; 6], Known)>,
    /// When the last look was, UTC nanoseconds.
    looked_ns: u64,
    told: BTreeSet<String>,
    failed: BTreeMap<String, Attempt>,
}

impl Newcomers {
    /// Begins to look. What is up by now and not recorded came after the start, too.
    pub fn new(plan: Option<Pattern>, clock: &Clock) -> Self {
        let looked_ns = clock.now_ns();
        let all = plan.as_ref().and_then(|_| Interface::all().ok()).unwrap_or_default();
        let (told, failed) = (BTreeSet::new(), BTreeMap::new());
        let gone = VecDeque::new();
        Self { plan, known: known(&all, looked_ns), gone, looked_ns, told, failed }
    }

    /// Returns how newcomers are recorded; `None` where there are none.
    pub fn how(&self) -> Option<&How> {
        self.plan.as_ref().map(|plan| &plan.how)
    }

    /// Returns whether an interface may go for good.
    pub fn comes_and_goes(&self, name: &str) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.comes_and_goes(name))
    }

    /// Looks at all interfaces. Returns those that came and are to be recorded now. Where there are
    /// no patterns, nothing is asked of the kernel.
    pub fn look(&mut self, captures: &[Capture], clock: &Clock) -> Vec<Newcomer> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let now_ns = clock.now_ns();
        // What the kernel does not tell now it tells a second later.
        let Ok(all) = Interface::all() else { return Vec::new() };
        let is_recorded = |interface: &Interface| {
            let is_it = |capture: &Capture| {
                let its = capture.interface();
                // One that is gone may have been of another form.
                let has_name = its.name == interface.name
                    && !(capture.is_over()
                        && its.link != interface.link
                        && plan.comes_and_goes(&its.name));
                has_name || !capture.is_gone() && its.index == interface.index
            };
            captures.iter().any(|capture| !capture.has_left() && is_it(capture))
        };
        let mut newcomers = Vec::new();
        for interface in all.iter().filter(|interface| !is_recorded(interface)) {
            let Some(pattern) = plan.of(interface) else { continue };
            let before = self.known.get(&interface.index).copied();
            newcomers.push(Newcomer {
                interface: interface.clone(),
                pattern: pattern.to_owned(),
                before: before.or_else(|| self.recorded_before(interface)).unwrap_or_else(|| {
                    Known { counters: counted_before(interface), at_ns: self.looked_ns }
                }),
            });
        }
        let there = |name: &str| newcomers.iter().any(|newcomer| newcomer.interface.name == name);
        self.told.retain(|name| there(name));
        self.failed.retain(|name, _| there(name));
        // Who waits for the next attempt goes on missing packets, which count.
        let waits = newcomers.iter().map(|one| (one.interface.index, one.before));
        self.known = known(&all, now_ns);
        self.known.extend(waits);
        self.looked_ns = now_ns;
        let now = Instant::now();
        let is_due = |one: &Newcomer| {
            self.failed.get(&one.interface.name).is_none_or(|attempt| attempt.next <= now)
        };
        newcomers.retain(is_due);
        newcomers
    }

    /// Takes note of what the device of an interface had counted that is gone, and whose place
    /// another one gets.
    pub fn has_gone(&mut self, capture: &Capture) {
        let Interface { mac: Some(mac), counters, .. } = *capture.interface() else { return };
        self.gone.retain(|(other, _)| *other != mac);
        if self.gone.len() == MOST_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back((mac, Known { counters, at_ns: capture.stood_ns() }));
    }

    /// Returns what a device had counted when it was recorded before, if it was.
    fn recorded_before(&self, interface: &Interface) -> Option<Known> {
        let (_, known) = self.gone.iter().find(|(mac, _)| Some(*mac) == interface.mac)?;
        (!interface.counters.are_of_another(known.counters)).then_some(*known)
    }

    /// Takes note that packets of an interface are not wanted for now.
    pub fn is_unwanted(&mut self, newcomer: &Newcomer) {
        let Interface { index, counters, .. } = newcomer.interface;
        self.known.insert(index, Known { counters, at_ns: self.looked_ns });
    }

    /// Takes note that the user is told that an interface is not recorded. Returns whether that was
    /// not so before, since it came up.
    pub fn is_untold(&mut self, name: &str) -> bool {
        self.told.insert(name.to_owned())
    }

    /// Takes note that an interface cannot be recorded for now.
    pub fn cannot(&mut self, name: &str) {
        let attempt = self.failed.get(name);
        let wait = attempt.map_or(SOON, |attempt| (attempt.wait * 2).min(LATEST));
        self.failed.insert(name.to_owned(), Attempt { next: Instant::now() + wait, wait });
    }
}

fn known(all: &[Interface], at_ns: u64) -> BTreeMap<u32, Known> {
    let known = |interface: &Interface| Known { counters: interface.counters, at_ns };
    all.iter().map(|interface| (interface.index, known(interface))).collect()
}

/// Returns what a device had counted that was not there at the last look, before packets were
/// missed: one that the kernel has made counts from nothing, and a card may come from elsewhere.
fn counted_before(interface: &Interface) -> NicCounters {
    match interface.kind {
        Some(_) => NicCounters::default(),
        None => interface.counters,
    }
}

/// Divides the names of `-i` into patterns and others.
pub fn patterns(names: &[String]) -> (Vec<String>, Vec<String>) {
    names.iter().cloned().partition(|name| is_pattern(name))
}

/// Puts the interfaces that are up now in the place of patterns. Where a lasting recording has
/// `left` some, these are what patterns mean: the others come later.
pub fn expand(names: &[String], left: &[String]) -> Result<Vec<String>> {
    if !names.iter().any(|name| is_pattern(name)) {
        return Ok(names.to_vec());
    }
    if !left.is_empty() {
        let is_meant = |name: &&String| names.iter().any(|pattern| fits(pattern, name));
        let missing = names.iter().filter(|name| !is_pattern(name) && !left.contains(name));
        return Ok(left.iter().filter(is_meant).chain(missing).cloned().collect());
    }
    let all = Interface::all()?;
    let mut expanded: Vec<String> = Vec::new();
    for name in names {
        if !is_pattern(name) {
            expanded.push(name.clone());
            continue;
        }
        let found =
            all.iter().filter(|interface| is_recordable(interface) && fits(name, &interface.name));
        let before = expanded.len();
        for interface in found {
            if !names.contains(&interface.name) && !expanded.contains(&interface.name) {
                expanded.push(interface.name.clone());
            }
        }
        if expanded.len() == before && !names.iter().any(|other| other != name && fits(name, other))
        {
            let there: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
            anyhow::bail!("no interface that is up fits {name}; there are: {}", there.join(", "));
        }
    }
    Ok(expanded)
}

fn is_pattern(name: &str) -> bool {
    name == "any" || name.contains(['*', '?'])
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern == "any" || choice::fits(pattern, name)
}

/// Whether a pattern means the interface, if its name fits.
fn is_recordable(interface: &Interface) -> bool {
    interface.up && interface.link.is_some()
}
