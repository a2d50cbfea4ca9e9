//! The command line's flags: what clap parses, and the texts of `--help`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Ask gateways of several sensors over HTTPS, and make one answer of theirs; read stores on S3 and
/// on web servers
#[derive(Debug, Parser)]
#[command(
    name = "tapdeck-remote",
    version,
    after_help = "Examples:
  tapdeck query --remote https://a.example.org:8443,https://b.example.org:8443 port 53
  tapdeck-remote query --remote berlin,hamburg --after 2026-01-02T14:02:00Z >part.pcapng"
)]
pub struct Flags {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Query(Query),
    Relay(Relay),
}

/// Read a store elsewhere for the program that started this one, over the socket at standard input
///
/// `tapdeck query`, `stat`, `verify` and `fetch` run this where a store is a URL.
#[derive(Debug, Args)]
pub struct Relay {
    /// The store: s3://BUCKET[/PREFIX], or https://HOST[:PORT][/PATH/] with a listing as nginx makes
    /// it with `autoindex_format json`
    #[arg(value_name = "URL")]
    pub url: String,

    /// What is shown to servers
    /// [default: ~/.config/tapdeck/remote.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub shown: Shown,
}

/// What is shown to sensors and to servers of stores, and what they have to show.
#[derive(Debug, Args)]
pub struct Shown {
    /// The certificate that is shown to sensors, or to the server of a store
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// The authority of their certificates [default: those that this machine believes]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl From<&Shown> for tapdeck_remote::Shown {
    fn from(flags: &Shown) -> Self {
        let Shown { cert, key, ca } = flags;
        Self { cert: cert.clone(), key: key.clone(), ca: ca.clone(), token: None }
    }
}

/// Write the packets of all sensors to standard output as pcapng, merged by time
///
/// A sensor that does not answer, or whose answer has gaps or is incomplete, is named on standard
/// error. The exit code is 1 then, and the rest is given.
#[derive(Debug, Args)]
pub struct Query {
    /// Only packets that match, as in pcap-filter(7), with addresses in place of names; several
    /// words are joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// The sensors: https://HOST[:PORT][/STORE], or names of remote.toml
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', required = true)]
    pub remote: Vec<String>,

    /// What is shown to sensors, and their names
    /// [default: ~/.config/tapdeck/remote.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub shown: Shown,

    /// Only packets from this time on: 2026-01-02T03:04:05Z, or seconds since 1970
    #[arg(long, value_name = "T")]
    pub after: Option<String>,

    /// Only packets from before this time
    #[arg(long, value_name = "T")]
    pub before: Option<String>,

    /// At most so many packets, the earliest
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Only packets of the flow that Zeek, Suricata and others call so
    #[arg(long, value_name = "ID")]
    pub community_id: Option<String>,
}
