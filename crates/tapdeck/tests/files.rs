//! The files that packets go into: who may write them, and what a file system does to them.

mod testbed;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::process::last_json;
use tapdeck_testkit::{Mount, Net, Sender, Talking, wait_for};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

fn send(net: &Net, numbers: std::ops::Range<u32>, len: usize) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|i| sender.send(&frame([2, 0, 0, 0, 0, 2], len, i)));
    });
}

/// Runs the program in namespace `b` to its end.
fn run(net: &Net, args: &[&str]) -> Output {
    net.b.command(env!("CARGO_BIN_EXE_tapdeck")).args(args).output().expect("it was built")
}

/// Asserts that the program failed, and said why in one line that holds all of `words`.
fn assert_fails(out: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{line}");
    assert!(words.iter().all(|w| line.contains(w)), "{words:?} in {line}");
}

/// Packets captured so far; none before the first statistics are written.
fn captured(stats: &Value) -> u64 {
    stats["captured"].as_u64().unwrap_or(0)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// A store that a recorder makes is read by its owner and its group alone, whatever the umask is,
/// and no file of it by anybody else.
#[test]
fn a_new_store_is_not_for_others() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("above").join("store");
    let flags = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..100, 100);
    wait_for("the packets", || captured(&recorder.now()) == 100);
    assert_eq!(number(&recorder.stop(), "captured"), 100);
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o7777;
    assert_eq!(mode(&store), 0o750);
    assert_eq!(mode(&dir.path().join("above")), 0o755);
    let files: Vec<_> = fs::read_dir(&store).expect("a store").flatten().collect();
    assert!(files.iter().any(|file| file.path().extension().is_some_and(|e| e == "pcapng")));
    for file in files {
        assert_eq!(mode(&file.path()) & !0o640, 0, "{:?}", file.file_name());
    }
}

/// Root may write anywhere, so a link in the place of the statistics would lead root to anything.
#[test]
fn statistics_follow_no_link() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (dear, link) = (dir.path().join("dear"), dir.path().join("stats"));
    fs::write(&dear, "dear").expect("written");
    symlink(&dear, &link).expect("a link");
    let args = ["record", "-i", "vb", "--hook", "recv", "--no-store", "--duration", "100ms"];
    let refused = run(&net, &[&args[..], &["--stats-json", text(&link)]].concat());
    assert_fails(&refused, &["stats", "is a symbolic link"]);
    assert_eq!(fs::read(&dear).expect("it is there"), b"dear");
    let kept = run(&net, &[&args[..], &["--stats-json", text(&dear)]].concat());
    assert!(kept.status.success(), "{kept:?}");
    assert!(fs::read_to_string(&dear).expect("it is there").starts_with("{\""), "begun anew");
}

#[test]
fn a_file_has_one_writer_whose_alone_it_is() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.pcapng");
    let flags = format!("--hook tcx --flush 100ms -w {}", file.display());
    let first = Recorder::start(&net, dir.path(), &flags);
    let second = run(&net, &["record", "-i", "vb", "--hook", "recv", "-w", text(&file)]);
    assert_fails(&second, &["a.pcapng", "is being written by another process"]);
    send(&net, 0..100, 100);
    wait_for("the packets", || captured(&first.now()) == 100);
    assert_eq!(number(&first.stop(), "captured"), 100);
    assert_eq!(Contents::of(&file).packets.len(), 100);
    assert_eq!(file.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);

    let link = dir.path().join("link.pcapng");
    symlink(&file, &link).expect("a new name");
    let args = ["record", "-i", "vb", "--hook", "recv", "--count", "1", "-w", text(&link)];
    assert_fails(&run(&net, &args), &["link.pcapng", "is a symbolic link"]);
    assert_eq!(Contents::of(&file).packets.len(), 100);
}

#[test]
fn a_recording_that_cannot_begin_leaves_no_file() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let _other = Recorder::start(&net, dir.path(), "--hook xdp --no-store");
    let file = dir.path().join("new.pcapng");
    let args = ["record", "-i", "vb", "--hook", "xdp", "-w", text(&file)];
    assert_fails(&run(&net, &args), &["XDP program"]);
    assert!(!file.exists());
}

#[test]
fn on_a_full_file_system_what_is_captured_can_be_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=3M,mode=755");
    for hook in ["xdp", "tcx"] {
        let net = Net::new();
        let file = disk.path().join("a.pcapng");
        let flags = format!("--hook {hook} --flush 100ms -w {}", file.display());
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        // No block ends where the room does. The recorder may end while the last of them come.
        let mut sent_before = 0;
        for round in 0..16 {
            sent_before = u64::from(round) * 400;
            send(&net, round * 400..(round + 1) * 400, 1000);
            let written = u64::from(round + 1) * 400 * 1000;
            wait_for("the packets to be written, or the end", || {
                let ended = recorder.program.process.0.try_wait().expect("it was started");
                ended.is_some() || file.metadata().is_ok_and(|meta| meta.len() >= written)
            });
            if recorder.program.process.0.try_wait().expect("it was started").is_some() {
                break;
            }
        }
        let (status, said) = recorder.program.end();
        assert_eq!(status.code(), Some(1), "{said:#?}");
        assert!(said.iter().any(|line| line.contains("No space left")), "{said:#?}");
        let stats = recorder.finish_anyhow();
        assert_accounted(&stats);
        let seen = sent_before..=number(&stats, "nic_received");
        assert!(seen.contains(&number(&stats, "seen")), "{sent_before} were sent before: {stats}");
        let contents = Contents::of(&file);
        assert_eq!(contents.packets.len() as u64, number(&stats, "captured"), "{stats}");
        assert!(number(&stats, "captured") > 0 && number(&stats, "dropped_unwritten") > 0);
        fs::remove_file(&file).expect("it is there");
    }
}

/// Starts a recording whose files may have so many bytes.
fn limited(net: &Net, dir: &Path, bytes: u64, flags: &[&str]) -> Talking {
    let mut command = net.b.command("prlimit");
    command.arg(format!("--fsize={bytes}")).arg(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "tcx", "--flush", "100ms", "--stats-json"]);
    command.arg(dir.join("stats.json")).args(flags).stdout(Stdio::null());
    let mut program = Talking::start(&mut command);
    program.wait_to_say("recording");
    program
}

#[test]
fn a_limit_to_the_length_of_files_is_an_error_of_a_file_and_none_of_a_store() {
    const LIMIT: u64 = 2_500_000;
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.pcapng");
    let mut program = limited(&net, dir.path(), LIMIT, &["-w", text(&file)]);
    send(&net, 0..8000, 1000);
    let (status, said) = program.end();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("File too large")), "{said:#?}");
    let stats = last_json(&dir.path().join("stats.json"));
    assert_accounted(&stats);
    assert_eq!(Contents::of(&file).packets.len() as u64, number(&stats, "captured"));
    assert!(number(&stats, "captured") > 1000, "{stats}");

    let store = dir.path().join("store");
    let mut program = limited(&net, dir.path(), LIMIT, &["--dir", text(&store)]);
    // More than a segment can hold waits for the writer at once.
    program.process.signal(Signal::STOP);
    send(&net, 0..8000, 1000);
    program.process.signal(Signal::CONT);
    let stats = || last_json(&dir.path().join("stats.json"));
    wait_for("the packets", || captured(&stats()) == 8000);
    program.process.signal(Signal::INT);
    let (status, said) = program.end();
    assert!(status.success(), "{said:#?}");
    assert_eq!(number(&stats(), "dropped_ring"), 0);
    assert_eq!(Contents::of_store(&store).packets.len(), 8000);
    let segments = segments(&store);
    assert!(segments.len() > 3, "{segments:?}");
    assert!(segments.iter().all(|s| s.metadata().expect("it is there").len() <= LIMIT));
}

#[test]
fn standard_output_that_is_closed_is_no_output() {
    let net = Net::new();
    let program = env!("CARGO_BIN_EXE_tapdeck");
    for rest in
        ["record -i vb --hook recv --count 1 -w -", "record -i vb --no-store --duration 1ms"]
    {
        let mut command = net.b.command("sh");
        let out = command.args(["-c", &format!("exec {program} {rest} >&-")]).output();
        let out = out.expect("there is a shell");
        if rest.contains("-w -") {
            assert_fails(&out, &["standard output is closed"]);
        } else {
            assert!(out.status.success(), "who needs none does without: {out:?}");
        }
    }
}

#[test]
fn a_read_only_file_system_is_said_to_be_one() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=1M,mode=755");
    fs::create_dir(disk.path().join("store")).expect("there is room");
    disk.make_read_only();
    for name in ["store", "new"] {
        let store = disk.path().join(name);
        let args = ["record", "-i", "vb", "--hook", "recv", "--dir", text(&store)];
        assert_fails(&run(&net, &args), &["read-only"]);
    }
}

#[test]
fn more_free_space_than_there_can_be_is_said_at_once_and_deletions_are_told() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let stats = dir.path().join("stats.json");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "tcx", "--flush", "100ms", "--segment-time"]);
    command.args(["200ms", "--min-free", "99.9%", "--stats-json"]).arg(&stats);
    let mut program = Talking::start(command.arg("--dir").arg(&store).stdout(Stdio::null()));
    program.wait_to_say("--min-free");
    let count = |key: &str| number(&last_json(&stats), key);
    for i in 0..10 {
        send(&net, i..i + 1, 1000);
        wait_for("the packet", || captured(&last_json(&stats)) > u64::from(i));
    }
    wait_for("a deletion", || count("segments_deleted") > 0);
    let out = run(&net, &["ctl", "--dir", text(&store), "stats"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains("retention deleted"), "{said}");
    program.process.signal(Signal::INT);
    assert!(program.end().0.success());
}

#[test]
fn a_store_whose_recorder_was_just_killed_is_recovered_at_once() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook tcx --ring-bytes 256MiB --flush 100ms --dir {}", store.display());
    for round in 0..3 {
        let recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 0..100, 100);
        wait_for("the packets", || captured(&recorder.now()) == 100);
        // Not waited for: its memory is still to be freed.
        recorder.signal(Signal::KILL);
        let out = run(&net, &["recover", "--dir", text(&store)]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        recorder.kill();
        assert_eq!(Contents::of_store(&store).packets.len(), (round + 1) * 100);
    }
}

#[test]
fn recovery_says_what_it_cannot_mend_and_fails() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook tcx --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..100, 1000);
    wait_for("the packets", || captured(&recorder.now()) == 100);
    recorder.stop();
    let segment = segments(&store).remove(0);
    let mut bytes = fs::read(&segment).expect("it is there");
    let sent = frame([2, 0, 0, 0, 0, 2], 1000, 50);
    let at = bytes.windows(1000).position(|window| window == sent).expect("it was recorded");
    bytes[at + 500] ^= 1;
    fs::write(&segment, bytes).expect("there is room");
    for _ in 0..2 {
        assert_fails(&run(&net, &["verify", "--dir", text(&store)]), &["1 fault"]);
        let recovered = run(&net, &["recover", "--all", "--dir", text(&store)]);
        assert_fails(&recovered, &["cannot be mended", "checksum"]);
    }
}
