//! How is a segment written? Blocks go behind its end as they lie in the rings, and it is a valid
//! pcapng file at any time.
//!
//! When a segment is full, and what comes after it, is not known here: that is the
//! [sink's](super::segment_sink) business.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};

use super::durability::Durability;
use super::writer::InterfaceBlock;
use crate::format::cutoff;
use crate::format::name::SegmentName;
use crate::format::segment::{APPLICATION, fill_up, filled};
use crate::format::unseen::UnseenSpan;
use crate::io::{File, PAGE, Page, write_all, write_pages};

/// What closing a segment came to.
pub(crate) struct Ending {
    /// Whether the statistics are written.
    pub told: io::Result<()>,
    /// Whether the file ends where its last block does.
    pub cut: io::Result<()>,
    /// Whether all that was written is durable.
    pub durable: io::Result<()>,
}

/// A segment being written. It is a valid pcapng file up to [`LiveSegment::end`] at any time.
pub(crate) struct LiveSegment<F> {
    pub name: SegmentName,
    file: Arc<F>,
    /// How much of the segment is durable.
    pub durability: Arc<Durability>,
    /// Where the next block goes; a multiple of the page size.
    end: u64,
    pub began_ns: u64,
    /// Packets in the segment, by interface.
    pub packets: Vec<u64>,
    /// When packets were last written, or the segment began, as time since the machine's start.
    pub written_at: Duration,
    scratch: Vec<Page>,
    /// A write failed, nobody knows what it left behind `end`, and that could not be cut off.
    torn: bool,
}

impl<F: File> LiveSegment<F> {
    /// Writes a segment's head into an empty file.
    pub fn begin(
        file: Arc<F>,
        durability: Arc<Durability>,
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
        let mut live = Self {
            name,
            file,
            durability,
            end: 0,
            began_ns,
            packets,
            written_at: Duration::ZERO,
            scratch: Vec::new(),
            torn: false,
        };
        live.append(head)?;
        Ok(live)
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// Tells at the beginning of the segment, before any packet, that packets went unseen.
    ///
    /// After an error nothing more may be written, as after one of [`LiveSegment::write`].
    pub fn tell_unseen(&mut self, spans: &[UnseenSpan]) -> io::Result<()> {
        let mut blocks = Vec::new();
        for span in spans {
            pcapng::statistics(&mut blocks, &span.block());
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let told = self.append(blocks);
        self.torn |= told.is_err() && self.file.set_len(self.end).is_err();
        told
    }

    /// Returns how many bytes blocks take on disk, with the fill behind them.
    pub fn disk_len(piece: &InterfaceBlock<'_>) -> u64 {
        filled(piece.block.bytes.len()) as u64
    }

    /// Writes blocks as they lie, each followed by filling up to the next page.
    ///
    /// Returns how many are wholly written. After an error nothing more may be written. What is
    /// torn behind [`LiveSegment::end`] is cut off at once: it may hold whole packets, which
    /// another segment will hold as well, and whoever goes on when this process has died could not
    /// tell. Where that fails, [`LiveSegment::close`] tries it again.
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
        let wrote = write_all(&*self.file, &slices, self.end);
        let (mut bytes, result) = match wrote {
            Ok(n) => (n, Ok(())),
            Err((n, e)) => (n, Err(e)),
        };
        let mut written = 0;
        for piece in batch {
            let disk_len = Self::disk_len(piece);
            if bytes < disk_len {
                break;
            }
            bytes -= disk_len;
            self.end += disk_len;
            piece.each_interface(|interface, packets, frame_bytes| {
                if let Some(counted) = self.packets.get_mut(interface) {
                    *counted += packets;
                }
                self.durability.wrote_packets(interface, packets, frame_bytes);
            });
            self.durability.wrote_bytes(disk_len);
            written += 1;
        }
        self.torn = result.is_err() && self.file.set_len(self.end).is_err();
        (written, result)
    }

    fn append(&mut self, mut bytes: Vec<u8>) -> io::Result<()> {
        fill_up(&mut bytes);
        write_pages(&*self.file, &bytes, self.end)?;
        self.end += bytes.len() as u64;
        self.durability.wrote_bytes(bytes.len() as u64);
        Ok(())
    }

    /// Ends the segment with statistics, cuts what is torn or was set aside behind its end, and
    /// makes it durable. `statistics` is empty where the file must not be written any more.
    pub fn close(mut self, statistics: &[StatisticsBlock]) -> Ending {
        // On a full disk this makes the room that the statistics need.
        let mended = if self.torn { self.file.set_len(self.end) } else { Ok(()) };
        let mut tail = Vec::new();
        for s in statistics {
            pcapng::statistics(&mut tail, s);
        }
        let told = mended.and_then(|()| if tail.is_empty() { Ok(()) } else { self.append(tail) });
        // Where the statistics cannot be written, the packets before them still count.
        let cut = self.file.set_len(self.end);
        Ending { told, cut, durable: self.durability.end() }
    }
}

/// Returns how many bytes the statistics at a segment's end take on disk.
pub(crate) fn statistics_disk_len(interfaces: usize) -> u64 {
    let mut one = Vec::new();
    let comment = Some(" ".repeat(cutoff::LONGEST));
    pcapng::statistics(&mut one, &StatisticsBlock { comment, ..StatisticsBlock::default() });
    filled(one.len() * interfaces) as u64
}
