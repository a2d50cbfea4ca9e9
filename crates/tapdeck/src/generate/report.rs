//! What the user learns of a run: the live line, the summary, the JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write, stdout};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tapdeck_packet::generate::Limits;
use tapdeck_traffic::pacing::WIRE_BYTES;
use tapdeck_traffic::sent::{MeasuredRate, Sent, Spread};
use tapdeck_traffic::workload::Workload;

use super::names;
use super::resolve::{Generation, Job, Load, Recording};
use super::worker::{Done, Watch};
use crate::progress_line::{ProgressLine, say};
use crate::units::{counted, show_count, show_ns, show_rate};

/// The line on the terminal while a run goes on.
pub struct Live {
    progress: ProgressLine,
    packets: u64,
    last: (Instant, u64, u64),
}

impl Live {
    pub fn new(packets: u64) -> Self {
        Self { progress: ProgressLine::new(), packets, last: (Instant::now(), 0, 0) }
    }

    pub fn show<'a>(&mut self, watches: impl Iterator<Item = &'a Watch>) {
        let Self { progress, packets, last } = self;
        progress.show(|| {
            let (sent, bytes) =
                watches.fold((0, 0), |(sent, bytes), w| (sent + w.sent(), bytes + w.bytes()));
            let (then, sent_then, bytes_then) = *last;
            let seconds = then.elapsed().as_secs_f64().max(1e-9);
            *last = (Instant::now(), sent, bytes);
            let pps = show_rate(sent.saturating_sub(sent_then) as f64 / seconds);
            let bits = show_rate(bytes.saturating_sub(bytes_then) as f64 * 8.0 / seconds);
            let of =
                if *packets > 0 { format!(" of {}", show_count(*packets)) } else { String::new() };
            format!("packets sent: {}{of}, {pps}packets/s, {bits}bit/s", show_count(sent))
        });
    }
}

pub struct Report {
    json: Option<Json>,
}

enum Json {
    Stdout,
    File(File),
}

impl Report {
    /// Opens the file for the JSON before the run, so that a run is not in vain. Its old contents
    /// stay until there is something in their place.
    pub fn new(json: Option<&Path>) -> Result<Self> {
        let json = match json {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Json::Stdout),
            Some(path) => {
                let file = File::options().write(true).create(true).truncate(false).open(path);
                Some(Json::File(file.with_context(|| format!("cannot write {}", path.display()))?))
            }
        };
        Ok(Self { json })
    }

    /// Tells what was sent, and returns the record of it.
    pub fn finished(mut self, job: &Job, done: &[Done], interrupted: bool) -> Result<Sent> {
        let sent = sum_up(job, done, interrupted);
        summary(job, &sent);
        done.iter().flat_map(|d| &d.remarks).for_each(|remark| say(remark));
        let written = match &mut self.json {
            None => Ok(()),
            Some(Json::Stdout) => write_json(&mut stdout().lock(), &sent),
            Some(Json::File(file)) => empty(file).and_then(|()| write_json(file, &sent)),
        };
        match written {
            // The reader has seen enough, which is no fault.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.context("cannot write the JSON")?,
        }
        Ok(sent)
    }
}

/// Empties a file. Pipes and devices have no contents to be taken away.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

fn write_json(out: &mut impl Write, sent: &Sent) -> io::Result<()> {
    let text = serde_json::to_string_pretty(sent)?;
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// Tells what is about to be sent.
pub fn started(job: &Job) {
    let reason = job.reason.as_ref().map(|r| format!(" (auto: {r})")).unwrap_or_default();
    let by = format!("{} with back end {}{reason}", names(&job.interfaces), job.backend.name());
    match &job.load {
        Load::Generated(generation) => started_generating(job, generation, &by),
        Load::Recorded(recording) => started_replaying(job, recording, &by),
    }
}

fn summary(job: &Job, sent: &Sent) {
    let share = sent.sent as f64 / (sent.sent + sent.refused).max(1) as f64;
    say(&format!(
        "sent {}, {} bytes in {:.3} s: {}packets/s, {}bit/s ({}bit/s on the wire)",
        counted(sent.sent, "packet"),
        show_count((sent.bytes as f64 * share).round() as u64),
        sent.elapsed_s,
        show_rate(sent.rate.pps),
        show_rate(sent.rate.bits_per_s),
        show_rate(sent.rate.wire_bits_per_s),
    ));
    if let Some(gap) = sent.gap_ns {
        let jitter = sent.jitter_ns.map(|j| {
            format!(
                "; off their time by {} at p50, {} at p99, {} at most",
                show_ns(j.p50),
                show_ns(j.p99),
                show_ns(j.max)
            )
        });
        say(&format!(
            "gaps {} at p50, {} at p99, {} at most{}",
            show_ns(gap.p50),
            show_ns(gap.p99),
            show_ns(gap.max),
            jitter.unwrap_or_default(),
        ));
    }
    if sent.refused > 0 {
        say(&format!(
            "{} more than {} took: its queue or its far end was full",
            counted(sent.refused, "packet"),
            names(&job.interfaces),
        ));
    }
    if sent.rate.saturated {
        let why = if sent.refused * 100 > sent.sent + sent.refused {
            "the interface does not take as many".to_owned()
        } else {
            format!("the sender is at its limit, up to {} late", show_ns(sent.rate.late_max_ns))
        };
        let asked = sent.rate.asked_pps.map(show_rate).unwrap_or_default();
        say(&format!(
            "not as fast as asked: {} is {asked}packets/s, and {}packets/s went; {why}",
            sent.rate.asked,
            show_rate(sent.rate.pps),
        ));
    }
    if sent.interrupted && (job.limits != Limits::default() || job.packets() > 0) {
        say("it was ended before its time");
    }
}

fn started_generating(job: &Job, generation: &Generation, by: &str) {
    let Generation { workload, table, .. } = generation;
    say(&format!(
        "sending by {by}: frames of {:.0} bytes in the mean, {} at a rate of {}",
        table.mean(),
        flows(workload.flows),
        job.rate_text,
    ));
    if table.raised() > 0.0 {
        say(&format!(
            "{:.1} % of the packets are made {} bytes long: shorter ones have no room for headers and number",
            100.0 * table.raised(),
            workload.shortest(),
        ));
    }
    if let Some(damage) = table.damage() {
        say(&format!("sizes are of the file up to the damage: {damage}"));
    }
}

fn started_replaying(job: &Job, recording: &Recording, by: &str) {
    let round = &recording.contents.round;
    say(&format!(
        "replaying {} by {by}: {} of {:.0} bytes in the mean, at a speed of {}",
        recording.path.display(),
        counted(round.packets, "packet"),
        recording.contents.mean_bytes(),
        job.rate_text,
    ));
    if let Some(damage) = &recording.contents.damage {
        say(&format!("the file is sent up to the damage: {damage}"));
    }
}

fn flows(n: u32) -> String {
    counted(n.into(), "flow")
}

fn spread<'a>(times: impl Iterator<Item = &'a Histogram<u64>>) -> Option<Spread> {
    let sum = times.cloned().reduce(|mut sum, more| {
        sum += more;
        sum
    })?;
    let (p50, p99) = (sum.value_at_quantile(0.5), sum.value_at_quantile(0.99));
    (!sum.is_empty()).then(|| Spread {
        p50: p50.min(sum.max()),
        p99: p99.min(sum.max()),
        max: sum.max(),
    })
}

/// Returns the record of a run.
fn sum_up(job: &Job, done: &[Done], interrupted: bool) -> Sent {
    let total = |f: fn(&Done) -> u64| done.iter().map(f).sum::<u64>();
    let (made, sent, bytes) = (total(|d| d.made), total(|d| d.sent), total(|d| d.bytes));
    let began = done.iter().filter(|d| d.made > 0);
    let first = began.clone().min_by_key(|d| d.first_ns);
    let last = began.max_by_key(|d| d.last_ns);
    let between_s = match (first, last) {
        (Some(first), Some(last)) => (last.last_ns - first.first_ns) as f64 / 1e9,
        _ => 0.0,
    };
    // The last packet has a slot in time, too.
    let elapsed_s = if made > 1 { between_s * made as f64 / (made - 1) as f64 } else { 0.0 };
    let per_s = |n: f64| if elapsed_s > 0.0 { n / elapsed_s } else { 0.0 };
    let utc = |d: Option<&Done>, ns: fn(&Done) -> u64| {
        d.map_or(0, |d| ns(d).saturating_add_signed(d.utc_offset_ns))
    };
    let late_last_ns = done.iter().map(|d| d.late_last_ns).max().unwrap_or(0);
    let paced = job.asked_pps.is_some();
    // Late is what is more than a hundredth of the run behind, or more than any thread may have to
    // wait.
    let late_s = (0.01 * between_s).max(0.001);
    let workload = match &job.load {
        Load::Generated(generation) => Some(&generation.workload),
        Load::Recorded(_) => None,
    };
    let share = sent as f64 / made.max(1) as f64;
    Sent {
        sent,
        bytes,
        elapsed_s,
        seed: workload.map_or(0, |w| w.seed),
        sizes: sizes(done),
        refused: made - sent.min(made),
        started_ns: utc(first, |d| d.first_ns),
        ended_ns: utc(last, |d| d.last_ns),
        interfaces: job.interfaces.iter().map(|i| i.name.clone()).collect(),
        backend: job.backend.name().into(),
        rate: MeasuredRate {
            asked: job.rate_text.clone(),
            asked_pps: job.asked_pps,
            pps: per_s(sent as f64),
            bits_per_s: per_s(8.0 * bytes as f64 * share),
            wire_bits_per_s: per_s(8.0 * (bytes + made * WIRE_BYTES) as f64 * share),
            saturated: paced && (late_last_ns as f64 / 1e9 > late_s || share < 0.99),
            late_max_ns: done.iter().map(|d| d.late_max_ns).max().unwrap_or(0),
        },
        gap_ns: spread(done.iter().map(|d| &d.gaps)),
        jitter_ns: spread(done.iter().map(|d| &d.jitters)).filter(|_| paced),
        interrupted,
        streams: workload.map(|w| streams(w, done)).unwrap_or_default(),
        workload: workload.cloned(),
    }
}

/// Returns the packets made of each length of frame.
fn sizes(done: &[Done]) -> BTreeMap<u16, u64> {
    let mut sizes = BTreeMap::new();
    for d in done {
        for (len, n) in d.sizes.iter().enumerate().filter(|(_, n)| **n > 0) {
            *sizes.entry(len as u16).or_default() += n;
        }
    }
    sizes
}

/// Returns the packets of each stream, in the order of the streams' numbers, the mark's last.
fn streams(workload: &Workload, done: &[Done]) -> Vec<u64> {
    let flows = workload.flows as usize;
    let mut streams = vec![0; flows];
    for (sender, d) in done.iter().enumerate() {
        for (stream, n) in streams[sender..].iter_mut().step_by(done.len()).zip(&d.sequences) {
            *stream = *n;
        }
    }
    if workload.mark.is_some() {
        streams.extend(done.first().and_then(|d| d.sequences.last()));
    }
    streams
}
