//! One sender at work, in the kernel or in this process, and what it did.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use tapdeck_capture::transmit::Sender;
use tapdeck_capture::transmit::live::{Live, Monitor, Outcome};
use tapdeck_capture::{SystemClock, WallClock};
use tapdeck_traffic::source::PacketSource;

/// Times with two digits, up to an hour.
type Times = Histogram<u64>;

fn times() -> Times {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("these bounds are valid")
}

/// What a sender did. Times are `CLOCK_MONOTONIC` nanoseconds.
pub struct Done {
    pub made: u64,
    /// Packets that the interface took.
    pub sent: u64,
    pub bytes: u64,
    /// Packets that were made, by length.
    pub sizes: Vec<u64>,
    pub sequences: Vec<u64>,
    pub first_ns: u64,
    pub last_ns: u64,
    pub utc_offset_ns: i64,
    pub gaps: Times,
    pub jitters: Times,
    pub late_max_ns: u64,
    /// How far behind its time the last packet was, nanoseconds.
    pub late_last_ns: u64,
    /// What else the user is to be told about the packets.
    pub remarks: Vec<String>,
    pub error: Option<io::Error>,
}

impl Done {
    fn new() -> Self {
        Self {
            made: 0,
            sent: 0,
            bytes: 0,
            sizes: vec![0; 1 << 16],
            sequences: Vec::new(),
            first_ns: 0,
            last_ns: 0,
            utc_offset_ns: SystemClock.utc_offset_ns(),
            gaps: times(),
            jitters: times(),
            late_max_ns: 0,
            late_last_ns: 0,
            remarks: Vec::new(),
            error: None,
        }
    }
}

/// A way to look at a sender from outside, and to end it.
#[derive(Clone)]
pub enum Watch {
    Kernel(Monitor),
    Here(Arc<Shared>),
}

#[derive(Default)]
pub struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    bytes: AtomicU64,
}

impl Watch {
    pub fn sent(&self) -> u64 {
        match self {
            Self::Kernel(monitor) => monitor.progress().taken,
            Self::Here(shared) => shared.sent.load(Relaxed),
        }
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Self::Kernel(monitor) => monitor.progress().bytes,
            Self::Here(shared) => shared.bytes.load(Relaxed),
        }
    }

    pub fn stop(&self) {
        match self {
            Self::Kernel(monitor) => monitor.stop(),
            Self::Here(shared) => shared.stop.store(true, Relaxed),
        }
    }

    /// Returns whether the sender's thread must be woken by a signal to see that it is to end.
    pub fn wants_signal(&self) -> bool {
        match self {
            Self::Kernel(monitor) => monitor.progress().done || monitor.is_stopped(),
            Self::Here(shared) => shared.stop.load(Relaxed),
        }
    }
}

/// Keeps this thread on a CPU.
pub fn pin(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    Ok(sched_setaffinity(None, &set)?)
}

/// Sends packets that are made in the kernel, from `start_ns` on or at once.
pub fn in_kernel(live: &Live, start_ns: Option<u64>) -> Done {
    let monitor = live.monitor();
    if let Some(ns) = start_ns {
        monitor.start_at(ns);
    }
    let mut done = Done::new();
    while !monitor.progress().done && !monitor.is_stopped() {
        match live.run() {
            Err(e) if e.kind() != ErrorKind::Interrupted => {
                done.error = Some(e);
                break;
            }
            _ => {}
        }
    }
    match live.outcome() {
        Ok(outcome) => take_over(&mut done, outcome),
        Err(e) => done.error = done.error.or(Some(e)),
    }
    done
}

fn take_over(done: &mut Done, outcome: Outcome) {
    for (len, n) in outcome.sizes {
        done.sizes[usize::from(len)] = n;
    }
    let record = |times: &mut Times, counts: Vec<(u64, u64)>, max: u64| {
        for (ns, n) in counts {
            times.saturating_record_n(ns.min(max).max(1), n);
        }
    };
    record(&mut done.gaps, outcome.gaps, outcome.gap_max_ns);
    record(&mut done.jitters, outcome.jitters, outcome.jitter_max_ns);
    done.made = outcome.progress.made;
    done.sent = outcome.progress.taken;
    done.bytes = outcome.progress.bytes;
    done.sequences = outcome.sequences;
    done.first_ns = outcome.first_ns;
    done.last_ns = outcome.last_ns;
    done.utc_offset_ns = outcome.utc_offset_ns;
    done.late_max_ns = outcome.late_max_ns;
    done.late_last_ns = outcome.late_last_ns;
    if outcome.progress.failed {
        let error = io::Error::other("the program in the kernel cannot make a packet");
        done.error = done.error.take().or(Some(error));
    }
}

/// A sender of packets that are made in this process.
pub struct Here {
    pub sender: Box<dyn Sender>,
    pub source: Box<dyn PacketSource>,
    pub shared: Arc<Shared>,
}

/// Returns `CLOCK_MONOTONIC`, nanoseconds.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What comes after a bunch of packets.
enum Next {
    /// The thread waits until a time.
    Wait(u64),
    Go,
    End,
}

impl Here {
    /// The most packets that go in one call.
    const BUNCH: usize = 64;
    /// How much longer than it should a sleep may last.
    const SLACK_NS: u64 = 80_000;
    /// How long a sleep may be, because the user may want the end meanwhile.
    const LONGEST_SLEEP_NS: u64 = 50_000_000;

    /// Sends from `start_ns` on, or at once.
    pub fn run(mut self, start_ns: Option<u64>) -> Done {
        let mut done = Done::new();
        let start = start_ns.unwrap_or_else(now_ns);
        if let Err(e) = self.send(start, &mut done) {
            done.error = Some(e);
        }
        done.sent = self.sender.sent();
        done.sequences = self.source.sequences();
        done.remarks = self.source.remarks();
        done
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Relaxed)
    }

    fn send(&mut self, start: u64, done: &mut Done) -> io::Result<()> {
        while !self.is_stopped() {
            let next = match self.bunch(start, done) {
                // There was no room, so nothing was made. The loop looks again whether the end is
                // wanted.
                Err(e) if e.kind() == ErrorKind::Interrupted => Next::Go,
                next => next?,
            };
            self.flush()?;
            self.shared.sent.store(self.sender.sent(), Relaxed);
            self.shared.bytes.store(done.bytes, Relaxed);
            match next {
                Next::End => return Ok(()),
                Next::Go => {}
                Next::Wait(moment) => {
                    let wait = moment.saturating_sub(now_ns());
                    if wait > 2 * Self::SLACK_NS {
                        let sleep = (wait - Self::SLACK_NS).min(Self::LONGEST_SLEEP_NS);
                        std::thread::sleep(Duration::from_nanos(sleep));
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        self.flush()
    }

    /// Queues the packets that are due.
    fn bunch(&mut self, start: u64, done: &mut Done) -> io::Result<Next> {
        for _ in 0..Self::BUNCH {
            let now = now_ns();
            let due = self.source.due_ns();
            let moment = start.saturating_add(due.unwrap_or(0));
            if moment > now {
                return Ok(Next::Wait(moment));
            }
            let utc_ns = now.wrapping_add_signed(done.utc_offset_ns);
            let slot = self.sender.slot()?;
            let Some(len) = self.source.next(slot, now - start, utc_ns)? else {
                return Ok(Next::End);
            };
            self.sender.push(len);
            observe(done, len, now, due.map(|due| start + due));
        }
        Ok(Next::Go)
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.sender.flush() {
                Err(e) if e.kind() == ErrorKind::Interrupted && !self.is_stopped() => {}
                // Packets that are left in the queue count as made and not sent.
                Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(()),
                result => return result,
            }
        }
    }
}

fn observe(done: &mut Done, len: usize, now: u64, due: Option<u64>) {
    let late = due.map_or(0, |due| now - due);
    if done.made == 0 {
        done.first_ns = now;
    } else {
        let gap = now - done.last_ns;
        done.gaps.saturating_record(gap.max(1));
        if due.is_some() {
            // The gap that was due is this gap without the change of lateness.
            done.jitters.saturating_record(late.abs_diff(done.late_last_ns).max(1));
        }
    }
    done.late_last_ns = late;
    done.late_max_ns = done.late_max_ns.max(late);
    done.last_ns = now;
    done.made += 1;
    done.bytes += len as u64;
    done.sizes[len] += 1;
}
