//! The fuzz targets of what is written to the program, run on the stable compiler over mutations of
//! requests and configurations.

use tapdeck_program::fuzzing::{configuration, request};
use tapdeck_testkit::SplitMix64;

const INPUTS: usize = 20_000;

const REQUESTS: [&str; 7] = [
    r#"{"verb":"stats"}"#,
    r#"{"verb":"attach","group":"ids","weight":3}"#,
    r#"{"verb":"snaplen","snaplen":96,"group":null}"#,
    r#"{"verb":"filter","filter":"not port 22","group":"ids"}"#,
    r#"{"verb":"rules","do":"replace","rules":"drop src any dst any\n","group":"ids"}"#,
    r#"{"verb":"rules","do":"enable","rules":null}"#,
    r#"{"verb":"rotate"}"#,
];

const CONFIGURATION: &str = r#"[serve]
socket = "/run/tapdeck/serve.sock"
socket-mode = "0660"
ring-bytes = "16MiB"
block-bytes = 262144

[[group]]
name = "ids"
interfaces = ["eth1", "eth2"]
hook = "xdp"
deliver = "consume"
filter = "not port 22"
snaplen = 65535
steering = "flow"
promiscuous = true
"#;

/// Bytes that mean something to either language, and some that a terminal obeys.
const BYTES: &[u8] = b"{}[]\",:\\=#.0179-eu\n\t\x1b\x00\xc2\x9b\xff";

fn mutated(text: &str, rng: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = BYTES[rng.below(BYTES.len())],
            1 => bytes.insert(at, BYTES[rng.below(BYTES.len())]),
            2 => drop(bytes.remove(at)),
            _ => {
                let to = at + rng.below((bytes.len() - at).min(20)) + 1;
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

#[test]
fn whatever_is_asked_is_understood_or_refused_in_a_line() {
    let (mut rng, mut understood) = (SplitMix64(1), 0);
    assert!(REQUESTS.iter().all(|line| request(line.as_bytes())));
    for _ in 0..INPUTS {
        let line = REQUESTS[rng.below(REQUESTS.len())];
        understood += u32::from(request(&mutated(line, &mut rng)));
    }
    assert!(understood > 0 && understood < INPUTS as u32, "{understood}");
}

#[test]
fn whatever_is_configured_is_understood_or_refused_in_a_line() {
    let (mut rng, mut understood) = (SplitMix64(2), 0);
    assert!(configuration(CONFIGURATION.as_bytes()));
    for _ in 0..INPUTS {
        understood += u32::from(configuration(&mutated(CONFIGURATION, &mut rng)));
    }
    assert!(understood > 0 && understood < INPUTS as u32, "{understood}");
}
