//! Which flags and verbs does `ctl` have? They say which recorder or daemon is asked, and for what.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Ask and steer a running `record` or `serve`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck ctl --dir /var/tape stats
  tapdeck ctl --dir /var/tape rotate
  tapdeck ctl groups
  tapdeck ctl filter --group ids not port 22
  tapdeck ctl rules replace ids.rules --group ids
  tapdeck ctl persist list
  tapdeck ctl --dir /var/tape watch --json | jq .captured
  tapdeck ctl --dir /var/tape metrics")]
pub struct Ctl {
    /// The control socket of the other program [default: TAPDECK_SOCKET, or
    /// /run/tapdeck/serve.sock]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,

    /// The recorder that writes into this store
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "socket")]
    pub dir: Option<PathBuf>,

    /// Print the answers as they come, one JSON object a line
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub verb: Verb,
}

/// A group of `serve`.
#[derive(Debug, Args)]
pub struct InGroup {
    /// The group of a daemon
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print the counters
    Stats,
    /// Print the counters every second, until Ctrl-C
    Watch,
    /// Print the counters as metrics, in OpenMetrics text
    Metrics {
        /// In the text format that Prometheus had before, which promtool check metrics reads
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
    },
    /// Take no packets until resume
    Pause(InGroup),
    /// Take packets again
    Resume(InGroup),
    /// Keep so many bytes of each packet from now on
    Snaplen {
        /// At most the snaplen that the recorder or the group was started with
        bytes: u32,
        #[command(flatten)]
        group: InGroup,
    },
    /// Take only packets that match from now on
    Filter {
        /// As in pcap-filter(7)
        #[arg(value_name = "EXPR", required_unless_present = "none")]
        expression: Vec<String>,
        /// Take every packet
        #[arg(long, conflicts_with = "expression")]
        none: bool,
        #[command(flatten)]
        group: InGroup,
    },
    /// Look at rules, and change them
    #[command(subcommand)]
    Rules(RulesVerb),
    /// List the groups of a daemon, with their members
    Groups,
    /// Begin a new segment; the one before can be taken away then
    Rotate,
    /// Read the configuration again: what can change at once does, and the rest is told
    Reload,
    /// List what recorders with --persist have left, or remove it
    #[command(subcommand)]
    Persist(PersistVerb),
    /// End the program in good order, and wait until it has ended
    Stop,
}

/// Rules, as lines of a rule file.
#[derive(Debug, Args)]
pub struct Lines {
    /// A rule, as 'drop src 10.0.0.0/8 dst any sport any dport any proto any'
    #[arg(value_name = "RULE")]
    pub rules: Vec<String>,
    /// Rules from a file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "rules")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub group: InGroup,
}

#[derive(Debug, Subcommand)]
pub enum PersistVerb {
    /// List lasting recordings: interfaces, hooks, when their recorder was last heard of, how full
    /// their rings are
    List,
    /// Remove a lasting recording that no recorder owns: detach its hooks, free its rings
    Drop {
        /// The name that was given to --persist
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum RulesVerb {
    /// Add rules behind those that are there
    Add(Lines),
    /// Remove rules
    Remove(Lines),
    /// Replace all rules, at once
    Replace {
        /// A rule file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        group: InGroup,
    },
    /// List the rules
    List(InGroup),
    /// List the rules with how many packets each took
    Hits(InGroup),
    /// Switch rules on again; without any, judging as a whole
    Enable(Lines),
    /// Switch rules off; without any, judging as a whole
    Disable(Lines),
    /// Take all rules away: every packet is taken then
    Reset(InGroup),
}
