//! Which flags does `fetch` have? They name rows of flow tables, and where their packets are.

use std::path::PathBuf;

use clap::Args;

use super::Shown;

/// Write the packets behind rows of flow tables, merged by time.
///
/// A row of what `tapdeck flows` wrote names its segment and where in it its packets lie, so no
/// more than that is read, of a store that may lie on S3 or on a web server. Rows come as Parquet,
/// or from any engine as Arrow IPC or JSON lines, with the columns of the flow table.
///
/// Each row's packets are counted: where there are fewer or more than it tells, where a segment is
/// gone or damaged, that is said, and the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck fetch --flows /var/flows/tapdeck-00000042-20260102T030405Z.parquet --store /var/tape -w all.pcapng
  duckdb -json -c \"from '/var/flows/*.parquet' where dst_port = 53\" | jq -c '.[]' |
    tapdeck fetch --flows - --store s3://tape/berlin -w dns.pcapng
  tapdeck fetch --flows rows.jsonl --store 'https://{sensor}.example.org/tape/' -w rows.pcapng")]
pub struct Fetch {
    /// Rows: a file of Parquet, of Arrow IPC (a stream, or a file as Feather is one), or of JSON
    /// lines, an object each; - is a stream or lines on standard input; several are taken as one
    #[arg(long, value_name = "FILE|-", required = true)]
    pub flows: Vec<PathBuf>,

    /// The store that the rows lead to: a directory, s3://BUCKET/PREFIX or https://HOST/PATH/;
    /// {sensor} stands for each row's sensor [default: the directory that FILE is in]
    #[arg(long, value_name = "PATH|URL")]
    pub store: Option<String>,

    #[command(flatten)]
    pub shown: Shown,

    /// Write the packets to a pcapng file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
}
