//! Whenever the power is cut and whatever the disk has forgotten by then, what was called durable
//! is there once recovered, once and whole, and soon after it is written everything is called so.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::faulty::Faulty;
use common::forgetful::{Forgetful, Luck, Promise};
use common::{
    Id, Producer, Run, Setup, directory, interfaces, is_live, names, offered, packets, read_store,
    rings, stored, unwritten,
};
use rustix::io::Errno;
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_packet::printable::counted;
use tapdeck_store::{
    Action, ClosedScope, Fault, Finding, IndexAction, Scope, Store, StreamSink, Totals, verify,
};
use tapdeck_testkit::{SplitMix64, wait_for};

const SEGMENT: u64 = 256 << 10;
const INTERVAL: Duration = Duration::from_millis(8);
const LUCK: [Luck; 4] = [Luck::Nothing, Luck::Everything, Luck::Beginning, Luck::Any];

fn durable(totals: &Totals) -> u64 {
    totals.interfaces.iter().map(|i| i.durable.load(SeqCst)).sum()
}

/// Waits until everything that was offered is called durable, while recording goes on.
fn until_durable(run: &Run, producers: &[Producer]) {
    let all: usize = producers.iter().map(|p| p.offered.len()).sum();
    wait_for("everything to be durable", || durable(&run.totals) == all as u64);
}

/// Records in bursts, each of which becomes durable, over several segments.
fn record(disk: &Forgetful, dir: &Path, seed: u64) -> Vec<Producer> {
    let mut rng = SplitMix64(seed);
    let mut setup = Setup::new(SEGMENT);
    setup.indexed = true;
    setup.sync_interval = Some(INTERVAL);
    let (mut producers, ends) = rings(2);
    let run = setup.start(dir, disk.clone(), ends);
    disk.watch(&run.totals);
    for burst in 0..8 {
        for _ in 0..2 + rng.below(6) {
            let ring = rng.below(producers.len());
            producers[ring].push_any(&mut rng);
        }
        if burst == 5 {
            run.begin_segment();
        }
        until_durable(&run, &producers);
    }
    run.stop().unwrap();
    assert_eq!(setup.log.lock().unwrap().join("\n"), "");
    producers
}

/// What is in a store, damaged packets apart.
#[derive(Default)]
struct Found {
    whole: Vec<Id>,
    /// Packets of which sectors are missing: of those nobody can tell, and none was promised.
    damaged: usize,
}

/// Reads all segments but those that are `left` as they are. Each packet is one that was offered,
/// but for sectors that are missing.
fn read(dir: &Path, offered: &BTreeSet<Id>, left: &[String]) -> Found {
    let mut found = Found::default();
    for name in names(dir).into_iter().filter(|name| !left.contains(name)) {
        assert!(!is_live(&name), "{name} is not closed");
        let data = std::fs::read(dir.join(&name)).unwrap();
        for record in Reader::new(&data) {
            let Record::Packet(packet) = record.unwrap_or_else(|e| panic!("{name}: {e}")) else {
                continue;
            };
            let id = Id { interface: packet.interface, epoch: 0, seq: packet.timestamp };
            let frame = id.frame(packet.frame.len().max(common::ID_BYTES));
            if frame == packet.frame && offered.contains(&id) {
                found.whole.push(id);
                continue;
            }
            found.damaged += 1;
            let has_head = offered.contains(&id) && !packet.frame.is_empty();
            let is_forgotten = |(there, was): (&u8, &u8)| *there == 0 || there == was;
            assert!(
                !has_head || packet.frame.iter().zip(&frame).all(is_forgotten),
                "{name}: a packet that nobody offered: {id:?}"
            );
            assert!(has_head || packet.frame.contains(&0) || packet.frame.is_empty(), "{name}");
        }
    }
    found
}

/// Recovers what a cut has left, and holds it against what was promised.
fn check(dir: &Path, promise: &Promise, offered: &[Vec<Id>]) {
    let mut store = Store::open(dir).unwrap();
    let scope = Scope { closed: ClosedScope::None, index: true };
    let mut left = Vec::new();
    let each = |finding: &Finding| match &finding.action {
        // Its first sector is missing and later ones are there: it is left to the user.
        Action::Fail(Fault::Head) => left.push(finding.name.to_string()),
        Action::Fail(fault) => panic!("{}: {fault}", finding.name),
        _ => assert!(!matches!(finding.index, IndexAction::Fail(_)), "{finding:?}"),
    };
    store.recover(&Forgetful::on(dir), scope, each).unwrap();
    let all: BTreeSet<Id> = offered.iter().flatten().copied().collect();
    let found = read(dir, &all, &left);
    let whole: BTreeSet<Id> = found.whole.iter().copied().collect();
    assert_eq!(whole.len(), found.whole.len(), "a packet is there twice");
    for (offered, durable) in offered.iter().zip(&promise.durable) {
        for id in &offered[..*durable as usize] {
            assert!(whole.contains(id), "{id:?} was called durable, with {promise:?}");
        }
    }
    if found.damaged > 0 {
        // The checksums of an index that was made before may tell of such a packet.
        return;
    }
    let mut flaws = Vec::new();
    verify(dir, |_| true, |verdict| flaws.extend(verdict.flaws.clone())).unwrap();
    flaws.retain(|flaw| !left.contains(&flaw.file));
    assert_eq!(flaws, []);
}

/// Cuts the power at every moment of a recording, and in some of the recoveries again.
fn cut_everywhere(seed: u64) -> Result<usize, String> {
    let (_temp, dir) = directory();
    let disk = Forgetful::on(&dir);
    let producers = record(&disk, &dir, seed);
    let all: Vec<Vec<Id>> = producers.iter().map(|p| p.offered.clone()).collect();
    let mut rng = SplitMix64(seed);
    let moments = disk.moments();
    for moment in 0..moments {
        let luck = LUCK[(moment + seed as usize) % LUCK.len()];
        let again = rng.percent(25);
        let (temp, dir) = directory();
        std::fs::create_dir(&dir).unwrap();
        disk.cut(moment, luck, &mut rng, &dir);
        let promise = disk.promise(moment);
        let (_temp, dir) = if again {
            let recovering = Forgetful::on(&dir);
            let mut store = Store::open(&dir).unwrap();
            let scope = Scope { closed: ClosedScope::None, index: true };
            store.recover(&recovering, scope, |_| {}).unwrap();
            let (temp, second) = directory();
            std::fs::create_dir(&second).unwrap();
            let at = rng.below(recovering.moments());
            recovering.cut(at, rng.one(&LUCK), &mut rng, &second);
            (temp, second)
        } else {
            (temp, dir)
        };
        let checked = std::panic::catch_unwind(|| check(&dir, &promise, &all));
        checked
            .map_err(|_| format!("seed {seed}, moment {moment} of {moments}, {luck:?}, {again}"))?;
    }
    Ok(moments)
}

#[test]
fn what_was_called_durable_outlives_a_cut_at_any_moment() {
    let mut cuts = 0;
    for seed in 0..3 {
        cuts += cut_everywhere(seed).unwrap_or_else(|at| panic!("{at}"));
    }
    assert!(cuts > 300, "only {cuts} moments");
}

/// What has to fail does: a disk that says it has made things durable, and has not.
#[test]
fn a_disk_that_lies_is_found_out() {
    let (_temp, dir) = directory();
    let disk = Forgetful::on(&dir).that_lies();
    let producers = record(&disk, &dir, 1);
    let all: Vec<Vec<Id>> = producers.iter().map(|p| p.offered.clone()).collect();
    let last = disk.moments() - 1;
    let (_temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    disk.cut(last, Luck::Nothing, &mut SplitMix64(1), &dir);
    let promise = disk.promise(last);
    let checked = std::panic::catch_unwind(|| check(&dir, &promise, &all));
    assert!(checked.is_err(), "{promise:?} was held by a disk that holds nothing");
}

/// After a sync that failed nobody knows what of the file is on disk: what was written since the
/// last good one counts as not written, also if a later sync of the same file would end well.
#[test]
fn a_sync_that_fails_ends_the_segment_and_counts_what_may_be_lost() {
    let (_temp, dir) = directory();
    let disk = Faulty::sound();
    let (mut producers, ends) = rings(2);
    let mut setup = Setup::new(SEGMENT);
    setup.sync_interval = Some(INTERVAL);
    setup.indexed = true;
    let run = setup.start(&dir, disk.clone(), ends);
    for producer in &mut producers {
        producer.push(30_000);
    }
    until_durable(&run, &producers);
    let sure = durable(&run.totals);
    disk.fail_next_sync(Errno::IO);
    let unsure = u64::from(producers[1].push(20_000));
    wait_for("the segment to be given up", || unwritten(&run.totals) > 0);
    assert_eq!(unwritten(&run.totals), unsure);
    for producer in &mut producers {
        producer.push(10_000);
    }
    run.stop().unwrap();

    assert_eq!(disk.violations(), Vec::<String>::new());
    let segments = read_store(&dir);
    assert_eq!(stored(&segments), offered(&producers), "this disk has kept everything");
    let (given_up, others): (Vec<_>, Vec<_>) = segments.iter().partition(|s| is_live(&s.0));
    assert_eq!((given_up.len(), others.len()), (1, 1));
    assert_eq!(given_up[0].1.packets.len() as u64, sure + unsure);
    let all = offered(&producers).len() as u64;
    assert_eq!(packets(&run.totals), all - unsure);
    assert_eq!(durable(&run.totals), all - unsure);
    assert_eq!(unwritten(&run.totals), unsure);
    assert_eq!(run.totals.write_errors.load(SeqCst), 1);
    let log = setup.log.lock().unwrap().join("\n");
    assert!(
        log.contains(&format!("{unsure} of its {} may be lost", counted(sure + unsure, "packet"))),
        "{log}"
    );
}

/// A file has no other behind it: it ends where nobody knows what of it is on disk.
#[test]
fn a_file_that_cannot_be_made_durable_ends_the_recording() {
    for at_the_end in [false, true] {
        let (mut producers, ends) = rings(1);
        let totals = Arc::new(Totals::new(1));
        let file = tempfile::tempfile().unwrap();
        let sink = StreamSink::of_file(file, &interfaces(1), totals.clone(), Box::new(|| 0));
        let (breaks, is_broken) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let sync = {
            let (breaks, is_broken): (_, Arc<AtomicBool>) =
                (breaks.clone(), Arc::clone(&is_broken));
            move || {
                is_broken.store(breaks.load(SeqCst), SeqCst);
                if breaks.load(SeqCst) { Err(Errno::IO.into()) } else { Ok(()) }
            }
        };
        let interval = if at_the_end { Duration::from_secs(3600) } else { INTERVAL };
        let sink = sink.unwrap().sync_by(interval, Box::new(sync), Box::new(|| Ok(()))).unwrap();
        let run = Run::start(ends, sink, totals, None);
        let mut sure = 0;
        if !at_the_end {
            sure = u64::from(producers[0].push(30_000));
            until_durable(&run, &producers);
        }
        breaks.store(true, SeqCst);
        producers[0].push(20_000);
        let ended = if at_the_end {
            run.stop()
        } else {
            wait_for("a sync that fails", || is_broken.load(SeqCst));
            producers[0].push(10_000);
            run.join()
        };
        assert_eq!(ended.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        let all = offered(&producers).len() as u64;
        assert_eq!((packets(&run.totals), unwritten(&run.totals)), (sure, all - sure));
        assert_eq!(durable(&run.totals), sure);
    }
}
