//! What came last? Tallies of the packets of the last while, for whoever looks again and again
//! while a recorder writes.
//!
//! A tally belongs to a **piece** of the recording: a granule that the index names, or as much of
//! what is not indexed yet. Each piece is read once, and its tally kept as long as the piece is in
//! the span. Of more than [`SAMPLED`] pieces a sample is read, which the pieces' places decide by a
//! hash, so that the next look has nearly the same one; of the others packets and bytes are known.
//!
//! Reading has an **allowance**, [`BURST`] bytes and [`BYTES_PER_S`] more each second, so that
//! watching a fast recording costs the disk little. What is not indexed must be read from its
//! beginning on; where the allowance does not reach, it waits until the index has come to it.
//!
//! Memory is bounded: [`MAX_PIECES`] pieces at 80 bytes, and twice [`SAMPLED`] tallies.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tapdeck_packet::key::Plan;
use tapdeck_packet::pcapng::Record;

use super::query::blocks::{Blocks, PieceEnd};
use super::query::ends::{Begun, parse_begin};
use super::query::{Error, Packet, Span};
use super::walk::packet;
use crate::format::index::{GRANULE, Index};
use crate::format::name::SegmentName;
use crate::format::segment::{body_end, open_segment, read_beginning, segment_names};
use crate::io::{Access, Object, Storage};

/// How many pieces are read, if there are more; about.
pub const SAMPLED: usize = 256;
/// How many pieces are looked at: some 16 GiB of a recording.
pub const MAX_PIECES: usize = 1 << 17;
/// Bytes that may be read at once.
const BURST: u64 = 64 << 20;
/// Bytes that may be read in a second, in the long run.
const BYTES_PER_S: u64 = 8 << 20;
/// How long after the beginning of a segment packets may come into the one before it.
const MARGIN_NS: i64 = 10_000_000_000;

/// A piece of the recording.
#[derive(Debug)]
pub struct Piece<T> {
    place: Range<u64>,
    /// The earliest time of its packets, UTC nanoseconds.
    pub first_ns: i64,
    pub last_ns: i64,
    pub packets: u64,
    /// What was counted of the piece; `None` where it was not read.
    pub tally: Option<T>,
}

/// What a look found beside the pieces.
#[derive(Debug)]
pub struct Look {
    /// The span that was looked at, which begins later than was asked for where there was too much.
    pub span: Span,
    /// Bytes that are not indexed, and that the allowance did not reach.
    pub unread_bytes: u64,
    /// What could not be read, and why.
    pub faults: Vec<String>,
}

/// The end of a store, looked at again and again.
pub struct Recent<T> {
    storage: Arc<dyn Storage>,
    segments: BTreeMap<u64, Known<T>>,
    blocks: Blocks,
    /// Bytes that may be read now.
    allowance: u64,
    refilled: Instant,
}

/// What is known of a segment.
struct Known<T> {
    name: SegmentName,
    begun: Begun,
    /// Pieces by where they begin.
    pieces: BTreeMap<u64, Piece<T>>,
    /// What was read without an index, ascending.
    read: Vec<Range<u64>>,
    /// Whether nothing more will be known.
    is_complete: bool,
}

impl<T: Default> Recent<T> {
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let (segments, blocks) = (BTreeMap::new(), Blocks::default());
        Self { storage, segments, blocks, allowance: BURST, refilled: Instant::now() }
    }

    /// Looks at a span, which is later than or the same as at the look before. `count` takes each
    /// packet that is read into the tally of its piece.
    pub fn look(
        &mut self,
        span: Span,
        mut count: impl FnMut(&mut T, &Packet<'_>),
    ) -> Result<Look, Error> {
        let more = self.refilled.elapsed().as_secs_f64() * BYTES_PER_S as f64;
        self.allowance = BURST.min(self.allowance + more as u64);
        self.refilled = Instant::now();
        let storage = self.storage.clone();
        let names =
            names_in(&*storage, span).map_err(|e| Error::new(storage.location("".as_ref()), e))?;
        self.segments.retain(|number, _| names.iter().any(|name| name.number == *number));
        let mut look = Look { span, unread_bytes: 0, faults: Vec::new() };
        let mut pieces = 0;
        for name in names {
            if pieces > MAX_PIECES {
                // Of an older segment only a part would be known.
                let known = self.segments.range(name.number + 1..).next();
                let began_s = known.map_or(name.began_s, |(_, known)| known.name.began_s);
                look.span.after_ns = span.after_ns.max(began_s.saturating_mul(1_000_000_000));
                self.segments.retain(|number, _| *number > name.number);
                break;
            }
            match self.segment(&name, &mut look, &mut count) {
                Ok(found) => pieces += found,
                // Retention was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    self.segments.remove(&name.number);
                }
                Err(e) => look.faults.push(format!("{name}: {e}")),
            }
        }
        let after_ns = look.span.after_ns;
        for known in self.segments.values_mut() {
            known.pieces.retain(|_, piece| piece.last_ns >= after_ns);
        }
        self.sample(&mut look, &mut count);
        Ok(look)
    }

    /// Returns the pieces that the span of the last look reaches into, oldest segment first.
    pub fn pieces(&self, span: Span) -> impl Iterator<Item = &Piece<T>> {
        let is_within =
            move |p: &&Piece<T>| p.last_ns >= span.after_ns && p.first_ns < span.before_ns;
        self.segments.values().flat_map(|known| known.pieces.values()).filter(is_within)
    }

    /// Looks at a segment, and returns how many pieces are known of it.
    fn segment(
        &mut self,
        name: &SegmentName,
        look: &mut Look,
        count: &mut impl FnMut(&mut T, &Packet<'_>),
    ) -> io::Result<usize> {
        let storage = self.storage.clone();
        if let Some(known) = self.segments.get(&name.number)
            && known.is_complete
        {
            return Ok(known.pieces.len());
        }
        let object = open_segment(&*storage, name, Access::Ranges)?;
        let mut known = match self.segments.remove(&name.number) {
            Some(known) => Known { name: name.clone(), ..known },
            None => match read_beginning(&*object, &mut Vec::new(), parse_begin)? {
                Some(begun) if !begun.swapped => {
                    let (name, pieces, read) = (name.clone(), BTreeMap::new(), Vec::new());
                    Known { name, begun, pieces, read, is_complete: false }
                }
                // Another program's, or another machine's.
                _ => return Ok(0),
            },
        };
        let length = object.length()?;
        let end = if name.live { length } else { body_end(&*object).unwrap_or(length) };
        let mut covered = known.read.clone();
        match known.by_index(&*storage, length, end, look.span.after_ns) {
            Ok(indexed) => covered.extend(indexed),
            Err(e) => look.faults.push(format!("the index of {name}: {e}")),
        }
        let rest = uncovered(covered, known.begun.end..end);
        let bytes: u64 = rest.iter().map(|stretch| stretch.end - stretch.start).sum();
        if bytes <= self.allowance {
            self.allowance -= bytes;
            for stretch in rest {
                known.read(&*object, &mut self.blocks, stretch, look, count)?;
            }
            known.is_complete |= !name.live;
        } else {
            look.unread_bytes += bytes;
        }
        let pieces = known.pieces.len();
        self.segments.insert(name.number, known);
        Ok(pieces)
    }

    /// Reads the pieces that are in the sample and were not read yet.
    fn sample(&mut self, look: &mut Look, count: &mut impl FnMut(&mut T, &Packet<'_>)) {
        let pieces: usize = self.segments.values().map(|known| known.pieces.len()).sum();
        let one_of = pieces.div_ceil(SAMPLED).next_power_of_two() as u64;
        for (number, known) in &mut self.segments {
            let mut object = None;
            let Known { name, begun, pieces, .. } = known;
            for (at, piece) in pieces {
                if !hash(*number, at / GRANULE).is_multiple_of(one_of) {
                    piece.tally = None;
                    continue;
                }
                let bytes = piece.bytes();
                if piece.tally.is_some() || bytes > self.allowance {
                    continue;
                }
                self.allowance -= bytes;
                let read = (|| {
                    if object.is_none() {
                        object = Some(open_segment(&*self.storage, name, Access::Ranges)?);
                    }
                    let object = object.as_ref().ok_or(io::ErrorKind::NotFound)?;
                    tally(&**object, begun, &mut self.blocks, &piece.place, count)
                })();
                match read {
                    Ok(tally) => piece.tally = Some(tally),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => look.faults.push(format!("{name}: {e}")),
                }
            }
        }
    }
}

impl<T> Piece<T> {
    /// Returns how many bytes the piece takes in its segment.
    pub fn bytes(&self) -> u64 {
        self.place.end - self.place.start
    }
}

impl<T: Default> Known<T> {
    /// Takes in what the index tells, and returns which parts of the segment it knows.
    fn by_index(
        &mut self,
        storage: &dyn Storage,
        length: u64,
        end: u64,
        after_ns: i64,
    ) -> io::Result<Vec<Range<u64>>> {
        let Some(mut index) = Index::open(storage, &self.name, length)? else {
            return Ok(Vec::new());
        };
        for granule in index.select(&Plan::All, Span { after_ns, ..Span::ALL })? {
            let place = granule.place;
            if granule.packets > 0 && place.end <= end && self.is_free(&place) {
                let piece = Piece {
                    first_ns: granule.first_ns,
                    last_ns: granule.last_ns,
                    packets: granule.packets.into(),
                    tally: None,
                    place: place.clone(),
                };
                self.pieces.insert(place.start, piece);
            }
        }
        if index.summary().complete {
            self.is_complete = !self.name.live;
            return Ok(std::iter::once(self.begun.end..end).collect());
        }
        Ok(index.indexed())
    }

    /// Whether no piece lies at a place, nor anything that was read.
    fn is_free(&self, place: &Range<u64>) -> bool {
        let is_read = |read: &Range<u64>| read.start < place.end && place.start < read.end;
        !self.pieces.contains_key(&place.start) && !self.read.iter().any(is_read)
    }

    /// Reads a stretch that is not indexed, and makes pieces of it.
    fn read(
        &mut self,
        object: &dyn Object,
        blocks: &mut Blocks,
        stretch: Range<u64>,
        look: &mut Look,
        count: &mut impl FnMut(&mut T, &Packet<'_>),
    ) -> io::Result<()> {
        let (mut at, begun) = (stretch.start, &self.begun);
        while at < stretch.end {
            let (mut first_ns, mut last_ns, mut packets) = (i64::MAX, i64::MIN, 0);
            let mut tally = T::default();
            let part = at..stretch.end;
            let read =
                blocks.read(object, &begun.section, part, GRANULE as usize, |_, record| {
                    if let Some(packet) = packet(begun, &record)? {
                        first_ns = first_ns.min(packet.time_ns);
                        last_ns = last_ns.max(packet.time_ns);
                        packets += 1;
                        count(&mut tally, &packet);
                    }
                    Ok(())
                })?;
            let place = at..at + read.bytes;
            at = place.end;
            if packets > 0 {
                let tally = Some(tally);
                self.pieces.insert(place.start, Piece { place, first_ns, last_ns, packets, tally });
            }
            match read.stop {
                PieceEnd::More if read.bytes > 0 => {}
                PieceEnd::Damaged(what) => {
                    look.faults.push(format!("{} is damaged at byte {at}: {what}", self.name));
                    at = stretch.end;
                }
                PieceEnd::More | PieceEnd::End | PieceEnd::Cut => break,
            }
        }
        match self.read.last_mut() {
            Some(last) if last.end == stretch.start => last.end = at,
            _ => self.read.push(stretch.start..at),
        }
        Ok(())
    }
}

/// Counts a piece.
fn tally<T: Default>(
    object: &dyn Object,
    begun: &Begun,
    blocks: &mut Blocks,
    place: &Range<u64>,
    count: &mut impl FnMut(&mut T, &Packet<'_>),
) -> io::Result<T> {
    let mut tally = T::default();
    blocks.load(object, &begun.section, place.start, (place.end - place.start) as usize)?;
    // What is damaged is not counted; a query says so.
    blocks.parse(place, |_, record: Record<'_>| {
        if let Some(packet) = packet(begun, &record)? {
            count(&mut tally, &packet);
        }
        Ok(())
    });
    object.forget(place.clone());
    Ok(tally)
}

/// Returns the names of the segments that may hold packets of a span, newest first.
fn names_in(storage: &dyn Storage, span: Span) -> io::Result<Vec<SegmentName>> {
    let mut names = segment_names(storage)?;
    names.reverse();
    // While a segment is renamed it may have both names. The closed one sorts before the live one.
    names.dedup_by(|a, b| {
        let is_same = a.number == b.number;
        b.live &= a.live || !is_same;
        is_same
    });
    let mut next_began_s = None;
    let is_later = |name: &SegmentName| {
        let ended_s = next_began_s.replace(name.began_s);
        ended_s.is_none_or(|s: i64| {
            s.saturating_mul(1_000_000_000).saturating_add(MARGIN_NS) >= span.after_ns
        })
    };
    Ok(names.into_iter().take_while(is_later).collect())
}

/// Returns what of a whole is not covered by any of the parts.
fn uncovered(mut parts: Vec<Range<u64>>, whole: Range<u64>) -> Vec<Range<u64>> {
    parts.sort_unstable_by_key(|part| part.start);
    let (mut at, mut rest) = (whole.start, Vec::new());
    for part in parts {
        if part.start > at {
            rest.push(at..part.start.min(whole.end));
        }
        at = at.max(part.end);
    }
    rest.push(at..whole.end);
    rest.retain(|stretch| stretch.start < stretch.end);
    rest
}

/// Returns a number that places of one file do not share by any rule of theirs (SplitMix64).
fn hash(segment: u64, place: u64) -> u64 {
    let mut x = (segment << 32 ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::{hash, uncovered};

    #[test]
    fn what_is_left_is_between_and_behind() {
        assert_eq!(uncovered(vec![7..8, 3..6], 5..9), [6..7, 8..9]);
        assert_eq!(uncovered(vec![6..7, 20..21], 5..9), [5..6, 7..9]);
        assert_eq!(uncovered(vec![6..8, 6..7], 5..9), [5..6, 8..9]);
        assert!(uncovered(vec![0..7, 7..20], 5..9).is_empty());
    }

    #[test]
    fn a_sample_is_even_whatever_the_places() {
        for step in [1, 8, 16] {
            let places = 0..16_384;
            let chosen = places.filter(|i| hash(7, i * step).is_multiple_of(16)).count();
            assert!((900..1150).contains(&chosen), "one of 16 of 16,384: {chosen}");
        }
    }
}
