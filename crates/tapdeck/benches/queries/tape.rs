//! Stores to ask about.
//!
//! A store is recorded gigabyte after gigabyte, each of 10,000 conversations between hosts of its
//! own: what a question about one of them has for an answer is as large in a small store as in a
//! large one. A pair of hosts that is seen all along, about 300 times in any store, is the
//! opposite. stenotype records the same packets, slower, so as not to lose any.

use std::path::{Path, PathBuf};

use pcap::Capture;

use super::recorder::{Method, Recorded, Recorder, files, store};
use super::traffic::Traffic;
use super::{in_flight, scratch, settle};
use tapdeck_testkit::Net;

/// Of the mix, with what pcapng adds to a packet.
const BYTES_PER_PACKET: f64 = 392.0;
pub const TAPDECK_PPS: f64 = 1.5e6;
pub const STENOTYPE_PPS: f64 = 200e3;
/// The pair that is seen all along: how often, and its addresses, which are `gen --mark-every`'s.
const SEEN: f64 = 300.0;
pub const MARKED: &str = "host 203.0.113.1 and host 203.0.113.2";

/// A store, and how it came to be. The files are gone when it is dropped.
pub struct Tape {
    method: Method,
    dir: tempfile::TempDir,
    sent: u64,
    pub recorded: Recorded,
}

impl Tape {
    pub fn record(method: Method, gigabytes: f64, pps: f64) -> Result<Self, String> {
        settle();
        let dir = scratch()?;
        let net = Net::new();
        let recorder = Recorder::start(method, &net, dir.path())?;
        let mut sent = 0;
        for flags in reels(gigabytes, pps) {
            sent += Traffic::Generated(flags).send(&net)?.packets;
        }
        in_flight();
        Ok(Self { method, dir, sent, recorded: recorder.end()? })
    }

    pub fn store(&self) -> PathBuf {
        store(self.method, self.dir.path())
    }

    pub fn describe(&self) {
        let Recorded { packets, packet_bytes, index_bytes, .. } = self.recorded;
        println!(
            "- {}: {packets} of {} packets, {:.2} GB, and an index of {:.2} % of that",
            self.method.name(),
            self.sent,
            packet_bytes as f64 / 1e9,
            100.0 * index_bytes as f64 / packet_bytes as f64
        );
    }
}

/// The generator's flags, for each gigabyte or what is left of one.
pub fn reels(gigabytes: f64, pps: f64) -> Vec<String> {
    let mark_us = (gigabytes * 1e9 / BYTES_PER_PACKET / pps * 1e6 / SEEN).ceil();
    (0..gigabytes.ceil() as u32)
        .map(|i| {
            let packets = 1e9 / BYTES_PER_PACKET * (gigabytes - f64::from(i)).min(1.0);
            format!(
                "--size imix --flows 10000 --src 10.{i}.0.0/16 --dst 172.{}.{}.0/20 --dport 1-1023 --seed {} \
                 --rate {pps}pps --count {packets:.0} --mark-every {mark_us}us",
                16 + i / 16,
                i % 16 * 16,
                i + 1
            )
        })
        .collect()
}

/// A packet from the middle of a store.
pub struct Middle {
    pub src: String,
    pub dst: String,
    pub sport: u16,
    pub dport: u16,
    /// The second in which it came, since 1970.
    pub time_s: i64,
}

impl Middle {
    /// Returns the filter of the packet's conversation, for libpcap.
    pub fn filter(&self) -> String {
        let Self { src, dst, sport, dport, .. } = self;
        format!("host {src} and host {dst} and udp port {sport} and port {dport}")
    }

    pub fn of(store: &Path) -> Result<Self, String> {
        let segments = segments(store)?;
        let segment = segments.get(segments.len() / 2).ok_or("an empty store")?;
        let mut file = Capture::from_file(segment).map_err(|e| e.to_string())?;
        let mut last = None;
        // Far enough in that the conversation is as long here as any, and still quick to reach.
        for _ in 0..100_000 {
            let Ok(packet) = file.next_packet() else { break };
            let frame = packet.data;
            let address = |at: usize| {
                let bytes = <[u8; 4]>::try_from(&frame[at..at + 4]).expect("four bytes");
                std::net::Ipv4Addr::from(bytes).to_string()
            };
            let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            // Not those of the pair that is seen all along.
            if frame.get(12..14) != Some(&[8, 0]) || frame[26] == 203 {
                continue;
            }
            last = Some(Self {
                src: address(26),
                dst: address(30),
                sport: port(34),
                dport: port(36),
                time_s: packet.header.ts.tv_sec,
            });
        }
        last.ok_or_else(|| format!("no packet in {}", segment.display()))
    }
}

fn segments(store: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = files(store)?;
    found.retain(|(path, _)| path.extension().is_some_and(|e| e == "pcapng"));
    Ok(found.into_iter().map(|(path, _)| path).collect())
}
