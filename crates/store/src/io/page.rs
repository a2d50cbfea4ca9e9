//! Pages of memory, as direct I/O wants them: as long as a page of a file, and beginning where one
//! may.

/// Bytes that direct I/O is aligned to.
pub const PAGE: usize = 4096;

/// A page of memory that direct I/O can write from.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE]);

impl Default for Page {
    fn default() -> Self {
        Self([0; PAGE])
    }
}
