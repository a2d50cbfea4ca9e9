//! Makes one index of the chunks of a log.
//!
//! The chunks' dictionaries are sorted, so one pass over all of them at once makes the segment's:
//! in memory stands one section of each chunk. Where a class is told by hashes in one chunk, it is
//! in the whole; the exact keys of the others are few then, and are sorted anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;

use tapdeck_packet::key::Class;

use super::builder::summary;
use super::code::{Room, damaged};
use super::image::{Draft, Entries, EntryKind, Flush, Header, Image, hash};
use super::spots::{Spot, add_spot, order};
use crate::io::Object;

/// Opens the chunks of a log, one behind the other, as far as they are whole and their directories
/// have room.
pub(super) fn chunks(log: &Arc<dyn Object>, room: &mut Room) -> io::Result<Vec<Image>> {
    let len = log.length()?;
    let (mut chunks, mut at) = (Vec::new(), 0);
    while at < len {
        // The last chunk may be on its way.
        let Ok(chunk) = Image::open(log.clone(), at, len, room) else { break };
        at += chunk.len;
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// Writes the index of a segment. `header` says which segment that is and how it ended; what
/// follows from the granules is put in. Returns the image's length.
pub(super) fn merge(
    chunks: &mut [Image],
    mut header: Header,
    flush: &mut Flush<'_>,
) -> io::Result<u64> {
    let mut granules = Vec::new();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        granules
            .extend(chunk.granules(&mut Room::endless())?.into_iter().map(|granule| (granule, i)));
    }
    granules.sort_by_key(|(granule, _)| granule.place.start);
    if granules.windows(2).any(|w| w[0].0.place.end > w[1].0.place.start) {
        return Err(damaged("granules of two chunks overlap"));
    }
    // For each chunk, the number that each of its granules has in the whole.
    let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); chunks.len()];
    for (number, (_, chunk)) in granules.iter().enumerate() {
        numbers[*chunk].push(number as u32);
    }
    let granules: Vec<_> = granules.into_iter().map(|(granule, _)| granule).collect();
    let whole = summary(&granules);
    header.summary.packets = whole.packets;
    header.summary.first_ns = whole.first_ns;
    header.summary.last_ns = whole.last_ns;

    let mut draft = Draft::new(EntryKind::CLOSED, flush);
    granules.into_iter().try_for_each(|granule| draft.granule(granule))?;
    for class in Class::ALL {
        merge_class(chunks, class, &numbers, &mut draft)?;
    }
    draft.finish(&header)
}

fn merge_class(
    chunks: &mut [Image],
    class: Class,
    numbers: &[Vec<u32>],
    draft: &mut Draft<'_>,
) -> io::Result<()> {
    let dictionary = |chunk: &Image| {
        let dictionary = chunk.directory.dictionaries.get(&class);
        dictionary.map(|dictionary| (dictionary.hashed, dictionary.width(class)))
    };
    // Where one chunk does not tell of the class, the whole cannot.
    let told: Option<Vec<(bool, usize)>> = chunks.iter().map(dictionary).collect();
    let Some(told) = told else { return Ok(()) };
    let hashed = told.iter().any(|(hashed, _)| *hashed);
    let mut streams = Vec::with_capacity(chunks.len());
    for ((chunk, numbers), (is_hashed, width)) in chunks.iter_mut().zip(numbers).zip(told) {
        streams.push(if hashed && !is_hashed {
            ChunkKeys::rehashed(chunk, class, numbers)?
        } else {
            ChunkKeys::sections(chunk, class, width, Numbers::Each(numbers))
        });
    }
    let mut merged = MergedKeys::of(streams)?;
    draft.class(class, hashed, |spots| merged.next(spots))
}

/// The keys of several chunks, in order, each once.
pub(super) struct MergedKeys<'a> {
    streams: Vec<ChunkKeys<'a>>,
    /// The next key of each stream that has one.
    heads: BinaryHeap<Reverse<(u128, usize)>>,
    /// Where each stream's next key stands.
    lists: Vec<Vec<Spot>>,
}

impl<'a> MergedKeys<'a> {
    pub fn of(mut streams: Vec<ChunkKeys<'a>>) -> io::Result<Self> {
        let mut heads = BinaryHeap::new();
        let mut lists = vec![Vec::new(); streams.len()];
        for (i, stream) in streams.iter_mut().enumerate() {
            heads.extend(stream.next(&mut lists[i])?.map(|key| Reverse((key, i))));
        }
        Ok(Self { streams, heads, lists })
    }

    /// Returns the next key, and puts where it stands, ascending, into `spots`, which is empty.
    pub fn next(&mut self, spots: &mut Vec<Spot>) -> io::Result<Option<u128>> {
        let Some(&Reverse((key, _))) = self.heads.peek() else { return Ok(None) };
        while let Some(Reverse((_, i))) = self.heads.peek().copied().filter(|h| h.0.0 == key) {
            self.heads.pop();
            spots.append(&mut self.lists[i]);
            let next = self.streams[i].next(&mut self.lists[i])?;
            self.heads.extend(next.map(|key| Reverse((key, i))));
        }
        order(spots);
        Ok(Some(key))
    }
}

/// Which numbers the granules of a chunk have in the whole.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    /// Each granule has one of its own.
    Each(&'a [u32]),
    /// All granules, of which there are so many, have one together.
    All { of: u32, number: u32 },
}

impl Numbers<'_> {
    fn of(self) -> u32 {
        match self {
            Self::Each(numbers) => numbers.len() as u32,
            Self::All { of, .. } => of,
        }
    }

    /// Puts the numbers of a run of granules behind others, with the quarters of each.
    #[inline]
    fn put(self, from: u32, to: u32, quarters: u8, spots: &mut Vec<Spot>) {
        match self {
            Self::Each(numbers) if to == from + 1 => {
                spots.extend(numbers.get(from as usize).map(|of| Spot::new(*of, quarters)));
            }
            Self::Each(numbers) => {
                let numbers = numbers.get(from as usize..to as usize).unwrap_or_default();
                spots.extend(numbers.iter().map(|number| Spot::new(*number, quarters)));
            }
            Self::All { number, .. } => add_spot(spots, Spot::whole(number)),
        }
    }
}

/// The keys of a class of one chunk, in order, with the numbers that granules have in the whole.
pub(super) enum ChunkKeys<'a> {
    Sections {
        chunk: &'a mut Image,
        class: Class,
        /// Bytes of a key.
        width: usize,
        numbers: Numbers<'a>,
        next: usize,
        bytes: Vec<u8>,
        at: usize,
        key: [u8; 16],
    },
    /// Pairs, each a key above the number of a granule.
    Pairs(std::iter::Peekable<std::vec::IntoIter<u64>>),
}

impl<'a> ChunkKeys<'a> {
    /// Takes the keys as they stand in a chunk, each of `width` bytes.
    pub fn sections(
        chunk: &'a mut Image,
        class: Class,
        width: usize,
        numbers: Numbers<'a>,
    ) -> Self {
        let (next, bytes, at, key) = (0, Vec::new(), 0, [0; 16]);
        Self::Sections { chunk, class, width, numbers, next, bytes, at, key }
    }

    fn rehashed(chunk: &mut Image, class: Class, numbers: &[u32]) -> io::Result<Self> {
        let mut pairs = Vec::new();
        chunk.entries(class, 0, u128::MAX, |key, from, to, _| {
            let granules = numbers.get(from as usize..to as usize).unwrap_or_default();
            pairs.extend(
                granules.iter().map(|granule| (hash(key) as u64) << 32 | u64::from(*granule)),
            );
        })?;
        pairs.sort_unstable();
        pairs.dedup();
        Ok(Self::Pairs(pairs.into_iter().peekable()))
    }

    /// Returns the next key, and puts where it stands behind `spots`.
    fn next(&mut self, spots: &mut Vec<Spot>) -> io::Result<Option<u128>> {
        match self {
            Self::Pairs(pairs) => {
                let Some(pair) = pairs.next() else { return Ok(None) };
                spots.push(Spot::whole(pair as u32));
                while let Some(same) = pairs.next_if(|next| next >> 32 == pair >> 32) {
                    spots.push(Spot::whole(same as u32));
                }
                Ok(Some(u128::from(pair >> 32)))
            }
            Self::Sections { chunk, class, width, numbers, next, bytes, at, key } => loop {
                let rest = bytes.get(*at..).unwrap_or_default();
                let entries = Entries::new(rest, chunk.version, *width, numbers.of());
                let mut entries = entries.behind(*key);
                let found = entries.next(|_, from, to, quarters| {
                    numbers.put(from, to, quarters, spots);
                })?;
                *at = bytes.len() - entries.rest();
                *key = entries.key();
                if found.is_some() {
                    return Ok(found);
                }
                let Some(section) = chunk.section(*class, *next)? else { return Ok(None) };
                (*next, *bytes, *at, *key) = (*next + 1, section, 0, [0; 16]);
            },
        }
    }
}
