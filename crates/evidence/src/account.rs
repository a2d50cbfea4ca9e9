//! What does a recording lack in a span of time, and when? A packet that is not in evidence may
//! never have been sent; an account says whether that can be known.
//!
//! An account is of everything that was recorded in the span, also of what no question asked for: a
//! packet that was lost might have been one that was.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tapdeck_packet::printable::counted;
use tapdeck_store::io::Storage;
use tapdeck_store::query::Span;
use tapdeck_store::recorded::recorded;
use tapdeck_store::stat::{Gap, Question, Report, stat_in};

use crate::error::Error;
use crate::time::Time;

/// How long a packet takes to disk at most, where nothing stalls: the recorder's usual `--flush` of
/// a second, and some more.
pub const LAG_NS: i64 = 5_000_000_000;
/// How many entries a list has; of more, the first.
const MOST: usize = 10_000;

/// What a recording lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Whether nothing is known that is lacking: all else here is nothing.
    pub complete: bool,
    /// Packets that the recorder dropped.
    pub lost: Lost,
    /// Payload that was given up under load.
    pub shed: Shed,
    /// What the user asked not to keep of long flows.
    pub cutoff: Cutoff,
    /// Packets that interfaces received and no hook was shown.
    pub unseen: Unseen,
    /// Times in which nobody recorded, as far as the store tells.
    pub unrecorded: Vec<Unrecorded>,
    /// Packets that were recorded and cannot be read: damage, missing segments; a sentence each.
    pub faults: Vec<String>,
}

/// Packets that were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    pub packets: u64,
    pub times: Vec<Interval>,
    /// How many times are not in the list.
    pub times_omitted: u64,
}

/// Payload that was shed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shed {
    pub packets: u64,
    pub bytes: u64,
    pub times: Vec<Interval>,
    pub times_omitted: u64,
}

/// Packets of flows that had had their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cutoff {
    pub packets: u64,
    pub bytes: u64,
    /// When the segments began and ended that tell of it.
    pub first: Option<Time>,
    pub last: Option<Time>,
    /// Segments that do not tell how much of what they left out is in the span.
    pub segments_untold: u64,
}

/// Packets that went unseen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unseen {
    /// How many, where that was counted.
    pub packets: u64,
    pub times: Vec<Interval>,
    pub times_omitted: u64,
}

/// A time in which something is lacking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The interface; `None` where that is not known.
    pub interface: Option<String>,
    pub first: Time,
    pub last: Time,
    pub packets: u64,
    /// The cause, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A time in which nobody recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unrecorded {
    /// From when on; `None` where the question has no beginning.
    pub first: Option<Time>,
    pub last: Time,
    pub why: String,
}

impl Account {
    /// Tells what a store lacks within a span. `watch` ends it by `false`.
    ///
    /// # Errors
    /// If the store cannot be read, or `watch` ended it.
    pub fn of(
        storage: &Arc<dyn Storage>,
        span: Span,
        mut watch: impl FnMut() -> bool,
    ) -> Result<Self, Error> {
        let mut is_stopped = false;
        let report = stat_in(storage, Question { span, top: 0 }, |_, _| {
            is_stopped = is_stopped || !watch();
            !is_stopped
        })?;
        if is_stopped {
            return Err(Error::Stopped);
        }
        let mut account = Self::from_report(&report);
        account.unrecorded = unrecorded(&**storage, span)?;
        Ok(account.judged())
    }

    fn from_report(report: &Report) -> Self {
        let interval = |gap: &Gap, packets| Interval {
            interface: gap.interface.clone(),
            first: Time(gap.first_ns),
            last: Time(gap.last_ns),
            packets,
            why: None,
        };
        let shed = report.shed.list.iter().map(|gap| Interval {
            interface: gap.interface.clone(),
            first: Time(gap.first_ns),
            last: Time(gap.last_ns),
            packets: gap.lost.packets,
            why: None,
        });
        let unseen = report.unseen.iter().map(|missing| Interval {
            interface: Some(missing.interface.clone()),
            first: Time(missing.first_ns),
            last: Time(missing.last_ns),
            packets: missing.packets,
            why: Some(missing.why.clone()),
        });
        let lacks = report.notes.iter().filter(|note| note.lacks_packets());
        let cutoff = &report.cutoff;
        Self {
            complete: false,
            lost: Lost {
                packets: report.gaps.lost(),
                times: report.gaps.list.iter().map(|gap| interval(gap, gap.lost)).collect(),
                times_omitted: report.gaps.more,
            },
            shed: Shed {
                packets: report.shed.lost().packets,
                bytes: report.shed.lost().bytes,
                times: shed.collect(),
                times_omitted: report.shed.more,
            },
            cutoff: Cutoff {
                packets: cutoff.cut.packets,
                bytes: cutoff.cut.bytes,
                first: cutoff.times.map(|times| Time(times.0)),
                last: cutoff.times.map(|times| Time(times.1)),
                segments_untold: cutoff.untold,
            },
            unseen: Unseen {
                packets: report.unseen.iter().map(|missing| missing.packets).sum(),
                times: unseen.collect(),
                times_omitted: 0,
            },
            unrecorded: Vec::new(),
            faults: lacks.map(ToString::to_string).collect(),
        }
        .bounded()
    }

    /// Adds what is lacking by a sentence, once.
    pub fn add_fault(&mut self, fault: String) {
        if !self.faults.contains(&fault) && self.faults.len() < MOST {
            self.faults.push(fault);
        }
        self.complete = false;
    }

    /// Takes in the account of the span behind this one's.
    pub fn append(&mut self, next: Self) {
        fn join(times: &mut Vec<Interval>, next: Vec<Interval>) {
            for interval in next {
                // Both spans reach into the same time in which something went unseen.
                if !times.contains(&interval) {
                    times.push(interval);
                }
            }
        }
        self.lost.packets += next.lost.packets;
        join(&mut self.lost.times, next.lost.times);
        self.lost.times_omitted += next.lost.times_omitted;
        self.shed.packets += next.shed.packets;
        self.shed.bytes += next.shed.bytes;
        join(&mut self.shed.times, next.shed.times);
        self.shed.times_omitted += next.shed.times_omitted;
        self.cutoff.packets += next.cutoff.packets;
        self.cutoff.bytes += next.cutoff.bytes;
        self.cutoff.first = self.cutoff.first.into_iter().chain(next.cutoff.first).min();
        self.cutoff.last = self.cutoff.last.into_iter().chain(next.cutoff.last).max();
        self.cutoff.segments_untold += next.cutoff.segments_untold;
        join(&mut self.unseen.times, next.unseen.times);
        self.unseen.packets = self.unseen.times.iter().map(|time| time.packets).sum();
        self.unseen.times_omitted += next.unseen.times_omitted;
        self.unrecorded.extend(next.unrecorded);
        for fault in next.faults {
            self.add_fault(fault);
        }
        *self = std::mem::take(self).bounded().judged();
    }

    /// Returns the account with lists of a length that can be handed on.
    fn bounded(mut self) -> Self {
        for (times, omitted) in [
            (&mut self.lost.times, &mut self.lost.times_omitted),
            (&mut self.shed.times, &mut self.shed.times_omitted),
            (&mut self.unseen.times, &mut self.unseen.times_omitted),
        ] {
            *omitted += times.len().saturating_sub(MOST) as u64;
            times.truncate(MOST);
        }
        self.unrecorded.truncate(MOST);
        self.faults.truncate(MOST);
        self
    }

    /// Returns the account with the word for the whole.
    pub fn judged(mut self) -> Self {
        self.complete = self.lost.packets == 0
            && self.shed.packets == 0
            && self.cutoff.packets == 0
            && self.cutoff.segments_untold == 0
            && self.unseen.times.is_empty()
            && self.unrecorded.is_empty()
            && self.faults.is_empty();
        self
    }

    /// Says in lines what is lacking; none where the account is complete.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let within = |times: &[Interval]| match (times.first(), times.iter().map(|t| t.last).max())
        {
            (Some(first), Some(last)) => format!(" from {} to {last}", first.first),
            _ => String::new(),
        };
        if self.lost.packets > 0 {
            let when = within(&self.lost.times);
            lines.push(format!(
                "the recorder dropped {}{when}",
                counted(self.lost.packets, "packet")
            ));
        }
        if self.shed.packets > 0 {
            let (Shed { packets, bytes, .. }, when) = (&self.shed, within(&self.shed.times));
            let (bytes, packets) = (counted(*bytes, "byte"), counted(*packets, "packet"));
            lines.push(format!("{bytes} of {packets} were shed{when}"));
        }
        if self.cutoff.packets > 0 {
            let Cutoff { packets, bytes, .. } = self.cutoff;
            let (bytes, packets) = (counted(bytes, "byte"), counted(packets, "packet"));
            lines.push(format!("cut off long flows: {packets} of {bytes}"));
        }
        if self.cutoff.segments_untold > 0 {
            let segments = counted(self.cutoff.segments_untold, "segment");
            lines.push(format!(
                "flows were cut off, and how much of that is in the span is not told by {segments}"
            ));
        }
        if !self.unseen.times.is_empty() {
            let (packets, when) =
                (counted(self.unseen.packets, "packet"), within(&self.unseen.times));
            lines.push(format!("{packets} went unseen{when}"));
        }
        for Unrecorded { first, last, why } in &self.unrecorded {
            let from = first.map_or_else(String::new, |first| format!("from {first} "));
            lines.push(format!("nothing was recorded {from}to {last}: {why}"));
        }
        lines.extend(self.faults.iter().cloned());
        lines
    }
}

/// Returns the times within a span in which nobody recorded.
fn unrecorded(storage: &dyn Storage, span: Span) -> Result<Vec<Unrecorded>, Error> {
    let lives = recorded(storage).map_err(Error::io("list", Path::new(storage.place())))?;
    let mut found = Vec::new();
    let mut tell = |first_ns: i64, last_ns: i64, why: &str| {
        let (from, to) = (first_ns.max(span.after_ns), last_ns.min(span.before_ns));
        if from < to {
            let first = (from > i64::MIN).then_some(Time(from));
            found.push(Unrecorded { first, last: Time(to), why: why.to_owned() });
        }
    };
    let begin_ns = lives.first().map_or(i64::MAX, |life| life.first_ns);
    // A question without a beginning asks for what there is.
    if span.after_ns > i64::MIN {
        tell(i64::MIN, begin_ns, "the store has nothing from before");
    }
    for pair in lives.windows(2) {
        let why = "one recorder had ended, and the next had not begun";
        tell(pair[0].last_ns, pair[1].first_ns, why);
    }
    if let Some(last) = lives.last() {
        if last.last_ns < i64::MAX {
            tell(last.last_ns, span.before_ns, "the recorder had ended");
        } else {
            let on_disk_ns = Time::now().0.saturating_sub(LAG_NS);
            let why = "it had not come, or may not have been on disk yet";
            tell(on_disk_ns, span.before_ns, why);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{Account, Interval, Lost};
    use crate::time::Time;

    fn losing(packets: u64, at: i64) -> Account {
        let times =
            vec![Interval { interface: None, first: Time(at), last: Time(at), packets, why: None }];
        Account { lost: Lost { packets, times, times_omitted: 0 }, ..Account::default() }.judged()
    }

    #[test]
    fn what_any_part_lacks_the_whole_lacks() {
        let mut whole = Account::default().judged();
        assert!(whole.complete && whole.lines().is_empty());
        whole.append(Account::default().judged());
        assert!(whole.complete);
        whole.append(losing(3, 7));
        whole.append(losing(4, 9));
        whole.append(Account::default().judged());
        assert!(!whole.complete);
        assert_eq!((whole.lost.packets, whole.lost.times.len()), (7, 2));
        assert_eq!(whole.lines().len(), 1);
        let mut other = Account::default().judged();
        other.add_fault("a segment is gone".into());
        assert!(!other.complete && !other.clone().judged().complete);
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Account>(&text).unwrap(), whole);
    }
}
