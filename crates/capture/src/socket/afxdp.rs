//! The `afxdp` hook: a hook program in the driver sends every packet of a queue to the socket that
//! has the queue, where the NIC itself writes it into user memory if the driver can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{IDLE, is_set};
use crate::Config;
use crate::bpf::loaded::REFUSED_STRIDE;
use crate::ring::{Packet, Producer};
use crate::sys::afxdp::XdpSocket;
use crate::sys::mapping::Mapping;

/// Chunks taken before they are given back.
const BATCH: u32 = 64;

pub struct Receiver {
    socket: XdpSocket,
    producer: Producer,
    snaplen: usize,
    /// A packet put together from its pieces; as much of it as is kept.
    whole: Vec<u8>,
    /// Losses that the ring has been told of.
    lost: u64,
    /// Counts the packets that the filter has kept from each socket; `filtered` is how many of
    /// them the ring has been told of.
    refused: Arc<Mapping>,
    queue: usize,
    filtered: u64,
}

impl Receiver {
    pub fn new(
        socket: XdpSocket,
        queue: usize,
        producer: Producer,
        refused: Arc<Mapping>,
        config: &Config,
    ) -> Self {
        let snaplen = config.snaplen as usize;
        let whole = Vec::with_capacity(snaplen);
        Self { socket, producer, snaplen, whole, lost: 0, refused, queue, filtered: 0 }
    }

    pub fn run(mut self, stop: &AtomicBool) {
        loop {
            // Read first: an empty ring is empty for good only if nothing came in before it was
            // looked at.
            let stopping = is_set(stop);
            self.count_filtered();
            let there = self.socket.look();
            let taken = self.take(there);
            if taken == 0 {
                self.ask_for_drops();
                if stopping {
                    return;
                }
                self.wait();
            } else if self.socket.is_scarce(there) {
                // Packets may have been lost for want of chunks, after those just taken.
                self.ask_for_drops();
            }
        }
    }

    /// Takes the packets of the `there` oldest descriptors, but for an incomplete last packet.
    /// Returns how many descriptors were taken.
    fn take(&mut self, there: u32) -> u32 {
        let mut taken = 0;
        let mut pending = 0;
        while let Some(pieces) = self.pieces(pending, there - taken) {
            self.push(pending, pieces);
            pending += pieces;
            if pending >= BATCH {
                self.socket.give_back(pending);
                taken += pending;
                pending = 0;
            }
        }
        if pending > 0 {
            self.socket.give_back(pending);
        }
        taken + pending
    }

    /// Returns how many descriptors the packet has that begins `from` behind the oldest, if its end
    /// is among the first `there`.
    fn pieces(&self, from: u32, there: u32) -> Option<u32> {
        (from..there).find(|&i| !self.socket.piece(i).more).map(|last| last + 1 - from)
    }

    fn push(&mut self, from: u32, pieces: u32) {
        let packet = |frame, original_len| Packet {
            time_ns: 0,
            frame,
            tag: None,
            original_len,
            // The hook sees one direction alone.
            flags: 0,
        };
        if pieces == 1 {
            let bytes = self.socket.piece(from).bytes;
            self.producer.push(&packet(bytes, bytes.len() as u32));
            return;
        }
        self.whole.clear();
        let mut original_len = 0;
        for i in from..from + pieces {
            let bytes = self.socket.piece(i).bytes;
            let room = self.snaplen - self.whole.len();
            self.whole.extend_from_slice(&bytes[..bytes.len().min(room)]);
            original_len += bytes.len() as u32;
        }
        self.producer.push(&packet(&self.whole, original_len));
    }

    fn ask_for_drops(&mut self) {
        if let Ok(lost) = self.socket.lost() {
            self.producer.count_lost(lost.saturating_sub(self.lost));
            self.lost = lost;
        }
    }

    fn count_filtered(&mut self) {
        let filtered = self.refused.u64(self.queue * REFUSED_STRIDE).load(Relaxed);
        self.producer.count_filtered(filtered - self.filtered);
        self.filtered = filtered;
    }

    /// Waits for packets.
    fn wait(&self) {
        let timeout = Timespec::try_from(IDLE).ok();
        // A signal may end the wait; the caller looks again anyhow.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref());
    }
}
