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
    /// CRC32C of the granule's bytes.
    pub checksum: u32,
    /// Whether the granule holds packets that may have keys which were not found.
    pub opaque: bool,
    /// How many packets were lost before those in the granule, by interface id.
    pub dropped: Vec<(u32, u64)>,
    /// What was shed of the granule's packets. In an image it stands with the keys, and only
    /// [`super::Index::tables`] reads it.
    pub shed: Vec<ShedOf>,
    /// Whether the granule may hold what was asked for. Others are in an answer only for their
    /// losses.
    pub wanted: bool,
}

impl Granule {
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
