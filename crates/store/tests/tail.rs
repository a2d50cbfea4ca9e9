//! An answer that follows a store: each packet once, wherever what was written ends at a look.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use tapdeck_packet::key::Plan;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_store::SegmentName;
use tapdeck_store::query::{Note, Packet, Query, Snapshot, Span, Tail};
use tapdeck_testkit::{SplitMix64, wait_for};

const SECOND: u64 = 1_000_000_000;
const T0: u64 = 1_767_323_045 * SECOND;

fn everything(_: &Packet<'_>) -> bool {
    true
}

type Everything = fn(&Packet<'_>) -> bool;

/// What an answer has given by now.
#[derive(Default)]
struct Given {
    numbers: Vec<u64>,
    dropped: Vec<u64>,
    interfaces: Vec<String>,
    notes: Vec<Note>,
}

impl Given {
    /// Takes a round, to its end.
    fn round(&mut self, mut query: Query<Everything>) -> Tail {
        self.interfaces = query.snapshot().interfaces().iter().map(|i| i.name.clone()).collect();
        while let Some(packet) = query.next_packet(|_| true).expect("it can be read") {
            self.numbers.push(u64::from_be_bytes(packet.frame[..8].try_into().expect("8 bytes")));
            self.dropped.extend((packet.dropped > 0).then_some(packet.dropped));
        }
        self.notes.extend(query.take_notes());
        query.tail()
    }

    fn first(&mut self, dir: &Path) -> Tail {
        let mut snapshot = Snapshot::open(dir, Span::ALL).expect("a store");
        assert!(snapshot.follow());
        self.round(Query::new(snapshot, Span::ALL, Plan::All, everything as Everything))
    }

    /// Takes a round more, if anything has come.
    fn next(&mut self, mut tail: Tail) -> Tail {
        match tail.grown(Span::ALL).expect("a store") {
            None => tail,
            Some(snapshot) => {
                let everything = everything as Everything;
                self.round(Query::go_on(tail, snapshot, Span::ALL, Plan::All, everything))
            }
        }
    }
}

fn name(number: u64, live: bool) -> SegmentName {
    SegmentName { number, began_s: (T0 / SECOND) as i64, live }
}

fn head(interface: &str) -> Vec<u8> {
    let mut head = Vec::new();
    pcapng::section_header(&mut head, "linux", "tapdeck 0.1.0", None);
    let interface = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: interface.into(),
        description: "hook tcx, CPU 0".into(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut head, &interface);
    head
}

/// The blocks of packets with these numbers, `dropped` packets lost before each.
fn packets(numbers: std::ops::Range<u64>, dropped: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        let mut frame = number.to_be_bytes().to_vec();
        frame.resize(60 + (number % 40) as usize, 0);
        let start = bytes.len();
        bytes.resize(start + pcapng::packet_len(frame.len(), 0, dropped), 0);
        let (len, time_ns) = (frame.len() as u32, T0 + number * 1000);
        let block = &mut bytes[start..];
        pcapng::write_packet(block, 0, time_ns, [&frame, &[], &[]], len, 0, dropped);
    }
    bytes
}

fn append(dir: &Path, name: &SegmentName, bytes: &[u8]) {
    let file = OpenOptions::new().append(true).create(true).open(name.path(dir));
    file.and_then(|mut file| file.write_all(bytes)).expect("room on the disk");
}

#[test]
fn each_packet_comes_once_wherever_a_look_finds_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut random = SplitMix64(17);
    let (mut given, mut written) = (Given::default(), 0);
    let mut tail = None;
    for number in 1..=4 {
        // The last has another interface.
        append(dir, &name(number, true), &head(if number < 4 { "eth0" } else { "eth1" }));
        let bytes = packets(written..written + 300, 0);
        written += 300;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at((random.draw() as usize % 4000).min(rest.len()));
            append(dir, &name(number, true), now);
            rest = later;
            tail = Some(match tail.take() {
                None => given.first(dir),
                Some(tail) => given.next(tail),
            });
        }
        // The third stays as a crash leaves it.
        if number != 3 {
            let (live, closed) = (name(number, true), name(number, false));
            fs::rename(live.path(dir), closed.path(dir)).expect("it is there");
        }
    }
    let mut tail = tail;
    wait_for("all packets", || {
        tail = tail.take().map(|tail| given.next(tail));
        given.numbers.len() as u64 >= written
    });
    given.next(tail.expect("it goes on"));
    assert_eq!(given.numbers, (0..written).collect::<Vec<u64>>());
    assert_eq!(given.interfaces, ["eth0", "eth1"]);
    assert_eq!(given.notes, []);
}

#[test]
fn a_loss_is_told_by_the_next_packet_of_a_later_round() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    append(dir, &name(1, true), &[head("eth0"), packets(0..1, 0), packets(1..2, 7)].concat());
    let even = |packet: &Packet<'_>| packet.frame[7].is_multiple_of(2);
    let mut snapshot = Snapshot::open(dir, Span::ALL).expect("a store");
    assert!(snapshot.follow());
    let mut query = Query::new(snapshot, Span::ALL, Plan::All, even);
    assert_eq!(query.next_packet(|_| true).expect("read").map(|p| p.dropped), Some(0));
    assert!(query.next_packet(|_| true).expect("read").is_none());
    let mut tail = query.tail();
    append(dir, &name(1, true), &packets(2..3, 5));
    let snapshot = tail.grown(Span::ALL).expect("a store").expect("it has grown");
    let mut query = Query::go_on(tail, snapshot, Span::ALL, Plan::All, even);
    assert_eq!(query.next_packet(|_| true).expect("read").map(|p| p.dropped), Some(12));
}

#[test]
fn what_was_deleted_before_it_was_read_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut given = Given::default();
    append(dir, &name(1, true), &[head("eth0"), packets(0..1, 0)].concat());
    let mut tail = Some(given.first(dir));
    fs::remove_file(name(1, true).path(dir)).expect("it is there");
    append(dir, &name(4, true), &[head("eth0"), packets(5..6, 0)].concat());
    wait_for("the segment behind", || {
        tail = tail.take().map(|tail| given.next(tail));
        given.numbers.len() == 2
    });
    assert_eq!(given.numbers, [0, 5]);
    let deleted = Note::Deleted(name(1, false).to_string());
    assert_eq!(given.notes, [Note::Missed { first: 2, last: 3 }, deleted]);
    assert!(!given.notes.iter().any(Note::is_fault), "retention may do so");
}

#[test]
fn a_torn_end_that_stays_as_it_is_is_read_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (two, three) = (packets(0..2, 0), packets(2..3, 0));
    append(dir, &name(1, true), &[&head("eth0")[..], &two, &three[..20]].concat());
    let mut given = Given::default();
    let mut tail = given.first(dir);
    for _ in 0..3 {
        assert!(tail.grown(Span::ALL).expect("a store").is_none(), "nothing has come");
    }
    append(dir, &name(1, true), &three[20..40]);
    let snapshot = tail.grown(Span::ALL).expect("a store").expect("it has grown");
    let everything = everything as Everything;
    tail = given.round(Query::go_on(tail, snapshot, Span::ALL, Plan::All, everything));
    assert!(tail.grown(Span::ALL).expect("a store").is_none(), "it is torn still");
    append(dir, &name(1, true), &three[40..]);
    tail = given.next(tail);
    assert_eq!((&given.numbers[..], &given.notes[..]), (&[0, 1, 2][..], &[][..]));
    // Whoever mends it cuts a torn end and may write as much in its place.
    append(dir, &name(1, true), &[0xff; 52]);
    tail = given.next(tail);
    assert!(tail.grown(Span::ALL).expect("a store").is_none());
    let path = name(1, true).path(dir);
    let mut bytes = fs::read(&path).expect("it is there");
    bytes.truncate(bytes.len() - 52);
    pcapng::fill(&mut bytes, 52);
    fs::write(&path, bytes).expect("room on the disk");
    fs::rename(path, name(1, false).path(dir)).expect("it is there");
    let mut tail = Some(tail);
    append(dir, &name(2, true), &[head("eth0"), packets(3..4, 0)].concat());
    wait_for("the segment behind", || {
        tail = tail.take().map(|tail| given.next(tail));
        given.numbers.len() == 4
    });
}

#[test]
fn what_was_set_aside_is_not_told_as_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut given = Given::default();
    append(dir, &name(1, true), &[head("eth0"), packets(0..1, 0)].concat());
    let mut tail = Some(given.first(dir));
    for number in [3, 6] {
        fs::write(dir.join(format!("{}.damaged", name(number, true))), []).expect("a file");
    }
    append(dir, &name(8, true), &[head("eth0"), packets(5..6, 0)].concat());
    wait_for("the segment behind", || {
        tail = tail.take().map(|tail| given.next(tail));
        given.numbers.len() == 2
    });
    let missed = [(2, 2), (4, 5), (7, 7)].map(|(first, last)| Note::Missed { first, last });
    assert_eq!(given.notes, missed);
}
