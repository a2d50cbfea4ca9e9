//! What the tests of a store share: rings in memory that a test fills, and reading back what
//! was recorded.
//!
//! Each packet carries who it is, so that a reader can tell whether it came through once and whole.

#![allow(dead_code, reason = "each test file takes its part")]

pub mod faulty;
pub mod forgetful;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, Reader, Record};
use tapdeck_packet::ring::{Block, Contents, Hold, Holds, Ring};
use tapdeck_store::io::{Io, PAGE, Uptime};
use tapdeck_store::{
    Ending, Indexing, Ledger, Retention, SegmentName, SegmentSink, SegmentSinkConfig, Sink, Store,
    Totals, Writer, WriterControl,
};
use tapdeck_testkit::{SplitMix64, wait_for};

/// Who a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub interface: u32,
    pub epoch: u8,
    pub seq: u64,
}

pub const ID_BYTES: usize = 16;
/// The least a packet block here can be.
const LEAST: usize = pcapng::PACKET_OVERHEAD + ID_BYTES;

impl Id {
    pub fn frame(self, len: usize) -> Vec<u8> {
        static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
        let mut frame = Vec::with_capacity(len);
        frame.extend(self.interface.to_be_bytes());
        frame.extend([self.epoch, 0, 0, 0]);
        frame.extend(self.seq.to_be_bytes());
        // The rest is a piece of noise that is another one for every neighbour.
        let noise = NOISE.get_or_init(|| {
            let mut rng = SplitMix64(1);
            (0..1024).flat_map(|_| rng.draw().to_be_bytes()).collect()
        });
        let at = (self.seq as usize * 37 + self.interface as usize * 11) % 4096;
        frame.extend(&noise[at..at + len - ID_BYTES]);
        frame
    }

    fn read(frame: &[u8]) -> Self {
        let id = Self {
            interface: u32::from_be_bytes(frame[..4].try_into().unwrap()),
            epoch: frame[4],
            seq: u64::from_be_bytes(frame[8..16].try_into().unwrap()),
        };
        assert_eq!(frame, id.frame(frame.len()), "the frame of {id:?} is damaged");
        id
    }
}

struct Filled {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    contents: Contents,
}

struct Shared {
    blocks: Vec<OnceLock<Filled>>,
    pushed: AtomicUsize,
    released: AtomicUsize,
    holds: Mutex<Holds>,
    /// Blocks that a producer could write again.
    free: AtomicUsize,
    looks: AtomicUsize,
    lost: AtomicU64,
    epoch: AtomicU8,
}

/// The reader's end of a ring in memory.
pub struct FakeRing {
    interface: u32,
    shared: Arc<Shared>,
}

impl Ring for FakeRing {
    fn interface(&self) -> u32 {
        self.interface
    }

    fn peek(&self, ahead: u32) -> Option<Block<'_>> {
        self.shared.looks.fetch_add(1, SeqCst);
        let at = self.shared.released.load(SeqCst) + ahead as usize;
        let block = self.shared.blocks[at].get()?;
        let bytes = &block.memory[block.start..block.start + block.len];
        Some(Block { bytes, contents: block.contents })
    }

    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>> {
        self.peek(ahead)?;
        let shared = self.shared.clone();
        let block = shared.holds.lock().unwrap().hold(ahead);
        Some(Box::new(FakeHold { shared, block }))
    }

    fn release(&mut self, blocks: u32) {
        let mut holds = self.shared.holds.lock().unwrap();
        let released = self.shared.released.fetch_add(blocks as usize, SeqCst) + blocks as usize;
        assert!(released <= self.shared.pushed.load(SeqCst), "released before it was complete");
        self.shared.free.store(holds.release(blocks) as usize, SeqCst);
    }

    fn unread(&self) -> u64 {
        let held = self.shared.released.load(SeqCst)..self.shared.pushed.load(SeqCst);
        let blocks = self.shared.blocks[held].iter().filter_map(OnceLock::get);
        blocks.map(|b| u64::from(b.contents.packets)).sum()
    }

    fn taken(&self) -> u64 {
        (self.shared.pushed.load(SeqCst) as u64) << 16
    }

    fn lost(&self) -> u64 {
        self.shared.lost.load(SeqCst)
    }

    fn epoch(&self) -> u8 {
        self.shared.epoch.load(SeqCst)
    }

    fn caught_up(&self) -> bool {
        self.shared.released.load(SeqCst) == self.shared.pushed.load(SeqCst)
    }
}

struct FakeHold {
    shared: Arc<Shared>,
    block: u64,
}

impl Hold for FakeHold {
    fn bytes(&mut self) -> Option<&[u8]> {
        let stays = self.shared.holds.lock().unwrap().read(self.block);
        let block = self.shared.blocks[self.block as usize].get()?;
        stays.then_some(&block.memory[block.start..block.start + block.len])
    }
}

impl Drop for FakeHold {
    fn drop(&mut self) {
        let mut holds = self.shared.holds.lock().unwrap();
        if let Some(free) = holds.end(self.block) {
            self.shared.free.store(free as usize, SeqCst);
        }
    }
}

/// The test's end of a ring.
pub struct Producer {
    interface: u32,
    seq: u64,
    shared: Arc<Shared>,
    /// All packets that were offered.
    pub offered: Vec<Id>,
}

/// More blocks than any test fills.
const BLOCKS: usize = 2048;
/// What the rings say they have, of which a quarter may wait for whoever holds it.
pub const RING_BLOCKS: u32 = 16;

/// A ring with its two ends.
pub fn ring(interface: u32) -> (Producer, Box<dyn Ring>) {
    let shared = Arc::new(Shared {
        blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
        pushed: AtomicUsize::new(0),
        released: AtomicUsize::new(0),
        holds: Mutex::new(Holds::new(0, RING_BLOCKS)),
        free: AtomicUsize::new(0),
        looks: AtomicUsize::new(0),
        lost: AtomicU64::new(0),
        epoch: AtomicU8::new(0),
    });
    let ring = FakeRing { interface, shared: shared.clone() };
    (Producer { interface, seq: 0, shared, offered: Vec::new() }, Box::new(ring))
}

/// As many rings, of one interface each.
pub fn rings(n: u32) -> (Vec<Producer>, Vec<Box<dyn Ring>>) {
    (0..n).map(ring).unzip()
}

impl Producer {
    /// Closes a block of exactly `len` bytes, a multiple of 4 and at least one packet's. Returns
    /// how many packets it holds.
    pub fn push(&mut self, len: usize) -> u32 {
        assert!(len >= LEAST && len.is_multiple_of(4), "a block of {len} bytes");
        let mut memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        let mut contents =
            Contents { epoch: self.shared.epoch.load(SeqCst), ..Contents::default() };
        let mut rng = SplitMix64(self.seq ^ len as u64);
        let mut at = start;
        while at < start + len {
            let left = start + len - at;
            let id = Id { interface: self.interface, epoch: contents.epoch, seq: self.seq };
            let mut frame_len = ID_BYTES + rng.below(1500);
            // Frames of odd lengths, but the last one ends where the block does.
            if pcapng::packet_len(frame_len, 0, 0) + LEAST > left {
                frame_len = left - pcapng::PACKET_OVERHEAD;
            }
            let total = pcapng::packet_len(frame_len, 0, 0);
            let frame = id.frame(frame_len);
            let out = &mut memory[at..at + total];
            let whole = frame_len as u32;
            pcapng::write_packet(out, self.interface, self.seq, [&frame, &[], &[]], whole, 0, 0);
            at += total;
            contents.packets += 1;
            contents.frame_bytes += whole;
            self.offered.push(id);
            self.seq += 1;
        }
        let block = Filled { memory, start, len, contents };
        let n = self.shared.pushed.load(SeqCst);
        // Counted first: a reader that sees the block may release it at once.
        self.shared.pushed.store(n + 1, SeqCst);
        assert!(self.shared.blocks[n].set(block).is_ok());
        contents.packets
    }

    /// Closes a block of a length that is likely to be awkward.
    pub fn push_any(&mut self, rng: &mut SplitMix64) {
        let pages = PAGE * (1 + rng.below(12));
        let len = match rng.below(8) {
            0 => pages,
            1 => pages - 4,
            2 => pages - 8,
            3 => pages - 12,
            4 => pages + LEAST,
            _ => LEAST + rng.below(pages) / 4 * 4,
        };
        self.push(len);
    }

    pub fn lose(&self, packets: u64) {
        self.shared.lost.fetch_add(packets, SeqCst);
    }

    /// Blocks from now on are of this epoch.
    pub fn step_to(&self, epoch: u8) {
        self.shared.epoch.store(epoch, SeqCst);
    }

    /// Waits until the writer has looked at the ring often enough to have done all that it
    /// would do.
    pub fn until_looked_at(&self) {
        let before = self.shared.looks.load(SeqCst);
        wait_for("looks", || self.shared.looks.load(SeqCst) > before + 20);
    }

    /// Blocks that are closed and not released.
    pub fn held(&self) -> usize {
        self.shared.pushed.load(SeqCst) - self.shared.released.load(SeqCst)
    }

    /// Blocks that are released and still kept from the producers.
    pub fn kept(&self) -> usize {
        // In this order it is never less than nothing.
        let free = self.shared.free.load(SeqCst);
        self.shared.released.load(SeqCst) - free
    }
}

/// All that was offered, in order.
pub fn offered(producers: &[Producer]) -> Vec<Id> {
    let mut all: Vec<Id> = producers.iter().flat_map(|p| p.offered.iter().copied()).collect();
    all.sort_unstable();
    all
}

pub fn lost(producers: &[Producer]) -> u64 {
    producers.iter().map(|p| p.shared.lost.load(SeqCst)).sum()
}

pub fn interfaces(n: u32) -> Vec<InterfaceDescription> {
    (0..n)
        .map(|i| InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: format!("fake{i}"),
            description: "in memory".into(),
            filter: None,
            hardware: None,
            mac: None,
        })
        .collect()
}

/// A clock that a test sets, and the time that passes whatever the clock says.
#[derive(Clone)]
pub struct FakeClock {
    utc_ns: Arc<AtomicU64>,
    /// Nanoseconds since the machine was started.
    since_boot: Arc<AtomicU64>,
}

impl FakeClock {
    /// 2026-01-02T03:04:05Z.
    pub const BEGAN_S: u64 = 1_767_323_045;
    /// For how long the machine has been running at the beginning.
    const RUNNING_S: u64 = 1_000_000_000;

    pub fn new() -> Self {
        let clock = Self { utc_ns: Arc::default(), since_boot: Arc::default() };
        clock.set(0);
        clock
    }

    /// Lets time pass until so many seconds after, or before, the beginning.
    pub fn set(&self, s: i64) {
        let at = |begin: u64| (begin as i64 + s) as u64 * 1_000_000_000;
        self.utc_ns.store(at(Self::BEGAN_S), SeqCst);
        self.since_boot.store(at(Self::RUNNING_S), SeqCst);
    }

    /// Sets the clock by so many seconds. No time passes.
    pub fn step(&self, s: i64) {
        let now = self.utc_ns.load(SeqCst) as i64;
        self.utc_ns.store((now + s * 1_000_000_000) as u64, SeqCst);
    }

    /// Lets so many seconds pass, whatever the clock says.
    pub fn pass(&self, s: u64) {
        self.utc_ns.fetch_add(s * 1_000_000_000, SeqCst);
        self.since_boot.fetch_add(s * 1_000_000_000, SeqCst);
    }

    pub fn now_ns(&self) -> u64 {
        self.utc_ns.load(SeqCst)
    }

    fn uptime(&self) -> Uptime {
        let since_boot = self.since_boot.clone();
        Uptime {
            boot: "one".into(),
            since_boot: Arc::new(move || Duration::from_nanos(since_boot.load(SeqCst))),
            is_synchronised: Arc::new(|| true),
        }
    }
}

/// How a test records.
pub struct Setup {
    pub segment_bytes: u64,
    pub segment_time: Duration,
    pub retention: Retention,
    pub clock: FakeClock,
    pub limit: Option<u64>,
    pub indexed: bool,
    pub sync_interval: Option<Duration>,
    /// How many interface ids there are for rings that come later.
    pub room: usize,
    /// Lines for the user.
    pub log: Arc<Mutex<Vec<String>>>,
    /// Where the writer notes what it does, if it does.
    pub ledger: Mutex<Option<Box<dyn Ledger>>>,
}

impl Setup {
    pub fn new(segment_bytes: u64) -> Self {
        Self {
            segment_bytes,
            segment_time: Duration::from_secs(3600),
            retention: Retention::default(),
            clock: FakeClock::new(),
            limit: None,
            indexed: false,
            sync_interval: None,
            room: 0,
            log: Arc::default(),
            ledger: Mutex::default(),
        }
    }

    /// Begins to record the rings into a store in `dir`.
    pub fn start<I: Io>(&self, dir: &Path, io: I, rings: Vec<Box<dyn Ring>>) -> Run {
        self.start_in(Store::open(dir).unwrap(), io, rings)
    }

    /// Begins to record the rings into a store that is open.
    pub fn start_in<I: Io>(&self, store: Store, io: I, rings: Vec<Box<dyn Ring>>) -> Run {
        let totals = Arc::new(Totals::new(rings.len() + self.room));
        let clock = self.clock.clone();
        let log = self.log.clone();
        let control = Arc::new(WriterControl::new().unwrap());
        let threads = NonZeroUsize::new(2).unwrap();
        let indexing = Indexing { threads, cpu: None, control: control.clone() };
        let config = SegmentSinkConfig {
            segment_bytes: self.segment_bytes,
            segment_time: self.segment_time,
            retention: self.retention,
            sync_interval: self.sync_interval,
            interfaces: interfaces(rings.len() as u32),
            uptime: clock.uptime(),
            now_ns: Arc::new(move || clock.now_ns()),
            log: Arc::new(move |line: &str| log.lock().unwrap().push(line.into())),
            indexing: self.indexed.then_some(indexing),
        };
        let sink = SegmentSink::new(io, store, config, totals.clone()).unwrap();
        let ledger = self.ledger.lock().unwrap().take();
        Run::start_on(control, rings, sink, totals, (self.limit, ledger, self.room))
    }

    /// Records all that the rings hold and ends.
    pub fn record<I: Io>(&self, dir: &Path, io: I, rings: Vec<Box<dyn Ring>>) -> Arc<Totals> {
        let run = self.start(dir, io, rings);
        run.stop().unwrap();
        run.totals
    }
}

/// A recording on a thread of its own.
pub struct Run {
    pub totals: Arc<Totals>,
    pub control: Arc<WriterControl>,
    thread: Mutex<Option<JoinHandle<std::io::Result<Ending>>>>,
}

impl Run {
    pub fn start<S: Sink + 'static>(
        rings: Vec<Box<dyn Ring>>,
        sink: S,
        totals: Arc<Totals>,
        limit: Option<u64>,
    ) -> Self {
        let control = Arc::new(WriterControl::new().unwrap());
        Self::start_on(control, rings, sink, totals, (limit, None, 0))
    }

    fn start_on<S: Sink + 'static>(
        control: Arc<WriterControl>,
        rings: Vec<Box<dyn Ring>>,
        sink: S,
        totals: Arc<Totals>,
        (limit, ledger, room): (Option<u64>, Option<Box<dyn Ledger>>, usize),
    ) -> Self {
        let interfaces = totals.interfaces.len() - room;
        let mut writer = Writer::new(rings, sink, totals.clone()).begin_with(interfaces);
        if let Some(n) = limit {
            writer = writer.limit(n);
        }
        if let Some(ledger) = ledger {
            writer = writer.note_in(ledger);
        }
        let thread = std::thread::spawn({
            let control = control.clone();
            move || writer.run(&control)
        });
        Self { totals, control, thread: Mutex::new(Some(thread)) }
    }

    pub fn is_finished(&self) -> bool {
        self.thread.lock().unwrap().as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the writer that the producers have ended, and waits for its end.
    pub fn stop(&self) -> std::io::Result<Ending> {
        self.control.close_blocks();
        self.join()
    }

    /// Waits for an end that comes by itself.
    pub fn join(&self) -> std::io::Result<Ending> {
        wait_for("the writer to end", || self.control.writer_has_ended());
        self.control.close_blocks();
        self.thread.lock().unwrap().take().unwrap().join().unwrap()
    }

    /// Asks for another segment, and waits until the keeper has done all that it was told before.
    pub fn begin_segment(&self) {
        let (send, done) = std::sync::mpsc::channel();
        let tell = move || {
            let _ = send.send(());
        };
        self.control.begin_segment(None, Box::new(tell));
        done.recv().unwrap();
    }

    pub fn packets(&self) -> u64 {
        packets(&self.totals)
    }
}

pub fn packets(totals: &Totals) -> u64 {
    totals.interfaces.iter().map(|i| i.packets.load(SeqCst)).sum()
}

pub fn unwritten(totals: &Totals) -> u64 {
    totals.interfaces.iter().map(|i| i.unwritten.load(SeqCst)).sum()
}

/// What one pcapng file holds.
#[derive(Debug, Default)]
pub struct Contained {
    pub packets: Vec<Id>,
    /// Bytes of each packet's frame.
    pub frame_bytes: Vec<u64>,
    /// Of each interface, from the statistics: delivered and dropped.
    pub statistics: BTreeMap<u32, (u64, u64)>,
    pub interfaces: usize,
    pub comment: Option<String>,
    pub bytes: u64,
}

impl Contained {
    pub fn delivered(&self) -> u64 {
        self.statistics.values().map(|s| s.0).sum()
    }

    pub fn dropped(&self) -> u64 {
        self.statistics.values().map(|s| s.1).sum()
    }
}

/// Reads a whole pcapng file; whatever is wrong with it is a failure.
pub fn read_bytes(what: &str, data: &[u8]) -> Contained {
    let mut file = Contained { bytes: data.len() as u64, ..Contained::default() };
    let mut sections = 0;
    for record in Reader::new(data) {
        match record.unwrap_or_else(|e| panic!("{what}: {e}")) {
            Record::Section(section) => {
                sections += 1;
                assert!(section.application.unwrap().starts_with("tapdeck "));
                file.comment = section.comment;
            }
            Record::Interface(interface) => {
                assert_eq!(interface.resolution, 9);
                file.interfaces += 1;
            }
            Record::Packet(packet) => {
                let id = Id::read(packet.frame);
                assert_eq!((id.interface, id.seq), (packet.interface, packet.timestamp), "{what}");
                assert!((id.interface as usize) < file.interfaces, "{what}: no such interface");
                assert!(file.statistics.is_empty(), "{what}: a packet behind the statistics");
                file.packets.push(id);
                file.frame_bytes.push(packet.frame.len() as u64);
            }
            Record::Statistics(s) => {
                assert_eq!(s.received, Some(s.delivered.unwrap() + s.dropped.unwrap()), "{what}");
                let told = (s.delivered.unwrap(), s.dropped.unwrap());
                assert_eq!(file.statistics.insert(s.interface, told), None, "{what}: told twice");
            }
            Record::Other(kind) => assert_eq!(kind, pcapng::FILL, "{what}: a strange block"),
        }
    }
    assert_eq!(sections, 1, "{what}: sections");
    // What the statistics tell of a file is what is in it.
    for (interface, (delivered, _)) in &file.statistics {
        let there = file.packets.iter().filter(|p| p.interface == *interface).count() as u64;
        assert_eq!(*delivered, there, "{what}: statistics of interface {interface}");
    }
    file
}

/// Names in a directory that look like a segment's, in the order in which a listing sorts them.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().into_string().ok())
        .filter(|n| SegmentName::parse(n).is_some())
        .collect();
    names.sort();
    names
}

/// Names in a directory of index files, sorted.
pub fn index_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().into_string().ok())
        .filter(|n| n.contains(".index"))
        .collect();
    names.sort();
    names
}

/// Whether it is the name of a segment that is being written.
pub fn is_live(name: &str) -> bool {
    SegmentName::parse(name).is_some_and(|name| name.live)
}

/// Every segment of a store, in order, each wholly valid and with packets of one epoch only.
pub fn read_store(dir: &Path) -> Vec<(String, Contained)> {
    let read = |name: String| {
        let contained = read_bytes(&name, &std::fs::read(dir.join(&name)).unwrap());
        assert!(contained.bytes.is_multiple_of(PAGE as u64), "{name}: not whole pages");
        let epochs: std::collections::BTreeSet<u8> =
            contained.packets.iter().map(|p| p.epoch).collect();
        assert!(epochs.len() < 2, "{name} holds packets of the epochs {epochs:?}");
        (name, contained)
    };
    names(dir).into_iter().map(read).collect()
}

/// All packets of a store, sorted; each at most once.
pub fn stored(segments: &[(String, Contained)]) -> Vec<Id> {
    let mut all: Vec<Id> = segments.iter().flat_map(|s| s.1.packets.iter().copied()).collect();
    all.sort_unstable();
    for pair in all.windows(2) {
        assert_ne!(pair[0], pair[1], "stored twice");
    }
    all
}

/// Bytes that a file takes on disk; none where it is not there.
pub fn on_disk(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |m| m.blocks() * 512)
}

/// Bytes that the files of a store take on disk, without the files about the store.
pub fn disk_usage(dir: &Path) -> u64 {
    std::fs::read_dir(dir)
        .unwrap()
        .filter_map(|e| {
            let e = e.unwrap();
            // A file may go while the directory is read.
            let about = [".tapdeck.lock", ".tapdeck.times"].map(OsStr::new);
            (!about.contains(&&*e.file_name())).then(|| e.metadata().ok()).flatten()
        })
        .map(|m| m.blocks() * 512)
        .sum()
}

/// A store's directory inside a temporary one, which is deleted with the first value.
pub fn directory() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    (temp, dir)
}
