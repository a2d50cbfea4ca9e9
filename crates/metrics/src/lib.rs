//! What do recorders and daemons count, as metrics?
//!
//! A recorder opens no port. What it counts stands in the statistics that its control socket
//! answers (`docs/CONTROL.md`), and whoever asks there makes metrics of them: `tapdeck ctl metrics`
//! of one program, `tapdeck-gateway` of all that it looks after. This crate is what both share. It
//! asks nobody and serves nobody.
//!
//! A counter that the statistics lack has no metric, rather than a zero: statistics of an older or
//! a newer program tell what they know. [`Metrics`] gathers; the text comes in two forms, as
//! OpenMetrics and as Prometheus had it before ([`classic`]). No label holds an address or a
//! filter.
#![forbid(unsafe_code)]

pub mod classic;
mod table;

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tapdeck_packet::account::{Counter, Counters, GroupCounters, InterfaceCounters, Law};

use self::table::{Kind, Metric, Unit};

/// The content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The names and values that tell one series from the others of its metric.
pub type Labels = Vec<(&'static str, String)>;

/// A value, as exact as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    samples: Vec<(Labels, Number)>,
}

/// Metrics of one or more programs, as of one moment.
#[derive(Debug, Default)]
pub struct Metrics {
    /// All metrics by name: series of one stand together, whichever program they are of.
    families: BTreeMap<&'static str, Family>,
}

impl Metrics {
    /// Takes in the answer of a recorder or a daemon to `stats`. `labels` are put on each series.
    pub fn add_statistics(&mut self, labels: &[(&'static str, &str)], statistics: &Value) {
        let labels: Labels =
            labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        let is_daemon = statistics["groups"].is_array();
        let interfaces = statistics["interfaces"].as_object();
        let interfaces = || interfaces.into_iter().flatten();
        // What interfaces have, the recorder as a whole has as a sum.
        let is_sum = |key: &str| interfaces().any(|(_, interface)| interface.get(key).is_some());
        let table = if is_daemon { table::DAEMON } else { table::RECORDER };
        self.add_all(table.iter().filter(|metric| !is_sum(metric.key)), &labels, statistics);
        if let Some(version) = statistics["version"].as_str() {
            let program = if is_daemon { "serve" } else { "record" };
            let labels = with(&labels, &[("program", program), ("version", version)]);
            self.add(&table::BUILD, labels, Number::Whole(1));
        }
        for (name, interface) in interfaces() {
            let labels =
                with(&labels, &[("interface", name), ("hook", text_of(interface, "hook"))]);
            self.add_all(table::INTERFACE, &labels, interface);
            self.add_outcomes::<InterfaceCounters>(&table::PACKETS, &labels, interface);
        }
        for port in statistics["ports"].as_array().into_iter().flatten() {
            let names =
                [("interface", text_of(port, "interface")), ("hook", text_of(port, "hook"))];
            self.add_all(table::INTERFACE, &with(&labels, &names), port);
        }
        for group in statistics["groups"].as_array().into_iter().flatten() {
            self.add_group(&with(&labels, &[("group", text_of(group, "name"))]), group);
        }
    }

    /// Tells whether a program answers that is looked after.
    pub fn add_up(&mut self, labels: &[(&'static str, &str)], is_up: bool) {
        self.add(&table::UP, with(&Labels::new(), labels), Number::Whole(u64::from(is_up)));
    }

    /// Tells that this program runs, and its version.
    pub fn add_build(&mut self, program: &str, version: &str) {
        let labels = with(&Labels::new(), &[("program", program), ("version", version)]);
        self.add(&table::BUILD, labels, Number::Whole(1));
    }

    /// Returns the metrics as OpenMetrics.
    pub fn open_metrics(self) -> String {
        self.open_metrics_with(&Registry::default())
    }

    /// Returns the metrics as OpenMetrics, with those of `registry`.
    pub fn open_metrics_with(self, registry: &Registry) -> String {
        let mut text = String::new();
        let mut own = Registry::default();
        own.register_collector(Box::new(self));
        // Writing into a string does not fail.
        let _ = text::encode_registry(&mut text, &own)
            .and_then(|()| text::encode_registry(&mut text, registry))
            .and_then(|()| text::encode_eof(&mut text));
        text
    }

    fn add(&mut self, metric: &'static Metric, labels: Labels, number: Number) {
        let family = || Family { metric, samples: Vec::new() };
        let family = self.families.entry(metric.name).or_insert_with(family);
        family.samples.push((labels, number));
    }

    /// Adds what an object has of a table's keys.
    fn add_all(
        &mut self,
        table: impl IntoIterator<Item = &'static Metric>,
        labels: &Labels,
        object: &Value,
    ) {
        for metric in table {
            if let Some(number) = metric.read(object) {
                let labels = with(labels, metric.labels);
                self.add(metric, labels, number);
            }
        }
    }

    /// Adds what became of packets: the right side of the law, whose terms sum to its left side.
    fn add_outcomes<C: Counters>(
        &mut self,
        metric: &'static Metric,
        labels: &Labels,
        object: &Value,
    ) {
        for counter in C::LIST {
            let Some((outcome, cause)) = outcome(counter, C::LIST) else { continue };
            let Some(packets) = object[counter.name].as_u64() else { continue };
            let labels = with(labels, &[("outcome", outcome), ("cause", cause)]);
            self.add(metric, labels, Number::Whole(packets));
        }
    }

    fn add_group(&mut self, labels: &Labels, group: &Value) {
        self.add_all(table::GROUP, labels, group);
        self.add_outcomes::<GroupCounters>(&table::GROUP_PACKETS, labels, group);
        let members: Vec<&Value> = group["members"].as_array().into_iter().flatten().collect();
        let away = members.iter().filter(|member| member["away"] == true).count() as u64;
        self.add(&table::MEMBERS, labels.clone(), Number::Whole(members.len() as u64));
        self.add(&table::MEMBERS_AWAY, labels.clone(), Number::Whole(away));
        // Of one member: they come and go, and numbers of their own would make ever more series.
        let fullest = members
            .iter()
            .filter_map(|m| Some((m["ring_fill_bytes"].as_u64()?, m["ring_bytes"].as_u64()?)))
            .max();
        if let Some((used, size)) = fullest {
            self.add(&table::GROUP_RING_USED, labels.clone(), Number::Whole(used));
            self.add(&table::GROUP_RING_SIZE, labels.clone(), Number::Whole(size));
        }
    }
}

/// Returns which outcome a counter counts, and for which cause; `None` where it is on the law's
/// left side, beside the law, or a sum of others in the list.
fn outcome(counter: &Counter, list: &[Counter]) -> Option<(&'static str, &'static str)> {
    let cause = || counter.name.strip_prefix("dropped_").unwrap_or(counter.name);
    let has_parts = || list.iter().any(|other| matches!(other.law, Law::LostBecause(_)));
    match counter.law {
        Law::Kept(_) | Law::NotWanted(_) => Some((counter.name, "")),
        Law::Lost(None) if has_parts() => None,
        Law::Lost(_) | Law::LostBecause(_) => Some(("dropped", cause())),
        Law::Came(_) | Law::DeviceMoved | Law::DeviceLost | Law::NotShown | Law::Beside => None,
    }
}

fn with(labels: &Labels, more: &[(&'static str, &str)]) -> Labels {
    let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
    labels.iter().cloned().chain(more).collect()
}

fn text_of<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or("")
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { metric, samples } in self.families.values() {
            let unit = metric.unit.map(Unit::of_client);
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Info => MetricType::Info,
            };
            let mut of_family =
                encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for (labels, number) in samples {
                if let Kind::Info = metric.kind {
                    of_family.encode_info(labels)?;
                } else if labels.is_empty() {
                    // The only series, without the braces of an empty set.
                    encode(metric.kind, *number, of_family)?;
                    break;
                } else {
                    encode(metric.kind, *number, of_family.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(kind: Kind, number: Number, encoder: MetricEncoder<'_>) -> fmt::Result {
    match (kind, number) {
        (Kind::Counter, Number::Whole(n)) => ConstCounter::new(n).encode(encoder),
        (Kind::Counter, Number::Real(n)) => ConstCounter::new(n).encode(encoder),
        (_, Number::Whole(n)) => ConstGauge::new(n).encode(encoder),
        (_, Number::Real(n)) => ConstGauge::new(n).encode(encoder),
    }
}

#[cfg(test)]
mod tests;
