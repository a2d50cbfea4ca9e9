//! Points in time, and spans between two, as flags have them. How they are written is
//! [`tapdeck_store::time`]'s.

use anyhow::Result;
use tapdeck_store::query::Span;
pub use tapdeck_store::time::{point, show};

use crate::usage::usage;

/// How `--help` explains the times that flags take.
macro_rules! times_in_help {
    () => {
        "T: a time as now, 14:02 (today's), \"today 14:02\", \"yesterday 14:02:30\", 2026-01-02, \"2026-01-02 03:04\", all of
them local, or of a place as \"14:02 [Europe/Berlin]\"; 2026-01-02T03:04:05Z or 2026-01-02T04:04:05.678+01:00; -10m or \"10m ago\"; or seconds since 1970"
    };
}
pub(crate) use times_in_help as in_help;

/// Returns the span between two points in time, each of which may be left open.
pub fn span(after_ns: Option<i64>, before_ns: Option<i64>) -> Result<Span> {
    let span = Span {
        after_ns: after_ns.unwrap_or(Span::ALL.after_ns),
        before_ns: before_ns.unwrap_or(Span::ALL.before_ns),
    };
    if span.after_ns > span.before_ns {
        let (after, before) = (show(span.after_ns), show(span.before_ns));
        return usage(format!("--after {after} is later than --before {before}"));
    }
    Ok(span)
}
