//! The `tpacket` hook: the kernel copies packets into a memory-mapped ring (`TPACKET_V3`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::{IDLE, PacketPusher, is_set};
use crate::sys::packet_socket::{PacketSocket, RxRing};

/// How long a packet waits for its block to fill.
const RETIRE_MS: u32 = 16;
/// How long a stopped ring may take to hand over its last block; twice [`RETIRE_MS`] by rights.
const LAST_BLOCK: Duration = Duration::from_millis(100);
/// The fewest blocks the kernel's ring works well with.
const MIN_BLOCKS: u64 = 4;
/// The mapping's size is an `int` in the kernel's arithmetic.
const MAX_BLOCKS: u64 = 2047;

pub struct Receiver {
    socket: Arc<PacketSocket>,
    ring: RxRing,
    pusher: PacketPusher,
    /// Packets that the kernel said to have put into its ring, less those that were taken out.
    /// Negative while the kernel has not been asked about packets that were taken out.
    waiting: i64,
}

/// Makes the ring of a socket. Returns how many blocks it has.
pub(super) fn prepare(socket: &PacketSocket, ring_bytes: u64) -> io::Result<u32> {
    let blocks = ring_bytes / 2 / RxRing::block_bytes();
    let blocks = blocks.clamp(MIN_BLOCKS, MAX_BLOCKS) as u32;
    socket.make_ring(blocks, RETIRE_MS)?;
    Ok(blocks)
}

impl Receiver {
    /// Takes packets out of a socket that was prepared with so many blocks.
    pub fn new(socket: Arc<PacketSocket>, blocks: u32, pusher: PacketPusher) -> io::Result<Self> {
        let ring = socket.map_ring(blocks)?;
        Ok(Self { socket, ring, pusher, waiting: 0 })
    }

    pub fn run(mut self, stop: &AtomicBool) {
        let mut deadline = None;
        loop {
            let stopping = is_set(stop);
            if self.take_block() {
                continue;
            }
            self.ask_for_drops();
            if stopping {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + LAST_BLOCK);
                if self.waiting <= 0 {
                    return;
                }
                if Instant::now() >= deadline {
                    // The kernel keeps its last block. What is in it must not go uncounted.
                    self.pusher.count_lost(self.waiting as u32);
                    return;
                }
            }
            self.wait(if stopping { Duration::from_millis(1) } else { IDLE });
        }
    }

    /// Takes the packets of a block, if there is one. Returns whether there was.
    fn take_block(&mut self) -> bool {
        let Some(block) = self.ring.block() else { return false };
        // Packets are lost while all blocks are full, so before the first packet of a block.
        if block.losing {
            self.waiting += ask_for_drops(&self.socket, &self.pusher);
        }
        for packet in block.packets() {
            self.pusher.push(&packet);
            self.waiting -= 1;
        }
        self.ring.release();
        self.pusher.count_filtered();
        true
    }

    fn ask_for_drops(&mut self) {
        self.waiting += ask_for_drops(&self.socket, &self.pusher);
        self.pusher.count_filtered();
    }

    /// Waits for a block.
    fn wait(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        let mut fds = [PollFd::new(&*self.socket, PollFlags::IN)];
        // A signal may end the wait; the caller looks again anyhow.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds[0].revents().contains(PollFlags::ERR) {
            // The link was set down, or the interface is gone. Asking clears it.
            let _ = sockopt::socket_error(&*self.socket);
        }
    }
}

/// Counts what was dropped since the last call; returns how many packets were put into the ring.
fn ask_for_drops(socket: &PacketSocket, pusher: &PacketPusher) -> i64 {
    let Ok(s) = socket.take_statistics() else { return 0 };
    pusher.count_lost(s.dropped);
    i64::from(s.packets) - i64::from(s.dropped)
}
