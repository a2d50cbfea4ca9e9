//! What has a writer done so far? Counters that it keeps, for others to read while it works.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use tapdeck_packet::ring::Cut;

/// Counts of one pcapng interface.
#[derive(Debug, Default)]
pub struct InterfaceTotals {
    /// Packets in the output.
    pub packets: AtomicU64,
    /// Bytes of their frames.
    pub frame_bytes: AtomicU64,
    /// Packets that were in the ring when the recorder had to stop, or are in a segment that could
    /// not be made durable.
    pub unwritten: AtomicU64,
    /// Packets of `packets` that a power cut can no longer take.
    pub durable: AtomicU64,
    /// Packets that the rings dropped, as the writer saw it last.
    pub lost: AtomicU64,
    /// Packets that were left out of flows since the writer began, as it saw it last, and bytes of
    /// their frames.
    pub cut_packets: AtomicU64,
    pub cut_bytes: AtomicU64,
}

impl InterfaceTotals {
    /// Returns what was left out of flows.
    pub fn cut(&self) -> Cut {
        Cut { packets: self.cut_packets.load(Relaxed), bytes: self.cut_bytes.load(Relaxed) }
    }
}

/// Counts of a recording. Each has one writer; readers may see them a moment apart.
#[derive(Debug, Default)]
pub struct Totals {
    pub interfaces: Vec<InterfaceTotals>,
    /// Bytes written, with headers and filling.
    pub bytes_written: AtomicU64,
    /// Bytes of blocks that are being written, and are not counted yet.
    pub bytes_in_flight: AtomicU64,
    /// Segments begun.
    pub segments: AtomicU64,
    /// Segments that retention deleted.
    pub segments_deleted: AtomicU64,
    /// Packets in the segments that retention deleted.
    pub packets_deleted: AtomicU64,
    /// Writes that failed.
    pub write_errors: AtomicU64,
    /// The longest time between two segments in which nothing could be written, nanoseconds.
    pub rotation_ns_max: AtomicU64,
    /// The longest time for which something that was written was not durable, nanoseconds.
    pub unsynced_ns_max: AtomicU64,
    /// Which sync is under way, from 1, or 0.
    pub sync_under_way: AtomicU64,
    /// Whether there was room for a segment since the beginning.
    pub has_found_room: AtomicBool,
    /// The error number while nothing can be written, else 0.
    pub stalled_errno: AtomicU64,
    /// The time since when a batch is being written, or could not be: nanoseconds since the
    /// machine's start, or 0.
    pub write_began_ns: AtomicU64,
    /// Bytes that closed segments and their indexes take on disk.
    pub bytes_stored: AtomicU64,
    /// When the first packet of the oldest closed segment came, UTC nanoseconds, or 0.
    pub oldest_closed_ns: AtomicU64,
    /// When the first packet of the segment that is being written came, UTC nanoseconds, or 0.
    pub oldest_live_ns: AtomicU64,
    /// Bytes that index files take on disk.
    pub index_bytes: AtomicU64,
    /// Bytes of packet blocks that were written and that the indexer has not looked at yet.
    pub index_behind_bytes: AtomicU64,
    /// Bytes of packet blocks that the indexer had to read from segments, because it came too late
    /// to find them in the ring.
    pub index_read_bytes: AtomicU64,
}

impl Totals {
    pub fn new(interfaces: usize) -> Self {
        Self {
            interfaces: (0..interfaces).map(|_| InterfaceTotals::default()).collect(),
            ..Self::default()
        }
    }

    /// Returns for how long the writer has been at the batch that it writes, if it is at one.
    pub fn write_time(&self) -> Option<Duration> {
        let began = self.write_began_ns.load(Relaxed);
        (began > 0).then(|| Duration::from_nanos(now_ns().saturating_sub(began)))
    }

    /// Takes note that the writer begins with a batch, or goes on with one that it could not write.
    pub(crate) fn write_begins(&self) {
        if self.write_began_ns.load(Relaxed) == 0 {
            self.write_began_ns.store(now_ns(), Relaxed);
        }
    }

    /// Takes note that the writer has written, or has nothing to write.
    pub(crate) fn write_ends(&self) {
        self.write_began_ns.store(0, Relaxed);
    }

    /// Returns when the store's oldest packet came, UTC nanoseconds, or 0.
    pub fn oldest_ns(&self) -> u64 {
        match self.oldest_closed_ns.load(Relaxed) {
            0 => self.oldest_live_ns.load(Relaxed),
            ns => ns,
        }
    }

    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Counts packets as not written, and bytes of their frames, that counted as written: by
    /// interface.
    pub(crate) fn take_back(&self, packets: &[u64], frame_bytes: &[u64]) {
        for ((totals, packets), bytes) in self.interfaces.iter().zip(packets).zip(frame_bytes) {
            Self::add(&totals.unwritten, *packets);
            Self::subtract(&totals.packets, *packets);
            Self::subtract(&totals.frame_bytes, *bytes);
        }
    }

    pub(crate) fn subtract(counter: &AtomicU64, n: u64) {
        counter.fetch_sub(n, Relaxed);
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}
