//! `tapdeck rules explain`: what is a set made of, and what does it cost?

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{Write, stdout};

use anyhow::{Context, Result};
use serde::Serialize;
use tapdeck_packet::rules::cost::{Cost, Model, Sample};
use tapdeck_packet::rules::image::{Image, Options};
use tapdeck_packet::rules::{Action, Merged, RuleSet, Signature, Why, bloom};

use crate::flags;
use crate::units::{show_bytes, show_count};

/// The most signatures, and the most rules that are not needed, that the page lists.
const LISTED: usize = 40;

#[derive(Serialize)]
struct Report {
    rules: usize,
    signatures: Vec<SignatureReport>,
    bloom: BloomReport,
    /// Bytes of one image, as the hook programs read it. Two images are in memory while a set is
    /// exchanged.
    kernel_bytes: u64,
    tries: TriesReport,
    not_needed: Vec<NotNeeded>,
    impossible: Vec<Impossible>,
}

#[derive(Serialize)]
struct SignatureReport {
    rank: u16,
    signature: String,
    rules: usize,
}

#[derive(Serialize)]
struct BloomReport {
    bits: u64,
    hashes: u32,
    patterns: u64,
    /// The rate by the formula, with so many patterns in so many bits.
    rate: f64,
    promised_rate: f64,
    /// The most patterns that keep the promise in so many bits.
    capacity: u64,
}

#[derive(Serialize)]
struct TriesReport {
    packets: usize,
    packets_seen: u64,
    is_sample: bool,
    candidates_mean: f64,
    candidates_max: u32,
    walk_mean: f64,
    walk_max: u32,
}

#[derive(Serialize)]
struct NotNeeded {
    line: u32,
    rule: String,
    /// `duplicate` or `hidden`: the rule takes no packet. `subset`: the other rule would do the
    /// same.
    why: &'static str,
    because_of_line: u32,
}

#[derive(Serialize)]
struct Impossible {
    line: u32,
    rule: String,
    why: &'static str,
}

pub fn run(flags: &flags::RulesExplain) -> Result<()> {
    super::check(&flags.file, flags.sample.as_deref())?;
    let set = super::read_rules(&flags.file)?;
    let sample = match &flags.sample {
        Some(trace) => super::trace::sample(trace, flags.up_to_damage)?,
        None => Sample::of_rules(&set),
    };
    let report = report(flags, &set, &sample)?;
    let mut out = stdout().lock();
    if flags.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(page(&report).as_bytes())?;
    }
    Ok(out.flush()?)
}

fn report(flags: &flags::RulesExplain, set: &RuleSet, sample: &Sample) -> Result<Report> {
    let options = Options {
        false_positive_rate: flags.false_positive_rate,
        bloom: flags.bloom_bits.map_or(bloom::Size::UpTo(bloom::MAX_BITS), bloom::Size::Fixed),
        groups: groups(set),
        ..Options::default()
    };
    let image =
        Image::build(set, &options).with_context(|| crate::standard_input::name(&flags.file))?;
    let facts = image.facts();
    let Cost { packets, walk_mean, walk_max, candidates_mean, candidates_max } =
        Model::new(set).cost(sample);
    Ok(Report {
        rules: set.len(),
        signatures: signatures(set),
        bloom: BloomReport {
            bits: facts.bloom_bits,
            hashes: bloom::HASHES,
            patterns: facts.patterns,
            rate: bloom::rate(facts.bloom_bits, facts.patterns),
            promised_rate: flags.false_positive_rate,
            capacity: bloom::capacity(facts.bloom_bits, flags.false_positive_rate),
        },
        kernel_bytes: image.bytes().len() as u64,
        tries: TriesReport {
            packets,
            packets_seen: sample.seen(),
            is_sample: flags.sample.is_some(),
            candidates_mean,
            candidates_max,
            walk_mean,
            walk_max,
        },
        not_needed: set.merge().iter().map(|merged| not_needed(set, merged)).collect(),
        impossible: impossible(set),
    })
}

/// Returns a number for each group that rules name. Which number it is changes no cost.
fn groups(set: &RuleSet) -> BTreeMap<String, u32> {
    let names = set.entries().iter().filter_map(|entry| match &entry.rule.action {
        Action::Group(name) => Some(name.clone()),
        _ => None,
    });
    names.map(|name| (name, 0)).collect()
}

/// Returns how many rules each signature has, the more specific signatures first.
fn signatures(set: &RuleSet) -> Vec<SignatureReport> {
    let mut counts: HashMap<Signature, usize> = HashMap::new();
    for entry in set.entries() {
        for signature in entry.rule.signatures() {
            *counts.entry(signature).or_default() += 1;
        }
    }
    let report = |signature: Signature| SignatureReport {
        rank: signature.rank(),
        signature: signature.to_string(),
        rules: counts[&signature],
    };
    set.signatures().into_iter().map(report).collect()
}

fn not_needed(set: &RuleSet, merged: &Merged) -> NotNeeded {
    let entry = &set.entries()[merged.rule as usize];
    NotNeeded {
        line: entry.line,
        rule: entry.rule.to_string(),
        why: match merged.why {
            Why::Duplicate => "duplicate",
            Why::Hidden => "hidden",
            Why::Subset => "subset",
        },
        because_of_line: set.entries()[merged.by as usize].line,
    }
}

fn impossible(set: &RuleSet) -> Vec<Impossible> {
    let impossible = set.entries().iter().filter_map(|entry| {
        let why = entry.rule.impossible()?;
        Some(Impossible { line: entry.line, rule: entry.rule.to_string(), why })
    });
    impossible.collect()
}

fn page(report: &Report) -> String {
    let mut page = String::new();
    // Writing into a string does not fail.
    let _ = summary(&mut page, report).and_then(|()| lists(&mut page, report));
    page
}

fn summary(page: &mut String, report: &Report) -> std::fmt::Result {
    let Report { bloom, tries, .. } = report;
    writeln!(page, "rules       {}", show_count(report.rules as u64))?;
    writeln!(page, "signatures  {}", show_count(report.signatures.len() as u64))?;
    writeln!(page, "memory      {} in the kernel", show_bytes(report.kernel_bytes))?;
    writeln!(
        page,
        "Bloom       {} bits, {} hashes, {} patterns: false-positive rate {:.6} of {} promised, which up to {} patterns keep",
        show_count(bloom.bits),
        bloom.hashes,
        show_count(bloom.patterns),
        bloom.rate,
        bloom.promised_rate,
        show_count(bloom.capacity)
    )?;
    let over = if tries.is_sample {
        format!(
            "over {} of {} packets",
            show_count(tries.packets as u64),
            show_count(tries.packets_seen)
        )
    } else {
        "for packets that fit a rule each; --sample TRACE counts on real ones".into()
    };
    writeln!(
        page,
        "look-ups    candidates {:.2} (at most {}), walk {:.2} (at most {}), {over}",
        tries.candidates_mean, tries.candidates_max, tries.walk_mean, tries.walk_max
    )
}

fn lists(page: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(page, "\n   rank     rules  signature")?;
    for signature in report.signatures.iter().take(LISTED) {
        let rules = show_count(signature.rules as u64);
        writeln!(page, "{:>7} {rules:>9}  {}", signature.rank, signature.signature)?;
    }
    more(page, report.signatures.len())?;
    if !report.not_needed.is_empty() {
        writeln!(page, "\nnot needed; `tapdeck rules compile --merge` leaves out:")?;
    }
    for rule in report.not_needed.iter().take(LISTED) {
        let why = match rule.why {
            "duplicate" => "takes nothing, for it looks for the same as",
            "hidden" => "takes nothing, for it is inside",
            _ => "does the same as",
        };
        writeln!(
            page,
            "  line {}: {} ({why} line {})",
            rule.line, rule.rule, rule.because_of_line
        )?;
    }
    more(page, report.not_needed.len())?;
    if !report.impossible.is_empty() {
        writeln!(page, "\nfits no packet:")?;
    }
    for rule in report.impossible.iter().take(LISTED) {
        writeln!(page, "  line {}: {} ({})", rule.line, rule.rule, rule.why)?;
    }
    more(page, report.impossible.len())
}

/// Writes how many rows were not listed.
fn more(page: &mut String, count: usize) -> std::fmt::Result {
    match count.saturating_sub(LISTED) {
        0 => Ok(()),
        more => writeln!(page, "  and {} more; --json lists all", show_count(more as u64)),
    }
}
