//! The plans of filter expressions against libpcap, over random expressions and awkward traffic.
//!
//! Two things must hold. libpcap makes the same program of an expression and of what was understood
//! of it, so that plans are believed at all; and a packet that such a program takes has the keys
//! that the plan asks for, so that they may be.
//!
//! `TAPDECK_EXPRESSIONS` says how many expressions of each kind are tried, `TAPDECK_SEED` which.

#[allow(dead_code)]
mod awkward;

use std::collections::BTreeSet;

use awkward::frames::Stretch;
use awkward::language::Expression;
use pcap::{BpfProgram, Capture, Offline};
use tapdeck_packet::filter;
use tapdeck_packet::header;
use tapdeck_packet::key::{Class, Keys, Plan};
use tapdeck_packet::link::LinkType;
use tapdeck_testkit::SplitMix64;

const SEED: u64 = 20_260_103;
const EXPRESSIONS: u64 = 1500;
const COOKED: LinkType = LinkType(113);
const LOOPBACK: LinkType = LinkType(0);
const PPP: LinkType = LinkType(9);
const LINKS: [LinkType; 5] = [LinkType::ETHERNET, LinkType::RAW, COOKED, LOOPBACK, PPP];
const STRETCHES: usize = 60;
const FRAMES: usize = 40;

/// libpcap's grammar, as far as it is about links that are recorded. What stands in braces is one
/// of those of that name; the first ends it soonest.
const GRAMMAR: &[(&str, &[&str])] = &[
    (
        "expr",
        &["{term}", "{term}", "{expr} {and} {term}", "{expr} {or} {term}", "{shared} {or} {term}"],
    ),
    ("term", &["{plain}", "{plain}", "{shared}", "{not}{term}", "({expr})", "( {shared} )"]),
    ("shared", &["{hosts}", "{nets}", "{ports}", "{ranges}", "{protos}", "{types}", "{macs}"]),
    (
        "hosts",
        &[
            "{ahead}{host}",
            "{ahead}{host} {andor} {host}",
            "{ahead}{host} {or} ({expr}) {or} {host}",
        ],
    ),
    ("host", &["{ip}", "{ip}", "({ip} {andor} {host})", "{not}{host}"]),
    (
        "ahead",
        &[
            "host ",
            "src ",
            "dst host ",
            "src and dst ",
            "dst or src host ",
            "ip host ",
            "arp src ",
            "rarp dst ",
        ],
    ),
    (
        "ip",
        &["10.0.0.1", "192.168.1.1", "10.0", "10.0.1", "5", "0x0a000001", "2001:db8::1", "fe80::1"],
    ),
    ("nets", &["{neta}{net}", "{neta}{net} {andor} {net}"]),
    ("neta", &["net ", "src net ", "dst net ", "src and dst net ", "ip net ", "arp net "]),
    (
        "net",
        &[
            "10",
            "10.0.0.0/8",
            "10.0/15",
            "192.168.1",
            "0.0.0.0/0",
            "10.0.0.0/30",
            "2001:db8::/32",
            "::/0",
            "8000::/1",
            "10.0.1.0 mask 255.0.255.0",
            "192.168 mask 255.255",
            "({net} {andor} {net})",
            "{not}{net}",
            "0",
        ],
    ),
    ("ports", &["{porta}{port}", "{porta}{port} {andor} {port}"]),
    (
        "porta",
        &[
            "port ",
            "src port ",
            "tcp port ",
            "udp dst port ",
            "sctp src or dst port ",
            "src and dst port ",
        ],
    ),
    (
        "port",
        &[
            "80",
            "53",
            "0x1bb",
            "0123",
            "443",
            "(22)",
            "({port} {andor} {port})",
            "{not}{port}",
            "\\53",
        ],
    ),
    ("ranges", &["{rangea}{range}", "{rangea}{range} {andor} {range}"]),
    ("rangea", &["portrange ", "dst portrange ", "tcp portrange ", "udp src and dst portrange "]),
    ("range", &["80-443", "443-80", "53", "0-65535", "1024-65535", "0-0", "{not}{range}"]),
    ("protos", &["{protoa}{proto}", "{protoa}{proto} {andor} {proto}"]),
    ("protoa", &["proto ", "ip proto ", "ip6 proto "]),
    (
        "proto",
        &[
            "6",
            "17",
            "\\tcp",
            "\\udp",
            "\\icmp",
            "\\sctp",
            "gre",
            "44",
            "58",
            "({proto} {andor} {proto})",
            "{not}{proto}",
        ],
    ),
    ("types", &["ether proto {type}", "ether proto {type} {andor} {type}"]),
    (
        "type",
        &[
            "0x800",
            "0x86dd",
            "\\arp",
            "\\ip",
            "0x8100",
            "0x8864",
            "\\atalk",
            "\\iso",
            "1500",
            "loopback",
            "{not}{type}",
        ],
    ),
    ("macs", &["{maca}{mac}", "{maca}{mac} {andor} {mac}"]),
    (
        "maca",
        &[
            "ether host ",
            "ether src ",
            "ether dst host ",
            "link src and dst ",
            "fddi src or dst host ",
        ],
    ),
    (
        "mac",
        &[
            "02:00:00:00:00:01",
            "2-0-0-0-0-2",
            "ffff.ffff.ffff",
            "001b21070707",
            "1.0.5e.0.0.1",
            "{not}{mac}",
        ],
    ),
    (
        "plain",
        &[
            "{name}",
            "{name}",
            "{mover}",
            "{mover}",
            "{mover} {and} {term}",
            "{arith} {comparison} {arith}",
            "{arith} {comparison} {number}",
            "less {number}",
            "greater {number}",
            "byte 12 {byteop} 8",
            "{cast}",
            "llc",
            "llc {llc}",
            "ip protochain 6",
            "protochain \\udp",
        ],
    ),
    (
        "name",
        &[
            "ip",
            "tcp",
            "udp",
            "ip6",
            "arp",
            "rarp",
            "icmp",
            "icmp6",
            "sctp",
            "igmp",
            "esp",
            "ah",
            "pim",
            "vrrp",
            "carp",
            "igrp",
            "stp",
            "ipx",
            "netbeui",
            "iso",
            "clnp",
            "es-is",
            "isis",
            "atalk",
            "aarp",
            "decnet",
            "lat",
            "sca",
            "moprc",
            "mopdl",
            "l1",
            "csnp",
            "pppoed",
            "decnet host 1.5",
        ],
    ),
    (
        "mover",
        &[
            "vlan",
            "vlan 42",
            "vlan (0x7)",
            "mpls",
            "mpls 100",
            "pppoes",
            "pppoes 7",
            "geneve",
            "geneve 42",
        ],
    ),
    (
        "cast",
        &[
            "broadcast",
            "multicast",
            "ether broadcast",
            "ip broadcast",
            "ip multicast",
            "ip6 multicast",
        ],
    ),
    ("llc", &["i", "s", "u", "rr", "rnr", "ui", "xid", "\\test"]),
    (
        "arith",
        &[
            "{load}",
            "{load}",
            "len",
            "{number}",
            "{arith} {op} {arith}",
            "{arith} {op} {arith}",
            "({arith})",
            "-{arith}",
            "{head}[{arith}]",
        ],
    ),
    (
        "load",
        &[
            "ip[0]",
            "ip[2:2]",
            "tcp[tcpflags]",
            "udp[4:2]",
            "ip6[6]",
            "ether[12:2]",
            "icmp[icmptype]",
            "icmp6[0]",
            "arp[6:2]",
        ],
    ),
    ("head", &["ether", "ip", "ip6", "tcp", "udp", "icmp6", "arp", "igmp"]),
    ("number", &["0", "1", "6", "0x45", "0777", "1500", "tcp-syn", "icmp-echo", "4294967295"]),
    ("op", &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]),
    ("comparison", &["=", "==", "!=", "<", "<=", ">", ">="]),
    ("byteop", &["=", "<", ">"]),
    ("and", &["and", "&&"]),
    ("or", &["or", "||"]),
    ("andor", &["or", "and"]),
    ("not", &["not ", "!", "! "]),
];

fn write(symbol: &str, depth: usize, rng: &mut SplitMix64, text: &mut String) {
    const DEEPEST: usize = 9;
    let (_, all) = GRAMMAR.iter().find(|(name, _)| *name == symbol).expect(symbol);
    let mut rest = if depth > DEEPEST { all[0] } else { rng.one(all) };
    while let Some((before, behind)) = rest.split_once('{') {
        let (inner, behind) = behind.split_once('}').expect("a brace");
        text.push_str(before);
        write(inner, depth + 1, rng, text);
        rest = behind;
    }
    text.push_str(rest);
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().expect("a number"))
}

fn rng() -> SplitMix64 {
    SplitMix64(from_environment("TAPDECK_SEED", SEED))
}

/// As many made by each of the two.
fn expressions() -> Vec<String> {
    let mut rng = rng();
    let n = from_environment("TAPDECK_EXPRESSIONS", EXPRESSIONS);
    let mut texts: Vec<String> = (0..n).map(|_| Expression::random(&mut rng).to_string()).collect();
    texts.extend((0..n).map(|_| {
        let mut text = String::new();
        write("expr", 0, &mut rng, &mut text);
        text
    }));
    texts
}

/// An empty capture file for libpcap to compile for.
fn handle(link: LinkType) -> Capture<Offline> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let mut header = 0xa1b2_c3d4_u32.to_ne_bytes().to_vec();
    header.extend([2u16, 4].iter().flat_map(|v| v.to_ne_bytes()));
    header.extend([0, 0, 262_144, u32::from(link.0)].iter().flat_map(|v| v.to_ne_bytes()));
    std::io::Write::write_all(&mut file, &header).expect("room");
    Capture::from_file(file.path()).expect("a capture file")
}

fn instructions(program: &BpfProgram) -> Vec<String> {
    program.get_instructions().iter().map(ToString::to_string).collect()
}

#[test]
fn libpcap_makes_the_same_program_of_what_was_understood() {
    let handles = LINKS.map(handle);
    let (mut taken, mut understood, mut compared) = (0, 0, 0);
    let texts = expressions();
    for text in &texts {
        if handles[0].compile(text, true).is_err() {
            continue;
        }
        taken += 1;
        let Ok(expression) = filter::parse(text) else { continue };
        understood += 1;
        let printed = expression.to_string();
        let again = filter::parse(&printed).unwrap_or_else(|e| panic!("{printed}: {e}"));
        assert_eq!(again, expression, "{text}");
        for handle in &handles {
            // Without the optimizer too, which could hide a difference.
            for optimize in [true, false] {
                let Ok(program) = handle.compile(text, optimize) else { continue };
                let second = handle.compile(&printed, optimize);
                let second = second.unwrap_or_else(|e| panic!("{text}: {printed}: {e}"));
                assert_eq!(instructions(&second), instructions(&program), "{text}: {printed}");
                compared += 1;
            }
        }
    }
    println!("{taken} taken by libpcap, {understood} understood, {compared} programs compared");
    assert!(taken > texts.len() / 2, "libpcap took only {taken}");
    assert!(understood * 100 > taken * 99, "{understood} of {taken}");
}

#[derive(Default)]
struct Found(BTreeSet<(Class, u128)>);

impl Keys for Found {
    fn key(&mut self, class: Class, key: u128) {
        self.0.insert((class, key));
    }
}

/// Whether a packet with the keys `found` is one of the plan's.
fn holds(plan: &Plan, found: &Found) -> bool {
    match plan {
        Plan::All => true,
        Plan::Keys { class, first, last } => {
            found.0.range((*class, *first)..=(*class, *last)).next().is_some()
        }
        Plan::Every(plans) => plans.iter().all(|plan| holds(plan, found)),
        Plan::Any(plans) => plans.iter().any(|plan| holds(plan, found)),
    }
}

/// The packet of an Ethernet frame, as it is captured on another link.
fn on_link(link: LinkType, frame: &[u8]) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(12)?;
    let (kind, packet) = rest.split_at_checked(2)?;
    let header = match (link, kind) {
        (LinkType::ETHERNET, _) => return Some(frame.to_vec()),
        (COOKED, _) => [&[0, 0, 0, 1, 0, 6], &addresses[6..], &[0, 0], kind].concat(),
        (LinkType::RAW, [0x08, 0x00] | [0x86, 0xdd]) => vec![],
        (LOOPBACK, [0x08, 0x00]) => vec![2, 0, 0, 0],
        (LOOPBACK, [0x86, 0xdd]) => vec![30, 0, 0, 0],
        (PPP, [0x08, 0x00]) => vec![0xff, 3, 0, 0x21],
        (PPP, [0x86, 0xdd]) => vec![0xff, 3, 0, 0x57],
        (PPP, [0x88, 0x47]) => vec![0xff, 3, 0x02, 0x81],
        _ => return None,
    };
    Some([&header, packet].concat())
}

/// Packets that were followed to their end, and their keys. The others are looked at for every
/// plan.
fn packets(link: LinkType) -> Vec<(Vec<u8>, Found)> {
    let mut rng = rng();
    let mut packets = Vec::new();
    for _ in 0..STRETCHES {
        let stretch = Stretch::new(&mut rng);
        for _ in 0..FRAMES {
            let Some(frame) = on_link(link, &stretch.frame(&mut rng).frame) else { continue };
            let mut found = Found::default();
            if !frame.is_empty() && header::keys(link, &frame, &mut found) {
                packets.push((frame, found));
            }
        }
    }
    packets
}

#[test]
fn what_a_program_takes_is_in_its_plan() {
    let texts = expressions();
    for link in LINKS {
        let (handle, packets) = (handle(link), packets(link));
        let (mut planned, mut accepted, mut left_out) = (0, 0, 0);
        // Programs of `protochain` go round in circles on some packets.
        for text in texts.iter().filter(|text| !text.contains("protochain")) {
            let (Ok(program), Ok(expression)) = (handle.compile(text, true), filter::parse(text))
            else {
                continue;
            };
            let plan = expression.plan();
            if plan == Plan::All {
                continue;
            }
            planned += 1;
            for (frame, found) in &packets {
                let holds = holds(&plan, found);
                left_out += usize::from(!holds);
                if program.filter(frame) {
                    accepted += 1;
                    assert!(holds, "{text} takes {frame:02x?} of {link:?}, {plan:?} leaves it out");
                }
            }
        }
        println!("{link:?}: {planned} planned, {accepted} packets taken, {left_out} left out");
        assert!(planned > texts.len() / 8, "only {planned} have a plan");
        assert!(accepted > planned * 10, "only {accepted} packets were taken");
        assert!(left_out > accepted, "only {left_out} packets were left out");
    }
}
