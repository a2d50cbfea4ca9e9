//! Into which segment goes a block, and when does a segment end? When it is full or old, when the
//! clock was stepped, when somebody asks, or when a write failed.
//!
//! The sink writes on the writer's thread and leaves all that may take long to others: closing and
//! deleting to the [`keeper`](super::keeper), the index to the [`indexer`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{InterfaceDescription, StatisticsBlock};
use tapdeck_packet::ring::Cut;

use crate::format::cutoff::tell_cut;
use crate::format::name::SegmentName;
use crate::format::segment::last_packet_ns;
use crate::format::store::{NEXT, Store, Stored};
use crate::format::unseen::UnseenSpan;
use crate::io::{Directory, File, Io, Uptime};
use crate::writing::ages::{Ages, Newest};
use crate::writing::control::Done;
use crate::writing::durability::{Durability, Syncer, sync_directory};
use crate::writing::holdings::{Holdings, Inventory};
use crate::writing::indexer::{self, Indexer, Indexing, Links, Sizes};
use crate::writing::keeper::{Job, Keeper, KeeperSetup, ROOM, is_full, is_too_large};
use crate::writing::ledger::SegmentEnd;
use crate::writing::live::{LiveSegment, statistics_disk_len};
use crate::writing::log::Log;
use crate::writing::retention::Retention;
use crate::writing::totals::Totals;
use crate::writing::writer::{InterfaceBlock, Sink, SinkOutcome};

/// How a sink writes.
pub struct SegmentSinkConfig {
    pub segment_bytes: u64,
    /// A segment is closed when it is this old.
    pub segment_time: Duration,
    pub retention: Retention,
    /// What was written so long ago is durable; without, only closed segments are.
    pub sync_interval: Option<Duration>,
    pub interfaces: Vec<InterfaceDescription>,
    /// UTC, as packets are stamped.
    pub now_ns: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// What tells how old segments are.
    pub uptime: Uptime,
    /// Where lines for the user go.
    pub log: Log,
    /// How the store is indexed, if it is.
    pub indexing: Option<Indexing>,
}

/// Writes blocks into the segments of a store.
pub struct SegmentSink<I: Io> {
    io: Arc<I>,
    store: Store,
    config: SegmentSinkConfig,
    totals: Arc<Totals>,
    keeper: Keeper<I::File>,
    indexer: Option<Indexer>,
    links: Links,
    syncer: Option<Syncer>,
    live: Option<LiveSegment<I::File>>,
    next_number: u64,
    /// Where blocks end in a segment at most, so that the statistics still fit.
    blocks_end: u64,
    /// Packets lost as of the last tick, by interface.
    lost: Vec<u64>,
    /// Packets lost as of the last segment's end, by interface.
    lost_before: Vec<u64>,
    /// What had been left out of flows when the last segment ended, by interface.
    cut_before: Vec<Cut>,
    was_full: bool,
    rotating_since: Option<Instant>,
    comment: Option<String>,
    /// What the next segment tells at its beginning.
    unseen: Vec<UnseenSpan>,
    /// How the segment being written ends, as soon as the blocks of the last call have been noted.
    ending: Option<SegmentEnding>,
    /// The most blocks that one write may have.
    at_once: usize,
}

/// How a segment ends into which no more can be written.
enum SegmentEnding {
    /// Blocks wait for its successor.
    Rotated,
    /// The disk is full.
    Full,
    /// A write has failed.
    GivenUp,
}

impl<I: Io> SegmentSink<I> {
    /// Begins to write into a store.
    pub fn new(
        io: I,
        mut store: Store,
        config: SegmentSinkConfig,
        totals: Arc<Totals>,
    ) -> io::Result<Self> {
        let closed = std::mem::take(&mut store.found);
        let next_number = store.next_number();
        let blocks_end = blocks_end(&config);
        let io = Arc::new(io);
        let index_sizes = Arc::new(Sizes::default());
        let inventory = Inventory {
            dir: store.dir().to_owned(),
            segment_bytes: config.segment_bytes,
            retention: config.retention,
            ages: ages(&store, &config, &closed, next_number),
            closed,
            leftovers: std::mem::take(&mut store.leftovers),
            given_back: store.given_back.clone(),
            index_sizes: index_sizes.clone(),
            totals: totals.clone(),
            log: config.log.clone(),
        };
        let work = KeeperSetup {
            dir: store.dir().to_owned(),
            segment_bytes: config.segment_bytes,
            index_room: config.indexing.as_ref().map_or(0, |_| index_room(config.segment_bytes)),
            holdings: Holdings::new(io.clone(), inventory),
            totals: totals.clone(),
            log: config.log.clone(),
        };
        let keeper = Keeper::start(io.clone(), work)?;
        let links_of_ids = Links::of(links(&config.interfaces));
        let start = |indexing| {
            let work = indexer::IndexerSetup {
                dir: store.dir().to_owned(),
                indexing,
                links: links_of_ids.clone(),
                totals: totals.clone(),
                sizes: index_sizes,
                log: config.log.clone(),
            };
            Indexer::start(io.clone(), work)
        };
        let indexer = config.indexing.clone().map(start).transpose()?;
        let start = |interval| Syncer::start(interval, totals.clone());
        let syncer = config.sync_interval.map(start).transpose()?;
        let lost = vec![0; config.interfaces.len()];
        Ok(Self {
            io,
            store,
            config,
            totals,
            keeper,
            indexer,
            links: links_of_ids,
            syncer,
            live: None,
            next_number,
            blocks_end,
            cut_before: vec![Cut::default(); lost.len()],
            lost_before: lost.clone(),
            lost,
            was_full: false,
            rotating_since: None,
            comment: None,
            unseen: Vec::new(),
            ending: None,
            at_once: usize::MAX,
        })
    }

    /// Goes on where another writer has stopped: of the losses so far, segments that have ended
    /// tell these, by interface.
    #[must_use]
    pub fn resume(mut self, told_lost: &[u64]) -> Self {
        for ((now, before), told) in self.lost.iter_mut().zip(&mut self.lost_before).zip(told_lost)
        {
            (*now, *before) = (*told, *told);
        }
        self
    }

    /// Ends the segment into which no more could be written. This waits until the call in which
    /// that was found has returned: what a segment holds that has ended was noted before.
    fn settle(&mut self) {
        match self.ending.take() {
            None => {}
            Some(SegmentEnding::Rotated) => self.rotate(),
            Some(SegmentEnding::Full) => {
                self.end();
                self.keeper.send(Job::MakeRoom(ROOM));
            }
            Some(SegmentEnding::GivenUp) => self.give_up(),
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        if self.was_full && self.io.space(self.store.dir())?.free < ROOM {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let file = self.keeper.take_next()?;
        let began_ns = (self.config.now_ns)();
        let name = SegmentName {
            number: self.next_number,
            began_s: (began_ns / 1_000_000_000) as i64,
            live: true,
        };
        let from = self.store.dir().join(NEXT);
        let to = name.path(self.store.dir());
        let interfaces = &self.config.interfaces;
        let file = Arc::new(file);
        let durability = Arc::new(self.durability(&file));
        let comment = self.comment.as_deref();
        let live = LiveSegment::begin(file, durability, name, began_ns, interfaces, comment);
        let live = live.and_then(|mut live| {
            live.tell_unseen(&self.unseen)?;
            self.io.rename(&from, &to).map(|()| live)
        });
        if live.is_ok() {
            self.keeper.send(Job::Begun { number: self.next_number, utc_ns: began_ns });
        }
        self.keeper.send(Job::Prepare);
        let mut live = live?;
        live.written_at = (self.config.uptime.since_boot)();
        self.comment = None;
        self.unseen.clear();
        self.was_full = false;
        self.next_number = self.store.number_after(self.next_number);
        Totals::add(&self.totals.segments, 1);
        Totals::add(&self.totals.bytes_written, live.end());
        if let Some(since) = self.rotating_since.take() {
            let ns = since.elapsed().as_nanos() as u64;
            self.totals.rotation_ns_max.fetch_max(ns, Relaxed);
        }
        if let Some(indexer) = &mut self.indexer {
            indexer.begin(&live.name);
        }
        if let Some(syncer) = &self.syncer {
            syncer.begin(live.durability.clone());
        }
        self.live = Some(live);
        Ok(())
    }

    fn durability(&self, file: &Arc<I::File>) -> Durability {
        let (file, io, dir) = (file.clone(), self.io.clone(), self.store.dir().to_owned());
        let sync_name = move || sync_directory(&*io, &dir);
        let (totals, interfaces) = (self.totals.clone(), self.config.interfaces.len());
        Durability::new(Box::new(move || file.sync()), Box::new(sync_name), totals, interfaces)
    }

    /// Has the segments from now on begin with these interfaces.
    ///
    /// # Panics
    /// If there are fewer than before.
    fn describe(&mut self, interfaces: Vec<InterfaceDescription>) {
        let count = interfaces.len();
        assert!(count >= self.lost.len(), "rings keep their ids");
        self.lost.resize(count, 0);
        self.lost_before.resize(count, 0);
        self.cut_before.resize(count, Cut::default());
        self.links.set(links(&interfaces));
        self.config.interfaces = interfaces;
        self.blocks_end = blocks_end(&self.config);
    }

    /// Closes the segment being written, if there is one.
    fn end(&mut self) {
        let Some(live) = self.live.take() else { return };
        let statistics = self.statistics(&live);
        self.lost_before.clone_from(&self.lost);
        for (before, totals) in self.cut_before.iter_mut().zip(&self.totals.interfaces) {
            *before = totals.cut();
        }
        self.close(live, statistics);
    }

    fn close(&mut self, live: LiveSegment<I::File>, statistics: Vec<StatisticsBlock>) {
        let tell = self.indexer.as_mut().map(Indexer::end);
        self.keeper.send(Job::Close { live, statistics, tell });
    }

    /// Closes the segment being written without another write. The next segment tells what was lost
    /// meanwhile.
    fn give_up(&mut self) {
        let Some(live) = self.live.take() else { return };
        self.close(live, Vec::new());
    }

    fn statistics(&self, live: &LiveSegment<I::File>) -> Vec<StatisticsBlock> {
        let now = (self.config.now_ns)();
        (0..self.config.interfaces.len())
            .map(|i| {
                let delivered = live.packets[i];
                let dropped = self.lost[i] - self.lost_before[i];
                let span = (live.began_ns, now);
                let block = StatisticsBlock::of_packets(i as u32, span, delivered, dropped);
                let (now, before) = (self.totals.interfaces[i].cut(), self.cut_before[i]);
                tell_cut(block, now, before)
            })
            .collect()
    }

    /// Ends a segment whose successor somebody waits for: blocks are there to be written.
    fn rotate(&mut self) {
        self.rotating_since = Some(Instant::now());
        self.end();
    }

    fn fail(&mut self, written: usize, e: io::Error) -> SinkOutcome {
        self.was_full = is_full(&e);
        if self.was_full && self.ending.is_none() {
            self.keeper.send(Job::MakeRoom(ROOM));
        }
        SinkOutcome::Stalled(written, e)
    }
}

impl<I: Io> Sink for SegmentSink<I> {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome {
        self.settle();
        if self.live.is_none()
            && let Err(e) = self.begin()
        {
            return self.fail(0, e);
        }
        let Some(live) = &mut self.live else { return SinkOutcome::Written(0) };
        let mut end = live.end();
        let fit = batch
            .iter()
            .take_while(|piece| {
                end += LiveSegment::<I::File>::disk_len(piece);
                end <= self.blocks_end
            })
            .count();
        if fit == 0 && live.packets.iter().any(|n| *n > 0) {
            self.rotate();
            return SinkOutcome::Written(0);
        }
        let before = live.end();
        let is_first = live.packets.iter().all(|n| *n == 0);
        let fit = fit.clamp(1, self.at_once);
        let bytes = batch[..fit].iter().map(LiveSegment::<I::File>::disk_len).sum();
        self.totals.bytes_in_flight.store(bytes, Relaxed);
        let (written, result) = live.write(&batch[..fit]);
        if is_first
            && let Some(ns) = batch[..written].first().and_then(InterfaceBlock::first_packet_ns)
        {
            self.totals.oldest_live_ns.store(ns, Relaxed);
        }
        live.written_at = (self.config.uptime.since_boot)();
        Totals::add(&self.totals.bytes_written, live.end() - before);
        self.totals.bytes_in_flight.store(0, Release);
        if let Some(indexer) = &mut self.indexer {
            index::<I::File>(indexer, before, &batch[..written]);
        }
        // Under a limit to their length, direct writes of files fail as a whole.
        if let Err(e) = &result
            && written == 0
            && (is_too_large(e) || e.kind() == io::ErrorKind::InvalidInput)
        {
            self.at_once = (fit / 2).max(1);
        }
        match result {
            Ok(()) => SinkOutcome::Written(written),
            // Files may not become larger (setrlimit(2)): the segment is full.
            Err(e) if is_too_large(&e) && live.packets.iter().any(|n| *n > 0) => {
                self.ending = Some(SegmentEnding::Rotated);
                SinkOutcome::Written(written)
            }
            Err(e) => {
                // The blocks that are written stay where they are; the others go into another
                // segment.
                if is_full(&e) {
                    self.ending = Some(SegmentEnding::Full);
                } else {
                    Totals::add(&self.totals.write_errors, 1);
                    (self.config.log)(&format!(
                        "{}: write failed: {e}; going on in a new segment",
                        live.name
                    ));
                    self.ending = Some(SegmentEnding::GivenUp);
                }
                self.fail(written, e)
            }
        }
    }

    fn retain(&mut self, retention: Retention) {
        self.keeper.send(Job::Retain(retention));
    }

    fn segment_end(&self) -> Option<SegmentEnd> {
        let live = self.live.as_ref().map(|live| (live.name.number, live.end()));
        Some(live.unwrap_or((self.next_number, 0)))
    }

    fn told_lost(&self) -> &[u64] {
        &self.lost_before
    }

    fn begin_epoch(&mut self, _: u8) {
        self.settle();
        self.comment = Some("the clock was stepped before this segment began".into());
        self.rotate();
    }

    fn begin_segment(&mut self, interfaces: Option<Vec<InterfaceDescription>>, done: Done) {
        self.settle();
        // One that holds nothing goes on, unless its beginning is to say something else.
        let differs = interfaces.as_ref().is_some_and(|i| *i != self.config.interfaces);
        if self.live.as_ref().is_some_and(|live| differs || live.packets.iter().any(|n| *n > 0)) {
            self.end();
        }
        if let Some(interfaces) = interfaces {
            self.describe(interfaces);
        }
        // The keeper does this after the segment before is closed, if there was one.
        self.keeper.send(Job::Tell(done));
    }

    fn tell_unseen(&mut self, spans: Vec<UnseenSpan>) {
        self.settle();
        let holds_packets = |live: &LiveSegment<I::File>| live.packets.iter().any(|n| *n > 0);
        if self.live.as_ref().is_some_and(holds_packets) {
            self.end();
        }
        let Some(live) = &mut self.live else {
            self.unseen.extend(spans);
            // Whoever asks the store now shall know. Where no segment can be begun at present, the
            // one that is begun for the next packet tells it.
            if let Err(e) = self.begin() {
                self.was_full = is_full(&e);
            }
            return;
        };
        let before = live.end();
        let told = live.tell_unseen(&spans);
        Totals::add(&self.totals.bytes_written, live.end() - before);
        if told.is_err() {
            self.unseen.extend(spans);
            self.give_up();
        }
    }

    fn tick(&mut self, lost: &[u64]) {
        self.settle();
        self.lost.copy_from_slice(lost);
        if self.live.as_ref().is_some_and(|live| live.durability.has_failed()) {
            self.give_up();
        }
        let now = (self.config.now_ns)();
        let old = |live: &LiveSegment<I::File>| {
            now.saturating_sub(live.began_ns) >= self.config.segment_time.as_nanos() as u64
                && live.packets.iter().any(|n| *n > 0)
        };
        if self.live.as_ref().is_some_and(old) {
            self.end();
        }
    }

    fn finish(&mut self, lost: &[u64]) -> io::Result<()> {
        self.settle();
        self.lost.copy_from_slice(lost);
        self.keeper.send(Job::Last);
        self.end();
        if let Some(indexer) = &mut self.indexer {
            indexer.finish();
        }
        self.keeper.finish();
        self.syncer = None;
        Ok(())
    }
}

fn links(interfaces: &[InterfaceDescription]) -> Vec<LinkType> {
    interfaces.iter().map(|interface| interface.link).collect()
}

/// Returns where blocks end in a segment at most, so that the statistics still fit.
fn blocks_end(config: &SegmentSinkConfig) -> u64 {
    config.segment_bytes.saturating_sub(statistics_disk_len(config.interfaces.len()))
}

/// Goes on with the ages of a store's segments.
fn ages(store: &Store, config: &SegmentSinkConfig, closed: &[Stored], next: u64) -> Ages {
    let newest = closed.last().map(|stored| {
        let storage = Directory::new(store.dir());
        // A leftover may be torn at its end; its last packet came after it had begun.
        let began_ns = stored.name.began_s.saturating_mul(1_000_000_000);
        let last_ns = last_packet_ns(&storage, &stored.name).unwrap_or(began_ns);
        Newest { number: stored.name.number, last_ns }
    });
    let oldest = closed.first().map_or(next, |stored| stored.name.number);
    let utc_ns = i64::try_from((config.now_ns)()).unwrap_or(i64::MAX);
    let uptime = config.uptime.clone();
    let (ages, noted) = Ages::open(store.dir(), uptime, utc_ns, (oldest, newest), next);
    if let Err(e) = noted {
        (config.log)(&format!(
            "cannot note how the clock stands: {e}; a later recorder may take segments for older or younger than they are"
        ));
    }
    ages
}

/// Hands blocks that were written from `offset` on to the indexer.
fn index<F: File>(indexer: &mut Indexer, mut offset: u64, batch: &[InterfaceBlock<'_>]) {
    for piece in batch {
        let on_disk = LiveSegment::<F>::disk_len(piece);
        indexer.block(offset, piece.block.bytes.len(), on_disk, piece.hold());
        offset += on_disk;
    }
}

/// Returns how many bytes the files of an index may take for a moment, log and draft together: many
/// times what they do with real traffic.
fn index_room(segment_bytes: u64) -> u64 {
    segment_bytes / 16 + (64 << 10)
}
