//! In which of many segments may packets with a certain key be?
//!
//! Each index is asked by itself, which costs a few small reads; a month of minutes has 43,200 of
//! them. So above 64 segments stands an **overview**, a file that says of each key in which of them
//! it is, and of each segment what its ends and the head of its index tell. A question that finds
//! nothing then reads an overview in the place of 64 indexes; where it finds something, the index
//! of that segment leads to granules as ever.
//!
//! An overview is never more than a short cut. It covers closed segments whose index was whole when
//! it was made ([`make`]), and each only as long as the segment has the length and the time of last
//! change that it had then. Of a segment that is not covered, or is another by now, nothing is
//! believed, and its own index is asked. The overview is named after the last of its segments and
//! is deleted with that one.

mod check;
mod make;
mod table;

use std::io;

use roaring::RoaringBitmap;
use tapdeck_packet::key::Plan;

use super::code::{Bytes, Room, damaged};
use super::granule::Quarters;
use super::image::{Directory, Image, Section};
use super::lookup::{add, find, open};
use super::trust::is_believed;
use crate::format::name::SegmentName;
use crate::io::{Owner, PAGE, State, Storage};
pub(crate) use check::differences;
pub(crate) use make::{make, make_missing};
pub(crate) use table::Member;
use table::Table;

const MAGIC: [u8; 8] = *b"tapdeckO";
const VERSION: u32 = 1;
/// The header's bytes that count; zeros follow up to the page's end.
const HEADER: usize = 76;
/// What is read at once of an overview's beginning: header and table, where rings are few.
const FIRST: usize = 16 << 10;
/// The longest table of an overview that is not damaged, and more.
const LONGEST_TABLE: usize = 8 << 20;
/// Memory that the directory takes at most.
const DIRECTORY_ROOM: usize = 8 << 20;

/// Which overview it is, and where its parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    len: u64,
    /// Number of the last segment, and the time in its name.
    number: u64,
    began_s: i64,
    table: Section,
    directory: Section,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        for n in [self.len, self.number, self.began_s as u64] {
            out.extend(n.to_le_bytes());
        }
        for section in [self.table, self.directory] {
            out.extend(section.offset.to_le_bytes());
            out.extend(section.len.to_le_bytes());
            out.extend(section.checksum.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        out.resize(PAGE, 0);
        out
    }

    /// Takes a header, and its checksum.
    fn decode(page: &[u8]) -> io::Result<(Self, u32)> {
        let mut bytes = Bytes(page);
        if bytes.take(8)? != MAGIC {
            return Err(damaged("it does not begin as an overview does"));
        }
        let version = bytes.u32()?;
        let checksum = Bytes(page.get(HEADER - 4..).unwrap_or_default()).u32()?;
        if crc32c::crc32c(&page[..HEADER - 4]) != checksum {
            return Err(damaged("the checksum of its header is wrong"));
        }
        if version != VERSION {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is of another version"));
        }
        bytes.u32()?;
        let (len, number, began_s) = (bytes.u64()?, bytes.u64()?, bytes.u64()? as i64);
        let mut section = || -> io::Result<Section> {
            Ok(Section { offset: bytes.u64()?, len: bytes.u32()?, checksum: bytes.u32()? })
        };
        let (table, directory) = (section()?, section()?);
        Ok((Self { len, number, began_s, table, directory }, checksum))
    }
}

/// An overview, opened for reading.
#[derive(Debug)]
pub(crate) struct Overview {
    /// What holds the keys, with segments in the place of granules.
    image: Image,
    header: Header,
    /// The header's checksum, which tells this overview from another of its name.
    pub checksum: u32,
    table: Table,
    owner: Option<Owner>,
}

impl Overview {
    /// Opens the overview that is named after a segment; `None` where there is none. An error means
    /// that it is damaged.
    pub fn open(storage: &dyn Storage, last: &SegmentName) -> io::Result<Option<Self>> {
        let Some(object) = open(storage, last.overview_name().as_ref())? else { return Ok(None) };
        let state = object.state()?;
        let mut first = vec![0; FIRST];
        let have = object.read_up_to(&mut first, 0)?;
        let (header, checksum) = Header::decode(&first[..have])?;
        if (header.number, header.began_s) != (last.number, last.began_s) {
            return Err(damaged("it is another segment's"));
        }
        if header.len != state.len {
            return Err(damaged("it has another length than it was made with"));
        }
        let Section { offset, len, checksum: expected } = header.table;
        if len as usize > LONGEST_TABLE {
            return Err(damaged("its table is too long"));
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let here = first[..have].get(at..at.saturating_add(len as usize));
        let mut image = Image::of_keys(object, header.len);
        let bytes = match here {
            Some(bytes) if crc32c::crc32c(bytes) == expected => bytes.to_vec(),
            Some(_) => return Err(damaged("the checksum of its table is wrong")),
            None => image.read(header.table)?,
        };
        image.bytes_read = (FIRST + bytes.len()) as u64;
        let table = Table::decode(&bytes, last)?;
        Ok(Some(Self { image, header, checksum, table, owner: state.owner }))
    }

    /// Returns the segments that were covered when the overview was made, ascending.
    pub fn members(&self) -> &[Member] {
        &self.table.members
    }

    /// Returns how segments begin: the bytes before the first packet, each beginning once.
    pub fn heads(&self) -> &[Vec<u8>] {
        &self.table.heads
    }

    /// Returns which member a segment is, if it is still what it was and the overview is to be
    /// believed about it.
    pub fn covers(&self, name: &SegmentName, state: &State) -> Option<usize> {
        let at = self.table.members.binary_search_by_key(&name.number, |m| m.number).ok()?;
        let member = &self.table.members[at];
        let is_it = !name.live
            && member.began_s == name.began_s
            && (member.len, member.changed_ns) == (state.len, state.changed_ns);
        (is_it && is_believed(self.owner, state.owner)).then_some(at)
    }

    /// Returns the places of the members that may hold packets of a plan; `None` for all.
    pub fn select(&mut self, plan: &Plan) -> io::Result<Option<RoaringBitmap>> {
        self.read_directory()?;
        Ok(find(&mut self.image, plan)?.map(|found| {
            let mut members = found.iter().map(|quarter| quarter / Quarters::MOST as u32).collect();
            add(&mut members, &self.image.directory.opaque);
            members
        }))
    }

    fn read_directory(&mut self) -> io::Result<()> {
        let bytes = self.image.read(self.header.directory)?;
        let directory = Directory::decode_keys(&bytes, &mut Room::of(DIRECTORY_ROOM))?;
        if directory.granules as usize != self.table.members.len() {
            return Err(damaged("its table and its directory differ"));
        }
        self.image.directory = directory;
        Ok(())
    }

    /// Returns how many bytes were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.image.bytes_read
    }
}

/// Takes bytes for the parts of an overview, as if their checksums were right; for fuzzing.
pub(super) fn read_anything(bytes: &[u8]) {
    if let Ok((header, _)) = Header::decode(bytes) {
        assert_eq!(Header::decode(&header.encode()).ok().map(|(h, _)| h), Some(header));
    }
    let last = SegmentName { number: 63, began_s: 0, live: false };
    if let Ok(table) = Table::decode(bytes, &last) {
        assert!(table.members.iter().all(|m| m.head < table.heads.len() && m.number <= 63));
        assert_eq!(Table::decode(&table.encode(), &last).ok(), Some(table));
    }
    let decode = |bytes: &[u8]| Directory::decode_keys(bytes, &mut Room::of(8 << 20));
    if let Ok(directory) = decode(bytes) {
        assert_eq!(decode(&directory.encode_keys()).ok(), Some(directory));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tapdeck_testkit::SplitMix64;

    use super::{Directory, Header, Room, SegmentName, Table, read_anything};

    fn seed(number: u32) -> Vec<u8> {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/index");
        fs::read(format!("{seeds}/{number}")).unwrap()
    }

    #[test]
    fn the_fuzz_targets_seeds_are_parts_of_an_overview() {
        let last = SegmentName { number: 63, began_s: 0, live: false };
        let (header, _) = Header::decode(&seed(2)).unwrap();
        assert_eq!((header.number, header.len), (63, 12288));
        let table = Table::decode(&seed(3), &last).unwrap();
        assert_eq!((table.members[0].len, table.heads[0].len()), (4096, 4));
        let other = SegmentName { number: 127, ..last };
        assert!(Table::decode(&seed(3), &other).is_err(), "a segment of another overview");
        let directory = Directory::decode_keys(&seed(4), &mut Room::of(1000)).unwrap();
        assert_eq!((directory.granules, directory.dictionaries.len()), (2, 1));
    }

    #[test]
    fn nonsense_is_told() {
        let mut rng = SplitMix64(4);
        for round in 0..9000 {
            let mut bytes = seed(2 + round % 3);
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.below(256) as u8][rng.below(6)];
            }
            if rng.one_in(3) {
                bytes.truncate(rng.below(bytes.len()));
            }
            if bytes.len() >= 76 {
                // As if whoever changed the header had thought of the checksum.
                let checksum = crc32c::crc32c(&bytes[..72]);
                bytes[72..76].copy_from_slice(&checksum.to_le_bytes());
            }
            read_anything(&bytes);
        }
    }
}
