//! What is the writer told while it writes? Stop, hurry, begin a segment, read other rings: the
//! thread that looks after the hooks says it, and the writer finds it when it looks or is woken.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::ring::Ring;

use crate::format::unseen::UnseenSpan;
use crate::writing::retention::Retention;
use crate::writing::writer::Sink;

/// How long a segment that was asked for waits for packets that came before.
pub(super) const LAST_PACKETS: Duration = Duration::from_millis(100);

/// Called once when something is done, on whichever thread; dropped where it will not be.
pub type Done = Box<dyn FnOnce() + Send>;

/// What the thread that looks after the hooks tells the writer: stop, hurry, begin a segment.
pub struct WriterControl {
    producers_ended: AtomicBool,
    blocks_closed: AtomicBool,
    hurried: AtomicBool,
    writer_ended: AtomicBool,
    /// When the writer was told to leave the rings to another one.
    leaves: OnceLock<Instant>,
    /// Requests for another segment since the writer looked last.
    segments_asked: Mutex<Vec<SegmentAsked>>,
    /// Is readable where the writer was woken since it slept last.
    wakes: OwnedFd,
    /// Called on the writer's thread where there is something to look after.
    tell: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether somebody waits for packets in the rings.
    awaits_packets: AtomicBool,
}

impl fmt::Debug for WriterControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterControl")
            .field("producers_ended", &self.producers_ended)
            .field("blocks_closed", &self.blocks_closed)
            .field("hurried", &self.hurried)
            .field("writer_ended", &self.writer_ended)
            .finish_non_exhaustive()
    }
}

impl WriterControl {
    /// Makes the control of a writer that was told nothing yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            producers_ended: AtomicBool::default(),
            blocks_closed: AtomicBool::default(),
            hurried: AtomicBool::default(),
            writer_ended: AtomicBool::default(),
            leaves: OnceLock::default(),
            segments_asked: Mutex::default(),
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            tell: OnceLock::default(),
            awaits_packets: AtomicBool::default(),
        })
    }

    /// Asks for a new segment. What lies in complete blocks now is still for the one before, unless
    /// so much more comes that the writer never catches up. It has these `interfaces`, or the
    /// same. `done` is called when the one before has its final name.
    ///
    /// # Panics
    /// The writer does if there are fewer interfaces than before.
    pub fn begin_segment(&self, interfaces: Option<Vec<InterfaceDescription>>, done: Done) {
        self.ask(SegmentAsked { interfaces, waiting: vec![done], ..SegmentAsked::now() });
    }

    /// Has the writer read other rings, too, from the next segment on. There, or in a file that has
    /// no segments before their first packet, stand these interfaces, those of the other rings
    /// among them.
    ///
    /// # Panics
    /// The writer does if there are fewer interfaces than before, or more than [`Totals`] counts.
    pub fn change_rings(&self, change: RingsChange) {
        let (interfaces, changes) = (Some(change.interfaces.clone()), vec![change]);
        self.ask(SegmentAsked { changes, interfaces, ..SegmentAsked::now() });
    }

    /// Has the recording tell that packets went unseen. What lies in complete blocks now came
    /// before that, as for [`WriterControl::begin_segment`].
    pub fn tell_unseen(&self, spans: Vec<UnseenSpan>) {
        self.ask(SegmentAsked { unseen: spans, ..SegmentAsked::now() });
    }

    /// Has a store keep so much from now on.
    pub fn retain(&self, retention: Retention) {
        self.ask(SegmentAsked { retention: Some(retention), ..SegmentAsked::now() });
    }

    fn ask(&self, new: SegmentAsked) {
        add(&mut self.segments_asked.lock().unwrap_or_else(PoisonError::into_inner), new);
        self.wake();
    }

    /// Has the writer look at the rings now, if it sleeps: blocks were closed.
    pub fn wake(&self) {
        // It fails where the writer was woken very often and has not slept since.
        let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
    }

    /// Returns whether the writer was woken, by this or by a producer.
    pub(super) fn sleep(&self, time: Duration, wakers: &[BorrowedFd<'_>]) -> bool {
        let fds = [self.wakes.as_fd()].into_iter().chain(wakers.iter().copied());
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let is_woken = match poll(&mut fds, Timespec::try_from(time).ok().as_ref()) {
            Ok(woken) => woken > 0,
            // A signal is for others; the writer looks at its rings.
            Err(Errno::INTR) => false,
            Err(_) => {
                std::thread::sleep(time);
                false
            }
        };
        // It may have been woken since.
        let is_told = rustix::io::read(&self.wakes, &mut [0; 8]).is_ok();
        is_woken || is_told
    }

    /// Has `tell` called, on the writer's thread, when the writer has ended, and once after each
    /// [`WriterControl::await_packets`]. Only the first call counts.
    pub fn tell_by(&self, tell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.tell.set(tell);
    }

    /// Asks to be told as soon as the writer finds packets in the rings, also where they are there
    /// already.
    pub fn await_packets(&self) {
        self.awaits_packets.store(true, Release);
    }

    pub(super) fn awaits_packets(&self) -> bool {
        self.awaits_packets.load(Acquire)
    }

    /// Tells whoever awaited packets that some are there.
    pub(super) fn tell_of_packets(&self) {
        self.awaits_packets.store(false, Release);
        self.tell();
    }

    /// Says that the writer writes no more.
    pub(super) fn end_writer(&self) {
        self.writer_ended.store(true, Release);
        self.tell();
    }

    fn tell(&self) {
        if let Some(tell) = self.tell.get() {
            tell();
        }
    }

    /// Takes the requests since the last call, behind those that were taken before.
    pub(super) fn take_segments_asked(&self, asked: &mut Vec<SegmentAsked>) {
        let mut new = self.segments_asked.lock().unwrap_or_else(PoisonError::into_inner);
        new.drain(..).for_each(|new| add(asked, new));
    }

    /// Says that no packet comes any more. Blocks may still be open.
    pub fn end_producers(&self) {
        self.producers_ended.store(true, Release);
        self.wake();
    }

    /// Says that no packet comes any more, and that no block changes any more.
    pub fn close_blocks(&self) {
        self.producers_ended.store(true, Release);
        self.blocks_closed.store(true, Release);
        self.wake();
    }

    /// Has the writer end and leave the rings, whose producers go on, to another writer. What lies
    /// in complete blocks now is still written, unless that takes too long.
    pub fn leave(&self) {
        let _ = self.leaves.set(Instant::now());
        self.wake();
    }

    pub(super) fn leaves_since(&self) -> Option<Instant> {
        self.leaves.get().copied()
    }

    /// Says that what is not written yet shall not be written.
    pub fn hurry(&self) {
        self.hurried.store(true, Release);
        self.wake();
    }

    /// Returns whether the writer writes no more, for whatever reason.
    pub fn writer_has_ended(&self) -> bool {
        self.writer_ended.load(Acquire)
    }

    pub(super) fn producers_have_ended(&self) -> bool {
        self.producers_ended.load(Acquire)
    }

    pub(super) fn blocks_are_closed(&self) -> bool {
        self.blocks_closed.load(Acquire)
    }

    /// Returns whether what is not done yet shall be left undone.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Acquire)
    }
}

/// Rings that come while a writer writes, and those whose place they take.
pub struct RingsChange {
    /// The ids of rings that get no packets any more, and whose packets are written.
    pub gone: Range<u32>,
    pub come: Vec<Box<dyn Ring>>,
    /// The interfaces of all rings.
    pub interfaces: Vec<InterfaceDescription>,
    /// How long the writer may sleep at most, for these rings.
    pub sleep: Duration,
}

/// Adds a request to others. What went unseen before an interface came is told before that is
/// described: it may have the place of one that is meant.
fn add(asked: &mut Vec<SegmentAsked>, new: SegmentAsked) {
    match asked.last_mut() {
        Some(last) if new.interfaces.is_none() || last.unseen.is_empty() => last.add(new),
        _ => asked.push(new),
    }
}

/// Requests for another segment: who waits, and since when.
#[derive(Default)]
pub(super) struct SegmentAsked {
    /// Rings that come with it.
    pub(super) changes: Vec<RingsChange>,
    interfaces: Option<Vec<InterfaceDescription>>,
    waiting: Vec<Done>,
    /// What is to be told at the beginning of the next segment.
    unseen: Vec<UnseenSpan>,
    /// How much is to be kept from now on.
    retention: Option<Retention>,
    since: Option<Instant>,
}

impl SegmentAsked {
    fn now() -> Self {
        Self { since: Some(Instant::now()), ..Self::default() }
    }

    fn add(&mut self, new: Self) {
        self.changes.extend(new.changes);
        self.interfaces = new.interfaces.or(self.interfaces.take());
        self.waiting.extend(new.waiting);
        self.unseen.extend(new.unseen);
        self.retention = new.retention.or(self.retention.take());
        self.since = self.since.or(new.since);
    }

    /// Returns whether packets that came before are written, or were waited for long enough.
    pub(super) fn is_time(&self, idle: bool) -> bool {
        self.since.is_some_and(|since| idle || since.elapsed() > LAST_PACKETS)
    }

    /// Has a sink do what was asked.
    pub(super) fn perform(self, sink: &mut impl Sink) {
        let Self { interfaces, waiting, unseen, retention, .. } = self;
        if let Some(retention) = retention {
            sink.retain(retention);
        }
        if !waiting.is_empty() || interfaces.is_some() {
            let done = Box::new(move || waiting.into_iter().for_each(|done| done()));
            sink.begin_segment(interfaces, done);
        }
        if !unseen.is_empty() {
            sink.tell_unseen(unseen);
        }
    }
}
