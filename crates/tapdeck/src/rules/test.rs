//! `tapdeck rules test`: which rule takes which packets of a capture file?

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Write, stdout};

use anyhow::Result;
use serde::Serialize;
use tapdeck_packet::rules::{Action, Judge, RuleSet, Tuple};

use crate::flags;
use crate::units::{counted, show_bytes, show_count};

/// The most flows whose rules are remembered.
const FLOWS: usize = 1 << 16;

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Hits {
    hits: u64,
    bytes: u64,
}

/// How many packets the rules took.
struct Tally {
    /// What each rule took, by the rules' numbers.
    rules: Vec<Hits>,
    none: Hits,
}

pub fn run(flags: &flags::RulesTest) -> Result<()> {
    super::check(&flags.file, Some(&flags.trace))?;
    let set = super::read_rules(&flags.file)?;
    let judge = Judge::new(&set);
    let mut tally = Tally { rules: vec![Hits::default(); set.len()], none: Hits::default() };
    let mut known: HashMap<Tuple, Option<u32>> = HashMap::new();
    super::trace::read(&flags.trace, flags.up_to_damage, |tuple, original_len| {
        if known.len() >= FLOWS {
            known.clear();
        }
        let by = *known.entry(*tuple).or_insert_with(|| judge.judge(tuple));
        tally.add(by, original_len);
    })?;
    let mut out = stdout().lock();
    if flags.json {
        serde_json::to_writer(&mut out, &report(&set, &tally))?;
        writeln!(out)?;
    } else {
        out.write_all(page(&set, &tally).as_bytes())?;
    }
    Ok(out.flush()?)
}

impl Tally {
    fn add(&mut self, rule: Option<u32>, bytes: u32) {
        let taken = rule.and_then(|number| self.rules.get_mut(number as usize));
        let hits = taken.unwrap_or(&mut self.none);
        hits.hits += 1;
        hits.bytes += u64::from(bytes);
    }

    /// Returns how many packets rules of some kind took.
    fn of(&self, set: &RuleSet, kind: impl Fn(&Action) -> bool) -> u64 {
        let rules = set.entries().iter().zip(&self.rules);
        rules.filter(|(entry, _)| kind(&entry.rule.action)).map(|(_, hits)| hits.hits).sum()
    }
}

#[derive(Serialize)]
struct Report {
    packets: u64,
    accepted: u64,
    dropped: u64,
    none: u64,
    rules: Vec<RuleReport>,
}

#[derive(Serialize)]
struct RuleReport {
    line: u32,
    rule: String,
    #[serde(flatten)]
    hits: Hits,
}

fn report(set: &RuleSet, tally: &Tally) -> Report {
    let rules = set.entries().iter().zip(&tally.rules);
    let rules = rules.map(|(entry, &hits)| RuleReport {
        line: entry.line,
        rule: entry.rule.to_string(),
        hits,
    });
    let dropped = tally.of(set, |action| *action == Action::Drop);
    let taken = tally.of(set, |_| true);
    Report {
        packets: taken + tally.none.hits,
        accepted: taken - dropped,
        dropped,
        none: tally.none.hits,
        rules: rules.collect(),
    }
}

fn page(set: &RuleSet, tally: &Tally) -> String {
    let Report { packets, accepted, dropped, none, .. } = report(set, tally);
    let mut page = String::new();
    let mut line = |hits: &Hits, line: &str, text: &str| {
        let (count, bytes) = (show_count(hits.hits), show_bytes(hits.bytes));
        let _ = writeln!(page, "{count:>15} {bytes:>11} {line:>7}  {text}");
    };
    for (entry, hits) in set.entries().iter().zip(&tally.rules) {
        line(hits, &entry.line.to_string(), &entry.rule.to_string());
    }
    line(&tally.none, "-", "no rule: not captured");
    let header = format!("{:>15} {:>11} {:>7}  rule\n", "packets", "bytes", "line");
    let packets = counted(packets, "packet");
    let [accepted, dropped, none] = [accepted, dropped, none].map(show_count);
    format!(
        "{header}{page}\n{packets}: {accepted} accepted, {dropped} dropped, {none} that no rule takes\n"
    )
}
