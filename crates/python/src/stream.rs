//! An answer as Python sees it: packets one by one, or a stream of Arrow batches.
//!
//! The stream goes out as the Arrow PyCapsule interface has it, so whoever knows that reads it in
//! place: pyarrow, polars, DuckDB, pandas. All ways draw from the same answer, and each packet is
//! given once.
//!
//! Nobody holds Python's lock while waiting for the thread that reads. Signals are looked for on
//! the thread that asked for the stream alone: a reader may draw from it on another, while the one
//! that asked waits for that and holds the lock.

use std::collections::VecDeque;
use std::ffi::CString;
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{
    Int8Type, Int32Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, BinaryArray, RecordBatch, RecordBatchReader, StringArray};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyString};

use crate::answer::{End, Failure, Part};
use crate::errors::{AlreadyReadError, IncompleteWarning};
use crate::packets::column;
use crate::worker::{self, Left, Outlet, PATIENCE};

/// What `Stream.end` returns: rows, whether a limit ended the answer, packets dropped and unseen,
/// packets and bytes that were shed, faults and notes.
type Told = (u64, bool, u64, u64, u64, u64, Vec<String>, Vec<String>);

const READ_ALREADY: &str =
    "the answer was read to its end, and gives each packet once: ask again for another";

/// An answer, while it is made and after.
#[pyclass(frozen, module = "tapdeck._native")]
pub struct Stream {
    schema: SchemaRef,
    /// Whether its rows are packets, which can be given one by one.
    gives_packets: bool,
    shared: Arc<Shared>,
}

/// What all that draw from an answer share.
struct Shared {
    /// Where the answer's parts come; empty once it was given up, so that its thread waits for
    /// nobody.
    parts: Mutex<Option<Receiver<Part>>>,
    state: Mutex<State>,
    /// Batches that came and whose packets are given one by one.
    rows: Mutex<VecDeque<Rows>>,
    left: Left,
    /// The process whose thread makes the answer. One that was forked from it has no such thread,
    /// and locks in it may be held by threads that it has not.
    process: u32,
}

#[derive(Default)]
struct State {
    /// How the answer ended, once it has.
    outcome: Option<Result<End, Failure>>,
    is_told: bool,
    /// What a signal or a warning raised while somebody else drew from the answer.
    raised: Option<PyErr>,
}

/// What came of waiting.
enum Waited {
    Batch(RecordBatch),
    /// The answer has ended, or failed: [`State::outcome`] says which.
    Over,
    NotYet,
    Begun,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Fails in a process that was forked after the answer began.
    fn is_ours(&self) -> Result<(), Failure> {
        if self.process == process::id() { Ok(()) } else { Err(Failure::Forked) }
    }

    /// Waits for what comes next, for so long. To be called without Python's lock.
    fn wait(&self, patience: Duration) -> Waited {
        let parts = locked(&self.parts);
        if self.is_over() {
            return Waited::Over;
        }
        let received = match &*parts {
            Some(parts) => parts.recv_timeout(patience),
            None => Ok(Part::Failed(Failure::Left)),
        };
        let outcome = match received {
            Ok(Part::Begun) => return Waited::Begun,
            Ok(Part::Batch(batch)) => return Waited::Batch(batch),
            Err(RecvTimeoutError::Timeout) => return Waited::NotYet,
            Ok(Part::Ended(end)) => Ok(end),
            Ok(Part::Failed(failure)) => Err(failure),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Broken),
        };
        locked(&self.state).outcome = Some(outcome);
        Waited::Over
    }

    fn is_over(&self) -> bool {
        locked(&self.state).outcome.is_some()
    }

    /// Says at the answer's end that it is not whole, once; raises what it failed by.
    fn tell(&self, py: Python<'_>) -> PyResult<()> {
        let lacks = {
            let mut state = locked(&self.state);
            match &state.outcome {
                Some(Err(failure)) => return Err(failure.into()),
                Some(Ok(end)) => {
                    end.lacks().filter(|_| !std::mem::replace(&mut state.is_told, true))
                }
                None => None,
            }
        };
        let Some(lacks) = lacks else { return Ok(()) };
        let text = CString::new(lacks.replace('\0', " "))?;
        PyErr::warn(py, py.get_type::<IncompleteWarning>().as_any(), &text, 1)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.left.set();
        if self.is_ours().is_err() {
            let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(parts.take());
        }
    }
}

impl Stream {
    /// Starts a thread that makes an answer, and waits until the question makes sense.
    pub fn begin(
        py: Python<'_>,
        schema: SchemaRef,
        gives_packets: bool,
        answer: impl FnOnce(&mut Outlet) -> Result<End, Failure> + Send + 'static,
    ) -> PyResult<Self> {
        let left = Left::default();
        let parts = Mutex::new(Some(worker::start(left.clone(), answer)?));
        let (state, rows) = (Mutex::default(), Mutex::default());
        let process = process::id();
        let shared = Arc::new(Shared { parts, state, rows, left, process });
        loop {
            match py.detach(|| shared.wait(PATIENCE)) {
                Waited::Begun => return Ok(Self { schema, gives_packets, shared }),
                Waited::Over => shared.tell(py)?,
                Waited::NotYet | Waited::Batch(_) => {}
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Packet>> {
        if !self.gives_packets {
            return Err(PyTypeError::new_err("rows of flows come as batches of Arrow alone"));
        }
        self.shared.is_ours()?;
        loop {
            if let Some(packet) = next_packet(py, &mut locked(&self.shared.rows)) {
                return Ok(Some(packet));
            }
            match py.detach(|| self.shared.wait(PATIENCE)) {
                Waited::Batch(batch) => {
                    let rows = Rows::of(py, batch);
                    locked(&self.shared.rows).push_back(rows);
                }
                Waited::Over => return self.shared.tell(py).map(|()| None),
                Waited::NotYet | Waited::Begun => py.check_signals()?,
            }
        }
    }

    /// Returns a capsule with a stream of the batches that were not given yet.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Who asks for other columns may get these all the same: so the interface says.
        drop(requested_schema);
        self.shared.is_ours()?;
        let asker = thread::current().id();
        let (shared, schema) = (self.shared.clone(), self.schema.clone());
        let reader = Reader { shared, schema, asker, has_begun: false };
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Returns a capsule with the schema of the batches.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref());
        let schema = schema.map_err(|e| PyErr::from(&Failure::Columns(e)))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Returns how the answer ended; None while it has not, or where it failed.
    fn end(&self) -> Option<Told> {
        let state = locked(&self.shared.state);
        let Some(Ok(end)) = &state.outcome else { return None };
        let End { rows, is_limited, dropped, unseen, shed, faults, notes } = end.clone();
        Some((rows, is_limited, dropped, unseen, shed.packets, shed.bytes, faults, notes))
    }

    /// Whether nothing more will come, though not all of it may have been given.
    fn is_over(&self) -> bool {
        self.shared.is_over() && locked(&self.shared.rows).is_empty()
    }

    /// Takes the exception that ended a stream of Arrow, of which its reader knows the text alone.
    fn failure(&self) -> Option<PyErr> {
        let mut state = locked(&self.shared.state);
        let failed = match &state.outcome {
            Some(Err(failure)) => Some(PyErr::from(failure)),
            _ => None,
        };
        state.raised.take().or(failed)
    }

    /// Gives the answer up.
    fn close(&self, py: Python<'_>) {
        if self.shared.is_ours().is_err() {
            return;
        }
        self.shared.left.set();
        // Whoever draws from it holds the lock for a moment.
        py.detach(|| drop(locked(&self.shared.parts).take()));
        locked(&self.shared.rows).clear();
    }
}

/// An answer as a reader of Arrow draws from it.
struct Reader {
    shared: Arc<Shared>,
    schema: SchemaRef,
    /// The thread that asked for the stream.
    asker: ThreadId,
    has_begun: bool,
}

impl Reader {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        self.shared.is_ours().map_err(|e| ArrowError::ExternalError(e.to_string().into()))?;
        let rest = locked(&self.shared.rows).pop_front();
        if let Some(rest) = rest.map(Rows::rest).filter(|rest| rest.num_rows() > 0) {
            self.has_begun = true;
            return Ok(Some(rest));
        }
        if !std::mem::replace(&mut self.has_begun, true) && self.shared.is_over() {
            locked(&self.shared.state).raised = Some(AlreadyReadError::new_err(READ_ALREADY));
            return Err(ArrowError::ExternalError(READ_ALREADY.into()));
        }
        let is_asker = thread::current().id() == self.asker;
        let mut waited = self.shared.wait(Duration::ZERO);
        loop {
            match waited {
                Waited::Batch(batch) => return Ok(Some(batch)),
                Waited::Over => return self.end(is_asker).map(|()| None),
                Waited::NotYet | Waited::Begun => {}
            }
            waited = if is_asker { self.wait_for_signals()? } else { self.shared.wait(PATIENCE) };
        }
    }

    /// Waits without Python's lock, whether its reader holds it or not, after a look for signals.
    fn wait_for_signals(&self) -> Result<Waited, ArrowError> {
        let waited = Python::try_attach(|py| {
            py.check_signals()?;
            Ok(py.detach(|| self.shared.wait(PATIENCE)))
        });
        match waited {
            Some(Err(e)) => Err(self.raise(e)),
            Some(Ok(waited)) => Ok(waited),
            None => Ok(self.shared.wait(PATIENCE)),
        }
    }

    /// Fails where the answer failed, and says where it is not whole.
    fn end(&self, is_asker: bool) -> Result<(), ArrowError> {
        if let Some(Err(failure)) = &locked(&self.shared.state).outcome {
            return Err(ArrowError::ExternalError(failure.to_string().into()));
        }
        let told = is_asker.then(|| Python::try_attach(|py| self.shared.tell(py))).flatten();
        told.unwrap_or(Ok(())).map_err(|e| self.raise(e))
    }

    /// Keeps an exception for whoever asks for it.
    fn raise(&self, e: PyErr) -> ArrowError {
        let text = format!("stopped by {e}");
        locked(&self.shared.state).raised = Some(e);
        ArrowError::ExternalError(text.into())
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// A batch of packets whose columns are at hand, some of which were given.
struct Rows {
    batch: RecordBatch,
    /// The row that comes next.
    at: usize,
    time: ScalarBuffer<i64>,
    interface: ScalarBuffer<i32>,
    names: Vec<Py<PyString>>,
    link_type: ScalarBuffer<u16>,
    direction: ScalarBuffer<i8>,
    is_told: Option<NullBuffer>,
    directions: Vec<Py<PyString>>,
    original_length: ScalarBuffer<u32>,
    dropped: ScalarBuffer<u64>,
    shed: ScalarBuffer<u32>,
    data: BinaryArray,
}

impl Rows {
    /// Looks at a batch of packets.
    fn of(py: Python<'_>, batch: RecordBatch) -> Self {
        let words = |words: &StringArray| -> Vec<Py<PyString>> {
            words.iter().flatten().map(|word| PyString::intern(py, word).unbind()).collect()
        };
        let column = |at: usize| batch.column(at);
        let interface = column(column::INTERFACE).as_dictionary::<Int32Type>();
        let direction = column(column::DIRECTION).as_dictionary::<Int8Type>();
        let length = column(column::ORIGINAL_LENGTH).as_primitive::<UInt32Type>();
        let time = column(column::TIME).as_primitive::<TimestampNanosecondType>();
        Self {
            at: 0,
            time: time.values().clone(),
            interface: interface.keys().values().clone(),
            names: words(interface.values().as_string()),
            link_type: column(column::LINK_TYPE).as_primitive::<UInt16Type>().values().clone(),
            direction: direction.keys().values().clone(),
            is_told: direction.keys().nulls().cloned(),
            directions: words(direction.values().as_string()),
            original_length: length.values().clone(),
            dropped: column(column::DROPPED).as_primitive::<UInt64Type>().values().clone(),
            shed: column(column::SHED).as_primitive::<UInt32Type>().values().clone(),
            data: column(column::DATA).as_binary().clone(),
            batch,
        }
    }

    /// Returns the rows that were not given.
    fn rest(self) -> RecordBatch {
        self.batch.slice(self.at, self.batch.num_rows() - self.at)
    }

    fn next(&mut self, py: Python<'_>) -> Option<Packet> {
        let at = self.at;
        let time_ns = *self.time.get(at)?;
        self.at += 1;
        let is_told = self.is_told.as_ref().is_none_or(|told| told.is_valid(at));
        let direction = &self.directions[self.direction[at] as usize];
        Some(Packet {
            time_ns,
            interface: self.names[self.interface[at] as usize].clone_ref(py),
            link_type: self.link_type[at],
            direction: is_told.then(|| direction.clone_ref(py)),
            original_length: self.original_length[at],
            dropped: self.dropped[at],
            shed: self.shed[at],
            data: PyBytes::new(py, self.data.value(at)).unbind(),
        })
    }
}

/// Takes the packet that comes next out of batches.
fn next_packet(py: Python<'_>, rows: &mut VecDeque<Rows>) -> Option<Packet> {
    loop {
        let packet = rows.front_mut()?.next(py);
        if packet.is_some() {
            return packet;
        }
        rows.pop_front();
    }
}

/// A packet of an answer.
#[pyclass(frozen, get_all, module = "tapdeck._native")]
pub struct Packet {
    /// When it was recorded: nanoseconds since 1970-01-01, UTC.
    time_ns: i64,
    /// The name of the interface that it passed.
    interface: Py<PyString>,
    /// What `data` begins with, as a LINKTYPE of tcpdump.org: 1 is Ethernet.
    link_type: u16,
    /// "in" if the interface received it, "out" if that sent it; None where nothing tells.
    direction: Option<Py<PyString>>,
    /// The length in bytes on the wire, of which `data` is what was recorded.
    original_length: u32,
    /// Packets that the recorder dropped since the packet before it of the same interface in the
    /// answer.
    dropped: u64,
    /// Bytes of it that were given up when a ring was nearly full.
    shed: u32,
    /// The frame, from its link layer on.
    data: Py<PyBytes>,
}

#[pymethods]
impl Packet {
    /// When it was recorded, as a datetime of UTC, cut to microseconds.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static EPOCH: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
        let (epoch, delta) = EPOCH.get_or_try_init(py, || {
            let module = py.import("datetime")?;
            let utc = module.getattr("timezone")?.getattr("utc")?;
            let epoch = module.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?;
            Ok::<_, PyErr>((epoch.unbind(), module.getattr("timedelta")?.unbind()))
        })?;
        let since = delta.bind(py).call1((0, 0, self.time_ns.div_euclid(1000)))?;
        epoch.bind(py).add(since)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let time = tapdeck_store::time::show(self.time_ns);
        let interface = self.interface.bind(py).to_str()?;
        let interface = tapdeck_packet::printable::name(interface);
        let direction = match &self.direction {
            Some(direction) => format!(" {}", direction.bind(py).to_str()?),
            None => String::new(),
        };
        let (len, of) = (self.data.bind(py).as_bytes().len(), self.original_length);
        Ok(format!("<Packet {time} {interface}{direction}, {len} of {of} bytes>"))
    }
}
