//! Which keys stand in which granules, gathered as packets come.
//!
//! A pair of key and granule is noted once, or a few times more; sorting makes a dictionary of
//! them. There is no table of all keys, which random addresses could make as large as they like:
//! each class has a list of pairs, and a small memory of those noted last, which keeps what repeats
//! itself in a granule from being noted again.

use tapdeck_packet::key::{Class, Keys};
use tapdeck_packet::numbers::ether_type;

use super::spots::Spot;

/// The places in the memory of a class with long keys, a power of two.
const PLACES: usize = 4096;
/// The places in the memory of a class of IPv6 addresses, a power of two.
const PLACES_IPV6: usize = 1024;

/// The pairs of all classes, with granules numbered from 0 to [`Pairs::MOST_GRANULES`].
pub(super) struct Pairs {
    granule: u16,
    /// The bit of the quarter.
    quarter: u8,
    ether_type: Short,
    vlan: Short,
    protocol: Short,
    source_port: Short,
    destination_port: Short,
    mpls: Long,
    source_ipv4: Ipv4,
    destination_ipv4: Ipv4,
    source_mac: Long,
    destination_mac: Long,
    source_ipv6: Ipv6,
    destination_ipv6: Ipv6,
    shed: Ipv6,
}

/// The keys of TCP or UDP in IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainKeys {
    pub destination_mac: u64,
    pub source_mac: u64,
    pub protocol: u8,
    pub source: u32,
    pub destination: u32,
    pub ports: [u16; 2],
}

/// The pairs of one class, by how long its keys are.
enum List<'a> {
    Short(&'a mut Short),
    Long(&'a mut Long),
    Ipv4(&'a mut Ipv4),
    Ipv6(&'a mut Ipv6),
}

impl Pairs {
    pub const MOST_GRANULES: u32 = u16::MAX as u32 - 1;

    pub fn new() -> Self {
        Self {
            granule: 0,
            quarter: 1,
            ether_type: Short::new(1 << 16),
            vlan: Short::new(1 << 12),
            protocol: Short::new(1 << 8),
            source_port: Short::new(1 << 16),
            destination_port: Short::new(1 << 16),
            mpls: Long::new(),
            source_ipv4: Ipv4::new(),
            destination_ipv4: Ipv4::new(),
            source_mac: Long::new(),
            destination_mac: Long::new(),
            source_ipv6: Ipv6::new(),
            destination_ipv6: Ipv6::new(),
            shed: Ipv6::new(),
        }
    }

    #[inline]
    fn list(&mut self, class: Class) -> List<'_> {
        match class {
            Class::EtherType => List::Short(&mut self.ether_type),
            Class::Vlan => List::Short(&mut self.vlan),
            Class::Protocol => List::Short(&mut self.protocol),
            Class::SourcePort => List::Short(&mut self.source_port),
            Class::DestinationPort => List::Short(&mut self.destination_port),
            Class::Mpls => List::Long(&mut self.mpls),
            Class::SourceIpv4 => List::Ipv4(&mut self.source_ipv4),
            Class::DestinationIpv4 => List::Ipv4(&mut self.destination_ipv4),
            Class::SourceMac => List::Long(&mut self.source_mac),
            Class::DestinationMac => List::Long(&mut self.destination_mac),
            Class::SourceIpv6 => List::Ipv6(&mut self.source_ipv6),
            Class::DestinationIpv6 => List::Ipv6(&mut self.destination_ipv6),
            Class::Shed => List::Ipv6(&mut self.shed),
        }
    }

    /// Notes keys from now on in the first quarter of this granule.
    pub fn set_granule(&mut self, granule: u16) {
        self.granule = granule;
        self.set_quarter(0);
        self.source_ipv4.begin_granule();
        self.destination_ipv4.begin_granule();
        self.source_ipv6.begin_granule();
        self.destination_ipv6.begin_granule();
        self.shed.begin_granule();
    }

    /// Notes keys from now on in this quarter of the granule.
    pub fn set_quarter(&mut self, number: usize) {
        self.quarter = 1 << number;
    }

    /// Notes the keys of a packet that has no others.
    #[inline]
    pub fn plain(&mut self, keys: &PlainKeys) {
        let granule = self.granule;
        self.ether_type.note(ether_type::IPV4, granule);
        self.protocol.note(keys.protocol.into(), granule);
        self.destination_mac.note(keys.destination_mac, granule);
        self.source_mac.note(keys.source_mac, granule);
        self.addresses(keys);
        self.source_port.note(keys.ports[0], granule);
        self.destination_port.note(keys.ports[1], granule);
    }

    /// Notes the addresses of a packet whose other keys are noted in the granule.
    #[inline]
    pub fn addresses(&mut self, keys: &PlainKeys) {
        self.source_ipv4.note(keys.source, self.granule, self.quarter);
        self.destination_ipv4.note(keys.destination, self.granule, self.quarter);
    }

    /// Returns how many pairs the fullest class has.
    pub fn most(&self) -> usize {
        let Self {
            granule: _,
            quarter: _,
            ether_type,
            vlan,
            protocol,
            source_port,
            destination_port,
            mpls,
            source_ipv4,
            destination_ipv4,
            source_mac,
            destination_mac,
            source_ipv6,
            destination_ipv6,
            shed,
        } = self;
        let short = [ether_type, vlan, protocol, source_port, destination_port];
        let long = [mpls, source_mac, destination_mac];
        let ipv4 = [source_ipv4, destination_ipv4];
        let ipv6 = [source_ipv6, destination_ipv6, shed];
        let short = short.map(|list| list.pairs.len());
        let long = long.map(|list| list.pairs.len());
        let ipv4 = ipv4.map(|list| list.pairs.len());
        let ipv6 = ipv6.map(|list| list.pairs.len());
        short.into_iter().chain(long).chain(ipv4).chain(ipv6).max().unwrap_or(0)
    }

    pub fn clear(&mut self) {
        self.set_granule(0);
        for class in Class::ALL {
            match self.list(class) {
                List::Short(short) => short.clear(),
                List::Long(long) => long.clear(),
                List::Ipv4(ipv4) => ipv4.clear(),
                List::Ipv6(ipv6) => ipv6.clear(),
            }
        }
    }

    /// Returns the pairs of a class in order, each once. Granules come in order already: a stable
    /// sort by key is the cheaper the fewer keys there are.
    pub fn sorted(&mut self, class: Class) -> Sorted<'_> {
        match self.list(class) {
            List::Short(Short { pairs, .. }) => {
                pairs.sort_by_key(|pair| pair >> 16);
                Sorted::Short(pairs)
            }
            List::Long(Long { pairs, .. }) => {
                pairs.sort_by_key(|pair| pair >> 16);
                pairs.dedup();
                Sorted::Long(pairs)
            }
            List::Ipv4(Ipv4 { pairs, .. }) => {
                pairs.sort_by_key(|pair| pair >> 32);
                pairs.dedup_by(|pair, before| {
                    let is_same = *pair >> 16 == *before >> 16;
                    if is_same {
                        *before |= *pair;
                    }
                    is_same
                });
                Sorted::Ipv4(pairs)
            }
            List::Ipv6(Ipv6 { pairs, .. }) => {
                pairs.sort_by_key(|pair| pair.key);
                pairs.dedup_by(|pair, before| {
                    let is_same = (pair.key, pair.granule) == (before.key, before.granule);
                    if is_same {
                        before.quarters |= pair.quarters;
                    }
                    is_same
                });
                Sorted::Ipv6(pairs)
            }
        }
    }
}

impl Keys for Pairs {
    #[inline]
    fn key(&mut self, class: Class, key: u128) {
        let (granule, quarter) = (self.granule, self.quarter);
        match self.list(class) {
            List::Short(short) => short.note(key as u16, granule),
            List::Long(long) => long.note(key as u64, granule),
            List::Ipv4(ipv4) => ipv4.note(key as u32, granule, quarter),
            List::Ipv6(ipv6) => ipv6.note(key, granule, quarter),
        }
    }
}

/// The pairs of a class, sorted.
pub(super) enum Sorted<'a> {
    Short(&'a [u32]),
    Long(&'a [u64]),
    Ipv4(&'a [u64]),
    Ipv6(&'a [Ipv6Pair]),
}

impl Sorted<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Short(pairs) => pairs.len(),
            Self::Long(pairs) | Self::Ipv4(pairs) => pairs.len(),
            Self::Ipv6(pairs) => pairs.len(),
        }
    }

    pub fn get(&self, at: usize) -> Option<(u128, Spot)> {
        let whole = |granule: u64| Spot::whole(granule as u32 & 0xffff);
        match self {
            Self::Short(pairs) => {
                pairs.get(at).map(|pair| (u128::from(pair >> 16), whole((*pair).into())))
            }
            Self::Long(pairs) => pairs.get(at).map(|pair| (u128::from(pair >> 16), whole(*pair))),
            Self::Ipv4(pairs) => {
                pairs.get(at).map(|pair| (u128::from(pair >> 32), Ipv4::spot(*pair)))
            }
            Self::Ipv6(pairs) => {
                pairs.get(at).map(|pair| (pair.key, Spot::new(pair.granule.into(), pair.quarters)))
            }
        }
    }
}

/// Keys of at most 16 bits: the memory has a place for each.
struct Short {
    /// The granule in which each key was last seen, and one more.
    seen: Vec<u16>,
    /// The key above the granule.
    pairs: Vec<u32>,
}

impl Short {
    fn new(keys: usize) -> Self {
        Self { seen: vec![0; keys], pairs: Vec::new() }
    }

    #[inline]
    fn note(&mut self, key: u16, granule: u16) {
        let mask = self.seen.len() - 1;
        let seen = &mut self.seen[usize::from(key) & mask];
        if *seen != granule + 1 {
            *seen = granule + 1;
            self.pairs.push(u32::from(key) << 16 | u32::from(granule));
        }
    }

    fn clear(&mut self) {
        self.seen.fill(0);
        self.pairs.clear();
    }
}

/// Keys of at most 48 bits.
struct Long {
    /// The pairs that were noted last.
    seen: Vec<u64>,
    /// The key above the granule.
    pairs: Vec<u64>,
}

impl Long {
    fn new() -> Self {
        Self { seen: vec![u64::MAX; PLACES], pairs: Vec::new() }
    }

    #[inline]
    fn note(&mut self, key: u64, granule: u16) {
        let pair = key << 16 | u64::from(granule);
        let at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES;
        if self.seen[at] != pair {
            self.seen[at] = pair;
            self.pairs.push(pair);
        }
    }

    fn clear(&mut self) {
        self.seen.fill(u64::MAX);
        self.pairs.clear();
    }
}

/// Keys of 32 bits, with the quarters in which each stands.
struct Ipv4 {
    /// The keys that were noted last, each above the place of its pair and one more.
    seen: Vec<u64>,
    /// The key above the granule, and that above a bit for each quarter.
    pairs: Vec<u64>,
    /// How many pairs there were before the granule.
    before: u32,
}

impl Ipv4 {
    fn new() -> Self {
        Self { seen: vec![0; PLACES], pairs: Vec::new(), before: 0 }
    }

    fn begin_granule(&mut self) {
        self.before = self.pairs.len() as u32;
    }

    #[inline]
    fn note(&mut self, key: u32, granule: u16, quarter: u8) {
        let key = u64::from(key);
        let at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES;
        let seen = self.seen[at];
        let place = seen as u32;
        if seen >> 32 == key && place > self.before {
            if let Some(pair) = self.pairs.get_mut(place as usize - 1) {
                *pair |= u64::from(quarter);
            }
            return;
        }
        self.pairs.push(key << 32 | u64::from(granule) << 16 | u64::from(quarter));
        self.seen[at] = key << 32 | self.pairs.len() as u64;
    }

    fn spot(pair: u64) -> Spot {
        Spot::new((pair >> 16) as u32 & 0xffff, pair as u8)
    }

    fn clear(&mut self) {
        self.seen.fill(0);
        self.pairs.clear();
        self.before = 0;
    }
}

/// Keys of at most 128 bits, with the quarters in which each stands.
struct Ipv6 {
    /// The keys that were noted last, with the place of the pair and one more.
    seen: Vec<(u128, u32)>,
    pairs: Vec<Ipv6Pair>,
    /// How many pairs there were before the granule.
    before: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Ipv6Pair {
    key: u128,
    granule: u16,
    /// A bit for each.
    quarters: u8,
}

impl Ipv6 {
    fn new() -> Self {
        Self { seen: vec![(0, 0); PLACES_IPV6], pairs: Vec::new(), before: 0 }
    }

    fn begin_granule(&mut self) {
        self.before = self.pairs.len() as u32;
    }

    #[inline]
    fn note(&mut self, key: u128, granule: u16, quarter: u8) {
        let folded = (key as u64 ^ (key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (folded >> 54) as usize % PLACES_IPV6;
        let (seen, place) = self.seen[at];
        if seen == key && place > self.before {
            if let Some(pair) = self.pairs.get_mut(place as usize - 1) {
                pair.quarters |= quarter;
            }
            return;
        }
        self.pairs.push(Ipv6Pair { key, granule, quarters: quarter });
        self.seen[at] = (key, self.pairs.len() as u32);
    }

    fn clear(&mut self) {
        self.seen.fill((0, 0));
        self.pairs.clear();
        self.before = 0;
    }
}
