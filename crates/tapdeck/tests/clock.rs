//! A clock that is set back by an hour while packets are recorded: no segment holds the step, no
//! packet is lost, and each is stamped with the scale that was valid when it came.

mod testbed;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use tapdeck_capture::{Capture, Clock, Config, Deliver, Hook, SystemClock, WallClock};
use tapdeck_packet::ring::Ring;
use tapdeck_store::io::{Disk, Uptime};
use tapdeck_store::{
    Ending, Retention, SegmentSink, SegmentSinkConfig, Store, Totals, Writer, WriterControl,
};
use tapdeck_testkit::{Cable, Net, Sender, wait_for};
use testbed::recorder::{Contents, frame, segments};

const HOUR_NS: i64 = 3_600_000_000_000;

/// This machine's clock, and how far somebody has set it.
struct SetClock(Arc<AtomicI64>);

impl WallClock for SetClock {
    fn utc_offset_ns(&self) -> i64 {
        SystemClock.utc_offset_ns() + self.0.load(Relaxed)
    }
}

fn send(net: &Net, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|i| sender.send(&frame([2, 0, 0, 0, 0, 2], 500, i)));
    });
}

fn a_step_begins_a_segment(hook: Hook) {
    let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
    net.b.inside(|| records_a_step(&net, hook));
}

/// Runs in namespace `b`.
fn records_a_step(net: &Net, hook: Hook) {
    let dir = tempfile::tempdir().expect("a directory");
    let set = Arc::new(AtomicI64::new(0));
    let clock = Arc::new(Clock::new(Box::new(SetClock(set.clone()))));
    let config = Config {
        hook,
        deliver: Deliver::Pass,
        snaplen: 2000,
        ring_bytes: 8 << 20,
        block_bytes: 1 << 20,
        promiscuous: true,
        device_bound: true,
        overload: tapdeck_capture::Overload::Drop,
        stamps: tapdeck_capture::Stamps::Auto,
        filter: None,
        rules: None,
        cutoff: None,
    };
    let mut capture = Capture::open("vb", &config, 0, &clock).expect("a kernel with this hook");
    let rings: Vec<Box<dyn Ring>> =
        capture.readers().into_iter().map(|r| Box::new(r) as Box<dyn Ring>).collect();
    let interfaces = capture.descriptions();
    let totals = Arc::new(Totals::new(interfaces.len()));
    let now = clock.clone();
    let sink = SegmentSink::new(
        Disk::new(false),
        Store::open(dir.path()).expect("a directory"),
        SegmentSinkConfig {
            segment_bytes: 64 << 20,
            segment_time: Duration::from_secs(3600),
            retention: Retention::default(),
            sync_interval: None,
            interfaces,
            now_ns: Arc::new(move || now.now_ns()),
            uptime: Uptime::of_machine(),
            log: Arc::new(|line| panic!("{line}")),
            indexing: None,
        },
        totals.clone(),
    )
    .expect("a store");
    let control = Arc::new(WriterControl::new().unwrap());
    let writer = Writer::new(rings, sink, totals.clone());
    let thread = std::thread::spawn({
        let control = control.clone();
        move || writer.run(&control)
    });
    capture.start().expect("the interface is there");

    let seen = |capture: &Capture| {
        // What is in the rings and what is written.
        capture.rings().iter().all(|r| r.open_block().1 == 0)
            && totals.interfaces.iter().map(|i| i.packets.load(Relaxed)).sum::<u64>() % 1000 == 0
    };
    send(net, 0..1000);
    assert_eq!(clock.check(), None, "nobody has set the clock");
    set.store(-HOUR_NS, Relaxed);
    let step = clock.check().expect("the clock was set");
    assert!((step.by_ns + HOUR_NS).abs() < 1_000_000, "{step:?}");
    wait_for("every ring to take the new scale", || {
        capture.flush_all().expect("the rings are there");
        capture.rings().iter().all(|r| r.open_epoch() == clock.epoch()) && seen(&capture)
    });
    send(net, 1000..2000);
    capture.stop();
    wait_for("the rings to empty", || {
        capture.flush_all().expect("the rings are there");
        seen(&capture)
    });
    control.close_blocks();
    assert_eq!(thread.join().expect("it does not panic").expect("the disk works"), Ending::Asked);

    let files = segments(dir.path());
    assert_eq!(files.len(), 2, "{hook}: one segment on each side of the step");
    let [before, after] = [Contents::of(&files[0]), Contents::of(&files[1])];
    assert_eq!((before.packets.len(), after.packets.len()), (1000, 1000), "{hook}");
    let span = |c: &Contents| {
        let times: Vec<i64> = c.packets.iter().map(|p| p.time_ns).collect();
        (times.iter().copied().min().unwrap_or(0), times.iter().copied().max().unwrap_or(0))
    };
    let ((first, last), (first_after, last_after)) = (span(&before), span(&after));
    let minute = 60_000_000_000;
    assert!(
        last - first < minute && last_after - first_after < minute,
        "{hook}: a segment holds the step"
    );
    assert!(first_after < first && (first_after + HOUR_NS - last).abs() < minute, "{hook}");
    let raw = std::fs::read(&files[1]).expect("it is there");
    let told = tapdeck_packet::pcapng::Reader::new(&raw).next();
    let Some(Ok(tapdeck_packet::pcapng::Record::Section(section))) = told else {
        panic!("{told:?}")
    };
    assert!(section.comment.is_some_and(|c| c.contains("stepped")), "the step is recorded");
}

#[test]
fn a_step_begins_a_segment_at_xdp() {
    a_step_begins_a_segment(Hook::Xdp);
}

#[test]
fn a_step_begins_a_segment_at_tcx() {
    a_step_begins_a_segment(Hook::Tcx);
}
