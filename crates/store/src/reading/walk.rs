//! The packets of one closed segment, as they lie there: not in the order of time, granule by
//! granule. For whoever has to see each packet once and can do with any order, this is the fastest
//! way, and it needs next to no memory. Who knows where packets lie reads some granules alone.
//!
//! The granules are those of the segment's index. Without an index (there is none, or it cannot be
//! used) the segment is cut into pieces by the same rule, which have no numbers that mean anything
//! to others. Where a granule is damaged, its packets up to the damage are given and a note tells;
//! without an index the segment ends there. A note also tells where a granule's checksum is not the
//! one in the index.

use std::collections::BTreeSet;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use tapdeck_packet::pcapng::{Record, Statistics};
use tapdeck_packet::ring::Cut;

use super::query::{Described, Note, Packet, Snapshot};
use crate::format::cutoff;
use crate::format::index::{GRANULE, Granule, Index, Quarters};
use crate::format::name::SegmentName;
use crate::format::segment::{body_end, read_beginning, statistics_told};
use crate::io::{Access, Object, PAGE, Storage};
use crate::reading::holes::{gaps, segment_of};
use crate::reading::query::blocks::{Blocks, BrokenBlock, LONGEST, PieceEnd};
use crate::reading::query::ends::{Begun, parse_begin};

/// About how many bytes are read at a time.
const PIECE: u64 = 1 << 20;

/// What is expected to be read of a segment's beginning, and of its index.
const HEAD: u64 = 64 << 10;
const INDEX: u64 = 512 << 10;

/// What comes next in a segment.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// A packet of the granule that has not ended. Its interface is an index into
    /// [`Walk::interfaces`].
    Packet(Packet<'a>),
    /// The end of a granule: where it lies in the segment.
    GranuleEnd(Range<u64>),
}

/// A closed segment, opened to be read from end to end.
pub struct Walk {
    name: SegmentName,
    begun: Begun,
    object: Arc<dyn Object>,
    /// Where the packets end.
    end: u64,
    /// Where the granules of the index lie; `None` without one.
    granules: Option<Vec<Place>>,
    statistics: Option<Vec<Statistics>>,
    notes: Vec<Note>,
}

/// Where a granule lies, and what its index has of it.
struct Place {
    bytes: Range<u64>,
    quarters: Quarters,
    /// The earliest time of its packets.
    first_ns: i64,
}

/// What a closed segment tells beside its packets: the time that it is of, and what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// When its interfaces began and ended to be counted, UTC nanoseconds; `None` without
    /// statistics.
    pub times_ns: Option<(u64, u64)>,
    /// Packets in the segment; `None` without statistics.
    pub packets: Option<u64>,
    /// Packets that were dropped.
    pub lost: u64,
    /// What was left out of flows that had had their bytes.
    pub cut: Cut,
    /// Packets that went unseen before the segment.
    pub unseen: u64,
}

/// Returns the closed segments of a snapshot, oldest first.
pub fn closed(snapshot: &Snapshot) -> Vec<SegmentName> {
    let segments = snapshot.segments_to_read().iter();
    segments.filter(|segment| !segment.name.live).map(|segment| segment.name.clone()).collect()
}

impl Walk {
    /// Opens a closed segment; `None` where another program wrote the file.
    ///
    /// # Errors
    /// `NotFound` where the segment is gone.
    pub fn open(storage: &dyn Storage, name: &SegmentName) -> io::Result<Option<Self>> {
        let object = storage.open(name.to_string().as_ref(), Access::Sequential)?;
        let len = object.length()?;
        let Some(begun) = read_beginning(&*object, &mut Vec::new(), parse_begin)? else {
            return Ok(None);
        };
        let statistics = statistics_told(&*object);
        let end = body_end(&*object).unwrap_or(len);
        let mut notes = Vec::new();
        let granules = granules(storage, name, len, begun.end).unwrap_or_else(|e| {
            notes.push(Note::Index { segment: name.to_string(), why: e.to_string() });
            None
        });
        if let Some((at, what)) = begun.damaged {
            notes.push(Note::Damaged { segment: name.to_string(), at, what: what.to_owned() });
        }
        Ok(Some(Self { name: name.clone(), begun, object, end, granules, statistics, notes }))
    }

    /// Says to a storage that parts of a closed segment will be read ([`Walk::open_some`]).
    pub fn expect(storage: &dyn Storage, name: &SegmentName, parts: &[Range<u64>]) {
        let parts: Vec<Range<u64>> =
            std::iter::once(0..HEAD).chain(parts.iter().map(paged)).collect();
        storage.expect(name.to_string().as_ref(), &parts);
        storage.expect(name.index_name().as_ref(), std::slice::from_ref(&(0..INDEX)));
    }

    /// Opens a closed segment to read some of its granules ([`Walk::read`]); `None` where another
    /// program wrote the file. Its end is not looked at.
    ///
    /// # Errors
    /// `NotFound` where the segment is gone.
    pub fn open_some(storage: &dyn Storage, name: &SegmentName) -> io::Result<Option<Self>> {
        let object = storage.open(name.to_string().as_ref(), Access::Once)?;
        let end = object.length()?;
        let Some(begun) = read_beginning(&*object, &mut Vec::new(), parse_begin)? else {
            return Ok(None);
        };
        let mut notes = Vec::new();
        let granules = granules(storage, name, end, begun.end).unwrap_or_else(|e| {
            notes.push(Note::Index { segment: name.to_string(), why: e.to_string() });
            None
        });
        Ok(Some(Self { name: name.clone(), begun, object, end, granules, statistics: None, notes }))
    }

    /// Returns where a granule lies, and the earliest time of its packets; `None` where there is no
    /// granule of that number, or no index.
    pub fn granule_at(&self, number: u32) -> Option<(Range<u64>, i64)> {
        let place = self.granules.as_ref()?.get(number as usize)?;
        Some((place.bytes.clone(), place.first_ns))
    }

    /// Says to the segment's storage that granules will be read.
    pub fn expect_granules(&self, storage: &dyn Storage, numbers: impl Iterator<Item = u32>) {
        let places = numbers.filter_map(|number| self.granule_at(number));
        let parts: Vec<Range<u64>> = places.map(|(place, _)| paged(&place)).collect();
        storage.expect(self.name.to_string().as_ref(), &parts);
    }

    /// Returns the numbers of the granules that lie in a part of the segment; none where there is
    /// no index.
    pub fn within(&self, part: &Range<u64>) -> Range<u32> {
        let places = self.granules.as_deref().unwrap_or_default();
        let first = places.partition_point(|place| place.bytes.start < part.start);
        let end = places.partition_point(|place| place.bytes.end <= part.end);
        first as u32..end.max(first) as u32
    }

    /// Reads a granule, and hands its packets to `each`. What is wrong with it a note tells.
    pub fn read(&mut self, number: u32, mut each: impl FnMut(&Packet<'_>)) -> io::Result<()> {
        let Some(granules) = self.granules.take() else { return Ok(()) };
        let mut outcome = Ok(());
        if let Some(granule) = granules.get(number as usize) {
            let mut blocks = Blocks::default();
            let Range { start, end } = granule.bytes;
            let len = (end - start) as usize;
            outcome = blocks
                .load(&*self.object, &self.begun.section, start, len)
                .map(|_| self.object.forget(start..end));
            if outcome.is_ok() {
                outcome = self.granule(&mut blocks, granule, &mut |step| {
                    if let Step::Packet(packet) = step {
                        each(&packet);
                    }
                    Ok(())
                });
            }
        }
        self.granules = Some(granules);
        outcome
    }

    /// Reads about a megabyte of a part of the segment that begins and ends between two blocks,
    /// without an index, and hands the packets to `each`, with the places of their blocks. Returns
    /// where the rest begins, which is the part's end where there is no more. Where it is damaged,
    /// that is all of it, and a note tells.
    pub fn read_part(
        &mut self,
        part: Range<u64>,
        mut each: impl FnMut(u64, &Packet<'_>),
    ) -> io::Result<u64> {
        let mut at = part.start.max(self.begun.end);
        let end = part.end.min(self.end);
        if at >= end {
            if part.end > self.end {
                self.damaged(self.end, "it is cut short");
            }
            return Ok(part.end);
        }
        let Self { begun, object, .. } = &*self;
        let mut blocks = Blocks::default();
        let read =
            blocks.read(&**object, &begun.section, at..end, PIECE as usize, |at, record| {
                if let Some(packet) = packet(begun, &record)? {
                    each(at, &packet);
                }
                Ok(())
            })?;
        at += read.bytes;
        match read.stop {
            PieceEnd::More => return Ok(at),
            PieceEnd::End => {}
            PieceEnd::Cut => self.damaged(at, "it is cut short"),
            PieceEnd::Damaged(what) => self.damaged(at, what),
        }
        Ok(part.end)
    }

    /// Returns the interfaces that the segment describes, by their ids.
    pub fn interfaces(&self) -> &[Described] {
        &self.begun.interfaces
    }

    /// Whether the granules are those of an index, which counts them from 0 in this order.
    pub fn is_indexed(&self) -> bool {
        self.granules.is_some()
    }

    /// Returns how many packets the segment's statistics tell of; `None` where it has none.
    pub fn packets_told(&self) -> Option<u64> {
        self.statistics.as_ref()?.iter().map(|told| told.delivered).sum()
    }

    /// Returns how many packets were lost as the segment's statistics tell, which may be more than
    /// its packets do; `None` where it has none.
    pub fn dropped_told(&self) -> Option<u64> {
        Some(self.statistics.as_ref()?.iter().filter_map(|told| told.dropped).sum())
    }

    /// Returns the segment's length up to its statistics.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Takes what the user should know, of damage for one.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Returns what the segment tells beside its packets.
    pub fn account(&self) -> Account {
        let told = self.statistics.as_deref().unwrap_or_default();
        let begins = told.iter().filter_map(|told| told.start);
        let ends = told.iter().map(|told| told.end.unwrap_or(told.timestamp));
        Account {
            times_ns: begins.min().zip(ends.max()),
            packets: self.packets_told(),
            lost: told.iter().filter_map(|told| told.dropped).sum(),
            cut: told.iter().filter_map(cutoff::cut_told).sum(),
            unseen: self.begun.unseen.iter().map(|unseen| unseen.packets).sum(),
        }
    }

    /// Reads the segment, and hands all there is to `each`, which may end the reading by an error.
    pub fn run<E: From<io::Error>>(
        &mut self,
        each: impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.granules.take() {
            Some(granules) => {
                let outcome = self.by_granules(&granules, each);
                self.granules = Some(granules);
                outcome
            }
            None => self.by_pieces(each),
        }
    }

    fn by_granules<E: From<io::Error>>(
        &mut self,
        granules: &[Place],
        mut each: impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut blocks = Blocks::default();
        let goes_on = |a: &Place, b: &Place| a.bytes.end == b.bytes.start;
        for run in granules.chunk_by(goes_on) {
            let mut rest = run;
            while let Some(first) = rest.first() {
                let upto = first.bytes.start + PIECE;
                let count = rest.partition_point(|granule| granule.bytes.end <= upto).max(1);
                let (now, later) = rest.split_at(count);
                rest = later;
                let place = first.bytes.start..now[count - 1].bytes.end;
                let len = (place.end - place.start) as usize;
                blocks.load(&*self.object, &self.begun.section, place.start, len)?;
                self.object.forget(place);
                for granule in now {
                    self.granule(&mut blocks, granule, &mut each)?;
                    each(Step::GranuleEnd(granule.bytes.clone()))?;
                }
            }
        }
        Ok(())
    }

    fn granule<E>(
        &mut self,
        blocks: &mut Blocks,
        Place { bytes: place, quarters, .. }: &Place,
        each: &mut impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_intact = quarters.are_those_of(blocks.bytes(place));
        let mut failed = None;
        let Self { begun, .. } = &*self;
        let (good, fault) = blocks.parse(place, |_, record| {
            let Some(packet) = packet(begun, &record)? else { return Ok(()) };
            each(Step::Packet(packet)).map_err(|e| {
                failed = Some(e);
                ""
            })
        });
        if let Some(e) = failed {
            return Err(e);
        }
        let what = match fault {
            Some(BrokenBlock::Damaged(what)) => what,
            Some(BrokenBlock::Short(_)) => "a block passes the end of what was indexed",
            None if good < place.end => "it is cut short",
            None if !is_intact => {
                let segment = self.name.to_string();
                self.notes.push(Note::Changed { segment, at: place.start });
                return Ok(());
            }
            None => return Ok(()),
        };
        self.damaged(good, what);
        Ok(())
    }

    fn by_pieces<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut blocks = Blocks::default();
        let (mut at, mut began) = (self.begun.end, self.begun.end);
        while at < self.end {
            let mut failed = None;
            let Self { begun, object, .. } = &*self;
            let part = at..self.end;
            let read =
                blocks.read(&**object, &begun.section, part, PIECE as usize, |at, record| {
                    let mut give = |step: Step<'_>| {
                        each(step).map_err(|e| {
                            failed = Some(e);
                            ""
                        })
                    };
                    if at - began >= GRANULE {
                        give(Step::GranuleEnd(began..at))?;
                        began = at;
                    }
                    match packet(begun, &record)? {
                        Some(packet) => give(Step::Packet(packet)),
                        None => Ok(()),
                    }
                })?;
            if let Some(e) = failed {
                return Err(e);
            }
            at += read.bytes;
            match read.stop {
                PieceEnd::More => {}
                PieceEnd::End => break,
                PieceEnd::Cut => {
                    self.damaged(at, "it is cut short");
                    break;
                }
                PieceEnd::Damaged(what) => {
                    self.damaged(at, what);
                    break;
                }
            }
        }
        if at > began { each(Step::GranuleEnd(began..at)) } else { Ok(()) }
    }

    fn damaged(&mut self, at: u64, what: &str) {
        let segment = self.name.to_string();
        self.notes.push(Note::Damaged { segment, at, what: what.to_owned() });
    }
}

/// Returns the pages that a part lies in, which is what is read of it.
fn paged(part: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    part.start / page * page..part.end.checked_next_multiple_of(page).unwrap_or(u64::MAX)
}

/// Returns where the granules of a segment's index lie; `None` where there is no whole index. An
/// error says why there is one that cannot be used.
fn granules(
    storage: &dyn Storage,
    name: &SegmentName,
    len: u64,
    body: u64,
) -> io::Result<Option<Vec<Place>>> {
    let index = Index::open(storage, name, len)?;
    let Some(mut index) = index.filter(|index| index.summary().complete) else { return Ok(None) };
    let tables = index.tables()?;
    let place = |granule: Granule| {
        let Granule { place: bytes, quarters, first_ns, .. } = granule;
        Place { bytes, quarters, first_ns }
    };
    let places: Vec<Place> = tables.into_iter().flatten().map(place).collect();
    let mut at = body;
    for Place { bytes: place, .. } in &places {
        let is_long = place.end.saturating_sub(place.start) > LONGEST as u64;
        if place.start < at || place.is_empty() || place.end > len || is_long {
            let why = "a granule is not where it should be";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        at = place.end;
    }
    Ok(Some(places))
}

/// Returns the packet that a block is; `None` where it is none. An error says how it is damaged.
pub(super) fn packet<'a>(
    begun: &Begun,
    record: &Record<'a>,
) -> Result<Option<Packet<'a>>, &'static str> {
    let block = match record {
        Record::Packet(block) => block,
        Record::Statistics(_) | Record::Other(_) => return Ok(None),
        Record::Section(_) | Record::Interface(_) => {
            return Err("a header in the middle of a segment");
        }
    };
    let Some(interface) = begun.interfaces.get(block.interface as usize) else {
        return Err("a packet of an interface that was not described");
    };
    let Ok(time_ns) = i64::try_from(block.timestamp) else {
        return Err("a packet of a time that cannot be");
    };
    Ok(Some(Packet {
        time_ns,
        interface: block.interface,
        link: interface.link,
        original_len: block.original_len,
        frame: block.frame,
        flags: block.flags,
        dropped: block.dropped,
        shed: block.shed,
    }))
}

/// The segments that a store has at one moment, as their names tell. Nothing says what is in them.
#[derive(Default)]
pub struct Listing {
    /// Closed segments, oldest first.
    pub closed: Vec<SegmentName>,
    /// The numbers of closed and of live ones.
    pub numbers: BTreeSet<u64>,
    /// The numbers of those that held nothing, and that recovery set aside.
    pub aside: BTreeSet<u64>,
}

impl Listing {
    /// Lists a store. A segment that is renamed meanwhile may be left out.
    pub fn read(storage: &dyn Storage) -> io::Result<Self> {
        let mut listing = Self::default();
        for name in storage.list()? {
            let Some((name, is_aside)) = name.to_str().and_then(segment_of) else { continue };
            if is_aside {
                listing.aside.insert(name.number);
                continue;
            }
            listing.numbers.insert(name.number);
            if !name.live {
                listing.closed.push(name);
            }
        }
        listing.closed.sort();
        Ok(listing)
    }

    /// Returns the numbers of a range that no segment has.
    pub fn missing(&self, within: Range<u64>) -> Vec<RangeInclusive<u64>> {
        let known = |numbers: &BTreeSet<u64>| -> Vec<u64> {
            numbers.range(within.clone()).copied().collect()
        };
        let known = [known(&self.numbers), known(&self.aside)].concat().into_iter().collect();
        gaps(&known, within).collect()
    }
}

/// Whether the index of a closed segment is still being made, or was when its recorder was killed.
pub fn waits_for_index(storage: &dyn Storage, name: &SegmentName) -> bool {
    let is_there = |name: String| storage.state(name.as_ref()).is_ok();
    is_there(name.index_log_name()) && !is_there(name.index_name())
}
