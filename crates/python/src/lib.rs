//! The native half of the Python module `tapdeck`: packets of stores, and their flows, as Arrow.
//!
//! The other half, in `python/tapdeck`, is what users see: it turns their words into questions, has
//! the documentation, and hands whole answers to pyarrow, pandas and polars. Here questions are
//! answered:
//!
//! - `answer`: what an answer is made of, and how it ends.
//! - `worker`: each answer is made on a thread of its own, which yields to a recorder and holds no
//!   lock of Python; few batches wait.
//! - `packets`, `flows`: what that thread does; how packets and rows become columns.
//! - `place`: where a store lies, and who reads it there.
//! - `stream`: an answer as Python sees it: an iterator of packets, or a stream of Arrow.
//! - `errors`: what went wrong, as exceptions.
//!
//! What decides which packets are in an answer is `tapdeck_store`'s, and what rows are is
//! `tapdeck_flow`'s: nothing of that is done again here.

mod answer;
mod errors;
mod flows;
mod packets;
mod place;
mod stream;
mod worker;

/// The functions and types of the module, which `python/tapdeck/_native.pyi` describes.
#[pyo3::pymodule]
mod _native {
    use std::path::PathBuf;

    use pyo3::prelude::*;
    use tapdeck_packet::community_id::CommunityId;
    use tapdeck_store::choice::{Direction, Wanted};
    use tapdeck_store::query::{Note, Search, Span};
    use tapdeck_store::stat::{
        Question, Report, Unusable, stat as of_directory, stat_captures, stat_in,
    };

    use crate::answer::Failure;
    use crate::errors::{QuestionError, TimeError};
    use crate::{packets, place, worker};

    #[pymodule_export]
    use crate::stream::{Packet, Stream};

    /// Looks whether there is a store at a path or a URL, or are capture files at a path.
    #[pyfunction]
    fn check(py: Python<'_>, path: PathBuf) -> PyResult<()> {
        worker::wait(py, move |left| {
            let nothing = Span { after_ns: i64::MAX, before_ns: i64::MAX };
            place::look_at(&path, nothing, Search::default(), left).map(drop)
        })
    }

    /// Reads a point in time as `tapdeck query --after` does. Returns UTC nanoseconds since 1970.
    #[pyfunction]
    fn parse_time(text: &str) -> PyResult<i64> {
        tapdeck_store::time::point(text)
            .map_err(|why| TimeError::new_err(format!("{text:?} {why}")))
    }

    /// Begins an answer of packets.
    #[pyfunction]
    #[pyo3(signature = (path, expression, *, after, before, community_id, interfaces, direction, inner, limit))]
    #[allow(clippy::too_many_arguments, reason = "each is one of Python's")]
    fn query(
        py: Python<'_>,
        path: PathBuf,
        expression: String,
        after: i64,
        before: i64,
        community_id: Option<&str>,
        interfaces: Vec<String>,
        direction: Option<&str>,
        inner: bool,
        limit: Option<u64>,
    ) -> PyResult<Stream> {
        let wanted = wanted(expression, community_id, interfaces, direction, inner)?;
        let span = Span { after_ns: after, before_ns: before };
        let limit = limit.unwrap_or(u64::MAX);
        let question = packets::Question { path, wanted, span, limit, cache: cache() };
        let schema = packets::schema();
        Stream::begin(py, schema, true, move |outlet| packets::answer(&question, outlet))
    }

    /// Returns the spans of time into which an answer of packets is cut, so that about so many
    /// bytes have to be read for each.
    #[pyfunction]
    #[pyo3(signature = (path, expression, *, after, before, community_id, interfaces, direction, inner, bytes))]
    #[allow(clippy::too_many_arguments, reason = "each is one of Python's")]
    fn split(
        py: Python<'_>,
        path: PathBuf,
        expression: String,
        after: i64,
        before: i64,
        community_id: Option<&str>,
        interfaces: Vec<String>,
        direction: Option<&str>,
        inner: bool,
        bytes: u64,
    ) -> PyResult<Vec<(i64, i64)>> {
        let wanted = wanted(expression, community_id, interfaces, direction, inner)?;
        let (span, cache) = (Span { after_ns: after, before_ns: before }, cache());
        let question = packets::Question { path, wanted, span, limit: u64::MAX, cache };
        let spans = worker::wait(py, move |left| packets::split(&question, bytes, left))?;
        Ok(spans.iter().map(|span| (span.after_ns, span.before_ns)).collect())
    }

    /// Returns which packets are wanted, in the words of the store.
    fn wanted(
        expression: String,
        community_id: Option<&str>,
        interfaces: Vec<String>,
        direction: Option<&str>,
        inner: bool,
    ) -> PyResult<Wanted> {
        let flow = community_id.map(|id| {
            let parsed = id.parse::<CommunityId>();
            parsed.map_err(|e| QuestionError::new_err(format!("community_id: {id:?} {e}")))
        });
        let direction = direction.map(|direction| match direction {
            "in" => Ok(Direction::In),
            "out" => Ok(Direction::Out),
            other => Err(QuestionError::new_err(format!(
                "direction: {other:?} is none; write \"in\" or \"out\""
            ))),
        });
        let (flow, direction) = (flow.transpose()?, direction.transpose()?);
        Ok(Wanted { expression, inner, interfaces, direction, flow })
    }

    /// Begins an answer of rows of flows.
    #[pyfunction]
    #[pyo3(signature = (path, expression, *, after, before, sensor))]
    fn flows(
        py: Python<'_>,
        path: PathBuf,
        expression: String,
        after: i64,
        before: i64,
        sensor: Option<String>,
    ) -> PyResult<Stream> {
        let this_machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let sensor = sensor.unwrap_or_else(this_machine);
        let span = Span { after_ns: after, before_ns: before };
        let question = crate::flows::Question { path, expression, span, sensor, cache: cache() };
        let schema = crate::flows::schema();
        Stream::begin(py, schema, false, move |outlet| crate::flows::answer(&question, outlet))
    }

    /// Returns the names of a store's segments, oldest first.
    #[pyfunction]
    fn segments(py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
        worker::wait(py, move |left| place::segments(&path, left))
    }

    /// Tells what is at a path. Returns the report as `tapdeck stat --json` writes it, and what the
    /// report lacks, a sentence each.
    #[pyfunction]
    #[pyo3(signature = (path, *, after, before, top))]
    fn stat(
        py: Python<'_>,
        path: PathBuf,
        after: i64,
        before: i64,
        top: usize,
    ) -> PyResult<(String, Vec<String>)> {
        use tapdeck_store::query::Error::{NotADirectory, NotAStore};
        let span = Span { after_ns: after, before_ns: before };
        worker::wait(py, move |left| {
            let question = Question { span, top };
            let report = if place::is_elsewhere(&path) {
                stat_in(&place::elsewhere(&path, left)?, question, |_, _| !left.is_set())?
            } else {
                match of_directory(&path, question, |_, _| !left.is_set()) {
                    Err(NotAStore(_) | NotADirectory(_)) => {
                        stat_captures(&path, question, |_, _| !left.is_set())?
                    }
                    report => report?,
                }
            };
            if left.is_set() {
                Err(Failure::Left)
            } else {
                Ok((report.json(&path), lacks(&report)))
            }
        })
    }

    /// Returns what a report lacks of what the store should have.
    fn lacks(report: &Report) -> Vec<String> {
        let notes = report.notes.iter().filter(|note| note.lacks_packets()).map(Note::to_string);
        let unusable = report.unusable.iter().map(|unusable| {
            let Unusable { segment, why } = unusable;
            format!(
                "the index of {segment} cannot be used ({why}), so not all of its hosts, ports and rate are told; `tapdeck recover` makes a new one"
            )
        });
        notes.chain(unusable).collect()
    }

    /// Returns the directory of indexes whose files lie where this user may not write. It is asked
    /// for while Python lets nobody else change the environment.
    fn cache() -> Option<PathBuf> {
        tapdeck_store::query::user_cache()
    }
}
