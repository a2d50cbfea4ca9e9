//! Which signatures should a set have?
//!
//! Each signature costs tries, whatever the number of its rules. A rule can be written under
//! another signature, with longer prefixes, as several rules: 10.0.0.0/23 is 10.0.0.0/24 and
//! 10.0.1.0/24. Where all rules of a signature are written under another one that the set
//! has anyway, the set has one signature less. Gopalakrishnan 2011, chapter 6, leaves the choice of
//! signatures open; the choice here is a greedy one.
//!
//! A **move** takes all rules of one signature to another. A move
//! - **saves** the tries that both signatures had on the same packet of a sample, and a 64th of a
//!   try for the signature itself: one engine reads signatures in words of 64 bits, and `walk`
//!   tries each on every packet;
//! - **costs** the rules that it adds.
//!
//! The move that saves the most for each rule that it adds is made first, until none saves anything
//! or the set has grown to its bound. Which rules a packet fits stays the same, and so does **which
//! of them takes it**. Longer prefixes make a rule come earlier; a move is not made if it would put
//! a rule before another that comes earlier now and shares packets with it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::cost::{Fields, Sample};
use super::hash::Map;
use super::judge::tables;
use super::rule::{Protocol, Rule};
use super::set::{Entry, RuleSet};
use super::signature::{Key, Pattern, Signature};
use super::tuple::Family;

/// The most bits by which a move makes the two prefixes of a rule longer, both together: one rule
/// becomes 256 at most.
const MAX_LONGER: u8 = 8;
/// What a signature itself costs, in tries for each packet.
const SIGNATURE: f64 = 1.0 / 64.0;

/// The result of clustering a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustered {
    /// The enabled rules, in the order of precedence.
    pub set: RuleSet,
    /// For each rule of the new set, the number of the rule of the old set that it is, or is a
    /// part of.
    pub origins: Vec<u32>,
    pub moves: Vec<Move>,
}

/// Rules of one signature that were written under another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    pub from: Signature,
    pub to: Signature,
    /// Number of patterns that were taken from the signature `from`.
    pub patterns: usize,
    /// Number of patterns that the signature `to` has gained by that.
    pub gained: usize,
    /// Tries that are saved for a packet of the sample, on average.
    pub saved: f64,
}

/// The patterns of one signature with their rules' places in the order of precedence, and how they
/// meet the sample.
struct SampledSignature {
    signature: Signature,
    places: Map<Key, u32>,
    /// For each field, a bit for each packet of the sample: whether the packet's value there is
    /// that of some rule.
    fields: [Vec<u64>; 5],
}

/// A move that may be made. The best one is the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Proposal {
    /// Tries that are saved for each rule that is added.
    worth: f64,
    saved: f64,
    from: usize,
    to: usize,
}

impl Eq for Proposal {}

impl Ord for Proposal {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let worth = self.worth.total_cmp(&other.worth);
        worth.then_with(|| (other.from, other.to).cmp(&(self.from, self.to)))
    }
}

impl PartialOrd for Proposal {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl RuleSet {
    /// Chooses signatures. The new set has at most `growth` times as many patterns as this one;
    /// with 1 it has no more.
    pub fn cluster(&self, sample: &Sample, growth: f64) -> Clustered {
        let order = self.order();
        let groups: Vec<SampledSignature> = tables(self, &order)
            .into_iter()
            .map(|table| SampledSignature::new(table.signature, table.places, sample))
            .collect();
        let patterns: usize = groups.iter().map(|group| group.places.len()).sum();
        let by_signature = groups.iter().enumerate().map(|(index, group)| (group.signature, index));
        let mut clustering = Clustering {
            by_signature: by_signature.collect(),
            groups,
            packets: sample.tuples().len(),
            patterns,
            most: ((patterns as f64 * growth) as usize).max(patterns),
            moves: Vec::new(),
        };
        clustering.run();
        clustering.finish(self, &order)
    }
}

impl SampledSignature {
    fn new(signature: Signature, places: Map<Key, u32>, sample: &Sample) -> Self {
        let words = sample.tuples().len().div_ceil(64);
        let mut fields = [(); 5].map(|()| vec![0; words]);
        let values = Fields::of(places.keys());
        for (index, tuple) in sample.tuples().iter().enumerate() {
            let Some(key) = signature.of(tuple) else { continue };
            for (field, held) in fields.iter_mut().zip(values.hold(&key)) {
                field[index / 64] |= u64::from(held) << (index % 64);
            }
        }
        Self { signature, places, fields }
    }

    /// Returns the number of packets of the sample on which the group's signature is tried.
    fn tried(&self) -> u32 {
        (0..self.fields[0].len()).map(|word| self.word(word).count_ones()).sum()
    }

    fn word(&self, word: usize) -> u64 {
        self.fields.iter().fold(u64::MAX, |all, field| all & field[word])
    }

    /// Returns the number of packets on which the signature would be tried if it had the other
    /// group's patterns too.
    fn tried_with(&self, other: &Self) -> u32 {
        let union = |word: usize| {
            let both = self.fields.iter().zip(&other.fields);
            both.fold(u64::MAX, |all, (one, two)| all & (one[word] | two[word]))
        };
        (0..self.fields[0].len()).map(|word| union(word).count_ones()).sum()
    }
}

/// Returns how many bits longer the prefixes of `to` are, if the signatures differ in nothing else,
/// and by [`MAX_LONGER`] bits at most.
fn longer(from: Signature, to: Signature) -> Option<(u8, u8)> {
    let same = |signature: Signature| {
        let Signature { family, source_port, destination_port, protocol, .. } = signature;
        (family, source_port, destination_port, protocol)
    };
    if same(from) != same(to) {
        return None;
    }
    let source = to.source_bits.checked_sub(from.source_bits)?;
    let destination = to.destination_bits.checked_sub(from.destination_bits)?;
    let longer = source.checked_add(destination)?;
    (1..=MAX_LONGER).contains(&longer).then_some((source, destination))
}

/// Iterates over the prefixes that are `longer` bits longer than this prefix of `bits` bits.
fn parts(prefix: u128, bits: u8, longer: u8) -> impl Iterator<Item = u128> + Clone {
    let step = 128 - u32::from(bits) - u32::from(longer);
    (0..1u128 << longer).map(move |part| prefix | part.checked_shl(step).unwrap_or(0))
}

struct Clustering {
    groups: Vec<SampledSignature>,
    by_signature: HashMap<Signature, usize>,
    /// Number of packets in the sample.
    packets: usize,
    /// Number of patterns in all groups.
    patterns: usize,
    most: usize,
    moves: Vec<Move>,
}

impl Clustering {
    fn run(&mut self) {
        let mut proposals = BinaryHeap::new();
        for from in 0..self.groups.len() {
            self.propose(from, &mut proposals);
        }
        while let Some(proposal) = proposals.pop() {
            let Proposal { from, to, .. } = proposal;
            // Moves that were made since may have changed what this one is worth, and how much room
            // there is.
            let Some(now) = self.weigh(from, to) else { continue };
            if now != proposal {
                proposals.push(now);
                continue;
            }
            if self.keeps_precedence(from, to) {
                self.make(&proposal);
                self.propose(to, &mut proposals);
            }
        }
    }

    /// Proposes to move a group to each of the others that it could be moved to.
    fn propose(&self, from: usize, proposals: &mut BinaryHeap<Proposal>) {
        let signature = self.groups[from].signature;
        for source in 0..=MAX_LONGER {
            for destination in 0..=MAX_LONGER - source {
                let to = Signature {
                    source_bits: signature.source_bits.saturating_add(source),
                    destination_bits: signature.destination_bits.saturating_add(destination),
                    ..signature
                };
                let to = self.by_signature.get(&to);
                proposals.extend(to.and_then(|&to| self.weigh(from, to)));
            }
        }
    }

    /// Returns what a move is worth, if it saves anything and does not make the set too large.
    fn weigh(&self, from: usize, to: usize) -> Option<Proposal> {
        let (one, two) = (&self.groups[from], &self.groups[to]);
        let (source, destination) = longer(one.signature, two.signature)?;
        if one.places.is_empty() || two.places.is_empty() {
            return None;
        }
        let added = one.places.len() * ((1 << (source + destination)) - 1);
        if self.patterns + added > self.most {
            return None;
        }
        let tries =
            f64::from(one.tried()) + f64::from(two.tried()) - f64::from(two.tried_with(one));
        let saved = SIGNATURE + if self.packets == 0 { 0.0 } else { tries / self.packets as f64 };
        (saved > 0.0).then(|| Proposal { worth: saved / added as f64, saved, from, to })
    }

    /// Returns whether the move would put no rule of `from` before another that comes earlier now
    /// and shares packets with it.
    fn keeps_precedence(&self, from: usize, to: usize) -> bool {
        let moved = &self.groups[from];
        let rank = self.groups[to].signature.rank();
        let last = moved.places.values().max();
        self.groups.iter().filter(|other| other.signature.rank() < rank).all(|other| {
            let Some(common) = moved.signature.common(&other.signature) else { return true };
            if other.places.values().min() >= last {
                return true;
            }
            let mut first: Map<Key, u32> = Map::default();
            for (key, &place) in &other.places {
                first.entry(common.mask(key)).and_modify(|p| *p = place.min(*p)).or_insert(place);
            }
            let mut moved = moved.places.iter();
            moved
                .all(|(key, place)| first.get(&common.mask(key)).is_none_or(|first| first >= place))
        })
    }

    fn make(&mut self, proposal: &Proposal) {
        let Proposal { from, to, saved, .. } = *proposal;
        let (one, two) = (self.groups[from].signature, self.groups[to].signature);
        let Some((source, destination)) = longer(one, two) else { return };
        let moved = std::mem::take(&mut self.groups[from].places);
        let fields = std::mem::take(&mut self.groups[from].fields);
        let group = &mut self.groups[to];
        let before = group.places.len();
        for (key, &place) in &moved {
            let destinations = parts(key.destination, one.destination_bits, destination);
            for source in parts(key.source, one.source_bits, source) {
                for destination in destinations.clone() {
                    let part = Key { source, destination, ..*key };
                    group.places.entry(part).and_modify(|p| *p = place.min(*p)).or_insert(place);
                }
            }
        }
        for (field, other) in group.fields.iter_mut().zip(&fields) {
            field.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
        }
        let gained = group.places.len() - before;
        self.patterns = self.patterns + gained - moved.len();
        self.moves.push(Move { from: one, to: two, patterns: moved.len(), gained, saved });
    }

    /// Writes the groups as rules. A rule of which nothing was moved stays as it was written, even
    /// if it takes nothing.
    fn finish(self, set: &RuleSet, order: &[u32]) -> Clustered {
        let moved: Vec<Signature> = self.moves.iter().map(|m| m.from).collect();
        // Rank, place, and the pattern, where it is but a part of its rule.
        let mut lines: Vec<(Reverse<u16>, u32, Option<Pattern>)> = Vec::new();
        let mut stays = vec![true; order.len()];
        for (place, &number) in (0..).zip(order) {
            let rule = &set.entries()[number as usize].rule;
            stays[place as usize] = !rule.signatures().any(|signature| moved.contains(&signature));
            if stays[place as usize] {
                lines.push((Reverse(rule.rank()), place, None));
            }
        }
        for group in &self.groups {
            let parts = group.places.iter().filter(|(_, place)| !stays[**place as usize]);
            lines.extend(parts.map(|(&key, &place)| {
                let pattern = Pattern { signature: group.signature, key };
                (Reverse(group.signature.rank()), place, Some(pattern))
            }));
        }
        lines.sort_unstable();
        let mut clustered =
            Clustered { set: RuleSet::default(), origins: Vec::new(), moves: self.moves };
        for (_, place, part) in lines {
            let number = order[place as usize];
            let Entry { rule, line, .. } = &set.entries()[number as usize];
            let rule = part.map_or_else(|| rule.clone(), |part| write(&part, rule));
            clustered.set.push(Entry { rule, enabled: true, line: *line });
            clustered.origins.push(number);
        }
        clustered
    }
}

/// Writes a pattern as a rule, with the action of the rule that it is a part of.
fn write(pattern: &Pattern, origin: &Rule) -> Rule {
    let Pattern { signature, key } = *pattern;
    let net = |address: u128, bits: u8| {
        let address = match signature.family? {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits((address >> 96) as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(address)),
        };
        IpNet::new(address, bits).ok()
    };
    let is_any = |bits: u8, origin: Option<IpNet>| bits == 0 && origin.is_none();
    let source = net(key.source, signature.source_bits);
    let destination = net(key.destination, signature.destination_bits);
    let mut rule = Rule {
        action: origin.action.clone(),
        source: source.filter(|_| !is_any(signature.source_bits, origin.source)),
        destination: destination
            .filter(|_| !is_any(signature.destination_bits, origin.destination)),
        source_port: signature.source_port.then_some(key.source_port.into()),
        destination_port: signature.destination_port.then_some(key.destination_port.into()),
        protocol: signature.protocol.then_some(Protocol::Number(key.protocol)),
    };
    if signature.family.is_some() && rule.family().is_none() {
        // This is one of the two patterns of `proto icmp`, so the family has to be written.
        rule.source = source;
    }
    rule
}
