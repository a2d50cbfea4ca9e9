//! What does a hook program cost by itself? It is run on a frame inside the kernel, again and
//! again, without an interface, a driver or a reader (`BPF_PROG_RUN`).
//!
//! This is for benchmarks. Beside the recorder's programs there are programs that do nothing, and
//! programs that read the frame and drop it: the kernel's own part of a run is in every figure, and
//! only differences say something. The rings count as emptied all the time, so that every run finds
//! room: small rings stay in the cache, large ones do not.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::ObjectBuilder;
use tapdeck_packet::ring::ReadMemory;

use crate::bpf::loaded::Loaded;
use crate::bpf::object::Aligned;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::filter::{explain_load, filters_for};
use crate::groups::{self, GroupConfig, Groups, GroupsConfig, Steering};
use crate::hook::{RingUnit, TakenBy};
use crate::interface::Interface;
use crate::ring::{Geometry, RingMemory};
use crate::rules::{self, Compiled, Images};
use crate::sys::libbpf::{io_error, program, quiet_libbpf};
use crate::sys::program::run;
use crate::{Clock, Config, Deliver, Error, Hook};

static TRIAL: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/trial.bpf.o")));

/// How often a charge is taken in one run (`TIMES` of `bpf/trial.bpf.c`).
pub const CHARGES: u32 = 64;
/// How far the reader of a ring counts as ahead of its producers: half of the numbers that blocks
/// have.
const AHEAD: u32 = 1 << 30;
/// `struct nf_hook_state`, which is all that a netfilter program's run can be told.
const NETFILTER_STATE: usize = 48;

/// What the recorder's program is given to do besides recording.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    pub rules: Option<Arc<Compiled>>,
}

/// Something that a hook program is made of, and for which the machine charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// A call of another function of the program.
    Call,
    /// A call of a function of the kernel, which does next to nothing.
    Helper,
    /// A look at the clock.
    Clock,
    /// An atomic addition.
    Atomic,
}

impl Charge {
    pub const ALL: [Self; 4] = [Self::Call, Self::Helper, Self::Clock, Self::Atomic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Helper => "helper",
            Self::Clock => "clock",
            Self::Atomic => "atomic",
        }
    }
}

/// A program that is loaded, and can be run.
pub struct Trial {
    program: OwnedFd,
    context: Vec<u8>,
    /// The rings that the program writes; none where it records nothing.
    rings: Vec<Arc<RingMemory>>,
    /// What the program is of: an object and its rules, or groups.
    _loaded: Box<dyn Any>,
}

impl Trial {
    /// Loads the recorder's program of a hook with a ring of so many bytes, in blocks of so many.
    ///
    /// # Errors
    /// As a capture at the hook has them; [`Error::Kernel`] where the hook has no program.
    pub fn of_recorder(
        hook: Hook,
        ring_bytes: u64,
        block_bytes: u64,
        duties: &Duties,
    ) -> Result<Self, Error> {
        // The kernel runs programs as if frames came from there.
        let interface = Interface::find("lo")?;
        let fail = |source| Error::Kernel { name: interface.name.clone(), hook, source };
        let Some(which) = program_of(hook) else {
            return Err(fail(io::Error::other("no program of this hook writes into rings")));
        };
        let config = Config {
            hook,
            deliver: Deliver::Consume,
            snaplen: hook.facts().most_snaplen.min(MOST_SNAPLEN),
            ring_bytes,
            block_bytes,
            promiscuous: false,
            device_bound: false,
            filter: duties.filter.clone(),
            rules: duties.rules.clone(),
        };
        let filters = filters_for(&interface, &config)?;
        let params = Params {
            geometry: Geometry::new(ring_bytes, config.block_bytes, 1, config.snaplen)?,
            // A run at netfilter comes from no interface, and elsewhere nobody asks.
            ifindex: 0,
            consume: true,
            by_cpu: hook.ring_unit() == RingUnit::Cpu,
            filtered: !filters.is_empty(),
            judged: config.rules.is_some(),
            ..Params::unread(0)
        };
        let (loaded, control) = Loaded::new(&[which], &params, &filters)
            .map_err(|e| explain_load(&interface, &config, &filters, e))?;
        // Nobody owns these programs, and they record all the same.
        control.set_deadline(u64::MAX);
        let images = match &config.rules {
            Some(rules) => Some(images_of(&loaded, rules).map_err(fail)?),
            None => None,
        };
        Ok(Self {
            program: loaded.program(which).map_err(fail)?,
            context: context_of(which),
            rings: loaded.rings().to_vec(),
            _loaded: Box::new((loaded, images)),
        })
    }

    /// Loads a daemon's program of a hook that serves so many groups, each with one member, whose
    /// rings have so many bytes altogether, in blocks of so many. A thread takes the wake-ups, as a
    /// daemon's does.
    ///
    /// # Errors
    /// As [`Groups::open`] and [`Groups::join`] have them.
    pub fn of_groups(
        hook: Hook,
        ring_bytes: u64,
        block_bytes: u64,
        groups: usize,
    ) -> Result<Self, groups::Error> {
        let one = |number| GroupConfig {
            name: format!("trial-{number}"),
            // The kernel runs programs as if frames came from there.
            interfaces: vec!["lo".into()],
            hook,
            deliver: Deliver::Consume,
            filter: None,
            rules: None,
            snaplen: hook.facts().most_snaplen.min(MOST_SNAPLEN),
            steering: Steering::Flow,
            promiscuous: false,
            max_members: 1,
            max_memory: None,
        };
        let config = GroupsConfig {
            groups: (0..groups).map(one).collect(),
            ring_bytes: Some(ring_bytes),
            block_bytes,
            device_bound: false,
        };
        let mut groups = Groups::open(&config, &Arc::new(Clock::default()))?;
        let fail = |source| groups::Error::Kernel { what: "try the programs".into(), source };
        let (mut members, mut rings) = (Vec::new(), Vec::new());
        for group in &config.groups {
            let member = groups.join(&group.name, 1)?;
            rings.extend(member.map().map_err(fail)?);
            members.push(member);
        }
        let which = program_of(hook).ok_or_else(|| fail(io::ErrorKind::Unsupported.into()))?;
        Ok(Self {
            program: groups.program(which).map_err(fail)?,
            context: context_of(which),
            rings,
            _loaded: Box::new((groups, members)),
        })
    }

    /// Loads a program of the same kind as the hook's that does nothing.
    pub fn of_nothing(hook: Hook) -> io::Result<Self> {
        Self::of(hook, "empty")
    }

    /// Loads a program of the same kind as the hook's that reads the frame and drops it; at a hook
    /// that cannot see the frame in place, one that copies it. Of a frame in fragments it reads the
    /// first.
    pub fn of_reading(hook: Hook) -> io::Result<Self> {
        Self::of(hook, "read")
    }

    /// Loads a program that takes a charge [`CHARGES`] times.
    pub fn of_charge(charge: Charge) -> io::Result<Self> {
        Self::load(&format!("charge_{}", charge.name()), Vec::new())
    }

    fn of(hook: Hook, what: &str) -> io::Result<Self> {
        let Some(which) = program_of(hook) else {
            return Err(io::Error::other("no program of this hook writes into rings"));
        };
        let kind = match which {
            Program::Xdp | Program::XdpMetadata | Program::Redirect => "xdp",
            Program::Ingress | Program::Egress | Program::SocketJudge => "skb",
            Program::Netfilter => "netfilter",
        };
        Self::load(&format!("{what}_{kind}"), context_of(which))
    }

    fn load(name: &str, context: Vec<u8>) -> io::Result<Self> {
        quiet_libbpf();
        let mut object =
            ObjectBuilder::default().open_memory(&TRIAL.0).map_err(|e| io_error(&e))?;
        for mut program in object.progs_mut() {
            program.set_autoload(program.name() == name);
        }
        let object = object.load().map_err(|e| io_error(&e))?;
        let program = program(&object, name)?.as_fd().try_clone_to_owned()?;
        Ok(Self { program, context, rings: Vec::new(), _loaded: Box::new(object) })
    }

    /// Runs the program on a frame so many times. Returns the mean time of a run, nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` where the kernel has no frames of that length for programs of this kind, and where
    /// a packet was neither refused nor put into a ring.
    pub fn run(&self, frame: &[u8], times: u32) -> io::Result<f64> {
        let lost = || self.rings.iter().map(|r| r.lost()).sum::<u64>();
        let places = || self.rings.iter().map(|r| place_in(r)).collect::<Vec<_>>();
        let before = (lost(), places(), self.filtered());
        for ring in &self.rings {
            ring.set_released(ring.open_block().0.wrapping_add(AHEAD));
        }
        let (_, ns) = run(self.program.as_fd(), &self.context, frame, times)?;
        if lost() != before.0 {
            return Err(io::Error::other("packets of the trial were dropped"));
        }
        let least = u64::from(times) * LEAST_PACKET;
        let mut came = places().into_iter().zip(before.1).map(|(now, then)| now.wrapping_sub(then));
        if self.filtered() == before.2 && came.any(|bytes| bytes < least) {
            return Err(io::Error::other("packets of the trial did not get into a ring"));
        }
        Ok(f64::from(ns))
    }

    /// Returns how many packets the filter and the rules refused so far.
    pub fn filtered(&self) -> u64 {
        self.rings.iter().map(|r| r.filtered()).sum()
    }
}

/// The shortest block of a packet, bytes.
const LEAST_PACKET: u64 = 32;

/// Returns how far the producers of a ring have come, in bytes of blocks, filled or not.
fn place_in(ring: &RingMemory) -> u64 {
    let (block, bytes) = ring.open_block();
    (u64::from(block) << ring.geometry().block_shift) + u64::from(bytes)
}

/// No copy of a frame is longer here, so that blocks can be small.
const MOST_SNAPLEN: u32 = 16_384;

/// Returns the program of a hook that packets come in by.
fn program_of(hook: Hook) -> Option<Program> {
    match hook.facts().taken_by {
        TakenBy::Programs(set) => set.plain.first().copied(),
        TakenBy::Sockets(_) => None,
    }
}

fn context_of(which: Program) -> Vec<u8> {
    match which {
        Program::Netfilter => {
            let mut state = vec![0; NETFILTER_STATE];
            state[1] = libc::NFPROTO_IPV4 as u8;
            state
        }
        Program::Xdp
        | Program::XdpMetadata
        | Program::Redirect
        | Program::Ingress
        | Program::Egress
        | Program::SocketJudge => Vec::new(),
    }
}

fn images_of(loaded: &Loaded, rules: &Arc<Compiled>) -> io::Result<Images> {
    let mut images = loaded.images()?;
    images.set(0, Some(rules)).map_err(|e: rules::Error| io::Error::other(e))?;
    Ok(images)
}
