//! What has the device of an interface counted, and is it still there?
//!
//! A device may vanish and be made anew under the same name while something captures there. Its
//! counters then begin at 0, so the sums of devices that are gone are kept here. What is attached
//! to the interface is not: whoever captures attaches it again.

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
    /// Looks an interface up, which must be up and have frames that can be recorded.
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

    /// Begins to count: what the device has counted before is left out.
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

    /// Looks whether there is a device of the name again, after [`Event::Gone`], and takes it for
    /// this one.
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

    /// Stops counting until [`Device::is_back`] finds the device.
    pub(crate) fn pause(&mut self) {
        self.gone = self.nic();
        self.start = self.interface.counters;
    }

    /// Returns what the device has counted since [`Device::begin`]; where it is gone, until it was
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
