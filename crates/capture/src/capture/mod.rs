//! One interface at one hook: how are its packets taken, from the first to the last?
//!
//! A [`Capture`] takes packets in one of two ways. Hook programs write packets into rings inside
//! the kernel; the socket hooks have threads that do the same in this process (`socket`). Both end
//! in rings that others read: nothing here looks at a packet. `change` is what can be exchanged
//! while packets flow, and `later` opens interfaces that come while others are recorded.

mod change;
mod kernel_hook;
mod later;
mod load;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{FLOWS_CUT_OFF, InterfaceDescription};

use crate::device::{Device, Meanwhile};
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{explain_load, filters_for};
use crate::helper::wire::{Answer, Fault, Request};
use crate::helper::{Helper, Seat};
use crate::hook::{TakenBy, XdpMode};
use crate::interface::{Interface, NicCounters};
use crate::memory::check_memory;
use crate::persist::state::Entry;
use crate::persist::{PastAccount, Persist, Place};
use crate::ring::{Cut, Geometry, RingMemory, RingReader};
use crate::ring_count::wanted_rings;
use crate::socket::SocketHook;
use crate::unseen::{Cause, Counted, Presence, Unseen};
use crate::warnings::{lost_tags, others_there, stays_behind, takes_nothing};
use crate::{Clock, Config, Error, Event, Losses, Shed, Stamps};
use kernel_hook::KernelHook;
pub use later::LaterPlace;
use later::OpenedPlace;
use load::{Opening, check, geometry, open_programs, open_sockets, told};

/// How long the helper of a recorder that was killed may still have the place of a hook.
const ENDING: Duration = Duration::from_millis(500);

/// Packets of one interface at one hook.
pub struct Capture {
    config: Config,
    device: Device,
    first_interface: u32,
    /// How many rings there are, also where this process, a helper, has none of their memory.
    nrings: u32,
    rings: Vec<Arc<RingMemory>>,
    taking: Taking,
    /// For each ring, the part-filled block that [`Capture::flush`] saw last.
    waiting: Vec<Option<u32>>,
    attached: bool,
    presence: Presence,
    paused: bool,
    lasting: Option<Lasting>,
    /// Whether the interface has left its place in a lasting recording.
    has_left: bool,
    /// The place at the helper, as long as that is not settled.
    opened: Option<OpenedPlace>,
    /// Bytes kept of a packet now; `config.snaplen` is what the rings were made for.
    snaplen: u32,
    /// The other programs that were at the interface when this was opened.
    others: Option<String>,
}

/// What a capture has that outlives its process.
struct Lasting {
    place: Place,
    /// A hash of what the programs were told.
    told: u64,
    /// Whether the interface had gone when this process took over what was left of it.
    is_left: bool,
    /// Whether it has come later, and what came before its hook is not counted yet.
    is_late: bool,
}

/// What the first word of a lasting account says.
const STANDS: u64 = 0;
const PAUSED: u64 = 1;
const LATE: u64 = 2;

#[expect(clippy::large_enum_variant, reason = "there is one for each interface")]
enum Taking {
    Kernel(KernelHook),
    Socket(SocketHook),
}

impl Capture {
    /// Prepares everything; packets flow from [`Capture::start`] on. The rings' packets carry
    /// the pcapng interface ids from `first_interface` on.
    pub fn open(
        name: &str,
        config: &Config,
        first_interface: u32,
        clock: &Arc<Clock>,
    ) -> Result<Self, Error> {
        Self::open_device(Device::open(name)?, config, first_interface, clock, None)
    }

    /// Prepares a capture of a lasting recording, the interface at a position. What an owner before
    /// has left goes on meanwhile: its rings keep their sizes and numbers. An interface that has
    /// gone since can be had as one that is gone if it is one that comes and goes.
    ///
    /// # Errors
    /// As [`Capture::open`], and where what is left cannot be taken over.
    pub fn open_lasting(
        name: &str,
        config: &Config,
        first_interface: u32,
        clock: &Arc<Clock>,
        (persist, position, comes_and_goes): (&Persist, usize, bool),
    ) -> Result<Self, Error> {
        let place = persist.place(position)?;
        let found = place.found.as_ref();
        let first = found.map_or(first_interface, |found| found.entry.first);
        let (device, is_left) = match found.filter(|_| comes_and_goes) {
            Some(found) => Device::left(found)?,
            None => (Device::open(name)?, false),
        };
        let mut capture = Self::open_device(device, config, first, clock, Some(place))?;
        if let Some(lasting) = &mut capture.lasting {
            lasting.is_left = is_left;
        }
        Ok(capture)
    }

    /// Returns the rings that a capture would have. Nothing is loaded or attached.
    ///
    /// # Errors
    /// Where the interface or what is wanted of it cannot be, as far as that is known beforehand.
    pub fn foresee(name: &str, config: &Config) -> Result<Geometry, Error> {
        let (device, config, geometry) = prepare(Device::open(name)?, config)?;
        filters_for(&device.interface, &config)?;
        Ok(geometry)
    }

    fn open_device(
        device: Device,
        config: &Config,
        first_interface: u32,
        clock: &Arc<Clock>,
        place: Option<Place>,
    ) -> Result<Self, Error> {
        let (device, config, wanted) = prepare(device, config)?;
        let filters = filters_for(&device.interface, &config)?;
        let wanted = (wanted, filters);
        Self::open_prepared(device, config, wanted, first_interface, clock, place)
    }

    fn open_prepared(
        device: Device,
        config: Config,
        (wanted, filters): (Geometry, Filters),
        first_interface: u32,
        clock: &Arc<Clock>,
        place: Option<Place>,
    ) -> Result<Self, Error> {
        let interface = &device.interface;
        let found = place.as_ref().and_then(|place| place.found.as_ref());
        let geometry = found.map_or(wanted, |found| found.entry.geometry);
        let asked = config.snaplen.min(geometry.snaplen);
        let config = Config { snaplen: geometry.snaplen, ..config };
        if found.is_none() {
            check_memory(&interface.name, geometry.memory_bytes())?;
        }
        let (config_of, snaplen) = (&config, asked);
        let opening = Opening {
            interface,
            config: config_of,
            geometry,
            snaplen,
            first_interface,
            filters,
            clock,
        };
        let (rings, taking) = match config.hook.facts().taken_by {
            TakenBy::Programs(set) => open_programs(opening, set, place.as_ref())?,
            TakenBy::Sockets(sockets) => open_sockets(opening, sockets)?,
        };
        let lasting = place.map(|place| Lasting::at(place, &taking, &config));
        let parts = (rings, taking);
        let mut capture = Self::of_parts(device, config, geometry, parts, first_interface, clock);
        (capture.snaplen, capture.lasting) = (asked, lasting);
        Ok(capture)
    }

    /// Makes a capture of rings and what fills them.
    fn of_parts(
        device: Device,
        config: Config,
        geometry: Geometry,
        (rings, taking): (Vec<Arc<RingMemory>>, Taking),
        first_interface: u32,
        clock: &Arc<Clock>,
    ) -> Self {
        Self {
            waiting: vec![None; rings.len()],
            snaplen: config.snaplen,
            others: others_there(&device.interface, config.hook, &[]),
            lasting: None,
            has_left: false,
            opened: None,
            presence: Presence::new(config.hook, clock),
            config,
            device,
            first_interface,
            nrings: geometry.nrings,
            rings,
            taking,
            attached: false,
            paused: false,
        }
    }

    /// Attaches the hook. The device's counters count from here, or go on where an owner before has
    /// left them.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.take_over()? {
            return Ok(());
        }
        self.device.begin()?;
        let until = Instant::now() + ENDING;
        while let Err(e) = self.attach() {
            if !matches!(e, Error::XdpBusy { .. }) || Instant::now() > until {
                return Err(e);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.presence.begin(self.counted());
        Ok(())
    }

    /// Returns what the device has counted as of the last look at it, and the hook as of now.
    fn counted(&self) -> Counted {
        Counted::new(self.config.hook, self.device.nic(), self.seen())
    }

    /// Returns how many packets have reached the hook, whether the rings' readers have them or not.
    fn seen(&self) -> u64 {
        let packets: u64 = self.rings.iter().map(|ring| ring.packets()).sum();
        packets + self.filtered() + self.cut().packets + self.losses().total()
    }

    /// Goes on with what an owner before has left. Returns false where there was none.
    fn take_over(&mut self) -> Result<bool, Error> {
        let found = self.lasting.as_ref().and_then(|lasting| lasting.place.found.clone());
        let Some(found) = found else { return Ok(false) };
        let account = found.account.unwrap_or_default();
        let mut words = account.into_iter();
        let how = words.next().unwrap_or(STANDS);
        let is_another = self.device.resume(&mut words);
        self.presence.resume(&mut words);
        if self.lasting.as_ref().is_some_and(|lasting| lasting.is_left) {
            self.device.pause();
            self.goes();
            return Ok(true);
        }
        self.check_told(&found.entry)?;
        self.attach()?;
        let renewed = match &self.taking {
            Taking::Kernel(hook) => hook.attached.renewed,
            Taking::Socket(_) => true,
        };
        let was_abandoned = self.take_abandoned();
        if how == PAUSED {
            // What came meanwhile was not wanted.
            self.device.is_back(Meanwhile::LeftOut, &[])?;
            self.presence.begin(self.counted());
        } else if how == LATE {
            self.is_shown_packets(Cause::Late);
        } else if is_another {
            self.is_shown_packets(Cause::Away);
        } else if was_abandoned {
            self.is_shown_packets(Cause::Abandoned);
        } else if renewed {
            self.is_shown_packets(Cause::Detached);
        } else {
            self.presence.stands(self.counted());
        }
        self.device.note_queues();
        Ok(true)
    }

    /// Refuses other programs than those that are attached, where they cannot be exchanged.
    fn check_told(&self, entry: &Entry) -> Result<(), Error> {
        let told = self.lasting.as_ref().map(|lasting| lasting.told);
        let fixed = !self.config.hook.can_exchange_filter();
        if fixed && told != Some(entry.told) {
            return Err(Error::FixedFilter(self.config.hook));
        }
        Ok(())
    }

    /// Returns the place of this interface in a lasting recording, if it has one.
    pub(crate) fn lasting_index(&self) -> Option<usize> {
        self.lasting.as_ref().map(|lasting| lasting.place.index)
    }

    /// Returns what a lasting recording notes of this interface; `None` where it has no place in
    /// one.
    pub(crate) fn lasting_entry(&self) -> Option<Entry> {
        let Lasting { place, told, .. } = self.lasting.as_ref()?;
        let interface = &self.device.interface;
        Some(Entry {
            name: interface.name.clone(),
            hook: self.config.hook,
            geometry: *self.rings.first()?.geometry(),
            told: *told,
            first: self.first_interface,
            number: place.number,
            link: interface.link.unwrap_or(LinkType::ETHERNET),
            mac: interface.mac,
            kind: interface.kind.clone(),
        })
    }

    /// Returns the words of an account that [`Capture::start`] of another owner goes on with.
    pub(crate) fn lasting_account(&self) -> Vec<u64> {
        let is_late = self.lasting.as_ref().is_some_and(|lasting| lasting.is_late);
        let mut words = vec![match (self.paused, is_late) {
            (true, _) => PAUSED,
            (false, true) => LATE,
            (false, false) => STANDS,
        }];
        self.device.put(&mut words);
        self.presence.put(&mut words);
        words
    }

    fn attach(&mut self) -> Result<(), Error> {
        let (interface, config) = (&self.device.interface, &self.config);
        match &mut self.taking {
            Taking::Socket(hook) => hook.start(interface, config)?,
            Taking::Kernel(hook) => {
                hook.ask(interface, &Request::Attach { ifindex: interface.index })
                    .map_err(|fault| explain(interface, config.hook, fault.into_error()))?;
            }
        }
        self.attached = true;
        Ok(())
    }

    /// Detaches the hook and waits until no program or thread of it runs any more. Everything that
    /// was captured is then in the rings, in blocks that are complete or that
    /// [`Capture::flush_all`] closes.
    pub fn stop(&mut self) {
        self.attached = false;
        match &mut self.taking {
            Taking::Socket(hook) => hook.stop(),
            // It fails where the helper has ended, and the links with it.
            Taking::Kernel(hook) => drop(hook.ask(&self.device.interface, &Request::Detach)),
        }
    }

    /// Leaves to a helper what takes privileges; it knows this capture by the number.
    pub(crate) fn is_helped(&mut self, helper: &Arc<Helper>, number: u32) {
        let seat = Seat { helper: helper.clone(), interface: number };
        match &mut self.taking {
            Taking::Socket(hook) => hook.is_helped(seat),
            Taking::Kernel(hook) => {
                if let Some(images) = &mut hook.images {
                    images.places = Box::new(seat.clone());
                }
                hook.seat = Some(seat);
            }
        }
    }

    /// Lets go of the memory of the rings, in a helper.
    pub(crate) fn forget_rings(&mut self) {
        self.rings.clear();
        match &mut self.taking {
            Taking::Socket(hook) => hook.forget_rings(),
            Taking::Kernel(hook) => hook.loaded.forget_rings(),
        }
    }

    /// Does what a recorder asks its helper for.
    pub(crate) fn help(&mut self, request: &Request) -> Result<Answer, Fault> {
        match request {
            Request::Attach { ifindex } | Request::Load { ifindex } => {
                self.device.become_again(*ifindex).map_err(Fault::Place)?;
            }
            // It may have another name by now.
            Request::Restore => self.device.refresh_all(),
            _ => {}
        }
        let interface = &self.device.interface;
        let done = match &mut self.taking {
            Taking::Socket(hook) => hook.perform(interface, request),
            Taking::Kernel(hook) => hook.perform(interface, request),
        };
        match request {
            Request::Attach { .. } if done.is_ok() => self.attached = true,
            Request::Detach => self.attached = false,
            Request::GiveUp => (self.attached, self.lasting) = (false, None),
            _ => {}
        }
        done
    }

    /// Has an interface that is gone leave its place in a lasting recording, whose accounts of
    /// those that have left are `past` from now on, and removes its pins. It does not come back
    /// here.
    pub fn leave_place(&mut self, persist: &Persist, past: &[PastAccount]) {
        let Some(Lasting { place, .. }) = self.lasting.take() else { return };
        persist.leave(place.index, past);
        self.has_left = true;
        if let Taking::Kernel(hook) = &mut self.taking {
            // What cannot be removed now the next owner removes.
            drop(hook.ask(&self.device.interface, &Request::GiveUp));
        }
    }

    /// Returns whether the interface has left its place in a lasting recording.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Detaches the programs in this process, a helper, if they are not to go on.
    pub(crate) fn detach_here(&mut self, stays: bool) {
        self.attached = false;
        match &mut self.taking {
            Taking::Socket(hook) => hook.detach_here(),
            Taking::Kernel(hook) => hook.detach_here(stays),
        }
    }

    /// Closes every block that has been part-filled since the last call. Called regularly, so that
    /// no packet waits for longer than twice the time between two calls.
    pub fn flush(&mut self) -> io::Result<()> {
        for ring in 0..self.rings.len() {
            let (block, bytes) = self.rings[ring].open_block();
            let waited = self.waiting[ring] == Some(block);
            self.waiting[ring] = (bytes > 0).then_some(block);
            if waited && bytes > 0 {
                self.close(ring as u32, block)?;
            }
        }
        Ok(())
    }

    /// Closes every part-filled block, and lets empty ones take the current epoch.
    pub fn flush_all(&mut self) -> io::Result<()> {
        for ring in 0..self.rings.len() {
            let (block, _) = self.rings[ring].open_block();
            self.close(ring as u32, block)?;
        }
        Ok(())
    }

    fn close(&self, ring: u32, block: u32) -> io::Result<()> {
        match &self.taking {
            Taking::Socket(hook) => hook.flush(ring as usize, block),
            Taking::Kernel(hook) => hook.loaded.flush(ring, block)?,
        }
        Ok(())
    }

    /// Looks whether the interface is still there, under whatever name, and whether the hook stands
    /// where it was put. A hook that somebody else has detached is attached again. If the interface
    /// was deleted, captures at an interface of the same name once there is one. Called once a
    /// second; [`Capture::take_unseen`] then has what was missed. The interfaces of other captures,
    /// by index, are `taken`: one of them that gets the name was renamed.
    ///
    /// # Errors
    /// Where the hook cannot be attached again. The next call tries it again.
    pub fn watch(&mut self, taken: &[u32]) -> Result<Option<Event>, Error> {
        if self.paused || self.has_left {
            return Ok(None);
        }
        if self.attached {
            let event = self.device.look()?;
            if event == Some(Event::Gone) {
                self.goes();
                return Ok(event);
            }
            return self.stand().map(|()| event);
        }
        if !self.device.is_back(Meanwhile::Counts, taken)? {
            return Ok(None);
        }
        self.reload()?;
        self.attach()?;
        self.is_shown_packets(Cause::Away);
        Ok(Some(Event::Back))
    }

    /// Takes note that the interface is gone.
    fn goes(&mut self) {
        self.stop();
        let more = self.presence.is_gone(self.counted());
        self.device.add_received(more);
    }

    /// Looks whether the hook stands, and attaches it again where it does not.
    fn stand(&mut self) -> Result<(), Error> {
        let interface = &self.device.interface;
        let restored = match &mut self.taking {
            Taking::Socket(hook) => hook.restore(interface),
            Taking::Kernel(hook) => {
                let restored = hook.ask(interface, &Request::Restore);
                restored.map(|restored| restored != 0).map_err(Fault::into_error)
            }
        };
        match restored {
            Ok(restored) if restored || self.presence.has_gone() => {
                self.is_shown_packets(Cause::Detached);
            }
            Ok(_) if self.take_abandoned() => self.is_shown_packets(Cause::Abandoned),
            Ok(_) if self.takes_new_queues() => self.is_shown_packets(Cause::Queue),
            Ok(_) => self.presence.stands(self.counted()),
            Err(e) => {
                let why = explain(&self.device.interface, self.config.hook, e);
                self.device.refresh();
                self.presence.is_away(self.counted());
                let name = self.device.interface.name.clone();
                return Err(Error::Detached { name, why: Box::new(why) });
            }
        }
        Ok(())
    }

    /// Returns whether the programs have stopped recording, since nobody had beaten for too long
    /// ([`Clock::beat`]), and has them record again.
    fn take_abandoned(&self) -> bool {
        match &self.taking {
            Taking::Kernel(hook) => hook.loaded.take_abandoned(),
            Taking::Socket(_) => false,
        }
    }

    /// Sees that packets of queues that were switched on since the last look are captured: drivers
    /// may run the program on the queues alone that there were when it was attached. Returns
    /// whether there are such queues. What cannot be done is tried again at the next look.
    fn takes_new_queues(&mut self) -> bool {
        let is_by_queue = self.config.hook.xdp_mode() == Some(XdpMode::Driver);
        if !is_by_queue || !self.device.has_more_queues() {
            return false;
        }
        let interface = &self.device.interface;
        let done = match &mut self.taking {
            Taking::Socket(hook) => hook.take_new_queues(interface, &self.config).is_ok(),
            Taking::Kernel(hook) => hook.ask(interface, &Request::TakeQueues).is_ok(),
        };
        if done {
            self.device.note_queues();
        }
        done
    }

    /// Counts what was missed up to now, that the hook is attached again.
    fn is_shown_packets(&mut self, cause: Cause) {
        self.device.refresh();
        self.presence.is_back(self.counted(), cause);
    }

    /// Takes what went unseen since the last call, in the order of time.
    pub fn take_unseen(&mut self) -> Vec<Unseen> {
        self.presence.take()
    }

    /// Returns how many packets went unseen since [`Capture::start`].
    pub fn unseen(&self) -> u64 {
        self.presence.unseen()
    }

    /// Returns whether the hook is attached, as of the last look.
    pub fn is_attached(&self) -> bool {
        self.attached && !self.presence.has_gone()
    }

    /// Returns when the hook was last known to stand, UTC nanoseconds.
    pub fn stood_ns(&self) -> u64 {
        self.presence.stood_ns()
    }

    /// Returns whether the interface is gone, as of the last look.
    pub fn is_gone(&self) -> bool {
        !self.attached && !self.paused
    }

    /// Returns whether the interface is gone, and all that was captured there is out of the rings.
    pub fn is_over(&self) -> bool {
        self.is_gone() && self.rings.iter().all(|ring| ring.fill_bytes() == 0)
    }

    /// Looks a last time after the hook, as [`Capture::watch`] does, detaches it as
    /// [`Capture::stop`] does, and reads the device's counters a last time.
    pub fn finish(&mut self, taken: &[u32]) {
        // What fails here is only what the hook would have seen from now on.
        let _ = self.watch(taken);
        self.stop();
        if !self.paused {
            self.presence.end(self.counted());
        }
        self.refresh_nic();
    }

    /// Loads the programs for the interface as it is now.
    fn reload(&mut self) -> Result<(), Error> {
        let (interface, config) = (&self.device.interface, &self.config);
        if let Taking::Kernel(hook) = &mut self.taking {
            hook.ask(interface, &Request::Load { ifindex: interface.index })
                .map_err(|e| explain_load(interface, config, &hook.filters, e.into_error()))?;
        }
        Ok(())
    }

    /// Returns how many packets the filter and the rules refused.
    pub fn filtered(&self) -> u64 {
        self.rings.iter().map(|r| r.filtered()).sum()
    }

    /// Returns what was left out of flows that had had their bytes.
    pub fn cut(&self) -> Cut {
        self.rings.iter().map(|r| r.cut()).sum()
    }

    /// Returns what the device has counted since [`Capture::start`]; where the device is gone,
    /// until it was last seen.
    pub fn nic(&self) -> NicCounters {
        self.device.nic()
    }

    /// Reads the device's counters anew, except during a pause.
    pub fn refresh_nic(&mut self) {
        if !self.paused {
            self.device.refresh();
        }
    }

    /// Returns how many packets were dropped, by cause.
    pub fn losses(&self) -> Losses {
        self.rings.iter().map(|r| r.losses()).fold(Losses::default(), |a, b| Losses {
            ring: a.ring + b.ring,
            contended: a.contended + b.contended,
            unreadable: a.unreadable + b.unreadable,
        })
    }

    /// Returns what was given up of packets that are or were in the rings, since the recording
    /// began.
    pub fn shed(&self) -> Shed {
        self.rings.iter().map(|r| r.shed()).fold(Shed::default(), |a, b| Shed {
            packets: a.packets + b.packets,
            bytes: a.bytes + b.bytes,
        })
    }

    /// Returns the readers of the rings. Each ring has one reader, so this is called once.
    ///
    /// # Panics
    /// If what an owner before has left makes no sense, which was found out before.
    pub fn readers(&self) -> Vec<RingReader> {
        let found = self.lasting.as_ref().and_then(|lasting| lasting.place.found.as_ref());
        let next = |ring: usize| Some(found?.rings.get(ring)?.next);
        let reader = |(ring, (interface, memory)): (usize, (u32, &Arc<RingMemory>))| {
            let memory = memory.clone();
            match next(ring) {
                Some(next) => RingReader::resume(memory, interface, next).expect("it was tried"),
                None => RingReader::new(memory, interface),
            }
        };
        (self.first_interface..).zip(&self.rings).enumerate().map(reader).collect()
    }

    /// Ends without taking the hook away: packets go on coming into the rings, for another owner
    /// of the lasting recording.
    pub fn leave(&mut self) {
        self.attached = false;
        if let Taking::Kernel(hook) = &mut self.taking {
            drop(std::mem::take(&mut hook.links));
        }
    }

    /// Returns a pcapng interface description for each ring.
    pub fn descriptions(&self) -> Vec<InterfaceDescription> {
        let unit = self.config.hook.ring_unit().name();
        let clock = match self.stamps() {
            Some(stamps) => format!(", clock {stamps}"),
            None => String::new(),
        };
        let by_rules = self.config.rules.as_ref().is_some_and(|rules| rules.cuts_flows());
        let cutoff = match self.config.cutoff {
            Some(bytes) => format!(", {FLOWS_CUT_OFF} after {bytes} bytes"),
            None if by_rules => format!(", {FLOWS_CUT_OFF} by rules"),
            None => String::new(),
        };
        let nrings = self.rings.len() as u32;
        let wanted = wanted_rings(&self.device.interface, self.config.hook);
        (0..nrings)
            .map(|ring| InterfaceDescription {
                link: self.device.interface.link.unwrap_or(LinkType::ETHERNET),
                snaplen: self.config.snaplen,
                name: self.device.interface.name.clone(),
                description: if wanted > nrings {
                    format!(
                        "hook {}, every {unit} n with n mod {nrings} = {ring}{clock}{cutoff}",
                        self.config.hook
                    )
                } else {
                    format!("hook {}, {unit} {ring}{clock}{cutoff}", self.config.hook)
                },
                filter: self.config.filter.clone(),
                hardware: self.device.interface.kind.clone(),
                mac: self.device.interface.mac,
            })
            .collect()
    }

    /// Returns what packets are stamped by; `None` at socket hooks, where the kernel does it.
    pub fn stamps(&self) -> Option<Stamps> {
        let Taking::Kernel(KernelHook { programs, params, .. }) = &self.taking else { return None };
        Some(Stamps::of(params, programs))
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    /// Returns the pcapng interface ids of the rings' packets.
    pub fn interfaces(&self) -> Range<u32> {
        self.first_interface..self.first_interface + self.nrings
    }

    pub fn interface(&self) -> &Interface {
        &self.device.interface
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns what the user should know about this capture that is no error.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::from_iter(self.others.clone());
        let wanted = wanted_rings(&self.device.interface, self.config.hook);
        let has = self.rings.len() as u32;
        if has < wanted {
            warnings.push(format!(
                "{wanted} queues or CPUs share {has} rings; --ring-bytes {} gives each its own",
                u64::from(wanted * Geometry::MIN_BLOCKS) * self.config.block_bytes
            ));
        }
        let interface = &self.device.interface;
        let hook = self.config.hook;
        match &self.taking {
            Taking::Kernel(KernelHook { programs, params, filters, attached, .. }) => {
                warnings.extend(lost_tags(interface, hook, programs, Some(params)));
                warnings.extend(attached.by_clsact.then(|| stays_behind(interface)));
                let expression = self.config.filter.as_ref().filter(|_| filters.refuse_all());
                warnings.extend(expression.map(|text| takes_nothing(interface, text)));
            }
            Taking::Socket(_) => warnings.extend(lost_tags(interface, hook, &[], None)),
        }
        warnings
    }

    /// Returns the memory that all rings together take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.rings.first().map_or(0, |r| r.geometry().memory_bytes())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        match &self.lasting {
            // What stays and what does not is the affair of the recording as a whole.
            Some(_) => self.leave(),
            None if self.attached => self.stop(),
            None => {}
        }
    }
}

impl Lasting {
    fn at(place: Place, taking: &Taking, config: &Config) -> Self {
        Self { told: told(taking, config), place, is_left: false, is_late: false }
    }
}

/// Returns an interface with what of it can be had of what is wanted.
fn prepare(device: Device, config: &Config) -> Result<(Device, Config, Geometry), Error> {
    check(config)?;
    let snaplen = config.snaplen.min(config.hook.facts().most_snaplen);
    let config = Config { snaplen, ..config.clone() };
    let wanted = geometry(&device.interface, &config)?;
    Ok((device, config, wanted))
}
