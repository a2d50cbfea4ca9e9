//! What can a packet be found by?
//!
//! A **key** is one thing that stands in a packet's headers, of one **class**: the address
//! `10.0.0.1` as an IPv4 source, the number 443 as a destination port. The walk over headers
//! ([`crate::header`]) says which keys a packet has, the index of a store remembers which packets
//! have a key, and the plan of a query ([`crate::filter`]) says which keys the packets must have
//! that are asked for. All three use this list of classes.
//!
//! A packet's keys are those of all its headers at any depth, outer and inner, so that a question
//! about either finds the packet. Keys say where it is worth looking; whether a packet is in an
//! answer, libpcap's filter program decides.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A kind of key. Its number stands in files (`docs/FORMAT.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// EtherType of the payload of an Ethernet, cooked, GRE or GENEVE header. Where the header has
    /// none (MPLS, raw IP), the one that the payload's first bits show.
    EtherType = 0,
    /// VLAN id of any IEEE 802.1Q or 802.1ad tag.
    Vlan = 1,
    /// Label of any entry of an MPLS stack.
    Mpls = 2,
    /// Protocol of an IPv4 header, and every next header in the chain of an IPv6 packet.
    Protocol = 3,
    SourcePort = 4,
    DestinationPort = 5,
    /// IPv4 source, and ARP and RARP sender protocol address.
    SourceIpv4 = 6,
    /// IPv4 destination, and ARP and RARP target protocol address.
    DestinationIpv4 = 7,
    SourceIpv6 = 8,
    DestinationIpv6 = 9,
    SourceMac = 10,
    DestinationMac = 11,
    /// What was shed in a granule of the packets of one interface. No packet is looked for by it:
    /// what it says stands in the key (`tapdeck_store`).
    Shed = 12,
}

impl Class {
    pub const ALL: [Self; 13] = [
        Self::EtherType,
        Self::Vlan,
        Self::Mpls,
        Self::Protocol,
        Self::SourcePort,
        Self::DestinationPort,
        Self::SourceIpv4,
        Self::DestinationIpv4,
        Self::SourceIpv6,
        Self::DestinationIpv6,
        Self::SourceMac,
        Self::DestinationMac,
        Self::Shed,
    ];

    /// Length of a key in bytes.
    pub const fn width(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::EtherType | Self::Vlan | Self::SourcePort | Self::DestinationPort => 2,
            Self::Mpls => 3,
            Self::SourceIpv4 | Self::DestinationIpv4 => 4,
            Self::SourceMac | Self::DestinationMac => 6,
            Self::SourceIpv6 | Self::DestinationIpv6 | Self::Shed => 16,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::EtherType => "ether type",
            Self::Vlan => "vlan",
            Self::Mpls => "mpls label",
            Self::Protocol => "protocol",
            Self::SourcePort => "source port",
            Self::DestinationPort => "destination port",
            Self::SourceIpv4 | Self::SourceIpv6 => "source address",
            Self::DestinationIpv4 | Self::DestinationIpv6 => "destination address",
            Self::SourceMac => "source MAC",
            Self::DestinationMac => "destination MAC",
            Self::Shed => "shed",
        }
    }
}

/// A taker of the keys of a packet.
pub trait Keys {
    /// Takes a key: a number of [`Class::width`] bytes; an address is the number that its bytes are
    /// in network byte order. The same key may come more than once.
    fn key(&mut self, class: Class, key: u128);
}

/// Which packets can be in an answer, as far as keys tell. A packet that a plan leaves out is
/// certainly not in the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Any packet.
    All,
    /// Packets with a key from `first` to `last`, both included.
    Keys { class: Class, first: u128, last: u128 },
    /// Packets that all of these plans admit.
    Every(Vec<Plan>),
    /// Packets that at least one of these plans admits; no packet if the list is empty.
    Any(Vec<Plan>),
}

/// The plan in words.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plans, word) = match self {
            Self::All => return f.write_str("anything"),
            Self::Keys { class, first, last } => return keys(f, *class, *first, *last),
            Self::Every(plans) if plans.is_empty() => return f.write_str("anything"),
            Self::Any(plans) if plans.is_empty() => return f.write_str("nothing"),
            Self::Every(plans) => (plans, " and "),
            Self::Any(plans) => (plans, " or "),
        };
        for (i, plan) in plans.iter().enumerate() {
            if i > 0 {
                f.write_str(word)?;
            }
            match one(plan) {
                Self::Every(inner) | Self::Any(inner) if inner.len() > 1 && plans.len() > 1 => {
                    write!(f, "({plan})")?;
                }
                plan => write!(f, "{plan}")?,
            }
        }
        Ok(())
    }
}

/// Returns the one member of a list that has one, instead of the list.
fn one(plan: &Plan) -> &Plan {
    match plan {
        Plan::Every(plans) | Plan::Any(plans) if plans.len() == 1 => one(&plans[0]),
        plan => plan,
    }
}

/// Writes a key, or the keys from one to another; addresses as a network if they are one.
fn keys(f: &mut fmt::Formatter<'_>, class: Class, first: u128, last: u128) -> fmt::Result {
    write!(f, "{} {}", class.name(), show_key(class, first))?;
    let differs = first ^ last;
    let is_network = first & differs == 0 && differs & differs.wrapping_add(1) == 0;
    match class {
        _ if first == last => Ok(()),
        Class::SourceIpv4 | Class::DestinationIpv4 | Class::SourceIpv6 | Class::DestinationIpv6
            if is_network =>
        {
            write!(f, "/{}", 8 * class.width() as u32 - differs.count_ones())
        }
        _ => write!(f, " to {}", show_key(class, last)),
    }
}

fn show_key(class: Class, key: u128) -> String {
    match class {
        Class::EtherType => format!("0x{key:04x}"),
        Class::SourceIpv4 | Class::DestinationIpv4 => Ipv4Addr::from(key as u32).to_string(),
        Class::SourceIpv6 | Class::DestinationIpv6 => Ipv6Addr::from(key).to_string(),
        Class::SourceMac | Class::DestinationMac => {
            let bytes: Vec<String> =
                key.to_be_bytes()[10..].iter().map(|b| format!("{b:02x}")).collect();
            bytes.join(":")
        }
        Class::SourcePort
        | Class::DestinationPort
        | Class::Protocol
        | Class::Vlan
        | Class::Mpls
        | Class::Shed => key.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Plan};

    fn show(plan: &Plan) -> String {
        plan.to_string()
    }

    fn range(class: Class, first: u128, last: u128) -> Plan {
        Plan::Keys { class, first, last }
    }

    #[test]
    fn plans_read_like_sentences() {
        let host = |key| {
            Plan::Any(vec![
                range(Class::SourceIpv4, key, key),
                range(Class::DestinationIpv4, key, key),
            ])
        };
        let plan = Plan::Every(vec![host(0x0a00_0001), range(Class::Protocol, 6, 6)]);
        assert_eq!(
            show(&plan),
            "(source address 10.0.0.1 or destination address 10.0.0.1) and protocol 6"
        );
        assert_eq!(show(&Plan::Every(vec![Plan::Any(vec![])])), "nothing");
        assert_eq!(show(&Plan::Every(vec![])), "anything");
    }

    #[test]
    fn ranges_of_addresses_are_networks_where_they_can_be() {
        let net = range(Class::SourceIpv4, 0x0a00_0000, 0x0aff_ffff);
        assert_eq!(show(&net), "source address 10.0.0.0/8");
        let odd = range(Class::SourceIpv4, 0x0a00_0001, 0x0a00_0002);
        assert_eq!(show(&odd), "source address 10.0.0.1 to 10.0.0.2");
        let all = range(Class::DestinationIpv6, 0, u128::MAX);
        assert_eq!(show(&all), "destination address ::/0");
        assert_eq!(show(&range(Class::SourcePort, 80, 95)), "source port 80 to 95");
        let mac = range(Class::SourceMac, 0x0200_0000_0009, 0x0200_0000_0009);
        assert_eq!(show(&mac), "source MAC 02:00:00:00:00:09");
        assert_eq!(show(&range(Class::EtherType, 0x0806, 0x0806)), "ether type 0x0806");
    }
}
