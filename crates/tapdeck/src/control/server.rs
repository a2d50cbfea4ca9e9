//! The server's end of the control socket: how does one thread, which has other things to do, serve
//! all clients, none of which it trusts?
//!
//! Whoever has what clients ask for calls [`Server::turn`], which reads, writes and returns
//! commands. A client has at most one request under way: its next line is looked at when the answer
//! to the last one is written. So answers come in order, and a client that does not read holds one
//! answer and no more. Lines are bounded, too: one client at a time may send a long one, the text
//! of a rule file, and its JSON is read on a thread of its own.
//!
//! When there are as many clients as there may be, a new one takes the place of another: of the
//! user who has most, the client that was silent for longest. Members of groups are not counted:
//! the groups have their own bound. Operators have places of their own, their requests come first,
//! and what all others may ask for is limited for each user (`rates`): a user beyond the limit
//! waits, and nobody else does.
//!
//! The server does not know what commands do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::rates::Rates;
use super::{Answer, Command, Socket};

/// A client, as long as it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process's number; 0 where the process is of another namespace.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// What came from a client.
#[derive(Debug)]
pub enum Event {
    /// A command, to be answered now or later. Nothing else comes from the client until then.
    Asked(ClientId, Command),
    /// A member's connection has ended; no answer is needed.
    Gone(ClientId),
}

/// The most clients that are no members: of operators, and of all others.
const MAX_CLIENTS: usize = 64;
/// Bytes of a line at most, and of a line that brings rules.
const MAX_LINE: usize = 1 << 20;
/// Bytes of a line at most of a client that may only look.
const MAX_SHORT_LINE: usize = 64 << 10;
const MAX_LONG_LINE: usize = 64 << 20;
/// Bytes that are read from one client in one turn.
const PORTION: usize = 64 << 10;
/// Portions that one turn reads of a client that sends a long line.
const PORTIONS: usize = 16;
/// Lines of so many bytes or more are read as JSON on a thread of their own.
const HEAVY: usize = 64 << 10;
/// How long a client that sends a long line may pause while another client wants to send one.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// Bytes of long answers that clients have not read: with more, no other long answer is made.
const MAX_UNREAD: usize = 16 << 20;
/// The most file descriptors that go with one answer.
const MAX_FDS: usize = 4;

/// The clients of a socket.
pub struct Server {
    socket: Socket,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// When connections are accepted again, where accepting one has failed.
    accept_from: Instant,
    /// The client that may send a long line at present.
    long: Option<ClientId>,
    /// Members that are gone and not reported yet.
    gone: Vec<ClientId>,
    /// Commands with long answers that wait: one of them is handed on in a turn.
    heavy: VecDeque<(ClientId, Command)>,
    /// What users have asked for of late.
    rates: Rates,
    /// Readable when a turn is to end for another reason than a client's.
    bell: OwnedFd,
    rings_bell: Bell,
    /// The buffer of one reading.
    portion: Box<[u8]>,
}

/// Ends a turn of the server from another thread.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    pub fn ring(&self) {
        // A full pipe has been rung.
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

struct Client {
    stream: UnixStream,
    /// Whether the connection can be read or written, as poll(2) says.
    is_ready: bool,
    /// Whether the other end has gone, as poll(2) says.
    has_hung_up: bool,
    peer: Peer,
    is_operator: bool,
    /// Whether the client's user has asked for so much that nothing of the client is read now.
    is_throttled: bool,
    /// Bytes that were read and not counted yet.
    uncounted: usize,
    is_member: bool,
    watches: bool,
    input: Vec<u8>,
    /// How many bytes at the beginning of `input` are known to have no end of line.
    scanned: usize,
    /// Whether the rest of the line is dropped, because the line was refused.
    skips: bool,
    /// Whether nothing more comes from the client.
    has_ended: bool,
    state: State,
    output: Vec<u8>,
    written: usize,
    fds: Vec<OwnedFd>,
    active: Instant,
}

enum State {
    Idle,
    /// The client's line is being read as JSON.
    Decoding(JoinHandle<Result<Command, String>>),
    /// The client's command is not answered yet.
    Asking,
}

/// What reading from a client led to.
enum Heard {
    None,
    Asked(Command),
    Answered,
}

impl Server {
    /// Begins to serve the clients of a socket.
    ///
    /// # Errors
    /// As pipe(2).
    pub fn new(socket: Socket) -> io::Result<Self> {
        let now = Instant::now();
        let (bell, rings_bell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self {
            socket,
            clients: BTreeMap::new(),
            next: 0,
            accept_from: now,
            long: None,
            gone: Vec::new(),
            heavy: VecDeque::new(),
            rates: Rates::new(now),
            bell,
            rings_bell: Bell(Arc::new(rings_bell)),
            portion: vec![0; PORTION].into(),
        })
    }

    /// Returns what ends a turn from another thread.
    pub fn bell(&self) -> Bell {
        self.rings_bell.clone()
    }

    /// Returns what clients have asked as soon as there is anything, that of operators first;
    /// nothing at `until`, or when the bell was rung or `alarm` can be read.
    pub fn turn(&mut self, until: Instant, alarm: Option<BorrowedFd<'_>>) -> Vec<Event> {
        loop {
            self.unthrottle();
            let mut patience = until.saturating_duration_since(Instant::now());
            if self.clients.values().any(Client::has_more)
                || (!self.heavy.is_empty() && self.has_room())
            {
                patience = Duration::ZERO;
            } else if !self.heavy.is_empty() {
                // Room for a long answer comes when a client reads, or has not read for too long.
                patience = patience.min(Duration::from_millis(5));
            } else if self.clients.values().any(|c| matches!(c.state, State::Decoding(_))) {
                // The thread that reads JSON does not wake this one.
                patience = patience.min(Duration::from_millis(2));
            }
            let accepts_again = self.accept_from.saturating_duration_since(Instant::now());
            if !accepts_again.is_zero() {
                patience = patience.min(accepts_again);
            }
            if self.clients.values().any(|c| c.is_throttled) {
                patience = patience.min(Duration::from_millis(10));
            }
            let is_rung = self.wait(patience, alarm);
            let events = self.gather();
            if !events.is_empty() || is_rung || Instant::now() >= until {
                return events;
            }
        }
    }

    /// Answers what a client has asked.
    pub fn answer(&mut self, id: ClientId, answer: impl Into<Answer>) {
        // A client that has gone needs no answer.
        let Some(client) = self.clients.get_mut(&id) else { return };
        let answer = answer.into();
        if !client.is_operator {
            self.rates.charge_bytes(client.peer.uid, answer.line.len());
        }
        client.state = State::Idle;
        client.put(answer);
        self.write(id);
    }

    /// Whether a client may change what is captured for everybody.
    pub fn is_operator(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|client| client.is_operator)
    }

    /// Reads on from clients whose users may ask again.
    fn unthrottle(&mut self) {
        let now = Instant::now();
        for client in self.clients.values_mut().filter(|client| client.is_throttled) {
            client.is_throttled = self.rates.is_spent(client.peer.uid, now);
        }
    }

    /// Returns the process behind a client.
    pub fn peer(&self, id: ClientId) -> Option<Peer> {
        self.clients.get(&id).map(|client| client.peer)
    }

    /// Makes a client a member: the end of its connection is reported, however it comes.
    pub fn make_member(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_member = true;
        }
    }

    /// Makes a member a client like others again.
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

    /// Sends an answer to all clients that watch. One that has not read the last answer misses this
    /// one.
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

    /// Writes the answers that are left, for `patience` at most.
    pub fn flush(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.clients.values().any(|c| !c.output.is_empty()) && Instant::now() < until {
            self.wait(Duration::from_millis(5), None);
            for id in self.ids() {
                self.write(id);
            }
        }
    }

    /// Waits until some client can be served, and notes which. Returns whether the bell was rung,
    /// or the alarm rings.
    fn wait(&mut self, patience: Duration, alarm: Option<BorrowedFd<'_>>) -> bool {
        let accepts = Instant::now() >= self.accept_from;
        let listener = accepts.then(|| PollFd::new(&self.socket.listener, PollFlags::IN));
        // A client that waits for its answer is left out: poll would return at once, again and
        // again, if it had gone.
        let waiting = self.clients.iter().filter(|(_, client)| client.waits());
        let (ids, clients): (Vec<ClientId>, Vec<PollFd<'_>>) =
            waiting.map(|(id, c)| (*id, PollFd::new(&c.stream, c.awaits()))).unzip();
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let alarm = alarm.map(|alarm| PollFd::from_borrowed_fd(alarm, PollFlags::IN));
        let rung = ids.len()..ids.len() + 1 + usize::from(alarm.is_some());
        let mut fds: Vec<PollFd<'_>> =
            clients.into_iter().chain([bell]).chain(alarm).chain(listener).collect();
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        // A signal ends the wait early, and then no client is ready.
        let _ = poll(&mut fds, Some(&timeout));
        let is_rung = fds[rung].iter().any(|fd| !fd.revents().is_empty());
        let ready: Vec<(ClientId, bool)> = ids
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(id, fd)| (id, fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)))
            .collect();
        for (id, has_hung_up) in ready {
            if let Some(client) = self.clients.get_mut(&id) {
                client.is_ready = true;
                client.has_hung_up |= has_hung_up;
            }
        }
        if is_rung {
            let mut bytes = [0; 64];
            while rustix::io::read(&self.bell, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
        }
        is_rung
    }

    fn gather(&mut self) -> Vec<Event> {
        self.accept();
        let mut events = Vec::new();
        for id in self.ids() {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let is_ready = std::mem::take(&mut client.is_ready);
            if client.is_throttled && client.has_hung_up {
                // Nobody reads what it may still have asked.
                self.drop_client(id);
                continue;
            }
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
        // Reading and writing may have ended clients, too.
        events.extend(std::mem::take(&mut self.gone).into_iter().map(Event::Gone));
        events
    }

    /// Returns a command with a long answer, if the long answers that are not read yet leave room.
    fn next_heavy(&mut self) -> Option<(ClientId, Command)> {
        let Self { clients, heavy, .. } = self;
        heavy.retain(|(id, _)| clients.contains_key(id));
        if heavy.is_empty() {
            return None;
        }
        if !self.has_room() {
            // A client that asks for much and does not read keeps long answers from the others.
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

    /// Returns all clients, operators first.
    fn ids(&self) -> Vec<ClientId> {
        let of = |operators: bool| {
            self.clients.iter().filter(move |(_, client)| client.is_operator == operators)
        };
        of(true).chain(of(false)).map(|(id, _)| *id).collect()
    }

    fn accept(&mut self) {
        if Instant::now() < self.accept_from {
            return;
        }
        // The rest are accepted in a later turn: clients that connect without end hold up nobody.
        for _ in 0..MAX_CLIENTS {
            match self.socket.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The usual reason is that this process has too many files open.
                Err(_) => {
                    self.accept_from = Instant::now() + Duration::from_millis(100);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream) {
        let Ok(peer) = prepare(&stream) else { return };
        let operator = peer.is_operator();
        let others =
            || self.clients.iter().filter(move |(_, c)| !c.is_member && c.is_operator == operator);
        if others().count() >= MAX_CLIENTS {
            // Who takes the most places gives one back: nobody can take those of other users.
            let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
            for (_, client) in others() {
                *of_user.entry(client.peer.uid).or_default() += 1;
            }
            let silent = others().min_by_key(|(_, c)| (Reverse(of_user[&c.peer.uid]), c.active));
            if let Some(id) = silent.map(|(id, _)| *id) {
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

    /// Reads from one client. Returns the command that it asks for.
    fn read(&mut self, id: ClientId) -> Option<Command> {
        let client = self.clients.get_mut(&id)?;
        let mut may_be_long = self.long.is_none_or(|long| long == id);
        if !may_be_long && client.wants_to_be_long() {
            may_be_long = self.take_over_long();
        }
        let client = self.clients.get_mut(&id)?;
        let (uid, limited) = (client.peer.uid, !client.is_operator);
        if limited && self.rates.is_spent(uid, Instant::now()) {
            client.is_throttled = true;
            return None;
        }
        let heard = client.read(may_be_long, &mut self.portion);
        if limited {
            self.rates.charge_bytes(uid, std::mem::take(&mut client.uncounted));
            match &heard {
                Heard::Asked(command) => self.rates.charge(uid, command.cost()),
                Heard::Answered => self.rates.charge(uid, 1),
                Heard::None => {}
            }
        }
        let is_long = client.input.len() > MAX_LINE;
        let over = client.is_finished();
        match (is_long, self.long) {
            (true, None) => self.long = Some(id),
            (false, Some(long)) if long == id => self.long = None,
            _ => {}
        }
        match heard {
            Heard::Asked(command) => return Some(command),
            Heard::Answered => self.write(id),
            Heard::None if over => self.drop_client(id),
            Heard::None => {}
        }
        None
    }

    /// Whether another client may send a long line, because the one that does has been silent for
    /// too long.
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
    let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
    Ok(Peer { pid: peer.pid.as_raw_pid(), uid, gid })
}

impl Peer {
    /// Whether the process may change what is captured for everybody.
    pub fn is_operator(self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

impl Client {
    fn new(stream: UnixStream, peer: Peer) -> Self {
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

    /// Whether poll(2) is to look at the client. It tells a member's end in any case.
    fn waits(&self) -> bool {
        !self.awaits().is_empty() || (self.is_throttled && self.is_member)
    }

    /// Whether the client is to be read from. A member is, even while it has an answer to read, so
    /// that its end is seen.
    fn wants_input(&self) -> bool {
        let room = self.input.len() < self.longest_line() || self.is_idle();
        let reads = self.is_idle() || self.is_member || self.watches;
        !self.is_throttled && !self.has_ended && room && reads
    }

    /// Returns how long a line may be that brings no rules.
    fn longest_line(&self) -> usize {
        if self.is_operator { MAX_LINE } else { MAX_SHORT_LINE }
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.output.is_empty()
    }

    /// Whether there is input that was read and not looked at.
    fn has_more(&self) -> bool {
        let unseen = self.scanned < self.input.len() || (self.has_ended && !self.input.is_empty());
        unseen && self.is_idle() && !self.is_throttled
    }

    /// Whether everything that the client asked for is answered, and nothing more will come.
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

    /// Reads what has come, and looks at the next line if the last one is answered.
    fn read(&mut self, may_be_long: bool, portion: &mut [u8]) -> Heard {
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
    fn fill(&mut self, portion: &mut [u8]) -> bool {
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

    fn look_at(&mut self, line: Vec<u8>) -> Heard {
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

    fn ask(&mut self, command: Result<Command, String>) -> Heard {
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

#[cfg(test)]
mod tests;
