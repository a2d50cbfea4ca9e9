//! Copies the packets that a question asks for out of a store, as a query finds and reads them.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::key::Plan;
use tapdeck_packet::pcapng;
use tapdeck_packet::printable::counted;
use tapdeck_store::UnseenSpan;
use tapdeck_store::filter::Filter;
use tapdeck_store::io::Storage;
use tapdeck_store::query::{Described, Matcher, Packet, Query, Snapshot, Span};
use tapdeck_store::recorded::clock_steps;

use crate::error::Error;
use crate::key::hex;
use crate::time::Time;

/// What names the program in files.
pub const APPLICATION: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
/// Bytes that gather before they are written.
const BUFFER: usize = 256 << 10;

/// Bytes of packets that are in memory at once, about: nobody waits for a copy.
const MEMORY: usize = 4 << 20;

/// Which packets are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// An expression of pcap-filter(7); empty for all packets.
    pub filter: String,
    /// An expression that packets must match besides, whatever `filter` says: what may be given to
    /// who asked. Empty for all packets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ceiling: String,
    /// The flow of the packets; `None` for any.
    pub community_id: Option<CommunityId>,
    /// Whether packets inside tunnels count, too.
    pub inner: bool,
    /// The earliest time of packets; `None` for the beginning.
    pub after: Option<Time>,
    /// The time that packets are from before; `None` for the end.
    pub before: Option<Time>,
}

impl Question {
    /// Returns the span that is asked about.
    pub fn span(&self) -> Span {
        Span {
            after_ns: self.after.map_or(Span::ALL.after_ns, |time| time.0),
            before_ns: self.before.map_or(Span::ALL.before_ns, |time| time.0),
        }
    }

    /// Finds out whether the question can be asked of a store.
    ///
    /// # Errors
    /// If there is no store, or the filter is none.
    pub fn check(&self, storage: &Arc<dyn Storage>) -> Result<(), Error> {
        let snapshot = Snapshot::open_in(storage, self.span())?;
        Choice::new(self, snapshot.interfaces()).map(drop)
    }

    fn comment(&self, place: &Path) -> String {
        let mut words = vec![format!("from {}", place.display())];
        words.extend((!self.filter.is_empty()).then(|| format!("filter {}", self.filter)));
        words.extend((!self.ceiling.is_empty()).then(|| format!("within {}", self.ceiling)));
        words.extend(self.community_id.iter().map(|id| format!("community id {id}")));
        words.extend(self.inner.then(|| "also inside tunnels".to_owned()));
        words.extend(self.after.map(|time| format!("after {time}")));
        words.extend(self.before.map(|time| format!("before {time}")));
        words.join(", ")
    }
}

/// What decides which packets are asked for.
#[derive(Clone)]
struct Choice {
    filter: Filter,
    /// Where who asked may not have every packet.
    ceiling: Option<Filter>,
    flow: Option<CommunityId>,
    inner: bool,
}

impl Choice {
    fn new(question: &Question, interfaces: &[Described]) -> Result<Self, Error> {
        let filter = Filter::new(&question.filter, interfaces, question.inner)?;
        let ceiling = (!question.ceiling.is_empty())
            .then(|| Filter::new(&question.ceiling, interfaces, false))
            .transpose()?;
        Ok(Self { filter, ceiling, flow: question.community_id, inner: question.inner })
    }

    /// Returns which keys the packets have that are asked for.
    fn plan(&self) -> Plan {
        let plans = [Some(&self.filter), self.ceiling.as_ref()].into_iter().flatten();
        let mut plans: Vec<Plan> =
            plans.map(|filter| filter.plan().clone()).filter(|plan| *plan != Plan::All).collect();
        match plans.len() {
            0 => Plan::All,
            1 => plans.remove(0),
            _ => Plan::Every(plans),
        }
    }
}

impl Matcher for Choice {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let is_of = |flow: CommunityId| flow.takes(packet.link, packet.frame, self.inner);
        self.filter.matches(packet)
            && self.ceiling.as_ref().is_none_or(|ceiling| ceiling.matches(packet))
            && self.flow.is_none_or(is_of)
    }
}

/// How much may be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Most {
    pub packets: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

impl Most {
    /// No bound: as much as there is.
    pub const ALL: Self = Self { packets: u64::MAX, bytes: u64::MAX };
}

impl fmt::Display for Most {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.packets, "packet"), (self.bytes, "byte")];
        let bounded = parts.iter().filter(|(most, _)| *most < u64::MAX);
        let words: Vec<String> = bounded.map(|(most, unit)| counted(*most, unit)).collect();
        f.write_str(&words.join(" and "))
    }
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub packets: u64,
    /// Bytes of the file, and its SHA-256 in hexadecimal.
    pub bytes: u64,
    pub sha256: String,
    /// Times of the first and the last packet.
    pub times: Option<(Time, Time)>,
    /// Names and descriptions of the recording's interfaces.
    pub interfaces: Vec<(String, String)>,
    /// When the clock was stepped, as segments tell.
    pub clock_steps: Vec<Time>,
    /// Packets that were recorded and are not here: a sentence each.
    pub faults: Vec<String>,
}

/// A file that is summed while it is written, and has a largest length.
struct Summed<'a> {
    file: &'a mut File,
    sum: Sha256,
    bytes: u64,
    most: u64,
}

impl Summed<'_> {
    fn write(&mut self, pending: &mut Vec<u8>) -> io::Result<()> {
        if self.bytes + pending.len() as u64 > self.most {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.file.write_all(pending)?;
        self.sum.update(&*pending);
        self.bytes += pending.len() as u64;
        pending.clear();
        Ok(())
    }
}

/// Copies the packets of a question into a file, in the order of time. `watch` ends it by `false`.
///
/// # Errors
/// If the store cannot be read or the file not be written: of the kind
/// [`io::ErrorKind::QuotaExceeded`] where it would be longer than `most`, and [`Error::TooMuch`]
/// where it would have more packets.
pub fn copy(
    storage: &Arc<dyn Storage>,
    question: &Question,
    (file, path): (&mut File, &Path),
    most: Most,
    mut watch: impl FnMut() -> bool,
) -> Result<Copied, Error> {
    let span = question.span();
    let snapshot = Snapshot::open_in(storage, span)?;
    let interfaces = snapshot.interfaces().to_vec();
    let choice = Choice::new(question, &interfaces)?;
    let mut copied = Copied {
        interfaces: interfaces.iter().map(name).collect(),
        clock_steps: clock_steps(&snapshot).into_iter().map(Time).collect(),
        ..Copied::default()
    };
    let mut query = Query::within(MEMORY, snapshot, span, choice.plan(), choice);
    let mut out = Summed { file, sum: Sha256::new(), bytes: 0, most: most.bytes };
    let mut pending = Vec::with_capacity(BUFFER + (64 << 10));
    let cannot = || Error::io("write", path);
    let comment = question.comment(storage.place());
    pcapng::section_header(&mut pending, std::env::consts::OS, APPLICATION, Some(&comment));
    for interface in &interfaces {
        pending.extend_from_slice(&interface.block);
    }
    loop {
        let mut is_stopped = false;
        let found = query.find_next(|_| {
            is_stopped = !watch();
            !is_stopped
        })?;
        if is_stopped {
            return Err(Error::Stopped);
        }
        for missing in query.take_unseen(found.unwrap_or(i64::MAX)) {
            pcapng::statistics(&mut pending, &UnseenSpan::from(&missing).block());
        }
        let Some(packet) = query.packet().filter(|_| found.is_some()) else { break };
        if copied.packets == most.packets {
            return Err(Error::TooMuch { most: counted(most.packets, "packet") });
        }
        packet.write_block(&mut pending);
        copied.packets += 1;
        let time = Time(packet.time_ns);
        copied.times = Some((copied.times.map_or(time, |times| times.0), time));
        if pending.len() >= BUFFER {
            out.write(&mut pending).map_err(cannot())?;
        }
    }
    out.write(&mut pending).map_err(cannot())?;
    out.file.sync_all().map_err(cannot())?;
    (copied.bytes, copied.sha256) = (out.bytes, hex(&out.sum.finalize()));
    let lacks = query.take_notes().into_iter().filter(tapdeck_store::query::Note::lacks_packets);
    copied.faults = lacks.map(|note| note.to_string()).collect();
    Ok(copied)
}

/// Counts the packets of a question. `watch` ends it by `false`.
///
/// # Errors
/// As [`copy`].
pub fn count(
    storage: &Arc<dyn Storage>,
    question: &Question,
    mut watch: impl FnMut() -> bool,
) -> Result<u64, Error> {
    let span = question.span();
    let snapshot = Snapshot::open_in(storage, span)?;
    let choice = Choice::new(question, snapshot.interfaces())?;
    let mut query = Query::within(MEMORY, snapshot, span, choice.plan(), choice);
    let mut is_stopped = false;
    query.count(|_| {
        is_stopped = !watch();
        !is_stopped
    })?;
    if is_stopped { Err(Error::Stopped) } else { Ok(query.progress().matches) }
}

fn name(interface: &Described) -> (String, String) {
    (interface.name.clone(), interface.description.clone())
}
