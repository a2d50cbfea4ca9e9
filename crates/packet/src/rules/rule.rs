//! What does one rule look for, and what does it do? This is a line of a rule file, as values.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::signature::{Key, Pattern, Signature};
use super::tuple::{Family, left};
use crate::numbers::{ip_protocol, pcap_file};

/// The most bytes of a frame that a rule's `snaplen=` can keep.
pub const MAX_SNAPLEN: u32 = pcap_file::MAX_SNAPLEN;
/// The most bytes of a flow that a rule's `cutoff=` can ask for.
pub const MAX_CUTOFF: u32 = 1 << 31;
/// The units that sizes in rules can have, the largest first.
pub(super) const SIZE_UNITS: [(&str, u32); 3] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
/// The most bytes that a group's name in a rule can have.
pub const MAX_GROUP_NAME: usize = 64;

/// What happens to a packet that a rule takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Accept,
    Drop,
    /// Accept, and keep at most this many bytes, from 1 to [`MAX_SNAPLEN`].
    Snaplen(u32),
    /// Accept, for the members of this group alone.
    Group(String),
    /// Accept until the packet's flow has had so many bytes, from 1 to [`MAX_CUTOFF`].
    Cutoff(u32),
}

/// An IP protocol as a rule names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The control messages of the packet's own IP version: protocol 1 in IPv4, 58 in IPv6.
    Icmp,
    Number(u8),
}

/// Ports of which a rule fits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    pub first: u16,
    /// The last port, which is not below `first`.
    pub last: u16,
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl PortRange {
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn ports(range: Option<Self>) -> std::ops::RangeInclusive<u16> {
        range.map_or(0..=0, |range| range.first..=range.last)
    }
}

/// One line of a rule file. A field that is `None` fits everything.
///
/// The parser makes sure that both addresses are of one family, and that prefixes have no bits set
/// behind their length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub action: Action,
    pub source: Option<IpNet>,
    pub destination: Option<IpNet>,
    pub source_port: Option<PortRange>,
    pub destination_port: Option<PortRange>,
    pub protocol: Option<Protocol>,
}

impl Rule {
    /// Returns the same rule with the bits behind each prefix cleared.
    pub(super) fn truncated(mut self) -> Self {
        self.source = self.source.map(|net| net.trunc());
        self.destination = self.destination.map(|net| net.trunc());
        self
    }

    /// Returns the family of the rule's addresses; `None` where both are `any`.
    pub fn family(&self) -> Option<Family> {
        let net = self.source.or(self.destination)?;
        Some(if net.addr().is_ipv4() { Family::V4 } else { Family::V6 })
    }

    /// Returns the patterns that the rule looks for, one for each pair of ports in its ranges, and
    /// those for each family where it is `proto icmp` without an address. All are of the same rank,
    /// and no packet fits two of them.
    pub fn patterns(&self) -> impl Iterator<Item = Pattern> + use<> {
        let (sources, destinations) =
            (PortRange::ports(self.source_port), PortRange::ports(self.destination_port));
        self.firsts().flat_map(move |first| {
            let destinations = destinations.clone();
            sources.clone().flat_map(move |source_port| {
                destinations.clone().map(move |destination_port| {
                    let key = Key { source_port, destination_port, ..first.key };
                    Pattern { key, ..first }
                })
            })
        })
    }

    /// Returns the signatures of the rule's patterns, each once.
    pub fn signatures(&self) -> impl Iterator<Item = Signature> + use<> {
        self.firsts().map(|pattern| pattern.signature)
    }

    /// Returns how many pairs of ports the rule names.
    pub fn port_pairs(&self) -> u64 {
        let count = |range| PortRange::ports(range).len() as u64;
        count(self.source_port) * count(self.destination_port)
    }

    /// Returns the pattern with the first port of each range, for each family that the rule is
    /// about.
    fn firsts(&self) -> impl Iterator<Item = Pattern> + use<> {
        let both = [Some(Family::V4), Some(Family::V6)];
        let families = match (self.family(), self.protocol) {
            (None, Some(Protocol::Icmp)) => both,
            (family, _) => [family, None],
        };
        let count = if families == both { 2 } else { 1 };
        families.map(|family| self.pattern(family)).into_iter().take(count)
    }

    fn pattern(&self, family: Option<Family>) -> Pattern {
        let protocol = self.protocol.map(|protocol| match (protocol, family) {
            (Protocol::Number(number), _) => number,
            (Protocol::Icmp, Some(Family::V6)) => ip_protocol::ICMPV6,
            (Protocol::Icmp, _) => ip_protocol::ICMP,
        });
        let bits = |net: Option<IpNet>| net.map_or(0, |net| net.prefix_len());
        let address = |net: Option<IpNet>| net.map_or(0, |net| left(net.network()));
        Pattern {
            signature: Signature {
                family,
                source_bits: bits(self.source),
                destination_bits: bits(self.destination),
                source_port: self.source_port.is_some(),
                destination_port: self.destination_port.is_some(),
                protocol: protocol.is_some(),
            },
            key: Key {
                source: address(self.source),
                destination: address(self.destination),
                source_port: *PortRange::ports(self.source_port).start(),
                destination_port: *PortRange::ports(self.destination_port).start(),
                protocol: protocol.unwrap_or(0),
            },
        }
    }

    /// Returns the thesis' measure of how specific the rule is: the sum of the widths of its masks
    /// in bits, from 0 to 296.
    pub fn rank(&self) -> u16 {
        self.pattern(self.family()).signature.rank()
    }

    /// Returns why no packet can ever fit the rule, where that is so.
    pub fn impossible(&self) -> Option<&'static str> {
        let asks_for_ports = self.source_port.is_some() || self.destination_port.is_some();
        let has_ports = match self.protocol {
            None => true,
            Some(Protocol::Icmp) => false,
            Some(Protocol::Number(number)) => ip_protocol::has_ports(number),
        };
        (asks_for_ports && !has_ports).then_some("it asks for ports, and its protocol has none")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Snaplen(bytes) => write!(f, "snaplen={bytes}"),
            Self::Group(name) => write!(f, "group={name}"),
            Self::Cutoff(bytes) => write!(f, "cutoff={}", Size(*bytes)),
        }
    }
}

/// Bytes in the largest unit of which they are a multiple, as a rule file has them.
struct Size(u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZE_UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit));
        let (name, unit) = unit.copied().unwrap_or(("", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// Writes one port, or the first and the last.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last > self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Icmp => f.write_str("icmp"),
            Self::Number(ip_protocol::TCP) => f.write_str("tcp"),
            Self::Number(ip_protocol::UDP) => f.write_str("udp"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Writes the rule as a line of a rule file, without the end of the line.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} src ", self.action)?;
        net(f, self.source)?;
        f.write_str(" dst ")?;
        net(f, self.destination)?;
        f.write_str(" sport ")?;
        or_any(f, self.source_port)?;
        f.write_str(" dport ")?;
        or_any(f, self.destination_port)?;
        f.write_str(" proto ")?;
        or_any(f, self.protocol)
    }
}

/// Writes a prefix, or the address where the prefix is a whole one.
fn net(f: &mut fmt::Formatter<'_>, net: Option<IpNet>) -> fmt::Result {
    let whole = net.filter(|net| net.prefix_len() == net.max_prefix_len());
    match whole.map(|net| net.addr()) {
        Some(address) => or_any::<IpAddr>(f, Some(address)),
        None => or_any(f, net),
    }
}

fn or_any<T: fmt::Display>(f: &mut fmt::Formatter<'_>, value: Option<T>) -> fmt::Result {
    match value {
        Some(value) => write!(f, "{value}"),
        None => f.write_str("any"),
    }
}
