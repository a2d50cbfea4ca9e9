//! What recording a packet costs in the kernel: the hook programs alone, and on a cable.
//!
//! `cargo bench -p tapdeck-capture --bench hook -- --json FILE` needs root.
//!
//! - **Alone**: each program is run on a frame inside the kernel, again and again
//!   ([`tapdeck_capture::trial`]). Beside it run a program that does nothing and one that reads the
//!   frame and drops it; what recording costs is what lies above them. The ring is hot (256 KiB,
//!   always in the cache) or cold (256 MiB, walked through). A daemon's program is run with one
//!   group and with eight, each of which has a member with rings of its own: hot ones are of that
//!   size each, cold ones together. Then follows what the machine charges for the things that a
//!   program is made of.
//! - **Blocks' ends**: what it costs that a block becomes complete, from long frames in blocks of
//!   64 KiB and of 256 KiB. A daemon's program then wakes the reader, whose thread runs beside it;
//!   the recorder's does not.
//! - **Live**: a generator floods one end of a cable. The time that a packet takes with a recorder
//!   at the other end, less what it takes with a program that drops it, is what recording costs on
//!   the way. Recorder and dropper take turns.
//!
//! Figures are medians; they differ between machines. It measures and asserts nothing, but for
//! `--test`, which runs everything once and tiny.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::flows::MAX_CUTOFF;
use tapdeck_capture::interface::Interface;
use tapdeck_capture::rules::Compiled;
use tapdeck_capture::transmit::{Drain, Flood};
use tapdeck_capture::trial::{CHARGES, Charge, Duties, Trial};
use tapdeck_capture::{Capture, Clock, Config, Deliver, Hook, Stamps};
use tapdeck_packet::ring::Ring;
use tapdeck_packet::rules::image::Options as ImageOptions;
use tapdeck_packet::rules::{Action, Rule, RuleSet};
use tapdeck_testkit::frame::{IPV4, TCP, UDP, ethernet, ipv4, tcp, udp};
use tapdeck_testkit::kernel::need_root;
use tapdeck_testkit::{Net, SplitMix64};

/// Bytes of frame.
const SIZES: [usize; 6] = [60, 128, 256, 594, 1514, 9000];
/// The hooks whose programs write into rings, each program once.
const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::Tcx, Hook::Netfilter];
/// The hooks whose daemon's program can be tried: a run at netfilter comes from no interface, and
/// that program asks from which.
const GROUP_HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
/// The memory of a ring that stays in the cache, and of one that does not.
const HOT: u64 = 256 << 10;
const COLD: u64 = 256 << 20;
/// The smallest blocks that there can be, and larger ones.
const SMALL_BLOCK: u64 = 64 << 10;
const LARGE_BLOCK: u64 = 256 << 10;
/// Signatures of the rule set.
const SIGNATURES: u64 = 26;

struct Options {
    runs: usize,
    /// Runs of a program in one measurement.
    times: u32,
    /// Rounds of dropping, recording and dropping.
    pairs: usize,
    /// Packets of a live run.
    packets: u32,
    /// Bytes of the ring that does not stay in the cache.
    cold: u64,
    json: Option<String>,
}

impl Options {
    fn new() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let value = |name: &str| {
            let at = args.iter().position(|arg| arg == name)?;
            args.get(at + 1).cloned()
        };
        let number =
            |name: &str, default: u32| value(name).and_then(|v| v.parse().ok()).unwrap_or(default);
        let json = value("--json");
        if args.iter().any(|arg| arg == "--test") {
            return Self { runs: 1, times: 100, pairs: 1, packets: 10_000, cold: 4 * HOT, json };
        }
        Self {
            runs: number("--runs", 15) as usize,
            times: number("--times", 20_000),
            pairs: number("--pairs", 9) as usize,
            packets: number("--packets", 3_000_000),
            cold: COLD,
            json,
        }
    }
}

/// One line of the result, as `--json` writes it.
struct Row {
    hook: &'static str,
    program: &'static str,
    bytes: usize,
    ring: &'static str,
    ns: Spread,
    ns_empty: f64,
    ns_read_drop: f64,
}

/// The median of some figures, and the least and the greatest of them.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let n = values.len();
        // Of an even number, the mean of the two in the middle.
        let median = f64::midpoint(at(n.saturating_sub(1) / 2), at(n / 2));
        Self { median, min: at(0), max: at(n.wrapping_sub(1)) }
    }
}

fn main() {
    need_root();
    let options = Options::new();
    let mut out = String::new();
    let before = stay_on_core(0);
    charges(&options, &mut out);
    let rows = alone(&options, &mut out);
    ends(&options, &mut out);
    let _ = sched_setaffinity(None, &before);
    live(&options, &mut out);
    let _ = std::io::stdout().write_all(out.as_bytes());
    if let Some(file) = &options.json {
        std::fs::write(file, json(&rows)).expect("the file can be written");
    }
}

fn json(rows: &[Row]) -> String {
    let list = rows.iter().map(|row| {
        serde_json::json!({
            "hook": row.hook,
            "program": row.program,
            "bytes": row.bytes,
            "ring": row.ring,
            "ns": row.ns.median,
            "ns_empty": row.ns_empty,
            "ns_read_drop": row.ns_read_drop,
        })
    });
    let list: Vec<_> = list.collect();
    format!("{:#}\n", serde_json::Value::from(list))
}

/// What the machine charges for what programs are made of.
fn charges(options: &Options, out: &mut String) {
    let frame = frame(60);
    let empty = Trial::of_nothing(Hook::Xdp).expect("the program loads");
    let _ = writeln!(
        out,
        "### What the machine charges, ns\n\n| for a | ns | min-max |\n| --- | --- | --- |"
    );
    for charge in Charge::ALL {
        let trial = Trial::of_charge(charge).expect("the program loads");
        let times = options.times / 4 + 1;
        let each = (0..options.runs).map(|_| {
            let ns = |trial: &Trial| trial.run(&frame, times).expect("the program runs");
            (ns(&trial) - ns(&empty)) / f64::from(CHARGES)
        });
        let each = Spread::of(each.collect());
        let _ = writeln!(
            out,
            "| {} | {:.1} | {:.1}-{:.1} |",
            charge.name(),
            each.median,
            each.min,
            each.max
        );
    }
}

/// The program that finds of each packet that its flow may have more.
const BELOW_CUTOFF: &str = "record, cutoff";

/// Loads a program with rings of so many bytes, of each member or, where they are not hot, of all
/// together.
type Load = Box<dyn Fn(bool, u64) -> Trial>;

/// The programs that record at a hook.
fn programs(hook: Hook) -> Vec<(&'static str, Load)> {
    let recorder = |duties: Duties| -> Load {
        Box::new(move |_, bytes| {
            Trial::of_recorder(hook, bytes, SMALL_BLOCK, &duties).expect("the program loads")
        })
    };
    let groups = |count: usize| -> Load {
        Box::new(move |is_hot, bytes| {
            let each = if is_hot { bytes } else { bytes / count as u64 };
            of_groups(hook, each, SMALL_BLOCK, count)
        })
    };
    let by_poll = Duties { clock_by_poll: true, claims: true, ..Duties::default() };
    let cutting =
        |bytes: u32| recorder(Duties { cutoff: NonZeroU32::new(bytes), ..by_poll.clone() });
    let rules = Some(Arc::new(Compiled::new(&rules(), &ImageOptions::default()).expect("it fits")));
    let mut programs = vec![
        ("record", recorder(by_poll.clone())),
        ("record, no claims", recorder(Duties { claims: false, ..by_poll.clone() })),
        ("record, clock packet", recorder(Duties::default())),
        (
            "record, filter",
            recorder(Duties { filter: Some("udp port 9".into()), ..by_poll.clone() }),
        ),
        ("record, rules", recorder(Duties { rules, ..by_poll.clone() })),
        (BELOW_CUTOFF, cutting(MAX_CUTOFF)),
        ("record, cut off", cutting(1)),
    ];
    if GROUP_HOOKS.contains(&hook) {
        programs.extend([("1 group", groups(1)), ("8 groups", groups(8))]);
    }
    programs
}

/// Rules of many signatures, the last of which takes the frames that are sent.
fn rules() -> RuleSet {
    let mut random = SplitMix64(1);
    let mut rule = |i: u64| {
        let source = Ipv4Addr::from(random.draw() as u32);
        let net = ipnet::Ipv4Net::new(source, 8 + i as u8 % 24).expect("a prefix").trunc();
        Rule {
            action: Action::Accept,
            source: Some(net.into()),
            destination: None,
            source_port: None,
            destination_port: None,
            protocol: None,
        }
    };
    let others = (1..SIGNATURES).map(&mut rule);
    let ours = Rule {
        action: Action::Accept,
        source: Some("10.213.0.1/32".parse().expect("an address")),
        destination: None,
        source_port: None,
        destination_port: Some(9.into()),
        protocol: None,
    };
    others.chain([ours]).collect()
}

/// Every program on every frame, hot and cold, side by side with those that it is compared with.
fn alone(options: &Options, out: &mut String) -> Vec<Row> {
    let mut rows = Vec::new();
    for hook in HOOKS {
        let _ = writeln!(
            out,
            "\n### {hook}, alone, ns\n\n| program | ring | bytes | ns | min-max | empty | read and drop | above read and drop |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
        );
        let (empty, reads) = match (Trial::of_nothing(hook), Trial::of_reading(hook)) {
            (Ok(empty), Ok(reads)) => (empty, reads),
            (Err(e), _) | (_, Err(e)) => {
                let _ = writeln!(out, "| does not load here: {e} | | | | | | | |");
                continue;
            }
        };
        for (program, load) in programs(hook) {
            for (ring, bytes) in [("hot", HOT), ("cold", options.cold)] {
                let trial = load(ring == "hot", bytes);
                for size in SIZES {
                    let frame = if program == BELOW_CUTOFF { syn(size) } else { frame(size) };
                    let row = measure(options, [&empty, &reads, &trial], &frame).map(
                        |[empty, reads, ns]| Row {
                            hook: name(hook),
                            program,
                            bytes: size,
                            ring,
                            ns,
                            ns_empty: empty.median,
                            ns_read_drop: reads.median,
                        },
                    );
                    match row {
                        Ok(row) => {
                            print(out, &row);
                            rows.push(row);
                        }
                        Err(e) => {
                            let _ = writeln!(
                                out,
                                "| {program} | {ring} | {size} | not measured: {e} | | | | |"
                            );
                        }
                    }
                }
                assert_eq!(trial.filtered(), 0, "every frame was to be recorded");
            }
        }
    }
    rows
}

/// Loads a daemon's program. The thread that it wakes stays on another core than the one that
/// programs are tried on.
fn of_groups(hook: Hook, ring_bytes: u64, block_bytes: u64, groups: usize) -> Trial {
    let before = stay_on_core(1);
    let trial = Trial::of_groups(hook, ring_bytes, block_bytes, groups);
    let _ = sched_setaffinity(None, &before);
    trial.expect("the program loads")
}

/// What the end of a block costs: long frames in small blocks and in large ones, of rings that are
/// equally large.
fn ends(options: &Options, out: &mut String) {
    const BYTES: usize = 1514;
    const RING: u64 = 4 * LARGE_BLOCK;
    // `struct epb` of bpf/produce.h, the frame, flags as an option, and the length.
    const PACKET: u64 = 28 + BYTES as u64 + 12 + 4;
    let _ = writeln!(
        out,
        "\n### The end of a block, ns\n\n| hook | program | a packet in blocks of 64 KiB | in blocks of 256 KiB | the end of a block | min-max |\n| --- | --- | --- | --- | --- | --- |"
    );
    // No block is filled to its last byte.
    let in_block = |block: u64| ((block - 12) / PACKET) as f64;
    let ends_a_packet = 1.0 / in_block(SMALL_BLOCK) - 1.0 / in_block(LARGE_BLOCK);
    for hook in GROUP_HOOKS {
        let record = [SMALL_BLOCK, LARGE_BLOCK].map(|block| {
            Trial::of_recorder(
                hook,
                RING,
                block,
                &Duties { clock_by_poll: true, ..Duties::default() },
            )
            .expect("the program loads")
        });
        let group = [SMALL_BLOCK, LARGE_BLOCK].map(|block| of_groups(hook, RING, block, 1));
        let frame = frame(BYTES);
        let mut figures = [const { Vec::new() }; 2];
        for _ in 0..options.runs {
            for (trials, figures) in [&record, &group].into_iter().zip(&mut figures) {
                let [small, large] = trials
                    .each_ref()
                    .map(|trial| trial.run(&frame, options.times).expect("the program runs"));
                figures.push((small, large));
            }
        }
        for (program, figures) in ["record", "1 group"].into_iter().zip(figures) {
            let median = |of: fn(&(f64, f64)) -> f64| Spread::of(figures.iter().map(of).collect());
            let end = figures.iter().map(|(small, large)| (small - large) / ends_a_packet);
            let end = Spread::of(end.collect());
            let _ = writeln!(
                out,
                "| {hook} | {program} | {:.0} | {:.0} | {:.0} | {:.0}-{:.0} |",
                median(|pair| pair.0).median,
                median(|pair| pair.1).median,
                end.median,
                end.min,
                end.max,
            );
        }
    }
}

fn name(hook: Hook) -> &'static str {
    Hook::ALL.iter().find(|h| **h == hook).map_or("", |h| h.name())
}

fn print(out: &mut String, row: &Row) {
    let _ = writeln!(
        out,
        "| {} | {} | {} | {:.0} | {:.0}-{:.0} | {:.0} | {:.0} | {:.0} |",
        row.program,
        row.ring,
        row.bytes,
        row.ns.median,
        row.ns.min,
        row.ns.max,
        row.ns_empty,
        row.ns_read_drop,
        row.ns.median - row.ns_read_drop,
    );
}

/// Runs programs on a frame by turns.
fn measure<const N: usize>(
    options: &Options,
    trials: [&Trial; N],
    frame: &[u8],
) -> std::io::Result<[Spread; N]> {
    let mut figures: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..options.runs {
        for (trial, figures) in trials.iter().zip(&mut figures) {
            figures.push(trial.run(frame, options.times)?);
        }
    }
    Ok(figures.map(Spread::of))
}

/// A UDP packet for the discard port.
fn frame(size: usize) -> Vec<u8> {
    let (source, destination) = ([10, 213, 0, 1].into(), [10, 213, 0, 2].into());
    let packet = ipv4(source, destination, UDP, &udp([9, 9], &vec![0; size - 14 - 20 - 8]));
    ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], IPV4, &packet)
}

/// A TCP packet that begins a connection: its flow's count begins anew each time.
fn syn(size: usize) -> Vec<u8> {
    let (source, destination) = ([10, 213, 0, 1].into(), [10, 213, 0, 2].into());
    let mut segment = tcp([9, 9], 0, &vec![0; size - 14 - 20 - 20]);
    segment[13] = 2;
    let packet = ipv4(source, destination, TCP, &segment);
    ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], IPV4, &packet)
}

/// What recording costs on a cable: a packet's time with a recorder, less its time with a program
/// that drops it, before and after.
fn live(options: &Options, out: &mut String) {
    let _ = writeln!(
        out,
        "\n### xdp, live, ns a packet above dropping it\n\n| bytes | median | second to last but one | drop alone | lost, % |\n| --- | --- | --- | --- | --- |"
    );
    for size in [60, 1514] {
        let mut above = Vec::new();
        let (mut alone, mut lost) = (Vec::new(), 0.0);
        for _ in 0..options.pairs {
            let before = dropped(options, size);
            let (recorded, share) = recorded(options, size);
            let after = dropped(options, size);
            above.push(recorded - f64::midpoint(before, after));
            alone.extend([before, after]);
            lost += share / options.pairs as f64;
        }
        above.sort_by(f64::total_cmp);
        // Of nine figures these two enclose the true median in 96 of 100 cases.
        let (low, high) = (above.get(1), above.len().checked_sub(2).and_then(|i| above.get(i)));
        let interval = low.zip(high).map_or("-".into(), |(l, h)| format!("{l:.0} to {h:.0}"));
        let _ = writeln!(
            out,
            "| {size} | {:.0} | {interval} | {:.0} | {:.2} |",
            Spread::of(above).median,
            Spread::of(alone).median,
            100.0 * lost,
        );
    }
}

/// The time that a packet takes with a program that drops it, ns.
fn dropped(options: &Options, size: usize) -> f64 {
    let net = Net::new();
    let index = net.b.inside(|| Interface::find("vb").expect("made above").index);
    let _drain = net.b.inside(|| Drain::attach(index)).expect("it can be attached");
    flood(options, &net, size)
}

/// The time that a packet takes with a recorder that keeps nothing, ns, and the share of packets
/// that it lost.
fn recorded(options: &Options, size: usize) -> (f64, f64) {
    let net = Net::new();
    let config = Config {
        hook: Hook::Xdp,
        deliver: Deliver::Consume,
        snaplen: 16_384,
        ring_bytes: 64 << 20,
        block_bytes: 1 << 20,
        promiscuous: false,
        device_bound: true,
        overload: tapdeck_capture::Overload::Drop,
        stamps: Stamps::Auto,
        filter: None,
        rules: None,
        cutoff: None,
    };
    net.b.inside(|| {
        let clock = Arc::new(Clock::default());
        let mut capture = Capture::open("vb", &config, 0, &clock).expect("it opens");
        capture.start().expect("it starts");
        let over = AtomicBool::new(false);
        let mut rings = capture.readers();
        let ns = std::thread::scope(|scope| {
            scope.spawn(|| {
                stay_on_core(1);
                while !over.load(Relaxed) {
                    rings.iter_mut().for_each(release);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let ns = flood(options, &net, size);
            over.store(true, Relaxed);
            ns
        });
        capture.stop();
        let losses = capture.losses();
        let lost = losses.ring + losses.contended + losses.unreadable;
        (ns, lost as f64 / f64::from(options.packets))
    })
}

/// Returns the complete blocks of a ring to the producers.
fn release(ring: &mut impl Ring) {
    let mut complete = 0;
    while ring.peek(complete).is_some() {
        complete += 1;
    }
    ring.release(complete);
}

fn flood(options: &Options, net: &Net, size: usize) -> f64 {
    net.a.inside(|| {
        let to = Interface::find("va").expect("made above").index;
        let flood = Flood::new(to, &frame(size), 42, 0).expect("it can send");
        // Threads that the kernel starts for the far end stay where they are.
        let before = stay_on_core(0);
        let begin = Instant::now();
        flood.send(options.packets).expect("it sends");
        let ns = begin.elapsed().as_nanos() as f64 / f64::from(options.packets);
        let _ = sched_setaffinity(None, &before);
        ns
    })
}

/// Keeps the calling thread on one core. Returns where it was allowed to run.
fn stay_on_core(number: usize) -> CpuSet {
    let before = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let mut core = CpuSet::new();
    core.set(number);
    let _ = sched_setaffinity(None, &core);
    before
}
