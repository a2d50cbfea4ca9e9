//! What does an index know of a piece of its segment, and of the whole? Times, counts, losses and
//! checksums. Keys are not among them: those lead to a granule and are not kept with it.

use std::io;
use std::ops::Range;

use super::code::Room;

/// A piece of a segment: whole blocks, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granule {
    /// Where the granule lies in the segment.
    pub place: Range<u64>,
    /// The earliest time of its packets, UTC nanoseconds; later than the latest where there are
    /// none.
    pub first_ns: i64,
    /// The latest time of its packets, UTC nanoseconds.
    pub last_ns: i64,
    pub packets: u32,
    pub quarters: Quarters,
    /// Whether the granule holds packets that may have keys which were not found.
    pub opaque: bool,
    /// How many packets were lost before those in the granule, by interface id.
    pub dropped: Vec<(u32, u64)>,
    /// What was shed of the granule's packets. In an image it stands with the keys, and only
    /// [`super::Index::tables`] reads it.
    pub shed: Vec<ShedOf>,
    /// The quarters that may hold what was asked for, a bit for each. A granule without is in an
    /// answer only for its losses.
    pub wanted: u8,
}

/// The parts of a granule, four at most, each of whole blocks. Where an index tells in which of
/// them a key stands, the others need not be read, so each has a checksum of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quarters {
    count: u8,
    each: [Quarter; Self::MOST],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quarter {
    pub len: u32,
    /// CRC32C of its bytes.
    pub checksum: u32,
}

/// What is to be read of a granule: quarters one behind the other.
pub(crate) struct Part {
    pub place: Range<u64>,
    pub quarters: Vec<Quarter>,
}

impl Quarters {
    pub const MOST: usize = 4;
    /// A bit for each.
    pub const ALL: u8 = (1 << Self::MOST) - 1;
    /// A quarter is ended by the first block that makes it so long, but for the last.
    pub const LEN: u64 = 32 << 10;

    /// Makes the quarters of a granule that is not divided.
    pub fn one(len: u32, checksum: u32) -> Self {
        let mut quarters = Self::default();
        quarters.push(len, checksum);
        quarters
    }

    /// Adds one, unless there are four.
    pub fn push(&mut self, len: u32, checksum: u32) {
        if let Some(next) = self.each.get_mut(usize::from(self.count)) {
            *next = Quarter { len, checksum };
            self.count += 1;
        }
    }

    pub fn each(&self) -> &[Quarter] {
        &self.each[..usize::from(self.count)]
    }

    /// Returns the CRC32C of all together.
    pub fn checksum(&self) -> u32 {
        let Some((first, rest)) = self.each().split_first() else { return 0 };
        rest.iter().fold(first.checksum, |sum, next| {
            crc32c::crc32c_combine(sum, next.checksum, next.len as usize)
        })
    }

    /// Returns whether the granule's bytes are what they were.
    pub fn are_those_of(&self, mut bytes: &[u8]) -> bool {
        let is_next = |quarter: &Quarter| {
            let Some((of_it, rest)) = bytes.split_at_checked(quarter.len as usize) else {
                return false;
            };
            bytes = rest;
            crc32c::crc32c(of_it) == quarter.checksum
        };
        self.each().iter().all(is_next) && bytes.is_empty()
    }
}

impl Granule {
    /// Returns what has to be read of the granule, in the order of the segment. Who reads a part
    /// alone does not see what packets in the others tell of losses, so a granule with such is read
    /// whole.
    pub fn to_read(&self) -> Vec<Part> {
        let is_whole = self.wanted == 0 || !self.dropped.is_empty();
        let mut parts: Vec<Part> = Vec::new();
        let mut at = self.place.start;
        for (number, quarter) in self.quarters.each().iter().enumerate() {
            let end = at + u64::from(quarter.len);
            if is_whole || self.wanted & 1 << number != 0 {
                match parts.last_mut() {
                    Some(part) if part.place.end == at => {
                        part.place.end = end;
                        part.quarters.push(*quarter);
                    }
                    _ => parts.push(Part { place: at..end, quarters: vec![*quarter] }),
                }
            }
            at = end;
        }
        parts
    }

    /// Takes the room that the granule takes up.
    pub(super) fn take_up(&self, room: &mut Room) -> io::Result<()> {
        room.take::<Self>(1)?;
        room.take::<(u32, u64)>(self.dropped.len())
    }
}

/// What was shed of the packets of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShedOf {
    /// The interface's id in the segment.
    pub interface: u32,
    /// Packets that are not whole because of it.
    pub packets: u32,
    /// Bytes of them that were given up.
    pub bytes: u64,
}

impl ShedOf {
    /// Adds a packet to a list with one entry for each interface.
    pub fn add(list: &mut Vec<Self>, interface: u32, bytes: u32) {
        let bytes = u64::from(bytes);
        match list.iter_mut().find(|shed| shed.interface == interface) {
            Some(shed) => {
                shed.packets = shed.packets.saturating_add(1);
                shed.bytes = shed.bytes.saturating_add(bytes);
            }
            None => list.push(Self { interface, packets: 1, bytes }),
        }
    }

    /// Returns the key of the class [`tapdeck_packet::key::Class::Shed`] that says this.
    pub(super) fn key(self) -> u128 {
        u128::from(self.interface) << 96 | u128::from(self.packets) << 64 | u128::from(self.bytes)
    }

    /// Returns what a key says.
    pub(super) fn of_key(key: u128) -> Self {
        Self { interface: (key >> 96) as u32, packets: (key >> 64) as u32, bytes: key as u64 }
    }
}

/// What the index knows of its segment as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub packets: u64,
    /// The earliest time of a packet, UTC nanoseconds; later than the latest where there are no
    /// packets.
    pub first_ns: i64,
    /// The latest time of its packets, UTC nanoseconds.
    pub last_ns: i64,
    /// Packets lost, as the segment's statistics tell; 0 while it is written.
    pub dropped: u64,
    /// CRC32C of the segment's bytes that lie in no granule: its head and its end. 0 while it is
    /// written.
    pub outside: u32,
    /// Whether the segment is closed and all its packets are indexed.
    pub complete: bool,
}
