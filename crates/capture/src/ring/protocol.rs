//! How does a producer get space in a ring, and hand over what it wrote there? Reservation, commit
//! and flush, over any memory. Reading is in `tapdeck_packet::ring`.

use tapdeck_packet::ring::ReadMemory;

use crate::sys::arithmetic as word;
pub use crate::sys::arithmetic::wakes;

/// How often a reservation is tried again when other producers are faster (`TD_TRIES`).
pub const TRIES: u32 = 64;

/// The shared words of a ring, as its producers need them. Orderings are the least that the
/// protocol needs; the hook programs' atomics are all full barriers.
pub trait Memory: ReadMemory {
    /// Replaces the reservation word if it is still `old`, or returns what it is as an error
    /// (acquire and release).
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64>;
    /// Adds to a slot's commit counter (acquire and release). Returns what the counter is then.
    fn commit(&self, slot: u32, n: u64) -> u64;
    /// Stores what a closed block holds; the commit that follows publishes it.
    fn set_closed(&self, slot: u32, used: u32, epoch: u32);
    /// Wakes the reader, where it waits for this block ([`wakes`]):
    /// called once for each block, by the producer whose commit has made the block complete.
    fn completed(&self, block: u32) {
        let _ = block;
    }
}

/// Space in a block that belongs to one producer until it commits. There is one value for each
/// space, and committing consumes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The block's number.
    pub block: u32,
    /// The offset in the block, bytes.
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
                    block: word::word_block(at),
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
        commit(memory, self.block, word::commit(self.len, frame_bytes, packets));
    }
}

/// Closes `block` if it is still open and holds something, so that the reader gets what is in it.
/// An empty block gets the new epoch. Returns whether a block was closed.
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

/// Commits the rest of a block for nothing. The one producer does this whose swap moved the word
/// past the block.
fn close<M: Memory>(memory: &M, seen: u64) {
    let block = word::word_block(seen);
    let used = word::word_bytes(seen);
    memory.set_closed(block % memory.nblocks(), used, word::word_epoch(seen));
    commit(memory, block, word::commit(memory.block_bytes() - used, 0, 0));
}

fn commit<M: Memory>(memory: &M, block: u32, n: u64) {
    let committed = memory.commit(block % memory.nblocks(), n);
    if word::is_complete(committed, memory.block_bytes()) {
        memory.completed(block);
    }
}
