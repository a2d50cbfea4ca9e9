//! The fuzz target of recovery, run on the stable compiler over a fixed set of mutations of a
//! segment.

#[path = "../../../fuzz/checks/recover.rs"]
mod check;
mod common;

use check::check;
use common::faulty::Faulty;
use common::{Setup, directory, names, rings};
use tapdeck_store::resync_anything;
use tapdeck_testkit::SplitMix64;

const INPUTS: usize = 150;

/// A segment by the real writer.
fn segment() -> Vec<u8> {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(2);
    let mut rng = SplitMix64(1);
    for _ in 0..60 {
        producers[rng.below(2)].push_any(&mut rng);
    }
    Setup::new(64 << 20).record(&dir, Faulty::sound(), ends);
    std::fs::read(dir.join(&names(&dir)[0])).unwrap()
}

#[test]
fn whatever_is_left_of_a_segment_is_recovered_once_and_for_all() {
    let (_temp, dir) = directory();
    std::fs::create_dir_all(&dir).unwrap();
    let whole = segment();
    let packets = check(&dir, &whole).expect("a segment");
    assert!(packets > 0);
    let (mut rng, mut fewer) = (SplitMix64(2), 0);
    for _ in 0..INPUTS {
        let mut data = whole.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(data.len() - 8);
            let to = at + rng.below((data.len() - at).min(3000)) + 1;
            match rng.below(5) {
                0 => data[at] ^= 1 << rng.below(8),
                1 => data[at..to].fill(0),
                2 => data.truncate(at.max(100)),
                3 => drop(data.drain(at..to)),
                _ => {
                    let piece = data[at..to].to_vec();
                    let to = rng.below(data.len());
                    data.splice(to..to, piece);
                }
            }
        }
        let have = check(&dir, &data).unwrap_or(0);
        fewer += usize::from(have < packets);
        resync_anything(&data).unwrap();
    }
    assert!(fewer > 0 && fewer < INPUTS, "{fewer} lost packets");
}

/// Among them is what the fuzz target found once.
#[test]
fn the_fuzz_targets_seeds_are_recovered() {
    let (_temp, dir) = directory();
    std::fs::create_dir_all(&dir).unwrap();
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/recover");
    let seeds: Vec<_> = std::fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap()).collect();
    assert!(seeds.len() > 3, "{seeds:?}");
    for seed in seeds {
        check(&dir, &std::fs::read(seed.path()).unwrap());
    }
}
