//! What does a filter expression say of the packets that it asks for?
//!
//! libpcap compiles pcap-filter(7) and decides about every packet; nothing here does that. But a
//! store can be read faster where it is known which [keys](crate::key) the packets must have, and
//! that stands in the text. So [`parse`] reads the text as libpcap's grammar has it, and an
//! [`Expression`] says two things: its [`plan`](Expression::plan), and itself, with all that the
//! user left out spelled out. The printed form makes the plan safe to believe: if libpcap compiles
//! it to the same program as the user's text, the expression was understood. An expression that is
//! not understood is no fault; its packets must be looked for everywhere.
//!
//! The parser follows `grammar.y`, `scanner.l` and `gencode.c` of libpcap 1.10. It takes some texts
//! that libpcap refuses; these are refused before they come this far.

mod identifier;
mod parse;
mod plan;
mod print;
mod scan;

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::numbers::{ether_type, ip_protocol};

pub use parse::parse;

/// Returns whether libpcap may look up the address of a name when it compiles a text. Names of
/// ports and protocols stand in files; of a text that is not understood, any name may be a host's.
pub fn asks_for_names(text: &str) -> bool {
    if text.trim().is_empty() {
        return false;
    }
    parse(text).map_or_else(|_| scan::has_name(text), |expression| expression.0.asks_for_names())
}

impl Node {
    fn asks_for_names(&self) -> bool {
        match self {
            Self::And(nodes) | Self::Or(nodes) => nodes.iter().any(Self::asks_for_names),
            Self::Not(node) => node.asks_for_names(),
            Self::Leaf(Leaf::Named { qualifiers, name }) => {
                matches!(qualifiers.kind, Kind::Host | Kind::Net | Kind::Gateway)
                    && name.starts_with('\\')
            }
            Self::Leaf(_) => false,
        }
    }
}

/// Why a text was not understood: it is no filter expression, or one of a form that is not known
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not understood from byte {at} on: {what}")]
pub struct NotUnderstood {
    /// The byte of the text from which on it was not understood.
    pub at: usize,
    /// What stood there, or should have.
    pub what: &'static str,
}

/// A filter expression. Its printed form has parentheses and all qualifiers, and libpcap makes the
/// same program of it as of the text that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression(Node);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// All operands of a row of `and`. `and` and `or` bind alike, from the left.
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Leaf(Leaf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leaf {
    Protocol(Protocol),
    /// `host` or `net`.
    Ipv4 {
        protocol: Option<Protocol>,
        direction: Direction,
        address: Ipv4Addr,
        mask: Ipv4Addr,
    },
    Ipv6 {
        protocol: Option<Protocol>,
        direction: Direction,
        address: Ipv6Addr,
        prefix_bits: u32,
    },
    Mac {
        direction: Direction,
        address: [u8; 6],
    },
    Port {
        protocol: Option<Protocol>,
        direction: Direction,
        port: u16,
    },
    /// `first` is not above `last`.
    PortRange {
        protocol: Option<Protocol>,
        direction: Direction,
        first: u16,
        last: u16,
    },
    /// `proto NUMBER`
    Number {
        protocol: Option<Protocol>,
        number: u32,
    },
    Vlan(Option<u32>),
    Mpls(Option<u32>),
    PppoeDiscovery,
    PppoeSession(Option<u32>),
    Geneve(Option<u32>),
    Broadcast(Option<Protocol>),
    Relation {
        left: Arithmetic,
        comparison: &'static str,
        right: Arithmetic,
    },
    /// A name that only the system can resolve, or another identifier for which there is no key.
    Named {
        qualifiers: Qualifiers,
        name: String,
    },
    /// The words of a primitive for which there is no key.
    Words(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Arithmetic {
    Number(u32),
    Length,
    /// `protocol[at : bytes]`
    Load {
        protocol: Protocol,
        at: Box<Arithmetic>,
        bytes: u32,
    },
    Negative(Box<Arithmetic>),
    Binary {
        left: Box<Arithmetic>,
        operator: &'static str,
        right: Box<Arithmetic>,
    },
}

/// The qualifiers before an identifier. They also hold for the next identifier that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Qualifiers {
    protocol: Option<Protocol>,
    direction: Direction,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// `src or dst`, which is also the default.
    Either,
    Source,
    Destination,
    Both,
    /// An address of an IEEE 802.11 header, by its keyword.
    Wlan(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
    ProtoChain,
    Gateway,
}

/// A protocol that has a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Protocol {
    name: &'static str,
    sign: Sign,
}

/// The key by which a packet of a protocol can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    EtherType(u16),
    /// A protocol in IPv4, or a next header in IPv6.
    Number(u8),
    /// None: the protocol is the link layer, or there is no key for it.
    Other,
}

impl Protocol {
    fn named(name: &str) -> Option<Self> {
        use Sign::{EtherType, Number, Other};
        /// Keywords that mean the same to libpcap: the link layer, whatever it is.
        const LINK: [&str; 7] = ["link", "ether", "ppp", "slip", "fddi", "tr", "wlan"];
        const PROTOCOLS: &[(&str, Sign)] = &[
            ("ip", EtherType(ether_type::IPV4)),
            ("ip6", EtherType(ether_type::IPV6)),
            ("arp", EtherType(ether_type::ARP)),
            ("rarp", EtherType(ether_type::RARP)),
            ("atalk", EtherType(ether_type::APPLETALK)),
            ("aarp", EtherType(ether_type::APPLETALK_ARP)),
            ("decnet", EtherType(ether_type::DECNET)),
            ("lat", EtherType(ether_type::DEC_LAT)),
            ("sca", EtherType(ether_type::DEC_SCA)),
            ("mopdl", EtherType(ether_type::DEC_MOP_DUMP)),
            ("moprc", EtherType(ether_type::DEC_MOP_REMOTE_CONSOLE)),
            ("icmp", Number(ip_protocol::ICMP)),
            ("igmp", Number(ip_protocol::IGMP)),
            ("tcp", Number(ip_protocol::TCP)),
            ("igrp", Number(ip_protocol::IGRP)),
            ("udp", Number(ip_protocol::UDP)),
            ("esp", Number(ip_protocol::ESP)),
            ("ah", Number(ip_protocol::AUTHENTICATION)),
            ("icmp6", Number(ip_protocol::ICMPV6)),
            ("pim", Number(ip_protocol::PIM)),
            ("vrrp", Number(ip_protocol::VRRP)),
            ("carp", Number(ip_protocol::VRRP)),
            ("sctp", Number(ip_protocol::SCTP)),
            ("iso", Other),
            ("esis", Other),
            ("es-is", Other),
            ("isis", Other),
            ("is-is", Other),
            ("l1", Other),
            ("l2", Other),
            ("iih", Other),
            ("lsp", Other),
            ("snp", Other),
            ("csnp", Other),
            ("psnp", Other),
            ("clnp", Other),
            ("stp", Other),
            ("ipx", Other),
            ("netbeui", Other),
            ("radio", Other),
        ];
        if LINK.contains(&name) {
            return Some(Self { name: "ether", sign: Other });
        }
        let (name, sign) = PROTOCOLS.iter().find(|(known, _)| *known == name)?;
        Some(Self { name, sign: *sign })
    }

    fn is(self, name: &str) -> bool {
        self.name == name
    }
}
