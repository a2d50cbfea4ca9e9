//! `AF_XDP` sockets: the rings that they share with the kernel
//! (`Documentation/networking/af_xdp.rst`).
//!
//! A socket has its own frame memory (UMEM), divided into chunks. One that receives ([`XdpSocket`])
//! hands chunks to the kernel in the *fill* ring, and gets them back with packets in them in the
//! *rx* ring. One that sends ([`XdpTxSocket`]) hands over chunks with frames in the *tx* ring, and
//! gets them back in the *completion* ring. Each ring has room for all the chunks that can be in
//! it, so that none can overflow.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fs::MemfdFlags;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::mapping::Mapping;

/// Bytes of a chunk.
pub const CHUNK: u32 = 4096;
/// What the kernel leaves free before a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// The longest packet that lies in one chunk.
pub const ONE_CHUNK: u32 = CHUNK - HEADROOM;

/// `struct xdp_desc`: address, length, options.
const DESCRIPTOR: usize = 16;
/// Entries of a ring that a socket must have and does not use: the completion ring where it only
/// receives, the fill ring where it only sends.
const UNUSED: u32 = 64;

/// How packets come into the socket's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC writes packets there; each lies in one chunk.
    ZeroCopy,
    /// The kernel copies packets; each may lie in several chunks.
    CopyPieces,
    /// The kernel copies packets; each lies in one chunk.
    Copy,
    /// Driver and kernel do as they can, but a packet may lie in several chunks.
    AnyPieces,
}

impl Mode {
    fn flags(self) -> SocketAddrXdpFlags {
        type Flags = SocketAddrXdpFlags;
        let how = match self {
            Self::ZeroCopy => Flags::XDP_ZEROCOPY,
            Self::CopyPieces => Flags::XDP_COPY | Flags::XDP_USE_SG,
            Self::Copy => Flags::XDP_COPY,
            Self::AnyPieces => Flags::XDP_USE_SG,
        };
        how | Flags::XDP_USE_NEED_WAKEUP
    }
}

/// One of a socket's rings.
struct Ring {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    mask: u32,
}

impl Ring {
    fn map(
        fd: BorrowedFd<'_>,
        at: u64,
        offsets: &XdpRingOffset,
        n: u32,
        each: usize,
    ) -> io::Result<Self> {
        let len = offsets.desc as usize + n as usize * each;
        Ok(Self {
            memory: Mapping::of_fd_at(fd, len, at, true)?,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags.map(|f| f as usize),
            entries: offsets.desc as usize,
            mask: n - 1,
        })
    }

    fn entry(&self, index: u32, each: usize) -> usize {
        self.entries + (index & self.mask) as usize * each
    }

    /// Returns whether the kernel waits to be woken before it looks at the ring.
    fn sleeps(&self) -> bool {
        self.flags
            .is_some_and(|at| self.memory.u32(at).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0)
    }
}

/// Returns the bytes of a memory of so many chunks.
fn bytes_of(chunks: u32) -> usize {
    chunks as usize * CHUNK as usize
}

/// Returns a socket that is not bound, and has this memory.
fn with_memory(memory: &Mapping) -> io::Result<OwnedFd> {
    let fd =
        rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let umem = XdpUmemReg {
        addr: memory.address(),
        len: memory.len() as u64,
        chunk_size: CHUNK,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&fd, umem)?;
    Ok(fd)
}

/// A piece of a packet.
#[derive(Clone, Copy, Debug)]
pub struct FrameFragment<'a> {
    pub bytes: &'a [u8],
    /// The next descriptor holds more of the same packet.
    pub more: bool,
}

/// A socket that receives, as one process makes and binds it and another takes packets out of it.
///
/// Its rings can be mapped only before it is bound.
#[derive(Debug)]
pub struct XdpDescriptors {
    pub socket: OwnedFd,
    /// The memory of its chunks, a file without a name.
    pub memory: OwnedFd,
    /// How many chunks there are, a power of two.
    pub chunks: u32,
}

impl XdpDescriptors {
    /// Makes a socket that is not bound.
    ///
    /// # Errors
    /// As socket(2), and `ENOBUFS` where it takes more locked memory than the process may have.
    pub fn make(chunks: u32) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("tapdeck-afxdp", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes_of(chunks) as u64)?;
        // The kernel keeps the pages, wherever they are mapped.
        let socket = with_memory(&Mapping::of_fd(file.as_fd(), bytes_of(chunks), true)?)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, chunks)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, UNUSED)?;
        sockopt::set_xdp_rx_ring_size(&socket, chunks)?;
        Ok(Self { socket, memory: file, chunks })
    }

    /// Returns other descriptors of the same socket.
    pub fn share(&self) -> io::Result<Self> {
        let (socket, memory) = (self.socket.try_clone()?, self.memory.try_clone()?);
        Ok(Self { socket, memory, chunks: self.chunks })
    }

    /// Binds the socket to a queue.
    ///
    /// # Errors
    /// As bind(2): `EOPNOTSUPP` or `EINVAL` where kernel or driver cannot do as `mode` says, or
    /// where there is no such queue; `EBUSY` where another socket has it.
    pub fn bind(&self, ifindex: u32, queue: u32, mode: Mode) -> io::Result<()> {
        Ok(rustix::net::bind(&self.socket, &SocketAddrXdp::new(mode.flags(), ifindex, queue))?)
    }

    /// Enters the socket into an `XSKMAP` as the one for `queue`.
    pub fn enter_into(&self, map: BorrowedFd<'_>, queue: u32) -> io::Result<()> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: key and value of such a map are 4 bytes each, and both outlive the call.
        let rc = unsafe {
            libbpf_sys::bpf_map_update_elem(
                map.as_raw_fd(),
                (&raw const queue).cast(),
                (&raw const socket).cast(),
                0,
            )
        };
        if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
    }
}

/// A socket for one receive queue, whose packets are taken out here.
pub struct XdpSocket {
    // Declared first, closed first: the kernel lets go of the memory before it is unmapped.
    fd: OwnedFd,
    rx: Ring,
    fill: Ring,
    chunks: Mapping,
    /// The oldest descriptor that was not given back, and the end of those seen.
    next: u32,
    seen: u32,
    /// Where the next chunk goes in the fill ring.
    filled: u32,
}

impl XdpSocket {
    /// Maps a socket that is not bound yet, and hands all its chunks to the kernel.
    ///
    /// # Errors
    /// As mmap(2): `EBUSY` where the socket is bound.
    pub fn open(descriptors: XdpDescriptors) -> io::Result<Self> {
        let XdpDescriptors { socket: fd, memory, chunks } = descriptors;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let rx = Ring::map(fd.as_fd(), XDP_PGOFF_RX_RING, &offsets.rx, chunks, DESCRIPTOR)?;
        let fill = Ring::map(fd.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, chunks, 8)?;
        let memory = Mapping::of_fd(memory.as_fd(), bytes_of(chunks), true)?;
        let mut socket = Self { fd, rx, fill, chunks: memory, next: 0, seen: 0, filled: 0 };
        for chunk in 0..chunks {
            socket.give(u64::from(chunk) * u64::from(CHUNK));
        }
        socket.publish();
        Ok(socket)
    }

    /// Writes the address of a chunk into the fill ring.
    fn give(&mut self, address: u64) {
        let at = self.fill.entry(self.filled, 8);
        self.fill.memory.u64(at).store(address, Relaxed);
        self.filled = self.filled.wrapping_add(1);
    }

    /// Shows the kernel what was written into the fill ring.
    fn publish(&self) {
        self.fill.memory.u32(self.fill.producer).store(self.filled, Release);
    }

    /// Looks for new descriptors. Returns how many there are that were not given back.
    pub fn look(&mut self) -> u32 {
        self.seen = self.rx.memory.u32(self.rx.producer).load(Acquire);
        self.seen.wrapping_sub(self.next)
    }

    /// Returns whether so many descriptors leave the kernel so few chunks that it may have run out
    /// of them.
    pub fn is_scarce(&self, descriptors: u32) -> bool {
        descriptors > self.rx.mask / 2
    }

    /// Returns the piece that is `ahead` of the oldest.
    ///
    /// # Panics
    /// If [`XdpSocket::look`] has not shown as many.
    pub fn piece(&self, ahead: u32) -> FrameFragment<'_> {
        let (address, len, options) = self.descriptor(ahead);
        // SAFETY: the kernel gave this chunk with the descriptor and does not touch it
        // before it is in the fill ring again. Only `give_back` does that, and takes
        // `&mut self`, so the slice is gone by then.
        let bytes = unsafe { self.chunks.bytes(address as usize, len as usize) };
        FrameFragment { bytes, more: options & libc::XDP_PKT_CONTD != 0 }
    }

    fn descriptor(&self, ahead: u32) -> (u64, u32, u32) {
        assert!(ahead < self.seen.wrapping_sub(self.next), "no such descriptor yet");
        let at = self.rx.entry(self.next.wrapping_add(ahead), DESCRIPTOR);
        let memory = &self.rx.memory;
        let (len, options) = (memory.u32(at + 8).load(Relaxed), memory.u32(at + 12).load(Relaxed));
        (memory.u64(at).load(Relaxed), len, options)
    }

    /// Hands the oldest `n` chunks back to the kernel.
    ///
    /// # Panics
    /// If [`XdpSocket::look`] has not shown as many.
    pub fn give_back(&mut self, n: u32) {
        for ahead in 0..n {
            let (address, _, _) = self.descriptor(ahead);
            self.give(address & !u64::from(CHUNK - 1));
        }
        self.next = self.next.wrapping_add(n);
        self.rx.memory.u32(self.rx.consumer).store(self.next, Release);
        self.publish();
        self.wake();
    }

    /// Wakes the driver where it has gone to sleep for want of chunks.
    fn wake(&self) {
        if self.fill.sleeps() {
            // Whatever the answer (the link may be down), the next wait asks again.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Returns how many packets came to the queue and not into the rx ring, since the socket was
    /// made.
    ///
    /// `rx_dropped` has those for which there was no chunk, or that were too long. An empty
    /// fill ring alone (`rx_fill_ring_empty_descs`) is no loss: in copy mode the same packet is
    /// counted in `rx_dropped`, and in zero-copy mode the NIC counts what it misses.
    pub fn lost(&self) -> io::Result<u64> {
        let s = sockopt::xdp_statistics(&self.fd)?;
        Ok(s.rx_dropped + s.rx_ring_full.unwrap_or(0))
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A frame in the memory of a socket.
#[derive(Clone, Copy, Debug)]
struct Frame {
    chunk: u32,
    len: u32,
}

/// A socket that sends by one transmit queue and receives nothing.
///
/// Where the driver reads the frames itself (zero copy), it takes them in its own time. Where the
/// kernel copies them, it does so within the call that wakes it, and says there if the driver had
/// no room. The kernel has then given a frame up, and does not say which of several; so it is
/// offered one frame with each call. (That costs 3 % of the rate, on a veth pair.)
pub struct XdpTxSocket {
    // Declared first, closed first: the kernel lets go of the memory before it is unmapped.
    fd: OwnedFd,
    tx: Ring,
    completion: Ring,
    chunks: Mapping,
    zero_copy: bool,
    /// Chunks that nobody has; the last is the next to be filled.
    free: Vec<u32>,
    /// Frames that were not taken yet, oldest first. The first `posted` are in the tx ring.
    waiting: VecDeque<Frame>,
    posted: usize,
    /// How often each chunk is in use: it waits, and the kernel has it, once for each time that it
    /// took it.
    uses: Vec<u32>,
    /// Where the next descriptor goes in the tx ring.
    filled: u32,
    /// The oldest entry of the completion ring that was not read.
    next: u32,
}

impl XdpTxSocket {
    /// Binds a socket with `chunks` chunks, a power of two.
    ///
    /// # Errors
    /// The errors of [`XdpSocket::bind`].
    pub fn bind(ifindex: u32, queue: u32, chunks: u32, zero_copy: bool) -> io::Result<Self> {
        type Flags = SocketAddrXdpFlags;
        // Frames that were given up come back too.
        let completions = chunks * 2;
        let memory = Mapping::anonymous(bytes_of(chunks))?;
        let fd = with_memory(&memory)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, UNUSED)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, completions)?;
        sockopt::set_xdp_tx_ring_size(&fd, chunks)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let tx = Ring::map(fd.as_fd(), XDP_PGOFF_TX_RING, &offsets.tx, chunks, DESCRIPTOR)?;
        let at = XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Ring::map(fd.as_fd(), at, &offsets.cr, completions, 8)?;
        let how = if zero_copy { Flags::XDP_ZEROCOPY } else { Flags::XDP_COPY };
        let address = SocketAddrXdp::new(how | Flags::XDP_USE_NEED_WAKEUP, ifindex, queue);
        rustix::net::bind(&fd, &address)?;
        Ok(Self {
            fd,
            tx,
            completion,
            chunks: memory,
            zero_copy,
            free: (0..chunks).rev().collect(),
            waiting: VecDeque::with_capacity(chunks as usize),
            posted: 0,
            uses: vec![0; chunks as usize],
            filled: 0,
            next: 0,
        })
    }

    /// Returns whether the driver reads the frames where they were written.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns how many frames were queued and not taken.
    pub fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the length of the oldest frame that is queued.
    pub fn next_len(&self) -> Option<u32> {
        self.waiting.front().map(|frame| frame.len)
    }

    /// Returns whether there is a chunk for another frame.
    pub fn has_room(&mut self) -> bool {
        if self.free.is_empty() {
            self.reclaim();
        }
        !self.free.is_empty()
    }

    /// Returns the chunk for the next frame, if one [is free](XdpTxSocket::has_room).
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let chunk = *self.free.last()?;
        // SAFETY: the kernel reads chunks only whose address was written into the tx ring
        // and which it did not give back since; this one is not among them. To queue it takes
        // `&mut self`, so the slice is gone by then.
        Some(unsafe { self.chunks.bytes_mut(chunk as usize * CHUNK as usize, CHUNK as usize) })
    }

    /// Queues the first `len` bytes of that chunk.
    ///
    /// # Panics
    /// If there is none.
    pub fn queue(&mut self, len: u32) {
        let chunk = self.free.pop().expect("a frame was pushed without a slot");
        self.uses[chunk as usize] = 1;
        self.waiting.push_back(Frame { chunk, len });
    }

    /// Offers the oldest frames to the driver, or to the kernel. Returns how many it took, which
    /// may be more by the next call.
    ///
    /// # Errors
    /// `ENETDOWN` where the interface is down, `ENXIO` where it is gone. The frames stay queued.
    pub fn hand_over(&mut self) -> io::Result<usize> {
        if self.waiting.is_empty() {
            return Ok(0);
        }
        // The kernel takes nothing if it has no room to give it back.
        self.reclaim();
        let limit = if self.zero_copy { self.waiting.len() } else { 1 };
        self.post(limit);
        let taken = if self.zero_copy {
            if self.tx.sleeps() {
                self.kick()?;
            }
            let there =
                self.filled.wrapping_sub(self.tx.memory.u32(self.tx.consumer).load(Acquire));
            self.posted - there as usize
        } else {
            match self.kick()? {
                Kick::Done => 1,
                Kick::NoRoom => 0,
                Kick::GivenUp => {
                    // It comes back in the completion ring, and goes into the tx ring anew.
                    self.uses[self.waiting[0].chunk as usize] += 1;
                    self.posted = 0;
                    0
                }
            }
        };
        self.waiting.drain(..taken);
        self.posted -= taken;
        Ok(taken)
    }

    /// Has the driver get on with what it took, so that it gives the chunks back. To be called
    /// while nothing is queued.
    pub fn hurry(&self) -> io::Result<()> {
        debug_assert!(self.waiting.is_empty(), "what this takes is not counted");
        if self.tx.sleeps() { self.kick().map(drop) } else { Ok(()) }
    }

    /// Writes the first `limit` frames into the tx ring, those that are not there.
    fn post(&mut self, limit: usize) {
        for frame in self.waiting.range(self.posted..limit) {
            let at = self.tx.entry(self.filled, DESCRIPTOR);
            let memory = &self.tx.memory;
            memory.u64(at).store(u64::from(frame.chunk) * u64::from(CHUNK), Relaxed);
            memory.u32(at + 8).store(frame.len, Relaxed);
            memory.u32(at + 12).store(0, Relaxed);
            self.filled = self.filled.wrapping_add(1);
        }
        self.posted = limit;
        self.tx.memory.u32(self.tx.producer).store(self.filled, Release);
    }

    /// Takes back the chunks that the kernel is done with.
    fn reclaim(&mut self) {
        let end = self.completion.memory.u32(self.completion.producer).load(Acquire);
        while self.next != end {
            let at = self.completion.entry(self.next, 8);
            let address = self.completion.memory.u64(at).load(Relaxed);
            let chunk = (address / u64::from(CHUNK)) as u32;
            let uses = &mut self.uses[chunk as usize];
            *uses -= 1;
            if *uses == 0 {
                self.free.push(chunk);
            }
            self.next = self.next.wrapping_add(1);
        }
        self.completion.memory.u32(self.completion.consumer).store(end, Release);
    }

    /// Wakes the kernel.
    fn kick(&self) -> io::Result<Kick> {
        match rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(Kick::Done),
            Err(e) => match e.raw_os_error() {
                libc::EBUSY => Ok(Kick::GivenUp),
                libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => Ok(Kick::NoRoom),
                _ => Err(e.into()),
            },
        }
    }
}

/// What the kernel says to being woken.
enum Kick {
    /// The kernel took what was in the ring, if it is the one to take frames.
    Done,
    /// The kernel left the next frame in the ring.
    NoRoom,
    /// The kernel took a frame out of the ring, and the driver did not take it.
    GivenUp,
}
