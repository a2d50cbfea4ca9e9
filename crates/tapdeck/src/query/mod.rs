//! `tapdeck query`: packets of a store, or of capture files of other recorders, in time order.
//!
//! How packets are found and read is `tapdeck_store::query`'s. This module says what is asked
//! (filter, span, limit), puts the answer where the user wants it, and tells where the answer is
//! incomplete. Packets that the recording does not have (dropped, unseen) are told; packets that
//! it had and the answer has not (damage, missing segments) also make the exit code 1.

pub mod choice;
mod explain;
mod follow;
mod output;
mod remote;
mod several;
pub mod time;

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use tapdeck_packet::link::LinkType;
use tapdeck_store::Shed;
use tapdeck_store::query::{
    Described, Error, Missing, Progress, Search, Snapshot, Span, index_captures, user_cache,
};

use crate::flags;
use crate::interrupt::Interrupt;
use crate::listen::{Reader, Readers};
use crate::place;
use crate::progress_line::{ProgressLine, Work, pace, say};
use crate::units::{counted, show_bytes};
use crate::usage::{self, usage};
use explain::Explanation;
pub use output::Output;
use several::Several;

pub fn run(flags: &flags::Query) -> Result<()> {
    let span = time::span(flags.after, flags.before)?;
    let began = Instant::now();
    let interrupt = Interrupt::listen()?;
    refuse_elsewhere(flags)?;
    if !flags.remote.is_empty() {
        return remote::run(flags, &interrupt);
    }
    yield_to_recorder();
    if flags.index {
        flags.dir.iter().try_for_each(|dir| make_indexes(dir, &interrupt))?;
    }
    let Some(address) = flags.listen else {
        return once(flags, span, began, &interrupt, None);
    };
    let readers = Readers::listen(address)?;
    let mut is_whole = true;
    while let Some(reader) = readers.next(&interrupt)? {
        match once(flags, span, Instant::now(), &interrupt, Some(&reader)) {
            Err(e) if usage::exit_code(&e) == 2 => return Err(e),
            Err(e) if !is_of_reader(&e) => {
                is_whole = false;
                say(&format!("{}: {e:#}", reader.name));
            }
            _ => say(&format!("{}: done", reader.name)),
        }
        if interrupt.ever_asked() {
            break;
        }
    }
    anyhow::ensure!(is_whole, "not every answer was whole, as said above");
    Ok(())
}

/// Refuses what cannot be done where a store lies, or makes no sense there.
fn refuse_elsewhere(flags: &flags::Query) -> Result<()> {
    let elsewhere = flags.dir.iter().find(|dir| place::is_elsewhere(dir));
    let Some(store) = elsewhere else {
        return match flags.shown.given() {
            Some(flag) if flags.remote.is_empty() => {
                usage(format!("{flag} is for --remote, and for a --dir that is a URL"))
            }
            _ => Ok(()),
        };
    };
    for (flag, is_there) in [("--follow", flags.follow), ("--index", flags.index)] {
        if is_there {
            return usage(format!(
                "{flag} is for files of this machine, and not for {}",
                store.display()
            ));
        }
    }
    Ok(())
}

/// Returns whether an error says that the reader has gone.
fn is_of_reader(error: &anyhow::Error) -> bool {
    let io: Option<&std::io::Error> = error.downcast_ref();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Gives the answer once, to a reader if there is one.
fn once(
    flags: &flags::Query,
    span: Span,
    began: Instant,
    interrupt: &Interrupt,
    reader: Option<&Reader>,
) -> Result<()> {
    if flags.follow {
        return follow::run(flags, span, interrupt, reader);
    }
    match attempt(flags, span, began, interrupt, reader, false) {
        Err(e) if matches!(e.downcast_ref(), Some(Error::LateInterface(_))) => {
            attempt(flags, span, began, interrupt, reader, true)
        }
        done => done,
    }
}

/// Gives the whole answer, or `None` where files of other programs have interfaces that are not
/// described at their beginnings. With `whole`, such interfaces are looked for first.
fn attempt(
    flags: &flags::Query,
    span: Span,
    began: Instant,
    interrupt: &Interrupt,
    reader: Option<&Reader>,
    whole: bool,
) -> Result<()> {
    let cache = user_cache();
    let ignores_indexes = flags.no_trust_index;
    let search = Search { whole, cache: cache.as_deref(), ignores_indexes };
    let query = Several::open(flags, span, search, interrupt)?;
    let filter = query.choice().filter();
    let explanation = flags.explain.then(|| Explanation::new(flags, filter, began));
    let line = ProgressLine::new();
    let answer = Answer { query, interrupt, line, began: Instant::now(), faults: 0 };
    match explanation {
        Some(explanation) => answer.explain(flags, explanation),
        None if flags.count => answer.count(flags),
        None => answer.packets(flags, reader),
    }
}

/// Refuses packets of several link types where only one can be told.
fn refuse_several_links(flags: &flags::Query, interfaces: &[Described]) -> Result<()> {
    let wanted = choice::wanted(flags);
    let taken = interfaces.iter().filter(|interface| wanted.takes(interface));
    let mut links: Vec<LinkType> = taken.map(|interface| interface.link).collect();
    links.sort_unstable();
    links.dedup();
    if flags.listen.is_some() && links.len() > 1 {
        let links: Vec<String> = links.iter().map(LinkType::to_string).collect();
        let links = links.join(", ");
        return usage(format!(
            "--listen: a pcap file has one link type, and here are {links}: choose interfaces with -i"
        ));
    }
    Ok(())
}

/// Leaves out of a snapshot what has none of the interfaces that are asked for.
fn leave_out(flags: &flags::Query, snapshot: &mut Snapshot) {
    if !flags.interfaces.is_empty() {
        let wanted = choice::wanted(flags);
        snapshot.want_interfaces(|interface| wanted.takes(interface));
    }
}

/// Tells which of the interfaces that are asked for are not there, where others are.
fn tell_absent(flags: &flags::Query, interfaces: &[Described]) {
    for pattern in choice::wanted(flags).absent(interfaces) {
        let mut there: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
        there.dedup();
        say(&format!("no interface is named {pattern} here; there are {}", there.join(", ")));
    }
}

/// Makes indexes of files of other programs that have none.
fn make_indexes(path: &Path, interrupt: &Interrupt) -> Result<()> {
    match Snapshot::open(path, Span::ALL) {
        Err(Error::NotAStore(_) | Error::NotADirectory(_)) => {}
        Err(e) => return Err(e.into()),
        Ok(_) => {
            let path = path.display();
            let text = format!(
                "--index is for files of other programs, and {path} is a store: `tapdeck recover` makes what indexes it lacks"
            );
            return usage(text);
        }
    }
    let mut line = Work::new(None);
    let notes = index_captures(path, user_cache().as_deref(), |bytes| {
        line.show(bytes, || "indexing".to_owned());
        !interrupt.asked()
    })?;
    drop(line);
    for note in notes {
        say(&note.to_string());
    }
    Ok(())
}

/// Refuses to write the answer over a file that is read for it.
fn refuse_to_overwrite(write: Option<&Path>, snapshot: &Snapshot) -> Result<()> {
    let Some(path) = write else { return Ok(()) };
    if path.metadata().is_ok_and(|file| snapshot.has_file(&file)) {
        let path = path.display();
        return usage(format!("-w {path} is one of the files that are asked: take another name"));
    }
    Ok(())
}

/// Lets recorders go first, at the processor and at the disk.
pub fn yield_to_recorder() {
    // Where this is refused, the query works as well and is only less polite.
    let _ = rustix::process::nice(19);
    let _ = tapdeck_store::io::yield_disk();
}

/// Returns the comment of an answer's section header.
fn comment(flags: &flags::Query) -> String {
    let dirs = flags.dir.iter().map(|dir| dir.display().to_string());
    let places: Vec<String> = dirs.chain(flags.remote.iter().cloned()).collect();
    let store = places.join(" and ");
    let expression = flags.expression.join(" ");
    let mut words = vec![format!("from {store}")];
    words.extend((!expression.is_empty()).then(|| format!("filter {expression}")));
    words.extend(
        (!flags.interfaces.is_empty())
            .then(|| format!("interfaces {}", flags.interfaces.join(" "))),
    );
    words.extend(flags.direction.map(|direction| format!("direction {direction}")));
    words.extend(flags.community_id.map(|id| format!("community id {id}")));
    words.extend(flags.inner.then(|| "also inside tunnels".to_owned()));
    words.extend(flags.after.map(|ns| format!("after {}", time::show(ns))));
    words.extend(flags.before.map(|ns| format!("before {}", time::show(ns))));
    words.extend(flags.limit.map(|n| format!("limit {n}")));
    words.join(", ")
}

struct Answer<'a> {
    query: Several,
    interrupt: &'a Interrupt,
    line: ProgressLine,
    began: Instant,
    /// Notes that mean that packets are missing or out of order.
    faults: usize,
}

/// What was given to the user, and how it ended.
struct Given {
    packets: u64,
    /// Packets that were dropped in front of those that were given, as these tell.
    dropped: u64,
    /// What was shed of those that were given.
    shed: Shed,
    limited: bool,
    /// The time of the last packet.
    last_ns: i64,
}

impl Given {
    fn nothing() -> Self {
        let shed = Shed::default();
        Self { packets: 0, dropped: 0, shed, limited: false, last_ns: i64::MIN }
    }

    /// Returns up to when the answer goes: where a limit ended it, up to its last packet.
    fn until_ns(&self) -> i64 {
        if self.limited { self.last_ns } else { i64::MAX }
    }
}

/// Tells of payload that was shed, if any was.
fn say_shed(shed: Shed) {
    if shed.packets > 0 {
        say(&format!(
            "{} of this answer cut short when a ring was nearly full: {} of them are not in the recording",
            counted(shed.packets, "packet"),
            show_bytes(shed.bytes)
        ));
    }
}

impl Answer<'_> {
    fn count(mut self, flags: &flags::Query) -> Result<()> {
        let Self { query, interrupt, line, began, .. } = &mut self;
        let limit = flags.limit.unwrap_or(u64::MAX);
        query.count(|progress| {
            line.show(|| show_pace(progress, progress.matches, *began));
            progress.matches < limit && !interrupt.asked()
        })?;
        let matches = self.query.progress().matches.min(limit);
        let limited = matches == limit;
        let interrupted = self.interrupt.asked() && !limited;
        // A limit that was reached is the answer, whatever else there may have been.
        self.tell(&Given { packets: matches, limited, ..Given::nothing() });
        match (interrupted, flags.json) {
            (true, _) => {}
            (false, true) => writeln!(stdout(), "{}", serde_json::json!({ "packets": matches }))?,
            (false, false) => writeln!(stdout(), "{matches}")?,
        }
        self.verdict()
    }

    fn packets(mut self, flags: &flags::Query, reader: Option<&Reader>) -> Result<()> {
        let mut output = Output::open(flags, reader)?;
        // Packets that appear on the terminal are progress enough.
        let listing = flags.write.is_none() && reader.is_none() && stdout().is_terminal();
        let interfaces = self.query.interfaces().to_vec();
        let cannot = format!("cannot write {}", output.name);
        let mut begun = false;
        let limit = flags.limit.unwrap_or(u64::MAX);
        let mut given = Given::nothing();
        while !given.limited && !self.interrupt.asked() {
            let Self { query, interrupt, line, began, .. } = &mut self;
            let mut wrote = Ok(());
            let time_ns = query.find_next(|progress| {
                if !listing {
                    line.show(|| show_pace(progress, given.packets, *began));
                }
                // Packets that were found are shown before more are looked for.
                wrote = output.flush();
                wrote.is_ok() && !interrupt.asked()
            })?;
            // Before the first packet it may turn out that there are more interfaces.
            if !std::mem::replace(&mut begun, true) {
                wrote = output.begin(&comment(flags), &interfaces);
            }
            let is_whole = time_ns.is_none() && !interrupt.asked();
            let until_ns = if is_whole { Some(i64::MAX) } else { time_ns };
            for missing in until_ns.map_or_else(Vec::new, |ns| query.take_unseen(ns)) {
                wrote = wrote.and_then(|()| output.unseen(&missing));
            }
            if let Some(packet) = &query.packet() {
                let name = &interfaces[packet.interface as usize].name;
                wrote = wrote.and_then(|()| output.packet(name, packet));
                given.packets += 1;
                given.dropped += packet.dropped;
                given.shed.add_packet(packet.shed);
                given.limited = given.packets == limit;
                given.last_ns = packet.time_ns;
            }
            wrote.with_context(|| cannot.clone())?;
            if time_ns.is_none() {
                break;
            }
        }
        if !begun {
            output.begin(&comment(flags), &interfaces).with_context(|| cannot.clone())?;
        }
        output.flush().with_context(|| cannot.clone())?;
        self.tell(&given);
        self.verdict()
    }

    /// Does what the query would do without --explain, and tells what that took.
    fn explain(mut self, flags: &flags::Query, mut explanation: Explanation) -> Result<()> {
        let limit = flags.limit.unwrap_or(u64::MAX);
        let mut given = Given::nothing();
        let Self { query, interrupt, line, began, .. } = &mut self;
        if flags.count {
            query.count(|progress| {
                line.show(|| show_pace(progress, progress.matches, *began));
                explanation.found(progress.matches);
                progress.matches < limit && !interrupt.asked()
            })?;
            given.packets = query.progress().matches.min(limit);
        } else {
            while given.packets < limit {
                let found = query.find_next(|progress| {
                    line.show(|| show_pace(progress, given.packets, *began));
                    !interrupt.asked()
                })?;
                let Some(packet) = query.packet().filter(|_| found.is_some()) else { break };
                given.packets += 1;
                given.dropped += packet.dropped;
                given.shed.add_packet(packet.shed);
                given.last_ns = packet.time_ns;
                explanation.found(given.packets);
            }
        }
        given.limited = given.packets == limit;
        self.tell(&given);
        let outside = self.query.outside();
        let text = explanation.text(given.packets, &self.query.progress(), outside, flags.json);
        writeln!(stdout(), "{text}")?;
        self.verdict()
    }

    /// Tells on standard error where the answer is incomplete.
    fn tell(&mut self, given: &Given) {
        self.line = ProgressLine::new();
        let until_ns = given.until_ns();
        for (dir, note) in self.query.take_notes() {
            if note.concerns(until_ns) {
                self.faults += usize::from(note.is_fault());
                let place = dir.map(|dir| format!("{}: ", dir.display())).unwrap_or_default();
                say(&format!("{place}{note}"));
            }
        }
        let progress = self.query.progress();
        let dropped = if given.limited { given.dropped } else { progress.dropped };
        if dropped > 0 {
            say(&format!(
                "the recording dropped {} in the span of this answer; each gap is told by the packet after it",
                counted(dropped, "packet")
            ));
        }
        let shed = if given.limited { given.shed } else { progress.shed };
        say_shed(shed);
        for missing in self.query.unseen() {
            if missing.first_ns <= until_ns {
                say(&describe_missing(missing));
            }
        }
        if self.interrupt.asked() && !given.limited {
            say(&format!("stopped by a signal: {}", show(progress, given.packets)));
            self.interrupt.heard();
        } else if stderr().is_terminal() {
            say(&counted(given.packets, "packet"));
        }
    }

    fn verdict(&self) -> Result<()> {
        anyhow::ensure!(
            self.faults == 0,
            "the answer is not whole, as said above{}",
            if self.query.is_foreign() {
                ""
            } else {
                "; `tapdeck recover` mends what a crash left"
            }
        );
        Ok(())
    }
}

/// Returns what is missing from an answer because no hook was shown it.
pub fn describe_missing(missing: &Missing) -> String {
    let Missing { interface, packets, first_ns, last_ns, why, .. } = missing;
    format!(
        "{interface}: {} went unseen from {} to {} ({why}) and are not in the recording",
        counted(*packets, "packet"),
        time::show(*first_ns),
        time::show(*last_ns)
    )
}

fn show_pace(progress: Progress, packets: u64, began: Instant) -> String {
    let pace = pace(progress.bytes, Some(progress.total_bytes), began.elapsed());
    format!("{}, {pace}", counted(packets, "packet"))
}

fn show(progress: Progress, packets: u64) -> String {
    let (bytes, total) = (show_bytes(progress.bytes), show_bytes(progress.total_bytes));
    format!("{}, {bytes} of {total} looked through", counted(packets, "packet"))
}
