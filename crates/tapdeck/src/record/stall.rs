//! What does the user hear of an output that takes nothing? That it stalls, once a minute that it
//! still does, and that it goes on; each time with what was lost meanwhile.

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use crate::units::show_count;

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
                    "writing goes on after {:.1} s; {} packets were dropped meanwhile",
                    now.duration_since(stall.since).as_secs_f64(),
                    show_count(lost().saturating_sub(stall.lost_before))
                );
                self.0 = None;
                Some(text)
            }
            Some(stall) if now.duration_since(stall.told) >= AGAIN => {
                stall.told = now;
                Some(format!(
                    "still, since {} s: {}; {} packets were dropped meanwhile",
                    now.duration_since(stall.since).as_secs(),
                    what(errno),
                    show_count(lost().saturating_sub(stall.lost_before))
                ))
            }
            Some(_) => None,
        }
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

    use super::StallWatch;

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
