//! What the user learns of a daemon: the live line, the JSON, the summary.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tapdeck_capture::Event;
use tapdeck_capture::groups::{DeckStats, GroupConfig, GroupStats, Groups, MemberStats, PortStats};

use super::config::Plan;
use crate::control::Peer;
use crate::progress_line::Line;
use crate::units::{show_bytes, show_count, show_rate};

/// All counters at a moment.
pub struct Snapshot {
    pub stats: DeckStats,
    /// The processes behind the members.
    pub peers: BTreeMap<u32, Peer>,
    pub elapsed: Duration,
}

/// What is told of it.
#[derive(Serialize)]
pub struct Status<'a> {
    elapsed_s: u64,
    elapsed_us: u64,
    ports: Vec<Port<'a>>,
    pub groups: Vec<Group<'a>>,
    /// What the rings of each member take.
    member_bytes: u64,
    #[serde(rename = "final")]
    is_final: bool,
}

#[derive(Serialize)]
struct Port<'a> {
    interface: &'a str,
    hook: &'a str,
    attached: bool,
    seen: u64,
    nic_received: u64,
    nic_dropped: u64,
    nic_sent: u64,
}

#[derive(Serialize)]
pub struct Group<'a> {
    name: &'a str,
    interfaces: &'a [String],
    hook: &'a str,
    steering: String,
    snaplen: u32,
    filter: Option<&'a str>,
    /// How many judge.
    rules: u32,
    paused: bool,
    seen: u64,
    filtered: u64,
    no_member: u64,
    extra: u64,
    captured: u64,
    bytes_captured: u64,
    dropped_ring: u64,
    dropped_other: u64,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    #[serde(rename = "member")]
    number: u32,
    weight: u32,
    pid: i32,
    uid: u32,
    captured: u64,
    bytes_captured: u64,
    dropped_ring: u64,
    dropped_other: u64,
    ring_bytes: u64,
    ring_fill_bytes: u64,
    ring_fill_percent: u64,
}

impl Snapshot {
    /// With what the groups is set to.
    pub fn told<'a>(&'a self, groups: &'a Groups, is_final: bool) -> Status<'a> {
        let configs = groups.configs().zip(&self.stats.groups);
        Status {
            elapsed_s: self.elapsed.as_secs(),
            elapsed_us: self.elapsed.as_micros() as u64,
            ports: self.stats.ports.iter().map(Port::new).collect(),
            groups: configs.map(|(config, stats)| self.group(config, stats)).collect(),
            member_bytes: groups.member_bytes(),
            is_final,
        }
    }

    fn group<'a>(&'a self, config: &'a GroupConfig, stats: &'a GroupStats) -> Group<'a> {
        let members = self.stats.members.iter().filter(|member| member.group == stats.name);
        Group {
            name: &config.name,
            interfaces: &config.interfaces,
            hook: config.hook.name(),
            steering: config.steering.to_string(),
            snaplen: config.snaplen,
            filter: config.filter.as_deref(),
            rules: config.rules.as_ref().map_or(0, |rules| rules.rules()),
            paused: stats.paused,
            seen: stats.seen,
            filtered: stats.filtered,
            no_member: stats.no_member,
            extra: stats.extra,
            captured: stats.captured,
            bytes_captured: stats.captured_bytes,
            dropped_ring: stats.dropped_ring,
            dropped_other: stats.dropped_other,
            members: members.map(|member| self.member(member)).collect(),
        }
    }

    fn member(&self, stats: &MemberStats) -> Member {
        let peer = self.peers.get(&stats.member);
        Member {
            number: stats.member,
            weight: stats.weight,
            pid: peer.map_or(0, |peer| peer.pid),
            uid: peer.map_or(0, |peer| peer.uid),
            captured: stats.captured,
            bytes_captured: stats.captured_bytes,
            dropped_ring: stats.dropped_ring,
            dropped_other: stats.dropped_other,
            ring_bytes: stats.ring_bytes,
            ring_fill_bytes: stats.ring_fill_bytes,
            ring_fill_percent: stats.ring_fill_bytes * 100 / stats.ring_bytes.max(1),
        }
    }
}

impl<'a> Port<'a> {
    fn new(stats: &'a PortStats) -> Self {
        Self {
            interface: &stats.interface,
            hook: stats.hook.name(),
            attached: stats.attached,
            seen: stats.seen,
            nic_received: stats.nic.rx_packets + stats.nic.rx_missed,
            nic_dropped: stats.nic.rx_missed,
            nic_sent: stats.nic.tx_packets,
        }
    }
}

/// Tells the user about a daemon.
pub struct Report {
    line: Line,
    json: Option<Box<dyn Write>>,
    began: Instant,
    /// Captured packets, their bytes, and when.
    last: (u64, u64, Instant),
}

impl Report {
    pub fn new(json: Option<&Path>) -> Result<Self> {
        let json: Option<Box<dyn Write>> = match json {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Box::new(stdout())),
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Some(Box::new(file))
            }
        };
        let now = Instant::now();
        Ok(Self { line: Line::new(), json, began: now, last: (0, 0, now) })
    }

    pub fn say(&mut self, text: &str) {
        self.line.say(text);
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn started(&mut self, plan: &Plan, groups: &Groups) {
        self.began = Instant::now();
        for group in groups.configs() {
            self.say(&format!(
                "group {}: {} at hook {}, steering {}",
                group.name,
                group.interfaces.join(","),
                group.hook,
                group.steering
            ));
        }
        for warning in groups.warnings() {
            self.say(&warning);
        }
        self.say(&format!(
            "serving at {}, {} of memory for each member",
            plan.socket.display(),
            show_bytes(groups.member_bytes())
        ));
    }

    pub fn joined(&mut self, group: &str, member: u32, peer: Peer) {
        let Peer { pid, uid } = peer;
        self.say(&format!("group {group}: member {member} comes (process {pid}, user {uid})"));
    }

    pub fn left(&mut self, stats: &MemberStats) {
        self.say(&format!(
            "group {}: member {} is gone: {} captured, {} dropped",
            stats.group,
            stats.member,
            show_count(stats.captured),
            show_count(stats.dropped_ring + stats.dropped_other)
        ));
    }

    pub fn event(&mut self, interface: &str, event: Event) {
        let what = match event {
            Event::Gone => "is gone; waiting for it to come back",
            Event::Back => "is back; serving goes on",
            Event::LinkDown => "has no link",
            Event::LinkUp => "has a link again",
        };
        self.say(&format!("{interface} {what}"));
    }

    /// Once a second.
    pub fn second(&mut self, told: &Status<'_>) {
        self.write_json(told);
        let sum = |of: fn(&Group<'_>) -> u64| told.groups.iter().map(of).sum::<u64>();
        let captured = sum(|g| g.captured);
        let bytes = sum(|g| g.bytes_captured);
        let now = Instant::now();
        let (before, bytes_before, at) = std::mem::replace(&mut self.last, (captured, bytes, now));
        let seconds = now.duration_since(at).as_secs_f64().max(1e-3);
        let members: usize = told.groups.iter().map(|group| group.members.len()).sum();
        let rates = (captured.saturating_sub(before), bytes.saturating_sub(bytes_before) * 8);
        self.line.show(&format!(
            "{}pkt/s {}bit/s to {members} members, {} captured, {} dropped",
            show_rate(rates.0 as f64 / seconds),
            show_rate(rates.1 as f64 / seconds),
            show_count(captured),
            show_count(sum(|g| g.dropped_ring + g.dropped_other)),
        ));
    }

    /// The last words.
    pub fn finished(&mut self, told: &Status<'_>) {
        self.write_json(told);
        for group in &told.groups {
            let copies = match group.extra {
                0 => String::new(),
                n => format!(" + {} copies", show_count(n)),
            };
            self.say(&format!(
                "group {}: {} seen{copies} = {} captured + {} filtered + {} without a member + {} dropped",
                group.name,
                show_count(group.seen),
                show_count(group.captured),
                show_count(group.filtered),
                show_count(group.no_member),
                show_count(group.dropped_ring + group.dropped_other),
            ));
        }
    }

    fn write_json(&mut self, told: &Status<'_>) {
        let Some(out) = &mut self.json else { return };
        let written = serde_json::to_writer(&mut *out, told)
            .map_err(std::io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush());
        if let Err(e) = written {
            self.json = None;
            // Whoever read it has gone; serving goes on.
            if e.kind() != ErrorKind::BrokenPipe {
                self.say(&format!("cannot write statistics any more: {e}"));
            }
        }
    }
}
