//! `tapdeck serve`: owns the hooks of interfaces and gives their packets to groups of programs.
//!
//! What is left for a process to do? Programs in the kernel (`tapdeck_capture::groups`) judge
//! packets and put them into members' rings, and a member reads its rings without the daemon. The
//! daemon is a loop that turns every 20 ms: it does what is asked over the control socket, closes
//! blocks that wait, and looks whether a member has gone. While all rings are empty it rests, until
//! a client asks or a program tells of a packet. A turn has a bound, whatever is asked: what is
//! left is done in the next one, and what takes long (rings, filters, rules) is done on threads
//! beside. The thread that wakes members for complete blocks does nothing else
//! (`tapdeck_capture::groups`).
//!
//! With `--persist` all but the loop outlives the daemon, and the next one takes it over
//! (`tapdeck_capture::groups`): a member then has its place again for its number and its secret.
//!
//! A member's connection is its membership. Members whose connections have ended by the same turn
//! leave together, because each leaving must wait for the kernel's running programs once.

mod allow;
mod coming;
pub(crate) mod config;
mod daemon;
mod filters;
mod reload;
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use tapdeck_capture::groups::Groups;
use tapdeck_capture::persist::LastingGroups;
use tapdeck_capture::{Clock, Helper};
use tapdeck_packet::watch;

use crate::alarm::Alarm;
use crate::control::{Server, Socket, remove_left};
use crate::interrupt::Interrupt;
use crate::rights::{Place, Rights, keep_for_hooks};
use crate::service_manager::ServiceManager;
use crate::statistics::StatsJson;
use crate::{flags, hangs};
use coming::Comers;
use config::ServePlan;
use daemon::Daemon;
use reload::Reload;
use report::Report;

const SECOND: Duration = Duration::from_secs(1);

/// Serves until something ends it.
pub fn run(flags: &flags::Serve) -> Result<()> {
    let lasting = flags.persist.as_deref().map(LastingGroups::open).transpose()?;
    let plan = ServePlan::read(flags, lasting.as_ref())?;
    let interrupt = Interrupt::listen()?;
    let statistics = Arc::new(AtomicBool::new(false));
    let again = Arc::new(AtomicBool::new(false));
    for (signal, asked) in [(SIGUSR1, &statistics), (SIGHUP, &again)] {
        signal_hook::flag::register(signal, asked.clone()).context("cannot listen for signals")?;
    }
    allow_many_files();
    let clock = Arc::new(Clock::default().abandoned_after(flags.abandon));
    let config = || flags.config.display().to_string();
    let rights = Rights::find(flags.user.as_deref(), false)?;
    let mut groups = match lasting {
        Some(lasting) => Groups::open_lasting(&plan.groups, &clock, lasting),
        None => Groups::open(&plan.groups, &clock),
    }
    .with_context(config)?;
    // Loading programs may have taken longer than they go on without a daemon.
    clock.beat();
    groups.hold()?;
    // From the division on, and as long as there is one thread, the order of steps matters.
    let helper = divide(&mut groups, &plan)?;
    let socket = Socket::bind(&plan.socket, &plan.access)?;
    let statistics_out = StatsJson::begin(flags.stats_json.as_deref())?;
    let mut notes = Vec::new();
    let mut manager = ServiceManager::connect(&mut notes);
    notes.extend(rights.give_up(&Place::Users, &plan.read_again)?);
    hangs::watch_threads()?;
    let mut report = Report::new(statistics_out)?;
    clock.beat();
    anyhow::ensure!(!helper.is_gone(), "the process that has the hooks ended as it began");
    let alarm = Alarm::new().context("cannot wait for events")?;
    alarm.watch(&helper).context("cannot watch the process that has the hooks")?;
    let bell = alarm.bell();
    groups.wake_by(Box::new(move || bell.ring()));
    groups.start()?;
    clock.beat();
    report.started(&plan, &groups);
    for note in &notes {
        report.say(note);
    }

    let server = Server::new(socket).context("cannot serve clients")?;
    for signal in [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGHUP] {
        server.bell().ring_for(signal).context("cannot listen for signals")?;
    }
    let users = groups.away().iter().map(|away| (away.member, away.user)).collect();
    let comers =
        Comers::start(plan.quota, &server.bell(), users).context("cannot start a thread")?;
    let config = flags.config.clone();
    let reload = Reload::new(config, plan.rules_options.clone(), plan.keys, server.bell());
    let rules = (plan.rules, plan.rules_options);
    let mut daemon =
        Daemon::new(server, groups, report, rules, plan.allowed, comers, flags.abandon, reload);
    let end = flags.duration.and_then(|d| Instant::now().checked_add(d));
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    let mut next_second = Instant::now() + SECOND;
    watch::watch("main");
    manager.ready();
    while !interrupt.asked() && !daemon.stops() && !is_over() && !helper.is_gone() {
        watch::beat();
        daemon.serve(end.map_or(next_second, |end| end.min(next_second)), &alarm);
        alarm.quiet();
        daemon.look_after(&clock);
        if again.swap(false, Relaxed) {
            daemon.read_again(None);
        }
        daemon.look_for_reload(&mut manager);
        if statistics.swap(false, Relaxed) {
            daemon.tell();
        }
        if Instant::now() >= next_second {
            next_second = (next_second + SECOND).max(Instant::now());
            clock.beat();
            daemon.second(&mut manager);
        }
    }
    manager.stopping();
    let has_lost_helper = helper.is_gone();
    daemon.end().context("cannot tell how it ended")?;
    // It removes the socket, which nobody listens at any more.
    helper.end();
    anyhow::ensure!(
        !has_lost_helper,
        "the process that has the hooks has ended{}",
        match flags.persist {
            None => ", and the hooks with it: start the daemon again",
            Some(_) => "; the hooks stand: start the daemon again, and the next one goes on",
        }
    );
    Ok(())
}

/// Divides the process that has the hooks from this one.
fn divide(groups: &mut Groups, plan: &ServePlan) -> Result<Arc<Helper>> {
    let helper = groups.divide(|| keep_for_hooks(false), || remove_left(&plan.socket));
    helper.context("cannot start the process that has the hooks")
}

/// Raises the limit of open files as far as it goes. A member takes a connection, a pipe and maps,
/// and a thousand members take more than the usual limit.
fn allow_many_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Where the limit cannot be raised, there can be fewer members.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
