//! Which rules does a set have, and in which order do they count?

use std::cmp::Reverse;
use std::fmt;

use super::rule::Rule;
use super::signature::Signature;
use super::tuple::Tuple;

/// A rule of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub rule: Rule,
    /// Whether the rule takes packets. A rule that is not enabled stays in the set and keeps its
    /// number.
    pub enabled: bool,
    /// Line of the file that the rule stands in, counted from 1; 0 where the rule comes from
    /// elsewhere.
    pub line: u32,
}

/// Rules in the order of their file. A rule's number is its place in that order, from 0.
///
/// Each interface or group that has rules has a set of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    entries: Vec<Entry>,
}

impl RuleSet {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the rules by their numbers, including those that are not enabled.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn rule(&self, number: usize) -> Option<&Rule> {
        self.entries.get(number).map(|entry| &entry.rule)
    }

    /// Adds a rule behind all others.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Takes a rule out. The numbers of the rules behind it become lower by one.
    pub fn remove(&mut self, number: usize) -> Option<Entry> {
        (number < self.entries.len()).then(|| self.entries.remove(number))
    }

    /// Returns the number of the first rule that is equal to this one.
    pub fn position(&self, rule: &Rule) -> Option<usize> {
        self.entries.iter().position(|entry| entry.rule == *rule)
    }

    /// Enables a rule or disables it. Returns false where there is no such rule.
    pub fn set_enabled(&mut self, number: usize, enabled: bool) -> bool {
        let entry = self.entries.get_mut(number);
        entry.map(|entry| entry.enabled = enabled).is_some()
    }

    /// Returns the numbers of the enabled rules in the order of precedence: the first rule that
    /// fits a packet takes it.
    ///
    /// Rules of higher rank come first, rules of equal rank in the order of the file.
    pub fn order(&self) -> Vec<u32> {
        let enabled = (0..).zip(&self.entries).filter(|(_, entry)| entry.enabled);
        let mut ranked: Vec<(Reverse<u16>, u32)> =
            enabled.map(|(number, entry)| (Reverse(entry.rule.rank()), number)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, number)| number).collect()
    }

    /// Returns the signatures of the enabled rules, each once, those of higher rank first.
    pub fn signatures(&self) -> Vec<Signature> {
        let enabled = self.entries.iter().filter(|entry| entry.enabled);
        let mut signatures: Vec<Signature> =
            enabled.flat_map(|entry| entry.rule.signatures()).collect();
        signatures.sort_unstable_by_key(|signature| (Reverse(signature.rank()), *signature));
        signatures.dedup();
        signatures
    }

    /// Returns the number of the rule that takes a packet, by looking at every rule. All faster
    /// ways must agree with this one.
    pub fn judge(&self, tuple: &Tuple) -> Option<u32> {
        let fits = |number: &u32| {
            self.entries[*number as usize].rule.patterns().any(|pattern| pattern.fits(tuple))
        };
        self.order().into_iter().find(fits)
    }
}

impl FromIterator<Rule> for RuleSet {
    fn from_iter<T: IntoIterator<Item = Rule>>(rules: T) -> Self {
        let entries = rules.into_iter().map(|rule| Entry { rule, enabled: true, line: 0 });
        Self { entries: entries.collect() }
    }
}

/// Writes a rule file: the enabled rules alone, each on a line.
impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries
            .iter()
            .filter(|entry| entry.enabled)
            .try_for_each(|entry| writeln!(f, "{}", entry.rule))
    }
}
