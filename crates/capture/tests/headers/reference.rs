//! The second reader: what `bpf/headers.h` and `bpf/steer.h` promise, the slow and plain way.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tapdeck_capture::headers::{FIRST_FRAGMENT, HAS_PORTS, LATER_FRAGMENT, Tuple};
use tapdeck_packet::header::innermost::{InnermostReader, IpPacket};
use tapdeck_packet::rules::Family;

const TAGS: usize = 4;
const EXTENSIONS: usize = 8;
const LABELS: usize = 8;
const TUNNELS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Later,
}

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: Option<(u16, u16)>,
    part: Part,
    id: u32,
}

/// What was seen, in a form that both readers' results take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(Option<Ip>);

impl Seen {
    pub fn of(tuple: &Tuple) -> Self {
        let address = |bytes: [u8; 16]| -> IpAddr {
            if tuple.family == 6 {
                return Ipv6Addr::from(bytes).into();
            }
            assert_eq!(bytes[4..], [0; 12]);
            Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
        };
        if tuple.family == 0 {
            return Self(None);
        }
        let part = match tuple.flags & (FIRST_FRAGMENT | LATER_FRAGMENT) {
            0 => Part::Whole,
            FIRST_FRAGMENT => Part::First,
            _ => Part::Later,
        };
        let ports = (tuple.source_port, tuple.destination_port);
        let has_ports = tuple.flags & HAS_PORTS != 0;
        assert!(has_ports || ports == (0, 0), "{tuple:?}");
        let id = tuple.fragment_id;
        Self(Some(Ip {
            source: address(tuple.source),
            destination: address(tuple.destination),
            protocol: tuple.protocol,
            ports: has_ports.then_some(ports),
            part,
            id: if tuple.family == 4 {
                u16::from_be_bytes([id[0], id[1]]).into()
            } else {
                u32::from_be_bytes(id)
            },
        }))
    }

    /// Whether flow tables see the same.
    pub fn is_of(&self, packet: Option<&IpPacket>) -> bool {
        match (self.0, packet) {
            (None, None) => true,
            (Some(ip), Some(packet)) => {
                let address = |bytes: [u8; 16]| match packet.family {
                    Family::V4 => {
                        IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
                    }
                    Family::V6 => Ipv6Addr::from(bytes).into(),
                };
                ip.addresses() == (address(packet.source), address(packet.destination))
                    && (ip.protocol, ip.ports) == (packet.protocol, packet.ports)
                    && (ip.part == Part::Later) == packet.is_later_fragment
            }
            _ => false,
        }
    }

    pub fn unwrap(self) -> Ip {
        self.0.expect("an IP packet")
    }
}

impl Ip {
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.source, self.destination)
    }

    fn key(&self) -> (IpAddr, IpAddr, u32, u8) {
        let protocol = if self.source.is_ipv4() { self.protocol } else { 0 };
        (self.source, self.destination, self.id, protocol)
    }
}

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

/// What a packet carries.
#[derive(Clone, Copy, Debug)]
enum Inside<'a> {
    Nothing,
    Packet(Layer, &'a [u8]),
    Quote(Layer, &'a [u8]),
}

pub struct Looked {
    pub outer: Seen,
    pub innermost: Seen,
    /// Flow, IP pair, source, destination, both ends, MAC, VLAN.
    pub number: [u32; 7],
    pub second: u32,
}

/// Remembers fragments.
#[derive(Default)]
pub struct Reference {
    fragments: HashMap<(IpAddr, IpAddr, u32, u8), Ip>,
    inner: HashMap<(IpAddr, IpAddr, u32, u8), Option<Ip>>,
    is_quote: bool,
    /// The reader of flow tables, which remembers fragments, too.
    pub of_flows: InnermostReader,
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn is_tag(kind: u16) -> bool {
    [0x8100, 0x88a8, 0x9100].contains(&kind)
}

fn by_ethertype(kind: u16) -> Option<Layer> {
    Some(match kind {
        0x0800 => Layer::Ipv4,
        0x86dd => Layer::Ipv6,
        0x8847 | 0x8848 => Layer::Mpls,
        0x8864 => Layer::Pppoe,
        _ => return None,
    })
}

/// Types that GRE and GENEVE have besides.
fn by_tunneled_type(kind: u16) -> Option<Layer> {
    if kind == 0x6558 { Some(Layer::Ethernet) } else { by_ethertype(kind) }
}

fn by_ppp(protocol: u16) -> Option<Layer> {
    Some(match protocol {
        0x21 => Layer::Ipv4,
        0x57 => Layer::Ipv6,
        0x281 | 0x283 => Layer::Mpls,
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

fn behind_tags(frame: &[u8], mut tags: usize) -> Option<(Layer, &[u8])> {
    let mut at = 12;
    while is_tag(half(frame, at)?) {
        tags = tags.checked_sub(1)?;
        at += 4;
    }
    Some((by_ethertype(half(frame, at)?)?, &frame[at + 2..]))
}

fn behind_labels(mut stack: &[u8]) -> Option<(Layer, &[u8])> {
    for _ in 0..LABELS {
        let (entry, rest) = stack.split_first_chunk::<4>()?;
        stack = rest;
        if entry[2] & 1 == 1 {
            return Some(match by_version(stack) {
                Some(ip) => (ip, stack),
                None if stack.starts_with(&[0, 0]) => (Layer::Ethernet, stack.get(4..)?),
                None => (Layer::Ethernet, stack),
            });
        }
    }
    None
}

fn inside_gtp_u(packet: &[u8]) -> Option<(Layer, &[u8])> {
    let (flags, kind) = (*packet.first()?, *packet.get(1)?);
    if flags >> 4 != 3 || kind != 255 {
        return None;
    }
    let has_options = flags & 7 > 0;
    let mut at = if has_options { 12 } else { 8 };
    let mut next = if flags & 4 == 0 { 0 } else { *packet.get(11)? };
    let mut passed = 0;
    while next != 0 {
        passed += 1;
        let length = usize::from(*packet.get(at)?) * 4;
        if length == 0 || passed > EXTENSIONS {
            return None;
        }
        at += length;
        next = *packet.get(at - 1)?;
    }
    let packet = packet.get(at..)?;
    Some((by_version(packet)?, packet))
}

fn inside_gre(packet: &[u8]) -> Option<(Layer, &[u8])> {
    let (flags, kind) = (half(packet, 0)?, half(packet, 2)?);
    if flags & 0x4000 != 0 || flags & 7 > 1 {
        return None;
    }
    let mut at = 4;
    for option in [0x8000, 0x2000, 0x1000] {
        at += if flags & option == 0 { 0 } else { 4 };
    }
    at += if flags & 7 == 1 && flags & 0x80 != 0 { 4 } else { 0 };
    let payload = packet.get(at..)?;
    match kind {
        0x880b => {
            let payload = payload.strip_prefix(&[0xff, 3]).unwrap_or(payload);
            match payload.first()? {
                0x21 => Some((Layer::Ipv4, &payload[1..])),
                0x57 => Some((Layer::Ipv6, &payload[1..])),
                _ => Some((by_ppp(half(payload, 0)?)?, &payload[2..])),
            }
        }
        0x88be => Some((Layer::Ethernet, payload.get(if flags & 0x1000 == 0 { 0 } else { 8 }..)?)),
        0x22eb => {
            let length = if payload.get(11)? & 1 == 0 { 12 } else { 20 };
            Some((Layer::Ethernet, payload.get(length..)?))
        }
        _ => Some((by_tunneled_type(kind)?, payload)),
    }
}

/// Takes one tunnel's header off; IP and Ethernet have none.
fn unwrap(layer: Layer, packet: &[u8]) -> Option<(Layer, &[u8])> {
    match layer {
        Layer::Ipv4 | Layer::Ipv6 | Layer::Ethernet => Some((layer, packet)),
        Layer::Vxlan => {
            let has_network = packet.first()? & 8 != 0;
            has_network.then_some((Layer::Ethernet, packet.get(8..)?))
        }
        Layer::Geneve => {
            let first = *packet.first()?;
            let payload = packet.get(8 + 4 * usize::from(first & 0x3f)..)?;
            (first < 0x40).then_some((by_tunneled_type(half(packet, 2)?)?, payload))
        }
        Layer::GtpU => inside_gtp_u(packet),
        Layer::Gre => inside_gre(packet),
        Layer::Mpls => behind_labels(packet),
        Layer::Pppoe => {
            let is_session = *packet.get(1)? == 0;
            is_session.then_some((by_ppp(half(packet, 6)?)?, packet.get(8..)?))
        }
    }
}

fn has_ports(protocol: u8) -> bool {
    [6, 17, 33, 132, 136].contains(&protocol)
}

/// Ports, and what stands behind them.
fn transport(is_ipv4: bool, protocol: u8, payload: &[u8]) -> (Option<(u16, u16)>, Inside<'_>) {
    let quoted = if is_ipv4 { Layer::Ipv4 } else { Layer::Ipv6 };
    let errors: &[u8] = if is_ipv4 { &[3, 4, 5, 11, 12] } else { &[1, 2, 3, 4] };
    let icmp = if is_ipv4 { 1 } else { 58 };
    let inside = match protocol {
        4 => Inside::Packet(Layer::Ipv4, payload),
        41 => Inside::Packet(Layer::Ipv6, payload),
        47 => Inside::Packet(Layer::Gre, payload),
        137 => Inside::Packet(Layer::Mpls, payload),
        _ if protocol == icmp && payload.len() >= 8 && errors.contains(&payload[0]) => {
            Inside::Quote(quoted, &payload[8..])
        }
        _ => Inside::Nothing,
    };
    if !has_ports(protocol) {
        return (None, inside);
    }
    let Some(ports) = half(payload, 0).zip(half(payload, 2)) else {
        return (None, Inside::Nothing);
    };
    let layer = match ports.1 {
        4789 | 8472 => Layer::Vxlan,
        6081 => Layer::Geneve,
        2152 => Layer::GtpU,
        _ => return (Some(ports), Inside::Nothing),
    };
    let inside = match payload.get(8..) {
        Some(payload) if protocol == 17 => Inside::Packet(layer, payload),
        _ => Inside::Nothing,
    };
    (Some(ports), inside)
}

/// Where the chain ends: protocol, payload, identification and part.
struct Chain<'a> {
    protocol: u8,
    payload: &'a [u8],
    id: u32,
    part: Part,
}

fn chain(packet: &[u8]) -> Chain<'_> {
    let mut chain = Chain { protocol: packet[6], payload: &packet[40..], id: 0, part: Part::Whole };
    for _ in 0..EXTENSIONS {
        let header = chain.payload;
        let length = match chain.protocol {
            44 if header.len() >= 8 => {
                let offset = half(header, 2).expect("8 bytes");
                if offset & !6 != 0 {
                    chain.id = u32::from_be_bytes(*header[4..].first_chunk().expect("8 bytes"));
                    chain.part = if offset >> 3 == 0 { Part::First } else { Part::Later };
                }
                8
            }
            0 | 43 | 60 if header.len() >= 4 => 8 + 8 * usize::from(header[1]),
            51 if header.len() >= 4 => 8 + 4 * usize::from(header[1]),
            _ => return chain,
        };
        chain.protocol = header[0];
        chain.payload = header.get(length..).unwrap_or_default();
        if chain.part == Part::Later {
            return chain;
        }
    }
    chain
}

impl Reference {
    fn ip<'a>(&mut self, layer: Layer, packet: &'a [u8]) -> Option<(Ip, Inside<'a>)> {
        let (mut ip, payload) = match layer {
            Layer::Ipv4 => {
                let header = packet.first_chunk::<20>()?;
                let length = usize::from(header[0] & 15) * 4;
                if header[0] >> 4 != 4 || length < 20 {
                    return None;
                }
                let fragment = half(header, 6)?;
                let part = match (fragment & 0x1fff, fragment & 0x2000) {
                    (0, 0) => Part::Whole,
                    (0, _) => Part::First,
                    _ => Part::Later,
                };
                let ip = Ip {
                    source: Ipv4Addr::from(*header[12..].first_chunk::<4>()?).into(),
                    destination: Ipv4Addr::from(*header[16..].first_chunk::<4>()?).into(),
                    protocol: header[9],
                    ports: None,
                    part,
                    id: if part == Part::Whole { 0 } else { half(header, 4)?.into() },
                };
                (ip, packet.get(length..).unwrap_or_default())
            }
            Layer::Ipv6 => {
                let header = packet.first_chunk::<40>()?;
                if header[0] >> 4 != 6 {
                    return None;
                }
                let chain = chain(packet);
                let ip = Ip {
                    source: Ipv6Addr::from(*header[8..].first_chunk::<16>()?).into(),
                    destination: Ipv6Addr::from(*header[24..].first_chunk::<16>()?).into(),
                    protocol: chain.protocol,
                    ports: None,
                    part: chain.part,
                    id: chain.id,
                };
                (ip, chain.payload)
            }
            _ => return None,
        };
        if ip.part == Part::Later {
            if let Some(first) = self.fragments.get(&ip.key()) {
                (ip.protocol, ip.ports) = (first.protocol, first.ports);
            }
            return Some((ip, Inside::Nothing));
        }
        let (ports, inside) = transport(layer == Layer::Ipv4, ip.protocol, payload);
        ip.ports = ports;
        if ip.part == Part::First && !self.is_quote && (ports.is_some() || layer == Layer::Ipv6) {
            self.fragments.insert(ip.key(), ip);
        }
        Some((ip, inside))
    }

    /// The innermost packet behind `ip`, and what it quotes.
    fn follow<'a>(
        &mut self,
        mut ip: Option<Ip>,
        mut inside: Inside<'a>,
    ) -> (Option<Ip>, Inside<'a>) {
        for _ in 0..TUNNELS {
            let Inside::Packet(layer, packet) = inside else { break };
            inside = Inside::Nothing;
            let Some((mut layer, mut packet)) = unwrap(layer, packet) else { break };
            if layer == Layer::Ethernet {
                let Some(behind) = behind_tags(packet, TAGS) else { break };
                (layer, packet) = behind;
            }
            if matches!(layer, Layer::Ipv4 | Layer::Ipv6) {
                if let Some(found) = self.ip(layer, packet) {
                    ip = Some(found.0);
                    inside = found.1;
                }
            } else {
                inside = Inside::Packet(layer, packet);
            }
        }
        match inside {
            Inside::Packet(..) => (ip, Inside::Nothing),
            _ => (ip, inside),
        }
    }

    pub fn look(&mut self, frame: &[u8], has_link: bool, tag: Option<u16>) -> Looked {
        let begin = if has_link {
            behind_tags(frame, TAGS - usize::from(tag.is_some()))
        } else {
            by_version(frame).map(|layer| (layer, frame))
        };
        let (outer, inside) = match begin {
            Some((layer @ (Layer::Ipv4 | Layer::Ipv6), packet)) => match self.ip(layer, packet) {
                Some((ip, inside)) => (Some(ip), inside),
                None => (None, Inside::Nothing),
            },
            Some((layer, packet)) => (None, Inside::Packet(layer, packet)),
            None => (None, Inside::Nothing),
        };
        let (mut innermost, mut quote) = self.follow(outer, inside);
        match outer {
            Some(ip) if ip.part == Part::First && matches!(inside, Inside::Packet(..)) => {
                self.inner.insert(ip.key(), innermost);
            }
            Some(ip) if ip.part == Part::Later => {
                if let Some(&Some(inner)) = self.inner.get(&ip.key()) {
                    innermost = Some(Ip { part: Part::Later, ..inner });
                    quote = Inside::Nothing;
                }
            }
            _ => {}
        }
        let conversation = if let Inside::Quote(layer, packet) = quote {
            self.is_quote = true;
            let quoted = self.follow(innermost, Inside::Packet(layer, packet)).0;
            self.is_quote = false;
            quoted
        } else {
            innermost
        };
        let (number, second) = numbers(frame, has_link, tag, innermost, conversation);
        Looked { outer: Seen(outer), innermost: Seen(innermost), number, second }
    }
}

const WORDS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];
const PORTS: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PROTOCOL: u64 = 0xa076_1d64_78bd_642f;

/// Sums of words, each times its constant.
fn address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => u64::from(address.to_bits()).wrapping_mul(WORDS[0]),
        IpAddr::V6(address) => (0..4).fold(0, |sum, i| {
            let word = address.to_bits() >> (96 - 32 * i) & 0xffff_ffff;
            (word as u64).wrapping_mul(WORDS[i]).wrapping_add(sum)
        }),
    }
}

fn numbers(
    frame: &[u8],
    has_link: bool,
    tag: Option<u16>,
    innermost: Option<Ip>,
    conversation: Option<Ip>,
) -> ([u32; 7], u32) {
    let top = |hash: u64| (hash >> 32) as u32;
    let mac = |at: usize| {
        let bytes = frame.get(at..at + 6).filter(|_| has_link && frame.len() >= 12);
        bytes.map_or(0, |bytes| bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    let (destination, source) = (mac(0).wrapping_mul(WORDS[0]), mac(6).wrapping_mul(WORDS[0]));
    let macs = top(source.wrapping_add(destination));
    let vlan = match tag {
        Some(tag) => tag & 0xfff,
        None => half(frame, 12)
            .filter(|&kind| has_link && is_tag(kind))
            .and_then(|_| half(frame, 14))
            .map_or(0, |tci| tci & 0xfff),
    };
    let vlan = top(u64::from(vlan).wrapping_mul(WORDS[0]));
    let (Some(ip), Some(both)) = (innermost, conversation) else {
        return (
            [macs, macs, top(source), top(destination), top(source), macs, vlan],
            top(destination),
        );
    };
    let pair = address(both.source).wrapping_add(address(both.destination));
    let ports = both.ports.map_or(0, |(a, b)| u64::from(a) + u64::from(b));
    let flow = pair
        .wrapping_add(ports.wrapping_mul(PORTS))
        .wrapping_add(u64::from(both.protocol).wrapping_mul(PROTOCOL));
    let (source, destination) = (top(address(ip.source)), top(address(ip.destination)));
    ([top(flow), top(pair), source, destination, source, macs, vlan], destination)
}
