//! Filters of groups are exchanged on a thread beside the daemon's loop.
//!
//! Why not in the loop? The kernel verifies every program anew that a filter is put into, and takes
//! as long for it as the filter is large. One change is made at a time, in the order in which they
//! were asked for.

use std::collections::VecDeque;
use std::thread::JoinHandle;

use tapdeck_capture::groups::{Groups, PreparedFilter};

use super::daemon::explain;
use crate::control::{Bell, ClientId};

/// A filter that somebody wants a group to have.
pub struct Wanted {
    /// The client that is answered; `None` is the configuration, which was read again.
    pub client: Option<ClientId>,
    pub group: String,
    pub filter: Option<String>,
}

/// Changes of filters that were asked for.
pub struct FilterChanges {
    bell: Bell,
    running: Option<(Wanted, JoinHandle<PreparedFilter>)>,
    waiting: VecDeque<Wanted>,
}

impl FilterChanges {
    /// Begins without a change. `bell` is rung when one can be put in force.
    pub fn new(bell: Bell) -> Self {
        Self { bell, running: None, waiting: VecDeque::new() }
    }

    pub fn push(&mut self, wanted: Wanted) {
        self.waiting.push_back(wanted);
    }

    /// Forgets what the configuration wants and that was not begun.
    pub fn forget_reload(&mut self) {
        self.waiting.retain(|wanted| wanted.client.is_some());
    }

    /// Puts a change in force that is ready, and begins the next one. Returns a change that is
    /// done, or why it is not.
    pub fn settle(&mut self, groups: &mut Groups) -> Option<(Wanted, Result<(), String>)> {
        if let Some((_, thread)) = &self.running {
            if !thread.is_finished() {
                return None;
            }
            let (wanted, thread) = self.running.take()?;
            return match thread.join().map(|prepared| groups.finish_filter(prepared)) {
                Ok(Ok(true)) => Some((wanted, Ok(()))),
                // An interface went or came back meanwhile.
                Ok(Ok(false)) => {
                    self.waiting.push_front(wanted);
                    self.settle(groups)
                }
                Ok(Err(e)) => Some((wanted, Err(explain(e)))),
                Err(_) => Some((wanted, Err("the filter cannot be read".into()))),
            };
        }
        let wanted = self.waiting.pop_front()?;
        let change = match groups.begin_filter(&wanted.group, wanted.filter.as_deref()) {
            Ok(change) => change,
            Err(e) => return Some((wanted, Err(explain(e)))),
        };
        let bell = self.bell.clone();
        let prepare = move || {
            let prepared = change.prepare();
            bell.ring();
            prepared
        };
        match std::thread::Builder::new().name("tapdeck-filter".into()).spawn(prepare) {
            Ok(thread) => {
                self.running = Some((wanted, thread));
                None
            }
            Err(e) => Some((wanted, Err(format!("cannot change the filter now: {e}")))),
        }
    }

    /// Ends all changes. Returns the clients whose changes will not be made.
    pub fn end(&mut self) -> Vec<ClientId> {
        let running = self.running.take().map(|(wanted, _)| wanted);
        let all = running.into_iter().chain(std::mem::take(&mut self.waiting));
        all.filter_map(|wanted| wanted.client).collect()
    }
}
