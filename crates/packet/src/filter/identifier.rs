//! Identifiers, and what their qualifiers make of them: addresses, ports, numbers of protocols,
//! names. This is the part of the parser that reads a primitive with an identifier; the rest is in
//! `parse.rs`.

use std::net::Ipv4Addr;

use super::parse::{Parsed, Parser};
use super::scan::Token;
use super::{Kind, Leaf, Protocol, Qualifiers, Sign};
use crate::numbers::ip_protocol;

impl Parser<'_> {
    pub(super) fn numbered(&self, qualifiers: Qualifiers, number: u32) -> Parsed<Leaf> {
        let Qualifiers { protocol, direction, kind } = qualifiers;
        let port = u16::try_from(number);
        let ipv4 = |address: u32, mask: u32| Leaf::Ipv4 {
            protocol,
            direction,
            address: address.into(),
            mask: mask.into(),
        };
        Ok(match (kind, port) {
            (Kind::Proto, _) => Leaf::Number { protocol, number },
            (Kind::ProtoChain, _) => Leaf::Named { qualifiers, name: number.to_string() },
            (Kind::Host | Kind::Net, _) if is_decnet(protocol) => {
                Leaf::Named { qualifiers, name: number.to_string() }
            }
            (Kind::Host, _) => ipv4(number, u32::MAX),
            (Kind::Net, _) => {
                // The number stands for the leftmost bytes of the address; but 0 is a host.
                let shift = if number == 0 { 0 } else { number.leading_zeros() / 8 * 8 };
                ipv4(number << shift, u32::MAX << shift)
            }
            (Kind::Port, Ok(port)) => Leaf::Port { protocol, direction, port },
            (Kind::PortRange, Ok(port)) => {
                Leaf::PortRange { protocol, direction, first: port, last: port }
            }
            (Kind::Port | Kind::PortRange, Err(_)) => {
                return self.fail("no port has the number before this");
            }
            (Kind::Gateway, _) => return self.fail("a gateway has a name"),
        })
    }

    /// Reads an identifier that is not a number.
    pub(super) fn identifier(&mut self, qualifiers: Qualifiers) -> Parsed<Leaf> {
        let Qualifiers { protocol, direction, kind } = qualifiers;
        let is_address = matches!(kind, Kind::Host | Kind::Net);
        match self.next()? {
            Token::Name(text) => Ok(named(qualifiers, text)),
            Token::Dotted { text, .. } if is_decnet(protocol) => {
                Ok(Leaf::Named { qualifiers, name: text.to_owned() })
            }
            Token::Dotted { address, bits, .. } if is_address => {
                self.ipv4(qualifiers, address, bits)
            }
            Token::Ipv6(address) if is_address => {
                let prefix_bits = if self.takes("/") { self.number()? } else { 128 };
                let host_bits = u128::MAX.checked_shr(prefix_bits).unwrap_or(0);
                let is_prefix = prefix_bits <= 128 && address.to_bits() & host_bits == 0;
                if !is_prefix || (kind == Kind::Host && prefix_bits != 128) {
                    return self.refuse("not a prefix");
                }
                Ok(Leaf::Ipv6 { protocol, direction, address, prefix_bits })
            }
            Token::Mac(address)
                if kind == Kind::Host && protocol.is_some_and(|p| p.is("ether")) =>
            {
                Ok(Leaf::Mac { direction, address })
            }
            _ => self.refuse("not an identifier of its kind"),
        }
    }

    /// Reads what may follow an IPv4 address: a mask, or the length of a prefix. Without one, the
    /// `bits` of the address that were written count.
    fn ipv4(&mut self, qualifiers: Qualifiers, address: Ipv4Addr, bits: u32) -> Parsed<Leaf> {
        let Qualifiers { protocol, direction, kind } = qualifiers;
        let left = |bits: u32| Ipv4Addr::from(!u32::MAX.checked_shr(bits).unwrap_or(0));
        let mask = if self.takes("/") {
            Some(self.number()?).filter(|bits| *bits <= 32).map(left)
        } else if self.takes("mask") {
            match self.next()? {
                Token::Dotted { address, .. } => Some(address),
                _ => None,
            }
        } else {
            return Ok(Leaf::Ipv4 { protocol, direction, address, mask: left(bits) });
        };
        match mask {
            Some(mask) if kind == Kind::Net && (address & !mask).is_unspecified() => {
                Ok(Leaf::Ipv4 { protocol, direction, address, mask })
            }
            _ => self.refuse("not a network"),
        }
    }
}

fn is_decnet(protocol: Option<Protocol>) -> bool {
    protocol.is_some_and(|p| p.is("decnet"))
}

/// Writes a name with a backslash, which keeps it from being read as a keyword.
pub(super) fn escaped(name: &str) -> String {
    format!("\\{name}")
}

fn named(qualifiers: Qualifiers, text: &str) -> Leaf {
    let Qualifiers { protocol, direction, kind } = qualifiers;
    let known = match kind {
        Kind::PortRange => {
            ports(text).map(|(first, last)| Leaf::PortRange { protocol, direction, first, last })
        }
        Kind::Proto => proto(protocol, text).map(|number| Leaf::Number { protocol, number }),
        _ => None,
    };
    known.unwrap_or_else(|| Leaf::Named { qualifiers, name: escaped(text) })
}

/// Reads a range of ports and returns the lower one first, in whichever order they are written.
fn ports(text: &str) -> Option<(u16, u16)> {
    let is_decimal = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
    let number = |text: &str| Some(text).filter(is_decimal)?.parse::<u16>().ok();
    let (first, last) = text.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    Some((first.min(last), first.max(last)))
}

/// Returns the number of a protocol whose name has one meaning everywhere. If the system has
/// another meaning for the name, libpcap makes different programs of name and number, and the
/// expression counts as not understood.
fn proto(protocol: Option<Protocol>, name: &str) -> Option<u32> {
    const OTHERS: &[(&str, u8)] = &[
        ("gre", ip_protocol::GRE),
        ("ipv6-icmp", ip_protocol::ICMPV6),
        ("ospf", ip_protocol::OSPF),
    ];
    let other =
        || OTHERS.iter().find(|(known, _)| *known == name).map(|(_, number)| u32::from(*number));
    let sign = Protocol::named(name).map(|p| p.sign);
    match (protocol.map(|p| p.name), sign) {
        (Some("ether"), Some(Sign::EtherType(number))) => Some(number.into()),
        (None | Some("ip" | "ip6"), Some(Sign::Number(number))) => Some(number.into()),
        (None | Some("ip" | "ip6"), None) => other(),
        _ => None,
    }
}
