//! Why can an interface not be captured? Each error names the interface, the cause and what to do.

use std::io;

use crate::ring::GeometryError;
use crate::{Hook, Stamps, interface, rules};

/// Why a capture cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the interface is not there or cannot be asked for
    #[error(transparent)]
    Interface(#[from] interface::Error),
    /// a lasting recording that cannot be had
    #[error(transparent)]
    Persist(#[from] crate::persist::Error),
    /// the interface is down
    #[error("{0} is down: set it up first (ip link set {0} up)")]
    Down(String),
    /// frames of a form that is not recorded
    #[error(
        "{name} has link type {arphrd} (ARPHRD), which cannot be recorded: only Ethernet and bare IP can"
    )]
    LinkType { name: String, arphrd: u32 },
    /// sizes that do not fit
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// rings that memory cannot hold
    #[error(
        "the rings of {name} do not fit into memory, of which {available_mib} MiB are free: take a smaller --ring-bytes"
    )]
    Memory { name: String, available_mib: u64 },
    /// memory of a socket that may not be locked
    #[error(
        "the frames of hook {hook} on {name} lie in locked memory, and this process may not lock so much: add the capability CAP_IPC_LOCK, raise the limit (ulimit -l) above the ring's size, or take a smaller --ring-bytes"
    )]
    LockedMemory { name: String, hook: Hook },
    /// no privilege
    #[error(
        "no permission to capture at hook {hook}: run as root, or with the capabilities {needed}"
    )]
    Privilege { hook: Hook, needed: &'static str },
    /// another XDP program has the place
    #[error(
        "{name} has an XDP program already{}: remove it (ip link set {name} xdp off), or take --hook tcx", .id.map(|id| format!(" (id {id})")).unwrap_or_default()
    )]
    XdpBusy { name: String, id: Option<u32> },
    /// the kernel gives no place to XDP below a program of XDP
    #[error(
        "{name} can have no XDP program while {upper}, which sits on it, has one (id {id}): remove that (ip link set {upper} xdp off), or take --hook tcx"
    )]
    XdpAbove { name: String, upper: String, id: u32 },
    /// a hook that kernel, driver or interface do not have
    #[error("{name} has no hook {hook}: {why}; tapdeck probe -i {name} says what it has")]
    Unsupported { name: String, hook: Hook, why: String },
    /// a filter that does not compile
    #[error("bad filter {expression:?}: {why}")]
    Filter { expression: String, why: String },
    /// a filter that is too much for the kernel
    #[error("bad filter {expression:?}: {why}")]
    LargeFilter { expression: String, why: String },
    /// a hook whose programs stay as they are
    #[error(
        "hook {0} cannot change its filter while it records (the kernel exchanges no {0} programs): stop, and start with the other filter"
    )]
    FixedFilter(Hook),
    /// a hook whose programs stay as they are
    #[error(
        "hook {0} cannot change --cutoff while it records (the kernel exchanges no {0} programs): stop, and start with the other one"
    )]
    FixedCutoff(Hook),
    /// a hook that judges nothing
    #[error(
        "hook {0} takes no rules, which are judged by the programs of other hooks: take {hooks}",
        hooks = Hook::list(Hook::takes_rules, "or")
    )]
    NoRules(Hook),
    /// a hook whose packets are not written by a program
    #[error(
        "hook {0} cannot shed payload, which the programs of other hooks do: take --on-overload drop, or {hooks}",
        hooks = Hook::list(Hook::can_shed, "or")
    )]
    NoShedding(Hook),
    /// a hook that knows no flows
    #[error(
        "hook {0} cannot cut flows off, which the programs of other hooks do: take {hooks}, or leave --cutoff out",
        hooks = Hook::list(Hook::takes_rules, "or")
    )]
    NoCutoff(Hook),
    /// a hook whose programs stay as they are
    #[error(
        "hook {0} cannot begin with rules while it records (the kernel exchanges no {0} programs): start with --rules, which can be exchanged then"
    )]
    FixedRules(Hook),
    /// rules that the kernel cannot have
    #[error(transparent)]
    Rules(#[from] rules::Error),
    /// a snaplen that the ring was not made for
    #[error("a snaplen of {asked}: from 1 to {most}, with which the recording began")]
    Snaplen { asked: u32, most: u32 },
    /// a hook that cannot do with packets what is asked
    #[error("hook {hook} {why}")]
    Deliver { hook: Hook, why: &'static str },
    /// a clock that packets cannot be stamped by
    #[error("--clock {stamps} on {name}: {why}; take --clock auto")]
    Stamps { name: String, stamps: Stamps, why: &'static str },
    /// a hook that somebody else has taken away for good
    #[error(
        "somebody has detached the hook of {name}, which is tried again every second; until then packets go unseen: {why}"
    )]
    Detached { name: String, why: Box<Error> },
    /// an interface that came later and that the helper cannot open
    #[error("{0}")]
    Later(String),
    /// an interface that does not fit where one that is gone was recorded
    #[error("{0} has another number of rings than the interface in whose place it would be")]
    NoPlace(String),
    /// anything else the kernel refuses
    #[error("cannot capture on {name} at hook {hook}")]
    Kernel { name: String, hook: Hook, source: io::Error },
}

impl Error {
    /// Returns whether what was asked for makes no sense, whatever the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Geometry(_)
            | Self::Filter { .. }
            | Self::FixedFilter(_)
            | Self::FixedCutoff(_)
            | Self::NoRules(_)
            | Self::NoShedding(_)
            | Self::NoCutoff(_)
            | Self::FixedRules(_)
            | Self::Snaplen { .. }
            | Self::Deliver { .. } => true,
            Self::Rules(e) => e.is_usage(),
            Self::Persist(e) => e.is_usage(),
            Self::Detached { why, .. } => why.is_usage(),
            Self::Interface(_)
            | Self::Down(_)
            | Self::LinkType { .. }
            | Self::Memory { .. }
            | Self::LockedMemory { .. }
            | Self::Privilege { .. }
            | Self::XdpBusy { .. }
            | Self::XdpAbove { .. }
            | Self::Unsupported { .. }
            | Self::LargeFilter { .. }
            | Self::Stamps { .. }
            | Self::Later(_)
            | Self::NoPlace(_)
            | Self::Kernel { .. } => false,
        }
    }
}
