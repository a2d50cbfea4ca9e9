//! Which keys stand in a packet's headers, and which packets lie inside its tunnels?
//!
//! A question to a store is answered by what libpcap's filter program accepts; the keys only say
//! where it is worth looking. So the walk over the headers has one rule: **a key that any such
//! program could find must be among those given**, also in packets that are cut or make no sense.
//! One key too many costs a look at a packet that was not asked for; one too few loses an answer.
//!
//! libpcap's programs are naive, and the walk has to be as naive. Behind the EtherType of IPv4,
//! `src host` compares the four bytes at 12, whatever the version says; `port` looks at four times
//! the header length, even where that is inside the header; no program looks at the total length,
//! so that padding counts as payload; each load needs its own bytes to be captured and no others.
//! Where the walk goes further than libpcap (extension headers, tunnels for which libpcap has no
//! word), it is for questions about inner packets, which [`inner_packets`] shows to libpcap one by
//! one.
//!
//! The walk does not find:
//! - what stands in LLC (IEEE 802.3) but for SNAP's type;
//! - what `protochain` finds, which reads authentication headers at places of its own;
//! - what is read at offsets that `vlan`, `mpls`, `pppoes` or `geneve` have moved although the
//!   packet has no such header, as in `not vlan and ip` and `vlan or ip`: there `ip` reads behind a
//!   tag that need not be there.
//!
//! The walk allocates nothing, and no bytes make it panic. Loops and tunnels are bounded. A packet
//! that goes beyond the bounds is **opaque**: it may hold keys that were not given.

mod ether;
pub mod field;
pub mod innermost;
mod ip;
mod tunnel;

pub use tunnel::is_udp_tunnel;

use crate::key::{Class, Keys};
use crate::link::{FirstHeader, LinkType};
use crate::numbers::{address_family, ether_type};
use field::{linux_sll, linux_sll2, loopback, ppp_link};

/// How many tunnels inside each other are followed. A label stack and PPPoE count as tunnels.
const TUNNELS: u8 = 8;

/// Passes every key of a packet, at any depth, to `to`. `frame` is what was captured of the packet.
///
/// Returns false where the walk gave up, and there may be further keys.
#[inline]
pub fn keys(link: LinkType, frame: &[u8], to: &mut impl Keys) -> bool {
    let mut walk = Walk { visit: &mut KeysOnly(to), tunnels: 0, is_opaque: false };
    walk.link(link, frame);
    !walk.is_opaque
}

/// Calls `each` for every packet inside the tunnels of this one, the outer before the inner:
/// Ethernet frames ([`LinkType::ETHERNET`]), and IP packets that no Ethernet header precedes
/// ([`LinkType::RAW`]). The keys of these packets are among the [`keys`] of the whole.
pub fn inner_packets(link: LinkType, frame: &[u8], each: &mut impl FnMut(LinkType, &[u8])) {
    Walk { visit: &mut InnerOnly(each), tunnels: 0, is_opaque: false }.link(link, frame);
}

/// A visitor of what the walk finds.
trait Visit {
    fn key(&mut self, class: Class, key: u128);
    fn inner(&mut self, link: LinkType, frame: &[u8]);
}

struct KeysOnly<'a, K>(&'a mut K);

impl<K: Keys> Visit for KeysOnly<'_, K> {
    #[inline]
    fn key(&mut self, class: Class, key: u128) {
        self.0.key(class, key);
    }

    #[inline]
    fn inner(&mut self, _: LinkType, _: &[u8]) {}
}

struct InnerOnly<'a, F>(&'a mut F);

impl<F: FnMut(LinkType, &[u8])> Visit for InnerOnly<'_, F> {
    fn key(&mut self, _: Class, _: u128) {}

    fn inner(&mut self, link: LinkType, frame: &[u8]) {
        (self.0)(link, frame);
    }
}

/// A walk over the headers of one packet. It goes inwards only, because a header has one payload.
/// What most packets are is inlined, and functions are called for the rest.
struct Walk<'a, V> {
    visit: &'a mut V,
    tunnels: u8,
    is_opaque: bool,
}

impl<V: Visit> Walk<'_, V> {
    #[inline]
    fn link(&mut self, link: LinkType, frame: &[u8]) {
        if link == LinkType::ETHERNET {
            self.ethernet(frame);
        } else {
            self.other_link(link, frame);
        }
    }

    #[inline(never)]
    fn other_link(&mut self, link: LinkType, frame: &[u8]) {
        match link.first_header() {
            Some(FirstHeader::Ethernet) => self.ethernet(frame),
            Some(FirstHeader::Ip) => self.by_version(frame),
            Some(FirstHeader::Ipv4) => self.typed(ether_type::IPV4, frame),
            Some(FirstHeader::Ipv6) => self.typed(ether_type::IPV6, frame),
            Some(FirstHeader::Loopback) => self.loopback(frame),
            Some(FirstHeader::LinuxSll) => self.cooked(
                half(frame, linux_sll::TYPE),
                half(frame, linux_sll::ADDRESS_BYTES),
                frame.get(linux_sll::ADDRESS..),
                frame.get(linux_sll::HEADER_BYTES..),
            ),
            Some(FirstHeader::LinuxSll2) => self.cooked(
                half(frame, linux_sll2::TYPE),
                frame.get(linux_sll2::ADDRESS_BYTES).map(|&n| n.into()),
                frame.get(linux_sll2::ADDRESS..),
                frame.get(linux_sll2::HEADER_BYTES..),
            ),
            Some(FirstHeader::Ppp) => self.ppp(frame.get(ppp_link::PROTOCOL..).unwrap_or_default()),
            None => self.is_opaque = true,
        }
    }

    /// Reads an IP packet of the version that it says.
    fn by_version(&mut self, packet: &[u8]) {
        match packet.first().map(|b| b >> 4) {
            Some(4) => self.typed(ether_type::IPV4, packet),
            Some(6) => self.typed(ether_type::IPV6, packet),
            _ => {}
        }
    }

    /// Reads BSD's loopback header. The address family's number is that of the system that
    /// captured, and in that system's byte order or the other; a family is a small number, so the
    /// lesser reading is the right one.
    fn loopback(&mut self, frame: &[u8]) {
        let Some((family, packet)) = frame.split_first_chunk::<{ loopback::HEADER_BYTES }>() else {
            return;
        };
        match u32::from_be_bytes(*family).min(u32::from_le_bytes(*family)) {
            address_family::IPV4 => self.typed(ether_type::IPV4, packet),
            address_family::IPV6_LINUX
            | address_family::IPV6_BSD
            | address_family::IPV6_FREEBSD
            | address_family::IPV6_DARWIN => self.typed(ether_type::IPV6, packet),
            _ => {}
        }
    }

    /// Reads Linux's "cooked" header of either version, which has the sender's address alone.
    fn cooked(
        &mut self,
        kind: Option<u16>,
        address_bytes: Option<u16>,
        address: Option<&[u8]>,
        payload: Option<&[u8]>,
    ) {
        let address = address.and_then(|bytes| bytes.first_chunk::<6>());
        if let (Some(6), Some(&address)) = (address_bytes, address) {
            self.visit.key(Class::SourceMac, ether::mac(address));
        }
        if let Some(kind) = kind {
            self.typed(kind, payload.unwrap_or_default());
        }
    }
}

#[inline]
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&b| u16::from_be_bytes(b))
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|&b| u32::from_be_bytes(b))
}
