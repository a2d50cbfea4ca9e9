//! Who speaks to whom in a packet, inside of all its tunnels?
//!
//! This is what steering goes by in the kernel (`bpf/headers.h`): the **innermost** IP packet, its
//! addresses, protocol and ports, with the same limits and the same idea of what is damaged; and of
//! a datagram's later fragments what its first one said. So packets that steering keeps together
//! are one conversation here, too.
//!
//! Besides it tells what lies around that packet: the outermost VLAN tag, what the frame carries,
//! and in which tunnel the packet was found. Lengths that headers state are not tested against the
//! frame's, so padding can be taken for ports, as libpcap's filters do.

use std::collections::{HashMap, VecDeque};

use super::field::{
    arp, erspan, ethernet, geneve, gre, gtp_u, ipv4, ipv6, ipv6_extension, ipv6_fragment, mpls,
    ports, pppoe, udp, vlan_tag, vxlan,
};
use super::{half, word};
use crate::link::{FirstHeader, LinkType};
use crate::numbers::{ether_type, ip_protocol, ppp_protocol, udp_port};
use crate::rules::Family;
use crate::rules::tuple::{MAX_EXTENSIONS, MAX_TAGS};

const LABELS: usize = 8;
const TUNNELS: usize = 4;
/// How many datagrams in fragments are remembered; of tunnels as many besides.
const FRAGMENTS: usize = 8192;
/// How long a datagram's first fragment is remembered, as long as Linux waits for the others.
const FRAGMENT_LIFE_NS: u64 = 30_000_000_000;

/// A way in which packets lie inside others. The numbers stand in files (`docs/FLEET.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tunnel {
    Vxlan = 1,
    Geneve = 2,
    GtpU = 3,
    Gre = 4,
    /// IPv4 or IPv6 right behind the header of another IP packet.
    IpInIp = 5,
    Mpls = 6,
    Pppoe = 7,
}

impl Tunnel {
    pub const ALL: [Self; 7] =
        [Self::Vxlan, Self::Geneve, Self::GtpU, Self::Gre, Self::IpInIp, Self::Mpls, Self::Pppoe];

    /// Returns the tunnel that a number stands for in files; `None` for 0 and unknown ones.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// An IP packet. All but the addresses may be unknown, where the packet was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    pub family: Family,
    /// The protocol; of IPv6 that of the header behind the extension headers, or of the one that
    /// ended the walk.
    pub protocol: u8,
    /// Whether the packet is a fragment that does not begin its datagram.
    pub is_later_fragment: bool,
    /// The length that the header states, of header and payload; where it states none, as of a
    /// packet that is larger than it can say, what was captured.
    pub length: u32,
    /// Source address in network byte order; of IPv4 in the first four bytes, and zeros.
    pub source: [u8; 16],
    pub destination: [u8; 16],
    /// Source and destination port; of a later fragment those of its first.
    pub ports: Option<(u16, u16)>,
    /// Type and code of an ICMP message of the packet's own IP version.
    pub icmp: Option<(u8, u8)>,
    /// The twelve bits behind TCP's data offset: the lowest eight are the flags of RFC 9293.
    pub tcp_flags: Option<u16>,
}

/// What is in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Innermost {
    /// VLAN id of the frame's outermost tag.
    pub vlan: Option<u16>,
    /// What stands behind the frame's tags; `None` where that is LLC, or the frame is too short.
    pub ether_type: Option<u16>,
    /// The innermost tunnel that a packet was found in.
    pub tunnel: Option<Tunnel>,
    /// The innermost IP packet.
    pub ip: Option<IpPacket>,
    /// Sender's and target's addresses in an ARP or RARP packet about IPv4 over Ethernet.
    pub arp: Option<([u8; 4], [u8; 4])>,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Ipv4,
    Ipv6,
    Ethernet,
    Vxlan,
    Geneve,
    GtpU,
    Gre,
    Mpls,
    Pppoe,
}

type Inside<'a> = Option<(Layer, &'a [u8])>;

/// Which datagram a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Datagram {
    source: [u8; 16],
    destination: [u8; 16],
    id: u32,
    is_ipv6: bool,
    /// IPv4's protocol; in IPv6, fragments of one datagram may say different things.
    protocol: u8,
}

/// Reads packets, and remembers the first fragments of datagrams.
#[derive(Default)]
pub struct InnermostReader {
    first: Remembered<(u8, Option<(u16, u16)>)>,
    inside: Remembered<(Option<IpPacket>, Option<Tunnel>)>,
}

/// A fragment and which one it is.
#[derive(Clone, Copy)]
struct Part {
    datagram: Datagram,
    is_first: bool,
}

/// An IP packet, what it carries, and which fragment it is.
struct Found<'a> {
    ip: IpPacket,
    inside: Inside<'a>,
    part: Option<Part>,
}

impl InnermostReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a frame, or as much of it as was captured. Fragments are put together by the time of
    /// their packets, in the order in which they are read.
    #[inline]
    pub fn read(&mut self, link: LinkType, frame: &[u8], time_ns: i64) -> Innermost {
        match link.first_header() {
            Some(FirstHeader::Ethernet) => self.ethernet(frame, time_ns),
            Some(FirstHeader::Ip) => self.raw(frame, time_ns),
            // Segments have no others.
            _ => Innermost::default(),
        }
    }

    fn raw(&mut self, packet: &[u8], time_ns: i64) -> Innermost {
        let mut found = Innermost::default();
        if let Some(layer) = by_version(packet) {
            found.ether_type = Some(ether_type_of(layer));
            self.follow(&mut found, Some((layer, packet)), time_ns);
        }
        found
    }

    #[inline]
    fn ethernet(&mut self, frame: &[u8], time_ns: i64) -> Innermost {
        let mut found = Innermost::default();
        let Some(mut kind) = half(frame, ethernet::TYPE) else { return found };
        let mut payload = &frame[ethernet::HEADER_BYTES..];
        if ether_type::is_vlan_tag(kind) {
            found.vlan = half(payload, vlan_tag::CONTROL).map(|tag| tag & vlan_tag::ID_MASK);
            let mut tags = 0;
            while ether_type::is_vlan_tag(kind) {
                let next = half(payload, vlan_tag::TYPE).filter(|_| tags < MAX_TAGS);
                let Some(next) = next else {
                    found.ether_type = Some(kind);
                    return found;
                };
                (kind, payload) = (next, &payload[vlan_tag::BYTES..]);
                tags += 1;
            }
        }
        found.ether_type = (kind >= ether_type::FIRST).then_some(kind);
        if matches!(kind, ether_type::ARP | ether_type::RARP) {
            found.arp = arp_addresses(payload);
        } else if let Some(layer) = by_ether_type(kind) {
            self.follow(&mut found, Some((layer, payload)), time_ns);
        }
        found
    }

    /// Goes from the outermost packet through tunnels to the innermost.
    #[inline]
    fn follow(&mut self, found: &mut Innermost, outermost: Inside<'_>, time_ns: i64) {
        let mut inside = outermost;
        let mut outer = None;
        if let Some((layer @ (Layer::Ipv4 | Layer::Ipv6), packet)) = inside {
            let Some(ip) = self.ip(layer, packet, time_ns) else { return };
            found.ip = Some(ip.ip);
            inside = ip.inside;
            outer = ip.part;
            if inside.is_none() && outer.is_none() {
                return;
            }
        }
        if inside.is_some() {
            self.walk(found, inside, time_ns);
            if let Some(Part { datagram, is_first: true }) = outer {
                self.inside.keep(datagram, (found.ip, found.tunnel), time_ns);
            }
        } else if let Some(Part { datagram, is_first: false }) = outer
            && let Some((Some(ip), tunnel)) = self.inside.find(&datagram, time_ns)
        {
            let length = found.ip.map_or(0, |outer| outer.length);
            let ip = IpPacket { length, ..ip };
            found.tunnel = tunnel;
            found.ip =
                Some(IpPacket { is_later_fragment: true, icmp: None, tcp_flags: None, ..ip });
        }
    }

    #[inline(never)]
    fn walk(&mut self, found: &mut Innermost, mut inside: Inside<'_>, time_ns: i64) {
        for _ in 0..TUNNELS {
            let Some((kind, packet)) = inside else { return };
            inside = unwrapped(kind, packet);
            if let Some((Layer::Ethernet, frame)) = inside {
                inside = behind_tags(frame);
            }
            let Some((layer, packet)) = inside else { return };
            if matches!(layer, Layer::Ipv4 | Layer::Ipv6) {
                inside = None;
                if let Some(ip) = self.ip(layer, packet, time_ns) {
                    found.ip = Some(ip.ip);
                    found.tunnel = Some(tunnel_of(kind));
                    inside = ip.inside;
                }
            }
        }
    }

    /// Reads an IP packet; `None` where its fixed header is not whole.
    #[inline]
    fn ip<'a>(&mut self, layer: Layer, packet: &'a [u8], time_ns: i64) -> Option<Found<'a>> {
        if layer == Layer::Ipv4 { self.ipv4(packet, time_ns) } else { self.ipv6(packet, time_ns) }
    }

    #[inline]
    fn ipv4<'a>(&mut self, packet: &'a [u8], time_ns: i64) -> Option<Found<'a>> {
        let header = packet.first_chunk::<{ ipv4::HEADER_BYTES }>()?;
        let length = usize::from(header[0] & ipv4::LENGTH_MASK) * 4;
        if header[0] >> 4 != 4 || length < ipv4::HEADER_BYTES {
            return None;
        }
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        source[..4].copy_from_slice(&header[ipv4::SOURCE..ipv4::SOURCE + 4]);
        destination[..4].copy_from_slice(&header[ipv4::DESTINATION..ipv4::DESTINATION + 4]);
        let ip = IpPacket {
            family: Family::V4,
            protocol: header[ipv4::PROTOCOL],
            is_later_fragment: false,
            length: stated(half(packet, ipv4::TOTAL_LENGTH), 0, packet),
            source,
            destination,
            ports: None,
            icmp: None,
            tcp_flags: None,
        };
        let fragment = u16::from_be_bytes([header[ipv4::FRAGMENT], header[ipv4::FRAGMENT + 1]]);
        let part = (fragment & (ipv4::MORE_FRAGMENTS | ipv4::OFFSET_MASK) != 0).then(|| {
            let id = half(packet, ipv4::IDENTIFICATION).unwrap_or_default().into();
            let protocol = ip.protocol;
            let datagram = Datagram { source, destination, id, is_ipv6: false, protocol };
            Part { datagram, is_first: fragment & ipv4::OFFSET_MASK == 0 }
        });
        let payload = packet.get(length..).unwrap_or_default();
        Some(self.transport(ip, payload, part, time_ns))
    }

    #[inline]
    fn ipv6<'a>(&mut self, packet: &'a [u8], time_ns: i64) -> Option<Found<'a>> {
        let header = packet.first_chunk::<{ ipv6::HEADER_BYTES }>()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let source = *header[ipv6::SOURCE..].first_chunk()?;
        let destination = *header[ipv6::DESTINATION..].first_chunk()?;
        let mut ip = IpPacket {
            family: Family::V6,
            protocol: header[ipv6::NEXT_HEADER],
            is_later_fragment: false,
            length: stated(half(packet, ipv6::PAYLOAD_LENGTH), ipv6::HEADER_BYTES, packet),
            source,
            destination,
            ports: None,
            icmp: None,
            tcp_flags: None,
        };
        let mut payload = &packet[ipv6::HEADER_BYTES..];
        let mut part = None;
        if is_extension(ip.protocol) {
            let (protocol, rest, fragment) = behind_extensions(ip.protocol, payload);
            (ip.protocol, payload) = (protocol, rest);
            part = fragment.map(|(id, is_first)| {
                let datagram = Datagram { source, destination, id, is_ipv6: true, protocol: 0 };
                Part { datagram, is_first }
            });
        }
        Some(self.transport(ip, payload, part, time_ns))
    }

    /// Reads what stands behind IP's headers.
    #[inline]
    fn transport<'a>(
        &mut self,
        mut ip: IpPacket,
        payload: &'a [u8],
        part: Option<Part>,
        time_ns: i64,
    ) -> Found<'a> {
        if let Some(Part { datagram, is_first: false }) = part {
            ip.is_later_fragment = true;
            if let Some((protocol, ports)) = self.first.find(&datagram, time_ns) {
                (ip.protocol, ip.ports) = (protocol, ports);
            }
            return Found { ip, inside: None, part };
        }
        let inside = read_transport(&mut ip, payload);
        if let Some(Part { datagram, .. }) = part
            && (ip.ports.is_some() || ip.family == Family::V6)
        {
            self.first.keep(datagram, (ip.protocol, ip.ports), time_ns);
        }
        Found { ip, inside, part }
    }
}

/// What was said of datagrams by their first fragments.
struct Remembered<T> {
    said: HashMap<Datagram, (i64, T)>,
    /// The datagrams in the order in which they were seen first.
    order: VecDeque<Datagram>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { said: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T: Copy> Remembered<T> {
    fn keep(&mut self, datagram: Datagram, said: T, time_ns: i64) {
        if self.said.insert(datagram, (time_ns, said)).is_none() {
            self.order.push_back(datagram);
            if self.order.len() > FRAGMENTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.said.remove(&oldest);
            }
        }
    }

    fn find(&self, datagram: &Datagram, time_ns: i64) -> Option<T> {
        let (since_ns, said) = self.said.get(datagram)?;
        (since_ns.abs_diff(time_ns) <= FRAGMENT_LIFE_NS).then_some(*said)
    }
}

/// Reads ports, what TCP and ICMP say, and which packet may lie inside.
#[inline]
fn read_transport<'a>(ip: &mut IpPacket, payload: &'a [u8]) -> Inside<'a> {
    match ip.protocol {
        ip_protocol::TCP => {
            ip.ports = both_ports(payload);
            ip.tcp_flags = half(payload, TCP_FLAGS).map(|word| word & TCP_FLAGS_MASK);
        }
        ip_protocol::UDP => {
            ip.ports = both_ports(payload);
            let layer = ip.ports.and_then(|(_, destination)| by_udp_port(destination))?;
            return Some((layer, payload.get(udp::HEADER_BYTES..)?));
        }
        protocol if ip_protocol::has_ports(protocol) => ip.ports = both_ports(payload),
        ip_protocol::ICMP if ip.family == Family::V4 => ip.icmp = type_and_code(payload),
        ip_protocol::ICMPV6 if ip.family == Family::V6 => ip.icmp = type_and_code(payload),
        ip_protocol::IPV4 => return Some((Layer::Ipv4, payload)),
        ip_protocol::IPV6 => return Some((Layer::Ipv6, payload)),
        ip_protocol::GRE => return Some((Layer::Gre, payload)),
        ip_protocol::MPLS => return Some((Layer::Mpls, payload)),
        _ => {}
    }
    None
}

/// Returns the length that a header states with what it leaves out, or what was captured.
#[inline]
fn stated(length: Option<u16>, besides: usize, packet: &[u8]) -> u32 {
    match length {
        Some(0) | None => packet.len() as u32,
        Some(length) => u32::from(length) + besides as u32,
    }
}

/// RFC 9293, section 3.1: data offset, reserved bits and flags.
const TCP_FLAGS: usize = 12;
const TCP_FLAGS_MASK: u16 = 0x0fff;

#[inline]
fn both_ports(payload: &[u8]) -> Option<(u16, u16)> {
    let both = word(payload, ports::SOURCE)?;
    Some(((both >> 16) as u16, both as u16))
}

fn type_and_code(payload: &[u8]) -> Option<(u8, u8)> {
    let [kind, code, ..] = *payload else { return None };
    Some((kind, code))
}

fn arp_addresses(packet: &[u8]) -> Option<([u8; 4], [u8; 4])> {
    if !packet.starts_with(&arp::IPV4_OVER_ETHERNET) {
        return None;
    }
    let sender = *packet.get(arp::SENDER_IPV4..)?.first_chunk()?;
    let target = *packet.get(arp::TARGET_IPV4..)?.first_chunk()?;
    Some((sender, target))
}

const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        ip_protocol::HOP_BY_HOP
            | ip_protocol::ROUTING
            | ip_protocol::FRAGMENT
            | ip_protocol::AUTHENTICATION
            | ip_protocol::DESTINATION_OPTIONS
    )
}

/// Passes extension headers. Returns the protocol and the payload where that ended, and of a
/// fragment the identification of its datagram and whether it is the first.
fn behind_extensions(mut protocol: u8, mut payload: &[u8]) -> (u8, &[u8], Option<(u32, bool)>) {
    let mut part = None;
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(protocol) {
            break;
        }
        let length = if protocol == ip_protocol::FRAGMENT {
            let (Some(fragment), Some(id)) = (
                half(payload, ipv6_fragment::FRAGMENT),
                word(payload, ipv6_fragment::IDENTIFICATION),
            ) else {
                break;
            };
            let offset = fragment & ipv6_fragment::OFFSET_MASK;
            // A packet that is its only fragment is none (RFC 6946).
            if offset | fragment & ipv6_fragment::MORE_FRAGMENTS != 0 {
                part = Some((id, offset == 0));
            }
            ipv6_fragment::HEADER_BYTES
        } else if payload.len() >= 4 {
            let length = payload[ipv6_extension::LENGTH];
            if protocol == ip_protocol::AUTHENTICATION {
                ipv6_extension::authentication_bytes(length)
            } else {
                ipv6_extension::bytes(length)
            }
        } else {
            break;
        };
        protocol = payload[ipv6_extension::NEXT_HEADER];
        payload = payload.get(length..).unwrap_or_default();
        if matches!(part, Some((_, false))) {
            break;
        }
    }
    (protocol, payload, part)
}

const fn by_ether_type(kind: u16) -> Option<Layer> {
    Some(match kind {
        ether_type::IPV4 => Layer::Ipv4,
        ether_type::IPV6 => Layer::Ipv6,
        ether_type::MPLS | ether_type::MPLS_MULTICAST => Layer::Mpls,
        ether_type::PPPOE_SESSION => Layer::Pppoe,
        _ => return None,
    })
}

/// Types that GRE and GENEVE have besides.
const fn by_tunneled_type(kind: u16) -> Option<Layer> {
    if kind == ether_type::ETHERNET { Some(Layer::Ethernet) } else { by_ether_type(kind) }
}

const fn by_udp_port(destination: u16) -> Option<Layer> {
    Some(match destination {
        udp_port::VXLAN | udp_port::VXLAN_LINUX => Layer::Vxlan,
        udp_port::GENEVE => Layer::Geneve,
        udp_port::GTP_U => Layer::GtpU,
        _ => return None,
    })
}

const fn by_ppp(protocol: u16) -> Option<Layer> {
    Some(match protocol {
        ppp_protocol::IPV4 => Layer::Ipv4,
        ppp_protocol::IPV6 => Layer::Ipv6,
        ppp_protocol::MPLS | ppp_protocol::MPLS_MULTICAST => Layer::Mpls,
        _ => return None,
    })
}

fn by_version(packet: &[u8]) -> Option<Layer> {
    match packet.first()? >> 4 {
        4 => Some(Layer::Ipv4),
        6 => Some(Layer::Ipv6),
        _ => None,
    }
}

const fn ether_type_of(layer: Layer) -> u16 {
    if matches!(layer, Layer::Ipv4) { ether_type::IPV4 } else { ether_type::IPV6 }
}

const fn tunnel_of(layer: Layer) -> Tunnel {
    match layer {
        Layer::Ipv4 | Layer::Ipv6 | Layer::Ethernet => Tunnel::IpInIp,
        Layer::Vxlan => Tunnel::Vxlan,
        Layer::Geneve => Tunnel::Geneve,
        Layer::GtpU => Tunnel::GtpU,
        Layer::Gre => Tunnel::Gre,
        Layer::Mpls => Tunnel::Mpls,
        Layer::Pppoe => Tunnel::Pppoe,
    }
}

/// Takes one tunnel's header off; IP and Ethernet have none.
fn unwrapped(layer: Layer, packet: &[u8]) -> Inside<'_> {
    match layer {
        Layer::Ipv4 | Layer::Ipv6 | Layer::Ethernet => Some((layer, packet)),
        Layer::Vxlan => {
            let has_network = packet.first()? & vxlan::HAS_NETWORK != 0;
            let frame = packet.get(vxlan::HEADER_BYTES..)?;
            has_network.then_some((Layer::Ethernet, frame))
        }
        Layer::Geneve => {
            let first = *packet.first()?;
            let options = 4 * usize::from(first & geneve::OPTIONS_MASK);
            let payload = packet.get(geneve::HEADER_BYTES + options..)?;
            let layer = by_tunneled_type(half(packet, geneve::TYPE)?)?;
            (first >> geneve::VERSION_SHIFT == 0).then_some((layer, payload))
        }
        Layer::GtpU => inside_gtp_u(packet),
        Layer::Gre => inside_gre(packet),
        Layer::Mpls => behind_labels(packet),
        Layer::Pppoe => {
            // The code of a session's packet is 0.
            let is_session = *packet.get(1)? == 0;
            let layer = by_ppp(half(packet, pppoe::HEADER_BYTES)?)?;
            is_session.then_some((layer, packet.get(pppoe::HEADER_BYTES + 2..)?))
        }
    }
}

/// Passes the tags of an Ethernet frame inside a tunnel.
fn behind_tags(frame: &[u8]) -> Inside<'_> {
    let mut at = ethernet::TYPE;
    let mut tags = 0;
    while ether_type::is_vlan_tag(half(frame, at)?) {
        if tags == MAX_TAGS {
            return None;
        }
        tags += 1;
        at += vlan_tag::BYTES;
    }
    Some((by_ether_type(half(frame, at)?)?, &frame[at + 2..]))
}

fn behind_labels(mut stack: &[u8]) -> Inside<'_> {
    for _ in 0..LABELS {
        let (entry, rest) = stack.split_first_chunk()?;
        stack = rest;
        if u32::from_be_bytes(*entry) & mpls::BOTTOM_OF_STACK != 0 {
            return Some(match by_version(stack) {
                Some(layer) => (layer, stack),
                // The control word of an Ethernet pseudowire, RFC 4448.
                None if stack.starts_with(&[0, 0]) => (Layer::Ethernet, stack.get(4..)?),
                None => (Layer::Ethernet, stack),
            });
        }
    }
    None
}

fn inside_gtp_u(packet: &[u8]) -> Inside<'_> {
    let [flags, gtp_u::USER_PACKET, ..] = *packet else { return None };
    if flags & (gtp_u::VERSION_MASK | gtp_u::PROTOCOL_TYPE)
        != gtp_u::VERSION_1 | gtp_u::PROTOCOL_TYPE
    {
        return None;
    }
    let is_long = flags & gtp_u::ANY_OPTION != 0;
    let mut at = if is_long { gtp_u::LONG_HEADER_BYTES } else { gtp_u::HEADER_BYTES };
    let has_extension = flags & gtp_u::HAS_EXTENSION != 0;
    let mut next = if has_extension { *packet.get(gtp_u::NEXT_EXTENSION)? } else { 0 };
    for _ in 0..MAX_EXTENSIONS {
        if next == 0 {
            break;
        }
        // In units of four bytes, the last of which is the type of the next.
        let length = usize::from(*packet.get(at)?) * 4;
        at += length;
        next = *packet.get(at - 1).filter(|_| length > 0)?;
    }
    let packet = packet.get(at..).filter(|_| next == 0)?;
    Some((by_version(packet)?, packet))
}

fn inside_gre(packet: &[u8]) -> Inside<'_> {
    let (flags, kind) = (half(packet, gre::FLAGS)?, half(packet, gre::TYPE)?);
    let version = flags & gre::VERSION_MASK;
    // Source routes went out of use with RFC 1701.
    if version > 1 || flags & gre::HAS_ROUTING != 0 {
        return None;
    }
    let acknowledgment = if version == 1 { gre::HAS_ACKNOWLEDGMENT } else { 0 };
    let options = flags & (gre::HAS_CHECKSUM | gre::HAS_KEY | gre::HAS_SEQUENCE | acknowledgment);
    let header = gre::HEADER_BYTES + gre::OPTION_BYTES * options.count_ones() as usize;
    let payload = packet.get(header..)?;
    match kind {
        ether_type::PPP => tunneled_ppp(payload),
        ether_type::ERSPAN => {
            // Type I has no header of its own, and no sequence number either.
            let is_type_1 = flags & gre::HAS_SEQUENCE == 0;
            let header = if is_type_1 { 0 } else { erspan::TYPE_2_HEADER_BYTES };
            Some((Layer::Ethernet, payload.get(header..)?))
        }
        ether_type::ERSPAN_3 => {
            let has_subheader = payload.get(erspan::TYPE_3_FLAGS)? & erspan::HAS_SUBHEADER != 0;
            let subheader = if has_subheader { erspan::SUBHEADER_BYTES } else { 0 };
            let frame = payload.get(erspan::TYPE_3_HEADER_BYTES + subheader..)?;
            Some((Layer::Ethernet, frame))
        }
        _ => Some((by_tunneled_type(kind)?, payload)),
    }
}

/// Reads PPP where both ends may have agreed to leave out bytes (RFC 1661, section 6).
fn tunneled_ppp(packet: &[u8]) -> Inside<'_> {
    const SHORT_IPV4: u8 = ppp_protocol::IPV4 as u8;
    const SHORT_IPV6: u8 = ppp_protocol::IPV6 as u8;
    let packet = packet.strip_prefix(&ppp_protocol::ADDRESS_AND_CONTROL).unwrap_or(packet);
    match packet {
        [SHORT_IPV4, payload @ ..] => Some((Layer::Ipv4, payload)),
        [SHORT_IPV6, payload @ ..] => Some((Layer::Ipv6, payload)),
        _ => Some((by_ppp(half(packet, 0)?)?, packet.get(2..)?)),
    }
}
