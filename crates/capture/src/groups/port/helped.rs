//! A port in a daemon's helper: what the daemon asks for is done here.
//!
//! The helper has the list of the port's groups, too, but no expression of a filter: it gets each
//! filter compiled. New filters are put into a list beside the one in force, until the programs
//! that have them stand.

use std::io;

use super::{Filter, List, Port, Ready};
use crate::bpf::params::Params;
use crate::groups::hub::Hub;
use crate::helper::wire::{Answer, Fault, Made, Request};
use crate::ring::Geometry;

/// A change of filters that a daemon has its helper make.
#[derive(Default)]
pub(super) struct Change {
    /// The list with the filters that were put so far.
    list: Option<List>,
    /// The programs that have them.
    next: Option<Ready>,
    /// What stood before.
    before: Option<(List, Ready)>,
}

impl Port {
    /// Forgets the expressions of filters, in a helper, which gets them compiled.
    pub(in crate::groups) fn forget_expressions(&mut self) {
        for entry in &mut self.list.entries {
            entry.filter.expression = None;
        }
    }

    /// Says what programs that were loaded are like.
    fn made(&self, ready: &Ready) -> Made {
        let Params { hardware_time, hardware_vlan, clock_by_poll, veth, .. } = self.params;
        let bound = self.set.bound.is_some_and(|bound| bound == ready.programs);
        Made { bound, hardware_time, hardware_vlan, clock_by_poll, veth }
    }

    /// Does in a helper what takes privileges.
    pub(in crate::groups) fn help(
        &mut self,
        hub: &Hub,
        geometry: Geometry,
        request: &Request,
    ) -> Result<Answer, Fault> {
        let invalid = || Fault::Place(io::ErrorKind::InvalidInput.into());
        match request {
            Request::Attach { ifindex } => {
                self.device.become_again(*ifindex).map_err(Fault::Place)?;
                self.attach_here().map_err(Fault::Place)?;
                return Ok(self.attached.word().into());
            }
            Request::Detach => {
                self.detach_here();
                // A program that is bound to a device must not outlive it.
                (self.ready, self.change) = (None, Change::default());
            }
            Request::Restore => {
                // It may have another name by now.
                self.device.refresh_all();
                self.leave_veth(hub).map_err(Fault::Load)?;
                let Some(ready) = &self.ready else { return Ok(false.into()) };
                let program = |which| ready.program(which);
                let restored = self.links.restore(&self.device.interface, &program);
                return restored.map(Answer::from).map_err(Fault::Place);
            }
            Request::Load { ifindex } => {
                self.device.become_again(*ifindex).map_err(Fault::Place)?;
                let suits = self.suit_interface(hub, geometry);
                suits.map_err(|e| Fault::Load(io::Error::other(e.to_string())))?;
                let ready = self.load_here(hub, &self.constants()).map_err(Fault::Load)?;
                let made = self.made(&ready);
                self.ready = Some(ready);
                return Ok(made.word().into());
            }
            Request::TakeQueues => {
                let ready = self.load_here(hub, &self.constants()).map_err(Fault::Load)?;
                self.exchange_here(&ready).map_err(Fault::Place)?;
                self.ready = Some(ready);
            }
            Request::PutFilter { group, program } => {
                // While nothing is loaded, the filters are for when the interface is back.
                let list = match &self.ready {
                    Some(_) => self.change.list.get_or_insert_with(|| self.list.clone()),
                    None => &mut self.list,
                };
                let mut entries = list.entries.iter_mut();
                let entry = entries.find(|entry| u32::from(entry.group) == *group);
                let entry = entry.ok_or_else(invalid)?;
                entry.filter = Filter { expression: None, compiled: program.clone() };
            }
            Request::Prepare => {
                self.change.before = None;
                let list = self.change.list.take().ok_or_else(invalid)?;
                let now = std::mem::replace(&mut self.list, list);
                let constants = self.constants();
                let list = std::mem::replace(&mut self.list, now);
                let next = self.load_here(hub, &constants).map_err(Fault::Load)?;
                let made = self.made(&next);
                (self.change.list, self.change.next) = (Some(list), Some(next));
                return Ok(made.word().into());
            }
            Request::Exchange => {
                let Change { list: Some(list), next: Some(next), .. } =
                    std::mem::take(&mut self.change)
                else {
                    return Err(invalid());
                };
                self.exchange_here(&next).map_err(Fault::Place)?;
                let list = std::mem::replace(&mut self.list, list);
                self.change.before = self.ready.replace(next).map(|ready| (list, ready));
            }
            Request::Keep => self.change = Change::default(),
            Request::PutBack => {
                if let Some((list, ready)) = std::mem::take(&mut self.change).before {
                    let _ = self.exchange_here(&ready);
                    (self.list, self.ready) = (list, Some(ready));
                }
            }
            _ => return Err(invalid()),
        }
        Ok(Answer::default())
    }
}
