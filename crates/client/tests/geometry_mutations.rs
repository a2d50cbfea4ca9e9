//! The fuzz target of a member's rings, run on the stable compiler over mutations of what a daemon
//! answers.

use tapdeck_client::fuzzing::read_anything;
use tapdeck_testkit::SplitMix64;

const INPUTS: usize = 5000;

const ANSWER: &str = r#"{"ok":true,"protocol":1,"group":"ids","member":7,"snaplen":65535,"nrings":2,"nblocks":4,"block_shift":16,"ring_stride":4096,"data_stride":266240,"release_stride":64,"interfaces":[{"name":"eth1","link":1,"snaplen":65535,"description":"","filter":null,"hardware":null,"mac":"02:00:00:00:00:01"}]}"#;

/// Words that say that the first ring's open block, number 0, holds a packet, and the packet.
fn contents() -> Vec<u8> {
    const PACKET: u32 = 32 + 60;
    let mut contents = vec![0; 4096];
    contents[..8].copy_from_slice(&u64::from(PACKET).to_ne_bytes());
    let commit = u64::from(PACKET) | 60 << 23 | 1 << 46;
    contents[64..72].copy_from_slice(&commit.to_ne_bytes());
    for word in [6, PACKET, 0, 0, 1, 60, 60] {
        contents.extend(word.to_ne_bytes());
    }
    contents.extend([7; 60]);
    contents.extend(PACKET.to_ne_bytes());
    contents
}

#[test]
fn whatever_a_daemon_grants_is_read_or_refused() {
    let contents = contents();
    assert_eq!(read_anything(ANSWER.as_bytes(), &contents).unwrap(), Some(1));
    let (mut rng, mut read, mut refused) = (SplitMix64(1), 0, 0);
    for _ in 0..INPUTS {
        let (mut answer, mut contents) = (ANSWER.as_bytes().to_vec(), contents.clone());
        for _ in 0..rng.below(3) {
            let at = rng.below(answer.len());
            match rng.below(3) {
                0 => answer[at] = b'0' + rng.below(10) as u8,
                1 => answer.insert(at, b'0' + rng.below(10) as u8),
                _ => drop(answer.remove(at)),
            }
        }
        for _ in 0..rng.below(4) {
            let len = contents.len();
            let at = [rng.below(128), 4096 + rng.below(40), rng.below(len)][rng.below(3)];
            contents[at] = [0, 1, 0xff, rng.below(256) as u8][rng.below(4)];
        }
        match read_anything(&answer, &contents).unwrap() {
            Some(packets) => read += packets,
            None => refused += 1,
        }
    }
    assert!(read > 0 && refused > 0, "{read} packets, {refused} refused");
}
