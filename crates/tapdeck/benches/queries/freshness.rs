//! How long after a packet came a query gives it: a packet is sent to a port of its own, and then
//! the question for that port is asked again and again until it has an answer. The time includes
//! the last question's.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::process::Answer;
use super::recorder::{Method, Recorder};
use super::stenographer::{self, Stenographer, Stenotype};
use super::{scratch, show, traffic, words};
use crate::common::{Options, Spread, cell, row, table};
use tapdeck_testkit::Net;

const MIX: &str = "--size imix --flows 10000 --dport 1-1023";
/// The first port; the generator's are below or above all of them.
const PORT: u16 = 40_000;
/// Nothing is worth waiting for longer.
const LIMIT: Duration = Duration::from_secs(300);

pub fn run(options: &Options) {
    let marks = if options.tiny { 2 } else { 10 * options.runs };
    println!("\n### From a packet to its answer\n");
    if !options.tiny {
        println!("- `{}`", show(&Method::INDEXED.command("DIR")));
        println!("- beside the packets, `tapdeck gen {MIX} --rate RATE`\n");
    }
    table(&["recorder and query", "beside it", "packets", "median, ms", "least", "most"]);
    // What an answer waits for takes room, and on a busy machine it may wait for long.
    for rate in ["", if options.tiny { "20kpps" } else { "500kpps" }] {
        let fresh = tapdeck(rate, marks);
        assert!(!options.tiny || fresh.is_ok(), "{fresh:?}");
        print("tapdeck", rate, &fresh);
    }
    if !options.tiny {
        // Each takes more than a minute, and fills the disk meanwhile.
        print("stenographer", "10kpps", &stenographer("10kpps", marks.min(3)));
    }
}

fn print(who: &str, rate: &str, fresh: &Result<Vec<f64>, String>) {
    let beside = if rate.is_empty() { "nothing" } else { rate };
    match fresh {
        Ok(fresh) => {
            let ms = Spread::of(fresh.iter().map(|s| s * 1e3));
            row(&[
                who.into(),
                beside.into(),
                fresh.len().to_string(),
                cell(ms.median, 0),
                cell(ms.min, 0),
                cell(ms.max, 0),
            ]);
        }
        Err(why) => println!("| {who} | {beside} | failed: {why} | | | |"),
    }
}

fn tapdeck(rate: &str, marks: usize) -> Result<Vec<f64>, String> {
    let dir = scratch()?;
    let net = Net::new();
    let recorder = Recorder::start(Method::INDEXED, &net, dir.path())?;
    let store = recorder.store();
    measure(&net, rate, marks, |port| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.arg("query").arg("--dir").arg(&store).arg("--count");
        let answer = Answer::of(command.args(words(&format!("udp dst port {port}"))), 0)?;
        Ok(answer.kept.trim_ascii() != b"0")
    })
}

fn stenographer(rate: &str, marks: usize) -> Result<Vec<f64>, String> {
    let dir = scratch()?;
    let net = Net::new();
    net.b.run("ethtool -K vb gro on");
    let server = Stenographer::start(&net, dir.path(), Stenotype::Records)?;
    measure(&net, rate, marks, |port| {
        let answer = server.ask(&format!("port {port}"))?;
        Ok(stenographer::packets(&answer.kept) > 0)
    })
}

/// Seconds from each of so many packets to the answer that holds it.
fn measure(
    net: &Net,
    rate: &str,
    marks: usize,
    found: impl Fn(u16) -> Result<bool, String>,
) -> Result<Vec<f64>, String> {
    let flags = format!("{MIX} --rate {rate}");
    let _traffic = if rate.is_empty() { None } else { Some(traffic::endless(net, &flags)?) };
    let mut fresh = Vec::new();
    for i in 0..marks {
        // At all times between one flush and the next: a step that is no part of a second.
        thread::sleep(Duration::from_millis(i as u64 * 137 % 1000));
        let port = PORT + i as u16;
        traffic::send_to_port(net, port)?;
        let begin = Instant::now();
        while !found(port)? {
            if begin.elapsed() > LIMIT {
                return Err(format!("not found within {} s", LIMIT.as_secs()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        fresh.push(begin.elapsed().as_secs_f64());
    }
    Ok(fresh)
}
