//! What an index holds when blocks were looked at in the ring, missed, or both.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex};

use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng;
use tapdeck_packet::ring::Hold;
use tapdeck_testkit::frame::{IPV4, UDP, ethernet, ipv4, udp};
use tapdeck_testkit::{SplitMix64, wait_for};

use super::merge_thread::MergeThread;
use super::task::{BlockPlace, Task, Work};
use super::{Indexer, IndexerSetup, Indexing, Links, SegmentEnd, Sizes};
use crate::format::index::{Builder, Index};
use crate::format::name::SegmentName;
use crate::format::segment::fill_up;
use crate::io::{Directory, Disk, PAGE};
use crate::span::Span;
use crate::writing::control::WriterControl;
use crate::writing::totals::Totals;

const ALL: Span = Span { after_ns: i64::MIN, before_ns: i64::MAX };
const PACKETS: u32 = 50;

/// A segment that a test writes, and the indexer that hears of it.
struct Scene {
    _temp: tempfile::TempDir,
    dir: PathBuf,
    name: SegmentName,
    /// What the segment holds so far.
    body: Vec<u8>,
    begin: u64,
    totals: Arc<Totals>,
    sizes: Arc<Sizes>,
    control: Arc<WriterControl>,
    log: Arc<Mutex<Vec<String>>>,
    setup: IndexerSetup,
    indexer: Indexer,
}

/// Where a block lies in the segment.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    len: usize,
    on_disk: u64,
}

/// A block that waits until the test lets it be read, or says that it has lapsed.
struct Slow {
    bytes: Vec<u8>,
    answer: Receiver<bool>,
}

impl Hold for Slow {
    fn bytes(&mut self) -> Option<&[u8]> {
        self.answer.recv().unwrap_or(true).then_some(&self.bytes)
    }
}

impl Scene {
    fn new() -> Self {
        Self::with_threads(1)
    }

    fn with_threads(threads: usize) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().to_owned();
        let (totals, sizes) = (Arc::new(Totals::new(1)), Arc::new(Sizes::default()));
        let (control, log) =
            (Arc::new(WriterControl::new().unwrap()), Arc::<Mutex<Vec<String>>>::default());
        let lines = log.clone();
        let setup = IndexerSetup {
            dir: dir.clone(),
            indexing: Indexing {
                threads: NonZeroUsize::new(threads).unwrap(),
                cpu: None,
                control: control.clone(),
            },
            links: Links::of(vec![LinkType::ETHERNET]),
            totals: totals.clone(),
            sizes: sizes.clone(),
            log: Arc::new(move |line| lines.lock().unwrap().push(line.into())),
        };
        let indexer = Indexer::start(Arc::new(Disk::new(false)), setup.clone()).unwrap();
        let name = SegmentName { number: 1, began_s: 1_767_323_045, live: true };
        let body = Vec::new();
        let mut scene = Self {
            _temp: temp,
            dir,
            name,
            body,
            begin: 0,
            totals,
            sizes,
            control,
            log,
            setup,
            indexer,
        };
        scene.begin();
        scene
    }

    /// Begins a segment; its head is a page of fill here.
    fn begin(&mut self) {
        self.body.clear();
        let mut head = Vec::new();
        pcapng::fill(&mut head, PAGE);
        self.begin = head.len() as u64;
        self.append(&head);
        self.indexer.begin(&self.name);
    }

    fn append(&mut self, bytes: &[u8]) {
        let path = self.name.path(&self.dir);
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(bytes).unwrap();
        self.body.extend(bytes);
    }

    /// A block of packets, and where it lies now that it is written.
    fn write(&mut self) -> (Place, Vec<u8>) {
        self.write_frames(&(0..PACKETS).map(|i| vec![i as u8; 60]).collect::<Vec<_>>())
    }

    fn write_frames(&mut self, frames: &[Vec<u8>]) -> (Place, Vec<u8>) {
        let mut bytes = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let at = bytes.len();
            bytes.resize(at + pcapng::packet_len(frame.len(), 0, 0), 0);
            let time_ns = (self.body.len() + i) as u64;
            let pieces: [&[u8]; 3] = [frame, &[], &[]];
            pcapng::write_packet(&mut bytes[at..], 0, time_ns, pieces, frame.len() as u32, 0, 0);
        }
        let offset = self.body.len() as u64;
        let mut filled = bytes.clone();
        fill_up(&mut filled);
        self.append(&filled);
        (Place { offset, len: bytes.len(), on_disk: filled.len() as u64 }, bytes)
    }

    fn tell(&mut self, place: Place, hold: Option<Slow>) {
        let hold = hold.map(|hold| Box::new(hold) as Box<dyn Hold>);
        self.indexer.block(place.offset, place.len, place.on_disk, hold);
    }

    /// A block that the indexer finds in the ring.
    fn held(&mut self) {
        let (place, bytes) = self.write();
        self.tell(place, Some(Slow { bytes, answer: channel().1 }));
    }

    /// A block that it has to read.
    fn missed(&mut self) {
        let (place, _) = self.write();
        self.tell(place, None);
    }

    fn behind(&self) -> u64 {
        self.totals.index_behind_bytes.load(SeqCst)
    }

    /// All that there is to index, as [`Index::indexed`] tells it.
    fn whole_body(&self) -> Vec<Range<u64>> {
        std::iter::once(self.begin..self.body.len() as u64).collect()
    }

    fn close(&mut self) {
        let closed = self.name.closed();
        let tell = self.indexer.end();
        fs::rename(self.name.path(&self.dir), closed.path(&self.dir)).unwrap();
        // Of one whose index was given up nobody waits to hear.
        let _ = tell.send(SegmentEnd { len: self.body.len() as u64, dropped: 7 });
    }

    fn index(&self) -> Option<Index> {
        Index::open(&Directory::new(&self.dir), &self.name, self.body.len() as u64).unwrap()
    }

    fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.dir).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What the index says when all is done and the segment is closed: as if it had been scanned.
    fn assert_complete(&self, blocks: u32) {
        assert_eq!(*self.log.lock().unwrap(), [""; 0]);
        assert_eq!(self.behind(), 0);
        let mut index = self.index().expect("an index");
        let summary = index.summary().clone();
        assert!(summary.complete);
        assert_eq!((summary.packets, summary.dropped), (u64::from(blocks * PACKETS), 7));
        assert_eq!(index.indexed(), self.whole_body());
        let granules = index.select(&Plan::All, ALL).unwrap();
        for granule in &granules {
            let bytes = &self.body[granule.place.start as usize..granule.place.end as usize];
            assert_eq!(granule.quarters.checksum(), crc32c::crc32c(bytes), "as the file has it");
            assert!(granule.quarters.are_those_of(bytes));
        }
        let names = [&self.name.closed().to_string(), "tapdeck-00000001-20260102T030405Z.index"];
        assert_eq!(self.files(), names.map(String::from).into());
    }
}

#[test]
fn blocks_that_are_held_are_indexed_without_reading_the_segment() {
    let mut scene = Scene::new();
    for _ in 0..40 {
        scene.held();
    }
    scene.close();
    scene.indexer.finish();
    scene.assert_complete(40);
    assert_eq!(scene.totals.index_read_bytes.load(SeqCst), 0);
}

#[test]
fn blocks_that_were_missed_are_read_and_the_index_is_the_same() {
    let mut scene = Scene::new();
    let mut missed = 0;
    for i in 0..40 {
        let before = scene.body.len();
        // Some alone, some in a row, the first and the last.
        if i % 3 == 0 || (10..15).contains(&i) {
            scene.missed();
            missed += scene.body.len() - before;
        } else {
            scene.held();
        }
    }
    scene.close();
    scene.indexer.finish();
    scene.assert_complete(40);
    assert_eq!(scene.totals.index_read_bytes.load(SeqCst), missed as u64);
}

/// Frames of many flows, as many as `packets`.
fn drawn_frames(random: &mut SplitMix64, packets: u32) -> Vec<Vec<u8>> {
    let frame = |_| {
        let host = |net: u8, n: u32| Ipv4Addr::from(u32::from(net) << 24 | n);
        let (from, to) = (host(10, random.below(500)), host(11, random.below(500)));
        let size = 18 + random.below(200);
        let payload = random.bytes(size);
        let datagram = udp([random.below(3000), 443], &payload);
        ethernet([2; 6], [4; 6], &[], IPV4, &ipv4(from, to, UDP, &datagram))
    };
    (0..packets).map(frame).collect()
}

/// Writes two segments of large blocks and small ones, and has them indexed by so many threads.
/// Returns the bytes of both indexes.
fn indexed_by(threads: usize) -> Vec<Vec<u8>> {
    let mut scene = Scene::with_threads(threads);
    let mut indexes = Vec::new();
    for _ in 0..2 {
        let mut random = SplitMix64(7);
        let mut packets = 0;
        for i in 0..40 {
            // The small ones become granules together, the others have several each.
            let count = if i % 20 < 15 { random.below(60) + 1 } else { 2500 };
            packets += u64::from(count);
            let (place, bytes) = scene.write_frames(&drawn_frames(&mut random, count));
            scene.tell(place, Some(Slow { bytes, answer: channel().1 }));
        }
        scene.close();
        let path = scene.name.index_path(&scene.dir);
        wait_for("the index", || path.exists());
        let index = scene.index().expect("an index");
        assert_eq!((index.summary().packets, index.summary().complete), (packets, true));
        assert_eq!(index.indexed(), scene.whole_body());
        indexes.push(fs::read(path).unwrap());
        scene.name.number += 1;
        scene.begin();
    }
    scene.close();
    scene.indexer.finish();
    assert_eq!((scene.behind(), scene.log.lock().unwrap().len()), (0, 0));
    indexes
}

#[test]
fn however_many_threads_make_an_index_its_bytes_are_the_same() {
    let by_one = indexed_by(1);
    for threads in [2, 3, 8] {
        assert!(indexed_by(threads) == by_one, "{threads} threads");
    }
}

#[test]
fn a_thread_that_waits_holds_up_its_own_blocks_alone() {
    let mut scene = Scene::with_threads(2);
    let (answer, asked) = channel();
    let frames = |packets: usize| vec![vec![1; 1000]; packets];
    let (slow, bytes) = scene.write_frames(&frames(400));
    scene.tell(slow, Some(Slow { bytes, answer: asked }));
    for _ in 0..10 {
        let (place, bytes) = scene.write_frames(&frames(200));
        scene.tell(place, Some(Slow { bytes, answer: channel().1 }));
        wait_for("all but the one to be indexed", || scene.behind() == slow.on_disk);
    }
    answer.send(true).unwrap();
    scene.close();
    scene.indexer.finish();
    assert_eq!(scene.behind(), 0);
    let index = scene.index().expect("an index");
    assert_eq!((index.summary().packets, index.summary().complete), (2400, true));
}

#[test]
fn a_hold_that_lapses_is_a_miss() {
    let mut scene = Scene::new();
    let (place, bytes) = scene.write();
    let (answer, asked) = channel();
    scene.tell(place, Some(Slow { bytes, answer: asked }));
    scene.held();
    assert!(scene.behind() > 0, "it waits for the first");
    answer.send(false).unwrap();
    scene.close();
    scene.indexer.finish();
    scene.assert_complete(2);
    assert_eq!(scene.totals.index_read_bytes.load(SeqCst), place.on_disk);
}

#[test]
fn what_was_missed_is_indexed_while_the_segment_is_written() {
    let mut scene = Scene::new();
    scene.missed();
    scene.missed();
    // Now there is time. The two may come into the log one by one.
    wait_for("both to be in the log", || scene.index_of_log() == scene.whole_body());
    assert_eq!(scene.behind(), 0);
    scene.held();
    scene.close();
    scene.indexer.finish();
    scene.assert_complete(3);
}

#[test]
fn chunks_need_not_wait_until_what_was_missed_is_read() {
    let mut scene = Scene::new();
    let places: Vec<BlockPlace> = (0..2)
        .map(|_| {
            let (Place { offset, len, on_disk }, _) = scene.write();
            BlockPlace { offset, len, on_disk, ends_granule: true }
        })
        .collect();
    let (held, bytes) = scene.write();
    let mut builder = Builder::new(&scene.name, vec![LinkType::ETHERNET]);
    builder.add(held.offset, &bytes, held.on_disk);
    let chunk = builder.chunk();
    let (ended, closed) = sync_channel(1);
    let (tasks, queue) = sync_channel(3);
    for work in [Work::Missed(places), Work::Chunk(chunk.clone()), Work::End(Some(closed))] {
        tasks.send(Task { segment: scene.name.clone(), work }).unwrap();
    }
    drop((tasks, ended));
    // It has all three before it begins, and nobody closes the segment, so the log stays.
    let merge = MergeThread::new(Arc::new(Disk::new(false)), scene.setup.clone(), channel().0);
    merge.run(&queue);
    let log = fs::read(scene.name.index_log_path(&scene.dir)).unwrap();
    assert!(log.starts_with(&chunk), "the chunk is the first in the log");
    assert_eq!(scene.index_of_log(), scene.whole_body(), "and the rest came then");
}

#[test]
fn segments_are_told_of_in_the_order_of_recording() {
    let mut scene = Scene::new();
    let (Place { offset, len, on_disk }, _) = scene.write();
    let missed = vec![BlockPlace { offset, len, on_disk, ends_granule: true }];
    let first = scene.name.clone();
    let second = SegmentName { number: first.number + 1, ..first.clone() };
    let (tasks, queue) = sync_channel(3);
    for (segment, work) in
        [(&first, Work::Missed(missed)), (&first, Work::End(None)), (&second, Work::End(None))]
    {
        tasks.send(Task { segment: segment.clone(), work }).unwrap();
    }
    drop(tasks);
    let (indexed, told) = channel();
    MergeThread::new(Arc::new(Disk::new(false)), scene.setup.clone(), indexed).run(&queue);
    assert_eq!(told.iter().collect::<Vec<_>>(), [first.closed(), second.closed()]);
}

impl Scene {
    /// The parts that the log of the live segment covers.
    fn index_of_log(&self) -> Vec<Range<u64>> {
        self.index().map_or(Vec::new(), |index| {
            assert!(!index.summary().complete);
            index.indexed()
        })
    }
}

#[test]
fn of_a_segment_that_is_deleted_meanwhile_nothing_stays() {
    for at in 0..3 {
        let mut scene = Scene::new();
        let delete = |scene: &Scene| {
            for name in [scene.name.clone(), scene.name.closed()] {
                let _ = fs::remove_file(name.path(&scene.dir));
                for path in name.index_paths(&scene.dir) {
                    let _ = fs::remove_file(path);
                }
            }
        };
        let (place, bytes) = scene.write();
        let (answer, asked) = channel();
        if at == 1 {
            scene.missed();
            wait_for("the log", || !scene.index_of_log().is_empty());
        }
        scene.tell(place, Some(Slow { bytes, answer: asked }));
        scene.missed();
        if at < 2 {
            // Before there is a log, or with it.
            delete(&scene);
        }
        answer.send(true).unwrap();
        let tell = scene.indexer.end();
        if at == 2 {
            wait_for("the log", || !scene.index_of_log().is_empty());
            delete(&scene);
        }
        let _ = tell.send(SegmentEnd { len: scene.body.len() as u64, dropped: 0 });
        scene.indexer.finish();
        assert_eq!(scene.files(), BTreeSet::new(), "{at}");
        assert_eq!(scene.sizes.take(|_, _| false), 0, "{at}");
        assert_eq!(scene.behind(), 0, "{at}");
        assert_eq!(scene.log.lock().unwrap().len(), 0, "nobody misses it");
    }
}

#[test]
fn one_in_a_hurry_leaves_the_log_as_it_is() {
    let mut scene = Scene::new();
    scene.missed();
    wait_for("the log", || !scene.index_of_log().is_empty());
    let indexed = scene.whole_body();
    scene.control.hurry();
    let before = scene.body.len();
    scene.held();
    scene.missed();
    scene.close();
    scene.indexer.finish();
    assert_eq!(scene.behind(), (scene.body.len() - before) as u64);
    let index = scene.index().expect("the log");
    assert_eq!((index.summary().complete, index.indexed()), (false, indexed));
    assert!(scene.files().contains("tapdeck-00000001-20260102T030405Z.index.live"));
    assert!(scene.sizes.take(|_, _| true) == 0 && scene.sizes.take(|_, _| false) == 0, "counted");
}

#[test]
fn a_segment_without_packets_has_no_index() {
    let mut scene = Scene::new();
    scene.close();
    scene.indexer.finish();
    assert_eq!(scene.files().len(), 1);
    assert!(scene.index().is_none());
    assert_eq!(scene.log.lock().unwrap().len(), 0);
}

#[test]
fn a_segment_that_cannot_be_read_is_told_once_and_the_next_is_indexed() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        let (place, _) = scene.write();
        // As if the disk gave less back than it took.
        scene.tell(Place { offset: place.offset + (1 << 30), ..place }, None);
        wait_for("it to be tried", || scene.behind() == 0);
    }
    assert_eq!(scene.log.lock().unwrap().len(), 1);
    scene.close();
    scene.name.number += 1;
    scene.begin();
    scene.held();
    scene.close();
    scene.indexer.finish();
    let lines = std::mem::take(&mut *scene.log.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("00000001"), "{lines:?}");
    assert!(scene.index().expect("an index").summary().complete);
    assert_eq!(scene.files().len(), 3, "two segments and one index");
}

#[test]
fn sizes_are_counted_until_they_are_taken_for_good() {
    let sizes = Sizes::default();
    let [a, b] = [1, 2].map(|number| SegmentName { number, began_s: 0, live: true });
    sizes.set(&a, 10, false);
    sizes.set(&b, 20, true);
    assert_eq!(sizes.take(|_, _| false), 30);
    assert_eq!(sizes.take(|name, _| *name == b.closed()), 10);
    assert_eq!(sizes.take(|_, _| false), 10, "one was final and counted");
    sizes.set(&a, 15, false);
    assert_eq!(sizes.take(|_, bytes| bytes == 15), 0);
    assert_eq!(sizes.take(|_, _| false), 15, "it may still grow");
    sizes.forget(&a);
    assert_eq!(sizes.take(|_, _| false), 0);
}

#[test]
fn a_gone_segment_is_told_from_one_that_was_closed() {
    let scene = Scene::new();
    let is_gone = |dir: &Path| super::merge_thread::is_gone(dir, &scene.name);
    assert!(!is_gone(&scene.dir));
    fs::rename(scene.name.path(&scene.dir), scene.name.closed().path(&scene.dir)).unwrap();
    assert!(!is_gone(&scene.dir));
    fs::remove_file(scene.name.closed().path(&scene.dir)).unwrap();
    assert!(is_gone(&scene.dir));
}
