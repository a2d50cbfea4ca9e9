//! Reads arbitrary bytes as the parts of an index: `cargo +nightly fuzz run index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tapdeck_store::read_any_index(data));
