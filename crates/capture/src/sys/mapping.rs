//! Memory shared with the kernel or with another thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A shared mapping that is unmapped when it is dropped.
///
/// Others (the kernel, a producer thread) change the memory at any time. Words are
/// therefore reached as atomics only; [`Mapping::bytes`] gives plain bytes and asks
/// its caller to know that nobody is writing them.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the mapping, not to a thread, and is reached
// through atomics or under the contract of `bytes` and `bytes_mut`.
unsafe impl Send for Mapping {}
// SAFETY: several threads reach the memory through atomics, or as plain bytes under the contract of
// `bytes` and `bytes_mut`, whose callers know that nobody writes them.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a BPF map or another file.
    pub fn of_fd(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        Self::of_fd_at(fd, len, 0, writable)
    }

    /// Maps `len` bytes of such a file from `offset` on.
    pub fn of_fd_at(
        fd: BorrowedFd<'_>,
        len: usize,
        offset: u64,
        writable: bool,
    ) -> io::Result<Self> {
        let mut prot = ProtFlags::READ;
        if writable {
            prot |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // memory that exists.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        Ok(Self::new(at, len))
    }

    /// Maps `len` bytes of zeroed memory, touched only as it is used.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: as in `of_fd`.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        Ok(Self::new(at, len))
    }

    fn new(at: *mut std::ffi::c_void, len: usize) -> Self {
        let at = NonNull::new(at.cast()).expect("mmap never returns the null page");
        Self { at, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns where the mapping begins, for the kernel to be told.
    pub fn address(&self) -> u64 {
        self.at.addr().get() as u64
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
        // SAFETY: in bounds and aligned (checked), mapped as long as `self` lives; every
        // access from this process to such words is atomic.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns the 4 bytes at `offset`, under the conditions of [`Mapping::u64`].
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns the 8 bytes at `offset`, signed, under the conditions of [`Mapping::u64`].
    pub fn i64(&self, offset: usize) -> &AtomicI64 {
        self.check(offset, 8, 8);
        // SAFETY: as in `u64`.
        unsafe { AtomicI64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns `len` plain bytes at `offset`.
    ///
    /// # Safety
    /// Nobody, the kernel included, writes these bytes while the slice lives.
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len, 1);
        // SAFETY: in bounds (checked) and mapped; unchanging by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(offset), len) }
    }

    /// Returns `len` plain bytes at `offset`, to be written.
    ///
    /// # Safety
    /// The mapping is writable, and nobody else, the kernel included, reads or writes these
    /// bytes while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        self.check(offset, len, 1);
        // SAFETY: in bounds (checked) and mapped; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(offset), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every reference into it borrowed
        // from `self`, so none is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
