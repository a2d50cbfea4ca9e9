//! What the index costs by itself, for each packet: `cargo bench -p tapdeck-store --bench index`.
//!
//! Blocks of 1 MiB lie in memory, full of packets, and are indexed as the recorder's index threads
//! do it, chunks and all. They are **hot** (one block, again and again) or **cold** (256 MiB,
//! walked through). Packets are of flows that come again and again (1, 16, 1000 at random), of
//! other hosts and ports each, or of a flow of their own each.
//!
//! Then one, two and four threads index the same blocks; these figures are the time that passes
//! from the first block to the index on disk, the others CPU time.
//!
//! Figures are medians of rounds in which all cases take turns, with the least and the greatest;
//! they differ between machines. It measures and asserts nothing, but for `--test`, which runs
//! everything once and tiny.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use tapdeck_packet::pcapng;
use tapdeck_store::trial;
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{IPV4, UDP, ethernet, ipv4, udp};

const BLOCK: usize = 1 << 20;

struct Options {
    runs: usize,
    /// Bytes of packets in one run.
    bytes: usize,
}

impl Options {
    fn new() -> Self {
        let args: Vec<String> = std::env::args().collect();
        if args.iter().any(|arg| arg == "--test") {
            return Self { runs: 1, bytes: 2 * BLOCK };
        }
        let at = args.iter().position(|arg| arg == "--runs");
        let runs = at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(9);
        Self { runs, bytes: 256 * BLOCK }
    }
}

/// What packets a case has.
#[derive(Clone, Copy)]
enum Packets {
    /// Of so many flows, each packet of one at random.
    Flows(u64),
    /// Each of hosts (of 300) and ports (of 2000) at random.
    Hosts,
    /// Each of addresses and ports at random.
    New,
}

impl Packets {
    fn name(self) -> String {
        match self {
            Self::Flows(1) => "1 flow".into(),
            Self::Flows(n) => format!("{n} flows at random"),
            Self::Hosts => "hosts of 300, ports of 2000".into(),
            Self::New => "each of a flow of its own".into(),
        }
    }

    /// Makes a frame of so many bytes.
    fn frame(self, random: &mut SplitMix64, bytes: usize) -> Vec<u8> {
        let mut below = |n: u64| random.below(n);
        let (from, to, port_from, port_to) = match self {
            Self::Flows(n) => {
                let flow = below(n);
                (flow, flow.wrapping_mul(7919) % n, 1024 + flow, 443)
            }
            Self::Hosts => (below(300), below(300), below(2000), below(2000)),
            Self::New => (below(1 << 24), below(1 << 24), below(1 << 16), below(1 << 16)),
        };
        let address = |net: u32, host: u64| Ipv4Addr::from(net << 24 | host as u32);
        let payload = vec![0x5a; bytes - 42];
        let datagram = udp([port_from as u16, port_to as u16], &payload);
        let packet = ipv4(address(10, from), address(11, to), UDP, &datagram);
        ethernet([2; 6], [4; 6], &[], IPV4, &packet)
    }

    /// Makes full blocks of packets.
    fn blocks(self, blocks: usize, frame_bytes: usize) -> Vec<Vec<u8>> {
        let mut random = SplitMix64(1);
        let mut block = || {
            let mut bytes = Vec::with_capacity(BLOCK);
            let len = pcapng::packet_len(frame_bytes, 0, 0);
            while bytes.len() + len <= BLOCK - 12 {
                let frame = self.frame(&mut random, frame_bytes);
                let at = bytes.len();
                bytes.resize(at + len, 0);
                let pieces: [&[u8]; 3] = [&frame, &[], &[]];
                let time = 1_767_323_045_000_000_000 + at as u64;
                pcapng::write_packet(&mut bytes[at..], 0, time, pieces, frame_bytes as u32, 0, 0);
            }
            let rest = BLOCK - bytes.len();
            pcapng::fill(&mut bytes, rest);
            bytes
        };
        (0..blocks).map(|_| block()).collect()
    }
}

struct Case {
    packets: Packets,
    frame_bytes: usize,
    is_hot: bool,
    blocks: Vec<Arc<Vec<u8>>>,
    ns: Vec<f64>,
    index_bytes: u64,
}

impl Case {
    fn packets_of_a_block(&self) -> usize {
        (BLOCK - 12) / pcapng::packet_len(self.frame_bytes, 0, 0)
    }
}

fn main() {
    let options = Options::new();
    let all = options.bytes / BLOCK;
    let mut cases = Vec::new();
    for (packets, frame_bytes, is_hot) in [
        (Packets::Flows(1), 60, true),
        (Packets::Flows(1), 60, false),
        (Packets::Flows(16), 60, true),
        (Packets::Flows(16), 60, false),
        (Packets::Flows(1000), 60, false),
        (Packets::Hosts, 60, false),
        (Packets::New, 60, false),
        (Packets::Flows(16), 594, false),
        (Packets::Flows(1000), 594, false),
        (Packets::Flows(16), 1514, false),
    ] {
        let blocks = packets.blocks(if is_hot { 1 } else { all }, frame_bytes);
        let blocks = blocks.into_iter().map(Arc::new).collect();
        cases.push(Case { packets, frame_bytes, is_hot, blocks, ns: Vec::new(), index_bytes: 0 });
    }
    for _ in 0..options.runs {
        for case in &mut cases {
            let blocks = case.blocks.iter().cycle().take(all).map(|block| block.as_slice());
            let begin = cpu_ns();
            case.index_bytes = trial::build(blocks);
            case.ns.push((cpu_ns() - begin) / (case.packets_of_a_block() * all) as f64);
        }
    }
    println!("| packets | bytes | ring | ns a packet | least to greatest | index, % |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for case in &mut cases {
        let (median, least, greatest) = spread(&mut case.ns);
        println!(
            "| {} | {} | {} | {median:.1} | {least:.1} to {greatest:.1} | {:.3} |",
            case.packets.name(),
            case.frame_bytes,
            if case.is_hot { "hot" } else { "cold" },
            100.0 * case.index_bytes as f64 / options.bytes as f64,
        );
    }
    println!("\n| packets | threads | ns a packet | least to greatest | as fast as one |");
    println!("| --- | --- | --- | --- | --- |");
    for case in cases.iter().filter(|case| case.frame_bytes == 60 && !case.is_hot) {
        threads(case, options.runs);
    }
}

/// Has several threads index what a case holds, taking turns.
fn threads(case: &Case, runs: usize) {
    let mut ns = [(1, Vec::new()), (2, Vec::new()), (4, Vec::new())];
    let packets = (case.packets_of_a_block() * case.blocks.len()) as f64;
    for _ in 0..runs {
        for (threads, ns) in &mut ns {
            let dir = tempfile::tempdir().expect("a directory");
            let count = NonZeroUsize::new(*threads).expect("at least one");
            let took = trial::index(dir.path(), &case.blocks, count).expect("an index");
            ns.push(took.as_nanos() as f64 / packets);
        }
    }
    let alone = spread(&mut ns[0].1.clone()).0;
    for (threads, ns) in &mut ns {
        let (median, least, greatest) = spread(ns);
        println!(
            "| {} | {threads} | {median:.1} | {least:.1} to {greatest:.1} | {:.2} |",
            case.packets.name(),
            alone / median
        );
    }
}

/// Returns the CPU time of this thread so far.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the median, the least and the greatest.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}
