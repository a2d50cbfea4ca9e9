//! Which capture files of other recorders are there, and of what interfaces are their packets?
//!
//! pcap and pcapng files, alone or all of a directory, whoever wrote them: they are known by how
//! they begin. Nothing is known of the order of their packets, neither within a file nor of one to
//! another, so all of each has to be read before the first packet can be given.
//!
//! An answer names its interfaces before its packets. Those of a pcapng file nearly always stand at
//! its beginning, so that is what is looked at. Where another comes later
//! ([`Error::LateInterface`]), whoever asks begins again and has all of the files looked through
//! for descriptions. Since no packet goes out before all is read, it has given nothing by then.
//!
//! Of a file that has an index ([`super::make`]) the times are known, and all that is described is
//! at its beginning.
//!
//! Interfaces that are described alike are one. Those of pcap files have no names; there is one for
//! each link type.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tapdeck_packet::printable;

use super::blocks::PieceEnd;
use super::capture_file::{BEGINNING, Begin, CaptureFile, UNMEASURED, begin, pcap_link};
use super::error::Error;
use super::interface::{Described, nameless};
use super::note::Note;
use super::scan::{Context, Scanner};
use super::snapshot::{Contents, Snapshot};
use crate::format::index::{Identity, places};
use crate::format::without_indexes::WithoutIndexes;
use crate::io::{Access, Directory, Inflating, Object, Paths, State, Storage};
use crate::span::Span;

/// How capture files are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search<'a> {
    /// Whether all of each pcapng file is looked through for interfaces, which is needed only
    /// after [`Error::LateInterface`].
    pub whole: bool,
    /// The directory of indexes that are not beside their files.
    pub cache: Option<&'a Path>,
    /// Whether everything is read as if there were no indexes.
    pub ignores_indexes: bool,
}

/// What became of a file that was looked at.
enum Taken {
    /// A capture file, inside of the span or not.
    In,
    Compressed,
    Not,
}

/// What is beside capture files and is not read, although it may hold packets.
#[derive(Default)]
struct LeftOut {
    /// Files that are compressed in a way that is not read.
    files: Vec<String>,
    /// Links to directories.
    directories: Vec<String>,
}

impl LeftOut {
    /// Says what it is; `None` where nothing is left out.
    fn words(&self) -> Option<String> {
        let words = |names: &[String], one: &str, many: &str| match names {
            [] => None,
            [name] => Some(format!("1 {one} ({name})")),
            [name, ..] => Some(format!("{} {many} ({name} and others)", names.len())),
        };
        let files = words(&self.files, "compressed file", "compressed files");
        let directories = words(&self.directories, "link to a directory", "links to directories");
        let all: Vec<String> = files.into_iter().chain(directories).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }
}

/// Returns what notes call a file. Who wrote the file may have chosen its name, too.
pub(super) fn shown(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    printable::name(&name).into_owned()
}

impl Search<'_> {
    /// Returns a place with what is to be seen of it.
    fn seen(self, place: impl Storage + 'static) -> Arc<dyn Storage> {
        if self.ignores_indexes { Arc::new(WithoutIndexes::new(place)) } else { Arc::new(place) }
    }
}

/// Returns the directory of indexes whose files lie where this user may not write.
pub fn user_cache() -> Option<PathBuf> {
    let dir = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("tapdeck"))
}

impl Snapshot {
    /// Opens what is at `path`: a store as with [`Snapshot::open`], a pcap or pcapng file, or a
    /// directory with such files, also in directories in it. Files that gzip, Zstandard or LZ4
    /// compressed are read as what is in them, and those that are something else passed over. A
    /// note tells of those that are compressed in another way, and of links to directories.
    pub fn open_any(path: &Path, span: Span, search: Search<'_>) -> Result<Self, Error> {
        match Self::open_in(&search.seen(Directory::new(path)), span) {
            Err(Error::NotAStore(_) | Error::NotADirectory(_)) => {
                Self::of_captures(path, span, search)
            }
            opened => opened,
        }
    }

    fn of_captures(path: &Path, span: Span, search: Search<'_>) -> Result<Self, Error> {
        let fail = |e| Error::new(path.to_owned(), e);
        let is_dir = path.metadata().map_err(fail)?.is_dir();
        let mut left_out = LeftOut::default();
        let paths = Paths::at(path, |path| left_out.directories.push(shown(&path)));
        let storage = search.seen(Inflating::new(paths.map_err(fail)?));
        let names = storage.list().map_err(fail)?;
        let mut snapshot = Self::empty(storage);
        let (mut ours, mut captures) = (0, Vec::new());
        for name in names {
            match snapshot.add_capture(&name, span, search, &mut captures) {
                Ok(Taken::In) => ours += 1,
                Ok(Taken::Compressed) => left_out.files.push(shown(Path::new(&name))),
                Ok(Taken::Not) => {}
                // A ring of files loses its oldest.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::new(name.into(), e)),
            }
        }
        snapshot.contents = Contents::Captures(captures);
        let what = left_out.words();
        match (ours, is_dir, what) {
            (0, true, Some(what)) => Err(Error::NothingRead { path: path.to_owned(), what }),
            (0, true, None) => Err(Error::NoCaptures(path.to_owned())),
            (0, false, Some(_)) => Err(Error::Compressed(path.to_owned())),
            (0, false, None) => Err(Error::NotACapture(path.to_owned())),
            (_, _, what) => {
                snapshot.notes.extend(what.map(Note::LeftOut));
                Ok(snapshot)
            }
        }
    }

    /// Returns whether a file is one of the capture files, inside of the span or not.
    pub fn has_file(&self, file: &fs::Metadata) -> bool {
        self.files.contains(&(file.dev(), file.ino()))
    }

    /// Takes in a file: adds it to `captures` if the span reaches into it.
    fn add_capture(
        &mut self,
        object_name: &OsStr,
        span: Span,
        search: Search<'_>,
        captures: &mut Vec<CaptureFile>,
    ) -> io::Result<Taken> {
        let object = self.storage.open(object_name, Access::Ranges)?;
        let path = Path::new(object_name);
        let name = shown(path);
        let begun = begin(&*object)?;
        if let (Begin::Short(_) | Begin::Other, Some(what)) = (&begun, object.fault()) {
            self.notes.push(Note::Damaged { segment: name, at: 0, what });
            return Ok(Taken::In);
        }
        let context = match begun {
            Begin::Pcapng => Context::default(),
            Begin::Pcap(header) => {
                let interface = self.interface_of(nameless(pcap_link(&header)));
                Context::pcap(&header, interface)
            }
            Begin::Short(at) => {
                self.notes.push(Note::Unfinished { segment: name, at });
                return Ok(Taken::In);
            }
            Begin::Damaged(at, what) => {
                self.notes.push(Note::Damaged { segment: name, at, what: what.into() });
                return Ok(Taken::In);
            }
            Begin::Compressed => return Ok(Taken::Compressed),
            Begin::Other => return Ok(Taken::Not),
        };
        let State { id, len: disk_bytes, .. } = object.state()?;
        let end = if object.is_measured() { disk_bytes } else { UNMEASURED };
        self.files.push(id);
        let mut capture = CaptureFile {
            object: object_name.to_owned(),
            name,
            id,
            begin: context.head_len(),
            inner: context.clone(),
            context,
            earliest_ns: i64::MIN,
            index: None,
            end,
            disk_bytes,
        };
        if end == UNMEASURED {
            if capture.begin == 0 {
                capture.inner = self.find_interfaces(&*object, end, search.whole)?;
            }
            captures.push(capture);
            return Ok(Taken::In);
        }
        let identity = Identity::of(&*object)?;
        let places = places(path, search.cache);
        if let Some(index) = identity.open_index(&*self.storage, &places) {
            self.index_bytes += index.bytes_read();
            let all = index.summary();
            if all.first_ns >= span.before_ns || all.last_ns < span.after_ns {
                self.skipped += 1;
                return Ok(Taken::In);
            }
            capture.earliest_ns = all.first_ns;
            capture.index = Some((places, identity));
        } else if let Some(why) = identity.disbelief(&*self.storage, &places) {
            self.notes.push(Note::Disbelieved { segment: capture.name.clone(), why });
        }
        if capture.begin == 0 {
            let whole = search.whole && capture.index.is_none();
            capture.inner = self.find_interfaces(&*object, end, whole)?;
        }
        captures.push(capture);
        Ok(Taken::In)
    }

    /// Takes in the interfaces of a pcapng file. Returns what has to be known behind its beginning.
    fn find_interfaces(
        &mut self,
        object: &dyn Object,
        end: u64,
        whole: bool,
    ) -> io::Result<Context> {
        let mut scanner = Scanner::default();
        let mut take_in = |described| Some(self.interface_of(described));
        let mut read = |at, context: &Context| {
            scanner.read(object, context, at..end, BEGINNING, &mut take_in, |_, _| {})
        };
        let first = read(0, &Context::default())?;
        let (mut at, mut context, mut stop) = (first.end, first.context.clone(), first.stop);
        while whole && stop == PieceEnd::More {
            let passed = read(at, &context)?;
            (at, context, stop) = (passed.end, passed.context, passed.stop);
        }
        Ok(first.context)
    }

    /// Returns the index of an interface, which becomes known if it was not.
    fn interface_of(&mut self, described: Described) -> u32 {
        self.known_interface(&described).unwrap_or_else(|| {
            self.interfaces.push(described);
            self.interfaces.len() as u32 - 1
        })
    }

    pub(super) fn known_interface(&self, described: &Described) -> Option<u32> {
        self.interfaces.iter().position(|known| known == described).map(|at| at as u32)
    }
}
