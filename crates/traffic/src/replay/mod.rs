//! A recording sent again: which frame is next, and when?
//!
//! The file is pcap or pcapng of any size and is never in memory as a whole. A first pass reads it
//! through before anything is sent, because a fault in the middle of a file should be known before
//! half of it is on the wire, and because progress and a rate in bits need to know what there is.
//! That pass takes as long as the disk takes to read the file, and keeps nothing but counts
//! ([`Contents`]). A pipe cannot be read twice, so it cannot be replayed. Every round reads exactly
//! the packets of the first pass, so a file that is still being recorded has its end where it was
//! then.
//!
//! In its own time a packet is due at its offset from the first packet, divided by the factor.
//! Recordings of several queues, or of a clock that was set, have times that go back. A packet
//! whose time does is due at once, and so is one without a time. The offsets of other packets stay
//! what they are, so no error adds up. A second round begins one mean gap behind the last packet.
//!
//! Frames have the length that they had on the wire: bytes that the recorder cut off are zeros.
//! Packets that cannot be sent are left out and counted ([`ReplayCounts`]).
//!
//! One frame is made in advance, because its time has to be known; for it the file is read, 256 KiB
//! at a time.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use tapdeck_packet::generate::Limits;
use tapdeck_packet::printable::counted;
use tapdeck_packet::trace;

use crate::pacing::Schedule;
use crate::source::PacketSource;

mod contents;
mod error;
mod record;
mod rewrite;
mod speed;

pub use contents::Contents;
pub use error::Error;
pub use rewrite::{NetworkSwap, Rewrite};
pub use speed::Speed;

use record::{Clock, Fate, fate};

/// When packets are due.
#[derive(Clone, Debug)]
pub enum Timing {
    /// Packets are due by the recorded times, `factor` times as fast. The factor is above 0 and
    /// finite.
    Own { factor: f64 },
    /// Packets are due by a rate, whatever the recorded times are.
    Paced(Schedule),
    /// Packets are due at once: they go as fast as they can.
    Max,
}

/// How a file is replayed. By default it is sent once, in its own time, by an interface with an MTU
/// of 1500 bytes.
#[derive(Clone, Debug)]
pub struct Options {
    pub timing: Timing,
    /// How often the file is sent; 0 is without end.
    pub loops: u64,
    pub rewrite: Rewrite,
    /// Bytes of the longest frame without VLAN tag that the interface takes; longer ones are left
    /// out. An MTU does not count one tag (802.1Q).
    pub longest: usize,
    pub limits: Limits,
    /// Whether a damaged file is used up to the damage.
    pub up_to_damage: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timing: Timing::Own { factor: 1.0 },
            loops: 1,
            rewrite: Rewrite::default(),
            longest: 1514,
            limits: Limits::default(),
            up_to_damage: false,
        }
    }
}

/// What became of packets, up to one that was sent, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// Packets that were sent. Their bytes follow.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were sent with zeros for bytes that were not captured.
    pub padded: u64,
    /// Packets that were sent at once, because their time lies before that of an earlier packet.
    pub backwards: u64,
    /// Packets that were sent together with the packet before them, because they have no time.
    pub untimed: u64,
    /// Packets left out because they are longer than the interface takes.
    pub skipped_long: u64,
    /// Packets left out because they are shorter than an Ethernet header.
    pub skipped_short: u64,
    /// Packets left out because they were recorded without a link layer and are neither IPv4 nor
    /// IPv6.
    pub skipped_not_ip: u64,
}

/// The packets of a capture file.
pub struct Replay {
    file: File,
    reader: trace::Reader<File>,
    contents: Contents,
    options: Options,
    /// The next frame, where there is one.
    frame: Vec<u8>,
    ready: bool,
    /// The fault that reading behind the last frame found, until it is told.
    fault: Option<io::Error>,
    /// The recorded times of the round that the next frame is in.
    clock: Clock,
    records: u64,
    round: u64,
    /// The counts with the next frame in them; `counts` is without it.
    ahead: ReplayCounts,
    counts: ReplayCounts,
}

impl Replay {
    /// Reads the file through, and gets the first frame.
    ///
    /// # Errors
    /// If it is no regular file, is damaged (but see [`Options::up_to_damage`]), holds a packet of
    /// a link type that cannot be sent, or none that can.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let fault = |error| Error::Io { path: path.to_owned(), error };
        let file = contents::open(path)?;
        let contents = Contents::read(&file, path, options.longest, options.up_to_damage)?;
        let reader = rewind(&file).map_err(fault)?;
        let mut replay = Self {
            file,
            reader,
            frame: Vec::with_capacity(contents.longest),
            contents,
            options,
            ready: false,
            fault: None,
            clock: Clock::default(),
            records: 0,
            round: 0,
            ahead: ReplayCounts::default(),
            counts: ReplayCounts::default(),
        };
        replay.ready = replay.read_ahead().map_err(fault)?;
        Ok(replay)
    }

    /// Returns what one round holds.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns what was handed out so far, and left out on the way there.
    pub fn counts(&self) -> &ReplayCounts {
        &self.counts
    }

    /// Makes the next frame that can be sent. Returns whether there is one.
    fn read_ahead(&mut self) -> io::Result<bool> {
        loop {
            if self.records == self.contents.records {
                self.round += 1;
                if self.round == self.options.loops {
                    return Ok(false);
                }
                self.reader = rewind(&self.file)?;
                self.clock = Clock::default();
                self.records = 0;
            }
            let packet = self.reader.next_packet().map_err(read_error)?;
            let packet = packet.ok_or_else(|| changed("it has become shorter"))?;
            self.records += 1;
            let fate = fate(&packet, self.options.longest)
                .map_err(|_| changed("it has packets of another link type"))?;
            self.ahead.count(&fate, &mut self.clock, packet.time_ns);
            if let Fate::Sent(form) = fate {
                form.make(packet.frame, &self.options.rewrite, &mut self.frame);
                return Ok(true);
            }
        }
    }

    /// Returns when the next frame is due, by the timing alone; `None` is as soon as there is room.
    fn scheduled_ns(&self) -> Option<u64> {
        match &self.options.timing {
            Timing::Own { factor } => {
                let contents = &self.contents;
                let period_ns = contents.duration_ns.saturating_add(contents.mean_gap_ns());
                let offset_ns = self.round.saturating_mul(period_ns);
                Some(divide(offset_ns.saturating_add(self.clock.offset_ns()), *factor))
            }
            Timing::Paced(schedule) => Some(schedule.due_ns()),
            Timing::Max => None,
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let due_ns = self.scheduled_ns().unwrap_or(now_ns);
        self.options.limits.are_reached(self.counts.packets, now_ns, due_ns)
    }
}

impl PacketSource for Replay {
    /// Returns a time never later than the run's end, and `None` behind the last packet: nobody has
    /// to wait for a packet that will not come.
    fn due_ns(&self) -> Option<u64> {
        let Limits { packets, duration_ns } = self.options.limits;
        if !self.ready || (packets > 0 && self.counts.packets >= packets) {
            return None;
        }
        let due_ns = self.scheduled_ns()?;
        Some(if duration_ns > 0 { due_ns.min(duration_ns) } else { due_ns })
    }

    /// # Panics
    /// If the buffer is shorter than [`Contents::longest`].
    fn next(&mut self, buffer: &mut [u8], now_ns: u64, _utc_ns: u64) -> io::Result<Option<usize>> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if !self.ready || self.is_over(now_ns) {
            return Ok(None);
        }
        let len = self.frame.len();
        buffer[..len].copy_from_slice(&self.frame);
        self.counts = self.ahead;
        if let Timing::Paced(schedule) = &mut self.options.timing {
            schedule.advance(len);
        }
        match self.read_ahead() {
            Ok(ready) => self.ready = ready,
            // This frame is good; the next call tells the fault.
            Err(e) => (self.ready, self.fault) = (false, Some(e)),
        }
        if !self.ready {
            // This counts packets that were left out behind the last frame, too.
            self.counts = self.ahead;
        }
        Ok(Some(len))
    }

    /// Returns nothing: recorded packets carry no numbers of this program.
    fn sequences(&self) -> Vec<u64> {
        Vec::new()
    }

    fn remarks(&self) -> Vec<String> {
        let t = &self.counts;
        let remarks = [
            (t.padded, "were recorded in part: the rest of them was sent as zeros"),
            (t.backwards, "had times before those of their predecessors and were due at once"),
            (t.untimed, "had no time and were due with their predecessors"),
            (t.skipped_long, "were left out: they are longer than the interface takes"),
            (t.skipped_short, "were left out: they are shorter than an Ethernet header"),
            (t.skipped_not_ip, "were left out: they have no link layer and are not IP"),
        ];
        let said = remarks.into_iter().filter(|(n, _)| *n > 0);
        said.map(|(n, what)| format!("{} {what}", counted(n, "packet"))).collect()
    }
}

/// Begins to read the file again.
fn rewind(file: &File) -> io::Result<trace::Reader<File>> {
    let mut again = file.try_clone()?;
    again.rewind()?;
    trace::Reader::new(again).map_err(read_error)
}

/// Returns the error of a fault that the first pass has not met.
fn read_error(error: trace::Error) -> io::Error {
    match error {
        trace::Error::Io(error) => error,
        error => changed(&error.to_string()),
    }
}

fn changed(what: &str) -> io::Error {
    let text = format!("the capture file was changed while it was being sent: {what}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Divides a time. The result is exact to the nanosecond for 104 days, beyond which a double has
/// not enough digits.
fn divide(ns: u64, factor: f64) -> u64 {
    (ns as f64 / factor) as u64
}
