//! The program `tapdeck`: a command line, and a module for each command.
//!
//! `flags` holds what clap parses. A command's module resolves its flags to values that make sense
//! together, and only then touches the system. What several commands do alike stands beside them:
//! the control socket (`control`), counters (`statistics`), exit codes (`usage`), what is said
//! (`progress_line`) and in which form (`messages`), faults that last (`fault_log`), inputs and
//! outputs, charts (`chart`). Everything about
//! packets is in other crates.
//!
//! It is a library so that fuzz targets can reach what it reads ([`fuzzing`]); `main.rs` is the
//! program.
#![forbid(unsafe_code)]

mod alarm;
mod attach;
mod capture_file;
mod chart;
mod check_traffic;
mod config;
mod control;
mod ctl;
mod dist;
mod evidence;
mod extcap;
mod fault_log;
mod fetch;
mod flags;
mod flows;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod hangs;
mod interrupt;
mod listen;
mod messages;
mod outlet;
mod output_file;
mod panics;
mod pin;
mod place;
mod probe;
mod progress_line;
mod query;
mod record;
mod recording;
mod recover;
mod rights;
mod rules;
mod serve;
mod service_manager;
mod standard_input;
mod standard_output;
mod stat;
mod statistics;
mod top;
mod units;
mod unseen;
mod usage;
mod verify;
mod watch_alerts;
mod way_out;

use std::io;
use std::io::ErrorKind::BrokenPipe;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use config::file::{Words, explain, one_line};
use signal_hook::consts::SIGXFSZ;
use usage::Usage;

/// Returns the command line as clap knows it, for what is made of it: manual pages, completions.
#[doc(hidden)]
pub fn command_line() -> clap::Command {
    flags::Cli::command()
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    panics::end_the_process();
    // Where files may not become larger (setrlimit(2)), writing fails and says so, as it does on a
    // full disk; without a handler the signal would end the program as it stands.
    if let Err(e) = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default()) {
        progress_line::say(&format!("cannot listen for signals: {e}"));
        return ExitCode::FAILURE;
    }
    let words = match Words::read(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(e) => return failure(&e),
    };
    let cli = match (flags::Cli::try_parse_from(&words.all), &words.file) {
        (Ok(cli), _) => cli,
        (Err(e), Some(file)) if e.use_stderr() => {
            return failure(&Usage(file.explain(&one_line(&e))).into());
        }
        (Err(e), _) => {
            // Help and version are no errors, and clap prints them to standard output.
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    if let Err(e) = messages::begin(cli.log, &cli.command) {
        progress_line::say(&format!("{e:#}"));
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        flags::Command::Record(flags) => record::run(*flags, &words),
        flags::Command::Attach(flags) => attach::run(&flags),
        flags::Command::Serve(flags) => serve::run(&flags),
        flags::Command::Config(flags) => config::run(&flags),
        flags::Command::Probe(flags) => probe::run(&flags),
        flags::Command::Ctl(flags) => ctl::run(&flags),
        flags::Command::Query(flags) => query::run(&flags),
        flags::Command::Flows(flags) => flows::run(&flags),
        flags::Command::Fetch(flags) => fetch::run(&flags),
        flags::Command::Pin(flags) => pin::run(&flags),
        flags::Command::Pins(flags) => pin::list(&flags),
        flags::Command::Unpin(flags) => pin::remove(&flags),
        flags::Command::WatchAlerts(flags) => watch_alerts::run(&flags),
        flags::Command::Evidence(flags) => evidence::run(&flags),
        flags::Command::CheckTraffic(flags) => check_traffic::run(&flags),
        flags::Command::Extcap(flags) => extcap::run(&flags),
        flags::Command::Dist(flags) => dist::run(&flags),
        flags::Command::Recover(flags) => recover::run(&flags),
        flags::Command::Rules(flags) => rules::run(&flags),
        flags::Command::Stat(flags) => stat::run(&flags),
        flags::Command::Top(flags) => top::run(&flags),
        flags::Command::Verify(flags) => verify::run(&flags),
        flags::Command::Gen(flags) => generate::run(&flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has seen enough, which is no failure.
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(e) => failure(&explain(words.file.as_ref(), e)),
    }
}

/// Tells the user why the command did not do what it should.
fn failure(e: &anyhow::Error) -> ExitCode {
    progress_line::say_last(&format!("{e:#}"));
    ExitCode::from(usage::exit_code(e))
}
