//! A daemon under test, and its members.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::process::{last_json, number};
use tapdeck_testkit::{Net, Running, Talking, wait_for};

/// `tapdeck serve` in namespace `b`.
pub struct Daemon {
    pub program: Talking,
    pub dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts it with a configuration, and waits until it serves.
    pub fn start(net: &Net, config: &str) -> Self {
        Self::start_with(net, "", config)
    }

    /// The same with more flags.
    pub fn start_with(net: &Net, flags: &str, config: &str) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), net, flags, config)
    }

    /// The same in a directory where another was before.
    pub fn start_in(dir: tempfile::TempDir, net: &Net, flags: &str, config: &str) -> Self {
        let mut command = Self::command(net, dir.path(), config);
        let mut program = Talking::start(command.args(flags.split_whitespace()));
        program.wait_to_say("serving at");
        Self { program, dir }
    }

    /// The command, with the configuration written.
    pub fn command(net: &Net, dir: &Path, config: &str) -> Command {
        let file = dir.join("groups.toml");
        fs::write(&file, config).expect("a directory");
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["serve", "--config"]).arg(file);
        command.arg("--socket").arg(dir.join("s")).arg("--stats-json").arg(dir.join("stats.json"));
        command.stdout(Stdio::null());
        command
    }

    /// A file in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Waits for a line that contains something.
    pub fn wait_to_say(&mut self, what: &str) -> String {
        self.program.wait_to_say(what)
    }

    pub fn signal(&self, signal: Signal) {
        self.program.process.signal(signal);
    }

    pub fn connect(&self) -> Asking {
        Asking::at(&self.socket())
    }

    /// The counters of a group.
    pub fn group(&self, name: &str) -> Value {
        let stats = self.connect().ask(r#"{"verb":"stats"}"#);
        let groups = stats["groups"].as_array().expect("groups").clone();
        groups.into_iter().find(|g| g["name"] == name).unwrap_or_else(|| panic!("{name}: {stats}"))
    }

    /// Waits until a group has seen so many packets.
    pub fn wait_seen(&self, name: &str, packets: u64) {
        wait_for("the group to see the packets", || number(&self.group(name), "seen") >= packets);
    }

    pub fn wait_members(&self, name: &str, members: usize) {
        wait_for("the members", || {
            self.group(name)["members"].as_array().is_some_and(|m| m.len() == members)
        });
    }

    pub fn ctl(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.arg("ctl").arg("--socket").arg(self.socket()).args(words.split_whitespace());
        command.output().expect("the program was built")
    }

    /// Ends it without a chance to do anything, and returns its directory when its programs have
    /// left the interface.
    pub fn kill(mut self, net: &Net) -> tempfile::TempDir {
        self.signal(Signal::KILL);
        self.program.end();
        wait_for("the hooks to be free", || {
            let shown = net.b.command("ip").args(["link", "show", "vb"]).output().expect("ip(8)");
            !String::from_utf8_lossy(&shown.stdout).contains("xdp")
        });
        self.dir
    }

    /// Ends it as Ctrl-C does, and returns its last counters.
    pub fn stop(mut self) -> Value {
        self.signal(Signal::INT);
        let (status, said) = self.program.end();
        assert!(status.success(), "{status}: {said:#?}");
        assert!(!self.socket().exists());
        let last = last_json(&self.path("stats.json"));
        assert_eq!(last["final"], true, "{last}");
        for group in last["groups"].as_array().expect("groups") {
            assert_accounted(group);
        }
        last
    }
}

/// The law of a group: all that it saw is somewhere.
pub fn assert_accounted(group: &Value) {
    let n = |key| number(group, key);
    let left_out = n("filtered") + n("cutoff") + n("no_member");
    let kept = n("captured") + left_out + n("dropped_ring") + n("dropped_other");
    assert_eq!(n("seen") + n("extra"), kept, "{group}");
}

/// A connection on which something is asked.
pub struct Asking(pub BufReader<UnixStream>);

impl Asking {
    /// Connects to a control socket.
    pub fn at(socket: &Path) -> Self {
        Self(BufReader::new(UnixStream::connect(socket).expect("somebody listens")))
    }

    pub fn ask(&mut self, request: &str) -> Value {
        self.0.get_mut().write_all(format!("{request}\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }
}

/// `tapdeck attach`, which writes a file.
pub struct Member {
    pub process: Running,
    pub file: PathBuf,
}

impl Member {
    /// Starts it, and waits until it is a member.
    pub fn start(daemon: &mut Daemon, group: &str, name: &str, flags: &str) -> Self {
        let file = daemon.dir.path().join(format!("{name}.pcapng"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["attach", "--group", group, "--socket"]).arg(daemon.socket());
        command.arg("-w").arg(&file).args(flags.split_whitespace());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Running(command.spawn().expect("the program was built"));
        daemon.wait_to_say(" comes (process");
        Self { process, file }
    }

    /// Ends it as Ctrl-C does, and returns what it has written.
    pub fn stop(self) -> super::recorder::Contents {
        let status = self.process.interrupt();
        assert!(status.success(), "{status}");
        super::recorder::Contents::of(&self.file)
    }
}
