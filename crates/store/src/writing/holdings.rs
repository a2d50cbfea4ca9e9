//! What is in the store, and what of it is deleted? The closed segments, oldest first.
//!
//! Deleting is the one thing that a recorder cannot make good, so it is bounded by what no one else
//! can change: it does not outrun writing. Limits in bytes and segments keep to that by themselves,
//! as nothing but recording makes a store larger. Every other reason to delete reaches beyond the
//! store, and is held to the [`Allowance`]: in any span of time at most as many bytes go as are
//! written in it, and two segments more. Where others must have room, or the disk is full, a
//! segment goes for the room that it takes, and one that gives none back is the last for a while,
//! since more would give none either. Where age is the reason, it is not taken from the clock
//! ([`Ages`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use tapdeck_packet::watch::waiting_for_disk;

use crate::format::leftovers::GivenBack;
use crate::format::name::SegmentName;
use crate::format::segment::{first_packet_ns, last_packet_ns, packets_in};
use crate::format::store::Stored;
use crate::io::{Directory, Io};
use crate::writing::ages::Ages;
use crate::writing::indexer::Sizes;
use crate::writing::log::Log;
use crate::writing::retention::{Allowance, Retention};
use crate::writing::totals::Totals;

/// How long freed bytes may take to be free: some file systems free them in the background.
const FREEING: Duration = Duration::from_secs(1);
/// How long nothing is deleted for room after a segment gave none back, a segment that cannot be
/// deleted is passed over, and the user is not told the same again.
const AGAIN: Duration = Duration::from_secs(60);

/// What will be written besides the closed segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead {
    /// Bytes of segments that are written or set aside, and of their indexes.
    pub bytes: u64,
    /// Segments that are written, of which there is one at most.
    pub segments: u64,
    /// Bytes of those that are not yet taken from the file system.
    pub untaken: u64,
}

/// What the holdings are made of.
pub(crate) struct Inventory {
    pub dir: PathBuf,
    pub segment_bytes: u64,
    pub retention: Retention,
    /// Closed segments, oldest first, and those that an earlier recorder did not close.
    pub closed: Vec<Stored>,
    /// Which of them are left alone until they are given back.
    pub leftovers: Vec<SegmentName>,
    pub given_back: Arc<GivenBack>,
    pub ages: Ages,
    pub index_sizes: Arc<Sizes>,
    pub totals: Arc<Totals>,
    pub log: Log,
}

/// What keeps deleting from outrunning writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The reason itself: a limit to what was written.
    Limit,
    Allowance,
}

/// A closed segment.
struct Held {
    stored: Stored,
    /// When its last packet came, in store time; unknown of one that was found, until it matters.
    ended_ns: Option<i64>,
    /// When its first packet came, UTC; unknown until it matters.
    first_ns: Option<u64>,
    /// When it could not be deleted.
    refused: Option<Instant>,
    /// Whether it is a leftover that is still to be mended.
    is_leftover: bool,
}

/// Closed segments, and the way to delete them.
pub(crate) struct Holdings<I> {
    io: Arc<I>,
    dir: PathBuf,
    retention: Retention,
    closed: Vec<Held>,
    ages: Ages,
    allowance: Allowance,
    /// Bytes that were written and that `Totals` does not count: statistics and indexes.
    written_besides: u64,
    /// Whether the segment that is written has no space of its own set aside.
    pub writing_takes_room: bool,
    /// When a segment was deleted for its room in vain.
    in_vain: Option<Instant>,
    /// When the user was told last why nothing is deleted.
    told: Option<Instant>,
    given_back: Arc<GivenBack>,
    index_sizes: Arc<Sizes>,
    totals: Arc<Totals>,
    log: Log,
}

impl<I: Io> Holdings<I> {
    pub fn new(io: Arc<I>, inventory: Inventory) -> Self {
        let Inventory {
            dir, retention, closed, ages, given_back, index_sizes, totals, log, ..
        } = inventory;
        let Inventory { segment_bytes, leftovers, .. } = inventory;
        let mut allowance = Allowance::new(segment_bytes, totals.bytes_written.load(Relaxed));
        let hold = |stored: Stored| {
            allowance.know(stored.bytes_in_all());
            let is_leftover = leftovers.contains(&stored.name);
            Held { stored, ended_ns: None, first_ns: None, refused: None, is_leftover }
        };
        let closed = closed.into_iter().map(hold).collect();
        Self {
            io,
            dir,
            retention,
            closed,
            ages,
            allowance,
            written_besides: 0,
            writing_takes_room: false,
            in_vain: None,
            told: None,
            given_back,
            index_sizes,
            totals,
            log,
        }
    }

    /// Deletes what the store holds beyond its limits when it is opened, and tells if more shall
    /// stay free than ever can.
    pub fn settle_in(&mut self, ahead: Ahead) {
        self.note_stored();
        if !self.retention.deletes() {
            return;
        }
        while self.is_too_large(ahead) && self.delete_oldest(Bound::Limit).is_some() {}
        let held: u64 = self.closed.iter().map(|held| held.stored.bytes_in_all()).sum();
        if let Ok(mut space) = self.io.space(&self.dir) {
            space.free = space.free.saturating_add(held);
            if self.retention.lacks_room(space, ahead.untaken) {
                (self.log)(
                    "more is to stay free (--min-free) than would be without any segment: others use the rest of the disk; the oldest segments go as new ones are written, until others give room back",
                );
            }
        }
        self.note_stored();
    }

    /// Keeps so much from now on.
    pub fn retain(&mut self, retention: Retention) {
        self.retention = retention;
        self.in_vain = None;
    }

    /// Takes in a segment that was closed, of which `counted` bytes are in `Totals` as written.
    /// Its last packet was written at `ended`, told as time since the machine's start.
    pub fn add(&mut self, stored: Stored, counted: u64, ended: Duration) {
        self.written_besides += stored.bytes.saturating_sub(counted);
        self.allowance.know(stored.bytes_in_all());
        let ended_ns = Some(self.ages.at(ended));
        self.closed.push(Held {
            stored,
            ended_ns,
            first_ns: None,
            refused: None,
            is_leftover: false,
        });
    }

    /// Takes note that a segment begins.
    pub fn begin(&mut self, number: u64, utc_ns: u64) {
        let utc_ns = i64::try_from(utc_ns).unwrap_or(i64::MAX);
        if let Err(e) = waiting_for_disk(|| self.ages.begin(number, utc_ns)) {
            self.tell_at_times(&format!(
                "cannot note that the clock was set: {e}; a later recorder may take segments for older or younger than they are"
            ));
        }
    }

    /// Deletes what retention lets go.
    pub fn tidy(&mut self, ahead: Ahead) {
        self.take_given_back();
        let indexes = self.count_indexes();
        let ahead = Ahead { bytes: ahead.bytes + indexes, ..ahead };
        if self.retention.deletes() {
            while self.is_too_large(ahead) && self.delete_oldest(Bound::Limit).is_some() {}
            while self.has_too_old() && self.delete_oldest(Bound::Allowance).is_some() {}
            while self.lacks_room(ahead) && self.make_room() {}
        }
        self.note_stored();
    }

    /// Deletes the oldest segment if less than so many bytes are free, as the disk is full.
    pub fn make_room_for(&mut self, bytes: u64) {
        let short = self.io.space(&self.dir).is_ok_and(|s| s.free < bytes);
        if !short {
            self.found_room();
        } else if self.make_room() {
            self.note_stored();
        }
    }

    /// Takes in what became of leftovers.
    fn take_given_back(&mut self) {
        for (name, found) in self.given_back.take() {
            let Some(at) = self.closed.iter().position(|held| held.stored.name == name) else {
                continue;
            };
            let Some(stored) = found else {
                self.closed.remove(at);
                continue;
            };
            self.allowance.know(stored.bytes_in_all());
            self.closed[at] =
                Held { stored, ended_ns: None, first_ns: None, refused: None, is_leftover: false };
        }
    }

    /// Takes note that there is room on the disk again.
    pub fn found_room(&mut self) {
        self.in_vain = None;
    }

    /// Deletes the oldest segment for the room that it takes. Returns false where none may go, or
    /// where that gave no room back.
    pub fn make_room(&mut self) -> bool {
        self.take_given_back();
        if !self.retention.deletes() || self.in_vain.is_some_and(|since| since.elapsed() < AGAIN) {
            return false;
        }
        let free = |this: &Self| {
            let taken = if this.writing_takes_room { this.written() } else { 0 };
            Some(this.io.space(&this.dir).ok()?.free + taken)
        };
        let Some(before) = free(self) else { return false };
        let Some((name, bytes)) = self.delete_oldest(Bound::Allowance) else {
            if self.oldest().is_some() {
                self.tell_at_times(
                    "too little room is free, whoever takes it, and of segments no more are deleted than are written: they go as new ones come",
                );
            }
            return false;
        };
        let since = Instant::now();
        let is_back = |this: &Self| free(this).is_some_and(|free| free >= before + bytes / 2);
        while !is_back(self) {
            if since.elapsed() > FREEING {
                self.in_vain = Some(Instant::now());
                (self.log)(&format!(
                    "{name} was deleted and gave no room back: another process holds it, a snapshot does, or others took the room at once; no more are deleted until there is room, or for a minute"
                ));
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn is_too_large(&self, ahead: Ahead) -> bool {
        let bytes: u64 = self.closed.iter().map(|held| held.stored.bytes_in_all()).sum();
        let segments = self.closed.len() as u64;
        self.retention.is_too_large(bytes + ahead.bytes, segments + ahead.segments)
    }

    /// Returns whether the oldest segment is too old. The newest never is, so that a recording
    /// that nothing follows stays.
    fn has_too_old(&mut self) -> bool {
        if self.retention.age.is_none() {
            return false;
        }
        let Some(at) = self.oldest().filter(|at| at + 1 < self.closed.len()) else { return false };
        let ended_ns = self.ended_ns(at);
        self.retention.is_too_old(self.ages.now_ns().saturating_sub(ended_ns))
    }

    /// Returns when the last packet of a segment came, in store time.
    fn ended_ns(&mut self, at: usize) -> i64 {
        if let Some(ended_ns) = self.closed[at].ended_ns {
            return ended_ns;
        }
        let name = &self.closed[at].stored.name;
        let last_ns = last_packet_ns(&Directory::new(&self.dir), name);
        let ended_ns = match last_ns {
            Some(last_ns) => self.ages.of_found(name.number, last_ns),
            // It ended before the next one began.
            None => self.closed.get(at + 1).map_or(i64::MAX, |next| {
                let next = &next.stored.name;
                self.ages.of_found(next.number, next.began_s.saturating_mul(1_000_000_000))
            }),
        };
        self.closed[at].ended_ns = Some(ended_ns);
        ended_ns
    }

    fn lacks_room(&self, ahead: Ahead) -> bool {
        let space = self.io.space(&self.dir);
        space.is_ok_and(|space| self.retention.lacks_room(space, ahead.untaken))
    }

    /// Bytes that were written in all.
    fn written(&self) -> u64 {
        self.totals.bytes_written.load(Relaxed) + self.written_besides
    }

    /// Returns which segment is the oldest that can be deleted, as far as is known.
    fn oldest(&self) -> Option<usize> {
        let can = |held: &Held| {
            !held.is_leftover && held.refused.is_none_or(|since| since.elapsed() >= AGAIN)
        };
        self.closed.iter().position(can)
    }

    /// Deletes the oldest segment, with its index. One that cannot be deleted stays and is passed
    /// over. Returns which it was, and how many bytes it took (none where somebody else had deleted
    /// it), or nothing where none can go, or none may as not enough was written.
    fn delete_oldest(&mut self, bound: Bound) -> Option<(SegmentName, u64)> {
        let written = self.written();
        self.allowance.wrote(written);
        while let Some(at) = self.oldest() {
            let (path, bytes) = {
                let stored = &self.closed[at].stored;
                (stored.name.path(&self.dir), stored.bytes_in_all())
            };
            if bound == Bound::Allowance && !self.allowance.allows(bytes) {
                return None;
            }
            let stored = &mut self.closed[at].stored;
            let count = || packets_in(&Directory::new(&self.dir), &stored.name);
            let packets = stored.packets.unwrap_or_else(count);
            stored.packets = Some(packets);
            let freed = match self.io.remove(&path) {
                Ok(()) => {
                    Totals::add(&self.totals.segments_deleted, 1);
                    Totals::add(&self.totals.packets_deleted, packets);
                    // In this order: a write that ends meanwhile is counted twice and not missed.
                    let in_flight = self.totals.bytes_in_flight.load(Acquire);
                    let counted = self.written();
                    self.allowance.spend(bytes, counted - written + in_flight);
                    bytes
                }
                // Somebody else deleted it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
                Err(e) => {
                    self.closed[at].refused = Some(Instant::now());
                    self.tell_at_times(&format!(
                        "cannot delete {}: {e}; it stays, and a younger one goes in its place",
                        path.display()
                    ));
                    continue;
                }
            };
            let Held { stored, .. } = self.closed.remove(at);
            for path in stored.name.index_paths(&self.dir) {
                // Most of these files are not there; one that stays goes when the store is opened
                // again.
                let _ = self.io.remove(&path);
            }
            self.index_sizes.forget(&stored.name);
            return Some((stored.name, freed));
        }
        None
    }

    /// Takes in how much the indexes of closed segments take. Returns how much those of others do.
    fn count_indexes(&mut self) -> u64 {
        let Self { closed, written_besides, allowance, .. } = self;
        self.index_sizes.take(|name, bytes| {
            let is_it = |held: &&mut Held| {
                let of = &held.stored.name;
                (of.number, of.began_s) == (name.number, name.began_s)
            };
            let Some(held) = closed.iter_mut().rev().find(is_it) else { return false };
            *written_besides += bytes.saturating_sub(held.stored.index_bytes);
            held.stored.index_bytes = bytes;
            allowance.know(held.stored.bytes_in_all());
            true
        })
    }

    fn note_stored(&mut self) {
        let others = self.count_indexes();
        let bytes = self.closed.iter().map(|held| held.stored.bytes_in_all()).sum();
        self.totals.bytes_stored.store(bytes, Relaxed);
        let index_bytes: u64 = self.closed.iter().map(|held| held.stored.index_bytes).sum();
        self.totals.index_bytes.store(others + index_bytes, Relaxed);
        let oldest_ns = self.oldest_packet_ns();
        self.totals.oldest_closed_ns.store(oldest_ns, Relaxed);
    }

    /// Returns when the first packet of the oldest segment came, UTC, or where none can be read
    /// when that segment began; 0 without segments.
    fn oldest_packet_ns(&mut self) -> u64 {
        let dir = &self.dir;
        let Some(oldest) = self.closed.first_mut() else { return 0 };
        *oldest.first_ns.get_or_insert_with(|| {
            let name = &oldest.stored.name;
            let first_ns = waiting_for_disk(|| first_packet_ns(&Directory::new(dir), name));
            let ns = first_ns.unwrap_or(name.began_s.saturating_mul(1_000_000_000));
            u64::try_from(ns).unwrap_or(0)
        })
    }

    /// Tells the user why something is not as asked, at most once a minute.
    fn tell_at_times(&mut self, text: &str) {
        if self.told.is_none_or(|told| told.elapsed() >= AGAIN) {
            self.told = Some(Instant::now());
            (self.log)(text);
        }
    }
}
