//! `tapdeck rules compile`: the same judgements by a better choice of signatures, as a rule file.

use std::io::Write;

use anyhow::Result;
use tapdeck_packet::rules::cluster::Clustered;
use tapdeck_packet::rules::cost::{Cost, Model, Sample};
use tapdeck_packet::rules::{Merged, RuleSet};

use crate::dist::output::{Staged, Target};
use crate::flags;
use crate::progress_line::say;
use crate::units::{counted, show_count};

pub fn run(flags: &flags::RulesCompile) -> Result<()> {
    super::check(&flags.file, flags.sample.as_deref())?;
    let target = Target::new(flags.output.clone());
    target.check()?;
    let set = super::read_rules(&flags.file)?;
    let merged = set.merge();
    let kept = if flags.merge { set.without(&merged) } else { set.clone() };
    let sample = match &flags.sample {
        Some(trace) => super::trace::sample(trace, flags.up_to_damage)?,
        None => Sample::of_rules(&set),
    };
    let clustered = kept.cluster(&sample, flags.growth);
    report(flags, &set, &merged, &clustered, &sample);
    let mut out = Staged::open(&target)?;
    write(&mut out, flags, &kept, &clustered)?;
    out.finish()
}

/// Tells what was done and what it saves.
fn report(
    flags: &flags::RulesCompile,
    set: &RuleSet,
    merged: &[Merged],
    clustered: &Clustered,
    sample: &Sample,
) {
    let enabled = show_count(set.order().len() as u64);
    let left = show_count(clustered.set.len() as u64);
    let signatures = [set, &clustered.set].map(|set| show_count(set.signatures().len() as u64));
    say(&format!("rules: {enabled}, written as {left}"));
    if flags.merge {
        say(&match merged.len() {
            1 => "merged: one rule was not needed".into(),
            n => format!("merged: {} were not needed", counted(n as u64, "rule")),
        });
    } else if !merged.is_empty() {
        let are = match merged.len() {
            1 => "one rule is".into(),
            n => format!("{} are", counted(n as u64, "rule")),
        };
        say(&format!("{are} not needed: --merge leaves out what `tapdeck rules explain` lists"));
    }
    for moved in &clustered.moves {
        say(&format!(
            "{} patterns of {} are {} of {}",
            show_count(moved.patterns as u64),
            moved.from,
            show_count(moved.gained as u64),
            moved.to
        ));
    }
    say(&format!("signatures: {} before, {} now", signatures[0], signatures[1]));
    let [before, after] = [set, &clustered.set].map(|set| Model::new(set).cost(sample));
    let of = match flags.sample {
        Some(_) => format!(
            "{} of {} packets",
            show_count(before.packets as u64),
            show_count(sample.seen())
        ),
        None => "a packet for each rule".into(),
    };
    let tries = |name: &str, mean: fn(&Cost) -> f64, most: fn(&Cost) -> u32| {
        format!(
            "{name} {:.2} before, {:.2} now (at most {}, {})",
            mean(&before),
            mean(&after),
            most(&before),
            most(&after)
        )
    };
    let candidates = tries("candidates", |c| c.candidates_mean, |c| c.candidates_max);
    let walk = tries("walk", |c| c.walk_mean, |c| c.walk_max);
    say(&format!("look-ups a packet, over {of}: {candidates}; {walk}"));
}

/// Writes rules in the order in which they count. Parts of one rule that stand together are marked
/// as such.
fn write(
    out: &mut impl Write,
    flags: &flags::RulesCompile,
    kept: &RuleSet,
    clustered: &Clustered,
) -> Result<()> {
    writeln!(
        out,
        "# Written by tapdeck rules compile from {}.",
        crate::standard_input::name(&flags.file)
    )?;
    writeln!(out, "# The order is that in which rules count; lines are those of that file.")?;
    let mut last = None;
    for (entry, &origin) in clustered.set.entries().iter().zip(&clustered.origins) {
        let whole = kept.rule(origin as usize);
        if whole != Some(&entry.rule)
            && last != Some(origin)
            && let Some(whole) = whole
        {
            writeln!(out, "# parts of line {}: {whole}", entry.line)?;
        }
        last = Some(origin);
        writeln!(out, "{}", entry.rule)?;
    }
    Ok(())
}
