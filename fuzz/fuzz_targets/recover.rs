//! Recovers arbitrary bytes as a segment: `cargo +nightly fuzz run recover`.
#![no_main]

#[path = "../checks/recover.rs"]
mod recover;

use std::path::PathBuf;
use std::sync::LazyLock;

/// Of this process, in memory.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = PathBuf::from(format!("/dev/shm/tapdeck-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("there is memory");
    dir
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = recover::check(&DIRECTORY, data);
});
