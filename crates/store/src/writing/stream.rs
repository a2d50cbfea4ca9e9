//! How is one pcapng file or pipe written? Blocks go out as they come, without fill and without an
//! index; statistics end it. A failed write is its end, since no other file follows.

use std::io::{self, Write};
use std::sync::Arc;

use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};

use crate::format::segment::APPLICATION;
use crate::writing::totals::Totals;
use crate::writing::writer::{InterfaceBlock, Outcome, Sink};

/// Writes a single pcapng section to anything that takes bytes.
pub struct Stream<W> {
    out: W,
    totals: Arc<Totals>,
    packets: Vec<u64>,
    began_ns: u64,
    now_ns: Box<dyn Fn() -> u64 + Send>,
    failed: bool,
    comment: Option<String>,
}

impl<W: Write + Send> Stream<W> {
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
            totals,
            packets: vec![0; interfaces.len()],
            began_ns: now_ns(),
            now_ns,
            failed: false,
            comment: None,
        })
    }
}

impl<W: Write + Send> Sink for Stream<W> {
    fn write(&mut self, batch: &[InterfaceBlock<'_>]) -> Outcome {
        for (i, piece) in batch.iter().enumerate() {
            if let Err(e) = self.out.write_all(piece.block.bytes) {
                // A part of a block may have been written; nothing can follow it.
                self.failed = true;
                let ended = e.kind() == io::ErrorKind::BrokenPipe;
                return if ended { Outcome::Ended(i) } else { Outcome::Failed(i, e) };
            }
            piece.each_interface(|interface, packets, _| {
                if let Some(counted) = self.packets.get_mut(interface) {
                    *counted += packets;
                }
            });
            Totals::add(&self.totals.bytes_written, piece.block.bytes.len() as u64);
        }
        Outcome::Written(batch.len())
    }

    fn begin_epoch(&mut self, _: u8) {
        self.comment = Some("the clock was stepped while this was recorded".into());
    }

    fn tick(&mut self, _: &[u64]) {}

    fn finish(&mut self, lost: &[u64]) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        let now = (self.now_ns)();
        let mut tail = Vec::new();
        for (i, (&delivered, &lost)) in self.packets.iter().zip(lost).enumerate() {
            let span = (self.began_ns, now);
            let statistics = StatisticsBlock::of_packets(i as u32, span, delivered, lost);
            let statistics = StatisticsBlock { comment: self.comment.clone(), ..statistics };
            pcapng::statistics(&mut tail, &statistics);
        }
        match self.out.write_all(&tail).and_then(|()| self.out.flush()) {
            // A reader that left has all the packets.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}
