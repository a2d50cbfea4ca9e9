//! What the owner of a lasting recording writes down for the next one: a map that only user space
//! reads and writes.
//!
//! ```text
//! 0      header: mark, layout, version, takeovers, last beat, store
//! 1024   places of interfaces, 128 bytes each: name, hook, geometry, whose it is
//! 12288  what is written: a record of the writer's thread
//! ...    the account of each interface: records of the thread that looks after the hooks
//! ...    the accounts of interfaces that have left their places: a record of the same thread
//! ```
//!
//! An interface has its place from the store of one word on, which says whose the place is, to the
//! store of another. What else stands at a place counts only in between. Interfaces come and go
//! while the writer goes on noting, so each that comes has a number of its own, and what is written
//! of a ring says of which interface.
//!
//! The first 12288 bytes have this form in every layout. What is behind them, and the maps that are
//! pinned beside the state, may change with the layout, but for this: how many packets wait in the
//! rings can always be told, by [`Counting`].
//!
//! A record is there twice. Its owner fills the copy that does not count and then makes it count by
//! one store, the number of the record. So whenever the owner dies, one copy is whole.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::ring::{PACKET_SHIFT, layout};

use crate::Hook;
use crate::interface::{Interface, NicCounters};
use crate::ring::Geometry;
use crate::sys::mapping::Mapping;
use crate::sys::pins;

/// The form of the state and of all that is pinned beside it. Another number is never read.
pub(crate) const LAYOUT: u32 = 4;
/// The first word of a state that is whole: "tapdeck" and a zero byte.
const MARK: u64 = u64::from_le_bytes(*b"tapdeck\0");
/// The same of a daemon's state, whose head is the same.
pub(super) const DAEMON: u64 = u64::from_le_bytes(*b"tapdecks");

const AT_LAYOUT: usize = 8;
const AT_INTERFACES: usize = 12;
const AT_VERSION: usize = 16;
const VERSION_BYTES: usize = 32;
const AT_TAKEOVERS: usize = 48;
const AT_BEAT: usize = 56;
const AT_STORE: usize = 64;
const STORE_BYTES: usize = 1024 - AT_STORE;
const AT_LIST: usize = 1024;
const ENTRY: usize = 128;
const NAME_BYTES: usize = 16;
/// Where an interface's [`Counting`] is, behind name, hook, geometry and what programs were told.
const AT_COUNTING: usize = 64;
/// Where a place says whose it is: the interface's number times two, plus one while it has that.
const AT_WHOSE: usize = 88;
/// The number of its first ring, and what else pcapng says of it: its link type, its MAC address,
/// which a mark follows where it has one, and its kind.
const AT_FIRST: usize = 96;
const AT_LINK: usize = 100;
const AT_MAC: usize = 104;
const AT_KIND: usize = 112;
const HAS_MAC: u64 = 1 << 48;
pub(super) const HEAD: usize = 12288;
/// The most interfaces of one lasting recording.
pub(crate) const MOST_INTERFACES: usize = (HEAD - AT_LIST) / ENTRY;
/// The numbers that there are for their rings.
pub const MOST_RINGS: usize = 4096;

/// Words of a record of what is written: the live segment's number plus one (0: none) and its
/// length, then these of each ring.
const WRITTEN: usize = 2;
const OF_RING: usize = 5;
/// Words of an interface's account.
pub(crate) const ACCOUNT: usize = 32;
/// Words of the accounts of interfaces that have left: of each place whose it was whose account is
/// among them, how many there are, and these of each.
const PAST: usize = MOST_INTERFACES + 1 + MOST_PAST * OF_PAST;
const PAST_TEXT: usize = 4;
const PAST_COUNTERS: usize = 20;
const OF_PAST: usize = 2 * PAST_TEXT + PAST_COUNTERS;
/// The most accounts of interfaces that have left.
pub const MOST_PAST: usize = 257;

/// An interface of a lasting recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) hook: Hook,
    pub(crate) geometry: Geometry,
    /// A hash of what the attached programs were told.
    pub(crate) told: u64,
    /// The number of its first ring among those of all interfaces.
    pub(crate) first: u32,
    /// The number of the interface among those that ever came.
    pub(crate) number: u32,
    pub(crate) link: LinkType,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) kind: Option<String>,
}

impl Entry {
    /// Returns the numbers of its rings.
    pub(crate) fn rings(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first + self.geometry.nrings as usize
    }

    /// Returns the interface as its owner knew it, where it is not there.
    pub(crate) fn interface(&self, index: u32, counters: NicCounters) -> Interface {
        Interface {
            name: self.name.clone(),
            index,
            link: Some(self.link),
            arphrd: 0,
            up: false,
            running: false,
            mtu: 0,
            mac: self.mac,
            rx_queues: self.geometry.nrings,
            kind: self.kind.clone(),
            counters,
        }
    }
}

/// The account of an interface that has left its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastAccount {
    pub name: String,
    pub hook: String,
    pub counters: Vec<u64>,
}

/// Where the packets of an interface are counted, in bytes: `rings` is a map of rings, in each of
/// which every slot has a word of 64 bits; `noted` has one word for each slot, ring by ring. What
/// the first word is beyond the second, shifted, is how many packets wait in the slot's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counting {
    pub(crate) rings: usize,
    pub(crate) stride: usize,
    pub(crate) first: usize,
    pub(crate) slots: usize,
    pub(crate) step: usize,
    pub(crate) shift: u32,
}

impl Counting {
    const WORDS: usize = 6;

    fn of(geometry: &Geometry) -> [u32; Self::WORDS] {
        let (stride, first) = (geometry.ring_stride() as u32, layout::RING as u32);
        let step = layout::BLOCK as u32;
        [geometry.nrings, stride, first, geometry.nblocks, step, PACKET_SHIFT]
    }

    fn from(words: [u32; Self::WORDS]) -> Option<Self> {
        let [rings, stride, first, slots, step] =
            std::array::from_fn(|n| usize::try_from(words[n]).unwrap_or(usize::MAX));
        let shift = words[5];
        let aligned = [stride, first, step].iter().all(|n| n.is_multiple_of(8));
        let fits = slots.checked_mul(step)?.checked_add(first)? <= stride;
        let is_sound = aligned && fits && rings.checked_mul(stride)? <= 1 << 32 && shift < 64;
        is_sound.then_some(Self { rings, stride, first, slots, step, shift })
    }

    /// Counts the packets that wait, by the maps `rings` and `noted`.
    pub(crate) fn count(self, rings: &Mapping, noted: &Mapping) -> u64 {
        let slot = |ring: usize, slot: usize| {
            let committed = rings.u64(ring * self.stride + self.first + slot * self.step);
            let noted = noted.u64((ring * self.slots + slot) * 8);
            committed.load(Acquire).wrapping_sub(noted.load(Acquire)) >> self.shift
        };
        (0..self.rings).flat_map(|ring| (0..self.slots).map(move |n| slot(ring, n))).sum()
    }
}

/// What is written of one ring's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingWritten {
    /// The number of the interface whose ring it is.
    pub interface: u32,
    /// The number of the next block to be dealt with.
    pub next: u32,
    /// Packets in the output, and bytes of their frames.
    pub packets: u64,
    pub frame_bytes: u64,
    /// Packets that could not be written.
    pub unwritten: u64,
    /// Losses that the statistics of closed segments tell.
    pub told_lost: u64,
}

/// What is written of a lasting recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number and length in bytes of the live segment, if there is one.
    pub segment: Option<(u64, u64)>,
    pub rings: Vec<RingWritten>,
}

/// A state in memory.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(super) memory: Arc<Mapping>,
}

/// Why a state cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// Nobody has finished making it.
    Unfinished,
    /// A layout that this version does not know, and the version that wrote it.
    Layout {
        layout: u32,
        version: String,
    },
    Damaged,
    /// A state of the other kind: of a daemon, or of a recorder.
    OtherKind,
    Io(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

pub(super) fn record_bytes(words: usize) -> usize {
    8 + 2 * words * 8
}

const WRITTEN_WORDS: usize = WRITTEN + MOST_RINGS * OF_RING;

/// Returns where the account of a place is; behind the last one is that of those that left.
fn at_account(place: usize) -> usize {
    HEAD + record_bytes(WRITTEN_WORDS) + place * record_bytes(ACCOUNT)
}

fn bytes() -> usize {
    at_account(MOST_INTERFACES) + record_bytes(PAST)
}

impl State {
    /// Makes a state at a path. It counts when [`State::finish`] was called.
    pub(crate) fn make(path: &Path, list: &[Entry]) -> io::Result<Self> {
        let len = bytes();
        let map = pins::memory(len)?;
        let memory = Arc::new(Mapping::of_fd(map.as_fd(), len, true)?);
        let state = Self { memory };
        state.set_list(list);
        pins::pin(map.as_fd(), path)?;
        Ok(state)
    }

    fn set_list(&self, list: &[Entry]) {
        self.set_layout();
        self.memory.u32(AT_INTERFACES).store(MOST_INTERFACES as u32, Relaxed);
        for (i, entry) in list.iter().enumerate() {
            self.set_entry(i, entry);
        }
    }

    /// Opens the head of the state at a path, which is the same in every layout.
    pub(crate) fn head(path: &Path) -> io::Result<Self> {
        let map = pins::open(path)?;
        Ok(Self { memory: Arc::new(Mapping::of_fd(map.as_fd(), HEAD, false)?) })
    }

    /// Opens the state at a path.
    pub(crate) fn open(path: &Path) -> Result<Self, Unreadable> {
        Self::head(path)?.check()?;
        let map = pins::open(path)?;
        Ok(Self { memory: Arc::new(Mapping::of_fd(map.as_fd(), bytes(), true)?) })
    }

    /// Refuses a head that makes no sense.
    fn check(&self) -> Result<(), Unreadable> {
        self.check_head(MARK)?;
        self.places().map(drop).ok_or(Unreadable::Damaged)
    }

    /// Refuses a state of another kind, or of another layout.
    pub(super) fn check_head(&self, mark: u64) -> Result<(), Unreadable> {
        let theirs = self.memory.u64(0).load(Acquire);
        if theirs != mark {
            let is_other = theirs == MARK || theirs == DAEMON;
            return Err(if is_other { Unreadable::OtherKind } else { Unreadable::Unfinished });
        }
        let layout = self.memory.u32(AT_LAYOUT).load(Relaxed);
        if layout != LAYOUT {
            return Err(Unreadable::Layout { layout, version: self.version() });
        }
        Ok(())
    }

    /// Takes note of the layout, before anything else is written.
    pub(super) fn set_layout(&self) {
        self.memory.u32(AT_LAYOUT).store(LAYOUT, Relaxed);
    }

    /// Takes note that all is there, or that another owner has taken it over.
    pub(crate) fn finish(&self, takeovers: u64) {
        self.finish_as(MARK, takeovers);
    }

    /// The same for a state of this kind.
    pub(super) fn finish_as(&self, mark: u64, takeovers: u64) {
        self.set_text(AT_VERSION, VERSION_BYTES, env!("CARGO_PKG_VERSION").as_bytes());
        self.memory.u64(AT_TAKEOVERS).store(takeovers, Relaxed);
        self.memory.u64(0).store(mark, Release);
    }

    /// Returns whether all is there: a recording has begun.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished_as(MARK)
    }

    /// The same for a state of this kind.
    pub(super) fn is_finished_as(&self, mark: u64) -> bool {
        self.memory.u64(0).load(Acquire) == mark
    }

    pub(crate) fn takeovers(&self) -> u64 {
        self.memory.u64(AT_TAKEOVERS).load(Relaxed)
    }

    pub(crate) fn version(&self) -> String {
        String::from_utf8_lossy(&self.text(AT_VERSION, VERSION_BYTES)).into_owned()
    }

    pub(crate) fn beat_ns(&self) -> u64 {
        self.memory.u64(AT_BEAT).load(Relaxed)
    }

    pub(crate) fn set_beat_ns(&self, ns: u64) {
        self.memory.u64(AT_BEAT).store(ns, Relaxed);
    }

    /// Returns the store that the live segment is in.
    pub(crate) fn store(&self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt as _;
        std::ffi::OsString::from_vec(self.text(AT_STORE, STORE_BYTES)).into()
    }

    /// Takes note of the store. Returns false where its name is too long.
    pub(crate) fn set_store(&self, dir: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt as _;
        let name = dir.as_os_str().as_bytes();
        let fits = name.len() < STORE_BYTES;
        if fits {
            self.set_text(AT_STORE, STORE_BYTES, name);
        }
        fits
    }

    /// Returns the interfaces that have a place, with its number, in the order of their rings;
    /// `None` where they make no sense.
    fn places(&self) -> Option<Vec<(usize, Entry)>> {
        let its = (0..MOST_INTERFACES).filter(|i| self.whose(*i) & 1 == 1);
        let mut list = its.map(|i| Some((i, self.entry(i)?))).collect::<Option<Vec<_>>>()?;
        list.sort_by_key(|(_, entry)| entry.first);
        let mut end = 0;
        for (_, entry) in &list {
            let rings = entry.rings();
            (rings.start >= end && rings.end <= MOST_RINGS).then_some(())?;
            end = rings.end;
        }
        Some(list)
    }

    /// Returns the interfaces that have a place and whose account is not among those that left, as
    /// [`State::places`] does.
    pub(crate) fn list(&self) -> Option<Vec<(usize, Entry)>> {
        let left = self.past().read();
        let has_left = |i: usize| left.as_ref().is_some_and(|left| left[i] == self.whose(i));
        let mut list = self.places()?;
        list.retain(|(i, _)| !has_left(*i));
        Some(list)
    }

    fn whose(&self, i: usize) -> u64 {
        self.memory.u64(AT_LIST + i * ENTRY + AT_WHOSE).load(Acquire)
    }

    fn set_whose(&self, i: usize, whose: u64) {
        self.memory.u64(AT_LIST + i * ENTRY + AT_WHOSE).store(whose, Release);
    }

    /// Returns a place that nobody has, if there is one, and a number for who gets it.
    pub(crate) fn free(&self) -> Option<(usize, u32)> {
        let place = (0..MOST_INTERFACES).find(|i| self.whose(*i) & 1 == 0)?;
        let last = (0..MOST_INTERFACES).map(|i| self.whose(i) >> 1).max().unwrap_or(0);
        Some((place, u32::try_from(last + 1).ok()?))
    }

    fn entry(&self, i: usize) -> Option<Entry> {
        let at = AT_LIST + i * ENTRY;
        let word = |n: usize| self.memory.u32(at + 2 * NAME_BYTES + n * 4).load(Relaxed);
        let geometry =
            Geometry { nrings: word(0), nblocks: word(1), block_shift: word(2), snaplen: word(3) };
        let hook = self.text(at + NAME_BYTES, NAME_BYTES);
        geometry.is_sound().then_some(())?;
        let mac = self.memory.u64(at + AT_MAC).load(Relaxed);
        let kind = String::from_utf8(self.text(at + AT_KIND, NAME_BYTES)).ok()?;
        Some(Entry {
            name: String::from_utf8(self.text(at, NAME_BYTES)).ok()?,
            hook: Hook::named(std::str::from_utf8(&hook).ok()?)?,
            geometry,
            told: self.memory.u64(at + 2 * NAME_BYTES + 24).load(Relaxed),
            first: self.memory.u32(at + AT_FIRST).load(Relaxed),
            number: u32::try_from(self.whose(i) >> 1).ok()?,
            link: LinkType(u16::try_from(self.memory.u32(at + AT_LINK).load(Relaxed)).ok()?),
            mac: (mac & HAS_MAC != 0).then(|| std::array::from_fn(|n| (mac >> (8 * n)) as u8)),
            kind: (!kind.is_empty()).then_some(kind),
        })
    }

    /// Gives a place to an interface, or notes what is known of it anew.
    pub(crate) fn set_entry(&self, i: usize, entry: &Entry) {
        let at = AT_LIST + i * ENTRY;
        self.set_text(at, NAME_BYTES, entry.name.as_bytes());
        self.set_text(at + NAME_BYTES, NAME_BYTES, entry.hook.name().as_bytes());
        let g = &entry.geometry;
        // A word that has no meaning follows.
        let words = [g.nrings, g.nblocks, g.block_shift, g.snaplen, 0];
        for (n, word) in words.into_iter().enumerate() {
            self.memory.u32(at + 2 * NAME_BYTES + n * 4).store(word, Relaxed);
        }
        self.memory.u64(at + 2 * NAME_BYTES + 24).store(entry.told, Relaxed);
        self.set_counting(i, Counting::of(g));
        self.memory.u32(at + AT_FIRST).store(entry.first, Relaxed);
        self.memory.u32(at + AT_LINK).store(u32::from(entry.link.0), Relaxed);
        let mac = entry.mac.map_or(0, |mac| {
            mac.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)) | HAS_MAC
        });
        self.memory.u64(at + AT_MAC).store(mac, Relaxed);
        let kind = entry.kind.as_deref().unwrap_or_default().as_bytes();
        self.set_text(at + AT_KIND, NAME_BYTES, &kind[..kind.len().min(NAME_BYTES)]);
        self.set_whose(i, u64::from(entry.number) << 1 | 1);
    }

    /// Takes a place from its interface, whose account is among these from now on.
    pub(crate) fn leave(&self, i: usize, past: &[PastAccount]) {
        let record = self.past();
        let mut left: Vec<u64> = record.read().unwrap_or_default();
        left.resize(MOST_INTERFACES, 0);
        left[i] = self.whose(i);
        left.push(past.len() as u64);
        for account in past {
            for text in [&account.name, &account.hook] {
                left.extend(words_of(text.as_bytes(), PAST_TEXT));
            }
            let counters = account.counters.iter().copied().chain(std::iter::repeat(0));
            left.extend(counters.take(PAST_COUNTERS));
        }
        record.write(left);
        self.vacate(i);
    }

    /// Takes the places from interfaces that have left them.
    pub(crate) fn vacate_those_left(&self) {
        let left = self.past().read().unwrap_or_default();
        for (i, _) in left.iter().enumerate().take(MOST_INTERFACES) {
            if self.whose(i) & 1 == 1 && left[i] == self.whose(i) {
                self.vacate(i);
            }
        }
    }

    fn vacate(&self, i: usize) {
        self.set_whose(i, self.whose(i) & !1);
        self.set_counting(i, [0; Counting::WORDS]);
    }

    /// Returns the accounts of interfaces that have left their places.
    pub(crate) fn past_accounts(&self) -> Vec<PastAccount> {
        let words = self.past().read().unwrap_or_default();
        let count = words.get(MOST_INTERFACES).map_or(0, |count| *count as usize);
        let all = words.get(MOST_INTERFACES + 1..).unwrap_or_default();
        let text = |words: &[u64]| String::from_utf8_lossy(&text_of(words)).into_owned();
        let account = |words: &[u64]| PastAccount {
            name: text(&words[..PAST_TEXT]),
            hook: text(&words[PAST_TEXT..2 * PAST_TEXT]),
            counters: words[2 * PAST_TEXT..].to_vec(),
        };
        all.chunks_exact(OF_PAST).take(count).map(account).collect()
    }

    fn past(&self) -> Record {
        let at = at_account(MOST_INTERFACES);
        Record { memory: self.memory.clone(), at, words: PAST }
    }

    fn set_counting(&self, i: usize, words: [u32; Counting::WORDS]) {
        let at = AT_LIST + i * ENTRY + AT_COUNTING;
        for (n, word) in words.into_iter().enumerate() {
            self.memory.u32(at + n * 4).store(word, Relaxed);
        }
    }

    /// Returns where packets are counted, of each place that has an interface, in whatever layout;
    /// `None` where that makes no sense.
    pub(crate) fn counting(&self) -> Option<Vec<(usize, Counting)>> {
        let count = self.memory.u32(AT_INTERFACES).load(Relaxed) as usize;
        let word = |at: usize| self.memory.u32(at).load(Relaxed);
        let of = |i: usize| {
            let at = AT_LIST + i * ENTRY + AT_COUNTING;
            Some((i, Counting::from(std::array::from_fn(|n| word(at + n * 4)))?))
        };
        let all: Option<Vec<_>> =
            (count <= MOST_INTERFACES).then(|| (0..count).map(of).collect()).flatten();
        all.map(|all| all.into_iter().filter(|(_, counting)| counting.rings > 0).collect())
    }

    pub(crate) fn written(&self) -> WrittenRecord {
        let record = Record { memory: self.memory.clone(), at: HEAD, words: WRITTEN_WORDS };
        WrittenRecord { record, state: self.clone() }
    }

    /// Returns the record of a place's account.
    pub(crate) fn account(&self, i: usize) -> Record {
        Record { memory: self.memory.clone(), at: at_account(i), words: ACCOUNT }
    }

    fn text(&self, at: usize, len: usize) -> Vec<u8> {
        let words = (0..len / 8).map(|n| self.memory.u64(at + n * 8).load(Relaxed));
        text_of(&words.collect::<Vec<_>>())
    }

    fn set_text(&self, at: usize, len: usize, text: &[u8]) {
        for (n, word) in words_of(text, len / 8).enumerate() {
            self.memory.u64(at + n * 8).store(word, Relaxed);
        }
    }
}

/// Returns a text as so many words; what does not fit is left out.
fn words_of(text: &[u8], words: usize) -> impl Iterator<Item = u64> {
    (0..words).map(|n| {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(text.iter().skip(n * 8)) {
            *to = *from;
        }
        u64::from_ne_bytes(word)
    })
}

fn text_of(words: &[u64]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take_while(|byte| *byte != 0).collect()
}

/// A record of words, of which always one copy is whole.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) memory: Arc<Mapping>,
    pub(super) at: usize,
    pub(super) words: usize,
}

impl Record {
    fn copy(&self, number: u64) -> usize {
        self.at + 8 + (number % 2) as usize * self.words * 8
    }

    /// Returns the words that count; `None` where none were ever written.
    pub(crate) fn read(&self) -> Option<Vec<u64>> {
        let number = self.memory.u64(self.at).load(Acquire);
        let copy = self.copy(number);
        let word = |n: usize| self.memory.u64(copy + n * 8).load(Relaxed);
        (number > 0).then(|| (0..self.words).map(word).collect())
    }

    /// Replaces the words, at once.
    pub(crate) fn write(&self, words: impl IntoIterator<Item = u64>) {
        let number = self.memory.u64(self.at).load(Relaxed) + 1;
        let copy = self.copy(number);
        for (n, word) in words.into_iter().take(self.words).enumerate() {
            self.memory.u64(copy + n * 8).store(word, Relaxed);
        }
        self.memory.u64(self.at).store(number, Release);
    }
}

/// The record of what is written, which the writer's thread keeps.
#[derive(Clone, Debug)]
pub struct WrittenRecord {
    record: Record,
    state: State,
}

impl WrittenRecord {
    /// Returns what is written of the rings of the interfaces that have places, up to the last one;
    /// nothing of a ring of which nothing was ever noted.
    pub fn read(&self) -> Written {
        let list = self.state.list().unwrap_or_default();
        let end = list.last().map_or(0, |(_, entry)| entry.rings().end);
        let mut rings = vec![RingWritten::default(); end];
        let words = self.record.read().unwrap_or_else(|| vec![0; WRITTEN_WORDS]);
        for (_, entry) in &list {
            for id in entry.rings() {
                rings[id] = ring_of(&words[WRITTEN + id * OF_RING..], entry.number);
            }
        }
        Written { segment: words[0].checked_sub(1).map(|number| (number, words[1])), rings }
    }

    /// Returns what is written of a ring that has just come.
    pub fn nothing_of(&self, ring: u32) -> RingWritten {
        let list = self.state.list().unwrap_or_default();
        let its = list.iter().find(|(_, entry)| entry.rings().contains(&(ring as usize)));
        let interface = its.map_or(0, |(_, entry)| entry.number);
        RingWritten { interface, ..RingWritten::default() }
    }

    /// Replaces what is written, at once.
    pub fn write(&self, segment: Option<(u64, u64)>, rings: &[RingWritten]) {
        let (number, len) = segment.map_or((0, 0), |(number, len)| (number + 1, len));
        let of = |ring: &RingWritten| {
            let next = u64::from(ring.interface) << 32 | u64::from(ring.next);
            [next, ring.packets, ring.frame_bytes, ring.unwritten, ring.told_lost]
        };
        self.record.write([number, len].into_iter().chain(rings.iter().flat_map(of)));
    }
}

/// Reads what is written of a ring of the interface of this number. What was noted of another one's
/// is nothing of this one's.
fn ring_of(words: &[u64], interface: u32) -> RingWritten {
    if words[0] >> 32 != u64::from(interface) {
        return RingWritten { interface, ..RingWritten::default() };
    }
    RingWritten {
        interface,
        next: words[0] as u32,
        packets: words[1],
        frame_bytes: words[2],
        unwritten: words[3],
        told_lost: words[4],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use super::{
        AT_LAYOUT, AT_LIST, Counting, Entry, LAYOUT, LinkType, NAME_BYTES, PACKET_SHIFT,
        PastAccount, RingWritten, State, Unreadable, bytes,
    };
    use crate::Hook;
    use crate::ring::Geometry;
    use crate::sys::mapping::Mapping;

    fn entry(name: &str, hook: Hook, first: u32, number: u32) -> Entry {
        Entry {
            name: name.into(),
            hook,
            geometry: Geometry { nrings: 2, nblocks: 4, block_shift: 16, snaplen: 1024 },
            told: 7,
            first,
            number,
            link: LinkType::ETHERNET,
            mac: (number == 0).then_some([1, 2, 3, 4, 5, 255]),
            kind: (number == 0).then(|| "veth".to_owned()),
        }
    }

    fn state() -> State {
        let list =
            [entry("eth0", Hook::Xdp, 0, 0), entry("fifteen-letters", Hook::Netfilter, 2, 0)];
        let memory = Mapping::anonymous(bytes()).expect("memory");
        let state = State { memory: Arc::new(memory) };
        state.set_list(&list);
        assert!(matches!(state.check(), Err(Unreadable::Unfinished)));
        state.finish(3);
        assert!(state.check().is_ok());
        assert_eq!(state.list(), Some((0..).zip(list).collect()));
        state
    }

    fn names(state: &State) -> Vec<String> {
        state.list().expect("sound").into_iter().map(|(_, entry)| entry.name).collect()
    }

    #[test]
    fn an_interface_has_its_place_from_one_store_to_another() {
        let state = state();
        let record = state.written();
        let ring = |interface, next| RingWritten { interface, next, ..RingWritten::default() };
        record.write(None, &[ring(0, 1), ring(0, 2), ring(0, 3), ring(0, 4)]);
        assert_eq!(state.free(), Some((2, 1)));
        state.set_entry(2, &entry("eth1", Hook::Tcx, 4, 1));
        // The writer has noted nothing of its rings yet.
        let of_late = |rings: &[RingWritten]| rings[4..].to_vec();
        assert_eq!(of_late(&record.read().rings), [ring(1, 0), ring(1, 0)]);
        assert_eq!(record.nothing_of(5), ring(1, 0));
        let with = |a, b| [ring(0, 1), ring(0, 2), ring(0, 3), ring(0, 4), a, b];
        record.write(None, &with(ring(1, 8), ring(1, 9)));
        assert_eq!(of_late(&record.read().rings), [ring(1, 8), ring(1, 9)]);

        let left = PastAccount {
            name: "others that are gone, or eth1".into(),
            hook: "tcx".into(),
            counters: (0..20).collect(),
        };
        assert!(state.past_accounts().is_empty());
        // An owner that dies between two stores has its account among those that left.
        let whose = state.whose(2);
        state.leave(2, std::slice::from_ref(&left));
        state.set_whose(2, whose);
        assert_eq!(names(&state), ["eth0", "fifteen-letters"]);
        assert_eq!(state.past_accounts(), std::slice::from_ref(&left));
        assert_eq!(state.free(), Some((3, 2)));
        state.vacate_those_left();
        assert_eq!(state.free(), Some((2, 2)));
        assert_eq!(record.read().rings.len(), 4);

        // Who gets the place and the rings has nothing of those before.
        state.set_entry(2, &entry("eth2", Hook::Tcx, 4, 2));
        assert_eq!(names(&state), ["eth0", "fifteen-letters", "eth2"]);
        assert_eq!(of_late(&record.read().rings), [ring(2, 0), ring(2, 0)]);
        assert_eq!(state.past_accounts(), [left]);
        assert_eq!(state.counting().map(|all| all.len()), Some(3));
        state.leave(2, &[]);
        assert_eq!(state.counting().map(|all| all.len()), Some(2));
        state.set_entry(2, &entry("eth3", Hook::Tcx, 3, 3));
        assert!(matches!(state.check(), Err(Unreadable::Damaged)), "two have one ring");
    }

    #[test]
    fn another_layout_is_refused_by_its_version() {
        let state = state();
        assert_eq!(state.takeovers(), 3);
        state.memory.u32(AT_LAYOUT).store(LAYOUT + 1, Relaxed);
        let Err(Unreadable::Layout { layout, version }) = state.check() else {
            panic!("it is read")
        };
        assert_eq!((layout, version.as_str()), (LAYOUT + 1, env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn what_waits_is_counted_in_every_layout() {
        let state = state();
        state.memory.u32(AT_LAYOUT).store(LAYOUT + 1, Relaxed);
        let counting: [_; 2] = state.counting().and_then(|all| all.try_into().ok()).expect("two");
        let counting = counting.map(|(_, counting)| counting);
        let rings = Mapping::anonymous(counting[0].rings * counting[0].stride).expect("memory");
        let noted = Mapping::anonymous(counting[0].rings * counting[0].slots * 8).expect("memory");
        assert_eq!(counting[0].count(&rings, &noted), 0);
        // The second ring's last slot: 9 packets were committed there, and 5 of them dealt with.
        let last = counting[0].stride * 2 - counting[0].step;
        rings.u64(last).store((9 << PACKET_SHIFT) + 77, Relaxed);
        noted.u64(7 * 8).store(5 << PACKET_SHIFT, Relaxed);
        assert_eq!(counting[0].count(&rings, &noted), 4);
    }

    #[test]
    fn a_place_of_counters_that_makes_no_sense_is_none() {
        let sound = Counting::of(&Geometry { nrings: 2, nblocks: 4, block_shift: 16, snaplen: 96 });
        assert!(Counting::from(sound).is_some());
        for (word, value) in [(0, u32::MAX), (1, 12), (2, 4), (3, 5), (4, 2), (5, 64)] {
            let mut words = sound;
            words[word] = value;
            assert_eq!(Counting::from(words), None, "word {word}");
        }
    }

    #[test]
    fn a_geometry_that_makes_no_sense_is_refused() {
        // nrings, nblocks, block_shift, snaplen
        for (word, value) in [(0, 0), (0, 129), (1, 3), (2, 15), (2, 40), (3, 0), (3, 1 << 30)] {
            let state = state();
            state.memory.u32(AT_LIST + 2 * NAME_BYTES + word * 4).store(value, Relaxed);
            assert!(matches!(state.check(), Err(Unreadable::Damaged)), "{word} {value}");
        }
    }

    #[test]
    fn what_is_written_counts_at_once_or_not() {
        let state = state();
        let record = state.written();
        assert_eq!(record.read().rings, vec![RingWritten::default(); 4]);
        let ring = |n: u64| RingWritten {
            interface: 0,
            next: n as u32,
            packets: n + 1,
            frame_bytes: n + 2,
            unwritten: n + 3,
            told_lost: n + 4,
        };
        let rings = [ring(10), ring(20), ring(30), ring(u64::from(u32::MAX))];
        record.write(Some((0, 4096)), &rings);
        let written = record.read();
        assert_eq!((written.segment, &written.rings[..]), (Some((0, 4096)), &rings[..]));
        // An owner that dies while it fills the other copy.
        let copy = record.record.copy(2);
        state.memory.u64(copy + 8).store(99, Relaxed);
        assert_eq!(record.read(), written);
        record.write(None, &[ring(1); 4]);
        assert_eq!((record.read().segment, record.read().rings), (None, vec![ring(1); 4]));
        state.account(1).write([5, 6]);
        assert_eq!(state.account(1).read().map(|words| words[..3].to_vec()), Some(vec![5, 6, 0]));
        assert_eq!(state.account(0).read(), None);
        assert!(
            state.set_store(Path::new("/var/tape"))
                && !state.set_store(Path::new(&"x".repeat(999)))
        );
        assert_eq!(state.store(), Path::new("/var/tape"));
    }
}
