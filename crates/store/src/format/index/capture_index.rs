//! Where in a capture file of another recorder may packets with a certain key be?
//!
//! Its index is an index as of a segment. In place of the segment's number and beginning, the
//! header has what tells this file from others and from itself when it is changed ([`Identity`]).
//! It lies beside the file, or in a cache where nobody may write there, and is written at once:
//! there is no log that others read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::builder::Builder;
use super::code::Room;
use super::granule::Summary;
use super::image::Header;
use super::lookup::{Index, open};
use super::merge;
use super::trust::believe;
use crate::format::name::SegmentName;
use crate::io::{Object, Owner, PAGE, State, Storage, object_of};

/// How the name of an index ends.
pub(crate) const SUFFIX: &str = ".tapdeck-index";

/// What tells a file from others: its length, when it was changed, and how it begins. A copy of the
/// file that has its times counts as the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    len: u64,
    changed_ns: i64,
    /// CRC32C of the file's first page.
    beginning: u32,
    /// The users that may write the file.
    owner: Option<Owner>,
}

impl Identity {
    pub fn of(file: &dyn Object) -> io::Result<Self> {
        let State { len, changed_ns, owner, .. } = file.state()?;
        let mut page = [0; PAGE];
        let have = file.read_up_to(&mut page, 0)?;
        Ok(Self { len, changed_ns, beginning: crc32c::crc32c(&page[..have]), owner })
    }

    /// Returns what stands in the index where a segment's name would.
    fn name(&self) -> SegmentName {
        SegmentName { number: self.beginning.into(), began_s: self.changed_ns, live: false }
    }

    /// Opens the first index of those at `places` that is this file's and is to be believed.
    pub fn open_index(&self, storage: &dyn Storage, places: &[PathBuf]) -> Option<Index> {
        let open = |place: &PathBuf| {
            let object = open(storage, place.as_os_str()).ok()??;
            believe(&*object, || Ok(self.owner)).ok()?;
            Index::closed(object, &self.name(), self.len).ok()
        };
        places.iter().find_map(open)
    }

    /// Returns why the first index at `places` that is not to be believed is none; `None` where
    /// there is no such index.
    pub fn disbelief(&self, storage: &dyn Storage, places: &[PathBuf]) -> Option<String> {
        let why = |place: &PathBuf| {
            let object = open(storage, place.as_os_str()).ok()??;
            believe(&*object, || Ok(self.owner)).err().map(|why| why.to_string())
        };
        places.iter().find_map(why)
    }
}

/// Returns where the index of a file may lie: beside it, and in the cache under a name that tells
/// all of its path.
pub(crate) fn places(path: &Path, cache: Option<&Path>) -> Vec<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let mut places = Vec::new();
    if let Some(dir) = path.parent() {
        let mut beside = name.clone();
        beside.push(SUFFIX);
        places.push(dir.join(beside));
    }
    if let (Some(cache), Ok(real)) = (cache, path.canonicalize()) {
        // FNV-1a.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = real.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, step);
        name.push(format!(".{hash:016x}{SUFFIX}"));
        places.push(cache.join(name));
    }
    places
}

/// Writes the index of a file that is read meanwhile.
pub(crate) struct Maker {
    identity: Identity,
    pub builder: Builder,
    place: PathBuf,
    /// The chunks of the index, in a file that has no name any more.
    log: File,
    log_len: u64,
    /// The index until it is whole.
    draft: Draft,
}

/// A file that is removed unless it becomes the index.
struct Draft {
    path: PathBuf,
    file: File,
    is_done: bool,
}

impl Maker {
    /// Begins an index at the first of the places where that is possible. `mode` is that of the
    /// file: whoever may not read the file may not read its index.
    ///
    /// # Errors
    /// `Other`, with why nothing can be put at each of the places.
    pub fn new(identity: Identity, mode: u32, places: &[PathBuf]) -> io::Result<Self> {
        let mut faults = Vec::new();
        for place in places {
            // The log's name is given to the draft.
            match Draft::create(place, mode).and_then(|draft| draft.file.try_clone()) {
                Ok(log) => {
                    let draft = Draft::create(place, mode)?;
                    let builder = Builder::new(&identity.name(), Vec::new());
                    let place = place.clone();
                    return Ok(Self { identity, builder, place, log, log_len: 0, draft });
                }
                Err(e) => faults.push(format!("{}: {e}", place.display())),
            }
        }
        let why = if faults.is_empty() {
            "there is no place for it: neither HOME nor XDG_CACHE_HOME is set".into()
        } else {
            format!("there is no place for it: {}", faults.join(", "))
        };
        Err(io::Error::other(why))
    }

    /// Makes room in the builder.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.builder.is_empty() {
            let chunk = self.builder.chunk();
            self.log.write_all_at(&chunk, self.log_len)?;
            self.log_len += chunk.len() as u64;
        }
        Ok(())
    }

    /// Makes the index, once the file was read to its end.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let SegmentName { number, began_s, .. } = self.identity.name();
        let summary = Summary { complete: true, ..Summary::default() };
        let header = Header { number, began_s, segment_len: self.identity.len, summary };
        let file = &self.draft.file;
        let mut flush = |pages: &[u8], at: u64| file.write_all_at(pages, at);
        merge::merge(
            &mut merge::chunks(&object_of(self.log), &mut Room::endless())?,
            header,
            &mut flush,
        )?;
        file.sync_data()?;
        fs::rename(&self.draft.path, &self.place)?;
        self.draft.is_done = true;
        Ok(())
    }
}

impl Draft {
    fn create(place: &Path, mode: u32) -> io::Result<Self> {
        if let Some(dir) = place.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut name = place.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let path = place.with_file_name(name);
        // A process that was killed may have left one.
        let _ = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode & 0o666);
        let file = options.open(&path)?;
        Ok(Self { path, file, is_done: false })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(&self.path);
        }
    }
}
