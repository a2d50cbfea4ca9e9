//! What does a recorder or a daemon say of itself? Two of its answers to `stats`, one after the
//! other, as the figures that are shown: counters of the later, and rates between both.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use tapdeck_packet::account::{
    Counters, GroupCounters, InterfaceCounters, MemberCounters, PortCounters, RecorderCounters,
    RingCounters, StoreCounters, UsedRingCounters,
};
use tapdeck_packet::printable;

use crate::statistics::{accounting_line, counters_of};

/// What is captured in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub packets: f64,
    pub bits: f64,
}

/// A recorder or a daemon at one moment.
#[derive(Debug)]
pub struct Answer {
    pub version: String,
    pub running: Duration,
    pub paused: bool,
    /// The law of all packets, in words.
    pub accounting: String,
    pub dropped: u64,
    pub unseen: u64,
    pub nic_dropped: u64,
    /// `None` before the second answer, and where the program has begun anew.
    pub rate: Option<Rate>,
    pub of: Of,
}

/// The program that answered.
#[derive(Debug)]
pub enum Of {
    Recorder(Box<Recorder>),
    Daemon(Daemon),
}

/// What a recorder has besides.
#[derive(Debug)]
pub struct Recorder {
    pub counters: RecorderCounters,
    /// `None` where the rings are a daemon's.
    pub rings: Option<UsedRingCounters>,
    /// `None` where nothing goes into a store.
    pub store: Option<StoreCounters>,
    /// Bytes that are written in a second.
    pub written: Option<f64>,
    /// CPU time of the process in a second.
    pub cpu: Option<f64>,
    pub interfaces: Vec<Interface>,
}

/// One interface of a recorder.
#[derive(Debug)]
pub struct Interface {
    pub name: String,
    pub hook: String,
    /// What is not as usual: paused, gone.
    pub state: &'static str,
    pub counters: InterfaceCounters,
    pub rate: Option<Rate>,
}

/// What a daemon has besides.
#[derive(Debug)]
pub struct Daemon {
    pub ports: Vec<Port>,
    pub groups: Vec<Group>,
    pub members: Vec<Member>,
}

/// One of a daemon's ports.
#[derive(Debug)]
pub struct Port {
    pub interface: String,
    pub hook: String,
    pub state: &'static str,
    pub counters: PortCounters,
    /// Packets that the hook saw in a second.
    pub seen: Option<f64>,
}

/// One of a daemon's groups.
#[derive(Debug)]
pub struct Group {
    pub name: String,
    pub steering: String,
    pub members: usize,
    pub paused: bool,
    pub counters: GroupCounters,
    pub rate: Option<Rate>,
}

/// One member of a group.
#[derive(Debug)]
pub struct Member {
    pub group: String,
    pub number: u64,
    pub weight: u64,
    /// Name and number of the process.
    pub process: String,
    pub counters: MemberCounters,
    pub ring_percent: u64,
    pub rate: Option<Rate>,
}

impl Answer {
    /// Reads an answer, and takes rates since the one before.
    pub fn new(now: &Value, before: Option<&Value>) -> Self {
        let since = Since::new(now, before);
        let of = match now["groups"].as_array() {
            Some(groups) => Of::Daemon(daemon(now, groups, &since)),
            None => Of::Recorder(Box::new(recorder(now, &since))),
        };
        let (mut unseen, mut nic_dropped) = (number(now, "unseen"), number(now, "nic_dropped"));
        let (accounting, dropped, rate) = match &of {
            Of::Recorder(_) => {
                let sum: InterfaceCounters = counters_of(now);
                (accounting_line(&sum), sum.dropped(), since.rate(now, Some))
            }
            Of::Daemon(daemon) => {
                let mut sum = GroupCounters::default();
                for group in &daemon.groups {
                    let values = group.counters.values();
                    sum.values_mut().into_iter().zip(values).for_each(|(to, value)| *to += value);
                }
                unseen = daemon.ports.iter().map(|port| port.counters.unseen).sum();
                nic_dropped = daemon.ports.iter().map(|port| port.counters.nic_dropped).sum();
                let mut rates = daemon.groups.iter().map(|group| group.rate);
                let add = |a: Rate, b: Rate| Rate {
                    packets: a.packets + b.packets,
                    bits: a.bits + b.bits,
                };
                let rate = rates.try_fold(Rate::default(), |a, b| Some(add(a, b?)));
                (accounting_line(&sum), sum.dropped(), rate)
            }
        };
        Self {
            version: shown(&now["version"]),
            running: Duration::from_micros(number(now, "elapsed_us")),
            paused: now["paused"] == true,
            accounting,
            dropped,
            unseen,
            nic_dropped,
            rate,
            of,
        }
    }
}

/// The answer before, if the same run of the program gave it.
struct Since<'a> {
    before: Option<&'a Value>,
    seconds: f64,
}

impl<'a> Since<'a> {
    fn new(now: &Value, before: Option<&'a Value>) -> Self {
        let us = |answer: &Value| number(answer, "elapsed_us");
        let before = before.filter(|before| us(before) < us(now));
        let seconds = before.map_or(1.0, |before| (us(now) - us(before)) as f64 / 1e6);
        Self { before, seconds }
    }

    /// Returns how much a counter grew in a second. `find` leads to the object in the answer
    /// before.
    fn growth(
        &self,
        now: &Value,
        key: &str,
        find: impl Fn(&'a Value) -> Option<&'a Value>,
    ) -> Option<f64> {
        let before = number(find(self.before?)?, key);
        Some(number(now, key).saturating_sub(before) as f64 / self.seconds)
    }

    fn rate(&self, now: &Value, find: impl Fn(&'a Value) -> Option<&'a Value>) -> Option<Rate> {
        let packets = self.growth(now, "captured", &find)?;
        let bytes = self.growth(now, "bytes_captured", &find)?;
        Some(Rate { packets, bits: bytes * 8.0 })
    }
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}

/// Returns a text of somebody else's as a terminal may show it.
fn shown(text: &Value) -> String {
    printable::name(text.as_str().unwrap_or("")).into_owned()
}

fn state(of: &Value) -> &'static str {
    if of["attached"] == false {
        "gone"
    } else if of["paused"] == true {
        "paused"
    } else {
        ""
    }
}

fn recorder(now: &Value, since: &Since<'_>) -> Recorder {
    let interfaces = now["interfaces"].as_object().into_iter().flatten();
    let interface = |(name, object): (&String, &Value)| Interface {
        name: printable::name(name).into_owned(),
        hook: shown(&object["hook"]),
        state: state(object),
        counters: counters_of(object),
        rate: since.rate(object, |before| before["interfaces"].get(name)),
    };
    let has = |key: &str| now.get(key).is_some();
    let cpu = |key| since.growth(now, key, Some);
    Recorder {
        counters: counters_of(now),
        rings: has("ring_size_bytes").then(|| counters_of(now)),
        store: has("store_bytes").then(|| counters_of(now)),
        written: since.growth(now, "bytes_written", Some),
        cpu: cpu("cpu_user_us").zip(cpu("cpu_system_us")).map(|(a, b)| (a + b) / 1e6),
        interfaces: interfaces.map(interface).collect(),
    }
}

fn daemon(now: &Value, all: &[Value], since: &Since<'_>) -> Daemon {
    let mut daemon = Daemon { ports: Vec::new(), groups: Vec::new(), members: Vec::new() };
    for port in now["ports"].as_array().into_iter().flatten() {
        let is_same = |other: &&Value| {
            other["interface"] == port["interface"] && other["hook"] == port["hook"]
        };
        let seen = since.growth(port, "seen", |b| b["ports"].as_array()?.iter().find(is_same));
        daemon.ports.push(Port {
            interface: shown(&port["interface"]),
            hook: shown(&port["hook"]),
            state: state(port),
            counters: counters_of(port),
            seen,
        });
    }
    for group in all {
        let same = |before: &'_ Value| -> Option<usize> {
            before["groups"].as_array()?.iter().position(|other| other["name"] == group["name"])
        };
        let members = group["members"].as_array().map_or(&[][..], Vec::as_slice);
        daemon.groups.push(Group {
            name: shown(&group["name"]),
            steering: shown(&group["steering"]),
            members: members.len(),
            paused: group["paused"] == true,
            counters: counters_of(group),
            rate: since.rate(group, |before| before["groups"].get(same(before)?)),
        });
        for member in members {
            let is_same = |other: &&Value| other["member"] == member["member"];
            let rate = since.rate(member, |before| {
                let group = before["groups"].get(same(before)?)?;
                group["members"].as_array()?.iter().find(is_same)
            });
            let rings: RingCounters = counters_of(member);
            daemon.members.push(Member {
                group: shown(&group["name"]),
                number: number(member, "member"),
                weight: number(member, "weight"),
                process: process(member),
                counters: counters_of(member),
                ring_percent: rings.ring_fill_percent,
                rate,
            });
        }
    }
    daemon
}

/// Returns name and number of a member's process.
fn process(member: &Value) -> String {
    if member["away"] == true {
        return "away".to_owned();
    }
    let pid = number(member, "pid");
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} {pid}", printable::name(name.trim_end())).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Answer, Of, Rate};

    #[test]
    fn a_recorder_has_rates_between_two_answers() {
        let answer = |us: u64, captured: u64| {
            json!({"elapsed_us": us, "seen": captured + 3, "captured": captured, "filtered": 3,
                "bytes_captured": captured * 100, "bytes_written": captured * 128, "version": "0.1.0",
                "cpu_user_us": us / 4, "cpu_system_us": us / 4,
                "interfaces": {"eth\u{1b}0": {"hook": "xdp", "captured": captured, "attached": false}}})
        };
        let (before, now) = (answer(1_000_000, 100), answer(3_000_000, 2100));
        let first = Answer::new(&before, None);
        assert_eq!(first.rate, None, "one answer has no rates");
        let answer = Answer::new(&now, Some(&before));
        assert_eq!(answer.rate, Some(Rate { packets: 1000.0, bits: 800_000.0 }));
        assert_eq!(answer.accounting, "2,103 seen = 2,100 captured + 3 filtered + 0 dropped");
        let Of::Recorder(recorder) = answer.of else { panic!("a recorder") };
        assert_eq!(recorder.written, Some(128_000.0));
        assert_eq!(recorder.cpu, Some(0.5));
        assert!(recorder.rings.is_none() && recorder.store.is_none());
        let interface = &recorder.interfaces[0];
        assert_eq!((interface.name.as_str(), interface.state), ("eth\\u{1b}0", "gone"));
        assert_eq!(interface.rate.map(|rate| rate.packets), Some(1000.0));
        assert_eq!(Answer::new(&before, Some(&now)).rate, None, "it has begun anew");
    }

    #[test]
    fn a_daemon_has_groups_and_members() {
        let answer = |us: u64, n: u64| {
            json!({"elapsed_us": us,
                "ports": [{"interface": "eth1", "hook": "xdp", "attached": true, "seen": 3 * n, "unseen": 2}],
                "groups": [
                    {"name": "a", "seen": n, "captured": n, "members": [
                        {"member": 4, "captured": n, "ring_fill_percent": 7, "away": true}]},
                    {"name": "b", "seen": n, "captured": n, "members": []}]})
        };
        let (before, now) = (answer(1, 1000), answer(500_001, 2000));
        let answer = Answer::new(&now, Some(&before));
        assert_eq!(answer.rate.map(|rate| rate.packets), Some(4000.0), "of both groups");
        assert_eq!(answer.accounting, "4,000 seen = 4,000 captured + 0 filtered + 0 dropped");
        assert_eq!(answer.unseen, 2);
        let Of::Daemon(daemon) = answer.of else { panic!("a daemon") };
        assert_eq!(daemon.ports[0].seen, Some(6000.0));
        assert_eq!((daemon.groups.len(), daemon.groups[0].members), (2, 1));
        let member = &daemon.members[0];
        assert_eq!((member.number, member.process.as_str(), member.ring_percent), (4, "away", 7));
        assert_eq!(member.rate.map(|rate| rate.packets), Some(2000.0));
    }
}
