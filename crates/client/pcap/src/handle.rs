//! A handle of a group: what pcap(3PCAP) says of a live capture, over a member of the group.
//!
//! Everything is behind one lock, which is held neither while a packet is shown to the program nor
//! while nothing comes: both are when the program, or a signal handler of it, calls again. Breaking
//! the loop takes no lock, and counts are given from the last time where it is not free, for signal
//! handlers call both.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tapdeck_client::{Error, LinkType, Member, Next, Options, Packet};

use crate::filter::{Filter, Way};

/// What programs write before a group's name.
pub const PREFIX: &str = "deck:";

/// The most that libpcap takes for a snaplen, and takes where none is set.
pub const MAX_SNAPLEN: u32 = 262_144;
/// So many packets are shown at most by a call that is to show "a buffer".
const BUFFER_PACKETS: u32 = 1024;
/// How often a daemon that has ended is asked whether anything comes after all.
const AFTERMATH_LOOK: Duration = Duration::from_millis(5);

/// Why a call fails, by libpcap's numbers (pcap/pcap.h).
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

/// What a program sets before it activates a handle.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub snaplen: u32,
    /// Of a read; `None` to wait for ever.
    pub timeout: Option<Duration>,
    pub nanoseconds: bool,
    pub monitor_mode: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { snaplen: MAX_SNAPLEN, timeout: None, nanoseconds: false, monitor_mode: false }
    }
}

/// A packet for the program. The bytes are borrowed from the member until the next one is asked
/// for.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub seconds: i64,
    /// Micro- or nanoseconds, as was set.
    pub fraction: i64,
    pub captured: u32,
    pub original: u32,
    pub bytes: *const u8,
}

/// What the group is, once the handle is activated.
pub struct Active {
    member: Member,
    pub datalink: i32,
    pub snaplen: u32,
    rejected: u64,
    filter: Option<Filter>,
    direction: Direction,
}

/// What is behind the lock. `T` is what libpcap does for the handle without a device.
pub struct State<T> {
    pub settings: Settings,
    pub nonblocking: bool,
    pub active: Option<Active>,
    pub real: T,
}

/// Packets received and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: u32,
    pub dropped: u32,
}

/// A handle.
pub struct Handle<T> {
    group: String,
    state: Mutex<State<T>>,
    error: Mutex<String>,
    is_broken: AtomicBool,
    /// Readable when the loop was broken, so that who waits sees it.
    broken: OwnedFd,
    /// The last counts.
    received: AtomicU32,
    dropped: AtomicU32,
}

/// Runs a filter: program, frame, original length; whether the packet is wanted.
pub type Run<'a> = &'a dyn Fn(&[crate::filter::Instruction], &[u8], u32) -> bool;

impl<T> Handle<T> {
    /// A handle of `group`, not activated.
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

    /// Keeps why something failed.
    pub fn fail(&self, why: impl Display) -> Fault {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = why.to_string();
        Fault::Failed
    }

    /// Why something failed last.
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

    /// Something of an activated handle.
    pub fn active<R>(&self, of: impl FnOnce(&mut Active) -> R) -> Result<R, Fault> {
        let mut state = self.state();
        state.active.as_mut().map(of).ok_or_else(|| self.not_activated())
    }

    fn not_activated(&self) -> Fault {
        self.fail("the handle has not been activated");
        Fault::NotActivated
    }

    /// Attaches to the group. `make` makes what libpcap does for a handle: link type, snaplen,
    /// whether times are nanoseconds.
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
        });
        Ok(())
    }

    /// Has the program's loop end.
    pub fn break_loop(&self) {
        self.is_broken.store(true, SeqCst);
        // The number in it grows, or is there already.
        let _ = rustix::io::write(&self.broken, &1u64.to_ne_bytes());
    }

    /// Whether the loop was to be broken; tells it once.
    fn was_broken(&self) -> bool {
        // Asked for each packet: reading alone costs nothing.
        if !self.is_broken.load(SeqCst) || !self.is_broken.swap(false, SeqCst) {
            return false;
        }
        let _ = rustix::io::read(&self.broken, &mut [0; 8]);
        true
    }

    /// Shows packets to the program: at most `limit`, and without one, as many as a buffer may
    /// hold. Waits for the first as the handle's settings say. Gives back how many it showed.
    pub fn dispatch(
        &self,
        limit: Option<u32>,
        run: Run<'_>,
        mut show: impl FnMut(Shown),
    ) -> Result<u32, Fault> {
        let limit = limit.unwrap_or(BUFFER_PACKETS);
        let timeout = self.state().settings.timeout;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut shown = 0;
        while shown < limit {
            if self.is_broken.load(SeqCst) && shown > 0 {
                // The next call tells it.
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

    /// The next packet that the program wants, if there is one.
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
                    // Packets that nobody wants may come without end.
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

    /// Waits without the lock until something may have come, or a signal did.
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
        // The flag is set before the number is written, and looked at after this: so no break is
        // missed, and a number that was written after its flag had been told already does
        // not end every wait from now on.
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

    /// Packets that came and passed the filter or were not looked at, with those dropped; and those
    /// dropped.
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

    /// To be waited for; never to be read.
    pub fn fd(&self) -> BorrowedFd<'_> {
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
