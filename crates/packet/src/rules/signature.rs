//! What does a rule look at, apart from the values that it looks for?
//!
//! A [`Signature`] is that: the masks. A [`Key`] has the values under the masks, and a [`Pattern`]
//! is both.

use super::tuple::{Family, Tuple};

/// The masks of a rule. Two rules of one signature differ in their values alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature {
    /// The family that a packet must have. `None` for packets of any family and of none; both
    /// prefixes are then 0 bits long.
    pub family: Option<Family>,
    /// Length of the source's prefix, at most [`Family::bits`].
    pub source_bits: u8,
    /// Length of the destination's prefix, at most [`Family::bits`].
    pub destination_bits: u8,
    /// Whether the rule looks at the source port. The mask has 16 bits or none.
    pub source_port: bool,
    pub destination_port: bool,
    pub protocol: bool,
}

/// Values under the masks of a signature. The bits that a mask leaves out are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Source address. An IPv4 address stands in the highest 32 bits, so that a prefix means the
    /// same for both families.
    pub source: u128,
    /// Destination address, in the same bits as the source address.
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
    pub protocol: u8,
}

/// What a rule looks for: masks, and the values under them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    pub signature: Signature,
    pub key: Key,
}

/// Returns a mask of the highest `bits` bits.
pub fn prefix_mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl Signature {
    /// The signature that looks at nothing, so that every packet fits it.
    pub const ANY: Self = Self {
        family: None,
        source_bits: 0,
        destination_bits: 0,
        source_port: false,
        destination_port: false,
        protocol: false,
    };

    /// Sum of the widths of the masks in bits. The family does not count.
    pub fn rank(&self) -> u16 {
        let [source_port, destination_port] =
            [self.source_port, self.destination_port].map(|mask| if mask { 16 } else { 0 });
        let protocol = if self.protocol { 8 } else { 0 };
        u16::from(self.source_bits)
            + u16::from(self.destination_bits)
            + source_port
            + destination_port
            + protocol
    }

    /// Returns the packet's values under the masks; `None` where a value is not known of the
    /// packet, so that no pattern of this signature can fit it.
    #[inline]
    pub fn of(&self, tuple: &Tuple) -> Option<Key> {
        if self.family.is_some() && self.family != tuple.family {
            return None;
        }
        if self.protocol && tuple.family.is_none() {
            return None;
        }
        let (source_port, destination_port) = match tuple.ports {
            Some(ports) => ports,
            None if self.source_port || self.destination_port => return None,
            None => (0, 0),
        };
        Some(self.mask(&Key {
            source: tuple.source,
            destination: tuple.destination,
            source_port,
            destination_port,
            protocol: tuple.protocol,
        }))
    }

    #[inline]
    pub fn mask(&self, key: &Key) -> Key {
        Key {
            source: key.source & prefix_mask(self.source_bits),
            destination: key.destination & prefix_mask(self.destination_bits),
            source_port: if self.source_port { key.source_port } else { 0 },
            destination_port: if self.destination_port { key.destination_port } else { 0 },
            protocol: if self.protocol { key.protocol } else { 0 },
        }
    }

    /// Returns whether this signature looks at nothing that `other` does not look at. Each pattern
    /// of `other` then lies inside exactly one pattern of this signature.
    pub fn covers(&self, other: &Self) -> bool {
        (self.family.is_none() || self.family == other.family)
            && self.source_bits <= other.source_bits
            && self.destination_bits <= other.destination_bits
            && self.source_port <= other.source_port
            && self.destination_port <= other.destination_port
            && self.protocol <= other.protocol
    }

    /// Returns the part of the masks that both signatures have. Patterns of the two have packets in
    /// common if they agree under it. `None` where the signatures are of different families.
    pub fn common(&self, other: &Self) -> Option<Self> {
        let family = match (self.family, other.family) {
            (Some(one), Some(two)) if one != two => return None,
            (one, two) => one.or(two),
        };
        Some(Self {
            family,
            source_bits: self.source_bits.min(other.source_bits),
            destination_bits: self.destination_bits.min(other.destination_bits),
            source_port: self.source_port && other.source_port,
            destination_port: self.destination_port && other.destination_port,
            protocol: self.protocol && other.protocol,
        })
    }
}

impl Pattern {
    #[inline]
    pub fn fits(&self, tuple: &Tuple) -> bool {
        self.signature.of(tuple) == Some(self.key)
    }

    /// Returns whether every packet that fits `other` fits this pattern.
    pub fn contains(&self, other: &Self) -> bool {
        self.signature.covers(&other.signature) && self.signature.mask(&other.key) == self.key
    }

    /// Returns whether a packet can fit both patterns.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.signature
            .common(&other.signature)
            .is_some_and(|common| common.mask(&self.key) == common.mask(&other.key))
    }
}

/// Writes the signature as `ipv4 src/24 dst/32 dport proto`, or `any` where it looks at nothing.
impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        match self.family {
            Some(Family::V4) => parts.push("ipv4".to_owned()),
            Some(Family::V6) => parts.push("ipv6".to_owned()),
            None => {}
        }
        let prefix = |name, bits| (bits > 0).then(|| format!("{name}/{bits}"));
        parts.extend(prefix("src", self.source_bits));
        parts.extend(prefix("dst", self.destination_bits));
        let masks = [
            (self.source_port, "sport"),
            (self.destination_port, "dport"),
            (self.protocol, "proto"),
        ];
        parts.extend(masks.into_iter().filter(|(mask, _)| *mask).map(|(_, name)| name.to_owned()));
        if parts.is_empty() {
            parts.push("any".to_owned());
        }
        f.write_str(&parts.join(" "))
    }
}
