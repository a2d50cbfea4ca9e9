//! How does a member talk to the daemon?
//!
//! Over a Unix stream socket, in JSON lines: a request, then its answer (`docs/CLIENT.md`, "The
//! protocol", and `docs/CONTROL.md`). The connection is the membership. When it ends, by whatever
//! cause, the member has left its group. Packets do not come this way; they lie in the rings, whose
//! descriptors come with the answer to `attach`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::InterfaceDescription;

use crate::memory::Geometry;
use crate::{Address, Error};

/// The path at which the daemon listens by default.
pub const DEFAULT_SOCKET: &str = "/run/tapdeck/serve.sock";
/// The environment variable that names another socket than [`DEFAULT_SOCKET`].
pub const SOCKET_VARIABLE: &str = "TAPDECK_SOCKET";
/// The version of the protocol that this crate speaks.
const PROTOCOL: u32 = 1;
/// How long the daemon may take for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer at most.
const MAX_LINE: usize = 16 << 20;
/// How many descriptors come with an attachment: the maps `rings`, `data` and `release`, and the
/// pipe `wake`.
const ATTACHED_FDS: usize = 4;

/// Returns the path of the daemon's socket: the value of [`SOCKET_VARIABLE`] if that is set and not
/// empty, else [`DEFAULT_SOCKET`].
pub fn default_socket() -> PathBuf {
    let named = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from)
}

#[derive(Serialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
enum Request<'a> {
    Attach { group: &'a str, weight: u32 },
    Reattach { group: &'a str, member: u32, secret: &'a str },
    Stats,
    Flush,
    Leave,
    Groups,
}

/// What every answer begins with.
#[derive(Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    error: String,
}

/// The answer to `attach`.
#[derive(Deserialize)]
struct Attached {
    protocol: u32,
    member: u32,
    snaplen: u32,
    #[serde(flatten)]
    geometry: Geometry,
    interfaces: Vec<Interface>,
    #[serde(default)]
    lasting: Option<LastingGrant>,
}

/// What a member gets of a daemon whose groups outlive it.
#[derive(Clone, Debug, Deserialize)]
pub struct LastingGrant {
    /// The word by which the next daemon knows the member.
    pub secret: String,
    /// How long programs go on without a daemon, milliseconds.
    pub abandon_ms: u64,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    link: u16,
    #[serde(default)]
    snaplen: u32,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    filter: Option<String>,
    #[serde(default)]
    hardware: Option<String>,
    #[serde(default)]
    mac: Option<String>,
}

impl From<Interface> for InterfaceDescription {
    fn from(interface: Interface) -> Self {
        Self {
            link: LinkType(interface.link),
            snaplen: interface.snaplen,
            name: interface.name,
            description: interface.description.unwrap_or_default(),
            filter: interface.filter,
            hardware: interface.hardware,
            mac: interface.mac.as_deref().and_then(mac),
        }
    }
}

/// Parses an Ethernet address written as `02:00:00:00:00:01`.
fn mac(text: &str) -> Option<[u8; 6]> {
    let byte = |text: &str| (text.len() == 2).then(|| u8::from_str_radix(text, 16).ok())?;
    let mut bytes = text.split(':').map(byte);
    let mac = [(); 6].map(|()| bytes.next().flatten());
    let whole = bytes.next().is_none() && mac.iter().all(Option::is_some);
    whole.then(|| mac.map(Option::unwrap_or_default))
}

/// Packets that the daemon counts for a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Packets that the group saw since the daemon began, whichever member got them.
    pub seen: u64,
    /// Packets that the group's interfaces received since the daemon began, and that its hooks were
    /// not shown.
    pub unseen: u64,
    /// Packets that came into the member's rings.
    pub captured: u64,
    /// Packets for this member that were dropped because its rings had no free block.
    pub dropped_ring: u64,
    /// Packets for this member that were dropped for any other reason.
    pub dropped_other: u64,
}

/// A group that the daemon offers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Group {
    /// The name by which [`crate::Member::open`] attaches.
    pub name: String,
    /// The names of the interfaces whose packets the group gets.
    #[serde(default)]
    pub interfaces: Vec<String>,
}

/// What a member gets from the daemon when it attaches.
pub struct Grant {
    pub member: u32,
    pub snaplen: u32,
    pub geometry: Geometry,
    pub interfaces: Vec<InterfaceDescription>,
    pub rings: OwnedFd,
    pub data: OwnedFd,
    pub release: OwnedFd,
    pub wake: OwnedFd,
    pub lasting: Option<LastingGrant>,
}

impl Grant {
    /// Reads the answer to `attach`, which came with these descriptors.
    pub fn read(line: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let attached: Attached = answer(line)?;
        if attached.protocol != PROTOCOL {
            let theirs = attached.protocol;
            return Err(Error::Version { ours: PROTOCOL, theirs });
        }
        let [rings, data, release, wake] = <[OwnedFd; ATTACHED_FDS]>::try_from(fds)
            .map_err(|fds| Error::Answer(format!("it came with {} descriptors", fds.len())))?;
        if attached.interfaces.is_empty() {
            return Err(Error::Answer("it names no interface".into()));
        }
        Ok(Self {
            member: attached.member,
            snaplen: attached.snaplen,
            geometry: attached.geometry,
            interfaces: attached.interfaces.into_iter().map(Into::into).collect(),
            rings,
            data,
            release,
            wake,
            lasting: attached.lasting,
        })
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    /// Bytes that were received behind the last answer.
    rest: Vec<u8>,
    /// Why an answer did not come. A late answer must not be taken for the answer to another
    /// request, so no other request is made.
    failed: Option<io::ErrorKind>,
}

impl Session {
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        let reach = |why| Error::NoDaemon { socket: socket.to_owned(), why };
        let stream = Address::of(socket).and_then(|a| a.connect()).map_err(reach)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(Error::Connection)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(Error::Connection)?;
        Ok(Self::of(stream))
    }

    /// Takes a connection over.
    pub fn of(stream: UnixStream) -> Self {
        Self { stream, rest: Vec::new(), failed: None }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Makes this connection a member of a group.
    pub fn attach(&mut self, group: &str, weight: u32) -> Result<Grant, Error> {
        let mut fds = Vec::new();
        let line = self.exchange(&Request::Attach { group, weight }, &mut fds)?;
        Grant::read(&line, fds)
    }

    /// Asks the daemon at a socket, if there is one, for the place that a member had with the
    /// daemon before. Waits for nothing: [`Session::answer_to_reattach`] has the answer when it
    /// has come.
    pub fn ask_to_reattach(
        socket: &Path,
        group: &str,
        member: u32,
        secret: &str,
    ) -> Result<Self, Error> {
        let reach = |why| Error::NoDaemon { socket: socket.to_owned(), why };
        let stream = Address::of(socket).and_then(|a| a.connect_now()).map_err(reach)?;
        let mut session = Self::of(stream);
        session.send(&Request::Reattach { group, member, secret })?;
        session.stream.set_nonblocking(false).map_err(Error::Connection)?;
        session.stream.set_read_timeout(Some(PATIENCE)).map_err(Error::Connection)?;
        session.stream.set_write_timeout(Some(PATIENCE)).map_err(Error::Connection)?;
        Ok(session)
    }

    /// Returns the answer to [`Session::ask_to_reattach`]; `None` where it has not come.
    pub fn answer_to_reattach(&mut self) -> Option<Result<Grant, Error>> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) {
            return None;
        }
        // The daemon sends the line as a whole.
        let mut fds = Vec::new();
        let line = self.line(&mut fds);
        Some(line.and_then(|line| Grant::read(&line, fds)))
    }

    /// Asks what the daemon counts for this member.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.ask(&Request::Stats)
    }

    /// Asks the daemon to close part-filled blocks, so that they can be read as whole blocks.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.ask::<Answer>(&Request::Flush).map(drop)
    }

    /// Leaves the group. Packets that are in the rings can still be read.
    pub fn leave(&mut self) -> Result<(), Error> {
        self.ask::<Answer>(&Request::Leave).map(drop)
    }

    /// Asks for the daemon's groups.
    pub fn groups(&mut self) -> Result<Vec<Group>, Error> {
        #[derive(Deserialize)]
        struct Groups {
            groups: Vec<Group>,
        }
        self.ask::<Groups>(&Request::Groups).map(|answer| answer.groups)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request<'_>) -> Result<T, Error> {
        // Descriptors that nobody asked for are closed.
        answer(&self.exchange(request, &mut Vec::new())?)
    }

    /// Sends a request and receives the line that answers it.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Vec<u8>, Error> {
        match self.failed {
            Some(io::ErrorKind::WouldBlock) => return Err(Error::Silent),
            Some(kind) => return Err(Error::Connection(kind.into())),
            None => {}
        }
        let line = self.send(request).and_then(|()| self.line(fds));
        self.failed = match &line {
            Ok(_) => None,
            Err(Error::Silent) => Some(io::ErrorKind::WouldBlock),
            Err(Error::Connection(e)) => Some(e.kind()),
            Err(_) => Some(io::ErrorKind::InvalidData),
        };
        line
    }

    fn send(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).map_err(|e| Error::Answer(e.to_string()))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            // If the daemon has gone, this is an error and not a signal.
            match send(&self.stream, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(Error::Silent),
                Err(e) => return Err(Error::Connection(e.into())),
            }
        }
        Ok(())
    }

    /// Receives the next line, without its end. Descriptors that come with it are added to `fds`.
    fn line(&mut self, fds: &mut Vec<OwnedFd>) -> Result<Vec<u8>, Error> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.rest[looked..].iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=looked + end).collect();
                line.pop();
                return Ok(line);
            }
            looked = self.rest.len();
            if looked > MAX_LINE {
                return Err(Error::Answer(format!("it is longer than {MAX_LINE} bytes")));
            }
            self.receive(fds)?;
        }
    }

    fn receive(&mut self, fds: &mut Vec<OwnedFd>) -> Result<(), Error> {
        let mut bytes = [0; 16 << 10];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let received = loop {
            match recvmsg(&self.stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(Error::Silent),
                Err(e) => return Err(Error::Connection(e.into())),
                Ok(message) => break message.bytes,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if received == 0 {
            return Err(Error::Connection(io::ErrorKind::UnexpectedEof.into()));
        }
        self.rest.extend_from_slice(&bytes[..received]);
        Ok(())
    }
}

/// Reads an answer. One that says what went wrong is [`Error::Refused`].
fn answer<T: DeserializeOwned>(line: &[u8]) -> Result<T, Error> {
    let what = |e: serde_json::Error| Error::Answer(e.to_string());
    let answer: Answer = serde_json::from_slice(line).map_err(what)?;
    if !answer.ok {
        return Err(Error::Refused(answer.error));
    }
    serde_json::from_slice(line).map_err(what)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::{Session, mac};
    use crate::Error;

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_another() {
        let (stream, mut daemon) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut session = Session { stream, rest: Vec::new(), failed: None };
        assert!(matches!(session.stats(), Err(Error::Silent)));
        daemon.write_all(b"{\"ok\":true,\"seen\":7}\n").unwrap();
        assert!(matches!(session.stats(), Err(Error::Silent)));
        assert!(matches!(session.leave(), Err(Error::Silent)));
    }

    #[test]
    fn mac_addresses_are_read_whole_or_not_at_all() {
        assert_eq!(mac("02:00:0a:ff:00:01"), Some([2, 0, 10, 255, 0, 1]));
        for text in
            ["", "02:00:0a:ff:00", "02:00:0a:ff:00:01:02", "02:00:0a:ff:00:xx", "020:0:0:0:0:0"]
        {
            assert_eq!(mac(text), None, "{text}");
        }
    }
}
