//! What is deleted, and what never is.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::faulty::{Faulty, Odds, Others};
use common::{
    FakeClock, Setup, directory, disk_usage, is_live, names, offered, packets, read_store, ring,
    rings, stored,
};
use tapdeck_packet::pcapng;
use tapdeck_store::io::{Disk, PAGE};
use tapdeck_store::{MinFree, Retention, SegmentName, Store, Totals};
use tapdeck_testkit::wait_for;

const SEGMENT: u64 = 256 << 10;

/// The disk of this machine, written as a recorder would, with nothing going wrong.
fn real_disk(dir: &Path) -> Faulty {
    std::fs::create_dir_all(dir).unwrap();
    let direct = Disk::direct_works(dir).unwrap();
    Faulty::over(Disk::new(direct), 0, Odds::default())
}

/// Fills some segments of a store without deleting any.
fn earlier_run(dir: &Path, clock: &FakeClock, segments: usize) -> u64 {
    let before = names(dir_made(dir)).len();
    let mut packets = 0;
    for _ in 0..segments {
        let (mut producers, ends) = rings(2);
        producers[0].push(50_000);
        producers[1].push(4000);
        packets += offered(&producers).len() as u64;
        let mut setup = Setup::new(SEGMENT);
        setup.clock = clock.clone();
        setup.record(dir, Disk::new(false), ends);
    }
    assert_eq!(names(dir).len(), before + segments);
    packets
}

fn dir_made(dir: &Path) -> &Path {
    std::fs::create_dir_all(dir).unwrap();
    dir
}

fn numbers(dir: &Path) -> Vec<u64> {
    names(dir).iter().map(|n| SegmentName::parse(n).unwrap().number).collect()
}

fn deleted(totals: &Totals) -> (u64, u64) {
    (totals.segments_deleted.load(SeqCst), totals.packets_deleted.load(SeqCst))
}

#[test]
fn the_disk_never_holds_more_than_was_said() {
    let (_temp, dir) = directory();
    let disk = real_disk(&dir);
    disk.watch(&dir);
    let keep = 8 * SEGMENT;
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { bytes: Some(keep), ..Retention::default() };
    let (mut producers, ends) = rings(2);
    // Blocks that fill a segment to the last page: the statistics must fit as well.
    for _ in 0..90 {
        for p in &mut producers {
            p.push(32 << 10);
        }
    }
    let totals = setup.record(&dir, disk.clone(), ends);
    assert!(disk.usage_max() <= keep, "{} of {keep}", disk.usage_max());
    assert!(disk_usage(&dir) + 3 * SEGMENT > keep, "no more goes than must");
    assert_eq!(disk.violations(), Vec::<String>::new());
    let removed = disk.removed();
    assert!(removed.is_sorted() && !removed.is_empty(), "{removed:?}");
    assert!(removed.last() < names(&dir).first(), "the oldest go");
    let there = stored(&read_store(&dir));
    assert_eq!(packets(&totals), offered(&producers).len() as u64);
    assert_eq!(there.len() as u64 + deleted(&totals).1, packets(&totals));
    assert_eq!(deleted(&totals).0, removed.len() as u64);
    assert_eq!(totals.bytes_stored.load(SeqCst), disk_usage(&dir));
}

#[test]
fn no_segment_is_larger_than_was_said() {
    for interfaces in [1, 2, 50] {
        let (_temp, dir) = directory();
        let (mut producers, ends) = rings(interfaces);
        for _ in 0..200 {
            producers[0].push(PAGE);
        }
        Setup::new(SEGMENT).record(&dir, Disk::new(false), ends);
        let segments = read_store(&dir);
        assert!(segments.len() > 1);
        for (name, segment) in &segments {
            assert!(segment.bytes <= SEGMENT, "{name}: {} of {SEGMENT}", segment.bytes);
        }
        // All but the last are full: one more block would not have fitted.
        for (name, segment) in &segments[..segments.len() - 1] {
            assert!(segment.bytes + 2 * PAGE as u64 > SEGMENT, "{name} is not full");
        }
    }
}

#[test]
fn so_many_segments_remain_and_the_last_is_always_one_of_them() {
    for keep in [1, 2, 3, 7] {
        let (_temp, dir) = directory();
        let mut setup = Setup::new(SEGMENT);
        setup.retention = Retention { segments: Some(keep), ..Retention::default() };
        let disk = real_disk(&dir);
        let (mut producer, end) = ring(0);
        for _ in 0..40 {
            producer.push(60_000);
        }
        let totals = setup.record(&dir, disk.clone(), vec![end]);
        let begun = totals.segments.load(SeqCst);
        assert!(begun > 8);
        let newest: Vec<u64> = (begun + 1 - keep..=begun).collect();
        assert_eq!(numbers(&dir), newest);
        assert_eq!(deleted(&totals).0, begun - keep);
        let there = stored(&read_store(&dir));
        assert_eq!(there.len() as u64 + deleted(&totals).1, producer.offered.len() as u64);
        assert_eq!(there, producer.offered[producer.offered.len() - there.len()..]);
    }
}

#[test]
fn a_short_recording_outlives_the_recorder() {
    for retention in [
        Retention { segments: Some(1), ..Retention::default() },
        Retention { bytes: Some(3 * SEGMENT), ..Retention::default() },
        Retention { bytes: Some(SEGMENT), ..Retention::default() },
        Retention { age: Some(Duration::ZERO), ..Retention::default() },
    ] {
        let (_temp, dir) = directory();
        let mut setup = Setup::new(SEGMENT);
        setup.retention = retention;
        let (mut producer, end) = ring(0);
        producer.push(10_000);
        let totals = setup.record(&dir, Disk::new(false), vec![end]);
        assert_eq!(stored(&read_store(&dir)), producer.offered, "{retention:?}");
        assert_eq!(deleted(&totals), (0, 0));
    }
}

#[test]
fn what_is_being_written_stays() {
    let (_temp, dir) = directory();
    let disk = real_disk(&dir);
    let mut setup = Setup::new(SEGMENT);
    // Everything is too much.
    setup.retention = Retention {
        bytes: Some(1),
        segments: Some(0),
        age: Some(Duration::ZERO),
        min_free: Some(MinFree::Bytes(u64::MAX)),
    };
    let (mut producer, end) = ring(0);
    for _ in 0..30 {
        producer.push(60_000);
    }
    let run = setup.start(&dir, disk.clone(), vec![end]);
    wait_for("everything to be written", || producer.held() == 0);
    wait_for("the others to go", || numbers(&dir) == [run.totals.segments.load(SeqCst)]);
    assert!(is_live(&names(&dir)[0]));
    let there = stored(&read_store(&dir));
    run.stop().unwrap();
    assert!(!there.is_empty());
    assert!(disk.removed().iter().all(|name| !is_live(name)), "{:?}", disk.removed());
    assert_eq!(deleted(&run.totals).1, producer.offered.len() as u64);
}

#[test]
fn segments_go_when_their_last_packet_is_too_old() {
    let (_temp, dir) = directory();
    let clock = FakeClock::new();
    for minute in 0..6 {
        clock.set(minute * 60);
        earlier_run(&dir, &clock, 1);
    }
    // The last packet of the fifth came at 240 s, though the next began at 300 s only.
    for (at, left) in [(340, vec![5, 6]), (341, vec![6]), (100_000, vec![6])] {
        let copy = dir.with_extension(at.to_string());
        copy_store(&dir, &copy);
        clock.set(at);
        let mut setup = Setup::new(SEGMENT);
        setup.clock = clock.clone();
        setup.retention = Retention { age: Some(Duration::from_secs(100)), ..Retention::default() };
        let (_, end) = ring(0);
        let totals = setup.record(&copy, Disk::new(false), vec![end]);
        assert_eq!(numbers(&copy), left, "at {at} s");
        assert_eq!(deleted(&totals).0, 6 - left.len() as u64);
    }
}

fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in names(from) {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

#[test]
fn the_space_that_others_count_on_stays_free() {
    const TOTAL: u64 = 8 << 20;
    for min_free in [MinFree::Bytes(2 << 20), MinFree::Share(0.25)] {
        let (_temp, dir) = directory();
        let disk = Faulty::sound().with_budget(TOTAL);
        let mut setup = Setup::new(SEGMENT);
        setup.retention = Retention { min_free: Some(min_free), ..Retention::default() };
        let (mut producer, end) = ring(0);
        for _ in 0..160 {
            producer.push(60_000);
        }
        let totals = setup.record(&dir, disk.clone(), vec![end]);
        let most = TOTAL - (2 << 20);
        assert!(disk.used_max() <= most, "{} of {most}", disk.used_max());
        assert!(disk.used_max() + SEGMENT + 8192 > most, "no more goes than must");
        assert!(disk.removed().is_sorted() && !disk.removed().is_empty());
        let there = stored(&read_store(&dir));
        assert_eq!(there, producer.offered[producer.offered.len() - there.len()..]);
        assert_eq!(there.len() as u64 + deleted(&totals).1, packets(&totals));
        assert_eq!(packets(&totals), producer.offered.len() as u64);
    }
}

/// Fills a disk with segments, of which retention may delete any, and goes on recording when it is
/// full and others do with freed room what they do. Then there is room.
fn full_disk(others: Others) -> (Faulty, Setup, usize) {
    const FULL: usize = 12;
    let (_temp, dir) = directory();
    let disk = Faulty::sound().with_budget(64 * SEGMENT);
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { bytes: Some(1 << 40), ..Retention::default() };
    let (mut producer, end) = ring(0);
    let run = setup.start(&dir, disk.clone(), vec![end]);
    while numbers(&dir).len() < FULL {
        producer.push(60_000);
        wait_for("the block to be written", || producer.held() == 0);
    }
    disk.set_budget(disk.used());
    disk.set_others(others);
    for _ in 0..100 {
        producer.push(60_000);
    }
    // Retention could make room a segment at a time, and all is held back by others.
    wait_for("the stall", || run.totals.stalled_errno.load(SeqCst) != 0);
    wait_for("the user to be told", || {
        setup
            .log
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("no more are deleted") || line.contains("cannot delete"))
    });
    let removed = disk.removed().len();
    producer.until_looked_at();
    // The keeper answers when it has done all that it was told before.
    run.begin_segment();
    assert_eq!(disk.removed().len(), removed, "deleting has stopped");
    assert!(producer.held() > 0, "packets wait");

    disk.set_others(Others::Leave);
    disk.set_budget(disk.used() + 64 * SEGMENT + (32 << 20));
    wait_for("recording to go on", || producer.held() == 0);
    run.stop().unwrap();
    assert_eq!(disk.violations(), Vec::<String>::new());
    assert!(disk.outran() <= 2 * SEGMENT, "{} bytes", disk.outran());
    assert_eq!(packets(&run.totals), producer.offered.len() as u64);
    let there = stored(&read_store(&dir));
    assert_eq!(there.len() as u64 + deleted(&run.totals).1, packets(&run.totals));
    assert_eq!(deleted(&run.totals).0, disk.removed().len() as u64);
    (disk, setup, removed)
}

#[test]
fn others_that_take_each_freed_byte_cost_two_segments_and_no_more() {
    // The room is gone before it could be used, so that each deletion looks like a success.
    let (_, _, removed) = full_disk(Others::TakeFirst);
    assert!((1..=2).contains(&removed), "{removed}");
}

#[test]
fn a_write_that_is_not_counted_yet_lets_no_more_go() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound().with_budget(64 * SEGMENT);
    let mut setup = Setup::new(SEGMENT);
    let min_free = Some(MinFree::Bytes(8 * SEGMENT));
    setup.retention = Retention { min_free, ..Retention::default() };
    let (mut producer, end) = ring(0);
    let run = setup.start(&dir, disk.clone(), vec![end]);
    for _ in 0..12 {
        producer.push(60_000);
        wait_for("the block to be written", || producer.held() == 0);
        run.begin_segment();
    }
    // The first block of a segment is alone, so that those behind it are one write.
    disk.shut_gate(disk.writes() + 1);
    producer.push(60_000);
    wait_for("the segment to begin", || disk.is_waiting());
    for _ in 0..3 {
        producer.push(60_000);
    }
    disk.hold_back(150_000);
    disk.open_gate(None);
    wait_for("the write", || disk.is_lingering());

    disk.set_budget(disk.used());
    let told = || setup.log.lock().unwrap().iter().any(|line| line.contains("no more are deleted"));
    wait_for("as much to go as may", told);
    let removed = disk.removed().len();
    assert!((1..12).contains(&removed), "{removed}");
    disk.bring_back();
    wait_for("the write to be counted", || producer.held() == 0);
    // The keeper answers when it has closed the segment, and looked what may go.
    run.begin_segment();
    assert_eq!(disk.removed().len(), removed);
    assert!(disk.outran() <= 2 * SEGMENT, "{} bytes", disk.outran());
    disk.set_budget(64 * SEGMENT);
    run.stop().unwrap();
    assert_eq!(disk.violations(), Vec::<String>::new());
}

#[test]
fn a_deletion_that_brings_no_room_back_is_the_last() {
    for others in [Others::Take, Others::Hold] {
        let (_, setup, removed) = full_disk(others);
        assert_eq!(removed, 1, "{others:?}");
        let log = setup.log.lock().unwrap();
        let told = log.iter().filter(|line| line.contains("gave no room back")).count();
        assert_eq!(told, 1, "{log:?}");
    }
}

#[test]
fn segments_that_cannot_be_deleted_are_no_room() {
    let (disk, setup, removed) = full_disk(Others::Refuse);
    assert_eq!((removed, disk.removed().len()), (0, 0));
    let log = setup.log.lock().unwrap();
    assert_eq!(log.iter().filter(|line| line.contains("cannot delete")).count(), 1, "{log:?}");
}

#[test]
fn a_segment_that_cannot_be_deleted_stays_and_counts_and_younger_ones_go() {
    let (_temp, dir) = directory();
    earlier_run(&dir, &FakeClock::new(), 3);
    let disk = Faulty::sound();
    disk.make_immutable(&names(&dir)[0]);
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(4), ..Retention::default() };
    let (mut producer, end) = ring(0);
    for _ in 0..60 {
        producer.push(60_000);
    }
    let totals = setup.record(&dir, disk.clone(), vec![end]);
    let last = 3 + totals.segments.load(SeqCst);
    assert_eq!(numbers(&dir), [1, last - 2, last - 1, last]);
    assert_eq!(deleted(&totals).0, last - 4, "a deletion that failed is none");
    assert_eq!(disk.removed().len() as u64, last - 4);
    assert_eq!(totals.bytes_stored.load(SeqCst), disk_usage(&dir));
    let log = setup.log.lock().unwrap();
    assert_eq!(log.iter().filter(|line| line.contains("cannot delete")).count(), 1, "{log:?}");
}

/// Ten years, in seconds.
const TEN_YEARS: i64 = 10 * 365 * 86_400;

#[test]
fn a_clock_that_was_set_before_the_recorder_began_makes_no_segment_older() {
    for step in [-TEN_YEARS, TEN_YEARS] {
        let (_temp, dir) = directory();
        let clock = FakeClock::new();
        for _ in 0..6 {
            earlier_run(&dir, &clock, 1);
            clock.pass(60);
        }
        clock.step(step);
        let mut setup = Setup::new(SEGMENT);
        setup.clock = clock.clone();
        setup.retention = Retention { age: Some(Duration::from_secs(600)), ..Retention::default() };
        let (_, end) = ring(0);
        setup.record(&dir, Disk::new(false), vec![end]);
        assert_eq!(numbers(&dir), [1, 2, 3, 4, 5, 6], "{step}");
        // The last packet of the third came 240 s before the clock was set.
        clock.pass(600 - 240 + 1);
        let (_, end) = ring(0);
        setup.record(&dir, Disk::new(false), vec![end]);
        assert_eq!(numbers(&dir), [4, 5, 6], "{step}");
    }
}

#[test]
fn a_clock_that_is_set_while_recording_makes_no_segment_older() {
    for step in [-TEN_YEARS, TEN_YEARS] {
        let (_temp, dir) = directory();
        let clock = FakeClock::new();
        let mut setup = Setup::new(SEGMENT);
        setup.clock = clock.clone();
        setup.retention = Retention { age: Some(Duration::from_secs(600)), ..Retention::default() };
        let (mut producer, end) = ring(0);
        let run = setup.start(&dir, Disk::new(false), vec![end]);
        let mut segment = || {
            producer.push(5000);
            wait_for("the block to be written", || producer.held() == 0);
            run.begin_segment();
        };
        for _ in 0..3 {
            segment();
            clock.pass(60);
        }
        clock.step(step);
        for _ in 0..3 {
            segment();
            clock.pass(60);
        }
        clock.step(-step);
        segment();
        assert_eq!(numbers(&dir), [1, 2, 3, 4, 5, 6, 7], "{step}");
        // The last packet of the fifth came 120 s ago, and 600 s are not too long.
        clock.pass(600 - 120);
        segment();
        assert_eq!(numbers(&dir), [5, 6, 7, 8], "{step}");
        run.stop().unwrap();
        // A later recorder knows which segments were recorded with the other clock.
        clock.pass(1);
        let (_, end) = ring(0);
        setup.record(&dir, Disk::new(false), vec![end]);
        assert_eq!(numbers(&dir), [6, 7, 8], "{step}");
    }
}

#[test]
fn limits_that_are_lowered_hold_from_the_beginning() {
    for by_bytes in [false, true] {
        let (_temp, dir) = directory();
        let (mut producer, end) = ring(0);
        for _ in 0..60 {
            producer.push(60_000);
        }
        Setup::new(SEGMENT).record(&dir, Disk::new(false), vec![end]);
        assert!(numbers(&dir).len() > 12);
        let mut setup = Setup::new(SEGMENT);
        setup.retention = if by_bytes {
            Retention { bytes: Some(6 * SEGMENT), ..Retention::default() }
        } else {
            Retention { segments: Some(4), ..Retention::default() }
        };
        let (_, end) = ring(0);
        setup.record(&dir, Disk::new(false), vec![end]);
        let left = numbers(&dir).len();
        assert!(if by_bytes { (3..=5).contains(&left) } else { left == 3 }, "{left}");
    }
}

#[test]
fn more_free_space_than_there_can_be_is_told_at_once() {
    let told = |min_free| {
        let (_temp, dir) = directory();
        let disk = Faulty::sound().with_budget(64 * SEGMENT);
        let mut setup = Setup::new(SEGMENT);
        setup.retention = Retention { min_free: Some(min_free), ..Retention::default() };
        let (_, end) = ring(0);
        let run = setup.start(&dir, disk, vec![end]);
        // The keeper answers when it has looked.
        run.begin_segment();
        let told = setup.log.lock().unwrap().iter().any(|line| line.contains("--min-free"));
        run.stop().unwrap();
        told
    };
    assert!(told(MinFree::Share(0.99)));
    assert!(!told(MinFree::Share(0.5)));
}

#[test]
fn segments_of_an_earlier_run_are_counted_by_what_they_hold() {
    let (_temp, dir) = directory();
    let clock = FakeClock::new();
    let before = earlier_run(&dir, &clock, 5);
    let held: Vec<u64> = read_store(&dir).iter().map(|s| s.1.packets.len() as u64).collect();
    assert_eq!(held.iter().sum::<u64>(), before);
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(3), ..Retention::default() };
    let (mut producer, end) = ring(0);
    producer.push(5_000);
    let totals = setup.record(&dir, Disk::new(false), vec![end]);
    assert_eq!(numbers(&dir), [4, 5, 6]);
    assert_eq!(deleted(&totals), (3, held[..3].iter().sum()));
}

/// Where the last packet block of a file begins.
fn last_packet_at(data: &[u8]) -> usize {
    let mut reader = pcapng::Reader::new(data);
    let mut last = 0;
    loop {
        let at = reader.offset();
        match reader.next() {
            Some(Ok(pcapng::Record::Packet(_))) => last = at as usize,
            Some(Ok(_)) => {}
            _ => return last,
        }
    }
}

/// What a crash leaves: the name of a live segment, no statistics, and a torn end.
#[test]
fn segments_that_a_crash_left_are_counted_packet_by_packet() {
    let (_temp, dir) = directory();
    earlier_run(&dir, &FakeClock::new(), 3);
    let mut readable = 0;
    for (i, (name, segment)) in read_store(&dir).into_iter().enumerate() {
        let path = dir.join(&name);
        let mut data = std::fs::read(&path).unwrap();
        let whole = segment.packets.len() as u64;
        // The statistics and the filling behind them are one page.
        data.truncate(data.len() - 4096);
        readable += match i {
            0 => whole,
            1 => {
                data.extend([0; 4096]);
                whole
            }
            _ => {
                // Into the middle of the last packet: the filling behind it goes, and more.
                data.truncate(last_packet_at(&data) + 20);
                whole - 1
            }
        };
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.join(name + ".live"), &data).unwrap();
    }
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(1), ..Retention::default() };
    let (mut producer, end) = ring(0);
    producer.push(5_000);
    let totals = setup.record(&dir, Disk::new(false), vec![end]);
    assert_eq!(numbers(&dir), [4]);
    assert_eq!(deleted(&totals), (3, readable));
}

#[test]
fn a_segment_that_somebody_else_deleted_is_not_counted() {
    let (_temp, dir) = directory();
    earlier_run(&dir, &FakeClock::new(), 4);
    let gone = names(&dir);
    let disk = Faulty::sound();
    disk.shut_gate(1);
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(5), ..Retention::default() };
    let (mut producer, end) = ring(0);
    for _ in 0..20 {
        producer.push(60_000);
    }
    let run = setup.start(&dir, disk.clone(), vec![end]);
    wait_for("the store to be looked at", || disk.is_waiting());
    std::fs::remove_file(dir.join(&gone[0])).unwrap();
    std::fs::remove_file(dir.join(&gone[1])).unwrap();
    disk.open_gate(None);
    run.stop().unwrap();
    let begun = run.totals.segments.load(SeqCst);
    assert_eq!(numbers(&dir).len(), 5);
    assert_eq!(deleted(&run.totals).0, 4 + begun - 5 - 2);
}

/// Things in the directory that are nobody's business, each with what it holds.
fn strangers(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut other = Vec::new();
    pcapng::section_header(&mut other, "Linux", "Dumpcap (Wireshark) 4.0.0", None);
    let mut nobodys = Vec::new();
    pcapng::section_header(&mut nobodys, "Linux", "", None);
    let mut made = Vec::new();
    let mut file = |name: &[u8], data: &[u8]| {
        let path = dir.join(OsStr::from_bytes(name));
        std::fs::write(&path, data).unwrap();
        made.push((path, Some(data.to_vec())));
    };
    // The very names that this recorder would take.
    file(b"tapdeck-00000001-20260102T030405Z.pcapng", &other);
    file(b"tapdeck-00000002-20260102T030405Z.pcapng.live", &other);
    file(b"tapdeck-00000003-20260102T030405Z.pcapng", b"");
    file(b"tapdeck-00000004-20260102T030405Z.pcapng", &nobodys);
    file(b"tapdeck-00000005-20260102T030405Z.pcapng", &other[..other.len() - 4]);
    file(b"tapdeck-00000006-20260102T030405Z.pcapng.bak", &other);
    file(b"tapdeck-1-20260102T030405Z.pcapng", &other);
    file(b"tapdeck-00000001-20260102T030405Z.pcapng~", &other);
    file(b"evidence.pcapng", &other);
    file(b"tapdeck-00000007-\xff\xfe.pcapng", &other);
    file(b"\xff\xfe", b"notes");
    file(b".hidden", b"notes");
    let real = dir.parent().unwrap().join("elsewhere.pcapng");
    let mut ours = Vec::new();
    pcapng::section_header(&mut ours, "Linux", "tapdeck 0.1.0", None);
    std::fs::write(&real, &ours).unwrap();
    let link = dir.join("tapdeck-00000008-20260102T030405Z.pcapng");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    made.push((link, Some(ours.clone())));
    made.push((real, Some(ours)));
    let folder = dir.join("tapdeck-00000009-20260102T030405Z.pcapng");
    std::fs::create_dir(&folder).unwrap();
    made.push((folder, None));
    let dangling = dir.join("tapdeck-00000010-20260102T030405Z.pcapng.live");
    std::os::unix::fs::symlink("/nowhere/at/all", &dangling).unwrap();
    made.push((dangling, None));
    made
}

#[test]
fn files_of_others_are_never_touched() {
    let (_temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    let strangers = strangers(&dir);
    assert_eq!(Store::segments(&dir).unwrap(), []);
    let disk = real_disk(&dir);
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention {
        bytes: Some(1),
        segments: Some(1),
        age: Some(Duration::ZERO),
        min_free: Some(MinFree::Share(1.0)),
    };
    let (mut producer, end) = ring(0);
    for _ in 0..30 {
        producer.push(60_000);
    }
    let totals = setup.record(&dir, disk.clone(), vec![end]);
    assert_eq!(disk.violations(), Vec::<String>::new());
    assert_eq!(packets(&totals), producer.offered.len() as u64);
    assert_eq!(disk.removed().len() as u64, totals.segments.load(SeqCst));
    for (path, data) in strangers {
        let meta = path.symlink_metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        match data {
            Some(data) => assert_eq!(std::fs::read(&path).unwrap(), data, "{}", path.display()),
            None => assert!(meta.is_dir() || meta.is_symlink(), "{}", path.display()),
        }
    }
}
