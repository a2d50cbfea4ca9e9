//! Recording, held against the peers, in one run: `make bench`, or `cargo bench -p tapdeck --bench
//! record -- --runs 5`.
//!
//! A generator on core 0 floods one end of a veth pair; the capture process sits on core 1 and
//! writes to disk. Methods take turns, so that what else the machine does hits all alike. Prints
//! medians and spreads as a Markdown table. It measures and asserts nothing.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Options, Spread, frame};
use rustix::process::Signal;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::{Drain, Flood};
use tapdeck_testkit::{Namespace, Net, Running};

#[derive(Clone, Debug)]
enum Method {
    Ceiling,
    Tapdeck { hook: &'static str, without: Option<&'static str> },
    Peer { name: &'static str, args: &'static str },
}

impl Method {
    fn name(&self) -> String {
        match self {
            Self::Ceiling => "XDP_DROP alone".into(),
            Self::Tapdeck { hook, without: None } => format!("tapdeck {hook}"),
            Self::Tapdeck { hook, without: Some(part) } => format!("tapdeck {hook}, no {part}"),
            Self::Peer { name, .. } => (*name).into(),
        }
    }

    /// Whether the receiver takes frames without GRO.
    fn native(&self) -> bool {
        matches!(self, Self::Ceiling | Self::Tapdeck { hook: "xdp" | "afxdp", .. })
    }
}

const PEERS: [(&str, &str); 4] = [
    ("tcpdump", "-i vb -n -B 65536 -w FILE.pcap"),
    ("dumpcap", "-q -i vb -B 64 -w FILE.pcapng"),
    ("netsniff-ng", "--in vb --out FILE.pcap --silent --ring-size 64MiB"),
    ("daemonlogger", "-i vb -l DIR -n log"),
];

fn methods() -> Vec<Method> {
    let tapdeck = |hook, without| Method::Tapdeck { hook, without };
    let mut m = vec![
        Method::Ceiling,
        tapdeck("xdp", None),
        tapdeck("xdp", Some("index")),
        tapdeck("xdp", Some("store")),
    ];
    let others = ["tcx", "netfilter", "xdp-generic", "tpacket", "recv", "afxdp"];
    m.extend(others.map(|hook| tapdeck(hook, None)));
    m.extend(PEERS.map(|(name, args)| Method::Peer { name, args }));
    m
}

/// The few that matter most.
fn main_methods() -> Vec<Method> {
    let mut m = methods();
    let those = ["XDP_DROP alone", "tapdeck xdp", "tapdeck xdp, no index", "tcpdump"];
    m.retain(|m| those.contains(&m.name().as_str()));
    m
}

/// One run of one method.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: u64,
    stored: u64,
    seconds: f64,
    /// CPU time of the capture process, ms.
    cpu_ms: f64,
    switches: f64,
    rss_mib: f64,
}

fn main() {
    let options = Options::new(3_000_000);
    let packets = options.packets as u32;
    tapdeck_testkit::kernel::need_root();
    if !options.tiny {
        print_machine();
    }

    let flat_out =
        Load { size: 60, gap_ns: 0, packets, sender: Sender::Copies, own_core: false, turns: 1 };
    let large = Load { size: 1514, gap_ns: 1514 * 8 / 9, packets: packets / 3 * 2, ..flat_out };
    let bursts = Load { sender: Sender::Bursts(60_000), ..flat_out };
    // The smallest differences are looked for here.
    let gen_flat_out = Load { sender: Sender::Gen, turns: 4, ..flat_out };
    let two_cores = Load { own_core: true, ..flat_out };
    for (load, methods) in [
        (flat_out, methods()),
        (large, methods()),
        (gen_flat_out, main_methods()),
        (bursts, main_methods()),
        (two_cores, main_methods()),
    ] {
        let mut methods = methods;
        if options.tiny {
            methods.retain(|m| !matches!(m, Method::Peer { .. }));
        }
        methods.retain(|m| matches!(m, Method::Ceiling) || options.wants("--only", &m.name()));
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); methods.len()];
        for _ in 0..options.runs * load.turns {
            for (method, samples) in methods.iter().zip(&mut samples) {
                match measure(method, &load) {
                    Ok(sample) => samples.push(sample),
                    Err(why) => eprintln!("{}: {why}", method.name()),
                }
            }
        }
        print(&load, &methods, &samples);
    }
}

fn print_machine() {
    common::print_machine(&["tcpdump", "wireshark-common", "netsniff-ng", "daemonlogger"]);
    for (name, args) in PEERS {
        println!("- `{name} {args}`");
    }
}

/// What is sent.
#[derive(Clone, Copy)]
struct Load {
    size: u32,
    gap_ns: u32,
    packets: u32,
    sender: Sender,
    /// How many times as often as others it is measured.
    turns: usize,
    /// Whether packets are received on core 1, and not by the core that sends them.
    own_core: bool,
}

/// Who sends. Only the time in which the kernel sends counts where a BPF program does: to set up a
/// run of it takes about 25 ms, in which the kernel waits for ticks of its clock, so that a run
/// which ends behind a tick seems to take a tick longer.
#[derive(Clone, Copy)]
enum Sender {
    /// A BPF program that redirects copies of a frame, all in one run of it.
    Copies,
    /// So many in each run of it.
    Bursts(u32),
    /// `tapdeck gen`, 100 flows.
    Gen,
}

fn measure(method: &Method, load: &Load) -> Result<Sample, String> {
    // The disk is done with what the last method left.
    let _ = Command::new("sync").status();
    std::thread::sleep(Duration::from_millis(500));
    let net = Net::new();
    net.addresses();
    if !method.native() {
        net.b.run("ethtool -K vb gro on");
    }
    let dir = tempfile::tempdir_in(target_dir()).map_err(|e| e.to_string())?;
    let index = |at: &Namespace, dev: &str| at.inside(|| Interface::find(dev).expect("made above"));
    let from = index(&net.a, "va");
    let to = index(&net.b, "vb");
    let mac = |i: &Interface| i.mac.expect("veth has one");
    let frame = frame(load.size, mac(&from), mac(&to));
    let drain = match method {
        Method::Ceiling => {
            Some(net.b.inside(|| Drain::attach(to.index)).map_err(|e| e.to_string())?)
        }
        _ => None,
    };
    if load.own_core {
        common::receive_on_core_1(&net);
    }
    let mut recorder = start(method, &net, dir.path())?;
    let pid = recorder.as_ref().map(|r| r.0.id());
    let before = pid.map(used).unwrap_or_default();
    let rx_before = index(&net.b, "vb").counters;

    let seconds = match load.sender {
        Sender::Copies => flood(&net, from.index, &frame, load, load.packets)?,
        Sender::Bursts(packets) => flood(&net, from.index, &frame, load, packets)?,
        Sender::Gen => generate(&net, load)?,
    }
    .as_secs_f64();
    // What was sent and reached the far end; the rest never left the generator.
    let sent = index(&net.b, "vb").counters.since(rx_before).rx_packets;
    drop(drain);
    // What was in flight arrives; then the start and the end of the process are not in the figures.
    std::thread::sleep(Duration::from_millis(300));
    let after = pid.map(used).unwrap_or_default();
    if let Some(recorder) = recorder.take() {
        recorder.signal(Signal::INT);
        let mut child = recorder;
        child.0.wait().map_err(|e| e.to_string())?;
    }
    let stored = match method {
        Method::Ceiling => sent,
        Method::Tapdeck { .. } => {
            let stats =
                fs::read_to_string(dir.path().join("stats.json")).map_err(|e| e.to_string())?;
            let last: serde_json::Value = stats
                .lines()
                .last()
                .and_then(|l| serde_json::from_str(l).ok())
                .ok_or("no statistics")?;
            last["captured"].as_u64().unwrap_or(0)
        }
        Method::Peer { .. } => count(dir.path())?,
    };
    Ok(Sample {
        sent,
        stored: stored.min(sent),
        seconds,
        cpu_ms: after.cpu_ms - before.cpu_ms,
        switches: (after.switches - before.switches) / seconds,
        rss_mib: after.rss_mib,
    })
}

/// Floods the interface by runs of so many packets each. Returns how long the kernel says that it
/// sent.
fn flood(net: &Net, ifindex: u32, frame: &[u8], load: &Load, run: u32) -> Result<Duration, String> {
    net.a.inside(|| {
        common::stay_on_core(0).map_err(|e| e.to_string())?;
        let flood = Flood::new(ifindex, frame, 42, load.gap_ns).map_err(|e| e.to_string())?;
        let mut left = load.packets;
        let mut sending = Duration::ZERO;
        while left > 0 {
            let now = left.min(run);
            sending += flood.send(now).map_err(|e| e.to_string())?;
            left -= now;
        }
        Ok(sending)
    })
}

/// Sends by `tapdeck gen`. Returns how long it took.
fn generate(net: &Net, load: &Load) -> Result<Duration, String> {
    let Load { size, packets, .. } = load;
    let line = format!(
        "-c 0 {} gen -i va --cpu 0 --json - --size {size} --flows 100 --count {packets}",
        env!("CARGO_BIN_EXE_tapdeck")
    );
    let out = net.a.command("taskset").args(line.split_whitespace()).output();
    let out = out.map_err(|e| e.to_string())?;
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
    let seconds = said["elapsed_s"].as_f64().ok_or("it does not say how long it took")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Beside the build, so that recordings land on the disk that is measured and not on a tmpfs.
fn target_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

fn start(method: &Method, net: &Net, dir: &Path) -> Result<Option<Running>, String> {
    let path = |name: &str| dir.join(name).display().to_string();
    let mut words = vec!["-c".to_owned(), "1".to_owned()];
    match method {
        Method::Ceiling => return Ok(None),
        Method::Tapdeck { hook, without } => {
            words.push(env!("CARGO_BIN_EXE_tapdeck").into());
            let to = match without {
                Some("store") => "--no-store".into(),
                Some(part) => format!("--dir {} --no-{part}", path("store")),
                None => format!("--dir {}", path("store")),
            };
            let deliver =
                if *hook == "tpacket" || *hook == "recv" { "" } else { "--deliver consume" };
            let line = format!(
                "record -i vb --hook {hook} {deliver} {to} --stats-json {}",
                path("stats.json")
            );
            words.extend(line.split_whitespace().map(str::to_owned));
        }
        Method::Peer { name, args } => {
            words.push((*name).into());
            let args = args.replace("FILE", &path("out")).replace("DIR", &path(""));
            words.extend(args.split_whitespace().map(str::to_owned));
        }
    }
    let mut command = net.b.command("taskset");
    command.args(words).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().map_err(|e| e.to_string())?);
    // Each says something when it listens; two that do not are given a second.
    let mut said = [0; 64];
    if matches!(method, Method::Peer { name: "netsniff-ng" | "daemonlogger", .. }) {
        std::thread::sleep(Duration::from_secs(1));
    } else {
        let out = running.0.stderr.as_mut().ok_or("no standard error")?;
        let n = out.read(&mut said).map_err(|e| e.to_string())?;
        if n == 0 {
            return Err("it ended at once".into());
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    if let Ok(Some(status)) = running.0.try_wait() {
        return Err(format!("it ended at once: {status}"));
    }
    Ok(Some(running))
}

/// What a process has used so far, all its threads together.
#[derive(Default)]
struct Used {
    cpu_ms: f64,
    switches: f64,
    rss_mib: f64,
}

fn used(pid: u32) -> Used {
    let number = |text: &str, key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        let value = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
        value.unwrap_or(0.0)
    };
    let rss_mib = common::resident_mib(pid).unwrap_or_default();
    let mut used = Used { rss_mib, ..Used::default() };
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        used.cpu_ms += number(&schedstat, "") / 1e6;
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        used.switches += number(&status, "voluntary_ctxt_switches:");
    }
    used
}

/// Packets in the files that a peer left.
fn count(dir: &Path) -> Result<u64, String> {
    let mut sum = 0;
    for entry in fs::read_dir(dir).map_err(|e| e.to_string())? {
        let path = entry.map_err(|e| e.to_string())?.path();
        let out =
            Command::new("capinfos").arg("-cMTr").arg(&path).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout);
        let n = text.split_whitespace().last().and_then(|n| n.parse::<u64>().ok());
        sum += n.ok_or_else(|| format!("capinfos cannot count {}", path.display()))?;
    }
    Ok(sum)
}

fn print(load: &Load, methods: &[Method], samples: &[Vec<Sample>]) {
    let rate = |s: &Sample| s.stored as f64 / s.seconds;
    let ceiling = Spread::of(samples[0].iter().map(rate)).median;
    let how = match (load.gap_ns, load.own_core, load.sender) {
        (_, _, Sender::Bursts(packets)) => format!("while bursts of {packets} are sent"),
        (_, _, Sender::Gen) => "flat out by `tapdeck gen`".to_owned(),
        (0, true, _) => "flat out, received on the other core".to_owned(),
        (0, false, _) => "flat out".to_owned(),
        (gap, ..) => format!("at {:.1} Gbit/s", f64::from(load.size) * 8.0 / f64::from(gap)),
    };
    println!("\n### {}-byte frames, {how}\n", load.size);
    println!(
        "| method | stored, M/s | min-max | Gbit/s | of the ceiling | lost, % | CPU, ms per M sent | context switches/s | resident, MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (method, samples) in methods.iter().zip(samples) {
        if samples.is_empty() {
            println!("| {} | did not run | | | | | | | |", method.name());
            continue;
        }
        let rates = Spread::of(samples.iter().map(rate));
        let of = |f: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(f)).median;
        let lost = of(&|s| 100.0 * (1.0 - s.stored as f64 / s.sent as f64));
        println!(
            "| {} | {:.2} | {:.2}-{:.2} | {:.2} | {:.2} | {lost:.2} | {:.0} | {:.0} | {:.0} |",
            method.name(),
            rates.median / 1e6,
            rates.min / 1e6,
            rates.max / 1e6,
            rates.median * f64::from(load.size) * 8.0 / 1e9,
            rates.median / ceiling,
            of(&|s| s.cpu_ms * 1e6 / s.sent as f64),
            of(&|s| s.switches),
            of(&|s| s.rss_mib),
        );
    }
}
