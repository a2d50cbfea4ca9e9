//! Threads that look at unread parts ahead of need, the earliest first.
//!
//! A crew decides when something is looked at and on which thread, and never what: [`super::merge`]
//! submits work, and a [`Reader`] does it.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::order::Rank;
use super::packet::Matcher;
use super::reader::Reader;
use super::source::{Looked, Unread, Work};

/// Threads, with the one that needs the answer: however few processors there are, a disk gives more
/// the more it is asked for at once, and what is spread thinly is many small reads.
pub const THREADS: usize = 8;
/// The stack of a thread: a filter's program needs little.
const STACK: usize = 256 << 10;

/// What became of a piece of work, or the panic that ended it.
type Finished = (Rank, Result<io::Result<Looked>, Box<dyn Any + Send>>);

/// Threads, and what they have still to do. The threads end when the crew is dropped.
pub struct Crew<M> {
    /// The reader of the thread that needs the answer, which takes a part in the work.
    reader: Reader<M>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    sender: Sender<Finished>,
    done: Receiver<Finished>,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Waiting>,
    has_work: Condvar,
}

/// Work that no thread has begun with.
#[derive(Default)]
struct Waiting {
    unread: BTreeMap<Rank, Unread>,
    ended: bool,
}

impl<M: Matcher + Clone + Send + 'static> Crew<M> {
    /// Makes a crew, whose threads begin with the first work.
    pub fn new(reader: Reader<M>) -> Self {
        let (sender, done) = channel();
        Self { reader, threads: Vec::new(), shared: Arc::default(), sender, done }
    }

    /// Counts from now on what is found, and keeps none of it.
    pub fn count_only(&mut self) {
        self.reader.keep = false;
    }

    pub fn submit(&mut self, (rank, unread): Work) {
        self.lock().unread.insert(rank, unread);
        if self.threads.len() + 1 < THREADS {
            let (reader, shared, sender) =
                (self.reader.clone(), self.shared.clone(), self.sender.clone());
            let body = move || shared.work(reader, &sender);
            let thread =
                thread::Builder::new().name("tapdeck-query".into()).stack_size(STACK).spawn(body);
            self.threads.extend(thread);
        }
        self.shared.has_work.notify_one();
    }

    /// Does work here and now.
    pub fn look(&mut self, rank: Rank, unread: Unread) -> io::Result<Looked> {
        self.reader.look(rank, unread)
    }

    /// Waits until any of the work is done. Does work that no thread has begun with meanwhile.
    pub fn wait(&mut self) -> (Rank, io::Result<Looked>) {
        let done = self.done.try_recv().or_else(|_| {
            let next = self.lock().unread.pop_first();
            match next {
                Some((rank, unread)) => Ok((rank, Ok(self.reader.look(rank, unread)))),
                None => self.done.recv(),
            }
        });
        let Ok((rank, outcome)) = done else { unreachable!("a sender is kept here") };
        (rank, outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<M> Crew<M> {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.shared.lock()
    }
}

impl<M> Drop for Crew<M> {
    fn drop(&mut self) {
        let mut waiting = self.lock();
        waiting.ended = true;
        waiting.unread.clear();
        drop(waiting);
        self.shared.has_work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work until the crew ends: the body of a thread.
    fn work<M: Matcher>(&self, mut reader: Reader<M>, done: &Sender<Finished>) {
        while let Some((rank, unread)) = self.next() {
            let outcome = catch_unwind(AssertUnwindSafe(|| reader.look(rank, unread)));
            if done.send((rank, outcome)).is_err() {
                break;
            }
        }
    }

    fn next(&self) -> Option<Work> {
        let mut waiting = self.lock();
        loop {
            if waiting.ended {
                return None;
            }
            if let Some(work) = waiting.unread.pop_first() {
                return Some(work);
            }
            waiting = self.has_work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
