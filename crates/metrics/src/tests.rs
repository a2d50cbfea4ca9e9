#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tapdeck_packet::account::{LIST, Law, Place};

use super::{Metrics, classic, outcome, table};

fn text(labels: &[(&'static str, &str)], statistics: &Value) -> String {
    let mut metrics = Metrics::default();
    metrics.add_statistics(labels, statistics);
    metrics.open_metrics()
}

/// Samples by what stands before the value.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let of = |line| str::rsplit_once(line, ' ').expect("a name and a value");
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(of);
    samples.map(|(name, value)| (name, value.parse().expect("a number"))).collect()
}

/// An object of JSON with every counter that is listed for a place, each another number.
fn counters(place: Place, first: u64) -> Map<String, Value> {
    let rows = LIST.iter().copied().flatten().filter(|row| row.places.contains(&place));
    rows.zip(first..).map(|(row, n)| (row.name.to_owned(), n.into())).collect()
}

fn recorder() -> Value {
    let mut interface = counters(Place::Interface, 1000);
    interface.insert("hook".into(), "xdp".into());
    interface.insert("attached".into(), true.into());
    interface.insert("filter".into(), "host 192.0.2.1".into());
    let mut all = counters(Place::Recorder, 2000);
    all.insert("interfaces".into(), json!({"eth0": interface}));
    all.insert("version".into(), "1.2.3".into());
    all.insert("final".into(), false.into());
    all.into()
}

#[test]
fn each_counter_is_a_metric_or_is_told_by_others() {
    // Seconds beside microseconds; a sum of causes; and a share that follows from two metrics.
    let told_by_others =
        ["elapsed_s", "cpu_user_s", "cpu_system_s", "dropped_other", "ring_fill_percent"];
    // Of a group its fullest rings are told, and of all members together the group's own counters.
    let of_members = ["ring_bytes", "ring_fill_bytes"];
    for block in LIST {
        for row in *block {
            let of = |place| row.places.contains(&place);
            let tables = [
                (of(Place::Recorder) && !of(Place::Interface), table::RECORDER),
                (of(Place::Interface) || of(Place::Port), table::INTERFACE),
                (of(Place::Daemon), table::DAEMON),
                (of(Place::Group), table::GROUP),
            ];
            let is_in = |table: &[table::Metric]| table.iter().any(|m| m.key == row.name);
            let is_known = tables.iter().all(|(is_of, table)| !is_of || is_in(table))
                || outcome(row, block).is_some()
                || told_by_others.contains(&row.name)
                || of(Place::Member) && (row.law != Law::Beside || of_members.contains(&row.name))
                || of(Place::Member) && row.name == "bytes_captured";
            assert!(is_known, "{} needs a row in crates/metrics/src/table.rs", row.name);
        }
    }
}

#[test]
fn outcomes_sum_to_what_the_hook_saw() {
    let interface = json!({"hook": "xdp", "seen": 1111, "captured": 1000, "filtered": 100,
        "dropped_ring": 5, "dropped_other": 6, "dropped_contended": 1, "dropped_unreadable": 2,
        "dropped_unwritten": 3});
    let text = text(&[], &json!({"interfaces": {"eth0": interface}}));
    let samples = samples(&text);
    let outcomes = samples.iter().filter(|(name, _)| name.starts_with("tapdeck_packets_total{"));
    let sum: f64 = outcomes.map(|(_, n)| n).sum();
    assert_eq!(sum, samples[r#"tapdeck_seen_packets_total{interface="eth0",hook="xdp"}"#]);
    let of = |outcome, cause| {
        let labels = r#"{interface="eth0",hook="xdp","#;
        format!(r#"tapdeck_packets_total{labels}outcome="{outcome}",cause="{cause}"}}"#)
    };
    assert_eq!(samples[&*of("captured", "")], 1000.0);
    assert_eq!(samples[&*of("dropped", "ring")], 5.0);
    assert_eq!(samples[&*of("dropped", "unwritten")], 3.0);
}

#[test]
fn what_the_statistics_do_not_have_is_no_zero() {
    let text = text(&[], &json!({"bytes_written": 7, "interfaces": {"eth0": {"seen": 1}}}));
    let samples = samples(&text);
    assert_eq!(samples.len(), 2, "{text}");
    assert_eq!(samples["tapdeck_written_bytes_total"], 7.0);
    assert!(text.ends_with("\n# EOF\n"), "{text}");
}

#[test]
fn shed_bytes_are_told_of_interfaces_or_else_of_the_whole() {
    let whole = text(&[], &json!({"shed_bytes": 9, "interfaces": {"a": {}}}));
    assert_eq!(samples(&whole), BTreeMap::from([("tapdeck_shed_bytes_total", 9.0)]));
    let parts = text(&[], &json!({"shed_bytes": 9, "interfaces": {"a": {"shed_bytes": 9}}}));
    let name = r#"tapdeck_shed_bytes_total{interface="a",hook=""}"#;
    assert_eq!(samples(&parts), BTreeMap::from([(name, 9.0)]));
}

#[test]
fn several_stores_share_their_metrics_and_no_label_has_a_filter() {
    let mut metrics = Metrics::default();
    for store in ["one", "two"] {
        metrics.add_statistics(&[("store", store)], &recorder());
        metrics.add_up(&[("store", store)], true);
    }
    let text = metrics.open_metrics();
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let mut unique = types.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(types.len(), unique.len(), "{text}");
    assert_eq!(samples(&text)[r#"tapdeck_up{store="two"}"#], 1.0);
    assert!(!text.contains("192.0.2.1"), "{text}");
    let build = r#"tapdeck_build_info{store="one",program="record",version="1.2.3"} 1"#;
    assert!(text.contains(build), "{text}");
}

#[test]
fn a_group_has_outcomes_and_its_fullest_member() {
    let member = |fill| json!({"ring_bytes": 100, "ring_fill_bytes": fill, "away": fill == 7});
    let group = json!({"name": "ids", "seen": 10, "extra": 5, "captured": 9, "filtered": 1,
        "no_member": 1, "dropped_ring": 3, "dropped_other": 1, "members": [member(7), member(60)]});
    let port = json!({"interface": "eth1", "hook": "tcx", "seen": 10, "attached": false});
    let text = text(&[], &json!({"groups": [group], "ports": [port]}));
    let samples = samples(&text);
    let outcomes = samples.iter().filter(|(name, _)| name.starts_with("tapdeck_group_packets"));
    assert_eq!(outcomes.map(|(_, n)| n).sum::<f64>(), 15.0);
    assert_eq!(samples[r#"tapdeck_group_ring_used_bytes{group="ids"}"#], 60.0);
    assert_eq!(samples[r#"tapdeck_group_members_away{group="ids"}"#], 1.0);
    assert_eq!(samples[r#"tapdeck_hook_attached{interface="eth1",hook="tcx"}"#], 0.0);
}

#[test]
fn the_older_form_names_counters_as_their_samples() {
    let text = text(&[], &recorder());
    let classic = classic::of(&text);
    assert!(classic.contains("# TYPE tapdeck_written_bytes_total counter\n"), "{classic}");
    assert!(classic.contains("# TYPE tapdeck_build_info gauge\n"), "{classic}");
    assert!(!classic.contains("# UNIT") && !classic.contains("# EOF"), "{classic}");
    assert_eq!(samples(&classic), samples(&text));
    for line in classic.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        assert!(classic.contains(&format!("# HELP {name} ")), "{name}");
    }
}
