//! The trait between whoever fills rings and whoever empties them.
//!
//! A ring hands out complete blocks in the order in which they were opened, and
//! gets them back in the same order. Each block is a run of finished pcapng
//! packet blocks of one interface. `capture` implements this over memory that is shared
//! with the kernel; `store` writes what it gets to disk.

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
    /// The pcapng interface id that all packets of this ring carry.
    fn interface(&self) -> u32;

    /// The complete block that is `ahead` blocks after the oldest one not yet
    /// released, or `None` where that block is still being filled.
    fn peek(&self, ahead: u32) -> Option<Block<'_>>;

    /// Gives the oldest `blocks` blocks back to the producers.
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

    /// Whether every block that was closed has been released.
    fn caught_up(&self) -> bool;
}
