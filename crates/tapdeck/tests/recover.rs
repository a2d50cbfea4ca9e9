//! What a killed recorder leaves, mended by `tapdeck recover` and by the next recorder.

mod testbed;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{TryRecvError, channel};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_packet::trace::Reader;
use tapdeck_testkit::kernel::need_root;
use tapdeck_testkit::{Mount, Net, Sender, Talking, wait_for};
use testbed::recorder::{Contents, Recorder, frame, number, segments};

fn recover(dir: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["recover", "--dir"]).arg(dir).args(flags);
    command.output().expect("the program was built")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Asserts that the program failed, and said why in one line that holds all of `words`.
fn assert_refused(out: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(words.iter().all(|w| line.contains(w)), "{words:?} in {line}");
}

fn succeeds(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    said(out)
}

/// Segments that were not closed.
fn lives(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a store").flatten().map(|e| e.path());
    entries.filter(|p| p.to_string_lossy().ends_with(".pcapng.live")).collect()
}

/// Packets up to where the file ends or is torn.
fn readable(path: &Path) -> u64 {
    let file = fs::File::open(path).expect("it is there");
    let Ok(mut reader) = Reader::new(file) else { return 0 };
    let mut packets = 0;
    while let Ok(Some(_)) = reader.next_packet() {
        packets += 1;
    }
    packets
}

/// All files with their contents and when they were changed.
fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let entries = fs::read_dir(dir).expect("a store").flatten();
    // A recorder that was killed leaves its socket.
    let files = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_file()));
    let mut all: Vec<_> = files
        .map(|e| {
            let changed = e.metadata().and_then(|m| m.modified()).expect("its time");
            (e.path(), fs::read(e.path()).expect("it is there"), changed)
        })
        .filter(|e| !e.0.ends_with(".tapdeck.lock") && !e.0.ends_with(".tapdeck.times"))
        .collect();
    all.sort();
    all
}

/// What other programs count in a file to whose end they come.
fn counted_by_others(path: &Path) -> [u64; 2] {
    let tcpdump = Command::new("tcpdump").args(["-n", "-r"]).arg(path).output();
    let tcpdump = tcpdump.expect("tcpdump is installed: make setup");
    let complaint = String::from_utf8_lossy(&tcpdump.stderr).into_owned();
    assert!(tcpdump.status.success(), "{complaint}");
    assert!(!complaint.contains("truncated"), "{complaint}");
    let capinfos = Command::new("capinfos").args(["-c", "-M", "-T", "-r"]).arg(path).output();
    let capinfos = capinfos.expect("capinfos is installed: make setup");
    assert!(capinfos.status.success(), "{}", String::from_utf8_lossy(&capinfos.stderr));
    let told = said(&capinfos);
    let count = told.trim().rsplit('\t').next().and_then(|n| n.parse().ok());
    let lines = said(&tcpdump).lines().count() as u64;
    [lines, count.unwrap_or_else(|| panic!("no number in {told:?}"))]
}

/// Kills a recorder while packets come, in its first segment.
fn kill_under_traffic(net: &Net, dir: &Path, store: &Path, after: u64) {
    let flags = format!("--hook xdp --flush 100ms --segment-size 512MiB --dir {}", store.display());
    let recorder = Recorder::start(net, dir, &flags);
    // The sender goes on until its channel is dropped.
    std::thread::scope(|scope| {
        let (going, goes) = channel::<()>();
        scope.spawn(move || {
            net.a.inside(move || {
                let mut sender = Sender::on("va");
                let mut sent = 0;
                while goes.try_recv() == Err(TryRecvError::Empty) {
                    sender.send(&frame([2, 0, 0, 0, 0, 2], 200, sent));
                    sent += 1;
                }
            });
        });
        wait_for("packets on disk", || {
            recorder.now()["captured"].as_u64().is_some_and(|n| n >= after)
        });
        recorder.kill();
        drop(going);
    });
}

#[test]
fn what_a_killed_recorder_leaves_is_recovered_and_recorded_into_again() {
    for round in 0..3 {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        kill_under_traffic(&net, dir.path(), &store, 3_000 + round * 7_000);
        let left = lives(&store);
        assert_eq!(left.len(), 1);
        let before: u64 = left.iter().map(|p| readable(p)).sum();

        let foretold = listing(&store);
        let told = succeeds(&recover(&store, &["--dry-run"]));
        assert!(told.contains("would be recovered"), "{told}");
        assert_eq!(listing(&store), foretold, "a dry run changes nothing");

        let told: Value = serde_json::from_str(&succeeds(&recover(&store, &["--json"])))
            .expect("one JSON object");
        assert_eq!(told["sound"], true, "{told}");
        assert_eq!(number(&told, "mended"), left.len() as u64, "{told}");
        assert!(number(&told, "packets") >= before && before > 0, "{before}: {told}");
        assert!(lives(&store).is_empty());
        for segment in left {
            let closed = segment.with_extension("");
            assert!(closed.with_extension("index").exists(), "{told}");
            let contents = Contents::of(&closed);
            let packets = contents.packets.len() as u64;
            let delivered: u64 = contents.statistics.iter().filter_map(|s| s.delivered).sum();
            assert_eq!(delivered, packets);
            let comment = contents.statistics[0].comment.as_deref().unwrap_or_default();
            assert!(comment.starts_with("recovered: "), "{comment}");
            assert_eq!(counted_by_others(&closed), [packets; 2]);
            let about = fs::metadata(&closed).expect("it is there");
            // A file system may need blocks for its own list of them.
            assert!(about.blocks() * 512 <= about.len() + 8192, "what was set aside is given back");
        }

        let sound = listing(&store);
        let told = succeeds(&recover(&store, &["--all"]));
        assert!(told.contains("nothing to mend"), "{told}");
        assert_eq!(listing(&store), sound, "once more changes nothing");

        let (before, recorded) = (segments(&store).len(), Contents::of_store(&store).packets.len());
        let recorder =
            Recorder::start(&net, dir.path(), &format!("--hook xdp --dir {}", store.display()));
        net.a.inside(|| Sender::on("va").send(&frame([2, 0, 0, 0, 0, 2], 200, 1)));
        wait_for("the packet to be seen", || recorder.now()["seen"].as_u64() == Some(1));
        recorder.stop();
        assert_eq!(Contents::of_store(&store).packets.len(), recorded + 1);
        assert_eq!(segments(&store).len(), before + 1);
    }
}

#[test]
fn a_running_recorder_is_left_alone() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let recorder =
        Recorder::start(&net, dir.path(), &format!("--hook tpacket --dir {}", store.display()));
    let pid = fs::read_to_string(store.join(".tapdeck.lock")).expect("a lock");
    for flags in [&[][..], &["--dry-run"], &["--json"]] {
        let words = ["in use by a recorder", pid.trim()];
        assert_refused(&recover(&store, flags), &words);
    }
    recorder.stop();
    assert!(succeeds(&recover(&store, &[])).contains("nothing to mend"));
}

/// A segment with as many packets that was not closed.
fn segment(packets: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "Linux", "tapdeck 0.1.0", None);
    let interface = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: "eth0".into(),
        description: String::new(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut bytes, &interface);
    let gap = 4096 - bytes.len();
    pcapng::fill(&mut bytes, gap);
    for n in 0..packets {
        let frame = frame([2, 0, 0, 0, 0, 2], 1000, n as u32);
        let mut block = vec![0; pcapng::packet_len(frame.len(), 0, 0)];
        pcapng::write_packet(&mut block, 0, n, [&frame, &[], &[]], 1000, 0, 0);
        bytes.extend(block);
    }
    bytes
}

const LIVE: [&str; 3] = [
    "tapdeck-00000001-20260102T030405Z.pcapng.live",
    "tapdeck-00000002-20260102T030405Z.pcapng.live",
    "tapdeck-00000003-20260102T030405Z.pcapng.live",
];

/// A store of three segments that were not closed: one torn in its middle and at its end, one
/// without its beginning, which cannot be mended, and an empty one.
fn broken_store(dir: &Path) -> PathBuf {
    let store = dir.join("store");
    fs::create_dir(&store).expect("a new directory");
    let mut torn = segment(100);
    torn[20 * 1024..21 * 1024].fill(0);
    torn.truncate(torn.len() - 100);
    fs::write(store.join(LIVE[0]), torn).expect("there is room");
    let mut headless = segment(100);
    headless[..4096].fill(0);
    fs::write(store.join(LIVE[1]), headless).expect("there is room");
    fs::write(store.join(LIVE[2]), []).expect("there is room");
    store
}

#[test]
fn what_was_lost_and_what_cannot_be_mended_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = broken_store(dir.path());
    let before = listing(&store);
    assert_refused(&recover(&store, &["--dry-run"]), &[LIVE[1], "cannot be mended"]);
    assert_eq!(listing(&store), before);
    assert!(!store.join(".tapdeck.lock").exists());

    let out = recover(&store, &[]);
    assert_refused(&out, &[LIVE[1], "cannot be mended"]);
    let told = said(&out);
    // Two packets have a part in the missing 1024 bytes, and the last one has no end.
    assert!(told.contains("recovered, 97 packets"), "{told}");
    assert!(told.contains("replaced with fill") && told.contains("torn and cut"), "{told}");
    assert!(told.contains(&format!("{}.damaged", LIVE[2])), "{told}");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.contains("1 recovered, 1 set aside, 1 indexed, 1 cannot be mended"), "{told}");
    let closed = &segments(&store)[..];
    assert_eq!(Contents::of(&closed[0]).packets.len(), 97);
    assert_eq!(counted_by_others(&closed[0]), [97; 2]);
    assert_eq!(lives(&store), [store.join(LIVE[1])]);

    let after = listing(&store);
    let out = recover(&store, &["--json"]);
    assert_refused(&out, &[LIVE[1]]);
    let told: Value = serde_json::from_str(&said(&out)).expect("one JSON object");
    assert_eq!((told["sound"].as_bool(), number(&told, "failed")), (Some(false), 1), "{told}");
    assert_eq!(listing(&store), after);
}

#[test]
fn a_recorder_mends_what_can_be_mended_and_records_in_any_case() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = broken_store(dir.path());
    let headless = fs::read(store.join(LIVE[1])).expect("made above");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--dir"]).arg(&store);
    let mut recorder = Talking::start(&mut command);
    recorder.wait_to_say("renamed");
    recorder.process.signal(Signal::INT);
    let (status, said) = recorder.end();
    let told = said.join("\n");
    assert!(status.success(), "{told}");
    let line = |name: &str| told.lines().filter(|l| l.contains(name)).collect::<Vec<_>>();
    assert!(line(LIVE[0])[0].contains("recovered, 97 packets"), "{told}");
    assert!(line(LIVE[1])[0].contains("cannot be mended"), "{told}");
    assert!(line(LIVE[2])[0].contains("renamed"), "{told}");
    assert!(LIVE.iter().all(|name| line(name).len() == 1), "{told}");
    assert_eq!(Contents::of_store(&store).packets.len(), 97);
    assert_eq!(fs::read(store.join(LIVE[1])).expect("left alone"), headless);
}

/// A live segment with ten packets and so many GiB behind them of fill, of which the disk holds
/// next to nothing.
fn vast_segment(path: &Path, gib: u64) {
    const BLOCK: u64 = 16 << 20;
    let head = segment(10);
    let file = fs::File::create(path).expect("there is room");
    file.write_all_at(&head, 0).expect("there is room");
    let end = gib << 30;
    let mut at = head.len() as u64;
    while at < end {
        let next = (at + BLOCK).min(end);
        let total = ((next - at) as u32).to_ne_bytes();
        let begin = [pcapng::FILL.to_ne_bytes(), total].concat();
        file.write_all_at(&begin, at).expect("there is room");
        file.write_all_at(&total, next - 4).expect("there is room");
        at = next;
    }
}

#[test]
fn packets_are_captured_while_a_leftover_still_waits() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    fs::create_dir(&store).expect("a new directory");
    fs::write(store.join(LIVE[0]), segment(100)).expect("there is room");
    // Reading it takes minutes.
    vast_segment(&store.join(LIVE[1]), 256);

    let flags = format!("--hook tpacket --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        (0..50).for_each(|n| sender.send(&frame([2, 0, 0, 0, 0, 2], 200, n)));
    });
    recorder.wait_for_captured(50);
    wait_for("the first leftover to be mended", || lives(&store).len() == 2);
    assert!(store.join(LIVE[1]).exists(), "the second is read for long");
    let mut program = recorder.program;
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert!(status.success(), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("not recovered yet")), "{said:#?}");
    assert_eq!(lives(&store), [store.join(LIVE[1])], "the next recorder goes on with it");
    let closed = segments(&store);
    assert_eq!(Contents::of(&closed[0]).packets.len(), 100);
    assert_eq!(Contents::of(&closed[1]).packets.len(), 50);
    // One that can be read soon takes its place.
    fs::write(store.join(LIVE[1]), segment(10)).expect("there is room");
    assert!(succeeds(&recover(&store, &[])).contains("recovered, 10 packets"));
    let mut verify = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    succeeds(&verify.arg("verify").arg("--dir").arg(&store).output().expect("it runs"));
}

#[test]
fn a_copy_that_was_cut_short_is_mended() {
    let dir = tempfile::tempdir().expect("a directory");
    let closed = dir.path().join("tapdeck-00000001-20260102T030405Z.pcapng");
    let bytes = segment(50);
    fs::write(&closed, &bytes[..bytes.len() - 500]).expect("there is room");
    let told = succeeds(&recover(dir.path(), &[]));
    assert!(told.contains("recovered, 49 packets, 532 B torn and cut"), "{told}");
    assert_eq!(counted_by_others(&closed), [49; 2]);
}

#[test]
fn what_cannot_be_opened_is_one_line() {
    need_root();
    let dir = tempfile::tempdir().expect("a directory");
    assert_refused(&recover(&dir.path().join("none"), &[]), &["none", "is not a directory"]);
    assert!(!dir.path().join("none").exists(), "a store is not made to be mended");

    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=4M,mode=755");
    fs::write(disk.path().join(LIVE[0]), segment(10)).expect("there is room");
    disk.make_read_only();
    let before = listing(disk.path());
    assert_refused(&recover(disk.path(), &[]), &["read-only"]);
    assert!(succeeds(&recover(disk.path(), &["--dry-run"])).contains("recovered, 10 packets"));
    assert_eq!(listing(disk.path()), before);
}
