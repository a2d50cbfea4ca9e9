//! Memory shared with the kernel: mapped, read as atomics or as bytes that nobody writes.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping that is unmapped when it is dropped.
///
/// The kernel changes the memory at any time. Words are therefore reached as atomics only.
/// [`Mapping::committed`] returns plain bytes, and its caller must know that nobody writes them.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the mapping, not to a thread, and is reached through atomics or as
// bytes that nobody writes.
unsafe impl Send for Mapping {}
// SAFETY: several threads reach the memory through atomics, or as bytes that nobody writes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a BPF map or another file. Words may be stored only to a
    /// writable mapping.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        let mut prot = ProtFlags::READ;
        if writable {
            prot |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len })
    }

    fn check(&self, offset: usize, len: usize, align: usize) {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(
            fits && offset.is_multiple_of(align),
            "{len} bytes at {offset} of a mapping of {} bytes",
            self.len
        );
    }

    /// Returns the 8 bytes at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or beyond the mapping.
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8, 8);
        // SAFETY: in bounds and aligned (checked), mapped as long as `self` lives; every access
        // from this process to such words is atomic, and where the mapping is not writable,
        // a load.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns the 4 bytes at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or beyond the mapping.
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// `len` plain bytes at `offset`, which were committed in a block that is not yet released.
    ///
    /// # Panics
    /// If they reach beyond the mapping.
    pub fn committed(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len, 1);
        // SAFETY: in bounds (checked) and mapped. Committed bytes are not written again before the
        // reader releases their block: `RingReader` alone asks for them (only it makes a
        // `Readable`), lends them no longer than it is borrowed shared, and needs `&mut` to
        // release.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(offset), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every reference into it borrowed from
        // `self`, so none is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
