//! Which flags does `probe` have?

use clap::Args;

/// Say what this kernel and its network interfaces can do.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  tapdeck probe -i eth0")]
pub struct Probe {
    /// Only this interface
    #[arg(short, long, value_name = "IFACE")]
    pub interface: Option<String>,
}
