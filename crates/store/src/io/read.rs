//! Reading what others record: what was read once is not needed again soon.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};

/// Fills a buffer as far as the file goes.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// Gives pages back to the machine that records. Where the file system does not listen, it costs
/// memory and nothing else.
pub(crate) fn forget_pages(file: &File, begin: u64, end: u64) {
    if let Some(len) = NonZeroU64::new(end - begin) {
        let _ = fadvise(file, begin, Some(len), Advice::DontNeed);
    }
}
