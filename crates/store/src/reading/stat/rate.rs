//! How much was recorded when? For a recording of which nobody knows the length before all of it
//! was seen.
//!
//! Amounts are kept in bins of a power of two nanoseconds. When there are too many bins, two
//! neighbours become one.

use std::collections::BTreeMap;

/// The logarithm to base 2 of the finest bins' length in nanoseconds: about a microsecond.
const FINEST: u32 = 10;
const MOST: usize = 4096;

/// What was recorded within some time: packets, and bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub packets: f64,
    pub bytes: f64,
}

impl Amount {
    fn add(&mut self, other: Self, share: f64) {
        self.packets += other.packets * share;
        self.bytes += other.bytes * share;
    }
}

/// Packets and bytes over time.
#[derive(Clone, Debug)]
pub struct Rate {
    /// The logarithm to base 2 of a bin's length in nanoseconds.
    shift: u32,
    /// The amount in each bin, by time divided by a bin's length.
    bins: BTreeMap<i64, Amount>,
}

impl Rate {
    pub(super) fn new() -> Self {
        Self { shift: FINEST, bins: BTreeMap::new() }
    }

    /// Adds an amount that came evenly from `first_ns` to `last_ns`, both included.
    pub(super) fn add(&mut self, first_ns: i64, last_ns: i64, amount: Amount) {
        while (last_ns >> self.shift) - (first_ns >> self.shift) >= MOST as i64 / 4 {
            self.coarsen();
        }
        let (first, end) = (i128::from(first_ns), i128::from(last_ns) + 1);
        for number in first_ns >> self.shift..=last_ns >> self.shift {
            let begin = i128::from(number) << self.shift;
            let part = end.min(begin + (1 << self.shift)) - first.max(begin);
            let share = part as f64 / (end - first) as f64;
            self.bins.entry(number).or_default().add(amount, share);
        }
        while self.bins.len() > MOST {
            self.coarsen();
        }
    }

    /// Adds what another has.
    pub(super) fn join(&mut self, mut other: Self) {
        while self.shift < other.shift {
            self.coarsen();
        }
        while other.shift < self.shift {
            other.coarsen();
        }
        for (number, amount) in other.bins {
            self.bins.entry(number).or_default().add(amount, 1.0);
        }
        while self.bins.len() > MOST {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        self.shift += 1;
        for (number, amount) in std::mem::take(&mut self.bins) {
            self.bins.entry(number >> 1).or_default().add(amount, 1.0);
        }
    }

    /// Returns the amounts in `n` equal parts of the time from `first_ns` to `last_ns`, within
    /// which all of the recording lies; as exact as a 500th of that time, about.
    pub fn parts(&self, n: usize, first_ns: i64, last_ns: i64) -> Vec<Amount> {
        let (first, end) = (i128::from(first_ns), i128::from(last_ns) + 1);
        let mut parts = vec![Amount::default(); n];
        if n == 0 || end <= first {
            return parts;
        }
        let place = |at: i128| (at - first) as f64 * n as f64 / (end - first) as f64;
        for (number, amount) in &self.bins {
            let begin = i128::from(*number) << self.shift;
            let from = place(begin.clamp(first, end - 1));
            let to = place((begin + (1 << self.shift)).clamp(first + 1, end));
            let (i, reached) = (from as usize, (to as usize).min(n - 1));
            for (i, part) in (i..).zip(&mut parts[i..=reached]) {
                let inside = to.min(i as f64 + 1.0) - from.max(i as f64);
                part.add(*amount, inside.max(0.0) / (to - from));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, MOST, Rate};

    const T0: i64 = 1_767_323_045_000_000_000;

    fn packets(rate: &Rate, n: usize, first_ns: i64, last_ns: i64) -> Vec<f64> {
        rate.parts(n, first_ns, last_ns).iter().map(|a| (a.packets * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn what_comes_evenly_is_spread_evenly() {
        let mut rate = Rate::new();
        rate.add(T0, T0 + 9_999, Amount { packets: 100.0, bytes: 1000.0 });
        assert_eq!(packets(&rate, 4, T0, T0 + 9_999), [25.0; 4]);
        assert_eq!(rate.parts(1, T0, T0 + 9_999)[0].bytes.round() as u64, 1000);
        // A bin goes beyond the end.
        let halves = packets(&rate, 2, T0, T0 + 19_999);
        assert!(halves[0] > 95.0 && halves[1] < 5.0, "{halves:?}");
        assert_eq!((halves[0] + halves[1]).round() as i64, 100);
    }

    #[test]
    fn one_moment_is_enough() {
        let mut rate = Rate::new();
        rate.add(T0, T0, Amount { packets: 3.0, bytes: 0.0 });
        assert_eq!(packets(&rate, 1, T0, T0), [3.0]);
        assert_eq!(packets(&rate, 60, T0, T0).iter().sum::<f64>().round() as i64, 3);
    }

    #[test]
    fn days_need_no_more_memory_and_lose_nothing() {
        let mut rate = Rate::new();
        let hour = 3_600_000_000_000;
        // Much in the first half hour of each hour, little in the second, and times as no clock has
        // them.
        for i in 0..200 * 1800 {
            let at = T0 + i * 2_000_000_000;
            let packets = if (at - T0) % hour < hour / 2 { 9.0 } else { 1.0 };
            rate.add(at, at + 999_999_999, Amount { packets, bytes: 0.0 });
        }
        assert!(rate.bins.len() <= MOST);
        let parts = packets(&rate, 400, T0, T0 + 200 * hour - 1);
        let sum: f64 = parts.iter().sum();
        assert_eq!(sum.round() as i64, 200 * 900 * 10);
        assert!(parts.iter().step_by(2).all(|n| *n > 6.0 * 900.0), "{parts:?}");
        assert!(parts.iter().skip(1).step_by(2).all(|n| *n < 4.0 * 900.0), "{parts:?}");
        rate.add(i64::MIN, i64::MIN, Amount { packets: 1.0, bytes: 0.0 });
        rate.add(i64::MAX - 5, i64::MAX, Amount { packets: 1.0, bytes: 0.0 });
        let parts = packets(&rate, 2, i64::MIN, i64::MAX);
        assert_eq!(parts.iter().sum::<f64>().round() as i64, 200 * 900 * 10 + 2);
    }
}
