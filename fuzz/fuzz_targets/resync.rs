//! Looks in arbitrary bytes for where blocks go on behind damage: `cargo +nightly fuzz run
//! resync`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tapdeck_store::resync_anything(data).expect("memory can be read");
});
