//! What `stat` tells of a store is what the packets in it add up to: with indexes, with a part of
//! them or none, over any span, and while segments are written, deleted and damaged.

mod common;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use common::{Setup, directory, offered, rings};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::io::{Disk, PAGE};
use tapdeck_store::query::{Error, Note, Span};
use tapdeck_store::stat::{Gap, Question, Report, stat};
use tapdeck_store::{ClosedScope, Scope, SegmentName, Shed, Store};
use tapdeck_testkit::{SplitMix64, wait_for};

const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;
/// Two rings of one interface and one of another.
const RINGS: [&str; 3] = ["eth0", "eth0", "eth1"];

#[derive(Clone, Debug)]
struct Packet {
    time_ns: i64,
    ring: u32,
    dropped: u64,
    shed: u32,
    hosts: [u32; 2],
    ports: [u16; 2],
    len: usize,
}

impl Packet {
    fn at(time_ns: i64) -> Self {
        let (hosts, ports) = ([1, 2], [1000, 53]);
        Self { time_ns, ring: 0, dropped: 0, shed: 0, hosts, ports, len: 60 }
    }

    /// UDP over IPv4 from one of `10.0.0.0/8` to another.
    fn frame(&self) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0];
        f.extend([64, 17, 0, 0]);
        f.extend(self.hosts.iter().flat_map(|host| (0x0a00_0000 + host).to_be_bytes()));
        f.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        f.resize(self.len, 7);
        f
    }
}

fn host(n: u32) -> IpAddr {
    std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
}

fn fill(bytes: &mut Vec<u8>) {
    match bytes.len().next_multiple_of(PAGE) - bytes.len() {
        0 => {}
        gap @ 1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + PAGE),
        gap => pcapng::fill(bytes, gap),
    }
}

/// Writes a segment. Where it is closed, its statistics tell of as many losses as its packets, and
/// `behind` more or less.
fn write(dir: &Path, number: u64, live: bool, packets: &[Packet], behind: i64) -> PathBuf {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    for (ring, name) in RINGS.iter().enumerate() {
        let description = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: (*name).into(),
            description: format!("ring {ring}"),
            filter: None,
            hardware: None,
            mac: None,
        };
        pcapng::interface_description(&mut bytes, &description);
    }
    fill(&mut bytes);
    for chunk in packets.chunk_by(|a, b| a.ring == b.ring) {
        for p in chunk {
            let (at, frame) = (bytes.len(), p.frame());
            bytes.resize(at + pcapng::packet_len(frame.len(), 0, p.dropped), 0);
            // Of every other packet more than what was shed is not there.
            let time_ns = p.time_ns as u64;
            let len = frame.len() as u32 + p.shed + (p.shed & 1);
            let frame = [&frame[..], &[], &[]];
            pcapng::write_packet(&mut bytes[at..], p.ring, time_ns, frame, len, 0, p.dropped);
            if p.shed > 0 {
                pcapng::shed_packet(&mut bytes, at, p.shed);
            }
        }
        fill(&mut bytes);
    }
    let times = packets.iter().map(|p| p.time_ns);
    let (first, last) = (times.clone().min().unwrap_or(T0), times.max().unwrap_or(T0));
    for interface in (0..RINGS.len() as u32).take_while(|_| !live) {
        let of = || packets.iter().filter(move |p| p.ring == interface);
        let behind = if interface == 0 { behind } else { 0 };
        let dropped = of().map(|p| p.dropped).sum::<u64>().saturating_add_signed(behind);
        let delivered = of().count() as u64;
        let (time_ns, received) = (last as u64 + 5, delivered + dropped);
        let block = StatisticsBlock {
            interface,
            time_ns,
            start_ns: first as u64,
            end_ns: time_ns,
            received,
            accepted: received,
            dropped,
            delivered,
            unseen: 0,
            comment: None,
        };
        pcapng::statistics(&mut bytes, &block);
    }
    fill(&mut bytes);
    let path = SegmentName { number, began_s: first / SECOND, live }.path(dir);
    fs::write(&path, bytes).unwrap();
    path
}

/// Packets of several segments, which overlap in time. Some tell of losses. Host 0 is in all of
/// them; from the first second on there are many.
fn traffic(rng: &mut SplitMix64) -> Vec<Vec<Packet>> {
    let mut times = [T0; RINGS.len()];
    let mut segment = |rng: &mut SplitMix64| {
        let mut packets = Vec::new();
        for _ in 0..10 + rng.below(30) {
            let ring = rng.below(RINGS.len());
            for _ in 0..=rng.below(200) {
                times[ring] += rng.below(20_000_000);
                packets.push(Packet {
                    time_ns: times[ring] - rng.below(1_000_000),
                    ring: ring as u32,
                    dropped: if rng.per_mille(5) { 1 + rng.below(9) as u64 } else { 0 },
                    shed: if rng.per_mille(30) { 1 + rng.below(1400) as u32 } else { 0 },
                    hosts: [0, 1 + rng.below(200) as u32],
                    ports: [1024 + rng.below(60_000) as u16, [53, 443][rng.below(2)]],
                    len: 60 + rng.below(1400),
                });
            }
        }
        packets
    };
    (0..3 + rng.below(3)).map(|_| segment(rng)).collect()
}

fn index(dir: &Path) {
    let scope = Scope { closed: ClosedScope::Unended, index: true };
    let mut store = Store::open(dir).unwrap();
    store.recover(&Disk::new(false), scope, |_| {}).unwrap();
}

fn ask(dir: &Path, span: Span) -> Report {
    stat(dir, Question { span, top: 10 }, |_, _| true).unwrap()
}

/// Files of a store that end as told.
fn files(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = entries.filter(|p| p.to_str().unwrap().ends_with(end)).collect();
    files.sort();
    files
}

/// Everything that is known exactly.
fn assert_tells(report: &Report, segments: &[Vec<Packet>], span: Span, what: &str) {
    let within =
        || segments.iter().flatten().filter(|p| span.contains(p.time_ns)).collect::<Vec<_>>();
    let packets = within();
    assert_eq!(report.packets, packets.len() as u64, "{what}");
    let times = packets.iter().map(|p| p.time_ns);
    assert_eq!(report.times, times.clone().min().zip(times.max()), "{what}");
    let lost: u64 = packets.iter().map(|p| p.dropped).sum();
    assert_eq!(report.gaps.lost(), lost, "{what}");
    for p in packets.iter().filter(|p| p.dropped > 0) {
        let tells = |gap: &&Gap| {
            gap.interface.as_deref() == Some(RINGS[p.ring as usize])
                && (gap.first_ns..=gap.last_ns).contains(&p.time_ns)
        };
        assert_eq!(report.gaps.list.iter().filter(tells).count(), 1, "{what}: {p:?}");
    }
    let mut shed = Shed::default();
    for p in &packets {
        shed.add_packet(p.shed);
    }
    assert_eq!(report.shed.lost(), shed, "{what}");
    for p in packets.iter().filter(|p| p.shed > 0) {
        let tells = |gap: &&Gap<Shed>| {
            gap.interface.as_deref() == Some(RINGS[p.ring as usize])
                && (gap.first_ns..=gap.last_ns).contains(&p.time_ns)
        };
        assert_eq!(report.shed.list.iter().filter(tells).count(), 1, "{what}: {p:?}");
    }
    let unusable: Vec<_> = report.unusable.iter().collect();
    assert_eq!((&report.notes[..], &unusable[..]), (&[][..], &[][..]), "{what}");
    let Some((first, last)) = report.times else { return };
    for parts in [1, 7, 60] {
        let parts = report.rate.parts(parts, first, last);
        let sum: f64 = parts.iter().map(|a| a.packets).sum();
        assert!((sum - packets.len() as f64).abs() < 0.01, "{what}: {sum} in the chart");
    }
    // Who is in all packets is in all pieces, and nobody is in more.
    let [hosts, ports] = [&report.hosts.list[0], &(host(0), report.ports.list[0].1)];
    assert_eq!(*hosts, (host(0), report.hosts.of), "{what}");
    assert!(ports.1 <= report.ports.of, "{what}");
}

#[test]
fn what_is_told_is_what_there_is() {
    for seed in 0..4 {
        let rng = &mut SplitMix64(seed);
        let (_temp, dir) = directory();
        fs::create_dir(&dir).unwrap();
        let segments = traffic(rng);
        let last = segments.len() - 1;
        for (i, packets) in segments.iter().enumerate().take(last) {
            write(&dir, i as u64 + 1, false, packets, 0);
        }
        index(&dir);
        write(&dir, last as u64 + 1, true, &segments[last], 0);

        let all = ask(&dir, Span::ALL);
        assert_tells(&all, &segments, Span::ALL, &format!("seed {seed}"));
        assert_eq!((all.segments, all.live), (segments.len() as u64, 1));
        let sizes = |end| files(&dir, end).iter().map(|p| p.metadata().unwrap().len()).sum::<u64>();
        assert_eq!(all.bytes_stored, sizes(".pcapng") + sizes(".live"));
        assert_eq!((all.index_bytes, all.not_indexed), (sizes(".index"), 0));

        for _ in 0..12 {
            let mut point = || {
                let segment = &segments[rng.below(segments.len())];
                segment[rng.below(segment.len())].time_ns + rng.below(3) - 1
            };
            let (a, b) = (point(), point());
            let span = Span { after_ns: a.min(b), before_ns: a.max(b) };
            let what = format!("seed {seed}, {span:?}");
            let report = ask(&dir, span);
            assert_tells(&report, &segments, span, &what);
            assert!(report.hosts.of <= all.hosts.of, "{what}");
            assert!(report.bytes_stored < all.bytes_stored, "{what}");
            // Also where the border goes through segments that have no index.
            let index = files(&dir, ".index").remove(rng.below(last));
            let bytes = fs::read(&index).unwrap();
            fs::remove_file(&index).unwrap();
            let without = ask(&dir, span);
            assert_eq!(
                (without.packets, without.gaps.lost()),
                (report.packets, report.gaps.lost())
            );
            assert!(without.not_indexed <= 1);
            fs::write(index, bytes).unwrap();
        }
    }
}

#[test]
fn without_indexes_the_statistics_tell() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let segments = traffic(&mut SplitMix64(7));
    let closed: Vec<PathBuf> = (1..)
        .zip(&segments)
        .map(|(number, packets)| write(&dir, number, false, packets, 0))
        .collect();
    let report = ask(&dir, Span::ALL);
    assert_eq!(report.not_indexed, segments.len() as u64);
    assert_eq!(report.packets, segments.iter().map(Vec::len).sum::<usize>() as u64);
    let packets = || segments.iter().flatten();
    assert_eq!(report.gaps.lost(), packets().map(|p| p.dropped).sum::<u64>());
    // Each ring is in order but for a millisecond, and any of them ends a segment.
    let (first, last) = report.times.unwrap();
    let times = || packets().map(|p| p.time_ns);
    assert!(first - times().min().unwrap() < SECOND && first >= times().min().unwrap());
    assert!(last > segments[segments.len() - 1].iter().map(|p| p.time_ns).min().unwrap());
    assert!(last <= times().max().unwrap());
    assert_eq!((report.hosts.of, report.hosts.list.len()), (0, 0));
    assert_eq!(report.index_bytes, 0);

    // One that was cut short has no statistics, so it is read.
    let bytes = fs::read(&closed[0]).unwrap();
    fs::write(&closed[0], &bytes[..bytes.len() / PAGE * PAGE - PAGE]).unwrap();
    let cut = ask(&dir, Span::ALL);
    assert_eq!((cut.packets, cut.not_indexed), (report.packets, report.not_indexed - 1));
    assert!(cut.hosts.of > 0 && cut.hosts.list[0] == (host(0), cut.hosts.of));
}

#[test]
fn hosts_and_ports_are_counted_by_pieces() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    // More than a piece between the rare ones.
    let mut packets: Vec<Packet> =
        (0..2000).map(|i| Packet { len: 1000, ..Packet::at(T0 + i * 1_000_000) }).collect();
    packets[100] = Packet { hosts: [77, 2], ports: [7, 53], ..packets[100].clone() };
    packets[101] = Packet { hosts: [1, 77], ports: [1000, 7], ..packets[101].clone() };
    packets[1500] = Packet { hosts: [88, 77], ports: [8, 7], ..packets[1500].clone() };
    write(&dir, 1, false, &packets, 0);
    index(&dir);
    let report = ask(&dir, Span::ALL);
    let of = report.hosts.of;
    assert!(of > 10);
    assert_eq!(report.hosts.list, [(host(1), of), (host(2), of), (host(77), 2), (host(88), 1)]);
    assert_eq!(report.ports.list, [(53, of), (1000, of), (7, 2), (8, 1)]);
    assert_eq!((report.hosts.unlisted, report.hosts.about), (0, false));

    let span = Span { after_ns: packets[1000].time_ns, before_ns: i64::MAX };
    let report = ask(&dir, span);
    assert!(report.hosts.of < of && report.hosts.of > of / 3);
    assert_eq!(report.hosts.list[2..], [(host(77), 1), (host(88), 1)]);
    let none = stat(&dir, Question { span, top: 0 }, |_, _| true).unwrap();
    assert_eq!((none.hosts.list, none.hosts.of), (vec![], 0));
}

/// Hosts of a flood are too many to be listed; the one that they flood is.
#[test]
fn a_flood_is_told_as_one() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let rng = &mut SplitMix64(1);
    let packets: Vec<Packet> = (0..60_000)
        .map(|i| Packet { hosts: [rng.draw() as u32 >> 8, 2], ..Packet::at(T0 + i * 1000) })
        .collect();
    write(&dir, 1, false, &packets, 0);
    index(&dir);
    let report = ask(&dir, Span::ALL);
    assert_eq!(report.hosts.list, [(host(2), report.hosts.of)]);
    assert_eq!((report.hosts.unlisted, report.ports.unlisted), (report.hosts.of, 0));
}

#[test]
fn losses_are_told_once_and_behind_the_last_packet_too() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let at = |s: i64, dropped| Packet { dropped, ..Packet::at(T0 + s * SECOND) };
    // The first recording ends with 4 lost. What is lost behind the second segment, the third
    // tells.
    write(&dir, 1, false, &[at(0, 3), at(1, 0)], 4);
    write(&dir, 2, false, &[at(100, 0), at(101, 0)], 5);
    write(&dir, 3, false, &[at(200, 5), at(205, 7)], -5);
    index(&dir);
    let report = ask(&dir, Span::ALL);
    let gap = |interface: Option<&str>, first_s: i64, last_s: i64, lost| Gap {
        interface: interface.map(str::to_owned),
        first_ns: T0 + first_s * SECOND,
        last_ns: T0 + last_s * SECOND,
        lost,
    };
    let (eth0, expected) = (Some("eth0"), 3 + 4 + 12);
    let gaps = [gap(eth0, 0, 1, 3), gap(None, 1, 1, 4), gap(eth0, 200, 205, 12)];
    assert_eq!((&report.gaps.list[..], report.gaps.lost()), (&gaps[..], expected));
    // The same without indexes, but for where it was.
    for path in files(&dir, ".index") {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(ask(&dir, Span::ALL).gaps.lost(), expected);

    let span = Span { after_ns: T0, before_ns: T0 + 102 * SECOND };
    assert_eq!(ask(&dir, span).gaps.lost(), 3);
}

#[test]
fn segments_that_are_deleted_meanwhile_are_told() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let segments = traffic(&mut SplitMix64(3));
    (1..).zip(&segments).for_each(|(number, packets)| _ = write(&dir, number, false, packets, 0));
    index(&dir);
    let watch = |done: usize, total: usize| {
        assert_eq!(total, segments.len());
        if done == 0 {
            fs::remove_file(&files(&dir, ".pcapng")[1]).unwrap();
            fs::remove_file(&files(&dir, ".index")[1]).unwrap();
        }
        true
    };
    let gone = files(&dir, ".pcapng").remove(1);
    let report = stat(&dir, Question { span: Span::ALL, top: 1 }, watch).unwrap();
    let name = gone.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(report.notes, [Note::Deleted(name)]);
    assert_eq!(report.segments, segments.len() as u64 - 1);
    let left = segments.iter().map(Vec::len).sum::<usize>() - segments[1].len();
    assert_eq!(report.packets, left as u64);
    // Who wants no more gets what was told so far.
    let first = stat(&dir, Question { span: Span::ALL, top: 1 }, |done, _| done == 0).unwrap();
    assert_eq!((first.segments, first.packets), (1, segments[0].len() as u64));
}

#[test]
fn segments_that_are_missing_in_the_middle_are_told() {
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let segments = traffic(&mut SplitMix64(4));
    // Of the numbers from 1 on, 2, 4 and 5 have no file.
    let numbers = [1, 3, 6];
    let written: Vec<PathBuf> =
        numbers.into_iter().zip(&segments).map(|(n, p)| write(&dir, n, false, p, 0)).collect();
    index(&dir);
    let missing = |at: usize, first, last| {
        let segment = written[at].file_name().unwrap().to_str().unwrap().to_owned();
        // Less than a minute of traffic is before it.
        let from_ns = segments[at - 1].iter().map(|p| p.time_ns).min().unwrap();
        Note::Hole { segment, first, last, from_ns }
    };
    let notes = ask(&dir, Span::ALL).notes;
    assert_eq!(notes, [missing(1, 2, 2), missing(2, 4, 5)]);
    assert!(notes.iter().all(Note::is_fault));
    assert!(notes[1].to_string().contains("segments 4 to 5 are missing"), "{}", notes[1]);
    // What recovery set aside is not missing, nor what was deleted behind that.
    let empty = |number: u64| {
        let segment = SegmentName { number, began_s: T0 / SECOND, live: true };
        PathBuf::from(format!("{}.damaged", segment.path(&dir).display()))
    };
    fs::write(empty(2), []).unwrap();
    assert_eq!(ask(&dir, Span::ALL).notes, [missing(2, 4, 5)]);
    fs::rename(empty(2), empty(0)).unwrap();
    assert_eq!(ask(&dir, Span::ALL).notes, [missing(1, 2, 2), missing(2, 4, 5)]);
    fs::rename(&written[0], written[0].with_extension("away")).unwrap();
    assert_eq!(ask(&dir, Span::ALL).notes, [missing(2, 4, 5)]);
    fs::rename(written[0].with_extension("away"), &written[0]).unwrap();
    // What is missing before the span is not missing in it.
    let first = |packets: &[Packet]| packets.iter().map(|p| p.time_ns).min().unwrap();
    let last = segments.iter().flatten().map(|p| p.time_ns).max().unwrap();
    let after_ns = first(&segments[2]).max(first(&segments[1])) + SECOND;
    let span = Span { after_ns: after_ns.min(last), before_ns: i64::MAX };
    assert_eq!(ask(&dir, span).notes, []);
    // It may begin within a span that ends before what is behind it.
    let span = Span { after_ns: i64::MIN, before_ns: first(&segments[1]) };
    assert_eq!(ask(&dir, span).notes, [missing(1, 2, 2)]);
}

#[test]
fn a_damaged_index_is_told_and_packets_are_counted_all_the_same() {
    let rng = &mut SplitMix64(11);
    let (_temp, dir) = directory();
    fs::create_dir(&dir).unwrap();
    let segments = traffic(rng);
    (1..).zip(&segments).for_each(|(number, packets)| _ = write(&dir, number, false, packets, 0));
    index(&dir);
    let whole = ask(&dir, Span::ALL);
    let path = files(&dir, ".index").remove(0);
    let bytes = fs::read(&path).unwrap();
    let mut told = 0;
    for round in 0..100 {
        let mut damaged = bytes.clone();
        let at = rng.below(bytes.len());
        if round % 10 == 0 {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << rng.below(8);
        }
        fs::write(&path, damaged).unwrap();
        let report = ask(&dir, Span::ALL);
        assert_eq!((report.packets, report.gaps.lost()), (whole.packets, whole.gaps.lost()));
        assert!(report.unusable.len() <= 1 && report.notes.is_empty(), "{report:?}");
        if report.unusable.is_empty() {
            // It was behind the sections, where nothing stands, or in what nobody asks for.
            assert_eq!((report.hosts, report.ports), (whole.hosts.clone(), whole.ports.clone()));
        } else {
            told += 1;
        }
    }
    assert!(told > 10, "{told}");
}

/// A store in the midst of being recorded: a segment with the log of an index, which is behind.
#[test]
fn all_that_is_on_disk_is_told_while_it_is_recorded() {
    let (_temp, dir) = directory();
    let (mut producers, consumers) = rings(2);
    let setup = Setup { indexed: true, ..Setup::new(1 << 20) };
    let run = setup.start(&dir, Disk::new(false), consumers);
    let rng = &mut SplitMix64(5);
    for _ in 0..8 {
        for producer in &mut producers {
            (0..20).for_each(|_| producer.push_any(rng));
        }
        let there = offered(&producers).len() as u64;
        wait_for("all packets", || {
            let report = ask(&dir, Span::ALL);
            assert!(report.packets <= there && report.notes.is_empty(), "{report:?}");
            assert!(report.unusable.is_empty(), "{report:?}");
            report.packets == there
        });
    }
    run.stop().unwrap();
    let report = ask(&dir, Span::ALL);
    assert_eq!((report.packets, report.live), (offered(&producers).len() as u64, 0));
    assert!(report.segments > 2 && report.index_bytes > 0);
}

#[test]
fn what_is_no_store_is_refused() {
    let (temp, dir) = directory();
    let question = Question { span: Span::ALL, top: 10 };
    let fails = |path: &Path| stat(path, question, |_, _| true).unwrap_err();
    assert!(matches!(fails(&dir), Error::NotFound(path) if path == dir));
    fs::create_dir(&dir).unwrap();
    assert!(matches!(fails(&dir), Error::NotAStore(_)));
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(fails(&file), Error::NotADirectory(_)));
    // A store of which nothing is left, or nothing was recorded yet.
    drop(Store::open(&dir).unwrap());
    let report = ask(&dir, Span::ALL);
    assert_eq!((report.segments, report.packets, report.times), (0, 0, None));
    assert_eq!(report.gaps.count(), 0);
}
