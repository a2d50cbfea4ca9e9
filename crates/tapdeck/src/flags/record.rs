//! Which flags does `record` have? They say what is taken and where, what of it is kept, where it
//! goes and for how long.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tapdeck_capture::flows::{MAX_CUTOFF, MOST_FLOWS, TABLE_BYTES};
use tapdeck_capture::groups::MAX_WEIGHT;
use tapdeck_capture::{Hook, SHED_LEAST};
use tapdeck_store::MinFree;

use crate::units::{self, counted};

/// Record the packets of network interfaces, until Ctrl-C.
///
/// SIGUSR1 prints what was recorded so far, and recording goes on. With --config, SIGHUP has the
/// file read again. SIGINT, SIGTERM, SIGQUIT, SIGUSR2 and, without a file, SIGHUP end it in good
/// order, a second one of them at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck record -i eth0 --dir /var/tape --keep-bytes 100GiB
  tapdeck record -i eth0,eth1 --hook xdp --dir /var/tape --keep-time 7d --min-free 5%
  tapdeck record -i eth0 -w - | tshark -r -
  tapdeck record -i eth0 --persist eth0 --dir /var/tape
  tapdeck record --config /etc/tapdeck/record.d/eth0.toml
  tapdeck record --group ids --dir /var/tape
  tapdeck record -i eth0 -w dns.pcapng --duration 30s port 53
  tapdeck record -i 'eth*' --dir /var/tape --file-group analysts")]
pub struct Record {
    /// Take what the command line does not say from this TOML file, whose keys are these flags
    /// without dashes, as keep-bytes = "100GiB"; names of files are seen from there
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Interfaces to record, separated by commas; of patterns with * and ?, and of any, those that
    /// are up, and those that come up later
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE[,IFACE]",
        value_delimiter = ',',
        value_parser = units::interface,
        required_unless_present = "group"
    )]
    pub interfaces: Vec<String>,

    /// Record as a member of this group of a running `tapdeck serve`, which has the hooks
    #[arg(long, value_name = "NAME", conflicts_with_all = ["interfaces", "hook", "deliver", "snaplen", "filter", "rules", "rules_engine", "cutoff", "no_promiscuous", "expression", "no_device_bound", "clock", "on_overload", "shed_to", "ring_bytes", "block_bytes", "flush", "abandon"])]
    pub group: Option<String>,

    /// The share of the group's traffic, relative to its other members
    #[arg(long, value_name = "N", default_value_t = 1, requires = "group", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WEIGHT)))]
    pub weight: u32,

    /// Listen here for `tapdeck ctl` [default: .tapdeck.sock in the store]; with --group, the
    /// daemon's socket [default: TAPDECK_SOCKET, or /run/tapdeck/serve.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Record into a store: a directory of pcapng segments
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Record into one pcapng file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Do everything but write, for experiments
    #[arg(long)]
    pub no_store: bool,

    /// Where packets are taken; auto: tcx where the interface carries an IP address or has no XDP,
    /// else xdp
    #[arg(long, value_name = "HOOK", default_value = "auto", value_parser = hook_choice())]
    pub hook: HookChoice,

    /// What happens to a packet after capture [default: pass; afxdp can only consume]
    #[arg(long, value_enum)]
    pub deliver: Option<DeliverChoice>,

    /// Let --deliver consume take the packets of the interface that has the default route
    #[arg(long)]
    pub yes_this_interface: bool,

    /// Keep at most so many bytes of a packet
    #[arg(long, value_name = "BYTES", default_value = "262144", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: u32,

    /// Record only packets that match, as in pcap-filter(7)
    #[arg(long, value_name = "EXPR", conflicts_with = "expression")]
    pub filter: Option<String>,

    /// The same as --filter; several words are joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Accepted for fingers that know tcpdump: nothing is looked up
    #[arg(short, hide_short_help = true)]
    pub n: bool,

    // The hooks are those that take rules.
    #[arg(long, value_name = "FILE", help = rules_help())]
    pub rules: Option<PathBuf>,

    /// How rules are looked up: by candidates, or by walking through all signatures, for
    /// comparisons
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = EngineChoice::Candidates)]
    pub rules_engine: EngineChoice,

    // The hooks are those that take rules.
    #[arg(long, value_name = "SIZE|off", value_parser = cutoff_choice, help = cutoff_help())]
    pub cutoff: Option<CutoffChoice>,

    /// Do not put the interfaces into promiscuous mode
    #[arg(short = 'p', long)]
    pub no_promiscuous: bool,

    /// Bind no XDP program to its device: without the NIC's time, and without VLAN tags that a
    /// NIC takes off
    #[arg(long)]
    pub no_device_bound: bool,

    /// What packets are stamped by at hooks of programs: the NIC's clock (hardware), or the
    /// kernel's, read for each packet (packet), or for each NAPI poll and every 16 packets of it
    /// (batch); auto: the NIC's where it is set to UTC, else batch where packets come in polls
    #[arg(long, value_enum, value_name = "CLOCK", default_value_t = ClockChoice::Auto)]
    pub clock: ClockChoice,

    /// What goes first when packets come faster than they can be written: packets (drop), or
    /// payload (shed): while a ring is more than three quarters full, the beginning of each packet
    /// is kept, and all of it again below half [default: drop]
    #[arg(long, value_enum, value_name = "drop|shed")]
    pub on_overload: Option<OverloadChoice>,

    /// How many bytes of a packet are kept while payload is shed; at seven eighths of the ring,
    /// only 64, or the headers where those are shorter [default: 96]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(i64::from(SHED_LEAST)..=262_144))]
    pub shed_to: Option<u32>,

    /// Begin a new segment at this size [default: 1GiB, or an eighth of --keep-bytes if that is
    /// less]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub segment_size: Option<u64>,

    /// Begin a new segment when one is this old
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub segment_time: Duration,

    /// What was written so long ago survives a power cut: it is made durable (fsync(2)) twice in
    /// that time; off: only closed segments are [default: 5s]
    #[arg(long, value_name = "TIME|off", value_parser = sync_choice)]
    pub sync_interval: Option<SyncChoice>,

    /// Delete the oldest segments so that the store takes at most this much
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub keep_bytes: Option<u64>,

    /// Delete segments whose last packet is older, by the time that passed and not by the clock; at
    /// most as much as is written, and two segments
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub keep_time: Option<Duration>,

    /// Keep at most so many segments
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_segments: Option<u64>,

    /// Delete the oldest segments so that so much of the disk stays free; at most as much as is
    /// written, and two segments
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = units::min_free)]
    pub min_free: Option<MinFree>,

    /// Memory for the rings of each interface
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::size)]
    pub ring_bytes: u64,

    /// Unit of the rings and of writing, a power of two from 64KiB to 4MiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = units::size)]
    pub block_bytes: u64,

    /// A packet is in the output and readable within this time, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::flush)]
    pub flush: Duration,

    /// Leave hooks and rings in place under this name when the recorder ends or dies, and go on
    /// from those that are there: no packet is lost meanwhile as long as the rings hold it
    #[arg(long, value_name = "NAME", requires = "dir", conflicts_with_all = ["group", "count"])]
    pub persist: Option<String>,

    /// Let packets pass unrecorded when the recorder has not run for so long, at least 3s
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::abandon)]
    pub abandon: Duration,

    /// Write past the page cache (O_DIRECT), and then before other threads get the CPU
    /// (SCHED_FIFO); auto: where the file system can
    #[arg(long, value_enum, default_value_t = DirectChoice::Auto)]
    pub direct: DirectChoice,

    /// Do not index the store: queries read all of it
    #[arg(long)]
    pub no_index: bool,

    /// Index on so many threads [default: one for each four rings]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub index_threads: Option<u32>,

    /// Index on this CPU only
    #[arg(long, value_name = "CPU")]
    pub index_cpu: Option<u32>,

    /// Stop after so many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// The user that the recorder becomes, without capabilities: a process of its own keeps those
    /// that hooks take [default: tapdeck, where root records and there is such a user]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// The group of the store's directory and files, which reads them [default: tapdeck, where root
    /// makes the store and there is such a group]
    #[arg(long, value_name = "NAME")]
    pub file_group: Option<String>,

    /// The permission of the store's files [default: 0640]
    #[arg(long, value_name = "MODE", value_parser = units::file_mode)]
    pub file_mode: Option<u32>,

    /// Write one JSON object of counters a second, and a last one; - is standard output
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,
}

impl Record {
    /// Returns the filter, in whichever form it is given.
    pub fn filter(&self) -> Option<String> {
        if self.expression.is_empty() {
            return self.filter.clone();
        }
        Some(self.expression.join(" "))
    }
}

/// How long what was written may take to be durable; none is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncChoice(pub Option<Duration>);

/// Reads a time span of at least 100 ms, or `off`.
fn sync_choice(s: &str) -> Result<SyncChoice, String> {
    match s {
        "off" => Ok(SyncChoice(None)),
        s => units::flush(s).map(|time| SyncChoice(Some(time))),
    }
}

impl Default for SyncChoice {
    fn default() -> Self {
        Self(Some(Duration::from_secs(5)))
    }
}

/// How many bytes each flow may have; none is as many as come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutoffChoice(pub Option<NonZeroU32>);

/// Reads a size of at most [`MAX_CUTOFF`], or `off`.
fn cutoff_choice(s: &str) -> Result<CutoffChoice, String> {
    if s == "off" {
        return Ok(CutoffChoice(None));
    }
    let bytes = u32::try_from(units::size(s)?).ok().filter(|bytes| *bytes <= MAX_CUTOFF);
    let bytes = bytes.and_then(NonZeroU32::new).ok_or("must be at most 2GiB")?;
    Ok(CutoffChoice(Some(bytes)))
}

fn cutoff_help() -> String {
    format!(
        "Record no more of a flow, its two directions together, than its first SIZE bytes and the packet that reaches them; what begins or ends a TCP connection is always recorded. A table of {} MiB for each interface knows the last {}, and of others all is recorded; hooks {} [default: off]",
        TABLE_BYTES >> 20,
        counted(u64::from(MOST_FLOWS), "flow"),
        Hook::list(Hook::takes_rules, "and")
    )
}

/// The hook that the user names, or none: then the interface decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookChoice(pub Option<Hook>);

fn hook_choice() -> impl TypedValueParser<Value = HookChoice> {
    let names = std::iter::once("auto").chain(Hook::ALL.map(Hook::name));
    PossibleValuesParser::new(names).map(|name| HookChoice(Hook::named(&name)))
}

fn rules_help() -> String {
    format!(
        "Record only packets that a rule of this file accepts; hooks {}; - is standard input",
        Hook::list(Hook::takes_rules, "and")
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockChoice {
    Auto,
    Packet,
    Batch,
    Hardware,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverloadChoice {
    Drop,
    Shed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum EngineChoice {
    Candidates,
    Walk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliverChoice {
    /// The packet goes on as if nobody had looked
    Pass,
    /// The packet ends here
    Consume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectChoice {
    Auto,
    On,
    Off,
}
