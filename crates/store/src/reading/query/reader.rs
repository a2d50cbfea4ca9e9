//! Looks at one source: reads a piece of a segment and gathers what matches.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use rustix::fs::OFlags;
use tapdeck_packet::key::Plan;

use super::blocks::{Blocks, Fault, Stop, read_ahead};
use super::expand::{expand, expand_capture};
use super::piece::{Collector, Key, Piece};
use super::scan::{Context, Scanner};
use super::snapshot::{Segment, Snapshot, open_segment};
use super::source::{Outcome, Rank, Source};
use super::{Matcher, Note, Progress, Span};
use crate::io::forget_pages;

/// What is asked, and of what.
pub struct Asked {
    pub snapshot: Snapshot,
    pub span: Span,
    pub plan: Plan,
    /// About what is read at once.
    pub piece_bytes: usize,
}

pub struct Reader<M> {
    asked: Arc<Asked>,
    matcher: M,
    blocks: Blocks,
    scanner: Scanner,
    /// What is found is wanted, not only how much it is.
    pub keep: bool,
    /// The file system reads past the page cache, as far as is known.
    direct: bool,
}

impl<M: Clone> Clone for Reader<M> {
    fn clone(&self) -> Self {
        let matcher = self.matcher.clone();
        Self { keep: self.keep, ..Self::new(self.asked.clone(), matcher) }
    }
}

impl<M> Reader<M> {
    pub fn new(asked: Arc<Asked>, matcher: M) -> Self {
        let (blocks, scanner) = (Blocks::default(), Scanner::default());
        Self { asked, matcher, blocks, scanner, keep: true, direct: true }
    }
}

impl<M: Matcher> Reader<M> {
    pub fn look(&mut self, rank: Rank, source: Source) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let (snapshot, number) = (&asked.snapshot, rank.segment);
        let bytes = match &source {
            Source::Segment => snapshot.parts().nth(number).map_or(0, |(bytes, _)| bytes),
            Source::Stretch { end, .. } => end - rank.begin,
            Source::Scan { .. } => snapshot.captures[number].end - rank.begin,
            Source::Granules(_) => source.bytes(0) as u64,
            Source::Again { .. } => 0,
        };
        let outcome = match source {
            Source::Segment if snapshot.is_foreign() => match expand_capture(&asked, number) {
                Some(outcome) => Ok(outcome),
                None => self.scan(rank, snapshot.captures[number].context.clone(), None),
            },
            Source::Segment => expand(&asked, number),
            Source::Scan { context, file } => self.scan(rank, context, file),
            Source::Stretch { end, file } => self.stretch(rank, end, file),
            Source::Granules(granules) if snapshot.is_foreign() => {
                self.foreign_granules(rank, &granules)
            }
            Source::Granules(granules) => self.granules(rank, &granules),
            Source::Again { len, from, context } if snapshot.is_foreign() => {
                let known = || snapshot.captures[number].context_at(rank.begin);
                self.scan_again(rank, len, from, &context.unwrap_or_else(known))
            }
            Source::Again { len, from, .. } => self.again(rank, len, from),
        };
        match outcome {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Outcome {
                progress: Progress { bytes, ..Progress::default() },
                notes: vec![Note::Deleted(snapshot.name(number))],
                ..Outcome::default()
            }),
            outcome => outcome,
        }
    }

    /// Reads the next piece of what is not indexed.
    fn stretch(&mut self, rank: Rank, end: u64, file: Option<File>) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let segment = &asked.snapshot.segments[rank.segment];
        let file = if let Some(file) = file {
            file
        } else {
            let file = open_segment(&asked.snapshot.dir, &segment.name, OFlags::empty())?;
            read_ahead(&file);
            file
        };
        let mut collector =
            Collector::new(&asked.snapshot, &segment.head.interfaces, asked.span, self.keep);
        let part = self.blocks.read(
            &file,
            &segment.head.section,
            rank.begin..end,
            asked.piece_bytes,
            |at, record| collector.take(at, &record, &self.matcher),
        )?;
        let mut outcome = collector.finish(rank.segment, rank.begin, part.bytes);
        let at = rank.begin + part.bytes;
        outcome.progress.read_bytes = part.bytes;
        outcome.progress.bytes = part.bytes;
        if part.stop == Stop::More {
            let source = Source::Stretch { end, file: Some(file) };
            outcome.sources.push((Rank { begin: at, ..rank }, source));
        } else {
            outcome.progress.bytes += end - at;
            outcome.notes.extend(ended(segment, at, end, &part.stop));
        }
        Ok(outcome)
    }

    /// Reads granules that the index names.
    fn granules(&mut self, rank: Rank, granules: &[(u32, u32)]) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let segment = &asked.snapshot.segments[rank.segment];
        let len: u64 = granules.iter().map(|(len, _)| u64::from(*len)).sum();
        let have = self.load(segment, rank.begin, len as usize)?;
        let mut collector =
            Collector::new(&asked.snapshot, &segment.head.interfaces, asked.span, self.keep);
        let mut notes = Vec::new();
        let mut begin = rank.begin;
        for (len, checksum) in granules {
            let place = begin..begin + u64::from(*len);
            begin = place.end;
            let note = self.granule(segment, &place, *checksum, &mut collector);
            if matches!(note, Some(Note::Damaged { .. })) && granules.len() > 1 {
                return Ok(one_by_one(rank, granules, have));
            }
            notes.extend(note);
        }
        let mut outcome = collector.finish(rank.segment, rank.begin, len);
        outcome.progress.read_bytes = have as u64;
        outcome.progress.bytes = len;
        // Expanding the segment has told of all of it.
        outcome.told = 0;
        outcome.notes = notes;
        Ok(outcome)
    }

    /// Gathers what is in a granule that was loaded.
    fn granule(
        &mut self,
        segment: &Segment,
        place: &Range<u64>,
        checksum: u32,
        collector: &mut Collector<'_>,
    ) -> Option<Note> {
        let is_intact = crc32c::crc32c(self.blocks.bytes(place)) == checksum;
        let (good, fault) =
            self.blocks.parse(place, |at, record| collector.take(at, &record, &self.matcher));
        let (segment, at) = (segment.name.to_string(), place.start);
        let what = match fault {
            Some(Fault::Damaged(what)) => what,
            Some(Fault::Short(_)) => "a block passes the end of what was indexed",
            None if good < place.end => "it is cut short",
            None => return (!is_intact).then_some(Note::Changed { segment, at }),
        };
        Some(Note::Damaged { segment, at: good, what: what.to_owned() })
    }

    /// Reads what was read before, or was known in sum only.
    fn again(&mut self, rank: Rank, len: u64, from: Option<Key>) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let segment = &asked.snapshot.segments[rank.segment];
        let have = self.load(segment, rank.begin, len as usize)?;
        let mut collector =
            Collector::new(&asked.snapshot, &segment.head.interfaces, asked.span, true);
        let place = rank.begin..rank.begin + len;
        self.blocks.parse(&place, |at, record| collector.take(at, &record, &self.matcher));
        let mut piece = collector.finish(rank.segment, rank.begin, len).piece;
        go_to(&mut piece, from)?;
        let progress = Progress { read_bytes: have as u64, ..Progress::default() };
        Ok(Outcome { progress, piece, ..Outcome::default() })
    }

    /// Reads the next piece of a foreign file.
    fn scan(&mut self, rank: Rank, context: Context, file: Option<File>) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let capture = &asked.snapshot.captures[rank.segment];
        let file = file.map_or_else(|| capture.open(), Ok)?;
        let begin = rank.begin.max(capture.begin);
        let mut collector = Collector::new(&asked.snapshot, &[], asked.span, self.keep);
        let mut is_timeless = false;
        let passed = self.scanner.read(
            &file,
            &context,
            begin..capture.end,
            asked.piece_bytes,
            &mut |described| asked.snapshot.known_interface(&described),
            |at, record| {
                is_timeless |= record.is_timeless;
                collector.take_foreign(at, record, &self.matcher);
            },
        )?;
        let mut outcome = collector.finish(rank.segment, begin, passed.end - begin);
        outcome.is_late = passed.is_late;
        outcome.progress.read_bytes = passed.bytes_read;
        outcome.progress.bytes = passed.end - begin;
        let is_first = begin == capture.begin;
        outcome.progress.segments = u64::from(is_first);
        outcome.progress.scanned = u64::from(is_first);
        if let Some(piece) = &mut outcome.piece {
            piece.set_context(context);
        }
        let segment = capture.name.clone();
        if is_timeless {
            outcome.notes.push(Note::Timeless(segment.clone()));
        }
        let at = passed.end;
        let note = match passed.stop {
            Stop::More => {
                let source = Source::Scan { context: passed.context, file: Some(file) };
                outcome.sources.push((Rank { begin: at, ..rank }, source));
                return Ok(outcome);
            }
            Stop::End => None,
            Stop::Cut => Some(Note::Unfinished { segment, at }),
            Stop::Damaged(what) => Some(Note::Damaged { segment, at, what: what.to_owned() }),
        };
        outcome.notes.extend(note);
        outcome.progress.bytes += capture.end - at;
        Ok(outcome)
    }

    /// Reads granules of a foreign file that its index names.
    fn foreign_granules(&mut self, rank: Rank, granules: &[(u32, u32)]) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let capture = &asked.snapshot.captures[rank.segment];
        let file = capture.open()?;
        let mut collector = Collector::new(&asked.snapshot, &[], asked.span, self.keep);
        let (mut notes, mut read_bytes) = (Vec::new(), 0);
        let mut begin = rank.begin;
        for (len, checksum) in granules {
            let end = begin + u64::from(*len);
            let passed = self.scanner.read(
                &file,
                &capture.context_at(begin),
                begin..end,
                *len as usize,
                &mut |described| asked.snapshot.known_interface(&described),
                |at, record| collector.take_foreign(at, record, &self.matcher),
            )?;
            read_bytes += passed.bytes_read;
            // It is the file that was indexed, by its length and time.
            if crc32c::crc32c(self.scanner.bytes()) != *checksum {
                notes.push(Note::Changed { segment: capture.name.clone(), at: begin });
            }
            begin = end;
        }
        let mut outcome = collector.finish(rank.segment, rank.begin, begin - rank.begin);
        if let Some(piece) = &mut outcome.piece {
            piece.set_context(capture.context_at(rank.begin));
        }
        outcome.progress.read_bytes = read_bytes;
        outcome.progress.bytes = begin - rank.begin;
        outcome.notes = notes;
        Ok(outcome)
    }

    /// Reads again what was read of a foreign file.
    fn scan_again(
        &mut self,
        rank: Rank,
        len: u64,
        from: Option<Key>,
        context: &Context,
    ) -> io::Result<Outcome> {
        let asked = self.asked.clone();
        let file = asked.snapshot.captures[rank.segment].open()?;
        let mut collector = Collector::new(&asked.snapshot, &[], asked.span, true);
        let passed = self.scanner.read(
            &file,
            context,
            rank.begin..rank.begin + len,
            len as usize,
            &mut |described| asked.snapshot.known_interface(&described),
            |at, record| collector.take_foreign(at, record, &self.matcher),
        )?;
        let mut piece = collector.finish(rank.segment, rank.begin, len).piece;
        go_to(&mut piece, from)?;
        if let Some(piece) = &mut piece {
            piece.set_context(context.clone());
        }
        let progress = Progress { read_bytes: passed.bytes_read, ..Progress::default() };
        Ok(Outcome { progress, piece, ..Outcome::default() })
    }

    /// Puts a piece of a segment into the buffer, past the page cache if that can be; gives back
    /// how much of it there is.
    ///
    /// Not where somebody writes: ext4 and XFS keep a file's lock while they read it directly, and
    /// a recorder that makes the file longer would wait until the disk, which hears others
    /// first, has answered the query.
    fn load(&mut self, segment: &Segment, at: u64, len: usize) -> io::Result<usize> {
        let section = &segment.head.section;
        let dir = &self.asked.snapshot.dir;
        if self.direct && !segment.name.live {
            let loaded = open_segment(dir, &segment.name, OFlags::DIRECT)
                .and_then(|file| self.blocks.load(&file, section, at, len));
            match loaded {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => self.direct = false,
                loaded => return loaded,
            }
        }
        let file = open_segment(dir, &segment.name, OFlags::empty())?;
        let have = self.blocks.load(&file, section, at, len)?;
        forget_pages(&file, at, at + have as u64);
        Ok(have)
    }
}

/// Leaves out of a piece that was read again what went out before.
fn go_to(piece: &mut Option<Piece>, from: Option<Key>) -> io::Result<()> {
    if let (Some(piece), Some(key)) = (&mut *piece, from) {
        piece.skip_to(key);
    }
    // The file's contents are what they were, or it is as good as gone.
    if from.is_some() && piece.as_ref().and_then(Piece::key) != from {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(())
}

/// Granules of which one is damaged, so that it does not touch the others.
fn one_by_one(rank: Rank, granules: &[(u32, u32)], have: usize) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.progress.read_bytes = have as u64;
    let mut begin = rank.begin;
    for granule in granules {
        outcome.sources.push((Rank { begin, ..rank }, Source::Granules(vec![*granule])));
        begin += u64::from(granule.0);
    }
    outcome
}

/// What is to be told of how a stretch up to `end` ended at `at`. A segment that is being written
/// may be cut anywhere.
fn ended(segment: &Segment, at: u64, end: u64, stop: &Stop) -> Option<Note> {
    let what = match stop {
        Stop::More | Stop::End => return None,
        Stop::Cut if segment.name.live && end == segment.end => return None,
        Stop::Cut => "it is cut short",
        Stop::Damaged(what) => what,
    };
    let what = what.to_owned();
    Some(Note::Damaged { segment: segment.name.to_string(), at, what })
}
