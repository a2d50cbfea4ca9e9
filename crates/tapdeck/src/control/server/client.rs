//! What the server knows of a client: what it has sent and is to get.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Result;
use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{MAX_LINE, Peer};
use crate::control::{Answer, Command};

/// Bytes of a line at most of a client that may only look.
const MAX_SHORT_LINE: usize = 64 << 10;
const MAX_LONG_LINE: usize = 64 << 20;
/// Portions that one turn reads of a client that sends a long line.
const PORTIONS: usize = 16;
/// Lines of so many bytes or more are read as JSON on a thread of their own.
const HEAVY: usize = 64 << 10;
/// The most file descriptors that go with one answer.
const MAX_FDS: usize = 4;

pub(super) struct Client {
    pub(super) stream: UnixStream,
    /// Whether the connection can be read or written, as poll(2) says.
    pub(super) is_ready: bool,
    /// Whether the other end has gone, as poll(2) says.
    pub(super) has_hung_up: bool,
    pub(super) peer: Peer,
    pub(super) is_operator: bool,
    /// Whether the client's user has asked for so much that nothing of the client is read now.
    pub(super) is_throttled: bool,
    /// Bytes that were read and not counted yet.
    pub(super) uncounted: usize,
    pub(super) is_member: bool,
    pub(super) watches: bool,
    pub(super) input: Vec<u8>,
    /// How many bytes at the beginning of `input` are known to have no end of line.
    pub(super) scanned: usize,
    /// Whether the rest of the line is dropped, because the line was refused.
    pub(super) skips: bool,
    /// Whether nothing more comes from the client.
    pub(super) has_ended: bool,
    pub(super) state: State,
    pub(super) output: Vec<u8>,
    pub(super) written: usize,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) active: Instant,
}

pub(super) enum State {
    Idle,
    /// The client's line is being read as JSON.
    Decoding(JoinHandle<Result<Command, String>>),
    /// The client's command is not answered yet.
    Asking,
}

/// What reading from a client led to.
pub(super) enum Heard {
    None,
    Asked(Command),
    Answered,
}

impl Client {
    pub(super) fn new(stream: UnixStream, peer: Peer) -> Self {
        Self {
            stream,
            is_ready: true,
            has_hung_up: false,
            peer,
            is_operator: peer.is_operator(),
            is_throttled: false,
            uncounted: 0,
            is_member: false,
            watches: false,
            input: Vec::new(),
            scanned: 0,
            skips: false,
            has_ended: false,
            state: State::Idle,
            output: Vec::new(),
            written: 0,
            fds: Vec::new(),
            active: Instant::now(),
        }
    }

    pub(super) fn awaits(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        if self.wants_input() {
            flags |= PollFlags::IN;
        }
        if !self.output.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// Whether poll(2) is to look at the client. It tells a member's end in any case.
    pub(super) fn waits(&self) -> bool {
        !self.awaits().is_empty() || (self.is_throttled && self.is_member)
    }

    /// Whether the client is to be read from. A member is, even while it has an answer to read, so
    /// that its end is seen.
    pub(super) fn wants_input(&self) -> bool {
        let room = self.input.len() < self.longest_line() || self.is_idle();
        let reads = self.is_idle() || self.is_member || self.watches;
        !self.is_throttled && !self.has_ended && room && reads
    }

    /// Returns how long a line may be that brings no rules.
    pub(super) fn longest_line(&self) -> usize {
        if self.is_operator { MAX_LINE } else { MAX_SHORT_LINE }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.output.is_empty()
    }

    /// Whether there is input that was read and not looked at.
    pub(super) fn has_more(&self) -> bool {
        let unseen = self.scanned < self.input.len() || (self.has_ended && !self.input.is_empty());
        unseen && self.is_idle() && !self.is_throttled
    }

    /// Whether everything that the client asked for is answered, and nothing more will come.
    pub(super) fn is_finished(&self) -> bool {
        // A member lives as long as its connection, and one that watches may have no more to say.
        self.has_ended && (self.is_member || (self.is_idle() && !self.watches && !self.has_more()))
    }

    pub(super) fn wants_to_be_long(&self) -> bool {
        self.input.len() >= MAX_LINE
    }

    pub(super) fn put(&mut self, answer: Answer) {
        self.output.extend(answer.line);
        self.fds = answer.fds;
    }

    pub(super) fn refuse_line(&mut self, why: &str) {
        self.input = Vec::new();
        self.scanned = 0;
        self.skips = true;
        self.put(Answer::error(why));
    }

    /// Reads what has come, and looks at the next line if the last one is answered.
    pub(super) fn read(&mut self, may_be_long: bool, portion: &mut [u8]) -> Heard {
        if let State::Decoding(thread) = &self.state {
            if !thread.is_finished() {
                return Heard::None;
            }
            let State::Decoding(thread) = std::mem::replace(&mut self.state, State::Asking) else {
                return Heard::None;
            };
            let command =
                thread.join().unwrap_or_else(|_| Err("the request cannot be read".into()));
            return self.ask(command);
        }
        // Only operators have something to say that is long.
        for _ in 0..if self.is_operator { PORTIONS } else { 1 } {
            if !self.wants_input() || !self.fill(portion) {
                break;
            }
        }
        if !self.is_idle() {
            return Heard::None;
        }
        let is_rules = self.is_operator && brings_rules(&self.input);
        let limit = if may_be_long && is_rules { MAX_LONG_LINE } else { self.longest_line() };
        let line = self.take_line();
        if line.as_ref().map_or(self.input.len(), Vec::len) <= limit {
            return line.map_or(Heard::None, |line| self.look_at(line));
        }
        let why = if is_rules && limit == MAX_LINE {
            "another client is sending a long request: try again later".to_owned()
        } else if !self.is_operator {
            format!(
                "the request is longer than {} KiB: only root and the user that tapdeck runs as may send longer ones",
                MAX_SHORT_LINE >> 10
            )
        } else {
            format!(
                "the request is longer than {} MiB; only one that begins with {{\"verb\":\"rules\" may have up to {}",
                MAX_LINE >> 20,
                MAX_LONG_LINE >> 20
            )
        };
        if line.is_none() {
            self.refuse_line(&why);
        } else {
            self.put(Answer::error(&why));
        }
        Heard::Answered
    }

    /// Reads once. Returns false where there is nothing to read now.
    pub(super) fn fill(&mut self, portion: &mut [u8]) -> bool {
        match self.stream.read(portion) {
            Ok(0) => {
                self.has_ended = true;
                false
            }
            Ok(n) => {
                self.input.extend(&portion[..n]);
                self.uncounted += n;
                self.active = Instant::now();
                self.skip();
                true
            }
            Err(e) => {
                let later =
                    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                if !later {
                    self.has_ended = true;
                    self.watches = false;
                }
                false
            }
        }
    }

    /// Drops input that belongs to a line that was refused.
    pub(super) fn skip(&mut self) {
        if !self.skips {
            return;
        }
        match self.input.iter().position(|b| *b == b'\n') {
            Some(end) => {
                self.input.drain(..=end);
                self.skips = false;
            }
            None => self.input.clear(),
        }
    }

    pub(super) fn take_line(&mut self) -> Option<Vec<u8>> {
        // Empty lines before it are dropped at once: there may be a million.
        let mut begin = 0;
        loop {
            let end = self.input[self.scanned..].iter().position(|b| *b == b'\n');
            let end = match end {
                Some(end) => self.scanned + end,
                // The last line before the connection's end may have no end of line.
                None if self.has_ended && begin < self.input.len() => {
                    self.input.push(b'\n');
                    self.input.len() - 1
                }
                None => {
                    self.input.drain(..begin);
                    self.scanned = self.input.len();
                    return None;
                }
            };
            // A person who types may send empty lines.
            if self.input[begin..end].iter().all(u8::is_ascii_whitespace) {
                begin = end + 1;
                self.scanned = begin;
                continue;
            }
            let rest = self.input.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.input, rest);
            self.scanned = 0;
            line.pop();
            line.drain(..begin);
            return Some(line);
        }
    }

    pub(super) fn look_at(&mut self, line: Vec<u8>) -> Heard {
        if line.len() < HEAVY {
            return self.ask(Command::decode(&line));
        }
        let decode = move || Command::decode(&line);
        match std::thread::Builder::new().name("tapdeck-request".into()).spawn(decode) {
            Ok(thread) => {
                self.state = State::Decoding(thread);
                Heard::None
            }
            Err(e) => {
                self.put(Answer::error(&format!("cannot read the request now: {e}")));
                Heard::Answered
            }
        }
    }

    pub(super) fn ask(&mut self, command: Result<Command, String>) -> Heard {
        self.state = State::Idle;
        let why = match command {
            Ok(command) if command.is_harmless() || self.peer.is_operator() => {
                self.state = State::Asking;
                return Heard::Asked(command);
            }
            Ok(_) => {
                "no permission: only root and the user that tapdeck runs as may change what is captured".into()
            }
            Err(why) => why,
        };
        self.put(Answer::error(&why));
        Heard::Answered
    }

    pub(super) fn write(&mut self) -> io::Result<()> {
        while self.written < self.output.len() {
            let slice = IoSlice::new(&self.output[self.written..]);
            match send(self.stream.as_fd(), slice, &self.fds) {
                Ok(n) => {
                    self.written += n;
                    self.fds.clear();
                    self.active = Instant::now();
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.written = 0;
        self.output = Vec::new();
        Ok(())
    }
}

/// Whether a line brings rules, which may be long. The line's beginning is enough.
fn brings_rules(line: &[u8]) -> bool {
    let head = line.iter().filter(|b| !b.is_ascii_whitespace()).take(15);
    head.copied().eq(*br#"{"verb":"rules""#)
}

fn send(to: BorrowedFd<'_>, slice: IoSlice<'_>, fds: &[OwnedFd]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("too many file descriptors for one answer"));
    }
    Ok(rustix::net::sendmsg(to, &[slice], &mut control, SendFlags::NOSIGNAL)?)
}
