//! The functions that C programs call. `include/tapdeck.h` describes each function and structure.
//!
//! Every function takes pointers that its C caller vouches for, as the header says. A `struct
//! tapdeck` was returned by `tapdeck_open`, was not yet given to `tapdeck_close`, and is used by
//! one thread at a time. Other pointers are null where the header allows that, and otherwise valid
//! for the call. A panic would be a fault of this crate; it becomes an error and does not reach C.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use crate::{Error, Member, Next, Options, Packet, Packets};

const ABI: u32 = 1;
const ERROR_BYTES: usize = 512;

const OK: c_int = 1;
const NOTHING: c_int = 0;
const ERROR: c_int = -1;
const END: c_int = -2;

/// `struct tapdeck`, of which C sees the address alone.
pub struct Tapdeck {
    member: Member,
    /// The interfaces' names, each with a NUL at its end.
    names: Vec<CString>,
    error: CString,
}

/// `struct tapdeck_options`.
#[repr(C)]
pub struct COptions {
    weight: u32,
    reserved: [u32; 7],
}

/// `struct tapdeck_batch`.
#[repr(C)]
pub struct CBatch {
    bytes: *const u8,
    length: usize,
    at: usize,
}

/// `struct tapdeck_packet`.
#[repr(C)]
pub struct CPacket {
    timestamp_ns: u64,
    bytes: *const u8,
    captured: u32,
    original: u32,
    interface_id: u32,
    flags: u32,
    dropped: u64,
}

impl From<Packet<'_>> for CPacket {
    fn from(packet: Packet<'_>) -> Self {
        Self {
            timestamp_ns: packet.timestamp_ns,
            bytes: packet.bytes.as_ptr(),
            captured: packet.bytes.len() as u32,
            original: packet.original_len,
            interface_id: packet.interface,
            flags: packet.flags,
            dropped: packet.dropped,
        }
    }
}

/// `struct tapdeck_interface`.
#[repr(C)]
pub struct CInterface {
    name: *const c_char,
    link_type: u32,
    snaplen: u32,
}

/// `struct tapdeck_counts`.
#[repr(C)]
pub struct CCounts {
    received: u64,
    unread: u64,
    dropped: u64,
}

/// `struct tapdeck_stats`.
#[repr(C)]
pub struct CStats {
    seen: u64,
    captured: u64,
    dropped_ring: u64,
    dropped_other: u64,
}

/// Returns the text as C has it; a NUL inside it is left out.
fn c_text(text: &str) -> CString {
    let whole: Vec<u8> = text.bytes().filter(|b| *b != 0).collect();
    CString::new(whole).unwrap_or_default()
}

/// Runs a function that may fail, and keeps the text of its error for `tapdeck_error`.
fn attempt(tapdeck: &mut Tapdeck, run: impl FnOnce(&mut Tapdeck) -> Result<c_int, Error>) -> c_int {
    let why = match catch_unwind(AssertUnwindSafe(|| run(tapdeck))) {
        Ok(Ok(code)) => return code,
        Ok(Err(e)) => c_text(&e.to_string()),
        Err(_) => c"a fault in tapdeck's client library".into(),
    };
    tapdeck.error = why;
    ERROR
}

/// A timeout as C has it: negative to wait without end.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// Writes what was found to where C wants it, and returns the code for it.
///
/// # Safety
/// `to` is valid for a write.
unsafe fn give<T>(next: Next<T>, to: *mut T) -> c_int {
    match next {
        Next::Got(value) => {
            // SAFETY: by the caller's promise.
            unsafe { to.write(value) };
            OK
        }
        Next::Nothing => NOTHING,
        Next::End => END,
    }
}

fn open(socket: Option<&CStr>, group: &CStr, weight: u32) -> Result<Tapdeck, String> {
    let mut options = Options { weight: weight.max(1), ..Options::default() };
    if let Some(socket) = socket {
        options.socket = PathBuf::from(OsStr::from_bytes(socket.to_bytes()));
    }
    let group = group.to_str().map_err(|_| "the group's name is not UTF-8".to_owned())?;
    let member = Member::open(group, &options).map_err(|e| e.to_string())?;
    let names = member.interfaces().iter().map(|interface| c_text(&interface.name)).collect();
    Ok(Tapdeck { member, names, error: CString::default() })
}

#[unsafe(no_mangle)]
pub extern "C" fn tapdeck_abi() -> u32 {
    ABI
}

/// # Safety
/// The pointers are as this module demands; `error` has room for [`ERROR_BYTES`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_open(
    socket: *const c_char,
    group: *const c_char,
    options: *const COptions,
    error: *mut c_char,
) -> *mut Tapdeck {
    let tapdeck = if group.is_null() {
        Err("no group is named".to_owned())
    } else {
        // SAFETY: texts and options are valid for the call, or null, which is not looked at.
        let (socket, group, options) = unsafe {
            let socket = (!socket.is_null()).then(|| CStr::from_ptr(socket));
            (socket, CStr::from_ptr(group), options.as_ref())
        };
        let weight = options.map_or(1, |options| options.weight);
        catch_unwind(|| open(socket, group, weight))
            .unwrap_or_else(|_| Err("a fault in tapdeck's client library".into()))
    };
    match tapdeck {
        Ok(tapdeck) => Box::into_raw(Box::new(tapdeck)),
        Err(why) => {
            if !error.is_null() {
                let why = c_text(&why);
                let kept = why.as_bytes().len().min(ERROR_BYTES - 1);
                // SAFETY: the caller's room is longer than what is kept.
                unsafe {
                    error.copy_from_nonoverlapping(why.as_ptr(), kept);
                    error.add(kept).write(0);
                }
            }
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// The pointers are as this module demands; `tapdeck` is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_close(tapdeck: *mut Tapdeck) {
    if !tapdeck.is_null() {
        // SAFETY: it came from `Box::into_raw`, and is given back once.
        let tapdeck = unsafe { Box::from_raw(tapdeck) };
        // C cannot do anything about a failure here.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(tapdeck)));
    }
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_error(tapdeck: *const Tapdeck) -> *const c_char {
    // SAFETY: by the caller's promise.
    unsafe { &*tapdeck }.error.as_ptr()
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_next_batch(
    tapdeck: *mut Tapdeck,
    timeout_ms: c_int,
    batch: *mut CBatch,
) -> c_int {
    // SAFETY: by the caller's promise.
    attempt(unsafe { &mut *tapdeck }, |tapdeck| {
        let next = tapdeck.member.next_batch(timeout(timeout_ms))?.map(|got| {
            let bytes = got.bytes();
            CBatch { bytes: bytes.as_ptr(), length: bytes.len(), at: 0 }
        });
        // SAFETY: by the caller's promise.
        Ok(unsafe { give(next, batch) })
    })
}

/// # Safety
/// The pointers are as this module demands; the batch came from [`tapdeck_next_batch`] and is still
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_batch_next(batch: *mut CBatch, packet: *mut CPacket) -> c_int {
    // SAFETY: by the caller's promise.
    let batch = unsafe { &mut *batch };
    if batch.at >= batch.length {
        return NOTHING;
    }
    // SAFETY: the bytes are those of a batch that is still valid.
    let bytes = unsafe { std::slice::from_raw_parts(batch.bytes, batch.length) };
    let mut packets = Packets::new(&bytes[batch.at..]);
    match catch_unwind(AssertUnwindSafe(|| packets.next())) {
        Ok(Some(Ok(found))) => {
            batch.at += packets.offset();
            // SAFETY: by the caller's promise.
            unsafe { packet.write(found.into()) };
            OK
        }
        Ok(None) => {
            batch.at = batch.length;
            NOTHING
        }
        Ok(Some(Err(_))) | Err(_) => {
            batch.at = batch.length;
            ERROR
        }
    }
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_next_packet(
    tapdeck: *mut Tapdeck,
    timeout_ms: c_int,
    packet: *mut CPacket,
) -> c_int {
    // SAFETY: by the caller's promise.
    attempt(unsafe { &mut *tapdeck }, |tapdeck| {
        let next = tapdeck.member.next_packet(timeout(timeout_ms))?.map(CPacket::from);
        // SAFETY: by the caller's promise.
        Ok(unsafe { give(next, packet) })
    })
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_release(tapdeck: *mut Tapdeck) {
    // SAFETY: by the caller's promise.
    attempt(unsafe { &mut *tapdeck }, |tapdeck| {
        tapdeck.member.release();
        Ok(OK)
    });
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_fd(tapdeck: *const Tapdeck) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe { &*tapdeck }.member.as_fd().as_raw_fd()
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_snaplen(tapdeck: *const Tapdeck) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe { &*tapdeck }.member.snaplen()
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_interface(
    tapdeck: *const Tapdeck,
    id: u32,
    interface: *mut CInterface,
) -> c_int {
    // SAFETY: by the caller's promise.
    let tapdeck = unsafe { &*tapdeck };
    let (Some(found), Some(name)) =
        (tapdeck.member.interfaces().get(id as usize), tapdeck.names.get(id as usize))
    else {
        return NOTHING;
    };
    let found = CInterface {
        name: name.as_ptr(),
        link_type: u32::from(found.link.0),
        snaplen: found.snaplen,
    };
    // SAFETY: by the caller's promise.
    unsafe { interface.write(found) };
    OK
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_counts(tapdeck: *const Tapdeck, counts: *mut CCounts) -> c_int {
    // SAFETY: by the caller's promise.
    let found = unsafe { &*tapdeck }.member.counts();
    let found = CCounts { received: found.received, unread: found.unread, dropped: found.dropped };
    // SAFETY: by the caller's promise.
    unsafe { counts.write(found) };
    OK
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_stats(tapdeck: *mut Tapdeck, stats: *mut CStats) -> c_int {
    // SAFETY: by the caller's promise.
    attempt(unsafe { &mut *tapdeck }, |tapdeck| {
        let found = tapdeck.member.stats()?;
        let found = CStats {
            seen: found.seen,
            captured: found.captured,
            dropped_ring: found.dropped_ring,
            dropped_other: found.dropped_other,
        };
        // SAFETY: by the caller's promise.
        unsafe { stats.write(found) };
        Ok(OK)
    })
}

/// # Safety
/// The pointers are as this module demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tapdeck_flush(tapdeck: *mut Tapdeck) -> c_int {
    // SAFETY: by the caller's promise.
    attempt(unsafe { &mut *tapdeck }, |tapdeck| tapdeck.member.attachment().flush().map(|()| OK))
}
