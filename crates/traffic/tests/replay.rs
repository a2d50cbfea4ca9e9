//! Recordings sent again: what is sent, when, and with which addresses. The judge of rewriting is a
//! packet that was built with the other addresses from the beginning, its checksums summed up word
//! by word.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use proptest::prelude::*;
use tapdeck_packet::generate::{LATE_NS, Limits};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_traffic::pacing::{Gaps, Rate, Schedule};
use tapdeck_traffic::replay::{
    Contents, Error, Options, Replay, ReplayCounts, Rewrite, Speed, Timing,
};
use tapdeck_traffic::source::PacketSource;
use tempfile::NamedTempFile;

const ETHERNET: u32 = 1;
const SECOND: u64 = 1_000_000_000;

/// A recorded packet: its time in ns since some day, and its bytes; `beyond` more were not
/// captured.
#[derive(Clone, Debug)]
struct Recorded {
    time_ns: u64,
    frame: Vec<u8>,
    beyond: u32,
}

/// A frame that is like no other.
fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![number; len];
    if len >= 14 {
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    }
    frame
}

fn at(times_ns: &[u64]) -> Vec<Recorded> {
    let one = |(i, &t): (usize, &u64)| {
        let frame = frame(i as u8, 60 + 10 * i);
        Recorded { time_ns: 1_700_000_000 * SECOND + t, frame, beyond: 0 }
    };
    times_ns.iter().enumerate().map(one).collect()
}

fn lens(lens: &[usize]) -> Vec<Recorded> {
    let one = |(i, &len): (usize, &usize)| {
        let time_ns = i as u64 * SECOND;
        Recorded { time_ns, frame: frame(i as u8, len), beyond: 0 }
    };
    lens.iter().enumerate().map(one).collect()
}

fn pcap(link: u32, packets: &[Recorded]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0xa1b2_3c4du32.to_le_bytes());
    out.extend([2, 0, 4, 0]);
    for word in [0, 0, 262_144, link] {
        out.extend(word.to_le_bytes());
    }
    for p in packets {
        let captured = p.frame.len() as u32;
        let time = [(p.time_ns / SECOND) as u32, (p.time_ns % SECOND) as u32];
        for word in [time[0], time[1], captured, captured.wrapping_add(p.beyond)] {
            out.extend(word.to_le_bytes());
        }
        out.extend(&p.frame);
    }
    out
}

fn pcapng(packets: &[Recorded]) -> Vec<u8> {
    pcapng_of(LinkType::ETHERNET, packets)
}

fn pcapng_of(link: LinkType, packets: &[Recorded]) -> Vec<u8> {
    let mut out = Vec::new();
    pcapng::section_header(&mut out, "Linux", "tapdeck 0", None);
    let interface = InterfaceDescription {
        link,
        snaplen: 0,
        name: "eth0".into(),
        description: String::new(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut out, &interface);
    for p in packets {
        let start = out.len();
        out.resize(start + pcapng::packet_len(p.frame.len(), 0, 0), 0);
        let original = p.frame.len() as u32 + p.beyond;
        let pieces = [&p.frame[..], &[], &[]];
        pcapng::write_packet(&mut out[start..], 0, p.time_ns, pieces, original, 0, 0);
    }
    out
}

/// A block of a packet that has no time.
fn simple_packet(out: &mut Vec<u8>, frame: &[u8]) {
    let total = (frame.len().next_multiple_of(4) + 16) as u32;
    for word in [pcapng::SIMPLE_PACKET, total, frame.len() as u32] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(frame);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(total.to_ne_bytes());
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("written");
    file
}

fn open(bytes: &[u8], options: Options) -> Result<Replay, Error> {
    // Once it is open the file needs no name.
    Replay::open(file(bytes).path(), options)
}

fn own(factor: f64) -> Options {
    Options { timing: Timing::Own { factor }, ..Options::default() }
}

fn count(packets: u64) -> Limits {
    Limits { packets, duration_ns: 0 }
}

/// The next packet of a sender who is never late, and when it was due.
fn next(replay: &mut Replay) -> Option<(Option<u64>, Vec<u8>)> {
    let due = replay.due_ns();
    let mut buffer = vec![0xee; replay.contents().longest];
    let len = replay.next(&mut buffer, due.unwrap_or(0), 0).expect("the file is good")?;
    buffer.truncate(len);
    Some((due, buffer))
}

/// No test has more packets; one that does not end fails.
const MOST: usize = 10_000;

fn all(replay: &mut Replay) -> Vec<(Option<u64>, Vec<u8>)> {
    let sent: Vec<_> = std::iter::from_fn(|| next(replay)).take(MOST).collect();
    assert!(sent.len() < MOST, "the replay does not end");
    sent
}

fn dues(replay: &mut Replay) -> Vec<u64> {
    all(replay).into_iter().map(|(due, _)| due.expect("a time")).collect()
}

fn frames(replay: &mut Replay) -> Vec<Vec<u8>> {
    all(replay).into_iter().map(|(_, frame)| frame).collect()
}

fn refused(bytes: &[u8], options: Options) -> String {
    let error = open(bytes, options).err().expect("refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn frames_come_in_their_own_time_from_both_formats() {
    let times = [0, 1, 1001, 1_500_000_003, 86_400 * SECOND];
    let packets = at(&times);
    for bytes in [pcap(ETHERNET, &packets), pcapng(&packets)] {
        for (factor, expected) in [
            (1.0, times),
            (2.0, [0, 0, 500, 750_000_001, 43_200 * SECOND]),
            (0.5, [0, 2, 2002, 3_000_000_006, 172_800 * SECOND]),
            (1e3, [0, 0, 1, 1_500_000, 86_400_000_000]),
        ] {
            let mut replay = open(&bytes, own(factor)).expect("open");
            let sent = all(&mut replay);
            let sent_at: Vec<_> = sent.iter().map(|(due, _)| due.expect("a time")).collect();
            assert_eq!(sent_at, expected, "x{factor}");
            assert!(sent.iter().map(|(_, f)| f).eq(packets.iter().map(|p| &p.frame)));
            assert_eq!(replay.due_ns(), None);
        }
    }
}

#[test]
fn times_that_go_back_are_due_at_once_and_do_not_move_the_others() {
    let bytes = pcap(ETHERNET, &at(&[500, 400, 700, 650, 699, 700, 900]));
    let mut replay = open(&bytes, own(1.0)).expect("open");
    assert_eq!(replay.contents().round.backwards, 3);
    assert_eq!(dues(&mut replay), [0, 0, 200, 200, 200, 200, 400]);
    assert_eq!(replay.counts().backwards, 3);
    assert_eq!(*replay.counts(), replay.contents().round);
}

#[test]
fn packets_without_time_are_due_with_the_one_before() {
    let mut bytes = pcapng(&at(&[]));
    simple_packet(&mut bytes, &frame(1, 61));
    let timed = pcapng(&at(&[1000, 3000]));
    bytes.extend(&timed[pcapng(&[]).len()..]);
    simple_packet(&mut bytes, &frame(2, 62));
    let mut replay = open(&bytes, own(1.0)).expect("open");
    assert_eq!(dues(&mut replay), [0, 0, 2000, 2000]);
    assert_eq!(replay.counts().untimed, 2);
}

#[test]
fn a_round_begins_one_mean_gap_behind_the_last() {
    let bytes = pcap(ETHERNET, &at(&[0, 100, 1000]));
    let looped = |loops, limits| Options { loops, limits, ..own(1.0) };
    let mut replay = open(&bytes, looped(3, Limits::default())).expect("open");
    assert_eq!(replay.contents().mean_gap_ns(), 500);
    let sent = all(&mut replay);
    let expected = [0, 100, 1000, 1500, 1600, 2500, 3000, 3100, 4000].map(Some);
    assert!(sent.iter().map(|(due, _)| *due).eq(expected), "{sent:?}");
    assert!(sent[..3].iter().map(|s| &s.1).eq(sent[6..].iter().map(|s| &s.1)));
    assert_eq!(replay.counts().packets, 9);

    let mut replay = open(&bytes, Options { loops: 0, ..looped(0, count(1000)) }).expect("open");
    assert_eq!(dues(&mut replay).last(), Some(&(333 * 1500)));
    assert_eq!(replay.counts().packets, 1000);

    let halved = Options { loops: 2, ..own(2.0) };
    assert_eq!(dues(&mut open(&bytes, halved).expect("open")), [0, 50, 500, 750, 800, 1250]);
}

#[test]
fn a_rate_overrides_the_recorded_times() {
    let bytes = pcap(ETHERNET, &at(&[0, 5, 90 * SECOND, 91 * SECOND]));
    for text in ["1000pps", "10mbit"] {
        let speed: Speed = text.parse().expect("a speed");
        let timing = speed.timing(Gaps::Constant, 7);
        let options = Options { timing, loops: 2, ..Options::default() };
        let sent = all(&mut open(&bytes, options).expect("open"));
        let pace = text.parse::<Rate>().ok().and_then(|rate| rate.pace(1.0, 0)).expect("a pace");
        let mut schedule = Schedule::new(pace, Gaps::Constant, 7);
        for (due, frame) in &sent {
            assert_eq!(*due, Some(schedule.due_ns()), "{text}");
            schedule.advance(frame.len());
        }
        assert_eq!(sent.len(), 8);
    }
    let timing = Speed::Max.timing(Gaps::Constant, 7);
    let mut replay = open(&bytes, Options { timing, ..Options::default() }).expect("open");
    let sent = all(&mut replay);
    assert!(sent.len() == 4 && sent.iter().all(|(due, _)| due.is_none()));
}

#[test]
fn limits_end_a_run_without_waiting_for_what_does_not_come() {
    let bytes = pcap(ETHERNET, &at(&[0, 10, 3600 * SECOND]));
    let mut replay = open(&bytes, Options { limits: count(2), ..own(1.0) }).expect("open");
    assert_eq!(dues(&mut replay), [0, 10]);
    // Not in an hour.
    assert_eq!(replay.due_ns(), None);
    assert_eq!(replay.counts().packets, 2);

    let limits = Limits { packets: 0, duration_ns: SECOND };
    let mut replay = open(&bytes, Options { limits, ..own(1.0) }).expect("open");
    assert_eq!(dues(&mut replay), [0, 10]);
    assert_eq!(replay.due_ns(), Some(SECOND));

    // A sender who is late has a little while for what was due before the end.
    let mut replay = open(&bytes, Options { limits, ..own(1.0) }).expect("open");
    let mut buffer = [0; 1514];
    assert!(replay.next(&mut buffer, SECOND + LATE_NS - 1, 0).expect("good").is_some());
    assert_eq!(replay.next(&mut buffer, SECOND + LATE_NS, 0).expect("good"), None);

    // As fast as it goes: the clock alone ends it.
    let options = Options { timing: Timing::Max, loops: 0, limits, ..Options::default() };
    let mut replay = open(&bytes, options).expect("open");
    for _ in 0..100 {
        assert!(replay.next(&mut buffer, SECOND - 1, 0).expect("good").is_some());
    }
    assert_eq!(replay.next(&mut buffer, SECOND, 0).expect("good"), None);
    assert_eq!(replay.counts().packets, 100);
}

#[test]
fn cut_frames_have_their_length_again() {
    let mut packets = lens(&[64, 64, 8]);
    packets[1].beyond = 1450;
    packets[2].beyond = 52;
    let rewrite = Rewrite { source_mac: "02:00:00:00:00:09".parse().ok(), ..Rewrite::default() };
    let mut replay = open(&pcapng(&packets), Options { rewrite, ..own(1.0) }).expect("open");
    assert_eq!(replay.contents().longest, 1514);
    let sent = frames(&mut replay);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [64, 1514, 60]);
    assert_eq!(sent[1][14..64], packets[1].frame[14..]);
    assert!(sent[1][64..].iter().chain(&sent[2][12..]).all(|&b| b == 0));
    // A header that was not captured is rewritten all the same.
    assert!(sent.iter().all(|f| f[6..12] == [2, 0, 0, 0, 0, 9]));
    let counts =
        ReplayCounts { packets: 3, bytes: 64 + 1514 + 60, padded: 2, ..ReplayCounts::default() };
    assert_eq!(*replay.counts(), counts);
    // Some writers say that the length was 0.
    packets[0].beyond = 0u32.wrapping_sub(64);
    let mut replay = open(&pcap(ETHERNET, &packets[..1]), own(1.0)).expect("open");
    assert_eq!((frames(&mut replay)[0].len(), replay.counts().padded), (64, 0));
}

#[test]
fn frames_that_cannot_be_sent_are_left_out_and_counted() {
    let bytes = pcap(ETHERNET, &lens(&[13, 1515, 60, 0, 9000, 14, 1514, 1600]));
    let mut replay = open(&bytes, Options { loops: 2, ..own(1.0) }).expect("open");
    let round = ReplayCounts {
        packets: 3,
        bytes: 60 + 14 + 1514,
        skipped_long: 3,
        skipped_short: 2,
        ..ReplayCounts::default()
    };
    let Contents { records, round: found, longest, duration_ns, .. } = replay.contents().clone();
    assert_eq!((records, found, longest, duration_ns), (8, round, 1514, 4 * SECOND));
    // Time begins with the first that is sent. What was left out is told with the frame behind it.
    assert_eq!(next(&mut replay).map(|(due, f)| (due, f.len())), Some((Some(0), 60)));
    assert_eq!((replay.counts().skipped_short, replay.counts().skipped_long), (1, 1));
    let expected = [3, 4, 6, 9, 10].map(|s| s * SECOND);
    assert_eq!(dues(&mut replay), expected);
    let twice = ReplayCounts {
        packets: 6,
        bytes: 2 * round.bytes,
        skipped_long: 6,
        skipped_short: 4,
        ..ReplayCounts::default()
    };
    assert_eq!(*replay.counts(), twice);

    let jumbo = Options { longest: 9000, ..own(1.0) };
    assert_eq!(open(&bytes, jumbo).expect("open").contents().round.skipped_long, 0);
    let error = refused(&pcap(ETHERNET, &lens(&[9000, 10])), own(1.0));
    assert!(
        error.contains("1 are longer than the 1514 bytes") && error.contains("1 shorter"),
        "{error}"
    );
}

#[test]
fn raw_ip_gets_an_ethernet_header() {
    let packets = |firsts: &[u8]| -> Vec<Recorded> {
        let mut packets = lens(&vec![40; firsts.len()]);
        packets.iter_mut().zip(firsts).for_each(|(p, &first)| p.frame[0] = first);
        packets
    };
    let ethertype = |first: u8| if first >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    for (link, firsts) in [
        (101, &[0x45, 0x60][..]),
        (12, &[0x46, 0x6f]),
        (14, &[0x45, 0x60]),
        (228, &[0x45, 0x45]),
        (229, &[0x60, 0x60]),
    ] {
        let mut recorded = packets(firsts);
        recorded[1].beyond = 3;
        let sent = frames(&mut open(&pcap(link, &recorded), own(1.0)).expect("open"));
        for (i, (frame, p)) in sent.iter().zip(&recorded).enumerate() {
            assert_eq!(frame.len(), 54 + 3 * i);
            assert_eq!(frame[..12], [2, 0x74, 0x64, 0, 0, 2, 2, 0x74, 0x64, 0, 0, 1]);
            assert_eq!(frame[12..14], ethertype(p.frame[0]), "link type {link}");
            assert_eq!(frame[14..54], p.frame);
        }
        assert_eq!(sent.len(), 2);
    }
    let mut replay = open(&pcap(101, &packets(&[0x45, 0x15, 0x60])), own(1.0)).expect("open");
    assert_eq!((frames(&mut replay).len(), replay.counts().skipped_not_ip), (2, 1));
    // The header counts.
    let mut packets = lens(&[1501, 1500]);
    for packet in &mut packets {
        packet.frame[0] = 0x45;
    }
    let replay = open(&pcap(101, &packets), own(1.0)).expect("open");
    assert_eq!((replay.contents().longest, replay.contents().round.skipped_long), (1514, 1));
}

#[test]
fn other_link_types_are_refused_before_anything_is_sent() {
    let mut bytes = pcapng(&at(&[0, 1]));
    // Another section, of Linux cooked captures.
    bytes.extend(pcapng_of(LinkType(113), &at(&[2])));
    for up_to_damage in [false, true] {
        let error = refused(&bytes, Options { up_to_damage, ..own(1.0) });
        assert!(error.contains("packet 3 is of link type 113"), "{error}");
    }
    assert!(refused(&pcap(147, &at(&[0])), own(1.0)).contains("link type 147"));
}

#[test]
fn a_damaged_file_is_used_up_to_the_damage_only_if_asked() {
    let packets = at(&[0, 100, 300, 400]);
    for good in [pcap(ETHERNET, &packets), pcapng(&packets)] {
        let cut = &good[..good.len() - 7];
        let error = refused(cut, own(1.0));
        assert!(error.contains("cut short") && error.contains("--up-to-damage"), "{error}");
        let asked = Options { up_to_damage: true, loops: 2, ..own(1.0) };
        let mut replay = open(cut, asked.clone()).expect("open");
        let damage = replay.contents().damage.clone().expect("told");
        assert!(damage.contains("cut short"), "{damage}");
        assert_eq!(dues(&mut replay), [0, 100, 300, 450, 550, 750]);
        assert_eq!(open(&good, asked).expect("open").contents().damage, None);
    }
    let mut bytes = pcap(ETHERNET, &packets[..2]);
    let header = bytes.len();
    bytes.extend(pcap(ETHERNET, &packets[2..]).split_off(24));
    bytes[header + 8..header + 12].fill(0xff);
    assert!(refused(&bytes, own(1.0)).contains(&format!("damaged at byte {header}")));
    let mut replay = open(&bytes, Options { up_to_damage: true, ..own(1.0) }).expect("open");
    assert_eq!(dues(&mut replay), [0, 100]);
}

#[test]
fn what_is_no_recording_is_refused_with_its_name() {
    let nothing = pcap(ETHERNET, &[]);
    for (bytes, up_to_damage, says) in [
        (&[][..], false, "empty"),
        (b"<html>", false, "neither pcap nor pcapng"),
        (&nothing, false, "no packet in it"),
        (&nothing[..20], false, "cut short"),
        (&nothing[..20], true, "no packet in it before the damage"),
    ] {
        let file = file(bytes);
        let options = Options { up_to_damage, ..Options::default() };
        let error = Replay::open(file.path(), options).err().expect("refused").to_string();
        assert!(error.starts_with(&file.path().display().to_string()), "{error}");
        assert!(error.contains(says), "{error}");
    }
    for (path, says) in [
        ("-", "standard input"),
        ("/", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("/nowhere.pcap", "No such file"),
    ] {
        let error = Replay::open(Path::new(path), Options::default()).err().expect("refused");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_file_larger_than_the_window_goes_round_and_round() {
    let packets: Vec<_> = (0..2000u32)
        .map(|i| {
            let mut frame = frame(0, 1000 + i as usize % 400);
            frame[20..24].copy_from_slice(&i.to_be_bytes());
            Recorded { time_ns: u64::from(i) * 1000, frame, beyond: 0 }
        })
        .collect();
    let options = Options { timing: Timing::Max, loops: 3, ..Options::default() };
    let mut replay = open(&pcapng(&packets), options).expect("open");
    let mut sent = 0;
    while let Some((_, frame)) = next(&mut replay) {
        assert_eq!(frame, packets[sent % 2000].frame);
        sent += 1;
    }
    assert_eq!(sent, 6000);
    assert_eq!(replay.counts().bytes, 3 * replay.contents().round.bytes);
}

#[test]
fn a_file_that_grows_ends_where_it_did_and_one_that_shrinks_is_told() {
    let packets = at(&[0, 100, 200]);
    let (less, all_of_it) = (pcap(ETHERNET, &packets[..2]), pcap(ETHERNET, &packets));
    let file = file(&less);
    let options = Options { loops: 2, ..own(1.0) };
    let mut replay = Replay::open(file.path(), options.clone()).expect("open");
    let mut other = OpenOptions::new().append(true).open(file.path()).expect("open");
    other.write_all(&all_of_it[less.len()..]).expect("written");
    assert_eq!(dues(&mut replay), [0, 100, 200, 300]);

    let mut replay = Replay::open(file.path(), options).expect("open");
    other.set_len(less.len() as u64).expect("cut");
    let mut buffer = [0; 1514];
    let mut sent = 0;
    let error = loop {
        match replay.next(&mut buffer, 0, 0) {
            Ok(Some(_)) => sent += 1,
            Ok(None) => panic!("the end of a file that is not whole"),
            Err(e) => break e.to_string(),
        }
    };
    // The first round was in memory.
    assert_eq!((sent, replay.counts().packets), (5, 5));
    assert!(error.contains("changed while it was being sent"), "{error}");
}

#[test]
fn speeds_as_people_write_them() {
    let speed = |s: &str| s.parse::<Speed>().map_err(|e| e.to_string());
    assert_eq!(speed("x2"), Ok(Speed::Factor(2.0)));
    assert_eq!(speed("x0.5"), Ok(Speed::Factor(0.5)));
    assert_eq!(speed("max"), Ok(Speed::Max));
    assert_eq!(speed("1.2mpps"), Ok(Speed::Rate(Rate::Packets { per_s: 1.2e6 })));
    assert_eq!(speed("7mbit"), Ok(Speed::Rate(Rate::Bits { per_s: 7e6, wire: false })));
    for (bad, says) in [
        ("x0", "more than 0"),
        ("x-1", "more than 0"),
        ("xnan", "more than 0"),
        ("xinf", "finite"),
        ("x1e999", "finite"),
        ("x", "write x2"),
        ("2x", "write x2"),
        ("", "write x2"),
        ("fast", "write x2"),
        ("0pps", "from 0.001 packets"),
    ] {
        let error = speed(bad).expect_err(bad);
        assert!(error.contains(says) && error.contains(bad) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn rules_are_two_networks_of_a_size() {
    for good in ["10.1.0.0/16=198.18.0.0/16", "10.0.0.1=10.0.0.2/32", "2001:db8::/32 = fd00::/32"] {
        assert!(Rewrite::parse(good).is_ok(), "{good}");
    }
    for (bad, says) in [
        ("10.0.0.0/8", "write OLD=NEW"),
        ("=", "write OLD=NEW"),
        ("10.0.0.0/33=1.0.0.0/33", "write OLD=NEW"),
        ("ten=eleven", "write OLD=NEW"),
        ("10.0.0.0/8=198.18.0.0/15", "same length"),
        ("10.0.0.0/8=198.18.0.0/8", "write 198.0.0.0/8"),
        ("10.0.0.0/8=fd00::/8", "the other IPv6"),
        ("10.0.0.1/8=198.0.0.0/8", "write 10.0.0.0/8"),
    ] {
        let error = Rewrite::parse(bad).expect_err(bad).to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
}

/// A network: address in the order of the wire, and length of its prefix.
#[derive(Clone, Debug)]
struct Net {
    address: Vec<u8>,
    prefix: usize,
}

impl Net {
    /// This network's address whose other bits are those of `host`.
    fn with(&self, host: &[u8]) -> Vec<u8> {
        let mut address = host.to_vec();
        for bit in 0..self.prefix {
            let mask = 0x80 >> (bit % 8);
            address[bit / 8] = (address[bit / 8] & !mask) | (self.address[bit / 8] & mask);
        }
        address
    }

    fn contains(&self, address: &[u8]) -> bool {
        self.with(address) == address
    }

    fn text(&self) -> String {
        let bare = self.with(&vec![0; self.address.len()]);
        let bare = match *bare {
            [a, b, c, d] => Ipv4Addr::new(a, b, c, d).to_string(),
            _ => Ipv6Addr::from(<[u8; 16]>::try_from(bare).expect("16 bytes")).to_string(),
        };
        format!("{bare}/{}", self.prefix)
    }
}

/// Two networks, of which one takes the other's place.
#[derive(Clone, Debug)]
struct Exchange(Net, Net);

impl Exchange {
    fn rewrite(&self) -> Rewrite {
        let Self(old, new) = self;
        let rule = Rewrite::parse(&format!("{}={}", old.text(), new.text())).expect("a rule");
        Rewrite { rules: vec![rule], ..Rewrite::default() }
    }

    fn of(&self, address: &[u8]) -> Vec<u8> {
        if self.0.contains(address) { self.1.with(address) } else { address.to_vec() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
    /// With 0 for a checksum.
    UncheckedUdp,
    Icmp,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    Whole,
    First,
    Later,
}

/// A packet of which the wire's bytes can be built.
#[derive(Clone, Debug)]
struct Packet {
    tags: Vec<u16>,
    ipv6: bool,
    source: Vec<u8>,
    destination: Vec<u8>,
    transport: Transport,
    fragment: Fragment,
    /// IPv6 extension headers; words of options in IPv4.
    extensions: Vec<u8>,
    /// Segments left in a routing header: the pseudo header has another destination.
    segments_left: u8,
    payload: Vec<u8>,
    /// Behind the IP packet.
    trailer: Vec<u8>,
}

const LAST_HOP: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 1];

/// RFC 1071, as simple as can be.
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let word = |w: &[u8]| u64::from(w[0]) * 256 + w.get(1).map_or(0, |&b| b.into());
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = sum % 65536 + sum / 65536;
    }
    !(sum as u16)
}

impl Packet {
    fn with(&self, exchange: &Exchange) -> Self {
        let Self { source, destination, .. } = self;
        let (source, destination) = (exchange.of(source), exchange.of(destination));
        Self { source, destination, ..self.clone() }
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp => 6,
            Transport::Udp | Transport::UncheckedUdp => 17,
            Transport::Icmp if self.ipv6 => 58,
            Transport::Icmp => 1,
            Transport::Other => 47,
        }
    }

    /// Where a checksum stands in the segment.
    fn checksum_at(&self) -> Option<usize> {
        match self.transport {
            _ if self.fragment == Fragment::Later => None,
            Transport::Tcp => Some(16),
            Transport::Udp => Some(6),
            Transport::Icmp => Some(2),
            Transport::UncheckedUdp | Transport::Other => None,
        }
    }

    fn segment(&self) -> Vec<u8> {
        let header = if self.transport == Transport::Tcp { 20 } else { 8 };
        let mut segment = vec![0x5a; header];
        segment.extend(&self.payload);
        if self.transport == Transport::UncheckedUdp {
            segment[6..8].fill(0);
        }
        let Some(at) = self.checksum_at() else { return segment };
        segment[at..at + 2].fill(0);
        let last_hop: &[u8] =
            if self.ipv6 && self.segments_left > 0 { &LAST_HOP } else { &self.destination };
        let len = (segment.len() as u32).to_be_bytes();
        let protocol = [0, self.protocol()];
        let sum = match self.transport {
            Transport::Icmp if !self.ipv6 => checksum(&[&segment]),
            _ => checksum(&[&self.source, last_hop, &len, &protocol, &segment]),
        };
        let sum = if self.transport == Transport::Udp && sum == 0 { 0xffff } else { sum };
        segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        if self.fragment == Fragment::First {
            // The checksum is over what other fragments carry, too.
            segment.truncate(header);
        }
        segment
    }

    fn ipv4(&self) -> Vec<u8> {
        let header = 20 + 4 * self.extensions.len();
        let segment = self.segment();
        let total = (header + segment.len()) as u16;
        let fragment: u16 = match self.fragment {
            Fragment::Whole => 0x4000,
            Fragment::First => 0x2000,
            Fragment::Later => 0x2001,
        };
        let mut ip = vec![0x40 | (header / 4) as u8, 0];
        ip.extend(total.to_be_bytes());
        ip.extend([1, 2]);
        ip.extend(fragment.to_be_bytes());
        ip.extend([64, self.protocol(), 0, 0]);
        ip.extend(&self.source);
        ip.extend(&self.destination);
        ip.resize(header, 1);
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(segment);
        ip
    }

    fn ipv6(&self) -> Vec<u8> {
        let mut protocol = self.protocol();
        let mut rest = self.segment();
        let mut put = |number: u8, header: &[u8]| {
            rest.splice(0..0, header.iter().copied());
            rest[0] = protocol;
            protocol = number;
        };
        match self.fragment {
            Fragment::Whole => {}
            Fragment::First => put(44, &[0, 0, 0, 1, 0, 0, 0, 9]),
            Fragment::Later => put(44, &[0, 0, 0, 9, 0, 0, 0, 9]),
        }
        for &number in self.extensions.iter().rev() {
            match number {
                51 => put(
                    51,
                    &[0, 4, 0, 0, 9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5],
                ),
                43 => {
                    let mut header = vec![0, 2, 4, self.segments_left, 0, 0, 0, 0];
                    header.extend(LAST_HOP);
                    put(43, &header);
                }
                number => put(number, &[0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            }
        }
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend((rest.len() as u16).to_be_bytes());
        ip.extend([protocol, 64]);
        ip.extend(&self.source);
        ip.extend(&self.destination);
        ip.extend(rest);
        ip
    }

    fn ip_at(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0xd; 6];
        frame.extend([0x5; 6]);
        for (i, tag) in self.tags.iter().enumerate() {
            frame.extend(tag.to_be_bytes());
            frame.extend((100 + i as u16).to_be_bytes());
        }
        let (ethertype, ip) =
            if self.ipv6 { (0x86ddu16, self.ipv6()) } else { (0x0800, self.ipv4()) };
        frame.extend(ethertype.to_be_bytes());
        frame.extend(ip);
        frame.extend(&self.trailer);
        frame
    }

    /// Where the transport begins in the frame.
    fn transport_at(&self) -> usize {
        self.frame().len() - self.trailer.len() - self.segment().len()
    }
}

/// A packet, and an exchange that may apply to either of its addresses.
fn packet() -> impl Strategy<Value = (Packet, Exchange)> {
    let transport = prop_oneof![
        Just(Transport::Tcp),
        Just(Transport::Udp),
        Just(Transport::UncheckedUdp),
        Just(Transport::Icmp),
        Just(Transport::Other)
    ];
    let fragment = prop_oneof![
        4 => Just(Fragment::Whole), 1 => Just(Fragment::First), 1 => Just(Fragment::Later)
    ];
    let tag = prop_oneof![Just(0x8100u16), Just(0x88a8), Just(0x9100)];
    let extension = prop_oneof![Just(0u8), Just(60), Just(43), Just(51)];
    let addresses = prop::array::uniform4(prop::array::uniform16(any::<u8>()));
    let headers = (
        prop::collection::vec(tag, 0..3),
        any::<bool>(),
        transport,
        fragment,
        prop::collection::vec(extension, 0..4),
        0..3u8,
    );
    let bytes = |n| prop::collection::vec(any::<u8>(), 0..n);
    let inside = any::<(bool, bool)>();
    (headers, addresses, 4..=128usize, inside, bytes(80), bytes(7)).prop_map(
        |(
            (tags, ipv6, transport, fragment, extensions, left),
            addresses,
            prefix,
            inside,
            payload,
            trailer,
        )| {
            let len = if ipv6 { 16 } else { 4 };
            let [source, destination, old, new] = addresses.map(|a| a[..len].to_vec());
            let prefix = 4 + prefix % (8 * len - 3);
            let old = Net { address: old, prefix };
            let new = Net { address: new, prefix };
            let source = if inside.0 { old.with(&source) } else { source };
            let destination = if inside.1 { old.with(&destination) } else { destination };
            let segments_left = if extensions.contains(&43) { left } else { 0 };
            let packet = Packet {
                tags,
                ipv6,
                source,
                destination,
                transport,
                fragment,
                extensions,
                segments_left,
                payload,
                trailer,
            };
            (packet, Exchange(old, new))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checksums are right, hosts keep their numbers, and nothing else changes.
    #[test]
    fn a_rewritten_frame_is_the_one_with_the_other_addresses((packet, exchange) in packet()) {
        let mut frame = packet.frame();
        exchange.rewrite().apply(&mut frame);
        prop_assert_eq!(frame, packet.with(&exchange).frame());
    }

    #[test]
    fn what_is_there_of_a_cut_frame_is_rewritten((packet, exchange) in packet(), cut in any::<prop::sample::Index>()) {
        let header = packet.ip_at() + if packet.ipv6 { 40 } else { 20 };
        let frame = packet.frame();
        let cut = header + cut.index(frame.len() - header + 1);
        // Half a checksum cannot be changed.
        let half = packet.checksum_at().map(|at| packet.transport_at() + at + 1);
        prop_assume!(Some(cut) != half);
        let mut frame = frame[..cut].to_vec();
        exchange.rewrite().apply(&mut frame);
        prop_assert_eq!(&frame[..], &packet.with(&exchange).frame()[..cut]);
    }

    #[test]
    fn back_again_leads_to_the_same_bytes((packet, exchange) in packet()) {
        let Exchange(old, new) = &exchange;
        prop_assume!(!new.contains(&packet.source) && !new.contains(&packet.destination));
        let mut frame = packet.frame();
        exchange.rewrite().apply(&mut frame);
        Exchange(new.clone(), old.clone()).rewrite().apply(&mut frame);
        prop_assert_eq!(frame, packet.frame());
    }

    #[test]
    fn frames_that_no_rule_is_for_stay_as_they_are((packet, _) in packet(), places in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6)) {
        let mut frame = packet.frame();
        for (place, byte) in places {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        let mut rewritten = frame.clone();
        unmatched().apply(&mut rewritten);
        prop_assert_eq!(rewritten, frame);
    }

    /// With rules for every address.
    #[test]
    fn no_bytes_are_too_strange((packet, _) in packet(), places in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..12), cut in any::<prop::sample::Index>()) {
        let mut frame = packet.frame();
        for (place, byte) in places {
            let place = place.index(frame.len().min(80));
            frame[place] = byte;
        }
        frame.truncate(cut.index(frame.len() + 1));
        let len = frame.len();
        everything().apply(&mut frame);
        prop_assert_eq!(frame.len(), len);
    }

    #[test]
    fn no_bytes_at_all_are_too_strange(mut frame in prop::collection::vec(any::<u8>(), 0..120), ethertype in 0..5usize) {
        let types = [0x0800u16, 0x86dd, 0x0806, 0x8100, 0x1234];
        if frame.len() >= 14 {
            frame[12..14].copy_from_slice(&types[ethertype].to_be_bytes());
        }
        everything().apply(&mut frame);
    }
}

fn rules(texts: &[&str]) -> Rewrite {
    let rules = texts.iter().map(|t| Rewrite::parse(t).expect("a rule")).collect();
    Rewrite { rules, ..Rewrite::default() }
}

fn everything() -> Rewrite {
    rules(&["0.0.0.0/1=128.0.0.0/1", "128.0.0.0/1=0.0.0.0/1", "::/1=8000::/1", "8000::/1=::/1"])
}

/// No random address is one of these.
fn unmatched() -> Rewrite {
    rules(&["203.0.113.77=1.2.3.4", "2001:db8:dead::beef=2001:db8::1"])
}

fn udp(source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Packet {
    Packet {
        tags: Vec::new(),
        ipv6: false,
        source: source.to_vec(),
        destination: destination.to_vec(),
        transport: Transport::Udp,
        fragment: Fragment::Whole,
        extensions: Vec::new(),
        segments_left: 0,
        payload: payload.to_vec(),
        trailer: Vec::new(),
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let rewrite = rules(&["10.0.0.1=192.0.2.9", "10.0.0.0/8=198.0.0.0/8", "198.0.0.0/8=1.0.0.0/8"]);
    let mut frame = udp([10, 0, 0, 1], [10, 0, 0, 2], b"?").frame();
    rewrite.apply(&mut frame);
    assert_eq!(frame, udp([192, 0, 2, 9], [198, 0, 0, 2], b"?").frame());
}

/// RFC 768: a sum that comes to zero is sent as 0xffff, for zero would say that there is none.
#[test]
fn a_udp_checksum_never_becomes_zero() {
    let new = |payload: u16| udp([10, 1, 0, 1], [10, 1, 0, 2], &payload.to_be_bytes()).frame();
    let payload = (0..=u16::MAX).find(|&p| new(p)[40..42] == [0xff, 0xff]).expect("one of them");
    let old = udp([10, 0, 0, 1], [10, 0, 0, 2], &payload.to_be_bytes()).frame();
    let mut frame = old.clone();
    rules(&["10.0.0.0/16=10.1.0.0/16"]).apply(&mut frame);
    assert_eq!(frame, new(payload));
    rules(&["10.1.0.0/16=10.0.0.0/16"]).apply(&mut frame);
    assert_eq!(frame, old);
}

/// Ethernet's padding is where the checksum of a segment would be, if the packet were so long.
#[test]
fn padding_behind_a_packet_is_no_segment() {
    let network = |third| {
        let mut packet = udp([10, third, 0, 1], [10, third, 0, 2], &[]);
        // A fragment's frame has no transport, whose place the padding takes.
        (packet.transport, packet.fragment) = (Transport::Tcp, Fragment::Later);
        let mut frame = packet.frame();
        frame.truncate(34);
        // No fragment, and no more than a header.
        frame[16..18].copy_from_slice(&20u16.to_be_bytes());
        frame[20..22].fill(0);
        frame[24..26].fill(0);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.resize(60, 0x77);
        frame
    };
    let mut frame = network(0);
    rules(&["10.0.0.0/16=10.1.0.0/16"]).apply(&mut frame);
    assert_eq!(frame, network(1));
}

#[test]
fn arp_asks_and_answers_for_the_other_addresses() {
    let arp = |tags: &[u8], sender: [u8; 4], target: [u8; 4]| {
        let mut frame = vec![0xff; 12];
        frame.extend(tags);
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2]);
        frame.extend(sender);
        frame.extend([3; 6]);
        frame.extend(target);
        frame.extend([0; 18]);
        frame
    };
    let rewrite = rules(&["10.0.0.0/8=198.0.0.0/8"]);
    for tags in [&[][..], &[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9]] {
        let mut frame = arp(tags, [10, 1, 2, 3], [10, 1, 2, 4]);
        rewrite.apply(&mut frame);
        assert_eq!(frame, arp(tags, [198, 1, 2, 3], [198, 1, 2, 4]));
        let mut probe = arp(tags, [0; 4], [10, 1, 2, 4]);
        rewrite.apply(&mut probe);
        assert_eq!(probe, arp(tags, [0; 4], [198, 1, 2, 4]));
    }
    // Of another protocol than IPv4.
    let mut frame = arp(&[], [10, 1, 2, 3], [10, 1, 2, 4]);
    frame[16] = 9;
    let before = frame.clone();
    rewrite.apply(&mut frame);
    assert_eq!(frame, before);
}

#[test]
fn a_replay_rewrites_what_was_captured_and_no_padding() {
    let packet = udp([10, 0, 0, 1], [10, 0, 0, 2], &[7; 100]);
    let rewritten = udp([198, 0, 0, 1], [198, 0, 0, 2], &[7; 100]).frame();
    // The UDP checksum is at 40.
    let cut = Recorded { time_ns: 0, frame: packet.frame()[..40].to_vec(), beyond: 102 };
    let whole = Recorded { time_ns: 1, frame: packet.frame(), beyond: 0 };
    let rewrite = Rewrite {
        source_mac: "02:00:00:00:00:0a".parse().ok(),
        destination_mac: "02:00:00:00:00:0b".parse().ok(),
        ..rules(&["10.0.0.0/8=198.0.0.0/8"])
    };
    let options = Options { rewrite, ..own(1.0) };
    let sent = frames(&mut open(&pcap(ETHERNET, &[cut, whole]), options).expect("open"));
    for frame in &sent {
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa]);
        assert_eq!(frame[12..40], rewritten[12..40]);
    }
    assert!(sent[0].len() == 142 && sent[0][40..].iter().all(|&b| b == 0));
    assert_eq!(sent[1][40..], rewritten[40..]);
}
