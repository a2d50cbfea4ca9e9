//! How much work is it to judge packets by a set?
//!
//! The unit is the **try**: one look-up of a packet under one signature. Both engines try
//! signatures in the order of their best rules, and stop where the best rule that was found comes
//! before all that are left. Which signatures they try differs:
//! - `walk`, the engine of the thesis, tries every signature whose fields the packet has;
//! - the default engine tries **candidates** alone: signatures under which each field of the
//!   packet, by itself, is a field of some rule.
//!
//! Tries are counted, not timed: how long one takes is for `make bench` to say.

use std::collections::{HashMap, HashSet};

use super::judge::{Table, tables};
use super::set::RuleSet;
use super::signature::{Key, Signature, prefix_mask};
use super::tuple::{Family, Tuple};
use crate::numbers::ip_protocol;

/// Number of packets that a sample keeps.
pub const SAMPLE: usize = 8192;

/// Packets picked from any number of packets, each with the same chance. The same packets make the
/// same sample.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    tuples: Vec<Tuple>,
    seen: u64,
}

impl Sample {
    pub fn add(&mut self, tuple: Tuple) {
        self.seen += 1;
        if self.tuples.len() < SAMPLE {
            self.tuples.push(tuple);
            return;
        }
        let place = scramble(self.seen) % self.seen;
        if let Some(kept) = self.tuples.get_mut(place as usize) {
            *kept = tuple;
        }
    }

    /// Makes a sample where there is no trace: for each enabled rule that a packet can fit, a
    /// packet that fits it. Of more than [`SAMPLE`] rules, as many are taken, evenly.
    pub fn of_rules(set: &RuleSet) -> Self {
        let mut sample = Self::default();
        let order = set.order();
        let step = order.len().div_ceil(SAMPLE).max(1);
        for (number, &rule) in order.iter().enumerate().step_by(step) {
            let rule = &set.entries()[rule as usize].rule;
            if rule.impossible().is_some() {
                continue;
            }
            for pattern in rule.patterns() {
                sample.tuples.push(fitting(pattern.signature, &pattern.key, number as u64));
            }
        }
        sample.seen = sample.tuples.len() as u64;
        sample
    }

    pub fn tuples(&self) -> &[Tuple] {
        &self.tuples
    }

    /// Returns the number of packets that were seen, of which [`Sample::tuples`] are the picked
    /// ones.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

/// Makes a packet that fits a pattern, with noise where the pattern does not look.
fn fitting(signature: Signature, key: &Key, seed: u64) -> Tuple {
    let family = signature.family.unwrap_or(Family::V4);
    let width = prefix_mask(family.bits());
    let fill = |bits: u8, value: u128, salt: u64| {
        let [high, low] = [2 * salt, 2 * salt + 1].map(|salt| scramble(seed ^ (salt << 56)));
        let noise = (u128::from(high) << 64) | u128::from(low);
        value | noise & width & !prefix_mask(bits)
    };
    let protocol = if signature.protocol { key.protocol } else { ip_protocol::TCP };
    let port = |asked: bool, value: u16, salt: u64| {
        if asked { value } else { scramble(seed ^ (salt << 56)) as u16 }
    };
    let ports = (
        port(signature.source_port, key.source_port, 8),
        port(signature.destination_port, key.destination_port, 9),
    );
    Tuple {
        family: Some(family),
        source: fill(signature.source_bits, key.source, 1),
        destination: fill(signature.destination_bits, key.destination, 2),
        protocol,
        ports: ip_protocol::has_ports(protocol).then_some(ports),
        fragment: None,
    }
}

/// SplitMix64's output function.
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Number of tries for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    pub walk: u32,
    pub candidates: u32,
}

/// Number of tries for a packet of a sample, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub packets: usize,
    pub walk_mean: f64,
    pub walk_max: u32,
    pub candidates_mean: f64,
    pub candidates_max: u32,
}

/// The signatures of a set, with the values that stand in each field of their rules.
#[derive(Clone, Debug)]
pub struct Model(Vec<(Table, Fields)>);

/// The values that rules of one signature have in each field by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    sources: HashSet<u128>,
    destinations: HashSet<u128>,
    source_ports: HashSet<u16>,
    destination_ports: HashSet<u16>,
    protocols: HashSet<u8>,
}

impl Fields {
    pub fn of<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Self {
        let mut fields = Self::default();
        for key in keys {
            fields.sources.insert(key.source);
            fields.destinations.insert(key.destination);
            fields.source_ports.insert(key.source_port);
            fields.destination_ports.insert(key.destination_port);
            fields.protocols.insert(key.protocol);
        }
        fields
    }

    /// Returns for each field whether the packet's value there is that of some rule.
    pub fn hold(&self, key: &Key) -> [bool; 5] {
        [
            self.sources.contains(&key.source),
            self.destinations.contains(&key.destination),
            self.source_ports.contains(&key.source_port),
            self.destination_ports.contains(&key.destination_port),
            self.protocols.contains(&key.protocol),
        ]
    }
}

impl Model {
    pub fn new(set: &RuleSet) -> Self {
        let with_fields = |table: Table| {
            let fields = Fields::of(table.places.keys());
            (table, fields)
        };
        Self(tables(set, &set.order()).into_iter().map(with_fields).collect())
    }

    pub fn tries(&self, tuple: &Tuple) -> Tries {
        let mut tries = Tries::default();
        let mut best = u32::MAX;
        for (table, fields) in &self.0 {
            if table.first >= best {
                break;
            }
            let Some(key) = table.signature.of(tuple) else { continue };
            tries.walk += 1;
            if fields.hold(&key).contains(&false) {
                continue;
            }
            tries.candidates += 1;
            if let Some(&place) = table.places.get(&key) {
                best = best.min(place);
            }
        }
        tries
    }

    /// Returns how many candidates a packet has, counting also those that the engine would not come
    /// to.
    pub fn candidates(&self, tuple: &Tuple) -> u32 {
        let is_candidate = |(table, fields): &&(Table, Fields)| {
            let key = table.signature.of(tuple);
            key.is_some_and(|key| !fields.hold(&key).contains(&false))
        };
        self.0.iter().filter(is_candidate).count() as u32
    }

    pub fn cost(&self, sample: &Sample) -> Cost {
        // Packets of a flow cost the same.
        let mut known: HashMap<Tuple, Tries> = HashMap::new();
        let (mut cost, mut walk, mut candidates) = (Cost::default(), 0, 0);
        for tuple in sample.tuples() {
            let tries = *known.entry(*tuple).or_insert_with(|| self.tries(tuple));
            walk += u64::from(tries.walk);
            candidates += u64::from(tries.candidates);
            cost.walk_max = cost.walk_max.max(tries.walk);
            cost.candidates_max = cost.candidates_max.max(tries.candidates);
        }
        cost.packets = sample.tuples().len();
        let mean =
            |sum: u64| if cost.packets == 0 { 0.0 } else { sum as f64 / cost.packets as f64 };
        (cost.walk_mean, cost.candidates_mean) = (mean(walk), mean(candidates));
        cost
    }
}
