//! Who does the work? A thread for each answer, so that whoever waits can do so without Python's
//! lock, and hear Ctrl-C.
//!
//! The thread, and those that it starts to read, let a recorder go first at the processor and at
//! the disk. The process as a whole is the user's, and stays as it is.
//!
//! A few batches wait to be taken, so an answer costs no more memory however large it is. Where
//! nobody is left to take them the thread ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use arrow_array::RecordBatch;
use pyo3::prelude::*;
use tapdeck_store::io::{yield_disk, yield_processor};

use crate::answer::{End, Failure, Part};

/// Batches that wait to be taken.
const WAITING: usize = 2;
/// How often whoever waits looks for signals.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// Whether nobody wants the work any more.
#[derive(Clone, Default)]
pub struct Left(Arc<AtomicBool>);

impl Left {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for whoever waits elsewhere.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

/// Where an answer's parts go.
pub struct Outlet {
    sender: SyncSender<Part>,
    pub left: Left,
    is_begun: bool,
}

impl Outlet {
    /// Says that the question makes sense, once.
    pub fn begin(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.is_begun, true) { Ok(()) } else { self.send(Part::Begun) }
    }

    /// Hands on a batch, unless it is empty.
    pub fn batch(&self, batch: RecordBatch) -> Result<(), Failure> {
        if batch.num_rows() == 0 { Ok(()) } else { self.send(Part::Batch(batch)) }
    }

    fn send(&self, part: Part) -> Result<(), Failure> {
        self.sender.send(part).map_err(|_| Failure::Left)
    }
}

/// Starts a thread that makes an answer.
pub fn start(
    left: Left,
    answer: impl FnOnce(&mut Outlet) -> Result<End, Failure> + Send + 'static,
) -> std::io::Result<Receiver<Part>> {
    let (sender, receiver) = sync_channel(WAITING);
    thread::Builder::new().name("tapdeck answer".into()).spawn(move || {
        // Where these are refused, the answer is as good and only less polite.
        let _ = (yield_processor(), yield_disk());
        let mut outlet = Outlet { sender, left, is_begun: false };
        let last = answer(&mut outlet).map_or_else(Part::Failed, Part::Ended);
        // Where nobody is left, nobody needs to know.
        let _ = outlet.send(last);
    })?;
    Ok(receiver)
}

/// Does something on a thread of its own. Returns what came of it.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Left) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let left = Left::default();
    let seen = left.clone();
    thread::Builder::new().name("tapdeck".into()).spawn(move || {
        // Where these are refused, the work is as good and only less polite.
        let _ = (yield_processor(), yield_disk());
        let _ = sender.send(work(&seen));
    })?;
    // A receiver is of one thread alone, which may be another while Python's lock is free.
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let done = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(PATIENCE)
        });
        match done {
            Ok(done) => return done.map_err(|failure| PyErr::from(&failure)),
            Err(RecvTimeoutError::Disconnected) => return Err(PyErr::from(&Failure::Broken)),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| left.set())?;
            }
        }
    }
}
