//! How are a member's rings read, block by block or packet by packet, and when is nothing left?
//!
//! **Order.** Packets of one ring are in order, but a member has as many rings as the interfaces
//! have queues or CPUs. A **look** finds how far each ring is committed. After a look, the earliest
//! packet of all rings is handed out, over and over, until a ring that had packets has none; then
//! comes another look. So a ring without a packet was empty when all others were looked at, and
//! whatever comes to it later is later than the packets that the others show. What can still be out
//! of order is what a producer commits late: the time from reading the clock to the commit.
//!
//! **Waiting and the end** are the affair of the [`Attachment`]. When there is no daemon, nobody
//! closes the last block of each ring, and it is read as far as it is committed.
//!
//! How one ring is read is not here but in [`tapdeck_packet::ring`].

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tapdeck_packet::pcapng::{self, InterfaceDescription, Record};
use tapdeck_packet::ring::{Ring, RingReader};

use crate::attachment::{Attachment, Home};
use crate::memory::{MapError, Memory};
use crate::session::{Grant, Session, Stats, default_socket};
use crate::{Error, Geometry};

/// How often a ring is looked at again whose producers are just at work. A producer takes well
/// below a microsecond.
const LOOKS: u32 = 64;
/// A member that always finds something to read looks after its daemon once in so many finds.
const FINDS: u32 = 256;

/// How to attach to a group.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the daemon's socket. Defaults to [`default_socket`].
    pub socket: PathBuf,
    /// The member's share of the group's traffic, relative to the weights of the other members,
    /// where the group's steering shares flows out. Defaults to 1.
    pub weight: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { socket: default_socket(), weight: 1 }
    }
}

/// What a call that reads has found.
#[derive(Debug)]
pub enum Next<T> {
    /// A batch or a packet.
    Got(T),
    /// The timeout passed, and nothing came.
    Nothing,
    /// The daemon has ended, and everything that was in the rings has been read.
    End,
}

impl<T> Next<T> {
    /// Returns what was found; `None` for [`Next::Nothing`] and [`Next::End`] alike.
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

/// A packet, in the memory where the kernel has put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When the packet came: nanoseconds since 1970, UTC.
    pub timestamp_ns: u64,
    /// The interface it came through: an index into [`Member::interfaces`].
    pub interface: u32,
    /// The frame from its first byte on, cut to the group's snaplen.
    pub bytes: &'a [u8],
    /// Length of the frame on the wire, in bytes.
    pub original_len: u32,
    /// `epb_flags` of pcapng. The low two bits say which way the packet went: 1 in, 2 out, 0 not
    /// known.
    pub flags: u32,
    /// Number of packets for this member that were dropped between this packet and the one before
    /// it in the same ring.
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

/// A run of packets of one ring, in the order in which they came and in the memory where the kernel
/// has put them.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Returns the packets as they lie in memory: pcapng Enhanced Packet Blocks in this machine's
    /// byte order, with times in nanoseconds.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Iterates over the packets.
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

/// Iterates over the packets of a batch.
///
/// An item is [`Error::Damaged`] where the bytes are no packet, and it is then the last.
pub struct Packets<'a> {
    blocks: pcapng::Reader<'a>,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { blocks: pcapng::Reader::inside(bytes) }
    }

    /// Returns the number of bytes that the packets so far take.
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

/// Packets as a member's own rings count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came into the rings, whether or not they were read.
    pub received: u64,
    /// Packets in blocks that were not yet returned to the kernel.
    pub unread: u64,
    /// Packets for this member that were dropped because its rings had no free block, or for any
    /// other reason.
    pub dropped: u64,
}

/// The next packet of a ring: what [`Packet`] says, with places in the oldest block in place of
/// bytes.
struct Head {
    timestamp_ns: u64,
    interface: u32,
    frame: Range<usize>,
    original_len: u32,
    flags: u32,
    dropped: u64,
    /// Where in the block the next packet begins.
    end: usize,
}

impl Head {
    /// Finds the first packet at `at` or behind it.
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

/// A ring, and how far it was read.
struct Lane {
    ring: RingReader<Memory>,
    /// Number of bytes of the oldest block that were handed out.
    at: usize,
    /// The packet at `at`, if one was found there.
    head: Option<Head>,
    /// Number of packets in all blocks that were returned to the kernel.
    packets: u64,
}

impl Lane {
    fn new(memory: Memory) -> Self {
        Self { ring: RingReader::new(memory.into(), 0), at: 0, head: None, packets: 0 }
    }

    /// Returns blocks to the kernel that were handed out to their end.
    fn settle(&mut self) {
        while let Some(block) = self.ring.peek(0)
            && self.at >= block.bytes.len()
        {
            self.packets += u64::from(block.contents.packets);
            self.ring.release(1);
            self.at = 0;
        }
    }

    /// Finds what has come since the last look.
    fn look(&mut self) {
        self.settle();
        let mut looks = 0;
        while !self.ring.look() && self.ring.begun().len() <= self.at && looks < LOOKS {
            looks += 1;
            std::hint::spin_loop();
        }
    }

    /// Finds the packet at `at`, as far as the last look went, and returns whether there is one.
    fn refill(&mut self) -> Result<bool, Error> {
        if self.head.is_none() {
            let begun = self.ring.begun();
            match Head::find(begun, self.at) {
                Some(Ok(head)) => self.head = Some(head),
                // What is left of the block is filling, or damaged.
                found => {
                    self.at = self.at.max(begun.len());
                    found.transpose()?;
                }
            }
        }
        Ok(self.head.is_some())
    }

    /// Returns whether there is a block that can be handed out as a whole: a complete one, or, when
    /// the daemon has ended, the open one.
    fn has_block(&mut self, ended: bool) -> bool {
        self.settle();
        if self.ring.peek(0).is_none() && !ended {
            return false;
        }
        self.ring.look();
        self.at < self.ring.begun().len()
    }
}

/// A membership in a group of the daemon. The member leaves the group when it is dropped.
pub struct Member {
    lanes: Vec<Lane>,
    /// The lane whose packet was handed out last, as long as its next packet was not looked for.
    taken: Option<usize>,
    /// The lane that is asked first for a batch.
    turn: usize,
    attachment: Attachment,
    /// Finds without a look at the daemon.
    finds: u32,
    id: u32,
    snaplen: u32,
    geometry: Geometry,
    interfaces: Vec<InterfaceDescription>,
}

impl Member {
    /// Attaches to the group of this name.
    ///
    /// # Errors
    /// - [`Error::NoDaemon`] where the daemon cannot be reached.
    /// - [`Error::Refused`] where there is no such group, or it takes no further member.
    /// - [`Error::Version`] where the daemon speaks another version of the protocol.
    /// - [`Error::Map`] where the rings' memory cannot be mapped.
    /// - [`Error::Connection`], [`Error::Silent`], [`Error::Answer`] or [`Error::Wait`] where the
    ///   connection fails.
    pub fn open(group: &str, options: &Options) -> Result<Self, Error> {
        let mut session = Session::connect(&options.socket)?;
        let grant = session.attach(group, options.weight)?;
        let home = Home { socket: options.socket.clone(), group: group.to_owned() };
        Self::of(session, grant, home)
    }

    /// Maps what the daemon has granted.
    pub(crate) fn of(session: Session, grant: Grant, home: Home) -> Result<Self, Error> {
        let Grant { member, snaplen, geometry, interfaces, rings, data, release, wake, lasting } =
            grant;
        let memory = Memory::map(geometry, &rings, &data, &release).map_err(|e| match e {
            MapError::Geometry(what) => Error::Answer(format!("{what} is impossible")),
            MapError::Io(e) => Error::Map(e),
        })?;
        Ok(Self {
            lanes: memory.into_iter().map(Lane::new).collect(),
            taken: None,
            turn: 0,
            attachment: Attachment::new(session, wake, lasting.map(|grant| (home, member, grant)))
                .map_err(Error::Wait)?,
            finds: 0,
            id: member,
            snaplen,
            geometry,
            interfaces,
        })
    }

    /// Returns the number by which the daemon knows this member.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the group's snaplen: the number of bytes that are kept of a frame at most.
    pub fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// How the memory of this member's rings is divided.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the group's interfaces. [`Packet::interface`] is an index into them.
    pub fn interfaces(&self) -> &[InterfaceDescription] {
        &self.interfaces
    }

    /// Returns the next batch, and returns the memory of the batch before it to the kernel.
    ///
    /// Waits for `timeout` at most, without end if it is `None`, and not at all if it is zero.
    ///
    /// # Errors
    /// [`Error::Wait`] where waiting failed.
    pub fn next_batch(&mut self, timeout: Option<Duration>) -> Result<Next<Batch<'_>>, Error> {
        let found = self.until(timeout, |member| Ok(member.find_batch()))?;
        Ok(found.map(|(lane, from)| Batch { bytes: &self.lanes[lane].ring.begun()[from..] }))
    }

    /// Returns the next packet in the order of time over all rings.
    ///
    /// Waits for `timeout` at most, without end if it is `None`, and not at all if it is zero.
    ///
    /// # Errors
    /// [`Error::Wait`] where waiting failed; [`Error::Damaged`] where a block is no run of packets,
    /// whose rest the next call passes over.
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

    /// Returns the memory of what was handed out to the kernel, without asking for more.
    pub fn release(&mut self) {
        for lane in &mut self.lanes {
            lane.settle();
        }
    }

    /// Reads the counts of this member's rings. This takes no system call.
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

    /// Returns the connection to the daemon, for what only the daemon can do.
    pub fn attachment(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    /// Asks the daemon what it counts for this member.
    ///
    /// # Errors
    /// Those of [`Attachment::stats`].
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.attachment.stats()
    }

    /// Takes the member apart: its rings, for programs that take whole blocks elsewhere, and the
    /// attachment, which keeps the membership until it is dropped.
    ///
    /// Who reads the rings looks at them by themselves, every few milliseconds: no complete block
    /// wakes anybody any more.
    ///
    /// Packets carry the index of their interface in [`Member::interfaces`]. [`Ring::is_mixed`]
    /// says whether the group has more than one interface.
    pub fn into_rings(self) -> (Vec<Box<dyn Ring>>, Attachment) {
        let is_mixed = self.interfaces.len() > 1;
        let ring = |lane: Lane| -> Box<dyn Ring> {
            lane.ring.memory().stay_awake();
            Box::new(if is_mixed { lane.ring.mixed() } else { lane.ring })
        };
        (self.lanes.into_iter().map(ring).collect(), self.attachment)
    }

    /// Finds a lane that has a batch, and where in the lane's oldest block the batch begins.
    fn find_batch(&mut self) -> Option<(usize, usize)> {
        let ended = self.attachment.has_ended() || self.attachment.is_away();
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

    /// Finds the lane that has the earliest packet.
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

    /// Returns whether a ring has a complete block that was not released.
    fn has_complete(&self) -> bool {
        self.lanes.iter().any(|lane| lane.ring.peek(0).is_some())
    }

    /// Calls `find` until it finds something, for `timeout` at most.
    fn until<T>(
        &mut self,
        timeout: Option<Duration>,
        find: impl Fn(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Next<T>, Error> {
        // Where there is something to read, the clock is not read.
        if let Some(found) = find(self)? {
            self.finds = self.finds.wrapping_add(1);
            if self.finds.is_multiple_of(FINDS) {
                self.attachment.look().map_err(Error::Wait)?;
            }
            return Ok(Next::Got(found));
        }
        // A timeout that no clock reaches is a wait without end.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.attachment.drain().map_err(Error::Wait)?;
            if let Some(found) = find(self)? {
                return Ok(Next::Got(found));
            }
            if self.attachment.is_over() {
                return Ok(Next::End);
            }
            // A block that has become complete since its ring was settled is settled first: beside
            // it nobody would be woken for the next.
            if self.has_complete() {
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Next::Nothing);
            }
            self.attachment.wait(left, None).map_err(Error::Wait)?;
        }
    }
}

/// A descriptor for poll(2) and its kind. It is readable when there may be packets to read, and
/// stays readable until reading finds nothing: read until then before you wait, or packets that
/// have come may wait for some 40 ms with you. Do not read from it.
impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.attachment.as_fd()
    }
}
