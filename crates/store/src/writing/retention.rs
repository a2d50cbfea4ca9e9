//! Which segments may stay? Arithmetic on names and sizes: the [`keeper`](super::keeper) does the
//! deleting.

use std::time::Duration;

use crate::format::store::Stored;
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

    /// Returns how many of the closed segments, oldest first, must go. `coming` bytes and `live`
    /// segments are being written besides, or about to be. `space` is how the file system stands.
    pub fn surplus(
        &self,
        closed: &[Stored],
        coming: u64,
        live: u64,
        now_s: i64,
        space: Option<Space>,
    ) -> usize {
        let age_s = self.age.map(|a| i64::try_from(a.as_secs()).unwrap_or(i64::MAX));
        let mut bytes: u64 = closed.iter().map(Stored::bytes_in_all).sum();
        let mut free = space.map(|s| s.free);
        let mut go = 0;
        for (i, segment) in closed.iter().enumerate() {
            let too_many = self.segments.is_some_and(|n| (closed.len() - i) as u64 + live > n);
            let too_large = self.bytes.is_some_and(|b| bytes + coming > b);
            // A segment is as old as its youngest packet, so as the beginning of the next one.
            let ended_s = closed.get(i + 1).map_or(now_s, |next| next.name.began_s);
            let too_old = age_s.is_some_and(|age_s| now_s - ended_s > age_s);
            let too_full = match (self.min_free, space, free) {
                (Some(min), Some(space), Some(free)) => {
                    free < min.bytes(space.total).saturating_add(coming)
                }
                _ => false,
            };
            if !(too_many || too_large || too_old || too_full) {
                break;
            }
            bytes -= segment.bytes_in_all();
            free = free.map(|f| f + segment.bytes_in_all());
            go = i + 1;
        }
        go
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MinFree, Retention};
    use crate::format::name::SegmentName;
    use crate::format::store::Stored;
    use crate::io::Space;

    fn segments(n: u64) -> Vec<Stored> {
        (0..n)
            .map(|i| Stored {
                name: SegmentName { number: i, began_s: i as i64 * 60, live: false },
                bytes: 98,
                index_bytes: 2,
                packets: None,
            })
            .collect()
    }

    #[test]
    fn nothing_goes_without_a_limit() {
        let space = Some(Space { free: 0, total: 1000 });
        assert_eq!(Retention::default().surplus(&segments(9), 100, 1, 1 << 40, space), 0);
    }

    #[test]
    fn the_oldest_go_and_as_many_as_are_needed() {
        let kept = segments(5);
        let by_bytes = Retention { bytes: Some(350), ..Retention::default() };
        assert_eq!(by_bytes.surplus(&kept, 100, 1, 0, None), 3);
        let by_count = Retention { segments: Some(3), ..Retention::default() };
        assert_eq!(by_count.surplus(&kept, 0, 1, 0, None), 3);
        assert_eq!(by_count.surplus(&kept, 0, 0, 0, None), 2);
        // The segment begun at 120 s ended when the next began, at 180 s.
        let by_age = Retention { age: Some(Duration::from_secs(100)), ..Retention::default() };
        assert_eq!(by_age.surplus(&kept, 0, 1, 281, None), 3);
        let for_ever = Retention { age: Some(Duration::MAX), ..Retention::default() };
        assert_eq!(for_ever.surplus(&kept, 0, 1, 281, None), 0);
        let space = Some(Space { free: 40, total: 1000 });
        let by_room = Retention { min_free: Some(MinFree::Share(0.25)), ..Retention::default() };
        assert_eq!(by_room.surplus(&kept, 0, 1, 0, space), 3);
        let by_room = Retention { min_free: Some(MinFree::Bytes(100)), ..Retention::default() };
        assert_eq!(by_room.surplus(&kept, 100, 1, 0, space), 2);
    }

    #[test]
    fn no_more_go_than_there_are() {
        let space = Some(Space { free: 0, total: 1000 });
        let all = Retention { min_free: Some(MinFree::Share(1.0)), ..Retention::default() };
        assert_eq!(all.surplus(&segments(3), 100, 1, 0, space), 3);
    }
}
