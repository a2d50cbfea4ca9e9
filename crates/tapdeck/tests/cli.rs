//! The command line: what it refuses, and how.

mod testbed;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use assert_cmd::Command;
use tapdeck_testkit::kernel::need_root;
use tapdeck_testkit::process::copy_program;
use tapdeck_testkit::{Net, Running, Sender, Talking, wait_for};
use testbed::recorder::{Contents, Recorder, frame, number, segments};

fn tapdeck() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tapdeck"))
}

/// In namespace `b`, where `vb` is.
fn inside(net: &Net) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", net.b.name(), env!("CARGO_BIN_EXE_tapdeck")]);
    command
}

/// Asserts that the program ends with the code, says one line that holds all of `words`, and shows
/// no stack.
fn refuses(mut command: Command, args: &[&str], code: i32, words: &[&str]) {
    let out =
        command.args(args).timeout(std::time::Duration::from_secs(60)).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?} does not say {word:?}: {said}");
    }
    assert!(!said.contains("panicked") && !said.contains("backtrace"), "{args:?}: {said}");
    // clap adds how the command is used; our own words are one line.
    if said.starts_with("tapdeck:") {
        assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn wrong_usage_is_told_from_failed_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("s").display().to_string();
    for (args, words) in [
        (vec!["record"], vec!["--interface"]),
        (vec!["record", "-i", "lo"], vec!["--dir", "-w"]),
        (vec!["record", "-i", "lo", "--dir", &store, "-w", "x"], vec!["exclude each other"]),
        (vec!["record", "-i", "lo,lo", "--no-store"], vec!["named twice"]),
        (
            vec!["record", "-i", "lo", "--no-store", "--sync-interval", "5s"],
            vec!["only a file can be made durable"],
        ),
        (
            vec!["record", "-i", "lo", "-w", "/dev/null", "--sync-interval", "off"],
            vec!["only a file can be made durable"],
        ),
        (
            vec!["record", "-i", "lo", "--dir", &store, "--sync-interval", "50ms"],
            vec!["--sync-interval", "at least 100ms"],
        ),
        (vec!["record", "-i", "lo,", "--no-store"], vec!["--interface", "names no interface"]),
        (vec!["record", "-i", ",lo", "--no-store"], vec!["--interface", "names no interface"]),
        (vec!["gen", "-i", "lo,"], vec!["--interface", "names no interface"]),
        (vec!["gen", "-i", "lo", "--flows", "1048577"], vec!["--flows", "1..=1048576"]),
        (vec!["gen", "-i", "lo", "--flows", "4294967296"], vec!["--flows", "1..=1048576"]),
        (
            vec!["record", "-i", "lo", "--no-store", "--hook", "pcap"],
            vec!["xdp-generic", "netfilter"],
        ),
        (vec!["record", "-i", "lo", "--no-store", "--ring-bytes", "0"], vec!["more than 0"]),
        (vec!["record", "-i", "lo", "--no-store", "--ring-bytes=-1"], vec!["no size"]),
        (
            vec!["record", "-i", "lo", "--no-store", "--ring-bytes", "1e99"],
            vec!["no size", "64MiB"],
        ),
        (vec!["record", "-i", "lo", "--dir", &store, "--segment-size", "0"], vec!["more than 0"]),
        (vec!["record", "-i", "lo", "--dir", &store, "--segment-size", "1MB"], vec!["at least"]),
        (
            vec![
                "record",
                "-i",
                "lo",
                "--dir",
                &store,
                "--keep-bytes",
                "1GB",
                "--segment-size",
                "1GB",
            ],
            vec!["three times"],
        ),
        (vec!["record", "-i", "lo", "--dir", &store, "--min-free", "101%"], vec!["percentage"]),
        (vec!["record", "-i", "lo", "--dir", &store, "--keep-time", "soon"], vec!["no time"]),
        (vec!["record", "-i", "lo", "--no-store", "--keep-bytes", "1GB"], vec!["--dir"]),
        (vec!["record", "-i", "lo", "--no-store", "--flush", "0s"], vec!["more than 0"]),
        (vec!["record", "-i", "lo", "--no-store", "--flush", "99ms"], vec!["at least 100ms"]),
        (vec!["record", "-i", "lo", "--no-store", "--snaplen", "0"], vec!["snaplen"]),
        (vec!["record", "-i", "lo", "-w", "-", "--stats-json", "-"], vec!["standard output"]),
        (
            vec!["record", "-i", "lo", "--no-store", "--hook", "recv", "--deliver", "consume"],
            vec!["consume"],
        ),
        (
            vec!["record", "-i", "lo", "--no-store", "--hook", "afxdp", "--deliver", "pass"],
            vec!["consume"],
        ),
        (
            vec!["record", "-i", "lo", "--no-store", "--hook", "recv", "--ring-bytes", "10TB"],
            vec!["256 MiB"],
        ),
        (vec!["record", "-i", "lo", "--no-store", "--block-bytes", "100000"], vec!["power of two"]),
        (vec!["record", "-i", "lo", "--no-store", "--block-bytes", "64KiB"], vec!["snaplen"]),
        (vec!["replay"], vec!["replay"]),
    ] {
        refuses(tapdeck(), &args, 2, &words);
    }
    assert!(!Path::new(&store).exists(), "nothing was touched");
}

#[test]
fn work_that_cannot_begin_says_why_and_what_to_do() {
    let net = Net::new();
    net.b.run("ip link add down0 type veth peer name down1");
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(dir.path().join("file"), "").expect("there is room");
    let r = |args: &str| -> Vec<String> {
        let mut all = vec!["record".to_owned(), "-i".to_owned()];
        all.extend(args.split_whitespace().map(str::to_owned));
        all
    };
    for (args, words) in [
        (r("nope --no-store"), vec!["nope", "there are", "vb"]),
        (r("down0 --no-store"), vec!["down0 is down", "ip link set down0 up"]),
        (r("lo --no-store --hook xdp"), vec!["lo", "xdp", "xdp-generic"]),
        (r(&format!("vb --dir {}", at("file"))), vec!["not a directory"]),
        (r("vb --dir /proc/tapdeck"), vec!["/proc/tapdeck"]),
        (r(&format!("vb -w {}/no/such/place", at("file"))), vec!["no/such/place"]),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refuses(inside(&net), &args, 1, &words);
    }
    // A filter that means nothing is wrong on any machine.
    for hook in ["tpacket", "xdp", "tcx"] {
        let args = format!("vb --no-store --hook {hook} --filter florb");
        let args = r(&args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refuses(inside(&net), &args, 2, &["florb"]);
    }
}

#[test]
fn afxdp_does_not_cut_a_host_off_unasked() {
    let net = Net::new();
    net.addresses();
    let args = ["record", "-i", "vb", "--no-store", "--hook", "afxdp"];
    refuses(inside(&net), &args, 2, &["IP address", "--deliver consume"]);
}

#[test]
fn without_privilege_it_names_the_capabilities() {
    need_root();
    for (hook, capability) in
        [("tcx", "CAP_BPF"), ("xdp-generic", "CAP_NET_ADMIN"), ("recv", "CAP_NET_RAW")]
    {
        // The test binary's directory may not be open to others.
        let dir = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir();
        let dir = dir.expect("a directory");
        let copy = dir.path().join("tapdeck");
        copy_program(env!("CARGO_BIN_EXE_tapdeck"), &copy);
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"])
            .arg(&copy);
        let args = ["record", "-i", "lo", "--no-store", "--hook", hook];
        refuses(command, &args, 1, &["no permission", capability]);
    }
}

#[test]
fn a_program_at_the_hook_is_named() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let _other = Recorder::start(&net, dir.path(), "--hook xdp --no-store");
    let args = ["record", "-i", "vb", "--no-store", "--hook", "xdp"];
    refuses(inside(&net), &args, 1, &["XDP program", "id", "tcx"]);
}

#[test]
fn a_store_has_one_recorder() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store").display().to_string();
    let other = Recorder::start(&net, dir.path(), &format!("--hook tcx --dir {store}"));
    let pid = other.program.process.0.id().to_string();
    let args = ["record", "-i", "vb", "--dir", &store, "--hook", "tcx"];
    refuses(inside(&net), &args, 1, &["in use", &pid]);
}

#[test]
fn any_path_will_do() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    for name in [OsStr::new("with spaces"), OsStr::from_bytes(b"not utf-8 \xff\xfe")] {
        let store = dir.path().join(name);
        let mut command = inside(&net);
        command.args(["record", "-i", "vb", "--duration", "200ms", "--dir"]).arg(&store);
        command.assert().success();
        assert!(store.is_dir());
    }
}

#[test]
fn help_shows_examples_and_goes_to_standard_output() {
    for args in [vec!["record", "--help"], vec!["probe", "--help"]] {
        let out = tapdeck().args(&args).output().expect("it runs");
        assert!(out.status.success() && out.stderr.is_empty());
        assert!(String::from_utf8_lossy(&out.stdout).contains("Example"), "{args:?}");
    }
    let out = tapdeck().arg("--version").output().expect("it runs");
    assert!(String::from_utf8_lossy(&out.stdout).starts_with("tapdeck "));
}

fn send(net: &Net, packets: u32, len: usize) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        (0..packets).for_each(|i| sender.send(&frame([2, 0, 0, 0, 0, 2], len, i)));
    });
}

#[test]
fn it_stops_after_a_count_to_the_packet() {
    for hook in ["xdp", "tcx", "recv"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook {hook} --count 1234 --flush 100ms --dir {}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 3000, 100);
        let stats = recorder.finish();
        assert_eq!(number(&stats, "captured"), 1234, "{hook}");
        let frames = Contents::of_store(&store).frames();
        let sent: Vec<_> = (0..1234).map(|i| frame([2, 0, 0, 0, 0, 2], 100, i)).collect();
        assert!(frames == sent, "{hook}: the first 1234");
    }
}

#[test]
fn snaplen_cuts_and_the_length_stays_true() {
    for hook in ["xdp", "tcx", "tpacket", "recv"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!(
            "--hook {hook} --snaplen 77 --count 50 --flush 100ms --dir {}",
            store.display()
        );
        let recorder = Recorder::start(&net, dir.path(), &flags);
        send(&net, 50, 200);
        recorder.finish();
        let packets = Contents::of_store(&store).packets;
        assert_eq!(packets.len(), 50, "{hook}");
        for (i, p) in packets.iter().enumerate() {
            assert_eq!(p.original_len, 200, "{hook}");
            assert!(p.frame == frame([2, 0, 0, 0, 0, 2], 200, i as u32)[..77], "{hook}");
        }
    }
}

#[test]
fn one_file_and_a_pipe_hold_what_a_store_would() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one file.pcapng");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command
        .args(["record", "-i", "vb", "--hook", "xdp", "--count", "500", "--flush", "100ms", "-w"]);
    let mut child = recording(command.arg(&file));
    send(&net, 500, 300);
    assert!(child.0.wait().expect("it was started").success());
    let sent: Vec<_> = (0..500).map(|i| frame([2, 0, 0, 0, 0, 2], 300, i)).collect();
    assert!(Contents::of(&file).frames() == sent, "the file");

    // Into tcpdump, as a user would.
    let script = format!(
        "{} record -i vb --hook xdp --count 500 --flush 100ms -w - | tcpdump -nr - > {}",
        env!("CARGO_BIN_EXE_tapdeck"),
        dir.path().join("lines").display()
    );
    let mut shell = net.b.command("sh");
    let mut child = recording(shell.args(["-c", &script]));
    send(&net, 500, 300);
    assert!(child.0.wait().expect("it was started").success());
    let lines = fs::read_to_string(dir.path().join("lines")).expect("tcpdump wrote it");
    assert_eq!(lines.lines().filter(|l| l.contains("10.213.0.2")).count(), 500);
}

/// A reader that leaves ends the recording, without an error.
#[test]
fn a_reader_may_leave_the_pipe() {
    let net = Net::new();
    let script = format!(
        "{} record -i vb --hook xdp --flush 100ms -w - | head -c 3000 > /dev/null",
        env!("CARGO_BIN_EXE_tapdeck")
    );
    let mut shell = net.b.command("bash");
    let mut child = recording(shell.args(["-c", &format!("set -o pipefail; {script}")]));
    let status = net.a.inside(|| {
        let mut sender = Sender::on("va");
        loop {
            sender.send(&frame([2, 0, 0, 0, 0, 2], 300, 0));
            if let Some(status) = child.0.try_wait().expect("it was started") {
                break status;
            }
        }
    });
    // The packets that were in memory are nobody's loss: the one who wanted them has left.
    assert!(status.success(), "{status}");
}

/// Starts a command and waits until it records.
fn recording(command: &mut std::process::Command) -> Running {
    let mut recorder = Talking::start(command);
    recorder.wait_to_say("recording");
    recorder.process
}

#[test]
fn segments_end_by_time_and_old_ones_go() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook xdp --segment-time 200ms --keep-segments 3 --flush 100ms --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    wait_for("segments to be deleted", || {
        send(&net, 10, 100);
        recorder.now()["segments_deleted"].as_u64().is_some_and(|n| n >= 2)
    });
    let stats = recorder.stop();
    assert!(segments(&store).len() <= 3);
    let stored = Contents::of_store(&store).packets.len() as u64;
    assert_eq!(stored + number(&stats, "packets_deleted"), number(&stats, "captured"));
}

#[test]
fn a_filter_chooses_what_the_socket_hooks_record() {
    for hook in ["tpacket", "recv"] {
        let net = Net::new();
        net.addresses();
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("f.pcapng").display().to_string();
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args([
            "record",
            "-i",
            "vb",
            "--hook",
            hook,
            "--filter",
            "icmp[icmptype] == icmp-echo",
        ]);
        let mut child = recording(command.args(["--count", "3", "--flush", "100ms", "-w", &file]));
        net.a.run("ping -q -c 3 -i 0.01 10.213.0.2");
        assert!(child.0.wait().expect("it was started").success());
        let contents = Contents::of(Path::new(&file));
        assert_eq!(contents.interfaces[0].filter.as_deref(), Some("icmp[icmptype] == icmp-echo"));
        assert_eq!(contents.packets.len(), 3, "{hook}");
        assert!(contents.packets.iter().all(|p| p.frame[23] == 1 && p.frame[34] == 8), "{hook}");
    }
}

/// On a quiet link, what is flushed comes out of the pipe while recording goes on.
#[test]
fn a_pipe_gets_a_packet_when_it_is_flushed() {
    use std::io::Read;
    let net = Net::new();
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "xdp", "--flush", "100ms", "-w", "-"]);
    let mut child = recording(command.stdout(std::process::Stdio::piped()));
    send(&net, 1, 100);
    let mut out = child.0.stdout.take().expect("piped");
    assert_eq!(rustix::pipe::fcntl_getpipe_size(&out).expect("a pipe"), 1 << 20);
    let sent = frame([2, 0, 0, 0, 0, 2], 100, 0);
    let mut got: Vec<u8> = Vec::new();
    while !got.windows(sent.len()).any(|w| w == sent) {
        let mut piece = [0; 4096];
        let n = out.read(&mut piece).expect("a pipe");
        assert!(n > 0, "it ended");
        got.extend(&piece[..n]);
    }
    assert!(child.interrupt().success());
}

/// Scheduling policy and nice value of a thread, as in proc_pid_stat(5), if it has begun.
fn scheduling(process: u32, name: &str) -> Option<(u32, i32)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let mut its = stats.filter_map(|stat| {
        let (before, after) = stat.rsplit_once(')')?;
        before.ends_with(&format!("({name}")).then(|| after.to_owned())
    });
    let fields = its.next()?;
    let field = |n: usize| fields.split_whitespace().nth(n - 3);
    Some((field(41)?.parse().ok()?, field(19)?.parse().ok()?))
}

/// What the disk fetches itself is a moment's work, which nothing waits for long; copying into the
/// page cache is not.
#[test]
fn a_writer_of_direct_io_goes_first_and_nobody_else() {
    let (normal, fifo) = (0, 1);
    // Where nobody may have that class, a recorder does without.
    let may = std::thread::spawn(|| tapdeck_store::io::go_first().is_ok()).join().expect("a call");
    let first = if may { fifo } else { normal };
    let net = Net::new();
    for (direct, policy) in [("on", first), ("off", normal)] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook tcx --direct {direct} --dir {}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let threads = [
            ("tapdeck-writer", (policy, 0)),
            ("tapdeck-index", (normal, 0)),
            ("tapdeck-merge", (normal, 10)),
            ("tapdeck-keeper", (normal, 0)),
            ("tapdeck", (normal, 0)),
        ];
        for (name, expected) in threads {
            let now = || scheduling(recorder.program.process.0.id(), name);
            wait_for(&format!("{name}, direct {direct}"), || now() == Some(expected));
        }
        recorder.stop();
    }
}

/// A hook that cannot be had costs nobody a file.
#[test]
fn a_recording_that_cannot_begin_leaves_files_alone() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let _other = Recorder::start(&net, dir.path(), "--hook xdp --no-store");
    let old = dir.path().join("old.pcapng");
    fs::write(&old, b"evidence").expect("there is room");
    let store = dir.path().join("store").display().to_string();
    let old_name = old.display().to_string();
    for to in [["-w", old_name.as_str()], ["--dir", store.as_str()]] {
        let args = ["record", "-i", "vb", "--hook", "xdp", to[0], to[1]];
        refuses(inside(&net), &args, 1, &["XDP program"]);
    }
    assert_eq!(fs::read(&old).expect("it is there"), b"evidence");
    assert!(!Path::new(&store).join(".tapdeck-next").exists());
}

#[test]
fn rings_that_memory_cannot_hold_are_refused() {
    let net = Net::new();
    for hook in ["xdp", "tcx", "tpacket"] {
        let mut command = Command::new("ip");
        // As on a machine with little memory.
        command.args([
            "netns",
            "exec",
            net.b.name(),
            "prlimit",
            "--as=200000000",
            env!("CARGO_BIN_EXE_tapdeck"),
        ]);
        let args = ["record", "-i", "vb", "--no-store", "--hook", hook, "--ring-bytes", "256MiB"];
        refuses(command, &args, 1, &["memory", "--ring-bytes"]);
    }
}

#[test]
fn an_interface_is_promiscuous_while_it_is_recorded() {
    let net = Net::new();
    let promiscuity = || {
        let out = net.b.command("ip").args(["-d", "link", "show", "vb"]).output();
        let text = String::from_utf8(out.expect("ip(8) is installed").stdout).expect("text");
        let after = text.split("promiscuity ").nth(1).expect("ip -d tells it");
        after.split_whitespace().next().and_then(|n| n.parse::<u32>().ok()).expect("a number")
    };
    for hook in ["xdp", "xdp-generic", "tcx", "netfilter", "tpacket", "recv"] {
        let dir = tempfile::tempdir().expect("a directory");
        for (flag, expected) in [("", 1), ("--no-promiscuous", 0)] {
            let recorder =
                Recorder::start(&net, dir.path(), &format!("--hook {hook} --no-store {flag}"));
            assert_eq!(promiscuity(), expected, "{hook} {flag}");
            recorder.stop();
            assert_eq!(promiscuity(), 0, "{hook} {flag}, afterwards");
        }
    }
}
