//! Reads arbitrary bytes as a filter expression: `cargo +nightly fuzz run filter`.
#![no_main]

#[path = "../checks/filter.rs"]
mod filter;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = filter::check(data);
});
