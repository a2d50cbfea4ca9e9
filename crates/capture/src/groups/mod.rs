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
mod coming;
mod config;
mod error;
mod filtering;
mod hub;
mod lasting;
mod maps;
mod member;
mod port;
mod stats;
mod steering;
mod wakes;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::InterfaceDescription;

pub use coming::{Joined, Joining, Leaving, Left};
pub use config::{GroupConfig, GroupsConfig};
pub use error::Error;
pub use filtering::{FilterChange, PreparedFilter};
pub use lasting::Away;
pub(crate) use maps::fill_bytes;
pub use stats::{GroupStats, GroupsStats, MemberStats, PortStats};
pub use steering::{MAX_WEIGHT, NoSteering, Steering};

use crate::bpf::control::{CONTROL_BYTES, Control};
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::{Compiler, check_filter};
use crate::helper::wire::{Answer, Fault, Request};
use crate::helper::{Helper, Privileged, Seat};
use crate::memory::check_memory;
use crate::persist::LastingGroups;
use crate::ring::{Geometry, RingMemory};
use crate::rules::Images;
use crate::sys::kernel;
use crate::sys::libbpf::map;
use crate::sys::mapping::Mapping;
use crate::{Clock, Event, MAX_RINGS, Unseen};
use config::{Places, check, ports_of};
use hub::{CONTROL, Hub, PinnedMaps, Sizes};
use lasting::{Lasting, SharedRoster};
pub use maps::MAX_MEMBERS;
use maps::Maps;
use member::{Member, Parts};
use port::Port;
use steering::Shares;
use wakes::Wakes;

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
    /// The word by which the next daemon knows the member, where groups outlive their daemon.
    pub secret: Option<String>,
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
    /// The number by which programs know the group.
    number: u32,
    /// The most that the group's snaplen may be set to.
    most: u32,
    shares: Shares,
    /// The group's ports, and where its counters at each port are.
    ports: Vec<(usize, u32)>,
    /// The sums over members that are gone.
    gone: GroupStats,
}

/// What a look at all interfaces has found.
#[derive(Debug, Default)]
pub struct Watched {
    /// What happened to interfaces, by name.
    pub events: Vec<(String, Event)>,
    /// Why programs cannot be attached to an interface that came back, or from which somebody has
    /// detached them. The next look tries again.
    pub faults: Vec<Error>,
}

/// Groups and their members, on any number of interfaces.
pub struct Groups {
    list: Vec<Group>,
    ports: Vec<Port>,
    hub: Arc<Hub>,
    maps: Arc<Maps>,
    control: Control,
    wakes: Wakes,
    images: Images,
    geometry: Geometry,
    /// The places of members, as many as there can be; a member's number is that of its place.
    places: Vec<MemberPlace>,
    /// The helper, where what takes privileges is its affair and not this process's.
    helper: Option<Arc<Helper>>,
    /// What outlives the daemon, if anything does.
    lasting: Option<Lasting>,
    /// Whether [`Groups::hold`] was called.
    is_held: bool,
    /// Whether all rings were empty at the last look.
    is_quiet: bool,
}

/// A place for a member.
enum MemberPlace {
    Free,
    /// Kept for a member of this group, whose rings are being made.
    Kept(usize),
    Taken(Member),
}

impl MemberPlace {
    fn group(&self) -> Option<usize> {
        match self {
            Self::Free => None,
            Self::Kept(group) => Some(*group),
            Self::Taken(member) => Some(member.group),
        }
    }
}

impl Groups {
    /// Prepares everything; packets flow from [`Groups::start`] on.
    ///
    /// # Errors
    /// Where an interface or a hook does not work, or what is asked makes no sense.
    pub fn open(config: &GroupsConfig, clock: &Arc<Clock>) -> Result<Self, Error> {
        Self::open_at(config, clock, None)
    }

    /// Prepares groups that outlive this process. What a daemon before has left goes on meanwhile:
    /// [`Groups::start`] takes it over.
    ///
    /// # Errors
    /// As [`Groups::open`], and where what is left cannot be taken over.
    pub fn open_lasting(
        config: &GroupsConfig,
        clock: &Arc<Clock>,
        lasting: LastingGroups,
    ) -> Result<Self, Error> {
        Self::open_at(config, clock, Some(lasting))
    }

    /// Returns the rings that each member would have. Nothing is loaded or attached.
    ///
    /// # Errors
    /// Where an interface or what is wanted of it cannot be, as far as that is known beforehand.
    pub fn foresee(config: &GroupsConfig) -> Result<Geometry, Error> {
        check(config)?;
        let numbers: Vec<u32> = (0..config.groups.len() as u32).collect();
        let (ports, places) = ports_of(config, &numbers, &Arc::default())?;
        for (group, places) in config.groups.iter().zip(&places) {
            let Some(expression) = &group.filter else { continue };
            for (port, _) in places {
                let compiled = Compiler::new(&ports[*port].device.interface).compile(expression);
                compiled.map_err(|e| with_groups(config, e))?;
            }
        }
        prepare(config, &ports, &places)
    }

    fn open_at(
        config: &GroupsConfig,
        clock: &Arc<Clock>,
        lasting: Option<LastingGroups>,
    ) -> Result<Self, Error> {
        check(config)?;
        let numbers = match &lasting {
            Some(lasting) => lasting.numbers(&config.keys())?,
            None => (0..config.groups.len() as u32).collect(),
        };
        let (mut ports, places) = ports_of(config, &numbers, clock)?;
        let mut geometry = prepare(config, &ports, &places)?;
        let mut is_new = true;
        if let Some(lasting) = lasting.as_ref().filter(|lasting| lasting.is_taken_over()) {
            geometry = lasting::geometry(lasting, config, geometry)?;
            is_new = false;
        }

        // As much as one member takes, for the kernel is shown what members' maps are like.
        if let Some(port) = ports.first().filter(|_| is_new) {
            check_memory(&port.device.interface.name, geometry.memory_bytes())?;
        }
        let sizes = match &lasting {
            Some(lasting) => lasting::find_places(lasting, &numbers, &places, &mut ports)?,
            None => count_places(&mut ports, config.groups.len()),
        };
        let pinned = lasting.as_ref().map(|lasting| PinnedMaps {
            dir: lasting.dir().to_owned(),
            left: lasting.is_taken_over(),
        });
        let hub = Hub::new(geometry, sizes, pinned.as_ref()).map_err(|e| match ports.first() {
            Some(port) => explain(&port.device.interface, port.hook, e).into(),
            None => kernel_error("load the programs", e),
        })?;
        let shared = share(&hub, sizes.groups as usize);
        let (maps, images, control) =
            shared.map_err(|e| kernel_error("map what the programs share", e))?;
        if is_new {
            control.draw_seed();
            clock.share_with(control.clone());
        } else {
            clock.adopt(control.clone());
        }
        for port in &mut ports {
            port.load(&hub, geometry).map_err(|e| with_groups(config, e))?;
        }
        let list = list_of(config, &numbers, &places, &ports);
        let places = (0..MAX_MEMBERS).map(|_| MemberPlace::Free).collect();
        let (hub, maps, wakes) = (Arc::new(hub), Arc::new(maps), Wakes::new());
        let (helper, lasting) = (None, lasting.map(Lasting::new));
        let mut groups = Self {
            list,
            ports,
            hub,
            maps,
            control,
            wakes,
            images,
            geometry,
            places,
            helper,
            lasting,
            is_held: false,
            is_quiet: false,
        };
        if is_new {
            for at in 0..groups.list.len() {
                groups.set_up(at)?;
            }
        }
        Ok(groups)
    }

    /// Divides from this process, which must have no other thread, the helper that does from now on
    /// what takes privileges. The helper runs `begin` before anything else, and `end` when all
    /// programs are detached, but for those of groups that outlive their daemon. For these
    /// [`Groups::hold`] comes before.
    ///
    /// # Errors
    /// As fork(2), and `EBUSY` where there are other threads.
    pub fn divide(
        &mut self,
        begin: impl FnOnce() -> io::Result<()>,
        end: impl FnOnce(),
    ) -> io::Result<Arc<Helper>> {
        let lasting = self.lasting.as_ref().map(|lasting| lasting.roster.clone());
        let stays = || lasting.as_ref().is_some_and(SharedRoster::stays);
        let end = || {
            lasting.iter().for_each(SharedRoster::clean);
            end();
        };
        let helper = Helper::divide_from(self, begin, stays, end)?;
        for (number, port) in (0..).zip(&mut self.ports) {
            port.is_helped(&helper, number);
        }
        self.images.places = Box::new(Seat { helper: helper.clone(), interface: 0 });
        self.helper = Some(helper.clone());
        Ok(helper)
    }

    /// Returns whether what takes privileges has to wait for programs that are being loaded.
    pub fn is_busy(&self) -> bool {
        self.helper.as_ref().is_some_and(|helper| helper.is_busy())
    }

    /// Has the programs treat a group as its configuration says.
    fn set_up(&mut self, at: usize) -> Result<(), Error> {
        let Group { config, number, .. } = &self.list[at];
        self.maps.set_steering(*number, config.steering);
        self.maps.set_snaplen(*number, config.snaplen);
        self.maps.set_paused(*number, false);
        let rules = config.rules.clone();
        if rules.is_some() || self.maps.has_rules(*number) {
            self.put_rules(at, rules.as_ref())?;
        }
        Ok(())
    }

    /// Attaches all programs. What the devices have counted before is left out of the statistics.
    ///
    /// # Errors
    /// Where a program cannot be attached; then none is.
    pub fn start(&mut self) -> Result<(), Error> {
        let started = self.wakes.start(self.hub.object());
        started.map_err(|e| kernel_error("begin to wake members", e))?;
        if self.lasting.is_none() {
            return self.begin_ports();
        }
        self.hold()?;
        self.begin_to_last();
        Ok(())
    }

    fn begin_ports(&mut self) -> Result<(), Error> {
        for i in 0..self.ports.len() {
            let port = &mut self.ports[i];
            let seen = self.maps.counts(port.list.port).map_or(0, |counts| counts.seen);
            if let Err(e) = port.begin(seen) {
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
    /// then in the members' rings, in complete blocks, but for rings that are full. Groups that
    /// outlive the daemon are left as they are.
    pub fn stop(&mut self) {
        if self.lasting.is_some() {
            return self.leave_behind();
        }
        // What fails here is only what the hooks would have seen from now on.
        self.watch();
        self.detach();
        kernel::wait_for_running_programs();
        for port in &mut self.ports {
            if let Ok(counts) = self.maps.counts(port.list.port) {
                port.end(counts.seen);
            }
        }
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

    fn member(&self, number: u32) -> Option<&Member> {
        match self.places.get(number as usize)? {
            MemberPlace::Taken(member) => Some(member),
            MemberPlace::Free | MemberPlace::Kept(_) => None,
        }
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.places.iter().filter_map(|place| match place {
            MemberPlace::Taken(member) => Some(member),
            MemberPlace::Free | MemberPlace::Kept(_) => None,
        })
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let there =
            (0..).zip(&self.places).filter(|(_, place)| matches!(place, MemberPlace::Taken(_)));
        let there: Vec<u32> = there.map(|(number, _)| number).collect();
        there.into_iter()
    }

    /// Has `bell` called when a packet comes while the daemon rests ([`Groups::rest`]). To be said
    /// before the start.
    pub fn wake_by(&mut self, bell: Box<dyn Fn() + Send>) {
        self.wakes.wake_daemon_by(bell);
    }

    /// Begins to rest where the last look found all rings empty, if they still are: until the next
    /// packet, of which the programs tell, [`Groups::tick`] has nothing to do. Returns whether it
    /// does. Programs that outlive daemons may be those of one that did not rest.
    pub fn rest(&mut self) -> bool {
        if !self.is_quiet || self.lasting.is_some() {
            return false;
        }
        self.control.set_rests(true);
        // A packet that this look does not see was reserved behind it, which was a full barrier, so
        // its program sees that the daemon rests.
        fence(SeqCst);
        let is_quiet = self.members().all(Member::is_empty);
        if !is_quiet {
            self.control.set_rests(false);
        }
        is_quiet
    }

    /// Closes blocks that have waited since the last call, and wakes the members that they belong
    /// to. Called every 20 ms, but where the daemon rests.
    pub fn tick(&mut self) -> io::Result<()> {
        let is_quiet = self.members().all(Member::is_empty);
        self.is_quiet = is_quiet;
        for (number, place) in (0..).zip(&mut self.places) {
            let MemberPlace::Taken(member) = place else { continue };
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

    /// Looks whether interfaces are gone, or back, and whether the programs stand where they were
    /// put; attaches again those that do not. Called once a second; [`Groups::take_unseen`] then
    /// has what was missed.
    pub fn watch(&mut self) -> Watched {
        let mut watched = Watched::default();
        let was_abandoned = self.control.take_abandoned();
        let there = self.ports.iter().filter(|port| !port.is_gone());
        let mut hooked: Vec<_> =
            there.map(|port| (port.hook, port.device.interface.index)).collect();
        for port in &mut self.ports {
            let name = port.device.interface.name.clone();
            let (maps, own) = (&self.maps, port.list.port);
            let seen = || Ok(maps.counts(own)?.seen);
            let at_hook = hooked.iter().filter(|(hook, _)| *hook == port.hook);
            let taken: Vec<u32> = at_hook.map(|(_, index)| *index).collect();
            match port.watch(&self.hub, self.geometry, was_abandoned, &taken, &seen) {
                Ok(event) => {
                    if event == Some(Event::Back) {
                        hooked.push((port.hook, port.device.interface.index));
                    }
                    watched.events.extend(event.map(|event| (name, event)));
                }
                Err(e) => watched.faults.push(e.into()),
            }
        }
        if watched.events.iter().any(|(_, event)| *event == Event::Back) {
            self.note_ports();
        }
        watched
    }

    /// Takes what went unseen since the last call, with the names of the interfaces.
    pub fn take_unseen(&mut self) -> Vec<(String, Unseen)> {
        let mut unseen = Vec::new();
        for port in &mut self.ports {
            let name = &port.device.interface.name.clone();
            unseen.extend(port.take_unseen().into_iter().map(|unseen| (name.clone(), unseen)));
        }
        unseen
    }

    /// Returns the descriptor of a program of the first port, for trials of it.
    pub(crate) fn program(&self, which: Program) -> io::Result<OwnedFd> {
        let port = self.ports.first().ok_or(io::ErrorKind::NotFound)?;
        port.program(which)
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
        // The next daemon may keep more of a packet.
        let snaplen = if self.lasting.is_some() { self.geometry.snaplen } else { group.most };
        let describe = |port: &Port| {
            let interface = &port.device.interface;
            InterfaceDescription {
                link: interface.link.unwrap_or(LinkType::ETHERNET),
                snaplen,
                name: interface.name.clone(),
                description: format!(
                    "hook {}, group {}, clock {}",
                    port.hook,
                    group.config.name,
                    port.stamped_by()
                ),
                filter: group.config.filter.clone(),
                hardware: interface.kind.clone(),
                mac: interface.mac,
            }
        };
        group.ports.iter().map(|(port, _)| describe(&self.ports[*port])).collect()
    }
}

impl Privileged for Groups {
    fn forget(&mut self) {
        self.images.forget();
        self.ports.iter_mut().for_each(Port::forget_expressions);
        // Members that were taken over before the division: their memory is to go when they leave.
        self.places.iter_mut().for_each(|place| *place = MemberPlace::Free);
        self.wakes = Wakes::new();
    }

    fn help(&mut self, at: usize, request: &Request) -> Option<Result<Answer, Fault>> {
        let places = &mut self.images.places;
        Some(match request {
            Request::MakeMember => Parts::new(&self.geometry)
                .map(|parts| Answer { value: 0, fds: parts.into_fds() })
                .map_err(Fault::Place),
            Request::MakeRules { size } => places
                .make(*size as usize)
                .map(|fd| Answer { value: 0, fds: vec![fd] })
                .map_err(Fault::Place),
            Request::MakeFlows => {
                places.make_flows().map(|()| Answer::default()).map_err(Fault::Place)
            }
            Request::PutRules { size } => places
                .put(at as u32, size.map(|size| size as usize))
                .map(|()| Answer::default())
                .map_err(Fault::Place),
            _ => self.ports.get_mut(at)?.help(&self.hub, self.geometry, request),
        })
    }

    fn detach(&mut self, stays: bool) {
        self.ports.iter_mut().for_each(if stays { Port::leave } else { Port::detach_here });
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if self.lasting.as_ref().is_some_and(Lasting::stays) {
            self.ports.iter_mut().for_each(Port::leave);
        } else {
            self.detach();
        }
    }
}

/// Checks filters, and returns the rings that each member has.
fn prepare(config: &GroupsConfig, ports: &[Port], places: &Places) -> Result<Geometry, Error> {
    for (group, places) in config.groups.iter().zip(places) {
        if let Some(expression) = &group.filter {
            let its = places.iter().map(|(port, _)| &ports[*port].device.interface);
            let told = |why| Error::Filter { groups: group.name.clone(), why: Box::new(why) };
            check_filter(expression, its).map_err(told)?;
        }
    }
    let wanted = ports.iter().map(Port::wanted_rings).max().unwrap_or(1);
    let snaplen = config.groups.iter().map(|group| group.snaplen).max().unwrap_or(1);
    let nrings = wanted.min(MAX_RINGS);
    let ring_bytes = config.ring_bytes.unwrap_or_else(|| default_ring_bytes(nrings));
    Ok(Geometry::new(ring_bytes, config.block_bytes, nrings, snaplen)?)
}

/// Gives each port, and each group at it, a place for its counters.
fn count_places(ports: &mut [Port], groups: usize) -> Sizes {
    let mut counts = ports.len() as u32;
    for (i, port) in ports.iter_mut().enumerate() {
        port.list.port = i as u32;
        port.list.counts = counts;
        counts += port.list.entries.len() as u32;
    }
    Sizes { groups: groups as u32, counts }
}

/// Returns the groups, which have no members yet.
fn list_of(config: &GroupsConfig, numbers: &[u32], places: &Places, ports: &[Port]) -> Vec<Group> {
    let count = |(port, at): &(usize, u32)| {
        let list = &ports[*port].list;
        (*port, list.counts + u32::from(list.entries[*at as usize].count))
    };
    let groups = config.groups.iter().zip(places).zip(numbers);
    let groups = groups.map(|((group, places), number)| Group {
        config: group.clone(),
        number: *number,
        most: group.snaplen,
        shares: Shares::new(group.steering),
        ports: places.iter().map(count).collect(),
        gone: GroupStats::default(),
    });
    groups.collect()
}

/// Returns the memory of a member's rings where nobody has said how much: for each ring what
/// 1 Gbit/s brings in more than a look of the daemon (20 ms, 2.6 MB of frames of 1514 bytes) and
/// the block that is being filled, as one queue may get all that comes.
fn default_ring_bytes(nrings: u32) -> u64 {
    const EACH: u64 = 4 << 20;
    const LEAST: u64 = 16 << 20;
    const MOST: u64 = 128 << 20;
    (u64::from(nrings) * EACH).clamp(LEAST, MOST)
}

/// Says which groups have a filter that is refused.
fn with_groups(config: &GroupsConfig, e: crate::Error) -> Error {
    use crate::Error::{Filter, LargeFilter};
    let (Filter { expression, .. } | LargeFilter { expression, .. }) = &e else {
        return e.into();
    };
    let theirs = config.groups.iter().filter(|group| group.filter.as_ref() == Some(expression));
    let groups: Vec<&str> = theirs.map(|group| group.name.as_str()).collect();
    Error::Filter { groups: groups.join(", "), why: Box::new(e) }
}

fn kernel_error(what: &str, source: io::Error) -> Error {
    Error::Kernel { what: what.to_owned(), source }
}

/// Finds what the programs share with user space.
fn share(hub: &Hub, groups: usize) -> io::Result<(Maps, Images, Control)> {
    let object = hub.object();
    let control = map(object, CONTROL)?;
    let control = Control::new(Arc::new(Mapping::of_fd(control.as_fd(), CONTROL_BYTES, true)?));
    Ok((Maps::of(object, groups)?, Images::of(object)?, control))
}
