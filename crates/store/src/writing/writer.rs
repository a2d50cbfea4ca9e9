//! When does which ring's block go where? The writer's thread empties rings into a [`Sink`], a
//! batch at a time, and gives blocks back to their rings when they are written.
//!
//! It keeps epochs of the clock apart, ends to the packet where a limit was set, and waits where a
//! sink cannot write at present. What becomes of the blocks is the sink's business.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tapdeck_packet::pcapng::{ENHANCED_PACKET, InterfaceDescription};
use tapdeck_packet::ring::{Block, Contents, Cut, Hold, Ring};
use tapdeck_packet::watch::{beat, waiting, watch};

use crate::format::unseen::UnseenSpan;
use crate::writing::control::{Done, LAST_PACKETS, RingsChange, SegmentAsked, WriterControl};
use crate::writing::ledger::{Ledger, LedgerEntry, SegmentEnd};
use crate::writing::pace::Pace;
use crate::writing::retention::Retention;
use crate::writing::totals::Totals;

/// A block of a ring, and the interface that it belongs to.
#[derive(Clone, Copy)]
pub struct InterfaceBlock<'a> {
    /// The pcapng interface id of its packets.
    pub interface: u32,
    pub block: Block<'a>,
    ring: &'a dyn Ring,
    ahead: u32,
}

impl InterfaceBlock<'_> {
    /// Calls `tell` for each interface that has packets in the block: with its id, how many
    /// packets, how many bytes of frames. Of one interface it may do so in several parts.
    pub fn each_interface(&self, mut tell: impl FnMut(usize, u64, u64)) {
        let Contents { packets, frame_bytes, .. } = self.block.contents;
        if !self.ring.is_mixed() {
            return tell(self.interface as usize, u64::from(packets), u64::from(frame_bytes));
        }
        for packet in Packets::of(self.block.bytes) {
            tell(packet.interface as usize, 1, u64::from(packet.captured));
        }
    }

    /// Returns when its first packet came, UTC nanoseconds.
    pub(crate) fn first_packet_ns(&self) -> Option<u64> {
        Packets::of(self.block.bytes).next().map(|packet| packet.time_ns)
    }

    /// Keeps the block's bytes beyond the call that they were offered in; the ring's block may have
    /// more of them. At most one sink may do so, once it has taken the block.
    pub fn hold(&self) -> Option<Box<dyn Hold>> {
        self.ring.hold(self.ahead)
    }
}

/// What a sink did with a batch.
#[derive(Debug)]
pub enum SinkOutcome {
    /// The first so many blocks are written; the others may be offered again at once.
    Written(usize),
    /// The first so many blocks are written; no more can be at present.
    Stalled(usize, io::Error),
    /// The first so many blocks are written, and there is nobody to write for any more.
    Ended(usize),
    /// The first so many blocks are written; nothing can be from now on.
    Failed(usize, io::Error),
}

/// Where blocks go.
pub trait Sink: Send {
    /// Writes blocks. All of them are of one epoch, and of the same one as those before unless
    /// [`Sink::begin_epoch`] was called in between.
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome;

    /// Begins another epoch, which the next blocks are of.
    fn begin_epoch(&mut self, epoch: u8);

    /// Called after each write, whenever the writer has slept for packets that are coming, and four
    /// times a second at least, for what depends on time. `lost` holds for each interface the
    /// packets dropped so far.
    fn tick(&mut self, lost: &[u64]);

    /// Begins another segment, where there are such: blocks from now on go there, described by
    /// `interfaces` if they have changed; there may be more of them. Calls `done` when the segment
    /// before can be taken away.
    fn begin_segment(&mut self, interfaces: Option<Vec<InterfaceDescription>>, done: Done) {
        let _ = interfaces;
        done();
    }

    /// Keeps so much from now on of what was written.
    fn retain(&mut self, retention: Retention) {
        let _ = retention;
    }

    /// Returns where the segment ends that is written to, as [`LedgerEntry::segment`] has it.
    fn segment_end(&self) -> Option<SegmentEnd> {
        None
    }

    /// Returns the losses that segments which have ended tell, by interface.
    fn told_lost(&self) -> &[u64] {
        &[]
    }

    /// Tells in the output, behind the blocks written so far, that packets went unseen.
    fn tell_unseen(&mut self, spans: Vec<UnseenSpan>) {
        let _ = spans;
    }

    /// Writes the end of the output. `lost` is as in [`Sink::tick`].
    fn finish(&mut self, lost: &[u64]) -> io::Result<()>;
}

/// Blocks in one batch at most: enough for a large write, few enough that the rings get them back
/// soon.
const BATCH: usize = 8;
/// How long a writer sleeps at most that was told nothing else.
const LONGEST_SLEEP: Duration = Duration::from_millis(8);
/// How long a writer that producers wake rests at most.
const LONGEST_REST: Duration = Duration::from_millis(125);
/// How long a writer whose rings are empty leaves its sink alone before it rests, at most.
const IDLE: Duration = Duration::from_millis(100);
/// How long a writer that was told to stop waits for a sink that cannot write.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why a writer came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The writer was told to stop, or had written as many packets as were asked for.
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
    ledger: Option<Box<dyn Ledger>>,
    pace: Pace,
    longest_rest: Duration,
    /// What had been left out before each ring when the writer began to read it.
    cut_before: Vec<Cut>,
    /// How many interface ids are in use.
    interfaces: usize,
    /// What rings that are gone had lost and left out, by interface.
    gone: BTreeMap<u32, (u64, Cut)>,
}

impl<S: Sink> Writer<S> {
    /// Makes a writer that was not started. `totals` has an entry for every interface id of the
    /// rings, those that may come among them.
    pub fn new(rings: Vec<Box<dyn Ring>>, sink: S, totals: Arc<Totals>) -> Self {
        let epoch = oldest_epoch(&rings).unwrap_or(0);
        let mut pace = Pace::new();
        pace.bind(rings.iter().map(|ring| ring.interface()), LONGEST_SLEEP);
        let cut_before = rings.iter().map(|r| r.cut()).collect();
        let (first, left, ledger) = (0, u64::MAX, None);
        let (interfaces, gone) = (totals.interfaces.len(), BTreeMap::new());
        let longest_rest = LONGEST_SLEEP;
        Self {
            rings,
            sink,
            totals,
            epoch,
            first,
            left,
            ledger,
            pace,
            longest_rest,
            cut_before,
            interfaces,
            gone,
        }
    }

    /// Leaves the interface ids behind the first so many to rings that come later.
    #[must_use]
    pub fn begin_with(mut self, interfaces: usize) -> Self {
        self.interfaces = interfaces;
        self
    }

    /// Has the writer rest for so long at most where producers wake it.
    #[must_use]
    pub fn rest_at_most(mut self, time: Duration) -> Self {
        self.longest_rest = time.min(LONGEST_REST);
        self
    }

    /// Has the writer sleep for so long at most before it looks at the rings again by itself: a
    /// ring must outlast that where packets come at once after silence.
    #[must_use]
    pub fn sleep_at_most(mut self, time: Duration) -> Self {
        self.pace.bind(self.rings.iter().map(|ring| ring.interface()), time);
        self
    }

    /// Makes the writer end after so many packets, to the packet.
    #[must_use]
    pub fn limit(mut self, packets: u64) -> Self {
        self.left = packets;
        self
    }

    /// Has the writer note what it does in a ledger, for another that goes on when it has died.
    #[must_use]
    pub fn note_in(mut self, ledger: Box<dyn Ledger>) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// Notes that the blocks of these interfaces are dealt with.
    fn note(&mut self, blocks: &[u32], is_last: bool) {
        let Some(ledger) = &mut self.ledger else { return };
        let mut told_lost = self.sink.told_lost().to_vec();
        for (interface, (lost, _)) in &self.gone {
            if let Some(told) = told_lost.get_mut(*interface as usize) {
                *told = told.saturating_sub(*lost);
            }
        }
        ledger.note(&LedgerEntry {
            segment: self.sink.segment_end().filter(|_| !is_last),
            blocks,
            totals: &self.totals,
            told_lost: &told_lost,
        });
    }

    /// Writes until the recording has come to its end and the rings are empty, or until the sink
    /// can take no more. Then takes what still comes out of the rings, so that their last blocks
    /// can be closed, and counts that as not written.
    pub fn run(mut self, control: &WriterControl) -> io::Result<Ending> {
        let mut stalled_since: Option<Instant> = None;
        let mut asked = Vec::new();
        let mut ending = Ok(Ending::Asked);
        watch("tapdeck-writer");
        self.rings.iter_mut().for_each(|ring| ring.rise());
        self.note(&[], false);
        loop {
            beat();
            control.take_segments_asked(&mut asked);
            // Read before the rings are looked at: nothing comes after it was set.
            let closed = control.blocks_are_closed();
            let leaves_since = control.leaves_since();
            if closed {
                self.rings.iter_mut().for_each(|ring| ring.end());
            }
            self.rings.iter_mut().for_each(|ring| ring.renew());
            let turn = self.turn(closed);
            let lost = self.lost();
            self.sink.tick(&lost);
            if control.is_hurried() {
                break;
            }
            if asked.first().is_some_and(|one| one.is_time(matches!(turn, Turn::Idle))) {
                self.perform(&mut asked);
            }
            let is_at_work = matches!(turn, Turn::Wrote);
            if leaves_since.is_some_and(|since| !is_at_work || since.elapsed() > LAST_PACKETS) {
                break;
            }
            if control.awaits_packets() && (is_at_work || !self.rings.iter().all(|r| r.is_empty()))
            {
                control.tell_of_packets();
            }
            match turn {
                Turn::Wrote => {
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
                    let mut waited = || stalled_since.get_or_insert_with(Instant::now).elapsed();
                    if control.producers_have_ended() && waited() > PATIENCE {
                        break;
                    }
                }
            }
            waiting(|| self.sleep(control));
        }
        control.end_writer();
        // What is left in rings that live on is another writer's.
        if self.ledger.is_none() {
            self.discard(control, &mut asked);
        }
        control.take_segments_asked(&mut asked);
        self.perform(&mut asked);
        let lost = self.lost();
        self.sink.finish(&lost)?;
        self.note(&[], true);
        ending
    }

    /// Does what was asked for with the next segments.
    fn perform(&mut self, asked: &mut Vec<SegmentAsked>) {
        for mut one in asked.drain(..) {
            for change in std::mem::take(&mut one.changes) {
                self.change_rings(change);
            }
            one.perform(&mut self.sink);
        }
    }

    fn change_rings(&mut self, change: RingsChange) {
        let RingsChange { gone, mut come, interfaces, sleep } = change;
        for ring in &mut come {
            ring.rise();
        }
        let all =
            std::mem::take(&mut self.rings).into_iter().zip(std::mem::take(&mut self.cut_before));
        for (ring, before) in all {
            if !gone.contains(&ring.interface()) {
                self.rings.push(ring);
                self.cut_before.push(before);
                continue;
            }
            let (lost, cut) = self.gone.entry(ring.interface()).or_default();
            *lost += ring.lost();
            *cut = *cut + less(ring.cut(), before);
        }
        // One that the others have left behind begins again for them.
        if let Some(epoch) = oldest_epoch(&come).filter(|epoch| is_before(*epoch, self.epoch)) {
            self.epoch = epoch;
            self.sink.begin_epoch(epoch);
        }
        if let Some(ledger) = &mut self.ledger {
            for ring in &come {
                ledger.comes(ring.interface(), &self.totals);
            }
        }
        self.pace.forget(&gone);
        self.pace.bind(come.iter().map(|ring| ring.interface()), sleep);
        self.cut_before.extend(come.iter().map(|ring| ring.cut()));
        self.rings.extend(come);
        self.interfaces = self.interfaces.max(interfaces.len());
    }

    /// Sleeps until it is woken or something lies in a ring, but not for much longer than [`IDLE`]
    /// and a rest. While the rings are empty, no more is looked at than that.
    fn sleep(&mut self, control: &WriterControl) {
        let begin = Instant::now();
        let mut now = begin;
        loop {
            let time = self.pace.sleep(&self.rings, now);
            let is_woken = self.rest(control) || control.sleep(time, &[]);
            now = Instant::now();
            let is_over = is_woken || now.saturating_duration_since(begin) >= IDLE;
            if is_over || !self.rings.iter().all(|ring| ring.is_empty()) {
                return;
            }
        }
    }

    /// Sleeps until it is woken, by producers, too, or for as long as it rests at most. Returns
    /// false at once where it has to look by itself: where packets come fast, where some producers
    /// wake nobody, and where a block is there already or one that was released is held.
    fn rest(&mut self, control: &WriterControl) -> bool {
        if !self.pace.is_slow() {
            return false;
        }
        for ring in &self.rings {
            ring.waker().iter().for_each(|waker| waker.clear());
        }
        let rests = !self.rings.is_empty() && self.rings.iter_mut().all(|ring| ring.rest());
        if rests {
            let wakers = self.rings.iter().filter_map(|ring| ring.waker());
            let mut wakers: Vec<BorrowedFd<'_>> = wakers.map(|waker| waker.descriptor()).collect();
            wakers.dedup_by_key(|fd| fd.as_raw_fd());
            control.sleep(self.longest_rest, &wakers);
        }
        self.rings.iter_mut().for_each(|ring| ring.rise());
        rests
    }

    /// Empties the rings into nothing until the recording has ended.
    fn discard(&mut self, control: &WriterControl, asked: &mut Vec<SegmentAsked>) {
        // Packets after the last one that was asked for are no loss.
        let counts = self.left > 0;
        let totals = self.totals.clone();
        let count = |ring: &dyn Ring, packets: u64| {
            if counts {
                Totals::add(&totals.interfaces[ring.interface() as usize].unwritten, packets);
            }
        };
        loop {
            beat();
            let closed = control.blocks_are_closed();
            control.take_segments_asked(asked);
            for change in asked.iter_mut().flat_map(|one| std::mem::take(&mut one.changes)) {
                self.change_rings(change);
            }
            for ring in &mut self.rings {
                if closed {
                    ring.end();
                }
                ring.renew();
                while let Some(block) = ring.peek(0) {
                    let packets = u64::from(block.contents.packets);
                    count(&**ring, packets);
                    ring.release(1);
                }
            }
            if closed {
                break;
            }
            std::thread::sleep(Pace::shortest());
        }
        for ring in &self.rings {
            count(&**ring, ring.unread());
        }
    }

    fn lost(&self) -> Vec<u64> {
        let mut lost = vec![0; self.interfaces];
        for ring in &self.rings {
            lost[ring.interface() as usize] += ring.lost();
        }
        for (interface, (more, _)) in &self.gone {
            lost[*interface as usize] += more;
        }
        for (totals, lost) in self.totals.interfaces.iter().zip(&lost) {
            totals.lost.store(*lost, Relaxed);
        }
        self.note_cut();
        lost
    }

    /// Takes note of what was left out of flows.
    fn note_cut(&self) {
        let mut cut = vec![Cut::default(); self.interfaces];
        for (ring, before) in self.rings.iter().zip(&self.cut_before) {
            let of = &mut cut[ring.interface() as usize];
            *of = *of + less(ring.cut(), *before);
        }
        for (interface, (_, more)) in &self.gone {
            let of = &mut cut[*interface as usize];
            *of = *of + *more;
        }
        for (totals, cut) in self.totals.interfaces.iter().zip(&cut) {
            totals.cut_packets.store(cut.packets, Relaxed);
            totals.cut_bytes.store(cut.bytes, Relaxed);
        }
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
                batch.push(InterfaceBlock {
                    interface: ring.interface(),
                    block,
                    ring: &**ring,
                    ahead,
                });
            }
        }
        self.first = (self.first + 1) % self.rings.len().max(1);
        if batch.is_empty() {
            self.totals.write_ends();
            return self.next_epoch(stopping);
        }
        self.totals.write_begins();
        let outcome = self.sink.write(&batch);
        if matches!(outcome, SinkOutcome::Written(_)) {
            self.totals.write_ends();
        }
        let (written, turn) = match outcome {
            SinkOutcome::Written(n) => (n, Turn::Wrote),
            SinkOutcome::Stalled(n, e) => (n, Turn::Stalled(e)),
            SinkOutcome::Ended(n) => (n, Turn::Ended),
            SinkOutcome::Failed(n, e) => (n, Turn::Failed(e)),
        };
        for piece in &batch[..written] {
            piece.each_interface(|interface, packets, frame_bytes| {
                if let Some(totals) = self.totals.interfaces.get(interface) {
                    Totals::add(&totals.packets, packets);
                    Totals::add(&totals.frame_bytes, frame_bytes);
                }
            });
        }
        self.left -= batch[..written].iter().map(packets_of).sum::<u64>();
        from.truncate(written);
        let blocks: Vec<u32> = from.iter().map(|at| self.rings[*at].interface()).collect();
        self.note(&blocks, false);
        for at in from {
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

/// Returns the epoch of the oldest blocks in rings.
fn oldest_epoch(rings: &[Box<dyn Ring>]) -> Option<u8> {
    let oldest = rings.iter().map(|r| r.peek(0).map_or(r.epoch(), |b| b.contents.epoch));
    oldest.reduce(|a, b| if is_before(b, a) { b } else { a })
}

/// Returns whether an epoch was before another. They are counted modulo 256, and a ring is read
/// before that many have passed.
fn is_before(a: u8, b: u8) -> bool {
    (a.wrapping_sub(b) as i8) < 0
}

fn less(now: Cut, before: Cut) -> Cut {
    Cut { packets: now.packets - before.packets, bytes: now.bytes - before.bytes }
}

fn packets_of(piece: &InterfaceBlock<'_>) -> u64 {
    u64::from(piece.block.contents.packets)
}

/// Cuts a block behind its first `n` packets.
fn first_packets(block: Block<'_>, n: u64) -> Block<'_> {
    if u64::from(block.contents.packets) <= n {
        return block;
    }
    let (mut end, mut packets, mut frame_bytes) = (0, 0, 0);
    for packet in Packets::of(block.bytes).take(n as usize) {
        packets += 1;
        frame_bytes += packet.captured;
        end = packet.end;
    }
    let contents = Contents { packets, frame_bytes, ..block.contents };
    Block { bytes: &block.bytes[..end], contents }
}

/// The heads of the packet blocks in a ring's block, in order.
struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
}

struct PacketHead {
    interface: u32,
    time_ns: u64,
    captured: u32,
    /// Where the packet's block ends in the ring's block.
    end: usize,
}

impl<'a> Packets<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn word(&self, offset: usize) -> Option<u32> {
        let at = self.at + offset;
        self.bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
    }
}

impl Iterator for Packets<'_> {
    type Item = PacketHead;

    fn next(&mut self) -> Option<PacketHead> {
        loop {
            // Type, length, the interface's id, the time as two words, and the captured length.
            let (kind, length) = (self.word(0)?, self.word(4)?);
            if length == 0 {
                return None;
            }
            let head = (self.word(8), self.word(12), self.word(16), self.word(20));
            self.at += length as usize;
            if let (ENHANCED_PACKET, (Some(interface), Some(high), Some(low), Some(captured))) =
                (kind, head)
            {
                let time_ns = u64::from(high) << 32 | u64::from(low);
                return Some(PacketHead { interface, time_ns, captured, end: self.at });
            }
        }
    }
}

enum Turn {
    Wrote,
    Idle,
    Stalled(io::Error),
    Ended,
    Failed(io::Error),
}

/// Writes nothing, for measuring everything before the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome {
        SinkOutcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {}

    fn tick(&mut self, _: &[u64]) {}

    fn finish(&mut self, _: &[u64]) -> io::Result<()> {
        Ok(())
    }
}
