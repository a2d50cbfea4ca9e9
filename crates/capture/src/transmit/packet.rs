//! Sends by a packet socket, packet(7), a batch of frames with each call.
//!
//! sendmmsg(2), and not the memory-mapped ring (`PACKET_TX_RING`): the kernel copies the frame
//! either way, the ring needs a call for each batch too, and its slots would have to be as large as
//! the largest frame. On veth pairs, with 64-byte frames, sendmmsg was 2 to 6 % faster, whatever
//! the far end did with them; with 1514-byte frames there was no difference.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Patience, SHORTEST, Sender};
use crate::interface::Interface;
use crate::sys::packet_socket::{PacketSocket, SEND_BATCH};

/// Whether frames go through the interface's queueing discipline, tc(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qdisc {
    /// Frames go to the driver at once (`PACKET_QDISC_BYPASS`), and are not seen by those who
    /// record what is sent on the interface.
    Bypassed,
    /// Frames are queued and shaped like everybody's. What is queued counts as sent, though it may
    /// be dropped later: all of it is while there is no carrier, which is no error here. The
    /// interface counts that (`tx_dropped`).
    Used,
}

/// Sends frames by a packet socket.
pub struct PacketSender {
    socket: PacketSocket,
    /// `SEND_BATCH` slots.
    bytes: Vec<u8>,
    slot_bytes: usize,
    lens: [usize; SEND_BATCH],
    /// The slots from here to `end` are queued. Both begin anew when all of them are sent.
    begin: usize,
    end: usize,
    /// The slot at `end` was asked for.
    offered: bool,
    sent: u64,
    turned_away: u64,
    patience: Patience,
}

impl PacketSender {
    /// Prepares to send frames of at most `max_frame` bytes: MTU and link header at most, and a
    /// VLAN tag (802.1Q) where there is one. The kernel refuses longer ones one by one.
    ///
    /// # Errors
    /// As socket(2) and bind(2): `EPERM` without `CAP_NET_RAW`, `ENODEV` where the interface is
    /// gone.
    pub fn open(interface: &Interface, max_frame: usize, qdisc: Qdisc) -> io::Result<Self> {
        let socket = PacketSocket::new()?;
        if qdisc == Qdisc::Bypassed {
            socket.bypass_qdisc()?;
        }
        socket.bind_to_send(interface.index)?;
        Ok(Self {
            socket,
            bytes: vec![0; max_frame * SEND_BATCH],
            slot_bytes: max_frame,
            lens: [0; SEND_BATCH],
            begin: 0,
            end: 0,
            offered: false,
            sent: 0,
            turned_away: 0,
            patience: Patience::new(interface.index),
        })
    }

    /// Hands over as many frames as the kernel takes in one call.
    fn hand_over(&self) -> io::Result<usize> {
        let slots = self.bytes.chunks_exact(self.slot_bytes).zip(&self.lens);
        let queued = slots.take(self.end).skip(self.begin);
        self.socket.send(queued.map(|(slot, &len)| &slot[..len]))
    }
}

/// Waits until the socket may have more under way, but not for long.
fn wait_for_room(socket: &PacketSocket) -> io::Result<()> {
    const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&LONGEST))?;
    Ok(())
}

impl Sender for PacketSender {
    fn slot(&mut self) -> io::Result<&mut [u8]> {
        if self.end == SEND_BATCH {
            self.flush()?;
        }
        self.offered = true;
        Ok(&mut self.bytes[self.end * self.slot_bytes..][..self.slot_bytes])
    }

    fn push(&mut self, len: usize) {
        assert!(self.offered, "a frame was pushed without a slot");
        assert!((SHORTEST..=self.slot_bytes).contains(&len), "a frame of {len} bytes");
        self.lens[self.end] = len;
        self.end += 1;
        self.offered = false;
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.begin < self.end {
            let len = self.lens[self.begin];
            match self.hand_over() {
                Ok(taken) => {
                    // The call ends before a frame that finds no room.
                    self.turned_away += u64::from(taken < self.queued());
                    self.begin += taken;
                    self.sent += taken as u64;
                    self.patience.renew();
                }
                // The driver, or the queueing discipline, has no room.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.turned_away += 1;
                    self.patience.wait(len)?;
                }
                // What the socket may have under way is under way.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.turned_away += 1;
                    self.patience.wait_by(len, || wait_for_room(&self.socket))?;
                }
                Err(e) => return Err(e),
            }
        }
        (self.begin, self.end, self.offered) = (0, 0, false);
        Ok(())
    }

    fn queued(&self) -> usize {
        self.end - self.begin
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn turned_away(&self) -> u64 {
        self.turned_away
    }
}
