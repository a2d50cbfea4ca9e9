//! Where do the words and blocks of a ring lie in a member's memory?
//!
//! The layout is that of `crates/capture/bpf/ring.h`. Three maps hold it: `rings`, the words that
//! the kernel writes; `data`, the blocks; and `release`, two numbers for each ring, of which the
//! first is the first block that the member has not released. The member maps the first two
//! read-only. How a ring is read is not here: [`tapdeck_packet::ring::RingReader`] does that,
//! through [`Memory`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use serde::Deserialize;
use tapdeck_packet::ring::{BlockBytes, ReadMemory, Readable, layout};

use crate::sys::mapping::Mapping;

const PAGE: usize = 4096;

/// How a member's memory is divided, as the daemon says when the member attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Geometry {
    /// Number of rings: one for each queue or CPU.
    pub nrings: u32,
    /// Number of blocks in each ring, a power of two.
    pub nblocks: u32,
    /// Binary logarithm of the size of a block in bytes.
    pub block_shift: u32,
    /// Bytes from one ring's words to the next ring's, in the map `rings`.
    pub ring_stride: usize,
    /// Bytes from one ring's first block to the next ring's, in the map `data`.
    pub data_stride: usize,
    /// Bytes from one ring's numbers to the next ring's, in the map `release`.
    pub release_stride: usize,
}

impl Geometry {
    /// Returns what is wrong with the geometry, if rings of this form cannot be.
    fn fault(&self) -> Option<&'static str> {
        let nblocks = self.nblocks as usize;
        if !(1..=layout::MAX_RINGS).contains(&self.nrings) {
            return Some("the number of rings");
        }
        if !(layout::MIN_BLOCK_SHIFT..=layout::MAX_BLOCK_SHIFT).contains(&self.block_shift) {
            return Some("the size of a block");
        }
        if !(2..=1 << 16).contains(&nblocks) || !nblocks.is_power_of_two() {
            return Some("the number of blocks");
        }
        let fits = |stride: usize, least: usize, most: usize, align: usize| {
            (least..=most).contains(&stride) && stride.is_multiple_of(align)
        };
        if !fits(self.ring_stride, layout::RING + nblocks * layout::BLOCK, 1 << 32, 8)
            || !fits(self.data_stride, nblocks << self.block_shift, 1 << 40, PAGE)
            || !fits(self.release_stride, 2 * size_of::<u32>(), PAGE, size_of::<u32>())
        {
            return Some("the distance between rings");
        }
        None
    }

    /// Length of a map whose rings are `stride` bytes apart.
    fn bytes(&self, stride: usize) -> usize {
        self.nrings as usize * stride
    }
}

/// The memory of one ring.
#[derive(Debug)]
pub struct Memory {
    geometry: Geometry,
    index: usize,
    rings: Arc<Mapping>,
    data: Arc<Mapping>,
    release: Arc<Mapping>,
}

/// Why a member's memory could not be mapped.
#[derive(Debug)]
pub enum MapError {
    Geometry(&'static str),
    Io(io::Error),
}

impl Memory {
    /// Maps the three maps, and returns the memory of each ring.
    pub fn map(
        geometry: Geometry,
        rings: &OwnedFd,
        data: &OwnedFd,
        release: &OwnedFd,
    ) -> Result<Vec<Self>, MapError> {
        if let Some(fault) = geometry.fault() {
            return Err(MapError::Geometry(fault));
        }
        let map = |fd: &OwnedFd, stride, writable| {
            Mapping::new(fd.as_fd(), geometry.bytes(stride), writable)
                .map(Arc::new)
                .map_err(MapError::Io)
        };
        let rings = map(rings, geometry.ring_stride, false)?;
        let data = map(data, geometry.data_stride, false)?;
        let release = map(release, geometry.release_stride, true)?;
        let memory = |index| Self {
            geometry,
            index,
            rings: rings.clone(),
            data: data.clone(),
            release: release.clone(),
        };
        Ok((0..geometry.nrings as usize).map(memory).collect())
    }

    /// Place in `rings` of the byte at `offset` of this ring.
    fn ring(&self, offset: usize) -> usize {
        self.index * self.geometry.ring_stride + offset
    }

    /// Place in `release` of the byte at `offset` of what this ring's reader writes.
    fn release(&self, offset: usize) -> usize {
        self.index * self.geometry.release_stride + offset
    }

    /// Says that the reader looks by itself from now on, so that nobody wakes it.
    pub fn stay_awake(&self) {
        self.release.u32(self.release(layout::AWAKE)).store(1, Release);
    }

    /// Place in `rings` of the byte at `offset` of what describes the block in a slot.
    fn block(&self, slot: u32, offset: usize) -> usize {
        self.ring(layout::RING + slot as usize * layout::BLOCK + offset)
    }
}

impl ReadMemory for Memory {
    fn block_bytes(&self) -> u32 {
        1 << self.geometry.block_shift
    }

    fn nblocks(&self) -> u32 {
        self.geometry.nblocks
    }

    fn word(&self) -> u64 {
        self.rings.u64(self.ring(0)).load(Acquire)
    }

    fn committed(&self, slot: u32) -> u64 {
        self.rings.u64(self.block(slot, 0)).load(Acquire)
    }

    fn closed(&self, slot: u32) -> (u32, u32) {
        let used = self.rings.u32(self.block(slot, layout::USED)).load(Relaxed);
        let epoch = self.rings.u32(self.block(slot, layout::EPOCH)).load(Relaxed);
        (used, epoch)
    }

    fn released(&self) -> u32 {
        self.release.u32(self.release(0)).load(Acquire)
    }

    fn set_released(&self, block: u32) {
        self.release.u32(self.release(0)).store(block, Release);
        fence(SeqCst);
    }
}

impl BlockBytes for Memory {
    fn bytes(&self, at: &Readable) -> &[u8] {
        let block = self.index * self.geometry.data_stride
            + ((at.slot() as usize) << self.geometry.block_shift);
        self.data.committed(block, at.bytes().min(self.block_bytes()) as usize)
    }

    fn lost(&self) -> u64 {
        self.rings.u64(self.ring(layout::LOST)).load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::Geometry;

    const GOOD: Geometry = Geometry {
        nrings: 2,
        nblocks: 4,
        block_shift: 16,
        ring_stride: 128,
        data_stride: (4 << 16) + 4096,
        release_stride: 64,
    };

    #[test]
    fn what_cannot_be_a_ring_is_refused() {
        assert_eq!(GOOD.fault(), None);
        let faults = [
            Geometry { nrings: 0, ..GOOD },
            Geometry { nrings: 129, ..GOOD },
            Geometry { nblocks: 3, ..GOOD },
            Geometry { nblocks: 1, ..GOOD },
            Geometry { block_shift: 15, ..GOOD },
            Geometry { block_shift: 23, ..GOOD },
            Geometry { ring_stride: 124, ..GOOD },
            Geometry { ring_stride: 120, ..GOOD },
            Geometry { ring_stride: usize::MAX, ..GOOD },
            Geometry { data_stride: 4 << 15, ..GOOD },
            Geometry { data_stride: (4 << 16) + 1, ..GOOD },
            Geometry { release_stride: 4, ..GOOD },
            Geometry { release_stride: 10, ..GOOD },
        ];
        for geometry in faults {
            assert!(geometry.fault().is_some(), "{geometry:?}");
        }
    }
}
