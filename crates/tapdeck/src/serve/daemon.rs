//! The daemon at work: what does it do for each command, and when members come and go?
//!
//! A [`Daemon`] answers the commands of the control socket by changing its groups, keeps the list
//! of connections that are members, and looks after both at the times that the loop in `serve::run`
//! calls it. Packets do not pass here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tapdeck_capture::Clock;
use tapdeck_capture::groups::{Groups, Membership, Watched};
use tapdeck_capture::rules::Compiled;
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::rules::image::Options;

use super::allow::Allowed;
use super::coming::{self, Came, Comers, Request};
use super::filters::{FilterChanges, Wanted};
use super::reload::{Next, Reload, Rest, put_allowed};
use super::report::{DaemonState, Own, Report};
use crate::alarm::Alarm;
use crate::config::again;
use crate::control::{
    Answer, Book, Changes, ClientId, Command, Counted, Event, Loaded, Peer, Refused, RulesCommand,
    Server, compiler,
};
use crate::fault_log::FaultLog;
use crate::service_manager::ServiceManager;
use crate::units::counted;

type Rules = Arc<Compiled>;

/// The version of the protocol between the daemon and its members.
const PROTOCOL: u32 = 1;
/// How often the daemon looks at its members' rings, as long as there is something in one.
const TICK: Duration = Duration::from_millis(20);
/// How long the last answers may take to be read.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long members of the daemon before may take to come back.
const AWAY: Duration = Duration::from_secs(10);

/// A daemon at work.
pub struct Daemon {
    server: Server,
    groups: Groups,
    report: Report,
    members: BTreeMap<ClientId, u32>,
    /// Members that have left, and are to be told so when their rings are gone.
    leaving: BTreeMap<u32, ClientId>,
    comers: Comers,
    /// The users that may be members of each group, in the order of the groups.
    allowed: Vec<Arc<Allowed>>,
    /// What was asked and is not done yet: by operators, and by all others.
    waiting: [VecDeque<(ClientId, Command)>; 2],
    /// The rules of each group, in the order of the groups.
    books: Vec<Book<Rules>>,
    changes: Changes<Rules>,
    filters: FilterChanges,
    reload: Reload,
    faults: FaultLog,
    /// How long programs go on without a daemon.
    abandon: Duration,
    /// Until when members that are away may come back.
    away_until: Option<Instant>,
    /// What could not be flushed since the last second.
    flush_faults: BTreeSet<String>,
    /// When the members' rings are looked at next.
    next_look: Instant,
    stops: bool,
}

/// What a member needs to map its rings.
#[derive(Serialize)]
struct Attached<'a> {
    protocol: u32,
    group: &'a str,
    member: u32,
    nrings: u32,
    nblocks: u32,
    block_shift: u32,
    snaplen: u32,
    ring_stride: usize,
    data_stride: usize,
    release_stride: usize,
    interfaces: Vec<Interface<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lasting: Option<Lasting<'a>>,
}

/// What a member needs to come back to the next daemon.
#[derive(Serialize)]
struct Lasting<'a> {
    secret: &'a str,
    abandon_ms: u64,
}

#[derive(Serialize)]
struct Interface<'a> {
    name: &'a str,
    link: u16,
    snaplen: u32,
    description: &'a str,
    filter: Option<&'a str>,
    hardware: Option<&'a str>,
    mac: Option<String>,
}

type Done = Result<Answer, String>;

impl Daemon {
    /// Takes up groups that have begun. `rules` are those that the groups have now.
    #[expect(clippy::too_many_arguments, reason = "what a daemon is made of, once")]
    pub fn new(
        server: Server,
        groups: Groups,
        report: Report,
        (rules, options): (Vec<Option<Loaded>>, Options),
        allowed: Vec<Arc<Allowed>>,
        comers: Comers,
        abandon: Duration,
        reload: Reload,
    ) -> Self {
        let nobody_is_away = groups.away().is_empty();
        let compile = compiler(options);
        let filters = FilterChanges::new(server.bell());
        let books = rules.into_iter().map(|now| Book::new(compile.clone(), now)).collect();
        Self {
            server,
            groups,
            report,
            members: BTreeMap::new(),
            leaving: BTreeMap::new(),
            comers,
            allowed,
            waiting: Default::default(),
            books,
            changes: Changes::default(),
            filters,
            reload,
            faults: FaultLog::default(),
            abandon,
            away_until: (!nobody_is_away).then(|| Instant::now() + AWAY),
            flush_faults: BTreeSet::new(),
            next_look: Instant::now(),
            stops: false,
        }
    }

    /// Whether somebody asked for the end.
    pub fn stops(&self) -> bool {
        self.stops
    }

    /// Does what clients ask for until a time, or until one asks for the end, the bell was rung or
    /// the alarm rings. What is left then is done in the next call, but each call does something.
    pub fn serve(&mut self, until: Instant, alarm: &Alarm) {
        let rests = self.rest();
        let until = if rests { until } else { until.min(self.next_look) };
        loop {
            let is_idle = self.waiting.iter().all(VecDeque::is_empty);
            let wait_until = if is_idle { until } else { Instant::now() };
            let events = self.server.turn(wait_until, Some(alarm.as_fd()));
            let is_over = rests || events.is_empty();
            let mut leaving = Vec::new();
            for event in events {
                match event {
                    Event::Asked(client, Command::Leave {}) => leaving.push(client),
                    Event::Gone(client) => {
                        self.comers.forget(client);
                        leaving.push(client);
                    }
                    Event::Asked(client, command) => {
                        let queue = usize::from(!self.server.is_operator(client));
                        self.waiting[queue].push_back((client, command));
                    }
                }
            }
            self.leave(&leaving);
            self.settle_members();
            self.settle_filters();
            while let Some((client, command)) = self.next_command() {
                self.take(client, command);
                if Instant::now() >= until {
                    break;
                }
            }
            // The loop does not wait for the helper.
            if !self.groups.is_busy() {
                let Self { groups, report, .. } = self;
                let put = |book, rules: Option<&Rules>| set_rules(groups, report, book, rules);
                if let Some((client, answer)) = self.changes.settle(&mut self.books, put) {
                    self.server.answer(client, answer);
                }
            }
            if self.stops || is_over || Instant::now() >= until {
                return;
            }
        }
    }

    /// Begins to rest where rings are empty and nothing goes on that rings no bell when it is done.
    /// Returns whether the rings need no look until the next event.
    fn rest(&mut self) -> bool {
        let is_idle = self.waiting.iter().all(VecDeque::is_empty) && self.changes.is_empty();
        is_idle && !self.groups.is_busy() && self.groups.rest()
    }

    fn next_command(&mut self) -> Option<(ClientId, Command)> {
        let [operators, others] = &mut self.waiting;
        operators.pop_front().or_else(|| others.pop_front())
    }

    /// Looks at the clock, and closes blocks that wait where it is time to look at them.
    pub fn look_after(&mut self, clock: &Clock) {
        if let Some(step) = clock.check() {
            let by_s = step.by_ns as f64 / 1e9;
            self.report.warn(&format!("the clock was stepped by {by_s:+.3} s"));
            let flushed = self.groups.flush_all();
            self.note_flush(flushed);
        }
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + TICK;
            let flushed = self.groups.tick();
            self.note_flush(flushed);
        }
    }

    /// Notes for the next second that packets that have waited stay in a ring.
    fn note_flush(&mut self, flushed: io::Result<()>) {
        self.flush_faults.extend(flushed.err().map(|e| format!("cannot flush: {e}")));
    }

    /// Looks after the interfaces and tells how things stand. Called every second.
    pub fn second(&mut self, manager: &mut ServiceManager) {
        let Watched { events, faults } = self.groups.watch();
        for (name, event) in &events {
            self.report.event(name, *event);
        }
        let faults = faults.into_iter().map(|e| format!("{:#}", anyhow::Error::from(e)));
        let faults = faults.chain(std::mem::take(&mut self.flush_faults));
        for fault in self.faults.look(Instant::now(), faults) {
            self.report.warn(&fault);
        }
        self.tell_unseen();
        self.groups.refresh_nic();
        self.groups.note();
        self.give_up_away();
        match self.state() {
            Ok(state) => {
                let statistics = state.statistics(&self.groups, false);
                let rates = self.report.second(&statistics);
                manager.second(&rates, None);
                if self.server.has_watchers() {
                    self.server.tell_watchers(&Answer::ok(&statistics));
                }
            }
            Err(e) => self.report.warn(&format!("cannot read the counters: {e}")),
        }
    }

    /// Tells the user how things stand.
    pub fn tell(&mut self) {
        match self.state() {
            Ok(state) => self.report.tell(&state.statistics(&self.groups, false)),
            Err(e) => self.report.warn(&format!("cannot read the counters: {e}")),
        }
    }

    /// Has members leave that were with the daemon before and have not come back.
    fn give_up_away(&mut self) {
        let is_over = self.away_until.is_some_and(|until| Instant::now() >= until);
        if !is_over || self.comers.expects() {
            return;
        }
        self.away_until = None;
        let numbers: Vec<u32> = self.groups.away().iter().map(|away| away.member).collect();
        if !numbers.is_empty() {
            self.comers.leave(self.groups.begin_leave(&numbers));
        }
    }

    fn tell_unseen(&mut self) {
        for (interface, unseen) in self.groups.take_unseen() {
            self.report.went_unseen(&interface, &unseen);
        }
    }

    /// Ends the daemon. Members see their connections close, and can still read what is in their
    /// rings. Groups that outlive the daemon are left as they are.
    pub fn end(mut self) -> io::Result<()> {
        self.groups.stop();
        self.tell_unseen();
        self.groups.refresh_nic();
        let reloads = self.reload.end();
        for client in self.changes.end().into_iter().chain(self.filters.end()).chain(reloads) {
            self.server.answer(client, Answer::error("the daemon has ended"));
        }
        self.server.flush(FAREWELL);
        let state = self.state()?;
        self.report.finished(&state.statistics(&self.groups, true));
        Ok(())
    }

    fn state(&self) -> io::Result<DaemonState> {
        let peers = self
            .members
            .iter()
            .filter_map(|(client, member)| Some((*member, self.server.peer(*client)?)));
        let peers: BTreeMap<u32, Peer> = peers.collect();
        Ok(DaemonState {
            stats: self.groups.stats()?,
            peers,
            takeovers: self.groups.takeovers(),
            elapsed: self.report.elapsed(),
        })
    }

    fn take(&mut self, client: ClientId, command: Command) {
        let answer = match command {
            Command::Stats {} => match self.members.get(&client) {
                Some(member) => self.own(*member),
                None => self.stats(),
            },
            Command::Groups {} => self.stats(),
            Command::Watch {} => {
                self.server.make_watcher(client);
                self.stats()
            }
            Command::Attach { group, weight } => match self.attach(client, group, weight) {
                Ok(()) => return,
                Err(why) => Err(why),
            },
            Command::Reattach { group, member, secret } => {
                match self.reattach(client, group, member, &secret) {
                    Ok(()) => return,
                    Err(why) => Err(why),
                }
            }
            Command::Flush {} => self.flush(client),
            Command::Pause { group } => self.pause(group.as_deref()),
            Command::Resume { group } => self.resume(group.as_deref()),
            Command::Snaplen { snaplen, group } => self.set_snaplen(group, snaplen),
            Command::Filter { filter, group } => match self.one(group) {
                Ok(group) => {
                    self.filters.push(Wanted { client: Some(client), group, filter });
                    return self.settle_filters();
                }
                Err(why) => Err(why),
            },
            Command::Rules(RulesCommand::List { group }) => {
                self.book(group).map(|at| self.books[at].list())
            }
            Command::Rules(RulesCommand::Hits { group }) => self.hits(group),
            Command::Rules(change) => match self.book(change.group().map(str::to_owned)) {
                Ok(at) => return self.changes.push(client, at, change),
                Err(why) => Err(why),
            },
            Command::Reload {} => return self.read_again(Some(client)),
            Command::Rotate {} => {
                Err("a daemon writes no segments: ask the recorder that does".into())
            }
            Command::Stop {} => {
                self.stops = true;
                Ok(Answer::done())
            }
            // Members that leave in one turn leave together: `serve` has them.
            Command::Leave {} => return,
        };
        self.server.answer(client, answer);
    }

    fn stats(&self) -> Done {
        let state = self.state().map_err(|e| format!("cannot read the counters: {e}"))?;
        Ok(Answer::ok(state.statistics(&self.groups, false)))
    }

    fn own(&self, member: u32) -> Done {
        let failed = |e: io::Error| format!("cannot read the counters: {e}");
        let stats = self.groups.member_stats(member).map_err(failed)?;
        let seen = self.groups.group_seen(&stats.group).map_err(failed)?;
        let unseen = self.groups.group_unseen(&stats.group);
        Ok(Answer::ok(Own::new(&stats, seen, unseen)))
    }

    /// Begins to make a client a member. It is answered when its rings are made.
    fn attach(&mut self, client: ClientId, group: String, weight: u32) -> Result<(), String> {
        if self.members.contains_key(&client) {
            return Err("this connection is a member already: open another one".into());
        }
        let Some(peer) = self.server.peer(client) else { return Ok(()) };
        self.ask(client, peer, group, coming::Wanted::New { weight });
        Ok(())
    }

    /// Begins to give a client the place that a member had with the daemon before.
    fn reattach(
        &mut self,
        client: ClientId,
        group: String,
        member: u32,
        secret: &str,
    ) -> Result<(), String> {
        if self.members.contains_key(&client) {
            return Err("this connection is a member already: open another one".into());
        }
        let Some(peer) = self.server.peer(client) else { return Ok(()) };
        let its = self.groups.check_away(member, secret, peer.uid).map_err(explain)?;
        if its != group {
            return Err(format!("member {member} is not of group {group}: attach anew"));
        }
        self.ask(client, peer, group, coming::Wanted::Back { member });
        Ok(())
    }

    fn ask(&mut self, client: ClientId, peer: Peer, group: String, wanted: coming::Wanted) {
        let at = self.groups.configs().position(|config| config.name == group);
        // A group that is not there is told when it is this client's turn.
        let allowed = at.map_or_else(|| Arc::new(Allowed::All), |at| self.allowed[at].clone());
        self.comers.push(Request { client, peer, group, wanted, allowed });
        self.settle_members();
    }

    /// Answers those whose rings are made or gone, and begins to make the next ones.
    fn settle_members(&mut self) {
        for Came { client, peer, group, member, is_back } in self.comers.came(&mut self.groups) {
            let joined = match member {
                Ok(joined) => joined,
                Err(why) => {
                    self.server.answer(client, Answer::error(&why));
                    continue;
                }
            };
            if self.server.peer(client).is_none() {
                // It has gone meanwhile. One that is back may have given up this connection alone.
                if is_back {
                    self.groups.is_away_again(joined);
                    continue;
                }
                self.comers.leave(self.groups.begin_leave(&[joined.member]));
                continue;
            }
            self.members.insert(client, joined.member);
            self.server.make_member(client);
            self.report.joined(&group, joined.member, peer, is_back);
            let answer = Answer::ok(Attached::new(&group, &joined, self.abandon));
            let Membership { rings, data, release, wake, .. } = joined;
            self.server.answer(client, answer.with(vec![rings, data, release, wake]));
        }
        for left in self.comers.left() {
            for (member, stats) in self.groups.finish_leave(left) {
                self.report.left(&stats);
                let Some(client) = self.leaving.remove(&member) else { continue };
                self.server.end_member(client);
                let seen = self.groups.group_seen(&stats.group).unwrap_or_default();
                let unseen = self.groups.group_unseen(&stats.group);
                self.server.answer(client, Answer::ok(Own::new(&stats, seen, unseen)));
            }
        }
    }

    fn flush(&mut self, client: ClientId) -> Done {
        let member = self.members.get(&client).ok_or(NO_MEMBER)?;
        self.groups.flush_member(*member).map_err(|e| format!("cannot flush: {e}"))?;
        Ok(Answer::done())
    }

    /// Ends memberships, all together: of clients that have gone and of those that asked.
    fn leave(&mut self, clients: &[ClientId]) {
        let mut numbers = Vec::new();
        for client in clients {
            match self.members.remove(client) {
                Some(member) => {
                    self.leaving.insert(member, *client);
                    numbers.push(member);
                }
                None if self.leaving.values().any(|leaving| leaving == client) => {}
                None => self.server.answer(*client, Answer::error(NO_MEMBER)),
            }
        }
        if !numbers.is_empty() {
            self.comers.leave(self.groups.begin_leave(&numbers));
        }
    }

    fn pause(&mut self, group: Option<&str>) -> Done {
        self.groups.pause(group).map_err(explain)?;
        self.report.say(&format!("{} paused", which(group)));
        Ok(Answer::done())
    }

    fn resume(&mut self, group: Option<&str>) -> Done {
        self.groups.resume(group).map_err(explain)?;
        self.report.say(&format!("{} resumed", which(group)));
        Ok(Answer::done())
    }

    fn set_snaplen(&mut self, group: Option<String>, snaplen: u32) -> Done {
        let group = self.one(group)?;
        self.groups.set_snaplen(&group, snaplen).map_err(explain)?;
        self.report.say(&format!("group {group}: snaplen is {snaplen} from now on"));
        Ok(Answer::ok(json!({ "group": group, "snaplen": snaplen })))
    }

    /// Answers those whose filters are in force or refused, and begins to make the next one.
    fn settle_filters(&mut self) {
        while let Some((wanted, done)) = self.filters.settle(&mut self.groups) {
            let Wanted { client, group, filter } = wanted;
            if done.is_ok() {
                self.report.say(&match &filter {
                    Some(filter) => format!("group {group}: the filter is {filter:?} from now on"),
                    None => format!("group {group}: there is no filter from now on"),
                });
            }
            match client {
                Some(client) => {
                    let answer = |()| Answer::ok(json!({ "group": group, "filter": filter }));
                    self.server.answer(client, done.map(answer));
                }
                None => self.reload.settled(&group, done, &mut self.filters),
            }
        }
    }

    /// Has the configuration read again, also for a client that waits for the answer.
    pub fn read_again(&mut self, client: Option<ClientId>) {
        self.reload.ask(client);
    }

    /// Goes on with the configuration that is read again. Rules that clients change come first.
    pub fn look_for_reload(&mut self, manager: &mut ServiceManager) {
        if !self.changes.is_empty() || self.groups.is_busy() {
            return;
        }
        let done = match self.reload.go_on(&self.groups, &mut self.filters) {
            Next::Nothing => return self.settle_filters(),
            Next::Begun => return manager.reloading(),
            Next::Finish(rest) => match self.finish_reload(*rest) {
                Ok(done) => Ok(done),
                Err(why) => return self.reload.take_back(why, &mut self.filters),
            },
            Next::Refuse(why) => Err(why),
        };
        match &done {
            Ok((changed, restart)) => self.report.say(&again::said(changed, restart)),
            Err(why) => self.report.warn(&again::refused(why)),
        }
        for client in self.reload.take_clients() {
            let answer = match &done {
                Ok((changed, restart)) => Answer::ok(again::answer(changed, restart)),
                Err(why) => Answer::error(why),
            };
            self.server.answer(client, answer);
        }
        manager.reloaded();
    }

    /// Puts in force what the configuration says besides filters, or nothing of it.
    fn finish_reload(&mut self, rest: Rest) -> Result<(Vec<String>, Vec<String>), String> {
        let Rest { groups: wanted, mut changed, restart } = rest;
        let Self { groups, report, books, .. } = self;
        let mut put = Vec::new();
        for group in &wanted {
            let Some(at) = groups.configs().position(|now| now.name == group.name) else {
                continue;
            };
            let (set, compiled) = group.rules.clone().unzip();
            if books[at].has(set.as_ref()) {
                continue;
            }
            let before = groups.configs().nth(at).and_then(|now| now.rules.clone());
            match set_rules(groups, report, at, compiled.as_ref()) {
                Ok(last) => put.push((at, before, set.zip(compiled), last)),
                Err(refused) => {
                    books[at].count(&refused.last);
                    for (at, before, ..) in put {
                        // A group takes again what it had a moment ago.
                        if let Ok(last) = set_rules(groups, report, at, before.as_ref()) {
                            books[at].count(&last);
                        }
                    }
                    return Err(refused.why);
                }
            }
        }
        for (at, _, now, last) in put {
            books[at].put(now, &last);
            let name = groups.configs().nth(at).map_or("", |group| &group.name);
            changed.insert(format!("group {name}: rules"));
        }
        for group in &wanted {
            let now = groups.configs().find(|now| now.name == group.name);
            if now.is_some_and(|now| now.snaplen != group.snaplen) {
                groups.set_snaplen(&group.name, group.snaplen).map_err(explain)?;
                changed.insert(format!("group {}: snaplen", group.name));
            }
        }
        changed.extend(put_allowed(&mut self.allowed, groups, &wanted));
        Ok((changed.into_iter().collect(), restart))
    }

    fn hits(&self, group: Option<String>) -> Done {
        let at = self.book(group)?;
        let name = self.groups.configs().nth(at).map_or("", |group| &group.name);
        let now = self.groups.rule_hits(name).unwrap_or_default();
        Ok(self.books[at].hits(&now.into()))
    }

    /// Returns the name of the group that is meant. It may be left out where there is only one.
    fn one(&self, group: Option<String>) -> Result<String, String> {
        let names: Vec<&str> = self.groups.configs().map(|g| g.name.as_str()).collect();
        match (group, &names[..]) {
            (Some(group), names) if names.contains(&group.as_str()) => Ok(group),
            (Some(group), names) => {
                Err(format!("there is no group {group}; there are {}", names.join(", ")))
            }
            (None, [only]) => Ok((*only).to_owned()),
            (None, names) => Err(format!("which group? there are {}", names.join(", "))),
        }
    }

    /// Returns the place in `books` of a group's rules.
    fn book(&self, group: Option<String>) -> Result<usize, String> {
        let group = self.one(group)?;
        let at = self.groups.configs().position(|g| g.name == group);
        at.ok_or_else(|| format!("there is no group {group}"))
    }
}

const NO_MEMBER: &str = "this connection is no member: attach to a group first";

fn set_rules(
    groups: &mut Groups,
    report: &mut Report,
    group: usize,
    rules: Option<&Rules>,
) -> Result<Counted, Refused> {
    let name = groups.configs().nth(group).map(|group| group.name.clone()).unwrap_or_default();
    let last = groups.set_rules(&name, rules.cloned()).map_err(|e| Refused::from(explain(e)))?;
    report.say(&match rules {
        Some(rules) => {
            format!("group {name}: {} in force from now on", counted(rules.rules().into(), "rule"))
        }
        None => format!("group {name}: no rules in force from now on"),
    });
    Ok(last.unwrap_or_default().into())
}

fn which(group: Option<&str>) -> String {
    group.map_or_else(|| "all groups are".into(), |group| format!("group {group} is"))
}

pub(super) fn explain(e: tapdeck_capture::groups::Error) -> String {
    format!("{:#}", anyhow::Error::from(e))
}

impl<'a> Attached<'a> {
    fn new(group: &'a str, joined: &'a Membership, abandon: Duration) -> Self {
        let g = joined.geometry;
        let abandon_ms = u64::try_from(abandon.as_millis()).unwrap_or(u64::MAX);
        let secret = joined.secret.as_deref();
        Self {
            protocol: PROTOCOL,
            group,
            member: joined.member,
            nrings: g.nrings,
            nblocks: g.nblocks,
            block_shift: g.block_shift,
            snaplen: g.snaplen,
            ring_stride: joined.ring_stride,
            data_stride: joined.data_stride,
            release_stride: joined.release_stride,
            interfaces: joined.interfaces.iter().map(Interface::new).collect(),
            lasting: secret.map(|secret| Lasting { secret, abandon_ms }),
        }
    }
}

impl<'a> Interface<'a> {
    fn new(interface: &'a InterfaceDescription) -> Self {
        let mac = interface.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
        Self {
            name: &interface.name,
            link: interface.link.0,
            snaplen: interface.snaplen,
            description: &interface.description,
            filter: interface.filter.as_deref(),
            hardware: interface.hardware.as_deref(),
            mac,
        }
    }
}
