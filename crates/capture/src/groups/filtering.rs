//! How does a group get another filter while others get their packets?
//!
//! Compiling an expression, and loading programs that have it, takes the kernel's verifier as long
//! as the filter is large. So a change of filter has three steps, as coming has (`coming`): the
//! first notes how the ports are, the second makes programs for them on any thread, the third puts
//! them in place. Where a port has changed in between, because its interface went or came back, the
//! programs do not suit it, and the change begins anew.

use std::sync::Arc;

use super::hub::Hub;
use super::port::{Filter, List, Port, Ready};
use super::{Error, Groups};
use crate::all_or_none::change_all;
use crate::filter::{Compiler, check_filter};
use crate::sys::kernel;

/// A change of a group's filter for which no programs are made yet.
pub struct FilterChange {
    group: usize,
    /// The number by which programs know the group.
    number: u32,
    filter: Option<String>,
    drafts: Vec<Draft>,
    hub: Arc<Hub>,
}

/// A port as it was when the change began.
struct Draft {
    /// The port's place among all.
    at: usize,
    before: List,
    /// Whether the port had programs; it has none while its interface is gone.
    is_loaded: bool,
    port: Port<()>,
}

/// A change of a group's filter whose programs are made, or cannot be.
pub struct PreparedFilter {
    change: FilterChange,
    ready: Result<Vec<Option<Ready>>, crate::Error>,
}

impl FilterChange {
    /// Compiles the filter and loads programs that have it.
    pub fn prepare(mut self) -> PreparedFilter {
        let ready = self.programs();
        PreparedFilter { change: self, ready }
    }

    /// Compiles the filter, and makes no program of it.
    ///
    /// # Errors
    /// Where libpcap refuses it.
    pub fn check(&self) -> Result<(), Error> {
        let Some(expression) = &self.filter else { return Ok(()) };
        let interfaces = || self.drafts.iter().map(|draft| &draft.port.device.interface);
        check_filter(expression, interfaces())?;
        for interface in interfaces() {
            Compiler::new(interface).compile(expression)?;
        }
        Ok(())
    }

    fn programs(&mut self) -> Result<Vec<Option<Ready>>, crate::Error> {
        let Self { number, filter, drafts, hub, .. } = self;
        if let Some(expression) = filter {
            check_filter(expression, drafts.iter().map(|draft| &draft.port.device.interface))?;
        }
        let make = |draft: &mut Draft| {
            draft.port.put_filter(*number, Filter::of(filter.as_deref()));
            if draft.is_loaded { draft.port.prepare(hub).map(Some) } else { draft.port.renew(hub) }
        };
        drafts.iter_mut().map(make).collect()
    }
}

impl Groups {
    /// Exchanges a group's filter. Each packet meets the old one or the new one, and none is lost;
    /// afterwards the old one judges no packet any more.
    ///
    /// # Errors
    /// Where the filter does not compile or the kernel does not take it, or at a hook whose
    /// programs cannot be exchanged. Then the old filter stays.
    pub fn set_filter(&mut self, group: &str, filter: Option<&str>) -> Result<(), Error> {
        loop {
            let change = self.begin_filter(group, filter)?;
            if self.finish_filter(change.prepare())? {
                return Ok(());
            }
        }
    }

    /// Begins to exchange a group's filter.
    ///
    /// # Errors
    /// Where there is no such group, or at a hook whose programs cannot be exchanged.
    pub fn begin_filter(&self, group: &str, filter: Option<&str>) -> Result<FilterChange, Error> {
        let at = self.group(group)?;
        let hook = self.list[at].config.hook;
        if !hook.can_exchange_filter() {
            return Err(Error::FixedFilter { group: group.to_owned(), hook });
        }
        let draft = |(at, _): &(usize, u32)| {
            let port = &self.ports[*at];
            let (before, is_loaded) = (port.list.clone(), port.is_loaded());
            Draft { at: *at, before, is_loaded, port: port.draft() }
        };
        Ok(FilterChange {
            group: at,
            number: self.list[at].number,
            filter: filter.map(str::to_owned),
            drafts: self.list[at].ports.iter().map(draft).collect(),
            hub: self.hub.clone(),
        })
    }

    /// Puts the programs of a change in place. Returns false where they do not suit the ports any
    /// more; then nothing has changed, and the change must begin anew.
    ///
    /// # Errors
    /// Where the programs could not be made, or the kernel does not exchange them. Then the old
    /// filter stays.
    pub fn finish_filter(&mut self, prepared: PreparedFilter) -> Result<bool, Error> {
        let PreparedFilter { change: FilterChange { group, filter, drafts, .. }, ready } = prepared;
        let suits = |draft: &Draft| {
            let port = &self.ports[draft.at];
            let same = port.device.interface.index == draft.port.device.interface.index;
            same && port.list == draft.before && port.is_loaded() == draft.is_loaded
        };
        let forget = || drafts.iter().for_each(|draft| self.ports[draft.at].put_back());
        if !drafts.iter().all(suits) {
            forget();
            return Ok(false);
        }
        let ready = ready.inspect_err(|_| forget())?;
        let ready = drafts.iter().map(|draft| draft.at).zip(ready);
        let exchanged: Result<(), crate::Error> = change_all(
            &mut self.ports,
            ready.filter_map(|(port, ready)| Some((port, ready?))),
            |ports, (port, ready)| Ok((port, ports[port].exchange(ready)?)),
            |ports, (port, before)| {
                if let Some(before) = before {
                    ports[port].exchange_back(before);
                }
            },
        );
        kernel::wait_for_running_programs();
        if let Err(e) = exchanged {
            for draft in &drafts {
                self.ports[draft.at].put_back();
            }
            return Err(e.into());
        }
        for draft in drafts {
            self.ports[draft.at].keep();
            self.ports[draft.at].list = draft.port.list;
        }
        self.list[group].config.filter = filter;
        Ok(true)
    }
}
