//! Which packets of a store match, in time order? Answered by reading the segments, without an index,
//! for stores that are being written and deleted from meanwhile.
//!
//! A segment is not sorted: rings lie in it by blocks, neighbouring segments overlap in time, and
//! even inside a ring packets may be stamped in another order than they were reserved in. So
//! segments are read in their order, in **granules** of at most 256 KiB, and of each granule with
//! matches it is remembered where it lies and when its first match was. Granules are then merged by time; inside
//! one, matches are sorted. That is exact for any order of packets inside segments, and needs no
//! bound on disorder.
//!
//! Matches of granules stay in memory as long as there is room ([`MEMORY`]). Where there is not, those that are
//! needed last are forgotten, and read again when their time comes. So a small answer costs one
//! pass over the segments, a large one at most two over those granules that hold it, and disorder beyond all
//! measure costs time but no memory. An index will take the first pass's place: all that it has to
//! tell is which granules may hold matches.
//!
//! Packets come out before all segments are read: those from before the earliest that a segment not yet read
//! may hold ([`SLACK_NS`]). The same bound tells which segments lie outside the span that was asked
//! for. It is the one thing taken on trust here, and where a packet shows that it was wrong, a [`Note`] says so.

mod blocks;
mod granule;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::Record;

use blocks::{Blocks, Stop, read_ahead};
use granule::{Collector, Granule, Key};
pub use snapshot::{Described, Snapshot};
use snapshot::{Segment, open_segment};

/// How long before its segment began, and before the segment's first packet, a packet may have been
/// stamped at most; and how long after its end. A block waits in its ring for the flush interval and
/// for the blocks before it; a device's clock is believed up to a second. A writer that hangs for longer delays all rings
/// alike, which the segment's first packet shows.
pub const SLACK_NS: i64 = 60 * 1_000_000_000;

/// Bytes of matches in memory at most.
const MEMORY: usize = 40 << 20;
const GRANULE: usize = 256 << 10;
const SMALLEST_GRANULE: usize = 16 << 10;
/// Segments kept open for reading a second time.
const OPEN_FILES: usize = 16;

/// UTC nanoseconds, from `after_ns` on, up to but without `before_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub after_ns: i64,
    pub before_ns: i64,
}

impl Span {
    pub const ALL: Self = Self { after_ns: i64::MIN, before_ns: i64::MAX };

    pub fn contains(self, time_ns: i64) -> bool {
        (self.after_ns..self.before_ns).contains(&time_ns)
    }
}

/// A packet of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub time_ns: i64,
    /// Index into [`Snapshot::interfaces`].
    pub interface: u32,
    pub link: LinkType,
    pub original_len: u32,
    pub frame: &'a [u8],
    /// `epb_flags`.
    pub flags: u32,
    /// In an answer: packets lost since the one before it of the same interface in the answer, or
    /// since the span's beginning. To a [`Matcher`]: since the one before it in the recording.
    pub dropped: u64,
}

/// Decides which packets are in the answer. It must give the same answer for the same packet every
/// time.
pub trait Matcher {
    fn matches(&self, packet: &Packet<'_>) -> bool;
}

impl<F: Fn(&Packet<'_>) -> bool> Matcher for F {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        self(packet)
    }
}

/// Why a store cannot be queried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// there is nothing
    #[error("{0} does not exist")]
    NotFound(PathBuf),
    /// it is something else
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// there are no segments, and no recorder was ever there
    #[error("{0} has no segments: name a store that `tapdeck record --dir` wrote")]
    NotAStore(PathBuf),
    /// no permission
    #[error("no permission to read {0}")]
    Permission(PathBuf),
    /// recorded on a machine of the other byte order
    #[error("{0} was recorded on a machine of another byte order: query it there")]
    ByteOrder(PathBuf),
    /// anything else the file system says
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
}

impl Error {
    fn new(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission(path),
            io::ErrorKind::NotFound => Self::NotFound(path),
            io::ErrorKind::NotADirectory => Self::NotADirectory(path),
            _ => Self::Io { path, source },
        }
    }
}

/// What the user must know about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Retention deleted a segment before all of it was read.
    Deleted(String),
    /// A segment is damaged, or was cut although it is closed; what follows is not in the answer.
    Damaged { segment: String, at: u64, what: String },
    /// A segment holds packets from further back than [`SLACK_NS`] allows.
    Late(String),
}

impl Note {
    /// Whether packets that are on disk are missing or out of order because of it.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Deleted(_))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted(segment) => {
                write!(
                    f,
                    "{segment} was deleted before it was read; its packets are not in the answer"
                )
            }
            Self::Damaged { segment, at, what } => {
                write!(
                    f,
                    "{segment} is damaged at byte {at} ({what}); what follows there is not in the answer"
                )
            }
            Self::Late(segment) => {
                write!(
                    f,
                    "{segment} holds packets that waited for more than a minute to be written; they are not in time order"
                )
            }
        }
    }
}

/// How far a query has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Bytes of segments looked through, and how many there are.
    pub bytes: u64,
    pub total_bytes: u64,
    /// Matches found so far.
    pub matches: u64,
    /// Packets that the recording says it dropped inside the span: before the packets that were
    /// looked at, or by the statistics of the segments if those tell of more and the whole store was asked for.
    pub dropped: u64,
}

/// An answer while it is made.
pub struct Query<M> {
    snapshot: Snapshot,
    span: Span,
    matcher: M,
    blocks: Blocks,
    granule_bytes: usize,
    /// The segment that is looked through, and how far.
    segment: usize,
    scanning: Option<(File, u64)>,
    /// For each segment, the earliest packet that it or one after it may hold.
    earliest_ns: Vec<i64>,
    /// Packets dropped at each interface since its last match.
    untold: BTreeMap<u32, u64>,
    /// By their next match.
    waiting: BTreeMap<Key, Granule>,
    /// Those of them that are in memory.
    held: BTreeSet<Key>,
    held_bytes: usize,
    /// The granule whose next match is the answer's next packet.
    current: Option<Granule>,
    last: Option<Key>,
    files: VecDeque<(usize, File)>,
    notes: Vec<Note>,
    course: Course,
    announced: u64,
    told: u64,
}

impl<M: Matcher> Query<M> {
    pub fn new(mut snapshot: Snapshot, span: Span, matcher: M) -> Self {
        let mut earliest_ns: Vec<i64> = snapshot.segments.iter().map(|s| s.earliest_ns).collect();
        for i in (1..earliest_ns.len()).rev() {
            earliest_ns[i - 1] = earliest_ns[i - 1].min(earliest_ns[i]);
        }
        let total_bytes = snapshot.segments.iter().map(|s| s.end - s.begin).sum();
        // About one granule of each ring is in memory at a time.
        let rings = snapshot.segments.iter().map(|s| s.head.interfaces.len()).max().unwrap_or(0);
        let share = MEMORY / (4 * rings.max(1)) / 4096 * 4096;
        Self {
            span,
            matcher,
            blocks: Blocks::default(),
            granule_bytes: share.clamp(SMALLEST_GRANULE, GRANULE),
            segment: 0,
            scanning: None,
            earliest_ns,
            untold: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: BTreeSet::new(),
            held_bytes: 0,
            current: None,
            last: None,
            files: VecDeque::new(),
            notes: std::mem::take(&mut snapshot.notes),
            course: Course { total_bytes, ..Course::default() },
            announced: 0,
            told: 0,
            snapshot,
        }
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub fn course(&self) -> Course {
        let dropped = match self.span {
            // A loss that no packet came after stands in the statistics only.
            Span::ALL => self.announced.max(self.told),
            _ => self.announced,
        };
        Course { dropped, ..self.course }
    }

    /// What there is to tell since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Looks through all segments without putting anything in order; [`Course::matches`] is then
    /// the answer's size. `watch` is called every few hundred KiB; where it gives false, this ends.
    pub fn count(&mut self, mut watch: impl FnMut(Course) -> bool) -> Result<(), Error> {
        while watch(self.course()) && !matches!(self.scan()?, Scanned::All) {}
        Ok(())
    }

    /// The next packet in time order, of equal times the one that lies first in the store; `None` at the answer's
    /// end. `watch` as in [`Query::count`].
    pub fn next_packet(
        &mut self,
        mut watch: impl FnMut(Course) -> bool,
    ) -> Result<Option<Packet<'_>>, Error> {
        let stays = self.stays();
        if let Some(granule) = self.current.take_if(|_| !stays) {
            self.put_back(granule);
        }
        while self.current.is_none() {
            let horizon = self.horizon_ns();
            match self.waiting.pop_first() {
                Some((key, granule)) if horizon.is_none_or(|ns| key.time_ns < ns) => {
                    self.load(key, granule)?;
                    continue;
                }
                Some((key, granule)) => _ = self.waiting.insert(key, granule),
                None => {}
            }
            if !watch(self.course()) {
                return Ok(None);
            }
            match self.scan()? {
                Scanned::Matches(granule) => self.keep(granule),
                Scanned::All if self.waiting.is_empty() => return Ok(None),
                Scanned::All | Scanned::Nothing => {}
            }
        }
        let Some(granule) = &mut self.current else { return Ok(None) };
        Ok(granule.take().map(|found| {
            let link = self.snapshot.interfaces[found.interface as usize].link;
            granule.packet(&found, link)
        }))
    }

    /// Packets from before this are all known; `None` where all are.
    fn horizon_ns(&self) -> Option<i64> {
        self.earliest_ns.get(self.segment).copied()
    }

    /// Whether the current granule also has the next packet.
    fn stays(&mut self) -> bool {
        let Some(key) = self.current.as_ref().and_then(Granule::key) else { return false };
        let first = self.waiting.first_key_value();
        let stays = self.horizon_ns().is_none_or(|ns| key.time_ns < ns)
            && first.is_none_or(|(other, _)| key < *other);
        if stays {
            self.last = Some(key);
        }
        stays
    }

    /// A granule's next packet is another one than before.
    fn put_back(&mut self, granule: Granule) {
        self.held_bytes -= granule.bytes();
        if granule.key().is_some() {
            self.keep(granule);
        }
    }

    /// Makes a granule wait for its time, in memory if there is room.
    fn keep(&mut self, granule: Granule) {
        let Some(key) = granule.key() else { return };
        self.held_bytes += granule.bytes();
        self.waiting.insert(key, granule);
        self.held.insert(key);
        while self.held_bytes > MEMORY {
            let Some(last) = self.held.pop_last() else { break };
            if let Some(granule) = self.waiting.get_mut(&last) {
                self.held_bytes -= granule.bytes();
                granule.forget();
            }
        }
    }

    /// Makes a granule the current one, unless its segment is gone.
    fn load(&mut self, key: Key, mut granule: Granule) -> Result<(), Error> {
        if !self.held.remove(&key) {
            match self.read_again(key, &mut granule) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let name = self.snapshot.segments[key.segment].name.to_string();
                    self.note(Note::Deleted(name));
                    return Ok(());
                }
                Err(e) => return Err(Error::new(self.snapshot.path(key.segment), e)),
            }
            self.held_bytes += granule.bytes();
        }
        if self.last.is_some_and(|last| key < last) {
            self.note(Note::Late(self.snapshot.segments[key.segment].name.to_string()));
        }
        self.last = Some(key);
        self.current = Some(granule);
        Ok(())
    }

    fn read_again(&mut self, key: Key, granule: &mut Granule) -> io::Result<()> {
        if !self.files.iter().any(|(segment, _)| *segment == key.segment) {
            let name = &self.snapshot.segments[key.segment].name;
            let file = open_segment(&self.snapshot.dir, name)?;
            self.files.truncate(OPEN_FILES - 1);
            self.files.push_front((key.segment, file));
        }
        let Some((_, file)) = self.files.iter().find(|(segment, _)| *segment == key.segment) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let segment = &self.snapshot.segments[key.segment];
        let mut untold: BTreeMap<u32, u64> = granule.untold.iter().copied().collect();
        let mut collector = Collector::new(&self.snapshot, segment, self.span, &mut untold);
        let (begin, end) = (granule.begin, granule.begin + u64::from(granule.len));
        let mut at = begin;
        while at < end {
            let want = (end - at) as usize;
            let part = self.blocks.read(file, segment, at, end, want, |at, record| {
                collector.take(at, record, &self.matcher)
            })?;
            if part.bytes == 0 {
                break;
            }
            at += part.bytes;
        }
        let packets = collector.finish();
        granule.fill(packets, key);
        // The file's contents are what they were, or it is as good as gone.
        if granule.key() == Some(key) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn note(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Looks through the next piece of the segments.
    fn scan(&mut self) -> Result<Scanned, Error> {
        let Some(segment) = self.snapshot.segments.get(self.segment) else {
            return Ok(Scanned::All);
        };
        let (file, begin) = match self.scanning.take() {
            Some(scanning) => scanning,
            None => match open_segment(&self.snapshot.dir, &segment.name) {
                Ok(file) => {
                    read_ahead(&file);
                    (file, segment.begin)
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let name = segment.name.to_string();
                    self.course.bytes += segment.end - segment.begin;
                    self.segment += 1;
                    self.note(Note::Deleted(name));
                    return Ok(Scanned::Nothing);
                }
                Err(e) => return Err(Error::new(self.snapshot.path(self.segment), e)),
            },
        };
        let before: Vec<(u32, u64)> = self.untold.iter().map(|(i, n)| (*i, *n)).collect();
        let mut collector = Collector::new(&self.snapshot, segment, self.span, &mut self.untold);
        let told = &mut self.told;
        let read = self.blocks.read(
            &file,
            segment,
            begin,
            segment.end,
            self.granule_bytes,
            |at, record| {
                if let Record::Statistics(s) = &record {
                    *told += s.dropped.unwrap_or(0);
                }
                collector.take(at, record, &self.matcher)
            },
        );
        let part = read.map_err(|e| Error::new(self.snapshot.path(self.segment), e))?;
        self.announced += collector.dropped;
        let packets = collector.finish();
        self.course.matches += packets.len() as u64;
        let granule = Granule::new(self.segment, begin, part.bytes as u32, before, packets);
        self.course.bytes += part.bytes;
        let note = ended(segment, begin + part.bytes, &part.stop);
        match part.stop {
            Stop::More => self.scanning = Some((file, begin + part.bytes)),
            Stop::End | Stop::Cut | Stop::Damaged(_) => {
                self.course.bytes += segment.end - (begin + part.bytes);
                self.segment += 1;
            }
        }
        self.notes.extend(note);
        Ok(granule.map_or(Scanned::Nothing, Scanned::Matches))
    }
}

/// What a look at the next piece of the segments found.
enum Scanned {
    Matches(Granule),
    Nothing,
    /// There is no piece any more.
    All,
}

/// What is to be told of how a segment ended at `at`. One that is being written may be cut anywhere.
fn ended(segment: &Segment, at: u64, stop: &Stop) -> Option<Note> {
    let what = match stop {
        Stop::More | Stop::End => return None,
        Stop::Cut if segment.name.live => return None,
        Stop::Cut => "it is cut short".to_owned(),
        Stop::Damaged(what) => (*what).to_owned(),
    };
    Some(Note::Damaged { segment: segment.name.to_string(), at, what })
}
