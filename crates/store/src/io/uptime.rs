//! How much time has passed, whatever somebody does to the clock? The kernel counts it from the
//! machine's start, and that cannot be set.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What tells how much time has passed.
#[derive(Clone)]
pub struct Uptime {
    /// Which start of the machine `since_boot` counts from.
    pub boot: String,
    /// Returns the time since the machine was started, with that in which it was suspended.
    pub since_boot: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Returns whether something keeps the clock of this machine at UTC, so that what it says can
    /// be believed also over a restart of the machine.
    pub is_synchronised: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Uptime {
    /// Returns what this machine tells: `CLOCK_BOOTTIME` of clock_gettime(2), `boot_id` of
    /// random(4), and adjtimex(2).
    pub fn of_machine() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            since_boot: Arc::new(|| {
                let t = clock_gettime(ClockId::Boottime);
                Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
            }),
            is_synchronised: Arc::new(is_synchronised),
        }
    }
}

/// Returns whether the kernel was told of late that its clock is right.
#[allow(unsafe_code, reason = "no library that is used here has this call")]
fn is_synchronised() -> bool {
    // SAFETY: the structure consists of numbers, for which zeros are values; its `modes` of 0 asks
    // and sets nothing.
    let mut told: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call, which writes into it and nowhere else.
    let state = unsafe { libc::adjtimex(&raw mut told) };
    state >= 0 && state != libc::TIME_ERROR && told.status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::Uptime;

    #[test]
    fn time_passes_within_one_start_of_the_machine() {
        let (one, other) = (Uptime::of_machine(), Uptime::of_machine());
        assert!(!one.boot.is_empty() && one.boot == other.boot, "{}", one.boot);
        let before = (one.since_boot)();
        assert!((other.since_boot)() >= before && !before.is_zero());
    }
}
