//! What is in a store? Told from its indexes, without reading the packets.
//!
//! The granules of an index tell packets, times and losses; its dictionaries tell hosts and ports.
//! What a live segment has beyond its index is little, and is indexed here, in memory. A granule
//! that a span's border goes through is read, so that packets are counted exactly.
//!
//! A closed segment without an index would have to be read from end to end. Its packets and losses
//! stand in the statistics at its end, so only those are told of it, unless a border goes through
//! it or it has no statistics.

mod captures;
mod gaps;
mod json;
mod rate;
mod tops;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tapdeck_packet::key::Class;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Reader, Record};
use tapdeck_packet::ring::Cut;

use crate::format::cutoff;
use crate::format::index::{Builder, Granule, Index, ShedOf, read_ahead};
use crate::format::segment::{blocks_backwards, dropped_told, open_segment, statistics_told};
use crate::io::{Access, Directory, Object, Storage};
use crate::reading::query::{Error, Missing, Note, SLACK_NS, Segment, Snapshot, Span};
use crate::shed::Shed;
pub use captures::stat_captures;
use gaps::Finder;
pub use gaps::{Gap, Gaps, Loss};
pub use rate::{Amount, Rate};
use tops::KeyTally;
pub use tops::Tops;

/// Bytes that are read of either end of a segment that has no index.
const END: usize = 256 << 10;

/// How many indexes are read ahead of need, and about how many bytes of them.
const SEGMENTS_AHEAD: usize = 16;
const BYTES_AHEAD: u64 = 16 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub span: Span,
    /// How many hosts and how many ports are wanted. For any, all dictionaries have to be read.
    pub top: usize,
}

/// The index of a segment cannot be used, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    pub segment: String,
    pub why: String,
}

/// What a store holds within the span.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether these are capture files of other recorders: segments are then files, and stored are
    /// the bytes of frames.
    pub is_foreign: bool,
    /// Segments with anything within the span, as far as is known.
    pub segments: u64,
    /// Segments among those that are being written.
    pub live: u64,
    /// Segments whose statistics alone were read: their packets are not in the rate, and not among
    /// hosts and ports. Their times are about right.
    pub not_indexed: u64,
    pub packets: u64,
    /// Bytes of whole segments if the span is all of time; else of what of them is within it.
    pub bytes_stored: u64,
    /// Bytes of these segments' index files.
    pub index_bytes: u64,
    /// Times of the first and the last packet, UTC. `None` where there are no packets.
    pub times: Option<(i64, i64)>,
    pub gaps: Gaps,
    /// Times in which packets lost payload because a ring was nearly full; what segments without an
    /// index lost is not told.
    pub shed: Gaps<Shed>,
    /// Times in which packets went unseen, which are in no gap.
    pub unseen: Vec<Missing>,
    pub cutoff: Cutoff,
    pub rate: Rate,
    pub hosts: Tops<IpAddr>,
    pub ports: Tops<u16>,
    /// Faults of segments, and segments that were deleted meanwhile.
    pub notes: Vec<Note>,
    pub unusable: Vec<Unusable>,
}

impl Report {
    /// Returns the report as a JSON object, which says that it is of what is at `dir`.
    pub fn json(&self, dir: &Path) -> String {
        json::json(dir, self)
    }

    fn empty() -> Self {
        Self {
            is_foreign: false,
            segments: 0,
            live: 0,
            not_indexed: 0,
            packets: 0,
            bytes_stored: 0,
            index_bytes: 0,
            times: None,
            gaps: Gaps::default(),
            shed: Gaps::default(),
            unseen: Vec::new(),
            cutoff: Cutoff::default(),
            rate: Rate::new(),
            hosts: KeyTally::new().top(0),
            ports: KeyTally::new().top(0),
            notes: Vec::new(),
            unusable: Vec::new(),
        }
    }
}

/// What was left out of flows that had had their bytes, as the statistics at the ends of segments
/// tell that lie within the span as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cutoff {
    pub cut: Cut,
    /// Bytes of these segments and of those without anything left out.
    pub stored: u64,
    /// When the first began and the last ended of the segments that had something left out.
    pub times: Option<(i64, i64)>,
    /// Segments of recordings that leave something out which do not tell what of it is in the span:
    /// a border goes through them, or they are being written.
    pub untold: u64,
}

impl Cutoff {
    /// Returns how many times as long the store lasts by what was left out.
    pub fn lasts(&self) -> f64 {
        let packet = pcapng::PACKET_OVERHEAD as u64;
        let left_out = self.cut.bytes + self.cut.packets * packet;
        (self.stored + left_out) as f64 / self.stored.max(1) as f64
    }
}

/// Returns what the statistics at the end of a file tell that was left out of flows: of one that a
/// recorder wrote, and has closed.
pub fn left_out(file: &Path) -> io::Result<Cut> {
    let file = file.canonicalize()?;
    let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else {
        return Ok(Cut::default());
    };
    let object = Directory::new(dir).open(name, Access::Ranges)?;
    let told = statistics_told(&*object).unwrap_or_default();
    Ok(told.iter().filter_map(cutoff::cut_told).sum())
}

/// Looks at the whole store, oldest segment first. `watch` is called with how many of the segments
/// are done, and how many there are, and ends it by `false`: what was told so far is told then.
pub fn stat(
    dir: &Path,
    question: Question,
    watch: impl FnMut(usize, usize) -> bool,
) -> Result<Report, Error> {
    let directory: Arc<dyn Storage> = Arc::new(Directory::new(dir));
    stat_in(&directory, question, watch)
}

/// Looks at a store as [`stat`] does, wherever it lies.
pub fn stat_in(
    storage: &Arc<dyn Storage>,
    question: Question,
    mut watch: impl FnMut(usize, usize) -> bool,
) -> Result<Report, Error> {
    let mut snapshot = Snapshot::open_in(storage, question.span)?;
    let notes = std::mem::take(&mut snapshot.notes);
    let mut survey = ReportBuilder::new(&**storage, &snapshot, question, notes);
    let segments = snapshot.segments_to_read();
    // Bytes of the indexes that are read ahead, beginning with the segment that is looked at.
    let mut ahead = VecDeque::new();
    let mut is_ended = false;
    for (done, segment) in segments.iter().enumerate() {
        let mut is_wanted = || {
            is_ended = is_ended || !watch(done, segments.len());
            !is_ended
        };
        if !is_wanted() {
            break;
        }
        if question.top > 0 {
            // While this segment is looked at, the disk reads the next ones' indexes.
            while ahead.len() < SEGMENTS_AHEAD
                && ahead.iter().sum::<u64>() < BYTES_AHEAD
                && let Some(soon) = segments.get(done + ahead.len())
            {
                ahead.push_back(read_ahead(&**storage, &soon.name));
            }
            ahead.pop_front();
        }
        match survey.segment(segment, &mut is_wanted) {
            Err(_) if is_ended => break,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                survey.report.notes.push(Note::Deleted(segment.name.to_string()));
            }
            result => result
                .map_err(|e| Error::new(storage.location(segment.name.to_string().as_ref()), e))?,
        }
    }
    Ok(survey.finish())
}

/// A granule, or what of it is within the span.
struct GranulePart {
    first_ns: i64,
    last_ns: i64,
    packets: u64,
    bytes: u64,
    dropped: Vec<(u32, u64)>,
    shed: Vec<ShedOf>,
}

impl GranulePart {
    fn of(granule: &Granule) -> Self {
        Self {
            first_ns: granule.first_ns,
            last_ns: granule.last_ns,
            packets: u64::from(granule.packets),
            bytes: granule.place.end - granule.place.start,
            dropped: granule.dropped.clone(),
            shed: granule.shed.clone(),
        }
    }
}

struct ReportBuilder<'a> {
    storage: &'a dyn Storage,
    snapshot: &'a Snapshot,
    question: Question,
    report: Report,
    gaps: Finder,
    shed: Finder<Shed>,
    hosts: KeyTally<IpAddr>,
    ports: KeyTally<u16>,
    /// Losses in the statistics of segments that no packet has told of yet, each with the
    /// segment's last time.
    untold: Vec<(i64, u64)>,
}

/// Called while a segment is read, which goes on as long as this says so.
type Watch<'a> = dyn FnMut() -> bool + 'a;

impl<'a> ReportBuilder<'a> {
    fn new(
        storage: &'a dyn Storage,
        snapshot: &'a Snapshot,
        question: Question,
        notes: Vec<Note>,
    ) -> Self {
        let report = Report { unseen: snapshot.unseen().to_vec(), notes, ..Report::empty() };
        let (hosts, ports) = (KeyTally::new(), KeyTally::new());
        let (gaps, shed, untold) = (Finder::default(), Finder::default(), Vec::new());
        Self { storage, snapshot, question, report, gaps, shed, hosts, ports, untold }
    }

    fn finish(mut self) -> Report {
        // Losses that no packet told of are behind the last packet of a recording.
        if self.question.span == Span::ALL {
            for (at_ns, lost) in self.untold {
                self.gaps.add(None, at_ns, at_ns, lost);
            }
        }
        self.report.gaps = self.gaps.finish();
        self.report.shed = self.shed.finish();
        self.report.hosts = self.hosts.top(self.question.top);
        self.report.ports = self.ports.top(self.question.top);
        self.report
    }

    /// Takes in a segment. One that is gone is an error of the kind `NotFound`, and nothing of it
    /// is counted.
    fn segment(&mut self, segment: &Segment, watch: &mut Watch<'_>) -> io::Result<()> {
        let storage = self.storage;
        let object = open_segment(storage, &segment.name, Access::Ranges)?;
        let found = Index::open(storage, &segment.name, segment.end).and_then(|index| {
            let Some(mut index) = index else { return Ok(None) };
            let tables = index.tables()?;
            Ok(Some((index, tables)))
        });
        let indexed = found.unwrap_or_else(|e| {
            self.unusable(segment, &e);
            None
        });
        self.report.segments += 1;
        self.report.live += u64::from(segment.name.live);
        let names = segment.name.index_names();
        let states = names.iter().filter_map(|name| storage.state(name.as_ref()).ok());
        self.report.index_bytes += states.map(|state| state.len).sum::<u64>();
        if self.question.span == Span::ALL {
            self.report.bytes_stored += segment.end;
        }
        self.cutoff(segment, &*object);
        match indexed {
            Some((index, tables)) => self.by_index(segment, &*object, index, &tables, watch),
            None => self.without(segment, &*object, watch),
        }
    }

    /// Takes in what was left out of a segment that lies within the span as a whole. Of recordings
    /// that leave nothing out, the end is not read for this.
    fn cutoff(&mut self, segment: &Segment, object: &dyn Object) {
        let mark = pcapng::FLOWS_CUT_OFF.as_bytes();
        let says_so = |number: &u32| {
            let described = &self.snapshot.interfaces[*number as usize].block;
            described.windows(mark.len()).any(|window| window == mark)
        };
        if !segment.head.interfaces.iter().any(says_so) {
            self.report.cutoff.stored += segment.end;
        } else if let Some(told) = self.statistics(segment, object) {
            self.report.cutoff.stored += segment.end;
            for statistics in &told {
                let Some(cut) = cutoff::cut_told(statistics) else { continue };
                self.report.cutoff.cut = self.report.cutoff.cut + cut;
                let ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
                let end_ns = ns(statistics.end.unwrap_or(statistics.timestamp));
                let first_ns = statistics.start.map_or(end_ns, ns);
                let times = self.report.cutoff.times.get_or_insert((first_ns, end_ns));
                *times = (times.0.min(first_ns), times.1.max(end_ns));
            }
        } else {
            self.report.cutoff.untold += 1;
        }
    }

    fn by_index(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
        mut index: Index,
        tables: &[Vec<Granule>],
        watch: &mut Watch<'_>,
    ) -> io::Result<()> {
        let mut told = self.tables(segment, object, &mut index, tables)?;
        let summary = index.summary().clone();
        if !summary.complete {
            let mut at = segment.begin;
            for part in index.indexed() {
                told += self.read(segment, object, at..part.start.min(segment.end), watch)?;
                at = at.max(part.end);
            }
            told += self.read(segment, object, at..segment.end, watch)?;
        }
        let last_ns = tables.iter().flatten().map(|g| g.last_ns).max().unwrap_or(i64::MIN);
        let stated = if summary.complete { summary.dropped } else { stated(segment, object) };
        self.settle(segment, last_ns, stated, told);
        Ok(())
    }

    /// Takes in a segment that has no index, or none that can be used.
    fn without(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
        watch: &mut Watch<'_>,
    ) -> io::Result<()> {
        let Some(statistics) = self.statistics(segment, object) else {
            let told = self.read(segment, object, segment.begin..segment.end, watch)?;
            self.settle(segment, i64::MIN, stated(segment, object), told);
            return Ok(());
        };
        let span = self.question.span;
        self.report.not_indexed += 1;
        self.report.packets += statistics.iter().filter_map(|s| s.delivered).sum::<u64>();
        if span != Span::ALL {
            self.report.bytes_stored += segment.end;
        }
        let times = self.times_at_ends(segment, object)?;
        if let Some((first_ns, last_ns)) = times {
            self.reach(first_ns, last_ns);
        }
        let began_ns = segment.name.began_s.saturating_mul(1_000_000_000);
        let (first_ns, last_ns) = times.unwrap_or((began_ns, began_ns));
        for s in statistics {
            let lost = s.dropped.unwrap_or(0);
            if lost > 0 {
                let name = self.interface(segment, s.interface);
                self.gaps.add(name.as_deref(), first_ns, last_ns, lost);
            }
        }
        Ok(())
    }

    /// Returns the times of the earliest packet at a segment's beginning and of the latest at its
    /// end; `None` where there are no packets.
    fn times_at_ends(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
    ) -> io::Result<Option<(i64, i64)>> {
        let section = &segment.head.section[..];
        let from = segment.end.saturating_sub(END as u64).max(segment.begin);
        let first_end = segment.end.min(segment.begin + END as u64);
        let mut ends = Vec::with_capacity(2);
        for part in [segment.begin..first_end, from..segment.end] {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            let have = object.read_up_to(&mut bytes, part.start)?;
            if have < bytes.len() {
                self.damaged(segment, part.start + have as u64, "it is cut short");
                bytes.truncate(have);
            }
            object.forget(part);
            ends.push(bytes);
        }
        let first = [section, &ends[0]].concat();
        let first = Reader::new(&first).filter_map(time_of).min();
        let last = blocks_backwards(&ends[1]).filter_map(|block| {
            let one = [section, block].concat();
            Reader::new(&one).nth(1).and_then(time_of)
        });
        Ok(first.zip(last.max()))
    }

    /// Returns the statistics at the end of a closed segment, if they tell all of it: no border of
    /// the span goes through the segment.
    fn statistics(
        &self,
        segment: &Segment,
        object: &dyn Object,
    ) -> Option<Vec<pcapng::Statistics>> {
        if segment.name.live {
            return None;
        }
        let told = statistics_told(object)?;
        let span = self.question.span;
        let closed_ns =
            told.iter().map(|s| i64::try_from(s.timestamp).unwrap_or(i64::MAX)).max()?;
        let is_within = segment.earliest_ns >= span.after_ns
            && closed_ns.saturating_add(SLACK_NS) < span.before_ns;
        let is_whole = told.iter().all(|s| s.delivered.is_some());
        (is_whole && (is_within || span == Span::ALL)).then_some(told)
    }

    /// Takes in the granules and keys of an index. Returns the losses that its packets tell, also
    /// outside of the span.
    fn tables(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
        index: &mut Index,
        tables: &[Vec<Granule>],
    ) -> io::Result<u64> {
        let mut told = 0;
        for (number, granules) in tables.iter().enumerate() {
            // For each granule, how many before it are wanted.
            let mut wanted = Vec::with_capacity(granules.len() + 1);
            wanted.push(0);
            for (i, granule) in granules.iter().enumerate() {
                told += granule.dropped.iter().map(|d| d.1).sum::<u64>();
                let part = self.within(segment, object, granule)?;
                wanted.push(wanted[i] + u32::from(part.is_some()));
                if let Some(part) = part {
                    self.add(segment, &part);
                }
            }
            if self.question.top > 0
                && let Err(e) = self.keys(index, number, &wanted)
            {
                self.unusable(segment, &e);
            }
        }
        Ok(told)
    }

    /// Returns what of a granule is within the span and was there when the store was looked at.
    fn within(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
        granule: &Granule,
    ) -> io::Result<Option<GranulePart>> {
        let span = self.question.span;
        let is_outside = granule.last_ns < span.after_ns || granule.first_ns >= span.before_ns;
        if granule.packets == 0 || is_outside || granule.place.start >= segment.end {
            return Ok(None);
        }
        // The segment was written on since it was looked at, or it was cut.
        let is_cut = granule.place.end > segment.end;
        if span.contains(granule.first_ns) && span.contains(granule.last_ns) && !is_cut {
            return Ok(Some(GranulePart::of(granule)));
        }
        let place = granule.place.start..granule.place.end.min(segment.end);
        let (part, damage) = read_part(object, segment, &place, span)?;
        if let Some((at, what)) = damage.filter(|_| !(is_cut && segment.name.live)) {
            self.damaged(segment, at, what);
        }
        Ok((part.packets > 0).then_some(part))
    }

    fn add(&mut self, segment: &Segment, part: &GranulePart) {
        self.report.packets += part.packets;
        if self.question.span != Span::ALL {
            self.report.bytes_stored += part.bytes;
        }
        self.reach(part.first_ns, part.last_ns);
        let amount = Amount { packets: part.packets as f64, bytes: part.bytes as f64 };
        self.report.rate.add(part.first_ns, part.last_ns, amount);
        for (interface, lost) in &part.dropped {
            let name = self.interface(segment, *interface);
            self.gaps.add(name.as_deref(), part.first_ns, part.last_ns, *lost);
        }
        for ShedOf { interface, packets, bytes } in &part.shed {
            let name = self.interface(segment, *interface);
            let shed = Shed { packets: u64::from(*packets), bytes: *bytes };
            self.shed.add(name.as_deref(), part.first_ns, part.last_ns, shed);
        }
    }

    fn reach(&mut self, first_ns: i64, last_ns: i64) {
        let (first, last) = self.report.times.unwrap_or((first_ns, last_ns));
        self.report.times = Some((first.min(first_ns), last.max(last_ns)));
    }

    /// Counts hosts and ports in the granules of a table; `wanted` says how many of those before
    /// each are wanted.
    fn keys(&mut self, index: &mut Index, table: usize, wanted: &[u32]) -> io::Result<()> {
        let all = u64::from(wanted.last().copied().unwrap_or(0));
        if all == 0 {
            return Ok(());
        }
        let count = |runs: &[(u32, u32)]| {
            let run = |(from, to): &(u32, u32)| wanted[*to as usize] - wanted[*from as usize];
            runs.iter().map(|r| u64::from(run(r))).sum::<u64>()
        };
        let any_unlisted = |index: &Index, classes: &[Class]| {
            classes.iter().any(|class| !index.is_listed(table, *class))
        };
        let ipv4 = [Class::SourceIpv4, Class::DestinationIpv4];
        let ipv6 = [Class::SourceIpv6, Class::DestinationIpv6];
        let ports = [Class::SourcePort, Class::DestinationPort];

        self.hosts.of += all;
        self.hosts.unlisted += all * u64::from(any_unlisted(index, &[ipv4, ipv6].concat()));
        self.ports.of += all;
        self.ports.unlisted += all * u64::from(any_unlisted(index, &ports));
        let hosts = &mut self.hosts;
        let mut host = |address: IpAddr, granules: u64| {
            if granules > 0 {
                hosts.add(address, granules);
            }
        };
        index
            .keys(table, ipv4, |key, runs| host(Ipv4Addr::from(key as u32).into(), count(runs)))?;
        index.keys(table, ipv6, |key, runs| host(Ipv6Addr::from(key).into(), count(runs)))?;
        index.keys(table, ports, |key, runs| match count(runs) {
            0 => {}
            granules => self.ports.add(key as u16, granules),
        })
    }

    /// Indexes a stretch in memory and takes that in. Returns the losses that its packets tell.
    fn read(
        &mut self,
        segment: &Segment,
        object: &dyn Object,
        stretch: Range<u64>,
        watch: &mut Watch<'_>,
    ) -> io::Result<u64> {
        if stretch.is_empty() {
            return Ok(0);
        }
        let interfaces = &self.snapshot.interfaces;
        let links: Vec<LinkType> =
            segment.head.interfaces.iter().map(|i| interfaces[*i as usize].link).collect();
        let mut told = 0;
        let mut take = |builder: &mut Builder| {
            if !watch() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut index = Index::of_chunk(builder.chunk())?;
            let tables = index.tables()?;
            told += self.tables(segment, object, &mut index, &tables)?;
            Ok(())
        };
        let mut builder = Builder::new(&segment.name, links);
        let end = builder.read(object, stretch.clone(), &mut take)?;
        if !builder.is_empty() {
            take(&mut builder)?;
        }
        // A segment that is being written may be cut anywhere.
        let may_be_cut = segment.name.live && stretch.end == segment.end;
        if end < stretch.end && !may_be_cut {
            self.damaged(segment, end, "there is no whole block");
        }
        Ok(told)
    }

    /// Holds what a segment's packets tell of losses against its statistics. What is lost behind
    /// its last packet is told by a packet of the next segment, or by none where the recording
    /// ended.
    fn settle(&mut self, segment: &Segment, last_ns: i64, stated: u64, told: u64) {
        if stated > told {
            let began_ns = segment.name.began_s.saturating_mul(1_000_000_000);
            self.untold.push((last_ns.max(began_ns), stated - told));
        }
        let mut excess = told.saturating_sub(stated);
        while excess > 0
            && let Some((at_ns, lost)) = self.untold.pop()
        {
            if lost > excess {
                self.untold.push((at_ns, lost - excess));
            }
            excess = excess.saturating_sub(lost);
        }
    }

    /// Returns the name of an interface, by its id in a segment.
    fn interface(&self, segment: &Segment, id: u32) -> Option<String> {
        let number = segment.head.interfaces.get(id as usize)?;
        Some(self.snapshot.interfaces[*number as usize].name.clone())
    }

    fn unusable(&mut self, segment: &Segment, e: &io::Error) {
        let (segment, why) = (segment.name.to_string(), e.to_string());
        // A log has many dictionaries, and one note is enough.
        if self.report.unusable.last().is_none_or(|last| last.segment != segment) {
            self.report.unusable.push(Unusable { segment, why });
        }
    }

    fn damaged(&mut self, segment: &Segment, at: u64, what: &str) {
        let (segment, what) = (segment.name.to_string(), what.to_owned());
        self.report.notes.push(Note::Damaged { segment, at, what });
    }
}

/// Returns the losses that a segment's statistics tell, if they are written.
fn stated(segment: &Segment, object: &dyn Object) -> u64 {
    if segment.name.live { 0 } else { dropped_told(object).unwrap_or(0) }
}

/// Returns what of a granule is within a span, and where it is damaged.
fn read_part(
    object: &dyn Object,
    segment: &Segment,
    place: &Range<u64>,
    span: Span,
) -> io::Result<(GranulePart, Option<(u64, &'static str)>)> {
    let section = &segment.head.section;
    let mut bytes = section.clone();
    bytes.resize(section.len() + (place.end - place.start) as usize, 0);
    let have = object.read_up_to(&mut bytes[section.len()..], place.start)?;
    object.forget(place.clone());
    bytes.truncate(section.len() + have);
    let mut reader = Reader::new(&bytes);
    reader.next();
    let mut part = GranulePart {
        first_ns: i64::MAX,
        last_ns: i64::MIN,
        packets: 0,
        bytes: 0,
        dropped: Vec::new(),
        shed: Vec::new(),
    };
    let mut at = reader.offset();
    while let Some(record) = reader.next() {
        let Ok(record) = record else {
            let at = place.start + at - section.len() as u64;
            return Ok((part, Some((at, "there is no whole block"))));
        };
        let len = reader.offset() - at;
        at = reader.offset();
        let Record::Packet(packet) = record else { continue };
        let Some(time_ns) = i64::try_from(packet.timestamp).ok().filter(|ns| span.contains(*ns))
        else {
            continue;
        };
        part.packets += 1;
        part.bytes += len;
        part.first_ns = part.first_ns.min(time_ns);
        part.last_ns = part.last_ns.max(time_ns);
        if packet.dropped > 0 {
            part.dropped.push((packet.interface, packet.dropped));
        }
        if packet.shed > 0 {
            ShedOf::add(&mut part.shed, packet.interface, packet.shed);
        }
    }
    let end = place.start + have as u64;
    Ok((part, (end < place.end).then_some((end, "it is cut short"))))
}

fn time_of(record: Result<Record<'_>, pcapng::Error>) -> Option<i64> {
    match record {
        Ok(Record::Packet(packet)) => i64::try_from(packet.timestamp).ok(),
        _ => None,
    }
}
