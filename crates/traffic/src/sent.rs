//! What a run sent: the JSON that the generator leaves, and that the check of what came back reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// The record of a run. Times are UTC nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Packets that the interfaces took.
    pub sent: u64,
    /// Bytes of all frames made, without preamble, frame check sequence and gap.
    pub bytes: u64,
    /// Seconds from the first packet to the end of the last one's slot.
    pub elapsed_s: f64,
    pub seed: u64,
    /// Packets made, by length of the frame; their sum is `sent + refused`.
    pub sizes: BTreeMap<u16, u64>,
    /// Packets made and numbered that an interface did not take.
    pub refused: u64,
    pub started_ns: u64,
    pub ended_ns: u64,
    pub interfaces: Vec<String>,
    pub backend: String,
    pub rate: MeasuredRate,
    /// Times from one packet to the next of the same sender, as packets are made: back end `xdp`
    /// hands those on together that are due within a few microseconds.
    pub gap_ns: Option<Spread>,
    /// How far each gap was from the one that was due, where one was.
    pub jitter_ns: Option<Spread>,
    /// Whether a signal or a lost interface ended the run.
    pub interrupted: bool,
    /// The workload; `None` for a replay, whose packets carry no numbers.
    pub workload: Option<Workload>,
    /// Packets made of each stream, in the order of the streams; the mark's last, if there are
    /// marks.
    pub streams: Vec<u64>,
}

/// The rate that was asked for, and the rate that came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MeasuredRate {
    /// The rate as it was written on the command line.
    pub asked: String,
    /// Packets a second that were asked for; `None` is as fast as it goes. A rate in bits a second
    /// is converted by the mean size.
    pub asked_pps: Option<f64>,
    pub pps: f64,
    /// Bits a second of the frames.
    pub bits_per_s: f64,
    /// Bits a second with preamble, frame check sequence and gap: 24 bytes more a frame.
    pub wire_bits_per_s: f64,
    /// Whether the run sent as fast as it could and stayed behind the rate that was asked for.
    pub saturated: bool,
    /// The farthest that a packet was behind its time, nanoseconds.
    pub late_max_ns: u64,
}

/// A distribution of times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}
