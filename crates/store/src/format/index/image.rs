//! How does an index stand in a file? One page of header, then sections, then the directory that
//! names them. `docs/FORMAT.md` specifies it.
//!
//! A section is read by itself, and each has a checksum: a question about one key reads the header,
//! the directory and one section of keys. The directory counts the classes of keys and says how
//! long each is (since version 2), so that a class which is new to a reader is passed over; a class
//! that is not told of may have keys in any granule. Which sections to read is [`super::lookup`]'s
//! business.

mod draft;
mod reader;
#[cfg(test)]
pub(super) mod rewriting;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use tapdeck_packet::key::Class;

use super::code::{Bytes, Room, add_run, damaged, put, put_runs, put_signed};
use super::granule::{Granule, Quarters, Summary};
use crate::format::name::SegmentName;
use crate::io::PAGE;

pub(super) use draft::{Draft, EntryKind, has_quarters};
pub(super) use reader::{Entries, Image};

const MAGIC: [u8; 8] = *b"tapdeckI";
/// The version that is written. Granules have quarters, and of some keys is told in which of them
/// they stand.
const VERSION: u32 = 3;
/// The version whose entries are lists of granules, as an overview's are. Since it the directory
/// counts the classes and tells how long each is, so that a reader skips those that it does not
/// know.
pub(super) const VERSION_2: u32 = 2;
/// The version whose directory has all classes that there were, one behind the other, and no other.
const VERSION_1: u32 = 1;
/// The header's bytes that count; zeros follow up to the page's end.
const HEADER: usize = 120;
/// A section of keys is closed when it has so many bytes.
const KEYS: usize = 8 << 10;
/// The longest section or directory of an index that is not damaged, and more.
const LONGEST: u64 = 8 << 20;
/// The most granules of an index that is not damaged: those of 2 TiB.
const MOST_GRANULES: u32 = 1 << 24;
/// Memory that what one section's granules tell of losses takes at most.
const GROUP_ROOM: usize = 8 << 20;

/// Keys of a class that had too many are told by so many bytes of a hash.
pub(super) const HASH_WIDTH: usize = 2;

/// Returns the hash of a key, for a class that is not told exactly.
pub(super) fn hash(key: u128) -> u128 {
    // The finalizer of SplitMix64, over both halves.
    let mut z = key as u64 ^ (key >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    u128::from((z ^ z >> 31) >> (64 - 8 * HASH_WIDTH))
}

/// Returns how many granules there are in a section.
fn group_len(version: u32) -> u32 {
    if version <= VERSION_2 { 256 } else { 64 }
}

/// Where a section lies in its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub offset: u64,
    pub len: u32,
    pub checksum: u32,
}

impl Section {
    fn end(self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }

    fn put(self, out: &mut Vec<u8>) {
        put(out, self.offset);
        put(out, u64::from(self.len));
        out.extend(self.checksum.to_le_bytes());
    }

    fn take(bytes: &mut Bytes<'_>) -> io::Result<Self> {
        let (offset, len) = (bytes.number()?, bytes.small()?);
        Ok(Self { offset, len, checksum: bytes.u32()? })
    }
}

/// Successive granules that stand in one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GranuleRun {
    pub first: u32,
    pub count: u32,
    pub first_ns: i64,
    pub last_ns: i64,
    section: Section,
}

/// What is known of the keys of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dictionary {
    /// Whether the keys are hashes.
    pub hashed: bool,
    /// How many keys there are.
    pub keys: u64,
    /// The sections that hold the keys, with the first key of each.
    pub sections: Vec<(u128, Section)>,
}

impl Dictionary {
    /// Returns how many bytes a key of the class takes.
    pub fn width(&self, class: Class) -> usize {
        if self.hashed { HASH_WIDTH } else { class.width() }
    }

    fn encode(&self, class: Class) -> Vec<u8> {
        let mut out = vec![u8::from(self.hashed)];
        put(&mut out, self.keys);
        put(&mut out, self.sections.len() as u64);
        for (key, section) in &self.sections {
            put_key(&mut out, *key, self.width(class));
            section.put(&mut out);
        }
        out
    }

    fn take(bytes: &mut Bytes<'_>, class: Class, room: &mut Room) -> io::Result<Self> {
        let hashed = bytes.byte()? != 0;
        let keys = bytes.number()?;
        let mut dictionary = Self { hashed, keys, sections: Vec::new() };
        let width = dictionary.width(class);
        for _ in 0..bytes.number()? {
            let key = key_of(bytes.take(width)?);
            if dictionary.sections.last().is_some_and(|(last, _)| *last >= key) {
                return Err(damaged("keys are not in order"));
            }
            room.take::<(u128, Section)>(1)?;
            dictionary.sections.push((key, Section::take(bytes)?));
        }
        Ok(dictionary)
    }
}

/// What an image holds, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    pub granules: u32,
    /// The stretches of the segment that the granules tile, ascending.
    pub parts: Vec<Range<u64>>,
    pub groups: Vec<GranuleRun>,
    /// Runs of numbers of granules with packets whose keys are not all known.
    pub opaque: Vec<(u32, u32)>,
    /// Runs of numbers of granules with packets that tell of losses.
    pub telling: Vec<(u32, u32)>,
    /// What is known of the keys of classes. A class that is not among these may have keys in any
    /// granule.
    pub dictionaries: BTreeMap<Class, Dictionary>,
}

/// A class as it stands in a directory: its number, and its dictionary as bytes.
type EncodedClass = (u64, Vec<u8>);

impl Directory {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_head();
        self.put_keys(&mut out);
        out
    }

    fn put_keys(&self, out: &mut Vec<u8>) {
        let encode = |(class, dictionary): (&Class, &Dictionary)| {
            (u64::from(*class as u8), dictionary.encode(*class))
        };
        let classes: Vec<EncodedClass> = self.dictionaries.iter().map(encode).collect();
        put_classes(out, &classes);
    }

    /// Returns the directory of what has keys and nothing else: how many granules there are, which
    /// of them are opaque, and the classes.
    pub fn encode_keys(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, u64::from(self.granules));
        put_runs(&mut out, &self.opaque);
        self.put_keys(&mut out);
        out
    }

    /// Takes what [`Directory::encode_keys`] returns.
    pub fn decode_keys(bytes: &[u8], room: &mut Room) -> io::Result<Self> {
        let mut bytes = Bytes(bytes);
        let granules = bytes.small()?;
        let opaque = take_runs(&mut bytes, granules, room)?;
        let dictionaries = take_classes(&mut bytes, room)?;
        Ok(Self { granules, opaque, dictionaries, ..Self::default() })
    }

    /// Returns all that stands before the classes.
    fn encode_head(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, u64::from(self.granules));
        put(&mut out, self.parts.len() as u64);
        for part in &self.parts {
            put(&mut out, part.start);
            put(&mut out, part.end - part.start);
        }
        for group in &self.groups {
            put_signed(&mut out, group.first_ns);
            put_signed(&mut out, group.last_ns);
            group.section.put(&mut out);
        }
        put_runs(&mut out, &self.opaque);
        put_runs(&mut out, &self.telling);
        out
    }

    fn decode(bytes: &[u8], version: u32, room: &mut Room) -> io::Result<Self> {
        let mut bytes = Bytes(bytes);
        let mut directory = Self { granules: bytes.small()?, ..Self::default() };
        let of = directory.granules;
        if of > MOST_GRANULES {
            return Err(damaged("it has too many granules"));
        }
        for _ in 0..bytes.number()? {
            room.take::<Range<u64>>(1)?;
            let (start, len) = (bytes.number()?, bytes.number()?);
            directory.parts.push(stretch(start, len)?);
        }
        let group_len = group_len(version);
        for first in (0..of).step_by(group_len as usize) {
            let (first_ns, last_ns) = (bytes.signed()?, bytes.signed()?);
            let count = (of - first).min(group_len);
            let section = Section::take(&mut bytes)?;
            room.take::<GranuleRun>(1)?;
            directory.groups.push(GranuleRun { first, count, first_ns, last_ns, section });
        }
        directory.opaque = take_runs(&mut bytes, of, room)?;
        directory.telling = take_runs(&mut bytes, of, room)?;
        directory.dictionaries = match version {
            VERSION_1 => take_classes_of_version_1(&mut bytes, room)?,
            _ => take_classes(&mut bytes, room)?,
        };
        Ok(directory)
    }
}

/// Takes a list of granules, of which there are `of`, as runs.
fn take_runs(bytes: &mut Bytes<'_>, of: u32, room: &mut Room) -> io::Result<Vec<(u32, u32)>> {
    let mut runs = Vec::new();
    let mut has_room = Ok(());
    bytes.granules(of, |from, to| {
        if has_room.is_ok() {
            has_room = room.take::<(u32, u32)>(1);
            add_run(&mut runs, from, to);
        }
    })?;
    has_room.map(|()| runs)
}

fn put_classes(out: &mut Vec<u8>, classes: &[EncodedClass]) {
    put(out, classes.len() as u64);
    for (number, bytes) in classes {
        put(out, *number);
        put(out, bytes.len() as u64);
        out.extend(bytes);
    }
}

/// Takes the classes that are known, and skips the others.
fn take_classes(bytes: &mut Bytes<'_>, room: &mut Room) -> io::Result<BTreeMap<Class, Dictionary>> {
    let mut dictionaries = BTreeMap::new();
    for _ in 0..bytes.number()? {
        let number = bytes.number()?;
        let len = usize::try_from(bytes.number()?).unwrap_or(usize::MAX);
        let mut bytes = Bytes(bytes.take(len)?);
        let known = u8::try_from(number).ok().and_then(Class::from_number);
        let Some(class) = known else { continue };
        let dictionary = Dictionary::take(&mut bytes, class, room)?;
        if !bytes.0.is_empty() || dictionaries.insert(class, dictionary).is_some() {
            return Err(damaged("a class is told twice, or does not end where it should"));
        }
    }
    Ok(dictionaries)
}

fn take_classes_of_version_1(
    bytes: &mut Bytes<'_>,
    room: &mut Room,
) -> io::Result<BTreeMap<Class, Dictionary>> {
    let classes = classes_of_version_1();
    classes.map(|class| Ok((class, Dictionary::take(bytes, class, room)?))).collect()
}

/// Returns the classes that there were, which have the numbers from 0 on: a new one is not among
/// them.
fn classes_of_version_1() -> impl Iterator<Item = Class> {
    const CLASSES: u8 = 12;
    (0..CLASSES).filter_map(Class::from_number)
}

fn stretch(start: u64, len: u64) -> io::Result<Range<u64>> {
    let end = start.checked_add(len).ok_or_else(|| damaged("a piece of the segment is nowhere"))?;
    Ok(start..end)
}

fn put_key(out: &mut Vec<u8>, key: u128, width: usize) {
    out.extend(&key.to_be_bytes()[16 - width..]);
}

fn key_of(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |key, byte| key << 8 | u128::from(*byte))
}

/// Which segment an image is of, and what is known of the segment as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub number: u64,
    pub began_s: i64,
    /// The segment's length when it was closed; 0 in a chunk of a log.
    pub segment_len: u64,
    pub summary: Summary,
}

impl Header {
    fn encode(&self, version: u32, image_len: u64, directory: Section) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE);
        let s = &self.summary;
        out.extend(MAGIC);
        out.extend(version.to_le_bytes());
        out.extend(u32::from(s.complete).to_le_bytes());
        for n in [image_len, self.number, self.began_s as u64, self.segment_len] {
            out.extend(n.to_le_bytes());
        }
        for n in [s.packets, s.first_ns as u64, s.last_ns as u64, s.dropped, directory.offset] {
            out.extend(n.to_le_bytes());
        }
        out.extend(directory.len.to_le_bytes());
        out.extend(directory.checksum.to_le_bytes());
        out.extend(s.outside.to_le_bytes());
        out.resize(HEADER - 4, 0);
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        out.resize(PAGE, 0);
        out
    }

    fn decode(page: &[u8]) -> io::Result<Opening> {
        let mut bytes = Bytes(page);
        if bytes.take(8)? != MAGIC {
            return Err(damaged("it does not begin as an index does"));
        }
        let version = bytes.u32()?;
        let checksum = Bytes(page.get(HEADER - 4..).unwrap_or_default()).u32()?;
        if crc32c::crc32c(&page[..HEADER - 4]) != checksum {
            return Err(damaged("the checksum of its header is wrong"));
        }
        if !(VERSION_1..=VERSION).contains(&version) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is of another version"));
        }
        let complete = bytes.u32()? != 0;
        let image_len = bytes.u64()?;
        let (number, began_s) = (bytes.u64()?, bytes.u64()? as i64);
        let segment_len = bytes.u64()?;
        let packets = bytes.u64()?;
        let (first_ns, last_ns) = (bytes.u64()? as i64, bytes.u64()? as i64);
        let dropped = bytes.u64()?;
        let offset = bytes.u64()?;
        let directory = Section { offset, len: bytes.u32()?, checksum: bytes.u32()? };
        let outside = bytes.u32()?;
        let summary = Summary { packets, first_ns, last_ns, dropped, outside, complete };
        let header = Self { number, began_s, segment_len, summary };
        Ok(Opening { version, header, image_len, directory })
    }

    /// Returns whether the index is that of a segment.
    pub fn is_of(&self, name: &SegmentName) -> bool {
        (self.number, self.began_s) == (name.number, name.began_s)
    }
}

/// What an image's first page says.
struct Opening {
    version: u32,
    header: Header,
    image_len: u64,
    directory: Section,
}

/// Takes whole pages, at offsets from the image's beginning.
pub(super) type Flush<'a> = dyn FnMut(&[u8], u64) -> io::Result<()> + 'a;

fn encode_granules(group: &[Granule], version: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(group.len() * 20);
    let (mut at, mut time_ns) = (0, 0);
    for g in group {
        put(&mut out, g.place.start - at);
        put(&mut out, g.place.end - g.place.start);
        at = g.place.end;
        // In a piece without packets there is no time, and the first is later than the last.
        put_signed(&mut out, g.first_ns.wrapping_sub(time_ns));
        put_signed(&mut out, g.last_ns.wrapping_sub(g.first_ns));
        time_ns = g.first_ns;
        let packets = u64::from(g.packets) << 1 | u64::from(g.opaque);
        put(&mut out, packets);
        match version {
            ..=VERSION_2 => out.extend(g.quarters.checksum().to_le_bytes()),
            _ => put_quarters(&mut out, &g.quarters),
        }
        put(&mut out, g.dropped.len() as u64);
        for (interface, packets) in &g.dropped {
            put(&mut out, u64::from(*interface));
            put(&mut out, *packets);
        }
    }
    out
}

fn put_quarters(out: &mut Vec<u8>, quarters: &Quarters) {
    put(out, quarters.each().len() as u64);
    for (number, quarter) in quarters.each().iter().enumerate() {
        out.extend(quarter.checksum.to_le_bytes());
        if number + 1 < quarters.each().len() {
            put(out, u64::from(quarter.len).saturating_sub(Quarters::LEN));
        }
    }
}

/// Takes the quarters of a granule of so many bytes.
fn take_quarters(bytes: &mut Bytes<'_>, granule_len: u64) -> io::Result<Quarters> {
    let wrong = || damaged("a granule is not as long as its quarters");
    let count = bytes.number()?;
    if count == 0 || count > Quarters::MOST as u64 {
        return Err(wrong());
    }
    let (mut quarters, mut left) = (Quarters::default(), granule_len);
    for number in 1..=count {
        let checksum = bytes.u32()?;
        let len = if number < count {
            Quarters::LEN.checked_add(bytes.number()?).ok_or_else(wrong)?
        } else {
            left
        };
        left = left.checked_sub(len).ok_or_else(wrong)?;
        quarters.push(u32::try_from(len).map_err(|_| wrong())?, checksum);
    }
    Ok(quarters)
}

/// Hands the granules of a section to `each`. What they tell of losses takes up `room`.
fn decode_granules(
    bytes: &[u8],
    count: u32,
    version: u32,
    room: &mut Room,
    mut each: impl FnMut(Granule) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Bytes(bytes);
    let (mut at, mut time_ns) = (0u64, 0i64);
    for _ in 0..count {
        let start = stretch(at, bytes.number()?)?.end;
        let place = stretch(start, bytes.number()?)?;
        at = place.end;
        let first_ns = time_ns.wrapping_add(bytes.signed()?);
        let last_ns = first_ns.wrapping_add(bytes.signed()?);
        time_ns = first_ns;
        let packets = bytes.number()?;
        let len = place.end - place.start;
        let quarters = if version <= VERSION_2 {
            let len = u32::try_from(len).map_err(|_| damaged("a granule is too long"))?;
            Quarters::one(len, bytes.u32()?)
        } else {
            take_quarters(&mut bytes, len)?
        };
        let mut dropped = Vec::new();
        for _ in 0..bytes.number()? {
            room.take::<(u32, u64)>(1)?;
            dropped.push((bytes.small()?, bytes.number()?));
        }
        each(Granule {
            place,
            first_ns,
            last_ns,
            packets: u32::try_from(packets >> 1).map_err(|_| damaged("too many packets"))?,
            quarters,
            opaque: packets & 1 != 0,
            dropped,
            shed: Vec::new(),
            wanted: 0,
        })?;
    }
    Ok(())
}

/// Takes bytes for every part of an index in turn, as if their checksums were right; for fuzzing.
pub(super) fn read_anything(bytes: &[u8]) {
    for version in VERSION_1..=VERSION {
        let decode =
            |bytes: &[u8], version| Directory::decode(bytes, version, &mut Room::of(8 << 20));
        if let Ok(directory) = decode(bytes, version) {
            assert!(directory.parts.len() + directory.groups.len() <= bytes.len());
            assert!(directory.opaque.len() + directory.telling.len() <= bytes.len());
            let written = version.max(VERSION_2);
            assert_eq!(decode(&directory.encode(), written).ok(), Some(directory));
        }
    }
    for version in VERSION_2..=VERSION {
        let decode = |bytes: &[u8]| {
            let mut granules = Vec::new();
            let room = &mut Room::of(GROUP_ROOM);
            let each = |granule| {
                granules.push(granule);
                Ok(())
            };
            decode_granules(bytes, group_len(version), version, room, each).map(|()| granules)
        };
        if let Ok(granules) = decode(bytes) {
            assert_eq!(decode(&encode_granules(&granules, version)).ok(), Some(granules));
        }
        for class in Class::ALL {
            let mut entries = Entries::new(bytes, version, class.width(), 1 << 20);
            let (mut left, mut upto) = (bytes.len(), 0);
            while let Ok(Some(key)) = entries.next(|_, from, to, quarters| {
                assert!(from < to && to <= 1 << 20 && from >= upto, "no granule comes twice");
                assert!(quarters != 0 && quarters <= Quarters::ALL);
                upto = to;
            }) {
                assert!(key >> (8 * class.width() - 1) >> 1 == 0);
                assert!(entries.rest() < left, "it gets on");
                (left, upto) = (entries.rest(), 0);
            }
        }
    }
}
