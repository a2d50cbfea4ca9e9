//! The first pass: is the file good, and what does it hold?

use std::fs::{self, File};
use std::path::Path;

use tapdeck_packet::trace;

use super::record::{Clock, Fate, Order, fate};
use super::{Error, ReplayCounts};

/// What a file holds, up to where it is used.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Packets that are read in a round, whether they are sent or not.
    pub records: u64,
    /// What a whole round sends, and what it leaves out.
    pub round: ReplayCounts,
    /// Bytes of the longest frame that is sent.
    pub longest: usize,
    /// Nanoseconds from the first packet that is sent to the last, as recorded.
    pub duration_ns: u64,
    /// Where and how the file is damaged, which is used up to there.
    pub damage: Option<String>,
}

impl Contents {
    /// Returns the time from one packet to the next in the mean, as recorded; 0 where there is but
    /// one packet.
    pub fn mean_gap_ns(&self) -> u64 {
        self.duration_ns.checked_div(self.round.packets.saturating_sub(1)).unwrap_or(0)
    }

    /// Returns the bytes of a frame in the mean.
    pub fn mean_bytes(&self) -> f64 {
        self.round.bytes as f64 / self.round.packets as f64
    }

    /// Reads `file`, which was found at `path`, from its beginning to its end or its damage.
    pub(super) fn read(
        file: &File,
        path: &Path,
        longest: usize,
        up_to_damage: bool,
    ) -> Result<Self, Error> {
        let trace_error = |error| match error {
            trace::Error::Io(error) => Error::Io { path: path.to_owned(), error },
            e @ (trace::Error::CutShort { .. } | trace::Error::Damaged { .. }) => {
                Error::Damaged { path: path.to_owned(), error: e }
            }
            error => Error::Trace { path: path.to_owned(), error },
        };
        let mut contents = Self::default();
        let outcome = match trace::Reader::new(file) {
            Ok(mut reader) => contents.count(&mut reader, path, longest, trace_error),
            Err(e) => Err(trace_error(e)),
        };
        match outcome {
            Err(Error::Damaged { error, .. }) if up_to_damage => {
                contents.damage = Some(error.to_string());
            }
            outcome => outcome?,
        }
        if contents.records == 0 {
            return Err(Error::NoPackets { path: path.to_owned(), damage: contents.damage });
        }
        if contents.round.packets == 0 {
            let left_out = Box::new(contents.round);
            return Err(Error::NothingFits { path: path.to_owned(), longest, left_out });
        }
        Ok(contents)
    }

    fn count(
        &mut self,
        reader: &mut trace::Reader<&File>,
        path: &Path,
        longest: usize,
        trace_error: impl Fn(trace::Error) -> Error,
    ) -> Result<(), Error> {
        let mut clock = Clock::default();
        while let Some(packet) = reader.next_packet().map_err(&trace_error)? {
            self.records += 1;
            let fate = fate(&packet, longest).map_err(|link| Error::LinkType {
                path: path.to_owned(),
                number: self.records,
                link,
            })?;
            if let Fate::Sent(form) = &fate {
                self.longest = self.longest.max(form.len);
            }
            self.round.count(&fate, &mut clock, packet.time_ns);
            self.duration_ns = clock.offset_ns();
        }
        Ok(())
    }
}

impl ReplayCounts {
    /// Counts a packet, and has the clock go on if it is one to be sent: packets that are left out
    /// have no part in the times of the others.
    pub(super) fn count(&mut self, fate: &Fate, clock: &mut Clock, time_ns: Option<i64>) {
        match fate {
            Fate::Sent(form) => {
                self.packets += 1;
                self.bytes += form.len as u64;
                self.padded += u64::from(form.padded);
                match clock.advance(time_ns) {
                    Order::Forward => {}
                    Order::Backward => self.backwards += 1,
                    Order::Untimed => self.untimed += 1,
                }
            }
            Fate::TooLong => self.skipped_long += 1,
            Fate::TooShort => self.skipped_short += 1,
            Fate::NotIp => self.skipped_not_ip += 1,
        }
    }
}

/// Opens a file that can be read again and again.
pub(super) fn open(path: &Path) -> Result<File, Error> {
    let fault = |error| Error::Io { path: path.to_owned(), error };
    if path == Path::new("-") {
        return Err(Error::Stdin);
    }
    // This is asked before the file is opened, because opening a pipe waits for a writer.
    if !fs::metadata(path).map_err(fault)?.is_file() {
        return Err(Error::NotAFile(path.to_owned()));
    }
    File::open(path).map_err(fault)
}
