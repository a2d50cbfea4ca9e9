//! Reads a part of a segment that is as long as it was when it was first looked at. A segment that
//! became shorter is an error: nobody else may write while it is mended.

use std::io;

use crate::io::Object;

/// Reads `size` bytes of a file of `len` bytes, or up to its end.
pub(super) fn read_at(
    segment: &dyn Object,
    offset: u64,
    len: u64,
    size: usize,
) -> io::Result<Vec<u8>> {
    let left = usize::try_from(len.saturating_sub(offset)).unwrap_or(size);
    let mut bytes = vec![0; size.min(left)];
    segment.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
