//! What the index costs while recording. Recorders take turns; each has a veth pair of its own, the
//! generator on core 0 and itself on core 1. CPU time is all that the process took until
//! everything, the index too, was on disk.

use super::recorder::{Method, Recorded, Recorder};
use super::traffic::{self, Came, Traffic, ceiling_pps};
use super::{in_flight, scratch, settle, show};
use crate::common::{Options, Spread, cell, range, row, table};
use tapdeck_testkit::Net;

/// The generator's run that is as dear as the design's: 25 ms for itself in 60,000 frames.
const BURST: u32 = 60_000;
/// Of the ceiling, at which nothing may be lost.
const SHARE: f64 = 0.80;

struct Load {
    what: String,
    traffic: Traffic,
}

pub fn run(options: &Options) {
    let mut methods = vec![Method::INDEXED, Method::Tapdeck("--no-index")];
    if !options.tiny {
        methods.push(Method::Stenotype);
        println!();
        for method in &methods {
            println!("- `{}`", show(&method.command("DIR")));
        }
        println!("- `{}` with the flags that a table names", show(&traffic::generator()));
    }
    for load in loads(options) {
        let mut samples: Vec<Vec<(Came, Recorded)>> = vec![Vec::new(); methods.len()];
        let mut why_not = vec![None; methods.len()];
        for _ in 0..options.runs {
            for (i, method) in methods.iter().enumerate() {
                if why_not[i].is_some() {
                    continue;
                }
                match measure(*method, &load.traffic) {
                    Ok(sample) => samples[i].push(sample),
                    Err(why) => why_not[i] = Some(why),
                }
            }
        }
        if options.tiny {
            assert_stored(&methods, &samples, &why_not);
        }
        print(&load, &methods, &samples, &why_not);
    }
}

fn loads(options: &Options) -> Vec<Load> {
    let packets = options.packets;
    let n = packets as u32;
    let copies = |size, gap_ns, packets, burst| Traffic::Copies { size, gap_ns, packets, burst };
    let ceiling = (0..options.runs)
        .map(|_| ceiling_pps(&Net::new(), &copies(60, 0, n, BURST)).unwrap_or(f64::NAN));
    let ceiling = Spread::of(ceiling).median;
    let gap_ns = (1e9 / (SHARE * ceiling)).ceil();
    let paced = format!(
        "60-byte frames at {SHARE:.2} of the XDP_DROP ceiling in bursts of {BURST}, which is {:.2} M/s",
        ceiling / 1e6
    );
    let generated = |what: &str, flags: &str| Load {
        what: format!("{what}: `{flags}`"),
        traffic: Traffic::Generated(format!("--count {packets} {flags}")),
    };
    let load = |what: String, traffic| Load { what, traffic };
    vec![
        load("60-byte frames, flat out".into(), copies(60, 0, n, n)),
        load("1514-byte frames, flat out".into(), copies(1514, 0, n / 3 * 2, n)),
        load(paced, copies(60, gap_ns as u32, n, n)),
        generated("A mix", "--size imix --flows 1000 --zipf 1.1 --dport 1-1023 --rate 500kpps"),
        generated(
            "A flood of random addresses",
            "--size 64 --flows 1000000 --src 16.0.0.0/4 --dport 80 --rate 500kpps",
        ),
    ]
}

fn measure(method: Method, traffic: &Traffic) -> Result<(Came, Recorded), String> {
    settle();
    let dir = scratch()?;
    let net = Net::new();
    let recorder = Recorder::start(method, &net, dir.path())?;
    let came = traffic.send(&net)?;
    in_flight();
    Ok((came, recorder.end()?))
}

/// What was sent was stored, to the last packet.
fn assert_stored(
    methods: &[Method],
    samples: &[Vec<(Came, Recorded)>],
    why_not: &[Option<String>],
) {
    for ((method, samples), why_not) in methods.iter().zip(samples).zip(why_not) {
        assert_eq!(*why_not, None, "{method:?}");
        for (came, recorded) in samples {
            assert_eq!(recorded.packets + recorded.dropped, came.packets, "{method:?}");
            assert!(recorded.packets > 0, "{method:?}");
        }
    }
}

fn print(
    load: &Load,
    methods: &[Method],
    samples: &[Vec<(Came, Recorded)>],
    why_not: &[Option<String>],
) {
    println!("\n### {}\n", load.what);
    table(&[
        "recorder",
        "stored, M/s",
        "min-max",
        "lost, %",
        "most lost, %",
        "CPU, ms per M sent",
        "min-max",
        "index, bytes a packet",
        "index, % of packets' files",
        "resident, MiB",
        "done after, s",
    ]);
    for ((method, samples), why_not) in methods.iter().zip(samples).zip(why_not) {
        if let Some(why) = why_not {
            println!("| {} | did not run: {why} |{}", method.name(), " |".repeat(9));
            continue;
        }
        let of = |f: &dyn Fn(&Came, &Recorded) -> f64| {
            Spread::of(samples.iter().map(|(came, recorded)| f(came, recorded)))
        };
        let rate = of(&|c, r| r.packets as f64 / c.seconds);
        let lost = of(&|c, r| 100.0 * (1.0 - r.packets as f64 / c.packets as f64));
        let cpu = of(&|c, r| r.cpu_ms * 1e6 / c.packets as f64);
        let each = of(&|_, r| r.index_bytes as f64 / r.packets as f64);
        let share = of(&|_, r| 100.0 * r.index_bytes as f64 / r.packet_bytes as f64);
        row(&[
            method.name(),
            cell(rate.median / 1e6, 2),
            range(rate, 1e6, 2),
            cell(lost.median, 3),
            cell(lost.max, 3),
            cell(cpu.median, 0),
            range(cpu, 1.0, 0),
            cell(each.median, 2),
            cell(share.median, 2),
            cell(of(&|_, r| r.resident_mib).median, 0),
            cell(of(&|_, r| r.ending_s).median, 2),
        ]);
    }
}
