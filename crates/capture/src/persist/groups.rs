//! Groups that outlive their daemon: what the owner may do with what is pinned and written down.
//!
//! A group of the next daemon is the same as one before if it has the same name, hook and
//! interfaces: then it keeps its number, its counters and its members. What else is configured for
//! it may be another.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::roster::{DaemonState, GroupEntry, MOST_PORTS, Roster};
use super::state::{DAEMON, Unreadable};
use super::{Error, LinkPins, Status, StatusOf, claim, monotonic_ns, remove_pins, unreadable};
use crate::Hook;
use crate::groups::fill_bytes;
use crate::sys::params::MAX_GROUPS;

/// The places for counters of lasting groups: each port has that of its number, and each group has
/// another for each of its interfaces.
pub(crate) const MOST_COUNTS: usize = MOST_PORTS + 1024;

/// Groups that outlive their daemon, owned by this process as long as this value lives.
#[derive(Debug)]
pub struct LastingGroups {
    name: String,
    dir: PathBuf,
    _lock: Option<OwnedFd>,
    state: Option<DaemonState>,
    roster: Roster,
    /// Whether a daemon before has left what is pinned.
    is_left: bool,
}

impl LastingGroups {
    /// Becomes the owner of the lasting groups of a name. What an owner before had not come as far
    /// as to serve is removed.
    ///
    /// # Errors
    /// Where another owner lives, and where what is there cannot be taken over.
    pub fn open(name: &str) -> Result<Self, Error> {
        let (dir, lock) = claim(name)?;
        let state = match DaemonState::open(&dir.join("state")) {
            Ok(state) => Some(state),
            Err(Unreadable::Io(e)) if e.kind() == io::ErrorKind::NotFound => None,
            Err(Unreadable::Unfinished) => None,
            Err(e) => return Err(unreadable(name, &dir, e)),
        };
        let mut own = Self {
            name: name.to_owned(),
            dir,
            _lock: lock,
            is_left: state.is_some(),
            state,
            roster: Roster::default(),
        };
        match &own.state {
            Some(state) => {
                let sound = state.roster().filter(|roster| roster.geometry().is_some());
                own.roster = sound.ok_or_else(|| Error::Damaged(name.to_owned()))?;
            }
            None => {
                remove_pins(&own.dir).map_err(|e| own.io("remove what is left of", e))?;
            }
        }
        Ok(own)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn io(&self, what: &'static str, source: io::Error) -> Error {
        Error::Io { name: self.name.clone(), what, source }
    }

    /// Returns whether a daemon before has left something that is taken over.
    pub fn is_taken_over(&self) -> bool {
        self.is_left
    }

    /// Returns whether what is pinned outlives its owner: groups are served.
    pub(crate) fn stays(&self) -> bool {
        self.is_left || self.state.as_ref().is_some_and(|state| state.head.is_finished_as(DAEMON))
    }

    /// Removes what is pinned where no groups are served. That takes the privileges that
    /// [`LastingGroups::open`] had.
    pub(crate) fn clean(&self) {
        if !self.stays() {
            let _ = remove_pins(&self.dir);
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Returns how often another daemon has come.
    pub fn takeovers(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.head.takeovers())
    }

    /// Returns the directory where maps are pinned.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns where the links of a port are pinned.
    pub(crate) fn links(&self, port: u32) -> LinkPins {
        let left = self.roster.ports.contains_key(&port);
        LinkPins { dir: self.dir.clone(), of: format!("port{port}"), left }
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the number of a group that was there before.
    fn known(&self, name: &str, hook: Hook, interfaces: &[String]) -> Option<u32> {
        let is_it = |entry: &GroupEntry| {
            entry.name == name && entry.hook == hook.name() && entry.interfaces == interfaces
        };
        self.roster.groups.iter().find(|(_, entry)| is_it(entry)).map(|(number, _)| *number)
    }

    /// Returns the hook of a group of this name and these interfaces that a daemon before has left.
    pub fn hook_left(&self, name: &str, interfaces: &[String]) -> Option<Hook> {
        let mut groups = self.roster.groups.values();
        let left = groups.find(|group| group.name == name && group.interfaces == interfaces)?;
        Hook::named(&left.hook)
    }

    /// Returns the numbers by which programs know these groups. Those of groups that are not there
    /// any more are not given to others yet: their programs may still run.
    ///
    /// # Errors
    /// Where there are more groups, old and new, than there are numbers.
    pub fn numbers(&self, groups: &[(&str, Hook, &[String])]) -> Result<Vec<u32>, Error> {
        let mut taken: BTreeSet<u32> = self.roster.groups.keys().copied().collect();
        let mut number = |(name, hook, interfaces): &(&str, Hook, &[String])| {
            let known = self.known(name, *hook, interfaces);
            let free = || (0..MAX_GROUPS as u32).find(|number| !taken.contains(number));
            let number = known.or_else(free).ok_or(Error::Room {
                most: MAX_GROUPS,
                what: "groups, of the configuration before and of this one together",
            })?;
            taken.insert(number);
            Ok(number)
        };
        groups.iter().map(&mut number).collect()
    }

    /// Changes the roster, and has it count at once where it is written down already.
    ///
    /// # Errors
    /// Where it has no room; then it is as it was.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Roster)) -> Result<(), Error> {
        let mut roster = self.roster.clone();
        change(&mut roster);
        if let Some(state) = &self.state
            && !state.set_roster(&roster)
        {
            return Err(self.io("write down the members of", io::ErrorKind::StorageFull.into()));
        }
        self.roster = roster;
        Ok(())
    }

    /// Makes the state of new groups, which counts from [`LastingGroups::finish`] on. This is the
    /// last that takes privileges.
    ///
    /// # Errors
    /// Where the state cannot be made.
    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        let made = DaemonState::make(&self.dir.join("state"));
        self.state = Some(made.map_err(|source| self.io("pin the state of", source))?);
        Ok(())
    }

    /// Has what is pinned last from here on: all programs stand, the roster is true, and these are
    /// the accounts of the ports.
    pub(crate) fn finish(&self, accounts: Vec<(u32, Vec<u64>)>) {
        self.note(accounts);
        if let Some(state) = &self.state {
            state.finish(if self.is_left { state.head.takeovers() + 1 } else { 0 });
        }
    }

    /// Returns the words that were noted of a port.
    pub(crate) fn account(&self, port: u32) -> Option<Vec<u64>> {
        self.state.as_ref()?.account(port).read()
    }

    /// Notes how ports stand, and that their owner lives.
    pub(crate) fn note(&self, accounts: Vec<(u32, Vec<u64>)>) {
        let Some(state) = &self.state else { return };
        for (port, words) in accounts {
            state.account(port).write(words);
        }
        state.head.set_beat_ns(monotonic_ns());
    }
}

/// Returns how lasting groups stand, whose state is in this directory.
pub(super) fn status(name: &str, dir: &Path) -> Result<Status, Error> {
    let state = DaemonState::open(&dir.join("state")).map_err(|e| unreadable(name, dir, e))?;
    let damaged = || Error::Damaged(name.to_owned());
    let roster = state.roster().ok_or_else(damaged)?;
    let geometry = roster.geometry().ok_or_else(damaged)?;
    let read = |source| Error::Io { name: name.to_owned(), what: "read", source };
    let fill_bytes = fill_bytes(dir, geometry, roster.members.keys()).map_err(read)?;
    let each = u64::from(geometry.nrings) * u64::from(geometry.ring_bytes());
    let hook = |name: &str| Hook::named(name).map_or("", Hook::name);
    let ports = roster.ports.values().map(|port| (port.interface.clone(), hook(&port.hook)));
    Ok(Status {
        interfaces: ports.collect(),
        version: state.head.version(),
        takeovers: state.head.takeovers(),
        last_beat: Duration::from_nanos(monotonic_ns().saturating_sub(state.head.beat_ns())),
        fill_bytes,
        ring_bytes: each * roster.members.len() as u64,
        of: StatusOf::Daemon {
            groups: roster.groups.into_values().map(|group| group.name).collect(),
            members: roster.members.len(),
        },
    })
}

impl Drop for LastingGroups {
    fn drop(&mut self) {
        self.clean();
    }
}
