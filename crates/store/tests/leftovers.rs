//! What an earlier recorder left is mended while the next one records, deletes and is asked.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use common::{Setup, directory, is_live, names, offered, read_store, ring, stored};
use tapdeck_packet::key::Plan;
use tapdeck_store::io::{Disk, Io, Space};
use tapdeck_store::query::{Packet, Query, Snapshot, Span};
use tapdeck_store::{Action, Finding, Leftovers, Retention, SegmentName, Store, verify};
use tapdeck_testkit::wait_for;

const SEGMENT: u64 = 256 << 10;

/// A disk on which a recovery waits at one of its steps until it is let on.
#[derive(Clone)]
struct Held {
    /// How many calls go through before the one that waits.
    before: Arc<AtomicUsize>,
    waits: Arc<(Mutex<bool>, Condvar)>,
    has_come: Arc<AtomicBool>,
}

impl Held {
    fn after(calls: usize) -> Self {
        Self {
            before: Arc::new(AtomicUsize::new(calls)),
            waits: Arc::new((Mutex::new(true), Condvar::new())),
            has_come: Arc::default(),
        }
    }

    fn step(&self) {
        if self.before.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            self.has_come.store(true, SeqCst);
            let waits = self.waits.0.lock().unwrap();
            drop(self.waits.1.wait_while(waits, |waits| *waits).unwrap());
        }
    }

    fn wait_for_recovery(&self) {
        wait_for("the recovery to come so far", || self.has_come.load(SeqCst));
    }

    fn let_on(&self) {
        *self.waits.0.lock().unwrap() = false;
        self.waits.1.notify_all();
    }
}

impl Io for Held {
    type File = <Disk as Io>::File;

    fn create(&self, path: &Path) -> std::io::Result<Self::File> {
        self.step();
        Disk::new(false).create(path)
    }

    fn open(&self, path: &Path) -> std::io::Result<Self::File> {
        self.step();
        Disk::new(false).open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.step();
        Disk::new(false).rename(from, to)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.step();
        Disk::new(false).remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        self.step();
        Disk::new(false).sync_dir(dir)
    }

    fn space(&self, dir: &Path) -> std::io::Result<Space> {
        Disk::new(false).space(dir)
    }
}

/// A store of so many closed segments, behind which a recorder left one that is torn at its end and
/// has its space still set aside. Returns how many packets of the last are whole.
fn left(segments: usize) -> (tempfile::TempDir, PathBuf, u64) {
    let (temp, dir) = directory();
    for _ in 0..=segments {
        let (mut producer, end) = ring(0);
        producer.push(50_000);
        Setup::new(SEGMENT).record(&dir, Disk::new(false), vec![end]);
    }
    let last = names(&dir).pop().unwrap();
    let held = read_store(&dir).pop().unwrap().1.packets.len() as u64;
    let bytes = fs::read(dir.join(&last)).unwrap();
    let end = last_packet_at(&bytes) + 40;
    fs::remove_file(dir.join(&last)).unwrap();
    let live = fs::File::create(dir.join(last + ".live")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&live, &bytes[..end], 0).unwrap();
    let aside = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&live, aside, 0, 64 * SEGMENT).unwrap();
    (temp, dir, held - 1)
}

/// Where the last packet block of a file begins.
fn last_packet_at(data: &[u8]) -> usize {
    use tapdeck_packet::pcapng::{Reader, Record};
    let mut reader = Reader::new(data);
    let mut last = 0;
    loop {
        let at = reader.offset();
        match reader.next() {
            Some(Ok(Record::Packet(_))) => last = at as usize,
            Some(Ok(_)) => {}
            _ => return last,
        }
    }
}

/// Mends leftovers on a thread.
fn mend(
    leftovers: Leftovers,
    disk: &Held,
    stops: &Arc<AtomicBool>,
) -> thread::JoinHandle<Vec<(SegmentName, u64)>> {
    let (disk, stops) = (disk.clone(), stops.clone());
    thread::spawn(move || {
        let mut closed = Vec::new();
        leftovers.recover(&disk, true, &stops, |finding: &Finding| {
            assert!(matches!(finding.action, Action::Close), "{finding:?}");
            closed.push((finding.name.clone(), finding.packets));
        });
        closed
    })
}

fn all(_: &Packet<'_>) -> bool {
    true
}

/// How many packets a query for all of them finds.
fn asked(dir: &Path) -> u64 {
    let snapshot = Snapshot::open(dir, Span::ALL).unwrap();
    let mut query = Query::new(snapshot, Span::ALL, Plan::All, all);
    let mut packets = 0;
    while query.next_packet(|_| true).unwrap().is_some() {
        packets += 1;
    }
    packets
}

fn assert_sound(dir: &Path) {
    verify(dir, |_| true, |verdict| assert_eq!(verdict.count, 0, "{verdict:?}")).unwrap();
}

#[test]
fn packets_are_recorded_while_a_leftover_waits_and_every_answer_has_it_once() {
    // Held at each step of its recovery in turn.
    for calls in 0.. {
        let (_temp, dir, held) = left(1);
        let before: u64 = read_store_but_live(&dir) + held;
        let disk = Held::after(calls);
        let mut store = Store::open(&dir).unwrap();
        let leftovers = store.take_leftovers(&Disk::new(false));
        assert_eq!(leftovers.count(), 1);
        let recovery = mend(leftovers, &disk, &Arc::default());
        let (mut producer, end) = ring(0);
        let run = Setup::new(SEGMENT).start_in(store, Disk::new(false), vec![end]);
        wait_for("the recovery to come so far, or to its end", || {
            disk.has_come.load(SeqCst) || recovery.is_finished()
        });
        let is_held = disk.has_come.load(SeqCst);
        producer.push(20_000);
        let now = offered(std::slice::from_ref(&producer)).len() as u64;
        wait_for("the packets to be written", || run.packets() == now);
        assert_eq!(asked(&dir), before + now, "held at step {calls}");
        disk.let_on();
        let mended = recovery.join().unwrap();
        assert_eq!((mended[0].0.number, mended[0].1), (2, held));
        assert_eq!(asked(&dir), before + now);
        run.stop().unwrap();
        assert!(names(&dir).iter().all(|name| !is_live(name)));
        assert!(names(&dir)[2..].iter().all(|n| SegmentName::parse(n).unwrap().number > 2));
        assert_eq!(packets_in(&dir), before + now);
        assert!(dir.join(names(&dir)[1].replace(".pcapng", ".index")).exists());
        assert_sound(&dir);
        if !is_held {
            assert!(calls > 5, "a recovery has more steps than {calls}");
            return;
        }
    }
}

fn packets_in(dir: &Path) -> u64 {
    read_store(dir).iter().map(|segment| segment.1.packets.len() as u64).sum()
}

fn read_store_but_live(dir: &Path) -> u64 {
    let closed = names(dir).into_iter().filter(|name| !is_live(name));
    closed
        .map(|name| {
            let bytes = fs::read(dir.join(&name)).unwrap();
            common::read_bytes(&name, &bytes).packets.len() as u64
        })
        .sum()
}

#[test]
fn retention_counts_a_leftover_and_leaves_it_alone_until_it_is_mended() {
    let (_temp, dir, held) = left(2);
    let disk = Held::after(0);
    let mut setup = Setup::new(SEGMENT);
    // Of the three that are there two may stay, beside the one being written.
    setup.retention = Retention { segments: Some(3), ..Retention::default() };
    let mut store = Store::open(&dir).unwrap();
    let recovery = mend(store.take_leftovers(&Disk::new(false)), &disk, &Arc::default());
    disk.wait_for_recovery();
    let (mut producer, end) = ring(0);
    let run = setup.start_in(store, Disk::new(false), vec![end]);
    let numbers = || -> Vec<u64> {
        names(&dir).iter().map(|n| SegmentName::parse(n).unwrap().number).collect()
    };
    for _ in 0..4 {
        producer.push(1000);
        let now = producer.offered.len() as u64;
        wait_for("the packets to be written", || run.packets() == now);
        run.begin_segment();
    }
    // Younger ones went in its place, and it counts.
    assert_eq!(numbers(), [3, 7]);
    disk.let_on();
    assert_eq!(recovery.join().unwrap()[0].1, held);
    producer.push(1000);
    let now = producer.offered.len() as u64;
    wait_for("the packets to be written", || run.packets() == now);
    run.begin_segment();
    wait_for("the oldest to go", || !numbers().contains(&3));
    run.stop().unwrap();
    let deleted = run.totals.packets_deleted.load(SeqCst);
    assert_eq!(deleted + packets_in(&dir), held + now + 2 * whole_segment(), "each is counted");
    assert_sound(&dir);
}

/// How many packets [`left`] puts into a segment.
fn whole_segment() -> u64 {
    let (mut producer, _end) = ring(0);
    producer.push(50_000);
    producer.offered.len() as u64
}

#[test]
fn the_space_behind_a_leftover_is_free_before_it_is_mended() {
    let (_temp, dir, _) = left(0);
    let live = dir.join(names(&dir).pop().unwrap());
    let bytes = fs::read(&live).unwrap();
    assert!(common::on_disk(&live) >= 64 * SEGMENT);
    let mut store = Store::open(&dir).unwrap();
    let _leftovers = store.take_leftovers(&Disk::new(false));
    assert!(common::on_disk(&live) < bytes.len() as u64 + 2 * SEGMENT);
    assert!(fs::read(&live).unwrap() == bytes);
}

#[test]
fn a_recovery_that_is_told_to_stop_is_finished_by_the_next() {
    for calls in 0.. {
        let (_temp, dir, held) = left(0);
        let disk = Held::after(calls);
        let stops = Arc::new(AtomicBool::new(false));
        let leftovers = Store::open(&dir).unwrap().take_leftovers(&Disk::new(false));
        let recovery = mend(leftovers, &disk, &stops);
        wait_for("the recovery to come so far, or to its end", || {
            disk.has_come.load(SeqCst) || recovery.is_finished()
        });
        let is_held = disk.has_come.load(SeqCst);
        stops.store(true, SeqCst);
        if is_held {
            assert!(Store::open(&dir).is_err(), "nobody else comes while it is at work");
        }
        disk.let_on();
        let mended = recovery.join().unwrap();
        let mut store = Store::open(&dir).unwrap();
        let leftovers = store.take_leftovers(&Disk::new(false));
        let next = mend(leftovers, &Held::after(usize::MAX), &Arc::default()).join().unwrap();
        assert_eq!(next.len() + mended.len(), 1, "stopped at step {calls}");
        drop(store);
        let segments = read_store(&dir);
        assert_eq!(stored(&segments).len() as u64, held);
        let index = dir.join(names(&dir)[0].replace(".pcapng", ".index"));
        assert!(index.exists(), "stopped at step {calls}");
        assert_sound(&dir);
        if !is_held {
            return;
        }
    }
}
