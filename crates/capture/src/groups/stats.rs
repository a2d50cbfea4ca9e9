//! What happened to the packets of groups?

use std::io;

use super::Groups;
use super::maps::Maps;
use super::member::Member;
use crate::Hook;
use crate::interface::NicCounters;
use crate::ring::RingMemory;

/// The counters of all groups. Those of one group are over all its ports and over all members that
/// it has and has had:
///
/// ```text
/// seen + extra = filtered + cutoff + no_member + captured + dropped_ring + dropped_other
/// ```
///
/// The equation is exact whenever no packet is on its way.
#[derive(Clone, Debug, Default)]
pub struct GroupsStats {
    pub ports: Vec<PortStats>,
    pub groups: Vec<GroupStats>,
    pub members: Vec<MemberStats>,
}

/// One interface at one hook.
#[derive(Clone, Debug)]
pub struct PortStats {
    pub interface: String,
    pub hook: Hook,
    /// Whether the programs are attached; they are not while the interface is gone.
    pub attached: bool,
    /// Packets that reached the hook.
    pub seen: u64,
    /// Packets that the device received, or sent where the hook sees both directions, while the
    /// hook was not shown them.
    pub unseen: u64,
    /// What the device has counted since the groups were started.
    pub nic: NicCounters,
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    pub name: String,
    pub paused: bool,
    /// Members that the group has now.
    pub members: u32,
    /// Packets that reached the group while it was not paused.
    pub seen: u64,
    /// Packets of `seen` that the group's filter or its rules refused.
    pub filtered: u64,
    /// Packets of `seen` whose flow had had the bytes that the group's rules let it have.
    pub cutoff: u64,
    /// Packets of `seen` that no member took, for there was none.
    pub no_member: u64,
    /// Copies beyond the first of each packet, where several members get one.
    pub extra: u64,
    pub captured: u64,
    pub captured_bytes: u64,
    pub dropped_ring: u64,
    pub dropped_other: u64,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStats {
    pub member: u32,
    pub group: String,
    pub weight: u32,
    /// Whether the member has not come back since another daemon had it.
    pub is_away: bool,
    /// Packets that were put into the member's rings.
    pub captured: u64,
    pub captured_bytes: u64,
    /// Packets for which the member's rings had no room: it did not read fast enough.
    pub dropped_ring: u64,
    /// Packets lost by contention, or which the kernel could not read.
    pub dropped_other: u64,
    pub ring_fill_bytes: u64,
    pub ring_bytes: u64,
}

impl GroupStats {
    /// Adds a member's numbers.
    pub(super) fn add(&mut self, member: &MemberStats) {
        self.captured += member.captured;
        self.captured_bytes += member.captured_bytes;
        self.dropped_ring += member.dropped_ring;
        self.dropped_other += member.dropped_other;
    }
}

impl Groups {
    /// Reads all counters.
    ///
    /// # Errors
    /// Where the kernel does not give them.
    pub fn stats(&self) -> io::Result<GroupsStats> {
        let members: Vec<MemberStats> =
            self.numbers().map(|number| self.member_stats(number)).collect::<io::Result<_>>()?;
        let ports = self.ports.iter().map(|port| {
            Ok(PortStats {
                interface: port.device.interface.name.clone(),
                hook: port.hook,
                attached: port.is_attached(),
                seen: self.maps.counts(port.list.port)?.seen,
                unseen: port.unseen(),
                nic: port.device.nic(),
            })
        });
        let groups = (0..self.list.len()).map(|at| self.group_stats(at, &members));
        Ok(GroupsStats {
            ports: ports.collect::<io::Result<_>>()?,
            groups: groups.collect::<io::Result<_>>()?,
            members,
        })
    }

    fn group_stats(&self, at: usize, members: &[MemberStats]) -> io::Result<GroupStats> {
        let group = &self.list[at];
        let mut stats = GroupStats {
            name: group.config.name.clone(),
            paused: self.maps.is_paused(group.number),
            members: group.shares.members() as u32,
            ..group.gone.clone()
        };
        for (_, count) in &group.ports {
            let counts = self.maps.counts(*count)?;
            stats.seen += counts.seen;
            stats.filtered += counts.filtered;
            stats.cutoff += counts.cutoff;
            stats.no_member += counts.no_member;
            stats.extra += counts.extra;
        }
        for member in members.iter().filter(|member| member.group == group.config.name) {
            stats.add(member);
        }
        Ok(stats)
    }

    /// Reads how many packets a group has seen, and no other counters.
    ///
    /// # Errors
    /// Where there is no such group, or the kernel does not give them.
    pub fn group_seen(&self, name: &str) -> io::Result<u64> {
        let group = self.list.iter().find(|group| group.config.name == name);
        let ports = &group.ok_or(io::ErrorKind::NotFound)?.ports;
        ports.iter().map(|(_, count)| Ok(self.maps.counts(*count)?.seen)).sum()
    }

    /// Returns how many packets went unseen at a group's interfaces.
    pub fn group_unseen(&self, name: &str) -> u64 {
        let group = self.list.iter().find(|group| group.config.name == name);
        let ports = group.map(|group| &group.ports[..]).unwrap_or_default();
        ports.iter().map(|(port, _)| self.ports[*port].unseen()).sum()
    }

    /// Reads the counters of one member.
    ///
    /// # Errors
    /// Where there is no such member, or the kernel does not give them.
    pub fn member_stats(&self, number: u32) -> io::Result<MemberStats> {
        let member = self.member(number).ok_or(io::ErrorKind::NotFound)?;
        let mut stats = self.stats_of(number, member);
        member_stats(&mut stats, &self.maps, member.rings())?;
        Ok(stats)
    }

    /// Returns what is known of a member but for what it got.
    pub(super) fn stats_of(&self, number: u32, member: &Member) -> MemberStats {
        MemberStats {
            member: number,
            group: self.list[member.group].config.name.clone(),
            weight: member.weight,
            is_away: member.away.is_some(),
            ring_fill_bytes: member.fill_bytes(),
            ring_bytes: u64::from(self.geometry.ring_bytes()) * u64::from(self.geometry.nrings),
            ..MemberStats::default()
        }
    }
}

/// Reads what a member got.
pub(super) fn member_stats(
    stats: &mut MemberStats,
    maps: &Maps,
    rings: &[RingMemory],
) -> io::Result<()> {
    (stats.captured, stats.captured_bytes) = maps.taken(stats.member)?;
    for losses in rings.iter().map(RingMemory::losses) {
        stats.dropped_ring += losses.ring;
        stats.dropped_other += losses.contended + losses.unreadable;
    }
    Ok(())
}
