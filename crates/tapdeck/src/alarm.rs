//! What ends the sleep of the thread that looks after hooks?
//!
//! An [`Alarm`] is one descriptor to wait for, readable when
//! - a thread has rung its [`Bell`]: a signal has come, or the writer has found packets,
//! - the clock was set, which the kernel tells by a timer that this cancels (timerfd_create(2)),
//! - the helper is gone.
//!
//! So nobody has to look again and again whether one of these has happened.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tapdeck_capture::Helper;

/// When the timer that only cancelling ends would end: nobody lives to see it.
const NEVER_S: i64 = 1 << 40;
/// What has rung.
const BELL: u64 = 0;
const CLOCK: u64 = 1;
const HELPER: u64 = 2;

pub struct Alarm {
    all: OwnedFd,
    bell: Bell,
    clock: OwnedFd,
}

/// What another thread rings to end the sleep.
#[derive(Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    pub fn ring(&self) {
        // It fails only where it was rung 2^64 times.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Alarm {
    /// # Errors
    /// As epoll_create1(2), eventfd(2) and timerfd_create(2).
    pub fn new() -> io::Result<Self> {
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let never = Itimerspec { it_interval: time(0), it_value: time(NEVER_S) };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&clock, flags, &never)?;
        for (fd, which) in [(&bell, BELL), (&clock, CLOCK)] {
            epoll::add(&all, fd, EventData::new_u64(which), EventFlags::IN)?;
        }
        Ok(Self { all, bell: Bell(Arc::new(bell)), clock })
    }

    /// Has the end of a helper ring, too, and ring on.
    pub fn watch(&self, helper: &Helper) -> io::Result<()> {
        let Some(socket) = helper.socket()? else { return Ok(()) };
        // That the other end is closed is always told.
        epoll::add(&self.all, &socket, EventData::new_u64(HELPER), EventFlags::empty())?;
        // The helper's own descriptor is of the same socket, and keeps it in the list.
        Ok(())
    }

    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Waits until it rings or until a time.
    pub fn wait(&self, until: Instant) {
        let patience = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(patience.max(Duration::ZERO)).unwrap_or_default();
        // A signal ends the wait early, which is no harm.
        let _ = poll(&mut [PollFd::new(&self.all, PollFlags::IN)], Some(&timeout));
    }

    /// Takes note that it has rung.
    pub fn quiet(&self) {
        let mut rung = [const { MaybeUninit::uninit() }; 3];
        let now = Timespec::default();
        let Ok((rung, _)) = epoll::wait(&self.all, &mut rung, Some(&now)) else { return };
        let mut word = [0; 8];
        for event in rung {
            // A timer that was cancelled says so. A helper that is gone stays gone.
            let _ = match event.data.u64() {
                BELL => rustix::io::read(&self.bell.0, &mut word),
                CLOCK => rustix::io::read(&self.clock, &mut word),
                _ => Ok(0),
            };
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::Alarm;

    fn rings(alarm: &Alarm) -> bool {
        let mut asked = [PollFd::new(alarm, PollFlags::IN)];
        poll(&mut asked, Some(&Timespec::default())).expect("poll works") == 1
    }

    #[test]
    fn it_rings_until_it_is_quieted() {
        let alarm = Alarm::new().expect("descriptors can be had");
        assert!(!rings(&alarm));
        let bell = alarm.bell();
        std::thread::spawn(move || bell.ring()).join().expect("it rings");
        alarm.wait(Instant::now() + Duration::from_secs(600));
        assert!(rings(&alarm));
        alarm.quiet();
        assert!(!rings(&alarm));
        alarm.bell().ring();
        assert!(rings(&alarm), "again");
    }
}
