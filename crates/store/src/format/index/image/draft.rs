//! Writing an image: sections as they come, then the directory that names them, and the first page.

use std::io;

use tapdeck_packet::key::Class;

use super::{
    Dictionary, Directory, Flush, GranuleRun, Header, KEYS, Section, VERSION, VERSION_2,
    encode_granules, group_len,
};
use crate::format::index::code::{add_run, put_granules};
use crate::format::index::granule::Granule;
use crate::format::index::spots::{FORM_SHIFT, Spot, count_quarters, low_bits, put_spots};
use crate::io::PAGE;

/// How the entries of an image's dictionaries tell where keys stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format::index) enum EntryKind {
    /// Lists of granules, as in version 2 and in overviews.
    Lists,
    /// Whichever form is short, as in version 3, and quarters of addresses where they are worth
    /// their room.
    Spots(Worth),
}

/// When is it worth while to tell in which quarters an address stands? Both must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format::index) struct Worth {
    /// The address stands in one of so many granules at most.
    rare: u32,
    /// The most percent that quarters may take of what granules alone would.
    percent: u64,
}

impl EntryKind {
    /// That of an index.
    pub const CLOSED: Self = Self::Spots(Worth { rare: 8, percent: 125 });
    /// That of a log, which is merged soon: an address that is in few granules of a segment may be
    /// in many of those of a chunk.
    pub const LOG: Self = Self::Spots(Worth { rare: 4, percent: 200 });
    /// That of what an index is held against: wherever the index may have them.
    pub const CHECK: Self = Self::Spots(Worth { rare: 0, percent: u64::MAX });
}

impl Worth {
    /// Quarters of a key in so few granules are always told.
    const FEW: usize = 4;

    /// Returns whether to tell in which quarters of `of` granules a key stands.
    fn tells(self, spots: &[Spot], of: u32) -> bool {
        let granules = spots.len() as u64;
        if spots.len() <= Self::FEW || self.rare == 0 {
            return true;
        }
        if granules * u64::from(self.rare) > u64::from(of) {
            return false;
        }
        let count = count_quarters(spots);
        let bits = u64::from(count) * u64::from(low_bits(count, of) + 2);
        // A distance to the next granule takes a byte up to 63.
        let bits_of_granules = if granules * 64 > u64::from(of) { 8 } else { 16 } * granules;
        bits * 100 <= bits_of_granules * self.percent
    }
}

/// Returns whether an index tells in which quarters the keys of a class stand.
pub(in crate::format::index) fn has_quarters(class: Class) -> bool {
    use Class::{DestinationIpv4, DestinationIpv6, SourceIpv4, SourceIpv6};
    matches!(class, SourceIpv4 | DestinationIpv4 | SourceIpv6 | DestinationIpv6)
}

/// An image while it is written. Sections are flushed as they come; the header, which names the
/// rest, comes last.
pub(in crate::format::index) struct Draft<'a> {
    flush: &'a mut Flush<'a>,
    entries: EntryKind,
    /// What was not flushed yet, from `base` on.
    pending: Vec<u8>,
    base: u64,
    pub directory: Directory,
    group: Vec<Granule>,
}

impl<'a> Draft<'a> {
    const PIECE: usize = 1 << 20;

    pub fn new(entries: EntryKind, flush: &'a mut Flush<'a>) -> Self {
        let (directory, group) = (Directory::default(), Vec::new());
        Self { flush, entries, pending: Vec::new(), base: PAGE as u64, directory, group }
    }

    pub fn section(&mut self, bytes: &[u8]) -> io::Result<Section> {
        let offset = self.base + self.pending.len() as u64;
        let section = Section { offset, len: bytes.len() as u32, checksum: crc32c::crc32c(bytes) };
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= Self::PIECE {
            let whole = self.pending.len() / PAGE * PAGE;
            (self.flush)(&self.pending[..whole], self.base)?;
            self.pending.drain(..whole);
            self.base += whole as u64;
        }
        Ok(section)
    }

    /// Adds the next granule, in the order of the segment. All granules come before the keys.
    pub fn granule(&mut self, granule: Granule) -> io::Result<()> {
        let number = self.directory.granules;
        self.directory.granules += 1;
        if granule.opaque {
            add_run(&mut self.directory.opaque, number, number + 1);
        }
        if !granule.dropped.is_empty() {
            add_run(&mut self.directory.telling, number, number + 1);
        }
        match self.directory.parts.last_mut() {
            Some(part) if part.end == granule.place.start => part.end = granule.place.end,
            _ => self.directory.parts.push(granule.place.clone()),
        }
        self.group.push(granule);
        if self.group.len() as u32 == group_len(self.version()) { self.end_group() } else { Ok(()) }
    }

    fn version(&self) -> u32 {
        if self.entries == EntryKind::Lists { VERSION_2 } else { VERSION }
    }

    fn end_group(&mut self) -> io::Result<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let group = std::mem::take(&mut self.group);
        let section = self.section(&encode_granules(&group, self.version()))?;
        self.directory.groups.push(GranuleRun {
            first: self.directory.granules - group.len() as u32,
            count: group.len() as u32,
            first_ns: group.iter().map(|g| g.first_ns).min().unwrap_or(i64::MAX),
            last_ns: group.iter().map(|g| g.last_ns).max().unwrap_or(i64::MIN),
            section,
        });
        Ok(())
    }

    /// Adds the keys of the next class, in ascending order, each with its granules.
    pub fn class<E>(
        &mut self,
        class: Class,
        hashed: bool,
        mut next: impl FnMut(&mut Vec<Spot>) -> Result<Option<u128>, E>,
    ) -> Result<(), E>
    where
        E: From<io::Error>,
    {
        self.end_group()?;
        let mut dictionary = Dictionary { hashed, ..Dictionary::default() };
        let width = dictionary.width(class);
        let (mut bytes, mut first, mut last) = (Vec::new(), 0, None);
        let tells_quarters = has_quarters(class) && !hashed;
        let mut spots = Vec::new();
        loop {
            spots.clear();
            let key = next(&mut spots)?;
            if key.is_none() || bytes.len() >= KEYS {
                if !bytes.is_empty() {
                    dictionary.sections.push((first, self.section(&bytes)?));
                }
                bytes.clear();
                last = None;
            }
            let Some(key) = key else { break };
            if bytes.is_empty() {
                first = key;
            }
            self.put_entry(&mut bytes, last, (key, width), &spots, tells_quarters);
            dictionary.keys += 1;
            last = Some(key);
        }
        self.directory.dictionaries.insert(class, dictionary);
        Ok(())
    }

    /// Puts an entry of a dictionary: a byte with how many bytes the key shares with the one before
    /// it in the section, and in which form it is told where the key stands; the key's other bytes;
    /// and where that is.
    fn put_entry(
        &self,
        out: &mut Vec<u8>,
        last: Option<u128>,
        (key, width): (u128, usize),
        spots: &[Spot],
        tells_quarters: bool,
    ) {
        let bytes = key.to_be_bytes();
        let shared = last.map_or(0, |last| {
            let last = last.to_be_bytes();
            (16 - width..16).take_while(|i| bytes[*i] == last[*i]).count()
        });
        let start = out.len();
        out.push(shared as u8);
        out.extend(&bytes[16 - width + shared..]);
        match self.entries {
            EntryKind::Lists => put_granules(out, spots.iter().map(|spot| spot.granule())),
            EntryKind::Spots(worth) => {
                let of = self.directory.granules;
                let form = put_spots(out, spots, of, tells_quarters && worth.tells(spots, of));
                out[start] |= form << FORM_SHIFT;
            }
        }
    }

    /// Writes the rest. Returns the image's length, a multiple of a page.
    pub fn finish(mut self, header: &Header) -> io::Result<u64> {
        self.end_group()?;
        let (directory, version) = (self.directory.encode(), self.version());
        self.end(&directory, |len, directory| header.encode(version, len, directory))
    }

    /// Writes a directory behind the sections, and the first page, which names it. Returns the
    /// length of the whole.
    pub fn end(
        mut self,
        directory: &[u8],
        page: impl FnOnce(u64, Section) -> Vec<u8>,
    ) -> io::Result<u64> {
        let directory = self.section(directory)?;
        let whole = self.pending.len().next_multiple_of(PAGE);
        self.pending.resize(whole, 0);
        (self.flush)(&self.pending, self.base)?;
        let len = self.base + whole as u64;
        (self.flush)(&page(len, directory), 0)?;
        Ok(len)
    }
}
