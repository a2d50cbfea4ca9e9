//! Reads arbitrary bytes as a bundle's signature and manifest: `cargo +nightly fuzz run bundle`.
#![no_main]

#[allow(dead_code, reason = "each target takes its part")]
#[path = "../checks/evidence.rs"]
mod evidence;

use std::sync::OnceLock;

use tapdeck_evidence::PrivateKey;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static KEY: OnceLock<PrivateKey> = OnceLock::new();
    let key = KEY.get_or_init(|| PrivateKey::generate().expect("random numbers"));
    let _ = evidence::manifest(data, key);
});
