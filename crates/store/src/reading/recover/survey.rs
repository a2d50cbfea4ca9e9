//! What of a segment is whole? One pass over the file, in pieces of bounded size. Nothing is
//! changed: [`super::mend`] does that.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use tapdeck_packet::pcapng::{
    BYTE_ORDER_MAGIC, Error, FILL, Interface, PacketBlock, Reader, Record, Statistics,
    StatisticsBlock, section_header,
};

use super::fault::Fault;
use super::part::read_at;
use super::resync::resync;
use crate::format::cutoff::adds_up;
use crate::format::segment::{APPLICATION_PREFIX, filled};
use crate::format::unseen::UnseenSpan;
use crate::io::{Object, PAGE};

/// Bytes that are read at once, or more for a longer block.
const PIECE: usize = 1 << 20;
const LONGEST_BLOCK: u64 = 16 << 20;
/// The number of interfaces where not even that is known; more than any machine has.
const ANY_INTERFACE: u32 = 1 << 16;

/// How a file begins.
pub(super) enum FileOrigin {
    Ours,
    OtherByteOrder,
    /// Another program wrote the file.
    Strangers,
    /// The file does not begin as a capture file.
    Damaged,
}

impl FileOrigin {
    pub fn read(segment: &dyn Object) -> io::Result<Self> {
        let head = read_at(segment, 0, segment.length()?, PAGE)?;
        let long = |needed: u64| head.len() == PAGE && needed > PAGE as u64;
        Ok(match Reader::new(&head).next() {
            Some(Ok(Record::Section(s))) => {
                let ours = s.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX));
                let native = head[8..12] == BYTE_ORDER_MAGIC.to_ne_bytes();
                match (ours, native) {
                    (true, true) => Self::Ours,
                    (true, false) => Self::OtherByteOrder,
                    (false, _) => Self::Strangers,
                }
            }
            // No recorder writes a section header that is longer than a page.
            Some(Err(Error::CutShort { needed, .. })) if long(needed) => Self::Strangers,
            _ => Self::Damaged,
        })
    }
}

/// Returns whether there is a packet in a file that does not begin as a segment.
pub(super) fn holds_packets(segment: &dyn Object) -> io::Result<bool> {
    let len = segment.length()?;
    let behind = resync(segment, len, 0, ANY_INTERFACE)?;
    Ok(behind.next.is_some() || behind.doubtful)
}

/// What is known of an interface's packets.
#[derive(Clone, Debug, Default)]
struct InterfaceTally {
    packets: u64,
    /// Packets lost, as the packets tell.
    dropped: u64,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
}

/// Statistics that stand behind the last packet.
struct ClosingStatistics {
    at: u64,
    by_interface: BTreeMap<u32, Vec<Statistics>>,
}

/// Where a walk over blocks goes on.
struct Next {
    at: u64,
    /// How many bytes have to be read there; `None` where the walk is over, as no block begins.
    wants: Option<usize>,
}

/// What is known of a segment.
pub(super) struct Survey {
    pub len: u64,
    /// Where the part of the file ends that can stay, once damage has become fill.
    pub end: u64,
    /// Damaged stretches with whole packets behind them.
    pub damage: Vec<Range<u64>>,
    /// Bytes at the end that belong to no whole block and are not zero.
    pub bytes_cut: u64,
    interfaces: Vec<(Interface, InterfaceTally)>,
    /// The statistics behind the last packet.
    told: Option<ClosingStatistics>,
    /// Whether the walk is behind the interface descriptions.
    in_body: bool,
    head_damaged: bool,
    /// Packets before the first damage, if there is any.
    before: Option<u64>,
}

impl Survey {
    pub fn of(segment: &dyn Object) -> Result<Self, Fault> {
        let len = segment.length()?;
        let mut survey = Self {
            len,
            end: 0,
            damage: Vec::new(),
            bytes_cut: 0,
            interfaces: Vec::new(),
            told: None,
            in_body: false,
            head_damaged: false,
            before: None,
        };
        let mut at = 0;
        while let Some(next) = survey.stretch(segment, at)? {
            at = next;
        }
        Ok(survey)
    }

    /// Reads whole blocks from a place on and looks behind what ends them. Returns where blocks go
    /// on, if they do.
    fn stretch(&mut self, segment: &dyn Object, from: u64) -> Result<Option<u64>, Fault> {
        let end = self.walk(segment, from)?;
        self.end = end;
        if end == self.len {
            return Ok(None);
        }
        self.before.get_or_insert_with(|| self.interfaces.iter().map(|i| i.1.packets).sum());
        self.head_damaged |= !self.in_body;
        let interfaces =
            if self.head_damaged { ANY_INTERFACE } else { self.interfaces.len() as u32 };
        let behind = resync(segment, self.len, end, interfaces)?;
        let Some(next) = behind.next else {
            if behind.doubtful {
                if self.head_damaged {
                    return Err(Fault::Head);
                }
                // Bytes that nobody understands are kept all the same.
                self.note_damage(end..behind.written.next_multiple_of(4));
                self.end = behind.written.next_multiple_of(4);
            } else {
                self.bytes_cut = behind.written - end;
            }
            return Ok(None);
        };
        self.note_damage(end..next);
        Ok(Some(next))
    }

    /// Adds a damaged stretch, which ends behind all others. One that begins where the one before
    /// ended is the same, and what lies inside it is a part of it.
    fn note_damage(&mut self, stretch: Range<u64>) {
        while self.damage.last().is_some_and(|last| last.start >= stretch.start) {
            self.damage.pop();
        }
        match self.damage.last_mut() {
            Some(last) if last.end == stretch.start => last.end = stretch.end,
            _ => self.damage.push(stretch),
        }
    }

    /// Takes in whole blocks from a place on. Returns where none begins.
    fn walk(&mut self, segment: &dyn Object, from: u64) -> Result<u64, Fault> {
        // The reader wants to begin with a section header.
        let mut prefix = Vec::new();
        section_header(&mut prefix, "", "", None);
        let (mut at, mut want) = (from, PIECE);
        loop {
            let piece = read_at(segment, at, self.len, want)?;
            if piece.is_empty() {
                return Ok(at);
            }
            let bytes = [prefix.as_slice(), &piece].concat();
            let next = self.take_all(&bytes, prefix.len() as u64, at)?;
            at = next.at;
            match next.wants {
                Some(wants) => want = wants.max(PIECE),
                None => return Ok(at),
            }
        }
    }

    /// Takes in the whole blocks of a piece that lies at `base`; in `bytes` it stands behind a
    /// prefix.
    fn take_all(&mut self, bytes: &[u8], prefix: u64, base: u64) -> Result<Next, Fault> {
        let mut reader = Reader::new(bytes);
        reader.next();
        loop {
            let at = base + reader.offset() - prefix;
            let wants = match reader.next() {
                Some(Ok(record)) if self.take(at, &record)? => continue,
                Some(Err(Error::CutShort { needed, .. }))
                    if needed <= LONGEST_BLOCK && needed <= self.len - at =>
                {
                    Some(needed as usize)
                }
                Some(_) => None,
                None => Some(PIECE),
            };
            return Ok(Next { at, wants });
        }
    }

    /// Takes in a block; false if no block can be here.
    fn take(&mut self, at: u64, record: &Record<'_>) -> Result<bool, Fault> {
        match record {
            Record::Section(_) if at > 0 => return Err(Fault::Sections),
            Record::Section(_) => {}
            // No recorder writes it so, nor there.
            Record::Interface(i) if i.resolution != 9 || self.in_body => return Ok(false),
            Record::Interface(i) => self.interfaces.push((i.clone(), InterfaceTally::default())),
            Record::Packet(packet) => {
                // Where the sector with the lengths is missing, an empty packet seems to stand
                // there.
                let is_packet = packet.original_len > 0
                    && packet.frame.len() <= packet.original_len as usize
                    && i64::try_from(packet.timestamp).is_ok();
                if !is_packet {
                    return Ok(false);
                }
                let Some(interface) = self.interfaces.get_mut(packet.interface as usize) else {
                    return if self.head_damaged { Err(Fault::Head) } else { Ok(false) };
                };
                count(interface, packet);
                self.in_body = true;
                // Statistics that stand before packets are not those of the end.
                if let Some(told) = self.told.take() {
                    self.note_damage(told.at..at);
                }
            }
            // What went unseen before the segment is told among its blocks.
            Record::Statistics(s) if UnseenSpan::told(s).is_some() => self.in_body = true,
            Record::Statistics(s) => {
                let told = self
                    .told
                    .get_or_insert(ClosingStatistics { at, by_interface: BTreeMap::new() });
                told.by_interface.entry(s.interface).or_default().push(s.clone());
                self.in_body = true;
            }
            Record::Other(FILL) => self.in_body = true,
            // No recorder writes any other, so the type of a true block is damaged.
            Record::Other(_) => return Ok(false),
        }
        Ok(true)
    }

    pub fn packets(&self) -> u64 {
        self.interfaces.iter().map(|i| i.1.packets).sum()
    }

    pub fn packets_before(&self) -> u64 {
        self.before.unwrap_or_else(|| self.packets())
    }

    pub fn bytes_replaced(&self) -> u64 {
        self.damage.iter().map(|d| d.end - d.start).sum()
    }

    /// Returns whether the segment can be read to its end.
    pub fn is_sound(&self) -> bool {
        self.end == self.len && self.damage.is_empty()
    }

    /// Returns whether the statistics at the end are those of the packets that are there.
    pub fn is_ended(&self) -> bool {
        let is_told = |(i, (_, tally)): (usize, &(Interface, InterfaceTally))| {
            let told = self.told.as_ref().and_then(|told| told.by_interface.get(&(i as u32)));
            let [told] = told.map_or(&[][..], Vec::as_slice) else { return false };
            told.delivered == Some(tally.packets) && adds_up(told)
        };
        self.interfaces.iter().enumerate().all(is_told)
            && self.damage.is_empty()
            && self.end.is_multiple_of(PAGE as u64)
    }

    /// Returns where the segment ends without its statistics.
    pub fn body_end(&self) -> u64 {
        self.told.as_ref().map_or(self.end, |told| told.at)
    }

    /// Returns how many bytes of fill there must be from the body's end up to where statistics may
    /// begin.
    pub fn gap(&self) -> usize {
        let into_page = (self.body_end() % PAGE as u64) as usize;
        filled(into_page) - into_page
    }

    /// Returns statistics of the packets that are there, with times as far as packets tell them,
    /// else `began_ns`.
    pub fn statistics(&self, began_ns: u64, comment: &str) -> Vec<StatisticsBlock> {
        let first = self.interfaces.iter().filter_map(|i| i.1.first_ns).min().unwrap_or(began_ns);
        let last = self.interfaces.iter().filter_map(|i| i.1.last_ns).max().unwrap_or(first);
        let told = |i: u32| self.told.as_ref()?.by_interface.get(&i)?.first()?.dropped;
        let statistics = self.interfaces.iter().enumerate().map(|(i, (_, tally))| {
            let dropped = told(i as u32).unwrap_or(tally.dropped);
            StatisticsBlock {
                comment: (i == 0).then(|| comment.to_owned()),
                ..StatisticsBlock::of_packets(i as u32, (first, last), tally.packets, dropped)
            }
        });
        statistics.collect()
    }
}

fn count((interface, tally): &mut (Interface, InterfaceTally), packet: &PacketBlock<'_>) {
    tally.packets += 1;
    tally.dropped = tally.dropped.saturating_add(packet.dropped);
    let time = interface.nanoseconds(packet.timestamp).and_then(|ns| u64::try_from(ns).ok());
    if let Some(ns) = time {
        tally.first_ns = Some(tally.first_ns.map_or(ns, |first| first.min(ns)));
        tally.last_ns = Some(tally.last_ns.map_or(ns, |last| last.max(ns)));
    }
}
