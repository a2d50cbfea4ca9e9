//! Reads arbitrary bytes as a pcapng file: `cargo +nightly fuzz run pcapng`.
#![no_main]

#[path = "../checks/pcapng.rs"]
mod pcapng;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = pcapng::check(data);
});
