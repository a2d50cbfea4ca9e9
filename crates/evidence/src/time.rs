//! Points in time as evidence has them: UTC with nanoseconds, RFC 3339.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time, UTC nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// Returns the present time, by the clock of this machine.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Reads a time of RFC 3339; an offset may also lack its colon, as Suricata writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let time: Timestamp = text.parse().ok()?;
        i64::try_from(time.as_nanosecond()).ok().map(Self)
    }

    /// Returns the time so many nanoseconds later, or earlier.
    pub fn plus(self, ns: i64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Timestamp::from_nanosecond(i128::from(self.0)).unwrap_or(Timestamp::UNIX_EPOCH);
        write!(f, "{time:.9}")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is no time")))
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_are_read_as_they_are_written() {
        for ns in [0, 1, 1_767_323_045_678_901_234, 9_000_000_000_000_000_000] {
            assert_eq!(Time::parse(&Time(ns).to_string()), Some(Time(ns)));
        }
        assert_eq!(Time(1_767_323_045_000_000_001).to_string(), "2026-01-02T03:04:05.000000001Z");
        let of_suricata = Time::parse("2026-01-02T04:04:05.678901+0100");
        assert_eq!(of_suricata, Some(Time(1_767_323_045_678_901_000)));
        assert_eq!(Time::parse("14:02"), None);
    }
}
