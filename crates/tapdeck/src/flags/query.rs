//! Which flags does `query` have? They say where packets are looked for, which, and how the answer
//! is written.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tapdeck_packet::community_id::CommunityId;

use super::Shown;
use crate::listen;
use crate::query::choice::Direction;
use crate::query::time;
use crate::units;

/// Find packets of a store, in time order, also while it is being recorded; or of capture files of
/// other programs.
///
/// Without -w, --count or --json, packets are listed one a line: time, interface, protocol,
/// addresses and ports, length. The answer is what is on disk when the query begins, and with
/// --follow also what comes.
///
/// What an answer lacks is told on standard error. The exit code is 1 if that was recorded, and is
/// damaged or missing now; 0 if the recorder dropped it, was not shown it, or deletes it meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        time::in_help!(),
        "

Examples:
  tapdeck query --dir /var/tape host 10.0.0.7 and tcp port 443 --after \"10m ago\"
  tapdeck query --dir /var/tape -w - 'udp port 53' | tshark -r -
  tapdeck query --dir /var/tape --after 14:02 --before 14:05 -w part.pcapng
  tapdeck query --dir /var/tape --follow --after -1m port 53
  tapdeck query --dir /var/tape --count vlan 12
  tapdeck query --dir /var/tape -i eth0 --direction out --after today arp
  tapdeck query --dir /var/tape --community-id 1:LQU9qZlK+B5F3KDmev6m5PMibrg= -w alert.pcapng
  tapdeck query --dir /var/tape --inner host 172.16.5.4
  tapdeck query --remote https://a.example.org:8443,https://b.example.org:8443 port 53
  tapdeck query --dir s3://tape/berlin --after \"1h ago\" port 53
  tapdeck query --dir /var/log/dumpcap -w merged.pcapng host 10.0.0.7
  tapdeck query --dir /var/tape --explain net 10.0.0.0/8 and not port 22"
    )
)]
pub struct Query {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing, or a copy of one at
    /// s3://BUCKET/PREFIX or https://HOST/PATH/; or a pcap or pcapng file, also one that gzip, zstd
    /// or lz4 compressed, or a directory of such files and of directories with such files; several
    /// are asked as one
    #[arg(short = 'r', long, value_name = "PATH", required_unless_present = "remote")]
    pub dir: Vec<PathBuf>,

    /// Ask sensors over HTTPS instead, each by its gateway: https://HOST[:PORT][/STORE], or a name
    /// of ~/.config/tapdeck/remote.toml
    ///
    /// The answers are merged by time, and an interface is called SENSOR/INTERFACE. A sensor that
    /// does not answer, or whose answer has gaps or is incomplete, is named on standard error, and
    /// the exit code is 1 then. An expression has addresses in place of names.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', conflicts_with_all = ["dir", "inner", "follow", "listen", "index", "no_trust_index", "explain"])]
    pub remote: Vec<String>,

    #[command(flatten)]
    pub shown: Shown,

    /// Only packets that match, as in pcap-filter(7) and for `tcpdump -r`; several words are
    /// joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Also packets with a matching packet inside a tunnel: VXLAN, GENEVE, GRE, IP in IP, GTP-U,
    /// MPLS, PPPoE
    #[arg(long)]
    pub inner: bool,

    /// Only packets of these interfaces, by their names in the recording, separated by commas; *
    /// stands for any characters, ? for one
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE[,IFACE]",
        value_delimiter = ',',
        value_parser = units::interface
    )]
    pub interfaces: Vec<String>,

    /// Only packets that their interface received (in) or sent (out), as far as the recording tells
    #[arg(long, value_name = "in|out", hide_possible_values = true)]
    pub direction: Option<Direction>,

    /// Only packets of the flow that Zeek, Suricata and others call so: Community ID, version 1,
    /// seed 0
    ///
    /// A packet that does not tell its ports has none: fragments but for the first. With --inner,
    /// flows inside tunnels count, too.
    #[arg(long, value_name = "ID")]
    pub community_id: Option<CommunityId>,

    /// Only packets from this time on
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub after: Option<i64>,

    /// Only packets from before this time
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub before: Option<i64>,

    /// Go on with what is recorded from now on, until Ctrl-C
    ///
    /// No packet is missing between what is there and what comes, and none comes twice. Each goes
    /// out when it is a second and a half old, in time order; those that the recorder writes later
    /// than that go out when they come.
    #[arg(short, long, conflicts_with_all = ["before", "count", "explain", "index"])]
    pub follow: bool,

    /// Accepted for fingers that know tcpdump: addresses and ports are numbers always
    #[arg(short, hide_short_help = true)]
    pub n: bool,

    /// At most so many packets, the earliest
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Write the packets to a pcapng file; - is standard output
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["count", "json"])]
    pub write: Option<PathBuf>,

    /// Give the answer over TCP to whoever connects, one reader at a time, as a pcap file; a port
    /// alone is of this machine alone
    ///
    /// Wireshark reads it as `-i TCP@ADDR:PORT`, Arkime by its pcap-over-ip-client. Each reader
    /// gets the answer from its beginning. Nothing is encrypted, and nobody is asked who they are.
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = listen::address, conflicts_with_all = ["write", "count", "json", "explain"])]
    pub listen: Option<SocketAddr>,

    /// Say only how many packets there are; with --json as one object
    #[arg(long)]
    pub count: bool,

    /// Write one JSON object a packet
    #[arg(long)]
    pub json: bool,

    /// Make an index of each file of another program that has none, beside it or in the user's
    /// cache, and use it
    ///
    /// Indexes that are there are used without this flag. The index of a file that has changed
    /// since is not used; this flag makes it anew.
    #[arg(long)]
    pub index: bool,

    /// Read everything, as if there were no indexes
    ///
    /// An index decides what need not be read. One of another user is used only if that is root or
    /// the owner of the file that it is of, and if nobody else may write to it.
    #[arg(long, conflicts_with = "index")]
    pub no_trust_index: bool,

    /// Write how packets are found instead of the packets: the plan, and what was read for it;
    /// with --json as one object
    #[arg(long, conflicts_with = "write")]
    pub explain: bool,
}

impl Query {
    /// Returns the question for all packets of a store.
    pub fn of(dir: PathBuf) -> Self {
        Self {
            dir: vec![dir],
            remote: Vec::new(),
            shown: Shown::default(),
            n: false,
            expression: Vec::new(),
            inner: false,
            interfaces: Vec::new(),
            direction: None,
            community_id: None,
            after: None,
            before: None,
            follow: false,
            limit: None,
            write: None,
            listen: None,
            count: false,
            json: false,
            index: false,
            no_trust_index: false,
            explain: false,
        }
    }
}
