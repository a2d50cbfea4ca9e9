//! What is a packet's size the size of? Of the frame, or of the IP packet, which is found here.

use serde::{Deserialize, Serialize};
use tapdeck_packet::header::field::{ethernet, linux_sll, linux_sll2};
use tapdeck_packet::link::{FirstHeader, LinkType};
use tapdeck_packet::numbers::{address_family, ether_type, ip_protocol, ppp_protocol};

/// What sizes measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// The frame as it was captured: with its link-layer header, without the check sequence.
    Frame,
    /// The IP packet, as its header tells: IPv4's total length, IPv6's payload length and 40.
    Ip,
}

impl Length {
    /// Returns the name that files and flags have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Ip => "ip",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Frame, Self::Ip].into_iter().find(|length| length.name() == name)
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Frame => "frame",
            Self::Ip => "IP packet",
        })
    }
}

/// A link type in whose frames no IP packet is looked for.
pub(super) struct UnknownLink;

/// Address families of IP in BSD's loopback header, by the systems that have such interfaces.
const FAMILIES: [u32; 4] = [
    address_family::IPV4,
    address_family::IPV6_BSD,
    address_family::IPV6_FREEBSD,
    address_family::IPV6_DARWIN,
];

/// Returns the length of the IP packet in a frame; `None` where the frame holds none, or none whose
/// header was captured and can be right.
pub(super) fn ip_length(link: LinkType, frame: &[u8]) -> Result<Option<u32>, UnknownLink> {
    Ok(match link.first_header().ok_or(UnknownLink)? {
        FirstHeader::Loopback => loopback(frame),
        FirstHeader::Ethernet => behind_ethertype(frame, ethernet::TYPE),
        FirstHeader::Ppp => point_to_point(frame),
        FirstHeader::Ip | FirstHeader::Ipv4 | FirstHeader::Ipv6 => packet_length(frame),
        FirstHeader::LinuxSll => behind_ethertype(frame, linux_sll::TYPE),
        FirstHeader::LinuxSll2 => match read_u16(frame, linux_sll2::TYPE) {
            Some(ethertype) => tagged(ethertype, frame, linux_sll2::HEADER_BYTES),
            None => None,
        },
    })
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

fn behind_ethertype(frame: &[u8], at: usize) -> Option<u32> {
    tagged(read_u16(frame, at)?, frame, at + 2)
}

/// Returns the length of the IP packet that begins at `at`, behind any number of VLAN tags.
fn tagged(mut ethertype: u16, frame: &[u8], mut at: usize) -> Option<u32> {
    while ether_type::is_vlan_tag(ethertype) {
        ethertype = read_u16(frame, at + 2)?;
        at += 4;
    }
    let is_ip = matches!(ethertype, ether_type::IPV4 | ether_type::IPV6);
    packet_length(frame.get(at..).filter(|_| is_ip)?)
}

fn loopback(frame: &[u8]) -> Option<u32> {
    let family = u32::from_be_bytes(*frame.first_chunk()?);
    // The family has the byte order of the machine that captured, which no field tells.
    let is_ip = FAMILIES.contains(&family) || FAMILIES.contains(&family.swap_bytes());
    packet_length(&frame[4..]).filter(|_| is_ip)
}

fn point_to_point(frame: &[u8]) -> Option<u32> {
    let at = if frame.starts_with(&ppp_protocol::ADDRESS_AND_CONTROL) { 2 } else { 0 };
    let is_ip = matches!(read_u16(frame, at)?, ppp_protocol::IPV4 | ppp_protocol::IPV6);
    packet_length(&frame[at + 2..]).filter(|_| is_ip)
}

/// Returns the length that an IP header tells. Segments that Linux has yet to cut (BIG TCP) carry a
/// length of 0; for them, and for jumbograms of RFC 2675, a length is returned that no size has.
fn packet_length(packet: &[u8]) -> Option<u32> {
    const IPV4_HEADER: u32 = 20;
    const IPV6_HEADER: u32 = 40;
    match packet.first()? >> 4 {
        4 => {
            let length = u32::from(read_u16(packet, 2)?);
            (length == 0 || length >= IPV4_HEADER).then_some(length)
        }
        6 => match (read_u16(packet, 4)?, packet.get(6)?) {
            (0, &ip_protocol::HOP_BY_HOP) => Some(0),
            (payload, _) => Some(IPV6_HEADER + u32::from(payload)),
        },
        _ => None,
    }
}
