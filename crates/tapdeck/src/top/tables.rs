//! Which tables are there, and what stands in them? A row for each interface, group, member.

use super::answer::{Answer, Of, Rate};
use super::board::Known;
use super::table::{Cell, Column, Table};
use super::view::Tab;
use crate::units::show_rate;
use tapdeck_packet::account::Counters;

const fn column(head: &'static str, width: usize) -> Column {
    Column { head, width }
}

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
        Tab::Interfaces => INTERFACES,
        Tab::Groups => GROUPS,
        Tab::Members => MEMBERS,
        Tab::Ports => PORTS,
    }
}

/// Makes a table of what is known, not sorted yet.
pub fn table(tab: Tab, known: &Known) -> Table {
    let rows = match (tab, known.answer.as_deref()) {
        (_, Some(answer)) => counted(tab, answer),
        (_, None) => Vec::new(),
    };
    Table { columns: columns(tab), rows }
}

fn counted(tab: Tab, answer: &Answer) -> Vec<Vec<Cell>> {
    match (tab, &answer.of) {
        (Tab::Interfaces, Of::Recorder(recorder)) => {
            let row = |interface: &super::answer::Interface| {
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
            let row = |group: &super::answer::Group| {
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
            let row = |member: &super::answer::Member| {
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
            let row = |port: &super::answer::Port| {
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
