//! Where in memory does a ring have what? `bpf/ring.h` says it for the hook programs, and this for
//! user space.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use tapdeck_packet::ring::{
    BlockBytes, Cut, LastingMemory, PACKET_SHIFT, ReadMemory, Readable, Waker, layout,
};

use super::protocol::Memory;
use super::waker::WakesMap;
use crate::sys::arithmetic as word;
use crate::sys::mapping::Mapping;

const PAGE: usize = 4096;

/// Size of `struct td_shed` of `bpf/shed.h`, and where it has the bytes.
pub(crate) const SHED: usize = 64;
const SHED_BYTES: usize = 8;

/// How a capture's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub nrings: u32,
    /// Blocks in each ring, a power of two.
    pub nblocks: u32,
    pub block_shift: u32,
    /// The most bytes that are kept of a frame.
    pub snaplen: u32,
}

/// Why a ring cannot be made as asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GeometryError {
    /// a block size that is no power of two from 64 KiB to 4 MiB
    #[error("a block of {0} bytes: it must be a power of two from 64 KiB to 4 MiB")]
    Block(u64),
    /// a snaplen that does not fit into a block
    #[error(
        "a snaplen of {snaplen} bytes does not fit into blocks of {block_bytes}: take larger blocks or a smaller snaplen"
    )]
    Snaplen { snaplen: u32, block_bytes: u32 },
    /// more memory than one ring can address
    #[error("a ring of {0} bytes: at most 256 MiB for each queue can be addressed")]
    TooLarge(u64),
}

impl Geometry {
    /// The fewest blocks a ring works well with: one open, one at the disk, two between.
    pub const MIN_BLOCKS: u32 = 4;
    /// The verifier's limit on an offset into a map (`BPF_MAX_VAR_OFF`) is 512 MiB.
    const MAX_RING: u64 = 256 << 20;

    /// Divides `bytes` among `nrings` rings: each gets the largest power of two of
    /// blocks that fits, and at least [`Geometry::MIN_BLOCKS`]. Where `bytes` are too few for that,
    /// there are fewer rings.
    pub fn new(
        bytes: u64,
        block_bytes: u64,
        nrings: u32,
        snaplen: u32,
    ) -> Result<Self, GeometryError> {
        if !block_bytes.is_power_of_two() || !(1 << 16..=1 << 22).contains(&block_bytes) {
            return Err(GeometryError::Block(block_bytes));
        }
        let block_bytes = block_bytes as u32;
        // Header, options and the tail that always stays free.
        if snaplen.next_multiple_of(4) + 192 > block_bytes {
            return Err(GeometryError::Snaplen { snaplen, block_bytes });
        }
        let smallest = u64::from(Self::MIN_BLOCKS) * u64::from(block_bytes);
        let nrings = nrings.min(u32::try_from(bytes / smallest).unwrap_or(u32::MAX)).max(1);
        let each = bytes / u64::from(nrings);
        let blocks = (each / u64::from(block_bytes)).max(u64::from(Self::MIN_BLOCKS));
        let nblocks = 1u64 << blocks.ilog2();
        if nblocks * u64::from(block_bytes) > Self::MAX_RING {
            return Err(GeometryError::TooLarge(nblocks * u64::from(block_bytes)));
        }
        Ok(Self { nrings, nblocks: nblocks as u32, block_shift: block_bytes.ilog2(), snaplen })
    }

    pub fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    pub fn ring_bytes(&self) -> u32 {
        self.nblocks << self.block_shift
    }

    /// Returns whether [`Geometry::new`] could have made this.
    pub(crate) fn is_sound(&self) -> bool {
        let shifts = layout::MIN_BLOCK_SHIFT..=layout::MAX_BLOCK_SHIFT;
        let bytes = u64::from(self.nblocks) << self.block_shift.min(layout::MAX_BLOCK_SHIFT);
        (1..=layout::MAX_RINGS).contains(&self.nrings)
            && shifts.contains(&self.block_shift)
            && self.nblocks.is_power_of_two()
            && bytes <= Self::MAX_RING
            && (1..=1 << self.block_shift).contains(&self.snaplen)
    }

    /// Returns a power of two, minus one: no copy of a frame is longer than this plus one.
    pub(crate) fn len_mask(&self) -> u32 {
        self.snaplen.max(256).next_power_of_two() - 1
    }

    /// Returns the bytes of the map of blocks for one ring: its blocks, and slack for the verifier.
    pub(crate) fn data_stride(&self) -> usize {
        let slack = 3 * (self.len_mask() as usize + 1) + PAGE;
        self.ring_bytes() as usize + slack.next_multiple_of(PAGE)
    }

    /// Returns the bytes of `struct td_ring` with its blocks' entries.
    pub(crate) fn ring_stride(&self) -> usize {
        layout::RING + self.nblocks as usize * layout::BLOCK
    }

    /// Returns the bytes of what the readers of the rings note, where that outlives them.
    pub(crate) fn noted_bytes(&self) -> usize {
        self.nrings as usize * self.nblocks as usize * 8
    }

    /// Returns all the memory that the rings take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let each = self.data_stride() + self.ring_stride() + layout::RELEASE;
        each as u64 * u64::from(self.nrings)
    }
}

/// The memory of one ring.
#[derive(Clone, Debug)]
pub struct RingMemory {
    geometry: Geometry,
    index: u32,
    rings: Arc<Mapping>,
    data: Arc<Mapping>,
    release: Arc<Mapping>,
    taken: Arc<Taken>,
    /// Where is counted what was shed; `None` at rings of which nothing ever is.
    shed: Option<Arc<Mapping>>,
    /// Counters of what flows had beyond their bytes; `None` where nobody cuts flows off.
    cuts: Option<Arc<Mapping>>,
    /// What the ring's producers wake its reader by; `None` where they do not.
    waker: Option<Arc<WakesMap>>,
}

/// `sizeof(struct td_cut)`, and where in it the bytes are.
pub(crate) const CUT: usize = 64;
const CUT_BYTES: usize = 8;

impl RingMemory {
    /// Returns all rings of a set that lies in three mappings.
    pub(crate) fn set(
        geometry: Geometry,
        rings: &Arc<Mapping>,
        data: &Arc<Mapping>,
        release: &Arc<Mapping>,
    ) -> Vec<Self> {
        let (rings, data, release) = (rings.clone(), data.clone(), release.clone());
        let taken = || Arc::new(Taken::new(geometry.nblocks));
        let first = Self {
            geometry,
            index: 0,
            rings,
            data,
            release,
            taken: taken(),
            shed: None,
            cuts: None,
            waker: None,
        };
        let ring = |index| Self { index, taken: taken(), ..first.clone() };
        (0..geometry.nrings).map(ring).collect()
    }

    /// Has a set of rings keep what their readers note in a mapping that outlives this process, of
    /// [`Geometry::noted_bytes`].
    pub(crate) fn noting_in(set: Vec<Self>, noted: &Arc<Mapping>) -> Vec<Self> {
        let each = |ring: Self| {
            let at = ring.index as usize * ring.geometry.nblocks as usize * 8;
            let before = Before::Lasting(noted.clone(), at);
            Self { taken: Arc::new(Taken { before, ..Taken::new(ring.geometry.nblocks) }), ..ring }
        };
        set.into_iter().map(each).collect()
    }

    /// Has a set of rings tell what was shed of their packets, and what was left out of flows, as
    /// it is counted in two mappings of [`SHED`] and [`CUT`] bytes for each.
    pub(crate) fn counting_in(
        set: Vec<Self>,
        shed: &Arc<Mapping>,
        cuts: &Arc<Mapping>,
    ) -> Vec<Self> {
        let each = |ring| Self { shed: Some(shed.clone()), cuts: Some(cuts.clone()), ..ring };
        set.into_iter().map(each).collect()
    }

    /// Has the readers of a set of rings be woken by a map of their producers'.
    pub(crate) fn woken_by(set: Vec<Self>, waker: &Arc<WakesMap>) -> Vec<Self> {
        set.into_iter().map(|ring| Self { waker: Some(waker.clone()), ..ring }).collect()
    }

    /// Takes note of how many packets readers before have taken out of the ring.
    pub(crate) fn set_taken(&self, packets: u64) {
        self.taken.packets.store(packets, Release);
    }

    /// Makes a set of rings in memory of this process, for the socket hooks.
    pub(crate) fn anonymous(geometry: Geometry) -> io::Result<Vec<Self>> {
        let n = geometry.nrings as usize;
        let rings = Arc::new(Mapping::anonymous(n * geometry.ring_stride())?);
        let data = Arc::new(Mapping::anonymous(n * geometry.data_stride())?);
        let release = Arc::new(Mapping::anonymous(n * layout::RELEASE)?);
        Ok(Self::set(geometry, &rings, &data, &release))
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn ring(&self, offset: usize) -> usize {
        self.index as usize * self.geometry.ring_stride() + offset
    }

    fn block(&self, slot: u32, offset: usize) -> usize {
        self.ring(layout::RING + slot as usize * layout::BLOCK + offset)
    }

    fn place(&self, slot: u32, offset: u32) -> usize {
        self.index as usize * self.geometry.data_stride()
            + ((slot as usize) << self.geometry.block_shift)
            + offset as usize
    }

    /// Returns reserved space that is not yet committed, to be written by its producer.
    pub(crate) fn reserved(&self, at: &super::Reserved) -> &mut [u8] {
        crate::sys::ring_bytes::reserved(
            &self.data,
            self.place(at.block % self.geometry.nblocks, at.offset),
            at.len as usize,
        )
    }

    /// Returns how many packets were dropped at this ring, whatever the cause.
    pub fn lost(&self) -> u64 {
        self.rings.u64(self.ring(layout::LOST)).load(Acquire)
    }

    /// Returns how many of [`RingMemory::lost`] were dropped because other producers were faster,
    /// time and again.
    pub fn contended(&self) -> u64 {
        self.rings.u64(self.ring(layout::CONTENDED)).load(Acquire)
    }

    /// Returns how many of [`RingMemory::lost`] were dropped because their bytes could not be read.
    pub fn failed(&self) -> u64 {
        self.rings.u64(self.ring(layout::FAILED)).load(Acquire)
    }

    /// Returns how many packets the filter or the rules refused.
    pub fn filtered(&self) -> u64 {
        self.rings.u64(self.ring(layout::FILTERED)).load(Acquire)
    }

    /// Returns what was left out because its flow had had its bytes.
    pub fn cut(&self) -> Cut {
        let Some(cuts) = &self.cuts else { return Cut::default() };
        let word = |offset| cuts.u64(self.index as usize * CUT + offset).load(Acquire);
        Cut { packets: word(0), bytes: word(CUT_BYTES) }
    }

    /// Returns everything that was lost here, by cause.
    pub fn losses(&self) -> crate::Losses {
        let (contended, unreadable) = (self.contended(), self.failed());
        let ring = self.lost().saturating_sub(contended + unreadable);
        crate::Losses { ring, contended, unreadable }
    }

    /// Returns what was shed of the ring's packets.
    pub fn shed(&self) -> crate::Shed {
        let count = |offset: usize| {
            let at = self.index as usize * SHED + offset;
            self.shed.as_ref().map_or(0, |shed| shed.u64(at).load(Acquire))
        };
        crate::Shed { packets: count(0), bytes: count(SHED_BYTES) }
    }

    pub(crate) fn count_lost(&self, packets: u64) {
        self.rings.u64(self.ring(layout::LOST)).fetch_add(packets, AcqRel);
    }

    pub(crate) fn count_filtered(&self, packets: u64) {
        self.rings.u64(self.ring(layout::FILTERED)).fetch_add(packets, AcqRel);
    }

    /// Returns how many packets were lost since the last call. The caller announces them.
    pub(crate) fn take_untold(&self) -> u64 {
        let told = self.rings.u64(self.ring(layout::TOLD));
        let lost = self.lost();
        lost - told.swap(lost, AcqRel)
    }

    pub(crate) fn untell(&self, packets: u64) {
        self.rings.u64(self.ring(layout::TOLD)).fetch_sub(packets, AcqRel);
    }

    /// Returns the number of the open block, and the bytes reserved in it.
    pub fn open_block(&self) -> (u32, u32) {
        let w = self.word();
        (word::word_block(w), word::word_bytes(w))
    }

    /// Returns the epoch of the open block.
    pub fn open_epoch(&self) -> u32 {
        word::word_epoch(self.word())
    }

    /// Returns how many packets were ever committed to the ring, whether its reader, which is in
    /// this process, has taken them or not.
    pub fn packets(&self) -> u64 {
        let unread = |slot: usize, before: u64| {
            self.committed(slot as u32).wrapping_sub(before) >> PACKET_SHIFT
        };
        self.taken.with(unread)
    }

    /// Returns how many bytes of the ring hold packets or wait to be released.
    pub fn fill_bytes(&self) -> u64 {
        // In this order the reader cannot get past the word that is looked at.
        let released = self.released();
        let w = self.word();
        let closed = word::word_block(w).wrapping_sub(released);
        (u64::from(closed) << self.geometry.block_shift) + u64::from(word::word_bytes(w))
    }
}

impl ReadMemory for RingMemory {
    fn block_bytes(&self) -> u32 {
        self.geometry.block_bytes()
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
        self.release.u32(self.index as usize * layout::RELEASE).load(Acquire)
    }

    fn set_released(&self, block: u32) {
        self.release.u32(self.index as usize * layout::RELEASE).store(block, Release);
    }

    fn set_awake(&self, is_awake: bool) {
        let at = self.index as usize * layout::RELEASE + layout::AWAKE;
        self.release.u32(at).store(is_awake.into(), Relaxed);
        fence(SeqCst);
    }

    fn note_taken(&self, slot: u32, packets: u64, committed: u64) {
        self.taken.note(slot as usize, packets, committed);
    }
}

impl LastingMemory for RingMemory {
    fn noted(&self, slot: u32) -> u64 {
        self.taken.before.of(slot as usize).map_or(0, |before| before.load(Acquire))
    }
}

/// What the reader of a ring has taken out of it, for others to read while it works.
///
/// The reader writes it for each block that it releases and never waits; who reads it tries again
/// where the reader was at work.
#[derive(Debug)]
struct Taken {
    /// Odd while the reader writes.
    version: AtomicU64,
    packets: AtomicU64,
    nblocks: usize,
    before: Before,
}

/// Each slot's commit counter when its block was last released.
#[derive(Debug)]
enum Before {
    Own(Vec<AtomicU64>),
    /// From this offset on, in memory that outlives the process.
    Lasting(Arc<Mapping>, usize),
}

impl Before {
    fn of(&self, slot: usize) -> Option<&AtomicU64> {
        match self {
            Self::Own(slots) => slots.get(slot),
            Self::Lasting(memory, at) => Some(memory.u64(at + slot * 8)),
        }
    }
}

impl Taken {
    fn new(nblocks: u32) -> Self {
        let before = Before::Own((0..nblocks).map(|_| AtomicU64::new(0)).collect());
        let (version, packets) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { version, packets, nblocks: nblocks as usize, before }
    }

    fn note(&self, slot: usize, packets: u64, committed: u64) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.packets.fetch_add(packets, Relaxed);
        if let Some(before) = self.before.of(slot) {
            before.store(committed, Relaxed);
        }
        self.version.store(version + 2, Release);
    }

    /// Returns the packets that were taken, and what `unread` says of each slot's counter, all as
    /// of one moment between two releases.
    fn with(&self, unread: impl Fn(usize, u64) -> u64) -> u64 {
        loop {
            let version = self.version.load(Acquire);
            let before = |slot| Some((slot, self.before.of(slot)?.load(Relaxed)));
            let slots = (0..self.nblocks).filter_map(before);
            let unread: u64 = slots.map(|(slot, before)| unread(slot, before)).sum();
            let all = self.packets.load(Relaxed) + unread;
            fence(Acquire);
            if version.is_multiple_of(2) && self.version.load(Relaxed) == version {
                return all;
            }
            std::thread::yield_now();
        }
    }
}

impl Memory for RingMemory {
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64> {
        let word = self.rings.u64(self.ring(0));
        word.compare_exchange(old, new, AcqRel, Acquire).map(|_| ())
    }

    fn commit(&self, slot: u32, n: u64) -> u64 {
        self.rings.u64(self.block(slot, 0)).fetch_add(n, AcqRel).wrapping_add(n)
    }

    fn set_closed(&self, slot: u32, used: u32, epoch: u32) {
        self.rings.u32(self.block(slot, layout::USED)).store(used, Relaxed);
        self.rings.u32(self.block(slot, layout::EPOCH)).store(epoch, Relaxed);
    }
}

impl BlockBytes for RingMemory {
    fn bytes(&self, at: &Readable) -> &[u8] {
        let len = at.bytes().min(self.geometry.block_bytes()) as usize;
        crate::sys::ring_bytes::complete(&self.data, self.place(at.slot(), 0), len)
    }

    fn lost(&self) -> u64 {
        RingMemory::lost(self)
    }

    fn cut(&self) -> Cut {
        RingMemory::cut(self)
    }

    fn waker(&self) -> Option<&dyn Waker> {
        self.waker.as_deref().map(|waker| waker as &dyn Waker)
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::ring::{FRAME_SHIFT, PACKET_SHIFT};

    use super::super::protocol;
    use super::{Geometry, GeometryError, SHED, SHED_BYTES, layout};
    use crate::bpf::control;
    use crate::sys;

    #[test]
    fn layout_is_that_of_the_c_header() {
        let here = [
            layout::RING as u32,
            layout::LOST as u32,
            layout::TOLD as u32,
            layout::CONTENDED as u32,
            layout::FAILED as u32,
            layout::FILTERED as u32,
            layout::BLOCK as u32,
            layout::USED as u32,
            layout::EPOCH as u32,
            super::CUT as u32,
            super::CUT_BYTES as u32,
            layout::RELEASE as u32,
            layout::AWAKE as u32,
            control::CONTROL_BYTES as u32,
            control::SNAPLEN as u32,
            control::RESTS as u32,
            control::DEADLINE as u32,
            control::ABANDONED as u32,
            control::SEED as u32,
            control::UTC_OFFSETS as u32,
            FRAME_SHIFT,
            PACKET_SHIFT,
            tapdeck_packet::pcapng::MIN_FILL as u32,
            protocol::TRIES,
            layout::MIN_BLOCK_SHIFT,
            layout::MAX_BLOCK_SHIFT,
            layout::MAX_RINGS,
            256,
            tapdeck_packet::pcapng::FILL,
            SHED as u32,
            SHED_BYTES as u32,
            crate::overload::LEAST,
            tapdeck_packet::pcapng::option::EPB_SHED.into(),
        ];
        assert_eq!(here, sys::arithmetic::layout());
    }

    #[test]
    fn memory_is_divided_into_powers_of_two() {
        let g = Geometry::new(64 << 20, 1 << 20, 3, 262_144).unwrap();
        assert_eq!((g.nblocks, g.ring_bytes()), (16, 16 << 20));
        let g = Geometry::new(1, 1 << 20, 2, 65_535).unwrap();
        assert_eq!((g.nrings, g.nblocks), (1, Geometry::MIN_BLOCKS));
        let g = Geometry::new(64 << 20, 1 << 20, 128, 65_535).unwrap();
        assert_eq!((g.nrings, g.nblocks), (16, Geometry::MIN_BLOCKS));
        assert_eq!(Geometry::new(1 << 30, 3 << 20, 1, 1), Err(GeometryError::Block(3 << 20)));
        assert!(matches!(Geometry::new(1 << 30, 1 << 20, 1, 1), Err(GeometryError::TooLarge(_))));
        assert!(matches!(
            Geometry::new(1 << 20, 1 << 16, 1, 65_535),
            Err(GeometryError::Snaplen { .. })
        ));
    }
}
