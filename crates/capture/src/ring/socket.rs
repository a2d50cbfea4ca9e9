//! The producer's end of a ring for the socket hooks, where user space formats packets.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use tapdeck_packet::pcapng;

use super::memory::{Geometry, RingMemory};
use super::protocol::{Reservation, reserve};
use crate::Clock;

/// Makes rings in memory of this process, for producers and readers.
pub fn socket_ring(geometry: Geometry) -> io::Result<Vec<Arc<RingMemory>>> {
    Ok(RingMemory::anonymous(geometry)?.into_iter().map(Arc::new).collect())
}

/// Writes packets into a ring.
pub struct Producer {
    memory: Arc<RingMemory>,
    clock: Arc<Clock>,
    interface: u32,
    /// The last packet's timestamp and its epoch.
    last: Cell<(u64, u32)>,
}

/// How long after the packet before a packet may come without the clock being looked at. The clock
/// may have been stepped before a packet that comes later than that, that seems to come before the
/// last one, or that is the first of an epoch.
const LOOK_NS: u64 = 100_000_000;

/// The pieces of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// `CLOCK_REALTIME` nanoseconds from the kernel; 0 where there are none.
    pub time_ns: u64,
    pub frame: &'a [u8],
    /// A VLAN tag that was taken off the frame and goes back behind its addresses.
    pub tag: Option<[u8; 4]>,
    /// Length on the wire, without `tag`.
    pub original_len: u32,
    /// `epb_flags`, 0 for none.
    pub flags: u32,
}

const ADDRESSES: usize = 12;

impl Producer {
    pub fn new(memory: Arc<RingMemory>, clock: Arc<Clock>, interface: u32) -> Self {
        Self { memory, clock, interface, last: Cell::new((0, 0)) }
    }

    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    fn stamp(&self, wall_ns: u64, epoch: u32) -> u64 {
        let (last_ns, last_epoch) = self.last.get();
        let ns = if wall_ns == 0 {
            self.clock.stamp(epoch)
        } else if epoch == last_epoch && wall_ns.wrapping_sub(last_ns) < LOOK_NS {
            wall_ns
        } else {
            self.clock.on_scale(wall_ns, epoch)
        };
        self.last.set((ns, epoch));
        ns
    }

    /// Counts packets that were lost before they reached this program.
    pub fn count_lost(&self, packets: u64) {
        if packets > 0 {
            self.memory.count_lost(packets);
        }
    }

    /// Counts packets that a filter has kept from this program.
    pub fn count_filtered(&self, packets: u64) {
        if packets > 0 {
            self.memory.count_filtered(packets);
        }
    }

    /// Writes one packet, or counts it as lost where the ring is full.
    pub fn push(&self, p: &Packet<'_>) {
        let split = p.tag.map_or(p.frame.len(), |_| ADDRESSES.min(p.frame.len()));
        let (head, rest) = p.frame.split_at(split);
        let tag: &[u8] = p.tag.as_ref().map_or(&[], |t| t);
        let snaplen = self.memory.geometry().snaplen as usize;
        let head = &head[..head.len().min(snaplen)];
        let tag = &tag[..tag.len().min(snaplen - head.len())];
        let rest = &rest[..rest.len().min(snaplen - head.len() - tag.len())];
        let captured = head.len() + tag.len() + rest.len();
        let original_len = p.original_len + p.tag.map_or(0, |t| t.len() as u32);

        let gap = self.memory.take_untold();
        let len = pcapng::packet_len(captured, p.flags, gap);
        let reserved = match reserve(&*self.memory, len as u32, self.clock.epoch()) {
            Reservation::Done(reserved) => reserved,
            Reservation::Full | Reservation::Contended => {
                self.memory.untell(gap);
                self.memory.count_lost(1);
                return;
            }
        };
        let time_ns = self.stamp(p.time_ns, reserved.epoch);
        let out = self.memory.reserved(&reserved);
        let frame = [head, tag, rest];
        pcapng::write_packet(out, self.interface, time_ns, frame, original_len, p.flags, gap);
        reserved.commit(&*self.memory, captured as u32, 1);
    }
}
