//! The configuration, read again while members read: what of it changes at once, and what takes a
//! restart?
//!
//! It is read, and rules are compiled, on a thread beside; filters are exchanged one after the
//! other, as those that clients ask for. All is checked before anything changes. Then filters,
//! rules, snaplens and who may attach are those of the configuration; where the kernel refuses one
//! of them, those before it are taken back. Of everything else it is told that it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Result;
use tapdeck_capture::groups::Groups;
use tapdeck_packet::rules::image::Options;

use super::allow::Allowed;
use super::config::{GroupAgain, parse};
use super::daemon::explain;
use super::filters::{FilterChanges, Wanted};
use crate::config::text;
use crate::control::{Bell, ClientId};

/// The keys of a group that change while members read.
const AT_ONCE: [&str; 4] = ["filter", "rules", "snaplen", "allow"];

/// All keys of a file, by `TABLE.KEY`, with their values.
pub type Keys = BTreeMap<String, toml::Value>;

/// What a configuration says now.
#[derive(Debug)]
pub struct Again {
    pub keys: Keys,
    pub groups: Vec<GroupAgain>,
}

impl Again {
    /// Reads a file as it is now.
    pub fn read(path: &Path, rules_options: &Options) -> Result<Self> {
        let text = text::read(path)?;
        let file = parse(path, &text)?;
        let groups = file.again(path, rules_options)?;
        Ok(Self { keys: all_keys(&text), groups })
    }
}

/// Returns all keys of the text of a file, those of groups by the groups' names.
pub fn all_keys(text: &str) -> Keys {
    let Ok(file) = toml::from_str::<toml::Table>(text) else { return Keys::new() };
    let mut keys = Keys::new();
    for (table, value) in file {
        let tables = match value {
            toml::Value::Array(groups) => groups,
            other => vec![other],
        };
        for mut one in tables {
            let Some(one) = one.as_table_mut() else { continue };
            let name = one.get("name").and_then(toml::Value::as_str);
            let name = name.map_or_else(|| table.clone(), |name| format!("group {name}"));
            let all = std::mem::take(one).into_iter();
            keys.extend(all.map(|(key, value)| (format!("{name}: {key}"), value)));
        }
    }
    keys
}

/// Where a change has got to.
enum Stage {
    Reading(JoinHandle<Result<Again>>),
    /// Filters are exchanged; so many are still to be.
    Filters {
        again: Again,
        left: usize,
    },
    /// Filters are taken back, since something was refused.
    Back {
        why: String,
        left: usize,
    },
}

/// What a change is to put in force when the filters are.
pub struct Rest {
    pub groups: Vec<GroupAgain>,
    pub changed: BTreeSet<String>,
    pub restart: Vec<String>,
}

/// What the daemon is to do next.
pub enum Next {
    Nothing,
    /// The configuration begins to be read again.
    Begun,
    Finish(Box<Rest>),
    Refuse(String),
}

/// Reads the configuration again, whenever somebody asks.
pub struct Reload {
    config: PathBuf,
    rules_options: Options,
    began_with: Keys,
    bell: Bell,
    asked: Option<Vec<ClientId>>,
    /// Clients that wait for the change that is made.
    clients: Vec<ClientId>,
    stage: Option<Stage>,
    /// The filters that groups had before, and those of them that were exchanged.
    before: BTreeMap<String, Option<String>>,
    done: Vec<String>,
}

impl Reload {
    /// `began_with` is what the configuration said at the start. `bell` is rung when something was
    /// read.
    pub fn new(config: PathBuf, rules_options: Options, began_with: Keys, bell: Bell) -> Self {
        Self {
            config,
            rules_options,
            began_with,
            bell,
            asked: None,
            clients: Vec::new(),
            stage: None,
            before: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// Asks for it, also for a client that waits for the answer.
    pub fn ask(&mut self, client: Option<ClientId>) {
        self.asked.get_or_insert_default().extend(client);
    }

    /// Goes on, and returns what the daemon is to do.
    pub fn go_on(&mut self, groups: &Groups, filters: &mut FilterChanges) -> Next {
        match self.stage.take() {
            None => {
                let Some(clients) = self.asked.take() else { return Next::Nothing };
                self.clients = clients;
                let (path, options) = (self.config.clone(), self.rules_options.clone());
                let bell = self.bell.clone();
                let read = move || {
                    let again = Again::read(&path, &options);
                    bell.ring();
                    again
                };
                match std::thread::Builder::new().name("tapdeck-reload".into()).spawn(read) {
                    Ok(thread) => self.stage = Some(Stage::Reading(thread)),
                    Err(e) => return Next::Refuse(format!("cannot start a thread: {e}")),
                }
                Next::Begun
            }
            Some(Stage::Reading(thread)) if !thread.is_finished() => {
                self.stage = Some(Stage::Reading(thread));
                Next::Nothing
            }
            Some(Stage::Reading(thread)) => {
                let read = thread.join();
                let read = read
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("the configuration cannot be read")));
                let checked = read.map_err(|e| format!("{e:#}")).and_then(|mut again| {
                    // A group that is new comes with a restart.
                    let is_there = |name: &str| groups.configs().any(|group| group.name == name);
                    again.groups.retain(|group| is_there(&group.name));
                    check(&again.groups, groups).map(|()| again)
                });
                match checked {
                    Ok(again) => self.begin_filters(again, groups, filters),
                    Err(why) => Next::Refuse(why),
                }
            }
            Some(Stage::Filters { again, left: 0 }) => Next::Finish(Box::new(self.rest(again))),
            Some(Stage::Back { why, left: 0 }) => Next::Refuse(why),
            stage => {
                self.stage = stage;
                Next::Nothing
            }
        }
    }

    fn begin_filters(
        &mut self,
        again: Again,
        groups: &Groups,
        filters: &mut FilterChanges,
    ) -> Next {
        self.done.clear();
        self.before = groups.configs().map(|g| (g.name.clone(), g.filter.clone())).collect();
        let mut left = 0;
        for now in &again.groups {
            if self.before.get(&now.name) != Some(&now.filter) {
                let (group, filter) = (now.name.clone(), now.filter.clone());
                filters.push(Wanted { client: None, group, filter });
                left += 1;
            }
        }
        self.stage = Some(Stage::Filters { again, left });
        Next::Nothing
    }

    /// Takes note of what became of a filter that this has asked for.
    pub fn settled(&mut self, group: &str, done: Result<(), String>, filters: &mut FilterChanges) {
        match &mut self.stage {
            Some(Stage::Filters { left, .. }) => match done {
                Ok(()) => {
                    *left -= 1;
                    self.done.push(group.to_owned());
                }
                Err(why) => {
                    filters.forget_reload();
                    self.take_back(why, filters);
                }
            },
            Some(Stage::Back { left, .. }) => *left -= 1,
            Some(Stage::Reading(_)) | None => {}
        }
    }

    /// Has the filters be as they were before the change.
    pub fn take_back(&mut self, why: String, filters: &mut FilterChanges) {
        let done = std::mem::take(&mut self.done);
        let left = done.len();
        for group in done {
            let filter = self.before.get(&group).cloned().flatten();
            filters.push(Wanted { client: None, group, filter });
        }
        self.stage = Some(Stage::Back { why, left });
    }

    fn rest(&self, again: Again) -> Rest {
        let changed = self.done.iter().map(|group| format!("group {group}: filter")).collect();
        let restart = later(&self.began_with, &again.keys);
        Rest { groups: again.groups, changed, restart }
    }

    /// Returns the clients that wait, who are told then.
    pub fn take_clients(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.clients)
    }

    /// Returns all clients that will get no answer from here any more.
    pub fn end(&mut self) -> Vec<ClientId> {
        let clients = self.take_clients().into_iter();
        clients.chain(self.asked.take().unwrap_or_default()).collect()
    }
}

/// Refuses what cannot be, before anything changes.
fn check(wanted: &[GroupAgain], groups: &Groups) -> Result<(), String> {
    for group in wanted {
        let Some(now) = groups.configs().find(|now| now.name == group.name) else { continue };
        if now.filter != group.filter {
            let change = groups.begin_filter(&group.name, group.filter.as_deref());
            change.and_then(|change| change.check()).map_err(explain)?;
        }
        groups.check_snaplen(&group.name, group.snaplen).map_err(explain)?;
    }
    Ok(())
}

/// Returns the keys that a restart is needed for.
fn later(before: &Keys, now: &Keys) -> Vec<String> {
    let all: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differs = |name: &&String| before.get(*name) != now.get(*name);
    let names = |keys: &Keys| -> BTreeSet<String> {
        keys.keys().filter_map(|key| Some(key.split_once(": ")?.0.to_owned())).collect()
    };
    let (old, new) = (names(before), names(now));
    let mut later: Vec<String> = old.symmetric_difference(&new).cloned().collect();
    let is_later = |name: &&String| {
        let (group, key) = name.split_once(": ").unwrap_or(("", name));
        let is_both = old.contains(group) && new.contains(group);
        is_both && !(group.starts_with("group ") && AT_ONCE.contains(&key))
    };
    later.extend(all.into_iter().filter(differs).filter(is_later).cloned());
    later
}

/// Puts the users in force that may attach. Returns for which groups they have changed.
pub fn put_allowed(
    allowed: &mut [Arc<Allowed>],
    groups: &Groups,
    wanted: &[GroupAgain],
) -> Vec<String> {
    let mut changed = Vec::new();
    for (at, now) in groups.configs().enumerate() {
        let Some(group) = wanted.iter().find(|group| group.name == now.name) else { continue };
        if allowed[at] != group.allowed {
            allowed[at] = group.allowed.clone();
            changed.push(format!("group {}: allow", now.name));
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::{all_keys, later};

    #[test]
    fn what_takes_a_restart_is_told_by_group_and_key() {
        let before = all_keys(
            "[serve]\nsocket-mode = \"0600\"\n\
             [[group]]\nname = \"ids\"\ninterfaces = [\"eth0\"]\nfilter = \"tcp\"\n\
             [[group]]\nname = \"old\"\ninterfaces = [\"eth0\"]\n",
        );
        let now = all_keys(
            "[serve]\nsocket-mode = \"0660\"\n\
             [[group]]\nname = \"ids\"\ninterfaces = [\"eth1\"]\nfilter = \"udp\"\nsteering = \"src\"\n\
             [[group]]\nname = \"new\"\ninterfaces = [\"eth0\"]\n",
        );
        assert_eq!(
            later(&before, &now),
            [
                "group new",
                "group old",
                "group ids: interfaces",
                "group ids: steering",
                "serve: socket-mode"
            ]
        );
        assert!(later(&now, &now).is_empty());
    }
}
