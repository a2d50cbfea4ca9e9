//! Merges what is found into one answer in time order.
//!
//! [`Query`] knows what is still unread, each part with the earliest time that may be in it, and
//! what was found. It looks at no more than the next packet needs, and keeps what it found within
//! bounds. How something is read is the [`Reader`]'s business, on which thread the [`Crew`]'s.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::io;
use std::sync::Arc;

use tapdeck_packet::key::Plan;

use super::crew::{Crew, THREADS};
use super::error::Error;
use super::losses::Losses;
use super::note::Note;
use super::opened::Opened;
use super::order::{Key, Rank};
use super::packet::{Matcher, Packet};
use super::piece::{FoundPacket, FoundPackets};
use super::progress::Progress;
use super::reader::Reader;
use super::request::Request;
use super::snapshot::{Missing, Segment, Snapshot, is_within};
use super::source::{Looked, Loss, Unread, Work};
use super::tail::Tail;
use crate::span::Span;

/// Bytes of matches in memory, at most, where nobody says how many.
const MEMORY: usize = 32 << 20;
/// The share of a query's memory that segments read ahead of need may have in bytes.
const AHEAD_SHARE: usize = 8;
/// How many segments are looked at ahead of need while there are packets to give.
const SEGMENTS_AHEAD: usize = 2;
/// About how many bytes of a stretch are read at once, at most.
const PIECE: usize = 256 << 10;
/// About how many bytes of a stretch are read at once where many rings share the memory.
const SMALLEST_PIECE: usize = 16 << 10;

/// An answer while it is made.
pub struct Query<M> {
    /// Bytes of matches in memory, at most, beyond those that were found ahead of need.
    memory: usize,
    request: Arc<Request>,
    crew: Crew<M>,
    /// What has still to be looked at.
    unread: BTreeMap<Rank, Unread>,
    /// What is looked at ahead of need.
    ahead: BTreeMap<Rank, Ahead>,
    /// The lowest bound in `unread` and `ahead`; `None` where nothing is left.
    bound_ns: Option<i64>,
    /// What was found and is not next, each by the key of its first packet.
    waiting: BTreeMap<Key, FoundPackets>,
    /// What has the answer's next packet.
    current: Option<FoundPackets>,
    /// Memory that `waiting` and `current` take.
    held_bytes: usize,
    /// Where the packet that went out last stands.
    last: Option<Key>,
    losses: Losses,
    /// What went unseen, as far as is known by now.
    unseen: Vec<Missing>,
    /// What of that was not taken, by its end.
    not_taken: BTreeMap<(i64, usize), Missing>,
    /// The packet that was found last, and how many were lost before it.
    found: Option<(FoundPacket, u64)>,
    notes: Vec<Note>,
    progress: Progress,
    /// Losses that the statistics of segments tell of.
    told: u64,
    /// The ends of whole blocks in segments that end within a block, by index in the snapshot.
    cuts: BTreeMap<usize, u64>,
    /// How far the rounds before this one came.
    before: Option<Tail>,
}

/// Returns what is unread at the beginning: segments, or overviews of them where those may say that
/// a segment has nothing of the answer.
pub(super) fn begin_with(
    snapshot: &Snapshot,
    parts: &[(u64, i64)],
    plan: &Plan,
) -> BTreeMap<Rank, Unread> {
    let rank = |segment: usize| Rank { bound_ns: parts[segment].1, segment, begin: 0 };
    let whole = |segment| (rank(segment), Unread::Whole);
    let mut unread: BTreeMap<Rank, Unread> = (0..parts.len()).map(whole).collect();
    for (number, segment) in snapshot.segments_to_read().iter().enumerate() {
        if !snapshot.is_wanted(number) {
            unread.remove(&rank(number));
        } else if segment.may_grow {
            unread.remove(&rank(number));
            let stretch = Unread::Stretch { end: segment.end, context: None, object: None };
            unread.insert(Rank { begin: segment.begin, ..rank(number) }, stretch);
        }
    }
    if matches!(plan, Plan::All) {
        return unread;
    }
    for (number, covering) in snapshot.overviews.iter().enumerate() {
        let ranks = || covering.segments.iter().map(|covered| rank(covered.segment));
        let Some(first) = ranks().min() else { continue };
        ranks().for_each(|rank| drop(unread.remove(&rank)));
        unread.insert(first, Unread::Overview(number));
    }
    unread
}

/// An unread part that is looked at ahead of need.
struct Ahead {
    /// About how many bytes the look reads.
    bytes: usize,
    /// What the look gave, once it is done.
    outcome: Option<io::Result<Looked>>,
}

impl<M: Matcher + Clone + Send + 'static> Query<M> {
    /// Begins an answer: the packets of a snapshot within a span that `matcher` takes. `plan`
    /// leaves out none of them.
    pub fn new(snapshot: Snapshot, span: Span, plan: Plan, matcher: M) -> Self {
        Self::within(MEMORY, snapshot, span, plan, matcher)
    }

    /// Begins an answer as [`Query::new`] does, with so many bytes of matches in memory at most,
    /// and an eighth of that found ahead of need.
    pub fn within(
        memory: usize,
        mut snapshot: Snapshot,
        span: Span,
        plan: Plan,
        matcher: M,
    ) -> Self {
        let notes = std::mem::take(&mut snapshot.notes);
        let unseen = std::mem::take(&mut snapshot.unseen);
        let parts = snapshot.parts();
        let total_bytes = parts.iter().map(|(bytes, _)| bytes).sum();
        let index_bytes = snapshot.index_bytes;
        let unread = begin_with(&snapshot, &parts, &plan);
        let is_left_out = |(number, _): &(usize, &(u64, i64))| !snapshot.is_wanted(*number);
        let left_out = parts.iter().enumerate().filter(is_left_out);
        let bytes = left_out.map(|(_, (bytes, _))| bytes).sum();
        // About one piece of each ring is in memory at a time.
        let segments = snapshot.segments_to_read();
        let rings = segments.iter().map(|s| s.head.interfaces.len()).max().unwrap_or(0);
        let share = memory / (4 * rings.max(1)) / 4096 * 4096;
        let piece_bytes = share.clamp(SMALLEST_PIECE, PIECE);
        let request =
            Arc::new(Request { snapshot, span, plan, piece_bytes, opened: Opened::default() });
        let mut query = Self {
            memory,
            crew: Crew::new(Reader::new(request.clone(), matcher)),
            request,
            bound_ns: unread.first_key_value().map(|(rank, _)| rank.bound_ns),
            unread,
            ahead: BTreeMap::new(),
            waiting: BTreeMap::new(),
            current: None,
            held_bytes: 0,
            last: None,
            losses: Losses::default(),
            unseen: Vec::new(),
            not_taken: BTreeMap::new(),
            found: None,
            notes,
            progress: Progress { bytes, total_bytes, index_bytes, ..Progress::default() },
            told: 0,
            cuts: BTreeMap::new(),
            before: None,
        };
        for missing in unseen {
            query.went_unseen(missing);
        }
        query
    }

    /// Begins the next round of an answer that follows a store, with what has come
    /// ([`Tail::grown`]).
    pub fn go_on(mut tail: Tail, snapshot: Snapshot, span: Span, plan: Plan, matcher: M) -> Self {
        let mut query = Self::new(snapshot, span, plan, matcher);
        query.losses = std::mem::take(&mut tail.losses);
        for missing in std::mem::replace(&mut query.unseen, std::mem::take(&mut tail.unseen)) {
            query.not_taken.retain(|_, other| *other != missing);
            query.went_unseen(missing);
        }
        query.before = Some(tail);
        query
    }

    /// Ends an answer that was given to its end, to go on with what comes. The snapshot was made
    /// for that ([`Snapshot::follow`], [`Tail::grown`]).
    pub fn tail(self) -> Tail {
        let Self { request, cuts, before, losses, unseen, .. } = self;
        let reached =
            |number: usize, segment: &Segment| cuts.get(&number).copied().unwrap_or(segment.end);
        let snapshot = &request.snapshot;
        let mut tail = match before {
            Some(mut tail) => {
                tail.pass(snapshot, reached);
                tail
            }
            None => Tail::behind(snapshot, reached),
        };
        (tail.losses, tail.unseen) = (losses, unseen);
        tail
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.request.snapshot
    }

    pub fn progress(&self) -> Progress {
        let dropped = match self.request.span {
            // A loss that no packet came after stands in the statistics only.
            Span::ALL => self.progress.dropped.max(self.told),
            _ => self.progress.dropped,
        };
        Progress { dropped, ..self.progress }
    }

    /// Takes the notes that there are since the last call, in the order of segments.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.sort_by(|a, b| a.segment().cmp(b.segment()));
        notes
    }

    /// Returns the times, among those that the span reaches into, in which packets went unseen: no
    /// answer has them. More may become known until the answer ends.
    pub fn unseen(&self) -> &[Missing] {
        &self.unseen
    }

    /// Takes those of [`Query::unseen`] that ended by a time, each once, in the order of their
    /// ends.
    /// Before a packet goes out all are known that ended by its time.
    pub fn take_unseen(&mut self, until_ns: i64) -> Vec<Missing> {
        let mut ended = Vec::new();
        while let Some(first) = self.not_taken.first_entry().filter(|e| e.key().0 <= until_ns) {
            ended.push(first.remove());
        }
        ended
    }

    /// Looks at everything without putting anything in order; [`Progress::matches`] is then
    /// the answer's size. `watch` is called every few hundred KiB; where it returns false, this
    /// ends.
    pub fn count(&mut self, mut watch: impl FnMut(Progress) -> bool) -> Result<(), Error> {
        self.crew.count_only();
        while watch(self.progress()) {
            while self.ahead.len() < 2 * THREADS
                && let Some(work) = self.unread.pop_first()
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

    /// Returns the next packet in time order, of equal times the one that lies first in the store;
    /// `None` at the answer's end. `watch` is called as in [`Query::count`].
    pub fn next_packet(
        &mut self,
        watch: impl FnMut(Progress) -> bool,
    ) -> Result<Option<Packet<'_>>, Error> {
        self.find_next(watch)?;
        Ok(self.packet())
    }

    /// Finds the packet that [`Query::next_packet`] would return, and returns its time.
    pub fn find_next(
        &mut self,
        mut watch: impl FnMut(Progress) -> bool,
    ) -> Result<Option<i64>, Error> {
        self.found = None;
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
        self.found = Some((found, dropped));
        Ok(Some(found.time_ns))
    }

    /// Returns the packet that was found last; `None` where none is left.
    pub fn packet(&self) -> Option<Packet<'_>> {
        let (found, dropped) = self.found.as_ref()?;
        let link = self.request.snapshot.interfaces[found.interface as usize].link;
        Some(Packet { dropped: *dropped, ..self.current.as_ref()?.packet(found, link) })
    }

    /// Takes what is next in time order of all that was found, if nothing before it can be found
    /// any more.
    fn next_found(&mut self) -> Option<FoundPacket> {
        let key = self.lead()?;
        if self.bound_ns.is_some_and(|ns| ns <= key.time_ns) {
            return None;
        }
        let found = *self.current.as_ref()?.peek()?;
        if found.matches {
            let ambiguous = self.losses.come_to(key.time_ns, found.interface);
            if !ambiguous.is_empty() {
                self.unread.extend(ambiguous.iter().map(Loss::open));
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

    /// Makes those packets current of which the first is next in the answer. Returns where that one
    /// stands.
    fn lead(&mut self) -> Option<Key> {
        let key = self.current.as_ref().and_then(FoundPackets::key);
        let other = self.waiting.first_key_value().map(|(key, _)| *key);
        if key.is_some_and(|key| other.is_none_or(|other| key < other)) {
            return key;
        }
        let next = self.waiting.pop_first().map(|(_, packets)| packets);
        if let Some(packets) = std::mem::replace(&mut self.current, next) {
            self.held_bytes -= packets.bytes();
            self.keep(packets);
        }
        other
    }

    /// Makes packets wait for their time, in memory if there is room.
    fn keep(&mut self, packets: FoundPackets) {
        let Some(key) = packets.key() else { return };
        self.held_bytes += packets.bytes();
        self.waiting.insert(key, packets);
        while self.held_bytes > self.memory {
            let Some((last, packets)) = self.waiting.pop_last() else { break };
            self.held_bytes -= packets.bytes();
            self.unread.extend([Unread::forgotten(packets, last)]);
            self.find_bound();
        }
    }

    /// Takes in what the unread part with the lowest bound gives.
    fn advance(&mut self) -> Result<(), Error> {
        let first = self.ahead.first_key_value().map(|(rank, _)| *rank);
        let lowest = self.unread.first_entry().filter(|e| first.is_none_or(|f| *e.key() < f));
        let needed = lowest.map(OccupiedEntry::remove_entry);
        self.look_ahead();
        match (needed, first) {
            // No other thread could begin sooner than this one, which needs it.
            (Some((rank, unread)), _) => {
                let outcome = self.crew.look(rank, unread);
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
        let mut room =
            (self.memory / AHEAD_SHARE).saturating_sub(self.ahead.values().map(|a| a.bytes).sum());
        while let Some((rank, unread)) = self.unread.first_key_value() {
            let bytes = unread.bytes(self.request.piece_bytes);
            let has_room = match unread {
                // While there are packets to give, few segments are looked at: they may not be
                // needed. But no packet goes out before all capture files are read.
                Unread::Whole | Unread::Overview(_) => {
                    let found_none = self.waiting.is_empty() && self.current.is_none();
                    let is_needed = found_none || rank.bound_ns == i64::MIN;
                    let segments = self.ahead.values().filter(|ahead| ahead.bytes == 0).count();
                    let is_soon = is_needed || segments < SEGMENTS_AHEAD;
                    is_soon && segments < THREADS
                }
                _ => bytes <= room,
            };
            if !has_room {
                break;
            }
            room -= bytes;
            if let Some(work) = self.unread.pop_first() {
                self.submit(work);
            }
        }
    }

    fn submit(&mut self, (rank, unread): Work) {
        let bytes = unread.bytes(self.request.piece_bytes);
        self.ahead.insert(rank, Ahead { bytes, outcome: None });
        self.crew.submit((rank, unread));
    }

    /// Waits until something that was submitted is done.
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

    /// Takes in what an unread part gave.
    fn take_in(&mut self, rank: Rank, outcome: io::Result<Looked>) -> Result<(), Error> {
        let path = || self.snapshot().path(rank.segment);
        let outcome = outcome.map_err(|e| Error::new(path(), e))?;
        if outcome.is_late {
            return Err(Error::LateInterface(path()));
        }
        self.progress.add(outcome.progress);
        self.told += outcome.told;
        self.cuts.extend(outcome.cut_at.map(|at| (rank.segment, at)));
        self.unread.extend(outcome.unread);
        self.losses.expect(outcome.losses);
        outcome.notes.into_iter().for_each(|note| self.note(note));
        for unseen in outcome.unseen {
            if is_within(&unseen, self.request.span) {
                self.went_unseen(self.snapshot().missing(unseen));
            }
        }
        self.find_bound();
        if let Some(packets) = outcome.packets {
            self.keep(packets);
        }
        Ok(())
    }

    fn find_bound(&mut self) {
        let unread = self.unread.first_key_value().map(|(rank, _)| rank.bound_ns);
        let ahead = self.ahead.first_key_value().map(|(rank, _)| rank.bound_ns);
        self.bound_ns = unread.into_iter().chain(ahead).min();
    }

    /// Takes in what went unseen, if it is not known yet: several files may tell of it.
    fn went_unseen(&mut self, missing: Missing) {
        if !self.unseen.contains(&missing) {
            self.not_taken.insert((missing.last_ns, self.unseen.len()), missing.clone());
            self.unseen.push(missing);
        }
    }

    fn note(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
