//! `tapdeck record`: from the flags to a running recording and its report.
//!
//! Who does what while packets come? Programs in the kernel write them into rings, and the writer's
//! thread (`tapdeck_store`) puts the rings' blocks into the output. The main thread, which is here,
//! does the rest in a loop that turns every 20 ms: it closes blocks that wait, looks at the clock,
//! the interfaces and the output, serves the control socket, and reports. No packet waits for it.

mod commands;
mod output;
mod report;
mod resolve;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tapdeck_capture::Clock;
use tapdeck_store::{Ending, Totals, WriterControl};

use crate::flags;
use commands::{ControlSocket, Recorder};
use output::{Job, Output};
use report::Report;
use source::RecordSource;

/// How often the recorder looks after its hooks.
const TICK: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);
/// How long an output that hangs is waited for after a second wish for the end.
const HURRY: Duration = Duration::from_secs(2);

/// When something is due.
struct Schedule {
    end: Option<Instant>,
    /// The time between two looks at part-filled blocks. A block is closed at the second look at
    /// it, and a look may be late: so that no packet waits for longer than `--flush` says,
    /// looks are a third of that time apart.
    flush_every: Duration,
    next_flush: Instant,
    next_second: Instant,
}

impl Schedule {
    fn new(plan: &resolve::Plan) -> Self {
        let now = Instant::now();
        Self {
            end: plan.duration.and_then(|d| now.checked_add(d)),
            flush_every: plan.flush / 3,
            next_flush: now,
            next_second: now + SECOND,
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn is_time_to_flush(&mut self) -> bool {
        due(&mut self.next_flush, self.flush_every)
    }

    fn is_a_second_over(&mut self) -> bool {
        due(&mut self.next_second, SECOND)
    }
}

/// Whether the time has come. If so, sets the next time, `every` later.
fn due(next: &mut Instant, every: Duration) -> bool {
    let now = Instant::now();
    let due = now >= *next;
    if due {
        *next = (*next + every).max(now);
    }
    due
}

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
    let mut source = RecordSource::open(&plan, &clock)?;
    let interfaces = source.descriptions();
    let totals = Arc::new(Totals::new(interfaces.len()));
    let mut report = Report::new(&plan, totals.clone())?;
    let output = Output::open(&plan, &report.log())?;
    let control_socket = ControlSocket::open(&plan, &report)?;

    // Packets wait in the rings until the output is begun, so that no file is touched for a hook
    // that cannot be had.
    source.start()?;
    let writer_control = Arc::new(WriterControl::default());
    let job = Job {
        rings: source.take_rings(),
        interfaces,
        totals,
        clock: clock.clone(),
        writer_control: writer_control.clone(),
        log: report.log(),
    };
    let writer = output.start(&plan, job)?;
    report.started(&source);

    let schedule = Schedule::new(&plan);
    let mut recording =
        Recording { source, clock, signals, report, control_socket, writer_control, schedule };
    recording.look_after();
    recording.end();
    let written = recording.join(writer);
    let unwritten = recording.report.finished(&recording.source);
    // A reader that left the pipe wanted no more, and what it did not get is no failure.
    let wanted = written? == Ending::Asked;
    anyhow::ensure!(
        !wanted || unwritten == 0,
        "{unwritten} packets could not be written before the end"
    );
    Ok(())
}

/// A recording that goes on: everything that is not the writer's.
struct Recording {
    source: RecordSource,
    clock: Arc<Clock>,
    signals: Signals,
    report: Report,
    control_socket: Option<ControlSocket>,
    writer_control: Arc<WriterControl>,
    schedule: Schedule,
}

impl Recording {
    /// Serves the control socket and looks after hooks, clock and output, until something ends the
    /// recording.
    fn look_after(&mut self) {
        while self.signals.received() == 0
            && !self.writer_control.writer_has_ended()
            && !self.schedule.is_over()
        {
            self.serve(Instant::now() + TICK);
            if self.control_socket.as_ref().is_some_and(ControlSocket::stops) {
                return;
            }
            self.turn();
            if self.source.has_ended() {
                self.report.warn("the daemon has ended");
                return;
            }
        }
    }

    /// Serves the control socket until a time, or waits until then.
    fn serve(&mut self, until: Instant) {
        let Self { source, report, writer_control, .. } = self;
        match &mut self.control_socket {
            Some(socket) => socket.serve(until, &mut Recorder { source, report, writer_control }),
            None => std::thread::sleep(until.saturating_duration_since(Instant::now())),
        }
    }

    /// Looks once after flush, clock, interfaces and report.
    fn turn(&mut self) {
        let Self { source, report, schedule, .. } = self;
        report.sample(source);
        report.watch_output(source);
        if let Some(step) = self.clock.check() {
            report.clock_stepped(step);
        }
        for (name, e) in source.flush(&self.clock, schedule.is_time_to_flush()) {
            report.warn(&format!("{name}: cannot flush: {e}"));
        }
        if schedule.is_a_second_over() {
            for notice in source.watch() {
                report.interface_event(&notice);
            }
            report.second(source);
            if let Some(control_socket) = &mut self.control_socket {
                control_socket.second(source, report);
            }
        }
    }

    /// Detaches the hooks and closes the blocks that they left open. While the rings are full,
    /// closing waits for the writer, which gives up on an output that takes nothing.
    fn end(&mut self) {
        self.source.stop();
        self.writer_control.end_producers();
        let mut hurried_since: Option<Instant> = None;
        loop {
            let closed = self.source.close_blocks();
            if self.signals.received() > 1 {
                self.writer_control.hurry();
                let since = hurried_since.get_or_insert_with(Instant::now);
                if since.elapsed() > HURRY {
                    break;
                }
            }
            if closed {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.writer_control.close_blocks();
        if let Some(control_socket) = &mut self.control_socket {
            control_socket.end();
        }
    }

    /// Waits for the writer and the index, unless they hang and somebody is in a hurry.
    fn join(&self, writer: JoinHandle<Result<Ending>>) -> Result<Ending> {
        let Self { signals, writer_control, report, .. } = self;
        let mut hurried_since: Option<Instant> = None;
        let mut written_since: Option<Instant> = None;
        // How many signals mean no hurry.
        let mut patience = 1;
        let mut has_said_why = false;
        while !writer.is_finished() {
            if writer_control.writer_has_ended() && !has_said_why {
                has_said_why = written_since.get_or_insert_with(Instant::now).elapsed() > HURRY;
                if has_said_why {
                    patience = signals.received().min(patience);
                    report.waits_for_index();
                }
            }
            if signals.received() > patience {
                writer_control.hurry();
                let since = hurried_since.get_or_insert_with(Instant::now);
                let what = if writer_control.writer_has_ended() {
                    "the disk hangs; the last segment may not be closed: tapdeck recover does that"
                } else {
                    "the output hangs; what was not written is lost and not counted"
                };
                anyhow::ensure!(since.elapsed() < HURRY, what);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the writer failed")))
    }
}
