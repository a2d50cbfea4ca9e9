//! `query --explain`: how does a query find its packets, and what did it read for them?

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use tapdeck_store::filter::Filter;
use tapdeck_store::query::Progress;

use super::time;
use crate::flags;
use crate::units::{show_bytes, show_count};

/// What `--explain` tells of a query, gathered while it runs.
pub struct Explanation {
    expression: String,
    is_understood: bool,
    plan: String,
    after: Option<String>,
    before: Option<String>,
    began: Instant,
    first: Option<Duration>,
}

/// What `--explain` tells of a query that has ended, in JSON.
#[derive(Serialize)]
struct Object<'a> {
    expression: &'a str,
    /// Whether the planner knows the form of the expression. If not, the expression narrows
    /// nothing.
    understood: bool,
    plan: &'a str,
    after: Option<&'a str>,
    before: Option<&'a str>,
    segments: u64,
    segments_outside: usize,
    segments_indexed: u64,
    segments_scanned: u64,
    granules: u64,
    granules_wanted: u64,
    index_bytes_read: u64,
    segment_bytes_read: u64,
    segment_bytes: u64,
    packets: u64,
    first_packet_s: Option<f64>,
    elapsed_s: f64,
}

impl Explanation {
    pub fn new(flags: &flags::Query, filter: &Filter, began: Instant) -> Self {
        Self {
            expression: flags.expression.join(" "),
            is_understood: filter.is_understood(),
            plan: filter.plan().to_string(),
            after: flags.after.map(time::show),
            before: flags.before.map(time::show),
            began,
            first: None,
        }
    }

    /// Takes note of how many packets were found by now.
    pub fn found(&mut self, packets: u64) {
        if packets > 0 && self.first.is_none() {
            self.first = Some(self.began.elapsed());
        }
    }

    /// Returns one fact a line, or one JSON object. `outside` segments were left out because of the
    /// span.
    pub fn text(&self, packets: u64, progress: &Progress, outside: usize, json: bool) -> String {
        let object = Object {
            expression: &self.expression,
            understood: self.is_understood,
            plan: &self.plan,
            after: self.after.as_deref(),
            before: self.before.as_deref(),
            segments: progress.segments,
            segments_outside: outside,
            segments_indexed: progress.indexed,
            segments_scanned: progress.scanned,
            granules: progress.granules,
            granules_wanted: progress.wanted,
            index_bytes_read: progress.index_bytes,
            segment_bytes_read: progress.read_bytes,
            segment_bytes: progress.total_bytes,
            packets,
            first_packet_s: self.first.map(|first| first.as_secs_f64()),
            elapsed_s: self.began.elapsed().as_secs_f64(),
        };
        if json {
            return serde_json::to_string(&object).unwrap_or_default();
        }
        object.to_string()
    }
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expression = if self.expression.is_empty() { "none" } else { self.expression };
        writeln!(f, "expression: {expression}")?;
        let unknown = if self.understood { "" } else { " (the planner does not know this form)" };
        writeln!(f, "looked for: {}{unknown}", self.plan)?;
        let (after, before) =
            (self.after.unwrap_or("the beginning"), self.before.unwrap_or("the end"));
        writeln!(f, "span: {after} to {before}")?;
        writeln!(
            f,
            "segments: {} looked at, {} outside the span; {} have an index, {} were read where they are not indexed",
            self.segments, self.segments_outside, self.segments_indexed, self.segments_scanned
        )?;
        let (wanted, granules) = (show_count(self.granules_wanted), show_count(self.granules));
        writeln!(f, "granules: {wanted} of {granules}")?;
        writeln!(f, "read of indexes: {}", show_bytes(self.index_bytes_read))?;
        let (read, all) = (show_bytes(self.segment_bytes_read), show_bytes(self.segment_bytes));
        writeln!(f, "read of segments: {read} of {all}")?;
        writeln!(f, "packets: {}", show_count(self.packets))?;
        if let Some(first_s) = self.first_packet_s {
            writeln!(f, "first packet after: {first_s:.3} s")?;
        }
        write!(f, "all after: {:.3} s", self.elapsed_s)
    }
}
