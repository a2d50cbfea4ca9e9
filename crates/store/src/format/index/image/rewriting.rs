//! Writes images as others would: with another version's directory, or with other classes.

use std::sync::Arc;

use tapdeck_packet::key::Class;

use super::{
    Directory, HEADER, Header, Image, Opening, PAGE, Room, Section, VERSION, VERSION_1, VERSION_2,
};
use super::{Draft, EntryKind, Flush};
use super::{EncodedClass, classes_of_version_1, put_classes};
use crate::format::index::spots::Spot;

/// Returns an image as version 2 has it.
pub fn to_version_2(image: &[u8]) -> Vec<u8> {
    redrafted(image, EntryKind::Lists, |_, _| {})
}

/// A key, and where it stands.
pub type Entry = (u128, Vec<Spot>);

/// Returns an image made anew, after `change` was made to the entries of each class.
pub fn with_entries(image: &[u8], change: impl FnMut(Class, &mut Vec<Entry>)) -> Vec<u8> {
    redrafted(image, EntryKind::CLOSED, change)
}

fn redrafted(
    image: &[u8],
    entries: EntryKind,
    mut change: impl FnMut(Class, &mut Vec<Entry>),
) -> Vec<u8> {
    let len = image.len() as u64;
    let read = Image::open(Arc::new(image.to_vec()), 0, len, &mut Room::endless());
    let mut read = read.expect("an image");
    let mut out = Vec::new();
    let flush: &mut Flush<'_> = &mut |piece, at| {
        let end = at as usize + piece.len();
        out.resize(out.len().max(end), 0);
        out[at as usize..end].copy_from_slice(piece);
        Ok(())
    };
    let mut draft = Draft::new(entries, flush);
    for granule in read.granules(&mut Room::endless()).expect("granules") {
        draft.granule(granule).expect("room");
    }
    for (class, dictionary) in read.directory.dictionaries.clone() {
        let mut entries: Vec<Entry> = Vec::new();
        let each = |key, from, to, quarters| {
            if entries.last().is_none_or(|(last, _)| *last != key) {
                entries.push((key, Vec::new()));
            }
            let spots = entries.last_mut().map(|(_, spots)| spots);
            let spots = spots.expect("an entry");
            spots.extend((from..to).map(|granule| Spot::new(granule, quarters)));
        };
        read.entries(class, 0, u128::MAX, each).expect("keys");
        change(class, &mut entries);
        let mut entries = entries.into_iter();
        let next = |spots: &mut Vec<Spot>| {
            let Some((key, of_key)) = entries.next() else { return Ok(None) };
            *spots = of_key;
            Ok::<_, std::io::Error>(Some(key))
        };
        draft.class(class, dictionary.hashed, next).expect("room");
    }
    draft.finish(&read.header).expect("room");
    out
}

/// Returns an image of version 2 as version 1 has it.
pub fn to_version_1(image: &[u8]) -> Vec<u8> {
    assert_eq!(image[8], VERSION_2 as u8, "their sections are the same");
    rewrite(image, VERSION_1, |directory| {
        let mut out = directory.encode_head();
        for class in classes_of_version_1() {
            out.extend(directory.dictionaries[&class].encode(class));
        }
        out
    })
}

/// Returns an image whose classes were changed.
pub fn with_classes(image: &[u8], change: impl FnOnce(&mut Vec<EncodedClass>)) -> Vec<u8> {
    rewrite(image, VERSION, |directory| {
        let encode = |class: Class| (class as u64, directory.dictionaries[&class].encode(class));
        let mut classes: Vec<EncodedClass> = Class::ALL.into_iter().map(encode).collect();
        change(&mut classes);
        let mut out = directory.encode_head();
        put_classes(&mut out, &classes);
        out
    })
}

fn rewrite(image: &[u8], version: u32, encode: impl FnOnce(&Directory) -> Vec<u8>) -> Vec<u8> {
    let len = image.len() as u64;
    let read = Image::open(Arc::new(image.to_vec()), 0, len, &mut Room::endless());
    let read = read.expect("an image");
    assert_eq!(read.len, len, "one image");
    let Opening { header, directory: before, .. } =
        Header::decode(&image[..HEADER]).expect("a header");
    let directory = encode(&read.directory);
    let at = Section {
        offset: before.offset,
        len: directory.len() as u32,
        checksum: crc32c::crc32c(&directory),
    };
    let mut out = image[..before.offset as usize].to_vec();
    out.extend(directory);
    out.resize(out.len().next_multiple_of(PAGE), 0);
    let page = header.encode(version, out.len() as u64, at);
    out[..PAGE].copy_from_slice(&page);
    out
}
