//! The command line's flags, and their check before anything is touched.

mod check_traffic;
mod dist;
mod generate;
mod probe;
mod query;
mod record;
mod recover;
mod stat;
mod verify;

use clap::{Parser, Subcommand};

pub use self::check_traffic::CheckTraffic;
pub use self::dist::{Dist, FromChoice, LengthChoice, ToChoice};
pub use self::generate::{BackendChoice, GapsChoice, Gen, MethodChoice, ProtoChoice, TunnelChoice};
pub use self::probe::Probe;
pub use self::query::Query;
pub use self::record::{DeliverChoice, DirectChoice, HookChoice, Record};
pub use self::recover::Recover;
pub use self::stat::Stat;
pub use self::verify::Verify;

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
    Query(Query),
    Dist(Box<Dist>),
    Gen(Box<Gen>),
    CheckTraffic(CheckTraffic),
    Recover(Recover),
    Stat(Stat),
    Verify(Verify),
}
