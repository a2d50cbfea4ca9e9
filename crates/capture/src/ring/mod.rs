//! The ring: blocks of memory that producers fill and a reader empties.
//!
//! Its protocol is written down in `docs/ARCHITECTURE.md`. The hook programs have it in C;
//! here it stands for user space, generic over the memory that it works on, so
//! that the same lines run over memory shared with the kernel, over memory shared with a
//! socket hook's thread, and under the model checker (`tests/ring_model.rs`). The arithmetic is
//! compiled from the header that the hook programs include.

mod hold;
mod memory;
mod protocol;
mod socket;

pub use memory::{Geometry, GeometryError, RingMemory};
pub use protocol::{Memory, Reader, Reservation, Reserved, end_hold, flush, reserve};
pub use socket::{Packet, Producer, socket_ring};

use std::sync::Arc;
use tapdeck_packet::ring::{Block, Hold, Ring};

use hold::{HeldBlock, Kept};

/// The reader's end of a ring in shared memory.
pub struct RingReader {
    reader: Reader<Arc<RingMemory>>,
    interface: u32,
    kept: Arc<Kept>,
}

impl RingReader {
    /// The one reader of `memory`.
    pub fn new(memory: Arc<RingMemory>, interface: u32) -> Self {
        let reader = Reader::new(memory.clone());
        let kept = Arc::new(Kept::new(memory, reader.holds()));
        Self { reader, interface, kept }
    }
}

impl Ring for RingReader {
    fn interface(&self) -> u32 {
        self.interface
    }

    fn peek(&self, ahead: u32) -> Option<Block<'_>> {
        let (slot, used, contents) = self.reader.peek(ahead)?;
        Some(Block { bytes: self.reader.memory().complete(slot, used), contents })
    }

    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>> {
        let (slot, used, _) = self.reader.peek(ahead)?;
        Some(Box::new(HeldBlock::new(&self.kept, ahead, slot, used)))
    }

    fn release(&mut self, blocks: u32) {
        self.reader.release(blocks, &mut self.kept.holds());
    }

    fn unread(&self) -> u64 {
        self.reader.unread()
    }

    fn lost(&self) -> u64 {
        self.reader.memory().lost()
    }

    fn epoch(&self) -> u8 {
        self.reader.open_epoch()
    }

    fn caught_up(&self) -> bool {
        self.reader.caught_up()
    }
}
