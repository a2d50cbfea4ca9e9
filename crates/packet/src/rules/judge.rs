//! A judge that is fast enough for traces: one hash table for each signature, tried in the order of
//! precedence.
//!
//! It finds what [`RuleSet::judge`] finds, which looks at every rule.

use std::collections::HashMap;

use super::hash::Map;
use super::set::RuleSet;
use super::signature::{Key, Pattern, Signature};
use super::tuple::Tuple;

/// The enabled rules of a set, arranged to be looked up.
#[derive(Clone, Debug)]
pub struct Judge {
    tables: Vec<Table>,
    /// The number of the rule at each place in the order of precedence.
    order: Vec<u32>,
}

/// The patterns of one signature.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub signature: Signature,
    /// The best place in the order of precedence that a rule here has.
    pub first: u32,
    /// Of equal patterns the one that comes first in the order.
    pub places: Map<Key, u32>,
}

/// All patterns of a set with their rules' places in the order of precedence, by signature; the
/// tables are in the order of their best rules.
pub(super) fn tables(set: &RuleSet, order: &[u32]) -> Vec<Table> {
    let mut tables: HashMap<Signature, Table> = HashMap::new();
    for (place, &number) in (0..).zip(order) {
        for Pattern { signature, key } in set.entries()[number as usize].rule.patterns() {
            let new = || Table { signature, first: place, places: Map::default() };
            tables.entry(signature).or_insert_with(new).places.entry(key).or_insert(place);
        }
    }
    let mut tables: Vec<Table> = tables.into_values().collect();
    // Two patterns of one rule are of two signatures.
    tables.sort_unstable_by_key(|table| (table.first, table.signature));
    tables
}

impl Judge {
    pub fn new(set: &RuleSet) -> Self {
        let order = set.order();
        Self { tables: tables(set, &order), order }
    }

    /// The number of the rule that takes a packet.
    pub fn judge(&self, tuple: &Tuple) -> Option<u32> {
        let mut best = u32::MAX;
        for table in &self.tables {
            if table.first >= best {
                break;
            }
            let key = table.signature.of(tuple);
            if let Some(&place) = key.and_then(|key| table.places.get(&key)) {
                best = best.min(place);
            }
        }
        self.order.get(best as usize).copied()
    }
}
