//! The rules that are in force, and how the control socket changes them.
//!
//! How can rules change while packets flow, without a packet that is judged by half of a change?
//! Each change makes a whole new set and has it compiled, on a thread of its own, because a hundred
//! thousand rules take a while. When the new set is ready it takes the old one's place at once; a
//! set that cannot be made changes nothing.
//!
//! The module knows neither clients nor the kernel: who asked is a number to it, and what the
//! kernel takes is a type that its user chooses.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::Serialize;
use tapdeck_packet::rules::{Entry, Rule, RuleSet};

use super::{Answer, ClientId, RulesCommand};

/// The rules that are in force, with the form `C` of them that the kernel takes.
pub struct Book<C> {
    rules: Rules<C>,
    compile: Compile<C>,
    /// How many packets each rule that is still there took before the last change.
    before: HashMap<Rule, u64>,
    none_before: u64,
}

/// How many packets rules have taken, by their numbers, and how many no rule took.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub each: Vec<u64>,
    pub none: u64,
}

impl Counted {
    /// Adds what the same rules have taken at another interface.
    pub fn add(&mut self, other: Self) {
        self.none += other.none;
        self.each.resize(self.each.len().max(other.each.len()), 0);
        for (sum, hits) in self.each.iter_mut().zip(other.each) {
            *sum += hits;
        }
    }
}

/// A change that was refused: the rules before it judge on.
#[derive(Debug)]
pub struct Refused {
    pub why: String,
    /// What the rules before it have counted, where their counters have begun again.
    pub last: Counted,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, last: Counted::default() }
    }
}

/// A function that makes the kernel's form of a set. Its error is the text that a client is told.
pub type Compile<C> = Arc<dyn Fn(&RuleSet) -> Result<C, String> + Send + Sync>;

/// Rules as they are at a moment.
#[derive(Clone)]
struct Rules<C> {
    /// The set; `None` where there are no rules and every packet is taken.
    set: Option<Arc<RuleSet>>,
    /// Whether the rules judge. Rules that are switched off are kept.
    enabled: bool,
    compiled: Option<C>,
}

/// Rules that a change has made, and that are not in force yet.
struct Changed<C>(Rules<C>);

impl<C> Changed<C> {
    /// Returns what the kernel is to take; `None` where nothing is to be judged any more.
    fn compiled(&self) -> Option<&C> {
        self.0.compiled.as_ref().filter(|_| self.0.enabled)
    }
}

#[derive(Serialize)]
struct List {
    /// Whether the rules judge.
    enabled: bool,
    rules: Vec<Listed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    none: Option<u64>,
}

#[derive(Serialize)]
struct Listed {
    rule: String,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<u64>,
}

#[derive(Serialize)]
struct InForce {
    enabled: bool,
    rules: usize,
}

impl<C: Clone + Send + 'static> Book<C> {
    /// Begins with the rules that are in force now, and their form for the kernel.
    pub fn new(compile: Compile<C>, now: Option<(RuleSet, C)>) -> Self {
        let (set, compiled) = now.unzip();
        let rules = Rules { set: set.map(Arc::new), enabled: true, compiled };
        Self { rules, compile, before: HashMap::new(), none_before: 0 }
    }

    /// Returns all rules, as an answer.
    pub fn list(&self) -> Answer {
        self.listed(None)
    }

    /// Returns all rules, as an answer, with how many packets each has taken since it is there.
    /// `now` is what the kernel has counted for the set that is in force.
    pub fn hits(&self, now: &Counted) -> Answer {
        self.listed(Some(now))
    }

    fn listed(&self, now: Option<&Counted>) -> Answer {
        let mut met = HashSet::new();
        let mut rules = Vec::new();
        for (number, entry) in self.entries().iter().enumerate() {
            let hits = now.map(|now| {
                // Of equal rules the first takes the packets.
                let is_first = met.insert(&entry.rule);
                let before = self.before.get(&entry.rule).filter(|_| is_first);
                before.copied().unwrap_or(0) + now.each.get(number).copied().unwrap_or(0)
            });
            rules.push(Listed { rule: entry.rule.to_string(), enabled: entry.enabled, hits });
        }
        let none = now.map(|now| self.none_before + now.none);
        Answer::ok(List { enabled: self.judges(), rules, none })
    }

    fn entries(&self) -> &[Entry] {
        self.rules.set.as_ref().map_or(&[][..], |set| set.entries())
    }

    fn judges(&self) -> bool {
        self.rules.enabled && self.rules.set.is_some()
    }

    /// Begins a change. The rules that it makes are not in force until [`Book::accept`].
    fn change(&self, command: RulesCommand) -> Result<Making<C>, String> {
        let (rules, compile) = (self.rules.clone(), self.compile.clone());
        let work = move || rules.changed(command, &compile).map(Changed);
        std::thread::Builder::new()
            .name("tapdeck-rules".into())
            .spawn(work)
            .map_err(|e| format!("cannot change rules now: {e}"))
    }

    /// Whether these are the rules that judge, and they do.
    pub fn has(&self, set: Option<&RuleSet>) -> bool {
        self.rules.enabled && self.rules.set.as_deref() == set
    }

    /// Takes note that rules are in force, and that the set before has counted `last` in the end.
    pub fn put(&mut self, now: Option<(RuleSet, C)>, last: &Counted) {
        let (set, compiled) = now.unzip();
        let rules = Rules { set: set.map(Arc::new), enabled: true, compiled };
        self.accept(Changed(rules), last);
    }

    /// Keeps what the rules have counted before their counters began again.
    pub fn count(&mut self, last: &Counted) {
        let mut before = std::mem::take(&mut self.before);
        for (entry, hits) in self.entries().iter().zip(&last.each) {
            *before.entry(entry.rule.clone()).or_default() += hits;
        }
        self.before = before;
        self.none_before += last.none;
    }

    /// Takes note that a change is in force, and that the set before has counted `last` in the end.
    /// Returns the answer to whoever asked for the change.
    fn accept(&mut self, changed: Changed<C>, last: &Counted) -> Answer {
        self.count(last);
        let mut before = std::mem::take(&mut self.before);
        self.rules = changed.0;
        let kept = self.entries().iter();
        self.before = kept
            .filter_map(|entry| Some((entry.rule.clone(), before.remove(&entry.rule)?)))
            .collect();
        Answer::ok(InForce { enabled: self.judges(), rules: self.entries().len() })
    }
}

/// Changes of rules that were asked for. One is made at a time, so that each begins with the rules
/// that the one before has left.
pub struct Changes<C> {
    running: Option<(Asked, Making<C>)>,
    waiting: VecDeque<(Asked, RulesCommand)>,
}

/// A change as it is being made.
type Making<C> = JoinHandle<Result<Changed<C>, String>>;

/// The client that asked for a change, and the book that it changes.
#[derive(Clone, Copy)]
struct Asked {
    client: ClientId,
    book: usize,
}

impl<C> Default for Changes<C> {
    fn default() -> Self {
        Self { running: None, waiting: VecDeque::new() }
    }
}

impl<C: Clone + Send + 'static> Changes<C> {
    /// Whether all changes that were asked for are made.
    pub fn is_empty(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    pub fn push(&mut self, client: ClientId, book: usize, change: RulesCommand) {
        self.waiting.push_back((Asked { client, book }, change));
    }

    /// Puts a change that is ready in force, by `put`, and begins the next one. `put` gets the
    /// book's number and the rules, and returns what the set before has counted. Returns whom
    /// to answer, and the answer.
    pub fn settle(
        &mut self,
        books: &mut [Book<C>],
        put: impl FnOnce(usize, Option<&C>) -> Result<Counted, Refused>,
    ) -> Option<(ClientId, Answer)> {
        if let Some((_, thread)) = &self.running {
            if !thread.is_finished() {
                return None;
            }
            let (Asked { client, book }, thread) = self.running.take()?;
            let made = thread.join().unwrap_or_else(|_| Err("the rules cannot be read".into()));
            let answer = made.and_then(|changed| match put(book, changed.compiled()) {
                Ok(last) => Ok(books[book].accept(changed, &last)),
                Err(Refused { why, last }) => {
                    books[book].count(&last);
                    Err(why)
                }
            });
            return Some((client, answer.into()));
        }
        let (asked, change) = self.waiting.pop_front()?;
        match books[asked.book].change(change) {
            Ok(thread) => {
                self.running = Some((asked, thread));
                None
            }
            Err(why) => Some((asked.client, Answer::error(&why))),
        }
    }

    /// Ends all changes. Returns the clients whose changes will not be made.
    pub fn end(&mut self) -> Vec<ClientId> {
        let running = self.running.take().map(|(asked, _)| asked.client);
        let waiting = std::mem::take(&mut self.waiting);
        running.into_iter().chain(waiting.into_iter().map(|(asked, _)| asked.client)).collect()
    }
}

impl<C: Clone> Rules<C> {
    fn changed(mut self, command: RulesCommand, compile: &Compile<C>) -> Result<Self, String> {
        let mut set = self.set.as_deref().cloned().unwrap_or_default();
        match command {
            RulesCommand::Add { rules, .. } => {
                for entry in parse(&rules)?.entries() {
                    set.push(entry.clone());
                }
            }
            RulesCommand::Replace { rules, .. } => set = parse(&rules)?,
            RulesCommand::Remove { rules, .. } => {
                let go = positions(&set, &rules)?;
                let mut kept = RuleSet::default();
                for (_, entry) in (0..).zip(set.entries()).filter(|(n, _)| !go.contains(n)) {
                    kept.push(entry.clone());
                }
                set = kept;
            }
            RulesCommand::Enable { rules: Some(rules), .. } => {
                switch(&mut set, &rules, true)?;
            }
            RulesCommand::Disable { rules: Some(rules), .. } => {
                switch(&mut set, &rules, false)?;
            }
            RulesCommand::Enable { rules: None, .. } => {
                self.enabled = true;
                return Ok(self);
            }
            RulesCommand::Disable { rules: None, .. } => {
                self.enabled = false;
                return Ok(self);
            }
            RulesCommand::Reset { .. } => {
                return Ok(Self { set: None, enabled: true, compiled: None });
            }
            RulesCommand::List { .. } | RulesCommand::Hits { .. } => return Ok(self),
        }
        let compiled = Some(compile(&set)?);
        Ok(Self { set: Some(Arc::new(set)), enabled: self.enabled, compiled })
    }
}

fn parse(text: &str) -> Result<RuleSet, String> {
    let set = RuleSet::parse(text).map_err(|e| format!("bad rules: {e}"))?;
    if set.entries().is_empty() {
        return Err("there is no rule in it; a rule is as: accept src 10.0.0.0/8 dst any sport any dport 53 proto udp".into());
    }
    Ok(set)
}

/// Returns the places of the rules in `text`: all places of a rule that the set has more than once.
fn positions(set: &RuleSet, text: &str) -> Result<BTreeSet<usize>, String> {
    let mut places: HashMap<&Rule, Vec<usize>> = HashMap::new();
    for (n, entry) in set.entries().iter().enumerate() {
        places.entry(&entry.rule).or_default().push(n);
    }
    let asked = parse(text)?;
    let missing = || asked.entries().iter().filter(|e| !places.contains_key(&e.rule));
    if let Some(first) = missing().next() {
        let more = match missing().count() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        return Err(format!(
            "there is no rule {}{more}, so nothing was changed; rules list has them all",
            first.rule
        ));
    }
    Ok(asked.entries().iter().filter_map(|e| places.get(&e.rule)).flatten().copied().collect())
}

fn switch(set: &mut RuleSet, text: &str, enabled: bool) -> Result<(), String> {
    for n in positions(set, text)? {
        set.set_enabled(n, enabled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tapdeck_packet::rules::RuleSet;

    use super::{Book, Counted};
    use crate::control::{Answer, RulesCommand};

    /// Returns a book whose form for the kernel is the number of enabled rules; 3 are too many.
    fn book() -> Book<usize> {
        let compile = |set: &RuleSet| match set.entries().iter().filter(|e| e.enabled).count() {
            3 => Err("too many".to_owned()),
            n => Ok(n),
        };
        Book::new(Arc::new(compile), None)
    }

    fn json_of(answer: &Answer) -> Value {
        serde_json::from_slice(&answer.line).unwrap()
    }

    fn change(book: &mut Book<usize>, what: Value) -> Result<(Option<usize>, Value), String> {
        let command: RulesCommand = serde_json::from_value(what).unwrap();
        let changed = book.change(command).unwrap().join().unwrap()?;
        let compiled = changed.compiled().copied();
        let last = Counted { each: vec![10; book.entries().len()], none: 1 };
        Ok((compiled, json_of(&book.accept(changed, &last))))
    }

    const DNS: &str = "accept src any dst any sport any dport 53 proto udp";
    const NET: &str = "drop src 10.0.0.0/8 dst any sport any dport any proto any";

    #[test]
    fn rules_are_added_removed_replaced_and_switched() {
        let mut book = book();
        assert_eq!(json_of(&book.list()), json!({"ok": true, "enabled": false, "rules": []}));
        let both = format!("# two\n{DNS}\n{NET}\n");
        let (compiled, answer) = change(&mut book, json!({"do": "add", "rules": both})).unwrap();
        assert_eq!(compiled, Some(2));
        assert_eq!(answer, json!({"ok": true, "enabled": true, "rules": 2}));
        assert_eq!(
            json_of(&book.hits(&Counted { each: vec![7, 8], none: 9 })),
            json!({"ok": true, "enabled": true, "none": 10, "rules": [
                {"rule": DNS, "enabled": true, "hits": 7},
                {"rule": NET, "enabled": true, "hits": 8},
            ]})
        );
        let (compiled, _) = change(&mut book, json!({"do": "disable", "rules": NET})).unwrap();
        assert_eq!(compiled, Some(1));
        assert_eq!(json_of(&book.list())["rules"][1]["enabled"], false);
        let (compiled, _) = change(&mut book, json!({"do": "enable", "rules": NET})).unwrap();
        assert_eq!(compiled, Some(2));
        let (compiled, answer) = change(&mut book, json!({"do": "disable"})).unwrap();
        assert_eq!((compiled, &answer["enabled"]), (None, &json!(false)));
        let (compiled, _) = change(&mut book, json!({"do": "enable"})).unwrap();
        assert_eq!(compiled, Some(2), "they were kept");
        let (compiled, answer) = change(&mut book, json!({"do": "remove", "rules": DNS})).unwrap();
        assert_eq!((compiled, &answer["rules"]), (Some(1), &json!(1)));
        // The rule took ten packets before each of five changes, and three since.
        let hits = json_of(&book.hits(&Counted { each: vec![3], none: 4 }));
        assert_eq!((&hits["rules"][0]["hits"], &hits["none"]), (&json!(53), &json!(10)));
        let (compiled, _) = change(&mut book, json!({"do": "replace", "rules": DNS})).unwrap();
        assert_eq!(compiled, Some(1));
        assert_eq!(json_of(&book.list())["rules"][0]["rule"], DNS);
        let (compiled, answer) = change(&mut book, json!({"do": "reset"})).unwrap();
        assert_eq!((compiled, &answer["rules"]), (None, &json!(0)));
    }

    #[test]
    fn what_cannot_be_changes_nothing() {
        let mut book = book();
        change(&mut book, json!({"do": "add", "rules": format!("{DNS}\n{NET}")})).unwrap();
        let before = json_of(&book.list());
        for (what, why) in [
            (json!({"do": "add", "rules": "accept everything"}), "bad rules: line 1"),
            (json!({"do": "add", "rules": "# nothing"}), "no rule in it"),
            (json!({"do": "add", "rules": DNS}), "too many"),
            (json!({"do": "remove", "rules": DNS.replace("53", "54")}), "there is no rule accept"),
            (
                json!({"do": "disable", "rules": format!("{NET}\n{}", DNS.replace("53", "54"))}),
                "nothing was changed",
            ),
        ] {
            let refusal = change(&mut book, what.clone()).unwrap_err();
            assert!(refusal.contains(why), "{what}: {refusal}");
        }
        assert_eq!(json_of(&book.list()), before);
    }
}
