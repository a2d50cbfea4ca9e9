//! Names of segments: `tapdeck-00000042-20260102T030405Z.pcapng`.
//!
//! The number comes first, so that names sort in the order of recording even when the clock
//! went back. While a segment is being written its name ends in `.pcapng.live`. Its index has the
//! same name with other ends: `.index`, while it is recorded `.index.live`, and `.index.new` while
//! that becomes the other.

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

const PREFIX: &str = "tapdeck-";
const CLOSED: &str = ".pcapng";
const LIVE: &str = ".pcapng.live";
const INDEX: &str = ".index";
const INDEX_LOG: &str = ".index.live";
const INDEX_DRAFT: &str = ".index.new";
/// The highest number that a segment has. A file of a higher one is nobody's, so that no name that
/// somebody makes up is the last before numbers end.
const MOST: u64 = u64::MAX >> 1;

/// A segment's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    pub number: u64,
    /// When the segment began, UTC seconds since 1970.
    pub began_s: i64,
    pub live: bool,
}

impl SegmentName {
    /// Returns the name that a file name is, or `None` where it is no segment's.
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
        let number = number.parse().ok().filter(|number| *number <= MOST)?;
        let name = Self { number, began_s, live };
        // Another name that reads the same is not one that this program wrote.
        (name.to_string() == file_name).then_some(name)
    }

    /// Returns where the segment lies in a store.
    pub fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }

    /// Returns the name of the segment's index.
    pub(crate) fn index_name(&self) -> String {
        format!("{}{INDEX}", self.stem())
    }

    /// Returns the name of the log of the segment's index, while that is made.
    pub(crate) fn index_log_name(&self) -> String {
        format!("{}{INDEX_LOG}", self.stem())
    }

    /// Returns the name under which the segment's index is written before it can be read.
    fn index_draft_name(&self) -> String {
        format!("{}{INDEX_DRAFT}", self.stem())
    }

    /// Returns the names of index, log and draft.
    pub(crate) fn index_names(&self) -> [String; 3] {
        [self.index_name(), self.index_log_name(), self.index_draft_name()]
    }

    /// Returns where the segment's index lies in a store.
    pub(crate) fn index_path(&self, dir: &Path) -> PathBuf {
        dir.join(self.index_name())
    }

    /// Returns where the log of the segment's index lies in a store.
    pub(crate) fn index_log_path(&self, dir: &Path) -> PathBuf {
        dir.join(self.index_log_name())
    }

    /// Returns where the segment's index lies in a store before it can be read.
    pub(crate) fn index_draft_path(&self, dir: &Path) -> PathBuf {
        dir.join(self.index_draft_name())
    }

    /// Returns where index, log and draft lie in a store.
    pub(crate) fn index_paths(&self, dir: &Path) -> [PathBuf; 3] {
        self.index_names().map(|name| dir.join(name))
    }

    /// Returns the closed segment that a file name of an index belongs to, and whether the name is
    /// that of a draft.
    pub(crate) fn parse_index(file_name: &str) -> Option<(Self, bool)> {
        let (stem, _) = file_name.split_once(INDEX)?;
        let name = Self::parse(&format!("{stem}{CLOSED}"))?;
        let end = &file_name[stem.len()..];
        [INDEX, INDEX_LOG, INDEX_DRAFT].contains(&end).then_some((name, end == INDEX_DRAFT))
    }

    fn stem(&self) -> String {
        let began = Timestamp::from_second(self.began_s).unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{PREFIX}{:08}-{}", self.number, began.strftime("%Y%m%dT%H%M%SZ"))
    }

    /// Returns the name that the segment has when it is closed.
    pub fn closed(&self) -> Self {
        Self { live: false, ..self.clone() }
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stem(), if self.live { LIVE } else { CLOSED })
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
            "tapdeck-9223372036854775808-20260102T030405Z.pcapng",
            "tapdeck-18446744073709551615-20260102T030405Z.pcapng",
            "tapdeck-.pcapng",
            "tapdeck-00000042-20260102T030405Z.index",
            "tapdeck-00000042-20260102T030405Z.index.live",
            "evidence.pcapng",
            "",
        ] {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_of_index_files_tell_their_segment() {
        let name = SegmentName { number: 42, began_s: 1_767_323_045, live: false };
        let [index, log, draft] = name.index_paths(std::path::Path::new("")).map(|path| {
            SegmentName::parse_index(path.to_str().unwrap()).unwrap_or_else(|| panic!("{path:?}"))
        });
        assert_eq!(
            [&index, &log, &draft],
            [&(name.clone(), false), &(name.clone(), false), &(name, true)]
        );
        for other in [
            "tapdeck-00000042-20260102T030405Z.pcapng",
            "tapdeck-00000042-20260102T030405Z.index.bak",
            "tapdeck-00000042-20260102T030405Z.index.",
            "tapdeck-42-20260102T030405Z.index",
            ".index",
            "notes.index",
        ] {
            assert_eq!(SegmentName::parse_index(other), None, "{other}");
        }
    }
}
