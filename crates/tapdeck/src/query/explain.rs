//! `query --explain`: how does a query find its packets, and what did it read for them?

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use serde::Serialize;
use tapdeck_packet::key::{Class, Plan};
use tapdeck_store::filter::Filter;
use tapdeck_store::query::Progress;

use super::time;
use crate::flags;
use crate::units::{show_bytes, show_count};

/// What `--explain` tells of a query, gathered while it runs.
pub struct Explanation {
    expression: String,
    is_understood: bool,
    plan: String,
    after: Option<String>,
    before: Option<String>,
    began: Instant,
    first: Option<Duration>,
}

/// What `--explain` tells of a query that has ended, in JSON.
#[derive(Serialize)]
struct Object<'a> {
    expression: &'a str,
    /// Whether the planner knows the form of the expression. If not, the expression narrows
    /// nothing.
    understood: bool,
    plan: &'a str,
    after: Option<&'a str>,
    before: Option<&'a str>,
    segments: u64,
    segments_outside: usize,
    segments_indexed: u64,
    segments_scanned: u64,
    granules: u64,
    granules_wanted: u64,
    index_bytes_read: u64,
    segment_bytes_read: u64,
    segment_bytes: u64,
    packets: u64,
    first_packet_s: Option<f64>,
    elapsed_s: f64,
}

impl Explanation {
    pub fn new(flags: &flags::Query, filter: &Filter, began: Instant) -> Self {
        Self {
            expression: flags.expression.join(" "),
            is_understood: filter.is_understood(),
            plan: Words(filter.plan()).to_string(),
            after: flags.after.map(time::show),
            before: flags.before.map(time::show),
            began,
            first: None,
        }
    }

    /// Takes note of how many packets were found by now.
    pub fn found(&mut self, packets: u64) {
        if packets > 0 && self.first.is_none() {
            self.first = Some(self.began.elapsed());
        }
    }

    /// Returns one fact a line, or one JSON object. `outside` segments were left out because of the
    /// span.
    pub fn text(&self, packets: u64, progress: &Progress, outside: usize, json: bool) -> String {
        let object = Object {
            expression: &self.expression,
            understood: self.is_understood,
            plan: &self.plan,
            after: self.after.as_deref(),
            before: self.before.as_deref(),
            segments: progress.segments,
            segments_outside: outside,
            segments_indexed: progress.indexed,
            segments_scanned: progress.scanned,
            granules: progress.granules,
            granules_wanted: progress.wanted,
            index_bytes_read: progress.index_bytes,
            segment_bytes_read: progress.read_bytes,
            segment_bytes: progress.total_bytes,
            packets,
            first_packet_s: self.first.map(|first| first.as_secs_f64()),
            elapsed_s: self.began.elapsed().as_secs_f64(),
        };
        if json {
            return serde_json::to_string(&object).unwrap_or_default();
        }
        object.to_string()
    }
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expression = if self.expression.is_empty() { "none" } else { self.expression };
        writeln!(f, "expression: {expression}")?;
        let unknown = if self.understood { "" } else { " (the planner does not know this form)" };
        writeln!(f, "looked for: {}{unknown}", self.plan)?;
        let (after, before) =
            (self.after.unwrap_or("the beginning"), self.before.unwrap_or("the end"));
        writeln!(f, "span: {after} to {before}")?;
        writeln!(
            f,
            "segments: {} looked at, {} outside the span; {} have an index, {} were read where they are not indexed",
            self.segments, self.segments_outside, self.segments_indexed, self.segments_scanned
        )?;
        let (wanted, granules) = (show_count(self.granules_wanted), show_count(self.granules));
        writeln!(f, "granules: {wanted} of {granules}")?;
        writeln!(f, "read of indexes: {}", show_bytes(self.index_bytes_read))?;
        let (read, all) = (show_bytes(self.segment_bytes_read), show_bytes(self.segment_bytes));
        writeln!(f, "read of segments: {read} of {all}")?;
        writeln!(f, "packets: {}", show_count(self.packets))?;
        if let Some(first_s) = self.first_packet_s {
            writeln!(f, "first packet after: {first_s:.3} s")?;
        }
        write!(f, "all after: {:.3} s", self.elapsed_s)
    }
}

/// A plan in words.
struct Words<'a>(&'a Plan);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plans, word) = match self.0 {
            Plan::All => return f.write_str("anything"),
            Plan::Keys { class, first, last } => return keys(f, *class, *first, *last),
            Plan::Every(plans) if plans.is_empty() => return f.write_str("anything"),
            Plan::Any(plans) if plans.is_empty() => return f.write_str("nothing"),
            Plan::Every(plans) => (plans, " and "),
            Plan::Any(plans) => (plans, " or "),
        };
        for (i, plan) in plans.iter().enumerate() {
            if i > 0 {
                f.write_str(word)?;
            }
            match one(plan) {
                Plan::Every(inner) | Plan::Any(inner) if inner.len() > 1 && plans.len() > 1 => {
                    write!(f, "({})", Words(plan))?;
                }
                plan => write!(f, "{}", Words(plan))?,
            }
        }
        Ok(())
    }
}

/// Returns the one member of a list that has one, instead of the list.
fn one(plan: &Plan) -> &Plan {
    match plan {
        Plan::Every(plans) | Plan::Any(plans) if plans.len() == 1 => one(&plans[0]),
        plan => plan,
    }
}

/// Writes a key, or the keys from one to another; addresses as a network if they are one.
fn keys(f: &mut fmt::Formatter<'_>, class: Class, first: u128, last: u128) -> fmt::Result {
    write!(f, "{} {}", class.name(), show_key(class, first))?;
    let differs = first ^ last;
    let is_network = first & differs == 0 && differs & differs.wrapping_add(1) == 0;
    match class {
        _ if first == last => Ok(()),
        Class::SourceIpv4 | Class::DestinationIpv4 | Class::SourceIpv6 | Class::DestinationIpv6
            if is_network =>
        {
            write!(f, "/{}", 8 * class.width() as u32 - differs.count_ones())
        }
        _ => write!(f, " to {}", show_key(class, last)),
    }
}

fn show_key(class: Class, key: u128) -> String {
    match class {
        Class::EtherType => format!("0x{key:04x}"),
        Class::SourceIpv4 | Class::DestinationIpv4 => Ipv4Addr::from(key as u32).to_string(),
        Class::SourceIpv6 | Class::DestinationIpv6 => Ipv6Addr::from(key).to_string(),
        Class::SourceMac | Class::DestinationMac => {
            let bytes: Vec<String> =
                key.to_be_bytes()[10..].iter().map(|b| format!("{b:02x}")).collect();
            bytes.join(":")
        }
        Class::SourcePort
        | Class::DestinationPort
        | Class::Protocol
        | Class::Vlan
        | Class::Mpls
        | Class::Shed => key.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::key::{Class, Plan};

    use super::Words;

    fn show(plan: &Plan) -> String {
        Words(plan).to_string()
    }

    fn range(class: Class, first: u128, last: u128) -> Plan {
        Plan::Keys { class, first, last }
    }

    #[test]
    fn plans_read_like_sentences() {
        let host = |key| {
            Plan::Any(vec![
                range(Class::SourceIpv4, key, key),
                range(Class::DestinationIpv4, key, key),
            ])
        };
        let plan = Plan::Every(vec![host(0x0a00_0001), range(Class::Protocol, 6, 6)]);
        assert_eq!(
            show(&plan),
            "(source address 10.0.0.1 or destination address 10.0.0.1) and protocol 6"
        );
        assert_eq!(show(&Plan::Every(vec![Plan::Any(vec![])])), "nothing");
        assert_eq!(show(&Plan::Every(vec![])), "anything");
    }

    #[test]
    fn ranges_of_addresses_are_networks_where_they_can_be() {
        let net = range(Class::SourceIpv4, 0x0a00_0000, 0x0aff_ffff);
        assert_eq!(show(&net), "source address 10.0.0.0/8");
        let odd = range(Class::SourceIpv4, 0x0a00_0001, 0x0a00_0002);
        assert_eq!(show(&odd), "source address 10.0.0.1 to 10.0.0.2");
        let all = range(Class::DestinationIpv6, 0, u128::MAX);
        assert_eq!(show(&all), "destination address ::/0");
        assert_eq!(show(&range(Class::SourcePort, 80, 95)), "source port 80 to 95");
        let mac = range(Class::SourceMac, 0x0200_0000_0009, 0x0200_0000_0009);
        assert_eq!(show(&mac), "source MAC 02:00:00:00:00:09");
        assert_eq!(show(&range(Class::EtherType, 0x0806, 0x0806)), "ether type 0x0806");
    }
}
