//! The printed form of an expression. Nothing in it is left to precedence, to defaults or to the
//! qualifiers of an identifier before.

use std::fmt::{Display, Formatter, Result};
use std::net::Ipv4Addr;

use super::{Arithmetic, Direction, Expression, Kind, Leaf, Node, Protocol, Qualifiers};

impl Display for Expression {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.fmt(f)
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::And(nodes) => row(f, nodes, " and "),
            Self::Or(nodes) => row(f, nodes, " or "),
            Self::Not(node) => write!(f, "(not {node})"),
            Self::Leaf(Leaf::Protocol(protocol)) => f.write_str(protocol.name),
            Self::Leaf(leaf) => write!(f, "({leaf})"),
        }
    }
}

fn row(f: &mut Formatter<'_>, nodes: &[Node], between: &str) -> Result {
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    write!(f, "({})", nodes.join(between))
}

impl Display for Leaf {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let qualify = |protocol: &Option<Protocol>, direction: &Direction, kind| Qualifiers {
            protocol: *protocol,
            direction: *direction,
            kind,
        };
        match self {
            Self::Protocol(protocol) => f.write_str(protocol.name),
            Self::Ipv4 { protocol, direction, address, mask: Ipv4Addr::BROADCAST } => {
                write!(f, "{} {address}", qualify(protocol, direction, Kind::Host))
            }
            Self::Ipv4 { protocol, direction, address, mask } => {
                let qualifiers = qualify(protocol, direction, Kind::Net);
                let bits = mask.to_bits().leading_ones();
                if bits == mask.to_bits().count_ones() {
                    write!(f, "{qualifiers} {address}/{bits}")
                } else {
                    write!(f, "{qualifiers} {address} mask {mask}")
                }
            }
            Self::Ipv6 { protocol, direction, address, prefix_bits: 128 } => {
                write!(f, "{} {address}", qualify(protocol, direction, Kind::Host))
            }
            Self::Ipv6 { protocol, direction, address, prefix_bits } => {
                let qualifiers = qualify(protocol, direction, Kind::Net);
                write!(f, "{qualifiers} {address}/{prefix_bits}")
            }
            Self::Mac { direction, address } => {
                let bytes = address.map(|byte| format!("{byte:02x}"));
                write!(f, "ether {}host {}", Word(*direction), bytes.join(":"))
            }
            Self::Port { protocol, direction, port } => {
                write!(f, "{} {port}", qualify(protocol, direction, Kind::Port))
            }
            Self::PortRange { protocol, direction, first, last } => {
                write!(f, "{} {first}-{last}", qualify(protocol, direction, Kind::PortRange))
            }
            Self::Number { protocol, number } => {
                write!(f, "{} {number}", qualify(protocol, &Direction::Either, Kind::Proto))
            }
            Self::Vlan(number) => with_number(f, "vlan", *number),
            Self::Mpls(number) => with_number(f, "mpls", *number),
            Self::PppoeDiscovery => f.write_str("pppoed"),
            Self::PppoeSession(number) => with_number(f, "pppoes", *number),
            Self::Geneve(number) => with_number(f, "geneve", *number),
            Self::Broadcast(protocol) => write!(f, "{}broadcast", Before(*protocol)),
            Self::Relation { left, comparison, right } => {
                write!(f, "{left} {comparison} {right}")
            }
            Self::Named { qualifiers, name } => write!(f, "{qualifiers} {name}"),
            Self::Words(words) => f.write_str(&words.join(" ")),
        }
    }
}

fn with_number(f: &mut Formatter<'_>, word: &str, number: Option<u32>) -> Result {
    match number {
        Some(number) => write!(f, "{word} {number}"),
        None => f.write_str(word),
    }
}

impl Display for Qualifiers {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let kind = match self.kind {
            Kind::Host => "host",
            Kind::Net => "net",
            Kind::Port => "port",
            Kind::PortRange => "portrange",
            Kind::Proto => "proto",
            Kind::ProtoChain => "protochain",
            Kind::Gateway => "gateway",
        };
        let has_direction = !matches!(self.kind, Kind::Proto | Kind::ProtoChain | Kind::Gateway);
        Before(self.protocol).fmt(f)?;
        if has_direction {
            Word(self.direction).fmt(f)?;
        }
        f.write_str(kind)
    }
}

/// Prints a protocol with a space behind it, or nothing.
struct Before(Option<Protocol>);

impl Display for Before {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.map_or(Ok(()), |protocol| write!(f, "{} ", protocol.name))
    }
}

/// Prints a direction with a space behind it.
struct Word(Direction);

impl Display for Word {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self.0 {
            Direction::Either => "src or dst ",
            Direction::Source => "src ",
            Direction::Destination => "dst ",
            Direction::Both => "src and dst ",
            Direction::Wlan(word) => return write!(f, "{word} "),
        })
    }
}

impl Display for Arithmetic {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Length => f.write_str("len"),
            Self::Load { protocol, at, bytes } => write!(f, "{}[{at}:{bytes}]", protocol.name),
            Self::Negative(operand) => write!(f, "(- {operand})"),
            Self::Binary { left, operator, right } => write!(f, "({left} {operator} {right})"),
        }
    }
}
