//! How is an interface opened that came while others are recorded?
//!
//! By then the recorder has given up its rights. Its helper opens the interface as the first ones
//! were opened, programs, sockets and all, and hands over the maps of the rings and the program
//! that closes part-filled blocks; from there on the two share the capture as they share the
//! others. Rules, and what else was changed since the recording began, are put in force by the
//! requests that change them, before the hook is attached.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::load::{Opening, geometry_of, made, take_programs};
use super::{Capture, Lasting, Taking, prepare};
use crate::bpf::loaded::HandedOver;
use crate::device::Device;
use crate::explain::explain;
use crate::filter::cbpf::ClassicProgram;
use crate::filter::filters_for;
use crate::filter::splice::Filters;
use crate::helper::wire::{Answer, Fault, Made, OpenAt, Opened, Request};
use crate::helper::{Helper, Seat};
use crate::hook::TakenBy;
use crate::interface::{Interface, NicCounters};
use crate::memory::check_memory;
use crate::persist::{Persist, Place};
use crate::socket::SocketHook;
use crate::unseen::Cause;
use crate::{Clock, Config, Error, Hook};

/// Where in a recording an interface is put that comes later.
pub struct LaterPlace<'a> {
    /// The place among the recorder's captures: behind all, or that of one that is gone.
    pub number: usize,
    /// The pcapng interface id of the first ring, and how many there are for it.
    pub first_interface: u32,
    pub most_rings: u32,
    pub clock: &'a Arc<Clock>,
    pub helper: &'a Arc<Helper>,
    /// The lasting recording that it is to be of.
    pub persist: Option<&'a Persist>,
}

impl Capture {
    /// Opens an interface that came later, by the helper, with the filter that another capture has
    /// now (`like`), and without rules. `config` says, as [`Later`](crate::Later) says it to the
    /// helper, how it is recorded at a hook. [`Capture::start_later`] must follow.
    ///
    /// # Errors
    /// Where the interface cannot be recorded so. [`Error::NoPlace`] where it has more rings than
    /// there are numbers at the place.
    pub fn open_later(
        name: &str,
        like: &Self,
        config: impl Fn(Hook) -> Config,
        place: &LaterPlace<'_>,
    ) -> Result<Self, Error> {
        place.clock.forget_gone();
        let device = Device::open(name)?;
        let interface = &device.interface;
        let filter = like.config.filter.clone();
        // What could only be asked while there were rights is asked for frames of this form, too.
        let filters = if interface.link == like.device.interface.link {
            like.filters().clone()
        } else {
            filters_for(interface, &Config { filter: filter.clone(), ..config(Hook::Tcx) })?
        };
        let number = place.number as u32;
        let seat = Seat { helper: place.helper.clone(), interface: number };
        let pinned = place.persist.map(|persist| {
            persist.free_place().ok_or_else(|| Error::NoPlace(interface.name.clone()))
        });
        let pinned = pinned.transpose()?;
        let at = OpenAt {
            first: place.first_interface,
            most: place.most_rings,
            pin: pinned.as_ref().map(|place| place.index as u32),
        };
        let (opened, fds) = ask(&seat, interface, at, filters.first())?;
        let opened_place = OpenedPlace { seat: seat.clone(), is_settled: false };
        let config = Config { filter, rules: None, ..config(opened.hook) };
        let (device, config, _) = prepare(device, &config)?;
        let interface = &device.interface;
        let geometry = geometry_of(&config, opened.rings)?;
        let opening = Opening {
            interface,
            config: &config,
            geometry,
            snaplen: config.snaplen,
            first_interface: place.first_interface,
            filters,
            clock: place.clock,
        };
        let (rings, taking) = match opened.hook.facts().taken_by {
            TakenBy::Programs(set) => {
                let handed = HandedOver::of(fds, pinned.is_some()).ok_or_else(nonsense)?;
                take_programs(opening, set, opened.made, handed, seat)?
            }
            TakenBy::Sockets(sockets) => {
                check_memory(name, geometry.memory_bytes())?;
                let to = (place.first_interface, place.clock);
                let hook = SocketHook::helped(seat, sockets, geometry, opening.filters, to);
                let hook = hook.map_err(|e| explain(interface, config.hook, e))?;
                (hook.rings().to_vec(), Taking::Socket(hook))
            }
        };
        let first = place.first_interface;
        let parts = (rings, taking);
        let mut capture = Self::of_parts(device, config, geometry, parts, first, place.clock);
        capture.opened = Some(opened_place);
        capture.lasting = pinned.map(|place| Lasting::at(place, &capture.taking, &capture.config));
        // The rings begin with the first epoch of all.
        capture.flush_all().map_err(|e| explain(&capture.device.interface, opened.hook, e))?;
        Ok(capture)
    }

    fn filters(&self) -> &Filters {
        match &self.taking {
            Taking::Kernel(hook) => &hook.filters,
            Taking::Socket(hook) => hook.filters(),
        }
    }

    /// Attaches the hook of an interface that came later, which has its place from now on. Its
    /// device counts from `before` on, which it had counted when it was last looked at, at
    /// `since_ns` of UTC; what came since then went unseen. Where it is of a lasting recording, the
    /// next owner goes on with it.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub fn start_later(
        &mut self,
        before: NicCounters,
        since_ns: u64,
        persist: Option<&Persist>,
    ) -> Result<(), Error> {
        self.device.begin_from(before)?;
        self.presence.begins_late(since_ns);
        self.set_late(true);
        // Packets come from the next step on, and whoever dies then must have said whose they are.
        persist.inspect(|persist| persist.name(self));
        let started = self.start_at_place();
        if let (Err(_), Some(persist), Some(index)) = (&started, persist, self.lasting_index()) {
            persist.leave(index, &persist.past());
        }
        started?;
        self.is_shown_packets(Cause::Late);
        self.set_late(false);
        Ok(())
    }

    fn start_at_place(&mut self) -> Result<(), Error> {
        self.attach()?;
        if let Some(opened) = self.opened.take() {
            let said = |fault: Fault| Error::Later(fault.into_error().to_string());
            opened.settle().map_err(said)?;
        }
        Ok(())
    }

    fn set_late(&mut self, is_late: bool) {
        if let Some(lasting) = &mut self.lasting {
            lasting.is_late = is_late;
        }
    }

    /// Opens an interface for the process that this one, a helper, was divided from: returns what
    /// that one is answered. More rings than the `most` are refused by `EXFULL`. What outlives its
    /// process is pinned at a place.
    pub(crate) fn open_for_recorder(
        interface: Interface,
        config: &Config,
        (first_interface, most): (u32, u32),
        program: Option<&ClassicProgram>,
        place: Option<&Place>,
    ) -> Result<(Self, Answer), Fault> {
        let filters = Filters::of(program);
        // The other process keeps the clock of the programs.
        let clock = Arc::new(Clock::default());
        let config = Config { filter: None, rules: None, ..config.clone() };
        let said = |e: Error| Fault::Place(io::Error::other(whole_text(&e)));
        let opened = Device::of(interface).and_then(|device| prepare(device, &config));
        let (device, config, geometry) = opened.map_err(said)?;
        if geometry.nrings > most {
            return Err(Fault::Place(io::Error::from_raw_os_error(libc::EXFULL)));
        }
        let wanted = (geometry, filters);
        let opened =
            Self::open_prepared(device, config, wanted, first_interface, &clock, place.cloned());
        let mut capture = opened.map_err(said)?;
        let (made, fds) = match &capture.taking {
            Taking::Kernel(hook) => {
                let handed = hook.loaded.hand_over(place).map_err(Fault::Place)?;
                (made(hook), handed.into_fds())
            }
            Taking::Socket(_) => (Made::default(), Vec::new()),
        };
        capture.forget_rings();
        let opened = Opened { hook: capture.config.hook, rings: capture.nrings, made };
        Ok((capture, Answer { value: opened.word(), fds }))
    }
}

/// The place of an interface that the helper has opened. It stays that of the one before if this is
/// dropped.
pub(super) struct OpenedPlace {
    seat: Seat,
    is_settled: bool,
}

impl OpenedPlace {
    /// Has the interface have the place from now on.
    fn settle(mut self) -> Result<(), Fault> {
        self.is_settled = true;
        self.seat.ask(&Request::Settle { stays: true }).map(drop)
    }
}

impl Drop for OpenedPlace {
    fn drop(&mut self) {
        if !self.is_settled {
            // Where the helper has ended, there are no places.
            let _ = self.seat.ask(&Request::Settle { stays: false });
        }
    }
}

/// Has the helper open an interface. Returns how it is recorded, and the descriptors that came.
fn ask(
    seat: &Seat,
    interface: &Interface,
    at: OpenAt,
    program: Option<&ClassicProgram>,
) -> Result<(Opened, Vec<OwnedFd>), Error> {
    let request = Request::Open { ifindex: interface.index, at, program: program.cloned() };
    let Answer { value, fds } = seat.ask(&request).map_err(|fault| match fault.into_error() {
        e if e.raw_os_error() == Some(libc::EXFULL) => Error::NoPlace(interface.name.clone()),
        e => Error::Later(e.to_string()),
    })?;
    Ok((Opened::of(value).ok_or_else(nonsense)?, fds))
}

fn nonsense() -> Error {
    Error::Later("the process that has the hooks answers nonsense".into())
}

/// Returns what an error says, with its causes.
fn whole_text(e: &Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}
