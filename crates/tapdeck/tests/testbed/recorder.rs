//! A recorder under test, what it wrote, and frames to feed it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_packet::pcapng::{Interface, Reader, Record, Statistics};
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::process::last_json;
pub use tapdeck_testkit::process::number;
use tapdeck_testkit::wait::{LIMIT, is_done_within};
use tapdeck_testkit::{Net, Talking};

/// `tapdeck record` in namespace `b`.
pub struct Recorder {
    pub program: Talking,
    stats: PathBuf,
}

impl Recorder {
    /// Starts it on `vb` with more flags, and waits until it records.
    pub fn start(net: &Net, dir: &Path, flags: &str) -> Self {
        Self::start_on(net, "vb", dir, flags)
    }

    /// With a filter, in words.
    pub fn start_filtered(net: &Net, dir: &Path, flags: &str, filter: &str) -> Self {
        let mut words: Vec<&str> = flags.split_whitespace().collect();
        words.extend(["--filter", filter]);
        Self::start_with(net, "vb", dir, &words)
    }

    pub fn start_on(net: &Net, interfaces: &str, dir: &Path, flags: &str) -> Self {
        let words: Vec<&str> = flags.split_whitespace().collect();
        Self::start_with(net, interfaces, dir, &words)
    }

    /// With flags that are words each.
    pub fn start_with(net: &Net, interfaces: &str, dir: &Path, flags: &[&str]) -> Self {
        let stats = dir.join("stats.json");
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "-i", interfaces, "--stats-json"]).arg(&stats);
        let mut program = Talking::start(command.args(flags).stdout(Stdio::null()));
        for _ in interfaces.split(',') {
            program.wait_to_say("recording");
        }
        Self { program, stats }
    }

    /// Starts a command that records one interface, with its statistics in a directory, and waits
    /// until it records.
    pub fn of(mut command: Command, dir: &Path) -> Self {
        let stats = dir.join("stats.json");
        let mut program = Talking::start(command.arg("--stats-json").arg(&stats));
        program.wait_to_say("recording");
        Self { program, stats }
    }

    /// Waits for a line that contains something.
    pub fn wait_to_say(&mut self, what: &str) -> String {
        self.program.wait_to_say(what)
    }

    pub fn signal(&self, signal: Signal) {
        self.program.process.signal(signal);
    }

    /// Ends it without a chance to do anything.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.program.end();
    }

    /// The counters as of the last whole line of the statistics.
    pub fn now(&self) -> Value {
        last_json(&self.stats)
    }

    /// Waits until so many packets are captured, or more.
    ///
    /// # Panics
    /// With the counters, where they do not come.
    pub fn wait_for_captured(&self, packets: u64) {
        let came = || self.now()["captured"].as_u64() >= Some(packets);
        assert!(
            is_done_within(LIMIT, came),
            "waited in vain for {packets} packets: {}",
            self.now()
        );
    }

    /// Ends it as Ctrl-C does, and returns its last counters.
    pub fn stop(self) -> Value {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Waits until it ends by itself, all well.
    pub fn finish(mut self) -> Value {
        let (status, said) = self.program.end();
        assert!(status.success(), "{status}: {said:#?}");
        self.finish_anyhow()
    }

    /// Waits until it ends by itself, well or not.
    pub fn finish_anyhow(mut self) -> Value {
        let (_, said) = self.program.end();
        let stats = last_json(&self.stats);
        assert_eq!(stats["final"], true, "the last statistics are final: {said:#?}");
        stats
    }
}

/// `seen = captured + filtered + cutoff + dropped`, for the whole and for each interface.
pub fn assert_accounted(stats: &Value) {
    let interfaces = stats["interfaces"].as_object().expect("a map");
    for s in interfaces.values().chain([stats]) {
        let n = |key| number(s, key);
        assert_eq!(
            n("seen"),
            n("captured") + n("filtered") + n("cutoff") + n("dropped_ring") + n("dropped_other"),
            "{s}"
        );
    }
}

/// A packet as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub interface: u32,
    pub time_ns: i64,
    pub original_len: u32,
    pub flags: u32,
    pub dropped: u64,
    pub shed: u32,
    pub frame: Vec<u8>,
}

/// What a pcapng file holds.
#[derive(Debug, Default)]
pub struct Contents {
    pub interfaces: Vec<Interface>,
    pub packets: Vec<Packet>,
    pub statistics: Vec<Statistics>,
}

impl Contents {
    /// Reads a file to its end, which must be a block's end.
    pub fn of(path: &Path) -> Self {
        let data = fs::read(path).expect("the file is there");
        let mut contents = Self::default();
        for record in Reader::new(&data) {
            match record.unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
                Record::Interface(i) => contents.interfaces.push(i),
                Record::Statistics(s) => contents.statistics.push(s),
                Record::Packet(p) => {
                    let interface = &contents.interfaces[p.interface as usize];
                    contents.packets.push(Packet {
                        interface: p.interface,
                        time_ns: interface.nanoseconds(p.timestamp).expect("a time"),
                        original_len: p.original_len,
                        flags: p.flags,
                        dropped: p.dropped,
                        shed: p.shed,
                        frame: p.frame.to_vec(),
                    });
                }
                Record::Section(_) | Record::Other(_) => {}
            }
        }
        contents
    }

    /// Reads all closed segments of a store.
    pub fn of_store(dir: &Path) -> Self {
        let mut all = Self::default();
        for path in segments(dir) {
            let one = Self::of(&path);
            all.interfaces = one.interfaces;
            all.packets.extend(one.packets);
            all.statistics.extend(one.statistics);
        }
        all
    }

    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.packets.iter().map(|p| p.frame.clone()).collect()
    }

    /// All packets that were announced as lost before one that was kept.
    pub fn announced(&self) -> u64 {
        self.packets.iter().map(|p| p.dropped).sum()
    }
}

/// The closed segments of a store, oldest first.
pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    found.retain(|p| p.extension().is_some_and(|e| e == "pcapng"));
    found.sort();
    found
}

/// A UDP packet over IPv4 from 10.213.0.1 to 10.213.0.2, port 9, in an Ethernet frame of `len`
/// bytes to `to`, whose payload tells `number`.
pub fn frame(to: [u8; 6], len: usize, number: u32) -> Vec<u8> {
    UdpFrame { to, len, number, ..UdpFrame::default() }.bytes()
}
