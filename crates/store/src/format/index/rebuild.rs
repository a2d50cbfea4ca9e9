//! Makes the index of a segment that was recorded without one, or whose recorder did not come to
//! it.
//!
//! What a log of it has already is kept: after a crash only the last chunk is missing.

use std::io;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{Error as BlockError, Reader, Record};

use super::builder::Builder;
use super::close::close;
use super::lookup::Index;
use super::stretches::missing;
use crate::format::name::SegmentName;
use crate::format::segment::{APPLICATION_PREFIX, body_end, dropped_told, read_beginning};
use crate::io::{Access, Io, Object, PAGE, Storage, write_pages};

/// How a segment begins.
pub(crate) struct SegmentHead {
    /// Whether this program wrote the segment.
    pub is_ours: bool,
    /// The link types, by interface id.
    pub links: Vec<LinkType>,
    /// Where the blocks behind the interface descriptions begin.
    pub body: u64,
}

impl SegmentHead {
    /// Reads how a segment begins; `None` where it does not begin as a segment does.
    pub fn read(segment: &dyn Object) -> io::Result<Option<Self>> {
        read_beginning(segment, &mut Vec::new(), Self::parse)
    }

    /// Returns how a segment begins, and whether that goes on behind the bytes.
    fn parse(bytes: &[u8]) -> (Option<Self>, bool) {
        let mut reader = Reader::new(bytes);
        let section = match reader.next() {
            Some(Ok(Record::Section(section))) => section,
            Some(Err(BlockError::CutShort { .. })) => return (None, true),
            _ => return (None, false),
        };
        let is_ours = section.application.is_some_and(|a| a.starts_with(APPLICATION_PREFIX));
        let mut head = Self { is_ours, links: Vec::new(), body: reader.offset() };
        while let Some(Ok(record)) = reader.next() {
            match record {
                Record::Interface(interface) => head.links.push(interface.link),
                // The fill behind the head ends with a page. More fill is the body's.
                Record::Other(_) if !head.body.is_multiple_of(PAGE as u64) => {}
                _ => return (Some(head), false),
            }
            head.body = reader.offset();
        }
        (Some(head), true)
    }
}

/// Makes the index of a segment that has come to its end complete, under whichever name, from the
/// log that is there if it can be used. Returns the index's length.
pub(crate) fn complete<I: Io>(
    io: &I,
    storage: &dyn Storage,
    name: &SegmentName,
) -> io::Result<u64> {
    use io::ErrorKind::{InvalidData, UnexpectedEof, Unsupported};
    let dir = storage.place();
    match index_missing(io, storage, name).and_then(|()| finish(io, storage, name)) {
        // Where the log cannot be used, the index is made without it.
        Err(e) if matches!(e.kind(), InvalidData | UnexpectedEof | Unsupported) => {}
        made => return made,
    }
    for path in [name.index_path(dir), name.index_log_path(dir)] {
        match io.remove(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    index_missing(io, storage, name)?;
    finish(io, storage, name)
}

fn finish<I: Io>(io: &I, storage: &dyn Storage, name: &SegmentName) -> io::Result<u64> {
    let opened = storage.open(name.to_string().as_ref(), Access::Ranges);
    let dropped = opened.ok().and_then(|segment| dropped_told(&*segment)).unwrap_or(0);
    close(io, storage.place(), name, dropped)
}

/// Appends chunks for what the log of a segment does not have.
fn index_missing<I: Io>(io: &I, storage: &dyn Storage, name: &SegmentName) -> io::Result<()> {
    let path = name.index_log_path(storage.place());
    let segment = storage.open(name.to_string().as_ref(), Access::Ranges)?;
    let len = segment.length()?;
    let head = SegmentHead::read(&*segment)?.ok_or(io::ErrorKind::InvalidData)?;
    let have = Index::open_log(storage, name)?;
    // A log does not reach into statistics, or the segment is another one than when it was written.
    let body = head.body..body_end(&*segment).unwrap_or(len);
    let parts = have.as_ref().map(Index::indexed).unwrap_or_default();
    missing(body, &parts)?;
    let (log, mut at) = match &have {
        Some(index) => (io.open(&path)?, index.len()),
        None => (io.create(&path)?, 0),
    };
    let mut builder = Builder::new(name, head.links);
    let mut append = |builder: &mut Builder| {
        let chunk = builder.chunk();
        write_pages(&log, &chunk, at)?;
        at += chunk.len() as u64;
        Ok(())
    };
    for stretch in missing(head.body..len, &parts)? {
        let end = builder.read(&*segment, stretch.clone(), &mut append)?;
        if end < stretch.end {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the segment is damaged at byte {end}"),
            ));
        }
    }
    if builder.is_empty() { Ok(()) } else { append(&mut builder) }
}
