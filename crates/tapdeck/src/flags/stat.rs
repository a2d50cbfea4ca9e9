//! Which flags does `stat` have? They name the store and the span, and say for whom the report is.

use std::path::PathBuf;

use clap::Args;

use super::Shown;
use crate::query::time;

/// Tell what is in a store, also while it is being recorded: how much, from when, what was lost,
/// who talks.
///
/// Read from the indexes of the store, not from its packets. The number of packets is exact. A
/// segment without an index counts by the statistics at its end; what it holds is not in the chart
/// and not among hosts and ports until `tapdeck recover` has made its index.
///
/// Hosts and ports are listed by the share of the recording's pieces that they appear in, as source
/// or destination, at any depth of a tunnel; a piece is about 128 KiB of packets. So a host with 40
/// % was there in 40 % of the recording, whether it sent much or little. `lost` are packets that
/// the recorder dropped; losses that are less than a second apart are one gap, and its times are
/// those of the pieces that tell of it.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        time::in_help!(),
        "

Examples:
  tapdeck stat --dir /var/tape
  tapdeck stat --dir /var/tape --after -1h --top 20
  tapdeck stat --dir /var/tape --json | jq '.gaps'"
    )
)]
pub struct Stat {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing, or a copy of one at
    /// s3://BUCKET/PREFIX or https://HOST/PATH/; or a pcap or pcapng file, or a directory of such
    /// files, which are read from end to end
    #[arg(short = 'r', long, value_name = "PATH")]
    pub dir: PathBuf,

    #[command(flatten)]
    pub shown: Shown,

    /// Only what was recorded from this time on
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub after: Option<i64>,

    /// Only what was recorded before this time
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub before: Option<i64>,

    /// List so many hosts and ports; 0 is none, which is faster where there are very many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(..=1000))]
    pub top: u16,

    /// Count by what stands in the segments alone, as if there were no indexes
    #[arg(long)]
    pub no_trust_index: bool,

    /// Write one JSON object to standard output instead of text
    #[arg(long)]
    pub json: bool,
}
