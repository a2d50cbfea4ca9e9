//! Who talks to whom? Packets of pieces of a recording, counted by flow and by host, second by
//! second, so that the last minute can be added up without reading anything twice.
//!
//! A flow here is what goes both ways between two ends, at the innermost IP packet; what is not IP
//! is told by its EtherType. A piece counts the first [`MOST`] flows and as many hosts that it has;
//! the packets of others are in the sums alone.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tapdeck_packet::header::innermost::{InnermostReader, IpPacket};
use tapdeck_packet::numbers::ip_protocol;
use tapdeck_packet::rules::Family;
use tapdeck_store::query::Packet;
use tapdeck_store::recent::Piece;

/// Flows of a piece, and hosts of a piece: what fits into a table of 512 places.
const MOST: usize = 448;
/// Flows and hosts that are told, the largest.
const TOLD: usize = 256;

/// One end of a flow.
pub type End = (IpAddr, u16);

/// What packets have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Both ends, the client on the left where ports tell, and the protocol's number. Ports are 0
    /// where there are none.
    Ip(End, End, u8),
    /// What is not IP, by its EtherType.
    Other(u16),
}

/// Packets and bytes on the wire: of a flow those of its left end and of its right end, of a host
/// what it sent and what it received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    pub packets: [f64; 2],
    pub bytes: [f64; 2],
}

/// Flows and hosts of a piece.
#[derive(Debug, Default)]
pub struct Tally {
    flows: HashMap<(Flow, i64), Counts>,
    hosts: HashMap<(IpAddr, i64), Counts>,
    /// Packets in each second.
    seconds: BTreeMap<i64, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: [u32; 2],
    bytes: [u64; 2],
}

/// The sums of several pieces.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub flows: Vec<(Flow, Amounts)>,
    pub hosts: Vec<(IpAddr, Amounts)>,
    /// Packets in all pieces.
    pub packets: f64,
    /// Pieces that were read, and pieces that there are.
    pub read: usize,
    pub pieces: usize,
}

impl Tally {
    /// Counts a packet.
    pub fn add(&mut self, reader: &mut InnermostReader, packet: &Packet<'_>) {
        let found = reader.read(packet.link, packet.frame, packet.time_ns);
        let second = packet.time_ns.div_euclid(1_000_000_000);
        let bytes = u64::from(packet.original_len);
        *self.seconds.entry(second).or_default() += 1;
        let Some(ip) = &found.ip else {
            let flow = Flow::Other(found.ether_type.unwrap_or(0));
            return add(&mut self.flows, (flow, second), 0, bytes);
        };
        let (flow, by) = flow(ip);
        add(&mut self.flows, (flow, second), by, bytes);
        add(&mut self.hosts, (address(ip.family, ip.source), second), 0, bytes);
        add(&mut self.hosts, (address(ip.family, ip.destination), second), 1, bytes);
    }
}

fn add<K: Eq + Hash>(counts: &mut HashMap<K, Counts>, key: K, by: usize, bytes: u64) {
    if counts.len() >= MOST && !counts.contains_key(&key) {
        return;
    }
    let counts = counts.entry(key).or_default();
    counts.packets[by] += 1;
    counts.bytes[by] += bytes;
}

fn address(family: Family, bytes: [u8; 16]) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        Family::V6 => Ipv6Addr::from(bytes).into(),
    }
}

/// Returns a packet's flow, and which of its ends sent the packet.
fn flow(ip: &IpPacket) -> (Flow, usize) {
    let (from, to) = ip.ports.unwrap_or((0, 0));
    let source = (address(ip.family, ip.source), from);
    let destination = (address(ip.family, ip.destination), to);
    // Servers have the lower port nearly always; of equal ones any order is as good, if it stays.
    let order = to.cmp(&from).then(source.cmp(&destination));
    match order {
        Ordering::Less | Ordering::Equal => (Flow::Ip(source, destination, ip.protocol), 0),
        Ordering::Greater => (Flow::Ip(destination, source, ip.protocol), 1),
    }
}

impl Sums {
    /// Adds up pieces, as far as they are within so many seconds since 1970, the last included.
    /// Where not all were read, the sums are what they would be if the others were like those that
    /// were.
    pub fn of<'a>(pieces: impl Iterator<Item = &'a Piece<Tally>>, from_s: i64, to_s: i64) -> Self {
        let (mut flows, mut hosts) = (HashMap::new(), HashMap::new());
        let (mut sums, mut counted) = (Self::default(), 0.0);
        for piece in pieces {
            sums.pieces += 1;
            let Some(tally) = &piece.tally else {
                sums.packets += piece.packets as f64 * share(piece, from_s, to_s);
                continue;
            };
            sums.read += 1;
            counted += tally.seconds.range(from_s..=to_s).map(|(_, n)| *n as f64).sum::<f64>();
            gather(&mut flows, &tally.flows, from_s, to_s);
            gather(&mut hosts, &tally.hosts, from_s, to_s);
        }
        sums.packets += counted;
        let scale = if counted > 0.0 { sums.packets / counted } else { 1.0 };
        sums.flows = largest(flows, scale);
        sums.hosts = largest(hosts, scale);
        sums
    }
}

/// Returns how much of a piece's time is within the seconds.
fn share<T>(piece: &Piece<T>, from_s: i64, to_s: i64) -> f64 {
    let ns = |s: i64| s.saturating_mul(1_000_000_000);
    let (from, to) = (ns(from_s), ns(to_s.saturating_add(1)));
    let (first, end) = (piece.first_ns, piece.last_ns.saturating_add(1));
    let within = end.min(to).saturating_sub(first.max(from)).max(0);
    within as f64 / end.saturating_sub(first).max(1) as f64
}

fn gather<K: Copy + Eq + Hash>(
    to: &mut HashMap<K, Amounts>,
    counts: &HashMap<(K, i64), Counts>,
    from_s: i64,
    to_s: i64,
) {
    for ((key, second), counts) in counts {
        if (from_s..=to_s).contains(second) {
            let amounts = to.entry(*key).or_default();
            for by in 0..2 {
                amounts.packets[by] += f64::from(counts.packets[by]);
                amounts.bytes[by] += counts.bytes[by] as f64;
            }
        }
    }
}

/// Returns those with the most bytes and those with the most packets.
fn largest<K: Copy + Eq + Hash>(all: HashMap<K, Amounts>, scale: f64) -> Vec<(K, Amounts)> {
    let mut list: Vec<(K, Amounts)> = all.into_iter().collect();
    let by = |of: fn(&Amounts) -> f64| {
        move |a: &(K, Amounts), b: &(K, Amounts)| of(&b.1).total_cmp(&of(&a.1))
    };
    let mut told = TOLD.min(list.len());
    list.sort_unstable_by(by(Amounts::all_bytes));
    list[told..].sort_unstable_by(by(Amounts::all_packets));
    told = list.len().min(2 * TOLD);
    list.truncate(told);
    for (_, amounts) in &mut list {
        amounts.packets = amounts.packets.map(|n| n * scale);
        amounts.bytes = amounts.bytes.map(|n| n * scale);
    }
    list
}

impl Amounts {
    pub fn all_packets(&self) -> f64 {
        self.packets[0] + self.packets[1]
    }

    pub fn all_bytes(&self) -> f64 {
        self.bytes[0] + self.bytes[1]
    }
}

impl Flow {
    /// Returns the protocol's name, or its number.
    pub fn protocol(&self) -> String {
        match self {
            Self::Ip(_, _, number) => match *number {
                ip_protocol::TCP => "tcp".into(),
                ip_protocol::UDP => "udp".into(),
                ip_protocol::ICMP => "icmp".into(),
                ip_protocol::ICMPV6 => "icmp6".into(),
                number => format!("ip {number}"),
            },
            Self::Other(0x0806) => "arp".into(),
            Self::Other(kind) => format!("{kind:04x}"),
        }
    }

    /// Returns both ends as they are written.
    pub fn ends(&self) -> String {
        let end = |(address, port): &End| match (address, port) {
            (address, 0) => address.to_string(),
            (IpAddr::V4(address), port) => format!("{address}:{port}"),
            (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
        };
        match self {
            Self::Ip(one, other, _) => format!("{} - {}", end(one), end(other)),
            Self::Other(_) => "not IP".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{IpAddr, Ipv4Addr};

    use tapdeck_packet::header::innermost::IpPacket;
    use tapdeck_packet::rules::Family;

    use super::{Amounts, Counts, Flow, MOST, add, flow, gather, largest};

    fn packet(source: [u8; 4], from: u16, destination: [u8; 4], to: u16) -> IpPacket {
        let wide = |address: [u8; 4]| {
            let mut wide = [0; 16];
            wide[..4].copy_from_slice(&address);
            wide
        };
        IpPacket {
            family: Family::V4,
            protocol: 6,
            is_later_fragment: false,
            length: 40,
            source: wide(source),
            destination: wide(destination),
            ports: Some((from, to)),
            icmp: None,
            tcp_flags: None,
        }
    }

    #[test]
    fn both_directions_are_one_flow_with_the_server_on_the_right() {
        let (client, server) = ([192, 0, 2, 9], [192, 0, 2, 1]);
        let there = flow(&packet(client, 40_000, server, 443));
        let back = flow(&packet(server, 443, client, 40_000));
        assert_eq!((there.0, there.1, back.1), (back.0, 0, 1));
        assert_eq!(there.0.ends(), "192.0.2.9:40000 - 192.0.2.1:443");
        assert_eq!(there.0.protocol(), "tcp");
        let there = flow(&packet(client, 0, server, 0));
        assert_eq!(there.0, flow(&packet(server, 0, client, 0)).0);
        let v6 = Flow::Ip(("2001:db8::1".parse().unwrap(), 53), ("::2".parse().unwrap(), 0), 17);
        assert_eq!(v6.ends(), "[2001:db8::1]:53 - ::2");
    }

    #[test]
    fn a_minute_is_the_sum_of_its_seconds() {
        let host: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let mut counts = HashMap::new();
        for second in 10..20 {
            add(&mut counts, (host, second), 0, 100);
            add(&mut counts, (host, second), 1, 7);
        }
        let mut sums = HashMap::new();
        gather(&mut sums, &counts, 15, 17);
        let told = largest(sums, 2.0);
        assert_eq!(told, [(host, Amounts { packets: [6.0, 6.0], bytes: [600.0, 42.0] })]);
    }

    #[test]
    fn of_too_many_the_first_are_counted_and_the_largest_told() {
        let mut counts: HashMap<(u32, i64), Counts> = HashMap::new();
        for _ in 0..3 {
            for key in 0..2 * MOST as u32 {
                add(&mut counts, (key, 0), 0, u64::from(key % 300));
            }
        }
        assert_eq!(counts.len(), MOST);
        assert!(counts.values().all(|counts| counts.packets == [3, 0]));
        let mut sums = HashMap::new();
        for n in 0..10_000_u32 {
            let few = f64::from(10_000 - n);
            sums.insert(n, Amounts { packets: [few, 0.0], bytes: [0.0, f64::from(n)] });
        }
        let told = largest(sums, 1.0);
        assert_eq!(told.len(), 512);
        assert!(told.iter().any(|(key, _)| *key == 9_999) && told.iter().any(|(key, _)| *key == 0));
    }
}
