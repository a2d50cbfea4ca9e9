//! Flows that are cut off, by the hook programs inside the kernel, held against an account in this
//! process.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::os::fd::AsFd;

use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::frame::{IPV4, IPV6, TCP, UDP, ethernet, ipv4, ipv6, tcp, udp};
use tapdeck_testkit::kernel::need_root;

use super::{Duties, Trial};
use crate::Hook;
use crate::ring::{Cut, RingReader};
use crate::sys::program::run;

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::Tcx, Hook::Netfilter];
const LIMIT: u32 = 4000;

const ICMP: u8 = 1;
const GRE: u8 = 47;
const FRAGMENT: u8 = 44;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A hook's program that cuts flows off, and the reader of its ring.
struct Cutter {
    trial: Trial,
    ring: RingReader,
}

impl Cutter {
    fn new(hook: Hook, limit: u32, flow_sets: Option<u32>) -> Self {
        let duties = Duties { cutoff: NonZeroU32::new(limit), flow_sets, ..Duties::default() };
        let trial = Trial::of_recorder(hook, 4 << 20, 1 << 16, &duties).unwrap();
        let ring = RingReader::new(trial.rings[0].clone(), 0);
        Self { trial, ring }
    }

    fn send(&self, frame: &[u8]) {
        let mut context = self.trial.context.clone();
        // A run at netfilter is told of which IP the frame is.
        if let (Some(family), true) = (context.get_mut(1), frame[12..14] == IPV6.to_be_bytes()) {
            *family = libc::NFPROTO_IPV6 as u8;
        }
        run(self.trial.program.as_fd(), &context, frame, 1).unwrap();
    }

    fn cut(&self) -> Cut {
        self.trial.rings.iter().map(|ring| ring.cut()).sum()
    }

    /// Takes the frames of complete blocks.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(block) = self.ring.peek(0) {
            frames.extend(frames_in(block.bytes));
            self.ring.release(1);
        }
        frames
    }

    /// Takes all frames that are left.
    fn take_all(&mut self) -> Vec<Vec<u8>> {
        let mut frames = self.take();
        assert!(self.ring.look());
        frames.extend(frames_in(self.ring.begun()));
        frames
    }

    /// Returns whether each of these frames is kept.
    fn keeps(&mut self, frames: &[Vec<u8>]) -> Vec<bool> {
        let kept = |frame: &Vec<u8>| {
            let before = self.cut().packets;
            self.send(frame);
            self.cut().packets == before
        };
        frames.iter().map(kept).collect()
    }
}

fn frames_in(bytes: &[u8]) -> Vec<Vec<u8>> {
    let frame = |record| match record {
        Ok(Record::Packet(packet)) => Some(packet.frame.to_vec()),
        Ok(_) => None,
        Err(e) => panic!("{e}"),
    };
    Reader::inside(bytes).filter_map(frame).collect()
}

fn framed(kind: u16, packet: &[u8]) -> Vec<u8> {
    ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], kind, packet)
}

fn turned<T: Copy>([a, b]: [T; 2], back: bool) -> [T; 2] {
    if back { [b, a] } else { [a, b] }
}

/// A packet of a flow: flows of a number are of one kind, and those of other numbers are not the
/// same. Some lie in tunnels that have the same ends.
fn packet(flow: u32, back: bool, payload: &[u8]) -> Vec<u8> {
    let [low, high] = [flow as u8, (flow >> 8) as u8];
    let four = |last| Ipv4Addr::new(10, high, low, last);
    let six = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, flow as u16, last);
    let [from, to] = turned([four(1), four(2)], back);
    let [from_6, to_6] = turned([six(1), six(2)], back);
    let ports = turned([40_000, 443], back);
    let [outer, other_outer] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    match flow % 6 {
        0 => framed(IPV4, &ipv4(from, to, UDP, &udp(ports, payload))),
        1 => framed(IPV4, &ipv4(from, to, TCP, &tcp(ports, 0, payload))),
        2 => framed(IPV6, &ipv6(from_6, to_6, UDP, &udp(ports, payload))),
        3 => {
            let inner = framed(IPV4, &ipv4(from, to, UDP, &udp(ports, payload)));
            let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
            framed(IPV4, &ipv4(outer, other_outer, UDP, &udp([5000, 4789], &vxlan)))
        }
        4 => {
            let inner = ipv6(from_6, to_6, TCP, &tcp(ports, 0, payload));
            let gre = [&[0, 0, 0x86, 0xdd][..], &inner].concat();
            framed(IPV4, &ipv4(outer, other_outer, GRE, &gre))
        }
        _ => framed(IPV4, &ipv4(from, to, ICMP, &[&[8, 0, 0, 0, 0, 1, 0, 1], payload].concat())),
    }
}

/// A TCP segment between two hosts.
fn segment(flags: u8, back: bool) -> Vec<u8> {
    let [from, to] = turned([[10, 1, 1, 1], [10, 1, 1, 2]], back);
    let mut segment = tcp(turned([40_000, 443], back), 0, &[7; 400]);
    segment[13] = flags;
    framed(IPV4, &ipv4(from.into(), to.into(), TCP, &segment))
}

/// Packets of flows of which few have most, each with a number of its own.
fn drawn(random: &mut SplitMix64, flows: u32, packets: u32) -> Vec<(u32, Vec<u8>)> {
    let weights: Vec<u64> = (1..=u64::from(flows)).map(|rank| (1 << 20) / rank).collect();
    let sum: u64 = weights.iter().sum();
    let one = |number: u32| {
        let mut at = random.below(sum);
        let flow = weights.iter().position(|weight| {
            let is_it = at < *weight;
            at = at.wrapping_sub(*weight);
            is_it
        });
        let flow = flow.unwrap() as u32;
        let bytes = random.one(&[20, 60, 500, 1400]);
        let mut payload = random.bytes(bytes);
        payload[..4].copy_from_slice(&number.to_be_bytes());
        (flow, packet(flow, random.one_in(2), &payload))
    };
    (0..packets).map(one).collect()
}

/// What of the packets is kept where each flow may have [`LIMIT`] bytes.
fn wanted(packets: &[(u32, Vec<u8>)]) -> (Vec<Vec<u8>>, Cut) {
    let mut had: HashMap<u32, u64> = HashMap::new();
    let (mut kept, mut cut) = (Vec::new(), Cut::default());
    for (flow, frame) in packets {
        let had = had.entry(*flow).or_default();
        if *had < u64::from(LIMIT) {
            kept.push(frame.clone());
        } else {
            cut = cut + Cut { packets: 1, bytes: frame.len() as u64 };
        }
        *had += frame.len() as u64;
    }
    (kept, cut)
}

#[test]
fn each_flow_keeps_its_first_bytes_and_the_packet_that_reaches_them() {
    need_root();
    for hook in HOOKS {
        let mut cutter = Cutter::new(hook, LIMIT, None);
        let packets = drawn(&mut SplitMix64(1), 300, 5000);
        let mut came = Vec::new();
        for (_, frame) in &packets {
            cutter.send(frame);
            came.extend(cutter.take());
        }
        came.extend(cutter.take_all());
        let (kept, cut) = wanted(&packets);
        assert!(cut.packets > 1000, "most are tails: {cut:?}");
        assert_eq!(came.len(), kept.len(), "{hook}");
        assert!(came == kept, "{hook}: another packet was kept");
        assert_eq!(cutter.cut(), cut, "{hook}");
    }
}

#[test]
fn a_table_that_overflows_keeps_more_and_never_less() {
    need_root();
    for hook in HOOKS {
        // Six flows at a time.
        let mut cutter = Cutter::new(hook, LIMIT, Some(1));
        let packets = drawn(&mut SplitMix64(2), 100, 3000);
        let mut came = Vec::new();
        for (_, frame) in &packets {
            cutter.send(frame);
            came.extend(cutter.take());
        }
        came.extend(cutter.take_all());
        let (kept, cut) = wanted(&packets);
        let came: std::collections::HashSet<&Vec<u8>> = came.iter().collect();
        assert!(kept.iter().all(|frame| came.contains(frame)), "{hook}: less was kept");
        let cutter_cut = cutter.cut();
        assert_eq!(came.len() as u64 + cutter_cut.packets, packets.len() as u64);
        assert!(cutter_cut.packets < cut.packets, "{hook}: {cutter_cut:?} of {cut:?}");
        assert!(cutter_cut.packets > 0, "{hook}: the largest flows are known all the same");
    }
}

#[test]
fn what_ends_a_connection_is_kept_and_what_begins_one_begins_to_count() {
    need_root();
    for hook in HOOKS {
        let mut cutter = Cutter::new(hook, 1000, None);
        let frames = [
            (segment(SYN, false), true),
            (segment(SYN | ACK, true), true),
            (segment(ACK, false), true),
            // 1362 bytes have come.
            (segment(ACK, true), false),
            (segment(FIN | ACK, false), true),
            (segment(RST, true), true),
            (segment(ACK, false), false),
            // The ports are used again.
            (segment(SYN, false), true),
            (segment(ACK, true), true),
            (segment(ACK, true), true),
            (segment(ACK, true), false),
            // Again, and of the beginning its answer alone is seen.
            (segment(SYN | ACK, true), true),
            (segment(ACK, false), true),
            (segment(ACK, false), true),
            (segment(ACK, false), false),
        ];
        let (frames, kept): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
        assert_eq!(cutter.keeps(&frames), kept, "{hook}");
    }
}

#[test]
fn fragments_are_of_their_datagrams_flow() {
    need_root();
    for hook in HOOKS {
        let mut cutter = Cutter::new(hook, 500, None);
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
        let piece = |offset: u16, payload: &[u8]| {
            let more = u16::from(offset == 0);
            let mut fragment = vec![UDP, 0];
            fragment.extend((offset | more).to_be_bytes());
            fragment.extend([0, 0, 0, 9]);
            fragment.extend(payload);
            framed(IPV6, &ipv6(from, to, FRAGMENT, &fragment))
        };
        let first = piece(0, &udp([1000, 2000], &[1; 392]));
        let later = piece(400, &[2; 200]);
        let whole = |port| framed(IPV6, &ipv6(from, to, UDP, &udp([port, 2000], &[3; 40])));
        let frames = [first, later.clone(), later, whole(1000), whole(1001)];
        assert_eq!(cutter.keeps(&frames), [true, true, false, false, true], "{hook}");
    }
}

/// Hosts and ports that are counted up differ by little, and steering's hash, which is made to
/// spread them evenly, is the same for many.
#[test]
fn flows_that_differ_by_little_are_not_taken_for_one() {
    need_root();
    let mut cutter = Cutter::new(Hook::Xdp, 1, None);
    let packet = |a: u8, b: u8, port: u16| {
        let (from, to) = (Ipv4Addr::new(10, 0, 0, a), Ipv4Addr::new(10, 0, 0, b));
        framed(IPV4, &ipv4(from, to, UDP, &udp([port, 3000 - port], &[0; 20])))
    };
    let pairs = (1..=60).flat_map(|a| (a + 1..=60).map(move |b| (a, b)));
    let frames: Vec<_> =
        pairs.flat_map(|(a, b)| (1000..1010).map(move |port| packet(a, b, port))).collect();
    assert!(cutter.keeps(&frames).iter().all(|kept| *kept), "each is another flow");
    assert!(cutter.keeps(&frames).iter().all(|kept| !kept), "each is known");
}

/// What has no flow is kept, however much there is of it.
#[test]
fn what_is_not_ip_is_kept() {
    need_root();
    for hook in [Hook::Xdp, Hook::Tcx] {
        let mut cutter = Cutter::new(hook, 1, None);
        let frames = vec![framed(0x88b5, &[0; 60]); 10];
        assert!(cutter.keeps(&frames).iter().all(|kept| *kept), "{hook}");
    }
}

/// The packets of a flow come by two CPUs at once: what is kept is exact all the same.
#[test]
fn two_cpus_that_bring_packets_of_a_flow_keep_as_much_as_one() {
    const ROUNDS: u32 = 200;
    const REPEATS: u32 = 20;
    need_root();
    let mut cutter = Cutter::new(Hook::Xdp, LIMIT, None);
    let (program, context) = (&cutter.trial.program, &cutter.trial.context);
    let frame = |flow, back| packet(flow * 6, back, &[0; 358]);
    let len = frame(0, false).len() as u32;
    assert_eq!(LIMIT % len, 0, "so that no count is reached within a packet");
    std::thread::scope(|scope| {
        for back in [false, true] {
            scope.spawn(move || {
                let mut cpu = CpuSet::new();
                cpu.set(usize::from(back));
                sched_setaffinity(None, &cpu).unwrap();
                for flow in 0..ROUNDS {
                    run(program.as_fd(), context, &frame(flow, back), REPEATS).unwrap();
                }
            });
        }
    });
    let kept = cutter.take_all().len() as u32;
    assert_eq!(kept, ROUNDS * (LIMIT / len));
    assert_eq!(cutter.cut().packets, u64::from(ROUNDS * (2 * REPEATS - LIMIT / len)));
}
