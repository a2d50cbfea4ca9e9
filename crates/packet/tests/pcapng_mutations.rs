//! The fuzz target of the pcapng reader, run on the stable compiler over a fixed set of
//! mutations of a valid file.

#[path = "../../../fuzz/checks/pcapng.rs"]
mod check;

use check::check;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, Error, InterfaceDescription, StatisticsBlock};
use tapdeck_testkit::SplitMix64;

const INPUTS: usize = 20_000;

/// Two sections, every kind of block that tapdeck writes, frames of odd lengths.
fn valid_file() -> Vec<u8> {
    let mut out = Vec::new();
    for section in 0..2u32 {
        pcapng::section_header(&mut out, "Linux", "tapdeck", Some("a comment"));
        let interface = InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 262_144,
            name: "eth0".into(),
            description: "queue 0".into(),
            filter: Some("not port 22".into()),
            hardware: Some("virtio_net".into()),
            mac: Some([2, 0, 0, 0, 0, 1]),
        };
        pcapng::interface_description(&mut out, &interface);
        for captured in [0, 1, 14, 60, 61, 203] {
            let (flags, dropped) = (captured as u32 % 3, u64::from(captured == 61) * 7);
            let frame = vec![captured as u8; captured];
            let at = out.len();
            out.resize(at + pcapng::packet_len(captured, flags, dropped), 0);
            let pieces = [&frame[..captured / 2], &frame[captured / 2..], &[]];
            pcapng::write_packet(&mut out[at..], section, 1 << 60, pieces, 1514, flags, dropped);
        }
        pcapng::fill(&mut out, 64);
        let statistics =
            StatisticsBlock { received: 6, delivered: 6, ..StatisticsBlock::default() };
        pcapng::statistics(&mut out, &statistics);
    }
    out
}

/// Numbers that lengths and counts break on.
const NUMBERS: [u32; 10] =
    [0, 1, 4, 8, 12, 16, 0x7fff_ffff, 0xffff_fffc, 0xffff_ffff, pcapng::SECTION_HEADER];

fn mutate(data: &mut Vec<u8>, random: &mut SplitMix64) {
    if data.len() < 8 {
        return;
    }
    let at = random.below(data.len() - 4);
    let to = at + random.below((data.len() - at).min(64)) + 1;
    let aligned = at & !3;
    match random.below(8) {
        0 => data[at] ^= 1 << random.below(8),
        1 => data[at] = random.below(256) as u8,
        2 => {
            let number = NUMBERS[random.below(NUMBERS.len())];
            data[aligned..aligned + 4].copy_from_slice(&number.to_ne_bytes());
        }
        // A length that is a little off.
        3 => data[aligned] = data[aligned].wrapping_add(4),
        4 => data[aligned..aligned + 4].reverse(),
        5 => data.truncate(at),
        6 => drop(data.drain(at..to)),
        _ => {
            let piece = data[at..to].to_vec();
            let place = random.below(data.len());
            data.splice(place..place, piece);
        }
    }
}

#[test]
fn the_reader_keeps_its_promises_on_mutations_of_a_valid_file() {
    let valid = valid_file();
    assert_eq!(check(&valid), (20, None));

    let mut random = SplitMix64(0x7461_7064_6563_6b21);
    let (mut whole, mut cut, mut damaged, mut foreign) = (0, 0, 0, 0);
    for _ in 0..INPUTS {
        let mut data = valid.clone();
        for _ in 0..=random.below(4) {
            mutate(&mut data, &mut random);
        }
        match check(&data).1 {
            None => whole += 1,
            Some(Error::CutShort { .. }) => cut += 1,
            Some(Error::Damaged { .. }) => damaged += 1,
            Some(Error::NotPcapng) => foreign += 1,
        }
    }
    // The mutations reach every way in which reading ends.
    for (how, count) in [("whole", whole), ("cut", cut), ("damaged", damaged), ("foreign", foreign)]
    {
        assert!(count > INPUTS / 200, "{how}: {count} of {INPUTS}");
    }
}
