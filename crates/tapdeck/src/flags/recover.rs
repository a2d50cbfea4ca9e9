//! Which flags does `recover` have? They name the store, and what beside live segments is mended.

use std::path::PathBuf;

use clap::Args;

/// Mend what a crash left of a store; no packet that can be read is lost.
///
/// Segments that their recorder did not close get their end: what is torn there is cut, damage in
/// the middle is replaced with fill, so that the packets behind it can be read, and statistics are
/// written. So do closed segments that were cut short, as by a copy that broke off. Then segments
/// whose index is missing or damaged get one, from what is left of it. A store
/// that a recorder is writing is refused; `tapdeck record` recovers its own store when it starts.
/// The exit code is 1 if something could not be mended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck recover --dir /var/tape --dry-run
  tapdeck recover --dir /var/tape
  tapdeck recover --dir /mnt/copy --all --json")]
pub struct Recover {
    /// The store
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// Read closed segments and indexes from beginning to end too, not only those that do not end
    /// as they should
    #[arg(long)]
    pub all: bool,

    /// Make no index
    #[arg(long)]
    pub no_index: bool,

    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Write one JSON object to standard output instead of text
    #[arg(long)]
    pub json: bool,
}
