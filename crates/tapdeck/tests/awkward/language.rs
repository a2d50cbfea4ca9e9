//! Expressions of pcap-filter(7), all of the language as libpcap 1.10 has it for Ethernet.
//!
//! They are trees, so that what fails can be made smaller by taking parts away. What a tree reads
//! as need not be what the tree means: without parentheses `or` and `and` bind alike, and `host a
//! or b` borrows its `host` from the left.
//!
//! A name that is none of the language's would be looked up in the DNS, so none is made.

use std::fmt::{self, Display};

use super::{IPV4, IPV6, LABELS, MACS, PORTS, PROTOCOLS, SESSIONS, VLANS, VNIS};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Primitive(String),
    Not(&'static str, Box<Expression>),
    Two(Box<Expression>, &'static str, Box<Expression>),
    Group(Box<Expression>),
}

use Expression::{Group, Not, Primitive, Two};
use tapdeck_testkit::SplitMix64;

impl Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Primitive(text) => f.write_str(text),
            Not(not, of) => write!(f, "{not}{of}"),
            Two(left, operator, right) => write!(f, "{left} {operator} {right}"),
            Group(of) => write!(f, "({of})"),
        }
    }
}

const AND: [&str; 4] = ["and", "and", "and", "&&"];
const OR: [&str; 4] = ["or", "or", "or", "||"];
const NOT: [&str; 4] = ["not ", "not ", "!", "! "];

impl Expression {
    pub fn random(rng: &mut SplitMix64) -> Self {
        let depth = rng.one(&[0, 0, 1, 1, 2, 2, 3, 4]);
        if rng.percent(4) {
            return Self::geneve(rng);
        }
        Self::of_depth(rng, depth)
    }

    /// With nothing that could be asked without the header: see `program`.
    fn geneve(rng: &mut SplitMix64) -> Self {
        let vni = rng.one(&VNIS);
        let geneve = if rng.percent(50) { "geneve".into() } else { format!("geneve {vni}") };
        let inside = Self::two(Primitive(geneve), rng.one(&AND), Self::leaf(rng));
        match rng.below(3) {
            0 => inside,
            1 => Not(rng.one(&NOT), Box::new(Group(Box::new(inside)))),
            _ => Self::two(Self::leaf(rng), rng.one(&AND), inside),
        }
    }

    fn of_depth(rng: &mut SplitMix64, depth: usize) -> Self {
        if depth == 0 {
            return Self::leaf(rng);
        }
        let below = depth - 1;
        match rng.below(12) {
            0..2 => Not(rng.one(&NOT), Box::new(Self::of_depth(rng, below))),
            2 => Not(rng.one(&NOT), Box::new(Group(Box::new(Self::of_depth(rng, below))))),
            3..5 => Group(Box::new(Self::of_depth(rng, below))),
            5 => Self::layers(rng, below),
            n => {
                let operator = if n < 8 { rng.one(&AND) } else { rng.one(&OR) };
                let left = Self::of_depth(rng, below);
                let less = rng.below(depth);
                let right = Self::of_depth(rng, less);
                let grouped = |e| if matches!(e, Two(..)) { Group(Box::new(e)) } else { e };
                if rng.percent(50) {
                    return Self::two(grouped(left), operator, grouped(right));
                }
                Self::two(left, operator, right)
            }
        }
    }

    fn two(left: Self, operator: &'static str, right: Self) -> Self {
        Two(Box::new(left), operator, Box::new(right))
    }

    fn leaf(rng: &mut SplitMix64) -> Self {
        if rng.percent(12) { Self::shared(rng) } else { Primitive(primitive(rng)) }
    }

    /// Headers that change where all that follows is looked for: `vlan 7 and mpls and ...`.
    fn layers(rng: &mut SplitMix64, depth: usize) -> Self {
        let inner = if rng.percent(50) { Self::leaf(rng) } else { Self::of_depth(rng, depth) };
        let inner = if rng.percent(50) { Group(Box::new(inner)) } else { inner };
        Self::two(Primitive(layer(rng)), rng.one(&AND), inner)
    }

    /// Several values of one qualifier: `port 53 or 80 or 443`.
    fn shared(rng: &mut SplitMix64) -> Self {
        let head = qualified(rng);
        let (qualifier, _) = head.rsplit_once(' ').unwrap_or(("", ""));
        let mut all = Primitive(head.clone());
        for _ in 0..=rng.below(3) {
            let value = match qualifier.rsplit(' ').next() {
                Some("port") => rng.one(&PORTS).to_string(),
                Some("net") => network(rng),
                Some("proto") => rng.one(&PROTOCOLS).to_string(),
                _ => host(rng),
            };
            let operator = if rng.percent(70) { rng.one(&OR) } else { rng.one(&AND) };
            let value = Primitive(value);
            let value = if rng.percent(10) { Not(rng.one(&NOT), Box::new(value)) } else { value };
            all = Self::two(all, operator, value);
        }
        all
    }

    /// All expressions that are this one with one part taken away, the smallest first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = match self {
            Primitive(_) => Vec::new(),
            Not(not, of) => {
                let mut all = vec![(**of).clone()];
                all.extend(of.smaller().into_iter().map(|of| Not(not, Box::new(of))));
                all
            }
            Group(of) => {
                let mut all = vec![(**of).clone()];
                all.extend(of.smaller().into_iter().map(|of| Group(Box::new(of))));
                all
            }
            Two(left, operator, right) => {
                let mut all = vec![(**left).clone(), (**right).clone()];
                let two =
                    |left: &Self, right: &Self| Self::two(left.clone(), operator, right.clone());
                all.extend(left.smaller().iter().map(|left| two(left, right)));
                all.extend(right.smaller().iter().map(|right| two(left, right)));
                all
            }
        };
        all.sort_by_key(|e| e.to_string().len());
        all
    }
}

const DIRECTIONS: [&str; 8] =
    ["", "", "", "src ", "dst ", "src or dst ", "src and dst ", "dst or src "];

fn primitive(rng: &mut SplitMix64) -> String {
    match rng.below(100) {
        0..28 => qualified(rng),
        28..44 => named(rng),
        44..50 => numbered(rng),
        50..58 => ethernet(rng),
        58..70 => layer(rng),
        70..76 => length(rng),
        76..99 => relation(rng),
        _ => refused(rng),
    }
}

/// Type, direction and protocol, then a value.
fn qualified(rng: &mut SplitMix64) -> String {
    let direction = rng.one(&DIRECTIONS);
    match rng.below(20) {
        0..6 => {
            let protocol = rng.one(&["", "", "", "", "ip ", "ip6 ", "arp ", "rarp "]);
            let host = match protocol {
                "ip6 " => rng.one(&IPV6).to_string(),
                "" => host(rng),
                _ => rng.one(&IPV4).to_string(),
            };
            format!("{protocol}{direction}host {host}")
        }
        6 => format!("{}{}", rng.one(&["src ", "dst ", "ip src ", "arp dst "]), rng.one(&IPV4)),
        7..11 => {
            let protocol = rng.one(&["", "", "", "ip ", "ip6 ", "arp "]);
            let network = match protocol {
                "ip6 " => network_v6(rng),
                "" => network(rng),
                _ => network_v4(rng),
            };
            format!("{protocol}{direction}net {network}")
        }
        11..17 => {
            let protocol = rng.one(&["", "", "tcp ", "udp ", "sctp ", "ip ", "ip6 "]);
            let port = if rng.percent(10) {
                rng.one(&["domain", "https", "ssh"]).to_owned()
            } else {
                number(rng)
            };
            format!("{protocol}{direction}port {port}")
        }
        17 | 18 => {
            let protocol = rng.one(&["", "", "tcp ", "udp "]);
            let (a, b) = (rng.one(&PORTS), rng.one(&PORTS));
            format!("{protocol}{direction}portrange {a}-{b}")
        }
        _ => {
            let protocol = rng.one(&["", "ip ", "ip6 "]);
            format!("{protocol}proto {}", rng.one(&PROTOCOLS))
        }
    }
}

/// A port, seldom one that no packet is meant to have.
fn number(rng: &mut SplitMix64) -> String {
    if rng.percent(8) { rng.below(65536).to_string() } else { rng.one(&PORTS).to_string() }
}

fn host(rng: &mut SplitMix64) -> String {
    if rng.percent(75) { rng.one(&IPV4).to_string() } else { rng.one(&IPV6).to_string() }
}

fn network(rng: &mut SplitMix64) -> String {
    if rng.percent(70) { network_v4(rng) } else { network_v6(rng) }
}

fn network_v4(rng: &mut SplitMix64) -> String {
    let address = rng.one(&IPV4);
    let [a, b, c, _] = address.octets();
    match rng.below(8) {
        0 => format!("{a}"),
        1 => format!("{a}.{b}"),
        2 => format!("{a}.{b}.{c}"),
        3 => format!("{a}.{b}.0.0 mask 255.255.0.0"),
        4 => format!("{address}"),
        5 => "0.0.0.0/0".into(),
        _ => {
            let bits = rng.one(&[1, 8, 9, 16, 23, 24, 30, 31, 32]);
            let masked = u32::from(address) & (u32::MAX << (32 - bits));
            format!("{}/{bits}", std::net::Ipv4Addr::from(masked))
        }
    }
}

fn network_v6(rng: &mut SplitMix64) -> String {
    let address = rng.one(&IPV6);
    let bits = rng.one(&[0_u32, 1, 8, 16, 32, 33, 47, 48, 64, 65, 96, 127, 128]);
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    format!("{}/{bits}", std::net::Ipv6Addr::from(u128::from(address) & mask))
}

fn named(rng: &mut SplitMix64) -> String {
    const COMMON: [&str; 12] =
        ["ip", "ip6", "tcp", "udp", "icmp", "icmp6", "arp", "rarp", "sctp", "igmp", "esp", "ah"];
    const OTHERS: [&str; 22] = [
        "pim", "vrrp", "carp", "igrp", "stp", "ipx", "netbeui", "iso", "clnp", "esis", "isis",
        "atalk", "aarp", "decnet", "lat", "moprc", "mopdl", "llc", "llc u", "llc i", "llc s",
        "llc ui",
    ];
    if rng.percent(70) { rng.one(&COMMON).into() } else { rng.one(&OTHERS).into() }
}

/// Protocols by number, or by a name that is also a keyword.
fn numbered(rng: &mut SplitMix64) -> String {
    let number = rng.one(&PROTOCOLS);
    match rng.below(20) {
        0 => format!("ip proto {number}"),
        1 => format!("ip6 proto {number}"),
        2 => format!("proto {number}"),
        // Seldom: libpcap may not come to an end with it.
        3 => format!("protochain {number}"),
        4 => format!("ip protochain {number}"),
        5 => format!("ip6 protochain {number}"),
        6 => rng
            .one(&["ip proto \\tcp", "ip6 proto \\udp", "proto \\icmp", "ip proto \\igmp"])
            .into(),
        7 => rng.one(&["ether proto \\ip", "ether proto \\ip6", "ether proto \\arp"]).into(),
        _ => {
            let kind = rng.one(&[
                "0x8100", "0x88a8", "0x8847", "0x86dd", "2048", "0x8864", "0x88cc", "0x42", "0xfe",
                "0xe0", "0xf0", "0x809b", "0x8137", "1500", "1501", "0x600",
            ]);
            format!("ether proto {kind}")
        }
    }
}

fn ethernet(rng: &mut SplitMix64) -> String {
    const MANY: [&str; 6] = [
        "ether broadcast",
        "ether multicast",
        "broadcast",
        "multicast",
        "ip multicast",
        "ip6 multicast",
    ];
    match rng.below(10) {
        0..6 => {
            let direction = rng.one(&DIRECTIONS);
            let mac = rng.one(&MACS);
            let mac = match rng.below(4) {
                0 => mac.map(|byte| format!("{byte:x}")).join("-"),
                _ => mac.map(|byte| format!("{byte:02x}")).join(":"),
            };
            if direction.is_empty() || rng.percent(70) {
                format!("ether {direction}host {mac}")
            } else {
                format!("ether {direction}{mac}")
            }
        }
        6 => "ip broadcast".into(),
        _ => rng.one(&MANY).into(),
    }
}

/// What may be followed by a question about what it carries.
fn layer(rng: &mut SplitMix64) -> String {
    match rng.below(15) {
        0..3 => "vlan".into(),
        3..7 => format!("vlan {}", rng.one(&VLANS)),
        7 | 8 => "mpls".into(),
        9 | 10 => format!("mpls {}", rng.one(&LABELS)),
        11 => "pppoes".into(),
        12 => format!("pppoes {}", rng.one(&SESSIONS)),
        13 => "pppoed".into(),
        _ if rng.percent(80) => "vlan and vlan".into(),
        _ => "geneve".into(),
    }
}

fn length(rng: &mut SplitMix64) -> String {
    let n = rng.one(&[0, 14, 20, 54, 60, 64, 100, 300, 700, 1400]);
    match rng.below(4) {
        0 => format!("less {n}"),
        1 => format!("greater {n}"),
        _ => format!("len {} {n}", rng.one(&RELATIONS)),
    }
}

const RELATIONS: [&str; 7] = ["=", "!=", "<", ">", "<=", ">=", "=="];

const OPERATORS: [&str; 10] = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];

/// Arithmetic on bytes of the packet.
fn relation(rng: &mut SplitMix64) -> String {
    const KNOWN: [&str; 36] = [
        "ip[9] = 6",
        "ip[9] = 17",
        "ip[0] & 0xf != 5",
        "ip[0] & 0xf0 = 0x40",
        "ip[6:2] & 0x1fff = 0",
        "ip[6:2] & 0x1fff != 0",
        "ip[6] & 0x20 != 0",
        "ip[8] < 64",
        "ip[1] != 0",
        "ip[2:2] > 100",
        "ip[2:2] + 14 < len",
        "ip[12:4] = 0x0a000001",
        "ip[16:4] & 0xffffff00 = 0x0a000100",
        "tcp[13] & 2 != 0",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "tcp[tcpflags] = tcp-push|tcp-ack",
        "tcp[0:2] = 443",
        "tcp[12] >> 4 > 5",
        "tcp[((tcp[12:1] & 0xf0) >> 2):4] > 0x7fffffff",
        "udp[4:2] > 100",
        "udp[2:2] = 53",
        "udp[8] = 8",
        "icmp[icmptype] = icmp-echo",
        "icmp[icmptype] != icmp-echoreply",
        "icmp[0] = 3",
        "icmp6[icmp6type] = icmp6-echo",
        "ip6[6] = 44",
        "ip6[6] = 17",
        "ip6[40] = 6",
        "arp[6:2] = 1",
        "sctp[2:2] = 80",
        "igmp[0] = 0x11",
        "ether[12:2] > 0x600",
        "ether[12:2] = 0x8100",
        "ether[0] & 1 = 1",
        "ip[((ip[0] & 0xf) << 2) + 2:2] = 80",
    ];
    if rng.percent(50) {
        return rng.one(&KNOWN).into();
    }
    // The length on the wire with what may be zero, or too much to shift by.
    let left = if rng.percent(20) {
        format!("len {} {}", rng.one(&["/", "%", "<<", ">>"]), bytes(rng, 0))
    } else {
        arithmetic(rng, 2)
    };
    let right = if rng.percent(70) { constant(rng) } else { arithmetic(rng, 1) };
    format!("{left} {} {right}", rng.one(&RELATIONS))
}

fn constant(rng: &mut SplitMix64) -> String {
    rng.one(&[
        "0",
        "1",
        "2",
        "6",
        "17",
        "64",
        "0x45",
        "100",
        "0x800",
        "1500",
        "0xffff",
        "0x7fffffff",
    ])
    .into()
}

fn arithmetic(rng: &mut SplitMix64, depth: usize) -> String {
    if depth == 0 {
        return match rng.below(6) {
            0 => constant(rng),
            1 => "len".into(),
            _ => bytes(rng, 0),
        };
    }
    let below = depth - 1;
    match rng.below(8) {
        0..4 => bytes(rng, below),
        4 => format!("({})", arithmetic(rng, below)),
        5 => format!("-{}", arithmetic(rng, 0)),
        _ => {
            let operator = rng.one(&OPERATORS);
            format!("{} {operator} {}", arithmetic(rng, below), arithmetic(rng, 0))
        }
    }
}

fn bytes(rng: &mut SplitMix64, depth: usize) -> String {
    let header = rng.one(&[
        "ether", "ether", "link", "ip", "ip", "ip", "ip6", "ip6", "arp", "rarp", "tcp", "udp",
        "icmp", "icmp6", "sctp", "igmp", "pim", "vrrp",
    ]);
    let at = if depth > 0 && rng.percent(20) {
        arithmetic(rng, depth)
    } else {
        rng.one(&[0, 1, 2, 6, 8, 9, 12, 13, 14, 16, 20, 23, 40, 60, 200]).to_string()
    };
    format!("{header}[{at}{}]", rng.one(&["", "", ":1", ":2", ":2", ":4"]))
}

/// What libpcap does not take, at all or for a file of Ethernet.
fn refused(rng: &mut SplitMix64) -> String {
    const REFUSED: [&str; 26] = [
        "host",
        "host and",
        "port 99999",
        "portrange 1-2-3",
        "vlan 5000",
        "mpls 2000000",
        "pppoes 70000",
        "geneve 16777216",
        "inbound",
        "outbound",
        "ifname eth0",
        "rulenum 1",
        "type mgt",
        "wlan host 02:00:00:00:00:01",
        "ether host 10.0.0.1",
        "ip6 host 10.0.0.1",
        "ip host 2001:db8::1",
        "tcp host 10.0.0.1",
        "net 10.0.0.1/8",
        "net 10.0.0.0/33",
        "net 2001:db8::1/16",
        "ip[0:3] = 1",
        "ip[0] / 0 = 1",
        "len",
        "esp[0] = 1",
        "()",
    ];
    rng.one(&REFUSED).into()
}
