//! Was there a standard output when the program was started? Rust's runtime opens `/dev/null` in
//! place of one that is closed, before `main`, and from then on nobody can tell. So this is looked
//! at earlier.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

#[allow(unsafe_code, reason = "no library that is used here asks a number that may be no file")]
extern "C" fn look() {
    // SAFETY: the call takes two numbers and touches no memory.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Relaxed);
}

// SAFETY: the C library calls the functions in this section once, before `main` and on its thread;
// this one needs nothing that is set up later.
#[allow(unsafe_code, reason = "the only place before Rust's runtime")]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Returns whether standard output was closed when the program was started.
pub fn standard_output_was_closed() -> bool {
    // The linker keeps what is looked at.
    std::hint::black_box(&LOOK);
    WAS_CLOSED.load(Relaxed)
}
