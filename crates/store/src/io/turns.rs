//! How much do the threads of a process ask of the disks at once?
//!
//! A disk answers in the order in which it was asked, whoever asks: a recorder that writes behind a
//! hundred reads waits for them all, and its rings fill up. So all reads together ask for no more
//! than a disk needs to be busy, and those that came first go first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};

/// Bytes that a process reads from a disk at once, at most.
const MOST: usize = 2 << 20;

/// The turns at each disk that has open files. One that hangs keeps no reads from another.
static DISKS: Mutex<BTreeMap<u64, Weak<Turns>>> = Mutex::new(BTreeMap::new());

/// Returns the turns at a disk, by its number (`st_dev`).
pub(super) fn at(disk: u64) -> Arc<Turns> {
    let mut disks = lock(&DISKS);
    if let Some(turns) = disks.get(&disk).and_then(Weak::upgrade) {
        return turns;
    }
    disks.retain(|_, turns| turns.strong_count() > 0);
    let turns = Arc::new(Turns::of(MOST));
    disks.insert(disk, Arc::downgrade(&turns));
    turns
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets reads begin as long as few bytes are being read.
#[derive(Debug)]
pub(super) struct Turns {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are being read.
    bytes: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    has_turn: Arc<AtomicBool>,
    thread: Thread,
}

/// The turn of one read, which ends when this is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    bytes: usize,
}

impl Turns {
    /// Lets so many bytes be read at once.
    fn of(most: usize) -> Self {
        Self { most, state: Mutex::new(State { bytes: 0, waiting: VecDeque::new() }) }
    }

    /// Waits until that many bytes may be read. A read that is longer than all is waits until
    /// nothing else is read.
    pub(super) fn take(&self, bytes: usize) -> Turn<'_> {
        let bytes = bytes.min(self.most);
        let mut state = lock(&self.state);
        if state.waiting.is_empty() && state.bytes + bytes <= self.most {
            state.bytes += bytes;
            return Turn { turns: self, bytes };
        }
        let has_turn = Arc::new(AtomicBool::new(false));
        let thread = thread::current();
        state.waiting.push_back(Waiting { bytes, has_turn: has_turn.clone(), thread });
        drop(state);
        while !has_turn.load(Ordering::Acquire) {
            thread::park();
        }
        Turn { turns: self, bytes }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.turns.state);
        state.bytes -= self.bytes;
        while let Some(first) = state.waiting.front()
            && state.bytes + first.bytes <= self.turns.most
        {
            let Some(first) = state.waiting.pop_front() else { break };
            state.bytes += first.bytes;
            first.has_turn.store(true, Ordering::Release);
            first.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::{Turns, at, lock};

    #[test]
    fn no_more_is_read_at_once_and_everybody_has_a_turn() {
        const MOST: usize = 100;
        let (turns, read, most) = (Turns::of(MOST), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..20 {
                let (turns, read, most) = (&turns, &read, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = (number * 37 + round * 11) % 150;
                        let _turn = turns.take(bytes);
                        let now = read.fetch_add(bytes.min(MOST), SeqCst) + bytes.min(MOST);
                        most.fetch_max(now, SeqCst);
                        thread::yield_now();
                        read.fetch_sub(bytes.min(MOST), SeqCst);
                    }
                });
            }
        });
        assert!(most.load(SeqCst) <= MOST && most.load(SeqCst) > 0);
        assert_eq!(lock(&turns.state).bytes, 0);
    }

    #[test]
    fn a_disk_has_turns_of_its_own() {
        let (first, other) = (at(u64::MAX - 1), at(u64::MAX));
        assert!(Arc::ptr_eq(&first, &at(u64::MAX - 1)) && !Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn who_came_first_goes_first() {
        let turns = Turns::of(10);
        let order = AtomicUsize::new(0);
        let first = turns.take(6);
        thread::scope(|scope| {
            let (turns, order) = (&turns, &order);
            let has_waiting = |n| {
                while lock(&turns.state).waiting.len() < n {
                    thread::yield_now();
                }
            };
            let large = scope.spawn(move || {
                let _turn = turns.take(10);
                order.fetch_add(1, SeqCst)
            });
            has_waiting(1);
            let small = scope.spawn(move || {
                let _turn = turns.take(1);
                order.fetch_add(1, SeqCst)
            });
            has_waiting(2);
            drop(first);
            assert_eq!((large.join().unwrap(), small.join().unwrap()), (0, 1));
        });
    }
}
