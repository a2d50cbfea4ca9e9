//! A disk that fails as a seed says, and that watches what is done to it.
//!
//! It lies over the real one, so that what it lets through can be read back. Room on it is
//! counted here: a disk is full when the test's budget is used up. Whatever is done that must never
//! be is noted, and told by [`Faulty::violations`].
//!
//! Writes of segments and of index files are counted apart, for different threads do them.

use std::collections::HashMap;
use std::io::{Error, IoSlice, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;
use tapdeck_store::SegmentName;
use tapdeck_store::io::{Disk, File, Io, PAGE, Space};
use tapdeck_testkit::SplitMix64;

/// How often what goes wrong, of a thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// A write takes some of its pages.
    pub short: u32,
    /// A write takes some of its bytes and ends inside a page.
    pub odd: u32,
    /// A write fails.
    pub write: u32,
    /// Of those, how many leave a part of the data behind.
    pub torn: u32,
    pub create: u32,
    pub preallocate: u32,
    pub rename: u32,
    pub sync: u32,
    pub sync_dir: u32,
    /// As `write`, of an index.
    pub index_write: u32,
    /// Cutting a file takes so long.
    pub cut_takes: Duration,
}

/// What is known of a file.
#[derive(Debug, Default)]
struct Known {
    path: PathBuf,
    /// How far calls said that they had written, in whole pages.
    written: u64,
    /// Bytes that it takes: written or set aside.
    takes: u64,
    /// A write failed since the file was last cut.
    torn: bool,
    /// A write failed for another reason than a full disk.
    broken: bool,
    removed: bool,
    /// Making it durable failed.
    unsynced: bool,
    /// Whether the file was there before, so that its contents may be written over.
    mended: bool,
    kind: Kind,
}

/// What is written, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Segment,
    IndexLog,
    /// An index that is not there yet: written in any order.
    IndexDraft,
}

impl Kind {
    fn of(path: &Path) -> Self {
        let name = path.to_str().unwrap_or_default();
        if name.ends_with(".index.new") {
            Self::IndexDraft
        } else if name.ends_with(".index.live") {
            Self::IndexLog
        } else {
            Self::Segment
        }
    }

    fn is_index(self) -> bool {
        self != Self::Segment
    }
}

/// What others do with the room that deleting gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    #[default]
    Leave,
    /// Others take the room at once.
    Take,
    /// Others take the room just before this program does, which has seen that it was free.
    TakeFirst,
    /// Others hold what is deleted, so that it gives no room.
    Hold,
    /// Others keep segments from being deleted.
    Refuse,
}

/// What a test planned for writes of one kind.
#[derive(Default)]
struct Plan {
    fail: Option<(u64, Errno)>,
    writes: u64,
    /// Writes from this one on wait.
    gate: Option<u64>,
    waiting: bool,
    /// Writes of so many bytes are done and do not come back.
    slow: Option<u64>,
    lingering: bool,
}

struct State {
    rng: SplitMix64,
    odds: Odds,
    files: Vec<Known>,
    by_path: HashMap<PathBuf, usize>,
    /// Bytes that the disk has; `None` for as many as one likes.
    budget: Option<u64>,
    space: Option<Space>,
    segments: Plan,
    indexes: Plan,
    others: Others,
    /// Names of segments that cannot be deleted.
    immutable: Vec<String>,
    /// The call of this number, from 1, that makes a segment durable fails.
    fail_sync: Option<(u64, Errno)>,
    syncs: u64,
    written: i128,
    deleted: i128,
    /// The least that `deleted` less `written` ever was.
    least: i128,
    /// The most that deleting outran writing in any span.
    outran: i128,
    violations: Vec<String>,
    removed: Vec<String>,
    usage_max: u64,
    used_max: u64,
    watched: Option<PathBuf>,
}

/// The disk; a clone is the same one.
#[derive(Clone)]
pub struct Faulty {
    disk: Disk,
    state: Arc<(Mutex<State>, Condvar)>,
}

/// A file of [`Faulty`].
pub struct FaultyFile {
    inner: <Disk as Io>::File,
    id: usize,
    on: Faulty,
}

fn errno<T>(e: Errno) -> Result<T> {
    Err(Error::from_raw_os_error(e.raw_os_error()))
}

impl State {
    fn chance(&mut self, of: fn(&Odds) -> u32) -> bool {
        let odds = of(&self.odds);
        self.rng.per_mille(odds)
    }

    fn plan(&mut self, is_index: bool) -> &mut Plan {
        if is_index { &mut self.indexes } else { &mut self.segments }
    }

    fn used(&self) -> u64 {
        let held = self.others == Others::Hold;
        self.files.iter().filter(|f| held || !f.removed).map(|f| f.takes).sum()
    }

    /// Lets others take the room that there is, if they do.
    fn take_room(&mut self, when: Others) {
        if self.others == when {
            self.budget = self.budget.map(|budget| budget.min(self.used()));
        }
    }

    fn count(&mut self, written: u64, deleted: u64) {
        self.written += i128::from(written);
        self.deleted += i128::from(deleted);
        let ahead = self.deleted - self.written;
        self.least = self.least.min(ahead);
        self.outran = self.outran.max(ahead - self.least);
    }

    fn violation(&mut self, id: usize, what: &str) {
        let line = format!("{}: {what}", self.files[id].path.display());
        self.violations.push(line);
    }

    /// How many of so many bytes at an offset there is room for.
    fn room(&self, id: usize, offset: u64, len: u64) -> u64 {
        let Some(budget) = self.budget else { return len };
        let free = budget.saturating_sub(self.used());
        let reach = self.files[id].takes.max(offset) + free;
        (reach.saturating_sub(offset) / PAGE as u64 * PAGE as u64).min(len)
    }

    fn check_write(&mut self, id: usize, pieces: &[IoSlice<'_>], offset: u64) {
        let aligned = |n: usize| n.is_multiple_of(PAGE);
        if !pieces.iter().all(|p| aligned(p.as_ptr() as usize) && aligned(p.len()))
            || !aligned(offset as usize)
        {
            self.violation(id, "a write that direct I/O cannot do");
        }
        let file = &self.files[id];
        let closed = file.path.extension().is_some_and(|e| e == "pcapng" || e == "index");
        let (written, torn, broken, mended) = (file.written, file.torn, file.broken, file.mended);
        if closed {
            self.violation(id, "written after it was closed");
        }
        if broken {
            self.violation(id, "written after an I/O error");
        }
        if mended || self.files[id].kind == Kind::IndexDraft {
            return;
        }
        if torn {
            self.violation(id, "written behind what is torn");
        }
        if offset < written {
            self.violation(id, "overwritten");
        }
        if offset > written {
            self.violation(id, "a hole");
        }
    }
}

impl Faulty {
    pub fn new(seed: u64, odds: Odds) -> Self {
        Self::over(Disk::new(false), seed, odds)
    }

    /// Nothing goes wrong by chance.
    pub fn sound() -> Self {
        Self::new(0, Odds::default())
    }

    pub fn over(disk: Disk, seed: u64, odds: Odds) -> Self {
        let state = State {
            rng: SplitMix64(seed),
            odds,
            files: Vec::new(),
            by_path: HashMap::new(),
            budget: None,
            space: None,
            segments: Plan::default(),
            indexes: Plan::default(),
            others: Others::Leave,
            immutable: Vec::new(),
            fail_sync: None,
            syncs: 0,
            written: 0,
            deleted: 0,
            least: 0,
            outran: 0,
            violations: Vec::new(),
            removed: Vec::new(),
            usage_max: 0,
            used_max: 0,
            watched: None,
        };
        Self { disk, state: Arc::new((Mutex::new(state), Condvar::new())) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// The disk has so many bytes from now on.
    #[must_use]
    pub fn with_budget(self, bytes: u64) -> Self {
        self.set_budget(bytes);
        self
    }

    pub fn set_budget(&self, bytes: u64) {
        self.lock().budget = Some(bytes);
    }

    /// What the file system tells of its room, whatever there is.
    pub fn tell_space(&self, space: Space) {
        self.lock().space = Some(space);
    }

    /// The write of this number, from 1, fails.
    pub fn fail_write(&self, number: u64, with: Errno) {
        self.lock().segments.fail = Some((number, with));
    }

    /// The write of this number, from 1, does not come back before [`Faulty::open_gate`].
    pub fn shut_gate(&self, number: u64) {
        self.lock().segments.gate = Some(number);
    }

    /// As [`Faulty::fail_write`], of index files.
    pub fn fail_index_write(&self, number: u64, with: Errno) {
        self.lock().indexes.fail = Some((number, with));
    }

    /// Writes of index files do not come back before [`Faulty::open_index_gate`].
    pub fn shut_index_gate(&self) {
        self.lock().indexes.gate = Some(0);
    }

    pub fn open_index_gate(&self) {
        let mut state = self.lock();
        state.indexes.gate = None;
        self.state.1.notify_all();
    }

    pub fn index_is_waiting(&self) -> bool {
        self.lock().indexes.waiting
    }

    pub fn is_waiting(&self) -> bool {
        self.lock().segments.waiting
    }

    /// Lets writes go on up to that of this number, or for ever.
    pub fn open_gate(&self, next: Option<u64>) {
        let mut state = self.lock();
        state.segments.gate = next;
        state.segments.waiting = false;
        self.state.1.notify_all();
    }

    /// Writes of so many bytes and more are done, and do not come back before
    /// [`Faulty::bring_back`].
    pub fn hold_back(&self, bytes: u64) {
        self.lock().segments.slow = Some(bytes);
    }

    /// Returns whether a write is done that does not come back.
    pub fn is_lingering(&self) -> bool {
        self.lock().segments.lingering
    }

    pub fn bring_back(&self) {
        self.lock().segments.slow = None;
        self.state.1.notify_all();
    }

    /// From now on others do this with room that becomes free.
    pub fn set_others(&self, others: Others) {
        let mut state = self.lock();
        state.others = others;
        state.take_room(Others::Take);
    }

    /// A segment of this name cannot be deleted from now on.
    pub fn make_immutable(&self, name: &str) {
        self.lock().immutable.push(name.to_owned());
    }

    /// The call of this number, from 1, that makes a segment durable fails.
    pub fn fail_sync(&self, number: u64, with: Errno) {
        self.lock().fail_sync = Some((number, with));
    }

    /// As [`Faulty::fail_sync`], of the next such call.
    pub fn fail_next_sync(&self, with: Errno) {
        let mut state = self.lock();
        state.fail_sync = Some((state.syncs + 1, with));
    }

    /// Returns the segments that could not be made durable, by the names that they have.
    pub fn unsynced(&self) -> Vec<String> {
        let state = self.lock();
        let files = state.files.iter().filter(|f| f.unsynced && f.kind == Kind::Segment);
        files.map(|f| f.path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// Returns by how many bytes deleting outran writing at most in any span.
    pub fn outran(&self) -> u64 {
        self.lock().outran as u64
    }

    pub fn writes(&self) -> u64 {
        self.lock().segments.writes
    }

    /// Bytes that files take or have set aside.
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// What was done that must never be.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Segments that were deleted, in that order.
    pub fn removed(&self) -> Vec<String> {
        self.lock().removed.clone()
    }

    /// From now on measures what a directory takes on the real disk after every call.
    pub fn watch(&self, dir: &Path) {
        self.lock().watched = Some(dir.to_owned());
    }

    pub fn usage_max(&self) -> u64 {
        self.lock().usage_max
    }

    /// The most that [`Faulty::used`] ever was.
    pub fn used_max(&self) -> u64 {
        self.lock().used_max
    }

    fn measure(&self) {
        let mut state = self.lock();
        state.used_max = state.used_max.max(state.used());
        if let Some(dir) = state.watched.clone() {
            state.usage_max = state.usage_max.max(super::disk_usage(&dir));
        }
    }
}

impl Io for Faulty {
    type File = FaultyFile;

    fn create(&self, path: &Path) -> Result<FaultyFile> {
        if self.lock().chance(|o| o.create) {
            return errno(Errno::IO);
        }
        let inner = self.disk.create(path)?;
        let mut state = self.lock();
        let id = state.files.len();
        state.files.push(Known { path: path.to_owned(), kind: Kind::of(path), ..Known::default() });
        state.by_path.insert(path.to_owned(), id);
        Ok(FaultyFile { inner, id, on: self.clone() })
    }

    fn open(&self, path: &Path) -> Result<FaultyFile> {
        if self.lock().chance(|o| o.create) {
            return errno(Errno::IO);
        }
        let inner = self.disk.open(path)?;
        let takes = std::fs::metadata(path)?.len().next_multiple_of(PAGE as u64);
        let mut state = self.lock();
        let id = state.files.len();
        let known = Known {
            path: path.to_owned(),
            written: takes,
            takes,
            mended: true,
            ..Known::default()
        };
        state.files.push(known);
        // What is known of it from before counts no more.
        if let Some(before) = state.by_path.insert(path.to_owned(), id) {
            state.files[before].removed = true;
        }
        Ok(FaultyFile { inner, id, on: self.clone() })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.lock();
        if state.chance(|o| o.rename) {
            return errno(Errno::IO);
        }
        if to.exists() {
            state.violations.push(format!("{} renamed over {}", from.display(), to.display()));
        }
        self.disk.rename(from, to)?;
        // Others were there before this disk was.
        if let Some(id) = state.by_path.remove(from) {
            to.clone_into(&mut state.files[id].path);
            state.by_path.insert(to.to_owned(), id);
        }
        drop(state);
        self.measure();
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let refuses = self.lock().others == Others::Refuse && SegmentName::parse(&name).is_some();
        if refuses || self.lock().immutable.contains(&name) {
            return errno(Errno::PERM);
        }
        let takes = super::on_disk(path);
        self.disk.remove(path)?;
        let mut state = self.lock();
        if let Some(id) = state.by_path.remove(path) {
            state.files[id].removed = true;
        }
        if !name.starts_with(".tapdeck") {
            state.count(0, takes);
        }
        state.take_room(Others::Take);
        if SegmentName::parse(&name).is_some() {
            state.removed.push(name);
        }
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        if self.lock().chance(|o| o.sync_dir) { errno(Errno::IO) } else { Ok(()) }
    }

    fn space(&self, dir: &Path) -> Result<Space> {
        let state = self.lock();
        match (state.space, state.budget) {
            (Some(space), _) => Ok(space),
            (None, Some(total)) => Ok(Space { free: total.saturating_sub(state.used()), total }),
            (None, None) => self.disk.space(dir),
        }
    }
}

impl FaultyFile {
    /// Writes the first `n` bytes to the real file.
    fn put(&self, pieces: &[IoSlice<'_>], offset: u64, n: usize) -> Result<()> {
        if n == pieces.iter().map(|p| p.len()).sum::<usize>() {
            // As they lie, for direct I/O.
            let wrote = self.inner.write_at(pieces, offset)?;
            assert_eq!(wrote, n, "the real disk must take all for a test to say what it took");
            return Ok(());
        }
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|p| p.iter().copied()).collect();
        bytes.truncate(n);
        let mut done = 0;
        while done < n {
            done += self.inner.write_at(&[IoSlice::new(&bytes[done..])], offset + done as u64)?;
        }
        Ok(())
    }
}

impl File for FaultyFile {
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let (mutex, changed) = &*self.on.state;
        let mut state = mutex.lock().unwrap();
        let is_index = state.files[self.id].kind.is_index();
        let planned = state.plan(is_index);
        planned.writes += 1;
        let number = planned.writes;
        while state.plan(is_index).gate.is_some_and(|n| number >= n) {
            state.plan(is_index).waiting = true;
            state = changed.wait(state).unwrap();
        }
        state.check_write(self.id, pieces, offset);
        let total: usize = pieces.iter().map(|p| p.len()).sum();
        let planned = state.plan(is_index).fail.filter(|(n, _)| *n == number);
        let planned = planned.map(|(_, e)| e);
        let odds: fn(&Odds) -> u32 = if is_index { |o| o.index_write } else { |o| o.write };
        if planned.is_some() || state.chance(odds) {
            let torn = state.chance(|o| o.torn).then(|| state.rng.below(total));
            let error = planned.unwrap_or(Errno::IO);
            state.files[self.id].torn = true;
            state.files[self.id].broken = error != Errno::NOSPC;
            drop(state);
            self.put(pieces, offset, torn.unwrap_or(0))?;
            return errno(error);
        }
        state.take_room(Others::TakeFirst);
        let room = state.room(self.id, offset, total as u64) as usize;
        if room == 0 && total > 0 {
            state.files[self.id].torn = true;
            return errno(Errno::NOSPC);
        }
        let mut n = room;
        if state.chance(|o| o.short) {
            n = n.min(PAGE * (1 + state.rng.below(total / PAGE)));
        } else if state.chance(|o| o.odd) {
            n = n.min(1 + state.rng.below(total));
        }
        let file = &mut state.files[self.id];
        file.written = (offset + n as u64) / PAGE as u64 * PAGE as u64;
        file.takes = file.takes.max((offset + n as u64).next_multiple_of(PAGE as u64));
        state.count(n as u64, 0);
        drop(state);
        self.put(pieces, offset, n)?;
        self.on.measure();
        let mut state = mutex.lock().unwrap();
        while state.plan(is_index).slow.is_some_and(|bytes| n as u64 >= bytes) {
            state.plan(is_index).lingering = true;
            state = changed.wait(state).unwrap();
        }
        Ok(n)
    }

    fn preallocate(&self, len: u64) -> Result<bool> {
        let mut state = self.on.lock();
        if state.chance(|o| o.preallocate) {
            return errno(Errno::IO);
        }
        state.take_room(Others::TakeFirst);
        let room = state.room(self.id, 0, len);
        let file = &mut state.files[self.id];
        // A call that fails keeps what it got.
        file.takes = file.takes.max(room);
        if room < len {
            return errno(Errno::NOSPC);
        }
        drop(state);
        self.inner.preallocate(len)?;
        self.on.measure();
        Ok(true)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let takes = self.on.lock().odds.cut_takes;
        std::thread::sleep(takes);
        self.inner.set_len(len)?;
        let mut state = self.on.lock();
        if len > state.files[self.id].written.max(state.files[self.id].takes) {
            state.violation(self.id, "made longer");
        }
        let file = &mut state.files[self.id];
        file.written = len;
        file.takes = len.next_multiple_of(PAGE as u64);
        file.torn = false;
        state.take_room(Others::Take);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.on.lock();
        let mut with = state.chance(|o| o.sync).then_some(Errno::IO);
        if state.files[self.id].kind == Kind::Segment {
            state.syncs += 1;
            let planned = state.fail_sync.filter(|(number, _)| *number == state.syncs);
            with = planned.map(|(_, e)| e).or(with);
        }
        state.files[self.id].unsynced = with.is_some();
        with.map_or(Ok(()), errno)
    }
}
