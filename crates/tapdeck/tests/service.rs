//! A service manager that starts a recorder or a daemon: when does it hear that the service is
//! ready, and when that it lives? The manager is a socket of this test.

mod testbed;

use std::fs;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::process::number;
use tapdeck_testkit::wait::LIMIT;
use tapdeck_testkit::{Mount, Net, Sender, kernel};
use testbed::daemon::Daemon;
use testbed::recorder::{Recorder, assert_accounted, frame};

/// A service manager, and how a service finds it.
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    /// Listens at a path that only root may pass.
    fn in_dir(dir: &Path) -> Self {
        let path = dir.join("private");
        fs::create_dir(&path).expect("a new directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let path = path.join("notify");
        Self::at(&SocketAddr::from_pathname(&path).expect("a short path"), path.to_str().unwrap())
    }

    fn at(address: &SocketAddr, name: &str) -> Self {
        let socket = UnixDatagram::bind_addr(address).expect("a new address");
        socket.set_read_timeout(Some(LIMIT)).expect("a time");
        Self { socket, name: name.to_owned() }
    }

    /// Has a command find this manager, which watches it if it says so.
    fn manages<'a>(&self, command: &'a mut Command, watchdog_s: Option<u64>) -> &'a mut Command {
        let us = watchdog_s.map(|seconds| (seconds * 1_000_000).to_string());
        command.env("NOTIFY_SOCKET", &self.name);
        us.into_iter().fold(command, |command, us| command.env("WATCHDOG_USEC", us))
    }

    /// Returns the next message, line by line.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let n = loop {
            match self.socket.recv(&mut bytes) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                received => break received.expect("a message in time"),
            }
        };
        let text = str::from_utf8(&bytes[..n]).expect("words");
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for a line, and returns all messages up to that with it.
    fn wait_for(&self, is_it: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
        let mut heard = Vec::new();
        loop {
            heard.push(self.next());
            if heard.last().is_some_and(|lines| lines.iter().any(|line| is_it(line))) {
                return heard;
            }
        }
    }
}

fn says<'a>(heard: &'a [Vec<String>], word: &'a str) -> impl Iterator<Item = &'a String> {
    heard.iter().flatten().filter(move |line| line.contains(word))
}

fn send(net: &Net, numbers: std::ops::Range<u32>) {
    let to = net.b.inside(|| Interface::find("vb").expect("it is there")).mac.expect("a MAC");
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|number| sender.send(&frame(to, 200, number)));
    });
}

/// A directory that another user may pass.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    dir
}

/// The command of a recorder into a store, as a user who reaches nothing of root's.
fn record(net: &Net, store: &Path) -> Command {
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "-i", "vb", "--hook", "xdp", "--user", "nobody", "--dir"]).arg(store);
    command
}

#[test]
fn a_recorder_is_ready_when_it_records_and_lives_while_nothing_comes() {
    let (net, dir) = (Net::new(), directory());
    let (manager, store) = (Manager::in_dir(dir.path()), dir.path().join("tape"));
    let mut command = record(&net, &store);
    manager.manages(&mut command, Some(3));
    let recorder = Recorder::of(command, dir.path());
    let heard = manager.wait_for(|line| line == "READY=1");
    assert_eq!(says(&heard, "WATCHDOG").count(), 0, "{heard:?}");
    let ctl = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["ctl", "--dir"]).arg(&store).args(words).output().expect("it was built")
    };
    let stats: serde_json::Value =
        serde_json::from_slice(&ctl(&["stats", "--json"]).stdout).expect("the recorder answers");
    assert_eq!(stats["interfaces"]["vb"]["attached"], true);

    // An idle link is no fault.
    for _ in 0..5 {
        let heard = manager.wait_for(|line| line == "WATCHDOG=1");
        assert!(says(&heard, "STATUS=0 pkt/s 0 bit/s, 0 captured").count() > 0, "{heard:?}");
    }
    send(&net, 0..10);
    recorder.wait_for_captured(10);
    manager.wait_for(|line| line.starts_with("STATUS=") && line.contains(", 10 captured"));
    let stats = recorder.stop();
    assert_eq!(number(&stats, "captured"), 10);
    manager.wait_for(|line| line == "STOPPING=1");
}

#[test]
fn a_manager_with_an_abstract_socket_is_heard_by_a_recorder_without_rights() {
    let (net, dir) = (Net::new(), directory());
    let name = format!("tapdeck-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let manager = Manager::at(&address, &format!("@{name}"));
    let mut command = record(&net, &dir.path().join("tape"));
    // Abstract sockets are known in each network namespace for itself.
    manager.manages(&mut command, None);
    let mut recorder = Recorder::of(command, dir.path());
    recorder.wait_to_say("cannot reach the service manager");
    recorder.stop();

    let here = net.b.inside(|| Manager::at(&address, &format!("@{name}")));
    let mut command = record(&net, &dir.path().join("tape"));
    here.manages(&mut command, None);
    let recorder = Recorder::of(command, dir.path());
    here.wait_for(|line| line == "READY=1");
    let heard = here.wait_for(|line| line.starts_with("STATUS="));
    assert_eq!(says(&heard, "WATCHDOG").count(), 0, "nobody watches: {heard:?}");
    recorder.stop();
    here.wait_for(|line| line == "STOPPING=1");
}

#[test]
fn a_store_on_a_full_disk_is_not_ready_until_there_is_room_and_lives() {
    let (net, dir) = (Net::new(), directory());
    let disk = Mount::tmpfs(&dir.path().join("disk"), "size=128k,mode=777");
    let config = dir.path().join("vb.toml");
    fs::write(&config, "snaplen = 200").expect("it is ours");
    let manager = Manager::in_dir(dir.path());
    let mut command = record(&net, &disk.path().join("tape"));
    command.arg("--config").arg(&config);
    manager.manages(&mut command, Some(3));
    let mut recorder = Recorder::of(command, dir.path());
    recorder.wait_to_say("no room for a segment was found in ");
    send(&net, 0..2000);
    let heard = manager.wait_for(|line| line.starts_with("STATUS=nothing can be written: "));
    assert_eq!(says(&heard, "READY").count(), 0, "{heard:?}");
    // A reload makes nothing ready.
    recorder.signal(Signal::HUP);
    recorder.wait_to_say("the configuration was read again");
    // For longer than a hang is waited for.
    for _ in 0..5 {
        let lines = manager.next();
        assert!(
            lines[0].starts_with("STATUS=") && lines.contains(&"WATCHDOG=1".into()),
            "{lines:?}"
        );
    }
    disk.remount("size=256M");
    manager.wait_for(|line| line == "READY=1");
    recorder.signal(Signal::HUP);
    let heard = manager.wait_for(|line| line == "READY=1");
    assert_eq!(says(&heard, "RELOADING=1").count(), 1, "{heard:?}");
    recorder.signal(Signal::INT);
    let stats = recorder.finish_anyhow();
    // They waited in rings.
    assert_eq!(number(&stats, "captured"), 2000, "{stats}");
    assert_accounted(&stats);
}

#[test]
fn a_recorder_whose_disk_hangs_does_not_say_that_it_lives() {
    /// Lets the disk go on, whatever happens to the test.
    struct Frozen<'a>(&'a Path);
    impl Drop for Frozen<'_> {
        fn drop(&mut self) {
            let thawed = Command::new("fsfreeze").arg("-u").arg(self.0).status();
            assert!(thawed.is_ok_and(|status| status.success()), "util-linux has fsfreeze");
        }
    }

    let (net, dir) = (Net::new(), directory());
    let disk = Mount::image(dir.path(), "ext4", 512);
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let manager = Manager::in_dir(dir.path());
    let mut command = record(&net, &disk.path().join("tape"));
    command.args(["--segment-size", "16MiB"]);
    manager.manages(&mut command, Some(3));
    let recorder = Recorder::of(command, dir.path());
    manager.wait_for(|line| line == "READY=1");
    manager.wait_for(|line| line == "WATCHDOG=1");

    let frozen = Command::new("fsfreeze").arg("-f").arg(disk.path()).status();
    assert!(frozen.is_ok_and(|status| status.success()), "util-linux has fsfreeze");
    let frozen = Frozen(disk.path());
    send(&net, 0..1000);
    manager.wait_for(|line| line.contains(" has stood still for "));
    for _ in 0..3 {
        let lines = manager.next();
        assert!(lines[0].contains(" has stood still for "), "{lines:?}");
        assert!(!lines.contains(&"WATCHDOG=1".into()), "{lines:?}");
    }
    drop(frozen);
    manager.wait_for(|line| line == "WATCHDOG=1");
    recorder.wait_for_captured(1000);
    assert_eq!(number(&recorder.stop(), "captured"), 1000, "it was only late");
}

#[test]
fn a_daemon_is_ready_when_its_hooks_are_attached() {
    kernel::need_root();
    let net = Net::new();
    let dir = directory();
    let manager = Manager::in_dir(dir.path());
    let config = "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n";
    let tape = tempfile::tempdir().expect("a directory");
    let mut command = Daemon::command(&net, tape.path(), config);
    manager.manages(command.args(["--user", "nobody"]), Some(3));
    let mut program = tapdeck_testkit::Talking::start(&mut command);
    manager.wait_for(|line| line == "READY=1");
    let shown = net.b.command("ip").args(["link", "show", "vb"]).output().expect("ip(8)");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("xdp"));
    for _ in 0..3 {
        let heard = manager.wait_for(|line| line == "WATCHDOG=1");
        assert!(says(&heard, "pkt/s 0 bit/s to 0 members").count() > 0, "{heard:?}");
    }
    program.process.signal(Signal::INT);
    manager.wait_for(|line| line == "STOPPING=1");
    assert!(program.end().0.success());
}
