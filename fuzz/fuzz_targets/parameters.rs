//! Reads arbitrary bytes as a parameter of a gateway's questions:
//! `cargo +nightly fuzz run parameters`.
#![no_main]
#![allow(dead_code, reason = "modules of the gateway, of which this takes a part")]

#[path = "../../crates/gateway/src/condition.rs"]
mod condition;
#[path = "../checks/question.rs"]
mod question;
#[path = "../../crates/gateway/src/steno.rs"]
mod steno;
#[path = "../../crates/gateway/src/time.rs"]
mod time;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = question::parameter(data);
});
