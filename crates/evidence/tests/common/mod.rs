//! What the tests of evidence share: stores of a few segments, made for the purpose.

#![allow(dead_code, reason = "each test file takes its part")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tapdeck_evidence::{Bundle, Manifest, PrivateKey, Question, Time};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_store::SegmentName;
use tapdeck_store::io::{Directory, Storage};
use tapdeck_testkit::frame::UdpFrame;

pub const SECOND: i64 = 1_000_000_000;
/// When the recordings of these tests begin.
pub const T0: i64 = 1_767_323_045 * SECOND;

/// A packet to be recorded: when, to which port, and how many were lost before it.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub time_ns: i64,
    pub port: u16,
    pub dropped: u64,
}

pub fn made(time_ns: i64, port: u16) -> Made {
    Made { time_ns, port, dropped: 0 }
}

/// Writes a closed segment, of a recorder that began with it where `is_first`.
pub fn segment(dir: &Path, number: u64, (began_ns, ended_ns): (i64, i64), packets: &[Made]) {
    let mut bytes = Vec::new();
    pcapng::section_header(&mut bytes, "linux", "tapdeck 0.1.0", None);
    let interface = InterfaceDescription {
        link: LinkType::ETHERNET,
        snaplen: 262_144,
        name: "eth0".into(),
        description: "hook tcx, CPU 0".into(),
        filter: None,
        hardware: None,
        mac: None,
    };
    pcapng::interface_description(&mut bytes, &interface);
    fill(&mut bytes);
    for (number, packet) in packets.iter().enumerate() {
        let ports = [4000, packet.port];
        let number = number as u32;
        let frame = UdpFrame { to: [2; 6], len: 60, number, ports, ..UdpFrame::default() }.bytes();
        let start = bytes.len();
        bytes.resize(start + pcapng::packet_len(frame.len(), 1, packet.dropped), 0);
        let (time_ns, len) = (packet.time_ns as u64, frame.len() as u32);
        let frame = [&frame[..], &[], &[]];
        pcapng::write_packet(&mut bytes[start..], 0, time_ns, frame, len, 1, packet.dropped);
    }
    fill(&mut bytes);
    let dropped = packets.iter().map(|p| p.dropped).sum();
    let delivered = packets.len() as u64;
    let span = (began_ns as u64, ended_ns as u64);
    let told = StatisticsBlock::of_packets(0, span, delivered, dropped);
    pcapng::statistics(&mut bytes, &told);
    fill(&mut bytes);
    let name = SegmentName { number, began_s: began_ns.div_euclid(SECOND), live: false };
    fs::write(name.path(dir), bytes).expect("a file");
}

/// Says that recorders began with these segments, on machines whose clock was kept.
pub fn recorders(dir: &Path, firsts: &[u64]) {
    let line = |first: &u64| format!("{first} 0 0 boot right\n");
    fs::write(dir.join(".tapdeck.times"), firsts.iter().map(line).collect::<String>())
        .expect("a file");
}

fn fill(bytes: &mut Vec<u8>) {
    let gap = bytes.len().next_multiple_of(4096) - bytes.len();
    match gap {
        0 => {}
        1..pcapng::MIN_FILL => pcapng::fill(bytes, gap + 4096),
        _ => pcapng::fill(bytes, gap),
    }
}

pub fn question(filter: &str, after_ns: i64, before_ns: i64) -> Question {
    Question {
        filter: filter.into(),
        after: Some(Time(after_ns)),
        before: Some(Time(before_ns)),
        ..Question::default()
    }
}

pub fn storage(dir: &Path) -> Arc<dyn Storage> {
    Arc::new(Directory::new(dir))
}

/// Makes a bundle of what a store has.
pub fn export(store: &Path, question: &Question, key: &PrivateKey, out: &Path) -> Manifest {
    let bundle = Bundle::begin(out).expect("a new directory");
    let manifest = bundle.add_packets(&storage(store), question, || true).expect("a store");
    bundle.finish(manifest, key).expect("room")
}

/// Returns times and frames of the packets of pcapng files.
pub fn packets_of(path: &Path) -> Vec<(i64, Vec<u8>)> {
    packets_in(&fs::read(path).expect("a file"))
}

/// Returns times and frames of the packets of pcapng.
pub fn packets_in(bytes: &[u8]) -> Vec<(i64, Vec<u8>)> {
    let packet = |record| match record {
        pcapng::Record::Packet(packet) => Some((packet.timestamp as i64, packet.frame.to_vec())),
        _ => None,
    };
    pcapng::Reader::new(bytes).filter_map(|record| packet(record.expect("whole blocks"))).collect()
}
