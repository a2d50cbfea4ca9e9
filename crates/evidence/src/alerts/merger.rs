//! Which pin is an alert for? The one that is under way for the same packets, or another; and
//! where there are too many, none.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use super::alert::Alert;
use super::rules::Rules;
use crate::copy::Question;
use crate::pin::{Pin, Wish};
use crate::time::Time;

const HOUR_NS: i64 = 3_600_000_000_000;

/// What is to be done for an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The rules leave it alone.
    Ignored,
    /// A pin that is under way has its packets, or will ([`Merger::take_longer`]).
    Merged,
    /// A pin is to be made.
    Pin(Box<Wish>),
    /// Too many pins are under way, or were made within an hour.
    Limited,
}

/// A pin that alerts have made and whose span may grow.
struct Growing {
    number: u64,
    after: Time,
    before: Time,
    /// What its file says.
    written: Time,
}

/// Makes few pins of many alerts.
pub struct Merger {
    rules: Rules,
    /// The last pin for what it asks for, of those that are under way or ended within an hour.
    growing: BTreeMap<String, Growing>,
    /// When pins were made in the last hour.
    made: VecDeque<Time>,
}

impl Merger {
    /// Goes on with the pins that alerts have made before.
    pub fn new(rules: Rules, pins: &[Pin], now: Time) -> Self {
        let mut merger = Self { rules, growing: BTreeMap::new(), made: VecDeque::new() };
        for pin in pins.iter().filter(|pin| pin.rule.is_some()) {
            if pin.before.plus(HOUR_NS) > now {
                merger.grow(pin);
            }
            merger.made.push_back(pin.made);
        }
        merger
    }

    fn grow(&mut self, pin: &Pin) {
        let (number, after, before) = (pin.number, pin.after, pin.before);
        let growing = Growing { number, after, before, written: before };
        self.growing.insert(pin.question.filter.clone(), growing);
    }

    /// Decides what an alert pins. Whoever makes the pin says so by [`Merger::made`].
    pub fn decide(&mut self, alert: &Alert, store: &Path, now: Time) -> Decision {
        let found = self.rules.of(alert);
        let Some((rule, filter)) = found.and_then(|rule| Some((rule, alert.filter(rule.pin)?)))
        else {
            return Decision::Ignored;
        };
        let (mut after, before) =
            (alert.time.plus(-nanoseconds(rule.before)), alert.time.plus(nanoseconds(rule.after)));
        if let Some(pin) = self.growing.get_mut(&filter) {
            let longest = pin.after.plus(nanoseconds(self.rules.limits.longest));
            if before <= pin.before {
                // An alert of long ago, which comes late, may be of before the pin.
                if after >= pin.after || alert.time >= pin.after {
                    return Decision::Merged;
                }
            } else if before <= longest && after <= pin.before && alert.time >= pin.after {
                pin.before = before;
                return Decision::Merged;
            } else {
                // The packets up to there are pinned.
                after = after.max(pin.before);
            }
        }
        let limits = self.rules.limits;
        while self.made.front().is_some_and(|made| made.plus(HOUR_NS) <= now) {
            self.made.pop_front();
        }
        self.growing.retain(|_, pin| pin.before.plus(HOUR_NS) > now);
        let open = self.growing.values().filter(|pin| pin.before > now).count();
        if self.made.len() >= limits.pins_per_hour || open >= limits.open_pins {
            return Decision::Limited;
        }
        let Alert { signature_id, signature, source, destination, time, .. } = alert;
        let reason = format!(
            "{}: {signature_id} {signature}, {source} to {destination} at {time}",
            rule.name
        );
        Decision::Pin(Box::new(Wish {
            store: store.to_owned(),
            question: Question { filter, inner: true, ..Question::default() },
            after,
            before,
            until: rule.keep.map(|keep| before.plus(nanoseconds(keep))),
            reason,
            rule: Some(rule.name.clone()),
            order: None,
        }))
    }

    /// Takes note of a pin that was made.
    pub fn made(&mut self, pin: &Pin, now: Time) {
        self.grow(pin);
        self.made.push_back(now);
    }

    /// Takes the pins whose spans have grown, and up to when: many alerts are one change. One that
    /// is done cannot grow any more: another is made for the rest ([`PinStore::extend`]).
    ///
    /// [`PinStore::extend`]: crate::PinStore::extend
    pub fn take_longer(&mut self) -> Vec<(u64, Time)> {
        let grown = self.growing.values_mut().filter(|pin| pin.before > pin.written);
        let take = |pin: &mut Growing| {
            pin.written = pin.before;
            (pin.number, pin.before)
        };
        grown.map(take).collect()
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
