//! How do groups go on with what a daemon before has left?
//!
//! The maps are the same, so whatever programs, old or new, do with a packet is counted once and
//! lies in the same rings. What is not in the maps is in the roster (`persist::roster`). It names
//! at any time all that programs may be working with: what comes is written there before, and what
//! goes after no program works with it. So a daemon may die between any two steps of taking over,
//! and the next one begins with the first step again:
//!
//! 1. Members' maps that the roster does not name are removed, and what is new is written there.
//! 2. The groups' tables are adopted: slots keep their owners.
//! 3. Groups get what their configuration says, and their programs are put in the place of those
//!    that are there.
//! 4. What nobody needs any more goes: ports, groups, members.
//!
//! A member is **away** until it names its number and its secret.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::rand::{GetRandomFlags, getrandom};

use super::coming::{Leaving, owner};
use super::config::Places;
use super::hub::Sizes;
use super::kernel_error;
use super::member::{Ends, Member, Parts};
use super::port::Port;
use super::steering::{Shares, Steering};
use super::{Error, GroupStats, Groups, GroupsConfig, MemberPlace, MemberStats, Membership};
use crate::Hook;
use crate::attach::take_away;
use crate::interface::Interface;
use crate::persist::groups::MOST_COUNTS;
use crate::persist::roster::{GroupEntry, MOST_PORTS, MemberEntry, PortEntry, Roster};
use crate::persist::{self, LastingGroups};
use crate::ring::Geometry;
use crate::sys::kernel;
use crate::sys::params::MAX_GROUPS;

/// What of the groups outlives the daemon.
pub(super) struct Lasting {
    pub roster: SharedRoster,
}

/// The roster, which the thread that lets members leave changes too.
#[derive(Clone)]
pub(super) struct SharedRoster(Arc<Mutex<LastingGroups>>);

/// A member that is away, and the user whose process it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    pub member: u32,
    pub user: u32,
}

/// The word by which the next daemon knows a member.
pub(super) struct Secret(String);

impl Secret {
    fn new() -> io::Result<Self> {
        let mut bytes = [0u8; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self(bytes.map(|byte| format!("{byte:02x}")).concat()))
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// Compares in a time that does not tell where two secrets differ.
    fn is(secret: &str, other: &str) -> bool {
        let differs = secret.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        secret.len() == other.len() && differs == 0
    }
}

impl SharedRoster {
    fn lock(&self) -> MutexGuard<'_, LastingGroups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether what is pinned outlives its owner: groups are served.
    pub(super) fn stays(&self) -> bool {
        self.lock().stays()
    }

    /// Removes what is pinned where no groups are served.
    pub(super) fn clean(&self) {
        self.lock().clean();
    }

    /// Takes note of a new member, of a group of this number, and returns its secret.
    pub(super) fn has_joined(
        &self,
        member: u32,
        (group, weight, user): (u32, u32, u32),
    ) -> Result<Secret, Error> {
        let secret = Secret::new().map_err(|e| kernel_error("draw a secret", e))?;
        let entry = MemberEntry { group, weight, user, secret: secret.0.clone(), leaves: false };
        self.lock().change(|roster| drop(roster.members.insert(member, entry)))?;
        Ok(secret)
    }

    /// Takes note that members begin to leave.
    pub(super) fn leave(&self, members: &[u32]) {
        // It grows by nothing that it has no room for.
        let _ = self.lock().change(|roster| {
            for member in members {
                roster.members.entry(*member).and_modify(|entry| entry.leaves = true);
            }
        });
    }

    /// Takes note that members have left, and of what they got, at once.
    pub(super) fn have_left(&self, members: &[MemberStats]) {
        let _ = self.lock().change(|roster| {
            for stats in members {
                let Some(entry) = roster.members.remove(&stats.member) else { continue };
                if let Some(group) = roster.groups.get_mut(&entry.group) {
                    add(&mut group.gone, stats);
                }
            }
        });
    }
}

fn add(gone: &mut [u64; 4], stats: &MemberStats) {
    let got = [stats.captured, stats.captured_bytes, stats.dropped_ring, stats.dropped_other];
    for (sum, n) in gone.iter_mut().zip(got) {
        *sum += n;
    }
}

impl Lasting {
    pub(super) fn new(groups: LastingGroups) -> Self {
        Self { roster: SharedRoster(Arc::new(Mutex::new(groups))) }
    }

    pub(super) fn is_taken_over(&self) -> bool {
        self.roster.lock().is_taken_over()
    }

    pub(super) fn stays(&self) -> bool {
        self.roster.stays()
    }
}

/// Returns how the memory of members is divided, which is what a daemon before has decided.
///
/// # Errors
/// Where the configuration wants it divided otherwise.
pub(super) fn geometry(
    lasting: &LastingGroups,
    config: &GroupsConfig,
    wanted: Geometry,
) -> Result<Geometry, Error> {
    let name = || lasting.name().to_owned();
    let there = lasting.roster().geometry().ok_or_else(|| persist::Error::Damaged(name()))?;
    let form = |what: String, advice: &str| persist::Error::Form {
        name: name(),
        what,
        advice: advice.to_owned(),
    };
    // As many queues or CPUs as there are now may share the rings that there are.
    let by_config = match config.ring_bytes {
        Some(bytes) => Geometry::new(bytes, config.block_bytes, there.nrings, there.snaplen)?,
        None => Geometry { nrings: there.nrings, nblocks: there.nblocks, ..wanted },
    };
    let (nrings, nblocks) = (by_config.nrings, by_config.nblocks);
    if (nrings, nblocks, by_config.block_shift) != (there.nrings, there.nblocks, there.block_shift)
    {
        let ring_bytes = u64::from(there.nrings) * u64::from(there.ring_bytes());
        let what = format!(
            "members' rings of {ring_bytes} bytes, in blocks of {} bytes",
            there.block_bytes()
        );
        return Err(form(what, "configure these as ring-bytes and block-bytes").into());
    }
    if wanted.snaplen > there.snaplen {
        let what = format!("members' rings for a snaplen of {} at most", there.snaplen);
        return Err(form(what, "configure no more for any group").into());
    }
    Ok(there)
}

/// Gives each port, and each group at it, the places for counters that it had with a daemon before,
/// or free ones.
pub(super) fn find_places(
    lasting: &LastingGroups,
    numbers: &[u32],
    places: &Places,
    ports: &mut [Port],
) -> Result<Sizes, Error> {
    let Roster { ports: old_ports, groups: old_groups, .. } = lasting.roster();
    let mut taken: BTreeSet<u32> = old_ports.keys().copied().collect();
    for port in &mut *ports {
        let is_it = |entry: &PortEntry| {
            entry.interface == port.device.interface.name && entry.hook == port.hook.name()
        };
        let known = old_ports.iter().find(|(_, entry)| is_it(entry)).map(|(number, _)| *number);
        let free = || (0..MOST_PORTS as u32).find(|number| !taken.contains(number));
        let what = "interfaces at hooks, of the configuration before and of this one together";
        let room = || persist::Error::Room { most: MOST_PORTS, what };
        port.list.port = known.or_else(free).ok_or_else(room)?;
        port.list.counts = 0;
        taken.insert(port.list.port);
        port.pins = Some(lasting.links(port.list.port));
    }
    let mut taken: BTreeSet<u32> =
        old_groups.values().flat_map(|group| &group.counts).copied().collect();
    let mut free = MOST_PORTS as u32..MOST_COUNTS as u32;
    for (number, places) in numbers.iter().zip(places) {
        let known = old_groups.get(number).map(|group| &group.counts);
        for (nth, (port, at)) in places.iter().enumerate() {
            let what = "interfaces of all groups, of the configuration before and of this one";
            let room = || persist::Error::Room { most: MOST_COUNTS - MOST_PORTS, what };
            let count = match known.and_then(|counts| counts.get(nth)) {
                Some(count) => *count,
                None => free.find(|count| !taken.contains(count)).ok_or_else(room)?,
            };
            taken.insert(count);
            ports[*port].list.entries[*at as usize].count = count as u16;
        }
    }
    Ok(Sizes { groups: MAX_GROUPS as u32, counts: MOST_COUNTS as u32 })
}

impl Groups {
    /// Returns the roster's entries for the groups and ports that there are now.
    fn entries(&self) -> (BTreeMap<u32, GroupEntry>, BTreeMap<u32, PortEntry>) {
        let gone = |stats: &GroupStats| {
            [stats.captured, stats.captured_bytes, stats.dropped_ring, stats.dropped_other]
        };
        let groups = self.list.iter().map(|group| {
            let entry = GroupEntry {
                name: group.config.name.clone(),
                hook: group.config.hook.name().to_owned(),
                interfaces: group.config.interfaces.clone(),
                steering: group.config.steering.name().to_owned(),
                counts: group.ports.iter().map(|(_, count)| *count).collect(),
                gone: gone(&group.gone),
            };
            (group.number, entry)
        });
        let ports = self.ports.iter().map(|port| {
            let entry = PortEntry {
                interface: port.device.interface.name.clone(),
                hook: port.hook.name().to_owned(),
                told: port.ready_told(),
            };
            (port.list.port, entry)
        });
        (groups.collect(), ports.collect())
    }

    /// Does what of [`Groups::start`] takes privileges, where groups outlive their daemon: programs
    /// stand from here on, and what a daemon before has left is taken over. Where there is no such
    /// daemon, nothing is left behind before [`Groups::start`]. Without lasting groups, nothing is
    /// done.
    ///
    /// # Errors
    /// Where a program cannot be attached, or what is left cannot be taken over.
    pub fn hold(&mut self) -> Result<(), Error> {
        let is_taken_over = self.lasting.as_ref().map(Lasting::is_taken_over);
        let Some(is_taken_over) = is_taken_over.filter(|_| !self.is_held) else { return Ok(()) };
        self.is_held = true;
        if is_taken_over {
            return self.take_over();
        }
        self.begin_ports()?;
        let (groups, ports) = self.entries();
        let Some(lasting) = &self.lasting else { return Ok(()) };
        let mut owned = lasting.roster.lock();
        owned.prepare()?;
        owned.change(|roster| {
            roster.set_geometry(self.geometry);
            (roster.groups, roster.ports) = (groups, ports);
        })?;
        Ok(())
    }

    /// Has all last that is pinned and held, where that is new.
    pub(super) fn begin_to_last(&self) {
        if let Some(lasting) = self.lasting.as_ref().filter(|lasting| !lasting.stays()) {
            lasting.roster.lock().finish(self.accounts());
        }
    }

    /// Goes on with what a daemon before has left.
    pub(super) fn take_over(&mut self) -> Result<(), Error> {
        let Some(lasting) = &self.lasting else { return Ok(()) };
        let shared = lasting.roster.clone();
        let before = shared.lock().roster().clone();
        self.check_told(&before)?;
        let failed = |e: io::Error| kernel_error("take over what a daemon has left", e);
        self.remove_unnamed(&before);
        self.write_down_new(&shared, &before)?;
        let leaving = self.adopt_members(&before).map_err(failed)?;
        for at in 0..self.list.len() {
            self.adopt_group(at, &before)?;
        }
        self.exchange_programs(&before)?;
        kernel::wait_for_running_programs();
        self.dismiss(leaving, &before);

        let (groups, ports) = self.entries();
        let mut owned = shared.lock();
        owned.change(|roster| {
            for (number, group) in groups {
                // What members got who have left meanwhile is written down already.
                let gone = roster.groups.get(&number).map(|group| group.gone);
                roster
                    .groups
                    .insert(number, GroupEntry { gone: gone.unwrap_or_default(), ..group });
            }
            let is_here = |number: &u32| self.list.iter().any(|group| group.number == *number);
            roster.groups.retain(|number, _| is_here(number));
            roster.members.retain(|_, member| is_here(&member.group));
            roster.ports = ports;
        })?;
        owned.finish(self.accounts());
        Ok(())
    }

    /// Refuses other programs than those that are attached, where they cannot be exchanged.
    fn check_told(&self, before: &Roster) -> Result<(), Error> {
        for port in self.ports.iter().filter(|port| !port.hook.can_exchange_filter()) {
            let told = before.ports.get(&port.list.port).map(|entry| entry.told);
            if told.is_some_and(|told| told != port.ready_told()) {
                let hook = port.hook;
                let interface = port.device.interface.name.clone();
                return Err(Error::FixedPrograms { interface, hook });
            }
        }
        Ok(())
    }

    /// Removes maps of members that had not come, or were leaving, when their daemon died.
    fn remove_unnamed(&self, before: &Roster) {
        let is_unnamed = |number: &u32| !before.members.contains_key(number);
        let unnamed: Vec<u32> = self.maps.numbers().into_iter().filter(is_unnamed).collect();
        if !unnamed.is_empty() {
            kernel::wait_for_running_programs();
            // One of a member's maps may be there alone.
            let _ = self.maps.remove(&unnamed);
        }
    }

    /// Writes down groups and ports that were not there before, and prepares their places.
    fn write_down_new(&self, shared: &SharedRoster, before: &Roster) -> Result<(), Error> {
        let failed = |e: io::Error| kernel_error("make room for a group", e);
        let (mut groups, mut ports) = self.entries();
        groups.retain(|number, _| !before.groups.contains_key(number));
        ports.retain(|number, _| !before.ports.contains_key(number));
        for (number, group) in &groups {
            self.maps.clear_group(*number);
            for count in &group.counts {
                self.maps.clear_counts(*count).map_err(failed)?;
            }
        }
        for number in ports.keys() {
            self.maps.clear_counts(*number).map_err(failed)?;
        }
        let mut accounts = self.accounts();
        accounts.retain(|(number, _)| ports.contains_key(number));
        let mut owned = shared.lock();
        owned.note(accounts);
        owned.change(|roster| {
            roster.groups.extend(groups);
            roster.ports.extend(ports);
        })?;
        Ok(())
    }

    /// Takes up the members of groups that are still there. Returns the others, and those that were
    /// leaving.
    fn adopt_members(&mut self, before: &Roster) -> io::Result<Vec<(u32, Member)>> {
        let mut others = Vec::new();
        for (number, entry) in &before.members {
            let parts = match self.maps.find(*number) {
                Ok(maps) => Parts::of(maps)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let at = self.list.iter().position(|group| group.number == entry.group);
            let group = at.unwrap_or(usize::MAX);
            let (mut member, ends) = Member::new(group, entry.weight, &parts, &self.geometry)?;
            if at.is_none() || entry.leaves {
                others.push((*number, member));
                continue;
            }
            member.away = Some(ends);
            self.wakes.set(*number, Some(member.pipe()));
            if let Some(place) = self.places.get_mut(*number as usize) {
                *place = MemberPlace::Taken(member);
            }
        }
        Ok(others)
    }

    /// Takes up a group with its table, its counters and what its configuration says now.
    fn adopt_group(&mut self, at: usize, before: &Roster) -> Result<(), Error> {
        let number = self.list[at].number;
        let Some(entry) = before.groups.get(&number) else {
            return self.set_up(at);
        };
        let group = &mut self.list[at];
        let [captured, captured_bytes, dropped_ring, dropped_other] = entry.gone;
        group.gone = GroupStats {
            captured,
            captured_bytes,
            dropped_ring,
            dropped_other,
            ..GroupStats::default()
        };
        let weights: BTreeMap<_, _> = (0..)
            .zip(&self.places)
            .filter_map(|(number, place)| match place {
                MemberPlace::Taken(member) if member.group == at => {
                    Some((owner(number), member.weight))
                }
                _ => None,
            })
            .collect();
        let steered = entry.steering.parse().unwrap_or(group.config.steering);
        let shares = Shares::adopt(steered, weights.clone(), self.maps.slots(number));
        self.maps.set_shares(number, &shares);
        group.shares = shares;
        let wanted = group.config.steering;
        if wanted != steered {
            let mut shares = Shares::new(wanted);
            for (owner, weight) in &weights {
                shares.add(*owner, *weight);
            }
            self.maps.change_steering(number, wanted, &shares);
            group.shares = shares;
            self.note_steering(number, wanted)?;
        }
        self.set_up(at)
    }

    fn note_steering(&self, number: u32, steering: Steering) -> Result<(), Error> {
        let Some(lasting) = &self.lasting else { return Ok(()) };
        lasting.roster.lock().change(|roster| {
            let entry = roster.groups.entry(number);
            entry.and_modify(|group| steering.name().clone_into(&mut group.steering));
        })?;
        Ok(())
    }

    /// Puts the programs in the place of those that are there, takes away those that nobody needs,
    /// and attaches those that are new.
    fn exchange_programs(&mut self, before: &Roster) -> Result<(), Error> {
        let Some(lasting) = &self.lasting else { return Ok(()) };
        let owned = lasting.roster.lock();
        let was_abandoned = self.control.take_abandoned();
        let (maps, is_old) =
            (&self.maps, |port: &&mut Port| before.ports.contains_key(&port.list.port));
        for port in self.ports.iter_mut().filter(is_old) {
            let number = port.list.port;
            let seen = || Ok(maps.counts(number)?.seen);
            port.take_over(owned.account(number), was_abandoned, seen)?;
        }
        let here: BTreeSet<u32> = self.ports.iter().map(|port| port.list.port).collect();
        for (number, entry) in before.ports.iter().filter(|(number, _)| !here.contains(number)) {
            let _ = owned.links(*number).put_promiscuous(&entry.interface, false);
            let index = Interface::by_name(&entry.interface).ok().flatten();
            let set = Hook::named(&entry.hook).and_then(Hook::program_set);
            let program = self.hub.any_program();
            let program = program.map_err(|e| kernel_error("take programs away", e))?;
            if let Some(set) = set {
                let index = index.map(|interface| interface.index);
                take_away(set.place, index, &owned.links(*number), program.as_fd());
            }
        }
        for port in self.ports.iter_mut().filter(|port| !before.ports.contains_key(&port.list.port))
        {
            port.begin(0)?;
        }
        Ok(())
    }

    /// Lets members go that were leaving, or whose groups are not there any more.
    fn dismiss(&mut self, leaving: Vec<(u32, Member)>, before: &Roster) {
        let Some(lasting) = &self.lasting else { return };
        for number in before.groups.keys() {
            if !self.list.iter().any(|group| group.number == *number) {
                self.maps.clear_group(*number);
            }
        }
        let members = leaving.into_iter().map(|(member, its)| {
            (MemberStats { member, ..MemberStats::default() }, its.rings().to_vec())
        });
        let leaving = Leaving::of(members.collect(), &self.hub, &self.maps, &lasting.roster);
        for stats in leaving.settle().into_stats() {
            let group = before.members.get(&stats.member).map(|entry| entry.group);
            if let Some(group) = self.list.iter_mut().find(|g| Some(g.number) == group) {
                group.gone.add(&stats);
            }
        }
    }

    /// Notes how the ports stand, and that the daemon lives. Called once a second.
    pub fn note(&self) {
        if let Some(lasting) = &self.lasting {
            lasting.roster.lock().note(self.accounts());
        }
    }

    /// Notes what the programs were told that are attached now.
    pub(super) fn note_ports(&self) {
        if let Some(lasting) = &self.lasting {
            let (_, mut ports) = self.entries();
            // Of an interface that is gone, what was told last counts.
            ports.retain(|number, _| {
                self.ports.iter().any(|port| port.list.port == *number && port.is_loaded())
            });
            // It grows by nothing that it has no room for.
            let _ = lasting.roster.lock().change(|roster| roster.ports.extend(ports));
        }
    }

    fn accounts(&self) -> Vec<(u32, Vec<u64>)> {
        self.ports.iter().map(|port| (port.list.port, port.account())).collect()
    }

    /// Leaves programs, rings and counters to the next daemon.
    pub(super) fn leave_behind(&mut self) {
        // What fails here is told by the next daemon.
        self.watch();
        self.note();
        self.ports.iter_mut().for_each(Port::leave);
    }

    /// Returns how often a daemon has taken over what one before it had left.
    pub fn takeovers(&self) -> u64 {
        self.lasting.as_ref().map_or(0, |lasting| lasting.roster.lock().takeovers())
    }

    /// Returns the name of groups that outlive their daemon.
    pub fn lasting_name(&self) -> Option<String> {
        Some(self.lasting.as_ref()?.roster.lock().name().to_owned())
    }

    /// Returns the members that are away.
    pub fn away(&self) -> Vec<Away> {
        let Some(lasting) = &self.lasting else { return Vec::new() };
        let owned = lasting.roster.lock();
        let members = &owned.roster().members;
        let is_away =
            |number: &u32| self.member(*number).is_some_and(|member| member.away.is_some());
        let user = |number: u32| members.get(&number).map_or(0, |entry| entry.user);
        self.numbers().filter(is_away).map(|member| Away { member, user: user(member) }).collect()
    }

    /// Returns the group of a member that is away, where a process of this user names its secret.
    ///
    /// # Errors
    /// Where it does not, or the member is not away: which of both is not told.
    pub fn check_away(&self, number: u32, secret: &str, user: u32) -> Result<String, Error> {
        let entry = self
            .lasting
            .as_ref()
            .and_then(|lasting| lasting.roster.lock().roster().members.get(&number).cloned());
        // Who began as root may have given that up since.
        let is_user = |entry: &MemberEntry| entry.user == user || entry.user == 0;
        let entry = entry.filter(|entry| Secret::is(&entry.secret, secret) && is_user(entry));
        let member = self.member(number).filter(|member| member.away.is_some());
        match (entry, member) {
            (Some(_), Some(member)) => Ok(self.list[member.group].config.name.clone()),
            _ => Err(Error::NotAway(number)),
        }
    }

    /// Takes note that a member which has just come back did not live to know.
    pub fn is_away_again(&mut self, membership: Membership) {
        let Membership { member, rings, data, release, wake, .. } = membership;
        if let Some(MemberPlace::Taken(member)) = self.places.get_mut(member as usize) {
            member.away = Some(Ends { rings, data, release, wake });
        }
    }

    /// Gives a member that was away, and that [`Groups::check_away`] has found to be the right one,
    /// its place again.
    ///
    /// # Errors
    /// Where it is not away any more.
    pub fn come_back(&mut self, number: u32) -> Result<Membership, Error> {
        let secret = self.lasting.as_ref().and_then(|lasting| {
            let owned = lasting.roster.lock();
            Some(Secret(owned.roster().members.get(&number)?.secret.clone()))
        });
        let place = self.places.get_mut(number as usize);
        let Some(MemberPlace::Taken(member)) = place else { return Err(Error::NotAway(number)) };
        let group = member.group;
        let ends: Ends = member.away.take().ok_or(Error::NotAway(number))?;
        Ok(self.membership(number, group, ends, secret))
    }
}
