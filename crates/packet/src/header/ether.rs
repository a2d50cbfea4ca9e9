//! Ethernet, and what an EtherType can lead to: tags, labels, PPP, ARP and LLC.

use super::field::{arp, mpls, pppoe, snap, vlan_tag};
use super::{Visit, Walk, half, word};
use crate::key::Class;
use crate::link::LinkType;
use crate::numbers::{ether_type, ppp_protocol};

/// How many tags, or labels of one stack, are followed in a row.
const STACK: usize = 64;

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

    /// Reads a payload that an EtherType of `kind` announces.
    #[inline]
    pub(super) fn typed(&mut self, kind: u16, payload: &[u8]) {
        self.visit.key(Class::EtherType, kind.into());
        match kind {
            ether_type::IPV4 => self.ipv4(payload),
            ether_type::IPV6 => self.ipv6(payload),
            _ => self.tagged(kind, payload),
        }
    }

    /// Passes tags, of which there may be none, and reads what follows them.
    #[inline(never)]
    fn tagged(&mut self, mut kind: u16, mut payload: &[u8]) {
        for _ in 0..=STACK {
            if !ether_type::is_vlan_tag(kind) {
                return self.untagged(kind, payload);
            }
            let Some(control) = half(payload, vlan_tag::CONTROL) else { return };
            self.visit.key(Class::Vlan, (control & vlan_tag::ID_MASK).into());
            let Some(next) = half(payload, vlan_tag::TYPE) else { return };
            self.visit.key(Class::EtherType, next.into());
            (kind, payload) = (next, &payload[vlan_tag::BYTES..]);
        }
        self.is_opaque = true;
    }

    fn untagged(&mut self, kind: u16, payload: &[u8]) {
        match kind {
            ether_type::IPV4 => self.ipv4(payload),
            ether_type::IPV6 => self.ipv6(payload),
            ether_type::ARP | ether_type::RARP => self.arp(payload),
            ether_type::MPLS | ether_type::MPLS_MULTICAST => self.mpls(payload),
            ether_type::PPPOE_SESSION => self.pppoe(payload),
            0..ether_type::FIRST if payload.starts_with(&snap::LLC) => {
                if let Some(kind) = half(payload, snap::TYPE) {
                    self.visit.key(Class::EtherType, kind.into());
                }
            }
            _ => {}
        }
    }

    /// Reads ARP and RARP. libpcap looks where IPv4 over Ethernet has its addresses, whatever
    /// lengths the packet states.
    fn arp(&mut self, packet: &[u8]) {
        if let Some(sender) = word(packet, arp::SENDER_IPV4) {
            self.visit.key(Class::SourceIpv4, sender.into());
        }
        if let Some(target) = word(packet, arp::TARGET_IPV4) {
            self.visit.key(Class::DestinationIpv4, target.into());
        }
    }

    /// Reads a label stack. Which protocol follows the last label is known at the tunnel's ends
    /// alone; the packet's first bits are a good guess, and the one that libpcap makes.
    pub(super) fn mpls(&mut self, mut stack: &[u8]) {
        if !self.enter() {
            return;
        }
        for _ in 0..STACK {
            let Some((entry, rest)) = stack.split_first_chunk() else { return };
            let entry = u32::from_be_bytes(*entry);
            self.visit.key(Class::Mpls, (entry >> mpls::LABEL_SHIFT).into());
            if entry & mpls::BOTTOM_OF_STACK != 0 {
                return match rest {
                    [0x40..=0x4f, ..] => self.carried(ether_type::IPV4, rest),
                    [0x60..=0x6f, ..] => self.carried(ether_type::IPV6, rest),
                    // The control word of an Ethernet pseudowire, RFC 4448.
                    [0, 0, _, _, frame @ ..] => self.carried_frame(frame),
                    _ => self.carried_frame(rest),
                };
            }
            stack = rest;
        }
        self.is_opaque = true;
    }

    /// Reads a session packet of PPPoE. Version, code and length are not tested, because libpcap
    /// does not test them.
    fn pppoe(&mut self, packet: &[u8]) {
        if self.enter() {
            self.ppp(packet.get(pppoe::HEADER_BYTES..).unwrap_or_default());
        }
    }

    /// Reads a packet that begins with PPP's protocol. libpcap compares that number, or the
    /// EtherType of the same protocol where there is one.
    pub(super) fn ppp(&mut self, packet: &[u8]) {
        let Some((protocol, payload)) = packet.split_first_chunk() else { return };
        let protocol = u16::from_be_bytes(*protocol);
        self.visit.key(Class::EtherType, protocol.into());
        let kind = match protocol {
            ppp_protocol::IPV4 => ether_type::IPV4,
            ppp_protocol::IPV6 => ether_type::IPV6,
            ppp_protocol::MPLS => ether_type::MPLS,
            ppp_protocol::MPLS_MULTICAST => ether_type::MPLS_MULTICAST,
            ppp_protocol::XNS => ether_type::XNS,
            ppp_protocol::DECNET => ether_type::DECNET,
            ppp_protocol::APPLETALK => ether_type::APPLETALK,
            _ => protocol,
        };
        self.carried(kind, payload);
    }

    /// Reads, as [`Walk::typed`] does, what stands inside a tunnel.
    pub(super) fn carried(&mut self, kind: u16, payload: &[u8]) {
        let version = payload.first().map(|b| b >> 4);
        // Frames of link type RAW are what their first bits say. Where those contradict the
        // tunnel, there is no such frame to show, and the keys are those of the tunnel's reading.
        let is_ip =
            matches!((kind, version), (ether_type::IPV4, Some(4)) | (ether_type::IPV6, Some(6)));
        if is_ip && self.tunnels > 0 {
            self.visit.inner(LinkType::RAW, payload);
        }
        self.typed(kind, payload);
    }

    /// Reads an Ethernet frame inside a tunnel.
    pub(super) fn carried_frame(&mut self, frame: &[u8]) {
        if !frame.is_empty() {
            self.visit.inner(LinkType::ETHERNET, frame);
            self.ethernet(frame);
        }
    }
}
