//! Points in time, and spans between two, as people write and read them.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use jiff::Timestamp;
use jiff::civil::DateTime;
use tapdeck_store::query::Span;

use crate::usage::usage;

/// Reads a point in time, as UTC nanoseconds: `2026-01-02T03:04:05Z`, `10m ago` or `1767323045.5`.
pub fn point(text: &str) -> std::result::Result<i64, String> {
    let text = text.trim();
    if let Some(ago) = text.strip_suffix("ago") {
        return before_now(ago.trim())
            .ok_or_else(|| "is no time; write a number and a unit, as \"10m ago\"".into());
    }
    if text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return epoch(text).ok_or_else(|| "is no number of seconds since 1970".into());
    }
    let point = text.parse::<Timestamp>().ok().and_then(|t| i64::try_from(t.as_nanosecond()).ok());
    point.ok_or_else(|| match text.parse::<DateTime>() {
        Ok(clock) if text.parse::<Timestamp>().is_err() => {
            format!("names no time zone; write {clock}Z for UTC, or an offset as {clock}+01:00")
        }
        _ => "is no time; write 2026-01-02T03:04:05Z, \"10m ago\" or seconds since 1970".into(),
    })
}

/// Returns a point in time for people and programs: RFC 3339 with nanoseconds.
pub fn show(time_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.9}")
}

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

fn before_now(ago: &str) -> Option<i64> {
    let ago = humantime::parse_duration(ago).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(now.checked_sub(ago)?.as_nanos()).ok()
}

fn epoch(text: &str) -> Option<i64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let seconds: i64 = seconds.parse().ok()?;
    let fraction: i64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::{point, show};

    #[test]
    fn points_in_time() {
        const T: i64 = 1_767_323_045_000_000_000;
        assert_eq!(point("2026-01-02T03:04:05Z"), Ok(T));
        assert_eq!(point("2026-01-02T04:04:05.000000001+01:00"), Ok(T + 1));
        assert_eq!(point("1767323045"), Ok(T));
        assert_eq!(point("1767323045.25"), Ok(T + 250_000_000));
        assert_eq!(point("1767323045.000000001"), Ok(T + 1));
        assert_eq!(point(&show(T + 123)), Ok(T + 123));
        let (old, new) = (point("2h ago").unwrap(), point("1h 59m ago").unwrap());
        assert!(old < new && new - old < 61_000_000_000);
        for bad in [
            "",
            "soon",
            "ago",
            "x ago",
            "10m",
            "1.2.3",
            "1767323045.",
            "1.0000000001",
            "99999999999999999999",
            "99999999999",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "9999-01-01T00:00:00Z",
        ] {
            assert!(point(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_without_a_zone_is_told_what_it_lacks() {
        for (text, advice) in [
            ("2026-01-02T03:04:05", "write 2026-01-02T03:04:05Z for UTC"),
            ("2026-01-02 03:04:05.5", "an offset as 2026-01-02T03:04:05.5+01:00"),
            ("2026-01-02", "write 2026-01-02T00:00:00Z for UTC"),
        ] {
            let error = point(text).expect_err("which of many moments is it?");
            assert!(error.contains("no time zone") && error.contains(advice), "{error}");
            let written = advice.split(' ').find(|word| word.starts_with("2026")).expect("a time");
            point(written).expect("what is advised is taken");
        }
        for other in ["soon", "9999-01-01T00:00:00Z", "2026-13-02"] {
            let error = point(other).expect_err("it is none");
            assert!(error.starts_with("is no time"), "{error}");
        }
    }
}
