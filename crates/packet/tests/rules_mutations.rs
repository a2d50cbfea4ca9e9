//! The fuzz target of the rule files' reader, run on the stable compiler over a fixed set of
//! mutations of a valid file, and of frames that the reader of tuples has to survive.

#[path = "../../../fuzz/checks/rules.rs"]
mod check;

use tapdeck_packet::link::LinkType;
use tapdeck_packet::numbers::ip_protocol::has_ports;
use tapdeck_packet::rules::Tuple;
use tapdeck_testkit::SplitMix64;

const INPUTS: usize = 4_000;

const VALID: &str = "\
# a comment
accept src 10.0.0.0/23 dst any sport any dport 53 proto udp
drop src 10.0.1.0/24 dst any sport any dport 53 proto udp # and another
accept src 10.0.0.0/24 dst 192.168.0.0/16 sport any dport any proto any
snaplen=96 src any dst 2001:db8::/32 sport 1 dport any proto icmp
group=ids src any dst any sport any dport any proto icmp
accept src any dst ::1 sport any dport any proto 58
drop src 0.0.0.0/0 dst any sport any dport any proto any
accept src any dst any sport any dport any proto any
";

/// Words that readers break on.
const WORDS: [&str; 20] = [
    "any",
    "src",
    "dst 10.1.2.3/8",
    "proto",
    "0",
    "-1",
    "65536",
    "/0",
    "/129",
    "/33",
    "::",
    "::ffff:1.2.3.4",
    "4294967296",
    "group=",
    "snaplen=0",
    "\n",
    "#",
    "\u{0}\u{fffd}",
    "\r\n",
    "accept",
];

fn mutate(data: &mut Vec<u8>, random: &mut SplitMix64) {
    if data.is_empty() {
        return;
    }
    let at = random.below(data.len());
    let to = at + random.below((data.len() - at).min(40)) + 1;
    match random.below(8) {
        0 => data[at] ^= 1 << random.below(8),
        1 => data[at] = b"0123456789 \n#/.:="[random.below(17)],
        2 => data.truncate(at),
        3 => drop(data.drain(at..to)),
        4 => {
            let piece = data[at..to].to_vec();
            let place = random.below(data.len());
            drop(data.splice(place..place, piece));
        }
        // A digit becomes another: the rule stays one.
        5 | 6 => {
            if let Some(digit) = data[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                *digit = b'0' + random.below(10) as u8;
            }
        }
        _ => {
            let word = WORDS[random.below(WORDS.len())];
            drop(data.splice(at..at, word.bytes()));
        }
    }
}

#[test]
fn the_reader_keeps_its_promises_on_mutations_of_a_valid_file() {
    let mut random = SplitMix64(0x0072_756c_6573);
    assert_eq!(check::check(VALID.as_bytes()), Some(8));
    let (mut good, mut bad) = (0, 0);
    for _ in 0..INPUTS {
        let mut data = VALID.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            mutate(&mut data, &mut random);
        }
        match check::check(&data) {
            Some(_) => good += 1,
            None => bad += 1,
        }
    }
    // The mutations reach both ends.
    assert!(good > INPUTS / 10 && bad > INPUTS / 10, "{good} good, {bad} bad");
}

/// Tagged, with a hop-by-hop and a fragment header.
const FRAME: [u8; 82] = {
    let mut frame = [0; 82];
    frame[12] = 0x81;
    frame[16] = 0x86;
    frame[17] = 0xdd;
    frame[18] = 0x60;
    frame[24] = 0;
    frame[58] = 44;
    frame[66] = 17;
    frame[69] = 1;
    frame[75] = 53;
    frame
};

#[test]
fn no_frame_makes_the_reader_of_tuples_panic() {
    let links = [0, 1, 9, 12, 101, 108, 113, 228, 229, 276];
    let mut random = SplitMix64(0x0074_7570_6c65);
    let whole = Tuple::read(LinkType::ETHERNET, &FRAME);
    assert_eq!((whole.protocol, whole.ports), (17, Some((53, 0))));
    let mut families = [0, 0];
    for _ in 0..INPUTS * 4 {
        let mut frame = FRAME.to_vec();
        for _ in 0..=random.below(3) {
            mutate(&mut frame, &mut random);
        }
        let tuple = Tuple::read(LinkType(links[random.below(links.len())]), &frame);
        families[usize::from(tuple.family.is_some())] += 1;
        assert!(tuple.ports.is_none() || has_ports(tuple.protocol));
        if tuple.family.is_none() {
            assert_eq!(tuple, Tuple::default());
        }
    }
    assert!(families.iter().all(|&n| n > INPUTS / 10), "{families:?}");
}
