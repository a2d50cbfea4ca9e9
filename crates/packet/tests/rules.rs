//! The language of rules, what a rule fits, and that whatever is made of a set judges as the set
//! does.

use std::fmt::Write;
use std::net::IpAddr;

use proptest::prelude::*;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::rules::cluster::Clustered;
use tapdeck_packet::rules::cost::{Cost, Model, SAMPLE, Sample, Tries};
use tapdeck_packet::rules::fragments::Fragments;
use tapdeck_packet::rules::tuple::Fragment;
use tapdeck_packet::rules::{
    Action, Entry, Family, Fault, Judge, Merged, Pattern, Protocol, Rule, RuleSet, Signature,
    Tuple, Why, bloom,
};
use tapdeck_testkit::SplitMix64;

fn set(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn tuple(source: &str, destination: &str, protocol: u8, ports: Option<(u16, u16)>) -> Tuple {
    Tuple::new(address(source), address(destination), protocol, ports).unwrap()
}

fn fits(rule_text: &str, tuple: &Tuple) -> bool {
    rule(rule_text).patterns().any(|pattern| pattern.fits(tuple))
}

#[test]
fn a_line_gives_its_rule() {
    let parsed = rule("snaplen=96  src 10.0.0.0/8\tdst any sport any dport 443 proto tcp # web");
    let expected = Rule {
        action: Action::Snaplen(96),
        source: Some("10.0.0.0/8".parse().unwrap()),
        destination: None,
        source_port: None,
        destination_port: Some(443.into()),
        protocol: Some(Protocol::Number(6)),
    };
    assert_eq!(parsed, expected);
    assert_eq!(parsed.rank(), 8 + 16 + 8);
    assert_eq!(
        parsed.to_string(),
        "snaplen=96 src 10.0.0.0/8 dst any sport any dport 443 proto tcp"
    );
}

#[test]
fn rules_are_printed_as_they_are_written() {
    for text in [
        "accept src any dst any sport any dport any proto any",
        "drop src 10.99.124.99 dst 87.16.135.137 sport 80 dport 8080 proto tcp",
        "accept src 2001:db8::/32 dst any sport 0 dport 65535 proto udp",
        "group=ids src any dst ::1 sport any dport any proto icmp",
        "snaplen=262144 src 0.0.0.0/0 dst any sport any dport any proto 0",
        "cutoff=1 src any dst any sport any dport any proto any",
        "cutoff=1500 src any dst any sport any dport any proto any",
        "cutoff=20KiB src any dst any sport any dport any proto any",
        "cutoff=2GiB src any dst any sport any dport any proto any",
        "accept src ::/0 dst any sport any dport any proto 255",
        "drop src any dst any sport 0-65535 dport 8080 proto udp",
        "accept src 10.0.0.0/8 dst any sport any dport 8000-8100 proto tcp",
    ] {
        assert_eq!(rule(text).to_string(), text);
    }
    // Prefixes of whole addresses and bits behind a prefix go.
    let text = "accept src 10.99.124.54/24 dst 10.1.2.3/32 sport any dport any proto 6";
    let printed = "accept src 10.99.124.0/24 dst 10.1.2.3 sport any dport any proto tcp";
    assert_eq!(rule(text).to_string(), printed);
}

#[test]
fn a_file_may_have_comments_empty_lines_and_any_ends_of_lines() {
    let text = "\u{feff}# rules\r\n\r\n  accept src any dst any sport any dport any proto any#all\r\n\t\n# end";
    let set = set(text);
    assert_eq!(set.len(), 1);
    assert_eq!(set.entries()[0].line, 3);
    assert!(RuleSet::parse("").is_ok_and(|set| set.is_empty()));
    assert!(RuleSet::parse("# \u{e4} and bytes that are no text: \n").is_ok());
    assert!(RuleSet::parse(b"# \xff\n").is_ok());
}

#[test]
fn every_fault_names_line_cause_and_remedy() {
    let cases: [(&[u8], &str); 29] = [
        (
            b"allow src any dst any sport any dport any proto any",
            "\"allow\" is no action: write accept",
        ),
        (b"Accept src any dst any sport any dport any proto any", "\"Accept\" is no action"),
        (b"snaplen=0 src any dst any sport any dport any proto any", "write snaplen=N, N from 1"),
        (
            b"snaplen=262145 src any dst any sport any dport any proto any",
            "\"262145\" is no number",
        ),
        (
            b"cutoff=0 src any dst any sport any dport any proto any",
            "\"0\" is no size: write cutoff=",
        ),
        (b"cutoff=3GiB src any dst any sport any dport any proto any", "\"3GiB\" is no size"),
        (b"cutoff=9999999GiB src any dst any sport any dport any proto any", "is no size"),
        (b"cutoff=1kB src any dst any sport any dport any proto any", "\"1kB\" is no size"),
        (b"snaplen=+9 src any dst any sport any dport any proto any", "\"+9\" is no number"),
        (b"group= src any dst any sport any dport any proto any", "is no name of a group"),
        (b"accept", "the line ends where src must stand"),
        (b"accept src", "the line ends where an address behind src must stand"),
        (b"accept src any dst any sport any dport any", "the line ends where proto must stand"),
        (b"accept dst any src any sport any dport any proto any", "\"dst\" where src must stand"),
        (
            b"accept src host dst any sport any dport any proto any",
            "\"host\" behind src is no address",
        ),
        (b"accept src 10.0.0.0/33 dst any sport any dport any proto any", "prefix is from 0 to 32"),
        (b"accept src any dst ::/129 sport any dport any proto any", "prefix is from 0 to 128"),
        (b"accept src 10.0.0.0/ dst any sport any dport any proto any", "\"10.0.0.0/\" behind src"),
        (b"accept src 010.0.0.1 dst any sport any dport any proto any", "is no address"),
        (b"accept src any/8 dst any sport any dport any proto any", "is no address"),
        (b"accept src 10.0.0.1 dst ::1 sport any dport any proto any", "of two families"),
        (
            b"accept src any dst any sport 65536 dport any proto any",
            "\"65536\" behind sport is no port",
        ),
        (
            b"accept src any dst any sport 2-1 dport any proto any",
            "\"2-1\" behind sport is no port",
        ),
        (b"accept src any dst any sport any dport 1- proto any", "\"1-\" behind dport is no port"),
        (b"accept src any dst any sport any dport 1-2-3 proto any", "\"1-2-3\" behind dport"),
        (
            b"accept src any dst any sport 0-65535 dport 1-2 proto any",
            "131,072 pairs of ports, and a rule has at most 65,536",
        ),
        (b"accept src any dst any sport any dport any proto 256", "\"256\" is no protocol"),
        (
            b"accept src any dst any sport any dport any proto any any",
            "\"any\" behind the end of the rule",
        ),
        (b"accept src \xff dst any sport any dport any proto any", "not UTF-8 text"),
    ];
    for (line, expected) in cases {
        let mut text = b"# one\n\n".to_vec();
        text.extend(line);
        let errors = RuleSet::parse(&text).expect_err(&String::from_utf8_lossy(line));
        let told = errors.to_string();
        assert!(told.starts_with("line 3: ") && told.contains(expected), "{told}");
        assert!(!told.contains('\n'), "{told}");
    }
    let one: Result<Rule, _> = "# nothing".parse();
    assert_eq!(one.unwrap_err().fault, Fault::Empty);
    assert!("accept src any dst any sport any dport any proto any\ndrop".parse::<Rule>().is_err());
}

#[test]
fn all_faults_are_told_at_once_up_to_a_limit() {
    let good = "accept src any dst any sport any dport any proto any\n";
    let text = format!("x\n{good}y\n{good}{}", "z\n".repeat(50));
    let errors = RuleSet::parse(text).unwrap_err();
    assert_eq!(errors.count, 52);
    let lines: Vec<u32> = errors.errors.iter().map(|e| e.line).collect();
    assert_eq!(lines[..4], [1, 3, 5, 6]);
    assert_eq!(lines.len(), 20);
    assert!(errors.to_string().ends_with(" (and 51 more faults)"), "{errors}");
    // What a terminal would obey, or a line cannot hold, is not repeated.
    let wild = format!("\u{1b}[2J{} src", "x".repeat(1000));
    let told = RuleSet::parse(wild).unwrap_err().to_string();
    assert!(!told.contains('\u{1b}') && told.len() < 200, "{told}");
}

#[test]
fn a_rule_fits_what_it_says() {
    let web = tuple("10.1.2.3", "192.0.2.80", 6, Some((40000, 443)));
    for text in [
        "accept src any dst any sport any dport any proto any",
        "accept src 0.0.0.0/0 dst any sport any dport any proto any",
        "accept src 10.0.0.0/8 dst 192.0.2.80 sport 40000 dport 443 proto tcp",
        "accept src 10.1.2.2/31 dst any sport any dport any proto 6",
    ] {
        assert!(fits(text, &web), "{text}");
    }
    for text in [
        "accept src ::/0 dst any sport any dport any proto any",
        "accept src 11.0.0.0/8 dst any sport any dport any proto any",
        "accept src any dst 10.1.2.3 sport any dport any proto any",
        "accept src any dst any sport 443 dport any proto any",
        "accept src any dst any sport any dport any proto udp",
    ] {
        assert!(!fits(text, &web), "{text}");
    }
}

#[test]
fn icmp_is_that_of_the_packets_family() {
    let four = tuple("10.0.0.1", "10.0.0.2", 1, None);
    let six = tuple("fe80::1", "fe80::2", 58, None);
    let strange = tuple("fe80::1", "fe80::2", 1, None);
    let any = "accept src any dst any sport any dport any proto icmp";
    assert_eq!([&four, &six, &strange].map(|t| fits(any, t)), [true, true, false]);
    let of_six = "accept src fe80::/10 dst any sport any dport any proto icmp";
    assert_eq!([&four, &six, &strange].map(|t| fits(of_six, t)), [false, true, false]);
    let number = "accept src any dst any sport any dport any proto 1";
    assert_eq!([&four, &six, &strange].map(|t| fits(number, t)), [true, false, true]);
    assert_eq!(rule(any).patterns().count(), 2);
    assert_eq!(rule(any).rank(), 8);
}

#[test]
fn what_is_unknown_fits_any_alone() {
    let all = "accept src any dst any sport any dport any proto any";
    let no_ip = Tuple::default();
    assert!(fits(all, &no_ip));
    for text in [
        "accept src 0.0.0.0/0 dst any sport any dport any proto any",
        "accept src any dst ::/0 sport any dport any proto any",
        "accept src any dst any sport any dport any proto 0",
        "accept src any dst any sport 0 dport any proto any",
    ] {
        assert!(!fits(text, &no_ip), "{text}");
    }
    let later = tuple("10.0.0.1", "10.0.0.2", 17, None);
    assert!(fits("accept src 10.0.0.1 dst any sport any dport any proto udp", &later));
    assert!(!fits("accept src 10.0.0.1 dst any sport any dport 0 proto udp", &later));
    // A protocol without ports.
    let icmp = tuple("10.0.0.1", "10.0.0.2", 1, Some((0, 0)));
    let asks = "accept src any dst any sport 0 dport any proto icmp";
    assert!(!fits(asks, &icmp));
    assert!(rule(asks).impossible().is_some() && rule(all).impossible().is_none());
}

#[test]
fn the_more_specific_rule_comes_first_and_then_the_first_of_the_file() {
    // Ranks 0, 8, 32, 16, 16, 33.
    let set = set("accept src any dst any sport any dport any proto any
        drop src 10.0.0.0/8 dst any sport any dport any proto any
        accept src 10.0.0.1 dst any sport any dport any proto any
        drop src any dst 192.168.0.0/16 sport any dport any proto any
        accept src any dst any sport any dport 53 proto any
        drop src 10.0.0.0/25 dst any sport any dport any proto tcp\n");
    assert_eq!(set.order(), [5, 2, 3, 4, 1, 0]);
    let judged =
        |source, destination, port| set.judge(&tuple(source, destination, 17, Some((1, port))));
    assert_eq!(judged("10.0.0.1", "192.168.0.1", 53), Some(2));
    assert_eq!(judged("10.0.0.2", "192.168.0.1", 53), Some(3));
    assert_eq!(judged("10.0.0.2", "192.169.0.1", 53), Some(4));
    assert_eq!(judged("10.0.0.2", "192.169.0.1", 54), Some(1));
    assert_eq!(judged("11.0.0.2", "192.169.0.1", 54), Some(0));
    assert_eq!(set.judge(&tuple("10.0.0.1", "1.1.1.1", 6, None)), Some(5));
    assert_eq!(set.judge(&Tuple::default()), Some(0));
}

#[test]
fn rules_can_be_disabled_enabled_and_taken_out() {
    let mut set = set("accept src 10.0.0.1 dst any sport any dport any proto any
        drop src any dst any sport any dport any proto any\n");
    let packet = tuple("10.0.0.1", "10.0.0.2", 17, None);
    assert_eq!(set.judge(&packet), Some(0));
    assert!(set.set_enabled(0, false));
    assert_eq!((set.judge(&packet), Judge::new(&set).judge(&packet)), (Some(1), Some(1)));
    assert!(!set.set_enabled(2, false));
    assert_eq!(set.signatures(), [Signature::ANY]);
    assert!(set.set_enabled(0, true));
    assert_eq!(set.judge(&packet), Some(0));
    let last = rule("drop src any dst any sport any dport any proto any");
    assert_eq!(set.position(&last), Some(1));
    let gone = set.remove(0).unwrap();
    assert_eq!((gone.line, set.judge(&packet), set.remove(1)), (1, Some(0), None));
}

#[test]
fn duplicates_hidden_rules_and_subsets_are_found() {
    let found = |text: &str| set(text).merge();
    let any = "src any dst any sport any dport any proto any";
    // A rule hides its duplicate, whatever that does.
    let text = format!("accept {any}\ndrop {any}\n");
    assert_eq!(found(&text), [Merged { rule: 1, by: 0, why: Why::Duplicate }]);
    // Of equal rank, but inside the other.
    let text = format!("accept {any}\ndrop src 0.0.0.0/0 dst any sport any dport any proto any\n");
    assert_eq!(found(&text), [Merged { rule: 1, by: 0, why: Why::Hidden }]);
    // The thesis' example: rule 1 inside rule 2.
    let text = "accept src 10.99.124.99 dst 87.16.135.137 sport 80 dport 8080 proto tcp
        accept src 10.99.124.0/24 dst 87.16.0.0/16 sport any dport any proto any\n";
    assert_eq!(found(text), [Merged { rule: 0, by: 1, why: Why::Subset }]);
    // Another action makes it an exception, which is needed.
    assert_eq!(found(&text.replacen("accept", "drop", 1)), []);
    // So does one between them that shares packets with it and does something else ...
    let between = "drop src 10.99.0.0/16 dst any sport 80 dport 8080 proto any\n";
    assert_eq!(found(&format!("{text}{between}")), []);
    // ... and one that shares none, or does the same, does not.
    let between = "drop src 10.98.0.0/16 dst any sport 80 dport 8080 proto any\n";
    assert_eq!(found(&format!("{text}{between}")).len(), 1);
    let between = "accept src 10.99.0.0/16 dst any sport 80 dport 8080 proto any\n";
    assert_eq!(found(&format!("{text}{between}")).len(), 1);
}

#[test]
fn a_duplicate_that_stays_for_its_other_family_objects() {
    let set = set("accept src 0.0.0.0/0 dst any sport any dport any proto 1
        drop src any dst any sport any dport any proto icmp
        accept src any dst any sport any dport any proto any\n");
    // Without the first, the second would drop its packets.
    assert_eq!(set.merge(), []);
}

#[test]
fn clustering_writes_a_rare_signature_under_one_that_is_there() {
    let mut text = String::new();
    for net in 0..40 {
        let _ = writeln!(text, "accept src 10.0.{net}.0/24 dst any sport any dport any proto any");
    }
    text += "accept src 10.1.0.0/22 dst any sport any dport any proto any\n";
    let set = set(&text);
    let Clustered { set: clustered, origins, moves } = set.cluster(&Sample::of_rules(&set), 1.25);
    assert_eq!((moves.len(), moves[0].patterns, moves[0].gained), (1, 1, 4));
    assert_eq!(clustered.len(), 44);
    assert_eq!(clustered.signatures().len(), 1);
    let packet = tuple("10.1.1.7", "1.1.1.1", 6, None);
    assert_eq!(clustered.judge(&packet).map(|part| origins[part as usize]), Some(40));
    // No growth allowed, no move.
    assert_eq!(set.cluster(&Sample::default(), 1.0).moves, []);
    // Nor where it would come before an exception from it.
    text += "drop src 10.0.0.0/15 dst any sport any dport any proto 6\n";
    let set = RuleSet::parse(&text).unwrap();
    assert_eq!(set.cluster(&Sample::of_rules(&set), 2.0).moves, []);
}

#[test]
fn tries_are_counted_as_the_engines_make_them() {
    // Ranks 48, 32, 24, 8: four signatures.
    let set = set("accept src 10.0.0.1 dst any sport any dport 80 proto any
        accept src any dst 10.0.0.9 sport any dport any proto any
        accept src 10.0.2.0/24 dst any sport any dport any proto any
        accept src any dst any sport any dport any proto udp\n");
    let model = Model::new(&set);
    let tries = |source, destination, protocol, ports| {
        model.tries(&tuple(source, destination, protocol, ports))
    };
    // The first look-up finds a rule that nothing comes before.
    assert_eq!(tries("10.0.0.1", "1.1.1.1", 6, Some((1, 80))), Tries { walk: 1, candidates: 1 });
    // No rule at all; no field of it is a field of a rule.
    assert_eq!(tries("9.9.9.9", "9.9.9.9", 6, Some((1, 1))), Tries { walk: 4, candidates: 0 });
    // Without ports, the first signature has nothing to look at.
    assert_eq!(tries("9.9.9.9", "9.9.9.9", 1, None), Tries { walk: 3, candidates: 0 });
    assert_eq!(tries("9.9.9.9", "9.9.9.9", 17, Some((1, 80))), Tries { walk: 4, candidates: 1 });
    let mut sample = Sample::default();
    sample.add(tuple("10.0.0.1", "1.1.1.1", 6, Some((1, 80))));
    sample.add(tuple("9.9.9.9", "9.9.9.9", 6, Some((1, 1))));
    let expected =
        Cost { packets: 2, walk_mean: 2.5, walk_max: 4, candidates_mean: 0.5, candidates_max: 1 };
    assert_eq!(model.cost(&sample), expected);
}

#[test]
fn a_sample_has_a_bound_and_picks_evenly() {
    let mut sample = Sample::default();
    let count = SAMPLE as u32 * 8;
    for number in 0..count {
        let mut tuple = tuple("10.0.0.1", "10.0.0.2", 17, None);
        tuple.source = number.into();
        sample.add(tuple);
    }
    assert_eq!((sample.tuples().len(), sample.seen()), (SAMPLE, u64::from(count)));
    // Each eighth of the packets has an eighth of the sample, within five standard deviations.
    for part in 0..8u32 {
        let range = u128::from(part * SAMPLE as u32)..u128::from((part + 1) * SAMPLE as u32);
        let picked = sample.tuples().iter().filter(|t| range.contains(&t.source)).count();
        assert!(picked.abs_diff(SAMPLE / 8) < 150, "{picked} of part {part}");
    }
}

/// The thesis' figures: 65,536 bits, four hashes, 0.2 %.
#[test]
fn the_bloom_filter_has_the_thesis_mathematics() {
    let capacity = bloom::capacity(bloom::THESIS_BITS, bloom::PROMISED_RATE);
    assert_eq!(capacity, 3892);
    assert!(bloom::rate(bloom::THESIS_BITS, capacity) <= 0.002);
    assert!(bloom::rate(bloom::THESIS_BITS, capacity + 1) > 0.002);
    assert_eq!(bloom::bits(capacity, 0.002), bloom::THESIS_BITS);
    assert_eq!(bloom::bits(capacity + 1, 0.002), bloom::THESIS_BITS * 2);
    assert_eq!(bloom::bits(0, 0.002), bloom::MIN_BITS);

    let fixed = bloom::Size::Fixed(bloom::THESIS_BITS);
    assert_eq!(bloom::plan(capacity, 0.002, fixed), Ok(bloom::THESIS_BITS));
    let broken = bloom::plan(capacity + 1, 0.002, fixed).unwrap_err();
    assert!(
        broken.to_string().contains("at most 3892 patterns keep it, or 131072 bits"),
        "{broken}"
    );
    let up_to = bloom::Size::UpTo(1 << 24);
    assert_eq!(bloom::plan(capacity + 1, 0.002, up_to), Ok(bloom::THESIS_BITS * 2));
    assert!(matches!(bloom::plan(1 << 24, 0.002, up_to), Err(bloom::Error::TooLarge { .. })));
    assert!(matches!(bloom::plan(1, 1.0, up_to), Err(bloom::Error::Rate(_))));
    assert!(matches!(bloom::plan(1, f64::NAN, up_to), Err(bloom::Error::Rate(_))));
    assert!(matches!(bloom::plan(1, 0.5, bloom::Size::UpTo(1000)), Err(bloom::Error::Size(1000))));
    assert!(matches!(bloom::plan(u64::MAX, 1e-300, up_to), Err(bloom::Error::TooLarge { .. })));
}

/// A filter of independent random bits has the rate that the formula says, within a tenth.
#[test]
fn a_measured_rate_is_that_of_the_formula() {
    let mut random = SplitMix64(1);
    let bits = 1usize << 14;
    for patterns in [1500, 3000, 6000] {
        let mut filter = vec![false; bits];
        for _ in 0..patterns * bloom::HASHES {
            filter[random.below(bits)] = true;
        }
        let asked = 400_000;
        let found =
            (0..asked).filter(|_| (0..bloom::HASHES).all(|_| filter[random.below(bits)])).count();
        let (measured, formula) =
            (found as f64 / f64::from(asked), bloom::rate(bits as u64, patterns.into()));
        assert!((measured / formula - 1.0).abs() < 0.1, "{patterns}: {measured} for {formula}");
    }
}

/// An Ethernet frame with `tags`, a type, and what that carries.
fn frame(tags: &[u16], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 7]);
    }
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame
}

fn ipv4(options: usize, flags: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45 + options as u8, 0, 0, 0, 0x12, 0x34];
    packet.extend(flags.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.resize(packet.len() + 4 * options, 1);
    packet.extend(payload);
    packet
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend([0xfe; 16]);
    packet.extend([0xfd; 16]);
    packet.extend(payload);
    packet
}

const PORTS: [u8; 4] = [0, 53, 0x80, 0];
const KNOWN: Option<(u16, u16)> = Some((53, 0x8000));

fn read(frame: &[u8]) -> Tuple {
    Tuple::read(LinkType::ETHERNET, frame)
}

#[test]
fn tuples_are_read_behind_tags_options_and_extension_headers() {
    let expected = tuple("10.0.0.1", "10.0.0.2", 17, KNOWN);
    for options in [0, 1, 10] {
        let packet = ipv4(options, 0, 17, &PORTS);
        for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100], &[0x9100, 0x8100, 0x8100, 0x8100]] {
            assert_eq!(read(&frame(tags, 0x0800, &packet)), expected, "{tags:x?}");
        }
        assert_eq!(read(&frame(&[0x8100; 5], 0x0800, &packet)), Tuple::default());
        assert_eq!(Tuple::read(LinkType::RAW, &packet), expected);
        assert_eq!(Tuple::read(LinkType(228), &packet), expected);
        let cooked = [&[0; 14][..], &[8, 0], &packet].concat();
        assert_eq!(Tuple::read(LinkType(113), &cooked), expected);
    }
    let hop_by_hop = [43, 0, 0, 0, 0, 0, 0, 0];
    let routing = [51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let authentication = [60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let options = [6, 0, 0, 0, 0, 0, 0, 0];
    let chain = [&hop_by_hop[..], &routing, &authentication, &options, &PORTS].concat();
    let found = read(&frame(&[], 0x86dd, &ipv6(0, &chain)));
    assert_eq!((found.family, found.protocol, found.ports), (Some(Family::V6), 6, KNOWN));
    let source = IpAddr::from([0xfe; 16]);
    assert_eq!(found.addresses(), Some((source, IpAddr::from([0xfd; 16]))));
    // Eight headers are passed, nine are not.
    let eight = [&[60, 0, 0, 0, 0, 0, 0, 0].repeat(7)[..], &options, &PORTS].concat();
    assert_eq!(read(&frame(&[], 0x86dd, &ipv6(60, &eight))).ports, KNOWN);
    let nine = [&[60, 0, 0, 0, 0, 0, 0, 0].repeat(8)[..], &options, &PORTS].concat();
    let found = read(&frame(&[], 0x86dd, &ipv6(60, &nine)));
    assert_eq!((found.protocol, found.ports), (60, None));
}

#[test]
fn what_is_cut_or_no_packet_is_not_known() {
    let packet = ipv4(0, 0, 6, &PORTS);
    let whole = frame(&[], 0x0800, &packet);
    for length in 0..whole.len() {
        let found = read(&whole[..length]);
        assert_eq!(found.family.is_some(), length >= 34, "{length}");
        assert_eq!(found.ports, None, "{length}");
    }
    assert_eq!(read(&frame(&[], 0x86dd, &packet)), Tuple::default());
    assert_eq!(read(&frame(&[], 0x0806, &packet)), Tuple::default());
    let mut short = packet.clone();
    short[0] = 0x44;
    assert_eq!(read(&frame(&[], 0x0800, &short)), Tuple::default());
    assert_eq!(Tuple::read(LinkType(147), &packet), Tuple::default());
    let six = frame(&[], 0x86dd, &ipv6(44, &[6, 0]));
    let found = read(&six);
    assert_eq!((found.protocol, found.ports, found.fragment), (44, None, None));
}

#[test]
fn later_fragments_follow_their_first() {
    let more = 0x2000;
    let first = read(&frame(&[], 0x0800, &ipv4(0, more, 17, &PORTS)));
    assert_eq!(first.fragment, Some(Fragment { id: 0x1234, is_first: true }));
    assert_eq!(first.ports, KNOWN);
    let later = read(&frame(&[], 0x0800, &ipv4(0, 100, 17, &[9; 8])));
    assert_eq!(later.fragment, Some(Fragment { id: 0x1234, is_first: false }));
    assert_eq!(later.ports, None);

    let six = |offset: u8, rest: &[u8]| {
        read(&frame(&[], 0x86dd, &ipv6(44, &[&[17, 0, 0, offset, 1, 2, 3, 4], rest].concat())))
    };
    assert_eq!(six(0, &PORTS).fragment, None);
    let (first_6, later_6) = (six(1, &PORTS), six(8, &PORTS));
    assert_eq!((first_6.ports, later_6.ports), (KNOWN, None));
    assert_eq!(later_6.fragment, Some(Fragment { id: 0x0102_0304, is_first: false }));
    assert_eq!((first_6.protocol, later_6.protocol), (17, 17));

    let mut fragments = Fragments::default();
    let mut follow = |tuple: &Tuple, seconds: i64| {
        let mut tuple = *tuple;
        fragments.follow(&mut tuple, Some(seconds * 1_000_000_000));
        tuple.ports
    };
    // One that comes before its first is not known.
    assert_eq!(follow(&later, 0), None);
    assert_eq!(follow(&first, 1), KNOWN);
    assert_eq!(follow(&later, 1), KNOWN);
    assert_eq!(follow(&later_6, 1), None);
    let mut other = later;
    other.fragment = Some(Fragment { id: 0x1235, is_first: false });
    assert_eq!(follow(&other, 1), None);
    // In IPv6 the first says what protocol it is.
    follow(&first_6, 1);
    assert_eq!(follow(&Tuple { protocol: 60, ..later_6 }, 2), KNOWN);
    // Nobody waits longer than half a minute.
    assert_eq!(follow(&later, 31), KNOWN);
    assert_eq!(follow(&later, 32), None);
    // What is remembered has a bound.
    follow(&first, 33);
    for source in 0..200_000u128 {
        follow(&Tuple { source, ..first }, 33);
    }
    assert_eq!(follow(&later, 33), None);
}

/// A few addresses, so that rules meet.
fn some_address(is_v4: bool) -> impl Strategy<Value = IpAddr> {
    (0..2u8, 0..8u8).prop_map(move |(high, low)| {
        if is_v4 {
            IpAddr::from([10, high, 0, low])
        } else {
            let mut bytes = [0; 16];
            (bytes[0], bytes[5], bytes[15]) = (0x20, high, low);
            IpAddr::from(bytes)
        }
    })
}

fn some_net(is_v4: bool) -> impl Strategy<Value = String> {
    let bits: [u8; 7] =
        if is_v4 { [0, 8, 16, 29, 30, 31, 32] } else { [0, 8, 48, 125, 126, 127, 128] };
    let net = (some_address(is_v4), prop::sample::select(bits.to_vec()));
    prop_oneof![Just("any".to_owned()), net.prop_map(|(a, b)| format!("{a}/{b}"))]
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let action = prop::sample::select(vec!["accept", "accept", "drop", "snaplen=64", "cutoff=64"]);
    let nets = prop::bool::weighted(0.7).prop_flat_map(|is_v4| (some_net(is_v4), some_net(is_v4)));
    let port = || prop::sample::select(vec!["any", "any", "1", "2", "1-2", "0-1"]);
    let protocol = prop::sample::select(vec!["any", "any", "tcp", "udp", "icmp", "58"]);
    (action, nets, port(), port(), protocol).prop_map(
        |(action, (source, destination), sport, dport, proto)| {
            rule(&format!(
                "{action} src {source} dst {destination} sport {sport} dport {dport} proto {proto}"
            ))
        },
    )
}

fn some_tuple() -> impl Strategy<Value = Tuple> {
    let ip = any::<bool>().prop_flat_map(|is_v4| {
        let protocol = prop::sample::select(vec![1u8, 6, 17, 58]);
        let ports = prop::option::weighted(0.8, (0..3u16, 0..3u16));
        (some_address(is_v4), some_address(is_v4), protocol, ports).prop_map(
            |(source, destination, protocol, ports)| {
                Tuple::new(source, destination, protocol, ports).unwrap()
            },
        )
    });
    prop_oneof![20 => ip, 1 => Just(Tuple::default())]
}

fn some_set(most: usize) -> impl Strategy<Value = RuleSet> {
    let entry = (some_rule(), prop::bool::weighted(0.9));
    prop::collection::vec(entry, 0..most).prop_map(|entries| {
        let mut set = RuleSet::default();
        for (rule, enabled) in entries {
            set.push(Entry { rule, enabled, line: 0 });
        }
        set
    })
}

fn action(set: &RuleSet, tuple: &Tuple) -> Option<Action> {
    set.judge(tuple).map(|number| set.entries()[number as usize].rule.action.clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_is_parsed_again(rule in some_rule()) {
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    /// The definition, without a mask: by the sum of widths, counted here, and then by number.
    #[test]
    fn order_and_judges_agree_with_the_definition(
        set in some_set(30), tuples in prop::collection::vec(some_tuple(), 20)
    ) {
        let width = |rule: &Rule| {
            let bits = |net: Option<ipnet::IpNet>| net.map_or(0, |net| usize::from(net.prefix_len()));
            let ports = [rule.source_port, rule.destination_port].iter().flatten().count();
            bits(rule.source) + bits(rule.destination) + 16 * ports
                + 8 * usize::from(rule.protocol.is_some())
        };
        let fits = |rule: &Rule, tuple: &Tuple| {
            let addresses = tuple.addresses();
            let within = |net: Option<ipnet::IpNet>, address: Option<IpAddr>| {
                net.is_none_or(|net| address.is_some_and(|address| net.contains(&address)))
            };
            within(rule.source, addresses.map(|a| a.0))
                && within(rule.destination, addresses.map(|a| a.1))
                && rule.source_port.is_none_or(|of| tuple.ports.is_some_and(|p| of.contains(p.0)))
                && rule.destination_port.is_none_or(|of| tuple.ports.is_some_and(|p| of.contains(p.1)))
                && rule.protocol.is_none_or(|protocol| match protocol {
                    Protocol::Number(number) => tuple.family.is_some() && tuple.protocol == number,
                    Protocol::Icmp => {
                        let icmp = if tuple.family == Some(Family::V4) { 1 } else { 58 };
                        tuple.family.is_some() && tuple.protocol == icmp
                    }
                })
        };
        let judge = Judge::new(&set);
        for tuple in &tuples {
            let mut best: Option<(usize, u32)> = None;
            for (number, entry) in (0..).zip(set.entries()) {
                let width = width(&entry.rule);
                if entry.enabled && fits(&entry.rule, tuple) && best.is_none_or(|(w, _)| width > w) {
                    best = Some((width, number));
                }
            }
            let expected = best.map(|(_, number)| number);
            prop_assert_eq!(set.judge(tuple), expected);
            prop_assert_eq!(judge.judge(tuple), expected);
        }
    }

    /// Containing and sharing packets, against all packets of a small world.
    #[test]
    fn patterns_contain_and_overlap_as_their_packets_do(
        one in some_rule(), two in some_rule(), tuples in prop::collection::vec(some_tuple(), 50)
    ) {
        for (one, two) in one.patterns().flat_map(|one| two.patterns().map(move |two| (one, two))) {
            let pair: (Pattern, Pattern) = (one, two);
            for tuple in &tuples {
                let (by_one, by_two) = (one.fits(tuple), two.fits(tuple));
                prop_assert!(!(by_one && by_two) || one.overlaps(&two), "{:?} {:?}", pair, tuple);
                prop_assert!(!one.contains(&two) || !by_two || by_one, "{:?} {:?}", pair, tuple);
            }
            prop_assert!(!one.contains(&two) || one.overlaps(&two));
            prop_assert!(!(one.contains(&two) && two.contains(&one)) || one == two);
        }
    }

    #[test]
    fn without_what_merging_finds_the_same_is_done(
        set in some_set(25), tuples in prop::collection::vec(some_tuple(), 60)
    ) {
        let merged = set.merge();
        let lean = set.without(&merged);
        prop_assert_eq!(lean.len(), set.len() - merged.len());
        for tuple in &tuples {
            prop_assert_eq!(action(&lean, tuple), action(&set, tuple), "{}without {:?}", set, merged);
            if let Some(by) = set.judge(tuple) {
                let why = merged.iter().find(|merged| merged.rule == by).map(|merged| merged.why);
                prop_assert!(why.is_none_or(|why| why == Why::Subset), "{} was never to be hit", by);
            }
        }
    }

    /// Duplicates are found without exception.
    #[test]
    fn no_duplicate_is_left(set in some_set(25)) {
        let lean = set.without(&set.merge());
        let rules: Vec<&Rule> = lean.entries().iter().filter(|e| e.enabled).map(|e| &e.rule).collect();
        for (number, rule) in rules.iter().enumerate() {
            let pattern: Vec<Pattern> = rule.patterns().collect();
            prop_assert!(rules[..number].iter().all(|other| other.patterns().collect::<Vec<_>>() != pattern));
        }
    }

    /// Each packet is taken by a part of the rule that took it before.
    #[test]
    fn clustering_changes_no_judgement(
        set in some_set(25), tuples in prop::collection::vec(some_tuple(), 60), growth in 1.0..20.0
    ) {
        let mut sample = Sample::default();
        for tuple in &tuples {
            sample.add(*tuple);
        }
        let Clustered { set: clustered, origins, moves } = set.cluster(&sample, growth);
        prop_assert_eq!(clustered.len(), origins.len());
        let patterns = |set: &RuleSet| set.entries().iter().filter(|e| e.enabled).map(|e| e.rule.patterns().count()).sum::<usize>();
        prop_assert!(patterns(&clustered) as f64 <= (patterns(&set) as f64 * growth).max(patterns(&set) as f64));
        prop_assert!(set.signatures().len() - moves.len() == clustered.signatures().len() || !moves.is_empty());
        // What is written is what was meant.
        let clustered = RuleSet::parse(clustered.to_string()).unwrap();
        for tuple in &tuples {
            let by = clustered.judge(tuple).map(|part| origins[part as usize]);
            prop_assert_eq!(by, set.judge(tuple), "{}moves {:?}\n{}{:?}", set, moves, clustered, tuple);
        }
        // It saves what it counts: candidates, and a 64th of a try for each signature.
        let weight = |set: &RuleSet| {
            let model = Model::new(set);
            let candidates: u32 = tuples.iter().map(|tuple| model.candidates(tuple)).sum();
            f64::from(candidates) / tuples.len() as f64 + set.signatures().len() as f64 / 64.0
        };
        let saved: f64 = moves.iter().map(|m| m.saved).sum();
        prop_assert!(weight(&set) - weight(&clustered) >= saved - 1e-9, "{}{}", set, clustered);
    }
}
