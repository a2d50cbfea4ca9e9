//! What a recorder does for the clients of its control socket.
//!
//! [`ControlSocket`] takes commands and answers them; [`Recorder`] is what they work on: hooks,
//! report and writer. A command that takes long (rules that are compiled, a segment that is closed)
//! is answered later, and recording does not wait for it.

use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use tapdeck_capture::Capture;
use tapdeck_capture::all_or_none::change_all;
use tapdeck_capture::filter::check_filter;
use tapdeck_capture::rules::Compiled;
use tapdeck_store::WriterControl;

use super::report::Report;
use super::resolve::{RecordPlan, SocketPlace, Target};
use super::source::RecordSource;
use crate::alarm::Alarm;
use crate::control::{
    Access, Answer, Book, Changes, ClientId, Command, Counted, Event, Refused, RulesCommand,
    Server, Socket, compiler,
};
use crate::units::counted;

type Rules = Arc<Compiled>;

/// How long the last answers may take to be read.
const FAREWELL: Duration = Duration::from_millis(500);

/// The rules that are in force: one book, because all interfaces have the same.
pub type Books = [Book<Rules>; 1];

/// Returns the rules that a recorder begins with.
pub fn books(plan: &RecordPlan) -> Books {
    [Book::new(compiler(plan.rules_options.clone()), plan.origin.rules().cloned())]
}

/// The recorder's control socket, with the commands that are not answered yet.
pub struct ControlSocket {
    server: Server,
    changes: Changes<Rules>,
    /// Clients that asked for a new segment, and how they learn of it.
    rotations: Vec<(ClientId, Receiver<()>)>,
    /// Clients that asked for the configuration to be read again.
    reloads: Vec<ClientId>,
    /// Whether there is a configuration.
    has_config: bool,
    /// Whether a client asked for the end.
    stops: bool,
}

impl ControlSocket {
    /// Listens where the plan says. Where a socket that nobody named cannot be had, the recorder
    /// says so and records without one.
    pub fn open(plan: &RecordPlan, warn: impl Fn(&str)) -> anyhow::Result<Option<Self>> {
        let socket = match &plan.socket {
            SocketPlace::Nowhere => return Ok(None),
            SocketPlace::At(path) => Socket::bind(path, &Access::default())?,
            // Who may read what is recorded may also ask how it goes.
            SocketPlace::InStore(path) => match Socket::bind(path, &Access::of_group()) {
                Ok(socket) => socket,
                Err(e) => {
                    warn(&format!("tapdeck ctl cannot control this recorder: {e:#}"));
                    return Ok(None);
                }
            },
        };
        Ok(Some(Self {
            server: Server::new(socket)?,
            changes: Changes::default(),
            rotations: Vec::new(),
            reloads: Vec::new(),
            has_config: !plan.read_again.is_empty(),
            stops: false,
        }))
    }

    /// Whether a client asked for the end.
    pub fn stops(&self) -> bool {
        self.stops
    }

    /// Takes the clients that have asked for the configuration to be read again.
    pub fn take_reloads(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.reloads)
    }

    /// Whether rules are being changed.
    pub fn changes_rules(&self) -> bool {
        !self.changes.is_empty()
    }

    pub fn answer(&mut self, client: ClientId, answer: Answer) {
        self.server.answer(client, answer);
    }

    /// Whether something is under way whose end nobody tells.
    pub fn is_busy(&self) -> bool {
        !self.changes.is_empty() || !self.rotations.is_empty()
    }

    /// Does what clients ask for as soon as they do; returns then, at `until`, or when the alarm
    /// rings.
    pub fn serve(
        &mut self,
        until: Instant,
        alarm: &Alarm,
        recorder: &mut Recorder<'_>,
        books: &mut Books,
    ) {
        for event in self.server.turn(until, Some(alarm.as_fd())) {
            match event {
                Event::Asked(client, command) => self.take(client, command, recorder, books),
                Event::Gone(_) => {}
            }
        }
        let put = |_, rules: Option<&Rules>| recorder.set_rules(rules);
        if let Some((client, answer)) = self.changes.settle(books, put) {
            self.server.answer(client, answer);
        }
        self.settle_rotations();
    }

    /// Sends statistics to clients that watch. Called once a second.
    pub fn second(&mut self, source: &RecordSource, report: &Report) {
        if self.server.has_watchers() {
            self.server.tell_watchers(&report.stats(source));
        }
    }

    /// Answers everything that will not be done any more, because the recording has ended. A client
    /// that asked for the end sees its connection close when all is done.
    pub fn end(&mut self, reloads: Vec<ClientId>) {
        let rotations = std::mem::take(&mut self.rotations).into_iter().map(|(client, _)| client);
        for client in self.changes.end().into_iter().chain(rotations).chain(reloads) {
            self.server.answer(client, Answer::error("the recording has ended"));
        }
        self.server.flush(FAREWELL);
    }

    fn take(
        &mut self,
        client: ClientId,
        command: Command,
        recorder: &mut Recorder<'_>,
        books: &Books,
    ) {
        let answer = match command {
            Command::Stats {} => recorder.report.stats(recorder.source),
            Command::Watch {} => {
                self.server.make_watcher(client);
                recorder.report.stats(recorder.source)
            }
            Command::Stop {} => {
                self.stops = true;
                Answer::done()
            }
            Command::Rotate {} => match recorder.rotate() {
                Ok(done) => return self.rotations.push((client, done)),
                Err(why) => Answer::error(&why),
            },
            Command::Reload {} if self.has_config => return self.reloads.push(client),
            Command::Reload {} => {
                Answer::error("this recorder has no configuration: start it with --config FILE")
            }
            Command::Pause { group } => recorder.pause(group.as_deref()).into(),
            Command::Resume { group } => recorder.resume(group.as_deref()).into(),
            Command::Snaplen { snaplen, group } => {
                recorder.set_snaplen(group.as_deref(), snaplen).into()
            }
            Command::Filter { filter, group } => {
                recorder.set_filter(group.as_deref(), filter.as_deref()).into()
            }
            Command::Rules(command) => match recorder.owns(command.group()) {
                Ok(()) => return self.take_rules(client, command, recorder, books),
                Err(why) => Answer::error(&why),
            },
            Command::Groups {} => Answer::ok(json!({"groups": []})),
            Command::Attach { .. }
            | Command::Reattach { .. }
            | Command::Flush {}
            | Command::Leave {} => Answer::error(
                "this is a recorder, and only a daemon has groups: start tapdeck serve, and name its socket",
            ),
        };
        self.server.answer(client, answer);
    }

    fn take_rules(
        &mut self,
        client: ClientId,
        command: RulesCommand,
        recorder: &mut Recorder<'_>,
        [book]: &Books,
    ) {
        match command {
            RulesCommand::List { .. } => self.server.answer(client, book.list()),
            RulesCommand::Hits { .. } => {
                let answer = recorder.hits(book);
                self.server.answer(client, answer);
            }
            change => self.changes.push(client, 0, change),
        }
    }

    /// Answers clients whose new segment has begun.
    fn settle_rotations(&mut self) {
        for (client, done) in std::mem::take(&mut self.rotations) {
            match done.try_recv() {
                Ok(()) => self.server.answer(client, Answer::done()),
                Err(TryRecvError::Empty) => self.rotations.push((client, done)),
                Err(TryRecvError::Disconnected) => {
                    self.server.answer(client, Answer::error("the recording has ended"));
                }
            }
        }
    }
}

/// The parts of a recorder that commands work on.
pub struct Recorder<'a> {
    pub source: &'a mut RecordSource,
    pub report: &'a mut Report,
    pub writer_control: &'a WriterControl,
}

type Done = Result<Answer, String>;

impl Recorder<'_> {
    /// Refuses what only the owner of the hooks can do, where that is a daemon.
    fn owns(&self, group: Option<&str>) -> Result<(), String> {
        if let Some(group) = group {
            return Err(format!(
                "this is a recorder and has no group {group}: leave \"group\" out"
            ));
        }
        match self.source {
            RecordSource::Interfaces(..) => Ok(()),
            RecordSource::Group(_) => {
                Err("this recorder is a member of a group: ask the daemon that has the hooks"
                    .into())
            }
        }
    }

    /// Changes all interfaces or, where one refuses, none. `change` returns what `undo` needs to
    /// bring back what was there before.
    fn change_all<Before>(
        &mut self,
        mut change: impl FnMut(&mut Capture) -> Result<Before, tapdeck_capture::Error>,
        mut undo: impl FnMut(&mut Capture, Before),
    ) -> Result<(), String> {
        let captures = self.source.captures_mut();
        let indices = 0..captures.len();
        let change = |captures: &mut [Capture], at: usize| {
            let before = change(&mut captures[at]);
            let before = before.map_err(|e| explain(&captures[at].interface().name, e))?;
            Ok((at, before))
        };
        change_all(captures, indices, change, |captures, (at, before)| {
            undo(&mut captures[at], before);
        })
    }

    fn pause(&mut self, group: Option<&str>) -> Done {
        self.owns(group)?;
        for capture in self.source.captures_mut() {
            capture.pause();
        }
        self.report.warn("paused: packets are not seen until it is told to resume");
        Ok(Answer::done())
    }

    fn resume(&mut self, group: Option<&str>) -> Done {
        self.owns(group)?;
        let captures = self.source.captures().iter();
        let all: Vec<u32> = captures.map(|capture| capture.interface().index).collect();
        let resume = |capture: &mut Capture| {
            let was_paused = capture.is_paused();
            let own = capture.interface().index;
            let taken: Vec<u32> = all.iter().copied().filter(|index| *index != own).collect();
            capture.resume(&taken).map(|()| was_paused)
        };
        let pause_again = |capture: &mut Capture, was_paused| {
            if was_paused {
                capture.pause();
            }
        };
        self.change_all(resume, pause_again)?;
        self.report.warn("recording goes on");
        Ok(Answer::done())
    }

    pub fn set_snaplen(&mut self, group: Option<&str>, snaplen: u32) -> Done {
        self.owns(group)?;
        let most = self.source.captures().iter().map(|c| c.config().snaplen).min().unwrap_or(0);
        if snaplen == 0 || snaplen > most {
            return Err(format!(
                "snaplen {snaplen}: from 1 to {most}, for which this recorder was started"
            ));
        }
        let set = |capture: &mut Capture| {
            let before = capture.snaplen();
            capture.set_snaplen(snaplen).map(|()| before)
        };
        // An interface takes again what it had a moment ago.
        self.change_all(set, |capture, before| drop(capture.set_snaplen(before)))?;
        self.report.warn(&format!("snaplen is {snaplen} from now on"));
        Ok(Answer::ok(json!({ "snaplen": snaplen })))
    }

    /// Changes the filter of all interfaces or, where one refuses, of none.
    pub fn set_filter(&mut self, group: Option<&str>, filter: Option<&str>) -> Done {
        self.owns(group)?;
        if let Some(expression) = filter {
            let interfaces = self.source.captures().iter().map(Capture::interface);
            check_filter(expression, interfaces).map_err(|e| e.to_string())?;
        }
        let set = |capture: &mut Capture| {
            let before = capture.config().filter.clone();
            capture.set_filter(filter).map(|()| before)
        };
        // An interface takes again what it had a moment ago.
        self.change_all(set, |capture, before| drop(capture.set_filter(before.as_deref())))?;
        // Each segment says which filter its packets have passed.
        self.describe_anew();
        self.report.warn(&match filter {
            Some(filter) => format!("the filter is {filter:?} from now on"),
            None => "there is no filter from now on".into(),
        });
        Ok(Answer::ok(json!({ "filter": filter })))
    }

    /// Begins a segment whose interface descriptions are those of now.
    fn describe_anew(&mut self) {
        if matches!(self.report.target(), Target::Store { .. }) {
            let _ = self.source.flush_all();
            self.writer_control.begin_segment(Some(self.source.descriptions()), Box::new(|| {}));
        }
    }

    /// Changes of all interfaces or, where one refuses, of none, how many bytes each flow may have.
    pub fn set_cutoff(&mut self, cutoff: Option<NonZeroU32>) -> Result<(), String> {
        let set = |capture: &mut Capture| {
            let before = capture.config().cutoff;
            capture.set_cutoff(cutoff).map(|()| before)
        };
        // An interface takes again what it had a moment ago.
        self.change_all(set, |capture, before| drop(capture.set_cutoff(before)))?;
        self.describe_anew();
        self.report.warn(&match cutoff {
            Some(bytes) => format!("flows are cut off after {bytes} bytes from now on"),
            None => "flows are recorded whole from now on".into(),
        });
        Ok(())
    }

    /// Exchanges the rules of all interfaces or, where one refuses, of none. Returns what the old
    /// rules have counted in the end.
    pub fn set_rules(&mut self, rules: Option<&Rules>) -> Result<Counted, Refused> {
        let mut last = Counted::default();
        let described = self.source.descriptions();
        let set = |capture: &mut Capture| {
            let before = capture.config().rules.clone();
            last.add(capture.set_rules(rules.cloned())?.unwrap_or_default().into());
            Ok(before)
        };
        // An interface takes again what it had a moment ago.
        let changed = self.change_all(set, |capture, before| drop(capture.set_rules(before)));
        if let Err(why) = changed {
            return Err(Refused { why, last });
        }
        // Each segment says whether there are flows of which it has the first bytes alone.
        if self.source.descriptions() != described {
            self.describe_anew();
        }
        self.report.warn(&match rules {
            Some(rules) => {
                format!("{} in force from now on", counted(rules.rules().into(), "rule"))
            }
            None => "no rules in force from now on".into(),
        });
        Ok(last)
    }

    fn hits(&self, book: &Book<Rules>) -> Answer {
        let mut now = Counted::default();
        for hits in self.source.captures().iter().filter_map(Capture::rule_hits) {
            now.add(hits.into());
        }
        book.hits(&now)
    }

    /// Begins a new segment. What is returned receives when the segment before has its final name.
    fn rotate(&mut self) -> Result<Receiver<()>, String> {
        if !matches!(self.report.target(), Target::Store { .. }) {
            return Err("there are no segments: only a recorder with --dir has them".into());
        }
        self.source.flush_all().map_err(|e| format!("{e:#}"))?;
        let (send, done) = channel();
        // The client that asked may have gone by then.
        let tell = move || {
            let _ = send.send(());
        };
        self.writer_control.begin_segment(None, Box::new(tell));
        Ok(done)
    }
}

/// Returns an error's text, with the interface's name in it.
fn explain(interface: &str, e: tapdeck_capture::Error) -> String {
    let why = format!("{:#}", anyhow::Error::from(e));
    if why.contains(interface) { why } else { format!("{interface}: {why}") }
}
