//! Has memory fetched into the caches that will be read soon.

use std::ops::Range;

/// Bytes of a line of the caches.
const LINE: usize = 64;
/// The most lines that are asked for at once: processors drop what they cannot note.
const LINES: usize = 32;

/// Asks for the lines of a part of `bytes`, as far as there is such a part. It changes nothing but
/// how long the next look takes.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], part: Range<usize>) {
    let end = part.end.min(bytes.len());
    for at in (part.start..end).step_by(LINE).take(LINES) {
        line(&bytes[at]);
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the instruction takes an address")]
#[inline]
fn line(byte: &u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor has the instruction, which reads nothing that the program
    // could see and does not fail, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn line(_: &u8) {}
