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
use std::process::{ExitCode, exit};

use clap::Parser;
use tapdeck_packet::printable;

use crate::config::Wrong;
use crate::flags::{Flags, Verb};

/// Writes a line to standard error. Where nobody can be told, the answer goes on.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "tapdeck-remote: {}", printable::lines(text));
}

/// Ends the process, with exit code 1, as soon as any of its threads panics: others would wait for
/// what that thread was to do.
fn end_with_any_thread() {
    std::panic::set_hook(Box::new(|info| {
        let what = info.to_string().replace('\n', " ");
        say(&format!("{what}: this is a fault of tapdeck, please report it"));
        exit(1)
    }));
}

fn main() -> ExitCode {
    end_with_any_thread();
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Set for the process that is to fail, which is this test once more.
    const FAILS: &str = "TAPDECK_TEST_FAILS";

    #[test]
    fn a_thread_that_fails_ends_the_process() {
        if std::env::var_os(FAILS).is_some() {
            super::end_with_any_thread();
            // The process ends while this waits.
            let _ = std::thread::spawn(|| panic!("a range of {} bytes", -1)).join();
            std::process::exit(0);
        }
        let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
        command.args(["tests::a_thread_that_fails_ends_the_process", "--exact", "--nocapture"]);
        let output = command.env(FAILS, "1").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(" a range of -1 bytes: this is a fault of tapdeck"), "{said}");
    }
}
