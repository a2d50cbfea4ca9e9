//! IPv4, IPv6 and ports.

use super::{Visit, Walk, half, tunnel, word};
use crate::key::Class;

const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

impl<V: Visit> Walk<'_, V> {
    /// Neither version nor lengths are tested, for libpcap does not.
    #[inline]
    pub(super) fn ipv4(&mut self, packet: &[u8]) {
        // The least header; shorter ones have no tunnel's header behind them, but for libpcap they
        // have ports.
        const HEADER: usize = 20;
        let Some(&protocol) = packet.get(9) else { return };
        self.visit.key(Class::Protocol, protocol.into());
        if let Some(source) = word(packet, 12) {
            self.visit.key(Class::SourceIpv4, source.into());
        }
        if let Some(destination) = word(packet, 16) {
            self.visit.key(Class::DestinationIpv4, destination.into());
        }
        let is_later_fragment = half(packet, 6).is_some_and(|offset| offset & 0x1fff != 0);
        let header = usize::from(packet[0] & 0x0f) * 4;
        if let Some(payload) = packet.get(header..)
            && !is_later_fragment
        {
            self.transport(protocol, payload);
            if header >= HEADER && tunnel::is_ip_tunnel(protocol) {
                self.ip_tunnel(protocol, payload);
            }
        }
    }

    #[inline]
    pub(super) fn ipv6(&mut self, packet: &[u8]) {
        let Some(&next) = packet.get(6) else { return };
        self.ipv6_address(Class::SourceIpv6, packet, 8);
        self.ipv6_address(Class::DestinationIpv6, packet, 24);
        let payload = packet.get(40..).unwrap_or_default();
        self.visit.key(Class::Protocol, next.into());
        if matches!(next, TCP | UDP) {
            self.transport(next, payload);
        } else {
            self.ipv6_chain(next, payload);
        }
    }

    /// libpcap compares those 32-bit words that a prefix reaches into. Of an address that is cut,
    /// the words that are there are given, as the lowest address that has them.
    #[inline]
    fn ipv6_address(&mut self, class: Class, packet: &[u8], at: usize) {
        let bytes = packet.get(at..).unwrap_or_default();
        if let Some(&address) = bytes.first_chunk() {
            self.visit.key(class, u128::from_be_bytes(address));
        } else if bytes.len() >= 4 {
            let words = bytes.len() / 4 * 4;
            let mut address = [0; 16];
            address[..words].copy_from_slice(&bytes[..words]);
            self.visit.key(class, u128::from_be_bytes(address));
        }
    }

    /// Passes extension headers (RFC 8200, section 4); there may be none. The key of `next` has
    /// been given.
    #[inline(never)]
    fn ipv6_chain(&mut self, mut next: u8, mut payload: &[u8]) {
        loop {
            let length = payload.get(1).copied().map(usize::from);
            let length = match next {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6 => {
                    length.map(|n| 8 + 8 * n)
                }
                // RFC 4302.
                AUTHENTICATION => length.map(|n| 8 + 4 * n),
                // Behind the header of a later fragment stands no other header.
                FRAGMENT => half(payload, 2).filter(|offset| offset & 0xfff8 == 0).map(|_| 8),
                _ => {
                    self.transport(next, payload);
                    if tunnel::is_ip_tunnel(next) {
                        self.ip_tunnel(next, payload);
                    }
                    return;
                }
            };
            let Some(&following) = payload.first() else { return };
            self.visit.key(Class::Protocol, following.into());
            let Some(rest) = length.and_then(|n| payload.get(n..)) else { return };
            (next, payload) = (following, rest);
        }
    }

    #[inline]
    fn transport(&mut self, protocol: u8, payload: &[u8]) {
        if !matches!(protocol, TCP | UDP | SCTP | UDP_LITE | DCCP) {
            return;
        }
        let Some(source) = half(payload, 0) else { return };
        self.visit.key(Class::SourcePort, source.into());
        let Some(destination) = half(payload, 2) else { return };
        self.visit.key(Class::DestinationPort, destination.into());
        if protocol == UDP && tunnel::is_udp_tunnel(destination) {
            self.udp_tunnel(destination, payload.get(8..).unwrap_or_default());
        }
    }
}
