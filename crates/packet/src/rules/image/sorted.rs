//! The patterns of a rule set by family, numbered and in the order of precedence: what an image is
//! written from.

use std::collections::{BTreeMap, HashSet};

use super::super::rule::Action;
use super::super::set::RuleSet;
use super::super::signature::{Key, Signature};
use super::super::tuple::Family;
use super::error::{Error, MAX_SIGNATURES};
use super::options::Options;

/// What a rule does: `struct td_outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub rule: u32,
    pub priority: u32,
    pub value: u32,
    pub stop: u16,
    pub action: u8,
}

impl Outcome {
    pub const NONE: Self =
        Self { rule: 0, priority: u32::MAX, value: 0, stop: u16::MAX, action: 0 };

    pub fn words(&self) -> [u32; 4] {
        let last = u32::from(self.stop) | u32::from(self.action) << 16;
        [self.rule, self.priority, self.value, last]
    }
}

/// The patterns of one family, numbered.
pub struct Sorted {
    pub rules: u32,
    pub families: [SortedFamily; 2],
    pub any: Option<Outcome>,
}

pub struct SortedFamily {
    pub family: Family,
    /// By their best rule.
    pub signatures: Vec<Signature>,
    /// Each once: the signature's number, what it looks for, and the best rule for that.
    pub patterns: Vec<(u16, Key, Outcome)>,
}

impl Sorted {
    pub fn new(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let mut any = None;
        let mut families =
            [Family::V4, Family::V6].map(|family| (family, BTreeMap::new(), Vec::new()));
        let mut seen = HashSet::new();
        for (priority, number) in (0..).zip(set.order()) {
            let Some(rule) = set.rule(number as usize) else { continue };
            let outcome = outcome(&rule.action, number, priority, options)?;
            for pattern in rule.patterns() {
                let signature = pattern.signature;
                if signature == Signature::ANY {
                    any.get_or_insert(outcome);
                    continue;
                }
                for (family, numbers, patterns) in &mut families {
                    if signature.family.is_some_and(|of| of != *family) {
                        continue;
                    }
                    let signature = Signature { family: Some(*family), ..signature };
                    let next = numbers.len();
                    let id = *numbers.entry(signature).or_insert(next);
                    if seen.insert((signature, pattern.key)) {
                        patterns.push((id, pattern.key, outcome));
                    }
                }
            }
        }
        let families = families.map(|(family, numbers, patterns)| {
            // Numbered in the order in which they came, which is that of their best rules.
            let mut signatures = vec![Signature::ANY; numbers.len()];
            for (signature, id) in numbers {
                signatures[id] = signature;
            }
            (family, signatures, patterns)
        });
        for (family, signatures, _) in &families {
            if signatures.len() > MAX_SIGNATURES {
                return Err(Error::Signatures { family: *family, count: signatures.len() });
            }
        }
        let families = families.map(|(family, signatures, patterns)| {
            let mut best = vec![u32::MAX; signatures.len()];
            for (id, _, outcome) in &patterns {
                best[*id] = best[*id].min(outcome.priority);
            }
            let patterns = patterns.into_iter().map(|(id, key, outcome)| {
                let stop = best.partition_point(|&best| best < outcome.priority) as u16;
                (id as u16, key, Outcome { stop, ..outcome })
            });
            SortedFamily { family, patterns: patterns.collect(), signatures }
        });
        Ok(Self { rules: set.len() as u32, families, any })
    }
}

fn outcome(action: &Action, rule: u32, priority: u32, options: &Options) -> Result<Outcome, Error> {
    let (action, value) = match action {
        Action::Accept => (1, 0),
        Action::Drop => (2, 0),
        Action::Snaplen(bytes) => (3, *bytes),
        Action::Group(name) => match options.groups.get(name) {
            Some(number) => (4, *number),
            None => return Err(Error::Group { rule, name: name.clone() }),
        },
    };
    Ok(Outcome { rule, priority, value, stop: u16::MAX, action })
}
