//! The program `tapdeck-remote`: what `tapdeck` asks of networks.
//!
//! `tapdeck` records and links no HTTP and no TLS. So what asks others is this program, without any
//! rights, which `tapdeck` runs. For `query --remote` it asks gateways of many sensors, writes
//! pcapng to standard output and says on standard error which sensors do not answer, or not in
//! full. For a store at a URL it reads objects and ranges, and knows nothing of packets.
//!
//! - [`config`]: which sensors, and what is shown to each.
//! - [`ask`]: one sensor's gateway, and its answer as a stream of bounded size.
//! - [`answer`]: that stream, packet by packet, up to its end, which says how whole it is.
//! - [`merge`]: all of them by time.
//! - [`relay`]: a store elsewhere for whoever started this program. How it is read is the library's
//!   business ([`tapdeck_remote`]).
#![forbid(unsafe_code)]

mod answer;
mod ask;
mod config;
mod flags;
mod merge;
mod relay;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use tapdeck_packet::printable;

use crate::config::Wrong;
use crate::flags::{Flags, Verb};

/// Writes a line to standard error. Where nobody can be told, the answer goes on.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "tapdeck-remote: {}", printable::lines(text));
}

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(e) => {
            // Help and version are no errors, and clap prints them to standard output.
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    let outcome = match flags.verb {
        Verb::Query(query) => {
            config::resolve(&query).and_then(|sensors| merge::run(&query, sensors))
        }
        Verb::Relay(flags) => relay::run(&flags).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of our output has seen enough, which is no failure.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("{e:#}"));
            ExitCode::from(if e.is::<Wrong>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
