//! One interface at one hook (a port), and the groups that get its packets there.
//!
//! Each port has programs of its own, with the list of its groups and their filters as constants.
//! All of them work on the maps of one [`Hub`]. So a group that changes its filter gets new
//! programs, which are put in the place of the old ones; who is a member of a group is in the maps
//! and not known here.

use std::io;
use std::os::fd::AsFd;

use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use super::maps::Part;
use crate::attach::Links;
use crate::bpf::driver::{Questions, load_best};
use crate::bpf::object::{Aligned, FLUSH, LoadedObject, choose, load_filtered, reuse_maps};
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::device::Device;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{self, cbpf};
use crate::hook::{ProgramSet, RingUnit};
use crate::ring::Geometry;
use crate::ring_count::wanted_rings;
use crate::sys::libbpf::{io_error, quiet_libbpf};
use crate::sys::params::{MAX_GROUPS, TdEntry, TdFlushMember, TdPort};
use crate::warnings::{lost_tags, stays_behind};
use crate::{Deliver, Error, Event, Hook};
use tapdeck_packet::link::LinkType;

static SERVE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/serve.bpf.o")));

/// A group at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub group: u16,
    /// The number of the interface in the group's list.
    pub interface: u16,
    pub filter: Filter,
}

/// A group's filter at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    expression: Option<String>,
    /// The expression compiled for the interface as it is.
    compiled: Option<cbpf::Program>,
}

impl Filter {
    pub(super) fn of(expression: Option<&str>) -> Self {
        Self { expression: expression.map(str::to_owned), compiled: None }
    }
}

/// `struct td_port`.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub port: u32,
    /// Where in the counters those of the port's groups begin.
    pub counts: u32,
    pub entries: Vec<Entry>,
}

impl List {
    /// The structure, with the filters' numbers in the program.
    fn bytes(&self, filters: &[Option<u32>]) -> Vec<u8> {
        let mut port = TdPort {
            port: self.port,
            counts: self.counts,
            entries: self.entries.len() as u32,
            reserved: 0,
            entry: [TdEntry::default(); MAX_GROUPS],
        };
        for (i, (to, entry)) in port.entry.iter_mut().zip(&self.entries).enumerate() {
            let filter = filters.get(i).copied().flatten().map_or(0, |number| number as u16 + 1);
            *to = TdEntry { group: entry.group, interface: entry.interface, filter, reserved: 0 };
        }
        port.bytes().to_vec()
    }
}

/// How large the maps are that all ports share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub groups: u32,
    pub counts: u32,
}

/// What the programs are told before they are verified.
struct Constants {
    params: Params,
    list: Vec<u8>,
    filters: Filters,
    /// The expression of the longest filter.
    longest: Option<String>,
}

/// Opens the object for these hook programs, and for `others` of its programs by name.
fn open(programs: &[Program], others: &[&str], constants: &Constants) -> io::Result<OpenObject> {
    quiet_libbpf();
    let mut object = ObjectBuilder::default().open_memory(&SERVE.0).map_err(|e| io_error(&e))?;
    choose(&mut object, programs, constants.params.ifindex, others);
    for mut map in object.maps_mut() {
        let value = match map.name().to_str() {
            Some(name) if name.ends_with(".rodata.params") => constants.params.bytes(),
            Some(name) if name.ends_with(".rodata.port") => constants.list.clone(),
            _ => continue,
        };
        map.set_initial_value(&value).map_err(|e| io_error(&e))?;
    }
    Ok(object)
}

/// What all ports have in common: the maps, and the program that closes blocks.
pub(super) struct Hub {
    loaded: LoadedObject,
}

impl Hub {
    pub(super) fn new(geometry: Geometry, sizes: Sizes) -> io::Result<Self> {
        let constants = Constants {
            params: Params { geometry, ..Params::unread(0) },
            list: List::default().bytes(&[]),
            filters: Filters::new(),
            longest: None,
        };
        let mut open = open(&[], &[FLUSH], &constants)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("groups" | "slots") => sizes.groups,
                Some("counts") => sizes.counts,
                _ => continue,
            };
            map.set_max_entries(entries).map_err(|e| io_error(&e))?;
        }
        // The kernel takes from these what the maps of members are like.
        let mut patterns = Vec::new();
        for part in Part::ALL {
            patterns.push((part, part.create(&geometry)?));
        }
        for (part, pattern) in &patterns {
            for mut map in open.maps_mut().filter(|map| map.name() == part.name()) {
                map.set_inner_map_fd(pattern.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        Ok(Self { loaded: load_filtered(open, &[], 0, &constants.filters)? })
    }

    pub(super) fn object(&self) -> &Object {
        &self.loaded.object
    }

    /// Loads programs over the maps.
    fn load(&self, programs: &[Program], constants: &Constants) -> io::Result<LoadedObject> {
        let mut open = open(programs, &[], constants)?;
        reuse_maps(&mut open, &self.loaded.object)?;
        load_filtered(open, programs, constants.params.ifindex, &constants.filters)
    }

    /// Closes `block` of a member's ring if it is still open and holds something.
    pub(super) fn flush(&self, member: u32, ring: u32, block: u32) -> io::Result<()> {
        self.loaded.flush(TdFlushMember { member, ring, block }.bytes())
    }
}

/// A port.
pub(super) struct Port {
    pub device: Device,
    pub hook: Hook,
    set: ProgramSet,
    pub deliver: Deliver,
    pub promiscuous: bool,
    pub list: List,
    params: Params,
    ready: Option<Ready>,
    links: Links,
    is_attached: bool,
}

/// Programs of a port that are loaded.
pub(super) struct Ready {
    loaded: LoadedObject,
    /// The hook's programs that are loaded.
    programs: &'static [Program],
}

impl Port {
    /// A port without programs.
    pub(super) fn new(device: Device, hook: Hook, set: ProgramSet, deliver: Deliver) -> Self {
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
            list: List::default(),
            params,
            ready: None,
            links: Links::default(),
            is_attached: false,
        }
    }

    /// Returns how many rings give each queue or CPU of the port one of its own.
    pub(super) fn wanted_rings(&self) -> u32 {
        wanted_rings(&self.device.interface, self.hook)
    }

    pub(super) fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Returns what the user should know of the port that is no error.
    pub(super) fn warnings(&self) -> Vec<String> {
        let interface = &self.device.interface;
        let programs = self.ready.as_ref().map_or(&[][..], |ready| ready.programs);
        let tags = lost_tags(interface, self.hook, programs, self.params.hardware_vlan);
        tags.into_iter().chain(stays_behind(interface, &self.links)).collect()
    }

    fn explain(&self, e: io::Error) -> Error {
        explain(&self.device.interface, self.hook, e)
    }

    /// Says what an error of the kernel means where programs with all these filters were wanted.
    fn refused(&self, constants: &Constants, e: io::Error) -> Error {
        match (e.raw_os_error(), &constants.longest) {
            (Some(libc::E2BIG), Some(expression)) => Error::Filter {
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

    /// Loads the port's programs over the hub's maps.
    pub(super) fn load(&mut self, hub: &Hub, geometry: Geometry) -> Result<(), Error> {
        let interface = &self.device.interface;
        let questions = Questions::to(interface, &self.set);
        let snaplen = geometry.snaplen.min(self.hook.facts().most_snaplen);
        self.params = Params {
            geometry: Geometry { snaplen, ..geometry },
            ifindex: interface.index,
            hardware_time: questions.time,
            hardware_vlan: questions.vlan_tag,
            ..self.params
        };
        // What the filters were compiled to may not suit the interface that is there now.
        for entry in &mut self.list.entries {
            entry.filter.compiled = None;
        }
        self.ready = Some(self.prepare(hub)?);
        Ok(())
    }

    /// Sets a group's filter for the programs that are loaded next. Returns the filter before.
    pub(super) fn put_filter(&mut self, group: usize, filter: Filter) -> Filter {
        let mut entries = self.list.entries.iter_mut();
        match entries.find(|entry| usize::from(entry.group) == group) {
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
                filter::check_absent(&self.device.interface, expression)?;
            }
        }
        Ok(None)
    }

    /// Loads programs for what the list of groups says now.
    fn prepare(&mut self, hub: &Hub) -> Result<Ready, Error> {
        self.compile()?;
        let constants = self.constants();
        let load = |programs: &[Program]| hub.load(programs, &constants);
        let (loaded, programs) = load_best(&self.set, &constants.params, load)
            .map_err(|e| self.refused(&constants, e))?;
        Ok(Ready { loaded, programs })
    }

    /// Compiles the filters that are new.
    fn compile(&mut self) -> Result<(), Error> {
        let mut compiler = filter::Compiler::new(&self.device.interface, self.hook);
        for Filter { expression, compiled } in
            self.list.entries.iter_mut().map(|entry| &mut entry.filter)
        {
            if let (Some(expression), None) = (expression, &compiled) {
                *compiled = Some(compiler.compile(expression)?);
            }
        }
        Ok(())
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

    /// Attaches the port's programs; packets flow from here on.
    pub(super) fn attach(&mut self) -> Result<(), Error> {
        let interface = &self.device.interface;
        let links = match &self.ready {
            Some(Ready { loaded, programs }) => {
                let program = |which| loaded.program(which);
                Links::attach(interface, self.set.place, self.promiscuous, programs, &program)
            }
            None => Err(io::Error::other("no program is loaded")),
        };
        self.links = links.map_err(|e| self.explain(e))?;
        self.is_attached = true;
        Ok(())
    }

    /// Detaches the port's programs. Some may still be running.
    pub(super) fn detach(&mut self) {
        self.is_attached = false;
        std::mem::take(&mut self.links).detach();
    }

    /// Puts programs in the place of those that are attached. Returns the old ones.
    ///
    /// # Errors
    /// Where the kernel refuses it. Then the old programs stay.
    pub(super) fn exchange(&mut self, ready: Ready) -> Result<Option<Ready>, Error> {
        if self.is_attached {
            let program = |which| ready.loaded.program(which);
            if let Err(e) = self.links.exchange(ready.programs, &program) {
                // One of several links may have been changed. Where this fails, the interface is
                // gone.
                if let Some(before) = &self.ready {
                    let program = |which| before.loaded.program(which);
                    let _ = self.links.exchange(before.programs, &program);
                }
                return Err(self.explain(e));
            }
        }
        Ok(self.ready.replace(ready))
    }

    /// Looks whether the interface is still there. If it was deleted, goes on at an interface of
    /// the same name once there is one.
    pub(super) fn watch(&mut self, hub: &Hub, geometry: Geometry) -> Result<Option<Event>, Error> {
        if self.is_attached {
            let event = self.device.look()?;
            if event == Some(Event::Gone) {
                self.detach();
                // A program that is bound to a device must not outlive it.
                self.ready = None;
            }
            return Ok(event);
        }
        if !self.device.is_back()? {
            return Ok(None);
        }
        self.load(hub, geometry)?;
        self.attach()?;
        Ok(Some(Event::Back))
    }
}
