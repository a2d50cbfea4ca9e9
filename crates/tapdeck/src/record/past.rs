//! What is counted of interfaces that are gone, and whose places others have?
//!
//! The rings of a place are made anew for the interface that gets it, but the writer goes on
//! counting by interface id. So what it had counted by then is kept for each place, and the account
//! of the interface that was there by name. A name that comes again goes on with its account. Names
//! are kept up to a bound; the accounts of those beyond it are added up, so the sums stay true.

use std::collections::BTreeMap;

use tapdeck_capture::persist::{MOST_PAST, PastAccount};
use tapdeck_capture::{Capture, Hook};
use tapdeck_packet::account::{Counters, InterfaceCounters};
use tapdeck_store::Totals;

use super::newcomers::Pattern;
use super::source::{InterfaceAccount, Settings, Written, of_capture};

/// How many names are kept of interfaces that are gone.
const MOST_NAMES: usize = MOST_PAST - 1;
/// The name under which the others are added up, which no interface can have.
const OTHERS: &str = "others that are gone";

const NO_SETTINGS: Settings = Settings { paused: false, snaplen: None, filter: None, rules: 0 };

/// The accounts of interfaces that are gone for good.
#[derive(Default)]
pub struct Past {
    later: Option<Pattern>,
    gone: BTreeMap<String, InterfaceAccount>,
    /// What the writer had counted when an id got another interface.
    before: BTreeMap<u32, Written>,
}

impl Past {
    /// Goes on with the accounts that owners before have noted.
    pub fn new(later: Option<Pattern>, accounts: Vec<PastAccount>) -> Self {
        let gone = accounts.into_iter().map(|PastAccount { name, hook, counters: noted }| {
            let mut counters = InterfaceCounters::default();
            counters.values_mut().into_iter().zip(noted).for_each(|(to, value)| *to = value);
            let hook = Hook::named(&hook);
            let account = InterfaceAccount {
                name: name.clone(),
                hook: hook.map_or("gone", |hook| hook.name()),
                outbound: hook.is_some_and(Hook::sees_outbound),
                attached: None,
                counters,
                settings: NO_SETTINGS,
            };
            (name, account)
        });
        Self { later, gone: gone.collect(), before: BTreeMap::new() }
    }

    /// Returns the accounts for the next owner.
    pub fn lasting(&self) -> Vec<PastAccount> {
        let account = |account: &InterfaceAccount| PastAccount {
            name: account.name.clone(),
            hook: account.hook.to_owned(),
            counters: account.counters.values(),
        };
        self.gone.values().map(account).collect()
    }

    /// Returns the account of an interface that has a place.
    pub fn account_of(&self, capture: &Capture, totals: &Totals) -> InterfaceAccount {
        let since = |id: u32| {
            let before = self.before.get(&id).copied().unwrap_or_default();
            written(totals, id).since(before)
        };
        let account = of_capture(capture, capture.interfaces().map(since).sum());
        let is_waited_for = !capture.is_gone() || !self.may_go_for_good(&account.name);
        let attached = account.attached.filter(|_| is_waited_for);
        InterfaceAccount { attached, ..account }
    }

    /// Returns whether an interface may go for good: no one has asked for it by its name.
    pub fn may_go_for_good(&self, name: &str) -> bool {
        self.later.as_ref().is_some_and(|later| later.comes_and_goes(name))
    }

    /// Keeps the account of an interface whose place another one gets.
    pub fn note(&mut self, capture: &Capture, totals: &Totals) {
        let account = self.account_of(capture, totals);
        self.before.extend(capture.interfaces().map(|id| (id, written(totals, id))));
        let is_known = self.gone.contains_key(&account.name);
        let name = if is_known || self.gone.len() < MOST_NAMES {
            account.name.clone()
        } else {
            OTHERS.to_owned()
        };
        match self.gone.get_mut(&name) {
            Some(before) => before.counters.add(&account.counters),
            None => drop(self.gone.insert(
                name.clone(),
                InterfaceAccount { name, attached: None, settings: NO_SETTINGS, ..account },
            )),
        }
    }

    /// Adds the accounts of those that are gone to those of the others, and up those of one name:
    /// an interface may have got the name of one that is gone.
    pub fn with_gone(&self, now: Vec<InterfaceAccount>) -> Vec<InterfaceAccount> {
        let mut accounts: Vec<InterfaceAccount> = Vec::new();
        for mut account in now.into_iter().chain(self.gone.values().cloned()) {
            let Some(before) = accounts.iter_mut().find(|one| one.name == account.name) else {
                accounts.push(account);
                continue;
            };
            if account.attached == Some(true) {
                std::mem::swap(before, &mut account);
            }
            before.counters.add(&account.counters);
        }
        accounts
    }
}

fn written(totals: &Totals, id: u32) -> Written {
    totals.interfaces.get(id as usize).map(Written::of).unwrap_or_default()
}
