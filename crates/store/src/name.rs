//! Names of segments: `tapdeck-00000042-20260102T030405Z.pcapng`.
//!
//! The number comes first, so that names sort in the order of recording even when the clock
//! went back. While a segment is being written its name ends in `.pcapng.live`.

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

const PREFIX: &str = "tapdeck-";
const CLOSED: &str = ".pcapng";
const LIVE: &str = ".pcapng.live";

/// A segment's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    pub number: u64,
    /// UTC seconds since the epoch at which it began.
    pub began_s: i64,
    pub live: bool,
}

impl SegmentName {
    /// The name in a file name, or `None` where it is no segment's.
    pub fn parse(file_name: &str) -> Option<Self> {
        let rest = file_name.strip_prefix(PREFIX)?;
        let (rest, live) = match rest.strip_suffix(LIVE) {
            Some(rest) => (rest, true),
            None => (rest.strip_suffix(CLOSED)?, false),
        };
        let (number, time) = rest.split_once('-')?;
        if number.len() < 8 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let began = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
        let began_s = began.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second();
        let name = Self { number: number.parse().ok()?, began_s, live };
        // Whatever else reads the same is not a name that this program wrote.
        (name.to_string() == file_name).then_some(name)
    }

    /// Where the segment lies in a store.
    pub fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }

    /// The name it has when it is closed.
    pub fn closed(&self) -> Self {
        Self { live: false, ..self.clone() }
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let began = Timestamp::from_second(self.began_s).unwrap_or(Timestamp::UNIX_EPOCH);
        let end = if self.live { LIVE } else { CLOSED };
        write!(f, "{PREFIX}{:08}-{}{end}", self.number, began.strftime("%Y%m%dT%H%M%SZ"))
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentName;

    #[test]
    fn names_read_back_and_others_are_nobodys() {
        let name = SegmentName { number: 42, began_s: 1_767_323_045, live: false };
        assert_eq!(name.to_string(), "tapdeck-00000042-20260102T030405Z.pcapng");
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name.clone()));
        let live = SegmentName { live: true, number: 123_456_789, ..name };
        assert_eq!(SegmentName::parse(&live.to_string()), Some(live));
        for other in [
            "tapdeck-42-20260102T030405Z.pcapng",
            "tapdeck-00000042-20260102T030405Z.pcapng.bak",
            "tapdeck-00000042-20260132T030405Z.pcapng",
            "tapdeck-000000042-20260102T030405Z.pcapng",
            "tapdeck-.pcapng",
            "evidence.pcapng",
            "",
        ] {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }
}
