//! How does a test know that nothing is lost on the way? It sends no more than the way holds.
//!
//! A veth pair has a queue of 256 frames where the far end has a program in its driver, and the
//! processor's backlog of 1000 where it has none. What takes frames out of either is no thread of
//! the test: on a busy machine it may come to them late, and whoever sends on loses frames before
//! any hook has seen them, which no counter of a capture tells. So a sender looks, every 64 frames,
//! whether the far end has them, and waits if not; and when it is dropped, everything has arrived.
//! On an idle machine it never waits.
//!
//! This says nothing of what is behind the hook: whether rings hold what is sent is for the test to
//! see to.

use std::fs;
use std::time::Duration;

use pcap::{Active, Capture};

use crate::wait::is_done_within;

/// Frames under way at most.
const BURST: u64 = 64;
/// Frames that did not arrive for so long went down with the far end: its interface was removed, or
/// the program in its driver.
const LOST: Duration = Duration::from_millis(500);

/// Sends frames by an interface, of which none is lost before the far end has it.
pub struct Sender {
    capture: Capture<Active>,
    device: String,
    /// What [`passed`] tells when all has arrived.
    goal: u64,
    unseen: u64,
}

impl Sender {
    /// Opens an interface of the namespace where this thread is.
    ///
    /// # Panics
    /// If there is none of this name, or it is down.
    pub fn on(device: &str) -> Self {
        let capture = Capture::from_device(device).and_then(Capture::open);
        let capture = capture.unwrap_or_else(|e| panic!("{device}: {e}"));
        Self { capture, device: device.to_owned(), goal: passed(device), unseen: 0 }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If the interface does not take it.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_flat_out(frame);
        self.unseen += 1;
        if self.unseen >= BURST {
            self.wait_for_arrival();
        }
    }

    /// Sends frames, and returns how many they were.
    ///
    /// # Panics
    /// If the interface does not take one.
    pub fn send_all<F: AsRef<[u8]>>(&mut self, frames: impl IntoIterator<Item = F>) -> u64 {
        frames.into_iter().map(|frame| self.send(frame.as_ref())).count() as u64
    }

    /// Sends a frame without ever waiting for those before it. Some may be lost.
    ///
    /// # Panics
    /// If the interface does not take it.
    pub fn send_flat_out(&mut self, frame: &[u8]) {
        self.capture.sendpacket(frame).expect("the link is up");
        self.goal += 1;
    }

    /// Waits until the far end has all that was sent.
    pub fn wait_for_arrival(&mut self) {
        let mut now = passed(&self.device);
        while now < self.goal {
            let moved = is_done_within(LOST, || {
                let before = now;
                now = passed(&self.device);
                now > before
            });
            if !moved {
                self.goal = now;
            }
        }
        self.unseen = 0;
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // An interface that is gone takes nothing any more.
        if self.unseen > 0 && counters(&self.device).is_some() {
            self.wait_for_arrival();
            wait_for_backlogs();
        }
    }
}

/// Waits until each processor has been seen with nothing in its backlog.
fn wait_for_backlogs() {
    let mut busy: Vec<usize> = Vec::new();
    let look = |busy: &mut Vec<usize>, first: bool| {
        let lengths = backlogs(&fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default());
        if first {
            busy.extend(0..lengths.len());
        }
        busy.retain(|&cpu| lengths.get(cpu).is_some_and(|&length| length > 0));
        busy.is_empty()
    };
    if !look(&mut busy, true) {
        is_done_within(LOST, || look(&mut busy, false));
    }
}

/// The length of each processor's backlog, by `/proc/net/softnet_stat`.
fn backlogs(table: &str) -> Vec<u32> {
    // The twelfth number, in hexadecimal; kernels before 5.10 do not tell.
    let length = |line: &str| u32::from_str_radix(line.split_whitespace().nth(11)?, 16).ok();
    table.lines().map(|line| length(line).unwrap_or(0)).collect()
}

/// How many frames sent by an interface of this thread's namespace have left the cable: the far end
/// has taken them, or they were dropped on the way.
///
/// A veth counts as sent what the far end's driver has taken out of its queue; frames that wait
/// there are not in its counters yet.
///
/// # Panics
/// If there is no interface of this name.
pub fn passed(device: &str) -> u64 {
    counters(device).unwrap_or_else(|| panic!("there is no interface {device}"))
}

fn counters(device: &str) -> Option<u64> {
    // Of the thread: a process may have threads in several namespaces.
    let table = fs::read_to_string("/proc/thread-self/net/dev").expect("/proc is mounted");
    sent_and_dropped(&table, device)
}

fn sent_and_dropped(table: &str, device: &str) -> Option<u64> {
    let of = |line: &'_ str| {
        line.trim_start().strip_prefix(device)?.strip_prefix(':').map(str::to_owned)
    };
    let numbers = table.lines().find_map(of)?;
    let number = |at| numbers.split_whitespace().nth(at)?.parse::<u64>().ok();
    // Behind eight numbers of what was received: bytes, packets, errors, dropped.
    Some(number(9)? + number(11)?)
}

#[cfg(test)]
mod tests {
    use super::{backlogs, sent_and_dropped};

    #[test]
    fn counters_are_those_of_the_device() {
        let table = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    va:   10       1    0    0    0     0          0         0      200       20    0    3    0     0       0          0
   va2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
";
        assert_eq!(sent_and_dropped(table, "va"), Some(23));
        assert_eq!(sent_and_dropped(table, "va2"), Some(22));
        assert_eq!(sent_and_dropped(table, "v"), None);
    }

    #[test]
    fn backlogs_are_told_for_each_processor() {
        let table = "00000c1d 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 0000001f 00000000
000001e9 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001
";
        assert_eq!(backlogs(table), [31, 0]);
        assert_eq!(backlogs("1 2 3\n"), [0]);
    }
}
