//! The counters that account for every packet: which are there, and what does each count?
//!
//! This module is the one list of what `record` and `serve` count. A row below says a counter's key
//! in JSON, its meaning, its unit, its part in the law that accounts for every packet, and what can
//! make it wrong. A block of rows is one object of JSON and a struct with a field for each row.
//! Whoever reports builds the struct, so the compiler asks for the value of a new row; the JSON,
//! sums over interfaces, the accounting line of a report and the tables of `docs/ACCOUNTING.md`
//! come from the rows.
//!
//! The module reads no counter: `tapdeck_capture` and `tapdeck_store` do.

use serde::Serialize;

use self::Law::{
    Beside, Came, DeviceLost, DeviceMoved, Kept, Lost, LostBecause, NotShown, NotWanted,
};
use self::Place::{Daemon, Group, Interface, Member, Own, Port, Recorder};

/// What a counter counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets, or copies of packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Things or events that are neither packets nor bytes.
    Number,
    /// Hundredths.
    Percent,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// Returns the unit as tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Number => "number",
            Self::Percent => "%",
            Self::Seconds => "s",
            Self::Microseconds => "µs",
        }
    }
}

/// A counter's part in the law of what the hook saw, or in the law of what the device received:
///
/// ```text
/// Came + ...         = NotWanted + ... + Kept + Lost + ...
/// DeviceMoved + ...  = Came + DeviceLost + NotShown + ...
/// ```
///
/// Words are those of the accounting line: "7 seen = 4 captured + 1 filtered + 2 dropped".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Packets that came to the hook, or copies made of them there.
    Came(&'static str),
    /// Packets that were left out because somebody asked for that.
    NotWanted(&'static str),
    /// Packets that whoever wanted them has.
    Kept(&'static str),
    /// Packets that were wanted and are lost; the cause, where the counter has one cause.
    Lost(Option<&'static str>),
    /// One cause of a [`Law::Lost`] that has several: counted there and not beside it.
    LostBecause(&'static str),
    /// Packets that the network device received or sent.
    DeviceMoved,
    /// Packets that the network device lost.
    DeviceLost,
    /// Packets that the network device handed on and the hook was not shown.
    NotShown,
    /// No part in a law.
    Beside,
}

/// The objects of JSON that have counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A recorder as a whole: the object of `record --stats-json`.
    Recorder,
    /// One of a recorder's `interfaces`.
    Interface,
    /// A daemon as a whole: the object of `serve --stats-json`.
    Daemon,
    /// One of a daemon's `ports`.
    Port,
    /// One of a daemon's `groups`.
    Group,
    /// One of a group's `members`.
    Member,
    /// The daemon's answer to a member that asks for its own numbers.
    Own,
}

/// One counter of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The key in JSON.
    pub name: &'static str,
    /// What is counted and where it is read, in Markdown.
    pub meaning: &'static str,
    /// What the value is a number of.
    pub unit: Unit,
    /// The counter's part in the law.
    pub law: Law,
    /// What can make the counter wrong, in Markdown; empty where nothing is known to.
    pub caveat: &'static str,
    /// The objects of JSON that have the counter.
    pub places: &'static [Place],
}

/// Counters that stand together in an object of JSON.
pub trait Counters {
    /// The rows, in the order of the keys in JSON.
    const LIST: &'static [Counter];

    /// Returns the values, in the order of [`Counters::LIST`].
    fn values(&self) -> Vec<u64>;

    /// Returns the values to be changed, in the order of [`Counters::LIST`].
    fn values_mut(&mut self) -> Vec<&mut u64>;

    /// Returns how many packets came, on the law's left side.
    fn came(&self) -> u64 {
        sum(self, |law| matches!(law, Came(_)))
    }

    /// Returns how many packets the law's right side accounts for.
    fn accounted(&self) -> u64 {
        sum(self, |law| matches!(law, NotWanted(_) | Kept(_) | Lost(_)))
    }

    /// Returns how many packets were wanted and are lost.
    fn dropped(&self) -> u64 {
        sum(self, |law| matches!(law, Lost(_)))
    }
}

fn sum<C: Counters + ?Sized>(counters: &C, picks: fn(Law) -> bool) -> u64 {
    let rows = C::LIST.iter().zip(counters.values());
    rows.filter(|(counter, _)| picks(counter.law)).map(|(_, value)| value).sum()
}

/// Makes a struct of each block of rows, and the list of all rows.
///
/// A row is `name: unit, part in the law, "what can make it wrong";` under its meaning.
macro_rules! counters {
    ($(
        $(#[doc = $about:literal])+
        $Block:ident at $places:tt {
            $(
                $(#[doc = $meaning:literal])+
                $name:ident: $unit:ident, $law:expr, $caveat:literal;
            )+
        }
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
            pub struct $Block {
                $(
                    $(#[doc = $meaning])+
                    pub $name: u64,
                )+
            }

            impl Counters for $Block {
                const LIST: &'static [Counter] = &[$(Counter {
                    name: stringify!($name),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    unit: Unit::$unit,
                    law: $law,
                    caveat: $caveat,
                    places: &$places,
                }),+];

                fn values(&self) -> Vec<u64> {
                    vec![$(self.$name),+]
                }

                fn values_mut(&mut self) -> Vec<&mut u64> {
                    vec![$(&mut self.$name),+]
                }
            }
        )+

        /// Every counter of `record` and `serve`, block by block.
        pub const LIST: &[&[Counter]] = &[$($Block::LIST),+];
    };
}

counters! {
    /// Counters of one interface of a recording, or their sums over all its interfaces.
    InterfaceCounters at [Recorder, Interface] {
        /// Packets that reached the hook: the sum of `captured`, `filtered`, `cutoff` and both
        /// kinds of drops. The hook has no counter of its own, which would cost every packet; the
        /// sum is held against the device's counters.
        seen: Packets, Came("seen"),
            "what passes while the recorder is paused is neither seen nor received: the device's counters rest, too";
        /// Packets that are in the output, summed from the commit counters of the blocks that were
        /// written (ARCHITECTURE.md, Commit).
        captured: Packets, Kept("captured"),
            "while it records, the counter lags by what waits in the rings; where a segment cannot be made durable it goes down, and `dropped_unwritten` up";
        /// Packets that the filter refused, that no rule took, or that a rule dropped: `filtered`
        /// of each ring.
        filtered: Packets, NotWanted("filtered"),
            "";
        /// Packets of flows that had had their bytes (`--cutoff`, and rules with `cutoff=`):
        /// `packets` of each ring's `td_cut`.
        cutoff: Packets, NotWanted("cutoff"),
            "two flows that are taken for one (see below: rare) have the bytes of one";
        /// Packets for which the ring had no free block: `lost` of each ring, less
        /// `dropped_contended` and `dropped_unreadable`.
        dropped_ring: Packets, Lost(Some("ring full")),
            "the cause behind a full ring (slow disk, full disk, stopped process) is told on standard error, not here";
        /// Packets dropped for any other reason: the sum of the next three.
        dropped_other: Packets, Lost(None), "";
        /// Packets that lost 64 compare-and-swaps because too many producers wanted the ring at
        /// once: `contended` of each ring.
        dropped_contended: Packets, LostBecause("ring contended"), "";
        /// Packets that the kernel could not copy: `failed` of each ring.
        dropped_unreadable: Packets, LostBecause("unreadable"), "";
        /// Packets that were in the rings when the output could take no more: after a second
        /// signal, two seconds on a disk that takes nothing, a reader that left. And packets
        /// that a failed sync may have lost, whether they are on disk or not: those written since
        /// the last good one.
        dropped_unwritten: Packets, LostBecause("not written at the end"),
            "if an output hangs in the middle of a write after a second signal, the recorder says so and ends without this count";
        /// Packets that the network device received, whether or not it could deliver them:
        /// `rx_packets + rx_missed_errors` of rtnetlink(7), after less before.
        nic_received: Packets, DeviceMoved, "see below";
        /// Packets that the network device had no room for: `rx_missed_errors`.
        nic_dropped: Packets, DeviceLost,
            "drivers differ; some count drops elsewhere (`ethtool -S`)";
        /// Packets that the network device received, or sent where the hook sees both directions,
        /// while the hook was not shown them: it had been detached, the interface was away or had
        /// just come, or another program stood before it. The device's counters less what was
        /// seen, held against each other once a second.
        unseen: Packets, NotShown,
            "where frames are joined before the hook, those of the second in which it was detached count as they came to the device";
        /// Packets that the network device sent: `tx_packets`. Hooks that see both directions see
        /// these, too.
        nic_sent: Packets, DeviceMoved, "";
        /// Bytes of frames in the output: the sum of the captured lengths, from the commit
        /// counters.
        bytes_captured: Bytes, Beside, "";
        /// Packets that were cut short because the ring was nearly full (`--on-overload shed`),
        /// counted at each ring. They are `captured`, too.
        shed_packets: Packets, Beside,
            "packets that are `dropped_unwritten` later are counted here, too";
        /// Bytes of those packets' frames that would be in the output otherwise.
        shed_bytes: Bytes, Beside, "as `shed_packets`";
        /// Bytes of the frames in `cutoff`, at their full length: `bytes` of each ring's `td_cut`.
        bytes_cutoff: Bytes, Beside, "";
    }

    /// Counters of a recorder as a whole.
    RecorderCounters at [Recorder] {
        /// Bytes that were handed to the file system, with headers and fill.
        bytes_written: Bytes, Beside, "";
        /// Segments that were begun.
        segments: Number, Beside, "";
        /// Segments that retention deleted.
        segments_deleted: Number, Beside, "";
        /// Packets in the segments that retention deleted; for a segment of an earlier run, from
        /// the statistics at its end.
        packets_deleted: Packets, Beside,
            "of a segment without statistics, those up to the first block that is torn";
        /// Writes and closings that failed, a full disk not included.
        write_errors: Number, Beside, "";
        /// Bytes that the files of all indexes in the store take on disk, looked at once a second
        /// and when segments are closed.
        index_bytes: Bytes, Beside, "";
        /// Bytes of packet blocks, with fill, that were written and that the index thread has not
        /// looked at.
        index_behind_bytes: Bytes, Beside,
            "0 at the end, unless a second signal kept the index thread from finishing";
        /// Bytes of packet blocks that the index thread came too late for in the ring, and that
        /// were read from the segment instead.
        index_read_bytes: Bytes, Beside, "";
        /// How often a recorder has taken over what one before it had left (`--persist`).
        takeovers: Number, Beside, "";
        /// Steps of the clock, of 1 ms or more, that were noticed.
        clock_steps: Number, Beside, "";
        /// The longest time from closing a segment until the next could be written.
        rotation_us_max: Microseconds, Beside, "";
        /// The longest time for which something that was written was not durable (fsync(2)), so
        /// that a power cut could take it.
        unsynced_us_max: Microseconds, Beside,
            "too much by up to half of `--sync-interval`; 0 where nothing was made durable";
        /// Memory of all rings.
        ring_bytes: Bytes, Beside, "";
        /// The most that a ring was filled, looked at with each look of `--flush`, once a second or
        /// more, and ten times a second or more from when a sixteenth of it is seen to be in use;
        /// the whole ring if it ever overflowed.
        ring_used_max: Bytes, Beside, "peaks between two looks are missed";
        /// Whole seconds since recording began.
        elapsed_s: Seconds, Beside, "";
        /// Microseconds since recording began.
        elapsed_us: Microseconds, Beside, "";
        /// Whole seconds of CPU time that this process spent in user space: getrusage(2).
        cpu_user_s: Seconds, Beside, "";
        /// CPU time that this process spent in user space: getrusage(2).
        cpu_user_us: Microseconds, Beside, "";
        /// Whole seconds of CPU time that the kernel spent for this process: getrusage(2).
        cpu_system_s: Seconds, Beside,
            "the hook programs run in softirq on the CPU that receives and are not in it";
        /// CPU time that the kernel spent for this process: getrusage(2).
        cpu_system_us: Microseconds, Beside, "as `cpu_system_s`";
        /// Times that this process was taken from a CPU, by its own wish or not: getrusage(2).
        context_switches: Number, Beside, "";
        /// The most memory that this process had resident: getrusage(2).
        max_rss_bytes: Bytes, Beside, "includes the mapped rings";
        /// How long the write that is under way has taken so far, or for how long none has
        /// succeeded though packets wait; 0 while nothing waits.
        write_us: Microseconds, Beside, "";
    }

    /// Counters of the rings of a recorder whose hooks are its own.
    UsedRingCounters at [Recorder] {
        /// Bytes that wait in the ring that is filled most, at this moment.
        ring_used_bytes: Bytes, Beside, "";
        /// Bytes that one ring has.
        ring_size_bytes: Bytes, Beside, "";
    }

    /// Counters of the store that a recorder writes into.
    StoreCounters at [Recorder] {
        /// Bytes that closed segments and their indexes take on disk.
        store_bytes: Bytes, Beside, "the segment that is being written is not in it";
        /// When the oldest packet in the store came, in microseconds since 1970; 0 while there is
        /// none.
        store_oldest_us: Microseconds, Beside,
            "the first packet of the oldest segment: of other rings a packet may be older, by as much as `--flush`";
    }

    /// Counters of a daemon as a whole.
    DaemonCounters at [Daemon] {
        /// Whole seconds since the daemon began to serve.
        elapsed_s: Seconds, Beside, "";
        /// Microseconds since the daemon began to serve.
        elapsed_us: Microseconds, Beside, "";
        /// Memory of the rings of one member, whichever it is.
        member_bytes: Bytes, Beside, "";
        /// How often a daemon has taken over what one before it had left (`--persist`).
        takeovers: Number, Beside, "";
    }

    /// Counters of one interface at one hook of a daemon.
    PortCounters at [Port] {
        /// Packets that reached the hook on this interface, counted there.
        seen: Packets, Came("seen"), "";
        /// Packets that the network device has received since the daemon began to serve, whether or
        /// not it could deliver them.
        nic_received: Packets, DeviceMoved, "as of a recording";
        /// Packets that the network device had no room for.
        nic_dropped: Packets, DeviceLost, "as of a recording";
        /// Packets that the network device received, or sent where the hook sees both directions,
        /// while the hook was not shown them.
        unseen: Packets, NotShown, "as of a recording";
        /// Packets that the network device has sent.
        nic_sent: Packets, DeviceMoved, "";
    }

    /// Counters of one group, over all its interfaces and all members that it has and has had.
    GroupCounters at [Group] {
        /// Packets that reached the group's hooks while the group was not paused.
        seen: Packets, Came("seen"), "";
        /// Packets that the group's filter or rules refused.
        filtered: Packets, NotWanted("filtered"), "";
        /// Packets of flows that had had the bytes that a rule with `cutoff=` lets them have.
        cutoff: Packets, NotWanted("cutoff"), "as of a recording";
        /// Packets that the group took when it had no member for them.
        no_member: Packets, NotWanted("without a member"), "";
        /// Copies beyond a packet's first, with steering `copy` and `both-ends`.
        extra: Packets, Came("copies"), "";
        /// Copies put into members' rings, read or not.
        captured: Packets, Kept("captured"),
            "what a member does not read before it ends, or overwrites by releasing blocks that it has not read, is counted all the same";
        /// Captured bytes of the frames in `captured`.
        bytes_captured: Bytes, Beside, "";
        /// Copies for which the member's ring had no room: the member did not read fast enough.
        dropped_ring: Packets, Lost(None), "";
        /// Copies lost by contention, or that the kernel could not read.
        dropped_other: Packets, Lost(None), "";
    }

    /// Counters of one member.
    MemberCounters at [Member, Own] {
        /// Copies put into this member's rings, read or not.
        captured: Packets, Kept("captured"), "as of a group";
        /// Captured bytes of the frames in `captured`.
        bytes_captured: Bytes, Beside, "";
        /// Copies for which this member's ring had no room: it did not read fast enough.
        dropped_ring: Packets, Lost(None), "";
        /// Copies for this member lost by contention, or that the kernel could not read.
        dropped_other: Packets, Lost(None), "";
    }

    /// Counters of one member's rings.
    RingCounters at [Member] {
        /// Memory of this member's rings.
        ring_bytes: Bytes, Beside, "";
        /// Bytes that wait in this member's rings.
        ring_fill_bytes: Bytes, Beside, "";
        /// The share of this member's rings that waits to be read.
        ring_fill_percent: Percent, Beside, "";
    }
}

impl InterfaceCounters {
    /// Adds the numbers of another interface.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.values_mut().into_iter().zip(other.values()) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Counters, GroupCounters, InterfaceCounters, LIST, Law, Unit};

    #[test]
    fn both_sides_of_the_law_are_sums_of_their_parts() {
        let c = InterfaceCounters {
            seen: 1111,
            captured: 1000,
            filtered: 100,
            dropped_ring: 10,
            dropped_other: 1,
            dropped_contended: 1,
            nic_received: 7,
            bytes_captured: 64_000,
            ..InterfaceCounters::default()
        };
        assert_eq!((c.came(), c.accounted(), c.dropped()), (1111, 1111, 11));
        let g = GroupCounters {
            seen: 100,
            extra: 11,
            filtered: 1,
            cutoff: 0,
            no_member: 20,
            captured: 30,
            dropped_ring: 40,
            dropped_other: 20,
            bytes_captured: 9,
        };
        assert_eq!((g.came(), g.accounted(), g.dropped()), (111, 111, 60));
        let mut sum = c;
        sum.add(&c);
        assert_eq!((sum.seen, sum.bytes_captured), (2222, 128_000));
    }

    #[test]
    fn no_place_has_two_counters_of_one_name_and_each_row_is_whole() {
        let rows: Vec<_> = LIST.iter().copied().flatten().collect();
        for (at, row) in rows.iter().enumerate() {
            for other in &rows[at + 1..] {
                let shares_place = row.places.iter().any(|place| other.places.contains(place));
                assert!(row.name != other.name || !shares_place, "{row:?} {other:?}");
            }
            assert!(row.meaning.ends_with('.'), "a sentence: {row:?}");
            assert!(!row.meaning.contains('|') && !row.caveat.contains('|'), "a cell: {row:?}");
            let of_packets = row.unit == Unit::Packets;
            assert!(of_packets || row.law == Law::Beside, "the laws are of packets: {row:?}");
        }
    }
}
