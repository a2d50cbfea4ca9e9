//! Which packets of a store match, in time order? Answered from the segments and what is indexed of
//! them, for stores that are being written and deleted from meanwhile.
//!
//! A segment is not sorted: rings lie in it by blocks, neighbouring segments overlap in time, and
//! even inside a ring packets may be stamped in another order than they were reserved in. So the
//! answer is merged, from **pieces** of segments whose matches are sorted. What may still hold a
//! part of it is a **source**: a segment of which no more is known than how it begins, granules
//! that its index names, or a stretch that is not indexed and has to be read from end to end. Each
//! source has a bound, the earliest time that may be in it. A packet goes out when it is before the
//! bounds of all sources that are left; until then the source with the lowest bound is looked at. A
//! look at a segment gives its granules and stretches, a look at a stretch a piece and the rest of
//! the stretch. Nothing is looked at that the next packet does not need; so the first packet comes
//! soon, and an answer depends on the store alone.
//!
//! The bounds of granules are exact. Those of what is not indexed are taken on trust: a segment may
//! hold nothing from more than [`SLACK_NS`] before its own beginning. Where a packet shows that
//! this was wrong, a [`Note`] says so. The same bound tells which segments lie outside the span
//! that was asked for.
//!
//! Matches of pieces stay in memory as long as there is room ([`MEMORY`]). Where there is not, the
//! piece that is needed last is forgotten and becomes a source again, with its next match as its
//! bound. So disorder beyond all measure costs time but no memory.
//!
//! Of capture files of other recorders nothing is known before they are read ([`foreign`]): each is
//! one stretch whose bound is lower than any time, so all of them are read before the first packet
//! goes out.
//!
//! Threads look at sources ahead of need ([`Crew`]), as many as [`AHEAD`] allows. What they found
//! waits until the answer needs it.
//!
//! **Losses.** A packet tells how many were lost before it. Where it is not in the answer, the next
//! match of its interface tells it instead: packets that tell of losses are merged like matches,
//! and then added up. Granules without a match are not read for that, since the index has their
//! sums; only where a match falls into the time of such a granule, and it is open which losses come
//! before the match, it is read.

mod blocks;
mod crew;
mod ends;
mod expand;
mod foreign;
mod losses;
mod make;
mod piece;
mod reader;
mod scan;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;

use crew::Crew;
pub use foreign::Search;
use losses::Losses;
pub use make::index_captures;
use piece::{Found, Key, Piece};
use reader::{Asked, Reader};
pub use snapshot::{Described, Snapshot};
pub(crate) use snapshot::{Segment, open_segment};
use source::{Loss, Outcome, Rank, Source, Work};

/// How long before its segment began, and before the segment's first packet, a packet may have been
/// stamped at most; and how long after its end. A block waits in its ring for the flush interval
/// and for the blocks before it; a device's clock is believed up to a second. A writer that hangs
/// for longer delays all rings alike, which the segment's first packet shows.
pub const SLACK_NS: i64 = 60 * 1_000_000_000;

/// Bytes of matches in memory at most, beyond those that were found ahead of need.
const MEMORY: usize = 32 << 20;
/// Bytes of segments that are read ahead of need at most.
const AHEAD: usize = 4 << 20;
const PIECE: usize = 256 << 10;
const SMALLEST_PIECE: usize = 16 << 10;

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
    /// neither segments nor files of other recorders
    #[error(
        "{0} has no segments and no pcap or pcapng files: name a store that `tapdeck record --dir` wrote, or capture files"
    )]
    NoCaptures(PathBuf),
    /// a file of something else
    #[error("{0} is not a directory, and it is no pcap or pcapng file either")]
    NotACapture(PathBuf),
    /// a capture file describes an interface behind where [`Snapshot::open_any`] looked
    #[error("{0} was changed while it was read: query again")]
    LateInterface(PathBuf),
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
    pub(crate) fn new(path: PathBuf, source: io::Error) -> Self {
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
    /// A granule of a segment is not what was indexed. What could be read of it is in the answer.
    Changed { segment: String, at: u64 },
    /// A segment holds packets from further back than [`SLACK_NS`] allows.
    Late(String),
    /// A capture file of another recorder ends within a packet.
    Unfinished { segment: String, at: u64 },
    /// A capture file of another recorder has packets without a time, or from before 1970.
    Timeless(String),
    /// No index can be made of a capture file of another recorder.
    NotIndexed { segment: String, why: String },
    /// The index of a segment is damaged. All of the segment was read instead.
    Index { segment: String, why: String },
}

impl Note {
    /// Whether packets that are on disk are missing or out of order because of it.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Changed { .. } | Self::Late(_))
    }

    fn segment(&self) -> &str {
        match self {
            Self::Deleted(segment)
            | Self::Damaged { segment, .. }
            | Self::Changed { segment, .. }
            | Self::Unfinished { segment, .. }
            | Self::NotIndexed { segment, .. }
            | Self::Timeless(segment)
            | Self::Late(segment)
            | Self::Index { segment, .. } => segment,
        }
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
            Self::Changed { segment, at } => {
                write!(
                    f,
                    "{segment} is damaged at byte {at} (its checksum differs); what could be read there is in the answer"
                )
            }
            Self::Unfinished { segment, at } => {
                write!(
                    f,
                    "{segment} ends at byte {at} with the beginning of a packet, as files do that are being written; what is whole is in the answer"
                )
            }
            Self::Timeless(segment) => {
                write!(
                    f,
                    "{segment} holds packets without a time; each has that of the packet before it in the file"
                )
            }
            Self::NotIndexed { segment, why } => {
                write!(f, "no index can be made of {segment} ({why}); all of it is read")
            }
            Self::Index { segment, why } => {
                write!(
                    f,
                    "the index of {segment} cannot be used ({why}), so all of it was read; `tapdeck recover --all` makes a new one"
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
pub struct Progress {
    /// Bytes of segments that were read or that nothing had to be read of, and how many there are.
    pub bytes: u64,
    pub total_bytes: u64,
    /// Matches found so far.
    pub matches: u64,
    /// Packets that the recording says it dropped inside the span: before the packets that were
    /// looked at, or by the statistics of the segments if those tell of more and the whole store
    /// was asked for.
    pub dropped: u64,
    /// Segments looked at; those of them with an index; and those of which something is not
    /// indexed.
    pub segments: u64,
    pub indexed: u64,
    pub scanned: u64,
    /// Granules in their indexes, and those of them that have to be read.
    pub granules: u64,
    pub wanted: u64,
    /// What was read of indexes and of segments, in all.
    pub index_bytes: u64,
    pub read_bytes: u64,
}

impl Progress {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.matches += other.matches;
        self.dropped += other.dropped;
        self.segments += other.segments;
        self.indexed += other.indexed;
        self.scanned += other.scanned;
        self.granules += other.granules;
        self.wanted += other.wanted;
        self.index_bytes += other.index_bytes;
        self.read_bytes += other.read_bytes;
    }
}

/// An answer while it is made.
pub struct Query<M> {
    asked: Arc<Asked>,
    crew: Crew<M>,
    /// What has to be looked at, and what is looked at ahead of need.
    sources: BTreeMap<Rank, Source>,
    ahead: BTreeMap<Rank, Ahead>,
    /// The lowest bound of both; `None` where nothing is left.
    bound_ns: Option<i64>,
    /// By what is next in them.
    waiting: BTreeMap<Key, Piece>,
    /// The piece that has the answer's next packet.
    current: Option<Piece>,
    /// Of both.
    held_bytes: usize,
    /// The packet that went out last.
    last: Option<Key>,
    losses: Losses,
    notes: Vec<Note>,
    progress: Progress,
    told: u64,
}

/// A source that is looked at ahead of need.
struct Ahead {
    bytes: usize,
    outcome: Option<io::Result<Outcome>>,
}

impl<M: Matcher + Clone + Send + 'static> Query<M> {
    /// `plan` leaves out no packet that `matcher` takes.
    pub fn new(mut snapshot: Snapshot, span: Span, plan: Plan, matcher: M) -> Self {
        let notes = std::mem::take(&mut snapshot.notes);
        let total_bytes = snapshot.parts().map(|(bytes, _)| bytes).sum();
        let index_bytes = snapshot.index_bytes;
        let of_segment =
            |(segment, (_, bound_ns))| (Rank { bound_ns, segment, begin: 0 }, Source::Segment);
        let sources: BTreeMap<Rank, Source> =
            snapshot.parts().enumerate().map(of_segment).collect();
        // About one piece of each ring is in memory at a time.
        let rings = snapshot.segments.iter().map(|s| s.head.interfaces.len()).max().unwrap_or(0);
        let share = MEMORY / (4 * rings.max(1)) / 4096 * 4096;
        let piece_bytes = share.clamp(SMALLEST_PIECE, PIECE);
        let asked = Arc::new(Asked { snapshot, span, plan, piece_bytes });
        Self {
            crew: Crew::new(Reader::new(asked.clone(), matcher)),
            asked,
            bound_ns: sources.first_key_value().map(|(rank, _)| rank.bound_ns),
            sources,
            ahead: BTreeMap::new(),
            waiting: BTreeMap::new(),
            current: None,
            held_bytes: 0,
            last: None,
            losses: Losses::default(),
            notes,
            progress: Progress { total_bytes, index_bytes, ..Progress::default() },
            told: 0,
        }
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.asked.snapshot
    }

    pub fn progress(&self) -> Progress {
        let dropped = match self.asked.span {
            // A loss that no packet came after stands in the statistics only.
            Span::ALL => self.progress.dropped.max(self.told),
            _ => self.progress.dropped,
        };
        Progress { dropped, ..self.progress }
    }

    /// What there is to tell since the last call, in the order of segments.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.sort_by(|a, b| a.segment().cmp(b.segment()));
        notes
    }

    /// Looks at everything without putting anything in order; [`Progress::matches`] is then
    /// the answer's size. `watch` is called every few hundred KiB; where it gives false, this ends.
    pub fn count(&mut self, mut watch: impl FnMut(Progress) -> bool) -> Result<(), Error> {
        self.crew.count_only();
        while watch(self.progress()) {
            while self.ahead.len() < 2 * self.crew.size()
                && let Some(work) = self.sources.pop_first()
            {
                self.submit(work);
            }
            let done = self.ahead.iter().find(|(_, ahead)| ahead.outcome.is_some());
            match done.map(|(rank, _)| *rank) {
                Some(rank) => self.admit(rank)?,
                None if self.ahead.is_empty() => break,
                None => self.wait(),
            }
        }
        Ok(())
    }

    /// The next packet in time order, of equal times the one that lies first in the store; `None`
    /// at the answer's end. `watch` as in [`Query::count`].
    pub fn next_packet(
        &mut self,
        mut watch: impl FnMut(Progress) -> bool,
    ) -> Result<Option<Packet<'_>>, Error> {
        let found = loop {
            match self.next_found() {
                Some(found) if found.matches => break found,
                Some(found) => self.losses.add(found.interface, found.dropped),
                None if self.bound_ns.is_none() => return Ok(None),
                None if !watch(self.progress()) => return Ok(None),
                None => self.advance()?,
            }
        };
        let dropped = found.dropped + self.losses.take(found.interface);
        let Some(piece) = &self.current else { return Ok(None) };
        let link = self.asked.snapshot.interfaces[found.interface as usize].link;
        Ok(Some(Packet { dropped, ..piece.packet(&found, link) }))
    }

    /// What is next in time order of all that was found, if nothing before it can be found any
    /// more.
    fn next_found(&mut self) -> Option<Found> {
        let key = self.lead()?;
        if self.bound_ns.is_some_and(|ns| ns <= key.time_ns) {
            return None;
        }
        let found = *self.current.as_ref()?.peek()?;
        if found.matches {
            let ambiguous = self.losses.come_to(key.time_ns, found.interface);
            if !ambiguous.is_empty() {
                self.sources.extend(ambiguous.iter().map(Loss::open));
                self.find_bound();
                return None;
            }
            if self.last.is_some_and(|last| key < last) {
                self.note(Note::Late(self.snapshot().name(key.segment)));
            }
            self.last = Some(key);
        }
        self.current.as_mut()?.take()
    }

    /// Makes the piece with what is next the current one.
    fn lead(&mut self) -> Option<Key> {
        let key = self.current.as_ref().and_then(Piece::key);
        let other = self.waiting.first_key_value().map(|(key, _)| *key);
        if key.is_some_and(|key| other.is_none_or(|other| key < other)) {
            return key;
        }
        let next = self.waiting.pop_first().map(|(_, piece)| piece);
        if let Some(piece) = std::mem::replace(&mut self.current, next) {
            self.held_bytes -= piece.bytes();
            self.keep(piece);
        }
        other
    }

    /// Makes a piece wait for its time, in memory if there is room.
    fn keep(&mut self, piece: Piece) {
        let Some(key) = piece.key() else { return };
        self.held_bytes += piece.bytes();
        self.waiting.insert(key, piece);
        while self.held_bytes > MEMORY {
            let Some((last, piece)) = self.waiting.pop_last() else { break };
            self.held_bytes -= piece.bytes();
            self.sources.extend([piece.forget(last)]);
            self.find_bound();
        }
    }

    /// Takes in what the source with the lowest bound gives.
    fn advance(&mut self) -> Result<(), Error> {
        let first = self.ahead.first_key_value().map(|(rank, _)| *rank);
        let source = self.sources.first_entry().filter(|e| first.is_none_or(|f| *e.key() < f));
        let needed = source.map(OccupiedEntry::remove_entry);
        self.look_ahead();
        match (needed, first) {
            // Nobody is there sooner than who needs it.
            (Some((rank, source)), _) => {
                let outcome = self.crew.look(rank, source);
                self.take_in(rank, outcome)
            }
            (None, Some(rank)) => {
                while self.ahead.get(&rank).is_some_and(|ahead| ahead.outcome.is_none()) {
                    self.wait();
                }
                self.admit(rank)
            }
            (None, None) => Ok(()),
        }
    }

    /// Has the crew look at what will be needed next, if there is room.
    fn look_ahead(&mut self) {
        let mut room = AHEAD.saturating_sub(self.ahead.values().map(|a| a.bytes).sum());
        while let Some((rank, source)) = self.sources.first_key_value() {
            let bytes = source.bytes(self.asked.piece_bytes);
            let has_room = match source {
                // While there are packets to give, segments are left alone: they may be long. But
                // no packet goes out before foreign files are read.
                Source::Segment => {
                    let found_none = self.waiting.is_empty() && self.current.is_none();
                    let is_needed = found_none || rank.bound_ns == i64::MIN;
                    is_needed && self.ahead.len() < self.crew.size()
                }
                _ => bytes <= room,
            };
            if !has_room {
                break;
            }
            room -= bytes;
            if let Some(work) = self.sources.pop_first() {
                self.submit(work);
            }
        }
    }

    fn submit(&mut self, (rank, source): Work) {
        let bytes = source.bytes(self.asked.piece_bytes);
        self.ahead.insert(rank, Ahead { bytes, outcome: None });
        self.crew.submit((rank, source));
    }

    /// Until something that was submitted is done.
    fn wait(&mut self) {
        let (rank, outcome) = self.crew.wait();
        if let Some(ahead) = self.ahead.get_mut(&rank) {
            ahead.outcome = Some(outcome);
        }
    }

    /// Takes in what was looked at ahead.
    fn admit(&mut self, rank: Rank) -> Result<(), Error> {
        match self.ahead.remove(&rank).and_then(|ahead| ahead.outcome) {
            Some(outcome) => self.take_in(rank, outcome),
            None => Ok(()),
        }
    }

    /// Takes in what a source gave.
    fn take_in(&mut self, rank: Rank, outcome: io::Result<Outcome>) -> Result<(), Error> {
        let path = || self.snapshot().path(rank.segment);
        let outcome = outcome.map_err(|e| Error::new(path(), e))?;
        if outcome.is_late {
            return Err(Error::LateInterface(path()));
        }
        self.progress.add(outcome.progress);
        self.told += outcome.told;
        self.sources.extend(outcome.sources);
        self.losses.expect(outcome.losses);
        outcome.notes.into_iter().for_each(|note| self.note(note));
        self.find_bound();
        if let Some(piece) = outcome.piece {
            self.keep(piece);
        }
        Ok(())
    }

    fn find_bound(&mut self) {
        let source = self.sources.first_key_value().map(|(rank, _)| rank.bound_ns);
        let ahead = self.ahead.first_key_value().map(|(rank, _)| rank.bound_ns);
        self.bound_ns = source.into_iter().chain(ahead).min();
    }

    fn note(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
