//! One segment while it is written, and what can be said of one from its ends.

use std::fs;
use std::io::{self, BufReader, IoSlice, Read, Seek, SeekFrom};
use std::path::Path;

use tapdeck_packet::pcapng::{
    self, InterfaceDescription, Reader, Record, Statistics, StatisticsBlock,
};

use crate::format::name::SegmentName;
use crate::io::{File, PAGE, Page, read_at};
use crate::writing::writer::InterfaceBlock;

/// Says in each segment's header which program wrote it.
pub const APPLICATION: &str = concat!("tapdeck ", env!("CARGO_PKG_VERSION"));
pub(crate) const APPLICATION_PREFIX: &str = "tapdeck ";

/// A segment being written. It is a valid pcapng file up to [`Live::end`] at any time.
pub(crate) struct Live<F> {
    pub name: SegmentName,
    file: F,
    /// Where the next block goes; a multiple of the page size.
    end: u64,
    pub began_ns: u64,
    /// Packets of each interface in it.
    pub packets: Vec<u64>,
    scratch: Vec<Page>,
    /// A write failed, and left behind `end` nobody knows what.
    torn: bool,
}

impl<F: File> Live<F> {
    /// Writes a segment's head into an empty file.
    pub fn begin(
        file: F,
        name: SegmentName,
        began_ns: u64,
        interfaces: &[InterfaceDescription],
        comment: Option<&str>,
    ) -> io::Result<Self> {
        let mut head = Vec::new();
        pcapng::section_header(&mut head, std::env::consts::OS, APPLICATION, comment);
        for interface in interfaces {
            pcapng::interface_description(&mut head, interface);
        }
        let packets = vec![0; interfaces.len()];
        let scratch = Vec::new();
        let mut live = Self { name, file, end: 0, began_ns, packets, scratch, torn: false };
        live.append(head)?;
        Ok(live)
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// What a batch of blocks takes on disk.
    pub fn cost(piece: &InterfaceBlock<'_>) -> u64 {
        filled(piece.block.bytes.len()) as u64
    }

    /// Writes blocks as they lie, each followed by filling up to the next page.
    ///
    /// Gives back how many are wholly written. After an error or a short write the file may hold a
    /// torn block behind [`Live::end`], so nothing more may be written; [`Live::close`] cuts it
    /// off.
    pub fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> (usize, io::Result<()>) {
        let tails: Vec<(usize, usize)> = batch
            .iter()
            .map(|p| {
                let whole = p.block.bytes.len() / PAGE * PAGE;
                (whole, (filled(p.block.bytes.len()) - whole) / PAGE)
            })
            .collect();
        self.scratch.resize(tails.iter().map(|t| t.1).sum(), Page::default());
        let mut pages = self.scratch.iter_mut();
        for (piece, (whole, count)) in batch.iter().zip(&tails) {
            let mut tail = piece.block.bytes[*whole..].to_vec();
            fill_up(&mut tail);
            for chunk in tail.chunks_exact(PAGE).take(*count) {
                if let Some(page) = pages.next() {
                    page.0.copy_from_slice(chunk);
                }
            }
        }
        let mut pages = self.scratch.iter();
        let mut slices = Vec::with_capacity(batch.len() * 3);
        for (piece, (whole, count)) in batch.iter().zip(&tails) {
            if *whole > 0 {
                slices.push(IoSlice::new(&piece.block.bytes[..*whole]));
            }
            slices.extend(pages.by_ref().take(*count).map(|page| IoSlice::new(&page.0)));
        }
        let wrote = write_all(&self.file, &slices, self.end);
        self.torn = wrote.is_err();
        let (mut bytes, result) = match wrote {
            Ok(n) => (n, Ok(())),
            Err((n, e)) => (n, Err(e)),
        };
        let mut written = 0;
        for piece in batch {
            let cost = Self::cost(piece);
            if bytes < cost {
                break;
            }
            bytes -= cost;
            self.end += cost;
            piece.each_interface(|interface, packets, _| {
                if let Some(counted) = self.packets.get_mut(interface) {
                    *counted += packets;
                }
            });
            written += 1;
        }
        (written, result)
    }

    fn append(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        fill_up(&mut bytes);
        write_pages(&self.file, &bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Ends the segment with statistics, cuts what is torn or was set aside behind its end, and
    /// makes it durable. `statistics` is empty where the file must not be written any more.
    pub fn close(mut self, statistics: &[StatisticsBlock]) -> io::Result<(SegmentName, u64)> {
        if self.torn {
            // On a full disk that is the room which the statistics need.
            self.file.set_len(self.end)?;
        }
        let mut tail = Vec::new();
        for s in statistics {
            pcapng::statistics(&mut tail, s);
        }
        let told = if tail.is_empty() { Ok(()) } else { self.append(tail) };
        // Where the tail cannot be written, the packets before it still count.
        self.file.set_len(self.end)?;
        self.file.sync()?;
        told?;
        Ok((self.name, self.end))
    }
}

/// What the statistics at a segment's end take on disk.
pub(crate) fn statistics_cost(interfaces: usize) -> u64 {
    let mut one = Vec::new();
    pcapng::statistics(&mut one, &StatisticsBlock::default());
    filled(one.len() * interfaces) as u64
}

/// A block's length on disk: with filling up to a page, for which at least
/// [`pcapng::MIN_FILL`] bytes are needed if any.
pub(crate) fn filled(len: usize) -> usize {
    let page = len.next_multiple_of(PAGE);
    if page != len && page - len < pcapng::MIN_FILL { page + PAGE } else { page }
}

/// Fills up to a multiple of a page.
pub(crate) fn fill_up(bytes: &mut Vec<u8>) {
    let gap = filled(bytes.len()) - bytes.len();
    if gap > 0 {
        pcapng::fill(bytes, gap);
    }
}

/// Writes whole pages from any memory.
pub(crate) fn write_pages<F: File>(file: &F, bytes: &[u8], offset: u64) -> io::Result<()> {
    /// Pages in one call: fewer than the slices that writev(2) takes.
    const PAGES: usize = 256;
    let mut pages = vec![Page::default(); PAGES.min(bytes.len() / PAGE)];
    let mut at = offset;
    for part in bytes.chunks(PAGES * PAGE) {
        let pages = &mut pages[..part.len() / PAGE];
        for (page, chunk) in pages.iter_mut().zip(part.chunks_exact(PAGE)) {
            page.0.copy_from_slice(chunk);
        }
        let slices: Vec<IoSlice<'_>> = pages.iter().map(|p| IoSlice::new(&p.0)).collect();
        at += write_all(file, &slices, at).map_err(|(_, e)| e)?;
    }
    Ok(())
}

/// Writes all of it; an error says how many bytes were written before.
fn write_all<F: File>(
    file: &F,
    slices: &[IoSlice<'_>],
    offset: u64,
) -> Result<u64, (u64, io::Error)> {
    let total: usize = slices.iter().map(|s| s.len()).sum();
    let mut done = 0;
    // Writes of less than a page that are put up with.
    let mut tries = 100;
    while done < total {
        // Where a call wrote less than all, go on behind it, at a page's border.
        let mut skip = done;
        let mut rest = Vec::with_capacity(slices.len());
        for slice in slices {
            if skip >= slice.len() {
                skip -= slice.len();
            } else {
                rest.push(IoSlice::new(&slice[skip..]));
                skip = 0;
            }
        }
        let wrote = match file.write_at(&rest, offset + done as u64) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::WriteZero)),
            other => other,
        };
        match wrote {
            Ok(n) if n % PAGE == 0 || done + n == total => done += n,
            // Direct I/O cannot go on in the middle of a page.
            Ok(n) if n >= PAGE => done += n / PAGE * PAGE,
            Ok(_) if tries > 1 => tries -= 1,
            Ok(_) => return Err((done as u64, io::ErrorKind::WriteZero.into())),
            Err(e) => return Err((done as u64, e)),
        }
    }
    Ok(done as u64)
}

/// Whether a file begins as a segment of this program does.
pub(crate) fn is_ours(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|file| begins_as_ours(&file))
}

pub(crate) fn begins_as_ours(file: &fs::File) -> bool {
    let mut head = vec![0; 4096];
    let Ok(have) = read_at(file, &mut head, 0) else { return false };
    head.truncate(have);
    match Reader::new(&head).next() {
        Some(Ok(Record::Section(s))) => {
            s.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX))
        }
        _ => false,
    }
}

/// Packets in a segment: from the statistics at its end, or counted where there are none, as in a
/// segment that was not closed.
pub(crate) fn packets_in(path: &Path) -> u64 {
    packets_told(path).unwrap_or_else(|| packets_readable(path).unwrap_or(0))
}

/// Packets up to the first block that is torn.
fn packets_readable(path: &Path) -> io::Result<u64> {
    let file = fs::File::open(path)?;
    let mut left = file.metadata()?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut packets = 0;
    let mut head = [0; 8];
    while left >= pcapng::MIN_FILL as u64 {
        file.read_exact(&mut head)?;
        let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let total = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        if total < pcapng::MIN_FILL as u32 || u64::from(total) > left {
            break;
        }
        packets += u64::from(kind == pcapng::ENHANCED_PACKET);
        file.seek_relative(i64::from(total) - head.len() as i64)?;
        left -= u64::from(total);
    }
    Ok(packets)
}

/// Packets that the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn packets_told(path: &Path) -> Option<u64> {
    statistics_told(path)?.iter().map(|s| s.delivered).sum()
}

/// Losses that the statistics at a segment's end tell; `None` where none stand there.
pub(crate) fn dropped_told(path: &Path) -> Option<u64> {
    Some(statistics_told(path)?.iter().filter_map(|s| s.dropped).sum())
}

pub(crate) fn statistics_told(path: &Path) -> Option<Vec<Statistics>> {
    end_of(path).map(|(told, _)| told)
}

/// Where the statistics at a segment's end begin; `None` where none stand there.
pub(crate) fn body_end(path: &Path) -> Option<u64> {
    end_of(path).map(|(_, at)| at)
}

/// The statistics at a segment's end, and where they begin.
fn end_of(path: &Path) -> Option<(Vec<Statistics>, u64)> {
    const WINDOW: u64 = 1 << 20;
    let mut file = fs::File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let start = len.saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(WINDOW).read_to_end(&mut tail).ok()?;

    // Backwards by the lengths at the blocks' ends, past filling, until a packet.
    let mut end = tail.len();
    let (mut told, mut begin) = (Vec::new(), 0);
    loop {
        let word = tail.get(end.checked_sub(4)?..end)?;
        let total = u32::from_ne_bytes(word.try_into().ok()?) as usize;
        let block = tail.get(end.checked_sub(total)?..end)?;
        let kind = u32::from_ne_bytes(block.get(..4)?.try_into().ok()?);
        match kind {
            pcapng::INTERFACE_STATISTICS => {
                told.push(statistics_of(block)?);
                begin = start + (end - total) as u64;
            }
            pcapng::FILL => {}
            _ => return (!told.is_empty()).then_some((told, begin)),
        }
        end -= total;
    }
}

fn statistics_of(block: &[u8]) -> Option<Statistics> {
    // The reader wants a section header first.
    let mut section = Vec::new();
    pcapng::section_header(&mut section, "", "", None);
    section.extend(block);
    match Reader::new(&section).nth(1)? {
        Ok(Record::Statistics(s)) => Some(s),
        _ => None,
    }
}
