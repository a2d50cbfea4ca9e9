//! Packets on their way out: how does a question become bytes?
//!
//! Each answer is made on a blocking thread, which hands pieces of it through a channel to the
//! connection's task: a few pieces wait at most, so that an answer costs no more memory however
//! large it is. A reader that takes nothing loses its connection ([`crate::server`]) and with that
//! its answer, whose place goes to the next in line.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcap::{self, Unit};
use tapdeck_packet::pcapng;
use tapdeck_store::query::{Described, Error, Missing, Packet, Query, Search, Snapshot};
use tapdeck_store::{UnseenSpan, filter};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::condition::{Compiled, Condition};
use crate::{rows, time};

/// Bytes of a piece, about.
const PIECE: usize = 64 << 10;
/// Pieces that wait to be sent.
const WAITING: usize = 4;
/// Bytes of packets that a question holds in memory, about.
const MEMORY: usize = 4 << 20;

const APPLICATION: &str = concat!("tapdeck-gateway ", env!("CARGO_PKG_VERSION"));

/// How packets are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Pcapng,
    Pcap(Unit),
    /// JSON ([`crate::rows`]).
    Rows {
        /// Whether each packet comes with its headers and bytes.
        whole: bool,
    },
}

/// What is asked of a store.
#[derive(Clone, Debug)]
pub struct Question {
    pub directory: PathBuf,
    /// Whether that is a directory of a pin's files, and no store.
    pub is_of_pin: bool,
    pub condition: Condition,
    pub form: Form,
    /// Packets that would be the first of the answer, and are left out.
    pub skip: u64,
    /// Packets of the answer, at most.
    pub packets: u64,
    /// Bytes of the answer, at most.
    pub bytes: u64,
    /// What the section header of pcapng says.
    pub comment: String,
}

/// A part of an answer.
#[derive(Debug)]
pub enum Part {
    /// The question makes sense, and bytes come.
    Begun,
    Bytes(Bytes),
    Ended(End),
    /// No answer, or no more of it.
    Failed(Failure),
}

/// How an answer ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct End {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that the recording says it dropped inside the span.
    pub dropped: u64,
    /// Packets that went unseen inside the span.
    pub unseen: u64,
    /// Whether a limit ended the answer.
    pub is_limited: bool,
    /// Packets that the recording had and the answer has not, or not in order: a sentence each.
    pub faults: Vec<String>,
}

impl End {
    /// Returns one word for how whole the answer is.
    pub fn word(&self) -> &'static str {
        match (self.faults.is_empty(), self.is_limited) {
            (false, _) => "incomplete",
            (true, true) => "limited",
            (true, false) => "complete",
        }
    }

    /// Returns a line that says how whole the answer is.
    pub fn line(&self) -> String {
        let Self { packets, dropped, unseen, faults, .. } = self;
        let word = self.word();
        let line = format!("{word}: {packets} packets, {dropped} dropped, {unseen} unseen");
        [vec![line], faults.clone()].concat().join("; ")
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// The question makes no sense.
    Question(String),
    /// The answer cannot have the form that was asked for.
    Form(String),
    /// The store cannot be read.
    Store(String),
    /// Nobody takes the answer any more.
    Left,
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Store(anyhow::Error::from(e).to_string())
    }
}

impl From<filter::Error> for Failure {
    fn from(e: filter::Error) -> Self {
        Self::Question(e.to_string())
    }
}

/// Begins an answer. `ended` is called on its thread when it has ended, whichever way.
pub fn begin(
    question: Question,
    ended: impl FnOnce(&Result<End, Failure>, u64, u64) + Send + 'static,
) -> Receiver<Part> {
    let (sender, receiver) = channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut output = Output::new(sender, question.form);
        let result = answer(&question, &mut output);
        ended(&result, output.packets, output.sent);
        let last = match result {
            Ok(end) => Part::Ended(end),
            Err(failure) => Part::Failed(failure),
        };
        // Where the reader has left, nobody needs to know.
        let _ = output.send(last);
    });
    receiver
}

fn answer(question: &Question, output: &mut Output) -> Result<End, Failure> {
    let Question { directory, condition, packets: most, bytes: most_bytes, .. } = question;
    let span = condition.span();
    let snapshot = if question.is_of_pin {
        Snapshot::open_any(directory, span, Search::default())?
    } else {
        Snapshot::open(directory, span)?
    };
    let compiled = condition.compile(snapshot.interfaces())?;
    let interfaces = snapshot.interfaces().to_vec();
    output.begin(&question.comment, &interfaces)?;
    let plan = compiled.plan();
    let mut query = Query::within(MEMORY, snapshot, span, plan, compiled);
    let mut end = End::default();
    let mut last_ns = i64::MIN;
    let mut skip = question.skip;
    while !end.is_limited {
        let mut is_left = false;
        let time_ns = query.find_next(|_| {
            is_left = output.is_left();
            !is_left
        })?;
        if is_left {
            return Err(Failure::Left);
        }
        for missing in query.take_unseen(time_ns.unwrap_or(i64::MAX)) {
            output.unseen(&missing)?;
        }
        let Some(packet) = query.packet() else { break };
        if skip > 0 {
            skip -= 1;
            continue;
        }
        if end.packets == *most || output.bytes() + output.len(&packet) > *most_bytes {
            end.is_limited = true;
            break;
        }
        output.packet(&packet)?;
        end.packets += 1;
        end.dropped += packet.dropped;
        last_ns = packet.time_ns;
    }
    let until_ns = if end.is_limited { last_ns } else { i64::MAX };
    finish(&mut query, until_ns, &mut end);
    output.end(&mut end, &interfaces)?;
    Ok(end)
}

/// Takes in what is known of an answer at its end.
fn finish(query: &mut Query<Compiled>, until_ns: i64, end: &mut End) {
    if !end.is_limited {
        end.dropped = query.progress().dropped;
    }
    let unseen = query.unseen().iter().filter(|missing| missing.first_ns <= until_ns);
    end.unseen = unseen.map(|missing| missing.packets).sum();
    let notes = query.take_notes().into_iter();
    let notes = notes.filter(|note| note.concerns(until_ns) && note.lacks_packets());
    end.faults = notes.map(|note| note.to_string()).collect();
}

/// The writing end of an answer.
struct Output {
    sender: Sender<Part>,
    form: Form,
    pending: Vec<u8>,
    /// Names of interfaces, for rows.
    interfaces: Vec<String>,
    /// The packet that comes next, as a row.
    row: Vec<u8>,
    /// Bytes that were handed on.
    sent: u64,
    packets: u64,
}

impl Output {
    fn new(sender: Sender<Part>, form: Form) -> Self {
        let pending = Vec::with_capacity(PIECE * 2);
        let (interfaces, row) = (Vec::new(), Vec::new());
        Self { sender, form, pending, interfaces, row, sent: 0, packets: 0 }
    }

    fn send(&self, part: Part) -> Result<(), Failure> {
        self.sender.blocking_send(part).map_err(|_| Failure::Left)
    }

    fn is_left(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns how many bytes the answer has so far.
    fn bytes(&self) -> u64 {
        self.sent + self.pending.len() as u64
    }

    fn begin(&mut self, comment: &str, interfaces: &[Described]) -> Result<(), Failure> {
        match self.form {
            Form::Pcapng => {
                let os = std::env::consts::OS;
                pcapng::section_header(&mut self.pending, os, APPLICATION, Some(comment));
                for interface in interfaces {
                    self.pending.extend_from_slice(&interface.block);
                }
            }
            Form::Pcap(unit) => {
                let links: BTreeSet<LinkType> = interfaces.iter().map(|i| i.link).collect();
                if links.len() > 1 {
                    return Err(Failure::Form(
                        "the store has interfaces of several link types, and pcap has room for one: ask for pcapng".into(),
                    ));
                }
                let link = links.first().copied().unwrap_or(LinkType::ETHERNET);
                self.pending.extend(pcap::header(link, unit));
            }
            Form::Rows { .. } => {
                self.interfaces = interfaces.iter().map(|i| i.name.clone()).collect();
                self.pending.extend_from_slice(rows::BEGIN);
            }
        }
        self.send(Part::Begun)
    }

    /// Returns how many bytes the next packet takes.
    fn len(&mut self, packet: &Packet<'_>) -> u64 {
        let len = match self.form {
            Form::Pcapng => pcapng::packet_len(packet.frame.len(), packet.flags, packet.dropped),
            Form::Pcap(_) => pcap::packet_len(packet.frame.len()),
            Form::Rows { whole } => {
                self.row.clear();
                let name = self.interfaces.get(packet.interface as usize);
                rows::write(&mut self.row, name.map_or("-", |name| name), packet, whole);
                self.row.len()
            }
        };
        len as u64
    }

    /// Writes the packet of which [`Output::len`] was asked last.
    fn packet(&mut self, p: &Packet<'_>) -> Result<(), Failure> {
        let time_ns = p.time_ns as u64;
        match self.form {
            Form::Pcapng => {
                let start = self.pending.len();
                let len = self.len(p) as usize;
                self.pending.resize(start + len, 0);
                let (out, frame) = (&mut self.pending[start..], [p.frame, &[], &[]]);
                let (original, flags, dropped) = (p.original_len, p.flags, p.dropped);
                pcapng::write_packet(out, p.interface, time_ns, frame, original, flags, dropped);
            }
            Form::Pcap(unit) => {
                pcap::packet(&mut self.pending, unit, time_ns, p.original_len, p.frame);
            }
            Form::Rows { .. } => {
                if self.packets > 0 {
                    self.pending.push(b',');
                }
                self.pending.extend_from_slice(&self.row);
            }
        }
        self.packets += 1;
        if self.pending.len() < PIECE { Ok(()) } else { self.flush() }
    }

    /// Tells that packets went unseen, where the form has a place for that.
    fn unseen(&mut self, missing: &Missing) -> Result<(), Failure> {
        if self.form != Form::Pcapng {
            return Ok(());
        }
        pcapng::statistics(&mut self.pending, &UnseenSpan::from(missing).block());
        if self.pending.len() < PIECE { Ok(()) } else { self.flush() }
    }

    /// Writes the last block of pcapng, which says how whole the answer is. Where there is no
    /// interface that it could be about, it is the header of another section.
    fn end(&mut self, end: &mut End, interfaces: &[Described]) -> Result<(), Failure> {
        if self.form == Form::Pcapng && !interfaces.is_empty() {
            pcapng::comment(&mut self.pending, 0, time::now_ns() as u64, &end.line());
        } else if self.form == Form::Pcapng {
            let os = std::env::consts::OS;
            pcapng::section_header(&mut self.pending, os, APPLICATION, Some(&end.line()));
        } else if let Form::Rows { .. } = self.form {
            rows::end(&mut self.pending, end);
        }
        end.bytes = self.bytes();
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.pending, Vec::with_capacity(PIECE * 2));
        self.sent += piece.len() as u64;
        self.send(Part::Bytes(piece.into()))
    }
}
