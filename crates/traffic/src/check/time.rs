//! When was what sent, and how long did it take?

use hdrhistogram::Histogram;

use super::report::{Latency, Period};
use crate::sent::Spread;

/// How much clocks, and writers of captures in microseconds, may round down.
const ROUNDING_NS: i64 = 1_000;
/// The longest time that a network takes; a capture that seems to take longer has another clock.
const LONGEST_NS: u64 = 10_000_000_000;
const MAX_PERIODS: u64 = 60;

/// A distribution, exact to three digits, and in its maximum.
pub(super) struct Distribution {
    histogram: Histogram<u64>,
    max: u64,
}

impl Distribution {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new(3);
        let histogram = histogram.unwrap_or_else(|_| unreachable!("three digits are allowed"));
        Self { histogram, max: 0 }
    }

    pub(super) fn add(&mut self, value: u64) {
        // The histogram grows up to the largest value that there is, so this does not fail.
        let _ = self.histogram.record(value);
        self.max = self.max.max(value);
    }

    /// Returns the distribution's figures; `None` where it is empty.
    pub(super) fn spread(&self) -> Option<Spread> {
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max);
        (!self.histogram.is_empty()).then(|| Spread { p50: at(0.5), p99: at(0.99), max: self.max })
    }
}

/// Times from the sender's clock to the recorder's.
pub(super) struct Latencies {
    forward: Distribution,
    /// How far the capture's clock is behind the sender's.
    behind_ns: u64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Self { forward: Distribution::new(), behind_ns: 0 }
    }

    pub(super) fn add(&mut self, sent_ns: u64, captured_ns: i64) {
        let sent_ns = sent_ns.min(i64::MAX as u64) as i64;
        match captured_ns.saturating_sub(sent_ns) {
            late @ 0.. => self.forward.add(late as u64),
            late if late >= -ROUNDING_NS => self.forward.add(0),
            early => self.behind_ns = self.behind_ns.max(early.unsigned_abs()),
        }
    }

    pub(super) fn finish(&self) -> Latency {
        let seconds = |ns: u64| ns as f64 / 1e9;
        if self.behind_ns > 0 {
            return Latency::Unknown(format!(
                "the capture's clock is behind the sender's by up to {:.6} s",
                seconds(self.behind_ns)
            ));
        }
        match self.forward.spread() {
            None => Latency::Unknown(
                "no packet has both a send time, for which it needs room, and a capture time"
                    .into(),
            ),
            Some(spread) if spread.p50 >= LONGEST_NS => Latency::Unknown(format!(
                "the capture's clock is ahead of the sender's by about {:.1} s",
                seconds(spread.p50)
            )),
            Some(spread) => Latency::Known(spread),
        }
    }
}

/// A run in at most 60 periods of equal length.
pub(super) struct Timeline {
    started_ns: u64,
    pub(super) period_ns: u64,
    pub(super) periods: Vec<Period>,
    /// Packets of each period that came, though their numbers cannot be read.
    unread: Vec<u64>,
    /// The period of the last packet.
    last: usize,
}

impl Timeline {
    pub(super) fn new(started_ns: u64, ended_ns: u64) -> Self {
        let run_ns = ended_ns.saturating_sub(started_ns).max(1);
        let steps = [1, 2, 5].into_iter().cycle();
        let decades = (0..)
            .flat_map(|d: u32| [d; 3])
            .map(|d| 100_000_000u64.saturating_mul(10u64.saturating_pow(d)));
        let period_ns = steps
            .zip(decades)
            .map(|(step, decade)| decade.saturating_mul(step))
            .find(|&period_ns| run_ns.div_ceil(period_ns) <= MAX_PERIODS)
            .unwrap_or(u64::MAX);
        let count = run_ns.div_ceil(period_ns) as usize;
        let periods = vec![Period::default(); count];
        Self { started_ns, period_ns, periods, unread: vec![0; count], last: 0 }
    }

    /// Returns the period of a packet: that of its send time, without one that of its capture time,
    /// without either that of the packet before.
    pub(super) fn place(&mut self, sent_ns: Option<u64>, captured_ns: Option<i64>) -> usize {
        let captured_ns = captured_ns.and_then(|ns| u64::try_from(ns).ok());
        if let Some(ns) = sent_ns.or(captured_ns) {
            let period = ns.saturating_sub(self.started_ns) / self.period_ns;
            self.last = (period as usize).min(self.periods.len() - 1);
        }
        self.last
    }

    /// Counts a packet whose number cannot be read. Returns its period.
    pub(super) fn unread(&mut self, captured_ns: Option<i64>) -> &mut Period {
        let place = self.place(None, captured_ns);
        self.unread[place] += 1;
        &mut self.periods[place]
    }

    /// Returns the periods, with missing packets by the place of the packet that came instead;
    /// place `None` is the end. Each unread packet stands for one that is missing: the next,
    /// because the jump is seen after it, or else the last before.
    pub(super) fn finish(
        mut self,
        missing: impl Iterator<Item = (Option<u32>, u64)>,
    ) -> Vec<Period> {
        let last = self.periods.len() - 1;
        for (place, count) in missing {
            self.periods[place.map_or(last, |p| p as usize)].lost += count;
        }
        for (place, mut unread) in self.unread.into_iter().enumerate() {
            for i in (place..=last).chain((0..place).rev()) {
                let found = unread.min(self.periods[i].lost);
                self.periods[i].lost -= found;
                unread -= found;
            }
        }
        self.periods
    }
}

#[cfg(test)]
mod tests {
    use super::{Latencies, Timeline};
    use crate::check::report::Latency;

    #[test]
    fn periods_are_round_and_few() {
        const S: u64 = 1_000_000_000;
        for (run_ns, period_ns, periods) in [
            (0, S / 10, 1),
            (1, S / 10, 1),
            (6 * S, S / 10, 60),
            (6 * S + 1, S / 5, 31),
            (30 * S, S / 2, 60),
            (3600 * S, 100 * S, 36),
        ] {
            let timeline = Timeline::new(7, 7 + run_ns);
            assert_eq!(
                (timeline.period_ns, timeline.periods.len()),
                (period_ns, periods),
                "{run_ns}"
            );
        }
        assert!(Timeline::new(0, u64::MAX).periods.len() <= 60);
    }

    #[test]
    fn clocks_that_disagree_give_no_latency() {
        let of = |times: &[(u64, i64)]| {
            let mut latencies = Latencies::new();
            for &(sent, captured) in times {
                latencies.add(sent, captured);
            }
            latencies.finish()
        };
        assert!(
            matches!(of(&[(1000, 1500), (5000, 4001)]), Latency::Known(s) if s.max == 500 && s.p50 == 0)
        );
        let Latency::Unknown(why) = of(&[(1000, 1500), (5_000_000, 2_000_000)]) else {
            panic!("behind")
        };
        assert!(why.contains("behind") && why.contains("0.003000 s"), "{why}");
        let Latency::Unknown(why) = of(&[(0, 3_600_000_000_000)]) else { panic!("ahead") };
        assert!(why.contains("ahead") && why.contains("3600"), "{why}");
        assert!(matches!(of(&[]), Latency::Unknown(_)));
    }
}
