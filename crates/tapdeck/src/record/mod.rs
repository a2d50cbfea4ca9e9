//! `tapdeck record`: from the flags to a running recording and its report.
//!
//! Who does what while packets come? Programs in the kernel write them into rings, and the writer's
//! thread (`tapdeck_store`) puts the rings' blocks into the output. The main thread, which is here,
//! does the rest in a loop: it closes blocks that wait, looks at the clock, the interfaces and the
//! output, serves the control socket, and reports. No packet waits for it.
//!
//! The loop turns when something has happened ([`Alarm`]) or is due. While the rings are empty that
//! is once a second: the writer, which looks at them anyway, tells of the first packet.

mod coming;
mod commands;
mod lasting;
mod membership;
mod newcomers;
mod output;
mod past;
mod recovery;
mod reload;
mod report;
mod resolve;
mod source;
mod stall;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::persist::MOST_RINGS;
use tapdeck_capture::{Capture, Clock, Helper, Later};
use tapdeck_packet::watch;
use tapdeck_store::io::go_first_with_threads;
use tapdeck_store::{Ending, Totals, UnseenSpan, WriterControl};

use crate::alarm::{Alarm, Bell};
use crate::config::file::Words;
use crate::control::Answer;
use crate::rights::Rights;
use crate::service_manager::ServiceManager;
use crate::statistics::StatsJson;
use crate::units::counted;
use crate::{flags, hangs};
use coming::Coming;
use commands::{Books, ControlSocket, Recorder, books};
use lasting::Lasting;
use newcomers::{MOST_LATER, MOST_LATER_RINGS};
use output::{Output, Started, WriterSetup, WriterThread};
use reload::Reload;
use report::Report;
use resolve::SocketPlace;
pub use resolve::{Origin, RecordPlan, Target};
use source::RecordSource;

/// How often the recorder looks after its hooks and its output while rings are in use. While they
/// hold next to nothing it does so when blocks are looked at anyway.
const TICK: Duration = Duration::from_millis(100);
/// How often it looks while rings fill up, and where it is not told: after a daemon, and what
/// clients wait for.
const SHORT_TICK: Duration = Duration::from_millis(20);
/// How long the writer sleeps at most. Where packets come as fast as the link can, three quarters
/// of an empty ring must outlast that; where they do not, the writer sleeps for less.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// What the writer's sleep is not shortened below.
const SHORT_SLEEP: Duration = Duration::from_millis(8);
/// Bits a second of a virtual link: what those tell means nothing.
const ASSUMED_RATE: u64 = 10_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
/// How long an output that hangs is waited for after a second wish for the end.
const HURRY: Duration = Duration::from_secs(2);

/// When something is due.
struct Schedule {
    end: Option<Instant>,
    /// The time between two looks at part-filled blocks. A block is closed at the second look at
    /// it, and a look may be late: so that no packet waits for longer than `--flush` says,
    /// looks are a third of that time apart.
    flush_every: Duration,
    next_flush: Instant,
    next_second: Instant,
}

impl Schedule {
    fn new(plan: &RecordPlan) -> Self {
        let now = Instant::now();
        Self {
            end: plan.duration.and_then(|d| now.checked_add(d)),
            flush_every: plan.flush / 3,
            next_flush: now,
            next_second: now + SECOND,
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// When something is due, where no packet waits.
    fn next(&self) -> Instant {
        self.end.map_or(self.next_second, |end| end.min(self.next_second))
    }

    /// When something is due, where packets come.
    fn next_with_packets(&self) -> Instant {
        self.next().min(self.next_flush)
    }

    fn is_time_to_flush(&mut self) -> bool {
        due(&mut self.next_flush, self.flush_every)
    }

    /// Has the first look at part-filled blocks come as soon as there is a packet.
    fn flush_when_packets_come(&mut self) {
        self.next_flush = Instant::now();
    }

    fn is_a_second_over(&mut self) -> bool {
        due(&mut self.next_second, SECOND)
    }
}

/// Whether the time has come. If so, sets the next time, `every` later; of times that were missed
/// none is made up for.
fn due(next: &mut Instant, every: Duration) -> bool {
    let now = Instant::now();
    let due = now >= *next;
    if due {
        *next += every;
        if *next <= now {
            *next = now + every;
        }
    }
    due
}

/// Signals as they arrive. SIGUSR1 asks for statistics, and SIGHUP, where there is a configuration,
/// for that to be read again. Of those that ask for the end, the first
/// asks for an orderly one and the second for a quick one.
#[derive(Clone)]
struct Signals {
    ends: Arc<AtomicUsize>,
    statistics: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Has signals wait from now on until [`Signals::listen`] hears them.
    fn catch() -> Result<signal_hook::iterator::Signals> {
        let mut wanted = vec![SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2];
        // As after nohup(1), a hang-up that was ignored stays ignored.
        if !hangup_is_ignored() {
            wanted.push(SIGHUP);
        }
        signal_hook::iterator::Signals::new(wanted).context("cannot listen for signals")
    }

    /// Hears signals in a thread of its own, which rings the bell for each.
    fn listen(
        mut signals: signal_hook::iterator::Signals,
        has_config: bool,
        bell: Bell,
    ) -> Result<Self> {
        let heard =
            Self { ends: Arc::default(), statistics: Arc::default(), reload: Arc::default() };
        std::thread::Builder::new()
            .name("tapdeck-signal".into())
            .spawn({
                let Self { ends, statistics, reload } = heard.clone();
                move || {
                    watch::watch("tapdeck-signal");
                    let mut coming = signals.forever();
                    while let Some(signal) = watch::waiting(|| coming.next()) {
                        match signal {
                            SIGUSR1 => statistics.store(true, Relaxed),
                            SIGHUP if has_config => reload.store(true, Relaxed),
                            _ => drop(ends.fetch_add(1, Relaxed)),
                        }
                        bell.ring();
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(heard)
    }

    /// How many signals have asked for the end.
    fn ends(&self) -> usize {
        self.ends.load(Relaxed)
    }

    /// Whether the configuration is to be read again, since the last call.
    fn ask_for_reload(&self) -> bool {
        self.reload.swap(false, Relaxed)
    }

    /// Whether statistics were asked for since the last call.
    fn ask_for_statistics(&self) -> bool {
        self.statistics.swap(false, Relaxed)
    }
}

fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (SIGHUP - 1) != 0
}

/// What a recording writes to and where it is controlled.
struct Opened<O> {
    output: O,
    control_socket: Option<ControlSocket>,
}

impl Opened<Option<Output>> {
    /// Opens what can only be opened with the rights that the recorder began with: what may be in
    /// anybody's directory.
    fn with_rights(plan: &RecordPlan) -> Result<Self> {
        let is_store = matches!(plan.target, Target::Store { .. });
        let output = if is_store { None } else { Some(Output::open(plan, None)?) };
        let control_socket = match plan.socket {
            SocketPlace::At(_) => ControlSocket::open(plan, |_| {})?,
            SocketPlace::InStore(_) | SocketPlace::Nowhere => None,
        };
        Ok(Self { output, control_socket })
    }

    /// Opens a store, and the socket in it, as who the recorder goes on as.
    fn and_the_rest(
        self,
        plan: &RecordPlan,
        report: &Report,
        rights: &Rights,
        lasting: Option<&Lasting>,
    ) -> Result<Opened<Output>> {
        let output = match (self.output, &plan.target) {
            (Some(output), _) => output,
            (None, Target::Store { dir, .. }) => {
                Output::open(plan, lasting).map_err(|e| rights.explain(e, dir))?
            }
            (None, _) => Output::open(plan, lasting)?,
        };
        let control_socket = match plan.socket {
            SocketPlace::InStore(_) => ControlSocket::open(plan, |text| report.warn(text))?,
            SocketPlace::At(_) | SocketPlace::Nowhere => self.control_socket,
        };
        Ok(Opened { output, control_socket })
    }
}

/// Records until something ends it.
pub fn run(flags: flags::Record, words: &Words) -> Result<()> {
    let plan = RecordPlan::new(flags)?;
    let caught = Signals::catch()?;
    let clock = Arc::new(Clock::default().abandoned_after(plan.abandon));
    let rights = Rights::find(plan.user.as_deref(), matches!(plan.origin, Origin::Group { .. }))?;
    let mut lasting = Lasting::open(&plan)?;
    let mut source = RecordSource::open(&plan, &clock, lasting.as_ref())?;
    if let Some(lasting) = &mut lasting {
        lasting.prepare(source.captures())?;
    }
    let interfaces = source.descriptions();
    let sleep = longest_sleep(&plan, &source);
    // From the division on, and as long as there is one thread, the order of steps matters.
    let (helper, room) = divide(&mut source, &plan, lasting.as_ref())?;
    let statistics = StatsJson::begin(plan.stats_json.as_deref())?;
    let opened = Opened::with_rights(&plan)?;
    let _ = go_first_with_threads();
    let mut notes = Vec::new();
    let manager = ServiceManager::connect(&mut notes);
    notes.extend(rights.give_up(&plan.place(), &plan.read_again)?);
    let thread = WriterThread::start()?;
    hangs::watch_threads()?;
    let alarm = Alarm::new().context("cannot wait for events")?;
    if let Some(helper) = &helper {
        alarm.watch(helper).context("cannot watch the process that has the hooks")?;
    }
    let signals = Signals::listen(caught, words.file.is_some(), alarm.bell())?;
    let totals = Arc::new(Totals::new(interfaces.len() + room));
    if let Some(lasting) = &lasting {
        lasting.go_on(&totals);
    }
    let mut report = Report::new(&plan, totals.clone(), statistics)?;
    let Opened { output, control_socket } =
        opened.and_the_rest(&plan, &report, &rights, lasting.as_ref())?;

    // Packets wait in the rings until the output is begun, so that no file is touched for a hook
    // that cannot be had.
    //
    // Loading programs may have taken longer than they go on without a recorder.
    clock.beat();
    source.start()?;
    clock.beat();
    if let (Some(lasting), Target::Store { dir, .. }) = (&mut lasting, &plan.target) {
        lasting.begin(source.captures(), dir)?;
        report.goes_on(lasting, &source);
        // The rings are at their fullest before the writer begins.
        report.sample(&source);
    }
    let writer_control = Arc::new(WriterControl::new().context("cannot wait for packets")?);
    let bell = alarm.bell();
    writer_control.tell_by(Box::new(move || bell.ring()));
    let job = WriterSetup {
        thread,
        rings: source.take_rings(),
        sleep,
        interfaces,
        totals: totals.clone(),
        clock: clock.clone(),
        writer_control: writer_control.clone(),
        log: report.log(),
        ledger: lasting.as_ref().and_then(Lasting::ledger),
        told_lost: lasting.as_ref().map(Lasting::told_lost).unwrap_or_default(),
    };
    let Started { writer, recovery } = output.start(&plan, job)?;
    report.started(&source);
    for note in &notes {
        report.warn(note);
    }

    let mut recording = Recording {
        coming: Coming::new(&plan, &clock, &source, totals),
        source,
        lasting,
        clock,
        signals,
        report,
        control_socket,
        writer_control,
        schedule: Schedule::new(&plan),
        helper,
        reload: Reload::new(words, &plan, alarm.bell()),
        alarm,
        manager,
        books: books(&plan),
    };
    watch::watch("main");
    recording.look_after();
    recording.manager.stopping();
    recording.end();
    let written = recording.join(writer);
    recording.note();
    if let Some(recovery) = recovery {
        recovery.end(|| recording.signals.ends() > 1);
    }
    let unwritten = recording.report.finished(&recording.source);
    recording.report.end();
    // A reader that left the pipe wanted no more, and what it did not get is no failure.
    let wanted = written? == Ending::Asked;
    // Before the helper ends, which removes a socket that nobody listens at.
    recording.control_socket = None;
    anyhow::ensure!(
        !recording.has_lost_helper(),
        "the process that has the hooks has ended{}: start the recorder again",
        if recording.lasting.is_some() { "" } else { ", and the hooks with it" }
    );
    anyhow::ensure!(
        !wanted || unwritten == 0,
        "not written, or maybe lost: {}",
        counted(unwritten, "packet")
    );
    Ok(())
}

/// Divides the helper from this process. Returns it, and how many numbers are to be kept for the
/// rings of interfaces that come later.
fn divide(
    source: &mut RecordSource,
    plan: &RecordPlan,
    lasting: Option<&Lasting>,
) -> Result<(Option<Arc<Helper>>, usize)> {
    let later = later(plan, source.captures().len(), lasting);
    let most = match lasting {
        Some(_) => MOST_RINGS.saturating_sub(source.descriptions().len()),
        None => MOST_LATER_RINGS,
    };
    let room = later.as_ref().map_or(0, |_| MOST_LATER_RINGS.min(most));
    Ok((source.divide(lasting, later, || plan.remove_socket())?, room))
}

/// Returns what the helper may open later; `None` where that is nothing.
fn later(plan: &RecordPlan, first_captures: usize, lasting: Option<&Lasting>) -> Option<Later> {
    let pattern = plan.later.clone()?;
    let pins = lasting.map(|lasting| lasting.persist().later_pins());
    let admit = move |interface: &Interface| {
        if pattern.of(interface).is_none() {
            return Err("it fits no pattern of -i, or is down".to_owned());
        }
        pattern.how.best(interface).map_err(|e| format!("{e:#}"))
    };
    Some(Later { admit: Box::new(admit), most: first_captures + MOST_LATER, pins })
}

/// Tells the user, and the recording itself, what went unseen since the last call.
fn tell_unseen(source: &mut RecordSource, report: &Report, control: &WriterControl) {
    let unseen = source.take_unseen();
    if unseen.is_empty() {
        return;
    }
    // What came before stands before the word of it, as far as the rings have room.
    let _ = source.flush_all();
    let mut spans = Vec::new();
    for (name, interface, unseen) in &unseen {
        report.went_unseen(name, unseen);
        spans.push(UnseenSpan {
            interface: *interface,
            packets: unseen.packets,
            first_ns: unseen.first_ns,
            last_ns: unseen.last_ns,
            why: unseen.cause.to_string(),
        });
    }
    control.tell_unseen(spans);
}

/// A recording that goes on: everything that is not the writer's.
struct Recording {
    source: RecordSource,
    lasting: Option<Lasting>,
    clock: Arc<Clock>,
    signals: Signals,
    report: Report,
    control_socket: Option<ControlSocket>,
    writer_control: Arc<WriterControl>,
    schedule: Schedule,
    /// The process that has the hooks, where it is another one.
    helper: Option<Arc<Helper>>,
    alarm: Alarm,
    manager: ServiceManager,
    reload: Reload,
    coming: Coming,
    /// The rules that are in force.
    books: Books,
}

/// Returns how long the writer may sleep: a third of `--flush` at most, since it is the writer who
/// finds the first packet in an empty ring.
fn longest_sleep(plan: &RecordPlan, source: &RecordSource) -> Duration {
    // What a member's rings outlast is the daemon's affair.
    let fills = source.captures().iter().map(longest_sleep_of).min().unwrap_or(SHORT_SLEEP);
    fills.min(plan.flush / 3)
}

/// Returns how long the writer may sleep for the rings of one interface.
fn longest_sleep_of(capture: &Capture) -> Duration {
    let bytes = capture.rings().iter().map(|ring| ring.geometry().ring_bytes()).min();
    let bits = u64::from(bytes.unwrap_or(0)) * 8 * 3 / 4;
    // Bits divided by bits a microsecond.
    let fills = Duration::from_micros(bits / (link_rate(capture.interface()) / 1_000_000));
    fills.clamp(SHORT_SLEEP, LONGEST_SLEEP)
}

/// Returns how many bits a second a link may bring: what its device tells, as far as that is known
/// and the device is none of the kernel's own.
fn link_rate(interface: &Interface) -> u64 {
    let path = format!("/sys/class/net/{}/speed", interface.name);
    let told = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let told = told.filter(|mbit| *mbit > 0).and_then(|mbit| mbit.checked_mul(1_000_000));
    match interface.kind {
        Some(_) => told.unwrap_or(0).max(ASSUMED_RATE),
        // A card whose link is down may have any when it comes up; and a loopback has none.
        None => told.unwrap_or(u64::MAX),
    }
}

impl Recording {
    /// Returns whether the process that has the hooks is there no more.
    fn has_lost_helper(&self) -> bool {
        self.helper.as_ref().is_some_and(|helper| helper.is_gone())
    }

    /// Serves the control socket and looks after hooks, clock and output, until something ends the
    /// recording.
    fn look_after(&mut self) {
        while self.signals.ends() == 0
            && !self.has_lost_helper()
            && !self.writer_control.writer_has_ended()
            && !self.schedule.is_over()
        {
            watch::beat();
            let until = self.next_turn();
            self.serve(until);
            self.alarm.quiet();
            if self.control_socket.as_ref().is_some_and(ControlSocket::stops) {
                return;
            }
            self.look_for_reload();
            self.turn();
            if self.signals.ask_for_statistics() {
                self.report.tell(&self.source);
            }
        }
    }

    /// Returns when something is due. Where that is far off, the writer tells of packets.
    fn next_turn(&mut self) -> Instant {
        let socket = self.control_socket.as_ref();
        let is_group = matches!(self.source, RecordSource::Group(_));
        let sixteenths = self.source.sixteenths_filled();
        let is_busy = socket.is_some_and(ControlSocket::is_busy) || sixteenths >= 2;
        let next = self.schedule.next_with_packets();
        if is_group || is_busy || self.manager.waits() || self.reload.is_under_way() {
            return next.min(Instant::now() + SHORT_TICK);
        }
        if sixteenths > 0 {
            return next.min(Instant::now() + TICK);
        }
        if !self.source.is_empty() {
            return next;
        }
        self.writer_control.await_packets();
        self.schedule.flush_when_packets_come();
        self.schedule.next()
    }

    /// Serves the control socket, or waits, until a time or until the alarm rings.
    fn serve(&mut self, until: Instant) {
        let Self { source, report, writer_control, alarm, books, .. } = self;
        match &mut self.control_socket {
            Some(socket) => {
                let mut recorder = Recorder { source, report, writer_control };
                socket.serve(until, alarm, &mut recorder, books);
            }
            None => alarm.wait(until),
        }
    }

    /// Reads the configuration again if somebody asked for that, and puts it in force when it was
    /// read. Rules that are being changed come first.
    fn look_for_reload(&mut self) {
        let Self { reload, source, report, writer_control, books, control_socket, .. } = self;
        let clients = control_socket.as_mut().map(ControlSocket::take_reloads).unwrap_or_default();
        if self.signals.ask_for_reload() || !clients.is_empty() {
            reload.ask(clients);
        }
        if reload.begin() {
            self.manager.reloading();
        }
        if control_socket.as_ref().is_some_and(ControlSocket::changes_rules) {
            return;
        }
        let Some((clients, read)) = reload.take() else { return };
        let mut recorder = Recorder { source, report, writer_control };
        let (answer, said) = reload.put(read, &mut recorder, books);
        match &answer {
            Ok(_) => report.inform(&said),
            Err(_) => report.warn(&said),
        }
        if let Some(socket) = control_socket {
            for client in clients {
                let answer = answer.as_ref().map_or_else(|why| Answer::error(why), Answer::ok);
                socket.answer(client, answer);
            }
        }
        self.manager.reloaded();
    }

    /// Looks once after flush, clock, interfaces and report.
    fn turn(&mut self) {
        let Self { source, report, schedule, manager, .. } = self;
        if manager.waits() && report.can_keep() {
            manager.ready();
        }
        report.sample(source);
        report.watch_output(source);
        if let Some(step) = self.clock.check() {
            report.clock_stepped(step);
        }
        // A daemon may take its time to answer.
        if let Some((name, event)) = watch::waiting(|| source.look_for_daemon(&self.clock)) {
            report.interface_event(&name, event);
        }
        let is_time = schedule.is_time_to_flush();
        for (name, e) in source.flush(&self.clock, is_time) {
            report.cannot_flush(&name, &e);
        }
        if is_time && !source.is_empty() {
            self.writer_control.wake();
        }
        if schedule.is_a_second_over() {
            self.second();
        }
    }

    /// Does what is done once a second.
    fn second(&mut self) {
        self.clock.beat();
        self.report.interfaces(self.source.watch(&self.clock));
        tell_unseen(&mut self.source, &self.report, &self.writer_control);
        self.take_newcomers();
        let Self { source, report, manager, .. } = self;
        tell_unseen(source, report, &self.writer_control);
        if let Some(lasting) = &self.lasting {
            lasting.persist().note(source.captures());
        }
        report.look_for_room();
        let rates = report.second(source);
        manager.second(&rates, report.cannot_write());
        if let Some(control_socket) = &mut self.control_socket {
            control_socket.second(source, report);
        }
    }

    /// Notes how things stand, for another owner of a lasting recording.
    fn note(&self) {
        if let Some(lasting) = &self.lasting {
            lasting.persist().note(self.source.captures());
        }
    }

    /// Leaves the hooks in place and the rings to another owner, with what they hold by then.
    fn leave(&mut self) {
        for capture in self.source.captures_mut() {
            capture.refresh_nic();
        }
        self.source.leave();
        tell_unseen(&mut self.source, &self.report, &self.writer_control);
        self.writer_control.leave();
        if let Some(control_socket) = &mut self.control_socket {
            control_socket.end(self.reload.end());
        }
    }

    /// Detaches the hooks and closes the blocks that they left open, or leaves both to another
    /// owner. While the rings are full,
    /// closing waits for the writer, which gives up on an output that takes nothing.
    fn end(&mut self) {
        if self.lasting.is_some() {
            return self.leave();
        }
        self.source.stop(&self.clock);
        tell_unseen(&mut self.source, &self.report, &self.writer_control);
        self.writer_control.end_producers();
        let mut hurried_since: Option<Instant> = None;
        loop {
            watch::beat();
            let closed = self.source.close_blocks();
            if self.signals.ends() > 1 {
                self.writer_control.hurry();
                let since = hurried_since.get_or_insert_with(Instant::now);
                if since.elapsed() > HURRY {
                    break;
                }
            }
            if closed {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.writer_control.close_blocks();
        if let Some(control_socket) = &mut self.control_socket {
            control_socket.end(self.reload.end());
        }
    }

    /// Waits for the writer and the index, unless they hang and somebody is in a hurry.
    fn join(&self, writer: JoinHandle<Result<Ending>>) -> Result<Ending> {
        let Self { signals, writer_control, report, .. } = self;
        let mut hurried_since: Option<Instant> = None;
        let mut written_since: Option<Instant> = None;
        // How many signals mean no hurry.
        let mut patience = 1;
        let mut has_said_why = false;
        while !writer.is_finished() {
            watch::beat();
            if writer_control.writer_has_ended() && !has_said_why {
                has_said_why = written_since.get_or_insert_with(Instant::now).elapsed() > HURRY;
                if has_said_why {
                    patience = signals.ends().min(patience);
                    report.waits_for_index();
                }
            }
            if signals.ends() > patience {
                writer_control.hurry();
                let since = hurried_since.get_or_insert_with(Instant::now);
                let what = if writer_control.writer_has_ended() {
                    "the disk hangs; the last segment may not be closed: tapdeck recover does that"
                } else {
                    "the output hangs; what was not written is lost and not counted"
                };
                anyhow::ensure!(since.elapsed() < HURRY, what);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the writer failed")))
    }
}
