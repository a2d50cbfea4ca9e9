//! Reads arbitrary bytes as a capture file: `cargo +nightly fuzz run trace`.
#![no_main]

#[path = "../checks/trace.rs"]
mod trace;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = trace::check(data, data.len() as u64);
});
