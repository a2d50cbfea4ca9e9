//! What must whoever goes on know when a writer has died, whose rings live on?
//!
//! The writer writes a batch, has a [`Ledger`] note that, and only then gives the blocks back to
//! their rings. So what the ledger says is written was taken out of the rings, or may be; and what
//! it does not say is still in them, also where its bytes are in the live segment already. There
//! [`Store::cut_unnoted`] takes them away, and the next writer writes them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use tapdeck_packet::pcapng;

use crate::format::store::Store;
use crate::writing::totals::Totals;

/// How far a segment is written: its number, and its length in bytes. Where none is open, the next
/// one's number and 0.
pub type SegmentEnd = (u64, u64);

/// What a writer has done.
#[derive(Debug)]
pub struct LedgerEntry<'a> {
    /// The segment that is written to; `None` behind the last one, or where the output is no store.
    pub segment: Option<SegmentEnd>,
    /// Blocks that were dealt with since the last entry: the interface of each.
    pub blocks: &'a [u32],
    /// What the writer has counted so far, these blocks among it.
    pub totals: &'a Totals,
    /// The losses of the rings that are there which segments that have ended tell, by interface.
    pub told_lost: &'a [u64],
}

/// Where a writer notes what it has done, so that another can go on in its place.
pub trait Ledger: Send {
    /// Notes what the writer has done, at once: whoever reads the ledger finds this or what was
    /// noted before. The blocks go back to their rings afterwards.
    fn note(&mut self, entry: &LedgerEntry<'_>);

    /// Takes note that a ring has come. What was counted under its interface so far is that of
    /// rings before it.
    fn comes(&mut self, interface: u32, totals: &Totals);
}

impl Store {
    /// Takes away from the segments what a writer has written and not noted: packets that are still
    /// in its rings. `end` is the end that was noted last. Older segments are left as they are.
    /// Returns how many bytes that were.
    ///
    /// # Errors
    /// Where a segment cannot be read or cut.
    pub fn cut_unnoted(&mut self, end: SegmentEnd) -> io::Result<u64> {
        let mut bytes = 0;
        for stored in self.found.iter().filter(|stored| stored.name.live) {
            let from = match stored.name.number.cmp(&end.0) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => end.1,
                std::cmp::Ordering::Greater => 0,
            };
            let path = stored.name.path(self.dir());
            let cut = cut(&path, from)?;
            if cut > 0 {
                // The log of the index may tell of what was cut.
                for path in stored.name.index_paths(self.dir()) {
                    match fs::remove_file(path) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                        _ => {}
                    }
                }
            }
            bytes += cut;
        }
        Ok(bytes)
    }
}

/// Cuts a segment at the first packet block behind an offset, or where it is torn there. Returns
/// how many bytes were cut.
fn cut(path: &Path, from: u64) -> io::Result<u64> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(nofollow).open(path)?;
    let len = file.metadata()?.len();
    let mut at = from;
    let mut head = [0; 8];
    while at + pcapng::MIN_FILL as u64 <= len {
        file.read_exact_at(&mut head, at)?;
        let [kind, total] =
            [&head[..4], &head[4..]].map(|word| word.try_into().map_or(0, u32::from_ne_bytes));
        let is_whole = total >= pcapng::MIN_FILL as u32 && u64::from(total) <= len - at;
        if kind == pcapng::ENHANCED_PACKET || !is_whole {
            break;
        }
        at += u64::from(total);
    }
    if at >= len {
        return Ok(0);
    }
    file.set_len(at)?;
    file.sync_all()?;
    Ok(len - at)
}
