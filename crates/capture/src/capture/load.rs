//! Can a hook do what is asked? Which programs are loaded for it, with what parameters, and how do
//! rules get into them?

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use tapdeck_packet::link::LinkType;

use super::Taking;
use super::kernel_hook::KernelHook;
use crate::attach::Links;
use crate::bpf::driver::{Questions, load_best};
use crate::bpf::loaded::{HandedOver, Loaded};
use crate::bpf::params::{Params, most_direct};
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::explain_load;
use crate::filter::splice::Filters;
use crate::flows;
use crate::helper::Seat;
use crate::helper::wire::{Attached, Fault, Made};
use crate::hook::{ProgramSet, RingUnit, Sockets, TakenBy};
use crate::interface::Interface;
use crate::persist::{self, Place, fnv};
use crate::ring::{Geometry, GeometryError, Reader, RingMemory};
use crate::ring_count::wanted_rings;
use crate::rules::{self, Compiled, Images};
use crate::socket::SocketHook;
use crate::stamps::why_each_packet;
use crate::{Clock, Config, Deliver, Error, MAX_RINGS, Overload, Stamps};

/// Refuses what the hook cannot do with packets.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let hook = config.hook;
    if config.rules.is_some() && !hook.takes_rules() {
        return Err(Error::NoRules(hook));
    }
    if matches!(config.overload, Overload::Shed { .. }) && !hook.can_shed() {
        return Err(Error::NoShedding(hook));
    }
    if config.cutoff.is_some() && !hook.takes_rules() {
        return Err(Error::NoCutoff(hook));
    }
    if hook.can(config.deliver) {
        return Ok(());
    }
    let why = match config.deliver {
        Deliver::Pass => "takes packets away from the host: it needs --deliver consume",
        Deliver::Consume => {
            "sees copies of packets and cannot consume them: take xdp, tcx or netfilter"
        }
    };
    Err(Error::Deliver { hook, why })
}

/// Divides the memory for the rings among the queues, CPUs or sockets of the hook.
pub(super) fn geometry(interface: &Interface, config: &Config) -> Result<Geometry, GeometryError> {
    geometry_of(config, wanted_rings(interface, config.hook).min(MAX_RINGS))
}

/// Divides the memory among so many rings.
pub(super) fn geometry_of(config: &Config, nrings: u32) -> Result<Geometry, GeometryError> {
    let ring_bytes = match config.hook.facts().taken_by {
        TakenBy::Programs(_) | TakenBy::Sockets(Sockets::Packet(_)) => config.ring_bytes,
        // Each AF_XDP socket has a ring to itself.
        TakenBy::Sockets(Sockets::Xdp(_)) => {
            let least = u64::from(nrings * Geometry::MIN_BLOCKS) * config.block_bytes;
            config.ring_bytes.max(least)
        }
    };
    Geometry::new(ring_bytes, config.block_bytes, nrings, config.snaplen)
}

/// An interface that is being opened, and how.
pub(super) struct Opening<'a> {
    pub(super) interface: &'a Interface,
    pub(super) config: &'a Config,
    pub(super) geometry: Geometry,
    /// Bytes that are kept of a packet at first; the rings are made for `config.snaplen`.
    pub(super) snaplen: u32,
    pub(super) first_interface: u32,
    pub(super) filters: Filters,
    pub(super) clock: &'a Arc<Clock>,
}

impl Opening<'_> {
    /// Returns what programs are told that ask the driver these questions.
    fn params(&self, questions: Questions, clock_by_poll: bool) -> Params {
        let Self { interface, config, .. } = self;
        Params {
            geometry: self.geometry,
            first_interface: self.first_interface,
            ifindex: interface.index,
            consume: config.deliver == Deliver::Consume,
            overload: config.overload,
            hardware_time: questions.time,
            hardware_vlan: questions.vlan_tag,
            veth: questions.veth,
            by_cpu: config.hook.ring_unit() == RingUnit::Cpu,
            link_header: interface.link.is_some_and(LinkType::has_header),
            filtered: !self.filters.is_empty(),
            judged: config.rules.is_some(),
            cutoff: config.cutoff.map_or(0, NonZeroU32::get),
            flow_sets: flows::SETS,
            clock_by_poll,
            claims: clock_by_poll && config.hook.ring_unit() == RingUnit::Queue,
            most_direct: most_direct(),
        }
    }

    /// Returns the programs of a hook, nowhere attached yet.
    fn hook(self, loaded: Loaded, set: ProgramSet, params: Params) -> KernelHook {
        KernelHook {
            loaded,
            set,
            programs: set.plain,
            params,
            filters: self.filters,
            images: None,
            before: None,
            links: Links::default(),
            attached: Attached::default(),
            promiscuous: self.config.promiscuous,
            place: None,
            seat: None,
        }
    }
}

/// Takes the programs of a hook that a helper has loaded, with their rings.
pub(super) fn take_programs(
    opening: Opening<'_>,
    set: ProgramSet,
    made: Made,
    handed: HandedOver,
    seat: Seat,
) -> Result<(Vec<Arc<RingMemory>>, Taking), Error> {
    let Opening { interface, config, geometry, clock, .. } = opening;
    let (loaded, control) =
        Loaded::handed_over(handed, geometry).map_err(|e| explain(interface, config.hook, e))?;
    clock.share_with(control);
    let rings = loaded.rings().to_vec();
    let questions =
        Questions { time: made.hardware_time, vlan_tag: made.hardware_vlan, veth: made.veth };
    let params = opening.params(questions, made.clock_by_poll);
    let programs = set.bound.filter(|_| made.bound).unwrap_or(set.plain);
    let hook = opening.hook(loaded, set, params);
    Ok((rings, Taking::Kernel(KernelHook { programs, seat: Some(seat), ..hook })))
}

/// Returns what programs that were loaded are like.
pub(super) fn made(hook: &KernelHook) -> Made {
    let KernelHook { params, programs, .. } = hook;
    Made {
        bound: programs.iter().any(|which| which.is_bound()),
        hardware_time: params.hardware_time,
        hardware_vlan: params.hardware_vlan,
        veth: params.veth,
        clock_by_poll: params.clock_by_poll,
    }
}

/// Loads the programs of a hook with their filter, their rules and their rings.
pub(super) fn open_programs(
    opening: Opening<'_>,
    set: ProgramSet,
    place: Option<&Place>,
) -> Result<(Vec<Arc<RingMemory>>, Taking), Error> {
    let Opening { interface, config, geometry, snaplen, clock, .. } = opening;
    let filters = &opening.filters;
    let driver = Questions::to(interface, &set, config.device_bound);
    let why = why_each_packet(interface, config.hook, geometry.nrings, place.is_some());
    let (questions, clock_by_poll) = config.stamps.choose(driver, why).map_err(|why| {
        Error::Stamps { name: interface.name.clone(), stamps: config.stamps, why }
    })?;
    let params = opening.params(questions, clock_by_poll);
    let load = |params: Params| {
        let load = |programs: &[Program]| match place {
            Some(place) => Loaded::lasting(programs, &params, filters, place),
            None => Loaded::new(programs, &params, filters),
        };
        load_best(&set, &params, load).map(|(loaded, programs)| (params, loaded, programs))
    };
    let loaded = load(params).or_else(|e| match config.stamps {
        // A kernel that tells of no polls has programs that do not ask.
        Stamps::Auto if clock_by_poll => {
            load(Params { clock_by_poll: false, claims: false, ..params })
        }
        _ => Err(e),
    });
    let (params, (loaded, control), programs) =
        loaded.map_err(|e| explain_load(interface, config, filters, e))?;
    match place.and_then(|place| place.found.as_ref()) {
        Some(found) => {
            clock.adopt(control);
            loaded.set_snaplen(snaplen);
            for (memory, written) in loaded.rings().iter().zip(&found.rings) {
                memory.set_taken(written.packets + written.unwritten);
                // So that the reader can be made when it is asked for.
                let tried = Reader::resume(memory.clone(), written.next);
                tried.ok_or_else(|| persist::Error::Damaged(interface.name.clone()))?;
            }
        }
        None => clock.share_with(control),
    }
    let images = config.rules.as_ref().map(|rules| images_with(&loaded, rules));
    let images = images.transpose().map_err(|e| explain_rules(interface, config, e))?;
    let rings = loaded.rings().to_vec();
    let hook = opening.hook(loaded, set, params);
    let hook = KernelHook { programs, images, place: place.cloned(), ..hook };
    Ok((rings, Taking::Kernel(hook)))
}

/// Prepares the sockets of a hook with their filter and their rings.
pub(super) fn open_sockets(
    opening: Opening<'_>,
    sockets: Sockets,
) -> Result<(Vec<Arc<RingMemory>>, Taking), Error> {
    let Opening { interface, config, geometry, first_interface, filters, clock, .. } = opening;
    let to = (first_interface, clock);
    let hook = SocketHook::open(interface, config, sockets, geometry, filters, to)?;
    Ok((hook.rings().to_vec(), Taking::Socket(hook)))
}

/// Returns a hash of what the programs of a capture are told: the same number for the same
/// programs of whatever version.
pub(super) fn told(taking: &Taking, config: &Config) -> u64 {
    let Taking::Kernel(hook) = taking else { return 0 };
    let mut bytes = hook.params.told();
    bytes.extend(config.filter.as_deref().unwrap_or_default().as_bytes());
    bytes.push(u8::from(config.rules.is_some()));
    fnv(bytes.into_iter())
}

/// Returns the places for rules of programs that have just been loaded, with this set in the first.
pub(super) fn images_with(loaded: &Loaded, rules: &Arc<Compiled>) -> Result<Images, RulesFault> {
    let mut images = loaded.images().map_err(RulesFault::Load)?;
    images.set(0, Some(rules)).map_err(RulesFault::Rules)?;
    Ok(images)
}

pub(super) enum RulesFault {
    Load(io::Error),
    Rules(rules::Error),
}

impl From<Fault> for RulesFault {
    fn from(fault: Fault) -> Self {
        Self::Load(fault.into_error())
    }
}

pub(super) fn explain_rules(interface: &Interface, config: &Config, fault: RulesFault) -> Error {
    match fault {
        RulesFault::Load(source) => explain(interface, config.hook, source),
        RulesFault::Rules(error) => error.into(),
    }
}
