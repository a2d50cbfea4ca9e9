//! What comes out of a writer: epochs, rotation, names, limits, and the ends that are no store.

mod common;

use std::io::{Error, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::faulty::Faulty;
use common::{
    FakeClock, Id, Producer, Run, Setup, directory, interfaces, is_live, lost, names, offered,
    packets, read_bytes, read_store, ring, rings, stored, unwritten,
};
use tapdeck_packet::pcapng::{InterfaceDescription, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_store::io::{Disk, PAGE};
use tapdeck_store::{
    Done, Ending, Error as StoreError, InterfaceBlock, Nothing, Retention, RingsChange,
    SegmentName, Sink, SinkOutcome, Store, StreamSink, Totals, UnseenSpan, Writer, WriterControl,
};
use tapdeck_testkit::{SplitMix64, wait_for};

const SEGMENT: u64 = 128 << 10;

fn disk() -> Disk {
    Disk::new(false)
}

/// The epochs of a store's segments, in the order of their names; of those with packets.
fn epochs(dir: &Path) -> Vec<u8> {
    read_store(dir).iter().filter_map(|s| s.1.packets.first().map(|id| id.epoch)).collect()
}

fn began_s(name: &str) -> i64 {
    SegmentName::parse(name).unwrap().began_s
}

#[test]
fn blocks_of_all_lengths_come_through() {
    let (_temp, dir) = directory();
    let (mut producer, end) = ring(0);
    for around in [PAGE, 2 * PAGE, 7 * PAGE] {
        for off in [-64_i64, -16, -12, -8, -4, 0, 4, 8, 12, 48] {
            producer.push((around as i64 + off) as usize);
        }
    }
    producer.push(48);
    let disk = Faulty::sound();
    let totals = Setup::new(1 << 20).record(&dir, disk.clone(), vec![end]);
    assert_eq!(disk.violations(), Vec::<String>::new());
    let segments = read_store(&dir);
    // In the order in which they came.
    assert_eq!(segments[0].1.packets, producer.offered);
    assert_eq!(packets(&totals), producer.offered.len() as u64);
    assert_eq!(unwritten(&totals), 0);
}

#[test]
fn what_is_told_is_what_is_there() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(3);
    let mut rng = SplitMix64(5);
    for i in 0..60 {
        let p = &mut producers[i % 2];
        p.push_any(&mut rng);
        p.lose(i as u64);
    }
    producers[2].lose(5);
    let totals = Setup::new(SEGMENT).record(&dir, disk(), ends);
    let segments = read_store(&dir);
    assert_eq!(stored(&segments), offered(&producers));
    assert!(segments.iter().all(|s| s.1.statistics.len() == 3 && s.1.interfaces == 3));
    for p in 0..3 {
        let of = &totals.interfaces[p as usize];
        let delivered: u64 = segments.iter().map(|s| s.1.statistics[&p].0).sum();
        assert_eq!(delivered, of.packets.load(SeqCst));
        let dropped: u64 = segments.iter().map(|s| s.1.statistics[&p].1).sum();
        assert_eq!(dropped, lost(&producers[p as usize..=p as usize]));
    }
    let bytes: u64 = segments.iter().map(|s| s.1.bytes).sum();
    let ends = segments.len() as u64 * PAGE as u64;
    assert_eq!(totals.bytes_written.load(SeqCst), bytes - ends, "all but the statistics");
}

#[test]
fn epochs_never_share_a_segment_and_all_come_through() {
    for seed in 0..40 {
        let mut rng = SplitMix64(seed);
        let (_temp, dir) = directory();
        let (mut producers, ends) = rings(1 + rng.below(4) as u32);
        let mut epoch = if rng.per_mille(500) { 0 } else { 253_u8 };
        for p in &producers {
            p.step_to(epoch);
        }
        let mut run = None;
        let mut ends = Some(ends);
        for i in 0..60 {
            let at = rng.below(producers.len());
            producers[at].push_any(&mut rng);
            if rng.per_mille(200) {
                epoch = epoch.wrapping_add(1);
                for p in &producers {
                    // A ring without traffic hears of it late, some never.
                    if rng.per_mille(800) {
                        p.step_to(epoch);
                    }
                }
            }
            if i == 20 {
                run = ends.take().map(|ends| Setup::new(SEGMENT).start(&dir, disk(), ends));
            }
        }
        run.unwrap().stop().unwrap();
        let segments = read_store(&dir);
        assert_eq!(stored(&segments), offered(&producers), "seed {seed}");
        let told: Vec<bool> = segments
            .iter()
            .map(|s| s.1.comment.as_deref().is_some_and(|c| c.contains("clock was stepped")))
            .collect();
        for (i, pair) in segments.windows(2).enumerate() {
            let of = |at: usize| pair[at].1.packets.first().map(|id| id.epoch);
            assert_eq!(of(0) != of(1), told[i + 1], "seed {seed}: a step is recorded, no other is");
        }
        assert!(!told[0]);
    }
}

#[test]
fn a_ring_that_is_ahead_waits_for_the_others() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(3);
    producers[1].push(9000);
    producers[0].step_to(1);
    producers[0].push(9000);
    producers[2].step_to(2);
    producers[2].push(9000);
    let run = Setup::new(SEGMENT).start(&dir, disk(), ends);
    wait_for("the first epoch", || producers[1].held() == 0);
    producers[1].until_looked_at();
    assert_eq!((producers[0].held(), producers[2].held()), (1, 1), "its epoch is not over");
    producers[1].push(5000);
    producers[1].step_to(1);
    wait_for("the second epoch", || producers[0].held() == 0);
    producers[1].until_looked_at();
    assert_eq!(producers[2].held(), 1);
    producers[1].push(5000);
    producers[0].step_to(2);
    producers[1].step_to(2);
    wait_for("the third epoch", || producers[2].held() == 0);
    run.stop().unwrap();
    assert_eq!(epochs(&dir), [0, 1, 2]);
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
}

#[test]
fn a_ring_without_traffic_holds_up_no_end() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(2);
    producers[0].push(5000);
    producers[0].step_to(1);
    producers[0].push(5000);
    // The other one never had a packet that would have opened a block of the new epoch.
    let run = Setup::new(SEGMENT).start(&dir, disk(), ends);
    assert_eq!(run.stop().unwrap(), Ending::Asked);
    assert_eq!(epochs(&dir), [0, 1]);
    assert_eq!(stored(&read_store(&dir)), offered(&producers));
}

#[test]
fn names_sort_as_recorded_when_the_clock_goes_back() {
    let (_temp, dir) = directory();
    let setup = Setup::new(SEGMENT);
    let (mut producer, end) = ring(0);
    let run = setup.start(&dir, disk(), vec![end]);
    let hours = [0, -3600, -3600, 7200, -86_400];
    for (epoch, s) in hours.into_iter().enumerate() {
        setup.clock.set(s);
        producer.step_to(epoch as u8);
        for _ in 0..8 {
            producer.push(40_000);
        }
        wait_for("it to be written", || producer.held() == 0);
    }
    run.stop().unwrap();
    let names = names(&dir);
    assert!(names.len() as u64 == run.totals.segments.load(SeqCst) && names.len() > 10);
    let times: Vec<i64> = names.iter().map(|n| began_s(n)).collect();
    assert!(!times.is_sorted(), "the clock went back: {times:?}");
    let order: Vec<Id> =
        read_store(&dir).iter().flat_map(|s| s.1.packets.iter().copied()).collect();
    assert_eq!(order, producer.offered);
}

#[test]
fn numbering_goes_on_when_a_store_is_opened_again() {
    let (_temp, dir) = directory();
    let clock = FakeClock::new();
    let mut all = Vec::new();
    for run in 0..4 {
        // The same second in two runs, and an earlier one.
        clock.set([0, 0, -3600, 0][run]);
        let (mut producer, end) = ring(run as u32);
        // Each run has an interface of its own, and all those before.
        let (_, mut ends): (Vec<_>, Vec<_>) = rings(run as u32);
        for _ in 0..8 {
            producer.push(40_000);
        }
        ends.push(end);
        let mut setup = Setup::new(SEGMENT);
        setup.clock = clock.clone();
        setup.record(&dir, disk(), ends);
        all.extend(producer.offered);
        if run == 2 {
            // The newest goes. Its number may come again: nobody can mistake it.
            let newest = names(&dir).pop().unwrap();
            let gone = read_store(&dir).pop().unwrap().1.packets;
            std::fs::remove_file(dir.join(newest)).unwrap();
            all.retain(|id| !gone.contains(id));
        }
    }
    let order: Vec<Id> =
        read_store(&dir).iter().flat_map(|s| s.1.packets.iter().copied()).collect();
    assert_eq!(order, all);
    let numbers: Vec<u64> =
        names(&dir).iter().map(|n| SegmentName::parse(n).unwrap().number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_segment_that_is_asked_for_begins_behind_what_there_was_and_tells_when() {
    let (_temp, dir) = directory();
    let (mut producer, end) = ring(0);
    let run = Setup::new(1 << 20).start(&dir, disk(), vec![end]);
    let rotate = |interfaces| {
        let (send, done) = channel();
        run.control.begin_segment(interfaces, Box::new(move || send.send(()).unwrap()));
        done.recv_timeout(Duration::from_secs(60)).expect("it is told");
    };
    rotate(None);
    assert_eq!(names(&dir), Vec::<String>::new(), "nothing came, so there is none");
    for segment in 1..=3 {
        producer.push(5000);
        producer.push(5000);
        // What is complete is for the segment that was.
        rotate(None);
        let names = names(&dir);
        assert_eq!(names.len(), segment);
        assert!(!names.iter().any(|name| is_live(name)), "{names:?}");
        assert_eq!(producer.held(), 0);
    }
    // From here on another filter.
    let filtered = |filter: &str| {
        let mut interfaces = interfaces(1);
        interfaces[0].filter = Some(filter.to_owned());
        Some(interfaces)
    };
    rotate(filtered("port 53"));
    producer.push(5000);
    run.stop().unwrap();
    let filters: Vec<Option<String>> = names(&dir)
        .iter()
        .map(|name| {
            let data = std::fs::read(dir.join(name)).unwrap();
            let interface = tapdeck_packet::pcapng::Reader::new(&data).find_map(|r| match r {
                Ok(Record::Interface(interface)) => Some(interface.filter),
                _ => None,
            });
            interface.unwrap()
        })
        .collect();
    assert_eq!(filters.last().unwrap().as_deref(), Some("port 53"));
    assert!(filters[..3].iter().all(|f| f.as_deref() != Some("port 53")), "{filters:?}");
    assert_eq!(stored(&read_store(&dir)), offered(&[producer]));

    // Who asks one that has ended is not told.
    let (send, done) = channel::<()>();
    run.control.begin_segment(None, Box::new(move || send.send(()).unwrap()));
    drop(run);
    assert!(done.recv_timeout(Duration::from_secs(60)).is_err());
}

#[test]
fn a_segment_is_closed_when_it_is_old_enough_and_not_before() {
    let (_temp, dir) = directory();
    let mut setup = Setup::new(1 << 20);
    setup.segment_time = Duration::from_secs(60);
    let (mut producer, end) = ring(0);
    let run = setup.start(&dir, disk(), vec![end]);
    let live = || names(&dir).iter().filter(|n| is_live(n)).count();
    for minute in 0..3 {
        setup.clock.set(minute * 600);
        producer.push(5000);
        wait_for("it to be written", || producer.held() == 0);
        setup.clock.set(minute * 600 + 59);
        producer.push(5000);
        wait_for("it to be written", || producer.held() == 0);
        producer.until_looked_at();
        assert_eq!((names(&dir).len() as i64, live()), (minute + 1, 1));
        setup.clock.set(minute * 600 + 60);
        wait_for("it to be closed", || live() == 0);
        // Without packets there is no other.
        setup.clock.set(minute * 600 + 300);
        producer.until_looked_at();
        assert_eq!(names(&dir).len() as i64, minute + 1);
    }
    run.stop().unwrap();
    let began: Vec<i64> =
        names(&dir).iter().map(|n| began_s(n) - FakeClock::BEGAN_S as i64).collect();
    assert_eq!(began, [0, 600, 1200]);
    assert_eq!(stored(&read_store(&dir)), offered(&[producer]));
}

#[test]
fn a_block_that_is_larger_than_a_segment_gets_one_of_its_own() {
    let (_temp, dir) = directory();
    let (mut producer, end) = ring(0);
    for len in [1000, 50_000, 1000, 60_000] {
        producer.push(len);
    }
    Setup::new(16 << 10).record(&dir, disk(), vec![end]);
    assert_eq!(stored(&read_store(&dir)), producer.offered);
    assert_eq!(names(&dir).len(), 4);
}

#[test]
fn a_store_has_one_recorder() {
    let (_temp, dir) = directory();
    let store = Store::open(&dir).unwrap();
    match Store::open(&dir) {
        Err(StoreError::InUse { dir: told, pid }) => {
            assert_eq!((told, pid), (dir.clone(), Some(std::process::id())));
        }
        other => panic!("{other:?}"),
    }
    let text = Store::open(&dir).unwrap_err().to_string();
    assert!(text.contains(&format!("(process {})", std::process::id())), "{text}");
    drop(store);
    Store::open(&dir).unwrap();
}

#[test]
fn a_store_is_a_directory() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for path in [file.clone(), file.join("below")] {
        let e = Store::open(&path).unwrap_err();
        assert!(matches!(&e, StoreError::NotADirectory(p) if *p == path), "{e:?}");
        assert!(e.to_string().contains("not a directory"));
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let e = Store::open(Path::new("/proc/nothing/here")).unwrap_err();
    assert!(!e.to_string().is_empty());
}

#[test]
fn a_path_may_hold_anything() {
    let temp = tempfile::tempdir().unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"a store \xff\xfe/with 'all'\n of it");
    let dir = temp.path().join(odd);
    let (mut producer, end) = ring(0);
    producer.push(5000);
    Setup::new(SEGMENT).record(&dir, disk(), vec![end]);
    assert_eq!(stored(&read_store(&dir)), producer.offered);
    assert_eq!(Store::segments(&dir).unwrap().len(), 1);
}

#[test]
fn what_a_crash_left_set_aside_is_removed() {
    let (_temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    let next = dir.join(".tapdeck-next");
    std::fs::write(&next, [0; 5000]).unwrap();
    let store = Store::open(&dir).unwrap();
    assert!(!next.exists());
    drop(store);
}

#[test]
fn a_limit_is_kept_to_the_packet() {
    let mut rng = SplitMix64(11);
    for round in 0..40 {
        let (_temp, dir) = directory();
        let (mut producers, ends) = rings(1 + rng.below(3) as u32);
        for p in &mut producers {
            for _ in 0..12 {
                p.push_any(&mut rng);
            }
        }
        let all = offered(&producers);
        let n = match round {
            0 => 0,
            1 => 1,
            2 => all.len(),
            _ => rng.below(all.len()),
        };
        let mut setup = Setup::new(SEGMENT);
        setup.limit = Some(n as u64);
        let run = setup.start(&dir, disk(), ends);
        // It ends by itself.
        assert_eq!(run.join().unwrap(), Ending::Asked);
        let there = stored(&read_store(&dir));
        assert_eq!((there.len(), run.packets()), (n, n as u64));
        assert!(there.iter().all(|id| all.binary_search(id).is_ok()));
        assert_eq!(unwritten(&run.totals), 0, "nobody asked for the rest");
        for p in &producers {
            // Of each ring the first.
            let of: Vec<Id> = there
                .iter()
                .filter(|id| Some(id.interface) == p.offered.first().map(|o| o.interface))
                .copied()
                .collect();
            assert_eq!(of, p.offered[..of.len()]);
        }
    }
}

#[test]
fn a_limit_that_is_not_reached_does_not_matter() {
    let (_temp, dir) = directory();
    let (mut producer, end) = ring(0);
    producer.push(9000);
    let mut setup = Setup::new(SEGMENT);
    setup.limit = Some(producer.offered.len() as u64 + 1);
    let run = setup.start(&dir, disk(), vec![end]);
    wait_for("it to be written", || producer.held() == 0);
    assert!(!run.is_finished());
    run.stop().unwrap();
    assert_eq!(stored(&read_store(&dir)), producer.offered);
}

#[test]
fn frame_bytes_are_those_of_the_packets_within_the_limit() {
    let (mut producer, end) = ring(0);
    producer.push(9000);
    let out = Output::default();
    let run = stream(&out, vec![end], Some(3));
    run.join().unwrap();
    let data = out.bytes();
    let kept: usize = tapdeck_packet::pcapng::Reader::new(&data)
        .filter_map(|r| match r.unwrap() {
            Record::Packet(p) => Some(p.frame.len()),
            _ => None,
        })
        .sum();
    assert_eq!(run.totals.interfaces[0].frame_bytes.load(SeqCst), kept as u64);
    assert_eq!(read_bytes("stream", &data).packets, producer.offered[..3]);
}

/// Takes so many bytes and then fails.
#[derive(Clone)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    takes: usize,
    then: ErrorKind,
}

impl Default for Output {
    fn default() -> Self {
        Self { bytes: Arc::default(), takes: usize::MAX, then: ErrorKind::Other }
    }
}

impl Output {
    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        // In pieces, as a pipe takes them.
        let n = buf.len().min(1000).min(self.takes - bytes.len());
        if n == 0 && !buf.is_empty() {
            return Err(Error::from(self.then));
        }
        bytes.extend(&buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn stream(out: &Output, rings: Vec<Box<dyn Ring>>, limit: Option<u64>) -> Run {
    let totals = Arc::new(Totals::new(rings.len()));
    let clock = FakeClock::new();
    let now_ns = Box::new(move || clock.now_ns());
    let interfaces = interfaces(rings.len() as u32);
    let sink = StreamSink::new(out.clone(), &interfaces, totals.clone(), now_ns).unwrap();
    Run::start(rings, sink, totals, limit)
}

fn two_busy_rings() -> (Vec<Producer>, Vec<Box<dyn Ring>>) {
    let (mut producers, ends) = rings(2);
    let mut rng = SplitMix64(3);
    for p in &mut producers {
        for _ in 0..20 {
            p.push_any(&mut rng);
            p.lose(2);
        }
    }
    (producers, ends)
}

#[test]
fn a_stream_is_one_valid_section() {
    let (mut producers, ends) = two_busy_rings();
    producers[0].step_to(1);
    producers[1].step_to(1);
    producers[1].push(5000);
    let out = Output::default();
    let run = stream(&out, ends, None);
    assert_eq!(run.stop().unwrap(), Ending::Asked);
    let file = read_bytes("stream", &out.bytes());
    let mut there = file.packets.clone();
    there.sort_unstable();
    assert_eq!(there, offered(&producers));
    assert_eq!(file.delivered(), run.packets());
    assert_eq!(file.dropped(), lost(&producers));
    assert_eq!(unwritten(&run.totals), 0);
}

/// At whichever byte the output ends: what was told to be written is there, and all else is told to
/// be unwritten.
#[test]
fn a_stream_that_breaks_off_is_counted_to_the_packet() {
    let whole = {
        let (_, ends) = two_busy_rings();
        let out = Output::default();
        stream(&out, ends, None).stop().unwrap();
        out.bytes().len()
    };
    let mut rng = SplitMix64(17);
    for round in 0..60 {
        let then = if round % 2 == 0 { ErrorKind::BrokenPipe } else { ErrorKind::StorageFull };
        let (producers, ends) = two_busy_rings();
        // Behind the head, and before the last block's end.
        let takes = 500 + rng.below(whole - 1000);
        let out = Output { takes, then, ..Output::default() };
        let run = stream(&out, ends, None);
        match run.join() {
            Ok(ending) => {
                assert_eq!((ending, then), (Ending::ReaderLeft, ErrorKind::BrokenPipe));
            }
            Err(e) => assert_eq!((e.kind(), then), (ErrorKind::StorageFull, then)),
        }
        let all = offered(&producers).len() as u64;
        assert_eq!(run.packets() + unwritten(&run.totals), all, "{takes} bytes");
        let data = out.bytes();
        assert_eq!(data.len(), takes, "nothing follows a torn block");
        let told = run.totals.bytes_written.load(SeqCst) as usize;
        let file = read_bytes("stream", &data[..told]);
        assert_eq!(file.packets.len() as u64, run.packets(), "{takes} bytes");
    }
}

fn change(gone: Range<u32>, come: Vec<Box<dyn Ring>>, interfaces: u32) -> RingsChange {
    let interfaces = common::interfaces(interfaces);
    RingsChange { gone, come, interfaces, sleep: Duration::from_millis(8) }
}

/// Rings come while others are written, and one takes the place of one that is gone: every segment
/// describes the interfaces that its packets name, and losses add up.
#[test]
fn rings_that_come_are_described_before_their_packets() {
    for indexed in [false, true] {
        let (_temp, dir) = directory();
        let (mut first, end) = ring(0);
        first.push(5000);
        let setup = Setup { indexed, room: 2, ..Setup::new(SEGMENT) };
        let run = setup.start(&dir, disk(), vec![end]);
        wait_for("the first ring's packets", || first.held() == 0);
        let (mut second, end) = ring(1);
        // A part of it comes before the writer knows of it.
        second.push(7000);
        second.lose(3);
        run.control.change_rings(change(0..0, vec![end], 2));
        wait_for("the second ring's packets", || second.held() == 0);
        second.push(3000);
        first.push(2000);
        wait_for("all packets", || first.held() + second.held() == 0);
        second.lose(2);
        let (mut third, end) = ring(1);
        third.push(4000);
        third.lose(10);
        let (mut fourth, last) = ring(2);
        fourth.push(1000);
        run.control.change_rings(change(1..2, vec![end, last], 3));
        wait_for("their packets", || third.held() + fourth.held() == 0);
        run.stop().unwrap();
        let segments = read_store(&dir);
        let described: Vec<usize> = segments.iter().map(|s| s.1.interfaces).collect();
        assert_eq!(described, [1, 2, 3]);
        let producers = [first, second, third, fourth];
        let mut there: Vec<Id> =
            segments.iter().flat_map(|s| s.1.packets.iter().copied()).collect();
        there.sort_unstable();
        assert_eq!(there, offered(&producers));
        let dropped = |at: usize| segments[at].1.statistics[&1].1;
        assert_eq!((dropped(1), dropped(2)), (5, 10));
        assert_eq!(segments.iter().map(|s| s.1.dropped()).sum::<u64>(), lost(&producers));
        assert_eq!(run.totals.interfaces[1].lost.load(SeqCst), 15);
        assert_eq!(run.packets(), there.len() as u64);
    }
}

/// A segment that holds no packets gives way to one that describes the rings that came.
#[test]
fn rings_that_come_to_a_store_without_packets_are_described() {
    let (_temp, dir) = directory();
    let (first, end) = ring(0);
    let setup = Setup { room: 1, ..Setup::new(SEGMENT) };
    let run = setup.start(&dir, disk(), vec![end]);
    let span =
        UnseenSpan { interface: 0, packets: 4, first_ns: 1, last_ns: 2, why: "a test".into() };
    run.control.tell_unseen(vec![span]);
    wait_for("a segment", || names(&dir).len() == 1);
    let (mut second, end) = ring(1);
    second.push(7000);
    run.control.change_rings(change(0..0, vec![end], 2));
    wait_for("its packets", || second.held() == 0);
    run.stop().unwrap();
    let bytes = std::fs::read(dir.join(names(&dir).pop().unwrap())).unwrap();
    let last = read_bytes("the last segment", &bytes);
    assert_eq!((last.interfaces, last.packets), (2, offered(&[first, second])));
}

/// A segment that holds no packets gives way, too, where the place of a ring is another one's now.
#[test]
fn a_ring_that_takes_a_place_is_described_in_a_store_without_packets() {
    let (_temp, dir) = directory();
    let (_first, end) = ring(0);
    let run = Setup::new(SEGMENT).start(&dir, disk(), vec![end]);
    let span =
        UnseenSpan { interface: 0, packets: 4, first_ns: 1, last_ns: 2, why: "a test".into() };
    run.control.tell_unseen(vec![span]);
    wait_for("a segment", || names(&dir).len() == 1);
    let (mut second, end) = ring(0);
    second.push(7000);
    let mut change = change(0..1, vec![end], 1);
    change.interfaces[0].name = "another".into();
    run.control.change_rings(change);
    wait_for("its packets", || second.held() == 0);
    run.stop().unwrap();
    let bytes = std::fs::read(dir.join(names(&dir).pop().unwrap())).unwrap();
    let described =
        tapdeck_packet::pcapng::Reader::new(&bytes).find_map(|record| match record.unwrap() {
            Record::Interface(interface) => interface.name,
            _ => None,
        });
    assert_eq!(described.as_deref(), Some("another"));
    assert_eq!(read_bytes("the last segment", &bytes).packets, offered(&[second]));
}

/// A ring may have packets of an epoch that the others have left behind when it comes.
#[test]
fn a_ring_that_comes_with_packets_of_an_epoch_before_is_emptied() {
    let (_temp, dir) = directory();
    let (mut first, end) = ring(0);
    first.step_to(1);
    first.push(5000);
    let setup = Setup { room: 1, ..Setup::new(SEGMENT) };
    let run = setup.start(&dir, disk(), vec![end]);
    wait_for("the first ring's packets", || first.held() == 0);
    let (mut second, end) = ring(1);
    second.push(7000);
    second.step_to(1);
    second.push(6000);
    run.control.change_rings(change(0..0, vec![end], 2));
    wait_for("the second ring's packets", || second.held() == 0);
    first.push(5000);
    run.stop().unwrap();
    assert_eq!(stored(&read_store(&dir)), offered(&[first, second]));
}

/// What a sink is asked for beside writing.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Sink for Calls {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome {
        SinkOutcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {}

    fn tick(&mut self, _: &[u64]) {}

    fn begin_segment(&mut self, interfaces: Option<Vec<InterfaceDescription>>, _: Done) {
        let names = interfaces.into_iter().flatten().map(|interface| interface.name);
        self.0.lock().unwrap().extend(names);
    }

    fn tell_unseen(&mut self, spans: Vec<UnseenSpan>) {
        let spans = spans.iter().map(|span| format!("{} unseen", span.packets));
        self.0.lock().unwrap().extend(spans);
    }

    fn finish(&mut self, _: &[u64]) -> std::io::Result<()> {
        Ok(())
    }
}

/// A place may have another interface by the time at which the writer gets to what went unseen.
#[test]
fn what_went_unseen_is_told_of_the_interface_of_then() {
    let control = WriterControl::new().unwrap();
    let span = |packets| UnseenSpan {
        interface: 0,
        packets,
        first_ns: 1,
        last_ns: 2,
        why: "a test".into(),
    };
    let describe = |name: &str| {
        let mut change = change(0..0, Vec::new(), 1);
        change.interfaces[0].name = name.into();
        control.change_rings(change);
    };
    control.tell_unseen(vec![span(1)]);
    describe("another");
    control.tell_unseen(vec![span(2)]);
    control.tell_unseen(vec![span(3)]);
    describe("a third");
    control.close_blocks();
    let calls = Calls::default();
    Writer::new(Vec::new(), calls.clone(), Arc::new(Totals::new(1))).run(&control).unwrap();
    let calls = calls.0.lock().unwrap().clone();
    assert_eq!(calls, ["1 unseen", "another", "2 unseen", "3 unseen", "a third"]);
}

#[test]
fn a_stream_describes_rings_that_come() {
    let (mut first, end) = ring(0);
    first.push(5000);
    let out = Output::default();
    let totals = Arc::new(Totals::new(2));
    let clock = FakeClock::new();
    let now_ns = Box::new(move || clock.now_ns());
    let sink = StreamSink::new(out.clone(), &interfaces(1), totals.clone(), now_ns).unwrap();
    let run = Run::start(vec![end], sink, totals, None);
    wait_for("the first ring's packets", || first.held() == 0);
    let (mut second, end) = ring(1);
    second.push(7000);
    second.lose(3);
    run.control.change_rings(change(0..0, vec![end], 2));
    wait_for("the second ring's packets", || second.held() == 0);
    run.stop().unwrap();
    let file = read_bytes("stream", &out.bytes());
    let mut there = file.packets.clone();
    there.sort_unstable();
    assert_eq!((there, file.dropped()), (offered(&[first, second]), 3));
    assert_eq!(file.delivered(), run.packets());
}

#[test]
fn a_reader_that_leaves_before_the_statistics_has_all_packets() {
    let (mut producer, end) = ring(0);
    producer.push(9000);
    let out = Output::default();
    stream(&out, vec![end], None).stop().unwrap();
    let takes = out.bytes().len() - 20;
    for then in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
        let (mut producer, end) = ring(0);
        producer.push(9000);
        let out = Output { takes, then, ..Output::default() };
        let run = stream(&out, vec![end], None);
        assert_eq!(run.stop().is_ok(), then == ErrorKind::BrokenPipe);
        assert_eq!(run.packets(), producer.offered.len() as u64);
        assert_eq!(unwritten(&run.totals), 0);
    }
}

#[test]
fn a_stream_that_cannot_take_its_head_is_none() {
    for takes in [0, 30] {
        let out = Output { takes, then: ErrorKind::StorageFull, ..Output::default() };
        let clock = FakeClock::new();
        let totals = Arc::new(Totals::new(1));
        let begun = StreamSink::new(out, &interfaces(1), totals, Box::new(move || clock.now_ns()));
        assert_eq!(begun.err().map(|e| e.kind()), Some(ErrorKind::StorageFull));
    }
}

#[test]
fn nothing_takes_everything() {
    let (producers, ends) = two_busy_rings();
    let totals = Arc::new(Totals::new(2));
    let run = Run::start(ends, Nothing, totals, None);
    run.stop().unwrap();
    assert_eq!(run.packets(), offered(&producers).len() as u64);
    assert!(producers.iter().all(|p| p.held() == 0));
}

#[test]
fn a_directory_in_which_everybody_may_write_is_refused() {
    let (_temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    for mode in [0o777, 0o1777, 0o702] {
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
        let refused = Store::open(&dir).unwrap_err();
        assert!(matches!(refused, StoreError::Shared(_)), "{refused:?}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
    Store::open(&dir).unwrap();
}

#[test]
fn a_lock_that_is_a_link_leads_nobody_elsewhere() {
    for hard in [false, true] {
        let (temp, dir) = directory();
        std::fs::create_dir(&dir).unwrap();
        let letter = temp.path().join("letter");
        std::fs::write(&letter, b"dear").unwrap();
        let lock = dir.join(".tapdeck.lock");
        if hard {
            std::fs::hard_link(&letter, &lock).unwrap();
        } else {
            std::os::unix::fs::symlink(&letter, &lock).unwrap();
        }
        let refused = Store::open(&dir).unwrap_err();
        assert!(matches!(refused, StoreError::Lock(_)), "{refused:?}");
        assert_eq!(std::fs::read(&letter).unwrap(), b"dear");
    }
}

/// A process that was killed holds its locks until its memory is freed.
#[test]
fn a_recorder_that_is_just_ending_is_waited_for() {
    let (_temp, dir) = directory();
    let ending = Store::open(&dir).unwrap();
    let (begin, begun) = channel();
    let next = std::thread::spawn({
        let dir = dir.clone();
        move || {
            begin.send(()).unwrap();
            Store::open(&dir).map(drop)
        }
    });
    begun.recv().unwrap();
    drop(ending);
    next.join().unwrap().unwrap();
}

#[test]
fn numbers_do_not_end_at_a_file_that_somebody_made_up() {
    let (_temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    let mut ours = Vec::new();
    tapdeck_packet::pcapng::section_header(&mut ours, "linux", "tapdeck 0.1.0", None);
    let made_up = [
        ("tapdeck-18446744073709551615-20260102T030405Z.pcapng", &ours[..]),
        ("tapdeck-9223372036854775808-20260102T030405Z.pcapng", &ours[..]),
        ("tapdeck-9223372036854775807-20260102T030405Z.pcapng", b"nobody's"),
        ("tapdeck-00000002-20260102T030405Z.pcapng", b"nobody's"),
    ];
    for (name, bytes) in made_up {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    let mut setup = Setup::new(SEGMENT);
    setup.retention = Retention { segments: Some(2), ..Retention::default() };
    let (mut producer, end) = ring(0);
    for _ in 0..10 {
        producer.push(60_000);
    }
    let totals = setup.record(&dir, disk(), vec![end]);
    let begun = totals.segments.load(SeqCst);
    assert!(begun > 3);
    // The number that is taken is left out.
    let last = begun + 1;
    let mut numbers: Vec<u64> = names(&dir)
        .iter()
        .filter(|name| made_up.iter().all(|(other, _)| other != name))
        .map(|name| SegmentName::parse(name).unwrap().number)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [last - 1, last], "the oldest went");
    for (name, bytes) in made_up {
        assert_eq!(std::fs::read(dir.join(name)).unwrap(), bytes, "{name}");
    }
}
