//! Which granules of a segment may hold what is asked for?
//!
//! An [`Index`] is opened for reading here and asked with a [`Plan`]. It answers with granules,
//! never with packets: those are read and judged by whoever asked.

use std::ffi::OsStr;
use std::io;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use roaring::RoaringBitmap;
use tapdeck_packet::key::{Class, Plan};

use super::code::{Room, damaged};
use super::granule::{Granule, Quarters, Summary};
use super::image::{GranuleRun, Image, hash};
use super::merge;
use super::stretches::joined;
use super::trust::believe;
use crate::format::name::SegmentName;
use crate::format::segment::open_segment;
use crate::io::{Access, Object, Owner, Storage};
use crate::span::Span;

/// Memory that the directories of an index take at most. Those of a segment of 128 GiB take less.
const DIRECTORIES_ROOM: usize = 8 << 20;
/// Memory that the granules take at most which a question selects: some 100,000, of 12 GiB. Where
/// more are wanted, reading everything takes not much longer.
const SELECTED_ROOM: usize = 12 << 20;

/// The index of a segment, opened for reading.
#[derive(Debug)]
pub(crate) struct Index {
    /// One image, or the chunks of a log.
    pub(super) images: Vec<Image>,
    pub(super) summary: Summary,
}

impl Index {
    /// Opens what there is for a segment of `segment_len` bytes: its index, or the log of an index
    /// that is being made. `None` where there is neither; an error where it is damaged or another
    /// segment's.
    pub fn open(
        storage: &dyn Storage,
        name: &SegmentName,
        segment_len: u64,
    ) -> io::Result<Option<Self>> {
        // The log of a segment that is closed meanwhile becomes an index.
        for _ in 0..2 {
            if let Some(object) = open(storage, name.index_name().as_ref())? {
                believe(&*object, || owner_of(storage, name))?;
                return Self::closed(object, name, segment_len).map(Some);
            }
            if let Some(log) = Self::open_log(storage, name)? {
                return Ok(Some(log));
            }
        }
        Ok(None)
    }

    /// Opens the log of a segment's index, and never the index.
    pub fn open_log(storage: &dyn Storage, name: &SegmentName) -> io::Result<Option<Self>> {
        let Some(object) = open(storage, name.index_log_name().as_ref())? else { return Ok(None) };
        believe(&*object, || owner_of(storage, name))?;
        Self::log(&object, name).map(Some)
    }

    pub(super) fn closed(
        object: Arc<dyn Object>,
        name: &SegmentName,
        segment_len: u64,
    ) -> io::Result<Self> {
        let len = object.length()?;
        let image = Image::open(object, 0, len, &mut Room::of(DIRECTORIES_ROOM))?;
        let fits = if name.live {
            image.header.segment_len >= segment_len
        } else {
            image.header.segment_len == segment_len
        };
        if !image.header.is_of(name) || !fits || !image.header.summary.complete {
            return Err(damaged("it is another segment's, or that was changed"));
        }
        Ok(Self { summary: image.header.summary.clone(), images: vec![image] })
    }

    fn log(object: &Arc<dyn Object>, name: &SegmentName) -> io::Result<Self> {
        let images = merge::chunks(object, &mut Room::of(DIRECTORIES_ROOM))?;
        if images.iter().any(|image| !image.header.is_of(name)) {
            return Err(damaged("it is another segment's"));
        }
        let of = |i: &Image| i.header.summary.clone();
        let summary = Summary {
            packets: images.iter().map(|i| of(i).packets).sum(),
            first_ns: images.iter().map(|i| of(i).first_ns).min().unwrap_or(i64::MAX),
            last_ns: images.iter().map(|i| of(i).last_ns).max().unwrap_or(i64::MIN),
            dropped: 0,
            outside: 0,
            complete: false,
        };
        Ok(Self { images, summary })
    }

    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Returns the parts of the segment that are indexed, ascending, none next to another. What
    /// lies between and behind them, within the segment's body, has to be read, unless the index is
    /// complete.
    pub fn indexed(&self) -> Vec<Range<u64>> {
        joined(self.images.iter().flat_map(|i| i.directory.parts.iter().cloned()).collect())
    }

    /// Returns how many bytes the index has, up to the end of a log's last whole chunk.
    pub fn len(&self) -> u64 {
        self.images.iter().map(|i| i.len).sum()
    }

    /// Reads all of the index. An error means that it is damaged.
    pub fn read_all(&mut self) -> io::Result<()> {
        self.images.iter_mut().try_for_each(Image::read_all)
    }

    /// Returns how many granules there are.
    pub fn granules(&self) -> u64 {
        self.images.iter().map(|i| u64::from(i.directory.granules)).sum()
    }

    /// Returns the granules that may hold packets of `plan` within `span`, and those inside the
    /// span that tell of losses, in the order of the segment. An error means that the index is
    /// damaged: then the segment has to be read instead.
    pub fn select(&mut self, plan: &Plan, span: Span) -> io::Result<Vec<Granule>> {
        let mut selected = Vec::new();
        let mut room = Room::of(SELECTED_ROOM);
        for image in &mut self.images {
            select(image, plan, span, &mut selected, &mut room)?;
        }
        selected.sort_by_key(|granule| granule.place.start);
        Ok(selected)
    }

    /// Returns how many bytes of the index were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.images.iter().map(|i| i.bytes_read).sum()
    }
}

fn owner_of(storage: &dyn Storage, name: &SegmentName) -> io::Result<Option<Owner>> {
    Ok(open_segment(storage, name, Access::Ranges)?.state()?.owner)
}

/// Opens an index or a log; `None` where there is none.
pub(super) fn open(storage: &dyn Storage, name: &OsStr) -> io::Result<Option<Arc<dyn Object>>> {
    match storage.open(name, Access::Scattered) {
        Ok(object) => Ok(Some(object)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn select(
    image: &mut Image,
    plan: &Plan,
    span: Span,
    to: &mut Vec<Granule>,
    room: &mut Room,
) -> io::Result<()> {
    let reaches =
        |first_ns: i64, last_ns: i64| first_ns < span.before_ns && last_ns >= span.after_ns;
    let groups: Vec<_> = image
        .directory
        .groups
        .iter()
        .filter(|group| reaches(group.first_ns, group.last_ns))
        .cloned()
        .collect();
    if groups.is_empty() {
        return Ok(());
    }
    let wanted = find(image, plan)?.map(|mut found| {
        for (from, to) in &image.directory.opaque {
            found.insert_range(quarters_of(*from).start..quarters_of(*to).start);
        }
        found
    });
    let mut telling = RoaringBitmap::new();
    add(&mut telling, &image.directory.telling);
    let numbers = |group: &GranuleRun| group.first..group.first + group.count;
    let groups: Vec<_> = groups
        .into_iter()
        .filter(|group| {
            let Range { start, end } = numbers(group);
            let quarters = quarters_of(start).start..quarters_of(end).start;
            let some = |set: &RoaringBitmap, range| set.range_cardinality(range) > 0;
            wanted.as_ref().is_none_or(|wanted| some(wanted, quarters))
                || some(&telling, start..end)
        })
        .collect();
    // Granules come in order, and so do the numbers that are looked for.
    let mut wanted = wanted.as_ref().map(|set| set.iter().peekable());
    let mut telling = telling.iter().peekable();
    image.groups(&groups, |number, mut granule| {
        granule.wanted = match &mut wanted {
            None => Quarters::ALL,
            Some(wanted) => take_quarters(wanted, number),
        };
        while telling.next_if(|tells| *tells < number).is_some() {}
        let tells = telling.peek() == Some(&number);
        if (granule.wanted != 0 || tells) && reaches(granule.first_ns, granule.last_ns) {
            granule.take_up(room)?;
            to.push(granule);
        }
        Ok(())
    })
}

/// Takes the quarters of a granule off ascending ones, and those before it.
fn take_quarters(quarters: &mut Peekable<impl Iterator<Item = u32>>, granule: u32) -> u8 {
    let Range { start, end } = quarters_of(granule);
    let mut bits = 0;
    while let Some(quarter) = quarters.next_if(|quarter| *quarter < end) {
        if quarter >= start {
            bits |= 1 << (quarter - start);
        }
    }
    bits
}

pub(super) fn add(set: &mut RoaringBitmap, runs: &[(u32, u32)]) {
    for (from, to) in runs {
        set.insert_range(*from..*to);
    }
}

/// Granules too few to be worth a further question: that costs a read, as a granule too many does.
const FEW: usize = 2;

/// Returns whether a set of quarters is of a few granules at most.
fn is_of_few(quarters: &RoaringBitmap) -> bool {
    let mut granules: Vec<u32> = quarters
        .iter()
        .take(FEW * Quarters::MOST + 1)
        .map(|quarter| quarter / Quarters::MOST as u32)
        .collect();
    granules.dedup();
    granules.len() <= FEW
}

/// Returns the numbers that the quarters of a granule have among those of all.
fn quarters_of(granule: u32) -> Range<u32> {
    const MOST: u32 = Quarters::MOST as u32;
    granule * MOST..(granule + 1) * MOST
}

/// Returns the quarters with the keys of a plan, by the numbers that they have if each granule has
/// four; `None` for all. Granules whose keys are not all known are not among them.
///
/// All keys of a packet are told of the one quarter that its block lies in, so what must be in one
/// packet must be in one quarter.
pub(super) fn find(image: &mut Image, plan: &Plan) -> io::Result<Option<RoaringBitmap>> {
    match plan {
        Plan::All => Ok(None),
        Plan::Keys { class, first, last } => find_keys(image, *class, *first, *last),
        Plan::Any(plans) => {
            let mut any = RoaringBitmap::new();
            for plan in plans {
                match find(image, plan)? {
                    Some(found) => any |= found,
                    None => return Ok(None),
                }
            }
            Ok(Some(any))
        }
        Plan::Every(plans) => {
            let mut plans: Vec<&Plan> = plans.iter().collect();
            plans.sort_by_key(|plan| commonness(plan));
            let mut every: Option<RoaringBitmap> = None;
            for plan in plans {
                if every.as_ref().is_some_and(is_of_few) {
                    break;
                }
                every = match (every, find(image, plan)?) {
                    (Some(a), Some(b)) => Some(a & b),
                    (a, b) => a.or(b),
                };
            }
            Ok(every)
        }
    }
}

/// Returns a measure of how many granules a plan is likely to leave: the plan that leaves few is
/// asked first.
fn commonness(plan: &Plan) -> u32 {
    match plan {
        Plan::All => u32::MAX,
        Plan::Every(plans) => plans.iter().map(commonness).min().unwrap_or(u32::MAX),
        Plan::Any(plans) => plans.iter().map(commonness).max().unwrap_or(0),
        Plan::Keys { class, first, last } => {
            let class = match class {
                Class::SourceIpv4 | Class::DestinationIpv4 => 0,
                Class::SourceIpv6 | Class::DestinationIpv6 => 1,
                Class::SourcePort | Class::DestinationPort | Class::Mpls => 2,
                Class::SourceMac | Class::DestinationMac | Class::Vlan => 3,
                Class::Protocol => 4,
                Class::EtherType => 5,
                Class::Shed => 6,
            };
            8 * (128 - (last - first).leading_zeros()) + class
        }
    }
}

fn find_keys(
    image: &mut Image,
    class: Class,
    first: u128,
    last: u128,
) -> io::Result<Option<RoaringBitmap>> {
    let Some(dictionary) = image.directory.dictionaries.get(&class) else { return Ok(None) };
    let (first, last) = match dictionary.hashed {
        true if first != last => return Ok(None),
        true => (hash(first), hash(first)),
        false => (first, last),
    };
    let mut found = RoaringBitmap::new();
    image.entries(class, first, last, |_, from, to, quarters| {
        if quarters == Quarters::ALL {
            found.insert_range(quarters_of(from).start..quarters_of(to).start);
        } else {
            let there = (from..to).flat_map(quarters_of);
            found.extend(there.filter(|q| quarters & 1 << (q % Quarters::MOST as u32) != 0));
        }
    })?;
    Ok(Some(found))
}
