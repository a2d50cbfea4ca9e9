//! The programs of `bpf/record.bpf.c` in the kernel, and the rings they write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::{Object, ObjectBuilder, OpenObject};
use tapdeck_packet::ring::layout;

use super::control::{CONTROL_BYTES, Control};
use super::object::{Aligned, FLUSH, LoadedObject, POLL, choose, load_filtered, reuse_maps};
use super::params::Params;
use super::program::Program;
use crate::filter::splice::Filters;
use crate::flows;
use crate::overload::Overload;
use crate::persist::{Place, pin_anew};
use crate::ring::{CUT, Geometry, RingMemory, SHED, WakesMap};
use crate::rules::Images;
use crate::sys::libbpf::{io_error, map, program, quiet_libbpf};
use crate::sys::mapping::Mapping;
use crate::sys::params::TdFlush;
use crate::sys::pins;
use crate::sys::program::run_on;

static RECORD: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record.bpf.o")));
static RECORD_LESS: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record_less.bpf.o")));
static RECORD_RULES: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/record_rules.bpf.o")));

/// Size of a value of the map `refused`.
pub(crate) const REFUSED_STRIDE: usize = 64;

/// The maps of a lasting recording's interface, pinned.
pub(crate) struct PinnedMaps {
    rings: OwnedFd,
    data: OwnedFd,
    release: OwnedFd,
    control: OwnedFd,
    shed: OwnedFd,
    cuts: OwnedFd,
    noted: OwnedFd,
    wakes: OwnedFd,
}

/// The maps that hold the rings and what is said of them: the names under which they are pinned,
/// and their names in the object.
const PINNED: [(&str, &str); 7] = [
    ("rings", "rings"),
    ("data", "data"),
    ("release", "release"),
    ("control", ".data.control"),
    ("shed", "shed"),
    ("cuts", "cuts"),
    ("wakes", "wakes"),
];
const NOTED: &str = "noted";

impl PinnedMaps {
    /// Opens what is pinned at a place.
    pub(crate) fn open(place: &Place) -> io::Result<Self> {
        let open = |what: &str| pins::open(&place.path(what));
        Ok(Self {
            rings: open("rings")?,
            data: open("data")?,
            release: open("release")?,
            control: open("control")?,
            shed: open("shed")?,
            cuts: open("cuts")?,
            noted: open(NOTED)?,
            wakes: open("wakes")?,
        })
    }

    /// Pins the maps of an object that was loaded.
    fn pin(object: &Object, geometry: Geometry, place: &Place) -> io::Result<Self> {
        for (name, in_object) in PINNED {
            pin_anew(map(object, in_object)?.as_fd(), &place.path(name))?;
        }
        pin_anew(pins::memory(geometry.noted_bytes())?.as_fd(), &place.path(NOTED))?;
        Self::open(place)
    }

    /// Has the programs of an object that is loaded next work on these maps.
    fn reuse(&self, open: &mut OpenObject) -> io::Result<()> {
        let (shed, cuts, wakes) = (&self.shed, &self.cuts, &self.wakes);
        let fds = [&self.rings, &self.data, &self.release, &self.control, shed, cuts, wakes];
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            // libbpf puts the object's name before that of a section.
            let is_it = |its: &str| {
                if its.starts_with('.') { name.ends_with(its) } else { name == its }
            };
            let Some(at) = PINNED.iter().position(|(_, its)| is_it(its)) else { continue };
            map.reuse_fd(fds[at].as_fd()).map_err(|e| io_error(&e))?;
        }
        Ok(())
    }

    /// Maps the rings.
    pub(crate) fn rings(&self, geometry: Geometry) -> io::Result<Vec<RingMemory>> {
        let Self { rings, data, release, shed, cuts, noted, wakes, .. } = self;
        let maps = [rings, data, release, shed, cuts, wakes].map(AsFd::as_fd);
        mapped(geometry, maps, Some(noted))
    }
}

/// What a process needs that reads rings which programs of its helper fill.
pub(crate) struct HandedOver {
    fds: [OwnedFd; 8],
    /// Where the reader notes what it has taken, of rings that outlive it.
    noted: Option<OwnedFd>,
}

impl HandedOver {
    /// How many descriptors there are at most.
    pub(crate) const COUNT: usize = 9;

    /// Returns the descriptors, for the other process.
    pub(crate) fn into_fds(self) -> Vec<OwnedFd> {
        self.fds.into_iter().chain(self.noted).collect()
    }

    /// Takes the descriptors that came; `None` where they are not as many as they are for rings
    /// that last, or do not.
    pub(crate) fn of(mut fds: Vec<OwnedFd>, lasts: bool) -> Option<Self> {
        let noted = if lasts { Some(fds.pop()?) } else { None };
        Some(Self { fds: fds.try_into().ok()?, noted })
    }
}

/// Programs in whose place others were loaded.
pub struct Replaced(LoadedObject);

/// Where the programs are that fill the rings.
enum Programs {
    Here(LoadedObject),
    /// The helper has loaded them. This one closes part-filled blocks.
    Helped {
        flush: OwnedFd,
    },
}

impl Programs {
    fn here(&self) -> io::Result<&LoadedObject> {
        match self {
            Self::Here(object) => Ok(object),
            Self::Helped { .. } => Err(io::Error::other("the programs are another process's")),
        }
    }
}

/// Loaded programs and their rings.
pub struct Loaded {
    programs: Programs,
    rings: Vec<Arc<RingMemory>>,
    control: Control,
    /// What keeps the first object's program at the end of polls. It and the hook programs of all
    /// objects work on one map.
    _polls: Option<OwnedFd>,
}

fn open(programs: &[Program], others: &[&str], params: &Params) -> io::Result<OpenObject> {
    let bytes = match params {
        Params { judged: true, .. } => &RECORD_RULES.0[..],
        Params { overload: Overload::Shed { .. }, .. } | Params { cutoff: 1.., .. } => {
            &RECORD_LESS.0[..]
        }
        _ => &RECORD.0[..],
    };
    let mut object = ObjectBuilder::default().open_memory(bytes).map_err(|e| io_error(&e))?;
    let g = params.geometry;
    choose(&mut object, programs, params.ifindex, others);
    for mut map in object.maps_mut() {
        let (value, entries) = match map.name().to_str() {
            Some("rings") => (g.ring_stride(), g.nrings),
            Some("data") => (g.data_stride(), g.nrings),
            Some("release") => (layout::RELEASE, g.nrings),
            Some("shed") => (SHED, g.nrings),
            Some("cuts") => (CUT, g.nrings),
            Some(name) if name.ends_with(".rodata.params") => {
                map.set_initial_value(&params.bytes()).map_err(|e| io_error(&e))?;
                continue;
            }
            Some("sockets" | "refused") => {
                map.set_autocreate(programs.contains(&Program::Redirect))
                    .map_err(|e| io_error(&e))?;
                continue;
            }
            _ => continue,
        };
        map.set_value_size(value as u32).map_err(|e| io_error(&e))?;
        map.set_max_entries(entries).map_err(|e| io_error(&e))?;
    }
    Ok(object)
}

/// Pins the table of flows that programs cut off, where they have one, and none is pinned.
fn pin_flows(loaded: &LoadedObject, place: &Place) -> io::Result<()> {
    let path = place.path(flows::MAP);
    match flows::place_of(&loaded.object) {
        Ok(made) if !path.exists() => pins::pin(made.as_fd(), &path),
        _ => Ok(()),
    }
}

/// Maps rings, with what their readers note where that outlives them.
fn mapped(
    g: Geometry,
    [rings, data, release, shed, cuts, wakes]: [BorrowedFd<'_>; 6],
    noted: Option<&OwnedFd>,
) -> io::Result<Vec<RingMemory>> {
    let n = g.nrings as usize;
    let mapped = |fd: BorrowedFd<'_>, len: usize, writable: bool| -> io::Result<Arc<Mapping>> {
        Ok(Arc::new(Mapping::of_fd(fd, len, writable)?))
    };
    let rings = mapped(rings, n * g.ring_stride(), false)?;
    let data = mapped(data, n * g.data_stride(), false)?;
    let release = mapped(release, n * layout::RELEASE, true)?;
    let shed = mapped(shed, n * SHED, false)?;
    let cuts = mapped(cuts, n * CUT, false)?;
    let waker = Arc::new(WakesMap::of(wakes)?);
    let mut rings = RingMemory::set(g, &rings, &data, &release);
    if let Some(noted) = noted {
        rings = RingMemory::noting_in(rings, &mapped(noted.as_fd(), g.noted_bytes(), true)?);
    }
    let rings = RingMemory::counting_in(rings, &shed, &cuts);
    Ok(RingMemory::woken_by(rings, &waker))
}

/// Maps the control of programs.
fn control_of(map: BorrowedFd<'_>) -> io::Result<Control> {
    Ok(Control::new(Arc::new(Mapping::of_fd(map, CONTROL_BYTES, true)?)))
}

/// Maps new rings and their control, of the maps in the order of [`PINNED`].
fn mapped_anew(
    geometry: Geometry,
    [rings, data, release, control, shed, cuts, wakes]: [BorrowedFd<'_>; 7],
    noted: Option<&OwnedFd>,
) -> io::Result<(Vec<Arc<RingMemory>>, Control)> {
    let rings = mapped(geometry, [rings, data, release, shed, cuts, wakes], noted)?;
    let control = control_of(control)?;
    control.set_snaplen(geometry.snaplen);
    Ok((rings.into_iter().map(Arc::new).collect(), control))
}

impl Loaded {
    /// Loads programs with rings of their own.
    ///
    /// # Errors
    /// As bpf(2): `EPERM` without the privilege, `ENOMEM` where the rings do not fit, `EINVAL`
    /// where the kernel lacks what a program needs.
    pub fn new(
        programs: &[Program],
        params: &Params,
        filters: &Filters,
    ) -> io::Result<(Self, Control)> {
        quiet_libbpf();
        let others = if params.clock_by_poll { &[FLUSH, POLL][..] } else { &[FLUSH] };
        let open = open(programs, others, params)?;
        let mut loaded = load_filtered(open, programs, params.ifindex, filters)?;
        if params.cutoff > 0 {
            flows::make_of(&loaded.object)?;
        }
        let polls = params.clock_by_poll.then(|| loaded.hear_of_polls()).transpose()?;
        let maps = PINNED.map(|(_, name)| map(&loaded.object, name));
        let [rings, data, release, control, shed, cuts, wakes] = maps;
        let (rings, data, release) = (rings?, data?, release?);
        let (control, shed, cuts, wakes) = (control?, shed?, cuts?, wakes?);
        let maps = [&rings, &data, &release, &control, &shed, &cuts, &wakes].map(AsFd::as_fd);
        let (rings, control) = mapped_anew(params.geometry, maps, None)?;
        control.draw_seed();
        let programs = Programs::Here(loaded);
        Ok((Self { programs, rings, control: control.clone(), _polls: polls }, control))
    }

    /// Takes what a helper has handed over, whose programs fill rings of this form.
    ///
    /// # Errors
    /// Where a map cannot be mapped.
    pub(crate) fn handed_over(
        handed: HandedOver,
        geometry: Geometry,
    ) -> io::Result<(Self, Control)> {
        let HandedOver { fds, noted } = handed;
        let [rings, data, release, control, shed, cuts, wakes, flush] = fds;
        let maps = [&rings, &data, &release, &control, &shed, &cuts, &wakes].map(AsFd::as_fd);
        let (rings, control) = mapped_anew(geometry, maps, noted.as_ref())?;
        let programs = Programs::Helped { flush };
        Ok((Self { programs, rings, control: control.clone(), _polls: None }, control))
    }

    /// Returns what another process needs that is to read the rings, which may be pinned at a
    /// place.
    pub(crate) fn hand_over(&self, place: Option<&Place>) -> io::Result<HandedOver> {
        let object = &self.programs.here()?.object;
        let fd = |name| -> io::Result<OwnedFd> { map(object, name)?.as_fd().try_clone_to_owned() };
        let maps = PINNED.map(|(_, name)| fd(name));
        let [rings, data, release, control, shed, cuts, wakes] = maps;
        let flush = program(object, FLUSH)?.as_fd().try_clone_to_owned();
        let fds = [rings?, data?, release?, control?, shed?, cuts?, wakes?, flush?];
        let noted = place.map(|place| pins::open(&place.path(NOTED))).transpose()?;
        Ok(HandedOver { fds, noted })
    }

    /// Loads programs over the maps of a lasting recording. Those of its owner before are taken
    /// over, if there was one; otherwise the maps are made here, and pinned.
    ///
    /// # Errors
    /// As [`Loaded::new`].
    pub(crate) fn lasting(
        programs: &[Program],
        params: &Params,
        filters: &Filters,
        place: &Place,
    ) -> io::Result<(Self, Control)> {
        quiet_libbpf();
        let mut open = open(programs, &[FLUSH], params)?;
        let found = place.found.as_ref().map(|_| PinnedMaps::open(place)).transpose()?;
        if let Some(found) = &found {
            found.reuse(&mut open)?;
        }
        // An owner before had one if it cut flows off.
        let table = pins::open(&place.path(flows::MAP)).ok();
        for mut map in open.maps_mut().filter(|map| map.name() == flows::MAP) {
            if let Some(table) = &table {
                map.reuse_fd(table.as_fd()).map_err(|e| io_error(&e))?;
            }
        }
        let loaded = load_filtered(open, programs, params.ifindex, filters)?;
        if params.cutoff > 0 {
            flows::make_of(&loaded.object)?;
        }
        pin_flows(&loaded, place)?;
        let pinned = match found {
            Some(found) => found,
            None => PinnedMaps::pin(&loaded.object, params.geometry, place)?,
        };
        let rings = pinned.rings(params.geometry)?.into_iter().map(Arc::new).collect();
        let control = control_of(pinned.control.as_fd())?;
        if place.found.is_none() {
            control.set_snaplen(params.geometry.snaplen);
            control.draw_seed();
        }
        let programs = Programs::Here(loaded);
        Ok((Self { programs, rings, control: control.clone(), _polls: None }, control))
    }

    /// Loads the programs anew over the same rings, for a device that was made anew or with another
    /// filter or cutoff. Returns those before, which can be put back.
    pub fn reload(
        &mut self,
        programs: &[Program],
        params: &Params,
        filters: &Filters,
    ) -> io::Result<Replaced> {
        let mut open = open(programs, &[FLUSH], params)?;
        reuse_maps(&mut open, &self.programs.here()?.object)?;
        let loaded = load_filtered(open, programs, params.ifindex, filters)?;
        if params.cutoff > 0 {
            flows::make_of(&loaded.object)?;
        }
        match std::mem::replace(&mut self.programs, Programs::Here(loaded)) {
            Programs::Here(before) => Ok(Replaced(before)),
            Programs::Helped { .. } => unreachable!("their maps were found here"),
        }
    }

    /// Has the next owner go on with the table of flows that programs cut off which were loaded
    /// anew.
    pub(crate) fn pin_flows(&self, place: &Place) -> io::Result<()> {
        pin_flows(self.programs.here()?, place)
    }

    /// Takes the programs again that [`Loaded::reload`] has replaced.
    pub fn put_back(&mut self, before: Replaced) {
        self.programs = Programs::Here(before.0);
    }

    pub fn rings(&self) -> &[Arc<RingMemory>] {
        &self.rings
    }

    /// Lets go of the rings' memory, which the programs go on writing.
    pub fn forget_rings(&mut self) {
        self.rings.clear();
    }

    /// Returns a loaded program's descriptor.
    pub fn program(&self, program: Program) -> io::Result<OwnedFd> {
        self.programs.here()?.program(program)
    }

    /// Keeps at most so many bytes of a packet from now on, and never more than the rings were made
    /// for.
    pub fn set_snaplen(&self, bytes: u32) {
        self.control.set_snaplen(bytes);
    }

    /// Returns whether the programs have stopped recording, and has them record again; see
    /// [`Control::take_abandoned`].
    pub(crate) fn take_abandoned(&self) -> bool {
        self.control.take_abandoned()
    }

    /// Returns the descriptor of the map of AF_XDP sockets.
    pub fn sockets(&self) -> io::Result<OwnedFd> {
        self.map("sockets")
    }

    /// Returns the map of the counters of packets that the filter has kept from each AF_XDP socket:
    /// a word every [`REFUSED_STRIDE`] bytes, for each ring that there can be.
    pub fn refused(&self) -> io::Result<OwnedFd> {
        self.map("refused")
    }

    fn map(&self, name: &str) -> io::Result<OwnedFd> {
        map(&self.programs.here()?.object, name)?.as_fd().try_clone_to_owned()
    }

    /// Returns the places for rule sets, which exist where the parameters say that there may be
    /// rules.
    pub fn images(&self) -> io::Result<Images> {
        Images::of(&self.programs.here()?.object)
    }

    /// Closes `block` of a ring if it is still open and holds something.
    pub fn flush(&self, ring: u32, block: u32) -> io::Result<()> {
        let args = TdFlush { ring, block };
        match &self.programs {
            Programs::Here(object) => object.flush(args.bytes()),
            Programs::Helped { flush } => run_on(flush.as_fd(), args.bytes()),
        }
    }
}
