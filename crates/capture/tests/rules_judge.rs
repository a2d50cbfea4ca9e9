//! The kernel's judge, in user space: against looking at every rule, and at its limits.

mod rules_drawn;

use std::net::Ipv4Addr;
use std::sync::Arc;

use rules_drawn::{EveryRule, STYLES, Style, options};
use tapdeck_capture::rules::{Compiled, Error, Hits, Twin};
use tapdeck_packet::rules::image::{self, Engine, Image, MAX_SIGNATURES, Options};
use tapdeck_packet::rules::{Action, Rule, RuleSet, bloom};
use tapdeck_testkit::SplitMix64;

/// Judges packets by every rule and by both engines, and compares the counters.
fn compare(style: Style, seed: u64, rules: usize, packets: usize) {
    let mut random = SplitMix64(seed);
    let set = style.set(&mut random, rules);
    let every = EveryRule::of(&set);
    let mut hits = Hits { per_rule: vec![0; rules], none: 0 };
    let mut twins = [Engine::Candidates, Engine::Walk]
        .map(|engine| Twin::new(&Arc::new(Compiled::new(&set, &options(engine)).unwrap())));
    for i in 0..packets {
        let tuple = style.tuple(&mut random, &set);
        let expected = every.judge(&tuple, &mut hits);
        for (twin, engine) in twins.iter_mut().zip(["candidates", "walk"]) {
            let verdict = twin.judge(&tuple, i as u32 % 3);
            assert_eq!(verdict, expected, "{engine}, seed {seed}, {tuple:?}\n{set}");
        }
    }
    for twin in &twins {
        assert_eq!(twin.hits(), hits, "seed {seed}");
    }
}

#[test]
fn both_engines_judge_as_looking_at_every_rule_does() {
    let sets: u64 = std::env::var("TAPDECK_RULE_SETS").map_or(80, |n| n.parse().unwrap());
    for seed in 0..sets {
        let style = STYLES[seed as usize % STYLES.len()];
        let rules = [0, 1, 2, 5, 20, 60, 200, 600][seed as usize / STYLES.len() % 8];
        compare(style, seed, rules, 400);
    }
}

#[test]
fn large_sets_are_judged_alike() {
    for (seed, style) in (1000..).zip(STYLES) {
        compare(style, seed, 2000, 300);
    }
}

#[allow(clippy::unnecessary_wraps, reason = "a rule has it so")]
fn host(address: u32, bits: u8) -> Option<ipnet::IpNet> {
    Some(ipnet::Ipv4Net::new(Ipv4Addr::from(address), bits).unwrap().trunc().into())
}

fn between(source: Option<ipnet::IpNet>, destination: Option<ipnet::IpNet>) -> Rule {
    Rule {
        action: Action::Accept,
        source,
        destination,
        source_port: None,
        destination_port: None,
        protocol: None,
    }
}

#[test]
fn the_bloom_filter_errs_as_often_as_its_formula_says() {
    const BITS: u64 = 1 << 16;
    const RULES: u32 = 6000;
    let set: RuleSet =
        (0..RULES).map(|i| between(host(0x0a00_0000 + i, 32), host(!i, 32))).collect();
    let options = Options {
        false_positive_rate: 0.01,
        bloom: bloom::Size::Fixed(BITS),
        ..Options::default()
    };
    let twin = Twin::new(&Arc::new(Compiled::new(&set, &options).unwrap()));
    // The first signature's number and no ports: the word that a look-up under it compares.
    let rest = 0;
    for i in 0..RULES {
        let addresses = u64::from(0x0a00_0000 + i) << 32 | u64::from(!i);
        assert!(twin.bloom(addresses, rest), "nothing that is in it is missed");
    }
    let mut random = SplitMix64(1);
    let asked = 1_000_000;
    // Sources in 192/2 are in no rule.
    let taken = (0..asked).filter(|_| twin.bloom(random.draw() | 0xc0 << 56, rest)).count();
    let (rate, formula) = (taken as f64 / f64::from(asked), bloom::rate(BITS, RULES.into()));
    assert!((rate / formula - 1.0).abs() < 0.1, "measured {rate}, by the formula {formula}");
}

#[test]
fn a_filter_of_fixed_size_keeps_its_promise_or_says_that_it_cannot() {
    let set: RuleSet = (0..100_000).map(|i| between(host(i, 32), None)).collect();
    let fixed = Options { bloom: bloom::Size::Fixed(bloom::THESIS_BITS), ..Options::default() };
    let error = Image::build(&set, &fixed).unwrap_err();
    assert!(matches!(error, image::Error::Bloom(bloom::Error::Promise { .. })), "{error}");
    let image = Image::build(&set, &Options::default()).unwrap();
    assert!(bloom::rate(image.facts().bloom_bits, 100_000) <= bloom::PROMISED_RATE);
}

#[test]
fn too_many_signatures_are_refused_with_the_reason() {
    let lengths =
        (1..=32).flat_map(|source| (1..=32).map(move |destination| (source, destination)));
    let rules = lengths.flat_map(|(source, destination)| {
        let one = Some(1.into());
        [(None, None), (one, None), (None, one), (one, one)].map(|ports| Rule {
            source_port: ports.0,
            destination_port: ports.1,
            ..between(host(1 << 30, source), host(1 << 30, destination))
        })
    });
    let mut set: RuleSet = rules.collect();
    assert_eq!(set.signatures().len(), MAX_SIGNATURES);
    Image::build(&set, &Options::default()).unwrap();
    let more: Vec<Rule> = vec![between(host(1, 32), None)];
    for rule in more {
        set.push(tapdeck_packet::rules::Entry { rule, enabled: true, line: 0 });
    }
    let error = Image::build(&set, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("4,097 signatures for IPv4, and 4,096"), "{error}");
}

/// The masked addresses of short prefixes differ in few bits, all of them high.
#[test]
fn many_short_prefixes_have_an_image() {
    let mut random = SplitMix64(4);
    let nets = (0..6000).map(|n| between(host(n << 16, 16), None));
    let rules: RuleSet = nets.chain((0..199).map(|n| between(host(n << 24, 8), None))).collect();
    let short: RuleSet = (0..20_000)
        .map(|_| {
            let net = |random: &mut SplitMix64| {
                let bits = 8 + random.below(17) as u8;
                host(random.draw() as u32, bits)
            };
            between(net(&mut random), net(&mut random))
        })
        .collect();
    for set in [rules, short] {
        Compiled::new(&set, &Options::default()).unwrap();
    }
}

#[test]
fn a_group_that_is_not_there_is_refused_by_name() {
    let set = RuleSet::parse("drop src any dst any sport any dport any proto any\ngroup=x src any dst any sport any dport 5 proto any").unwrap();
    let error = Compiled::new(&set, &Options::default()).unwrap_err();
    assert!(
        matches!(&error, Error::Image(image::Error::Group { rule: 1, name, .. }) if name == "x")
    );
    assert!(error.is_usage() && error.to_string().contains("rule 2"), "{error}");
    assert!(error.to_string().contains("record knows none"), "{error}");
    let groups = [("ids".to_owned(), 0), ("pcap".to_owned(), 1)].into_iter().collect();
    let error = Compiled::new(&set, &Options { groups, ..Options::default() }).unwrap_err();
    assert!(error.to_string().ends_with("there are ids, pcap"), "{error}");
}

/// A set of 100,000 rules may be in the kernel twice while it is exchanged.
#[test]
fn a_hundred_thousand_rules_fit_twice_into_64_mib() {
    let mut random = SplitMix64(2);
    let host4 = |random: &mut SplitMix64| host(random.draw() as u32, 32);
    let ports = |random: &mut SplitMix64| Some((random.draw() as u16).into());
    let hosts: RuleSet = (0..100_000).map(|_| between(host4(&mut random), None)).collect();
    let flows: RuleSet = (0..100_000)
        .map(|_| Rule {
            source_port: ports(&mut random),
            destination_port: ports(&mut random),
            ..between(host4(&mut random), host4(&mut random))
        })
        .collect();
    let signatures: RuleSet = (0..100_000)
        .map(|i| {
            let (source, destination) = (8 + i % 25, 8 + i / 25 % 20);
            between(
                host(random.draw() as u32, source as u8),
                host(random.draw() as u32, destination as u8),
            )
        })
        .collect();
    let address6 = |random: &mut SplitMix64| {
        let address = 0x2001_0db8_u128 << 96 | u128::from(random.draw() >> 32) << 64;
        Some(ipnet::Ipv6Net::new((address | u128::from(random.draw())).into(), 128).unwrap().into())
    };
    let flows6: RuleSet =
        (0..100_000).map(|_| between(address6(&mut random), address6(&mut random))).collect();
    for (set, name) in
        [(hosts, "hosts"), (flows, "flows"), (signatures, "500 signatures"), (flows6, "IPv6 flows")]
    {
        let compiled = Compiled::new(&set, &Options::default()).unwrap();
        let facts = compiled.facts();
        println!("{name}: {} KiB, {facts:?}", compiled.image_bytes() >> 10);
        assert!(2 * compiled.kernel_bytes() <= 64 << 20, "{name}: {facts:?}");
    }
}
