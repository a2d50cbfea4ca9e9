//! Eight programs on one interface at once (Schneider 2005, figure 6.9): of what is sent, how much
//! does each get?
//!
//! Packets are received on core 1, where the programs are, by a thread of the driver's own that
//! goes before them, as a network card's interrupts do: on the generator's core, what they cost
//! would slow the generator, and nothing would be lost.

use std::path::PathBuf;

use crate::bed::{Bed, Load, end, words};
use crate::common::{self, Options, Spread, cell, row, table};
use tapdeck_testkit::Running;

const PROGRAMS: usize = 8;
/// Schneider's mean packet.
const SIZE: u32 = 645;

/// What the eight are.
#[derive(Clone, Copy)]
enum Way {
    /// tcpdump, each with a socket of its own.
    Tcpdump,
    /// The same tcpdump, on a group that copies to all.
    TcpdumpOnGroup,
    /// `tapdeck attach`, on such a group.
    Attach,
    /// `tapdeck record`: members that count.
    Record,
}

const WAYS: [(&str, Way); 4] = [
    ("tcpdump", Way::Tcpdump),
    ("tcpdump on a group", Way::TcpdumpOnGroup),
    ("tapdeck attach", Way::Attach),
    ("tapdeck record", Way::Record),
];

/// What a run found, in percent of the packets sent.
struct Found {
    /// What each program got.
    shares: Vec<f64>,
    /// What the interface took; it drops what its receiving thread does not get to.
    received: f64,
    /// Thousands sent a second.
    kpps: f64,
}

fn run(way: Way, load: &Load) -> Result<Found, String> {
    let bed = Bed::new(!matches!(way, Way::Tcpdump));
    for thread in common::receive_on_core_1(&bed.net) {
        let line = format!("chrt --fifo --pid 1 {}", thread.as_raw_nonzero());
        bed.net.b.run(&line);
    }
    let socket = bed.path("socket").display().to_string();
    let daemon = if matches!(way, Way::Tcpdump) { None } else { Some(serve(&bed, &socket)?) };
    let start = |i: usize| -> Result<Running, String> {
        match way {
            Way::Tcpdump => bed.start("tcpdump", &words("-i vb -n -B 65536 -w /dev/null"), &[]),
            Way::TcpdumpOnGroup => {
                let shim = shim().display().to_string();
                let env = [("LD_PRELOAD", shim), ("TAPDECK_SOCKET", socket.clone())];
                bed.start("tcpdump", &words("-i deck:all -n -w /dev/null"), &env)
            }
            Way::Attach => {
                bed.tapdeck(&words(&format!("attach --group all --socket {socket} -w /dev/null")))
            }
            Way::Record => {
                let stats = bed.path(&format!("stats-{i}")).display().to_string();
                bed.tapdeck(&words(&format!(
                    "record --group all --socket {socket} --no-store --stats-json {stats}"
                )))
            }
        }
    };
    let programs: Vec<Running> = (0..PROGRAMS).map(start).collect::<Result<_, _>>()?;
    let sent = bed.flood(load)?;
    // What is in the rings is read.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let percent = |n: u64| 100.0 * n as f64 / load.packets as f64;
    let mut shares = Vec::new();
    for (i, program) in programs.into_iter().enumerate() {
        let said = end(program)?;
        let got = match way {
            Way::Record => {
                let last = crate::bed::last_object(&bed.path(&format!("stats-{i}")))?;
                last["captured"].as_u64()
            }
            Way::Tcpdump | Way::TcpdumpOnGroup | Way::Attach => packets_in(&said),
        };
        let got = got.ok_or_else(|| format!("no count in {said:?}"))?;
        shares.push(percent(got));
    }
    if let Some(daemon) = daemon {
        end(daemon)?;
    }
    let kpps = load.packets as f64 / sent.seconds / 1e3;
    Ok(Found { shares, received: percent(sent.packets), kpps })
}

fn serve(bed: &Bed, socket: &str) -> Result<Running, String> {
    let config = format!(
        "[serve]\nsocket = {socket:?}\nring-bytes = \"64MiB\"\n[[group]]\nname = \"all\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\ndeliver = \"consume\"\nsteering = \"copy\"\n"
    );
    let file = bed.path("serve.toml");
    std::fs::write(&file, config).map_err(|e| e.to_string())?;
    bed.tapdeck(&words(&format!("serve --config {}", file.display())))
}

/// "N packets captured", as tcpdump says at its end, or "N packets" as `attach` does.
fn packets_in(said: &str) -> Option<u64> {
    said.lines().find_map(|line| {
        let (before, _) = line.split_once(" packets")?;
        before.rsplit(' ').next()?.replace(',', "").parse().ok()
    })
}

/// The shared object that stands in for libpcap. Cargo builds it for this benchmark, which depends
/// on it, and puts it beside the benchmark's own program.
fn shim() -> PathBuf {
    let program = std::env::current_exe().expect("a benchmark is a program");
    let object = program.with_file_name("libtapdeck_pcap.so");
    assert!(object.exists(), "cargo has not built {}", object.display());
    object
}

pub fn measure(options: &Options) {
    let rates: Vec<f64> = if options.tiny {
        vec![50.0]
    } else {
        options.numbers("--kpps", "50,100,200,300,400,600,800")
    };
    println!(
        "\n### Eight programs on one interface, {SIZE}-byte frames: what each got of what was sent, %\n"
    );
    table(&["", "1000 packets/s sent", "taken by the interface", "worst", "mean", "best"]);
    for rate in rates {
        // Two seconds of it.
        let packets = if options.tiny { options.packets } else { (rate * 2000.0) as u64 };
        let load = Load { size: SIZE, packets, gap_ns: (1e6 / rate) as u32, ..Load::default() };
        let mut all: Vec<Vec<Found>> = WAYS.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.runs {
            for ((name, way), found) in WAYS.iter().zip(&mut all) {
                match run(*way, &load) {
                    Ok(one) => found.push(one),
                    Err(why) => eprintln!("{name}: {why}"),
                }
            }
        }
        for ((name, _), found) in WAYS.iter().zip(all) {
            let median = |f: fn(&Found) -> f64| Spread::of(found.iter().map(f)).median;
            let shares: Vec<f64> = found.iter().flat_map(|f| f.shares.iter().copied()).collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let spread = Spread::of(shares.into_iter());
            row(&[
                (*name).into(),
                cell(median(|f| f.kpps), 0),
                cell(median(|f| f.received), 1),
                cell(spread.min, 1),
                cell(mean, 1),
                cell(spread.max, 1),
            ]);
        }
    }
}
