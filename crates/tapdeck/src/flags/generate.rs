//! Which flags does `gen` have? They say what is sent or replayed, how fast, by which interfaces,
//! and how frames reach them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use tapdeck_traffic::pacing::Rate;
use tapdeck_traffic::replay::{self, NetworkSwap, Rewrite, Speed};
use tapdeck_traffic::sizes;
use tapdeck_traffic::workload::{MAX_FLOWS, Mac, Payload, Ports};

use crate::units;

/// Send generated or recorded traffic.
///
/// Generated packets carry a stream number, a sequence number, their send time and a checksum, by
/// which `tapdeck check-traffic` finds what was lost, repeated, reordered or damaged. The same
/// flags and seed make the same packets, byte for byte but for the send time, whatever the back
/// end.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tapdeck gen -i veth0 --count 1000000 --json sent.json
  tapdeck gen -i eth1 --size dist:uplink.dist --rate 700mbit --flows 1000 --zipf 1.1 --duration 30s
  tapdeck gen -i eth1 --size imix --rate 200kpps --gaps onoff --hurst 0.85 --proto udp,tcp,icmp --vlan 42
  tapdeck gen -i eth1 --replay office.pcapng --speed x2 --rewrite 10.1.0.0/16=198.18.0.0/16")]
pub struct Gen {
    /// Interfaces to send by, separated by commas
    #[arg(
        short,
        long = "interface",
        value_name = "IFACE[,IFACE]",
        value_delimiter = ',',
        value_parser = units::interface,
        required = true
    )]
    pub interfaces: Vec<String>,

    /// Length of frames without check sequence: 64, 64-1500, normal:64-1500, imix, dist:FILE
    /// (drawn from a distribution as `tapdeck dist` reads), trace:FILE (the sizes of a capture
    /// file, in their order) [default: 64, or as much as the headers take]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<sizes::Spec>,

    /// How sizes are drawn with dist:FILE: each with its exact share, or by the two-stage model
    /// (see `tapdeck dist`)
    #[arg(long, value_enum, default_value_t = MethodChoice::Alias)]
    pub method: MethodChoice,

    /// Packets a second (1.2mpps, 50kpps) or bits a second of frames (700mbit, 9.6gbit), all
    /// interfaces together; max: as fast as it goes
    #[arg(long, value_name = "RATE", default_value = "max", value_parser = rate, allow_hyphen_values = true)]
    pub rate: (String, Rate),

    /// Time from one packet to the next, instead of a rate: 800ns, 3us
    #[arg(long, value_name = "TIME", conflicts_with = "rate", value_parser = gap, allow_hyphen_values = true)]
    pub ipg: Option<(String, Rate)>,

    /// Bits a second count what the wire carries: 24 bytes more a frame for preamble, check
    /// sequence and gap
    #[arg(long)]
    pub wire: bool,

    /// How gaps vary: not at all; exponentially; or bursts of on-off sources, self-similar
    /// together, which keep to the rate in the long run
    #[arg(long, value_enum, default_value_t = GapsChoice::Constant)]
    pub gaps: GapsChoice,

    /// Hurst parameter of --gaps onoff, above 0.5 and below 1 [default: 0.8]
    #[arg(long, value_name = "H", requires = "gaps")]
    pub hurst: Option<f64>,

    /// Mean time that a source of --gaps onoff is on [default: 10ms]
    #[arg(long, value_name = "TIME", requires = "gaps", value_parser = units::duration)]
    pub on: Option<Duration>,

    /// Mean time that a source of --gaps onoff is off [default: 10ms]
    #[arg(long, value_name = "TIME", requires = "gaps", value_parser = units::duration)]
    pub off: Option<Duration>,

    /// Sources of --gaps onoff [default: 16]
    #[arg(long, value_name = "N", requires = "gaps", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sources: Option<u32>,

    /// Stop after so many packets; without this and --duration it sends until Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// Number of flows [default: 1 for each thread]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FLOWS)))]
    pub flows: Option<u32>,

    /// Share of flow n is 1/n^S; without: all the same
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub zipf: Option<f64>,

    /// Source addresses [default: 198.18.0.0/24, or 2001:2::/64 with --ipv6]
    #[arg(long, value_name = "NET", value_parser = net)]
    pub src: Option<IpNet>,

    /// Destination addresses [default: 198.19.0.0/24, or 2001:2:0:1::/64 with --ipv6]
    #[arg(long, value_name = "NET", value_parser = net)]
    pub dst: Option<IpNet>,

    /// Source ports; identifiers with ICMP
    #[arg(long, value_name = "N[-N]", default_value = "49152-65535")]
    pub sport: Ports,

    /// Destination ports
    #[arg(long, value_name = "N[-N]", default_value = "9")]
    pub dport: Ports,

    /// Transports; flows have them in turn
    #[arg(
        long,
        value_enum,
        value_name = "PROTO[,PROTO]",
        value_delimiter = ',',
        default_value = "udp"
    )]
    pub proto: Vec<ProtoChoice>,

    /// IPv6
    #[arg(long)]
    pub ipv6: bool,

    /// Source MAC address [default: 02:74:64:00:00:01, or as recorded]
    #[arg(long, value_name = "MAC")]
    pub src_mac: Option<Mac>,

    /// Destination MAC address [default: 02:74:64:00:00:02, or as recorded]
    #[arg(long, value_name = "MAC")]
    pub dst_mac: Option<Mac>,

    /// VLAN tag; two for QinQ, the outer (802.1ad) first
    #[arg(long, value_name = "N[,N]", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Vec<u16>,

    /// Put the packets into a tunnel over IPv4
    #[arg(long, value_enum)]
    pub tunnel: Option<TunnelChoice>,

    /// Outer source address of the tunnel
    #[arg(long, value_name = "ADDR", default_value = "192.0.2.1", requires = "tunnel")]
    pub tunnel_src: Ipv4Addr,

    /// Outer destination address of the tunnel
    #[arg(long, value_name = "ADDR", default_value = "192.0.2.2", requires = "tunnel")]
    pub tunnel_dst: Ipv4Addr,

    /// VXLAN network identifier [default: 1]
    #[arg(long, value_name = "N", requires = "tunnel", value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    pub vni: Option<u32>,

    /// Send a marked packet, with addresses of its own, every so often in place of one that is due
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub mark_every: Option<Duration>,

    /// Source address of marked packets [default: 203.0.113.1, or 2001:db8::1 with --ipv6]
    #[arg(long, value_name = "ADDR", requires = "mark_every")]
    pub mark_src: Option<IpAddr>,

    /// Destination address of marked packets [default: 203.0.113.2, or 2001:db8::2 with --ipv6]
    #[arg(long, value_name = "ADDR", requires = "mark_every")]
    pub mark_dst: Option<IpAddr>,

    /// What fills packets: random, zero, or compressible:0.3 (that share of it is random)
    #[arg(long, value_name = "KIND", default_value = "random", value_parser = payload)]
    pub payload: Payload,

    /// Seed of the random numbers: the same seed makes the same packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Send the packets of a capture file (pcap or pcapng) instead
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_WITH_REPLAY)]
    pub replay: Option<PathBuf>,

    /// Speed of a replay: x1 as it was recorded, x2 twice as fast, a rate as --rate, or max
    #[arg(long, value_name = "SPEED", default_value = "x1", requires = "replay", value_parser = speed)]
    pub speed: (String, Speed),

    /// Replay the file so many times; 0: without end
    #[arg(long = "loop", value_name = "N", default_value_t = 1, requires = "replay")]
    pub loops: u64,

    /// Give the hosts of one network the addresses of another in a replay, with checksums put
    /// right; may be repeated
    #[arg(long, value_name = "OLD=NEW", requires = "replay", value_parser = rewrite)]
    pub rewrite: Vec<NetworkSwap>,

    /// How packets are sent: made by a BPF program in the kernel (xdp), by a packet socket past
    /// the queueing discipline (txring), or by an AF_XDP socket; auto takes what can do what
    /// is asked, and says which
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,

    /// Threads for each interface; each sends flows of its own, and at a rate their share of it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub threads: u32,

    /// Run the threads on these CPUs, in turn
    #[arg(long, value_name = "N[,N]", value_delimiter = ',')]
    pub cpu: Vec<u32>,

    /// Write what was sent as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Send also by an interface that carries the default route
    #[arg(long)]
    pub yes_this_interface: bool,

    /// With dist:FILE, trace:FILE and --replay: use a damaged capture file up to the damage
    #[arg(long)]
    pub up_to_damage: bool,
}

/// Flags that do not go with a replay, whose capture file decides what they would.
const NOT_WITH_REPLAY: [&str; 26] = [
    "size",
    "method",
    "rate",
    "ipg",
    "gaps",
    "hurst",
    "on",
    "off",
    "sources",
    "flows",
    "zipf",
    "src",
    "dst",
    "sport",
    "dport",
    "proto",
    "ipv6",
    "vlan",
    "tunnel",
    "tunnel_src",
    "tunnel_dst",
    "vni",
    "mark_every",
    "payload",
    "seed",
    "threads",
];

/// How sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodChoice {
    Alias,
    TwoStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GapsChoice {
    Constant,
    Poisson,
    #[value(name = "onoff")]
    OnOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtoChoice {
    Udp,
    Tcp,
    Icmp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TunnelChoice {
    Vxlan,
    Gre,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    Auto,
    Xdp,
    Txring,
    Afxdp,
}

fn size(s: &str) -> Result<sizes::Spec, String> {
    s.parse().map_err(|e: sizes::Error| e.to_string())
}

fn rate(s: &str) -> Result<(String, Rate), String> {
    s.parse()
        .map(|rate| (s.to_owned(), rate))
        .map_err(|e: tapdeck_traffic::pacing::Error| e.to_string())
}

fn gap(s: &str) -> Result<(String, Rate), String> {
    Rate::from_gap(s).map(|rate| (format!("a packet every {s}"), rate)).map_err(|e| e.to_string())
}

fn speed(s: &str) -> Result<(String, Speed), String> {
    s.parse().map(|speed| (s.to_owned(), speed)).map_err(|e: replay::Error| e.to_string())
}

fn rewrite(s: &str) -> Result<NetworkSwap, String> {
    Rewrite::parse(s).map_err(|e| e.to_string())
}

/// Reads a network, or a single address.
fn net(s: &str) -> Result<IpNet, String> {
    s.parse::<IpNet>()
        .or_else(|_| s.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "is no network; write 10.0.0.0/24, 2001:db8::/64 or one address".into())
}

fn payload(s: &str) -> Result<Payload, String> {
    let wrong = || "is no payload; write random, zero or compressible:0.3".to_owned();
    match s.split_once(':') {
        None if s == "random" => Ok(Payload::Random),
        None if s == "zero" => Ok(Payload::Zero),
        Some(("compressible", degree)) => {
            degree.parse().map(Payload::Compressible).map_err(|_| wrong())
        }
        _ => Err(wrong()),
    }
}
