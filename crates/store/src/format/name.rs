//! Names of segments: `tapdeck-00000042-20260102T030405Z.pcapng`.
//!
//! The number comes first, so that names sort in the order of recording even when the clock
//! went back. While a segment is being written its name ends in `.pcapng.live`. Its index has the
//! same name with other ends: `.index`, while it is recorded `.index.live`, and `.index.new` while
//! that becomes the other.

use std::fmt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const PREFIX: &str = "tapdeck-";
const CLOSED: &str = ".pcapng";
const LIVE: &str = ".pcapng.live";
const INDEX: &str = ".index";
const INDEX_LOG: &str = ".index.live";
const INDEX_DRAFT: &str = ".index.new";
const OVERVIEW: &str = ".overview";
const OVERVIEW_DRAFT: &str = ".overview.new";
/// How many segments an overview is about, at most: those whose numbers differ in the last six bits
/// only.
const OVERVIEW_SEGMENTS: u64 = 64;
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
        // A name that reads the same and is written in another way is not this program's.
        let is_padded = number.len() == 8 || number.len() > 8 && !number.starts_with('0');
        if !is_padded || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let began_s = seconds_of(time)?;
        let number = number.parse().ok().filter(|number| *number <= MOST)?;
        Some(Self { number, began_s, live })
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

    /// Returns the names of what goes with the segment: index, log and draft, and where an overview
    /// is named after the segment, that and its draft.
    pub(crate) fn index_names(&self) -> Vec<String> {
        let mut names = vec![self.index_name(), self.index_log_name(), self.index_draft_name()];
        if self.has_overview() {
            names.extend([self.overview_name(), self.overview_draft_name()]);
        }
        names
    }

    /// Returns whether an overview is named after the segment: it is the last that can be in one.
    pub(crate) fn has_overview(&self) -> bool {
        self.number % OVERVIEW_SEGMENTS == OVERVIEW_SEGMENTS - 1
    }

    /// Returns whether one overview is about this segment and another.
    pub(crate) fn shares_overview(&self, other: &Self) -> bool {
        self.number / OVERVIEW_SEGMENTS == other.number / OVERVIEW_SEGMENTS
    }

    /// Returns the name of the overview that is named after the segment.
    pub(crate) fn overview_name(&self) -> String {
        format!("{}{OVERVIEW}", self.stem())
    }

    /// Returns where the overview that is named after the segment lies in a store.
    pub(crate) fn overview_path(&self, dir: &Path) -> PathBuf {
        dir.join(self.overview_name())
    }

    /// Returns the name under which the overview is written before it can be read.
    fn overview_draft_name(&self) -> String {
        format!("{}{OVERVIEW_DRAFT}", self.stem())
    }

    /// Returns where the overview lies in a store before it can be read.
    pub(crate) fn overview_draft_path(&self, dir: &Path) -> PathBuf {
        dir.join(self.overview_draft_name())
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

    /// Returns where in a store what [`SegmentName::index_names`] names lies.
    pub(crate) fn index_paths(&self, dir: &Path) -> Vec<PathBuf> {
        self.index_names().into_iter().map(|name| dir.join(name)).collect()
    }

    /// Returns the closed segment that an overview is named after, by the overview's file name.
    pub(crate) fn parse_overview(file_name: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(OVERVIEW)?;
        Self::parse(&format!("{stem}{CLOSED}")).filter(Self::has_overview)
    }

    /// Returns the closed segment that a file name of an index or an overview belongs to, and
    /// whether the name is that of a draft.
    pub(crate) fn parse_index(file_name: &str) -> Option<(Self, bool)> {
        let (stem, _) = file_name.split_once(INDEX).or_else(|| file_name.split_once(OVERVIEW))?;
        let name = Self::parse(&format!("{stem}{CLOSED}"))?;
        match &file_name[stem.len()..] {
            INDEX | INDEX_LOG => Some((name, false)),
            INDEX_DRAFT => Some((name, true)),
            OVERVIEW if name.has_overview() => Some((name, false)),
            OVERVIEW_DRAFT if name.has_overview() => Some((name, true)),
            _ => None,
        }
    }

    /// Returns what the names of the segment and of all that goes with it begin with.
    pub fn stem(&self) -> String {
        let began = Timestamp::from_second(self.began_s).unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{PREFIX}{:08}-{}", self.number, began.strftime("%Y%m%dT%H%M%SZ"))
    }

    /// Returns the name that the segment has when it is closed.
    pub fn closed(&self) -> Self {
        Self { live: false, ..self.clone() }
    }
}

/// Returns the UTC seconds since 1970 of a time as it stands in names. A store may have very many,
/// so they are not read by a format, which is parsed itself each time.
fn seconds_of(time: &str) -> Option<i64> {
    let (digits, zone) = (time.replacen('T', "", 1), time.as_bytes().get(8..)?);
    let digits = digits.strip_suffix('Z').filter(|digits| digits.len() == 14)?;
    if zone[0] != b'T' || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let two = |at: usize| digits[at..at + 2].parse().ok();
    let year = digits[..4].parse().ok()?;
    let began = DateTime::new(year, two(4)?, two(6)?, two(8)?, two(10)?, two(12)?, 0).ok()?;
    Some(began.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
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
        let last = SegmentName { number: 63, ..name.clone() };
        for (name, expected) in
            [(&name, &[false, false, true][..]), (&last, &[false, false, true, false, true][..])]
        {
            let paths = name.index_paths(std::path::Path::new(""));
            let parsed = paths.iter().map(|path| {
                SegmentName::parse_index(path.to_str().unwrap())
                    .unwrap_or_else(|| panic!("{path:?}"))
            });
            let expected: Vec<_> = expected.iter().map(|is| (name.clone(), *is)).collect();
            assert_eq!(parsed.collect::<Vec<_>>(), expected);
        }
        for other in [
            "tapdeck-00000042-20260102T030405Z.pcapng",
            "tapdeck-00000042-20260102T030405Z.index.bak",
            "tapdeck-00000042-20260102T030405Z.index.",
            "tapdeck-42-20260102T030405Z.index",
            "tapdeck-00000042-20260102T030405Z.overview",
            ".index",
            "notes.index",
        ] {
            assert_eq!(SegmentName::parse_index(other), None, "{other}");
        }
    }
}
