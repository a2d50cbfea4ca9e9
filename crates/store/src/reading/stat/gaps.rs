//! Where are packets missing, and how many? Where is payload missing, and how much?
//!
//! The index knows losses by granule. Under overload nearly every granule tells of some, so what
//! lies close together is one gap: the list stays as short as the story is.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Losses of an interface that are less than a second apart are one gap.
const JOINED_NS: i64 = 1_000_000_000;
/// How many gaps are kept; of more, the largest.
const MOST: usize = 10_000;

/// What can be lost in a gap: packets, by their number, or what was shed.
pub trait Loss: Copy + Default + Ord + AddAssign {}

impl<L: Copy + Default + Ord + AddAssign> Loss for L {}

/// A time in which something was lost: packets, unless another kind of loss is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap<L = u64> {
    /// The interface; `None` where the statistics of a segment alone tell of the gap: at the end
    /// of a recording, behind its last packet.
    pub interface: Option<String>,
    /// The time of the first packet in the granules that tell of the gap, UTC nanoseconds.
    pub first_ns: i64,
    /// The time of the last packet in those granules.
    pub last_ns: i64,
    /// What was lost.
    pub lost: L,
}

/// All gaps, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps<L = u64> {
    pub list: Vec<Gap<L>>,
    /// How many smaller gaps are not in the list.
    pub more: u64,
    /// What was lost in the smaller gaps.
    pub more_lost: L,
}

impl<L: Loss> Gaps<L> {
    /// Returns how many gaps there are.
    pub fn count(&self) -> u64 {
        self.list.len() as u64 + self.more
    }

    /// Returns what was lost in all gaps.
    pub fn lost(&self) -> L {
        let mut lost = self.more_lost;
        for gap in &self.list {
            lost += gap.lost;
        }
        lost
    }
}

/// Gaps while they are found.
#[derive(Default)]
pub(super) struct Finder<L = u64> {
    /// Last time and losses of each gap, by interface and first time.
    found: BTreeMap<Option<String>, BTreeMap<i64, (i64, L)>>,
    count: usize,
    more: u64,
    more_lost: L,
}

impl<L: Loss> Finder<L> {
    pub fn add(&mut self, interface: Option<&str>, first_ns: i64, last_ns: i64, lost: L) {
        let gaps = self.found.entry(interface.map(str::to_owned)).or_default();
        let (mut first_ns, mut last_ns, mut lost) = (first_ns, last_ns, lost);
        // No gap is close to another, so the last that begins early enough is the first to look at.
        while let Some((&begin, &(end, more))) = gaps
            .range(..=last_ns.saturating_add(JOINED_NS))
            .next_back()
            .filter(|(_, (end, _))| end.saturating_add(JOINED_NS) >= first_ns)
        {
            gaps.remove(&begin);
            self.count -= 1;
            first_ns = first_ns.min(begin);
            last_ns = last_ns.max(end);
            lost += more;
        }
        gaps.insert(first_ns, (last_ns, lost));
        self.count += 1;
        if self.count > 2 * MOST {
            self.forget_small();
        }
    }

    fn forget_small(&mut self) {
        let mut sizes: Vec<L> =
            self.found.values().flat_map(BTreeMap::values).map(|(_, lost)| *lost).collect();
        let excess = sizes.len().saturating_sub(MOST);
        if excess == 0 {
            return;
        }
        sizes.sort_unstable();
        let least = sizes[excess - 1];
        let mut ties = excess - sizes.partition_point(|lost| *lost < least);
        for gaps in self.found.values_mut() {
            gaps.retain(|_, (_, lost)| {
                let ties_out = *lost == least && ties > 0;
                ties -= usize::from(ties_out);
                let goes = *lost < least || ties_out;
                if goes {
                    self.count -= 1;
                    self.more += 1;
                    self.more_lost += *lost;
                }
                !goes
            });
        }
    }

    pub fn finish(mut self) -> Gaps<L> {
        self.forget_small();
        let mut list = Vec::with_capacity(self.count);
        for (interface, gaps) in self.found {
            let gap = |(first_ns, (last_ns, lost))| {
                let interface = interface.clone();
                Gap { interface, first_ns, last_ns, lost }
            };
            list.extend(gaps.into_iter().map(gap));
        }
        list.sort_by_key(|gap| (gap.first_ns, gap.last_ns));
        Gaps { list, more: self.more, more_lost: self.more_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::{Finder, Gap, MOST};

    const SECOND: i64 = 1_000_000_000;

    fn gap(interface: &str, first_ns: i64, last_ns: i64, lost: u64) -> Gap {
        Gap { interface: Some(interface.into()), first_ns, last_ns, lost }
    }

    #[test]
    fn what_is_close_is_one_gap_in_whatever_order_it_comes() {
        let mut pieces = vec![(0, 5, 1), (3, 7, 2), (SECOND + 7, 2 * SECOND, 3)];
        pieces.extend([(9 * SECOND, 9 * SECOND + 1, 4)]);
        for _ in 0..pieces.len() {
            pieces.rotate_left(1);
            let mut finder = Finder::default();
            for (first_ns, last_ns, lost) in &pieces {
                finder.add(Some("eth0"), *first_ns, *last_ns, *lost);
            }
            finder.add(Some("eth1"), 4, 4, 9);
            let gaps = finder.finish();
            let expected = [
                gap("eth0", 0, 2 * SECOND, 6),
                gap("eth1", 4, 4, 9),
                gap("eth0", 9 * SECOND, 9 * SECOND + 1, 4),
            ];
            assert_eq!(gaps.list, expected);
            assert_eq!((gaps.count(), gaps.lost(), gaps.more), (3, 19, 0));
        }
        // One piece joins two gaps.
        let mut finder = Finder::default();
        for (first_ns, last_ns) in [(0, 1), (3 * SECOND, 3 * SECOND), (1, 3 * SECOND - 1)] {
            finder.add(Some("eth0"), first_ns, last_ns, 1);
        }
        assert_eq!(finder.finish().list, [gap("eth0", 0, 3 * SECOND, 3)]);
    }

    #[test]
    fn of_too_many_the_largest_stay() {
        let mut finder = Finder::default();
        let all = 5 * MOST as i64;
        for i in 0..all {
            finder.add(Some("eth0"), i * 9 * SECOND, i * 9 * SECOND, 1 + (i % 100) as u64);
        }
        let gaps = finder.finish();
        assert_eq!((gaps.list.len(), gaps.count()), (MOST, all as u64));
        assert_eq!(gaps.lost(), all as u64 / 100 * 5050);
        let largest = gaps.list.iter().filter(|gap| gap.lost == 100).count();
        assert_eq!(largest as i64, all / 100);
    }
}
