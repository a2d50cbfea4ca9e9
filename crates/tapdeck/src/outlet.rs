//! What if nobody reads what a recorder or a daemon tells? A terminal may be stopped (Ctrl-S), and
//! a pipe may be full, for ever. The loop that looks after hooks must not wait for either.
//!
//! So each [`Outlet`] writes on a thread of its own, behind a queue of bounded size. A line that
//! finds the queue full is dropped, and when the outlet gets on again it says how many were. The
//! end waits for the last lines, but not for long: for a reader, [`PATIENCE`].

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that wait at most.
const MOST: usize = 1 << 20;
/// How long the end waits for a reader.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How many times as long it waits in all, for a thread that gets no time on a busy machine.
pub const LATE: u32 = 15;

/// Makes the words that say how many lines were dropped.
pub type TellDropped = Box<dyn Fn(u64) + Send>;

/// A way to a reader that may not read.
#[derive(Clone)]
pub struct Outlet(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room since the last ones that did.
    dropped: u64,
    /// When the thread began with a line that it has not written yet.
    writing_since: Option<Instant>,
    /// Why nothing is written any more.
    failed: Option<io::Error>,
    has_failed: bool,
}

impl Outlet {
    /// Starts the thread that writes. `tell_dropped` is called on it, behind the lines that had
    /// room.
    pub fn start(
        thread: &str,
        mut out: Box<dyn Write + Send>,
        tell_dropped: Option<TellDropped>,
    ) -> io::Result<Self> {
        let outlet = Self(Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() }));
        let work = {
            let outlet = outlet.clone();
            move || outlet.write(&mut *out, tell_dropped.as_ref())
        };
        std::thread::Builder::new().name(thread.into()).spawn(work)?;
        Ok(outlet)
    }

    /// Writes a line as soon as it can be. It is dropped, and counted, where too much waits.
    pub fn send(&self, line: Vec<u8>) {
        let mut queue = self.lock();
        if queue.bytes + line.len() > MOST && !queue.lines.is_empty() {
            queue.dropped += 1;
        } else {
            queue.push(line);
            self.0.changed.notify_all();
        }
    }

    /// Writes a line that nobody misses, if none waits.
    pub fn send_if_idle(&self, line: Vec<u8>) -> bool {
        let mut queue = self.lock();
        let is_idle = queue.is_idle();
        if is_idle {
            queue.push(line);
            self.0.changed.notify_all();
        }
        is_idle
    }

    /// Writes the last line, however much waits.
    pub fn send_last(&self, line: Vec<u8>) {
        self.lock().push(line);
        self.0.changed.notify_all();
    }

    /// Waits until all is written, until nothing can be any more, or until a line has waited for
    /// [`PATIENCE`] for its reader.
    pub fn finish(&self) {
        let end = Instant::now() + PATIENCE * LATE;
        let mut queue = self.lock();
        while !queue.is_idle() && !queue.has_failed {
            let until = queue.writing_since.map_or(end, |since| end.min(since + PATIENCE));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns once why nothing can be written any more.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.lock().failed.take()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, out: &mut dyn Write, tell_dropped: Option<&TellDropped>) {
        let mut queue = self.lock();
        loop {
            let Some(line) = queue.pop() else {
                let dropped = std::mem::take(&mut queue.dropped);
                if dropped > 0
                    && let Some(tell) = tell_dropped
                {
                    drop(queue);
                    tell(dropped);
                    queue = self.lock();
                    continue;
                }
                self.0.changed.notify_all();
                queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.writing_since = Some(Instant::now());
            self.0.changed.notify_all();
            drop(queue);
            let written = out.write_all(&line).and_then(|()| out.flush());
            queue = self.lock();
            queue.writing_since = None;
            if let Err(e) = written {
                queue.failed = Some(e);
                queue.has_failed = true;
                queue.lines.clear();
                self.0.changed.notify_all();
                return;
            }
        }
    }
}

impl Queue {
    fn push(&mut self, line: Vec<u8>) {
        if !self.has_failed {
            self.bytes += line.len();
            self.lines.push_back(line);
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.writing_since.is_none() && self.dropped == 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::sync::{Arc, Mutex};

    use tapdeck_testkit::wait_for;

    use super::{MOST, Outlet};

    #[test]
    fn whoever_tells_does_not_wait_and_hears_how_much_was_dropped() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let told = told.clone();
            Box::new(move |n| told.lock().unwrap().push(n))
        };
        let outlet = Outlet::start("outlet", Box::new(writer), Some(tell)).expect("a thread");
        let line = vec![b'x'; 1 << 16];
        let lines = 3 * MOST / line.len();
        (0..lines).for_each(|_| outlet.send(line.clone()));
        // The bound, though nobody reads.
        outlet.finish();
        assert!(told.lock().unwrap().is_empty());
        outlet.send_last(b"last".to_vec());
        let mut read = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        while !read.ends_with(b"last") {
            let n = reader.read(&mut buffer).expect("it writes on");
            read.extend_from_slice(&buffer[..n]);
        }
        wait_for("the word of what was dropped", || !told.lock().unwrap().is_empty());
        let dropped = told.lock().unwrap()[0] as usize;
        assert_eq!(read.len() - 4 + dropped * line.len(), lines * line.len());
        assert!(dropped >= lines / 3, "{dropped}");
        outlet.finish();
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_once() {
        let outlet = Outlet::start("outlet", Box::new(Broken), None).expect("a thread");
        outlet.send(b"one".to_vec());
        outlet.finish();
        let failure = outlet.take_failure().map(|e| e.kind());
        assert_eq!(failure, Some(io::ErrorKind::BrokenPipe));
        outlet.send(b"two".to_vec());
        assert!(outlet.take_failure().is_none());
    }
}
