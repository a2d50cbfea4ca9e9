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

mod client;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::rates::Rates;
use super::{Answer, Command, Socket};
use client::{Client, Heard, State};

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
/// Bytes that are read from one client in one turn.
const PORTION: usize = 64 << 10;
/// How long a client that sends a long line may pause while another client wants to send one.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// Bytes of long answers that clients have not read: with more, no other long answer is made.
const MAX_UNREAD: usize = 16 << 20;

/// The clients of a socket.
pub struct Server {
    socket: Socket,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// When connections are accepted again, where accepting one has failed.
    accept_from: Instant,
    /// Whether somebody asks for a connection. To accept none takes longer than all else of a turn
    /// in which nothing comes.
    is_asked: bool,
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

    /// Rings for a signal, too, behind what is done for it already.
    ///
    /// # Errors
    /// As dup(2) and sigaction(2).
    pub fn ring_for(&self, signal: i32) -> io::Result<()> {
        signal_hook::low_level::pipe::register(signal, self.0.try_clone()?).map(drop)
    }
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
            is_asked: false,
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
        let is_rung = fds[rung.clone()].iter().any(|fd| !fd.revents().is_empty());
        let is_asked = fds[rung.end..].iter().any(|fd| !fd.revents().is_empty());
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
        self.is_asked |= is_asked;
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
        if !std::mem::take(&mut self.is_asked) || Instant::now() < self.accept_from {
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

#[cfg(test)]
mod tests;
