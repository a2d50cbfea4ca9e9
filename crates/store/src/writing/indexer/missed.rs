//! Blocks that an index thread missed, read from where they lie in the segment.

use std::io;
use std::sync::Arc;
use std::vec::IntoIter;

use tapdeck_packet::watch::beat;

use super::task::{BlockPlace, IndexerSetup};
use crate::format::index::Builder;
use crate::format::name::SegmentName;
use crate::format::segment::open_segment;
use crate::io::{Access, Directory, Object, while_yielding_disk};

/// Bytes that are asked for at once.
const PIECE: usize = 256 << 10;

/// A list of such blocks, of one index thread and one segment.
pub(super) struct Missed {
    pub segment: SegmentName,
    places: IntoIter<BlockPlace>,
    /// What reads them, once it has begun.
    reader: Option<Reader>,
}

struct Reader {
    file: Arc<dyn Object>,
    builder: Builder,
    bytes: Vec<u8>,
}

impl Missed {
    pub fn new(segment: &SegmentName, places: Vec<BlockPlace>) -> Self {
        Self { segment: segment.clone(), places: places.into_iter(), reader: None }
    }

    /// Returns how many bytes of the segment are still to be read.
    pub fn bytes_left(&self) -> u64 {
        self.places.as_slice().iter().map(|place| place.on_disk).sum()
    }

    /// Returns whether nothing is left to be read.
    pub fn is_over(&self) -> bool {
        self.places.as_slice().is_empty()
    }

    /// Leaves the rest unread.
    pub fn leave(&mut self) {
        self.places = Vec::new().into_iter();
    }

    /// Reads a block. Returns how many bytes it has on disk; 0 where none is left.
    pub fn read_next(&mut self, work: &IndexerSetup) -> io::Result<u64> {
        let Some(&place) = self.places.as_slice().first() else { return Ok(0) };
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Reader {
                file: open_segment(&Directory::new(&work.dir), &self.segment, Access::Ranges)?,
                builder: Builder::new(&self.segment, work.links.get()),
                bytes: Vec::new(),
            }),
        };
        let Reader { file, builder, bytes } = reader;
        bytes.resize(place.len, 0);
        // Others may keep it waiting at the disk, but not for all of the block at once.
        for (at, piece) in (place.offset..).step_by(PIECE).zip(bytes.chunks_mut(PIECE)) {
            while_yielding_disk(|| file.read_exact_at(piece, at))?;
            beat();
        }
        file.forget(place.offset..place.offset + place.on_disk);
        builder.add(place.offset, bytes, place.on_disk);
        if place.ends_granule {
            builder.end_granule();
        }
        self.places.next();
        Ok(place.on_disk)
    }

    /// Returns a chunk of the index, if it is full or nothing comes any more.
    pub fn take_chunk(&mut self) -> Option<Vec<u8>> {
        let is_over = self.is_over();
        let builder = &mut self.reader.as_mut()?.builder;
        ((is_over && !builder.is_empty()) || builder.is_full()).then(|| builder.chunk())
    }
}
