//! What do a store's overviews tell of its segments, so that these and their indexes need not be
//! opened? The ends of those that are covered, and later in which of them the keys of a question
//! may be.
//!
//! Of a segment that no overview covers, or that is not what it was, its own ends and index tell.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::ends::{Begun, Ends, SLACK_NS, parse_begin, several};
use super::note::Note;
use super::order::Rank;
use super::request::Request;
use super::source::{Looked, Unread};
use crate::format::index::{Member, Overview};
use crate::format::name::SegmentName;
use crate::io::Storage;

/// An overview, and which of a snapshot's segments it covers.
pub struct Covering {
    /// The segment that the overview is named after.
    last: SegmentName,
    /// What tells the overview from another of its name.
    checksum: u32,
    pub segments: Vec<Covered>,
}

/// A segment that is covered.
pub struct Covered {
    /// Index of the segment in its snapshot.
    pub segment: usize,
    /// Place of the segment in the overview.
    place: usize,
    granules: u64,
    /// Whether the segment tells of losses, which its own index has.
    tells: bool,
}

impl Covered {
    pub fn new(segment: usize, place: usize, member: &Member) -> Self {
        Self { segment, place, granules: member.granules, tells: member.tells }
    }
}

/// An overview that was opened, and what it tells.
pub struct Told {
    pub covering: Covering,
    pub bytes_read: u64,
    members: Vec<Member>,
    /// For each segment that is covered: its number, its place in the overview, and its ends.
    ends: BTreeMap<u64, (usize, Ends)>,
}

impl Told {
    /// Returns the segment that the overview is named after.
    pub fn last(&self) -> &SegmentName {
        &self.covering.last
    }

    /// Takes out what is told of a segment.
    pub fn take(&mut self, number: u64) -> Option<(usize, Ends)> {
        self.ends.remove(&number)
    }

    /// Takes note that a segment is in the snapshot.
    pub fn cover(&mut self, segment: usize, place: usize) {
        self.covering.segments.push(Covered::new(segment, place, &self.members[place]));
    }
}

/// Opens overviews, several at once, and looks which of the segments they cover. `overviews` are
/// the segments that they are named after. One that cannot be used is told by a note.
pub fn look_at_overviews(
    storage: &dyn Storage,
    names: &[SegmentName],
    overviews: &[SegmentName],
) -> Vec<Result<Told, Option<Note>>> {
    several(overviews, |last, _| {
        let from =
            names.partition_point(|name| !name.shares_overview(last) && name.number < last.number);
        let upto = names.partition_point(|name| name.number <= last.number);
        look(storage, last, &names[from..upto.max(from)]).map_err(|e| unusable(last, &e))
    })
}

fn look(storage: &dyn Storage, last: &SegmentName, names: &[SegmentName]) -> io::Result<Told> {
    let overview = Overview::open(storage, last)?.ok_or(io::ErrorKind::NotFound)?;
    let begun: Vec<Option<Arc<Begun>>> =
        overview.heads().iter().map(|head| parse_begin(head).0.map(Arc::new)).collect();
    let mut ends = BTreeMap::new();
    for name in names.iter().filter(|name| !name.live) {
        // What is wrong with a segment is told when that is opened.
        let Ok(state) = storage.state(name.to_string().as_ref()) else { continue };
        let Some(place) = overview.covers(name, &state) else { continue };
        let member = &overview.members()[place];
        let Some(begun) = begun[member.head].clone() else { continue };
        let told = Ends {
            begun,
            end: member.len,
            earliest_ns: member.first_ns,
            latest_ns: Some(member.last_ns),
            behind_ns: member.first_ns.max(member.last_ns.saturating_sub(SLACK_NS)),
            index_bytes: 0,
        };
        ends.insert(name.number, (place, told));
    }
    let (members, checksum) = (overview.members().to_vec(), overview.checksum);
    let covering = Covering { last: last.clone(), checksum, segments: Vec::new() };
    Ok(Told { covering, bytes_read: overview.bytes_read(), members, ends })
}

/// Returns the note of an overview that cannot be used; `None` where it is only gone.
fn unusable(last: &SegmentName, e: &io::Error) -> Option<Note> {
    let is_gone = e.kind() == io::ErrorKind::NotFound;
    let (overview, why) = (last.overview_name(), e.to_string());
    (!is_gone).then_some(Note::Overview { overview, why })
}

/// Tells which segments of an overview are to be looked at for a question.
pub fn expand_overview(request: &Request, number: usize) -> Looked {
    let snapshot = &request.snapshot;
    let covering = &snapshot.overviews[number];
    let mut outcome = Looked::default();
    let selected = Overview::open(&*snapshot.storage, &covering.last).and_then(|overview| {
        // One that was made anew meanwhile may count its segments in another way.
        let overview = overview.filter(|overview| overview.checksum == covering.checksum);
        let mut overview = overview.ok_or(io::ErrorKind::NotFound)?;
        let selected = overview.select(&request.plan)?;
        outcome.progress.index_bytes = overview.bytes_read();
        Ok(selected)
    });
    let selected = selected.unwrap_or_else(|e| {
        outcome.notes.extend(unusable(&covering.last, &e));
        None
    });
    for Covered { segment, place, granules, tells } in &covering.segments {
        let of = &snapshot.segments_to_read()[*segment];
        if !snapshot.is_wanted(*segment) {
            continue;
        }
        let is_wanted = selected.as_ref().is_none_or(|set| set.contains(*place as u32));
        if is_wanted || *tells {
            let rank = Rank { bound_ns: of.earliest_ns, segment: *segment, begin: 0 };
            outcome.unread.push((rank, Unread::Whole));
        } else {
            let progress = &mut outcome.progress;
            progress.segments += 1;
            progress.indexed += 1;
            progress.granules += granules;
            progress.bytes += of.end - of.begin;
        }
    }
    outcome
}
