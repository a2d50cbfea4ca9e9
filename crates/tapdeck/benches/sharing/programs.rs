//! Eight programs on one interface at once (Schneider 2005, figure 6.9): of what is sent, how much does each get?

use std::path::PathBuf;

use crate::bed::{Bed, Load, end, words};
use crate::common::{Options, Spread, cell, row, table};
use crate::testbed::Running;

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

/// What of the packets sent each of the eight got, and how many thousand a second were sent: delivering to the programs is on
/// the generator's core, and slows it.
fn run(way: Way, load: &Load) -> Result<(Vec<f64>, f64), String> {
    let bed = Bed::new(!matches!(way, Way::Tcpdump));
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
        shares.push(100.0 * got as f64 / sent.packets as f64);
    }
    if let Some(daemon) = daemon {
        end(daemon)?;
    }
    Ok((shares, sent.packets as f64 / sent.seconds / 1e3))
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

/// The libpcap-compatible object, beside the program.
fn shim() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tapdeck")).with_file_name("libtapdeck_pcap.so")
}

pub fn measure(options: &Options) {
    let rates: Vec<f64> =
        if options.tiny { vec![50.0] } else { options.numbers("--kpps", "50,100,200,400,600") };
    println!(
        "\n### Eight programs on one interface, {SIZE}-byte frames: what each got of what was sent, %\n"
    );
    table(&["", "1000 packets/s asked", "sent", "worst", "mean", "best"]);
    for rate in rates {
        // Two seconds of it.
        let packets = if options.tiny { options.packets } else { (rate * 2000.0) as u64 };
        let load = Load { size: SIZE, packets, gap_ns: (1e6 / rate) as u32, ..Load::default() };
        let mut found: Vec<(Vec<f64>, f64)> = vec![(Vec::new(), 0.0); WAYS.len()];
        for _ in 0..options.runs {
            for ((name, way), found) in WAYS.iter().zip(&mut found) {
                match run(*way, &load) {
                    Ok((shares, sent)) => {
                        found.0.extend(shares);
                        found.1 = sent;
                    }
                    Err(why) => eprintln!("{name}: {why}"),
                }
            }
        }
        for ((name, _), (found, sent)) in WAYS.iter().zip(found) {
            let mean = found.iter().sum::<f64>() / found.len() as f64;
            let spread = Spread::of(found.into_iter());
            row(&[
                (*name).into(),
                format!("{rate:.0}"),
                format!("{sent:.0}"),
                cell(spread.min, 2),
                cell(mean, 2),
                cell(spread.max, 2),
            ]);
        }
    }
}
