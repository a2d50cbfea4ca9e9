//! A veth pair that is flooded, and what captures at its far end.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::{Drain, Flood};

use crate::common;
use tapdeck_testkit::process::last_json;
use tapdeck_testkit::{Namespace, Net, Running};

/// Source and destination address of a frame, as they lie in it.
pub type Pair = [u8; 8];

/// What is sent.
#[derive(Clone, Default)]
pub struct Load {
    pub size: u32,
    pub packets: u64,
    /// 0: as fast as it goes.
    pub gap_ns: u32,
    /// Addresses that the frames take in turn, a power of two of them; the frame's own where there
    /// are none.
    pub pairs: Vec<Pair>,
    /// The frames' source MAC, where it is not the interface's.
    pub source_mac: Option<[u8; 6]>,
}

/// What was sent and reached the far end, and how long that took.
#[derive(Clone, Copy)]
pub struct Sent {
    pub packets: u64,
    pub seconds: f64,
}

/// What one run found.
#[derive(Clone, Copy)]
pub struct Sample {
    pub sent: Sent,
    pub captured: u64,
    pub filtered: u64,
    /// CPU time of the capture process while packets came, ms.
    pub cpu_ms: f64,
    /// Time of the hook program for one packet, ns, while there is a [`HookClock`].
    pub hook_ns: f64,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        self.sent.packets as f64 / self.sent.seconds
    }

    pub fn lost_percent(&self) -> f64 {
        let kept = self.captured + self.filtered;
        100.0 * (1.0 - kept as f64 / self.sent.packets as f64)
    }
}

/// Two namespaces, and a directory beside the build, so that nothing lands on a tmpfs.
pub struct Bed {
    pub net: Net,
    pub dir: tempfile::TempDir,
}

impl Bed {
    /// `native`: the far end takes frames by an XDP program of its own; else GRO makes it take
    /// them.
    pub fn new(native: bool) -> Self {
        let net = Net::new();
        net.addresses();
        if !native {
            net.b.run("ethtool -K vb gro on");
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("beside the build");
        Self { net, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn interface(at: &Namespace, name: &str) -> Interface {
        at.inside(|| Interface::find(name).expect("made above"))
    }

    /// Sends from core 0.
    pub fn flood(&self, load: &Load) -> Result<Sent, String> {
        let from = Self::interface(&self.net.a, "va");
        let to = Self::interface(&self.net.b, "vb");
        let mac = |i: &Interface| i.mac.expect("veth has one");
        let frame =
            common::frame(load.size, load.source_mac.unwrap_or_else(|| mac(&from)), mac(&to));
        let seconds = self.net.a.inside(|| -> Result<f64, String> {
            common::stay_on_core(0).map_err(|e| e.to_string())?;
            let flood = if load.pairs.is_empty() {
                Flood::new(from.index, &frame, 42, load.gap_ns)
            } else {
                Flood::with_addresses(from.index, &frame, 42, load.gap_ns, &load.pairs)
            };
            let flood = flood.map_err(|e| e.to_string())?;
            let sending = flood.send(load.packets as u32).map_err(|e| e.to_string())?;
            Ok(sending.as_secs_f64())
        })?;
        let received = Self::interface(&self.net.b, "vb").counters.since(to.counters).rx_packets;
        Ok(Sent { packets: received, seconds })
    }

    /// A program on core 1, in the receiving namespace; waits until it has said something.
    pub fn start(
        &self,
        program: &str,
        words: &[String],
        env: &[(&str, String)],
    ) -> Result<Running, String> {
        let mut command = self.net.b.command("taskset");
        command.args(["-c", "1", program]).args(words);
        command.envs(env.iter().map(|(k, v)| (*k, v.as_str())));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().map_err(|e| e.to_string())?);
        let err = running.0.stderr.as_mut().ok_or("no standard error")?;
        let mut said = vec![0; 4096];
        let n = err.read(&mut said).map_err(|e| e.to_string())?;
        std::thread::sleep(Duration::from_millis(300));
        if let Ok(Some(status)) = running.0.try_wait() {
            let said = String::from_utf8_lossy(&said[..n]);
            return Err(format!("it ended at once ({status}): {}", said.trim()));
        }
        Ok(running)
    }

    pub fn tapdeck(&self, words: &[String]) -> Result<Running, String> {
        self.start(env!("CARGO_BIN_EXE_tapdeck"), words, &[])
    }

    /// One run of `tapdeck record` on vb, with these flags and, where there is one, this filter.
    pub fn record(&self, flags: &str, filter: Option<&str>, load: &Load) -> Result<Sample, String> {
        let stats = self.path("stats.json");
        let line = format!("record -i vb {flags} --no-store --stats-json {}", stats.display());
        let mut words = words(&line);
        words.extend(filter.into_iter().flat_map(|f| ["--filter".to_owned(), f.to_owned()]));
        let recorder = self.tapdeck(&words)?;
        let before = cpu_ms(recorder.0.id());
        let sent = self.flood(load)?;
        std::thread::sleep(Duration::from_millis(200));
        let cpu_ms = cpu_ms(recorder.0.id()) - before;
        let hook_ns = hook_ns(recorder.0.id());
        end(recorder)?;
        let last = last_object(&stats)?;
        let number = |key: &str| last[key].as_u64().unwrap_or(0);
        Ok(Sample {
            sent,
            captured: number("captured").min(sent.packets),
            filtered: number("filtered"),
            cpu_ms,
            hook_ns,
        })
    }

    /// The least that a receiver can do.
    pub fn drop_all(&self, load: &Load) -> Result<Sample, String> {
        let index = Self::interface(&self.net.b, "vb").index;
        let drain = self.net.b.inside(|| Drain::attach(index));
        let _drain = drain.map_err(|e| e.to_string())?;
        let sent = self.flood(load)?;
        Ok(Sample { sent, captured: 0, filtered: sent.packets, cpu_ms: 0.0, hook_ns: f64::NAN })
    }
}

/// The words of a command line without quotes.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Ends a program as Ctrl-C does. Returns what else it said.
pub fn end(mut running: Running) -> Result<String, String> {
    running.signal(Signal::INT);
    let mut said = String::new();
    if let Some(err) = running.0.stderr.as_mut() {
        err.read_to_string(&mut said).map_err(|e| e.to_string())?;
    }
    running.0.wait().map_err(|e| e.to_string())?;
    Ok(said)
}

/// The last object that `--stats-json` wrote.
pub fn last_object(path: &Path) -> Result<serde_json::Value, String> {
    Some(last_json(path)).filter(|last| !last.is_null()).ok_or_else(|| "no statistics".to_owned())
}

/// CPU time of a process and its threads so far.
pub fn cpu_ms(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        schedstat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0)
    };
    tasks.map(of).sum::<f64>() / 1e6
}

/// Has the kernel measure the time that BPF programs take, which costs every run of one two looks
/// at the clock, for as long as this lives (`kernel.bpf_stats_enabled`,
/// Documentation/admin-guide/sysctl/kernel.rst).
pub struct HookClock(String);

const BPF_STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl HookClock {
    pub fn start() -> Result<Self, String> {
        let before = fs::read_to_string(BPF_STATS).map_err(|e| e.to_string())?;
        fs::write(BPF_STATS, "1").map_err(|e| e.to_string())?;
        Ok(Self(before))
    }
}

impl Drop for HookClock {
    fn drop(&mut self) {
        let _ = fs::write(BPF_STATS, &self.0);
    }
}

/// Mean time of the program that has run most often of those that a process holds; not a number
/// where none was measured.
pub fn hook_ns(pid: u32) -> f64 {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let of = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let number = |key: &str| -> Option<f64> {
            text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse().ok())
        };
        Some((number("run_cnt:")?, number("run_time_ns:")?))
    };
    let most = files.filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0));
    most.map_or(f64::NAN, |(runs, ns)| ns / runs)
}

/// A named way of capturing, and what its runs found.
pub struct Series {
    pub name: String,
    pub samples: Vec<Sample>,
}

/// Runs each of `ways` as often as asked, in turns. A way that cannot run is told, and has fewer
/// samples.
pub fn in_turns(
    runs: usize,
    names: &[String],
    mut run: impl FnMut(usize) -> Result<Sample, String>,
) -> Vec<Series> {
    let mut all: Vec<Series> =
        names.iter().map(|n| Series { name: n.clone(), samples: Vec::new() }).collect();
    for _ in 0..runs {
        for (i, series) in all.iter_mut().enumerate() {
            match run(i) {
                Ok(sample) => series.samples.push(sample),
                Err(why) => eprintln!("{}: {why}", series.name),
            }
        }
    }
    all
}

/// A table of rates, each beside that of the series `base`.
pub fn print(title: &str, all: &[Series], base: usize) {
    use common::{Spread, cell, range};
    let spread = |s: &Series, f: &dyn Fn(&Sample) -> f64| Spread::of(s.samples.iter().map(f));
    let base_rate = spread(&all[base], &Sample::rate).median;
    println!("\n### {title}\n");
    common::table(&[
        "",
        "M packets/s",
        "min-max",
        "ns a packet",
        &format!("of \"{}\"", all[base].name),
        "lost, %",
        "CPU, ms per M sent",
    ]);
    for series in all {
        let rate = spread(series, &Sample::rate);
        common::row(&[
            series.name.clone(),
            cell(rate.median / 1e6, 2),
            range(rate, 1e6, 2),
            cell(1e9 / rate.median, 1),
            cell(rate.median / base_rate, 2),
            cell(spread(series, &Sample::lost_percent).median, 2),
            cell(spread(series, &|s| s.cpu_ms * 1e6 / s.sent.packets as f64).median, 0),
        ]);
    }
}
