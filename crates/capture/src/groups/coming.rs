//! How do members come and go while others get their packets?
//!
//! Making a member's rings takes the kernel milliseconds, and before rings are taken away, every
//! program that may still write there must have ended. Who looks after the groups has no time for
//! either. So coming and going have three steps each: the first and the last change the groups, and
//! take no time; the one between works on the kernel alone, and any thread may do it. Members that
//! leave together wait once.

use std::io;
use std::sync::Arc;

use super::hub::Hub;
use super::lasting::{Secret, SharedRoster};
use super::maps::{Maps, Part};
use super::member::{Ends, Member, Parts};
use super::stats::member_stats;
use super::steering::{MAX_WEIGHT, Owner};
use super::{Error, GroupConfig, Groups, MemberPlace, MemberStats, Membership, kernel_error};
use crate::helper::Helper;
use crate::memory::{available_memory, too_little_for};
use crate::ring::{Geometry, RingMemory};
use crate::sys::kernel;

/// A member that is to come, and has a place that is kept for it. Either [`Joining::make`] and then
/// [`Groups::finish_join`] must follow, whatever becomes of the rings, or [`Groups::give_up`].
pub struct Joining {
    number: u32,
    group: usize,
    name: String,
    weight: u32,
    user: u32,
    geometry: Geometry,
    maps: Arc<Maps>,
    helper: Option<Arc<Helper>>,
}

/// A member whose rings are made, or cannot be.
pub struct Joined {
    number: u32,
    user: u32,
    made: Result<(Member, Ends), Error>,
}

/// Members that get no packets any more, but for those on their way.
pub struct Leaving {
    members: Vec<(MemberStats, Vec<RingMemory>)>,
    hub: Arc<Hub>,
    maps: Arc<Maps>,
    roster: Option<SharedRoster>,
}

/// Members whose rings no program reaches any more.
pub struct Left {
    members: Vec<MemberStats>,
}

impl Joining {
    /// Makes the member's rings, and lets the programs reach them.
    pub fn make(self) -> Joined {
        Joined { number: self.number, user: self.user, made: self.rings() }
    }

    /// Returns the name of the group that the member is to be of.
    pub fn group(&self) -> &str {
        &self.name
    }

    fn rings(&self) -> Result<(Member, Ends), Error> {
        let needed = self.geometry.memory_bytes();
        let too_large = |available: u64| Error::Memory {
            group: self.name.clone(),
            needed_mib: needed.div_ceil(1 << 20),
            available_mib: available >> 20,
        };
        if let Some(available) = too_little_for(needed) {
            return Err(too_large(available));
        }
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENOMEM) => too_large(available_memory().unwrap_or(0)),
            _ => kernel_error(&format!("make rings for a member of group {}", self.name), e),
        };
        let parts = match &self.helper {
            Some(helper) => Parts::by(helper),
            None => Parts::new(&self.geometry),
        };
        let parts = parts.map_err(failed)?;
        let made = Member::new(self.group, self.weight, &parts, &self.geometry).map_err(failed)?;
        if let Err(e) = self.maps.insert(self.number, parts.all()) {
            // Some of the maps may have been inserted. Removing the others fails.
            let _ = self.maps.remove(&[self.number]);
            return Err(failed(e));
        }
        Ok(made)
    }
}

impl Left {
    /// Returns what each member got.
    pub(super) fn into_stats(self) -> Vec<MemberStats> {
        self.members
    }

    /// Returns the members' numbers.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|stats| stats.member)
    }
}

impl Leaving {
    /// Has members leave that never came back to this daemon.
    pub(super) fn of(
        members: Vec<(MemberStats, Vec<RingMemory>)>,
        hub: &Arc<Hub>,
        maps: &Arc<Maps>,
        roster: &SharedRoster,
    ) -> Self {
        let (hub, maps, roster) = (hub.clone(), maps.clone(), Some(roster.clone()));
        Self { members, hub, maps, roster }
    }

    /// Lets other members leave together with these.
    pub fn add(&mut self, mut others: Self) {
        self.members.append(&mut others.members);
    }

    /// Waits until no program writes to the members' rings any more, closes the blocks that are
    /// open there, so that a member that still reads gets its last packets, and takes the rings
    /// from the programs.
    pub fn settle(self) -> Left {
        let Self { mut members, hub, maps, roster } = self;
        if !members.is_empty() {
            kernel::wait_for_running_programs();
        }
        for (stats, rings) in &mut members {
            for (ring, memory) in (0..).zip(&*rings) {
                let (block, bytes) = memory.open_block();
                if bytes > 0 {
                    // Where its ring is full, the last block stays open, and the member can tell
                    // that nobody writes there any more.
                    let _ = hub.flush(stats.member, ring, block);
                }
            }
            // Where the kernel does not say what a member got, that is not told.
            let _ = member_stats(stats, &maps, rings);
        }
        let members: Vec<MemberStats> = members.into_iter().map(|(stats, _)| stats).collect();
        if let Some(roster) = &roster {
            roster.have_left(&members);
        }
        let numbers: Vec<u32> = members.iter().map(|stats| stats.member).collect();
        // Fails only for what is not there.
        let _ = maps.remove(&numbers);
        Left { members }
    }
}

impl Groups {
    /// Takes a new member into a group: makes rings for it, and gives it its share, which comes
    /// from members that have more than theirs.
    ///
    /// # Errors
    /// Where memory or places are short, or there is no such group.
    pub fn join(&mut self, group: &str, weight: u32) -> Result<Membership, Error> {
        let joining = self.begin_join(group, weight, 0)?;
        self.finish_join(joining.make())
    }

    /// Begins to take a new member, a process of this user, into a group: keeps a place for it.
    ///
    /// # Errors
    /// Where places are short, or there is no such group.
    pub fn begin_join(&mut self, group: &str, weight: u32, user: u32) -> Result<Joining, Error> {
        let at = self.group(group)?;
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(Error::Weight(group.to_owned()));
        }
        let GroupConfig { max_members, max_memory, .. } = self.list[at].config;
        let by_memory = max_memory.map(|bytes| bytes / self.geometry.memory_bytes());
        let by_memory = by_memory.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX);
        let most = max_members.min(by_memory);
        let there = self.places.iter().filter(|place| place.group() == Some(at)).count();
        if there >= most as usize {
            return Err(Error::GroupFull { group: group.to_owned(), most });
        }
        let free = self.places.iter().position(|place| matches!(place, MemberPlace::Free));
        let free = free.ok_or_else(|| Error::Full(group.to_owned()))?;
        self.places[free] = MemberPlace::Kept(at);
        Ok(Joining {
            number: free as u32,
            group: at,
            name: group.to_owned(),
            weight,
            user,
            geometry: self.geometry,
            maps: self.maps.clone(),
            helper: self.helper.clone(),
        })
    }

    /// Gives the place that was kept for a member to others.
    #[expect(clippy::needless_pass_by_value, reason = "nobody may join by it afterwards")]
    pub fn give_up(&mut self, joining: Joining) {
        self.places[joining.number as usize] = MemberPlace::Free;
    }

    /// Gives a new member its share, or its place back to others where it has no rings.
    ///
    /// # Errors
    /// Where the rings could not be made.
    pub fn finish_join(&mut self, joined: Joined) -> Result<Membership, Error> {
        let Joined { number, user, made } = joined;
        let (member, ends) =
            made.inspect_err(|_| self.places[number as usize] = MemberPlace::Free)?;
        let (at, weight) = (member.group, member.weight);
        let secret = match self.lasting.as_ref().map(|lasting| lasting.roster.clone()) {
            Some(roster) => {
                let entry = (self.list[at].number, weight, user);
                let joined = roster.has_joined(number, entry).inspect_err(|_| {
                    self.places[number as usize] = MemberPlace::Free;
                    let _ = self.maps.remove(&[number]);
                });
                Some(joined?)
            }
            None => None,
        };
        self.wakes.set(number, Some(member.pipe()));
        // The member's first blocks begin in the clock's present epoch. A flush that fails leaves
        // the epoch as it is, and the next packets' times with it.
        for ring in 0..self.geometry.nrings {
            let _ = self.hub.flush(number, ring, 0);
        }
        self.places[number as usize] = MemberPlace::Taken(member);
        self.list[at].shares.add(owner(number), weight);
        self.maps.set_shares(self.list[at].number, &self.list[at].shares);
        Ok(self.membership(number, at, ends, secret))
    }

    pub(super) fn membership(
        &self,
        member: u32,
        group: usize,
        ends: Ends,
        secret: Option<Secret>,
    ) -> Membership {
        Membership {
            member,
            geometry: self.geometry,
            ring_stride: Part::Rings.stride(&self.geometry),
            data_stride: Part::Data.stride(&self.geometry),
            release_stride: Part::Release.stride(&self.geometry),
            rings: ends.rings,
            data: ends.data,
            release: ends.release,
            wake: ends.wake,
            interfaces: self.descriptions(group),
            secret: secret.map(Secret::into_text),
        }
    }

    /// Lets members leave, whether they asked or are gone already. Their shares go to the others at
    /// once. When no program writes to their rings any more, the open blocks are closed, and the
    /// rings are freed. Returns what each member got.
    pub fn leave(&mut self, members: &[u32]) -> Vec<(u32, MemberStats)> {
        let leaving = self.begin_leave(members);
        self.finish_leave(leaving.settle())
    }

    /// Gives the shares of members that leave to the others.
    pub fn begin_leave(&mut self, members: &[u32]) -> Leaving {
        let mut leaving: Vec<u32> = members.to_vec();
        leaving.sort_unstable();
        leaving.dedup();
        leaving.retain(|number| self.member(*number).is_some());
        let roster = self.lasting.as_ref().map(|lasting| lasting.roster.clone());
        if let Some(roster) = &roster {
            roster.leave(&leaving);
        }
        for (at, group) in self.list.iter_mut().enumerate() {
            let of_group = |number: &&u32| self.places[**number as usize].group() == Some(at);
            let owners: Vec<Owner> =
                leaving.iter().filter(of_group).map(|number| owner(*number)).collect();
            if !owners.is_empty() {
                group.shares.remove(&owners);
                self.maps.set_shares(group.number, &group.shares);
            }
        }
        let rings = |number: u32| {
            let member = self.member(number)?;
            Some((self.stats_of(number, member), member.rings().to_vec()))
        };
        Leaving {
            members: leaving.into_iter().filter_map(rings).collect(),
            hub: self.hub.clone(),
            maps: self.maps.clone(),
            roster,
        }
    }

    /// Frees the places of members that have left, and adds what they got to what their groups
    /// did. Returns what each member got.
    pub fn finish_leave(&mut self, left: Left) -> Vec<(u32, MemberStats)> {
        let mut all = Vec::new();
        for stats in left.members {
            let number = stats.member;
            self.wakes.set(number, None);
            let place = std::mem::replace(&mut self.places[number as usize], MemberPlace::Free);
            if let MemberPlace::Taken(member) = place {
                member.wake();
                self.list[member.group].gone.add(&stats);
            }
            all.push((number, stats));
        }
        all
    }
}

/// Returns what a slot holds for a member.
pub(super) fn owner(member: u32) -> Owner {
    member as Owner + 1
}
