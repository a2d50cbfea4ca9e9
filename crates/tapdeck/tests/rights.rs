//! Which rights has a recorder while it records, and what can somebody do who has taken it over?
//!
//! What the kernel says of each thread is read from `/proc`, and what must fail is tried: a
//! debugger has the recorder's main thread make system calls (`as_recorder.c`, for x86-64).

mod testbed;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::process::number;
use tapdeck_testkit::{Cable, Mount, Net, Sender, Talking, kernel, wait_for};
use testbed::daemon::{Daemon, Member};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, segments};

/// A user that every machine has.
const USER: &str = "nobody";
const USER_ID: u32 = 65534;

fn send(net: &Net, numbers: std::ops::Range<u32>) {
    let to = net.b.inside(|| Interface::find("vb").expect("it is there")).mac;
    let to = to.expect("a MAC");
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|i| sender.send(&frame(to, 100, i)));
    });
}

/// A network for a recorder at a hook.
fn net_for(hook: &str) -> Net {
    let net = Net::new();
    if hook == "netfilter" {
        // It sees what IP would take.
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    net
}

/// A directory that everybody may pass, so that also another user gets at a store in it.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    dir
}

fn run(net: &Net, args: &[&str]) -> Output {
    net.b.command(env!("CARGO_BIN_EXE_tapdeck")).args(args).output().expect("it was built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pid(recorder: &Recorder) -> u32 {
    recorder.program.process.0.id()
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn helper(recorder: &Recorder) -> u32 {
    let children = children(pid(recorder));
    assert_eq!(children.len(), 1, "a recorder has its helper, and no other process");
    children[0]
}

/// What the kernel says of a thread (proc_pid_status(5)).
struct Status(String);

impl Status {
    fn value(&self, key: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{key} in {}", self.0)).trim()
    }

    fn capabilities(&self, set: &str) -> u64 {
        u64::from_str_radix(self.value(set), 16).expect("a number")
    }

    fn numbers(&self, key: &str) -> Vec<u32> {
        self.value(key).split_whitespace().map(|n| n.parse().expect("a number")).collect()
    }
}

/// What the kernel says of each thread of a process. Threads that end meanwhile are left out.
fn threads(pid: u32) -> Vec<Status> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    tasks.flatten().filter_map(status).map(Status).collect()
}

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON and CAP_BPF.
const FOR_HOOKS: u64 = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39;
/// CAP_IPC_LOCK, which the memory of AF_XDP sockets takes.
const TO_LOCK: u64 = 1 << 14;

fn assert_no_rights(pid: u32, user: u32) {
    let threads = threads(pid);
    assert!(threads.len() >= 3, "the main thread, the writer and the keeper");
    for status in threads {
        for set in SETS {
            assert_eq!(status.capabilities(set), 0, "{set}: {}", status.0);
        }
        assert_eq!(status.value("NoNewPrivs"), "1", "{}", status.0);
        assert_eq!(status.numbers("Uid"), [user; 4], "{}", status.0);
        assert_eq!(status.numbers("Gid"), [user; 4], "{}", status.0);
    }
}

/// The program that has a process make system calls.
fn debugger(dir: &Path) -> PathBuf {
    let program = dir.join("as_recorder");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/as_recorder.c");
    let compile =
        Command::new("cc").args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).status();
    assert!(compile.expect("there is a compiler: make setup").success());
    program
}

/// Has a process try something. Returns the number of the error.
fn try_as(debugger: &Path, pid: u32, words: &[&str]) -> i32 {
    let out = Command::new(debugger).arg(pid.to_string()).args(words).output();
    let out = out.expect("it was compiled");
    assert!(out.status.success(), "{words:?}: {}", said(&out));
    String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
}

/// The flags of every hook of this kernel.
fn hooks() -> Vec<&'static str> {
    let mut hooks = vec!["xdp", "xdp-generic", "tpacket", "recv", "afxdp --deliver consume", "tcx"];
    if kernel::at_least((6, 4), "BPF programs at netfilter") {
        hooks.push("netfilter");
    }
    hooks
}

/// The recorder has no right, and its helper those that the hook takes.
fn assert_divided(recorder: &Recorder, hook: &str, user: u32) {
    assert_no_rights(pid(recorder), user);
    let [status] = &threads(helper(recorder))[..] else { panic!("a helper has one thread") };
    assert_eq!(status.value("Name"), "tapdeck-helper");
    let wanted = if hook.starts_with("afxdp") { FOR_HOOKS | TO_LOCK } else { FOR_HOOKS };
    for set in SETS {
        let kept = if matches!(set, "CapPrm" | "CapEff") { wanted } else { 0 };
        assert_eq!(status.capabilities(set), kept, "{set}: {}", status.0);
    }
    assert_eq!(status.value("NoNewPrivs"), "1");
}

fn recorder_has_no_right(hook: &str, (name, user): (&str, u32)) {
    let (net, dir) = (net_for(hook), directory());
    let store = dir.path().join("store");
    let flags = format!("--hook {hook} --user {name} --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..100);
    wait_for("the packets", || recorder.now()["captured"].as_u64() == Some(100));
    assert_divided(&recorder, hook, user);
    let helper = helper(&recorder);
    if cfg!(target_arch = "x86_64") {
        tries_in_vain(dir.path(), &store, &recorder, user);
    }

    send(&net, 100..200);
    let stats = recorder.stop();
    assert_eq!(number(&stats, "captured"), 200, "{hook}: and it went on recording");
    assert_accounted(&stats);
    assert_eq!(Contents::of_store(&store).packets.len(), 200);
    for file in fs::read_dir(&store).expect("a store").flatten() {
        assert_eq!(file.metadata().expect("a file").uid(), user, "{}", file.path().display());
    }
    assert!(!Path::new(&format!("/proc/{helper}")).exists(), "the helper ended before it");
}

/// What is not its own, a recorder that was taken over tries in vain.
fn tries_in_vain(dir: &Path, store: &Path, recorder: &Recorder, user: u32) {
    let debugger = debugger(dir);
    let tries = |words: &[&str]| try_as(&debugger, pid(recorder), words);
    let inside = store.join("a");
    let inside = inside.to_str().expect("letters");
    assert_eq!(tries(&["write", inside]), 0, "it can be tried, and the store is the recorder's");
    assert_eq!(fs::metadata(inside).expect("it was made").uid(), user);
    fs::remove_file(inside).expect("it is there");
    let open = directory();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let outside = open.path().join("a");
    fs::write(&outside, "").expect("written");
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o666)).expect("it is ours");
    for path in [outside.to_str().expect("letters"), "/etc/passwd"] {
        assert_eq!(tries(&["read", path]), libc_errno::ACCES, "{path}");
        assert_eq!(tries(&["write", path]), libc_errno::ACCES, "{path}");
    }
    let new = open.path().join("new");
    assert_eq!(tries(&["write", new.to_str().expect("letters")]), libc_errno::ACCES);
    assert_eq!(tries(&["socket"]), libc_errno::PERM);
    assert_eq!(tries(&["bpf"]), libc_errno::PERM);
    if user != 0 {
        assert_eq!(tries(&["setuid"]), libc_errno::PERM);
    }
    if kernel::at_least((6, 7), "landlock for networks") {
        assert_eq!(tries(&["tcp"]), libc_errno::ACCES);
    }
    if user != 0 || kernel::at_least((6, 12), "landlock for signals") {
        assert_eq!(tries(&["signal", &helper(recorder).to_string()]), libc_errno::PERM);
    }
}

/// Numbers of errors.
mod libc_errno {
    pub const PERM: i32 = 1;
    pub const ACCES: i32 = 13;
}

#[test]
fn no_thread_of_a_recorder_has_a_right_that_it_does_not_use() {
    for hook in hooks() {
        recorder_has_no_right(hook, (USER, USER_ID));
    }
    recorder_has_no_right("tcx", ("root", 0));
}

/// The recorder of a lasting recording neither, also where it has taken one over.
#[test]
fn what_lasts_is_pinned_by_the_helper() {
    for hook in hooks().into_iter().filter(|hook| kernel_programs(hook)) {
        let (net, dir) = (net_for(hook), directory());
        let bpf = Mount::bpf(&dir.path().join("bpf"));
        let (pins, store) = (bpf.path().join("tapdeck"), dir.path().join("store"));
        let start = || {
            let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
            command.env("TAPDECK_PERSIST", &pins).stdout(Stdio::null());
            command.args(["record", "-i", "vb", "--persist", "tape", "--flush", "100ms"]);
            command.args(["--user", USER, "--hook", hook, "--dir"]).arg(&store);
            Recorder::of(command, dir.path())
        };
        let captured = |recorder: &Recorder, packets: u64| {
            wait_for("packets", || recorder.now()["captured"].as_u64() == Some(packets));
        };
        let recorder = start();
        send(&net, 0..100);
        captured(&recorder, 100);
        assert_divided(&recorder, hook, USER_ID);
        recorder.kill();
        send(&net, 100..150);

        let mut recorder = start();
        captured(&recorder, 150);
        assert_divided(&recorder, hook, USER_ID);
        if cfg!(target_arch = "x86_64") {
            let state = pins.join("tape/state");
            let words = ["read", state.to_str().expect("letters")];
            let tried = try_as(&debugger(dir.path()), pid(&recorder), &words);
            assert_eq!(tried, libc_errno::ACCES);
            tries_in_vain(dir.path(), &store, &recorder, USER_ID);
        }
        if hook != "netfilter" {
            net.b.run("ip link del vb");
            recorder.wait_to_say("is gone");
            net.plug(Cable::default());
            recorder.wait_to_say("is back");
            send(&net, 150..160);
            captured(&recorder, 160);
        }
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "takeovers"), 1, "{stats}");
        assert!(pins.join("tape/0-link0").exists(), "it goes on");
    }
}

fn kernel_programs(hook: &str) -> bool {
    matches!(hook, "xdp" | "xdp-generic" | "tcx" | "netfilter")
}

/// What is pinned and not begun to be recorded, the helper removes.
#[test]
fn a_lasting_recording_that_does_not_begin_leaves_nothing() {
    let (net, dir) = (Net::new(), directory());
    let bpf = Mount::bpf(&dir.path().join("bpf"));
    let pins = bpf.path().join("tapdeck");
    let store = dir.path().join("store");
    fs::create_dir(&store).expect("a new directory");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.env("TAPDECK_PERSIST", &pins).args(["record", "-i", "vb", "--hook", "tcx"]);
    command.args(["--persist", "tape", "--user", USER, "--dir"]).arg(&store);
    let refused = command.output().expect("it was built");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("whose the store must be"), "{}", said(&refused));
    wait_for("the pins to go", || fs::read_dir(&pins).is_ok_and(|mut left| left.next().is_none()));
}

/// The hooks are looked after, and changed, by a recorder that may do none of it.
#[test]
fn what_takes_rights_is_done_for_another_user_too() {
    for hook in hooks().into_iter().filter(|hook| *hook != "netfilter") {
        let takes_rules = kernel_programs(hook);
        let (net, dir) = (Net::new(), directory());
        let store = dir.path().join("store");
        let flags = format!("--hook {hook} --flush 100ms --user {USER} --dir {}", store.display());
        let mut recorder = Recorder::start(&net, dir.path(), &flags);
        let ctl = |words: &[&str]| {
            let out = Command::new(env!("CARGO_BIN_EXE_tapdeck"))
                .args(["ctl", "--dir"])
                .arg(&store)
                .args(words)
                .output()
                .expect("it was built");
            assert!(out.status.success(), "{words:?}: {}", said(&out));
        };
        let wait = |recorder: &Recorder, key: &str, packets: u64| {
            wait_for("packets", || recorder.now()[key].as_u64() == Some(packets));
        };
        send(&net, 0..10);
        wait(&recorder, "captured", 10);
        ctl(&["filter", "udp port 1"]);
        send(&net, 10..20);
        wait(&recorder, "filtered", 10);
        ctl(&["filter", "--none"]);
        let asked = Command::new(env!("CARGO_BIN_EXE_tapdeck"))
            .args(["ctl", "--dir"])
            .arg(&store)
            .args(["filter", "inbound"])
            .output()
            .expect("it was built");
        let ethernet = pcap::Capture::dead(pcap::Linktype::ETHERNET).expect("memory");
        if ethernet.compile("inbound", true).is_ok() {
            assert!(asked.status.success(), "{}", said(&asked));
            ctl(&["filter", "--none"]);
        } else {
            assert!(said(&asked).contains("begin with it (--filter)"), "{}", said(&asked));
        }
        if takes_rules {
            let rules = dir.path().join("rules");
            let rule = "accept src any dst any sport any dport any proto any\n";
            fs::write(&rules, rule).expect("written");
            ctl(&["rules", "replace", rules.to_str().expect("letters")]);
        }
        send(&net, 20..30);
        wait(&recorder, "captured", 20);
        ctl(&["pause"]);
        ctl(&["resume"]);
        send(&net, 30..40);
        wait(&recorder, "captured", 30);

        net.b.run("ip link del vb");
        recorder.wait_to_say("is gone");
        net.plug(Cable::default());
        recorder.wait_to_say("is back");
        send(&net, 40..50);
        wait(&recorder, "captured", 40);
        let stats: Value = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "filtered"), 10);
    }
}

#[test]
fn a_recorder_whose_helper_ends_says_so_and_ends() {
    let (net, dir) = (Net::new(), directory());
    let flags = format!("--hook tcx --flush 100ms --dir {}", dir.path().join("store").display());
    let mut recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..50);
    wait_for("the packets", || recorder.now()["captured"].as_u64() == Some(50));
    let pid = rustix::process::Pid::from_raw(helper(&recorder).cast_signed()).expect("a process");
    rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
    let (status, lines) = recorder.program.end();
    assert_eq!(status.code(), Some(1), "{lines:#?}");
    let said = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("the process that has the hooks has ended"), 1, "{lines:#?}");
    assert_eq!(Contents::of_store(&dir.path().join("store")).packets.len(), 50);
}

/// Nothing of a recorder that was killed stays behind, not even where its helper was asked to end.
#[test]
fn the_helper_of_a_recorder_that_was_killed_ends_with_it() {
    let (net, dir) = (Net::new(), directory());
    let socket = dir.path().join("control.sock");
    let flags = format!("--hook xdp --no-store --socket {}", socket.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let helper = helper(&recorder);
    let pid = rustix::process::Pid::from_raw(helper.cast_signed()).expect("a process");
    // As from a terminal, or from a service manager that ends a whole group.
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        rustix::process::kill_process(pid, signal).expect("it is there");
    }
    assert!(socket.exists());
    recorder.kill();
    wait_for("the helper to end", || !Path::new(&format!("/proc/{helper}")).exists());
    assert!(!socket.exists(), "it removes what the recorder left");
    let again = Recorder::start(&net, dir.path(), &flags);
    again.stop();
    assert!(!socket.exists());
}

#[test]
fn a_store_of_somebody_else_is_left_and_said() {
    let (net, dir) = (Net::new(), directory());
    let store = dir.path().join("store");
    fs::create_dir(&store).expect("a new directory");
    let args = ["record", "-i", "vb", "--hook", "tcx", "--duration", "100ms", "--dir"];
    let all = [&args[..], &[store.to_str().expect("letters"), "--user", USER]].concat();
    let refused = run(&net, &all);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let words = [format!("chown -R {USER}: {}", store.display()), "no permission".to_owned()];
    let line = said(&refused);
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    assert_eq!(fs::metadata(&store).expect("it is there").uid(), 0, "it is not given away");
    chown(&store, Some(USER_ID), Some(USER_ID)).expect("root may");
    let kept = run(&net, &all);
    assert!(kept.status.success(), "{}", said(&kept));
}

/// Returns a command that runs another with the capabilities that a unit leaves root.
fn as_unit(net: &Net, unit: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").join(unit);
    let text = fs::read_to_string(path).expect("the unit is there");
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.expect("the unit bounds them").split(' ').map(|name| {
        let name = name.strip_prefix("CAP_").expect("a capability's name").to_lowercase();
        format!("+{name}")
    });
    let bounds: Vec<String> = std::iter::once("-all".to_owned()).chain(names).collect();
    let mut command = net.b.command("setpriv");
    command.arg(format!("--bounding-set={}", bounds.join(",")));
    command.args(["--inh-caps=-all", "--ambient-caps=-all", "--clear-groups", "--no-new-privs"]);
    command.arg(env!("CARGO_BIN_EXE_tapdeck"));
    command
}

/// A service has few capabilities: neither to pass by permission nor to act as any file's owner.
#[test]
fn a_service_makes_its_store_and_goes_on_with_it() {
    let daemon = nix::unistd::Group::from_name("daemon").expect("groups").expect("it is there");
    let (others, daemon) = (["--file-group", "daemon", "--file-mode", "0644"], daemon.gid.as_raw());
    // What was made without a group may get one, and what has one stays.
    for (first, second) in [(&[][..], &[][..]), (&[], &others), (&others, &others), (&others, &[])]
    {
        let (net, dir) = (Net::new(), directory());
        let bpf = Mount::bpf(&dir.path().join("bpf"));
        // As /var/lib/tapdeck is.
        let stores = dir.path().join("stores");
        fs::create_dir(&stores).expect("a new directory");
        fs::set_permissions(&stores, fs::Permissions::from_mode(0o750)).expect("it is ours");
        chown(&stores, None, Some(USER_ID)).expect("root may");
        let store = stores.join("vb");
        for (packets, flags) in [(10, first), (20, second)] {
            let mut command = as_unit(&net, "tapdeck-record@.service");
            command.env("TAPDECK_PERSIST", bpf.path().join("tapdeck")).stdout(Stdio::null());
            // As the unit for a VLAN's interface does.
            command.args(["record", "-i", "vb", "--hook", "tcx", "--persist", "vb.1"]);
            command.args(["--user", USER]);
            command.args(["--flush", "100ms", "--dir"]).arg(&store).args(flags);
            let recorder = Recorder::of(command, dir.path());
            send(&net, packets - 10..packets);
            recorder.wait_for_captured(packets.into());
            recorder.stop();

            let made = fs::metadata(&store).expect("a store");
            assert_eq!(made.uid(), USER_ID);
            let has_group = !first.is_empty() || !flags.is_empty();
            if has_group {
                assert_eq!(
                    (made.gid(), made.mode() & 0o7777),
                    (daemon, 0o2755),
                    "{first:?} {flags:?}"
                );
            } else if nix::unistd::Group::from_name("tapdeck").expect("groups").is_none() {
                assert_eq!((made.gid(), made.mode() & 0o7777), (USER_ID, 0o750));
            }
            let newest = segments(&store).pop().expect("a segment");
            let newest = fs::metadata(newest).expect("a file");
            let mode = if flags.is_empty() { 0o640 } else { 0o644 };
            assert_eq!((newest.uid(), newest.mode() & 0o777), (USER_ID, mode), "{flags:?}");
            assert_eq!(newest.gid(), made.gid(), "{first:?} {flags:?}");
        }
    }
}

#[test]
fn a_store_that_is_a_link_and_would_change_is_said_to_be_one() {
    let (net, dir) = (Net::new(), directory());
    let (there, link) = (dir.path().join("there"), dir.path().join("link"));
    fs::create_dir(&there).expect("a new directory");
    std::os::unix::fs::symlink(&there, &link).expect("a new link");
    let args = ["record", "-i", "vb", "--hook", "tcx", "--file-mode", "0644", "--dir"];
    let refused = run(&net, &[&args[..], &[link.to_str().expect("letters")]].concat());
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("link is a symbolic link"), "{}", said(&refused));
}

#[test]
fn a_user_that_cannot_be_is_wrong_usage() {
    let net = Net::new();
    let args = ["record", "-i", "vb", "--no-store", "--duration", "100ms", "--user"];
    let refused = run(&net, &[&args[..], &["no-such-user-here", "--hook", "tcx"]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("there is no such user"), "{}", said(&refused));
}

/// A file is opened before the rights go, in whosever directory it is.
#[test]
fn a_file_is_written_by_a_recorder_that_could_not_open_it() {
    let (net, dir) = (Net::new(), directory());
    let file = dir.path().join("a.pcapng");
    let flags = format!("--hook tcx --flush 100ms --user {USER} -w {}", file.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, 0..20);
    wait_for("the packets", || recorder.now()["captured"].as_u64() == Some(20));
    for status in threads(pid(&recorder)) {
        assert_eq!(status.capabilities("CapEff"), 0);
        assert_eq!(status.numbers("Uid"), [USER_ID; 4]);
    }
    recorder.stop();
    assert_eq!(Contents::of(&file).packets.len(), 20);
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
}

fn daemon_helper(daemon: &Daemon) -> u32 {
    let children = children(daemon.program.process.0.id());
    assert_eq!(children.len(), 1, "a daemon has its helper, and no other process");
    children[0]
}

/// How many BPF maps a process has in its memory.
fn maps_in_memory(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process is there");
    maps.lines().filter(|line| line.contains("bpf-map")).count()
}

/// A daemon under test, whose programs and members' rings may outlive it.
struct Deck {
    net: Net,
    config: String,
    /// A BPF file system of its own, and where it is mounted.
    bpf: Option<(Mount, tempfile::TempDir)>,
}

impl Deck {
    fn new(hook: &str, lasts: bool) -> Self {
        let config = format!(
            "[serve]\nring-bytes = \"1MiB\"\nblock-bytes = \"128KiB\"\n[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\nfilter = \"udp\"\n[[group]]\nname = \"h\"\ninterfaces = [\"vb\"]\nhook = \"{hook}\"\nsteering = \"copy\"\n"
        );
        let mounted = || {
            let dir = directory();
            (Mount::bpf(&dir.path().join("bpf")), dir)
        };
        Self { net: net_for(hook), config, bpf: lasts.then(mounted) }
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Daemon::command(&self.net, dir, &self.config);
        command.args(["--user", USER]);
        if self.bpf.is_some() {
            command.env("TAPDECK_PERSIST", self.pins()).args(["--persist", "deck"]);
        }
        command
    }

    fn start(&self, dir: tempfile::TempDir) -> Daemon {
        let mut program = Talking::start(&mut self.command(dir.path()));
        program.wait_to_say("serving at");
        Daemon { program, dir }
    }

    /// Kills a daemon, if something outlives it, and starts the next, to which its member comes
    /// back.
    fn next(&self, daemon: Daemon) -> Daemon {
        if self.bpf.is_none() {
            return daemon;
        }
        let Daemon { mut program, dir } = daemon;
        program.process.signal(Signal::KILL);
        program.end();
        let next = self.start(dir);
        wait_for("the member to come back", || {
            let group = next.group("g");
            let members = group["members"].as_array().expect("members").clone();
            members.len() == 1 && members.iter().all(|member| member["away"] == false)
        });
        next
    }

    fn is_promiscuous(&self) -> bool {
        let words = ["-d", "link", "show", "vb"];
        let shown = self.net.b.command("ip").args(words).output().expect("ip(8)");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("promiscuity"), "{shown}");
        !shown.contains("promiscuity 0 ")
    }

    /// The directory where everything is pinned.
    fn pins(&self) -> PathBuf {
        self.bpf.as_ref().expect("it lasts").0.path().join("tapdeck")
    }

    fn ctl_persist(&self, words: &[&str]) -> Output {
        let mut command = self.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", self.pins()).args(["ctl", "persist"]).args(words);
        command.output().expect("it was built")
    }
}

/// A daemon looks after its hooks, and changes them, by its helper; it may do none of it. One whose
/// programs outlive it neither, also where it has taken over what another has left.
fn daemon_has_no_right(hook: &str, lasts: bool) {
    let deck = Deck::new(hook, lasts);
    let net = &deck.net;
    let mut daemon = deck.start(directory());
    let member = Member::start(&mut daemon, "g", "m", "");
    send(net, 0..50);
    daemon.wait_seen("g", 50);
    let mapped = maps_in_memory(daemon_helper(&daemon));
    let mut daemon = deck.next(daemon);
    let helper = daemon_helper(&daemon);
    assert!(maps_in_memory(helper) <= mapped, "the helper keeps no member's rings");
    send(net, 50..100);
    daemon.wait_seen("g", 100);
    let pid = daemon.program.process.0.id();
    assert_no_rights(pid, USER_ID);
    let [status] = &threads(helper)[..] else { panic!("a helper has one thread") };
    assert_eq!(status.value("Name"), "tapdeck-helper");
    assert_eq!(status.capabilities("CapEff"), FOR_HOOKS);
    assert_eq!(status.capabilities("CapBnd"), 0);
    assert_eq!(status.value("NoNewPrivs"), "1");
    if cfg!(target_arch = "x86_64") {
        daemon_tries_in_vain(&daemon, helper);
    }

    let ctl = |words: &str| {
        let out = daemon.ctl(words);
        assert!(out.status.success(), "{words}: {}", said(&out));
    };
    let mut captured = 100;
    let mut sent = 100;
    let has_packets = |daemon: &Daemon, packets: u64| {
        wait_for("packets", || number(&daemon.group("g"), "captured") == packets);
    };
    if hook != "netfilter" {
        ctl("filter --group g less 1");
        send(net, 100..120);
        sent += 20;
        daemon.wait_seen("g", 120);
        assert_eq!(number(&daemon.group("g"), "captured"), 100, "no frame is so short");
        ctl("filter --group g --none");
    }
    let refused = daemon.ctl("filter --group g no such thing");
    assert!(!refused.status.success());
    let rules = daemon.path("rules");
    let rule = "accept src any dst any sport any dport any proto any\n";
    fs::write(&rules, rule).expect("written");
    ctl(&format!("rules replace --group g {}", rules.display()));
    send(net, sent..sent + 20);
    (sent, captured) = (sent + 20, captured + 20);
    has_packets(&daemon, captured);
    if hook != "netfilter" {
        assert!(deck.is_promiscuous());
        net.b.run("ip link del vb");
        daemon.wait_to_say("is gone");
        net.plug(Cable::default());
        daemon.wait_to_say("is back");
        assert!(deck.is_promiscuous(), "the new interface is, too");
    }
    let late = Member::start(&mut daemon, "h", "late", "");
    send(net, sent..sent + 10);
    captured += 10;
    has_packets(&daemon, captured);
    assert_eq!(late.stop().packets.len(), 10);
    assert_eq!(member.stop().packets.len() as u64, captured);
    let last = daemon.stop();
    let refused = if hook == "netfilter" { 0 } else { 20 };
    assert_eq!(number(&last["groups"][0], "filtered"), refused, "{last}");
    assert!(!Path::new(&format!("/proc/{helper}")).exists(), "the helper ended before it");
    if lasts {
        let dropped = deck.ctl_persist(&["drop", "deck"]);
        assert!(dropped.status.success(), "it was left: {}", said(&dropped));
    }
    assert!(!deck.is_promiscuous());
}

fn hooks_of_groups() -> impl Iterator<Item = &'static str> {
    hooks().into_iter().filter(|hook| kernel_programs(hook))
}

#[test]
fn no_thread_of_a_daemon_has_a_right_that_it_does_not_use() {
    hooks_of_groups().for_each(|hook| daemon_has_no_right(hook, false));
}

#[test]
fn no_thread_of_a_daemon_that_has_taken_over_has_a_right_either() {
    hooks_of_groups().for_each(|hook| daemon_has_no_right(hook, true));
}

/// What is pinned and not begun to be served, the helper removes.
#[test]
fn lasting_groups_that_are_not_served_leave_nothing() {
    for hook in ["xdp", "tcx"] {
        let (deck, dir) = (Deck::new(hook, true), directory());
        fs::create_dir(dir.path().join("s")).expect("a name that no socket can have");
        let refused = deck.command(dir.path()).output().expect("it was built");
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        wait_for("the pins to go", || {
            fs::read_dir(deck.pins()).is_ok_and(|mut left| left.next().is_none())
        });
        assert!(!deck.is_promiscuous());
    }
}

/// Programs that outlive the daemon outlive its helper as well.
#[test]
fn a_lasting_daemon_whose_helper_ends_leaves_all_to_the_next() {
    let deck = Deck::new("tcx", true);
    let mut daemon = deck.start(directory());
    let member = Member::start(&mut daemon, "g", "m", "");
    let helper = rustix::process::Pid::from_raw(daemon_helper(&daemon).cast_signed());
    rustix::process::kill_process(helper.expect("a process"), Signal::KILL).expect("it is there");
    let (status, lines) = daemon.program.end();
    assert_eq!(status.code(), Some(1), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("the next one goes on")), "{lines:#?}");
    send(&deck.net, 0..30);
    let daemon = deck.start(daemon.dir);
    wait_for("packets", || number(&daemon.group("g"), "captured") == 30);
    assert_eq!(member.stop().packets.len(), 30);
    daemon.stop();
}

/// What a daemon that was taken over tries in vain.
fn daemon_tries_in_vain(daemon: &Daemon, helper: u32) {
    let debugger = debugger(daemon.dir.path());
    let pid = daemon.program.process.0.id();
    let tries = |words: &[&str]| try_as(&debugger, pid, words);
    let open = directory();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let outside = open.path().join("a");
    fs::write(&outside, "").expect("written");
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let outside = outside.to_str().expect("letters");
    assert_eq!(tries(&["read", "/etc/group"]), 0, "who is of which group it must ask");
    for what in ["read", "write"] {
        assert_eq!(tries(&[what, outside]), libc_errno::ACCES, "{what}");
    }
    for what in ["socket", "bpf", "setuid"] {
        assert_eq!(tries(&[what]), libc_errno::PERM, "{what}");
    }
    assert_eq!(tries(&["signal", &helper.to_string()]), libc_errno::PERM);
}

#[test]
fn a_daemon_whose_helper_ends_says_so_and_ends() {
    let net = Net::new();
    let config = "[[group]]\nname = \"g\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n";
    let mut daemon = Daemon::start(&net, config);
    let helper = daemon_helper(&daemon);
    let pid = rustix::process::Pid::from_raw(helper.cast_signed()).expect("a process");
    rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
    let (status, lines) = daemon.program.end();
    assert_eq!(status.code(), Some(1), "{lines:#?}");
    let said = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("the process that has the hooks has ended"), 1, "{lines:#?}");
}
