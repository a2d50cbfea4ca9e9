//! Where packets go: opens the output, and starts the thread that writes to it.
//!
//! Opening and starting are apart, so that an output that cannot be had stops the recording before
//! a hook is attached, and a hook that cannot be had leaves the output as it was. How packets are
//! written is the affair of `tapdeck_store`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use tapdeck_capture::Clock;
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::ring::Ring;
use tapdeck_store::io::{Disk, Uptime, go_as_others, go_first};
use tapdeck_store::{
    Ending, Indexing, Ledger, Log, Nothing, SegmentSink, SegmentSinkConfig, Sink, Store,
    StreamSink, Totals, Writer, WriterControl,
};

use super::lasting::Lasting;
use super::recovery::Recovery;
use super::resolve::{RecordPlan, Target};
use crate::flags::DirectChoice;
use crate::output_file::OutputFile;
use crate::standard_output;

type Job = Box<dyn FnOnce() -> Result<Ending> + Send>;

/// The writer's thread, which waits until it is told what to write. It is started before the rest
/// by a thread that goes first, as it may itself: without capabilities none can begin to.
pub struct WriterThread {
    job: Sender<Job>,
    thread: JoinHandle<Result<Ending>>,
}

impl WriterThread {
    /// Starts the thread. The one that starts it goes as others do from then on.
    pub fn start() -> Result<Self> {
        let (job, wait) = channel::<Job>();
        // Nothing is to be written where the recording does not begin.
        let run = move || wait.recv().map_or(Ok(Ending::Asked), |job| job());
        let thread = std::thread::Builder::new().name("tapdeck-writer".into()).spawn(run);
        let _ = go_as_others();
        Ok(Self { job, thread: thread.context("cannot start a thread")? })
    }

    fn begin(self, job: Job) -> Result<JoinHandle<Result<Ending>>> {
        self.job.send(job).ok().context("the writer's thread has ended")?;
        Ok(self.thread)
    }
}

/// What the writer's thread is given.
pub struct WriterSetup {
    pub thread: WriterThread,
    pub rings: Vec<Box<dyn Ring>>,
    /// How long the writer sleeps at most.
    pub sleep: Duration,
    pub interfaces: Vec<InterfaceDescription>,
    pub totals: Arc<Totals>,
    pub clock: Arc<Clock>,
    pub writer_control: Arc<WriterControl>,
    pub log: Log,
    /// Where the writer of a lasting recording notes what it does.
    pub ledger: Option<Box<dyn Ledger>>,
    /// Losses that segments of owners before tell, by interface.
    pub told_lost: Vec<u64>,
}

/// The threads of an output.
pub struct Started {
    pub writer: JoinHandle<Result<Ending>>,
    pub recovery: Option<Recovery>,
}

/// An output that is open, and that nothing was written to yet.
pub enum Output {
    Nothing,
    Pipe(File),
    File(OutputFile),
    Store(Store, Disk),
}

impl Output {
    pub fn open(plan: &RecordPlan, lasting: Option<&Lasting>) -> Result<Self> {
        match &plan.target {
            Target::Nothing => Ok(Self::Nothing),
            Target::Stdout => {
                standard_output::refuse_terminal()?;
                Ok(Self::Pipe(standard_output::open()?))
            }
            Target::File(path) => Ok(Self::File(OutputFile::open(path)?)),
            Target::Store { dir, .. } => {
                let mut store = Store::open(dir)?;
                if let Some(lasting) = lasting {
                    lasting.cut(&mut store)?;
                }
                let disk = Disk::new(direct(plan.direct, dir)?).with_mode(plan.files.mode);
                Ok(Self::Store(store, disk))
            }
        }
    }

    /// Starts the thread that writes, and the one that mends what an earlier recorder left.
    pub fn start(self, plan: &RecordPlan, job: WriterSetup) -> Result<Started> {
        let writer = match (self, &plan.target) {
            (
                Self::Store(mut store, disk),
                Target::Store { dir, segment_bytes, segment_time, retention, index },
            ) => {
                let leftovers = store.take_leftovers(&disk);
                let (clock, log) = (job.clock.clone(), job.log.clone());
                let indexing = index.map(|index| Indexing {
                    threads: index.threads(job.rings.len()),
                    cpu: index.cpu,
                    control: job.writer_control.clone(),
                });
                let config = SegmentSinkConfig {
                    segment_bytes: *segment_bytes,
                    segment_time: *segment_time,
                    retention: *retention,
                    sync_interval: plan.sync_interval,
                    interfaces: job.interfaces.clone(),
                    now_ns: Arc::new(move || clock.now_ns()),
                    uptime: Uptime::of_machine(),
                    log: job.log.clone(),
                    indexing,
                };
                let sink = SegmentSink::new(disk, store, config, job.totals.clone())
                    .with_context(|| format!("cannot use {}", dir.display()))?
                    .resume(&job.told_lost);
                let writer = spawn(plan, job, sink, disk.is_direct())?;
                let recovery = Recovery::start(leftovers, index.is_some(), plan.files.mode, log);
                return Ok(Started { writer, recovery });
            }
            (Self::Pipe(file), _) => stream(plan, job, (file, standard_output::NAME), None),
            (Self::File(mut file), _) => {
                let name = file.name();
                let file = file.begin().with_context(|| format!("cannot write {name}"))?;
                stream(plan, job, (file, &name), Some(file_dir(&name)))
            }
            _ => spawn(plan, job, Nothing, false),
        };
        Ok(Started { writer: writer?, recovery: None })
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

/// Returns the directory that a file has its name in.
fn file_dir(name: &str) -> PathBuf {
    match Path::new(name).parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => ".".into(),
    }
}

fn stream(
    plan: &RecordPlan,
    job: WriterSetup,
    (out, name): (File, &str),
    dir: Option<PathBuf>,
) -> Result<JoinHandle<Result<Ending>>> {
    let clock = job.clock.clone();
    let now_ns = Box::new(move || clock.now_ns());
    let cannot = || format!("cannot write to {name}");
    let mut sink = StreamSink::of_file(out, &job.interfaces, job.totals.clone(), now_ns)
        .with_context(cannot)?;
    if let Some(interval) = plan.sync_interval {
        sink = sink.sync_every(interval, dir).with_context(cannot)?;
    }
    spawn(plan, job, sink, false)
}

/// Starts the writer. A writer past the page cache `goes_first` at the processor: the disk fetches
/// packets itself, so the writer needs moments alone, and queries and the index must not keep a
/// block from the disk.
fn spawn(
    plan: &RecordPlan,
    job: WriterSetup,
    sink: impl Sink + 'static,
    goes_first: bool,
) -> Result<JoinHandle<Result<Ending>>> {
    let interfaces = job.interfaces.len();
    let mut writer = Writer::new(job.rings, sink, job.totals).sleep_at_most(job.sleep);
    writer = writer.rest_at_most(plan.flush / 3).begin_with(interfaces);
    if let Some(count) = plan.count {
        writer = writer.limit(count);
    }
    if let Some(ledger) = job.ledger {
        writer = writer.note_in(ledger);
    }
    let run = move || {
        // Without the privilege the writer waits for its turn like others.
        let _ = if goes_first { go_first() } else { go_as_others() };
        writer.run(&job.writer_control).context("the output failed")
    };
    job.thread.begin(Box::new(run))
}
