//! `AF_XDP` sockets: the rings that they share with the kernel
//! (`Documentation/networking/af_xdp.rst`).
//!
//! A socket has its own frame memory (UMEM), divided into chunks. The *fill* ring hands chunks
//! to the kernel, the *rx* ring brings them back with packets in them. Each of the rings is as
//! large as there are chunks, so that none can overflow.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpRingOffset,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use super::mapping::Mapping;

/// Bytes of a chunk.
pub const CHUNK: u32 = 4096;
/// What the kernel leaves free before a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// The longest packet that lies in one chunk.
pub const ONE_CHUNK: u32 = CHUNK - HEADROOM;

/// `struct xdp_desc`: address, length, options.
const DESCRIPTOR: usize = 16;
/// Of the completion ring, which a socket must have though it only receives.
const COMPLETION: u32 = 64;

/// How packets come into the socket's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The NIC writes them there; one packet lies in one chunk.
    ZeroCopy,
    /// The kernel copies them; a packet may lie in several chunks.
    CopyPieces,
    /// The kernel copies them; one packet lies in one chunk.
    Copy,
    /// As driver and kernel can, but a packet may lie in several chunks.
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
            memory: Mapping::of_fd_at(fd, len, at)?,
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
}

/// A piece of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub bytes: &'a [u8],
    /// The next descriptor holds more of the same packet.
    pub more: bool,
}

/// A socket bound to one receive queue.
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
    /// Binds a socket with `chunks` chunks, a power of two, and hands all of them to the kernel.
    ///
    /// # Errors
    /// As bind(2): `EOPNOTSUPP` or `EINVAL` where kernel or driver cannot do as `mode` says, or where there is
    /// no such queue; `EBUSY` where another socket has it.
    pub fn bind(ifindex: u32, queue: u32, chunks: u32, mode: Mode) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let memory = Mapping::anonymous(chunks as usize * CHUNK as usize)?;
        let umem = XdpUmemReg {
            addr: memory.address(),
            len: memory.len() as u64,
            chunk_size: CHUNK,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, umem)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, chunks)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, COMPLETION)?;
        sockopt::set_xdp_rx_ring_size(&fd, chunks)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let rx = Ring::map(fd.as_fd(), XDP_PGOFF_RX_RING, &offsets.rx, chunks, DESCRIPTOR)?;
        let fill = Ring::map(fd.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, chunks, 8)?;
        let mut socket = Self { fd, rx, fill, chunks: memory, next: 0, seen: 0, filled: 0 };
        for chunk in 0..chunks {
            socket.give(u64::from(chunk) * u64::from(CHUNK));
        }
        socket.publish();
        rustix::net::bind(&socket.fd, &SocketAddrXdp::new(mode.flags(), ifindex, queue))?;
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

    /// Looks for new descriptors; tells how many there are that were not given back.
    pub fn look(&mut self) -> u32 {
        self.seen = self.rx.memory.u32(self.rx.producer).load(Acquire);
        self.seen.wrapping_sub(self.next)
    }

    /// Whether so many descriptors leave the kernel so few chunks that it may have run out of them.
    pub fn is_scarce(&self, descriptors: u32) -> bool {
        descriptors > self.rx.mask / 2
    }

    /// The piece that is `ahead` of the oldest.
    ///
    /// # Panics
    /// If [`XdpSocket::look`] has not shown as many.
    pub fn piece(&self, ahead: u32) -> Piece<'_> {
        let (address, len, options) = self.descriptor(ahead);
        // SAFETY: the kernel gave this chunk with the descriptor and does not touch it
        // before it is in the fill ring again. Only `give_back` does that, and takes
        // `&mut self`, so the slice is gone by then.
        let bytes = unsafe { self.chunks.bytes(address as usize, len as usize) };
        Piece { bytes, more: options & libc::XDP_PKT_CONTD != 0 }
    }

    fn descriptor(&self, ahead: u32) -> (u64, u32, u32) {
        assert!(ahead < self.seen.wrapping_sub(self.next), "no such descriptor yet");
        let at = self.rx.entry(self.next.wrapping_add(ahead), DESCRIPTOR);
        let memory = &self.rx.memory;
        let (len, options) = (memory.u32(at + 8).load(Relaxed), memory.u32(at + 12).load(Relaxed));
        (memory.u64(at).load(Relaxed), len, options)
    }

    /// Gives the oldest `n` chunks back to the kernel.
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

    /// Where the driver has gone to sleep for want of chunks, wakes it.
    fn wake(&self) {
        let Some(flags) = self.fill.flags else { return };
        if self.fill.memory.u32(flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0 {
            // Whatever the answer (the link may be down), the next wait asks again.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Packets that came to the queue and not into the rx ring, since the socket was made.
    ///
    /// `rx_dropped` has those for which there was no chunk, or that were too long. An empty
    /// fill ring alone (`rx_fill_ring_empty_descs`) is no loss: in copy mode the same packet is counted in
    /// `rx_dropped`, and in zero-copy mode the NIC counts what it misses.
    pub fn lost(&self) -> io::Result<u64> {
        let s = sockopt::xdp_statistics(&self.fd)?;
        Ok(s.rx_dropped + s.rx_ring_full.unwrap_or(0))
    }

    /// Enters the socket into an `XSKMAP` as the one for `queue`.
    pub fn enter_into(&self, map: BorrowedFd<'_>, queue: u32) -> io::Result<()> {
        let socket = self.fd.as_raw_fd();
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

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
