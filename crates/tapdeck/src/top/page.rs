//! How does what is known become lines? The same lines are shown on the screen and printed as plain
//! text.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use tapdeck_packet::printable;

use super::answer::{Answer, Of, Recorder};
use super::board::Known;
use super::store::{Minute, Whole};
use super::table::fitted;
use super::tables::{columns, short, table};
use super::view::{Tab, View};
use super::{Target, style};
use crate::chart::{area, bars};
use crate::query::time;
use crate::units::{counted, show_bytes, show_count};

/// Rows of each table in plain text.
const PLAIN_ROWS: usize = 10;
/// Columns in front of what a line tells.
const LABEL: usize = 10;

/// What a table has above its rows at most.
const ABOVE: usize = 2;

const HELP: &[&str] = &[
    "q, Esc      quit                    Tab, ->     the next table",
    "p, space    pause the view, go on   <-          the table before",
    "s           sort by the next column 1 to 9      a table by its number",
    "r           sort backwards          Up, Down    scroll; also Page Up, Page Down",
    "h, ?        this help               Ctrl-L      draw the screen anew",
    "",
    "The recorder or daemon goes on while the view is paused.",
    "",
    "seen        packets that came to the hook: all that follows is a part of it",
    "captured    packets in the recording, or in members' rings",
    "filtered    packets that a filter or a rule left out",
    "dropped     packets that were wanted and are lost",
    "unseen      packets that the device received and the hook was not shown",
    "behind      recorded, and not in the index yet",
];

/// Makes a screen of so many columns and rows.
pub fn screen(
    target: &Target,
    view: &View,
    known: &Known,
    (width, height): (usize, usize),
) -> Vec<Line<'static>> {
    let now = view.paused.as_ref().map_or_else(SystemTime::now, |(_, at)| *at);
    let mut lines = head(target, known, now, width);
    if view.is_help {
        lines.push(Line::styled(fitted("keys and words", width, false), style::head()));
        lines.extend(HELP.iter().map(|line| Line::raw(*line)));
    } else {
        let tabs = Tab::all(known);
        if let Some(tab) = view.tab(&tabs) {
            lines.push(tab_line(&tabs, tab, view));
            lines.extend(body(
                view,
                tab,
                known,
                width,
                height.saturating_sub(lines.len() + 1 + ABOVE),
            ));
        }
    }
    lines.resize(height.saturating_sub(1), Line::default());
    let keys = match (view.is_help, view.paused.is_some()) {
        (true, _) => "any key: back",
        (false, true) => "PAUSED   p go on   s sort   r backwards   Tab table   h help   q quit",
        (false, false) => "q quit   p pause   s sort   r backwards   Tab table   h help",
    };
    lines.push(Line::styled(keys, style::title()));
    lines
}

/// Returns how many rows of the table a screen of so many rows has.
pub fn rows_shown(target: &Target, known: &Known, (width, height): (usize, usize)) -> usize {
    let head = head(target, known, SystemTime::now(), width).len();
    height.saturating_sub(head + 2 + ABOVE)
}

/// Makes a page of all there is, as it is printed.
pub fn plain(target: &Target, known: &Known, width: usize) -> Vec<Line<'static>> {
    let mut lines = head(target, known, SystemTime::now(), width);
    let view = View::new();
    for tab in Tab::all(known) {
        lines.extend([Line::default(), Line::raw(tab.name())]);
        lines.extend(body(&view, tab, known, width, PLAIN_ROWS));
    }
    lines
}

/// Returns the last row that may be the first on the screen.
pub fn last_first(tab: Tab, known: &Known, rows: usize) -> usize {
    if tab == Tab::Store { 0 } else { table(tab, known).rows.len().saturating_sub(rows) }
}

/// Returns a table as lines: its headings, and as many rows as there is room for.
fn body(view: &View, tab: Tab, known: &Known, width: usize, rows: usize) -> Vec<Line<'static>> {
    if tab == Tab::Store {
        return known.whole.as_deref().map_or_else(Vec::new, |whole| store(whole, width, rows));
    }
    let (mut table, order) = (table(tab, known), view.order(tab));
    table.sort(order);
    let first = view.first_row.min(last_first(tab, known, rows));
    let upto = table.rows.len().min(first + rows);
    let mut lines = Vec::new();
    if let (Tab::Flows | Tab::Hosts, Some(minute)) = (tab, known.minute.as_deref()) {
        lines.push(of_minute(minute));
    }
    lines.push(table.head(width, order));
    lines.extend((first..upto).map(|row| table.row(row, width)));
    lines
}

fn tab_line(tabs: &[Tab], shown: Tab, view: &View) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, tab) in tabs.iter().enumerate() {
        let style = if *tab == shown { style::chosen() } else { Style::new() };
        spans.push(Span::styled(format!("{} {}", number + 1, tab.name()), style));
        spans.push(Span::raw("   "));
    }
    if columns(shown).is_empty() {
        return Line::from(spans);
    }
    let order = view.order(shown);
    let backwards = if order.backwards { ", backwards" } else { "" };
    let by = columns(shown).get(order.column).map_or("", |column| column.head);
    spans.push(Span::raw(format!("sorted by {by}{backwards}")));
    Line::from(spans)
}

/// Returns what stands above the tables.
fn head(target: &Target, known: &Known, now: SystemTime, width: usize) -> Vec<Line<'static>> {
    let clock = clock(now);
    let what = match known.answer.as_deref() {
        Some(answer) => {
            let what = match answer.of {
                Of::Recorder(_) => "recording",
                Of::Daemon(_) => "serving",
            };
            let what = if answer.paused { "paused" } else { what };
            format!("{what} for {}, tapdeck {}", show_time(answer.running), answer.version)
        }
        None if known.silence.is_some() => "its recorder does not answer".to_owned(),
        None => "nobody records into it".to_owned(),
    };
    let name = target.name();
    let room = width.saturating_sub(clock.len() + 1);
    let title = format!("{} {clock}", fitted(&format!("{name}  {what}"), room, false));
    let mut lines = vec![Line::styled(title, style::title())];
    if let Some((why, since)) = &known.silence {
        let text = format!("no answer since {}: {why}", self::clock(*since));
        lines.push(Line::styled(fitted(&text, width, false), style::fault()));
    }
    if let Some(answer) = known.answer.as_deref() {
        lines.extend(rates(answer, known, width));
        lines.push(labelled("packets", [Span::raw(answer.accounting.clone())]));
        match &answer.of {
            Of::Recorder(recorder) => lines.push(recorder_line(recorder, answer)),
            Of::Daemon(daemon) => {
                let (ports, groups) = (daemon.ports.len(), daemon.groups.len());
                let text = format!(
                    "{} with {}",
                    counted(groups as u64, "group"),
                    counted(daemon.members.len() as u64, "member")
                );
                let parts = [Span::raw(text), Span::raw(format!(", {ports} ports"))];
                lines.push(labelled("shared by", parts));
            }
        }
        lines.push(missing(answer));
    }
    if let Some(why) = &known.store_fault {
        let text = format!("the store cannot be read: {why}");
        lines.push(Line::styled(fitted(&text, width, false), style::fault()));
    } else if let Some(whole) = known.whole.as_deref() {
        lines.push(store_line(whole));
    }
    lines
}

/// Returns how much the store holds, and since when.
fn store_line(whole: &Whole) -> Line<'static> {
    let (bytes, segments) = (show_bytes(whole.bytes), counted(whole.segments, "segment"));
    let mut text = format!("{bytes} in {segments}");
    if let Some((first_ns, last_ns)) = whole.times {
        let first = Timestamp::from_nanosecond(first_ns.into()).unwrap_or(Timestamp::UNIX_EPOCH);
        let first = Zoned::new(first, TimeZone::system());
        let time = show_time(Duration::from_nanos(last_ns.abs_diff(first_ns)));
        let _ = write!(text, " since {}, {time}", first.strftime("%Y-%m-%d %H:%M:%S"));
    }
    labelled("store", [Span::raw(text)])
}

/// Returns what the tables of flows and hosts are made of.
fn of_minute(minute: &Minute) -> Line<'static> {
    let sums = &minute.sums;
    let seconds = minute.seconds.round();
    let mut text = format!("{} in {seconds} s", counted(sums.packets.round() as u64, "packet"));
    let to = u64::try_from(minute.to_ns).unwrap_or(0);
    let _ = write!(text, " to {}", clock(SystemTime::UNIX_EPOCH + Duration::from_nanos(to)));
    if sums.read < sums.pieces {
        let (read, pieces) = (show_count(sums.read as u64), show_count(sums.pieces as u64));
        let _ = write!(text, ", estimated from {read} of {pieces} pieces");
    }
    if minute.unread_bytes > 0 {
        let _ = write!(text, "; {} not indexed yet", show_bytes(minute.unread_bytes));
    }
    if let Some(fault) = &minute.fault {
        let _ = write!(text, "; {}", printable::name(fault));
    }
    Line::raw(text)
}

/// Returns what the store holds, with a chart of all of it.
fn store(whole: &Whole, width: usize, rows: usize) -> Vec<Line<'static>> {
    let mut lines = vec![
        labelled("packets", [Span::raw(show_count(whole.packets))]),
        labelled(
            "stored",
            [Span::raw(format!(
                "{}, and {} of indexes",
                show_bytes(whole.bytes),
                show_bytes(whole.index_bytes)
            ))],
        ),
    ];
    let fault = |n: u64| if n > 0 { style::fault() } else { Style::new() };
    for (label, n) in [("lost", whole.lost), ("unseen", whole.unseen)] {
        lines.push(labelled(label, [Span::styled(show_count(n), fault(n))]));
    }
    let Some((first_ns, last_ns)) = whole.times.filter(|(first, last)| first < last) else {
        return lines;
    };
    let high = rows.saturating_sub(lines.len() + 2).min(12);
    let parts = whole.rate.parts(width, first_ns, last_ns);
    let values: Vec<f64> = parts.iter().map(|amount| amount.packets).collect();
    let part_s = (last_ns - first_ns) as f64 / 1e9 / width.max(1) as f64;
    let most = values.iter().copied().fold(0.0, f64::max) / part_s;
    lines.push(Line::raw(format!("packets, at most {}/s", short(most))));
    let chart = area(&values, high, is_utf8());
    lines.extend(chart.into_iter().map(|row| Line::styled(row, style::chart())));
    let (first, last) = (time::show(first_ns), time::show(last_ns));
    let room = width.saturating_sub(first.len());
    lines.push(Line::raw(format!("{first}{last:>room$}")));
    lines
}

fn labelled(label: &str, spans: impl IntoIterator<Item = Span<'static>>) -> Line<'static> {
    let mut line = vec![Span::styled(fitted(label, LABEL, false), style::title())];
    line.extend(spans);
    Line::from(line)
}

/// Returns the rates of the moment, and how they came to be.
fn rates(answer: &Answer, known: &Known, width: usize) -> Option<Line<'static>> {
    let rate = answer.rate?;
    let text = format!("{:>8} pkt/s {:>8} bit/s  ", short(rate.packets), short(rate.bits));
    let room = width.saturating_sub(LABEL + text.len());
    let history = &known.history[known.history.len().saturating_sub(room)..];
    let chart = if is_utf8() { bars(history) } else { String::new() };
    Some(labelled("now", [Span::raw(text), Span::styled(chart, style::chart())]))
}

/// Returns how rings, disk and index of a recorder stand.
fn recorder_line(recorder: &Recorder, answer: &Answer) -> Line<'static> {
    let c = &recorder.counters;
    let mut parts = Vec::new();
    if let Some(rings) = &recorder.rings {
        let percent = |bytes: u64| bytes * 100 / rings.ring_size_bytes.max(1);
        let (now, most) = (percent(rings.ring_used_bytes), percent(c.ring_used_max));
        let of = show_bytes(rings.ring_size_bytes);
        let style = if answer.dropped > 0 { style::fault() } else { Style::new() };
        parts.push(Span::styled(format!("ring {now} % of {of}, at most {most} %"), style));
    }
    if let Some(written) = recorder.written {
        parts.push(Span::raw(format!("disk {}/s", show_bytes(written as u64))));
    }
    // A write that takes so long holds the rings up.
    if c.write_us > 1_000_000 {
        let text = format!("waits for {}", show_time(Duration::from_micros(c.write_us)));
        parts.push(Span::styled(text, style::fault()));
    }
    if c.write_errors > 0 {
        let text = format!("{} writes failed", show_count(c.write_errors));
        parts.push(Span::styled(text, style::fault()));
    }
    if recorder.store.is_some() {
        parts.push(Span::raw(format!("index {} behind", show_bytes(c.index_behind_bytes))));
    }
    if let Some(cpu) = recorder.cpu {
        parts.push(Span::raw(format!("CPU {:.0} %", cpu * 100.0)));
    }
    let mut spans = Vec::new();
    for part in parts {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        spans.push(part);
    }
    labelled("recorder", spans)
}

/// Returns what is not in the recording.
fn missing(answer: &Answer) -> Line<'static> {
    let part = |n: u64, what: &str| {
        let style = if n > 0 { style::fault() } else { Style::new() };
        Span::styled(format!("{} {what}", show_count(n)), style)
    };
    let parts = [
        part(answer.dropped, "dropped"),
        Span::raw("  "),
        part(answer.unseen, "unseen"),
        Span::raw("  "),
        part(answer.nic_dropped, "dropped by devices"),
    ];
    labelled("missing", parts)
}

/// Returns a time of day, local, to the second.
fn clock(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    Zoned::new(at, TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// Returns a time span in whole seconds, in its two largest units.
pub fn show_time(time: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Whether the terminal shows more than ASCII, as locale(7) says it.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var);
    let first = set.into_iter().flatten().find(|value| !value.is_empty()).unwrap_or_default();
    let upper = first.to_ascii_uppercase();
    upper.contains("UTF-8") || upper.contains("UTF8")
}
