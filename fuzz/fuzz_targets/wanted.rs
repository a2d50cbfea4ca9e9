//! Reads arbitrary bytes as the body of a request for a pin: `cargo +nightly fuzz run wanted`.
#![no_main]
#![allow(dead_code, reason = "modules of the gateway, of which this takes a part")]

#[path = "../../crates/gateway/src/condition.rs"]
mod condition;
#[path = "../../crates/gateway/src/time.rs"]
mod time;
#[path = "../../crates/gateway/src/wanted.rs"]
mod wanted;
#[path = "../checks/wanted.rs"]
mod wanted_check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = wanted_check::wanted(data);
});
