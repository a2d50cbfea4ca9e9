//! Interfaces that come while others are recorded, and what becomes of their packets.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Deref, Range};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::cable::End;
use tapdeck_testkit::frame::number_of;
use tapdeck_testkit::{Cable, Sender, wait_for};

use super::bench::Bench;
use super::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

/// A bench with a store, to which cables are plugged while a recorder is at work. What comes is
/// plugged from `far` in namespace `a` to `near` in `b`, where it is recorded.
pub struct Scene(Bench);

impl Deref for Scene {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.0
    }
}

impl Scene {
    pub fn new() -> Self {
        let bench = Bench::new();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bench.dir.path(), open).expect("it is ours");
        Self(bench)
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A recorder of these interfaces into the store, with more flags.
    pub fn command(&self, interfaces: &str, flags: &[&str]) -> Command {
        let mut command = self.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", self.pins());
        command.args(["record", "-i", interfaces, "--flush", "100ms", "--dir"]).arg(self.store());
        command.args(flags).stdout(Stdio::null());
        command
    }

    /// Starts that recorder, and waits until it records.
    pub fn start(&self, interfaces: &str, line: &str) -> Recorder {
        self.start_with(interfaces, &line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn start_with(&self, interfaces: &str, flags: &[&str]) -> Recorder {
        Recorder::of(self.command(interfaces, flags), self.dir.path())
    }

    pub fn plug(&self, far: &str, near: &str) {
        Cable::default().plug([End::new(&self.net.a, far), End::new(&self.net.b, near)]);
    }

    /// Plugs a cable, and waits until it is recorded. Returns the line that says so.
    pub fn comes(&self, recorder: &mut Recorder, (far, near): (&str, &str)) -> String {
        self.plug(far, near);
        recorder.wait_to_say(&format!("recording {near} at hook"))
    }

    pub fn unplug(&self, near: &str) {
        self.net.b.run(&format!("ip link del {near}"));
    }

    /// Has an interface go whose place others may have from now on.
    pub fn goes_for_good(&self, recorder: &mut Recorder, near: &str) {
        self.unplug(near);
        recorder.wait_to_say(&format!("{near} is gone"));
        wait_seconds(recorder, 4);
    }

    /// Sends numbered frames from `far` to `near`.
    pub fn send(&self, (far, near): (&str, &str), numbers: Range<u32>) {
        let to = self.net.b.inside(|| Interface::find(near).expect("it is there")).mac;
        let to = to.expect("a MAC");
        self.net.a.inside(|| Sender::on(far).send_all(numbers.map(|i| frame(to, 100, i))));
    }

    /// Runs `tapdeck ctl` on the recorder of the store.
    pub fn tell(&self, words: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        let out = command.args(["ctl", "--dir"]).arg(self.store()).args(words).output();
        let out = out.expect("it runs");
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// The numbers of the packets of each interface in the store, by name and in order.
    pub fn found(&self) -> BTreeMap<String, Vec<u32>> {
        numbers_of(&segments(&self.store()))
    }

    /// `query -i NAME` finds so many packets, and the store is sound.
    pub fn assert_found(&self, packets: &[(&str, usize)]) {
        for (name, packets) in packets {
            let out = tapdeck(&["query", "--count", "-i", name], &self.store());
            let count = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(count, packets.to_string(), "{name}: {said}");
        }
        let verified = tapdeck(&["verify"], &self.store());
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

pub fn tapdeck(words: &[&str], store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg(words[0]).arg("--dir").arg(store).args(&words[1..]);
    command.output().expect("the program was built")
}

/// The numbers of the packets of each interface, by name and in order.
pub fn numbers_of(files: &[impl AsRef<Path>]) -> BTreeMap<String, Vec<u32>> {
    let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for file in files {
        let contents = Contents::of(file.as_ref());
        for packet in contents.packets {
            let name = contents.interfaces[packet.interface as usize].name.clone();
            numbers.entry(name.expect("a name")).or_default().push(number_of(&packet.frame));
        }
    }
    for numbers in numbers.values_mut() {
        numbers.sort_unstable();
    }
    numbers
}

/// All that the device received, and at some hooks sent, was seen, dropped by it, or unseen.
fn assert_law(hook: &str, counters: &Value) {
    let n = |key| number(counters, key);
    let moved = n("nic_received") + if hook == "tcx" { n("nic_sent") } else { 0 };
    assert_eq!(moved, n("seen") + n("nic_dropped") + n("unseen"), "{counters}");
}

pub fn assert_laws(hook: &str, stats: &Value) {
    assert_accounted(stats);
    assert_law(hook, stats);
    for counters in stats["interfaces"].as_object().expect("a map").values() {
        assert_law(hook, counters);
    }
}

pub fn wait_captured(recorder: &Recorder, name: &str, packets: u64) {
    wait_counted(recorder, name, "captured", packets);
}

/// Waits until a counter of an interface has come to so much.
pub fn wait_counted(recorder: &Recorder, name: &str, counter: &str, packets: u64) {
    wait_for(&format!("{packets} packets of {name}, {counter}"), || {
        recorder.now()["interfaces"][name][counter].as_u64() >= Some(packets)
    });
}

/// Waits until the recorder has looked at the interfaces for so many more seconds.
pub fn wait_seconds(recorder: &Recorder, seconds: u64) {
    let elapsed = || recorder.now()["elapsed_s"].as_u64().unwrap_or(0);
    let then = elapsed();
    wait_for("looks", || elapsed() > then + seconds);
}
