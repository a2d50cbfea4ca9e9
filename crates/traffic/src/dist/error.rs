//! Why is there no distribution? Each reason says what was found in the input and what to do.

use std::io;

use tapdeck_packet::{link::LinkType, trace};

use super::Length;

/// Why there is no distribution. The text does not name the input: whoever shows it does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// reading failed
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// no byte, or nothing but comments
    #[error("is empty: there is no size in it")]
    Empty,
    /// a distribution of nothing
    #[error("holds no packets: all its counts are 0")]
    AllZero,
    /// a capture file without a packet that counts
    #[error("holds no packets that count{}", why_none(*.packets))]
    NoPackets { packets: u64 },
    /// a line that is wrong
    #[error("line {line}: {fault}")]
    Line { line: u64, fault: Fault },
    /// a capture file that cannot be read to its end
    #[error("{0}; --up-to-damage takes what stands before the damage")]
    Damaged(trace::Error),
    /// a capture file that cannot be read at all
    #[error(transparent)]
    Trace(trace::Error),
    /// frames in which no IP packet can be found
    #[error(
        "has frames of link type {0}, in which IP packets are not looked for: take --length frame"
    )]
    LinkType(LinkType),
    /// a file that says which lengths it holds, and others were asked for
    #[error("holds the lengths of {stated}s, not of {asked}s: take --length {}", .stated.name())]
    Length { stated: Length, asked: Length },
    /// more packets than can be counted
    #[error("counts more packets, at size {size}, than a 64-bit number holds")]
    Overflow { size: u16 },
    /// a packet of no length
    #[error("size 0 is not within 1 to 65535")]
    SizeZero,
    /// cells from which no size can be drawn
    #[error("its two-stage model is wrong: {0}")]
    Model(Fault),
    /// parameters that give no model
    #[error("{0}")]
    Parameters(&'static str),
    /// a maximum below every packet
    #[error("no packet has at most {max_size} bytes: take a larger --max-size")]
    AllAbove { max_size: u16 },
}

fn why_none(packets: u64) -> String {
    match packets {
        0 => String::new(),
        n => format!(
            ": of its {n}, none is an IP packet of 1 to 65535 bytes (--length frame counts all)"
        ),
    }
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("holds bytes that are neither text nor the beginning of a capture file")]
    NotText,
    #[error("it is longer than 16 MiB: write one size a line")]
    LongLine,
    #[error("it is longer than 16 MiB, too long for TOML")]
    LongFile,
    #[error("{0:?} is no whole number")]
    NotANumber(String),
    #[error("{0} is negative")]
    Negative(String),
    #[error("the count {0} does not fit into 64 bits")]
    LargeCount(String),
    #[error("the number {0} is too large")]
    LargeNumber(String),
    #[error("size {0} is not within 1 to 65535")]
    Size(String),
    #[error("a line of a distribution is a size and a count, not {0} fields")]
    Fields(usize),
    #[error("the sum of all counts, with this one of size {size}, does not fit into 64 bits")]
    Overflow { size: u16 },
    #[error("length {0:?} is neither frame nor ip")]
    Length(String),
    #[error("the sizes above it are those of {0}s: do not mix them")]
    MixedLength(Length),
    #[error("{0:?} is no size, distribution, pktgen command or TOML; --from says what it is")]
    Unknown(String),
    #[error(
        "{0:?} is none of the commands dist, outl, hist and flag PKTSIZE_REAL, or has not its numbers"
    )]
    Command(String),
    #[error("there is a dist command above it already")]
    SecondDist,
    #[error("the command dist must come before outl and hist")]
    DistFirst,
    #[error("{what}: dist says {said}, there are {found}")]
    Missing { what: &'static str, said: u64, found: u64 },
    #[error("{0}")]
    Toml(String),
    #[error("packets = {said}, but the sizes' counts sum to {sum}")]
    Sum { said: u64, sum: u64 },
    #[error("{0}")]
    Cells(&'static str),
    #[error("outl or hist {0}: the size is above the maximum, not a bin's first, or there twice")]
    Cell(u16),
}

impl Fault {
    /// The most bytes of a wrong word that are shown.
    const SHOWN: usize = 40;

    pub(super) fn shown(word: &str) -> String {
        let mut short: String = word.chars().take(Self::SHOWN).collect();
        if short.len() < word.len() {
            short.push_str("...");
        }
        short
    }

    pub(super) fn at(self, line: u64) -> Error {
        Error::Line { line, fault: self }
    }
}
