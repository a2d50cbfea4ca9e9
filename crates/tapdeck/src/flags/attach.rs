//! Which flags does `attach` have? They say of which group to become a member, how, and where its
//! packets go.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tapdeck_capture::groups::MAX_WEIGHT;

use crate::listen;
use crate::units;

/// Attach to a group of a running `serve`, and write the packets that it gives as pcapng
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck attach --group ids | tshark -r -
  tapdeck attach --group ids -w ids.pcapng --duration 10s
  tapdeck attach --group ids --weight 3 -w - | tcpdump -nr -")]
pub struct Attach {
    /// The group of the daemon
    #[arg(long, value_name = "NAME")]
    pub group: String,

    /// The daemon's socket [default: TAPDECK_SOCKET, or /run/tapdeck/serve.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Write here; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub write: PathBuf,

    /// Give packets over TCP to whoever connects, one reader at a time, as a pcap file; a port
    /// alone is of this machine alone
    ///
    /// Wireshark reads it as `-i TCP@ADDR:PORT`, Arkime by its pcap-over-ip-client. There is a
    /// member as long as somebody reads. Nothing is encrypted, and nobody is asked who they are.
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = listen::address, conflicts_with_all = ["write", "count", "duration"])]
    pub listen: Option<SocketAddr>,

    /// The share of the group's traffic, relative to its other members
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WEIGHT)))]
    pub weight: u32,

    /// Stop after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
}
