//! Which flags does `config` have? They name files that other commands are configured by.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Look at configuration files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck config check /etc/tapdeck/record.d/*.toml
  tapdeck config check /etc/tapdeck/serve.toml")]
pub struct Config {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Say what is wrong with configuration files of record and serve, with line and key, and what
    /// each would do: hooks, store, how long packets stay, memory, rights
    ///
    /// Nothing is recorded or attached. The exit code is 1 where a file cannot be used.
    Check {
        /// A file for --config of record or of serve
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}
