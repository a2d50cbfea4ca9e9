//! A recorder that is a member of a daemon's group: what becomes of the recording when the daemon
//! dies?
//!
//! What an interface's recorder does when the interface goes: it waits. The rings of the dead
//! daemon are read to their end, and when a daemon is there again that has the group, the recorder
//! is a member of it again. The writer must not notice. It has [`LastingRing`]s, each of which
//! passes on the ring that there is now, counts losses over all of them, and has epochs that go on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use tapdeck_capture::{Cause, Clock, Event, Unseen};
use tapdeck_client::{Attachment, Geometry, Member, Options};
use tapdeck_packet::pcapng::InterfaceDescription;
use tapdeck_packet::ring::{Block, Hold, Ring};

/// A membership that outlives the daemon.
pub struct Membership {
    name: String,
    options: Options,
    /// The connection; `None` while there is no daemon.
    attachment: Option<Attachment>,
    geometry: Geometry,
    interfaces: Vec<InterfaceDescription>,
    /// What is told to each lasting ring.
    news: Vec<Arc<News>>,
    /// The rings, until the writer takes them.
    rings: Vec<Box<dyn Ring>>,
    /// The recorder's epoch when the daemon was found dead.
    epoch_then: u32,
    /// What the last try to come back has failed with.
    why_not: Option<String>,
    missed: Missed,
}

/// What the daemon's hooks were not shown, as the daemon was last asked.
#[derive(Default)]
struct Missed {
    packets: u64,
    /// The daemon's own count when it was last asked; `None` before this daemon was asked.
    counted: Option<u64>,
    /// When a daemon was last asked.
    asked_ns: u64,
    untold: Vec<Unseen>,
}

impl Missed {
    /// Takes in the daemon's count.
    fn take_in(&mut self, count: u64, now_ns: u64) {
        let packets = count.saturating_sub(self.counted.unwrap_or(count));
        if packets > 0 {
            self.packets += packets;
            self.tell(packets, now_ns, Cause::Daemon);
        }
        (self.counted, self.asked_ns) = (Some(count), now_ns);
    }

    /// Begins anew with another daemon. What came while there was none, nobody has counted.
    fn begin_anew(&mut self, now_ns: u64) {
        self.tell(0, now_ns, Cause::DaemonAway);
        (self.counted, self.asked_ns) = (None, now_ns);
    }

    fn tell(&mut self, packets: u64, last_ns: u64, cause: Cause) {
        let first_ns = self.asked_ns.min(last_ns);
        self.untold.push(Unseen { packets, first_ns, last_ns, cause });
    }
}

/// What the writer's end of a lasting ring is told by the other.
#[derive(Default)]
struct News(Mutex<VecDeque<Told>>);

enum Told {
    /// No packet comes any more.
    Over,
    /// Another ring follows. Its clock is on another scale, where the clock was stepped meanwhile.
    Next { ring: Box<dyn Ring>, stepped: bool },
}

impl News {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, told: Told) {
        self.lock().push_back(told);
    }
}

impl Membership {
    pub fn join(name: &str, options: &Options) -> Result<Self> {
        let member = Member::open(name, options)?;
        let geometry = *member.geometry();
        let interfaces = member.interfaces().to_vec();
        let (rings, attachment) = member.into_rings();
        let news: Vec<Arc<News>> = rings.iter().map(|_| Arc::default()).collect();
        let lasting = |(ring, news): (Box<dyn Ring>, &Arc<News>)| -> Box<dyn Ring> {
            Box::new(LastingRing { ring, news: news.clone(), is_over: false, lost: 0, ahead: 0 })
        };
        let rings = rings.into_iter().zip(&news).map(lasting).collect();
        Ok(Self {
            name: name.to_owned(),
            options: options.clone(),
            attachment: Some(attachment),
            geometry,
            interfaces,
            news,
            rings,
            epoch_then: 0,
            why_not: None,
            missed: Missed::default(),
        })
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether there is a daemon that gives packets.
    pub fn is_attached(&self) -> bool {
        self.attachment.is_some()
    }

    pub fn interfaces(&self) -> &[InterfaceDescription] {
        &self.interfaces
    }

    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.geometry.nrings)
            * (u64::from(self.geometry.nblocks) << self.geometry.block_shift)
    }

    /// Returns the readers of all rings. Each ring has one reader, so this is called once.
    pub fn take_rings(&mut self) -> Vec<Box<dyn Ring>> {
        std::mem::take(&mut self.rings)
    }

    /// Closes every part-filled block. While there is no daemon, nothing is open.
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.attachment {
            // A daemon that comes closes them.
            Some(attachment) if !attachment.is_away() && !attachment.has_ended() => {
                Ok(attachment.flush()?)
            }
            _ => Ok(()),
        }
    }

    /// Asks the daemon what its hooks were not shown. A daemon that has died is noticed elsewhere.
    pub fn ask_for_missed(&mut self, clock: &Clock) {
        if let Some(attachment) = &mut self.attachment
            && !attachment.has_ended()
            && !attachment.is_away()
            && let Ok(stats) = attachment.stats()
        {
            self.missed.take_in(stats.unseen, clock.now_ns());
        }
    }

    /// Returns how many packets went unseen since the recorder became a member.
    pub fn missed(&self) -> u64 {
        self.missed.packets
    }

    /// Takes what went unseen since the last call.
    pub fn take_missed(&mut self) -> Vec<Unseen> {
        std::mem::take(&mut self.missed.untold)
    }

    pub fn leave(&mut self) {
        if let Some(attachment) = &mut self.attachment {
            // Fails where the daemon has gone, and the membership has ended then.
            let _ = attachment.leave();
        }
    }

    /// Looks whether the daemon has died. `epoch` is the recorder's own.
    pub fn look(&mut self, epoch: u32) -> Option<Event> {
        let attachment = self.attachment.as_mut()?;
        // A wake-up pipe that cannot be read has no news.
        let _ = attachment.drain();
        if !attachment.is_over() {
            return None;
        }
        self.attachment = None;
        self.epoch_then = epoch;
        self.news.iter().for_each(|news| news.tell(Told::Over));
        Some(Event::Gone)
    }

    /// Tries to become a member again, where the daemon has died. Returns why that cannot be, once
    /// for each reason; a daemon that is not there is none.
    pub fn come_back(&mut self, clock: &Clock) -> Result<Option<Event>, String> {
        if self.attachment.is_some() {
            return Ok(None);
        }
        let why = match Member::open(&self.name, &self.options) {
            Ok(member) => match self.take_up(member, clock.epoch()) {
                Ok(()) => {
                    self.missed.begin_anew(clock.now_ns());
                    return Ok(Some(Event::Back));
                }
                Err(why) => why,
            },
            Err(tapdeck_client::Error::NoDaemon { .. }) => return Ok(None),
            Err(e) => e.to_string(),
        };
        if self.why_not.as_ref() == Some(&why) {
            return Ok(None);
        }
        self.why_not = Some(why.clone());
        Err(format!("cannot come back: {why}"))
    }

    fn take_up(&mut self, member: Member, epoch: u32) -> Result<(), String> {
        let names = |of: &[InterfaceDescription]| -> Vec<_> {
            of.iter().map(|interface| (interface.name.clone(), interface.link)).collect()
        };
        let (geometry, interfaces) = (*member.geometry(), member.interfaces().to_vec());
        if geometry.nrings != self.geometry.nrings || names(&interfaces) != names(&self.interfaces)
        {
            return Err("the daemon gives the group other interfaces or another number of rings than before: start this recorder anew".to_owned());
        }
        let stepped = epoch != self.epoch_then;
        let (rings, attachment) = member.into_rings();
        for (news, ring) in self.news.iter().zip(rings) {
            news.tell(Told::Next { ring, stepped });
        }
        self.attachment = Some(attachment);
        (self.geometry, self.interfaces, self.why_not) = (geometry, interfaces, None);
        Ok(())
    }
}

/// A ring of a member, in the place of which another comes when the daemon has died and is back.
struct LastingRing {
    ring: Box<dyn Ring>,
    news: Arc<News>,
    /// Whether no packet comes into `ring` any more.
    is_over: bool,
    /// Packets that were dropped at the rings before.
    lost: u64,
    /// What is added to the ring's epochs.
    ahead: u8,
}

impl LastingRing {
    /// Whether a ring follows this one.
    fn has_next(&self) -> bool {
        self.news.lock().iter().any(|told| matches!(told, Told::Next { .. }))
    }
}

impl Ring for LastingRing {
    fn interface(&self) -> u32 {
        self.ring.interface()
    }

    fn is_mixed(&self) -> bool {
        self.ring.is_mixed()
    }

    fn peek(&self, ahead: u32) -> Option<Block<'_>> {
        let mut block = self.ring.peek(ahead)?;
        block.contents.epoch = block.contents.epoch.wrapping_add(self.ahead);
        Some(block)
    }

    fn hold(&self, ahead: u32) -> Option<Box<dyn Hold>> {
        self.ring.hold(ahead)
    }

    fn release(&mut self, blocks: u32) {
        self.ring.release(blocks);
    }

    fn unread(&self) -> u64 {
        let next = |told: &Told| match told {
            Told::Next { ring, .. } => ring.unread(),
            Told::Over => 0,
        };
        self.ring.unread() + self.news.lock().iter().map(next).sum::<u64>()
    }

    fn is_empty(&self) -> bool {
        self.ring.is_empty() && !self.has_next()
    }

    fn taken(&self) -> u64 {
        self.ring.taken()
    }

    fn lost(&self) -> u64 {
        self.lost + self.ring.lost()
    }

    fn epoch(&self) -> u8 {
        self.ring.epoch().wrapping_add(self.ahead)
    }

    fn caught_up(&self) -> bool {
        self.ring.caught_up() && !self.has_next()
    }

    fn renew(&mut self) {
        loop {
            if self.is_over && !self.ring.caught_up() {
                return;
            }
            // What was told first was so first.
            let told = self.news.lock().pop_front();
            match told {
                None => return,
                Some(Told::Over) => {
                    self.is_over = true;
                    self.ring.end();
                }
                Some(Told::Next { ring, stepped }) => {
                    let epoch = self.epoch().wrapping_add(stepped.into());
                    let first = ring.peek(0).map_or(ring.epoch(), |block| block.contents.epoch);
                    self.ahead = epoch.wrapping_sub(first);
                    self.lost += self.ring.lost();
                    self.ring = ring;
                    self.is_over = false;
                }
            }
        }
    }

    fn end(&mut self) {
        self.renew();
        self.ring.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tapdeck_packet::ring::{Block, Contents, Hold, Ring};

    use super::{LastingRing, News, Told};

    /// A ring of blocks of no bytes, each of so many packets; the last one is open until the end.
    #[derive(Default)]
    struct Fake {
        blocks: Vec<u32>,
        epoch: u8,
        lost: u64,
        has_ended: bool,
    }

    impl Ring for Fake {
        fn interface(&self) -> u32 {
            0
        }

        fn peek(&self, ahead: u32) -> Option<Block<'_>> {
            let complete =
                self.blocks.len() - usize::from(!self.has_ended && !self.blocks.is_empty());
            let packets = *self.blocks[..complete].get(ahead as usize)?;
            let contents = Contents { packets, frame_bytes: 0, epoch: self.epoch };
            Some(Block { bytes: &[], contents })
        }

        fn hold(&self, _: u32) -> Option<Box<dyn Hold>> {
            None
        }

        fn release(&mut self, blocks: u32) {
            self.blocks.drain(..blocks as usize);
        }

        fn unread(&self) -> u64 {
            self.blocks.iter().map(|packets| u64::from(*packets)).sum()
        }

        fn taken(&self) -> u64 {
            0
        }

        fn lost(&self) -> u64 {
            self.lost
        }

        fn epoch(&self) -> u8 {
            self.epoch
        }

        fn caught_up(&self) -> bool {
            self.peek(0).is_none()
        }

        fn end(&mut self) {
            self.has_ended = true;
        }
    }

    fn lasting(ring: Fake) -> (LastingRing, Arc<News>) {
        let news: Arc<News> = Arc::new(News(Mutex::default()));
        let ring = Box::new(ring);
        (LastingRing { ring, news: news.clone(), is_over: false, lost: 0, ahead: 0 }, news)
    }

    /// Takes all that is complete, and returns packets and epoch of each block.
    fn take(ring: &mut LastingRing) -> Vec<(u32, u8)> {
        let mut all = Vec::new();
        ring.renew();
        while let Some(Contents { packets, epoch, .. }) = ring.peek(0).map(|block| block.contents) {
            all.push((packets, epoch));
            ring.release(1);
            ring.renew();
        }
        all
    }

    #[test]
    fn a_ring_is_read_to_its_end_before_the_next_and_counts_and_epochs_go_on() {
        let (mut ring, news) =
            lasting(Fake { blocks: vec![1, 2, 3], epoch: 255, lost: 7, ..Fake::default() });
        assert_eq!(take(&mut ring), [(1, 255), (2, 255)], "the third is open");
        news.tell(Told::Over);
        let next = Fake { blocks: vec![4, 5], epoch: 9, lost: 10, ..Fake::default() };
        news.tell(Told::Next { ring: Box::new(next), stepped: false });
        assert!(!ring.caught_up());
        assert_eq!(ring.unread(), 3 + 4 + 5);
        assert_eq!(take(&mut ring), [(3, 255), (4, 255)], "the clock went on as it was");
        assert_eq!(ring.lost(), 17);
        news.tell(Told::Over);
        assert_eq!(take(&mut ring), [(5, 255)]);
        let next = Fake { blocks: vec![6, 7], ..Fake::default() };
        news.tell(Told::Next { ring: Box::new(next), stepped: true });
        assert_eq!(take(&mut ring), [(6, 0)], "the clock was stepped");
        assert_eq!((ring.epoch(), ring.unread()), (0, 7));
        ring.end();
        assert_eq!(take(&mut ring), [(7, 0)]);
        assert!(ring.caught_up());
    }
}
