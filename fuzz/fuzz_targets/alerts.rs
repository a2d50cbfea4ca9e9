//! Reads arbitrary bytes as a line of Suricata's EVE: `cargo +nightly fuzz run alerts`.
#![no_main]

#[allow(dead_code, reason = "each target takes its part")]
#[path = "../checks/evidence.rs"]
mod evidence;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = evidence::alert(data);
});
