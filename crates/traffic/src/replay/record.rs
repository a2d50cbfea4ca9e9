//! What becomes of a recorded packet? A frame that is due at some time, or nothing.

use tapdeck_packet::link::{FirstHeader, LinkType};
use tapdeck_packet::numbers::ether_type;
use tapdeck_packet::trace::Packet;

use super::rewrite::Rewrite;

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// Bytes of an 802.1Q tag.
const TAG: usize = 4;
/// MAC addresses of packets that were recorded without a link layer: destination, then source.
const MACS: [u8; 12] = [2, 0x74, 0x64, 0, 0, 2, 2, 0x74, 0x64, 0, 0, 1];

pub(super) enum Fate {
    Sent(Form),
    TooLong,
    TooShort,
    /// A packet without a link layer that is neither IPv4 nor IPv6.
    NotIp,
}

/// How a frame is made of a packet.
pub(super) struct Form {
    /// The type for the Ethernet header, where the packet has to be given one.
    ethertype: Option<u16>,
    /// Bytes of the frame.
    pub len: usize,
    /// Whether not all of the frame was captured.
    pub padded: bool,
}

/// Decides on a packet for an interface that takes frames of `longest` bytes. An error is a link
/// type of which no frame can be made.
pub(super) fn fate(packet: &Packet<'_>, longest: usize) -> Result<Fate, LinkType> {
    let ethertype = match packet.link.first_header() {
        Some(FirstHeader::Ethernet) => None,
        Some(FirstHeader::Ip) => match packet.frame.first().map(|first| first >> 4) {
            Some(4) => Some(ether_type::IPV4),
            Some(6) => Some(ether_type::IPV6),
            _ => return Ok(Fate::NotIp),
        },
        Some(FirstHeader::Ipv4) => Some(ether_type::IPV4),
        Some(FirstHeader::Ipv6) => Some(ether_type::IPV6),
        _ => return Err(packet.link),
    };
    let captured = packet.frame.len();
    // Some writers leave the original length at 0.
    let recorded = captured.max(packet.original_len as usize);
    let len = recorded.saturating_add(if ethertype.is_some() { HEADER } else { 0 });
    let is_tagged =
        ethertype.is_none() && packet.frame.get(12..14) == Some(&ether_type::VLAN.to_be_bytes());
    let longest = if is_tagged { longest + TAG } else { longest };
    Ok(match len {
        ..HEADER => Fate::TooShort,
        _ if len > longest => Fate::TooLong,
        _ => Fate::Sent(Form { ethertype, len, padded: recorded > captured }),
    })
}

impl Form {
    /// Makes the frame of what was captured of the packet.
    pub(super) fn make(&self, captured: &[u8], rewrite: &Rewrite, frame: &mut Vec<u8>) {
        frame.clear();
        if let Some(ethertype) = self.ethertype {
            frame.extend(MACS);
            frame.extend(ethertype.to_be_bytes());
        }
        frame.extend(captured);
        // Every frame gets a whole header, so that its addresses can be exchanged. A checksum that
        // was not captured stays zero.
        frame.resize(frame.len().max(HEADER), 0);
        rewrite.apply(frame);
        frame.resize(self.len, 0);
    }
}

/// Recorded times as offsets from the first one, which never go back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    first_ns: Option<i64>,
    offset_ns: u64,
}

/// How a packet's time stands to the times before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Forward,
    Backward,
    Untimed,
}

impl Clock {
    pub(super) fn offset_ns(&self) -> u64 {
        self.offset_ns
    }

    /// Takes the next packet's time.
    pub(super) fn advance(&mut self, time_ns: Option<i64>) -> Order {
        let Some(time_ns) = time_ns else {
            return Order::Untimed;
        };
        let first_ns = *self.first_ns.get_or_insert(time_ns);
        let is_before_first = time_ns < first_ns;
        let offset_ns = time_ns.abs_diff(first_ns);
        if is_before_first || offset_ns < self.offset_ns {
            return Order::Backward;
        }
        self.offset_ns = offset_ns;
        Order::Forward
    }
}
