//! Puts packets into rows, one segment at a time.
//!
//! A table takes packets in the order in which they lie in a segment, granule by granule. Since
//! rings lie in a segment by blocks, that is not the order of time; so a row's times are the
//! earliest and the latest, and each day has rows of its own.
//!
//! Memory is bounded by the number of rows ([`MAX_ROWS`]): where it is reached, all rows are taken
//! out and flows that go on get new ones. That happens between two granules alone, so that of each
//! row whole granules are known.
//!
//! **Forward** is the direction of the TCP connection's opening, or of the ICMP request; else
//! towards the port below 1024, where one end alone has such a port; else that of the earliest
//! packet. A slice that does not show the opening may differ in it from one that does.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use tapdeck_packet::header::innermost::{Innermost, InnermostReader, Tunnel};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::{icmp, ip_protocol};

use crate::DAY_NS;
use crate::key::{Key, Kind, Sender};
use crate::row::{EndReason, Row, Rows};
use crate::runs::{ClosedRuns, Granules, put_runs};

/// How many rows a table holds before it wants to be emptied. A row takes 152 bytes, 60 more where
/// it has more than one run of granules, and again so much once the table has been emptied.
pub const MAX_ROWS: usize = 250_000;

/// How many entries are fetched into the cache together. Each may have to come from memory:
/// together they are waited for once, row by row each would be.
const FETCHED: usize = 32;

/// Ports below are those of services (RFC 6335, section 6: system ports).
const SERVICE_PORTS: u16 = 1024;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const ACK: u16 = 0x10;

/// What TCP said, in the bits of [`Entry::said`]: one for each sender.
const ASKED: u8 = 0;
const ANSWERED: u8 = 2;
const CLOSED: u8 = 4;
/// The connection was reset.
const RESET: u8 = 1 << 6;

/// The flows of a segment's packets so far.
pub struct FlowTable {
    reader: InnermostReader,
    seed: [u64; 2],
    /// For each place the upper half of a hash, and the entry's index and 1 more; 0 where none is.
    slots: Vec<u64>,
    entries: Vec<Entry>,
    closed_runs: ClosedRuns,
    max_rows: usize,
    /// The granules that have ended.
    places: Vec<Range<u64>>,
    /// How many packets were lost before each granule and in it, in all.
    lost: Vec<u64>,
    /// Whether granules have numbers that an index knows.
    is_indexed: bool,
    /// The rows that were taken out last, whose memory is used again.
    rows: Rows,
}

/// A flow while packets are added to it. Of pairs, the first is what the low end sent.
struct Entry {
    key: Key,
    first_ns: i64,
    last_ns: i64,
    packets: [u64; 2],
    bytes: [u64; 2],
    ip_bytes: [u64; 2],
    flags: [u16; 2],
    /// Type and code of each end's earliest ICMP message.
    icmp: [(u8, u8); 2],
    said: u8,
    /// The sender of the earliest packet.
    earliest: Sender,
    granules: Granules,
}

impl FlowTable {
    /// Makes a table for a segment. `is_indexed` says that its granules are those of its index.
    pub fn new(is_indexed: bool) -> Self {
        Self::with_rows(is_indexed, MAX_ROWS)
    }

    /// Makes a table that wants to be emptied when it holds so many rows.
    pub fn with_rows(is_indexed: bool, max_rows: usize) -> Self {
        // Nobody who sends packets shall know which of them meet in the table.
        let seed = [0, 1].map(|n: u64| RandomState::new().hash_one(n));
        Self {
            reader: InnermostReader::new(),
            seed,
            slots: vec![0; 4096],
            entries: Vec::new(),
            closed_runs: ClosedRuns::default(),
            max_rows,
            places: Vec::new(),
            lost: Vec::new(),
            is_indexed,
            rows: Rows::default(),
        }
    }

    /// Takes in a packet of the granule that has not ended. `original_len` is the frame's length on
    /// the wire, of which `frame` was captured.
    #[inline]
    pub fn packet(&mut self, link: LinkType, frame: &[u8], original_len: u32, time_ns: i64) {
        let found = self.reader.read(link, frame, time_ns);
        let day = time_ns.div_euclid(DAY_NS) as i32;
        let (key, sender) = Key::of(&found, day);
        let granule = self.places.len() as u32;
        let at = self.find(&key, time_ns, sender, granule);
        let Self { entries, closed_runs, .. } = self;
        let entry = &mut entries[at];
        entry.granules.add(granule, closed_runs);
        entry.add(&found, sender, original_len, time_ns);
    }

    /// Returns the index of a flow, which is made if it is not there.
    #[inline]
    fn find(&mut self, key: &Key, time_ns: i64, sender: Sender, granule: u32) -> usize {
        let hash = key.hash(self.seed);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let index = (slot as u32 - 1) as usize;
            if slot >> 32 == hash >> 32 && self.entries[index].key == *key {
                return index;
            }
            at = (at + 1) & mask;
        }
        let index = self.entries.len();
        self.slots[at] = hash >> 32 << 32 | (index as u64 + 1);
        self.entries.push(Entry::new(*key, time_ns, sender, granule));
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
        index
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(len, 0);
        for (index, entry) in self.entries.iter().enumerate() {
            let hash = entry.key.hash(self.seed);
            let mut at = hash as usize & (len - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (len - 1);
            }
            self.slots[at] = hash >> 32 << 32 | (index as u64 + 1);
        }
    }

    /// Ends a granule: where it lies in the segment, and how many packets were lost before those in
    /// it. Packets that come are those of the next.
    pub fn end_granule(&mut self, place: Range<u64>, lost: u64) {
        let before = self.lost.last().copied().unwrap_or(0);
        self.places.push(place);
        self.lost.push(before + lost);
    }

    /// Whether the table wants to be emptied by [`FlowTable::take`]; asked between granules.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.max_rows
    }

    /// Takes all rows out, though the segment goes on.
    pub fn take(&mut self) -> &Rows {
        self.take_rows(EndReason::Memory)
    }

    /// Takes the last rows out, behind the segment's last granule.
    pub fn finish(&mut self) -> &Rows {
        self.take_rows(EndReason::Segment)
    }

    fn take_rows(&mut self, reason: EndReason) -> &Rows {
        let mut order: Vec<_> =
            (0..).zip(&self.entries).map(|(index, entry)| (entry.rank(), index)).collect();
        order.sort_unstable_by_key(|(rank, _): &(_, u32)| *rank);
        for same in order.chunk_by_mut(|(a, _), (b, _)| a == b).filter(|same| same.len() > 1) {
            same.sort_unstable_by_key(|(_, index)| self.entries[*index as usize].order());
        }
        let last_day = self.entries.iter().map(|entry| entry.key.day()).max();
        let mut rows = std::mem::take(&mut self.rows);
        rows.rows.clear();
        rows.runs.clear();
        rows.rows.reserve(order.len());
        let mut list = Vec::new();
        let fetched = order.chunks(FETCHED).flat_map(|chunk| {
            for (_, index) in chunk {
                black_box(self.entries[*index as usize].touch(&self.closed_runs));
            }
            chunk
        });
        for (_, index) in fetched {
            let entry = &self.entries[*index as usize];
            let reason = match reason {
                _ if entry.is_closed() => EndReason::Closed,
                _ if Some(entry.key.day()) < last_day => EndReason::Midnight,
                reason => reason,
            };
            entry.granules.list(&self.closed_runs, &mut list);
            let row = self.row(entry, reason, &list, &mut rows.runs);
            rows.rows.push(row);
        }
        self.entries.clear();
        self.slots.fill(0);
        self.closed_runs.clear();
        self.rows = rows;
        &self.rows
    }

    fn row(
        &self,
        entry: &Entry,
        end_reason: EndReason,
        list: &[(u32, u32)],
        runs: &mut Vec<u8>,
    ) -> Row {
        let Entry { key, first_ns, last_ns, packets, bytes, ip_bytes, flags, icmp, .. } = entry;
        let forward = entry.forward();
        let (there, back) = (forward as usize, forward.other() as usize);
        let both = |pair: &[u64; 2]| [pair[there], pair[back]];
        let address = |end: Sender| address(key.kind(), key.address(end));
        let is_ip = matches!(key.kind(), Kind::Ipv4 | Kind::Ipv6);
        let is_tcp = is_ip && key.protocol() == ip_protocol::TCP;
        let ports = (key.port(forward), key.port(forward.other()));
        let has_icmp = key.is_icmp() && key.has_ports();
        // What the other end sent alone tells of a direction in which nothing went.
        let icmp = icmp[if packets[there] > 0 { there } else { back }];
        let (first, end) = entry.granules.span();
        let lost_before = |granule: u32| match granule.checked_sub(1) {
            Some(before) => self.lost.get(before as usize).copied().unwrap_or(0),
            None => 0,
        };
        // Where none were lost, as nearly always, nothing is looked up.
        let lost = match self.lost.last() {
            None | Some(0) => 0,
            Some(_) => list.iter().map(|(from, to)| lost_before(*to) - lost_before(*from)).sum(),
        };
        let offset = self.places.get(first as usize).map_or(0, |place| place.start);
        let upto = self.places.get(end as usize - 1).map_or(offset, |place| place.end);
        let at = runs.len();
        if self.is_indexed && list.len() > 1 {
            put_runs(runs, list);
        }
        Row {
            day: key.day(),
            start_ns: *first_ns,
            end_ns: *last_ns,
            ip_version: is_ip.then_some(key.kind() as u8),
            protocol: is_ip.then(|| key.protocol()),
            ether_type: key.ether_type(),
            vlan: key.vlan(),
            tunnel: Tunnel::from_number(key.tunnel()),
            source: address(forward),
            destination: address(forward.other()),
            ports: (key.has_ports() && !has_icmp).then_some(ports),
            icmp: has_icmp.then_some(icmp),
            packets: both(packets),
            bytes: both(bytes),
            ip_bytes: both(ip_bytes),
            tcp_flags: is_tcp.then_some([flags[there], flags[back]]),
            end_reason,
            lost,
            offset,
            span: upto - offset,
            granules: self.is_indexed.then(|| list.iter().map(|(from, to)| to - from).sum()),
            runs: (runs.len() > at).then(|| (at as u32, (runs.len() - at) as u32)),
        }
    }
}

impl Entry {
    fn new(key: Key, time_ns: i64, sender: Sender, granule: u32) -> Self {
        Self {
            key,
            first_ns: time_ns,
            last_ns: time_ns,
            packets: [0; 2],
            bytes: [0; 2],
            ip_bytes: [0; 2],
            flags: [0; 2],
            icmp: [(0, 0); 2],
            said: 0,
            earliest: sender,
            granules: Granules::at(granule),
        }
    }

    #[inline]
    fn add(&mut self, found: &Innermost, sender: Sender, original_len: u32, time_ns: i64) {
        let by = sender as usize;
        if time_ns < self.first_ns {
            self.first_ns = time_ns;
            self.earliest = sender;
        }
        self.last_ns = self.last_ns.max(time_ns);
        if let Some(ip) = &found.ip {
            self.ip_bytes[by] += u64::from(ip.length);
            if let Some(flags) = ip.tcp_flags {
                self.flags[by] |= flags;
                self.note(flags, by);
            }
            if let Some(icmp) = ip.icmp
                && self.packets[by] == 0
            {
                self.icmp[by] = icmp;
            }
        }
        self.packets[by] += 1;
        self.bytes[by] += u64::from(original_len);
    }

    /// Notes what tells who opened a connection, and whether it is closed.
    #[inline]
    fn note(&mut self, flags: u16, by: usize) {
        if flags & (SYN | FIN | RST) == 0 {
            return;
        }
        if flags & SYN != 0 {
            let what = if flags & ACK == 0 { ASKED } else { ANSWERED };
            self.said |= 1 << (what + by as u8);
        }
        if flags & FIN != 0 {
            self.said |= 1 << (CLOSED + by as u8);
        }
        if flags & RST != 0 {
            self.said |= RESET;
        }
    }

    /// Returns a word that depends on each line of the cache in which the entry lies.
    #[inline]
    fn touch(&self, closed_runs: &ClosedRuns) -> u64 {
        let words = self.key.address(Sender::Low)[0] ^ self.packets[0] ^ self.ip_bytes[1];
        let ends = self.earliest as u64 ^ u64::from(self.said);
        words ^ ends ^ u64::from(self.granules.touch(closed_runs))
    }

    fn is_closed(&self) -> bool {
        self.said & RESET != 0 || self.said >> CLOSED & 3 == 3
    }

    /// Returns the end that is the source.
    fn forward(&self) -> Sender {
        let one_of = |low: bool, high: bool| match (low, high) {
            (true, false) => Some(Sender::Low),
            (false, true) => Some(Sender::High),
            _ => None,
        };
        let said = |what: u8, end: Sender| self.said >> (what + end as u8) & 1 == 1;
        let asked = one_of(said(ASKED, Sender::Low), said(ASKED, Sender::High));
        let answered = one_of(said(ANSWERED, Sender::High), said(ANSWERED, Sender::Low));
        let by_ports = || {
            if !self.key.has_ports() {
                return None;
            }
            let [low, high] = [Sender::Low, Sender::High].map(|end| self.key.port(end));
            if self.key.is_icmp() {
                let asks = |one, other| icmp::asks(self.key.protocol(), one, other);
                return one_of(asks(low, high), asks(high, low));
            }
            one_of(high < SERVICE_PORTS, low < SERVICE_PORTS)
        };
        asked.or(answered).or_else(by_ports).unwrap_or(self.earliest)
    }

    /// Returns what rows are sorted by first: so much of it that few rows have the same.
    fn rank(&self) -> u128 {
        let forward = self.forward();
        let (source, to) = (self.key.address(forward)[0], self.key.address(forward.other())[0]);
        let kind = self.key.kind();
        let ends = if kind == Kind::Ipv6 { source } else { source | to >> 32 };
        let day = self.key.day() as u32 ^ 1 << 31;
        u128::from(day) << 72 | u128::from(kind as u8) << 64 | u128::from(ends)
    }

    /// Returns what rows of one rank are sorted by.
    fn order(&self) -> impl Ord {
        let Self { key, first_ns, .. } = self;
        let forward = self.forward();
        let back = forward.other();
        let ends = (key.address(forward)[1], key.address(back));
        let ports = (key.protocol(), key.port(forward), key.port(back), key.has_ports());
        let around = (key.vlan(), key.tunnel(), key.ether_type());
        (ends, ports, around, *first_ns)
    }
}

/// Returns the address that 128 bits are.
fn address(kind: Kind, [upper, lower]: [u64; 2]) -> Option<IpAddr> {
    match kind {
        Kind::Nothing => None,
        Kind::Arp | Kind::Ipv4 => Some(IpAddr::V4(Ipv4Addr::from_bits((upper >> 32) as u32))),
        Kind::Ipv6 => {
            let bits = u128::from(upper) << 64 | u128::from(lower);
            Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
        }
    }
}
