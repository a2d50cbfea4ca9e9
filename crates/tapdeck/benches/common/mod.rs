//! What the benchmarks share: their options, the machine they run on, a frame, and statistics.
#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::fs;
use std::process::Command;

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use tapdeck_testkit::Net;
use tapdeck_testkit::frame::{IPV4, UDP, UdpFrame, ethernet, ipv4, udp};

/// How a benchmark runs. What it does not know it passes over, for cargo adds flags of its own.
#[derive(Clone)]
pub struct Options {
    /// `--runs N`: of each method.
    pub runs: usize,
    /// `--packets N`: in a run that goes flat out.
    pub packets: u64,
    /// `--test`: everything once and tiny, as the test suite runs it.
    pub tiny: bool,
    args: Vec<String>,
}

impl Options {
    pub fn new(packets: u64) -> Self {
        let args: Vec<String> = std::env::args().collect();
        let tiny = args.iter().any(|a| a == "--test");
        let mut options = Self { runs: 1, packets: 10_000, tiny, args };
        if !tiny {
            options.runs = options.number("--runs", 5) as usize;
            options.packets = options.number("--packets", packets);
        }
        options
    }

    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.value(name).and_then(|v| v.parse().ok()).unwrap_or(default)
    }

    /// Numbers separated by commas (`--gigabytes 1,4`); what is no number is passed over.
    pub fn numbers(&self, name: &str, default: &str) -> Vec<f64> {
        let list = self.value(name).unwrap_or(default);
        list.split(',').filter_map(|n| n.trim().parse().ok()).collect()
    }

    fn value(&self, name: &str) -> Option<&str> {
        let at = self.args.iter().position(|a| a == name)?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// Whether something is among what was asked for: by its name, or by the first word of it.
    /// All are, if `list` (`--only a,b`) was not given.
    pub fn wants(&self, list: &str, name: &str) -> bool {
        let word = name.split(' ').next();
        self.value(list).is_none_or(|l| l.split(',').any(|o| o == name || Some(o) == word))
    }
}

/// Makes the receiving end's NAPI a kernel thread of its own and pins it to core 1. Gives the
/// threads.
pub fn receive_on_core_1(net: &Net) -> Vec<Pid> {
    net.b.run("ethtool -K vb gro on");
    net.b.shell("echo 1 > /sys/class/net/vb/threaded");
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let Some(pid) = entry.file_name().to_str().and_then(|p| p.parse().ok()) else { continue };
        if comm.starts_with("napi/vb-") {
            let mut core = CpuSet::new();
            core.set(1);
            let _ = sched_setaffinity(Pid::from_raw(pid), &core);
            threads.extend(Pid::from_raw(pid));
        }
    }
    threads
}

/// Says what everything runs on, with the versions of these Debian packages.
pub fn print_machine(packages: &[&str]) {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": "));
    println!(
        "- kernel {}, {} x {}",
        first_line("uname", "-r"),
        cpu.matches("processor\t").count(),
        model.map_or("unknown", |(_, model)| model),
    );
    println!("- {}", first_line("clang", "--version"));
    for package in packages {
        let query = Command::new("dpkg-query").args(["-W", package]).output();
        let line = query.map(|o| String::from_utf8_lossy(&o.stdout).trim().replace('\t', " "));
        println!("- {}", line.unwrap_or_else(|_| format!("{package}: unknown")));
    }
}

fn first_line(program: &str, argument: &str) -> String {
    let out = Command::new(program).arg(argument).output();
    let text = out.map(|o| [o.stdout, o.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines()
        .find(|l| !l.trim().is_empty() && !l.starts_with("Running"))
        .unwrap_or("not installed")
        .trim()
        .to_owned()
}

/// Keeps the calling thread on one core.
pub fn stay_on_core(number: usize) -> std::io::Result<()> {
    let mut core = CpuSet::new();
    core.set(number);
    Ok(sched_setaffinity(None, &core)?)
}

/// The most memory that a process had resident so far; `None` once it has ended.
pub fn resident_mib(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

/// A UDP packet for the discard port, `size` bytes long on the wire without checksum.
pub fn frame(size: u32, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let payload = vec![0; size as usize - UdpFrame::NUMBER_AT];
    let (source, destination) = ([10, 213, 0, 1].into(), [10, 213, 0, 2].into());
    ethernet(to, from, &[], IPV4, &ipv4(source, destination, UDP, &udp([9, 9], &payload)))
}

/// Median, least and most of the values; not a number where there are none.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: at(values.len() / 2), min: at(0), max: at(last) }
    }
}

/// The head of a Markdown table.
pub fn table(heads: &[&str]) {
    println!("| {} |", heads.join(" | "));
    println!("|{}", " --- |".repeat(heads.len()));
}

/// A row of a Markdown table.
pub fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// A number for a table, or that there is none.
pub fn cell(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.digits$}") }
}

/// From the least to the most, for a table.
pub fn range(spread: Spread, unit: f64, digits: usize) -> String {
    if spread.median.is_nan() {
        return "-".into();
    }
    format!("{:.digits$} to {:.digits$}", spread.min / unit, spread.max / unit)
}
