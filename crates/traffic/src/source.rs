//! Packets in the order and at the times in which they are to be sent.

use std::io;

use tapdeck_packet::generate::Limits;

use crate::frame::Frames;
use crate::pacing::Schedule;

/// Where a sender gets its packets from. Times are nanoseconds since the start.
pub trait Source: Send {
    /// When the next packet is due; `None`: whenever there is room for it.
    fn due_ns(&self) -> Option<u64>;

    /// Writes the next packet into the beginning of `buffer` and tells its length; `None`: there is no more.
    /// `now_ns` is when this is, `utc_ns` the same moment in UTC.
    ///
    /// # Errors
    /// Where packets are read from a file, and that fails.
    fn next(&mut self, buffer: &mut [u8], now_ns: u64, utc_ns: u64) -> io::Result<Option<usize>>;

    /// How many packets were made of each stream, for packets that carry numbers.
    fn sequences(&self) -> Vec<u64>;

    /// What a person should know about the packets so far, in sentences.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Generated packets.
#[derive(Debug)]
pub struct Generated {
    frames: Frames,
    schedule: Option<Schedule>,
    limits: Limits,
    /// 0: no marks.
    mark_every_ns: u64,
    next_mark_ns: u64,
    made: u64,
}

impl Generated {
    /// `schedule`: `None` is as fast as it goes.
    pub fn new(
        frames: Frames,
        schedule: Option<Schedule>,
        limits: Limits,
        mark_every_ns: u64,
    ) -> Self {
        let mark_every_ns = if frames.plan().mark.is_some() { mark_every_ns } else { 0 };
        Self { frames, schedule, limits, mark_every_ns, next_mark_ns: 0, made: 0 }
    }
}

impl Source for Generated {
    fn due_ns(&self) -> Option<u64> {
        self.schedule.as_ref().map(Schedule::due_ns)
    }

    fn next(&mut self, buffer: &mut [u8], now_ns: u64, utc_ns: u64) -> io::Result<Option<usize>> {
        let due = self.due_ns().unwrap_or(now_ns);
        if self.limits.are_reached(self.made, now_ns, due) {
            return Ok(None);
        }
        let mark = self.mark_every_ns > 0 && due >= self.next_mark_ns;
        if mark {
            self.next_mark_ns += self.mark_every_ns;
        }
        let made = self.frames.make(buffer, utc_ns, mark);
        if let Some(schedule) = &mut self.schedule {
            schedule.advance(made.len);
        }
        self.made += 1;
        Ok(Some(made.len))
    }

    fn sequences(&self) -> Vec<u64> {
        self.frames.sequences().collect()
    }
}
