//! A store of awkward traffic, and the same packets as one capture file for other programs.
//!
//! Three rings of two network interfaces write to it. Their blocks lie in the segments as they were
//! handed over, so times go back and forth from block to block, and now and then inside one. Some
//! packets share their time. The file for others is in the order that a store's packets have: by
//! time, and by place where times are equal.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::SegmentName;

use super::frames::Stretch;
use tapdeck_testkit::SplitMix64;

pub const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;
const RINGS: [&str; 3] = ["eth0", "eth0", "eth1"];
const PACKETS: usize = 3000;
/// Blocks of rings begin at multiples of it.
const PAGE: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub time_ns: i64,
    pub original_len: u32,
    pub frame: Vec<u8>,
}

/// A store in a directory, and the file beside it.
pub struct Store {
    pub dir: tempfile::TempDir,
    /// In the order of the file.
    pub packets: Vec<Packet>,
}

impl Store {
    /// Writes a closed segment for each piece of the traffic, and a live one for the last. With
    /// `index` the closed ones are indexed.
    pub fn new(rng: &mut SplitMix64, index: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Self { dir, packets: Vec::new() };
        fs::create_dir(store.path()).expect("a directory");
        let segments = segments(traffic(rng), rng);
        let (last, closed) = segments.split_last().expect("there is one");
        for (number, packets) in (1..).zip(closed) {
            write(&store.path(), number, packets, false);
        }
        if index {
            build_index(&store.path());
        }
        write(&store.path(), segments.len() as u64, last, true);
        let mut packets: Vec<Packet> = segments.into_iter().flatten().map(|p| p.packet).collect();
        // It is stable, so place decides where times are equal.
        packets.sort_by_key(|p| p.time_ns);
        fs::write(store.file(), pcap(&packets)).expect("room on the disk");
        Self { packets, ..store }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("all.pcap")
    }
}

/// Writes a closed segment with the packets of one ring.
#[allow(dead_code, reason = "not every test wants them closed")]
pub fn write_closed(dir: &Path, number: u64, packets: &[Packet]) {
    let held = |packet: &Packet| Held { ring: 0, dropped: 0, packet: packet.clone() };
    write(dir, number, &packets.iter().map(held).collect::<Vec<_>>(), false);
}

/// A packet that a ring holds.
struct Held {
    ring: u32,
    dropped: u64,
    packet: Packet,
}

/// Packets in the order in which they came.
fn traffic(rng: &mut SplitMix64) -> Vec<Held> {
    let mut time_ns = T0;
    let mut all = Vec::with_capacity(PACKETS);
    while all.len() < PACKETS {
        let stretch = Stretch::new(rng);
        for _ in 0..200 + rng.below(100) {
            time_ns += [0, 0, 1, 1000, 900_000, 9_000_000][rng.below(6)];
            let captured = stretch.frame(rng);
            all.push(Held {
                ring: rng.below(RINGS.len()) as u32,
                dropped: if rng.percent(1) { 1 + rng.below(20) as u64 } else { 0 },
                packet: Packet {
                    time_ns,
                    original_len: captured.original_len,
                    frame: captured.frame,
                },
            });
        }
    }
    all
}

/// The packets in the order of writing: each ring's by blocks, a ring that comes late now and then.
fn segments(traffic: Vec<Held>, rng: &mut SplitMix64) -> Vec<Vec<Held>> {
    let mut rings = RINGS.map(|_| VecDeque::new());
    for held in traffic {
        rings[held.ring as usize].push_back(held);
    }
    let mut segments = vec![Vec::new()];
    let mut blocks = 0;
    while let Some(oldest) = oldest(&rings) {
        let ring = if rng.percent(20) { rng.below(RINGS.len()) } else { oldest };
        let n = (1 + rng.below(40)).min(rings[ring].len());
        let mut block: Vec<Held> = rings[ring].drain(..n).collect();
        if n > 1 && rng.percent(20) {
            let at = rng.below(n - 1);
            block.swap(at, at + 1);
        }
        if blocks == 40 {
            segments.push(Vec::new());
            blocks = 0;
        }
        blocks += 1;
        segments.last_mut().expect("there is one").extend(block);
    }
    segments
}

fn oldest(rings: &[VecDeque<Held>; 3]) -> Option<usize> {
    let heads = rings.iter().enumerate().filter_map(|(i, ring)| Some((ring.front()?, i)));
    heads.min_by_key(|(held, _)| held.packet.time_ns).map(|(_, i)| i)
}

fn write(dir: &Path, number: u64, packets: &[Held], live: bool) {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    for (ring, name) in RINGS.iter().enumerate() {
        let description = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 262_144,
            name: (*name).into(),
            description: format!("hook tcx, CPU {ring}"),
            filter: None,
            hardware: None,
            mac: None,
        };
        pcapng::interface_description(&mut bytes, &description);
    }
    fill(&mut bytes);
    let mut before = packets.first().map(|p| p.ring);
    for p in packets {
        if before.replace(p.ring) != Some(p.ring) {
            fill(&mut bytes);
        }
        append(&mut bytes, p);
    }
    fill(&mut bytes);
    if !live {
        statistics(&mut bytes, packets);
        fill(&mut bytes);
    }
    let began_ns = packets.iter().map(|p| p.packet.time_ns).min().unwrap_or(T0);
    let name = SegmentName { number, began_s: began_ns / SECOND, live };
    fs::write(name.path(dir), bytes).expect("room on the disk");
}

fn append(bytes: &mut Vec<u8>, held: &Held) {
    let Packet { time_ns, original_len, frame } = &held.packet;
    let flags = pcapng::FLAG_INBOUND;
    let start = bytes.len();
    bytes.resize(start + pcapng::packet_len(frame.len(), flags, held.dropped), 0);
    let (out, frame) = (&mut bytes[start..], [&frame[..], &[], &[]]);
    let time_ns = *time_ns as u64;
    pcapng::write_packet(out, held.ring, time_ns, frame, *original_len, flags, held.dropped);
}

fn fill(bytes: &mut Vec<u8>) {
    match bytes.len().next_multiple_of(PAGE) - bytes.len() {
        0 => {}
        gap @ 1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + PAGE),
        gap => pcapng::fill(bytes, gap),
    }
}

fn statistics(bytes: &mut Vec<u8>, packets: &[Held]) {
    let times = || packets.iter().map(|p| p.packet.time_ns as u64);
    let (start_ns, end_ns) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    for interface in 0..RINGS.len() as u32 {
        let (mut delivered, mut dropped) = (0, 0);
        for p in packets.iter().filter(|p| p.ring == interface) {
            delivered += 1;
            dropped += p.dropped;
        }
        let seen = delivered + dropped;
        let statistics = StatisticsBlock {
            interface,
            time_ns: end_ns,
            start_ns,
            end_ns,
            received: seen,
            accepted: seen,
            dropped,
            delivered,
            unseen: 0,
            comment: None,
        };
        pcapng::statistics(bytes, &statistics);
    }
}

/// `tapdeck recover` makes what indexes are missing.
fn build_index(dir: &Path) {
    let entries = || fs::read_dir(dir).expect("a store").count();
    let segments = entries();
    let mut command = Command::new(built());
    let out = command.args(["recover", "--dir"]).arg(dir).output().expect("the program was built");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // And the lock.
    assert!(entries() >= 2 * segments, "an index for each segment");
}

/// Returns the program, which cargo builds beside the directory of tests, of whichever crate.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a program");
    let dir = test.parent().and_then(Path::parent).expect("it lies in a directory");
    dir.join("tapdeck")
}

/// As pcap in nanoseconds, which has no place for interfaces and drops.
fn pcap(packets: &[Packet]) -> Vec<u8> {
    const MAGIC: u32 = 0xa1b2_3c4d;
    const SNAPLEN: u32 = 262_144;
    let mut file = MAGIC.to_ne_bytes().to_vec();
    file.extend([2_u16, 4].iter().flat_map(|v| v.to_ne_bytes()));
    file.extend([0; 8]);
    file.extend(SNAPLEN.to_ne_bytes());
    file.extend(u32::from(LinkType::ETHERNET.0).to_ne_bytes());
    for Packet { time_ns, original_len, frame } in packets {
        let (s, ns) = (time_ns / SECOND, time_ns % SECOND);
        for word in [s as u32, ns as u32, frame.len() as u32, *original_len] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    file
}
