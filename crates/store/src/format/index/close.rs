//! How does the log of a closed segment become its index?
//!
//! Under a name of its own, made durable and renamed, so that no reader ever takes a part of an
//! index for the whole. How the log's chunks are made one is [`super::merge`]'s business.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::code::{Room, damaged};
use super::granule::Summary;
use super::image::Header;
use super::merge;
use super::stretches::{joined, missing};
use crate::format::name::SegmentName;
use crate::io::{Access, Directory, File as _, Io, Object, Storage as _, write_pages};

/// Makes the index of a segment that has come to its end from its log, which is removed. `dropped`
/// is what the segment's statistics tell. Returns the index's length. After an error there is the
/// log or nothing.
pub(crate) fn close<I: Io>(
    io: &I,
    dir: &Path,
    name: &SegmentName,
    dropped: u64,
) -> io::Result<u64> {
    let storage = Directory::new(dir);
    let log = storage.open(name.index_log_name().as_ref(), Access::Ranges)?;
    let segment = storage.open(name.to_string().as_ref(), Access::Ranges)?;
    let draft = name.index_draft_path(dir);
    match io.remove(&draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let written = io.create(&draft).and_then(|file| {
        let mut flush = |pages: &[u8], at: u64| write_pages(&file, pages, at);
        let len = merge(&log, name, &*segment, dropped, &mut flush)?;
        file.sync()?;
        io.rename(&draft, &name.index_path(dir))?;
        Ok(len)
    });
    if written.is_err() {
        let _ = io.remove(&draft);
    }
    let len = written?;
    io.remove(&name.index_log_path(dir))?;
    io.sync_dir(dir)?;
    Ok(len)
}

/// Merges a log. `flush` takes whole pages of the index at offsets; the first page comes last.
pub(super) fn merge(
    log: &Arc<dyn Object>,
    name: &SegmentName,
    segment: &dyn Object,
    dropped: u64,
    flush: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut chunks = merge::chunks(log, &mut Room::endless())?;
    if chunks.iter().any(|chunk| !chunk.header.is_of(name)) {
        return Err(damaged("it is another segment's"));
    }
    let segment_len = segment.length()?;
    let parts = chunks.iter().flat_map(|c| c.directory.parts.iter().cloned()).collect();
    let outside = checksum_outside(segment, segment_len, parts)?;
    let summary = Summary { dropped, outside, complete: true, ..Summary::default() };
    let (number, began_s) = (name.number, name.began_s);
    merge::merge(&mut chunks, Header { number, began_s, segment_len, summary }, flush)
}

/// Returns the CRC32C of what of a segment lies in none of the parts.
pub(crate) fn checksum_outside(
    segment: &dyn Object,
    len: u64,
    parts: Vec<Range<u64>>,
) -> io::Result<u32> {
    let mut checksum = 0;
    for stretch in missing(0..len, &joined(parts))? {
        let mut bytes = vec![0; (stretch.end - stretch.start).min(1 << 20) as usize];
        let mut at = stretch.start;
        while at < stretch.end {
            let want = (stretch.end - at).min(1 << 20) as usize;
            segment.read_exact_at(&mut bytes[..want], at)?;
            checksum = crc32c::crc32c_append(checksum, &bytes[..want]);
            at += want as u64;
        }
    }
    Ok(checksum)
}
