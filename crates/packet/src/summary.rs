//! What does a person want to know first of a packet? Who talks to whom, by which protocol, and
//! what is said ([`Details`]).
//!
//! Ethernet with VLAN tags, MPLS, IPv4 and IPv6 are read, and no tunnels. Of a packet that ends
//! early everything up to there is told.

pub mod details;
pub mod dns;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::link::LinkType;
use crate::numbers::{ether_type, ip_protocol};

use self::details::{Details, Mac, half};

/// Addresses, ports, protocol and what is said, each as far as the packet has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub mac_src: Option<Mac>,
    pub mac_dst: Option<Mac>,
    /// The numbers of VLANs, the outermost first.
    pub vlans: Vec<u16>,
    /// The labels of MPLS, the outermost first.
    pub labels: Vec<u32>,
    pub src: Option<IpAddr>,
    pub dst: Option<IpAddr>,
    pub sport: Option<u16>,
    pub dport: Option<u16>,
    pub protocol: Option<Protocol>,
    pub details: Option<Details>,
}

/// The protocol that the innermost header that was read names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol of an IP packet.
    Ip(u8),
    /// The type of an Ethernet frame that holds something else than IP.
    Ether(u16),
    /// None: an Ethernet frame with a length instead of a type (IEEE 802.3).
    Llc,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Ip(ip_protocol::ICMP) => "icmp",
            Self::Ip(ip_protocol::IGMP) => "igmp",
            Self::Ip(ip_protocol::TCP) => "tcp",
            Self::Ip(ip_protocol::UDP) => "udp",
            Self::Ip(ip_protocol::GRE) => "gre",
            Self::Ip(ip_protocol::ESP) => "esp",
            Self::Ip(ip_protocol::AUTHENTICATION) => "ah",
            Self::Ip(ip_protocol::ICMPV6) => "icmp6",
            Self::Ip(ip_protocol::SCTP) => "sctp",
            Self::Ip(number) => return write!(f, "ip-proto-{number}"),
            Self::Ether(ether_type::ARP) => "arp",
            Self::Ether(ether_type::MPLS | ether_type::MPLS_MULTICAST) => "mpls",
            Self::Ether(ether_type::LLDP) => "lldp",
            Self::Ether(kind) => return write!(f, "ethertype-{kind:04x}"),
            Self::Llc => "llc",
        };
        f.write_str(name)
    }
}

impl Summary {
    pub fn of(link: LinkType, frame: &[u8]) -> Self {
        let mut summary = Self::default();
        // A header that is not there ends the reading; what was read stays.
        let _ = match link {
            LinkType::ETHERNET => summary.ethernet(frame),
            LinkType::RAW => match frame.first().map(|b| b >> 4) {
                Some(4) => summary.ipv4(frame),
                Some(6) => summary.ipv6(frame),
                _ => None,
            },
            _ => None,
        };
        summary
    }

    fn ethernet(&mut self, frame: &[u8]) -> Option<()> {
        let mac = |at: usize| frame.get(at..)?.first_chunk().map(|bytes| Mac(*bytes));
        (self.mac_dst, self.mac_src) = (mac(0), mac(6));
        let mut at = 12;
        while ether_type::is_vlan_tag(half(frame, at)?) {
            self.vlans.push(half(frame, at + 2)? & 0xfff);
            at += 4;
        }
        let payload = frame.get(at + 2..)?;
        match half(frame, at)? {
            ether_type::IPV4 => self.ipv4(payload),
            ether_type::IPV6 => self.ipv6(payload),
            kind => {
                let protocol =
                    if kind < ether_type::FIRST { Protocol::Llc } else { Protocol::Ether(kind) };
                self.protocol = Some(protocol);
                match kind {
                    ether_type::ARP => self.details = Details::of_arp(payload),
                    ether_type::MPLS | ether_type::MPLS_MULTICAST => return self.mpls(payload),
                    _ => {}
                }
                Some(())
            }
        }
    }

    /// Reads labels (RFC 3032), and the IP packet that most likely stands behind the last.
    fn mpls(&mut self, mut packet: &[u8]) -> Option<()> {
        loop {
            let (entry, rest) = packet.split_first_chunk::<4>()?;
            let entry = u32::from_be_bytes(*entry);
            self.labels.push(entry >> 12);
            packet = rest;
            if entry & 0x100 != 0 {
                break;
            }
        }
        match packet.first()? >> 4 {
            4 => self.ipv4(packet),
            6 => self.ipv6(packet),
            _ => None,
        }
    }

    fn ipv4(&mut self, packet: &[u8]) -> Option<()> {
        self.protocol = Some(Protocol::Ether(ether_type::IPV4));
        let header = packet.first_chunk::<20>()?;
        let address = |at: usize| {
            header[at..at + 4].first_chunk().map(|b: &[u8; 4]| Ipv4Addr::from(*b).into())
        };
        self.src = address(12);
        self.dst = address(16);
        self.protocol = Some(Protocol::Ip(header[9]));
        let offset = half(packet, 6)? & 0x1fff;
        // Segments that the kernel has not cut yet may say no length.
        let len = match half(packet, 2)? {
            0 => packet.len(),
            len => usize::from(len),
        };
        if offset == 0 {
            self.inside(header[9], packet, usize::from(header[0] & 0x0f) * 4, len)
        } else {
            None
        }
    }

    fn ipv6(&mut self, packet: &[u8]) -> Option<()> {
        self.protocol = Some(Protocol::Ether(ether_type::IPV6));
        let header = packet.first_chunk::<40>()?;
        let address = |at: usize| {
            header[at..at + 16].first_chunk().map(|b: &[u8; 16]| Ipv6Addr::from(*b).into())
        };
        self.src = address(8);
        self.dst = address(24);
        let (mut next, mut at) = (header[6], 40);
        let len = match half(packet, 4)? {
            0 => packet.len(),
            len => at + usize::from(len),
        };
        loop {
            self.protocol = Some(Protocol::Ip(next));
            // RFC 8200, section 4, and RFC 4302.
            let len = match next {
                ip_protocol::HOP_BY_HOP
                | ip_protocol::ROUTING
                | ip_protocol::DESTINATION_OPTIONS => 8 + 8 * usize::from(*packet.get(at + 1)?),
                ip_protocol::AUTHENTICATION => 8 + 4 * usize::from(*packet.get(at + 1)?),
                ip_protocol::FRAGMENT => 8,
                _ => return self.inside(next, packet, at, len),
            };
            let is_later_fragment =
                next == ip_protocol::FRAGMENT && half(packet, at + 2)? & 0xfff8 != 0;
            next = *packet.get(at)?;
            if is_later_fragment {
                self.protocol = Some(Protocol::Ip(next));
                return None;
            }
            at += len;
        }
    }

    /// Reads what stands at a place of an IP packet of such a length.
    fn inside(&mut self, protocol: u8, packet: &[u8], at: usize, len: usize) -> Option<()> {
        if matches!(
            protocol,
            ip_protocol::TCP | ip_protocol::UDP | ip_protocol::SCTP | ip_protocol::UDP_LITE
        ) {
            self.sport = Some(half(packet, at)?);
            self.dport = Some(half(packet, at + 2)?);
        }
        self.details = Details::of_ip(protocol, packet.get(at..)?, len.saturating_sub(at));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Protocol, Summary};
    use crate::link::LinkType;
    use crate::numbers::{ether_type, ip_protocol};

    fn ipv4(protocol: u8, offset: u16) -> Vec<u8> {
        let mut p = vec![0x46, 0, 0, 60, 0, 0];
        p.extend(offset.to_be_bytes());
        p.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        p.extend([1, 1, 1, 1]);
        p.extend([0, 80, 0, 53, 0, 0, 0, 0]);
        p
    }

    fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut p = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        p.extend([0xfd; 16]);
        p.extend([0xfe; 16]);
        p.extend(rest);
        p
    }

    fn of_ethernet(types: &[u16], packet: &[u8]) -> Summary {
        let mut frame = vec![2; 12];
        for (i, kind) in types.iter().enumerate() {
            if i > 0 {
                frame.extend([0, 7]);
            }
            frame.extend(kind.to_be_bytes());
        }
        frame.extend(packet);
        Summary::of(LinkType::ETHERNET, &frame)
    }

    /// What stands behind the Ethernet header.
    fn inside(summary: Summary) -> Summary {
        let (vlans, labels) = (Vec::new(), Vec::new());
        Summary { mac_src: None, mac_dst: None, vlans, labels, ..summary }
    }

    fn ports(s: &Summary) -> (Option<u16>, Option<u16>) {
        (s.sport, s.dport)
    }

    #[test]
    fn addresses_and_ports_are_found_behind_tags_and_options() {
        let plain = of_ethernet(&[ether_type::IPV4], &ipv4(ip_protocol::UDP, 0x2000));
        assert_eq!(plain.src.map(|a| a.to_string()).as_deref(), Some("10.0.0.1"));
        assert_eq!(plain.dst.map(|a| a.to_string()).as_deref(), Some("10.0.0.2"));
        assert_eq!(ports(&plain), (Some(80), Some(53)));
        assert_eq!(plain.protocol, Some(Protocol::Ip(ip_protocol::UDP)));
        let tagged = of_ethernet(
            &[ether_type::SERVICE_VLAN, ether_type::VLAN, ether_type::IPV4],
            &ipv4(ip_protocol::UDP, 0),
        );
        assert_eq!(tagged.vlans, [7, 7]);
        let labels = [0, 1, 0, 64, 0, 2, 0x01, 64];
        let labelled = [&labels[..], &ipv4(ip_protocol::UDP, 0)].concat();
        let labelled = of_ethernet(&[ether_type::MPLS], &labelled);
        assert_eq!(labelled.labels, [16, 32]);
        assert_eq!(inside(labelled), inside(plain.clone()));
        assert_eq!(inside(tagged), inside(plain.clone()));
        assert_eq!(Summary::of(LinkType::RAW, &ipv4(ip_protocol::UDP, 0)), inside(plain));
        assert_eq!(
            ports(&of_ethernet(&[ether_type::IPV4], &ipv4(ip_protocol::UDP, 1))),
            (None, None),
            "a later fragment"
        );
        assert_eq!(
            ports(&of_ethernet(&[ether_type::IPV4], &ipv4(ip_protocol::ICMP, 0))),
            (None, None),
            "icmp has none"
        );
    }

    #[test]
    fn extension_headers_are_passed() {
        let udp = [0, 80, 0, 53];
        let plain = of_ethernet(&[ether_type::IPV6], &ipv6(ip_protocol::TCP, &udp));
        assert_eq!(plain.dst.map(|a| a.to_string()), Some("fefe:".repeat(7) + "fefe"));
        let mut options = vec![ip_protocol::FRAGMENT, 1];
        options.extend([0; 14]);
        let fragment = |offset: u8| [ip_protocol::TCP, 0, 0, offset, 0, 0, 0, 1];
        let stacked = |offset| [&options[..], &fragment(offset), &udp].concat();
        assert_eq!(
            of_ethernet(&[ether_type::IPV6], &ipv6(ip_protocol::HOP_BY_HOP, &stacked(1))),
            plain
        );
        let later = of_ethernet(&[ether_type::IPV6], &ipv6(ip_protocol::HOP_BY_HOP, &stacked(8)));
        assert_eq!(
            (later.protocol, ports(&later)),
            (Some(Protocol::Ip(ip_protocol::TCP)), (None, None))
        );
    }

    #[test]
    fn what_is_cut_or_unknown_tells_what_it_can() {
        let whole = ipv4(ip_protocol::UDP, 0);
        for len in 0..whole.len() {
            let s = of_ethernet(&[ether_type::IPV4], &whole[..len]);
            assert_eq!(s.src.is_some(), len >= 20, "{len}");
            assert_eq!(s.sport.is_some(), len >= 26, "{len}");
        }
        assert_eq!(inside(Summary::of(LinkType::ETHERNET, &[0; 13])), Summary::default());
        assert_eq!(of_ethernet(&[ether_type::ARP], &[]).protocol.unwrap().to_string(), "arp");
        assert_eq!(of_ethernet(&[0x88b5], &[]).protocol.unwrap().to_string(), "ethertype-88b5");
        assert_eq!(of_ethernet(&[0x0026], &[]).protocol, Some(Protocol::Llc));
    }
}
