//! Reading an image: sections by their place, granules and keys out of them.

use std::io;
use std::sync::Arc;

use tapdeck_packet::key::Class;

use super::{
    Directory, GROUP_ROOM, GranuleRun, HEADER, Header, LONGEST, Opening, Section, decode_granules,
    key_of,
};
use crate::format::index::code::{Bytes, Room, damaged};
use crate::format::index::granule::Granule;
use crate::io::{Object, PAGE};

/// Bytes of sections that are read at once, unless one alone is longer.
const ROW: u64 = 256 << 10;

/// An image that can be read.
#[derive(Debug)]
pub(in crate::format::index) struct Image {
    source: Arc<dyn Object>,
    /// Where the image begins in its source.
    base: u64,
    pub len: u64,
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
        let mut image = Self { source, base, len, header, directory, bytes_read: HEADER as u64 };
        image.directory = Directory::decode(&image.read(at)?, version, room)?;
        Ok(image)
    }

    /// Makes an image of what has keys and nothing else, whose directory is not read yet.
    pub fn of_keys(source: Arc<dyn Object>, len: u64) -> Self {
        let (header, directory) = (Header::default(), Directory::default());
        Self { source, base: 0, len, header, directory, bytes_read: 0 }
    }

    pub fn read(&mut self, section: Section) -> io::Result<Vec<u8>> {
        self.read_row(&[section])
    }

    /// Returns the bytes of sections that lie one behind the other.
    fn read_row(&mut self, row: &[Section]) -> io::Result<Vec<u8>> {
        if row.iter().any(|s| s.end() > self.len || u64::from(s.len) > LONGEST) {
            return Err(damaged("a section is outside of it"));
        }
        let mut bytes = vec![0; row.iter().map(|section| section.len as usize).sum()];
        let start = row.first().map_or(0, |section| section.offset);
        self.source.read_exact_at(&mut bytes, self.base + start)?;
        self.bytes_read += bytes.len() as u64;
        let mut rest = &bytes[..];
        for section in row {
            let (of_section, behind) = rest.split_at(section.len as usize);
            if crc32c::crc32c(of_section) != section.checksum {
                return Err(damaged("the checksum of a section is wrong"));
            }
            rest = behind;
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
            let mut rest = &bytes[..];
            for (number, section) in (first..).zip(row) {
                let (of_section, behind) = rest.split_at(section.len as usize);
                each(number, of_section)?;
                rest = behind;
            }
            first += row.len();
        }
        Ok(())
    }

    /// Hands the granules of some groups to `each`, with the group.
    pub fn groups(
        &mut self,
        groups: &[GranuleRun],
        mut each: impl FnMut(&GranuleRun, Vec<Granule>) -> io::Result<()>,
    ) -> io::Result<()> {
        let sections: Vec<Section> = groups.iter().map(|group| group.section).collect();
        self.read_each(&sections, |number, bytes| {
            let group = &groups[number];
            each(group, decode_granules(bytes, group.count, &mut Room::of(GROUP_ROOM))?)
        })
    }

    /// Returns all granules, which take up `room`.
    pub fn granules(&mut self, room: &mut Room) -> io::Result<Vec<Granule>> {
        let mut all = Vec::new();
        self.groups(&self.directory.groups.clone(), |_, granules| {
            granules.iter().try_for_each(|granule| granule.take_up(room))?;
            all.extend(granules);
            Ok(())
        })?;
        Ok(all)
    }

    /// Reads all granules and all keys.
    pub fn read_all(&mut self) -> io::Result<()> {
        self.groups(&self.directory.groups.clone(), |_, _| Ok(()))?;
        Class::ALL.into_iter().try_for_each(|class| self.entries(class, 0, u128::MAX, |_, _, _| {}))
    }

    /// Hands the entries of a class from `first` to `last` to `each`: a key, and the first number
    /// of a run of its granules and the one behind its last.
    pub fn entries(
        &mut self,
        class: Class,
        first: u128,
        last: u128,
        mut each: impl FnMut(u128, u32, u32),
    ) -> io::Result<()> {
        let Some(dictionary) = self.directory.dictionaries.get(&class) else { return Ok(()) };
        let width = dictionary.width(class);
        let from = dictionary.sections.partition_point(|(key, _)| *key <= first).saturating_sub(1);
        let upto = dictionary.sections.partition_point(|(key, _)| *key <= last);
        let sections: Vec<Section> =
            dictionary.sections[from..upto.max(from)].iter().map(|s| s.1).collect();
        let granules = self.directory.granules;
        self.read_each(&sections, |_, bytes| {
            let mut entries = Entries::new(bytes, width, granules);
            while let Some(key) = entries.next(|key, a, b| {
                if (first..=last).contains(&key) {
                    each(key, a, b);
                }
            })? {
                if key > last {
                    break;
                }
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

/// Returns the first of some sections and those behind it that are read at once, because they lie
/// one behind the other: a read takes longer to come than its bytes do.
fn row_of(sections: &[Section]) -> &[Section] {
    let Some(first) = sections.first() else { return sections };
    let mut end = first.end();
    let goes_on = |section: &&Section| {
        let is_next = section.offset == end && section.end() - first.offset <= ROW;
        end = section.end();
        is_next
    };
    let more = sections[1..].iter().take_while(goes_on).count();
    &sections[..=more]
}

/// Reads the entries of a section of keys.
pub(in crate::format::index) struct Entries<'a> {
    bytes: Bytes<'a>,
    width: usize,
    granules: u32,
    key: [u8; 16],
}

impl<'a> Entries<'a> {
    pub fn new(bytes: &'a [u8], width: usize, granules: u32) -> Self {
        Self::resume(bytes, width, granules, [0; 16])
    }

    /// Makes a reader that goes on behind the entry of a key.
    pub fn resume(bytes: &'a [u8], width: usize, granules: u32, key: [u8; 16]) -> Self {
        Self { bytes: Bytes(bytes), width, granules, key }
    }

    /// Returns the last key that was read, in the first bytes of an array.
    pub fn key(&self) -> [u8; 16] {
        self.key
    }

    /// Returns the next key, and hands the runs of its granules to `each`.
    pub fn next(&mut self, mut each: impl FnMut(u128, u32, u32)) -> io::Result<Option<u128>> {
        if self.bytes.0.is_empty() {
            return Ok(None);
        }
        let shared = usize::from(self.bytes.byte()?);
        let left = self.width.checked_sub(shared).ok_or_else(|| damaged("a key is too long"))?;
        let rest = self.bytes.take(left)?;
        self.key[shared..self.width].copy_from_slice(rest);
        let key = key_of(&self.key[..self.width]);
        self.bytes.granules(self.granules, |a, b| each(key, a, b))?;
        Ok(Some(key))
    }

    /// Returns how many bytes are not yet read.
    pub fn rest(&self) -> usize {
        self.bytes.0.len()
    }
}
