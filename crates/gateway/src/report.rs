//! What is in a store, as JSON: told from its indexes alone.

use serde::Serialize;
use tapdeck_store::query::{Missing, Note};
use tapdeck_store::stat::{Report, Tops};
use utoipa::ToSchema;

use crate::time;

/// What `GET /v1/stat` answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct Stat {
    store: String,
    packets: u64,
    segments: u64,
    segments_live: u64,
    segments_not_indexed: u64,
    bytes_stored: u64,
    index_bytes: u64,
    /// The time of the first packet; null where there is none.
    first: Option<String>,
    last: Option<String>,
    lost: u64,
    unseen: u64,
    /// What of the store could not be told.
    faults: Vec<String>,
}

/// What `GET /v1/histogram` answers. Each part begins where the one before ends.
#[derive(Debug, Serialize, ToSchema)]
pub struct Histogram {
    store: String,
    first: Option<String>,
    step_s: f64,
    packets: Vec<u64>,
    bytes: Vec<u64>,
    /// Segments whose packets are in none of the parts.
    segments_not_indexed: u64,
    faults: Vec<String>,
}

/// What `GET /v1/hosts` answers.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the answer")]
pub struct Hosts {
    store: String,
    hosts: Vec<Share>,
    ports: Vec<Share>,
    /// The share of the recording in which hosts were too many to be listed.
    hosts_unlisted: f64,
    ports_unlisted: f64,
    /// Segments whose hosts and ports are not told.
    segments_not_indexed: u64,
    faults: Vec<String>,
}

/// How much of the recording has a host or a port in it.
#[derive(Debug, Serialize, ToSchema)]
struct Share {
    name: String,
    share: f64,
}

/// What `GET /v1/losses` answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct Losses {
    store: String,
    lost: u64,
    unseen: u64,
    shed_packets: u64,
    shed_bytes: u64,
    gaps: Vec<Gap>,
    /// How many smaller gaps are not in the list.
    gaps_omitted: u64,
    faults: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Gap {
    /// Null at the end of a recording.
    interface: Option<String>,
    first: String,
    last: String,
    packets: u64,
    /// `lost` where packets were dropped, `unseen` where the hook was not shown them, `shed` where
    /// they are there without all of their payload.
    kind: &'static str,
    /// Bytes that were shed.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Why they went unseen.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Returns what of a store could not be told, a sentence each.
pub fn faults(report: &Report) -> Vec<String> {
    let notes = report.notes.iter().filter(|note| note.lacks_packets()).map(Note::to_string);
    let unusable = report.unusable.iter();
    let unusable =
        unusable.map(|u| format!("the index of {} cannot be used: {}", u.segment, u.why));
    notes.chain(unusable).collect()
}

fn unseen(report: &Report) -> u64 {
    report.unseen.iter().map(|missing| missing.packets).sum()
}

impl Stat {
    pub fn new(store: &str, report: &Report) -> Self {
        Self {
            store: store.to_owned(),
            packets: report.packets,
            segments: report.segments,
            segments_live: report.live,
            segments_not_indexed: report.not_indexed,
            bytes_stored: report.bytes_stored,
            index_bytes: report.index_bytes,
            first: report.times.map(|times| time::show(times.0)),
            last: report.times.map(|times| time::show(times.1)),
            lost: report.gaps.lost(),
            unseen: unseen(report),
            faults: faults(report),
        }
    }
}

impl Histogram {
    /// Divides the time of a report's packets into parts of so many nanoseconds, but no more than
    /// `most` of them.
    pub fn new(store: &str, report: &Report, step_ns: i64, most: usize) -> Self {
        let mut histogram = Self {
            store: store.to_owned(),
            first: report.times.map(|times| time::show(times.0)),
            step_s: 0.0,
            packets: Vec::new(),
            bytes: Vec::new(),
            segments_not_indexed: report.not_indexed,
            faults: faults(report),
        };
        let Some((first_ns, last_ns)) = report.times else { return histogram };
        let whole = (last_ns - first_ns).max(1);
        let shortest = (whole / (most as i64 - 1).max(1)).max(1);
        let step_ns = step_ns.max(shortest);
        let parts = (whole / step_ns + 1).min(most as i64);
        let end_ns = first_ns + (parts * step_ns - 1).max(1);
        let amounts = report.rate.parts(parts as usize, first_ns, end_ns.max(last_ns));
        histogram.step_s = (end_ns.max(last_ns) - first_ns) as f64 / parts as f64 / 1e9;
        histogram.packets = whole_numbers(amounts.iter().map(|amount| amount.packets));
        histogram.bytes = whole_numbers(amounts.iter().map(|amount| amount.bytes));
        histogram
    }
}

/// Returns amounts as whole numbers whose sums, up to each of them, are the nearest.
fn whole_numbers(amounts: impl Iterator<Item = f64>) -> Vec<u64> {
    let (mut exact, mut told) = (0.0, 0);
    let next = |amount: f64| {
        exact += amount;
        let upto = f64::round(exact) as u64;
        let part = upto.saturating_sub(told);
        told += part;
        part
    };
    amounts.map(next).collect()
}

impl Hosts {
    pub fn new(store: &str, report: &Report) -> Self {
        fn shares<K: ToString>(tops: &Tops<K>) -> Vec<Share> {
            let of = tops.of.max(1) as f64;
            let share = |(key, granules): &(K, u64)| Share {
                name: key.to_string(),
                share: *granules as f64 / of,
            };
            tops.list.iter().map(share).collect()
        }
        fn unlisted<K>(tops: &Tops<K>) -> f64 {
            tops.unlisted as f64 / tops.of.max(1) as f64
        }
        Self {
            store: store.to_owned(),
            hosts: shares(&report.hosts),
            ports: shares(&report.ports),
            hosts_unlisted: unlisted(&report.hosts),
            ports_unlisted: unlisted(&report.ports),
            segments_not_indexed: report.not_indexed,
            faults: faults(report),
        }
    }
}

impl Losses {
    pub fn new(store: &str, report: &Report) -> Self {
        let lost = report.gaps.list.iter().map(|gap| Gap {
            interface: gap.interface.clone(),
            first: time::show(gap.first_ns),
            last: time::show(gap.last_ns),
            packets: gap.lost,
            kind: "lost",
            bytes: None,
            why: None,
        });
        let shed = report.shed.list.iter().map(|gap| Gap {
            interface: gap.interface.clone(),
            first: time::show(gap.first_ns),
            last: time::show(gap.last_ns),
            packets: gap.lost.packets,
            kind: "shed",
            bytes: Some(gap.lost.bytes),
            why: None,
        });
        let unseen_times = report.unseen.iter().map(|missing: &Missing| Gap {
            interface: Some(missing.interface.clone()),
            first: time::show(missing.first_ns),
            last: time::show(missing.last_ns),
            packets: missing.packets,
            kind: "unseen",
            bytes: None,
            why: Some(missing.why.clone()),
        });
        let mut gaps: Vec<Gap> = lost.chain(unseen_times).chain(shed).collect();
        gaps.sort_by(|a, b| a.first.cmp(&b.first));
        Self {
            store: store.to_owned(),
            lost: report.gaps.lost(),
            unseen: unseen(report),
            shed_packets: report.shed.lost().packets,
            shed_bytes: report.shed.lost().bytes,
            gaps,
            gaps_omitted: report.gaps.more + report.shed.more,
            faults: faults(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::whole_numbers;

    #[test]
    fn no_packet_is_lost_by_rounding() {
        assert_eq!(whole_numbers([0.4, 0.4, 0.4, 0.4, 3.4].into_iter()), [0, 1, 0, 1, 3]);
        assert_eq!(whole_numbers(std::iter::repeat_n(0.1, 20)).iter().sum::<u64>(), 2);
    }
}
