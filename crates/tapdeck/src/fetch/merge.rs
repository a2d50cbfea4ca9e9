//! The packets of all rows by time.
//!
//! Of what was not read it is known from when on its packets are: of a segment by its rows, of a
//! granule by the index. So a packet goes out when all that may hold an earlier one was read, and
//! what is read next is what may hold the earliest. In memory are packets that wait for their turn,
//! which is little where rings lie in a segment by blocks; and where it is not, there is a limit.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use anyhow::{Context as _, Result, ensure};
use tapdeck_store::query::{Described, Packet};

use super::segment::Segment;
use crate::interrupt::Interrupt;
use crate::progress_line::say;
use crate::units::{counted, show_bytes, show_count};

/// Bytes of packets that wait for their turn, at most.
const MEMORY: usize = 256 << 20;
/// Segments of which is asked for ahead of need what their rows tell.
const AHEAD: usize = 8;
/// Rows whose packets are not all there that are named, of a segment.
const NAMED: usize = 10;

/// The segments that rows lead to, while their packets go out.
pub struct Merge<'a> {
    segments: Vec<Segment<'a>>,
    /// Segments that are not done, by what may be in them first; those expected come first.
    unread: BTreeSet<(i64, usize)>,
    /// Segments in the order in which they will be opened, and how many of them were expected.
    order: Vec<usize>,
    expected: usize,
    opened: usize,
    waiting: BinaryHeap<Reverse<Waiting>>,
    bytes: usize,
    /// The interfaces of segments that were opened, and their numbers in the answer where they are
    /// described there.
    interfaces: Vec<Described>,
    numbers: Vec<Option<u32>>,
    described: u32,
    /// For each segment and interface of it, which of all it is.
    known: Vec<Vec<usize>>,
    current: Option<Waiting>,
}

/// A packet that waits for its turn.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    time_ns: i64,
    segment: usize,
    /// Where the part lies that it is of, and which of its packets it is.
    at: (u64, u32),
    /// Which interface of all it is of.
    interface: usize,
    original_len: u32,
    flags: u32,
    dropped: u64,
    shed: u32,
    frame: Vec<u8>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.frame.len() + size_of::<Self>()
    }
}

/// A packet that goes out.
pub struct Next<'a> {
    pub packet: Packet<'a>,
    /// An interface that has to be described before the packet.
    pub described: Option<&'a Described>,
}

impl<'a> Merge<'a> {
    pub fn new(segments: Vec<Segment<'a>>) -> Self {
        let unread: BTreeSet<(i64, usize)> =
            segments.iter().zip(0..).map(|(segment, number)| (segment.bound_ns, number)).collect();
        let order = unread.iter().map(|(_, number)| *number).collect();
        Self {
            known: vec![Vec::new(); segments.len()],
            segments,
            unread,
            order,
            expected: 0,
            opened: 0,
            waiting: BinaryHeap::new(),
            bytes: 0,
            interfaces: Vec::new(),
            numbers: Vec::new(),
            described: 0,
            current: None,
        }
    }

    /// Returns the next packet; `None` where there is no more, or no more is wanted.
    pub fn next_packet(&mut self, interrupt: &Interrupt) -> Result<Option<Next<'_>>> {
        loop {
            if interrupt.asked() {
                return Ok(None);
            }
            let bound_ns = self.unread.first().map(|(bound_ns, _)| *bound_ns);
            let first = self.waiting.peek().map(|Reverse(waiting)| waiting.time_ns);
            match (first, bound_ns) {
                (Some(time_ns), Some(bound_ns)) if time_ns >= bound_ns => self.advance()?,
                (None, Some(_)) => self.advance()?,
                (None, None) => return Ok(None),
                (Some(_), _) => break,
            }
        }
        let Some(Reverse(waiting)) = self.waiting.pop() else { return Ok(None) };
        self.bytes -= waiting.bytes();
        let described = &self.interfaces[waiting.interface];
        let is_new = self.numbers[waiting.interface].is_none();
        let number = *self.numbers[waiting.interface].get_or_insert(self.described);
        self.described += u32::from(is_new);
        let waiting = &*self.current.insert(waiting);
        let packet = Packet {
            time_ns: waiting.time_ns,
            interface: number,
            link: described.link,
            original_len: waiting.original_len,
            frame: &waiting.frame,
            flags: waiting.flags,
            dropped: waiting.dropped,
            shed: waiting.shed,
        };
        Ok(Some(Next { packet, described: is_new.then_some(described) }))
    }

    /// Looks at the segment that may hold the earliest packet.
    fn advance(&mut self) -> Result<()> {
        let Some((_, number)) = self.unread.pop_first() else { return Ok(()) };
        if !self.segments[number].is_open() {
            self.opened += 1;
            let upto = self.order.len().min(self.opened + AHEAD);
            for soon in &self.order[self.expected.min(upto)..upto] {
                self.segments[*soon].expect();
            }
            self.expected = self.expected.max(upto);
        }
        let Self { segments, waiting, bytes, known, .. } = self;
        let (segment, known) = (&mut segments[number], &known[number]);
        let mut count = 0;
        let goes_on = segment.advance(|at, packet| {
            let held = Waiting {
                time_ns: packet.time_ns,
                segment: number,
                at: (at, count),
                interface: known[packet.interface as usize],
                original_len: packet.original_len,
                flags: packet.flags,
                dropped: packet.dropped,
                shed: packet.shed,
                frame: packet.frame.to_vec(),
            };
            count += 1;
            *bytes += held.bytes();
            waiting.push(Reverse(held));
        });
        let goes_on = goes_on.with_context(|| format!("cannot read {}", segment.location()))?;
        ensure!(
            *bytes <= MEMORY,
            "more than {} of packets lie out of order: fetch fewer rows at a time",
            show_bytes(MEMORY as u64)
        );
        let (bound_ns, is_new) = (segment.bound_ns, known.is_empty());
        if is_new {
            self.know(number);
        }
        if goes_on {
            self.unread.insert((bound_ns, number));
        } else {
            self.segments[number].close();
        }
        Ok(())
    }

    /// Takes in the interfaces of a segment that was opened.
    fn know(&mut self, number: usize) {
        for described in self.segments[number].interfaces() {
            let same = self.interfaces.iter().position(|known| known == described);
            let which = same.unwrap_or_else(|| {
                self.interfaces.push(described.clone());
                self.numbers.push(None);
                self.interfaces.len() - 1
            });
            self.known[number].push(which);
        }
    }

    /// Tells on standard error where the answer is incomplete. Returns how many faults there are.
    pub fn tell(&self) -> usize {
        let (mut faults, mut dropped) = (0, 0);
        for segment in &self.segments {
            dropped += segment.dropped;
            if segment.is_gone {
                let rows = counted(segment.row_count(), "row");
                say(&format!("{} is gone, and {rows} lead to it", segment.location()));
                faults += 1;
                continue;
            }
            for note in &segment.notes {
                faults += usize::from(note.is_fault());
                say(&note.to_string());
            }
            faults += tell_differing(segment);
        }
        if dropped > 0 {
            say(&format!(
                "the recording dropped {} where these rows lie; each gap is told by the packet after it",
                counted(dropped, "packet")
            ));
        }
        faults
    }
}

/// Tells which rows have another number of packets than was found. Returns how many these are.
fn tell_differing(segment: &Segment<'_>) -> usize {
    let mut count = 0;
    for (pointer, found) in segment.differing() {
        count += 1;
        if count <= NAMED {
            let (told, found) = (counted(pointer.packets, "packet"), show_count(found));
            let (segment, name) = (&segment.name, &pointer.name);
            say(&format!("{segment}: a row ({name}) tells of {told}, and {found} were found"));
        }
    }
    if count > NAMED {
        let more = counted((count - NAMED) as u64, "row");
        say(&format!("{}: so do {more} more", segment.name));
    }
    count
}
