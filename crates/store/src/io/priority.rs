//! Whose turn is it at the disk and at the processor? A thread says of itself whether others go
//! first, or it does.

use std::io;

/// Lets others go first at the disks: what this thread, and those that it starts, ask for is done
/// when nobody else wants them (class idle of ioprio_set(2)). The schedulers `mq-deadline` and
/// `bfq` heed it.
#[allow(unsafe_code, reason = "no library has this call")]
pub fn yield_disk() -> io::Result<()> {
    const PROCESS: libc::c_int = 1;
    const SELF: libc::c_int = 0;
    const IDLE: libc::c_int = 3 << 13;
    // SAFETY: the call takes three numbers and touches no memory.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, PROCESS, SELF, IDLE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets others go first at the processor: where they want it too, this thread, and those that it
/// starts, get a tenth of what they get.
pub fn yield_processor() -> io::Result<()> {
    const NICENESS: i32 = 10;
    Ok(rustix::process::setpriority_process(None, NICENESS)?)
}

/// Lets this thread run before all of the normal classes: class FIFO of sched(7), at its lowest
/// priority. Only a thread that soon waits again may ask for that; it needs `CAP_SYS_NICE`, unless
/// it goes first already. Threads that it starts are as others.
pub fn go_first() -> io::Result<()> {
    schedule(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
}

/// Lets this thread run as [`go_first`] does, and threads that it starts, too.
pub fn go_first_with_threads() -> io::Result<()> {
    schedule(libc::SCHED_FIFO, 1)
}

/// Lets this thread run as others do.
pub fn go_as_others() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)
}

#[allow(unsafe_code, reason = "no library has this call")]
fn schedule(class: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    const SELF: libc::pid_t = 0;
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the structure outlives the call, which reads it.
    let done = unsafe { libc::sched_setscheduler(SELF, class, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn everybody_may_yield() {
        std::thread::spawn(|| super::yield_disk().expect("no privilege is needed")).join().unwrap();
    }
}
