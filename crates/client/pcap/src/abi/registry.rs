//! Which `pcap_t` is a group's, and what stands behind it?
//!
//! A signal handler may ask (`pcap_breakloop`), so looking up takes no lock: it walks a list to
//! which nodes are only ever added. When a handle is closed, its node is free for the next one.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, PoisonError};

use super::PcapHandle;
use super::types::Pcap;

struct Node {
    /// Null where the node is free.
    key: AtomicPtr<Pcap>,
    handle: AtomicPtr<PcapHandle>,
    next: Option<&'static Node>,
}

static FIRST: AtomicPtr<Node> = AtomicPtr::new(null_mut());
/// A lock that is held while the list is changed.
static CHANGE: Mutex<()> = Mutex::new(());

fn nodes() -> impl Iterator<Item = &'static Node> {
    // SAFETY: nodes are leaked boxes, made before they are in the list and never freed.
    let first = unsafe { FIRST.load(Acquire).as_ref() };
    std::iter::successors(first, |node| node.next)
}

/// Registers `key` as the `pcap_t` of a group.
pub fn add(key: *mut Pcap, handle: Box<PcapHandle>) {
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = Box::into_raw(handle);
    if let Some(free) = nodes().find(|node| node.key.load(Acquire).is_null()) {
        free.handle.store(handle, Release);
        free.key.store(key, Release);
        return;
    }
    let node =
        Node { key: AtomicPtr::new(key), handle: AtomicPtr::new(handle), next: nodes().next() };
    FIRST.store(Box::into_raw(Box::new(node)), Release);
}

/// Returns what stands behind `key`, if it is the `pcap_t` of a group.
///
/// # Safety
/// The handle is not closed while the returned reference is used, which libpcap asks of its callers
/// too.
pub unsafe fn find<'a>(key: *mut Pcap) -> Option<&'a PcapHandle> {
    if key.is_null() {
        return None;
    }
    let node = nodes().find(|node| node.key.load(Acquire) == key)?;
    // SAFETY: it is a box's pointer until `remove`, which by the caller's promise comes later.
    unsafe { node.handle.load(Acquire).as_ref() }
}

/// Takes a handle out of the list.
///
/// # Safety
/// No thread uses the handle any more.
pub unsafe fn remove(key: *mut Pcap) -> Option<Box<PcapHandle>> {
    if key.is_null() {
        return None;
    }
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let node = nodes().find(|node| node.key.load(Acquire) == key)?;
    node.key.store(null_mut(), Release);
    let handle = node.handle.swap(null_mut(), Release);
    // SAFETY: it is what `add` stored, and is taken once, under the lock.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}
