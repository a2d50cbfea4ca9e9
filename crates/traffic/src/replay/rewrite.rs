//! Other addresses in a frame, and checksums that stay as right as they were.
//!
//! How can a recording be sent where its addresses do not belong? Networks are exchanged for others
//! of the same size, in IPv4 and IPv6 headers and in ARP, behind any number of VLAN tags. Each
//! checksum that an address goes into is changed by what the address changed (RFC 1624, equation
//! 3). So nothing else of the packet has to be there: packets that were cut, and first fragments,
//! come out right, and a checksum that was wrong is wrong by as much as before.
//!
//! Rewriting back leads to the same bytes, with one exception: 0xffff and 0 are the same checksum,
//! and 0xffff in an IPv4, TCP or ICMPv6 header, which nobody computes, becomes 0. In UDP, where 0
//! means no checksum, 0xffff is written.
//!
//! These are left as they are: packets that ICMP errors quote, the inside of tunnels, targets of
//! neighbour discovery and names in any protocol; addresses in IPv4 options and IPv6 routing
//! headers; checksums of transports other than UDP, TCP and ICMPv6; MAC addresses in ARP; and
//! frames of IEEE 802.3 with LLC.

use std::net::IpAddr;

use ipnet::IpNet;
use tapdeck_packet::generate::Sum;
use tapdeck_packet::numbers::{ether_type, ip_protocol};

use super::Error;
use crate::workload::Mac;

/// What is exchanged in each frame.
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// Networks that are exchanged. For each address the first rule counts whose old network has
    /// it.
    pub rules: Vec<NetworkSwap>,
    /// The source MAC address of all frames, if they get another one.
    pub source_mac: Option<Mac>,
    /// The destination MAC address of all frames, with those to groups and to everybody, if they
    /// get another one.
    pub destination_mac: Option<Mac>,
}

/// A network that takes the place of another of the same size. Addresses are numbers, with the last
/// byte lowest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSwap {
    /// Bytes of an address.
    len: usize,
    old: u128,
    new: u128,
    /// Ones where the number of the host is.
    host: u128,
}

impl NetworkSwap {
    /// Returns what an address of `len` bytes becomes, if it is of the old network.
    fn apply(&self, len: usize, address: u128) -> Option<u128> {
        let applies = len == self.len && address & !self.host == self.old;
        applies.then_some(self.new | (address & self.host))
    }
}

impl Rewrite {
    /// Reads a rule `OLD=NEW`, of two networks or two addresses.
    pub fn parse(text: &str) -> Result<NetworkSwap, Error> {
        let fault = || Error::Rule(text.to_owned());
        let network = |s: &str| -> Result<IpNet, Error> {
            let s = s.trim();
            let address = || s.parse::<IpAddr>().map(IpNet::from);
            let network = s.parse::<IpNet>().or_else(|_| address()).map_err(|_| fault())?;
            let bare = network.trunc();
            if network == bare { Ok(bare) } else { Err(Error::HostBits(network, bare)) }
        };
        let (old, new) = text.split_once('=').ok_or_else(fault)?;
        let (old, new) = (network(old)?, network(new)?);
        if old.addr().is_ipv4() != new.addr().is_ipv4() {
            return Err(Error::Versions(old, new));
        }
        if old.prefix_len() != new.prefix_len() {
            return Err(Error::Prefixes(old, new));
        }
        let len = if old.addr().is_ipv4() { 4 } else { 16 };
        Ok(NetworkSwap {
            len,
            old: number(old.addr()),
            new: number(new.addr()),
            host: number(old.hostmask()),
        })
    }

    /// Changes a frame with its Ethernet header, or as much of it as there is.
    pub fn apply(&self, frame: &mut [u8]) {
        for (at, mac) in [(0, self.destination_mac), (6, self.source_mac)] {
            if let (Some(mac), Some(place)) = (mac, frame.get_mut(at..at + 6)) {
                place.copy_from_slice(&mac.0);
            }
        }
        if self.rules.is_empty() {
            return;
        }
        let mut at = 12;
        while let Some(ethertype) = word(frame, at) {
            match ethertype {
                ether_type::IPV4 => return self.ipv4(&mut frame[at + 2..]),
                ether_type::IPV6 => return self.ipv6(&mut frame[at + 2..]),
                ether_type::ARP => return self.arp(&mut frame[at + 2..]),
                tag if ether_type::is_vlan_tag(tag) => at += 4,
                _ => return,
            }
        }
    }

    fn ipv4(&self, packet: &mut [u8]) {
        const CHECKSUM: usize = 10;
        let Some(header_len) = packet.first().and_then(|&first| ipv4_header_len(first)) else {
            return;
        };
        let source = self.address(packet, 12, 4);
        let change = source.native(self.address(packet, 16, 4).fold());
        update(packet, CHECKSUM, change);
        let Some(&[_, _, _, _, _, _, high, low, _, protocol]) = packet.first_chunk() else {
            return;
        };
        let is_later_fragment = u16::from_be_bytes([high, low]) & 0x1fff != 0;
        // Segments that the kernel has yet to cut may carry a length of 0.
        let end = match word(packet, 2) {
            None | Some(0) => packet.len(),
            Some(total) => packet.len().min(total.into()),
        };
        if !is_later_fragment && protocol != ip_protocol::ICMPV6 {
            transport(packet.get_mut(header_len..end), protocol, change);
        }
    }

    fn ipv6(&self, packet: &mut [u8]) {
        const HEADER: usize = 40;
        if packet.first().is_none_or(|first| first >> 4 != 6) {
            return;
        }
        let source = self.address(packet, 8, 16);
        let destination = self.address(packet, 24, 16);
        // Jumbograms and segments that are yet to be cut have a length of 0.
        let end = match word(packet, 4) {
            None | Some(0) => packet.len(),
            Some(payload) => packet.len().min(HEADER + usize::from(payload)),
        };
        let payload = packet[..end].get(HEADER..).unwrap_or_default();
        if let Some(found) = behind_extensions(packet.get(6).copied().unwrap_or(0), payload) {
            // RFC 8200, section 8.1: the checksum has the final destination, which is in the
            // routing header.
            let change = if found.routed { source } else { source.native(destination.fold()) };
            transport(packet.get_mut(HEADER + found.at..end), found.protocol, change);
        }
    }

    fn arp(&self, packet: &mut [u8]) {
        let Some(&[_, _, p, q, hardware_len, protocol_len]) = packet.first_chunk() else {
            return;
        };
        if u16::from_be_bytes([p, q]) != ether_type::IPV4 || protocol_len != 4 {
            return;
        }
        let hardware_len = usize::from(hardware_len);
        self.address(packet, 8 + hardware_len, 4);
        self.address(packet, 8 + 4 + 2 * hardware_len, 4);
    }

    /// Exchanges the address of `len` bytes at `at`, if it is there and a rule is for it. Returns
    /// what this adds to a sum that the address is part of.
    fn address(&self, packet: &mut [u8], at: usize, len: usize) -> Sum {
        let Some(place) = packet.get_mut(at..at + len) else {
            return Sum::default();
        };
        let old = place.iter().fold(0u128, |number, &byte| (number << 8) | u128::from(byte));
        let Some(new) = self.rules.iter().find_map(|rule| rule.apply(len, old)) else {
            return Sum::default();
        };
        let mut change = Sum::default();
        let new = new.to_be_bytes();
        let (words, _) = place.as_chunks_mut::<2>();
        for (word, new) in words.iter_mut().zip(new[16 - len..].as_chunks::<2>().0) {
            if word != new {
                change = change.native(!u16::from_ne_bytes(*word)).native(u16::from_ne_bytes(*new));
                *word = *new;
            }
        }
        change
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

/// Returns the length of an IPv4 header by its first byte; `None` where that begins no IPv4 header.
fn ipv4_header_len(first: u8) -> Option<usize> {
    let len = usize::from(first & 0xf) * 4;
    (first >> 4 == 4 && len >= 20).then_some(len)
}

/// A transport behind IPv6's extension headers.
struct Found {
    protocol: u8,
    at: usize,
    /// Whether the packet has still to go by way of other hosts.
    routed: bool,
}

/// Follows extension headers (RFC 8200, section 4) from the one of number `protocol`, which begins
/// `payload`. `None`: the transport is not in this fragment, or not in what was captured.
fn behind_extensions(mut protocol: u8, payload: &[u8]) -> Option<Found> {
    let (mut at, mut routed) = (0, false);
    loop {
        let header = || payload.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
        match protocol {
            ip_protocol::HOP_BY_HOP | ip_protocol::DESTINATION_OPTIONS | ip_protocol::ROUTING => {
                let [next, len, _, segments_left] = header()?;
                routed |= protocol == ip_protocol::ROUTING && segments_left > 0;
                protocol = next;
                at += 8 + 8 * usize::from(len);
            }
            ip_protocol::FRAGMENT => {
                let [next, _, high, low] = header()?;
                if u16::from_be_bytes([high, low]) & !7 != 0 {
                    return None;
                }
                protocol = next;
                at += 8;
            }
            ip_protocol::AUTHENTICATION => {
                let [next, len, ..] = header()?;
                protocol = next;
                at += 8 + 4 * usize::from(len);
            }
            _ => return Some(Found { protocol, at, routed }),
        }
    }
}

/// Changes the checksum of a segment whose pseudo header has changed.
fn transport(segment: Option<&mut [u8]>, protocol: u8, change: Sum) {
    let Some(segment) = segment else { return };
    match protocol {
        ip_protocol::TCP => update(segment, 16, change),
        ip_protocol::ICMPV6 => update(segment, 2, change),
        // RFC 768: zero says that there is none, and is not what a checksum may come to.
        ip_protocol::UDP if word(segment, 6).is_some_and(|checksum| checksum != 0) => {
            update(segment, 6, change);
            if word(segment, 6) == Some(0) {
                segment[6..8].fill(0xff);
            }
        }
        _ => {}
    }
}

/// Changes the checksum at `at`, if it is there: RFC 1624, equation 3.
fn update(bytes: &mut [u8], at: usize, change: Sum) {
    if let Some(checksum) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *checksum = change.native(!u16::from_ne_bytes(*checksum)).checksum();
    }
}
