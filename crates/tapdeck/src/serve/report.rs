//! What the user learns of a daemon: messages, the live line, the JSON, the summary.
//!
//! Statistics are taken at one moment ([`DaemonState`]) and told together with how each group is
//! set ([`Statistics`]). Their counters are those of `tapdeck_packet::account`; the rest says what
//! they are counters of.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tapdeck_capture::groups::{
    GroupConfig, GroupStats, Groups, GroupsStats, MemberStats, PortStats,
};
use tapdeck_capture::{Event, Unseen};
use tapdeck_packet::account::{
    Counters, DaemonCounters, GroupCounters, MemberCounters, PortCounters, RingCounters,
};
use tapdeck_store::Log;

use super::config::ServePlan;
use crate::control::Peer;
use crate::messages::Level;
use crate::progress_line::LiveLine;
use crate::statistics::{StatsJson, StatsOutput, accounting_line, statistics_dropped};
use crate::units::{counted, show_bytes, show_count, show_rate};
use crate::unseen::describe;

/// All counters at a moment.
pub struct DaemonState {
    pub stats: GroupsStats,
    /// The processes behind the members, by the members' numbers.
    pub peers: BTreeMap<u32, Peer>,
    pub takeovers: u64,
    pub elapsed: Duration,
}

/// One object of `--stats-json`, and the answer to `stats`.
#[derive(Serialize)]
pub struct Statistics<'a> {
    #[serde(flatten)]
    daemon: DaemonCounters,
    ports: Vec<Port<'a>>,
    groups: Vec<Group<'a>>,
    version: &'static str,
    #[serde(rename = "final")]
    is_final: bool,
}

#[derive(Serialize)]
struct Port<'a> {
    interface: &'a str,
    hook: &'a str,
    attached: bool,
    #[serde(flatten)]
    counters: PortCounters,
}

#[derive(Serialize)]
struct Group<'a> {
    name: &'a str,
    interfaces: &'a [String],
    hook: &'a str,
    steering: String,
    snaplen: u32,
    filter: Option<&'a str>,
    /// How many rules judge.
    rules: u32,
    paused: bool,
    #[serde(flatten)]
    counters: GroupCounters,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    #[serde(rename = "member")]
    number: u32,
    weight: u32,
    pid: i32,
    uid: u32,
    /// Whether the member has not come back since another daemon had it.
    away: bool,
    #[serde(flatten)]
    counters: MemberCounters,
    #[serde(flatten)]
    rings: RingCounters,
}

/// The answer to a member that asks for its own numbers.
#[derive(Serialize)]
pub struct Own {
    member: u32,
    /// Packets that the member's group has seen.
    seen: u64,
    /// Packets that the group's interfaces received and its hooks were not shown.
    unseen: u64,
    #[serde(flatten)]
    counters: MemberCounters,
}

impl Own {
    /// Takes a member's counters, and what its whole group has seen and not seen.
    pub fn new(stats: &MemberStats, seen: u64, unseen: u64) -> Self {
        Self { member: stats.member, seen, unseen, counters: member_counters(stats) }
    }
}

impl DaemonState {
    /// Returns the counters together with how each group is set.
    pub fn statistics<'a>(&'a self, groups: &'a Groups, is_final: bool) -> Statistics<'a> {
        self.of(groups.configs(), groups.member_bytes(), is_final)
    }

    fn of<'a>(
        &'a self,
        configs: impl Iterator<Item = &'a GroupConfig>,
        member_bytes: u64,
        is_final: bool,
    ) -> Statistics<'a> {
        Statistics {
            daemon: DaemonCounters {
                elapsed_s: self.elapsed.as_secs(),
                elapsed_us: self.elapsed.as_micros() as u64,
                member_bytes,
                takeovers: self.takeovers,
            },
            ports: self.stats.ports.iter().map(Port::new).collect(),
            groups: configs
                .zip(&self.stats.groups)
                .map(|(config, stats)| self.group(config, stats))
                .collect(),
            version: env!("CARGO_PKG_VERSION"),
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
            counters: GroupCounters {
                seen: stats.seen,
                filtered: stats.filtered,
                cutoff: stats.cutoff,
                no_member: stats.no_member,
                extra: stats.extra,
                captured: stats.captured,
                bytes_captured: stats.captured_bytes,
                dropped_ring: stats.dropped_ring,
                dropped_other: stats.dropped_other,
            },
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
            away: stats.is_away,
            counters: member_counters(stats),
            rings: RingCounters {
                ring_bytes: stats.ring_bytes,
                ring_fill_bytes: stats.ring_fill_bytes,
                ring_fill_percent: stats.ring_fill_bytes * 100 / stats.ring_bytes.max(1),
            },
        }
    }
}

fn member_counters(stats: &MemberStats) -> MemberCounters {
    MemberCounters {
        captured: stats.captured,
        bytes_captured: stats.captured_bytes,
        dropped_ring: stats.dropped_ring,
        dropped_other: stats.dropped_other,
    }
}

impl<'a> Port<'a> {
    fn new(stats: &'a PortStats) -> Self {
        Self {
            interface: &stats.interface,
            hook: stats.hook.name(),
            attached: stats.attached,
            counters: PortCounters {
                seen: stats.seen,
                nic_received: stats.nic.rx_packets + stats.nic.rx_missed,
                nic_dropped: stats.nic.rx_missed,
                unseen: stats.unseen,
                nic_sent: stats.nic.tx_packets,
            },
        }
    }
}

/// Tells the user about a daemon.
pub struct Report {
    line: Arc<Mutex<LiveLine>>,
    stats_json: StatsJson,
    began: Instant,
    /// Captured packets and bytes at the last second, and when that was.
    last: (u64, u64, Instant),
}

impl Report {
    pub fn new(stats_json: StatsOutput) -> Result<Self> {
        let now = Instant::now();
        let line = LiveLine::new().context("cannot start a thread")?;
        let line = Arc::new(Mutex::new(line));
        let log: Log = {
            let line = line.clone();
            Arc::new(move |text| {
                line.lock().unwrap_or_else(PoisonError::into_inner).say(Level::Warning, text);
            })
        };
        let stats_json = StatsJson::start(stats_json, statistics_dropped(log))?;
        let last = (0, 0, now);
        Ok(Self { line, stats_json, began: now, last })
    }

    /// Tells something that is as it should be.
    pub fn say(&mut self, text: &str) {
        self.line().say(Level::Info, text);
    }

    /// Tells something that is not as it should be.
    pub fn warn(&mut self, text: &str) {
        self.line().say(Level::Warning, text);
    }

    fn line(&self) -> MutexGuard<'_, LiveLine> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn started(&mut self, plan: &ServePlan, groups: &Groups) {
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
        if let Some(name) = groups.lasting_name() {
            let how = match groups.takeovers() {
                0 => "begins".to_owned(),
                n => format!("goes on, takeover {}", show_count(n)),
            };
            self.say(&format!("{name} {how}: hooks and rings outlive this daemon"));
        }
        for warning in groups.warnings() {
            self.warn(&warning);
        }
        self.say(&format!(
            "serving at {}, {} of memory for each member",
            plan.socket.display(),
            show_bytes(groups.member_bytes())
        ));
    }

    pub fn joined(&mut self, group: &str, member: u32, peer: Peer, is_back: bool) {
        let Peer { pid, uid, .. } = peer;
        let comes = if is_back { "is back" } else { "comes" };
        self.say(&format!("group {group}: member {member} {comes} (process {pid}, user {uid})"));
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
        let text = format!("{interface} {what}");
        match event {
            Event::Gone | Event::LinkDown => self.warn(&text),
            Event::Back | Event::LinkUp => self.say(&text),
        }
    }

    /// Tells that packets went unseen.
    pub fn went_unseen(&mut self, interface: &str, unseen: &Unseen) {
        self.warn(&format!("{interface}: {}", describe(unseen)));
    }

    /// Writes statistics and the live line. Called once a second.
    pub fn second(&mut self, statistics: &Statistics<'_>) -> String {
        self.write_json(statistics, false);
        let counters = || statistics.groups.iter().map(|group| &group.counters);
        let captured: u64 = counters().map(|c| c.captured).sum();
        let bytes: u64 = counters().map(|c| c.bytes_captured).sum();
        let dropped: u64 = counters().map(Counters::dropped).sum();
        let now = Instant::now();
        let (before, bytes_before, at) = std::mem::replace(&mut self.last, (captured, bytes, now));
        let seconds = now.duration_since(at).as_secs_f64().max(1e-3);
        let members: usize = statistics.groups.iter().map(|group| group.members.len()).sum();
        let rates = (captured.saturating_sub(before), bytes.saturating_sub(bytes_before) * 8);
        let text = format!(
            "{}pkt/s {}bit/s to {}, {} captured, {} dropped",
            show_rate(rates.0 as f64 / seconds),
            show_rate(rates.1 as f64 / seconds),
            counted(members as u64, "member"),
            show_count(captured),
            show_count(dropped),
        );
        self.line().show(&text);
        text
    }

    /// Writes the last statistics, and the accounting line of each group, and waits for both, but
    /// not for long.
    pub fn finished(&mut self, statistics: &Statistics<'_>) {
        self.write_json(statistics, true);
        self.tell(statistics);
        self.line().finish();
    }

    /// Tells the accounting line of each group.
    pub fn tell(&mut self, statistics: &Statistics<'_>) {
        for group in &statistics.groups {
            self.say(&format!("group {}: {}", group.name, accounting_line(&group.counters)));
        }
    }

    fn write_json(&mut self, statistics: &Statistics<'_>, is_last: bool) {
        if let Err(e) = self.stats_json.write(statistics, is_last) {
            self.warn(&e);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tapdeck_capture::groups::{
        GroupConfig, GroupStats, GroupsStats, MemberStats, PortStats, Steering,
    };
    use tapdeck_capture::interface::NicCounters;
    use tapdeck_capture::{Deliver, Hook};

    use super::{DaemonState, Own};
    use crate::control::{Answer, Peer, documented};

    #[test]
    fn the_document_shows_what_a_daemon_answers() {
        let member = MemberStats {
            group: "ids".into(),
            weight: 1,
            captured: 1000,
            captured_bytes: 64_000,
            ring_bytes: 16 << 20,
            ..MemberStats::default()
        };
        let port = PortStats {
            interface: "eth1".into(),
            hook: Hook::Xdp,
            attached: true,
            seen: 1000,
            unseen: 0,
            nic: NicCounters { rx_packets: 1000, ..NicCounters::default() },
        };
        let group = GroupStats {
            name: "ids".into(),
            seen: 1000,
            captured: 1000,
            captured_bytes: 64_000,
            ..GroupStats::default()
        };
        let config = GroupConfig {
            name: "ids".into(),
            interfaces: vec!["eth1".into()],
            hook: Hook::Xdp,
            deliver: Deliver::Pass,
            filter: None,
            rules: None,
            snaplen: 65_535,
            steering: Steering::Flow,
            promiscuous: true,
            max_members: 1024,
            max_memory: None,
        };
        let own = Answer::ok(Own::new(&member, 1000, 0));
        assert_eq!(own.text(), documented("{\"ok\":true,\"member\":0,\"seen\""));
        let state = DaemonState {
            stats: GroupsStats { ports: vec![port], groups: vec![group], members: vec![member] },
            peers: [(0, Peer { pid: 4711, uid: 1000, gid: 1000 })].into(),
            takeovers: 0,
            elapsed: Duration::from_micros(61_000_417),
        };
        let statistics = state.of([&config].into_iter(), 17_039_360, false);
        let answer = Answer::ok(&statistics);
        assert_eq!(answer.text(), documented("{\"ok\":true,\"elapsed_s\":61"));
    }
}
