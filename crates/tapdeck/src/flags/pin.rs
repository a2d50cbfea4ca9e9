//! Which flags do `pin`, `pins`, `unpin` and `watch-alerts` have? They name a store, the packets
//! that are to outlive its retention, and how much room those have.

use std::path::PathBuf;

use clap::Args;
use tapdeck_packet::community_id::CommunityId;

use crate::pin::moment;
use crate::query::time;
use crate::units;

/// The store, and the directory of its pins.
#[derive(Debug, Args)]
pub struct PinPlace {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// The directory of pins [DIR.evidence]
    #[arg(long, value_name = "PATH")]
    pub evidence: Option<PathBuf>,
}

/// Keep packets of a store from its retention: copy them into a directory beside it.
///
/// The span may end in time to come. Then this goes on until it does, and copies every minute what
/// came; whoever is stopped, by Ctrl-C or a restart, goes on by `tapdeck pins --resume`, or beside
/// `tapdeck watch-alerts`. Copying reads as `tapdeck query` does: it waits for the recorder at
/// the disk and at the processor.
///
/// Nothing that is pinned is ever deleted for room: a pin that finds the budget full is refused.
/// The exit code is 1 then, or if packets that were recorded are damaged or missing.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        time::in_help!(),
        "; or +10m, in ten minutes

Examples:
  tapdeck pin --dir /var/tape host 10.0.0.7 --after -2m --before +10m --reason 'case 7'
  tapdeck pin --dir /var/tape --community-id 1:LQU9qZlK+B5F3KDmev6m5PMibrg= --after 14:02 --before 14:05 --until 2027-01-01 --reason 'case 8'
  tapdeck query --dir /var/tape.evidence/pin-00000001/packets"
    )
)]
pub struct Pin {
    #[command(flatten)]
    pub place: PinPlace,

    /// Only packets that match, as in pcap-filter(7) and for `tcpdump -r`; several words are
    /// joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Only packets of the flow that Zeek, Suricata and others call so
    #[arg(long, value_name = "ID")]
    pub community_id: Option<CommunityId>,

    /// Also packets with a matching packet inside a tunnel
    #[arg(long)]
    pub inner: bool,

    /// Packets from this time on
    #[arg(long, value_name = "T", value_parser = moment, allow_hyphen_values = true)]
    pub after: i64,

    /// Packets from before this time
    #[arg(long, value_name = "T", value_parser = moment, allow_hyphen_values = true)]
    pub before: i64,

    /// How long the pin is kept; it is removed when another is made after that [until `unpin`]
    #[arg(long, value_name = "T", value_parser = moment, allow_hyphen_values = true)]
    pub until: Option<i64>,

    /// Why, for those who read it later
    #[arg(long, value_name = "TEXT")]
    pub reason: String,

    /// How much all pins of the store may take, from now on [10GiB, or what was said before]
    #[arg(long = "pin-bytes", value_name = "SIZE", value_parser = units::size)]
    pub budget: Option<u64>,
}

/// List the pins of a store, and what the recording lacked; or go on with those that are not done.
#[derive(Debug, Args)]
pub struct Pins {
    #[command(flatten)]
    pub place: PinPlace,

    /// Go on with pins that are not done, until they are
    #[arg(long)]
    pub resume: bool,

    /// Write one JSON object a pin
    #[arg(long, conflicts_with = "resume")]
    pub json: bool,
}

/// Remove pins and their packets.
#[derive(Debug, Args)]
pub struct Unpin {
    #[command(flatten)]
    pub place: PinPlace,

    /// The pins, as `tapdeck pins` numbers them
    #[arg(value_name = "NUMBER", required = true)]
    pub numbers: Vec<u64>,
}

/// Pin the packets of alerts that Suricata writes as EVE JSON, until Ctrl-C.
///
/// The file is followed over its rotation, from where it was read to before. Alerts of the same
/// flow within a pin's span make the pin longer; there are no more pins than the rules allow, and
/// what was not pinned is told. Pins that are not done go on meanwhile, also those that `tapdeck
/// pin` made.
#[derive(Debug, Args)]
#[command(after_help = "A file of rules, in TOML; the first rule that fits an alert counts:
  [limits]
  open-pins = 100                 # under way at once
  pins-per-hour = 200
  longest = \"1h\"                  # of a pin whose alerts go on
  [[rule]]
  name = \"trojans\"
  severity = 1                    # and what is more severe
  categories = [\"A Network Trojan was detected\"]
  signature-ids = [2024897]
  signatures = [\"MALWARE\"]        # a part of the text
  pin = \"flow\"                    # hosts, source, destination, nothing
  before = \"2m\"
  after = \"10m\"
  keep = \"90d\"                    # else until `tapdeck unpin`

Example:
  tapdeck watch-alerts --eve /var/log/suricata/eve.json --rules pins.toml --dir /var/tape")]
pub struct WatchAlerts {
    #[command(flatten)]
    pub place: PinPlace,

    /// The file that alerts are written to
    #[arg(long, value_name = "FILE")]
    pub eve: PathBuf,

    /// Which alerts pin packets, and which
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,

    /// Where nobody has read the file before, read it from its beginning and not from its end
    #[arg(long)]
    pub from_start: bool,

    /// End at the end of the file; `tapdeck pins --resume` copies what was pinned
    #[arg(long)]
    pub until_end: bool,

    /// How much all pins of the store may take, from now on [10GiB, or what was said before]
    #[arg(long = "pin-bytes", value_name = "SIZE", value_parser = units::size)]
    pub budget: Option<u64>,
}
