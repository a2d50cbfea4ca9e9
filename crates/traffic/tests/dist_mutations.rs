//! The fuzz target of the distribution readers, run on the stable compiler over a fixed set of
//! mutations of valid inputs.

#[path = "../../../fuzz/checks/dist.rs"]
mod check;

use tapdeck_traffic::dist::Format;
use tapdeck_traffic::sampling::SplitMix64;

const INPUTS: usize = 5_000;

const VALID: [(Format, &str); 5] = [
    (Format::Sizes, "60 60 60\n1514\n# a comment\n590\n65535 1\n"),
    (Format::Dist, "# length: ip\n40 1000\n552 37 # seen often\n1500 999\n1499 0\n"),
    (
        Format::Pktgen,
        "#!/bin/sh\n# length: ip\npgset \"dist 1000 20 1500 2 3\"\npgset \"outl 40 179\"\npgset \"outl 1500 600\"\n\
         pgset \"hist 40 91\"\npgset \"hist 0 9\"\npgset \"hist 1500 900\"\npgset \"flag PKTSIZE_REAL\"\n",
    ),
    (
        Format::Pktgen,
        "dist 10 1500 1500 1 2\noutl 60 5\nhist 0 9\nhist 1500 1\nflag PKTSIZE_REAL\n",
    ),
    (
        Format::Toml,
        "length = \"frame\"\npackets = 12\nsizes = [[60, 5], [1514, 7]]\n\n[two_stage]\noutlier_bound = 0.002\n\
         bin_width = 20\nprecision = 10\nmax_size = 1514\noutliers = [[60, 4], [1514, 5]]\nbins = [[80, 10]]\n",
    ),
];

/// Words that readers break on.
const WORDS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "65535",
    "65536",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "1e9",
    "#",
    "# length: frame\n",
    "\"",
    "dist 1 1 1 0 0",
    "\u{0}\u{fffd}",
];

fn mutate(data: &mut Vec<u8>, random: &mut SplitMix64) {
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    if data.is_empty() {
        return;
    }
    let at = below(data.len());
    let to = at + below((data.len() - at).min(16)) + 1;
    match below(7) {
        0 => data[at] ^= 1 << below(8),
        1 => data[at] = b"0123456789 \n#-\"=[],"[below(19)],
        2 => data.truncate(at),
        3 => drop(data.drain(at..to)),
        4 => {
            let piece = data[at..to].to_vec();
            let place = below(data.len());
            drop(data.splice(place..place, piece));
        }
        // A number becomes another.
        5 => {
            let is_digit = |b: &u8| b.is_ascii_digit();
            let from = at + data[at..].iter().position(is_digit).unwrap_or(0);
            let len = data[from..].iter().take_while(|b| is_digit(b)).count();
            drop(data.splice(from..from + len, WORDS[below(WORDS.len())].bytes()));
        }
        _ => drop(data.splice(at..at, WORDS[below(WORDS.len())].bytes())),
    }
}

#[test]
fn the_readers_keep_their_promises_on_mutations_of_valid_inputs() {
    let mut random = SplitMix64::new(0x6469_7374);
    for (format, valid) in VALID {
        check::check_as(format, valid.as_bytes()).unwrap_or_else(|e| panic!("{valid}: {e}"));
        let (mut good, mut bad) = (0, 0);
        for _ in 0..INPUTS / VALID.len() {
            let mut data = valid.as_bytes().to_vec();
            for _ in 0..=random.next_u64() % 3 {
                mutate(&mut data, &mut random);
            }
            check::check(&data);
            match check::check_as(format, &data) {
                Ok(()) => good += 1,
                Err(_) => bad += 1,
            }
        }
        // The mutations reach both ends.
        assert!(good > INPUTS / 500 && bad > INPUTS / 500, "{format:?}: {good} good, {bad} bad");
    }
}
