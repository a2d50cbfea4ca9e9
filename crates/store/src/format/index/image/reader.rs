//! Reading an image: sections by their place, granules and keys out of them.

use std::io;
use std::sync::Arc;

use tapdeck_packet::key::Class;

use super::{
    Directory, GROUP_ROOM, GranuleRun, HEADER, Header, LONGEST, Opening, Section, VERSION_2,
    decode_granules, key_of,
};
use crate::format::index::code::{Bytes, Room, damaged};
use crate::format::index::granule::{Granule, Quarters};
use crate::format::index::spots::{FORM_SHIFT, take_spots};
use crate::io::{Object, PAGE};

/// Bytes of sections that are read at once, unless one alone is longer.
const ROW: u64 = 256 << 10;
/// Bytes between two sections that are read with them: a read takes longer to come than so many
/// bytes do.
const GAP: u64 = 32 << 10;

/// An image that can be read.
#[derive(Debug)]
pub(in crate::format::index) struct Image {
    source: Arc<dyn Object>,
    /// Where the image begins in its source.
    base: u64,
    pub len: u64,
    pub version: u32,
    pub header: Header,
    pub directory: Directory,
    pub bytes_read: u64,
}

impl Image {
    /// Opens the image at `base` of what has `source_len` bytes. Its directory takes up `room`.
    pub fn open(
        source: Arc<dyn Object>,
        base: u64,
        source_len: u64,
        room: &mut Room,
    ) -> io::Result<Self> {
        let mut page = vec![0; HEADER];
        source.read_exact_at(&mut page, base)?;
        let Opening { version, header, image_len: len, directory: at } = Header::decode(&page)?;
        if len < PAGE as u64 || len > source_len.saturating_sub(base) {
            return Err(damaged("it is longer than its file"));
        }
        let directory = Directory::default();
        let bytes_read = HEADER as u64;
        let mut image = Self { source, base, len, version, header, directory, bytes_read };
        image.directory = Directory::decode(&image.read(at)?, version, room)?;
        Ok(image)
    }

    /// Makes an image of what has keys and nothing else, whose directory is not read yet.
    pub fn of_keys(source: Arc<dyn Object>, len: u64) -> Self {
        let (header, directory) = (Header::default(), Directory::default());
        Self { source, base: 0, len, version: VERSION_2, header, directory, bytes_read: 0 }
    }

    pub fn read(&mut self, section: Section) -> io::Result<Vec<u8>> {
        self.read_row(&[section])
    }

    /// Returns the bytes from the beginning of the first of some sections to the end of the last,
    /// which lie in this order.
    fn read_row(&mut self, row: &[Section]) -> io::Result<Vec<u8>> {
        if row.iter().any(|s| s.end() > self.len || u64::from(s.len) > LONGEST) {
            return Err(damaged("a section is outside of it"));
        }
        let (Some(first), Some(last)) = (row.first(), row.last()) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; last.end().saturating_sub(first.offset) as usize];
        self.source.read_exact_at(&mut bytes, self.base + first.offset)?;
        self.bytes_read += bytes.len() as u64;
        for section in row {
            if crc32c::crc32c(part_of(&bytes, first, section)) != section.checksum {
                return Err(damaged("the checksum of a section is wrong"));
            }
        }
        Ok(bytes)
    }

    /// Hands the bytes of each of some sections to `each`, with its number among them.
    fn read_each(
        &mut self,
        sections: &[Section],
        mut each: impl FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut first = 0;
        while first < sections.len() {
            let row = row_of(&sections[first..]);
            let bytes = self.read_row(row)?;
            for (number, section) in (first..).zip(row) {
                each(number, part_of(&bytes, &row[0], section))?;
            }
            first += row.len();
        }
        Ok(())
    }

    /// Hands the granules of some groups to `each`, with their numbers.
    pub fn groups(
        &mut self,
        groups: &[GranuleRun],
        mut each: impl FnMut(u32, Granule) -> io::Result<()>,
    ) -> io::Result<()> {
        let sections: Vec<Section> = groups.iter().map(|group| group.section).collect();
        let version = self.version;
        self.read_each(&sections, |number, bytes| {
            let group = &groups[number];
            let mut next = group.first;
            decode_granules(bytes, group.count, version, &mut Room::of(GROUP_ROOM), |granule| {
                next += 1;
                each(next - 1, granule)
            })
        })
    }

    /// Returns all granules, which take up `room`.
    pub fn granules(&mut self, room: &mut Room) -> io::Result<Vec<Granule>> {
        let mut all = Vec::new();
        self.groups(&self.directory.groups.clone(), |_, granule| {
            granule.take_up(room)?;
            all.push(granule);
            Ok(())
        })?;
        Ok(all)
    }

    /// Reads all granules and all keys.
    pub fn read_all(&mut self) -> io::Result<()> {
        self.groups(&self.directory.groups.clone(), |_, _| Ok(()))?;
        Class::ALL
            .into_iter()
            .try_for_each(|class| self.entries(class, 0, u128::MAX, |_, _, _, _| {}))
    }

    /// Hands the entries of a class from `first` to `last` to `each`: a key, the first number of a
    /// run of its granules and the one behind its last, and in which quarters of each the key may
    /// stand. No granule comes twice for a key.
    pub fn entries(
        &mut self,
        class: Class,
        first: u128,
        last: u128,
        mut each: impl FnMut(u128, u32, u32, u8),
    ) -> io::Result<()> {
        let Some(dictionary) = self.directory.dictionaries.get(&class) else { return Ok(()) };
        let width = dictionary.width(class);
        let from = dictionary.sections.partition_point(|(key, _)| *key <= first).saturating_sub(1);
        let upto = dictionary.sections.partition_point(|(key, _)| *key <= last);
        let (firsts, sections): (Vec<u128>, Vec<Section>) =
            dictionary.sections[from..upto.max(from)].iter().copied().unzip();
        let (granules, version) = (self.directory.granules, self.version);
        self.read_each(&sections, |number, bytes| {
            let mut entries = Entries::new(bytes, version, width, granules);
            let mut before = None;
            while let Some(key) = entries.next(|key, from, to, quarters| {
                if (first..=last).contains(&key) {
                    each(key, from, to, quarters);
                }
            })? {
                // Of keys in another order some would not be found.
                if before.map_or(key != firsts[number], |before| key <= before) {
                    return Err(damaged("keys are not in order"));
                }
                if key > last {
                    break;
                }
                before = Some(key);
            }
            Ok(())
        })
    }

    /// Returns a section of a class by its number; `None` behind the last.
    pub fn section(&mut self, class: Class, number: usize) -> io::Result<Option<Vec<u8>>> {
        let dictionary = self.directory.dictionaries.get(&class);
        let section = dictionary.and_then(|dictionary| dictionary.sections.get(number).copied());
        let Some((_, section)) = section else { return Ok(None) };
        self.read(section).map(Some)
    }
}

/// Returns the bytes of a section out of those that begin with the first of a row; none where it
/// does not lie there.
fn part_of<'a>(bytes: &'a [u8], first: &Section, section: &Section) -> &'a [u8] {
    let from = section.offset.saturating_sub(first.offset) as usize;
    bytes.get(from..from.saturating_add(section.len as usize)).unwrap_or_default()
}

/// Returns the first of some sections and those behind it that are read at once, because they lie
/// near one another.
fn row_of(sections: &[Section]) -> &[Section] {
    let Some(first) = sections.first() else { return sections };
    let mut end = first.end();
    let goes_on = |section: &&Section| {
        let gap = section.offset.checked_sub(end);
        let is_near = gap.is_some_and(|gap| gap <= GAP) && section.end() - first.offset <= ROW;
        end = section.end();
        is_near
    };
    let more = sections[1..].iter().take_while(goes_on).count();
    &sections[..=more]
}

/// Reads the entries of a section of keys.
pub(in crate::format::index) struct Entries<'a> {
    bytes: Bytes<'a>,
    version: u32,
    width: usize,
    granules: u32,
    key: [u8; 16],
}

impl<'a> Entries<'a> {
    pub fn new(bytes: &'a [u8], version: u32, width: usize, granules: u32) -> Self {
        Self { bytes: Bytes(bytes), version, width, granules, key: [0; 16] }
    }

    /// Makes a reader that goes on behind the entry of a key.
    pub fn behind(self, key: [u8; 16]) -> Self {
        Self { key, ..self }
    }

    /// Returns the last key that was read, in the first bytes of an array.
    pub fn key(&self) -> [u8; 16] {
        self.key
    }

    /// Returns the next key, and hands the runs of its granules to `each`, with their quarters.
    pub fn next(&mut self, mut each: impl FnMut(u128, u32, u32, u8)) -> io::Result<Option<u128>> {
        if self.bytes.0.is_empty() {
            return Ok(None);
        }
        let head = self.bytes.byte()?;
        let has_form = self.version > VERSION_2;
        let shared = usize::from(if has_form { head & ((1 << FORM_SHIFT) - 1) } else { head });
        let left = self.width.checked_sub(shared).ok_or_else(|| damaged("a key is too long"))?;
        let rest = self.bytes.take(left)?;
        self.key[shared..self.width].copy_from_slice(rest);
        let key = key_of(&self.key[..self.width]);
        if has_form {
            let form = head >> FORM_SHIFT;
            take_spots(&mut self.bytes, form, self.granules, |a, b, in_them| {
                each(key, a, b, in_them);
            })?;
        } else {
            self.bytes.granules(self.granules, |a, b| each(key, a, b, Quarters::ALL))?;
        }
        Ok(Some(key))
    }

    /// Returns how many bytes are not yet read.
    pub fn rest(&self) -> usize {
        self.bytes.0.len()
    }
}
