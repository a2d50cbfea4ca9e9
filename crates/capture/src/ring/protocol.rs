//! Reservation, commit, flush and reading, over any memory.

use tapdeck_packet::ring::{Contents, Holds};

use crate::sys::arithmetic as word;

/// Of a commit counter: bits of each of its three fields (`TD_FRAME_SHIFT`, `TD_PACKET_SHIFT`).
pub const FRAME_SHIFT: u32 = 23;
pub const PACKET_SHIFT: u32 = 46;
const FIELD_MASK: u64 = (1 << FRAME_SHIFT) - 1;
/// How often a reservation is tried again when other producers are faster (`TD_TRIES`).
pub const TRIES: u32 = 64;

/// The shared words of a ring. Orderings are the least that the protocol needs; the hook
/// programs' atomics are all full barriers.
pub trait Memory {
    fn block_bytes(&self) -> u32;
    /// A power of two.
    fn nblocks(&self) -> u32;
    /// Loads the reservation word (acquire).
    fn word(&self) -> u64;
    /// Replaces the reservation word if it is still `old`, else tells what it is (acquire and release).
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64>;
    /// Loads a slot's commit counter (acquire).
    fn committed(&self, slot: u32) -> u64;
    /// Adds to a slot's commit counter (acquire and release).
    fn commit(&self, slot: u32, n: u64);
    /// Stores what a closed block holds; the commit that follows publishes it.
    fn set_closed(&self, slot: u32, used: u32, epoch: u32);
    /// What [`Memory::set_closed`] stored: bytes used and epoch.
    fn closed(&self, slot: u32) -> (u32, u32);
    /// Loads the number of the first block not yet released (acquire).
    fn released(&self) -> u32;
    /// Stores it (release).
    fn set_released(&self, block: u32);
}

impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn block_bytes(&self) -> u32 {
        (**self).block_bytes()
    }
    fn nblocks(&self) -> u32 {
        (**self).nblocks()
    }
    fn word(&self) -> u64 {
        (**self).word()
    }
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64> {
        (**self).swap_word(old, new)
    }
    fn committed(&self, slot: u32) -> u64 {
        (**self).committed(slot)
    }
    fn commit(&self, slot: u32, n: u64) {
        (**self).commit(slot, n);
    }
    fn set_closed(&self, slot: u32, used: u32, epoch: u32) {
        (**self).set_closed(slot, used, epoch);
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
}

/// Space in a block that belongs to one producer until it commits. There is one value for each
/// space, and committing consumes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Reserved {
    pub slot: u32,
    /// Where in the block.
    pub offset: u32,
    pub len: u32,
    pub epoch: u32,
}

/// What became of a reservation.
#[derive(Debug, PartialEq, Eq)]
pub enum Reservation {
    Done(Reserved),
    /// No block is free. Nothing has changed.
    Full,
    /// Other producers were faster, [`TRIES`] times. Nothing has changed.
    Contended,
}

/// Reserves `len` bytes, opening the next block with `epoch` where the open one has
/// no room. Lock-free: a try fails only because another producer's has succeeded.
pub fn reserve<M: Memory>(memory: &M, len: u32, epoch: u32) -> Reservation {
    let mut seen = memory.word();
    for _ in 0..TRIES {
        let fits = word::fits(seen, len, memory.block_bytes());
        let next = if fits {
            seen + u64::from(len)
        } else if word::next_is_free(seen, memory.released(), memory.nblocks()) {
            word::next_block(seen, epoch, len)
        } else {
            return Reservation::Full;
        };
        match memory.swap_word(seen, next) {
            Ok(()) => {
                if !fits {
                    close(memory, seen);
                }
                let at = if fits { seen } else { next - u64::from(len) };
                return Reservation::Done(Reserved {
                    slot: word::word_block(at) % memory.nblocks(),
                    offset: word::word_bytes(at),
                    len,
                    epoch: word::word_epoch(at),
                });
            }
            Err(now) => seen = now,
        }
    }
    Reservation::Contended
}

impl Reserved {
    /// Publishes what was written into the space. `frame_bytes` and `packets` are
    /// 0 where nothing but filling was written.
    pub fn commit<M: Memory>(self, memory: &M, frame_bytes: u32, packets: u32) {
        memory.commit(self.slot, word::commit(self.len, frame_bytes, packets));
    }
}

/// Closes `block` if it is still open and holds something, so that the reader gets what is in
/// it; gives an empty one the new epoch. Returns whether it closed it.
pub fn flush<M: Memory>(memory: &M, block: u32, epoch: u32) -> bool {
    let mut seen = memory.word();
    for _ in 0..TRIES {
        if word::word_block(seen) != block {
            return false;
        }
        let empty = word::word_bytes(seen) == 0;
        let next = if empty {
            if word::word_epoch(seen) == epoch {
                return false;
            }
            word::word(block, epoch, 0)
        } else if word::next_is_free(seen, memory.released(), memory.nblocks()) {
            word::next_block(seen, epoch, 0)
        } else {
            return false;
        };
        match memory.swap_word(seen, next) {
            Ok(()) => {
                if !empty {
                    close(memory, seen);
                }
                return !empty;
            }
            Err(now) => seen = now,
        }
    }
    false
}

/// Done by the one producer whose swap moved the word past a block: commits the
/// rest of that block for nothing.
fn close<M: Memory>(memory: &M, seen: u64) {
    let slot = word::word_block(seen) % memory.nblocks();
    let used = word::word_bytes(seen);
    memory.set_closed(slot, used, word::word_epoch(seen));
    memory.commit(slot, word::commit(memory.block_bytes() - used, 0, 0));
}

/// Ends the hold of a block, and gives back what was kept by it. Whoever releases blocks takes turns with this: `holds`
/// is behind a lock, and the number of the first block not free goes up under it.
pub fn end_hold<M: Memory>(memory: &M, holds: &mut Holds, block: u64) {
    if let Some(released) = holds.end(block) {
        memory.set_released(released);
    }
}

/// The one reader of a ring.
pub struct Reader<M> {
    memory: M,
    /// The oldest block that it has not released. The producers may have to wait for some before it, which are held.
    next: u32,
    /// Each slot's commit counter when its block was last released.
    before: Vec<u64>,
}

impl<M: Memory> Reader<M> {
    /// A reader of a ring that nobody has read from.
    pub fn new(memory: M) -> Self {
        let before = vec![0; memory.nblocks() as usize];
        Self { next: memory.released(), before, memory }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    fn slot(&self, ahead: u32) -> u32 {
        self.next.wrapping_add(ahead) % self.memory.nblocks()
    }

    /// Slot, bytes used and contents of the block `ahead` of the oldest, if it is complete.
    pub fn peek(&self, ahead: u32) -> Option<(u32, u32, Contents)> {
        if ahead >= self.memory.nblocks() {
            return None;
        }
        let slot = self.slot(ahead);
        let sum = self.memory.committed(slot).wrapping_sub(self.before[slot as usize]);
        if sum & FIELD_MASK != u64::from(self.memory.block_bytes()) {
            return None;
        }
        let (used, epoch) = self.memory.closed(slot);
        let contents = Contents {
            packets: (sum >> PACKET_SHIFT) as u32,
            frame_bytes: (sum >> FRAME_SHIFT & FIELD_MASK) as u32,
            epoch: epoch as u8,
        };
        Some((slot, used, contents))
    }

    /// Bookkeeping for those who hold blocks of this ring.
    pub fn holds(&self) -> Holds {
        Holds::new(self.next, self.memory.nblocks())
    }

    /// Packets in all blocks that are not released, complete or not.
    pub fn unread(&self) -> u64 {
        (0..self.memory.nblocks())
            .map(|slot| {
                let sum = self.memory.committed(slot).wrapping_sub(self.before[slot as usize]);
                sum >> PACKET_SHIFT
            })
            .sum()
    }

    /// Gives the oldest blocks back, but for what is held.
    ///
    /// # Panics
    /// If they are not all complete.
    pub fn release(&mut self, blocks: u32, holds: &mut Holds) {
        for ahead in 0..blocks {
            assert!(self.peek(ahead).is_some(), "a block was released before it was complete");
            let slot = self.slot(ahead);
            self.before[slot as usize] = self.memory.committed(slot);
        }
        self.next = self.next.wrapping_add(blocks);
        self.memory.set_released(holds.release(blocks));
    }

    /// The epoch of the open block.
    pub fn open_epoch(&self) -> u8 {
        word::word_epoch(self.memory.word()) as u8
    }

    /// Whether every closed block has been released.
    pub fn caught_up(&self) -> bool {
        word::word_block(self.memory.word()) == self.next
    }
}
