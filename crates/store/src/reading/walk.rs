//! All packets of one closed segment, as they lie there: not in the order of time, granule by
//! granule. For whoever has to see each packet once and can do with any order, this is the fastest
//! way, and it needs next to no memory.
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
use crate::format::index::{GRANULE, Granule, Index};
use crate::format::name::SegmentName;
use crate::format::segment::{body_end, read_beginning, statistics_told};
use crate::io::{Access, Object, Storage};
use crate::reading::holes::{gaps, segment_of};
use crate::reading::query::blocks::{Blocks, BrokenBlock, PieceEnd};
use crate::reading::query::ends::{Begun, parse_begin};

/// About how many bytes are read at a time.
const PIECE: u64 = 1 << 20;

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

/// Where a granule lies, and the checksum that its index has.
struct Place {
    bytes: Range<u64>,
    checksum: u32,
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
        Place { bytes: place, checksum }: &Place,
        each: &mut impl FnMut(Step<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_intact = crc32c::crc32c(blocks.bytes(place)) == *checksum;
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
    let place = |granule: Granule| Place { bytes: granule.place, checksum: granule.checksum };
    let places: Vec<Place> = tables.into_iter().flatten().map(place).collect();
    let mut at = body;
    for Place { bytes: place, .. } in &places {
        if place.start < at || place.is_empty() || place.end > len {
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
