//! A directory of pins beside a store, which has a budget of its own.
//!
//! Nothing in it is ever deleted to make room: a pin that finds the budget full is refused, and one
//! that is under way keeps what it has and says so. Pins go by their time: one with an end of its
//! own is removed when the next pin is made after that.
//!
//! A pin whose span is not over is **advanced** every minute, and a last time when the packets of
//! its end are on disk: each time what came since is copied into another file, and then `pin.json`
//! says so. What is not named there when a process ends is copied again by the next that advances
//! the pin, whoever that is. Packets that come to disk later than those of their time were copied
//! are not in the pin; in the end the whole span is counted, and that is told.
//!
//! Two locks: who changes what pins say holds one for a moment; who copies holds the other, so
//! that one copies at a time and the budget holds. Nobody but the directory's user can take them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tapdeck_packet::printable::counted;
use tapdeck_store::io::{Directory, Storage};

use crate::account::Account;
use crate::bundle::{Clock, FileEntry, Interface};
use crate::copy::{self, Copied, Most, Question, count};
use crate::error::Error;
use crate::pin::{self, Order, PACKETS, Pin, State, Wish, replace, sync_parent};
use crate::time::Time;

/// The budget where none was set: 10 GiB.
pub const BUDGET: u64 = 10 << 30;
/// The file that holds the budget and the number of the next pin.
const SETTINGS: &str = "settings.json";
const LOCK: &str = ".lock";
const COPY_LOCK: &str = ".lock-copy";
/// How long whoever wants a change waits for others that change pins.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is kept free of the budget for what is told of pins.
const RESERVE: u64 = 64 << 10;

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    budget_bytes: u64,
    next: u64,
}

/// The number of a pin, and the pin, or why it cannot be read.
type Numbered = (u64, Result<Pin, Error>);

/// A directory of pins.
#[derive(Clone, Debug)]
pub struct PinStore {
    dir: PathBuf,
}

impl PinStore {
    /// Returns where the pins of a store lie, if nobody says otherwise: beside it.
    pub fn beside(store: &Path) -> PathBuf {
        let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
        let mut name = store.into_os_string();
        name.push(".evidence");
        name.into()
    }

    /// Opens a directory of pins, making it if need be. A budget that is given replaces the one
    /// that was.
    ///
    /// # Errors
    /// What the file system says.
    pub fn make(dir: &Path, budget_bytes: Option<u64>) -> Result<Self, Error> {
        match DirBuilder::new().mode(0o750).create(dir) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io("make", dir)(e));
            }
            _ => {}
        }
        let pins = Self { dir: dir.to_owned() };
        let _lock = pins.lock_to_change()?;
        let before = match pins.settings() {
            Err(e) if is_not_found(&e) => None,
            settings => Some(settings?),
        };
        if budget_bytes.is_some() || before.is_none() {
            let Settings { budget_bytes: old, next } =
                before.unwrap_or(Settings { budget_bytes: BUDGET, next: 1 });
            pins.set(Settings { budget_bytes: budget_bytes.unwrap_or(old), next })?;
        }
        Ok(pins)
    }

    /// Opens a directory of pins that is there.
    ///
    /// # Errors
    /// [`Error::NoPins`] if it is none; and what the file system says.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let pins = Self { dir: dir.to_owned() };
        match pins.settings() {
            Err(e) if is_not_found(&e) => Err(Error::NoPins(dir.to_owned())),
            settings => settings.map(|_| pins),
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn settings(&self) -> Result<Settings, Error> {
        let path = self.dir.join(SETTINGS);
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|e| Error::io("read", &path)(e.into()))
    }

    fn set(&self, settings: Settings) -> Result<(), Error> {
        let path = self.dir.join(SETTINGS);
        let text = serde_json::to_vec(&settings);
        replace(&path, &text.map_err(|e| Error::io("write", &path)(e.into()))?)
    }

    /// Returns how many bytes pins may take.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn budget(&self) -> Result<u64, Error> {
        Ok(self.settings()?.budget_bytes)
    }

    /// Returns how many bytes all files take.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn used(&self) -> Result<u64, Error> {
        fn under(dir: &Path) -> io::Result<u64> {
            let mut bytes = 0;
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let size = entry.metadata().and_then(|meta| {
                    if meta.is_dir() { under(&entry.path()) } else { Ok(meta.len()) }
                });
                match size {
                    Ok(size) => bytes += size,
                    // It was removed meanwhile.
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(bytes)
        }
        under(&self.dir).map_err(Error::io("read", &self.dir))
    }

    /// Finds out whether this process can make pins in a directory, which may not be there yet.
    ///
    /// # Errors
    /// [`Error::NotOurs`]; and what the file system says of the directory, or of the one that it
    /// would be made in.
    pub fn check(dir: &Path) -> Result<(), Error> {
        let can_write = |dir: &Path| {
            access(dir, Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|e| Error::io("write into", dir)(e.into()))
        };
        match refuse_others(dir) {
            Err(e) if is_not_found(&e) => {
                let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
                can_write(parent.unwrap_or(Path::new(".")))
            }
            found => found.and_then(|()| can_write(dir)),
        }
    }

    /// Takes a lock, as soon as nobody has it. `watch` ends the waiting by `false`.
    fn lock(&self, name: &str, mut watch: impl FnMut() -> bool) -> Result<File, Error> {
        refuse_others(&self.dir)?;
        let path = self.dir.join(name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(Error::io("write", &path))?;
        // Whoever can open the file can keep the lock, and earlier versions let the group read it.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(Error::io("change", &path))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) if !watch() => return Err(Error::Stopped),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => return Err(Error::io("lock", &path)(e.into())),
            }
        }
    }

    /// Takes the lock of who changes what pins say, as soon as nobody has it.
    fn lock_to_change(&self) -> Result<File, Error> {
        let deadline = Instant::now() + PATIENCE;
        match self.lock(LOCK, || Instant::now() < deadline) {
            Err(Error::Stopped) => Err(Error::Busy { dir: self.dir.clone() }),
            lock => lock,
        }
    }

    /// Returns where a pin lies.
    pub fn place(&self, number: u64) -> PathBuf {
        self.dir.join(Pin::directory_name(number))
    }

    /// Returns where a pin's packets lie.
    pub fn packets_of(&self, number: u64) -> PathBuf {
        self.place(number).join(PACKETS)
    }

    /// Returns a pin.
    ///
    /// # Errors
    /// [`Error::NoPin`] where there is none of that number.
    pub fn pin(&self, number: u64) -> Result<Pin, Error> {
        match Pin::read(&self.place(number)) {
            Err(e) if is_not_found(&e) => Err(Error::NoPin { number, dir: self.dir.clone() }),
            pin => pin,
        }
    }

    /// Returns all pins, by their numbers, or why one cannot be read.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Numbered>, Error> {
        let pins = self.numbers()?.into_iter().map(|number| (number, self.pin(number)));
        Ok(pins.filter(|(_, pin)| !matches!(pin, Err(Error::NoPin { .. }))).collect())
    }

    /// Returns the numbers of all pins, also of one that is being made or removed.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn numbers(&self) -> Result<Vec<u64>, Error> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(Error::io("read", &self.dir))? {
            let name = entry.map_err(Error::io("read", &self.dir))?.file_name();
            numbers.extend(name.to_str().and_then(Pin::number_of));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes a pin, of which nothing is copied yet; those whose time is over go first.
    ///
    /// # Errors
    /// [`Error::Full`] where the budget has no room for another; [`Error::Busy`].
    pub fn add(&self, wish: Wish) -> Result<Pin, Error> {
        let _lock = self.lock_to_change()?;
        let now = Time::now();
        let last = self.numbers()?.last().copied().unwrap_or(0);
        // One that cannot be read stays.
        for pin in self.list()?.into_iter().filter_map(|(_, pin)| pin.ok()) {
            if pin.state != State::Open && pin.until.is_some_and(|until| until <= now) {
                self.remove_locked(pin.number)?;
            }
        }
        self.sweep()?;
        let settings = self.settings()?;
        self.refuse_where_full(settings.budget_bytes)?;
        let number = settings.next.max(last + 1);
        self.set(Settings { next: number + 1, ..settings })?;
        let pin = Pin::new(number, wish);
        let place = self.place(number);
        let mut builder = DirBuilder::new();
        builder.mode(0o750);
        for dir in [&place, &place.join(PACKETS)] {
            builder.create(dir).map_err(Error::io("make", dir))?;
        }
        pin.write(&place)?;
        sync_parent(&place).map_err(Error::io("write", &self.dir))?;
        Ok(pin)
    }

    /// Removes what a process left that was killed while it made or removed a pin: it takes room,
    /// and is no pin.
    fn sweep(&self) -> Result<(), Error> {
        for number in self.numbers()? {
            let place = self.place(number);
            let file = place.join(pin::FILE);
            if !file.try_exists().map_err(Error::io("read", &file))? {
                fs::remove_dir_all(&place).map_err(Error::io("remove", &place))?;
            }
        }
        Ok(())
    }

    fn refuse_where_full(&self, budget_bytes: u64) -> Result<u64, Error> {
        let used_bytes = self.used()?;
        match budget_bytes.checked_sub(used_bytes + RESERVE) {
            Some(room) => Ok(room),
            None => Err(Error::Full { dir: self.dir.clone(), used_bytes, budget_bytes }),
        }
    }

    /// Lets a pin go on for longer; where it is done, another is made for the rest. Returns the pin
    /// that goes on.
    ///
    /// # Errors
    /// [`Error::NoPin`]; as [`PinStore::add`]; and what the file system says.
    pub fn extend(&self, number: u64, before: Time) -> Result<Pin, Error> {
        let lock = self.lock_to_change()?;
        let mut pin = self.pin(number)?;
        if before <= pin.before {
            return Ok(pin);
        }
        let longer_ns = before.0 - pin.before.0;
        let until = pin.until.map(|until| until.plus(longer_ns));
        if pin.state == State::Open {
            (pin.before, pin.until) = (before, until);
            pin.write(&self.place(number))?;
            return Ok(pin);
        }
        drop(lock);
        let Pin { store, question, before: after, reason, rule, order, .. } = pin;
        self.add(Wish { store, question, after, before, until, reason, rule, order })
    }

    /// Removes a pin and its packets.
    ///
    /// # Errors
    /// [`Error::NoPin`]; [`Error::Busy`]; and what the file system says.
    pub fn remove(&self, number: u64) -> Result<Pin, Error> {
        let _lock = self.lock_to_change()?;
        let pin = self.pin(number)?;
        self.remove_locked(number)?;
        Ok(pin)
    }

    fn remove_locked(&self, number: u64) -> Result<(), Error> {
        let place = self.place(number);
        // Without this file it is no pin any more, whatever of the rest is left for a moment.
        let file = place.join(pin::FILE);
        fs::remove_file(&file).map_err(Error::io("remove", &file))?;
        fs::remove_dir_all(&place).map_err(Error::io("remove", &place))
    }

    /// Copies what a pin wants of what has come since it was advanced the last time. `watch` ends
    /// it by `false`; it is then as it was before.
    ///
    /// # Errors
    /// [`Error::Full`] where the budget has no room for the first packets: the pin is refused, and
    /// gone. [`Error::NoPin`] where somebody has removed it meanwhile. Else as a query, and what
    /// the file system says.
    pub fn advance(&self, number: u64, mut watch: impl FnMut() -> bool) -> Result<Pin, Error> {
        let _copying = self.lock(COPY_LOCK, &mut watch)?;
        let file = self.place(number).join(pin::FILE);
        let is_there = || !matches!(file.try_exists(), Ok(false));
        match self.copy(number, || watch() && is_there()) {
            Err(e) if !matches!(e, Error::Full { .. }) && !is_there() => {
                Err(Error::NoPin { number, dir: self.dir.clone() })
            }
            advanced => advanced,
        }
    }

    fn copy(&self, number: u64, mut watch: impl FnMut() -> bool) -> Result<Pin, Error> {
        let now = Time::now();
        let pin = self.pin(number)?;
        if pin.state != State::Open || pin.upto(now) <= pin.reached {
            return self.finish(number, None, watch);
        }
        let question = pin.part(now);
        let storage: Arc<dyn Storage> = Arc::new(Directory::new(&pin.store));
        let mut account = Account::of(&storage, question.span(), &mut watch)?;
        let name = format!("part-{:05}.pcapng", pin.files.len() + 1);
        let path = self.packets_of(number).join(&name);
        // Who reads a pin's packets meanwhile is to find whole files.
        let draft = self.place(number).join(&name);
        let free_bytes = match self.refuse_where_full(self.budget()?) {
            Err(Error::Full { .. }) => 0,
            room => room?,
        };
        let room = pin.room();
        let most = Most { bytes: free_bytes.min(room.bytes), ..room };
        let copied = {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o640);
            let mut file = options.open(&draft).map_err(Error::io("write", &draft))?;
            copy::copy(&storage, &question, (&mut file, &draft), most, &mut watch)
        };
        let copied = match copied {
            Ok(copied) => copied,
            Err(e) => {
                let _ = fs::remove_file(&draft);
                let is_own = matches!(e, Error::TooMuch { .. }) || room.bytes < free_bytes;
                return if is_full(&e) { self.give_up(number, is_own, watch) } else { Err(e) };
            }
        };
        if copied.packets == 0 {
            // What a process that was killed had not taken down yet.
            let _ = fs::remove_file(&path);
            fs::remove_file(&draft).map_err(Error::io("remove", &draft))?;
        } else {
            let moved = fs::rename(&draft, &path).and_then(|()| sync_parent(&path));
            moved.map_err(Error::io("write", &path))?;
        }
        let Copied { packets, bytes, sha256, times, interfaces, clock_steps, faults } = copied;
        for fault in faults {
            account.add_fault(fault);
        }
        if question.before >= Some(pin.before) && pin.reached > pin.after {
            // Retention may have taken what is pinned, so that there are fewer now.
            let all = Question { after: Some(pin.after), ..question.clone() };
            let late = count(&storage, &all, &mut watch)?.saturating_sub(pin.packets + packets);
            if late > 0 {
                account.add_fault(format!(
                    "not pinned, as on disk after the packets of their time were copied: {}",
                    counted(late, "packet")
                ));
            }
        }
        let clock = Clock::of(&*storage, &question, clock_steps)?;
        let file = (packets > 0).then_some(FileEntry { name, bytes, sha256 });
        let reached = question.before.unwrap_or(now);
        let part = Part { packets, file, times, interfaces, account, clock, reached };
        self.finish(number, Some(part), watch)
    }

    /// Takes down what was copied, and whether that was all.
    fn finish(
        &self,
        number: u64,
        part: Option<Part>,
        watch: impl FnMut() -> bool,
    ) -> Result<Pin, Error> {
        let _lock = self.lock(LOCK, watch)?;
        let mut pin = self.pin(number)?;
        if pin.state != State::Open {
            return Ok(pin);
        }
        if let Some(part) = part {
            pin.packets += part.packets;
            pin.bytes += part.file.as_ref().map_or(0, |file| file.bytes);
            pin.files.extend(part.file);
            pin.first = pin.first.or(part.times.map(|times| times.0));
            pin.last = part.times.map(|times| times.1).or(pin.last);
            pin.account.append(part.account);
            pin.clock.append(part.clock);
            for (name, description) in part.interfaces {
                let interface = Interface { name, description };
                if !pin.interfaces.contains(&interface) {
                    pin.interfaces.push(interface);
                }
            }
            pin.reached = part.reached;
        }
        if pin.reached >= pin.before {
            pin.state = State::Done;
        }
        pin.write(&self.place(number))?;
        Ok(pin)
    }

    /// Ends a pin that has no more room, of the budget's or its own. Where nothing is copied yet it
    /// is refused: it is gone, but for one that was asked for from afar, by somebody who does not
    /// wait for it and is told by what stays of it.
    fn give_up(
        &self,
        number: u64,
        is_own: bool,
        watch: impl FnMut() -> bool,
    ) -> Result<Pin, Error> {
        let _lock = self.lock(LOCK, watch)?;
        let mut pin = self.pin(number)?;
        let (used_bytes, budget_bytes) = (self.used()?, self.budget()?);
        if pin.files.is_empty() && pin.order.is_none() {
            self.remove_locked(pin.number)?;
            return Err(Error::Full { dir: self.dir.clone(), used_bytes, budget_bytes });
        }
        pin.state = State::Full;
        let why = match &pin.order {
            Some(Order { most, .. }) if is_own => format!("the pin may have no more than {most}"),
            _ => format!("the budget of {budget_bytes} bytes was full"),
        };
        let reached = pin.reached;
        pin.account.add_fault(format!("{why}: packets from {reached} on are not pinned"));
        pin.write(&self.place(pin.number))?;
        Ok(pin)
    }
}

/// Refuses to change pins that belong to another user, also to root: they could make its files
/// links to those of others, and what root had made there they could not read.
fn refuse_others(dir: &Path) -> Result<(), Error> {
    let uid = fs::metadata(dir).map_err(Error::io("read", dir))?.uid();
    let dir = || dir.to_owned();
    if uid == geteuid().as_raw() { Ok(()) } else { Err(Error::NotOurs { dir: dir(), uid }) }
}

/// What was copied in one go.
struct Part {
    packets: u64,
    file: Option<FileEntry>,
    times: Option<(Time, Time)>,
    interfaces: Vec<(String, String)>,
    account: Account,
    clock: Clock,
    reached: Time,
}

/// Returns whether an error says that a file or a directory is not there.
fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Returns whether an error says that there is no room: by the budget, of the pin, on the disk.
fn is_full(error: &Error) -> bool {
    match error {
        Error::Io { what: "write", source, .. } => {
            matches!(source.kind(), ErrorKind::QuotaExceeded | ErrorKind::StorageFull)
        }
        Error::TooMuch { .. } => true,
        _ => false,
    }
}
