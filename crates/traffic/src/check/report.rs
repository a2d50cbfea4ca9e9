//! The result of a check: what became of the packets of a run?

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sent::Spread;

/// What became of a run's packets.
///
/// A packet that came is one of intact, repeated and damaged; `received` is their sum. What was
/// made and is neither refused, lost, nor arrived does not exist:
/// `made = refused + lost + arrived + unidentified + cut`, where `arrived` counts numbers and not
/// packets, as long as no more came than was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Packets made and numbered.
    pub made: u64,
    /// Packets made that the sender's interface did not take. Nobody knows which: in the tables by
    /// stream, size and time they are among the lost.
    pub refused: u64,
    /// Packets of this run in the recording.
    pub received: u64,
    /// Different packets that came, with damaged ones as far as their number can be read.
    pub arrived: u64,
    /// First copies that agree with what was sent in every byte that was captured.
    pub intact: u64,
    pub lost: u64,
    /// Intact packets whose number had come before.
    pub repeated: u64,
    /// First copies that came after a packet of their stream with a greater number (RFC 4737,
    /// section 3).
    pub reordered: u64,
    /// How many packets of its stream a reordered one came behind its place (RFC 4737, section
    /// 4.2).
    pub reordering_extent: Option<Spread>,
    /// Packets of this run that differ from what was sent.
    pub damaged: u64,
    /// Damaged packets whose number cannot be trusted.
    pub unidentified: u64,
    /// Packets of this run's addresses that were captured too short to hold their number.
    pub cut: u64,
    /// Packets that came without VLAN tags that were sent, but are otherwise right.
    pub untagged: u64,
    /// Damaged packets that are right if Ethernet addresses and hop limits may differ, as those of
    /// packets that were routed.
    pub damaged_as_by_routing: u64,
    /// Packets that have nothing to do with the run.
    pub foreign: u64,
    /// Packets of the same generator, from another run.
    pub of_other_runs: u64,
    /// Streams of the run.
    pub streams: u64,
    pub streams_with_loss: u64,
    pub latency_ns: Option<Spread>,
    /// Why there is no latency.
    pub latency_unknown: Option<String>,
    /// What came of each length of frame as sent, without frame check sequence.
    pub by_size: BTreeMap<u16, Size>,
    /// Streams where anything was wrong, the worst first.
    pub by_stream: Vec<Stream>,
    /// Milliseconds of a period in `over_time`.
    pub period_ms: u64,
    /// What came of each period of send time, from the run's beginning.
    pub over_time: Vec<Period>,
}

impl Report {
    /// Returns whether everything that was sent came back whole, as far as was captured.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.damaged == 0 && self.cut == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    pub made: u64,
    /// Packets that came, without repeated ones.
    pub arrived: u64,
    pub lost: u64,
    pub damaged: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stream {
    pub stream: u32,
    /// Transport, addresses and ports.
    pub flow: String,
    pub made: u64,
    pub lost: u64,
    pub repeated: u64,
    pub reordered: u64,
    pub reordering_extent_max: u64,
    /// Damaged packets whose number or addresses tell that they are of this stream.
    pub damaged: u64,
}

/// One period of a run. A lost packet belongs to the period of the packet that came in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Period {
    pub received: u64,
    pub lost: u64,
    pub repeated: u64,
    pub reordered: u64,
    pub damaged: u64,
}

pub(super) enum Latency {
    Known(Spread),
    Unknown(String),
}
