//! The program `tapdeck-gateway`: what recorders hold and count, for those who may have it.
//!
//! A recorder opens no port. Who wants to know how it does, or what it has, asks the gateway: a
//! process of its own, with a user of its own, which reads stores and connects to control sockets
//! and can do nothing else. What faces the network shares no process with what faces the wire.
//!
//! - [`config`]: one TOML file, read and checked before anything is touched.
//! - [`foresee`]: what a configuration would have the gateway do.
//! - [`server`]: listeners and connections, each of them bounded.
//! - [`control`]: asks recorders and daemons for their statistics.
//! - [`routes`]: what can be asked for, and what all requests share.
//! - [`health`]: is a recorder as it should be?
//! - [`tls`], [`asker`], [`access`]: who is it that asks, and what may they have?
//! - [`api`]: questions for packets and for what stores hold; [`steno`]: those in stenographer's
//!   language.
//! - [`condition`], [`check`], [`answer`], [`rows`], [`report`]: how such a question is answered.
//! - [`pins`], [`wanted`]: packets that are kept from retention; [`copying`]: how their copies come
//!   to be.
//! - [`console`]: the page for browsers; [`typing`]: what it asks before there is a question.
//! - [`audit`]: what was asked, by whom.
//! - [`openapi`]: what can be asked, for programs.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod api;
mod asker;
mod audit;
mod check;
mod condition;
mod config;
mod console;
mod control;
mod copying;
mod foresee;
mod health;
mod openapi;
mod own;
mod pins;
#[cfg(test)]
#[path = "../../../fuzz/checks/question.rs"]
mod question;
mod report;
mod routes;
mod rows;
mod server;
mod steno;
mod time;
mod tls;
mod typing;
mod wanted;
#[cfg(test)]
#[path = "../../../fuzz/checks/wanted.rs"]
mod wanted_check;
mod watch;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tapdeck_packet::printable;

use crate::config::{Config, Wrong};
use crate::routes::Gateway;

/// Serve what recorders hold and count over HTTP, to those who may have it
#[derive(Debug, Parser)]
#[command(
    name = "tapdeck-gateway",
    version,
    group = clap::ArgGroup::new("served").args(["config", "store"]).required(true),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  tapdeck-gateway --store /var/tape
  tapdeck-gateway --config /etc/tapdeck/gateway.toml
  tapdeck-gateway check /etc/tapdeck/gateway.toml
  tapdeck-gateway token new alice
  curl http://127.0.0.1:9670/metrics"
)]
struct Flags {
    /// What is served, where and to whom: docs/GATEWAY.md has the keys
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Serve one store to yourself alone, and print the address of its console
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with a configuration, or what it would do: listeners, stores, who may have
    /// what
    ///
    /// Nothing is served. The exit code is 1 where the file cannot be used.
    Check {
        /// A file for --config
        file: PathBuf,
    },
    /// Make tokens, by which users show who they are
    #[command(subcommand)]
    Token(Token),
    /// Print openapi.json, which says for programs what can be asked
    Openapi,
    /// Compile the filter on standard input: the gateway runs itself so
    #[command(hide = true)]
    CheckFilter,
}

#[derive(Debug, Subcommand)]
enum Token {
    /// Make a token, and print it and the line for the configuration
    New {
        /// The user's name, as in the configuration
        name: String,
    },
}

/// Writes a line to standard error. Where nobody can be told, the gateway goes on.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "tapdeck-gateway: {}", printable::lines(text));
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
    let result = match (&flags.command, &flags.config, &flags.store) {
        (Some(Command::CheckFilter), ..) => return check::main(),
        (Some(Command::Check { file }), ..) => return check_file(file),
        (Some(Command::Openapi), ..) => {
            print!("{}", openapi::text());
            Ok(())
        }
        (Some(Command::Token(Token::New { name })), ..) => new_token(name),
        (None, Some(config), _) => Config::read(config).and_then(|config| run(&config, None)),
        (None, None, Some(store)) => run_store(store),
        (None, None, None) => unreachable!("clap asks for one of them"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("{e:#}"));
            ExitCode::from(if e.is::<Wrong>() { 2 } else { 1 })
        }
    }
}

/// Says what a configuration would do.
fn check_file(file: &Path) -> ExitCode {
    let said = foresee::foresee(file).and_then(|page| {
        let mut out = io::stdout().lock();
        out.write_all(printable::lines(&page).as_bytes())?;
        Ok(out.flush()?)
    });
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("{e:#}"));
            ExitCode::FAILURE
        }
    }
}

fn new_token(name: &str) -> Result<()> {
    let (token, hash) = access::new_token(name).map_err(anyhow::Error::msg)?;
    println!("{token}");
    say("this token is shown once; in the configuration, the user has");
    println!("token = \"{hash}\"");
    Ok(())
}

fn run_store(directory: &Path) -> Result<()> {
    std::fs::read_dir(directory)
        .with_context(|| format!("cannot read the store {}", directory.display()))?;
    let (config, token) = Config::of_store(directory).map_err(anyhow::Error::msg)?;
    run(&config, Some(&token))
}

/// Serves until the end. Who has a token for the console gets its address with that.
fn run(config: &Config, token: Option<&str>) -> Result<()> {
    yield_to_recorders();
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(32)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    for fault in foresee::pin_faults(config) {
        say(&fault);
    }
    let gateway = Arc::new(Gateway::new(config)?);
    let copying = copying::start(gateway.clone()).context("cannot start a thread")?;
    let served = runtime.block_on(serve(gateway.clone(), config, token));
    gateway.ending.cancel();
    gateway.pinned.ring();
    let copied = copying.join();
    served?;
    copied.map_err(|_| anyhow::anyhow!("the thread that copies what pins want has failed"))
}

/// Serves until a signal asks for the end.
async fn serve(gateway: Arc<Gateway>, config: &Config, token: Option<&str>) -> Result<()> {
    let server = server::Server::bind(&config.listen).await?;
    for address in server.addresses() {
        say(&format!("listening at {address}"));
        if let Some(token) = token {
            // Where nobody reads it, the gateway goes on until it is ended.
            let _ = writeln!(io::stdout(), "{address}/console/#token={token}");
        }
    }
    let ending = gateway.ending.clone();
    let counting = gateway.clone();
    let counting = tokio::spawn(async move { counting.count_strangers().await });
    server.run(routes::router(gateway), ending).await?;
    Ok(counting.await?)
}

/// Takes as many descriptors as there may be: each connection is one.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Where this is refused, fewer connections are heard at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Lets recorders go first, at the processor and at the disk. Threads that come later do the same.
fn yield_to_recorders() {
    // Where this is refused, the gateway works as well and is only less polite.
    let _ = rustix::process::nice(10);
    let _ = tapdeck_store::io::yield_disk();
}
