//! A recording sent again: which frame is next, and when?
//!
//! The file is pcap or pcapng of any size and is never in memory. It is read through once before
//! anything is sent, because a fault in the middle of a file should be known before half of it is
//! on the wire, and because progress and a rate in bits need to know what there is. That pass costs
//! as long as the disk takes to give the file, and keeps nothing but counts ([`Contents`]). For the
//! same reason a pipe cannot be replayed. Every round reads just the packets that the first pass
//! read, so a file that is still being recorded has its end where it was then.
//!
//! In its own time a packet is due at its offset from the first packet, divided by the factor.
//! Recordings of several queues or of a clock that was set have times that go back; such a packet
//! is due at once, as is one without a time. The offsets of the others stay what they are, so no
//! error adds up. A second round begins one mean gap behind the last packet.
//!
//! Frames have the length that they had on the wire: what the recorder cut off is zeros. What
//! cannot be sent is left out and counted ([`Tally`]).
//!
//! One frame is made in advance, since its time has to be known; this is also where the file is
//! read, in pieces of 256 KiB.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use tapdeck_packet::generate::Limits;
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
pub use rewrite::{Rewrite, Rule};
pub use speed::Speed;

use record::{Clock, Fate, fate};

/// When packets are due.
#[derive(Clone, Debug)]
pub enum Timing {
    /// As recorded, `factor` times as fast; it is above 0 and finite.
    Own { factor: f64 },
    /// By a rate, whatever the recording says.
    Paced(Schedule),
    /// As fast as it goes.
    Max,
}

/// What is asked of a replay. By default the file goes once, in its own time, to an interface of
/// 1500 bytes of MTU.
#[derive(Clone, Debug)]
pub struct Options {
    pub timing: Timing,
    /// How often the file is sent; 0: over and over.
    pub loops: u64,
    pub rewrite: Rewrite,
    /// Bytes of the longest frame without VLAN tag that the interface takes; longer ones are left
    /// out. One tag (802.1Q) an MTU does not count.
    pub longest: usize,
    pub limits: Limits,
    /// Use a damaged file as far as it is good.
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

/// Packets, counted up to one that was sent, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sent, in frames and their bytes.
    pub packets: u64,
    pub bytes: u64,
    /// Sent with zeros for what was not captured.
    pub padded: u64,
    /// Sent at once, because their time lies before that of a packet before them.
    pub backwards: u64,
    /// Sent with the packet before them, because they have no time.
    pub untimed: u64,
    /// Left out: longer than the interface takes.
    pub skipped_long: u64,
    /// Left out: shorter than an Ethernet header.
    pub skipped_short: u64,
    /// Left out: recorded without a link layer, and neither IPv4 nor IPv6.
    pub skipped_not_ip: u64,
}

/// The packets of a capture file.
pub struct Replay {
    file: File,
    reader: trace::Reader<File>,
    contents: Contents,
    options: Options,
    /// The next frame, which is ready as long as there is one.
    frame: Vec<u8>,
    ready: bool,
    /// What reading behind the last frame came to, until it is told.
    fault: Option<io::Error>,
    /// Of the round that the next frame is in.
    clock: Clock,
    records: u64,
    round: u64,
    /// With the next frame, and without it.
    ahead: Tally,
    tally: Tally,
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
            ahead: Tally::default(),
            tally: Tally::default(),
        };
        replay.ready = replay.read_ahead().map_err(fault)?;
        Ok(replay)
    }

    /// What one round holds.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// What was handed out so far, and left out on the way there.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Makes the next frame that can be sent. Tells whether there is one.
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

    /// When the next frame is due, by the timing alone; `None`: as soon as there is room for it.
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
        self.options.limits.are_reached(self.tally.packets, now_ns, due_ns)
    }
}

impl PacketSource for Replay {
    /// Nobody has to wait for a packet that will not come: behind the last one this is `None`, and
    /// never later than the run's end.
    fn due_ns(&self) -> Option<u64> {
        let Limits { packets, duration_ns } = self.options.limits;
        if !self.ready || (packets > 0 && self.tally.packets >= packets) {
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
        self.tally = self.ahead;
        if let Timing::Paced(schedule) = &mut self.options.timing {
            schedule.advance(len);
        }
        match self.read_ahead() {
            Ok(ready) => self.ready = ready,
            // This frame is good; the next call tells.
            Err(e) => (self.ready, self.fault) = (false, Some(e)),
        }
        if !self.ready {
            // Of what was left out behind the last frame.
            self.tally = self.ahead;
        }
        Ok(Some(len))
    }

    /// Recorded packets carry no numbers of ours.
    fn sequences(&self) -> Vec<u64> {
        Vec::new()
    }

    fn remarks(&self) -> Vec<String> {
        let t = &self.tally;
        let remarks = [
            (t.padded, "were recorded in part: the rest of them was sent as zeros"),
            (t.backwards, "had times before those of their predecessors and were due at once"),
            (t.untimed, "had no time and were due with their predecessors"),
            (t.skipped_long, "were left out: they are longer than the interface takes"),
            (t.skipped_short, "were left out: they are shorter than an Ethernet header"),
            (t.skipped_not_ip, "were left out: they have no link layer and are not IP"),
        ];
        let said = remarks.into_iter().filter(|(n, _)| *n > 0);
        said.map(|(n, what)| format!("{n} packets {what}")).collect()
    }
}

/// Begins again.
fn rewind(file: &File) -> io::Result<trace::Reader<File>> {
    let mut again = file.try_clone()?;
    again.rewind()?;
    trace::Reader::new(again).map_err(read_error)
}

/// Faults that the first pass has not met.
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

/// To the nanosecond for 104 days, beyond which a double has not the digits.
fn divide(ns: u64, factor: f64) -> u64 {
    (ns as f64 / factor) as u64
}
