//! Is a segment missing in the middle of a store? Segments are numbered without a gap and deleted
//! from the oldest on, so a number that nobody has tells that somebody took a segment away, or
//! that an older one could not be deleted.

use std::collections::BTreeSet;
use std::io;
use std::ops::{Range, RangeInclusive};

use crate::format::name::SegmentName;
use crate::io::Storage;
use crate::span::Span;

/// How the name of a segment ends that held nothing, and that recovery set aside.
const SET_ASIDE: &str = ".damaged";

/// The numbers of a store's segments, as their files' names tell, whoever wrote them.
pub(crate) struct Numbers {
    /// Also of segments that were set aside.
    pub all: BTreeSet<u64>,
    /// The lowest number of a segment that was not set aside: what was before it is deleted.
    first: Option<u64>,
}

impl Numbers {
    pub fn list(storage: &dyn Storage) -> io::Result<Self> {
        let mut numbers = Self { all: BTreeSet::new(), first: None };
        for name in storage.list()? {
            let Some((name, is_aside)) = name.to_str().and_then(segment_of) else { continue };
            let number = name.number;
            numbers.all.insert(number);
            if !is_aside {
                numbers.first = Some(numbers.first.map_or(number, |first| first.min(number)));
            }
        }
        Ok(numbers)
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
        again.all.extend(&self.all);
        Ok(again.missing(number))
    }

    fn missing(&self, number: u64) -> Option<RangeInclusive<u64>> {
        let before = *self.all.range(self.first?..number).next_back()?;
        (before + 1 < number).then(|| before + 1..=number - 1)
    }
}

/// Returns the segment that a file name tells, and whether it was set aside.
pub(crate) fn segment_of(file_name: &str) -> Option<(SegmentName, bool)> {
    let aside = file_name.strip_suffix(SET_ASIDE);
    SegmentName::parse(aside.unwrap_or(file_name)).map(|name| (name, aside.is_some()))
}

/// Returns the numbers of a range that are not among some numbers.
pub(crate) fn gaps(
    numbers: &BTreeSet<u64>,
    within: Range<u64>,
) -> impl Iterator<Item = RangeInclusive<u64>> {
    let mut next = within.start;
    let known = numbers.range(within.clone()).copied().chain([within.end]);
    known.filter_map(move |number| {
        let from = std::mem::replace(&mut next, number.saturating_add(1));
        (from < number).then(|| from..=number - 1)
    })
}

/// Segments that are missing in the middle of a store.
pub(crate) struct Hole {
    /// The segment before which they are missing.
    pub before: SegmentName,
    pub numbers: RangeInclusive<u64>,
    /// What they held is from no earlier than this.
    pub from_ns: i64,
}

/// The search for segments that are missing within a span, while those that are there are gone
/// through in the order of their numbers.
///
/// Missing segments held packets from the end of the one before them to the beginning of the one
/// behind them, and since rings overlap, some from a little earlier.
pub(crate) struct Search {
    span: Span,
    /// The number of the segment before, and from when on packets behind it may be.
    before: Option<(u64, i64)>,
    /// Segments before which some seem to be missing, and from when on what these held may be.
    suspects: Vec<(SegmentName, i64)>,
}

impl Search {
    pub fn new(span: Span) -> Self {
        Self { span, before: None, suspects: Vec::new() }
    }

    /// Takes in the next segment. No packet behind it is from before `behind_ns`.
    pub fn pass(&mut self, name: &SegmentName, behind_ns: i64) {
        // The name has whole seconds.
        let began_ns = name.began_s.saturating_add(1).saturating_mul(1_000_000_000);
        if let Some((number, from_ns)) = self.before.replace((name.number, behind_ns))
            && number + 1 < name.number
            && from_ns < self.span.before_ns
            && began_ns > self.span.after_ns
        {
            self.suspects.push((name.clone(), from_ns));
        }
    }

    /// Returns which segments are missing.
    pub fn finish(self, storage: &dyn Storage) -> io::Result<Vec<Hole>> {
        if self.suspects.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = Numbers::list(storage)?;
        let mut holes = Vec::new();
        for (before, from_ns) in self.suspects {
            let missing = numbers.missing_before(before.number, storage)?;
            holes.extend(missing.map(|numbers| Hole { before, numbers, from_ns }));
        }
        Ok(holes)
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
