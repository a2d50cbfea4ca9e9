//! What holds when any bytes at all are asked of a gateway: as a query in stenographer's language,
//! or as a parameter of a question. Shared by the fuzz targets and by the tests of `steno.rs` in
//! `crates/gateway`, which run it on the stable compiler. Whoever includes it has the modules
//! `steno`, `condition` and `time` of the gateway at its root.

use crate::condition::Condition;
use crate::{steno, time};

/// What "ago" counts from.
const NOW_NS: i64 = 1_767_323_045_000_000_000;

/// Reads `data` as a query. What is understood has a span that its times do not reach out of, and
/// filters that the filter language takes. True if it was understood.
///
/// # Panics
/// If one of these does not hold, or what is told of a fault is no line.
pub fn query(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    let condition = match steno::parse(text, NOW_NS) {
        Ok(condition) => condition,
        Err(why) => {
            assert!(!why.is_empty() && !why.contains('\n'), "{text:?}: {why:?}");
            return false;
        }
    };
    assert_within(&condition);
    for filter in condition.filters() {
        tapdeck_packet::filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
    }
    true
}

/// No part of a condition that all of it needs reaches out of its span.
fn assert_within(condition: &Condition) {
    let span = condition.span();
    if let Condition::Every(parts) = condition {
        for part in parts {
            let wider = part.span();
            let fits = wider.after_ns <= span.after_ns && span.before_ns <= wider.before_ns;
            assert!(fits, "{condition:?}");
            assert_within(part);
        }
    }
}

/// Reads `data` as a time, a duration, a number and a flow. What is a time is that time again when
/// it is shown. True if it is one of them.
///
/// # Panics
/// If it is not.
pub fn parameter(data: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(data) else { return false };
    let point = time::point(text);
    if let Ok(ns) = point {
        assert_eq!(time::point(&time::show(ns)), Ok(ns), "{text:?}");
    }
    let duration = time::duration(text);
    let flow = text.parse::<tapdeck_packet::community_id::CommunityId>();
    if let Ok(flow) = &flow {
        assert_eq!(flow.to_string().parse().as_ref(), Ok(flow), "{text:?}");
    }
    point.is_ok() || duration.is_ok() || flow.is_ok()
}
