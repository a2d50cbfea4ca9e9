//! Which keys are the most common? Counted in bounded memory, however many there are; where that
//! was not enough, the counts say that they may be too low.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

/// How many keys are counted at the same time: all ports, and more hosts than most networks have.
const KEPT: usize = 1 << 16;

/// The most common hosts or ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tops<K> {
    /// The keys, each with how many granules hold it as source or destination, the most common
    /// first.
    pub list: Vec<(K, u64)>,
    /// Granules that were looked at: indexed ones with packets within the span.
    pub of: u64,
    /// Granules of those in which addresses or ports were too many to be listed.
    pub unlisted: u64,
    /// Whether there were too many keys to count all of them, so that the numbers may be too low.
    pub about: bool,
}

/// Counts in how many granules keys are.
pub(super) struct KeyTally<K> {
    counts: HashMap<K, u64>,
    pub of: u64,
    pub unlisted: u64,
    about: bool,
}

impl<K: Copy + Eq + Hash + Ord> KeyTally<K> {
    pub fn new() -> Self {
        Self { counts: HashMap::new(), of: 0, unlisted: 0, about: false }
    }

    pub fn add(&mut self, key: K, granules: u64) {
        *self.counts.entry(key).or_default() += granules;
        if self.counts.len() > 2 * KEPT {
            self.about = true;
            self.forget_rare();
        }
    }

    /// Adds what another has counted.
    pub fn join(&mut self, other: Self) {
        self.of += other.of;
        self.unlisted += other.unlisted;
        self.about |= other.about;
        for (key, granules) in other.counts {
            self.add(key, granules);
        }
    }

    fn forget_rare(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let excess = counts.len() - KEPT;
        let (_, least, _) = counts.select_nth_unstable(excess - 1);
        let least = *least;
        let mut ties = excess - counts.iter().filter(|count| **count < least).count();
        self.counts.retain(|_, count| {
            let ties_out = *count == least && ties > 0;
            ties -= usize::from(ties_out);
            *count > least || *count == least && !ties_out
        });
    }

    pub fn top(self, n: usize) -> Tops<K> {
        let mut list: Vec<(K, u64)> = self.counts.into_iter().collect();
        list.sort_unstable_by_key(|(key, count)| (Reverse(*count), *key));
        list.truncate(n);
        Tops { list, of: self.of, unlisted: self.unlisted, about: self.about }
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, KeyTally};

    #[test]
    fn the_most_common_come_first() {
        let mut tally = KeyTally::new();
        for (port, granules) in [(53_u16, 2), (443, 7), (80, 2), (53, 3), (22, 1)] {
            tally.add(port, granules);
        }
        tally.of = 10;
        let tops = tally.top(3);
        assert_eq!(tops.list, [(443, 7), (53, 5), (80, 2)]);
        assert!(!tops.about);
    }

    #[test]
    fn however_many_there_are_the_common_ones_stay() {
        let mut tally = KeyTally::new();
        for i in 0..8 * KEPT as u32 {
            tally.add(1_000_000 + i, 1);
            tally.add(i % 10, 2);
            assert!(tally.counts.len() <= 2 * KEPT);
        }
        let tops = tally.top(12);
        assert!(tops.about);
        let common: Vec<u32> = tops.list[..10].iter().map(|(key, _)| *key).collect();
        assert_eq!(common.len(), 10);
        assert!(common.iter().all(|key| *key < 10), "{common:?}");
        assert!(tops.list[..10].iter().all(|(_, n)| *n >= 2 * 8 * KEPT as u64 / 10 - 2));
        assert!(tops.list[10..].iter().all(|(_, n)| *n == 1));
    }
}
