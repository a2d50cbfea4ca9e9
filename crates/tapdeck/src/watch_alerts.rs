//! `tapdeck watch-alerts`: pins the packets of alerts that another program writes into a file.
//!
//! One thread reads alerts and makes pins, the other copies what is due, so that no copying keeps
//! alerts waiting. How far the file was read is written down after the pins of it: whoever is
//! killed reads a few alerts twice, which the pins that they made already have.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tapdeck_evidence::alerts::{Alert, Decision, Follow, Merger, Position, Rules};
use tapdeck_evidence::{Error, PinStore, Time};
use tapdeck_store::io::{Directory, Storage};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::pin::Driver;
use crate::progress_line::say;
use crate::query::yield_to_recorder;
use crate::units::{counted, show_count};
use crate::usage::Usage;

/// How often the file is looked at, and the pins.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is told what came, and how far the file was read written down, at most.
const TELL_NS: i64 = 60_000_000_000;
/// The file beside the pins that says how far the alerts were read.
const POSITION: &str = "alerts.json";

pub fn run(flags: &flags::WatchAlerts) -> Result<()> {
    let text = fs::read_to_string(&flags.rules)
        .with_context(|| format!("cannot read {}", flags.rules.display()))?;
    let rules = Rules::parse(&text)
        .map_err(|why| anyhow!(Usage(format!("{}: {why}", flags.rules.display()))))?;
    let interrupt = Interrupt::listen()?;
    let store = flags.place.dir.canonicalize();
    let store = store.with_context(|| format!("cannot read {}", flags.place.dir.display()))?;
    Directory::new(&store).list().with_context(|| format!("cannot read {}", store.display()))?;
    let dir = flags.place.evidence.clone().unwrap_or_else(|| PinStore::beside(&store));
    let pins = PinStore::make(&dir, flags.budget)?;
    let mut watcher = Watcher::new(flags, rules, &pins, store)?;
    say(&format!("following {}", flags.eve.display()));
    let is_ending = AtomicBool::new(false);
    thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&pins, &is_ending));
        let watched = watcher.watch(&interrupt, flags.until_end, || copying.is_finished());
        is_ending.store(true, Relaxed);
        let copied = copying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        watched.and(copied)
    })
}

/// Copies what pins want until the end is asked for.
fn copy(pins: &PinStore, is_ending: &AtomicBool) -> Result<()> {
    yield_to_recorder();
    let mut driver = Driver::new(pins);
    while !is_ending.load(Relaxed) {
        driver.drive(|| !is_ending.load(Relaxed))?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// What became of alerts since that was told.
#[derive(Default)]
struct Counts {
    alerts: u64,
    ignored: u64,
    merged: u64,
    pinned: u64,
    limited: u64,
    refused: u64,
    unread: u64,
}

struct Watcher<'a> {
    pins: &'a PinStore,
    store: PathBuf,
    follow: Follow,
    merger: Merger,
    counts: Counts,
    told: Time,
    position: PathBuf,
    written: Option<Position>,
}

impl<'a> Watcher<'a> {
    fn new(
        flags: &flags::WatchAlerts,
        rules: Rules,
        pins: &'a PinStore,
        store: PathBuf,
    ) -> Result<Self> {
        let position = pins.dir().join(POSITION);
        let reached: Option<Position> =
            fs::read(&position).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let follow = Follow::new(&flags.eve, reached, flags.from_start)
            .with_context(|| format!("cannot read {}", flags.eve.display()))?;
        let mut before = Vec::new();
        for (number, pin) in pins.list()? {
            match pin {
                Ok(pin) => before.push(pin),
                Err(e) => say(&format!("pin {number}: {:#}", anyhow::Error::from(e))),
            }
        }
        let merger = Merger::new(rules, &before, Time::now());
        let (counts, told) = (Counts::default(), Time::now());
        Ok(Self { pins, store, follow, merger, counts, told, position, written: reached })
    }

    fn watch(
        &mut self,
        interrupt: &Interrupt,
        until_end: bool,
        is_alone: impl Fn() -> bool,
    ) -> Result<()> {
        while !interrupt.asked() && !is_alone() {
            let came = self.turn()?;
            if !came {
                if until_end {
                    break;
                }
                thread::sleep(PAUSE);
            }
            if self.told.plus(TELL_NS) <= Time::now() {
                self.tell();
            }
        }
        self.tell();
        interrupt.heard();
        Ok(())
    }

    /// Takes what came. Returns whether anything did.
    fn turn(&mut self) -> Result<bool> {
        let Self { pins, store, follow, merger, counts, .. } = self;
        let mut failed = None;
        let came = follow.read(|line| {
            if failed.is_none() {
                failed = take(line, pins, store, merger, counts).err();
            }
        });
        if let Some(e) = failed {
            return Err(e);
        }
        let came = came.context("cannot read the alerts")?;
        for (number, before) in self.merger.take_longer() {
            match self.pins.extend(number, before) {
                Ok(pin) if pin.number != number => self.merger.made(&pin, Time::now()),
                // Somebody has removed it.
                Ok(_) | Err(Error::NoPin { .. }) => {}
                Err(Error::Full { .. }) => self.counts.refused += 1,
                Err(e) => return Err(e.into()),
            }
        }
        self.write_position()?;
        Ok(came)
    }

    /// Writes down how far the file was read.
    fn write_position(&mut self) -> Result<()> {
        let position = self.follow.position();
        if position != self.written
            && let Some(now) = position
        {
            write(&self.position, &serde_json::to_vec(&now)?)
                .with_context(|| format!("cannot write {}", self.position.display()))?;
            self.written = position;
        }
        Ok(())
    }

    fn tell(&mut self) {
        self.counts.unread += std::mem::take(&mut self.follow.skipped);
        let Counts { alerts, ignored, merged, pinned, limited, refused, unread } = self.counts;
        if alerts > 0 {
            let (alerts, pinned) = (counted(alerts, "alert"), counted(pinned, "pin"));
            let [merged, ignored] = [merged, ignored].map(show_count);
            say(&format!("{alerts}: {pinned}, {merged} of their flows, {ignored} without a rule"));
        }
        for (count, what, of) in [
            (limited, "not pinned as there were too many (limits of the rules)", "alert"),
            (refused, "not pinned as the budget is full", "alert"),
            (unread, "no events", "line"),
        ] {
            if count > 0 {
                say(&format!("{what}: {}", counted(count, of)));
            }
        }
        (self.counts, self.told) = (Counts::default(), Time::now());
    }
}

/// Does what a line wants.
fn take(
    line: &[u8],
    pins: &PinStore,
    store: &Path,
    merger: &mut Merger,
    counts: &mut Counts,
) -> Result<()> {
    let alert = match Alert::parse(line) {
        Ok(Some(alert)) => alert,
        Ok(None) => return Ok(()),
        Err(_) => {
            counts.unread += 1;
            return Ok(());
        }
    };
    counts.alerts += 1;
    let now = Time::now();
    match merger.decide(&alert, store, now) {
        Decision::Ignored => counts.ignored += 1,
        Decision::Merged => counts.merged += 1,
        Decision::Limited => counts.limited += 1,
        Decision::Pin(wish) => match pins.add(*wish) {
            Ok(pin) => {
                counts.pinned += 1;
                say(&format!("pin {}: {}", pin.number, pin.reason));
                merger.made(&pin, now);
            }
            Err(Error::Full { .. }) => counts.refused += 1,
            Err(e) => return Err(e.into()),
        },
    }
    Ok(())
}

/// Writes a small file in place of another.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}
