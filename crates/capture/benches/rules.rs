//! What judging a packet by rules costs, inside the kernel: against the number of signatures, as in
//! the thesis (Gopalakrishnan 2011, chapter 6), for its engine and for ours.
//!
//! `cargo bench -p tapdeck-capture --bench rules` needs the privilege to load BPF programs. The
//! figures are ns a judgement, without what it costs to have the packet's tuple; they differ
//! between machines, and only their ratios count.

#[path = "../tests/kernel_judge/mod.rs"]
mod kernel_judge;

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use kernel_judge::KernelJudge;
use tapdeck_capture::rules::Compiled;
use tapdeck_packet::rules::image::{Engine, Options};
use tapdeck_packet::rules::{Action, Family, PortRange, Protocol, Rule, RuleSet, Tuple};
use tapdeck_testkit::SplitMix64;

/// A rule of signature number `i` of the thesis' form: prefixes of 8 to 32 bits, ports and protocol
/// looked at or not.
fn rule(random: &mut SplitMix64, i: u64) -> Rule {
    // Numbers that have no factor in common make each combination once.
    let (source, destination, rest) = (8 + i % 25, 8 + i * 7 / 25 % 25, i * 3 % 8);
    let net = |random: &mut SplitMix64, bits: u64| {
        let address = Ipv4Addr::from(random.draw() as u32);
        Some(ipnet::Ipv4Net::new(address, bits as u8).unwrap().trunc().into())
    };
    Rule {
        action: Action::Accept,
        source: net(random, source),
        destination: net(random, destination),
        source_port: (rest & 1 != 0).then(|| (random.draw() as u16).into()),
        destination_port: (rest & 2 != 0).then(|| (random.draw() as u16).into()),
        protocol: (rest & 4 != 0).then_some(Protocol::Number(17)),
    }
}

/// Two rules of signature number `i`: the packets of [`hostile`] come from where one says and go to
/// where the other says.
fn near(i: u64) -> [Rule; 2] {
    let net = |far: bool, bits: u64| {
        let address = Ipv4Addr::new(if far { 250 } else { 10 }, 1, 2, 3);
        Some(ipnet::Ipv4Net::new(address, bits as u8).unwrap().trunc().into())
    };
    [true, false].map(|far| Rule {
        action: Action::Accept,
        source: net(far, 8 + i % 25),
        destination: net(!far, 8 + i / 25 % 25),
        source_port: None,
        destination_port: None,
        protocol: None,
    })
}

fn tuple(source: u32, destination: u32, ports: (u16, u16)) -> Tuple {
    Tuple {
        family: Some(Family::V4),
        source: u128::from(source) << 96,
        destination: u128::from(destination) << 96,
        protocol: 17,
        ports: Some(ports),
        fragment: None,
    }
}

fn matching(random: &mut SplitMix64, set: &RuleSet, i: usize) -> Tuple {
    let Some(rule) = set.rule(i % set.len().max(1)) else { return none(random) };
    let inside = |random: &mut SplitMix64, net: Option<ipnet::IpNet>| {
        let rest = random.draw() as u32;
        match net {
            Some(ipnet::IpNet::V4(net)) => {
                u32::from(net.network()) | rest & u32::from(net.hostmask())
            }
            _ => rest,
        }
    };
    let port = |random: &mut SplitMix64, ports: Option<PortRange>| {
        ports.map_or(random.draw() as u16, |ports| ports.first)
    };
    tuple(
        inside(random, rule.source),
        inside(random, rule.destination),
        (port(random, rule.source_port), port(random, rule.destination_port)),
    )
}

fn none(random: &mut SplitMix64) -> Tuple {
    // Behind 240.0.0.0 there are no rules' addresses to speak of.
    tuple(random.draw() as u32, random.draw() as u32, (random.draw() as u16, 1))
}

fn hostile(random: &mut SplitMix64) -> Tuple {
    tuple(0x0a01_0203, 0x0a01_0203, (random.draw() as u16, 10))
}

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let (counts, tuples, judgements, runs): (&[u64], usize, u32, usize) = if is_test {
        (&[0, 1, 12], 64, 1000, 1)
    } else {
        (&[0, 1, 5, 12, 26, 100, 500], 4096, 1 << 20, 5)
    };
    let mut out = std::io::stdout().lock();
    let mut kernel = KernelJudge::load();
    let title = "ns a judgement: packets that no rule takes, that each another rule takes, that prefixes of all signatures cover and no rule takes";
    let _ = writeln!(out, "{title}\nsignatures  engine          none    match  hostile  image KiB");
    for &signatures in counts {
        for engine in [Engine::Candidates, Engine::Walk] {
            let mut random = SplitMix64(1);
            let set: RuleSet = (0..signatures).map(|i| rule(&mut random, i)).collect();
            let covering: RuleSet = (0..signatures).flat_map(near).collect();
            let options = Options { engine, ..Options::default() };
            let mut cells = Vec::new();
            let mut kib = 0;
            for (set, kind) in [(&set, 0), (&set, 1), (&covering, 2)] {
                let packets: Vec<Tuple> = (0..tuples)
                    .map(|i| match kind {
                        0 => none(&mut random),
                        1 => matching(&mut random, set, i),
                        _ => hostile(&mut random),
                    })
                    .collect();
                let compiled = Arc::new(Compiled::new(set, &options).expect("a set within limits"));
                if kind == 0 {
                    kib = compiled.image_bytes().div_ceil(1024);
                }
                let judgements = if engine == Engine::Walk { judgements / 16 } else { judgements };
                kernel.set(Some(&compiled));
                kernel.leave(&packets);
                let best =
                    |quiet| (0..runs).map(|_| kernel.run(judgements, quiet)).min().unwrap_or(0);
                let ns = best(false).saturating_sub(best(true)) as f64 / f64::from(judgements);
                cells.push(ns);
            }
            let name = engine.to_string();
            let _ = writeln!(
                out,
                "{signatures:>10}  {name:<10} {:>9.1}{:>9.1}{:>9.1}{kib:>11}",
                cells[0], cells[1], cells[2]
            );
        }
    }
    let _ = writeln!(out, "Figures of one machine: only their ratios count.");
}
