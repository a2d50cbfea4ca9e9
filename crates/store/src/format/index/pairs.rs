//! Which keys stand in which granules, gathered as packets come.
//!
//! A pair of key and granule is noted once, or a few times more; sorting makes a dictionary of
//! them. There is no table of all keys, which random addresses could make as large as they like:
//! each class has a list of pairs, and a small memory of those noted last, which keeps what repeats
//! itself in a granule from being noted again.

use tapdeck_packet::key::{Class, Keys};

/// The places in the memory of a class with long keys, a power of two.
const PLACES: usize = 4096;
const PLACES_IPV6: usize = 1024;

/// The pairs of all classes, with granules numbered from 0 to [`Pairs::MOST_GRANULES`].
pub(super) struct Pairs {
    granule: u16,
    short: [Short; 5],
    long: [Long; 5],
    ipv6: [Ipv6; 2],
}

impl Pairs {
    pub const MOST_GRANULES: u32 = u16::MAX as u32 - 1;

    pub fn new() -> Self {
        Self {
            granule: 0,
            short: [1 << 16, 1 << 12, 1 << 8, 1 << 16, 1 << 16].map(Short::new),
            long: std::array::from_fn(|_| Long::new()),
            ipv6: std::array::from_fn(|_| Ipv6::new()),
        }
    }

    /// Keys from now on stand in this granule.
    pub fn set_granule(&mut self, granule: u16) {
        self.granule = granule;
    }

    /// How many pairs the fullest class has.
    pub fn most(&self) -> usize {
        let short = self.short.iter().map(|s| s.pairs.len());
        let long = self.long.iter().map(|l| l.pairs.len());
        let ipv6 = self.ipv6.iter().map(|l| l.pairs.len());
        short.chain(long).chain(ipv6).max().unwrap_or(0)
    }

    pub fn clear(&mut self) {
        self.granule = 0;
        self.short.iter_mut().for_each(Short::clear);
        self.long.iter_mut().for_each(Long::clear);
        self.ipv6.iter_mut().for_each(Ipv6::clear);
    }

    /// The pairs of a class in order, each once. Granules come in order already: a stable sort by
    /// key is the cheaper the fewer keys there are.
    pub fn sorted(&mut self, class: Class) -> Sorted<'_> {
        match place(class) {
            Place::Short(i) => {
                let pairs = &mut self.short[i].pairs;
                pairs.sort_by_key(|pair| pair >> 16);
                Sorted::Short(pairs)
            }
            Place::Long(i) => {
                let pairs = &mut self.long[i].pairs;
                pairs.sort_by_key(|pair| pair >> 16);
                pairs.dedup();
                Sorted::Long(pairs)
            }
            Place::Ipv6(i) => {
                let pairs = &mut self.ipv6[i].pairs;
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
        match place(class) {
            Place::Short(i) => self.short[i].note(key as u16, self.granule),
            Place::Long(i) => self.long[i].note(key as u64, self.granule),
            Place::Ipv6(i) => self.ipv6[i].note(key, self.granule),
        }
    }
}

enum Place {
    Short(usize),
    Long(usize),
    Ipv6(usize),
}

#[inline]
fn place(class: Class) -> Place {
    match class {
        Class::EtherType => Place::Short(0),
        Class::Vlan => Place::Short(1),
        Class::Protocol => Place::Short(2),
        Class::SourcePort => Place::Short(3),
        Class::DestinationPort => Place::Short(4),
        Class::Mpls => Place::Long(0),
        Class::SourceIpv4 => Place::Long(1),
        Class::DestinationIpv4 => Place::Long(2),
        Class::SourceMac => Place::Long(3),
        Class::DestinationMac => Place::Long(4),
        Class::SourceIpv6 => Place::Ipv6(0),
        Class::DestinationIpv6 => Place::Ipv6(1),
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

struct Ipv6 {
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
