//! The `recv` hook: one system call and one copy for each packet, the classic way.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::net::sockopt::{self, Timeout};

use super::{IDLE, PacketPusher, is_set};
use crate::Config;
use crate::sys::packet_socket::PacketSocket;

/// The kernel doubles what it is asked for and holds it in an `int`.
const MAX_BUFFER: u64 = 1 << 29;
/// Packets that are received between two looks at what the filter refused.
const LOOK: u32 = 64;

pub struct Receiver {
    socket: Arc<PacketSocket>,
    pusher: PacketPusher,
    buffer: Vec<u8>,
    drops: Drops,
}

/// The kernel's count of dropped packets, modulo 2³², which comes from two sides: each packet
/// brings what it was when the packet came (so that the loss is put where it happened), and
/// `PACKET_STATISTICS` tells of losses that no packet has followed yet.
#[derive(Default)]
struct Drops {
    /// Drops that the ring has been told of.
    counted: u32,
    /// The sum of all `PACKET_STATISTICS`.
    reported: u32,
}

impl Drops {
    /// Returns how many drops are new, if there were `total` so far. A total that is older than one
    /// already counted brings nothing.
    fn advance(&mut self, total: u32) -> u32 {
        let new = total.wrapping_sub(self.counted);
        if new > u32::MAX / 2 {
            return 0;
        }
        self.counted = total;
        new
    }
}

/// Has a socket tell all of its packets, and gives it room for as many as may wait.
pub(super) fn prepare(socket: &PacketSocket, ring_bytes: u64) -> io::Result<()> {
    socket.describe_packets()?;
    let bytes = (ring_bytes / 2).min(MAX_BUFFER) as usize;
    // Without CAP_NET_ADMIN the system's limit (net.core.rmem_max) holds.
    sockopt::set_socket_recv_buffer_size_force(socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?;
    sockopt::set_socket_timeout(socket, Timeout::Recv, Some(IDLE))?;
    Ok(())
}

impl Receiver {
    /// Receives by a socket that was prepared.
    pub fn new(socket: Arc<PacketSocket>, pusher: PacketPusher, config: &Config) -> Self {
        // The filter cuts packets to the snaplen before they are queued.
        let buffer = vec![0; config.snaplen.max(1) as usize];
        Self { socket, pusher, buffer, drops: Drops::default() }
    }

    pub fn run(mut self, stop: &AtomicBool) {
        let mut received = 0u32;
        loop {
            // Read first: an empty socket is empty for good only if nothing came in before it was
            // looked at.
            let stopping = is_set(stop);
            match self.socket.receive(&mut self.buffer, !stopping) {
                Ok(packet) => {
                    if packet.dropped_before != 0 {
                        self.pusher.count_lost(self.drops.advance(packet.dropped_before));
                    }
                    self.pusher.push(&packet);
                    received = received.wrapping_add(1);
                    if received.is_multiple_of(LOOK) {
                        self.pusher.count_filtered();
                    }
                }
                // The link was set down, or the interface is gone. The kernel says so once.
                Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.ask_for_drops();
                    if stopping {
                        return;
                    }
                    if e.kind() != ErrorKind::WouldBlock {
                        std::thread::sleep(IDLE);
                    }
                }
            }
        }
    }

    fn ask_for_drops(&mut self) {
        if let Ok(s) = self.socket.take_statistics() {
            self.drops.reported = self.drops.reported.wrapping_add(s.dropped);
            self.pusher.count_lost(self.drops.advance(self.drops.reported));
        }
        self.pusher.count_filtered();
    }
}

#[cfg(test)]
mod tests {
    use super::Drops;

    #[test]
    fn drops_are_counted_once_whichever_side_tells_first() {
        let mut d = Drops::default();
        let told = [3, 5, 5, 4, 9].map(|total| d.advance(total));
        assert_eq!(told, [3, 2, 0, 0, 4]);
    }

    #[test]
    fn drops_are_counted_across_the_end_of_32_bits() {
        let mut d = Drops { counted: u32::MAX - 1, reported: 0 };
        assert_eq!([d.advance(2), d.advance(u32::MAX), d.advance(3)], [4, 0, 1]);
    }
}
