//! Translations run in the kernel, and decide as libpcap's interpreter does.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, ObjectBuilder};
use libc::sock_filter;
use tapdeck_testkit::SplitMix64;

use super::cbpf::{ClassicProgram, Invalid, MAX_INSTRUCTIONS, MIN_ROUNDS};
use super::ebpf::Insn;
use super::splice::{Error, Filters, Function, Text, splice};
use super::unroll::{MAX_ROUNDS, unroll};
use super::{Compiler, explain_load, filters_for};
use crate::bpf::object::{Aligned, LoadedObject, load_filtered};
use crate::bpf::params::Params;
use crate::bpf::program::Program as Hook;
use crate::bpf::socket::SocketFilter;
use crate::interface::Interface;
use crate::sys::libbpf::quiet_libbpf;
use crate::sys::mapping::Mapping;
use crate::sys::program::{decide, run};
use crate::{Config, Deliver, Hook as At};
use std::sync::atomic::Ordering::Relaxed;

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/filter_test.bpf.o")));

static SOCKET_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/filter_socket_test.bpf.o")));

const HOOKS: [Hook; 4] = [Hook::Xdp, Hook::Ingress, Hook::Netfilter, Hook::SocketJudge];

/// Tags that are taken off frames: likely ones, and one that looks like what stands behind them.
const TAGS: [[u8; 4]; 3] = [[0x81, 0, 0, 7], [0x88, 0xa8, 0x60, 8], [8, 0, 0x45, 0x11]];
/// What the kernel takes off the frame before it tries a socket's program: a header that means
/// nothing to it.
const HEADER: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xb5];

/// Filters in the kernel, at one hook.
struct Bench {
    _loaded: LoadedObject,
    hook: Hook,
    program: OwnedFd,
    asked: Mapping,
}

impl Bench {
    fn new(hook: Hook, filters: &Filters) -> std::io::Result<Self> {
        quiet_libbpf();
        let bytes = if hook == Hook::SocketJudge { &SOCKET_OBJECT.0[..] } else { &OBJECT.0[..] };
        let mut object = ObjectBuilder::default().open_memory(bytes).expect("it was compiled");
        for mut program in object.progs_mut() {
            program.set_autoload(program.name() == hook.name());
        }
        let params: Vec<u8> = Params::unread(0).bytes();
        for mut map in object.maps_mut() {
            if map.name().to_str().is_some_and(|n| n.ends_with(".rodata.params")) {
                map.set_initial_value(&params).expect("its size is known");
            }
        }
        let loaded = load_filtered(object, &[hook], 0, filters)?;
        let asked = loaded
            .object
            .maps()
            .find(|m| m.name().to_str().is_some_and(|n| n.ends_with(".data.asked")))
            .expect("the object has it");
        let asked = Mapping::of_fd(asked.as_fd(), 272, true)?;
        Ok(Self { program: loaded.program(hook)?, _loaded: loaded, hook, asked })
    }

    /// What the first `count` filters say to a frame.
    fn ask(&self, count: usize, frame: &[u8], tag: [u8; 4], flags: u32) -> Vec<bool> {
        self.asked.u32(0).store(count as u32, Relaxed);
        self.asked.u32(4).store(u32::from_ne_bytes(tag), Relaxed);
        self.asked.u32(8).store(flags, Relaxed);
        // `struct nf_hook_state`: prerouting, of the packet's family.
        let mut state = [0; 48];
        state[1] =
            if frame[12..14] == [0x08, 0x00] { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 }
                as u8;
        let context: &[u8] = if self.hook == Hook::Netfilter { &state } else { &[] };
        let before: &[u8] = if self.hook == Hook::SocketJudge { &HEADER } else { &[] };
        let _ = run(self.program.as_fd(), context, &[before, frame].concat(), 1)
            .unwrap_or_else(|e| panic!("{:?} does not run: {e}, {} bytes", self.hook, frame.len()));
        (0..count)
            .map(|n| {
                let word = self.asked.u32(16 + n / 4 * 4).load(Relaxed).to_ne_bytes();
                word[n % 4] != 0
            })
            .collect()
    }
}

fn i(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Where frames are looked at: near their beginning, near their end, past it, and nowhere.
fn place(random: &mut SplitMix64) -> u32 {
    match random.below(16) {
        0..=9 => random.below(60),
        10..=13 => random.below(160),
        14 => random.below(70_000),
        _ => random.one(&[0x7fff_ffff, 0x8000_0000, 0xffff_0000, 0x00ff_ffff, 0xfffe, 0xffff]),
    }
}

fn constant(random: &mut SplitMix64) -> u32 {
    match random.below(6) {
        0 | 1 => random.below(16),
        2 => random.below(256),
        3 => random.below(65_536),
        4 => random.one(&[0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0x0800, 0x86dd, 17]),
        _ => random.draw() as u32,
    }
}

/// A program that libpcap takes, and that reads no memory before it writes it.
fn program(random: &mut SplitMix64, len: usize) -> Vec<sock_filter> {
    let mut code: Vec<_> = (0..len)
        .map(|at| {
            let left = (len - at) as u32;
            match random.below(20) {
                0..=4 => i(random.one(&[0x20, 0x28, 0x30]), 0, 0, place(random)),
                5 | 6 => {
                    let k = if random.below(4) == 0 { constant(random) } else { place(random) };
                    i(random.one(&[0x40, 0x48, 0x50]), 0, 0, k)
                }
                7 => i(0xb1, 0, 0, place(random)),
                8 => i(random.one(&[0x00, 0x01]), 0, 0, constant(random)),
                9 => i(random.one(&[0x80, 0x81]), 0, 0, 0),
                10 => i(random.one(&[0x02, 0x03, 0x60, 0x61]), 0, 0, random.below(16)),
                11 | 12 => {
                    let code = random.one(&[0x04, 0x14, 0x24, 0x44, 0x54, 0xa4]);
                    i(code + random.one(&[0, 8]), 0, 0, constant(random))
                }
                13 => match random.below(4) {
                    0 => i(random.one(&[0x64, 0x74]), 0, 0, random.below(32)),
                    1 => i(random.one(&[0x6c, 0x7c, 0x3c, 0x9c]), 0, 0, 0),
                    2 => i(random.one(&[0x34, 0x94]), 0, 0, constant(random).max(1)),
                    _ => i(0x84, 0, 0, 0),
                },
                14 => i(random.one(&[0x07, 0x87]), 0, 0, 0),
                15 if random.below(4) == 0 => i(0x05, 0, 0, random.below(left)),
                16 if random.below(8) == 0 => i(random.one(&[0x06, 0x16]), 0, 0, constant(random)),
                _ => {
                    let code = random.one(&[0x15, 0x25, 0x35, 0x45]) + random.one(&[0, 0, 0, 8]);
                    let far = left.min(if random.below(8) == 0 { 256 } else { 12 });
                    let (jt, jf) = (random.below(far) as u8, random.below(far) as u8);
                    i(code, jt, jf, constant(random))
                }
            }
        })
        .collect();
    code.push(i(random.one(&[0x06, 0x06, 0x16]), 0, 0, random.one(&[0, 1, 65_535])));
    let unset = ClassicProgram::new(&code).expect("it is made to be valid").memory_read_first();
    let stores = (0..16).filter(|word| unset & 1 << word != 0).map(|word| i(0x02, 0, 0, word));
    stores.chain(code).collect()
}

/// A frame that looks like traffic at its beginning. The kernel tries programs on no IP packet
/// without a whole header.
fn frame(random: &mut SplitMix64) -> Vec<u8> {
    let len = match random.below(5) {
        0 => 15 + random.below(20),
        1 => 34 + random.below(30),
        2 => 54 + random.below(12),
        3 => 60 + random.below(100),
        _ => 60 + random.below(1400),
    };
    let mut f: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
    let kind: [u8; 3] = match (random.below(2), len) {
        (0, 34..) => [0x08, 0, 0x45],
        (1, 54..) => [0x86, 0xdd, 0x60],
        _ => [0x08, 0x06, 0],
    };
    f[12..15].copy_from_slice(&kind);
    if len > 23 {
        f[23] = random.one(&[6, 17, 1]);
    }
    f
}

fn listing(code: &[sock_filter]) -> String {
    let mut text = String::new();
    for i in code {
        let _ = writeln!(text, "{} {} {} {}", i.code, i.jt, i.jf, i.k);
    }
    text
}

/// The frame as it is recorded, with the tag in it that was taken off it.
fn with_tag(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// Runs programs at all hooks over frames, as they are and as what is left of frames whose tag was
/// taken off, and compares each decision.
fn compare(programs: &[Vec<sock_filter>], frames: &[Vec<u8>]) -> (u64, u64) {
    let mut filters = Filters::new();
    let numbers: Vec<_> = programs
        .iter()
        .map(|code| filters.add(ClassicProgram::new(code).expect("it is valid")) as usize)
        .collect();
    let count = numbers.iter().max().map_or(0, |n| n + 1);
    let (mut accepted, mut refused) = (0, 0);
    for hook in HOOKS {
        let bench = Bench::new(hook, &filters).unwrap_or_else(|e| {
            let each: Vec<_> = programs.iter().map(|code| listing(code)).collect();
            panic!("{hook:?} does not load: {e}\n{}", each.join("\n"))
        });
        // A netfilter program sees IP alone.
        let is_ip = |f: &Vec<u8>| f[12..14] == [0x08, 0x00] || f[12..14] == [0x86, 0xdd];
        let fits = |f: &&Vec<u8>| hook != Hook::Netfilter || is_ip(f);
        let mut hold = |frame: &[u8], tag: [u8; 4], recorded: &[u8]| {
            let decisions = bench.ask(count, frame, tag, 0);
            for (code, number) in programs.iter().zip(&numbers) {
                let expected = decide(code, recorded);
                assert_eq!(
                    decisions[*number],
                    expected,
                    "{hook:?}, tag {tag:02x?} taken off: libpcap says {expected} of {recorded:02x?} to\n{}",
                    listing(code)
                );
                *(if expected { &mut accepted } else { &mut refused }) += 1;
            }
        };
        for (at, frame) in frames.iter().filter(fits).enumerate() {
            hold(frame, [0; 4], frame);
            // Where packets are routed, they have none.
            if hook != Hook::Netfilter {
                let tag = TAGS[at % TAGS.len()];
                hold(frame, tag, &with_tag(frame, tag));
            }
        }
    }
    (accepted, refused)
}

/// One filter alone, so that whatever it does not need must be gone from the program.
#[test]
fn programs_that_read_nothing_load() {
    let accept = i(0x06, 0, 0, 1);
    let refuse = i(0x06, 0, 0, 0);
    for code in [
        vec![accept],
        vec![refuse],
        vec![i(0x80, 0, 0, 0), i(0x25, 0, 1, 100), accept, refuse],
        vec![i(0x00, 0, 0, 7), i(0x16, 0, 0, 0)],
        vec![i(0x30, 0, 0, 70), i(0x16, 0, 0, 0)],
        vec![i(0x01, 0, 0, 20), i(0x50, 0, 0, 1), i(0x16, 0, 0, 0)],
        vec![i(0x20, 0, 0, 1 << 31), accept],
    ] {
        let frames: Vec<_> = [60, 90, 150].map(|len| vec![1u8; len]).to_vec();
        let frames: Vec<_> = frames
            .into_iter()
            .map(|mut f| {
                f[12..15].copy_from_slice(&[8, 0, 0x45]);
                f
            })
            .collect();
        compare(&[code], &frames);
    }
}

#[test]
fn random_programs_decide_as_libpcap_does() {
    let wanted = std::env::var("TAPDECK_FILTER_PROGRAMS").ok().and_then(|n| n.parse().ok());
    let wanted: usize = wanted.unwrap_or(512);
    let mut random = SplitMix64(0x7ad);
    let (mut accepted, mut refused, mut done) = (0, 0, 0);
    while done < wanted {
        let programs: Vec<_> = (0..64.min(wanted - done))
            .map(|_| {
                let len = 1 + random.below(60) as usize;
                program(&mut random, len)
            })
            .collect();
        let frames: Vec<_> = (0..48).map(|_| frame(&mut random)).collect();
        let (a, r) = compare(&programs, &frames);
        (accepted, refused, done) = (accepted + a, refused + r, done + programs.len());
    }
    assert!(accepted > refused / 20 && refused > accepted / 20, "{accepted} and {refused}");
}

/// What libpcap makes of an expression for Ethernet frames in a file.
fn expression(text: &str) -> Vec<sock_filter> {
    compiled(text, true)
}

/// Compiles an expression; libpcap's optimizer takes minutes for the longest ones.
fn compiled(text: &str, optimize: bool) -> Vec<sock_filter> {
    let dead = pcap::Capture::dead(pcap::Linktype::ETHERNET).expect("libpcap knows Ethernet");
    let program = dead.compile(text, optimize).unwrap_or_else(|e| panic!("{text}: {e}"));
    program
        .get_instructions()
        .iter()
        .map(|i| super::parse(&i.to_string()).expect("libpcap's own instructions"))
        .collect()
}

/// A packet that expressions look into: few addresses and ports, all kinds of headers.
fn packet(random: &mut SplitMix64) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, random.below(2) as u8, 2, 0, 0, 0, 0, 9];
    if random.below(4) == 0 {
        f.extend([0x81, 0, 0, random.one(&[7, 8])]);
    }
    let protocol = random.one(&[6u8, 17, 1, 132, 2]);
    if random.below(3) == 0 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
        for _ in 0..2 {
            f.extend([0x20, 1, 0x0d, 0xb8]);
            f.extend([0; 11]);
            f.push(random.below(3) as u8);
        }
    } else {
        let options = random.one(&[0u8, 0, 0, 1, 4]);
        let fragment = random.one(&[[0u8, 0], [0, 0], [0x20, 0], [0, 7]]);
        f.extend([
            8,
            0,
            0x45 + options,
            0,
            0,
            80,
            0,
            0,
            fragment[0],
            fragment[1],
            64,
            protocol,
            0,
            0,
        ]);
        for _ in 0..2 {
            f.extend([10, 0, random.below(2) as u8, random.below(3) as u8]);
        }
        f.extend(std::iter::repeat_n(1, usize::from(options) * 4));
    }
    for _ in 0..2 {
        f.extend([0, random.one(&[22, 53, 80])]);
    }
    f.extend((0..8 + random.below(60)).map(|_| random.below(64) as u8));
    f
}

#[test]
fn expressions_decide_as_libpcap_does() {
    let texts = [
        "tcp port 80",
        "udp port 53 or icmp",
        "host 10.0.1.2 and not port 22",
        "net 10.0.1.0/24",
        "ip6 host 2001:db8::1",
        "ip6 and tcp dst port 53",
        "vlan",
        "vlan 7 and ip",
        "vlan and udp src port 80",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x01020304 or udp[8] = 3",
        "ip[6:2] & 0x1fff != 0",
        "greater 100 or less 70",
        "ether[80] & 1 = 1",
        "ether host 02:00:00:00:00:01 and portrange 50-60",
        "icmp[icmptype] = icmp-echo",
        "sctp or igmp",
        "ip proto 132",
        "len % 3 = 1",
        "ether broadcast or ether multicast",
        "mpls",
        "pppoes",
        "(src host 10.0.0.1 and dst port 53) or (dst host 10.0.1.1 and src port 22)",
        "tcp and ((ip[2:2] - ((ip[0] & 0xf) << 2)) - ((tcp[12] & 0xf0) >> 2)) != 0",
        "ip[0] & 0xf > 5",
        "not ip and not ip6",
    ];
    let programs: Vec<_> = texts.iter().map(|text| expression(text)).collect();
    let mut random = SplitMix64(0x5eed);
    let packets: Vec<_> = (0..2000).map(|_| packet(&mut random)).collect();
    for text in [0usize, 1, 2, 3, 4, 6] {
        let taken = packets.iter().filter(|p| decide(&programs[text], p)).count();
        assert!((20..1980).contains(&taken), "{} takes {taken} of 2000", texts[text]);
    }
    compare(&programs, &packets);
}

/// A filter near libpcap's limit, and what lies between its instructions is out of a jump's reach.
#[test]
fn the_longest_filters_load_and_decide() {
    let hosts = |n: usize| {
        let each: Vec<_> =
            (0..n).map(|i| format!("src host 10.0.{}.{}", i >> 8, i & 255)).collect();
        compiled(&each.join(" or "), false)
    };
    let long = (20..200).map(|n| hosts(n * 10)).take_while(|l| l.len() <= MAX_INSTRUCTIONS).last();
    let long = long.expect("a hundred hosts fit");
    assert!(long.len() > MAX_INSTRUCTIONS - 200, "{}", long.len());
    let too_long = hosts(2000);
    assert_eq!(ClassicProgram::new(&too_long), Err(Invalid::Length(too_long.len())));
    let mut random = SplitMix64(0xfeed);
    let packets: Vec<_> = (0..60).map(|_| packet(&mut random)).collect();
    compare(&[long], &packets);
    // Loads alone, each of which needs as much room as there is.
    let loads: Vec<_> = (0..MAX_INSTRUCTIONS as u32 - 1)
        .map(|n| if n % 2 == 0 { i(0x48, 0, 0, n % 50) } else { i(0x30, 0, 0, 62 + n % 3) })
        .chain([i(0x16, 0, 0, 0)])
        .collect();
    compare(&[loads], &packets);
    // And jumps over all of it.
    let mut far: Vec<_> = vec![i(0x30, 0, 0, 0), i(0x15, 0, 1, 2), i(0x05, 0, 0, 4000)];
    far.extend((0..4050u32).map(|n| i(0x50, 0, 0, n % 60)));
    far.push(i(0x16, 0, 0, 0));
    compare(&[far], &packets);
}

/// Filters are found where they are so many that one function does not hold them.
#[test]
fn every_one_of_many_filters_is_found_by_its_number() {
    let mut random = SplitMix64(0x256);
    let programs: Vec<_> = (0..256).map(|_| program(&mut random, 100)).collect();
    let frames: Vec<_> = (0..12).map(|_| frame(&mut random)).collect();
    compare(&programs, &frames);
}

/// What a program with loops decides where none goes round more than `rounds` times, for libpcap's
/// interpreter: each jump back counts on its way, in memory that libpcap leaves alone.
fn counted(code: &[sock_filter], rounds: u32) -> Vec<sock_filter> {
    const KEPT: u32 = 12;
    let mut heads: Vec<u32> = Vec::new();
    let mut program = code.to_vec();
    for (at, insn) in code.iter().enumerate() {
        if insn.code != 0x05 || insn.k < 1 << 31 {
            continue;
        }
        let head = (at as u32 + 1).wrapping_add(insn.k);
        heads.iter().all(|h| *h != head).then(|| heads.push(head));
        let loops = heads.iter().position(|h| *h == head).expect("just pushed") as u32;
        program[at].k = (program.len() - at - 1) as u32;
        let counter = KEPT + 1 + loops;
        program.extend([
            i(0x02, 0, 0, KEPT),
            i(0x60, 0, 0, counter),
            i(0x04, 0, 0, 1),
            i(0x02, 0, 0, counter),
            i(0x25, 2, 0, rounds),
            i(0x60, 0, 0, KEPT),
        ]);
        program.push(i(0x05, 0, 0, head.wrapping_sub(program.len() as u32 + 1)));
        program.push(i(0x06, 0, 0, 0));
    }
    assert!(heads.len() <= 3, "there is memory for three");
    let start = (0..heads.len() as u32).map(|n| i(0x02, 0, 0, KEPT + 1 + n));
    [i(0x00, 0, 0, 0)].into_iter().chain(start).chain(program).collect()
}

/// A packet with a chain of so many headers between the IP header and `last`.
fn chain(random: &mut SplitMix64, version: u8, headers: usize, last: u8) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];
    // An authentication header would lead libpcap back to the beginning of an IPv6 packet.
    let kinds: &[u8] = if version == 6 { &[0, 60, 43, 44] } else { &[51] };
    let mut next: Vec<u8> = (0..headers).map(|_| random.one(kinds)).collect();
    next.push(last);
    if version == 6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 4, 0, next[0], 64]);
        f.extend([0xfd; 32]);
        for following in &next[1..] {
            let words = random.below(3) as u8;
            f.extend([*following, words]);
            f.extend(std::iter::repeat_n(1, 6 + 8 * usize::from(words)));
        }
    } else {
        f.extend([8, 0, 0x45, 0, 2, 0, 0, 0, 0, 0, 64, next[0], 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend((0..400).map(|_| random.one(&[6, 17, 51, 51, 51, 4])));
    }
    f.extend([0, 80, 0, 53, 0, 0, 0, 0]);
    f
}

const CHAINS: [&str; 9] = [
    "ip6 protochain 6",
    "ip6 protochain 17",
    "ip protochain 6",
    "protochain 17",
    "not ip6 protochain 6",
    "ip6 protochain 6 or ip6 protochain 17 or tcp port 80",
    "ip6 protochain 6 and not ip6 protochain 17",
    "ip6 host fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd and ip6 protochain 6 and greater 100",
    "vlan and ip6 protochain 6",
];

/// Where libpcap goes round, the written-out program does, and so do its translations at every
/// hook.
#[test]
fn loops_are_followed_as_libpcap_follows_them() {
    let mut random = SplitMix64(0xc4a1);
    let loops: Vec<_> = CHAINS.iter().map(|text| expression(text)).collect();
    let programs: Vec<_> = loops.iter().map(|code| unroll(code).expect("they fit")).collect();
    let bounded: Vec<_> = loops.iter().map(|code| counted(code, MAX_ROUNDS as u32)).collect();

    // Chains as they should be, over which libpcap's own loop ends.
    let mut packets = Vec::new();
    for headers in 0..=MAX_ROUNDS {
        for last in [6, 17, 59, 58] {
            packets.push(chain(&mut random, 6, headers, last));
        }
    }
    for (code, program) in loops.iter().zip(&programs) {
        for (at, packet) in packets.iter().enumerate() {
            assert_eq!(decide(program, packet), decide(code, packet), "{} headers", at / 4);
        }
    }
    let taken = packets.iter().filter(|p| decide(&programs[0], p)).count();
    assert_eq!(taken, MAX_ROUNDS + 1, "those that end with TCP");

    // Chains that are longer, cut, tagged, led in circles, and noise.
    for headers in MAX_ROUNDS + 1..MAX_ROUNDS + 4 {
        packets.push(chain(&mut random, 6, headers, 6));
        assert!(!decide(&programs[0], packets.last().expect("just pushed")), "{headers} headers");
    }
    for n in 0..400 {
        let headers = random.below(if n % 2 == 0 { 4 } else { 12 }) as usize;
        let last = random.one(&[6, 17, 59, 51, 0]);
        let mut packet = chain(&mut random, if n % 4 == 0 { 4 } else { 6 }, headers, last);
        match random.below(4) {
            0 => packet.truncate(54 + random.below(packet.len() as u32 - 54) as usize),
            1 => {
                packet.splice(12..12, [0x81, 0, 0, 7]);
            }
            2 => {
                let at = 54 + random.below(packet.len() as u32 - 54) as usize;
                packet[at] = random.one(&[51, 0, 255, 6]);
            }
            _ => {}
        }
        packets.push(packet);
    }
    packets.extend((0..200).map(|_| frame(&mut random)));
    let mut kinds = [0; 2];
    for (bounded, program) in bounded.iter().zip(&programs) {
        for packet in &packets {
            let expected = decide(bounded, packet);
            assert_eq!(decide(program, packet), expected, "{packet:02x?}");
            kinds[usize::from(expected)] += 1;
        }
    }
    assert!(kinds.iter().all(|n| *n > 500), "refused and taken: {kinds:?}");
    compare(&programs, &packets);
}

/// The longer the program, the fewer headers it follows, until it is refused.
#[test]
fn loops_are_followed_as_far_as_there_is_room() {
    let rounds = |program: &[sock_filter]| {
        let mut random = SplitMix64(7);
        (0..=40).rev().find(|n| decide(program, &chain(&mut random, 6, *n, 6)))
    };
    let mut before = usize::MAX;
    for count in 1..40 {
        let text: Vec<_> = (0..count).map(|n| format!("ip6 protochain {}", 200 - n)).collect();
        let text = format!("{} or ip6 protochain 6", text.join(" or "));
        let code = compiled(&text, false);
        match unroll(&code) {
            Ok(program) => {
                assert!(program.len() <= MAX_INSTRUCTIONS && ClassicProgram::new(&program).is_ok());
                let now = rounds(&program).expect("it takes TCP");
                assert!(now <= before && (MIN_ROUNDS..=MAX_ROUNDS).contains(&now), "{now}");
                before = now;
            }
            Err(error) => {
                assert!(matches!(error, Invalid::LongLoop(len) if len > MAX_INSTRUCTIONS));
                assert!(before < MAX_ROUNDS, "it had become less");
                return;
            }
        }
    }
    panic!("so many loops do not fit");
}

/// Loops of another form are nobody's, and a program must not be trusted.
#[test]
fn loops_that_are_no_chains_are_refused() {
    let refusal = |code: &[sock_filter]| unroll(code).err();
    let (back, accept) = (|k: i32| i(0x05, 0, 0, k.cast_unsigned()), i(0x06, 0, 0, 1));
    assert_eq!(refusal(&[back(-2), accept]), Some(Invalid::Loop(0)), "before the beginning");
    assert_eq!(refusal(&[accept, accept, back(-2), back(-4)]), Some(Invalid::Loop(3)), "nested");
    assert_eq!(refusal(&[i(0x15, 0, 9, 0), back(-2), accept]), Some(Invalid::Jump(0)));
    let forward = [i(0x15, 0, 1, 0), accept, accept];
    assert_eq!(unroll(&forward).map(|code| listing(&code)), Ok(listing(&forward)), "none at all");
    let round = unroll(&[back(-1), accept]).expect("it is a loop");
    assert!(!decide(&round, &[0; 60]), "for ever");
}

#[test]
fn what_the_kernel_refuses_is_named_with_what_to_do() {
    let lo = Interface::find("lo").expect("every namespace has it");
    let said = |hook, error, expression: Option<&str>| {
        let config = Config {
            hook,
            deliver: Deliver::Pass,
            snaplen: 100,
            ring_bytes: 1 << 20,
            block_bytes: 1 << 16,
            promiscuous: false,
            device_bound: true,
            overload: crate::Overload::Drop,
            stamps: crate::Stamps::Auto,
            filter: expression.map(str::to_owned),
            rules: None,
            cutoff: None,
        };
        let filters = filters_for(&lo, &config).expect("it is an expression");
        let error = std::io::Error::from_raw_os_error(error);
        explain_load(&lo, &config, &filters, error).to_string()
    };
    let filter = Some("port 80 or port 22");
    let large = said(At::Xdp, libc::E2BIG, filter);
    let begins = "bad filter \"port 80 or port 22\": it is too large";
    assert!(large.starts_with(begins), "{large}");
    for part in ["instructions", "verifier", "make it shorter"] {
        assert!(large.contains(part), "{large}");
    }
    for hook in [At::Tpacket, At::Recv] {
        assert_eq!(said(hook, libc::E2BIG, filter), large);
        let forbidden = said(hook, libc::EPERM, filter);
        assert!(forbidden.contains("CAP_NET_RAW") && forbidden.contains("CAP_BPF"), "{forbidden}");
        assert!(!said(hook, libc::EPERM, None).contains("CAP_BPF"), "it needs no program");
    }
    // Where no filter is to blame, none is blamed.
    for other in [said(At::Xdp, libc::E2BIG, None), said(At::Xdp, libc::ENOMEM, filter)] {
        assert!(!other.contains("filter"), "{other}");
    }
    for text in [large, Invalid::LongLoop(5000).to_string()] {
        assert!(!text.contains('\n'), "one line: {text}");
    }
}

/// Where libpcap wants a live handle, it makes programs that look beside the frame for a tag. None
/// is there, so they find it in the frame.
#[test]
fn programs_for_live_interfaces_find_tags_in_the_frame() {
    let lo = Interface::find("lo").expect("every namespace has it");
    let texts = ["vlan", "vlan 7 and udp port 53", "vlan and vlan 8", "not vlan and len > 100"];
    let mut random = SplitMix64(0x71e);
    let packets: Vec<_> = (0..400).map(|_| packet(&mut random)).collect();
    for text in texts {
        let live = Compiler::new(&lo).by_live(pcap::Linktype::ETHERNET, text);
        let live = live.unwrap_or_else(|| panic!("{text}: root may listen there"));
        let mut filters = Filters::new();
        filters.add(super::read(&live).expect("it is valid"));
        let code = expression(text);
        for hook in [Hook::Xdp, Hook::Ingress, Hook::SocketJudge] {
            let bench = Bench::new(hook, &filters).expect("it loads");
            for (frame, tag) in packets.iter().zip(TAGS.iter().cycle()) {
                assert_eq!(bench.ask(1, frame, [0; 4], 1), [decide(&code, frame)], "{text}");
                let recorded = with_tag(frame, *tag);
                assert_eq!(bench.ask(1, frame, *tag, 1), [decide(&code, &recorded)], "{text}");
            }
        }
    }
}

#[test]
fn equal_filters_are_there_once() {
    let mut filters = Filters::new();
    let tcp = ClassicProgram::new(&expression("tcp")).expect("it is valid");
    let udp = ClassicProgram::new(&expression("udp")).expect("it is valid");
    let numbers = [tcp.clone(), udp.clone(), tcp, udp].map(|program| filters.add(program));
    assert_eq!(numbers, [0, 1, 0, 1]);
}

/// A socket's filter needs CAP_BPF alone, however it reads the frame.
#[test]
fn filters_of_sockets_load_without_cap_perfmon() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let texts =
        ["udp port 9", "tcp[tcpflags] & tcp-syn != 0", "vlan 7 and port 53", "ether[80] = 1"];
    // libbpf finds out once in a process what the kernel can do, and would take what that thread
    // may not do for what the kernel cannot: for all other tests, too.
    let mut filters = Filters::new();
    filters.add(ClassicProgram::new(&expression("udp")).expect("it is valid"));
    let _ = Bench::new(Hook::Netfilter, &filters);
    // Capabilities are a thread's.
    let thread = std::thread::spawn(move || {
        let few = CapabilitySet::BPF | CapabilitySet::NET_RAW;
        let sets = CapabilitySets { effective: few, permitted: few, inheritable: few };
        set_capabilities(None, sets).expect("root may do with less");
        for text in texts {
            let mut filters = Filters::new();
            filters.add(ClassicProgram::new(&expression(text)).expect("it is valid"));
            let loaded = SocketFilter::load(&Params::unread(0), &filters, None);
            assert!(loaded.is_ok(), "{text}: {:?}", loaded.err());
        }
    });
    thread.join().expect("it loads them all");
}

/// What stands beside a frame is what the hook says, at every hook.
#[test]
fn what_stands_beside_the_frame_is_told() {
    let is = |number: u32, value: u32| {
        vec![
            i(0x20, 0, 0, 0xffff_f000 + number),
            i(0x15, 0, 1, value),
            i(0x06, 0, 0, 1),
            i(0x06, 0, 0, 0),
        ]
    };
    // VLAN_TAG_PRESENT, VLAN_TAG, VLAN_TPID (none stands there, for it is in the frame), PROTOCOL,
    // PKTTYPE (outgoing, broadcast), HATYPE.
    let asked = [is(48, 0), is(44, 0), is(60, 0), is(0, 0x0800), is(4, 4), is(4, 1), is(28, 1)];
    let mut filters = Filters::new();
    let numbers =
        asked.map(|code| filters.add(ClassicProgram::new(&code).expect("it is valid")) as usize);
    let mut f = vec![0xff; 80];
    f[12..15].copy_from_slice(&[8, 0, 0x45]);
    for hook in HOOKS {
        let bench = Bench::new(hook, &filters).expect("it loads");
        let tag = [0x88, 0xa8, 0x60, 0x07];
        let ask = |tag, flags| {
            let said = bench.ask(7, &f, tag, flags);
            numbers.map(|number| said[number])
        };
        let inbound = ask(tag, 1);
        // The kernel's trial device has another broadcast address.
        let broadcast = matches!(hook, Hook::Xdp | Hook::Netfilter);
        assert_eq!(inbound, [true, true, true, true, false, broadcast, true], "{hook:?}");
        let outbound = ask([0; 4], 2);
        assert_eq!(outbound, [true, true, true, true, true, false, true], "{hook:?}");
    }
}

/// A program of four functions: the main one, the filters' place, the loader, and one more.
fn text() -> Text {
    let call = |distance: i32| Insn { immediate: distance, ..super::ebpf::call() };
    let constant = |k: u32| super::ebpf::alu32_constant(super::ebpf::MOV, super::ebpf::Reg(0), k);
    let exit = super::ebpf::exit();
    Text {
        insns: vec![
            call(2),
            call(6),
            exit,
            // the place
            constant(0x7adf_1170),
            call(1),
            exit,
            // the loader
            constant(1),
            exit,
            // one more
            call(-3),
            exit,
        ],
        functions: [(0, 1), (3, 2), (6, 3), (8, 4)]
            .map(|(start, type_id)| Function { start, type_id })
            .to_vec(),
    }
}

/// Where each call of a program leads.
fn calls(text: &Text) -> Vec<(usize, usize)> {
    let all = text.insns.iter().enumerate();
    all.filter(|(_, i)| i.calls_function())
        .map(|(at, i)| (at, (at as i64 + 1 + i64::from(i.immediate)) as usize))
        .collect()
}

#[test]
fn calls_follow_what_is_moved() {
    let before = text();
    let mut filters = Filters::new();
    assert_eq!(splice(&before, &filters), Ok(before.clone()), "nothing is put in");
    filters.add(ClassicProgram::new(&expression("tcp port 80")).expect("it is valid"));
    let mut after = splice(&before, &filters).expect("there is room");
    for room in [0, 100] {
        after.make_room(room);
        let starts: Vec<_> = after.functions.iter().map(|f| f.start).collect();
        assert_eq!(starts.len(), 5, "and the calling translation");
        let reached: Vec<_> = calls(&after).iter().map(|(_, to)| *to).collect();
        assert!(reached.iter().all(|to| starts.contains(to)), "{reached:?} in {starts:?}");
        assert!(starts[1..].iter().all(|start| reached.contains(start)), "{reached:?}");
        assert_eq!(reached[0], starts[1], "the filters");
        assert_eq!(reached[1], starts[3], "the one more");
        let ends = starts[1..].iter().copied().chain([after.insns.len()]);
        let last: Vec<_> = ends.map(|end| after.insns[end - 1].code).collect();
        assert!(last.iter().all(|code| [0x95, 0x05].contains(code)), "an exit or a jump: {last:?}");
    }
    let types: Vec<_> = after.functions.iter().map(|f| f.type_id).collect();
    assert_eq!(types, [1, 2, 3, 4, 2]);
}

#[test]
fn what_no_filter_calls_is_left_out() {
    let mut filters = Filters::new();
    filters.add(ClassicProgram::new(&[i(0x06, 0, 0, 0)]).expect("it is valid"));
    let mut before = text();
    // The one more calls itself instead of the loader.
    before.insns[8].immediate = -1;
    let after = splice(&before, &filters).expect("there is room");
    assert_eq!(after.functions.iter().map(|f| f.type_id).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(calls(&after)[1].1, after.functions[2].start);
}

#[test]
fn more_functions_than_the_kernel_allows_are_refused() {
    let mut before = text();
    before.functions.extend((0..253).map(|_| Function { start: 10, type_id: 4 }));
    let mut filters = Filters::new();
    filters.add(ClassicProgram::new(&expression("tcp port 80")).expect("it is valid"));
    assert_eq!(splice(&before, &filters), Err(Error::Functions(258)));
}

#[test]
fn who_may_not_ask_a_live_interface_is_told_when_that_could_be_asked() {
    let live = "inbound/outbound not supported on Ethernet when reading savefiles";
    let told = super::refusal_text(live.to_owned(), true);
    assert!(told.starts_with(live) && told.contains("begin with it (--filter)"), "{told}");
    assert_eq!(super::refusal_text(live.to_owned(), false), live);
    let wrong = "can't parse filter expression: syntax error";
    assert_eq!(super::refusal_text(wrong.to_owned(), true), wrong);
}
