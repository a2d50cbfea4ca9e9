//! The rows of one segment, and what is read of it for them: the granules that any of the rows
//! names, each once and in the order of the segment, as the key of fragments wants it.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use tapdeck_flow::{Chooser, Pointer};
use tapdeck_store::SegmentName;
use tapdeck_store::io::Storage;
use tapdeck_store::query::{Described, Note, Packet};
use tapdeck_store::walk::Walk;

/// Granules that are expected to be read next; one is some 128 KiB.
const EXPECTED: usize = 64;

/// A segment, and the rows that lead to it.
pub struct Segment<'a> {
    storage: Arc<dyn Storage>,
    pub name: SegmentName,
    pointers: Vec<&'a Pointer>,
    open: Option<Open>,
    /// For each row how many packets were found.
    found: Vec<u64>,
    /// The rows that packets are chosen for.
    rows: Vec<usize>,
    pub notes: Vec<Note>,
    pub is_gone: bool,
    /// Packets that were lost before those of what was read.
    pub dropped: u64,
    /// No packet that was not read is from before this time.
    pub bound_ns: i64,
}

/// A segment that is open.
struct Open {
    walk: Walk,
    chooser: Chooser,
    parts: Vec<Part>,
    next: usize,
    /// The part before which more of them are expected.
    expect_at: usize,
}

/// What is read at a time.
struct Part {
    what: What,
    /// Where it begins in the segment.
    begin: u64,
    /// The earliest time of a packet in it, or in any part behind it.
    bound_ns: i64,
}

enum What {
    /// A granule of the index.
    Granule(u32),
    /// What is left of a part of a segment that has no index. It is read in pieces.
    Stretch(Range<u64>),
}

impl What {
    fn granule(&self) -> Option<u32> {
        match self {
            Self::Granule(number) => Some(*number),
            Self::Stretch(_) => None,
        }
    }
}

impl<'a> Segment<'a> {
    pub fn new(storage: Arc<dyn Storage>, name: SegmentName, pointers: Vec<&'a Pointer>) -> Self {
        let start_us = pointers.iter().map(|pointer| pointer.start_us).min().unwrap_or(i64::MAX);
        Self {
            storage,
            name,
            found: vec![0; pointers.len()],
            rows: Vec::new(),
            pointers,
            open: None,
            notes: Vec::new(),
            is_gone: false,
            dropped: 0,
            bound_ns: start_us.saturating_mul(1000),
        }
    }

    /// Says to the storage what will be read, as far as rows tell it.
    pub fn expect(&self) {
        let runs = self.pointers.iter().filter(|pointer| pointer.runs.is_none());
        let parts: Vec<Range<u64>> = runs.map(|pointer| pointer.place.clone()).collect();
        Walk::expect(&*self.storage, &self.name, &parts);
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns what messages call the segment.
    pub fn location(&self) -> String {
        self.storage.location(self.name.to_string().as_ref()).display().to_string()
    }

    pub fn interfaces(&self) -> &[Described] {
        self.open.as_ref().map_or(&[], |open| open.walk.interfaces())
    }

    /// Opens the segment, or reads its next part: hands the packets of its rows to `each`, with
    /// their places. False where there is no more.
    pub fn advance(&mut self, each: impl FnMut(u64, &Packet<'_>)) -> io::Result<bool> {
        if self.open.is_none() {
            return self.open();
        }
        self.read_next(each)
    }

    fn open(&mut self) -> io::Result<bool> {
        let walk = match Walk::open_some(&*self.storage, &self.name) {
            Ok(Some(walk)) => walk,
            Ok(None) => return Ok(self.gone()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(self.gone()),
            Err(e) => return Err(e),
        };
        let parts = if walk.is_indexed() { self.granules(&walk) } else { self.stretches() };
        let chooser = Chooser::new(self.pointers.iter().copied().enumerate());
        self.rows = chooser.rows().collect();
        let has_parts = !parts.is_empty();
        self.bound_ns = parts.first().map_or(i64::MAX, |part| part.bound_ns);
        self.open = Some(Open { walk, chooser, parts, next: 0, expect_at: 0 });
        Ok(has_parts)
    }

    /// Notes that the segment is gone, so that there is no more of it.
    fn gone(&mut self) -> bool {
        self.is_gone = true;
        false
    }

    /// Returns the granules that rows name.
    fn granules(&self, walk: &Walk) -> Vec<Part> {
        let mut numbers = BTreeSet::new();
        for pointer in &self.pointers {
            let within = walk.within(&pointer.place);
            match &pointer.runs {
                None => numbers.extend(within),
                // A list that leads out of where the row lies is another segment's.
                Some(runs) => {
                    for (from, to) in runs {
                        numbers.extend((*from).max(within.start)..(*to).min(within.end));
                    }
                }
            }
        }
        let mut parts: Vec<Part> = numbers
            .into_iter()
            .filter_map(|number| {
                let (place, bound_ns) = walk.granule_at(number)?;
                Some(Part { what: What::Granule(number), begin: place.start, bound_ns })
            })
            .collect();
        let mut bound_ns = i64::MAX;
        for part in parts.iter_mut().rev() {
            bound_ns = bound_ns.min(part.bound_ns);
            part.bound_ns = bound_ns;
        }
        parts
    }

    /// Returns where rows lie, without an index, each place once.
    fn stretches(&self) -> Vec<Part> {
        let mut places: Vec<Range<u64>> =
            self.pointers.iter().map(|pointer| pointer.place.clone()).collect();
        places.sort_unstable_by_key(|place| (place.start, place.end));
        let mut all: Vec<Range<u64>> = Vec::new();
        for place in places {
            match all.last_mut() {
                Some(last) if place.start < last.end => last.end = last.end.max(place.end),
                _ => all.push(place),
            }
        }
        let bound_ns = self.bound_ns;
        let part =
            |place: Range<u64>| Part { begin: place.start, what: What::Stretch(place), bound_ns };
        all.into_iter().map(part).collect()
    }

    fn read_next(&mut self, mut each: impl FnMut(u64, &Packet<'_>)) -> io::Result<bool> {
        let Self { open, found, dropped, notes, bound_ns, storage, .. } = self;
        let Some(Open { walk, chooser, parts, next, expect_at }) = open else { return Ok(false) };
        if *next >= *expect_at {
            // Half of what was expected before is still to be read.
            let soon = parts.iter().skip(*next).take(EXPECTED);
            walk.expect_granules(&**storage, soon.filter_map(|part| part.what.granule()));
            *expect_at = *next + EXPECTED / 2;
        }
        let Some(part) = parts.get_mut(*next) else { return Ok(false) };
        let mut take = |at: u64, packet: &Packet<'_>| {
            *dropped += packet.dropped;
            let row = chooser.row_of(packet.link, packet.frame, packet.time_ns, at);
            if let Some(row) = row {
                found[row] += 1;
                each(at, packet);
            }
        };
        let read = match &mut part.what {
            What::Granule(number) => {
                walk.read(*number, |packet| take(part.begin, packet)).map(|()| true)
            }
            What::Stretch(place) => walk.read_part(place.clone(), take).map(|rest| {
                place.start = rest;
                place.is_empty()
            }),
        };
        notes.extend(walk.take_notes());
        match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(self.gone()),
            read => *next += usize::from(read?),
        }
        let following = parts.get(*next);
        *bound_ns = following.map_or(i64::MAX, |part| part.bound_ns);
        Ok(following.is_some())
    }

    /// Closes the segment: what is left of it are the numbers.
    pub fn close(&mut self) {
        self.open = None;
        self.bound_ns = i64::MAX;
    }

    /// Returns the rows with another number of packets than was found, with that.
    pub fn differing(&self) -> impl Iterator<Item = (&'a Pointer, u64)> {
        let differ = |row: &usize| {
            let (pointer, found) = (self.pointers[*row], self.found[*row]);
            (pointer.packets != found).then_some((pointer, found))
        };
        self.rows.iter().filter_map(differ)
    }

    pub fn row_count(&self) -> u64 {
        self.pointers.len() as u64
    }
}
