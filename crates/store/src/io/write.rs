//! Writes whole pages, however many calls that takes.

use std::io::{self, IoSlice};

use super::{File, PAGE, Page};

/// Writes whole pages from any memory.
pub(crate) fn write_pages<F: File>(file: &F, bytes: &[u8], offset: u64) -> io::Result<()> {
    /// Pages in one call: fewer than the slices that writev(2) takes.
    const PAGES: usize = 256;
    let mut pages = vec![Page::default(); PAGES.min(bytes.len() / PAGE)];
    let mut at = offset;
    for part in bytes.chunks(PAGES * PAGE) {
        let pages = &mut pages[..part.len() / PAGE];
        for (page, chunk) in pages.iter_mut().zip(part.chunks_exact(PAGE)) {
            page.0.copy_from_slice(chunk);
        }
        let slices: Vec<IoSlice<'_>> = pages.iter().map(|p| IoSlice::new(&p.0)).collect();
        at += write_all(file, &slices, at).map_err(|(_, e)| e)?;
    }
    Ok(())
}

/// Writes all of some slices. An error says how many bytes were written before it.
pub(crate) fn write_all<F: File>(
    file: &F,
    slices: &[IoSlice<'_>],
    offset: u64,
) -> Result<u64, (u64, io::Error)> {
    let total: usize = slices.iter().map(|s| s.len()).sum();
    let mut done = 0;
    // How many writes of less than a page are put up with.
    let mut tries = 100;
    while done < total {
        // Where a call wrote less than all, the next goes on behind it, at a page's border.
        let mut skip = done;
        let mut rest = Vec::with_capacity(slices.len());
        for slice in slices {
            if skip >= slice.len() {
                skip -= slice.len();
            } else {
                rest.push(IoSlice::new(&slice[skip..]));
                skip = 0;
            }
        }
        let wrote = match file.write_at(&rest, offset + done as u64) {
            Ok(0) => Err(io::Error::from(io::ErrorKind::WriteZero)),
            other => other,
        };
        match wrote {
            Ok(n) if n % PAGE == 0 || done + n == total => done += n,
            // Direct I/O cannot go on in the middle of a page.
            Ok(n) if n >= PAGE => done += n / PAGE * PAGE,
            Ok(_) if tries > 1 => tries -= 1,
            Ok(_) => return Err((done as u64, io::ErrorKind::WriteZero.into())),
            Err(e) => return Err((done as u64, e)),
        }
    }
    Ok(done as u64)
}
