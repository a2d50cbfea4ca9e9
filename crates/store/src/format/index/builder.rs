//! Makes a chunk of an index from blocks as they come.
//!
//! This is the work that indexing adds to recording, so most packets must cost next to nothing: a
//! packet of a flow that was already seen in the same granule has no key that is not noted, and a
//! look at 32 bytes tells that.

use std::io;
use std::ops::Range;

use tapdeck_packet::key::{Class, Keys as _};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::{ether_type, ip_protocol};
use tapdeck_packet::pcapng::option;
use tapdeck_packet::{header, pcapng};

use super::granule::{Granule, Quarters, ShedOf, Summary};
use super::image::{Draft, EntryKind, Header, hash};
use super::pairs::{Pairs, PlainKeys, Sorted};
use super::spots::Spot;
use crate::format::name::SegmentName;
use crate::io::{Object, prefetch};

/// A granule is closed when it has so many bytes.
pub(crate) const GRANULE: u64 = 128 << 10;
/// A chunk is closed when it has so many bytes.
const CHUNK: u64 = 32 << 20;
/// A chunk is closed when a class has so many pairs, which bounds the memory.
const PAIRS: usize = 128 << 10;
/// A class is told by hashes where its exact keys would take more than this share of what they
/// point into.
const SHARE: u64 = 64;
/// Up to so many pairs of a class are always told by exact keys.
const FEW: usize = 16 << 10;
/// Bytes whose checksum is taken before their packets are looked at: so many that they are still
/// in the nearest cache then. The checksum reads ahead as fast as memory gives, which a walk from
/// packet to packet cannot.
const AHEAD: usize = 12 << 10;
/// Bytes of a segment that are read at once.
const PIECE: usize = 1 << 20;
/// Flows that are remembered, a power of two.
const FLOWS: usize = 2048;

/// Makes the index of a stretch of a segment, from blocks as they come. The memory is bounded if
/// the builder is emptied whenever it is full: about 1 MiB for each class, 4 MiB for each of IPv6,
/// what the pairs of one more block take, and 1 MiB.
pub(crate) struct Builder {
    name: SegmentName,
    links: Vec<LinkType>,
    pairs: Pairs,
    flows: Vec<[u64; 4]>,
    granules: Vec<Granule>,
    open: Option<Open>,
    covered: u64,
    /// Where granules and quarters end; `None` where the builder decides.
    ends: Option<Ends>,
}

/// Where the granules of an index end in the segment, and where their quarters do, ascending.
pub(super) struct Ends {
    pub granules: Vec<u64>,
    pub quarters: Vec<u64>,
}

/// Returns the first of some places behind `at`.
fn next_behind(ends: &[u64], at: u64) -> u64 {
    ends.get(ends.partition_point(|end| *end <= at)).copied().unwrap_or(u64::MAX)
}

/// The granule that packets are added to.
struct Open {
    granule: Granule,
    /// Where the open quarter begins, and the CRC32C of its bytes so far.
    quarter: u64,
    checksum: u32,
}

impl Open {
    fn quarter_len(&self) -> u64 {
        self.granule.place.end - self.quarter
    }

    fn is_in_last(&self) -> bool {
        self.granule.quarters.each().len() + 1 >= Quarters::MOST
    }

    fn end_quarter(&mut self) {
        let (len, checksum) = (self.quarter_len() as u32, std::mem::take(&mut self.checksum));
        self.granule.quarters.push(len, checksum);
        self.quarter = self.granule.place.end;
    }
}

/// What an index needs to know of a packet of a file that is no segment.
pub(crate) struct ForeignPacket<'a> {
    pub time_ns: i64,
    /// The interface, as the file counts them.
    pub interface: u32,
    pub link: LinkType,
    pub dropped: u64,
    pub frame: &'a [u8],
}

impl Builder {
    /// `links` has the link type of each interface id.
    pub fn new(name: &SegmentName, links: Vec<LinkType>) -> Self {
        Self {
            name: name.clone(),
            links,
            pairs: Pairs::new(),
            flows: vec![[0; 4]; FLOWS],
            granules: Vec::new(),
            open: None,
            covered: 0,
            ends: None,
        }
    }

    /// Makes granules and quarters end where those of another index do.
    pub(super) fn with_ends(mut self, ends: Ends) -> Self {
        self.ends = Some(ends);
        self
    }

    /// Returns whether a granule of `len` bytes ends at a place of the segment.
    fn ends(&self, len: u64, at: u64) -> bool {
        match &self.ends {
            None => len >= GRANULE,
            // Those of an index that somebody else made may be as small as a block.
            Some(ends) => {
                let has_room = self.granules.len() < Pairs::MOST_GRANULES as usize;
                has_room && ends.granules.binary_search(&at).is_ok()
            }
        }
    }

    /// Returns whether the open quarter ends where it has come to, and another may begin.
    fn quarter_ends(&self) -> bool {
        let Some(open) = self.open.as_ref().filter(|open| !open.is_in_last()) else { return false };
        let len = open.quarter_len();
        let is_end = match &self.ends {
            None => len >= Quarters::LEN,
            Some(ends) => ends.quarters.binary_search(&open.granule.place.end).is_ok(),
        };
        is_end && len > 0 && u32::try_from(len).is_ok()
    }

    /// Returns a place of the segment up to which the open quarter reaches at least, as far as the
    /// segment goes on from `at`.
    fn least_end(&self, at: u64) -> u64 {
        if let Some(ends) = &self.ends {
            return next_behind(&ends.granules, at).min(next_behind(&ends.quarters, at));
        }
        let granule = at + GRANULE.saturating_sub(self.open_len());
        match &self.open {
            Some(open) if !open.is_in_last() => {
                granule.min(at + Quarters::LEN.saturating_sub(open.quarter_len()))
            }
            _ => granule,
        }
    }

    /// Takes in whole pcapng blocks, which lie in the segment from `offset` on and take `on_disk`
    /// bytes there with the fill behind them.
    pub fn add(&mut self, offset: u64, blocks: &[u8], on_disk: u64) {
        self.covered += on_disk;
        self.go_to(offset);
        // Bytes up to `taken` are part of the open quarter, those up to `least` will be.
        let (mut at, mut taken, mut least) = (0, 0, 0);
        while at < blocks.len() {
            if at >= taken {
                self.open(offset + taken as u64);
                if least == 0 {
                    let to = self.least_end(offset + taken as u64) - offset;
                    least = blocks.len().min(to.try_into().unwrap_or(usize::MAX));
                }
                let to = least.min(at + AHEAD).max(taken);
                self.take(&blocks[taken..to]);
                taken = to;
            }
            let Some(block) = next_block(&blocks[at..]) else {
                // What cannot be read here has no keys that could be found. Whoever reads the
                // segment sees the same damage.
                self.open(offset + taken as u64).granule.opaque = true;
                break;
            };
            if u32_at(block, 0) == pcapng::ENHANCED_PACKET {
                self.packet(block);
            }
            // What comes after is on its way meanwhile.
            prefetch(blocks, at + AHEAD..at + AHEAD + block.len());
            at += block.len();
            if at >= least && at < blocks.len() {
                self.take(&blocks[taken..at]);
                (taken, least) = (at, 0);
                if self.ends(self.open_len(), offset + at as u64) {
                    self.end_granule();
                }
                self.go_to_quarter();
            }
        }
        self.open(offset + taken as u64);
        self.take(&blocks[taken..]);
        let gap = on_disk as usize - blocks.len();
        if gap > 0 {
            let mut fill = Vec::with_capacity(gap);
            pcapng::fill(&mut fill, gap);
            self.take(&fill);
        }
    }

    /// Takes in the whole blocks in a stretch of a segment that begins with one. Returns back where
    /// something else than a whole block begins, or the stretch's end. `full` is called whenever
    /// the builder is full.
    pub fn read(
        &mut self,
        segment: &dyn Object,
        stretch: Range<u64>,
        mut full: impl FnMut(&mut Self) -> io::Result<()>,
    ) -> io::Result<u64> {
        let (mut at, mut want) = (stretch.start, PIECE);
        let mut buffer = Vec::new();
        while at < stretch.end {
            buffer.resize((stretch.end - at).min(want as u64) as usize, 0);
            let have = segment.read_up_to(&mut buffer, at)?;
            let whole = whole_blocks(&buffer[..have]);
            if whole == 0 {
                // A ring's blocks are 4 MiB at most, and no block of a segment is longer.
                if have < buffer.len() || at + have as u64 == stretch.end || want > 4 * PIECE {
                    break;
                }
                want *= 2;
                continue;
            }
            self.add(at, &buffer[..whole], whole as u64);
            at += whole as u64;
            segment.forget(stretch.start..at);
            if self.is_full() {
                full(self)?;
            }
        }
        Ok(at)
    }

    /// Prepares for blocks that lie at `offset`: they begin a granule if they do not lie right
    /// behind the blocks before.
    fn go_to(&mut self, offset: u64) {
        let goes_on = self.open.as_ref().is_none_or(|open| open.granule.place.end == offset);
        if !goes_on || self.open.is_some() && self.ends(self.open_len(), offset) {
            self.end_granule();
        }
        self.go_to_quarter();
    }

    /// Goes on in the next quarter where the open one has as much as it takes. Only called between
    /// two blocks.
    fn go_to_quarter(&mut self) {
        if self.quarter_ends()
            && let Some(open) = &mut self.open
        {
            open.end_quarter();
            self.pairs.set_quarter(open.granule.quarters.each().len());
        }
    }

    fn open_len(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| o.granule.place.end - o.granule.place.start)
    }

    fn open(&mut self, offset: u64) -> &mut Open {
        let number = self.granules.len() as u16;
        let pairs = &mut self.pairs;
        self.open.get_or_insert_with(|| {
            pairs.set_granule(number);
            let granule = Granule {
                place: offset..offset,
                first_ns: i64::MAX,
                last_ns: i64::MIN,
                packets: 0,
                quarters: Quarters::default(),
                opaque: false,
                dropped: Vec::new(),
                shed: Vec::new(),
                wanted: 0,
            };
            Open { granule, quarter: offset, checksum: 0 }
        })
    }

    /// Adds bytes to the open granule.
    fn take(&mut self, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.granule.place.end += bytes.len() as u64;
            open.checksum = crc32c::crc32c_append(open.checksum, bytes);
        }
    }

    /// Ends the granule that packets are added to.
    pub fn end_granule(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.end_quarter();
            let granule = open.granule;
            for shed in &granule.shed {
                self.pairs.key(Class::Shed, shed.key());
            }
            self.granules.push(granule);
        }
    }

    /// Takes in an enhanced packet block.
    #[inline]
    fn packet(&mut self, block: &[u8]) {
        let number = self.granules.len() as u64 + 1;
        let Some(open) = &mut self.open else { return };
        let granule = &mut open.granule;
        let Some((head, rest)) = block.split_first_chunk::<28>() else { return };
        let captured = u32_at(head, 20) as usize;
        let (Some(frame), Some(link)) =
            (rest.get(..captured), self.links.get(u32_at(head, 8) as usize))
        else {
            granule.opaque = true;
            return;
        };
        let time = u64::from(u32_at(head, 12)) << 32 | u64::from(u32_at(head, 16));
        let time_ns = i64::try_from(time).unwrap_or(i64::MAX);
        note_time(granule, time_ns);
        // Most packets have no options.
        if block.len() > 32 + captured.next_multiple_of(4) {
            note_options(granule, block, 28 + captured.next_multiple_of(4));
        }
        if *link == LinkType::ETHERNET
            && let Some(flow) = Flow::of(frame)
        {
            let known = &mut self.flows[flow.place()];
            let words = flow.in_granule(number);
            let quarter = 1 << (Flow::QUARTERS + granule.quarters.each().len() as u32);
            if is_same(known, &words) {
                if known[3] & quarter == 0 {
                    known[3] |= quarter;
                    self.pairs.addresses(&flow.keys());
                }
                return;
            }
            if flow.is_plain() {
                *known = words;
                known[3] |= quarter;
                return self.pairs.plain(&flow.keys());
            }
        }
        granule.opaque |= !header::keys(*link, frame, &mut self.pairs);
    }

    /// Takes in a packet of a file that is no segment, in the granule that begins at `offset`.
    pub fn foreign_packet(&mut self, offset: u64, packet: &ForeignPacket<'_>) {
        let granule = &mut self.open(offset).granule;
        note_time(granule, packet.time_ns);
        if packet.dropped > 0 {
            add_dropped(granule, packet.interface, packet.dropped);
        }
        let followed = header::keys(packet.link, packet.frame, &mut self.pairs);
        self.open(offset).granule.opaque |= !followed;
    }

    /// Has every question about this time come to the granule that begins at `offset`, because
    /// something else than packets tells of the time there.
    pub fn foreign_time(&mut self, offset: u64, first_ns: i64, last_ns: i64) {
        let granule = &mut self.open(offset).granule;
        granule.opaque = true;
        granule.first_ns = granule.first_ns.min(first_ns);
        granule.last_ns = granule.last_ns.max(last_ns);
    }

    /// Ends the granule that begins at `offset`, and has these bytes.
    pub fn foreign_granule(&mut self, offset: u64, bytes: &[u8]) {
        self.open(offset);
        self.take(bytes);
        self.covered += bytes.len() as u64;
        self.end_granule();
    }

    /// Returns whether the builder holds as much as a chunk should.
    pub fn is_full(&self) -> bool {
        self.covered >= CHUNK
            || self.pairs.most() >= PAIRS
            || self.granules.len() as u32 > Pairs::MOST_GRANULES / 2
    }

    /// Returns how many pairs of key and granule the fullest class has.
    pub fn pairs(&self) -> usize {
        self.pairs.most()
    }

    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// Returns what was taken in as a chunk of an index log, a multiple of a page long, and empties
    /// the builder.
    pub fn chunk(&mut self) -> Vec<u8> {
        self.end_granule();
        let mut bytes = Vec::new();
        let mut flush = |piece: &[u8], offset: u64| {
            let end = offset as usize + piece.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset as usize..end].copy_from_slice(piece);
            Ok(())
        };
        let granules = std::mem::take(&mut self.granules);
        let header = Header {
            number: self.name.number,
            began_s: self.name.began_s,
            segment_len: 0,
            summary: summary(&granules),
        };
        let kind = if self.ends.is_some() { EntryKind::CHECK } else { EntryKind::LOG };
        let mut draft = Draft::new(kind, &mut flush);
        let written: io::Result<u64> = granules
            .into_iter()
            .try_for_each(|granule| draft.granule(granule))
            .and_then(|()| {
                Class::ALL.into_iter().try_for_each(|class| self.class(&mut draft, class))
            })
            .and_then(|()| draft.finish(&header));
        debug_assert!(written.is_ok(), "memory takes it all");
        self.pairs.clear();
        self.flows.fill([0; 4]);
        self.covered = 0;
        bytes
    }

    fn class(&mut self, draft: &mut Draft<'_>, class: Class) -> io::Result<()> {
        // What an index is held against is exact.
        let most = if self.ends.is_some() { u64::MAX } else { self.covered / SHARE };
        let sorted = self.pairs.sorted(class);
        if class.width() > 2 && sorted.len() > FEW && cost(&sorted) > most {
            let mut hashed: Vec<u32> = (0..sorted.len())
                .filter_map(|i| sorted.get(i))
                .map(|(key, spot)| (hash(key) as u32) << 16 | spot.granule())
                .collect();
            hashed.sort_unstable();
            hashed.dedup();
            let hashed = Sorted::Short(&hashed);
            return write_class(draft, class, true, |i| hashed.get(i));
        }
        write_class(draft, class, false, |i| sorted.get(i))
    }
}

/// Returns what is known of some granules as a whole.
pub(super) fn summary(granules: &[Granule]) -> Summary {
    Summary {
        packets: granules.iter().map(|g| u64::from(g.packets)).sum(),
        first_ns: granules.iter().map(|g| g.first_ns).min().unwrap_or(i64::MAX),
        last_ns: granules.iter().map(|g| g.last_ns).max().unwrap_or(i64::MIN),
        dropped: 0,
        outside: 0,
        complete: false,
    }
}

/// Writes a class from its sorted pairs.
pub(super) fn write_class(
    draft: &mut Draft<'_>,
    class: Class,
    hashed: bool,
    pair: impl Fn(usize) -> Option<(u128, Spot)>,
) -> io::Result<()> {
    let mut at = 0;
    draft.class(class, hashed, |spots| {
        let Some((key, spot)) = pair(at) else { return Ok(None) };
        spots.push(spot);
        at += 1;
        while let Some((_, spot)) = pair(at).filter(|(next, _)| *next == key) {
            spots.push(spot);
            at += 1;
        }
        Ok(Some(key))
    })
}

/// Returns about how many bytes pairs take in a dictionary.
fn cost(sorted: &Sorted<'_>) -> u64 {
    let mut keys = 0;
    let mut last = None;
    for at in 0..sorted.len() {
        let key = sorted.get(at).map(|p| p.0);
        keys += u64::from(key != last);
        last = key;
    }
    // Each key takes what it does not share with the one before it, and two counts.
    4 * keys + 2 * sorted.len() as u64
}

/// Reads a number; in one load and with one test of the length, which by single bytes it would not
/// be.
#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four: &[u8; 4] = bytes[at..].first_chunk().expect("the caller has looked at the length");
    u32::from_ne_bytes(*four)
}

/// Returns the block that bytes begin with; `None` where they begin with no whole block. A packet's
/// block is long enough for its fields.
#[inline]
fn next_block(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.len() < 12 {
        return None;
    }
    let total = u32_at(bytes, 4) as usize;
    let least = if u32_at(bytes, 0) == pcapng::ENHANCED_PACKET { 32 } else { 12 };
    if total < least || !total.is_multiple_of(4) {
        return None;
    }
    bytes.get(..total)
}

#[inline]
fn note_time(granule: &mut Granule, time_ns: i64) {
    granule.packets += 1;
    granule.first_ns = granule.first_ns.min(time_ns);
    granule.last_ns = granule.last_ns.max(time_ns);
}

/// Takes in what the options of a packet block tell of losses and of what was shed.
fn note_options(granule: &mut Granule, block: &[u8], mut at: usize) {
    let half = |at: usize| u16::from_ne_bytes([block[at], block[at + 1]]);
    let mut dropped = 0;
    while at + 8 <= block.len() && half(at) != option::END {
        if half(at) == option::EPB_DROPCOUNT && at + 16 <= block.len() {
            dropped = u64::from(u32_at(block, at + 4)) | u64::from(u32_at(block, at + 8)) << 32;
        }
        match (half(at), half(at + 2)) {
            (option::EPB_SHED, 4) => {
                ShedOf::add(&mut granule.shed, u32_at(block, 8), u32_at(block, at + 4));
            }
            (option::EPB_SHED, 0) => {
                let rest = u32_at(block, 24).saturating_sub(u32_at(block, 20));
                ShedOf::add(&mut granule.shed, u32_at(block, 8), rest);
            }
            _ => {}
        }
        at += 4 + usize::from(half(at + 2)).next_multiple_of(4);
    }
    if dropped == 0 {
        return;
    }
    add_dropped(granule, u32_at(block, 8), dropped);
}

fn add_dropped(granule: &mut Granule, interface: u32, dropped: u64) {
    match granule.dropped.iter_mut().find(|(known, _)| *known == interface) {
        Some((_, packets)) => *packets += dropped,
        None => granule.dropped.push((interface, dropped)),
    }
}

/// Returns how many of the bytes are whole blocks.
fn whole_blocks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(block) = next_block(&bytes[at..]) {
        at += block.len();
    }
    at
}

/// Compares word by word, all but the quarters: the words have just been made, each by itself, and
/// a comparison of all at once would wait until they are in memory.
#[inline]
fn is_same(a: &[u64; 4], b: &[u64; 4]) -> bool {
    let quarters = 64 - Flow::QUARTERS;
    (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) << quarters == 0
}

/// What tells a packet's flow, as far as it is plain TCP or UDP in IPv4 without options: all that
/// such a packet has keys of. Only plain flows are remembered, so that a packet which has the same
/// words as a remembered one is plain, and nothing else of it must be looked at.
struct Flow {
    /// Destination and source MAC, EtherType, version and header length.
    ether: [u64; 2],
    addresses: u64,
    /// Below the ports' 32 bits, the protocol.
    ports: u64,
}

impl Flow {
    /// Returns the words of a frame, whatever it is; `None` for a fragment, and for a frame too
    /// short for a flow.
    #[inline]
    fn of(frame: &[u8]) -> Option<Self> {
        let head: &[u8; 38] = frame.first_chunk()?;
        let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
        // The fragment's offset, without the flags above it.
        if u16::from_be_bytes([head[20], head[21]]) & 0x1fff != 0 {
            return None;
        }
        // The type of service may change within a flow.
        let no_service = u64::from_ne_bytes([255, 255, 255, 255, 255, 255, 255, 0]);
        Some(Self {
            ether: [word(0), word(8) & no_service],
            addresses: word(26),
            ports: u64::from(u32_at(head, 34)) | u64::from(head[23]) << 32,
        })
    }

    /// Returns whether the packet is plain TCP or UDP in IPv4, and no tunnel can be in it.
    #[inline]
    fn is_plain(&self) -> bool {
        let ether = self.ether[1].to_ne_bytes();
        let protocol = (self.ports >> 32) as u8;
        let ports = (self.ports as u32).to_ne_bytes();
        let is_ipv4 = u16::from_be_bytes([ether[4], ether[5]]) == ether_type::IPV4;
        is_ipv4
            && ether[6] == 0x45
            && (protocol == ip_protocol::TCP
                || protocol == ip_protocol::UDP
                    && !header::is_udp_tunnel(u16::from_be_bytes([ports[2], ports[3]])))
    }

    /// Returns the keys of a plain flow's packet, all that [`header::keys`] finds in it.
    #[inline]
    fn keys(&self) -> PlainKeys {
        let (first, second) = (u64::from_be(self.ether[0]), u64::from_be(self.ether[1]));
        let addresses = u64::from_be(self.addresses);
        let ports = u32::from_be(self.ports as u32);
        PlainKeys {
            destination_mac: first >> 16,
            source_mac: (first & 0xffff) << 32 | second >> 32,
            protocol: (self.ports >> 32) as u8,
            source: (addresses >> 32) as u32,
            destination: addresses as u32,
            ports: [(ports >> 16) as u16, ports as u16],
        }
    }

    /// Above the number of the granule in the last word is a bit for each quarter of it in which
    /// the flow was seen.
    const QUARTERS: u32 = u64::BITS - Quarters::MOST as u32;

    /// Returns the flow's words as they are remembered of a granule, whose number is at least 1 and
    /// has 16 bits; without quarters.
    #[inline]
    fn in_granule(&self, number: u64) -> [u64; 4] {
        [self.ether[0], self.ether[1], self.addresses, self.ports | number << 40]
    }

    #[inline]
    fn place(&self) -> usize {
        let mixed =
            (self.addresses ^ self.ports.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ self.ether[0] ^ self.ether[1].rotate_left(17);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 53) as usize % FLOWS
    }
}
