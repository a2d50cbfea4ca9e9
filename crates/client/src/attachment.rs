//! How does a member notice that there is something to read, that the daemon has gone, and that
//! there is one again?
//!
//! **Waiting.** The daemon writes a byte to a pipe when a block has become complete whose ring was
//! read and released up to there; a member that is behind finds the block by itself. So a member
//! waits only when it has released every complete block and then looked once more. The pipe is
//! emptied only after the rings were found empty, and then the rings are looked at again: so the
//! descriptor stays readable as long as there may be more. The daemon closes a part-filled block
//! when a packet in it has waited for some tens of milliseconds.
//!
//! **The end.** A daemon that ends closes the pipe. The kernel takes its programs off the
//! interfaces a moment later, so the member goes on for that long before it says that it is the
//! end.
//!
//! **Away.** A daemon whose groups outlive it has given the member a secret. When such a daemon
//! ends, packets go on coming, and nobody tells of them: so the member looks every 50 ms, into its
//! rings and for a daemon. The next one gives the member its place again for its number and its
//! secret. The rings stay the same, whoever the daemon is. It is the end where a daemon refuses
//! that, or none has come for as long as the programs go on without one.
//!
//! The pipe and the connection change with the daemon. Programs that wait by themselves have one
//! descriptor all the time, which stands for what is waited for now (epoll(7)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::Error;
use crate::session::{Grant, LastingGrant, PATIENCE, Session, Stats};

/// How long after the daemon's end packets may still come. The kernel takes the daemon's programs
/// away on a thread of its own.
const AFTERMATH: Duration = Duration::from_millis(50);
/// How often a member looks into its rings, and for a daemon, while there is none.
const LOOK: Duration = Duration::from_millis(50);
/// How long a member waits for a daemon beyond the time for which programs go on without one: a
/// daemon that has begun may take so long until it serves.
const BEYOND: Duration = Duration::from_secs(5);

/// Where a membership is.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub socket: PathBuf,
    pub group: String,
}

/// The connection to the daemon, which keeps the membership.
pub struct Attachment {
    session: Session,
    wake: OwnedFd,
    /// An epoll(7) descriptor, of what there is to be waited for.
    bell: OwnedFd,
    /// When the daemon was found to have ended for good.
    ended: Option<Instant>,
    lasting: Option<Lasting>,
}

/// What a member has of a daemon whose groups outlive it.
struct Lasting {
    home: Home,
    member: u32,
    secret: String,
    /// How long programs go on without a daemon.
    abandon: Duration,
    away: Option<Away>,
}

/// A member without a daemon.
struct Away {
    since: Instant,
    /// Ticks every [`LOOK`].
    timer: OwnedFd,
    /// A connection on which a daemon was asked for the member's place, and when.
    asking: Option<(Session, Instant)>,
}

/// What rings the bell.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Source {
    Wake,
    Daemon,
    Timer,
}

fn listen(bell: &OwnedFd, to: impl AsFd, source: Source, to_input: bool) -> io::Result<()> {
    let flags = if to_input { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
    epoll::add(bell, to, epoll::EventData::new_u64(source as u64), flags)?;
    Ok(())
}

impl Away {
    fn begin(bell: &OwnedFd) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let every = Timespec::try_from(LOOK).unwrap_or_default();
        let times = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        listen(bell, &timer, Source::Timer, true)?;
        Ok(Self { since: Instant::now(), timer, asking: None })
    }
}

impl Attachment {
    pub(crate) fn new(
        session: Session,
        wake: OwnedFd,
        lasting: Option<(Home, u32, LastingGrant)>,
    ) -> io::Result<Self> {
        let lasting = lasting.map(|(home, member, grant)| Lasting {
            home,
            member,
            secret: grant.secret,
            abandon: Duration::from_millis(grant.abandon_ms),
            away: None,
        });
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let attachment = Self { session, wake, bell, ended: None, lasting };
        attachment.listen()?;
        Ok(attachment)
    }

    /// Has the bell ring for the present daemon.
    fn listen(&self) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.wake, true)?;
        listen(&self.bell, &self.wake, Source::Wake, true)?;
        // No request is under way, so the only event of the connection is its end.
        listen(&self.bell, self.session.stream(), Source::Daemon, false)
    }

    /// Asks the daemon what it counts for this member.
    ///
    /// # Errors
    /// [`Error::Connection`] where the connection failed, as when the daemon has ended;
    /// [`Error::Silent`], [`Error::Refused`] or [`Error::Answer`] where there is no good answer.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.session.stats()
    }

    /// Asks the daemon to close the part-filled blocks of this member, so that what is in them can
    /// be read as a batch. The daemon does so by itself when a packet has waited for some tens of
    /// milliseconds.
    ///
    /// # Errors
    /// Those of [`Attachment::stats`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.session.flush()
    }

    /// Leaves the group. No packet comes any more; those that are in the rings can still be read.
    ///
    /// # Errors
    /// Those of [`Attachment::stats`].
    pub fn leave(&mut self) -> Result<(), Error> {
        // Another daemon is not asked for the place again.
        if self.lasting.take().is_some_and(|lasting| lasting.away.is_some()) {
            self.ended = Some(Instant::now());
        }
        self.session.leave()
    }

    /// Returns whether the daemon was found to have ended, and no other is waited for. Packets may
    /// still come for a moment, until [`Attachment::is_over`].
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether there is no daemon at present, and packets go on coming all the same.
    pub fn is_away(&self) -> bool {
        self.lasting.as_ref().is_some_and(|lasting| lasting.away.is_some())
    }

    /// Returns whether the daemon has ended so long ago that no packet can come any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some_and(|at| at.elapsed() >= AFTERMATH)
    }

    /// Waits until there may be something to read, `other` can be read, or a signal came; for
    /// `timeout` at most, or without end if it is `None`.
    ///
    /// # Errors
    /// Those of poll(2), but for `EINTR`.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut timeout = timeout;
        let mut fds = Vec::with_capacity(2);
        if self.ended.is_some() {
            // The daemon is gone, so what is waited for is that its programs are gone too.
            timeout = Some(timeout.map_or(AFTERMATH, |timeout| timeout.min(AFTERMATH)));
        } else {
            fds.push(PollFd::new(&self.bell, PollFlags::IN));
        }
        fds.extend(other.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Empties the pipe by which the daemon wakes this member, and notes when the daemon has
    /// ended, or when there is one again. Read the rings once more afterwards, for a block may have
    /// been closed before.
    ///
    /// # Errors
    /// Those of read(2), but for `EINTR` and `EAGAIN`.
    pub fn drain(&mut self) -> io::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let [wakes, daemon, ticks] = self.rung()?;
        if daemon || (wakes && self.empty()?) {
            return self.lose_daemon();
        }
        if ticks { self.look_for_daemon() } else { Ok(()) }
    }

    /// Looks after the daemon without emptying the pipe, for a member that always has something to
    /// read.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        if self.lasting.is_none() || self.ended.is_some() {
            return Ok(());
        }
        let [_, daemon, ticks] = self.rung()?;
        if daemon {
            return self.lose_daemon();
        }
        if ticks { self.look_for_daemon() } else { Ok(()) }
    }

    /// Returns which sources have rung the bell, by their numbers.
    fn rung(&self) -> io::Result<[bool; 3]> {
        let mut rung = [false; 3];
        let mut events = [std::mem::MaybeUninit::uninit(); 3];
        let events = match epoll::wait(&self.bell, &mut events, Some(&Timespec::default())) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(rung),
            Err(e) => return Err(e.into()),
        };
        for event in events {
            let data = event.data;
            if let Some(source) = rung.get_mut(data.u64() as usize) {
                *source = true;
            }
        }
        Ok(rung)
    }

    /// Empties the pipe. Returns whether that is at its end.
    fn empty(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 256];
        loop {
            match rustix::io::read(&self.wake, &mut bytes) {
                Ok(0) => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Takes note that the daemon has ended.
    fn lose_daemon(&mut self) -> io::Result<()> {
        let Some(lasting) = &mut self.lasting else {
            self.ended = Some(Instant::now());
            return Ok(());
        };
        epoll::delete(&self.bell, &self.wake)?;
        epoll::delete(&self.bell, self.session.stream())?;
        lasting.away = Some(Away::begin(&self.bell)?);
        Ok(())
    }

    /// Looks whether there is a daemon again, and takes this member's place there.
    fn look_for_daemon(&mut self) -> io::Result<()> {
        let Some(Lasting { home, member, secret, abandon, away: Some(away) }) = &mut self.lasting
        else {
            return Ok(());
        };
        let answer = if let Some((session, _)) = &mut away.asking {
            session.answer_to_reattach()
        } else {
            let asked = Session::ask_to_reattach(&home.socket, &home.group, *member, secret);
            away.asking = asked.ok().map(|session| (session, Instant::now()));
            None
        };
        let is_late = |since: Instant| since.elapsed() > PATIENCE;
        match answer {
            Some(Ok(grant)) => {
                let asking = away.asking.take();
                let timer = self.lasting.as_mut().and_then(|lasting| lasting.away.take());
                // The timer is not listened to any more once it is closed.
                drop(timer);
                return asking.map_or(Ok(()), |(session, _)| self.come_back(session, grant));
            }
            // The timer, which nobody reads any more, keeps the bell ringing.
            Some(Err(Error::Refused(_) | Error::Version { .. })) => {
                self.ended = Some(Instant::now());
                return Ok(());
            }
            Some(Err(_)) => away.asking = None,
            None if away.asking.as_ref().is_some_and(|(_, since)| is_late(*since)) => {
                away.asking = None;
            }
            None => {}
        }
        if away.since.elapsed() > *abandon + BEYOND && away.asking.is_none() {
            self.ended = Some(Instant::now());
            return Ok(());
        }
        let _ = rustix::io::read(&away.timer, &mut [0; 8]);
        Ok(())
    }

    fn come_back(&mut self, session: Session, grant: Grant) -> io::Result<()> {
        self.session = session;
        self.wake = grant.wake;
        if let (Some(lasting), Some(grant)) = (&mut self.lasting, grant.lasting) {
            lasting.abandon = Duration::from_millis(grant.abandon_ms);
        }
        self.listen()
    }
}

/// A descriptor for poll(2) and its kind: readable when there are complete blocks, when the daemon
/// has ended, and, while another one is waited for, from time to time.
impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
