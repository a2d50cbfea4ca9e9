//! What is in a store at one moment, as far as the ends of its segments tell.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{Error as BlockError, MIN_FILL, Reader, Record};

use super::blocks::{forget_pages, read_at};
use super::{Error, Note, SLACK_NS, Span};
use crate::SegmentName;
use crate::store::LOCK;

/// What is read of a segment's beginning or end at first, and at most.
const FIRST: usize = 16 << 10;
const MOST: usize = 16 << 20;
const APPLICATION: &str = "tapdeck ";
const NANOSECONDS: u8 = 9;
/// How often a directory is listed until two lists agree.
const LISTS: usize = 100;

/// An interface of a store: a ring of a network interface, as one recording or several described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its interface description block as it stands in the segments.
    pub block: Vec<u8>,
    pub name: String,
    pub link: LinkType,
}

/// How a segment begins.
pub(super) struct Head {
    /// The section header block.
    pub section: Vec<u8>,
    /// For each interface id, the index into [`Snapshot::interfaces`].
    pub interfaces: Vec<u32>,
}

pub(super) struct Segment {
    pub name: SegmentName,
    pub head: Arc<Head>,
    /// Where the blocks behind the interface descriptions begin.
    pub begin: u64,
    /// The file's length when it was looked at.
    pub end: u64,
    /// No packet in it is from before this.
    pub earliest_ns: i64,
}

/// The segments of a store that a span of time reaches into. Those that come later are not in it,
/// nor is what is written after it was made.
pub struct Snapshot {
    pub(super) dir: PathBuf,
    pub(super) segments: Vec<Segment>,
    pub(super) notes: Vec<Note>,
    pub(super) interfaces: Vec<Described>,
    skipped: usize,
}

impl Snapshot {
    /// Looks at the ends of all segments, and leaves out those that lie outside of `span`.
    pub fn open(dir: &Path, span: Span) -> Result<Self, Error> {
        let fail = |e| Error::new(dir.to_owned(), e);
        let (names, recorded) = list(dir).map_err(fail)?;
        let mut snapshot = Self {
            dir: dir.to_owned(),
            segments: Vec::new(),
            notes: Vec::new(),
            interfaces: Vec::new(),
            skipped: 0,
        };
        let mut buffer = Vec::new();
        let mut ours = 0;
        for name in names {
            let path = name.path(dir);
            let file = match open_segment(dir, &name) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    snapshot.notes.push(Note::Deleted(name.to_string()));
                    ours += 1;
                    continue;
                }
                Err(e) => return Err(Error::new(path, e)),
            };
            ours += usize::from(snapshot.add(&file, name, span, &mut buffer)?);
        }
        if ours == 0 && !recorded {
            return Err(Error::NotAStore(dir.to_owned()));
        }
        Ok(snapshot)
    }

    /// The interfaces of all segments that are read, each once.
    pub fn interfaces(&self) -> &[Described] {
        &self.interfaces
    }

    /// Segments to be read, and those left out because they lie outside of the span.
    pub fn segments(&self) -> (usize, usize) {
        (self.segments.len(), self.skipped)
    }

    pub(super) fn path(&self, segment: usize) -> PathBuf {
        self.segments[segment].name.path(&self.dir)
    }

    /// Takes in a segment; false if it is none of tapdeck's.
    fn add(
        &mut self,
        file: &File,
        name: SegmentName,
        span: Span,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let fail = |e| Error::new(name.path(&self.dir), e);
        let about = file.metadata().map_err(fail)?;
        let end = about.len();
        let Some(begun) = begin(file, end, buffer).map_err(fail)? else { return Ok(false) };
        if begun.swapped {
            return Err(Error::ByteOrder(name.path(&self.dir)));
        }
        let began_ns = name.began_s.saturating_mul(1_000_000_000);
        let first_ns = begun.first_ns.unwrap_or(began_ns);
        let earliest_ns = began_ns.min(first_ns).saturating_sub(SLACK_NS);
        // One that is being written has no end yet.
        let over = !name.live && earliest_ns < span.after_ns && {
            let latest = latest_ns(file, end, &begun.section, buffer).map_err(fail)?;
            latest.is_some_and(|ns| ns.saturating_add(SLACK_NS) < span.after_ns)
        };
        if over || earliest_ns >= span.before_ns {
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
pub(super) fn open_segment(dir: &Path, name: &SegmentName) -> io::Result<File> {
    let open = |name: &SegmentName| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(name.path(dir), flags, Mode::empty())
            .map(File::from)
            .map_err(io::Error::from)
    };
    match open(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && name.live => open(&name.closed()),
        result => result,
    }
}

/// What stands at a segment's beginning.
struct Begun {
    section: Vec<u8>,
    swapped: bool,
    interfaces: Vec<Described>,
    /// Behind the descriptions.
    end: u64,
    /// Of the first packet.
    first_ns: Option<i64>,
    damaged: Option<(u64, &'static str)>,
}

/// `None` where it is not ours.
fn begin(file: &File, len: u64, buffer: &mut Vec<u8>) -> io::Result<Option<Begun>> {
    let mut want = FIRST;
    loop {
        buffer.resize((want as u64).min(len) as usize, 0);
        let have = read_at(file, buffer, 0)?;
        buffer.truncate(have);
        forget_pages(file, 0, have as u64);
        let (begun, short) = parse_begin(buffer);
        if !short || have < want || want >= MOST {
            return Ok(begun);
        }
        want *= 4;
    }
}

/// The second: whether more could be told from more bytes.
fn parse_begin(bytes: &[u8]) -> (Option<Begun>, bool) {
    let mut reader = Reader::new(bytes);
    let section = match reader.next() {
        Some(Ok(Record::Section(section))) => section,
        Some(Err(BlockError::CutShort { .. })) => return (None, true),
        _ => return (None, false),
    };
    if !section.application.is_some_and(|a| a.starts_with(APPLICATION)) {
        return (None, false);
    }
    let mut at = reader.offset() as usize;
    let magic = tapdeck_packet::pcapng::BYTE_ORDER_MAGIC.to_ne_bytes();
    let mut begun = Begun {
        section: bytes[..at].to_vec(),
        swapped: bytes[8..12] != magic,
        interfaces: Vec::new(),
        end: at as u64,
        first_ns: None,
        damaged: None,
    };
    while let Some(record) = reader.next() {
        match record {
            Ok(Record::Interface(interface)) => {
                if interface.resolution != NANOSECONDS || interface.offset_s != 0 {
                    begun.damaged =
                        Some((at as u64, "an interface whose times are not nanoseconds"));
                }
                let block = bytes[at..reader.offset() as usize].to_vec();
                let name = interface.name.unwrap_or_default();
                begun.interfaces.push(Described { block, name, link: interface.link });
                begun.end = reader.offset();
            }
            Ok(Record::Packet(packet)) => {
                begun.first_ns = i64::try_from(packet.timestamp).ok();
                return (Some(begun), false);
            }
            Ok(_) => {}
            Err(e) => return (Some(begun), matches!(e, BlockError::CutShort { .. })),
        }
        at = reader.offset() as usize;
    }
    (Some(begun), true)
}

/// The latest time that stands at a segment's end: when it was closed, or of its last packet. `None`
/// where none is found there.
fn latest_ns(
    file: &File,
    len: u64,
    section: &[u8],
    buffer: &mut Vec<u8>,
) -> io::Result<Option<i64>> {
    let mut want = FIRST as u64;
    loop {
        let begin = len.saturating_sub(want);
        buffer.resize((len - begin) as usize, 0);
        let have = read_at(file, buffer, begin)?;
        forget_pages(file, begin, begin + have as u64);
        if have < buffer.len() {
            return Ok(None);
        }
        match parse_end(buffer, section) {
            None if begin > 0 && want < MOST as u64 => want *= 4,
            latest => return Ok(latest),
        }
    }
}

/// Backwards by the lengths at the blocks' ends, until a packet.
fn parse_end(bytes: &[u8], section: &[u8]) -> Option<i64> {
    let mut end = bytes.len();
    let mut latest: Option<i64> = None;
    let mut one = Vec::new();
    loop {
        let word = bytes[end.checked_sub(4)?..end].first_chunk()?;
        let total = u32::from_ne_bytes(*word) as usize;
        let at = end.checked_sub(total).filter(|_| total >= MIN_FILL)?;
        one.clear();
        one.extend_from_slice(section);
        one.extend_from_slice(&bytes[at..end]);
        match Reader::new(&one).nth(1)?.ok()? {
            Record::Packet(p) => return latest.max(i64::try_from(p.timestamp).ok()),
            Record::Statistics(s) => latest = latest.max(i64::try_from(s.timestamp).ok()),
            Record::Other(_) => {}
            Record::Section(_) | Record::Interface(_) => return None,
        }
        end = at;
    }
}
