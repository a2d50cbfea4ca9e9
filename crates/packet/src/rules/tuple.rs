//! What do rules see of a packet?
//!
//! Its outer 5-tuple. The reader takes the frame as it stands on the wire: an Ethernet header with
//! up to [`MAX_TAGS`] VLAN tags, or what another link type has before IP; then IPv4 with its
//! options, or IPv6 with up to [`MAX_EXTENSIONS`] extension headers. It does not look into tunnels,
//! MPLS and PPPoE. The hook programs read the same way (`bpf/headers.h`).
//!
//! A field that cannot be read is **unknown**, and the packet fits no rule that asks for it:
//! - a frame without an IP packet, or with one whose fixed header is cut short or of another
//!   version, has no family;
//! - ports are known of TCP, UDP, UDP-Lite, SCTP and DCCP, where the frame reaches so far; of a
//!   fragment only if it is the first;
//! - the protocol of an IPv6 packet is that of the first header that is no extension header. Where
//!   the chain of extension headers goes on behind what can be read, it is that of the extension
//!   header where reading stopped.
//!
//! Total and payload lengths are not looked at.

use std::net::IpAddr;

use crate::header::field::{
    ethernet, ipv4, ipv6, ipv6_extension, ipv6_fragment, linux_sll, linux_sll2, loopback, ports,
    vlan_tag,
};
use crate::link::{FirstHeader, LinkType};
use crate::numbers::{ether_type, ip_protocol};

/// How many VLAN tags are passed, counting one that the NIC has stripped.
pub const MAX_TAGS: usize = 4;
/// How many extension headers of IPv6 are passed.
pub const MAX_EXTENSIONS: usize = 8;

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    V4 = 4,
    V6 = 6,
}

impl Family {
    /// Length of an address in bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// The outer 5-tuple of a packet, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The IP version; `None` where there is no IP packet, and all other fields are then 0 or
    /// `None`.
    pub family: Option<Family>,
    /// Source address. An IPv4 address stands in the highest 32 bits.
    pub source: u128,
    /// Destination address. An IPv4 address stands in the highest 32 bits.
    pub destination: u128,
    pub protocol: u8,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// `None` where the packet is a whole datagram.
    pub fragment: Option<Fragment>,
}

/// Which fragment of which datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment {
    /// Identification of the datagram.
    pub id: u32,
    /// Whether the fragment begins the datagram, so that ports stand in it.
    pub is_first: bool,
}

/// Returns an address as a number, with an IPv4 address in the highest 32 bits.
pub(super) fn left(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Tuple {
    /// Makes the tuple of an IP packet that is not a fragment. `None` where the addresses are not
    /// of one family.
    pub fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        ports: Option<(u16, u16)>,
    ) -> Option<Self> {
        let family = match (source, destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => Family::V4,
            (IpAddr::V6(_), IpAddr::V6(_)) => Family::V6,
            _ => return None,
        };
        Some(Self {
            family: Some(family),
            source: left(source),
            destination: left(destination),
            protocol,
            ports: ports.filter(|_| ip_protocol::has_ports(protocol)),
            fragment: None,
        })
    }

    /// Reads the tuple of a frame, or of as much of it as was captured.
    pub fn read(link: LinkType, frame: &[u8]) -> Self {
        Self::read_with_payload(link, frame).0
    }

    /// Reads the tuple of a frame, and returns it with what stands behind the headers of IP:
    /// nothing where the frame does not reach so far, or has no IP packet.
    pub fn read_with_payload(link: LinkType, frame: &[u8]) -> (Self, &[u8]) {
        let read = network_layer(link, frame).and_then(|(kind, packet)| {
            let (tuple, at) = match kind {
                ether_type::IPV4 => ipv4(packet),
                ether_type::IPV6 => ipv6(packet),
                _ => None,
            }?;
            Some((tuple, packet.get(at..).unwrap_or_default()))
        });
        read.unwrap_or_default()
    }

    /// Returns source and destination as addresses; `None` where there is no IP packet.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let family = self.family?;
        let address = |bits: u128| match family {
            Family::V4 => IpAddr::V4(((bits >> 96) as u32).into()),
            Family::V6 => IpAddr::V6(bits.into()),
        };
        Some((address(self.source), address(self.destination)))
    }
}

/// Returns whether frames of this link type are read, so that they can fit rules that say more than
/// `any`.
pub fn is_readable(link: LinkType) -> bool {
    !matches!(link.first_header(), None | Some(FirstHeader::Ppp))
}

/// Returns the EtherType of what the frame carries, and the payload.
fn network_layer(link: LinkType, frame: &[u8]) -> Option<(u16, &[u8])> {
    match link.first_header()? {
        FirstHeader::Ethernet => {
            behind_tags(half(frame, ethernet::TYPE)?, &frame[ethernet::HEADER_BYTES..])
        }
        FirstHeader::Ip => by_version(frame),
        FirstHeader::Ipv4 => Some((ether_type::IPV4, frame)),
        FirstHeader::Ipv6 => Some((ether_type::IPV6, frame)),
        // Systems number address families differently, but the packet says its version itself.
        FirstHeader::Loopback => by_version(frame.get(loopback::HEADER_BYTES..)?),
        FirstHeader::LinuxSll => {
            behind_tags(half(frame, linux_sll::TYPE)?, &frame[linux_sll::HEADER_BYTES..])
        }
        FirstHeader::LinuxSll2 => {
            behind_tags(half(frame, linux_sll2::TYPE)?, frame.get(linux_sll2::HEADER_BYTES..)?)
        }
        FirstHeader::Ppp => None,
    }
}

fn by_version(packet: &[u8]) -> Option<(u16, &[u8])> {
    match packet.first()? >> 4 {
        4 => Some((ether_type::IPV4, packet)),
        6 => Some((ether_type::IPV6, packet)),
        _ => None,
    }
}

/// Passes VLAN tags, and returns the EtherType behind them and the payload.
fn behind_tags(mut kind: u16, mut rest: &[u8]) -> Option<(u16, &[u8])> {
    for _ in 0..MAX_TAGS {
        if !ether_type::is_vlan_tag(kind) {
            break;
        }
        kind = half(rest, vlan_tag::TYPE)?;
        rest = &rest[vlan_tag::BYTES..];
    }
    Some((kind, rest))
}

/// Reads an IPv4 header. Returns where it ends, too.
fn ipv4(packet: &[u8]) -> Option<(Tuple, usize)> {
    let header: &[u8; ipv4::HEADER_BYTES] = packet.first_chunk()?;
    let length = usize::from(header[0] & ipv4::LENGTH_MASK) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let fragment = half(header, ipv4::FRAGMENT)?;
    let is_first = fragment & ipv4::OFFSET_MASK == 0;
    let is_last = fragment & ipv4::MORE_FRAGMENTS == 0;
    let id = half(header, ipv4::IDENTIFICATION)?;
    let protocol = header[ipv4::PROTOCOL];
    let address = |at: usize| {
        let address = header[at..].first_chunk().map_or(0, |address| u32::from_be_bytes(*address));
        u128::from(address) << 96
    };
    let tuple = Tuple {
        family: Some(Family::V4),
        source: address(ipv4::SOURCE),
        destination: address(ipv4::DESTINATION),
        protocol,
        ports: if is_first { ports(protocol, packet, length) } else { None },
        fragment: (!is_first || !is_last).then(|| Fragment { id: id.into(), is_first }),
    };
    Some((tuple, length))
}

/// Reads an IPv6 header and its extensions. Returns where they end, too.
fn ipv6(packet: &[u8]) -> Option<(Tuple, usize)> {
    let header: &[u8; ipv6::HEADER_BYTES] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address =
        |at: usize| header[at..].first_chunk().map_or(0, |address| u128::from_be_bytes(*address));
    let mut tuple = Tuple {
        family: Some(Family::V6),
        source: address(ipv6::SOURCE),
        destination: address(ipv6::DESTINATION),
        protocol: header[ipv6::NEXT_HEADER],
        ports: None,
        fragment: None,
    };
    let mut at = header.len();
    for _ in 0..MAX_EXTENSIONS {
        let Some(next) = extension(&mut tuple, packet, at) else { break };
        at = next;
    }
    let is_later = tuple.fragment.is_some_and(|fragment| !fragment.is_first);
    if !is_later {
        tuple.ports = ports(tuple.protocol, packet, at);
    }
    Some((tuple, at))
}

/// Passes the extension header at `at` and returns where the next header is; `None` where there is
/// no extension header to pass.
fn extension(tuple: &mut Tuple, packet: &[u8], at: usize) -> Option<usize> {
    if tuple.fragment.is_some_and(|fragment| !fragment.is_first) {
        // The bytes here are from the middle of the datagram.
        return None;
    }
    let [next, length, fragment @ ..] = *packet.get(at..)?.first_chunk::<4>()?;
    let bytes = match tuple.protocol {
        ip_protocol::HOP_BY_HOP | ip_protocol::ROUTING | ip_protocol::DESTINATION_OPTIONS => {
            ipv6_extension::bytes(length)
        }
        ip_protocol::AUTHENTICATION => ipv6_extension::authentication_bytes(length),
        ip_protocol::FRAGMENT => {
            let id = packet.get(at + ipv6_fragment::IDENTIFICATION..)?.first_chunk()?;
            let fragment = u16::from_be_bytes(fragment);
            // A datagram that is whole although it has the header is no fragment (RFC 6946).
            if fragment & (ipv6_fragment::OFFSET_MASK | ipv6_fragment::MORE_FRAGMENTS) != 0 {
                let is_first = fragment & ipv6_fragment::OFFSET_MASK == 0;
                tuple.fragment = Some(Fragment { id: u32::from_be_bytes(*id), is_first });
            }
            ipv6_fragment::HEADER_BYTES
        }
        _ => return None,
    };
    tuple.protocol = next;
    Some(at + bytes)
}

fn ports(protocol: u8, packet: &[u8], at: usize) -> Option<(u16, u16)> {
    if !ip_protocol::has_ports(protocol) {
        return None;
    }
    Some((half(packet, at + ports::SOURCE)?, half(packet, at + ports::DESTINATION)?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&b| u16::from_be_bytes(b))
}
