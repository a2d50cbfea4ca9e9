//! Is everything in a store what it should be? Every block, length, counter, checksum and entry of
//! an index. Nothing is changed: what is wrong is told, and `recover` mends what can be mended.
//!
//! A segment is read once, in pieces of bounded size. Its blocks are checked by themselves and
//! counted, the counts are held against the statistics at its end, and the whole is indexed anew
//! and held against its index, key by key. A live segment may end anywhere, and its index may be
//! behind.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tapdeck_packet::pcapng::{
    self, Error as BlockError, Reader, Record, Statistics, section_header,
};

use crate::format::cutoff::adds_up;
use crate::format::index::{self, Checker, Difference, Index, SegmentHead, checksum_outside};
use crate::format::name::SegmentName;
use crate::format::segment::segment_names;
use crate::format::store::LOCK;
use crate::format::unseen::UnseenSpan;
use crate::io::{Access, Directory, Object, PAGE, Storage};
use crate::reading::holes::{self, Numbers};
use crate::reading::query::Error;

const PIECE: usize = 1 << 20;
/// The longest block that there can be.
const LONGEST: usize = 16 << 20;
/// How many flaws of one segment are told; the others are counted.
const TOLD: usize = 20;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The file's name.
    pub file: String,
    /// A place in the segment, also where it is the index that is wrong.
    pub at: u64,
    pub what: String,
}

/// How far a segment is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    Whole,
    /// The number of bytes, from the segment's beginning, that are indexed.
    Part(u64),
    No,
}

/// What was found of one segment.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub name: SegmentName,
    pub bytes: u64,
    pub packets: u64,
    pub indexed: Indexed,
    /// The first of the flaws.
    pub flaws: Vec<Flaw>,
    /// How many flaws there are.
    pub count: u64,
}

/// Looks at all segments of a store, oldest first. `each` hears of every one as soon as it is done;
/// one that is deleted meanwhile is passed over. `watch` is called with the bytes read so far,
/// every MiB; where it returns false, the checking ends and so does this function, with false.
pub fn verify(
    dir: &Path,
    watch: impl FnMut(u64) -> bool,
    each: impl FnMut(&Verdict),
) -> Result<bool, Error> {
    verify_in(&Directory::new(dir), watch, each)
}

/// Looks at a store as [`verify`] does, wherever it lies.
pub fn verify_in(
    storage: &dyn Storage,
    mut watch: impl FnMut(u64) -> bool,
    mut each: impl FnMut(&Verdict),
) -> Result<bool, Error> {
    let fail = |e| Error::new(storage.place().to_owned(), e);
    let names = segment_names(storage).map_err(fail)?;
    if names.is_empty() && !storage.list().map_err(fail)?.iter().any(|name| name == LOCK) {
        return Err(Error::NotAStore(storage.place().to_owned()));
    }
    let numbers = Numbers::list(storage).map_err(fail)?;
    let mut read = 0;
    for mut name in names {
        let verdict = look(storage, &mut name, |bytes| watch(read + bytes))
            .map_err(|e| Error::new(storage.location(name.to_string().as_ref()), e))?;
        match verdict {
            Look::Passed => {}
            Look::Ended => return Ok(false),
            Look::Judged(mut verdict) => {
                read += verdict.bytes;
                look_before(storage, &numbers, &mut verdict).map_err(fail)?;
                look_at_overview(storage, &mut verdict);
                each(&verdict);
            }
        }
    }
    Ok(true)
}

/// Looks at one segment as [`verify`] does, without those beside it. `None` where another program
/// wrote it, or it is gone.
pub(crate) fn verify_one(storage: &dyn Storage, name: &SegmentName) -> io::Result<Option<Verdict>> {
    let mut name = name.clone();
    Ok(match look(storage, &mut name, |_| true)? {
        Look::Judged(verdict) => Some(verdict),
        Look::Passed | Look::Ended => None,
    })
}

/// Looks whether segments are missing before one.
fn look_before(storage: &dyn Storage, numbers: &Numbers, verdict: &mut Verdict) -> io::Result<()> {
    let Some(missing) = numbers.missing_before(verdict.name.number, storage)? else {
        return Ok(());
    };
    let orphans = match &holes::orphans(storage, &missing)?[..] {
        [] => String::new(),
        [one] => format!("; the index {one} is there without its segment"),
        [one, others @ ..] => {
            format!("; the index {one} and {} more are there without their segments", others.len())
        }
    };
    let missing = holes::show(&missing, " before it");
    verdict.flaw(0, format!("{missing} missing{orphans}"));
    Ok(())
}

/// Looks at the overview that is named after a segment, if there is one.
fn look_at_overview(storage: &dyn Storage, verdict: &mut Verdict) {
    if !verdict.name.has_overview() {
        return;
    }
    let wrong = match index::differences(storage, &verdict.name) {
        Ok(wrong) => wrong.unwrap_or_default(),
        Err(e) => vec![format!("it cannot be used: {e}")],
    };
    let file = verdict.name.overview_name();
    for what in wrong {
        verdict.note(Flaw { file: file.clone(), at: 0, what });
    }
}

/// What became of a segment that was to be looked at.
enum Look {
    /// The segment is gone, or another program wrote it, or nothing is written of it yet.
    Passed,
    /// Whoever watches wanted no more.
    Ended,
    Judged(Verdict),
}

fn look(
    storage: &dyn Storage,
    name: &mut SegmentName,
    watch: impl FnMut(u64) -> bool,
) -> io::Result<Look> {
    let object = match open(storage, name) {
        Ok(object) => object,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Look::Passed),
        Err(e) => return Err(e),
    };
    let len = object.length()?;
    let head = match SegmentHead::read(&*object)? {
        Some(head) if !head.is_ours => return Ok(Look::Passed),
        None if name.live && len == 0 => return Ok(Look::Passed),
        None => {
            let mut verdict = Verdict::new(name, len);
            verdict.flaw(0, "it does not begin with a section header");
            return Ok(Look::Judged(verdict));
        }
        Some(head) => head,
    };
    let mut walk = Walk::new(storage, name, &*object, head)?;
    let goes_on = walk.run(&*object, watch)?;
    Ok(if goes_on { Look::Judged(walk.finish()) } else { Look::Ended })
}

/// Opens a segment, which may have been closed since it was listed.
fn open(storage: &dyn Storage, name: &mut SegmentName) -> io::Result<Arc<dyn Object>> {
    match storage.open(name.to_string().as_ref(), Access::Ranges) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && name.live => {
            *name = name.closed();
            storage.open(name.to_string().as_ref(), Access::Ranges)
        }
        opened => opened,
    }
}

impl Verdict {
    fn new(name: &SegmentName, bytes: u64) -> Self {
        Self {
            name: name.clone(),
            bytes,
            packets: 0,
            indexed: Indexed::No,
            flaws: Vec::new(),
            count: 0,
        }
    }

    fn flaw(&mut self, at: u64, what: impl Into<String>) {
        self.note(Flaw { file: self.name.to_string(), at, what: what.into() });
    }

    fn flaw_of_index(&mut self, at: u64, what: String) {
        // The log's name, where there is only that, differs by its end.
        self.note(Flaw { file: self.name.index_name(), at, what });
    }

    fn note(&mut self, flaw: Flaw) {
        self.count += 1;
        if self.flaws.len() < TOLD {
            self.flaws.push(flaw);
        }
    }
}

struct Walk {
    verdict: Verdict,
    len: u64,
    head: SegmentHead,
    checker: Option<Checker>,
    /// Packets that were counted, by interface id.
    packets: Vec<u64>,
    /// The statistics blocks of the segment.
    told: Vec<Statistics>,
    in_body: bool,
    /// Whether the index was told to be wrong.
    index_is_off: bool,
}

impl Walk {
    fn new(
        storage: &dyn Storage,
        name: &SegmentName,
        object: &dyn Object,
        head: SegmentHead,
    ) -> io::Result<Self> {
        let len = object.length()?;
        let verdict = Verdict::new(name, len);
        let packets = vec![0; head.links.len()];
        let mut walk = Self {
            verdict,
            len,
            head,
            checker: None,
            packets,
            told: Vec::new(),
            in_body: false,
            index_is_off: false,
        };
        walk.open_index(storage, name, object);
        Ok(walk)
    }

    fn open_index(&mut self, storage: &dyn Storage, name: &SegmentName, object: &dyn Object) {
        let opened = Index::open(storage, name, self.len).and_then(|index| {
            let Some(mut index) = index else { return Ok(None) };
            index.read_all()?;
            let is_whole = index.summary().complete;
            // A segment that was closed since it was listed had another length then.
            if is_whole && !name.live {
                let outside = checksum_outside(object, self.len, index.indexed())?;
                if outside != index.summary().outside {
                    let what = "its head or its end is not what was indexed (checksum)";
                    self.verdict.flaw(0, what);
                }
            }
            let bytes = index.indexed().iter().map(|part| part.end - part.start).sum();
            let checker = Checker::new(index, name, self.head.links.clone())?;
            Ok(Some((checker, if is_whole { Indexed::Whole } else { Indexed::Part(bytes) })))
        });
        match opened {
            Ok(Some((checker, indexed))) => {
                self.checker = Some(checker);
                self.verdict.indexed = indexed;
            }
            Ok(None) => {}
            Err(e) => self.verdict.flaw_of_index(0, format!("it cannot be used: {e}")),
        }
    }

    /// Reads the segment to its end. Returns false where `watch` wanted no more.
    fn run(&mut self, object: &dyn Object, mut watch: impl FnMut(u64) -> bool) -> io::Result<bool> {
        // The reader wants to begin with a section header.
        let mut prefix = Vec::new();
        section_header(&mut prefix, "", "", None);
        let (mut at, mut want) = (0, PIECE);
        let mut bytes = Vec::new();
        while at < self.len {
            if !watch(at) {
                return Ok(false);
            }
            let end = (at + want as u64).min(self.len);
            let upto = self.border(at).min(end);
            bytes.clear();
            bytes.extend_from_slice(&prefix);
            bytes.resize(prefix.len() + (upto - at) as usize, 0);
            let have = object.read_up_to(&mut bytes[prefix.len()..], at)?;
            bytes.truncate(prefix.len() + have);
            // A recorder may cut what a failed write left.
            self.len = if have as u64 == upto - at { self.len } else { at + have as u64 };
            let (whole, stop) = self.blocks(at, &bytes, prefix.len());
            self.index(at, &bytes[prefix.len()..][..whole]);
            object.forget(at..at + whole as u64);
            at += whole as u64;
            want = PIECE;
            match stop {
                None => {}
                Some(Stop::Short(needed))
                    if needed <= LONGEST && needed as u64 <= self.len - at =>
                {
                    if upto < end && whole == 0 {
                        // The block lies across a border of what is indexed.
                        self.verdict.flaw_of_index(
                            at,
                            "a block begins in it and does not end there".into(),
                        );
                        self.checker = None;
                    }
                    want = want.max(needed);
                }
                Some(Stop::Short(_)) if self.verdict.name.live => break,
                Some(Stop::Short(needed)) => {
                    self.verdict.flaw(at, format!("a block of {needed} bytes that is cut short"));
                    break;
                }
                Some(Stop::Damaged(what)) => {
                    self.verdict.flaw(at, what);
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Returns the first place behind `at` where an indexed part begins or ends.
    fn border(&self, at: u64) -> u64 {
        match self.checker.as_ref().and_then(Checker::wants) {
            Some(stretch) if stretch.start > at => stretch.start,
            Some(stretch) => stretch.end,
            None => u64::MAX,
        }
    }

    /// Looks at whole blocks. Returns how many bytes they are and what ended them.
    fn blocks(&mut self, base: u64, bytes: &[u8], prefix: usize) -> (usize, Option<Stop>) {
        let mut reader = Reader::new(bytes);
        reader.next();
        loop {
            let whole = reader.offset() as usize - prefix;
            match reader.next() {
                None => return (whole, None),
                Some(Ok(record)) => self.block(base + whole as u64, &record),
                Some(Err(BlockError::CutShort { needed, .. })) => {
                    return (whole, Some(Stop::Short(needed as usize)));
                }
                Some(Err(BlockError::Damaged { what, .. })) => {
                    return (whole, Some(Stop::Damaged(what)));
                }
                Some(Err(BlockError::NotPcapng)) => {
                    return (whole, Some(Stop::Damaged("there is no section header")));
                }
            }
        }
    }

    fn block(&mut self, at: u64, record: &Record<'_>) {
        match record {
            Record::Section(_) if at > 0 => self.verdict.flaw(at, "a second section header"),
            Record::Interface(_) if self.in_body => {
                self.verdict.flaw(at, "an interface description behind packets");
            }
            Record::Interface(interface) if interface.resolution != 9 => {
                self.verdict.flaw(at, "an interface whose times are not nanoseconds");
            }
            Record::Packet(packet) => {
                self.in_body = true;
                if !self.told.is_empty() {
                    self.verdict.flaw(at, "a packet behind the statistics");
                }
                match self.packets.get_mut(packet.interface as usize) {
                    Some(packets) => *packets += 1,
                    None => self.verdict.flaw(at, "a packet of an interface that is not described"),
                }
                if packet.frame.len() > packet.original_len as usize {
                    self.verdict.flaw(at, "more of a packet was captured than there was");
                }
                if i64::try_from(packet.timestamp).is_err() {
                    self.verdict.flaw(at, "a packet of a time that cannot be");
                }
            }
            // What went unseen before the segment is told among its blocks.
            Record::Statistics(statistics) if UnseenSpan::told(statistics).is_some() => {}
            Record::Statistics(statistics) => self.told.push(statistics.clone()),
            Record::Section(_) | Record::Interface(_) | Record::Other(pcapng::FILL) => {}
            Record::Other(kind) => self.verdict.flaw(at, format!("a block of type {kind:#x}")),
        }
    }

    /// Holds blocks against the index, if they are in it.
    fn index(&mut self, at: u64, blocks: &[u8]) {
        let Some(checker) = &mut self.checker else { return };
        if checker.wants().is_none_or(|stretch| stretch.start != at) {
            return;
        }
        let mut differences = Vec::new();
        let taken = checker.take(blocks, &mut differences);
        self.differ(differences, taken);
    }

    fn differ(&mut self, differences: Vec<Difference>, checked: io::Result<()>) {
        for Difference { at, is_segments, what } in differences {
            let what = format!("the granule at {at}: {what}");
            if is_segments {
                self.verdict.flaw(at, what);
            } else {
                self.verdict.flaw_of_index(at, what);
            }
            self.index_is_off = true;
        }
        if let Err(e) = checked {
            self.checker = None;
            self.verdict.flaw_of_index(0, format!("it cannot be used: {e}"));
        }
    }

    fn finish(mut self) -> Verdict {
        if let Some(checker) = self.checker.take() {
            let mut differences = Vec::new();
            let checked = checker.finish(&mut differences);
            // A live segment may be indexed farther by now than it was read.
            if !self.verdict.name.live && !self.index_is_off {
                self.differ(differences, checked);
            }
        }
        self.verdict.packets = self.packets.iter().sum();
        if !self.verdict.name.live {
            self.check_end();
        }
        self.verdict
    }

    fn check_end(&mut self) {
        if !self.len.is_multiple_of(PAGE as u64) {
            self.verdict.flaw(self.len, "its length is no multiple of 4096");
        }
        for interface in 0..self.packets.len() {
            let told: Vec<&Statistics> =
                self.told.iter().filter(|s| s.interface as usize == interface).collect();
            let counted = self.packets[interface];
            let what = match told[..] {
                [] => format!("no statistics of interface {interface}"),
                [s] if s.delivered != Some(counted) => format!(
                    "the statistics of interface {interface} tell of {} packets, and there are {counted}",
                    s.delivered.map_or("no".into(), |n| n.to_string())
                ),
                [s] if !adds_up(s) => {
                    format!("the statistics of interface {interface} do not add up")
                }
                [_] => continue,
                _ => format!("statistics of interface {interface} more than once"),
            };
            self.verdict.flaw(self.len, what);
        }
    }
}

enum Stop {
    /// The beginning of a block that has so many bytes.
    Short(usize),
    Damaged(&'static str),
}
