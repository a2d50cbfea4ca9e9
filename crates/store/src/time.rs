//! Points in time, as people write and read them.
//!
//! What names no zone is local time, as the environment variable TZ or the machine's settings have
//! it. What is written is UTC, so that it means the same on every machine, and can be read here.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp, ToSpan, Zoned};

const FORMS: &str =
    "write 14:02, \"today 14:02\", 2026-01-02, 2026-01-02T03:04:05Z, -10m or seconds since 1970";

/// Reads a point in time, as UTC nanoseconds: `now`, `14:02`, `yesterday 14:02`, `2026-01-02`,
/// `2026-01-02T03:04:05Z`, `-10m`, `10m ago` or `1767323045.5`. A time of a calendar or a clock may
/// have its zone behind it: `14:02 [Europe/Berlin]`.
pub fn point(text: &str) -> Result<i64, String> {
    at(text, &Zoned::now())
}

/// Reads a point in time, said at a time and in its zone.
fn at(text: &str, now: &Zoned) -> Result<i64, String> {
    let text = text.trim();
    if let Some((text, zone)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        return in_zone(text.trim_end(), zone, now);
    }
    let ago = text.strip_suffix("ago").or_else(|| text.strip_prefix('-'));
    if let Some(ago) = ago {
        return before_now(ago.trim())
            .ok_or_else(|| "is no time; write a number and a unit, as -10m or \"10m ago\"".into());
    }
    if text == "now" {
        return nanoseconds(now.timestamp()).ok_or_else(none);
    }
    if text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return epoch(text).ok_or_else(|| "is no number of seconds since 1970".into());
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return nanoseconds(time).ok_or_else(none);
    }
    match clock(text, now.date()) {
        Some(clock) => local(clock, now),
        None => Err(none()),
    }
}

/// Reads a time in a zone that is named behind it.
fn in_zone(text: &str, name: &str, now: &Zoned) -> Result<i64, String> {
    let zone = TimeZone::get(name)
        .map_err(|_| format!("names a time zone that this machine does not know: {name}"))?;
    if text.parse::<Timestamp>().is_ok() {
        // Its offset must be the zone's, or that of UTC, which says nothing of the zone.
        let zoned = format!("{text}[{name}]").parse::<Zoned>();
        let time =
            zoned.map_err(|_| format!("has an offset that clocks in {name} have not then"))?;
        return nanoseconds(time.timestamp()).ok_or_else(none);
    }
    let now = now.with_time_zone(zone);
    clock(text, now.date()).map_or_else(|| Err(none()), |clock| local(clock, &now))
}

fn none() -> String {
    format!("is no time; {FORMS}")
}

/// Reads what a calendar and a clock show. Where no day is named it is `today`.
fn clock(text: &str, today: Date) -> Option<DateTime> {
    let (day, time) = text.split_once(' ').unwrap_or((text, "00:00"));
    let day = match day {
        "today" => today,
        "yesterday" => today.checked_sub(1.day()).ok()?,
        _ => return text.parse::<DateTime>().ok().or_else(|| Some(today.to_datetime(hour(text)?))),
    };
    Some(day.to_datetime(hour(time.trim())?))
}

/// Reads a time of day, `14:02` or `14:02:30.5`. Other forms of it are mistaken for dates.
fn hour(text: &str) -> Option<Time> {
    text.parse().ok().filter(|_| text.contains(':'))
}

/// Returns when clocks in the zone of `now` show a time, which they may do twice or never.
fn local(clock: DateTime, now: &Zoned) -> Result<i64, String> {
    let ambiguous = now.time_zone().to_ambiguous_timestamp(clock);
    let with = |offset: Offset| {
        offset.to_timestamp(clock).ok().map(|time| time.display_with_offset(offset).to_string())
    };
    let (what, before, after) = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => {
            let time = ambiguous.unambiguous().ok().and_then(nanoseconds);
            return time.ok_or_else(none);
        }
        AmbiguousOffset::Gap { before, after } => ("is left out by", before, after),
        AmbiguousOffset::Fold { before, after } => ("comes twice on", before, after),
    };
    match (with(before), with(after)) {
        (Some(before), Some(after)) => {
            Err(format!("{what} clocks in this time zone; write {before} or {after}"))
        }
        _ => Err(none()),
    }
}

fn nanoseconds(time: Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond()).ok()
}

/// Returns a point in time for people and programs: RFC 3339 with nanoseconds.
pub fn show(time_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.9}")
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
    use jiff::Zoned;
    use jiff::civil::date;
    use jiff::tz::TimeZone;

    use super::{at, point, show};

    const T: i64 = 1_767_323_045_000_000_000;
    const MINUTE: i64 = 60_000_000_000;

    #[test]
    fn points_in_time() {
        assert_eq!(point("2026-01-02T03:04:05Z"), Ok(T));
        assert_eq!(point("2026-01-02T04:04:05.000000001+01:00"), Ok(T + 1));
        assert_eq!(point("1767323045"), Ok(T));
        assert_eq!(point("1767323045.25"), Ok(T + 250_000_000));
        assert_eq!(point("1767323045.000000001"), Ok(T + 1));
        assert_eq!(point(&show(T + 123)), Ok(T + 123));
        for [old, new] in [["2h ago", "1h 59m ago"], ["-2h", "-1h59m"], ["2h ago", "-119m"]] {
            let (old, new) = (point(old).unwrap(), point(new).unwrap());
            assert!(old < new && new - old < 61_000_000_000);
        }
        let (before, now, after) = (point("0s ago"), point("now"), point("-0s"));
        assert!(before <= now && now <= after, "{before:?} {now:?} {after:?}");
        for bad in [
            "",
            "soon",
            "ago",
            "x ago",
            "10m",
            "-",
            "--10m",
            "- 10",
            "1.2.3",
            "1767323045.",
            "1.0000000001",
            "99999999999999999999",
            "99999999999",
            "9999-01-01T00:00:00Z",
            "9999-01-01",
            "2026-13-02",
            "2026-02-30",
            "25:00",
            "14:02 today",
            "today 25:00",
            "today 14",
            "today now",
            "now 14:02",
            "14:02 [",
            "14:02 []]",
            "[UTC]",
            "soon [UTC]",
            "-10m [UTC]",
            "2026-01-02T03:04:05[UTC][UTC]",
        ] {
            let error = point(bad).expect_err(bad);
            let is_told = ["is no ", "names a time zone"].iter().any(|a| error.starts_with(a));
            assert!(is_told, "{bad}: {error}");
        }
    }

    /// Says a time at noon on 2 January 2026 in Berlin.
    fn in_berlin(text: &str) -> Result<i64, String> {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        at(text, &date(2026, 1, 2).at(12, 0, 0, 0).to_zoned(zone).unwrap())
    }

    #[test]
    fn what_names_no_zone_is_local() {
        const MIDNIGHT: i64 = T - 3 * 60 * MINUTE - 4 * MINUTE - 5_000_000_000 - 60 * MINUTE;
        for (text, minutes) in [
            ("now", 12 * 60),
            ("today", 0),
            ("yesterday", -24 * 60),
            ("2026-01-02", 0),
            ("14:02", 14 * 60 + 2),
            ("14:02:00.0", 14 * 60 + 2),
            ("00:00", 0),
            ("today 14:02", 14 * 60 + 2),
            (" yesterday  14:02 ", -24 * 60 + 14 * 60 + 2),
            ("2026-01-02 14:02", 14 * 60 + 2),
            ("2026-01-02T14:02:00", 14 * 60 + 2),
            ("2026-01-01T14:02Z", -24 * 60 + 15 * 60 + 2),
            ("2025-07-01 02:00", -185 * 24 * 60 + 60),
        ] {
            assert_eq!(in_berlin(text), Ok(MIDNIGHT + minutes * MINUTE), "{text}");
        }
    }

    #[test]
    fn a_zone_in_brackets_is_that_of_the_time() {
        const TOKYO: i64 = T - 9 * 60 * MINUTE;
        for text in [
            "2026-01-02T03:04:05[Asia/Tokyo]",
            "2026-01-02 03:04:05 [Asia/Tokyo]",
            "2026-01-02T03:04:05+09:00[Asia/Tokyo]",
            "2026-01-01T18:04:05Z[Asia/Tokyo]",
            "03:04:05 [Asia/Tokyo]",
            "today 03:04:05 [Asia/Tokyo]",
        ] {
            assert_eq!(in_berlin(text), Ok(TOKYO), "{text}");
        }
        for (text, what) in [
            ("2026-01-02T03:04:05+01:00[Asia/Tokyo]", "has an offset that clocks in Asia/Tokyo"),
            ("2026-01-02 03:04:05 [Europe/Nowhere]", "names a time zone that this machine"),
            ("2026-01-02T03:04:05Z[u-ca=japanese]", "names a time zone that this machine"),
            ("2026-10-25 02:30 [Europe/Berlin]", "comes twice"),
        ] {
            let error = at(text, &Zoned::now()).expect_err(text);
            assert!(error.starts_with(what), "{text}: {error}");
        }
    }

    #[test]
    fn a_time_that_clocks_show_twice_or_never_is_asked_back() {
        for (text, what) in
            [("2026-10-25 02:30", "comes twice"), ("2026-03-29 02:30", "is left out")]
        {
            let error = in_berlin(text).expect_err("which moment is it?");
            assert!(error.starts_with(what), "{error}");
            let advised: Vec<&str> = error.split(' ').filter(|w| w.starts_with("2026")).collect();
            let [one, other] = advised[..] else { panic!("{error}") };
            assert_eq!((in_berlin(one).unwrap() - in_berlin(other).unwrap()).abs(), 60 * MINUTE);
        }
    }
}
