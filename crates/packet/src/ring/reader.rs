//! How is a ring read, over any memory that holds one?
//!
//! `docs/ARCHITECTURE.md` has the protocol. This is the reader's half of it, without the memory:
//! `capture` reads rings that it has mapped itself, `client` reads rings that the daemon gave it,
//! and the model checker has memory of its own. The producers' half is in `capture`.
//!
//! Blocks may be held for longer than the reader needs them ([`super::Hold`]). The account of holds
//! is behind a lock, which is taken for a block, never for a packet. Both the reader that releases
//! blocks and the thread that ends a hold tell the producers how far they may go, always while they
//! have the lock: so that number only goes up, and it goes past a block only after the last read of
//! the block's bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Block, Contents, Cut, Hold, Holds, Ring, Waker};

/// Lowest bit of the second of a commit counter's three fields, the frames' bytes
/// (`TD_FRAME_SHIFT`). The first, the blocks' bytes, begins at bit 0.
pub const FRAME_SHIFT: u32 = 23;
/// Lowest bit of a commit counter's third field, the number of packets (`TD_PACKET_SHIFT`).
pub const PACKET_SHIFT: u32 = 46;
const FIELD_MASK: u64 = (1 << FRAME_SHIFT) - 1;

/// Offsets and sizes of `struct td_ring`, `td_block` and `td_release` of `bpf/ring.h`.
pub mod layout {
    pub const RING: usize = 64;
    pub const LOST: usize = 8;
    pub const TOLD: usize = 16;
    pub const CONTENDED: usize = 24;
    pub const FAILED: usize = 32;
    pub const FILTERED: usize = 40;
    pub const BLOCK: usize = 16;
    pub const USED: usize = 8;
    pub const EPOCH: usize = 12;
    pub const RELEASE: usize = 64;
    pub const AWAKE: usize = 4;
    /// Binary logarithm of the least size of a block in bytes.
    pub const MIN_BLOCK_SHIFT: u32 = 16;
    pub const MAX_BLOCK_SHIFT: u32 = 22;
    pub const MAX_RINGS: u32 = 128;
}

/// Returns the number of the open block in a reservation word (`td_word_block` of `bpf/ring.h`).
fn word_block(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns the epoch of the open block in a reservation word (`td_word_epoch`).
fn word_epoch(word: u64) -> u8 {
    (word >> 24) as u8
}

/// Returns the number of reserved bytes in a reservation word (`td_word_bytes`).
fn word_bytes(word: u64) -> u32 {
    word as u32 & 0x00ff_ffff
}

/// The shared words of a ring that its reader needs. The orderings are the weakest that the
/// protocol allows.
pub trait ReadMemory {
    /// Size of a block in bytes.
    fn block_bytes(&self) -> u32;
    /// Returns the number of blocks in the ring, a power of two.
    fn nblocks(&self) -> u32;
    /// Loads the reservation word (acquire).
    fn word(&self) -> u64;
    /// Loads a slot's commit counter (acquire).
    fn committed(&self, slot: u32) -> u64;
    /// Loads how many bytes of a closed block are used, and its epoch. Both are valid once the
    /// block is complete.
    fn closed(&self, slot: u32) -> (u32, u32);
    /// Loads the number of the first block not yet released (acquire).
    fn released(&self) -> u32;
    /// Stores the number of the first block not yet released (release). Where producers wake a
    /// reader that sleeps, a full barrier follows: what the reader then looks at before it sleeps
    /// is not older than this store.
    fn set_released(&self, block: u32);
    /// Says whether the reader looks by itself. A full barrier follows: what the reader then looks
    /// at is not older than this store. For readers that producers may wake.
    fn set_awake(&self, is_awake: bool) {
        let _ = is_awake;
    }
    /// Takes note that the reader releases a slot's block, with how many packets, and what the
    /// slot's commit counter is then. For whoever counts the packets of the ring beside its reader.
    fn note_taken(&self, slot: u32, packets: u64, committed: u64) {
        let _ = (slot, packets, committed);
    }
}

/// The shared words of a ring that may get another reader when its own has died.
pub trait LastingMemory: ReadMemory {
    /// Loads what a slot's commit counter was when the last note of the slot was taken
    /// ([`ReadMemory::note_taken`]); 0 where there was none.
    fn noted(&self, slot: u32) -> u64;
}

impl<M: LastingMemory + ?Sized> LastingMemory for Arc<M> {
    fn noted(&self, slot: u32) -> u64 {
        (**self).noted(slot)
    }
}

impl<M: ReadMemory + ?Sized> ReadMemory for Arc<M> {
    fn block_bytes(&self) -> u32 {
        (**self).block_bytes()
    }
    fn nblocks(&self) -> u32 {
        (**self).nblocks()
    }
    fn word(&self) -> u64 {
        (**self).word()
    }
    fn committed(&self, slot: u32) -> u64 {
        (**self).committed(slot)
    }
    fn closed(&self, slot: u32) -> (u32, u32) {
        (**self).closed(slot)
    }
    fn released(&self) -> u32 {
        (**self).released()
    }
    fn set_released(&self, block: u32) {
        (**self).set_released(block);
    }
    fn set_awake(&self, is_awake: bool) {
        (**self).set_awake(is_awake);
    }
    fn note_taken(&self, slot: u32, packets: u64, committed: u64) {
        (**self).note_taken(slot, packets, committed);
    }
}

/// The beginning of a block, as far as everything is committed and no producer writes again before
/// the block is released. Only a [`RingReader`] makes one, and it lets go of the bytes before it
/// releases the block.
#[derive(Debug)]
pub struct Readable {
    slot: u32,
    bytes: u32,
}

impl Readable {
    pub fn slot(&self) -> u32 {
        self.slot
    }

    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// A ring's memory with its blocks.
pub trait BlockBytes: ReadMemory + Send + Sync + 'static {
    /// Returns the bytes of a block that may be read, at most as many as a block has.
    fn bytes(&self, at: &Readable) -> &[u8];

    /// Returns the number of packets dropped at this ring so far, whatever the cause.
    fn lost(&self) -> u64;

    /// Returns what was left out of flows before this ring so far.
    fn cut(&self) -> Cut {
        Cut::default()
    }

    /// Returns what producers wake the ring's reader by; `None` where they do not.
    fn waker(&self) -> Option<&dyn Waker> {
        None
    }
}

/// Ends the hold of a block, and returns the blocks to the producers that only this hold kept from
/// them. The caller has the lock of `holds`, which the reader that releases blocks takes too.
pub fn end_hold<M: ReadMemory>(memory: &M, holds: &mut Holds, block: u64) {
    if let Some(released) = holds.end(block) {
        memory.set_released(released);
    }
}

/// The one reader of a ring's words. [`RingReader`] adds the bytes of the blocks.
pub struct Reader<M> {
    memory: M,
    /// The oldest block that the reader has not released. Blocks before it may be held, and are
    /// then not the producers' yet.
    next: u32,
    /// Each slot's commit counter when its block was last released.
    before: Vec<u64>,
    /// Whether the open block counts as complete.
    ended: bool,
}

impl<M: ReadMemory> Reader<M> {
    /// Makes the reader of a ring that was not read before.
    pub fn new(memory: M) -> Self {
        let before = vec![0; memory.nblocks() as usize];
        Self { next: memory.released(), before, memory, ended: false }
    }

    /// Makes the reader of a ring whose reader before has died, which had dealt with all blocks
    /// before `next`. Each reader makes that known before it releases the blocks. So of those that
    /// are not released no producer has begun to use the slot again: its counter is still the one
    /// at the block's end, whether that was noted or not.
    ///
    /// Returns `None` where no reader of this ring can have said so.
    pub fn resume(memory: M, next: u32) -> Option<Self>
    where
        M: LastingMemory,
    {
        let (released, nblocks) = (memory.released(), memory.nblocks());
        let unreleased = next.wrapping_sub(released);
        let closed = word_block(memory.word()).wrapping_sub(released);
        if unreleased > closed || closed > nblocks {
            return None;
        }
        let mut before: Vec<u64> = (0..nblocks).map(|slot| memory.noted(slot)).collect();
        for block in (0..unreleased).map(|ahead| released.wrapping_add(ahead)) {
            let slot = block % nblocks;
            let committed = memory.committed(slot);
            before[slot as usize] = committed;
            memory.note_taken(slot, 0, committed);
        }
        memory.set_released(next);
        Some(Self { memory, next, before, ended: false })
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    fn slot(&self, ahead: u32) -> u32 {
        self.next.wrapping_add(ahead) % self.memory.nblocks()
    }

    /// Returns what was added to a slot's commit counter since its block was last released.
    fn sum(&self, slot: u32) -> u64 {
        self.memory.committed(slot).wrapping_sub(self.before[slot as usize])
    }

    /// Returns slot, used bytes and contents of the block `ahead` blocks after the oldest, if that
    /// block is complete.
    pub fn peek(&self, ahead: u32) -> Option<(u32, u32, Contents)> {
        if ahead >= self.memory.nblocks() {
            return None;
        }
        let slot = self.slot(ahead);
        let sum = self.sum(slot);
        let (used, epoch) = if sum & FIELD_MASK == u64::from(self.memory.block_bytes()) {
            let (used, epoch) = self.memory.closed(slot);
            (used, epoch as u8)
        } else if self.ended {
            let (_, used) = self.peek_open(ahead).filter(|(_, used)| *used > 0)?;
            (used, self.open_epoch())
        } else {
            return None;
        };
        let contents = Contents {
            packets: (sum >> PACKET_SHIFT) as u32,
            frame_bytes: (sum >> FRAME_SHIFT & FIELD_MASK) as u32,
            epoch,
        };
        Some((slot, used, contents))
    }

    /// Says that the producers have ended: the open block counts as complete from now on.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns slot and bytes of the block `ahead` blocks after the oldest, if that block is the
    /// open one and everything that was reserved in it so far is committed. More may follow behind
    /// those bytes, but the bytes themselves do not change.
    pub fn peek_open(&self, ahead: u32) -> Option<(u32, u32)> {
        if ahead >= self.memory.nblocks() {
            return None;
        }
        let slot = self.slot(ahead);
        // The counter is loaded before the word. Bytes are reserved before they are committed, so
        // the word, loaded later, has at least as many bytes. Where it has no more, nothing was
        // reserved and not committed when the counter was loaded.
        let committed = (self.sum(slot) & FIELD_MASK) as u32;
        let word = self.memory.word();
        let is_open = word_block(word) == self.next.wrapping_add(ahead);
        (is_open && word_bytes(word) == committed).then_some((slot, committed))
    }

    /// Begins the account of holds for this ring.
    pub fn holds(&self) -> Holds {
        Holds::new(self.next, self.memory.nblocks())
    }

    /// Returns the number of packets in all blocks that are not released, complete or not.
    pub fn unread(&self) -> u64 {
        (0..self.memory.nblocks()).map(|slot| self.sum(slot) >> PACKET_SHIFT).sum()
    }

    /// Returns the oldest blocks to the producers, but for blocks that are held and those behind
    /// them.
    ///
    /// # Panics
    /// If one of the blocks is not complete.
    pub fn release(&mut self, blocks: u32, holds: &mut Holds) {
        for ahead in 0..blocks {
            assert!(self.peek(ahead).is_some(), "a block was released before it was complete");
            let slot = self.slot(ahead);
            let committed = self.memory.committed(slot);
            let packets = committed.wrapping_sub(self.before[slot as usize]) >> PACKET_SHIFT;
            self.before[slot as usize] = committed;
            self.memory.note_taken(slot, packets, committed);
        }
        self.next = self.next.wrapping_add(blocks);
        self.memory.set_released(holds.release(blocks));
    }

    /// Has the producers wake the reader for the next block that they complete, and looks again.
    /// Returns whether nothing is there yet.
    pub fn rest(&self, holds: &Holds) -> bool {
        // While blocks are held, producers do not know how far the reader is.
        if holds.is_any() {
            return false;
        }
        self.memory.set_awake(false);
        self.peek(0).is_none()
    }

    /// Returns the epoch of the open block.
    pub fn open_epoch(&self) -> u8 {
        word_epoch(self.memory.word())
    }

    /// Returns whether nothing is reserved beyond the blocks that are released.
    pub fn is_empty(&self) -> bool {
        let word = self.memory.word();
        word_block(word).wrapping_add(1) == self.next
            || word_block(word) == self.next && word_bytes(word) == 0
    }

    /// Returns how much was reserved so far, in 65536ths of a block. It wraps.
    pub fn taken(&self) -> u64 {
        let word = self.memory.word();
        let of_block = (u64::from(word_bytes(word)) << 16) / u64::from(self.memory.block_bytes());
        (u64::from(word_block(word)) << 16).wrapping_add(of_block)
    }

    /// Returns whether every block that is handed out has been released.
    pub fn caught_up(&self) -> bool {
        let open = word_block(self.memory.word());
        if self.ended && open.wrapping_add(1) == self.next {
            return true;
        }
        open == self.next && !(self.ended && self.peek(0).is_some())
    }
}

/// The reader's end of a ring in shared memory.
pub struct RingReader<M> {
    reader: Reader<Arc<M>>,
    interface: u32,
    is_mixed: bool,
    kept: Arc<Kept<M>>,
    /// Number of bytes at the beginning of the oldest block that are known to be committed.
    begun: u32,
}

impl<M: BlockBytes> RingReader<M> {
    pub fn memory(&self) -> &M {
        self.reader.memory()
    }

    /// Makes the one reader of `memory`, whose packets are of this interface.
    pub fn new(memory: Arc<M>, interface: u32) -> Self {
        Self::of(Reader::new(memory), interface)
    }

    /// Makes the reader of `memory` whose reader before has died; see [`Reader::resume`].
    pub fn resume(memory: Arc<M>, interface: u32, next: u32) -> Option<Self>
    where
        M: LastingMemory,
    {
        Some(Self::of(Reader::resume(memory, next)?, interface))
    }

    fn of(reader: Reader<Arc<M>>, interface: u32) -> Self {
        let memory = reader.memory().clone();
        let kept = Arc::new(Kept { memory, holds: Mutex::new(reader.holds()) });
        Self { reader, interface, is_mixed: false, kept, begun: 0 }
    }

    /// Makes this the reader of a ring whose packets are of several interfaces, each with its own
    /// number.
    pub fn mixed(self) -> Self {
        Self { is_mixed: true, ..self }
    }

    /// Finds how much of the oldest block can be read by now, whether or not it is complete;
    /// [`RingReader::begun`] then shows that much. Returns false where producers are at work in the
    /// open block; then as much can be read as before.
    pub fn look(&mut self) -> bool {
        let complete = self.reader.peek(0).map(|(_, used, _)| used);
        // A block that is neither complete nor open is one that a producer has yet to commit to.
        let begun = complete.or_else(|| self.reader.peek_open(0).map(|(_, bytes)| bytes));
        self.begun = begun.unwrap_or(self.begun);
        begun.is_some()
    }

    /// Returns the beginning of the oldest block, as far as the last [`RingReader::look`] found it
    /// readable.
    pub fn begun(&self) -> &[u8] {
        self.reader.memory().bytes(&Readable { slot: self.reader.slot(0), bytes: self.begun })
    }
}

impl<M: BlockBytes> Ring for RingReader<M> {
    fn interface(&self) -> u32 {
        self.interface
    }

    fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    fn peek(&self, ahead: u32) -> Option<Block<'_>> {
        let (slot, bytes, contents) = self.reader.peek(ahead)?;
        Some(Block { bytes: self.reader.memory().bytes(&Readable { slot, bytes }), contents })
    }

    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>> {
        let (slot, bytes, _) = self.reader.peek(ahead)?;
        let block = self.kept.holds().hold(ahead);
        Some(Box::new(HeldBlock { kept: self.kept.clone(), block, at: Readable { slot, bytes } }))
    }

    fn release(&mut self, blocks: u32) {
        if blocks > 0 {
            self.begun = 0;
        }
        self.reader.release(blocks, &mut self.kept.holds());
    }

    fn unread(&self) -> u64 {
        self.reader.unread()
    }

    fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    fn taken(&self) -> u64 {
        self.reader.taken()
    }

    fn lost(&self) -> u64 {
        self.reader.memory().lost()
    }

    fn cut(&self) -> Cut {
        self.reader.memory().cut()
    }

    fn epoch(&self) -> u8 {
        self.reader.open_epoch()
    }

    fn caught_up(&self) -> bool {
        self.reader.caught_up()
    }

    fn waker(&self) -> Option<&dyn Waker> {
        self.reader.memory().waker()
    }

    fn rest(&mut self) -> bool {
        self.waker().is_some() && self.reader.rest(&self.kept.holds())
    }

    fn rise(&mut self) {
        if self.waker().is_some() {
            self.reader.memory().set_awake(true);
        }
    }

    fn end(&mut self) {
        self.reader.end();
    }
}

/// What all holds of a ring share.
struct Kept<M> {
    memory: Arc<M>,
    holds: Mutex<Holds>,
}

impl<M> Kept<M> {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A complete block, held.
struct HeldBlock<M: BlockBytes> {
    kept: Arc<Kept<M>>,
    block: u64,
    at: Readable,
}

impl<M: BlockBytes> Hold for HeldBlock<M> {
    fn bytes(&mut self) -> Option<&[u8]> {
        let stays = self.kept.holds().read(self.block);
        stays.then(|| self.kept.memory.bytes(&self.at))
    }
}

impl<M: BlockBytes> Drop for HeldBlock<M> {
    fn drop(&mut self) {
        end_hold(&*self.kept.memory, &mut self.kept.holds(), self.block);
    }
}
