//! Which faults does the user hear of that come again with every look, such as a hook that cannot
//! be attached again? Each when it begins, and once a minute as long as it lasts, with how often it
//! came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::units::show_count;

/// How often the user hears that a fault lasts.
const AGAIN: Duration = Duration::from_secs(60);

/// The faults of the last look, by what they say.
#[derive(Default)]
pub struct FaultLog(BTreeMap<String, Fault>);

struct Fault {
    since: Instant,
    told: Instant,
    times: u64,
}

impl FaultLog {
    /// Takes in all faults of one look. Returns what the user is to be told. A fault that the look
    /// before did not have begins anew.
    pub fn look(&mut self, now: Instant, faults: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut before = std::mem::take(&mut self.0);
        let mut told = Vec::new();
        for text in faults {
            let fault = match before.remove(&text) {
                None => {
                    told.push(text.clone());
                    Fault { since: now, told: now, times: 1 }
                }
                Some(Fault { since, times, told: last }) => {
                    let times = times + 1;
                    let is_due = now.duration_since(last) >= AGAIN;
                    if is_due {
                        let seconds = now.duration_since(since).as_secs();
                        let times = show_count(times);
                        told.push(format!("{text} (still, tried {times} times in {seconds} s)"));
                    }
                    Fault { since, times, told: if is_due { now } else { last } }
                }
            };
            self.0.insert(text, fault);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::FaultLog;

    #[test]
    fn a_fault_is_told_when_it_begins_and_once_a_minute() {
        let began = Instant::now();
        let mut log = FaultLog::default();
        let mut told = Vec::new();
        // Looked at every second; one fault lasts, another comes for a moment, twice.
        for second in 0..130 {
            let mut faults = vec!["vb: busy".to_owned()];
            faults.extend([30, 31, 40].contains(&second).then(|| "vd: no memory".to_owned()));
            let texts = log.look(began + Duration::from_secs(second), faults);
            told.extend(texts.into_iter().map(|text| (second, text)));
        }
        assert_eq!(log.look(began + Duration::from_secs(130), None), [""; 0]);
        let again = log.look(began + Duration::from_secs(131), ["vb: busy".to_owned()]);
        told.extend(again.into_iter().map(|text| (131, text)));
        let expected = [
            (0, "vb: busy"),
            (30, "vd: no memory"),
            (40, "vd: no memory"),
            (60, "vb: busy (still, tried 61 times in 60 s)"),
            (120, "vb: busy (still, tried 121 times in 120 s)"),
            (131, "vb: busy"),
        ];
        assert_eq!(told, expected.map(|(second, text)| (second, text.to_owned())));
    }
}
