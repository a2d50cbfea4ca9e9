//! What does the user hear of an output that takes nothing? That it stalls, once a minute that it
//! still does, and that it goes on; each time with what was lost meanwhile. And of one that takes
//! long to make durable what it took? That a power cut would take more than was agreed.

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use crate::units::counted;

/// How often the user hears that the output still stalls.
const AGAIN: Duration = Duration::from_secs(60);

/// Whether the output stalls.
#[derive(Default)]
pub struct StallWatch(Option<Stall>);

struct Stall {
    since: Instant,
    told: Instant,
    /// Packets that had been dropped before.
    lost_before: u64,
}

impl StallWatch {
    /// Takes in the number of the error that keeps the output from being written, or 0. `lost`
    /// counts the packets dropped so far. Returns what the user is to be told.
    pub fn look(&mut self, now: Instant, errno: u64, lost: impl FnOnce() -> u64) -> Option<String> {
        match &mut self.0 {
            None if errno == 0 => None,
            None => {
                self.0 = Some(Stall { since: now, told: now, lost_before: lost() });
                Some(format!(
                    "{}; packets wait in memory, then they are dropped and counted",
                    what(errno)
                ))
            }
            Some(stall) if errno == 0 => {
                let text = format!(
                    "writing goes on after {:.1} s; {} dropped meanwhile",
                    now.duration_since(stall.since).as_secs_f64(),
                    counted(lost().saturating_sub(stall.lost_before), "packet")
                );
                self.0 = None;
                Some(text)
            }
            Some(stall) if now.duration_since(stall.told) >= AGAIN => {
                stall.told = now;
                Some(format!(
                    "still, since {} s: {}; {} dropped meanwhile",
                    now.duration_since(stall.since).as_secs(),
                    what(errno),
                    counted(lost().saturating_sub(stall.lost_before), "packet")
                ))
            }
            Some(_) => None,
        }
    }
}

/// Whether the output is made durable in time.
pub struct SyncWatch {
    interval: Duration,
    /// The sync that is under way, and since when it was seen.
    seen: Option<(u64, Instant)>,
    told: Option<Instant>,
}

impl SyncWatch {
    /// Watches whether syncs keep to `--sync-interval`.
    pub fn new(interval: Duration) -> Self {
        Self { interval, seen: None, told: None }
    }

    /// Takes in which sync is under way, or 0. Returns what the user is to be told, once a minute.
    pub fn look(&mut self, now: Instant, under_way: u64) -> Option<String> {
        let since = match self.seen {
            Some((sync, since)) if sync == under_way => since,
            _ => self.seen.insert((under_way, now)).1,
        };
        let lasts = now.duration_since(since);
        // Syncs begin half an interval apart.
        let is_late = under_way != 0 && lasts > self.interval / 2;
        if !is_late || self.told.is_some_and(|told| now.duration_since(told) < AGAIN) {
            return None;
        }
        self.told = Some(now);
        Some(format!(
            "the disk is slow to make packets durable: a sync has taken {:.1} s so far; until it ends, a power cut may take more than the last {:?} (--sync-interval)",
            lasts.as_secs_f64(),
            self.interval
        ))
    }
}

fn what(errno: u64) -> String {
    let e = Error::from_raw_os_error(errno as i32);
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "the disk is full".into(),
        _ => format!("cannot write: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::io::Errno;

    use super::{StallWatch, SyncWatch};

    #[test]
    fn a_sync_that_takes_half_the_interval_is_told_once_a_minute() {
        let began = Instant::now();
        let mut watch = SyncWatch::new(Duration::from_secs(4));
        let mut told = Vec::new();
        let syncs = [0, 1, 0, 2, 2, 2, 2, 0, 3, 3, 3, 3].into_iter().chain([3; 70]);
        for (second, sync) in (0..).zip(syncs) {
            let text = watch.look(began + Duration::from_secs(second), sync);
            told.extend(text.map(|text| (second, text)));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [6, 66], "{told:?}");
        assert!(told[0].1.contains("3.0 s so far") && told[0].1.contains("last 4s"), "{told:?}");
        assert!(told[1].1.contains("58.0 s so far"), "{told:?}");
    }

    #[test]
    fn a_stall_is_told_when_it_begins_once_a_minute_and_when_it_ends() {
        let began = Instant::now();
        let full = Errno::NOSPC.raw_os_error() as u64;
        let mut watch = StallWatch::default();
        let mut told = Vec::new();
        // Looked at every 20 seconds; a packet is lost each second.
        for (second, errno) in [0, full, full, full, full, full, full, full, full, 0, 0, full]
            .into_iter()
            .enumerate()
            .map(|(look, errno)| (look as u64 * 20, errno))
        {
            let text = watch.look(began + Duration::from_secs(second), errno, || second);
            told.extend(text.map(|text| (second, text)));
        }
        let seconds: Vec<u64> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [20, 80, 140, 180, 220], "{told:?}");
        assert!(told[0].1.contains("the disk is full"), "{told:?}");
        assert!(told[1].1.contains("since 60 s") && told[1].1.contains("60 packets"), "{told:?}");
        assert!(told[2].1.contains("120 packets"), "{told:?}");
        assert!(told[3].1.contains("goes on after 160.0 s; 160 packets"), "{told:?}");
    }
}
