//! Whatever a disk does, every packet is written once or counted as unwritten, and nothing that is
//! written is damaged.

mod common;

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::faulty::{Faulty, Odds};
use common::{
    Contained, Producer, Run, Setup, directory, index_names, is_live, lost, names, offered,
    packets, read_bytes, read_store, rings, stored, unwritten,
};
use rustix::io::Errno;
use tapdeck_store::io::Disk;
use tapdeck_store::{ClosedScope, Retention, Scope, Store};
use tapdeck_testkit::{SplitMix64, wait_for};

const SEGMENT: u64 = 128 << 10;
/// More than a full disk must have before a segment is begun again.
const AMPLE: u64 = 64 << 20;

/// Fills rings while the writer runs: blocks of all lengths, losses, and steps of the clock, of
/// which a ring may sleep through any.
fn produce(producers: &mut [Producer], rng: &mut SplitMix64, blocks: usize, epoch: &mut u8) {
    for _ in 0..blocks {
        let at = rng.below(producers.len());
        if rng.per_mille(200) {
            producers[at].lose(1 + rng.draw() % 100);
        }
        producers[at].push_any(rng);
        if rng.per_mille(60) {
            *epoch = epoch.wrapping_add(1);
            for p in producers.iter() {
                p.step_to(*epoch);
            }
        }
    }
}

/// What holds after any recording.
fn check_laws(
    dir: &Path,
    disk: &Faulty,
    run: &Run,
    producers: &[Producer],
) -> Vec<(String, Contained)> {
    assert_eq!(disk.violations(), Vec::<String>::new());
    let totals = &run.totals;
    let segments = read_store(dir);
    let there = stored(&segments);
    let all = offered(producers);
    let deleted = totals.packets_deleted.load(SeqCst);
    // What could not be made durable may be gone, and does not count as written.
    let unsynced = disk.unsynced();
    assert!(unsynced.iter().all(|name| is_live(name)), "closed: {unsynced:?}");
    let is_unsure = |(name, _): &&(String, Contained)| unsynced.contains(name);
    let unsure = segments.iter().filter(is_unsure).map(|s| s.1.packets.len()).sum::<usize>();
    let sure = (there.len() - unsure) as u64;
    assert_eq!(sure + deleted, packets(totals), "stored and deleted");
    assert_eq!(packets(totals) + unwritten(totals), all.len() as u64, "written and unwritten");
    assert!(there.iter().all(|id| all.binary_search(id).is_ok()), "a packet nobody offered");
    for p in producers {
        let told = &totals.interfaces[p.offered.first().map_or(0, |id| id.interface) as usize];
        if let Some(id) = p.offered.first() {
            let of = p.offered.iter().filter(|o| o.interface == id.interface).count() as u64;
            assert_eq!(told.packets.load(SeqCst) + told.unwritten.load(SeqCst), of);
        }
    }
    let begun = totals.segments.load(SeqCst);
    assert_eq!(begun, segments.len() as u64 + totals.segments_deleted.load(SeqCst));
    assert!(!dir.join(".tapdeck-next").exists(), "the segment set aside was left behind");
    if totals.segments_deleted.load(SeqCst) == 0 {
        let on_disk: u64 = segments.iter().map(|s| s.1.bytes).sum();
        assert!(totals.bytes_written.load(SeqCst) <= on_disk);
    }
    segments
}

fn storm(seed: u64) {
    let mut rng = SplitMix64(seed);
    let mut often = |n: usize| if rng.per_mille(500) { rng.below(n) as u32 } else { 0 };
    let odds = Odds {
        short: often(400),
        odd: often(400),
        write: often(150),
        torn: often(1000),
        create: often(200),
        preallocate: often(200),
        rename: 0,
        sync: often(300),
        sync_dir: often(300),
        index_write: often(300),
        cut_takes: Duration::ZERO,
    };
    let (_temp, dir) = directory();
    let disk = Faulty::new(rng.draw(), odds);
    let mut setup = Setup::new(SEGMENT << rng.below(3));
    setup.indexed = rng.per_mille(700);
    if rng.per_mille(300) {
        setup.retention = Retention { segments: Some(4), ..Retention::default() };
    }
    let scarce = rng.per_mille(300);
    if scarce {
        disk.set_budget(SEGMENT * (1 + rng.draw() % 12) + rng.draw() % SEGMENT);
    }
    let (mut producers, ends) = rings(1 + rng.below(4) as u32);
    let mut epoch = 0;
    produce(&mut producers, &mut rng, 40, &mut epoch);
    let run = setup.start(&dir, disk.clone(), ends);
    produce(&mut producers, &mut rng, 40, &mut epoch);
    wait_for("everything to be written", || {
        if run.totals.stalled_errno.load(SeqCst) == Errno::NOSPC.raw_os_error() as u64 {
            disk.set_budget(disk.used() + AMPLE);
        }
        producers.iter().all(|p| p.held() == 0)
    });
    run.stop().unwrap();

    let segments = check_laws(&dir, &disk, &run, &producers);
    let unsynced = disk.unsynced();
    let is_unsure = |(name, _): &&(String, Contained)| unsynced.contains(name);
    let unsure: usize = segments.iter().filter(is_unsure).map(|s| s.1.packets.len()).sum();
    if !setup.retention.deletes() || unsynced.is_empty() {
        assert_eq!(unwritten(&run.totals), unsure as u64, "there was room in the end");
    }
    assert!(segments.iter().all(|s| is_live(&s.0) == is_unsure(&s)), "all others are closed");
    if !setup.retention.deletes() {
        assert_eq!(stored(&segments), offered(&producers));
        assert_eq!(run.totals.segments_deleted.load(SeqCst), 0);
    }
    if odds.write == 0 && !scarce && !setup.retention.deletes() {
        // Nothing kept the statistics from the disk.
        let told: u64 = segments.iter().map(|s| s.1.delivered()).sum();
        assert_eq!(told, packets(&run.totals) + unsure as u64);
        let told: u64 = segments.iter().map(|s| s.1.dropped()).sum();
        assert_eq!(told, lost(&producers));
    }
}

#[test]
fn packets_come_through_any_faults_once_and_whole() {
    for seed in 0..60 {
        if let Err(panic) = std::panic::catch_unwind(|| storm(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn short_writes_are_taken_up_where_they_ended() {
    for seed in 0..20 {
        let (_temp, dir) = directory();
        let odds = Odds { short: 500, odd: 500, ..Odds::default() };
        let disk = Faulty::new(seed, odds);
        let (mut producers, ends) = rings(2);
        produce(&mut producers, &mut SplitMix64(seed), 40, &mut 0);
        let totals = Setup::new(SEGMENT).record(&dir, disk.clone(), ends);
        assert_eq!(disk.violations(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(stored(&read_store(&dir)), offered(&producers), "seed {seed}");
        assert_eq!(totals.write_errors.load(SeqCst), 0);
        let on_disk: u64 = read_store(&dir).iter().map(|s| s.1.bytes).sum();
        // All but the statistics of each segment's end: a page.
        let ends = totals.segments.load(SeqCst) * 4096;
        assert_eq!(totals.bytes_written.load(SeqCst) + ends, on_disk, "seed {seed}");
    }
}

/// Whichever write of a recording fails, and whatever it leaves: the file is cut behind its last
/// whole block and left alone, and the recording goes on in another one.
#[test]
fn after_an_i_o_error_the_file_is_only_cut() {
    for number in 1..20 {
        let (_temp, dir) = directory();
        let disk = Faulty::new(number, Odds { torn: 700, ..Odds::default() });
        disk.fail_write(number, Errno::IO);
        let (mut producers, ends) = rings(2);
        for _ in 0..12 {
            for p in &mut producers {
                p.push(30_000);
                p.lose(3);
            }
        }
        let setup = Setup::new(SEGMENT);
        let run = setup.start(&dir, disk.clone(), ends);
        run.stop().unwrap();
        let segments = check_laws(&dir, &disk, &run, &producers);
        assert_eq!(stored(&segments), offered(&producers), "write {number}");
        let told: u64 = segments.iter().map(|s| s.1.dropped()).sum();
        let log = setup.log.lock().unwrap().join("\n");
        if log.contains("cannot be closed properly") {
            // It was the statistics that could not be written.
            assert_eq!(run.totals.write_errors.load(SeqCst), 1, "write {number}");
        } else {
            assert_eq!(told, lost(&producers), "losses of a broken segment are told by the next");
        }
        let broken = segments.iter().filter(|s| s.1.statistics.is_empty()).count() as u64;
        assert!(broken <= 1, "one write failed, {broken} segments are without statistics");
        assert!(broken == 0 || run.totals.write_errors.load(SeqCst) == 1, "write {number}");
        assert_eq!(run.totals.stalled_errno.load(SeqCst), 0, "write {number}");
    }
}

#[test]
fn a_write_error_is_counted_and_told() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    // The first is the segment's head.
    disk.fail_write(2, Errno::IO);
    let (mut producers, ends) = rings(1);
    producers[0].push(10_000);
    let setup = Setup::new(SEGMENT);
    let totals = setup.record(&dir, disk, ends);
    assert_eq!(totals.write_errors.load(SeqCst), 1);
    assert_eq!(totals.segments.load(SeqCst), 2);
    assert!(setup.log.lock().unwrap().iter().any(|line| line.contains("write failed")));
}

/// What may not be on disk is not said to be there: by the segment's name, by its index and by the
/// counters. The next recorder looks what is there.
#[test]
fn a_segment_that_cannot_be_made_durable_says_so() {
    for (with, errors) in [(Errno::IO, 1), (Errno::NOSPC, 0), (Errno::DQUOT, 0)] {
        let (_temp, dir) = directory();
        let disk = Faulty::sound();
        disk.fail_sync(2, with);
        let (mut producers, ends) = rings(2);
        for p in &mut producers {
            for _ in 0..12 {
                p.push(30_000);
            }
        }
        let mut setup = Setup::new(SEGMENT);
        setup.indexed = true;
        let run = setup.start(&dir, disk.clone(), ends);
        run.stop().unwrap();
        let segments = check_laws(&dir, &disk, &run, &producers);
        assert!(segments.len() > 3);
        let live: Vec<&(String, Contained)> = segments.iter().filter(|s| is_live(&s.0)).collect();
        assert_eq!(live.len(), 1, "{with}");
        let (name, unsure) = live[0];
        assert_eq!(disk.unsynced(), [name.as_str()]);
        assert_eq!(unwritten(&run.totals), unsure.packets.len() as u64);
        assert!(!unsure.packets.is_empty());
        let frames: u64 = run.totals.interfaces.iter().map(|i| i.frame_bytes.load(SeqCst)).sum();
        let sure = segments.iter().filter(|s| !is_live(&s.0)).flat_map(|s| &s.1.frame_bytes);
        assert_eq!(frames, sure.sum::<u64>());
        assert_eq!(run.totals.write_errors.load(SeqCst), errors, "{with}");
        assert!(setup.log.lock().unwrap().iter().any(|line| line.contains("may be lost")));
        let stem = name.strip_suffix(".pcapng.live").unwrap();
        assert!(!index_names(&dir).contains(&format!("{stem}.index")), "an index says it is whole");

        let mut store = Store::open(&dir).unwrap();
        let scope = Scope { closed: ClosedScope::None, index: true };
        store.recover(&Disk::new(false), scope, |_| {}).unwrap();
        assert!(names(&dir).iter().all(|name| !is_live(name)));
        assert_eq!(stored(&read_store(&dir)), offered(&producers));
    }
}

#[test]
fn a_stalled_disk_holds_blocks_back_and_nothing_is_lost() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    disk.shut_gate(4);
    let (mut producers, ends) = rings(2);
    let mut rng = SplitMix64(7);
    produce(&mut producers, &mut rng, 30, &mut 0);
    let run = Setup::new(SEGMENT).start(&dir, disk.clone(), ends);
    wait_for("a write that blocks", || disk.is_waiting());
    let held: usize = producers.iter().map(Producer::held).sum();
    // More comes while the disk stands still.
    produce(&mut producers, &mut rng, 30, &mut 0);
    assert_eq!(producers.iter().map(Producer::held).sum::<usize>(), held + 30);
    disk.open_gate(None);
    run.stop().unwrap();
    check_laws(&dir, &disk, &run, &producers);
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
}

#[test]
fn a_live_segment_is_readable_up_to_its_end() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    disk.shut_gate(1);
    let (mut producers, ends) = rings(2);
    for p in &mut producers {
        for _ in 0..30 {
            p.push(20_000);
        }
    }
    let run = Setup::new(SEGMENT).start(&dir, disk.clone(), ends);
    let mut lives = 0;
    let mut seen = 0;
    let mut number = 1;
    loop {
        wait_for("the next write", || disk.is_waiting() || producers.iter().all(|p| p.held() == 0));
        if !disk.is_waiting() {
            break;
        }
        // A segment that is just being closed has its old name or its new one.
        for name in names(&dir) {
            let Ok(data) = std::fs::read(dir.join(&name)) else { continue };
            lives += usize::from(is_live(&name));
            seen = seen.max(read_bytes(&name, &data).packets.len());
        }
        number += 1;
        disk.open_gate(Some(number));
    }
    disk.open_gate(None);
    run.stop().unwrap();
    assert!(lives > 5 && seen > 0, "{lives} looks at live segments, {seen} packets");
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
}

#[test]
fn a_full_disk_holds_blocks_until_there_is_room() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound().with_budget(3 * SEGMENT + 9000);
    let (mut producers, ends) = rings(2);
    for p in &mut producers {
        for _ in 0..30 {
            p.push(20_000);
            p.lose(1);
        }
    }
    let run = Setup::new(SEGMENT).start(&dir, disk.clone(), ends);
    let full = Errno::NOSPC.raw_os_error() as u64;
    wait_for("the stall", || run.totals.stalled_errno.load(SeqCst) == full);
    assert!(producers.iter().any(|p| p.held() > 0));
    assert!(run.packets() > 0, "what fits is written");
    // All that is there is whole, and nothing more comes while the disk is full.
    wait_for("it to be closed", || names(&dir).iter().all(|n| !is_live(n)));
    let before = (run.packets(), names(&dir));
    assert_eq!(stored(&read_store(&dir)).len() as u64, before.0);
    // Less room than makes a segment worth while.
    disk.set_budget(disk.used() + 4096);
    producers[0].push(400);
    producers[0].until_looked_at();
    assert_eq!((run.packets(), names(&dir)), before);
    assert_eq!(run.totals.stalled_errno.load(SeqCst), full);

    disk.set_budget(disk.used() + AMPLE);
    wait_for("everything to be written", || producers.iter().all(|p| p.held() == 0));
    wait_for("the stall to end", || run.totals.stalled_errno.load(SeqCst) == 0);
    run.stop().unwrap();
    check_laws(&dir, &disk, &run, &producers);
    assert_eq!(unwritten(&run.totals), 0);
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
    assert_eq!(run.totals.segments_deleted.load(SeqCst), 0, "nobody asked for that");
    assert_eq!(run.totals.write_errors.load(SeqCst), 0, "a full disk is no write error");
}

#[test]
fn what_a_full_disk_does_not_take_is_counted_at_the_end() {
    for abandon in [false, true] {
        let (_temp, dir) = directory();
        let disk = Faulty::sound().with_budget(2 * SEGMENT);
        let (mut producers, ends) = rings(2);
        for p in &mut producers {
            for _ in 0..30 {
                p.push(20_000);
            }
        }
        let run = Setup::new(SEGMENT).start(&dir, disk.clone(), ends);
        wait_for("the stall", || run.totals.stalled_errno.load(SeqCst) != 0);
        if abandon {
            run.control.hurry();
        }
        run.stop().unwrap();
        check_laws(&dir, &disk, &run, &producers);
        assert!(unwritten(&run.totals) > 0);
    }
}

#[test]
fn with_retention_a_full_disk_costs_the_oldest_segment_and_no_packet() {
    // From too little for a second segment to be set aside up to several.
    for budget in [5, 7, 8, 9, 14, 20] {
        let (_temp, dir) = directory();
        let disk = Faulty::sound().with_budget(budget * SEGMENT / 4);
        let mut setup = Setup::new(SEGMENT);
        setup.retention = Retention { segments: Some(1000), ..Retention::default() };
        let (mut producers, ends) = rings(2);
        for p in &mut producers {
            for _ in 0..40 {
                p.push(20_000);
            }
        }
        let run = setup.start(&dir, disk.clone(), ends);
        if budget < 8 {
            // Others use the disk: no room remains for two segments. It comes back.
            wait_for("a stall or the end", || {
                run.totals.stalled_errno.load(SeqCst) != 0
                    || producers.iter().all(|p| p.held() == 0)
            });
            disk.set_budget(disk.used() + AMPLE);
        }
        run.stop().unwrap();
        check_laws(&dir, &disk, &run, &producers);
        assert_eq!(unwritten(&run.totals), 0, "budget {budget}");
        let removed = disk.removed();
        assert!(removed.is_sorted(), "oldest first: {removed:?}");
        assert!(budget < 8 || !removed.is_empty());
        let newest = offered(&producers).into_iter().filter(|id| id.seq > 1000).count();
        assert!(newest == 0 || !stored(&read_store(&dir)).is_empty());
    }
}

/// The file system cannot set space aside, so that the disk fills up in the middle of a segment.
#[test]
fn with_retention_room_is_made_when_a_write_finds_the_disk_full() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(1000), ..Retention::default() };
    let (mut producers, ends) = rings(1);
    for _ in 0..40 {
        producers[0].push(20_000);
    }
    let run = setup.start(&dir, disk.clone(), ends);
    wait_for("some segments", || producers[0].held() == 0);
    // The segment being written and the next have their space. Now somebody takes all the rest, and
    // a write fails in spite of that.
    disk.set_budget(disk.used());
    disk.fail_write(disk.writes() + 1, Errno::NOSPC);
    let before = names(&dir);
    for _ in 0..12 {
        producers[0].push(20_000);
    }
    // As deleting goes on until there is room, it gives some each time.
    wait_for("the oldest to go", || !disk.removed().is_empty());
    assert_eq!(disk.removed()[0], before[0]);
    disk.set_budget(disk.used() + AMPLE);
    run.stop().unwrap();
    check_laws(&dir, &disk, &run, &producers);
    assert_eq!(unwritten(&run.totals), 0);
}

#[test]
fn a_segment_that_cannot_be_renamed_keeps_its_packets_and_is_still_subject_to_retention() {
    let (_temp, dir) = directory();
    // Which renames fail depends on which thread comes first; of so many segments some do.
    let disk = Faulty::new(3, Odds { rename: 500, ..Odds::default() });
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(4), ..Retention::default() };
    let (mut producers, ends) = rings(1);
    for _ in 0..240 {
        producers[0].push(30_000);
    }
    let run = setup.start(&dir, disk.clone(), ends);
    run.stop().unwrap();
    check_laws(&dir, &disk, &run, &producers);
    assert!(disk.removed().iter().any(|name| is_live(name)));
    assert!(names(&dir).len() <= 4);
}
