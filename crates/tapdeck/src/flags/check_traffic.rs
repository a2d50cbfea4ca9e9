//! Which flags does `check-traffic` have? They name what was sent and the recording of what came.

use std::path::PathBuf;

use clap::Args;

/// Say what of generated traffic came back: lost, repeated, reordered and damaged packets.
///
/// Every packet of the recording is compared, byte for byte, with the one that `tapdeck gen` made.
/// The exit code is 1 if any was lost or damaged, or captured too short to tell, or if a store
/// lacks segments.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck gen -i eth1 --count 1000000 --rate 500kpps --json sent.json
  tapdeck check-traffic /var/tape --sent sent.json
  tapdeck check-traffic a.pcap b.pcapng --sent sent.json --routed --json
  ssh router tcpdump -w - -i eth0 | tapdeck check-traffic - --sent sent.json")]
pub struct CheckTraffic {
    /// Capture files, stores, or - for standard input; together they are one recording
    #[arg(value_name = "FILE|DIR", required = true)]
    pub recording: Vec<PathBuf>,

    /// What was sent: the file that gen wrote with --json
    #[arg(long, value_name = "SENT.json")]
    pub sent: PathBuf,

    /// The packets were routed: Ethernet addresses and hop limits may differ
    #[arg(long)]
    pub routed: bool,

    /// Use a damaged or cut file up to the damage
    #[arg(long)]
    pub up_to_damage: bool,

    /// Show so many of the worst streams
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub streams: usize,

    /// Write one JSON object to standard output, with all streams that have faults, instead of the
    /// tables
    #[arg(long)]
    pub json: bool,
}
