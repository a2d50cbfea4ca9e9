//! What rules see of a packet: its outer 5-tuple.
//!
//! The reader takes the frame as it stands on the wire: an Ethernet header with up to [`MAX_TAGS`]
//! VLAN tags, or what another link type has before IP; then IPv4 with its options, or IPv6 with up
//! to [`MAX_EXTENSIONS`] extension headers. It does not look into tunnels, MPLS and PPPoE. The hook
//! programs read the same way (`bpf/headers.h`).
//!
//! What cannot be read is **unknown**, and fits no rule that asks for it:
//! - a frame without an IP packet, or with one whose fixed header is cut short or of another
//!   version, has no family;
//! - ports are known of TCP, UDP, UDP-Lite, SCTP and DCCP, where the frame reaches so far; of a
//!   fragment only if it is the first;
//! - the protocol of IPv6 is the first header that is no extension header. Where the chain goes on
//!   behind what can be read, it is the extension header where reading stopped.
//!
//! Total and payload lengths are not looked at.

use std::net::IpAddr;

use crate::link::LinkType;

/// VLAN tags that are passed, one that the NIC has stripped among them.
pub const MAX_TAGS: usize = 4;
/// Extension headers of IPv6 that are passed.
pub const MAX_EXTENSIONS: usize = 8;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const DCCP: u8 = 33;
pub(super) const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    V4 = 4,
    V6 = 6,
}

impl Family {
    /// Bits of an address.
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
    /// `None`: no IP packet. All the rest is then 0 or `None`.
    pub family: Option<Family>,
    /// An IPv4 address stands in the highest 32 bits.
    pub source: u128,
    pub destination: u128,
    pub protocol: u8,
    /// Source and destination.
    pub ports: Option<(u16, u16)>,
    pub fragment: Option<Fragment>,
}

/// That a packet is a fragment, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment {
    pub id: u32,
    /// It begins the datagram, so that ports stand in it.
    pub is_first: bool,
}

/// An address in the highest bits.
pub(super) fn left(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Whether the protocol's header begins with two ports.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE)
}

impl Tuple {
    /// Of an IP packet whose addresses are of one family.
    ///
    /// `None` where they are not.
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
            ports: ports.filter(|_| has_ports(protocol)),
            fragment: None,
        })
    }

    /// Of a frame, or as much of it as was captured.
    pub fn read(link: LinkType, frame: &[u8]) -> Self {
        let Some((kind, packet)) = network_layer(link, frame) else { return Self::default() };
        match kind {
            IPV4 => ipv4(packet),
            IPV6 => ipv6(packet),
            _ => None,
        }
        .unwrap_or_default()
    }

    /// Source and destination as addresses; `None` where there is no IP packet.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let family = self.family?;
        let address = |bits: u128| match family {
            Family::V4 => IpAddr::V4(((bits >> 96) as u32).into()),
            Family::V6 => IpAddr::V6(bits.into()),
        };
        Some((address(self.source), address(self.destination)))
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Whether frames of this link type can be judged by more than `any`.
pub fn is_readable(link: LinkType) -> bool {
    matches!(link.0, 0 | 1 | 12 | 14 | 101 | 108 | 113 | 228 | 229 | 276)
}

/// The `EtherType` of what the frame carries, and that. Numbers are those of pcap-linktype(7).
fn network_layer(link: LinkType, frame: &[u8]) -> Option<(u16, &[u8])> {
    const NULL: u16 = 0;
    const LOOP: u16 = 108;
    const COOKED: u16 = 113;
    const RAW_IPV4: u16 = 228;
    const RAW_IPV6: u16 = 229;
    const COOKED_2: u16 = 276;
    match link.0 {
        1 => behind_tags(half(frame, 12)?, &frame[14..]),
        // 12 and 14 are how some systems number raw IP inside.
        12 | 14 | 101 => by_version(frame),
        RAW_IPV4 => Some((IPV4, frame)),
        RAW_IPV6 => Some((IPV6, frame)),
        // The address family's number is the system's that captured; the packet says its version
        // itself.
        NULL | LOOP => by_version(frame.get(4..)?),
        COOKED => behind_tags(half(frame, 14)?, &frame[16..]),
        COOKED_2 => behind_tags(half(frame, 0)?, frame.get(20..)?),
        _ => None,
    }
}

fn by_version(packet: &[u8]) -> Option<(u16, &[u8])> {
    match packet.first()? >> 4 {
        4 => Some((IPV4, packet)),
        6 => Some((IPV6, packet)),
        _ => None,
    }
}

/// Passes VLAN tags.
fn behind_tags(mut kind: u16, mut rest: &[u8]) -> Option<(u16, &[u8])> {
    for _ in 0..MAX_TAGS {
        if !matches!(kind, 0x8100 | 0x88a8 | 0x9100) {
            break;
        }
        kind = half(rest, 2)?;
        rest = &rest[4..];
    }
    Some((kind, rest))
}

fn ipv4(packet: &[u8]) -> Option<Tuple> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let (offset, is_last) = (flags & 0x1fff, flags & 0x2000 == 0);
    let is_first = offset == 0;
    let id = u16::from_be_bytes([header[4], header[5]]);
    let protocol = header[9];
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    Some(Tuple {
        family: Some(Family::V4),
        source: u128::from(word(12)) << 96,
        destination: u128::from(word(16)) << 96,
        protocol,
        ports: if is_first { ports(protocol, packet, length) } else { None },
        fragment: (!is_first || !is_last).then(|| Fragment { id: id.into(), is_first }),
    })
}

fn ipv6(packet: &[u8]) -> Option<Tuple> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address =
        |at: usize| header[at..].first_chunk().map_or(0, |address| u128::from_be_bytes(*address));
    let mut tuple = Tuple {
        family: Some(Family::V6),
        source: address(8),
        destination: address(24),
        protocol: header[6],
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
    Some(tuple)
}

/// Passes one extension header (RFC 8200, section 4) and gives where the next header is; `None`
/// where there is none to pass.
fn extension(tuple: &mut Tuple, packet: &[u8], at: usize) -> Option<usize> {
    if tuple.fragment.is_some_and(|fragment| !fragment.is_first) {
        // What stands here is the middle of something.
        return None;
    }
    let [next, length, offset @ ..] = *packet.get(at..)?.first_chunk::<4>()?;
    let length = usize::from(length);
    let length = match tuple.protocol {
        HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => 8 + 8 * length,
        // RFC 4302.
        AUTHENTICATION => 8 + 4 * length,
        FRAGMENT => {
            let id = packet.get(at + 4..)?.first_chunk()?;
            let offset = u16::from_be_bytes(offset);
            // A datagram that is whole although it has the header is no fragment (RFC 6946).
            if offset & 0xfff9 != 0 {
                let is_first = offset & 0xfff8 == 0;
                tuple.fragment = Some(Fragment { id: u32::from_be_bytes(*id), is_first });
            }
            8
        }
        _ => return None,
    };
    tuple.protocol = next;
    Some(at + length)
}

fn ports(protocol: u8, packet: &[u8], at: usize) -> Option<(u16, u16)> {
    if !has_ports(protocol) {
        return None;
    }
    Some((half(packet, at)?, half(packet, at + 2)?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&b| u16::from_be_bytes(b))
}
