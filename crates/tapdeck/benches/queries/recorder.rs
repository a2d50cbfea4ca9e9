//! The recorders that are compared: how each is started, and what it left behind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::process::{Group, cpu_so_far_ms, wait_and_watch_memory};
use super::words;
use crate::common;
use tapdeck_testkit::Net;

/// What records: tapdeck with these flags, or the peer with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Tapdeck(&'static str),
    Stenotype,
}

/// 64 MiB of ring and a second until the last block is written, as tapdeck has; no other user and
/// no system call filter, for which it asks by default.
pub const STENOTYPE: &str = "--iface=vb --threads=1 --blocks=64 --aiops=32 --blockage_sec=1 \
                             --uid=root --gid=root --seccomp=none -v -v";

impl Method {
    /// By the hook at the driver, with an index.
    pub const INDEXED: Self = Self::Tapdeck("");

    pub fn name(self) -> String {
        match self {
            Self::Tapdeck("") => "tapdeck xdp".into(),
            Self::Tapdeck(flags) => format!("tapdeck xdp {flags}"),
            Self::Stenotype => "stenotype".into(),
        }
    }

    /// The command, whose store is in `dir`.
    pub fn command(self, dir: &str) -> String {
        match self {
            Self::Tapdeck(flags) => format!(
                "{} record -i vb --hook xdp --deliver consume --dir {dir}/store --stats-json {dir}/stats.json {flags}",
                env!("CARGO_BIN_EXE_tapdeck")
            ),
            Self::Stenotype => format!("stenotype {STENOTYPE} --dir={dir}"),
        }
    }
}

/// A recorder at work on core 1.
pub struct Recorder {
    method: Method,
    dir: PathBuf,
    process: Group,
    started_ms: f64,
}

/// What a recorder stored, and what it took to do so from the moment it listened until everything
/// was on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    pub packets: u64,
    pub cpu_ms: f64,
    pub resident_mib: f64,
    /// From when it was asked to end.
    pub ending_s: f64,
    /// The files with packets.
    pub packet_bytes: u64,
    pub index_bytes: u64,
    /// Of tapdeck, by its own account.
    pub dropped: u64,
    pub ring_used_max: u64,
}

impl Recorder {
    /// Records `vb` into a directory, and listens when this returns.
    pub fn start(method: Method, net: &Net, dir: &Path) -> Result<Self, String> {
        if method == Method::Stenotype {
            // Redirected frames need a receiver with XDP or GRO.
            net.b.run("ethtool -K vb gro on");
            for part in ["PKT0", "IDX0"] {
                fs::create_dir_all(dir.join(part)).map_err(|e| e.to_string())?;
            }
        }
        let log = File::create(dir.join("log")).map_err(|e| e.to_string())?;
        let line = method.command(&dir.display().to_string());
        let mut command = net.b.command("taskset");
        command.args(["-c", "1"]).args(words(&line));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = Group::start(&mut command)?;
        let mut recorder = Self { method, dir: dir.to_owned(), process, started_ms: 0.0 };
        let listens = match method {
            Method::Tapdeck(_) => "recording",
            Method::Stenotype => "starting to process packets",
        };
        recorder.wait_for("start", |log| log.contains(listens))?;
        recorder.started_ms = cpu_so_far_ms(recorder.pid());
        Ok(recorder)
    }

    fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn store(&self) -> PathBuf {
        store(self.method, &self.dir)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn wait_for(&mut self, what: &str, mut done: impl FnMut(&str) -> bool) -> Result<(), String> {
        let begin = Instant::now();
        while !done(&self.log()) {
            let ended = self.process.0.try_wait().map_err(|e| e.to_string())?;
            if let Some(status) = ended {
                return Err(format!("{status}: {}", last_line(&self.log())));
            }
            if begin.elapsed() > Duration::from_secs(120) {
                return Err(format!("no {what} within two minutes: {}", last_line(&self.log())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// stenotype leaves unread what is in the ring when it is asked to end; so it is not asked
    /// before its file has stopped growing for longer than it holds a block back.
    fn wait_until_idle(&mut self) -> Result<(), String> {
        let (dir, mut length, mut since) = (self.dir.join("PKT0"), None, Instant::now());
        self.wait_for("idle disk", |_| {
            let now = total_bytes(&dir).ok();
            if now != length {
                (length, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_millis(1500)
        })
    }

    /// Ends it as Ctrl-C does.
    pub fn end(mut self) -> Result<Recorded, String> {
        let begin = Instant::now();
        if self.method == Method::Stenotype {
            self.wait_until_idle()?;
        }
        let signal = |r: &Self, signal| kill_process(Pid::from_child(&r.process.0), signal);
        signal(&self, Signal::INT).map_err(|e| e.to_string())?;
        let mut resident_mib = f64::NAN;
        if self.method == Method::Stenotype {
            // Version 1.0.1 stays for ever when all is written.
            self.wait_for("end", |log| {
                log.contains("Finishing thread")
                    && log.matches("] Wrote index").count()
                        >= log.matches("Opening packet file").count()
            })?;
            resident_mib = common::resident_mib(self.pid()).unwrap_or(resident_mib);
            signal(&self, Signal::KILL).map_err(|e| e.to_string())?;
        }
        let (used, at_end_mib) = wait_and_watch_memory(&mut self.process.0)?;
        let resident_mib = resident_mib.max(at_end_mib);
        let ending_s = begin.elapsed().as_secs_f64();
        if self.method != Method::Stenotype && !used.well {
            return Err(last_line(&self.log()));
        }
        let mut recorded = Recorded {
            cpu_ms: used.cpu_ms - self.started_ms,
            resident_mib,
            ending_s,
            ..Recorded::default()
        };
        self.read_account(&mut recorded)?;
        Ok(recorded)
    }

    /// What it says of itself, and what its files say.
    fn read_account(&self, recorded: &mut Recorded) -> Result<(), String> {
        match self.method {
            Method::Tapdeck(_) => {
                let stats = self.dir.join("stats.json");
                let text = fs::read_to_string(stats).map_err(|e| e.to_string())?;
                let last = text.lines().last().unwrap_or_default();
                let last: Value = serde_json::from_str(last).map_err(|e| e.to_string())?;
                let number = |key: &str| last[key].as_u64().unwrap_or_default();
                recorded.packets = number("captured");
                recorded.dropped = number("dropped_ring") + number("dropped_other");
                recorded.ring_used_max = number("ring_used_max");
                for (path, bytes) in files(&self.store())? {
                    let packets = path.extension().is_some_and(|e| e == "pcapng" || e == "live");
                    let to = if packets {
                        &mut recorded.packet_bytes
                    } else {
                        &mut recorded.index_bytes
                    };
                    *to += bytes;
                }
            }
            Method::Stenotype => {
                let log = self.log();
                let stored =
                    log.lines().filter_map(|l| l.split_once("Stored ")?.1.split_once(" with "));
                recorded.packets = stored.filter_map(|(n, _)| n.parse::<u64>().ok()).sum();
                recorded.packet_bytes = total_bytes(&self.dir.join("PKT0"))?;
                recorded.index_bytes = total_bytes(&self.dir.join("IDX0"))?;
            }
        }
        Ok(())
    }
}

/// Where a recorder whose directory is `dir` has its store.
pub fn store(method: Method, dir: &Path) -> PathBuf {
    match method {
        Method::Tapdeck(_) => dir.join("store"),
        Method::Stenotype => dir.to_owned(),
    }
}

/// The files in a directory and their lengths, by name.
pub fn files(dir: &Path) -> Result<Vec<(PathBuf, u64)>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        let metadata = entry.metadata().map_err(|e| e.to_string())?;
        if metadata.is_file() {
            found.push((entry.path(), metadata.len()));
        }
    }
    found.sort();
    Ok(found)
}

fn total_bytes(dir: &Path) -> Result<u64, String> {
    Ok(files(dir)?.iter().map(|(_, bytes)| bytes).sum())
}

fn last_line(log: &str) -> String {
    log.lines().last().unwrap_or("it said nothing").trim().to_owned()
}
