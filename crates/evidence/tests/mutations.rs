//! The fuzz targets of alerts and bundles, run on the stable compiler over mutations of their
//! seeds.

#[path = "../../../fuzz/checks/evidence.rs"]
mod evidence;

use std::fs;

use tapdeck_evidence::PrivateKey;
use tapdeck_testkit::SplitMix64;

/// Bytes that mean something to JSON, and some that a terminal obeys.
const BYTES: &[u8] = b"{}[]\",:\\.0179-eu\n\t\x1b\x00\xc2\x9b\xff/";

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = format!("../../fuzz/seeds/{target}");
    let files = fs::read_dir(dir).expect("seeds").map(|file| file.expect("a file").path());
    files.map(|path| fs::read(path).expect("a file")).collect()
}

fn mutated(seed: &[u8], rng: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = BYTES[rng.below(BYTES.len())],
            1 => bytes.insert(at, BYTES[rng.below(BYTES.len())]),
            2 => drop(bytes.remove(at)),
            _ => {
                let to = at + rng.below((bytes.len() - at).min(20)) + 1;
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

#[test]
fn whatever_stands_in_a_line_an_alert_has_a_filter() {
    let (mut rng, seeds) = (SplitMix64(1), seeds("alerts"));
    let alerts = seeds.iter().filter(|seed| evidence::alert(seed)).count();
    assert!(alerts >= 3, "most are alerts: {alerts}");
    let is_one =
        (0..3000).filter(|_| evidence::alert(&mutated(&seeds[rng.below(seeds.len())], &mut rng)));
    let understood = is_one.count();
    assert!((1..3000).contains(&understood), "{understood}");
}

#[test]
fn no_manifest_is_believed_that_nobody_signed() {
    let (mut rng, seeds) = (SplitMix64(2), seeds("bundle"));
    let key = PrivateKey::generate().expect("random numbers");
    assert!(seeds.iter().any(|seed| evidence::manifest(seed, &key)));
    let is_one = (0..3000)
        .filter(|_| evidence::manifest(&mutated(&seeds[rng.below(seeds.len())], &mut rng), &key));
    let understood = is_one.count();
    assert!((1..3000).contains(&understood), "{understood}");
}
