//! Empties rings into a sink.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use tapdeck_packet::ring::{Block, Contents, Hold, Ring};

use crate::Totals;

/// A block and whose it is.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The pcapng interface id of its packets.
    pub interface: u32,
    pub block: Block<'a>,
    ring: &'a dyn Ring,
    ahead: u32,
}

impl Piece<'_> {
    /// Keeps its bytes beyond the call that they were offered in; its ring's block may have more of them. At most one sink may ask
    /// for it, once it has taken the piece.
    pub fn hold(&self) -> Option<Box<dyn Hold>> {
        self.ring.hold(self.ahead)
    }
}

/// What a sink did with a batch.
#[derive(Debug)]
pub enum Outcome {
    /// The first so many blocks are written; the others may be offered again at once.
    Written(usize),
    /// The first so many blocks are written; no more can be at present.
    Stalled(usize, std::io::Error),
    /// The first so many blocks are written, and there is nobody to write for any more.
    Ended(usize),
    /// The first so many blocks are written; nothing can be from now on.
    Failed(usize, std::io::Error),
}

/// Where blocks go.
pub trait Sink: Send {
    /// Writes blocks. All of them are of one epoch, and of the same one as those before unless
    /// [`Sink::begin_epoch`] was called in between.
    fn write(&mut self, batch: &[Piece<'_>]) -> Outcome;

    /// Blocks from now on are of another epoch.
    fn begin_epoch(&mut self, epoch: u8);

    /// Called at least every 10 ms or after each write, for what depends on time. `lost` holds
    /// for each interface the packets dropped so far.
    fn tick(&mut self, lost: &[u64]);

    /// Writes what ends the output. `lost` as in [`Sink::tick`].
    fn finish(&mut self, lost: &[u64]) -> std::io::Result<()>;
}

/// Blocks in one batch at most: enough for a large write, few enough that the rings get them back soon.
const BATCH: usize = 8;
const SHORTEST_WAIT: Duration = Duration::from_micros(500);
const LONGEST_WAIT: Duration = Duration::from_millis(8);
/// How long a writer that was told to stop waits for a sink that cannot write.
const PATIENCE: Duration = Duration::from_secs(2);

/// How far a recording has come, told between the thread that looks after the hooks and the writer.
#[derive(Debug, Default)]
pub struct Course {
    producers_ended: AtomicBool,
    blocks_closed: AtomicBool,
    hurried: AtomicBool,
    writer_ended: AtomicBool,
}

impl Course {
    /// No packet comes any more. Blocks may still be open.
    pub fn end_producers(&self) {
        self.producers_ended.store(true, Release);
    }

    /// Nor does any block change any more.
    pub fn close_blocks(&self) {
        self.producers_ended.store(true, Release);
        self.blocks_closed.store(true, Release);
    }

    /// What is not written yet shall not be.
    pub fn hurry(&self) {
        self.hurried.store(true, Release);
    }

    /// Whether the writer writes no more, for whatever reason.
    pub fn writer_has_ended(&self) -> bool {
        self.writer_ended.load(Acquire)
    }

    fn producers_have_ended(&self) -> bool {
        self.producers_ended.load(Acquire)
    }

    fn blocks_are_closed(&self) -> bool {
        self.blocks_closed.load(Acquire)
    }

    /// Whether what is not done yet shall be left.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Acquire)
    }
}

/// Why a writer came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was told to stop, or had written as many packets as were asked for.
    Asked,
    /// Nobody reads the output any more.
    ReaderLeft,
}

/// Empties rings into a sink, on a thread of its own.
pub struct Writer<S> {
    rings: Vec<Box<dyn Ring>>,
    sink: S,
    totals: Arc<Totals>,
    epoch: u8,
    first: usize,
    /// Packets that may still be written.
    left: u64,
}

impl<S: Sink> Writer<S> {
    /// `totals` has an entry for every interface id of the rings.
    pub fn new(rings: Vec<Box<dyn Ring>>, sink: S, totals: Arc<Totals>) -> Self {
        let oldest = |r: &dyn Ring| r.peek(0).map_or(r.epoch(), |b| b.contents.epoch);
        // Counted modulo 256, and a writer begins before that many have passed.
        let before = |a: u8, b: u8| (a.wrapping_sub(b) as i8) < 0;
        let epoch =
            rings.iter().map(|r| oldest(&**r)).reduce(|a, b| if before(b, a) { b } else { a });
        let epoch = epoch.unwrap_or(0);
        Self { rings, sink, totals, epoch, first: 0, left: u64::MAX }
    }

    /// Ends after so many packets, to the packet.
    #[must_use]
    pub fn limit(mut self, packets: u64) -> Self {
        self.left = packets;
        self
    }

    /// Writes until the recording has come to its end and the rings are empty, or until the sink
    /// can take no more. Then takes what still comes out of the rings, so that their last blocks can
    /// be closed, and counts it as not written.
    pub fn run(mut self, course: &Course) -> std::io::Result<Ending> {
        let mut wait = SHORTEST_WAIT;
        let mut stalled_since: Option<Instant> = None;
        let mut ending = Ok(Ending::Asked);
        loop {
            // Read before the rings are looked at: nothing comes after it was set.
            let closed = course.blocks_are_closed();
            let turn = self.turn(closed);
            let lost = self.lost();
            self.sink.tick(&lost);
            if course.is_hurried() {
                break;
            }
            match turn {
                Turn::Wrote => {
                    wait = SHORTEST_WAIT;
                    stalled_since = None;
                    self.totals.stalled_errno.store(0, Relaxed);
                    continue;
                }
                Turn::Ended => {
                    ending = Ok(if self.left == 0 { Ending::Asked } else { Ending::ReaderLeft });
                    break;
                }
                Turn::Failed(e) => {
                    ending = Err(e);
                    break;
                }
                Turn::Idle if closed && self.rings.iter().all(|r| r.caught_up()) => break,
                Turn::Idle => {}
                Turn::Stalled(e) => {
                    let errno = e.raw_os_error().unwrap_or(5);
                    self.totals.stalled_errno.store(errno as u64, Relaxed);
                    if course.producers_have_ended() {
                        let since = *stalled_since.get_or_insert_with(Instant::now);
                        if since.elapsed() > PATIENCE {
                            break;
                        }
                    }
                }
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        course.writer_ended.store(true, Release);
        self.discard(course);
        let lost = self.lost();
        self.sink.finish(&lost)?;
        ending
    }

    /// Empties the rings into nothing until the recording has ended.
    fn discard(&mut self, course: &Course) {
        // What came after the last packet that was asked for is nobody's loss.
        let counts = self.left > 0;
        let totals = self.totals.clone();
        let count = |ring: &dyn Ring, packets: u64| {
            if counts {
                Totals::add(&totals.interfaces[ring.interface() as usize].unwritten, packets);
            }
        };
        loop {
            let closed = course.blocks_are_closed();
            for ring in &mut self.rings {
                while let Some(block) = ring.peek(0) {
                    let packets = u64::from(block.contents.packets);
                    count(&**ring, packets);
                    ring.release(1);
                }
            }
            if closed {
                break;
            }
            std::thread::sleep(SHORTEST_WAIT);
        }
        for ring in &self.rings {
            count(&**ring, ring.unread());
        }
    }

    fn lost(&self) -> Vec<u64> {
        let mut lost = vec![0; self.totals.interfaces.len()];
        for ring in &self.rings {
            lost[ring.interface() as usize] += ring.lost();
        }
        lost
    }

    fn turn(&mut self, stopping: bool) -> Turn {
        if self.left == 0 {
            return Turn::Ended;
        }
        let mut from = Vec::with_capacity(BATCH);
        let mut batch = Vec::with_capacity(BATCH);
        // Ring after ring, each with a part of the batch, and another one first every time.
        let share = (BATCH / self.rings.len().max(1)).max(1);
        for i in 0..self.rings.len() {
            let at = (self.first + i) % self.rings.len();
            let ring = &self.rings[at];
            for ahead in 0..share.min(BATCH - batch.len()) {
                let ahead = ahead as u32;
                let Some(block) = ring.peek(ahead) else { break };
                if block.contents.epoch != self.epoch {
                    break;
                }
                let before: u64 = batch.iter().map(packets_of).sum();
                if before >= self.left {
                    break;
                }
                from.push(at);
                let block = first_packets(block, self.left - before);
                batch.push(Piece { interface: ring.interface(), block, ring: &**ring, ahead });
            }
        }
        self.first = (self.first + 1) % self.rings.len().max(1);
        if batch.is_empty() {
            return self.next_epoch(stopping);
        }
        let outcome = self.sink.write(&batch);
        let (written, turn) = match outcome {
            Outcome::Written(n) => (n, Turn::Wrote),
            Outcome::Stalled(n, e) => (n, Turn::Stalled(e)),
            Outcome::Ended(n) => (n, Turn::Ended),
            Outcome::Failed(n, e) => (n, Turn::Failed(e)),
        };
        for piece in &batch[..written] {
            let totals = &self.totals.interfaces[piece.interface as usize];
            Totals::add(&totals.packets, u64::from(piece.block.contents.packets));
            Totals::add(&totals.frame_bytes, u64::from(piece.block.contents.frame_bytes));
        }
        self.left -= batch[..written].iter().map(packets_of).sum::<u64>();
        for at in from.into_iter().take(written) {
            self.rings[at].release(1);
        }
        if self.left == 0 { Turn::Ended } else { turn }
    }

    /// Begins the next epoch once nothing of the present one is left in any ring. Epochs are
    /// counted modulo 256; a ring without traffic may have none of the next one's packets.
    fn next_epoch(&mut self, stopping: bool) -> Turn {
        let mut next: Option<u8> = None;
        let mut waiting = false;
        for ring in &self.rings {
            let epoch = if let Some(block) = ring.peek(0) {
                waiting = true;
                block.contents.epoch
            } else {
                let epoch = ring.epoch();
                if !ring.caught_up() {
                    return Turn::Idle;
                }
                if stopping {
                    // Nothing comes from it any more.
                    continue;
                }
                epoch
            };
            let after = |epoch: u8| epoch.wrapping_sub(self.epoch);
            if next.is_none_or(|next| after(epoch) < after(next)) {
                next = Some(epoch);
            }
        }
        match next.filter(|next| waiting && *next != self.epoch) {
            Some(epoch) => {
                self.epoch = epoch;
                self.sink.begin_epoch(epoch);
                Turn::Wrote
            }
            None => Turn::Idle,
        }
    }
}

fn packets_of(piece: &Piece<'_>) -> u64 {
    u64::from(piece.block.contents.packets)
}

/// A block cut behind its first `n` packets.
fn first_packets(block: Block<'_>, n: u64) -> Block<'_> {
    if u64::from(block.contents.packets) <= n {
        return block;
    }
    let word = |at: usize| {
        let bytes = block.bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    };
    let (mut end, mut packets, mut frame_bytes) = (0, 0, 0);
    while u64::from(packets) < n && word(end + 4) != 0 {
        // Type, length, and in a packet block 20 bytes on the captured length.
        if word(end) == tapdeck_packet::pcapng::ENHANCED_PACKET {
            packets += 1;
            frame_bytes += word(end + 20);
        }
        end += word(end + 4) as usize;
    }
    let contents = Contents { packets, frame_bytes, ..block.contents };
    Block { bytes: &block.bytes[..end], contents }
}

enum Turn {
    Wrote,
    Idle,
    Stalled(std::io::Error),
    Ended,
    Failed(std::io::Error),
}

/// Writes nothing, for measuring everything before the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, batch: &[Piece<'_>]) -> Outcome {
        Outcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {}

    fn tick(&mut self, _: &[u64]) {}

    fn finish(&mut self, _: &[u64]) -> std::io::Result<()> {
        Ok(())
    }
}
