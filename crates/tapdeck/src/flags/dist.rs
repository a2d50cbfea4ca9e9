//! Which flags does `dist` have? They name the inputs, how lengths are counted, and what is
//! written.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::units;

/// Count packet sizes, and turn their distribution into what generators read.
///
/// Reads capture files (pcap, pcapng; also compressed by gzip, zstd or lz4), stores, lists of
/// sizes, tables of sizes and counts, pktgen's commands and its own TOML; several inputs add up.
/// What was found, and how far the two-stage model is from it, goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Formats:
  sizes   numbers with space between them; a line that begins with two is read as dist
  dist    lines `<size> <count>`; `# length: frame` or `# length: ip` says what the sizes measure
  pktgen  the thesis' commands: dist PRECISION BIN_WIDTH MAX_SIZE OUTLIERS BINS, outl, hist, flag PKTSIZE_REAL
  toml    sizes, counts and the two-stage model in one file

Examples:
  tapdeck dist trace.pcapng -o sizes.dist
  tapdeck dist monday.pcap tuesday.pcap --length ip --to pktgen --surround-pgset
  tapdeck dist -i eth0 --duration 60s --to toml -o eth0.toml --plot eth0.svg
  tcpdump -r big.pcap -w - port 53 | tapdeck dist - --to sizes -n 1000")]
pub struct Dist {
    /// Files to read, stores, or directories of capture files; - is standard input
    #[arg(value_name = "FROM")]
    pub from: Vec<PathBuf>,

    /// What the files are; auto looks at how each file begins
    #[arg(long = "from", id = "format", value_name = "FORMAT", value_enum, default_value_t = FromChoice::Auto)]
    pub format: FromChoice,

    /// Count the packets of an interface instead, until Ctrl-C
    #[arg(short, long, value_name = "IFACE", conflicts_with_all = ["from", "format", "up_to_damage"])]
    pub interface: Option<String>,

    /// Stop counting on the interface after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// Stop when so many packets of the interface have been counted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Write to a file, which appears when it is complete; - is standard output [default: -]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// What is written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ToChoice::Dist)]
    pub to: ToChoice,

    /// What is counted: whole frames without check sequence, or IP packets, others left out
    /// [default: what the input says, else frame]
    #[arg(long, value_enum)]
    pub length: Option<LengthChoice>,

    /// Share of all packets from which on a size is an outlier, drawn exactly. The text of the
    /// model's thesis says 0.02 (2 %), its program 0.002
    #[arg(long, value_name = "SHARE", default_value_t = 0.002)]
    pub outlier_bound: f64,

    /// Sizes in a bin of the model
    #[arg(long, value_name = "SIZES", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub bin_width: u16,

    /// Cells in an array of the model, at most 1000000
    #[arg(long, value_name = "CELLS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub precision: u32,

    /// Leave larger packets out [default: none; the model goes to 1500 or to the largest packet]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_size: Option<u16>,

    /// The character between size and count in format dist; files that are read may have spaces
    /// all the same [default: space]
    #[arg(long, value_name = "CHAR", value_parser = separator)]
    pub separator: Option<char>,

    /// Write pktgen's commands as lines of a shell script: pgset "..."
    #[arg(long)]
    pub surround_pgset: bool,

    /// How many sizes to draw for --to sizes [default: 1000000]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,

    /// Draw the same sizes for the same seed [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Use a damaged capture file up to the damage
    #[arg(long)]
    pub up_to_damage: bool,

    /// Plot distribution and model into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// How many of the most frequent sizes are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

fn separator(text: &str) -> Result<char, String> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) if !c.is_ascii_digit() && !matches!(c, '#' | '-' | '\n' | '\r' | '\0') => {
            Ok(c)
        }
        _ => Err("must be one character, and no digit, #, - or end of line".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FromChoice {
    Auto,
    Trace,
    Sizes,
    Dist,
    Pktgen,
    Toml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToChoice {
    Dist,
    Pktgen,
    Sizes,
    Toml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LengthChoice {
    Frame,
    Ip,
}
