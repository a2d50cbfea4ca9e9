//! When was somebody recording? The packets of a store do not tell: a time without any may be a
//! time in which nobody sent, or one in which no recorder ran.
//!
//! What tells is the file that each recorder writes a line into when it begins, and each step of
//! the clock, too: which segments are of which recorder. Segments of one recorder follow one
//! another without a gap, whatever came meanwhile. What retention has deleted, and the time between
//! two recorders, is nobody's: nothing tells what came then.

use std::io;

use tapdeck_packet::pcapng::{Reader, Record};

use super::query::Snapshot;
use crate::format::name::SegmentName;
use crate::format::segment::{last_packet_ns, read_beginning, segment_names, statistics_told};
use crate::format::store::{TIMES, is_in_use};
use crate::io::{Access, Storage};

/// More than the lines of a year take.
const MOST_BYTES: u64 = 16 << 20;
/// How a segment's header begins to tell that the clock was stepped before it.
const STEPPED: &str = "the clock was stepped";

/// A time in which one recorder wrote, as far as its segments are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When the first of its segments began, UTC nanoseconds.
    pub first_ns: i64,
    /// When the last of its segments ended; `i64::MAX` while the recorder is at work.
    pub last_ns: i64,
    /// Whether something kept the clock at UTC; `None` where nothing tells.
    pub clock_is_kept: Option<bool>,
}

/// Returns when somebody recorded into a store, in the order of recording.
///
/// # Errors
/// What the place says that the store lies in.
pub fn recorded(storage: &dyn Storage) -> io::Result<Vec<Recorded>> {
    let mut names = segment_names(storage)?;
    names.dedup_by_key(|name| name.number);
    let lines = lines(storage)?;
    let mut found: Vec<Recorded> = Vec::new();
    let mut begin = 0;
    while begin < names.len() {
        let end = begin + recorder_end(storage, &names[begin..], &lines);
        if let Some(recorded) = of_recorder(storage, &names[begin..end], &lines) {
            found.push(recorded);
        }
        begin = end;
    }
    Ok(found)
}

/// Returns when the clock was stepped, of the segments of a snapshot: when those began that say so.
pub fn clock_steps(snapshot: &Snapshot) -> Vec<i64> {
    let stepped = snapshot.segments_to_read().iter().filter(|segment| {
        let told = Reader::new(&segment.head.section).next();
        matches!(told, Some(Ok(Record::Section(s))) if is_step(s.comment.as_deref()))
    });
    stepped.map(|segment| segment.name.began_s.saturating_mul(1_000_000_000)).collect()
}

fn is_step(comment: Option<&str>) -> bool {
    comment.is_some_and(|comment| comment.starts_with(STEPPED))
}

/// Returns for each line the first segment that it is about, and whether something kept the clock.
fn lines(storage: &dyn Storage) -> io::Result<Vec<(u64, bool)>> {
    let object = match storage.open(TIMES.as_ref(), Access::Ranges) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        object => object?,
    };
    let mut bytes = vec![0; object.length()?.min(MOST_BYTES) as usize];
    let have = object.read_up_to(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..have]);
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [first, _, _, _, clock] = words[..] else { return None };
        Some((first.parse().ok()?, clock == "right"))
    };
    let mut lines: Vec<(u64, bool)> = text.lines().filter_map(line).collect();
    lines.sort_unstable();
    Ok(lines)
}

/// Returns how many of the segments are of the recorder that the first is of.
fn recorder_end(storage: &dyn Storage, names: &[SegmentName], lines: &[(u64, bool)]) -> usize {
    let later = lines.iter().filter(|(first, _)| *first > names[0].number);
    let begins = later.map(|(first, _)| names.partition_point(|name| name.number < *first));
    let mut begins = begins.filter(|at| names.get(*at).is_some_and(|n| !follows_step(storage, n)));
    begins.next().unwrap_or(names.len())
}

/// Returns whether a segment was begun because the clock was stepped, by the recorder of the
/// segment before.
fn follows_step(storage: &dyn Storage, name: &SegmentName) -> bool {
    let Ok(object) = storage.open(name.to_string().as_ref(), Access::Ranges) else { return false };
    let parse = |bytes: &[u8]| match Reader::new(bytes).next() {
        Some(Ok(Record::Section(section))) => (is_step(section.comment.as_deref()), false),
        _ => (false, true),
    };
    read_beginning(&*object, &mut Vec::new(), parse).unwrap_or(false)
}

fn of_recorder(
    storage: &dyn Storage,
    names: &[SegmentName],
    lines: &[(u64, bool)],
) -> Option<Recorded> {
    let (first, last) = (names.first()?, names.last()?);
    let told = |name: &SegmentName| {
        let object = storage.open(name.to_string().as_ref(), Access::Ranges).ok()?;
        statistics_told(&*object)
    };
    let ns = |ns: u64| i64::try_from(ns).ok();
    let began_ns = first.began_s.saturating_mul(1_000_000_000);
    let starts = told(first).into_iter().flatten().filter_map(|s| s.start.and_then(ns));
    let first_ns = starts.min().unwrap_or(began_ns);
    let last_ns = if last.live && is_in_use(storage.place()) {
        i64::MAX
    } else {
        let ends =
            told(last).into_iter().flatten().filter_map(|s| ns(s.end.unwrap_or(s.timestamp)));
        ends.max().or_else(|| last_packet_ns(storage, last)).unwrap_or(began_ns)
    };
    // What is about the last of the segments is what holds for all: a clock is kept or it is not,
    // and where a recorder's lines differ the worse counts.
    let about = lines.partition_point(|(number, _)| *number <= first.number).saturating_sub(1);
    let about = lines.iter().skip(about).take_while(|(number, _)| *number <= last.number);
    let clock_is_kept = about.map(|(_, kept)| *kept).reduce(|a, b| a && b);
    Some(Recorded { first_ns, last_ns, clock_is_kept })
}
