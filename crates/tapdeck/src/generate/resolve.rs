//! From flags to a job: everything that can be wrong with a call is found here, before the first
//! packet goes.
//!
//! Making a [`Job`] looks at interfaces and reads the files that flags name. It sends nothing.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;
use rustix::thread::{CpuSet, sched_getaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_packet::generate::Limits;
use tapdeck_traffic::pacing::{Gaps, OnOff, Rate};
use tapdeck_traffic::replay::{self, Contents, Replay, Rewrite, Speed};
use tapdeck_traffic::sizes::{Error as SizeError, Method, Spec, Table};
use tapdeck_traffic::workload::{Mac, Mark, Outer, OuterKind, Protocol, Workload};

use super::backend::{self, Backend};
use super::interfaces::{self, ETHERNET};
use crate::flags::{GapsChoice, Gen, MethodChoice, ProtoChoice, TunnelChoice};
use crate::usage::{Usage, usage};

/// A run as it was asked for, checked.
pub struct Job {
    pub interfaces: Vec<Interface>,
    /// Threads for each interface.
    pub threads: u32,
    pub cpus: Vec<u32>,
    pub load: Load,
    /// The rate as it was asked for.
    pub rate_text: String,
    /// Packets a second that were asked for.
    pub asked_pps: Option<f64>,
    pub limits: Limits,
    pub backend: Backend,
    /// Why the back end was chosen, where the user left it open.
    pub reason: Option<String>,
}

/// What is to be sent.
pub enum Load {
    Generated(Box<Generation>),
    Recorded(Recording),
}

pub struct Generation {
    pub workload: Workload,
    pub table: Table,
    pub rate: Rate,
    pub gaps: Gaps,
    /// The share of all packets that each sender has.
    pub shares: Vec<f64>,
}

pub struct Recording {
    pub path: PathBuf,
    pub contents: Contents,
    /// The file's packets, until they are given to a sender.
    pub replay: Option<Box<Replay>>,
    /// Packets of all rounds; 0 is without end.
    pub packets: u64,
}

impl Job {
    pub fn new(f: &Gen) -> Result<Self> {
        check_cpus(&f.cpu)?;
        match &f.replay {
            Some(path) => Self::replay(f, path),
            None => Self::generate(f),
        }
    }

    fn generate(f: &Gen) -> Result<Self> {
        let senders = f.interfaces.len() as u32 * f.threads;
        let workload = workload(f, senders)?;
        let (rate_text, rate) = rate(f)?;
        let gaps = gaps(f, rate)?;
        if f.count.is_some_and(|count| count < senders.into()) {
            return usage(format!("--count: {senders} threads need one packet each at least"));
        }
        let interfaces = interfaces::find(f)?;
        let bounds = interfaces::bounds(&workload, &interfaces);
        let method = match f.method {
            MethodChoice::Alias => Method::Alias,
            MethodChoice::TwoStage => Method::TwoStage,
        };
        let size = f.size.clone().unwrap_or(Spec::One(workload.shortest().max(DEFAULT_SIZE)));
        let table = Table::new(&size, method, bounds, f.up_to_damage).map_err(|e| match e {
            SizeError::Form(_)
            | SizeError::Small { .. }
            | SizeError::Large { .. }
            | SizeError::Method => anyhow::Error::from(Usage(format!("--size: {e}"))),
            e => e.into(),
        })?;
        if f.up_to_damage && !matches!(size, Spec::Dist(_) | Spec::Trace(_)) {
            return usage("--up-to-damage: no file is read");
        }
        let pps = rate.packets_per_s(table.mean());
        check_gaps(gaps, pps)?;
        let shares = workload.shares();
        check_marks(&workload, pps.map(|pps| pps * shares[0]))?;
        for interface in &interfaces {
            interfaces::fits_link(interface, pps, table.mean(), interfaces.len())?;
        }
        let busiest = shares.iter().copied().fold(0.0, f64::max);
        let (backend, reason) =
            backend::choose(f, &interfaces, &table, pps.map(|pps| pps * busiest))?;
        Ok(Self {
            interfaces,
            threads: f.threads,
            cpus: f.cpu.clone(),
            load: Load::Generated(Box::new(Generation { workload, table, rate, gaps, shares })),
            rate_text,
            asked_pps: pps,
            limits: limits(f),
            backend,
            reason: reason.map(str::to_owned),
        })
    }

    fn replay(f: &Gen, path: &Path) -> Result<Self> {
        let interfaces = interfaces::find(f)?;
        let [interface] = &*interfaces else {
            return usage("--replay: a file is sent by one interface");
        };
        let (backend, reason) = backend::choose_for_replay(f.backend)?;
        let speed = replay_speed(f)?;
        let options = replay::Options {
            timing: speed.timing(Gaps::Constant, 0),
            loops: f.loops,
            rewrite: Rewrite {
                rules: f.rewrite.clone(),
                source_mac: f.src_mac,
                destination_mac: f.dst_mac,
            },
            longest: (interface.mtu + ETHERNET) as usize,
            limits: limits(f),
            up_to_damage: f.up_to_damage,
        };
        let replay = Replay::open(path, options)?;
        let contents = replay.contents().clone();
        let asked_pps = match speed {
            Speed::Rate(rate) => rate.packets_per_s(contents.mean_bytes()),
            Speed::Max => None,
            Speed::Factor(_) if contents.mean_gap_ns() == 0 => None,
            Speed::Factor(factor) => Some(1e9 * factor / contents.mean_gap_ns() as f64),
        };
        if matches!(speed, Speed::Rate(_)) {
            interfaces::fits_link(interface, asked_pps, contents.mean_bytes(), 1)?;
        }
        let rounds = contents.round.packets.saturating_mul(f.loops);
        let packets = f.count.map_or(rounds, |n| if rounds == 0 { n } else { n.min(rounds) });
        let replay = Some(Box::new(replay));
        Ok(Self {
            load: Load::Recorded(Recording { path: path.to_owned(), contents, replay, packets }),
            interfaces,
            threads: 1,
            cpus: f.cpu.clone(),
            rate_text: f.speed.0.clone(),
            asked_pps,
            limits: limits(f),
            backend,
            reason: reason.map(str::to_owned),
        })
    }

    pub fn senders(&self) -> u32 {
        self.interfaces.len() as u32 * self.threads
    }

    /// Returns how many packets will be sent; 0 where nobody knows.
    pub fn packets(&self) -> u64 {
        match &self.load {
            Load::Generated(_) => self.limits.packets,
            Load::Recorded(recording) => recording.packets,
        }
    }

    /// Returns where each sender stops. A count gives one packet to each sender, and divides the
    /// rest by their shares.
    pub fn limits_of_each(&self, shares: &[f64]) -> Vec<Limits> {
        let mut each = vec![self.limits; shares.len()];
        if self.limits.packets == 0 {
            return each;
        }
        let rest = self.limits.packets - shares.len() as u64;
        let mut left = rest;
        for (limits, share) in each.iter_mut().zip(shares) {
            let part = ((rest as f64 * share) as u64).min(left);
            limits.packets = 1 + part;
            left -= part;
        }
        each[0].packets += left;
        each
    }
}

/// Bytes of a frame where the user does not say how many, if that has room for the headers.
const DEFAULT_SIZE: u16 = 64;

const WIRE_OF_WHAT: &str =
    "--wire: it says what bits a second count; give a rate in bits, as 700mbit";
fn limits(f: &Gen) -> Limits {
    let duration_ns = f.duration.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    Limits { packets: f.count.unwrap_or(0), duration_ns }
}

fn check_cpus(cpus: &[u32]) -> Result<()> {
    let allowed = sched_getaffinity(None).context("cannot ask for the CPUs")?;
    for &cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU || !allowed.is_set(cpu as usize) {
            return usage(format!(
                "--cpu {cpu}: this process may not run there, or there is no such CPU"
            ));
        }
    }
    Ok(())
}

fn rate(f: &Gen) -> Result<(String, Rate)> {
    let (text, rate) = f.ipg.clone().unwrap_or_else(|| f.rate.clone());
    match rate {
        Rate::Bits { per_s, .. } => {
            let of = if f.wire { "of the wire" } else { "of frames" };
            Ok((format!("{text} {of}"), Rate::Bits { per_s, wire: f.wire }))
        }
        _ if f.wire => usage(WIRE_OF_WHAT),
        rate => Ok((text, rate)),
    }
}

fn gaps(f: &Gen, rate: Rate) -> Result<Gaps> {
    let of_sources = f.hurst.is_some() || f.on.is_some() || f.off.is_some() || f.sources.is_some();
    if of_sources && f.gaps != GapsChoice::OnOff {
        return usage("--hurst, --on, --off and --sources are for --gaps onoff");
    }
    if f.gaps == GapsChoice::Constant {
        return Ok(Gaps::Constant);
    }
    if rate == Rate::Max {
        return usage("--gaps: packets that go as fast as they can have no gaps; give a --rate");
    }
    if f.gaps == GapsChoice::Poisson {
        return Ok(Gaps::Poisson);
    }
    let hurst = f.hurst.unwrap_or(0.8);
    if !(hurst > 0.5 && hurst < 1.0) {
        return usage(format!("--hurst {hurst}: it must be above 0.5 and below 1"));
    }
    let ns = |time: Option<Duration>| time.unwrap_or(Duration::from_millis(10)).as_nanos() as f64;
    let sources = f.sources.unwrap_or(16);
    Ok(Gaps::OnOff(OnOff { hurst, on_ns: ns(f.on), off_ns: ns(f.off), sources }))
}

/// Refuses sources of bursts that change much more often than packets come: following their changes
/// would take longer than the packets.
fn check_gaps(gaps: Gaps, pps: Option<f64>) -> Result<()> {
    const MOST_WORK: f64 = 1e6;
    let (Gaps::OnOff(model), Some(pps)) = (gaps, pps) else { return Ok(()) };
    if model.work(pps) > MOST_WORK {
        return usage(
            "--gaps onoff: the sources change far more often than packets are sent; give longer --on and --off, or fewer --sources",
        );
    }
    Ok(())
}

/// Refuses marks that come as often as packets. The first sender sends them, each in place of a
/// packet that is due.
fn check_marks(workload: &Workload, pps: Option<f64>) -> Result<()> {
    let (Some(mark), Some(pps)) = (workload.mark, pps) else { return Ok(()) };
    if mark.every_ns as f64 * pps <= 1e9 {
        return usage("--mark-every: at this rate, there would be nothing but marks");
    }
    Ok(())
}

/// The MAC addresses where the user gives none: administered locally, and nobody's.
const SOURCE_MAC: Mac = Mac([2, b't', b'd', 0, 0, 1]);
const DESTINATION_MAC: Mac = Mac([2, b't', b'd', 0, 0, 2]);

/// Returns the speed of a replay, whose bits a second may be those of the wire.
fn replay_speed(f: &Gen) -> Result<Speed> {
    match f.speed.1 {
        Speed::Rate(Rate::Bits { per_s, .. }) => {
            Ok(Speed::Rate(Rate::Bits { per_s, wire: f.wire }))
        }
        _ if f.wire => usage(WIRE_OF_WHAT),
        speed => Ok(speed),
    }
}

/// Returns the marks, whose addresses are of the IP version of the flows where none are given.
fn mark(f: &Gen, ipv6: bool) -> Option<Mark> {
    let end = |given: Option<IpAddr>, v4: &str, v6: &str| {
        let default = if ipv6 { v6 } else { v4 };
        given.unwrap_or_else(|| default.parse().expect("an address"))
    };
    f.mark_every.map(|every| Mark {
        every_ns: u64::try_from(every.as_nanos()).unwrap_or(u64::MAX),
        source: end(f.mark_src, "203.0.113.1", "2001:db8::1"),
        destination: end(f.mark_dst, "203.0.113.2", "2001:db8::2"),
    })
}

fn workload(f: &Gen, senders: u32) -> Result<Workload> {
    let ipv6 = f.ipv6 || [f.src, f.dst].iter().flatten().any(|net| net.addr().is_ipv6());
    let default =
        |v4: &str, v6: &str| -> IpNet { if ipv6 { v6 } else { v4 }.parse().expect("a network") };
    let source = f.src.unwrap_or_else(|| default("198.18.0.0/24", "2001:2::/64"));
    let destination = f.dst.unwrap_or_else(|| default("198.19.0.0/24", "2001:2:0:1::/64"));
    if f.ipv6 && source.addr().is_ipv4() {
        return usage(format!("--ipv6 with --src {source}: that is an IPv4 address"));
    }
    if f.vni.is_some() && f.tunnel == Some(TunnelChoice::Gre) {
        return usage("--vni: GRE has no network identifier; it is for --tunnel vxlan");
    }
    if f.vlan.len() > 2 {
        return usage("--vlan: one tag or two");
    }
    let outer = f.tunnel.map(|kind| Outer {
        kind: match kind {
            TunnelChoice::Vxlan => OuterKind::Vxlan,
            TunnelChoice::Gre => OuterKind::Gre,
        },
        source: f.tunnel_src,
        destination: f.tunnel_dst,
        vni: f.vni.unwrap_or(1),
    });
    let protocol = |p: &ProtoChoice| match p {
        ProtoChoice::Udp => Protocol::Udp,
        ProtoChoice::Tcp => Protocol::Tcp,
        ProtoChoice::Icmp => Protocol::Icmp,
    };
    let workload = Workload {
        seed: f.seed,
        source_mac: f.src_mac.unwrap_or(SOURCE_MAC),
        destination_mac: f.dst_mac.unwrap_or(DESTINATION_MAC),
        vlans: f.vlan.clone(),
        outer,
        source,
        destination,
        source_ports: f.sport,
        destination_ports: f.dport,
        protocols: f.proto.iter().map(protocol).collect(),
        flows: f.flows.unwrap_or(senders),
        zipf: f.zipf,
        payload: f.payload,
        mark: mark(f, source.addr().is_ipv6()),
        senders,
    };
    workload.check().map_err(|e| Usage(e.to_string()))?;
    Ok(workload)
}
