//! Which flags does `extcap` have? Those by which Wireshark asks what there is to be captured and
//! has it captured, those that it makes of what its user chose, and those that install it.

use std::path::PathBuf;

use clap::Args;
use tapdeck_capture::groups::MAX_WEIGHT;

/// Capture for Wireshark: recordings, from some time back and then live, and groups of a daemon.
///
/// Wireshark runs this by itself once it is installed, and lists the interfaces tapdeck:STORE, a
/// recording, and deck:NAME, a group of a running `serve`. Stores are those that are recorded into
/// on this machine, those in /var/lib/tapdeck, and those that the environment variable
/// TAPDECK_STORES names, separated by colons.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  tapdeck extcap --install --user
  tshark -i tapdeck:/var/tape -Y http
  tshark -i tapdeck:/var/tape -o 'extcap.tapdeck__var_tape.rewind:10m' -f 'port 53'"
)]
#[allow(clippy::struct_field_names, reason = "Wireshark names its flags so")]
pub struct Extcap {
    /// Install it for all users, where Wireshark looks for programs that capture
    #[arg(long)]
    pub install: bool,

    /// Install it for this user alone (Wireshark 4.2 and later)
    #[arg(long, requires = "install")]
    pub user: bool,

    /// Install it here [default: where tshark says; WIRESHARK_EXTCAP_DIR]
    #[arg(long, value_name = "DIR", requires = "install", conflicts_with = "user")]
    pub into: Option<PathBuf>,

    /// List interfaces
    #[arg(long)]
    pub extcap_interfaces: bool,

    /// Wireshark's version, which changes nothing
    #[arg(long, value_name = "VERSION")]
    pub extcap_version: Option<String>,

    /// The interface that is asked about, or captured
    #[arg(long, value_name = "NAME")]
    pub extcap_interface: Option<String>,

    /// List the link types of an interface
    #[arg(long, requires = "extcap_interface")]
    pub extcap_dlts: bool,

    /// List the flags by which an interface is captured
    #[arg(long, requires = "extcap_interface")]
    pub extcap_config: bool,

    /// Capture into the pipe
    #[arg(long, requires_all = ["extcap_interface", "fifo"])]
    pub capture: bool,

    /// The pipe
    #[arg(long, value_name = "PATH")]
    pub fifo: Option<PathBuf>,

    /// Only packets that match, as in pcap-filter(7); without --capture, say whether it is a filter
    #[arg(long, value_name = "EXPR")]
    pub extcap_capture_filter: Option<String>,

    /// Of a store: begin so long ago, or at a time; `all` is the beginning
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true)]
    pub rewind: String,

    /// Of a store: go on with what is recorded from now on
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub follow: bool,

    /// Of a store: only packets of these interfaces
    #[arg(long, value_name = "IFACE[,IFACE]", default_value = "", hide_default_value = true)]
    pub only: String,

    /// Of a group: the share of the group's traffic, relative to its other members
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WEIGHT)))]
    pub weight: u32,
}
