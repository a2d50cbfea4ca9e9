//! How are the packets of a trace judged fast enough?
//!
//! With one hash table for each signature, tried in the order of precedence. The judge finds the
//! same rule as [`RuleSet::judge`], which looks at every rule. In the kernel, an
//! [image](super::image) is the judge.

use std::collections::HashMap;

use super::hash::Map;
use super::set::RuleSet;
use super::signature::{Key, Pattern, Signature};
use super::tuple::Tuple;

/// The enabled rules of a set, in tables by signature.
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
    /// The first place in the order of precedence that a rule of this table has.
    pub first: u32,
    /// Each pattern's place in the order of precedence; of equal patterns, that of the first.
    pub places: Map<Key, u32>,
}

/// Arranges all patterns of a set by signature, with their rules' places in the order of
/// precedence. The tables are in the order of their best rules.
pub(super) fn tables(set: &RuleSet, order: &[u32]) -> Vec<Table> {
    let mut tables: HashMap<Signature, Table> = HashMap::new();
    for (place, &number) in (0..).zip(order) {
        for Pattern { signature, key } in set.entries()[number as usize].rule.patterns() {
            let new = || Table { signature, first: place, places: Map::default() };
            tables.entry(signature).or_insert_with(new).places.entry(key).or_insert(place);
        }
    }
    let mut tables: Vec<Table> = tables.into_values().collect();
    // A rule has its patterns of one signature in one table, so no two tables compare equal.
    tables.sort_unstable_by_key(|table| (table.first, table.signature));
    tables
}

impl Judge {
    pub fn new(set: &RuleSet) -> Self {
        let order = set.order();
        Self { tables: tables(set, &order), order }
    }

    /// Returns the number of the rule that takes a packet.
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
