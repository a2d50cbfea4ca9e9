//! A disk that may forget, when the power is cut, whatever was not made durable.
//!
//! It lies over the real one and writes down what is done to it and when: each call has a moment at
//! which it began and one at which it had ended. A cut at any moment can then be played: what was
//! done to a file is certain if a sync of that file began after it had ended, and has itself ended
//! before the cut; what was done to names, if a sync of the directory did. Of everything else any
//! part may be on the disk, a write in sectors, and a file may have any of the lengths between. A
//! name is changed wholly or not at all, and not before what was done to the same name or the same
//! file before.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{IoSlice, Result};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tapdeck_store::Totals;
use tapdeck_store::io::{Disk, File, Io, Space};
use tapdeck_testkit::SplitMix64;

const SECTOR: usize = 512;

/// Which file it is, whatever its name.
type Inode = usize;

#[derive(Debug)]
enum Deed {
    Create(Inode, OsString),
    Rename(Inode, OsString, OsString),
    Remove(Inode, OsString),
    SyncNames,
    Write(Inode, usize, Vec<u8>),
    SetLen(Inode, usize),
    Sync(Inode),
}

impl Deed {
    /// The file and the names that a change of names touches.
    fn names(&self) -> Option<(Inode, Vec<&OsStr>)> {
        match self {
            Self::Create(inode, name) | Self::Remove(inode, name) => Some((*inode, vec![name])),
            Self::Rename(inode, from, to) => Some((*inode, vec![from, to])),
            _ => None,
        }
    }
}

struct Done {
    began: usize,
    /// Not before this the caller knew that it was done.
    ended: usize,
    deed: Deed,
}

/// What was promised at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Packets that were called durable, by interface.
    pub durable: Vec<u64>,
}

#[derive(Default)]
struct State {
    /// Files that were there before.
    base: Vec<Vec<u8>>,
    names: BTreeMap<OsString, Inode>,
    first_names: BTreeMap<OsString, Inode>,
    inodes: usize,
    done: Vec<Done>,
    totals: Option<Arc<Totals>>,
    /// By moment.
    promises: Vec<Promise>,
    /// Syncs end well and do nothing.
    is_lying: bool,
}

/// The disk; a clone is the same one.
#[derive(Clone)]
pub struct Forgetful {
    disk: Disk,
    state: Arc<Mutex<State>>,
}

/// A file of [`Forgetful`].
pub struct ForgetfulFile {
    inner: <Disk as Io>::File,
    inode: Inode,
    on: Forgetful,
}

fn name(path: &Path) -> OsString {
    path.file_name().unwrap().to_owned()
}

/// How much of what is not certain is on the disk after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    Nothing,
    Everything,
    /// All up to some call, and a part of that.
    Beginning,
    /// Any sectors.
    Any,
}

impl State {
    fn moment(&mut self) -> usize {
        let durable = |totals: &Arc<Totals>| {
            totals.interfaces.iter().map(|i| i.durable.load(SeqCst)).collect()
        };
        let durable = self.totals.as_ref().map(durable).unwrap_or_default();
        self.promises.push(Promise { durable });
        self.promises.len() - 1
    }

    fn begin(&mut self, deed: Deed) -> usize {
        let began = self.moment();
        self.done.push(Done { began, ended: usize::MAX, deed });
        self.done.len() - 1
    }

    fn end(&mut self, at: usize) {
        self.done[at].ended = self.moment();
    }

    fn inode(&self, name: &OsStr) -> Inode {
        self.names[name]
    }

    /// Whether a sync that `is_it` makes certain what had ended at a moment, before the cut.
    fn is_certain(&self, done: &Done, cut: usize, is_it: impl Fn(&Deed) -> bool) -> bool {
        self.done
            .iter()
            .any(|sync| is_it(&sync.deed) && sync.began > done.ended && sync.ended <= cut)
    }

    /// The names after a cut.
    fn names_after(
        &self,
        cut: usize,
        luck: Luck,
        rng: &mut SplitMix64,
    ) -> BTreeMap<OsString, Inode> {
        let mut names = self.first_names.clone();
        let (mut lost_files, mut lost_names) = (BTreeSet::new(), BTreeSet::new());
        let until = rng.below(self.done.len() + 1);
        for (at, done) in self.done.iter().enumerate().filter(|(_, done)| done.began <= cut) {
            let Some((inode, touched)) = done.deed.names() else { continue };
            let is_kept = self.is_certain(done, cut, |deed| matches!(deed, Deed::SyncNames))
                || match luck {
                    Luck::Nothing => false,
                    Luck::Everything => true,
                    Luck::Beginning => at < until,
                    Luck::Any => rng.percent(50),
                };
            let follows = lost_files.contains(&inode)
                || touched.iter().any(|name| lost_names.contains(*name));
            if !is_kept || follows {
                lost_files.insert(inode);
                lost_names.extend(touched.into_iter().map(OsStr::to_owned));
                continue;
            }
            match &done.deed {
                Deed::Create(inode, name) => {
                    names.insert(name.clone(), *inode);
                }
                Deed::Rename(inode, from, to) => {
                    names.remove(from);
                    names.insert(to.clone(), *inode);
                }
                Deed::Remove(_, name) => {
                    names.remove(name);
                }
                _ => {}
            }
        }
        names
    }

    /// A file's bytes after a cut.
    fn contents_after(
        &self,
        inode: Inode,
        cut: usize,
        luck: Luck,
        rng: &mut SplitMix64,
    ) -> Vec<u8> {
        let mut bytes = self.base.get(inode).cloned().unwrap_or_default();
        // The length as far as it is certain, and those that it may have.
        let mut lengths = vec![bytes.len()];
        let of_file: Vec<&Done> = self
            .done
            .iter()
            .filter(|done| done.began <= cut)
            .filter(|done| {
                matches!(done.deed, Deed::Write(of, ..) | Deed::SetLen(of, _) if of == inode)
            })
            .collect();
        let until = rng.below(of_file.len() + 1);
        let mut whole_len = bytes.len();
        for (at, done) in of_file.into_iter().enumerate() {
            let is_certain =
                self.is_certain(done, cut, |deed| matches!(deed, Deed::Sync(of) if *of == inode));
            whole_len = match &done.deed {
                Deed::Write(_, offset, data) => whole_len.max(offset + data.len()),
                Deed::SetLen(_, len) => *len,
                _ => whole_len,
            };
            if is_certain {
                lengths = vec![whole_len];
            } else {
                lengths.push(whole_len);
            }
            match &done.deed {
                Deed::Write(_, offset, data) => {
                    if bytes.len() < offset + data.len() {
                        bytes.resize(offset + data.len(), 0);
                    }
                    for (i, sector) in data.chunks(SECTOR).enumerate() {
                        let is_kept = is_certain
                            || match luck {
                                Luck::Nothing => false,
                                Luck::Everything => true,
                                Luck::Beginning => at < until || (at == until && rng.percent(50)),
                                Luck::Any => rng.percent(50),
                            };
                        if is_kept {
                            let from = offset + i * SECTOR;
                            bytes[from..from + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                Deed::SetLen(_, len) if is_certain || luck == Luck::Everything => {
                    bytes.resize(*len, 0);
                }
                _ => {}
            }
        }
        let (least, most) = (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap());
        let len = match luck {
            Luck::Nothing => lengths[0],
            Luck::Everything => whole_len,
            Luck::Beginning => *lengths.get(until).unwrap_or(&lengths[0]),
            Luck::Any => least + rng.below((most - least) / SECTOR + 1) * SECTOR,
        };
        bytes.resize(len, 0);
        bytes
    }
}

impl Forgetful {
    /// A disk on which all that is in a directory now is certain.
    pub fn on(dir: &Path) -> Self {
        let mut state = State::default();
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            state.names.insert(entry.file_name(), state.inodes);
            state.base.push(std::fs::read(entry.path()).unwrap());
            state.inodes += 1;
        }
        state.first_names = state.names.clone();
        Self { disk: Disk::new(false), state: Arc::new(Mutex::new(state)) }
    }

    /// A disk that says that it has made things durable and has not.
    #[must_use]
    pub fn that_lies(self) -> Self {
        self.lock().is_lying = true;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on notes at every moment what a recording promises.
    pub fn watch(&self, totals: &Arc<Totals>) {
        self.lock().totals = Some(totals.clone());
    }

    /// How many moments there were.
    pub fn moments(&self) -> usize {
        let mut state = self.lock();
        state.moment();
        state.promises.len()
    }

    /// What had been promised at a moment.
    pub fn promise(&self, moment: usize) -> Promise {
        self.lock().promises[moment].clone()
    }

    /// Puts into an empty directory what may be on the disk if the power is cut at a moment.
    pub fn cut(&self, moment: usize, luck: Luck, rng: &mut SplitMix64, into: &Path) {
        let state = self.lock();
        for (name, inode) in state.names_after(moment, luck, rng) {
            let bytes = state.contents_after(inode, moment, luck, rng);
            std::fs::write(into.join(name), bytes).unwrap();
        }
    }

    fn file(&self, inner: <Disk as Io>::File, inode: Inode) -> ForgetfulFile {
        ForgetfulFile { inner, inode, on: self.clone() }
    }
}

impl Io for Forgetful {
    type File = ForgetfulFile;

    fn create(&self, path: &Path) -> Result<ForgetfulFile> {
        let mut state = self.lock();
        let inner = self.disk.create(path)?;
        let inode = state.inodes;
        state.inodes += 1;
        let at = state.begin(Deed::Create(inode, name(path)));
        state.names.insert(name(path), inode);
        state.end(at);
        Ok(self.file(inner, inode))
    }

    fn open(&self, path: &Path) -> Result<ForgetfulFile> {
        let inner = self.disk.open(path)?;
        let inode = self.lock().inode(&name(path));
        Ok(self.file(inner, inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.lock();
        self.disk.rename(from, to)?;
        let inode = state.inode(&name(from));
        let at = state.begin(Deed::Rename(inode, name(from), name(to)));
        state.names.remove(&name(from));
        state.names.insert(name(to), inode);
        state.end(at);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.lock();
        self.disk.remove(path)?;
        let inode = state.inode(&name(path));
        let at = state.begin(Deed::Remove(inode, name(path)));
        state.names.remove(&name(path));
        state.end(at);
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        self.sync(Deed::SyncNames);
        Ok(())
    }

    fn space(&self, dir: &Path) -> Result<Space> {
        self.disk.space(dir)
    }
}

impl Forgetful {
    fn sync(&self, deed: Deed) {
        if self.lock().is_lying {
            return;
        }
        let at = self.lock().begin(deed);
        // Others have time to do something meanwhile.
        std::thread::sleep(Duration::from_micros(300));
        self.lock().end(at);
    }
}

impl File for ForgetfulFile {
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let at = self.on.lock().begin(Deed::Write(self.inode, offset as usize, bytes));
        let wrote = self.inner.write_at(pieces, offset);
        self.on.lock().end(at);
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert_eq!(wrote.as_ref().ok(), Some(&total), "the real disk must take all");
        wrote
    }

    fn preallocate(&self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let at = self.on.lock().begin(Deed::SetLen(self.inode, len as usize));
        self.inner.set_len(len)?;
        self.on.lock().end(at);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.on.sync(Deed::Sync(self.inode));
        Ok(())
    }
}
