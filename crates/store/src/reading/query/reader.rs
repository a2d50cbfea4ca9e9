//! Looks at one unread part: reads a piece of a segment or capture file and gathers what matches.
//!
//! A reader does not know what it is needed for, nor what else was found: [`super::merge`] puts
//! that together.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::{Blocks, BrokenBlock, PieceEnd};
use super::capture_file::{CaptureFile, UNMEASURED};
use super::expand::{expand, expand_capture};
use super::note::Note;
use super::order::{Key, Rank};
use super::overviews::expand_overview;
use super::packet::Matcher;
use super::piece::{Collector, FoundPackets, PiecePlace};
use super::progress::Progress;
use super::request::Request;
use super::scan::{Context, Scanner};
use super::snapshot::{Contents, Segment};
use super::source::{Looked, Unread};
use crate::format::index::Quarter;
use crate::format::segment::open_segment;
use crate::io::{Access, Object};

/// Reads pieces, and keeps the memory that this takes.
pub struct Reader<M> {
    request: Arc<Request>,
    matcher: M,
    blocks: Blocks,
    scanner: Scanner,
    /// Whether packets that are found are kept, or only counted.
    pub keep: bool,
}

impl<M: Clone> Clone for Reader<M> {
    fn clone(&self) -> Self {
        let matcher = self.matcher.clone();
        Self { keep: self.keep, ..Self::new(self.request.clone(), matcher) }
    }
}

impl<M> Reader<M> {
    pub fn new(request: Arc<Request>, matcher: M) -> Self {
        let (blocks, scanner) = (Blocks::default(), Scanner::default());
        Self { request, matcher, blocks, scanner, keep: true }
    }
}

impl<M: Matcher> Reader<M> {
    /// Looks at an unread part. A segment or file that is gone is no error but a note.
    pub fn look(&mut self, rank: Rank, unread: Unread) -> io::Result<Looked> {
        let request = self.request.clone();
        let (snapshot, number) = (&request.snapshot, rank.segment);
        let bytes = match &unread {
            Unread::Whole => snapshot.parts().get(number).map_or(0, |(bytes, _)| *bytes),
            Unread::Stretch { end, .. } if *end != UNMEASURED => end - rank.begin,
            Unread::Quarters(_) => unread.bytes(0) as u64,
            Unread::Stretch { .. } | Unread::Overview(_) | Unread::Again { .. } => 0,
        };
        let outcome = match &snapshot.contents {
            Contents::Segments(segments) => self.look_at_segment(&segments[number], rank, unread),
            Contents::Captures(files) => self.look_at_capture(&files[number], rank, unread),
        };
        match outcome {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Looked {
                progress: Progress { bytes, ..Progress::default() },
                notes: vec![Note::Deleted(snapshot.name(number))],
                ..Looked::default()
            }),
            outcome => outcome,
        }
    }

    fn look_at_segment(
        &mut self,
        segment: &Segment,
        rank: Rank,
        unread: Unread,
    ) -> io::Result<Looked> {
        match unread {
            Unread::Whole => expand(&self.request, segment, rank.segment),
            Unread::Overview(number) => Ok(expand_overview(&self.request, number)),
            Unread::Stretch { end, object, .. } => self.stretch(segment, rank, end, object),
            Unread::Quarters(quarters) => self.quarters(segment, rank, &quarters),
            Unread::Again { len, from, .. } => self.again(segment, rank, len, from),
        }
    }

    fn look_at_capture(
        &mut self,
        capture: &CaptureFile,
        rank: Rank,
        unread: Unread,
    ) -> io::Result<Looked> {
        match unread {
            Unread::Whole => match expand_capture(&self.request, capture, rank.segment) {
                Some(outcome) => Ok(outcome),
                None => self.scan(capture, rank, capture.context.clone(), None),
            },
            Unread::Stretch { context, object, .. } => {
                let context = context.unwrap_or_else(|| capture.context_at(rank.begin));
                self.scan(capture, rank, context, object)
            }
            Unread::Quarters(granules) => self.foreign_granules(capture, rank, &granules),
            Unread::Overview(_) => Ok(Looked::default()),
            Unread::Again { len, from, context } => {
                let context = context.unwrap_or_else(|| capture.context_at(rank.begin));
                self.scan_again(capture, rank, len, from, &context)
            }
        }
    }

    /// Reads the next piece of what is not indexed.
    fn stretch(
        &mut self,
        segment: &Segment,
        rank: Rank,
        end: u64,
        object: Option<Arc<dyn Object>>,
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let storage = &*request.snapshot.storage;
        let open = || open_segment(storage, &segment.name, Access::Sequential);
        let object = object.map_or_else(open, Ok)?;
        let mut collector =
            Collector::new(&request.snapshot, &segment.head.interfaces, request.span, self.keep);
        let part = self.blocks.read(
            &*object,
            &segment.head.section,
            rank.begin..end,
            request.piece_bytes,
            |at, record| collector.take(at, &record, &self.matcher),
        )?;
        let mut outcome = Looked::from(collector.finish(place_of(rank, part.bytes, None)));
        let at = rank.begin + part.bytes;
        outcome.progress.read_bytes = part.bytes;
        outcome.progress.bytes = part.bytes;
        if part.stop == PieceEnd::More {
            let rest = Unread::Stretch { end, context: None, object: Some(object) };
            outcome.unread.push((Rank { begin: at, ..rank }, rest));
        } else {
            outcome.progress.bytes += end - at;
            outcome.cut_at = match part.stop {
                PieceEnd::Cut => Some(at),
                // Nothing tells where the next block begins.
                PieceEnd::Damaged(_) => Some(u64::MAX),
                PieceEnd::More | PieceEnd::End => None,
            };
            outcome.notes.extend(ended(segment, at, end, &part.stop));
        }
        Ok(outcome)
    }

    /// Reads quarters of granules that the index names.
    fn quarters(
        &mut self,
        segment: &Segment,
        rank: Rank,
        quarters: &[Quarter],
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let len: u64 = quarters.iter().map(|quarter| u64::from(quarter.len)).sum();
        let have = self.load(segment, rank, len as usize)?;
        let mut collector =
            Collector::new(&request.snapshot, &segment.head.interfaces, request.span, self.keep);
        let mut notes = Vec::new();
        let mut begin = rank.begin;
        for quarter in quarters {
            let place = begin..begin + u64::from(quarter.len);
            begin = place.end;
            let note = self.quarter(segment, &place, quarter.checksum, &mut collector);
            if matches!(note, Some(Note::Damaged { .. })) && quarters.len() > 1 {
                return Ok(one_by_one(rank, quarters, have));
            }
            notes.extend(note);
        }
        let mut outcome = Looked::from(collector.finish(place_of(rank, len, None)));
        outcome.progress.read_bytes = have as u64;
        outcome.progress.bytes = len;
        // The look at the whole segment has told of all losses in it.
        outcome.told = 0;
        outcome.notes = notes;
        Ok(outcome)
    }

    /// Gathers what is in a quarter of a granule that was loaded.
    fn quarter(
        &mut self,
        segment: &Segment,
        place: &Range<u64>,
        checksum: u32,
        collector: &mut Collector<'_>,
    ) -> Option<Note> {
        let is_intact = crc32c::crc32c(self.blocks.bytes(place)) == checksum;
        let (good, fault) =
            self.blocks.parse(place, |at, record| collector.take(at, &record, &self.matcher));
        damaged(segment, place, good, fault.as_ref()).or_else(|| {
            let (segment, at) = (segment.name.to_string(), place.start);
            (!is_intact).then_some(Note::Changed { segment, at })
        })
    }

    /// Reads what was read before, or was known in sum only, and keeps what it finds.
    fn again(
        &mut self,
        segment: &Segment,
        rank: Rank,
        len: u64,
        from: Option<Key>,
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let have = self.load(segment, rank, len as usize)?;
        let mut collector =
            Collector::new(&request.snapshot, &segment.head.interfaces, request.span, true);
        let place = rank.begin..rank.begin + len;
        let (good, fault) =
            self.blocks.parse(&place, |at, record| collector.take(at, &record, &self.matcher));
        let notes = damaged(segment, &place, good, fault.as_ref()).into_iter().collect();
        let packets = go_to(collector.finish(place_of(rank, len, None)).packets, from)?;
        let progress = Progress { read_bytes: have as u64, ..Progress::default() };
        Ok(Looked { progress, packets, notes, ..Looked::default() })
    }

    /// Reads the next piece of a capture file.
    fn scan(
        &mut self,
        capture: &CaptureFile,
        rank: Rank,
        context: Context,
        object: Option<Arc<dyn Object>>,
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let open = || capture.open(&*request.snapshot.storage);
        let object = object.map_or_else(open, Ok)?;
        let begin = rank.begin.max(capture.begin);
        let mut collector = Collector::new(&request.snapshot, &[], request.span, self.keep);
        let mut is_timeless = false;
        let passed = self.scanner.read(
            &*object,
            &context,
            begin..capture.end,
            request.piece_bytes,
            &mut |described| request.snapshot.known_interface(&described),
            |at, record| {
                is_timeless |= record.is_timeless;
                collector.packet(at, &record.packet, &self.matcher);
            },
        )?;
        let rank = Rank { begin, ..rank };
        let place = place_of(rank, passed.end - begin, Some(context));
        let mut outcome = Looked::from(collector.finish(place));
        outcome.is_late = passed.is_late;
        outcome.unseen = passed.unseen;
        outcome.progress.read_bytes = passed.bytes_read;
        // How far it is in what is compressed nobody knows.
        let is_measured = capture.end != UNMEASURED;
        outcome.progress.bytes = if is_measured { passed.end - begin } else { 0 };
        let is_first = begin == capture.begin;
        outcome.progress.segments = u64::from(is_first);
        outcome.progress.scanned = u64::from(is_first);
        let segment = capture.name.clone();
        if is_timeless {
            outcome.notes.push(Note::Timeless(segment.clone()));
        }
        let at = passed.end;
        let fault = object.fault().filter(|_| passed.stop != PieceEnd::More);
        let note = match passed.stop {
            _ if fault.is_some() => fault.map(|what| Note::Damaged { segment, at, what }),
            PieceEnd::More => {
                let (end, context) = (capture.end, Some(passed.context));
                let rest = Unread::Stretch { end, context, object: Some(object) };
                outcome.unread.push((Rank { begin: at, ..rank }, rest));
                return Ok(outcome);
            }
            PieceEnd::End => None,
            PieceEnd::Cut => Some(Note::Unfinished { segment, at }),
            PieceEnd::Damaged(what) => Some(Note::Damaged { segment, at, what: what.to_owned() }),
        };
        outcome.notes.extend(note);
        outcome.progress.bytes += if is_measured { capture.end - at } else { capture.disk_bytes };
        Ok(outcome)
    }

    /// Reads granules of a capture file that its index names, which are not divided.
    fn foreign_granules(
        &mut self,
        capture: &CaptureFile,
        rank: Rank,
        granules: &[Quarter],
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let object = capture.open(&*request.snapshot.storage)?;
        let mut collector = Collector::new(&request.snapshot, &[], request.span, self.keep);
        let (mut notes, mut unseen, mut read_bytes) = (Vec::new(), Vec::new(), 0);
        let mut begin = rank.begin;
        for granule in granules {
            let end = begin + u64::from(granule.len);
            let passed = self.scanner.read(
                &*object,
                &capture.context_at(begin),
                begin..end,
                granule.len as usize,
                &mut |described| request.snapshot.known_interface(&described),
                |at, record| collector.packet(at, &record.packet, &self.matcher),
            )?;
            read_bytes += passed.bytes_read;
            unseen.extend(passed.unseen);
            // By its length and time this is the file that was indexed.
            if crc32c::crc32c(self.scanner.bytes()) != granule.checksum {
                notes.push(Note::Changed { segment: capture.name.clone(), at: begin });
            }
            begin = end;
        }
        let place = place_of(rank, begin - rank.begin, Some(capture.context_at(rank.begin)));
        let mut outcome = Looked::from(collector.finish(place));
        outcome.progress.read_bytes = read_bytes;
        outcome.progress.bytes = begin - rank.begin;
        outcome.unseen = unseen;
        outcome.notes = notes;
        Ok(outcome)
    }

    /// Reads again what was read of a capture file.
    fn scan_again(
        &mut self,
        capture: &CaptureFile,
        rank: Rank,
        len: u64,
        from: Option<Key>,
        context: &Context,
    ) -> io::Result<Looked> {
        let request = self.request.clone();
        let object = capture.open(&*request.snapshot.storage)?;
        let mut collector = Collector::new(&request.snapshot, &[], request.span, true);
        let passed = self.scanner.read(
            &*object,
            context,
            rank.begin..rank.begin + len,
            len as usize,
            &mut |described| request.snapshot.known_interface(&described),
            |at, record| collector.packet(at, &record.packet, &self.matcher),
        )?;
        let place = place_of(rank, len, Some(context.clone()));
        let packets = go_to(collector.finish(place).packets, from)?;
        let progress = Progress { read_bytes: passed.bytes_read, ..Progress::default() };
        let is_whole = passed.end == rank.begin + len;
        let note = (!is_whole).then(|| {
            let what = "it is not what it was when it was read before".into();
            Note::Damaged { segment: capture.name.clone(), at: passed.end, what }
        });
        let notes = note.into_iter().collect();
        Ok(Looked { progress, packets, notes, ..Looked::default() })
    }

    /// Puts a piece of a segment from where a rank begins into the buffer, past caches if that can
    /// be. Returns how much of the piece there is.
    ///
    /// A segment that is being written is read through the cache: ext4 and XFS keep a file's lock
    /// while they read it directly, and a recorder that makes the file longer would wait until the
    /// disk, which hears others first, has answered the query.
    fn load(&mut self, segment: &Segment, rank: Rank, len: usize) -> io::Result<usize> {
        let storage = &*self.request.snapshot.storage;
        let access = if segment.name.live { Access::Ranges } else { Access::Once };
        let open = || open_segment(storage, &segment.name, access);
        let (object, at) = (self.request.opened.get(rank.segment, open)?, rank.begin);
        let have = self.blocks.load(&*object, &segment.head.section, at, len)?;
        object.forget(at..at + have as u64);
        Ok(have)
    }
}

/// Returns where a piece lies that begins where a rank says.
fn place_of(rank: Rank, len: u64, context: Option<Context>) -> PiecePlace {
    PiecePlace { segment: rank.segment, begin: rank.begin, len, context }
}

/// Leaves out of what was found again the packets that went out before.
fn go_to(packets: Option<FoundPackets>, from: Option<Key>) -> io::Result<Option<FoundPackets>> {
    let Some(key) = from else { return Ok(packets) };
    let packets = packets.map(|mut packets| {
        packets.skip_to(key);
        packets
    });
    // Where the file's contents are not what they were, it is as good as gone.
    if packets.as_ref().and_then(FoundPackets::key) != from {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(packets)
}

/// Returns what is to be told of a part that was loaded, of which the blocks up to `good` are
/// whole; `None` where all of it is.
fn damaged(
    segment: &Segment,
    part: &Range<u64>,
    good: u64,
    fault: Option<&BrokenBlock>,
) -> Option<Note> {
    let what = match fault {
        Some(BrokenBlock::Damaged(what)) => what,
        Some(BrokenBlock::Short(_)) => "a block passes the end of what was indexed",
        None if good < part.end => "it is cut short",
        None => return None,
    };
    Some(Note::Damaged { segment: segment.name.to_string(), at: good, what: what.to_owned() })
}

/// Has quarters looked at one by one, so that a damaged one does not touch the others.
fn one_by_one(rank: Rank, quarters: &[Quarter], have: usize) -> Looked {
    let mut outcome = Looked::default();
    outcome.progress.read_bytes = have as u64;
    let mut begin = rank.begin;
    for quarter in quarters {
        outcome.unread.push((Rank { begin, ..rank }, Unread::Quarters(vec![*quarter])));
        begin += u64::from(quarter.len);
    }
    outcome
}

/// Returns what is to be told of how a stretch up to `end` ended at `at`. A segment that is being
/// written may be cut anywhere.
fn ended(segment: &Segment, at: u64, end: u64, stop: &PieceEnd) -> Option<Note> {
    let what = match stop {
        PieceEnd::More | PieceEnd::End => return None,
        PieceEnd::Cut if segment.name.live && end == segment.end => return None,
        PieceEnd::Cut => "it is cut short",
        PieceEnd::Damaged(what) => what,
    };
    let what = what.to_owned();
    Some(Note::Damaged { segment: segment.name.to_string(), at, what })
}
