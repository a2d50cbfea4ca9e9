//! Nobody reads what a recorder or a daemon tells: it records, answers and ends all the same.

mod testbed;

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use testbed::daemon::Asking;
use testbed::recorder::{Contents, frame, number};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A pipe that takes not one byte more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("it is open");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("a pipe takes that");
    for len in [1 << 16, 1] {
        let lines = vec![b'\n'; len];
        while !writer.write(&lines).is_err_and(|e| e.kind() == ErrorKind::WouldBlock) {}
    }
    fcntl_setfl(&writer, flags).expect("a pipe takes that");
    (reader, writer)
}

/// A program whose standard output and standard error nobody reads.
struct Unread {
    process: Running,
    output: PipeReader,
    error: PipeReader,
}

impl Unread {
    fn start(mut command: Command, socket: &Path) -> Self {
        let ((output, stdout), (error, stderr)) = (full_pipe(), full_pipe());
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
        // The command holds the ends that are written.
        drop(command);
        let process = Running(child.expect("the program was built"));
        wait_for("somebody at its control socket", || UnixStream::connect(socket).is_ok());
        // The loop answers once the hooks are attached.
        assert_eq!(stats(socket)["ok"], true);
        Self { process, output, error }
    }

    /// Ends it as Ctrl-C does. Returns how it ended, and what it said on both.
    fn end(self) -> (ExitStatus, [String; 2]) {
        let Self { process, output, error } = self;
        let status = process.interrupt();
        let read = |mut pipe: PipeReader| {
            let mut text = String::new();
            pipe.read_to_string(&mut text).expect("it has ended");
            text
        };
        (status, [output, error].map(read))
    }
}

fn stats(socket: &Path) -> Value {
    Asking::at(socket).ask(r#"{"verb":"stats"}"#)
}

fn send(net: &Net, packets: u32) {
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        (0..packets).for_each(|n| sender.send(&frame(MAC, 200, n)));
    });
}

/// A recorder's store, its socket, and its command.
fn recording(net: &Net, dir: &Path) -> (PathBuf, PathBuf, Command) {
    let store = dir.join("store");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "tpacket", "--flush", "100ms"]);
    command.args(["--stats-json", "-", "--dir"]).arg(&store);
    let socket = store.join(".tapdeck.sock");
    (store, socket, command)
}

#[test]
fn a_recorder_that_nobody_reads_records_answers_and_ends() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (store, socket, command) = recording(&net, dir.path());
    let recorder = Unread::start(command, &socket);
    for round in 1..=3 {
        send(&net, 20);
        // Part-filled blocks reach the disk by the main loop alone.
        wait_for("the packets on disk", || {
            let stats = stats(&socket);
            assert_eq!(stats["ok"], true, "{stats}");
            number(&stats, "captured") == 20 * round
        });
        recorder.process.signal(Signal::USR1);
        // Statistics and the live line are due each second.
        let since = number(&stats(&socket), "elapsed_s");
        wait_for("a second", || number(&stats(&socket), "elapsed_s") > since);
    }
    let (status, _) = recorder.end();
    assert!(status.success(), "{status}");
    assert_eq!(Contents::of_store(&store).packets.len(), 60);
}

#[test]
fn a_reader_that_comes_late_gets_what_waited_and_the_last_line() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (_, socket, command) = recording(&net, dir.path());
    let mut recorder = Unread::start(command, &socket);
    send(&net, 20);
    wait_for("the packets on disk", || number(&stats(&socket), "captured") == 20);
    for pipe in [&mut recorder.output, &mut recorder.error] {
        let mut buffer = vec![0; 1 << 20];
        let have = pipe.read(&mut buffer).expect("it is full");
        assert!(have > 0);
    }
    let (status, [output, error]) = recorder.end();
    assert!(status.success(), "{status}");
    let last = output.trim().lines().last().unwrap_or_default();
    let last: Value = serde_json::from_str(last).expect("one JSON object");
    assert_eq!((&last["final"], &last["captured"]), (&true.into(), &20.into()));
    assert!(error.contains("recording vb"), "{error}");
    assert!(error.contains("20 seen = 20 captured"), "{error}");
}

/// A named pipe that nobody has opened for reading yet.
#[test]
fn a_pipe_without_a_reader_holds_nothing_up() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (pipe, store) = (dir.path().join("pipe"), dir.path().join("store"));
    let made = Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
    assert!(made.success());
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "tpacket", "--flush", "100ms"]);
    command.arg("--stats-json").arg(&pipe).arg("--dir").arg(&store);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let recorder = Running(command.spawn().expect("the program was built"));
    let socket = store.join(".tapdeck.sock");
    wait_for("somebody at its control socket", || UnixStream::connect(&socket).is_ok());
    // The loop answers once the hooks are attached.
    assert_eq!(stats(&socket)["ok"], true);
    send(&net, 20);
    wait_for("the packets on disk", || number(&stats(&socket), "captured") == 20);
    let mut reader = std::fs::File::open(&pipe).expect("it is there");
    assert!(recorder.interrupt().success());
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("it has ended");
    let last = text.trim().lines().last().unwrap_or_default();
    let last: Value = serde_json::from_str(last).expect("one JSON object");
    assert_eq!((&last["final"], &last["captured"]), (&true.into(), &20.into()));
}

#[test]
fn a_daemon_that_nobody_reads_serves_answers_and_ends() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let config = "[[group]]\nname = \"all\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n";
    let file = dir.path().join("groups.toml");
    std::fs::write(&file, config).expect("there is room");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["serve", "--stats-json", "-", "--config"]).arg(&file);
    command.arg("--socket").arg(dir.path().join("s"));
    let socket = dir.path().join("s");
    let daemon = Unread::start(command, &socket);
    for round in 1..=3 {
        send(&net, 20);
        let seen = || stats(&socket)["groups"][0]["seen"].as_u64();
        wait_for("the packets to be seen", || seen() >= Some(20 * round));
        daemon.process.signal(Signal::USR1);
        let since = number(&stats(&socket), "elapsed_s");
        wait_for("a second", || number(&stats(&socket), "elapsed_s") > since);
    }
    let (status, _) = daemon.end();
    assert!(status.success(), "{status}");
}
