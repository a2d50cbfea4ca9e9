//! The `afxdp` hook: a hook program in the driver sends every packet of a queue to the socket that
//! has the queue, where the NIC itself writes it into user memory if the driver can.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use tapdeck_packet::link::LinkType;

use super::{IDLE, is_set};
use crate::bpf::loaded::{Loaded, REFUSED_STRIDE};
use crate::bpf::params::Params;
use crate::bpf::program::Program;
use crate::explain::explain;
use crate::filter::splice::Filters;
use crate::filter::{explain_load, filters_for};
use crate::interface::Interface;
use crate::ring::{Packet, Producer};
use crate::sys::afxdp::{CHUNK, Mode, ONE_CHUNK, XdpSocket};
use crate::sys::kernel::{self, AttachPoint};
use crate::sys::mapping::Mapping;
use crate::{Config, Error, Hook, MAX_RINGS};

/// Ethernet header and two VLAN tags, which an MTU does not count.
const LINK_HEADER: u32 = 14 + 2 * 4;
const MIN_CHUNKS: u64 = 256;
/// Chunks taken before they are given back.
const BATCH: u32 = 64;
/// The kernel frees the queue of a closed socket some time later.
const QUEUE_FREED: Duration = Duration::from_millis(500);

/// The program that sends packets to sockets, its table of them, and its filter.
pub struct Redirect {
    loaded: Loaded,
}

impl Redirect {
    pub fn load(interface: &Interface, config: &Config) -> Result<Self, Error> {
        let filters = filters_for(interface, config)?;
        // The object has rings for the hooks that record in the kernel. Here nobody uses them.
        let (loaded, _) = Loaded::new(&[Program::Redirect], &params(interface, &filters), &filters)
            .map_err(|e| explain_load(interface, config, &filters, e))?;
        Ok(Self { loaded })
    }

    /// Exchanges the filter for that of `config`, where the program is attached by `link`.
    pub fn set_filter(
        &mut self,
        interface: &Interface,
        config: &Config,
        link: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let filters = filters_for(interface, config)?;
        self.loaded
            .reload(&[Program::Redirect], &params(interface, &filters), &filters)
            .map_err(|e| explain_load(interface, config, &filters, e))?;
        let exchange = || {
            let program = self.loaded.program(Program::Redirect)?;
            kernel::exchange(link, program.as_fd())
        };
        exchange().map_err(|e| explain(interface, config.hook, e))
    }

    /// Returns the counters of packets that the filter has kept from each socket.
    pub fn refused(&self) -> io::Result<Arc<Mapping>> {
        self.loaded.refused()
    }

    /// Enters the sockets, each at its queue, and attaches the program. Returns a descriptor; the
    /// program is detached when that is closed.
    pub fn attach(&self, ifindex: u32, sockets: &[XdpSocket]) -> io::Result<OwnedFd> {
        for (queue, socket) in (0..).zip(sockets) {
            self.enter(queue, socket)?;
        }
        let program = self.loaded.program(Program::Redirect)?;
        kernel::attach(program.as_fd(), point(ifindex))
    }

    /// Has the packets of a queue sent to a socket.
    pub fn enter(&self, queue: u32, socket: &XdpSocket) -> io::Result<()> {
        socket.enter_into(self.loaded.sockets()?.as_fd(), queue)
    }

    /// Asks the kernel whether `link` still holds the program at the interface, and puts another
    /// link in its place if not. Returns whether it did.
    pub fn restore(&self, ifindex: u32, link: &mut OwnedFd) -> io::Result<bool> {
        let program = self.loaded.program(Program::Redirect)?;
        if kernel::holds(link.as_fd(), program.as_fd(), point(ifindex))? == Some(true) {
            return Ok(false);
        }
        // Who has put another program into the link has left it attached.
        if kernel::exchange(link.as_fd(), program.as_fd()).is_err() {
            *link = kernel::attach(program.as_fd(), point(ifindex))?;
        }
        Ok(true)
    }
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

/// How the sockets of an interface are made: all alike.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    chunks: u32,
    mode: Mode,
}

impl Making {
    /// Binds a socket to a queue that was switched on later.
    pub fn bind_later(self, ifindex: u32, queue: u32) -> io::Result<XdpSocket> {
        XdpSocket::bind(ifindex, queue, self.chunks, self.mode)
    }
}

/// Binds a socket to each receive queue, `queues` at most.
pub fn bind(
    interface: &Interface,
    config: &Config,
    queues: usize,
) -> Result<(Vec<XdpSocket>, Making), Error> {
    if interface.rx_queues > MAX_RINGS {
        return Err(Error::Unsupported {
            name: interface.name.clone(),
            hook: Hook::AfXdp,
            why: format!(
                "it has {} receive queues, and at most {MAX_RINGS} can have a socket",
                interface.rx_queues
            ),
        });
    }
    let chunks = (config.ring_bytes / queues as u64 / u64::from(CHUNK)).max(MIN_CHUNKS);
    let chunks = 1 << chunks.ilog2();
    let pieces = interface.mtu + LINK_HEADER > ONE_CHUNK;
    // Without zero copy, pieces are welcome anyhow: a peer of a veth may send what
    // segmentation offload has put together.
    let mut modes: &[Mode] =
        if pieces { &[Mode::AnyPieces] } else { &[Mode::ZeroCopy, Mode::CopyPieces, Mode::Copy] };
    let mut sockets = Vec::new();
    while sockets.len() < queues {
        let queue = sockets.len() as u32;
        match bind_queue(interface.index, queue, chunks, modes[0]) {
            Ok(socket) => {
                sockets.push(socket);
                modes = &modes[..1];
            }
            // The device was made for more queues than it has switched on.
            Err(e) if queue > 0 && e.raw_os_error() == Some(libc::EINVAL) => break,
            Err(e) => match (e.raw_os_error(), modes) {
                (Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT), [_, rest @ ..])
                    if queue == 0 && !rest.is_empty() =>
                {
                    modes = rest;
                }
                _ => return Err(refused(interface, queue, pieces, e)),
            },
        }
    }
    Ok((sockets, Making { chunks, mode: modes[0] }))
}

fn bind_queue(ifindex: u32, queue: u32, chunks: u32, mode: Mode) -> io::Result<XdpSocket> {
    let deadline = Instant::now() + QUEUE_FREED;
    loop {
        match XdpSocket::bind(ifindex, queue, chunks, mode) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Says why a socket could not have a queue.
fn refused(interface: &Interface, queue: u32, pieces: bool, e: io::Error) -> Error {
    let unsupported =
        |why| Error::Unsupported { name: interface.name.clone(), hook: Hook::AfXdp, why };
    match e.raw_os_error() {
        Some(libc::EBUSY) => {
            unsupported(format!("another AF_XDP socket has receive queue {queue}"))
        }
        Some(libc::EINVAL | libc::EOPNOTSUPP) if pieces => unsupported(format!(
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

pub struct Receiver {
    socket: XdpSocket,
    producer: Producer,
    snaplen: usize,
    /// A packet put together from its pieces; as much of it as is kept.
    whole: Vec<u8>,
    /// Losses that the ring has been told of.
    lost: u64,
    /// Counts the packets that the filter has kept from each socket; `filtered` is how many of
    /// them the ring has been told of.
    refused: Arc<Mapping>,
    queue: usize,
    filtered: u64,
}

impl Receiver {
    pub fn new(
        socket: XdpSocket,
        queue: usize,
        producer: Producer,
        refused: Arc<Mapping>,
        config: &Config,
    ) -> Self {
        let snaplen = config.snaplen as usize;
        let whole = Vec::with_capacity(snaplen);
        Self { socket, producer, snaplen, whole, lost: 0, refused, queue, filtered: 0 }
    }

    pub fn run(mut self, stop: &AtomicBool) {
        loop {
            // Read first: an empty ring is empty for good only if nothing came in before it was
            // looked at.
            let stopping = is_set(stop);
            self.count_filtered();
            let there = self.socket.look();
            let taken = self.take(there);
            if taken == 0 {
                self.ask_for_drops();
                if stopping {
                    return;
                }
                self.wait();
            } else if self.socket.is_scarce(there) {
                // Packets may have been lost for want of chunks, after those just taken.
                self.ask_for_drops();
            }
        }
    }

    /// Takes the packets of the `there` oldest descriptors, but for an incomplete last packet.
    /// Returns how many descriptors were taken.
    fn take(&mut self, there: u32) -> u32 {
        let mut taken = 0;
        let mut pending = 0;
        while let Some(pieces) = self.pieces(pending, there - taken) {
            self.push(pending, pieces);
            pending += pieces;
            if pending >= BATCH {
                self.socket.give_back(pending);
                taken += pending;
                pending = 0;
            }
        }
        if pending > 0 {
            self.socket.give_back(pending);
        }
        taken + pending
    }

    /// Returns how many descriptors the packet has that begins `from` behind the oldest, if its end
    /// is among the first `there`.
    fn pieces(&self, from: u32, there: u32) -> Option<u32> {
        (from..there).find(|&i| !self.socket.piece(i).more).map(|last| last + 1 - from)
    }

    fn push(&mut self, from: u32, pieces: u32) {
        let packet = |frame, original_len| Packet {
            time_ns: 0,
            frame,
            tag: None,
            original_len,
            // The hook sees one direction alone.
            flags: 0,
        };
        if pieces == 1 {
            let bytes = self.socket.piece(from).bytes;
            self.producer.push(&packet(bytes, bytes.len() as u32));
            return;
        }
        self.whole.clear();
        let mut original_len = 0;
        for i in from..from + pieces {
            let bytes = self.socket.piece(i).bytes;
            let room = self.snaplen - self.whole.len();
            self.whole.extend_from_slice(&bytes[..bytes.len().min(room)]);
            original_len += bytes.len() as u32;
        }
        self.producer.push(&packet(&self.whole, original_len));
    }

    fn ask_for_drops(&mut self) {
        if let Ok(lost) = self.socket.lost() {
            self.producer.count_lost(lost.saturating_sub(self.lost));
            self.lost = lost;
        }
    }

    fn count_filtered(&mut self) {
        let filtered = self.refused.u64(self.queue * REFUSED_STRIDE).load(Relaxed);
        self.producer.count_filtered(filtered - self.filtered);
        self.filtered = filtered;
    }

    /// Waits for packets.
    fn wait(&self) {
        let timeout = Timespec::try_from(IDLE).ok();
        // A signal may end the wait; the caller looks again anyhow.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref());
    }
}
