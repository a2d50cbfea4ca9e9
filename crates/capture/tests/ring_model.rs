//! The ring's protocol under a model checker: does it keep every packet whole, whatever order
//! the memory operations of its producers and its reader take?
//!
//! [`Tape`] is a ring of 64-byte blocks in loom's memory. Its shared words are atomics with the
//! orderings that `Memory` asks for. Packets, and what a closed block holds, lie in checked
//! cells: loom fails the test where two threads touch one of them without one happening before
//! the other, that is, where two producers own the same space, or where a reader looks at a
//! block that is still being written or is being written again.
//!
//! The models are bounded to a few preemptions each; `LOOM_MAX_PREEMPTIONS` sets another bound.

use std::cell::{Cell as PlainCell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use loom::cell::Cell;
use loom::sync::Mutex;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;
use tapdeck_capture::ring::{
    Memory, ReadMemory, Reader, Reservation, Reserved, end_hold, flush, reserve, wakes,
};
use tapdeck_packet::pcapng::MIN_FILL;
use tapdeck_packet::ring::{Holds, LastingMemory};

const BLOCK_BYTES: u32 = 64;
/// What packets can take of a block: room for the smallest block that fills space stays free.
const ROOM: u32 = BLOCK_BYTES - MIN_FILL as u32;
const CELL_BYTES: u32 = 4;

struct Slot {
    commit: AtomicU64,
    closed: Cell<(u32, u32)>,
    cells: Vec<Cell<u32>>,
}

struct Tape {
    word: AtomicU64,
    released: AtomicU32,
    /// Whether the reader looks by itself and is not to be woken.
    awake: AtomicBool,
    slots: Vec<Slot>,
    /// Of blocks opened from now on, as `struct td_control` has it.
    epoch: AtomicU32,
    /// Wake-ups that the reader has not taken, as its pipe has them.
    wakes: AtomicU32,
}

/// A tape that threads share. Loom's threads all run on one thread of the system.
#[derive(Clone)]
struct Ring(Rc<Tape>);

/// The parts of a reservation word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    block: u32,
    epoch: u32,
    bytes: u32,
}

impl Open {
    fn of(word: u64) -> Self {
        let low = word as u32;
        Self { block: (word >> 32) as u32, epoch: low >> 24, bytes: low & 0x00ff_ffff }
    }
}

impl Deref for Ring {
    type Target = Tape;

    fn deref(&self) -> &Tape {
        &self.0
    }
}

impl Ring {
    fn new(nblocks: u32) -> Self {
        let slot = || Slot {
            commit: AtomicU64::new(0),
            closed: Cell::new((0, 0)),
            cells: (0..BLOCK_BYTES / CELL_BYTES).map(|_| Cell::new(0)).collect(),
        };
        Self(Rc::new(Tape {
            word: AtomicU64::new(0),
            released: AtomicU32::new(0),
            awake: AtomicBool::new(false),
            slots: (0..nblocks).map(|_| slot()).collect(),
            epoch: AtomicU32::new(0),
            wakes: AtomicU32::new(0),
        }))
    }

    fn open(&self) -> Open {
        Open::of(self.word())
    }

    /// Fills reserved space with cells that tell the packet, its length, its epoch and their place.
    fn write(&self, at: &Reserved, id: u32) {
        assert!(at.offset + at.len <= ROOM, "a packet in the tail");
        let slot = (at.block % self.nblocks()) as usize;
        for i in 0..at.len / CELL_BYTES {
            let place = at.offset / CELL_BYTES + i;
            self.slots[slot].cells[place as usize].set(cell(id, at.len, at.epoch, i));
        }
    }

    /// The id and the length of the packet at `at`, whose every cell must be its own.
    fn packet(&self, slot: u32, at: u32, epoch: u32) -> (u32, u32) {
        let cells = &self.slots[slot as usize].cells[(at / CELL_BYTES) as usize..];
        let first = cells[0].get();
        let (id, len) = (first >> 24, first >> 16 & 0xff);
        assert!(len > 0 && at + len <= ROOM, "no packet at {at}: {first:#x}");
        for i in 0..len / CELL_BYTES {
            let found = cells[i as usize].get();
            assert_eq!(found, cell(id, len, epoch, i), "cell {i} of packet {id}");
        }
        (id, len)
    }
}

fn cell(id: u32, len: u32, epoch: u32, i: u32) -> u32 {
    id << 24 | len << 16 | epoch << 8 | i
}

/// The frame in a packet of `len` bytes: a different number for different packets.
fn frame_bytes(id: u32, len: u32) -> u32 {
    len - id % 8
}

impl ReadMemory for Ring {
    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn nblocks(&self) -> u32 {
        self.slots.len() as u32
    }

    fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    fn committed(&self, slot: u32) -> u64 {
        self.slots[slot as usize].commit.load(Acquire)
    }

    fn closed(&self, slot: u32) -> (u32, u32) {
        self.slots[slot as usize].closed.get()
    }

    fn released(&self) -> u32 {
        self.released.load(Acquire)
    }

    fn set_released(&self, block: u32) {
        self.released.store(block, Release);
        fence(SeqCst);
    }

    fn set_awake(&self, is_awake: bool) {
        self.awake.store(is_awake, Relaxed);
        fence(SeqCst);
    }
}

impl Memory for Ring {
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64> {
        self.word.compare_exchange(old, new, AcqRel, Acquire).map(|_| ())
    }

    fn commit(&self, slot: u32, n: u64) -> u64 {
        self.slots[slot as usize].commit.fetch_add(n, AcqRel).wrapping_add(n)
    }

    fn set_closed(&self, slot: u32, used: u32, epoch: u32) {
        self.slots[slot as usize].closed.set((used, epoch));
    }

    fn completed(&self, block: u32) {
        // The addition to the counter is a full barrier in the programs.
        fence(SeqCst);
        if wakes(block, self.released.load(Relaxed), self.awake.load(Relaxed)) {
            self.wakes.fetch_add(1, AcqRel);
        }
    }
}

/// Reserves, writes and commits a packet. Returns whether there was space.
fn send(memory: &impl Memory, ring: &Ring, id: u32, len: u32) -> bool {
    match reserve(memory, len, ring.epoch.load(Relaxed)) {
        Reservation::Done(at) => {
            assert_eq!(at.len, len);
            ring.write(&at, id);
            at.commit(memory, frame_bytes(id, len), 1);
            true
        }
        Reservation::Full => false,
        Reservation::Contended => {
            panic!("a handful of reservations cannot fail each other 64 times")
        }
    }
}

/// Sends packets in order. Returns those that found space.
fn send_all(ring: &Ring, packets: &[(u32, u32)]) -> Vec<u32> {
    packets.iter().filter(|(id, len)| send(ring, ring, *id, *len)).map(|(id, _)| *id).collect()
}

/// The packet that only fills space.
const FILL: u32 = 0;

/// Space for several packets that was reserved by one swap and is committed by one addition, as
/// `bpf/claim.h` has it.
struct Claim {
    block: u32,
    epoch: u32,
    begin: u32,
    at: u32,
    end: u32,
    frame_bytes: u32,
    packets: u32,
}

impl Claim {
    /// One try: whoever has to wait, or finds no room, reserves for a packet alone.
    fn make(memory: &impl Memory, len: u32) -> Option<Self> {
        let word = memory.word();
        let Open { block, epoch, bytes } = Open::of(word);
        let fits = bytes + len <= ROOM && memory.swap_word(word, word + u64::from(len)).is_ok();
        let (at, end) = (bytes, bytes + len);
        fits.then_some(Self { block, epoch, begin: at, at, end, frame_bytes: 0, packets: 0 })
    }

    /// Writes a packet, if there is room for it and for filling behind it.
    fn take(&mut self, ring: &Ring, id: u32, len: u32) -> bool {
        let room = self.end - self.at;
        let holds = room == len || room >= len + MIN_FILL as u32;
        if holds {
            ring.write(&self.space(self.at, len), id);
            self.at += len;
            self.frame_bytes += frame_bytes(id, len);
            self.packets += 1;
        }
        holds
    }

    /// Commits, and moves the word back to what was used, or fills the rest.
    fn settle(mut self, memory: &impl Memory, ring: &Ring) {
        let word = |bytes| u64::from(self.block) << 32 | u64::from(self.epoch << 24 | bytes);
        if self.at != self.end && memory.swap_word(word(self.end), word(self.at)).is_err() {
            ring.write(&self.space(self.at, self.end - self.at), FILL);
            self.at = self.end;
        }
        let space = self.space(self.begin, self.at - self.begin);
        space.commit(memory, self.frame_bytes, self.packets);
    }

    fn space(&self, offset: u32, len: u32) -> Reserved {
        Reserved { block: self.block, offset, len, epoch: self.epoch }
    }
}

/// Sends packets of one poll in order, with a claim of so many bytes as long as that holds them.
/// Returns those that found space.
fn send_claimed(memory: &impl Memory, ring: &Ring, bytes: u32, packets: &[(u32, u32)]) -> Vec<u32> {
    let mut claim = Claim::make(memory, bytes);
    let mut sent = Vec::new();
    for &(id, len) in packets {
        let is_taken = claim.as_mut().is_some_and(|claim| claim.take(ring, id, len));
        if !is_taken && let Some(claim) = claim.take() {
            claim.settle(memory, ring);
        }
        if is_taken || send(memory, ring, id, len) {
            sent.push(id);
        }
    }
    if let Some(claim) = claim {
        claim.settle(memory, ring);
    }
    sent
}

/// Whoever empties the ring, and the packets it got.
struct Consumer {
    ring: Ring,
    reader: Reader<Ring>,
    holds: Rc<Mutex<Holds>>,
    packets: Vec<u32>,
}

impl Consumer {
    fn new(ring: &Ring) -> Self {
        let reader = Reader::new(ring.clone());
        let holds = Rc::new(Mutex::new(reader.holds()));
        Self { ring: ring.clone(), reader, holds, packets: Vec::new() }
    }

    /// Reads every complete block that is next in line, then releases them together. Returns
    /// whether there were any.
    fn poll(&mut self) -> bool {
        let mut blocks = 0;
        while let Some((slot, used, contents)) = self.reader.peek(blocks) {
            let (mut at, mut packets, mut bytes) = (0, 0, 0);
            while at < used {
                let (id, len) = self.ring.packet(slot, at, u32::from(contents.epoch));
                at += len;
                if id != FILL {
                    self.packets.push(id);
                    packets += 1;
                    bytes += frame_bytes(id, len);
                }
            }
            assert_eq!(at, used, "packets fill the used part of a block");
            assert_eq!((contents.packets, contents.frame_bytes), (packets, bytes));
            blocks += 1;
        }
        if blocks > 0 {
            self.reader.release(blocks, &mut self.holds.lock().unwrap());
        }
        blocks > 0
    }

    /// Does what a reader does before it sleeps: polls until nothing is there.
    fn poll_all(&mut self) {
        while self.poll() {}
    }

    /// Takes what is left once all producers are done, and returns all packets that came, sorted.
    fn finish(mut self) -> Vec<u32> {
        self.poll();
        assert!(self.reader.caught_up(), "a closed block never became complete");
        let open = self.ring.open();
        assert_eq!(flush(&self.ring, open.block, open.epoch), open.bytes > 0);
        self.poll();
        assert!(self.reader.caught_up(), "a flushed block never became complete");
        assert_eq!(self.ring.open().bytes, 0);
        self.packets.sort_unstable();
        self.packets
    }
}

fn sorted(parts: impl IntoIterator<Item = Vec<u32>>) -> Vec<u32> {
    let mut all: Vec<u32> = parts.into_iter().flatten().collect();
    all.sort_unstable();
    all
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(run);
}

/// Runs two producers against each other and against a reader that looks twice, and returns
/// what was sent and what came.
fn race(ring: &Ring, a: &'static [(u32, u32)], b: &'static [(u32, u32)]) -> (Vec<u32>, Vec<u32>) {
    let mut consumer = Consumer::new(ring);
    let producers = [a, b].map(|packets| {
        let ring = ring.clone();
        thread::spawn(move || send_all(&ring, packets))
    });
    for _ in 0..2 {
        consumer.poll();
        thread::yield_now();
    }
    let sent = sorted(producers.map(|p| p.join().unwrap()));
    (sent, consumer.finish())
}

#[test]
fn packets_of_two_producers_arrive_once_and_whole() {
    model(3, || {
        let ring = Ring::new(2);
        let (sent, came) = race(&ring, &[(1, 24), (2, 32)], &[(3, 24), (4, 24)]);
        assert_eq!(came, sent);
    });
}

#[test]
fn packets_that_each_need_a_block_arrive_once_and_whole() {
    model(3, || {
        let ring = Ring::new(2);
        let (sent, came) = race(&ring, &[(1, ROOM), (2, ROOM)], &[(3, 32), (4, 40)]);
        assert_eq!(came, sent);
        // One block for each packet that found space; finishing has closed the last.
        assert_eq!(ring.open(), Open { block: sent.len() as u32, epoch: 0, bytes: 0 });
    });
}

#[test]
fn a_ring_with_space_is_never_called_full() {
    model(2, || {
        let ring = Ring::new(4);
        let (sent, came) = race(&ring, &[(1, ROOM), (2, ROOM), (3, ROOM)], &[(4, ROOM)]);
        assert_eq!(sent, [1, 2, 3, 4]);
        assert_eq!(came, sent);
    });
}

#[test]
fn a_full_ring_keeps_its_word_and_takes_packets_again_after_one_release() {
    model(3, || {
        let ring = Ring::new(2);
        let mut consumer = Consumer::new(&ring);
        assert_eq!(send_all(&ring, &[(1, ROOM), (2, 40)]), [1, 2]);
        let full = ring.word();

        let producers = [[(3, ROOM), (4, 16)], [(5, 32), (6, 40)]].map(|packets| {
            let ring = ring.clone();
            thread::spawn(move || send_all(&ring, &packets))
        });
        let sent = sorted(producers.map(|p| p.join().unwrap()));
        assert_eq!(sent, [0u32; 0], "both blocks are in use");
        assert_eq!(ring.word(), full);

        // The first block is complete, the second still open.
        consumer.poll();
        assert_eq!(consumer.packets, [1]);
        let Reservation::Done(at) = reserve(&ring, ROOM, 0) else {
            panic!("a block has been released")
        };
        assert_eq!(at, Reserved { block: 2, offset: 0, len: ROOM, epoch: 0 });
        ring.write(&at, 7);
        at.commit(&ring, frame_bytes(7, ROOM), 1);
        assert_eq!(consumer.finish(), [1, 2, 7]);
    });
}

#[test]
fn drops_at_a_full_ring_are_exact_while_the_reader_releases() {
    model(3, || {
        let ring = Ring::new(2);
        assert_eq!(send_all(&ring, &[(1, ROOM), (2, ROOM)]), [1, 2]);
        let (mut sent, came) = race(&ring, &[(3, ROOM)], &[(4, ROOM), (5, ROOM)]);
        sent.splice(0..0, [1, 2]);
        assert_eq!(came, sent);
        // A drop has not moved the word: it counts the packets that found space, no others.
        assert_eq!(ring.open(), Open { block: sent.len() as u32, epoch: 0, bytes: 0 });
    });
}

#[test]
fn a_block_used_again_waits_for_the_reader_whichever_producer_writes_to_it() {
    model(3, || {
        let ring = Ring::new(2);
        assert_eq!(send_all(&ring, &[(1, ROOM), (2, ROOM)]), [1, 2]);
        // One of them opens the block that the reader has released; the other joins it there,
        // and knows of the release from the word alone.
        let (mut sent, came) = race(&ring, &[(3, 24)], &[(4, 24)]);
        sent.splice(0..0, [1, 2]);
        assert_eq!(came, sent);
    });
}

/// A reader that finds nothing sleeps until it is woken. It does not sleep beside a complete block
/// that it waits for, whichever producer was the last to commit to that block, in whichever order
/// the blocks have become complete.
#[test]
fn a_reader_that_sleeps_is_woken_when_the_block_is_complete_that_it_waits_for() {
    model(3, || {
        let ring = Ring::new(4);
        let mut consumer = Consumer::new(&ring);
        let producers = [[(1, 24), (2, 32)], [(3, 24), (4, 24)]].map(|packets| {
            let ring = ring.clone();
            thread::spawn(move || send_all(&ring, &packets))
        });
        for _ in 0..2 {
            ring.wakes.swap(0, AcqRel);
            consumer.poll_all();
            thread::yield_now();
        }
        let sent = sorted(producers.map(|producer| producer.join().unwrap()));
        let sleeps = ring.wakes.load(Acquire) == 0;
        assert!(!sleeps || consumer.reader.peek(0).is_none(), "it sleeps beside a complete block");
        assert_eq!(consumer.finish(), sent);
    });
}

#[test]
fn each_block_wakes_the_reader_once_however_often_its_slot_is_used() {
    model(2, || {
        let ring = Ring::new(2);
        let mut consumer = Consumer::new(&ring);
        for id in 1..=5 {
            assert_eq!(send_all(&ring, &[(id, 24), (id, 20)]), [id, id]);
            assert_eq!(ring.wakes.load(Acquire), id - 1);
            consumer.poll();
        }
        let open = ring.open();
        assert!(flush(&ring, open.block, open.epoch));
        assert_eq!(ring.wakes.load(Acquire), 5);
    });
}

#[test]
fn a_reader_that_is_behind_is_woken_once_and_again_when_it_has_caught_up() {
    model(2, || {
        let ring = Ring::new(8);
        let mut consumer = Consumer::new(&ring);
        for id in 1..=5 {
            assert_eq!(send_all(&ring, &[(id, ROOM)]), [id]);
        }
        // Four blocks are complete, the first of which is the one that it waits for.
        assert_eq!(ring.wakes.load(Acquire), 1);
        consumer.poll_all();
        assert_eq!(send_all(&ring, &[(6, ROOM)]), [6]);
        assert_eq!(ring.wakes.load(Acquire), 2);
    });
}

/// A reader that looks by itself is to be woken only while it rests, and then for the next block.
#[test]
fn a_reader_that_rests_is_woken_when_the_next_block_is_complete() {
    model(3, || {
        let ring = Ring::new(4);
        ring.set_awake(true);
        let mut consumer = Consumer::new(&ring);
        let producers = [[(1, 24), (2, 32)], [(3, 24), (4, 24)]].map(|packets| {
            let ring = ring.clone();
            thread::spawn(move || send_all(&ring, &packets))
        });
        let mut rests = false;
        for _ in 0..2 {
            consumer.poll_all();
            ring.wakes.swap(0, AcqRel);
            rests = consumer.reader.rest(&consumer.holds.lock().unwrap());
            if !rests {
                ring.set_awake(true);
            }
            thread::yield_now();
        }
        let sent = sorted(producers.map(|producer| producer.join().unwrap()));
        let sleeps = rests && ring.wakes.load(Acquire) == 0;
        assert!(!sleeps || consumer.reader.peek(0).is_none(), "it sleeps beside a complete block");
        assert_eq!(consumer.finish(), sent);
    });
}

#[test]
fn a_reader_whose_blocks_are_held_does_not_rest() {
    model(2, || {
        let ring = Ring::new(4);
        let mut consumer = Consumer::new(&ring);
        assert_eq!(send_all(&ring, &[(1, ROOM), (2, ROOM)]), [1, 2]);
        let held = consumer.holds.lock().unwrap().hold(0);
        assert!(!consumer.reader.rest(&consumer.holds.lock().unwrap()), "a block is there");
        consumer.poll_all();
        assert!(!consumer.reader.rest(&consumer.holds.lock().unwrap()), "it is held");
        end_hold(&ring, &mut consumer.holds.lock().unwrap(), held);
        assert!(consumer.reader.rest(&consumer.holds.lock().unwrap()));
        assert_eq!(send_all(&ring, &[(3, ROOM)]), [3]);
        assert_eq!(ring.wakes.swap(0, AcqRel), 2, "the first block, and the one it rests for");
    });
}

#[test]
fn a_reader_that_stays_awake_is_never_woken() {
    model(2, || {
        let ring = Ring::new(2);
        ring.awake.store(true, Relaxed);
        let mut consumer = Consumer::new(&ring);
        for id in 1..=5 {
            assert_eq!(send_all(&ring, &[(id, ROOM)]), [id]);
            consumer.poll_all();
        }
        assert_eq!(ring.wakes.load(Acquire), 0);
    });
}

/// What a CPU does to a ring.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send(u32, u32),
    /// Two packets of one poll, with a claim of so many bytes.
    Claim(u32, [(u32, u32); 2]),
    Flush,
}

impl Act {
    /// Returns the packets that were sent.
    fn perform(self, memory: &impl Memory, ring: &Ring) -> Vec<u32> {
        match self {
            Self::Send(id, len) => send(memory, ring, id, len).then_some(id).into_iter().collect(),
            Self::Claim(bytes, packets) => send_claimed(memory, ring, bytes, &packets),
            Self::Flush => {
                let open = ring.open();
                flush(memory, open.block, open.epoch);
                Vec::new()
            }
        }
    }
}

/// A ring whose user is interrupted before its memory operation number `before`: another
/// producer on the same CPU runs from beginning to end, as a hook in a soft interrupt does.
struct Interrupted<'a, F> {
    ring: &'a Ring,
    before: PlainCell<u32>,
    interrupt: RefCell<Option<F>>,
}

impl<F: FnOnce()> Interrupted<'_, F> {
    fn step(&self) -> &Ring {
        let left = self.before.get();
        if left > 0 {
            self.before.set(left - 1);
        } else if let Some(interrupt) = self.interrupt.take() {
            interrupt();
        }
        self.ring
    }
}

impl<F: FnOnce()> ReadMemory for Interrupted<'_, F> {
    fn block_bytes(&self) -> u32 {
        self.ring.block_bytes()
    }

    fn nblocks(&self) -> u32 {
        self.ring.nblocks()
    }

    fn word(&self) -> u64 {
        ReadMemory::word(self.step())
    }

    fn committed(&self, slot: u32) -> u64 {
        self.step().committed(slot)
    }

    fn closed(&self, slot: u32) -> (u32, u32) {
        self.step().closed(slot)
    }

    fn released(&self) -> u32 {
        ReadMemory::released(self.step())
    }

    fn set_released(&self, block: u32) {
        self.step().set_released(block);
    }
}

impl<F: FnOnce()> Memory for Interrupted<'_, F> {
    fn swap_word(&self, old: u64, new: u64) -> Result<(), u64> {
        self.step().swap_word(old, new)
    }

    fn commit(&self, slot: u32, n: u64) -> u64 {
        self.step().commit(slot, n)
    }

    fn set_closed(&self, slot: u32, used: u32, epoch: u32) {
        self.step().set_closed(slot, used, epoch);
    }

    fn completed(&self, block: u32) {
        self.step().completed(block);
    }
}

/// Models `outer` interrupted by `nested` before its operation number `before`, on a ring of
/// three blocks whose open one holds a packet of 24 bytes, with a reader at work. Returns whether
/// `outer` has so many operations.
fn interrupted(outer: Act, nested: Act, before: u32) -> bool {
    let reached = Arc::new(AtomicBool::new(false));
    let reached_here = reached.clone();
    model(3, move || {
        let ring = Ring::new(3);
        assert_eq!(send_all(&ring, &[(1, 24)]), [1]);
        let theirs = ring.clone();
        let consumer = thread::spawn(move || {
            let mut consumer = Consumer::new(&theirs);
            for _ in 0..2 {
                consumer.poll();
                thread::yield_now();
            }
            consumer
        });

        let from_nested = PlainCell::new(Vec::new());
        let memory = Interrupted {
            ring: &ring,
            before: PlainCell::new(before),
            interrupt: RefCell::new(Some(|| from_nested.set(nested.perform(&ring, &ring)))),
        };
        let from_outer = outer.perform(&memory, &ring);
        if memory.interrupt.into_inner().is_none() {
            reached_here.store(true, Relaxed);
        }

        let sent = [1].into_iter().chain(from_outer).chain(from_nested.take()).collect();
        assert_eq!(consumer.join().unwrap().finish(), sorted([sent]));
    });
    reached.load(Relaxed)
}

/// Interrupts `outer` before each of its memory operations in turn, and returns how many it has.
fn operations(outer: Act, nested: Act) -> u32 {
    (0..64).find(|before| !interrupted(outer, nested, *before)).expect("few operations")
}

#[test]
fn a_producer_may_be_interrupted_anywhere_by_another() {
    for nested in [Act::Send(3, 24), Act::Send(3, ROOM)] {
        // The word is loaded, swapped, and the packet committed.
        assert!(operations(Act::Send(2, 24), nested) >= 3, "{nested:?}");
        // And the other block is looked for, the full one closed in two steps.
        assert!(operations(Act::Send(2, 32), nested) >= 6, "{nested:?}");
    }
}

#[test]
fn a_producer_may_be_interrupted_anywhere_by_a_flush() {
    assert!(operations(Act::Send(2, 24), Act::Flush) >= 3);
    assert!(operations(Act::Send(2, 32), Act::Flush) >= 6);
}

#[test]
fn a_flush_may_be_interrupted_anywhere_by_a_producer() {
    for nested in [Act::Send(3, 24), Act::Send(3, ROOM)] {
        assert!(operations(Act::Flush, nested) >= 5, "{nested:?}");
    }
}

#[test]
fn whoever_has_a_claim_may_be_interrupted_anywhere() {
    // All of a claim is used, some is left, or the second packet finds no room there.
    let claims = [(24, [(2, 12), (3, 12)]), (28, [(2, 12), (3, 16)]), (28, [(2, 16), (3, 32)])];
    let left = Act::Claim(28, [(2, 12), (3, 4)]);
    for claim in claims.map(|(bytes, packets)| Act::Claim(bytes, packets)).into_iter().chain([left])
    {
        for nested in [Act::Send(4, 16), Act::Send(4, ROOM), Act::Flush] {
            // The word is loaded and swapped, perhaps swapped back, and the packets committed.
            assert!(operations(claim, nested) >= 3, "{claim:?} {nested:?}");
        }
    }
}

/// Runs a producer with claims against one without, a reader that looks twice, and a flush.
#[test]
fn packets_of_a_claim_arrive_once_and_whole() {
    for bytes in [24, 40] {
        model(2, move || {
            let ring = Ring::new(3);
            let mut consumer = Consumer::new(&ring);
            let theirs = ring.clone();
            let polls = move || send_claimed(&theirs, &theirs, bytes, &[(1, 12), (2, 12)]);
            let theirs = ring.clone();
            let other = move || send_all(&theirs, &[(3, 16)]);
            let theirs = ring.clone();
            let flusher = move || {
                flush(&theirs, 0, 0);
                Vec::new()
            };
            let threads = [thread::spawn(polls), thread::spawn(other), thread::spawn(flusher)];
            for _ in 0..2 {
                consumer.poll();
                thread::yield_now();
            }
            let sent = sorted(threads.map(|thread| thread.join().unwrap()));
            assert_eq!(sent, [1, 2, 3]);
            assert_eq!(consumer.finish(), sent);
        });
    }
}

#[test]
fn what_is_left_of_a_claim_is_given_back() {
    model(3, || {
        let ring = Ring::new(2);
        assert_eq!(send_claimed(&ring, &ring, 40, &[(1, 12), (2, 12)]), [1, 2]);
        assert_eq!(ring.open(), Open { block: 0, epoch: 0, bytes: 24 });
        // Where others have reserved behind it, it is filled.
        let mut claim = Claim::make(&ring, 28).expect("there is room");
        assert!(claim.take(&ring, 3, 12));
        assert!(!claim.take(&ring, 4, 8), "no room for filling would be left");
        flush(&ring, 0, 0);
        claim.settle(&ring, &ring);
        assert_eq!(Consumer::new(&ring).finish(), [1, 2, 3]);
    });
}

#[test]
fn a_claim_keeps_its_epoch() {
    model(3, || {
        let ring = Ring::new(4);
        let mut consumer = Consumer::new(&ring);
        let theirs = ring.clone();
        let producer =
            thread::spawn(move || send_claimed(&theirs, &theirs, 40, &[(1, 12), (2, 24)]));
        let theirs = ring.clone();
        let clock = thread::spawn(move || {
            theirs.epoch.store(1, Relaxed);
            flush(&theirs, theirs.open().block, 1);
        });
        consumer.poll();
        assert_eq!(producer.join().unwrap(), [1, 2]);
        clock.join().unwrap();
        assert_eq!(consumer.finish(), [1, 2]);
    });
}

#[test]
fn a_flush_takes_a_block_from_under_its_producers() {
    model(3, || {
        let ring = Ring::new(3);
        let mut consumer = Consumer::new(&ring);
        assert_eq!(send_all(&ring, &[(1, 16)]), [1]);
        let theirs = ring.clone();
        let producer = thread::spawn(move || send_all(&theirs, &[(2, 24), (3, 24)]));
        let theirs = ring.clone();
        let flusher = thread::spawn(move || flush(&theirs, 0, 0));
        for _ in 0..2 {
            consumer.poll();
            thread::yield_now();
        }
        assert_eq!(producer.join().unwrap(), [2, 3], "three blocks hold them in any order");
        let closed = flusher.join().unwrap();
        // 16 + 24 bytes close together, and the next 24 do not fit behind them. The flush and
        // that packet compete for closing the first block: it is done once.
        let open = ring.open();
        match (open.block, open.bytes) {
            // The producer closed it, or the flush did between the producer's packets.
            (1, 24) => {}
            // The flush did, before the producer's first packet.
            (1, 48) => assert!(closed),
            other => panic!("{other:?}"),
        }
        assert_eq!(consumer.finish(), [1, 2, 3]);
    });
}

#[test]
fn of_two_flushes_one_closes_the_block() {
    model(3, || {
        let ring = Ring::new(3);
        let mut consumer = Consumer::new(&ring);
        assert_eq!(send_all(&ring, &[(1, 16)]), [1]);
        let flushers = [(); 2].map(|()| {
            let ring = ring.clone();
            thread::spawn(move || flush(&ring, 0, 0))
        });
        consumer.poll();
        let closed = flushers.map(|f| f.join().unwrap());
        assert!(closed[0] ^ closed[1], "{closed:?}");
        assert_eq!(ring.open(), Open { block: 1, epoch: 0, bytes: 0 });
        consumer.poll();
        assert_eq!(consumer.packets, [1]);
    });
}

#[test]
fn a_flush_leaves_an_empty_block_and_one_it_does_not_know() {
    model(3, || {
        let ring = Ring::new(2);
        let before = ring.word();
        assert!(!flush(&ring, 0, 0));
        assert_eq!(ring.word(), before, "an empty block of the same epoch");
        assert_eq!(send_all(&ring, &[(1, ROOM), (2, 24)]), [1, 2]);
        let before = ring.word();
        assert!(!flush(&ring, 0, 0), "closed already");
        assert!(!flush(&ring, 1, 0), "the next one is not free");
        assert_eq!(ring.word(), before);
    });
}

#[test]
fn what_is_committed_of_an_open_block_can_be_read_while_more_is_written() {
    model(3, || {
        let ring = Ring::new(2);
        let consumer = Consumer::new(&ring);
        // Of one length: what one has reserved must not pass for what the other has committed.
        let theirs = ring.clone();
        let other = ring.clone();
        let producers = [
            thread::spawn(move || send_all(&theirs, &[(1, 24)])),
            thread::spawn(move || send_claimed(&other, &other, 28, &[(2, 16)])),
        ];
        for _ in 0..2 {
            if let Some((slot, bytes)) = consumer.reader.peek_open(0) {
                let mut at = 0;
                while at < bytes {
                    at += ring.packet(slot, at, 0).1;
                }
                assert_eq!(at, bytes, "packets fill what is readable");
            }
            thread::yield_now();
        }
        let sent = sorted(producers.map(|p| p.join().unwrap()));
        // What is left of the claim was given back, or filled.
        assert!(matches!(consumer.reader.peek_open(0), Some((0, 40 | 52))));
        assert_eq!(consumer.reader.peek_open(1), None, "that is not the open block");
        assert_eq!(consumer.finish(), sent);
    });
}

/// Changes the epoch while a producer sends two packets. That no block mixes epochs is what
/// [`Consumer::packet`] asserts.
fn change_epoch(ring: &Ring, first: &[(u32, u32)]) {
    let mut consumer = Consumer::new(ring);
    assert_eq!(send_all(ring, first).len(), first.len());
    let theirs = ring.clone();
    let producer = thread::spawn(move || send_all(&theirs, &[(2, 24), (3, 32)]));
    let theirs = ring.clone();
    let clock = thread::spawn(move || {
        theirs.epoch.store(1, Relaxed);
        flush(&theirs, theirs.open().block, 1);
    });
    for _ in 0..2 {
        consumer.poll();
        thread::yield_now();
    }
    assert_eq!(producer.join().unwrap(), [2, 3]);
    clock.join().unwrap();

    // A producer that had read the old epoch may have opened a block with it after the flush.
    let open = ring.open();
    if open.epoch == 0 {
        flush(ring, open.block, 1);
    }
    assert_eq!(consumer.reader.open_epoch(), 1);
    assert_eq!(send_all(ring, &[(4, 24)]), [4]);
    assert_eq!(consumer.reader.open_epoch(), 1);
    let mut all: Vec<u32> = first.iter().map(|(id, _)| *id).collect();
    all.extend([2, 3, 4]);
    assert_eq!(consumer.finish(), all);
}

#[test]
fn an_epoch_that_changes_in_an_empty_ring_never_mixes_with_the_old() {
    model(3, || change_epoch(&Ring::new(4), &[]));
}

#[test]
fn an_epoch_that_changes_in_a_part_filled_block_never_mixes_with_the_old() {
    model(3, || change_epoch(&Ring::new(4), &[(1, 16)]));
}

/// Holds the oldest block for a thread of its own, while the reader releases it and all others and
/// a producer wants it.
fn hold_while_others_go_on(nblocks: u32, first: &[(u32, u32)], then: &'static [(u32, u32)]) {
    let ring = Ring::new(nblocks);
    let mut sent = send_all(&ring, first);
    let mut consumer = Consumer::new(&ring);
    let (slot, used, contents) = consumer.reader.peek(0).expect("the first block is closed");
    let block = consumer.holds.lock().unwrap().hold(0);
    let theirs = (ring.clone(), consumer.holds.clone());
    let holder = thread::spawn(move || {
        let (ring, holds) = theirs;
        let stays = holds.lock().unwrap().read(block);
        if stays {
            assert_eq!(ring.packet(slot, 0, u32::from(contents.epoch)), (1, used));
        }
        end_hold(&ring, &mut holds.lock().unwrap(), block);
    });
    let theirs = ring.clone();
    let producer = thread::spawn(move || send_all(&theirs, then));
    for _ in 0..2 {
        consumer.poll();
        thread::yield_now();
    }
    holder.join().unwrap();
    sent.extend(producer.join().unwrap());
    assert_eq!(consumer.finish(), sent);
    assert_eq!(ring.released.load(Relaxed), ring.open().block, "nothing is kept for ever");
}

#[test]
fn a_held_block_is_written_again_only_when_it_was_read() {
    model(3, || hold_while_others_go_on(2, &[(1, ROOM), (2, ROOM)], &[(3, ROOM)]));
}

#[test]
fn a_hold_that_lapses_is_never_read() {
    // The second block is released behind the first, which the ring waits for no longer.
    let blocks = &[(1, ROOM), (2, ROOM), (3, 24)];
    model(3, || hold_while_others_go_on(3, blocks, &[(4, ROOM), (5, ROOM)]));
}

/// What the owners of a ring leave behind them: their log, and the record that says how much of it
/// counts and which block comes next.
#[derive(Default)]
struct Legacy {
    log: RefCell<Vec<u32>>,
    recorded: PlainCell<(usize, u32)>,
    /// Each slot's commit counter when its block was last released.
    noted: RefCell<Vec<u64>>,
}

/// The ring as an owner has it who dies: stores nothing any more when its steps are used up.
#[derive(Clone)]
struct Mortal {
    ring: Ring,
    legacy: Rc<Legacy>,
    steps: Rc<PlainCell<u32>>,
}

impl Mortal {
    fn new(ring: &Ring, legacy: &Rc<Legacy>, steps: u32) -> Self {
        let steps = Rc::new(PlainCell::new(steps));
        Self { ring: ring.clone(), legacy: legacy.clone(), steps }
    }

    fn store(&self, store: impl FnOnce()) {
        if self.lives() {
            self.steps.set(self.steps.get() - 1);
            store();
        }
    }

    fn lives(&self) -> bool {
        self.steps.get() > 0
    }
}

impl ReadMemory for Mortal {
    fn block_bytes(&self) -> u32 {
        self.ring.block_bytes()
    }

    fn nblocks(&self) -> u32 {
        self.ring.nblocks()
    }

    fn word(&self) -> u64 {
        ReadMemory::word(&self.ring)
    }

    fn committed(&self, slot: u32) -> u64 {
        self.ring.committed(slot)
    }

    fn closed(&self, slot: u32) -> (u32, u32) {
        self.ring.closed(slot)
    }

    fn released(&self) -> u32 {
        ReadMemory::released(&self.ring)
    }

    fn set_released(&self, block: u32) {
        self.store(|| self.ring.set_released(block));
    }

    fn note_taken(&self, slot: u32, _: u64, committed: u64) {
        self.store(|| self.legacy.noted.borrow_mut()[slot as usize] = committed);
    }
}

impl LastingMemory for Mortal {
    fn noted(&self, slot: u32) -> u64 {
        self.legacy.noted.borrow()[slot as usize]
    }
}

/// Whoever writes what the ring has into the log, and may die at any of its stores.
struct OwnerOfRing {
    memory: Mortal,
    reader: Reader<Mortal>,
    holds: Holds,
}

impl OwnerOfRing {
    /// Takes a ring over: of the log counts what is recorded.
    fn come(memory: Mortal) -> Self {
        let (len, next) = memory.legacy.recorded.get();
        memory.legacy.log.borrow_mut().truncate(len);
        let reader = Reader::resume(memory.clone(), next).expect("a sound record");
        Self { memory, holds: reader.holds(), reader }
    }

    /// Writes the complete blocks, one batch; then records it, and then releases the blocks.
    /// Where `hold`, the last block of the batch is held beyond that.
    fn poll(&mut self, hold: bool) {
        if !self.memory.lives() {
            return;
        }
        let legacy = self.memory.legacy.clone();
        let (mut blocks, mut batch) = (0, Vec::new());
        while let Some((slot, used, contents)) = self.reader.peek(blocks) {
            let (mut at, mut packets, mut bytes) = (0, 0, 0);
            while at < used {
                let (id, len) = self.memory.ring.packet(slot, at, u32::from(contents.epoch));
                batch.push(id);
                (at, packets, bytes) = (at + len, packets + 1, bytes + frame_bytes(id, len));
            }
            assert_eq!((contents.packets, contents.frame_bytes), (packets, bytes));
            blocks += 1;
        }
        if blocks == 0 {
            return;
        }
        self.memory.store(|| legacy.log.borrow_mut().extend(batch));
        let next = legacy.recorded.get().1.wrapping_add(blocks);
        self.memory.store(|| legacy.recorded.set((legacy.log.borrow().len(), next)));
        if hold {
            let block = self.holds.hold(blocks - 1);
            assert!(self.holds.read(block), "it has just begun");
        }
        self.reader.release(blocks, &mut self.holds);
    }
}

/// Models an owner that dies after so many stores, while a producer is at work, and another that
/// comes. Returns whether the first has died before it was done.
fn owner_dies(after: u32, hold: bool, packets: &'static [(u32, u32)]) -> bool {
    let died = Arc::new(AtomicBool::new(false));
    let died_here = died.clone();
    model(2, move || {
        let ring = Ring::new(2);
        let legacy = Rc::new(Legacy { noted: RefCell::new(vec![0; 2]), ..Legacy::default() });
        let theirs = ring.clone();
        let producer = thread::spawn(move || send_all(&theirs, packets));
        let mut first = OwnerOfRing::come(Mortal::new(&ring, &legacy, after));
        for _ in 0..3 {
            first.poll(hold);
            thread::yield_now();
        }
        if !first.memory.lives() {
            died_here.store(true, Relaxed);
        }
        let mut second = OwnerOfRing::come(Mortal::new(&ring, &legacy, u32::MAX));
        second.poll(false);
        let sent = producer.join().unwrap();
        second.poll(false);
        let open = ring.open();
        assert_eq!(flush(&ring, open.block, open.epoch), open.bytes > 0);
        second.poll(false);
        assert!(second.reader.caught_up(), "a block never became complete");
        assert_eq!(sorted([legacy.log.borrow().clone()]), sent, "each packet once");
    });
    died.load(Relaxed)
}

#[test]
fn an_owner_may_die_anywhere_and_another_goes_on() {
    // Two slots, used again and again: what is noted of a slot must be of its present use.
    let packets = &[(1, ROOM), (2, 40), (3, ROOM), (4, 24)];
    for hold in [false, true] {
        let deaths = (1..64).find(|after| !owner_dies(*after, hold, packets));
        // Written, recorded, noted, released.
        assert!(deaths.expect("few stores") > 4);
    }
}
