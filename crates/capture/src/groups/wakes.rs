//! Who wakes a member as soon as there is something to read, and a daemon that rests?
//!
//! The programs tell the number of each member that waits for a block which has become complete,
//! through a ring buffer of BPF, and a thread that does nothing else writes a byte to that member's
//! pipe. So a member is woken at once, whatever the thread is busy with that looks after the
//! groups. Many numbers are passed on by one turn of this thread: the kernel wakes it only when it
//! has taken all those before. A number that no member has is for the daemon itself, and comes
//! only while that rests.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use libbpf_rs::{MapHandle, Object, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use tapdeck_packet::watch::{waiting, watch};

use super::maps::MAX_MEMBERS;
use crate::sys::libbpf::{io_error, map};

/// The writing ends of the members' pipes, by the members' numbers.
type Pipes = Mutex<Vec<Option<Arc<OwnedFd>>>>;

/// Wakes the daemon.
pub(super) type Bell = Box<dyn Fn() + Send>;

/// `TD_DAEMON` of `bpf/serve.h`.
pub(super) const DAEMON: u32 = MAX_MEMBERS as u32;

/// The thread that wakes members, and the pipes that it writes to. The thread ends when this is
/// dropped.
pub(super) struct Wakes {
    pipes: Arc<Pipes>,
    /// Taken by the thread.
    daemon: Option<Bell>,
    /// The thread ends when this pipe's writing end is closed.
    goes_on: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn lock(pipes: &Pipes) -> MutexGuard<'_, Vec<Option<Arc<OwnedFd>>>> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes whoever reads a pipe. A full pipe is no error: there is enough in it to wake up.
pub(super) fn wake(pipe: &OwnedFd) {
    let _ = rustix::io::write(pipe, &[1]);
}

impl Wakes {
    /// Has no pipes, and no thread yet.
    pub(super) fn new() -> Self {
        let pipes = Arc::new(Mutex::new(vec![None; MAX_MEMBERS]));
        Self { pipes, daemon: None, goes_on: None, thread: None }
    }

    /// Wakes the daemon so. Called before the thread is started.
    pub(super) fn wake_daemon_by(&mut self, bell: Bell) {
        self.daemon = Some(bell);
    }

    /// Starts the thread for the programs of a loaded object.
    pub(super) fn start(&mut self, object: &Object) -> io::Result<()> {
        let (pipes, daemon) = (self.pipes.clone(), self.daemon.take());
        let wakes = MapHandle::try_from(&map(object, "wakes")?).map_err(|e| io_error(&e))?;
        let mut ring = RingBufferBuilder::new();
        let pass_on = move |number: &[u8]| {
            let number = number.try_into().map_or(u32::MAX, u32::from_ne_bytes);
            if number == DAEMON {
                if let Some(bell) = &daemon {
                    bell();
                }
            } else if let Some(Some(pipe)) = lock(&pipes).get(number as usize) {
                wake(pipe);
            }
            0
        };
        ring.add(&wakes, pass_on).map_err(|e| io_error(&e))?;
        let ring = ring.build().map_err(|e| io_error(&e))?;
        let (ends, goes_on) = pipe_with(PipeFlags::CLOEXEC)?;
        let turn = move || {
            watch("tapdeck-wake");
            loop {
                let mut fds =
                    [PollFd::new(&wakes, PollFlags::IN), PollFd::new(&ends, PollFlags::IN)];
                let woken = waiting(|| poll(&mut fds, None));
                let is_over = !fds[1].revents().is_empty();
                // A signal is no end, and what was told before the end is still passed on.
                let _ = ring.consume();
                if is_over || woken.is_err_and(|e| e != rustix::io::Errno::INTR) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tapdeck-wake".into()).spawn(turn)?;
        (self.goes_on, self.thread) = (Some(goes_on), Some(thread));
        Ok(())
    }

    /// Wakes a member through this pipe from now on; through none where it has left.
    pub(super) fn set(&self, member: u32, pipe: Option<Arc<OwnedFd>>) {
        if let Some(place) = lock(&self.pipes).get_mut(member as usize) {
            *place = pipe;
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.goes_on = None;
        if let Some(thread) = self.thread.take() {
            // It panics only where this process has a fault, of which it has told.
            let _ = thread.join();
        }
    }
}
