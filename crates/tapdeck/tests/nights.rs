//! Bad nights: what goes wrong while recording is counted, reported and survived, and nothing that
//! was stored is damaged.

mod testbed;

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tapdeck_testkit::{Cable, Mount, Net, Sender, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

fn send(net: &Net, numbers: std::ops::Range<u32>, len: usize) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|i| sender.send(&frame([2, 0, 0, 0, 0, 2], len, i)));
    });
}

fn wait_for_seen(recorder: &Recorder, packets: u64) {
    wait_for("the packets to be seen", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= packets)
    });
}

#[test]
fn a_full_disk_is_survived_and_recording_resumes() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=48M");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 24 << 20]).expect("there is room");
    let store = disk.path().join("store");
    let flags = format!(
        "--hook xdp --ring-bytes 4MiB --segment-size 8MiB --flush 100ms --dir {}",
        store.display()
    );
    let mut recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..40_000, 1000);
    wait_for_seen(&recorder, 30_000);
    wait_for("packets to be dropped", || number(&recorder.now(), "dropped_ring") > 0);
    recorder.wait_to_say("disk is full");
    wait_for("the write to be told as pending", || number(&recorder.now(), "write_us") > 1_000_000);
    fs::remove_file(&ballast).expect("it is ours");
    recorder.wait_to_say("goes on");
    send(&net, 40_000..40_100, 1000);
    wait_for_seen(&recorder, 40_100);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!((number(&stats, "seen"), number(&stats, "write_us")), (40_100, 0));
    let contents = Contents::of_store(&store);
    assert_eq!(contents.packets.len() as u64, number(&stats, "captured"));
    assert_eq!(contents.announced(), number(&stats, "dropped_ring"));
    let last = contents.packets.last().expect("packets");
    assert_eq!(last.frame[42..46], 40_099u32.to_be_bytes());
}

#[test]
fn retention_makes_room_on_a_full_disk() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=48M");
    let store = disk.path().join("store");
    fs::create_dir(&store).expect("there is room");
    fs::write(store.join("evidence.pcapng"), b"not ours").expect("there is room");
    let flags = format!(
        "--hook xdp --segment-size 8MiB --min-free 1MiB --flush 100ms --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    for round in 0..10 {
        send(&net, round * 10_000..(round + 1) * 10_000, 1000);
        wait_for_seen(&recorder, u64::from(round + 1) * 10_000);
    }
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats, "captured"), 100_000, "{stats}");
    assert!(number(&stats, "segments_deleted") > 0);
    let kept = fs::read(store.join("evidence.pcapng")).expect("it is still there");
    assert_eq!(kept, b"not ours");
    fs::remove_file(store.join("evidence.pcapng")).expect("it is there");
    let stored = Contents::of_store(&store).packets.len() as u64;
    assert_eq!(stored + number(&stats, "packets_deleted"), 100_000);
}

#[test]
fn ext4_xfs_and_tmpfs_hold_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let disks = [
        Mount::image(dir.path(), "ext4", 128),
        Mount::image(dir.path(), "xfs", 512),
        Mount::tmpfs(&dir.path().join("tmpfs"), "size=128M"),
    ];
    for disk in &disks {
        for direct in ["auto", "off"] {
            let net = Net::new();
            let store = disk.path().join(direct);
            let flags = format!(
                "--hook xdp --segment-size 8MiB --flush 100ms --direct {direct} --dir {}",
                store.display()
            );
            let recorder = Recorder::start(&net, dir.path(), &flags);
            send(&net, 0..20_000, 1000);
            wait_for_seen(&recorder, 20_000);
            let stats = recorder.stop();
            assert_eq!(number(&stats, "captured"), 20_000, "{} {direct}", store.display());
            let contents = Contents::of_store(&store);
            assert_eq!(contents.packets.len(), 20_000, "{} {direct}", store.display());
            assert!(segments(&store).len() >= 3, "it rotated by size");
        }
    }
}

#[test]
fn an_interface_may_go_and_come_back() {
    for hook in ["xdp", "tcx", "tpacket", "recv"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook {hook} --flush 100ms --dir {}", store.display());
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 0..100, 200);
        wait_for_seen(&recorder, 100);
        net.b.run("ip link del vb");
        recorder.wait_to_say("is gone");
        net.plug(Cable::default());
        recorder.wait_to_say("is back");
        send(&net, 100..200, 200);
        wait_for_seen(&recorder, 200);
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "captured"), 200, "{hook}");
        assert_eq!(Contents::of_store(&store).packets.len(), 200, "{hook}");
        let device = number(&stats, "nic_received");
        assert_eq!(device, 200, "{hook}: the counters of both devices");
    }
}

#[test]
fn a_link_may_go_down_and_up() {
    for hook in ["xdp", "tcx", "tpacket", "recv"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook {hook} --flush 100ms --dir {}", store.display());
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 0..100, 200);
        wait_for_seen(&recorder, 100);
        net.a.run("ip link set va down");
        recorder.wait_to_say("has no link");
        net.a.run("ip link set va up");
        recorder.wait_to_say("has a link again");
        net.b.run("ip link set vb down");
        recorder.wait_to_say("has no link");
        net.b.run("ip link set vb up");
        recorder.wait_to_say("has a link again");
        send(&net, 100..200, 200);
        wait_for_seen(&recorder, 200);
        let stats = recorder.stop();
        assert_eq!(number(&stats, "captured"), 200, "{hook}: {stats}");
    }
}

#[test]
fn a_recorder_that_was_stopped_for_three_seconds_goes_on() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook xdp --ring-bytes 4MiB --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..100, 1000);
    wait_for_seen(&recorder, 100);
    recorder.signal(Signal::STOP);
    let stopped = std::time::Instant::now();
    let mut sent = 100;
    while stopped.elapsed().as_secs() < 3 {
        send(&net, sent..sent + 1000, 1000);
        sent += 1000;
    }
    recorder.signal(Signal::CONT);
    wait_for_seen(&recorder, u64::from(sent));
    send(&net, sent..sent + 1, 1000);
    wait_for_seen(&recorder, u64::from(sent) + 1);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats, "seen"), u64::from(sent) + 1);
    let contents = Contents::of_store(&store);
    assert_eq!(contents.packets.len() as u64, number(&stats, "captured"));
    assert_eq!(contents.announced(), number(&stats, "dropped_ring"));
}

/// What is flushed can be read while recording goes on, and after the recorder was killed.
#[test]
fn a_live_segment_is_readable_and_outlives_its_recorder() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook xdp --flush 200ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let live = |packets: usize| {
        let found = fs::read_dir(&store).expect("a store").flatten().map(|e| e.path());
        let path = found.into_iter().find(|p| p.extension().is_some_and(|e| e == "live"));
        path.filter(|p| Contents::of(p).packets.len() == packets)
    };
    // A single packet on an idle link does not wait for a full block.
    send(&net, 0..1, 60);
    wait_for("one packet to be readable", || live(1).is_some());
    send(&net, 1..10_000, 1000);
    wait_for("all packets to be readable", || live(10_000).is_some());
    recorder.kill();
    assert!(live(10_000).is_some());

    // The next recorder closes it with all its packets, and counts on from its number.
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..5, 60);
    wait_for_seen(&recorder, 5);
    recorder.stop();
    let closed = segments(&store);
    let name = |at: usize| closed[at].file_name().and_then(|n| n.to_str()).expect("a name");
    assert!(name(0).starts_with("tapdeck-00000001-"), "{}", name(0));
    assert!(name(1).starts_with("tapdeck-00000002-"), "{}", name(1));
    assert_eq!(closed.len(), 2);
    let packets = |at: usize| Contents::of(&closed[at]).packets.len();
    assert_eq!((packets(0), packets(1)), (10_000, 5));
}

/// A disk that is full when the recorder is told to stop: it gives up after a while, or at once if
/// told twice, and what it could not write is counted, in rings that are full and in rings that are
/// not.
#[test]
fn what_a_full_disk_does_not_take_at_the_end_is_counted() {
    for (ring, twice) in [("64MiB", true), ("64MiB", false), ("1MiB", true), ("1MiB", false)] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Mount::tmpfs(&dir.path().join("disk"), "size=16M");
        fs::write(disk.path().join("ballast"), vec![1; 12 << 20]).expect("there is room");
        let store = disk.path().join("store");
        let flags = format!(
            "--hook tcx --ring-bytes {ring} --block-bytes 128KiB --snaplen 2000 --flush 100ms --dir {}",
            store.display()
        );
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 0..20_000, 1000);
        recorder.wait_to_say("disk is full");
        recorder.signal(Signal::INT);
        if twice {
            recorder.signal(Signal::TERM);
        }
        let stats = recorder.finish_anyhow();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "seen"), 20_000, "{ring} {twice}: {stats}");
        assert!(number(&stats, "dropped_unwritten") > 0, "{ring} {twice}: {stats}");
        let stored = Contents::of_store(&store).packets.len() as u64;
        assert_eq!(stored, number(&stats, "captured"), "{ring} {twice}");
    }
}

#[test]
fn usr1_tells_the_counters_and_quit_and_usr2_end_a_recording_in_good_order() {
    for last in [Signal::QUIT, Signal::USR2] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook tcx --flush 100ms --dir {}", store.display());
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        for numbers in [0..100, 100..150] {
            let all = numbers.end;
            send(&net, numbers, 100);
            wait_for("the packets to be recorded", || {
                recorder.now()["captured"].as_u64() == Some(all.into())
            });
            recorder.signal(Signal::USR1);
            recorder.wait_to_say(&format!("vb: {all} seen = {all} captured"));
            recorder.wait_to_say("in 1 segment in ");
        }
        recorder.signal(last);
        let stats = recorder.finish();
        assert_eq!(number(&stats, "captured"), 150, "{last:?}: {stats}");
        assert_eq!(Contents::of_store(&store).packets.len(), 150, "{last:?}");
        let left_open = |name: &Path| name.extension().is_some_and(|e| e == "live");
        let names: Vec<PathBuf> =
            fs::read_dir(&store).expect("a store").flatten().map(|e| e.path()).collect();
        assert!(!names.iter().any(|name| left_open(name)), "{last:?}: {names:?}");
    }
}
