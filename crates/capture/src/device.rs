//! An interface that something is attached to: what its device counts, and whether it is still
//! there.

use crate::interface::{Interface, NicCounters};
use crate::{Error, Event};

/// An interface by name, whose device may vanish and be made anew.
pub(crate) struct Device {
    pub(crate) interface: Interface,
    /// The counters of devices that are gone, and the present one's at its start.
    gone: NicCounters,
    start: NicCounters,
}

impl Device {
    /// Of an interface that is up and whose frames can be recorded.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let interface = Interface::find(name)?;
        if !interface.up {
            return Err(Error::Down(interface.name));
        }
        if interface.link.is_none() {
            return Err(Error::LinkType { name: interface.name, arphrd: interface.arphrd });
        }
        Ok(Self { start: interface.counters, gone: NicCounters::default(), interface })
    }

    /// The counters count from here.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.start = Interface::find(&self.interface.name)?.counters;
        // So that the first look tells if there is no link.
        self.interface.running = true;
        Ok(())
    }

    /// Looks whether the device is still there, under whatever name.
    pub(crate) fn look(&mut self) -> Result<Option<Event>, Error> {
        let Some(now) = Interface::by_index(self.interface.index)? else {
            self.pause();
            return Ok(Some(Event::Gone));
        };
        let before = std::mem::replace(&mut self.interface, now);
        Ok(match (before.running, self.interface.running) {
            (true, false) => Some(Event::LinkDown),
            (false, true) => Some(Event::LinkUp),
            _ => None,
        })
    }

    /// Looks whether there is a device of the name again, after [`Event::Gone`]; then it is this
    /// one.
    pub(crate) fn is_back(&mut self) -> Result<bool, Error> {
        let Some(now) = Interface::by_name(&self.interface.name)? else { return Ok(false) };
        if !now.up {
            return Ok(false);
        }
        if now.link != self.interface.link {
            return Err(Error::LinkType { name: now.name, arphrd: now.arphrd });
        }
        self.start = now.counters;
        self.interface = now;
        Ok(true)
    }

    /// What it counts does not count until [`Device::is_back`] says so.
    pub(crate) fn pause(&mut self) {
        self.gone = self.nic();
        self.start = self.interface.counters;
    }

    /// What the device has counted since [`Device::begin`]. Where it is gone, up to when it was
    /// last seen.
    pub(crate) fn nic(&self) -> NicCounters {
        self.gone + self.interface.counters.since(self.start)
    }

    /// Reads the device's counters anew.
    pub(crate) fn refresh(&mut self) {
        if let Ok(Some(now)) = Interface::by_index(self.interface.index) {
            self.interface.counters = now.counters;
        }
    }
}
