//! The configuration, read again while packets come: what changes at once, what is said to take a
//! restart, and that nothing is half done.

mod testbed;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::{Value, json};
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::process::number;
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::daemon::Daemon;
use testbed::recorder::{Recorder, frame, segments};

const DNS: &str = "accept src any dst any sport any dport 53 proto udp\n";

/// A recorder that a file configures.
struct Configured {
    net: Net,
    dir: tempfile::TempDir,
    recorder: Recorder,
}

impl Configured {
    /// Starts it as another user, with these lines in its file and these flags.
    fn start(lines: &str, flags: &str) -> Self {
        let (net, dir) = (Net::new(), tempfile::tempdir().expect("a directory"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::create_dir(dir.path().join("etc")).expect("a new directory");
        write(dir.path(), lines);
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "--user", "nobody", "--config"]).arg(file(dir.path()));
        command.args(flags.split_whitespace());
        let recorder = Recorder::of(command, dir.path());
        Self { net, dir, recorder }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("tape")
    }

    fn write(&self, lines: &str) {
        write(self.dir.path(), lines);
    }

    fn ctl(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["ctl", "--json", "--dir"]).arg(self.store());
        command.args(words.split_whitespace()).output().expect("it was built")
    }

    /// Has the file read again, and returns the answer.
    fn reload(&self) -> Value {
        let out = self.ctl("reload");
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).expect("JSON")
    }

    /// Has the file read again, which is refused, and returns why.
    fn refused(&self) -> String {
        let out = self.ctl("reload");
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
        text(&out.stderr)
    }

    /// How the interface is set.
    fn settings(&self) -> Value {
        let stats: Value = serde_json::from_slice(&self.ctl("stats").stdout).expect("JSON");
        let one = &stats["interfaces"]["vb"];
        json!([one["filter"], one["snaplen"], one["rules"]])
    }

    fn send(&self, numbers: std::ops::Range<u32>) {
        let to = self.net.b.inside(|| Interface::find("vb").expect("it is there")).mac;
        let to = to.expect("a MAC");
        self.net.a.inside(|| {
            let mut sender = Sender::on("va");
            numbers.for_each(|number| sender.send(&frame(to, 200, number)));
        });
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("etc/vb.toml")
}

/// Writes a recorder's file as an editor does: another takes its name.
fn write(dir: &Path, lines: &str) {
    let tape = dir.join("tape").display().to_string();
    let text = format!("interface = \"vb\"\ndir = {tape:?}\n{lines}");
    let draft = dir.join("etc/draft");
    fs::write(&draft, text).expect("it is ours");
    fs::rename(draft, file(dir)).expect("it is ours");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_can_change_does_and_what_cannot_is_said() {
    let began = "hook = \"xdp\"\nfilter = \"udp port 9\"\nsnaplen = 150\nkeep-bytes = \"2GiB\"\n";
    let mut c = Configured::start(began, "--flush 200ms");
    assert_eq!(c.settings(), json!(["udp port 9", 150, 0]));
    c.send(0..10);
    c.recorder.wait_for_captured(10);
    assert_eq!(c.reload(), json!({"ok": true, "changed": [], "restart": []}));

    fs::write(c.dir.path().join("etc/dns.rules"), DNS).expect("it is ours");
    c.write(
        "hook = \"tcx\"\nsnaplen = 60\nkeep-bytes = \"3GiB\"\nrules = \"dns.rules\"\nflush = \"1s\"\n",
    );
    assert_eq!(
        c.reload(),
        json!({"ok": true, "changed": ["filter", "snaplen", "rules", "keep-bytes"], "restart": ["hook"]}),
        "the command line says how often to flush"
    );
    assert_eq!(c.settings(), json!([null, 60, 1]));
    c.recorder.wait_to_say("as before until a restart: hook");
    c.send(0..7);
    wait_for("the rule to refuse packets", || number(&c.recorder.now(), "filtered") == 7);

    // The same rules by another name are no change, and what somebody changed meanwhile is undone.
    fs::rename(c.dir.path().join("etc/dns.rules"), c.dir.path().join("etc/again.rules")).unwrap();
    assert!(c.ctl("snaplen 70").status.success());
    c.write("hook = \"xdp\"\nsnaplen = 60\nkeep-bytes = \"3GiB\"\nrules = \"again.rules\"\n");
    assert_eq!(c.reload()["changed"], json!(["snaplen"]));
    assert_eq!(c.settings(), json!([null, 60, 1]));

    // More than rings were made for takes a restart.
    c.write("hook = \"xdp\"\nsnaplen = 200\nkeep-bytes = \"3GiB\"\n");
    let answer = c.reload();
    assert_eq!(
        (&answer["changed"], &answer["restart"]),
        (&json!(["snaplen", "rules"]), &json!(["snaplen"]))
    );
    assert_eq!(c.settings(), json!([null, 150, 0]));
    let stats = c.recorder.stop();
    assert_eq!((number(&stats, "captured"), number(&stats, "filtered")), (10, 7));
}

/// What a flow has had still counts when it may have more, and not when it has been recorded whole.
#[test]
fn flows_are_cut_off_from_one_moment_to_the_next() {
    let c = Configured::start("hook = \"xdp\"\n", "--flush 200ms");
    c.send(0..10);
    c.recorder.wait_for_captured(10);
    let mut sent = 10;
    let mut reload_and_send = |lines: &str, cutoff: u64| {
        c.write(&format!("hook = \"xdp\"\n{lines}"));
        assert_eq!(c.reload(), json!({"ok": true, "changed": ["cutoff"], "restart": []}));
        c.send(sent..sent + 20);
        sent += 20;
        wait_for("all packets", || {
            let now = c.recorder.now();
            number(&now, "seen") == u64::from(sent) && number(&now, "cutoff") == cutoff
        });
    };
    // Frames have 200 bytes: the sixth reaches the limit.
    reload_and_send("cutoff = \"1KiB\"\n", 14);
    // 1200 bytes have come; the fifth from here on reaches it.
    reload_and_send("cutoff = \"2KiB\"\n", 14 + 15);
    reload_and_send("", 14 + 15);
    let stats = c.recorder.stop();
    assert_eq!(number(&stats, "captured"), 10 + 6 + 5 + 20);
    assert_eq!(number(&stats, "bytes_cutoff"), 29 * 200);
}

#[test]
fn what_is_wrong_changes_nothing() {
    let began = "hook = \"xdp\"\nfilter = \"udp port 9\"\nsnaplen = 150\nkeep-bytes = \"2GiB\"\n";
    let c = Configured::start(began, "");
    let before = c.settings();
    let rules = |lines: &str| fs::write(c.dir.path().join("etc/some.rules"), lines).unwrap();
    rules("accept everything\n");
    for (lines, words) in [
        ("snap-len = 60\nfilter = \"tcp\"\n", &["line 3", "no key snap-len"][..]),
        ("filter = \"florb\"\nsnaplen = 60\n", &["florb"]),
        ("filter = \"tcp\"\nsnaplen = 60\nrules = \"some.rules\"\n", &["some.rules", "line 1"]),
        ("filter = \"tcp\"\nrules = \"nowhere.rules\"\n", &["cannot read", "nowhere.rules"]),
        (
            "filter = \"tcp\"\nkeep-bytes = \"300MiB\"\n",
            &["--keep-bytes", "a restart makes smaller"],
        ),
        ("filter = \"tcp\"\ncount = 7\npersist = \"x\"\n", &["--count", "--persist"]),
        ("filter = \"tcp\"\nsnaplen = \n", &["line 4"]),
    ] {
        c.write(lines);
        let why = c.refused();
        for word in words {
            assert!(why.contains(word), "{word}: {why}");
        }
        assert_eq!(c.settings(), before, "{lines}");
    }
    fs::remove_file(file(c.dir.path())).expect("it is ours");
    assert!(c.refused().contains("cannot read"));
    assert_eq!(c.settings(), before);
    // Nobody writes into a pipe, and nothing waits for that.
    let pipe = Command::new("mkfifo").arg(file(c.dir.path())).status().expect("it is there");
    assert!(pipe.success());
    assert!(c.refused().contains("this is no regular file"));
    assert_eq!(c.settings(), before);
    c.send(0..10);
    c.recorder.wait_for_captured(10);
    c.recorder.stop();
}

#[test]
fn a_hangup_has_the_file_read_again_and_retention_is_that_of_the_file() {
    let mut c = Configured::start("hook = \"xdp\"\nkeep-segments = 9\n", "");
    for round in 1..=5 {
        c.send(0..10);
        c.recorder.wait_for_captured(round * 10);
        assert!(c.ctl("rotate").status.success());
    }
    assert_eq!(segments(&c.store()).len(), 5);
    c.write("hook = \"xdp\"\nkeep-segments = 2\n");
    c.recorder.signal(Signal::HUP);
    c.recorder.wait_to_say("the configuration was read again: keep-segments changed");
    // One of them is the one that is written next.
    wait_for("the oldest segments to go", || segments(&c.store()).len() <= 2);
    c.write("hook = \"xdp\"\nkeep-segments = 0\n");
    c.recorder.signal(Signal::HUP);
    c.recorder.wait_to_say("the configuration was not taken, all is as before: ");
    let stats = c.recorder.stop();
    assert_eq!(number(&stats, "captured"), 50);
}

#[test]
fn a_filter_of_the_command_line_stays_whatever_the_file_says() {
    for flags in ["udp port 9", "--filter udp"] {
        let c = Configured::start("hook = \"xdp\"\nfilter = \"tcp\"\n", flags);
        let filter = flags.trim_start_matches("--filter ");
        assert_eq!(c.settings()[0], filter);
        c.write("hook = \"xdp\"\nfilter = \"icmp\"\n");
        assert_eq!(c.reload(), json!({"ok": true, "changed": [], "restart": []}));
        assert_eq!(c.settings()[0], filter);
        c.recorder.stop();
    }
}

#[test]
fn a_recorder_without_a_file_has_nothing_to_read() {
    let (net, dir) = (Net::new(), tempfile::tempdir().expect("a directory"));
    let store = dir.path().join("tape");
    let flags = format!("--hook xdp --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = command.args(["ctl", "reload", "--dir"]).arg(&store).output().expect("it was built");
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("start it with --config"), "{}", text(&out.stderr));
    recorder.stop();
}

#[test]
fn a_daemon_reads_its_file_again_and_changes_all_groups_or_none() {
    let net = Net::new();
    let group = |name: &str, lines: &str| {
        format!("[[group]]\nname = \"{name}\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n{lines}\n")
    };
    let began = group("a", "filter = \"tcp\"\nsnaplen = 100") + &group("b", "");
    let mut daemon = Daemon::start(&net, &began);
    let write = |daemon: &Daemon, text: &str| {
        fs::write(daemon.path("groups.toml"), text).expect("it is ours");
    };
    let set = |daemon: &Daemon| {
        ["a", "b"].map(|name| {
            let group = daemon.group(name);
            json!([group["filter"], group["snaplen"], group["rules"]])
        })
    };
    let before = set(&daemon);
    assert_eq!(before, [json!(["tcp", 100, 0]), json!([null, 65535, 0])]);
    fs::write(daemon.path("dns.rules"), DNS).expect("it is ours");

    // The first group's change is good, the second's is not.
    for (lines, word) in [
        ("filter = \"florb\"", "florb"),
        ("snaplen = 0", "snaplen"),
        ("rules = \"nowhere.rules\"", "nowhere.rules"),
        ("allow = [\"user:no-such-user\"]", "no-such-user"),
        ("colour = 7", "line 11"),
    ] {
        write(&daemon, &(group("a", "filter = \"udp\"\nsnaplen = 50") + &group("b", lines)));
        let out = daemon.ctl("reload");
        let why = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{why}");
        assert!(why.contains(word), "{word}: {why}");
        assert_eq!(set(&daemon), before, "{lines}");
    }

    write(
        &daemon,
        &(group("a", "filter = \"udp\"\nsnaplen = 50\nallow = [\"user:nobody\"]")
            + &group("b", "rules = \"dns.rules\"\nsteering = \"src\"")),
    );
    let out = daemon.ctl("reload --json");
    let answer: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        answer,
        json!({"ok": true, "restart": ["group b: steering"], "changed": [
            "group a: allow", "group a: filter", "group a: snaplen", "group b: rules"
        ]})
    );
    assert_eq!(set(&daemon), [json!(["udp", 50, 0]), json!([null, 65535, 1])]);

    daemon.wait_to_say("as before until a restart: group b: steering");
    write(&daemon, &began);
    daemon.signal(Signal::HUP);
    daemon.wait_to_say("the configuration was read again: ");
    assert_eq!(set(&daemon), before);
    daemon.stop();
}
