//! The answers of recorders and daemons, as text for people.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use tapdeck_metrics::Metrics;
use tapdeck_packet::account::{Counters, GroupCounters, InterfaceCounters, Law, MemberCounters};

use crate::flags::{CtlRules, CtlVerb};
use crate::units::{counted, show_bytes, show_count, show_rate};

/// Returns an answer as text.
pub fn of(verb: &CtlVerb, answer: &Value) -> String {
    match verb {
        CtlVerb::Stats | CtlVerb::Watch => stats(answer),
        CtlVerb::Metrics { prometheus } => metrics(answer, *prometheus),
        CtlVerb::Groups => groups(answer),
        CtlVerb::Pause(_) => "paused\n".into(),
        CtlVerb::Resume(_) => "going on\n".into(),
        CtlVerb::Snaplen { bytes, .. } => format!("snaplen {bytes}\n"),
        CtlVerb::Filter { expression, .. } if expression.is_empty() => "no filter\n".into(),
        CtlVerb::Filter { expression, .. } => format!("filter {}\n", expression.join(" ")),
        CtlVerb::Rules(CtlRules::List(_) | CtlRules::Hits(_)) => rules(answer),
        CtlVerb::Rules(_) => match (number(answer, "rules"), answer["enabled"] == true) {
            (0, _) => "no rules\n".into(),
            (n, true) => format!("{}\n", counted(n, "rule")),
            (n, false) => format!("{}, switched off\n", counted(n, "rule")),
        },
        CtlVerb::Rotate => "a new segment begins\n".into(),
        CtlVerb::Reload => reload(answer),
        CtlVerb::Stop => "ended\n".into(),
        // Nobody is asked, and nobody answers.
        CtlVerb::Persist(_) => String::new(),
    }
}

/// Returns a line about what has changed between two answers, a second apart.
pub fn second(before: &Value, now: &Value) -> String {
    let sum = |answer: &Value, key: &str| match answer["groups"].as_array() {
        Some(groups) => groups.iter().map(|g| number(g, key)).sum(),
        None => number(answer, key),
    };
    let us = number(now, "elapsed_us").saturating_sub(number(before, "elapsed_us"));
    let seconds = if us == 0 { 1.0 } else { us as f64 / 1e6 };
    let rate = |key: &str| sum(now, key).saturating_sub(sum(before, key)) as f64 / seconds;
    let lost = match now["groups"].as_array() {
        Some(groups) => groups.iter().map(dropped::<GroupCounters>).sum(),
        None => dropped::<InterfaceCounters>(now),
    };
    let cutoff = match sum(now, "cutoff") {
        0 => String::new(),
        packets => format!("{} cutoff, ", show_count(packets)),
    };
    let paused = if now["paused"] == true { ", paused" } else { "" };
    format!(
        "{}pkt/s {}bit/s, {} captured, {} filtered, {}{} dropped{paused}\n",
        show_rate(rate("captured")),
        show_rate(rate("bytes_captured") * 8.0),
        show_count(sum(now, "captured")),
        show_count(sum(now, "filtered")),
        cutoff,
        show_count(lost),
    )
}

fn reload(answer: &Value) -> String {
    let names = |key: &str| {
        let names = answer[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.collect::<Vec<_>>().join(", ")
    };
    let changed = match names("changed") {
        none if none.is_empty() => "nothing changes at once\n".to_owned(),
        some => format!("changed: {some}\n"),
    };
    match names("restart") {
        none if none.is_empty() => changed,
        some => format!("{changed}as before until a restart: {some}\n"),
    }
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}

/// Returns how many packets an object of JSON with these counters says were lost.
fn dropped<C: Counters>(object: &Value) -> u64 {
    let lost = C::LIST.iter().filter(|counter| matches!(counter.law, Law::Lost(_)));
    lost.map(|counter| number(object, counter.name)).sum()
}

fn word<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or("")
}

fn count(object: &Value, key: &str) -> String {
    show_count(number(object, key))
}

fn metrics(answer: &Value, prometheus: bool) -> String {
    let mut metrics = Metrics::default();
    metrics.add_statistics(&[], answer);
    let text = metrics.open_metrics();
    if prometheus { tapdeck_metrics::classic::of(&text) } else { text }
}

fn running(answer: &Value) -> String {
    let time = humantime::format_duration(Duration::from_secs(number(answer, "elapsed_s")));
    format!("running for {time}")
}

fn stats(answer: &Value) -> String {
    if answer["groups"].is_array() {
        return format!("{}\n{}", running(answer), groups(answer));
    }
    let mut table = Table::new(&[
        "interface",
        "hook",
        "seen",
        "captured",
        "filtered",
        "cutoff",
        "dropped",
        "device dropped",
        "",
    ]);
    let interfaces = answer["interfaces"].as_object();
    for (name, c) in interfaces.into_iter().flatten() {
        table.row([
            name.clone(),
            word(c, "hook").to_owned(),
            count(c, "seen"),
            count(c, "captured"),
            count(c, "filtered"),
            count(c, "cutoff"),
            show_count(dropped::<InterfaceCounters>(c)),
            count(c, "nic_dropped"),
            how(c),
        ]);
    }
    let written = number(answer, "bytes_written");
    let mut text = running(answer);
    if written > 0 {
        // Writing into a string does not fail.
        let _ = write!(text, ", {} written", show_bytes(written));
    }
    let segments = number(answer, "segments");
    if segments > 0 {
        let _ = write!(text, " in {}", counted(segments, "segment"));
    }
    let deleted = number(answer, "segments_deleted");
    if deleted > 0 {
        let packets = counted(number(answer, "packets_deleted"), "packet");
        let deleted = show_count(deleted);
        let _ = write!(text, ", of which retention deleted {deleted} with {packets}");
    }
    format!("{text}\n{}", table.text())
}

/// Returns how a group or an interface is set (paused, filter, rules), and what it has shed.
fn how(of: &Value) -> String {
    let mut parts = Vec::new();
    if of["paused"] == true {
        parts.push("paused".to_owned());
    }
    if let Some(filter) = of["filter"].as_str() {
        parts.push(format!("filter {filter:?}"));
    }
    if number(of, "rules") > 0 {
        parts.push(counted(number(of, "rules"), "rule"));
    }
    if number(of, "shed_packets") > 0 {
        let bytes = show_bytes(number(of, "shed_bytes"));
        parts.push(format!("{} cut short, {bytes} shed", count(of, "shed_packets")));
    }
    parts.join(", ")
}

fn groups(answer: &Value) -> String {
    let mut table = Table::new(&[
        "group",
        "interfaces",
        "hook",
        "steering",
        "seen",
        "captured",
        "filtered",
        "cutoff",
        "dropped",
        "no member",
        "",
    ]);
    let mut members = Table::new(&[
        "group", "member", "weight", "process", "captured", "bytes", "dropped", "ring",
    ]);
    for group in answer["groups"].as_array().into_iter().flatten() {
        let names: Vec<&str> = group["interfaces"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        table.row([
            word(group, "name").to_owned(),
            names.join(","),
            word(group, "hook").to_owned(),
            word(group, "steering").to_owned(),
            count(group, "seen"),
            count(group, "captured"),
            count(group, "filtered"),
            count(group, "cutoff"),
            show_count(dropped::<GroupCounters>(group)),
            count(group, "no_member"),
            how(group),
        ]);
        for member in group["members"].as_array().into_iter().flatten() {
            members.row([
                word(group, "name").to_owned(),
                number(member, "member").to_string(),
                number(member, "weight").to_string(),
                number(member, "pid").to_string(),
                count(member, "captured"),
                show_bytes(number(member, "bytes_captured")),
                show_count(dropped::<MemberCounters>(member)),
                format!("{} %", number(member, "ring_fill_percent")),
            ]);
        }
    }
    if members.rows.is_empty() {
        return format!("{}\nno members\n", table.text());
    }
    format!("{}\n{}", table.text(), members.text())
}

/// Returns rules as a rule file, in which those that are switched off are comments.
fn rules(answer: &Value) -> String {
    let mut text = String::new();
    for rule in answer["rules"].as_array().into_iter().flatten() {
        let off = if rule["enabled"] == true { "" } else { "# off: " };
        let line = format!("{off}{}", word(rule, "rule"));
        // Writing into a string does not fail.
        let _ = match rule["hits"].as_u64() {
            Some(hits) => writeln!(text, "{:>16}  {line}", show_count(hits)),
            None => writeln!(text, "{line}"),
        };
    }
    if let Some(none) = answer["none"].as_u64() {
        let _ = writeln!(text, "{:>16}  no rule", show_count(none));
    }
    if text.is_empty() {
        return "# no rules: every packet is taken\n".into();
    }
    if answer["enabled"] == false {
        text.insert_str(0, "# judging is switched off: every packet is taken\n");
    }
    text
}

/// Columns under headings. A column whose cells all begin with a digit is aligned at the right.
struct Table {
    rows: Vec<Vec<String>>,
    head: Vec<String>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: Vec::new(), head: head.iter().map(|s| (*s).to_owned()).collect() }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    fn text(&self) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let right: Vec<bool> = (0..self.head.len())
            .map(|column| {
                let digit =
                    |row: &Vec<String>| row[column].starts_with(|c: char| c.is_ascii_digit());
                !self.rows.is_empty() && self.rows.iter().all(digit)
            })
            .collect();
        let mut text = String::new();
        for row in all() {
            let cells = row.iter().zip(&widths).zip(&right).map(|((cell, &width), right)| {
                if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            // Writing into a string does not fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{groups, rules, second, stats};

    #[test]
    fn a_recorder_is_a_table() {
        let answer = json!({"ok": true, "elapsed_s": 61, "bytes_written": 2048, "segments": 2, "interfaces": {
            "eth0": {"hook": "xdp", "seen": 1239, "captured": 1200, "filtered": 30, "cutoff": 5, "dropped_ring": 3,
                "dropped_other": 1, "nic_dropped": 0, "paused": true, "filter": "port 53"}
        }});
        let text = stats(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "running for 1m 1s, 2.0 KiB written in 2 segments");
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            [
                "eth0", "xdp", "1,239", "1,200", "30", "5", "4", "0", "paused,", "filter",
                "\"port", "53\""
            ]
        );
        let later = json!({"captured": 2200, "bytes_captured": 1000, "filtered": 0});
        let before = json!({"captured": 1200});
        assert_eq!(
            second(&before, &later),
            "1.0 kpkt/s 8.0 kbit/s, 2,200 captured, 0 filtered, 0 dropped\n"
        );
        let later = json!({"captured": 2200, "bytes_captured": 1000, "filtered": 0, "cutoff": 7,
            "elapsed_us": 3_000_000});
        let before = json!({"captured": 1200, "elapsed_us": 1_000_000});
        assert_eq!(
            second(&before, &later),
            "500 pkt/s 4.0 kbit/s, 2,200 captured, 0 filtered, 7 cutoff, 0 dropped\n",
            "two seconds"
        );
    }

    #[test]
    fn a_daemon_is_groups_and_members() {
        let answer = json!({"ok": true, "groups": [{"name": "ids", "interfaces": ["a", "b"], "hook": "xdp",
            "steering": "flow", "seen": 7, "no_member": 2, "members": [{"member": 3, "weight": 1, "pid": 42}]}]});
        let text = groups(&answer);
        assert!(text.contains("ids") && text.contains("a,b") && text.contains("42"), "{text}");
        assert!(groups(&json!({"groups": []})).contains("no members"));
    }

    #[test]
    fn rules_read_back_as_a_file() {
        let answer = json!({"enabled": true, "rules": [{"rule": "accept x", "enabled": true},
            {"rule": "drop y", "enabled": false}]});
        assert_eq!(rules(&answer), "accept x\n# off: drop y\n");
        assert!(rules(&json!({"enabled": false, "rules": []})).starts_with('#'));
    }
}
