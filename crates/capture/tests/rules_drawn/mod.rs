//! Rule sets and packets drawn at random, and what must be said of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tapdeck_capture::rules::{Hits, Verdict};
use tapdeck_packet::rules::image::{Engine, Options};
use tapdeck_packet::rules::{
    Action, Entry, Family, MAX_CUTOFF, Pattern, PortRange, Protocol, Rule, RuleSet, Tuple,
};
use tapdeck_testkit::SplitMix64;

/// How a set is drawn: the fewer values there are, the more rules overlap.
#[derive(Clone, Copy)]
pub struct Style {
    /// Bits in which addresses differ.
    address_bits: u32,
    /// One address in so many is `any`.
    any: u64,
    lengths: &'static [u8],
}

pub const STYLES: [Style; 5] = [
    Style { address_bits: 32, any: 1000, lengths: &[8, 12, 16, 20, 24, 28, 32] },
    Style { address_bits: 32, any: 3, lengths: &[1, 8, 15, 16, 17, 24, 31, 32] },
    Style { address_bits: 6, any: 4, lengths: &[26, 27, 28, 29, 30, 31, 32] },
    Style { address_bits: 12, any: 20, lengths: &[0, 8, 20, 22, 23, 24, 25, 30, 32] },
    Style { address_bits: 2, any: 2, lengths: &[30, 31, 32] },
];

/// IPv6 prefixes have these lengths where IPv4 ones have others.
const LENGTHS_6: [u8; 12] = [0, 3, 16, 32, 48, 63, 64, 65, 96, 112, 127, 128];
const PORTS: [u16; 5] = [0, 53, 80, 443, 65535];

impl Style {
    fn address(&self, random: &mut SplitMix64, family: Family) -> IpAddr {
        let low = random.draw() & ((1 << self.address_bits) - 1);
        match family {
            Family::V4 => IpAddr::V4(((0x0a00_0000 ^ low) as u32).into()),
            Family::V6 => {
                let high = 0x2001_0db8_0000_0000 ^ random.below(4_u64) << random.one(&[0, 31, 60]);
                IpAddr::V6(
                    (u128::from(high) << 64 | u128::from(low) << random.one(&[0, 32, 32, 50]))
                        .into(),
                )
            }
        }
    }

    pub fn rule(&self, random: &mut SplitMix64) -> Rule {
        let family = if random.one_in(3) { Family::V6 } else { Family::V4 };
        let net = |random: &mut SplitMix64| {
            if random.one_in(self.any) {
                return None;
            }
            let length = match family {
                Family::V4 => random.one(self.lengths),
                Family::V6 => random.one(&LENGTHS_6),
            };
            Some(ipnet::IpNet::new(self.address(random, family), length).unwrap().trunc())
        };
        let (source, destination) = (net(random), net(random));
        let port = |random: &mut SplitMix64| {
            let first = random.one_in(3).then(|| random.one(&PORTS))?;
            let more = if random.one_in(4) { random.one(&[1, 2, 30]) } else { 0 };
            Some(PortRange { first, last: first.saturating_add(more) })
        };
        let (source_port, destination_port) = (port(random), port(random));
        let protocol = match random.below(5) {
            0 => Some(Protocol::Number(6)),
            1 => Some(Protocol::Number(17)),
            2 => Some(Protocol::Icmp),
            _ => None,
        };
        let action = match random.below(5) {
            0 => Action::Accept,
            1 => Action::Drop,
            2 => Action::Snaplen(64 + random.below(100) as u32),
            3 => Action::Cutoff(1 + random.below(MAX_CUTOFF)),
            _ => Action::Group("ids".into()),
        };
        Rule { action, source, destination, source_port, destination_port, protocol }
    }

    pub fn set(&self, random: &mut SplitMix64, rules: usize) -> RuleSet {
        let mut set = RuleSet::default();
        for _ in 0..rules {
            let rule = match set.len() {
                // Some are there twice.
                n if n > 0 && random.one_in(10) => {
                    set.rule(random.below(n as u64) as usize).unwrap().clone()
                }
                _ => self.rule(random),
            };
            set.push(Entry { rule, enabled: !random.one_in(12), line: 0 });
        }
        set
    }

    /// A packet that often fits some rule.
    pub fn tuple(&self, random: &mut SplitMix64, set: &RuleSet) -> Tuple {
        let near = (!set.is_empty() && !random.one_in(4))
            .then(|| set.rule(random.below(set.len() as u64) as usize).unwrap());
        let of_rule = near.and_then(Rule::family);
        let family = of_rule.unwrap_or(if random.one_in(2) { Family::V4 } else { Family::V6 });
        let address = |random: &mut SplitMix64, net: Option<ipnet::IpNet>| {
            let bits = |address| match address {
                IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
                IpAddr::V6(address) => u128::from(address),
            };
            let other = bits(self.address(random, family));
            net.map_or(other, |net| {
                let rest = u128::MAX.checked_shr(net.prefix_len().into()).unwrap_or(0);
                let noise = u128::from(random.draw()) << 64 | u128::from(random.draw());
                let noise = if family == Family::V4 { noise >> 96 << 96 } else { noise };
                bits(net.network()) | (if random.one_in(2) { noise } else { other }) & rest
            })
        };
        let protocol = match near.and_then(|rule| rule.protocol) {
            Some(Protocol::Number(number)) => number,
            Some(Protocol::Icmp) => random.one(&[1, 58]),
            None => random.one(&[1, 6, 17, 47, 58]),
        };
        let port = |random: &mut SplitMix64, ports: Option<PortRange>| match ports {
            // One behind the last, now and then.
            Some(PortRange { first, last }) => {
                let ends = [first, last, last, last.saturating_add(1)];
                random.one(&ends)
            }
            None => random.one(&PORTS),
        };
        let ports = (!random.one_in(5)).then(|| {
            (
                port(random, near.and_then(|rule| rule.source_port)),
                port(random, near.and_then(|rule| rule.destination_port)),
            )
        });
        if random.one_in(30) {
            return Tuple {
                family: None,
                source: 0,
                destination: 0,
                protocol: 0,
                ports: None,
                fragment: None,
            };
        }
        Tuple {
            family: Some(family),
            source: address(random, near.and_then(|rule| rule.source)),
            destination: address(random, near.and_then(|rule| rule.destination)),
            protocol,
            ports,
            fragment: None,
        }
    }
}

/// How sets are made into images here.
pub fn options(engine: Engine) -> Options {
    Options { engine, groups: BTreeMap::from([("ids".into(), 7)]), ..Options::default() }
}

/// What is said where that rule takes a packet.
pub fn expected(set: &RuleSet, rule: Option<u32>) -> Verdict {
    let Some(rule) = rule else { return Verdict::None };
    match set.rule(rule as usize).unwrap().action {
        Action::Accept => Verdict::Accept { rule },
        Action::Drop => Verdict::Drop { rule },
        Action::Snaplen(bytes) => Verdict::Snaplen { rule, bytes },
        Action::Group(_) => Verdict::Group { rule, group: 7 },
        Action::Cutoff(bytes) => Verdict::Cutoff { rule, bytes },
    }
}

/// Every rule in the order of precedence, with what it looks for.
pub struct EveryRule<'a> {
    set: &'a RuleSet,
    order: Vec<(u32, Vec<Pattern>)>,
}

impl<'a> EveryRule<'a> {
    pub fn of(set: &'a RuleSet) -> Self {
        let rule = |n: u32| set.rule(n as usize).unwrap();
        let order = set.order().into_iter().map(|n| (n, rule(n).patterns().collect())).collect();
        Self { set, order }
    }

    /// What must be said of a packet; counts it.
    pub fn judge(&self, tuple: &Tuple, hits: &mut Hits) -> Verdict {
        let fits = |(_, patterns): &&(u32, Vec<Pattern>)| patterns.iter().any(|p| p.fits(tuple));
        let rule = self.order.iter().find(fits).map(|rule| rule.0);
        hits.per_rule.resize(self.set.len(), 0);
        *rule.map_or(&mut hits.none, |rule| &mut hits.per_rule[rule as usize]) += 1;
        expected(self.set, rule)
    }
}
