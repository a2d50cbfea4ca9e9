//! How is one pcapng file or pipe written? Blocks go out as they come, without fill and without an
//! index; statistics end it. A failed write is its end, since no other file follows: a file is then
//! cut behind its last whole block, so that what can be read from it is what was counted.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_packet::ring::Cut;
use tapdeck_packet::watch::waiting_for_disk;

use crate::format::cutoff::tell_cut;
use crate::format::segment::APPLICATION;
use crate::format::unseen::UnseenSpan;
use crate::io::Disk;
use crate::writing::control::Done;
use crate::writing::durability::{Durability, SyncCall, Syncer, sync_directory};
use crate::writing::totals::Totals;
use crate::writing::writer::{InterfaceBlock, Sink, SinkOutcome};

/// Writes a single pcapng section to anything that takes bytes.
pub struct StreamSink<W> {
    out: W,
    /// The same as `out`, where that is a file that can be cut.
    file: Option<File>,
    /// How much of the file is durable, and the thread that makes it so.
    durability: Option<(Arc<Durability>, Syncer)>,
    /// Where the next block goes: behind the last whole one.
    end: u64,
    totals: Arc<Totals>,
    packets: Vec<u64>,
    began_ns: u64,
    now_ns: Box<dyn Fn() -> u64 + Send>,
    failed: bool,
    comment: Option<String>,
    /// Descriptions of interfaces that came, to stand before the next block.
    descriptions: Vec<u8>,
}

impl<W: Write + Send> StreamSink<W> {
    /// Begins a section: writes its header and the interface descriptions.
    pub fn new(
        mut out: W,
        interfaces: &[InterfaceDescription],
        totals: Arc<Totals>,
        now_ns: Box<dyn Fn() -> u64 + Send>,
    ) -> io::Result<Self> {
        let mut head = Vec::new();
        pcapng::section_header(&mut head, std::env::consts::OS, APPLICATION, None);
        for interface in interfaces {
            pcapng::interface_description(&mut head, interface);
        }
        out.write_all(&head)?;
        out.flush()?;
        Totals::add(&totals.bytes_written, head.len() as u64);
        Ok(Self {
            out,
            file: None,
            durability: None,
            end: head.len() as u64,
            totals,
            packets: vec![0; interfaces.len()],
            began_ns: now_ns(),
            now_ns,
            failed: false,
            comment: None,
            descriptions: Vec::new(),
        })
    }
}

impl StreamSink<File> {
    /// Begins a section in a file that is open at its beginning, or in a pipe.
    pub fn of_file(
        out: File,
        interfaces: &[InterfaceDescription],
        totals: Arc<Totals>,
        now_ns: Box<dyn Fn() -> u64 + Send>,
    ) -> io::Result<Self> {
        let file = if out.metadata()?.is_file() { Some(out.try_clone()?) } else { None };
        Ok(Self { file, ..Self::new(out, interfaces, totals, now_ns)? })
    }

    /// Makes what is written durable within an interval, and everything in the end. `dir` is the
    /// directory that the file has its name in, if it has one. To a pipe this does nothing.
    pub fn sync_every(self, interval: Duration, dir: Option<PathBuf>) -> io::Result<Self> {
        let Some(file) = &self.file else { return Ok(self) };
        let file = file.try_clone()?;
        let disk = Disk::new(false);
        let sync_name = move || dir.as_deref().map_or(Ok(()), |dir| sync_directory(&disk, dir));
        self.sync_by(interval, Box::new(move || file.sync_data()), Box::new(sync_name))
    }

    /// Does as [`StreamSink::sync_every`] does, by these calls for contents and name.
    #[doc(hidden)]
    pub fn sync_by(
        mut self,
        interval: Duration,
        sync_contents: SyncCall,
        sync_name: SyncCall,
    ) -> io::Result<Self> {
        // Interfaces may come while it is written.
        let (totals, interfaces) = (self.totals.clone(), self.totals.interfaces.len());
        let durability = Durability::new(sync_contents, sync_name, totals, interfaces);
        let durability = Arc::new(durability);
        durability.wrote_bytes(self.end);
        let syncer = Syncer::start(interval, self.totals.clone())?;
        syncer.begin(durability.clone());
        self.durability = Some((durability, syncer));
        Ok(self)
    }
}

impl<W: Write + Send> StreamSink<W> {
    /// Makes all that was written durable. Where that fails, what may be lost counts as not
    /// written, and the file is left as it is.
    fn settle(&mut self) -> io::Result<()> {
        let Some((durability, _)) = self.durability.take() else { return Ok(()) };
        let done = durability.end().and_then(|()| durability.keep_name());
        if done.is_err() {
            let unsure = durability.unsure();
            self.totals.take_back(&unsure.packets, &unsure.frame_bytes);
            self.failed = true;
            self.file = None;
        }
        done
    }

    /// Cuts what a failed write left behind the last whole block. Returns whether more can be
    /// written there: what cannot be cut stays torn.
    fn mend(&mut self) -> bool {
        let Some(file) = &mut self.file else { return false };
        file.set_len(self.end).is_ok() && file.seek(SeekFrom::Start(self.end)).is_ok()
    }
}

impl<W: Write + Send> Sink for StreamSink<W> {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> SinkOutcome {
        if self.durability.as_ref().is_some_and(|(durability, _)| durability.has_failed())
            && let Err(e) = self.settle()
        {
            return SinkOutcome::Failed(0, e);
        }
        if let Err(e) = self.write_descriptions() {
            self.failed = true;
            return ended_by(0, e);
        }
        for (i, piece) in batch.iter().enumerate() {
            if let Err(e) = waiting_for_disk(|| self.out.write_all(piece.block.bytes)) {
                // A part of a block may have been written; nothing can follow it.
                self.failed = true;
                return ended_by(i, e);
            }
            let durability = self.durability.as_ref().map(|(durability, _)| durability);
            piece.each_interface(|interface, packets, frame_bytes| {
                if let Some(counted) = self.packets.get_mut(interface) {
                    *counted += packets;
                }
                if let Some(durability) = durability {
                    durability.wrote_packets(interface, packets, frame_bytes);
                }
            });
            self.wrote(piece.block.bytes.len());
        }
        SinkOutcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {
        self.comment = Some("the clock was stepped while this was recorded".into());
    }

    fn tell_unseen(&mut self, spans: Vec<UnseenSpan>) {
        if self.failed {
            return;
        }
        let described = std::mem::take(&mut self.descriptions);
        let mut blocks = described.clone();
        for span in &spans {
            pcapng::statistics(&mut blocks, &span.block());
        }
        if waiting_for_disk(|| self.out.write_all(&blocks)).is_ok() {
            self.wrote(blocks.len());
        } else {
            // The next packet finds what is wrong with the output.
            self.failed = !self.mend();
            self.descriptions = described;
        }
    }

    /// Describes interfaces that came behind what was written: a file has no segments.
    fn begin_segment(&mut self, interfaces: Option<Vec<InterfaceDescription>>, done: Done) {
        for interface in interfaces.iter().flatten().skip(self.packets.len()) {
            pcapng::interface_description(&mut self.descriptions, interface);
            self.packets.push(0);
        }
        done();
    }

    fn tick(&mut self, _: &[u64]) {}

    fn finish(&mut self, lost: &[u64]) -> io::Result<()> {
        let ended = self.write_end(lost);
        ended.and(self.settle())
    }
}

impl<W: Write + Send> StreamSink<W> {
    /// Describes the interfaces that came and are not described yet.
    fn write_descriptions(&mut self) -> io::Result<()> {
        let blocks = std::mem::take(&mut self.descriptions);
        if !blocks.is_empty() {
            waiting_for_disk(|| self.out.write_all(&blocks))?;
            self.wrote(blocks.len());
        }
        Ok(())
    }

    /// Takes note of bytes that were written.
    fn wrote(&mut self, bytes: usize) {
        self.end += bytes as u64;
        Totals::add(&self.totals.bytes_written, bytes as u64);
        if let Some((durability, _)) = &self.durability {
            durability.wrote_bytes(bytes as u64);
        }
    }

    fn write_end(&mut self, lost: &[u64]) -> io::Result<()> {
        if self.failed && !self.mend() {
            return Ok(());
        }
        let now = (self.now_ns)();
        let mut tail = std::mem::take(&mut self.descriptions);
        for (i, (&delivered, &lost)) in self.packets.iter().zip(lost).enumerate() {
            let span = (self.began_ns, now);
            let statistics = StatisticsBlock::of_packets(i as u32, span, delivered, lost);
            let statistics = StatisticsBlock { comment: self.comment.clone(), ..statistics };
            let cut = self.totals.interfaces[i].cut();
            let statistics = tell_cut(statistics, cut, Cut::default());
            pcapng::statistics(&mut tail, &statistics);
        }
        match waiting_for_disk(|| self.out.write_all(&tail).and_then(|()| self.out.flush())) {
            // A reader that left has all the packets.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(e) => {
                self.mend();
                // Whoever failed before has told why.
                if self.failed { Ok(()) } else { Err(e) }
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Says that a write has ended the output after so many blocks.
fn ended_by(written: usize, e: io::Error) -> SinkOutcome {
    if e.kind() == io::ErrorKind::BrokenPipe {
        SinkOutcome::Ended(written)
    } else {
        SinkOutcome::Failed(written, e)
    }
}
