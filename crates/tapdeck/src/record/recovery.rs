//! What becomes of the segments that an earlier recorder did not close? They are mended on a thread
//! of its own while packets are recorded: it begins when the hooks are attached and the writer
//! runs, and everybody else goes first at the disk and at the processor.
//!
//! Nothing in a leftover keeps this recorder from recording. A recovery that is not done when the
//! recorder ends is finished by the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tapdeck_packet::watch;
use tapdeck_store::io::{Disk, yield_disk, yield_processor};
use tapdeck_store::{Leftovers, Log};

use crate::recover::describe;

/// How long the end of the recorder waits for a recovery that may soon be done, and then for the
/// call to the file system that is under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// A recovery that goes on beside a recording.
pub struct Recovery {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    log: Log,
}

impl Recovery {
    /// Begins to mend what is left; `index` says whether it gets indexes, and `mode` which
    /// permission bits those have. `None` where nothing is left.
    pub fn start(leftovers: Leftovers, index: bool, mode: Option<u32>, log: Log) -> Option<Self> {
        if leftovers.count() == 0 {
            return None;
        }
        let stops = Arc::new(AtomicBool::new(false));
        let work = {
            let (stops, log) = (stops.clone(), log.clone());
            move || {
                watch::watch("tapdeck-recover");
                // Where one of these is refused, this thread is as important as others.
                let _ = yield_disk();
                let _ = yield_processor();
                let each = |finding: &_| log(&describe(finding, false));
                leftovers.recover(&Disk::new(false).with_mode(mode), index, &stops, each);
            }
        };
        match std::thread::Builder::new().name("tapdeck-recover".into()).spawn(work) {
            Ok(thread) => Some(Self { stops, thread, log }),
            Err(e) => {
                log(&format!("cannot recover what an earlier recorder left: {e}"));
                None
            }
        }
    }

    /// Ends the recovery soon, and at once if somebody `is_hurried`.
    pub fn end(self, is_hurried: impl Fn() -> bool) {
        if self.is_done_soon(is_hurried) {
            return;
        }
        self.stops.store(true, Relaxed);
        // Whether it is done after all is known to the next recorder.
        self.is_done_soon(|| false);
        (self.log)(
            "what an earlier recorder left is not recovered yet: the next one does that, or tapdeck recover",
        );
    }

    /// Waits a while for the thread's end. Returns whether it came.
    fn is_done_soon(&self, is_hurried: impl Fn() -> bool) -> bool {
        let since = Instant::now();
        while !self.thread.is_finished() {
            watch::beat();
            if since.elapsed() > PATIENCE || is_hurried() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}
