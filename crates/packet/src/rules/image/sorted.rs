//! The patterns of a rule set by family, numbered and in the order of precedence: what an image is
//! written from.

use std::collections::{BTreeMap, HashSet};

use super::super::parse::MAX_RULES;
use super::super::rule::Action;
use super::super::set::RuleSet;
use super::super::signature::{Key, Pattern, Signature};
use super::super::tuple::Family;
use super::error::{Error, MAX_SIGNATURES};
use super::options::Options;

/// What a rule does with a packet: `struct td_outcome`.
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

/// The rules of a set, by family.
pub struct Sorted {
    pub rules: u32,
    pub families: [SortedFamily; 2],
    /// The outcome of the best rule that looks at nothing.
    pub any: Option<Outcome>,
}

pub struct SortedFamily {
    pub family: Family,
    /// The signatures, in the order of their best rules.
    pub signatures: Vec<Signature>,
    /// Each pattern once: its signature's number, its key, and the outcome of the best rule that
    /// has it.
    pub patterns: Vec<(u16, Key, Outcome)>,
}

impl Sorted {
    pub fn new(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let enabled = set.entries().iter().filter(|entry| entry.enabled);
        let size: u64 = enabled.map(|entry| entry.rule.port_pairs()).sum();
        if size > MAX_RULES as u64 {
            return Err(Error::TooMany);
        }
        let mut any = None;
        let mut families = [Family::V4, Family::V6].map(Numbering::new);
        for (priority, number) in (0..).zip(set.order()) {
            let Some(rule) = set.rule(number as usize) else { continue };
            let outcome = outcome(&rule.action, number, priority, options)?;
            for pattern in rule.patterns() {
                if pattern.signature == Signature::ANY {
                    any.get_or_insert(outcome);
                    continue;
                }
                for family in &mut families {
                    family.add(&pattern, outcome);
                }
            }
        }
        let [four, six] = families;
        let families = [four.finish()?, six.finish()?];
        Ok(Self { rules: set.len() as u32, families, any })
    }
}

/// Numbers the signatures of one family in the order in which their rules are added, which is the
/// order of precedence.
struct Numbering {
    family: Family,
    numbers: BTreeMap<Signature, usize>,
    patterns: Vec<(usize, Key, Outcome)>,
    seen: HashSet<(Signature, Key)>,
}

impl Numbering {
    fn new(family: Family) -> Self {
        let (numbers, patterns, seen) = (BTreeMap::new(), Vec::new(), HashSet::new());
        Self { family, numbers, patterns, seen }
    }

    /// Adds a pattern, if it can fit packets of this family and was not added before.
    fn add(&mut self, pattern: &Pattern, outcome: Outcome) {
        let &Pattern { signature, key } = pattern;
        if signature.family.is_some_and(|family| family != self.family) {
            return;
        }
        let signature = Signature { family: Some(self.family), ..signature };
        let next = self.numbers.len();
        let number = *self.numbers.entry(signature).or_insert(next);
        if self.seen.insert((signature, key)) {
            self.patterns.push((number, key, outcome));
        }
    }

    fn finish(self) -> Result<SortedFamily, Error> {
        let Self { family, numbers, patterns, .. } = self;
        let count = numbers.len();
        if count > MAX_SIGNATURES {
            return Err(Error::Signatures { family, count });
        }
        let mut signatures = vec![Signature::ANY; count];
        for (signature, number) in numbers {
            signatures[number] = signature;
        }
        let mut best = vec![u32::MAX; count];
        for (number, _, outcome) in &patterns {
            best[*number] = best[*number].min(outcome.priority);
        }
        let patterns = patterns.into_iter().map(|(number, key, outcome)| {
            let stop = best.partition_point(|&best| best < outcome.priority) as u16;
            (number as u16, key, Outcome { stop, ..outcome })
        });
        Ok(SortedFamily { family, patterns: patterns.collect(), signatures })
    }
}

// `enum td_action`, but for `TD_NONE`, which is 0.
const ACCEPT: u8 = 1;
const DROP: u8 = 2;
const SNAPLEN: u8 = 3;
const GROUP: u8 = 4;
const CUT_OFF: u8 = 5;

fn outcome(action: &Action, rule: u32, priority: u32, options: &Options) -> Result<Outcome, Error> {
    let (action, value) = match action {
        Action::Accept => (ACCEPT, 0),
        Action::Drop => (DROP, 0),
        Action::Snaplen(bytes) => (SNAPLEN, *bytes),
        Action::Group(name) => {
            let Some(number) = options.groups.get(name) else {
                let there = options.groups.keys().cloned().collect();
                return Err(Error::Group { rule, name: name.clone(), there });
            };
            (GROUP, *number)
        }
        Action::Cutoff(bytes) => (CUT_OFF, *bytes),
    };
    Ok(Outcome { rule, priority, value, stop: u16::MAX, action })
}
