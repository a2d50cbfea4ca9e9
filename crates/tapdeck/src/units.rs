//! Sizes, times and counts as people write and read them.
//!
//! Functions that read return an error which completes the sentence "TEXT ...": "64XB is no size".

use std::time::Duration;

pub use tapdeck_packet::printable::{count as show_count, counted};
use tapdeck_store::MinFree;

/// Reads a size in bytes: `64MiB`, `1GB` (10^9), `1500`.
pub fn size(s: &str) -> Result<u64, String> {
    match parse_size::parse_size(s) {
        Ok(0) => Err("must be more than 0".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("is no size; write bytes or a unit, as 1500, 64MiB or 10GB".into()),
    }
}

/// Reads a time span: `30s`, `7d`, `500ms`.
pub fn duration(s: &str) -> Result<Duration, String> {
    match humantime::parse_duration(s) {
        Ok(d) if d.is_zero() => Err("must be more than 0".into()),
        Ok(d) => Ok(d),
        Err(_) => Err("is no time; write a number and a unit, as 500ms, 30s or 7d".into()),
    }
}

/// Reads a time span of at least 100 ms, three times as long as the recorder may take to look at
/// its rings.
pub fn flush(s: &str) -> Result<Duration, String> {
    match duration(s)? {
        d if d < Duration::from_millis(100) => Err("must be at least 100ms".into()),
        d => Ok(d),
    }
}

/// Reads how often something is looked at: each 100 ms at most, each hour at least.
pub fn interval(s: &str) -> Result<Duration, String> {
    match duration(s)? {
        d if d < Duration::from_millis(100) => Err("must be at least 100ms".into()),
        d if d > Duration::from_secs(3600) => Err("must be at most 1h".into()),
        d => Ok(d),
    }
}

/// Reads a time span of at least 3 s: three times as long as a recorder is silent when all is well.
pub fn abandon(s: &str) -> Result<Duration, String> {
    match duration(s)? {
        d if d < Duration::from_secs(3) => Err("must be at least 3s".into()),
        d => Ok(d),
    }
}

/// Reads an interface's name, of several with commas between.
pub fn interface(s: &str) -> Result<String, String> {
    match s {
        "" => Err("names no interface: leave out the comma before it or behind it".into()),
        name => Ok(name.to_owned()),
    }
}

/// Reads the permission of a file: `0660`.
pub fn mode(s: &str) -> Result<u32, String> {
    match u32::from_str_radix(s, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("is no mode; write three octal digits, as 0660".into()),
    }
}

/// Reads the permission of files that the owner reads and writes, and that nobody else writes.
pub fn file_mode(s: &str) -> Result<u32, String> {
    match mode(s)? {
        mode if mode & 0o600 != 0o600 => Err("must let the owner read and write, as 0640".into()),
        mode if mode & 0o133 != 0 => {
            Err("must let nobody else write and nobody execute, as 0640".into())
        }
        mode => Ok(mode),
    }
}

/// Reads an amount of free space: a size, or a share of the disk as `5%`.
pub fn min_free(s: &str) -> Result<MinFree, String> {
    let Some(share) = s.strip_suffix('%') else { return size(s).map(MinFree::Bytes) };
    match share.trim().parse::<f64>() {
        Ok(p) if (0.0..100.0).contains(&p) => Ok(MinFree::Share(p / 100.0)),
        _ => Err("is no share; write a percentage below 100, as 5%".into()),
    }
}

/// Returns a time span for a person: `20.1 us`.
pub fn show_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Returns bytes for a person: `1.5 MiB`.
pub fn show_bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Returns a rate for a person, to be followed by its unit: `1.23 M`.
pub fn show_rate(per_second: f64) -> String {
    match per_second {
        r if r >= 1e9 => format!("{:.2} G", r / 1e9),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r => format!("{r:.0} "),
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, min_free, show_bytes, show_count, size};
    use std::time::Duration;
    use tapdeck_store::MinFree;

    #[test]
    fn sizes() {
        assert_eq!(size("1500"), Ok(1500));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        for bad in ["0", "-1", "1e99", "", "GB", "12 parsecs", "NaN"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_shares() {
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0s", "-1s", "10", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(min_free("5%"), Ok(MinFree::Share(0.05)));
        assert_eq!(min_free("1GiB"), Ok(MinFree::Bytes(1 << 30)));
        for bad in ["101%", "-5%", "%", "nan%"] {
            assert!(min_free(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(12), "12");
        assert_eq!(show_bytes(64 << 20), "64.0 MiB");
    }
}
