//! What questions without end take from a recorder at 80 % of the most it records without a loss.
//!
//! The generator has core 0, and whoever asks shares core 1 with the recorder: the worst that can
//! be, and the only way in which asking does not slow the generator instead. There are packets in
//! the store before, about which to ask.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::process::Group;
use super::recorder::{Method, Recorded, Recorder};
use super::tape::Middle;
use super::traffic::{Came, Traffic};
use super::{in_flight, scratch, settle, show, words};
use crate::common::{Options, Spread, cell, range, row, table};
use tapdeck_testkit::Net;

const SHARE: f64 = 0.80;
const LOADS: [&str; 2] = ["--size 64 --flows 10000", "--size imix --flows 10000"];

/// What runs over and over beside the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Query,
    Export,
    TcpdumpQuery,
    TcpdumpExport,
}

impl Beside {
    const ALL: [Self; 5] =
        [Self::Nothing, Self::Query, Self::Export, Self::TcpdumpQuery, Self::TcpdumpExport];

    /// The command, about a store and a conversation in it; tcpdump knows closed segments only.
    fn command(self, store: &str, filter: &str) -> String {
        let tapdeck = env!("CARGO_BIN_EXE_tapdeck");
        let scan =
            |what: &str| format!("for f in {store}/*.pcapng; do tcpdump -nn -r $f {what}; done");
        match self {
            Self::Nothing => "nothing".into(),
            Self::Query => format!("{tapdeck} query --dir {store} {filter}"),
            Self::Export => format!("{tapdeck} query --dir {store} -w /dev/null"),
            Self::TcpdumpQuery => scan(filter),
            Self::TcpdumpExport => scan("-w /dev/null"),
        }
    }

    fn is_peer(self) -> bool {
        matches!(self, Self::TcpdumpQuery | Self::TcpdumpExport)
    }
}

/// A run beside something, which ended so many times meanwhile.
struct Sample {
    came: Came,
    recorded: Recorded,
    answers: u64,
}

pub fn run(options: &Options) {
    let mut rows = Beside::ALL.to_vec();
    rows.retain(|b| !(options.tiny && b.is_peer()));
    for load in LOADS {
        let pps = if options.tiny { Ok(20e3) } else { most_pps(load) };
        let pps = match pps {
            Ok(pps) => SHARE * pps,
            Err(why) => {
                println!("\n`{load}`: {why}");
                continue;
            }
        };
        let mut samples: Vec<Vec<Sample>> = rows.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.runs {
            for (beside, samples) in rows.iter().zip(&mut samples) {
                match measure(options, *beside, load, pps) {
                    Ok(sample) => samples.push(sample),
                    Err(why) if options.tiny => panic!("{beside:?}: {why}"),
                    Err(why) => println!("\n{beside:?}: {why}"),
                }
            }
        }
        if options.tiny {
            assert_undisturbed(&rows, &samples);
        }
        print(load, pps, &rows, &samples);
    }
}

fn flags(load: &str, rate: &str, seconds: f64) -> String {
    format!("{load} --dport 1-1023 --rate {rate} --duration {:.0}ms", seconds * 1e3)
}

/// The rate at which nothing is lost: what comes if the generator goes flat out, or else less and
/// less.
fn most_pps(load: &str) -> Result<f64, String> {
    const SECONDS: f64 = 3.0;
    const STEP: f64 = 0.85;
    let mut rate = "max".to_owned();
    for _ in 0..12 {
        settle();
        let dir = scratch()?;
        let net = Net::new();
        let recorder = Recorder::start(Method::INDEXED, &net, dir.path())?;
        let came = Traffic::Generated(flags(load, &rate, SECONDS)).send(&net)?;
        in_flight();
        let recorded = recorder.end()?;
        let pps = came.packets as f64 / came.seconds;
        if recorded.dropped == 0 {
            return Ok(pps);
        }
        rate = format!("{:.0}pps", STEP * pps);
    }
    Err("no rate without a loss".into())
}

fn measure(options: &Options, beside: Beside, load: &str, pps: f64) -> Result<Sample, String> {
    settle();
    let dir = scratch()?;
    let net = Net::new();
    let before = Recorder::start(Method::INDEXED, &net, dir.path())?;
    let packets = if options.tiny { 20_000 } else { 2_000_000 };
    let tape = format!("{load} --dport 1-1023 --rate 500kpps --count {packets} --seed 2");
    Traffic::Generated(tape).send(&net)?;
    in_flight();
    let store = before.store();
    before.end()?;
    let filter = Middle::of(&store)?.filter();
    settle();

    let recorder = Recorder::start(Method::INDEXED, &net, dir.path())?;
    let seconds = if options.tiny { 0.3 } else { options.number("--seconds", 10) as f64 };
    let traffic = Traffic::Generated(flags(load, &format!("{pps:.0}pps"), seconds));
    let done = AtomicBool::new(false);
    let (came, answers) = thread::scope(|s| {
        let asking = s.spawn(|| ask_until(&done, beside, &store, &filter));
        let came = traffic.send(&net);
        done.store(true, Relaxed);
        (came, asking.join().expect("it does not panic"))
    });
    in_flight();
    Ok(Sample { came: came?, recorded: recorder.end()?, answers: answers? })
}

/// Asks again and again, on the recorder's core; tells how many times there was an answer.
fn ask_until(done: &AtomicBool, beside: Beside, store: &Path, filter: &str) -> Result<u64, String> {
    let line = beside.command(&store.display().to_string(), filter);
    let mut answers = 0;
    while beside != Beside::Nothing && (answers == 0 || !done.load(Relaxed)) {
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if beside.is_peer() {
            command.args(["sh", "-c", &line]);
        } else {
            command.args(words(&line));
        }
        let mut group = Group::start(&mut command)?;
        let status = loop {
            match group.0.try_wait().map_err(|e| e.to_string())? {
                // A first answer is waited for, however long it takes.
                None if answers > 0 && done.load(Relaxed) => return Ok(answers),
                None => thread::sleep(Duration::from_millis(1)),
                Some(status) => break status,
            }
        };
        if !status.success() {
            return Err(format!("`{}` ended with {status}", show(&line)));
        }
        answers += 1;
    }
    Ok(answers)
}

/// Nothing was lost at a rate that asks nothing of anybody, and there were answers.
fn assert_undisturbed(rows: &[Beside], samples: &[Vec<Sample>]) {
    for (beside, samples) in rows.iter().zip(samples) {
        for Sample { came, recorded, answers } in samples {
            assert_eq!(recorded.packets, came.packets, "{beside:?}");
            assert_eq!(*answers > 0, *beside != Beside::Nothing, "{beside:?}");
        }
    }
}

fn print(load: &str, pps: f64, rows: &[Beside], samples: &[Vec<Sample>]) {
    println!(
        "\n### Questions beside a recorder at {SHARE:.2} of what it records without a loss: {:.2} M/s of `{load}`\n",
        pps / 1e6
    );
    table(&[
        "over and over, on the recorder's core",
        "came, M/s",
        "lost, packets",
        "min-max",
        "CPU of the recorder, ms per M",
        "ring in use at most, MiB",
        "answers/s",
    ]);
    for (beside, samples) in rows.iter().zip(samples) {
        let of = |f: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(f));
        let lost = of(&|s| s.came.packets.saturating_sub(s.recorded.packets) as f64);
        row(&[
            format!("`{}`", show(&beside.command("DIR", "EXPR"))),
            cell(of(&|s| s.came.packets as f64 / s.came.seconds).median / 1e6, 2),
            cell(lost.median, 0),
            range(lost, 1.0, 0),
            cell(of(&|s| s.recorded.cpu_ms * 1e6 / s.came.packets as f64).median, 0),
            cell(of(&|s| s.recorded.ring_used_max as f64).max / f64::from(1 << 20), 0),
            cell(of(&|s| s.answers as f64 / s.came.seconds).median, 1),
        ]);
    }
}
