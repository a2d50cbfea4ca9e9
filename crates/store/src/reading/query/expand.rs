//! What is there to be read of a segment? As much as its index names, what is not indexed, or all
//! of it. Nothing but the index is read here.

use std::io;
use std::ops::Range;

use super::blocks::LONGEST;
use super::capture_file::CaptureFile;
use super::note::Note;
use super::order::Rank;
use super::request::Request;
use super::snapshot::Segment;
use super::source::{Looked, Loss, Unread};
use crate::format::index::{Granule, Index, Part, Quarter};
use crate::format::segment::open_segment;
use crate::io::Access;

/// Tells what is there to be read of a segment, which has a number in its snapshot.
pub fn expand(request: &Request, segment: &Segment, number: usize) -> io::Result<Looked> {
    let mut expansion = Expansion {
        request,
        number,
        place: segment.begin..segment.end,
        earliest_ns: segment.earliest_ns,
        interfaces: &segment.head.interfaces,
        outcome: Looked::default(),
    };
    match expansion.by_index(segment) {
        Ok(true) => expansion.outcome.progress.indexed = 1,
        Ok(false) => expansion.outcome = expansion.whole(segment)?,
        Err(e) => {
            expansion.outcome = expansion.whole(segment)?;
            let (segment, why) = (segment.name.to_string(), e.to_string());
            expansion.outcome.notes.push(Note::Index { segment, why });
        }
    }
    Ok(expansion.told())
}

/// Tells what is there to be read of a capture file, which has a number in its snapshot. `None`
/// where the file has no index, or one that cannot be used.
pub fn expand_capture(request: &Request, capture: &CaptureFile, number: usize) -> Option<Looked> {
    let mut index = capture.index(&*request.snapshot.storage)?;
    let mut expansion = Expansion {
        request,
        number,
        place: capture.begin..capture.end,
        earliest_ns: i64::MIN,
        interfaces: capture.inner.interfaces(),
        outcome: Looked::default(),
    };
    let granules = index.select(&request.plan, request.span).ok()?;
    expansion.granules(granules).ok()?;
    expansion.count(&index);
    expansion.outcome.progress.indexed = 1;
    Some(expansion.told())
}

/// A segment or capture file while it becomes a list of what is there to be read.
struct Expansion<'a> {
    request: &'a Request,
    /// Index of the segment or capture file in its snapshot.
    number: usize,
    /// Where the packets are.
    place: Range<u64>,
    /// No packet is from before this time.
    earliest_ns: i64,
    /// For each interface id, the index into the snapshot's interfaces.
    interfaces: &'a [u32],
    outcome: Looked,
}

impl Expansion<'_> {
    /// Returns what was found, with what it adds to the progress.
    fn told(self) -> Looked {
        let mut outcome = self.outcome;
        let is_stretch = |unread: &Unread| matches!(unread, Unread::Stretch { .. });
        let progress = &mut outcome.progress;
        progress.segments = 1;
        progress.scanned = u64::from(outcome.unread.iter().any(|(_, unread)| is_stretch(unread)));
        progress.bytes = self.place.end - self.place.start;
        for (rank, unread) in &outcome.unread {
            progress.bytes -= match unread {
                Unread::Stretch { end, .. } => end - rank.begin,
                unread => unread.bytes(0) as u64,
            };
        }
        outcome
    }

    /// Counts what an index told.
    fn count(&mut self, index: &Index) {
        let progress = &mut self.outcome.progress;
        progress.granules = index.granules();
        progress.index_bytes = index.bytes_read();
        self.outcome.told = index.summary().dropped;
    }

    /// Returns the segment from beginning to end, if it is still there.
    fn whole(&self, segment: &Segment) -> io::Result<Looked> {
        open_segment(&*self.request.snapshot.storage, &segment.name, Access::Ranges)?;
        let place = self.place.clone();
        let mut whole = Self { outcome: Looked::default(), place: place.clone(), ..*self };
        whole.stretch(place);
        Ok(whole.outcome)
    }

    /// Takes in what the index of a segment tells. False where there is no index. An error says how
    /// it is damaged.
    fn by_index(&mut self, segment: &Segment) -> io::Result<bool> {
        let Request { snapshot, plan, span, .. } = self.request;
        let Segment { name, begin, end, .. } = segment;
        let Some(mut index) = Index::open(&*snapshot.storage, name, *end)? else {
            return Ok(false);
        };
        let granules = index.select(plan, *span)?;
        let mut at = *begin;
        if !index.summary().complete {
            for part in index.indexed() {
                self.stretch(at..part.start.min(*end));
                at = part.end.max(at);
            }
            self.stretch(at..*end);
        }
        self.granules(granules)?;
        self.count(&index);
        Ok(true)
    }

    /// Takes in what is not indexed. Packets in it may be from as early as any of the segment.
    fn stretch(&mut self, place: Range<u64>) {
        if !place.is_empty() {
            let bound_ns = self.earliest_ns;
            let rank = Rank { bound_ns, segment: self.number, begin: place.start };
            let stretch = Unread::Stretch { end: place.end, context: None, object: None };
            self.outcome.unread.push((rank, stretch));
        }
    }

    /// Takes in the granules that the index names, in the order of the segment.
    fn granules(&mut self, granules: Vec<Granule>) -> io::Result<()> {
        let mut run = Run::default();
        let mut at = self.place.start;
        for granule in granules {
            let place = granule.place.clone();
            if place.start < at || place.is_empty() || place.end - place.start > LONGEST as u64 {
                return Err(unfit("a granule is not where it should be"));
            }
            at = place.end;
            if place.start >= self.place.end {
                // The granule was written later.
                break;
            }
            if place.end > self.place.end {
                self.stretch(place.start..self.place.end);
                continue;
            }
            let span = self.request.span;
            let is_inside = span.contains(granule.first_ns) && span.contains(granule.last_ns);
            if granule.wanted == 0 && is_inside {
                self.loss(granule)?;
                continue;
            }
            self.outcome.progress.wanted += 1;
            for part in granule.to_read() {
                if !run.takes(&part.place, self.request.piece_bytes) {
                    self.end_run(&mut run);
                }
                run.add(part, granule.first_ns);
            }
        }
        self.end_run(&mut run);
        Ok(())
    }

    /// Takes in a granule that is not read and tells of losses.
    fn loss(&mut self, granule: Granule) -> io::Result<()> {
        let Granule { place, first_ns, last_ns, dropped, .. } = granule;
        let interfaces = self.interfaces;
        let of_snapshot = |(id, packets)| Some((*interfaces.get(id as usize)?, packets));
        let dropped: Option<Vec<(u32, u64)>> = dropped.into_iter().map(of_snapshot).collect();
        let Some(dropped) = dropped else { return Err(unfit("it tells of an unknown interface")) };
        self.outcome.progress.dropped += dropped.iter().map(|(_, packets)| packets).sum::<u64>();
        let rank = Rank { bound_ns: first_ns, segment: self.number, begin: place.start };
        let len = place.end - place.start;
        self.outcome.losses.push(Loss { rank, last_ns, len, dropped });
        Ok(())
    }

    fn end_run(&mut self, run: &mut Run) {
        let Run { place, bound_ns, quarters } = std::mem::take(run);
        if !quarters.is_empty() {
            let rank = Rank { bound_ns, segment: self.number, begin: place.start };
            self.outcome.unread.push((rank, Unread::Quarters(quarters)));
        }
    }
}

/// Quarters of granules one after the other, which are read at once.
#[derive(Default)]
struct Run {
    place: Range<u64>,
    bound_ns: i64,
    quarters: Vec<Quarter>,
}

impl Run {
    fn takes(&self, place: &Range<u64>, most: usize) -> bool {
        self.place.end == place.start && place.end - self.place.start <= most as u64
    }

    fn add(&mut self, Part { place, quarters }: Part, bound_ns: i64) {
        if self.quarters.is_empty() {
            (self.place, self.bound_ns) = (place, bound_ns);
        } else {
            self.place.end = place.end;
            self.bound_ns = self.bound_ns.min(bound_ns);
        }
        self.quarters.extend(quarters);
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
