//! Which rules could a set do without?
//!
//! A rule is not needed if every packet that it takes would have the same done to it without the
//! rule. Such a rule is found if all its packets fit one other rule:
//! - one that comes earlier in the order of precedence, so that the rule takes nothing at all: the
//!   rule is a **duplicate**, or **hidden**;
//! - one that comes later and has the same action, where no rule of another action comes between
//!   the two that some of the packets fit: the rule is a **subset**. Without it, its packets count
//!   as hits of the rules that take them then.
//!
//! All rules that are found can go at once. A rule that only several others together make
//! unnecessary is not found.

use std::collections::{HashMap, HashSet};

use super::hash::Map;
use super::judge::{Table, tables};
use super::rule::Action;
use super::set::RuleSet;
use super::signature::{Key, Pattern, Signature};

/// Why a rule is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// An earlier rule looks for the same. The rule takes nothing, whatever its action.
    Duplicate,
    /// An earlier rule of the same rank takes all its packets. The rule takes nothing, whatever its
    /// action.
    Hidden,
    /// A later rule would take its packets and do the same.
    Subset,
}

/// A rule that is not needed, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Merged {
    pub rule: u32,
    /// The number of the rule that makes it unnecessary.
    pub by: u32,
    pub why: Why,
}

/// A pattern whose packets a later rule would take, unless a rule between the two has another
/// action.
struct Candidate {
    key: Key,
    place: u32,
    /// The place of the later rule.
    by: u32,
}

impl RuleSet {
    /// Finds the enabled rules that are not needed, in the order of their numbers.
    pub fn merge(&self) -> Vec<Merged> {
        Merger::new(self).merge()
    }

    /// Returns the set without these rules.
    pub fn without(&self, merged: &[Merged]) -> Self {
        let mut goes = vec![false; self.len()];
        for merged in merged {
            goes[merged.rule as usize] = true;
        }
        let mut set = Self::default();
        for (entry, _) in self.entries().iter().zip(goes).filter(|(_, goes)| !goes) {
            set.push(entry.clone());
        }
        set
    }
}

struct Merger<'a> {
    set: &'a RuleSet,
    order: Vec<u32>,
    tables: Vec<Table>,
    /// A number for the action at each place. Equal actions have the same number.
    actions: Vec<u32>,
    /// What is known of the patterns at each place.
    found: Vec<Found>,
    /// Patterns that a later rule has too, where that rule stays because another of its patterns is
    /// needed.
    repeated: HashSet<Pattern>,
}

/// What is known of a rule's patterns. The rule can go if all its patterns can.
#[derive(Clone, Copy, Default)]
struct Found {
    patterns: u32,
    needless: u32,
    /// The place of a rule that makes a pattern unnecessary, and how.
    by: Option<(u32, Why)>,
}

impl<'a> Merger<'a> {
    fn new(set: &'a RuleSet) -> Self {
        let order = set.order();
        let mut numbers: HashMap<&Action, u32> = HashMap::new();
        let actions = order.iter().map(|&number| {
            let next = numbers.len() as u32;
            *numbers.entry(&set.entries()[number as usize].rule.action).or_insert(next)
        });
        let actions = actions.collect();
        let patterns =
            |&number: &u32| set.entries()[number as usize].rule.patterns().count() as u32;
        let found =
            order.iter().map(|number| Found { patterns: patterns(number), ..Found::default() });
        let found = found.collect();
        Self { set, tables: tables(set, &order), order, actions, found, repeated: HashSet::new() }
    }

    fn merge(mut self) -> Vec<Merged> {
        self.duplicates();
        for index in 0..self.tables.len() {
            let candidates = self.candidates(index);
            self.subsets(self.tables[index].signature, candidates);
        }
        let mut merged: Vec<Merged> = (self.order.iter().zip(&self.found))
            .filter(|(_, found)| found.needless == found.patterns)
            .filter_map(|(&rule, found)| {
                found.by.map(|(by, why)| Merged { rule, by: self.order[by as usize], why })
            })
            .collect();
        merged.sort_unstable_by_key(|merged| merged.rule);
        merged
    }

    fn note(&mut self, place: u32, by: u32, why: Why) {
        let found = &mut self.found[place as usize];
        found.needless += 1;
        // If one of a rule's patterns takes packets, that one says what the rule is.
        if found.by.is_none_or(|(_, known)| known != Why::Subset) {
            found.by = Some((by, why));
        }
    }

    fn does_the_same(&self, one: u32, two: u32) -> bool {
        self.actions[one as usize] == self.actions[two as usize]
    }

    /// Notes the patterns that the tables do not hold, because an equal one comes first.
    fn duplicates(&mut self) {
        let tables: HashMap<Signature, usize> =
            self.tables.iter().enumerate().map(|(index, table)| (table.signature, index)).collect();
        for (place, number) in (0..).zip(self.order.clone()) {
            for pattern in self.set.entries()[number as usize].rule.patterns() {
                let first = self.tables[tables[&pattern.signature]].places[&pattern.key];
                if first < place {
                    self.note(place, first, Why::Duplicate);
                }
            }
            let found = self.found[place as usize];
            if (1..found.patterns).contains(&found.needless) {
                self.repeated.extend(self.set.entries()[number as usize].rule.patterns());
            }
        }
    }

    /// Notes the hidden patterns of a table, and returns those that may be subsets.
    fn candidates(&mut self, index: usize) -> Vec<Candidate> {
        let table = &self.tables[index];
        let wider: Vec<&Table> = self
            .tables
            .iter()
            .filter(|other| other.signature != table.signature)
            .filter(|other| other.signature.covers(&table.signature))
            .collect();
        let (mut hidden, mut candidates) = (Vec::new(), Vec::new());
        for (&key, &place) in &table.places {
            // Without this pattern, an equal one of a rule that stays would take its packets.
            let is_repeated = self.repeated.contains(&Pattern { signature: table.signature, key });
            let containing =
                wider.iter().filter_map(|other| other.places.get(&other.signature.mask(&key)));
            let (mut before, mut after) = (None, None);
            for &by in containing {
                let nearest = if by < place { &mut before } else { &mut after };
                *nearest = Some(nearest.map_or(by, |known: u32| known.min(by)));
            }
            match (before, after) {
                (Some(by), _) => hidden.push((place, by)),
                // If the first pattern that contains this one does something else, it takes the
                // packets before any other that contains them.
                (None, Some(by)) if self.does_the_same(place, by) && !is_repeated => {
                    candidates.push(Candidate { key, place, by });
                }
                _ => {}
            }
        }
        for (place, by) in hidden {
            self.note(place, by, Why::Hidden);
        }
        candidates
    }

    /// Notes the candidates of one signature that are subsets: no rule of another action comes
    /// between the candidate and the rule that contains it.
    fn subsets(&mut self, signature: Signature, mut candidates: Vec<Candidate>) {
        for table in &self.tables {
            let Some(last) = candidates.iter().map(|candidate| candidate.by).max() else { return };
            let Some(common) = signature.common(&table.signature) else { continue };
            if table.first >= last {
                // The tables are in the order of their first rules.
                break;
            }
            let objections = Objections::new(table, common, &self.actions);
            candidates.retain(|candidate| {
                !objections.any(&common.mask(&candidate.key), candidate, &self.actions)
            });
        }
        for Candidate { place, by, .. } in candidates {
            self.note(place, by, Why::Subset);
        }
    }
}

/// The rules of one table, by the part of their keys that a signature looks at too.
struct Objections(Map<Key, Vec<Rival>>);

struct Rival {
    place: u32,
    /// Index in the list of the next rule of another action.
    next_other: usize,
}

impl Objections {
    fn new(table: &Table, common: Signature, actions: &[u32]) -> Self {
        let mut rivals: Map<Key, Vec<Rival>> = Map::default();
        for (key, &place) in &table.places {
            rivals.entry(common.mask(key)).or_default().push(Rival { place, next_other: 0 });
        }
        for list in rivals.values_mut() {
            list.sort_unstable_by_key(|rival| rival.place);
            let mut next_other = list.len();
            for index in (0..list.len()).rev() {
                let action = |index: usize| actions[list[index].place as usize];
                if index + 1 < list.len() && action(index) != action(index + 1) {
                    next_other = index + 1;
                }
                list[index].next_other = next_other;
            }
        }
        Self(rivals)
    }

    /// Returns whether a rule of another action stands between the candidate and the rule that
    /// contains it.
    fn any(&self, common: &Key, candidate: &Candidate, actions: &[u32]) -> bool {
        let Some(list) = self.0.get(common) else { return false };
        let next = list.partition_point(|rival| rival.place <= candidate.place);
        let Some(rival) = list.get(next) else { return false };
        let is_other = actions[rival.place as usize] != actions[candidate.place as usize];
        let other = if is_other { next } else { rival.next_other };
        list.get(other).is_some_and(|other| other.place < candidate.by)
    }
}
