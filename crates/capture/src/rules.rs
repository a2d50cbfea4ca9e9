//! How do rule sets get into the kernel, and how are they exchanged while packets flow without a
//! packet being counted twice or not at all?
//!
//! A [`Compiled`] set is an image (`tapdeck_packet::rules::image`) and what is needed to place it.
//! [`Images`] are the sets of one loaded object, by number. Each lies in a map of its own, as large
//! as the next of four sizes; behind the image in the same map are the counters, a lane for each
//! CPU (or for several, on machines with very many), so an exchange of the map exchanges all
//! of it at once. A packet looks its map up once and keeps to it to the end. When [`Images::set`]
//! returns, no program works with the old map any more, and what that had counted is final: the
//! hits of the old set and of the new one add up to the packets seen.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use tapdeck_packet::printable::counted;
use tapdeck_packet::rules::image::{self, Facts, Image, Lanes, Options};
use tapdeck_packet::rules::{Action, Entry, RuleSet, Tuple};

use crate::flows;
use crate::sys::libbpf::{self, io_error};
use crate::sys::mapping::Mapping;
use crate::sys::{kernel, rules as sys};

/// The sizes of images, each the power of two of its bytes (`TD_IMAGE_SIZE` in `bpf/images.h`).
const SIZES: [u32; 4] = [18, 21, 24, 25];
/// The map that says the size of each set's image. The maps of images have the size behind this
/// name.
const SIZE_MAP: &str = "images";
/// All counters of a set together take at most so many bytes, or CPUs share a lane.
const COUNTER_BYTES: u64 = 4 << 20;
/// Programs that count without atomic additions may not meet in a cache line.
const LINE: u64 = 64;

/// Why rules cannot be put into the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// a set that cannot be judged
    #[error(transparent)]
    Image(#[from] image::Error),
    /// more than the largest map that programs have a place for
    #[error(
        "{} need {mib} MiB of kernel memory, and a set can have {most_mib}: merge some (tapdeck rules compile), or split the set over several groups", counted((*.rules).into(), "rule")
    )]
    TooLarge { rules: u32, mib: u64, most_mib: u64 },
    /// no memory
    #[error(
        "{} need {mib} MiB of kernel memory, which is not there: free some, or take fewer rules", counted((*.rules).into(), "rule")
    )]
    Memory { rules: u32, mib: u64 },
    /// anything else the kernel refuses
    #[error("cannot put {} into the kernel", counted((*.rules).into(), "rule"))]
    Kernel { rules: u32, source: io::Error },
}

impl Error {
    /// Returns whether the rules are at fault, whatever the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Image(_) | Self::TooLarge { .. } => true,
            Self::Memory { .. } | Self::Kernel { .. } => false,
        }
    }
}

/// A rule set ready for the kernel.
#[derive(Clone, Debug)]
pub struct Compiled {
    image: Image,
    lanes: Lanes,
    /// Which of [`SIZES`].
    size: usize,
    cuts_flows: bool,
}

impl Compiled {
    /// # Errors
    /// Where the set is beyond a limit, or names a group that there is not.
    pub fn new(set: &RuleSet, options: &Options) -> Result<Self, Error> {
        let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1) as u64;
        Self::for_cpus(set, options, cpus)
    }

    fn for_cpus(set: &RuleSet, options: &Options, cpus: u64) -> Result<Self, Error> {
        let image = Image::build(set, options)?;
        let rules = set.len() as u32;
        let lane_bytes = ((u64::from(rules) + 1) * 8).next_multiple_of(LINE);
        let mut lanes = cpus.next_power_of_two();
        while lanes > 1 && lanes * lane_bytes > COUNTER_BYTES {
            lanes /= 2;
        }
        let bytes = image.bytes().len() as u64 + lanes * lane_bytes;
        let Some(size) = SIZES.iter().position(|size| bytes <= 1 << size) else {
            let most_mib = 1 << (SIZES[SIZES.len() - 1] - 20);
            return Err(Error::TooLarge { rules, mib: bytes.div_ceil(1 << 20), most_mib });
        };
        let lanes = Lanes {
            at: image.bytes().len() as u32,
            lane_bytes: lane_bytes as u32,
            lanes: lanes as u32,
            is_shared: lanes < cpus,
        };
        let is_cut = |entry: &Entry| matches!(entry.rule.action, Action::Cutoff(_));
        Ok(Self { image, lanes, size, cuts_flows: set.entries().iter().any(is_cut) })
    }

    /// Returns how many rules the set has, those that are not enabled among them.
    pub fn rules(&self) -> u32 {
        self.image.facts().rules
    }

    pub fn facts(&self) -> &Facts {
        self.image.facts()
    }

    /// Returns whether a rule cuts flows off.
    pub fn cuts_flows(&self) -> bool {
        self.cuts_flows
    }

    /// Returns the bytes of the image without counters.
    pub fn image_bytes(&self) -> u64 {
        self.image.bytes().len() as u64
    }

    /// Returns the kernel memory that the set takes, bytes.
    pub fn kernel_bytes(&self) -> u64 {
        1 << SIZES[self.size]
    }

    /// Returns the image with its lanes, as words, which [`Compiled::kernel_bytes`] hold.
    fn words(&self) -> impl Iterator<Item = u64> {
        let mut bytes = self.image.bytes().to_vec();
        self.lanes.write(&mut bytes);
        (0..bytes.len() / 8)
            .map(move |i| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[i * 8 + byte])))
    }

    /// Adds up the lanes, whose words `counter` returns by their places.
    fn hits(&self, counter: impl Fn(usize) -> u64) -> Hits {
        let rules = self.rules() as usize;
        let mut sums: Vec<u64> = vec![0; rules + 1];
        for lane in 0..self.lanes.lanes as usize {
            let at = self.lanes.at as usize + lane * self.lanes.lane_bytes as usize;
            for (rule, sum) in sums.iter_mut().enumerate() {
                *sum += counter(at + rule * 8);
            }
        }
        let none = sums.pop().unwrap_or(0);
        Hits { per_rule: sums, none }
    }
}

/// How many packets each rule has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Packets that each rule took, by rule number.
    pub per_rule: Vec<u64>,
    /// Packets that no rule took.
    pub none: u64,
}

impl Hits {
    /// Returns how many packets were judged.
    pub fn seen(&self) -> u64 {
        self.per_rule.iter().sum::<u64>() + self.none
    }
}

/// What the rules say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule takes it.
    None,
    Accept {
        rule: u32,
    },
    Drop {
        rule: u32,
    },
    Snaplen {
        rule: u32,
        bytes: u32,
    },
    /// The packet is for the group that the set's options gave this number.
    Group {
        rule: u32,
        group: u32,
    },
    /// The packet is captured until its flow has had so many bytes.
    Cutoff {
        rule: u32,
        bytes: u32,
    },
}

impl From<sys::RawVerdict> for Verdict {
    fn from(raw: sys::RawVerdict) -> Self {
        let rule = raw.rule;
        match raw.action {
            sys::action::ACCEPT => Self::Accept { rule },
            sys::action::DROP => Self::Drop { rule },
            sys::action::SNAPLEN => Self::Snaplen { rule, bytes: raw.snaplen },
            sys::action::GROUP => Self::Group { rule, group: raw.group },
            sys::action::CUT_OFF => Self::Cutoff { rule, bytes: raw.cutoff },
            _ => Self::None,
        }
    }
}

impl Verdict {
    /// Reads the words of a `struct td_verdict`.
    pub fn from_words(words: [u32; 5]) -> Self {
        sys::RawVerdict::from_words(words).into()
    }

    /// Returns the rule that takes the packet.
    pub fn rule(&self) -> Option<u32> {
        match *self {
            Self::None => None,
            Self::Accept { rule }
            | Self::Drop { rule }
            | Self::Snaplen { rule, .. }
            | Self::Group { rule, .. }
            | Self::Cutoff { rule, .. } => Some(rule),
        }
    }
}

/// Returns a tuple as the program `tapdeck_judge` of `bpf/rules_test.bpf.c` reads it.
pub fn judged_bytes(tuple: &Tuple) -> [u8; 40] {
    sys::JudgedTuple::from(tuple).bytes()
}

/// The kernel's judge in this process: the same image, the same lines of C.
pub struct Twin {
    compiled: Arc<Compiled>,
    memory: Vec<u64>,
}

impl Twin {
    pub fn new(compiled: &Arc<Compiled>) -> Self {
        let mut memory = vec![0; (compiled.kernel_bytes() / 8) as usize];
        for (to, word) in memory.iter_mut().zip(compiled.words()) {
            *to = word;
        }
        Self { compiled: compiled.clone(), memory }
    }

    /// Judges a packet and counts it, as CPU number `cpu` would.
    pub fn judge(&mut self, tuple: &Tuple, cpu: u32) -> Verdict {
        sys::judge(&mut self.memory, tuple, cpu).into()
    }

    /// Returns whether the Bloom filter takes these words for those of a masked packet and its
    /// signature.
    pub fn bloom(&self, addresses: u64, rest: u64) -> bool {
        sys::bloom(&self.memory, addresses, rest)
    }

    pub fn hits(&self) -> Hits {
        self.compiled.hits(|at| self.memory[at / 8])
    }
}

/// A set in the kernel.
struct Placed {
    compiled: Arc<Compiled>,
    memory: Mapping,
}

impl Placed {
    fn hits(&self) -> Hits {
        self.compiled.hits(|at| self.memory.u64(at).load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// How rule sets get to their places, which takes a privilege.
pub(crate) trait Places: Send {
    /// Makes the memory of the set that is placed next, of one of the sizes. Returns its map.
    fn make(&mut self, size: usize) -> io::Result<OwnedFd>;

    /// Makes the table of the flows that sets cut off, where there is none.
    fn make_flows(&mut self) -> io::Result<()>;

    /// Puts the set that [`Places::make`] made memory for, whose size this is, in the place of the
    /// one that was there, or takes that away. Returns when no program works with that any more.
    fn put(&mut self, number: u32, size: Option<usize>) -> io::Result<()>;
}

/// The maps of a loaded object where programs look for rule sets.
pub(crate) struct PlacesHere {
    /// The size that each set has, from 1; 0 where there is no set.
    sizes: MapHandle,
    /// For each size, the maps of the sets.
    maps: [MapHandle; SIZES.len()],
    /// The size of each set that is there.
    there: Vec<Option<usize>>,
    made: Option<MapHandle>,
    /// The place of the table of flows; `None` where programs judge and do no more.
    flows: Option<MapHandle>,
}

impl PlacesHere {
    /// Finds the maps of an object whose programs include `bpf/images.h`.
    pub(crate) fn of(object: &Object) -> io::Result<Self> {
        let map =
            |name: &str| MapHandle::try_from(&libbpf::map(object, name)?).map_err(|e| io_error(&e));
        let sizes = map(SIZE_MAP)?;
        // A daemon before may have left some.
        let size = |number: u32| {
            let value = sizes.lookup(&number.to_ne_bytes(), MapFlags::ANY).ok()??;
            let size = u32::from_ne_bytes(value.try_into().ok()?) as usize;
            size.checked_sub(1).filter(|size| *size < SIZES.len())
        };
        let there = (0..sizes.max_entries()).map(size).collect();
        let flows = flows::place_of(object).ok();
        let [a, b, c, d] = SIZES.map(|size| map(&format!("{SIZE_MAP}_{size}")));
        Ok(Self { sizes, maps: [a?, b?, c?, d?], there, made: None, flows })
    }
}

impl Places for PlacesHere {
    fn make(&mut self, size: usize) -> io::Result<OwnedFd> {
        let bits = SIZES.get(size).ok_or(io::ErrorKind::InvalidInput)?;
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("rules"), 4, 1 << bits, 1, &options)
            .map_err(|e| io_error(&e))?;
        let fd = map.as_fd().try_clone_to_owned()?;
        self.made = Some(map);
        Ok(fd)
    }

    fn make_flows(&mut self) -> io::Result<()> {
        self.flows.as_ref().map_or(Ok(()), flows::make)
    }

    fn put(&mut self, number: u32, size: Option<usize>) -> io::Result<()> {
        let key = number.to_ne_bytes();
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let there = self.there.get_mut(number as usize).ok_or_else(invalid)?;
        if let Some(size) = size {
            let made = self.made.take().ok_or_else(invalid)?;
            let map = self.maps.get(size).ok_or_else(invalid)?;
            let fd = made.as_fd().as_raw_fd().to_ne_bytes();
            map.update(&key, &fd, MapFlags::ANY).map_err(|e| io_error(&e))?;
        }
        let old = *there;
        if size != old {
            let size = size.map_or(0, |size| size as u32 + 1);
            self.sizes
                .update(&key, &size.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| io_error(&e))?;
        }
        *there = size;
        kernel::wait_for_running_programs();
        if let Some(old) = old.filter(|&old| Some(old) != size) {
            self.maps[old].delete(&key).map_err(|e| io_error(&e))?;
        }
        Ok(())
    }
}

/// The rule sets of one loaded object, by number.
pub struct Images {
    pub(crate) places: Box<dyn Places>,
    placed: Vec<Option<Placed>>,
}

/// Returns the names of the maps that only rules need, for loaders of objects that have them.
pub fn map_names() -> impl Iterator<Item = String> {
    std::iter::once(SIZE_MAP.into()).chain(SIZES.iter().map(|size| format!("{SIZE_MAP}_{size}")))
}

impl Images {
    /// Finds the maps of an object whose programs include `bpf/images.h`. There are no sets at
    /// first.
    pub fn of(object: &Object) -> io::Result<Self> {
        let places = PlacesHere::of(object)?;
        let sets = places.there.len();
        Ok(Self::at(Box::new(places), sets))
    }

    /// Makes so many places, without a set at first.
    pub(crate) fn at(places: Box<dyn Places>, sets: usize) -> Self {
        Self { places, placed: (0..sets).map(|_| None).collect() }
    }

    /// Puts a set in the place of another, or takes it away. Returns what the old set had counted
    /// in the end. Every packet is judged by one of them as a whole.
    ///
    /// # Panics
    /// If there are not so many numbers.
    pub fn set(
        &mut self,
        number: u32,
        compiled: Option<&Arc<Compiled>>,
    ) -> Result<Option<Hits>, Error> {
        let rules = compiled.map_or(0, |compiled| compiled.rules());
        let new = compiled.map(|compiled| self.make(compiled)).transpose()?;
        self.places
            .put(number, new.as_ref().map(|new| new.compiled.size))
            .map_err(|source| Error::Kernel { rules, source })?;
        let old = std::mem::replace(&mut self.placed[number as usize], new);
        Ok(old.map(|old| old.hits()))
    }

    /// Lets go of the memory of the sets, which stay in their places.
    pub(crate) fn forget(&mut self) {
        self.placed.iter_mut().for_each(|placed| *placed = None);
    }

    /// Makes a map with the set in it.
    fn make(&mut self, compiled: &Arc<Compiled>) -> Result<Placed, Error> {
        let rules = compiled.rules();
        let bytes = compiled.kernel_bytes();
        let explain = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOMEM) => Error::Memory { rules, mib: bytes.div_ceil(1 << 20) },
            _ => Error::Kernel { rules, source },
        };
        let map = self.places.make(compiled.size).map_err(explain)?;
        let memory = Mapping::of_fd(map.as_fd(), bytes as usize, true).map_err(explain)?;
        if compiled.cuts_flows {
            self.places.make_flows().map_err(explain)?;
        }
        for (i, word) in compiled.words().enumerate() {
            memory.u64(i * 8).store(word, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(Placed { compiled: compiled.clone(), memory })
    }

    /// Returns the set of a number.
    pub fn get(&self, number: u32) -> Option<&Arc<Compiled>> {
        Some(&self.placed.get(number as usize)?.as_ref()?.compiled)
    }

    /// Returns what a set has counted so far.
    pub fn hits(&self, number: u32) -> Option<Hits> {
        Some(self.placed.get(number as usize)?.as_ref()?.hits())
    }
}
