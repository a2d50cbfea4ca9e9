//! What does a member of a group have, and when is it woken?
//!
//! A member has rings that the programs write and it reads. It is woken by a byte in a pipe: when
//! the block has become complete that it waits for (`wakes`), and now and then as long as it has
//! not read everything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::MapHandle;
use rustix::pipe::{PipeFlags, pipe_with};

use super::maps::Part;
use super::wakes;
use crate::helper::Helper;
use crate::helper::wire::{Fault, Request};
use crate::ring::{Geometry, ReadMemory, RingMemory};
use crate::sys::libbpf::io_error;
use crate::sys::mapping::Mapping;

/// The descriptors that a member gets.
pub(super) struct Ends {
    pub rings: OwnedFd,
    pub data: OwnedFd,
    pub release: OwnedFd,
    pub wake: OwnedFd,
}

/// A member, as the daemon has it.
pub(super) struct Member {
    pub group: usize,
    pub weight: u32,
    rings: Vec<RingMemory>,
    /// Written to when there is something to read. A pipe and not an eventfd: with an eventfd a
    /// member could make the daemon wait.
    wake: Arc<OwnedFd>,
    /// What the member gets when it comes back, as long as it has not since another daemon had it.
    pub away: Option<Ends>,
    looks: Vec<Look>,
    /// Number of looks in a row at which the member had blocks to read, and had read none since the
    /// look before.
    stalled: u32,
}

/// A member that reads nothing, though there are blocks, is woken at once and again after so many
/// looks.
const REMINDER: u32 = 50;

/// A ring as it was at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    block: u32,
    is_open: bool,
    released: u32,
}

/// The maps of a member that are its own, in the order of [`Part::ALL`].
pub(super) struct Parts([OwnedFd; 3]);

impl Parts {
    /// Makes the maps. Only the programs can write the rings and the blocks: user space, the daemon
    /// included, may map those read-only.
    pub(super) fn new(geometry: &Geometry) -> io::Result<Self> {
        let make = |part: Part| -> io::Result<OwnedFd> {
            let map = part.create(geometry)?;
            if !matches!(part, Part::Release) {
                map.freeze().map_err(|e| io_error(&e))?;
            }
            map.as_fd().try_clone_to_owned()
        };
        let [rings, data, release] = Part::ALL.map(make);
        Ok(Self([rings?, data?, release?]))
    }

    /// Takes the maps of a member that is there.
    pub(super) fn of(maps: [MapHandle; 3]) -> io::Result<Self> {
        let [rings, data, release] = maps.map(|map| map.as_fd().try_clone_to_owned());
        Ok(Self([rings?, data?, release?]))
    }

    /// Has the daemon's helper make the maps.
    pub(super) fn by(helper: &Helper) -> io::Result<Self> {
        let made = helper.ask(0, &Request::MakeMember).map_err(Fault::into_error)?;
        let fds = <[OwnedFd; 3]>::try_from(made.fds);
        fds.map(Self).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn all(&self) -> [BorrowedFd<'_>; 3] {
        let [rings, data, release] = &self.0;
        [rings.as_fd(), data.as_fd(), release.as_fd()]
    }

    /// Returns the descriptors, for somebody else.
    pub(super) fn into_fds(self) -> Vec<OwnedFd> {
        self.0.into()
    }
}

impl Member {
    /// Makes a member that has these maps, and the descriptors it gets.
    pub(super) fn new(
        group: usize,
        weight: u32,
        parts: &Parts,
        geometry: &Geometry,
    ) -> io::Result<(Self, Ends)> {
        let map = |part: Part| {
            let len = part.stride(geometry) * geometry.nrings as usize;
            // The number of released blocks is the member's to write, and only looked at here.
            Mapping::of_fd(parts.all()[part as usize], len, false).map(Arc::new)
        };
        let (rings, data, release) = (map(Part::Rings)?, map(Part::Data)?, map(Part::Release)?);
        let (wakes, wake) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let [rings_fd, data_fd, release_fd] = parts.all().map(|fd| fd.try_clone_to_owned());
        let member = Self {
            group,
            weight,
            rings: RingMemory::set(*geometry, &rings, &data, &release),
            wake: Arc::new(wake),
            away: None,
            looks: vec![Look::default(); geometry.nrings as usize],
            stalled: 0,
        };
        Ok((member, Ends { rings: rings_fd?, data: data_fd?, release: release_fd?, wake: wakes }))
    }

    pub(super) fn rings(&self) -> &[RingMemory] {
        &self.rings
    }

    /// Returns the open blocks that hold something, and held something at the last look, where they
    /// can be closed: a full ring has no room for the next block.
    pub(super) fn look(&mut self) -> Vec<(u32, u32)> {
        let mut waiting = Vec::new();
        let mut reads_nothing = false;
        for ((ring, look), i) in self.rings.iter().zip(&mut self.looks).zip(0..) {
            let (block, bytes) = ring.open_block();
            let released = ring.released();
            let is_same = block == look.block;
            let is_full = block.wrapping_add(1).wrapping_sub(released) as i32
                >= ring.geometry().nblocks as i32;
            if is_same && look.is_open && bytes > 0 && !is_full {
                waiting.push((i, block));
            }
            reads_nothing |= released == look.released && released != look.block;
            *look = Look { block, is_open: bytes > 0, released };
        }
        // In case a wake-up found no room, or the member has read from its pipe and not its rings.
        self.stalled = if reads_nothing { self.stalled.wrapping_add(1) } else { 0 };
        if self.stalled % REMINDER == 1 {
            self.wake();
        }
        waiting
    }

    /// Whether there is nothing in the rings.
    pub(super) fn is_empty(&self) -> bool {
        self.rings.iter().all(|ring| ring.open_block() == (ring.released(), 0))
    }

    /// Returns the open blocks that hold something.
    pub(super) fn open_blocks(&self) -> Vec<(u32, u32)> {
        let open = self.rings.iter().zip(0..).filter_map(|(ring, i)| {
            let (block, bytes) = ring.open_block();
            (bytes > 0).then_some((i, block))
        });
        open.collect()
    }

    /// Wakes the member.
    pub(super) fn wake(&self) {
        wakes::wake(&self.wake);
    }

    /// Returns the pipe that wakes the member.
    pub(super) fn pipe(&self) -> Arc<OwnedFd> {
        self.wake.clone()
    }

    /// Returns how many bytes wait in the member's rings. A member that says nonsense about what it
    /// has read is believed up to what there can be.
    pub(super) fn fill_bytes(&self) -> u64 {
        let most = |ring: &RingMemory| u64::from(ring.geometry().ring_bytes());
        self.rings.iter().map(|ring| ring.fill_bytes().min(most(ring))).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo};

    use super::{Member, Parts};
    use crate::groups::maps::Part;
    use crate::ring::Geometry;
    use crate::sys::mapping::Mapping;

    #[test]
    fn a_member_can_write_how_far_it_has_read_and_nothing_else() {
        let geometry = Geometry { nrings: 2, nblocks: 4, block_shift: 16, snaplen: 64 };
        let parts = Parts::new(&geometry).expect("root may make maps");
        let (_member, ends) = Member::new(0, 1, &parts, &geometry).unwrap();
        let fds =
            [(Part::Rings, &ends.rings), (Part::Data, &ends.data), (Part::Release, &ends.release)];
        for ((part, fd), map) in fds.into_iter().zip(parts.all()) {
            let len = part.stride(&geometry) * 2;
            let is_its_own = matches!(part, Part::Release);
            assert!(Mapping::of_fd(fd.as_fd(), len, false).is_ok(), "{part:?}");
            let writable = Mapping::of_fd(fd.as_fd(), len, true);
            let refused = writable.err().and_then(|e| e.raw_os_error());
            assert_eq!(refused, (!is_its_own).then_some(libc::EPERM), "{part:?}");
            let value = vec![1; part.stride(&geometry)];
            let id = MapInfo::new(map).expect("it is a map").info.id;
            let map = MapHandle::from_map_id(id).expect("root may");
            let update = map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY);
            assert_eq!(update.is_ok(), is_its_own, "{part:?}");
        }
    }
}
