//! How long does the writer sleep when no block is complete?
//!
//! As long as the ring that fills fastest needs for a block, as fast as it has filled since the
//! writer looked last; and twice as long each time where nothing comes, up to a bound. The bound is
//! what a ring must outlast when packets come at once after silence.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use tapdeck_packet::ring::Ring;

const SHORTEST: Duration = Duration::from_micros(500);
/// What [`Ring::taken`] counts of a block.
const BLOCK: u64 = 1 << 16;

/// The writer's times of sleep.
#[derive(Debug)]
pub(super) struct Pace {
    /// The bounds, by the interface ids of the rings, and the least of them.
    bounds: BTreeMap<u32, Duration>,
    longest: Duration,
    wait: Duration,
    /// When the rings were looked at last, and how much of each had been taken by then.
    looked: Instant,
    taken: Vec<u64>,
    /// Whether all rings together take longer for a block than the writer may sleep.
    is_slow: bool,
}

impl Pace {
    pub const fn shortest() -> Duration {
        SHORTEST
    }

    pub fn new() -> Self {
        let (bounds, longest, wait) = (BTreeMap::new(), SHORTEST, SHORTEST);
        let (looked, taken, is_slow) = (Instant::now(), Vec::new(), false);
        Self { bounds, longest, wait, looked, taken, is_slow }
    }

    /// Has the bound be no longer than this as long as there are these rings.
    pub fn bind(&mut self, rings: impl Iterator<Item = u32>, longest: Duration) {
        self.bounds.extend(rings.map(|ring| (ring, longest)));
        self.look_for_longest();
    }

    /// Takes note that rings are there no more.
    pub fn forget(&mut self, gone: &Range<u32>) {
        self.bounds.retain(|ring, _| !gone.contains(ring));
        self.look_for_longest();
    }

    fn look_for_longest(&mut self) {
        self.longest = self.bounds.values().copied().min().unwrap_or(SHORTEST).max(SHORTEST);
    }

    /// Returns how long the writer may sleep that has found nothing in these rings to write.
    pub fn sleep(&mut self, rings: &[Box<dyn Ring>], now: Instant) -> Duration {
        let taken: Vec<u64> = rings.iter().map(|ring| ring.taken()).collect();
        let came = taken.iter().zip(&self.taken).map(|(now, then)| now.wrapping_sub(*then));
        let time = now.saturating_duration_since(self.looked);
        let all: u128 = came.clone().map(u128::from).sum();
        self.is_slow = all * self.longest.as_nanos() <= u128::from(BLOCK) * time.as_nanos();
        self.after(came.max().unwrap_or(0), time);
        (self.looked, self.taken) = (now, taken);
        self.wait
    }

    /// Returns whether packets come so slowly, or not at all, that being woken for each block is
    /// less work than looking for it.
    pub fn is_slow(&self) -> bool {
        self.is_slow && self.wait == self.longest
    }

    /// Takes in how much came in a time, at the ring that got most.
    fn after(&mut self, came: u64, time: Duration) {
        self.wait = if came == 0 {
            2 * self.wait
        } else {
            let ns = time.as_nanos() * u128::from(BLOCK) / u128::from(came);
            Duration::from_nanos(ns.try_into().unwrap_or(u64::MAX))
        };
        self.wait = self.wait.clamp(SHORTEST, self.longest);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::time::Duration;

    use super::{BLOCK, Pace, SHORTEST};

    #[test]
    fn it_sleeps_as_long_as_a_block_takes_to_fill() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new();
        pace.bind(0..2, ms(25));
        let mut after = |came: u64, time: Duration| {
            pace.after(came, time);
            pace.wait
        };
        assert_eq!(after(BLOCK / 4, ms(2)), ms(8));
        assert_eq!(after(8 * BLOCK, ms(8)), ms(1));
        assert_eq!(after(1000 * BLOCK, ms(8)), SHORTEST);
        assert_eq!(after(1, ms(8)), ms(25), "a packet now and then");
        assert_eq!(after(BLOCK / 4, ms(1)), ms(4));
        let silence: Vec<Duration> = (0..5).map(|_| after(0, ms(1))).collect();
        assert_eq!(silence, [ms(8), ms(16), ms(25), ms(25), ms(25)]);
        // A counter that was made anew.
        assert_eq!(after(u64::MAX, ms(25)), SHORTEST);
    }

    #[test]
    fn a_bound_is_that_of_the_rings_that_are_there() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new();
        let mut after_silence = |gone: Range<u32>, come: Range<u32>, longest: Duration| {
            pace.forget(&gone);
            pace.bind(come, longest);
            pace.after(1, ms(1000));
            pace.wait
        };
        assert_eq!(after_silence(0..0, 0..2, ms(25)), ms(25));
        assert_eq!(after_silence(0..0, 2..4, ms(8)), ms(8));
        assert_eq!(after_silence(2..4, 2..3, ms(50)), ms(25));
        assert_eq!(after_silence(0..2, 0..2, ms(100)), ms(50));
    }

    #[test]
    fn a_bound_below_the_shortest_sleep_is_none() {
        let mut pace = Pace::new();
        pace.bind(0..1, Duration::ZERO);
        pace.after(0, Duration::ZERO);
        assert_eq!(pace.wait, SHORTEST);
    }
}
