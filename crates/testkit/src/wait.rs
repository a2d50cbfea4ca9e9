//! How long does a test wait? Until what it asserts is so, however busy the machine is.
//!
//! A test that sleeps is slow where the machine is fast and fails where it is slow. So tests wait
//! for the very condition that they assert, not for one that usually comes with it, and none
//! asserts how long something takes. The limit here is for conditions that never come: it is far
//! beyond what a machine with several builds at work needs, and it ends the test with what was
//! waited for.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait: nothing in a test takes so long unless it never comes.
pub const LIMIT: Duration = Duration::from_secs(180);

const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

/// Waits until `done` says so. It is asked often at first, then every 5 ms.
///
/// # Panics
/// After [`LIMIT`], with `what` was waited for.
pub fn wait_for(what: &str, done: impl FnMut() -> bool) {
    assert!(is_done_within(LIMIT, done), "waited in vain for {what}");
}

/// Waits as [`wait_for`] does, for `limit` at most. Returns whether `done` has said so.
pub fn is_done_within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let mut pause = SHORTEST;
    while !done() {
        if begun.elapsed() >= limit {
            return false;
        }
        // Threads that spin would take the processor from those they wait for.
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Duration, is_done_within, wait_for};

    #[test]
    fn it_asks_until_it_is_so_and_not_once_more() {
        let mut asked = 0;
        wait_for("the third time", || {
            asked += 1;
            asked == 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    fn what_never_comes_is_given_up() {
        assert!(!is_done_within(Duration::from_millis(2), || false));
        assert!(is_done_within(Duration::ZERO, || true));
    }
}
