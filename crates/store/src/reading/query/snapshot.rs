//! What is in a store at one moment? The segments that a span reaches into, as far as their ends
//! tell. What is written or deleted later is not noticed here, but by whoever reads.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::capture_file::CaptureFile;
use super::ends::{Begun, Ends, Seen, look_at_all};
use super::error::Error;
use super::interface::Described;
use super::note::Note;
use super::overviews::{Covering, look_at_overviews};
use crate::format::name::SegmentName;
use crate::format::store::LOCK;
use crate::format::unseen::UnseenSpan;
use crate::io::{Directory, Storage};
use crate::reading::holes;
use crate::span::Span;

/// How often a directory is listed until two lists agree.
const LISTS: usize = 100;
/// How many segments have their ends in memory at a time.
pub(super) const AT_ONCE: usize = 256;

/// How a segment begins.
pub(crate) struct SectionHead {
    /// The section header block.
    pub section: Vec<u8>,
    /// For each interface id, the index into [`Snapshot::interfaces`].
    pub interfaces: Vec<u32>,
}

/// A segment that the span reaches into.
#[derive(Clone)]
pub(crate) struct Segment {
    pub name: SegmentName,
    pub head: Arc<SectionHead>,
    /// Where the blocks begin that follow the interface descriptions and their fill; or those that
    /// an answer that follows the store has not given.
    pub begin: u64,
    /// The file's length when it was looked at.
    pub end: u64,
    /// No packet in the segment is from before this time.
    pub earliest_ns: i64,
    /// Whether an answer follows the segment: it is read from `begin` to its last whole block.
    pub may_grow: bool,
}

/// What there is to be read.
pub(super) enum Contents {
    /// The segments of a store, in the order of recording.
    Segments(Vec<Segment>),
    /// Capture files of other recorders.
    Captures(Vec<CaptureFile>),
}

/// A time in which an interface received packets that are not in the recording, because its hook
/// was not shown them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub interface: String,
    /// The index of the interface in [`Snapshot::interfaces`], the first where it has several.
    pub number: u32,
    pub packets: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    /// The cause, in words.
    pub why: String,
}

impl From<&Missing> for UnseenSpan {
    fn from(missing: &Missing) -> Self {
        Self {
            interface: missing.number,
            packets: missing.packets,
            first_ns: missing.first_ns as u64,
            last_ns: missing.last_ns as u64,
            why: missing.why.clone(),
        }
    }
}

/// The segments of a store, or the capture files of other recorders, that a span of time reaches
/// into. Segments that come later are not in it, nor is what is written after it was made.
pub struct Snapshot {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) contents: Contents,
    /// Device and inode of all capture files, also of those that the span does not reach into.
    pub(super) files: Vec<(u64, u64)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) unseen: Vec<Missing>,
    pub(crate) interfaces: Vec<Described>,
    /// Bytes that were read of indexes.
    pub(super) index_bytes: u64,
    /// How many segments or files the span does not reach into.
    pub(super) skipped: usize,
    /// Overviews that cover segments of the snapshot.
    pub(super) overviews: Vec<Covering>,
    /// How the last of the segments begins.
    pub(super) begun: Option<Arc<Begun>>,
    /// The highest number of a segment, 0 where there is none.
    pub(super) newest: u64,
    /// Interfaces, of those known, of which packets are asked for; `None` where that is all.
    wanted: Option<Vec<bool>>,
}

impl Snapshot {
    /// Looks at the ends of all segments, and leaves out those that lie outside of `span`.
    pub fn open(dir: &Path, span: Span) -> Result<Self, Error> {
        let directory: Arc<dyn Storage> = Arc::new(Directory::new(dir));
        Self::open_in(&directory, span)
    }

    /// Opens a store as [`Snapshot::open`] does, wherever it lies.
    pub fn open_in(storage: &Arc<dyn Storage>, span: Span) -> Result<Self, Error> {
        let place = storage.place().to_owned();
        let Listed { names, overviews, recorded } =
            list(&**storage).map_err(|e| Error::new(place.clone(), e))?;
        let mut snapshot = Self::empty(storage.clone());
        let mut told = Vec::with_capacity(overviews.len());
        for outcome in look_at_overviews(&**storage, &names, &overviews) {
            match outcome {
                Ok(overview) => {
                    snapshot.index_bytes += overview.bytes_read;
                    told.push((overview.last().clone(), overview));
                }
                Err(note) => snapshot.notes.extend(note),
            }
        }
        snapshot.newest = names.last().map_or(0, |name| name.number);
        let (mut ours, mut segments, mut told_next) = (0, Vec::new(), 0);
        let mut search = holes::Search::new(span);
        for names in names.chunks(AT_ONCE) {
            // What no overview tells of is looked at, several at once.
            let mut known = Vec::with_capacity(names.len());
            for name in names {
                while told.get(told_next).is_some_and(|(last, _)| last.number < name.number) {
                    told_next += 1;
                }
                let overview = told.get_mut(told_next);
                let ends = overview.and_then(|(_, overview)| overview.take(name.number));
                known.push(ends.map(|(place, ends)| (told_next, place, ends)));
            }
            let is_new =
                |(name, ends): (&SegmentName, &Option<_>)| ends.is_none().then(|| name.clone());
            let new: Vec<SegmentName> = names.iter().zip(&known).filter_map(is_new).collect();
            let mut seen = look_at_all(&**storage, &new, span).into_iter();
            for (name, known) in names.iter().zip(known) {
                let (covered, seen) = match known {
                    Some((number, place, ends)) => (Some((number, place)), Seen::Segment(ends)),
                    None => (None, seen.next().unwrap_or(Ok(Seen::Gone))?),
                };
                if let Seen::Segment(ends) = &seen {
                    search.pass(name, ends.behind_ns);
                }
                let before = segments.len();
                ours += usize::from(snapshot.add(name, seen, span, &mut segments)?);
                if let Some((number, place)) = covered.filter(|_| segments.len() > before) {
                    told[number].1.cover(before, place);
                }
            }
        }
        snapshot.overviews = told.into_iter().map(|(_, overview)| overview.covering).collect();
        snapshot.contents = Contents::Segments(segments);
        let holes = search.finish(&**storage).map_err(|e| Error::new(place.clone(), e))?;
        snapshot.notes.extend(holes.into_iter().map(Note::from));
        if ours == 0 && !recorded {
            return Err(Error::NotAStore(place));
        }
        Ok(snapshot)
    }

    pub(super) fn empty(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            contents: Contents::Segments(Vec::new()),
            files: Vec::new(),
            notes: Vec::new(),
            unseen: Vec::new(),
            interfaces: Vec::new(),
            index_bytes: 0,
            skipped: 0,
            overviews: Vec::new(),
            begun: None,
            newest: 0,
            wanted: None,
        }
    }

    /// Leaves out segments that have none of the interfaces that are asked for, and what went
    /// unseen at others. Which packets are given is the matcher's business all the same.
    pub fn want_interfaces(&mut self, is_wanted: impl Fn(&Described) -> bool) {
        let wanted: Vec<bool> = self.interfaces.iter().map(is_wanted).collect();
        self.unseen.retain(|missing| wanted[missing.number as usize]);
        self.wanted = Some(wanted);
    }

    /// Returns whether a segment may have packets of an interface that is asked for. What capture
    /// files have is known only when they are read.
    pub(super) fn is_wanted(&self, segment: usize) -> bool {
        let (Some(wanted), Contents::Segments(segments)) = (&self.wanted, &self.contents) else {
            return true;
        };
        let interfaces = &segments[segment].head.interfaces;
        interfaces.iter().any(|number| wanted.get(*number as usize).is_none_or(|is| *is))
    }

    /// Makes this the first round of an answer that follows the store ([`super::Query::tail`]).
    /// False where these are files of other recorders, which cannot be followed.
    pub fn follow(&mut self) -> bool {
        match &mut self.contents {
            Contents::Segments(segments) => {
                for segment in segments {
                    segment.may_grow = segment.name.live;
                }
                true
            }
            Contents::Captures(_) => false,
        }
    }

    /// Returns the interfaces of all segments or files that are read, each once.
    pub fn interfaces(&self) -> &[Described] {
        &self.interfaces
    }

    /// Returns how many segments or files are to be read, and how many are not because they lie
    /// outside of the span.
    pub fn segments(&self) -> (usize, usize) {
        let read = match &self.contents {
            Contents::Segments(segments) => segments.len(),
            Contents::Captures(files) => files.len(),
        };
        (read, self.skipped)
    }

    /// Returns the segments to be read; none where these are files of other recorders.
    pub(crate) fn segments_to_read(&self) -> &[Segment] {
        match &self.contents {
            Contents::Segments(segments) => segments,
            Contents::Captures(_) => &[],
        }
    }

    /// Returns the times, among those that the span reaches into, in which packets went unseen: no
    /// answer has them. Capture files tell only when they are read ([`super::Query::unseen`]).
    pub fn unseen(&self) -> &[Missing] {
        &self.unseen
    }

    /// Returns what the user must know of segments, before any packet was read.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Returns whether these are files of other recorders.
    pub fn is_foreign(&self) -> bool {
        matches!(self.contents, Contents::Captures(_))
    }

    pub(super) fn path(&self, number: usize) -> PathBuf {
        match &self.contents {
            Contents::Segments(segments) => {
                self.storage.location(segments[number].name.to_string().as_ref())
            }
            Contents::Captures(files) => self.storage.location(&files[number].object),
        }
    }

    /// Returns what notes call a segment or file.
    pub(super) fn name(&self, number: usize) -> String {
        match &self.contents {
            Contents::Segments(segments) => segments[number].name.to_string(),
            Contents::Captures(files) => files[number].name.clone(),
        }
    }

    /// Returns for each segment or file how many bytes are to be looked through, and the earliest
    /// time that a packet in it may have.
    pub(super) fn parts(&self) -> Vec<(u64, i64)> {
        let of_segment = |s: &Segment| (s.end - s.begin, s.earliest_ns);
        let of_file = |c: &CaptureFile| (c.disk_bytes.saturating_sub(c.begin), c.earliest_ns);
        match &self.contents {
            Contents::Segments(segments) => segments.iter().map(of_segment).collect(),
            Contents::Captures(files) => files.iter().map(of_file).collect(),
        }
    }

    /// Takes in a segment: adds it to `segments` if the span reaches into it. False if it is none
    /// of tapdeck's.
    pub(super) fn add(
        &mut self,
        name: &SegmentName,
        seen: Seen,
        span: Span,
        segments: &mut Vec<Segment>,
    ) -> Result<bool, Error> {
        let Ends { begun, end, earliest_ns, latest_ns, index_bytes, .. } = match seen {
            Seen::Segment(ends) => ends,
            Seen::Foreign => return Ok(false),
            Seen::Gone => {
                self.notes.push(Note::Deleted(name.to_string()));
                return Ok(true);
            }
        };
        self.index_bytes += index_bytes;
        for told in &begun.unseen {
            let Some(described) = begun.interfaces.get(told.interface as usize) else { continue };
            if is_within(told, span) {
                let interface = self.interface(described.clone(), &[]);
                let missing = self.missing(UnseenSpan { interface, ..told.clone() });
                self.unseen.push(missing);
            }
        }
        if begun.swapped {
            return Err(Error::ByteOrder(self.storage.location(name.to_string().as_ref())));
        }
        if latest_ns.is_some_and(|ns| ns < span.after_ns) || earliest_ns >= span.before_ns {
            self.skipped += 1;
            return Ok(true);
        }
        if let Some((at, what)) = &begun.damaged {
            let (at, what) = (*at, *what);
            let note = Note::Damaged { segment: name.to_string(), at, what: what.into() };
            self.notes.push(note);
            return Ok(true);
        }
        // The segments of one recording begin alike.
        let head = match (&self.begun, segments.last()) {
            (Some(before), Some(last)) if Arc::ptr_eq(before, &begun) => last.head.clone(),
            (_, last) => {
                let head = self.head(&begun);
                let is_same = |last: &&Segment| {
                    last.head.section == head.section && last.head.interfaces == head.interfaces
                };
                last.filter(is_same).map_or_else(|| Arc::new(head), |last| last.head.clone())
            }
        };
        self.begun = Some(begun.clone());
        let name = name.clone();
        let may_grow = false;
        segments.push(Segment { name, head, begin: begun.end, end, earliest_ns, may_grow });
        Ok(true)
    }

    fn head(&mut self, begun: &Begun) -> SectionHead {
        let mut interfaces = Vec::with_capacity(begun.interfaces.len());
        for interface in &begun.interfaces {
            interfaces.push(self.interface(interface.clone(), &interfaces));
        }
        SectionHead { section: begun.section.clone(), interfaces }
    }

    /// Returns what is missing because it went unseen at one of the snapshot's interfaces.
    pub(super) fn missing(&self, unseen: UnseenSpan) -> Missing {
        let UnseenSpan { interface: number, packets, first_ns, last_ns, why } = unseen;
        let interface = self.interfaces[number as usize].name.clone();
        let (first_ns, last_ns) = (first_ns as i64, last_ns as i64);
        Missing { interface, number, packets, first_ns, last_ns, why }
    }

    /// Returns the index of an interface that is none of a segment's `others`.
    fn interface(&mut self, interface: Described, others: &[u32]) -> u32 {
        let is_same = |(at, known): (usize, &Described)| {
            *known == interface && !others.contains(&(at as u32))
        };
        let known = self.interfaces.iter().enumerate().position(is_same);
        let at = known.unwrap_or(self.interfaces.len());
        if known.is_none() {
            self.interfaces.push(interface);
        }
        at as u32
    }
}

/// Returns whether something went unseen within a span.
pub(super) fn is_within(unseen: &UnseenSpan, span: Span) -> bool {
    unseen.last_ns as i64 >= span.after_ns && (unseen.first_ns as i64) < span.before_ns
}

/// What is in a store's directory.
pub(super) struct Listed {
    /// The segments' names in the order of recording.
    pub names: Vec<SegmentName>,
    /// The segments that overviews are named after, in the same order.
    overviews: Vec<SegmentName>,
    /// Whether a recorder was ever there.
    recorded: bool,
}

/// Lists a store.
///
/// A list that is made while a segment is renamed may hold it under both names or none, so lists
/// are made until two agree.
pub(super) fn list(storage: &dyn Storage) -> io::Result<Listed> {
    let mut before: Option<BTreeMap<u64, SegmentName>> = None;
    let (mut overviews, mut recorded) = (Vec::new(), false);
    for _ in 0..LISTS {
        let mut now: BTreeMap<u64, SegmentName> = BTreeMap::new();
        overviews.clear();
        for object in storage.list()? {
            recorded |= object == LOCK;
            let Some(object) = object.to_str() else { continue };
            overviews.extend(SegmentName::parse_overview(object));
            let Some(name) = SegmentName::parse(object) else { continue };
            // The segment is closed if both of its names are there.
            let known = now.entry(name.number).or_insert_with(|| name.clone());
            known.live &= name.live;
        }
        let is_same = before.as_ref().is_some_and(|before| before.keys().eq(now.keys()));
        before = Some(now);
        if is_same {
            break;
        }
    }
    overviews.sort();
    // Names of two overviews of one number are nobody's work; the first is as good.
    overviews.dedup_by_key(|name| name.number);
    Ok(Listed { names: before.unwrap_or_default().into_values().collect(), overviews, recorded })
}
