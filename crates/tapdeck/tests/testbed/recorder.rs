//! A recorder under test, what it wrote, and frames to feed it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_packet::pcapng::{Interface, Reader, Record, Statistics};
use tapdeck_testkit::wait::LIMIT;

use super::{Net, Running};

/// `tapdeck record` in namespace `b`.
pub struct Recorder {
    pub process: Running,
    pub lines: Receiver<String>,
    said: Vec<String>,
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

    fn start_with(net: &Net, interfaces: &str, dir: &Path, flags: &[&str]) -> Self {
        let stats = dir.join("stats.json");
        let mut command = net.command(&net.b, env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["record", "-i", interfaces, "--stats-json"]).arg(&stats);
        command.args(flags).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program was built");
        let err = child.stderr.take().expect("piped above");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut recorder = Self { process: Running(child), lines, said: Vec::new(), stats };
        for _ in interfaces.split(',') {
            recorder.wait_to_say("recording");
        }
        recorder
    }

    /// Waits for a line that contains something.
    pub fn wait_to_say(&mut self, what: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(LIMIT) else {
                panic!("it never said {what:?} but: {:#?}", self.said);
            };
            self.said.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }

    /// The counters as of the last whole line of the statistics.
    pub fn now(&self) -> Value {
        let text = fs::read_to_string(&self.stats).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().last().and_then(|l| serde_json::from_str(l).ok()).unwrap_or(Value::Null)
    }

    /// Ends it as Ctrl-C does, and gives back its last counters.
    pub fn stop(self) -> Value {
        self.process.signal(Signal::INT);
        self.finish()
    }

    /// Waits until it ends by itself, all well.
    pub fn finish(mut self) -> Value {
        let status = self.process.0.wait().expect("it was started");
        assert!(status.success(), "{status}: {:#?}", self.lines.iter().collect::<Vec<_>>());
        self.finish_anyhow()
    }

    /// Waits until it ends by itself, well or not.
    pub fn finish_anyhow(mut self) -> Value {
        self.process.0.wait().expect("it was started");
        self.said.extend(self.lines.iter());
        let stats = self.now();
        assert_eq!(stats["final"], true, "the last statistics are final: {:#?}", self.said);
        stats
    }
}

/// A counter of the statistics.
pub fn number(stats: &Value, key: &str) -> u64 {
    stats[key].as_u64().unwrap_or_else(|| panic!("{key} in {stats}"))
}

/// `seen = captured + filtered + dropped`, for the whole and for each interface.
pub fn assert_accounted(stats: &Value) {
    let interfaces = stats["interfaces"].as_object().expect("a map");
    for s in interfaces.values().chain([stats]) {
        let n = |key| number(s, key);
        assert_eq!(
            n("seen"),
            n("captured") + n("filtered") + n("dropped_ring") + n("dropped_other"),
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

/// A UDP packet over IPv4 from 10.213.0.1 to 10.213.0.2 in an Ethernet frame of `len` bytes
/// to `mac`, whose payload tells `number`. Correct header checksum, no UDP checksum.
pub fn frame(mac: [u8; 6], len: usize, number: u32) -> Vec<u8> {
    let mut f = Vec::with_capacity(len);
    f.extend(mac);
    f.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    f.extend(((len - 14) as u16).to_be_bytes());
    f.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 213, 0, 1, 10, 213, 0, 2]);
    let words = f[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    f[24..26].copy_from_slice(&checksum.to_be_bytes());
    f.extend([0, 9, 0, 9]);
    f.extend(((len - 34) as u16).to_be_bytes());
    f.extend([0, 0]);
    f.extend(number.to_be_bytes());
    while f.len() < len {
        f.push((f.len() as u32 * 31 + number) as u8);
    }
    f.truncate(len);
    f
}
