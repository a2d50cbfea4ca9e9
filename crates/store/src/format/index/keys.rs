//! In how many granules does a key stand? Read from the dictionaries alone, one after the other, in
//! bounded memory. How many packets have the key is not known to an index.

use std::io;
use std::sync::Arc;

use tapdeck_packet::key::Class;

use super::code::Room;
use super::granule::{Granule, ShedOf};
use super::image::Image;
use super::lookup::{Index, open};
use crate::format::name::SegmentName;
use crate::io::Storage;

/// How many sections of keys are looked at together.
const SECTIONS: usize = 64;
/// Memory that the keys of those take at most.
const FOUND_ROOM: usize = 32 << 20;
/// Memory that all granules of an index take at most: those of some 30 GiB.
pub(super) const TABLES_ROOM: usize = 28 << 20;

/// Says that all of the index of a segment will be read soon. Returns how many bytes it has.
pub(crate) fn read_ahead(storage: &dyn Storage, name: &SegmentName) -> u64 {
    let Ok(Some(index)) = open(storage, name.index_name().as_ref()) else { return 0 };
    index.prefetch();
    index.length().unwrap_or(0)
}

impl Index {
    /// Opens one chunk, as a builder makes it.
    pub fn of_chunk(chunk: Vec<u8>) -> io::Result<Self> {
        let len = chunk.len() as u64;
        let image = Image::open(Arc::new(chunk), 0, len, &mut Room::endless())?;
        Ok(Self { summary: image.header.summary.clone(), images: vec![image] })
    }

    /// Returns all granules, with what was shed in them: one table, or one for each chunk of a log.
    pub fn tables(&mut self) -> io::Result<Vec<Vec<Granule>>> {
        let mut room = Room::of(TABLES_ROOM);
        self.images.iter_mut().map(|image| table(image, &mut room)).collect()
    }

    /// Returns whether the keys of a class can be listed in a table. They cannot where they are
    /// told by hashes, or not at all.
    pub fn is_listed(&self, table: usize, class: Class) -> bool {
        let dictionary = self.images[table].directory.dictionaries.get(&class);
        dictionary.is_some_and(|dictionary| !dictionary.hashed)
    }

    /// Hands the keys of a table that are of one of two classes of the same width to `each`,
    /// ascending. Each key comes once, with the runs of the granules that hold it: their first
    /// numbers in the table and the ones behind their last, ascending. Keys that cannot be listed
    /// are left out.
    pub fn keys(
        &mut self,
        table: usize,
        classes: [Class; 2],
        mut each: impl FnMut(u128, &[(u32, u32)]),
    ) -> io::Result<()> {
        let listed: Vec<Class> =
            classes.into_iter().filter(|class| self.is_listed(table, *class)).collect();
        let image = &mut self.images[table];
        let mut starts: Vec<u128> = listed
            .iter()
            .filter_map(|class| image.directory.dictionaries.get(class))
            .flat_map(|dictionary| &dictionary.sections)
            .map(|(first, _)| *first)
            .collect();
        starts.sort_unstable();
        let mut starts: Vec<u128> = starts.into_iter().step_by(SECTIONS).collect();
        starts.dedup();
        let mut found = Vec::new();
        for (i, first) in starts.iter().enumerate() {
            let last = starts.get(i + 1).map_or(u128::MAX, |next| next - 1);
            found.clear();
            let mut room = Room::of(FOUND_ROOM);
            let mut has_room = Ok(());
            for class in &listed {
                image.entries(*class, *first, last, |key, from, to, _| {
                    if has_room.is_ok() {
                        has_room = room.take::<(u128, u32, u32)>(1);
                        found.push((key, from, to));
                    }
                })?;
            }
            has_room?;
            #[allow(
                clippy::stable_sort_primitive,
                reason = "it merges two sorted lists in one pass"
            )]
            found.sort();
            for same in found.chunk_by(|a, b| a.0 == b.0) {
                each(same[0].0, &united(same));
            }
        }
        Ok(())
    }
}

fn table(image: &mut Image, room: &mut Room) -> io::Result<Vec<Granule>> {
    let mut granules = image.granules(room)?;
    let is_listed = image.directory.dictionaries.get(&Class::Shed).is_some_and(|d| !d.hashed);
    if !is_listed {
        return Ok(granules);
    }
    let mut has_room = Ok(());
    image.entries(Class::Shed, 0, u128::MAX, |key, from, to, _| {
        let those = granules.get_mut(from as usize..to as usize).unwrap_or_default();
        if has_room.is_ok() {
            has_room = room.take::<ShedOf>(those.len());
        }
        if has_room.is_ok() {
            for granule in those {
                granule.shed.push(ShedOf::of_key(key));
            }
        }
    })?;
    has_room.map(|()| granules)
}

/// Returns runs in the order of their beginnings, those that overlap made one.
fn united(runs: &[(u128, u32, u32)]) -> Vec<(u32, u32)> {
    let mut united: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
    for (_, from, to) in runs {
        match united.last_mut() {
            Some((_, end)) if *end >= *from => *end = (*end).max(*to),
            _ => united.push((*from, *to)),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::united;

    #[test]
    fn a_granule_counts_once() {
        let runs = [(7, 0, 2), (7, 1, 4), (7, 4, 5), (7, 6, 7), (7, 6, 7)];
        assert_eq!(united(&runs), [(0, 5), (6, 7)]);
        assert_eq!(united(&[]), []);
    }
}
