//! Sending, held against the peers, in one run: `make bench`, or `cargo bench -p tapdeck --bench
//! generate -- --runs 5`.
//!
//! Each generator in turn sends from core 0 into a veth pair of its own. What counts is what
//! arrives: core 1 reads the packet counter of the far end every millisecond, and rates are of that
//! counter, whatever the generator says of itself; so nobody's start is in the clock. Prints
//! medians and spreads as Markdown tables. It measures and asserts nothing, but for `--test`, which
//! asserts that what was said to be sent is what arrived.
//!
//! `--cases speed,stack,mixes,rates,sizes,memory` runs a part; `--seconds 10` makes paced runs
//! longer.

mod common;
mod generators;

use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Options, Spread};
use generators::{FarEnd, IMIX, IMIX_MEAN, Row, SMALL, Sample, Tool, measure};
use tapdeck_traffic::dist::{self, Counts};
use tapdeck_traffic::sent::{self, Sent};

/// Flows, as busy as the ranks of words are in a text.
const FLOWS: &str = "--flows 1000 --zipf 1.1";

/// All runs of a row, or why there are none.
struct Outcome {
    samples: Vec<Sample>,
    why_not: Option<String>,
}

impl Outcome {
    fn spread(&self, of: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(of))
    }
}

fn main() {
    type Case = (&'static str, fn(&Options));
    let options = Options::new(2_000_000);
    tapdeck_testkit::kernel::need_root();
    if !options.tiny {
        common::print_machine(&["netsniff-ng", "tcpreplay", "xdp-tools"]);
    }
    let cases: [Case; 6] = [
        ("speed", |o| speed(o, FarEnd::Drain)),
        ("stack", |o| speed(o, FarEnd::Stack)),
        ("mixes", mixes),
        ("rates", rates),
        ("sizes", sizes),
        ("memory", memory),
    ];
    for (_, case) in cases.iter().filter(|(name, _)| options.wants("--cases", name)) {
        case(&options);
    }
}

/// 64-byte frames of one flow, as fast as it goes.
fn speed(options: &Options, far_end: FarEnd) {
    let n = options.packets;
    let backend = |name: &str| format!("--size 64 --backend {name}");
    let mut rows = vec![
        Row::tapdeck("tapdeck xdp", &backend("xdp"), n),
        Row::tapdeck("tapdeck txring", &backend("txring"), n),
        Row::tapdeck("tapdeck afxdp", &backend("afxdp"), n),
        Row::new("trafgen", Tool::Trafgen(String::new()), n),
        Row::new("tcpreplay", Tool::Tcpreplay("--topspeed".into()), n),
        Row::new("xdp-trafficgen", Tool::XdpTrafficgen, n),
    ];
    for row in &mut rows {
        row.far_end = far_end;
    }
    let rows = chosen(rows, options);
    let outcomes = take_turns(&rows, options);
    let trafgen = rows.iter().position(|r| matches!(r.tool, Tool::Trafgen(_)));
    let trafgen = trafgen.map_or(f64::NAN, |i| outcomes[i].spread(|s| s.arrivals.pps()).median);
    println!(
        "\n### 64-byte frames of one flow, flat out, {}\n",
        match far_end {
            FarEnd::Drain => "dropped by XDP at the far end",
            FarEnd::Stack => "received by the far end's network stack",
        }
    );
    table(&[
        "generator",
        "arrived, M/s",
        "min-max",
        "of trafgen",
        "says, M/s",
        "sent and not arrived, %",
    ]);
    for (row, outcome) in rows.iter().zip(&outcomes) {
        let rate = outcome.spread(|s| s.arrivals.pps());
        print_row(
            &row.name,
            outcome,
            &[
                cell(rate.median / 1e6, 2),
                range(rate, 1e6, 2),
                cell(rate.median / trafgen, 2),
                cell(outcome.spread(Sample::said_pps).median / 1e6, 2),
                cell(outcome.spread(Sample::lost).median, 2),
            ],
        );
    }
    if !options.tiny && far_end == FarEnd::Drain {
        print_commands(&rows);
    }
}

/// What lengths and flows cost: the plainest packets beside a distribution over a thousand flows.
fn mixes(options: &Options) {
    if !options.wants("--only", "tapdeck xdp") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = distribution(dir.path());
    let flags = |size: &str| format!("--backend xdp --size {size} {FLOWS}");
    let row = |name: &str, flags: &str| Row::tapdeck(name, flags, options.packets);
    let rows = [
        row("64 bytes, one flow", "--backend xdp --size 64"),
        row("64 bytes, 1000 flows", &flags("64")),
        row("imix, 1000 flows", &flags("imix")),
        row("dist:FILE, 1000 flows", &flags(&format!("dist:{}", file.display()))),
    ];
    let outcomes = take_turns(&rows, options);
    let plain = outcomes.first().map_or(f64::NAN, |o| o.spread(|s| s.arrivals.pps()).median);
    println!("\n### tapdeck xdp: lengths and flows (`{FLOWS}`), checksums right, flat out\n");
    table(&[
        "what",
        "arrived, M/s",
        "min-max",
        "of the first",
        "Gbit/s",
        "sent and not arrived, %",
    ]);
    for (row, outcome) in rows.iter().zip(&outcomes) {
        let rate = outcome.spread(|s| s.arrivals.pps());
        let bits = outcome.spread(|s| s.arrivals.pps() * s.bytes_per_packet * 8.0);
        print_row(
            &row.name,
            outcome,
            &[
                cell(rate.median / 1e6, 2),
                range(rate, 1e6, 2),
                cell(rate.median / plain, 2),
                cell(bits.median / 1e9, 2),
                cell(outcome.spread(Sample::lost).median, 2),
            ],
        );
    }
}

/// A rate that is asked for, in each generator's words.
struct Asked {
    tapdeck: &'static str,
    trafgen: &'static str,
    tcpreplay: &'static str,
    sizes: &'static [u32],
    bits_per_s: f64,
    pps: f64,
}

/// Whether the rate that was asked for is the rate that comes.
fn rates(options: &Options) {
    let small = |tapdeck, trafgen, tcpreplay, pps: u32| Asked {
        tapdeck,
        trafgen,
        tcpreplay,
        sizes: &SMALL,
        bits_per_s: f64::from(pps) * 8.0 * 64.0,
        pps: pps.into(),
    };
    let asked = [
        small("--size 64 --rate 100kpps", "-b 100000pps", "--pps 100000", 100_000),
        small("--size 64 --rate 500kpps", "-b 500000pps", "--pps 500000", 500_000),
        small("--size 64 --rate 1mpps", "-b 1000000pps", "--pps 1000000", 1_000_000),
        Asked {
            tapdeck: "--size imix --rate 1gbit",
            trafgen: "-b 1Gbit",
            tcpreplay: "--mbps 1000",
            sizes: &IMIX,
            bits_per_s: 1e9,
            pps: 1e9 / 8.0 / IMIX_MEAN,
        },
    ];
    let seconds = options.number("--seconds", 3) as f64;
    println!("\n### Rates that were asked for, over {seconds:.0} s\n");
    table(&[
        "asked",
        "generator",
        "error of what arrived, %",
        "min-max",
        "says, %",
        "busiest 10 ms, times the rate",
        "off its time at p50, µs",
        "p99",
        "max",
    ]);
    for asked in &asked {
        rate(options, asked, seconds);
    }
}

fn rate(options: &Options, asked: &Asked, seconds: f64) {
    // A little more, so that all still send when the time is over; a tenth of a second is enough to
    // count.
    let packets = asked.pps * if options.tiny { 0.1 } else { seconds + 0.2 };
    let peer = |name: &str, tool: fn(String) -> Tool, rate: &str| Row {
        sizes: asked.sizes,
        ..Row::new(name, tool(rate.into()), packets as u64)
    };
    let rows = vec![
        Row::tapdeck("tapdeck", asked.tapdeck, packets as u64),
        peer("trafgen", Tool::Trafgen, asked.trafgen),
        peer("tcpreplay", Tool::Tcpreplay, asked.tcpreplay),
    ];
    let rows = chosen(rows, options);
    for (row, outcome) in rows.iter().zip(take_turns(&rows, options)) {
        let off = |s: &Sample, pps: f64| {
            100.0 * (pps * s.bytes_per_packet * 8.0 / asked.bits_per_s - 1.0)
        };
        let error = outcome.spread(|s| off(s, s.arrivals.pps_over(seconds)));
        let says = outcome.spread(|s| off(s, s.said_pps()));
        let busiest = outcome.spread(|s| s.arrivals.busiest_pps(0.01) / asked.pps);
        let jitter = |of: fn(&sent::Spread) -> u64| {
            let jitter = |s: &Sample| s.record().and_then(|r| r.jitter_ns.as_ref().map(of));
            outcome.spread(|s| jitter(s).map_or(f64::NAN, |ns| ns as f64 / 1e3))
        };
        let backend = outcome.samples.iter().find_map(|s| Some(s.record()?.backend.clone()));
        let name = match backend {
            Some(backend) => format!("tapdeck (auto: {backend})"),
            None => row.name.clone(),
        };
        let first = format!("`{}` | {name}", asked.tapdeck);
        print_row(
            &first,
            &outcome,
            &[
                cell(error.median, 3),
                range(error, 1.0, 3),
                cell(says.median, 3),
                cell(busiest.median, 2),
                cell(jitter(|j| j.p50).median, 2),
                cell(jitter(|j| j.p99).median, 1),
                cell(jitter(|j| j.max).max, 0),
            ],
        );
    }
}

/// How far the sizes that were sent are from the distribution they were drawn from.
fn sizes(options: &Options) {
    if !options.wants("--only", "tapdeck") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = distribution(dir.path());
    let source = dist::read_file(&file, dist::Options::default()).expect("written above").counts;
    let packets = if options.tiny { options.packets } else { 1_000_000 };
    let rows = ["alias", "two-stage"].map(|method| {
        let flags = format!("--size dist:{} --method {method}", file.display());
        Row::tapdeck(method, &flags, packets)
    });
    println!("\n### Kolmogorov-Smirnov distance of {packets} packets to the distribution\n");
    table(&["--method", "distance", "min-max"]);
    for (row, outcome) in rows.iter().zip(take_turns(&rows, options)) {
        let distance = outcome.spread(|s| s.record().map_or(f64::NAN, |r| ks(&source, r)));
        print_row(&row.name, &outcome, &[cell(distance.median, 5), range(distance, 1.0, 5)]);
    }
}

fn ks(source: &Counts, sent: &Sent) -> f64 {
    let mut counts = Counts::new();
    for (size, n) in &sent.sizes {
        counts.add(*size, *n).expect("counts of packets");
    }
    source.ks_distance(&counts.probabilities())
}

/// Whether memory grows with the packets.
fn memory(options: &Options) {
    let few = if options.tiny { options.packets } else { 1_000_000 };
    println!("\n### Most memory resident, MiB\n");
    table(&["generator", "packets", "MiB"]);
    // Once is enough for what hardly varies, and packets are many.
    let mut once = options.clone();
    once.runs = 1;
    for backend in ["xdp", "txring", "afxdp"] {
        let name = format!("tapdeck {backend}");
        let flags = format!("--backend {backend} --size imix {FLOWS}");
        let rows = [few, 10 * few].map(|n| Row::tapdeck(&name, &flags, n));
        let rows = chosen(rows.into(), options);
        for (row, outcome) in rows.iter().zip(take_turns(&rows, &once)) {
            let resident = outcome.spread(|s| s.resident_mib).median;
            let first = format!("{} | {}", row.name, row.packets);
            print_row(&first, &outcome, &[cell(resident, 2)]);
        }
    }
}

/// A distribution with two heights and a tail, as networks have them.
fn distribution(dir: &Path) -> PathBuf {
    let mut counts = Counts::new();
    for size in 60..=1514_u16 {
        let packets = match size {
            60..=74 => 20_000,
            1514 => 350_000,
            1400..=1513 => 500,
            _ => 100 + 60_000 / u64::from(size - 70),
        };
        counts.add(size, packets).expect("small counts");
    }
    let path = dir.join("sizes.dist");
    let mut file = File::create(&path).expect("a file in a directory of its own");
    dist::write_dist(&mut file, &counts, dist::Length::Frame, ' ').expect("it takes a few lines");
    path
}

/// The rows that were asked for; peers are not for the tiny run.
fn chosen(mut rows: Vec<Row>, options: &Options) -> Vec<Row> {
    rows.retain(|r| {
        let peer = !matches!(r.tool, Tool::Tapdeck(_));
        !(options.tiny && peer) && options.wants("--only", &r.name)
    });
    rows
}

/// Runs all, one after the other, so often. What cannot run is not tried twice.
fn take_turns(rows: &[Row], options: &Options) -> Vec<Outcome> {
    let empty = |_: &Row| Outcome { samples: Vec::new(), why_not: None };
    let mut outcomes: Vec<Outcome> = rows.iter().map(empty).collect();
    for _ in 0..options.runs {
        for (row, outcome) in rows.iter().zip(&mut outcomes) {
            if outcome.why_not.is_some() {
                continue;
            }
            match measure(row) {
                Ok(sample) => outcome.samples.push(sample),
                Err(why) => outcome.why_not = Some(why),
            }
        }
    }
    if options.tiny {
        for (row, outcome) in rows.iter().zip(&outcomes) {
            conserved(row, outcome);
        }
    }
    outcomes
}

/// As many packets as were asked for were made, and those that were said to be sent arrived.
fn conserved(row: &Row, outcome: &Outcome) {
    assert!(outcome.why_not.is_none(), "{row:?}: {:?}", outcome.why_not);
    for sample in &outcome.samples {
        let record = sample.record().expect("tapdeck leaves one");
        assert_eq!(record.sent + record.refused, row.packets, "{row:?}");
        assert_eq!(record.sizes.values().sum::<u64>(), row.packets, "{row:?}");
        assert_eq!(sample.arrivals.total(), record.sent, "{row:?}");
    }
}

fn table(heads: &[&str]) {
    println!("| {} |", heads.join(" | "));
    println!("|{}", " --- |".repeat(heads.len()));
}

fn print_row(first: &str, outcome: &Outcome, cells: &[String]) {
    match &outcome.why_not {
        Some(why) if outcome.samples.is_empty() => {
            println!("| {first} | did not run: {why} |{}", " |".repeat(cells.len() - 1));
        }
        _ => println!("| {first} | {} |", cells.join(" | ")),
    }
    if let (Some(why), false) = (&outcome.why_not, outcome.samples.is_empty()) {
        eprintln!("{first}: ended after {} runs: {why}", outcome.samples.len());
    }
}

fn cell(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.digits$}") }
}

fn range(spread: Spread, unit: f64, digits: usize) -> String {
    if spread.median.is_nan() {
        return "-".into();
    }
    format!("{:.digits$} to {:.digits$}", spread.min / unit, spread.max / unit)
}

fn print_commands(rows: &[Row]) {
    println!();
    for row in rows {
        let line = row.command(Path::new("DIR"));
        println!("- `{}`", line.replace(env!("CARGO_BIN_EXE_tapdeck"), "tapdeck").trim_end());
    }
}
