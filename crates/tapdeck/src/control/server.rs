//! All clients of the socket at once, turned by whoever has what they ask for.
//!
//! A client has at most one request under way: its next line is looked at when the answer to the
//! last one is written. So answers come in order, and a client that does not read holds one answer
//! and no more. What it may hold otherwise is bounded too: its lines are short, but one client at a
//! time may send a long one, the text of a rule file, which is read as JSON on a thread of its own.
//!
//! When there are as many clients as there may be, a new one takes the place of the one that was
//! silent for longest. Members of groups are not counted: the groups have their own bound.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{Answer, Command, Socket};

/// Who is asked for something, as long as it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// The process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 0 where it is of another namespace.
    pub pid: i32,
    pub uid: u32,
}

/// What came from a client.
#[derive(Debug)]
pub enum Event {
    /// Must be answered, now or later: until then nothing else comes from it.
    Asked(ClientId, Command),
    /// It is no more, and needs no answer.
    Gone(ClientId),
}

/// Clients that are no members.
const MAX_CLIENTS: usize = 64;
/// A line, and one that brings rules.
const MAX_LINE: usize = 1 << 20;
const MAX_LONG_LINE: usize = 64 << 20;
/// Read from one client in one turn.
const PORTION: usize = 64 << 10;
/// Portions that one turn reads of a client that sends a long line.
const PORTIONS: usize = 16;
/// Lines from here on are read as JSON on a thread of their own.
const HEAVY: usize = 64 << 10;
/// How long one who sends a long line may pause while another wants to.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// Long answers that are not read yet: with more, no other is made.
const MAX_UNREAD: usize = 16 << 20;
/// File descriptors that go with one answer.
const MAX_FDS: usize = 4;

/// The clients of a socket.
pub struct Server {
    socket: Socket,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// Not before then is a connection accepted again, where that has failed.
    accept_from: Instant,
    /// Who may send a long line at present.
    long: Option<ClientId>,
    /// Clients that are gone and not told yet.
    gone: Vec<ClientId>,
    /// What is asked that takes a long answer: one of them is handed on in a turn.
    heavy: VecDeque<(ClientId, Command)>,
    /// What one reading brings.
    portion: Box<[u8]>,
}

struct Client {
    stream: UnixStream,
    /// It can be read or written, as poll(2) says.
    is_ready: bool,
    peer: Peer,
    is_member: bool,
    watches: bool,
    input: Vec<u8>,
    /// Of `input`, what is known to have no end of line.
    scanned: usize,
    /// The rest of the line is not wanted.
    skips: bool,
    /// Nothing more comes from it.
    has_ended: bool,
    state: State,
    output: Vec<u8>,
    written: usize,
    fds: Vec<OwnedFd>,
    active: Instant,
}

enum State {
    Idle,
    /// Its line is being read as JSON.
    Decoding(JoinHandle<Result<Command, String>>),
    /// What it asked is not answered yet.
    Asking,
}

/// What reading a client's line led to.
enum Line {
    None,
    Asked(Command),
    Answered,
}

impl Server {
    pub fn new(socket: Socket) -> Self {
        let now = Instant::now();
        Self {
            socket,
            clients: BTreeMap::new(),
            next: 0,
            accept_from: now,
            long: None,
            gone: Vec::new(),
            heavy: VecDeque::new(),
            portion: vec![0; PORTION].into(),
        }
    }

    /// What clients have asked, as soon as there is anything, and nothing at `until`.
    pub fn turn(&mut self, until: Instant) -> Vec<Event> {
        loop {
            let mut patience = until.saturating_duration_since(Instant::now());
            if self.clients.values().any(Client::has_more)
                || (!self.heavy.is_empty() && self.has_room())
            {
                patience = Duration::ZERO;
            } else if !self.heavy.is_empty() {
                // Room comes when a client reads, or has not for too long.
                patience = patience.min(Duration::from_millis(5));
            } else if self.clients.values().any(|c| matches!(c.state, State::Decoding(_))) {
                // That thread does not wake anybody.
                patience = patience.min(Duration::from_millis(2));
            }
            self.wait(patience);
            let events = self.gather();
            if !events.is_empty() || Instant::now() >= until {
                return events;
            }
        }
    }

    /// Answers what a client has asked.
    pub fn answer(&mut self, id: ClientId, answer: impl Into<Answer>) {
        // Whoever has gone needs none.
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.state = State::Idle;
        client.put(answer.into());
        self.write(id);
    }

    /// Who a client is.
    pub fn peer(&self, id: ClientId) -> Option<Peer> {
        self.clients.get(&id).map(|client| client.peer)
    }

    /// From now on the client is a member: its end will be told, however it comes.
    pub fn make_member(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_member = true;
        }
    }

    /// It is no member any more.
    pub fn end_member(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_member = false;
        }
    }

    pub fn make_watcher(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.watches = true;
        }
    }

    pub fn has_watchers(&self) -> bool {
        self.clients.values().any(|c| c.watches)
    }

    /// Tells all who watch. One that has not read what it was told before misses this.
    pub fn tell_watchers(&mut self, answer: &Answer) {
        let watchers = self.clients.iter().filter(|(_, c)| c.watches && c.output.is_empty());
        let watchers: Vec<ClientId> = watchers.map(|(id, _)| *id).collect();
        for id in watchers {
            if let Some(client) = self.clients.get_mut(&id) {
                client.output.extend(&answer.line);
            }
            self.write(id);
        }
    }

    /// Writes what answers are left, for so long at most.
    pub fn flush(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.clients.values().any(|c| !c.output.is_empty()) && Instant::now() < until {
            self.wait(Duration::from_millis(5));
            for id in self.ids() {
                self.write(id);
            }
        }
    }

    /// Waits until somebody can be served, and notes who.
    fn wait(&mut self, patience: Duration) {
        let accepts = Instant::now() >= self.accept_from;
        let listener = accepts.then(|| PollFd::new(&self.socket.listener, PollFlags::IN));
        // One that waits for its answer is left out: that it is gone would be told without end.
        let waiting = self.clients.iter().filter(|(_, client)| !client.awaits().is_empty());
        let (ids, clients): (Vec<ClientId>, Vec<PollFd<'_>>) =
            waiting.map(|(id, c)| (*id, PollFd::new(&c.stream, c.awaits()))).unzip();
        let mut fds: Vec<PollFd<'_>> = clients.into_iter().chain(listener).collect();
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        // A signal ends it early, and then nobody is ready.
        let _ = poll(&mut fds, Some(&timeout));
        let ready: Vec<ClientId> = ids
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|r| r.0)
            .collect();
        for id in ready {
            if let Some(client) = self.clients.get_mut(&id) {
                client.is_ready = true;
            }
        }
    }

    fn gather(&mut self) -> Vec<Event> {
        self.accept();
        let mut events = Vec::new();
        for id in self.ids() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let is_ready = std::mem::take(&mut client.is_ready);
            if is_ready && !client.output.is_empty() {
                self.write(id);
            }
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let works = is_ready || client.has_more() || matches!(client.state, State::Decoding(_));
            if works && let Some(command) = self.read(id) {
                if command.is_heavy() {
                    self.heavy.push_back((id, command));
                } else {
                    events.push(Event::Asked(id, command));
                }
            }
        }
        events.extend(self.next_heavy().map(|(id, command)| Event::Asked(id, command)));
        // Also those that reading and writing have ended.
        events.extend(std::mem::take(&mut self.gone).into_iter().map(Event::Gone));
        events
    }

    /// What takes a long answer, if those that are not read yet leave room for one.
    fn next_heavy(&mut self) -> Option<(ClientId, Command)> {
        let Self { clients, heavy, .. } = self;
        heavy.retain(|(id, _)| clients.contains_key(id));
        if heavy.is_empty() {
            return None;
        }
        if !self.has_room() {
            // Whoever asks for much and does not read it keeps it from the others.
            let unread = self.clients.iter().filter(|(_, c)| c.output.len() > MAX_LINE);
            let silent = unread.min_by_key(|(_, c)| c.active)?;
            if silent.1.active.elapsed() < LONG_PAUSE {
                return None;
            }
            let id = *silent.0;
            self.drop_client(id);
        }
        if self.has_room() { self.heavy.pop_front() } else { None }
    }

    fn has_room(&self) -> bool {
        let long = self.clients.values().map(|c| c.output.len()).filter(|len| *len > MAX_LINE);
        long.sum::<usize>() < MAX_UNREAD
    }

    fn ids(&self) -> Vec<ClientId> {
        self.clients.keys().copied().collect()
    }

    fn accept(&mut self) {
        if Instant::now() < self.accept_from {
            return;
        }
        // The rest have their turn later: who connects without end holds up nobody.
        for _ in 0..MAX_CLIENTS {
            match self.socket.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Too many files for now, as a rule.
                Err(_) => {
                    self.accept_from = Instant::now() + Duration::from_millis(100);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream) {
        let Ok(peer) = prepare(&stream) else { return };
        let others = || self.clients.iter().filter(|(_, c)| !c.is_member);
        if others().count() >= MAX_CLIENTS {
            let silent = others().min_by_key(|(_, c)| c.active).map(|(id, _)| *id);
            if let Some(id) = silent {
                self.drop_client(id);
            }
        }
        let id = ClientId(self.next);
        self.next += 1;
        self.clients.insert(id, Client::new(stream, peer));
    }

    fn drop_client(&mut self, id: ClientId) {
        if self.clients.remove(&id).is_some() {
            self.gone.push(id);
        }
        if self.long == Some(id) {
            self.long = None;
        }
    }

    fn write(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.write().is_err() || client.is_finished() {
            self.drop_client(id);
        }
    }

    /// Reads of one client. Gives back what it asks.
    fn read(&mut self, id: ClientId) -> Option<Command> {
        let client = self.clients.get_mut(&id)?;
        let mut may_be_long = self.long.is_none_or(|long| long == id);
        if !may_be_long && client.wants_to_be_long() {
            may_be_long = self.take_over_long();
        }
        let client = self.clients.get_mut(&id)?;
        let line = client.read(may_be_long, &mut self.portion);
        let is_long = client.input.len() > MAX_LINE;
        let over = client.is_finished();
        match (is_long, self.long) {
            (true, None) => self.long = Some(id),
            (false, Some(long)) if long == id => self.long = None,
            _ => {}
        }
        match line {
            Line::Asked(command) => return Some(command),
            Line::Answered => self.write(id),
            Line::None if over => self.drop_client(id),
            Line::None => {}
        }
        None
    }

    /// Whether the one who sends a long line has been silent for so long that another may.
    fn take_over_long(&mut self) -> bool {
        let Some(holder) = self.long.and_then(|long| self.clients.get_mut(&long)) else {
            self.long = None;
            return true;
        };
        if holder.active.elapsed() < LONG_PAUSE || !matches!(holder.state, State::Idle) {
            return false;
        }
        holder.refuse_line("the request took too long to come: send it at once");
        self.long = None;
        true
    }
}

fn prepare(stream: &UnixStream) -> io::Result<Peer> {
    stream.set_nonblocking(true)?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(Peer { pid: peer.pid.as_raw_pid(), uid: peer.uid.as_raw() })
}

impl Peer {
    /// Whether it may do what changes something for everybody.
    fn is_operator(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

impl Client {
    fn new(stream: UnixStream, peer: Peer) -> Self {
        Self {
            stream,
            is_ready: true,
            peer,
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

    fn awaits(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        if self.wants_input() {
            flags |= PollFlags::IN;
        }
        if !self.output.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// A member is read even while it has something to read itself, so that its end is seen.
    fn wants_input(&self) -> bool {
        let room = self.input.len() < MAX_LINE || self.is_idle();
        !self.has_ended && room && (self.is_idle() || self.is_member || self.watches)
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.output.is_empty()
    }

    /// There is something to be looked at that was read before.
    fn has_more(&self) -> bool {
        let unseen = self.scanned < self.input.len() || (self.has_ended && !self.input.is_empty());
        unseen && self.is_idle()
    }

    /// Everything it has asked is answered, and nothing more will come.
    fn is_finished(&self) -> bool {
        // A member lives as long as its connection, and one that watches may have no more to say.
        self.has_ended && (self.is_member || (self.is_idle() && !self.watches && !self.has_more()))
    }

    fn wants_to_be_long(&self) -> bool {
        self.input.len() >= MAX_LINE
    }

    fn put(&mut self, answer: Answer) {
        self.output.extend(answer.line);
        self.fds = answer.fds;
    }

    fn refuse_line(&mut self, why: &str) {
        self.input = Vec::new();
        self.scanned = 0;
        self.skips = true;
        self.put(Answer::error(why));
    }

    /// Reads what is there, and looks at the next line if the last one is answered.
    fn read(&mut self, may_be_long: bool, portion: &mut [u8]) -> Line {
        if let State::Decoding(thread) = &self.state {
            if !thread.is_finished() {
                return Line::None;
            }
            let State::Decoding(thread) = std::mem::replace(&mut self.state, State::Asking) else {
                return Line::None;
            };
            let command =
                thread.join().unwrap_or_else(|_| Err("the request cannot be read".into()));
            return self.ask(command);
        }
        for _ in 0..PORTIONS {
            if !self.wants_input() || !self.fill(portion) {
                break;
            }
        }
        if !self.is_idle() {
            return Line::None;
        }
        let is_rules = brings_rules(&self.input);
        let limit = if may_be_long && is_rules { MAX_LONG_LINE } else { MAX_LINE };
        let line = self.take_line();
        if line.as_ref().map_or(self.input.len(), Vec::len) <= limit {
            return line.map_or(Line::None, |line| self.look_at(line));
        }
        let why = if is_rules && limit == MAX_LINE {
            "another client is sending a long request: try again later".to_owned()
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
        Line::Answered
    }

    /// Reads once. False where nothing is there any more.
    fn fill(&mut self, portion: &mut [u8]) -> bool {
        match self.stream.read(portion) {
            Ok(0) => {
                self.has_ended = true;
                false
            }
            Ok(n) => {
                self.input.extend(&portion[..n]);
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

    /// Drops what belongs to a line that was refused.
    fn skip(&mut self) {
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

    fn take_line(&mut self) -> Option<Vec<u8>> {
        // Empty lines before it are dropped at once: there may be a million.
        let mut begin = 0;
        loop {
            let end = self.input[self.scanned..].iter().position(|b| *b == b'\n');
            let end = match end {
                Some(end) => self.scanned + end,
                // The last line may have no end.
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
            // Whoever types may send empty ones.
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

    fn look_at(&mut self, line: Vec<u8>) -> Line {
        if line.len() < HEAVY {
            return self.ask(Command::decode(&line));
        }
        let decode = move || Command::decode(&line);
        match std::thread::Builder::new().name("tapdeck-request".into()).spawn(decode) {
            Ok(thread) => {
                self.state = State::Decoding(thread);
                Line::None
            }
            Err(e) => {
                self.put(Answer::error(&format!("cannot read the request now: {e}")));
                Line::Answered
            }
        }
    }

    fn ask(&mut self, command: Result<Command, String>) -> Line {
        self.state = State::Idle;
        let why = match command {
            Ok(command) if command.is_harmless() || self.peer.is_operator() => {
                self.state = State::Asking;
                return Line::Asked(command);
            }
            Ok(_) => {
                "no permission: only root and the user that tapdeck runs as may change what is captured".into()
            }
            Err(why) => why,
        };
        self.put(Answer::error(&why));
        Line::Answered
    }

    fn write(&mut self) -> io::Result<()> {
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

/// Whether a line brings rules, which may be long. It may not be here to its end.
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

#[cfg(test)]
mod tests;
