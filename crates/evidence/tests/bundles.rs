//! Bundles: what is in them, what they say of the recording, and that whatever is done to one is
//! told.

mod common;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use common::{Made, SECOND, T0, export, made, packets_of, question, recorders, segment};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tapdeck_evidence::{PrivateKey, check};
use tempfile::TempDir;

const FILES: [&str; 3] = ["manifest.json", "manifest.sig", "packets.pcapng"];

/// A store of three seconds by one recorder.
fn store() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let packets: Vec<Made> =
        (0..30).map(|i| made(T0 + i * SECOND / 10, 53 + (i % 2) as u16)).collect();
    segment(dir.path(), 1, (T0, T0 + 2 * SECOND), &packets[..20]);
    segment(dir.path(), 2, (T0 + 2 * SECOND, T0 + 3 * SECOND), &packets[20..]);
    recorders(dir.path(), &[1]);
    dir
}

/// A bundle, the key that signed it, and where both lie.
struct Signed {
    dir: TempDir,
    key: PrivateKey,
}

impl Signed {
    fn new() -> Self {
        let (store, dir) = (store(), tempfile::tempdir().expect("a directory"));
        let key = PrivateKey::generate().expect("random numbers");
        let question = question("udp port 53", T0 + SECOND, T0 + 5 * SECOND / 2);
        export(store.path(), &question, &key, &dir.path().join("bundle"));
        Self { dir, key }
    }

    fn bundle(&self) -> std::path::PathBuf {
        self.dir.path().join("bundle")
    }

    fn faults(&self) -> Vec<String> {
        check(&self.bundle(), &self.key.public()).expect("it can be read").faults
    }
}

#[test]
fn a_bundle_has_what_was_asked_for_and_is_sound() {
    let (store, dir) = (store(), tempfile::tempdir().unwrap());
    let key = PrivateKey::generate().unwrap();
    let out = dir.path().join("bundle");
    let question = question("udp port 53", T0 + SECOND, T0 + 5 * SECOND / 2);
    let manifest = export(store.path(), &question, &key, &out);
    let packets = packets_of(&out.join("packets.pcapng"));
    let times: Vec<i64> = packets.iter().map(|(time, _)| *time).collect();
    let expected: Vec<i64> =
        (10..25).filter(|i| i % 2 == 0).map(|i| T0 + i * SECOND / 10).collect();
    assert_eq!(times, expected);
    assert_eq!(manifest.packets, expected.len() as u64);
    assert_eq!((manifest.first.unwrap().0, manifest.last.unwrap().0), (expected[0], expected[7]));
    assert!(manifest.account.complete, "{:?}", manifest.account);
    assert_eq!(manifest.clock.kept_at_utc, Some(true));
    assert_eq!(manifest.key, key.public().fingerprint());
    let checked = check(&out, &key.public()).unwrap();
    assert_eq!((checked.manifest, checked.faults), (Some(manifest), vec![]));
    let other = PrivateKey::generate().unwrap();
    let refused = check(&out, &other.public()).unwrap();
    assert!(refused.manifest.is_none() && refused.faults.len() == 1, "another key: {refused:?}");
}

#[test]
fn every_flipped_bit_is_told() {
    let made = Signed::new();
    for name in FILES {
        let path = made.bundle().join(name);
        let whole = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let (at, byte) = (bit / 8, whole[bit / 8]);
            file.write_all_at(&[byte ^ 1 << (bit % 8)], at as u64).unwrap();
            assert!(!made.faults().is_empty(), "bit {bit} of {name}");
            file.write_all_at(&[byte], at as u64).unwrap();
        }
    }
    assert_eq!(made.faults(), Vec::<String>::new(), "it is as it was");
}

/// What somebody does to a bundle.
#[derive(Clone, Debug)]
enum Harm {
    Flip { file: usize, at: usize, mask: u8 },
    Cut { file: usize, len: usize },
    Lengthen { file: usize, by: Vec<u8> },
    Remove { file: usize },
    Add { name: String },
    Exchange { one: usize, other: usize },
    Link { file: usize },
    Directory { file: usize },
}

fn harm() -> impl Strategy<Value = Harm> {
    let file = || 0..FILES.len();
    prop_oneof![
        (file(), any::<usize>(), 1..=u8::MAX).prop_map(|(file, at, mask)| Harm::Flip {
            file,
            at,
            mask
        }),
        (file(), any::<usize>()).prop_map(|(file, len)| Harm::Cut { file, len }),
        (file(), prop::collection::vec(any::<u8>(), 1..100))
            .prop_map(|(file, by)| Harm::Lengthen { file, by }),
        file().prop_map(|file| Harm::Remove { file }),
        "[a-z.]{3,12}".prop_map(|name| Harm::Add { name }),
        (file(), 1..FILES.len())
            .prop_map(|(one, by)| Harm::Exchange { one, other: (one + by) % FILES.len() }),
        file().prop_map(|file| Harm::Link { file }),
        file().prop_map(|file| Harm::Directory { file }),
    ]
}

/// Does harm to a bundle. Returns whether anything is another than before.
fn inflict(bundle: &Path, harm: &Harm) -> bool {
    let path = |file: &usize| bundle.join(FILES[*file]);
    let read = |file: &usize| fs::read(path(file)).unwrap();
    match harm {
        Harm::Flip { file, at, mask } => {
            let mut bytes = read(file);
            let at = at % bytes.len();
            bytes[at] ^= mask;
            fs::write(path(file), bytes).unwrap();
        }
        Harm::Cut { file, len } => {
            let bytes = read(file);
            fs::write(path(file), &bytes[..len % bytes.len()]).unwrap();
        }
        Harm::Lengthen { file, by } => {
            fs::write(path(file), [read(file), by.clone()].concat()).unwrap();
        }
        Harm::Remove { file } => fs::remove_file(path(file)).unwrap(),
        Harm::Add { name } => {
            if bundle.join(name).exists() || [".", ".."].contains(&&**name) {
                return false;
            }
            fs::write(bundle.join(name), b"more").unwrap();
        }
        Harm::Exchange { one, other } => {
            let (a, b) = (read(one), read(other));
            fs::write(path(one), b).unwrap();
            fs::write(path(other), a).unwrap();
        }
        Harm::Link { file } => {
            let elsewhere = bundle.with_file_name("elsewhere");
            fs::rename(path(file), &elsewhere).unwrap();
            std::os::unix::fs::symlink(elsewhere, path(file)).unwrap();
        }
        Harm::Directory { file } => {
            fs::remove_file(path(file)).unwrap();
            fs::create_dir(path(file)).unwrap();
        }
    }
    true
}

#[test]
fn whatever_is_done_to_a_bundle_is_told() {
    let sound = Signed::new();
    let config = Config { failure_persistence: None, ..Config::with_cases(600) };
    let outcome = TestRunner::new(config).run(&harm(), |harm| {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("bundle");
        fs::create_dir(&bundle).unwrap();
        for name in FILES {
            fs::copy(sound.bundle().join(name), bundle.join(name)).unwrap();
        }
        let is_harmed = inflict(&bundle, &harm);
        let faults = check(&bundle, &sound.key.public()).unwrap().faults;
        prop_assert_eq!(faults.is_empty(), !is_harmed, "{:?}", faults);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn the_manifest_of_another_bundle_is_told() {
    let (store, dir) = (store(), tempfile::tempdir().unwrap());
    let key = PrivateKey::generate().unwrap();
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    export(store.path(), &question("port 53", T0, T0 + SECOND), &key, &one);
    export(store.path(), &question("port 54", T0, T0 + SECOND), &key, &other);
    for name in ["manifest.json", "manifest.sig"] {
        fs::copy(other.join(name), one.join(name)).unwrap();
    }
    let checked = check(&one, &key.public()).unwrap();
    assert!(checked.manifest.is_some(), "it was signed");
    assert_eq!(checked.faults.len(), 1, "{:?}", checked.faults);
    assert!(checked.faults[0].starts_with("packets.pcapng"), "{:?}", checked.faults);
}

#[test]
fn the_account_tells_what_the_recording_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let lossy = Made { dropped: 7, ..made(T0 + SECOND, 53) };
    segment(dir.path(), 3, (T0, T0 + 2 * SECOND), &[made(T0, 53), lossy]);
    segment(dir.path(), 4, (T0 + 9 * SECOND, T0 + 12 * SECOND), &[made(T0 + 10 * SECOND, 53)]);
    recorders(dir.path(), &[2, 4]);
    let out = tempfile::tempdir().unwrap();
    let key = PrivateKey::generate().unwrap();
    let account = |after_s: i64, before_s: i64| {
        let question = question("port 99", T0 + after_s * SECOND, T0 + before_s * SECOND);
        let name = format!("{after_s} {before_s}");
        export(dir.path(), &question, &key, &out.path().join(name)).account
    };
    let lossy = account(0, 2);
    assert!(!lossy.complete);
    assert_eq!(lossy.lost.packets, 7, "also of packets that nobody asked for: {lossy:?}");
    assert_eq!(lossy.lost.times[0].interface.as_deref(), Some("eth0"));
    assert!(lossy.unrecorded.is_empty());
    let unrecorded = |account: &tapdeck_evidence::Account| -> Vec<(i64, i64)> {
        let second = |time: tapdeck_evidence::Time| (time.0 - T0) / SECOND;
        account.unrecorded.iter().map(|u| (second(u.first.unwrap()), second(u.last))).collect()
    };
    assert_eq!(unrecorded(&account(-60, 0)), [(-60, 0)], "before the store");
    assert_eq!(unrecorded(&account(1, 10)), [(2, 9)], "between two recorders");
    assert_eq!(unrecorded(&account(10, 15)), [(12, 15)], "behind the last");
    let whole = account(9, 12);
    assert!(whole.complete, "{whole:?}");
}

#[test]
fn nothing_is_written_over_and_nothing_half_is_left() {
    let (store, dir) = (store(), tempfile::tempdir().unwrap());
    let key = PrivateKey::generate().unwrap();
    let out = dir.path().join("bundle");
    let refused = tapdeck_evidence::Bundle::begin(&out).unwrap();
    let asked = question("no such word", T0, T0 + SECOND);
    let error = refused.add_packets(&common::storage(store.path()), &asked, || true).unwrap_err();
    assert!(error.is_usage(), "{error}");
    drop(refused);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    export(store.path(), &question("", T0, T0 + SECOND), &key, &out);
    assert!(tapdeck_evidence::Bundle::begin(&out).is_err(), "it is there");
    let keys = dir.path().join("key");
    key.write(&keys).unwrap();
    assert!(key.write(&keys).is_err(), "a key is not written over");
    let read = PrivateKey::read(&keys).unwrap();
    assert_eq!(read.public().fingerprint(), key.public().fingerprint());
}
