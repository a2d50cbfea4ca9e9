//! How are frames sent by an interface?
//!
//! There are two kinds. [`Flood`] has a program in the kernel make the frames, which is fastest
//! and serves floods only. A [`Sender`] is given finished frames by this process, one after
//! another, and so can send anything at any time: [`PacketSender`] by a packet socket, which works
//! everywhere, and [`XdpSender`] by an `AF_XDP` socket, which is worth it where the driver reads
//! the frames from user memory (zero copy).
//!
//! A sender never passes a frame over. While the interface has no room the frame waits, and so do
//! those behind it; so the frames that were sent are always the first [`Sender::sent`] of those
//! that were pushed. What becomes of them behind the driver is for the interface's counters to say
//! ([`crate::interface::NicCounters`]).

use std::io;
use std::time::{Duration, Instant};

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep, sched_yield};

use crate::interface::{Error, Interface};

mod afxdp;
mod flood;
pub mod live;
mod packet;

pub use afxdp::XdpSender;
pub use flood::{Drain, Flood, Tag};
pub use live::Live;
pub use packet::{PacketSender, Qdisc};

/// Ethernet header and one VLAN tag, which an MTU does not count: longer frames the kernel refuses.
const LINK_HEADER: usize = 14 + 4;
/// The length of an Ethernet header: what is shorter is no frame.
const SHORTEST: usize = 14;

/// Sends finished Ethernet frames (without FCS) by one interface.
///
/// # Errors
/// [`Sender::slot`] and [`Sender::flush`] end with `Interrupted` where a signal came while they
/// waited, or where the interface took nothing for 100 ms: the caller decides whether to go on, and
/// calls again if so. All other errors mean that the interface does not take the frame that is
/// next: `ENETDOWN` where it is down or has no carrier, `ENXIO` where it is gone, `EMSGSIZE` where
/// the frame is longer than its MTU allows, `ETIMEDOUT` where it took nothing for 5 s for no reason
/// that is known (the far end of a veth pair may have a smaller MTU). After any of them each frame
/// that was pushed is still counted either in [`Sender::sent`] or in [`Sender::queued`].
pub trait Sender: Send {
    /// Returns room for the next frame, of as many bytes as were asked for when the sender was
    /// opened, with old bytes in it. Waits until there is room, and sends what is queued where that
    /// makes room.
    fn slot(&mut self) -> io::Result<&mut [u8]>;

    /// Queues the first `len` bytes of the slot.
    ///
    /// # Panics
    /// If no slot was asked for since the last push, or `len` is below 14 or above the slot's.
    fn push(&mut self, len: usize);

    /// Hands everything that is queued to the interface. Waits until it has taken all.
    fn flush(&mut self) -> io::Result<()>;

    /// Returns how many frames were pushed and not taken.
    fn queued(&self) -> usize;

    /// Returns how many frames the interface took, which are the first of those pushed.
    fn sent(&self) -> u64;

    /// Returns how often the interface was offered a frame and did not take it, mostly for want of
    /// room. Some drivers (veth) count each such time as a dropped packet, though the frame went
    /// later.
    fn turned_away(&self) -> u64;
}

/// Waits for an interface that has no room at the moment.
struct Patience {
    ifindex: u32,
    /// The time since which the interface has taken no frame.
    since: Option<Instant>,
    /// The time since which the caller did not get to look at its flags.
    busy: Option<Instant>,
}

impl Patience {
    /// Room that a driver makes at once is not worth a sleep, which lasts at least as long.
    const YIELD: Duration = Duration::from_micros(50);
    const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
    /// A signal that comes just before a sleep does not end it. So the caller gets to look at its
    /// flags anyway, no later than this.
    const LONGEST: Duration = Duration::from_millis(100);
    /// A frame that the interface will never take looks like a full queue, to most drivers.
    const HOPELESS: Duration = Duration::from_secs(5);

    fn new(ifindex: u32) -> Self {
        Self { ifindex, since: None, busy: None }
    }

    /// The interface has taken something.
    fn renew(&mut self) {
        (self.since, self.busy) = (None, None);
    }

    /// Waits a little for room for a frame of `len` bytes.
    fn wait(&mut self, len: usize) -> io::Result<()> {
        self.wait_by(len, || match nanosleep(&Self::SLEEP) {
            NanosleepRelativeResult::Err(e) => Err(e.into()),
            NanosleepRelativeResult::Interrupted(_) => Err(io::ErrorKind::Interrupted.into()),
            NanosleepRelativeResult::Ok => Ok(()),
        })
    }

    /// Waits a little for room for a frame of `len` bytes, by a sleep that knows better when to
    /// end.
    fn wait_by(&mut self, len: usize, sleep: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let busy = *self.busy.get_or_insert(now);
        if now - since < Self::YIELD {
            sched_yield();
            return Ok(());
        }
        if now - busy < Self::LONGEST {
            return sleep();
        }
        self.busy = None;
        if let Some(obstacle) = self.obstacle(len) {
            return Err(obstacle);
        }
        if now - since < Self::HOPELESS {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.renew();
        Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
    }

    /// Returns what will keep an interface from taking a frame of `len` bytes however long it
    /// waits: for some of these the kernel has no other answer than for a full queue.
    fn obstacle(&self, len: usize) -> Option<io::Error> {
        let code = match Interface::by_index(self.ifindex) {
            Ok(None) => libc::ENXIO,
            Ok(Some(i)) if !i.up || !i.running => libc::ENETDOWN,
            Ok(Some(i)) if len > i.mtu as usize + LINK_HEADER => libc::EMSGSIZE,
            Ok(Some(_)) => return None,
            Err(Error::Netlink(e)) => return Some(e),
            Err(e) => return Some(io::Error::other(e)),
        };
        Some(io::Error::from_raw_os_error(code))
    }
}
