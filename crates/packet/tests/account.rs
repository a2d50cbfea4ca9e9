//! `docs/ACCOUNTING.md` says of each counter what the list of counters says, and states the laws as
//! the list has them. With `TAPDECK_WRITE_DOCS=1` the tables are written instead of compared.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use tapdeck_packet::account::{
    Counter, Counters, GroupCounters, InterfaceCounters, LIST, Law, MemberCounters,
};

const END: &str = "<!-- end of counters -->";

fn accounting_md() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/ACCOUNTING.md")
}

/// The comment in front of a block's table: `<!-- counters: recorder, interface -->`.
fn marker(block: &[Counter]) -> String {
    let places: Vec<String> =
        block[0].places.iter().map(|place| format!("{place:?}").to_lowercase()).collect();
    format!("<!-- counters: {} -->", places.join(", "))
}

fn table(block: &[Counter]) -> String {
    let mut text = String::from(
        "| key | unit | what it counts, and where that is read | what can make it wrong |\n| --- | --- | --- | --- |\n",
    );
    for Counter { name, meaning, unit, caveat, .. } in block {
        let row = format!("| `{name}` | {} | {meaning} | {caveat}", unit.name());
        let _ = writeln!(text, "{} |", row.trim_end());
    }
    text
}

#[test]
fn the_tables_are_those_of_the_list() {
    let path = accounting_md();
    let old = fs::read_to_string(&path).expect("it is there");
    let mut rest = &old[..];
    let mut new = String::new();
    for block in LIST {
        let marker = marker(block);
        let (before, after) = rest
            .split_once(&marker)
            .unwrap_or_else(|| panic!("ACCOUNTING.md has no {marker}, or not in the list's order"));
        let (_, after) = after.split_once(END).unwrap_or_else(|| panic!("{marker} has no {END}"));
        let _ = write!(new, "{before}{marker}\n\n{}\n{END}", table(block));
        rest = after;
    }
    new += rest;
    assert!(!rest.contains("<!-- counters:"), "a table of counters that the list does not have");
    if std::env::var_os("TAPDECK_WRITE_DOCS").is_some() {
        fs::write(&path, new).expect("the document can be written");
        return;
    }
    for (old, new) in old.lines().zip(new.lines()) {
        assert_eq!(
            old, new,
            "ACCOUNTING.md is not as crates/packet/src/account.rs has it: \
             TAPDECK_WRITE_DOCS=1 cargo test -p tapdeck-packet --test account"
        );
    }
    assert_eq!(old, new);
}

/// The two laws of a block, as equations of keys.
fn laws(block: &[Counter]) -> [String; 2] {
    let sum = |picks: fn(Law) -> bool| {
        let picked: Vec<_> = block.iter().filter(|c| picks(c.law)).map(|c| c.name).collect();
        picked.join(" + ")
    };
    [
        format!(
            "{} = {}",
            sum(|law| matches!(law, Law::Came(_))),
            sum(|law| matches!(law, Law::NotWanted(_) | Law::Kept(_) | Law::Lost(_)))
        ),
        format!(
            "{} = {}",
            sum(|law| law == Law::DeviceMoved),
            sum(|law| matches!(law, Law::Came(_) | Law::DeviceLost | Law::NotShown))
        ),
    ]
}

#[test]
fn the_laws_are_those_of_the_list() {
    let of_document = |name: &str| {
        let path = accounting_md().with_file_name(name);
        let text = fs::read_to_string(path).expect("it is there");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (accounting, control) = (of_document("ACCOUNTING.md"), of_document("CONTROL.md"));
    let [seen, device] = laws(InterfaceCounters::LIST);
    assert!(accounting.contains(&seen), "{seen}");
    assert!(accounting.contains(&device), "{device}");
    let [group, _] = laws(GroupCounters::LIST);
    assert!(accounting.contains(&group), "{group}");
    assert!(control.contains(&group), "{group}");
    // A group's numbers are sums over its members, so what a member has a group has.
    for counter in MemberCounters::LIST {
        let of_group = GroupCounters::LIST.iter().find(|c| c.name == counter.name);
        assert_eq!(of_group.map(|c| c.unit), Some(counter.unit), "{counter:?}");
    }
}
