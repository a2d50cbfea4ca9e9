//! `tapdeck serve`: owns the hooks of interfaces and gives their packets to groups of programs.
//!
//! What is left for a process to do? Programs in the kernel (`tapdeck_capture::groups`) judge
//! packets and put them into members' rings, and a member reads its rings without the daemon. The
//! daemon is a loop that turns every 20 ms: it does what is asked over the control socket, closes
//! blocks that wait, wakes members, and looks whether a member has gone.
//!
//! A member's connection is its membership. Members whose connections have ended by the same turn
//! leave together, because each leaving must wait for the kernel's running programs once.

mod config;
mod daemon;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tapdeck_capture::Clock;
use tapdeck_capture::groups::Groups;

use crate::control::{Server, Socket};
use crate::flags;
use crate::interrupt::Interrupt;
use config::Plan;
use daemon::Daemon;
use report::Report;

/// How often the daemon looks after its members.
const TICK: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// Serves until something ends it.
pub fn run(flags: &flags::Serve) -> Result<()> {
    let plan = Plan::read(flags)?;
    let interrupt = Interrupt::listen()?;
    allow_many_files();
    let clock = Arc::new(Clock::default());
    let mut groups = Groups::open(&plan.groups, &clock)?;
    let socket = Socket::bind(&plan.socket, &plan.access)?;
    let mut report = Report::new(flags.stats_json.as_deref())?;
    groups.start()?;
    report.started(&plan, &groups);

    let server = Server::new(socket);
    let mut daemon = Daemon::new(server, groups, report, plan.rules, plan.rules_options);
    let end = flags.duration.and_then(|d| Instant::now().checked_add(d));
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    let mut next_second = Instant::now() + SECOND;
    while !interrupt.asked() && !daemon.stops() && !is_over() {
        daemon.serve(Instant::now() + TICK);
        daemon.look_after(&clock);
        if Instant::now() >= next_second {
            next_second = (next_second + SECOND).max(Instant::now());
            daemon.second();
        }
    }
    daemon.end().context("cannot tell how it ended")
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
