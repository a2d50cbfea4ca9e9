//! Where the packets of a recording come from: interfaces whose hooks are the recorder's own, or a
//! group of a daemon that has the hooks.
//!
//! Both fill rings that the writer empties, and both account for their packets. What can be done
//! with hooks alone (pause, filter, rules) is done on [`RecordSource::captures`].

use std::io;
use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use tapdeck_capture::filter::check_filter;
use tapdeck_capture::interface::NicCounters;
use tapdeck_capture::persist::Persist;
use tapdeck_capture::ring::{Cut, RingMemory};
use tapdeck_capture::{
    Capture, Cause, Clock, Config, Error, Event, Helper, Hook, Later, Losses, Shed, Unseen,
};
use tapdeck_packet::account::{Counters, InterfaceCounters};
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::ring::Ring;
use tapdeck_store::{InterfaceTotals, Totals};

use super::lasting::Lasting;
use super::membership::Membership;
use super::past::Past;
use super::resolve::{Origin, RecordPlan};
use crate::rights::keep_for_hooks;

/// What fills the rings of a recording.
pub enum RecordSource {
    Interfaces(Vec<Capture>, Past),
    Group(Box<Membership>),
}

/// The account of one interface, or of a membership.
#[derive(Clone)]
pub struct InterfaceAccount {
    pub name: String,
    pub hook: &'static str,
    /// Whether the hook sees what the device sends.
    pub outbound: bool,
    /// Whether the hook is attached; it is not while the interface is gone, and `None` where that
    /// is as it should be.
    pub attached: Option<bool>,
    pub counters: InterfaceCounters,
    pub settings: Settings,
}

/// How an interface is set. Settings can change while it is recorded.
#[derive(Clone)]
pub struct Settings {
    pub paused: bool,
    /// Bytes kept of each packet; `None` where the daemon decides.
    pub snaplen: Option<u32>,
    pub filter: Option<String>,
    /// How many rules judge.
    pub rules: u32,
}

/// Something that happened to an interface, which the user is told.
pub struct InterfaceNotice {
    pub name: String,
    pub event: Result<Event, String>,
}

impl RecordSource {
    pub fn open(plan: &RecordPlan, clock: &Arc<Clock>, lasting: Option<&Lasting>) -> Result<Self> {
        match &plan.origin {
            Origin::Interfaces { interfaces, .. } => {
                let mut captures: Vec<Capture> = Vec::new();
                let mut first_interface = 0;
                let comes_and_goes = |name: &str| {
                    plan.later.as_ref().is_some_and(|later| later.comes_and_goes(name))
                };
                for (name, config) in interfaces {
                    let capture = match lasting {
                        Some(lasting) => {
                            let place = (lasting.persist(), captures.len(), comes_and_goes(name));
                            Capture::open_lasting(name, config, first_interface, clock, place)?
                        }
                        None => Capture::open(name, config, first_interface, clock)?,
                    };
                    first_interface = capture.interfaces().end;
                    captures.push(capture);
                }
                if let Some((_, Config { filter: Some(expression), .. })) = interfaces.first() {
                    check_filter(expression, captures.iter().map(Capture::interface))?;
                }
                let past = lasting.map(|lasting| lasting.persist().past()).unwrap_or_default();
                Ok(Self::Interfaces(captures, Past::new(plan.later.clone(), past)))
            }
            Origin::Group { name, options } => {
                let mut group = Membership::join(name, options)?;
                group.ask_for_missed(clock);
                Ok(Self::Group(Box::new(group)))
            }
        }
    }

    /// Divides from this process the helper that does from now on what takes privileges, also for
    /// interfaces that come `later`: it runs `end` when the recorder is gone. There is none for a
    /// group, whose daemon has the hooks.
    ///
    /// # Errors
    /// Where there is no room for another process, or this one has several threads.
    pub fn divide(
        &mut self,
        lasting: Option<&Lasting>,
        later: Option<Later>,
        end: impl FnOnce(),
    ) -> Result<Option<Arc<Helper>>> {
        let Self::Interfaces(captures, _) = self else { return Ok(None) };
        let locks_memory = captures.iter().any(|capture| capture.config().hook == Hook::AfXdp);
        let persist = lasting.map(Lasting::persist);
        let helper = Helper::divide(
            captures,
            later,
            || keep_for_hooks(locks_memory),
            || persist.is_some_and(Persist::stays),
            || {
                persist.into_iter().for_each(Persist::clean);
                end();
            },
        );
        Ok(Some(helper.context("cannot start the process that has the hooks")?))
    }

    /// Attaches the hooks: from now on packets come.
    pub fn start(&mut self) -> Result<()> {
        if let Self::Interfaces(captures, _) = self {
            for capture in captures {
                capture.start()?;
            }
        }
        Ok(())
    }

    /// Returns the readers of all rings. Each ring has one reader, so this is called once.
    pub fn take_rings(&mut self) -> Vec<Box<dyn Ring>> {
        match self {
            Self::Interfaces(captures, _) => {
                let readers = captures.iter().flat_map(Capture::readers);
                readers.map(|reader| Box::new(reader) as Box<dyn Ring>).collect()
            }
            Self::Group(group) => group.take_rings(),
        }
    }

    /// Returns the pcapng interfaces that packets name, in the order of their numbers. A number
    /// that no ring has is one more of the interface before.
    pub fn descriptions(&self) -> Vec<InterfaceDescription> {
        match self {
            Self::Interfaces(captures, _) => {
                let mut captures: Vec<&Capture> = captures.iter().collect();
                captures.sort_by_key(|capture| capture.interfaces().start);
                let mut all: Vec<InterfaceDescription> = Vec::new();
                for capture in captures {
                    let its = capture.descriptions();
                    let before = all.last().or(its.first()).cloned();
                    if let Some(before) = before {
                        all.resize(capture.interfaces().start as usize, before);
                    }
                    all.extend(its);
                }
                all
            }
            Self::Group(group) => group.interfaces().to_vec(),
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Interfaces(captures, _) => captures.iter().map(Capture::memory_bytes).sum(),
            Self::Group(group) => group.memory_bytes(),
        }
    }

    /// Returns the interfaces whose hooks are the recorder's own; none for a membership.
    pub fn captures(&self) -> &[Capture] {
        match self {
            Self::Interfaces(captures, _) => captures,
            Self::Group(_) => &[],
        }
    }

    pub fn captures_mut(&mut self) -> &mut [Capture] {
        match self {
            Self::Interfaces(captures, _) => captures,
            Self::Group(_) => &mut [],
        }
    }

    /// Takes in an interface that came later: at this place, which is behind all or that of one
    /// that is over.
    pub fn put(&mut self, place: usize, capture: Capture, totals: &Totals) {
        let Self::Interfaces(captures, past) = self else { return };
        if place == captures.len() {
            captures.push(capture);
        } else {
            let before = std::mem::replace(&mut captures[place], capture);
            if !before.has_left() {
                past.note(&before, totals);
            }
        }
    }

    /// Has an interface that is gone leave its place in a lasting recording.
    pub fn leave_place(&mut self, place: usize, persist: &Persist, totals: &Totals) {
        let Self::Interfaces(captures, past) = self else { return };
        past.note(&captures[place], totals);
        captures[place].leave_place(persist, &past.lasting());
    }

    /// Looks whether the daemon has died whose member this recorder is.
    pub fn look_for_daemon(&mut self, clock: &Clock) -> Option<(String, Event)> {
        let Self::Group(group) = self else { return None };
        let event = group.look(clock.epoch())?;
        Some((device(group.name()), event))
    }

    /// Closes blocks that have waited, or all where the clock was stepped. For a membership the
    /// daemon does so.
    pub fn flush(&mut self, clock: &Clock, waited: bool) -> Vec<(String, io::Error)> {
        let mut failed = Vec::new();
        for capture in self.captures_mut() {
            let behind = capture.rings().iter().any(|r| r.open_epoch() != clock.epoch());
            let flushed = if behind {
                capture.flush_all()
            } else if waited {
                capture.flush()
            } else {
                Ok(())
            };
            if let Err(e) = flushed {
                failed.push((capture.interface().name.clone(), e));
            }
        }
        failed
    }

    /// Returns how much is in use of the ring that is fullest, in 16ths.
    pub fn sixteenths_filled(&self) -> u64 {
        let rings = self.captures().iter().flat_map(Capture::rings);
        let fill = |ring: &Arc<RingMemory>| {
            16 * ring.fill_bytes() / u64::from(ring.geometry().ring_bytes())
        };
        rings.map(fill).max().unwrap_or(0)
    }

    /// Returns whether no packet lies in any ring. Of a membership that is not known here.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Interfaces(captures, _) => {
                captures.iter().flat_map(Capture::rings).all(|ring| ring.fill_bytes() == 0)
            }
            Self::Group(_) => false,
        }
    }

    /// Closes every part-filled block.
    pub fn flush_all(&mut self) -> Result<()> {
        match self {
            Self::Interfaces(captures, _) => {
                for capture in captures {
                    let name = &capture.interface().name.clone();
                    capture.flush_all().with_context(|| format!("{name}: cannot flush"))?;
                }
                Ok(())
            }
            Self::Group(group) => group.flush().context("cannot flush"),
        }
    }

    /// Looks after the interfaces, once a second.
    pub fn watch(&mut self, clock: &Clock) -> Vec<InterfaceNotice> {
        let mut notices = Vec::new();
        if let Self::Group(group) = self {
            let event = group.come_back(clock);
            group.ask_for_missed(clock);
            let name = device(group.name());
            notices.extend(event.transpose().map(|event| InterfaceNotice { name, event }));
        }
        let Self::Interfaces(captures, past) = self else { return notices };
        let mut taken = taken(captures);
        for capture in captures {
            let name = capture.interface().name.clone();
            let event = match capture.watch(&taken) {
                // It is a newcomer.
                Err(Error::LinkType { .. }) if past.may_go_for_good(&name) => Ok(None),
                event => event.map_err(|e| format!("{:#}", anyhow::Error::from(e))),
            };
            if let Ok(Some(Event::Back)) = event {
                taken.push(capture.interface().index);
            }
            if let Some(event) = event.transpose() {
                notices.push(InterfaceNotice { name: capture.interface().name.clone(), event });
            }
        }
        notices
    }

    /// Takes what went unseen since the last call, with the names of the interfaces and their first
    /// pcapng ids.
    pub fn take_unseen(&mut self) -> Vec<(String, u32, Unseen)> {
        if let Self::Group(group) = self {
            let name = device(group.name());
            return group.take_missed().into_iter().map(|one| (name.clone(), 0, one)).collect();
        }
        let Self::Interfaces(captures, past) = self else { return Vec::new() };
        let mut unseen = Vec::new();
        for capture in captures {
            let (name, id) = (capture.interface().name.clone(), capture.interfaces().start);
            let is_away = capture.is_gone() && past.may_go_for_good(&name);
            let taken = capture.take_unseen().into_iter();
            // Nobody waits for one that went for good.
            let worth = |one: &Unseen| !(is_away && one.cause == Cause::Away && one.packets == 0);
            unseen.extend(taken.filter(worth).map(|one| (name.clone(), id, one)));
        }
        unseen
    }

    /// Detaches the hooks. When this returns no packet comes any more; blocks may still be open.
    pub fn stop(&mut self, clock: &Clock) {
        match self {
            Self::Interfaces(captures, _) => {
                let taken = taken(captures);
                for capture in captures {
                    capture.finish(&taken);
                }
            }
            Self::Group(group) => {
                group.ask_for_missed(clock);
                group.leave();
            }
        }
    }

    /// Closes the blocks that hold something, and leaves the hooks in place, which go on.
    pub fn leave(&mut self) {
        for capture in self.captures_mut() {
            // What cannot be closed now is closed by the next owner.
            let _ = capture.flush_all();
        }
    }

    /// Tries to close all blocks after the end. Returns false where some are still open because
    /// their rings are full.
    pub fn close_blocks(&mut self) -> bool {
        let mut open = false;
        for capture in self.captures_mut() {
            // A block that cannot be closed now is tried again later.
            let _ = capture.flush_all();
            open |= capture.rings().iter().any(|r| r.open_block().1 > 0);
        }
        !open
    }

    /// Returns the account of each interface, or of the membership.
    pub fn account(&self, totals: &Totals) -> Vec<InterfaceAccount> {
        match self {
            Self::Interfaces(captures, past) => {
                let now = captures.iter().filter(|capture| !capture.has_left());
                let now = now.map(|capture| past.account_of(capture, totals));
                past.with_gone(now.collect())
            }
            Self::Group(group) => vec![of_membership(group, totals)],
        }
    }
}

/// Returns the indexes of the interfaces that are there: also of one whose hook somebody has taken
/// away, which is attached again.
fn taken(captures: &[Capture]) -> Vec<u32> {
    let there = captures.iter().filter(|capture| !capture.is_gone());
    there.map(|capture| capture.interface().index).collect()
}

/// Returns the name by which the account of a membership goes.
fn device(group: &str) -> String {
    format!("deck:{group}")
}

fn of_membership(group: &Membership, totals: &Totals) -> InterfaceAccount {
    let lost = totals.interfaces.iter().map(|totals| totals.lost.load(Relaxed)).sum();
    let losses = Losses { ring: lost, ..Losses::default() };
    InterfaceAccount {
        name: device(group.name()),
        hook: "group",
        outbound: false,
        attached: Some(group.is_attached()),
        counters: counters(
            totals.interfaces.iter().map(Written::of).sum(),
            losses,
            LeftOut::default(),
            group.missed(),
            NicCounters::default(),
        ),
        settings: Settings { paused: false, snaplen: None, filter: None, rules: 0 },
    }
}

pub fn of_capture(capture: &Capture, written: Written) -> InterfaceAccount {
    InterfaceAccount {
        name: capture.interface().name.clone(),
        hook: capture.config().hook.name(),
        outbound: capture.config().hook.sees_outbound(),
        attached: Some(capture.is_attached()),
        counters: counters(
            written,
            capture.losses(),
            LeftOut { filtered: capture.filtered(), cut: capture.cut(), shed: capture.shed() },
            capture.unseen(),
            capture.nic(),
        ),
        settings: Settings {
            paused: capture.is_paused(),
            snaplen: Some(capture.snaplen()),
            filter: capture.config().filter.clone(),
            rules: capture.config().rules.as_ref().map_or(0, |rules| rules.rules()),
        },
    }
}

/// What the writer says of rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    packets: u64,
    frame_bytes: u64,
    unwritten: u64,
}

impl Written {
    pub fn of(totals: &InterfaceTotals) -> Self {
        Self {
            packets: totals.packets.load(Relaxed),
            frame_bytes: totals.frame_bytes.load(Relaxed),
            unwritten: totals.unwritten.load(Relaxed),
        }
    }

    /// Returns what came since then.
    pub fn since(self, before: Self) -> Self {
        // A segment that could not be made durable takes packets back.
        Self {
            packets: self.packets.saturating_sub(before.packets),
            frame_bytes: self.frame_bytes.saturating_sub(before.frame_bytes),
            unwritten: self.unwritten.saturating_sub(before.unwritten),
        }
    }
}

impl Sum for Written {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            packets: a.packets + b.packets,
            frame_bytes: a.frame_bytes + b.frame_bytes,
            unwritten: a.unwritten + b.unwritten,
        })
    }
}

/// What hooks left out because somebody asked for that, also where a ring was nearly full.
#[derive(Clone, Copy, Default)]
struct LeftOut {
    filtered: u64,
    cut: Cut,
    shed: Shed,
}

/// Returns the account that follows from what the writer says of each ring, what the rings say, and
/// what the device says.
fn counters(
    written: Written,
    losses: Losses,
    left_out: LeftOut,
    unseen: u64,
    nic: NicCounters,
) -> InterfaceCounters {
    let unwritten = written.unwritten;
    let mut counters = InterfaceCounters {
        seen: 0,
        captured: written.packets,
        filtered: left_out.filtered,
        cutoff: left_out.cut.packets,
        dropped_ring: losses.ring,
        dropped_other: losses.contended + losses.unreadable + unwritten,
        dropped_contended: losses.contended,
        dropped_unreadable: losses.unreadable,
        dropped_unwritten: unwritten,
        nic_received: nic.rx_packets + nic.rx_missed,
        nic_dropped: nic.rx_missed,
        unseen,
        nic_sent: nic.tx_packets,
        bytes_captured: written.frame_bytes,
        shed_packets: left_out.shed.packets,
        shed_bytes: left_out.shed.bytes,
        bytes_cutoff: left_out.cut.bytes,
    };
    counters.seen = counters.accounted();
    counters
}
