//! How do packets pass from the producers that fill a ring to the one reader that empties it?
//!
//! [`Ring`] is the reader's end. A ring hands out complete blocks in the order in which they were
//! opened, and the reader releases them in the same order. Each block is a run of finished pcapng
//! packet blocks of one interface. `capture` implements the trait over memory that is shared with
//! the kernel; `store` writes the blocks to disk and knows the trait alone.
//!
//! A block can be read for longer than that, on another thread, by a [`Hold`]. The reader goes on
//! releasing meanwhile, but a block that is held, and the blocks behind it, reach the producers
//! only afterwards. So that a slow holder does not take the ring from the producers, a hold that
//! nobody has begun to read lapses when a quarter of the ring was released behind it. [`Holds`]
//! keeps account of this for all implementations.
//!
//! [`RingReader`] implements the trait over any memory that is laid out as `capture`'s `bpf/ring.h`
//! says, so that the recorder and the programs that attach to a daemon read rings with the same
//! code. How producers reserve and commit is not here, but in `capture`.

mod reader;

pub use reader::{
    BlockBytes, FRAME_SHIFT, LastingMemory, PACKET_SHIFT, ReadMemory, Readable, Reader, RingReader,
    end_hold, layout,
};

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// What a complete block of a ring holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Number of packets in the block.
    pub packets: u32,
    /// Bytes that were kept of the packets' frames (the sum of the captured lengths).
    pub frame_bytes: u32,
    /// Number of the UTC offset with which the packets were stamped. Between two packets of one
    /// epoch the clock did not step.
    pub epoch: u8,
}

/// Packets that were left out because their flows had had their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub packets: u64,
    /// Bytes of their frames, at their full length.
    pub bytes: u64,
}

impl std::ops::Add for Cut {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl std::iter::Sum for Cut {
    fn sum<I: Iterator<Item = Self>>(cuts: I) -> Self {
        cuts.fold(Self::default(), |a, b| a + b)
    }
}

/// A complete block: pcapng packet blocks, ready for a file as they lie.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The packet blocks. Their address is a multiple of 4096, their length a multiple of 4.
    pub bytes: &'a [u8],
    pub contents: Contents,
}

/// The means by which producers wake a reader that rests.
pub trait Waker: Send + Sync {
    /// Returns a descriptor that is readable once a producer has woken the reader, until
    /// [`Waker::clear`].
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Forgets that the reader was woken.
    fn clear(&self);
}

/// The reader's end of a ring.
pub trait Ring: Send {
    /// Returns the pcapng interface id that all packets of this ring carry, and by which its losses
    /// are counted.
    fn interface(&self) -> u32;

    /// Returns whether packets may carry other ids than [`Ring::interface`], as in the ring of a
    /// group of interfaces.
    fn is_mixed(&self) -> bool {
        false
    }

    /// Returns the complete block that is `ahead` blocks after the oldest one not yet released, or
    /// `None` where that block is still being filled.
    fn peek(&self, ahead: u32) -> Option<Block<'_>>;

    /// Keeps the block that [`Ring::peek`] shows readable after it was released; `None` where there
    /// is no such block. A block can be held once at a time.
    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>>;

    /// Returns the oldest `blocks` blocks to the producers, as soon as nobody holds them.
    ///
    /// # Panics
    /// If one of the blocks is not complete, which would be a fault of the caller.
    fn release(&mut self, blocks: u32);

    /// Returns the number of packets in the ring, in blocks that are complete and in those that are
    /// not. It is exact once the producers have ended.
    fn unread(&self) -> u64;

    /// Returns whether no packet lies in the ring, in whichever block.
    fn is_empty(&self) -> bool {
        self.unread() == 0
    }

    /// Returns how much of the ring producers have taken so far, in 65536ths of a block and with
    /// the room that is left at blocks' ends. It wraps; two readings tell how fast the ring fills.
    fn taken(&self) -> u64;

    /// Returns the number of packets that were dropped at this ring so far, whatever the cause.
    fn lost(&self) -> u64;

    /// Returns what was left out of flows before this ring so far.
    fn cut(&self) -> Cut {
        Cut::default()
    }

    /// Returns the epoch of the block that is open for writing. Blocks that are closed and not yet
    /// released may have an earlier epoch.
    fn epoch(&self) -> u8;

    /// Returns whether every block that was closed has been released; after [`Ring::end`], whether
    /// the open block was released too.
    fn caught_up(&self) -> bool;

    /// Takes note of what has changed behind the ring; the reader calls it before it looks for
    /// blocks.
    fn renew(&mut self) {}

    /// Returns what producers wake the reader by; `None` where they do not. Several rings may have
    /// the same.
    fn waker(&self) -> Option<&dyn Waker> {
        None
    }

    /// Has the producers wake the reader when they complete the next block; the waker was cleared
    /// before. Returns false where the reader must look by itself: nobody wakes it, a block is
    /// there already, or one that was released is held.
    fn rest(&mut self) -> bool {
        false
    }

    /// Says that the reader looks by itself again.
    fn rise(&mut self) {}

    /// Says that the producers have ended. From now on the open block, which no producer closes any
    /// more, is handed out behind the others as a complete one, as far as it was filled.
    fn end(&mut self) {}
}

/// A block that can be read, on any thread, after the reader has released it. The hold ends when it
/// is dropped.
pub trait Hold: Send {
    /// Returns the packet blocks that [`Ring::peek`] showed; `None` where the hold has lapsed. From
    /// now on it does not lapse any more.
    fn bytes(&mut self) -> Option<&[u8]>;
}

/// The account of which blocks of a ring the producers may have, as the reader releases blocks and
/// others hold some.
///
/// Blocks are counted from 0 here, without wrapping.
#[derive(Debug)]
pub struct Holds {
    /// The ring's own number of block 0.
    first: u32,
    /// Number of blocks that the reader has released.
    released: u64,
    /// The blocks that are held, the oldest first.
    held: VecDeque<Held>,
    /// A hold that nobody has begun to read lapses when more blocks than this were released from
    /// the held block on.
    patience: u64,
}

#[derive(Debug)]
struct Held {
    block: u64,
    is_read: bool,
}

impl Holds {
    /// Begins the account of a ring of `nblocks` blocks, of which `first` is the oldest one that is
    /// not released.
    pub fn new(first: u32, nblocks: u32) -> Self {
        let patience = u64::from(nblocks / 4).max(1);
        Self { first, released: 0, held: VecDeque::new(), patience }
    }

    /// Holds the block that is `ahead` blocks after the oldest one not released, and returns the
    /// block's number in this account.
    ///
    /// # Panics
    /// If the block is held already.
    pub fn hold(&mut self, ahead: u32) -> u64 {
        let block = self.released + u64::from(ahead);
        let at = self.held.partition_point(|held| held.block < block);
        assert!(self.held.get(at).is_none_or(|held| held.block > block), "a block is held twice");
        self.held.insert(at, Held { block, is_read: false });
        block
    }

    /// Notes that the reader has released so many more blocks. Returns the ring's number of the
    /// first block that the producers may not have.
    pub fn release(&mut self, blocks: u32) -> u32 {
        self.released += u64::from(blocks);
        let (released, patience) = (self.released, self.patience);
        self.held.retain(|held| held.is_read || released <= held.block + patience);
        self.free_to()
    }

    /// Notes that a held block is being read. Returns false where the hold has lapsed.
    pub fn read(&mut self, block: u64) -> bool {
        let held = self.position(block).map(|at| &mut self.held[at]);
        held.map(|held| held.is_read = true).is_some()
    }

    /// Returns whether a block is held.
    pub fn is_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends a hold, lapsed or not. Returns the ring's number of the first block that the producers
    /// may not have; `None` where that has not changed.
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
