//! Reads a part of a file that is as long as it was when it was first looked at.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

/// Reads `size` bytes of a file of `len` bytes, or up to its end.
pub(super) fn read_at(file: &fs::File, offset: u64, len: u64, size: usize) -> io::Result<Vec<u8>> {
    let left = usize::try_from(len.saturating_sub(offset)).unwrap_or(size);
    let mut bytes = vec![0; size.min(left)];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
