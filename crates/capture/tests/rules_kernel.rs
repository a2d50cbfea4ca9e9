//! The judge inside the kernel. Needs the privilege to load BPF programs.

mod kernel_judge;
mod rules_drawn;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kernel_judge::KernelJudge;
use rules_drawn::{EveryRule, STYLES, options};
use tapdeck_capture::rules::{Compiled, Hits};
use tapdeck_packet::rules::image::{Engine, Options};
use tapdeck_packet::rules::{Rule, RuleSet, Tuple};
use tapdeck_testkit::SplitMix64;

#[test]
fn the_kernel_judges_as_looking_at_every_rule_does() {
    let mut kernel = KernelJudge::load();
    for (seed, engine) in
        (0..20).flat_map(|seed| [(seed, Engine::Candidates), (seed, Engine::Walk)])
    {
        let style = STYLES[seed % STYLES.len()];
        let mut random = SplitMix64(seed as u64);
        let set = style.set(&mut random, [1, 30, 300, 2000][seed / STYLES.len()]);
        let compiled = Arc::new(Compiled::new(&set, &options(engine)).unwrap());
        kernel.set(Some(&compiled));
        let tuples: Vec<Tuple> = (0..1000).map(|_| style.tuple(&mut random, &set)).collect();
        kernel.leave(&tuples);
        kernel.run(tuples.len() as u32, false);
        let every = EveryRule::of(&set);
        let mut hits = Hits::default();
        for (tuple, verdict) in tuples.iter().zip(kernel.verdicts()) {
            let expected = every.judge(tuple, &mut hits);
            assert_eq!(verdict, Some(expected), "{engine}, seed {seed}, {tuple:?}\n{set}");
        }
        assert_eq!(kernel.hits(), Some(hits.clone()));
        assert_eq!(kernel.set(None), Some(hits), "the last word of the old set");
        kernel.run(tuples.len() as u32, false);
        assert!(kernel.verdicts().iter().all(Option::is_none), "without a set nothing is judged");
    }
}

/// Sets of three sizes of image, in which one rule takes what comes from 10/8; its number and those
/// before it differ.
fn sets() -> Vec<Arc<Compiled>> {
    let mut random = SplitMix64(3);
    [0, 1, 5000, 50_000, 3, 20_000]
        .into_iter()
        .map(|before| {
            let other = |random: &mut SplitMix64| -> Rule {
                let address = std::net::Ipv4Addr::from(random.draw() as u32 | 0x8000_0000);
                format!("drop src {address} dst any sport any dport any proto any").parse().unwrap()
            };
            let mut rules: Vec<Rule> = (0..before).map(|_| other(&mut random)).collect();
            rules.push(
                "accept src 10.0.0.0/8 dst any sport any dport any proto any".parse().unwrap(),
            );
            let set: RuleSet = rules.into_iter().collect();
            Arc::new(Compiled::new(&set, &Options::default()).unwrap())
        })
        .collect()
}

#[test]
fn no_packet_is_lost_or_judged_twice_while_sets_are_exchanged() {
    const BATCH: u32 = 4096;
    let sets = sets();
    let (runner, mut images) = KernelJudge::load().split();
    images.set(0, Some(&sets[0])).unwrap();
    let (stop, judged) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, judged, sets) = (&stop, &judged, &sets);
        let thread = scope.spawn(move || {
            let mut runner = runner;
            // Half from 10/8, half from nowhere.
            let tuple = |i: u32| Tuple {
                family: Some(tapdeck_packet::rules::Family::V4),
                source: u128::from(0x0a00_0000 | i & 1 << 20) << 96 | u128::from(i & 1) << 120,
                destination: 0,
                protocol: 6,
                ports: None,
                fragment: None,
            };
            runner.leave(&(0..BATCH).map(tuple).collect::<Vec<_>>());
            while !stop.load(Ordering::Acquire) {
                runner.run(BATCH, false);
                judged.fetch_add(BATCH.into(), Ordering::Release);
            }
            runner.verdicts().iter().all(Option::is_some)
        });
        let mut counted = Vec::new();
        let mut present = 0;
        // Each set has judged something before it goes, the last one too.
        let wait = || {
            let before = judged.load(Ordering::Acquire);
            while judged.load(Ordering::Acquire) < before + 2 * u64::from(BATCH)
                && !thread.is_finished()
            {
                std::thread::yield_now();
            }
        };
        for i in 1..60 {
            wait();
            let hits = images.set(0, Some(&sets[i % sets.len()])).unwrap().unwrap();
            counted.push((present, hits));
            present = i % sets.len();
        }
        wait();
        stop.store(true, Ordering::Release);
        assert!(thread.join().unwrap(), "every packet was judged by some set");
        counted.push((present, images.set(0, None).unwrap().unwrap()));
        let (mut taken, mut none) = (0, 0);
        for (set, hits) in counted {
            let last = sets[set].rules() as usize - 1;
            assert_eq!(hits.seen(), hits.per_rule[last] + hits.none, "no rule of another set");
            assert!(hits.seen() > 0);
            taken += hits.per_rule[last];
            none += hits.none;
        }
        assert_eq!(taken + none, judged.load(Ordering::Acquire));
        assert_eq!(taken, none);
    });
}
