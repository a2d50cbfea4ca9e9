//! Why can groups not do what was asked of them?

use super::maps::MAX_MEMBERS;
use super::steering::MAX_WEIGHT;
use crate::ring::GeometryError;
use crate::sys::params::MAX_GROUPS;
use crate::{Hook, interface};
use tapdeck_packet::printable::counted;

/// Why groups cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// an interface or a hook that does not work
    #[error(transparent)]
    Capture(#[from] crate::Error),
    /// sizes that do not fit
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// rules that cannot be put into the kernel
    #[error(transparent)]
    Rules(#[from] crate::rules::Error),
    /// what a daemon before has left
    #[error(transparent)]
    Persist(#[from] crate::persist::Error),
    /// a filter of a group's configuration that is refused
    #[error("group {groups}: {why}")]
    Filter { groups: String, why: Box<crate::Error> },
    /// nothing to serve
    #[error("no group is configured: name at least one")]
    NoGroups,
    /// more than the kernel half has places for
    #[error("{} are configured, and {MAX_GROUPS} are possible", counted(*.0 as u64, "group"))]
    TooManyGroups(usize),
    /// a name that two groups have
    #[error("two groups are named {0}: give each its own name")]
    Twice(String),
    /// a group that cannot be asked for
    #[error("a group needs a name")]
    NoName,
    /// a group that gets no packets
    #[error("group {0} has no interface: name at least one")]
    NoInterface(String),
    /// an interface that a group would get everything from twice
    #[error("group {group} names interface {interface} twice")]
    InterfaceTwice { group: String, interface: String },
    /// a hook that has no programs to share
    #[error(
        "group {group} cannot take packets at hook {hook}, which is a socket's: take {hooks}",
        hooks = Hook::list(Hook::takes_groups, "or")
    )]
    SocketHook { group: String, hook: Hook },
    /// two wishes for what becomes of the same packets
    #[error(
        "groups {one} and {other} share {interface} at hook {hook}, and one delivers what the other consumes: let both do the same"
    )]
    Deliver { one: String, other: String, interface: String, hook: Hook },
    /// a number of bytes that keeps nothing
    #[error("group {0} has a snaplen of 0: a packet needs at least one byte")]
    Snaplen(String),
    /// more bytes than the rings were made for
    #[error("a snaplen of {snaplen} is more than the {most} that group {group} began with")]
    SnaplenGrows { group: String, snaplen: u32, most: u32 },
    /// a group that is not there
    #[error("no group is named {name}; there are: {}", there.join(", "))]
    NoGroup { name: String, there: Vec<String> },
    /// a hook whose programs cannot be exchanged
    #[error(
        "group {group} takes packets at hook {hook}, where a filter cannot be exchanged while programs run: stop and start with the new one, or take tcx"
    )]
    FixedFilter { group: String, hook: Hook },
    /// programs of a daemon before that cannot be exchanged
    #[error(
        "groups, filters or snaplen at {interface}, hook {hook}, are others than before, and the programs there cannot be exchanged: configure what was, or give it up by tapdeck ctl persist drop"
    )]
    FixedPrograms { interface: String, hook: Hook },
    /// all places are taken
    #[error(
        "group {0} cannot get another member: all {MAX_MEMBERS} places are taken; let one leave first"
    )]
    Full(String),
    /// a group that has as many members as it may have
    #[error(
        "group {group} cannot get another member: it may have {most} (max-members and memory of its configuration); let one leave first"
    )]
    GroupFull { group: String, most: u32 },
    /// no member that is away has this secret
    #[error("member {0} does not wait to come back by this secret: attach anew")]
    NotAway(u32),
    /// a weight that means no packet ever, or all of them
    #[error("a member of group {0} weighs from 1 to {MAX_WEIGHT}")]
    Weight(String),
    /// rings that memory cannot hold
    #[error(
        "the rings of another member of group {group} take {needed_mib} MiB, and {available_mib} MiB of memory are free: take a smaller ring-bytes, or let a member leave"
    )]
    Memory { group: String, needed_mib: u64, available_mib: u64 },
    /// anything else the kernel refuses
    #[error("cannot {what}")]
    Kernel { what: String, source: std::io::Error },
}

impl Error {
    /// Returns whether what was asked for makes no sense, whatever the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Capture(e) => e.is_usage(),
            Self::Filter { why, .. } => why.is_usage(),
            Self::Rules(e) => e.is_usage(),
            Self::Persist(e) => e.is_usage(),
            Self::Geometry(_)
            | Self::NoGroups
            | Self::TooManyGroups(_)
            | Self::Twice(_)
            | Self::NoName
            | Self::NoInterface(_)
            | Self::InterfaceTwice { .. }
            | Self::SocketHook { .. }
            | Self::Deliver { .. }
            | Self::Snaplen(_)
            | Self::SnaplenGrows { .. }
            | Self::NoGroup { .. }
            | Self::FixedFilter { .. }
            | Self::FixedPrograms { .. }
            | Self::NotAway(_)
            | Self::Weight(_) => true,
            Self::Full(_) | Self::GroupFull { .. } | Self::Memory { .. } | Self::Kernel { .. } => {
                false
            }
        }
    }
}

impl From<interface::Error> for Error {
    fn from(e: interface::Error) -> Self {
        Self::Capture(e.into())
    }
}
