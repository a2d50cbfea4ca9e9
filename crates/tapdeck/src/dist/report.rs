//! The summary of a distribution, on standard error.

use std::io::{self, Write, stderr};

use tapdeck_traffic::dist::{LeftOut, TwoStage};

use super::Gathered;
use crate::units::{counted, show_count};

/// Tells what was found, and how far the two-stage model is from it.
pub fn summary(gathered: &Gathered, model: &TwoStage, top: usize) {
    let _ = write_summary(&mut stderr().lock(), gathered, model, top);
}

fn write_summary(
    out: &mut impl Write,
    gathered: &Gathered,
    model: &TwoStage,
    top: usize,
) -> io::Result<()> {
    let counts = &gathered.counts;
    let what = if gathered.is_model {
        "shares of a two-stage model".to_owned()
    } else {
        counted(counts.packets(), "packet")
    };
    let assumed = if gathered.length_is_assumed { ", as no input says otherwise" } else { "" };
    writeln!(
        out,
        "{what}, {} lengths{assumed}: mean {:.1} bytes, {} to {}",
        gathered.length,
        counts.mean().unwrap_or(0.0),
        counts.smallest().unwrap_or(0),
        counts.largest().unwrap_or(0),
    )?;
    left_out(out, &gathered.left_out, gathered.above_max)?;
    let shares = counts.top(top);
    if !shares.is_empty() {
        writeln!(out, "{:>7} {:>15} {:>10} {:>10}", "size", "packets", "share", "cumulative")?;
    }
    for s in shares {
        let packets = if gathered.is_model { "-".to_owned() } else { show_count(s.packets) };
        let (share, sum) = (s.share * 100.0, s.cumulative * 100.0);
        writeln!(out, "{:>7} {packets:>15} {share:>8.3} % {sum:>8.3} %", s.size)?;
    }
    let (outliers, bins) = (model.cells().outliers.len(), model.cells().bins.len());
    writeln!(
        out,
        "two-stage model: {} and {}, KS distance to the source {:.4}",
        plural(outliers, "outlier"),
        plural(bins, "bin"),
        counts.ks_distance(&model.probabilities())
    )
}

fn left_out(out: &mut impl Write, left: &LeftOut, above_max: u64) -> io::Result<()> {
    for (n, why) in [
        (left.not_ip, "no IP packets, or their IP header was not captured"),
        (left.no_size, "of no bytes or of more than 65535"),
        (above_max, "larger than --max-size"),
    ] {
        if n > 0 {
            writeln!(out, "{} left out: {why}", show_count(n))?;
        }
    }
    Ok(())
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
