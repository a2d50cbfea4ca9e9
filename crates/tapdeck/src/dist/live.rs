//! Counting the packet sizes of an interface, with the hook tpacket.
//!
//! Packets come as a recorder gets them, cut to their headers: the length on the wire comes with
//! each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tapdeck_capture::ring::RingReader;
use tapdeck_capture::{Capture, Clock, Config, Deliver, Event, Hook, Stamps};
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_traffic::dist::{Length, Tally};

use crate::interrupt::Interrupt;
use crate::progress_line::{ProgressLine, say};
use crate::units::{counted, show_count};

const TICK: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);
/// Bytes kept of a packet: room for the headers up to an IP header, tags and all.
const SNAPLEN: u32 = 256;

/// When counting ends, besides at Ctrl-C.
pub struct Limits {
    pub duration: Option<Duration>,
    pub count: Option<u64>,
}

/// Counts until something ends it. Tells the user what was dropped, or what cut the counting short.
pub fn count(name: &str, length: Length, limits: &Limits, interrupt: &Interrupt) -> Result<Tally> {
    let config = Config {
        hook: Hook::Tpacket,
        deliver: Deliver::Pass,
        snaplen: SNAPLEN,
        ring_bytes: 64 << 20,
        block_bytes: 1 << 20,
        promiscuous: true,
        device_bound: true,
        overload: tapdeck_capture::Overload::Drop,
        stamps: Stamps::Auto,
        filter: None,
        rules: None,
        cutoff: None,
    };
    let mut capture = Capture::open(name, &config, 0, &Arc::new(Clock::default()))?;
    let mut counter = Counter::new(&capture, length, limits.count);
    capture.start()?;
    say(&format!("counting the packets of {name}, until Ctrl-C or a limit"));
    for warning in capture.warnings() {
        say(&warning);
    }
    let end = limits.duration.and_then(|d| Instant::now().checked_add(d));
    let mut progress = ProgressLine::new();
    let mut next_look = Instant::now() + SECOND;
    loop {
        counter.drain()?;
        let over = end.is_some_and(|end| Instant::now() >= end);
        if over || counter.is_full() || interrupt.asked() {
            break;
        }
        if Instant::now() >= next_look {
            next_look += SECOND;
            if capture.watch(&[])? == Some(Event::Gone) {
                say(&format!("{name} is gone; the packets up to then count"));
                break;
            }
        }
        progress.show(|| counted(counter.tally.counts.packets(), "packet"));
        std::thread::sleep(TICK);
        capture.flush().with_context(|| format!("cannot read the ring of {name}"))?;
    }
    interrupt.heard();
    drop(progress);
    capture.stop();
    // Packets that came before the end may wait in open blocks.
    while !counter.is_full() {
        capture.flush_all().with_context(|| format!("cannot read the ring of {name}"))?;
        counter.drain()?;
        if capture.rings().iter().all(|ring| ring.open_block().1 == 0) {
            break;
        }
    }
    let lost = capture.losses().total();
    if lost > 0 {
        say(&format!("{} more packets came faster than they could be counted", show_count(lost)));
    }
    Ok(counter.tally)
}

/// The reader of all rings, which counts what it reads.
struct Counter {
    rings: Vec<RingReader>,
    link: LinkType,
    tally: Tally,
    limit: u64,
    /// A section header, and behind it the ring's block that is read.
    section: Vec<u8>,
    header_bytes: usize,
}

impl Counter {
    fn new(capture: &Capture, length: Length, limit: Option<u64>) -> Self {
        let mut section = Vec::new();
        pcapng::section_header(&mut section, "", "", None);
        Self {
            rings: capture.readers(),
            link: capture.interface().link.unwrap_or(LinkType::ETHERNET),
            tally: Tally::new(length),
            limit: limit.unwrap_or(u64::MAX),
            header_bytes: section.len(),
            section,
        }
    }

    fn is_full(&self) -> bool {
        self.tally.counts.packets() >= self.limit
    }

    /// Counts the packets in complete blocks.
    fn drain(&mut self) -> Result<()> {
        for ring in &mut self.rings {
            while let Some(block) = ring.peek(0) {
                self.section.truncate(self.header_bytes);
                self.section.extend_from_slice(block.bytes);
                for record in Reader::new(&self.section) {
                    if self.tally.counts.packets() >= self.limit {
                        return Ok(());
                    }
                    if let Record::Packet(packet) = record? {
                        self.tally.packet(self.link, packet.original_len, packet.frame)?;
                    }
                }
                ring.release(1);
            }
        }
        Ok(())
    }
}
