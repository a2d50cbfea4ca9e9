//! `verify` finds what is wrong and nothing else: over stores made for the purpose, each damaged in
//! one place.

mod common;

use std::fs;
use std::io::{IoSlice, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::io::{Disk, File, Io, Space};
use tapdeck_store::{ClosedScope, Finding, Indexed, Scope, SegmentName, Store, Verdict};
use tapdeck_testkit::SplitMix64;

const T0: u64 = 1_767_323_045_000_000_000;
const NAME: SegmentName = SegmentName { number: 3, began_s: 1_767_323_045, live: false };
const INDEX: &str = "tapdeck-00000003-20260102T030405Z.index";

fn fill(bytes: &mut Vec<u8>) {
    let gap = bytes.len().next_multiple_of(4096) - bytes.len();
    match gap {
        0 => {}
        1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + 4096),
        _ => pcapng::fill(bytes, gap),
    }
}

fn frame(rng: &mut SplitMix64) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17];
    f.extend([0, 0, 10, 0, 0, rng.below(50) as u8, 10, 0, 1, rng.below(50) as u8]);
    f.extend((rng.below(3000) as u16).to_be_bytes());
    f.extend([0, 53]);
    f.resize(60 + rng.below(900), 7);
    f
}

/// A segment of two interfaces; the places of its packets.
fn segment(seed: u64, packets: usize) -> (Vec<u8>, Vec<usize>) {
    let mut rng = SplitMix64(seed);
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    for name in ["eth0", "eth1"] {
        let description = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 262_144,
            name: name.into(),
            description: "hook tcx, CPU 0".into(),
            filter: None,
            hardware: None,
            mac: None,
        };
        pcapng::interface_description(&mut bytes, &description);
    }
    fill(&mut bytes);
    let mut counts = [0; 2];
    let mut places = Vec::new();
    for i in 0..packets {
        let interface = (i / 100 % 2) as u32;
        let dropped = u64::from(i % 500 == 499);
        let frame = frame(&mut rng);
        places.push(bytes.len());
        let start = bytes.len();
        bytes.resize(start + pcapng::packet_len(frame.len(), 0, dropped), 0);
        let time_ns = T0 + i as u64 * 1000;
        let len = frame.len() as u32;
        let out = &mut bytes[start..];
        pcapng::write_packet(out, interface, time_ns, [&frame, &[], &[]], len, 0, dropped);
        counts[interface as usize] += 1;
        if i % 100 == 99 {
            fill(&mut bytes);
        }
    }
    fill(&mut bytes);
    for (interface, delivered) in counts.into_iter().enumerate() {
        let told = StatisticsBlock {
            interface: interface as u32,
            time_ns: T0 + 1_000_000_000,
            delivered,
            dropped: 5,
            received: delivered + 5,
            accepted: delivered + 5,
            ..StatisticsBlock::default()
        };
        pcapng::statistics(&mut bytes, &told);
    }
    fill(&mut bytes);
    (bytes, places)
}

/// A store with one segment, indexed.
fn store(segment: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    fs::create_dir(&dir).unwrap();
    fs::write(NAME.path(&dir), segment).unwrap();
    index(&dir);
    (temp, dir)
}

fn index(dir: &Path) {
    let scope = Scope { closed: ClosedScope::Unended, index: true };
    Store::open(dir).unwrap().recover(&Disk::new(false), scope, |_| {}).unwrap();
}

fn verify(dir: &Path) -> Verdict {
    let mut verdicts = Vec::new();
    assert!(tapdeck_store::verify(dir, |_| true, |v| verdicts.push(v.clone())).unwrap());
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    verdicts.remove(0)
}

#[test]
fn a_sound_store_has_no_flaw() {
    let (bytes, places) = segment(1, 5000);
    let (_temp, dir) = store(&bytes);
    let verdict = verify(&dir);
    assert_eq!((verdict.count, verdict.flaws), (0, Vec::new()));
    assert_eq!((verdict.packets, verdict.indexed), (places.len() as u64, Indexed::Whole));
    assert_eq!(verdict.bytes, bytes.len() as u64);
    fs::remove_file(dir.join(INDEX)).unwrap();
    let verdict = verify(&dir);
    assert_eq!((verdict.count, verdict.indexed), (0, Indexed::No), "one without an index is sound");
    let empty = tempfile::tempdir().unwrap();
    assert!(tapdeck_store::verify(empty.path(), |_| true, |_| {}).is_err(), "that is no store");
    assert!(!tapdeck_store::verify(&dir, |_| false, |_| {}).unwrap(), "it was told to end");
}

#[test]
fn every_changed_bit_of_a_segment_is_found() {
    let (bytes, _) = segment(2, 1500);
    let (_temp, dir) = store(&bytes);
    let mut rng = SplitMix64(3);
    for _ in 0..150 {
        let at = rng.below(bytes.len());
        let mut bad = bytes.clone();
        bad[at] ^= 1 << rng.below(8);
        fs::write(NAME.path(&dir), &bad).unwrap();
        let mut verdicts = Vec::new();
        tapdeck_store::verify(&dir, |_| true, |v| verdicts.push(v.clone())).unwrap();
        // Where the header no longer says that it is ours, it is nobody's business.
        if at < 200 && verdicts.is_empty() {
            continue;
        }
        assert!(verdicts[0].count > 0, "byte {at} of {}", bytes.len());
        let near = verdicts[0].flaws.iter().any(|f| f.at <= at as u64 + 4096);
        assert!(near, "byte {at}: {:?}", verdicts[0].flaws);
    }
}

#[test]
fn every_changed_bit_of_an_index_is_found() {
    let (bytes, _) = segment(4, 1500);
    let (_temp, dir) = store(&bytes);
    let good = fs::read(dir.join(INDEX)).unwrap();
    let mut rng = SplitMix64(5);
    let mut tried = 0;
    while tried < 150 {
        let at = rng.below(good.len());
        // What fills pages up means nothing.
        if good[at] == 0 {
            continue;
        }
        tried += 1;
        let mut bad = good.clone();
        bad[at] ^= 1 << rng.below(8);
        fs::write(dir.join(INDEX), &bad).unwrap();
        let verdict = verify(&dir);
        assert!(verdict.count > 0, "byte {at} of {}", good.len());
        assert_eq!(verdict.flaws[0].file, INDEX);
    }
}

#[test]
fn an_index_that_lies_with_right_checksums_is_found() {
    let (bytes, _) = segment(6, 3000);
    let (_temp, dir) = store(&bytes);
    // Of a segment of the same name and length, in which one packet has another port.
    let (mut other, places) = segment(6, 3000);
    let port = places[1234] + 28 + 36;
    other[port..port + 2].copy_from_slice(&[9, 9]);
    let (_other, other) = store(&other);
    fs::copy(other.join(INDEX), dir.join(INDEX)).unwrap();
    let verdict = verify(&dir);
    let told: Vec<&str> = verdict.flaws.iter().map(|f| f.what.as_str()).collect();
    assert!(told.iter().any(|what| what.contains("checksum")), "{told:?}");
    assert!(told.iter().any(|what| what.contains("destination port 0x909")), "{told:?}");
}

#[test]
fn what_the_statistics_tell_is_held_against_what_is_there() {
    let (bytes, places) = segment(7, 1000);
    let temp = tempfile::tempdir().unwrap();
    let flaws = |bytes: &[u8]| -> Vec<String> {
        fs::write(NAME.path(temp.path()), bytes).unwrap();
        verify(temp.path()).flaws.into_iter().map(|f| f.what).collect()
    };
    assert_eq!(flaws(&bytes), Vec::<String>::new());
    // A packet that became fill.
    let mut bad = bytes.clone();
    bad[places[10]..places[10] + 4].copy_from_slice(&pcapng::FILL.to_ne_bytes());
    assert_eq!(
        flaws(&bad),
        ["the statistics of interface 0 tell of 500 packets, and there are 499"]
    );
    // Statistics that are not there, and an end that is not.
    let end = bytes.len() - 4096;
    assert_eq!(flaws(&bytes[..end]).len(), 2);
    let cut = flaws(&bytes[..places[700] + 10]);
    assert!(cut[0].contains("cut short"), "{cut:?}");
    let mut bad = bytes.clone();
    bad[places[20] + 8] = 7;
    assert!(flaws(&bad)[0].contains("not described"));
    assert_eq!(flaws(&bytes[..3]), ["it does not begin with a section header"]);
}

#[test]
fn a_segment_that_was_taken_away_is_told() {
    let (_temp, dir) = common::directory();
    let (mut producer, end) = common::ring(0);
    for _ in 0..40 {
        producer.push(60_000);
    }
    let mut setup = common::Setup::new(256 << 10);
    setup.indexed = true;
    setup.record(&dir, Disk::new(false), vec![end]);
    let all = common::names(&dir);
    let told = || {
        let mut told = Vec::new();
        let each = |v: &Verdict| {
            told.extend(v.flaws.iter().map(|flaw| (flaw.file.clone(), flaw.what.clone())));
        };
        assert!(tapdeck_store::verify(&dir, |_| true, each).unwrap());
        told
    };
    assert_eq!(told(), []);
    fs::remove_file(dir.join(&all[0])).unwrap();
    assert_eq!(told(), [], "retention deletes the oldest");
    fs::rename(dir.join(&all[2]), dir.join(format!("{}.live.damaged", all[2]))).unwrap();
    assert_eq!(told(), [], "recovery set it aside");
    fs::remove_file(dir.join(format!("{}.live.damaged", all[2]))).unwrap();
    fs::remove_file(dir.join(&all[3])).unwrap();
    fs::remove_file(dir.join(&all[5])).unwrap();
    let index = all[5].replace(".pcapng", ".index");
    let [(file, two), (next, one)] = &told()[..] else { panic!("{:?}", told()) };
    assert_eq!((file, next), (&all[4], &all[6]));
    assert!(two.contains("segments 3 to 4 before it are missing"), "{two}");
    assert!(one.contains("segment 6 before it is missing"), "{one}");
    assert!(one.contains(&index), "{one}");
}

#[test]
fn what_changed_inside_a_packet_is_told_by_recovery_and_nothing_is_touched() {
    let (bytes, places) = segment(12, 3000);
    let (_temp, dir) = store(&bytes);
    let recovered = |closed| {
        let mut told = Vec::new();
        let scope = Scope { closed, index: true };
        let each = |f: &Finding| told.push(format!("{:?}, {:?}", f.action, f.index));
        Store::open(&dir).unwrap().recover(&Disk::new(false), scope, each).unwrap();
        told
    };
    assert_eq!(recovered(ClosedScope::All), ["None, None"]);
    let mut changed = bytes.clone();
    changed[places[1000] + 28 + 50] ^= 1;
    fs::write(NAME.path(&dir), &changed).unwrap();
    for _ in 0..2 {
        let told = recovered(ClosedScope::All);
        assert!(told[0].starts_with("Fail(Changed"), "{told:?}");
        assert_eq!(fs::read(NAME.path(&dir)).unwrap(), changed);
        assert_eq!(verify(&dir).count, 1, "its index still tells");
    }
    assert_eq!(recovered(ClosedScope::Unended), [""; 0], "nobody looked there");
}

#[test]
fn a_live_segment_may_end_anywhere() {
    let (bytes, places) = segment(8, 1000);
    let temp = tempfile::tempdir().unwrap();
    let live = SegmentName { live: true, ..NAME };
    for cut in [places[900], places[900] + 17, places[901] - 1] {
        fs::write(live.path(temp.path()), &bytes[..cut]).unwrap();
        let verdict = verify(temp.path());
        assert_eq!((verdict.count, verdict.packets), (0, 900), "{:?}", verdict.flaws);
    }
    fs::write(live.path(temp.path()), []).unwrap();
    fs::write(temp.path().join(".tapdeck.lock"), []).unwrap();
    assert!(tapdeck_store::verify(temp.path(), |_| true, |v| panic!("{v:?}")).unwrap());
}

/// A disk of a machine that dies after so many calls.
struct Dying {
    disk: Disk,
    left: Arc<AtomicI64>,
}

struct DyingFile {
    file: <Disk as Io>::File,
    left: Arc<AtomicI64>,
}

fn live_on(left: &AtomicI64) -> Result<()> {
    if left.fetch_sub(1, SeqCst) > 0 { Ok(()) } else { Err(rustix::io::Errno::IO.into()) }
}

impl Dying {
    fn after(calls: i64) -> Self {
        Self { disk: Disk::new(false), left: Arc::new(AtomicI64::new(calls)) }
    }

    fn file(&self, file: <Disk as Io>::File) -> DyingFile {
        DyingFile { file, left: self.left.clone() }
    }
}

impl Io for Dying {
    type File = DyingFile;

    fn create(&self, path: &Path) -> Result<DyingFile> {
        live_on(&self.left)?;
        Ok(self.file(self.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> Result<DyingFile> {
        live_on(&self.left)?;
        Ok(self.file(self.disk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        live_on(&self.left)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        live_on(&self.left)?;
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        live_on(&self.left)?;
        self.disk.sync_dir(dir)
    }

    fn space(&self, dir: &Path) -> Result<Space> {
        self.disk.space(dir)
    }
}

impl File for DyingFile {
    fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        live_on(&self.left)?;
        self.file.write_at(pieces, offset)
    }

    fn preallocate(&self, len: u64) -> Result<bool> {
        self.file.preallocate(len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        live_on(&self.left)?;
        self.file.set_len(len)
    }

    fn sync(&self) -> Result<()> {
        live_on(&self.left)?;
        self.file.sync()
    }
}

fn recover(dir: &Path, io: &impl Io) {
    let scope = Scope { closed: ClosedScope::All, index: true };
    Store::open(dir).unwrap().recover(io, scope, |_| {}).unwrap();
}

/// Recovers with a machine that dies after any number of calls, and then with one that lives: the
/// store must be sound, with so many packets.
fn survives_dying(packets: u64, make: impl Fn() -> (tempfile::TempDir, PathBuf)) {
    for calls in 0.. {
        let (_temp, dir) = make();
        let dying = Dying::after(calls);
        recover(&dir, &dying);
        let has_died = dying.left.load(SeqCst) < 0;
        recover(&dir, &Disk::new(false));
        let verdict = verify(&dir);
        assert_eq!(verdict.flaws, Vec::new(), "after {calls} calls");
        assert_eq!((verdict.packets, verdict.indexed), (packets, Indexed::Whole), "{calls}");
        let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "segment, index and lock, after {calls} calls: {left:?}");
        if !has_died {
            assert!(calls > 5);
            break;
        }
    }
}

#[test]
fn an_index_never_outlives_what_it_pointed_to() {
    let (bytes, places) = segment(9, 3000);
    let damaged = || {
        let mut bytes = bytes.clone();
        bytes[places[1500]..][..2000].fill(0);
        bytes
    };
    // The packets that are damaged, by a recovery that nothing disturbs.
    let (_temp, dir) = store(&bytes);
    fs::write(NAME.path(&dir), damaged()).unwrap();
    recover(&dir, &Disk::new(false));
    let packets = verify(&dir).packets;
    assert!((2980..3000).contains(&packets), "{packets}");
    survives_dying(packets, || {
        let (temp, dir) = store(&bytes);
        fs::write(NAME.path(&dir), damaged()).unwrap();
        (temp, dir)
    });
    // The same of a live segment with a log: one that a first recovery left before it made the
    // index.
    let with_log = |bytes: &[u8], then: &[u8]| {
        for calls in 0.. {
            let (temp, dir) = store(bytes);
            fs::remove_file(dir.join(INDEX)).unwrap();
            recover(&dir, &Dying::after(calls));
            if dir.join(INDEX.to_owned() + ".new").exists() {
                let live = SegmentName { live: true, ..NAME };
                fs::rename(NAME.path(&dir), live.path(&dir)).unwrap();
                fs::write(live.path(&dir), then).unwrap();
                return (temp, dir);
            }
        }
        unreachable!("it is made at some time")
    };
    survives_dying(packets, || with_log(&bytes, &damaged()));
    survives_dying(2999, || with_log(&bytes, &bytes[..places[2999] + 20]));
}

#[test]
fn statistics_that_are_lost_are_made_anew_with_the_index() {
    let (mut bytes, places) = segment(10, 1000);
    let (_temp, dir) = store(&bytes);
    let end = bytes.len() - 4096;
    bytes[end..].fill(0);
    fs::write(NAME.path(&dir), &bytes).unwrap();
    recover(&dir, &Disk::new(false));
    let verdict = verify(&dir);
    assert_eq!(verdict.flaws, Vec::new());
    assert_eq!((verdict.packets, verdict.indexed), (places.len() as u64, Indexed::Whole));
}

#[test]
fn a_file_that_gets_shorter_is_no_reason_to_hang() {
    let (bytes, places) = segment(11, 6000);
    let (_temp, dir) = store(&bytes);
    let cut = places[5000] as u64 + 7;
    let watch = |_| {
        let file = fs::OpenOptions::new().write(true).open(NAME.path(&dir)).unwrap();
        file.set_len(cut).unwrap();
        true
    };
    let mut verdicts = Vec::new();
    assert!(tapdeck_store::verify(&dir, watch, |v| verdicts.push(v.clone())).unwrap());
    assert!(verdicts[0].flaws.iter().any(|f| f.what.contains("cut short")), "{verdicts:?}");
}

#[test]
fn fill_before_the_first_packet_is_no_reason_to_distrust_an_index() {
    let (bytes, _) = segment(12, 500);
    // As where the kernel could not read a packet after its space was reserved.
    let mut fill = Vec::new();
    pcapng::fill(&mut fill, 4096);
    let bytes = [&bytes[..4096], &fill, &bytes[4096..]].concat();
    let (_temp, dir) = store(&bytes);
    let verdict = verify(&dir);
    assert_eq!((verdict.flaws, verdict.indexed), (Vec::new(), Indexed::Whole));
}
