//! Whose turn is it at the disk and at the processor? A thread says of itself whether others go
//! first, or it does.

use std::io;

/// Lets others go first at the disks: what this thread, and those that it starts, ask for is done
/// when nobody else wants them (class idle of ioprio_set(2)). The schedulers `mq-deadline` and
/// `bfq` heed it.
pub fn yield_disk() -> io::Result<()> {
    const IDLE: libc::c_long = 3 << 13;
    set_disk_priority(IDLE)
}

/// Does something while this thread lets others go first at the disks, as [`yield_disk`] has it.
/// Where that is refused, it is done all the same.
pub fn while_yielding_disk<T>(work: impl FnOnce() -> T) -> T {
    let before = disk_priority();
    let has_yielded = before.is_ok() && yield_disk().is_ok();
    let done = work();
    if let (true, Ok(before)) = (has_yielded, before) {
        // What this thread had it may have again.
        let _ = set_disk_priority(before);
    }
    done
}

/// For whom ioprio_set(2) and ioprio_get(2) are: one thread, the calling one.
const THREAD: libc::c_int = 1;
const SELF: libc::c_int = 0;

#[allow(unsafe_code, reason = "no library has this call")]
fn disk_priority() -> io::Result<libc::c_long> {
    // SAFETY: the call takes two numbers and touches no memory.
    let class = unsafe { libc::syscall(libc::SYS_ioprio_get, THREAD, SELF) };
    if class < 0 { Err(io::Error::last_os_error()) } else { Ok(class) }
}

#[allow(unsafe_code, reason = "no library has this call")]
fn set_disk_priority(class: libc::c_long) -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, SELF, class) };
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
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the structure outlives the call, which reads it.
    let done = unsafe { libc::sched_setscheduler(SELF, class, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::{disk_priority, while_yielding_disk, yield_disk};

    #[test]
    fn a_thread_yields_the_disk_for_a_while() {
        let before = disk_priority().unwrap();
        let within = while_yielding_disk(|| disk_priority().unwrap());
        assert_eq!((within, disk_priority().unwrap()), (3 << 13, before));
    }

    #[test]
    fn everybody_may_yield() {
        std::thread::spawn(|| yield_disk().expect("no privilege is needed")).join().unwrap();
    }
}
