//! Reading blocks: what each says, in either byte order, and whether it can be right.

use super::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, SECTION_HEADER,
    SIMPLE_PACKET, option,
};
use crate::link::LinkType;

/// Why a block could not be read. Offsets count from where the reader began.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// the file does not begin with a pcapng section header
    #[error("not a pcapng file: it does not begin with a section header")]
    NotPcapng,
    /// a block ends after the data does
    #[error("cut short: the block at {at} needs {needed} bytes, {have} are there")]
    CutShort { at: u64, needed: u64, have: u64 },
    /// a block contradicts itself
    #[error("damaged block at {at}: {what}")]
    Damaged { at: u64, what: &'static str },
}

/// A section header: the byte order and who wrote the section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    pub application: Option<String>,
    pub comment: Option<String>,
}

/// An interface description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub link: LinkType,
    pub snaplen: u32,
    pub name: Option<String>,
    pub description: Option<String>,
    pub filter: Option<String>,
    pub hardware: Option<String>,
    pub os: Option<String>,
    /// The value of `if_tsresol`; 6 (microseconds) where the option is absent.
    pub resolution: u8,
    /// The value of `if_tsoffset`, in seconds.
    pub offset_s: i64,
}

impl Interface {
    /// Returns a timestamp of this interface in nanoseconds since 1970, UTC; `None` where that does
    /// not fit.
    pub fn nanoseconds(&self, raw: u64) -> Option<i64> {
        nanoseconds(self.resolution, self.offset_s, raw)
    }
}

/// Returns a timestamp in nanoseconds since 1970, UTC, by the values of `if_tsresol` and
/// `if_tsoffset`.
pub fn nanoseconds(resolution: u8, offset_s: i64, raw: u64) -> Option<i64> {
    // Nearly all files have one of these resolutions. The result is that of the general case below,
    // without its wide division.
    const FACTORS: [u64; 10] =
        [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];
    let offset_ns = offset_s.checked_mul(1_000_000_000)?;
    if let Some(factor) = FACTORS.get(usize::from(resolution)) {
        return i64::try_from(raw.checked_mul(*factor)?).ok()?.checked_add(offset_ns);
    }
    let per_second: u128 = if resolution & 0x80 == 0 {
        10u128.checked_pow(u32::from(resolution))?
    } else {
        1u128.checked_shl(u32::from(resolution & 0x7f))?
    };
    let ns = u128::from(raw).checked_mul(1_000_000_000)? / per_second;
    i64::try_from(ns).ok()?.checked_add(offset_ns)
}

/// A packet: an enhanced or a simple packet block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketBlock<'a> {
    pub interface: u32,
    /// The time in the interface's resolution; 0 for a simple packet block, which has no time.
    pub timestamp: u64,
    pub original_len: u32,
    pub frame: &'a [u8],
    pub flags: u32,
    /// Number of packets lost between this packet and the one before it on the same interface.
    pub dropped: u64,
    /// Bytes of the frame that were given up because the ring was nearly full.
    pub shed: u32,
}

/// An interface statistics block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub interface: u32,
    pub timestamp: u64,
    /// The values of `isb_starttime` and `isb_endtime`.
    pub start: Option<u64>,
    pub end: Option<u64>,
    pub received: Option<u64>,
    pub interface_dropped: Option<u64>,
    pub accepted: Option<u64>,
    pub dropped: Option<u64>,
    pub delivered: Option<u64>,
    pub comment: Option<String>,
}

/// One block of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Section(Section),
    Interface(Interface),
    Packet(PacketBlock<'a>),
    Statistics(Statistics),
    /// Any other block, by its type.
    Other(u32),
}

/// Reads a pcapng file or a piece of one, block by block.
///
/// All of it lies in memory: in a mapping, or in a window that the caller moves. A fault ends the
/// reading, and [`Reader::offset`] is then where the last good block ends.
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    blocks: Blocks,
    failed: bool,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0, blocks: Blocks::default(), failed: false }
    }

    /// Reads blocks from inside a section that this machine has written, without a section header
    /// before them, as a ring holds them.
    pub fn inside(data: &'a [u8]) -> Self {
        Self { data, at: 0, blocks: Blocks { begun: true, ..Blocks::default() }, failed: false }
    }

    /// Where the next block begins.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    fn block(&mut self) -> Result<Record<'a>, Error> {
        let at = self.at as u64;
        let rest = &self.data[self.at..];
        let short =
            |needed: usize| Error::CutShort { at, needed: needed as u64, have: rest.len() as u64 };
        let Some(head) = rest.first_chunk() else {
            return Err(short(HEAD));
        };
        let (kind, total) = self.blocks.head(at, head)?;
        if total > rest.len() {
            return Err(short(total));
        }
        let (body, tail) = rest[8..total].split_at(total - 12);
        self.blocks.tail(at, total, tail)?;
        let record = self.blocks.record(kind, body).map_err(|what| Error::Damaged { at, what })?;
        self.at += total;
        Ok(record)
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.at == self.data.len() {
            return None;
        }
        let record = self.block();
        self.failed = record.is_err();
        Some(record)
    }
}

/// Bytes of a block that must be there before anything can be said about the block: its type, its
/// length, and, of a section header, the byte order mark.
pub(crate) const HEAD: usize = 12;

/// Reads blocks one by one, wherever they lie, and keeps what a block says about those that follow
/// it in its section.
#[derive(Default)]
pub(crate) struct Blocks {
    swapped: bool,
    /// Snap length of the section's first interface, which simple packets belong to; 0 for no
    /// limit.
    snaplen: Option<u32>,
    /// A section header was read.
    begun: bool,
}

impl Blocks {
    fn u16(&self, b: &[u8]) -> u16 {
        let v = u16::from_ne_bytes([b[0], b[1]]);
        if self.swapped { v.swap_bytes() } else { v }
    }

    fn u32(&self, b: &[u8]) -> u32 {
        let v = u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        if self.swapped { v.swap_bytes() } else { v }
    }

    fn u64(&self, b: &[u8]) -> u64 {
        let v = u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        if self.swapped { v.swap_bytes() } else { v }
    }

    fn time(&self, b: &[u8]) -> u64 {
        u64::from(self.u32(b)) << 32 | u64::from(self.u32(&b[4..]))
    }

    /// Reads the type and the whole length of the block at `at`, which begins with `head`. The
    /// length is at least [`HEAD`]. If the block is a section header, its byte order holds from
    /// here on.
    pub(crate) fn head(&mut self, at: u64, head: &[u8; HEAD]) -> Result<(u32, usize), Error> {
        let damaged = |what| Error::Damaged { at, what };
        // The section header's type reads the same in both byte orders.
        if self.u32(head) == SECTION_HEADER {
            let magic = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
            self.swapped = match magic {
                BYTE_ORDER_MAGIC => false,
                m if m == BYTE_ORDER_MAGIC.swap_bytes() => true,
                _ => return Err(damaged("the byte order mark is neither order's")),
            };
            self.begun = true;
        }
        if !self.begun {
            return Err(Error::NotPcapng);
        }
        let total = self.u32(&head[4..]) as usize;
        if total < HEAD || !total.is_multiple_of(4) {
            return Err(damaged("its length is less than 12 or no multiple of 4"));
        }
        Ok((self.u32(head), total))
    }

    /// Returns how long the next block says it is, if that is there. Where the block begins a
    /// section of another byte order, that is wrong.
    pub(crate) fn len(&self, bytes: &[u8]) -> Option<usize> {
        Some(self.u32(bytes.get(4..8)?) as usize)
    }

    /// Checks the last 4 bytes of the block at `at`, which repeat its length.
    pub(crate) fn tail(&self, at: u64, total: usize, tail: &[u8]) -> Result<(), Error> {
        if self.u32(tail) as usize == total {
            return Ok(());
        }
        Err(Error::Damaged { at, what: "its two lengths differ" })
    }

    /// Reads a block whose type is `kind`, and whose bytes between its two lengths are `body`.
    pub(crate) fn record<'a>(
        &mut self,
        kind: u32,
        body: &'a [u8],
    ) -> Result<Record<'a>, &'static str> {
        let record = match kind {
            SECTION_HEADER => self.section(body),
            INTERFACE_DESCRIPTION => self.interface(body),
            ENHANCED_PACKET => self.packet(body).map(Record::Packet),
            SIMPLE_PACKET => self.simple(body),
            INTERFACE_STATISTICS => self.statistics(body),
            other => Ok(Record::Other(other)),
        }?;
        match &record {
            Record::Section(_) => self.snaplen = None,
            Record::Interface(interface) => _ = self.snaplen.get_or_insert(interface.snaplen),
            _ => {}
        }
        Ok(record)
    }

    /// Reads the body of an obsolete packet block (appendix A), which differs from an enhanced
    /// packet block in its first word: that holds a shorter interface id and a count of drops.
    pub(crate) fn obsolete<'a>(&self, body: &'a [u8]) -> Result<PacketBlock<'a>, &'static str> {
        const UNKNOWN: u16 = 0xffff;
        let packet = self.packet(body)?;
        let dropped = match self.u16(&body[2..]) {
            UNKNOWN => 0,
            count => u64::from(count),
        };
        Ok(PacketBlock { interface: u32::from(self.u16(body)), dropped, ..packet })
    }

    /// Returns the length of the FCS in bytes, as `if_fcslen` has it in the body of an interface
    /// description that [`Blocks::record`] has read; 0 where the option is absent. The
    /// specification's text says bits and its example says bytes, so a number too large for
    /// `epb_flags`, which counts bytes in four bits, is taken for bits.
    pub(crate) fn fcs_len(&self, body: &[u8]) -> u32 {
        let fcs = |(code, value): (u16, &[u8])| {
            (code == option::IF_FCSLEN && value.len() == 1).then(|| u32::from(value[0]))
        };
        match self.options(&body[8..]).flatten().find_map(fcs).unwrap_or(0) {
            bytes @ ..16 => bytes,
            bits => bits / 8,
        }
    }

    fn section<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, &'static str> {
        if body.len() < 16 {
            return Err("a section header of less than 28 bytes");
        }
        let mut section = Section::default();
        for option in self.options(&body[16..]) {
            let (code, value) = option?;
            match code {
                option::COMMENT => section.comment = Some(text(value)),
                option::SHB_USERAPPL => section.application = Some(text(value)),
                _ => {}
            }
        }
        Ok(Record::Section(section))
    }

    fn interface<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, &'static str> {
        if body.len() < 8 {
            return Err("an interface description of less than 20 bytes");
        }
        let mut interface = Interface {
            link: LinkType(self.u16(body)),
            snaplen: self.u32(&body[4..]),
            name: None,
            description: None,
            filter: None,
            hardware: None,
            os: None,
            resolution: 6,
            offset_s: 0,
        };
        for option in self.options(&body[8..]) {
            let (code, value) = option?;
            match code {
                option::IF_NAME => interface.name = Some(text(value)),
                option::IF_DESCRIPTION => interface.description = Some(text(value)),
                option::IF_HARDWARE => interface.hardware = Some(text(value)),
                option::IF_OS => interface.os = Some(text(value)),
                option::IF_FILTER if value.first() == Some(&0) => {
                    interface.filter = Some(text(&value[1..]));
                }
                option::IF_TSRESOL if value.len() == 1 => interface.resolution = value[0],
                option::IF_TSOFFSET if value.len() == 8 => {
                    interface.offset_s = self.u64(value) as i64;
                }
                _ => {}
            }
        }
        Ok(Record::Interface(interface))
    }

    fn packet<'a>(&self, body: &'a [u8]) -> Result<PacketBlock<'a>, &'static str> {
        if body.len() < 20 {
            return Err("a packet block of less than 32 bytes");
        }
        let captured = self.u32(&body[12..]) as usize;
        let data = &body[20..];
        if captured > data.len() {
            return Err("the captured length passes the block's end");
        }
        let mut packet = PacketBlock {
            interface: self.u32(body),
            timestamp: self.time(&body[4..]),
            original_len: self.u32(&body[16..]),
            frame: &data[..captured],
            flags: 0,
            dropped: 0,
            shed: 0,
        };
        let padded = captured.next_multiple_of(4).min(data.len());
        for option in self.options(&data[padded..]) {
            let (code, value) = option?;
            match code {
                option::EPB_FLAGS if value.len() == 4 => packet.flags = self.u32(value),
                option::EPB_DROPCOUNT if value.len() == 8 => packet.dropped = self.u64(value),
                option::EPB_SHED if value.len() == 4 => packet.shed = self.u32(value),
                option::EPB_SHED if value.is_empty() => {
                    packet.shed = packet.original_len.saturating_sub(captured as u32);
                }
                _ => {}
            }
        }
        Ok(packet)
    }

    fn simple<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, &'static str> {
        if body.len() < 4 {
            return Err("a simple packet block of less than 16 bytes");
        }
        let original_len = self.u32(body);
        // The block does not say how many of its bytes are padding, where the frame was cut.
        let kept = self.snaplen.filter(|s| *s != 0).unwrap_or(u32::MAX);
        let captured = (original_len.min(kept) as usize).min(body.len() - 4);
        Ok(Record::Packet(PacketBlock {
            interface: 0,
            timestamp: 0,
            original_len,
            frame: &body[4..4 + captured],
            flags: 0,
            dropped: 0,
            shed: 0,
        }))
    }

    fn statistics<'a>(&self, body: &'a [u8]) -> Result<Record<'a>, &'static str> {
        if body.len() < 12 {
            return Err("a statistics block of less than 24 bytes");
        }
        let mut statistics = Statistics {
            interface: self.u32(body),
            timestamp: self.time(&body[4..]),
            ..Statistics::default()
        };
        for option in self.options(&body[12..]) {
            let (code, value) = option?;
            if code == option::COMMENT {
                statistics.comment = Some(text(value));
            }
            if value.len() != 8 {
                continue;
            }
            let number = Some(self.u64(value));
            match code {
                option::ISB_STARTTIME => statistics.start = Some(self.time(value)),
                option::ISB_ENDTIME => statistics.end = Some(self.time(value)),
                option::ISB_IFRECV => statistics.received = number,
                option::ISB_IFDROP => statistics.interface_dropped = number,
                option::ISB_FILTERACCEPT => statistics.accepted = number,
                option::ISB_OSDROP => statistics.dropped = number,
                option::ISB_USRDELIV => statistics.delivered = number,
                _ => {}
            }
        }
        Ok(Record::Statistics(statistics))
    }

    /// Iterates over the options of a block, up to the end mark or the block's end.
    fn options<'a>(
        &self,
        mut bytes: &'a [u8],
    ) -> impl Iterator<Item = Result<(u16, &'a [u8]), &'static str>> {
        std::iter::from_fn(move || {
            if bytes.len() < 4 {
                return None;
            }
            let code = self.u16(bytes);
            let len = usize::from(self.u16(&bytes[2..]));
            if code == option::END {
                return None;
            }
            let Some(value) = bytes.get(4..4 + len) else {
                bytes = &[];
                return Some(Err("an option passes the block's end"));
            };
            bytes = bytes.get(4 + len.next_multiple_of(4)..).unwrap_or(&[]);
            Some(Ok((code, value)))
        })
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}
