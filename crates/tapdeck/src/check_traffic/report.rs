//! The result of a check, for people and for programs.

use std::io::{self, Write};

use serde::Serialize;
use tapdeck_traffic::check::{Report, Size};

use super::input::RecordingNotes;
use crate::units::{counted, show_count, show_ns};

/// Classes of frame lengths as in RFC 2819 (RMON), from and to, without the frame check sequence,
/// which is not recorded.
const CLASSES: [(u16, u16); 7] =
    [(0, 60), (61, 123), (124, 251), (252, 507), (508, 1019), (1020, 1514), (1515, u16::MAX)];

#[derive(Serialize)]
struct Json<'a> {
    /// Whether everything came back whole.
    clean: bool,
    #[serde(flatten)]
    report: &'a Report,
    /// Packets that the recording says it dropped, of whatever traffic.
    recording_dropped: u64,
    /// Packets that it says it left out of flows that were cut off, of whatever traffic.
    recording_cutoff: u64,
    /// Packets that it says it kept in part, as rings were nearly full, of whatever traffic.
    recording_shed: u64,
    /// Where files were damaged that were used up to there.
    recording_damaged: &'a [String],
}

pub fn write_json(out: &mut impl Write, report: &Report, notes: &RecordingNotes) -> io::Result<()> {
    let json = Json {
        clean: report.is_clean(),
        report,
        recording_dropped: notes.dropped,
        recording_cutoff: notes.cutoff,
        recording_shed: notes.shed,
        recording_damaged: &notes.damage,
    };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)
}

pub fn write_text(
    out: &mut impl Write,
    report: &Report,
    notes: &RecordingNotes,
    streams: usize,
) -> io::Result<()> {
    summary(out, report)?;
    write_notes(out, report, notes)?;
    by_size(out, report)?;
    by_stream(out, report, streams)?;
    over_time(out, report)
}

fn summary(out: &mut impl Write, r: &Report) -> io::Result<()> {
    let in_streams = match r.streams_with_loss {
        1 if r.streams > 1 => " (in 1 stream)".to_owned(),
        n if n > 1 => format!(" (in {})", counted(n, "stream")),
        _ => String::new(),
    };
    let in_streams = if r.lost == 0 { String::new() } else { in_streams };
    let extent = r.reordering_extent.map(|e| format!(" (extent up to {})", show_count(e.max)));
    writeln!(
        out,
        "{} sent, {} arrived intact, {} lost{in_streams}, {} repeated, {} reordered{}, {} damaged",
        show_count(r.made - r.refused),
        show_count(r.intact),
        show_count(r.lost),
        show_count(r.repeated),
        show_count(r.reordered),
        extent.unwrap_or_default(),
        show_count(r.damaged),
    )?;
    match (r.latency_ns, &r.latency_unknown) {
        (Some(l), _) => writeln!(
            out,
            "latency: median {}, 99 % up to {}, at most {}",
            show_ns(l.p50),
            show_ns(l.p99),
            show_ns(l.max)
        ),
        (None, why) => writeln!(out, "latency: unknown: {}", why.as_deref().unwrap_or_default()),
    }
}

/// Writes what explains the figures.
fn write_notes(out: &mut impl Write, r: &Report, notes: &RecordingNotes) -> io::Result<()> {
    let routed = if r.damaged_as_by_routing == 0 {
        ""
    } else {
        "of the damaged packets are as a router makes them: --routed takes them for intact"
    };
    let notes = [
        (
            notes.dropped,
            "packets, of whatever traffic, the recorder dropped by its own account (not counting those after the last it kept)",
        ),
        (
            notes.cutoff,
            "packets, of whatever traffic, the recorder left out of flows that were cut off, by its own account: such packets are among the lost",
        ),
        (
            notes.shed,
            "packets, of whatever traffic, the recorder kept in part because rings were nearly full (shed): such packets may be too short to tell",
        ),
        (r.damaged_as_by_routing, routed),
        (r.unidentified, "damaged packets no longer tell which they were"),
        (
            r.cut,
            "packets were captured too short to hold their number: record with a larger --snaplen",
        ),
        (r.untagged, "packets came without all their VLAN tags, which a device may have taken off"),
        (
            r.refused,
            "packets more were made, but the sender's interface did not take them; below they are among the lost",
        ),
        (r.of_other_runs, "packets are of other runs"),
        (r.foreign, "packets are other traffic"),
    ];
    for (n, note) in notes.into_iter().filter(|(n, _)| *n > 0) {
        writeln!(out, "{} {note}", show_count(n))?;
    }
    Ok(())
}

fn by_size(out: &mut impl Write, r: &Report) -> io::Result<()> {
    let mut rows = Vec::new();
    for (from, to) in CLASSES {
        let mut class = Size::default();
        for size in r.by_size.range(from..=to).map(|(_, size)| size) {
            class.made += size.made;
            class.arrived += size.arrived;
            class.lost += size.lost;
            class.damaged += size.damaged;
        }
        if class == Size::default() {
            continue;
        }
        let name = match (from, to) {
            (0, to) => format!("up to {to}"),
            (from, u16::MAX) => format!("from {from}"),
            (from, to) => format!("{from}-{to}"),
        };
        rows.push(row(name, &[class.made, class.arrived, class.lost, class.damaged]));
    }
    table(out, &["frame bytes (without FCS)", "made", "arrived", "lost", "damaged"], &rows)
}

fn by_stream(out: &mut impl Write, r: &Report, most: usize) -> io::Result<()> {
    let rows: Vec<Vec<String>> = r
        .by_stream
        .iter()
        .take(most)
        .map(|s| {
            let name = format!("{} {}", s.stream, s.flow);
            row(
                name,
                &[s.made, s.lost, s.repeated, s.reordered, s.reordering_extent_max, s.damaged],
            )
        })
        .collect();
    let head = ["stream", "made", "lost", "repeated", "reordered", "extent up to", "damaged"];
    table(out, &head, &rows)?;
    let more = r.by_stream.len() - rows.len();
    if more > 0 {
        writeln!(out, "and {} more streams with faults", show_count(more as u64))?;
    }
    Ok(())
}

/// Writes the periods in which something was wrong.
fn over_time(out: &mut impl Write, r: &Report) -> io::Result<()> {
    let rows: Vec<Vec<String>> = (0u64..)
        .zip(&r.over_time)
        .filter(|(_, p)| p.lost + p.repeated + p.reordered + p.damaged > 0)
        .map(|(i, p)| {
            let tenths = i * r.period_ms / 100;
            let name = format!("{}.{}", show_count(tenths / 10), tenths % 10);
            row(name, &[p.received, p.lost, p.repeated, p.reordered, p.damaged])
        })
        .collect();
    let period = format!("s from start, for {} s", r.period_ms as f64 / 1e3);
    table(out, &[&period, "received", "lost", "repeated", "reordered", "damaged"], &rows)
}

fn row(name: String, counts: &[u64]) -> Vec<String> {
    std::iter::once(name).chain(counts.iter().map(|&n| show_count(n))).collect()
}

/// Writes a table, its names at the left and its numbers at the right; nothing where there are no
/// rows.
fn table(out: &mut impl Write, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let width = |column: usize| {
        rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    writeln!(out)?;
    let head: Vec<String> = head.iter().map(|&h| h.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        write!(out, "{:<1$}", row[0], widths[0])?;
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(out, "  {cell:>width$}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
