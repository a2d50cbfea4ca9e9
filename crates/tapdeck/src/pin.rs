//! `tapdeck pin`, `pins`, `unpin`: packets that outlive retention.
//!
//! Pins, their directory and their copying are `tapdeck_evidence`'s. This module makes a pin of
//! flags, and stays with pins until their spans are over.

use std::io::{Write as _, stdout};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tapdeck_evidence::{Error, Pin, PinStore, Question, State, Time, Wish};
use tapdeck_packet::printable;
use tapdeck_store::io::{Directory, Storage};

use crate::evidence::tell_account;
use crate::flags::{self, PinPlace};
use crate::interrupt::Interrupt;
use crate::progress_line::say;
use crate::query::{time, yield_to_recorder};
use crate::units::{counted, duration, show_bytes};
use crate::usage::usage;

/// How often it is looked whether a pin is due.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads a point in time, which may be yet to come: as [`time::point`], or `+10m`.
pub fn moment(text: &str) -> std::result::Result<i64, String> {
    match text.trim().strip_prefix('+') {
        Some(from_now) => {
            let ns = i64::try_from(duration(from_now)?.as_nanos()).unwrap_or(i64::MAX);
            Ok(Time::now().plus(ns).0)
        }
        None => time::point(text),
    }
}

pub fn run(flags: &flags::Pin) -> Result<()> {
    let span = time::span(Some(flags.after), Some(flags.before))?;
    if span.after_ns == span.before_ns {
        return usage("--before is not later than --after: the span has no time in it");
    }
    let interrupt = Interrupt::listen()?;
    yield_to_recorder();
    let question = Question {
        filter: flags.expression.join(" "),
        community_id: flags.community_id,
        inner: flags.inner,
        ceiling: String::new(),
        after: Some(Time(flags.after)),
        before: Some(Time(flags.before)),
    };
    let store = flags.place.dir.canonicalize().unwrap_or_else(|_| flags.place.dir.clone());
    let storage: Arc<dyn Storage> = Arc::new(Directory::new(&store));
    question.check(&storage)?;
    let dir = flags.place.evidence.clone().unwrap_or_else(|| PinStore::beside(&store));
    let pins = PinStore::make(&dir, flags.budget)?;
    let pin = pins.add(Wish {
        store,
        question,
        after: Time(flags.after),
        before: Time(flags.before),
        until: flags.until.map(Time),
        reason: flags.reason.clone(),
        rule: None,
        order: None,
    })?;
    let number = pin.number;
    if pin.before > Time::now() {
        say(&format!("pin {number}: goes on until {}", pin.before));
    }
    while !interrupt.asked() {
        let pin = pins.pin(number)?;
        if pin.due().is_none_or(|due| due <= Time::now()) {
            match pins.advance(number, || !interrupt.asked()) {
                Err(Error::Stopped) => break,
                Ok(pin) if pin.state != State::Open => return tell_done(&pins, &pin),
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
        }
        thread::sleep(PAUSE);
    }
    interrupt.heard();
    let dir = flags.place.dir.display();
    anyhow::bail!("pin {number} is not done: `tapdeck pins --dir {dir} --resume` goes on with it")
}

/// Tells what became of a pin; an error where it lacks packets that were recorded.
fn tell_done(pins: &PinStore, pin: &Pin) -> Result<()> {
    tell_account(&pin.account);
    let (packets, bytes) = (counted(pin.packets, "packet"), show_bytes(pin.bytes));
    let place = pins.packets_of(pin.number);
    say(&format!("pin {}: {packets}, {bytes}, in {}", pin.number, place.display()));
    let is_whole = pin.account.faults.is_empty();
    ensure!(is_whole, "pin {} does not have all that was recorded, as said above", pin.number);
    Ok(())
}

/// Opens the directory of pins that belongs to a store.
pub fn open(place: &PinPlace) -> Result<PinStore> {
    let dir = place.evidence.clone().unwrap_or_else(|| PinStore::beside(&place.dir));
    Ok(PinStore::open(&dir)?)
}

pub fn list(flags: &flags::Pins) -> Result<()> {
    let pins = open(&flags.place)?;
    if flags.resume {
        let interrupt = Interrupt::listen()?;
        yield_to_recorder();
        let mut driver = Driver::new(&pins);
        while driver.drive(|| !interrupt.asked())? && !interrupt.asked() {
            thread::sleep(PAUSE);
        }
        ensure!(driver.faults == 0, "not all pins have all that was recorded, as said above");
        return Ok(());
    }
    let mut out = stdout().lock();
    let mut unread = 0;
    for (number, pin) in pins.list()? {
        let pin = match pin {
            Ok(pin) => pin,
            Err(e) => {
                unread += 1;
                say(&format!("pin {number}: {:#}", anyhow::Error::from(e)));
                continue;
            }
        };
        if flags.json {
            writeln!(out, "{}", printable::json(&serde_json::to_string(&pin)?))?;
            continue;
        }
        let Pin { number, state, after, before, reason, account, .. } = &pin;
        let lacks = if account.complete || *state == State::Open { "" } else { "  lacks packets" };
        let (packets, bytes) = (counted(pin.packets, "packet"), show_bytes(pin.bytes));
        let id = pin.question.community_id.map(|id| id.to_string()).unwrap_or_default();
        let what = format!("{} {id}", pin.question.filter);
        let what = printable::name(what.trim()).into_owned();
        let (state, reason) = (state.word(), printable::name(reason));
        writeln!(out, "{number:>4}  {state:<5} {packets:>20} {bytes:>10}{lacks}")?;
        writeln!(out, "      {after} to {before}  {what}")?;
        let by = pin.order.as_ref().map(|order| format!(" (for {})", printable::name(&order.by)));
        writeln!(out, "      {reason}{}", by.unwrap_or_default())?;
    }
    if !flags.json {
        let (used, budget) = (show_bytes(pins.used()?), show_bytes(pins.budget()?));
        writeln!(out, "{used} of {budget} in {}", pins.dir().display())?;
    }
    ensure!(unread == 0, "not all pins can be read, as said above");
    Ok(())
}

pub fn remove(flags: &flags::Unpin) -> Result<()> {
    let pins = open(&flags.place)?;
    for number in &flags.numbers {
        let pin = pins.remove(*number)?;
        say(&format!("pin {number}: {} is free again", show_bytes(pin.bytes)));
    }
    Ok(())
}

/// Goes on with pins of a directory that are not done, and says what becomes of them. Those that
/// users of a gateway have had made are the gateway's to copy: its audit has what became of them.
pub struct Driver<'a> {
    pins: &'a PinStore,
    copying: tapdeck_evidence::Driver,
    /// How many pins were found to lack packets that were recorded, or could not be copied.
    pub faults: usize,
}

impl<'a> Driver<'a> {
    pub fn new(pins: &'a PinStore) -> Self {
        Self { pins, copying: tapdeck_evidence::Driver::default(), faults: 0 }
    }

    /// Copies what is due. Returns whether pins are still under way.
    pub fn drive(&mut self, watch: impl FnMut() -> bool) -> Result<bool> {
        let Self { pins, copying, faults } = self;
        let told = |number, outcome: std::result::Result<&Pin, Error>| {
            let outcome = match outcome {
                Ok(pin) => tell_done(pins, pin),
                Err(e) => Err(anyhow::Error::from(e).context(format!("pin {number}"))),
            };
            if let Err(e) = outcome {
                *faults += 1;
                say(&format!("{e:#}"));
            }
        };
        Ok(copying.drive(pins, |pin| pin.order.is_none(), told, watch)?.is_some())
    }
}
