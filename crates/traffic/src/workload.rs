//! What is sent? The description that a person or a file gives, and the tables that follow from it.
//!
//! A [`Workload`] says which headers and payloads packets have. Sizes and times are not part of it
//! (`sizes`, `pacing`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tapdeck_packet::generate::{
    FILLER_BYTES, Flow, Headers, MAX_STREAMS, Plan, SHORT_TAG_BYTES, Sizes, Sum, Transport, Tunnel,
};
use tapdeck_packet::header::field::vxlan;
use tapdeck_packet::numbers::{ether_type, ip_protocol, udp_port};
use tapdeck_packet::printable::counted;

use crate::frame::{TCP_FLAGS_AND_WINDOW, echo_request};
use crate::sampling::{Alias, SplitMix64, mix};

/// Why a workload cannot be.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    /// the ranges make fewer flows than were asked for
    #[error("{}: the addresses and ports make only {there} different ones; widen them", counted((*.asked).into(), "flow"))]
    FewFlows { asked: u32, there: u128 },
    /// a run cannot have so many flows
    #[error("{}: from 1 to {max} are possible", counted((*.0).into(), "flow"), max = MAX_FLOWS)]
    Flows(u32),
    /// one end is IPv4, the other IPv6
    #[error("source {0} and destination {1} are not of the same IP version")]
    Versions(IpNet, IpNet),
    /// a mark of another IP version than the flows
    #[error("the mark's address {0} and the flows' addresses {1} are not of the same IP version")]
    MarkVersion(IpAddr, IpNet),
    /// fewer flows than senders
    #[error("{} for {senders} senders: each needs one at least", counted((*.flows).into(), "flow"))]
    Senders { flows: u32, senders: u32 },
    /// what no command line makes
    #[error(
        "it needs one protocol and one sender at least, ports from low to high, and two VLAN tags at most"
    )]
    Shape,
    /// an exponent that is no number of 0 or more
    #[error("Zipf exponent {0}: it must be from 0 to 10")]
    Zipf(f64),
    /// a degree outside 0 to 1
    #[error("compressible to {0}: the degree must be from 0 (nothing but zeros) to 1 (random)")]
    Compressible(f64),
}

/// The most flows of a run. Each takes 64 bytes, in the kernel or in user space.
pub const MAX_FLOWS: u32 = 1 << 20;
const _: () = assert!(MAX_FLOWS < MAX_STREAMS);

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let fault = || format!("{s:?} is no Ethernet address; write it as 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = s.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() <= 2).ok_or_else(fault)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| fault())?;
        }
        if parts.next().is_some() { Err(fault()) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(s: String) -> Result<Self, String> {
        s.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)")]
pub struct Ports(pub u16, pub u16);

impl TryFrom<(u16, u16)> for Ports {
    type Error = String;

    fn try_from((first, last): (u16, u16)) -> Result<Self, String> {
        if first <= last { Ok(Self(first, last)) } else { Err(format!("ports {first} to {last}")) }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (first, last) = s.split_once('-').unwrap_or((s, s));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self(first, last)),
            _ => Err(format!("{s:?} is no port or range of ports; write 9 or 1024-65535")),
        }
    }
}

impl Ports {
    fn count(self) -> u128 {
        u128::from(self.1 - self.0) + 1
    }

    /// Returns which port of the range this is, from 0.
    fn number(self, port: u16) -> Option<u128> {
        (self.0..=self.1).contains(&port).then(|| u128::from(port - self.0))
    }
}

/// What stands in payloads behind the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    Random,
    Zero,
    /// A share of the payload, from 0 to 1, is random, and the rest is zeros.
    Compressible(f64),
}

/// A layer between the Ethernet header and the flows' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct Outer {
    pub kind: OuterKind,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// VXLAN's network identifier.
    pub vni: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OuterKind {
    Vxlan,
    Gre,
}

/// Marks: packets with addresses of their own, every so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    pub every_ns: u64,
    pub source: IpAddr,
    pub destination: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Udp,
    Tcp,
    Icmp,
}

impl From<Protocol> for Transport {
    fn from(p: Protocol) -> Self {
        match p {
            Protocol::Udp => Self::Udp,
            Protocol::Tcp => Self::Tcp,
            Protocol::Icmp => Self::Icmp,
        }
    }
}

/// What a run sends, but for sizes and times. Together with the seed, a workload decides all
/// headers and payloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub seed: u64,
    pub source_mac: Mac,
    pub destination_mac: Mac,
    /// Tags, the outermost first. With two the outer one is 802.1ad's.
    pub vlans: Vec<u16>,
    pub outer: Option<Outer>,
    pub source: IpNet,
    pub destination: IpNet,
    pub source_ports: Ports,
    pub destination_ports: Ports,
    /// The transports: flow `n` has the `n`th, modulo their number.
    pub protocols: Vec<Protocol>,
    pub flows: u32,
    /// The exponent with which flow `n` has a share of `1 / (n + 1)^exponent`; `None` where all
    /// flows have the same share.
    pub zipf: Option<f64>,
    pub payload: Payload,
    pub mark: Option<Mark>,
    /// Interfaces times threads. Sender `s` has the flows whose number is `s` modulo this number.
    pub senders: u32,
}

impl Workload {
    /// Checks that the workload can be sent.
    ///
    /// # Errors
    /// Where the workload contradicts itself.
    pub fn check(&self) -> Result<(), Error> {
        let ports = [self.source_ports, self.destination_ports];
        let shaped = ports.iter().all(|p| p.0 <= p.1) && self.vlans.len() <= 2;
        if self.protocols.is_empty() || self.senders == 0 || !shaped {
            return Err(Error::Shape);
        }
        let (s, d) = (self.source, self.destination);
        if s.addr().is_ipv4() != d.addr().is_ipv4() {
            return Err(Error::Versions(s, d));
        }
        if let Some(mark) = self.mark {
            for end in [mark.source, mark.destination] {
                if end.is_ipv4() != s.addr().is_ipv4() {
                    return Err(Error::MarkVersion(end, s));
                }
            }
        }
        if !(1..=MAX_FLOWS).contains(&self.flows) {
            return Err(Error::Flows(self.flows));
        }
        // Echo requests have no destination port, so flows of one would be told apart by the others
        // alone.
        let icmp = self.protocols.contains(&Protocol::Icmp);
        let destination_ports = if icmp { 1 } else { self.destination_ports.count() };
        let there = hosts(s) * hosts(d) * self.source_ports.count() * destination_ports;
        if u128::from(self.flows) > there {
            return Err(Error::FewFlows { asked: self.flows, there });
        }
        if self.flows < self.senders {
            return Err(Error::Senders { flows: self.flows, senders: self.senders });
        }
        if let Some(exponent) = self.zipf.filter(|e| !(0.0..=10.0).contains(e)) {
            return Err(Error::Zipf(exponent));
        }
        match self.payload {
            Payload::Compressible(degree) if !(0.0..=1.0).contains(&degree) => {
                Err(Error::Compressible(degree))
            }
            _ => Ok(()),
        }
    }

    pub fn is_ipv6(&self) -> bool {
        self.source.addr().is_ipv6()
    }

    /// Returns the length of the shortest frame with room for the sequence number, whatever the
    /// flow.
    pub fn shortest(&self) -> u16 {
        let transport = self.protocols.iter().map(|&p| Transport::from(p).header_len()).max();
        let needed = self.headers().transport_at() + transport.unwrap_or(0) + SHORT_TAG_BYTES;
        (needed as u16).max(MIN_FRAME)
    }

    /// Returns the headers that all packets share.
    pub fn headers(&self) -> Headers {
        let ethertype = if self.is_ipv6() { ether_type::IPV6 } else { ether_type::IPV4 };
        let mut bytes = Vec::new();
        self.ethernet(&mut bytes);
        let mut outer_ip_at = 0;
        let mut tunnel = Tunnel::None;
        if let Some(outer) = self.outer {
            bytes.extend(ether_type::IPV4.to_be_bytes());
            outer_ip_at = bytes.len();
            tunnel = match outer.kind {
                OuterKind::Vxlan => Tunnel::Vxlan,
                OuterKind::Gre => Tunnel::Gre,
            };
            self.tunnel(outer, ethertype, &mut bytes);
        } else {
            bytes.extend(ethertype.to_be_bytes());
        }
        let ip_at = bytes.len();
        if self.is_ipv6() {
            bytes.extend([0x60, 0, 0, 0, 0, 0, 0, HOPS]);
            bytes.extend([0; 32]);
        } else {
            bytes.extend(ipv4_header(0));
        }
        Headers { bytes, outer_ip_at, ip_at, tunnel, ipv6: self.is_ipv6() }
    }

    /// Writes MAC addresses and tags, up to the type of what follows.
    fn ethernet(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.destination_mac.0);
        bytes.extend(self.source_mac.0);
        for (i, vlan) in self.vlans.iter().enumerate() {
            let outermost = i == 0 && self.vlans.len() > 1;
            let tag = if outermost { ether_type::SERVICE_VLAN } else { ether_type::VLAN };
            bytes.extend(tag.to_be_bytes());
            bytes.extend(vlan.to_be_bytes());
        }
    }

    fn tunnel(&self, outer: Outer, ethertype: u16, bytes: &mut Vec<u8>) {
        let mut ip = ipv4_header(match outer.kind {
            OuterKind::Vxlan => ip_protocol::UDP,
            OuterKind::Gre => ip_protocol::GRE,
        });
        ip[12..16].copy_from_slice(&outer.source.octets());
        ip[16..20].copy_from_slice(&outer.destination.octets());
        bytes.extend(ip);
        match outer.kind {
            OuterKind::Vxlan => {
                // UDP without checksum, then the flag that the identifier is valid (RFC 7348,
                // section 5).
                bytes.extend([0, 0]);
                bytes.extend(udp_port::VXLAN.to_be_bytes());
                bytes.extend([0, 0, 0, 0, vxlan::HAS_NETWORK, 0, 0, 0]);
                bytes.extend((outer.vni << 8).to_be_bytes());
                bytes.extend(self.destination_mac.0);
                bytes.extend(self.source_mac.0);
            }
            OuterKind::Gre => bytes.extend([0, 0]),
        }
        bytes.extend(ethertype.to_be_bytes());
    }

    /// Returns a flow by its number; the mark's is the number of flows. `None` for a greater one.
    pub fn flow(&self, stream: u32) -> Option<Flow> {
        if stream == self.flows {
            return self.mark.map(|mark| {
                let ports = (self.source_ports.0, self.destination_ports.0);
                self.flow_between(stream, mark.source, mark.destination, ports)
            });
        }
        if stream > self.flows {
            return None;
        }
        // A bijection from numbers to (source, destination, source port, destination port) that
        // moves all of them early, so that a few flows already differ in all that ranges.
        let mut rest = u128::from(stream);
        let mut digit = |radix: u128| {
            let digit = rest % radix;
            rest /= radix;
            digit
        };
        let (sources, destinations) = (hosts(self.source), hosts(self.destination));
        let (s, d) = (digit(sources), digit(destinations));
        let (sp, dp) = (digit(self.source_ports.count()), digit(self.destination_ports.count()));
        let source_port = (sp + s * 31 + d * 7) % self.source_ports.count();
        let destination_port = (dp + s) % self.destination_ports.count();
        let ports = (
            self.source_ports.0 + source_port as u16,
            self.destination_ports.0 + destination_port as u16,
        );
        let destination = (d + s) % destinations;
        let (source, destination) = (host(self.source, s), host(self.destination, destination));
        Some(self.flow_between(stream, source, destination, ports))
    }

    /// Returns the number of the flow that has these addresses, ports and transport; of several
    /// flows the first. The inverse of [`Workload::flow`]. ICMP has no destination port, so any
    /// will do there.
    pub fn stream_of(
        &self,
        source: IpAddr,
        destination: IpAddr,
        ports: (u16, u16),
        transport: Transport,
    ) -> Option<u32> {
        let is_mark = self.mark.is_some_and(|mark| {
            let port = transport == Transport::Icmp || ports.1 == self.destination_ports.0;
            port && mark.source == source
                && mark.destination == destination
                && ports.0 == self.source_ports.0
        });
        let of_mark =
            is_mark.then_some(self.flows).filter(|&stream| self.transport(stream) == transport);
        self.stream_in_ranges(source, destination, ports, transport).or(of_mark)
    }

    fn stream_in_ranges(
        &self,
        source: IpAddr,
        destination: IpAddr,
        ports: (u16, u16),
        transport: Transport,
    ) -> Option<u32> {
        let (sources, destinations) = (hosts(self.source), hosts(self.destination));
        let (source_ports, destination_ports) =
            (self.source_ports.count(), self.destination_ports.count());
        // `flow` adds a number modulo the radix; this takes it off again.
        let less = |digit: u128, added: u128, radix: u128| (digit + radix - added % radix) % radix;
        let s = host_number(self.source, source)?;
        let d = less(host_number(self.destination, destination)?, s, destinations);
        let sp = less(self.source_ports.number(ports.0)?, s * 31 + d * 7, source_ports);
        let first = s + sources * (d + destinations * sp);
        let step = sources * destinations * source_ports;
        let stream = |dp: u128| {
            let stream = u32::try_from(first + step * dp).ok().filter(|&s| s < self.flows)?;
            (self.transport(stream) == transport).then_some(stream)
        };
        match transport {
            Transport::Icmp => (0..destination_ports)
                .take_while(|dp| first + step * dp < u128::from(self.flows))
                .find_map(stream),
            _ => stream(less(self.destination_ports.number(ports.1)?, s, destination_ports)),
        }
    }

    fn transport(&self, stream: u32) -> Transport {
        self.protocols[stream as usize % self.protocols.len()].into()
    }

    fn flow_between(
        &self,
        stream: u32,
        source: IpAddr,
        destination: IpAddr,
        ports: (u16, u16),
    ) -> Flow {
        let transport = self.transport(stream);
        let random = mix(self.seed ^ mix(u64::from(stream)));
        let mut flow = Flow {
            stream,
            source: octets(source),
            destination: octets(destination),
            source_port: ports.0,
            destination_port: ports.1,
            transport,
            tunnel_port: 0xc000 | (random >> 48) as u16,
            tcp_sequence: random as u32,
            tcp_acknowledgement: (random >> 32) as u32,
            header_sum: 0,
            transport_sum: 0,
        };
        flow.header_sum = self.header_sum(&flow);
        flow.transport_sum = self.transport_sum(&flow);
        flow
    }

    fn header_sum(&self, flow: &Flow) -> u16 {
        if self.is_ipv6() {
            return 0;
        }
        let header = ipv4_header(flow.transport.number(false));
        Sum::default().bytes(&header).bytes(&flow.source[..4]).bytes(&flow.destination[..4]).fold()
    }

    fn transport_sum(&self, flow: &Flow) -> u16 {
        let ipv6 = self.is_ipv6();
        let address_bytes = if ipv6 { 16 } else { 4 };
        let pseudo = Sum::default()
            .bytes(&flow.source[..address_bytes])
            .bytes(&flow.destination[..address_bytes])
            .word(flow.transport.number(ipv6).into());
        let ports = |sum: Sum| sum.word(flow.source_port).word(flow.destination_port);
        let sum = match flow.transport {
            Transport::Udp => ports(pseudo),
            Transport::Tcp => ports(pseudo)
                .bytes(&flow.tcp_acknowledgement.to_be_bytes())
                .bytes(&TCP_FLAGS_AND_WINDOW),
            Transport::Icmp => {
                let sum = if ipv6 { pseudo } else { Sum::default() };
                sum.bytes(&echo_request(ipv6)).word(flow.source_port)
            }
        };
        sum.fold()
    }

    /// Returns how often a flow has a packet, in proportion to the others.
    fn weight(&self, stream: u32) -> u64 {
        self.zipf.map_or(1, |exponent| (1e15 / f64::from(stream + 1).powf(exponent)).ceil() as u64)
    }

    /// Returns the share of all packets that each sender has, which is that of its flows.
    pub fn shares(&self) -> Vec<f64> {
        let mut weights = vec![0.0; self.senders as usize];
        for stream in 0..self.flows {
            weights[(stream % self.senders) as usize] += self.weight(stream) as f64;
        }
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Returns what one of the senders sends. `longest` is the longest frame of `sizes`.
    pub fn plan(&self, sender: u32, sizes: Sizes, longest: u16) -> Plan {
        let streams = (sender..self.flows).step_by(self.senders as usize);
        let flows: Vec<Flow> = streams.filter_map(|stream| self.flow(stream)).collect();
        let shares = self.zipf.filter(|_| flows.len() > 1).map(|_| {
            let weights: Vec<u64> = flows.iter().map(|f| self.weight(f.stream)).collect();
            Alias::new(&weights).columns().to_vec()
        });
        Plan {
            seed: mix(self.seed ^ mix(!u64::from(sender))),
            payload_seed: self.payload_seed(),
            headers: self.headers(),
            flows,
            shares,
            sizes,
            longest,
            // One sender has all marks.
            mark: (sender == 0).then(|| self.flow(self.flows)).flatten(),
            filler: self.filler(longest),
        }
    }

    pub fn payload_seed(&self) -> u64 {
        mix(self.seed ^ 0x7061_796c_6f61_6400)
    }

    /// Returns bytes from which payloads are cut.
    pub fn filler(&self, longest: u16) -> Vec<u8> {
        const CHUNK: usize = 64;
        let len = (FILLER_BYTES + usize::from(longest)).next_multiple_of(CHUNK);
        let mut random = SplitMix64::new(self.payload_seed());
        let kept = match self.payload {
            Payload::Random => CHUNK,
            Payload::Zero => 0,
            Payload::Compressible(degree) => (degree * CHUNK as f64).round() as usize,
        };
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_exact_mut(CHUNK) {
            for eight in chunk[..kept].chunks_mut(8) {
                eight.copy_from_slice(&random.next_u64().to_le_bytes()[..eight.len()]);
            }
        }
        bytes
    }
}

/// The shortest Ethernet frame without its check sequence.
pub const MIN_FRAME: u16 = 60;
/// Time to live (IPv4) and hop limit (IPv6).
const HOPS: u8 = 64;

/// Returns a header with zeros for length, identification, checksum and addresses. "Don't fragment"
/// is set, as for a packet whose identification need not be unique (RFC 6864).
fn ipv4_header(protocol: u8) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[6] = 0x40;
    header[8] = HOPS;
    header[9] = protocol;
    header
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(a) => a.octets(),
        IpAddr::V4(a) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&a.octets());
            octets
        }
    }
}

/// Returns how many hosts of a network are used: all but the network's own address and the
/// broadcast address where there are any, and at most 2³².
fn hosts(net: IpNet) -> u128 {
    let bits = net.max_prefix_len() - net.prefix_len();
    let all = 1u128 << bits.min(32);
    if bits > 1 { all - 2 } else { all }
}

fn host(net: IpNet, n: u128) -> IpAddr {
    let n = if net.max_prefix_len() - net.prefix_len() > 1 { n + 1 } else { n };
    match net.network() {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() + n as u32).into(),
        IpAddr::V6(a) => std::net::Ipv6Addr::from_bits(a.to_bits() + n).into(),
    }
}

/// Returns which of the [`hosts`] has an address: the inverse of [`host`].
fn host_number(net: IpNet, address: IpAddr) -> Option<u128> {
    let n = match (net.network(), address) {
        (IpAddr::V4(first), IpAddr::V4(a)) => a.to_bits().checked_sub(first.to_bits())?.into(),
        (IpAddr::V6(first), IpAddr::V6(a)) => a.to_bits().checked_sub(first.to_bits())?,
        _ => return None,
    };
    let first = u128::from(net.max_prefix_len() - net.prefix_len() > 1);
    n.checked_sub(first).filter(|&n| n < hosts(net))
}
