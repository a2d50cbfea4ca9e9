//! Which keys do IPv4 and IPv6 headers have, those of their extensions, and the ports behind them?

use super::field::{ipv4, ipv6, ipv6_extension, ipv6_fragment, ports, udp};
use super::{Visit, Walk, half, tunnel, word};
use crate::key::Class;
use crate::numbers::ip_protocol;

impl<V: Visit> Walk<'_, V> {
    /// Reads an IPv4 packet. Version and lengths are not tested, because libpcap does not test
    /// them.
    #[inline]
    pub(super) fn ipv4(&mut self, packet: &[u8]) {
        let Some(&protocol) = packet.get(ipv4::PROTOCOL) else { return };
        self.visit.key(Class::Protocol, protocol.into());
        if let Some(source) = word(packet, ipv4::SOURCE) {
            self.visit.key(Class::SourceIpv4, source.into());
        }
        if let Some(destination) = word(packet, ipv4::DESTINATION) {
            self.visit.key(Class::DestinationIpv4, destination.into());
        }
        let is_later_fragment =
            half(packet, ipv4::FRAGMENT).is_some_and(|offset| offset & ipv4::OFFSET_MASK != 0);
        let header = usize::from(packet[0] & ipv4::LENGTH_MASK) * 4;
        if let Some(payload) = packet.get(header..)
            && !is_later_fragment
        {
            self.transport(protocol, payload);
            // libpcap finds ports behind a header of any length; a tunnel's header stands behind
            // one that is long enough.
            if header >= ipv4::HEADER_BYTES && tunnel::is_ip_tunnel(protocol) {
                self.ip_tunnel(protocol, payload);
            }
        }
    }

    #[inline]
    pub(super) fn ipv6(&mut self, packet: &[u8]) {
        let Some(&next) = packet.get(ipv6::NEXT_HEADER) else { return };
        self.ipv6_address(Class::SourceIpv6, packet, ipv6::SOURCE);
        self.ipv6_address(Class::DestinationIpv6, packet, ipv6::DESTINATION);
        let payload = packet.get(ipv6::HEADER_BYTES..).unwrap_or_default();
        self.visit.key(Class::Protocol, next.into());
        if matches!(next, ip_protocol::TCP | ip_protocol::UDP) {
            self.transport(next, payload);
        } else {
            self.ipv6_chain(next, payload);
        }
    }

    /// Passes the address at `at` on. libpcap compares those 32-bit words that a prefix reaches
    /// into, so of an address that is cut the words that are there are given, as the lowest
    /// address that has them.
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

    /// Passes extension headers, of which there may be none, and reads what follows them. The key
    /// of `next` has been given.
    #[inline(never)]
    fn ipv6_chain(&mut self, mut next: u8, mut payload: &[u8]) {
        loop {
            let length = payload.get(ipv6_extension::LENGTH).copied();
            let bytes = match next {
                ip_protocol::HOP_BY_HOP
                | ip_protocol::ROUTING
                | ip_protocol::DESTINATION_OPTIONS
                | ip_protocol::MOBILITY
                | ip_protocol::HIP
                | ip_protocol::SHIM6 => length.map(ipv6_extension::bytes),
                ip_protocol::AUTHENTICATION => length.map(ipv6_extension::authentication_bytes),
                // Behind the header of a later fragment stands no other header.
                ip_protocol::FRAGMENT => half(payload, ipv6_fragment::FRAGMENT)
                    .filter(|offset| offset & ipv6_fragment::OFFSET_MASK == 0)
                    .map(|_| ipv6_fragment::HEADER_BYTES),
                _ => break,
            };
            let Some(&following) = payload.get(ipv6_extension::NEXT_HEADER) else { return };
            self.visit.key(Class::Protocol, following.into());
            let Some(rest) = bytes.and_then(|n| payload.get(n..)) else { return };
            (next, payload) = (following, rest);
        }
        self.transport(next, payload);
        if tunnel::is_ip_tunnel(next) {
            self.ip_tunnel(next, payload);
        }
    }

    #[inline]
    fn transport(&mut self, protocol: u8, payload: &[u8]) {
        if !ip_protocol::has_ports(protocol) {
            return;
        }
        let Some(source) = half(payload, ports::SOURCE) else { return };
        self.visit.key(Class::SourcePort, source.into());
        let Some(destination) = half(payload, ports::DESTINATION) else { return };
        self.visit.key(Class::DestinationPort, destination.into());
        if protocol == ip_protocol::UDP && tunnel::is_udp_tunnel(destination) {
            self.udp_tunnel(destination, payload.get(udp::HEADER_BYTES..).unwrap_or_default());
        }
    }
}
