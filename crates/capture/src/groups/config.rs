//! What is served, and which ports does that need?
//!
//! A port is an interface at a hook. Groups that name the same interface at the same hook share a
//! port, whatever name of the interface they used.

use std::sync::Arc;

use super::Error;
use super::port::{Entry, Filter, Port};
use super::steering::Steering;
use crate::device::Device;
use crate::rules::Compiled;
use crate::sys::params::MAX_GROUPS;
use crate::{Clock, Deliver, Hook, Stamps};

/// What a group takes, and how its members share it.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    pub name: String,
    pub interfaces: Vec<String>,
    /// A hook that takes groups ([`Hook::takes_groups`]).
    pub hook: Hook,
    /// Groups that share an interface at a hook must agree.
    pub deliver: Deliver,
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    /// Rules; a packet that no rule accepts is filtered. A rule for one group means the number of
    /// that group in [`GroupsConfig::groups`].
    pub rules: Option<Arc<Compiled>>,
    /// Bytes kept of a frame at most.
    pub snaplen: u32,
    pub steering: Steering,
    pub promiscuous: bool,
    /// The most members that the group may have at a time.
    pub max_members: u32,
    /// The most bytes that the rings of the group's members may take together.
    pub max_memory: Option<u64>,
}

/// The groups that a daemon serves.
#[derive(Clone, Debug)]
pub struct GroupsConfig {
    pub groups: Vec<GroupConfig>,
    /// The memory of all rings of one member together. If nothing is said, each ring holds what a
    /// queue brings at 1 Gbit/s from one look of the daemon to the next.
    pub ring_bytes: Option<u64>,
    pub block_bytes: u64,
    /// Whether programs may be bound to their device, as [`crate::Config::device_bound`] says.
    pub device_bound: bool,
    pub stamps: Stamps,
}

impl GroupsConfig {
    /// Returns what makes each group the one that it is, across daemons.
    pub(super) fn keys(&self) -> Vec<(&str, Hook, &[String])> {
        let groups = self.groups.iter();
        groups.map(|group| (group.name.as_str(), group.hook, &group.interfaces[..])).collect()
    }
}

/// Refuses what makes no sense on any machine.
pub(super) fn check(config: &GroupsConfig) -> Result<(), Error> {
    if config.groups.is_empty() {
        return Err(Error::NoGroups);
    }
    if config.groups.len() > MAX_GROUPS {
        return Err(Error::TooManyGroups(config.groups.len()));
    }
    for (i, group) in config.groups.iter().enumerate() {
        let name = || group.name.clone();
        if group.name.is_empty() {
            return Err(Error::NoName);
        }
        if config.groups[..i].iter().any(|other| other.name == group.name) {
            return Err(Error::Twice(name()));
        }
        if !group.hook.takes_groups() {
            return Err(socket_hook(group));
        }
        if group.snaplen == 0 {
            return Err(Error::Snaplen(name()));
        }
        if group.interfaces.is_empty() {
            return Err(Error::NoInterface(name()));
        }
        for (j, interface) in group.interfaces.iter().enumerate() {
            if group.interfaces[..j].contains(interface) {
                let interface = interface.clone();
                return Err(Error::InterfaceTwice { group: name(), interface });
            }
        }
    }
    Ok(())
}

fn socket_hook(group: &GroupConfig) -> Error {
    Error::SocketHook { group: group.name.clone(), hook: group.hook }
}

/// For each group, its ports and the group's place in each port's list.
pub(super) type Places = Vec<Vec<(usize, u32)>>;

/// Returns the ports that the groups need, which programs know by these numbers.
pub(super) fn ports_of(
    config: &GroupsConfig,
    numbers: &[u32],
    clock: &Arc<Clock>,
) -> Result<(Vec<Port>, Places), Error> {
    let mut ports: Vec<Port> = Vec::new();
    // The group that asked for each port first.
    let mut first: Vec<&str> = Vec::new();
    let mut places = Vec::new();
    for (number, group) in numbers.iter().map(|number| *number as u16).zip(&config.groups) {
        let mut its_places = Vec::new();
        let set = group.hook.program_set().ok_or_else(|| socket_hook(group))?;
        for (nth, name) in (0..).zip(&group.interfaces) {
            let device = Device::open(name)?;
            let is_it = |port: &Port| {
                port.device.interface.index == device.interface.index && port.hook == group.hook
            };
            let at = ports.iter().position(is_it).unwrap_or_else(|| {
                ports.push(Port::new(device, group.hook, set, group.deliver, clock));
                first.push(&group.name);
                ports.len() - 1
            });
            let port = &mut ports[at];
            if port.deliver != group.deliver {
                return Err(Error::Deliver {
                    one: first[at].to_owned(),
                    other: group.name.clone(),
                    interface: name.clone(),
                    hook: group.hook,
                });
            }
            port.promiscuous |= group.promiscuous;
            port.device_bound = config.device_bound;
            port.stamps = config.stamps;
            // The group has this interface already, by another of its names.
            if port.list.entries.last().is_some_and(|entry| entry.group == number) {
                let (group, interface) = (group.name.clone(), name.clone());
                return Err(Error::InterfaceTwice { group, interface });
            }
            let count = port.list.entries.len() as u16;
            its_places.push((at, count.into()));
            let filter = Filter::of(group.filter.as_deref());
            port.list.entries.push(Entry { group: number, interface: nth, count, filter });
        }
        places.push(its_places);
    }
    Ok((ports, places))
}
