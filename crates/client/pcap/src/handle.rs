//! How does a group behave as a live capture of pcap(3PCAP)?
//!
//! A [`Handle`] has the states and settings of a capture, and reads packets from a member of the
//! group. It is safe Rust and does not know the structures of C; `abi` has those.
//!
//! Everything is behind one lock. It is held neither while a packet is shown to the program nor
//! while the program waits, because the program, or a signal handler of it, may call again at these
//! times. Breaking the loop takes no lock, and where the lock is not free, counts are those of the
//! last time: signal handlers call both.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tapdeck_client::{Error, LinkType, Member, Next, Options, Packet};

use crate::filter::{Filter, Way};

/// What precedes a group's name in the name of a device.
pub const PREFIX: &str = "deck:";

/// The largest snaplen that libpcap takes, in bytes, and the one where none is set.
pub const MAX_SNAPLEN: u32 = 262_144;
/// How many packets a call without a limit shows at most; in libpcap, those of one buffer.
const BUFFER_PACKETS: u32 = 1024;
/// How long a wait is, at most, after the daemon has ended and until the member says that no packet
/// can come any more.
const AFTERMATH_LOOK: Duration = Duration::from_millis(5);
/// How long a read waits, at most, in a program that waits for the handle's descriptor itself and
/// has set no timeout. The descriptor may be readable for packets that an earlier read has shown,
/// and a read that then waited without end would keep the program from what else it waits for.
const POLLED_WAIT: Duration = Duration::from_millis(10);

/// Why a call fails, with libpcap's number for it (pcap/pcap.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Fault {
    Failed = -1,
    Broken = -2,
    NotActivated = -3,
    Activated = -4,
    NoMonitorMode = -6,
    NoPermission = -8,
}

/// Which packets the program wants, by the way they went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Both,
    Only(Way),
}

/// What a program may set before it activates a handle.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a frame that are shown at most.
    pub snaplen: u32,
    /// How long a read waits for a packet; `None` to wait without end, which a program that asks
    /// for the descriptor does not get.
    pub timeout: Option<Duration>,
    /// Whether times are in nanoseconds; otherwise in microseconds.
    pub nanoseconds: bool,
    pub monitor_mode: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { snaplen: MAX_SNAPLEN, timeout: None, nanoseconds: false, monitor_mode: false }
    }
}

/// A packet for the program. The bytes are the member's, and valid until the next packet is asked
/// for.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Whole seconds since 1970, UTC.
    pub seconds: i64,
    /// The rest of the time, in microseconds or in nanoseconds as was set.
    pub fraction: i64,
    /// Number of bytes that are shown.
    pub captured: u32,
    /// Length of the frame on the wire, in bytes.
    pub original: u32,
    pub bytes: *const u8,
}

/// What a handle has once it is activated.
pub struct Active {
    member: Member,
    /// Link type, by the number of libpcap's functions (`DLT_`).
    pub datalink: i32,
    /// Bytes of a frame that are shown at most.
    pub snaplen: u32,
    /// Number of packets that the filter or the direction refused.
    rejected: u64,
    filter: Option<Filter>,
    direction: Direction,
    /// Whether the program has asked for the descriptor.
    is_polled: bool,
}

/// What the lock protects. `T` is the handle of libpcap's that does what needs no device.
pub struct State<T> {
    pub settings: Settings,
    pub nonblocking: bool,
    /// `None` until the handle is activated.
    pub active: Option<Active>,
    pub real: T,
}

/// Numbers of packets as libpcap counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the filter did not refuse, whether or not they were read or dropped.
    pub received: u32,
    /// Packets for which the rings had no room, or that were dropped for any other reason.
    pub dropped: u32,
}

/// The capture of a group. `T` is as in [`State`].
pub struct Handle<T> {
    group: String,
    state: Mutex<State<T>>,
    error: Mutex<String>,
    is_broken: AtomicBool,
    /// Readable when the loop was broken, so that a wait ends.
    broken: OwnedFd,
    /// [`Counts::received`] of the last time.
    received: AtomicU32,
    /// [`Counts::dropped`] of the last time.
    dropped: AtomicU32,
}

/// A function that runs a filter's program over a frame of this length on the wire, and returns
/// whether the packet is wanted.
pub type Run<'a> = &'a dyn Fn(&[crate::filter::Instruction], &[u8], u32) -> bool;

impl<T> Handle<T> {
    /// Makes a handle of `group` that is not activated.
    pub fn new(group: &str, real: T) -> std::io::Result<Self> {
        let state = State { settings: Settings::default(), nonblocking: false, active: None, real };
        Ok(Self {
            group: group.to_owned(),
            state: Mutex::new(state),
            error: Mutex::default(),
            is_broken: AtomicBool::new(false),
            broken: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            received: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the reason why a call failed, and returns the fault that has no number of its own.
    pub fn fail(&self, why: impl Display) -> Fault {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = why.to_string();
        Fault::Failed
    }

    /// Returns the reason why a call failed last.
    pub fn error(&self) -> String {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes a setting, as long as the handle is not activated.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<(), Fault> {
        let mut state = self.state();
        if state.active.is_some() {
            self.fail("can't perform operation on activated capture");
            return Err(Fault::Activated);
        }
        change(&mut state.settings);
        Ok(())
    }

    /// Calls `of` if the handle is activated.
    pub fn active<R>(&self, of: impl FnOnce(&mut Active) -> R) -> Result<R, Fault> {
        let mut state = self.state();
        state.active.as_mut().map(of).ok_or_else(|| self.not_activated())
    }

    fn not_activated(&self) -> Fault {
        self.fail("the handle has not been activated");
        Fault::NotActivated
    }

    /// Attaches to the group. `make` makes a handle of libpcap's from link type (`DLT_`), snaplen
    /// in bytes, and whether times are in nanoseconds.
    pub fn activate(&self, make: impl FnOnce(i32, u32, bool) -> Option<T>) -> Result<(), Fault> {
        let mut state = self.state();
        if state.active.is_some() {
            self.fail("the handle is activated already");
            return Err(Fault::Activated);
        }
        let settings = state.settings;
        if settings.monitor_mode {
            self.fail(format_args!("{PREFIX}{}: a group has no monitor mode", self.group));
            return Err(Fault::NoMonitorMode);
        }
        let member = Member::open(&self.group, &Options::default()).map_err(|e| {
            self.fail(format_args!("{PREFIX}{}: {e}", self.group));
            match e {
                Error::NoDaemon { why: source, .. }
                    if source.kind() == std::io::ErrorKind::PermissionDenied =>
                {
                    Fault::NoPermission
                }
                _ => Fault::Failed,
            }
        })?;
        let mut links = member.interfaces().iter().map(|interface| interface.link);
        let link = links.next().unwrap_or(LinkType::ETHERNET);
        if links.any(|other| other != link) {
            return Err(self.fail(format_args!(
                "{PREFIX}{}: its interfaces have different link types, and a capture has one",
                self.group
            )));
        }
        let datalink = link.dlt();
        let snaplen = settings.snaplen;
        let real = make(datalink, snaplen, settings.nanoseconds);
        state.real = real.ok_or_else(|| self.fail("libpcap has no memory for a handle"))?;
        state.active = Some(Active {
            member,
            datalink,
            snaplen,
            rejected: 0,
            filter: None,
            direction: Direction::Both,
            is_polled: false,
        });
        Ok(())
    }

    /// Makes the program's loop end, also while it waits.
    pub fn break_loop(&self) {
        self.is_broken.store(true, SeqCst);
        // Where writing fails, the descriptor is readable already.
        let _ = rustix::io::write(&self.broken, &1u64.to_ne_bytes());
    }

    /// Returns whether the loop is to end. The answer is true once for each break.
    fn was_broken(&self) -> bool {
        // This is asked for each packet, and only the exchange would cost anything.
        if !self.is_broken.load(SeqCst) || !self.is_broken.swap(false, SeqCst) {
            return false;
        }
        let _ = rustix::io::read(&self.broken, &mut [0; 8]);
        true
    }

    /// Shows packets to the program and returns how many: at most `limit`, or [`BUFFER_PACKETS`]
    /// without one. Waits for the first packet as the handle's settings say.
    pub fn dispatch(
        &self,
        limit: Option<u32>,
        run: Run<'_>,
        mut show: impl FnMut(Shown),
    ) -> Result<u32, Fault> {
        let limit = limit.unwrap_or(BUFFER_PACKETS);
        let timeout = self.longest_wait();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut shown = 0;
        while shown < limit {
            if self.is_broken.load(SeqCst) && shown > 0 {
                // The next call says that the loop was broken.
                break;
            }
            if self.was_broken() {
                return Err(Fault::Broken);
            }
            match self.next(deadline, run)? {
                Next::Got(packet) => {
                    show(packet);
                    shown += 1;
                }
                _ if shown > 0 => break,
                Next::End => {
                    return Err(self.fail(format_args!(
                        "{PREFIX}{}: the daemon has ended; there are no more packets",
                        self.group
                    )));
                }
                Next::Nothing => {
                    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                    if self.state().nonblocking || left == Some(Duration::ZERO) {
                        break;
                    }
                    self.wait(left)?;
                }
            }
        }
        Ok(shown)
    }

    /// Returns how long a read waits for a packet; `None` without end.
    fn longest_wait(&self) -> Option<Duration> {
        let state = self.state();
        let is_polled = state.active.as_ref().is_some_and(|active| active.is_polled);
        state.settings.timeout.or(is_polled.then_some(POLLED_WAIT))
    }

    /// Finds the next packet that the program wants, without waiting.
    fn next(&self, deadline: Option<Instant>, run: Run<'_>) -> Result<Next<Shown>, Fault> {
        let mut state = self.state();
        let (nanoseconds, nonblocking) = (state.settings.nanoseconds, state.nonblocking);
        let active = state.active.as_mut().ok_or_else(|| self.not_activated())?;
        let Active { member, snaplen, rejected, filter, direction, .. } = active;
        let found = loop {
            match member.next_packet(Some(Duration::ZERO)) {
                Ok(Next::Got(packet)) => {
                    if is_wanted(&packet, *direction, filter.as_ref(), run) {
                        break Ok(Next::Got(shown(&packet, *snaplen, nanoseconds)));
                    }
                    *rejected += 1;
                    // Packets that the program does not want may come without end.
                    let is_late = || deadline.is_some_and(|at| at <= Instant::now());
                    let is_turn = rejected.is_multiple_of(u64::from(BUFFER_PACKETS));
                    if self.is_broken.load(SeqCst) || is_turn && (nonblocking || is_late()) {
                        break Ok(Next::Nothing);
                    }
                }
                Ok(Next::Nothing) => break Ok(Next::Nothing),
                Ok(Next::End) => break Ok(Next::End),
                Err(e) => break Err(self.fail(format_args!("{PREFIX}{}: {e}", self.group))),
            }
        };
        if !matches!(found, Ok(Next::Got(_))) {
            self.note_counts(active);
        }
        found
    }

    /// Waits, without the lock, until packets or a signal may have come.
    fn wait(&self, timeout: Option<Duration>) -> Result<(), Fault> {
        let (wake, has_ended) = self.active(|active| {
            (active.member.as_fd().try_clone_to_owned(), active.member.attachment().has_ended())
        })?;
        let wake = wake.map_err(|e| self.fail(e))?;
        let mut fds = vec![PollFd::new(&self.broken, PollFlags::IN)];
        let mut timeout = timeout;
        if has_ended {
            timeout = Some(timeout.map_or(AFTERMATH_LOOK, |timeout| timeout.min(AFTERMATH_LOOK)));
        } else {
            fds.push(PollFd::new(&wake, PollFlags::IN));
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(self.fail(e)),
        }
        // `break_loop` sets the flag before it writes, and the flag is looked at after this read:
        // so no break is missed. A write that came after its flag was read already is taken out
        // here, so that it does not end every wait from now on.
        let _ = rustix::io::read(&self.broken, &mut [0; 8]);
        Ok(())
    }

    fn note_counts(&self, active: &Active) -> Counts {
        let counts = active.member.counts();
        let received = (counts.received + counts.dropped).saturating_sub(active.rejected);
        let counts = Counts { received: received as u32, dropped: counts.dropped as u32 };
        self.received.store(counts.received, SeqCst);
        self.dropped.store(counts.dropped, SeqCst);
        counts
    }

    /// Returns the counts, or those of the last time where the lock is not free.
    pub fn counts(&self) -> Result<Counts, Fault> {
        let Ok(state) = self.state.try_lock() else {
            let load = |count: &AtomicU32| count.load(SeqCst);
            return Ok(Counts { received: load(&self.received), dropped: load(&self.dropped) });
        };
        let active = state.active.as_ref().ok_or_else(|| self.not_activated())?;
        Ok(self.note_counts(active))
    }
}

impl Active {
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = Some(filter);
    }

    pub fn set_direction(&mut self, direction: Direction) {
        self.direction = direction;
    }

    /// Returns the member's descriptor, to be waited for and never to be read. From now on, no read
    /// waits without end.
    pub fn fd(&mut self) -> BorrowedFd<'_> {
        self.is_polled = true;
        self.member.as_fd()
    }
}

fn way(packet: &Packet<'_>) -> Way {
    const OUTBOUND: u32 = 2;
    if packet.flags & 3 == OUTBOUND { Way::Out } else { Way::In }
}

fn is_wanted(
    packet: &Packet<'_>,
    direction: Direction,
    filter: Option<&Filter>,
    run: Run<'_>,
) -> bool {
    let way = way(packet);
    let goes_right = match direction {
        Direction::Both => true,
        Direction::Only(wanted) => wanted == way,
    };
    goes_right
        && filter.is_none_or(|filter| run(filter.program(way), packet.bytes, packet.original_len))
}

fn shown(packet: &Packet<'_>, snaplen: u32, nanoseconds: bool) -> Shown {
    const SECOND: u64 = 1_000_000_000;
    let fraction = packet.timestamp_ns % SECOND;
    Shown {
        seconds: (packet.timestamp_ns / SECOND) as i64,
        fraction: if nanoseconds { fraction } else { fraction / 1000 } as i64,
        captured: snaplen.min(packet.bytes.len() as u32),
        original: packet.original_len,
        bytes: packet.bytes.as_ptr(),
    }
}
