//! What of a run's packets came back? Lost, repeated, reordered and damaged packets are counted, in
//! total, by stream, by size and over time, and the time that packets took is told where clocks
//! allow.
//!
//! [`Check`] takes what the generator says it sent and then, one by one, the packets of a
//! recording. No packet is kept: memory grows with the streams (24 bytes each) and with the holes
//! in their numbers.
//!
//! Ethernet frames are expected as they were sent, or routed (`routed`), or without VLAN tags,
//! which many devices take off; captured whole or in part. Packets too short to hold a send time
//! cannot be told from those of an earlier run with the same addresses.

mod order;
mod recognise;
mod report;
mod time;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use tapdeck_packet::generate::{Flow, Transport};

use self::order::{Arrival, Order};
use self::recognise::{Numbered, Recogniser, Seen};
use self::report::Latency;
pub use self::report::{Period, Report, Size, Stream};
use self::time::{Distribution, Latencies, Timeline};
use crate::sent::Sent;
use crate::workload::{self, Workload};

/// Why nothing can be said about a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// the packets of a replay carry no numbers
    #[error("what was sent is a replay: its packets carry no numbers, so none can be missed")]
    Replay,
    /// no generator sends such a workload
    #[error("the workload that was sent cannot be: {0}")]
    Workload(#[from] workload::Error),
    /// the numbers do not belong together
    #[error("the record of what was sent contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// How far outside the run a send time may be: the run's beginning and end are noted, not the time
/// of each packet.
const MARGIN_NS: u64 = 1_000_000_000;

/// What was wrong with a stream.
#[derive(Clone, Copy, Default)]
struct Faults {
    repeated: u64,
    reordered: u64,
    extent_max: u64,
    damaged: u64,
    /// Damaged or cut packets that have come, though their number cannot be read.
    unread: u64,
}

/// Judges a recording, packet by packet.
pub struct Check {
    recogniser: Recogniser,
    order: Order,
    timeline: Timeline,
    latencies: Latencies,
    extents: Distribution,
    faults: HashMap<u32, Faults>,
    /// What came of each length of frame.
    sizes: Vec<Size>,
    report: Report,
}

impl Check {
    /// Begins a check. With `routed`, Ethernet addresses and hop limits may differ from what was
    /// sent.
    ///
    /// # Errors
    /// Where `sent` is a replay, or no run of this generator.
    pub fn new(sent: Sent, routed: bool) -> Result<Self, Error> {
        let workload = sent.workload.ok_or(Error::Replay)?;
        workload.check()?;
        if sent.streams.len() as u64
            != u64::from(workload.flows) + u64::from(workload.mark.is_some())
        {
            return Err(Error::Contradiction(
                "it has counts for more or fewer streams than the workload has",
            ));
        }
        let made = sum(sent.streams.iter());
        if made.is_none()
            || made != sum(sent.sizes.values())
            || made != sent.sent.checked_add(sent.refused)
        {
            return Err(Error::Contradiction(
                "packets by stream, packets by size, and sent with refused ones are not the same number",
            ));
        }
        if sent.started_ns > sent.ended_ns {
            return Err(Error::Contradiction("it ended before it began"));
        }
        let mut sizes = vec![Size::default(); usize::from(u16::MAX) + 1];
        for (&len, &made) in &sent.sizes {
            sizes[usize::from(len)].made = made;
        }
        let run_ns =
            sent.started_ns.saturating_sub(MARGIN_NS)..=sent.ended_ns.saturating_add(MARGIN_NS);
        let report = Report {
            made: made.unwrap_or(0),
            refused: sent.refused,
            streams: sent.streams.len() as u64,
            ..Report::default()
        };
        Ok(Self {
            recogniser: Recogniser::new(workload, run_ns, &sent.streams, routed),
            order: Order::new(&sent.streams),
            timeline: Timeline::new(sent.started_ns, sent.ended_ns),
            latencies: Latencies::new(),
            extents: Distribution::new(),
            faults: HashMap::new(),
            sizes,
            report,
        })
    }

    /// Takes the next packet of the recording: when the packet was captured (UTC), its length on
    /// the wire, and the bytes that were captured, from the Ethernet header on.
    pub fn packet(&mut self, captured_ns: Option<i64>, original_len: u32, frame: &[u8]) {
        match self.recogniser.see(&self.order, original_len, frame) {
            Seen::Foreign => self.report.foreign += 1,
            Seen::OtherRun => self.report.of_other_runs += 1,
            Seen::Cut { stream, len } => {
                self.report.cut += 1;
                self.unread(Some(stream), len);
                self.timeline.unread(captured_ns);
            }
            Seen::Intact(packet) => self.numbered(&packet, captured_ns, true),
            Seen::Damaged(packet) => self.numbered(&packet, captured_ns, false),
            Seen::Unidentified { stream, len } => self.unidentified(stream, len, captured_ns),
        }
    }

    fn numbered(&mut self, packet: &Numbered, captured_ns: Option<i64>, is_intact: bool) {
        let place = self.timeline.place(packet.sent_ns, captured_ns);
        let number = (packet.stream, packet.sequence);
        let arrival = self.order.arrive(number, captured_ns, place as u32);
        let period = &mut self.timeline.periods[place];
        let size = &mut self.sizes[packet.len];
        self.report.received += 1;
        period.received += 1;
        self.report.untagged += u64::from(packet.untagged);
        if !is_intact {
            self.report.damaged += 1;
            self.report.damaged_as_by_routing += u64::from(packet.routed);
            period.damaged += 1;
            size.damaged += 1;
            self.faults.entry(packet.stream).or_default().damaged += 1;
        }
        if arrival != Arrival::Repeated {
            self.report.arrived += 1;
            size.arrived += 1;
        }
        match arrival {
            Arrival::Repeated if is_intact => {
                self.report.repeated += 1;
                period.repeated += 1;
                self.faults.entry(packet.stream).or_default().repeated += 1;
            }
            Arrival::Reordered { extent } => {
                self.report.reordered += 1;
                period.reordered += 1;
                self.extents.add(extent);
                let faults = self.faults.entry(packet.stream).or_default();
                faults.reordered += 1;
                faults.extent_max = faults.extent_max.max(extent);
            }
            Arrival::InOrder | Arrival::Repeated => {}
        }
        if is_intact && arrival != Arrival::Repeated {
            self.report.intact += 1;
            if let (Some(sent_ns), Some(captured_ns)) = (packet.sent_ns, captured_ns) {
                self.latencies.add(sent_ns, captured_ns);
            }
        }
    }

    fn unidentified(&mut self, stream: Option<u32>, len: usize, captured_ns: Option<i64>) {
        self.unread(stream, len);
        let period = self.timeline.unread(captured_ns);
        period.received += 1;
        period.damaged += 1;
        self.report.received += 1;
        self.report.damaged += 1;
        self.report.unidentified += 1;
        self.sizes[len].damaged += 1;
        if let Some(stream) = stream {
            self.faults.entry(stream).or_default().damaged += 1;
        }
    }

    /// Counts a packet whose number cannot be read.
    fn unread(&mut self, stream: Option<u32>, len: usize) {
        self.sizes[len].arrived += 1;
        if let Some(stream) = stream {
            self.faults.entry(stream).or_default().unread += 1;
        }
    }

    /// Ends the check and returns its result.
    pub fn finish(mut self) -> Report {
        let mut report = std::mem::take(&mut self.report);
        let came = report.arrived + report.unidentified + report.cut + report.refused;
        report.lost = report.made.saturating_sub(came);
        report.reordering_extent = self.extents.spread();
        match self.latencies.finish() {
            Latency::Known(spread) => report.latency_ns = Some(spread),
            Latency::Unknown(why) => report.latency_unknown = Some(why),
        }
        self.by_stream(&mut report);
        report.period_ms = self.timeline.period_ns / 1_000_000;
        report.over_time = self.timeline.finish(self.order.missing_by_bucket());
        report.by_size = (0..=u16::MAX)
            .zip(self.sizes)
            .filter(|(_, s)| s.made + s.arrived + s.damaged > 0)
            .map(|(len, s)| (len, Size { lost: s.made.saturating_sub(s.arrived), ..s }))
            .collect();
        report
    }

    fn by_stream(&self, report: &mut Report) {
        let workload = self.recogniser.workload();
        for id in 0..report.streams as u32 {
            let faults = self.faults.get(&id).copied().unwrap_or_default();
            let lost = self.order.missing(id).saturating_sub(faults.unread);
            report.streams_with_loss += u64::from(lost > 0);
            if lost + faults.repeated + faults.reordered + faults.damaged > 0 {
                report.by_stream.push(Stream {
                    stream: id,
                    flow: workload.flow(id).map(|f| describe(workload, &f)).unwrap_or_default(),
                    made: self.order.made(id).unwrap_or(0),
                    lost,
                    repeated: faults.repeated,
                    reordered: faults.reordered,
                    reordering_extent_max: faults.extent_max,
                    damaged: faults.damaged,
                });
            }
        }
        let badness = |s: &Stream| (s.lost + s.damaged, s.repeated + s.reordered);
        report.by_stream.sort_by(|a, b| badness(b).cmp(&badness(a)).then(a.stream.cmp(&b.stream)));
    }
}

/// Returns the sum of counts; `None` where it is too large.
fn sum<'a>(mut counts: impl Iterator<Item = &'a u64>) -> Option<u64> {
    counts.try_fold(0, |sum: u64, &n| sum.checked_add(n))
}

/// Returns a flow for a person: `udp 10.0.0.1:1024 > 10.1.0.1:9`.
fn describe(workload: &Workload, flow: &Flow) -> String {
    let address = |octets: &[u8; 16]| {
        let [a, b, c, d, ..] = *octets;
        if workload.is_ipv6() {
            format!("[{}]", Ipv6Addr::from(*octets))
        } else {
            Ipv4Addr::new(a, b, c, d).to_string()
        }
    };
    let (source, destination) = (address(&flow.source), address(&flow.destination));
    let (from, to) = (flow.source_port, flow.destination_port);
    match flow.transport {
        Transport::Udp => format!("udp {source}:{from} > {destination}:{to}"),
        Transport::Tcp => format!("tcp {source}:{from} > {destination}:{to}"),
        Transport::Icmp => format!("icmp {source} > {destination} id {from}"),
    }
}
