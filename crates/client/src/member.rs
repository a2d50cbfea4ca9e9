//! A membership: its rings, read block by block or packet by packet.
//!
//! **Order.** Packets of one ring are in order, but a member has as many rings as the interfaces
//! have queues or CPUs. A *look* finds how far each ring is committed; from then on the earliest
//! packet of all is handed out, until a ring that had packets has none, which calls for another
//! look. So a ring without a packet was empty when all others were looked at, and whatever comes to
//! it later is later than what they show. What stays is the time that a producer takes from reading
//! the clock to its commit.
//!
//! **Waiting.** The daemon writes a byte to a pipe when there are complete blocks. The pipe is
//! emptied only when the rings were found empty, and then they are looked at once more: so the
//! descriptor stays readable as long as there may be more. Part-filled blocks are closed by the
//! daemon when a packet has waited for some tens of milliseconds.
//!
//! **The end.** A daemon that ends closes the pipe. Its programs leave the interfaces a moment
//! later, so the end is told when nothing came for that long; then the last block, which nobody
//! will close any more, is read as far as it is committed, which is all of it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tapdeck_packet::pcapng::{self, InterfaceDescription, Record};
use tapdeck_packet::ring::{Ring, RingReader};

use crate::memory::{MapError, Memory};
use crate::session::{Grant, Session, Stats, default_socket};
use crate::{Error, Geometry};

/// Packets may come so long after the daemon has ended, for the kernel takes its programs away on a
/// thread of its own.
const AFTERMATH: Duration = Duration::from_millis(50);
/// How often a ring is looked at again whose producers are just at work. They take well below a
/// microsecond.
const LOOKS: u32 = 64;

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// The share of the group's traffic, relative to the other members.
    pub weight: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { socket: default_socket(), weight: 1 }
    }
}

/// What there was to read.
#[derive(Debug)]
pub enum Next<T> {
    Got(T),
    /// Nothing by now.
    Nothing,
    /// Nothing any more: the daemon has ended.
    End,
}

impl<T> Next<T> {
    pub fn got(self) -> Option<T> {
        match self {
            Self::Got(value) => Some(value),
            Self::Nothing | Self::End => None,
        }
    }

    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Self::Got(value) => Next::Got(f(value)),
            Self::Nothing => Next::Nothing,
            Self::End => Next::End,
        }
    }
}

/// A packet, where the kernel has put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// UTC, nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Index into [`Member::interfaces`].
    pub interface: u32,
    /// What was kept of the frame.
    pub bytes: &'a [u8],
    /// Bytes of the frame as it was on the wire.
    pub original_len: u32,
    /// `epb_flags` of pcapng: the low two bits say which way it went (1 in, 2 out, 0 not known).
    pub flags: u32,
    /// Packets for this member that were dropped since the packet before it in its ring.
    pub dropped: u64,
}

impl<'a> From<pcapng::PacketBlock<'a>> for Packet<'a> {
    fn from(block: pcapng::PacketBlock<'a>) -> Self {
        Self {
            timestamp_ns: block.timestamp,
            interface: block.interface,
            bytes: block.frame,
            original_len: block.original_len,
            flags: block.flags,
            dropped: block.dropped,
        }
    }
}

/// A run of packets of one ring, in place.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The packets as they lie: pcapng packet blocks in this machine's byte order.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn packets(&self) -> Packets<'a> {
        Packets::new(self.bytes)
    }
}

impl<'a> IntoIterator for Batch<'a> {
    type Item = Result<Packet<'a>, Error>;
    type IntoIter = Packets<'a>;

    fn into_iter(self) -> Packets<'a> {
        self.packets()
    }
}

/// The packets of a batch. After an error there are no more.
pub struct Packets<'a> {
    blocks: pcapng::Reader<'a>,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { blocks: pcapng::Reader::inside(bytes) }
    }

    /// Bytes that were taken so far.
    pub(crate) fn offset(&self) -> usize {
        self.blocks.offset() as usize
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Packet<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.blocks.next()? {
                Ok(Record::Packet(block)) => return Some(Ok(block.into())),
                Ok(_) => {}
                Err(e) => return Some(Err(e.into())),
            }
        }
    }
}

/// What a member's own rings say, without asking the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came into the rings, read or not.
    pub received: u64,
    /// Of them, in blocks that were not given back.
    pub unread: u64,
    /// Packets that were dropped because the rings had no room for them, or for any other reason.
    pub dropped: u64,
}

/// A packet of the oldest block that was looked at and not handed out: what [`Packet`] says, with
/// places in the block.
struct Head {
    timestamp_ns: u64,
    interface: u32,
    frame: Range<usize>,
    original_len: u32,
    flags: u32,
    dropped: u64,
    /// Where the next one begins.
    end: usize,
}

impl Head {
    /// The packet at `at` or after it, if there is one.
    fn find(begun: &[u8], at: usize) -> Option<Result<Self, Error>> {
        let rest = begun.get(at..).unwrap_or_default();
        let mut packets = Packets::new(rest);
        Some(packets.next()?.map(|packet| {
            let frame = at + (packet.bytes.as_ptr().addr() - rest.as_ptr().addr());
            Self {
                timestamp_ns: packet.timestamp_ns,
                interface: packet.interface,
                frame: frame..frame + packet.bytes.len(),
                original_len: packet.original_len,
                flags: packet.flags,
                dropped: packet.dropped,
                end: at + packets.offset(),
            }
        }))
    }

    fn packet<'a>(&self, begun: &'a [u8]) -> Packet<'a> {
        Packet {
            timestamp_ns: self.timestamp_ns,
            interface: self.interface,
            bytes: &begun[self.frame.clone()],
            original_len: self.original_len,
            flags: self.flags,
            dropped: self.dropped,
        }
    }
}

/// A ring and how far it was read.
struct Lane {
    ring: RingReader<Memory>,
    /// Bytes of the oldest block that were handed out.
    at: usize,
    /// The packet that is there, where it was looked at.
    head: Option<Head>,
    /// Packets in all blocks that were given back.
    packets: u64,
}

impl Lane {
    fn new(memory: Memory) -> Self {
        Self { ring: RingReader::new(memory.into(), 0), at: 0, head: None, packets: 0 }
    }

    /// Gives back blocks that were handed out to their end.
    fn settle(&mut self) {
        while let Some(block) = self.ring.peek(0)
            && self.at >= block.bytes.len()
        {
            self.packets += u64::from(block.contents.packets);
            self.ring.release(1);
            self.at = 0;
        }
    }

    /// Finds what has come.
    fn look(&mut self) {
        self.settle();
        let mut looks = 0;
        while !self.ring.look() && self.ring.begun().len() <= self.at && looks < LOOKS {
            looks += 1;
            std::hint::spin_loop();
        }
    }

    /// Whether there is a packet at `at`, as far as the last look went.
    fn refill(&mut self) -> Result<bool, Error> {
        if self.head.is_none() {
            let begun = self.ring.begun();
            match Head::find(begun, self.at) {
                Some(Ok(head)) => self.head = Some(head),
                // Nothing but filling, or what nobody can read.
                found => {
                    self.at = self.at.max(begun.len());
                    found.transpose()?;
                }
            }
        }
        Ok(self.head.is_some())
    }

    /// Looks whether there is a block that is handed out as a whole: a complete one, or in the end
    /// the open one.
    fn has_block(&mut self, ended: bool) -> bool {
        self.settle();
        if self.ring.peek(0).is_none() && !ended {
            return false;
        }
        self.ring.look();
        self.at < self.ring.begun().len()
    }
}

/// A membership in a group of the daemon. Dropping it is leaving.
pub struct Member {
    lanes: Vec<Lane>,
    /// Which lane's packet was handed out last, if its next one was not looked at.
    taken: Option<usize>,
    /// Which lane is asked for a batch first.
    turn: usize,
    attachment: Attachment,
    id: u32,
    snaplen: u32,
    geometry: Geometry,
    interfaces: Vec<InterfaceDescription>,
}

impl Member {
    /// Attaches to `group`.
    pub fn open(group: &str, options: &Options) -> Result<Self, Error> {
        let mut session = Session::connect(&options.socket)?;
        let grant = session.attach(group, options.weight)?;
        let Grant { member, snaplen, geometry, interfaces, rings, data, release, wake } = grant;
        let memory = Memory::map(geometry, &rings, &data, &release).map_err(|e| match e {
            MapError::Geometry(what) => Error::Answer(format!("{what} is impossible")),
            MapError::Io(e) => Error::Map(e),
        })?;
        rustix::io::ioctl_fionbio(&wake, true).map_err(|e| Error::Wait(e.into()))?;
        Ok(Self {
            lanes: memory.into_iter().map(Lane::new).collect(),
            taken: None,
            turn: 0,
            attachment: Attachment { session, wake, ended: None },
            id: member,
            snaplen,
            geometry,
            interfaces,
        })
    }

    /// The member's number at the daemon.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Bytes kept of a frame at most.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The group's interfaces; [`Packet::interface`] counts them from 0.
    pub fn interfaces(&self) -> &[InterfaceDescription] {
        &self.interfaces
    }

    /// The next run of packets, in place; the one before goes back to the kernel. Waits for
    /// `timeout` at most, for ever with `None` and not at all with zero.
    pub fn next_batch(&mut self, timeout: Option<Duration>) -> Result<Next<Batch<'_>>, Error> {
        let found = self.until(timeout, |member| Ok(member.find_batch()))?;
        Ok(found.map(|(lane, from)| Batch { bytes: &self.lanes[lane].ring.begun()[from..] }))
    }

    /// The next packet in the order of time, in place; the one before is gone. Waits as
    /// [`Member::next_batch`] does.
    pub fn next_packet(&mut self, timeout: Option<Duration>) -> Result<Next<Packet<'_>>, Error> {
        match self.until(timeout, Self::find_packet)? {
            Next::Nothing => Ok(Next::Nothing),
            Next::End => Ok(Next::End),
            Next::Got(lane) => {
                self.taken = Some(lane);
                let Lane { ring, at, head, .. } = &mut self.lanes[lane];
                Ok(head.take().map_or(Next::Nothing, |head| {
                    *at = head.end;
                    Next::Got(head.packet(ring.begun()))
                }))
            }
        }
    }

    /// Gives back what was handed out, without asking for more.
    pub fn release(&mut self) {
        for lane in &mut self.lanes {
            lane.settle();
        }
    }

    /// What this member's rings say.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for lane in &self.lanes {
            let unread = lane.ring.unread();
            counts.received += lane.packets + unread;
            counts.unread += unread;
            counts.dropped += lane.ring.lost();
        }
        counts
    }

    /// What the daemon counts for this member, and how to tell it something.
    pub fn attachment(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    /// Asks the daemon what it counts for this member.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.attachment.stats()
    }

    /// The rings themselves, for somebody who takes whole blocks elsewhere, and what keeps the
    /// membership. Packets carry the index of their interface in [`Member::interfaces`]; where
    /// the group has several, [`Ring::is_mixed`] says so.
    pub fn into_rings(self) -> (Vec<Box<dyn Ring>>, Attachment) {
        let is_mixed = self.interfaces.len() > 1;
        let ring = |lane: Lane| -> Box<dyn Ring> {
            Box::new(if is_mixed { lane.ring.mixed() } else { lane.ring })
        };
        (self.lanes.into_iter().map(ring).collect(), self.attachment)
    }

    /// The lane that has a batch, and where in its oldest block that begins.
    fn find_batch(&mut self) -> Option<(usize, usize)> {
        let ended = self.attachment.ended.is_some();
        let n = self.lanes.len();
        let lanes = (0..n).map(|i| (self.turn + i) % n);
        let found = { lanes }.find(|lane| self.lanes[*lane].has_block(ended))?;
        self.turn = (found + 1) % n;
        let lane = &mut self.lanes[found];
        let from = lane.at;
        lane.at = lane.ring.begun().len();
        lane.head = None;
        Some((found, from))
    }

    /// The lane that has the earliest packet.
    fn find_packet(&mut self) -> Result<Option<usize>, Error> {
        let goes_on = match self.taken.take() {
            Some(lane) => self.lanes[lane].refill()?,
            None => self.lanes.iter().any(|lane| lane.head.is_some()),
        };
        if !goes_on {
            for lane in &mut self.lanes {
                lane.look();
            }
            for lane in &mut self.lanes {
                lane.refill()?;
            }
        }
        let heads = self
            .lanes
            .iter()
            .enumerate()
            .filter_map(|(i, lane)| Some((lane.head.as_ref()?.timestamp_ns, i)));
        Ok(heads.min().map(|(_, lane)| lane))
    }

    /// Tries until there is something, at most for `timeout`.
    fn until<T>(
        &mut self,
        timeout: Option<Duration>,
        find: impl Fn(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Next<T>, Error> {
        // Nobody who has something to read looks at the clock.
        if let Some(found) = find(self)? {
            return Ok(Next::Got(found));
        }
        // A timeout that no clock reaches is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.attachment.drain().map_err(Error::Wait)?;
            if let Some(found) = find(self)? {
                return Ok(Next::Got(found));
            }
            if self.attachment.is_over() {
                return Ok(Next::End);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Next::Nothing);
            }
            self.attachment.wait(left, None).map_err(Error::Wait)?;
        }
    }
}

/// To be waited for besides other descriptors: readable when there may be something to read. It
/// stays so until reading finds nothing.
impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.attachment.as_fd()
    }
}

/// What keeps a membership: the connection to the daemon.
pub struct Attachment {
    session: Session,
    wake: OwnedFd,
    /// When the daemon was found to have ended.
    ended: Option<Instant>,
}

impl Attachment {
    /// What the daemon counts for this member.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.session.stats()
    }

    /// Has the part-filled blocks of this member closed.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.session.flush()
    }

    /// Leaves the group: no packet comes any more, and those that are in the rings can be read.
    pub fn leave(&mut self) -> Result<(), Error> {
        self.session.leave()
    }

    /// Whether the daemon was found to have ended. A packet may still come for a moment, until
    /// [`Attachment::is_over`].
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the daemon has ended, and nothing can come any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some_and(|at| at.elapsed() >= AFTERMATH)
    }

    /// Waits until there may be something to read, or `other` can be read, or a signal came, for
    /// `timeout` at most.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut timeout = timeout;
        let mut fds = Vec::with_capacity(3);
        if self.ended.is_some() {
            // Of the daemon there is nothing to wait for but the aftermath.
            timeout = Some(timeout.map_or(AFTERMATH, |timeout| timeout.min(AFTERMATH)));
        } else {
            // Of the connection only the end is waited for: nobody has asked anything.
            fds.push(PollFd::new(self.session.stream(), PollFlags::empty()));
            fds.push(PollFd::new(&self.wake, PollFlags::IN));
        }
        fds.extend(other.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if self.ended.is_none() && fds[0].revents().contains(PollFlags::HUP) {
            self.ended = Some(Instant::now());
        }
        Ok(())
    }

    /// Empties the pipe, and notes when there is nobody at its other end.
    pub fn drain(&mut self) -> io::Result<()> {
        let mut bytes = [0; 256];
        while self.ended.is_none() {
            match rustix::io::read(&self.wake, &mut bytes) {
                Ok(0) => self.ended = Some(Instant::now()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
