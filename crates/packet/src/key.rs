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
