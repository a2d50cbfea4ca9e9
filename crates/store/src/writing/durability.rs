//! How much of what was written would a power cut take? What is written is in the disk's cache, or
//! in the machine's, until somebody makes it durable: the [`Syncer`]'s thread does, twice in each
//! interval that the user gave.
//!
//! A packet that is written just after a sync began waits for the next one, half an interval later,
//! and then for that to end. So as long as a sync takes no longer than half an interval, nothing
//! that was written a whole interval ago can be taken.
//!
//! The writer never waits for a sync: it counts what it has written, and looks whether a sync has
//! failed. After one that failed nobody knows what of the file is on disk, and the kernel says so
//! only once (fsync(2)); so the file is then left, and what was written since the last good sync
//! counts as not written.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tapdeck_packet::watch::{waiting, watch};

use crate::io::Io;
use crate::writing::totals::Totals;

/// Makes something durable.
pub(crate) type SyncCall = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Packets and bytes of their frames, by interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub packets: Vec<u64>,
    pub frame_bytes: Vec<u64>,
}

impl Counts {
    fn none(interfaces: usize) -> Self {
        Self { packets: vec![0; interfaces], frame_bytes: vec![0; interfaces] }
    }

    fn less(&self, other: &Self) -> Self {
        let less = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| a - b).collect();
        Self {
            packets: less(&self.packets, &other.packets),
            frame_bytes: less(&self.frame_bytes, &other.frame_bytes),
        }
    }
}

/// What was written to an output, and how much of that is durable.
pub(crate) struct Durability {
    sync_contents: SyncCall,
    sync_name: SyncCall,
    totals: Arc<Totals>,
    /// Bytes written.
    bytes: AtomicU64,
    packets: Vec<AtomicU64>,
    frame_bytes: Vec<AtomicU64>,
    /// Locked while a sync is under way: of two at once only one would hear of an error.
    state: Mutex<State>,
    has_failed: AtomicBool,
    /// Whether nothing is written any more, and somebody else makes all of it durable.
    has_ended: AtomicBool,
}

struct State {
    /// What was written when the last good sync began.
    bytes: u64,
    counts: Counts,
    /// What is not durable was written after this.
    since: Instant,
    /// Whether the file's name is durable.
    has_name: bool,
    /// Packets that `Totals` counts as durable.
    counted: Vec<u64>,
    /// The error of a sync that failed, until it is told.
    error: Option<io::Error>,
}

impl Durability {
    /// Makes the account of an output that nothing was written to, and that gets packets of so many
    /// interfaces.
    pub fn new(
        sync_contents: SyncCall,
        sync_name: SyncCall,
        totals: Arc<Totals>,
        interfaces: usize,
    ) -> Self {
        let zeros = || (0..interfaces).map(|_| AtomicU64::new(0)).collect();
        let state = State {
            bytes: 0,
            counts: Counts::none(interfaces),
            since: Instant::now(),
            has_name: false,
            counted: vec![0; interfaces],
            error: None,
        };
        Self {
            sync_contents,
            sync_name,
            totals,
            bytes: AtomicU64::new(0),
            packets: zeros(),
            frame_bytes: zeros(),
            state: Mutex::new(state),
            has_failed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Counts packets of an interface that were written.
    pub fn wrote_packets(&self, interface: usize, packets: u64, frame_bytes: u64) {
        if let Some(counted) = self.packets.get(interface) {
            Totals::add(counted, packets);
            Totals::add(&self.frame_bytes[interface], frame_bytes);
        }
    }

    /// Counts bytes that were written.
    pub fn wrote_bytes(&self, bytes: u64) {
        Totals::add(&self.bytes, bytes);
    }

    /// Returns whether a sync has failed, after which nothing more may be written.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Makes durable what was written since the last call, if there is anything. One that is being
    /// ended is left to whoever ends it.
    fn keep_up(&self) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if self.has_ended() || self.has_failed() {
            return;
        }
        let kept = self.sync(&mut state, false).and_then(|()| self.name(&mut state));
        if let Err(e) = kept {
            // Whoever ends the output tells the error.
            self.has_failed.store(true, Relaxed);
            state.error = Some(e);
        }
    }

    /// Makes the contents of an output durable that nothing is written to any more. Its name may
    /// still change.
    ///
    /// # Errors
    /// Those of this sync, or of an earlier one: nobody knows whether what [`Durability::unsure`]
    /// returns is on disk.
    pub fn end(&self) -> io::Result<()> {
        self.has_ended.store(true, Relaxed);
        let mut state = self.lock();
        if let Some(e) = state.error.take() {
            return Err(e);
        }
        self.sync(&mut state, true)
    }

    /// Makes the name of an output durable that has ended and that keeps its name.
    pub fn keep_name(&self) -> io::Result<()> {
        self.name(&mut self.lock())
    }

    /// Takes note that the name of an output that has ended is durable.
    pub fn has_name(&self) {
        let mut state = self.lock();
        state.has_name = true;
        self.count(&mut state);
    }

    /// Returns what was written since the last good sync: everything, where not even the name is
    /// durable.
    pub fn unsure(&self) -> Counts {
        let state = self.lock();
        let written = self.counts();
        if state.has_name { written.less(&state.counts) } else { written }
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Who has it may be waiting for the disk.
        waiting(|| self.state.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> Counts {
        let read = |counts: &[AtomicU64]| counts.iter().map(|n| n.load(Relaxed)).collect();
        Counts { packets: read(&self.packets), frame_bytes: read(&self.frame_bytes) }
    }

    fn sync(&self, state: &mut State, is_last: bool) -> io::Result<()> {
        let began = Instant::now();
        // Read before the sync: what is counted here was written before.
        let (bytes, counts) = (self.bytes.load(Relaxed), self.counts());
        let has_more = bytes > state.bytes;
        if has_more || is_last {
            waiting(|| (self.sync_contents)())?;
        }
        if has_more {
            let ns = state.since.elapsed().as_nanos() as u64;
            self.totals.unsynced_ns_max.fetch_max(ns, Relaxed);
        }
        (state.bytes, state.counts, state.since) = (bytes, counts, began);
        Ok(())
    }

    fn name(&self, state: &mut State) -> io::Result<()> {
        if !state.has_name {
            waiting(|| (self.sync_name)())?;
            state.has_name = true;
        }
        self.count(state);
        Ok(())
    }

    fn count(&self, state: &mut State) {
        let State { counts, counted, .. } = state;
        for ((totals, now), before) in
            self.totals.interfaces.iter().zip(&counts.packets).zip(&mut *counted)
        {
            Totals::add(&totals.durable, now - *before);
            *before = *now;
        }
    }
}

const NOT_TO_BE_HAD: [ErrorKind; 3] =
    [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied];

/// Makes names in a directory durable, as far as its file system can.
pub(crate) fn sync_directory<I: Io>(io: &I, dir: &Path) -> io::Result<()> {
    match io.sync_dir(dir) {
        // Some file systems know no such call, and a directory that may be written need not be
        // one that may be opened. Names are then kept as well as they can be.
        Err(e) if NOT_TO_BE_HAD.contains(&e.kind()) => Ok(()),
        done => done,
    }
}

/// The thread that makes outputs durable while they are written.
pub(crate) struct Syncer {
    outputs: Option<Sender<Arc<Durability>>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread. Nothing that was written as long ago as `interval` is without a sync that
    /// has ended, unless one takes more than half of that.
    pub fn start(interval: Duration, totals: Arc<Totals>) -> io::Result<Self> {
        let (outputs, queue) = channel();
        let thread = std::thread::Builder::new()
            .name("tapdeck-sync".into())
            .spawn(move || run(interval / 2, &totals, &queue))?;
        Ok(Self { outputs: Some(outputs), thread: Some(thread) })
    }

    /// Makes an output durable from now on, until it has ended.
    pub fn begin(&self, output: Arc<Durability>) {
        if let Some(outputs) = &self.outputs {
            // The thread ends only when this sender is dropped.
            let _ = outputs.send(output);
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.outputs = None;
        if let Some(thread) = self.thread.take() {
            let _ = waiting(|| thread.join());
        }
    }
}

fn run(every: Duration, totals: &Totals, queue: &Receiver<Arc<Durability>>) {
    // A segment that was closed by the writer may wait for the keeper; until then it is kept up
    // beside the one that is written.
    let mut outputs: Vec<Arc<Durability>> = Vec::new();
    let mut next = Instant::now() + every;
    let mut pass = 0;
    watch("tapdeck-sync");
    loop {
        let left = next.saturating_duration_since(Instant::now());
        match waiting(|| queue.recv_timeout(left)) {
            Ok(output) => outputs.push(output),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                next = Instant::now() + every;
                pass += 1;
                totals.sync_under_way.store(pass, Relaxed);
                for output in &outputs {
                    output.keep_up();
                }
                totals.sync_under_way.store(0, Relaxed);
                outputs.retain(|output| !output.has_ended());
            }
        }
    }
}
