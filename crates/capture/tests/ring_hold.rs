//! A block of a ring in shared memory that somebody holds: nobody writes over it, and the ring goes
//! on behind it.

use std::sync::Arc;

use tapdeck_capture::Clock;
use tapdeck_capture::ring::{Geometry, Packet, Producer, RingMemory, RingReader, socket_ring};
use tapdeck_packet::ring::{Hold, Ring};

const BLOCK: u64 = 64 << 10;
const BLOCKS: u32 = 8;

struct Scene {
    producer: Producer,
    reader: RingReader,
    memory: Arc<RingMemory>,
    sent: u32,
}

impl Scene {
    fn new() -> Self {
        let geometry = Geometry::new(u64::from(BLOCKS) * BLOCK, BLOCK, 1, 1500).unwrap();
        let memory = socket_ring(geometry).unwrap().remove(0);
        let producer = Producer::new(memory.clone(), Arc::new(Clock::default()), 0);
        let reader = RingReader::new(memory.clone(), 0);
        Self { producer, reader, memory, sent: 0 }
    }

    /// Sends a packet that is another one than those before.
    fn send(&mut self) {
        self.sent += 1;
        let frame = self.sent.to_be_bytes().repeat(300);
        let original_len = frame.len() as u32;
        let (time_ns, tag, flags) = (0, None, 0);
        self.producer.push(&Packet { time_ns, frame: &frame, tag, original_len, flags });
    }

    /// Sends until a further block is closed, or nothing fits any more.
    fn close_block(&mut self) {
        let open = self.memory.open_block().0;
        while self.memory.open_block().0 == open && self.reader.lost() == 0 {
            self.send();
        }
    }

    fn hold(&self, ahead: u32) -> Box<dyn Hold> {
        self.reader.hold(ahead).expect("the block is complete")
    }
}

#[test]
fn a_block_that_is_read_is_not_written_over() {
    let mut scene = Scene::new();
    scene.close_block();
    let before = scene.reader.peek(0).unwrap().bytes.to_vec();
    let mut hold = scene.hold(0);
    assert_eq!(hold.bytes(), Some(&before[..]));
    scene.reader.release(1);
    assert!(scene.reader.caught_up(), "for the reader it is done with");
    while scene.reader.lost() == 0 {
        scene.close_block();
        while scene.reader.peek(0).is_some() {
            scene.reader.release(1);
        }
    }
    assert_eq!(scene.memory.fill_bytes() / BLOCK, u64::from(BLOCKS) - 1, "all but the open one");
    assert_eq!(hold.bytes(), Some(&before[..]));
    assert!(scene.reader.caught_up());
    drop(hold);
    assert_eq!(scene.memory.fill_bytes() / BLOCK, 0);
    let lost = scene.reader.lost();
    scene.send();
    assert_eq!(scene.reader.lost(), lost, "there is room at once");
}

#[test]
fn holds_end_in_any_order_and_blocks_go_back_in_theirs() {
    let mut scene = Scene::new();
    scene.close_block();
    scene.close_block();
    let (first, second) = (scene.hold(0), scene.hold(1));
    scene.reader.release(2);
    drop(second);
    assert_eq!(scene.memory.fill_bytes() / BLOCK, 2);
    drop(first);
    assert_eq!(scene.memory.fill_bytes() / BLOCK, 0);
}

#[test]
fn a_hold_that_nobody_reads_lapses_when_the_ring_needs_the_block() {
    let mut scene = Scene::new();
    scene.close_block();
    let mut hold = scene.hold(0);
    for _ in 0..2 * BLOCKS {
        scene.close_block();
        scene.reader.release(1);
    }
    assert_eq!(scene.reader.lost(), 0);
    assert!(hold.bytes().is_none());
}

#[test]
fn only_a_complete_block_can_be_held() {
    let mut scene = Scene::new();
    assert!(scene.reader.hold(0).is_none());
    scene.send();
    assert!(scene.reader.hold(0).is_none());
    scene.close_block();
    assert!(scene.reader.hold(0).is_some() && scene.reader.hold(1).is_none());
}

#[test]
fn a_hold_outlives_its_reader() {
    let mut scene = Scene::new();
    scene.close_block();
    let before = scene.reader.peek(0).unwrap().bytes.to_vec();
    let mut hold = scene.hold(0);
    drop(scene);
    assert_eq!(hold.bytes(), Some(&before[..]));
}
