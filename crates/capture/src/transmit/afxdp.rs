//! Sends by an `AF_XDP` socket: the frames lie in memory that the NIC itself reads, if the driver
//! can, and which the kernel copies otherwise.

use std::io;
use std::time::{Duration, Instant};

use super::{LINK_HEADER, Patience, SHORTEST, Sender};
use crate::interface::Interface;
use crate::sys::afxdp::{CHUNK, XdpTxSocket};

/// Frames queued or under way at most: a few interrupts' worth of a fast NIC.
const CHUNKS: u32 = 1024;
/// Frames queued before they are handed over.
const BATCH: usize = 64;
/// The kernel frees the queue of a closed socket some time later.
const QUEUE_FREED: Duration = Duration::from_millis(500);

/// Sends frames by an `AF_XDP` socket.
pub struct XdpSender {
    socket: XdpTxSocket,
    max_frame: usize,
    sent: u64,
    turned_away: u64,
    patience: Patience,
}

impl XdpSender {
    /// Prepares to send frames of at most `max_frame` bytes by one transmit queue.
    ///
    /// # Errors
    /// `EMSGSIZE` where `max_frame` is beyond 4096 bytes or what the MTU allows. Else as socket(2)
    /// and bind(2): `EAFNOSUPPORT` where the kernel has no such sockets, `EINVAL` where there is no
    /// such queue, `EBUSY` where another socket has it, `ENETDOWN`, `EPERM` without `CAP_NET_RAW`.
    pub fn open(interface: &Interface, queue: u32, max_frame: usize) -> io::Result<Self> {
        if max_frame > (CHUNK as usize).min(interface.mtu as usize + LINK_HEADER) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let socket = bind(interface.index, queue)?;
        let patience = Patience::new(interface.index);
        Ok(Self { socket, max_frame, sent: 0, turned_away: 0, patience })
    }

    /// Returns whether the NIC reads the frames where they are written.
    pub fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }
}

/// Has the driver read user memory, or else the kernel copy it.
fn bind(ifindex: u32, queue: u32) -> io::Result<XdpTxSocket> {
    let deadline = Instant::now() + QUEUE_FREED;
    let mut zero_copy = true;
    loop {
        match XdpTxSocket::bind(ifindex, queue, CHUNKS, zero_copy) {
            Err(e) => match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT) if zero_copy => {
                    zero_copy = false;
                }
                Some(libc::EBUSY) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return Err(e),
            },
            Ok(socket) => return Ok(socket),
        }
    }
}

impl Sender for XdpSender {
    fn slot(&mut self) -> io::Result<&mut [u8]> {
        if self.socket.queued() >= BATCH || !self.socket.has_room() {
            self.flush()?;
        }
        while !self.socket.has_room() {
            self.socket.hurry()?;
            self.patience.wait(0)?;
        }
        self.patience.renew();
        Ok(&mut self.socket.room().expect("there is room")[..self.max_frame])
    }

    fn push(&mut self, len: usize) {
        assert!((SHORTEST..=self.max_frame).contains(&len), "a frame of {len} bytes");
        self.socket.queue(len as u32);
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(len) = self.socket.next_len() {
            match self.socket.hand_over()? {
                0 => {
                    // A driver that reads the frames itself does so later; that is no lack of room.
                    self.turned_away += u64::from(!self.socket.is_zero_copy());
                    self.patience.wait(len as usize)?;
                }
                taken => {
                    self.sent += taken as u64;
                    self.patience.renew();
                }
            }
        }
        Ok(())
    }

    fn queued(&self) -> usize {
        self.socket.queued()
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn turned_away(&self) -> u64 {
        self.turned_away
    }
}
