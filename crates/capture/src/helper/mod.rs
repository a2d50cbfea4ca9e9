//! Who does for a recorder what takes privileges, when it has none any more?
//!
//! The [`Helper`] is a second process. It is divided from the recorder after the programs were
//! loaded and before there is another thread, a file of the output, or a packet. It has the loaded
//! objects, holds the links, and does a handful of things that the recorder asks for ([`wire`]): it
//! attaches and detaches, loads the programs again for a device that was made anew or with another
//! filter, and opens interfaces that come later. It reads nothing of a packet and nothing that a
//! user wrote: a filter comes as classic BPF, which can do nothing but judge a frame, and both the
//! translation here and the kernel's verifier check it. It attaches to the interfaces alone that
//! the recorder was started for, by name or by a pattern ([`Later`]).
//!
//! When the recorder is gone, however it ended, the helper sees the end of their socket, takes the
//! programs away, and ends. When the helper is gone, so are the links, and the recorder ends. (What
//! outlives its recorder by design is pinned, and stays.)

pub(crate) mod wire;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use tapdeck_packet::watch::waiting;

use crate::bpf::loaded::HandedOver;
use crate::filter::cbpf::ClassicProgram;
use crate::interface::Interface;
use crate::persist::LaterPins;
use crate::rules::Places;
use crate::sys::process;
use crate::{Capture, Config};
use wire::{Answer, Fault, MOST_BYTES, OpenAt, Request};

/// How long the helper may take for an answer: the kernel may verify a large program for seconds.
const ANSWER: Duration = Duration::from_secs(120);
/// The most descriptors that come with an answer.
const MOST_DESCRIPTORS: usize = HandedOver::COUNT;
/// How long the helper may take to end.
const END: Duration = Duration::from_secs(10);

/// What a helper has of the process that it was divided from.
pub(crate) trait Privileged {
    /// Lets go of what is the other process's affair.
    fn forget(&mut self);

    /// Does what is asked about the interface or the group of a number; `None` where there is no
    /// such.
    fn help(&mut self, at: usize, request: &Request) -> Option<Result<Answer, Fault>>;

    /// Detaches the programs, unless they are to go on.
    fn detach(&mut self, stays: bool);
}

/// Says how an interface is recorded, or why it is not to be.
type Admit = Box<dyn Fn(&Interface) -> Result<Config, String>>;

/// Which interfaces may be opened after the helper was divided, and how.
pub struct Later {
    /// Returns how an interface is recorded, or why it is not to be.
    pub admit: Admit,
    /// How many interfaces may be open, those from the start among them.
    pub most: usize,
    /// Where they are pinned, if they are to outlive their process.
    pub pins: Option<LaterPins>,
}

/// The captures of a recorder, and those that may come later.
struct Captures<'a> {
    places: &'a mut Vec<Capture>,
    later: Option<Later>,
    /// An interface that was opened, and the place that it gets if that is what becomes of it.
    opened: Option<(usize, Capture)>,
}

impl Captures<'_> {
    /// Opens an interface for a place where one was that is detached, or behind all.
    fn open(
        &mut self,
        at: usize,
        ifindex: u32,
        OpenAt { first, most, pin }: OpenAt,
        program: Option<&ClassicProgram>,
    ) -> Result<Answer, Fault> {
        self.opened = None;
        let later = self.later.as_ref().filter(|later| at < later.most);
        let later = later.filter(|_| at <= self.places.len());
        let later = later.filter(|_| !self.places.get(at).is_some_and(Capture::is_attached));
        let later = later.filter(|later| later.pins.is_some() == pin.is_some());
        let later = later.ok_or_else(|| refused(libc::EPERM))?;
        let pin = pin.map(|pin| pin as usize);
        // What is pinned of another one stays.
        if pin.is_some() && self.places.iter().any(|capture| capture.lasting_index() == pin) {
            return Err(refused(libc::EPERM));
        }
        let found = Interface::by_index(ifindex).map_err(|e| Fault::Place(io::Error::other(e)))?;
        let interface = found.ok_or_else(|| refused(libc::ENODEV))?;
        let config = (later.admit)(&interface);
        let config = config.map_err(|why| Fault::Place(io::Error::other(why)))?;
        let place = later.pins.as_ref().zip(pin).map(|(pins, pin)| {
            let place = pins.place(pin).ok_or_else(|| refused(libc::EPERM))?;
            place.map_err(Fault::Place)
        });
        let place = place.transpose()?;
        let opened =
            Capture::open_for_recorder(interface, &config, (first, most), program, place.as_ref());
        if let (Err(_), Some(place)) = (&opened, place) {
            // What cannot be removed now the next owner removes.
            let _ = place.remove_pins();
        }
        let (capture, answer) = opened?;
        self.opened = Some((at, capture));
        Ok(answer)
    }

    /// Gives the interface that was opened its place, or gives it up.
    fn settle(&mut self, at: usize, stays: bool) -> Result<Answer, Fault> {
        let opened = self.opened.take_if(|(place, _)| *place == at);
        let (_, mut capture) = opened.ok_or_else(|| refused(libc::EINVAL))?;
        if !stays {
            // As above.
            let _ = capture.help(&Request::GiveUp);
        } else if let Some(place) = self.places.get_mut(at) {
            std::mem::replace(place, capture).detach_here(false);
        } else {
            self.places.push(capture);
        }
        Ok(Answer::default())
    }
}

fn refused(number: i32) -> Fault {
    Fault::Place(io::Error::from_raw_os_error(number))
}

impl Privileged for Captures<'_> {
    fn forget(&mut self) {
        self.places.iter_mut().for_each(Capture::forget_rings);
    }

    fn help(&mut self, at: usize, request: &Request) -> Option<Result<Answer, Fault>> {
        match request {
            Request::Open { ifindex, at: rings, program } => {
                return Some(self.open(at, *ifindex, *rings, program.as_ref()));
            }
            Request::Settle { stays } => return Some(self.settle(at, *stays)),
            _ => {}
        }
        let opened = self.opened.as_mut().filter(|(place, _)| *place == at);
        let opened = opened.map(|(_, capture)| capture);
        Some(opened.or_else(|| self.places.get_mut(at))?.help(request))
    }

    fn detach(&mut self, stays: bool) {
        let opened = self.opened.iter_mut().map(|(_, capture)| capture);
        self.places.iter_mut().chain(opened).for_each(|capture| capture.detach_here(stays));
    }
}

/// The recorder's end of its helper. The helper ends when this is dropped.
#[derive(Debug)]
pub struct Helper {
    /// `None` when the helper is to end, or has.
    socket: Mutex<Option<OwnedFd>>,
    pid: Pid,
}

impl Helper {
    /// Divides the helper of these captures from this process, which must have no other thread. The
    /// captures leave to it what takes privileges, and it opens those that come `later`. The helper
    /// runs `begin` before anything else. In the end it detaches the programs, but for those of a
    /// recording that outlives its process (`stays`), and runs `end`.
    ///
    /// # Errors
    /// As fork(2), and `EBUSY` where there are other threads.
    pub fn divide(
        captures: &mut Vec<Capture>,
        later: Option<Later>,
        begin: impl FnOnce() -> io::Result<()>,
        stays: impl FnOnce() -> bool,
        end: impl FnOnce(),
    ) -> io::Result<Arc<Self>> {
        let mut divided = Captures { places: captures, later, opened: None };
        let helper = Self::divide_from(&mut divided, begin, stays, end)?;
        for (number, capture) in (0..).zip(captures) {
            capture.is_helped(&helper, number);
        }
        Ok(helper)
    }

    /// Divides the helper that does what takes privileges in the place of this process, as
    /// [`Helper::divide`] does.
    pub(crate) fn divide_from(
        what: &mut dyn Privileged,
        begin: impl FnOnce() -> io::Result<()>,
        stays: impl FnOnce() -> bool,
        end: impl FnOnce(),
    ) -> io::Result<Arc<Self>> {
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let Some(pid) = process::divide()? else {
            drop(ours);
            process::ignore_signals();
            // Standard error stays, for a fault.
            let apart = leave_standard_streams().and_then(|()| begin());
            if apart.is_ok() {
                let _ = rustix::thread::set_name(c"tapdeck-helper");
                attend(what, its.as_fd());
            }
            what.detach(stays());
            end();
            process::end(0)
        };
        Ok(Arc::new(Self { socket: Mutex::new(Some(ours)), pid }))
    }

    /// Returns the number of the helper's process.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns whether another thread waits for the helper.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.socket.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Returns a descriptor of the socket to the helper, by which poll(2) tells when the helper has
    /// ended; `None` where it has.
    pub fn socket(&self) -> io::Result<Option<OwnedFd>> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Returns whether the helper has ended, and with it the hooks are gone.
    pub fn is_gone(&self) -> bool {
        let mut socket = match self.socket.try_lock() {
            Ok(socket) => socket,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Who waits for an answer there finds out.
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(fd) = &*socket else { return true };
        let mut asked = [PollFd::new(fd, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut asked, Some(&now));
        if asked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            *socket = None;
        }
        socket.is_none()
    }

    /// Has the helper end, and waits until it has.
    pub fn end(&self) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let until = Instant::now() + END;
        while let Ok(None) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
            if Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks for something about an interface, and waits until it is done.
    pub(crate) fn ask(&self, interface: u32, request: &Request) -> Result<Answer, Fault> {
        let mut socket = waiting(|| self.socket.lock().unwrap_or_else(PoisonError::into_inner));
        let answered = match &*socket {
            Some(fd) => waiting(|| exchange(fd.as_fd(), &request.write(interface))),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        let Ok((bytes, fds)) = answered else {
            *socket = None;
            return Err(Fault::Place(io::Error::other("the process that has the hooks has ended")));
        };
        let answer = wire::read_answer(&bytes, fds);
        answer.unwrap_or_else(|| Err(Fault::Place(io::ErrorKind::InvalidData.into())))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a request and waits for its answer.
fn exchange(socket: BorrowedFd<'_>, request: &[u8]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    rustix::io::retry_on_intr(|| rustix::net::send(socket, request, SendFlags::NOSIGNAL))?;
    let until = Instant::now() + ANSWER;
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&rest)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return receive(socket),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives a message of the other process, and the descriptors that came with it.
fn receive(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MOST_BYTES + 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let received = rustix::io::retry_on_intr(|| {
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut pieces, &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(received.bytes);
    let mut fds = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    Ok((bytes, fds))
}

/// Does what the other process asks for, until it is gone, or sends what it never sends.
fn attend(what: &mut dyn Privileged, socket: BorrowedFd<'_>) {
    what.forget();
    while let Ok((bytes, _)) = receive(socket) {
        let Some((at, request)) = Request::read(&bytes) else { return };
        let Some(done) = what.help(at, &request) else { return };
        let fds = done.as_ref().map_or(&[][..], |answer| &answer.fds);
        if answer(socket, &wire::write_answer(&done), fds).is_err() {
            return;
        }
    }
}

fn answer(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Lets go of standard input and output, whose other ends wait for the recorder alone.
fn leave_standard_streams() -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later").field("most", &self.most).finish_non_exhaustive()
    }
}

/// A helper, and by which number it knows an interface.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) helper: Arc<Helper>,
    pub(crate) interface: u32,
}

impl Seat {
    pub(crate) fn ask(&self, request: &Request) -> Result<Answer, Fault> {
        self.helper.ask(self.interface, request)
    }
}

/// The places of rules are the helper's: of an interface the only one, or of all groups.
impl Places for Seat {
    fn make(&mut self, size: usize) -> io::Result<OwnedFd> {
        let made = self.ask(&Request::MakeRules { size: size as u32 });
        let fd = made.map_err(Fault::into_error)?.fds.pop();
        fd.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn make_flows(&mut self) -> io::Result<()> {
        self.ask(&Request::MakeFlows).map(drop).map_err(Fault::into_error)
    }

    fn put(&mut self, number: u32, size: Option<usize>) -> io::Result<()> {
        let request = Request::PutRules { size: size.map(|size| size as u32) };
        let put = self.helper.ask(self.interface + number, &request);
        put.map(drop).map_err(Fault::into_error)
    }
}
