//! Rate, CPU and loss against the number of signatures (Gopalakrishnan 2011, chapter 6), for the
//! engine that `record` takes and the thesis's walk through the list.
//!
//! "None" is the thesis's worst case: no packet has a rule, so that every signature has to be ruled
//! out. "Match": there is one rule for each signature, and each packet has another rule.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use crate::bed::{Bed, Load, Pair, Series, in_turns, print};
use crate::common::Options;

/// Pairs of addresses that the packets take in turn.
const PAIRS: u32 = 512;

/// The two prefix lengths of signature `i`: no two alike up to 500.
fn lengths(i: u32) -> (u32, u32) {
    (32 - i % 25, 32 - i / 25)
}

/// Spread over the address space, so that the rules' prefixes do not hold each other.
fn pair(i: u32) -> (Ipv4Addr, Ipv4Addr) {
    let mixed = (i + 1).wrapping_mul(0x9e37_79b1);
    (Ipv4Addr::from(mixed), Ipv4Addr::from(mixed.rotate_left(16) ^ 0x5555_5555))
}

fn as_they_lie((source, destination): (Ipv4Addr, Ipv4Addr)) -> Pair {
    let mut pair = Pair::default();
    pair[..4].copy_from_slice(&source.octets());
    pair[4..].copy_from_slice(&destination.octets());
    pair
}

/// As many rules as there are packets that differ, with so many signatures.
fn rules(signatures: u32) -> String {
    let mut text = String::new();
    for i in 0..PAIRS {
        let (source, destination) = pair(i);
        let (from, to) = lengths(i % signatures);
        let cut = |address: Ipv4Addr, bits: u32| {
            Ipv4Addr::from(u32::from(address) & u32::MAX.checked_shl(32 - bits).unwrap_or(0))
        };
        let (source, destination) = (cut(source, from), cut(destination, to));
        let _ = writeln!(
            text,
            "accept src {source}/{from} dst {destination}/{to} sport any dport any proto any"
        );
    }
    text
}

pub fn measure(options: &Options) {
    let all_counts: &[u32] = if options.tiny { &[1, 26] } else { &[1, 5, 12, 26, 100, 500] };
    let engines: &[&str] = &["candidates", "walk"];
    for matches in [false, true] {
        let pairs = (0..PAIRS).map(|i| as_they_lie(pair(if matches { i } else { i + (1 << 20) })));
        let load =
            Load { size: 60, packets: options.packets, pairs: pairs.collect(), ..Load::default() };
        let mut ways = vec![None];
        for engine in engines {
            ways.extend(all_counts.iter().map(|n| Some((*engine, *n))));
        }
        let names: Vec<String> = ways
            .iter()
            .map(|way| match way {
                None => "no rules".into(),
                Some((engine, n)) => format!("{engine}, {n} signatures"),
            })
            .collect();
        let all: Vec<Series> = in_turns(options.runs, &names, |i| {
            let bed = Bed::new(true);
            let mut flags = "--hook xdp --deliver consume".to_owned();
            let mut load = load.clone();
            if let Some((engine, signatures)) = ways[i] {
                let file = bed.path("rules");
                std::fs::write(&file, rules(signatures)).map_err(|e| e.to_string())?;
                let _ = write!(flags, " --rules {} --rules-engine {engine}", file.display());
                // The walk takes microseconds for a packet.
                if engine == "walk" && signatures > 26 {
                    load.packets = load.packets.div_ceil(10);
                }
            }
            bed.record(&flags, None, &load)
        });
        let what = if matches { "each packet has another rule" } else { "no packet has a rule" };
        print(&format!("Rules at xdp, {what}, 60-byte frames flat out, no store"), &all, 1);
    }
}
