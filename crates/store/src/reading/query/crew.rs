//! Threads that look at sources ahead of need, the earliest first.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::Matcher;
use super::reader::Reader;
use super::source::{Outcome, Rank, Source, Work};

const LEAST: usize = 2;
const MOST: usize = 8;
/// A filter's program needs little.
const STACK: usize = 256 << 10;

/// What became of a piece of work, or the panic that ended it.
type Done = (Rank, Result<io::Result<Outcome>, Box<dyn Any + Send>>);

/// They end with it.
pub struct Crew<M> {
    /// Whoever needs something takes a part in the work.
    reader: Reader<M>,
    size: usize,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    sender: Sender<Done>,
    done: Receiver<Done>,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Waiting>,
    there_is: Condvar,
}

#[derive(Default)]
struct Waiting {
    sources: BTreeMap<Rank, Source>,
    ended: bool,
}

impl<M: Matcher + Clone + Send + 'static> Crew<M> {
    /// Threads begin with the first work.
    pub fn new(reader: Reader<M>) -> Self {
        let size = thread::available_parallelism().map_or(LEAST, |n| n.get().clamp(LEAST, MOST));
        let (sender, done) = channel();
        Self { reader, size, threads: Vec::new(), shared: Arc::default(), sender, done }
    }

    /// From now on only the size of what is found is wanted.
    pub fn count_only(&mut self) {
        self.reader.keep = false;
    }

    /// How much can be done at once.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn submit(&mut self, (rank, source): Work) {
        self.lock().sources.insert(rank, source);
        if self.threads.len() + 1 < self.size {
            let (reader, shared, sender) =
                (self.reader.clone(), self.shared.clone(), self.sender.clone());
            let body = move || shared.work(reader, &sender);
            let thread = thread::Builder::new().name("query".into()).stack_size(STACK).spawn(body);
            self.threads.extend(thread);
        }
        self.shared.there_is.notify_one();
    }

    /// Does work here and now.
    pub fn look(&mut self, rank: Rank, source: Source) -> io::Result<Outcome> {
        self.reader.look(rank, source)
    }

    /// Waits for any work to be done, and does what nobody has begun with.
    pub fn wait(&mut self) -> (Rank, io::Result<Outcome>) {
        let done = self.done.try_recv().or_else(|_| {
            let next = self.lock().sources.pop_first();
            match next {
                Some((rank, source)) => Ok((rank, Ok(self.reader.look(rank, source)))),
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
        waiting.sources.clear();
        drop(waiting);
        self.shared.there_is.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work<M: Matcher>(&self, mut reader: Reader<M>, done: &Sender<Done>) {
        while let Some((rank, source)) = self.next() {
            let outcome = catch_unwind(AssertUnwindSafe(|| reader.look(rank, source)));
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
            if let Some(work) = waiting.sources.pop_first() {
                return Some(work);
            }
            waiting = self.there_is.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
