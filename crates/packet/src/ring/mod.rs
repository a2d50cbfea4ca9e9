//! The trait between whoever fills rings and whoever empties them.
//!
//! A ring hands out complete blocks in the order in which they were opened, and
//! gets them back in the same order. Each block is a run of finished pcapng
//! packet blocks of one interface. `capture` implements this over memory that is shared
//! with the kernel; `store` writes what it gets to disk.
//!
//! Whoever wants to read a block for longer, on a thread of its own, takes a [`Hold`] of it.
//! Releasing goes on meanwhile, but a block that is held, and those behind it, reach the producers
//! only afterwards. So that a slow reader does not take the ring from them, a hold lapses when
//! nobody has begun to read and a quarter of the ring was released behind it. [`Holds`] is this
//! reckoning, for all who implement the trait.
//!
//! [`RingReader`] implements the trait over any memory that is laid out as `capture`'s `bpf/ring.h`
//! says, so that the recorder and the programs that attach to it read rings by the same lines.

mod reader;

pub use reader::{
    BlockBytes, FRAME_SHIFT, PACKET_SHIFT, ReadMemory, Readable, Reader, RingReader, end_hold,
    layout,
};

use std::collections::VecDeque;

/// What a complete block of a ring holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Packets in the block.
    pub packets: u32,
    /// Bytes of their frames that were kept (the sum of the captured lengths).
    pub frame_bytes: u32,
    /// Which UTC offset the packets were stamped with. Between two packets of one
    /// epoch the clock did not step.
    pub epoch: u8,
}

/// A complete block: pcapng packet blocks, ready for a file as they lie.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The packet blocks. The address is a multiple of 4096, the length one of 4.
    pub bytes: &'a [u8],
    pub contents: Contents,
}

/// The reader's end of a ring.
pub trait Ring: Send {
    /// The pcapng interface id that all packets of this ring carry, and by which its losses are
    /// counted.
    fn interface(&self) -> u32;

    /// Whether packets may carry other ids than [`Ring::interface`], as in the ring of a group of
    /// interfaces.
    fn is_mixed(&self) -> bool {
        false
    }

    /// The complete block that is `ahead` blocks after the oldest one not yet
    /// released, or `None` where that block is still being filled.
    fn peek(&self, ahead: u32) -> Option<Block<'_>>;

    /// Keeps that block readable after it was released; `None` where there is no block to peek at.
    /// One block is held once at most.
    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>>;

    /// Gives the oldest `blocks` blocks back to the producers, as soon as nobody holds them.
    ///
    /// # Panics
    /// If they have not all been complete: that would be a fault in the caller.
    fn release(&mut self, blocks: u32);

    /// Packets in the ring, in complete blocks and in others. Exact once the producers have ended.
    fn unread(&self) -> u64;

    /// Packets that were dropped at this ring so far, whatever the cause.
    fn lost(&self) -> u64;

    /// The epoch of the block that is open for writing. Blocks that are closed
    /// and not yet released may have an earlier one.
    fn epoch(&self) -> u8;

    /// Whether every block that was closed has been released, and after [`Ring::end`] the open one
    /// too.
    fn caught_up(&self) -> bool;

    /// The producers have ended. From now on the open block, which nobody may be there to close, is
    /// handed out behind the others as a complete one, as far as it was filled.
    fn end(&mut self) {}
}

/// A block that somebody wants to read after it was released, on whichever thread. Dropping it is
/// the end of that.
pub trait Hold: Send {
    /// The packet blocks that [`Ring::peek`] showed, which from now on stay as long as this value
    /// does; `None` where the hold has lapsed.
    fn bytes(&mut self) -> Option<&[u8]>;
}

/// Which blocks of a ring the producers may have, as its reader releases blocks and others hold
/// some.
///
/// Blocks are counted from 0 here, without wrapping.
#[derive(Debug)]
pub struct Holds {
    /// What the ring calls block 0.
    first: u32,
    /// Blocks that were released by the reader.
    released: u64,
    /// Oldest first.
    held: VecDeque<Held>,
    /// A hold that nobody has begun to read lapses when so many blocks were released from it on,
    /// and another.
    patience: u64,
}

#[derive(Debug)]
struct Held {
    block: u64,
    is_read: bool,
}

impl Holds {
    /// For a ring of `nblocks` blocks, of which `first` is the oldest that is not released.
    pub fn new(first: u32, nblocks: u32) -> Self {
        let patience = u64::from(nblocks / 4).max(1);
        Self { first, released: 0, held: VecDeque::new(), patience }
    }

    /// Holds the block that is `ahead` blocks after the oldest one not released. Gives back its
    /// number here.
    ///
    /// # Panics
    /// If it is held already.
    pub fn hold(&mut self, ahead: u32) -> u64 {
        let block = self.released + u64::from(ahead);
        let at = self.held.partition_point(|held| held.block < block);
        assert!(self.held.get(at).is_none_or(|held| held.block > block), "a block is held twice");
        self.held.insert(at, Held { block, is_read: false });
        block
    }

    /// The reader has released so many blocks more. Gives back the first block that the producers
    /// may not have, as the ring counts.
    pub fn release(&mut self, blocks: u32) -> u32 {
        self.released += u64::from(blocks);
        let (released, patience) = (self.released, self.patience);
        self.held.retain(|held| held.is_read || released <= held.block + patience);
        self.free_to()
    }

    /// Begins to read a block that is held; false where the hold has lapsed.
    pub fn read(&mut self, block: u64) -> bool {
        let held = self.position(block).map(|at| &mut self.held[at]);
        held.map(|held| held.is_read = true).is_some()
    }

    /// Ends a hold, lapsed or not. As [`Holds::release`]; `None` where it changes nothing.
    pub fn end(&mut self, block: u64) -> Option<u32> {
        let before = self.free_to();
        let at = self.position(block)?;
        self.held.remove(at);
        Some(self.free_to()).filter(|now| *now != before)
    }

    fn position(&self, block: u64) -> Option<usize> {
        self.held.binary_search_by_key(&block, |held| held.block).ok()
    }

    fn free_to(&self) -> u32 {
        let oldest = self.held.front().map_or(u64::MAX, |held| held.block);
        self.first.wrapping_add(self.released.min(oldest) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::Holds;

    #[test]
    fn what_is_held_and_what_is_behind_it_stays() {
        let mut holds = Holds::new(u32::MAX, 16);
        let blocks = [0, 1, 2].map(|ahead| holds.hold(ahead));
        assert!(holds.read(blocks[0]));
        assert_eq!(holds.release(3), u32::MAX);
        assert_eq!(holds.end(blocks[1]), None, "not in order");
        assert_eq!(holds.end(blocks[0]), Some(1));
        assert_eq!(holds.end(blocks[2]), Some(2));
        assert_eq!(holds.end(blocks[2]), None, "ended already");
        assert_eq!(holds.release(1), 3);
    }

    #[test]
    fn a_hold_on_what_is_not_released_ends_without_a_change() {
        let mut holds = Holds::new(0, 16);
        let ahead = holds.hold(1);
        assert_eq!(holds.end(ahead), None);
        assert_eq!(holds.release(2), 2);
    }

    #[test]
    fn a_hold_that_nobody_reads_lapses_after_a_quarter_of_the_ring() {
        for (nblocks, quarter) in [(2, 1), (4, 1), (16, 4)] {
            let mut holds = Holds::new(0, nblocks);
            let block = holds.hold(0);
            assert_eq!(holds.release(quarter), 0);
            assert_eq!(holds.release(1), quarter + 1);
            assert!(!holds.read(block));
            assert_eq!(holds.end(block), None);
        }
    }

    #[test]
    fn a_block_that_is_read_is_waited_for_and_those_behind_it_lapse() {
        let mut holds = Holds::new(0, 8);
        let (read, waits) = (holds.hold(0), holds.hold(1));
        assert!(holds.read(read));
        assert_eq!(holds.release(7), 0);
        assert!(!holds.read(waits));
        assert!(holds.read(read), "as often as one likes");
        assert_eq!(holds.end(read), Some(7));
    }
}
