//! Which flags does `query` have? They say where packets are looked for, which, and how the answer
//! is written.

use std::path::PathBuf;

use clap::Args;

use crate::query::time;

/// Find packets of a store, in time order, also while it is being recorded; or of capture files of
/// other programs.
///
/// Without -w, --count or --json, packets are listed one a line: time, interface, protocol,
/// addresses and ports, length. The answer is what is on disk when the query begins.
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
  tapdeck query --dir /var/tape --count vlan 12
  tapdeck query --dir /var/tape --inner host 172.16.5.4
  tapdeck query --dir /var/log/dumpcap -w merged.pcapng host 10.0.0.7
  tapdeck query --dir /var/tape --explain net 10.0.0.0/8 and not port 22"
    )
)]
pub struct Query {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing; or a pcap or pcapng
    /// file, or a directory of such files
    #[arg(long, value_name = "PATH")]
    pub dir: PathBuf,

    /// Only packets that match, as in pcap-filter(7) and for `tcpdump -r`; several words are
    /// joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Also packets with a matching packet inside a tunnel: VXLAN, GENEVE, GRE, IP in IP, GTP-U,
    /// MPLS, PPPoE
    #[arg(long)]
    pub inner: bool,

    /// Only packets from this time on
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub after: Option<i64>,

    /// Only packets from before this time
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub before: Option<i64>,

    /// At most so many packets, the earliest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Write the packets to a pcapng file; - is standard output
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["count", "json"])]
    pub write: Option<PathBuf>,

    /// Say only how many packets there are
    #[arg(long, conflicts_with = "json")]
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
