use tapdeck_packet::filter;
use tapdeck_packet::key::{Class, Plan};
use tapdeck_packet::link::LinkType;
use tapdeck_testkit::SplitMix64;

use super::{Filter, Program, run};

const COOKED: LinkType = LinkType(113);

fn ethernet(expression: &str) -> Program {
    Program::new(expression.into(), LinkType::ETHERNET).expect(expression)
}

/// Frames of all kinds and none, from a seed: the first bytes are often those of real headers.
fn frames() -> Vec<Vec<u8>> {
    let mut drawn = SplitMix64(7);
    let mut random = move || drawn.draw() as usize;
    let types = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00], [0x88, 0x47]];
    let mut frame = move |_| {
        let mut frame: Vec<u8> = (0..random() % 120).map(|_| random() as u8).collect();
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = frame.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        let kind = types[random() % types.len()];
        put(12, &kind);
        put(14, &[[0x45, 0x46, 0x60][random() % 3]]);
        // An IPv4 length, or the type behind a tag.
        put(16, &[[0, (random() % 120) as u8], [0x08, 0x00]][random() % 2]);
        put(20, &[0, 0]);
        put(23, &[[1, 6, 17][random() % 3]]);
        put(26, &[10, 0, 0, (random() % 3) as u8, 10, 0, 0, (random() % 3) as u8]);
        put(34, &[0, [53, 80, 9][random() % 3], 0, [53, 80, 9][random() % 3]]);
        frame
    };
    (0..3000).map(&mut frame).collect()
}

#[test]
fn whole_packets_are_decided_as_libpcap_decides_them() {
    for expression in [
        "len >= 60 and udp",
        "less 40 or greater 90",
        "host 10.0.0.1 and len > 20",
        "tcp port 80 and ip[2:2] < len",
        "port 53 and len != 64",
        "vlan and len > 30 and ip",
        "portrange 9-60 and len & 1 = 0",
        "ip[6:2] & 0x1fff = 0 and len % 3 = 1",
        "len / 7 > 5 or ether[0] ^ 3 = len - 20",
        "not ip and len << 2 > 100 or len >> 1 < ether[5] * 2",
        "mpls or ip6 proto 17 and len | 1 > 50",
        "len > 10 and (tcp[13] & 7 != 0 or arp or icmp)",
    ] {
        let program = ethernet(expression);
        assert!(program.asks_for_length, "{expression}");
        let compiled = program.compiled.as_ref().expect("just compiled");
        let mut matched = 0;
        for frame in frames().iter().filter(|f| !f.is_empty()) {
            let ours = run(&program.instructions, frame, frame.len() as u32).is_some_and(|n| n > 0);
            assert_eq!(ours, compiled.filter(frame), "{expression}: {frame:02x?}");
            matched += u32::from(ours);
        }
        assert!(matched > 0, "{expression} matches nothing");
    }
}

#[test]
fn the_length_of_a_cut_packet_is_that_on_the_wire() {
    let program = ethernet("greater 1000");
    assert!(program.matches(&[0; 54], 1000));
    assert!(!program.matches(&[0; 54], 999));
    let udp = ethernet("ip[0] = 0x45 and len > 1000");
    assert!(!udp.matches(&[8; 14], 2000), "what was not captured cannot match");
}

#[test]
fn a_program_that_goes_round_in_circles_comes_to_an_end() {
    let chain = ethernet("ip6 protochain 6");
    // A routing header, whose next header is destination options and whose length is that of the
    // fixed part.
    let mut frame = vec![0; 90];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[20] = 43;
    frame[54..56].copy_from_slice(&[60, 0]);
    // Destination options that send libpcap back to themselves.
    frame[62..64].copy_from_slice(&[60, 0]);
    assert!(!chain.matches(&frame, 90), "it goes round");
    frame[62..64].copy_from_slice(&[6, 0]);
    assert!(chain.matches(&frame, 90));
    frame[62..64].copy_from_slice(&[17, 0]);
    assert!(!chain.matches(&frame, 90));
    let without = ethernet("ip6 proto 43");
    assert!(without.matches(&frame, 90) && !without.is_unsound);
}

/// All that pcap-filter(7) describes for links that are recorded, and its examples where they need
/// no names.
const EXPRESSIONS: &[&str] = &[
    "dst host 10.0.0.1",
    "src host 10.0.0.1",
    "host 10.0.0.1",
    "src 10.0.0.1",
    "src or dst 10.0.0.1",
    "dst or src host 10.0.0.1",
    "src and dst host 10.0.0.1",
    "dst and src 10.1",
    "host 10.1",
    "host 5",
    "host 0x0a000001",
    "ip host 10.0.0.1",
    "arp host 10.0.0.1",
    "rarp src host 10.0.0.1",
    "ip6 host 2001:db8::1",
    "ip6 src 2001:db8::1",
    "host 2001:DB8:0:0::1",
    "host ::ffff:10.0.0.1",
    "host ::",
    "host 1:2:3:4:5:6:7:8",
    "ether dst 02:00:00:00:00:01",
    "ether src host 2:0:0:0:0:1",
    "ether host 02-00-00-00-00-01",
    "ether host 02.00.00.00.00.01",
    "ether host 0200.0000.0001",
    "ether host 020000000001",
    "ether src and dst 02:00:00:00:00:01",
    "ether src or dst host fe:ed:fa:ce:be:ef",
    "fddi host 02:00:00:00:00:01 or tr src 02:00:00:00:00:01 or wlan dst 02:00:00:00:00:01",
    "dst net 10",
    "src net 10.1",
    "net 10.1.2",
    "net 10.1.2.3",
    "net 0",
    "net 0x0a01",
    "net 256",
    "net 10.0.0.0/8",
    "net 10.0.0.0/9",
    "net 10.1/16 or net 10.0/8",
    "net 0.0.0.0/0",
    "src net 10.1.2.3/32",
    "net 10.0.0.0 mask 255.0.0.0",
    "net 10.1 mask 255.255",
    "net 10.0.7.0 mask 255.0.255.0",
    "ip net 10.0.0.0/8 or arp net 10.0.0.0/8",
    "net 2001:db8::/32",
    "ip6 src net fe80::/10",
    "net ::/0",
    "net 2001:db8::1/128",
    "net 2001:db8::1",
    "dst port 443",
    "src port 0x1bb",
    "port 0123",
    "src and dst port 53",
    "tcp port 80",
    "udp src port 53",
    "sctp dst port 9",
    "port http or ftp-data",
    "tcp dst port ssh",
    "dst portrange 6000-6008",
    "portrange 6008-6000",
    "udp portrange 7000-7009",
    "portrange 80",
    "portrange 0-65535",
    "less 100",
    "greater 0x40",
    "ip proto 17",
    "ip proto \\tcp",
    "ip proto \\udp or \\icmp or 47",
    "ip6 proto \\tcp",
    "ip6 proto ipv6-icmp",
    "proto ospf",
    "proto \\sctp or gre",
    "ip proto 300",
    "icmp",
    "icmp6",
    "ip6 protochain 6",
    "ip protochain \\tcp",
    "protochain 17",
    "ah or esp or pim or sctp or tcp or udp or vrrp or igrp or igmp or carp",
    "ether broadcast",
    "broadcast",
    "ip broadcast",
    "ether multicast",
    "multicast",
    "ip multicast",
    "ip6 multicast",
    "ether proto 0x88cc",
    "ether proto \\ip or \\arp or \\rarp or \\ip6",
    "ether proto \\aarp or \\atalk or \\decnet or loopback",
    "ether proto \\iso or \\stp or \\ipx or \\netbeui",
    "ether proto \\lat or \\mopdl or \\moprc or \\sca",
    "ether proto 1500 or 1501 or 70000",
    "link proto 2048",
    "ip or ip6 or arp or rarp or atalk or aarp or decnet or iso or stp or ipx or netbeui",
    "lat or moprc or mopdl or sca",
    "decnet src 10.123 or decnet dst 10.123 or decnet host 1.5",
    "llc",
    "llc i or llc s or llc u",
    "llc rr or llc rnr or llc rej or llc ui or llc ua or llc disc",
    "llc sabme or llc test or llc xid or llc frmr",
    "vlan",
    "vlan 100",
    "vlan 0x64 and ip",
    "vlan (100)",
    "vlan 100 && vlan 200",
    "vlan && vlan 300 && ip",
    "vlan or ip",
    "not vlan and host 10.0.0.1",
    "host 10.0.0.1 or vlan and host 10.0.0.1",
    "host 10.0.0.1 or (vlan and host 10.0.0.1)",
    "mpls 100000 && mpls 1024",
    "mpls && mpls 1024 && host 192.9.200.1",
    "mpls and net 10.0.0.0/8 and not tcp",
    "pppoed",
    "pppoes",
    "pppoes 0x27 && ip",
    "pppoes and host 10.0.0.1 and tcp port 80",
    "geneve",
    "geneve 0xb && ip",
    "geneve and ether host 02:00:00:00:00:01",
    "vlan 5 and geneve and vlan 7 and udp port 53",
    "iso proto \\clnp or \\esis or \\isis",
    "clnp or esis or isis or es-is or is-is",
    "l1 or l2 or iih or lsp or snp or csnp or psnp",
    "byte 12 = 8",
    "byte 0 < 3 or byte 1 > 4",
    "ether[0] & 1 != 0",
    "ip[0] & 0xf != 5",
    "ip[6:2] & 0x1fff = 0",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 10.0.0.0/8",
    "tcp[tcpflags] & (tcp-rst|tcp-ack) == (tcp-rst|tcp-ack)",
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "icmp[icmptype] != icmp-echo and icmp[icmptype] != icmp-echoreply",
    "icmp6[icmp6type] != icmp6-echo and icmp6[icmp6type] != icmp6-echoreply",
    "icmp6[icmp6code] = icmp6-multicastrouterterm",
    "len > 100",
    "length <= 1514",
    "5 < len",
    "(5) < len",
    "(5 + 3) * 2 < len",
    "-1 < len",
    "- len + 5 > 7",
    "- len % 5 > 7",
    "len + 5 % 3 = 1",
    "len % 5 + 3 = 1",
    "len ^ 5 | 3 = 1",
    "len * 2 ^ 5 * 3 = 1",
    "len - 5 - 3 = 1",
    "len | 2 & 3 << 4 + 5 * 6 = 1",
    "len * 6 + 5 << 4 & 3 | 2 = 1",
    "len / 2 * 3 >> 1 != 0x10",
    "len - ip[0] > 20",
    "ip[0] - len > 20",
    "5 - tcp[0] > 20",
    "ip[tcp[0]:2] = tcp[len - 20]",
    "ip6[6] = 5 or arp[0] = 1 or rarp[7:1] >= 3",
    "sctp[0] = 1 or igmp[0] = 1 or pim[0] = 1 or vrrp[0] = 1 or igrp[0] = 1 or carp[0] = 1",
    "atalk[0] = 1 or decnet[0] = 1 or lat[0] = 1 or sca[0] = 1 or mopdl[0] = 1 or moprc[0] = 1",
    "link[0] = 1 or ppp[0] = 1 or slip[0] = 1 or fddi[0] = 1 or tr[0] = 1 or wlan[0] = 1",
    "port 80 or 443",
    "tcp dst port 80 or 443 or 8080",
    "host 10.0.0.1 and 10.0.0.2",
    "not host 10.0.0.1 and 10.0.0.2",
    "not (host 10.0.0.1 or 10.0.0.2)",
    "not not host 10.0.0.1",
    "! port 80 && !443 || not 22",
    "host (10.0.0.1 or 10.0.0.2)",
    "port (80)",
    "port (80 or (443 and not 22))",
    "host not 10.0.0.1",
    "src host 10.0.0.1 and (10.0.0.2 or not 10.0.0.3)",
    "host 10.0.0.1 and (port 80) and 10.0.0.2",
    "host 10.0.0.1 and not (port 80 or 443) and 10.0.0.2",
    "host 10.0.0.1 and ((port 80) or 10.0.0.2)",
    "port 80 and 5 < len",
    "port 80 and (5) < len",
    "port 80 and (5 + 1) < len",
    "port 80 and (443)",
    "port 80 and (5 < len)",
    "net 10 or 192.168 or 172.16.0.0/12 or 2001:db8::/32",
    "ip proto 6 or 17",
    "tcp or port 80 and icmp or udp and ip",
    "tcp or (udp and (icmp or arp))",
    "(tcp or udp) or icmp",
    "((((tcp))))",
    "tcp\tor\nudp",
    "ip and tcp and port 80 and host 10.0.0.1 and net 10.0.0.0/8 and not vlan",
];

#[test]
fn libpcap_makes_the_same_program_of_what_is_printed() {
    let mut same = 0;
    for expression in EXPRESSIONS {
        let printed = filter::parse(expression).expect(expression).to_string();
        for link in [LinkType::ETHERNET, LinkType::RAW, COOKED] {
            let Ok(first) = Program::new((*expression).into(), link) else {
                let refused = Program::new(printed.as_str().into(), link).is_err();
                assert!(refused, "{expression}: only {printed} is taken");
                continue;
            };
            let second = Program::new(printed.as_str().into(), link);
            let second = second.unwrap_or_else(|e| panic!("{expression}: {e:#}"));
            assert_eq!(first.instructions, second.instructions, "{expression}: {printed}");
            same += 1;
        }
        ethernet(expression);
    }
    assert!(same > EXPRESSIONS.len() * 2, "only {same}");
}

#[test]
fn a_plan_is_believed_where_libpcap_reads_the_same() {
    let filter = Filter::for_links("tcp dst port 80 or 443", [LinkType::ETHERNET, COOKED], false);
    let filter = filter.expect("an expression");
    assert!(filter.is_understood());
    assert_eq!(*filter.plan(), filter::parse("tcp dst port 80 or 443").expect("one").plan());

    let programs = [ethernet("udp port 53")];
    assert_eq!(super::believed_plan("udp port 54", programs.iter()), None);
    assert!(super::believed_plan("port 53 and udp or tcp", programs.iter()).is_none());
    let plan = super::believed_plan("udp dst or src port 0x35", programs.iter()).expect("the same");
    assert_ne!(plan, Plan::All);
}

#[test]
fn what_is_not_understood_is_looked_for_everywhere() {
    let strange = "ether proto 0x1.2.3";
    assert!(Filter::for_links(strange, [LinkType::ETHERNET], false).is_err(), "libpcap decides");
    let deep = format!("{}tcp{}", "(".repeat(500), ")".repeat(500));
    let filter = Filter::for_links(&deep, [LinkType::ETHERNET], false).expect("libpcap takes it");
    assert!(!filter.is_understood());
    assert_eq!(*filter.plan(), Plan::All);
    let none = Filter::for_links("", [LinkType::ETHERNET], false).expect("every packet");
    assert!(none.is_understood() && *none.plan() == Plan::All);
}

/// A link type on which nothing can match adds nothing and refuses nothing.
#[test]
fn what_one_link_type_cannot_have_is_looked_for_in_the_others() {
    let links = [LinkType::RAW, LinkType::ETHERNET, COOKED];
    for expression in ["arp", "ether host 02:00:00:00:00:01", "vlan 5", "mpls"] {
        let filter = Filter::for_links(expression, links, false).expect("of Ethernet it asks much");
        assert!(filter.programs[0].1.is_none() && filter.programs[1].1.is_some(), "{expression}");
        for alone in [vec![LinkType::RAW], vec![LinkType::IPV4, LinkType::RAW]] {
            assert!(Filter::for_links(expression, alone, false).is_err(), "{expression}");
        }
    }
    // It may be inside, where a tunnel carries frames.
    assert!(Filter::for_links("arp", [LinkType::RAW], true).is_ok());
    for nonsense in ["florb", "host and", "port 99999"] {
        assert!(Filter::for_links(nonsense, links, true).is_err(), "{nonsense}");
    }
}

#[test]
fn a_clone_decides_in_another_thread_what_the_first_decides() {
    let filter = Filter::for_links("host 10.0.0.1 or len > 100", [LinkType::ETHERNET], false);
    let filter = filter.expect("an expression");
    let frames: &[Vec<u8>] = &frames();
    let decide = |filter: &Filter| -> Vec<bool> {
        let program = filter.programs[0].1.as_ref().expect("Ethernet can match");
        frames.iter().map(|frame| program.matches(frame, 200)).collect()
    };
    let clone = filter.clone();
    assert!(clone.programs[0].1.as_ref().is_some_and(|program| program.compiled.is_some()));
    assert_eq!(*clone.plan(), *filter.plan());
    let first = decide(&filter);
    let of_clone = std::thread::scope(|scope| scope.spawn(move || decide(&clone)).join());
    assert_eq!(of_clone.expect("no panic"), first);
    assert!(first.contains(&true) && first.contains(&false));
}

#[test]
fn a_clone_that_would_differ_runs_the_first_program() {
    // As if a name had another address the second time.
    let first = Program { expression: "host 10.0.0.2".into(), ..ethernet("host 10.0.0.1") };
    let clone = first.clone();
    assert!(clone.compiled.is_none());
    let frames = frames();
    let mut matched = 0;
    for frame in frames.iter().filter(|frame| !frame.is_empty()) {
        let wanted = first.matches(frame, frame.len() as u32);
        assert_eq!(clone.matches(frame, frame.len() as u32), wanted, "{frame:02x?}");
        matched += u32::from(wanted);
    }
    assert!(matched > 0);
}

#[test]
fn movers_that_do_not_hold_leave_no_plan_behind_them() {
    // Four bytes further, an untagged packet whose length is 2048 looks like IPv4 from its
    // destination.
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[16..18].copy_from_slice(&[8, 0]);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    let expression = "not vlan and src host 10.0.0.1";
    assert!(ethernet(expression).matches(&frame, 60), "libpcap has not become wiser");
    let filter = Filter::for_links(expression, [LinkType::ETHERNET], false).expect("an expression");
    let source = |plan: &Plan| matches!(plan, Plan::Keys { class: Class::SourceIpv4, .. });
    assert!(!source(filter.plan()), "{:?}", filter.plan());
}

#[test]
fn memory_that_was_not_written_is_zero() {
    // The port is looked for in scratch memory where there was no GENEVE header.
    let program =
        Program::new("geneve or port 53".into(), LinkType::ETHERNET).expect("an expression");
    assert!(program.is_unsound);
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[37] = 53;
    let first = program.matches(&frame, 60);
    assert!((0..1000).all(|_| program.matches(&frame, 60) == first));
}
