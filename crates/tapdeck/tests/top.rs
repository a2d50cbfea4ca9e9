//! `tapdeck top`: what it shows in a terminal of 80 columns and 24 rows, which keys do what, how it
//! leaves the terminal, and what it prints where there is none.

mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::wait::{LIMIT, is_done_within};
use tapdeck_testkit::{Net, Sender, wait_for};
use testbed::daemon::{Daemon, Member};
use testbed::recorder::{Recorder, number};

const TAPDECK: &str = env!("CARGO_BIN_EXE_tapdeck");

/// A terminal with a program in it.
struct Tmux {
    dir: tempfile::TempDir,
}

impl Tmux {
    /// Runs a shell command in a terminal of 80 columns and 24 rows. What it writes is kept.
    fn run(command: &str) -> Self {
        let tmux = Self { dir: tempfile::tempdir().expect("a directory") };
        // The command begins when everything that it writes is kept.
        let go = tmux.dir.path().join("go");
        let line = format!("cat {}; {command}; echo ended with $?; sleep 600", go.display());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &go,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a pipe");
        tmux.ask(&["-u", "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", &line]);
        let keep = format!("cat > {}", tmux.kept().display());
        tmux.ask(&["pipe-pane", "-o", &keep]);
        fs::write(&go, "").expect("the shell reads");
        tmux
    }

    fn kept(&self) -> PathBuf {
        self.dir.path().join("written")
    }

    /// What the program has written so far.
    fn written(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.kept()).unwrap_or_default()).into_owned()
    }

    fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env("TMUX_TMPDIR", self.dir.path()).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let out = command.args(words).stdin(Stdio::null()).output();
        let out = out.expect("tmux is there: make setup installs it");
        assert!(out.status.success(), "{words:?}: {}", said(&out));
        String::from_utf8(out.stdout).expect("text")
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.ask(&["send-keys", key]);
    }

    /// Waits until the screen is as it should be, and returns it.
    fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let done = is_done_within(LIMIT, || {
            screen = self.screen();
            is_so(&screen)
        });
        assert!(done, "waited in vain for {what}:\n{screen}");
        screen
    }

    /// Presses a key, and waits for what that leads to.
    fn press_for(&self, key: &str, what: &str) -> String {
        self.press(key);
        self.wait(what, |screen| screen.contains(what))
    }

    /// Whether the terminal is as the program found it.
    fn is_restored(&self) -> bool {
        let state = self.ask(&["display", "-p", "#{alternate_on} #{cursor_flag}"]);
        state.trim() == "0 1"
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.env("TMUX_TMPDIR", self.dir.path()).arg("kill-server").output();
    }
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn udp(host: u8, len: usize, number: u32) -> Vec<u8> {
    let (source, destination) = ([10, 0, 0, host], [10, 0, 0, 9]);
    UdpFrame { source, destination, ports: [4000, 53], len, number, ..UdpFrame::default() }.bytes()
}

/// Few long packets of one host and many short ones of another.
fn round(sender: &mut Sender) {
    sender.send_all((0..5).map(|n| udp(1, 1400, n)));
    sender.send_all((0..20).map(|n| udp(2, 60, n)));
    sender.wait_for_arrival();
}

/// Sends until `done` has come to its end.
fn while_sending<T>(net: &Net, done: impl FnOnce() -> T) -> T {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            net.a.inside(|| {
                let mut sender = Sender::on("va");
                while !is_over.load(Relaxed) {
                    round(&mut sender);
                    thread::sleep(Duration::from_millis(20));
                }
            });
        });
        let _end = End(&is_over);
        done()
    })
}

fn recorder(net: &Net, dir: &Path) -> (Recorder, PathBuf) {
    let store = dir.join("store");
    let flags = format!("--flush 100ms --dir {}", store.display());
    (Recorder::start(net, dir, &flags), store)
}

/// Prints once, which must work.
fn once(flags: &[&str]) -> String {
    let out = Command::new(TAPDECK).args(["top", "--once"]).args(flags).output();
    let out = out.expect("the program was built");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
    String::from_utf8(out.stdout).expect("text")
}

/// The first row of the table that is shown.
fn first_row(screen: &str) -> &str {
    let mut lines = screen.lines().skip_while(|line| !line.starts_with("flow  "));
    lines.nth(1).unwrap_or("")
}

#[test]
fn a_screen_shows_a_recorder_and_who_talks() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    let tmux = Tmux::run(&format!("{TAPDECK} top --interval 200ms --dir {}", store.display()));
    while_sending(&net, || {
        let long = "10.0.0.1:4000 - 10.0.0.9:53";
        let short = "10.0.0.2:4000 - 10.0.0.9:53";
        let screen = tmux.wait("rates and flows", |s| s.contains("bit/s  ") && s.contains(short));
        assert!(screen.contains("recording for") && screen.contains(" captured + 0 filtered"));
        assert!(screen.lines().count() == 24 && screen.lines().all(|l| l.chars().count() <= 80));
        tmux.wait("most bits first", |s| first_row(s).starts_with(long));
        // From bits to bytes, to the protocol, to the name, to packets.
        for by in ["bytes", "protocol", "flow", "pkt/s"] {
            tmux.press_for("s", &format!("sorted by {by}"));
        }
        tmux.wait("most packets first", |s| first_row(s).starts_with(short));
        tmux.press_for("r", "pkt/s, backwards");
        tmux.wait("fewest packets first", |s| first_row(s).starts_with(long));

        let paused = tmux.press_for("p", "PAUSED");
        recorder.wait_for_captured(1);
        let captured = number(&recorder.now(), "captured");
        recorder.wait_for_captured(captured + 500);
        assert_eq!(tmux.screen(), paused, "it stands still while packets come");
        tmux.press("p");
        tmux.wait("it to go on", |s| {
            !s.contains("PAUSED") && s.lines().nth(2) != paused.lines().nth(2)
        });

        let hosts = tmux.press_for("2", "received bit/s");
        for host in ["10.0.0.1 ", "10.0.0.2 ", "10.0.0.9 "] {
            assert!(hosts.contains(host), "{hosts}");
        }
        let interfaces = tmux.press_for("Tab", "unseen\n");
        assert!(interfaces.lines().any(|line| line.starts_with("vb ")), "{interfaces}");
        tmux.press_for("4", "packets, at most");
        tmux.press_for("h", "draw the screen anew");
        tmux.press("x");
        tmux.wait("the help to go", |s| s.contains("packets, at most"));
    });
    tmux.press_for("q", "ended with 0");
    assert!(tmux.is_restored());
    recorder.stop();
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    let pid = dir.path().join("pid");
    let command = format!(
        "sh -c 'echo $$ > {}; exec {TAPDECK} top --dir {}'",
        pid.display(),
        store.display()
    );
    for is_key in [true, false] {
        let tmux = Tmux::run(&command);
        tmux.wait("the screen", |s| s.contains("recording for"));
        assert!(!tmux.is_restored());
        if is_key {
            tmux.press("C-c");
        } else {
            let pid = fs::read_to_string(&pid).expect("its number");
            let status = Command::new("kill").arg(pid.trim()).status().expect("kill");
            assert!(status.success());
        }
        tmux.wait("its end", |s| s.contains("ended with 0"));
        assert!(tmux.is_restored());
    }
    // The recorder goes; the screen says so, and stays.
    let tmux = Tmux::run(&format!("{TAPDECK} top --interval 200ms --dir {}", store.display()));
    tmux.wait("the screen", |s| s.contains("recording for"));
    recorder.stop();
    tmux.wait("the silence to be told", |s| s.contains("no answer since"));
    tmux.press_for("q", "ended with 0");
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    let command =
        format!("LC_ALL=C.UTF-8 {TAPDECK} top --interval 200ms --dir {}", store.display());
    let colour = |text: &str| ["\x1b[38;", "\x1b[48;"].iter().any(|code| text.contains(code));
    while_sending(&net, || {
        let tmux = Tmux::run(&command);
        wait_for("colours", || colour(&tmux.written()));
        let tmux = Tmux::run(&format!("NO_COLOR=1 {command}"));
        // The chart is what has a colour.
        tmux.wait("the chart", |s| s.lines().nth(1).is_some_and(|line| line.contains('█')));
        assert!(!colour(&tmux.written()), "{:?}", tmux.written());
        let tmux = Tmux::run(&format!("TERM=dumb {command}"));
        let screen = tmux.wait("its refusal", |s| s.contains("ended with 2"));
        assert!(screen.contains("--once prints plain text"), "{screen}");
    });
    recorder.stop();
}

#[test]
fn without_a_terminal_it_prints_once_or_says_why_not() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    let dir = store.to_str().expect("text");
    while_sending(&net, || {
        wait_for("rates and flows", || {
            let page = once(&["--dir", dir, "--interval", "300ms"]);
            assert!(!page.contains('\x1b'), "{page}");
            page.contains(" bit/s  ") && page.contains("10.0.0.2:4000 - 10.0.0.9:53")
        });
    });
    let stats = recorder.stop();
    let page = once(&["--dir", dir]);
    assert!(page.contains("nobody records into it"), "{page}");
    let packets = number(&stats, "captured");
    let shown = page.lines().find_map(|line| line.split_once(" packets in ")).expect("a minute");
    if packets < 1000 {
        assert_eq!(shown.0, packets.to_string(), "all of them are in the last minute: {page}");
    }

    let out = Command::new(TAPDECK).args(["top", "--dir", dir]).output().expect("it runs");
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(said(&out).lines().count(), 1, "{}", said(&out));
    assert!(said(&out).contains("tapdeck top --once"), "{}", said(&out));
    let out = Command::new(TAPDECK).args(["top", "--once", "--socket", "/nowhere"]).output();
    let out = out.expect("it runs");
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("nobody listens at /nowhere"), "{}", said(&out));
}

/// A terminal that is closed ends what ran in it.
#[test]
fn top_ends_with_its_terminal() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    let tmux = Tmux::run(&format!("{TAPDECK} top --dir {}", store.display()));
    tmux.wait("the recorder", |screen| screen.contains("recording for"));
    let is_it = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = [TAPDECK, "top", "--dir", store.to_str().expect("text"), ""].join("\0");
        line == words.as_bytes()
    };
    let runs = || fs::read_dir("/proc").expect("it is there").flatten().any(|p| is_it(&p));
    assert!(runs());
    drop(tmux);
    wait_for("top to end", || !runs());
    recorder.stop();
}

/// A recorder that hangs keeps nobody from its store.
#[test]
fn a_recorder_that_does_not_answer_is_told() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    net.a.inside(|| Sender::on("va").send_all((0..30).map(|n| udp(1, 100, n))));
    recorder.wait_for_captured(30);
    recorder.signal(Signal::STOP);
    let page = once(&["--dir", store.to_str().expect("text")]);
    recorder.signal(Signal::CONT);
    assert!(page.contains("no answer from"), "{page}");
    assert!(page.contains("\n30 packets in "), "{page}");
    recorder.stop();
}

#[test]
fn the_last_minute_of_a_store_alone_is_exact() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (recorder, store) = recorder(&net, dir.path());
    net.a.inside(|| Sender::on("va").send_all((0..300).map(|n| udp(1, 1000, n))));
    net.a.inside(|| Sender::on("va").send_all((0..40).map(|n| udp(2, 100, n))));
    recorder.wait_for_captured(340);
    recorder.stop();
    let page = once(&["--dir", store.to_str().expect("text")]);
    assert!(page.contains("\n340 packets in "), "{page}");
    let bytes = |what: &str| {
        let line = page.lines().find(|line| line.starts_with(what)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(bytes("10.0.0.1:4000 ").ends_with("293.0 KiB udp"), "{page}");
    assert!(bytes("10.0.0.2:4000 ").ends_with("3.9 KiB udp"), "{page}");
    assert!(bytes("10.0.0.9 ").ends_with("296.9 KiB"), "{page}");
}

#[test]
fn a_daemon_has_groups_members_and_ports() {
    let net = Net::new();
    let config = "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n";
    let mut daemon = Daemon::start(&net, config);
    let member = Member::start(&mut daemon, "ids", "one", "");
    while_sending(&net, || {
        let socket = daemon.socket();
        wait_for("packets", || {
            let page = once(&["--socket", socket.to_str().expect("text"), "--interval", "300ms"]);
            let row = |begin: &str| page.lines().find(|l| l.starts_with(begin)).map(str::to_owned);
            assert!(page.contains("serving for") && page.contains("1 group with 1 member"));
            assert!(row("ids/0 ").is_some_and(|row| row.contains("tapdeck ")), "{page}");
            assert!(row("vb ").is_some_and(|row| row.contains(" xdp ")), "{page}");
            row("ids ").is_some_and(|row| row.contains(" flow ") && row.contains(" k "))
        });
    });
    member.stop();
    daemon.stop();
}
