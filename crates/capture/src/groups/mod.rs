//! Many programs on one interface: groups, their members, and the hook programs that serve them.
//!
//! A [`Groups`] owns the hooks. One program at each interface and hook (a port) hands every packet
//! to all groups that want it, and in each group to the member that steering picks, as a finished
//! pcapng block in that member's own rings (`bpf/serve.bpf.c`). A member is whoever got the four
//! descriptors of a [`Membership`]: it maps them and reads, without any privilege and without
//! asking again.
//!
//! The design answers one question: what could a member do to others?
//! - Each member has maps of its own, which the programs find through maps of maps. A member sees
//!   no one else's packets.
//! - The rings and the blocks are frozen: user space can map them to read only. The kernel goes on
//!   writing.
//! - One word for each ring, the number of released blocks, is the member's to write. The programs
//!   compare with that word and use it for nothing else. A member that lies, or does not read,
//!   loses packets, which are counted to it.
//! - Waking a member is one byte into a pipe that never blocks.
//!
//! Joining and leaving change single words in maps, so no packet meets half of a change. The rings
//! of a member that left are freed when no program can be writing there any more; members that
//! leave together share one wait.

mod change;
mod config;
mod error;
mod maps;
mod member;
mod port;
mod stats;
mod steering;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::InterfaceDescription;

pub use config::{GroupConfig, GroupsConfig};
pub use error::Error;
pub use stats::{GroupStats, GroupsStats, MemberStats, PortStats};
pub use steering::{MAX_WEIGHT, NoSteering, Steering};

use crate::bpf::control::{CONTROL_BYTES, Control};
use crate::explain::explain;
use crate::memory::{available_memory, check_memory, too_little_for};
use crate::ring::{Geometry, RingMemory};
use crate::rules::Images;
use crate::sys::kernel;
use crate::sys::libbpf::map;
use crate::sys::mapping::Mapping;
use crate::{Clock, Event, MAX_RINGS};
use config::{check, ports_of};
use maps::{MAX_MEMBERS, Maps, Part};
use member::{Member, Parts};
use port::{Hub, Port, Sizes};
use steering::{Owner, Shares};

/// The rings of a member, as descriptors and sizes. Whoever holds the descriptors can read the
/// packets.
#[derive(Debug)]
pub struct Membership {
    pub member: u32,
    pub geometry: Geometry,
    /// Bytes from one ring's `struct td_ring` to the next in `rings`.
    pub ring_stride: usize,
    /// Bytes from one ring's blocks to the next ring's in `data`.
    pub data_stride: usize,
    /// Bytes from one ring's `struct td_release` to the next in `release`.
    pub release_stride: usize,
    /// The map of `struct td_ring`s, to be mapped read-only.
    pub rings: OwnedFd,
    /// The map of blocks, to be mapped read-only.
    pub data: OwnedFd,
    /// The map in which the member writes how far it has read.
    pub release: OwnedFd,
    /// The reading end of a pipe, which has a byte in it when there is something new.
    pub wake: OwnedFd,
    /// The interfaces that the packets' interface ids number.
    pub interfaces: Vec<InterfaceDescription>,
}

impl Membership {
    /// Maps the rings, for a member in this process. Each has one reader
    /// ([`crate::ring::RingReader`]).
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(&self) -> io::Result<Vec<Arc<RingMemory>>> {
        let (n, geometry) = (self.geometry.nrings as usize, self.geometry);
        let rings = Arc::new(Mapping::of_fd(self.rings.as_fd(), n * self.ring_stride, false)?);
        let data = Arc::new(Mapping::of_fd(self.data.as_fd(), n * self.data_stride, false)?);
        let release =
            Arc::new(Mapping::of_fd(self.release.as_fd(), n * self.release_stride, true)?);
        let all = RingMemory::set(geometry, &rings, &data, &release);
        Ok(all.into_iter().map(Arc::new).collect())
    }
}

struct Group {
    config: GroupConfig,
    /// The most that the group's snaplen may be set to.
    most: u32,
    shares: Shares,
    /// The group's ports, and where its counters at each port are.
    ports: Vec<(usize, u32)>,
    /// The sums over members that are gone.
    gone: GroupStats,
}

/// Groups and their members, on any number of interfaces.
pub struct Groups {
    list: Vec<Group>,
    ports: Vec<Port>,
    hub: Hub,
    maps: Maps,
    images: Images,
    geometry: Geometry,
    members: Vec<Option<Member>>,
}

impl Groups {
    /// Prepares everything; packets flow from [`Groups::start`] on.
    ///
    /// # Errors
    /// Where an interface or a hook does not work, or what is asked makes no sense.
    pub fn open(config: &GroupsConfig, clock: &Arc<Clock>) -> Result<Self, Error> {
        check(config)?;
        let (mut ports, places) = ports_of(config)?;
        let wanted = ports.iter().map(Port::wanted_rings).max().unwrap_or(1);
        let snaplen = config.groups.iter().map(|group| group.snaplen).max().unwrap_or(1);
        let nrings = wanted.min(MAX_RINGS);
        let geometry = Geometry::new(config.ring_bytes, config.block_bytes, nrings, snaplen)?;

        // As much as one member takes, for the kernel is shown what members' maps are like.
        if let Some(port) = ports.first() {
            check_memory(&port.device.interface.name, geometry.memory_bytes())?;
        }
        let mut counts = ports.len() as u32;
        for (i, port) in ports.iter_mut().enumerate() {
            port.list.port = i as u32;
            port.list.counts = counts;
            counts += port.list.entries.len() as u32;
        }
        let sizes = Sizes { groups: config.groups.len() as u32, counts };
        let hub = Hub::new(geometry, sizes).map_err(|e| match ports.first() {
            Some(port) => explain(&port.device.interface, port.hook, e).into(),
            None => kernel_error("load the programs", e),
        })?;
        let shared = share(&hub, config.groups.len());
        let (maps, mut images, control) =
            shared.map_err(|e| kernel_error("map what the programs share", e))?;
        clock.share_with(control);
        for (i, group) in config.groups.iter().enumerate() {
            maps.set_steering(i, group.steering);
            maps.set_snaplen(i, group.snaplen);
            if let Some(rules) = &group.rules {
                images.set(i as u32, Some(rules))?;
                maps.set_rules(i, true);
            }
        }
        for port in &mut ports {
            port.load(&hub, geometry)?;
        }
        let groups = config.groups.iter().zip(places).map(|(group, places)| Group {
            config: group.clone(),
            most: group.snaplen,
            shares: Shares::new(group.steering),
            ports: places.iter().map(|(port, at)| (*port, ports[*port].list.counts + at)).collect(),
            gone: GroupStats::default(),
        });
        let groups = groups.collect();
        let members = (0..MAX_MEMBERS).map(|_| None).collect();
        Ok(Self { list: groups, ports, hub, maps, images, geometry, members })
    }

    /// Attaches all programs. What the devices have counted before is left out of the statistics.
    ///
    /// # Errors
    /// Where a program cannot be attached; then none is.
    pub fn start(&mut self) -> Result<(), Error> {
        for i in 0..self.ports.len() {
            let port = &mut self.ports[i];
            if let Err(e) = port.device.begin().and_then(|()| port.attach()) {
                self.detach();
                return Err(e.into());
            }
        }
        Ok(())
    }

    fn detach(&mut self) {
        for port in &mut self.ports {
            port.detach();
        }
    }

    /// Detaches all programs and waits until none of them runs. Everything that was captured is
    /// then in the members' rings, in complete blocks, but for rings that are full.
    pub fn stop(&mut self) {
        self.detach();
        kernel::wait_for_running_programs();
        // What could not be closed is in rings whose members do not read.
        let _ = self.flush_all();
    }

    /// Returns whether a group has this name.
    pub fn has_group(&self, name: &str) -> bool {
        self.list.iter().any(|group| group.config.name == name)
    }

    /// Returns the groups' configurations as they are now, in order.
    pub fn configs(&self) -> impl Iterator<Item = &GroupConfig> {
        self.list.iter().map(|group| &group.config)
    }

    fn group(&self, name: &str) -> Result<usize, Error> {
        let found = self.list.iter().position(|group| group.config.name == name);
        found.ok_or_else(|| Error::NoGroup {
            name: name.to_owned(),
            there: self.list.iter().map(|group| group.config.name.clone()).collect(),
        })
    }

    /// Takes a new member into a group: makes rings for it, and gives it its share, which comes
    /// from members that have more than theirs.
    ///
    /// # Errors
    /// Where memory or places are short, or there is no such group.
    pub fn join(&mut self, group: &str, weight: u32) -> Result<Membership, Error> {
        let at = self.group(group)?;
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(Error::Weight(group.to_owned()));
        }
        let free = self.members.iter().position(Option::is_none);
        let number = free.ok_or_else(|| Error::Full(group.to_owned()))? as u32;
        let needed = self.geometry.memory_bytes();
        let too_large = |available: u64| Error::Memory {
            group: group.to_owned(),
            needed_mib: needed.div_ceil(1 << 20),
            available_mib: available >> 20,
        };
        if let Some(available) = too_little_for(needed) {
            return Err(too_large(available));
        }
        let failed = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENOMEM) => too_large(available_memory().unwrap_or(0)),
            _ => kernel_error(&format!("make rings for a member of group {group}"), e),
        };
        let parts = Parts::new(&self.geometry).map_err(failed)?;
        let (member, ends) = Member::new(at, weight, &parts, &self.geometry).map_err(failed)?;
        let inserted = self.maps.insert(number, parts.all());
        // The member's first blocks begin in the clock's present epoch.
        let ready = inserted.and_then(|()| {
            (0..self.geometry.nrings).try_for_each(|ring| self.hub.flush(number, ring, 0))
        });
        if let Err(e) = ready {
            // Some of the maps may have been inserted. Removing the others fails.
            let _ = self.maps.remove(&[number]);
            return Err(failed(e));
        }
        self.members[number as usize] = Some(member);
        self.list[at].shares.add(owner(number), weight);
        self.maps.set_shares(at, &self.list[at].shares);
        Ok(Membership {
            member: number,
            geometry: self.geometry,
            ring_stride: Part::Rings.stride(&self.geometry),
            data_stride: Part::Data.stride(&self.geometry),
            release_stride: Part::Release.stride(&self.geometry),
            rings: ends.rings,
            data: ends.data,
            release: ends.release,
            wake: ends.wake,
            interfaces: self.descriptions(at),
        })
    }

    /// Lets members leave, whether they asked or are gone already. Their shares go to the others at
    /// once. When no program writes to their rings any more, the open blocks are closed, so that a
    /// member that still reads gets its last packets, and the rings are freed. Returns what each
    /// member got.
    pub fn leave(&mut self, members: &[u32]) -> Vec<(u32, MemberStats)> {
        let mut leaving: Vec<u32> = members.to_vec();
        leaving.sort_unstable();
        leaving.dedup();
        leaving.retain(|number| self.member(*number).is_some());
        if leaving.is_empty() {
            return Vec::new();
        }
        for (at, group) in self.list.iter_mut().enumerate() {
            let of_group = |number: &&u32| {
                let member = self.members.get(**number as usize).and_then(Option::as_ref);
                member.is_some_and(|member| member.group == at)
            };
            let owners: Vec<Owner> =
                leaving.iter().filter(of_group).map(|number| owner(*number)).collect();
            if !owners.is_empty() {
                group.shares.remove(&owners);
                self.maps.set_shares(at, &group.shares);
            }
        }
        kernel::wait_for_running_programs();
        let mut left = Vec::new();
        for &number in &leaving {
            // Where its rings are full, the last block stays open, and the member can tell that
            // nobody writes there any more.
            let _ = self.flush_member(number);
            let stats = self.member_stats(number).unwrap_or_default();
            let gone = self.members[number as usize].take();
            if let Some(member) = gone {
                member.wake();
                self.list[member.group].gone.add(&stats);
            }
            left.push((number, stats));
        }
        // Fails only for what is not there.
        let _ = self.maps.remove(&leaving);
        left
    }

    fn member(&self, number: u32) -> Option<&Member> {
        self.members.get(number as usize).and_then(Option::as_ref)
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let there: Vec<u32> =
            (0..).zip(&self.members).filter(|(_, m)| m.is_some()).map(|(n, _)| n).collect();
        there.into_iter()
    }

    /// Closes blocks that have waited since the last call, and wakes the members for which there is
    /// something to read. Called every 20 ms.
    pub fn tick(&mut self) -> io::Result<()> {
        for (number, member) in (0..).zip(&mut self.members) {
            let Some(member) = member else { continue };
            let waiting = member.look();
            for (ring, block) in &waiting {
                self.hub.flush(number, *ring, *block)?;
            }
            if !waiting.is_empty() {
                member.wake();
            }
        }
        Ok(())
    }

    /// Closes every block of a member that holds something, but where its ring is full, and wakes
    /// it.
    pub fn flush_member(&mut self, member: u32) -> io::Result<()> {
        let Some(there) = self.member(member) else { return Ok(()) };
        for (ring, block) in there.open_blocks() {
            self.hub.flush(member, ring, block)?;
        }
        there.wake();
        Ok(())
    }

    /// Closes the open blocks of all members after the clock was stepped, so that no block holds
    /// packets of both times. Blocks that hold nothing yet go over to the new time too.
    pub fn flush_all(&mut self) -> io::Result<()> {
        for number in self.numbers() {
            let Some(member) = self.member(number) else { continue };
            for (ring, memory) in (0..).zip(member.rings()) {
                self.hub.flush(number, ring, memory.open_block().0)?;
            }
            member.wake();
        }
        Ok(())
    }

    /// Looks whether interfaces are gone, or back. Called once a second.
    ///
    /// # Errors
    /// Where programs cannot be attached to an interface that came back. The next call tries again.
    pub fn watch(&mut self) -> Result<Vec<(String, Event)>, Error> {
        let mut events = Vec::new();
        let mut failure = None;
        for port in &mut self.ports {
            let name = port.device.interface.name.clone();
            match port.watch(&self.hub, self.geometry) {
                Ok(event) => events.extend(event.map(|event| (name, event))),
                Err(e) => failure = Some(e),
            }
        }
        // The failure comes again with the next call; an event does not.
        match failure {
            Some(e) if events.is_empty() => Err(e.into()),
            _ => Ok(events),
        }
    }

    /// Reads the devices' counters anew, for [`Groups::stats`].
    pub fn refresh_nic(&mut self) {
        for port in &mut self.ports {
            port.device.refresh();
        }
    }

    /// Returns the memory that the rings of one member take, bytes.
    pub fn member_bytes(&self) -> u64 {
        self.geometry.memory_bytes()
    }

    /// Returns what the user should know that is no error.
    pub fn warnings(&self) -> Vec<String> {
        let wanted = self.ports.iter().map(Port::wanted_rings).max().unwrap_or(1);
        let mut warnings: Vec<String> = self.ports.iter().flat_map(Port::warnings).collect();
        if self.geometry.nrings < wanted {
            warnings.push(format!(
                "{wanted} queues or CPUs share {} rings of each member; ring-bytes of {} give each its own",
                self.geometry.nrings,
                u64::from(wanted * Geometry::MIN_BLOCKS) * u64::from(self.geometry.block_bytes())
            ));
        }
        warnings
    }

    /// Returns the descriptions of the interfaces of a group's packets.
    fn descriptions(&self, at: usize) -> Vec<InterfaceDescription> {
        let group = &self.list[at];
        let describe = |port: &Port| {
            let interface = &port.device.interface;
            InterfaceDescription {
                link: interface.link.unwrap_or(LinkType::ETHERNET),
                snaplen: group.most,
                name: interface.name.clone(),
                description: format!("hook {}, group {}", port.hook, group.config.name),
                filter: group.config.filter.clone(),
                hardware: interface.kind.clone(),
                mac: interface.mac,
            }
        };
        group.ports.iter().map(|(port, _)| describe(&self.ports[*port])).collect()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Returns what a slot holds for a member.
fn owner(member: u32) -> Owner {
    member as Owner + 1
}

fn kernel_error(what: &str, source: io::Error) -> Error {
    Error::Kernel { what: what.to_owned(), source }
}

/// Finds what the programs share with user space.
fn share(hub: &Hub, groups: usize) -> io::Result<(Maps, Images, Control)> {
    let object = hub.object();
    let control = map(object, ".data.control")?;
    let control = Control::new(Arc::new(Mapping::of_fd(control.as_fd(), CONTROL_BYTES, true)?));
    Ok((Maps::of(object, groups)?, Images::of(object)?, control))
}
