//! Which tables are there, and what stands in them? A row for each interface, group, member.

use std::net::IpAddr;

use tapdeck_packet::account::Counters;

use super::answer::{Answer, Group, Interface, Member, Of, Port, Rate};
use super::board::Known;
use super::store::Minute;
use super::table::{Cell, Column, Table};
use super::tally::{Amounts, Flow};
use super::view::Tab;
use crate::units::{show_bytes, show_rate};

const fn column(head: &'static str, width: usize) -> Column {
    Column { head, width }
}

const FLOWS: &[Column] = &[
    column("flow", 0),
    column("pkt/s", 7),
    column("bit/s", 7),
    column("bytes", 10),
    column("protocol", 8),
];
const HOSTS: &[Column] = &[
    column("host", 0),
    column("pkt/s", 7),
    column("bit/s", 7),
    column("sent bit/s", 10),
    column("received bit/s", 14),
    column("bytes", 10),
];
const INTERFACES: &[Column] = &[
    column("interface", 0),
    column("hook", 9),
    column("pkt/s", 7),
    column("bit/s", 7),
    column("captured", 8),
    column("filtered", 8),
    column("dropped", 7),
    column("unseen", 7),
];
const GROUPS: &[Column] = &[
    column("group", 0),
    column("steering", 11),
    column("members", 7),
    column("pkt/s", 7),
    column("bit/s", 7),
    column("captured", 8),
    column("filtered", 8),
    column("no member", 9),
    column("dropped", 7),
];
const MEMBERS: &[Column] = &[
    column("group/member", 0),
    column("process", 20),
    column("weight", 6),
    column("pkt/s", 7),
    column("bit/s", 7),
    column("captured", 8),
    column("dropped", 7),
    column("ring", 5),
];
const PORTS: &[Column] = &[
    column("interface", 0),
    column("hook", 9),
    column("seen/s", 7),
    column("seen", 8),
    column("received", 8),
    column("sent", 8),
    column("device dropped", 14),
    column("unseen", 7),
];

/// Returns the columns of a table.
pub fn columns(tab: Tab) -> &'static [Column] {
    match tab {
        Tab::Flows => FLOWS,
        Tab::Hosts => HOSTS,
        Tab::Interfaces => INTERFACES,
        Tab::Groups => GROUPS,
        Tab::Members => MEMBERS,
        Tab::Ports => PORTS,
        Tab::Store => &[],
    }
}

/// Makes a table of what is known, not sorted yet.
pub fn table(tab: Tab, known: &Known) -> Table {
    let rows = match (tab, known.minute.as_deref(), known.answer.as_deref()) {
        (Tab::Flows | Tab::Hosts, Some(minute), _) => talk(tab, minute),
        (_, _, Some(answer)) => counted(tab, answer),
        _ => Vec::new(),
    };
    Table { columns: columns(tab), rows }
}

fn talk(tab: Tab, minute: &Minute) -> Vec<Vec<Cell>> {
    let s = minute.seconds;
    let rates = |amounts: &Amounts| {
        let (packets, bits) = (amounts.all_packets() / s, amounts.all_bytes() * 8.0 / s);
        [per_second(Some(packets)), per_second(Some(bits))]
    };
    let bytes = |n: f64| Cell::number(n, show_bytes(n as u64));
    if tab == Tab::Flows {
        let row = |(flow, amounts): &(Flow, Amounts)| {
            let [packets, bits] = rates(amounts);
            let all = bytes(amounts.all_bytes());
            vec![Cell::text(flow.ends()), packets, bits, all, Cell::text(flow.protocol())]
        };
        return minute.sums.flows.iter().map(row).collect();
    }
    let row = |(host, amounts): &(IpAddr, Amounts)| {
        let [packets, bits] = rates(amounts);
        let [sent, received] = amounts.bytes.map(|n| per_second(Some(n * 8.0 / s)));
        let all = bytes(amounts.all_bytes());
        vec![Cell::text(host.to_string()), packets, bits, sent, received, all]
    };
    minute.sums.hosts.iter().map(row).collect()
}

fn counted(tab: Tab, answer: &Answer) -> Vec<Vec<Cell>> {
    match (tab, &answer.of) {
        (Tab::Interfaces, Of::Recorder(recorder)) => {
            let row = |interface: &Interface| {
                let c = &interface.counters;
                let [packets, bits] = rate(interface.rate);
                vec![
                    Cell::text(with_state(&interface.name, interface.state)),
                    Cell::text(&*interface.hook),
                    packets,
                    bits,
                    count(c.captured),
                    count(c.filtered),
                    fault(c.dropped()),
                    fault(c.unseen),
                ]
            };
            recorder.interfaces.iter().map(row).collect()
        }
        (Tab::Groups, Of::Daemon(daemon)) => {
            let row = |group: &Group| {
                let c = &group.counters;
                let [packets, bits] = rate(group.rate);
                let state = if group.paused { "paused" } else { "" };
                vec![
                    Cell::text(with_state(&group.name, state)),
                    Cell::text(&*group.steering),
                    count(group.members as u64),
                    packets,
                    bits,
                    count(c.captured),
                    count(c.filtered),
                    count(c.no_member),
                    fault(c.dropped()),
                ]
            };
            daemon.groups.iter().map(row).collect()
        }
        (Tab::Members, Of::Daemon(daemon)) => {
            let row = |member: &Member| {
                let c = &member.counters;
                let [packets, bits] = rate(member.rate);
                let ring = member.ring_percent;
                vec![
                    Cell::text(format!("{}/{}", member.group, member.number)),
                    Cell::text(&*member.process),
                    count(member.weight),
                    packets,
                    bits,
                    count(c.captured),
                    fault(c.dropped()),
                    Cell::number(ring as f64, format!("{ring} %")),
                ]
            };
            daemon.members.iter().map(row).collect()
        }
        (Tab::Ports, Of::Daemon(daemon)) => {
            let row = |port: &Port| {
                let c = &port.counters;
                vec![
                    Cell::text(with_state(&port.interface, port.state)),
                    Cell::text(&*port.hook),
                    per_second(port.seen),
                    count(c.seen),
                    count(c.nic_received),
                    count(c.nic_sent),
                    fault(c.nic_dropped),
                    fault(c.unseen),
                ]
            };
            daemon.ports.iter().map(row).collect()
        }
        _ => Vec::new(),
    }
}

fn with_state(name: &str, state: &str) -> String {
    if state.is_empty() { name.to_owned() } else { format!("{name} ({state})") }
}

/// Returns a number in a few letters: `1.23 M`.
pub fn short(value: f64) -> String {
    show_rate(value).trim_end().to_owned()
}

fn count(value: u64) -> Cell {
    Cell::number(value as f64, short(value as f64))
}

fn fault(value: u64) -> Cell {
    Cell::fault(value as f64, short(value as f64))
}

fn per_second(value: Option<f64>) -> Cell {
    match value {
        Some(value) => Cell::number(value, short(value)),
        None => Cell::number(0.0, "-"),
    }
}

fn rate(rate: Option<Rate>) -> [Cell; 2] {
    [per_second(rate.map(|rate| rate.packets)), per_second(rate.map(|rate| rate.bits))]
}
