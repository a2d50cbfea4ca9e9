//! Opens what the packets go to, and starts the thread that writes.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tapdeck_capture::Clock;
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::ring::Ring;
use tapdeck_store::io::Disk;
use tapdeck_store::{Deck, DeckConfig, Ending, Log, Nothing, Sink, Store, Stream, Totals, Writer};

use super::resolve::{Plan, Target};
use crate::flags::DirectChoice;

/// What the writer works on.
pub struct Job {
    pub rings: Vec<Box<dyn Ring>>,
    pub interfaces: Vec<InterfaceDescription>,
    pub totals: Arc<Totals>,
    pub clock: Arc<Clock>,
    pub stop: Arc<AtomicBool>,
    pub abandon: Arc<AtomicBool>,
    pub log: Log,
}

/// Opens the target and starts writing.
pub fn start(plan: &Plan, job: Job) -> Result<JoinHandle<Result<Ending>>> {
    match &plan.target {
        Target::Nothing => spawn(plan, job, Nothing),
        Target::Stdout => {
            let out = stdout();
            if rustix::termios::isatty(&out) {
                return Err(crate::flags::Usage(
                    "-w - writes binary data, which a terminal cannot show: pipe it into a program"
                        .into(),
                )
                .into());
            }
            stream(plan, job, out, "standard output")
        }
        Target::File(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            stream(plan, job, file, &path.display().to_string())
        }
        Target::Store { dir, segment_bytes, segment_time, retention } => {
            let store = Store::open(dir)?;
            let disk = Disk::new(direct(plan.direct, dir)?);
            let clock = job.clock.clone();
            let config = DeckConfig {
                segment_bytes: *segment_bytes,
                segment_time: *segment_time,
                retention: *retention,
                interfaces: job.interfaces.clone(),
                now_ns: Arc::new(move || clock.now_ns()),
                log: job.log.clone(),
            };
            let deck = Deck::new(disk, store, config, job.totals.clone())
                .with_context(|| format!("cannot use {}", dir.display()))?;
            spawn(plan, job, deck)
        }
    }
}

fn direct(choice: DirectChoice, dir: &Path) -> Result<bool> {
    if choice == DirectChoice::Off {
        return Ok(false);
    }
    let works =
        Disk::direct_works(dir).with_context(|| format!("cannot write in {}", dir.display()))?;
    if choice == DirectChoice::On && !works {
        anyhow::bail!(
            "the file system of {} cannot write past the page cache: leave --direct at auto",
            dir.display()
        );
    }
    Ok(works)
}

fn stream(
    plan: &Plan,
    job: Job,
    out: impl Write + Send + 'static,
    name: &str,
) -> Result<JoinHandle<Result<Ending>>> {
    let clock = job.clock.clone();
    let now_ns = Box::new(move || clock.now_ns());
    let sink = Stream::new(out, &job.interfaces, job.totals.clone(), now_ns)
        .with_context(|| format!("cannot write to {name}"))?;
    spawn(plan, job, sink)
}

fn spawn(plan: &Plan, job: Job, sink: impl Sink + 'static) -> Result<JoinHandle<Result<Ending>>> {
    let mut writer = Writer::new(job.rings, sink, job.totals);
    if let Some(count) = plan.count {
        writer = writer.limit(count);
    }
    std::thread::Builder::new()
        .name("tapdeck-writer".into())
        .spawn(move || writer.run(&job.stop, &job.abandon).context("the output failed"))
        .context("cannot start a thread")
}
