//! The index beside a recording: it appears and goes with its segments, and never costs a packet.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use common::faulty::{Faulty, Odds};
use common::{
    Producer, RING_BLOCKS, Run, Setup, directory, disk_usage, index_names, is_live, names, offered,
    packets, read_store, ring, rings, stored, unwritten,
};
use rustix::io::Errno;
use tapdeck_packet::ring::Hold;
use tapdeck_store::io::Disk;
use tapdeck_store::{InterfaceBlock, Retention, Sink, SinkOutcome, Store, Totals};
use tapdeck_testkit::{SplitMix64, wait_for};

const SEGMENT: u64 = 128 << 10;

fn indexed() -> Setup {
    let mut setup = Setup::new(SEGMENT);
    setup.indexed = true;
    setup
}

/// The index that belongs to each segment, by what both names have in common.
fn expected(dir: &Path) -> Vec<String> {
    names(dir).iter().map(|n| n.replace(".pcapng", ".index")).collect()
}

fn is_draft(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == "new")
}

/// The disk of this machine, written as a recorder would: what files take there is known at once.
fn real_disk(dir: &Path) -> Faulty {
    std::fs::create_dir_all(dir).unwrap();
    let direct = Disk::direct_works(dir).unwrap();
    Faulty::over(Disk::new(direct), 0, Odds::default())
}

fn behind(totals: &Totals) -> u64 {
    totals.index_behind_bytes.load(SeqCst)
}

fn bytes_of(dir: &Path, names: &[String]) -> u64 {
    names.iter().map(|n| dir.join(n).metadata().unwrap().blocks() * 512).sum()
}

fn fill(producers: &mut [Producer], blocks: usize) {
    let mut rng = SplitMix64(blocks as u64);
    for _ in 0..blocks {
        for p in producers.iter_mut() {
            p.push_any(&mut rng);
        }
    }
}

#[test]
fn every_segment_has_an_index_when_the_recording_has_ended() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(3);
    fill(&mut producers, 40);
    let setup = indexed();
    let disk = real_disk(&dir);
    let totals = setup.record(&dir, disk.clone(), ends);
    assert_eq!(disk.violations(), Vec::<String>::new());
    assert_eq!(*setup.log.lock().unwrap(), [""; 0]);
    assert!(names(&dir).len() > 3);
    assert_eq!(index_names(&dir), expected(&dir));
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
    assert_eq!(behind(&totals), 0);
    assert_eq!(totals.index_bytes.load(SeqCst), bytes_of(&dir, &index_names(&dir)));
    assert_eq!(totals.bytes_stored.load(SeqCst), disk_usage(&dir));
    assert!(producers.iter().all(|p| p.kept() == 0), "all blocks are given back");
    // Who opens the store again finds them.
    let found = Store::segments(&dir).unwrap();
    let index_bytes: u64 = found.iter().map(|s| s.index_bytes).sum();
    assert_eq!(index_bytes, totals.index_bytes.load(SeqCst));
}

#[test]
fn nobody_who_does_not_want_an_index_gets_one() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(1);
    fill(&mut producers, 40);
    let totals = Setup::new(SEGMENT).record(&dir, Disk::new(false), ends);
    assert_eq!(index_names(&dir), [""; 0]);
    assert_eq!((behind(&totals), totals.index_bytes.load(SeqCst)), (0, 0));
}

#[test]
fn packets_beyond_a_limit_are_not_indexed() {
    let (_temp, dir) = directory();
    let (mut producer, end) = ring(0);
    producer.push(20_000);
    let mut setup = indexed();
    setup.limit = Some(3);
    let run = setup.start(&dir, Disk::new(false), vec![end]);
    run.join().unwrap();
    assert_eq!(stored(&read_store(&dir)), producer.offered[..3]);
    assert_eq!((index_names(&dir), behind(&run.totals)), (expected(&dir), 0));
    assert_eq!(*setup.log.lock().unwrap(), [""; 0]);
}

/// The disk takes no index for a while. Neither the writer nor a producer notices.
#[test]
fn an_indexer_that_stands_still_keeps_nobody_from_anything() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    disk.shut_index_gate();
    let (mut producers, ends) = rings(2);
    let setup = indexed();
    let run = setup.start(&dir, disk.clone(), ends);
    for _ in 0..30 {
        fill(&mut producers, 10);
        wait_for("everything to be written", || producers.iter().all(|p| p.held() == 0));
    }
    wait_for("an index to wait", || disk.index_is_waiting());
    assert_eq!(run.packets(), offered(&producers).len() as u64);
    // What is behind a block that is being looked at stays as long as that takes, so until the
    // index thread gets to the point where it waits.
    let most = RING_BLOCKS as usize / 4;
    wait_for("no more than a quarter to be kept", || producers.iter().all(|p| p.kept() <= most));
    assert!(behind(&run.totals) > 0);
    disk.open_index_gate();
    run.stop().unwrap();
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
    assert_eq!(index_names(&dir), expected(&dir));
    assert_eq!(behind(&run.totals), 0);
    assert!(run.totals.index_read_bytes.load(SeqCst) > 0, "what was missed is read again");
    assert_eq!(*setup.log.lock().unwrap(), [""; 0]);
}

/// A sink that takes everything and keeps hold of all of it.
#[derive(Clone, Default)]
struct Hoarder(Arc<Mutex<Vec<Box<dyn Hold>>>>);

impl Sink for Hoarder {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome {
        let holds = batch.iter().map(|piece| piece.hold().expect("it is complete"));
        self.0.lock().unwrap().extend(holds);
        SinkOutcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {}

    fn tick(&mut self, _: &[u64]) {}

    fn finish(&mut self, _: &[u64]) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn blocks_that_are_held_and_not_read_are_taken_back() {
    let (mut producer, end) = ring(0);
    let hoarder = Hoarder::default();
    let totals = Arc::new(Totals::new(1));
    let run = Run::start(vec![end], hoarder.clone(), totals, None);
    for _ in 0..100 {
        producer.push(5000);
    }
    run.stop().unwrap();
    assert_eq!(run.packets(), producer.offered.len() as u64);
    assert_eq!(producer.kept(), RING_BLOCKS as usize / 4);
    let mut holds = hoarder.0.lock().unwrap();
    let readable: Vec<bool> = holds.iter_mut().map(|hold| hold.bytes().is_some()).collect();
    let mut expected = [false; 100];
    expected[100 - RING_BLOCKS as usize / 4..].fill(true);
    assert_eq!(readable, expected, "the last quarter of the ring");
    // In whatever order they go, nothing goes back before the oldest.
    let newest = holds.pop();
    drop(newest);
    assert_eq!(producer.kept(), RING_BLOCKS as usize / 4);
    holds.clear();
    assert_eq!(producer.kept(), 0);
}

#[test]
fn a_block_that_is_read_stays_as_long_as_that_takes() {
    let (mut producer, end) = ring(0);
    producer.push(5000);
    let hoarder = Hoarder::default();
    let run = Run::start(vec![end], hoarder.clone(), Arc::new(Totals::new(1)), None);
    wait_for("the first", || hoarder.0.lock().unwrap().len() == 1);
    let mut first = hoarder.0.lock().unwrap().pop().unwrap();
    let before = first.bytes().unwrap().to_vec();
    for _ in 0..100 {
        producer.push(5000);
    }
    run.stop().unwrap();
    assert_eq!(producer.kept(), 101, "what is behind it waits too");
    assert_eq!(first.bytes(), Some(&before[..]));
    drop(first);
    assert_eq!(producer.kept(), RING_BLOCKS as usize / 4);
}

#[test]
fn an_index_goes_with_its_segment() {
    for keep in [1, 3] {
        let (_temp, dir) = directory();
        let mut setup = indexed();
        setup.retention = Retention { segments: Some(keep), ..Retention::default() };
        let (mut producers, ends) = rings(2);
        fill(&mut producers, 100);
        let disk = real_disk(&dir);
        let totals = setup.record(&dir, disk.clone(), ends);
        assert!(disk.removed().len() > 5);
        assert_eq!(names(&dir).len() as u64, keep);
        assert_eq!(index_names(&dir), expected(&dir));
        assert_eq!(totals.bytes_stored.load(SeqCst), disk_usage(&dir));
        assert_eq!(totals.index_bytes.load(SeqCst), bytes_of(&dir, &index_names(&dir)));
        assert_eq!(behind(&totals), 0);
        assert_eq!(*setup.log.lock().unwrap(), [""; 0]);
    }
}

/// Segments are deleted while their index waits for the disk: what comes too late leaves nothing.
#[test]
fn an_index_that_is_late_does_not_outlive_its_segment() {
    let (_temp, dir) = directory();
    let disk = real_disk(&dir);
    disk.shut_index_gate();
    let mut setup = indexed();
    setup.retention = Retention { segments: Some(2), ..Retention::default() };
    let (mut producers, ends) = rings(2);
    fill(&mut producers, 150);
    let run = setup.start(&dir, disk.clone(), ends);
    wait_for("everything to be written", || producers.iter().all(|p| p.held() == 0));
    wait_for("segments to be deleted", || disk.removed().len() > 5);
    wait_for("an index to wait", || disk.index_is_waiting());
    disk.open_index_gate();
    run.stop().unwrap();
    assert_eq!(names(&dir).len(), 2);
    assert_eq!(index_names(&dir), expected(&dir));
    assert_eq!(run.totals.bytes_stored.load(SeqCst), disk_usage(&dir));
    assert_eq!(behind(&run.totals), 0);
    assert_eq!(*setup.log.lock().unwrap(), [""; 0], "nobody misses them");
}

#[test]
fn what_an_index_takes_counts_towards_what_is_kept() {
    let (_temp, dir) = directory();
    let disk = real_disk(&dir);
    disk.watch(&dir);
    let mut setup = indexed();
    let keep = 8 * SEGMENT;
    setup.retention = Retention { bytes: Some(keep), ..Retention::default() };
    let (mut producers, ends) = rings(2);
    fill(&mut producers, 200);
    let totals = setup.record(&dir, disk.clone(), ends);
    assert!(disk.usage_max() <= keep, "{} of {keep}", disk.usage_max());
    assert!(!disk.removed().is_empty());
    assert_eq!(index_names(&dir), expected(&dir));
    assert_eq!(totals.bytes_stored.load(SeqCst), disk_usage(&dir));
}

/// Whichever write of an index fails: packets are all there, it is told once, and at most one
/// segment has no index.
#[test]
fn an_index_that_cannot_be_written_is_told_once_and_costs_nothing_else() {
    let mut without = 0;
    for errno in [Errno::IO, Errno::NOSPC] {
        for number in 1..12 {
            let (_temp, dir) = directory();
            let disk = Faulty::new(number, Odds { torn: 500, ..Odds::default() });
            disk.fail_index_write(number, errno);
            let (mut producers, ends) = rings(2);
            fill(&mut producers, 40);
            let setup = indexed();
            let totals = setup.record(&dir, disk.clone(), ends);
            assert_eq!(disk.violations(), Vec::<String>::new());
            assert_eq!(stored(&read_store(&dir)), offered(&producers));
            assert_eq!(unwritten(&totals), 0);
            assert_eq!(totals.write_errors.load(SeqCst), 0, "it is no packet's");
            assert_eq!(totals.stalled_errno.load(SeqCst), 0);
            let log = setup.log.lock().unwrap();
            assert!(log.len() == 1 && log[0].contains("index"), "{log:?}");
            let there = index_names(&dir);
            assert!(there.iter().all(|n| !is_draft(n)), "{there:?}");
            let expected = expected(&dir);
            let missing = expected.iter().filter(|name| !there.contains(name)).count();
            assert_eq!(missing, 1, "write {number}");
            // What had come into the log before may stay; it is no other segment's.
            assert!(there.len() == expected.len() || there.len() == expected.len() - 1);
            without += usize::from(there.len() < expected.len());
        }
    }
    assert!(without > 0, "a log that could not be written is removed");
}

#[test]
fn a_disk_that_takes_no_index_takes_all_packets() {
    for seed in 0..10 {
        let (_temp, dir) = directory();
        let odds = Odds {
            index_write: 400,
            torn: 500,
            short: 300,
            odd: 300,
            sync: 300,
            sync_dir: 200,
            ..Odds::default()
        };
        let disk = Faulty::new(seed, odds);
        let mut setup = indexed();
        if seed % 2 == 0 {
            setup.retention = Retention { segments: Some(5), ..Retention::default() };
        }
        let (mut producers, ends) = rings(2);
        fill(&mut producers, 80);
        let totals = setup.record(&dir, disk.clone(), ends);
        assert_eq!(disk.violations(), Vec::<String>::new());
        let segments = read_store(&dir);
        // Segments that cannot be made durable keep their live names, and do not count as written.
        let sure: Vec<_> = segments.into_iter().filter(|s| !is_live(&s.0)).collect();
        let there = stored(&sure).len() as u64;
        assert_eq!(there + totals.packets_deleted.load(SeqCst), packets(&totals));
        assert_eq!(packets(&totals) + unwritten(&totals), offered(&producers).len() as u64);
        let unsynced = disk.unsynced();
        assert!(names(&dir).iter().filter(|name| is_live(name)).all(|n| unsynced.contains(n)));
        assert_eq!(behind(&totals), 0);
        let mut told: BTreeMap<String, u32> = BTreeMap::new();
        for line in setup.log.lock().unwrap().iter().filter(|line| line.contains("its index")) {
            *told.entry(line.split(':').next().unwrap().into()).or_default() += 1;
        }
        assert!(told.values().all(|n| *n == 1), "once for each segment: {told:?}");
        let segments = names(&dir);
        for name in index_names(&dir) {
            let of = name.split(".index").next().unwrap();
            assert!(segments.iter().any(|s| s.starts_with(of)), "{name} is nobody's");
        }
    }
}

#[test]
fn one_in_a_hurry_does_not_wait_for_the_index() {
    let (_temp, dir) = directory();
    let disk = real_disk(&dir);
    disk.shut_index_gate();
    let (mut producers, ends) = rings(2);
    fill(&mut producers, 150);
    let run = indexed().start(&dir, disk.clone(), ends);
    wait_for("everything to be written", || producers.iter().all(|p| p.held() == 0));
    wait_for("the indexer to be behind", || disk.index_is_waiting());
    run.control.close_blocks();
    wait_for("the writer to do its part", || run.control.writer_has_ended());
    run.control.hurry();
    disk.open_index_gate();
    run.stop().unwrap();
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
    assert!(behind(&run.totals) > 0, "it is told what is not indexed");
    assert!(!index_names(&dir).iter().any(|n| is_draft(n)));
    assert_eq!(run.totals.bytes_stored.load(SeqCst), disk_usage(&dir));
}

#[test]
fn what_a_crash_left_of_an_index_goes_and_strangers_stay() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(1);
    fill(&mut producers, 4);
    indexed().record(&dir, Disk::new(false), ends);
    let mut kept = index_names(&dir);
    let segment = names(&dir)[0].replace(".pcapng", "");
    std::fs::write(dir.join(format!("{segment}.index.live")), b"log").unwrap();
    std::fs::write(dir.join(format!("{segment}.index.new")), b"draft").unwrap();
    std::fs::write(dir.join("tapdeck-00000009-20260102T030405Z.index"), b"orphan").unwrap();
    std::fs::write(dir.join("tapdeck-00000009-20260102T030405Z.index.live"), b"orphan").unwrap();
    for stranger in ["tapdeck-9-20260102T030405Z.index", "my.index", "tapdeck.index.new"] {
        std::fs::write(dir.join(stranger), b"mine").unwrap();
        kept.push(stranger.into());
    }
    std::fs::create_dir(dir.join("tapdeck-00000008-20260102T030405Z.index")).unwrap();
    kept.push("tapdeck-00000008-20260102T030405Z.index".into());
    kept.sort();
    drop(Store::open(&dir).unwrap());
    assert_eq!(index_names(&dir), kept);
    // A log without an index holds what its segment needs.
    let (index, log) = (format!("{segment}.index"), format!("{segment}.index.live"));
    std::fs::rename(dir.join(index), dir.join(&log)).unwrap();
    drop(Store::open(&dir).unwrap());
    assert!(index_names(&dir).contains(&log));
}
