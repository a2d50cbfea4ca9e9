//! Is a segment missing in the middle of a store? Segments are numbered without a gap and deleted
//! from the oldest on, so a number that nobody has tells that somebody took a segment away, or
//! that an older one could not be deleted.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;

use crate::format::name::SegmentName;
use crate::io::Storage;

/// The numbers of a store's segments, as their files' names tell, whoever wrote them.
pub(crate) struct Numbers(BTreeSet<u64>);

impl Numbers {
    pub fn list(storage: &dyn Storage) -> io::Result<Self> {
        let number = |name: &std::ffi::OsString| {
            let name = name.to_str()?;
            // One that held nothing was set aside by recovery.
            let name = name.strip_suffix(".damaged").unwrap_or(name);
            SegmentName::parse(name).map(|name| name.number)
        };
        Ok(Self(storage.list()?.iter().filter_map(number).collect()))
    }

    /// Returns the numbers that are missing between a segment and the one before it. A segment that
    /// is renamed while a directory is listed may seem to be missing, so the directory is listed
    /// once more.
    pub fn missing_before(
        &self,
        number: u64,
        storage: &dyn Storage,
    ) -> io::Result<Option<RangeInclusive<u64>>> {
        if self.missing(number).is_none() {
            return Ok(None);
        }
        let mut again = Self::list(storage)?;
        // Segments that were deleted since, or this one, are none that were missing.
        again.0.extend(&self.0);
        Ok(again.missing(number))
    }

    fn missing(&self, number: u64) -> Option<RangeInclusive<u64>> {
        let before = *self.0.range(..number).next_back()?;
        (before + 1 < number).then(|| before + 1..=number - 1)
    }
}

/// Returns "segment 5 is" or "segments 5 to 7 are", with words in `between`.
pub(crate) fn show(numbers: &RangeInclusive<u64>, between: &str) -> String {
    match (numbers.start(), numbers.end()) {
        (first, last) if first == last => format!("segment {first}{between} is"),
        (first, last) => format!("segments {first} to {last}{between} are"),
    }
}

/// Returns the index files that are there without their segments, of segments with these numbers.
pub(crate) fn orphans(
    storage: &dyn Storage,
    numbers: &RangeInclusive<u64>,
) -> io::Result<Vec<String>> {
    let is_orphan = |name: &String| {
        SegmentName::parse_index(name).is_some_and(|(of, _)| numbers.contains(&of.number))
    };
    let names = storage.list()?.into_iter().filter_map(|name| name.into_string().ok());
    let mut orphans: Vec<String> = names.filter(is_orphan).collect();
    orphans.sort();
    Ok(orphans)
}
