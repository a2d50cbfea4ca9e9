//! Points in time and durations, as questions have them.

use std::time::Duration;

use jiff::Timestamp;

/// Reads a point in time, as UTC nanoseconds: RFC 3339, or seconds since 1970.
pub fn point(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is no time: write 2026-01-02T03:04:05Z, or seconds since 1970");
    if let Ok(time) = text.parse::<Timestamp>() {
        return i64::try_from(time.as_nanosecond()).map_err(|_| bad());
    }
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if seconds.is_empty() || fraction.len() > 9 || !is_digits(seconds) || !is_digits(fraction) {
        return Err(bad());
    }
    let seconds: i64 = seconds.parse().map_err(|_| bad())?;
    let fraction: i64 = format!("{fraction:0<9}").parse().map_err(|_| bad())?;
    let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(fraction));
    ns.ok_or_else(bad)
}

/// Returns a point in time as RFC 3339 with nanoseconds.
pub fn show(time_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.9}")
}

/// Returns what time it is, as UTC nanoseconds.
pub fn now_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Reads a duration: a number and a unit, as `90s`, `10m`, `24h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no duration: write 90s, 10m, 24h or 7d");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    // What is longer than the clock goes makes no sense either.
    let seconds = number.checked_mul(seconds).filter(|s| *s <= 1 << 32).ok_or_else(bad)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{duration, point, show};

    #[test]
    fn times_are_read_as_they_are_shown() {
        const T: i64 = 1_767_323_045_000_000_000;
        assert_eq!(point("2026-01-02T03:04:05Z"), Ok(T));
        assert_eq!(point("1767323045.25"), Ok(T + 250_000_000));
        assert_eq!(point(&show(T + 123)), Ok(T + 123));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for bad in ["", "soon", "-5", "1.2.3", "99999999999999999999", "2026-01-02", "1.+5"] {
            assert!(point(bad).is_err(), "{bad}");
        }
        for bad in ["", "7", "d", "1w", "-1s", "99999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
