//! For how long do packets stay? What a store was given in the last day that it was recorded in
//! tells how fast it fills, and so when retention, or the disk, is at its end.

use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use tapdeck_store::{MinFree, Retention, Store, Stored};

use crate::units::show_bytes;

const DAY_S: f64 = 86_400.0;

/// What is in a store, and how fast it was filled on its last day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filling {
    pub bytes: u64,
    pub segments: usize,
    /// Bytes and segments a second; `None` where too little was recorded to tell.
    rate: Option<(f64, f64)>,
}

/// The space of a file system.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

impl Filling {
    /// Looks at a store; `None` where there is none.
    pub fn of(dir: &Path) -> io::Result<Option<Self>> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let segments = Store::segments(dir)?;
        // A closed segment was written to until it was closed, and a live one is still.
        let end_s = |segment: &Stored| -> Option<f64> {
            let written = segment.name.path(dir).metadata().ok()?.modified().ok()?;
            Some(written.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
        };
        let spans = segments.iter().filter_map(|segment| {
            let bytes = segment.bytes + segment.index_bytes;
            Some((segment.name.began_s as f64, end_s(segment)?, bytes))
        });
        let spans: Vec<(f64, f64, u64)> = spans.collect();
        let bytes = spans.iter().map(|span| span.2).sum();
        Ok(Some(Self { bytes, segments: spans.len(), rate: rate(&spans) }))
    }

    /// Says how long packets stay.
    pub fn say(&self, retention: &Retention, space: Space) -> String {
        let Some((bytes_a_s, segments_a_s)) = self.rate else {
            return "too little was recorded to tell how long packets stay".into();
        };
        let left = match retention.min_free {
            Some(MinFree::Bytes(bytes)) => bytes,
            Some(MinFree::Share(share)) => (space.total as f64 * share) as u64,
            None => 0,
        };
        let room = self.bytes.saturating_add(space.free.saturating_sub(left));
        let limits = [
            Some(room as f64 / bytes_a_s),
            retention.bytes.map(|bytes| bytes as f64 / bytes_a_s),
            retention.age.map(|age| age.as_secs_f64()),
            retention.segments.map(|segments| segments as f64 / segments_a_s),
        ];
        let seconds = limits.into_iter().flatten().fold(f64::INFINITY, f64::min);
        let days = seconds / DAY_S;
        let days = if days < 10.0 { format!("{days:.1}") } else { format!("{days:.0}") };
        let a_day = show_bytes((bytes_a_s * DAY_S) as u64);
        if retention.deletes() {
            format!("packets stay for {days} days at the last day's rate, {a_day} a day")
        } else {
            format!(
                "nothing is deleted; the disk is full in {days} days at the last day's rate, {a_day} a day"
            )
        }
    }
}

/// Returns bytes and segments a second of the last day, from when each segment began and ended, and
/// its bytes.
fn rate(spans: &[(f64, f64, u64)]) -> Option<(f64, f64)> {
    let last = spans.iter().map(|span| span.1).reduce(f64::max)?;
    let first = spans.iter().map(|span| span.0).reduce(f64::min)?;
    let from = first.max(last - DAY_S);
    let covered = last - from;
    if covered < 1.0 {
        return None;
    }
    let (mut bytes, mut segments) = (0.0, 0.0);
    for (begin, end, size) in spans {
        // What began and ended in the same second is there as a whole.
        let share = match end - begin {
            lasts if lasts > 0.0 => ((end - begin.max(from)) / lasts).clamp(0.0, 1.0),
            _ => f64::from(*end >= from),
        };
        bytes += share * *size as f64;
        segments += share;
    }
    (bytes > 0.0).then_some((bytes / covered, segments / covered))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tapdeck_store::{MinFree, Retention};

    use super::{Filling, Space, rate};

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_last_day_tells_the_rate() {
        let day = 86_400.0;
        // Much in the days before, and half of a segment that lasted two days.
        let spans = [(0.0, 10.0 * day, 1000 * GIB), (10.0 * day, 12.0 * day, 4 * GIB)];
        let (bytes, segments) = rate(&spans).expect("a day is enough");
        assert_eq!((bytes * day).round() as u64, 2 * GIB);
        assert!((segments * day - 0.5).abs() < 1e-9);
        // An hour that was recorded tells it, too; a moment does not.
        let (bytes, _) = rate(&[(0.0, 3600.0, GIB)]).expect("an hour is enough");
        assert_eq!((bytes * 3600.0).round() as u64, GIB);
        assert_eq!(rate(&[(5.0, 5.5, GIB)]), None);
        assert_eq!(rate(&[]), None);
    }

    #[test]
    fn the_narrowest_limit_counts() {
        let filling = |rate| Filling { bytes: 10 * GIB, segments: 10, rate };
        let a_day = filling(Some((GIB as f64 / 86_400.0, 2.0 / 86_400.0)));
        let space = Space { free: 90 * GIB, total: 200 * GIB };
        let keep = |retention: Retention| a_day.say(&retention, space);
        let none = Retention::default();
        for (retention, said) in [
            (Retention { bytes: Some(50 * GIB), ..none }, "packets stay for 50 days"),
            (Retention { age: Some(Duration::from_secs(7 * 86_400)), ..none }, "for 7.0 days"),
            (Retention { segments: Some(8), ..none }, "for 4.0 days"),
            (Retention { min_free: Some(MinFree::Bytes(60 * GIB)), ..none }, "for 40 days"),
            (Retention { min_free: Some(MinFree::Share(0.25)), ..none }, "for 50 days"),
            (
                Retention { bytes: Some(50 * GIB), segments: Some(8), ..none },
                "for 4.0 days at the last day's rate, 1.0 GiB a day",
            ),
            (none, "nothing is deleted; the disk is full in 100 days"),
        ] {
            let told = keep(retention);
            assert!(told.contains(said), "{retention:?}: {told}");
        }
        assert!(filling(None).say(&none, space).contains("too little"));
    }
}
