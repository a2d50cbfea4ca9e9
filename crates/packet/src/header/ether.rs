//! Ethernet, and what an `EtherType` can lead to: tags, labels, PPP, ARP, LLC.

use super::{Visit, Walk, half, word};
use crate::key::Class;
use crate::link::LinkType;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const MPLS: u16 = 0x8847;
const MPLS_MULTICAST: u16 = 0x8848;
const PPPOE_SESSION: u16 = 0x8864;
/// Lower numbers in a type's place are lengths.
const FIRST_TYPE: u16 = 0x0600;

/// Tags or labels in a row that are followed.
const STACK: usize = 64;

/// IEEE 802.1Q, 802.1ad, and what came before the latter.
pub(super) fn is_tag(kind: u16) -> bool {
    matches!(kind, 0x8100 | 0x88a8 | 0x9100)
}

#[inline]
pub(super) fn mac(address: [u8; 6]) -> u128 {
    let mut wide = [0; 8];
    wide[2..].copy_from_slice(&address);
    u64::from_be_bytes(wide).into()
}

impl<V: Visit> Walk<'_, V> {
    #[inline]
    pub(super) fn ethernet(&mut self, frame: &[u8]) {
        let Some((destination, rest)) = frame.split_first_chunk() else { return };
        self.visit.key(Class::DestinationMac, mac(*destination));
        let Some((source, rest)) = rest.split_first_chunk() else { return };
        self.visit.key(Class::SourceMac, mac(*source));
        let Some((kind, payload)) = rest.split_first_chunk() else { return };
        self.typed(u16::from_be_bytes(*kind), payload);
    }

    /// What a type says and what stands behind it.
    #[inline]
    pub(super) fn typed(&mut self, kind: u16, payload: &[u8]) {
        self.visit.key(Class::EtherType, kind.into());
        match kind {
            IPV4 => self.ipv4(payload),
            IPV6 => self.ipv6(payload),
            _ => self.tagged(kind, payload),
        }
    }

    /// Passes tags; there may be none.
    #[inline(never)]
    fn tagged(&mut self, mut kind: u16, mut payload: &[u8]) {
        for _ in 0..=STACK {
            if !is_tag(kind) {
                return self.untagged(kind, payload);
            }
            let Some(tag) = half(payload, 0) else { return };
            self.visit.key(Class::Vlan, (tag & 0x0fff).into());
            let Some(next) = half(payload, 2) else { return };
            self.visit.key(Class::EtherType, next.into());
            (kind, payload) = (next, &payload[4..]);
        }
        self.is_opaque = true;
    }

    fn untagged(&mut self, kind: u16, payload: &[u8]) {
        match kind {
            IPV4 => self.ipv4(payload),
            IPV6 => self.ipv6(payload),
            ARP | RARP => self.arp(payload),
            MPLS | MPLS_MULTICAST => self.mpls(payload),
            PPPOE_SESSION => self.pppoe(payload),
            0..FIRST_TYPE if payload.starts_with(&[0xaa, 0xaa, 3]) => {
                if let Some(kind) = half(payload, 6) {
                    self.visit.key(Class::EtherType, kind.into());
                }
            }
            _ => {}
        }
    }

    /// libpcap takes the places that IPv4 over Ethernet gives, whatever lengths the packet states.
    fn arp(&mut self, packet: &[u8]) {
        if let Some(sender) = word(packet, 14) {
            self.visit.key(Class::SourceIpv4, sender.into());
        }
        if let Some(target) = word(packet, 24) {
            self.visit.key(Class::DestinationIpv4, target.into());
        }
    }

    /// RFC 3032. What the last label's packet is, only its ends know; its first bits are a good
    /// guess, and libpcap's.
    pub(super) fn mpls(&mut self, mut stack: &[u8]) {
        if !self.enter() {
            return;
        }
        for _ in 0..STACK {
            let Some((entry, rest)) = stack.split_first_chunk() else { return };
            let entry = u32::from_be_bytes(*entry);
            self.visit.key(Class::Mpls, (entry >> 12).into());
            if entry & 0x100 != 0 {
                return match rest {
                    [0x40..=0x4f, ..] => self.carried(IPV4, rest),
                    [0x60..=0x6f, ..] => self.carried(IPV6, rest),
                    // The control word of an Ethernet pseudowire, RFC 4448.
                    [0, 0, _, _, frame @ ..] => self.carried_frame(frame),
                    _ => self.carried_frame(rest),
                };
            }
            stack = rest;
        }
        self.is_opaque = true;
    }

    /// RFC 2516. Version, code and length are not tested, for libpcap does not.
    fn pppoe(&mut self, packet: &[u8]) {
        if self.enter() {
            self.ppp(packet.get(6..).unwrap_or_default());
        }
    }

    /// `packet` begins with PPP's protocol. libpcap compares that, translated where the protocol
    /// has an `EtherType`.
    pub(super) fn ppp(&mut self, packet: &[u8]) {
        let Some((protocol, payload)) = packet.split_first_chunk() else { return };
        let protocol = u16::from_be_bytes(*protocol);
        self.visit.key(Class::EtherType, protocol.into());
        let kind = match protocol {
            0x0021 => IPV4,
            0x0057 => IPV6,
            0x0281 => MPLS,
            0x0283 => MPLS_MULTICAST,
            // XNS, DECnet, AppleTalk.
            0x0025 => 0x0600,
            0x0027 => 0x6003,
            0x0029 => 0x809b,
            _ => protocol,
        };
        self.carried(kind, payload);
    }

    /// As [`Walk::typed`], where what stands there is a packet inside a tunnel.
    pub(super) fn carried(&mut self, kind: u16, payload: &[u8]) {
        let version = payload.first().map(|b| b >> 4);
        // A packet of a link type RAW is what its first bits say; of one that says otherwise than
        // its tunnel, only the tunnel's reading has its keys given.
        let is_ip = matches!((kind, version), (IPV4, Some(4)) | (IPV6, Some(6)));
        if is_ip && self.tunnels > 0 {
            self.visit.inner(LinkType::RAW, payload);
        }
        self.typed(kind, payload);
    }

    /// An Ethernet frame inside a tunnel.
    pub(super) fn carried_frame(&mut self, frame: &[u8]) {
        if !frame.is_empty() {
            self.visit.inner(LinkType::ETHERNET, frame);
            self.ethernet(frame);
        }
    }
}
