//! Packets inside packets.

use super::ether::{self, IPV4, IPV6};
use super::{TUNNELS, Visit, Walk, half};
use crate::key::Class;

const VXLAN: u16 = 4789;
/// Linux's VXLAN where nobody said otherwise, from before there was a number for it.
const VXLAN_LINUX: u16 = 8472;
const GENEVE: u16 = 6081;
const GTP_U: u16 = 2152;

const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const MPLS_IN_IP: u8 = 137;

const TRANSPARENT_ETHERNET: u16 = 0x6558;
const PPP: u16 = 0x880b;
const ERSPAN: u16 = 0x88be;
const ERSPAN_3: u16 = 0x22eb;

/// Whether there may be a packet inside a UDP datagram to this port.
#[inline]
pub fn is_udp_tunnel(destination: u16) -> bool {
    matches!(destination, VXLAN | VXLAN_LINUX | GENEVE | GTP_U)
}

#[inline]
pub(super) fn is_ip_tunnel(protocol: u8) -> bool {
    matches!(protocol, IPV4_IN_IP | IPV6_IN_IP | GRE | MPLS_IN_IP)
}

impl<V: Visit> Walk<'_, V> {
    /// Whether one more tunnel may be followed.
    pub(super) fn enter(&mut self) -> bool {
        if self.tunnels == TUNNELS {
            self.is_opaque = true;
            return false;
        }
        self.tunnels += 1;
        true
    }

    #[inline(never)]
    pub(super) fn udp_tunnel(&mut self, destination: u16, payload: &[u8]) {
        if !self.enter() {
            return;
        }
        match destination {
            GENEVE => self.geneve(payload),
            GTP_U => self.gtp_u(payload),
            _ => self.vxlan(payload),
        }
    }

    #[inline(never)]
    pub(super) fn ip_tunnel(&mut self, protocol: u8, payload: &[u8]) {
        match protocol {
            // Enters by itself, as each label stack does.
            MPLS_IN_IP => self.mpls(payload),
            _ if !self.enter() => {}
            IPV4_IN_IP => self.carried(IPV4, payload),
            IPV6_IN_IP => self.carried(IPV6, payload),
            _ => self.gre(payload),
        }
    }

    /// RFC 7348.
    fn vxlan(&mut self, packet: &[u8]) {
        const HAS_NETWORK: u8 = 0x08;
        if let [flags, _, _, _, _, _, _, _, frame @ ..] = packet
            && flags & HAS_NETWORK != 0
        {
            self.carried_frame(frame);
        }
    }

    /// RFC 8926. libpcap's `geneve` takes version 0 alone.
    fn geneve(&mut self, packet: &[u8]) {
        let (Some(&first), Some(kind)) = (packet.first(), half(packet, 2)) else { return };
        let header = 8 + usize::from(first & 0x3f) * 4;
        let payload = packet.get(header..).unwrap_or_default();
        if first >> 6 != 0 {
            return;
        }
        if kind == TRANSPARENT_ETHERNET {
            self.visit.key(Class::EtherType, kind.into());
            self.carried_frame(payload);
        } else {
            // Behind a tag that follows with no Ethernet header, libpcap takes the next type from
            // GENEVE's network identifier. Nobody sends that; whoever does is not worth
            // a second reading.
            self.is_opaque |= ether::is_tag(kind);
            self.carried(kind, payload);
        }
    }

    /// 3GPP TS 29.281, section 5.
    fn gtp_u(&mut self, packet: &[u8]) {
        const VERSION_1: u8 = 0x20;
        const PROTOCOL_TYPE: u8 = 0x10;
        const ANY_OPTION: u8 = 0x07;
        const EXTENSION: u8 = 0x04;
        const USER_PACKET: u8 = 255;
        let [flags, USER_PACKET, ..] = *packet else { return };
        if flags & (0xe0 | PROTOCOL_TYPE) != VERSION_1 | PROTOCOL_TYPE {
            return;
        }
        let mut at = 8;
        if flags & ANY_OPTION != 0 {
            at = 12;
            let mut extension = if flags & EXTENSION == 0 { 0 } else { byte(packet, 11) };
            while extension != 0 {
                // In units of four bytes, the last of which is the type of the next extension.
                let length = usize::from(byte(packet, at)) * 4;
                if length == 0 {
                    return;
                }
                at += length;
                extension = byte(packet, at - 1);
            }
        }
        match packet.get(at..) {
            Some(packet @ [0x40..=0x4f, ..]) => self.carried(IPV4, packet),
            Some(packet @ [0x60..=0x6f, ..]) => self.carried(IPV6, packet),
            _ => {}
        }
    }

    /// RFC 2784 and 2890, and PPTP's (RFC 2637).
    fn gre(&mut self, packet: &[u8]) {
        const CHECKSUM: u16 = 0x8000;
        const ROUTING: u16 = 0x4000;
        const KEY: u16 = 0x2000;
        const SEQUENCE: u16 = 0x1000;
        const ACKNOWLEDGMENT: u16 = 0x0080;
        let (Some(flags), Some(kind)) = (half(packet, 0), half(packet, 2)) else { return };
        self.visit.key(Class::EtherType, kind.into());
        let version = flags & 7;
        let acknowledgment = if version == 1 { ACKNOWLEDGMENT } else { 0 };
        let options = flags & (CHECKSUM | KEY | SEQUENCE | acknowledgment);
        let header = 4 + 4 * options.count_ones() as usize;
        // Source routes went out of use with RFC 1701; they are not followed, here or by libpcap.
        if version > 1 || flags & ROUTING != 0 {
            return;
        }
        let payload = packet.get(header..).unwrap_or_default();
        match kind {
            PPP => self.tunneled_ppp(payload),
            TRANSPARENT_ETHERNET => self.carried_frame(payload),
            // Type I has no header of its own, and no sequence number either.
            ERSPAN if flags & SEQUENCE == 0 => self.carried_frame(payload),
            ERSPAN => self.carried_frame(payload.get(8..).unwrap_or_default()),
            ERSPAN_3 => {
                let subheader = if byte(payload, 11) & 1 == 0 { 0 } else { 8 };
                self.carried_frame(payload.get(12 + subheader..).unwrap_or_default());
            }
            _ => self.carried(kind, payload),
        }
    }

    /// PPP where both ends may have agreed to leave out bytes (RFC 1661, section 6).
    fn tunneled_ppp(&mut self, packet: &[u8]) {
        let packet = packet.strip_prefix(&[0xff, 0x03]).unwrap_or(packet);
        match packet {
            [0x21, payload @ ..] => self.carried(IPV4, payload),
            [0x57, payload @ ..] => self.carried(IPV6, payload),
            _ => self.ppp(packet),
        }
    }
}

/// 0 where it was not captured.
fn byte(packet: &[u8], at: usize) -> u8 {
    packet.get(at).copied().unwrap_or(0)
}
