//! Filter expressions: what is understood of them, what it is printed as, and which keys they ask
//! for. That libpcap agrees is tested where libpcap is, in `crates/tapdeck`.

#[path = "../../../fuzz/checks/filter.rs"]
mod check;

use tapdeck_packet::filter::{NotUnderstood, parse};
use tapdeck_packet::key::{Class, Plan};
use tapdeck_testkit::SplitMix64;

/// A plan in few words: `s` and `d` for source and destination, addresses and types in hexadecimal.
fn show(plan: &Plan) -> String {
    let list = |plans: &[Plan], between| {
        let shown: Vec<_> = plans.iter().map(show).collect();
        format!("({})", shown.join(between))
    };
    match plan {
        Plan::All => "all".into(),
        Plan::Every(plans) => list(plans, " & "),
        Plan::Any(plans) => list(plans, " | "),
        Plan::Keys { class, first, last } => {
            let (name, is_decimal) = match class {
                Class::EtherType => ("type", false),
                Class::Vlan => ("vlan", true),
                Class::Mpls => ("mpls", true),
                Class::Protocol => ("proto", true),
                Class::SourcePort => ("sport", true),
                Class::DestinationPort => ("dport", true),
                Class::SourceIpv4 => ("s4", false),
                Class::DestinationIpv4 => ("d4", false),
                Class::SourceIpv6 => ("s6", false),
                Class::DestinationIpv6 => ("d6", false),
                Class::SourceMac => ("smac", false),
                Class::DestinationMac => ("dmac", false),
                Class::Shed => ("shed", false),
            };
            let number = |n: u128| if is_decimal { n.to_string() } else { format!("{n:x}") };
            let range = if first == last { String::new() } else { format!("-{}", number(*last)) };
            format!("{name} {}{range}", number(*first))
        }
    }
}

#[track_caller]
fn assert_reads(text: &str, printed: &str, plan: &str) {
    let expression = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(expression.to_string(), printed, "{text}");
    assert_eq!(show(&expression.plan()), plan, "{text}");
}

const TAGGED: &str = "(type 8100 | type 88a8 | type 9100)";

/// Numbers that have no room in their headers; libpcap refuses them, too.
#[test]
fn a_label_that_there_cannot_be_is_not_understood() {
    for (greatest, more) in [
        ("vlan 4095", "vlan 4096"),
        ("mpls 1048575", "mpls 1048576"),
        ("pppoes 65535", "pppoes 65536"),
        ("geneve 16777215", "geneve 16777216"),
    ] {
        assert!(parse(greatest).is_ok(), "{greatest}");
        assert!(parse(more).is_err(), "{more}");
    }
}

#[test]
fn addresses() {
    for (text, printed, plan) in [
        ("host 10.0.0.1", "(src or dst host 10.0.0.1)", "(s4 a000001 | d4 a000001)"),
        ("ip src 10.0.0.1", "(ip src host 10.0.0.1)", "s4 a000001"),
        ("dst and src host 5", "(src and dst host 0.0.0.5)", "(s4 5 & d4 5)"),
        ("arp dst 10.0.0.1", "(arp dst host 10.0.0.1)", "(type 806 & d4 a000001)"),
        ("src host 10.1", "(src net 10.1.0.0/16)", "s4 a010000-a01ffff"),
        ("src net 10", "(src net 10.0.0.0/8)", "s4 a000000-affffff"),
        ("src net 256", "(src net 1.0.0.0/16)", "s4 1000000-100ffff"),
        ("src net 0", "(src host 0.0.0.0)", "s4 0"),
        ("src net 10.4.0.0/14", "(src net 10.4.0.0/14)", "s4 a040000-a07ffff"),
        ("src net 10.1 mask 255.255", "(src net 10.1.0.0/16)", "s4 a010000-a01ffff"),
        (
            "src net 10.0.3.0 mask 255.0.255.0",
            "(src net 10.0.3.0 mask 255.0.255.0)",
            "s4 a000000-affffff",
        ),
        ("net 0.0.0.0/0", "(src or dst net 0.0.0.0/0)", "(type 800 | type 806 | type 8035)"),
        ("rarp net 0.0.0.0/0", "(rarp src or dst net 0.0.0.0/0)", "type 8035"),
        ("dst 2001:DB8::1", "(dst host 2001:db8::1)", "d6 20010db8000000000000000000000001"),
        (
            "ip6 src net 2001:db8::/32",
            "(ip6 src net 2001:db8::/32)",
            "s6 20010db8000000000000000000000000-20010db8ffffffffffffffffffffffff",
        ),
        ("net ::/0", "(src or dst net ::/0)", "type 86dd"),
        ("ether src 2:0:0:0:0:1", "(ether src host 02:00:00:00:00:01)", "smac 20000000001"),
        ("wlan dst host 0200.0000.0001", "(ether dst host 02:00:00:00:00:01)", "dmac 20000000001"),
        ("ether dst 02-0-0-0-0-1", "(ether dst host 02:00:00:00:00:01)", "dmac 20000000001"),
        ("ether dst 020000000001", "(ether dst host 02:00:00:00:00:01)", "dmac 20000000001"),
        ("broadcast", "(broadcast)", "dmac ffffffffffff"),
        ("ip broadcast", "(ip broadcast)", "all"),
        ("ether multicast", "(ether multicast)", "all"),
    ] {
        assert_reads(text, printed, plan);
    }
}

#[test]
fn ports_and_protocols() {
    for (text, printed, plan) in [
        ("port 0x50", "(src or dst port 80)", "(sport 80 | dport 80)"),
        ("tcp src port 0120", "(tcp src port 80)", "(proto 6 & sport 80)"),
        ("src and dst port 53", "(src and dst port 53)", "(sport 53 & dport 53)"),
        ("dst portrange 90-80", "(dst portrange 80-90)", "dport 80-90"),
        ("udp dst portrange 9", "(udp dst portrange 9-9)", "(proto 17 & dport 9)"),
        ("port http", "(src or dst port \\http)", "all"),
        ("tcp", "tcp", "proto 6"),
        ("ip proto \\udp", "(ip proto 17)", "(type 800 & proto 17)"),
        ("ip6 proto gre", "(ip6 proto 47)", "(type 86dd & proto 47)"),
        ("proto 300", "(proto 300)", "all"),
        ("proto \\ip", "(proto \\ip)", "all"),
        ("ip6 protochain 6", "(ip6 protochain 6)", "all"),
        ("ether proto \\arp", "(ether proto 2054)", "type 806"),
        ("ether proto 1500", "(ether proto 1500)", "all"),
        ("ether proto \\iso", "(ether proto \\iso)", "all"),
        ("link proto 70000", "(ether proto 70000)", "all"),
        ("ip6", "ip6", "type 86dd"),
        ("stp", "stp", "all"),
        ("pppoed", "(pppoed)", "type 8863"),
        ("llc rnr", "(llc rnr)", "all"),
        ("less 0x40", "(less 64)", "all"),
        ("type mgt subtype beacon", "(type \\mgt subtype \\beacon)", "all"),
    ] {
        assert_reads(text, printed, plan);
    }
}

#[test]
fn identifiers_take_the_qualifiers_before_them() {
    for (text, printed) in [
        ("port 80 or 443", "((src or dst port 80) or (src or dst port 443))"),
        ("not src 1.1.1.1 and 2.2.2.2", "((not (src host 1.1.1.1)) and (src host 2.2.2.2))"),
        (
            "tcp port (80 or not 443)",
            "((tcp src or dst port 80) or (not (tcp src or dst port 443)))",
        ),
        (
            "src 1.1.1.1 and (port 80) and 2.2.2.2",
            "((src host 1.1.1.1) and (src or dst port 80) and (src host 2.2.2.2))",
        ),
        ("src 1.1.1.1 && (5)", "((src host 1.1.1.1) and (src host 0.0.0.5))"),
        ("src 1.1.1.1 and (5) < len", "((src host 1.1.1.1) and (5 < len))"),
    ] {
        assert_eq!(parse(text).map(|e| e.to_string()).as_deref(), Ok(printed), "{text}");
    }
    for (text, at) in [
        ("1.1.1.1", 0),
        ("(src 1.1.1.1) and 2.2.2.2", 18),
        ("port 80 and tcp and 443", 23),
        ("port 1.1.1.1", 5),
        ("host 02:00:00:00:00:01", 5),
        ("host 1.1.1.1/32", 13),
        ("net 10.0.0.1/8", 13),
        ("net 10/8", 8),
        ("ip 1.1.1.1", 3),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
    }
}

#[test]
fn and_and_or_bind_alike_and_not_binds_tighter() {
    for (text, printed, plan) in [
        ("tcp or udp and ip", "((tcp or udp) and ip)", "((proto 6 | proto 17) & type 800)"),
        ("tcp and udp or ip", "((tcp and udp) or ip)", "((proto 6 & proto 17) | type 800)"),
        (
            "tcp or (udp or (ip or tcp))",
            "(tcp or (udp or (ip or tcp)))",
            "(proto 6 | proto 17 | type 800)",
        ),
        ("(tcp || udp) or ip", "(tcp or udp or ip)", "(proto 6 | proto 17 | type 800)"),
        ("!tcp && udp", "((not tcp) and udp)", "proto 17"),
        ("not (tcp and udp)", "(not (tcp and udp))", "all"),
        ("not (not tcp or not udp)", "(not ((not tcp) or (not udp)))", "(proto 6 & proto 17)"),
        ("not (not tcp and not udp)", "(not ((not tcp) and (not udp)))", "(proto 6 | proto 17)"),
        ("tcp or len > 5", "(tcp or (len > 5))", "all"),
        ("tcp and len > 5", "(tcp and (len > 5))", "proto 6"),
        ("tcp and tcp", "(tcp and tcp)", "proto 6"),
    ] {
        assert_reads(text, printed, plan);
    }
}

#[test]
fn arithmetic_is_grouped_as_yacc_groups_it_and_guarded_as_libpcap_guards_it() {
    for (text, printed, plan) in [
        ("ip[0] & 0xf != 5", "((ip[0:1] & 15) != 5)", "type 800"),
        ("len - 1 - 2 * 3 = 0", "(((len - 1) - (2 * 3)) = 0)", "all"),
        // Neither `%` nor `^` has a precedence.
        ("len % 5 + 3 = 1", "((len % (5 + 3)) = 1)", "all"),
        ("len + 5 % 3 = 1", "((len + (5 % 3)) = 1)", "all"),
        ("-len * 2 == 1", "(((- len) * 2) = 1)", "all"),
        ("- len ^ 2 == 1", "((- (len ^ 2)) = 1)", "all"),
        ("tcp[tcpflags] & (tcp-syn|tcp-fin) != 0", "((tcp[13:1] & (2 | 1)) != 0)", "proto 6"),
        ("icmp6[0] = icmp6-echo", "(icmp6[0:1] = 128)", "proto 58"),
        (
            "ip[tcp[12]] < udp[4:2]",
            "(ip[tcp[12:1]:1] < udp[4:2])",
            "(proto 6 & type 800 & proto 17)",
        ),
        // Of operands, only the first counts.
        ("5 + tcp[0] = udp[0] + ip[0]", "((5 + tcp[0:1]) = (udp[0:1] + ip[0:1]))", "proto 17"),
        ("ether[0] & 1 = 1", "((ether[0:1] & 1) = 1)", "all"),
    ] {
        assert_reads(text, printed, plan);
    }
}

#[test]
fn movers_are_planned_with_what_stands_behind_them_if_they_hold() {
    let vlan = |plan: &str| format!("({TAGGED} & {plan})");
    for (text, plan) in [
        ("vlan", TAGGED.to_owned()),
        ("vlan 5", vlan("vlan 5")),
        ("vlan and tcp", vlan("proto 6")),
        ("vlan 5 and vlan 6 and tcp", vlan("vlan 5 & vlan 6 & proto 6")),
        ("mpls 5 and mpls 6", "(type 8847 & mpls 5 & mpls 6)".into()),
        ("pppoes 7 and tcp", "(type 8864 & proto 6)".into()),
        ("geneve 7 and tcp", "(proto 17 & dport 6081 & proto 6)".into()),
        ("tcp and (vlan or udp)", "proto 6".into()),
        ("(vlan or tcp) and udp", "all".into()),
        ("tcp or vlan", format!("(proto 6 | {})", TAGGED.trim_matches(['(', ')']))),
        ("tcp or (vlan and tcp)", format!("(proto 6 | {})", vlan("proto 6"))),
        ("tcp or (vlan and tcp) or udp", "all".into()),
        ("vlan or tcp", "all".into()),
        ("not vlan and tcp", "all".into()),
        ("udp and not vlan and tcp", "proto 17".into()),
        ("not not vlan and tcp", vlan("proto 6")),
        ("not (not vlan or not tcp)", vlan("proto 6")),
        ("not (not vlan and not tcp)", "all".into()),
        ("vlan and (tcp or udp)", vlan("(proto 6 | proto 17)")),
        ("vlan and (tcp or mpls) and udp", vlan("(proto 6 | type 8847)")),
    ] {
        assert_eq!(show(&parse(text).expect(text).plan()), plan, "{text}");
    }
}

#[test]
fn what_is_nested_too_deep_is_not_understood() {
    let what = "it is nested too deep";
    for (open, close) in
        [("(", ")"), ("not ", ""), ("host ", ""), ("len = (", ")"), ("host (", ")")]
    {
        let text = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let error = parse(&text).expect_err(open);
        assert!(error.at < 10_000, "{open}: {error}");
    }
    let alternating = format!("tcp{}", " and tcp or tcp".repeat(1000));
    assert_eq!(parse(&alternating).map_err(|e| e.what), Err(what));
    let sum = format!("len{} = 1", " + len".repeat(1000));
    let error: NotUnderstood = parse(&sum).expect_err("too long");
    assert_eq!(error.what, "it has too many operators");
    // In a row, they are not inside each other.
    let hosts = format!("host 10.0.0.1{}", " or 10.0.0.2".repeat(10_000));
    let plan = parse(&hosts).expect("many hosts").plan();
    assert_eq!(show(&plan), "(s4 a000001 | d4 a000001 | s4 a000002 | d4 a000002)");
}

const VALID: &[&str] = &[
    "tcp dst port 80 or 443 and not (src net 10.0.0.0/8 or 192.168 mask 255.255)",
    "vlan 5 and (ip6 host 2001:db8::1 or ether src 02:00:00:00:00:01) && mpls",
    "(tcp[tcpflags] & (tcp-syn|tcp-fin) != 0) || ip[6:2] & 0x1fff = -len % 3",
    "ip proto \\tcp or 17 and portrange 80-90 or geneve 7 and llc ui",
    "host (10.0.0.1 or not 10.0.0.2) and src and dst 5 and proto gre",
];

/// Words that a parser breaks on.
const WORDS: &[&str] = &[
    "(",
    ")",
    "not ",
    " and ",
    " or ",
    "-",
    "0x",
    "08",
    "4294967296",
    "::",
    "/129",
    "/0",
    " mask ",
    "\\",
    "\u{e9}",
    "\0",
    "1.2.3.4.5",
    "[",
    "]",
    ":",
    "len",
    "host ",
    "src ",
    "vlan ",
    " % ",
    "!",
    "&",
    "=",
    "$a",
    "1:2:3:4:5:6:7:8",
];

#[test]
fn the_parser_keeps_its_promises_on_mutations_of_valid_expressions() {
    const INPUTS: usize = 4000;
    let mut random = SplitMix64(0x6669_6c74_6572);
    for valid in VALID {
        assert!(check::check(valid.as_bytes()), "{valid}");
        let (mut good, mut bad) = (0, 0);
        for _ in 0..INPUTS {
            let mut data = valid.as_bytes().to_vec();
            for _ in 0..=random.below(3) {
                let at = random.below(data.len() + 1);
                let to = (at + random.below(12)).min(data.len());
                let piece = data[at..to].to_vec();
                match random.below(5) {
                    0 => drop(data.drain(at..to)),
                    1 => drop(data.splice(at..at, piece.repeat(2))),
                    2 => drop(data.splice(at..to, WORDS[random.below(WORDS.len())].bytes())),
                    3 => drop(data.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
                    _ => data[at..to].iter_mut().for_each(|b| *b ^= 1 << random.below(7)),
                }
            }
            if check::check(&data) { good += 1 } else { bad += 1 }
        }
        // The mutations reach both ends.
        assert!(good > INPUTS / 100 && bad > INPUTS / 4, "{good} good, {bad} bad: {valid}");
    }
}
