//! A writer that dies: what another needs to go on stands in its ledger and in the store, whenever
//! that was.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::faulty::{Faulty, Odds};
use common::{Id, Setup, directory, names, offered, read_store, rings, stored};
use tapdeck_store::io::Disk;
use tapdeck_store::{ClosedScope, Ledger, LedgerEntry, Scope, SegmentEnd, Store, Totals};
use tapdeck_testkit::SplitMix64;

const SEGMENT: u64 = 128 << 10;

/// What a death just before an entry of the ledger leaves: a copy of the store, and the entry
/// before.
struct Death {
    store: PathBuf,
    end: SegmentEnd,
    /// Packets that were noted, by interface.
    noted: Vec<usize>,
}

/// A ledger that keeps every death.
struct Deaths {
    store: PathBuf,
    into: PathBuf,
    before: Option<(SegmentEnd, Vec<usize>)>,
    kept: Arc<Mutex<Vec<Death>>>,
}

impl Ledger for Deaths {
    fn note(&mut self, entry: &LedgerEntry<'_>) {
        let mut kept = self.kept.lock().unwrap();
        if let Some((end, noted)) = self.before.take() {
            let store = self.into.join(kept.len().to_string());
            copy(&self.store, &store);
            kept.push(Death { store, end, noted });
        }
        let packets = entry.totals.interfaces.iter().map(|of| of.packets.load(SeqCst) as usize);
        self.before = entry.segment.map(|end| (end, packets.collect()));
    }

    fn comes(&mut self, _: u32, _: &Totals) {}
}

/// Copies a store as it is between two changes of names.
fn copy(from: &Path, to: &Path) {
    loop {
        let before = names(from);
        fs::create_dir_all(to).unwrap();
        let copied = before.iter().map(|name| fs::copy(from.join(name), to.join(name)));
        if copied.collect::<Result<Vec<_>, _>>().is_ok() && names(from) == before {
            return;
        }
        fs::remove_dir_all(to).unwrap();
    }
}

#[test]
fn what_was_noted_is_there_and_nothing_else_whenever_the_writer_dies() {
    let (mut cuts, mut whole) = (0, 0);
    for seed in 0..12 {
        let mut random = SplitMix64(seed);
        let (temp, dir) = directory();
        let (mut producers, ends) = rings(2);
        for i in 0..40 {
            producers[i % 2].push_any(&mut random);
        }
        // So that the writer could die before the keeper has come to what is torn.
        let cut_takes = Duration::from_millis(5);
        let odds = match seed % 3 {
            0 => Odds::default(),
            1 => Odds { short: 500, write: 100, torn: 700, cut_takes, ..Odds::default() },
            _ => Odds { short: 300, write: 200, odd: 200, torn: 700, cut_takes, ..Odds::default() },
        };
        let kept = Arc::<Mutex<Vec<Death>>>::default();
        let setup = Setup::new(SEGMENT);
        *setup.ledger.lock().unwrap() = Some(Box::new(Deaths {
            store: dir.clone(),
            into: temp.path().join("deaths"),
            before: None,
            kept: kept.clone(),
        }));
        setup.record(&dir, Faulty::new(seed, odds), ends);
        assert_eq!(stored(&read_store(&dir)), offered(&producers), "seed {seed}");

        let kept = kept.lock().unwrap();
        assert!(kept.len() > 5, "seed {seed}: a death before each batch");
        for (number, Death { store: dir, end, noted }) in kept.iter().enumerate() {
            let mut store = Store::open(dir).unwrap();
            let cut = store.cut_unnoted(*end).unwrap();
            cuts += u32::from(cut > 0);
            whole += u32::from(cut == 0);
            assert_eq!(store.cut_unnoted(*end).unwrap(), 0, "seed {seed}: once is enough");
            let scope = Scope { closed: ClosedScope::None, index: false };
            store.recover(&Disk::new(false), scope, |_| {}).unwrap();
            let first = |(producer, n): (&common::Producer, &usize)| -> Vec<Id> {
                producer.offered[..*n].to_vec()
            };
            let mut expected: Vec<Id> = producers.iter().zip(noted).flat_map(first).collect();
            expected.sort_unstable();
            let found = stored(&read_store(dir));
            assert_eq!(found, expected, "seed {seed}, death {number}");
        }
    }
    assert!(cuts > 20 && whole > 0, "{cuts} deaths left something to cut, {whole} nothing");
}
