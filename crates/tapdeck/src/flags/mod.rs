//! The command line's flags: what clap parses, one file for each command.
//!
//! A value here has the right form and no more. Whether values make sense together, and with this
//! machine, is resolved by each command before it touches anything. Doc comments of flags are the
//! texts of `--help`.

mod attach;
mod check_traffic;
mod config;
mod ctl;
mod dist;
mod evidence;
mod extcap;
mod fetch;
mod flows;
mod generate;
mod pin;
mod probe;
mod query;
mod record;
mod recover;
mod rules;
mod serve;
mod shown;
mod stat;
mod top;
mod verify;

use clap::{Parser, Subcommand, ValueEnum};

pub use self::attach::Attach;
pub use self::check_traffic::CheckTraffic;
pub use self::config::{Config, Verb as ConfigVerb};
pub use self::ctl::{
    Ctl, InGroup as CtlGroup, Lines as CtlLines, PersistVerb as CtlPersist, RulesVerb as CtlRules,
    Verb as CtlVerb,
};
pub use self::dist::{Dist, FromChoice, LengthChoice, ToChoice};
pub use self::evidence::{Evidence, EvidenceCheck, EvidenceExport, EvidenceKeyVerb, EvidenceVerb};
pub use self::extcap::Extcap;
pub use self::fetch::Fetch;
pub use self::flows::{Flows, FlowsFormat};
pub use self::generate::{BackendChoice, GapsChoice, Gen, MethodChoice, ProtoChoice, TunnelChoice};
pub use self::pin::{Pin, PinPlace, Pins, Unpin, WatchAlerts};
pub use self::probe::Probe;
pub use self::query::Query;
pub use self::record::{
    ClockChoice, DeliverChoice, DirectChoice, EngineChoice, HookChoice, OverloadChoice, Record,
};
pub use self::recover::Recover;
pub use self::rules::{
    Compile as RulesCompile, Explain as RulesExplain, Rules, RulesVerb, Test as RulesTest,
};
pub use self::serve::Serve;
pub use self::shown::Shown;
pub use self::stat::Stat;
pub use self::top::Top;
pub use self::verify::Verify;

/// Records the packets of network interfaces to disk and loses none silently.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Cli {
    /// The form of messages on standard error; auto is lines, or the journal where a service
    /// manager has connected that
    #[arg(long, value_enum, value_name = "FORM", default_value_t = LogChoice::Auto, global = true)]
    pub log: LogChoice,

    #[command(subcommand)]
    pub command: Command,
}

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogChoice {
    /// Lines, or the journal
    Auto,
    /// A line each
    Lines,
    /// An object of JSON each, on a line
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Record(Box<Record>),
    Serve(Serve),
    Attach(Attach),
    Config(Config),
    Probe(Probe),
    Ctl(Ctl),
    Query(Query),
    Flows(Flows),
    Fetch(Fetch),
    Pin(Pin),
    Pins(Pins),
    Unpin(Unpin),
    WatchAlerts(WatchAlerts),
    Evidence(Evidence),
    Dist(Box<Dist>),
    Gen(Box<Gen>),
    CheckTraffic(CheckTraffic),
    Extcap(Extcap),
    Recover(Recover),
    Rules(Rules),
    Stat(Stat),
    Top(Top),
    Verify(Verify),
}
