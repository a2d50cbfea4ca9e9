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

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Interface, InterfaceDescription};
use tapdeck_packet::trace::{self, Format};

use super::blocks::Stop;
use super::scan::{Context, Scanner};
use super::snapshot::{Described, Snapshot};
use super::{Error, Note, Span};
use crate::format::index::{GRANULE, Identity, Index, places};
use crate::io::read_at;

/// What is looked at for interfaces: an index has a granule of it.
pub(super) const BEGINNING: usize = GRANULE as usize;
/// A pcap file's header.
const HEADER: usize = 24;
/// Of an interface that has no name.
const NAMELESS: &str = "-";

/// A capture file of another recorder.
pub(crate) struct Capture {
    path: PathBuf,
    pub name: String,
    /// Device and inode: another file may come to have its name.
    id: (u64, u64),
    /// Where its packets begin, and what has to be known there.
    pub begin: u64,
    pub context: Context,
    /// What has to be known behind [`BEGINNING`], if nothing is described there.
    pub inner: Context,
    /// No packet in it is from before this.
    pub earliest_ns: i64,
    /// Where its index may be, and whose that must be. `None` where there is none.
    index: Option<(Vec<PathBuf>, Identity)>,
    /// Its length when it was looked at.
    pub end: u64,
}

impl Capture {
    /// Fails as if it were gone where another has its name.
    pub fn open(&self) -> io::Result<File> {
        let (file, metadata) = open(&self.path)?;
        if id_of(&metadata) != self.id {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    /// Its index, if it is still there.
    pub fn index(&self) -> Option<Index> {
        let (places, identity) = self.index.as_ref()?;
        identity.open_index(places)
    }

    /// What has to be known where a granule begins.
    pub fn context_at(&self, begin: u64) -> Context {
        if begin <= self.begin { self.context.clone() } else { self.inner.clone() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How capture files are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search<'a> {
    /// All of each pcapng file is looked through for interfaces, which is needed only after
    /// [`Error::LateInterface`].
    pub whole: bool,
    /// Where indexes are that are not beside their files.
    pub cache: Option<&'a Path>,
}

impl Snapshot {
    /// What is at `path`: a store as with [`Snapshot::open`], a pcap or pcapng file, or a directory
    /// with such files. Files that are something else are passed over, and so are directories
    /// in it.
    pub fn open_any(path: &Path, span: Span, search: Search<'_>) -> Result<Self, Error> {
        match Self::open(path, span) {
            Err(Error::NotAStore(_) | Error::NotADirectory(_)) => {
                Self::of_captures(path, span, search)
            }
            opened => opened,
        }
    }

    fn of_captures(path: &Path, span: Span, search: Search<'_>) -> Result<Self, Error> {
        let (paths, is_dir) = candidates(path)?;
        let mut snapshot = Self::empty(path);
        let mut ours = 0;
        for path in paths {
            match snapshot.add_capture(&path, span, search) {
                Ok(is_capture) => ours += usize::from(is_capture),
                // A ring of files loses its oldest.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::new(path, e)),
            }
        }
        match (ours, is_dir) {
            (0, true) => Err(Error::NoCaptures(path.to_owned())),
            (0, false) => Err(Error::NotACapture(path.to_owned())),
            _ => Ok(snapshot),
        }
    }

    /// Whether a file is one of the capture files, inside of the span or not.
    pub fn has_file(&self, file: &fs::Metadata) -> bool {
        self.files.contains(&id_of(file))
    }

    /// Takes in a file; false if it is no capture file.
    fn add_capture(&mut self, path: &Path, span: Span, search: Search<'_>) -> io::Result<bool> {
        let (file, metadata) = open(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let context = match begin(&file, &metadata)? {
            Begin::Pcapng => Context::default(),
            Begin::Pcap(header) => {
                let interface = self.interface_of(nameless(pcap_link(&header)));
                Context::pcap(&header, interface)
            }
            Begin::Short(at) => {
                self.notes.push(Note::Unfinished { segment: name, at });
                return Ok(true);
            }
            Begin::Damaged(at, what) => {
                self.notes.push(Note::Damaged { segment: name, at, what: what.into() });
                return Ok(true);
            }
            Begin::Other => return Ok(false),
        };
        let id = id_of(&metadata);
        self.files.push(id);
        let mut capture = Capture {
            path: path.to_owned(),
            name,
            id,
            begin: context.head_len(),
            inner: context.clone(),
            context,
            earliest_ns: i64::MIN,
            index: None,
            end: metadata.len(),
        };
        let identity = Identity::of(&file)?;
        let places = places(path, search.cache);
        if let Some(index) = identity.open_index(&places) {
            self.index_bytes += index.bytes_read();
            let all = index.summary();
            if all.first_ns >= span.before_ns || all.last_ns < span.after_ns {
                self.skipped += 1;
                return Ok(true);
            }
            capture.earliest_ns = all.first_ns;
            capture.index = Some((places, identity));
        }
        if capture.begin == 0 {
            let whole = search.whole && capture.index.is_none();
            capture.inner = self.find_interfaces(&file, capture.end, whole)?;
        }
        self.captures.push(capture);
        Ok(true)
    }

    /// Takes in those of a pcapng file. Gives back what has to be known behind its beginning.
    fn find_interfaces(&mut self, file: &File, end: u64, whole: bool) -> io::Result<Context> {
        let mut scanner = Scanner::default();
        let mut take_in = |described| Some(self.interface_of(described));
        let mut read = |at, context: &Context| {
            scanner.read(file, context, at..end, BEGINNING, &mut take_in, |_, _| {})
        };
        let first = read(0, &Context::default())?;
        let (mut at, mut context, mut stop) = (first.end, first.context.clone(), first.stop);
        while whole && stop == Stop::More {
            let passed = read(at, &context)?;
            (at, context, stop) = (passed.end, passed.context, passed.stop);
        }
        Ok(first.context)
    }

    /// The index of an interface.
    fn interface_of(&mut self, described: Described) -> u32 {
        self.known_interface(&described).unwrap_or_else(|| {
            self.interfaces.push(described);
            self.interfaces.len() as u32 - 1
        })
    }

    pub(crate) fn known_interface(&self, described: &Described) -> Option<u32> {
        self.interfaces.iter().position(|known| known == described).map(|at| at as u32)
    }
}

/// How a file begins.
pub(super) enum Begin {
    Pcapng,
    /// With this header.
    Pcap([u8; HEADER]),
    /// As a pcap file, of which not even the header is whole.
    Short(u64),
    /// As a pcap file, but what stands there makes no sense.
    Damaged(u64, &'static str),
    /// As something else.
    Other,
}

pub(super) fn begin(file: &File, metadata: &fs::Metadata) -> io::Result<Begin> {
    let mut header = [0; HEADER];
    let have = if metadata.is_file() { read_at(file, &mut header, 0)? } else { 0 };
    Ok(match trace::Reader::new(&header[..have]) {
        Ok(reader) if reader.format() == Format::Pcap => Begin::Pcap(header),
        Ok(_) => Begin::Pcapng,
        Err(trace::Error::CutShort { at, .. }) => Begin::Short(at),
        Err(trace::Error::Unsupported { at, what } | trace::Error::Damaged { at, what }) => {
            Begin::Damaged(at, what)
        }
        Err(_) => Begin::Other,
    })
}

/// An interface as it stands in an answer: in nanoseconds, and with no limit to what is captured.
/// libpcap refuses files whose interfaces have different limits.
pub(crate) fn described(interface: Interface) -> Described {
    let Interface { link, name, description, filter, hardware, .. } = interface;
    let mut block = Vec::new();
    let description = InterfaceDescription {
        link,
        snaplen: 0,
        name: name.clone().unwrap_or_default(),
        description: description.unwrap_or_default(),
        filter,
        hardware,
        mac: None,
    };
    pcapng::interface_description(&mut block, &description);
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| NAMELESS.into());
    Described { block, name, link }
}

fn nameless(link: LinkType) -> Described {
    described(Interface {
        link,
        snaplen: 0,
        name: None,
        description: None,
        filter: None,
        hardware: None,
        os: None,
        resolution: 9,
        offset_s: 0,
    })
}

/// The link type in a pcap file's header, whose magic number was seen to be good.
fn pcap_link(header: &[u8]) -> LinkType {
    let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    // Of all magic numbers, the half with 0xa1b2 tells the order.
    let is_little = word(0)[3] == 0xa1;
    let field = if is_little { u32::from_le_bytes(word(20)) } else { u32::from_be_bytes(word(20)) };
    LinkType(field as u16)
}

/// The files that may be captures, and whether they are those of a directory.
pub(super) fn candidates(path: &Path) -> Result<(Vec<PathBuf>, bool), Error> {
    let fail = |e| Error::new(path.to_owned(), e);
    let is_dir = path.metadata().map_err(fail)?.is_dir();
    Ok((if is_dir { files(path).map_err(fail)? } else { vec![path.to_owned()] }, is_dir))
}

/// The files in a directory, in the order of their names.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in dir.read_dir()? {
        let path = entry?.path();
        if fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn id_of(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Never waits for somebody to write, as a pipe would.
pub(super) fn open(path: &Path) -> io::Result<(File, fs::Metadata)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    Ok((file, metadata))
}
