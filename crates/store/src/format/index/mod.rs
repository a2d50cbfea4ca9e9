//! Where in a segment may packets with a certain key be?
//!
//! A segment is tiled by **granules** of about 128 KiB: whole blocks, one after the other. Its
//! index has a table of them, with times, losses and checksums, and for each class of keys a
//! dictionary from key to the granules that hold it ([`image`], `docs/FORMAT.md`). Of an address
//! that is in few granules it tells in which **quarters** of them it stands. It names a superset:
//! granules are what a query reads anyway, and libpcap decides each packet in them. So an index can
//! be wrong in one way only, by leaving a granule or a quarter out; what it cannot tell exactly it
//! must tell too widely.
//!
//! A [`Builder`] takes blocks as they are recorded and makes a **chunk** of the index of about
//! every 32 MiB; chunks are appended to the segment's log, where queries of other processes find
//! them. When the segment is closed, [`close()`] merges the log into one index, so that a question
//! costs two or three small reads a segment. Memory is bounded by the chunk: pairs of key and
//! granule, counted.
//!
//! Where addresses or ports are random, as in a flood, their dictionary would be larger than what
//! it saves. Such a class is then told by 16 bits of a hash of each key: equality still finds the
//! granules, with about one wrong one in a hundred, and ranges find all.

mod builder;
mod capture_index;
mod checker;
mod close;
mod code;
mod granule;
mod image;
mod keys;
mod lookup;
mod merge;
mod overview;
mod pairs;
mod rebuild;
mod spots;
mod stretches;
#[cfg(test)]
mod tests;
mod trust;

pub(crate) use builder::{Builder, ForeignPacket, GRANULE};
pub(crate) use capture_index::{Identity, Maker, SUFFIX, places};
pub(crate) use checker::{Checker, Difference};
pub(crate) use close::{checksum_outside, close};
pub(crate) use granule::{Granule, Part, Quarter, Quarters, ShedOf};
pub(crate) use keys::read_ahead;
pub(crate) use lookup::Index;
pub(crate) use overview::{Member, Overview, differences, make, make_missing};
pub(crate) use rebuild::{SegmentHead, complete};

/// Reads bytes as the parts of an index; for fuzzing.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    image::read_anything(bytes);
    overview::read_anything(bytes);
}
