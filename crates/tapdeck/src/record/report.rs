//! What the user learns of a recording: messages, the live line, the JSON, the summary.
//!
//! A [`Report`] gathers counters from where they are (`RecordSource`, the writer's `Totals`, this
//! process) and tells them. Which counters there are is in `tapdeck_packet::account`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tapdeck_capture::{Capture, Event, Step, Unseen};
use tapdeck_packet::account::{
    Counters, InterfaceCounters, RecorderCounters, StoreCounters, UsedRingCounters,
};
use tapdeck_packet::watch::waiting;
use tapdeck_store::{Log, MinFree, Retention, Totals};

use super::lasting::Lasting;
use super::resolve::{Origin, RecordPlan, Target};
use super::source::{InterfaceAccount, InterfaceNotice, RecordSource};
use super::stall::{StallWatch, SyncWatch};
use crate::control::Answer;
use crate::fault_log::FaultLog;
use crate::messages::Level;
use crate::progress_line::LiveLine;
use crate::statistics::{StatsJson, StatsOutput, accounting_line, statistics_dropped};
use crate::units::{counted, show_bytes, show_count, show_rate};
use crate::unseen::describe;

/// How far behind an index must be to be worth telling, bytes. Less is merely in flight.
const WORTH_TELLING: u64 = 64 << 20;

/// One object of `--stats-json`, and the answer to `stats`.
#[derive(Serialize)]
struct Statistics<'a> {
    #[serde(flatten)]
    sum: InterfaceCounters,
    interfaces: BTreeMap<&'a str, InterfaceStatistics<'a>>,
    hook: String,
    paused: bool,
    #[serde(flatten)]
    recorder: RecorderCounters,
    #[serde(flatten)]
    rings: Option<UsedRingCounters>,
    #[serde(flatten)]
    store: Option<StoreCounters>,
    /// How long packets are to be kept, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_time_s: Option<u64>,
    version: &'static str,
    #[serde(rename = "final")]
    is_final: bool,
}

/// What is counted of a recorder as a whole.
#[derive(Clone, Copy, Default)]
struct Whole {
    counters: RecorderCounters,
    rings: Option<UsedRingCounters>,
    store: Option<StoreCounters>,
    keep_time_s: Option<u64>,
}

#[derive(Serialize)]
struct InterfaceStatistics<'a> {
    #[serde(flatten)]
    counters: InterfaceCounters,
    hook: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attached: Option<bool>,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    snaplen: Option<u32>,
    filter: Option<&'a str>,
    rules: u32,
}

impl<'a> Statistics<'a> {
    fn new(accounts: &'a [InterfaceAccount], whole: Whole, is_final: bool) -> Self {
        let interface = |account: &'a InterfaceAccount| InterfaceStatistics {
            counters: account.counters,
            hook: account.hook,
            attached: account.attached,
            paused: account.settings.paused,
            snaplen: account.settings.snaplen,
            filter: account.settings.filter.as_deref(),
            rules: account.settings.rules,
        };
        let mut hooks: Vec<_> = accounts.iter().map(|account| account.hook).collect();
        hooks.dedup();
        Self {
            sum: total(accounts),
            interfaces: accounts.iter().map(|a| (a.name.as_str(), interface(a))).collect(),
            hook: hooks.join(","),
            paused: accounts.iter().any(|account| account.settings.paused),
            recorder: whole.counters,
            rings: whole.rings,
            store: whole.store,
            keep_time_s: whole.keep_time_s,
            version: env!("CARGO_PKG_VERSION"),
            is_final,
        }
    }
}

/// Tells the user about a recording.
pub struct Report {
    plan: RecordPlan,
    totals: Arc<Totals>,
    line: Arc<Mutex<LiveLine>>,
    stats_json: StatsJson,
    began: Instant,
    ring_used_max: u64,
    clock_steps: u64,
    takeovers: u64,
    /// The name of a lasting recording.
    lasting: Option<String>,
    /// Packets that owners before could not write.
    unwritten_before: u64,
    last: (InterfaceCounters, u64),
    stall: StallWatch,
    sync: Option<SyncWatch>,
    has_looked_for_room: bool,
    faults: FaultLog,
    /// What could not be flushed since the last look at all interfaces.
    flush_faults: BTreeSet<String>,
}

impl Report {
    pub fn new(plan: &RecordPlan, totals: Arc<Totals>, statistics: StatsOutput) -> Result<Self> {
        let line = LiveLine::new().context("cannot start a thread")?;
        let line = Arc::new(Mutex::new(line));
        let tell = statistics_dropped(log_of(&line));
        Ok(Self {
            plan: plan.clone(),
            totals,
            stats_json: StatsJson::start(statistics, tell)?,
            line,
            began: Instant::now(),
            ring_used_max: 0,
            clock_steps: 0,
            takeovers: 0,
            lasting: None,
            unwritten_before: 0,
            last: (InterfaceCounters::default(), 0),
            stall: StallWatch::default(),
            sync: plan.sync_interval.map(SyncWatch::new),
            has_looked_for_room: false,
            faults: FaultLog::default(),
            flush_faults: BTreeSet::new(),
        })
    }

    /// Returns a way for other threads to tell the user something.
    pub fn log(&self) -> Log {
        log_of(&self.line)
    }

    /// Waits until the user was told everything, but not for long.
    pub fn end(&self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).finish();
    }

    pub fn warn(&self, text: &str) {
        self.tell_as(Level::Warning, text);
    }

    /// Tells something that is as it should be.
    pub fn inform(&self, text: &str) {
        self.tell_as(Level::Info, text);
    }

    fn tell_as(&self, level: Level, text: &str) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).say(level, text);
    }

    pub fn started(&mut self, source: &RecordSource) {
        self.began = Instant::now();
        self.last.0 = total(&source.account(&self.totals));
        if let Origin::Group { name, .. } = &self.plan.origin {
            self.inform(&format!(
                "recording group {name} as a member of it, {} of memory",
                show_bytes(source.memory_bytes())
            ));
        }
        for (capture, reason) in source.captures().iter().zip(self.plan.origin.reasons()) {
            let reason = reason.map(|r| format!(" (auto: {r})")).unwrap_or_default();
            if capture.is_gone() {
                self.interface_event(&capture.interface().name, Event::Gone);
            } else {
                self.records(capture, &reason);
            }
        }
    }

    /// Tells that an interface is recorded from now on, for a `reason`, and how.
    pub fn records(&self, capture: &Capture, reason: &str) {
        let g = capture.rings()[0].geometry();
        self.inform(&format!(
            "recording {} at hook {}{reason}, {} ring{} of {}, {} of memory",
            capture.interface().name,
            capture.config().hook,
            g.nrings,
            if g.nrings == 1 { "" } else { "s" },
            show_bytes(u64::from(g.ring_bytes())),
            show_bytes(capture.memory_bytes()),
        ));
        for warning in capture.warnings() {
            self.warn(&warning);
        }
    }

    /// Tells of a lasting recording that it was taken over, if it was.
    pub fn goes_on(&mut self, lasting: &Lasting, source: &RecordSource) {
        self.takeovers = lasting.persist().takeovers();
        self.unwritten_before = total(&source.account(&self.totals)).dropped_unwritten;
        self.lasting = Some(lasting.name().to_owned());
        if self.takeovers > 0 {
            self.inform(&format!(
                "goes on where the recorder before has left {} (takeover {})",
                lasting.name(),
                show_count(self.takeovers)
            ));
        }
    }

    /// Looks how full the rings are, for the most that they ever were.
    pub fn sample(&mut self, source: &RecordSource) {
        for ring in source.captures().iter().flat_map(Capture::rings) {
            let full = u64::from(ring.geometry().ring_bytes());
            let used = if ring.losses().ring > 0 { full } else { ring.fill_bytes().min(full) };
            self.ring_used_max = self.ring_used_max.max(used);
        }
    }

    /// Tells that the end takes long because of the index.
    pub fn waits_for_index(&self) {
        let behind = show_bytes(self.totals.index_behind_bytes.load(Relaxed));
        self.inform(&format!(
            "everything is recorded; the index is {behind} behind (Ctrl-C: leave it so, queries take longer then)"
        ));
    }

    /// Tells when the output stalls and when it goes on, and when it is slow to become durable.
    pub fn watch_output(&mut self, source: &RecordSource) {
        let errno = self.totals.stalled_errno.load(Relaxed);
        let totals = &self.totals;
        let lost = || source.account(totals).iter().map(|t| t.counters.dropped()).sum::<u64>();
        if let Some(text) = self.stall.look(Instant::now(), errno, lost) {
            self.warn(&text);
        }
        let under_way = self.totals.sync_under_way.load(Relaxed);
        if let Some(text) = self.sync.as_mut().and_then(|s| s.look(Instant::now(), under_way)) {
            self.warn(&text);
        }
    }

    pub fn clock_stepped(&mut self, step: Step) {
        self.clock_steps += 1;
        self.warn(&format!(
            "the clock was stepped by {:+.3} s; a new segment begins",
            step.by_ns as f64 / 1e9
        ));
    }

    pub fn interface_event(&self, name: &str, event: Event) {
        let what = match event {
            Event::Gone => "is gone; waiting for it to come back",
            Event::Back => "is back; recording goes on",
            Event::LinkDown => "has no link",
            Event::LinkUp => "has a link again",
        };
        let level = match event {
            Event::Gone | Event::LinkDown => Level::Warning,
            Event::Back | Event::LinkUp => Level::Info,
        };
        self.tell_as(level, &format!("{name} {what}"));
    }

    /// Takes in that packets of an interface that have waited stay in its rings. It is told with
    /// the next look at all interfaces.
    pub fn cannot_flush(&mut self, name: &str, e: &io::Error) {
        self.flush_faults.insert(format!("{name}: cannot flush: {e}"));
    }

    /// Tells what a look at all interfaces has found. Called once a second.
    pub fn interfaces(&mut self, notices: Vec<InterfaceNotice>) {
        let mut faults: Vec<String> = std::mem::take(&mut self.flush_faults).into_iter().collect();
        for InterfaceNotice { name, event } in notices {
            match event {
                Ok(event) => self.interface_event(&name, event),
                Err(e) => faults.push(format!("{name}: {e}")),
            }
        }
        for fault in self.faults.look(Instant::now(), faults) {
            self.warn(&fault);
        }
    }

    /// Tells that packets went unseen.
    pub fn went_unseen(&self, name: &str, unseen: &Unseen) {
        self.warn(&format!("{name}: {}", describe(unseen)));
    }

    /// Returns where packets are recorded to.
    pub fn target(&self) -> &Target {
        &self.plan.target
    }

    /// Returns what has been counted up to now, as an answer to whoever asks.
    pub fn stats(&self, source: &RecordSource) -> Answer {
        let accounts = source.account(&self.totals);
        Answer::ok(Statistics::new(&accounts, self.whole(source), false))
    }

    fn whole(&self, source: &RecordSource) -> Whole {
        let rings = || source.captures().iter().flat_map(Capture::rings);
        let size = rings().map(|ring| u64::from(ring.geometry().ring_bytes())).max();
        let used = rings().map(|ring| ring.fill_bytes()).max().unwrap_or(0);
        let rings = size.map(|size| UsedRingCounters {
            ring_used_bytes: used.min(size),
            ring_size_bytes: size,
        });
        let (store, keep_time) = match &self.plan.target {
            Target::Store { retention, .. } => (
                Some(StoreCounters {
                    store_bytes: self.totals.bytes_stored.load(Relaxed),
                    store_oldest_us: self.totals.oldest_ns() / 1000,
                }),
                retention.age,
            ),
            _ => (None, None),
        };
        let keep_time_s = keep_time.map(|time| time.as_secs());
        Whole { counters: self.counters(source), rings, store, keep_time_s }
    }

    fn counters(&self, source: &RecordSource) -> RecorderCounters {
        let usage = used();
        let t = &self.totals;
        let elapsed = self.began.elapsed();
        RecorderCounters {
            bytes_written: t.bytes_written.load(Relaxed),
            segments: t.segments.load(Relaxed),
            segments_deleted: t.segments_deleted.load(Relaxed),
            packets_deleted: t.packets_deleted.load(Relaxed),
            write_errors: t.write_errors.load(Relaxed),
            index_bytes: t.index_bytes.load(Relaxed),
            index_behind_bytes: t.index_behind_bytes.load(Relaxed),
            index_read_bytes: t.index_read_bytes.load(Relaxed),
            takeovers: self.takeovers,
            clock_steps: self.clock_steps,
            rotation_us_max: t.rotation_ns_max.load(Relaxed) / 1000,
            unsynced_us_max: t.unsynced_ns_max.load(Relaxed) / 1000,
            ring_bytes: source.memory_bytes(),
            ring_used_max: self.ring_used_max,
            elapsed_s: elapsed.as_secs(),
            elapsed_us: elapsed.as_micros() as u64,
            cpu_user_s: usage.user_us / 1_000_000,
            cpu_user_us: usage.user_us,
            cpu_system_s: usage.system_us / 1_000_000,
            cpu_system_us: usage.system_us,
            context_switches: usage.switches,
            max_rss_bytes: usage.max_rss_bytes,
            write_us: t.write_time().unwrap_or_default().as_micros() as u64,
        }
    }

    fn write_json(&mut self, source: &RecordSource, accounts: &[InterfaceAccount], is_final: bool) {
        let statistics = Statistics::new(accounts, self.whole(source), is_final);
        if let Err(e) = self.stats_json.write(&statistics, is_final) {
            self.warn(&e);
        }
    }

    /// Writes statistics and the live line, which is returned. Called once a second.
    pub fn second(&mut self, source: &RecordSource) -> String {
        let accounts = source.account(&self.totals);
        let sum = total(&accounts);
        let written = self.totals.bytes_written.load(Relaxed);
        self.write_json(source, &accounts, false);
        let (before, written_before) = self.last;
        // A segment that could not be made durable counts no more as captured.
        let taken = |c: &InterfaceCounters| c.captured + c.dropped();
        let packets = taken(&sum).saturating_sub(taken(&before));
        let bits = sum.bytes_captured.saturating_sub(before.bytes_captured) * 8;
        let disk = written - written_before;
        self.last = (sum, written);
        let rings = source.captures().iter().flat_map(Capture::rings);
        let fill = rings.map(|r| r.fill_bytes() * 100 / u64::from(r.geometry().ring_bytes())).max();
        let ring = fill.map(|percent| format!(", ring {percent} %")).unwrap_or_default();
        let shed = match sum.shed_packets {
            0 => String::new(),
            n => format!(", {} cut short", show_count(n)),
        };
        let paused =
            if accounts.iter().any(|account| account.settings.paused) { ", PAUSED" } else { "" };
        let behind = match self.totals.index_behind_bytes.load(Relaxed) {
            bytes if bytes < WORTH_TELLING => String::new(),
            bytes => format!(", index {} behind", show_bytes(bytes)),
        };
        let stalled = self.cannot_write().map(|e| format!(", CANNOT WRITE: {e}"));
        let stalled = stalled.unwrap_or_default();
        let text = format!(
            "{}pkt/s {}bit/s, {} captured, {} dropped{shed}{ring}, disk {}/s{}{behind}{stalled}{paused}",
            show_rate(packets as f64),
            show_rate(bits as f64),
            show_count(sum.captured),
            show_count(sum.dropped()),
            show_bytes(disk),
            self.time_left(disk),
        );
        self.line.lock().unwrap_or_else(PoisonError::into_inner).show(&text);
        text
    }

    /// Takes note of how much is kept from now on. Returns the flags that this changes.
    pub fn set_retention(&mut self, now: Retention) -> Vec<&'static str> {
        let Target::Store { retention, .. } = &mut self.plan.target else { return Vec::new() };
        let before = std::mem::replace(retention, now);
        let differs = [
            ("keep-bytes", before.bytes != now.bytes),
            ("keep-time", before.age != now.age),
            ("keep-segments", before.segments != now.segments),
            ("min-free", before.min_free != now.min_free),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Returns why nothing can be written at present.
    pub fn cannot_write(&self) -> Option<io::Error> {
        match self.totals.stalled_errno.load(Relaxed) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    /// Returns whether what is taken can be kept: in a store, there is or was room for a segment.
    pub fn can_keep(&self) -> bool {
        !matches!(self.plan.target, Target::Store { .. })
            || self.totals.has_found_room.load(Relaxed)
    }

    /// Tells once, a second after the beginning, that there was no room to begin with.
    pub fn look_for_room(&mut self) {
        if std::mem::replace(&mut self.has_looked_for_room, true) || self.can_keep() {
            return;
        }
        if let Target::Store { dir, .. } = &self.plan.target {
            self.warn(&format!(
                "no room for a segment was found in {} so far; packets wait in rings, and what finds these full is dropped and counted",
                dir.display()
            ));
        }
    }

    /// Returns how long until the disk, or what retention allows of it, is full at this rate.
    fn time_left(&self, bytes_per_second: u64) -> String {
        let Target::Store { dir, retention, .. } = &self.plan.target else { return String::new() };
        let Ok(s) = waiting(|| rustix::fs::statvfs(dir)) else { return String::new() };
        let free = s.f_bavail * s.f_frsize;
        let kept_free = match retention.min_free {
            Some(MinFree::Bytes(b)) => b,
            Some(MinFree::Share(share)) => (s.f_blocks as f64 * s.f_frsize as f64 * share) as u64,
            None => 0,
        };
        let mut left = free.saturating_sub(kept_free);
        if let Some(keep) = retention.bytes {
            left = left.min(keep.saturating_sub(self.totals.bytes_stored.load(Relaxed)));
        }
        let what = if retention.deletes() { "deletion" } else { "disk full" };
        match left.checked_div(bytes_per_second) {
            None => format!(", {} left", show_bytes(left)),
            Some(seconds) => {
                let time = humantime::format_duration(Duration::from_secs(seconds)).to_string();
                let coarse: Vec<&str> = time.split(' ').take(2).collect();
                format!(", {} until {what}, {}", coarse.join(" "), show_bytes(left))
            }
        }
    }

    /// Tells what was recorded up to now, in the lines of the summary.
    pub fn tell(&self, source: &RecordSource) {
        self.summary(source, &source.account(&self.totals));
    }

    /// Writes the last statistics and the summary. Returns how many packets could not be written.
    pub fn finished(&mut self, source: &RecordSource) -> u64 {
        self.sample(source);
        let accounts = source.account(&self.totals);
        self.write_json(source, &accounts, true);
        self.summary(source, &accounts);
        if let Some(name) = &self.lasting {
            self.inform(&format!(
                "the hooks stay and the rings go on filling: start again, or tapdeck ctl persist drop {name}"
            ));
        }
        total(&accounts).dropped_unwritten.saturating_sub(self.unwritten_before)
    }

    /// Tells the account of each interface and of all, and where the packets are.
    fn summary(&self, source: &RecordSource, accounts: &[InterfaceAccount]) {
        let devices = matches!(source, RecordSource::Interfaces(..));
        for InterfaceAccount { name, counters, outbound, .. } in accounts {
            self.inform(&format!("{name}: {}", accounting(counters, devices, *outbound)));
        }
        if accounts.len() > 1 {
            let outbound = accounts.iter().any(|account| account.outbound);
            self.inform(&format!("all: {}", accounting(&total(accounts), devices, outbound)));
        }
        let t = &self.totals;
        let deleted = t.segments_deleted.load(Relaxed);
        let place = match &self.plan.target {
            Target::Store { dir, .. } => format!(
                "{} in {} in {}{}",
                show_bytes(t.bytes_written.load(Relaxed)),
                counted(t.segments.load(Relaxed), "segment"),
                dir.display(),
                if deleted == 0 {
                    String::new()
                } else {
                    format!(
                        "; retention deleted {} with {}",
                        show_count(deleted),
                        counted(t.packets_deleted.load(Relaxed), "packet")
                    )
                },
            ),
            Target::File(path) => {
                format!("{} in {}", show_bytes(t.bytes_written.load(Relaxed)), path.display())
            }
            Target::Stdout => {
                format!("{} to standard output", show_bytes(t.bytes_written.load(Relaxed)))
            }
            Target::Nothing => "nothing was stored".into(),
        };
        self.inform(&place);
    }
}

fn log_of(line: &Arc<Mutex<LiveLine>>) -> Log {
    let line = line.clone();
    Arc::new(move |text| {
        line.lock().unwrap_or_else(PoisonError::into_inner).say(Level::Warning, text);
    })
}

fn total(accounts: &[InterfaceAccount]) -> InterfaceCounters {
    let mut sum = InterfaceCounters::default();
    for account in accounts {
        sum.add(&account.counters);
    }
    sum
}

/// Returns the accounting line, with what devices count. What a device sent is a part of it where
/// the hook sees that.
fn accounting(c: &InterfaceCounters, devices: bool, outbound: bool) -> String {
    let shed = match c.shed_packets {
        0 => String::new(),
        n => format!("; {} cut short, {} shed", show_count(n), show_bytes(c.shed_bytes)),
    };
    let text = accounting_line(c) + &shed;
    // A member's account has no devices: the daemon's has.
    if !devices {
        return text;
    }
    let sent = if outbound { format!(", sent {}", show_count(c.nic_sent)) } else { String::new() };
    let (received, dropped) = (show_count(c.nic_received), show_count(c.nic_dropped));
    let unseen = match c.unseen {
        0 => String::new(),
        n => format!(", {} went unseen", show_count(n)),
    };
    text + &format!("; device received {received}{sent}, dropped {dropped}{unseen}")
}

#[derive(Default)]
struct Used {
    user_us: u64,
    system_us: u64,
    switches: u64,
    max_rss_bytes: u64,
}

/// Returns what this process has used: getrusage(2).
fn used() -> Used {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(u) = getrusage(UsageWho::RUSAGE_SELF) else { return Used::default() };
    Used {
        user_us: u.user_time().num_microseconds() as u64,
        system_us: u.system_time().num_microseconds() as u64,
        switches: (u.voluntary_context_switches() + u.involuntary_context_switches()) as u64,
        max_rss_bytes: u.max_rss() as u64 * 1024,
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_packet::account::InterfaceCounters;

    use super::super::source::{InterfaceAccount, Settings};
    use super::{Statistics, Whole};
    use crate::control::{Answer, documented};

    #[test]
    fn the_document_shows_what_a_recorder_answers() {
        let counters = InterfaceCounters { seen: 1204, captured: 1204, ..Default::default() };
        let account = InterfaceAccount {
            name: "eth0".into(),
            hook: "xdp",
            outbound: false,
            attached: Some(true),
            counters,
            settings: Settings { paused: false, snaplen: Some(65_535), filter: None, rules: 0 },
        };
        let accounts = [account];
        let statistics = Statistics::new(&accounts, Whole::default(), true);
        let answer = Answer::ok(&statistics);
        let shown = documented("{\"ok\":true,\"seen\"");
        let begin = shown.strip_suffix("...}").expect("the rest is left out");
        assert!(answer.text().starts_with(begin), "{}", answer.text());
        assert!(answer.text().ends_with(",\"final\":true}"), "{}", answer.text());
    }
}
