//! Reads arbitrary bytes as packet-size distributions: `cargo +nightly fuzz run dist`.
#![no_main]

#[path = "../checks/dist.rs"]
mod dist;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = dist::check(data);
});
