//! Which flags does `top` have? They say who is watched, and how often.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units;

/// Watch a running `record` or `serve` in the terminal, and who talks in a store: rates, what
/// becomes of packets, rings and disk, flows and hosts of the last minute, groups and members.
///
/// Without flags a daemon is watched. With `--dir` it is the recorder into that store; where none
/// runs, what the store holds is shown, with the flows and hosts of its last minute. Flows and
/// hosts are counted from pieces of the recording that the index names. Of a busy minute not all
/// pieces are read, so that watching harms no recording: the figures are estimates then, and the
/// screen says so. `h` lists the keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck top --dir /var/tape
  tapdeck top
  tapdeck top --socket /run/tapdeck/eth0.sock --dir /var/tape --interval 5s
  tapdeck top --dir /var/tape --once | mail -s 'who talks' noc@example.org")]
pub struct Top {
    /// The control socket of the recorder or daemon [default: that in --dir; without --dir
    /// TAPDECK_SOCKET, or /run/tapdeck/serve.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The store that is shown, and its recorder if one runs
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// How often the figures change
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::interval)]
    pub interval: Duration,

    /// Print everything once, after an interval, as plain text
    #[arg(long)]
    pub once: bool,
}
