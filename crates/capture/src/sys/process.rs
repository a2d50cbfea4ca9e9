//! A second process of this program, which shares no memory that either writes.

use std::io;
use std::time::{Duration, Instant};

/// Divides this process in two. Returns the number of the new one, and in that `None`.
///
/// # Errors
/// `EBUSY` where this process has several threads, of which the new one would have one alone, and
/// whatever the others had locked locked for ever; and as fork(2).
pub fn divide() -> io::Result<Option<rustix::process::Pid>> {
    // The kernel lists a thread for some time after it was joined.
    let until = Instant::now() + Duration::from_secs(1);
    while std::fs::read_dir("/proc/self/task")?.count() != 1 {
        if Instant::now() > until {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: this thread is the only one, so that nothing is half done in the copy of the memory.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(rustix::process::Pid::from_raw(pid)),
    }
}

/// Ends this process, and does nothing else that a program does at its end.
pub fn end(code: i32) -> ! {
    // SAFETY: the call touches no memory and does not return.
    unsafe { libc::_exit(code) }
}

/// Lets signals to this thread wait until something is done, as far as they can; those to the
/// process go to its other threads.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: a set of integers, for which all zeros are valid; the calls write whole sets.
    let before = unsafe {
        let [mut all, mut before]: [libc::sigset_t; 2] = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let done = work();
    // SAFETY: the set is the one that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    done
}

/// Ignores the signals that ask a program to end or to say something.
pub fn ignore_signals() {
    use libc::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    for signal in [SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE] {
        // SAFETY: no function of this process is entered as a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
