//! Reads arbitrary bytes as a daemon's configuration: `cargo +nightly fuzz run config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = tapdeck_program::fuzzing::configuration(data);
});
