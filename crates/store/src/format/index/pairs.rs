//! Which keys stand in which granules, gathered as packets come.
//!
//! A pair of key and granule is noted once, or a few times more; sorting makes a dictionary of
//! them. There is no table of all keys, which random addresses could make as large as they like:
//! each class has a list of pairs, and a small memory of those noted last, which keeps what repeats
//! itself in a granule from being noted again.

use tapdeck_packet::key::{Class, Keys};
use tapdeck_packet::numbers::ether_type;

/// The places in the memory of a class with long keys, a power of two.
const PLACES: usize = 4096;
/// The places in the memory of a class of IPv6 addresses, a power of two.
const PLACES_IPV6: usize = 1024;

/// The pairs of all classes, with granules numbered from 0 to [`Pairs::MOST_GRANULES`].
pub(super) struct Pairs {
    granule: u16,
    ether_type: Short,
    vlan: Short,
    protocol: Short,
    source_port: Short,
    destination_port: Short,
    mpls: Long,
    source_ipv4: Long,
    destination_ipv4: Long,
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
    Ipv6(&'a mut Ipv6),
}

impl Pairs {
    pub const MOST_GRANULES: u32 = u16::MAX as u32 - 1;

    pub fn new() -> Self {
        Self {
            granule: 0,
            ether_type: Short::new(1 << 16),
            vlan: Short::new(1 << 12),
            protocol: Short::new(1 << 8),
            source_port: Short::new(1 << 16),
            destination_port: Short::new(1 << 16),
            mpls: Long::new(),
            source_ipv4: Long::new(),
            destination_ipv4: Long::new(),
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
            Class::SourceIpv4 => List::Long(&mut self.source_ipv4),
            Class::DestinationIpv4 => List::Long(&mut self.destination_ipv4),
            Class::SourceMac => List::Long(&mut self.source_mac),
            Class::DestinationMac => List::Long(&mut self.destination_mac),
            Class::SourceIpv6 => List::Ipv6(&mut self.source_ipv6),
            Class::DestinationIpv6 => List::Ipv6(&mut self.destination_ipv6),
            Class::Shed => List::Ipv6(&mut self.shed),
        }
    }

    /// Notes keys from now on in this granule.
    pub fn set_granule(&mut self, granule: u16) {
        self.granule = granule;
    }

    /// Notes the keys of a packet that has no others.
    #[inline]
    pub fn plain(&mut self, keys: &PlainKeys) {
        let granule = self.granule;
        self.ether_type.note(ether_type::IPV4, granule);
        self.protocol.note(keys.protocol.into(), granule);
        self.destination_mac.note(keys.destination_mac, granule);
        self.source_mac.note(keys.source_mac, granule);
        self.source_ipv4.note(keys.source.into(), granule);
        self.destination_ipv4.note(keys.destination.into(), granule);
        self.source_port.note(keys.ports[0], granule);
        self.destination_port.note(keys.ports[1], granule);
    }

    /// Returns how many pairs the fullest class has.
    pub fn most(&self) -> usize {
        let Self {
            granule: _,
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
        let long = [mpls, source_ipv4, destination_ipv4, source_mac, destination_mac];
        let ipv6 = [source_ipv6, destination_ipv6, shed];
        let short = short.map(|list| list.pairs.len());
        let long = long.map(|list| list.pairs.len());
        let ipv6 = ipv6.map(|list| list.pairs.len());
        short.into_iter().chain(long).chain(ipv6).max().unwrap_or(0)
    }

    pub fn clear(&mut self) {
        self.granule = 0;
        for class in Class::ALL {
            match self.list(class) {
                List::Short(short) => short.clear(),
                List::Long(long) => long.clear(),
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
            List::Ipv6(Ipv6 { pairs, .. }) => {
                pairs.sort_by_key(|pair| pair.0);
                pairs.dedup();
                Sorted::Ipv6(pairs)
            }
        }
    }
}

impl Keys for Pairs {
    #[inline]
    fn key(&mut self, class: Class, key: u128) {
        let granule = self.granule;
        match self.list(class) {
            List::Short(short) => short.note(key as u16, granule),
            List::Long(long) => long.note(key as u64, granule),
            List::Ipv6(ipv6) => ipv6.note(key, granule),
        }
    }
}

/// The pairs of a class, sorted.
pub(super) enum Sorted<'a> {
    Short(&'a [u32]),
    Long(&'a [u64]),
    Ipv6(&'a [(u128, u16)]),
}

impl Sorted<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Short(pairs) => pairs.len(),
            Self::Long(pairs) => pairs.len(),
            Self::Ipv6(pairs) => pairs.len(),
        }
    }

    pub fn get(&self, at: usize) -> Option<(u128, u32)> {
        match self {
            Self::Short(pairs) => pairs.get(at).map(|p| (u128::from(p >> 16), p & 0xffff)),
            Self::Long(pairs) => pairs.get(at).map(|p| (u128::from(p >> 16), *p as u32 & 0xffff)),
            Self::Ipv6(pairs) => pairs.get(at).map(|(key, granule)| (*key, u32::from(*granule))),
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

/// Keys of at most 128 bits.
struct Ipv6 {
    /// The pairs that were noted last.
    seen: Vec<(u128, u16)>,
    pairs: Vec<(u128, u16)>,
}

impl Ipv6 {
    fn new() -> Self {
        Self { seen: vec![(0, u16::MAX); PLACES_IPV6], pairs: Vec::new() }
    }

    #[inline]
    fn note(&mut self, key: u128, granule: u16) {
        let folded = (key as u64 ^ (key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (folded >> 54) as usize % PLACES_IPV6;
        if self.seen[at] != (key, granule) {
            self.seen[at] = (key, granule);
            self.pairs.push((key, granule));
        }
    }

    fn clear(&mut self) {
        self.seen.fill((0, u16::MAX));
        self.pairs.clear();
    }
}
