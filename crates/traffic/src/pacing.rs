//! When are packets sent? At a rate, with gaps that vary or do not.
//!
//! A [`Schedule`] gives each packet its due time, counted from the start, by the sizes of the
//! packets before it. Due times add up whatever happens, so a sender that was held up makes the
//! time good, and the rate over a run is exact. Waiting until a packet is due is the sender's
//! affair.

use std::str::FromStr;

use tapdeck_packet::generate::{GAP_PARTS, Pace};

use crate::sampling::SplitMix64;

/// Bytes that each frame takes on an Ethernet wire beside its own: preamble and start delimiter 8,
/// frame check sequence 4, gap 12 (IEEE 802.3, clauses 3 and 4).
pub const WIRE_BYTES: u64 = 24;

/// The least rate, in packets a second: the gap of a lower one would not fit into a due time.
const LEAST_PACKETS: f64 = 1e-3;
const LEAST_BITS: f64 = 1e3;
const MOST: f64 = 1e12;

/// How much to send, all senders together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// The greatest rate that the senders reach.
    Max,
    Packets {
        per_s: f64,
    },
    /// Bits a second of frames without check sequence, or of all that the wire carries for them.
    Bits {
        per_s: f64,
        wire: bool,
    },
}

/// Why a text is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// not a number with one of the units
    #[error("{0:?} is no rate; write packets as 1.2mpps, bits as 700mbit, or max")]
    Unit(String),
    /// nothing, or less, or more than can be
    #[error(
        "{0:?} is a rate that cannot be; it must be from 0.001 packets or 1000 bits to 1e12 a second"
    )]
    Value(String),
    /// not a number with a unit of time
    #[error("{0:?} is no gap; write a time as 800ns, 3us or 1.5ms")]
    Gap(String),
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let text = s.trim().to_ascii_lowercase();
        if text == "max" {
            return Ok(Self::Max);
        }
        let digits = text.find(|c: char| c.is_ascii_alphabetic() && c != 'e').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (scale, unit) = match unit.as_bytes().first() {
            Some(b'k') => (1e3, &unit[1..]),
            Some(b'm') => (1e6, &unit[1..]),
            Some(b'g') => (1e9, &unit[1..]),
            _ => (1.0, unit),
        };
        let number: f64 = number.trim().parse().map_err(|_| Error::Unit(s.to_owned()))?;
        let per_s = number * scale;
        let rate = match unit {
            "pps" | "p/s" => Self::Packets { per_s },
            "bit" | "bit/s" | "bps" | "bits" => Self::Bits { per_s, wire: false },
            _ => return Err(Error::Unit(s.to_owned())),
        };
        let least = if matches!(rate, Self::Packets { .. }) { LEAST_PACKETS } else { LEAST_BITS };
        if (least..=MOST).contains(&per_s) { Ok(rate) } else { Err(Error::Value(s.to_owned())) }
    }
}

impl Rate {
    /// Reads the time from the beginning of one packet to the beginning of the next, as a rate.
    pub fn from_gap(s: &str) -> Result<Self, Error> {
        let fault = || Error::Gap(s.to_owned());
        let text = s.trim();
        let digits = text.find(|c: char| c.is_alphabetic()).ok_or_else(fault)?;
        let (number, unit) = text.split_at(digits);
        let scale = match unit {
            "ns" => 1e9,
            "us" | "µs" => 1e6,
            "ms" => 1e3,
            "s" => 1.0,
            _ => return Err(fault()),
        };
        let number: f64 = number.trim().parse().map_err(|_| fault())?;
        let per_s = scale / number;
        if number > 0.0 && (LEAST_PACKETS..=MOST).contains(&per_s) {
            Ok(Self::Packets { per_s })
        } else {
            Err(Error::Value(s.to_owned()))
        }
    }

    /// Returns packets a second, for frames of so many bytes in the mean; `None` is without limit.
    pub fn packets_per_s(self, mean_bytes: f64) -> Option<f64> {
        match self {
            Self::Max => None,
            Self::Packets { per_s } => Some(per_s),
            Self::Bits { per_s, wire } => {
                Some(per_s / 8.0 / (mean_bytes + if wire { WIRE_BYTES as f64 } else { 0.0 }))
            }
        }
    }

    /// Returns what a sender keeps to that has this share of the packets; `None` is as fast as it
    /// goes. Number `sender` of several senders begins so many gaps later.
    pub fn pace(self, share: f64, sender: u32) -> Option<Pace> {
        // Adding gaps must not overflow: 73 minutes, and as much for the longest packet.
        const LONGEST: f64 = (1u64 << 62) as f64;
        const LONGEST_PER_BYTE: f64 = (1u64 << (62 - u16::BITS)) as f64;
        let parts = f64::from(1u32 << GAP_PARTS);
        let ns = 1e9 / share;
        match self {
            Self::Max => None,
            Self::Packets { per_s } => Some(Pace {
                gap: (ns / per_s * parts).round().min(LONGEST) as u64,
                gap_per_byte: 0,
                lead_ns: (1e9 / per_s * f64::from(sender)) as u64,
            }),
            Self::Bits { per_s, wire } => {
                let per_byte = (ns * 8.0 / per_s * parts).round().min(LONGEST_PER_BYTE) as u64;
                let gap = if wire { WIRE_BYTES * per_byte } else { 0 };
                Some(Pace { gap, gap_per_byte: per_byte, lead_ns: 0 })
            }
        }
    }
}

/// How gaps vary around their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    Constant,
    /// Exponentially: packets are a Poisson process.
    Poisson,
    /// The sum of sources that are on and off in turn, for times with a Pareto distribution. With
    /// many, the load is self-similar with this Hurst parameter: Taqqu, Willinger and Sherman,
    /// "Proof of a fundamental result in self-similar traffic modeling" (CCR 27 (2), 1997);
    /// times of index `3 - 2 H` have a finite mean and no variance.
    OnOff(OnOff),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnOff {
    /// The Hurst parameter, above 0.5 and below 1.
    pub hurst: f64,
    pub on_ns: f64,
    pub off_ns: f64,
    pub sources: u32,
}

impl OnOff {
    /// Returns how much work it is to go on by one packet, in looks at a source.
    pub fn work(&self, packets_per_s: f64) -> f64 {
        let changes =
            2.0 * f64::from(self.sources) * 1e9 / packets_per_s / (self.on_ns + self.off_ns);
        changes * f64::from(self.sources)
    }
}

/// Due times of one sender.
#[derive(Clone, Debug)]
pub struct Schedule {
    pace: Pace,
    due_ns: u64,
    part: u64,
    gaps: GapState,
}

#[derive(Clone, Debug)]
enum GapState {
    Constant,
    Poisson(SplitMix64),
    OnOff(Sources),
}

impl Schedule {
    pub fn new(pace: Pace, gaps: Gaps, seed: u64) -> Self {
        let random = SplitMix64::new(seed ^ 0x7061_6365);
        let gaps = match gaps {
            Gaps::Constant => GapState::Constant,
            Gaps::Poisson => GapState::Poisson(random),
            Gaps::OnOff(model) => GapState::OnOff(Sources::new(model, random)),
        };
        Self { pace, due_ns: pace.lead_ns, part: 0, gaps }
    }

    /// Returns when the next packet is due, nanoseconds from the start.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Goes on to the packet behind one whose frame has `len` bytes.
    pub fn advance(&mut self, len: usize) {
        let mean = self.pace.gap + len as u64 * self.pace.gap_per_byte;
        let gap = match &mut self.gaps {
            GapState::Constant => mean,
            GapState::Poisson(random) => (-random.unit().ln() * mean as f64) as u64,
            GapState::OnOff(sources) => {
                let parts = f64::from(1u32 << GAP_PARTS);
                (sources.advance(mean as f64 / parts) * parts) as u64
            }
        };
        let part = self.part.saturating_add(gap);
        self.due_ns = self.due_ns.saturating_add(part >> GAP_PARTS);
        self.part = part & ((1 << GAP_PARTS) - 1);
    }
}

/// Sources that are on and off in turn.
#[derive(Clone, Debug)]
struct Sources {
    model: OnOff,
    random: SplitMix64,
    /// For each source: when it changes, nanoseconds, and whether it is on until then.
    each: Vec<(f64, bool)>,
    /// The source that changes first.
    next: usize,
    on: u32,
    now: f64,
}

impl Sources {
    fn new(model: OnOff, random: SplitMix64) -> Self {
        let model = OnOff { sources: model.sources.max(1), ..model };
        let mut sources = Self { model, random, each: Vec::new(), next: 0, on: 0, now: 0.0 };
        for _ in 0..model.sources {
            let on = sources.random.unit() <= sources.share();
            sources.on += u32::from(on);
            let until = sources.time(on);
            sources.each.push((until, on));
        }
        sources.find_next();
        sources
    }

    /// Returns the share of its time that a source is on.
    fn share(&self) -> f64 {
        self.model.on_ns / (self.model.on_ns + self.model.off_ns)
    }

    fn time(&mut self, on: bool) -> f64 {
        let index = 3.0 - 2.0 * self.model.hurst;
        let mean = if on { self.model.on_ns } else { self.model.off_ns };
        mean * (index - 1.0) / index * self.random.unit().powf(-1.0 / index)
    }

    fn find_next(&mut self) {
        let first = self.each.iter().enumerate().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        self.next = first.expect("there is one source at least").0;
    }

    /// Returns the time in which the sources send what at the mean rate takes `work` nanoseconds.
    fn advance(&mut self, mut work: f64) -> f64 {
        let from = self.now;
        loop {
            let (until, was_on) = self.each[self.next];
            let intensity = f64::from(self.on) / (f64::from(self.model.sources) * self.share());
            let done = (until - self.now) * intensity;
            if done >= work {
                self.now += work / intensity;
                return self.now - from;
            }
            work -= done;
            self.now = until;
            self.on = if was_on { self.on - 1 } else { self.on + 1 };
            self.each[self.next] = (until + self.time(!was_on), !was_on);
            self.find_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Gaps, OnOff, Rate, Schedule};
    use proptest::prelude::*;

    #[test]
    fn rates_as_people_write_them() {
        let packets = |per_s| Ok(Rate::Packets { per_s });
        let bits = |per_s| Ok(Rate::Bits { per_s, wire: false });
        assert_eq!("1.2mpps".parse(), packets(1.2e6));
        assert_eq!("1000pps".parse(), packets(1000.0));
        assert_eq!("50 kpps".parse(), packets(50e3));
        assert_eq!("700mbit".parse(), bits(700e6));
        assert_eq!("9.6Gbit".parse(), bits(9.6e9));
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!(Rate::from_gap("3us"), packets(1e6 / 3.0));
        assert_eq!(Rate::from_gap("800ns"), packets(1.25e6));
        assert_eq!(Rate::from_gap("3µs"), packets(1e6 / 3.0));
        for bad in [
            "",
            "0pps",
            "-1mpps",
            "nanpps",
            "infmbit",
            "5",
            "5 parsecs",
            "mpps",
            "1e99pps",
            "0.0001pps",
            "10bit",
        ] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        for bad in ["", "0us", "-3us", "3", "us", "nan s", "1e-9ns"] {
            assert!(Rate::from_gap(bad).is_err(), "{bad}");
        }
    }

    /// Due times of packets of these sizes.
    fn times(rate: Rate, gaps: Gaps, packets: usize, len: impl Fn(usize) -> usize) -> Vec<u64> {
        let mut schedule = Schedule::new(rate.pace(1.0, 0).expect("a rate"), gaps, 7);
        let due = |n| {
            let due = schedule.due_ns();
            schedule.advance(len(n));
            due
        };
        (0..packets).map(due).collect()
    }

    proptest! {
        #[test]
        fn constant_gaps_add_up_to_the_rate(per_s in 1.0..2e7f64) {
            let n = 100_000;
            let last = *times(Rate::Packets { per_s }, Gaps::Constant, n + 1, |_| 60).last().unwrap();
            let expected = n as f64 / per_s * 1e9;
            prop_assert!((last as f64 - expected).abs() <= 1.0 + expected * 1e-6);
        }

        #[test]
        fn bits_count_each_frame_at_its_length(per_s in 1e5..1e11f64, wire: bool, lens in prop::collection::vec(60..1515usize, 1..200)) {
            let n = lens.len();
            let last = *times(Rate::Bits { per_s, wire }, Gaps::Constant, n + 1, |i| lens[i % n]).last().unwrap();
            let bytes: usize = lens.iter().sum::<usize>() + if wire { 24 * n } else { 0 };
            let expected = bytes as f64 * 8.0 / per_s * 1e9;
            prop_assert!((last as f64 - expected).abs() <= 1.0 + expected * 1e-4, "{last} {expected}");
        }
    }

    #[test]
    fn poisson_gaps_have_their_mean_and_as_much_deviation() {
        let n = 400_000;
        let t = times(Rate::Packets { per_s: 1e5 }, Gaps::Poisson, n, |_| 60);
        let gaps: Vec<f64> = t.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 10_000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.01, "{}", variance.sqrt() / mean);
    }

    /// The slope of the variance of block means against the blocks' length is `2 H - 2`.
    fn hurst(counts: &[f64]) -> f64 {
        let variance = |m: usize| {
            let means: Vec<f64> =
                counts.chunks_exact(m).map(|c| c.iter().sum::<f64>() / m as f64).collect();
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            means.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / means.len() as f64
        };
        let points: Vec<(f64, f64)> =
            (5..12).map(|k| 1usize << k).map(|m| ((m as f64).ln(), variance(m).ln())).collect();
        let n = points.len() as f64;
        let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
        let up: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
        let down: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
        1.0 + up / down / 2.0
    }

    #[test]
    fn on_and_off_sources_are_as_self_similar_as_asked() {
        for wanted in [0.6, 0.75, 0.9] {
            let model = OnOff { hurst: wanted, on_ns: 1e6, off_ns: 1e6, sources: 32 };
            // Packets in each millisecond of 200 s.
            let mut counts = vec![0.0; 200_000];
            let per_s = 10e3;
            let mut schedule = Schedule::new(
                Rate::Packets { per_s }.pace(1.0, 0).expect("a rate"),
                Gaps::OnOff(model),
                11,
            );
            loop {
                let bin = (schedule.due_ns() / 1_000_000) as usize;
                let Some(count) = counts.get_mut(bin) else { break };
                *count += 1.0;
                schedule.advance(60);
            }
            let found = hurst(&counts);
            assert!((found - wanted).abs() < 0.08, "{wanted}: {found}");
        }
    }
}
