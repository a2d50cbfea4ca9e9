//! Reads arbitrary bytes as a request on the control socket: `cargo +nightly fuzz run control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = tapdeck_program::fuzzing::request(data);
});
