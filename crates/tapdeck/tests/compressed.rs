//! Captures that others have compressed, put into directories and into several places.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_testkit::frame::{UdpFrame, number_of};

const T0: u64 = 1_767_323_045_000_000_000;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A capture file of packets with these numbers, a millisecond apart.
fn capture(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "dumpcap", None);
    let description = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 0,
        name: "eth0".into(),
        description: String::new(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut bytes, &description);
    for number in numbers {
        let frame = UdpFrame { len: 60 + number as usize % 1000, number, ..UdpFrame::default() };
        let (frame, start) = (frame.bytes(), bytes.len());
        bytes.resize(start + pcapng::packet_len(frame.len(), 0, 0), 0);
        let (len, time_ns) = (frame.len() as u32, T0 + u64::from(number) * 1_000_000);
        pcapng::write_packet(&mut bytes[start..], 0, time_ns, [&frame, &[], &[]], len, 0, 0);
    }
    bytes
}

fn tapdeck(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tapdeck")).args(args).output().expect("it runs")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs it to its end; it must succeed and have nothing to say.
fn answer(args: &[&str]) -> Vec<u8> {
    let out = tapdeck(args);
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", said(&out));
    out.stdout
}

fn numbers(data: &[u8]) -> Vec<u32> {
    let of = |record| match record {
        Ok(pcapng::Record::Packet(packet)) => Some(number_of(packet.frame)),
        other => other.map(|_| None).expect("it is whole"),
    };
    pcapng::Reader::new(data).filter_map(of).collect()
}

fn compress(program: &str, path: &Path) {
    // gzip takes its input away unasked.
    let flags = if program == "gzip" { &["-q"][..] } else { &["-q", "--rm"] };
    let mut command = Command::new(program);
    command.args(flags).arg(path);
    if program == "lz4" {
        // Without a name it writes to where its output goes.
        command.arg(format!("{}.lz4", text(path)));
    }
    let done = command.status();
    assert!(done.expect("make setup installs it").success(), "{program}");
}

const PROGRAMS: [(&str, &str); 3] = [("gzip", "gz"), ("zstd", "zst"), ("lz4", "lz4")];

/// The numbers of the packets are dealt to files of each kind in turn, and some of the files lie in
/// directories.
fn make(dir: &Path) {
    fs::create_dir_all(dir.join("a/b")).expect("a directory");
    fs::write(dir.join("plain.pcapng"), capture((0..4000).step_by(4))).expect("a file");
    for (first, (program, _)) in (1..).zip(PROGRAMS) {
        let path = dir.join(["", "a", "a/b"][first - 1]).join(format!("{program}.pcapng"));
        fs::write(&path, capture((first as u32..4000).step_by(4))).expect("a file");
        compress(program, &path);
    }
}

#[test]
fn what_is_compressed_is_read_as_what_is_in_it() {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path());
    let dir = text(dir.path());
    let all = answer(&["query", "--dir", dir, "-w", "-"]);
    assert_eq!(numbers(&all), (0..4000).collect::<Vec<u32>>(), "in time order");
    assert_eq!(answer(&["query", "--dir", dir, "--count"]), b"4000\n");
    assert_eq!(answer(&["query", "--dir", dir, "--count", "ether[45] & 1 = 1"]), b"2000\n");
    let some = answer(&["query", "--dir", dir, "-w", "-", "--after", "1767323047", "--limit", "9"]);
    assert_eq!(numbers(&some), (2000..2009).collect::<Vec<u32>>());
}

#[test]
fn parts_one_behind_the_other_are_one_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for (program, end) in PROGRAMS {
        let whole = capture(0..3000);
        let (one, other) = whole.split_at(whole.len() / 2);
        let mut parts = Vec::new();
        for part in [one, other] {
            let path = dir.path().join("part");
            fs::write(&path, part).expect("a file");
            compress(program, &path);
            let compressed = dir.path().join(format!("part.{end}"));
            parts.extend(fs::read(&compressed).expect("it was made"));
            fs::remove_file(compressed).expect("it was made");
        }
        let file = dir.path().join(format!("all.{end}"));
        fs::write(&file, parts).expect("a file");
        let all = answer(&["query", "--dir", text(&file), "-w", "-"]);
        assert_eq!(numbers(&all), (0..3000).collect::<Vec<u32>>(), "{program}");
    }
}

#[test]
fn a_compressed_file_that_is_cut_is_told() {
    for (program, end) in PROGRAMS {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.pcapng");
        fs::write(&path, capture(0..20_000)).expect("a file");
        compress(program, &path);
        let path = dir.path().join(format!("a.pcapng.{end}"));
        let bytes = fs::read(&path).expect("it was made");
        fs::write(&path, &bytes[..bytes.len() / 2]).expect("a file");
        let out = tapdeck(&["query", "--dir", text(dir.path()), "--count"]);
        assert_eq!(out.status.code(), Some(1), "{program}: {}", said(&out));
        assert!(said(&out).contains("is damaged at byte"), "{program}: {}", said(&out));
        let count: u32 = String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number");
        assert!(count < 20_000, "{program}");
    }
}

/// Counts the packets of a file that is damaged, which must be told.
fn count_damaged(path: &Path, what: &str) -> u32 {
    let out = tapdeck(&["query", "--dir", text(path), "--count"]);
    assert_eq!(out.status.code(), Some(1), "{what}: {}", said(&out));
    assert!(said(&out).contains("is damaged at byte"), "{what}: {}", said(&out));
    String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
}

#[test]
fn a_compressed_file_with_a_wrong_byte_is_told() {
    for (program, end) in PROGRAMS {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.pcapng");
        fs::write(&path, capture(0..300)).expect("a file");
        compress(program, &path);
        let path = dir.path().join(format!("a.pcapng.{end}"));
        let bytes = fs::read(&path).expect("it was made");
        for part in 2..14 {
            let (mut bytes, at) = (bytes.clone(), bytes.len() * part / 16);
            bytes[at] ^= 1;
            fs::write(&path, bytes).expect("a file");
            count_damaged(&path, &format!("{program}, byte {at}"));
        }
    }
}

/// A frame of Zstandard that holds something uncompressed, and asks for a window of 2^`log` bytes
/// (RFC 8878, section 3.1.1).
fn zstandard(log: u8, holds: &[u8]) -> Vec<u8> {
    assert!(holds.len() < 100_000, "one block");
    let block = (holds.len() as u32) << 3 | 1;
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3];
    [&head[..], &block.to_le_bytes()[..3], holds].concat()
}

#[test]
fn a_window_that_takes_too_much_memory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.pcapng.zst");
    fs::write(&path, zstandard(26, &capture(0..20))).expect("a file");
    assert_eq!(answer(&["query", "--dir", text(&path), "--count"]), b"20\n");
    for log in [27, 30, 41] {
        fs::write(&path, zstandard(log, &capture(0..20))).expect("a file");
        let out = tapdeck(&["query", "--dir", text(dir.path()), "--count"]);
        assert_eq!(out.status.code(), Some(1), "2^{log}: {}", said(&out));
        assert!(said(&out).contains("too much memory"), "2^{log}: {}", said(&out));
        // The second frame, too.
        let two = [zstandard(20, &capture(0..20)), zstandard(log, &capture(0..20))].concat();
        fs::write(&path, two).expect("a file");
        assert_eq!(count_damaged(&path, "the second frame"), 20);
    }
}

#[test]
fn frames_that_hold_nothing_are_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.pcapng.zst");
    let nothing = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
    let (one, other) = (capture(0..20), capture(20..40));
    let frames = [&nothing[..], &zstandard(20, &one), &nothing, &zstandard(20, &other), &nothing];
    fs::write(&path, frames.concat()).expect("a file");
    assert_eq!(answer(&["query", "--dir", text(&path), "--count"]), b"40\n");
}

#[test]
fn an_lz4_file_that_is_cut_between_two_blocks_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.pcapng");
    fs::write(&path, capture(0..20_000)).expect("a file");
    compress("lz4", &path);
    let path = dir.path().join("a.pcapng.lz4");
    let bytes = fs::read(&path).expect("it was made");
    // The frame's head: 7 bytes, and 8 more with the length of what is in it; then a block behind
    // its length, and 4 more bytes with a checksum.
    let has = |flag: u8, len: usize| if bytes[4] & flag > 0 { len } else { 0 };
    let first = 7 + has(0x08, 8);
    let len = bytes[first..first + 4].try_into().expect("4 bytes");
    let second = first + 4 + (u32::from_le_bytes(len) & 0x7fff_ffff) as usize + has(0x10, 4);
    assert!(second + 4 < bytes.len(), "there is a second block");
    for cut in [first, second] {
        fs::write(&path, &bytes[..cut]).expect("a file");
        let out = tapdeck(&["query", "--dir", text(&path), "--count"]);
        assert_eq!(out.status.code(), Some(1), "{cut}: {}", said(&out));
        assert!(said(&out).contains("a frame has no end"), "{cut}: {}", said(&out));
    }
    for part in [&bytes[..], &bytes.repeat(2)] {
        fs::write(&path, part).expect("a file");
        let count = answer(&["query", "--dir", text(&path), "--count"]);
        assert_eq!(count.len(), 6, "20,000 or twice as many");
    }
}

/// An answer that does not fit into memory is read a second time, from what is compressed.
#[test]
fn a_large_compressed_file_takes_little_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.pcapng");
    fs::write(&path, capture(0..100_000)).expect("a file");
    assert!(path.metadata().expect("it is there").len() > 50 << 20);
    compress("lz4", &path);
    let line = format!(
        "ulimit -d 131072; exec {} query --dir {} -w -",
        env!("CARGO_BIN_EXE_tapdeck"),
        text(dir.path())
    );
    let out = Command::new("bash").args(["-c", &line]).output().expect("it runs");
    assert!(out.status.success(), "{}", said(&out));
    assert!(numbers(&out.stdout).into_iter().eq(0..100_000));
}

#[test]
fn several_places_are_asked_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    for name in ["one", "other"] {
        fs::create_dir(path(name)).expect("a directory");
    }
    fs::write(path("one/a.pcapng"), capture((0..1000).step_by(2))).expect("a file");
    fs::write(path("other/a.pcapng"), capture((1..1000).step_by(2))).expect("a file");
    let (one, other) = (path("one"), path("other"));
    let both = ["query", "--dir", text(&one), "--dir", text(&other)];
    let all = answer(&[&both[..], &["-w", "-"]].concat());
    assert_eq!(numbers(&all), (0..1000).collect::<Vec<u32>>());
    assert_eq!(answer(&[&both[..], &["--count"]].concat()), b"1000\n");
    let counted = answer(&[&both[..], &["--count", "--json"]].concat());
    let counted: Value = serde_json::from_slice(&counted).expect("an object");
    assert_eq!(counted["packets"], 1000);
    let some = answer(&[&both[..], &["-w", "-", "--limit", "5"]].concat());
    assert_eq!(numbers(&some), [0, 1, 2, 3, 4]);
    // A place that is named in several ways is one.
    let again = path("other/../one");
    std::os::unix::fs::symlink(&one, path("link")).expect("a link");
    let link = path("link");
    let same = ["query", "--dir", text(&one), "--dir", text(&again), "--dir", text(&link)];
    assert_eq!(answer(&[&same[..], &["--count"]].concat()), b"500\n");
}

#[test]
fn what_is_in_captures_is_told_as_of_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let captures = dir.path().join("captures");
    make(&captures);
    let captures = text(&captures);
    let object =
        |args: &[&str]| -> Value { serde_json::from_slice(&answer(args)).expect("an object") };
    let all = object(&["stat", "--json", "--dir", captures]);
    assert_eq!((&all["packets"], &all["segments"]), (&4000.into(), &4.into()), "{all}");
    assert_eq!((&all["top_hosts"][0]["share"], &all["lost"]), (&1.0.into(), &0.into()), "{all}");
    let [first, last] = ["first", "last"].map(|key| all[key].as_str().expect("a time").to_owned());
    assert!(first.starts_with("2026-01-02T03:04:05.000") && last.contains(":04:08.999"), "{all}");
    let part = object(&["stat", "--json", "--dir", captures, "--before", "1767323046"]);
    assert_eq!(part["packets"], 1000, "{part}");
    let page = String::from_utf8(answer(&["stat", "--dir", captures])).expect("text");
    assert!(page.starts_with("files      4\npackets    4,000\n"), "{page}");

    let out = tapdeck(&["dist", captures]);
    assert!(out.status.success(), "{}", said(&out));
    let counts = String::from_utf8(out.stdout).expect("text");
    let lines = counts.lines().filter(|line| !line.starts_with('#'));
    let of = |line: &str| line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    assert_eq!(lines.map(|line| of(line).expect("a count")).sum::<u64>(), 4000, "{counts}");

    let rules = dir.path().join("rules");
    let lines = "accept src any dst any sport any dport 9 proto udp\n";
    fs::write(&rules, lines).expect("a file");
    let judged = object(&["rules", "test", "--json", text(&rules), captures]);
    assert_eq!((&judged["packets"], &judged["accepted"]), (&4000.into(), &4000.into()));

    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("a directory");
    for args in [&["stat", "--dir", text(&empty)][..], &["dist", text(&empty)]] {
        let out = tapdeck(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        assert!(
            said(&out).contains("has no segments and no pcap or pcapng files"),
            "{}",
            said(&out)
        );
    }
}
