//! Does an overview say what the indexes of its segments say? For [`crate::reading::verify`].
//!
//! Of each class and member a sum over hashes of the keys is taken, from the overview and from the
//! member's index: in whatever order, the same keys make the same sum. So all of an overview is
//! checked in little memory.

use std::io;

use tapdeck_packet::key::Class;

use super::make::{Source, hashes};
use super::{Member, Overview};
use crate::format::index::code::Room;
use crate::format::name::SegmentName;
use crate::io::Storage;

/// Returns what is wrong with the overview that is named after a segment, as far as it covers
/// segments that are there and are what they were. `None` where there is no overview.
pub(crate) fn differences(
    storage: &dyn Storage,
    last: &SegmentName,
) -> io::Result<Option<Vec<String>>> {
    let Some(mut overview) = Overview::open(storage, last)? else { return Ok(None) };
    overview.read_directory()?;
    let members = overview.members().to_vec();
    let mut sums = vec![vec![0u64; members.len()]; Class::ALL.len()];
    for (class, sums) in Class::ALL.into_iter().zip(&mut sums) {
        overview.image.entries(class, 0, u128::MAX, |key, from, to, _| {
            for sum in &mut sums[from as usize..to as usize] {
                *sum = sum.wrapping_add(mixed(key));
            }
        })?;
    }
    let mut wrong = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let name = SegmentName { number: member.number, began_s: member.began_s, live: false };
        let state = storage.state(name.to_string().as_ref());
        if !state.is_ok_and(|state| overview.covers(&name, &state).is_some()) {
            continue;
        }
        // What is wrong with the index is told of that.
        let Ok(mut source) = Source::of(storage, &name, &mut Room::endless()) else { continue };
        let mut opaque = overview.image.directory.opaque.iter();
        let is_opaque = opaque.any(|(from, to)| (*from..*to).contains(&(at as u32)));
        let told = Member { head: member.head, ..source.member.clone() };
        let mut differs = told != *member
            || overview.heads()[member.head] != source.head
            || source.opaque != is_opaque;
        for (class, sums) in Class::ALL.into_iter().zip(&sums) {
            let Some(dictionary) = overview.image.directory.dictionaries.get(&class) else {
                continue;
            };
            let mut sum = 0u64;
            if !source.image.directory.dictionaries.contains_key(&class) {
                differs = true;
            } else if dictionary.hashed {
                let set = hashes(&mut source.image, class)?;
                set.iter().for_each(|hash| sum = sum.wrapping_add(mixed(u128::from(hash))));
            } else {
                let mut before = None;
                source.image.entries(class, 0, u128::MAX, |key, _, _, _| {
                    // A key comes once for each run of its granules.
                    if before.replace(key) != Some(key) {
                        sum = sum.wrapping_add(mixed(key));
                    }
                })?;
            }
            differs |= sum != sums[at];
        }
        if differs {
            wrong.push(format!("what it says of {name} is not what the index of that says"));
        }
    }
    Ok(Some(wrong))
}

/// Returns a hash of a key, all of its bits.
fn mixed(key: u128) -> u64 {
    // The finalizer of SplitMix64, over one half and the other.
    let mix = |n: u64| {
        let z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    mix(key as u64 ^ mix((key >> 64) as u64))
}
