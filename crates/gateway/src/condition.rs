//! Which packets are asked for? Filters and times, joined by "and" and "or".
//!
//! A question of HTTP is a filter and a span; stenographer's language may have times anywhere. A
//! role's ceilings are more conditions that must hold. They are joined here and not as text, so
//! that no words of a question reach out of their own condition.

use tapdeck_packet::community_id::CommunityId;
use tapdeck_packet::key::Plan;
use tapdeck_store::filter::{self, Filter};
use tapdeck_store::query::{Described, Matcher, Packet, Span};

/// A condition as it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A filter, as pcap-filter(7) has them; empty takes every packet.
    Filter(String),
    Times(Span),
    /// The packet is of a flow.
    Flow(CommunityId),
    /// All of them hold.
    Every(Vec<Condition>),
    /// One of them holds.
    Any(Vec<Condition>),
}

/// Reads the flow that a question names, as Zeek and Suricata call it.
pub fn flow(named: Option<&str>) -> Result<Option<CommunityId>, String> {
    named.map(str::parse).transpose().map_err(|e| format!("community_id: {e}"))
}

impl Condition {
    /// Returns a span that no packet for which the condition holds is outside of.
    pub fn span(&self) -> Span {
        match self {
            Self::Filter(_) | Self::Flow(_) => Span::ALL,
            Self::Times(span) => *span,
            Self::Every(all) => all.iter().map(Self::span).fold(Span::ALL, |a, b| Span {
                after_ns: a.after_ns.max(b.after_ns),
                before_ns: a.before_ns.min(b.before_ns),
            }),
            Self::Any(any) => any
                .iter()
                .map(Self::span)
                .reduce(|a, b| Span {
                    after_ns: a.after_ns.min(b.after_ns),
                    before_ns: a.before_ns.max(b.before_ns),
                })
                .unwrap_or(Span::ALL),
        }
    }

    /// Returns all filters that stand in it.
    pub fn filters(&self) -> Vec<&str> {
        match self {
            Self::Filter(text) => vec![text],
            Self::Times(_) | Self::Flow(_) => Vec::new(),
            Self::Every(parts) | Self::Any(parts) => parts.iter().flat_map(Self::filters).collect(),
        }
    }

    /// Compiles all filters for the interfaces of a store.
    pub fn compile(&self, interfaces: &[Described]) -> Result<Compiled, filter::Error> {
        let all = |parts: &[Self]| {
            parts.iter().map(|part| part.compile(interfaces)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match self {
            Self::Filter(text) => Compiled::Filter(Filter::new(text, interfaces, false)?),
            Self::Times(span) => Compiled::Times(*span),
            Self::Flow(flow) => Compiled::Flow(*flow),
            Self::Every(parts) => Compiled::Every(all(parts)?),
            Self::Any(parts) => Compiled::Any(all(parts)?),
        })
    }
}

/// A condition that packets can be held against. Each thread needs a clone of its own.
#[derive(Clone)]
pub enum Compiled {
    Filter(Filter),
    Times(Span),
    Flow(CommunityId),
    Every(Vec<Compiled>),
    Any(Vec<Compiled>),
}

impl Compiled {
    /// Returns which keys the packets have for which the condition holds.
    pub fn plan(&self) -> Plan {
        match self {
            Self::Filter(filter) => filter.plan().clone(),
            Self::Times(_) | Self::Flow(_) => Plan::All,
            Self::Every(parts) => {
                let plans = parts.iter().map(Self::plan).filter(|plan| *plan != Plan::All);
                let mut plans: Vec<Plan> = plans.collect();
                match plans.len() {
                    0 => Plan::All,
                    1 => plans.remove(0),
                    _ => Plan::Every(plans),
                }
            }
            Self::Any(parts) => {
                let plans: Vec<Plan> = parts.iter().map(Self::plan).collect();
                if plans.contains(&Plan::All) { Plan::All } else { Plan::Any(plans) }
            }
        }
    }
}

impl Matcher for Compiled {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        match self {
            Self::Filter(filter) => filter.matches(packet),
            Self::Times(span) => span.contains(packet.time_ns),
            Self::Flow(flow) => flow.takes(packet.link, packet.frame, false),
            Self::Every(parts) => parts.iter().all(|part| part.matches(packet)),
            Self::Any(parts) => parts.iter().any(|part| part.matches(packet)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::key::Plan;
    use tapdeck_packet::link::LinkType;
    use tapdeck_store::query::{Matcher as _, Packet, Span};
    use tapdeck_testkit::frame::UdpFrame;

    use super::Condition::{Any, Every, Filter, Times};

    const fn span(after_ns: i64, before_ns: i64) -> Span {
        Span { after_ns, before_ns }
    }

    #[test]
    fn the_span_holds_all_that_can_match() {
        let late = Times(span(10, i64::MAX));
        let early = Times(span(i64::MIN, 5));
        let tcp = || Filter("tcp".into());
        assert_eq!(Every(vec![late.clone(), tcp(), Times(span(0, 20))]).span(), span(10, 20));
        assert_eq!(Any(vec![Times(span(1, 2)), Times(span(7, 9))]).span(), span(1, 9));
        assert_eq!(Any(vec![early, tcp()]).span(), Span::ALL);
    }

    #[test]
    fn a_question_cannot_reach_out_of_its_ceiling() {
        let ceiling = || Filter("udp port 9".into());
        let frame = UdpFrame::default().bytes();
        let packet = Packet {
            time_ns: 0,
            interface: 0,
            link: LinkType::ETHERNET,
            original_len: frame.len() as u32,
            frame: &frame,
            flags: 0,
            dropped: 0,
            shed: 0,
        };
        let matches = |text: &str, other: &str| {
            let both = Every(vec![Filter(other.into()), Filter(text.into())]);
            both.compile(&[]).map(|compiled| compiled.matches(&packet))
        };
        assert!(matches("ip", "udp port 9").expect("it compiles"));
        assert!(!matches("ip or arp", "not udp").expect("it compiles"));
        // As text within brackets this would take everything.
        for text in ["tcp) or (ip", "tcp) or (ip or (tcp", "ip)", "(ip"] {
            assert!(Every(vec![ceiling(), Filter(text.into())]).compile(&[]).is_err(), "{text}");
        }
    }

    #[test]
    fn a_plan_leaves_out_nothing_that_could_match() {
        let plan =
            |condition: super::Condition| condition.compile(&[]).expect("it compiles").plan();
        assert_eq!(plan(Any(vec![Filter("port 53".into()), Times(Span::ALL)])), Plan::All);
        let port = plan(Filter("port 53".into()));
        assert_ne!(port, Plan::All);
        assert_eq!(plan(Every(vec![Filter("port 53".into()), Times(Span::ALL)])), port);
    }
}
