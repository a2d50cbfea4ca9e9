//! How do people read the report of `stat`? As a page of text, with a chart and tables.

use std::fmt::{Display, Write};
use std::time::Duration;

use jiff::Timestamp;
use tapdeck_packet::printable;
use tapdeck_store::Shed;
use tapdeck_store::query::Missing;
use tapdeck_store::stat::{Amount, Gap, Report, Tops};

use super::share;
use crate::chart::bars;
use crate::flags;
use crate::query::time;
use crate::standard_output;
use crate::units::{counted, show_bytes, show_count, show_rate};

/// Columns in front of the bars.
const LABEL: usize = 11;
/// The most gaps that are listed.
const GAPS: usize = 5;

pub fn page(flags: &flags::Stat, report: &Report) -> String {
    let mut page = String::new();
    // Writing into a string does not fail.
    let _ = summary(&mut page, report)
        .and_then(|()| chart(&mut page, report))
        .and_then(|()| if flags.top > 0 { tops(&mut page, report) } else { Ok(()) })
        .and_then(|()| gaps(&mut page, report))
        .and_then(|()| shed(&mut page, report))
        .and_then(|()| unseen(&mut page, report));
    page
}

fn line(page: &mut String, label: &str, text: impl Display) -> std::fmt::Result {
    writeln!(page, "{label:<LABEL$}{text}")
}

fn summary(page: &mut String, report: &Report) -> std::fmt::Result {
    let live = match report.live {
        0 => String::new(),
        n => format!(", {} of them being written", show_count(n)),
    };
    let segments = if report.is_foreign { "files" } else { "segments" };
    line(page, segments, format!("{}{live}", show_count(report.segments)))?;
    line(page, "packets", show_count(report.packets))?;
    if report.is_foreign {
        line(page, "frames", show_bytes(report.bytes_stored))?;
        return recorded(page, report);
    }
    let percent = share(report.index_bytes, report.bytes_stored) * 100.0;
    let (stored, index) = (show_bytes(report.bytes_stored), show_bytes(report.index_bytes));
    line(page, "stored", format!("{stored}, and {index} of indexes ({percent:.2} %)"))?;
    recorded(page, report)
}

/// Writes when the recording was, and what of it is missing.
fn recorded(page: &mut String, report: &Report) -> std::fmt::Result {
    if let Some((first_ns, last_ns)) = report.times {
        line(page, "first", time::show(first_ns))?;
        let after = show_ns(last_ns.saturating_sub(first_ns));
        line(page, "last", format!("{}, {after} later", time::show(last_ns)))?;
    }
    let (lost, gaps) = (report.gaps.lost(), report.gaps.count());
    let lost = match gaps {
        0 => "nothing".into(),
        1 => format!("{} in one gap", counted(lost, "packet")),
        _ => format!("{} in {}", counted(lost, "packet"), counted(gaps, "gap")),
    };
    line(page, "lost", lost)?;
    let Shed { packets, bytes } = report.shed.lost();
    if packets > 0 {
        let times = in_times(report.shed.count());
        let (packets, bytes) = (show_count(packets), show_bytes(bytes));
        let text = format!("{bytes} of {packets} packets: a ring was nearly full {times}");
        line(page, "shed", text)?;
    }
    if !report.unseen.is_empty() {
        let packets = report.unseen.iter().map(|missing| missing.packets).sum();
        let times = in_times(report.unseen.len() as u64);
        line(page, "unseen", format!("{}: a hook was away {times}", counted(packets, "packet")))?;
    }
    let left_out = report.cutoff.cut;
    if left_out.packets > 0 {
        let packets = counted(left_out.packets, "packet");
        let bytes = show_bytes(left_out.bytes);
        let lasts = report.cutoff.lasts();
        let text = format!(
            "{packets} of {bytes} left out of flows: the store lasts {lasts:.1} times as long"
        );
        line(page, "cutoff", text)?;
    }
    if report.not_indexed > 0 {
        let n = show_count(report.not_indexed);
        line(
            page,
            "not told",
            format!(
                "rate, hosts, ports and what was shed of {n} segments that are not indexed; `tapdeck recover` makes their indexes"
            ),
        )?;
    }
    Ok(())
}

fn chart(page: &mut String, report: &Report) -> std::fmt::Result {
    let Some((first_ns, last_ns)) = report.times.filter(|(first, last)| first < last) else {
        return Ok(());
    };
    let columns = standard_output::columns().saturating_sub(LABEL).clamp(20, 200);
    let parts = report.rate.parts(columns, first_ns, last_ns);
    if parts.iter().all(|amount| amount.packets <= 0.0) {
        return Ok(());
    }
    writeln!(page)?;
    let part_ns = (last_ns - first_ns) / columns as i64;
    let mut curve = |label: &str, of: fn(&Amount) -> f64| {
        let per_s = |n: f64, ns: i64| show_rate(n / (ns.max(1) as f64 / 1e9)).trim().to_owned();
        let values: Vec<f64> = parts.iter().map(of).collect();
        let most = per_s(values.iter().copied().fold(0.0, f64::max), part_ns);
        let mean = per_s(values.iter().sum(), last_ns - first_ns);
        line(page, label, bars(&values))?;
        line(page, "", format!("mean {mean}, at most {most} in {}", show_ns(part_ns)))
    };
    curve("packets/s", |amount| amount.packets)?;
    curve("bytes/s", |amount| amount.bytes)?;
    let (first, last) = (clock(first_ns), clock(last_ns));
    let rest = columns.saturating_sub(first.len());
    if rest > last.len() { line(page, "", format!("{first}{last:>rest$}")) } else { Ok(()) }
}

/// Writes hosts on the left and ports on the right.
fn tops(page: &mut String, report: &Report) -> std::fmt::Result {
    let (hosts, ports) = (rows(&report.hosts), rows(&report.ports));
    if hosts.is_empty() && ports.is_empty() {
        return Ok(());
    }
    writeln!(page, "\nIn what share of the recording's pieces a host or port appears:")?;
    let wide = hosts.iter().map(|row| row.0.len()).max().unwrap_or(0).max(15);
    for i in 0..hosts.len().max(ports.len()) {
        let (host, of) = hosts.get(i).cloned().unwrap_or_default();
        let left = format!("{host:<wide$}  {of:>7}");
        let right =
            ports.get(i).map_or(String::new(), |(port, of)| format!("port {port:<5}  {of:>7}"));
        writeln!(page, "{}", format!("{left}   {right}").trim_end())?;
    }
    for (what, unlisted, of, about) in [
        ("addresses", report.hosts.unlisted, report.hosts.of, report.hosts.about),
        ("ports", report.ports.unlisted, report.ports.of, report.ports.about),
    ] {
        if unlisted > 0 {
            let percent = share(unlisted, of) * 100.0;
            writeln!(
                page,
                "In {percent:.1} % of the pieces there are too many {what} to list them all."
            )?;
        } else if about {
            writeln!(page, "There are so many {what} that shares may be a little too low.")?;
        }
    }
    Ok(())
}

fn rows<K: Display>(tops: &Tops<K>) -> Vec<(String, String)> {
    let percent = |granules: u64| format!("{:.1} %", share(granules, tops.of) * 100.0);
    tops.list.iter().map(|(key, granules)| (key.to_string(), percent(*granules))).collect()
}

/// Writes the longest of the times in which packets went unseen.
fn unseen(page: &mut String, report: &Report) -> std::fmt::Result {
    let mut longest: Vec<&Missing> = report.unseen.iter().collect();
    if longest.is_empty() {
        return Ok(());
    }
    longest.sort_by_key(|missing| {
        std::cmp::Reverse((missing.packets, missing.last_ns - missing.first_ns))
    });
    longest.truncate(GAPS);
    longest.sort_by_key(|missing| missing.first_ns);
    let is_all = report.unseen.len() == longest.len();
    let which = if is_all { "Packets went unseen" } else { "Most packets went unseen" };
    writeln!(page, "\n{which}:")?;
    for Missing { interface, packets, first_ns, last_ns, why, .. } in longest {
        let (first, last) = (clock(*first_ns), clock(*last_ns));
        let packets = counted(*packets, "packet");
        writeln!(page, "{first} to {last}  {interface}: {packets}, {why}")?;
    }
    Ok(())
}

fn gaps(page: &mut String, report: &Report) -> std::fmt::Result {
    let mut largest: Vec<&Gap> = report.gaps.list.iter().collect();
    if largest.is_empty() {
        return Ok(());
    }
    largest.sort_by_key(|gap| std::cmp::Reverse(gap.lost));
    largest.truncate(GAPS);
    largest.sort_by_key(|gap| gap.first_ns);
    let is_all = report.gaps.count() == largest.len() as u64;
    let which = if is_all { "The gaps" } else { "The largest gaps" };
    writeln!(page, "\n{which}:")?;
    for gap in largest {
        let lost = counted(gap.lost, "packet");
        let (first, last) = (clock(gap.first_ns), clock(gap.last_ns));
        match &gap.interface {
            Some(name) => {
                let name = printable::name(name);
                writeln!(page, "{first} to {last}  {name}: {lost}")?;
            }
            None => writeln!(page, "{first}, at the end of a recording: {lost}")?,
        }
    }
    Ok(())
}

/// Writes the times in which most was shed.
fn shed(page: &mut String, report: &Report) -> std::fmt::Result {
    let mut largest: Vec<&Gap<Shed>> = report.shed.list.iter().collect();
    if largest.is_empty() {
        return Ok(());
    }
    largest.sort_by_key(|gap| std::cmp::Reverse(gap.lost));
    largest.truncate(GAPS);
    largest.sort_by_key(|gap| gap.first_ns);
    let is_all = report.shed.count() == largest.len() as u64;
    let which = if is_all { "Payload was shed" } else { "Most payload was shed" };
    writeln!(page, "\n{which}:")?;
    for gap in largest {
        let Shed { packets, bytes } = gap.lost;
        let name = gap.interface.as_deref().map(printable::name).unwrap_or_default();
        let (first, last) = (clock(gap.first_ns), clock(gap.last_ns));
        let (packets, bytes) = (show_count(packets), show_bytes(bytes));
        writeln!(page, "{first} to {last}  {name}: {bytes} of {packets} packets")?;
    }
    Ok(())
}

/// Returns how often something happened.
fn in_times(n: u64) -> String {
    match n {
        1 => "once".to_owned(),
        n => format!("{} times", show_count(n)),
    }
}

/// Returns a time of day, to the millisecond.
fn clock(time_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{time:.3}")
}

/// Returns a time span in its own unit, to two digits or more.
fn show_ns(ns: i64) -> String {
    let ns = u64::try_from(ns).unwrap_or(0);
    let unit = match ns {
        60_000_000_000.. => 1_000_000_000,
        1_000_000_000.. => 100_000_000,
        10_000_000.. => 1_000_000,
        10_000.. => 1_000,
        _ => 1,
    };
    humantime::format_duration(Duration::from_nanos(ns / unit * unit)).to_string()
}
