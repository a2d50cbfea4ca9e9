//! Which packet is sent next, and when? The trait that a sender asks, and its answer for generated
//! packets. For recorded packets the answer is `replay`'s.

use std::io;

use tapdeck_packet::generate::Limits;

use crate::frame::Frames;
use crate::pacing::Schedule;

/// Where a sender gets its packets from. Times are nanoseconds since the start.
pub trait PacketSource: Send {
    /// Returns when the next packet is due; `None` is whenever there is room for it.
    fn due_ns(&self) -> Option<u64>;

    /// Writes the next packet into the beginning of `buffer` and returns its length; `None` where
    /// there are no more packets. `now_ns` is the present time, `utc_ns` the same moment in
    /// UTC.
    ///
    /// # Errors
    /// Where packets are read from a file, and that fails.
    fn next(&mut self, buffer: &mut [u8], now_ns: u64, utc_ns: u64) -> io::Result<Option<usize>>;

    /// Returns how many packets were made of each stream, for packets that carry numbers.
    fn sequences(&self) -> Vec<u64>;

    /// Returns what a person should know about the packets so far, in sentences.
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
    /// The time between two marks; 0 is no marks.
    mark_every_ns: u64,
    next_mark_ns: u64,
    made: u64,
}

impl Generated {
    /// Makes a source. Without a `schedule` packets are sent as fast as it goes.
    pub fn new(
        frames: Frames,
        schedule: Option<Schedule>,
        limits: Limits,
        mark_every_ns: u64,
    ) -> Self {
        let mark_every_ns = if frames.has_mark() { mark_every_ns } else { 0 };
        Self { frames, schedule, limits, mark_every_ns, next_mark_ns: 0, made: 0 }
    }
}

impl PacketSource for Generated {
    /// Returns a time no later than the end, because at the end there are no more packets.
    fn due_ns(&self) -> Option<u64> {
        let end = if self.limits.duration_ns > 0 { self.limits.duration_ns } else { u64::MAX };
        let counted = self.limits.packets > 0 && self.made >= self.limits.packets;
        let due = self.schedule.as_ref().map(Schedule::due_ns);
        due.filter(|_| !counted).map(|due| due.min(end))
    }

    fn next(&mut self, buffer: &mut [u8], now_ns: u64, utc_ns: u64) -> io::Result<Option<usize>> {
        let due = self.schedule.as_ref().map_or(now_ns, Schedule::due_ns);
        if self.limits.are_reached(self.made, now_ns, due) {
            return Ok(None);
        }
        let mark = self.mark_every_ns > 0 && due >= self.next_mark_ns;
        if mark {
            self.next_mark_ns = self.next_mark_ns.saturating_add(self.mark_every_ns);
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

#[cfg(test)]
mod tests {
    use super::{Generated, PacketSource};
    use crate::frame::Frames;
    use crate::pacing::{Gaps, Rate, Schedule};
    use crate::workload::{Mac, Mark, Payload, Ports, Protocol, Workload};
    use tapdeck_packet::generate::{Column, LATE_NS, Limits, Sizes};

    fn generated(rate: Rate, limits: Limits, mark_every_ns: u64) -> Generated {
        let address = |s: &str| s.parse().expect("an address");
        let workload = Workload {
            seed: 1,
            source_mac: Mac([2; 6]),
            destination_mac: Mac([4; 6]),
            vlans: Vec::new(),
            outer: None,
            source: "10.0.0.0/24".parse().expect("a network"),
            destination: "10.0.1.0/24".parse().expect("a network"),
            source_ports: Ports(1, 9),
            destination_ports: Ports(9, 9),
            protocols: vec![Protocol::Udp],
            flows: 2,
            zipf: None,
            payload: Payload::Zero,
            mark: Some(Mark {
                every_ns: 1,
                source: address("10.9.0.1"),
                destination: address("10.9.0.2"),
            }),
            senders: 1,
        };
        let sizes = Sizes::Drawn(vec![Column { threshold: 0, own: 100, other: 100 }]);
        let plan = workload.plan(0, sizes, 100);
        let schedule = rate.pace(1.0, 0).map(|pace| Schedule::new(pace, Gaps::Constant, 1));
        Generated::new(Frames::new(plan), schedule, limits, mark_every_ns)
    }

    /// Packets that are sent in time, each `late_ns` after it is due.
    fn count(source: &mut Generated, late_ns: u64) -> u64 {
        let mut buffer = [0; 100];
        let mut packets = 0;
        loop {
            let now = source.due_ns().unwrap_or(packets * 1000) + late_ns;
            match source.next(&mut buffer, now, now).expect("nothing is read") {
                Some(len) => assert_eq!(len, 100),
                None => return packets,
            }
            packets += 1;
        }
    }

    #[test]
    fn a_run_has_the_packets_that_are_due_in_its_time_and_no_other() {
        let rate = Rate::Packets { per_s: 20_000.0 };
        let second = Limits { packets: 0, duration_ns: 1_000_000_000 };
        assert_eq!(count(&mut generated(rate, second, 0), 0), 20_000);
        // What is due in time is sent although it is late, but only so late.
        assert_eq!(count(&mut generated(rate, second, 0), LATE_NS), 20_000);
        assert_eq!(count(&mut generated(rate, second, 0), LATE_NS + 50_000_000), 19_000);
        let few = Limits { packets: 77, ..second };
        assert_eq!(count(&mut generated(rate, few, 0), 0), 77);
        assert_eq!(count(&mut generated(Rate::Max, few, 0), 0), 77);
        let bits = Rate::Bits { per_s: 800_000.0, wire: false };
        assert_eq!(count(&mut generated(bits, second, 0), 0), 1000);
    }

    #[test]
    fn marks_are_due_by_the_schedule_and_leave_the_others_as_they_are() {
        let rate = Rate::Packets { per_s: 1000.0 };
        let limits = Limits { packets: 1000, duration_ns: 0 };
        let mut marked = generated(rate, limits, 100_000_000);
        assert_eq!(count(&mut marked, 0), 1000);
        let sequences = marked.sequences();
        assert_eq!(sequences[2], 10);
        let mut plain = generated(rate, Limits { packets: 990, ..limits }, 0);
        assert_eq!(count(&mut plain, 0), 990);
        assert_eq!(plain.sequences()[..2], sequences[..2]);
    }
}
