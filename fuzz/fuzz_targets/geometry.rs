//! Reads arbitrary bytes as a daemon's answer to a member, and as what its rings hold: `cargo
//! +nightly fuzz run geometry`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // The answer is a line; what follows is in the rings.
    let end = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let (answer, contents) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    tapdeck_client::fuzzing::read_anything(answer, contents).expect("there is memory");
});
