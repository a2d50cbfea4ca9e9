//! What the `afxdp` hook does with privileges: it opens and binds a socket for each receive queue,
//! and has a program in the driver send the queue's packets there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tapdeck_packet::link::LinkType;

use super::entrance::Entrance;
use super::wants_promiscuous;
use crate::bpf::loaded::Loaded;
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::helper::wire::{Answer, Fault};
use crate::interface::Interface;
use crate::sys::afxdp::{CHUNK, Mode, ONE_CHUNK, XdpDescriptors};
use crate::sys::kernel::{self, AttachPoint, wait_for_running_programs};
use crate::sys::packet_socket::promiscuous;
use crate::{Config, Error, Hook, MAX_RINGS};

/// Ethernet header and two VLAN tags, which an MTU does not count.
const LINK_HEADER: u32 = 14 + 2 * 4;
const MIN_CHUNKS: u64 = 256;
/// The kernel frees the queue of a closed socket some time later.
const QUEUE_FREED: Duration = Duration::from_millis(500);

/// The program that sends packets to sockets, its table of them, and its filter.
pub(super) struct Redirect {
    loaded: Loaded,
    filters: Filters,
    promiscuous: bool,
    /// The most sockets there may be, and the chunks of each.
    most: usize,
    chunks: u32,
    /// Sockets that are not bound yet, for the queues behind those that are.
    opened: Vec<XdpDescriptors>,
    standing: Option<Standing>,
}

/// The program where it stands.
struct Standing {
    link: OwnedFd,
    /// How many queues have a socket, and how these were bound.
    bound: usize,
    mode: Mode,
    /// A socket that holds the interface in promiscuous mode as long as it is open.
    _promiscuous: Option<OwnedFd>,
}

impl Redirect {
    /// Loads the program, for `most` sockets.
    pub(super) fn load(
        interface: &Interface,
        config: &Config,
        filters: Filters,
        most: usize,
    ) -> Result<Self, Fault> {
        let chunks = (config.ring_bytes / most as u64 / u64::from(CHUNK)).max(MIN_CHUNKS);
        Ok(Self {
            loaded: load(interface, &filters)?,
            filters,
            promiscuous: wants_promiscuous(interface, config),
            most,
            chunks: 1 << chunks.ilog2(),
            opened: Vec::new(),
            standing: None,
        })
    }

    fn bound(&self) -> usize {
        self.standing.as_ref().map_or(0, |standing| standing.bound)
    }

    /// Binds the sockets that were opened to the queues from the first one on that has none.
    /// Returns how many of them, and how.
    fn bind(&self, interface: &Interface) -> Result<(usize, Mode), Fault> {
        // Without zero copy, pieces are welcome anyhow: a peer of a veth may send what
        // segmentation offload has put together.
        let mut modes: &[Mode] = match &self.standing {
            Some(Standing { mode, .. }) => &[*mode],
            None if takes_pieces(interface) => &[Mode::AnyPieces],
            None => &[Mode::ZeroCopy, Mode::CopyPieces, Mode::Copy],
        };
        let first = self.bound();
        let mut done = 0;
        while let Some(socket) = self.opened.get(done) {
            let queue = (first + done) as u32;
            match bind_queue(socket, interface.index, queue, modes[0]) {
                Ok(()) => {
                    done += 1;
                    modes = &modes[..1];
                }
                // The device was made for more queues than it has switched on.
                Err(e) if queue > 0 && e.raw_os_error() == Some(libc::EINVAL) => break,
                Err(e) => match (e.raw_os_error(), modes) {
                    (
                        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT),
                        [_, rest @ ..],
                    ) if queue == 0 && !rest.is_empty() => {
                        modes = rest;
                    }
                    _ => return Err(Fault::Queue(queue, e)),
                },
            }
        }
        Ok((done, modes[0]))
    }

    /// Enters the first of the sockets that were opened, each at its queue, and lets go of all:
    /// who takes the packets has them.
    fn enter(&mut self, sockets: usize) -> io::Result<()> {
        let (first, map) = (self.bound() as u32, self.loaded.sockets()?);
        for (queue, socket) in (first..).zip(std::mem::take(&mut self.opened)).take(sockets) {
            socket.enter_into(map.as_fd(), queue)?;
        }
        Ok(())
    }

    /// Loads the program anew and puts it in the place of the one that stands.
    fn renew(&mut self, interface: &Interface, filters: &Filters) -> Result<(), Fault> {
        let Some(Standing { link, .. }) = &self.standing else { return Ok(()) };
        let loaded = &mut self.loaded;
        let before = loaded
            .reload(&[Program::Redirect], &params(interface, filters), filters)
            .map_err(Fault::Load)?;
        let program = loaded.program(Program::Redirect);
        let exchanged = program.and_then(|new| kernel::exchange(link.as_fd(), new.as_fd()));
        if exchanged.is_err() {
            loaded.put_back(before);
        }
        exchanged.map_err(Fault::Place)
    }
}

impl Entrance for Redirect {
    fn open_socket(&mut self, number: u32) -> Result<Answer, Fault> {
        let number = number as usize;
        if number != self.bound() + self.opened.len() || number >= self.most {
            return Err(Fault::Place(io::ErrorKind::InvalidInput.into()));
        }
        let made = || {
            let socket = XdpDescriptors::make(self.chunks)?;
            let XdpDescriptors { socket: fd, memory, .. } = socket.share()?;
            Ok((socket, vec![fd, memory]))
        };
        let (socket, fds) = made().map_err(|e| Fault::Queue(number as u32, e))?;
        self.opened.push(socket);
        Ok(Answer { value: self.chunks, fds })
    }

    fn attach(&mut self, interface: &Interface) -> Result<u32, Fault> {
        // It may be another interface than when this was loaded, and counters begin at zero.
        self.loaded = load(interface, &self.filters)?;
        let (bound, mode) = self.bind(interface)?;
        let held = self.promiscuous.then(|| promiscuous(interface.index)).transpose();
        let held = held.map_err(Fault::Place)?;
        self.enter(bound).map_err(Fault::Place)?;
        let program = self.loaded.program(Program::Redirect).map_err(Fault::Place)?;
        let link = kernel::attach(program.as_fd(), point(interface.index)).map_err(Fault::Place)?;
        self.standing = Some(Standing { link, bound, mode, _promiscuous: held });
        Ok(bound as u32)
    }

    fn detach(&mut self) {
        self.opened.clear();
        self.standing = None;
        wait_for_running_programs();
    }

    fn restore(&mut self, interface: &Interface) -> io::Result<bool> {
        let Some(Standing { link, .. }) = &mut self.standing else { return Ok(false) };
        let program = self.loaded.program(Program::Redirect)?;
        let point = point(interface.index);
        if kernel::holds(link.as_fd(), program.as_fd(), point)? == Some(true) {
            return Ok(false);
        }
        // Who has put another program into the link has left it attached.
        if kernel::exchange(link.as_fd(), program.as_fd()).is_err() {
            *link = kernel::attach(program.as_fd(), point)?;
        }
        Ok(true)
    }

    fn take_queues(&mut self, interface: &Interface) -> Result<u32, Fault> {
        let bound = self.bind(interface).map(|(bound, _)| bound);
        let entered =
            bound.and_then(|bound| self.enter(bound).map(|()| bound).map_err(Fault::Place));
        self.opened.clear();
        let entered = entered?;
        if let Some(standing) = &mut self.standing {
            standing.bound += entered;
        }
        // Drivers may run the program on the queues alone that there were when it was attached.
        self.renew(interface, &self.filters.clone())?;
        Ok(self.bound() as u32)
    }

    fn set_filter(
        &mut self,
        interface: &Interface,
        filters: Filters,
        _snaplen: u32,
    ) -> Result<(), Fault> {
        self.renew(interface, &filters)?;
        wait_for_running_programs();
        self.filters = filters;
        Ok(())
    }

    fn refused(&self) -> io::Result<Option<OwnedFd>> {
        self.loaded.refused().map(Some)
    }
}

fn load(interface: &Interface, filters: &Filters) -> Result<Loaded, Fault> {
    // The object has rings for the hooks that record in the kernel. Here nobody uses them.
    let loaded = Loaded::new(&[Program::Redirect], &params(interface, filters), filters);
    loaded.map(|(loaded, _)| loaded).map_err(Fault::Load)
}

fn point(ifindex: u32) -> AttachPoint {
    AttachPoint::Xdp { ifindex, generic: false }
}

fn params(interface: &Interface, filters: &Filters) -> Params {
    Params {
        link_header: interface.link.is_some_and(LinkType::has_header),
        filtered: !filters.is_empty(),
        ..Params::unread(interface.index)
    }
}

fn takes_pieces(interface: &Interface) -> bool {
    interface.mtu + LINK_HEADER > ONE_CHUNK
}

fn bind_queue(socket: &XdpDescriptors, ifindex: u32, queue: u32, mode: Mode) -> io::Result<()> {
    let deadline = Instant::now() + QUEUE_FREED;
    loop {
        match socket.bind(ifindex, queue, mode) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Refuses an interface of more queues than can have a socket.
pub(super) fn check_queues(interface: &Interface) -> Result<(), Error> {
    if interface.rx_queues <= MAX_RINGS {
        return Ok(());
    }
    Err(Error::Unsupported {
        name: interface.name.clone(),
        hook: Hook::AfXdp,
        why: format!(
            "it has {} receive queues, and at most {MAX_RINGS} can have a socket",
            interface.rx_queues
        ),
    })
}

/// Says why a socket could not have a queue.
pub(super) fn refused(interface: &Interface, queue: u32, e: io::Error) -> Error {
    let unsupported =
        |why| Error::Unsupported { name: interface.name.clone(), hook: Hook::AfXdp, why };
    match e.raw_os_error() {
        Some(libc::EBUSY) => {
            unsupported(format!("another AF_XDP socket has receive queue {queue}"))
        }
        Some(libc::EINVAL | libc::EOPNOTSUPP) if takes_pieces(interface) => unsupported(format!(
            "frames of its MTU of {} take several buffers, which came with Linux 6.6 (set an MTU of {} or less)",
            interface.mtu,
            ONE_CHUNK - LINK_HEADER
        )),
        Some(libc::EAFNOSUPPORT) => {
            unsupported("the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)".to_owned())
        }
        // The kernel counts a socket's frames against RLIMIT_MEMLOCK.
        Some(libc::ENOBUFS) => {
            Error::LockedMemory { name: interface.name.clone(), hook: Hook::AfXdp }
        }
        _ => explain(interface, Hook::AfXdp, e),
    }
}
