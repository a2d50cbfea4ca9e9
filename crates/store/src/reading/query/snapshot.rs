//! What is in a store at one moment, as far as the ends of its segments tell.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tapdeck_packet::link::LinkType;

use super::ends::{Ends, Seen, look_at_all};
use super::foreign::Capture;
use super::{Error, Note, Span};
use crate::format::name::SegmentName;
use crate::format::store::LOCK;

/// How often a directory is listed until two lists agree.
const LISTS: usize = 100;
/// Segments whose ends are in memory at a time.
const AT_ONCE: usize = 256;

/// An interface of a store: a ring of a network interface, as one recording or several described
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its interface description block as it stands in the segments.
    pub block: Vec<u8>,
    pub name: String,
    pub link: LinkType,
}

/// How a segment begins.
pub(crate) struct Head {
    /// The section header block.
    pub section: Vec<u8>,
    /// For each interface id, the index into [`Snapshot::interfaces`].
    pub interfaces: Vec<u32>,
}

pub(crate) struct Segment {
    pub name: SegmentName,
    pub head: Arc<Head>,
    /// Where the blocks behind the interface descriptions, and the fill behind those, begin.
    pub begin: u64,
    /// The file's length when it was looked at.
    pub end: u64,
    /// No packet in it is from before this.
    pub earliest_ns: i64,
}

/// The segments of a store that a span of time reaches into. Those that come later are not in it,
/// nor is what is written after it was made. Or capture files of other recorders: then it has no
/// segments.
pub struct Snapshot {
    pub(crate) dir: PathBuf,
    pub(crate) segments: Vec<Segment>,
    pub(super) captures: Vec<Capture>,
    /// Device and inode of those, and of those that were left out.
    pub(super) files: Vec<(u64, u64)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) interfaces: Vec<Described>,
    /// Read of indexes.
    pub(crate) index_bytes: u64,
    pub(super) skipped: usize,
}

impl Snapshot {
    /// Looks at the ends of all segments, and leaves out those that lie outside of `span`.
    pub fn open(dir: &Path, span: Span) -> Result<Self, Error> {
        let fail = |e| Error::new(dir.to_owned(), e);
        let (names, recorded) = list(dir).map_err(fail)?;
        let mut snapshot = Self::empty(dir);
        let mut ours = 0;
        for names in names.chunks(AT_ONCE) {
            for (name, seen) in names.iter().zip(look_at_all(dir, names, span)) {
                ours += usize::from(snapshot.add(name, seen?, span)?);
            }
        }
        if ours == 0 && !recorded {
            return Err(Error::NotAStore(dir.to_owned()));
        }
        Ok(snapshot)
    }

    pub(super) fn empty(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            segments: Vec::new(),
            captures: Vec::new(),
            files: Vec::new(),
            notes: Vec::new(),
            interfaces: Vec::new(),
            index_bytes: 0,
            skipped: 0,
        }
    }

    /// The interfaces of all segments or files that are read, each once.
    pub fn interfaces(&self) -> &[Described] {
        &self.interfaces
    }

    /// Segments or files to be read, and those left out because they lie outside of the span.
    pub fn segments(&self) -> (usize, usize) {
        (self.segments.len() + self.captures.len(), self.skipped)
    }

    /// Whether these are files of other recorders.
    pub fn is_foreign(&self) -> bool {
        !self.files.is_empty()
    }

    pub(super) fn path(&self, segment: usize) -> PathBuf {
        match self.captures.get(segment) {
            Some(capture) => capture.path().to_owned(),
            None => self.segments[segment].name.path(&self.dir),
        }
    }

    /// Of a segment or file, for notes.
    pub(super) fn name(&self, segment: usize) -> String {
        match self.captures.get(segment) {
            Some(capture) => capture.name.clone(),
            None => self.segments[segment].name.to_string(),
        }
    }

    /// Of each segment or file: how many bytes are to be looked through, and from when its earliest
    /// packet may be.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, i64)> {
        let segments = self.segments.iter().map(|s| (s.end - s.begin, s.earliest_ns));
        segments.chain(self.captures.iter().map(|c| (c.end - c.begin, c.earliest_ns)))
    }

    /// Takes in a segment; false if it is none of tapdeck's.
    fn add(&mut self, name: &SegmentName, seen: Seen, span: Span) -> Result<bool, Error> {
        let Ends { begun, end, earliest_ns, latest_ns, index_bytes } = match seen {
            Seen::Segment(ends) => ends,
            Seen::Foreign => return Ok(false),
            Seen::Gone => {
                self.notes.push(Note::Deleted(name.to_string()));
                return Ok(true);
            }
        };
        self.index_bytes += index_bytes;
        if begun.swapped {
            return Err(Error::ByteOrder(name.path(&self.dir)));
        }
        if latest_ns.is_some_and(|ns| ns < span.after_ns) || earliest_ns >= span.before_ns {
            self.skipped += 1;
            return Ok(true);
        }
        if let Some((at, what)) = begun.damaged {
            let note = Note::Damaged { segment: name.to_string(), at, what: what.into() };
            self.notes.push(note);
            return Ok(true);
        }
        let mut interfaces = Vec::with_capacity(begun.interfaces.len());
        for interface in begun.interfaces {
            interfaces.push(self.interface(interface, &interfaces));
        }
        let head = Head { section: begun.section, interfaces };
        // Those of one recording have it in common.
        let head = match self.segments.last() {
            Some(last)
                if last.head.section == head.section && last.head.interfaces == head.interfaces =>
            {
                last.head.clone()
            }
            _ => Arc::new(head),
        };
        let name = name.clone();
        self.segments.push(Segment { name, head, begin: begun.end, end, earliest_ns });
        Ok(true)
    }

    /// The index of an interface that is none of a segment's `others`.
    fn interface(&mut self, interface: Described, others: &[u32]) -> u32 {
        let is_same = |(at, known): (usize, &Described)| {
            *known == interface && !others.contains(&(at as u32))
        };
        let known = self.interfaces.iter().enumerate().position(is_same);
        let at = known.unwrap_or(self.interfaces.len());
        if known.is_none() {
            self.interfaces.push(interface);
        }
        at as u32
    }
}

/// The segments' names in the order of recording, and whether a recorder was ever there.
///
/// A list that is made while a segment is renamed may hold it under both names or none, so
/// it is made until none appears or goes.
fn list(dir: &Path) -> io::Result<(Vec<SegmentName>, bool)> {
    let mut before: Option<BTreeMap<u64, SegmentName>> = None;
    for _ in 0..LISTS {
        let mut now: BTreeMap<u64, SegmentName> = BTreeMap::new();
        for entry in dir.read_dir()? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(SegmentName::parse) else {
                continue;
            };
            if entry.file_type()?.is_file() {
                // Closed, if both are there.
                let known = now.entry(name.number).or_insert_with(|| name.clone());
                known.live &= name.live;
            }
        }
        if before.as_ref().is_some_and(|before| before.keys().eq(now.keys())) {
            before = Some(now);
            break;
        }
        before = Some(now);
    }
    let names = before.unwrap_or_default().into_values().collect();
    Ok((names, dir.join(LOCK).exists()))
}

/// A segment that was live when it was listed may have been closed meanwhile.
pub(crate) fn open_segment(dir: &Path, name: &SegmentName, how: OFlags) -> io::Result<File> {
    let open = |name: &SegmentName| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | how;
        rustix::fs::open(name.path(dir), flags, Mode::empty())
            .map(File::from)
            .map_err(io::Error::from)
    };
    match open(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && name.live => open(&name.closed()),
        result => result,
    }
}
