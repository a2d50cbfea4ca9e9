//! How do hook programs wake the writer? By a ring buffer of BPF that nobody reads.
//!
//! The kernel makes the map's descriptor readable when something is put into an empty ring buffer.
//! What that is does not matter: to clear it is to move the reader's position behind all of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use tapdeck_packet::ring::Waker;

use crate::sys::mapping::Mapping;

/// The map `wakes` of `bpf/record.bpf.c`.
#[derive(Debug)]
pub(crate) struct WakesMap {
    map: OwnedFd,
    /// The first page of the map, which has the reader's position.
    read_to: Mapping,
    /// The second page, which has the kernel's.
    written_to: Mapping,
}

impl WakesMap {
    pub(crate) fn of(map: BorrowedFd<'_>) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let read_to = Mapping::of_fd(map, page, true)?;
        let written_to = Mapping::of_fd_at(map, page, page as u64, false)?;
        Ok(Self { map: map.try_clone_to_owned()?, read_to, written_to })
    }
}

impl Waker for WakesMap {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    fn clear(&self) {
        self.read_to.u64(0).store(self.written_to.u64(0).load(Acquire), Release);
    }
}
