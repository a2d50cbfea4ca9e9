//! What does the index cost by itself? Blocks in memory are indexed without a ring, a writer or a
//! disk that could be waited for.
//!
//! This is for benchmarks.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tapdeck_packet::link::LinkType;
use tapdeck_packet::ring::Hold;

use crate::format::index::Builder;
use crate::format::name::SegmentName;
use crate::io::{Disk, PAGE};
use crate::writing::control::WriterControl;
use crate::writing::indexer::{Indexer, IndexerSetup, Indexing, Links, SegmentEnd, Sizes};
use crate::writing::totals::Totals;

fn name() -> SegmentName {
    SegmentName { number: 1, began_s: 1_767_323_045, live: true }
}

/// Looks at every packet of blocks and makes chunks of an index, as one index thread does. The
/// blocks are a ring's, full to the page, and their packets Ethernet frames of interface 0. Returns
/// how many bytes the chunks have.
pub fn build<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut builder = Builder::new(&name(), vec![LinkType::ETHERNET]);
    let (mut at, mut bytes) = (PAGE as u64, 0);
    for block in blocks {
        builder.add(at, block, block.len() as u64);
        at += block.len() as u64;
        if builder.is_full() {
            bytes += builder.chunk().len() as u64;
        }
    }
    if builder.is_empty() { bytes } else { bytes + builder.chunk().len() as u64 }
}

/// A block that nobody but the index wants.
struct Held(Arc<Vec<u8>>);

impl Hold for Held {
    fn bytes(&mut self) -> Option<&[u8]> {
        Some(&self.0)
    }
}

/// Has so many index threads index blocks, as [`build`] does alone, for a segment in `dir` that has
/// its length but no bytes. Returns how long that took, until the index is complete.
pub fn index(dir: &Path, blocks: &[Arc<Vec<u8>>], threads: NonZeroUsize) -> io::Result<Duration> {
    let name = name();
    let head = PAGE as u64;
    let len = head + blocks.iter().map(|block| block.len() as u64).sum::<u64>();
    File::create(name.path(dir))?.set_len(len)?;
    let setup = IndexerSetup {
        dir: dir.to_owned(),
        indexing: Indexing { threads, cpu: None, control: Arc::new(WriterControl::new().unwrap()) },
        links: Links::of(vec![LinkType::ETHERNET]),
        totals: Arc::new(Totals::new(1)),
        sizes: Arc::new(Sizes::default()),
        log: Arc::new(|_| {}),
    };
    let mut indexer = Indexer::start(Arc::new(Disk::new(false)), setup)?;
    let begin = Instant::now();
    indexer.begin(&name);
    let mut at = head;
    for block in blocks {
        let hold = Held(block.clone());
        indexer.block(at, block.len(), block.len() as u64, Some(Box::new(hold)));
        at += block.len() as u64;
    }
    let tell = indexer.end();
    std::fs::rename(name.path(dir), name.closed().path(dir))?;
    let _ = tell.send(SegmentEnd { len, dropped: 0 });
    indexer.finish();
    let took = begin.elapsed();
    if !name.index_path(dir).exists() {
        return Err(io::Error::other("no index was made"));
    }
    Ok(took)
}
