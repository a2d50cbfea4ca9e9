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
use crate::bpf::loaded::Loaded;
use crate::bpf::params::{Params, most_direct};
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::{explain_load, filters_for};
use crate::flows;
use crate::helper::wire::{Attached, Fault};
use crate::hook::{ProgramSet, RingUnit, Sockets, TakenBy};
use crate::interface::Interface;
use crate::persist::{self, Place, fnv};
use crate::ring::{Geometry, GeometryError, Reader, RingMemory};
use crate::ring_count::wanted_rings;
use crate::rules::{self, Compiled, Images};
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
    let nrings = wanted_rings(interface, config.hook).min(MAX_RINGS);
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

/// Loads the programs of a hook with their filter, their rules and their rings.
pub(super) fn open_programs(
    interface: &Interface,
    config: &Config,
    set: ProgramSet,
    (geometry, snaplen): (Geometry, u32),
    first_interface: u32,
    clock: &Arc<Clock>,
    place: Option<&Place>,
) -> Result<(Vec<Arc<RingMemory>>, Taking), Error> {
    let driver = Questions::to(interface, &set, config.device_bound);
    let why = why_each_packet(interface, config.hook, geometry.nrings, place.is_some());
    let (questions, clock_by_poll) = config.stamps.choose(driver, why).map_err(|why| {
        Error::Stamps { name: interface.name.clone(), stamps: config.stamps, why }
    })?;
    let filters = filters_for(interface, config)?;
    let params = Params {
        geometry,
        first_interface,
        ifindex: interface.index,
        consume: config.deliver == Deliver::Consume,
        overload: config.overload,
        hardware_time: questions.time,
        hardware_vlan: questions.vlan_tag,
        by_cpu: config.hook.ring_unit() == RingUnit::Cpu,
        link_header: interface.link.is_some_and(LinkType::has_header),
        filtered: !filters.is_empty(),
        judged: config.rules.is_some(),
        cutoff: config.cutoff.map_or(0, NonZeroU32::get),
        flow_sets: flows::SETS,
        clock_by_poll,
        claims: clock_by_poll && config.hook.ring_unit() == RingUnit::Queue,
        most_direct: most_direct(),
    };
    let load = |params: Params| {
        let load = |programs: &[Program]| match place {
            Some(place) => Loaded::lasting(programs, &params, &filters, place),
            None => Loaded::new(programs, &params, &filters),
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
        loaded.map_err(|e| explain_load(interface, config, &filters, e))?;
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
    let hook = KernelHook {
        loaded,
        set,
        programs,
        params,
        filters,
        images,
        before: None,
        links: Links::default(),
        attached: Attached::default(),
        promiscuous: config.promiscuous,
        place: place.cloned(),
        seat: None,
    };
    Ok((rings, Taking::Kernel(hook)))
}

/// Returns a hash of what the programs of a capture are told: the same number for the same
/// programs of whatever version.
pub(super) fn told(taking: &Taking, config: &Config) -> u64 {
    let Taking::Kernel(hook) = taking else { return 0 };
    let mut bytes = hook.params.bytes();
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
