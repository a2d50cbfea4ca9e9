//! The configuration, read again while packets come: what of it changes at once, and what takes a
//! restart?
//!
//! Files are read, and rules compiled, on a thread beside. All is checked before anything changes;
//! then filter, rules, snaplen, cutoff and retention are those of the configuration, or, where the
//! kernel refuses one of them, all are as they were. Of every other flag it is told that it stays.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::thread::JoinHandle;

use clap::Parser;
use serde_json::Value;
use tapdeck_packet::rules::image::Options;

use super::commands::{Books, Recorder};
use super::resolve::{Changeable, RecordPlan, Target};
use crate::alarm::Bell;
use crate::config::again;
use crate::config::file::{Settings, Words, one_line};
use crate::control::ClientId;
use crate::flags::{Cli, Command};
use crate::units::show_bytes;

/// The flags that change while packets come. Whether they have is seen by what is in force.
const AT_ONCE: [&str; 8] = [
    "filter",
    "rules",
    "snaplen",
    "cutoff",
    "keep-bytes",
    "keep-time",
    "keep-segments",
    "min-free",
];

/// What a configuration says now.
pub struct Wanted {
    settings: Settings,
    changeable: Changeable,
}

type Reading = JoinHandle<Result<Wanted, String>>;

/// Reads the configuration again, whenever somebody asks.
pub struct Reload {
    /// The command line that this process was started by.
    line: Vec<OsString>,
    rules_options: Options,
    /// What the configuration said at the start, of flags that do not change at once.
    began_with: Settings,
    /// The snaplen that rings were made for.
    most_snaplen: u32,
    bell: Bell,
    /// Clients that wait for the next answer.
    asked: Vec<ClientId>,
    is_asked: bool,
    /// The clients that wait for what is being read.
    reading: Option<(Vec<ClientId>, Reading)>,
}

impl Reload {
    /// Takes what the command line of this process and its file say. `bell` is rung when the
    /// configuration was read.
    pub fn new(words: &Words, plan: &RecordPlan, bell: Bell) -> Self {
        Self {
            line: std::env::args_os().collect(),
            rules_options: plan.rules_options.clone(),
            began_with: words.settings(),
            most_snaplen: plan.most_snaplen(),
            bell,
            asked: Vec::new(),
            is_asked: false,
            reading: None,
        }
    }

    /// Asks for it, also for clients that wait for the answer.
    pub fn ask(&mut self, clients: Vec<ClientId>) {
        self.asked.extend(clients);
        self.is_asked = true;
    }

    /// Whether it is under way.
    pub fn is_under_way(&self) -> bool {
        self.is_asked || self.reading.is_some()
    }

    /// Begins to read if somebody asked. Returns whether it began.
    pub fn begin(&mut self) -> bool {
        if !self.is_asked || self.reading.is_some() {
            return false;
        }
        self.is_asked = false;
        let clients = std::mem::take(&mut self.asked);
        let (line, options, bell) =
            (self.line.clone(), self.rules_options.clone(), self.bell.clone());
        let read = move || {
            let wanted = read(line, &options);
            bell.ring();
            wanted
        };
        let thread = std::thread::Builder::new().name("tapdeck-reload".into()).spawn(read);
        let thread = thread.unwrap_or_else(|e| {
            let why = format!("cannot start a thread: {e}");
            // A thread that is not there has nothing to do but to say so.
            std::thread::spawn(move || Err(why))
        });
        self.reading = Some((clients, thread));
        true
    }

    /// Takes what was read, if it was, and who waits for it.
    pub fn take(&mut self) -> Option<(Vec<ClientId>, Result<Wanted, String>)> {
        let (clients, thread) = self.reading.take_if(|(_, thread)| thread.is_finished())?;
        let read = thread.join();
        Some((clients, read.unwrap_or_else(|_| Err("the configuration cannot be read".into()))))
    }

    /// Puts in force what is wanted. Returns what whoever asked is answered, or why nothing has
    /// changed, and what the user is told.
    pub fn put(
        &self,
        read: Result<Wanted, String>,
        recorder: &mut Recorder<'_>,
        books: &mut Books,
    ) -> (Result<Value, String>, String) {
        let put = read.and_then(|wanted| {
            let mut later = later(&self.began_with, &wanted.settings);
            if wanted.changeable.snaplen > self.most_snaplen {
                later.push("snaplen".into());
            }
            Ok((recorder.put(wanted.changeable, books)?, later))
        });
        match put {
            Ok((changed, later)) => {
                (Ok(again::answer(&changed, &later)), again::said(&changed, &later))
            }
            Err(why) => {
                let said = again::refused(&why);
                (Err(why), said)
            }
        }
    }

    /// Returns the clients that will get no answer from here any more.
    pub fn end(&mut self) -> Vec<ClientId> {
        let reading = self.reading.take().map(|(clients, _)| clients).unwrap_or_default();
        reading.into_iter().chain(std::mem::take(&mut self.asked)).collect()
    }
}

fn read(line: Vec<OsString>, rules_options: &Options) -> Result<Wanted, String> {
    let words = Words::read(line).map_err(|e| format!("{e:#}"))?;
    let explain = |why: String| words.file.as_ref().map_or(why.clone(), |file| file.explain(&why));
    let cli = Cli::try_parse_from(&words.all).map_err(|e| explain(one_line(&e)))?;
    let Command::Record(flags) = cli.command else { return Err("no recorder's line".into()) };
    let changeable = Changeable::new(&flags, rules_options);
    let changeable = changeable.map_err(|e| explain(format!("{e:#}")))?;
    Ok(Wanted { settings: words.settings(), changeable })
}

/// Returns the flags that a restart is needed for.
fn later(before: &Settings, now: &Settings) -> Vec<String> {
    let all: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differs = |name: &&String| before.get(*name) != now.get(*name);
    let is_later = |name: &&String| !AT_ONCE.contains(&name.as_str());
    all.into_iter().filter(is_later).filter(differs).cloned().collect()
}

/// What was in force before a change.
struct Before {
    filter: Option<String>,
    snaplen: u32,
    cutoff: Option<NonZeroU32>,
}

impl Recorder<'_> {
    /// Changes all that a configuration wants and that is not so yet; or, where something is
    /// refused, nothing. Returns the flags that were changed.
    fn put(&mut self, wanted: Changeable, books: &mut Books) -> Result<Vec<&'static str>, String> {
        let retention = self.check(&wanted)?;
        let Changeable { filter, snaplen, cutoff, rules, .. } = wanted;
        let mut changed = Vec::new();
        let captures = self.source.captures();
        if let Some(first) = captures.first() {
            let before = Before {
                filter: first.config().filter.clone(),
                snaplen: first.snaplen(),
                cutoff: first.config().cutoff,
            };
            let most = captures.iter().map(|c| c.config().snaplen).min().unwrap_or(snaplen);
            if before.filter != filter {
                self.set_filter(None, filter.as_deref())?;
                changed.push("filter");
            }
            if before.snaplen != snaplen.min(most) {
                if let Err(why) = self.set_snaplen(None, snaplen.min(most)) {
                    self.undo(&changed, &before);
                    return Err(why);
                }
                changed.push("snaplen");
            }
            if before.cutoff != cutoff {
                if let Err(why) = self.set_cutoff(cutoff) {
                    self.undo(&changed, &before);
                    return Err(why);
                }
                changed.push("cutoff");
            }
            let (set, compiled) = rules.unzip();
            let [book] = books;
            if !book.has(set.as_ref()) {
                match self.set_rules(compiled.as_ref()) {
                    Ok(last) => book.put(set.zip(compiled), &last),
                    Err(refused) => {
                        book.count(&refused.last);
                        self.undo(&changed, &before);
                        return Err(refused.why);
                    }
                }
                changed.push("rules");
            }
        }
        if let Some(retention) = retention {
            let keys = self.report.set_retention(retention);
            if !keys.is_empty() {
                self.writer_control.retain(retention);
                changed.extend(keys);
            }
        }
        Ok(changed)
    }

    fn undo(&mut self, changed: &[&str], before: &Before) {
        // An interface takes again what it had a moment ago.
        for change in changed {
            match *change {
                "filter" => drop(self.set_filter(None, before.filter.as_deref())),
                "snaplen" => drop(self.set_snaplen(None, before.snaplen)),
                "cutoff" => drop(self.set_cutoff(before.cutoff)),
                _ => {}
            }
        }
    }

    /// Refuses what cannot be before anything changes. Returns the retention of a store.
    fn check(&self, wanted: &Changeable) -> Result<Option<tapdeck_store::Retention>, String> {
        let Target::Store { segment_bytes, index, .. } = self.report.target() else {
            return Ok(None);
        };
        let least = 3 * segment_bytes + index.map_or(0, |_| segment_bytes / 4);
        match wanted.retention.bytes {
            Some(keep) if keep < least => Err(format!(
                "--keep-bytes {}: at least {} where segments are of {}; a restart makes smaller ones",
                show_bytes(keep),
                show_bytes(least),
                show_bytes(*segment_bytes)
            )),
            _ => Ok(Some(wanted.retention)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{AT_ONCE, Settings, later};
    use crate::config::file::Words;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        pairs.iter().map(|(name, value)| ((*name).into(), vec![(*value).into()])).collect()
    }

    #[test]
    fn what_takes_a_restart_is_told_whatever_flag_it_is() {
        let before = settings(&[("dir", "/a"), ("hook", "tcx"), ("filter", "tcp")]);
        let now = settings(&[("dir", "/a"), ("hook", "xdp"), ("filter", "udp"), ("flush", "2s")]);
        assert_eq!(later(&before, &now), ["flush", "hook"]);
        assert!(later(&before, &before).is_empty());
        assert_eq!(later(&BTreeMap::new(), &settings(&[("snaplen", "9")])), [""; 0]);
    }

    #[test]
    fn what_changes_at_once_is_a_flag() {
        let line = AT_ONCE.map(|name| format!("--{name}=1"));
        let line = ["tapdeck", "record"].map(String::from).into_iter().chain(line);
        let words = Words::read(line.map(Into::into).collect()).unwrap();
        let mut names = AT_ONCE.map(String::from);
        names.sort();
        assert_eq!(words.settings().into_keys().collect::<Vec<_>>(), names);
    }
}
