//! Packets inside packets: tunnels over UDP and IP, and how many are followed.

use super::field::{erspan, geneve, gre, gtp_u, vxlan};
use super::{TUNNELS, Visit, Walk, half};
use crate::key::Class;
use crate::numbers::{ether_type, ip_protocol, ppp_protocol, udp_port};

/// Returns whether there may be a packet inside a UDP datagram to this port.
#[inline]
pub const fn is_udp_tunnel(destination: u16) -> bool {
    matches!(
        destination,
        udp_port::VXLAN | udp_port::VXLAN_LINUX | udp_port::GENEVE | udp_port::GTP_U
    )
}

#[inline]
pub(super) fn is_ip_tunnel(protocol: u8) -> bool {
    matches!(protocol, ip_protocol::IPV4 | ip_protocol::IPV6 | ip_protocol::GRE | ip_protocol::MPLS)
}

impl<V: Visit> Walk<'_, V> {
    /// Returns whether one more tunnel may be followed.
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
            udp_port::GENEVE => self.geneve(payload),
            udp_port::GTP_U => self.gtp_u(payload),
            _ => self.vxlan(payload),
        }
    }

    #[inline(never)]
    pub(super) fn ip_tunnel(&mut self, protocol: u8, payload: &[u8]) {
        match protocol {
            // A label stack counts itself as a tunnel, wherever it stands.
            ip_protocol::MPLS => self.mpls(payload),
            _ if !self.enter() => {}
            ip_protocol::IPV4 => self.carried(ether_type::IPV4, payload),
            ip_protocol::IPV6 => self.carried(ether_type::IPV6, payload),
            _ => self.gre(payload),
        }
    }

    fn vxlan(&mut self, packet: &[u8]) {
        let Some((header, frame)) = packet.split_first_chunk::<{ vxlan::HEADER_BYTES }>() else {
            return;
        };
        if header[vxlan::FLAGS] & vxlan::HAS_NETWORK != 0 {
            self.carried_frame(frame);
        }
    }

    /// Reads GENEVE of version 0, the only one that libpcap's `geneve` takes.
    fn geneve(&mut self, packet: &[u8]) {
        let (Some(&first), Some(kind)) = (packet.get(geneve::FIRST), half(packet, geneve::TYPE))
        else {
            return;
        };
        let header = geneve::HEADER_BYTES + usize::from(first & geneve::OPTIONS_MASK) * 4;
        let payload = packet.get(header..).unwrap_or_default();
        if first >> geneve::VERSION_SHIFT != 0 {
            return;
        }
        if kind == ether_type::ETHERNET {
            self.visit.key(Class::EtherType, kind.into());
            self.carried_frame(payload);
        } else {
            // Behind a tag that follows with no Ethernet header, libpcap takes the next type from
            // GENEVE's network identifier. Nobody sends that; whoever does is not worth
            // a second reading.
            self.is_opaque |= ether_type::is_vlan_tag(kind);
            self.carried(kind, payload);
        }
    }

    fn gtp_u(&mut self, packet: &[u8]) {
        let [flags, gtp_u::USER_PACKET, ..] = *packet else { return };
        let is_gtp_1 = flags & (gtp_u::VERSION_MASK | gtp_u::PROTOCOL_TYPE)
            == gtp_u::VERSION_1 | gtp_u::PROTOCOL_TYPE;
        if !is_gtp_1 {
            return;
        }
        let mut at = gtp_u::HEADER_BYTES;
        if flags & gtp_u::ANY_OPTION != 0 {
            at = gtp_u::LONG_HEADER_BYTES;
            let has_extension = flags & gtp_u::HAS_EXTENSION != 0;
            let mut extension = if has_extension { byte(packet, gtp_u::NEXT_EXTENSION) } else { 0 };
            while extension != 0 {
                // Extensions are counted in units of four bytes. The last byte is the type of the
                // next extension.
                let length = usize::from(byte(packet, at)) * 4;
                if length == 0 {
                    return;
                }
                at += length;
                extension = byte(packet, at - 1);
            }
        }
        match packet.get(at..) {
            Some(packet @ [0x40..=0x4f, ..]) => self.carried(ether_type::IPV4, packet),
            Some(packet @ [0x60..=0x6f, ..]) => self.carried(ether_type::IPV6, packet),
            _ => {}
        }
    }

    fn gre(&mut self, packet: &[u8]) {
        let (Some(flags), Some(kind)) = (half(packet, gre::FLAGS), half(packet, gre::TYPE)) else {
            return;
        };
        self.visit.key(Class::EtherType, kind.into());
        let version = flags & gre::VERSION_MASK;
        let acknowledgment = if version == 1 { gre::HAS_ACKNOWLEDGMENT } else { 0 };
        let options =
            flags & (gre::HAS_CHECKSUM | gre::HAS_KEY | gre::HAS_SEQUENCE | acknowledgment);
        let header = gre::HEADER_BYTES + gre::OPTION_BYTES * options.count_ones() as usize;
        // Source routes went out of use with RFC 1701; they are not followed, here or by libpcap.
        if version > 1 || flags & gre::HAS_ROUTING != 0 {
            return;
        }
        let payload = packet.get(header..).unwrap_or_default();
        match kind {
            ether_type::PPP => self.tunneled_ppp(payload),
            ether_type::ETHERNET => self.carried_frame(payload),
            // Type I has no header of its own, and no sequence number either.
            ether_type::ERSPAN if flags & gre::HAS_SEQUENCE == 0 => self.carried_frame(payload),
            ether_type::ERSPAN => self.behind(payload, erspan::TYPE_2_HEADER_BYTES),
            ether_type::ERSPAN_3 => {
                let has_subheader =
                    byte(payload, erspan::TYPE_3_FLAGS) & erspan::HAS_SUBHEADER != 0;
                let subheader = if has_subheader { erspan::SUBHEADER_BYTES } else { 0 };
                self.behind(payload, erspan::TYPE_3_HEADER_BYTES + subheader);
            }
            _ => self.carried(kind, payload),
        }
    }

    /// Reads the Ethernet frame behind a header of so many bytes.
    fn behind(&mut self, packet: &[u8], header_bytes: usize) {
        self.carried_frame(packet.get(header_bytes..).unwrap_or_default());
    }

    /// Reads PPP where both ends may have agreed to leave out bytes (RFC 1661, section 6): address
    /// and control, and the first byte of the protocol if it is 0.
    fn tunneled_ppp(&mut self, packet: &[u8]) {
        const SHORT_IPV4: u8 = ppp_protocol::IPV4 as u8;
        const SHORT_IPV6: u8 = ppp_protocol::IPV6 as u8;
        let packet = packet.strip_prefix(&ppp_protocol::ADDRESS_AND_CONTROL).unwrap_or(packet);
        match packet {
            [SHORT_IPV4, payload @ ..] => self.carried(ether_type::IPV4, payload),
            [SHORT_IPV6, payload @ ..] => self.carried(ether_type::IPV6, payload),
            _ => self.ppp(packet),
        }
    }
}

/// Returns the byte at `at`, or 0 where it was not captured.
fn byte(packet: &[u8], at: usize) -> u8 {
    packet.get(at).copied().unwrap_or(0)
}
