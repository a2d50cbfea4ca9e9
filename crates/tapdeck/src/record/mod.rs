//! `tapdeck record`: from the flags to a running recording and its report.

mod output;
mod report;
mod resolve;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tapdeck_capture::{Capture, Clock};
use tapdeck_packet::ring::Ring;
use tapdeck_store::{Ending, Totals};

use crate::flags;
use report::Report;

/// How often the recorder looks after its hooks.
const TICK: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// Signals as they arrive. The first asks for an orderly end, the second for a quick one.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn listen() -> Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut wanted = vec![SIGINT, SIGTERM];
        // As after nohup(1), a hang-up that was ignored stays ignored.
        if !hangup_is_ignored() {
            wanted.push(SIGHUP);
        }
        let mut signals =
            signal_hook::iterator::Signals::new(wanted).context("cannot listen for signals")?;
        std::thread::Builder::new()
            .name("tapdeck-signal".into())
            .spawn({
                let count = count.clone();
                move || {
                    for _ in signals.forever() {
                        count.fetch_add(1, Relaxed);
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Self(count))
    }

    fn received(&self) -> usize {
        self.0.load(Relaxed)
    }
}

fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (SIGHUP - 1) != 0
}

/// Records until something ends it.
pub fn run(flags: flags::Record) -> Result<()> {
    let plan = resolve::Plan::new(flags)?;
    let signals = Signals::listen()?;
    let clock = Arc::new(Clock::default());
    let mut captures = open(&plan, &clock)?;
    let interfaces: Vec<_> = captures.iter().flat_map(Capture::descriptions).collect();
    let totals = Arc::new(Totals::new(interfaces.len()));
    let mut report = Report::new(&plan, totals.clone())?;

    let mut rings: Vec<Box<dyn Ring>> = Vec::new();
    for capture in &captures {
        rings.extend(capture.readers().into_iter().map(|r| Box::new(r) as Box<dyn Ring>));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let abandon = Arc::new(AtomicBool::new(false));
    let job = output::Job {
        rings,
        interfaces,
        totals,
        clock: clock.clone(),
        stop: stop.clone(),
        abandon: abandon.clone(),
        log: report.log(),
    };
    let writer = output::start(&plan, job)?;
    for capture in &mut captures {
        capture.start()?;
    }
    report.started(&captures);

    let began = Instant::now();
    let flush_every = (plan.flush / 3).max(TICK);
    let mut next_flush = began + flush_every;
    let mut next_report = began + SECOND;
    while signals.received() == 0 && !writer.is_finished() {
        if plan.duration.is_some_and(|d| began.elapsed() >= d) {
            break;
        }
        std::thread::sleep(TICK.min(until(next_report)));
        report.sample(&captures);
        report.watch_output(&captures);
        if let Some(step) = clock.check() {
            report.clock_stepped(step);
        }
        let now = Instant::now();
        let flushing = now >= next_flush;
        if flushing {
            next_flush = now + flush_every;
        }
        for capture in &mut captures {
            let behind = capture.rings().iter().any(|r| r.open_epoch() != clock.epoch());
            if behind {
                capture.flush_all()?;
            } else if flushing {
                capture.flush()?;
            }
        }
        if now >= next_report {
            next_report += SECOND;
            for capture in &mut captures {
                match capture.watch() {
                    Ok(None) => {}
                    Ok(Some(event)) => report.interface_event(capture, event),
                    Err(e) => report.warn(&format!("{}: {e}", capture.interface().name)),
                }
                capture.refresh_nic();
            }
            report.second(&captures);
        }
    }

    end(&mut captures, &signals, &abandon, || writer.is_finished());
    stop.store(true, Relaxed);
    while !writer.is_finished() {
        if signals.received() > 1 {
            abandon.store(true, Relaxed);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let result = writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the writer failed")));
    for capture in &mut captures {
        capture.refresh_nic();
    }
    let unwritten = report.finished(&captures);
    // Whoever left the pipe wanted no more.
    let wanted = result? == Ending::Asked;
    anyhow::ensure!(
        !wanted || unwritten == 0,
        "{unwritten} packets could not be written before the end"
    );
    Ok(())
}

fn until(when: Instant) -> Duration {
    when.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn open(plan: &resolve::Plan, clock: &Arc<Clock>) -> Result<Vec<Capture>> {
    let mut captures: Vec<Capture> = Vec::new();
    let mut first_interface = 0;
    for (name, config) in &plan.interfaces {
        let capture = Capture::open(name, config, first_interface, clock)?;
        first_interface += capture.rings().len() as u32;
        captures.push(capture);
    }
    Ok(captures)
}

/// Detaches the hooks and closes the blocks they left open, which takes as long as the rings are full.
fn end(
    captures: &mut [Capture],
    signals: &Signals,
    abandon: &AtomicBool,
    ended: impl Fn() -> bool,
) {
    for capture in &mut *captures {
        capture.stop();
        capture.refresh_nic();
    }
    loop {
        let mut open = false;
        for capture in &mut *captures {
            // A block that cannot be closed now is tried for again.
            let _ = capture.flush_all();
            open |= capture.rings().iter().any(|r| r.open_block().1 > 0);
        }
        if !open || ended() || signals.received() > 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if signals.received() > 1 {
        abandon.store(true, Relaxed);
    }
}
