//! Does a thread still get on? One that hangs is as bad as one that is gone: the program looks
//! alive and does nothing.
//!
//! A thread that is [watched](watch) says that it lives: it [beats](beat) each time its loop turns,
//! which costs a store, and it says when it waits ([`waiting`]) for what may take any time and is
//! no fault: another thread, a client. Who waits for a disk ([`waiting_for_disk`]) does no wrong,
//! either, but stands still. [`Watcher`] is who looks. It counts
//! its looks and no time, so that a process that was stopped as a whole, or a machine that slept,
//! has not hung.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How often a thread has beaten, times four, and what it waits for.
#[derive(Debug, Default)]
struct Pulse(AtomicU64);

/// That a thread waits, and that it does so for a disk.
const WAITS: u64 = 1;
const FOR_DISK: u64 = 2;
const BEAT: u64 = 4;

/// All threads that are watched, by their names.
static WATCHED: Mutex<Vec<(String, Weak<Pulse>)>> = Mutex::new(Vec::new());

thread_local! {
    static PULSE: OnceCell<Arc<Pulse>> = const { OnceCell::new() };
}

/// Has this thread watched from now on, until it ends.
pub fn watch(name: &str) {
    PULSE.with(|pulse| {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|(_, pulse)| pulse.strong_count() > 0);
        let pulse = pulse.get_or_init(Arc::default);
        watched.push((name.into(), Arc::downgrade(pulse)));
    });
}

/// Says that this thread gets on. Nothing happens where it is not watched.
pub fn beat() {
    change(|state| state + BEAT);
}

/// Does something that may take any time without being a fault of this program: the thread is not
/// looked at meanwhile.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    wait_for(WAITS, wait)
}

/// Does what may take as long as a disk, or whoever reads the output, takes: that is no fault of
/// this program, but the thread stands still meanwhile.
pub fn waiting_for_disk<T>(wait: impl FnOnce() -> T) -> T {
    wait_for(WAITS | FOR_DISK, wait)
}

fn wait_for<T>(what: u64, wait: impl FnOnce() -> T) -> T {
    /// Ends the wait, also where it ends by a panic.
    struct Waits {
        /// What was waited for around this.
        before: u64,
    }

    impl Drop for Waits {
        fn drop(&mut self) {
            change(|state| ((state & !(WAITS | FOR_DISK)) | self.before) + BEAT);
        }
    }

    let waits = Waits { before: change(|state| state | what) & (WAITS | FOR_DISK) };
    let done = wait();
    drop(waits);
    done
}

/// Changes the state of this thread, which alone does so. Returns what it was.
fn change(new: impl FnOnce(u64) -> u64) -> u64 {
    // A thread that ends has no state any more.
    let changed = PULSE.try_with(|pulse| {
        let pulse = pulse.get()?;
        let state = pulse.0.load(Relaxed);
        pulse.0.store(new(state), Relaxed);
        Some(state)
    });
    changed.ok().flatten().unwrap_or(0)
}

/// Looks after the watched threads.
#[derive(Debug, Default)]
pub struct Watcher {
    /// The state of each thread at the last look, and for how many looks that is the same.
    seen: Vec<(Weak<Pulse>, u64, u32)>,
}

impl Watcher {
    /// Looks once. Returns the names of the threads that neither got on nor waited at so many
    /// looks, one after the other.
    pub fn look(&mut self, looks: u32) -> Vec<String> {
        self.look_for(looks, |state| state & WAITS != 0)
    }

    /// Looks once. Returns the names of the threads that stood still at so many looks, one after
    /// the other: that did not get on, and did not wait for something to do.
    pub fn look_for_progress(&mut self, looks: u32) -> Vec<String> {
        self.look_for(looks, |state| state & (WAITS | FOR_DISK) == WAITS)
    }

    fn look_for(&mut self, looks: u32, may_wait: impl Fn(u64) -> bool) -> Vec<String> {
        let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut self.seen);
        let mut hung = Vec::new();
        for (name, pulse) in watched.iter() {
            let Some(alive) = pulse.upgrade() else { continue };
            let state = alive.0.load(Relaxed);
            let known = before.iter().find(|(known, ..)| known.ptr_eq(pulse));
            let same = match known {
                Some((_, seen, same)) if *seen == state && !may_wait(state) => same + 1,
                _ => 0,
            };
            if same >= looks {
                hung.push(name.clone());
            }
            self.seen.push((pulse.clone(), state, same));
        }
        hung
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;

    use super::{Watcher, beat, waiting, waiting_for_disk, watch};

    /// A thread that does what it is told.
    struct Told {
        orders: Option<Sender<fn()>>,
        done: Receiver<()>,
        thread: Option<JoinHandle<()>>,
    }

    impl Told {
        fn start(name: &'static str) -> Self {
            let (orders, order) = channel::<fn()>();
            let (tell, done) = channel();
            let thread = std::thread::spawn(move || {
                watch(name);
                let _ = tell.send(());
                for order in order {
                    order();
                    let _ = tell.send(());
                }
            });
            let told = Self { orders: Some(orders), done, thread: Some(thread) };
            told.done.recv().unwrap();
            told
        }

        fn begin(&self, order: fn()) {
            self.orders.as_ref().unwrap().send(order).unwrap();
        }

        fn perform(&self, order: fn()) {
            self.begin(order);
            self.done.recv().unwrap();
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.orders = None;
            self.thread.take().unwrap().join().unwrap();
        }
    }

    /// Whether a thread of this name is found to hang at this look, the third that finds it the
    /// same being too many. Threads of other tests are not asked about.
    fn hangs(watcher: &mut Watcher, name: &str) -> bool {
        watcher.look(3).iter().any(|hung| hung == name)
    }

    #[test]
    fn a_thread_hangs_that_neither_beats_nor_waits() {
        let mut watcher = Watcher::default();
        let one = Told::start("one");
        for _ in 0..10 {
            assert!(!hangs(&mut watcher, "one"));
            one.perform(beat);
        }
        let looks: Vec<bool> = (0..4).map(|_| hangs(&mut watcher, "one")).collect();
        assert_eq!(looks, [false, false, false, true]);
        one.perform(beat);
        assert!(!hangs(&mut watcher, "one"));
        drop(one);
        assert!((0..10).all(|_| !hangs(&mut watcher, "one")), "it has ended");
    }

    #[test]
    fn a_thread_that_waits_does_not_hang() {
        let mut watcher = Watcher::default();
        let one = Told::start("two");
        let (enter, entered) = channel();
        let (leave, left) = channel::<()>();
        *GATE.lock().unwrap() = Some((enter, left));
        one.begin(|| {
            let (enter, left) = GATE.lock().unwrap().take().unwrap();
            waiting(|| {
                waiting(|| ());
                enter.send(()).unwrap();
                left.recv().unwrap();
            });
        });
        entered.recv().unwrap();
        assert!((0..10).all(|_| !hangs(&mut watcher, "two")));
        leave.send(()).unwrap();
        one.done.recv().unwrap();
        assert!((0..3).all(|_| !hangs(&mut watcher, "two")));
        assert!(hangs(&mut watcher, "two"), "it has stopped waiting");
    }

    #[test]
    fn a_thread_that_waits_for_a_disk_stands_still_and_does_not_hang() {
        let (mut hangs_at, mut stands_at) = (Watcher::default(), Watcher::default());
        let one = Told::start("three");
        let (enter, entered) = channel();
        let (leave, left) = channel::<()>();
        *DISK.lock().unwrap() = Some((enter, left));
        one.begin(|| {
            let (enter, left) = DISK.lock().unwrap().take().unwrap();
            waiting(|| {
                waiting_for_disk(|| enter.send(()).unwrap());
                enter.send(()).unwrap();
                left.recv().unwrap();
            });
            waiting_for_disk(|| {
                enter.send(()).unwrap();
                left.recv().unwrap();
            });
        });
        let mut stands = || stands_at.look_for_progress(3).iter().any(|name| name == "three");
        entered.recv().unwrap();
        entered.recv().unwrap();
        assert!((0..10).all(|_| !stands()), "it waits for something to do");
        leave.send(()).unwrap();
        entered.recv().unwrap();
        let looks: Vec<bool> = (0..4).map(|_| stands()).collect();
        assert_eq!(looks, [false, false, false, true]);
        assert!((0..10).all(|_| !hangs(&mut hangs_at, "three")));
        leave.send(()).unwrap();
        one.done.recv().unwrap();
        assert!(!stands(), "it got on");
    }

    type Gate = (Sender<()>, Receiver<()>);
    static DISK: std::sync::Mutex<Option<Gate>> = std::sync::Mutex::new(None);
    static GATE: std::sync::Mutex<Option<Gate>> = std::sync::Mutex::new(None);
}
