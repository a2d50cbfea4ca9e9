//! How does an overview come to be? Of the indexes of its segments, in one pass over all of them at
//! once, under a name of its own that becomes the other when the overview is whole.
//!
//! Memory is bounded whatever the segments hold: directories share a bound, and an index that has
//! no room is not covered; of each dictionary stands one section in memory; and a class with many
//! keys is told by hashes, of which there are 65,536.

use std::io;
use std::path::Path;

use roaring::RoaringBitmap;
use tapdeck_packet::key::Class;
use tapdeck_packet::pcapng::{Error as BlockError, Reader, Record};

use super::table::{Member, Table};
use super::{Header, LONGEST_TABLE, Overview, differences};
use crate::format::index::code::{Room, damaged, put_granules};
use crate::format::index::image::{Draft, EntryKind, Image, hash};
use crate::format::index::lookup::Index;
use crate::format::index::merge::{ChunkKeys, MergedKeys, Numbers};
use crate::format::index::spots::Spot;
use crate::format::name::SegmentName;
use crate::format::segment::{APPLICATION_PREFIX, read_beginning};
use crate::format::unseen::UnseenSpan;
use crate::io::{Access, File as _, Io, Object, Storage, write_pages};

/// Memory that the directories of all indexes take at most.
const DIRECTORIES_ROOM: usize = 32 << 20;
/// The longest head of a segment that is covered: 64 of them have room in a table.
const LONGEST_HEAD: usize = LONGEST_TABLE / 80;
/// Keys that are gone through without a look whether the making goes on.
const AT_ONCE: u64 = 4096;
/// How many bytes of segments the exact keys of a class may take one byte for.
const EXACT: u64 = 4096;
/// What the exact keys of a class may always take.
const LEAST: u64 = 64 << 10;

/// Makes the overviews that are missing, or do not cover all that they could, of segments whose
/// names are given in their order. With `thorough` all of an overview is read to know that. `made`
/// hears of each, by the segment that it is named after. Once `goes_on` says no, the making ends.
pub(crate) fn make_missing<I: Io>(
    io: &I,
    storage: &dyn Storage,
    names: &[SegmentName],
    thorough: bool,
    goes_on: &dyn Fn() -> bool,
    mut made: impl FnMut(&SegmentName),
) -> io::Result<()> {
    let mut outcome = Ok(());
    for segments in names.chunk_by(SegmentName::shares_overview) {
        let Some(last) = segments.last().filter(|last| last.has_overview() && !last.live) else {
            continue;
        };
        if !goes_on() {
            break;
        }
        let is_right = || differences(storage, last).is_ok_and(|d| d.is_some_and(|d| d.is_empty()));
        let is_there = is_whole(storage, last, segments) && (!thorough || is_right());
        if is_there {
            continue;
        }
        // One that cannot be made keeps no other from being made.
        match make(io, storage, segments, goes_on) {
            Ok(Some(_)) => made(last),
            Ok(None) => {}
            Err(e) => outcome = outcome.and(Err(e)),
        }
    }
    outcome
}

/// Returns whether there is an overview that covers each segment which has a whole index.
fn is_whole(storage: &dyn Storage, last: &SegmentName, segments: &[SegmentName]) -> bool {
    let Ok(Some(overview)) = Overview::open(storage, last) else { return false };
    segments.iter().all(|name| {
        let state = storage.state(name.to_string().as_ref());
        let is_covered = state.is_ok_and(|state| overview.covers(name, &state).is_some());
        is_covered || Source::of(storage, name, &mut Room::endless()).is_err()
    })
}

/// Makes the overview of segments, which is named after the last of them. Returns its length;
/// `None` where there is nothing to be covered. Fails where `goes_on` says no.
pub(crate) fn make<I: Io>(
    io: &I,
    storage: &dyn Storage,
    segments: &[SegmentName],
    goes_on: &dyn Fn() -> bool,
) -> io::Result<Option<u64>> {
    let Some(last) = segments.last() else { return Ok(None) };
    let mut room = Room::of(DIRECTORIES_ROOM);
    let mut sources = Vec::with_capacity(segments.len());
    for name in segments.iter().filter(|name| !name.live) {
        // A segment without a whole index, or one that is gone, is not covered.
        let before = room;
        match Source::of(storage, name, &mut room) {
            Ok(source) => sources.push(source),
            Err(_) => room = before,
        }
        check(goes_on)?;
    }
    match write_file(io, storage.place(), last, &mut sources, goes_on) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            // Nor is one whose keys cannot be read.
            sources.retain_mut(|source| Class::ALL.iter().all(|c| source.can_be_read(*c)));
            write_file(io, storage.place(), last, &mut sources, goes_on)
        }
        written => written,
    }
}

/// Writes an overview of sources under its name; nothing where there are none.
fn write_file<I: Io>(
    io: &I,
    dir: &Path,
    last: &SegmentName,
    sources: &mut [Source],
    goes_on: &dyn Fn() -> bool,
) -> io::Result<Option<u64>> {
    if sources.is_empty() {
        return Ok(None);
    }
    let draft = last.overview_draft_path(dir);
    remove(io, &draft)?;
    let written = io.create(&draft).and_then(|file| {
        let mut flush = |pages: &[u8], at: u64| write_pages(&file, pages, at);
        let len = write(sources, last, goes_on, &mut flush)?;
        file.sync()?;
        io.rename(&draft, &last.overview_path(dir))?;
        Ok(Some(len))
    });
    if written.is_err() {
        let _ = io.remove(&draft);
    }
    written
}

fn check(goes_on: &dyn Fn() -> bool) -> io::Result<()> {
    if goes_on() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
}

fn remove<I: Io>(io: &I, path: &Path) -> io::Result<()> {
    match io.remove(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A segment that is to be covered.
pub(super) struct Source {
    pub member: Member,
    pub head: Vec<u8>,
    pub image: Image,
    pub opaque: bool,
}

impl Source {
    /// Looks at a segment and its index. Fails where it cannot be covered.
    pub fn of(storage: &dyn Storage, name: &SegmentName, room: &mut Room) -> io::Result<Self> {
        let object = storage.open(name.to_string().as_ref(), Access::Ranges)?;
        let state = object.state()?;
        let index = Index::open(storage, name, state.len)?;
        let index = index.filter(|index| index.summary.complete && index.summary.packets > 0);
        let mut index = index.ok_or_else(|| damaged("it has no whole index, or no packets"))?;
        let image = index.images.pop().ok_or_else(|| damaged("it has no image"))?;
        let directory = &image.directory;
        let sections = directory.dictionaries.values().map(|d| d.sections.len()).sum();
        room.take::<[u64; 6]>(sections)?;
        room.take::<[u64; 8]>(directory.groups.len() + directory.parts.len())?;
        let head = head_of(&*object)?;
        if head.len() > LONGEST_HEAD {
            return Err(damaged("its head is too long to be told"));
        }
        let member = Member {
            number: name.number,
            began_s: name.began_s,
            len: state.len,
            changed_ns: state.changed_ns,
            packets: index.summary.packets,
            granules: u64::from(directory.granules),
            tells: index.summary.dropped > 0 || !directory.telling.is_empty(),
            first_ns: index.summary.first_ns,
            last_ns: index.summary.last_ns,
            head: 0,
        };
        let opaque = !directory.opaque.is_empty();
        Ok(Self { member, head, image, opaque })
    }

    /// Returns whether all keys of a class can be read.
    fn can_be_read(&mut self, class: Class) -> bool {
        let has_it = self.image.directory.dictionaries.contains_key(&class);
        !has_it || self.image.entries(class, 0, u128::MAX, |_, _, _, _| {}).is_ok()
    }
}

/// Returns the bytes before a segment's first packet: its header, the interfaces, and what went
/// unseen before it.
fn head_of(segment: &dyn Object) -> io::Result<Vec<u8>> {
    let head = read_beginning(segment, &mut Vec::new(), |bytes| match head_len(bytes) {
        (Some(len), is_short) => (Some(bytes[..len].to_vec()), is_short),
        (None, is_short) => (None, is_short),
    })?;
    head.ok_or_else(|| damaged("it does not begin as a segment does"))
}

fn head_len(bytes: &[u8]) -> (Option<usize>, bool) {
    let mut reader = Reader::new(bytes);
    let application = match reader.next() {
        Some(Ok(Record::Section(section))) => section.application,
        Some(Err(BlockError::CutShort { .. })) => return (None, true),
        _ => return (None, false),
    };
    if !application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX)) {
        return (None, false);
    }
    loop {
        let len = reader.offset() as usize;
        match reader.next() {
            Some(Ok(Record::Interface(_) | Record::Other(_))) => {}
            Some(Ok(Record::Statistics(s))) if UnseenSpan::told(&s).is_some() => {}
            None | Some(Err(BlockError::CutShort { .. })) => return (Some(len), true),
            Some(_) => return (Some(len), false),
        }
    }
}

/// Writes an overview. `flush` takes whole pages at offsets; the first page comes last.
fn write(
    sources: &mut [Source],
    last: &SegmentName,
    goes_on: &dyn Fn() -> bool,
    flush: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut table = Table::default();
    for source in sources.iter_mut() {
        let known = table.heads.iter().position(|head| *head == source.head);
        source.member.head = known.unwrap_or(table.heads.len());
        if known.is_none() {
            table.heads.push(std::mem::take(&mut source.head));
        }
        table.members.push(source.member.clone());
    }
    let mut draft = Draft::new(EntryKind::Lists, flush);
    let table = draft.section(&table.encode())?;
    draft.directory.granules = sources.len() as u32;
    for (number, source) in (0..).zip(sources.iter()) {
        if source.opaque {
            draft.directory.opaque.push((number, number + 1));
        }
    }
    for class in Class::ALL {
        put_class(sources, class, goes_on, &mut draft)?;
    }
    let directory = draft.directory.encode_keys();
    let (number, began_s) = (last.number, last.began_s);
    draft.end(&directory, |len, directory| {
        Header { len, number, began_s, table, directory }.encode()
    })
}

/// Puts the keys of a class, each with the places of the members that hold it.
fn put_class(
    sources: &mut [Source],
    class: Class,
    goes_on: &dyn Fn() -> bool,
    draft: &mut Draft<'_>,
) -> io::Result<()> {
    check(goes_on)?;
    let dictionaries = sources.iter().map(|s| s.image.directory.dictionaries.get(&class));
    // Where one index does not tell of the class, the overview cannot.
    let Some(told) = dictionaries.collect::<Option<Vec<_>>>() else { return Ok(()) };
    let is_hashed = told.iter().any(|dictionary| dictionary.hashed);
    let keys: u64 = told.iter().map(|dictionary| dictionary.keys).sum();
    let bytes: u64 = sources.iter().map(|source| source.member.len).sum();
    let most = LEAST.max(bytes / EXACT);
    let per_key = class.width() as u64 + 3;
    if is_hashed || keys * per_key > most && exact_len(sources, class, goes_on, most)? > most {
        return put_hashes(sources, class, goes_on, draft);
    }
    let (mut merged, mut gone_through) = (merged(sources, class)?, 0u64);
    draft.class(class, false, |members| {
        gone_through += 1;
        if gone_through.is_multiple_of(AT_ONCE) {
            check(goes_on)?;
        }
        merged.next(members)
    })
}

/// Merges the exact keys of a class.
fn merged(sources: &mut [Source], class: Class) -> io::Result<MergedKeys<'_>> {
    let mut streams = Vec::with_capacity(sources.len());
    for (number, Source { image, .. }) in (0..).zip(sources) {
        let numbers = Numbers::All { of: image.directory.granules, number };
        streams.push(ChunkKeys::sections(image, class, class.width(), numbers));
    }
    MergedKeys::of(streams)
}

/// Returns about how many bytes the exact keys of a class take; not more than just above `most`.
fn exact_len(
    sources: &mut [Source],
    class: Class,
    goes_on: &dyn Fn() -> bool,
    most: u64,
) -> io::Result<u64> {
    check(goes_on)?;
    let mut merged = merged(sources, class)?;
    let (mut len, mut members, mut list) = (0, Vec::new(), Vec::new());
    while len <= most && merged.next(&mut members)?.is_some() {
        list.clear();
        put_granules(&mut list, members.iter().map(|member| member.granule()));
        members.clear();
        len += (class.width() + list.len()) as u64;
    }
    Ok(len)
}

fn put_hashes(
    sources: &mut [Source],
    class: Class,
    goes_on: &dyn Fn() -> bool,
    draft: &mut Draft<'_>,
) -> io::Result<()> {
    let mut sets = Vec::with_capacity(sources.len());
    for source in sources {
        check(goes_on)?;
        sets.push(hashes(&mut source.image, class)?);
    }
    let mut all = RoaringBitmap::new();
    for set in &sets {
        all |= set;
    }
    let mut all = all.iter();
    draft.class(class, true, |members| {
        let Some(hash) = all.next() else { return io::Result::Ok(None) };
        let holds =
            |(number, set): (u32, &RoaringBitmap)| set.contains(hash).then(|| Spot::whole(number));
        members.extend((0..).zip(&sets).filter_map(holds));
        Ok(Some(u128::from(hash)))
    })
}

/// Returns the hashes of the keys of a class.
pub(super) fn hashes(image: &mut Image, class: Class) -> io::Result<RoaringBitmap> {
    let dictionary = image.directory.dictionaries.get(&class);
    let is_hashed = dictionary.is_some_and(|dictionary| dictionary.hashed);
    let mut set = RoaringBitmap::new();
    image.entries(class, 0, u128::MAX, |key, _, _, _| {
        set.insert(if is_hashed { key } else { hash(key) } as u32);
    })?;
    Ok(set)
}
