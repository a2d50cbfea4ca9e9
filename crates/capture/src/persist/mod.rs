//! How do hooks, rings and counters outlive the process that owns them, and how does the next one
//! take them over?
//!
//! All of a lasting recording is pinned in a directory of the BPF file system: the maps of each
//! interface, the links that hold its programs, and the [`state`], in which the owner writes down
//! what the next one must know. Programs and maps need no owner: while nobody reads, the programs
//! go on filling rings. A lock (flock(2)) keeps a second owner away; it ends with the first one.
//!
//! What the order of an owner's steps guarantees stands in `docs/ARCHITECTURE.md`, "Outliving the
//! process".

pub(crate) mod groups;
mod promiscuous;
pub(crate) mod roster;
pub(crate) mod state;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tapdeck_packet::printable::counted;
use tapdeck_packet::ring::{PACKET_SHIFT, ReadMemory as _};

use crate::bpf::loaded::PinnedMaps;
use crate::ring::{LastingMemory as _, RingMemory};
use crate::sys::mapping::Mapping;
use crate::sys::pins;
use crate::{Capture, Hook, lock};
pub use groups::LastingGroups;
use state::{Counting, Entry, MOST_INTERFACES, State, Unreadable};
pub use state::{MOST_PAST, MOST_RINGS, PastAccount, RingWritten, Written, WrittenRecord};

/// Where lasting recordings are, unless the environment variable `TAPDECK_PERSIST` names another
/// directory of a BPF file system.
const ROOT: &str = "/sys/fs/bpf/tapdeck";
/// How long an owner that is just ending is waited for: one that was killed has its lock until its
/// memory is freed.
const ENDING: Duration = Duration::from_secs(5);

/// Why a lasting recording cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// a name that cannot be a file's there
    #[error("{0:?} is no name for --persist: take up to 64 letters, digits, -, _ and dots")]
    Name(String),
    /// no directory to pin in
    #[error("nothing can be pinned in {}: mount a BPF file system there (mount -t bpf bpf /sys/fs/bpf)", dir.display())]
    NoFileSystem { dir: PathBuf, source: io::Error },
    /// a living owner
    #[error("{0} is in use by a recorder or a daemon that runs")]
    InUse(String),
    /// another form
    #[error(
        "what {name} left is of tapdeck {version} and has another layout ({layout}){}: go on with that version, or give it up by tapdeck ctl persist drop {name}",
        waiting.map_or_else(String::new, |n| format!("; {} waiting in its rings", counted(n, "packet")))
    )]
    Layout {
        name: String,
        version: String,
        layout: u32,
        /// packets in its rings, where they can be counted
        waiting: Option<u64>,
    },
    /// what makes no sense
    #[error("what {0} left makes no sense: give it up by tapdeck ctl persist drop {0}")]
    Damaged(String),
    /// other interfaces or hooks
    #[error(
        "{name} records {theirs}, and not {ours}: take those in that order, or give it up by tapdeck ctl persist drop {name}"
    )]
    Others { name: String, theirs: String, ours: String },
    /// a recorder's name for a daemon, or the other way round
    #[error(
        "{0} is the name of what a recorder has left, and not a daemon, or the other way round: take another name, or give it up by tapdeck ctl persist drop {0}"
    )]
    OtherKind(String),
    /// groups that do not fit into what is there
    #[error(
        "{name} goes on with {what}: {advice}, or give it up by tapdeck ctl persist drop {name}"
    )]
    Form { name: String, what: String, advice: String },
    /// more than there is room for
    #[error("--persist takes at most {most} {what}")]
    Room { most: usize, what: &'static str },
    /// too much
    #[error("--persist takes at most {MOST_INTERFACES} interfaces")]
    TooMany,
    /// nothing there
    #[error("there is no lasting recording {0}")]
    None(String),
    /// anything else that the system says
    #[error("cannot {what} {name}")]
    Io { name: String, what: &'static str, source: io::Error },
}

impl Error {
    /// Returns whether another call is needed, whatever the machine is like.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Name(_)
            | Self::TooMany
            | Self::Others { .. }
            | Self::OtherKind(_)
            | Self::Form { .. }
            | Self::Room { .. }
            | Self::None(_) => true,
            Self::NoFileSystem { .. }
            | Self::InUse(_)
            | Self::Layout { .. }
            | Self::Damaged(_)
            | Self::Io { .. } => false,
        }
    }
}

fn root() -> PathBuf {
    std::env::var_os("TAPDECK_PERSIST").map_or_else(|| ROOT.into(), PathBuf::from)
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_plain)
}

/// Returns the directory in which what has a name is pinned.
fn dir_of(root: &Path, name: &str) -> PathBuf {
    root.join(without_dots(name))
}

/// A BPF file system keeps names with dots for itself, and no name of an interface or of
/// `--persist` has a colon.
fn without_dots(name: &str) -> String {
    name.replace('.', ":")
}

/// Returns the name that [`without_dots`] has made a file's.
fn with_dots(file: &str) -> String {
    file.replace(':', ".")
}

/// A lasting recording, owned by this process as long as this value lives.
#[derive(Debug)]
pub struct Persist {
    name: String,
    dir: PathBuf,
    _lock: Option<OwnedFd>,
    state: Option<State>,
    /// Whether no owner before has left something.
    is_new: bool,
}

/// Where the links of one interface at one hook are pinned.
#[derive(Clone, Debug)]
pub(crate) struct LinkPins {
    dir: PathBuf,
    of: String,
    /// Whether an owner before may have left some there.
    pub(crate) left: bool,
}

impl LinkPins {
    pub(crate) fn link(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{}-link{number}", self.of))
    }

    /// Removes the links, which end with their last names.
    pub(crate) fn remove(&self) {
        for number in 0.. {
            if fs::remove_file(self.link(number)).is_err() {
                break;
            }
        }
    }

    /// Makes the interface promiscuous until the pins go, or no longer.
    ///
    /// # Errors
    /// Where there is no such interface, or that cannot be written down.
    pub(crate) fn put_promiscuous(&self, interface: &str, wants: bool) -> io::Result<()> {
        promiscuous::put(&self.dir, &self.of, interface, wants)
    }
}

/// The place of one interface of a lasting recording.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
    pub(crate) index: usize,
    /// The number of the interface among those that ever came.
    pub(crate) number: u32,
    /// What an owner before has left, if there was one.
    pub(crate) found: Option<Found>,
}

/// What an owner before has left of one interface.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) rings: Vec<RingWritten>,
    pub(crate) account: Option<Vec<u64>>,
    /// Whether no other interface has the name: one may have been renamed.
    pub(crate) is_only: bool,
}

impl Place {
    /// Returns the path of something pinned here.
    pub(crate) fn path(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{}-{what}", self.index))
    }

    pub(crate) fn links(&self) -> LinkPins {
        LinkPins { dir: self.dir.clone(), of: self.index.to_string(), left: self.found.is_some() }
    }

    /// Removes all that is pinned here, as [`remove_pins`] does.
    pub(crate) fn remove_pins(&self) -> io::Result<()> {
        remove_pins_of(&self.dir, &self.index.to_string()).map(drop)
    }
}

/// Where interfaces are pinned that come while others are recorded.
#[derive(Clone, Debug)]
pub struct LaterPins(PathBuf);

impl LaterPins {
    /// Returns a place, from which all is removed that may be left there; `None` for one that there
    /// is not.
    pub(crate) fn place(&self, index: usize) -> Option<io::Result<Place>> {
        let place = Place { dir: self.0.clone(), index, number: 0, found: None };
        (index < MOST_INTERFACES).then(|| place.remove_pins().map(|()| place))
    }
}

impl Persist {
    /// Becomes the owner of the lasting recording of a name. What an owner before has left is
    /// taken over by [`Capture::open_lasting`]; where it had not come as far as to record, it is
    /// removed.
    ///
    /// # Errors
    /// Where another owner lives, and where what is there cannot be taken over.
    pub fn open(name: &str, interfaces: &[(&str, Hook)]) -> Result<Self, Error> {
        if interfaces.len() > MOST_INTERFACES {
            return Err(Error::TooMany);
        }
        let (dir, lock) = claim(name)?;
        let mut own = Self { name: name.to_owned(), dir, _lock: lock, state: None, is_new: false };
        match State::open(&own.dir.join("state")) {
            Ok(state) => {
                own.state = Some(state);
                own.check(interfaces)?;
                own.remove_others()?;
            }
            Err(Unreadable::Io(e)) if e.kind() == io::ErrorKind::NotFound => own.begin_anew()?,
            Err(Unreadable::Unfinished) => own.begin_anew()?,
            Err(e) => return Err(unreadable(name, &own.dir, e)),
        }
        Ok(own)
    }

    /// Removes what an owner has left who died before it recorded.
    fn begin_anew(&mut self) -> Result<(), Error> {
        remove_pins(&self.dir).map_err(|source| self.io("remove what is left of", source))?;
        self.is_new = true;
        Ok(())
    }

    /// Removes what is pinned of interfaces that have no place: that one has gone, or was to come,
    /// when its owner died.
    fn remove_others(&self) -> Result<(), Error> {
        self.state.iter().for_each(State::vacate_those_left);
        let list = self.list()?;
        let has_place = |of: &str| list.iter().any(|(index, _)| index.to_string() == of);
        let remove = || {
            for entry in fs::read_dir(&self.dir)?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if let Some((of, _)) = name.split_once('-')
                    && !has_place(of)
                {
                    remove_pins_of(&self.dir, of)?;
                }
            }
            Ok(())
        };
        remove().map_err(|source| self.io("remove what has no place in", source))
    }

    fn io(&self, what: &'static str, source: io::Error) -> Error {
        Error::Io { name: self.name.clone(), what, source }
    }

    /// Refuses other interfaces than those that are recorded.
    fn check(&self, interfaces: &[(&str, Hook)]) -> Result<(), Error> {
        let list = self.list()?;
        let theirs: Vec<_> =
            list.iter().map(|(_, entry)| (entry.name.as_str(), entry.hook)).collect();
        if theirs == interfaces {
            return Ok(());
        }
        let show = |list: &[(&str, Hook)]| {
            let each = list.iter().map(|(name, hook)| format!("{name} at {hook}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let (theirs, ours) = (show(&theirs), show(interfaces));
        Err(Error::Others { name: self.name.clone(), theirs, ours })
    }

    fn list(&self) -> Result<Vec<(usize, Entry)>, Error> {
        let list = self.state.as_ref().and_then(State::list);
        list.ok_or_else(|| Error::Damaged(self.name.clone()))
    }

    /// Returns whether an owner before has left something that is taken over.
    pub fn is_taken_over(&self) -> bool {
        self.state.is_some() && !self.is_new
    }

    /// Pins what owners note how things stand in. It counts from [`Persist::begin`] on.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn prepare(&mut self, captures: &[Capture]) -> Result<(), Error> {
        if self.state.is_none() {
            let entries: Vec<Entry> = captures.iter().filter_map(Capture::lasting_entry).collect();
            if entries.last().is_some_and(|last| last.rings().end > MOST_RINGS) {
                return Err(Error::Room { most: MOST_RINGS, what: "rings" });
            }
            let made = State::make(&self.dir.join("state"), &entries);
            self.state = Some(made.map_err(|source| self.io("pin the state of", source))?);
        }
        Ok(())
    }

    /// Returns the place of an interface, by its position.
    pub(crate) fn place(&self, position: usize) -> Result<Place, Error> {
        let (dir, damaged) = (self.dir.clone(), || Error::Damaged(self.name.clone()));
        let Some(state) = &self.state else {
            return Ok(Place { dir, index: position, number: 0, found: None });
        };
        let mut list = self.list()?;
        let is_there = position < list.len();
        let (index, entry) = is_there.then(|| list.swap_remove(position)).ok_or_else(damaged)?;
        let is_only = !list.iter().any(|(_, other)| other.name == entry.name);
        let rings = state.written().read().rings;
        let rings = rings.get(entry.rings()).ok_or_else(damaged)?.to_vec();
        let number = entry.number;
        let account = state.account(index).read();
        let found = Some(Found { entry, rings, account, is_only });
        Ok(Place { dir, index, number, found })
    }

    /// Returns a place for an interface that comes later, if there is one.
    pub(crate) fn free_place(&self) -> Option<Place> {
        let (index, number) = self.state.as_ref()?.free()?;
        Some(Place { dir: self.dir.clone(), index, number, found: None })
    }

    /// Returns whether another interface may come.
    pub fn has_room(&self) -> bool {
        self.free_place().is_some()
    }

    /// Has interfaces that come later be pinned beside the others.
    pub fn later_pins(&self) -> LaterPins {
        LaterPins(self.dir.clone())
    }

    /// Gives its place to an interface that came later: from now on the next owner goes on with it.
    pub(crate) fn name(&self, capture: &Capture) {
        let (Some(state), Some(index)) = (&self.state, capture.lasting_index()) else { return };
        let Some(entry) = capture.lasting_entry() else { return };
        state.account(index).write(capture.lasting_account());
        state.set_entry(index, &entry);
    }

    /// Takes its place from an interface that has gone, or could not be had in the end. The
    /// accounts of those that have left are `past` from now on.
    pub(crate) fn leave(&self, index: usize, past: &[PastAccount]) {
        if let Some(state) = &self.state {
            state.leave(index, past);
        }
    }

    /// Returns the accounts of interfaces that have left their places.
    pub fn past(&self) -> Vec<PastAccount> {
        self.state.as_ref().map(State::past_accounts).unwrap_or_default()
    }

    /// Makes what is pinned last from here on: all captures have been started.
    pub fn begin(&mut self, captures: &[Capture]) {
        let Some(state) = &self.state else { return };
        for capture in captures {
            if let (Some(index), Some(entry)) = (capture.lasting_index(), capture.lasting_entry()) {
                state.set_entry(index, &entry);
            }
        }
        self.note(captures);
        state.finish(if self.is_taken_over() { state.takeovers() + 1 } else { 0 });
    }

    /// Returns whether what is pinned outlives its owner: a recording has begun.
    pub fn stays(&self) -> bool {
        !self.is_new || self.state.as_ref().is_some_and(State::is_finished)
    }

    /// Removes what is pinned where no recording has begun. That takes the privileges that
    /// [`Persist::open`] had.
    pub fn clean(&self) {
        if !self.stays() {
            let _ = remove_pins(&self.dir);
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Notes how the interfaces stand, and that their owner lives. Called once a second.
    pub fn note(&self, captures: &[Capture]) {
        let Some(state) = &self.state else { return };
        for capture in captures {
            if let Some(index) = capture.lasting_index() {
                state.account(index).write(capture.lasting_account());
            }
        }
        state.set_beat_ns(monotonic_ns());
    }

    /// Returns how often another owner has come.
    pub fn takeovers(&self) -> u64 {
        self.state.as_ref().map_or(0, State::takeovers)
    }

    /// Returns the record of what is written; `None` before [`Persist::prepare`].
    pub fn written(&self) -> Option<WrittenRecord> {
        self.state.as_ref().map(State::written)
    }

    /// Returns the store that the live segment of [`Persist::written`] is in.
    pub fn store(&self) -> PathBuf {
        self.state.as_ref().map(State::store).unwrap_or_default()
    }

    /// Takes note of the store that segments are written to.
    ///
    /// # Errors
    /// Where its name is too long.
    pub fn set_store(&self, dir: &Path) -> Result<(), Error> {
        let fits = self.state.as_ref().is_none_or(|state| state.set_store(dir));
        let error = || self.io("note the store of", io::ErrorKind::InvalidFilename.into());
        if fits { Ok(()) } else { Err(error()) }
    }
}

impl Drop for Persist {
    fn drop(&mut self) {
        self.clean();
    }
}

/// Becomes the owner of what has a name: makes its directory, and takes its lock.
fn claim(name: &str) -> Result<(PathBuf, Option<OwnedFd>), Error> {
    if !is_name(name) {
        return Err(Error::Name(name.to_owned()));
    }
    let root = root();
    let make = |dir: &Path| match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    };
    make(&root).map_err(|source| Error::NoFileSystem { dir: root.clone(), source })?;
    let lock = lock_of(&root, name)?;
    let dir = dir_of(&root, name);
    make(&dir).map_err(|source| Error::NoFileSystem { dir: root.clone(), source })?;
    Ok((dir, lock))
}

/// Explains why the state in a directory cannot be read.
fn unreadable(name: &str, dir: &Path, e: Unreadable) -> Error {
    let name = name.to_owned();
    match e {
        Unreadable::Layout { layout, version } => {
            Error::Layout { name, version, layout, waiting: waiting_in_any_layout(dir) }
        }
        Unreadable::Damaged | Unreadable::Unfinished => Error::Damaged(name),
        Unreadable::OtherKind => Error::OtherKind(name),
        Unreadable::Io(source) => Error::Io { name, what: "read", source },
    }
}

fn monotonic_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Takes the lock of a lasting recording.
fn lock_of(root: &Path, name: &str) -> Result<Option<OwnedFd>, Error> {
    let until = Instant::now() + ENDING;
    let fail = |source| Error::Io { name: name.to_owned(), what: "lock", source };
    let at = fs::metadata(root).map_err(fail)?;
    let lock = format!("persist-{}-{}-{name}", at.dev(), at.ino());
    loop {
        match lock::hold(&lock) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(Error::InUse(name.to_owned()));
            }
            other => return other.map_err(fail),
        }
    }
}

/// Removes the pins of a directory: links first, so that no program runs on maps that are gone for
/// others, and the state before all, so that nobody takes the rest for whole. Flags of promiscuous
/// mode go last; returns the interfaces of other network namespaces that keep theirs.
fn remove_pins(dir: &Path) -> io::Result<Vec<String>> {
    remove_pins_of(dir, "")
}

/// Removes the pins of one interface, in the same order; of all where `of` is empty.
fn remove_pins_of(dir: &Path, of: &str) -> io::Result<Vec<String>> {
    let is_its =
        |name: &str| of.is_empty() || name.split_once('-').is_some_and(|(its, _)| its == of);
    let its = fs::read_dir(dir)?.flatten();
    let its = its.filter(|entry| is_its(&entry.file_name().to_string_lossy()));
    let mut paths: Vec<PathBuf> = its.map(|entry| entry.path()).collect();
    let rank = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name != "state", !name.contains("-link"))
    };
    paths.sort_by_key(rank);
    paths.iter().filter(|path| !path.is_dir()).try_for_each(fs::remove_file)?;
    promiscuous::take_away(dir, of)
}

/// What is known of a lasting recording, or of lasting groups, without owning them.
#[derive(Debug)]
pub struct Lasting {
    pub name: String,
    /// Whether a recorder or daemon that runs owns it.
    pub is_owned: bool,
    /// What can be read of it, or why nothing can.
    pub status: Result<Status, Error>,
}

/// How a lasting recording stands.
#[derive(Debug)]
pub struct Status {
    /// Each interface with its hook.
    pub interfaces: Vec<(String, &'static str)>,
    /// The version of its last owner.
    pub version: String,
    pub takeovers: u64,
    /// When its last owner was heard of.
    pub last_beat: Duration,
    /// Bytes of the rings that hold packets, and all their bytes.
    pub fill_bytes: u64,
    pub ring_bytes: u64,
    pub of: StatusOf,
}

/// What is known of one kind alone.
#[derive(Debug)]
pub enum StatusOf {
    Recorder {
        /// Packets that wait in the rings.
        waiting_packets: u64,
        /// The store that the last owner wrote to.
        store: PathBuf,
    },
    Daemon {
        groups: Vec<String>,
        members: usize,
    },
}

/// Returns which hooks a lasting recording of a name has, by interface; none where nothing was
/// left, or nothing that can be read.
pub fn hooks_left(name: &str) -> Vec<(String, Hook)> {
    let interfaces = status(&root(), name).map(|status| status.interfaces).unwrap_or_default();
    let known = |(name, hook)| Some((name, Hook::named(hook)?));
    interfaces.into_iter().filter_map(known).collect()
}

/// Lists the lasting recordings and groups there are, by name.
///
/// # Errors
/// Where the directory cannot be read.
pub fn list() -> io::Result<Vec<Lasting>> {
    let root = root();
    let entries = match fs::read_dir(&root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let files = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = files.map(|file| with_dots(&file)).collect();
    names.sort();
    let look = |name: String| {
        let status = status(&root, &name);
        Lasting { is_owned: is_owned(&root, &name), name, status }
    };
    Ok(names.into_iter().map(look).collect())
}

fn is_owned(root: &Path, name: &str) -> bool {
    let Ok(at) = fs::metadata(root) else { return false };
    let lock = format!("persist-{}-{}-{name}", at.dev(), at.ino());
    matches!(lock::hold(&lock), Err(e) if e.kind() == io::ErrorKind::AddrInUse)
}

fn status(root: &Path, name: &str) -> Result<Status, Error> {
    let dir = dir_of(root, name);
    let own = Persist { name: name.to_owned(), dir, _lock: None, state: None, is_new: false };
    let state = match State::open(&own.dir.join("state")) {
        Err(Unreadable::OtherKind) => return groups::status(name, &own.dir),
        other => other.map_err(|e| unreadable(name, &own.dir, e))?,
    };
    let list = state.list().ok_or_else(|| Error::Damaged(name.to_owned()))?;
    let (mut waiting_packets, mut fill_bytes, mut ring_bytes) = (0, 0, 0);
    for (index, entry) in &list {
        let place = Place { dir: own.dir.clone(), index: *index, number: 0, found: None };
        let maps = PinnedMaps::open(&place).map_err(|e| own.io("read", e))?;
        for ring in maps.rings(entry.geometry).map_err(|e| own.io("read", e))? {
            waiting_packets += waiting(&ring);
            fill_bytes += ring.fill_bytes();
            ring_bytes += u64::from(entry.geometry.ring_bytes());
        }
    }
    Ok(Status {
        interfaces: list.into_iter().map(|(_, entry)| (entry.name, entry.hook.name())).collect(),
        version: state.version(),
        takeovers: state.takeovers(),
        last_beat: Duration::from_nanos(monotonic_ns().saturating_sub(state.beat_ns())),
        fill_bytes,
        ring_bytes,
        of: StatusOf::Recorder { waiting_packets, store: state.store() },
    })
}

/// Counts the packets that wait in a ring.
fn waiting(ring: &RingMemory) -> u64 {
    let of = |slot| ring.committed(slot).wrapping_sub(ring.noted(slot)) >> PACKET_SHIFT;
    (0..ring.nblocks()).map(of).sum()
}

/// Counts the packets that wait in what a recorder has left, whatever layout it has; `None` where
/// that cannot be read.
fn waiting_in_any_layout(dir: &Path) -> Option<u64> {
    let head = State::head(&dir.join("state")).ok().filter(State::is_finished)?;
    let count = |(index, counting): (usize, Counting)| {
        let mapped = |what: &str, len: usize| {
            let map = pins::open(&dir.join(format!("{index}-{what}"))).ok()?;
            Mapping::of_fd(map.as_fd(), len, false).ok()
        };
        let rings = mapped("rings", counting.rings * counting.stride)?;
        let noted = mapped("noted", counting.rings * counting.slots * 8)?;
        Some(counting.count(&rings, &noted))
    };
    head.counting()?.into_iter().map(count).sum()
}

/// What became of what was dropped.
#[derive(Debug)]
pub struct DroppedLasting {
    pub lost: Dropped,
    /// Interfaces of other network namespaces that stay promiscuous.
    pub still_promiscuous: Vec<String>,
}

/// What is gone with what was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Packets that waited in a recorder's rings.
    Packets(u64),
    /// The rings of members of a daemon, by the number of members.
    Members(usize),
    /// Nobody can tell.
    Unknown,
}

/// Removes what nobody owns: detaches its programs and frees its rings.
///
/// # Errors
/// Where a recorder that runs owns it, or there is none.
pub fn drop_lasting(name: &str) -> Result<DroppedLasting, Error> {
    let (root, known) = (root(), is_name(name));
    let dir = dir_of(&root, name);
    if !known || !dir.is_dir() {
        return Err(Error::None(name.to_owned()));
    }
    let _lock = lock_of(&root, name)?;
    let lost = match status(&root, name).map(|status| status.of) {
        Ok(StatusOf::Recorder { waiting_packets, .. }) => Dropped::Packets(waiting_packets),
        Ok(StatusOf::Daemon { members, .. }) => Dropped::Members(members),
        Err(Error::Layout { waiting: Some(packets), .. }) => Dropped::Packets(packets),
        Err(_) => Dropped::Unknown,
    };
    let done = remove_pins(&dir).and_then(|left| fs::remove_dir(&dir).map(|()| left));
    let still_promiscuous =
        done.map_err(|source| Error::Io { name: name.to_owned(), what: "remove", source })?;
    Ok(DroppedLasting { lost, still_promiscuous })
}

/// Returns a hash (FNV-1a, which no release of anything changes).
pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, add)
}

/// Pins a map or a link, in the place of what was pinned there before.
pub(crate) fn pin_anew(fd: impl AsFd, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    pins::pin(fd.as_fd(), path)
}
