//! The command line's flags, and their check before anything is touched.

mod probe;
mod record;

use clap::{Parser, Subcommand};

pub use self::probe::Probe;
pub use self::record::{DeliverChoice, DirectChoice, HookChoice, Record};

/// A fault in how the command was called.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A network tap with a tape deck behind it: records packets to disk and loses none silently.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Record(Box<Record>),
    Probe(Probe),
}
