//! What arrives, as the counter of the far end's interface tells it while packets come.

use std::thread;
use std::time::{Duration, Instant};

use tapdeck_capture::interface::Interface;

use crate::common;
use tapdeck_testkit::Running;

/// The far end's counter over time, each reading that saw it grow: seconds, and packets since the
/// beginning.
#[derive(Debug, Default)]
pub struct Arrivals(Vec<(f64, u64)>);

impl Arrivals {
    pub fn total(&self) -> u64 {
        self.0.last().map_or(0, |(_, n)| *n)
    }

    /// Packets a second while they came: between the first reading with packets and the last but
    /// one that saw more, for packets kept coming after both.
    pub fn pps(&self) -> f64 {
        match self.0[..] {
            [(t0, n0), .., (t1, n1), _] => (n1 - n0) as f64 / (t1 - t0),
            _ => f64::NAN,
        }
    }

    /// Packets a second over so many seconds from the first; a generator that sends a second's
    /// packets in one go and then waits is right over whole seconds.
    pub fn pps_over(&self, seconds: f64) -> f64 {
        let Some((t0, n0)) = self.0.first() else { return f64::NAN };
        let end = t0 + seconds;
        let Some(i) = self.0.iter().position(|(t, _)| *t >= end).filter(|i| *i > 0) else {
            return f64::NAN;
        };
        let ((t1, n1), (t2, n2)) = (self.0[i - 1], self.0[i]);
        let at_end = n1 as f64 + (n2 - n1) as f64 * (end - t1) / (t2 - t1);
        (at_end - *n0 as f64) / seconds
    }

    /// Packets a second in the busiest piece of time of this length.
    pub fn busiest_pps(&self, seconds: f64) -> f64 {
        let mut from = 0;
        let mut most = f64::NAN;
        for (t, n) in &self.0 {
            while self.0.get(from + 1).is_some_and(|(t0, _)| t - t0 >= seconds) {
                from += 1;
            }
            let (t0, n0) = self.0[from];
            if t - t0 >= seconds {
                most = f64::max(most, (n - n0) as f64 / (t - t0));
            }
        }
        most
    }
}

/// The packet counter of the far end, in whose namespace this runs.
pub fn counter() -> Result<u64, String> {
    Interface::find("vb").map(|i| i.counters.rx_packets).map_err(|e| e.to_string())
}

/// Reads the far end's counter until the generator has ended and nothing more comes. Returns
/// what arrived, and the generator's memory.
pub fn watch(mut generator: Running, begin: u64) -> Result<(Arrivals, f64), String> {
    /// Nothing here takes so long, not even beside a compiler.
    const LIMIT: Duration = Duration::from_secs(120);
    /// No packet for so long, and none is on its way any more.
    const SETTLED: Duration = Duration::from_millis(50);
    // On a single core, there it is.
    let _ = common::stay_on_core(1);
    let start = Instant::now();
    let mut arrivals = Arrivals::default();
    let mut resident_mib = f64::NAN;
    let mut ended = None;
    loop {
        let at = start.elapsed();
        let n = counter()? - begin;
        let grew = n > arrivals.total();
        if grew {
            arrivals.0.push((at.as_secs_f64(), n));
        }
        match ended {
            Some(then) if !grew && at > then + SETTLED => break,
            Some(_) => {}
            None => {
                resident_mib = common::resident_mib(generator.0.id()).unwrap_or(resident_mib);
                if let Some(status) = generator.0.try_wait().map_err(|e| e.to_string())? {
                    if !status.success() {
                        return Err(status.to_string());
                    }
                    ended = Some(at);
                }
            }
        }
        if at > LIMIT {
            return Err(format!("still running after {} s", LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok((arrivals, resident_mib))
}
