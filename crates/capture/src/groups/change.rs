//! What can change while packets flow: a group's snaplen, filter and rules, and whether it gets
//! any.

use std::sync::Arc;

use super::port::Filter;
use super::{Error, Groups};
use crate::all_or_none::change_all;
use crate::rules::{Compiled, Hits};
use crate::sys::kernel;

impl Groups {
    /// Cuts packets of a group to so many bytes from now on.
    ///
    /// # Errors
    /// Where that is 0, or more than the group began with.
    pub fn set_snaplen(&mut self, group: &str, snaplen: u32) -> Result<(), Error> {
        let at = self.group(group)?;
        let most = self.list[at].most;
        if snaplen == 0 {
            return Err(Error::Snaplen(group.to_owned()));
        }
        if snaplen > most {
            return Err(Error::SnaplenGrows { group: group.to_owned(), snaplen, most });
        }
        self.list[at].config.snaplen = snaplen;
        self.maps.set_snaplen(at, snaplen);
        Ok(())
    }

    /// Exchanges a group's filter. Each packet meets the old one or the new one, and none is lost;
    /// afterwards the old one judges no packet any more.
    ///
    /// # Errors
    /// Where the filter does not compile or the kernel does not take it, or at a hook whose
    /// programs cannot be exchanged. Then the old filter stays.
    pub fn set_filter(&mut self, group: &str, filter: Option<&str>) -> Result<(), Error> {
        let at = self.group(group)?;
        let hook = self.list[at].config.hook;
        if !hook.can_exchange_filter() {
            return Err(Error::FixedFilter { group: group.to_owned(), hook });
        }
        let ports: Vec<usize> = self.list[at].ports.iter().map(|(port, _)| *port).collect();
        let put = |port: &usize| self.ports[*port].put_filter(at, Filter::of(filter));
        let before: Vec<Filter> = ports.iter().map(put).collect();
        let exchanged = self.exchange(&ports);
        if exchanged.is_err() {
            for (port, before) in ports.iter().zip(before) {
                self.ports[*port].put_filter(at, before);
            }
        } else {
            self.list[at].config.filter = filter.map(str::to_owned);
        }
        kernel::wait_for_running_programs();
        exchanged.map_err(Error::from)
    }

    /// Puts new programs at these ports, or at none of them.
    fn exchange(&mut self, ports: &[usize]) -> Result<(), crate::Error> {
        let renewed: Vec<_> = ports
            .iter()
            .map(|port| self.ports[*port].renew(&self.hub))
            .collect::<Result<_, _>>()?;
        let ready = ports.iter().zip(renewed);
        change_all(
            &mut self.ports,
            ready.filter_map(|(port, ready)| Some((*port, ready?))),
            |ports, (port, ready)| Ok((port, ports[port].exchange(ready)?)),
            |ports, (port, before)| {
                if let Some(before) = before {
                    // The kernel has just taken the new programs there; an exchange that fails
                    // has no interface any more.
                    let _ = ports[port].exchange(before);
                }
            },
        )
    }

    /// Exchanges a group's rules as a whole: each packet is judged by the old set or by the new
    /// one. Returns what the old set counted, to the last packet.
    ///
    /// # Errors
    /// Where the kernel has no room for the rules. Then the old rules stay.
    pub fn set_rules(
        &mut self,
        group: &str,
        rules: Option<Arc<Compiled>>,
    ) -> Result<Option<Hits>, Error> {
        let at = self.group(group)?;
        if rules.is_none() {
            self.maps.set_rules(at, false);
        }
        let before = self.images.set(at as u32, rules.as_ref())?;
        if rules.is_some() {
            self.maps.set_rules(at, true);
        }
        self.list[at].config.rules = rules;
        Ok(before)
    }

    /// Returns how many packets each rule of a group has taken since its rules were exchanged last.
    pub fn rule_hits(&self, group: &str) -> Option<Hits> {
        self.images.hits(self.group(group).ok()? as u32)
    }

    /// Stops giving packets to a group, or to all. When this returns, none is on its way.
    ///
    /// # Errors
    /// Where there is no such group.
    pub fn pause(&mut self, group: Option<&str>) -> Result<(), Error> {
        self.set_paused(group, true)?;
        kernel::wait_for_running_programs();
        Ok(())
    }

    /// Gives packets to a group, or to all, again.
    ///
    /// # Errors
    /// Where there is no such group.
    pub fn resume(&mut self, group: Option<&str>) -> Result<(), Error> {
        self.set_paused(group, false)
    }

    fn set_paused(&mut self, group: Option<&str>, is_paused: bool) -> Result<(), Error> {
        let which = match group {
            Some(name) => {
                let at = self.group(name)?;
                at..at + 1
            }
            None => 0..self.list.len(),
        };
        for at in which {
            self.maps.set_paused(at, is_paused);
        }
        Ok(())
    }
}
