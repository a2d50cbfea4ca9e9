//! What does the index cost by itself? Blocks in memory are indexed without a ring, a writer or a
//! disk that could be waited for.
//!
//! This is for benchmarks.

use tapdeck_packet::link::LinkType;

use crate::format::index::Builder;
use crate::format::name::SegmentName;
use crate::io::PAGE;

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
