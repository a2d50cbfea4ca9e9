//! `query --follow`: what the store has, and then what comes into it, until Ctrl-C.
//!
//! Rings are written block by block, so what one of them took may be on disk before what another
//! took earlier. So a packet waits here until it is [`ORDER`] old: by then a recorder has written
//! what all rings took before it, and packets go out in time order. One that comes later than that
//! (a longer `--flush`, a disk that stalls) goes out when it comes.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tapdeck_packet::link::LinkType;
use tapdeck_store::Shed;
use tapdeck_store::choice::Choice;
use tapdeck_store::query::{Described, Packet, Query, Search, Snapshot, Span, Tail};

use super::choice::wanted;
use super::output::Output;
use super::{
    comment, describe_missing, leave_out, refuse_several_links, refuse_to_overwrite, say_shed,
    tell_absent,
};
use crate::flags;
use crate::interrupt::Interrupt;
use crate::listen::Reader;
use crate::progress_line::say;
use crate::units::counted;
use crate::usage::usage;

/// How old a packet is when it goes out: the recorder's usual `--flush`, and half a second for the
/// disk.
const ORDER: Duration = Duration::from_millis(1500);
/// How often the store is asked for more.
const POLL: Duration = Duration::from_millis(100);
/// Bytes of packets that wait, at most.
const MEMORY: usize = 32 << 20;

/// A packet that waits.
struct Waiting {
    since: Instant,
    interface: u32,
    link: LinkType,
    original_len: u32,
    flags: u32,
    dropped: u64,
    shed: u32,
    frame: Box<[u8]>,
}

/// The answer of a query that follows, while it is given.
struct Following<'a> {
    flags: &'a flags::Query,
    interrupt: &'a Interrupt,
    output: Output,
    interfaces: Vec<Described>,
    /// Packets that wait, by time, and by their order where times are equal.
    waiting: BTreeMap<(i64, u64), Waiting>,
    waiting_bytes: usize,
    came: u64,
    packets: u64,
    dropped: u64,
    shed: Shed,
    faults: usize,
}

/// Gives what a store has and what comes.
pub fn run(
    flags: &flags::Query,
    span: Span,
    interrupt: &Interrupt,
    reader: Option<&Reader>,
) -> Result<()> {
    let search = Search { ignores_indexes: flags.no_trust_index, ..Search::default() };
    let [dir] = &flags.dir[..] else {
        return usage("--follow goes on with one store: name it with one --dir");
    };
    let mut snapshot = Snapshot::open_any(dir, span, search)?;
    if !snapshot.follow() {
        let path = dir.display();
        return usage(format!("--follow is for stores, and {path} holds files of other programs"));
    }
    refuse_to_overwrite(flags.write.as_deref(), &snapshot)?;
    let mut choice = Choice::new(&wanted(flags), snapshot.interfaces())?;
    leave_out(flags, &mut snapshot);
    tell_absent(flags, snapshot.interfaces());
    refuse_several_links(flags, snapshot.interfaces())?;
    let mut following = Following::begin(flags, interrupt, reader, snapshot.interfaces())?;
    let mut query = Query::new(snapshot, span, choice.plan().clone(), choice.clone());
    loop {
        following.round(&mut query)?;
        if following.is_done() {
            break;
        }
        let mut tail = query.tail();
        let Some(mut snapshot) = following.wait(&mut tail, span)? else { break };
        if snapshot.interfaces().len() > following.interfaces.len() {
            following.describe(snapshot.interfaces())?;
            choice = Choice::new(&wanted(flags), snapshot.interfaces())?;
        }
        leave_out(flags, &mut snapshot);
        query = Query::go_on(tail, snapshot, span, choice.plan().clone(), choice.clone());
    }
    following.end()
}

impl<'a> Following<'a> {
    fn begin(
        flags: &'a flags::Query,
        interrupt: &'a Interrupt,
        reader: Option<&Reader>,
        interfaces: &[Described],
    ) -> Result<Self> {
        let mut following = Self {
            flags,
            interrupt,
            output: Output::open(flags, reader)?,
            interfaces: interfaces.to_vec(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            came: 0,
            packets: 0,
            dropped: 0,
            shed: Shed::default(),
            faults: 0,
        };
        let begun = following.output.begin(&comment(flags), interfaces);
        begun.with_context(|| following.cannot())?;
        Ok(following)
    }

    fn cannot(&self) -> String {
        format!("cannot write {}", self.output.name)
    }

    fn is_limited(&self) -> bool {
        self.flags.limit == Some(self.packets)
    }

    fn is_done(&self) -> bool {
        self.is_limited() || self.interrupt.asked()
    }

    /// Takes in interfaces that came to those that are known.
    fn describe(&mut self, interfaces: &[Described]) -> Result<()> {
        let new = &interfaces[self.interfaces.len()..];
        self.output.describe(new).with_context(|| self.cannot())?;
        self.interfaces = interfaces.to_vec();
        Ok(())
    }

    /// Gives what is in the store by now.
    fn round(&mut self, query: &mut Query<Choice>) -> Result<()> {
        while !self.is_done() {
            let mut wrote = Ok(());
            let found = query.find_next(|_| {
                // Packets that were found are shown before more are looked for.
                wrote = self.output.flush();
                wrote.is_ok() && !self.interrupt.asked()
            })?;
            wrote.with_context(|| self.cannot())?;
            let Some(packet) = query.packet().filter(|_| found.is_some()) else { break };
            self.take(&packet)?;
        }
        for note in query.take_notes() {
            self.faults += usize::from(note.is_fault());
            say(&note.to_string());
        }
        for missing in query.take_unseen(i64::MAX) {
            say(&describe_missing(&missing));
            self.output.unseen(&missing).with_context(|| self.cannot())?;
        }
        self.give_due()
    }

    /// Waits until more has come; `None` where nobody wants it any more.
    fn wait(&mut self, tail: &mut Tail, span: Span) -> Result<Option<Snapshot>> {
        loop {
            if let Some(snapshot) = tail.grown(span)? {
                return Ok(Some(snapshot));
            }
            let is_read = self.output.wait(POLL);
            self.give_due()?;
            if !is_read || self.is_done() {
                return Ok(None);
            }
        }
    }

    /// Takes a packet that was found: gives it, or makes it wait.
    fn take(&mut self, packet: &Packet<'_>) -> Result<()> {
        if age(packet.time_ns) >= ORDER {
            self.give_waiting(|time_ns, _| time_ns <= packet.time_ns)?;
            return self.give(packet);
        }
        self.came += 1;
        self.waiting_bytes += packet.frame.len() + size_of::<Waiting>();
        let waiting = Waiting {
            since: Instant::now(),
            interface: packet.interface,
            link: packet.link,
            original_len: packet.original_len,
            flags: packet.flags,
            dropped: packet.dropped,
            shed: packet.shed,
            frame: packet.frame.into(),
        };
        self.waiting.insert((packet.time_ns, self.came), waiting);
        if self.waiting_bytes > MEMORY { self.give_due() } else { Ok(()) }
    }

    /// Gives what has waited long enough, and what there is no room for; then all of that is
    /// written.
    fn give_due(&mut self) -> Result<()> {
        // The recorder's clock may go before the one here.
        self.give_waiting(|time_ns, since| age(time_ns) >= ORDER || since.elapsed() >= ORDER)?;
        while self.waiting_bytes > MEMORY {
            let first = self.waiting.first_key_value().map(|(key, _)| key.0);
            let Some(first_ns) = first else { break };
            self.give_waiting(|time_ns, _| time_ns <= first_ns)?;
        }
        self.output.flush().with_context(|| self.cannot())
    }

    /// Gives packets that wait, the first first, as long as `is_due` says so.
    fn give_waiting(&mut self, is_due: impl Fn(i64, Instant) -> bool) -> Result<()> {
        while let Some(first) = self.waiting.first_entry()
            && is_due(first.key().0, first.get().since)
        {
            let ((time_ns, _), waiting) = first.remove_entry();
            self.waiting_bytes -= waiting.frame.len() + size_of::<Waiting>();
            self.give(&Packet {
                time_ns,
                interface: waiting.interface,
                link: waiting.link,
                original_len: waiting.original_len,
                frame: &waiting.frame,
                flags: waiting.flags,
                dropped: waiting.dropped,
                shed: waiting.shed,
            })?;
        }
        Ok(())
    }

    fn give(&mut self, packet: &Packet<'_>) -> Result<()> {
        if self.is_limited() {
            return Ok(());
        }
        self.packets += 1;
        self.dropped += packet.dropped;
        self.shed.add_packet(packet.shed);
        let name = &self.interfaces[packet.interface as usize].name;
        self.output
            .packet(name, packet)
            .with_context(|| format!("cannot write {}", self.output.name))
    }

    fn end(mut self) -> Result<()> {
        self.give_waiting(|_, _| true)?;
        self.output.flush().with_context(|| self.cannot())?;
        if self.dropped > 0 {
            let dropped = counted(self.dropped, "packet");
            say(&format!("the recording dropped {dropped} before packets of this answer"));
        }
        say_shed(self.shed);
        if self.output.left_out > 0 {
            let packets = counted(self.output.left_out, "packet");
            say(&format!("left out: {packets} of other link types"));
        }
        if stderr().is_terminal() {
            say(&counted(self.packets, "packet"));
        }
        self.interrupt.heard();
        anyhow::ensure!(self.faults == 0, "the answer is not whole, as said above");
        Ok(())
    }
}

/// How long ago a packet was taken, by the clock here; nothing where it will be.
fn age(time_ns: i64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(time_ns.max(0) as u64))
}
