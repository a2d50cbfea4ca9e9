//! One interface at one hook (a port), and the groups that get its packets there.
//!
//! Each port has programs of its own, with the list of its groups and their filters as constants.
//! All of them work on the maps of one [`Hub`]. So a group that changes its filter gets new
//! programs, which are put in the place of the old ones; who is a member of a group is in the maps
//! and not known here.

mod helped;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::hub::{Constants, Hub};
use crate::attach::Links;
use crate::bpf::driver::{Questions, load_best};
use crate::bpf::object::LoadedObject;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::device::{Device, Meanwhile};
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{Compiler, cbpf};
use crate::helper::wire::{Attached, Fault, Made, Request};
use crate::helper::{Helper, Seat};
use crate::hook::{ProgramSet, RingUnit, XdpMode};
use crate::persist::{LinkPins, fnv};
use crate::ring::Geometry;
use crate::ring_count::wanted_rings;
use crate::stamps::why_each_packet;
use crate::sys::params::{MAX_GROUPS, TdEntry, TdPort};
use crate::unseen::{Cause, Counted, Presence, Unseen};
use crate::warnings::{lost_tags, others_there, stays_behind, takes_nothing};
use crate::{Clock, Deliver, Error, Event, Hook, Stamps};
use helped::Change;
use tapdeck_packet::link::LinkType;

/// A group at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub group: u16,
    /// The number of the interface in the group's list.
    pub interface: u16,
    /// Which of the counters is the group's, from the port's `counts` on.
    pub count: u16,
    pub filter: Filter,
}

/// A group's filter at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    expression: Option<String>,
    /// The expression compiled for the interface as it is.
    compiled: Option<cbpf::ClassicProgram>,
}

impl Filter {
    pub(super) fn of(expression: Option<&str>) -> Self {
        Self { expression: expression.map(str::to_owned), compiled: None }
    }
}

/// `struct td_port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    pub port: u32,
    /// Where in the counters those of the port's groups are counted from.
    pub counts: u32,
    pub entries: Vec<Entry>,
}

impl List {
    /// The structure, with the filters' numbers in the program.
    pub(super) fn bytes(&self, filters: &[Option<u32>]) -> Vec<u8> {
        let mut port = TdPort {
            port: self.port,
            counts: self.counts,
            entries: self.entries.len() as u32,
            reserved: 0,
            entry: [TdEntry::default(); MAX_GROUPS],
        };
        for (i, (to, entry)) in port.entry.iter_mut().zip(&self.entries).enumerate() {
            let filter = filters.get(i).copied().flatten().map_or(0, |number| number as u16 + 1);
            let Entry { group, interface, count, .. } = *entry;
            *to = TdEntry { group, interface, filter, count };
        }
        port.bytes().to_vec()
    }
}

/// A port. `L` is what it is attached by; a port of no links can be on any thread.
pub(super) struct Port<L = Links> {
    pub device: Device,
    pub hook: Hook,
    pub set: ProgramSet,
    pub deliver: Deliver,
    pub promiscuous: bool,
    /// Whether a program may be bound to the device.
    pub device_bound: bool,
    pub stamps: Stamps,
    pub list: List,
    params: Params,
    ready: Option<Ready>,
    links: L,
    attached: Attached,
    is_attached: bool,
    presence: Presence,
    /// The other programs that were at the interface when a helper was divided.
    others: Option<String>,
    /// The helper, where what takes privileges is its affair and not this process's.
    seat: Option<Seat>,
    /// What a change of filters prepares and has replaced, in a helper.
    change: Change,
    /// Where links are pinned, of groups that outlive their daemon.
    pub pins: Option<LinkPins>,
}

/// Programs of a port that are loaded.
pub(super) struct Ready {
    /// The programs; `None` where the helper has them.
    loaded: Option<LoadedObject>,
    /// The hook's programs that are loaded.
    programs: &'static [Program],
    /// A hash of what the programs were told.
    told: u64,
}

impl Ready {
    fn program(&self, which: Program) -> io::Result<OwnedFd> {
        self.loaded.as_ref().ok_or(io::ErrorKind::NotFound)?.program(which)
    }
}

impl Port {
    /// A port without programs.
    pub(super) fn new(
        device: Device,
        hook: Hook,
        set: ProgramSet,
        deliver: Deliver,
        clock: &Arc<Clock>,
    ) -> Self {
        let params = Params {
            consume: deliver == Deliver::Consume,
            by_cpu: hook.ring_unit() == RingUnit::Cpu,
            link_header: device.interface.link.is_some_and(LinkType::has_header),
            ..Params::unread(device.interface.index)
        };
        Self {
            device,
            hook,
            set,
            deliver,
            promiscuous: false,
            device_bound: true,
            stamps: Stamps::Auto,
            list: List::default(),
            params,
            ready: None,
            links: Links::default(),
            attached: Attached::default(),
            is_attached: false,
            presence: Presence::new(hook, clock),
            others: None,
            seat: None,
            change: Change::default(),
            pins: None,
        }
    }

    /// Returns a port of the same interface and groups that has no programs, for another thread to
    /// load some.
    pub(super) fn draft(&self) -> Port<()> {
        Port {
            device: self.device.clone(),
            hook: self.hook,
            set: self.set,
            deliver: self.deliver,
            promiscuous: self.promiscuous,
            device_bound: self.device_bound,
            stamps: self.stamps,
            list: self.list.clone(),
            params: self.params,
            ready: None,
            links: (),
            attached: self.attached,
            is_attached: false,
            presence: self.presence.anew(self.hook),
            others: None,
            seat: self.seat.clone(),
            change: Change::default(),
            pins: self.pins.clone(),
        }
    }

    /// Whether programs are loaded; none are while the interface is gone.
    pub(super) fn is_loaded(&self) -> bool {
        self.ready.is_some()
    }

    /// Returns a loaded program's descriptor.
    pub(super) fn program(&self, which: Program) -> io::Result<OwnedFd> {
        self.ready.as_ref().ok_or(io::ErrorKind::NotFound)?.program(which)
    }

    /// Returns how many rings give each queue or CPU of the port one of its own.
    pub(super) fn wanted_rings(&self) -> u32 {
        wanted_rings(&self.device.interface, self.hook)
    }

    /// Returns what packets are stamped by.
    pub(super) fn stamped_by(&self) -> Stamps {
        Stamps::of(&self.params, self.ready.as_ref().map_or(&[][..], |ready| ready.programs))
    }

    /// Returns whether the interface is gone, as of the last look.
    pub(super) fn is_gone(&self) -> bool {
        !self.is_attached
    }

    pub(super) fn is_attached(&self) -> bool {
        !self.is_gone() && !self.presence.has_gone()
    }

    fn counted(&self, seen: u64) -> Counted {
        Counted::new(self.hook, self.device.nic(), seen)
    }

    /// Attaches the port's programs for the first time, when they have seen so many packets. What
    /// the device has counted before is left out.
    pub(super) fn begin(&mut self, seen: u64) -> Result<(), Error> {
        self.device.begin()?;
        self.attach()?;
        self.presence.begin(self.counted(seen));
        Ok(())
    }

    /// Goes on where a daemon before has stopped, whose programs have seen so many packets by now:
    /// puts this port's programs in the place of those.
    pub(super) fn take_over(
        &mut self,
        account: Option<Vec<u64>>,
        was_abandoned: bool,
        seen: impl Fn() -> io::Result<u64>,
    ) -> Result<(), Error> {
        let mut words = account.unwrap_or_default().into_iter();
        let is_another = self.device.resume(&mut words);
        self.presence.resume(&mut words);
        self.attach()?;
        let seen = seen().map_err(|e| self.explain(e))?;
        let cause = [
            (is_another, Cause::Away),
            (was_abandoned, Cause::Abandoned),
            (self.links.were_renewed(), Cause::Detached),
        ];
        if let Some((_, cause)) = cause.iter().find(|(is_it, _)| *is_it) {
            self.is_shown_packets(seen, *cause);
        } else {
            let now = self.counted(seen);
            self.presence.stands(now);
        }
        self.device.note_queues();
        Ok(())
    }

    /// Returns a hash of what the programs were told.
    pub(super) fn ready_told(&self) -> u64 {
        self.ready.as_ref().map_or(0, |ready| ready.told)
    }

    /// Returns the words that [`Port::take_over`] goes on with.
    pub(super) fn account(&self) -> Vec<u64> {
        let mut words = Vec::new();
        self.device.put(&mut words);
        self.presence.put(&mut words);
        words
    }

    /// Ends without taking the programs away.
    pub(super) fn leave(&mut self) {
        drop(std::mem::take(&mut self.links));
    }

    /// Returns how many packets went unseen so far.
    pub(super) fn unseen(&self) -> u64 {
        self.presence.unseen()
    }

    /// Takes what went unseen since the last call.
    pub(super) fn take_unseen(&mut self) -> Vec<Unseen> {
        self.presence.take()
    }

    /// Takes note that nothing is captured any more, when the programs have seen so many packets.
    pub(super) fn end(&mut self, seen: u64) {
        let now = self.counted(seen);
        self.presence.end(now);
    }

    /// Returns what the user should know of the port that is no error.
    pub(super) fn warnings(&self) -> Vec<String> {
        let interface = &self.device.interface;
        let programs = self.ready.as_ref().map_or(&[][..], |ready| ready.programs);
        let tags = lost_tags(interface, self.hook, programs, Some(&self.params));
        let clsact = self.attached.by_clsact.then(|| stays_behind(interface));
        let entries = self.list.entries.iter().map(|entry| &entry.filter);
        let nothing = entries.filter_map(|Filter { expression, compiled }| {
            let expression = expression.as_ref()?;
            let refuses = compiled.as_ref().is_some_and(cbpf::ClassicProgram::refuses_all);
            refuses.then(|| takes_nothing(interface, expression))
        });
        let others = match (&self.seat, &self.ready) {
            (None, Some(ready)) => {
                let own = self.links.program_ids(&|which| ready.program(which));
                others_there(interface, self.hook, &own)
            }
            _ => self.others.clone(),
        };
        others.into_iter().chain(tags).chain(clsact).chain(nothing).collect()
    }
}

impl<L> Port<L> {
    fn explain(&self, e: io::Error) -> Error {
        explain(&self.device.interface, self.hook, e)
    }

    /// Says what an error of the kernel means where programs with all these filters were wanted.
    fn refused(&self, constants: &Constants, e: io::Error) -> Error {
        match (e.raw_os_error(), &constants.longest) {
            (Some(libc::E2BIG), Some(expression)) => Error::LargeFilter {
                expression: expression.clone(),
                why: format!(
                    "it is the longest at {}, hook {}, with {} instructions, and all filters there have more ways through them than the kernel's verifier walks; make them shorter or fewer",
                    self.device.interface.name,
                    self.hook,
                    constants.filters.longest(),
                ),
            },
            _ => self.explain(e),
        }
    }

    /// Tells the programs that are loaded next what the interface is like now.
    fn suit_interface(&mut self, hub: &Hub, geometry: Geometry) -> Result<(), Error> {
        let interface = &self.device.interface;
        let driver = Questions::to(interface, &self.set, self.device_bound);
        let snaplen = geometry.snaplen.min(self.hook.facts().most_snaplen);
        let why_each_packet = match &hub.polls {
            Ok(_) => why_each_packet(interface, self.hook, geometry.nrings, false),
            Err(why) => Some(*why),
        };
        let (questions, by_poll) = self.stamps.choose(driver, why_each_packet).map_err(|why| {
            Error::Stamps { name: interface.name.clone(), stamps: self.stamps, why }
        })?;
        self.params = Params {
            geometry: Geometry { snaplen, ..geometry },
            ifindex: interface.index,
            hardware_time: questions.time,
            hardware_vlan: questions.vlan_tag,
            veth: questions.veth,
            clock_by_poll: by_poll,
            ..self.params
        };
        Ok(())
    }

    /// Loads the port's programs over the hub's maps.
    pub(super) fn load(&mut self, hub: &Hub, geometry: Geometry) -> Result<(), Error> {
        // What the filters were compiled to may not suit the interface that is there now.
        for entry in &mut self.list.entries {
            entry.filter.compiled = None;
        }
        if self.seat.is_some() {
            if let (Some(seat), Some(_)) = (&self.seat, self.ready.take()) {
                // The helper has programs that could not be attached. Where it is gone, the next
                // request says so.
                let _ = seat.ask(&Request::Detach);
            }
            let ifindex = self.device.interface.index;
            self.ready = Some(self.have_loaded(&Request::Load { ifindex })?);
            return Ok(());
        }
        self.suit_interface(hub, geometry)?;
        self.ready = Some(self.prepare(hub)?);
        Ok(())
    }

    /// Has the helper load programs for what the list of groups says now.
    fn have_loaded(&mut self, request: &Request) -> Result<Ready, Error> {
        self.compile()?;
        let ask = |request: &Request| match &self.seat {
            Some(seat) => seat.ask(request).map(|answer| answer.value),
            None => Err(Fault::Place(io::ErrorKind::NotFound.into())),
        };
        let all = || {
            for Entry { group, filter, .. } in &self.list.entries {
                let (group, program) = (u32::from(*group), filter.compiled.clone());
                ask(&Request::PutFilter { group, program })?;
            }
            ask(request)
        };
        let made = all().map_err(|fault| match fault {
            Fault::Load(e) => self.refused(&self.constants(), e),
            Fault::Queue(_, e) | Fault::Place(e) => self.explain(e),
        })?;
        let Made { bound, hardware_time, hardware_vlan, clock_by_poll, veth } = Made::of(made);
        let ifindex = self.device.interface.index;
        self.params =
            Params { ifindex, hardware_time, hardware_vlan, veth, clock_by_poll, ..self.params };
        let programs = self.set.bound.filter(|_| bound).unwrap_or(self.set.plain);
        Ok(Ready { loaded: None, programs, told: self.told(&self.constants()) })
    }

    /// Sets a group's filter for the programs that are loaded next. Returns the filter before.
    pub(super) fn put_filter(&mut self, group: u32, filter: Filter) -> Filter {
        let mut entries = self.list.entries.iter_mut();
        match entries.find(|entry| u32::from(entry.group) == group) {
            Some(entry) => std::mem::replace(&mut entry.filter, filter),
            None => filter,
        }
    }

    /// Loads programs for what the list of groups says now, to be put in the place of those that
    /// are there. Returns none while the interface is gone: the programs are loaded when it comes
    /// back, but filters that would be refused then are refused now.
    pub(super) fn renew(&mut self, hub: &Hub) -> Result<Option<Ready>, Error> {
        if self.ready.is_some() {
            return self.prepare(hub).map(Some);
        }
        for Filter { expression, compiled } in self.list.entries.iter().map(|entry| &entry.filter) {
            if let (Some(expression), None) = (expression, compiled) {
                Compiler::new(&self.device.interface).compile(expression)?;
            }
        }
        Ok(None)
    }

    /// Loads programs for what the list of groups says now.
    pub(super) fn prepare(&mut self, hub: &Hub) -> Result<Ready, Error> {
        if self.seat.is_some() {
            return self.have_loaded(&Request::Prepare);
        }
        self.compile()?;
        let constants = self.constants();
        self.load_here(hub, &constants).map_err(|e| self.refused(&constants, e))
    }

    /// Loads the programs anew where another device has got the number of a veth that is gone:
    /// those for a veth read what other drivers do not have.
    fn leave_veth(&mut self, hub: &Hub) -> io::Result<()> {
        if self.params.veth && !self.device.interface.is_veth() && self.ready.is_some() {
            let mut constants = self.constants();
            constants.params.veth = false;
            // The links are those of the plain programs, which all veths have.
            let loaded = hub.load(self.set.plain, &constants)?;
            let told = self.told(&constants);
            self.ready = Some(Ready { loaded: Some(loaded), programs: self.set.plain, told });
            self.params.veth = false;
        }
        Ok(())
    }

    fn load_here(&self, hub: &Hub, constants: &Constants) -> io::Result<Ready> {
        let load = |programs: &[Program]| hub.load(programs, constants);
        let (loaded, programs) = load_best(&self.set, &constants.params, load)?;
        Ok(Ready { loaded: Some(loaded), programs, told: self.told(constants) })
    }

    /// Compiles the filters that are new.
    fn compile(&mut self) -> Result<(), Error> {
        let mut compiler = Compiler::new(&self.device.interface);
        for Filter { expression, compiled } in
            self.list.entries.iter_mut().map(|entry| &mut entry.filter)
        {
            if let (Some(expression), None) = (expression, &compiled) {
                *compiled = Some(compiler.compile(expression)?);
            }
        }
        Ok(())
    }

    /// Returns a hash of what programs are told: the same number for the same programs of whatever
    /// version.
    fn told(&self, constants: &Constants) -> u64 {
        let expressions = self.list.entries.iter().flat_map(|entry| &entry.filter.expression);
        let text = expressions.flat_map(|text| text.bytes().chain([0]));
        let bytes = constants.params.told().into_iter().chain(constants.list.clone()).chain(text);
        fnv(bytes)
    }

    fn constants(&self) -> Constants {
        let mut filters = Filters::new();
        let mut numbers = Vec::new();
        let mut longest = None;
        for Filter { expression, compiled } in self.list.entries.iter().map(|entry| &entry.filter) {
            let before = filters.longest();
            numbers.push(compiled.clone().map(|program| filters.add(program)));
            if filters.longest() > before {
                longest.clone_from(expression);
            }
        }
        let params = Params { filtered: !filters.is_empty(), ..self.params };
        Constants { params, list: self.list.bytes(&numbers), filters, longest }
    }
}

impl Port {
    /// Leaves to a helper what takes privileges; it knows this port by the number.
    pub(super) fn is_helped(&mut self, helper: &Arc<Helper>, number: u32) {
        // Who else is there takes privileges to ask. Programs of this port that stand already stay
        // the helper's.
        let own =
            self.ready.as_ref().map(|ready| self.links.program_ids(&|which| ready.program(which)));
        self.others = others_there(&self.device.interface, self.hook, &own.unwrap_or_default());
        self.leave();
        self.seat = Some(Seat { helper: helper.clone(), interface: number });
        if let Some(ready) = &mut self.ready {
            ready.loaded = None;
        }
    }

    /// Attaches the port's programs; packets flow from here on.
    pub(super) fn attach(&mut self) -> Result<(), Error> {
        let ifindex = self.device.interface.index;
        let attached = match &self.seat {
            Some(seat) => seat
                .ask(&Request::Attach { ifindex })
                .map(|answer| self.attached = Attached::of(answer.value))
                .map_err(Fault::into_error),
            None => self.attach_here(),
        };
        attached.map_err(|e| self.explain(e))?;
        self.is_attached = true;
        Ok(())
    }

    fn attach_here(&mut self) -> io::Result<()> {
        let interface = &self.device.interface;
        let ready = self.ready.as_ref();
        let ready = ready.ok_or_else(|| io::Error::other("no program is loaded"))?;
        let (place, programs, program) =
            (self.set.place, ready.programs, |which| ready.program(which));
        let pins = self.pins.as_ref();
        self.links = Links::attach(interface, place, self.promiscuous, programs, &program, pins)?;
        self.attached = Attached { by_clsact: self.links.by_clsact(), ..Attached::default() };
        Ok(())
    }

    /// Detaches the port's programs. Some may still be running.
    pub(super) fn detach(&mut self) {
        self.is_attached = false;
        match &self.seat {
            // It fails where the helper has ended, and the links with it.
            Some(seat) => drop(seat.ask(&Request::Detach)),
            None => self.detach_here(),
        }
    }

    pub(super) fn detach_here(&mut self) {
        std::mem::take(&mut self.links).detach();
    }

    /// Puts programs in the place of those that are attached. Returns the old ones.
    ///
    /// # Errors
    /// Where the kernel refuses it. Then the old programs stay.
    pub(super) fn exchange(&mut self, ready: Ready) -> Result<Option<Ready>, Error> {
        let exchanged = match &self.seat {
            Some(seat) => seat.ask(&Request::Exchange).map(drop).map_err(Fault::into_error),
            None if self.is_attached => self.exchange_here(&ready),
            None => Ok(()),
        };
        exchanged.map_err(|e| self.explain(e))?;
        Ok(self.ready.replace(ready))
    }

    fn exchange_here(&mut self, ready: &Ready) -> io::Result<()> {
        let exchanged = self.links.exchange(ready.programs, &|which| ready.program(which));
        if let (Err(_), Some(before)) = (&exchanged, &self.ready) {
            // One of several links may have been changed. Where this fails, the interface is gone.
            let _ = self.links.exchange(before.programs, &|which| before.program(which));
        }
        exchanged
    }

    /// Puts programs back that [`Port::exchange`] has replaced. The kernel has just taken others
    /// there; where this fails, the interface is gone.
    pub(super) fn exchange_back(&mut self, before: Ready) {
        if self.seat.is_some() {
            self.put_back();
            self.ready = Some(before);
        } else {
            let _ = self.exchange(before);
        }
    }

    /// Has a helper forget programs that others have replaced.
    pub(super) fn keep(&self) {
        if let Some(seat) = &self.seat {
            let _ = seat.ask(&Request::Keep);
        }
    }

    /// Has a helper forget programs that were prepared, or put back those that they have replaced.
    pub(super) fn put_back(&self) {
        if let Some(seat) = &self.seat {
            let _ = seat.ask(&Request::PutBack);
        }
    }

    /// Looks whether the interface is still there, and whether the programs stand where they were
    /// put; attaches again those that do not. If the interface was deleted, goes on at an interface
    /// of the same name once there is one. The interfaces of other ports of the hook, by index, are
    /// `taken`: one of them that gets the name was renamed. `seen` tells how many packets the
    /// programs have seen.
    pub(super) fn watch(
        &mut self,
        hub: &Hub,
        geometry: Geometry,
        was_abandoned: bool,
        taken: &[u32],
        seen: &dyn Fn() -> io::Result<u64>,
    ) -> Result<Option<Event>, Error> {
        let counters = |port: &Self| seen().map_err(|e| port.explain(e));
        // Programs that are being loaded for another filter may take the helper seconds.
        if self.seat.as_ref().is_some_and(|seat| seat.helper.is_busy()) && !was_abandoned {
            return Ok(None);
        }
        if self.is_attached {
            let event = self.device.look()?;
            if event == Some(Event::Gone) {
                self.detach();
                // A program that is bound to a device must not outlive it.
                self.ready = None;
                let more = self.presence.is_gone(self.counted(counters(self)?));
                self.device.add_received(more);
                return Ok(event);
            }
            return self.stand(hub, was_abandoned, &counters).map(|()| event);
        }
        if !self.device.is_back(Meanwhile::Counts, taken)? {
            return Ok(None);
        }
        self.load(hub, geometry)?;
        self.attach()?;
        self.is_shown_packets(counters(self)?, Cause::Away);
        Ok(Some(Event::Back))
    }

    /// Looks whether the programs stand, and attaches them again where they do not.
    fn stand(
        &mut self,
        hub: &Hub,
        was_abandoned: bool,
        seen: &dyn Fn(&Self) -> Result<u64, Error>,
    ) -> Result<(), Error> {
        if self.seat.is_none() {
            self.leave_veth(hub).map_err(|e| self.explain(e))?;
        }
        let interface = &self.device.interface;
        let restored = match (&self.seat, &self.ready) {
            (Some(seat), _) => {
                let restored = seat.ask(&Request::Restore);
                restored.map(|answer| answer.value != 0).map_err(Fault::into_error)
            }
            (None, Some(ready)) => self.links.restore(interface, &|which| ready.program(which)),
            (None, None) => Ok(false),
        };
        match restored {
            Ok(false) if self.presence.has_gone() => {
                self.is_shown_packets(seen(self)?, Cause::Detached);
            }
            Ok(false) if was_abandoned => {
                self.is_shown_packets(seen(self)?, Cause::Abandoned);
            }
            Ok(false) if self.takes_new_queues(hub) => {
                self.is_shown_packets(seen(self)?, Cause::Queue);
            }
            Ok(false) => {
                let now = self.counted(seen(self)?);
                self.presence.stands(now);
            }
            Ok(true) => self.is_shown_packets(seen(self)?, Cause::Detached),
            Err(e) => {
                let why = self.explain(e);
                self.device.refresh();
                let now = self.counted(seen(self)?);
                self.presence.is_away(now);
                let name = self.device.interface.name.clone();
                return Err(Error::Detached { name, why: Box::new(why) });
            }
        }
        Ok(())
    }

    /// Sees that packets of queues that were switched on since the last look are seen, as
    /// `Capture::watch` does. Returns whether there are such queues.
    fn takes_new_queues(&mut self, hub: &Hub) -> bool {
        let is_by_queue = self.hook.xdp_mode() == Some(XdpMode::Driver);
        if !is_by_queue || !self.device.has_more_queues() {
            return false;
        }
        let done = match &self.seat {
            Some(seat) => seat.ask(&Request::TakeQueues).is_ok(),
            None => self.prepare(hub).and_then(|ready| self.exchange(ready)).is_ok(),
        };
        if done {
            self.device.note_queues();
        }
        done
    }

    /// Counts what was missed up to now, that the programs are attached again.
    fn is_shown_packets(&mut self, seen: u64, cause: Cause) {
        self.device.refresh();
        let now = self.counted(seen);
        self.presence.is_back(now, cause);
    }
}
