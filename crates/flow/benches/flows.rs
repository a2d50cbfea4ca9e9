//! What flow tables cost: `cargo bench -p tapdeck-flow --bench flows`.
//!
//! **Packets**: pcapng blocks lie in memory, are read and put into rows, as `tapdeck flows` does it
//! without a disk. **Rows** are then taken out, sorted and written as Parquet to nowhere. Packets
//! are of flows that come again and again (16, 10,000 at random) or, as in a flood, of a million
//! addresses. The link is made up: 500 hosts talk to 20,000 of which few are known to most, 4000
//! flows at once of 16 packets in the mean, and a granule has 180 packets, as of 700 bytes each.
//!
//! Figures are medians of rounds in which all cases take turns, with the least and the greatest, in
//! CPU time of one thread; they differ between machines. The most memory that the whole program had
//! is told at the end, without that of the packets themselves. It measures and asserts nothing, but
//! for `--test`, which runs everything once and tiny.

use std::io::{self, Write};
use std::net::Ipv4Addr;

use rustix::time::{ClockId, clock_gettime};
use tapdeck_flow::{FlowTable, ParquetFile, Rows};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Reader, Record};
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{IPV4, TCP, ethernet, ipv4, tcp};

/// About as much as a granule has.
const GRANULE: usize = 128 << 10;
const FRAME: usize = 60;
/// How many packets a granule of the link has.
const LINK_GRANULE: usize = 180;
const T0: u64 = 1_767_323_045_000_000_000;

struct Options {
    runs: usize,
    packets: usize,
}

impl Options {
    fn new() -> Self {
        let args: Vec<String> = std::env::args().collect();
        if args.iter().any(|arg| arg == "--test") {
            return Self { runs: 1, packets: 5000 };
        }
        let at = args.iter().position(|arg| arg == "--runs");
        let runs = at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(7);
        Self { runs, packets: 2_000_000 }
    }
}

/// What packets a case has.
#[derive(Clone, Copy)]
enum Packets {
    /// Of so many flows, each packet of one at random.
    Flows(u64),
    Link,
}

struct Case {
    name: &'static str,
    packets: Packets,
    /// A granule's blocks each.
    granules: Vec<Vec<u8>>,
    packet_ns: Vec<f64>,
    row_ns: Vec<f64>,
    rows: u64,
    bytes: u64,
}

impl Case {
    fn new(name: &'static str, packets: Packets, count: usize) -> Self {
        let mut random = SplitMix64(1);
        let mut link = Link::default();
        let (mut granules, mut made) = (Vec::new(), 0);
        while made < count {
            let most = if matches!(packets, Packets::Link) { LINK_GRANULE } else { usize::MAX };
            let (mut blocks, mut held) = (Vec::with_capacity(GRANULE + 128), 0);
            while blocks.len() < GRANULE && held < most {
                let frame = match packets {
                    Packets::Flows(flows) => frame(random.below(flows), random.below(2) == 0),
                    Packets::Link => link.frame(&mut random),
                };
                let at = blocks.len();
                blocks.resize(at + pcapng::packet_len(FRAME, 0, 0), 0);
                let pieces: [&[u8]; 3] = [&frame, &[], &[]];
                let time_ns = T0 + made as u64 * 5600;
                let len = FRAME as u32;
                pcapng::write_packet(&mut blocks[at..], 0, time_ns, pieces, len, 0, 0);
                made += 1;
                held += 1;
            }
            blocks.shrink_to_fit();
            granules.push(blocks);
        }
        let (packet_ns, row_ns) = (Vec::new(), Vec::new());
        Self { name, packets, granules, packet_ns, row_ns, rows: 0, bytes: 0 }
    }

    fn run(&mut self) {
        let mut table = FlowTable::new(true);
        let mut to = ParquetFile::new(Counted(0), "sensor", "tapdeck-00000001").expect("a file");
        let (mut packets, mut rows, mut at) = (0_u64, 0_u64, 4096);
        let (mut packet_ns, mut row_ns) = (0.0, 0.0);
        for blocks in &self.granules {
            let begin = cpu_ns();
            for record in Reader::inside(blocks) {
                if let Ok(Record::Packet(packet)) = record {
                    let time_ns = packet.timestamp as i64;
                    table.packet(LinkType::ETHERNET, packet.frame, packet.original_len, time_ns);
                    packets += 1;
                }
            }
            let end = at + GRANULE as u64;
            table.end_granule(at..end, 0);
            at = end;
            packet_ns += cpu_ns() - begin;
            if table.is_full() {
                let begin = cpu_ns();
                rows += write(&mut to, table.take());
                row_ns += cpu_ns() - begin;
            }
        }
        let begin = cpu_ns();
        rows += write(&mut to, table.finish());
        self.bytes = to.finish().expect("memory").0;
        row_ns += cpu_ns() - begin;
        self.rows = rows;
        self.packet_ns.push(packet_ns / packets as f64);
        self.row_ns.push(row_ns / rows as f64);
    }
}

/// Flows of a link: both hosts, their ports, and whether a packet was sent.
#[derive(Default)]
struct Link(Vec<([Ipv4Addr; 2], [u16; 2], bool)>);

impl Link {
    fn frame(&mut self, random: &mut SplitMix64) -> Vec<u8> {
        while self.0.len() < 4000 {
            let host = 0x0a01_0000 + random.below(500_u32);
            let rank = f64::from(random.below(1_000_000_u32)) / 1e6;
            // Few hosts have most of it.
            let other = 0x2000_0000 + ((rank * rank * rank * 20_000.0) as u32) * 7919;
            let port = [443, 443, 443, 80, 53, 53, 22, 8443][random.below(8_usize)];
            let ports = [32_768 + random.below(28_000_u16), port];
            self.0.push(([host, other].map(Ipv4Addr::from_bits), ports, false));
        }
        let at = random.below(self.0.len());
        let (ends, ports, has_begun) = &mut self.0[at];
        let is_forward = !*has_begun || random.below(2) == 0;
        let (a, b) = if is_forward { (0, 1) } else { (1, 0) };
        let mut segment = tcp([ports[a], ports[b]], 0, &[0; 6]);
        segment[13] = if *has_begun { 0x18 } else { 0x02 };
        let packet = ipv4(ends[a], ends[b], TCP, &segment);
        *has_begun = true;
        if random.below(16) == 0 {
            self.0.swap_remove(at);
        }
        ethernet([2; 6], [4; 6], &[], IPV4, &packet)
    }
}

/// A TCP segment of a flow.
fn frame(flow: u64, is_forward: bool) -> Vec<u8> {
    let address = |net: u32, host: u64| Ipv4Addr::from(net << 24 | host as u32);
    let ends = [address(10, flow), address(11, flow.wrapping_mul(7919) % (1 << 16))];
    let ports = [1024 + (flow % 60_000) as u16, 443];
    let by = |a: usize, b: usize| {
        let segment = tcp([ports[a], ports[b]], 0, &[0; 6]);
        ipv4(ends[a], ends[b], TCP, &segment)
    };
    ethernet([2; 6], [4; 6], &[], IPV4, &if is_forward { by(0, 1) } else { by(1, 0) })
}

fn write(to: &mut ParquetFile<Counted>, rows: &Rows) -> u64 {
    for (_, of_day) in rows.days() {
        to.write(of_day, rows).expect("memory");
    }
    rows.rows.len() as u64
}

/// A file that keeps nothing but its length.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    let options = Options::new();
    let mut cases = [
        ("16 flows", Packets::Flows(16)),
        ("10,000 flows", Packets::Flows(10_000)),
        ("a million addresses", Packets::Flows(1_000_000)),
        ("a link", Packets::Link),
    ]
    .map(|(name, packets)| Case::new(name, packets, options.packets));
    let before = most_memory();
    for _ in 0..options.runs {
        cases.iter_mut().for_each(Case::run);
    }
    println!(
        "| packets of {FRAME} bytes | ns a packet | least to greatest | rows | ns a row | least to greatest | bytes a row |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for case in &mut cases {
        let (packet, packet_least, packet_most) = spread(&mut case.packet_ns);
        let (row, row_least, row_most) = spread(&mut case.row_ns);
        println!(
            "| {} | {packet:.0} | {packet_least:.0} to {packet_most:.0} | {} | {row:.0} | {row_least:.0} to {row_most:.0} | {:.1} |",
            case.name,
            case.rows,
            case.bytes as f64 / case.rows as f64,
        );
        let flows = if let Packets::Flows(flows) = case.packets { flows } else { 1 };
        assert!(case.rows >= flows.min(options.packets as u64 / 4), "rows of all flows");
    }
    let took = (most_memory() - before) as f64 / 1024.0;
    println!("\nMemory beside the packets, at most: {took:.0} MiB");
}

/// Returns the most memory that this process had so far, in KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
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
