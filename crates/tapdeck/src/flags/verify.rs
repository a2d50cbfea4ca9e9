//! Which flags does `verify` have?

use std::path::PathBuf;

use clap::Args;

use super::Shown;

/// Check everything in a store: every block, length, counter, checksum and entry of an index.
///
/// Nothing is changed, and recorders and queries may run meanwhile. Each fault is told with its
/// file and the byte of the segment; the exit code is then 1. `tapdeck recover --all` mends what
/// can be mended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck verify --dir /var/tape
  tapdeck verify --dir /mnt/copy --json | jq '.segments[] | select(.faults > 0)'")]
pub struct Verify {
    /// The store, a directory, or a copy of one at s3://BUCKET/PREFIX or https://HOST/PATH/
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    #[command(flatten)]
    pub shown: Shown,

    /// Write one JSON object to standard output instead of text
    #[arg(long)]
    pub json: bool,
}
