//! `tapdeck gen`: from the flags to senders at work, and the record of what they sent.
//!
//! A sender is a thread with an interface; it makes packets itself or has them made in the kernel.
//! The main thread starts all senders at once, looks after them, and adds up what they did. What
//! packets are and when they are due is `tapdeck_traffic`'s; how they leave is `tapdeck_capture`'s.

mod backend;
mod interfaces;
mod report;
mod resolve;
mod worker;

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::Signal;
use signal_hook::consts::SIGURG;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::live::Live;
use tapdeck_capture::transmit::{PacketSender, Qdisc, Sender, XdpSender};
use tapdeck_packet::generate::Limits;
use tapdeck_traffic::frame::Frames;
use tapdeck_traffic::pacing::Schedule;
use tapdeck_traffic::source::{Generated, PacketSource};

use crate::flags;
use crate::interrupt::Interrupt;
use backend::Backend;
use report::Report;
use resolve::{Generation, Job, Load};
use worker::{Done, Here, Shared, Watch};

/// How often the main thread looks after a run.
const TICK: Duration = Duration::from_millis(5);
/// How often the main thread looks whether the interfaces are still there.
const LOOK: Duration = Duration::from_millis(200);

/// How long a thread, or a thread's run in the kernel, takes to be set up. Threads may have to take
/// turns at it.
const THREAD_SETTLES_NS: u64 = 2_000_000;
const KERNEL_SETTLES_NS: u64 = 40_000_000;

/// A sender, ready to go.
enum Ready {
    Kernel(Box<Live>),
    Here(Box<Here>),
}

/// A sender at work.
struct Running {
    watch: Watch,
    thread: JoinHandle<Done>,
}

/// Sends until everything is sent or the user ends it.
pub fn run(flags: &flags::Gen) -> Result<()> {
    let mut job = Job::new(flags)?;
    let report = Report::new(flags.json.as_deref())?;
    let interrupt = Interrupt::listen()?;
    // Senders in the kernel are woken by this signal, which only has to interrupt them.
    signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false)))
        .context("cannot listen for signals")?;
    let ready = match prepare(&mut job) {
        // The user left the back end open, so another one may do.
        Err(e) if job.backend == Backend::Xdp && job.reason.is_some() => {
            job.backend = Backend::Packet;
            job.reason = Some(format!("xdp cannot be had: {}", e.root_cause()));
            prepare(&mut job)?
        }
        ready => ready?,
    };
    report::started(&job);
    let running = start(&job, ready)?;
    let trouble = look_after(&job, &running, &interrupt);
    let mut done = Vec::new();
    for sender in running {
        done.push(sender.thread.join().map_err(|_| anyhow!("a sender failed"))?);
    }
    let failed = (0..).zip(&mut done).find_map(|(sender, d)| {
        let error = d.error.take()?;
        Some(backend::ended(&place(&job, sender).0.name, &error))
    });
    let is_whole = trouble.is_none() && failed.is_none();
    let sent = report.finished(&job, &done, interrupt.asked() || !is_whole)?;
    if let Some(failed) = trouble.map(|text| anyhow!(text)).or(failed) {
        return Err(failed);
    }
    // Kernels before 6.3 do not tell beforehand that the interface takes nothing.
    anyhow::ensure!(
        job.backend != Backend::Xdp || sent.sent > 0 || sent.refused == 0,
        "{} took none of the packets; {}",
        names(&job.interfaces),
        backend::NEEDS_A_FAR_END
    );
    Ok(())
}

fn names(interfaces: &[Interface]) -> String {
    interfaces.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns the interface of a sender, and which of the interface's threads the sender is.
fn place(job: &Job, sender: u32) -> (&Interface, u32) {
    (&job.interfaces[(sender / job.threads) as usize], sender % job.threads)
}

fn prepare(job: &mut Job) -> Result<Vec<Ready>> {
    if let Load::Recorded(recording) = &mut job.load {
        let longest = recording.contents.longest;
        let replay = recording.replay.take().expect("it is prepared once");
        return Ok(vec![here(socket(job, 0, longest)?, replay)]);
    }
    let Load::Generated(generation) = &job.load else {
        unreachable!("recordings are dealt with above")
    };
    let limits = job.limits_of_each(&generation.shares);
    let senders = (0..).zip(limits);
    senders.map(|(sender, limits)| generator(job, generation, sender, limits)).collect()
}

fn generator(job: &Job, generation: &Generation, sender: u32, limits: Limits) -> Result<Ready> {
    let Generation { workload, table, rate, gaps, shares } = generation;
    let plan = workload.plan(sender, table.sizes(sender, job.senders()), table.longest());
    let mark_every_ns = workload.mark.map_or(0, |mark| mark.every_ns);
    let pace = rate.pace(shares[sender as usize], sender);
    if job.backend == Backend::Xdp {
        let (interface, _) = place(job, sender);
        let live = Live::open(interface.index, &plan, mark_every_ns, pace, limits);
        let live = live.map_err(|e| backend::explain(job.backend, interface, e))?;
        return Ok(Ready::Kernel(Box::new(live)));
    }
    let schedule = pace.map(|pace| Schedule::new(pace, *gaps, plan.seed));
    let source = Generated::new(Frames::new(plan), schedule, limits, mark_every_ns);
    Ok(here(socket(job, sender, table.longest().into())?, Box::new(source)))
}

fn here(sender: Box<dyn Sender>, source: Box<dyn PacketSource>) -> Ready {
    Ready::Here(Box::new(Here { sender, source, shared: Arc::new(Shared::default()) }))
}

/// Opens a socket that sends finished frames of `longest` bytes at most.
fn socket(job: &Job, sender: u32, longest: usize) -> Result<Box<dyn Sender>> {
    let (interface, queue) = place(job, sender);
    let explain = |e| backend::explain(job.backend, interface, e);
    Ok(match job.backend {
        Backend::AfXdp => Box::new(XdpSender::open(interface, queue, longest).map_err(explain)?),
        _ => Box::new(PacketSender::open(interface, longest, Qdisc::Bypassed).map_err(explain)?),
    })
}

/// Starts all senders at once.
fn start(job: &Job, ready: Vec<Ready>) -> Result<Vec<Running>> {
    let together = Arc::new(Barrier::new(ready.len()));
    // One sender alone starts when it is ready. Several start together, when all should be ready.
    let senders = ready.len() as u64;
    let settle = if job.backend == Backend::Xdp { KERNEL_SETTLES_NS } else { THREAD_SETTLES_NS };
    let start_ns = (senders > 1).then(|| worker::now_ns() + senders * settle);
    let mut running = Vec::new();
    for (i, sender) in ready.into_iter().enumerate() {
        let cpu = (!job.cpus.is_empty()).then(|| job.cpus[i % job.cpus.len()]);
        let together = together.clone();
        let watch = match &sender {
            Ready::Kernel(live) => Watch::Kernel(live.monitor()),
            Ready::Here(here) => Watch::Here(here.shared.clone()),
        };
        let work = move || {
            if let Some(cpu) = cpu {
                // Pinning to this CPU was tried before and works.
                let _ = worker::pin(cpu);
            }
            together.wait();
            match sender {
                Ready::Kernel(live) => worker::in_kernel(&live, start_ns),
                Ready::Here(here) => here.run(start_ns),
            }
        };
        let thread = std::thread::Builder::new().name("tapdeck-sender".into()).spawn(work);
        running.push(Running { watch, thread: thread.context("cannot start a thread")? });
    }
    Ok(running)
}

/// Waits until all senders have ended. Returns what went wrong with an interface, if anything.
fn look_after(job: &Job, running: &[Running], interrupt: &Interrupt) -> Option<String> {
    let mut line = report::Live::new(job.packets());
    let mut looked = Instant::now();
    let mut trouble = None;
    while running.iter().any(|r| !r.thread.is_finished()) {
        std::thread::sleep(TICK);
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            trouble = trouble.or_else(|| job.interfaces.iter().find_map(look_at));
            line.show(running.iter().map(|r| &r.watch));
        }
        for sender in running {
            if interrupt.asked() || trouble.is_some() {
                sender.watch.stop();
            }
            if sender.watch.wants_signal() && !sender.thread.is_finished() {
                // The thread may have ended in this moment, which is as well.
                let _ = pthread_kill(sender.thread.as_pthread_t(), Signal::SIGURG);
            }
        }
    }
    trouble
}

/// Returns what keeps an interface from sending, if anything.
fn look_at(interface: &Interface) -> Option<String> {
    let name = &interface.name;
    match Interface::by_index(interface.index) {
        Ok(None) => Some(format!("{name} is gone")),
        Ok(Some(i)) if !i.up => Some(format!("{name} went down")),
        Ok(Some(i)) if !i.running => Some(format!("{name} lost its link")),
        _ => None,
    }
}
