//! Which flags and verbs does `rules` have? All of them work on files of rules, and none on a
//! running recorder.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Check rule files, choose their signatures, tell what they cost, and try them on a capture file.
///
/// A rule file says which packets are recorded, or which a group takes: `tapdeck record --rules
/// FILE`, or `rules = "FILE"` in a group. Nothing here needs a privilege or touches a running
/// recorder.
#[derive(Debug, Args)]
#[command(after_help = "A rule is a line, and # begins a comment:
  ACTION src ADDR[/N]|any dst ADDR[/N]|any sport N[-N]|any dport N[-N]|any proto tcp|udp|icmp|N|any
  ACTION is accept, drop, snaplen=BYTES, cutoff=SIZE or group=NAME

Of the rules that fit a packet, the most specific takes it: the one whose prefixes, ports (16) and protocol (8) have the most bits in
all; among equals the first in the file. What no rule takes is not captured. docs/RULES.md has the rest.

Examples:
  tapdeck rules test office.rules monday.pcapng
  tapdeck rules explain office.rules
  tapdeck rules compile office.rules --sample monday.pcapng --merge -o office.compiled")]
pub struct Rules {
    #[command(subcommand)]
    pub verb: RulesVerb,
}

#[derive(Debug, Subcommand)]
pub enum RulesVerb {
    Compile(Compile),
    Explain(Explain),
    Test(Test),
}

/// Choose the signatures of a set: write rules of rare prefix lengths as several rules of common
/// ones.
///
/// Each signature (lengths of both prefixes, and whether ports and protocol are looked at) costs
/// look-ups for packets, however few rules it has. What is written is a rule file, in the order in
/// which rules count, that judges every packet as the given one does; each of its rules is one of
/// the given ones or a part of one. What that saves goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck rules compile office.rules -o office.compiled
  tapdeck query --dir /var/tape --after '1h ago' -w - | tapdeck rules compile office.rules --sample - -o office.compiled")]
pub struct Compile {
    /// The rule file; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Save the most on packets as in this capture file (pcap, pcapng); - is standard input
    /// [default: one packet for each rule]
    #[arg(long, value_name = "TRACE")]
    pub sample: Option<PathBuf>,

    /// Use a damaged capture file up to the damage
    #[arg(long, requires = "sample")]
    pub up_to_damage: bool,

    /// Let the set become so many times as large at most; 1 changes no rule
    #[arg(long, value_name = "TIMES", default_value_t = 1.25, value_parser = growth)]
    pub growth: f64,

    /// Leave out rules that are not needed: duplicates, and those inside others of the same
    /// action. Their hits will count as those of other rules
    #[arg(long)]
    pub merge: bool,

    /// Write to a file, which appears when it is complete; - is standard output [default: -]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Tell the signatures of a set, what judging a packet costs, the memory it takes in the kernel,
/// and which rules are not needed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck rules explain office.rules
  tapdeck rules explain office.rules --sample monday.pcapng --json | jq .tries")]
pub struct Explain {
    /// The rule file; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Count tries on the packets of this capture file (pcap, pcapng); - is standard input
    /// [default: one packet for each rule]
    #[arg(long, value_name = "TRACE")]
    pub sample: Option<PathBuf>,

    /// Use a damaged capture file up to the damage
    #[arg(long, requires = "sample")]
    pub up_to_damage: bool,

    /// The rate of false positives that the Bloom filter promises; each costs a look-up in vain,
    /// none a wrong judgement
    #[arg(long, value_name = "SHARE", default_value_t = tapdeck_packet::rules::bloom::PROMISED_RATE)]
    pub false_positive_rate: f64,

    /// Keep the Bloom filter at so many bits, and fail where that breaks the promise [default: as
    /// many as it takes]
    #[arg(long, value_name = "BITS")]
    pub bloom_bits: Option<u64>,

    /// Write one JSON object to standard output instead of text
    #[arg(long)]
    pub json: bool,
}

/// Judge the packets of a capture file, and tell how many each rule takes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck rules test office.rules monday.pcapng
  tapdeck query --dir /var/tape 'port 53' -w - | tapdeck rules test office.rules - --json")]
pub struct Test {
    /// The rule file; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The capture file (pcap, pcapng), a store, or a directory of capture files; - is standard
    /// input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Use a damaged capture file up to the damage
    #[arg(long)]
    pub up_to_damage: bool,

    /// Write one JSON object to standard output instead of text
    #[arg(long)]
    pub json: bool,
}

fn growth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if (1.0..=1000.0).contains(&times) => Ok(times),
        _ => Err("must be a number from 1 to 1000, as 1.25".into()),
    }
}
