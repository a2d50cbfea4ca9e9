//! What has the device of an interface counted, and is it still there?
//!
//! A device may vanish and be made anew under the same name while something captures there. Its
//! counters then begin at 0, so the sums of devices that are gone are kept here. What is attached
//! to the interface is not: whoever captures attaches it again.

use std::io;

use crate::interface::{Interface, NicCounters};
use crate::persist::Found;
use crate::sys::kernel::active_rx_queues;
use crate::{Error, Event};

/// What becomes of that which a device counts while nothing captures there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Counts,
    LeftOut,
}

/// An interface by name, whose device may vanish and be made anew.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) interface: Interface,
    /// The counters of devices that are gone, and the present one's at its start.
    gone: NicCounters,
    start: NicCounters,
    /// Receive queues that were switched on when the hook was attached; 0 where the driver does not
    /// tell.
    queues: u32,
}

impl Device {
    /// Looks an interface up, which must be up and have frames that can be recorded.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        Self::of(Interface::find(name)?)
    }

    /// Takes an interface that was looked up, as [`Device::open`] does.
    pub(crate) fn of(interface: Interface) -> Result<Self, Error> {
        if !interface.up {
            return Err(Error::Down(interface.name));
        }
        if interface.link.is_none() {
            return Err(Error::LinkType { name: interface.name, arphrd: interface.arphrd });
        }
        Ok(Self { start: interface.counters, gone: NicCounters::default(), interface, queues: 0 })
    }

    /// Takes the device of an interface that an owner before has left. Where that is gone, returns
    /// it as it was, and so that it has gone.
    pub(crate) fn left(found: &Found) -> Result<(Self, bool), Error> {
        let Found { entry, account, is_only, .. } = found;
        let mut words = account.iter().flatten().skip(1).copied();
        let index = u32::try_from(words.next().unwrap_or(0)).unwrap_or(0);
        let now = Interface::by_name(&entry.name)?
            .filter(|now| now.link == Some(entry.link) && (*is_only || now.index == index));
        let is_gone = now.is_none();
        // Behind those of devices before, and those at its start.
        let last = NicCounters::of_words(&mut words.skip(2 * NicCounters::WORDS));
        let interface = now.unwrap_or_else(|| entry.interface(index, last));
        let start = interface.counters;
        Ok((Self { start, gone: NicCounters::default(), interface, queues: 0 }, is_gone))
    }

    /// Begins to count: what the device has counted before is left out.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.start = Interface::find(&self.interface.name)?.counters;
        self.interface.counters = self.start;
        self.note_queues();
        // So that the first look tells if there is no link.
        self.interface.running = true;
        Ok(())
    }

    /// Begins to count from `before` on, or from nothing where that was another device's.
    pub(crate) fn begin_from(&mut self, before: NicCounters) -> Result<(), Error> {
        self.begin()?;
        let is_another = self.start.are_of_another(before);
        self.start = if is_another { NicCounters::default() } else { before };
        Ok(())
    }

    /// Adds to words what [`Device::resume`] goes on with.
    pub(crate) fn put(&self, words: &mut Vec<u64>) {
        words.push(u64::from(self.interface.index));
        for counters in [self.gone, self.start, self.interface.counters] {
            words.extend(counters.words());
        }
    }

    /// Goes on counting where another process has stopped. Returns whether the device was made anew
    /// since; what that one has counted then counts.
    pub(crate) fn resume(&mut self, words: &mut impl Iterator<Item = u64>) -> bool {
        let index = words.next().unwrap_or(0);
        let mut next = || NicCounters::of_words(words);
        let (gone, start, last) = (next(), next(), next());
        let now = self.interface.counters;
        let is_another = index != u64::from(self.interface.index) || now.are_of_another(last);
        (self.gone, self.start) = if is_another {
            (gone + last.since(start), NicCounters::default())
        } else {
            (gone, start)
        };
        self.interface.running = true;
        is_another
    }

    /// Looks whether the device is still there, under whatever name.
    pub(crate) fn look(&mut self) -> Result<Option<Event>, Error> {
        let now = Interface::by_index(self.interface.index)?;
        // One that was made anew may have the number of the one that is gone.
        let now = now.filter(|now| !now.counters.are_of_another(self.interface.counters));
        let Some(now) = now else {
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

    /// Looks whether there is a device of the name again, after [`Event::Gone`] or
    /// [`Device::pause`], and takes it for this one. What it has counted meanwhile counts, or does
    /// not. One that somebody else has, by its index in `taken`, was renamed and is not this one.
    pub(crate) fn is_back(&mut self, meanwhile: Meanwhile, taken: &[u32]) -> Result<bool, Error> {
        let Some(now) = Interface::by_name(&self.interface.name)? else { return Ok(false) };
        if !now.up || taken.contains(&now.index) {
            return Ok(false);
        }
        if now.link != self.interface.link {
            return Err(Error::LinkType { name: now.name, arphrd: now.arphrd });
        }
        // One that was moved to another namespace may come back with another number.
        let is_alike =
            now.index == self.interface.index || now.mac.is_some() && now.mac == self.interface.mac;
        let is_same = is_alike && !now.counters.are_of_another(self.interface.counters);
        match meanwhile {
            Meanwhile::LeftOut => self.start = now.counters,
            // It was in another namespace.
            Meanwhile::Counts if is_same => {}
            Meanwhile::Counts => self.start = NicCounters::default(),
        }
        self.interface = now;
        self.note_queues();
        Ok(true)
    }

    /// Returns whether queues were switched on since they were last noted.
    pub(crate) fn has_more_queues(&self) -> bool {
        self.queues > 0
            && active_rx_queues(&self.interface.name).is_ok_and(|queues| queues > self.queues)
    }

    /// Takes note of the queues that are switched on.
    pub(crate) fn note_queues(&mut self) {
        self.queues = active_rx_queues(&self.interface.name).unwrap_or(0);
    }

    /// Stops counting until [`Device::is_back`] finds the device.
    pub(crate) fn pause(&mut self) {
        self.gone = self.nic();
        self.start = self.interface.counters;
    }

    /// Takes note that a device that is gone had received more packets than it was asked about.
    pub(crate) fn add_received(&mut self, packets: u64) {
        self.gone.rx_packets += packets;
        // Where it is the same that comes back, these are not counted again.
        self.interface.counters.rx_packets += packets;
        self.start.rx_packets += packets;
    }

    /// Returns what the device has counted since [`Device::begin`]; where it is gone, until it was
    /// last seen.
    pub(crate) fn nic(&self) -> NicCounters {
        self.gone + self.interface.counters.since(self.start)
    }

    /// Takes the device of an index for this one: it has the same name, or it is the same.
    ///
    /// # Errors
    /// `ENODEV` where there is none, `EPERM` where it is another one's.
    pub(crate) fn become_again(&mut self, index: u32) -> io::Result<()> {
        let found = Interface::by_index(index).map_err(io::Error::other)?;
        let found = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        if found.name != self.interface.name && index != self.interface.index {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.interface = found;
        Ok(())
    }

    /// Reads anew all that is known of the device.
    pub(crate) fn refresh_all(&mut self) {
        if let Ok(Some(now)) = Interface::by_index(self.interface.index) {
            self.interface = now;
        }
    }

    /// Reads the device's counters anew.
    pub(crate) fn refresh(&mut self) {
        if let Ok(Some(now)) = Interface::by_index(self.interface.index) {
            self.interface.counters = now.counters;
        }
    }
}
