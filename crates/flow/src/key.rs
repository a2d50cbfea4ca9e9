//! Which packets belong to one flow? Those with the same key, which both directions share.
//!
//! A key has two ends, an address and a port each, of which the lower comes first. The ports of an
//! ICMP message are its type and the type of its answer, as Community ID (version 1) has them: so a
//! request and its answer are one flow, and a message without an answer is one of its own each way.

use std::cmp::Ordering;

use tapdeck_packet::header::innermost::{Innermost, IpPacket};
use tapdeck_packet::numbers::{icmp, ip_protocol};
use tapdeck_packet::rules::Family;

/// Stands where no VLAN tag is.
const NO_VLAN: u16 = 0xffff;

/// What the ends of a key are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// No ends: what is not IP.
    Nothing = 0,
    /// IPv4 addresses of ARP, with no packet of IP.
    Arp = 1,
    Ipv4 = 4,
    Ipv6 = 6,
}

/// Marks a code that stands where a type could stand.
const CODE: u16 = 0x100;

/// A flow's key, on one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u64; 6]);

/// What a key has beside its ends.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    pub ether_type: Option<u16>,
    pub vlan: Option<u16>,
    /// The number of a [`tapdeck_packet::header::innermost::Tunnel`]; 0 where there is none.
    pub tunnel: u8,
    pub protocol: u8,
    /// The day, counted from 1970.
    pub day: i32,
}

/// Which end of a key a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sender {
    Low = 0,
    High = 1,
}

impl Sender {
    pub const fn other(self) -> Self {
        match self {
            Self::Low => Self::High,
            Self::High => Self::Low,
        }
    }
}

impl Key {
    /// Returns the key of a packet on a day, counted from 1970, and which end sent the packet.
    #[inline]
    pub fn of(found: &Innermost, day: i32) -> (Self, Sender) {
        let (kind, source, destination, ports, protocol) = match (&found.ip, &found.arp) {
            (Some(ip), _) => {
                let kind = if ip.family == Family::V4 { Kind::Ipv4 } else { Kind::Ipv6 };
                (kind, halves(ip.source), halves(ip.destination), ports_of(ip), ip.protocol)
            }
            (None, Some((sender, target))) => {
                let (sender, target) = (u32::from_be_bytes(*sender), u32::from_be_bytes(*target));
                let left = |address: u32| [u64::from(address) << 32, 0];
                (Kind::Arp, left(sender), left(target), None, 0)
            }
            (None, None) => (Kind::Nothing, [0; 2], [0; 2], None, 0),
        };
        let around = Around {
            ether_type: found.ether_type,
            vlan: found.vlan,
            tunnel: found.tunnel.map_or(0, |tunnel| tunnel as u8),
            protocol,
            day,
        };
        Self::between(kind, [source, destination], ports, around)
    }

    /// Returns the key of what goes from one end to another, and which of the two sends.
    #[inline]
    pub fn between(
        kind: Kind,
        [source, destination]: [[u64; 2]; 2],
        ports: Option<(u16, u16)>,
        around: Around,
    ) -> (Self, Sender) {
        let (from, to) = ports.unwrap_or_default();
        let sender = match source.cmp(&destination).then(from.cmp(&to)) {
            Ordering::Greater => Sender::High,
            _ => Sender::Low,
        };
        let is_low = sender == Sender::Low;
        let (low, high) = if is_low { (source, destination) } else { (destination, source) };
        let (low_port, high_port) = if is_low { (from, to) } else { (to, from) };
        let Around { ether_type, vlan, tunnel, protocol, day } = around;
        let around = u64::from(low_port)
            | u64::from(high_port) << 16
            | u64::from(ether_type.unwrap_or(0)) << 32
            | u64::from(vlan.unwrap_or(NO_VLAN)) << 48;
        let what = u64::from(protocol)
            | u64::from(kind as u8) << 8
            | u64::from(tunnel) << 16
            | u64::from(ports.is_some()) << 24
            | u64::from(day.cast_unsigned()) << 32;
        (Self([low[0], low[1], high[0], high[1], around, what]), sender)
    }

    /// Returns a hash that nobody can foretell who does not know the seed.
    #[inline]
    pub fn hash(&self, seed: [u64; 2]) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let words = &self.0;
        let [one, other] = seed;
        let first = fold(words[0] ^ one, words[1] ^ other ^ 0x9e37_79b9_7f4a_7c15);
        let second = fold(words[2] ^ other, words[3] ^ one ^ 0xbf58_476d_1ce4_e5b9);
        let third = fold(words[4] ^ one ^ first, words[5] ^ other ^ 0x94d0_49bb_1331_11eb);
        fold(second ^ one, third ^ 0xd6e8_feb8_6659_fd93)
    }

    pub fn kind(&self) -> Kind {
        match (self.0[5] >> 8) as u8 {
            1 => Kind::Arp,
            4 => Kind::Ipv4,
            6 => Kind::Ipv6,
            _ => Kind::Nothing,
        }
    }

    /// Returns the address of an end: its 128 bits, an IPv4 address in the highest 32.
    pub fn address(&self, end: Sender) -> [u64; 2] {
        match end {
            Sender::Low => [self.0[0], self.0[1]],
            Sender::High => [self.0[2], self.0[3]],
        }
    }

    /// Returns the port of an end, or of ICMP what stands for it.
    pub fn port(&self, end: Sender) -> u16 {
        (self.0[4] >> (16 * end as u32)) as u16
    }

    /// Whether there are ports, or what stands for them.
    pub fn has_ports(&self) -> bool {
        self.0[5] >> 24 & 1 == 1
    }

    pub fn is_icmp(&self) -> bool {
        match self.kind() {
            Kind::Ipv4 => self.protocol() == ip_protocol::ICMP,
            Kind::Ipv6 => self.protocol() == ip_protocol::ICMPV6,
            _ => false,
        }
    }

    pub fn protocol(&self) -> u8 {
        self.0[5] as u8
    }

    /// Returns the number of a [`tapdeck_packet::header::innermost::Tunnel`]; 0 where there is
    /// none.
    pub fn tunnel(&self) -> u8 {
        (self.0[5] >> 16) as u8
    }

    pub fn ether_type(&self) -> Option<u16> {
        Some((self.0[4] >> 32) as u16).filter(|kind| *kind > 0)
    }

    pub fn vlan(&self) -> Option<u16> {
        Some((self.0[4] >> 48) as u16).filter(|id| *id != NO_VLAN)
    }

    pub fn day(&self) -> i32 {
        ((self.0[5] >> 32) as u32).cast_signed()
    }
}

#[inline]
pub fn halves(address: [u8; 16]) -> [u64; 2] {
    let bits = u128::from_be_bytes(address);
    [(bits >> 64) as u64, bits as u64]
}

#[inline]
fn ports_of(ip: &IpPacket) -> Option<(u16, u16)> {
    if ip.ports.is_some() {
        return ip.ports;
    }
    ip.icmp.map(|(kind, code)| icmp_ports(ip.protocol, kind, code))
}

/// Returns what an ICMP message has for ports: its type and the type of its answer. Where there is
/// no answer it is the code, marked: were it the same as the type, both ways would have one key.
#[inline]
pub fn icmp_ports(protocol: u8, kind: u8, code: u8) -> (u16, u16) {
    let other = icmp::answer(protocol, kind).map_or(CODE | u16::from(code), u16::from);
    (kind.into(), other)
}
