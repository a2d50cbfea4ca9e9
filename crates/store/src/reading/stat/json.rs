//! How do programs read the report of `stat`? As one JSON object, whose fields are documented here.

use std::path::Path;

use serde::Serialize;
use tapdeck_packet::printable;

use super::{Report, Tops};
use crate::reading::query::Missing;
use crate::shed::Shed;
use crate::time;

/// The number of parts of the span for which rates are told.
const PARTS: usize = 60;

#[derive(Serialize)]
struct Json<'a> {
    dir: String,
    segments: u64,
    /// Segments that are being written.
    segments_live: u64,
    /// Segments whose packets are not in `rate` and not among hosts and ports.
    segments_not_indexed: u64,
    packets: u64,
    bytes_stored: u64,
    index_bytes: u64,
    /// The time of the first packet; null where there are none.
    first: Option<String>,
    last: Option<String>,
    /// Packets that were lost in all gaps.
    lost: u64,
    gaps: Vec<Gap<'a>>,
    /// How many smaller gaps are not in the list, which had no room.
    gaps_omitted: u64,
    /// Packets that were cut short because a ring was nearly full, and bytes that they lack.
    shed_packets: u64,
    shed_bytes: u64,
    shed_times: Vec<ShedTime<'a>>,
    /// How many times in which less was shed are not in the list, which had no room.
    shed_times_omitted: u64,
    /// Packets that interfaces received while their hooks were not shown them.
    unseen: u64,
    unseen_times: Vec<UnseenTime<'a>>,
    /// Packets that were left out of flows, and bytes of their frames, as far as segments that are
    /// closed tell it.
    cutoff: u64,
    bytes_cutoff: u64,
    /// How many times as long the store lasts by that.
    cutoff_lasts: f64,
    rate: Option<Rate>,
    top_hosts: Vec<Host>,
    top_ports: Vec<Port>,
    /// The share of the recording's pieces that had too many hosts to list them all.
    hosts_unlisted: f64,
    /// The share of the recording's pieces that had too many ports to list them all.
    ports_unlisted: f64,
}

#[derive(Serialize)]
struct Gap<'a> {
    /// The interface that lost packets; null at the end of a recording.
    interface: Option<&'a str>,
    first: String,
    last: String,
    lost: u64,
}

#[derive(Serialize)]
struct ShedTime<'a> {
    interface: Option<&'a str>,
    first: String,
    last: String,
    packets: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct UnseenTime<'a> {
    interface: &'a str,
    first: String,
    last: String,
    packets: u64,
    why: &'a str,
}

#[derive(Serialize)]
#[allow(clippy::struct_field_names, reason = "units come last")]
struct Rate {
    /// Seconds of a part. The first part begins at `first`.
    part_s: f64,
    packets_per_s: Vec<f64>,
    bytes_per_s: Vec<f64>,
}

#[derive(Serialize)]
struct Host {
    host: String,
    share: f64,
}

#[derive(Serialize)]
struct Port {
    port: u16,
    share: f64,
}

/// Returns the report of what is at a place.
pub(super) fn json(dir: &Path, report: &Report) -> String {
    let top_hosts =
        listed(&report.hosts).map(|(host, share)| Host { host: host.to_string(), share });
    let top_ports = listed(&report.ports).map(|(port, share)| Port { port, share });
    let json = Json {
        dir: dir.display().to_string(),
        segments: report.segments,
        segments_live: report.live,
        segments_not_indexed: report.not_indexed,
        packets: report.packets,
        bytes_stored: report.bytes_stored,
        index_bytes: report.index_bytes,
        first: report.times.map(|t| time::show(t.0)),
        last: report.times.map(|t| time::show(t.1)),
        lost: report.gaps.lost(),
        gaps: gaps(report),
        gaps_omitted: report.gaps.more,
        shed_packets: report.shed.lost().packets,
        shed_bytes: report.shed.lost().bytes,
        shed_times: report.shed.list.iter().map(shed_time).collect(),
        shed_times_omitted: report.shed.more,
        unseen: report.unseen.iter().map(|missing| missing.packets).sum(),
        unseen_times: report.unseen.iter().map(unseen_time).collect(),
        cutoff: report.cutoff.cut.packets,
        bytes_cutoff: report.cutoff.cut.bytes,
        cutoff_lasts: rounded(report.cutoff.lasts()),
        rate: rate(report),
        top_hosts: top_hosts.collect(),
        top_ports: top_ports.collect(),
        hosts_unlisted: rounded(share(report.hosts.unlisted, report.hosts.of)),
        ports_unlisted: rounded(share(report.ports.unlisted, report.ports.of)),
    };
    // Numbers and text alone are never refused.
    printable::json(&serde_json::to_string_pretty(&json).unwrap_or_default()).into_owned()
}

fn listed<K: Copy>(tops: &Tops<K>) -> impl Iterator<Item = (K, f64)> {
    tops.list.iter().map(|(key, granules)| (*key, rounded(share(*granules, tops.of))))
}

fn gaps(report: &Report) -> Vec<Gap<'_>> {
    let list = report.gaps.list.iter();
    list.map(|gap| Gap {
        interface: gap.interface.as_deref(),
        first: time::show(gap.first_ns),
        last: time::show(gap.last_ns),
        lost: gap.lost,
    })
    .collect()
}

fn shed_time(gap: &super::Gap<Shed>) -> ShedTime<'_> {
    ShedTime {
        interface: gap.interface.as_deref(),
        first: time::show(gap.first_ns),
        last: time::show(gap.last_ns),
        packets: gap.lost.packets,
        bytes: gap.lost.bytes,
    }
}

fn unseen_time(missing: &Missing) -> UnseenTime<'_> {
    UnseenTime {
        interface: &missing.interface,
        first: time::show(missing.first_ns),
        last: time::show(missing.last_ns),
        packets: missing.packets,
        why: &missing.why,
    }
}

fn rate(report: &Report) -> Option<Rate> {
    let (first_ns, last_ns) = report.times.filter(|(first, last)| first < last)?;
    let part_s = (last_ns - first_ns) as f64 / 1e9 / PARTS as f64;
    let parts = report.rate.parts(PARTS, first_ns, last_ns);
    let per_s = |n: f64| rounded(n / part_s);
    Some(Rate {
        part_s,
        packets_per_s: parts.iter().map(|a| per_s(a.packets)).collect(),
        bytes_per_s: parts.iter().map(|a| per_s(a.bytes)).collect(),
    })
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns a value with as many digits as it is worth.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
