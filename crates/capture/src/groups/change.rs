//! What can change at once while packets flow: a group's snaplen and rules, and whether it gets any
//! packets. A filter takes longer (`filtering`).

use std::sync::Arc;

use super::{Error, Groups};
use crate::rules::{Compiled, Hits};
use crate::sys::kernel;

impl Groups {
    /// Cuts packets of a group to so many bytes from now on.
    ///
    /// # Errors
    /// Where that is 0, or more than the group began with.
    pub fn set_snaplen(&mut self, group: &str, snaplen: u32) -> Result<(), Error> {
        let at = self.check_snaplen(group, snaplen)?;
        self.list[at].config.snaplen = snaplen;
        self.maps.set_snaplen(self.list[at].number, snaplen);
        Ok(())
    }

    /// Refuses a snaplen that a group cannot have. Returns the group's place among all.
    ///
    /// # Errors
    /// Where there is no such group, or its members' rings were made for less.
    pub fn check_snaplen(&self, group: &str, snaplen: u32) -> Result<usize, Error> {
        let at = self.group(group)?;
        let most = self.list[at].most;
        if snaplen == 0 {
            return Err(Error::Snaplen(group.to_owned()));
        }
        if snaplen > most {
            return Err(Error::SnaplenGrows { group: group.to_owned(), snaplen, most });
        }
        Ok(at)
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
        let before = self.put_rules(at, rules.as_ref())?;
        self.list[at].config.rules = rules;
        Ok(before)
    }

    /// Has the programs judge by these rules.
    pub(super) fn put_rules(
        &mut self,
        at: usize,
        rules: Option<&Arc<Compiled>>,
    ) -> Result<Option<Hits>, Error> {
        let number = self.list[at].number;
        if rules.is_none() {
            self.maps.set_rules(number, false);
        }
        let before = self.images.set(number, rules)?;
        if rules.is_some() {
            self.maps.set_rules(number, true);
        }
        Ok(before)
    }

    /// Returns how many packets each rule of a group has taken since its rules were exchanged last.
    pub fn rule_hits(&self, group: &str) -> Option<Hits> {
        self.images.hits(self.list[self.group(group).ok()?].number)
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
            self.maps.set_paused(self.list[at].number, is_paused);
        }
        Ok(())
    }
}
