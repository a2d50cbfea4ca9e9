//! Which keys has a packet for which an expression holds?
//!
//! A packet's keys are those of all its headers at any depth, more than libpcap looks at. So
//! wherever in a packet libpcap finds a primitive true, the packet has the primitive's keys. But no
//! key says that a negation is true; a negation's plan is [`Plan::All`].
//!
//! One thing needs care. The primitives `vlan`, `mpls`, `pppoes` and `geneve` **move** the offsets
//! of all primitives to their right, whether or not they hold. In `vlan and host A` that is as it
//! should be. In `vlan or host A` libpcap looks for A four bytes further also in packets without a
//! tag, and what it finds there is no address and has no key. So nothing is planned for a primitive
//! unless every mover to its left holds in all packets for which the whole expression holds.

use std::net::Ipv4Addr;

use super::{Arithmetic, Direction, Expression, Leaf, Node, Protocol, Sign};
use crate::key::{Class, Plan};
use crate::numbers::{ether_type, ip_protocol, udp_port};

impl Expression {
    /// Returns the keys of the packets for which the expression holds. Other packets may have them
    /// too.
    pub fn plan(&self) -> Plan {
        self.0.seen(false, true).plan
    }
}

/// What is known of a node.
struct Seen {
    plan: Plan,
    /// Some mover stands in the node.
    moves: bool,
    /// All movers in the node hold where the node is true.
    is_sure: bool,
}

impl Node {
    /// Plans the node. With `is_negated`, what counts is where the node is false. With `is_placed`,
    /// the movers to its left hold.
    fn seen(&self, is_negated: bool, is_placed: bool) -> Seen {
        match self {
            Self::Not(node) => node.seen(!is_negated, is_placed),
            // De Morgan's laws.
            Self::And(nodes) if is_negated => any(nodes, true, is_placed),
            Self::Or(nodes) if is_negated => every(nodes, true, is_placed),
            Self::And(nodes) => every(nodes, false, is_placed),
            Self::Or(nodes) => any(nodes, false, is_placed),
            Self::Leaf(leaf) => {
                let moves = leaf.moves();
                let plan = if is_negated || !is_placed { Plan::All } else { leaf.plan() };
                Seen { plan, moves, is_sure: !(moves && is_negated) }
            }
        }
    }
}

fn every(nodes: &[Node], is_negated: bool, mut is_placed: bool) -> Seen {
    let (mut moves, mut is_sure) = (false, true);
    let plans = nodes.iter().map(|node| {
        let seen = node.seen(is_negated, is_placed);
        moves |= seen.moves;
        is_sure &= seen.is_sure;
        is_placed &= seen.is_sure;
        seen.plan
    });
    let plan = all_of(plans.collect());
    Seen { plan, moves, is_sure }
}

fn any(nodes: &[Node], is_negated: bool, mut is_placed: bool) -> Seen {
    let mut moves = false;
    let plans = nodes.iter().map(|node| {
        let seen = node.seen(is_negated, is_placed);
        moves |= seen.moves;
        // The next node is looked at where this one is false.
        is_placed &= !seen.moves;
        seen.plan
    });
    let plan = one_of(plans.collect());
    Seen { plan, moves, is_sure: !moves }
}

/// Returns the plan of packets that all `plans` admit.
fn all_of(plans: Vec<Plan>) -> Plan {
    let mut flat = Vec::new();
    for plan in plans {
        let inner = match plan {
            Plan::Every(inner) => inner,
            Plan::All => continue,
            plan => vec![plan],
        };
        for plan in inner {
            if !flat.contains(&plan) {
                flat.push(plan);
            }
        }
    }
    match flat.len() {
        0 => Plan::All,
        1 => flat.remove(0),
        _ => Plan::Every(flat),
    }
}

/// Returns the plan of packets that at least one of `plans` admits. The list is not empty.
fn one_of(plans: Vec<Plan>) -> Plan {
    let mut flat = Vec::new();
    for plan in plans {
        let inner = match plan {
            Plan::Any(inner) => inner,
            Plan::All => return Plan::All,
            plan => vec![plan],
        };
        for plan in inner {
            if !flat.contains(&plan) {
                flat.push(plan);
            }
        }
    }
    if flat.len() == 1 { flat.remove(0) } else { Plan::Any(flat) }
}

fn key(class: Class, key: impl Into<u128>) -> Plan {
    let key = key.into();
    Plan::Keys { class, first: key, last: key }
}

fn has_ether_type(number: u16) -> Plan {
    key(Class::EtherType, number)
}

impl Leaf {
    fn moves(&self) -> bool {
        matches!(self, Self::Vlan(_) | Self::Mpls(_) | Self::PppoeSession(_) | Self::Geneve(_))
    }

    fn plan(&self) -> Plan {
        match *self {
            Self::Protocol(protocol) => protocol.plan(),
            Self::Ipv4 { protocol, direction, address, mask } => {
                ipv4(protocol, direction, address, mask)
            }
            Self::Ipv6 { direction, address, prefix_bits, .. } => match prefix_bits {
                // No byte of the address is looked at.
                0 => has_ether_type(ether_type::IPV6),
                bits => {
                    let first = address.to_bits();
                    let last = first | u128::MAX.checked_shr(bits).unwrap_or(0);
                    directed(direction, Class::SourceIpv6, Class::DestinationIpv6, first, last)
                }
            },
            Self::Mac { direction, address } => {
                let mac = address.iter().fold(0, |mac, byte| mac << 8 | u128::from(*byte));
                directed(direction, Class::SourceMac, Class::DestinationMac, mac, mac)
            }
            Self::Port { protocol, direction, port } => ports(protocol, direction, port, port),
            Self::PortRange { protocol, direction, first, last } => {
                ports(protocol, direction, first, last)
            }
            Self::Number { protocol, number } => numbered(protocol, number),
            Self::Vlan(number) => {
                let tagged = ether_type::VLAN_TAGS.map(has_ether_type);
                let vlan = number.map_or(Plan::All, |number| key(Class::Vlan, number));
                all_of(vec![Plan::Any(tagged.to_vec()), vlan])
            }
            // libpcap does not look for multicast. A packet with a second label has a first one.
            Self::Mpls(number) => {
                let label = number.map_or(Plan::All, |number| key(Class::Mpls, number));
                all_of(vec![has_ether_type(ether_type::MPLS), label])
            }
            Self::PppoeDiscovery => has_ether_type(ether_type::PPPOE_DISCOVERY),
            Self::PppoeSession(_) => has_ether_type(ether_type::PPPOE_SESSION),
            Self::Geneve(_) => all_of(vec![
                key(Class::Protocol, ip_protocol::UDP),
                key(Class::DestinationPort, udp_port::GENEVE),
            ]),
            Self::Broadcast(protocol) if protocol.is_none_or(|p| p.is("ether")) => {
                key(Class::DestinationMac, 0xffff_ffff_ffff_u64)
            }
            Self::Relation { ref left, ref right, .. } => all_of(vec![left.guard(), right.guard()]),
            Self::Broadcast(_) | Self::Named { .. } | Self::Words(_) => Plan::All,
        }
    }
}

impl Protocol {
    fn plan(self) -> Plan {
        match self.sign {
            Sign::EtherType(number) => has_ether_type(number),
            Sign::Number(number) => key(Class::Protocol, number),
            Sign::Other => Plan::All,
        }
    }
}

fn directed(
    direction: Direction,
    source: Class,
    destination: Class,
    first: u128,
    last: u128,
) -> Plan {
    let keys = |class| Plan::Keys { class, first, last };
    match direction {
        Direction::Source => keys(source),
        Direction::Destination => keys(destination),
        Direction::Either => Plan::Any(vec![keys(source), keys(destination)]),
        Direction::Both => Plan::Every(vec![keys(source), keys(destination)]),
        Direction::Wlan(_) => Plan::All,
    }
}

/// Plans an IPv4 address. Without a protocol it is one of IPv4, ARP or RARP, which share their
/// classes.
fn ipv4(
    protocol: Option<Protocol>,
    direction: Direction,
    address: Ipv4Addr,
    mask: Ipv4Addr,
) -> Plan {
    // If the mask has gaps, the ones that it begins with.
    let prefix_bits = mask.to_bits().leading_ones();
    let host_bits = u32::MAX.checked_shr(prefix_bits).unwrap_or(0);
    let (first, last) = (address.to_bits() & !host_bits, address.to_bits() | host_bits);
    let (source, destination) = (Class::SourceIpv4, Class::DestinationIpv4);
    let addresses = directed(direction, source, destination, first.into(), last.into());
    let kinds = match protocol {
        Some(protocol) => protocol.plan(),
        None => Plan::Any(
            [ether_type::IPV4, ether_type::ARP, ether_type::RARP].map(has_ether_type).to_vec(),
        ),
    };
    if mask.is_unspecified() {
        // No byte of the address is looked at.
        kinds
    } else if protocol.is_none_or(|p| p.is("ip")) {
        // Nearly all packets are IPv4, so that key would not help.
        addresses
    } else {
        all_of(vec![kinds, addresses])
    }
}

/// Plans ports from `first` to `last`. Without a protocol they may be of any protocol that has
/// ports.
fn ports(protocol: Option<Protocol>, direction: Direction, first: u16, last: u16) -> Plan {
    let (source, destination) = (Class::SourcePort, Class::DestinationPort);
    let ports = directed(direction, source, destination, first.into(), last.into());
    all_of(vec![protocol.map_or(Plan::All, Protocol::plan), ports])
}

/// Plans `proto NUMBER`.
fn numbered(protocol: Option<Protocol>, number: u32) -> Plan {
    /// Numbers up to here are lengths, behind which an IEEE 802.2 header stands; there is no key
    /// for those.
    const ETHERNET_MTU: u16 = 1500;
    let carried = || u8::try_from(number).map_or(Plan::All, |number| key(Class::Protocol, number));
    match protocol {
        None => carried(),
        Some(protocol) if protocol.is("ether") => match u16::try_from(number) {
            Ok(number) if number > ETHERNET_MTU => has_ether_type(number),
            _ => Plan::All,
        },
        Some(protocol) if protocol.is("ip") || protocol.is("ip6") => {
            all_of(vec![protocol.plan(), carried()])
        }
        Some(_) => Plan::All,
    }
}

impl Arithmetic {
    /// Plans what libpcap tests before it computes. Of two operands, libpcap tests only for the
    /// left one.
    fn guard(&self) -> Plan {
        match self {
            Self::Number(_) | Self::Length => Plan::All,
            Self::Load { protocol, at, .. } => all_of(vec![at.guard(), protocol.plan()]),
            Self::Negative(operand) => operand.guard(),
            Self::Binary { left, .. } => left.guard(),
        }
    }
}
