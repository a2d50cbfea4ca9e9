//! Which key of the statistics is which metric? One row for each, by the object that has the key.
//!
//! Names have base units at their ends, and counters `_total`, which the encoder adds. What became
//! of packets has no rows of its own: `tapdeck_packet::account` has the law that says so.

use prometheus_client::registry;
use serde_json::Value;

use crate::Number;

/// What a metric's value does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows, until the program begins anew.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1; the labels tell.
    Info,
}

/// The unit at the end of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Seconds,
}

impl Unit {
    pub fn of_client(self) -> registry::Unit {
        match self {
            Self::Bytes => registry::Unit::Bytes,
            Self::Seconds => registry::Unit::Seconds,
        }
    }
}

/// How a key's value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The number itself.
    Whole,
    /// Microseconds, as seconds.
    Microseconds,
    /// Microseconds since 1970, where 0 is none.
    Moment,
    /// `true` is 1.
    Truth,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// The key in the statistics; empty for what is worked out from several.
    pub key: &'static str,
    /// The name without unit and `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub unit: Option<Unit>,
    /// Labels that tell this key's series from those of others under the same name.
    pub labels: &'static [(&'static str, &'static str)],
    reading: Reading,
}

impl Metric {
    const fn new(kind: Kind, key: &'static str, name: &'static str, help: &'static str) -> Self {
        let (unit, labels, reading) = (None, &[], Reading::Whole);
        Self { key, name, help, kind, unit, labels, reading }
    }

    const fn counter(key: &'static str, name: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Counter, key, name, help)
    }

    const fn gauge(key: &'static str, name: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Gauge, key, name, help)
    }

    const fn bytes(self) -> Self {
        Self { unit: Some(Unit::Bytes), ..self }
    }

    /// Says that the key counts seconds.
    const fn seconds(self) -> Self {
        Self { unit: Some(Unit::Seconds), ..self }
    }

    /// Says that the key counts microseconds.
    const fn microseconds(self) -> Self {
        Self { unit: Some(Unit::Seconds), reading: Reading::Microseconds, ..self }
    }

    /// Says that the key is a time in microseconds.
    const fn moment(self) -> Self {
        Self { unit: Some(Unit::Seconds), reading: Reading::Moment, ..self }
    }

    const fn truth(self) -> Self {
        Self { reading: Reading::Truth, ..self }
    }

    const fn labelled(self, labels: &'static [(&'static str, &'static str)]) -> Self {
        Self { labels, ..self }
    }

    /// Returns what an object of the statistics has under the key.
    pub fn read(&self, object: &Value) -> Option<Number> {
        let value = object.get(self.key)?;
        match self.reading {
            Reading::Whole => value.as_u64().map(Number::Whole),
            Reading::Microseconds => value.as_u64().map(|us| Number::Real(us as f64 / 1e6)),
            Reading::Moment => {
                value.as_u64().filter(|us| *us > 0).map(|us| Number::Real(us as f64 / 1e6))
            }
            Reading::Truth => value.as_bool().map(|is_so| Number::Whole(u64::from(is_so))),
        }
    }
}

/// What became of the packets of an interface.
pub static PACKETS: Metric = Metric::counter(
    "",
    "tapdeck_packets",
    "Packets that the hook saw, by what became of them; all outcomes together are what it saw",
);

/// What became of a group's packets.
pub static GROUP_PACKETS: Metric = Metric::counter(
    "",
    "tapdeck_group_packets",
    "Packets of a group, by what became of them; all outcomes together are what it saw and its copies",
);

/// The version of a program.
pub static BUILD: Metric =
    Metric::new(Kind::Info, "", "tapdeck_build", "Version of the program that runs");

/// Whether a recorder or a daemon answers.
pub static UP: Metric =
    Metric::gauge("", "tapdeck_up", "Whether the recorder or daemon answers at its control socket");

pub static MEMBERS: Metric = Metric::gauge("", "tapdeck_group_members", "Members of the group");
pub static MEMBERS_AWAY: Metric = Metric::gauge(
    "",
    "tapdeck_group_members_away",
    "Members that have not come back since another daemon had them",
);
pub static GROUP_RING_USED: Metric = Metric::gauge(
    "",
    "tapdeck_group_ring_used",
    "Bytes that wait in the rings of the member that is furthest behind",
)
.bytes();
pub static GROUP_RING_SIZE: Metric =
    Metric::gauge("", "tapdeck_group_ring_size", "Memory of the rings of that member").bytes();

const SHED_BYTES: Metric =
    Metric::counter("shed_bytes", "tapdeck_shed", "Bytes of payload given up under overload")
        .bytes();
const SHED_PACKETS: Metric = Metric::counter(
    "shed_packets",
    "tapdeck_shed_packets",
    "Packets of which payload was given up under overload",
);

/// Keys of a recorder as a whole.
pub static RECORDER: &[Metric] = &[
    Metric::counter("bytes_written", "tapdeck_written", "Bytes handed to the file system").bytes(),
    Metric::counter("write_errors", "tapdeck_write_errors", "Writes and closings that failed"),
    Metric::gauge(
        "write_us",
        "tapdeck_write_pending",
        "How long the write that is under way has taken, or for how long none has succeeded",
    )
    .microseconds(),
    Metric::counter("segments", "tapdeck_segments", "Segments that were begun"),
    Metric::counter(
        "segments_deleted",
        "tapdeck_segments_deleted",
        "Segments that retention deleted",
    ),
    Metric::counter(
        "packets_deleted",
        "tapdeck_deleted_packets",
        "Packets in the segments that retention deleted",
    ),
    SHED_BYTES,
    SHED_PACKETS,
    Metric::gauge("index_bytes", "tapdeck_index", "Bytes that the store's indexes take").bytes(),
    Metric::gauge(
        "index_behind_bytes",
        "tapdeck_index_behind",
        "Bytes that were written and are not indexed yet",
    )
    .bytes(),
    Metric::counter(
        "index_read_bytes",
        "tapdeck_index_read",
        "Bytes that the index came too late for in memory, and read from disk",
    )
    .bytes(),
    Metric::counter(
        "takeovers",
        "tapdeck_takeovers",
        "How often this lasting recording was taken over from a recorder before",
    ),
    Metric::counter(
        "clock_steps",
        "tapdeck_clock_offset_changes",
        "Steps of the clock, of 1 ms or more",
    ),
    Metric::gauge(
        "rotation_us_max",
        "tapdeck_rotation_max",
        "The longest time from closing a segment until the next could be written",
    )
    .microseconds(),
    Metric::gauge(
        "unsynced_us_max",
        "tapdeck_unsynced_max",
        "The longest time for which something that was written was not durable",
    )
    .microseconds(),
    Metric::gauge("ring_bytes", "tapdeck_rings", "Memory of all rings").bytes(),
    Metric::gauge("ring_used_bytes", "tapdeck_ring_used", "Bytes that wait in the fullest ring")
        .bytes(),
    Metric::gauge("ring_size_bytes", "tapdeck_ring_size", "Bytes that one ring has").bytes(),
    Metric::gauge("ring_used_max", "tapdeck_ring_used_max", "The most that a ring was filled")
        .bytes(),
    Metric::gauge(
        "store_bytes",
        "tapdeck_store",
        "Bytes that closed segments and their indexes take on disk",
    )
    .bytes(),
    Metric::gauge(
        "store_oldest_us",
        "tapdeck_store_oldest_packet_timestamp",
        "When the oldest packet in the store came",
    )
    .moment(),
    Metric::gauge(
        "keep_time_s",
        "tapdeck_store_keep_time",
        "How long packets are to be kept (--keep-time)",
    )
    .seconds(),
    Metric::gauge("elapsed_us", "tapdeck_running", "Time since recording or serving began")
        .microseconds(),
    Metric::counter("cpu_user_us", "tapdeck_cpu", "CPU time of the recorder's process")
        .microseconds()
        .labelled(&[("mode", "user")]),
    Metric::counter("cpu_system_us", "tapdeck_cpu", "CPU time of the recorder's process")
        .microseconds()
        .labelled(&[("mode", "system")]),
    Metric::counter(
        "context_switches",
        "tapdeck_context_switches",
        "Times that the recorder's process was taken from a CPU",
    ),
    Metric::gauge(
        "max_rss_bytes",
        "tapdeck_resident_max",
        "The most memory that the recorder's process had resident",
    )
    .bytes(),
];

/// Keys of one interface of a recorder, or of one port of a daemon.
pub static INTERFACE: &[Metric] = &[
    Metric::gauge("attached", "tapdeck_hook_attached", "Whether the hook stands").truth(),
    Metric::gauge("paused", "tapdeck_paused", "Whether recording is paused").truth(),
    Metric::counter("seen", "tapdeck_seen_packets", "Packets that reached the hook"),
    Metric::counter("bytes_captured", "tapdeck_captured", "Bytes of frames that are in the output")
        .bytes(),
    Metric::counter(
        "bytes_cutoff",
        "tapdeck_cutoff",
        "Bytes of frames that were left out of long flows, as was asked",
    )
    .bytes(),
    Metric::counter(
        "unseen",
        "tapdeck_unseen_packets",
        "Packets that passed the device while the hook was not shown them",
    ),
    Metric::counter(
        "nic_received",
        "tapdeck_nic_received_packets",
        "Packets that the network device received, whether or not it could deliver them",
    ),
    Metric::counter(
        "nic_dropped",
        "tapdeck_nic_dropped_packets",
        "Packets that the network device had no room for",
    ),
    Metric::counter("nic_sent", "tapdeck_nic_sent_packets", "Packets that the network device sent"),
    SHED_BYTES,
    SHED_PACKETS,
];

/// Keys of a daemon as a whole.
pub static DAEMON: &[Metric] = &[
    Metric::gauge("elapsed_us", "tapdeck_running", "Time since recording or serving began")
        .microseconds(),
    Metric::gauge(
        "member_bytes",
        "tapdeck_group_member_memory",
        "Memory of the rings of one member",
    )
    .bytes(),
    Metric::counter(
        "takeovers",
        "tapdeck_takeovers",
        "How often what a program before had left was taken over",
    ),
];

/// Keys of one group of a daemon.
pub static GROUP: &[Metric] = &[
    Metric::gauge("paused", "tapdeck_group_paused", "Whether the group is paused").truth(),
    Metric::counter("seen", "tapdeck_group_seen_packets", "Packets that reached the group's hooks"),
    Metric::counter("extra", "tapdeck_group_extra_packets", "Copies beyond a packet's first"),
    Metric::counter(
        "bytes_captured",
        "tapdeck_group_captured",
        "Bytes of frames put into members' rings",
    )
    .bytes(),
];
