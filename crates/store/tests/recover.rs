//! Whatever a crash leaves of a segment, recovery makes a whole one of it that holds every packet
//! which was still whole, and says what it did.

mod common;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use common::faulty::{Faulty, Odds};
use common::{Setup, directory, interfaces, is_live, names, read_bytes, rings};
use rustix::io::Errno;
use tapdeck_packet::pcapng::{self, Reader, Record};
use tapdeck_packet::trace;
use tapdeck_store::io::{Io, PAGE};
use tapdeck_store::{Action, ClosedScope, Error, Fault, Finding, IndexAction, Scope, Store};
use tapdeck_testkit::{SplitMix64, wait_for};

const LIVE: &str = "tapdeck-00000001-20260102T030405Z.pcapng.live";
const CLOSED: &str = "tapdeck-00000001-20260102T030405Z.pcapng";
const SECTOR: usize = 512;

/// Who a packet is, as its header says: interface and time.
type Who = (u32, u64);

/// A segment as it was written, without statistics.
struct Written {
    bytes: Vec<u8>,
    /// Where each block lies, and the packet in it.
    blocks: Vec<(Range<usize>, Option<Who>)>,
}

fn blocks(bytes: &[u8]) -> Vec<(Range<usize>, Option<Who>)> {
    let mut reader = Reader::new(bytes);
    let mut blocks = Vec::new();
    loop {
        let start = reader.offset() as usize;
        let who = match reader.next() {
            None | Some(Ok(Record::Statistics(_))) => return blocks,
            Some(Ok(Record::Packet(p))) => Some((p.interface, p.timestamp)),
            Some(Ok(_)) => None,
            Some(Err(e)) => panic!("{e}"),
        };
        blocks.push((start..reader.offset() as usize, who));
    }
}

impl Written {
    /// By the real writer.
    fn new(seed: u64, count: usize) -> Self {
        let (_temp, dir) = directory();
        let (mut producers, ends) = rings(2);
        let mut rng = SplitMix64(seed);
        for _ in 0..count {
            let at = rng.below(2);
            producers[at].push_any(&mut rng);
        }
        Setup::new(64 << 20).record(&dir, Faulty::sound(), ends);
        let mut bytes = std::fs::read(dir.join(&names(&dir)[0])).unwrap();
        let blocks = blocks(&bytes);
        bytes.truncate(blocks.last().unwrap().0.end);
        Self { bytes, blocks }
    }

    fn packets(&self) -> BTreeSet<Who> {
        self.blocks.iter().filter_map(|b| b.1).collect()
    }

    /// Packets of which every byte is still in `torn`.
    fn whole_in(&self, torn: &[u8]) -> BTreeSet<Who> {
        let whole = |at: &Range<usize>| torn.get(at.clone()) == Some(&self.bytes[at.clone()]);
        self.blocks.iter().filter(|b| whole(&b.0)).filter_map(|b| b.1).collect()
    }
}

/// Packets up to the first damage; an empty one is none.
fn readable(bytes: &[u8]) -> BTreeSet<Who> {
    let Ok(mut reader) = trace::Reader::new(bytes) else { return BTreeSet::new() };
    let mut found = BTreeSet::new();
    while let Ok(Some(p)) = reader.next_packet() {
        if p.original_len == 0 || p.frame.len() > p.original_len as usize {
            break;
        }
        found.insert((p.interface, p.time_ns.unwrap_or(0) as u64));
    }
    found
}

/// A store with these files.
fn store(files: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let (temp, dir) = directory();
    std::fs::create_dir(&dir).unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    (temp, dir)
}

fn recover<I: Io>(dir: &Path, io: &I, closed: ClosedScope) -> Vec<Finding> {
    recover_in(dir, io, Scope { closed, index: false })
}

fn recover_in<I: Io>(dir: &Path, io: &I, scope: Scope) -> Vec<Finding> {
    let mut findings = Vec::new();
    let each = |f: &Finding| findings.push(copy(f));
    Store::open(dir).unwrap().recover(io, scope, each).unwrap();
    findings
}

fn copy(f: &Finding) -> Finding {
    let action = match &f.action {
        Action::None => Action::None,
        Action::Close => Action::Close,
        Action::SetAside => Action::SetAside,
        Action::Fail(Fault::Head) => Action::Fail(Fault::Head),
        Action::Fail(Fault::Exists(name)) => Action::Fail(Fault::Exists(name.clone())),
        Action::Fail(Fault::Sections) => Action::Fail(Fault::Sections),
        Action::Fail(Fault::ByteOrder) => Action::Fail(Fault::ByteOrder),
        Action::Fail(Fault::Changed { at, what, more }) => {
            Action::Fail(Fault::Changed { at: *at, what: what.clone(), more: *more })
        }
        Action::Fail(Fault::Io(e)) => Action::Fail(Fault::Io(e.kind().into())),
    };
    let index = match &f.index {
        IndexAction::None => IndexAction::None,
        IndexAction::Make => IndexAction::Make,
        IndexAction::Fail(e) => IndexAction::Fail(e.kind().into()),
    };
    Finding { name: f.name.clone(), action, index, ..*f }
}

/// All of a directory but the files about the store.
fn listing(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| !p.ends_with(".tapdeck.lock") && !p.ends_with(".tapdeck.times"))
        .map(|p| (p.file_name().unwrap().to_str().unwrap().into(), std::fs::read(&p).unwrap()))
        .collect();
    all.sort();
    all
}

/// A segment that can be read to its end and whose statistics tell what is in it; its packets.
fn check_closed(dir: &Path) -> BTreeSet<Who> {
    let bytes = std::fs::read(dir.join(CLOSED)).unwrap();
    assert!(bytes.len().is_multiple_of(PAGE));
    let mut found = BTreeSet::new();
    let mut delivered = [0; 2];
    let mut told = Vec::new();
    for record in Reader::new(&bytes) {
        match record.unwrap() {
            Record::Packet(p) => {
                assert!(found.insert((p.interface, p.timestamp)), "{p:?} twice");
                delivered[p.interface as usize] += 1;
            }
            Record::Statistics(s) => told.push((s.interface, s.delivered.unwrap())),
            Record::Other(kind) => assert_eq!(kind, pcapng::FILL),
            Record::Section(_) | Record::Interface(_) => {}
        }
    }
    assert_eq!(told, [(0, delivered[0]), (1, delivered[1])]);
    // The other reader, and one that knows no more than the rules, go to the end too.
    assert_eq!(readable(&bytes), found);
    found
}

/// Recovers a live segment of these bytes. Returns its packets and what was told.
fn recovered(bytes: &[u8]) -> (BTreeSet<Who>, Finding) {
    let (_temp, dir) = store(&[(LIVE, bytes)]);
    let mut foretold = Vec::new();
    Store::examine(&dir, Scope { closed: ClosedScope::None, index: false }, |f| {
        foretold.push(copy(f));
    })
    .unwrap();
    assert_eq!(listing(&dir), [(LIVE.to_owned(), bytes.to_vec())], "examining changes nothing");
    let disk = Faulty::sound();
    let mut findings = recover(&dir, &disk, ClosedScope::None);
    assert_eq!(disk.violations(), Vec::<String>::new());
    assert_eq!(format!("{foretold:?}"), format!("{findings:?}"));
    let packets = check_closed(&dir);
    let after = listing(&dir);
    assert_eq!(after.len(), 1);
    // Once more, and nothing changes.
    let again = recover(&dir, &Faulty::sound(), ClosedScope::All);
    assert!(matches!(again[0].action, Action::None), "{again:?}");
    assert_eq!(again[0].packets, packets.len() as u64);
    assert_eq!(listing(&dir), after);
    let finding = findings.remove(0);
    assert!(matches!(finding.action, Action::Close), "{finding:?}");
    assert_eq!(finding.packets, packets.len() as u64);
    assert_eq!(finding.packets_before, readable(bytes).len() as u64);
    (packets, finding)
}

#[test]
fn a_segment_that_was_only_not_closed_loses_nothing() {
    let written = Written::new(1, 20);
    let mut told = None;
    for zeros in [0, 4096, 100_000] {
        let mut bytes = written.bytes.clone();
        bytes.resize(bytes.len() + zeros, 0);
        let (packets, finding) = recovered(&bytes);
        assert_eq!(packets, written.packets());
        assert_eq!((finding.bytes_cut, finding.bytes_replaced), (0, 0));
        told = Some(finding);
    }
    assert_eq!(told.unwrap().packets_before, written.packets().len() as u64);
}

#[test]
fn torn_writes_leave_every_whole_packet() {
    let mut replaced = 0;
    for seed in 0..150 {
        let written = Written::new(seed / 5, 12);
        let mut rng = SplitMix64(seed);
        let mut torn = written.bytes.clone();
        // The last writes, from a page on, and never the file's head.
        let pages = torn.len() / PAGE;
        let from = (1 + rng.below(pages - 1)) * PAGE;
        let often = [20, 200, 500, 900][rng.below(4)];
        for sector in torn[from..].chunks_mut(SECTOR) {
            if rng.per_mille(often) {
                sector.fill(0);
            }
        }
        if rng.per_mille(300) {
            let keep = from + rng.below((torn.len() - from) / SECTOR + 1) * SECTOR;
            torn.truncate(keep);
        }
        let (packets, finding) = recovered(&torn);
        let whole = written.whole_in(&torn);
        let missing: Vec<_> = whole.difference(&packets).collect();
        assert!(missing.is_empty(), "seed {seed}: {missing:?} of {}", whole.len());
        assert!(packets.is_superset(&readable(&torn)), "seed {seed}");
        assert!(packets.is_subset(&written.packets()), "seed {seed}: a packet nobody wrote");
        replaced += finding.bytes_replaced;
    }
    assert!(replaced > 0, "some damage was in the middle");
}

/// Farther than is read at once, and more than readers take as one block.
#[test]
fn a_block_of_another_type_is_damage() {
    let written = Written::new(9, 20);
    let mut bytes = written.bytes.clone();
    let (at, lost) = written.blocks.iter().filter(|block| block.1.is_some()).nth(7).unwrap();
    bytes[at.start + 1] = 9;
    let (_temp, dir) = store(&[(LIVE, &bytes)]);
    let findings = recover(&dir, &Faulty::sound(), ClosedScope::None);
    assert!(matches!(findings[0].action, Action::Close), "{findings:?}");
    assert_eq!(findings[0].bytes_replaced, at.len() as u64);
    let mut expected = written.packets();
    expected.remove(&lost.unwrap());
    assert_eq!(check_closed(&dir), expected);
}

/// Packets have more options while a ring is nearly full.
#[test]
fn packets_that_were_shed_behind_damage_stay() {
    let written = Written::new(3, 1);
    let head = written.blocks.iter().find(|block| block.1.is_some()).unwrap().0.start;
    let mut bytes = written.bytes[..head].to_vec();
    let mut expected = BTreeSet::new();
    for n in 0..60_u64 {
        let (at, frame) = (bytes.len(), vec![n as u8; 40 + n as usize]);
        let (flags, dropped) = (n as u32 & 1, (n / 2) & 1);
        bytes.resize(at + pcapng::packet_len(frame.len(), flags, dropped), 0);
        let time_ns = 1_767_323_045_000_000_000 + n;
        pcapng::write_packet(
            &mut bytes[at..],
            0,
            time_ns,
            [&frame, &[], &[]],
            1500,
            flags,
            dropped,
        );
        // All that is not there, or less.
        let shed = if n % 3 == 0 { 1460 - n as u32 } else { 1400 };
        pcapng::shed_packet(&mut bytes, at, shed);
        if n % 7 == 0 {
            // As long as the comments of the hook's programs.
            let len = if n % 2 == 0 { 68 } else { 36 };
            pcapng::comment_packet(&mut bytes, at, &format!("{:len$}", "shed: "));
        }
        if n == 3 {
            // No block has such a length.
            bytes[at + 4] = 1;
        } else {
            expected.insert((0, time_ns));
        }
    }
    assert_eq!(recovered(&bytes).0, expected);
}

#[test]
fn a_wide_gap_is_bridged() {
    let written = Written::new(2, 12);
    let whole: usize = written.blocks.iter().rposition(|b| b.0.start.is_multiple_of(PAGE)).unwrap();
    let at = written.blocks[whole].0.start;
    for rubbish in [0, 0xff] {
        let gap = vec![rubbish; 13 << 20];
        let torn = [&written.bytes[..at], &gap, &written.bytes[at..]].concat();
        let (packets, finding) = recovered(&torn);
        assert_eq!(packets, written.packets());
        assert_eq!(finding.bytes_replaced, gap.len() as u64);
        let (_temp, dir) = store(&[(LIVE, &torn)]);
        recover(&dir, &Faulty::sound(), ClosedScope::None);
        let after = std::fs::read(dir.join(CLOSED)).unwrap();
        assert!(blocks(&after).iter().all(|b| b.0.len() <= 1 << 20), "fill in pieces");
    }
}

#[test]
fn rubbish_never_costs_what_was_readable() {
    for seed in 0..60 {
        let written = Written::new(seed / 5, 12);
        let mut rng = SplitMix64(seed);
        let mut torn = written.bytes.clone();
        for _ in 0..=rng.below(6) {
            let at = PAGE + rng.below(torn.len() - PAGE) / 4 * 4;
            let end = torn.len().min(at + 1 + rng.below(2000));
            torn[at..end].iter_mut().for_each(|b| *b = rng.draw() as u8);
        }
        let (packets, _) = recovered(&torn);
        assert!(packets.is_superset(&readable(&torn)), "seed {seed}");
    }
}

#[test]
fn wherever_a_copy_is_cut_all_before_it_stays() {
    let written = Written::new(3, 4);
    let head = written.blocks.iter().position(|b| b.1.is_some()).unwrap();
    for (block, _) in &written.blocks[head..] {
        for off in [-12_i64, -8, -4, -1, 0, 1, 4, 8, 12, 20] {
            let end = (block.end as i64 + off) as usize;
            let cut = &written.bytes[..end.min(written.bytes.len())];
            let (packets, finding) = recovered(cut);
            assert_eq!(packets, written.whole_in(cut), "cut at {end}");
            assert_eq!(finding.bytes_replaced, 0);
            if off == 0 {
                assert_eq!(finding.bytes_cut, 0);
            }
        }
    }
}

/// Whichever step fails, and whatever a failed write leaves, the next recovery comes to the same
/// end.
#[test]
fn a_recovery_that_is_cut_short_is_finished_by_the_next() {
    let written = Written::new(9, 12);
    let mut torn = written.bytes.clone();
    let middle = written.blocks[written.blocks.len() / 2].0.start / SECTOR * SECTOR;
    torn[middle..middle + 3 * SECTOR].fill(0);
    torn.truncate(torn.len() - 5000);
    let (expected, _) = recovered(&torn);
    assert_eq!(expected, written.whole_in(&torn));
    let mut failed = 0;
    for seed in 0..60 {
        let (_temp, dir) = store(&[(LIVE, &torn)]);
        let odds = Odds { torn: 800, rename: 200, sync: 200, sync_dir: 200, ..Odds::default() };
        let disk = Faulty::new(seed, odds);
        disk.fail_write(1 + seed % 6, Errno::IO);
        let findings = recover(&dir, &disk, ClosedScope::None);
        failed += usize::from(matches!(findings[0].action, Action::Fail(Fault::Io(_))));
        assert_eq!(disk.violations(), Vec::<String>::new());
        recover(&dir, &Faulty::sound(), ClosedScope::None);
        assert_eq!(check_closed(&dir), expected, "seed {seed}");
    }
    assert!(failed > 20, "{failed} attempts failed");
}

#[test]
fn a_segment_that_was_closed_but_for_its_name_keeps_its_statistics() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(2);
    producers[0].push(10_000);
    producers[1].lose(7);
    Setup::new(1 << 20).record(&dir, Faulty::sound(), ends);
    let name = names(&dir).remove(0);
    let before = std::fs::read(dir.join(&name)).unwrap();
    std::fs::rename(dir.join(&name), dir.join(name.clone() + ".live")).unwrap();
    let findings = recover(&dir, &Faulty::sound(), ClosedScope::None);
    assert!(matches!(findings[0].action, Action::Close));
    assert_eq!(listing(&dir), [(name.clone(), before.clone())]);
    assert_eq!(read_bytes(&name, &before).dropped(), 7);

    // The same where the name is there and the statistics are torn: they are made anew.
    std::fs::write(dir.join(&name), &before[..before.len() - PAGE + 60]).unwrap();
    assert!(recover(&dir, &Faulty::sound(), ClosedScope::None).is_empty());
    let findings = recover(&dir, &Faulty::sound(), ClosedScope::Unended);
    assert!(matches!(findings[0].action, Action::Close));
    let after = std::fs::read(dir.join(&name)).unwrap();
    assert_eq!(read_bytes(&name, &after).packets, producers[0].offered);
    assert!(recover(&dir, &Faulty::sound(), ClosedScope::Unended).is_empty(), "it has its end");
}

#[test]
fn damage_in_the_middle_of_a_closed_segment_is_found_where_all_is_read() {
    let written = Written::new(4, 12);
    let (_temp, dir) = store(&[(LIVE, &written.bytes)]);
    recover(&dir, &Faulty::sound(), ClosedScope::None);
    let mut bytes = std::fs::read(dir.join(CLOSED)).unwrap();
    let at = written.blocks.iter().position(|b| b.1.is_some()).unwrap();
    bytes[written.blocks[at].0.start..][..8].fill(0xff);
    std::fs::write(dir.join(CLOSED), &bytes).unwrap();
    assert!(recover(&dir, &Faulty::sound(), ClosedScope::Unended).is_empty());
    let disk = Faulty::sound();
    let findings = recover(&dir, &disk, ClosedScope::All);
    assert_eq!(disk.violations(), Vec::<String>::new());
    assert!(matches!(findings[0].action, Action::Close));
    assert_eq!(findings[0].packets_before, 0);
    let mut left = written.packets();
    left.remove(&written.blocks[at].1.unwrap());
    assert_eq!(check_closed(&dir), left);
    // The damaged bytes themselves are still there, but for the filling's ends.
    let after = std::fs::read(dir.join(CLOSED)).unwrap();
    let block = written.blocks[at].0.clone();
    let inner = block.start + 8..block.end - 4;
    assert_eq!(after[inner.clone()], bytes[inner]);
}

/// A recorded download of a capture file: whose packets it holds, they were not on this wire.
#[test]
fn packets_inside_a_packet_are_not_taken_for_packets() {
    let inner = |n: u64| {
        let mut block = vec![0; pcapng::packet_len(60, 0, 0)];
        pcapng::write_packet(&mut block, 0, n, [&[7; 60], &[], &[]], 60, 0, 0);
        block
    };
    let download: Vec<u8> = (900..915).flat_map(inner).collect();
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "Linux", "tapdeck 0.1.0", None);
    for interface in interfaces(2) {
        pcapng::interface_description(&mut bytes, &interface);
    }
    let gap = PAGE - bytes.len();
    pcapng::fill(&mut bytes, gap);
    let mut begins = Vec::new();
    for n in 0..40 {
        begins.push(bytes.len());
        let len = download.len();
        let mut block = vec![0; pcapng::packet_len(len, 0, 0)];
        let len = len as u32;
        pcapng::write_packet(&mut block, 0, n, [&download, &[], &[]], len, 0, 0);
        bytes.extend(block);
    }
    let all: BTreeSet<Who> = (0..40).map(|n| (0, n)).collect();
    for (n, begin) in begins.into_iter().enumerate() {
        // The sector in which the packet begins.
        let mut torn = bytes.clone();
        let sector = begin / SECTOR * SECTOR;
        torn[sector..sector + SECTOR].fill(0);
        let (packets, _) = recovered(&torn);
        assert!(packets.is_subset(&all), "{packets:?}");
        assert!(packets.len() >= 38 && !packets.contains(&(0, n as u64)), "{n}: {packets:?}");
        // Its beginning is whole and its end is not.
        let mut torn = bytes.clone();
        torn.truncate(begin + pcapng::packet_len(download.len(), 0, 0) - 300);
        assert_eq!(recovered(&torn).0, (0..n as u64).map(|n| (0, n)).collect());
    }
}

#[test]
fn what_holds_no_packet_is_set_aside_and_what_may_hold_some_is_left() {
    let written = Written::new(5, 6);
    let mut headless = written.bytes.clone();
    headless[..PAGE].fill(0);
    let mut half = written.bytes.clone();
    // The section header is whole, the second interface is not.
    let second = written.blocks[2].0.clone();
    half[second.start..second.start + 8].fill(0);
    let zeros = vec![0; 3 * PAGE];
    let name = |n: u32| format!("tapdeck-{n:08}-20260102T030405Z.pcapng.live");
    let files: Vec<(String, &[u8])> = vec![
        (name(1), &[]),
        (name(2), &zeros),
        (name(3), &written.bytes[..50]),
        (name(4), &headless),
        (name(5), &half),
        (name(6), &written.bytes[..PAGE]),
    ];
    let files: Vec<(&str, &[u8])> = files.iter().map(|f| (f.0.as_str(), f.1)).collect();
    let (_temp, dir) = store(&files);
    let findings = recover(&dir, &Faulty::sound(), ClosedScope::None);
    for (i, finding) in findings.iter().enumerate() {
        let path = dir.join(files[i].0);
        let aside = dir.join(format!("{}.damaged", files[i].0));
        match i {
            0..3 => {
                assert!(matches!(finding.action, Action::SetAside), "{finding:?}");
                assert!(!path.exists());
                assert_eq!(std::fs::read(aside).unwrap(), files[i].1);
            }
            3 | 4 => {
                assert!(matches!(finding.action, Action::Fail(Fault::Head)), "{finding:?}");
                assert_eq!(std::fs::read(path).unwrap(), files[i].1);
            }
            _ => assert!(matches!(finding.action, Action::Close), "{finding:?}"),
        }
    }
    assert_eq!(findings.len(), 6);
}

#[test]
fn no_file_takes_the_place_of_another() {
    let written = Written::new(6, 4);
    let closed: &[u8] = b"somebody's";
    for (there, live) in [(CLOSED.to_owned(), &written.bytes[..]), (format!("{LIVE}.damaged"), &[])]
    {
        let files: [(&str, &[u8]); 2] = [(LIVE, live), (&there, closed)];
        let (_temp, dir) = store(&files);
        let before = listing(&dir);
        let findings = recover(&dir, &Faulty::sound(), ClosedScope::None);
        assert!(
            matches!(&findings[0].action, Action::Fail(Fault::Exists(name)) if *name == there),
            "{findings:?}"
        );
        assert_eq!(listing(&dir), before);
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let mut other = Vec::new();
    pcapng::section_header(&mut other, "Linux", "Dumpcap (Wireshark) 4.0.0", None);
    let cut = &other[..other.len() - 4];
    let (_temp, dir) = store(&[
        (LIVE, &other),
        ("tapdeck-00000002-20260102T030405Z.pcapng", &other),
        ("tapdeck-00000003-20260102T030405Z.pcapng", cut),
        ("tapdeck-00000004-20260102T030405Z.pcapng", b""),
        ("tapdeck-00000005-20260102T030405Z.pcapng.live.bak", b""),
        ("evidence.pcapng.live", b"notes"),
    ]);
    let link = dir.join("tapdeck-00000006-20260102T030405Z.pcapng.live");
    std::os::unix::fs::symlink("evidence.pcapng.live", &link).unwrap();
    let before = listing(&dir);
    assert!(recover(&dir, &Faulty::sound(), ClosedScope::All).is_empty());
    assert_eq!(listing(&dir), before);
    assert!(link.is_symlink());
}

#[test]
fn a_running_recorder_keeps_its_segments() {
    let (_temp, dir) = directory();
    let (mut producers, ends) = rings(1);
    producers[0].push(10_000);
    let run = Setup::new(1 << 20).start(&dir, Faulty::sound(), ends);
    wait_for("it to be written", || run.packets() == producers[0].offered.len() as u64);
    assert!(is_live(&names(&dir)[0]));
    let refused = Store::examine(&dir, Scope { closed: ClosedScope::None, index: false }, |f| {
        panic!("{f:?}")
    });
    assert!(matches!(refused, Err(Error::InUse { pid: Some(_), .. })), "{refused:?}");
    run.stop().unwrap();
    Store::examine(&dir, Scope { closed: ClosedScope::None, index: false }, |f| panic!("{f:?}"))
        .unwrap();
}
