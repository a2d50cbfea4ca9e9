//! Which flags does `flows` have? They say of which packets flow tables are made, in which form,
//! and where they go.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::query::time;

/// Write who spoke to whom, when and how much: a flow table of each closed segment of a store.
///
/// A row is a slice of a flow, both ways: the packets of one segment and one day between the same
/// ends. Every packet is in exactly one row, and rows say where their packets lie in the segment.
/// The same segment gives the same file, byte for byte. `docs/FLEET.md` describes the columns.
///
/// The exit code is 1 if a segment is damaged or missing, or its rows do not add up to its
/// statistics; 0 if it is deleted meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = concat!(
        time::in_help!(),
        "

Examples:
  tapdeck flows --dir /var/tape -o /var/flows
  tapdeck flows --dir /var/tape -o /var/flows --watch
  tapdeck flows --dir /var/tape -o web --format zeek --after \"1h ago\" tcp port 443
  duckdb -c \"select src_ip, sum(fwd_bytes) from '/var/flows/*.parquet' group by 1 order by 2 desc\""
    )
)]
pub struct Flows {
    /// The store, a directory that `tapdeck record --dir` wrote or is writing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// What is written of each segment
    #[arg(long, value_enum, default_value_t = FlowsFormat::Parquet)]
    pub format: FlowsFormat,

    /// Go on until Ctrl-C: make the files of each segment when it is closed. Segments that have
    /// files in OUT are left alone
    #[arg(long)]
    pub watch: bool,

    /// The directory that files are written into; it is made if need be
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,

    /// Only packets that match, as in pcap-filter(7) and for `tcpdump -r`; several words are
    /// joined
    #[arg(value_name = "EXPR")]
    pub expression: Vec<String>,

    /// Only packets from this time on
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub after: Option<i64>,

    /// Only packets from before this time
    #[arg(long, value_name = "T", value_parser = time::point, allow_hyphen_values = true)]
    pub before: Option<i64>,

    /// What the column `sensor` says [the name of this machine]
    #[arg(long, value_name = "NAME")]
    pub sensor: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlowsFormat {
    /// STEM.parquet, and where a segment goes on past midnight (UTC) a file more for each day
    Parquet,
    /// STEM.conn.log, as Zeek writes it, of IP alone
    Zeek,
    /// STEM.conn.json, the same as JSON lines
    ZeekJson,
    /// STEM.eve.json, events of the type `flow` as Suricata writes them, of IP alone
    Eve,
}
