//! Which maps do the programs of groups share with each other and with user space? They are those
//! of `bpf/serve.h`, and this is user space's side of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, PoisonError};
use std::thread;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use tapdeck_packet::ring::layout;

use super::member::{Member, Parts};
use super::steering::{Owner, SLOTS, Shares, Steering};
use crate::ring::Geometry;
use crate::sys::kernel;
use crate::sys::libbpf::{io_error, map};
use crate::sys::mapping::Mapping;

/// The most members that all groups have together.
pub const MAX_MEMBERS: usize = 1024;
/// `sizeof(struct td_group)`. The offsets of its words follow.
pub(super) const GROUP: usize = 64;
const STEERING: usize = 0;
const SNAPLEN: usize = 4;
const PAUSED: usize = 8;
const SOLE: usize = 12;
const LISTED: usize = 16;
const RULES: usize = 20;
/// `sizeof(struct td_slots)`.
pub(super) const SLOTS_BYTES: usize = SLOTS * 2;
/// The places of words in `struct td_counts`, and how many it has.
const SEEN: usize = 0;
const FILTERED: usize = 1;
const CUTOFF: usize = 2;
const NO_MEMBER: usize = 3;
const EXTRA: usize = 4;
const COUNTS: usize = 5;
/// The places of words in `struct td_taken`, and how many it has.
const PACKETS: usize = 0;
const BYTES: usize = 1;
const TAKEN: usize = 2;

/// What the maps of a member are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Rings,
    Data,
    Release,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Rings, Self::Data, Self::Release];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rings => "rings",
            Self::Data => "data",
            Self::Release => "release",
        }
    }

    pub(super) fn stride(self, geometry: &Geometry) -> usize {
        match self {
            Self::Rings => geometry.ring_stride(),
            Self::Data => geometry.data_stride(),
            Self::Release => layout::RELEASE,
        }
    }

    /// Makes a map of this kind, its memory zeroed.
    ///
    /// # Errors
    /// As bpf(2), `BPF_MAP_CREATE`: `ENOMEM` where it does not fit.
    pub(super) fn create(self, geometry: &Geometry) -> io::Result<MapHandle> {
        const BPF_F_MMAPABLE: u32 = 1 << 10;
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: BPF_F_MMAPABLE,
            ..Default::default()
        };
        let (name, value) = (Some(self.name()), self.stride(geometry) as u32);
        MapHandle::create(MapType::Array, name, 4, value, geometry.nrings, &options)
            .map_err(|e| io_error(&e))
    }
}

/// `struct td_counts`, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub seen: u64,
    pub filtered: u64,
    pub cutoff: u64,
    pub no_member: u64,
    pub extra: u64,
}

/// The maps, as user space has them.
pub(super) struct Maps {
    /// The maps of members, in the order of [`Part::ALL`].
    members: [MapHandle; 3],
    groups: Mapping,
    slots: Mapping,
    counts: MapHandle,
    taken: MapHandle,
}

impl Maps {
    /// Finds the maps of a loaded object, which has so many groups.
    pub(super) fn of(object: &Object, groups: usize) -> io::Result<Self> {
        let find = |name: &str| -> io::Result<MapHandle> {
            MapHandle::try_from(&map(object, name)?).map_err(|e| io_error(&e))
        };
        Ok(Self {
            members: [find("rings")?, find("data")?, find("release")?],
            groups: Mapping::of_fd(find("groups")?.as_fd(), groups * GROUP, true)?,
            slots: Mapping::of_fd(find("slots")?.as_fd(), groups * SLOTS_BYTES, true)?,
            counts: find("counts")?,
            taken: find("taken")?,
        })
    }

    /// Lets the programs reach a member's maps, which count for nobody yet.
    pub(super) fn insert(&self, member: u32, parts: [BorrowedFd<'_>; 3]) -> io::Result<()> {
        let none =
            vec![vec![0; TAKEN * 8]; libbpf_rs::num_possible_cpus().map_err(|e| io_error(&e))?];
        self.taken
            .update_percpu(&member.to_ne_bytes(), &none, MapFlags::ANY)
            .map_err(|e| io_error(&e))?;
        let inserts = self.members.iter().zip(parts).map(|(outer, inner)| {
            move || {
                let fd = inner.as_raw_fd();
                outer.update(&member.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            }
        });
        at_once(inserts)
    }

    /// Takes the maps of members away from the programs. No program may reach them any more.
    pub(super) fn remove(&self, members: &[u32]) -> io::Result<()> {
        let removals = members.iter().flat_map(|member| {
            self.members.iter().map(move |outer| move || outer.delete(&member.to_ne_bytes()))
        });
        at_once(removals)
    }

    fn group(&self, group: u32, word: usize) -> &std::sync::atomic::AtomicU32 {
        self.groups.u32(group as usize * GROUP + word)
    }

    pub(super) fn set_steering(&self, group: u32, steering: Steering) {
        self.group(group, STEERING).store(steering.number(), Release);
    }

    pub(super) fn set_snaplen(&self, group: u32, snaplen: u32) {
        self.group(group, SNAPLEN).store(snaplen, Release);
    }

    pub(super) fn set_paused(&self, group: u32, is_paused: bool) {
        self.group(group, PAUSED).store(is_paused.into(), Release);
    }

    pub(super) fn is_paused(&self, group: u32) -> bool {
        self.group(group, PAUSED).load(Relaxed) != 0
    }

    pub(super) fn set_rules(&self, group: u32, has_rules: bool) {
        self.group(group, RULES).store(has_rules.into(), Release);
    }

    pub(super) fn has_rules(&self, group: u32) -> bool {
        self.group(group, RULES).load(Relaxed) != 0
    }

    /// Has another steering choose, by these shares. Each packet meanwhile goes to one member.
    pub(super) fn change_steering(&self, group: u32, steering: Steering, shares: &Shares) {
        // Whoever has everything is not looked for in the slots.
        let somebody = shares.slots().iter().find(|owner| **owner != 0).copied().unwrap_or(0);
        self.group(group, SOLE).store(somebody.into(), Release);
        kernel::wait_for_running_programs();
        self.write_slots(group, shares);
        self.set_steering(group, steering);
        kernel::wait_for_running_programs();
        self.group(group, SOLE).store(shares.sole().into(), Release);
    }

    /// Returns who owns which slot, as the programs are told, and how many slots are listed.
    pub(super) fn slots(&self, group: u32) -> (Vec<Owner>, usize) {
        let first = group as usize * SLOTS_BYTES;
        let pair = |i: usize| self.slots.u32(first + i * 4).load(Relaxed).to_ne_bytes();
        let owners = (0..SLOTS / 2).flat_map(|i| {
            let [a, b, c, d] = pair(i);
            [Owner::from_ne_bytes([a, b]), Owner::from_ne_bytes([c, d])]
        });
        (owners.collect(), self.group(group, LISTED).load(Relaxed) as usize)
    }

    /// Forgets all that there was of a group that had this number.
    pub(super) fn clear_group(&self, group: u32) {
        for word in (0..GROUP).step_by(4) {
            self.group(group, word).store(0, Release);
        }
        for i in 0..SLOTS / 2 {
            self.slots.u32(group as usize * SLOTS_BYTES + i * 4).store(0, Release);
        }
    }

    /// Sets counters to 0 that no program counts in.
    pub(super) fn clear_counts(&self, at: u32) -> io::Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|e| io_error(&e))?;
        let none = vec![vec![0; COUNTS * 8]; cpus];
        self.counts.update_percpu(&at.to_ne_bytes(), &none, MapFlags::ANY).map_err(|e| io_error(&e))
    }

    /// Returns a member's maps, in the order of [`Part::ALL`], if the programs have them.
    pub(super) fn find(&self, member: u32) -> io::Result<[MapHandle; 3]> {
        find(&self.members, member)
    }

    /// Returns the numbers for which the programs have some map of a member.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let has = |number: &u32| {
            let key = number.to_ne_bytes();
            let found =
                |outer: &MapHandle| matches!(outer.lookup(&key, MapFlags::ANY), Ok(Some(_)));
            self.members.iter().any(found)
        };
        (0..MAX_MEMBERS as u32).filter(has).collect()
    }

    /// Tells the programs who owns which slot. At every moment meanwhile, each slot has its old
    /// owner or its new one.
    pub(super) fn set_shares(&self, group: u32, shares: &Shares) {
        if shares.sole() == 0 {
            self.write_slots(group, shares);
            self.group(group, SOLE).store(0, Release);
        } else {
            self.group(group, SOLE).store(shares.sole().into(), Release);
            self.write_slots(group, shares);
        }
    }

    /// Writes the slots that changed. A list that shrinks is shortened before its slots change. The
    /// slots behind its new end stay as they are: a program that has read the old length may still
    /// take an owner from there, which is served until no such program runs.
    fn write_slots(&self, group: u32, shares: &Shares) {
        let listed = self.group(group, LISTED);
        if shares.listed() < listed.load(Relaxed) {
            listed.store(shares.listed(), Release);
        }
        for (i, pair) in shares.slots()[..shares.used()].chunks(2).enumerate() {
            let word = self.slots.u32(group as usize * SLOTS_BYTES + i * 4);
            let before = word.load(Relaxed);
            let mut bytes = before.to_ne_bytes();
            for (half, owner) in bytes.chunks_exact_mut(2).zip(pair) {
                half.copy_from_slice(&owner.to_ne_bytes());
            }
            let owners = u32::from_ne_bytes(bytes);
            if before != owners {
                word.store(owners, Release);
            }
        }
        listed.store(shares.listed(), Release);
    }

    pub(super) fn counts(&self, at: u32) -> io::Result<Counts> {
        let words: [u64; COUNTS] = sums(&self.counts, at)?;
        Ok(Counts {
            seen: words[SEEN],
            filtered: words[FILTERED],
            cutoff: words[CUTOFF],
            no_member: words[NO_MEMBER],
            extra: words[EXTRA],
        })
    }

    /// Reads how many packets, and how many bytes of their frames, were put into a member's rings.
    pub(super) fn taken(&self, member: u32) -> io::Result<(u64, u64)> {
        let words: [u64; TAKEN] = sums(&self.taken, member)?;
        Ok((words[PACKETS], words[BYTES]))
    }
}

/// Returns a member's maps, in the order of [`Part::ALL`], of the maps that the programs have.
fn find(members: &[MapHandle; 3], member: u32) -> io::Result<[MapHandle; 3]> {
    let open = |outer: &MapHandle| {
        let id = outer.lookup(&member.to_ne_bytes(), MapFlags::ANY).map_err(|e| io_error(&e))?;
        let id = id.and_then(|id| <[u8; 4]>::try_from(id).ok());
        let id = id.ok_or(io::ErrorKind::NotFound)?;
        MapHandle::from_map_id(u32::from_ne_bytes(id)).map_err(|e| io_error(&e))
    };
    let [rings, data, release] = members;
    Ok([open(rings)?, open(data)?, open(release)?])
}

/// Returns how many bytes wait in the rings of members whose maps are pinned in a directory.
pub(crate) fn fill_bytes<'a>(
    dir: &Path,
    geometry: Geometry,
    members: impl Iterator<Item = &'a u32>,
) -> io::Result<u64> {
    let open =
        |part: Part| MapHandle::from_pinned_path(dir.join(part.name())).map_err(|e| io_error(&e));
    let [rings, data, release] = Part::ALL.map(open);
    let maps = [rings?, data?, release?];
    let mut bytes = 0;
    for member in members {
        // One that is just coming or leaving has no rings.
        let Ok(its) = find(&maps, *member) else { continue };
        let (its, _) = Member::new(0, 1, &Parts::of(its)?, &geometry)?;
        bytes += its.fill_bytes();
    }
    Ok(bytes)
}

/// Adds up the words of a per-CPU entry.
fn sums<const N: usize>(map: &MapHandle, at: u32) -> io::Result<[u64; N]> {
    let cpus = map.lookup_percpu(&at.to_ne_bytes(), MapFlags::ANY).map_err(|e| io_error(&e))?;
    let mut sums = [0u64; N];
    for cpu in cpus.unwrap_or_default() {
        for (sum, word) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
            *sum += u64::from_ne_bytes(word.try_into().expect("chunks of 8"));
        }
    }
    Ok(sums)
}

/// Makes changes of maps of maps on as many threads as there are changes, or as there can be
/// threads: the kernel waits after each change until no program can see the old state. Each change
/// is tried, whatever becomes of the others.
fn at_once<F>(changes: impl Iterator<Item = F>) -> io::Result<()>
where
    F: FnOnce() -> libbpf_rs::Result<()> + Send,
{
    const THREADS: usize = 96;
    let waiting: Mutex<Vec<F>> = Mutex::new(changes.collect());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        let mut result = Ok(());
        while let Some(change) = next() {
            result = result.and(change());
        }
        result
    };
    let helpers = waiting.lock().unwrap_or_else(PoisonError::into_inner).len().min(THREADS);
    thread::scope(|scope| {
        // This thread works too, and alone where no other can be made.
        let threads: Vec<_> = (1..helpers)
            .map_while(|_| {
                let builder = thread::Builder::new().name("tapdeck-maps".into());
                builder.spawn_scoped(scope, work).ok()
            })
            .collect();
        let own = work();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        results.fold(own, libbpf_rs::Result::and).map_err(|e| io_error(&e))
    })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{
        BYTES, COUNTS, CUTOFF, EXTRA, FILTERED, GROUP, LISTED, MAX_MEMBERS, NO_MEMBER, PACKETS,
        PAUSED, RULES, SEEN, SLOTS, SLOTS_BYTES, SNAPLEN, SOLE, STEERING, TAKEN,
    };
    use crate::sys::arithmetic::serve_layout;
    use crate::sys::params::{MAX_GROUPS, TdEntry, TdFlushMember, TdPort};

    #[test]
    fn fields_are_where_c_has_them() {
        let here = [
            MAX_GROUPS,
            MAX_MEMBERS,
            SLOTS,
            SLOTS_BYTES,
            GROUP,
            STEERING,
            SNAPLEN,
            PAUSED,
            SOLE,
            LISTED,
            RULES,
            size_of::<TdPort>(),
            offset_of!(TdPort, port),
            offset_of!(TdPort, counts),
            offset_of!(TdPort, entries),
            offset_of!(TdPort, entry),
            size_of::<TdEntry>(),
            offset_of!(TdEntry, group),
            offset_of!(TdEntry, interface),
            offset_of!(TdEntry, filter),
            offset_of!(TdEntry, count),
            COUNTS * 8,
            SEEN * 8,
            FILTERED * 8,
            CUTOFF * 8,
            NO_MEMBER * 8,
            EXTRA * 8,
            TAKEN * 8,
            PACKETS * 8,
            BYTES * 8,
            size_of::<TdFlushMember>(),
            offset_of!(TdFlushMember, member),
            offset_of!(TdFlushMember, ring),
            offset_of!(TdFlushMember, block),
        ];
        assert_eq!(here.map(|n| n as u32), serve_layout());
    }
}
