//! The programs of a capture's hook, and their place. What takes privileges is done here, or by the
//! helper where the recorder has one; both do it by the same lines ([`KernelHook::perform`]).

use std::io;

use crate::attach::Links;
use crate::bpf::driver::{Questions, load_best};
use crate::bpf::loaded::{Loaded, Replaced};
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::filter::splice::Filters;
use crate::helper::Seat;
use crate::helper::wire::{Answer, Attached, Fault, Request};
use crate::hook::ProgramSet;
use crate::interface::Interface;
use crate::persist::Place;
use crate::rules::Images;
use crate::sys::kernel;

/// Hook programs that write packets into rings.
pub(super) struct KernelHook {
    pub(super) loaded: Loaded,
    /// The programs that those with rules replace, until these stand.
    pub(super) before: Option<Replaced>,
    pub(super) set: ProgramSet,
    /// The programs of the set that are loaded.
    pub(super) programs: &'static [Program],
    pub(super) params: Params,
    pub(super) filters: Filters,
    /// The places where the programs look for rules; `None` where they look for none.
    pub(super) images: Option<Images>,
    pub(super) links: Links,
    pub(super) attached: Attached,
    pub(super) promiscuous: bool,
    /// Where links are pinned, of a recording that outlives its process.
    pub(super) place: Option<Place>,
    /// The helper, where what takes privileges is its affair and not this process's.
    pub(super) seat: Option<Seat>,
}

impl KernelHook {
    /// Does what takes privileges, for an interface as it is now. Returns the answer's value.
    pub(super) fn ask(&mut self, interface: &Interface, request: &Request) -> Result<u32, Fault> {
        let Some(seat) = &self.seat else {
            return self.perform(interface, request).map(|answer| answer.value);
        };
        let value = seat.ask(request)?.value;
        match request {
            Request::Attach { .. } => self.attached = Attached::of(value),
            Request::BeginRules => self.images = Some(Images::at(Box::new(seat.clone()), 1)),
            Request::PutBack => self.images = None,
            Request::SetFilter { program, .. } => self.filters = Filters::of(program.as_ref()),
            _ => {}
        }
        Ok(value)
    }

    /// Does what takes privileges, in this process.
    pub(super) fn perform(
        &mut self,
        interface: &Interface,
        request: &Request,
    ) -> Result<Answer, Fault> {
        let value = match request {
            Request::Attach { .. } => {
                self.attach(interface).map_err(Fault::Place)?;
                return Ok(self.attached.word().into());
            }
            Request::Detach => {
                self.detach();
                false
            }
            Request::Restore => {
                // Another device may have got the number of one that is gone.
                if self.params.veth && !interface.is_veth() {
                    self.leave_veth().map_err(Fault::Load)?;
                }
                let Self { links, loaded, .. } = self;
                let restored = links.restore(interface, &|which| loaded.program(which));
                restored.map_err(Fault::Place)?
            }
            Request::Load { ifindex } => {
                self.params.ifindex = *ifindex;
                self.reload_for(interface).map_err(Fault::Load)?;
                false
            }
            Request::TakeQueues => {
                // The kernel does nothing where a program is exchanged for itself.
                self.reload().map_err(Fault::Load)?;
                self.exchange().map_err(Fault::Place)?;
                false
            }
            Request::SetFilter { program, .. } => {
                let filters = Filters::of(program.as_ref());
                let filtered = !filters.is_empty();
                self.change(Params { filtered, ..self.params }, filters)?;
                false
            }
            Request::SetCutoff { bytes } => {
                self.change(Params { cutoff: *bytes, ..self.params }, self.filters.clone())?;
                false
            }
            Request::BeginRules => {
                let judged = Params { judged: true, ..self.params };
                let replaced = self.loaded.reload(self.programs, &judged, &self.filters);
                self.before = Some(replaced.map_err(Fault::Load)?);
                self.pin_flows();
                self.images = Some(self.loaded.images().map_err(Fault::Place)?);
                false
            }
            Request::Exchange => {
                self.exchange().map_err(Fault::Place)?;
                self.before = None;
                self.params.judged = self.images.is_some();
                kernel::wait_for_running_programs();
                false
            }
            Request::PutBack => {
                self.images = None;
                if let Some(before) = self.before.take() {
                    self.put_back(before);
                }
                false
            }
            Request::MakeRules { size } => {
                let images = self.images.as_mut().ok_or_else(no_rules)?;
                let fd = images.places.make(*size as usize).map_err(Fault::Place)?;
                return Ok(Answer { value: 0, fds: vec![fd] });
            }
            Request::PutRules { size } => {
                let images = self.images.as_mut().ok_or_else(no_rules)?;
                let size = size.map(|size| size as usize);
                images.places.put(0, size).map_err(Fault::Place)?;
                false
            }
            Request::MakeFlows => {
                let images = self.images.as_mut().ok_or_else(no_rules)?;
                images.places.make_flows().map_err(Fault::Place)?;
                false
            }
            Request::GiveUp => {
                self.detach();
                if let Some(place) = self.place.take() {
                    place.remove_pins().map_err(Fault::Place)?;
                }
                false
            }
            Request::OpenSocket { .. }
            | Request::TakeRefused
            | Request::PutFilter { .. }
            | Request::Prepare
            | Request::Keep
            | Request::MakeMember
            | Request::Open { .. }
            | Request::Settle { .. } => {
                return Err(Fault::Place(io::ErrorKind::InvalidInput.into()));
            }
        };
        Ok(value.into())
    }

    fn attach(&mut self, interface: &Interface) -> io::Result<()> {
        let Self { loaded, set, programs, promiscuous, place, .. } = self;
        let (program, pins) = (|which| loaded.program(which), place.as_ref().map(Place::links));
        let pins = pins.as_ref();
        self.links = Links::attach(interface, set.place, *promiscuous, programs, &program, pins)?;
        let (by_clsact, renewed) = (self.links.by_clsact(), self.links.were_renewed());
        self.attached = Attached { by_clsact, renewed };
        Ok(())
    }

    /// Lets go of the programs, in a process that ends: `stays` says whether they are to go on.
    pub(super) fn detach_here(&mut self, stays: bool) {
        if stays {
            drop(std::mem::take(&mut self.links));
        } else {
            self.detach();
        }
    }

    pub(super) fn detach(&mut self) {
        std::mem::take(&mut self.links).detach();
        if let Some(place) = &self.place {
            // What an owner before has left may stand though this one has attached nothing.
            place.links().remove();
        }
        kernel::wait_for_running_programs();
    }

    /// Loads the programs for a device that is no veth any more: those for a veth read what other
    /// drivers do not have.
    fn leave_veth(&mut self) -> io::Result<()> {
        let changed = Params { veth: false, ..self.params };
        // The links are those of the plain programs, which all veths have.
        self.loaded.reload(self.set.plain, &changed, &self.filters)?;
        (self.programs, self.params) = (self.set.plain, changed);
        Ok(())
    }

    /// Loads the programs for a device that may be another than before.
    fn reload_for(&mut self, interface: &Interface) -> io::Result<()> {
        let veth = Questions::finds_tags(interface, &self.set);
        if veth == self.params.veth {
            return self.reload();
        }
        let Self { loaded, set, params, filters, .. } = self;
        let changed = Params { veth, ..*params };
        let load = |programs: &[Program]| loaded.reload(programs, &changed, filters);
        let (_, programs) = load_best(set, &changed, load)?;
        (self.programs, self.params) = (programs, changed);
        Ok(())
    }

    fn reload(&mut self) -> io::Result<()> {
        self.loaded.reload(self.programs, &self.params, &self.filters).map(drop)
    }

    fn exchange(&mut self) -> io::Result<()> {
        let Self { links, loaded, programs, .. } = self;
        links.exchange(programs, &|which| loaded.program(which))
    }

    fn change(&mut self, changed: Params, filters: Filters) -> Result<(), Fault> {
        let reloaded = self.loaded.reload(self.programs, &changed, &filters);
        let before = reloaded.map_err(Fault::Load)?;
        self.pin_flows();
        if let Err(e) = self.exchange() {
            self.put_back(before);
            return Err(Fault::Place(e));
        }
        kernel::wait_for_running_programs();
        (self.filters, self.params) = (filters, changed);
        Ok(())
    }

    /// Keeps the table of flows that the programs cut off by now for the next owner.
    fn pin_flows(&self) {
        if let Some(place) = &self.place {
            // Where that cannot be, the next owner begins with another one.
            let _ = self.loaded.pin_flows(place);
        }
    }

    /// Puts programs back after a change that failed, also at those links that took a changed
    /// program. The other links still have them.
    fn put_back(&mut self, before: Replaced) {
        self.loaded.put_back(before);
        // Where a link takes no program, its device is gone, and Capture::watch loads them anew.
        let _ = self.exchange();
        kernel::wait_for_running_programs();
    }
}

fn no_rules() -> Fault {
    Fault::Place(io::ErrorKind::InvalidInput.into())
}
