//! Does an index say what its segment holds?
//!
//! The segment is indexed anew, chunk by chunk, with granules and quarters that end where those of
//! the index do; then both must say the same.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use tapdeck_packet::key::Class;
use tapdeck_packet::link::LinkType;

use super::builder::{Builder, Ends};
use super::code::Room;
use super::granule::{Granule, Quarters};
use super::image::{Image, has_quarters, hash};
use super::keys::TABLES_ROOM;
use super::lookup::Index;
use crate::format::name::SegmentName;

/// A place where an index and its segment do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Where the granule begins in the segment.
    pub at: u64,
    /// Whether the segment is not what was indexed; else the index does not say what it should.
    pub is_segments: bool,
    pub what: String,
}

/// Takes the blocks of a segment in their order and holds them against its index.
pub(crate) struct Checker {
    images: Vec<(Image, Vec<Granule>)>,
    /// The stretches that are yet to be taken, each with the number of its image.
    stretches: VecDeque<(usize, Range<u64>)>,
    builder: Builder,
    /// The number of the image that the builder's blocks are of.
    image: usize,
    /// How many granules of each image are done.
    done: Vec<usize>,
    /// Chunks whose keys are yet to be held against those of that image, each with the number of
    /// its first granule there.
    made: Vec<(u32, Image)>,
    /// About how many pairs of key and granule a class has in those chunks, at most.
    pairs: usize,
}

/// Keys are held against each other when there are so many pairs: each time reads all keys of an
/// image, and the memory is bounded.
const PAIRS: usize = 1 << 20;

impl Checker {
    pub fn new(index: Index, name: &SegmentName, links: Vec<LinkType>) -> io::Result<Self> {
        let mut images = Vec::new();
        let mut stretches = Vec::new();
        let mut ends = Ends { granules: Vec::new(), quarters: Vec::new() };
        let mut room = Room::of(TABLES_ROOM);
        for (i, mut image) in index.images.into_iter().enumerate() {
            stretches.extend(image.directory.parts.iter().map(|part| (i, part.clone())));
            let granules = image.granules(&mut room)?;
            ends.granules.extend(granules.iter().map(|g| g.place.end));
            for Granule { place, quarters, .. } in &granules {
                let mut at = place.start;
                let (_, but_last) = quarters.each().split_last().unzip();
                for quarter in but_last.unwrap_or_default() {
                    at += u64::from(quarter.len);
                    ends.quarters.push(at);
                }
            }
            images.push((image, granules));
        }
        stretches.sort_by_key(|(_, part)| part.start);
        ends.granules.sort_unstable();
        ends.quarters.sort_unstable();
        let done = vec![0; images.len()];
        let builder = Builder::new(name, links).with_ends(ends);
        let stretches = stretches.into();
        Ok(Self { images, stretches, builder, image: 0, done, made: Vec::new(), pairs: 0 })
    }

    /// Returns where the next blocks lie that are to be taken.
    pub fn wants(&self) -> Option<Range<u64>> {
        self.stretches.front().map(|(_, stretch)| stretch.clone())
    }

    /// Takes whole blocks that lie at the beginning of what [`Checker::wants`] returns.
    pub fn take(&mut self, blocks: &[u8], differences: &mut Vec<Difference>) -> io::Result<()> {
        let Some((image, stretch)) = self.stretches.front_mut() else { return Ok(()) };
        if *image != self.image {
            let image = *image;
            self.check(differences)?;
            self.check_keys(differences)?;
            self.image = image;
            return self.take(blocks, differences);
        }
        let offset = stretch.start;
        let end = offset + blocks.len() as u64;
        stretch.start = end;
        if stretch.is_empty() {
            self.stretches.pop_front();
        }
        // A chunk must end where a granule does.
        let (_, granules) = &self.images[self.image];
        let behind = granules.partition_point(|g| g.place.end <= end);
        let cut = granules[..behind].last().map_or(0, |g| g.place.end.saturating_sub(offset));
        let (first, rest) = blocks.split_at(cut as usize);
        if !first.is_empty() {
            self.builder.add(offset, first, cut);
            if self.builder.is_full() {
                self.check(differences)?;
            }
        }
        if !rest.is_empty() {
            self.builder.add(offset + cut, rest, rest.len() as u64);
        }
        Ok(())
    }

    /// Checks what is left, after the last blocks.
    pub fn finish(mut self, differences: &mut Vec<Difference>) -> io::Result<()> {
        self.check(differences)?;
        self.check_keys(differences)?;
        for (i, (_, granules)) in self.images.iter().enumerate() {
            if let Some(granule) = granules.get(self.done[i]) {
                let what = "it is indexed and not in the segment".into();
                differences.push(Difference { at: granule.place.start, is_segments: true, what });
            }
        }
        Ok(())
    }

    fn check(&mut self, differences: &mut Vec<Difference>) -> io::Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        self.pairs += self.builder.pairs();
        let chunk = self.builder.chunk();
        let len = chunk.len() as u64;
        let mut made = Image::open(Arc::new(chunk), 0, len, &mut Room::endless())?;
        let granules = made.granules(&mut Room::endless())?;
        let (_, have) = &self.images[self.image];
        let first = self.done[self.image];
        self.done[self.image] += granules.len();
        for (i, made) in granules.iter().enumerate() {
            let at = made.place.start;
            let Some(what) = have.get(first + i).map_or_else(
                || Some((false, "it is not indexed".to_owned())),
                |have| differ(have, made),
            ) else {
                continue;
            };
            differences.push(Difference { at, is_segments: what.0, what: what.1 });
            // Granules that do not lie alike cannot be held against each other.
            if have.get(first + i).is_none_or(|have| have.place != made.place) {
                return Ok(());
            }
        }
        self.made.push((first as u32, made));
        if self.pairs >= PAIRS { self.check_keys(differences) } else { Ok(()) }
    }

    fn check_keys(&mut self, differences: &mut Vec<Difference>) -> io::Result<()> {
        self.pairs = 0;
        let made = std::mem::take(&mut self.made);
        let (Some((first, _)), Some((last, end))) = (made.first(), made.last()) else {
            return Ok(());
        };
        let numbers = *first..*last + end.directory.granules;
        let (image, granules) = &mut self.images[self.image];
        let mut made = made;
        for class in Class::ALL {
            if let Some((granule, what)) = differ_in(image, &numbers, &mut made, class)? {
                let at = granules.get(granule as usize).map_or(0, |g| g.place.start);
                differences.push(Difference { at, is_segments: false, what });
            }
        }
        Ok(())
    }
}

fn differ(have: &Granule, made: &Granule) -> Option<(bool, String)> {
    if have.place != made.place {
        let what = format!("it ends at {} and not at {}", made.place.end, have.place.end);
        return Some((true, what));
    }
    let (of_have, of_made) = (have.quarters.checksum(), made.quarters.checksum());
    if of_have != of_made {
        return Some((true, format!("checksum {of_made:08x} and not {of_have:08x}")));
    }
    if have.quarters != made.quarters {
        return Some((false, "its quarters are not what the index says".into()));
    }
    let of = |g: &Granule| (g.packets, g.first_ns, g.last_ns, g.opaque, g.dropped.clone());
    (of(have) != of(made)).then(|| {
        let what = format!("the index tells of it {:?}, where there are {:?}", of(have), of(made));
        (false, what)
    })
}

/// Returns the first key that only one of the two has in a granule, or that the index leaves out in
/// a quarter of it, and the granule's number.
/// `made` has the granules of `numbers`, each chunk from a number on.
fn differ_in(
    have: &mut Image,
    numbers: &Range<u32>,
    made: &mut [(u32, Image)],
    class: Class,
) -> io::Result<Option<(u32, String)>> {
    // Whoever made an index that does not tell of the class did not know it, and so it says nothing
    // that could be wrong.
    let Some(dictionary) = have.directory.dictionaries.get(&class) else { return Ok(None) };
    // What was made is exact.
    let is_hashed = dictionary.hashed;
    let tells_quarters = has_quarters(class) && !is_hashed;
    let told = |quarters: u8| if tells_quarters { quarters } else { Quarters::ALL };
    let mut due = Vec::new();
    for (first, made) in made {
        made.entries(class, 0, u128::MAX, |key, from, to, quarters| {
            let key = if is_hashed { hash(key) } else { key };
            due.extend((from..to).map(|granule| (key, *first + granule, told(quarters))));
        })?;
    }
    let mut there = Vec::new();
    have.entries(class, 0, u128::MAX, |key, from, to, quarters| {
        // A few bytes can say more than there is memory for. What is more than is due differs.
        let room = (due.len() + 1).saturating_sub(there.len());
        let granules = from.max(numbers.start)..to.min(numbers.end);
        there.extend(granules.take(room).map(|granule| (key, granule, told(quarters))));
    })?;
    for pairs in [&mut there, &mut due] {
        pairs.sort_unstable();
        pairs.dedup_by(|pair, before| {
            let is_same = (pair.0, pair.1) == (before.0, before.1);
            if is_same {
                before.2 |= pair.2;
            }
            is_same
        });
    }
    // A key may be told of more quarters than it stands in, but not of fewer.
    let tells = |there: &(u128, u32, u8), due: &(u128, u32, u8)| {
        (there.0, there.1) == (due.0, due.1) && due.2 & !there.2 == 0
    };
    let same = there.iter().zip(&due).take_while(|(there, due)| tells(there, due)).count();
    let (missing, extra) = ("has, which the index does not know", "does not have");
    let ((key, granule, _), what) = match (there.get(same), due.get(same)) {
        (None, None) => return Ok(None),
        (Some(there), Some(due)) if (there.0, there.1) == (due.0, due.1) => {
            (*due, "has in a quarter that the index does not name")
        }
        (Some(there), Some(due)) if there < due => (*there, extra),
        (Some(there), None) => (*there, extra),
        (_, Some(due)) => (*due, missing),
    };
    Ok(Some((granule, format!("{} {key:#x}, that the granule {what}", class.name()))))
}
