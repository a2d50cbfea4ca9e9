//! Which segments may stay, and how fast may the others go? Arithmetic on numbers alone: the
//! [`holdings`](super::holdings) do the deleting.

use std::time::Duration;

use crate::io::Space;

/// How much to keep. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Retention {
    pub bytes: Option<u64>,
    pub age: Option<Duration>,
    pub segments: Option<u64>,
    /// Space on the file system that is left to others.
    pub min_free: Option<MinFree>,
}

/// Free space, in bytes or as a share of the file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MinFree {
    Bytes(u64),
    Share(f64),
}

impl MinFree {
    fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(b) => b,
            Self::Share(s) => (total as f64 * s) as u64,
        }
    }
}

impl Retention {
    /// Returns whether anything is limited, so that segments may be deleted.
    pub fn deletes(&self) -> bool {
        *self != Self::default()
    }

    /// Returns whether a store of so many bytes and segments is larger than it may be. Nothing but
    /// recording makes a store larger.
    pub fn is_too_large(&self, bytes: u64, segments: u64) -> bool {
        self.bytes.is_some_and(|most| bytes > most)
            || self.segments.is_some_and(|most| segments > most)
    }

    /// Returns whether a segment is too old whose last packet came so many nanoseconds ago. The
    /// age counts in whole seconds.
    pub fn is_too_old(&self, age_ns: i64) -> bool {
        let age_s = u64::try_from(age_ns / 1_000_000_000).unwrap_or(0);
        self.age.is_some_and(|most| age_s > most.as_secs())
    }

    /// Returns whether less is free than shall be, once `coming` bytes more are taken.
    pub fn lacks_room(&self, space: Space, coming: u64) -> bool {
        self.min_free.is_some_and(|min| space.free < min.bytes(space.total).saturating_add(coming))
    }
}

/// How many bytes may be deleted: as many as are written, and two segments more. So nothing
/// that happens to the disk or the clock empties a store faster than recording fills it.
#[derive(Debug)]
pub(crate) struct Allowance {
    most: u64,
    left: u64,
    /// Bytes that had been written when `left` was worked out.
    written: u64,
}

impl Allowance {
    /// Begins with two segments, of `segment_bytes` each.
    pub fn new(segment_bytes: u64, written: u64) -> Self {
        let most = segment_bytes.saturating_mul(2);
        Self { most, left: most, written }
    }

    /// Takes note that there is a segment of so many bytes, which may be more than others have.
    pub fn know(&mut self, segment_bytes: u64) {
        let most = segment_bytes.saturating_mul(2);
        if most > self.most {
            self.left += most - self.most;
            self.most = most;
        }
    }

    /// Takes note of how many bytes have been written in all.
    pub fn wrote(&mut self, written: u64) {
        let more = written.saturating_sub(self.written);
        self.left = self.left.saturating_add(more).min(self.most);
        self.written = self.written.max(written);
    }

    pub fn allows(&self, bytes: u64) -> bool {
        bytes <= self.left
    }

    /// Takes note that so many bytes were deleted. Up to `uncounted` bytes may have been written
    /// before that which [`Allowance::wrote`] was not told of: what would have been too much for
    /// the allowance then is not given later either.
    pub fn spend(&mut self, bytes: u64, uncounted: u64) {
        self.written += self.left.saturating_add(uncounted).saturating_sub(self.most);
        self.left = self.left.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Allowance, MinFree, Retention};
    use crate::io::Space;

    const SECOND: i64 = 1_000_000_000;

    /// How many segments of 100 bytes go, of so many, until nothing says any more that one must.
    fn go(segments: u64, too_many: impl Fn(u64) -> bool) -> u64 {
        (0..=segments).find(|gone| !too_many(segments - gone)).unwrap_or(segments)
    }

    #[test]
    fn nothing_goes_without_a_limit() {
        let space = Space { free: 0, total: 1000 };
        let none = Retention::default();
        assert!(!none.deletes() && !none.is_too_large(u64::MAX, u64::MAX));
        assert!(!none.is_too_old(i64::MAX) && !none.lacks_room(space, 100));
    }

    #[test]
    fn the_oldest_go_and_as_many_as_are_needed() {
        let by_bytes = Retention { bytes: Some(350), ..Retention::default() };
        assert_eq!(go(5, |n| by_bytes.is_too_large(n * 100 + 100, n)), 3);
        let by_count = Retention { segments: Some(3), ..Retention::default() };
        assert_eq!(go(5, |n| by_count.is_too_large(0, n + 1)), 3);
        assert_eq!(go(5, |n| by_count.is_too_large(0, n)), 2);
        let by_age = Retention { age: Some(Duration::from_secs(100)), ..Retention::default() };
        assert!(by_age.is_too_old(101 * SECOND) && !by_age.is_too_old(100 * SECOND));
        assert!(!by_age.is_too_old(i64::MIN));
        let for_ever = Retention { age: Some(Duration::MAX), ..Retention::default() };
        assert!(!for_ever.is_too_old(i64::MAX));
        let space = |n: u64| Space { free: 40 + (5 - n) * 100, total: 1000 };
        let by_room = Retention { min_free: Some(MinFree::Share(0.25)), ..Retention::default() };
        assert_eq!(go(5, |n| by_room.lacks_room(space(n), 0)), 3);
        let by_room = Retention { min_free: Some(MinFree::Bytes(100)), ..Retention::default() };
        assert_eq!(go(5, |n| by_room.lacks_room(space(n), 100)), 2);
        let all = Retention { min_free: Some(MinFree::Bytes(u64::MAX)), ..Retention::default() };
        assert_eq!(go(3, |n| n > 0 && all.lacks_room(space(n), 100)), 3);
    }

    #[test]
    fn in_no_span_more_may_go_than_is_written_in_it_and_two_segments() {
        let mut rng = tapdeck_testkit::SplitMix64(7);
        let mut allowance = Allowance::new(100, 0);
        // What was written and deleted up to each moment.
        let mut history = vec![(0, 0)];
        for _ in 0..2000 {
            let (mut written, mut deleted) = *history.last().expect("it begins with one");
            let before = written;
            if rng.per_mille(300) {
                written += rng.draw() % 150;
                history.push((written, deleted));
            }
            // Half of what is written is counted late, after something was deleted.
            let told = if rng.per_mille(500) { written } else { before };
            allowance.wrote(told);
            let bytes = 1 + rng.draw() % 100;
            // Seldom enough that as much may go as ever may, at times.
            if rng.per_mille(300) && allowance.allows(bytes) {
                allowance.spend(bytes, written - told);
                deleted += bytes;
            }
            history.push((written, deleted));
        }
        for (i, (written, deleted)) in history.iter().enumerate() {
            for (written_before, deleted_before) in &history[..i] {
                assert!(deleted - deleted_before <= written - written_before + 200);
            }
        }
        assert!(history.last().expect("many").1 > 10_000, "what may go does");
    }

    #[test]
    fn one_segment_may_go_however_large_it_is() {
        let mut allowance = Allowance::new(100, 0);
        assert!(!allowance.allows(1000));
        allowance.know(1000);
        assert!(allowance.allows(2000) && !allowance.allows(2001));
        allowance.know(50);
        allowance.spend(2000, 0);
        allowance.wrote(99);
        assert!(allowance.allows(99) && !allowance.allows(100));
    }
}
