//! What came into a store since it was asked? An answer that follows a store is made of rounds,
//! each of which is an answer of its own, in time order: of what the store held at first, then of
//! what was written since the round before.
//!
//! Where a round goes on is a place in the files, and not a time: so no packet is missing and none
//! comes twice, however late it was written. A segment that may grow is read from end to end, up to
//! its last whole block, since what an index tells of it ends anywhere. One that came and was
//! closed between two rounds is read by its index, as in any answer.
//!
//! A reader that is slower than the recorder falls back from the newest segment to closed ones, and
//! then behind what retention deletes, which notes tell. It never holds a file open between two
//! rounds, so that what is deleted gives its room back.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ends::{Begun, look_at_all};
use super::error::Error;
use super::interface::Described;
use super::losses::Losses;
use super::note::Note;
use super::snapshot::{AT_ONCE, Contents, Missing, Segment, Snapshot, list};
use crate::format::name::SegmentName;
use crate::io::Storage;
use crate::reading::holes::{Numbers, gaps};
use crate::span::Span;

/// How often the directory is listed, at most, while nothing tells that it has changed. A new
/// segment is noticed sooner where the one before it was closed.
const LIST: Duration = Duration::from_millis(500);
/// Listing takes no more than one part in so many of the time.
const LIST_SHARE: u32 = 50;

/// How far a store was read.
pub struct Tail {
    storage: Arc<dyn Storage>,
    interfaces: Vec<Described>,
    begun: Option<Arc<Begun>>,
    /// Segments that may grow, and that have not since the last round. Each begins where reading
    /// goes on, and ends where the file ended then.
    segments: Vec<Segment>,
    /// The highest number of a segment that was seen.
    newest: u64,
    next_list: Instant,
    /// Losses that no packet has told yet.
    pub(super) losses: Losses,
    /// What is known to have gone unseen.
    pub(super) unseen: Vec<Missing>,
}

impl Tail {
    /// Begins behind what was read of a snapshot. Of each of its segments that may grow, `reached`
    /// says where reading goes on.
    pub(super) fn behind(snapshot: &Snapshot, reached: impl Fn(usize, &Segment) -> u64) -> Self {
        let mut tail = Self {
            storage: snapshot.storage.clone(),
            interfaces: Vec::new(),
            begun: None,
            segments: Vec::new(),
            newest: 0,
            next_list: Instant::now(),
            losses: Losses::default(),
            unseen: Vec::new(),
        };
        tail.pass(snapshot, reached);
        tail
    }

    /// Takes note of what was read of the next snapshot.
    pub(super) fn pass(&mut self, snapshot: &Snapshot, reached: impl Fn(usize, &Segment) -> u64) {
        self.interfaces.clone_from(&snapshot.interfaces);
        self.begun.clone_from(&snapshot.begun);
        self.newest = self.newest.max(snapshot.newest);
        for (number, segment) in snapshot.segments_to_read().iter().enumerate() {
            if segment.name.live {
                let begin = reached(number, segment);
                self.segments.push(Segment { begin, may_grow: true, ..segment.clone() });
            }
        }
    }

    /// Returns what was written since the last round, as far as a span reaches into it; `None`
    /// where that is nothing.
    pub fn grown(&mut self, span: Span) -> Result<Option<Snapshot>, Error> {
        let place = self.storage.place().to_owned();
        let fail = |e| Error::new(place.clone(), e);
        let storage = self.storage.clone();
        let mut snapshot = Snapshot::empty(storage.clone());
        let has_changed = self.segments.iter().any(|segment| {
            let state = storage.state(segment.name.to_string().as_ref());
            state.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        });
        let mut new = Vec::new();
        if has_changed || Instant::now() >= self.next_list {
            let begun = Instant::now();
            let names = list(&*storage).map_err(fail)?.names;
            self.next_list = Instant::now() + LIST.max(begun.elapsed() * LIST_SHARE);
            self.find_closed(&names);
            let first = names.partition_point(|name| name.number <= self.newest);
            new = names[first..].to_vec();
            snapshot.notes.extend(self.missed(&new).map_err(fail)?);
        }
        let mut segments = self.take_grown(&mut snapshot.notes).map_err(fail)?;
        snapshot.interfaces = std::mem::take(&mut self.interfaces);
        snapshot.begun = self.begun.take();
        for names in new.chunks(AT_ONCE) {
            for (name, seen) in names.iter().zip(look_at_all(&*storage, names, span)) {
                snapshot.add(name, seen?, span, &mut segments)?;
            }
        }
        for segment in &mut segments {
            segment.may_grow |= segment.name.live;
        }
        snapshot.newest = new.last().map_or(self.newest, |name| name.number);
        let is_nothing =
            segments.is_empty() && snapshot.notes.is_empty() && snapshot.unseen.is_empty();
        snapshot.contents = Contents::Segments(segments);
        if is_nothing {
            self.pass(&snapshot, |_, _| 0);
            return Ok(None);
        }
        Ok(Some(snapshot))
    }

    /// Takes note of segments that were closed.
    fn find_closed(&mut self, names: &[SegmentName]) {
        for segment in &mut self.segments {
            let at = names.binary_search_by_key(&segment.name.number, |name| name.number);
            segment.name.live = at.is_ok_and(|at| names[at].live);
        }
    }

    /// Takes the segments that have grown, and those that will not any more.
    fn take_grown(&mut self, notes: &mut Vec<Note>) -> io::Result<Vec<Segment>> {
        let mut grown = Vec::new();
        for mut segment in std::mem::take(&mut self.segments) {
            match self.storage.state(segment.name.to_string().as_ref()) {
                Ok(state) => {
                    // What a dead recorder tore stays as it is until somebody mends it.
                    let is_other = state.len != segment.end || !segment.name.live;
                    if state.len > segment.begin && is_other {
                        segment.end = state.len;
                        grown.push(segment);
                    } else if segment.name.live {
                        self.segments.push(segment);
                    }
                }
                // It was closed since the directory was listed, and will be found closed.
                Err(e) if e.kind() == io::ErrorKind::NotFound && segment.name.live => {
                    self.next_list = Instant::now();
                    self.segments.push(segment);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    notes.push(Note::Deleted(segment.name.to_string()));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(grown)
    }

    /// Returns what is to be told of segments that came and went between two rounds.
    fn missed(&self, new: &[SegmentName]) -> io::Result<Vec<Note>> {
        let mut notes = Vec::new();
        let mut before = self.newest;
        let mut all: Option<BTreeSet<u64>> = None;
        for name in new {
            if before > 0 && name.number > before + 1 {
                // Those that held nothing were set aside, and are none that was missed.
                let all = match &mut all {
                    Some(all) => all,
                    none => none.insert(Numbers::list(&*self.storage)?.all),
                };
                notes.extend(gaps(all, before + 1..name.number).map(|gap| {
                    let (first, last) = gap.into_inner();
                    Note::Missed { first, last }
                }));
            }
            before = name.number;
        }
        Ok(notes)
    }
}
