//! What stands in a packet, header by header? For a person who has opened it.
//!
//! Each [`Layer`] is a header, or what is left behind the last one, with the place of its bytes in
//! the frame, and so is each [`Field`]. Headers that are cut end the reading; what is there is
//! told. Packets inside of tunnels follow the packet around them
//! ([`crate::header::inner_packets`]). What protocols above TCP and UDP say is not read.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use serde::Serialize;

use crate::header::field::{ethernet, ipv4, ipv6, linux_sll, linux_sll2, loopback, vlan_tag};
use crate::header::inner_packets;
use crate::link::{FirstHeader, LinkType};
use crate::numbers::{ether_type, ip_protocol};
use crate::summary::Protocol;
use crate::summary::details::TcpFlags;

/// Headers that are told of a packet, at most.
const MOST: usize = 64;

/// A header, or the payload behind the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layer {
    pub name: &'static str,
    /// Where it stands in the frame, in bytes.
    pub bytes: Range<usize>,
    pub fields: Vec<Field>,
}

/// A field of a header. The value is of letters, digits and signs of ASCII.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    pub name: &'static str,
    pub value: String,
    pub bytes: Range<usize>,
}

/// Returns the headers of a frame, the outermost first. `frame` is what was captured of it.
pub fn layers(link: LinkType, frame: &[u8]) -> Vec<Layer> {
    let mut walk = Walk { frame, layers: Vec::new() };
    let mut end = walk.link(link, 0);
    inner_packets(link, frame, &mut |link, inner| {
        // What is inside a frame is a part of its bytes.
        let at = (inner.as_ptr() as usize).checked_sub(frame.as_ptr() as usize);
        if let Some(at) = at.filter(|at| at + inner.len() <= frame.len())
            && walk.layers.len() < MOST
        {
            if at > end {
                walk.add("Tunnel", end..at, Vec::new());
            }
            end = walk.link(link, at);
        }
    });
    if end < frame.len() {
        walk.add("Payload", end..frame.len(), Vec::new());
    }
    walk.layers
}

/// What has been read so far. Each reader takes the place where its header begins, and returns
/// where the last header ends that was read.
struct Walk<'a> {
    frame: &'a [u8],
    layers: Vec<Layer>,
}

/// Fields of a header while they are read.
struct Fields<'a> {
    header: &'a [u8],
    at: usize,
    list: Vec<Field>,
}

impl Fields<'_> {
    /// Adds a field, if its bytes are there.
    fn add(
        &mut self,
        name: &'static str,
        place: Range<usize>,
        show: impl FnOnce(&[u8]) -> String,
    ) -> &mut Self {
        if let Some(bytes) = self.header.get(place.clone()) {
            let bytes_in_frame = self.at + place.start..self.at + place.end;
            self.list.push(Field { name, value: show(bytes), bytes: bytes_in_frame });
        }
        self
    }

    fn number(&mut self, name: &'static str, place: Range<usize>) -> &mut Self {
        self.add(name, place, |bytes| number(bytes).to_string())
    }

    fn hex(&mut self, name: &'static str, place: Range<usize>) -> &mut Self {
        self.add(name, place, |b| format!("0x{:0width$x}", number(b), width = 2 * b.len()))
    }

    fn mac(&mut self, name: &'static str, place: Range<usize>) -> &mut Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>();
        self.add(name, place, |bytes| hex(bytes).join(":"))
    }

    fn ipv4(&mut self, name: &'static str, at: usize) -> &mut Self {
        self.add(name, at..at + 4, |b| Ipv4Addr::from(number(b) as u32).to_string())
    }

    fn ether_type(&mut self, name: &'static str, at: usize) -> &mut Self {
        self.add(name, at..at + 2, |b| {
            let kind = number(b) as u16;
            match kind {
                ether_type::IPV4 => format!("IPv4 (0x{kind:04x})"),
                ether_type::IPV6 => format!("IPv6 (0x{kind:04x})"),
                kind if ether_type::is_vlan_tag(kind) => format!("VLAN tag (0x{kind:04x})"),
                kind if kind < ether_type::FIRST => format!("length {kind}"),
                kind => format!("{} (0x{kind:04x})", Protocol::Ether(kind)),
            }
        })
    }

    fn protocol(&mut self, name: &'static str, at: usize) -> &mut Self {
        self.add(name, at..at + 1, |b| format!("{} ({})", Protocol::Ip(b[0]), b[0]))
    }
}

/// Returns the number that up to eight bytes are in network byte order.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl<'a> Walk<'a> {
    fn add(&mut self, name: &'static str, bytes: Range<usize>, fields: Vec<Field>) {
        self.layers.push(Layer { name, bytes, fields });
    }

    /// Adds a header of so many bytes, or as many as there are. Returns where it ends; `None` where
    /// it is cut.
    fn header(
        &mut self,
        name: &'static str,
        at: usize,
        len: usize,
        read: impl FnOnce(&mut Fields<'a>),
    ) -> Option<usize> {
        let rest = self.frame.get(at..).filter(|rest| !rest.is_empty())?;
        let header = &rest[..len.min(rest.len())];
        let mut fields = Fields { header, at, list: Vec::new() };
        read(&mut fields);
        let list = fields.list;
        self.add(name, at..at + header.len(), list);
        (header.len() == len).then_some(at + len)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.frame.get(at).copied()
    }

    fn half(&self, at: usize) -> Option<u16> {
        self.frame.get(at..at + 2).map(|bytes| number(bytes) as u16)
    }

    /// Returns where the last header ends, also where one was cut.
    fn end(&self, at: usize) -> usize {
        self.layers.last().map_or(at, |layer| layer.bytes.end)
    }

    fn link(&mut self, link: LinkType, at: usize) -> usize {
        // A header that is not there ends the reading.
        let _ = match link.first_header() {
            Some(FirstHeader::Ethernet) => self.ethernet(at),
            Some(FirstHeader::Ip) => self.by_version(at),
            Some(FirstHeader::Ipv4) => self.ipv4(at),
            Some(FirstHeader::Ipv6) => self.ipv6(at),
            Some(FirstHeader::Loopback) => self
                .header("Loopback", at, loopback::HEADER_BYTES, |f| {
                    f.hex("Address family", 0..4);
                })
                .and_then(|at| self.by_version(at)),
            Some(FirstHeader::LinuxSll) => self
                .header("Linux cooked capture", at, linux_sll::HEADER_BYTES, |f| {
                    f.number("Packet type", 0..2).mac("Address", 6..12);
                    f.ether_type("Type", linux_sll::TYPE);
                })
                .and_then(|end| self.typed(self.half(at + linux_sll::TYPE)?, end)),
            Some(FirstHeader::LinuxSll2) => self
                .header("Linux cooked capture", at, linux_sll2::HEADER_BYTES, |f| {
                    f.ether_type("Type", linux_sll2::TYPE).number("Interface", 4..8);
                    f.number("Packet type", 10..11).mac("Address", 12..18);
                })
                .and_then(|end| self.typed(self.half(at + linux_sll2::TYPE)?, end)),
            Some(FirstHeader::Ppp) | None => None,
        };
        self.end(at)
    }

    fn ethernet(&mut self, at: usize) -> Option<()> {
        let mut end = self.header("Ethernet", at, ethernet::HEADER_BYTES, |f| {
            f.mac("Destination", ethernet::DESTINATION).mac("Source", ethernet::SOURCE);
            f.ether_type("Type", ethernet::TYPE);
        })?;
        let mut kind = self.half(end - 2)?;
        while ether_type::is_vlan_tag(kind) && self.layers.len() < MOST {
            end = self.header("VLAN tag", end, vlan_tag::BYTES, |f| {
                f.add("VLAN", 0..2, |b| (number(b) as u16 & vlan_tag::ID_MASK).to_string());
                f.add("Priority", 0..1, |b| (b[0] >> 5).to_string());
                f.ether_type("Type", vlan_tag::TYPE);
            })?;
            kind = self.half(end - 2)?;
        }
        self.typed(kind, end)
    }

    fn typed(&mut self, kind: u16, at: usize) -> Option<()> {
        match kind {
            ether_type::IPV4 => self.ipv4(at),
            ether_type::IPV6 => self.ipv6(at),
            ether_type::ARP | ether_type::RARP => self.arp(at),
            _ => None,
        }
    }

    fn by_version(&mut self, at: usize) -> Option<()> {
        match self.byte(at)? >> 4 {
            4 => self.ipv4(at),
            6 => self.ipv6(at),
            _ => None,
        }
    }

    fn arp(&mut self, at: usize) -> Option<()> {
        self.header("ARP", at, 28, |f| {
            f.add("Operation", 6..8, |b| match number(b) {
                1 => "request (1)".into(),
                2 => "reply (2)".into(),
                other => other.to_string(),
            });
            f.mac("Sender MAC", 8..14).ipv4("Sender address", 14);
            f.mac("Target MAC", 18..24).ipv4("Target address", 24);
        })
        .map(drop)
    }

    fn ipv4(&mut self, at: usize) -> Option<()> {
        let len = usize::from(self.byte(at)? & ipv4::LENGTH_MASK) * 4;
        let end = self.header("IPv4", at, len.max(ipv4::HEADER_BYTES), |f| {
            f.add("Version", 0..1, |b| (b[0] >> 4).to_string());
            f.add("Header length", 0..1, |b| (4 * (b[0] & ipv4::LENGTH_MASK)).to_string());
            f.add("DSCP", 1..2, |b| (b[0] >> 2).to_string()).number("Total length", 2..4);
            f.hex("Identification", 4..6);
            f.add("Fragment", 6..8, |b| fragment(number(b) as u16));
            f.number("Time to live", 8..9).protocol("Protocol", ipv4::PROTOCOL);
            f.hex("Checksum", 10..12).ipv4("Source", ipv4::SOURCE);
            f.ipv4("Destination", ipv4::DESTINATION);
            let options = ipv4::HEADER_BYTES..f.header.len();
            if !options.is_empty() {
                f.mac("Options", options);
            }
        })?;
        let is_later = self.half(at + ipv4::FRAGMENT)? & ipv4::OFFSET_MASK != 0;
        if is_later { None } else { self.transport(self.byte(at + ipv4::PROTOCOL)?, end) }
    }

    fn ipv6(&mut self, at: usize) -> Option<()> {
        let mut end = self.header("IPv6", at, ipv6::HEADER_BYTES, |f| {
            f.add("Version", 0..1, |b| (b[0] >> 4).to_string());
            f.add("Traffic class", 0..2, |b| (number(b) >> 4 & 0xff).to_string());
            f.add("Flow label", 1..4, |b| format!("0x{:05x}", number(b) & 0xf_ffff));
            f.number("Payload length", 4..6).protocol("Next header", ipv6::NEXT_HEADER);
            f.number("Hop limit", 7..8);
            for (name, at) in [("Source", ipv6::SOURCE), ("Destination", ipv6::DESTINATION)] {
                f.add(name, at..at + 16, |b| {
                    let address = b.first_chunk::<16>().copied().unwrap_or_default();
                    Ipv6Addr::from(address).to_string()
                });
            }
        })?;
        let mut next = self.byte(at + ipv6::NEXT_HEADER)?;
        while self.layers.len() < MOST {
            let at = end;
            // RFC 8200, section 4, and RFC 4302.
            let (name, len) = match next {
                ip_protocol::HOP_BY_HOP => ("IPv6 hop-by-hop options", self.extension(at)?),
                ip_protocol::ROUTING => ("IPv6 routing", self.extension(at)?),
                ip_protocol::DESTINATION_OPTIONS => {
                    ("IPv6 destination options", self.extension(at)?)
                }
                ip_protocol::FRAGMENT => ("IPv6 fragment", 8),
                ip_protocol::AUTHENTICATION => {
                    ("Authentication", 8 + 4 * usize::from(self.byte(at + 1)?))
                }
                _ => return self.transport(next, at),
            };
            end = self.header(name, at, len, |f| {
                f.protocol("Next header", 0);
                if name == "IPv6 fragment" {
                    f.add("Fragment", 2..4, |b| {
                        let field = number(b) as u16;
                        format!("offset {}, more {}", field & 0xfff8, field & 1)
                    });
                    f.hex("Identification", 4..8);
                }
            })?;
            if next == ip_protocol::FRAGMENT && self.half(at + 2)? & 0xfff8 != 0 {
                return None;
            }
            next = self.byte(at)?;
        }
        None
    }

    fn extension(&self, at: usize) -> Option<usize> {
        Some(8 + 8 * usize::from(self.byte(at + 1)?))
    }

    fn transport(&mut self, protocol: u8, at: usize) -> Option<()> {
        match protocol {
            ip_protocol::TCP => {
                let len = usize::from(self.byte(at + 12).unwrap_or(0x50) >> 4) * 4;
                self.header("TCP", at, len.max(20), |f| {
                    f.number("Source port", 0..2).number("Destination port", 2..4);
                    f.number("Sequence", 4..8).number("Acknowledgment", 8..12);
                    f.add("Flags", 13..14, |b| format!("{} (0x{:02x})", TcpFlags(b[0]), b[0]));
                    f.number("Window", 14..16).hex("Checksum", 16..18);
                    f.number("Urgent pointer", 18..20);
                    let options = 20..f.header.len();
                    if !options.is_empty() {
                        f.mac("Options", options);
                    }
                })
            }
            ip_protocol::UDP | ip_protocol::UDP_LITE => self.header("UDP", at, 8, |f| {
                f.number("Source port", 0..2).number("Destination port", 2..4);
                f.number("Length", 4..6).hex("Checksum", 6..8);
            }),
            ip_protocol::SCTP => self.header("SCTP", at, 12, |f| {
                f.number("Source port", 0..2).number("Destination port", 2..4);
                f.hex("Verification tag", 4..8).hex("Checksum", 8..12);
            }),
            ip_protocol::ICMP | ip_protocol::ICMPV6 => {
                let name = if protocol == ip_protocol::ICMP { "ICMP" } else { "ICMPv6" };
                self.header(name, at, 8, |f| {
                    f.number("Type", 0..1).number("Code", 1..2).hex("Checksum", 2..4);
                    f.hex("Rest of header", 4..8);
                })
            }
            _ => None,
        }
        .map(drop)
    }
}

/// Returns IPv4's flags and offset of a fragment in words.
fn fragment(field: u16) -> String {
    let offset = 8 * (field & ipv4::OFFSET_MASK);
    let flag = |bit: u16, name| if field & bit == 0 { "" } else { name };
    let (keep, more) = (flag(0x4000, ", do not fragment"), flag(ipv4::MORE_FRAGMENTS, ", more"));
    format!("offset {offset}{keep}{more}")
}

#[cfg(test)]
mod tests {
    use tapdeck_testkit::SplitMix64;
    use tapdeck_testkit::frame::{self, UdpFrame};

    use super::{Layer, layers};
    use crate::link::LinkType;

    fn names(layers: &[Layer]) -> Vec<&str> {
        layers.iter().map(|layer| layer.name).collect()
    }

    fn value<'a>(layers: &'a [Layer], layer: &str, field: &str) -> &'a str {
        let layer = layers.iter().find(|l| l.name == layer).expect("the layer is there");
        &layer.fields.iter().find(|f| f.name == field).expect("the field is there").value
    }

    #[test]
    fn headers_are_told_with_their_places() {
        let frame = UdpFrame { len: 100, ..UdpFrame::default() }.bytes();
        let told = layers(LinkType::ETHERNET, &frame);
        assert_eq!(names(&told), ["Ethernet", "IPv4", "UDP", "Payload"]);
        assert_eq!(value(&told, "UDP", "Destination port"), "9");
        assert_eq!(value(&told, "IPv4", "Protocol"), "udp (17)");
        // Nothing is left out, and nothing told twice.
        let ends: Vec<_> = told.iter().map(|layer| layer.bytes.clone()).collect();
        assert_eq!(ends, [0..14, 14..34, 34..42, 42..frame.len()]);
        let port = told[2].fields.iter().find(|f| f.name == "Destination port").expect("it is");
        assert_eq!(port.bytes, 36..38);
    }

    #[test]
    fn packets_in_tunnels_follow_the_packet_around_them() {
        let outer = UdpFrame::default().bytes();
        let inner = &outer[14..];
        let ip = frame::ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 4, inner);
        let told = layers(LinkType::RAW, &ip);
        assert_eq!(names(&told), ["IPv4", "IPv4", "UDP", "Payload"]);
        assert_eq!(told[1].bytes.start, 20);
    }

    #[test]
    fn no_bytes_are_too_odd() {
        let mut random = SplitMix64(7);
        let whole = UdpFrame { len: 90, ..UdpFrame::default() }.bytes();
        for round in 0..20_000_usize {
            let mut frame = whole[..round % (whole.len() + 1)].to_vec();
            for _ in 0..3 {
                if !frame.is_empty() {
                    let at = random.below(frame.len());
                    frame[at] = random.draw() as u8;
                }
            }
            for link in [1, 0, 101, 113, 276, 9, 147].map(LinkType) {
                let told = layers(link, &frame);
                let fits = told.iter().all(|layer| {
                    let inside = |r: &std::ops::Range<usize>| {
                        r.start >= layer.bytes.start && r.end <= layer.bytes.end
                    };
                    layer.bytes.end <= frame.len() && layer.fields.iter().all(|f| inside(&f.bytes))
                });
                assert!(fits, "{link:?} {frame:02x?}: {told:?}");
            }
        }
    }
}
