//! The program `tapdeck-gateway`: what recorders hold and count, for those who may have it.
//!
//! A recorder opens no port. Who wants to know how it does, or what it has, asks the gateway: a
//! process of its own, with a user of its own, which reads stores and connects to control sockets
//! and can do nothing else. What faces the network shares no process with what faces the wire.
//!
//! - [`config`]: one TOML file, read and checked before anything is touched.
//! - [`server`]: listeners and connections, each of them bounded.
//! - [`control`]: asks recorders and daemons for their statistics.
//! - [`routes`]: what can be asked for.
//! - [`health`]: is a recorder as it should be?
#![forbid(unsafe_code)]

mod config;
mod control;
mod health;
mod routes;
mod server;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser;
use tapdeck_packet::printable;

use crate::config::{Config, Wrong};
use crate::routes::Gateway;

/// Serve what recorders count over HTTP
#[derive(Debug, Parser)]
#[command(
    name = "tapdeck-gateway",
    version,
    after_help = "Example:
  tapdeck-gateway --config /etc/tapdeck/gateway.toml
  curl http://127.0.0.1:9670/metrics"
)]
struct Flags {
    /// What is served, and where: docs/GATEWAY.md has the keys
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
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
    match run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("{e:#}"));
            ExitCode::from(if e.is::<Wrong>() { 2 } else { 1 })
        }
    }
}

fn run(flags: &Flags) -> Result<()> {
    let config = Config::read(&flags.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    runtime.block_on(async {
        let gateway = Arc::new(Gateway::new(&config));
        let server = server::Server::bind(&config.listen).await?;
        for address in server.addresses() {
            say(&format!("listening at {address}"));
        }
        server.run(routes::router(gateway)).await
    })
}
