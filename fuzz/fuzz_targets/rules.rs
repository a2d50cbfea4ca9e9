//! Reads arbitrary bytes as a rule file: `cargo +nightly fuzz run rules`.
#![no_main]

#[path = "../checks/rules.rs"]
mod rules;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = rules::check(data);
});
